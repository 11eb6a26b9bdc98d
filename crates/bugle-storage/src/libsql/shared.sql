-- The tables that Bugle and the reference share (STO §1), in the reference's words: columns in its order.
-- Parsed by schema.rs: one column a line, quoted names; a line that starts otherwise is a table constraint.

CREATE TABLE IF NOT EXISTS mastra_threads (
  "id" TEXT NOT NULL PRIMARY KEY,
  "resourceId" TEXT NOT NULL,
  "title" TEXT NOT NULL,
  "metadata" TEXT,
  "createdAt" TEXT NOT NULL,
  "updatedAt" TEXT NOT NULL
);

CREATE TABLE IF NOT EXISTS mastra_messages (
  "id" TEXT NOT NULL PRIMARY KEY,
  "thread_id" TEXT NOT NULL,
  "content" TEXT NOT NULL,
  "role" TEXT NOT NULL,
  "type" TEXT NOT NULL,
  "createdAt" TEXT NOT NULL,
  "resourceId" TEXT
);

CREATE TABLE IF NOT EXISTS mastra_resources (
  "id" TEXT NOT NULL PRIMARY KEY,
  "workingMemory" TEXT,
  "metadata" TEXT,
  "createdAt" TEXT NOT NULL,
  "updatedAt" TEXT NOT NULL
);

CREATE TABLE IF NOT EXISTS mastra_observational_memory (
  "id" TEXT NOT NULL PRIMARY KEY,
  "lookupKey" TEXT NOT NULL,
  "scope" TEXT NOT NULL,
  "resourceId" TEXT,
  "threadId" TEXT,
  "activeObservations" TEXT NOT NULL,
  "activeObservationsPendingUpdate" TEXT,
  "originType" TEXT NOT NULL,
  "config" TEXT NOT NULL,
  "generationCount" INTEGER NOT NULL,
  "lastObservedAt" TEXT,
  "lastReflectionAt" TEXT,
  "pendingMessageTokens" INTEGER NOT NULL,
  "totalTokensObserved" INTEGER NOT NULL,
  "observationTokenCount" INTEGER NOT NULL,
  "isObserving" INTEGER NOT NULL,
  "isReflecting" INTEGER NOT NULL,
  "observedMessageIds" TEXT,
  "observedTimezone" TEXT,
  "bufferedObservations" TEXT,
  "bufferedObservationTokens" INTEGER,
  "bufferedMessageIds" TEXT,
  "bufferedReflection" TEXT,
  "bufferedReflectionTokens" INTEGER,
  "bufferedReflectionInputTokens" INTEGER,
  "reflectedObservationLineCount" INTEGER,
  "bufferedObservationChunks" TEXT,
  "isBufferingObservation" INTEGER NOT NULL,
  "isBufferingReflection" INTEGER NOT NULL,
  "lastBufferedAtTokens" INTEGER NOT NULL,
  "lastBufferedAtTime" TEXT,
  "metadata" TEXT,
  "createdAt" TEXT NOT NULL,
  "updatedAt" TEXT NOT NULL
);

CREATE TABLE IF NOT EXISTS mastra_workflow_snapshot (
  "workflow_name" TEXT,
  "run_id" TEXT,
  "resourceId" TEXT,
  "snapshot" TEXT,
  "createdAt" TEXT,
  "updatedAt" TEXT,
  UNIQUE (workflow_name, run_id)
);

CREATE TABLE IF NOT EXISTS mastra_notifications (
  "id" TEXT NOT NULL,
  "threadId" TEXT NOT NULL,
  "source" TEXT NOT NULL,
  "kind" TEXT NOT NULL,
  "priority" TEXT NOT NULL,
  "status" TEXT NOT NULL,
  "summary" TEXT NOT NULL,
  "payload" TEXT,
  "resourceId" TEXT,
  "agentId" TEXT,
  "sourceId" TEXT,
  "dedupeKey" TEXT,
  "coalesceKey" TEXT,
  "coalescedCount" INTEGER NOT NULL,
  "attributes" TEXT,
  "createdAt" TEXT NOT NULL,
  "updatedAt" TEXT NOT NULL,
  "deliveredAt" TEXT,
  "seenAt" TEXT,
  "dismissedAt" TEXT,
  "archivedAt" TEXT,
  "discardedAt" TEXT,
  "deliverAt" TEXT,
  "summaryAt" TEXT,
  "deliveryReason" TEXT,
  "deliveryAttempts" INTEGER NOT NULL,
  "lastDeliveryAttemptAt" TEXT,
  "lastDeliveryError" TEXT,
  "deliveredSignalId" TEXT,
  "summarySignalId" TEXT,
  "metadata" TEXT
);

CREATE TABLE IF NOT EXISTS mastra_thread_state (
  "threadId" TEXT NOT NULL,
  "type" TEXT NOT NULL,
  "value" TEXT NOT NULL,
  "createdAt" TEXT NOT NULL,
  "updatedAt" TEXT NOT NULL,
  PRIMARY KEY ("threadId", "type")
);

CREATE TABLE IF NOT EXISTS mastra_background_tasks (
  "id" TEXT NOT NULL PRIMARY KEY,
  "tool_call_id" TEXT NOT NULL,
  "tool_name" TEXT NOT NULL,
  "agent_id" TEXT NOT NULL,
  "run_id" TEXT NOT NULL,
  "thread_id" TEXT,
  "resource_id" TEXT,
  "status" TEXT NOT NULL,
  "args" TEXT NOT NULL,
  "result" TEXT,
  "error" TEXT,
  "suspend_payload" TEXT,
  "retry_count" INTEGER NOT NULL,
  "max_retries" INTEGER NOT NULL,
  "timeout_ms" INTEGER NOT NULL,
  "createdAt" TEXT NOT NULL,
  "startedAt" TEXT,
  "suspendedAt" TEXT,
  "completedAt" TEXT
);

CREATE TABLE IF NOT EXISTS mastra_agents (
  "id" TEXT NOT NULL PRIMARY KEY,
  "status" TEXT NOT NULL,
  "activeVersionId" TEXT,
  "authorId" TEXT,
  "visibility" TEXT,
  "metadata" TEXT,
  "favoriteCount" INTEGER,
  "createdAt" TEXT NOT NULL,
  "updatedAt" TEXT NOT NULL
);

CREATE TABLE IF NOT EXISTS mastra_agent_versions (
  "id" TEXT NOT NULL PRIMARY KEY,
  "agentId" TEXT NOT NULL,
  "versionNumber" INTEGER NOT NULL,
  "name" TEXT NOT NULL,
  "description" TEXT,
  "instructions" TEXT NOT NULL,
  "model" TEXT NOT NULL,
  "tools" TEXT,
  "defaultOptions" TEXT,
  "workflows" TEXT,
  "agents" TEXT,
  "integrationTools" TEXT,
  "toolProviders" TEXT,
  "inputProcessors" TEXT,
  "outputProcessors" TEXT,
  "memory" TEXT,
  "scorers" TEXT,
  "mcpClients" TEXT,
  "requestContextSchema" TEXT,
  "workspace" TEXT,
  "skills" TEXT,
  "skillsFormat" TEXT,
  "durable" TEXT,
  "browser" TEXT,
  "changedFields" TEXT,
  "changeMessage" TEXT,
  "createdAt" TEXT NOT NULL
);

CREATE TABLE IF NOT EXISTS mastra_schedules (
  "id" TEXT NOT NULL PRIMARY KEY,
  "target" TEXT NOT NULL,
  "cron" TEXT NOT NULL,
  "timezone" TEXT,
  "status" TEXT NOT NULL,
  "next_fire_at" INTEGER NOT NULL,
  "last_fire_at" INTEGER,
  "last_run_id" TEXT,
  "created_at" INTEGER NOT NULL,
  "updated_at" INTEGER NOT NULL,
  "metadata" TEXT,
  "owner_type" TEXT,
  "owner_id" TEXT
);

CREATE TABLE IF NOT EXISTS mastra_schedule_triggers (
  "id" TEXT NOT NULL PRIMARY KEY,
  "schedule_id" TEXT NOT NULL,
  "run_id" TEXT,
  "scheduled_fire_at" INTEGER NOT NULL,
  "actual_fire_at" INTEGER NOT NULL,
  "outcome" TEXT NOT NULL,
  "error" TEXT,
  "trigger_kind" TEXT NOT NULL,
  "parent_trigger_id" TEXT,
  "metadata" TEXT
);

CREATE TABLE IF NOT EXISTS mastra_scorers (
  "id" TEXT NOT NULL PRIMARY KEY,
  "scorerId" TEXT,
  "traceId" TEXT,
  "spanId" TEXT,
  "runId" TEXT,
  "scorer" TEXT,
  "preprocessStepResult" TEXT,
  "extractStepResult" TEXT,
  "analyzeStepResult" TEXT,
  "score" REAL,
  "reason" TEXT,
  "metadata" TEXT,
  "preprocessPrompt" TEXT,
  "extractPrompt" TEXT,
  "generateScorePrompt" TEXT,
  "generateReasonPrompt" TEXT,
  "analyzePrompt" TEXT,
  "reasonPrompt" TEXT,
  "input" TEXT,
  "output" TEXT,
  "additionalContext" TEXT,
  "requestContext" TEXT,
  "entityType" TEXT,
  "entity" TEXT,
  "entityId" TEXT,
  "source" TEXT,
  "resourceId" TEXT,
  "threadId" TEXT,
  "organizationId" TEXT,
  "projectId" TEXT,
  "batchId" TEXT,
  "datasetId" TEXT,
  "datasetItemId" TEXT,
  "createdAt" TEXT,
  "updatedAt" TEXT
);

CREATE TABLE IF NOT EXISTS mastra_channel_installations (
  "id" TEXT NOT NULL PRIMARY KEY,
  "platform" TEXT NOT NULL,
  "agentId" TEXT NOT NULL,
  "status" TEXT NOT NULL,
  "webhookId" TEXT,
  "data" TEXT NOT NULL,
  "configHash" TEXT,
  "error" TEXT,
  "createdAt" TEXT NOT NULL,
  "updatedAt" TEXT NOT NULL
);

CREATE TABLE IF NOT EXISTS mastra_channel_config (
  "platform" TEXT NOT NULL PRIMARY KEY,
  "data" TEXT NOT NULL,
  "updatedAt" TEXT NOT NULL
);
