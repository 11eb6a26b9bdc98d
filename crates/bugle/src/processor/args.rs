//! What each hook gets, and may change (PROC §2).

use indexmap::IndexMap;
use serde_json::Value;
use smallvec::SmallVec;

use crate::{
    agent::ModelEntry,
    chunk::{Chunk, ErrorInfo, FinishReason, ToolCallPayload, Usage},
    id::MessageId,
    json::Object,
    message::{Part, StoredMessage},
    model::{ModelEvent, ModelSettings, PromptMessage, ResponseFormat, SharedModel, ToolChoice, ToolDefinition},
    run::{StructuredOutput, ToolChoiceOption},
    tool::Tool,
};

/// The new messages of a run, or one input that arrived mid-run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Input {
    /// The new messages, oldest first; signals among them in stored form. A message that is taken out is not taken in,
    /// one that is added is, and one of role `system` that is added goes to [`Self::system`] (PROC-011).
    pub messages: Vec<StoredMessage>,
    /// Added to the instructions of the whole run; each text once.
    pub system: Vec<String>,
    /// It arrived while the run was going on (SIG-208).
    pub mid_run: bool,
}

/// A request about to be prepared. What is changed holds for this step; the next begins with the call's own values.
#[derive(Debug, Clone)]
pub struct InputStep {
    /// The models, in order of fallback.
    pub models: Vec<ModelEntry>,
    /// The tools by the name the model knows.
    pub tools: IndexMap<String, Tool>,
    /// Which tool the model must call.
    pub tool_choice: Option<ToolChoiceOption>,
    /// The only tools offered; a call of another is refused (PROC-041).
    pub active_tools: Option<Vec<String>>,
    /// Passed through, keyed by provider.
    pub provider_options: Option<Object>,
    /// Sampling and limits. Change single fields: what is left alone is the caller's (PROC-042).
    pub model_settings: ModelSettings,
    /// The untagged system messages, as they were after `process_input` (PROC-013).
    pub system: Vec<PromptMessage>,
    /// The form of the answer; the step that ends the run gives the value.
    pub structured_output: Option<StructuredOutput>,
    /// The id of the answer under construction. Another one, which no message has, closes it: the step's answer is a
    /// message of its own. [`Context::rotate_message_id`](super::Context::rotate_message_id) takes a fresh one.
    pub message_id: MessageId,
    /// What [`Context::retry_count`](super::Context::retry_count) gives in the hooks of this step. How often a step may
    /// be tried again is counted apart.
    pub retry_count: u32,
}

/// A prompt about to be sent.
#[derive(Debug, Clone)]
pub struct LlmRequest {
    /// What the model reads. Changes are for this request only.
    pub prompt: Vec<PromptMessage>,
    /// The model that is asked first.
    pub model: SharedModel,
    /// Sampling and limits of the request.
    pub model_settings: ModelSettings,
    /// The tools offered; to be read.
    pub tools: Vec<ToolDefinition>,
    /// Which of them it must call; to be read.
    pub tool_choice: ToolChoice,
    /// The form of the answer; to be read.
    pub response_format: Option<ResponseFormat>,
    /// Passed through, keyed by provider; to be read.
    pub provider_options: Option<Object>,
    /// The ids of the run's stream hooks, in order: an answer kept from here has passed these.
    pub filters: Vec<String>,
    /// An answer in the model's place. The first processor that sets it wins (PROC-014).
    pub response: Option<Vec<ModelEvent>>,
}

/// A complete response.
#[derive(Debug, Clone)]
pub struct LlmResponse {
    /// What the model said: as it came, or, where the run has stream hooks, as they passed it on. The last event is the
    /// finish.
    pub events: Vec<ModelEvent>,
    /// `provider/model`.
    pub model: String,
    /// What the provider warned of.
    pub warnings: Vec<Value>,
}

/// A response before its tools run.
#[derive(Debug, Clone)]
pub struct OutputStep {
    /// Its text. Changed text is what is stored and given to the caller; what was streamed has been seen.
    pub text: String,
    /// Its reasoning. Changed reasoning is what is stored and given to the caller, without what proves it to the provider.
    pub reasoning: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The calls it asks for.
    pub tool_calls: Vec<ToolCallPayload>,
    /// What it cost.
    pub usage: Usage,
    /// The parts that are about to be stored.
    pub parts: Vec<Part>,
    /// From the provider.
    pub provider_metadata: Option<Object>,
}

/// The result of a tool that has succeeded.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolResult {
    /// The tool.
    pub tool_name: String,
    /// The call.
    pub tool_call_id: String,
    /// Its arguments.
    pub args: Value,
    /// What it returned; may be changed.
    pub result: Value,
    /// The provider ran it.
    pub provider_executed: bool,
}

/// The end of a run.
#[derive(Debug, Clone)]
pub struct OutputResult {
    /// The accepted text (PROC-055 b). Changed text is what the caller gets.
    pub text: String,
    /// The value, with structured output; may be set.
    pub object: Option<Value>,
    /// What the run cost.
    pub usage: Usage,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The answers of the run in stored form. Those that are changed are stored as changed; none is removed by leaving
    /// it out (PROC-012), see [`Context::replace_messages`](super::Context::replace_messages).
    pub messages: Vec<StoredMessage>,
}

/// A request that failed, the model's own retries used up.
#[derive(Debug, Clone, PartialEq)]
pub struct ApiFailure {
    /// What happened.
    pub error: ErrorInfo,
    /// The model that failed, `provider/model`.
    pub model: String,
    /// Something of the response had been shown before it broke off.
    pub partial: bool,
}

/// Whether a failed request is tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Recovery {
    /// Not because of this processor.
    #[default]
    GiveUp,
    /// With the same model, within the budget of PROC-061.
    Retry,
}

/// What a stream hook gives for one chunk.
pub type Chunks = SmallVec<[Chunk; 2]>;

/// Why held chunks are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    /// A text block is about to end.
    Text,
    /// The response is complete.
    Step,
    /// The run was stopped; what is given is shown and kept.
    Abort,
}
