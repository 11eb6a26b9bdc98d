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
    processor::{InputStep, Processors},
    run::{RunOutput, StepSummary},
    scorer::{LiveScorer, TaskCompletion},
    subagent::{Delegation, IterationHook},
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
    /// Which calls wait for a person, where a tool does not say so itself (LOOP-090). A parked run that is gone on with
    /// by another process asks for all of them, unless that says otherwise.
    #[serde(skip)]
    pub approve_when: Option<ApproveWhen>,
    /// Which tools make a step run its calls one after the other (LOOP-063).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_strategy: Option<ToolStrategy>,
    /// Asks that the model may answer open suspensions itself (LOOP-127). Kept with the run, but not acted on yet: a
    /// suspension is answered by a person.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_resume_suspended_tools: Option<bool>,
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
    /// How it delegates; merged field by field with the agent's (SUB-070).
    #[serde(skip_serializing_if = "Delegation::says_nothing")]
    pub delegation: Delegation,
    /// Asked at the end of every iteration of the loop (SUB §10).
    #[serde(skip)]
    pub on_iteration_complete: Option<IterationHook>,
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
    /// In the place of the agent's input processors (PROC-003).
    #[serde(skip)]
    pub input_processors: Option<Processors>,
    /// In the place of the agent's output processors.
    #[serde(skip)]
    pub output_processors: Option<Processors>,
    /// In the place of the agent's error processors.
    #[serde(skip)]
    pub error_processors: Option<Processors>,
    /// How often processors may have a step tried again; the agent's if absent (PROC-053).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_processor_retries: Option<u32>,
    /// Called before each model request, after the input-step processors (PROC-043).
    #[serde(skip)]
    pub prepare_step: Option<PrepareStep>,
    /// Score the run once it has ended, by key; replaces the agent's (SCO-080).
    #[serde(skip)]
    pub scorers: Option<IndexMap<String, LiveScorer>>,
    /// Aborts the run when it fires (SIG-311).
    #[serde(skip)]
    pub abort: Option<tokio_util::sync::CancellationToken>,
}

impl RunOptions {
    /// These options where they say something, else those of `base` (LOOP-006). Lists replace lists.
    pub(crate) fn over(&self, base: &Self) -> Self {
        fn either<T: Clone>(own: &Option<T>, base: &Option<T>) -> Option<T> {
            own.clone().or_else(|| base.clone())
        }
        let mut request_context = self.request_context.clone();
        request_context.fill_from(&base.request_context);
        let hooks = Hooks {
            on_chunk: either(&self.hooks.on_chunk, &base.hooks.on_chunk),
            on_step_finish: either(&self.hooks.on_step_finish, &base.hooks.on_step_finish),
            on_finish: either(&self.hooks.on_finish, &base.hooks.on_finish),
            on_error: either(&self.hooks.on_error, &base.hooks.on_error),
            on_abort: either(&self.hooks.on_abort, &base.hooks.on_abort),
        };
        Self {
            run_id: self.run_id.clone(),
            max_steps: self.max_steps.filter(|steps| *steps > 0).or(base.max_steps),
            tool_choice: either(&self.tool_choice, &base.tool_choice),
            active_tools: either(&self.active_tools, &base.active_tools),
            client_tools: if self.client_tools.is_empty() { &base.client_tools } else { &self.client_tools }.clone(),
            model_settings: merged(self.model_settings.as_ref(), base.model_settings.as_ref()),
            provider_options: merged(self.provider_options.as_ref(), base.provider_options.as_ref()),
            instructions: either(&self.instructions, &base.instructions),
            system: either(&self.system, &base.system),
            context: if self.context.is_empty() { &base.context } else { &self.context }.clone(),
            require_tool_approval: self.require_tool_approval.or(base.require_tool_approval),
            // One word of the caller's replaces the other: `false` turns a predicate off.
            approve_when: match self.require_tool_approval {
                Some(_) if self.approve_when.is_none() => None,
                _ => either(&self.approve_when, &base.approve_when),
            },
            tool_strategy: self.tool_strategy.or(base.tool_strategy),
            auto_resume_suspended_tools: self.auto_resume_suspended_tools.or(base.auto_resume_suspended_tools),
            tool_call_concurrency: self.tool_call_concurrency.or(base.tool_call_concurrency),
            structured_output: either(&self.structured_output, &base.structured_output),
            include_raw_chunks: self.include_raw_chunks || base.include_raw_chunks,
            request_context,
            inherit_request_context: self.inherit_request_context,
            on_step_limit: self.on_step_limit.or(base.on_step_limit),
            interrupt: self.interrupt.or(base.interrupt),
            memory_options: merged(self.memory_options.as_ref(), base.memory_options.as_ref()),
            thread_seed: either(&self.thread_seed, &base.thread_seed),
            max_tool_result_bytes: self.max_tool_result_bytes.or(base.max_tool_result_bytes),
            delegation: self.delegation.over(&base.delegation),
            on_iteration_complete: either(&self.on_iteration_complete, &base.on_iteration_complete),
            model: either(&self.model, &base.model),
            stop_when: if self.stop_when.is_empty() { &base.stop_when } else { &self.stop_when }.clone(),
            hooks,
            is_task_complete: either(&self.is_task_complete, &base.is_task_complete),
            input_processors: either(&self.input_processors, &base.input_processors),
            output_processors: either(&self.output_processors, &base.output_processors),
            error_processors: either(&self.error_processors, &base.error_processors),
            max_processor_retries: self.max_processor_retries.or(base.max_processor_retries),
            prepare_step: either(&self.prepare_step, &base.prepare_step),
            scorers: either(&self.scorers, &base.scorers),
            abort: either(&self.abort, &base.abort),
        }
    }

    /// What a run that follows one with these options takes over: all but its id, its abort signal, its callbacks and
    /// its request context (SIG-252, SIG-260).
    pub(crate) fn for_follow_up(&self) -> Self {
        Self {
            run_id: None,
            abort: None,
            hooks: Hooks::default(),
            on_iteration_complete: None,
            delegation: self.delegation.without_hooks(),
            request_context: RequestContext::default(),
            thread_seed: None,
            // Said of one input, not of those after it (SIG-245).
            interrupt: None,
            ..self.clone()
        }
    }

    /// The serialisable form; null if it says nothing.
    pub(crate) fn to_stored(&self) -> Value {
        match serde_json::to_value(self) {
            Ok(Value::Object(mut fields)) => {
                for flag in ["includeRawChunks", "inheritRequestContext"] {
                    if fields.get(flag) == Some(&Value::Bool(false)) {
                        fields.remove(flag);
                    }
                }
                if self.approve_when.is_some() {
                    // The predicate stays with this process; another asks for everything.
                    fields.insert("requireToolApproval".to_owned(), Value::Bool(true));
                }
                if fields.is_empty() { Value::Null } else { Value::Object(fields) }
            }
            _ => Value::Null,
        }
    }

    /// Reads the serialisable form; what cannot be read counts as not said.
    pub(crate) fn from_stored(value: &Value) -> Self {
        if value.is_null() {
            return Self::default();
        }
        serde_json::from_value(value.clone()).unwrap_or_else(|error| {
            tracing::warn!(%error, "the stored options of a run cannot be read; defaults are used");
            Self::default()
        })
    }

    /// Checks what no type can (LOOP-010).
    ///
    /// # Errors
    /// [`crate::Error::Invalid`], naming the field.
    pub fn check(&self) -> Result<(), crate::Error> {
        let Some(timeouts) = self.model_settings.as_ref().and_then(|settings| settings.timeout) else { return Ok(()) };
        let limits =
            [("totalMs", timeouts.total_ms), ("stepMs", timeouts.step_ms), ("firstChunkMs", timeouts.first_chunk_ms)];
        for (name, limit) in limits {
            if limit.is_some_and(|limit| !limit.is_finite() || limit <= 0.0 || limit > 1e12) {
                let field = format!("modelSettings.timeout.{name}");
                return Err(crate::Error::invalid(field, "must be a positive, finite number of milliseconds"));
            }
        }
        Ok(())
    }
}

/// Deep-merges two values through their JSON; the first wins.
fn merged<T: Clone + Serialize + serde::de::DeserializeOwned>(own: Option<&T>, base: Option<&T>) -> Option<T> {
    let (Some(own), Some(base)) = (own, base) else { return own.or(base).cloned() };
    let (Ok(mut under), Ok(over)) = (serde_json::to_value(base), serde_json::to_value(own)) else {
        return Some(own.clone());
    };
    deep_merge(&mut under, over);
    serde_json::from_value(under).ok().or_else(|| Some(own.clone()))
}

fn deep_merge(under: &mut Value, over: Value) {
    match (under, over) {
        (Value::Object(under), Value::Object(over)) => {
            for (key, value) in over {
                deep_merge(under.entry(key).or_insert(Value::Null), value);
            }
        }
        (under, over) => *under = over,
    }
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

/// What a run asks about a call (LOOP-090).
#[derive(Debug, Clone, Copy)]
pub struct ApprovalQuery<'a> {
    /// The tool, by the key it is registered under.
    pub tool_name: &'a str,
    /// The call.
    pub tool_call_id: &'a str,
    /// Its arguments.
    pub args: &'a Value,
    /// The run's request context.
    pub request_context: &'a RequestContext,
}

/// Whether a call waits for a person. One that panics says yes.
#[derive(Clone)]
pub struct ApproveWhen(pub Arc<dyn Fn(&ApprovalQuery<'_>) -> bool + Send + Sync>);

impl fmt::Debug for ApproveWhen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApproveWhen(..)")
    }
}

/// Which tools make a step run its calls one after the other, since one may wait for a person.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolStrategy {
    /// Those called in the step.
    #[default]
    Called,
    /// All that are active.
    Available,
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

impl StopCondition {
    /// A condition that panics is logged and counts as not met: it does not take the run down.
    pub(crate) fn is_met(&self, steps: &[StepSummary]) -> bool {
        let met = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (self.0)(steps)));
        met.unwrap_or_else(|_| {
            tracing::error!("a stop condition panicked");
            false
        })
    }
}

impl fmt::Debug for StopCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StopCondition(..)")
    }
}

/// Changes a request before it is prepared (PROC-043). One that panics fails the run.
#[derive(Clone)]
pub struct PrepareStep(pub Arc<dyn Fn(&mut InputStep) + Send + Sync>);

impl fmt::Debug for PrepareStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrepareStep(..)")
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
