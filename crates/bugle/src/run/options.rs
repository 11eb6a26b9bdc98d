//! What a caller says about a run (LOOP §2).

use std::{fmt, sync::Arc};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    agent::{OnStepLimit, RequestContext},
    chunk::{Chunk, ErrorInfo},
    id::RunId,
    json::Object,
    message::StoredMessage,
    model::{ModelSettings, SharedModel},
    run::{RunOutput, StepSummary},
    scorer::TaskCompletion,
};

/// Options of one run. What serde writes of them is what an inbox entry or a parked run keeps; hooks and values of
/// code stay with the process.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RunOptions {
    /// The run's id, if the caller names it (LOOP-007).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// The most steps; 5 by default, 0 counts as not given (LOOP-020).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u32>,
    /// Which tool the model must call.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_choice: Option<ToolChoiceOption>,
    /// The only tools offered (LOOP-041).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_tools: Option<Vec<String>>,
    /// Tools the client runs (LOOP-076).
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub client_tools: IndexMap<String, ClientTool>,
    /// Sampling and limits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model_settings: Option<ModelSettings>,
    /// Passed through untouched, keyed by provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_options: Option<Object>,
    /// Replaces the agent's instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<Texts>,
    /// Added to the instructions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system: Option<Texts>,
    /// Joins the prompt, is not stored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub context: Vec<StoredMessage>,
    /// All tools wait for a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub require_tool_approval: Option<bool>,
    /// At most so many tools at once (LOOP-063). Default 10.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_call_concurrency: Option<u32>,
    /// The answer is a value that fits a schema (LOOP §10).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub structured_output: Option<StructuredOutput>,
    /// Pass the provider's events as `raw` chunks.
    pub include_raw_chunks: bool,
    /// The caller's request context.
    #[serde(skip_serializing_if = "RequestContext::is_empty")]
    pub request_context: RequestContext,
    /// Take the request context of the run it is queued behind (SIG-252).
    pub inherit_request_context: bool,
    /// What becomes of input at the step limit; the agent's if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_step_limit: Option<OnStepLimit>,
    /// For input that joins a run: whether it may cut a request short (SIG-245).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interrupt: Option<crate::agent::Interrupt>,
    /// Overrides of the agent's memory options for this run (MEM-001).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_options: Option<Value>,
    /// Title and metadata of a thread this run creates (MEM-012).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_seed: Option<ThreadSeed>,
    /// What the model reads of one tool result, at most, in bytes (R42). No limit by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tool_result_bytes: Option<usize>,
    /// Another model for this run.
    #[serde(skip)]
    pub model: Option<SharedModel>,
    /// Any true stops the run (LOOP-021).
    #[serde(skip)]
    pub stop_when: Vec<StopCondition>,
    /// Called as the run goes (LOOP §13).
    #[serde(skip)]
    pub hooks: Hooks,
    /// Replaces the agent's completion check.
    #[serde(skip)]
    pub is_task_complete: Option<TaskCompletion>,
    /// Aborts the run when it fires (SIG-311).
    #[serde(skip)]
    pub abort: Option<tokio_util::sync::CancellationToken>,
}

/// Title and metadata of a new thread.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadSeed {
    /// Its title.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Its metadata; merged by key into an existing thread's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Object>,
}

/// One text or several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Texts {
    /// One.
    One(String),
    /// Several, each a system message.
    Many(Vec<String>),
}

impl Texts {
    /// All of them.
    pub fn list(&self) -> &[String] {
        match self {
            Self::One(text) => std::slice::from_ref(text),
            Self::Many(texts) => texts,
        }
    }
}

/// `auto`, `none`, `required`, or one tool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ToolChoiceOption {
    /// By name.
    Mode(ToolChoiceMode),
    /// This tool.
    #[serde(rename_all = "camelCase")]
    Tool {
        /// Always `tool`.
        #[serde(rename = "type")]
        kind: ToolLiteral,
        /// The tool.
        tool_name: String,
    },
}

/// The modes of a tool choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolChoiceMode {
    /// The model's own choice.
    Auto,
    /// No tools.
    None,
    /// Some tool.
    Required,
}

/// The literal `tool`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolLiteral {
    /// `tool`.
    Tool,
}

/// A tool the client runs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientTool {
    /// Its id, if not the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// What it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of its arguments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_schema: Option<Value>,
}

/// The answer is a value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StructuredOutput {
    /// JSON Schema of the value.
    pub schema: Value,
    /// Added to the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// `true`, `"system"`, `"inline"` or `"auto"`: put the schema into the prompt instead (LOOP-151).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub json_prompt_injection: Option<Value>,
    /// What happens when the value does not fit (LOOP-155).
    #[serde(default)]
    pub error_strategy: ErrorStrategy,
    /// With [`ErrorStrategy::Fallback`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fallback_value: Option<Value>,
}

/// What happens when a structured answer does not fit its schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ErrorStrategy {
    /// The run fails.
    #[default]
    Strict,
    /// There is no object.
    Warn,
    /// The fallback value is used.
    Fallback,
}

/// Looks at the finished steps, oldest first; `true` stops the run (LOOP-021).
#[derive(Clone)]
pub struct StopCondition(pub Arc<dyn Fn(&[StepSummary]) -> bool + Send + Sync>);

impl fmt::Debug for StopCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StopCondition(..)")
    }
}

type Hook<T> = Option<Arc<dyn Fn(&T) + Send + Sync>>;

/// Hooks of a run. A hook that panics is logged and changes nothing (LOOP-181).
#[derive(Clone, Default)]
pub struct Hooks {
    /// After a chunk of LOOP §13's list was emitted.
    pub on_chunk: Hook<Chunk>,
    /// Before `step-finish`.
    pub on_step_finish: Hook<StepSummary>,
    /// Before `finish`; not when parked, failed or aborted.
    pub on_finish: Hook<RunOutput>,
    /// Before `error`.
    pub on_error: Hook<ErrorInfo>,
    /// Before `abort`: the steps so far, and what was streamed of the current one.
    pub on_abort: Hook<RunOutput>,
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hooks(..)")
    }
}
