//! What callers do with an agent: subscribe, send, queue, signal, stop, run.

use crate::{
    agent::Agent,
    error::Error,
    id::{MessageId, RunId, ThreadKey},
    message::StoredMessage,
    run::{RunOptions, RunOutput, RunStream},
    runtime::{
        AbortOptions, Bugle, CancelSelector, EditInput, Message, PendingInput, PromoteTo, Promoted, RunInput, Sent,
        SubscribeOptions, Target,
    },
    signal::{Signal, SignalInput},
    thread::Subscription,
};

/// An agent of a runtime. Cheap to clone.
#[derive(Debug, Clone)]
pub struct AgentHandle {
    pub(crate) bugle: Bugle,
    pub(crate) agent: Agent,
}

impl AgentHandle {
    /// The agent.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// The runtime.
    pub fn bugle(&self) -> &Bugle {
        &self.bugle
    }

    /// Follows a thread: all its runs, of any agent, one after the other, until dropped (SIG-322). Returns once input
    /// sent afterwards is certain to be seen (SIG-321).
    pub async fn subscribe(&self, _thread: &ThreadKey, _options: SubscribeOptions) -> Result<Subscription, Error> {
        unimplemented!()
    }

    /// Text of a person, seen now: joins the running loop, or wakes an idle agent (SIG-100, SIG-101).
    pub async fn send_message(&self, _target: impl Into<Target>, _message: impl Into<Message>) -> Result<Sent, Error> {
        unimplemented!()
    }

    /// Text of a person that gets a turn of its own (SIG-102).
    pub async fn queue_message(&self, _target: impl Into<Target>, _message: impl Into<Message>) -> Result<Sent, Error> {
        unimplemented!()
    }

    /// Context made by a system, seen now.
    pub async fn send_signal(&self, _target: impl Into<Target>, _signal: SignalInput) -> Result<Sent, Error> {
        unimplemented!()
    }

    /// Context made by a system that gets a turn of its own (SIG-103).
    pub async fn queue_signal(&self, _target: impl Into<Target>, _signal: SignalInput) -> Result<Sent, Error> {
        unimplemented!()
    }

    /// Runs the agent and gives its live stream. With a thread, the run waits its turn and is seen by subscribers.
    pub async fn stream(
        &self,
        _input: RunInput,
        _thread: Option<&ThreadKey>,
        _options: RunOptions,
    ) -> Result<RunStream, Error> {
        unimplemented!()
    }

    /// Runs the agent and gives its result; dropping the future aborts the run (HTTP-026).
    pub async fn generate(
        &self,
        _input: RunInput,
        _thread: Option<&ThreadKey>,
        _options: RunOptions,
    ) -> Result<RunOutput, Error> {
        unimplemented!()
    }

    /// Goes on with plain messages, typically results of client tools (SIG-370). Returns the id of the run.
    pub async fn continue_with_messages(
        &self,
        _thread: &ThreadKey,
        _input: RunInput,
        _options: RunOptions,
    ) -> Result<RunId, Error> {
        unimplemented!()
    }

    /// Stops the thread's run; `true` iff one was asked to stop (SIG §14).
    pub async fn abort_thread(&self, _thread: &ThreadKey, _options: AbortOptions) -> Result<bool, Error> {
        unimplemented!()
    }

    /// Takes back waiting input; gives the ids that this call removed, in request order (SIG §13).
    pub async fn cancel_queued(&self, _thread: &ThreadKey, _which: CancelSelector) -> Result<Vec<MessageId>, Error> {
        unimplemented!()
    }

    /// The input that waits, in the order it will be taken (SIG-269).
    pub async fn pending_input(&self, _thread: &ThreadKey) -> Result<Vec<PendingInput>, Error> {
        unimplemented!()
    }

    /// Moves a queued message into the running loop, or to the front (ruling 23).
    pub async fn promote_queued(
        &self,
        _thread: &ThreadKey,
        _id: &MessageId,
        _to: PromoteTo,
    ) -> Result<Promoted, Error> {
        unimplemented!()
    }

    /// Changes a queued message while it waits (HTTP-242).
    pub async fn edit_queued(&self, _thread: &ThreadKey, _id: &MessageId, _edit: EditInput) -> Result<Signal, Error> {
        unimplemented!()
    }

    /// The run that occupies the thread (SIG-366).
    pub async fn active_run_id(&self, _thread: &ThreadKey) -> Option<RunId> {
        unimplemented!()
    }

    /// Refuses what would touch messages of a run in progress (ruling 32).
    pub async fn check_editable(&self, _thread: &ThreadKey, _messages: &[StoredMessage]) -> Result<(), Error> {
        unimplemented!()
    }
}
