//! What every hook may use (PROC-010): the run's ids, its conversation, a slot for state, signals and data chunks.

use std::{
    any::{Any, TypeId},
    collections::HashMap,
    fmt,
    sync::Arc,
};

use tokio_util::sync::CancellationToken;

use super::{Hook, ProcessorError};
use crate::{
    agent::RequestContext,
    chunk::{Chunk, ChunkBody, DataChunk},
    id::{MessageId, RunId, ThreadKey},
    message::StoredMessage,
    model::SharedModel,
    run::StepSummary,
    runtime::{AgentHandle, Bugle},
    signal::{InvalidSignal, Signal, SignalInput, StateAnswer, StateInput},
    time::Timestamp,
};

/// Who the run is.
pub(crate) struct RunInfo {
    pub(crate) run_id: RunId,
    pub(crate) agent_id: String,
    pub(crate) thread: Option<ThreadKey>,
    pub(crate) request_context: RequestContext,
    pub(crate) abort: CancellationToken,
    pub(crate) runtime: Option<Bugle>,
}

/// What one processor keeps in one run.
#[derive(Default)]
pub(crate) struct Slot {
    /// A value per type (PROC-030, PROC-032).
    values: HashMap<TypeId, Box<dyn Any + Send>>,
    /// The chunks of the step so far, for those that want them (PROC-010).
    pub(super) parts: Vec<Arc<Chunk>>,
}

/// Which messages a hook puts others in the place of (PROC-011).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Replaces {
    /// The whole conversation of the run; what is new begins another answer.
    Prompt,
    /// The whole conversation of the run.
    All,
    /// The run's answers.
    Answers,
}

/// The run as hooks work on it; the driver's side of [`Context`].
pub(crate) trait Desk: Send {
    fn messages(&self) -> &[StoredMessage];
    /// Whether the message is one of this run, not remembered.
    fn is_own(&self, id: &MessageId) -> bool;
    fn steps(&self) -> &[StepSummary];
    fn step_number(&self) -> u32;
    fn message_id(&self) -> MessageId;
    fn now(&self) -> Timestamp;
    /// Places a signal and shows its echo (SIG-209).
    fn place(&mut self, signal: &Signal, rotate: bool) -> Signal;
    fn show(&mut self, body: ChunkBody);
    fn remove(&mut self, id: &MessageId) -> bool;
    fn replace(&mut self, message: StoredMessage) -> bool;
    /// Puts messages in the place of others (PROC-011).
    fn replace_all(&mut self, of: Replaces, messages: Vec<StoredMessage>) -> Result<(), ProcessorError>;
    /// Gives system messages that were among them, once.
    fn take_system(&mut self) -> Vec<String>;
    /// Whether messages were put in the place of others since it was last asked.
    fn take_replaced(&mut self) -> bool;
    /// The run's answers.
    fn answers(&self) -> Vec<StoredMessage>;
    /// Another id for the answer of the step under way (PROC-040).
    fn set_message_id(&mut self, id: MessageId) -> Result<(), ProcessorError>;
    fn rotate(&mut self) -> MessageId;
    /// Sends state on a lane (STATE-054, STATE-061).
    fn send_state(&mut self, lane: &str, input: StateInput) -> Result<StateAnswer, ProcessorError>;
    /// The prompt does not hold the lane's snapshot any more (STATE-076).
    fn mark_stale(&mut self, lane: &str);
}

/// What a hook may use. Borrowed for one call.
pub struct Context<'a> {
    pub(super) info: &'a RunInfo,
    pub(super) hook: Hook,
    pub(super) lane: &'a str,
    pub(super) retry_count: u32,
    pub(super) slot: &'a mut Slot,
    pub(super) desk: &'a mut dyn Desk,
}

impl fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("run_id", &self.info.run_id).field("hook", &self.hook).finish_non_exhaustive()
    }
}

impl Context<'_> {
    /// The run.
    pub fn run_id(&self) -> &RunId {
        &self.info.run_id
    }

    /// The agent whose run it is.
    pub fn agent_id(&self) -> &str {
        &self.info.agent_id
    }

    /// The agent, where there is a runtime.
    pub fn agent(&self) -> Option<AgentHandle> {
        self.info.runtime.as_ref()?.agent(&self.info.agent_id).ok()
    }

    /// The runtime.
    pub fn runtime(&self) -> Option<&Bugle> {
        self.info.runtime.as_ref()
    }

    /// The thread, if the run has one.
    pub fn thread(&self) -> Option<&ThreadKey> {
        self.info.thread.as_ref()
    }

    /// The run's request context.
    pub fn request_context(&self) -> &RequestContext {
        &self.info.request_context
    }

    /// Fires when the run is aborted.
    pub fn abort(&self) -> &CancellationToken {
        &self.info.abort
    }

    /// At which point the processor works.
    pub fn hook(&self) -> Hook {
        self.hook
    }

    /// How often the step was tried again because a processor asked for it (PROC-054).
    pub fn retry_count(&self) -> u32 {
        self.retry_count
    }

    /// The whole conversation in stored form, oldest first: calls with arguments and results, signals with type, tag,
    /// attributes and metadata (PROC-086). In `process_input` without the new messages.
    pub fn messages(&self) -> &[StoredMessage] {
        self.desk.messages()
    }

    /// Whether a message belongs to this run: its input, what it placed, its answers.
    pub fn is_of_this_run(&self, message: &StoredMessage) -> bool {
        self.desk.is_own(&message.id)
    }

    /// The chunks of the step under way as they came to this processor, in order, the one that is being judged last
    /// (PROC-010). Each is copied once, when it comes, and shared from then on; kept until the next step begins. Empty
    /// unless the processor [wants them](super::Processor::wants_stream_parts).
    pub fn stream_parts(&self) -> &[Arc<Chunk>] {
        &self.slot.parts
    }

    /// The steps that are finished.
    pub fn steps(&self) -> &[StepSummary] {
        self.desk.steps()
    }

    /// The step under way, from 0. A request that is prepared again has the same number (SIG-240).
    pub fn step_number(&self) -> u32 {
        self.desk.step_number()
    }

    /// The answer under construction.
    pub fn message_id(&self) -> MessageId {
        self.desk.message_id()
    }

    /// The run's clock.
    pub fn now(&self) -> Timestamp {
        self.desk.now()
    }

    /// The processor's own value of this type, shared by all its hooks in this run and fresh in the next (PROC-030).
    pub fn state<T: Default + Send + 'static>(&mut self) -> &mut T {
        let held = self.slot.values.entry(TypeId::of::<T>()).or_insert_with(|| Box::new(T::default()));
        held.downcast_mut::<T>().expect("a value lies under its own type")
    }

    /// Adds context to the conversation and shows its echo (PROC-081, PROC-084). It interrupts nothing (SIG-209).
    ///
    /// Look at [`Self::messages`] first: what is there already need not be said again (PROC-080).
    ///
    /// # Errors
    /// [`ProcessorError::Failed`] for a signal that breaks a rule of SIG §2, and in hooks that may not send (PROC-083).
    #[allow(clippy::unused_async, reason = "awaiting it is what keeps the order, whoever shows the chunk")]
    pub async fn send_signal(&mut self, signal: SignalInput) -> Result<Signal, ProcessorError> {
        if matches!(self.hook, Hook::LlmRequest | Hook::LlmResponse | Hook::State) {
            return Err(ProcessorError::Failed(format!("{} cannot send signals", self.hook.name())));
        }
        let now = self.desk.now();
        let mut signal = signal.normalise(MessageId::fresh, now).map_err(wrong)?;
        signal.accepted_at = Some(now);
        let rotate = matches!(self.hook, Hook::InputStep | Hook::ApiError);
        Ok(self.desk.place(&signal, rotate))
    }

    /// Sends the state of a lane, by default the processor's own, at once (STATE-053, STATE-061).
    ///
    /// # Errors
    /// [`ProcessorError::Failed`] for state that breaks a rule of STATE §1, without memory, and in other hooks than
    /// `process_input_step` and `compute_state_signal`.
    #[allow(clippy::unused_async, reason = "awaiting it is what keeps the order, whoever shows the chunk")]
    pub async fn send_state_signal(&mut self, state: StateInput) -> Result<StateAnswer, ProcessorError> {
        if !matches!(self.hook, Hook::InputStep | Hook::State) {
            return Err(ProcessorError::Failed(format!("{} cannot send state", self.hook.name())));
        }
        self.desk.send_state(self.lane, state)
    }

    /// Writes a `data-…` chunk for clients (PROC-085).
    ///
    /// # Errors
    /// [`ProcessorError::Failed`] in `process_input`, which has no stream yet, and for other types than `data-…`.
    #[allow(clippy::unused_async, reason = "awaiting it is what keeps the order, whoever shows the chunk")]
    pub async fn write(&mut self, data: DataChunk) -> Result<(), ProcessorError> {
        if self.hook == Hook::Input {
            return Err(ProcessorError::Failed("processInput cannot write: the stream has not begun".to_owned()));
        }
        if !data.kind.starts_with("data-") {
            return Err(ProcessorError::Failed(format!("a chunk of type {} must begin with data-", data.kind)));
        }
        self.desk.show(ChunkBody::Data(data));
        Ok(())
    }

    /// A model by its name, `provider/model` (PROC-041), for [`InputStep::models`](super::InputStep::models).
    ///
    /// # Errors
    /// [`ProcessorError::Failed`] if the runtime has no [router](crate::runtime::BugleBuilder::model_router), or it does not know
    /// the name.
    pub fn model(&self, name: &str) -> Result<SharedModel, ProcessorError> {
        let router = self.info.runtime.as_ref().and_then(|runtime| runtime.inner.model_router.clone());
        let router = router.ok_or_else(|| {
            ProcessorError::Failed(format!("model {name} is not known: the runtime has no model router"))
        })?;
        (router.0)(name).map_err(|error| ProcessorError::Failed(format!("model {name}: {error}")))
    }

    /// Puts `messages` in the place of what the hook was given (PROC-011): of the conversation ([`Self::messages`]) in
    /// `process_input_step`, `process_output_step` and `process_tool_result`, of the run's answers in
    /// `process_output_result`. Messages are known by id. Those that are missing are taken out of this run's
    /// conversation (what is stored stays), changed ones are changed where they are, new ones come last and are stored
    /// with the run. A new message of role `system` becomes a system message of the step that is being prepared; after
    /// the request there is none, so that it has no effect. `process_input` changes [`super::Input::messages`] itself.
    ///
    /// An empty list changes nothing in an output hook (PROC-012): to remove, call [`Self::remove_message`].
    ///
    /// # Errors
    /// [`ProcessorError::Failed`] in hooks that are given no messages, and for two messages with one id; nothing is
    /// changed then.
    pub fn replace_messages(&mut self, messages: Vec<StoredMessage>) -> Result<(), ProcessorError> {
        let of = match self.hook {
            Hook::InputStep => Replaces::Prompt,
            Hook::OutputStep | Hook::ToolResult | Hook::OutputResult if messages.is_empty() => return Ok(()),
            Hook::OutputStep | Hook::ToolResult => Replaces::All,
            Hook::OutputResult => Replaces::Answers,
            hook => return Err(ProcessorError::Failed(format!("{} cannot replace messages", hook.name()))),
        };
        self.desk.replace_all(of, messages)
    }

    /// Takes a message out of this run's conversation; what is stored stays. `false` if there is none.
    pub fn remove_message(&mut self, id: &MessageId) -> bool {
        self.desk.remove(id)
    }

    /// Changes a message of this run's conversation, found by id; a message of this run is stored as changed. `false` if
    /// there is none.
    pub fn replace_message(&mut self, message: StoredMessage) -> bool {
        self.desk.replace(message)
    }

    /// Closes the answer under construction; what follows is another message. Gives its id.
    pub fn rotate_message_id(&mut self) -> MessageId {
        self.desk.rotate()
    }

    /// The outgoing prompt does not hold the snapshot of this lane: the next step is told so (STATE-076).
    pub fn mark_lane_stale(&mut self, lane: &str) {
        self.desk.mark_stale(lane);
    }
}

fn wrong(error: InvalidSignal) -> ProcessorError {
    ProcessorError::Failed(format!("a signal of the processor is wrong: {error}"))
}
