//! What the loop needs to know of a run's options, resolved once.

use serde_json::Value;

use super::{StopCondition, StructuredOutput};
use crate::{agent::OnStepLimit, id::RunId, scorer::When};

/// The steps of a run unless it says otherwise (LOOP-020).
pub(crate) const DEFAULT_STEPS: u32 = 5;

/// The most steps a hook can prolong a run to that has no `maxSteps` (SUB-112, ruling 12).
pub(crate) const HARD_STEPS: u32 = 5 * DEFAULT_STEPS;

/// The loop's own settings.
#[derive(Debug, Clone)]
pub(crate) struct RunSettings {
    pub(crate) run_id: RunId,
    pub(crate) agent_id: String,
    pub(crate) agent_name: String,
    pub(crate) max_steps: u32,
    /// `maxSteps`, if given.
    pub(crate) given_steps: Option<u32>,
    /// What a hook cannot prolong the run beyond (SUB-112).
    pub(crate) hard_steps: u32,
    /// A hook is asked at the end of every iteration.
    pub(crate) has_iteration_hook: bool,
    pub(crate) stop_when: Vec<StopCondition>,
    pub(crate) on_step_limit: OnStepLimit,
    /// Input may cut short a request that has produced nothing yet.
    pub(crate) interruptible: bool,
    /// Which iterations are checked for completion, if any is.
    pub(crate) completion: Option<When>,
    pub(crate) structured_output: Option<StructuredOutput>,
    /// The run's messages are stored; else a parked run keeps them itself.
    pub(crate) stores: bool,
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
    /// What was said is kept only once it is judged ([`crate::processor::Processor::judges_answers`]).
    pub(crate) answers: bool,
    /// How often a rejected step is tried again; never if nobody says (PROC-053).
    pub(crate) retries: Option<u32>,
}
