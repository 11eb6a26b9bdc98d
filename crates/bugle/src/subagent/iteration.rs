//! The hook at the end of every iteration of a run's loop (SUB §10).

use std::sync::Arc;

use super::{HookFailure, hooks::call, options::HookAnswer};
use crate::{
    chunk::FinishReason,
    id::{RunId, ThreadKey},
    json::Value,
    message::StoredMessage,
};

/// A call of the iteration.
#[derive(Debug, Clone, PartialEq)]
pub struct IterationToolCall {
    /// The call.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its arguments.
    pub args: Value,
}

/// A result of the iteration.
#[derive(Debug, Clone, PartialEq)]
pub struct IterationToolResult {
    /// The call.
    pub id: String,
    /// The tool.
    pub name: String,
    /// Its result; of a failed call, the text of its error.
    pub result: Value,
}

/// An iteration that has ended: its tools have run and its answer is scored (SUB-110).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct IterationComplete {
    /// Counts the run's model turns from 1, over suspensions and restarts (ruling 16).
    pub iteration: u32,
    /// The run's `maxSteps`, if given.
    pub max_iterations: Option<u32>,
    /// Why the response ended.
    pub finish_reason: FinishReason,
    /// The text of this iteration.
    pub text: String,
    /// Its calls.
    pub tool_calls: Vec<IterationToolCall>,
    /// Their results.
    pub tool_results: Vec<IterationToolResult>,
    /// The loop ends now unless the hook says otherwise.
    pub is_final: bool,
    /// The run.
    pub run_id: RunId,
    /// Its thread, if it has one.
    pub thread: Option<ThreadKey>,
    /// The agent's id.
    pub agent_id: String,
    /// The agent's name.
    pub agent_name: String,
    /// The conversation so far.
    pub messages: Vec<StoredMessage>,
}

/// What the hook says about the loop (SUB-111). `maxSteps` wins over it; without `maxSteps` it may prolong a run to 25
/// iterations (SUB-112).
///
/// ```
/// use bugle::subagent::IterationDecision;
/// assert_eq!(IterationDecision::go_on("Name your sources.").proceed, Some(true));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IterationDecision {
    /// `continue` of the wire: go on, or end. `None`: what the loop would do.
    pub proceed: Option<bool>,
    /// Told to the model before its next turn, as text of the user's side (ruling 10).
    pub feedback: Option<String>,
}

impl IterationDecision {
    /// Another turn, with feedback.
    pub fn go_on(feedback: impl Into<String>) -> Self {
        Self { proceed: Some(true), feedback: Some(feedback.into()) }
    }

    /// The end.
    pub fn stop() -> Self {
        Self { proceed: Some(false), feedback: None }
    }
}

type Hook = Arc<dyn Fn(IterationComplete) -> HookAnswer<IterationDecision> + Send + Sync>;

/// The hook. What it fails with is logged and ignored.
///
/// ```
/// use bugle::{RunOptions, subagent::{IterationDecision, IterationHook}};
/// let hook = IterationHook::new(|iteration| async move {
///     if iteration.is_final && !iteration.text.contains("Sources:") {
///         return Ok(IterationDecision::go_on("List your sources."));
///     }
///     Ok(IterationDecision::default())
/// });
/// let options = RunOptions { on_iteration_complete: Some(hook), ..RunOptions::default() };
/// assert!(options.on_iteration_complete.is_some());
/// ```
#[derive(Clone)]
pub struct IterationHook(Hook);

impl IterationHook {
    /// A hook from an async function.
    pub fn new<F, R>(hook: F) -> Self
    where
        F: Fn(IterationComplete) -> R + Send + Sync + 'static,
        R: Future<Output = Result<IterationDecision, HookFailure>> + Send + 'static,
    {
        Self(Arc::new(move |iteration| Box::pin(hook(iteration))))
    }
}

impl std::fmt::Debug for IterationHook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IterationHook(..)")
    }
}

/// What the hook says; nothing if it fails.
pub(crate) async fn call_hook(hook: &IterationHook, iteration: IterationComplete) -> IterationDecision {
    let number = iteration.iteration;
    match call(&*hook.0, iteration).await {
        Ok(decision) => decision,
        Err(failure) => {
            tracing::error!(iteration = number, error = failure.message, "onIterationComplete failed; it is ignored");
            IterationDecision::default()
        }
    }
}
