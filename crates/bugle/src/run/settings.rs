//! What the loop needs to know of a run's options, resolved once.

use serde_json::Value;

use super::{StopCondition, StructuredOutput};
use crate::{agent::OnStepLimit, id::RunId, scorer::When};

/// The steps of a run unless it says otherwise (LOOP-020).
pub(crate) const DEFAULT_STEPS: u32 = 5;

/// The loop's own settings.
#[derive(Debug, Clone)]
pub(crate) struct RunSettings {
    pub(crate) run_id: RunId,
    pub(crate) agent_id: String,
    pub(crate) max_steps: u32,
    pub(crate) stop_when: Vec<StopCondition>,
    pub(crate) on_step_limit: OnStepLimit,
    /// Input may cut short a request that has produced nothing yet.
    pub(crate) interruptible: bool,
    /// Which iterations are checked for completion, if any is.
    pub(crate) completion: Option<When>,
    pub(crate) structured_output: Option<StructuredOutput>,
    pub(crate) judges: Judges,
    /// The options as a recovered run will need them.
    pub(crate) stored_options: Value,
}

/// Where processors have a say in the loop.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Judges {
    /// Chunks pass hooks before they count.
    pub(crate) stream: bool,
    /// Steps are judged before their tools run.
    pub(crate) step: bool,
    /// The answer is judged before its last write.
    pub(crate) result: bool,
    /// How often a rejected step is tried again; never if nobody says (PROC-053).
    pub(crate) retries: Option<u32>,
}
