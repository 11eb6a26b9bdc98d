//! What callers say about input, and what they get back.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::{
    agent::RequestContext,
    error::Error,
    id::{MessageId, RunId, ThreadKey},
    json::Object,
    run::RunOptions,
    signal::{Attributes, Contents, Signal},
    time::Timestamp,
};

/// A message of a person (SIG-004): text, parts, or an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// What it says.
    pub contents: Contents,
    /// Shown to the model as XML attributes.
    pub attributes: Option<Attributes>,
    /// Never shown to the model.
    pub metadata: Option<Object>,
    /// Options per provider.
    pub provider_options: Option<Object>,
    /// Makes sending it twice one message (SIG-503).
    pub id: Option<MessageId>,
}

impl<T: Into<Contents>> From<T> for Message {
    fn from(contents: T) -> Self {
        Self { contents: contents.into(), attributes: None, metadata: None, provider_options: None, id: None }
    }
}

/// Where input goes, and what it does there (SIG §6).
#[derive(Debug, Clone, Default)]
pub struct Target {
    /// The thread.
    pub thread: Option<ThreadKey>,
    /// A live run; alone, it finds its thread.
    pub run_id: Option<RunId>,
    /// While a run is active.
    pub if_active: IfActive,
    /// While none is.
    pub if_idle: IfIdle,
    /// The sender's request context, for a run that has no options of its own: a follow-up run has the other options of
    /// the run it waited behind, but this context (SIG-252, SIG-513).
    pub request_context: Option<RequestContext>,
    /// Groups queued entries (SIG-259).
    pub queue_owner_id: Option<String>,
}

impl From<&ThreadKey> for Target {
    fn from(thread: &ThreadKey) -> Self {
        Self { thread: Some(thread.clone()), ..Self::default() }
    }
}

/// What input does while a run is active.
#[derive(Debug, Clone, Default)]
pub struct IfActive {
    /// Default: deliver.
    pub behavior: ActiveBehavior,
    /// Merged over the input's own.
    pub attributes: Option<Attributes>,
}

/// What input does while no run is active.
#[derive(Debug, Clone, Default)]
pub struct IfIdle {
    /// Default: wake.
    pub behavior: IdleBehavior,
    /// Merged over the input's own.
    pub attributes: Option<Attributes>,
    /// Options of the run it starts (SIG-063).
    pub options: Option<Box<RunOptions>>,
}

/// SIG-062, ruling 24.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ActiveBehavior {
    /// Joins the running loop.
    #[default]
    Deliver,
    /// Is stored; this run does not see it.
    Persist,
    /// Is dropped.
    Discard,
    /// Bugle's own: aborts the run, keeps what it stored, and runs this input next.
    Interrupt,
    /// Bugle's own: as `Interrupt`, and removes what the aborted run stored.
    Rollback,
}

/// SIG-062.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IdleBehavior {
    /// Starts a run.
    #[default]
    Wake,
    /// Is stored.
    Persist,
    /// Is dropped.
    Discard,
}

/// The handle of input that was handed over. The input is routed whether this is kept, polled or dropped (SIG-006).
#[derive(Debug)]
pub struct Sent {
    /// The normalised signal; its id can be cancelled at once.
    pub signal: Signal,
    pub(crate) accepted: oneshot::Receiver<Result<Outcome, Error>>,
    pub(crate) persisted: oneshot::Receiver<Result<(), Error>>,
}

impl Sent {
    /// Waits until it is decided, and durable, what becomes of the input (SIG §8). Never waits for a run to finish.
    ///
    /// # Errors
    /// Whatever made routing or starting impossible. Nothing is retained then, so a repeat with the same id is safe.
    pub async fn accepted(&mut self) -> Result<Outcome, Error> {
        (&mut self.accepted).await.unwrap_or(Err(Error::Internal("an input was dropped before it was routed")))
    }

    /// Waits until the row of a persisted input is written; resolves at once for other outcomes.
    ///
    /// # Errors
    /// The store's error, or [`Error::NoMemory`] (SIG-133).
    pub async fn persisted(&mut self) -> Result<(), Error> {
        (&mut self.persisted).await.unwrap_or(Ok(()))
    }
}

/// What became of input.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// What was done.
    pub action: Action,
    /// The run that took or will take it; for `persist` and `discard` the signal's id stands for it on the wire.
    pub run_id: Option<RunId>,
    /// `approval` or `resume`, if the run waits for a person (SIG-381).
    pub waiting_for: Option<&'static str>,
    /// The signal as accepted: with the attributes of the branch that was taken (SIG-022).
    pub signal: Signal,
}

/// Ruling 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// A run was started for it.
    Wake,
    /// A run has taken it or will take it.
    Deliver,
    /// It is stored only.
    Persist,
    /// It was dropped by policy.
    Discard,
    /// The occupying run cannot take it and no run may start.
    Blocked,
}

/// How a thread's run is stopped.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AbortOptions {
    /// Removes what waits, first (SIG-303).
    pub clear_pending_signals: bool,
    /// Does nothing unless this is the active run (SIG-305).
    pub expected_run_id: Option<RunId>,
}

/// Input that waits (SIG-269, HTTP-240).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PendingInput {
    /// The signal's id.
    pub signal_id: MessageId,
    /// Which list holds it.
    pub mode: PendingMode,
    /// Who will answer.
    pub agent_id: String,
    /// When it was accepted.
    pub accepted_at: Option<Timestamp>,
    /// The run reserved for it, or that it will join.
    pub run_id: Option<RunId>,
    /// The signal.
    pub signal: Signal,
}

/// The lists of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PendingMode {
    /// Joins the first request of the run that is being prepared.
    PreRun,
    /// Joins the running loop at its next boundary.
    Pending,
    /// Gets a run of its own.
    Queue,
    /// Messages that continue a conversation.
    Continuation,
}

/// Where a queued message is moved to (ruling 23).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PromoteTo {
    /// Into the running loop; on an idle or suspended thread, to the front.
    #[default]
    Run,
    /// To the front of the queue.
    Front,
}

/// Where it was moved.
#[derive(Debug, Clone, PartialEq)]
pub struct Promoted {
    /// The run that takes it.
    pub run_id: RunId,
    /// Where it stands now.
    pub to: PromoteTo,
}

/// A change of a queued message.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EditInput {
    /// New contents.
    pub contents: Option<Contents>,
    /// New attributes.
    pub attributes: Option<Attributes>,
}

/// Which input to cancel: exactly one selector (SIG-286).
#[derive(Debug, Clone, PartialEq)]
pub enum CancelSelector {
    /// These signals.
    Signals(Vec<MessageId>),
    /// Queued entries of the calling agent in this group (SIG-285).
    QueueOwner(String),
}

/// Which chunks a subscription hides and replays (SIG §15).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SubscribeOptions {
    /// Echoes of these signal types are left out.
    pub hide_signals: HideSignals,
    /// What comes first.
    pub replay: Replay,
}

/// SIG-345.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum HideSignals {
    /// All are shown.
    #[default]
    None,
    /// All are hidden.
    All,
    /// Those types are hidden; legacy names count as their new ones.
    Types(Vec<String>),
}

/// What a new subscriber gets before what is live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Replay {
    /// The active run from its first chunk (SIG-330).
    #[default]
    Current,
    /// Nothing (SIG-332).
    None,
    /// Everything after this event, on a reconnect (ruling 21).
    After(ReplayFrom),
}

/// What a reconnecting subscriber has seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplayFrom {
    /// Everything up to this event.
    Event(crate::chunk::EventId),
    /// An id that is none: a gap (HTTP-244).
    Unknown,
}

/// What a subscription gives.
#[derive(Debug, Clone)]
pub enum Delivery {
    /// A chunk.
    Chunk(std::sync::Arc<crate::chunk::StreamChunk>),
    /// Chunks are missing: reload the messages (HTTP-244).
    Gap {
        /// The last event seen, if it was one of this thread.
        after: Option<crate::chunk::EventId>,
        /// The first event still held.
        next: Option<crate::chunk::EventId>,
    },
}

/// The input of `stream` and `generate` (LOOP-004).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RunInput {
    /// New messages, in stored form; ids and times are filled in.
    pub messages: Vec<crate::message::StoredMessage>,
    /// Client tool results that complete stored calls: `{toolCallId, toolName, result}` (LOOP-076).
    pub tool_results: Vec<ClientToolResult>,
}

/// A result that a client computed.
#[derive(Debug, Clone, PartialEq)]
pub struct ClientToolResult {
    /// The call.
    pub tool_call_id: String,
    /// The tool.
    pub tool_name: String,
    /// The arguments, if the client sent them along.
    pub input: Option<Value>,
    /// What the tool returned.
    pub result: Value,
}
