-- Bugle's own tables and indexes (ruling 14, STO-023, STO-024). They are invisible to the reference.

-- Accepted input. state 0 = waits, 1 = placed as a message (kept without its body, so that a repeated acceptance is told
-- apart, SIG-503; goes with its message).
CREATE TABLE IF NOT EXISTS bugle_inbox (
  "id" TEXT NOT NULL PRIMARY KEY,
  "resource" TEXT NOT NULL,
  "thread" TEXT NOT NULL,
  "position" INTEGER NOT NULL,
  "state" INTEGER NOT NULL,
  "run_id" TEXT NOT NULL,
  "fingerprint" TEXT NOT NULL,
  "entry" TEXT
) WITHOUT ROWID;

-- Runs that have not ended.
CREATE TABLE IF NOT EXISTS bugle_runs (
  "run_id" TEXT NOT NULL PRIMARY KEY,
  "resource" TEXT NOT NULL,
  "thread" TEXT NOT NULL,
  "agent_id" TEXT NOT NULL,
  "status" TEXT NOT NULL,
  "snapshot" TEXT NOT NULL,
  "updated_at" INTEGER NOT NULL
);

-- Who owns a thread. The epoch never shrinks, so rows stay. Times are milliseconds since 1970.
CREATE TABLE IF NOT EXISTS bugle_leases (
  "resource" TEXT NOT NULL,
  "thread" TEXT NOT NULL,
  "owner" TEXT,
  "epoch" INTEGER NOT NULL,
  "expires_at" INTEGER NOT NULL,
  "event_epoch" INTEGER,
  "event_number" INTEGER,
  PRIMARY KEY ("resource", "thread")
) WITHOUT ROWID;

-- Who is delivering a notification, until when (milliseconds since 1970), and with which signal (NOTIF-075).
CREATE TABLE IF NOT EXISTS bugle_notification_claims (
  "thread" TEXT NOT NULL,
  "id" TEXT NOT NULL,
  "token" TEXT NOT NULL,
  "until" INTEGER NOT NULL,
  "intended" TEXT,
  PRIMARY KEY ("thread", "id")
) WITHOUT ROWID;

-- Which thread hears of which outside resource (PROV-014). The body is the whole subscription as JSON.
CREATE TABLE IF NOT EXISTS bugle_subscriptions (
  "id" TEXT NOT NULL PRIMARY KEY,
  "provider_id" TEXT NOT NULL,
  "external" TEXT NOT NULL,
  "agent_id" TEXT NOT NULL,
  "resource" TEXT NOT NULL,
  "thread" TEXT NOT NULL,
  "enabled" INTEGER NOT NULL,
  "body" TEXT NOT NULL,
  "poll_token" TEXT NOT NULL,
  "poll_until" INTEGER NOT NULL
);
