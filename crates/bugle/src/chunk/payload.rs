//! The payload of each chunk type.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{id::MessageId, json::Object, time::Timestamp};

macro_rules! payloads {
    ($($(#[$doc:meta])* $kind:literal $variant:ident $body:tt)*) => {
        /// The payload of a chunk. Field names on the wire are the camel-case forms.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "type", content = "payload", rename_all_fields = "camelCase")]
        pub enum Payload {
            $($(#[$doc])* #[serde(rename = $kind)] $variant $body,)*
        }
        impl Payload {
            /// The chunk type on the wire.
            pub fn kind(&self) -> &'static str {
                match self { $(Self::$variant { .. } => $kind,)* }
            }
        }
    };
}

type Metadata = Option<Object>;

payloads! {
    /// First chunk of a fresh run; never on resume.
    "start" Start { /** The agent's id. */ id: String, /** The id the answer is stored under. */ message_id: MessageId }
    /// The model has answered with headers.
    "step-start" StepStart {
        /** The id the answer is stored under. */ message_id: MessageId,
        /** Milliseconds since 1970. */ started_at: i64,
        /** Always empty: requests are not shown (HTTP-029). */ #[serde(default)] request: Object,
        /** What the provider warned of. */ #[serde(default)] warnings: Vec<Value>,
    }
    /// Text begins.
    "text-start" TextStart { /** The block. */ id: String, #[serde(default, skip_serializing_if = "Option::is_none")] /** From the provider. */ provider_metadata: Metadata }
    /// Text.
    "text-delta" TextDelta { /** The block. */ id: String, /** The text. */ text: String, #[serde(default, skip_serializing_if = "Option::is_none")] /** From the provider. */ provider_metadata: Metadata }
    /// Text ends.
    "text-end" TextEnd { /** The block. */ id: String, #[serde(default, skip_serializing_if = "Option::is_none")] /** From the provider. */ provider_metadata: Metadata }
    /// Reasoning begins.
    "reasoning-start" ReasoningStart { /** The block. */ id: String, #[serde(default, skip_serializing_if = "Option::is_none")] /** From the provider. */ provider_metadata: Metadata }
    /// Reasoning.
    "reasoning-delta" ReasoningDelta { /** The block. */ id: String, /** The text. */ text: String, #[serde(default, skip_serializing_if = "Option::is_none")] /** From the provider. */ provider_metadata: Metadata }
    /// Reasoning ends.
    "reasoning-end" ReasoningEnd {
        /** The block. */ id: String,
        #[serde(default, skip_serializing_if = "Option::is_none")] /** From the provider. */ provider_metadata: Metadata,
        #[serde(default, skip_serializing_if = "Option::is_none")] /** What proves the block to the provider. */ signature: Option<String>,
    }
    /// Reasoning that the provider keeps to itself.
    "redacted-reasoning" RedactedReasoning {
        /** The block. */ id: String, /** Opaque. */ data: Value,
        #[serde(default, skip_serializing_if = "Option::is_none")] /** From the provider. */ provider_metadata: Metadata,
    }
    /// A citation.
    "source" Source(SourcePayload)
    /// A generated file.
    "file" File {
        /** Base64. */ data: String,
        /** The media type. */ mime_type: String,
        #[serde(default, skip_serializing_if = "Option::is_none")] /** The file's name. */ filename: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")] /** From the provider. */ provider_metadata: Metadata,
    }
    /// A provider event as it came (`includeRawChunks`).
    "raw" Raw(Value)
    /// Arguments begin.
    "tool-call-input-streaming-start" ToolCallInputStart {
        /** The call. */ tool_call_id: String, /** The tool. */ tool_name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")] /** The provider runs it. */ provider_executed: Option<bool>,
    }
    /// Argument text.
    "tool-call-delta" ToolCallDelta {
        /** The text. */ args_text_delta: String, /** The call. */ tool_call_id: String,
        #[serde(default, skip_serializing_if = "Option::is_none")] /** The tool. */ tool_name: Option<String>,
    }
    /// Arguments are complete.
    "tool-call-input-streaming-end" ToolCallInputEnd { /** The call. */ tool_call_id: String }
    /// A call with its arguments.
    "tool-call" ToolCall(ToolCallPayload)
    /// A call waits for a person.
    "tool-call-approval" ToolCallApproval {
        /** The call. */ tool_call_id: String, /** The tool. */ tool_name: String, /** Its arguments. */ args: Value,
        /** JSON Schema of the answer, as text (LOOP-091). */ resume_schema: String,
    }
    /// A tool has suspended itself.
    "tool-call-suspended" ToolCallSuspended {
        /** The call. */ tool_call_id: String, /** The tool. */ tool_name: String, /** Its arguments. */ args: Value,
        /** What it told the person. */ suspend_payload: Value,
        /** JSON Schema of the answer, as text. */ resume_schema: String,
    }
    /// What a tool wrote while it ran, or a chunk of a delegated run.
    "tool-output" ToolOutput {
        /** What was written. */ output: Value, /** The call. */ tool_call_id: String,
        #[serde(default, skip_serializing_if = "Option::is_none")] /** The tool. */ tool_name: Option<String>,
    }
    /// A call's result.
    "tool-result" ToolResult(ToolResultPayload)
    /// A call failed.
    "tool-error" ToolError {
        /** The call. */ tool_call_id: String, /** The tool. */ tool_name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")] /** Its arguments. */ args: Option<Value>,
        /** Why. */ error: ErrorInfo,
        #[serde(default, skip_serializing_if = "Option::is_none")] /** The provider ran it. */ provider_executed: Option<bool>,
    }
    /// A person declined the call.
    "tool-output-denied" ToolOutputDenied {
        /** The call. */ tool_call_id: String, /** The tool. */ tool_name: String,
        #[serde(default, skip_serializing_if = "Option::is_none")] /** Its arguments. */ args: Option<Value>,
        /** `{id, approved: false, reason?}`. */ approval: Value,
    }
    /// A step has ended, its tools included.
    "step-finish" StepFinish(Box<StepFinishPayload>)
    /// The run has ended.
    "finish" Finish(Box<StepFinishPayload>)
    /// The run has failed.
    "error" Error { /** Why. */ error: ErrorInfo }
    /// The run was stopped (direct streams; subscribers get [`super::ChunkBody::AbortNotice`]).
    "abort" Abort {}
    /// A processor has stopped the run.
    "tripwire" Tripwire(TripwirePayload)
    /// The answer was scored (SCO §3).
    "is-task-complete" IsTaskComplete(Value)
}

/// A call with its arguments.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolCallPayload {
    /// The call.
    pub tool_call_id: String,
    /// The tool.
    pub tool_name: String,
    /// Its arguments.
    pub args: Value,
    /// The provider runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_executed: Option<bool>,
    /// From the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_metadata: Option<Object>,
}

/// A call's result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolResultPayload {
    /// The call's arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Value>,
    /// The call.
    pub tool_call_id: String,
    /// The tool.
    pub tool_name: String,
    /// What it returned.
    pub result: Value,
    /// The result reports a failure (LOOP-071).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_error: Option<bool>,
    /// The provider ran it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_executed: Option<bool>,
    /// `mastra.modelOutput` and the like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_metadata: Option<Object>,
}

/// A citation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourcePayload {
    /// The citation.
    pub id: String,
    /// `url` or `document`.
    pub source_type: String,
    /// Shown name.
    #[serde(default)]
    pub title: String,
    /// Where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// The media type of a document.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// From the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_metadata: Option<Object>,
}

/// Why a processor stopped the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TripwirePayload {
    /// Said to the caller.
    pub reason: String,
    /// The processor asked for another try.
    #[serde(default)]
    pub retry: bool,
    /// Which processor.
    pub processor_id: String,
    /// The processor's own data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Value>,
}

/// An error as it crosses the wire: no stack, no key, no request (LOOP-143, SIG-353).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorInfo {
    /// What happened.
    pub message: String,
    /// The class of error.
    pub name: String,
    /// A stable id, such as `AGENT_MEMORY_THREAD_RESOURCE_MISMATCH`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The provider's HTTP status.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status_code: Option<u16>,
    /// Whether the same request may succeed later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_retryable: Option<bool>,
    /// What the provider answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response_body: Option<String>,
    /// Anything else that helps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
    /// What caused it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<Box<ErrorInfo>>,
}

impl ErrorInfo {
    /// An error named `name`.
    pub fn new(name: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            name: name.into(),
            id: None,
            status_code: None,
            is_retryable: None,
            response_body: None,
            details: None,
            cause: None,
        }
    }
}

/// Why a request or run ended (LOOP §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FinishReason {
    /// The model has said what it had to say.
    Stop,
    /// The token limit was reached.
    Length,
    /// The provider withheld the answer.
    ContentFilter,
    /// The model called tools.
    ToolCalls,
    /// The request or run failed.
    Error,
    /// Anything else; `unknown` is read as this (LOOP-023).
    #[serde(alias = "unknown")]
    Other,
    /// Waits for a person.
    Suspended,
    /// Stopped by the caller.
    Aborted,
    /// Stopped by a processor.
    Tripwire,
    /// A processor asked for another try.
    Retry,
}

/// Token counts. A count that the provider does not report is absent; a sum treats absent as 0 (LOOP-162).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Usage {
    /// Tokens read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u64>,
    /// Tokens written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u64>,
    /// Both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total_tokens: Option<u64>,
    /// Of the written ones, thought.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u64>,
    /// Of the read ones, from the provider's cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_input_tokens: Option<u64>,
    /// Read tokens written to the provider's cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_creation_input_tokens: Option<u64>,
    /// As the provider said it; of the last step in a sum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<Value>,
}

impl Usage {
    /// Adds `step` to this sum (LOOP-160).
    pub fn add(&mut self, step: &Self) {
        fn sum(total: &mut Option<u64>, step: Option<u64>) {
            if let Some(step) = step {
                *total = Some(total.unwrap_or(0).saturating_add(step));
            }
        }
        sum(&mut self.input_tokens, step.input_tokens);
        sum(&mut self.output_tokens, step.output_tokens);
        sum(&mut self.total_tokens, step.total_tokens);
        sum(&mut self.reasoning_tokens, step.reasoning_tokens);
        sum(&mut self.cached_input_tokens, step.cached_input_tokens);
        sum(&mut self.cache_creation_input_tokens, step.cache_creation_input_tokens);
        if step.raw.is_some() {
            self.raw.clone_from(&step.raw);
        }
    }
}

/// How a step or run ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepResult {
    /// Why.
    pub reason: FinishReason,
    /// As the provider said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_reason: Option<String>,
    /// Another step follows.
    pub is_continued: bool,
    /// What the provider warned of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Value>,
    /// The id of the next step's message, where it changed (LOOP-171).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_id: Option<MessageId>,
    /// `max-steps` or `stop-when`, where that cut the run (LOOP-028).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_cause: Option<String>,
}

/// What a step or run produced.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepOutput {
    /// The text of the step, or of the run.
    pub text: String,
    /// `{toolCallId, toolName, args}` of the step, or of the run.
    #[serde(default)]
    pub tool_calls: Vec<Value>,
    /// Of the step, or the run's sum.
    #[serde(default)]
    pub usage: Usage,
    /// The sum of the run's delegations, which `usage` does not hold (SUB-154).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sub_agent_usage: Option<Usage>,
    /// With `structuredOutput`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<Value>,
}

/// Which model answered.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResponseMetadata {
    /// The provider's id of the response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// When the provider answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Timestamp>,
    /// The model that answered, by the provider's word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_id: Option<String>,
    /// `{modelId, modelVersion, modelProvider}` as configured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_metadata: Option<Value>,
    /// The provider's own data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_metadata: Option<Object>,
}

/// The payload of `step-finish` and `finish`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepFinishPayload {
    /// The message that holds the answer.
    pub message_id: MessageId,
    /// How it ended.
    pub step_result: StepResult,
    /// Which model answered.
    #[serde(default)]
    pub metadata: ResponseMetadata,
    /// What it produced.
    pub output: StepOutput,
    /// Only in the `finish` of a direct response: `{nonUser: […]}` (HTTP-068).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub messages: Option<Value>,
    /// Only in `finish`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Value>,
    /// How often a processor asked for another try.
    #[serde(default)]
    pub processor_retry_count: u32,
    /// The completion check failed; another step follows (HTTP-065).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_task_complete_check_failed: Option<bool>,
    /// Only in `finish`: the signals this run has seen (SIG-514).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub consumed_signal_ids: Vec<MessageId>,
    /// Only in `finish`: input stored at the step limit without an answer (SIG-204).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unanswered_signal_ids: Vec<MessageId>,
    /// What went wrong without ending the run (MEM-054).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Value>,
}

impl Payload {
    /// Reads the payload of a chunk of type `kind`; `None` for an unknown type or shape.
    pub(crate) fn read(kind: &str, payload: &Value) -> Option<Self> {
        serde_json::from_value(json!({ "type": kind, "payload": payload })).ok()
    }
}
