//! What the hooks of a delegation see and say, and calling them so that nothing they do harms the run.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

use futures::FutureExt;
use parking_lot::Mutex;

use super::{SubToolCall, SubToolResult, options::HookAnswer};
use crate::{
    agent::RequestContext,
    chunk::{ErrorInfo, FinishReason, Usage},
    id::{RunId, ThreadKey},
    json::{Object, Value},
    message::StoredMessage,
    model::PromptMessage,
};

/// Why a hook failed. Every error converts into it; a panic counts as one.
///
/// ```
/// use bugle::subagent::HookFailure;
/// fn check(limit: &str) -> Result<u32, HookFailure> {
///     Ok(limit.parse::<u32>()?)
/// }
/// assert_eq!(check("many").unwrap_err().name, "Error");
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct HookFailure {
    /// The class of error.
    pub name: String,
    /// What happened.
    pub message: String,
}

impl HookFailure {
    /// A failure with a message.
    pub fn new(message: impl Into<String>) -> Self {
        Self { name: "Error".to_owned(), message: message.into() }
    }

    pub(super) fn info(&self) -> ErrorInfo {
        ErrorInfo::new(self.name.clone(), self.message.clone())
    }
}

impl<E: std::error::Error> From<E> for HookFailure {
    fn from(error: E) -> Self {
        Self::new(error.to_string())
    }
}

/// The request context of one delegation: a copy of the parent run's without its identity (SUB-072). What a hook sets
/// is seen by the subagent, its tools and its dynamic values, and never by the parent.
#[derive(Debug, Clone, Default)]
pub struct DelegationContext {
    values: Arc<Mutex<RequestContext>>,
}

impl DelegationContext {
    pub(super) fn new(context: RequestContext) -> Self {
        Self { values: Arc::new(Mutex::new(context)) }
    }

    /// The value at `key`.
    pub fn get(&self, key: &str) -> Option<Value> {
        self.values.lock().get(key).cloned()
    }

    /// Sets a value.
    pub fn set(&self, key: impl Into<String>, value: impl Into<Value>) {
        self.values.lock().set(key, value);
    }

    /// Removes a value.
    pub fn remove(&self, key: &str) -> Option<Value> {
        self.values.lock().remove(key)
    }

    /// All of it, as it is now.
    pub fn snapshot(&self) -> RequestContext {
        self.values.lock().clone()
    }
}

/// What the parent's model asked for, apart from the prompt. Ids are the parent's: a model's never count (SUB-012).
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct StartParams {
    /// The parent's thread.
    pub thread_id: Option<String>,
    /// The parent's resource.
    pub resource_id: Option<String>,
    /// Extra instructions.
    pub instructions: Option<String>,
    /// The steps it asked for.
    pub max_steps: Option<u32>,
}

/// A delegation that is about to begin (SUB §7.1). On the resume of a suspended one the hook is asked again (SUB-077).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DelegationStart {
    /// The subagent's id.
    pub primitive_id: String,
    /// `agent`.
    pub primitive_type: &'static str,
    /// The prompt, references expanded.
    pub prompt: String,
    /// The parent's model turn, from 1 (SUB-073, ruling 16).
    pub iteration: u32,
    /// The context of this delegation; may be changed.
    pub request_context: DelegationContext,
    /// What else the model asked for.
    pub params: StartParams,
    /// The parent's run.
    pub run_id: RunId,
    /// The parent's thread, if it has one.
    pub thread: Option<ThreadKey>,
    /// The parent's id.
    pub parent_agent_id: String,
    /// The parent's name.
    pub parent_agent_name: String,
    /// The delegation's call.
    pub tool_call_id: String,
    /// What would be forwarded, before the filter.
    pub messages: Vec<PromptMessage>,
    /// The delegation was suspended and goes on now.
    pub is_resume: bool,
}

/// What a start hook says.
///
/// ```
/// use bugle::subagent::StartDecision;
/// let decision = StartDecision { modified_max_steps: Some(8), ..StartDecision::proceed() };
/// assert!(decision.proceed);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct StartDecision {
    /// `false` rejects the delegation (SUB-074).
    pub proceed: bool,
    /// What the model reads of a rejection.
    pub rejection_reason: Option<String>,
    /// Replaces the prompt.
    pub modified_prompt: Option<String>,
    /// Replaces the step budget; no minimum, no cap (SUB-060).
    pub modified_max_steps: Option<u32>,
    /// Replaces the model's instructions.
    pub modified_instructions: Option<String>,
    /// Metadata of the subagent's thread, if it is made now (SUB-042).
    pub thread_metadata: Option<Object>,
}

impl StartDecision {
    /// Goes on unchanged.
    pub fn proceed() -> Self {
        Self {
            proceed: true,
            rejection_reason: None,
            modified_prompt: None,
            modified_max_steps: None,
            modified_instructions: None,
            thread_metadata: None,
        }
    }

    /// Rejects the delegation.
    pub fn reject(reason: impl Into<String>) -> Self {
        Self { proceed: false, rejection_reason: Some(reason.into()), ..Self::proceed() }
    }
}

impl Default for StartDecision {
    fn default() -> Self {
        Self::proceed()
    }
}

/// What would be forwarded to a subagent (SUB-078).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct FilterContext {
    /// The messages; what the filter returns replaces them.
    pub messages: Vec<PromptMessage>,
    /// The subagent's id.
    pub primitive_id: String,
    /// `agent`.
    pub primitive_type: &'static str,
    /// The final prompt; it cannot be changed here.
    pub prompt: String,
    /// The parent's model turn, from 1.
    pub iteration: u32,
    /// The parent's run.
    pub run_id: RunId,
    /// The parent's thread, if it has one.
    pub thread: Option<ThreadKey>,
    /// The parent's id.
    pub parent_agent_id: String,
    /// The parent's name.
    pub parent_agent_name: String,
    /// The delegation's call.
    pub tool_call_id: String,
}

/// What a delegation gave (SUB §7.3); on failure what there is of it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct TaskResult {
    /// The text; empty if there is none.
    pub text: String,
    /// What the sub-run cost.
    pub usage: Option<Usage>,
    /// Why it ended.
    pub finish_reason: Option<FinishReason>,
    /// Results of its tools, in order.
    pub sub_agent_tool_results: Vec<SubToolResult>,
    /// Calls that only a client could run (SUB-095).
    pub sub_agent_pending_tool_calls: Vec<SubToolCall>,
    /// Its thread.
    pub sub_agent_thread_id: String,
    /// Its resource.
    pub sub_agent_resource_id: String,
}

const BAILED: u8 = 1;
const CANCELS: u8 = 2;

/// A delegation that has ended (SUB §7.3).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DelegationComplete {
    /// The subagent's id.
    pub primitive_id: String,
    /// `agent`.
    pub primitive_type: &'static str,
    /// The prompt it worked on.
    pub prompt: String,
    /// What it gave.
    pub result: TaskResult,
    /// `false` if the sub-run failed or was aborted.
    pub success: bool,
    /// Why it failed, with its cause.
    pub error: Option<ErrorInfo>,
    /// The sub-run's transcript: prompt and answers.
    pub messages: Vec<StoredMessage>,
    /// How long it took, in milliseconds.
    pub duration_ms: u64,
    /// The parent's model turn, from 1.
    pub iteration: u32,
    /// The parent's run.
    pub run_id: RunId,
    /// The delegation's call.
    pub tool_call_id: String,
    /// The parent's id.
    pub parent_agent_id: String,
    /// The parent's name.
    pub parent_agent_name: String,
    pub(super) bail: Arc<AtomicU8>,
}

impl DelegationComplete {
    /// Ends the parent's loop: its model is not asked again. Other delegations of the same turn run to their end
    /// (SUB-081).
    pub fn bail(&self) {
        self.bail.fetch_or(BAILED, Ordering::Release);
    }

    /// As [`Self::bail`]; the other delegations of the same turn are stopped.
    pub fn bail_and_cancel_siblings(&self) {
        self.bail.fetch_or(BAILED | CANCELS, Ordering::Release);
    }
}

/// Whether a hook bailed, and whether it cancels the siblings.
pub(super) fn bailed(flag: &AtomicU8) -> (bool, bool) {
    let flag = flag.load(Ordering::Acquire);
    (flag & BAILED != 0, flag & CANCELS != 0)
}

/// What a complete hook says.
///
/// ```
/// use bugle::subagent::CompleteDecision;
/// let decision = CompleteDecision { result_text: Some("done".into()), ..CompleteDecision::default() };
/// assert!(decision.feedback.is_none());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CompleteDecision {
    /// Kept in the parent's thread for its next turn; the current run does not see it (SUB-082).
    pub feedback: Option<String>,
    /// Replaces the text for the model and in the payload. It does not make a success of a failure, and logs and
    /// chunks keep the original error (SUB-083, SUB-099). Passing on `error.message` sends the provider's text to the
    /// parent's model.
    pub result_text: Option<String>,
}

/// Awaits a hook; a panic is a failure.
pub(super) async fn call<C, T>(hook: &(impl Fn(C) -> HookAnswer<T> + ?Sized), context: C) -> Result<T, HookFailure> {
    let begun = std::panic::catch_unwind(AssertUnwindSafe(|| hook(context)));
    let answer = match begun {
        Ok(answer) => AssertUnwindSafe(answer).catch_unwind().await,
        Err(panic) => Err(panic),
    };
    answer.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        let message = text.unwrap_or_else(|| "the hook panicked".to_owned());
        Err(HookFailure { name: "Panic".to_owned(), message })
    })
}
