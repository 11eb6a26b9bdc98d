//! Processors: what guards and shapes a run at fixed points (PROC §1).
//!
//! A [`Processor`] is an object with an id and any of the hooks below. Which hooks it has is said once, by
//! [`Processor::hooks`], so that a list without a hook costs nothing where the hook would run (PROC-032, PROC-073).
//!
//! ```text
//! process_input                                  once, and over input that arrives mid-run
//! per prepared request:
//!   process_input_step*  →  compute_state_signal*  →  prepare_step callback  →  process_llm_request*
//!   process_output_stream* per chunk
//!   process_llm_response*  →  process_output_step*  →  tools  →  process_tool_result* per result
//! process_output_result*                         once, before the last write
//! process_api_error*                             per request that failed for good
//! ```

mod args;
pub mod builtin;
pub mod catalog;
mod context;
pub mod lane;
pub mod lanes;
mod list;
mod part;
mod runner;

pub use args::*;
pub use context::Context;
pub(crate) use context::{Desk, Replaces, RunInfo, Slot};
pub use list::{List, Processors, SharedProcessor};
pub use part::{EffectiveProcessors, Part};
pub(crate) use part::{Parts, effective};
pub(crate) use runner::{Runner, Stop};

use async_trait::async_trait;
use serde_json::Value;

use crate::{
    chunk::{Chunk, TripwirePayload},
    signal::{LaneView, StateInput},
};

/// A point of a run at which processors work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u16)]
pub enum Hook {
    /// Before the loop, over the new messages; and over input that arrives mid-run (SIG-208).
    Input = 1,
    /// Before each model request.
    InputStep = 1 << 1,
    /// After all [`Hook::InputStep`]s: the processor's state lane.
    State = 1 << 2,
    /// After conversion to the provider's prompt.
    LlmRequest = 1 << 3,
    /// Per stream chunk.
    OutputStream = 1 << 4,
    /// The response is complete.
    LlmResponse = 1 << 5,
    /// The response is complete, before its tools run.
    OutputStep = 1 << 6,
    /// A tool has succeeded.
    ToolResult = 1 << 7,
    /// The end of the run.
    OutputResult = 1 << 8,
    /// A request has failed for good.
    ApiError = 1 << 9,
}

impl Hook {
    /// The name in errors and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Input => "processInput",
            Self::InputStep => "processInputStep",
            Self::State => "computeStateSignal",
            Self::LlmRequest => "processLLMRequest",
            Self::OutputStream => "processOutputStream",
            Self::LlmResponse => "processLLMResponse",
            Self::OutputStep => "processOutputStep",
            Self::ToolResult => "processToolResult",
            Self::OutputResult => "processOutputResult",
            Self::ApiError => "processAPIError",
        }
    }
}

/// The hooks a processor has.
///
/// ```
/// use bugle::processor::{Hook, HookSet};
/// const HOOKS: HookSet = HookSet::of(&[Hook::Input, Hook::OutputStep]);
/// assert!(HOOKS.has(Hook::Input) && !HOOKS.has(Hook::OutputStream));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HookSet(u16);

impl HookSet {
    /// These hooks.
    pub const fn of(hooks: &[Hook]) -> Self {
        let (mut set, mut at) = (0, 0);
        while at < hooks.len() {
            set |= hooks[at] as u16;
            at += 1;
        }
        Self(set)
    }

    /// Whether `hook` is among them.
    pub const fn has(self, hook: Hook) -> bool {
        self.0 & hook as u16 != 0
    }

    /// Whether there are none; such a processor is ignored (PROC-001).
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What both have.
    #[must_use]
    pub(crate) const fn only(self, hooks: &[Hook]) -> Self {
        Self(self.0 & Self::of(hooks).0)
    }
}

/// What becomes of what a processor could not judge because it broke (PROC-056, ruling 35).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnError {
    /// The run fails, or the input is rejected: nothing unjudged passes.
    #[default]
    Abort,
    /// It passes as if the processor were not there. The failure is logged.
    Pass,
    /// A stream chunk is dropped; other hooks: as [`OnError::Pass`].
    Drop,
}

/// A processor has stopped something (PROC-057).
#[derive(Debug, Clone, PartialEq)]
pub struct Violation {
    /// Which processor.
    pub processor_id: String,
    /// At which point.
    pub hook: Hook,
    /// Its reason.
    pub message: String,
    /// Its own data.
    pub detail: Option<Value>,
}

/// Why a processor did not let something pass.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessorError {
    /// It stopped the run (PROC-050).
    #[error("{reason}")]
    Tripwire {
        /// Said to the caller.
        reason: String,
        /// Asks for another try (PROC-053 … PROC-055).
        retry: bool,
        /// The processor's own data.
        metadata: Option<Value>,
    },
    /// It broke.
    #[error("{0}")]
    Failed(String),
}

impl ProcessorError {
    /// A tripwire with a reason.
    pub fn tripwire(reason: impl Into<String>) -> Self {
        Self::Tripwire { reason: reason.into(), retry: false, metadata: None }
    }

    /// A tripwire that asks for another try.
    pub fn retry(reason: impl Into<String>) -> Self {
        Self::Tripwire { reason: reason.into(), retry: true, metadata: None }
    }

    /// The same with data of the processor's own.
    #[must_use]
    pub fn with_metadata(self, data: Value) -> Self {
        match self {
            Self::Tripwire { reason, retry, .. } => Self::Tripwire { reason, retry, metadata: Some(data) },
            failed @ Self::Failed(_) => failed,
        }
    }

    /// The tripwire's payload, or the failure's text.
    pub(crate) fn into_payload(self, processor_id: &str) -> Result<TripwirePayload, String> {
        match self {
            Self::Tripwire { reason, retry, metadata } => {
                let reason = if reason.is_empty() { format!("stopped by processor {processor_id}") } else { reason };
                Ok(TripwirePayload { reason, retry, processor_id: processor_id.to_owned(), metadata })
            }
            Self::Failed(message) => Err(format!("processor {processor_id} failed: {message}")),
        }
    }
}

/// What a hook answers. `Err(ProcessorError::Tripwire)` stops the run; later processors of that hook do not run.
pub type Outcome<T = ()> = Result<T, ProcessorError>;

/// Looks at a run at fixed points, and may change it, add to it, or stop it.
///
/// A hook that is not in [`Self::hooks`] is never called. Hooks take `&self`; what a processor keeps for one run lies in
/// [`Context::state`]. A hook runs inside the run: until it answers, the run waits. When the run is aborted a hook has
/// 250 ms left (SIG-312); its future is dropped then.
///
/// ```
/// use async_trait::async_trait;
/// use bugle::processor::{Context, Hook, HookSet, Input, Outcome, Processor, ProcessorError};
///
/// /// Refuses messages that hold a word.
/// struct NoSecrets;
///
/// #[async_trait]
/// impl Processor for NoSecrets {
///     fn id(&self) -> &str {
///         "no-secrets"
///     }
///     fn hooks(&self) -> HookSet {
///         HookSet::of(&[Hook::Input])
///     }
///     async fn process_input(&self, _: &mut Context<'_>, input: &mut Input) -> Outcome {
///         match input.messages.iter().any(|message| message.joined_text().contains("secret")) {
///             true => Err(ProcessorError::tripwire("secrets do not belong here")),
///             false => Ok(()),
///         }
///     }
/// }
/// ```
#[async_trait]
#[allow(unused_variables, reason = "the defaults do nothing with what they get")]
pub trait Processor: Send + Sync {
    /// Its id, named in tripwires. Two processors of one list have different ids (PROC-031).
    fn id(&self) -> &str;

    /// Which of the hooks below it has. Asked once, when a run begins.
    fn hooks(&self) -> HookSet;

    /// Its name, for people.
    fn name(&self) -> &str {
        self.id()
    }

    /// What it is for.
    fn description(&self) -> Option<&str> {
        None
    }

    /// The lane of [`Self::compute_state_signal`] (STATE-052).
    fn state_id(&self) -> &str {
        self.id()
    }

    /// The part of the framework that it stands for, and how that works then (PROC-004). `None` for a processor of your own;
    /// one with the id of a part takes the part's place.
    fn part(&self) -> Option<Part> {
        None
    }

    /// Whether `data-…` chunks pass [`Self::process_output_stream`] too (PROC-070).
    fn processes_data_parts(&self) -> bool {
        false
    }

    /// Whether [`Context::stream_parts`] is kept for it (PROC-010). Costs a copy of each chunk, when it comes.
    fn wants_stream_parts(&self) -> bool {
        false
    }

    /// What happens when it breaks (PROC-056).
    fn on_error(&self) -> OnError {
        OnError::Abort
    }

    /// Whether an answer may be stored only once this one has judged it, in `process_output_step` or `process_output_result`.
    /// Then what was said until an abort or a failure is not kept: nobody has judged it. Default: no.
    fn judges_answers(&self) -> bool {
        false
    }

    /// It has stopped something, in whichever hook. A panic in here is swallowed (PROC-057).
    fn on_violation(&self, violation: &Violation) {}

    /// May change the new messages, or stop the run. Runs over input that arrives mid-run too, where a tripwire, or a
    /// message taken out, drops that input only (SIG-208).
    async fn process_input(&self, cx: &mut Context<'_>, input: &mut Input) -> Outcome {
        Ok(())
    }

    /// Before each prepared request: may change model, tools, settings and system messages of this step (PROC-040). A
    /// tripwire that asks for a retry has the step hooks run again from the call's own values, as often as
    /// `max_processor_retries` says (PROC-055 c); signals that were sent stay.
    async fn process_input_step(&self, cx: &mut Context<'_>, step: &mut InputStep) -> Outcome {
        Ok(())
    }

    /// The current state of the processor's lane; `None` = unchanged (STATE §6). A failure does not end the run
    /// (STATE-058); a tripwire does.
    async fn compute_state_signal(&self, cx: &mut Context<'_>, lane: &LaneView) -> Outcome<Option<StateInput>> {
        Ok(None)
    }

    /// May change the outgoing prompt, or answer in the model's place (PROC-014). Nothing is written back.
    async fn process_llm_request(&self, cx: &mut Context<'_>, request: &mut LlmRequest) -> Outcome {
        Ok(())
    }

    /// Passes a chunk on, changes it, drops it, or gives several (PROC-072).
    async fn process_output_stream(&self, cx: &mut Context<'_>, chunk: Chunk, out: &mut Chunks) -> Outcome {
        out.push(chunk);
        Ok(())
    }

    /// Gives what it has held back: before a text block ends, when the step ends, when the run is aborted.
    async fn flush_output_stream(&self, cx: &mut Context<'_>, at: Flush, out: &mut Chunks) -> Outcome {
        Ok(())
    }

    /// Sees the complete response. Not called for an answer given by [`Self::process_llm_request`].
    async fn process_llm_response(&self, cx: &mut Context<'_>, response: &LlmResponse) -> Outcome {
        Ok(())
    }

    /// Judges the step before its tools run. A tripwire prevents them (PROC-052); one that asks for a retry has the model
    /// try again, as often as `max_processor_retries` says (PROC-053).
    async fn process_output_step(&self, cx: &mut Context<'_>, step: &mut OutputStep) -> Outcome {
        Ok(())
    }

    /// May change the result of a tool before the model, the stream and the store see it. A tripwire that asks for a
    /// retry is the tool's error for the model, which is asked again, as often as `max_processor_retries` says
    /// (PROC-055 c).
    async fn process_tool_result(&self, cx: &mut Context<'_>, result: &mut ToolResult) -> Outcome {
        Ok(())
    }

    /// May change the answer before it is stored for good and given to the caller.
    async fn process_output_result(&self, cx: &mut Context<'_>, result: &mut OutputResult) -> Outcome {
        Ok(())
    }

    /// A request has failed, the model's own retries are used up: whether to try again (PROC §6).
    async fn process_api_error(&self, cx: &mut Context<'_>, failure: &ApiFailure) -> Outcome<Recovery> {
        Ok(Recovery::GiveUp)
    }
}
