//! Delegation: agents as tools of other agents, what crosses the boundary, and what comes back (SUB).
//!
//! Each entry of an agent's `agents` is one tool of it, `agent-<key>`. Its call runs the subagent as a run of its own,
//! on a thread of its own, and gives its text to the parent's model. [`SubAgent`] is what can be delegated to: an
//! [`Agent`](crate::Agent), or anything else that implements it. [`Delegation`] says how: hooks, what is forwarded, what
//! is remembered.
//!
//! ```
//! use std::sync::Arc;
//! use bugle::{Agent, RunOptions, model::ScriptedModel, subagent::{Delegation, StartDecision}};
//! let model = Arc::new(ScriptedModel::new());
//! let explorer = Agent::builder("explorer-agent").description("Finds things in the code.").model(model.clone()).build()?;
//! let delegation = Delegation::default().on_delegation_start(|start| async move {
//!     if start.iteration > 8 {
//!         return Ok(StartDecision::reject("enough delegations for one question"));
//!     }
//!     Ok(StartDecision::proceed())
//! });
//! let options = RunOptions { delegation, ..RunOptions::default() };
//! let lead = Agent::builder("lead").model(model).agent("explorer", explorer).default_options(options).build()?;
//! assert_eq!(lead.agents().len(), 1);
//! # Ok::<(), bugle::Error>(())
//! ```
//!
//! `call` runs one delegation, `agent` is an [`Agent`](crate::Agent) as a subagent, `context` is what is forwarded,
//! `isolation` the ids and the saved transcript, `input` and `output` the tool's schema and projections, `references`
//! lets one delegation use the result of another, `state` is what the delegations of one parent run share.

mod agent;
mod call;
mod context;
mod hooks;
mod input;
mod isolation;
mod iteration;
mod options;
mod output;
mod references;
mod registered;
mod state;
mod task;

pub use hooks::{
    CompleteDecision, DelegationComplete, DelegationContext, DelegationStart, FilterContext, HookFailure,
    StartDecision, StartParams, TaskResult,
};
pub use isolation::ThreadScope;
pub use iteration::{IterationComplete, IterationDecision, IterationHook, IterationToolCall, IterationToolResult};
pub use options::{CompleteHook, Delegation, HookAnswer, HookErrorStrategy, MessageFilter, StartHook};
pub use registered::Registered;
pub use task::{SubAgent, SubRun, SubToolCall, SubToolResult, Task};

pub(crate) use call::{Delegate, Scope, check_names};
pub(crate) use iteration::call_hook as call_iteration_hook;
pub(crate) use state::{DelegationRecord, DelegationState};
pub(crate) use task::Detached;

use std::sync::Arc;

use indexmap::IndexMap;

/// A shared subagent.
pub type SharedSubAgent = Arc<dyn SubAgent>;

/// Subagents by key.
pub type SubAgents = IndexMap<String, SharedSubAgent>;

/// Delegations may nest this deep unless `maxDepth` says otherwise (SUB-165, ruling 12).
pub const DEFAULT_DEPTH: u32 = 8;

/// The key of a run's request context under which hook failures are read (SUB-085).
pub const HOOK_ERRORS_KEY: &str = "__mastra_delegationHookErrors";

/// The name of the tool for the subagent under `key` (SUB-002, SUB-003).
///
/// ```
/// assert_eq!(bugle::subagent::tool_name("code explorer"), "agent-code_explorer");
/// ```
pub fn tool_name(key: &str) -> String {
    // It starts with a letter, so nothing is to be put in front.
    let name = format!("agent-{key}");
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' }).take(63).collect()
}
