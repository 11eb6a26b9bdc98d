//! What callers do with an agent: subscribe, send, queue, signal, stop, run.

use std::sync::Arc;

use tokio::sync::oneshot;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    AbortOptions, ActiveBehavior, Bugle, CancelSelector, EditInput, IdleBehavior, Message, PendingInput, PromoteTo,
    Promoted, RunInput, Sent, SubscribeOptions, Target,
};
use crate::{
    agent::Agent,
    chunk::EventId,
    error::Error,
    id::{MessageId, RunId, ThreadKey},
    message::StoredMessage,
    run::{RunOptions, RunOutput, RunSeed, RunStream, SeedKind, drive},
    signal::{InvalidSignal, Signal, SignalInput, validate_attributes},
    storage::{InboxEntry, InputMode, StorageError},
    thread::{
        DirectRequest, Input, Letter, LogReader, QueueEvents, RunShared, RunUser, SendLetter, StreamLog, Subscription,
    },
};

/// How far a sender's clock may run ahead.
const CLOCK_SKEW: std::time::Duration = std::time::Duration::from_secs(24 * 60 * 60);

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
    ///
    /// # Errors
    /// [`Error::Storage`] if the thread belongs to another resource, [`Error::Draining`].
    pub async fn subscribe(&self, thread: &ThreadKey, options: SubscribeOptions) -> Result<Subscription, Error> {
        self.check_owner(thread).await?;
        let last_event = match options.replay {
            super::Replay::After(_) => {
                let last = self.bugle.inner.storage.last_event(thread).await?;
                last.map(|(epoch, number)| EventId { epoch, number })
            }
            _ => None,
        };
        self.ask(thread, |reply| Letter::Subscribe { options, last_event, reply }).await
    }

    /// Follows how many entries wait in a thread's queue: of all, or of this agent's entries in one group
    /// (SIG-265, SIG-266).
    ///
    /// # Errors
    /// [`Error::Storage`] if the thread belongs to another resource, [`Error::Draining`].
    pub async fn queue_events(&self, thread: &ThreadKey, queue_owner_id: Option<&str>) -> Result<QueueEvents, Error> {
        self.check_owner(thread).await?;
        let of = queue_owner_id.map(|group| (self.agent.id().to_owned(), group.to_owned()));
        self.ask(thread, |reply| Letter::QueueEvents { of, reply }).await
    }

    /// Text of a person, seen now: joins the running loop, or wakes an idle agent (SIG-100, SIG-101). For text that is to
    /// have its own turn see [`Self::queue_message`], for context below messages [`Self::send_signal`] (SIG-005).
    ///
    /// # Errors
    /// What can be said at once: bad names, a target that cannot be found (SIG-060). What the journal says comes with
    /// [`Sent::accepted`].
    pub async fn send_message(&self, target: impl Into<Target>, message: impl Into<Message>) -> Result<Sent, Error> {
        self.hand_over(target.into(), message_input(message.into()), InputMode::Steer).await
    }

    /// Text of a person that gets a turn of its own: runs at once on an idle thread, else after the active run (SIG-102).
    ///
    /// # Errors
    /// As [`Self::send_message`].
    pub async fn queue_message(&self, target: impl Into<Target>, message: impl Into<Message>) -> Result<Sent, Error> {
        self.hand_over(target.into(), message_input(message.into()), InputMode::Queue).await
    }

    /// Context made by a system, seen now: reminders, notifications, the state of something (SIG-005).
    ///
    /// # Errors
    /// As [`Self::send_message`].
    pub async fn send_signal(&self, target: impl Into<Target>, signal: SignalInput) -> Result<Sent, Error> {
        self.hand_over(target.into(), signal, InputMode::Steer).await
    }

    /// Context made by a system that gets a turn of its own (SIG-103).
    ///
    /// # Errors
    /// As [`Self::send_message`].
    pub async fn queue_signal(&self, target: impl Into<Target>, signal: SignalInput) -> Result<Sent, Error> {
        self.hand_over(target.into(), signal, InputMode::Queue).await
    }

    pub(super) async fn hand_over(&self, target: Target, signal: SignalInput, mode: InputMode) -> Result<Sent, Error> {
        let inner = &self.bugle.inner;
        if inner.is_draining() {
            return Err(Error::Draining);
        }
        let (thread, by_run) = self.find_target(&target, mode)?;
        if target.if_active.behavior == ActiveBehavior::Discard || target.if_idle.behavior == IdleBehavior::Discard {
            // What is dropped meets no store that would refuse it (SIG-364).
            self.check_owner(&thread).await?;
        }
        let now = inner.clock.now();
        let mut signal = signal.normalise(MessageId::fresh, now)?;
        if signal.created_at > now.plus(CLOCK_SKEW) {
            let message = format!("createdAt lies in the future; it is {now} here");
            return Err(InvalidSignal { field: "createdAt".to_owned(), message }.into());
        }
        signal.accepted_at = Some(now);
        // Every branch that could apply is checked now; afterwards nothing can fail for its name (SIG-017).
        for branch in [&target.if_active.attributes, &target.if_idle.attributes].into_iter().flatten() {
            validate_attributes(branch)?;
        }
        let own_options = target.if_idle.options.is_some();
        let options = match target.if_idle.options {
            Some(options) => *options,
            None => RunOptions { request_context: target.request_context.unwrap_or_default(), ..RunOptions::default() },
        };
        options.check()?;
        if self.agent.models(&options.request_context).is_empty() && options.model.is_none() {
            return Err(Error::configuration(format!("agent {} has no model for this request", self.agent.id())));
        }
        let run_id = options.run_id.clone().unwrap_or_else(RunId::random);
        let user = RunUser::Input { thread: thread.clone(), id: signal.id.clone() };
        let claim = inner.hub.reserve(&run_id, user)?;
        if options.run_id.is_some() {
            self.check_not_parked(&run_id, Some(&thread)).await?;
        }
        let entry = InboxEntry {
            signal: signal.clone(),
            thread: thread.clone(),
            agent_id: self.agent.id().to_owned(),
            mode,
            run_id,
            options: serde_json::Value::Null,
            queue_owner_id: target.queue_owner_id,
            attempts: 0,
            position: 0,
        };
        let (taken_sender, taken) = oneshot::channel();
        let (accepted_sender, accepted) = oneshot::channel();
        let (persisted_sender, persisted) = oneshot::channel();
        let letter = SendLetter {
            input: Input::new(entry, options, own_options).with_claim(claim),
            active: target.if_active.behavior,
            idle: target.if_idle.behavior,
            active_attributes: target.if_active.attributes,
            idle_attributes: target.if_idle.attributes,
            by_run,
            taken: taken_sender,
            accepted: accepted_sender,
            persisted: persisted_sender,
        };
        inner.hub.send(inner, &thread, Letter::Send(Box::new(letter))).await?;
        taken.await.unwrap_or(Err(Error::Draining))?;
        Ok(Sent { signal, accepted, persisted })
    }

    /// The thread a target means, and whether it was addressed by its run (SIG-060, SIG-061).
    fn find_target(&self, target: &Target, mode: InputMode) -> Result<(ThreadKey, bool), Error> {
        if mode == InputMode::Queue {
            let thread = target.thread.clone().filter(|thread| thread.resource_id.is_some());
            let message = "resourceId and threadId are required to queue a message";
            return thread.map(|thread| (thread, false)).ok_or_else(|| Error::invalid("threadId", message));
        }
        let of_run = target.run_id.as_ref().and_then(|run_id| self.bugle.thread_of_run(run_id));
        match (&target.thread, of_run, &target.run_id) {
            (Some(given), Some(found), Some(run_id)) if given.thread_id != found.thread_id => {
                Err(Error::RunNotOnThread { run_id: run_id.clone(), thread: given.thread_id.to_string() })
            }
            (Some(given), Some(found), _)
                if given.resource_id.is_some()
                    && found.resource_id.is_some()
                    && given.resource_id != found.resource_id =>
            {
                Err(foreign(&found, given).into())
            }
            (given, Some(found), _) => {
                let complete = given.as_ref().is_some_and(|given| given.resource_id.is_some());
                if target.if_active.behavior == ActiveBehavior::Persist && !complete {
                    let message = "resourceId and threadId are required to persist an active signal";
                    return Err(Error::invalid("threadId", message));
                }
                Ok((found, true))
            }
            (Some(given), None, _) if given.resource_id.is_some() => Ok((given.clone(), false)),
            (_, None, _) => Err(Error::NoActiveRun),
        }
    }

    /// Runs the agent and gives its live stream. With a thread, the run waits its turn and is seen by subscribers.
    /// Dropping the stream does not stop the run (LOOP-206).
    ///
    /// # Errors
    /// What can be said before the run begins: bad options, another resource's thread, no memory (LOOP-003).
    pub async fn stream(
        &self,
        input: RunInput,
        thread: Option<&ThreadKey>,
        options: RunOptions,
    ) -> Result<RunStream, Error> {
        self.start(input, thread, options, true, false).await
    }

    /// Runs the agent and gives its result; dropping the future aborts the run (HTTP-026).
    ///
    /// # Errors
    /// As [`Self::stream`]. [`Error::Run`] if the run failed (LOOP-003).
    pub async fn generate(
        &self,
        input: RunInput,
        thread: Option<&ThreadKey>,
        options: RunOptions,
    ) -> Result<RunOutput, Error> {
        let stream = self.start(input, thread, options, false, false).await?;
        let stop = StopOnDrop(Some(stream.shared.clone()));
        let output = stream.output().await?;
        drop(stop);
        match output.error.clone() {
            Some(error) => Err(Error::Run(Box::new(error))),
            None => Ok(output),
        }
    }

    /// Goes on with plain messages, typically results of client tools: at once if the thread is free, else before the
    /// queue (SIG-370). Returns the id of the run.
    ///
    /// # Errors
    /// As [`Self::stream`].
    pub async fn continue_with_messages(
        &self,
        thread: &ThreadKey,
        input: RunInput,
        options: RunOptions,
    ) -> Result<RunId, Error> {
        Ok(self.start(input, Some(thread), options, true, true).await?.run_id)
    }

    async fn start(
        &self,
        input: RunInput,
        thread: Option<&ThreadKey>,
        options: RunOptions,
        streaming: bool,
        continuation: bool,
    ) -> Result<RunStream, Error> {
        let inner = &self.bugle.inner;
        if inner.is_draining() {
            return Err(Error::Draining);
        }
        options.check()?;
        if let Some(memory) = self.agent.memory() {
            memory.merged(options.memory_options.as_ref())?;
        }
        if self.agent.models(&options.request_context).is_empty() && options.model.is_none() {
            return Err(Error::configuration(format!("agent {} has no model for this request", self.agent.id())));
        }
        let run_id = options.run_id.clone().unwrap_or_else(RunId::random);
        let user = if thread.is_some() { RunUser::Direct } else { RunUser::Unthreaded };
        let claim = inner.hub.reserve(&run_id, user)?;
        if options.run_id.is_some() {
            self.check_not_parked(&run_id, None).await?;
        }
        let shared = RunShared::new(run_id.clone());
        let (output_sender, output) = oneshot::channel();
        let Some(thread) = thread else {
            let log = Arc::new(StreamLog::default());
            let chunks = LogReader::new(log.clone(), shared.clone(), 0);
            let seed = RunSeed {
                agent: self.agent.clone(),
                options: Arc::new(options),
                kind: SeedKind::Direct(Box::new(input)),
                shared: shared.clone(),
                log,
                link: None,
                output: Some(output_sender),
                inner: inner.clone(),
                streaming,
                delegated: false,
                detached: None,
            };
            inner.hub.tasks.spawn(async move {
                let _claim = claim;
                drive(seed).await;
            });
            return Ok(RunStream { run_id, chunks, output, shared });
        };
        if self.agent.memory().is_none() {
            return Err(Error::NoMemory(self.agent.id().to_owned()));
        }
        self.check_owner(thread).await?;
        let abort = options.abort.clone();
        let request = Box::new(DirectRequest {
            agent: self.agent.clone(),
            input,
            options: Arc::new(options),
            shared: shared.clone(),
            output: Some(output_sender),
            continuation,
            streaming,
            size: 0,
            claim,
            waits: self.link_abort(abort, &shared),
        });
        // A caller who leaves before the run has a stream leaves nobody to stop it; what continues is nobody's stream.
        let guard = (!continuation).then(|| StopOnDrop(Some(shared.clone())));
        let (reply, begun) = oneshot::channel();
        inner.hub.send(inner, thread, Letter::Direct { request, reply }).await?;
        let (log, cursor) = begun.await.map_err(|_| Error::Draining)??;
        if let Some(mut guard) = guard {
            guard.0 = None;
        }
        let chunks = LogReader::new(log, shared.clone(), cursor);
        Ok(RunStream { run_id, chunks, output, shared })
    }

    /// A caller's run id is not that of a run that waits in storage, unless that is one of thread `on`, which the input
    /// joins (LOOP-007).
    async fn check_not_parked(&self, run_id: &RunId, on: Option<&ThreadKey>) -> Result<(), Error> {
        match self.bugle.inner.storage.parked_run(run_id).await {
            Ok(Some(parked)) if on.is_none() || parked.thread.as_ref() != on => {
                Err(Error::RunIdTaken { run_id: run_id.clone() })
            }
            Ok(_) | Err(StorageError::Unsupported { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Stops a run that waits for its turn when the caller's signal fires (SIG-311); once it runs it sees to that itself.
    /// Ends with what it returns.
    fn link_abort(&self, abort: Option<CancellationToken>, shared: &Arc<RunShared>) -> Option<DropGuard> {
        let abort = abort?;
        let (waits, stop, shared) = (CancellationToken::new(), self.bugle.inner.hub.stop.clone(), shared.clone());
        let over = waits.clone();
        self.bugle.inner.hub.tasks.spawn(async move {
            tokio::select! {
                () = over.cancelled() => {}
                () = stop.cancelled() => {}
                () = abort.cancelled() => shared.stop(false),
            }
        });
        Some(waits.drop_guard())
    }

    /// Stops the thread's run; `true` iff one was asked to stop (SIG §14).
    ///
    /// # Errors
    /// [`Error::Storage`] if the thread belongs to another resource.
    pub async fn abort_thread(&self, thread: &ThreadKey, options: AbortOptions) -> Result<bool, Error> {
        self.check_owner(thread).await?;
        let expected = options.expected_run_id.clone();
        if let Some(found) = self.bugle.inner.hub.existing(thread)
            && found.abort(options).await.unwrap_or(false)
        {
            return Ok(true);
        }
        // A run may wait for a person that no actor knows of: after a restart, or by its age (SIG-310).
        self.abort_parked(thread, expected.as_ref()).await
    }

    /// Takes back waiting input; gives the ids that this call removed, in request order (SIG §13).
    ///
    /// # Errors
    /// [`Error::Storage`] if the thread belongs to another resource.
    pub async fn cancel_queued(&self, thread: &ThreadKey, which: CancelSelector) -> Result<Vec<MessageId>, Error> {
        self.check_owner(thread).await?;
        if self.bugle.inner.hub.existing(thread).is_none() {
            return Ok(Vec::new());
        }
        let agent_id = self.agent.id().to_owned();
        self.ask(thread, |reply| match which {
            CancelSelector::Signals(ids) => Letter::Cancel { ids, reply },
            CancelSelector::QueueOwner(group) => Letter::CancelGroup { agent_id, group, reply },
        })
        .await
    }

    /// The input that waits, in the order it will be taken (SIG-269).
    ///
    /// # Errors
    /// [`Error::Storage`] if the thread belongs to another resource.
    pub async fn pending_input(&self, thread: &ThreadKey) -> Result<Vec<PendingInput>, Error> {
        self.check_owner(thread).await?;
        if self.bugle.inner.hub.existing(thread).is_none() {
            return Ok(Vec::new());
        }
        self.ask(thread, |reply| Letter::Pending { reply }).await
    }

    /// Moves a queued message into the running loop, or to the front of the queue, exactly once (ruling 23).
    ///
    /// # Errors
    /// [`Error::AlreadyTaken`], [`Error::UnknownInput`].
    pub async fn promote_queued(&self, thread: &ThreadKey, id: &MessageId, to: PromoteTo) -> Result<Promoted, Error> {
        self.check_waiting(thread, id).await?;
        let id = id.clone();
        self.ask(thread, |reply| Letter::Promote { id, to, reply }).await?
    }

    /// Changes a queued message while it waits; its id, place and time of acceptance stay (HTTP-242).
    ///
    /// # Errors
    /// [`Error::AlreadyTaken`], [`Error::UnknownInput`], [`Error::InvalidSignal`].
    pub async fn edit_queued(&self, thread: &ThreadKey, id: &MessageId, edit: EditInput) -> Result<Signal, Error> {
        if let Some(attributes) = &edit.attributes {
            validate_attributes(attributes)?;
        }
        self.check_waiting(thread, id).await?;
        let id = id.clone();
        self.ask(thread, |reply| Letter::Edit { id, edit, reply }).await?
    }

    async fn check_waiting(&self, thread: &ThreadKey, id: &MessageId) -> Result<(), Error> {
        self.check_owner(thread).await?;
        if self.bugle.inner.hub.existing(thread).is_some() {
            return Ok(());
        }
        let stored = self.bugle.inner.storage.get_messages(std::slice::from_ref(id)).await?;
        let placed = stored.iter().any(|message| message.thread_id.as_deref() == Some(&*thread.thread_id));
        if placed {
            // Which run took it is not kept; its answer follows it in the transcript.
            return Err(Error::AlreadyTaken { id: id.clone(), run_id: RunId::from("ended") });
        }
        Err(Error::UnknownInput(id.clone()))
    }

    /// The run that occupies the thread (SIG-366).
    pub fn active_run_id(&self, thread: &ThreadKey) -> Option<RunId> {
        self.bugle.inner.hub.existing(thread)?.active_run_id()
    }

    /// Refuses what would touch messages of a run in progress (ruling 32): those it has recorded as its own, and, since
    /// not every run keeps a record, all of the thread that are not older than the run.
    ///
    /// # Errors
    /// [`Error::RunInProgress`].
    pub async fn check_editable(&self, thread: &ThreadKey, ids: &[MessageId]) -> Result<(), Error> {
        let Some(run_id) = self.active_run_id(thread) else { return Ok(()) };
        if let Some(began) = self.bugle.inner.hub.run_began(&run_id) {
            let stored = self.bugle.inner.storage.get_messages(ids).await?;
            let of_thread = |message: &StoredMessage| message.thread_id.as_deref() == Some(&*thread.thread_id);
            let recent = stored.into_iter().find(|message| of_thread(message) && message.created_at >= began);
            if let Some(message) = recent {
                return Err(Error::RunInProgress { id: message.id, run_id });
            }
        }
        let Some(record) = self.bugle.inner.storage.get_run(&run_id).await? else { return Ok(()) };
        let own = record.snapshot.get("own").and_then(|own| own.as_array()).cloned().unwrap_or_default();
        let touched = ids.iter().find(|id| own.iter().any(|known| known.as_str() == Some(id.as_str())));
        match touched {
            Some(id) => Err(Error::RunInProgress { id: id.clone(), run_id }),
            None => Ok(()),
        }
    }

    pub(super) async fn ask<T>(
        &self,
        thread: &ThreadKey,
        letter: impl FnOnce(oneshot::Sender<T>) -> Letter,
    ) -> Result<T, Error> {
        let inner = &self.bugle.inner;
        inner.hub.ask(inner, thread, letter).await
    }

    /// A stored thread belongs to one resource; one without is anybody's (SIG-363, SIG-364).
    pub(super) async fn check_owner(&self, thread: &ThreadKey) -> Result<(), Error> {
        let Some(stored) = self.bugle.inner.storage.get_thread(&thread.thread_id).await? else { return Ok(()) };
        let given = thread.resource_id.as_deref().unwrap_or_default();
        if stored.resource_id.is_empty() || stored.resource_id == given {
            return Ok(());
        }
        Err(Error::Storage(StorageError::ThreadOwnership {
            thread: stored.id,
            owner: stored.resource_id,
            given: given.to_owned(),
        }))
    }
}

/// Stops the run when its caller goes away.
pub(super) struct StopOnDrop(pub(super) Option<Arc<RunShared>>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if let Some(run) = self.0.take().filter(|run| !run.has_ended()) {
            run.stop(false);
        }
    }
}

fn message_input(message: Message) -> SignalInput {
    let Message { contents, attributes, metadata, provider_options, id } = message;
    SignalInput { id, attributes, metadata, provider_options, ..SignalInput::message(contents) }
}

/// A resource was named that the run's thread does not belong to (SIG-364).
fn foreign(thread: &ThreadKey, given: &ThreadKey) -> StorageError {
    StorageError::ThreadOwnership {
        thread: thread.thread_id.to_string(),
        owner: thread.resource_id.as_deref().unwrap_or_default().to_owned(),
        given: given.resource_id.as_deref().unwrap_or_default().to_owned(),
    }
}
