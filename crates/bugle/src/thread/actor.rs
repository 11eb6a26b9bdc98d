//! The actor of one thread: takes letters one at a time, lets the machine decide, and performs what it says.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};

use super::{
    hub::{RunClaim, ThreadRef, View},
    input::{Input, Routed, Send as SendInput, Ticket, json_size},
    journal::{Done, EndedRun, Journal, Op, same_error},
    log::{DirectEnd, RunShared, StreamLog},
    machine::{
        ClaimFailed, INBOX_BYTES, INBOX_ENTRIES, Journal as JournalAnswer, RecoveredRun, Refusal, RunSource, StartRun,
        ThreadEffect, ThreadEvent, ThreadMachine,
    },
    queue_events::QueueEvents,
    subscription::Subscription,
};
use crate::{
    agent::Agent,
    chunk::{
        Chunk, ChunkBody, ErrorInfo, EventId, FinishReason, Payload, StepFinishPayload, StepOutput, StepResult, Usage,
    },
    error::Error,
    id::{MessageId, RunId, ThreadKey},
    message::StoredMessage,
    run::{RunOptions, RunOutput, RunSeed, SeedKind},
    runtime::{
        AbortOptions, ActiveBehavior, EditInput, IdleBehavior, Inner, Outcome, PendingInput, PromoteTo, Promoted,
        RunInput, SubscribeOptions,
    },
    signal::{Attributes, Signal},
    storage::{EntryOutcome, InboxEnd, InboxEntry, Lease, NewThread, RunRecord, RunStatus, StorageError},
    time::{SharedClock, Timestamp},
};

/// An idle thread keeps its log this long, for those who reconnect; without subscribers, its actor too.
const LINGER: Duration = Duration::from_secs(30);

/// What an actor is told or asked.
#[derive(Debug)]
pub(crate) enum Letter {
    Send(Box<SendLetter>),
    /// Answered with the log and where the run's chunks begin.
    Direct {
        request: Box<DirectRequest>,
        reply: oneshot::Sender<Result<(Arc<StreamLog>, u64), Error>>,
    },
    Drain {
        run_id: RunId,
        /// Its caller has stopped it.
        stopping: bool,
        reply: oneshot::Sender<Vec<Input>>,
    },
    RunEnded {
        run_id: RunId,
        returned: Vec<Input>,
        failed_to_start: bool,
        /// The thread was not ours any more: what the run left is the new owner's.
        fenced: bool,
        left: Leftover,
    },
    Cancel {
        ids: Vec<MessageId>,
        reply: oneshot::Sender<Vec<MessageId>>,
    },
    CancelGroup {
        agent_id: String,
        group: String,
        reply: oneshot::Sender<Vec<MessageId>>,
    },
    Abort {
        options: AbortOptions,
        reply: oneshot::Sender<bool>,
    },
    Promote {
        id: MessageId,
        to: PromoteTo,
        reply: oneshot::Sender<Result<Promoted, Error>>,
    },
    Edit {
        id: MessageId,
        edit: EditInput,
        reply: oneshot::Sender<Result<Signal, Error>>,
    },
    Pending {
        reply: oneshot::Sender<Vec<PendingInput>>,
    },
    Subscribe {
        options: SubscribeOptions,
        last_event: Option<EventId>,
        reply: oneshot::Sender<Subscription>,
    },
    /// Follow the length of the queue, or of one agent's group in it.
    QueueEvents {
        of: Option<(String, String)>,
        reply: oneshot::Sender<QueueEvents>,
    },
    Recover {
        reply: oneshot::Sender<()>,
    },
}

/// What a run leaves in the store at its end, for its thread to settle.
#[derive(Debug)]
pub(crate) enum Leftover {
    /// Nothing, or what the next owner goes on with.
    Nothing,
    /// Its record: to be ended, with this message for readers of the conversation.
    Record(Option<Box<StoredMessage>>),
    /// Nobody knows: the run panicked. The journal says what it had not placed.
    Unknown,
    /// Its record could not be read while the store was away: to be tried again.
    Deferred,
}

/// Input on its way in.
#[derive(Debug)]
pub(crate) struct SendLetter {
    pub(crate) input: Input,
    pub(crate) active: ActiveBehavior,
    pub(crate) idle: IdleBehavior,
    pub(crate) active_attributes: Option<Attributes>,
    pub(crate) idle_attributes: Option<Attributes>,
    pub(crate) by_run: bool,
    /// Answered as soon as the thread has it; says what can be said at once (SIG-003).
    pub(crate) taken: oneshot::Sender<Result<(), Error>>,
    pub(crate) accepted: oneshot::Sender<Result<Outcome, Error>>,
    pub(crate) persisted: oneshot::Sender<Result<(), Error>>,
}

/// A plain run that asks for its turn.
#[derive(Debug)]
pub(crate) struct DirectRequest {
    pub(crate) agent: Agent,
    pub(crate) input: RunInput,
    pub(crate) options: Arc<RunOptions>,
    pub(crate) shared: Arc<RunShared>,
    pub(crate) output: Option<oneshot::Sender<RunOutput>>,
    /// Served before the queue (SIG-370).
    pub(crate) continuation: bool,
    pub(crate) streaming: bool,
    /// What it takes of the limit of what waits, in bytes; counted by its thread.
    pub(crate) size: usize,
    /// Keeps its id from others until it runs.
    pub(crate) claim: RunClaim,
    /// Tells the watcher of the caller's signal that it waits no more.
    #[expect(dead_code, reason = "held, not read")]
    pub(crate) waits: Option<tokio_util::sync::DropGuard>,
}

/// What ties a run to its thread.
#[derive(Debug, Clone)]
pub(crate) struct ThreadLink {
    pub(crate) key: ThreadKey,
    pub(crate) epoch: u64,
    pub(crate) thread: ThreadRef,
    /// Input waits that may interrupt.
    pub(crate) nudge: Arc<Notify>,
    /// The newest time given to a message of this thread, in ms (SIG-042).
    pub(crate) placed: Arc<AtomicI64>,
}

impl ThreadLink {
    /// Messages up to `at` exist.
    pub(crate) fn placed_up_to(&self, at: Timestamp) {
        self.placed.fetch_max(at.as_millis(), Ordering::AcqRel);
    }

    /// Now, but later than every message of the thread (SIG-042).
    pub(crate) fn now(&self, clock: &SharedClock) -> Timestamp {
        let newest = self.placed.load(Ordering::Acquire);
        clock.now().max(Timestamp::from_millis(newest.saturating_add(1)))
    }

    pub(crate) async fn tell(&self, letter: Letter) {
        // The actor outlives its run unless the runtime is stopping.
        let _ = self.thread.mailbox.send(Box::new(letter)).await;
    }
}

fn next_time(placed: &AtomicI64, now: Timestamp) -> Timestamp {
    let now = now.as_millis();
    let last = placed.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| Some(now.max(last + 1)));
    Timestamp::from_millis(now.max(last.unwrap_or_default() + 1))
}

/// An answer that somebody waits for.
#[derive(Debug)]
enum Waiting {
    Sent {
        taken: Option<oneshot::Sender<Result<(), Error>>>,
        accepted: oneshot::Sender<Result<Outcome, Error>>,
        persisted: Option<oneshot::Sender<Result<(), Error>>>,
    },
    Persisted(oneshot::Sender<Result<(), Error>>),
    Drain(oneshot::Sender<Vec<Input>>),
    Ids(oneshot::Sender<Vec<MessageId>>),
    Aborted(oneshot::Sender<bool>),
    Promoted(oneshot::Sender<Result<Promoted, Error>>),
    Edited(oneshot::Sender<Result<Signal, Error>>),
}

/// An answer, and who gets it.
#[derive(Debug)]
pub(super) enum Reply {
    Ids(oneshot::Sender<Vec<MessageId>>, Vec<MessageId>),
    Aborted(oneshot::Sender<bool>, bool),
    Promoted(oneshot::Sender<Result<Promoted, Error>>, Promoted),
    Edited(oneshot::Sender<Result<Signal, Error>>, Box<Signal>),
}

impl Reply {
    /// Who asked may have gone.
    fn send(self) {
        match self {
            Self::Ids(reply, ids) => drop(reply.send(ids)),
            Self::Aborted(reply, stopped) => drop(reply.send(stopped)),
            Self::Promoted(reply, promoted) => drop(reply.send(Ok(promoted))),
            Self::Edited(reply, signal) => drop(reply.send(Ok(*signal))),
        }
    }
}

/// The same refusal for another sender of the same input.
fn same_refusal(error: &Error) -> Error {
    match error {
        Error::Storage(error) => same_error(error),
        Error::OwnedElsewhere { thread, owner } => {
            Error::OwnedElsewhere { thread: thread.clone(), owner: owner.clone() }
        }
        _ => Error::Internal("an input was refused"),
    }
}

#[derive(Debug)]
struct LiveRun {
    shared: Arc<RunShared>,
    nudge: Arc<Notify>,
    options: Arc<RunOptions>,
}

struct Actor {
    inner: Arc<Inner>,
    key: ThreadKey,
    thread: ThreadRef,
    view: watch::Sender<View>,
    machine: ThreadMachine,
    journal: Journal,
    replies: HashMap<Ticket, Waiting>,
    next_ticket: Ticket,
    direct: HashMap<RunId, DirectRequest>,
    /// Why the thread could not be owned when it was last tried.
    unowned: String,
    /// A direct run was stopped while it waited.
    withdrawn: Arc<Notify>,
    run: Option<LiveRun>,
    /// Errors of the journal, by the input they refused.
    refused: HashMap<MessageId, Error>,
    /// The abort at work clears what waits.
    clearing: bool,
    /// What the last removal took out of the journal.
    removed: Vec<MessageId>,
    /// The entry that the write just done should have rewritten.
    unwritten: Option<(MessageId, Error)>,
    /// Persist writes in flight, by the ticket of their `persisted`.
    persists: HashMap<Ticket, PersistWrite>,
    epoch: u64,
    /// The lease was lost: once it is ours again, the journal is read anew.
    resync: bool,
    placed: Arc<AtomicI64>,
    retry_at: Option<Instant>,
    /// Runs whose records are still to be ended; until then the thread is not idle, and nobody revives them.
    unended: Vec<EndedRun>,
    /// When to try that again.
    end_at: Option<Instant>,
    recovering: Vec<oneshot::Sender<()>>,
}

struct PersistWrite {
    size: usize,
    echo: Option<(String, Signal)>,
    given_up: bool,
}

/// Runs the actor until the thread is idle and nobody watches, or the runtime ends.
pub(super) async fn run(
    inner: Arc<Inner>,
    key: ThreadKey,
    thread: ThreadRef,
    mut letters: mpsc::Receiver<Box<Letter>>,
    view: watch::Sender<View>,
) {
    let stop = inner.hub.stop.clone();
    let journal = Journal::new(inner.storage.clone(), key.clone(), inner.lease_ttl);
    let renew_every = inner.lease_ttl / 3;
    let mut actor = Actor {
        journal,
        key,
        thread,
        view,
        machine: ThreadMachine::default(),
        replies: HashMap::new(),
        next_ticket: 0,
        direct: HashMap::new(),
        unowned: String::new(),
        withdrawn: Arc::new(Notify::new()),
        run: None,
        refused: HashMap::new(),
        clearing: false,
        removed: Vec::new(),
        unwritten: None,
        persists: HashMap::new(),
        epoch: 0,
        resync: false,
        placed: Arc::default(),
        retry_at: None,
        unended: Vec::new(),
        end_at: None,
        recovering: Vec::new(),
        inner,
    };
    let mut renew_at = Instant::now() + renew_every;
    let mut idle_since: Option<Instant> = None;
    // A watched thread keeps its actor, and forgets the runs that have ended long ago.
    let mut forgotten = false;
    let retired = loop {
        if actor.epoch > 0 && actor.is_idle() {
            // An idle thread is nobody's (SIG-405, SIG-452).
            actor.give_up_lease();
        }
        let resting = actor.is_idle();
        if resting {
            renew_at = Instant::now() + renew_every;
        }
        let watched = actor.thread.subscribers.load(Ordering::Acquire) > 0;
        if resting {
            idle_since.get_or_insert_with(Instant::now);
        } else {
            idle_since = None;
            forgotten = false;
        }
        let lingers = idle_since.is_some() && !(watched && forgotten);
        let event = tokio::select! {
            biased;
            () = stop.cancelled() => break false,
            letter = letters.recv() => match letter {
                Some(letter) => Happened::Letter(letter),
                None => break false,
            },
            done = actor.journal.next() => Happened::Journal(done),
            () = actor.withdrawn.notified() => Happened::Withdrawn,
            () = sleep_until(actor.retry_at.unwrap_or_else(far)), if actor.retry_at.is_some() => Happened::Retry,
            () = sleep_until(actor.end_at.unwrap_or_else(far)), if actor.end_at.is_some() => Happened::EndDue,
            () = sleep_until(renew_at), if !resting && actor.epoch > 0 => Happened::Renew,
            () = actor.thread.left.notified(), if resting => Happened::Left,
            () = sleep_until(idle_since.unwrap_or_else(far) + LINGER), if lingers => Happened::Idle,
        };
        match event {
            Happened::Letter(letter) => actor.letter(*letter),
            Happened::Journal(done) => actor.journal_done(done),
            Happened::Withdrawn => actor.withdraw(),
            Happened::Retry => {
                actor.retry_at = None;
                actor.feed(ThreadEvent::RetryDue);
            }
            Happened::EndDue => actor.end_records(),
            Happened::Renew => {
                renew_at = Instant::now() + renew_every;
                actor.journal.push(Op::Claim);
            }
            // Those who reconnect get their time from now on.
            Happened::Left => idle_since = None,
            Happened::Idle if watched => {
                actor.thread.log.forget_ended();
                forgotten = true;
            }
            Happened::Idle => {
                if actor.inner.hub.retire(&actor.key, &actor.thread, &mut letters) {
                    break true;
                }
            }
        }
    };
    actor.thread.log.close();
    if !retired {
        actor.inner.hub.forget(&actor.key, &actor.thread);
        actor.journal.stop();
        actor.end_records();
        if actor.epoch > 0 {
            // The next owner need not wait; what a run still writes here is refused once there is one (ruling 4).
            actor.journal.push(Op::Release);
        }
        while !actor.journal.is_idle() {
            let done = actor.journal.next().await;
            // Nothing starts any more, but who waits for an answer gets it.
            actor.journal_done(done);
        }
    }
}

enum Happened {
    Letter(Box<Letter>),
    Journal(Done),
    Withdrawn,
    Retry,
    EndDue,
    Renew,
    Left,
    Idle,
}

/// The wait before another try to end a record.
fn end_wait(tries: u32) -> Duration {
    Duration::from_secs(1 << tries.saturating_sub(1).min(5))
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(86_400)
}

impl Actor {
    fn is_idle(&self) -> bool {
        self.machine.is_idle() && self.journal.is_idle() && self.unended.is_empty()
    }

    /// Ends the record of a run that has ended without, so that no look at the store revives it.
    fn end_record(&mut self, run_id: &RunId, message: Option<Box<StoredMessage>>) {
        let last_event = self.thread.log.last_number();
        self.unended.push(EndedRun { run_id: run_id.clone(), last_event, message, tries: 0 });
        self.end_records();
    }

    fn end_records(&mut self) {
        self.end_at = None;
        if self.epoch == 0 {
            // The records are the next owner's.
            self.unended.clear();
        }
        for ended in &self.unended {
            self.journal.push(Op::EndRun { epoch: self.epoch, ended: Box::new(ended.clone()) });
        }
    }

    fn record_ended(&mut self, mut ended: EndedRun, result: Result<(), StorageError>) {
        let Some(at) = self.unended.iter().position(|waiting| waiting.run_id == ended.run_id) else { return };
        match result {
            Ok(()) => drop(self.unended.swap_remove(at)),
            Err(error @ StorageError::StaleEpoch { .. }) => {
                tracing::warn!(thread = %self.key, run = %ended.run_id, %error, "the record of a run that has ended is another process's");
                self.unended.swap_remove(at);
            }
            Err(error) => {
                ended.tries += 1;
                if !error.is_retryable() {
                    // Perhaps there is no conversation any more that the message could be written into.
                    self.unended[at].message = None;
                }
                let wait = end_wait(ended.tries);
                tracing::error!(thread = %self.key, run = %ended.run_id, %error, ?wait, "a run has ended, but not its record; trying again");
                self.unended[at].tries = ended.tries;
                let due = Instant::now() + wait;
                self.end_at = Some(self.end_at.map_or(due, |at| at.min(due)));
            }
        }
    }

    fn ticket(&mut self, waiting: Waiting) -> Ticket {
        self.next_ticket += 1;
        self.replies.insert(self.next_ticket, waiting);
        self.next_ticket
    }

    fn letter(&mut self, letter: Letter) {
        match letter {
            Letter::Send(send) => self.send(*send),
            Letter::Direct { request, reply } => {
                let mut request = request;
                if !self.machine.is_idle() {
                    let input = &request.input;
                    request.size = json_size(&input.messages) + json_size(&request.options.to_stored());
                    let results = input.tool_results.iter().map(|result| json_size(&result.result));
                    request.size += results.sum::<usize>();
                }
                let waiting: usize = self.direct.values().map(|waiting| waiting.size).sum();
                let too_much = !self.direct.is_empty() && waiting + request.size > INBOX_BYTES;
                if self.direct.len() >= INBOX_ENTRIES || too_much {
                    let _ = reply.send(Err(Error::InputLimit(self.key.clone())));
                    return;
                }
                let _ = reply.send(Ok((self.thread.log.clone(), self.thread.log.live())));
                let event = ThreadEvent::Direct {
                    run_id: request.shared.run_id.clone(),
                    agent_id: request.agent.id().to_owned(),
                    continuation: request.continuation,
                };
                request.shared.wait_at(self.withdrawn.clone());
                self.direct.insert(request.shared.run_id.clone(), *request);
                self.feed(event);
            }
            Letter::Drain { run_id, stopping, reply } => {
                let ticket = self.ticket(Waiting::Drain(reply));
                self.feed(ThreadEvent::Drain { run_id, stopping, ticket });
            }
            Letter::RunEnded { run_id, mut returned, failed_to_start, fenced, left } => {
                self.run = None;
                self.inner.hub.run_ended(&run_id);
                match left {
                    Leftover::Nothing => {}
                    Leftover::Record(message) => self.end_record(&run_id, message),
                    Leftover::Unknown => {
                        self.end_record(&run_id, None);
                        self.feed(ThreadEvent::Crashed { run_id: run_id.clone() });
                        self.journal.push(Op::Recover);
                    }
                    Leftover::Deferred => self.feed(ThreadEvent::Deferred { run_id: run_id.clone() }),
                }
                if fenced {
                    returned.clear();
                    self.epoch = 0;
                    self.resync = true;
                    self.feed(ThreadEvent::LeaseLost { run_id: Some(run_id.clone()) });
                    // Nobody may own the thread now: then what the run left is ours after all.
                    self.journal.push(Op::Claim);
                }
                self.feed(ThreadEvent::RunEnded { run_id, returned, failed_to_start });
            }
            Letter::Cancel { ids, reply } => {
                let ticket = self.ticket(Waiting::Ids(reply));
                self.feed(ThreadEvent::Cancel { ticket, ids });
            }
            Letter::CancelGroup { agent_id, group, reply } => {
                let ticket = self.ticket(Waiting::Ids(reply));
                self.feed(ThreadEvent::CancelGroup { ticket, agent_id, group });
            }
            Letter::Abort { options, reply } => {
                let ticket = self.ticket(Waiting::Aborted(reply));
                self.feed(ThreadEvent::Abort { ticket, options });
            }
            Letter::Promote { id, to, reply } => {
                let ticket = self.ticket(Waiting::Promoted(reply));
                self.feed(ThreadEvent::Promote { ticket, id, to });
            }
            Letter::Edit { id, edit, reply } => {
                let ticket = self.ticket(Waiting::Edited(reply));
                let EditInput { contents, attributes } = edit;
                self.feed(ThreadEvent::Edit { ticket, id, contents, attributes });
            }
            Letter::Pending { reply } => {
                let waiting = self.machine.waiting().into_iter().map(|(mode, run_id, input)| PendingInput {
                    signal_id: input.id().clone(),
                    mode,
                    agent_id: input.entry.agent_id.clone(),
                    accepted_at: input.entry.signal.accepted_at,
                    run_id,
                    signal: input.entry.signal.clone(),
                });
                // The asker may have gone.
                let _ = reply.send(waiting.collect());
            }
            Letter::Subscribe { options, last_event, reply } => {
                self.thread.subscribed();
                let subscription =
                    Subscription::new(self.thread.log.clone(), self.thread.clone(), &options, last_event);
                let _ = reply.send(subscription);
            }
            Letter::QueueEvents { of, reply } => {
                // One that nobody takes ends at once.
                let _ = reply.send(QueueEvents::new(self.thread.clone(), of));
            }
            Letter::Recover { reply } => {
                self.recovering.push(reply);
                self.journal.push(Op::Recover);
            }
        }
    }

    fn send(&mut self, letter: SendLetter) {
        let SendLetter {
            mut input,
            active,
            idle,
            active_attributes,
            idle_attributes,
            by_run,
            taken,
            accepted,
            persisted,
        } = letter;
        let running = self.run.as_ref().map(|run| run.options.clone()).or_else(|| self.machine.reserved_options());
        if let Some(running) = running {
            if !input.own_options {
                // It waits behind this run and takes over its options, never its context or callbacks (SIG-252).
                let request_context = input.options.request_context.clone();
                input.options = Arc::new(RunOptions { request_context, ..running.for_follow_up() });
            } else if input.options.inherit_request_context {
                Arc::make_mut(&mut input.options).request_context.fill_from(&running.request_context);
            }
        }
        input.entry.options = input.options.to_stored();
        let ticket = self.ticket(Waiting::Sent { taken: Some(taken), accepted, persisted: Some(persisted) });
        let send = SendInput { ticket, input, active, idle, active_attributes, idle_attributes, by_run };
        self.feed(ThreadEvent::Send(Box::new(send)));
        if let Some(Waiting::Sent { taken, .. }) = self.replies.get_mut(&ticket)
            && let Some(taken) = taken.take()
        {
            let _ = taken.send(Ok(()));
        }
    }

    fn recovered(&mut self, found: Result<(Vec<InboxEntry>, Vec<RunRecord>), StorageError>) {
        match found {
            Ok((mut entries, mut runs)) => {
                // What an agent left that is not registered now stays in the store for a process that has it.
                entries.retain(|entry| self.is_registered(&entry.agent_id));
                runs.retain(|run| self.is_registered(&run.agent_id));
                let inputs = entries.into_iter().map(Input::of_journal);
                let runs = runs.into_iter().filter(|run| run.status == RunStatus::Running);
                let runs = runs.map(|run| RecoveredRun { run_id: run.run_id, agent_id: run.agent_id });
                let event = ThreadEvent::Recovered { inputs: inputs.collect(), runs: runs.collect() };
                self.feed(event);
            }
            Err(error) => tracing::error!(thread = %self.key, %error, "what an earlier process left cannot be read"),
        }
        for reply in std::mem::take(&mut self.recovering) {
            let _ = reply.send(());
        }
    }

    fn is_registered(&self, agent_id: &str) -> bool {
        let registered = self.inner.agent_by_id(agent_id).is_some();
        if !registered && self.inner.hub.misses(agent_id) {
            tracing::error!(
                thread = %self.key,
                agent = agent_id,
                "an earlier process left work of an agent that is not registered; register it to go on with that"
            );
        }
        registered
    }

    fn feed(&mut self, event: ThreadEvent) {
        self.machine.hold(self.inner.is_draining());
        let effects = self.machine.apply(event);
        for effect in effects {
            self.perform(effect);
        }
        self.show_view();
    }

    /// Shows others what has changed, all of it at once.
    fn show_view(&self) {
        let active_run = self.machine.active_run();
        let queue_count = self.machine.queue_count();
        let queue_groups = self.machine.queue_groups();
        let owned = self.epoch > 0;
        self.view.send_if_modified(|view| {
            let changed = view.active_run.as_ref() != active_run
                || view.queue_count != queue_count
                || view.queue_groups != queue_groups
                || view.owned != owned;
            if changed {
                *view = View { active_run: active_run.cloned(), queue_count, queue_groups, owned };
            }
            changed
        });
    }

    fn give_up_lease(&mut self) {
        self.epoch = 0;
        self.machine.lease_gone();
        self.journal.push(Op::Release);
        self.show_view();
    }

    fn perform(&mut self, effect: ThreadEffect) {
        match effect {
            ThreadEffect::Journal(input) => {
                let agent = self.inner.agent_by_id(&input.entry.agent_id);
                let stores = agent.is_some_and(|agent| agent.memory().is_some_and(|memory| !memory.read_only));
                if stores && self.key.resource_id.is_some() {
                    self.journal.creates_thread();
                }
                self.journal.push(Op::Append(vec![input.entry]));
            }
            ThreadEffect::Claim => self.journal.push(Op::Claim),
            ThreadEffect::StartRun(start) => self.start_run(start),
            ThreadEffect::Nudge { interrupt } => {
                if interrupt && let Some(run) = &self.run {
                    run.nudge.notify_one();
                }
            }
            ThreadEffect::AbortRun { rollback } => {
                if let Some(run) = &self.run {
                    run.shared.stop(rollback);
                }
            }
            ThreadEffect::Drained { ticket, inputs } => {
                // All that could wake the run is in here: it is not to be woken for it once more (SIG-223).
                if let Some(run) = &self.run {
                    let told = run.nudge.notified();
                    tokio::pin!(told);
                    told.enable();
                }
                if let Some(Waiting::Drain(reply)) = self.replies.remove(&ticket)
                    && let Err(inputs) = reply.send(inputs)
                {
                    tracing::error!(thread = %self.key, lost = inputs.len(), "a run ended while it took in input");
                }
            }
            ThreadEffect::Routed { ticket, routed } => self.routed(ticket, *routed),
            ThreadEffect::Refused { ticket, why } => self.refuse(ticket, why),
            ThreadEffect::JournalRefused { tickets, id } => {
                for ticket in tickets {
                    let error = self.refused.get(&id).map_or(Error::Internal("an input was refused"), same_refusal);
                    if let Some(Waiting::Sent { accepted, .. }) = self.replies.remove(&ticket) {
                        let _ = accepted.send(Err(error));
                    }
                }
            }
            ThreadEffect::DirectRefused { run_id } => self.refuse_direct(&run_id),
            ThreadEffect::Persist { ticket, input, echo } => self.persist(ticket, *input, echo),
            ThreadEffect::GiveUp(input) => self.give_up(*input),
            ThreadEffect::RemoveJournal { ids, why } => {
                self.clearing |= why == InboxEnd::Cleared;
                self.journal.push(Op::Remove { ids, why });
            }
            ThreadEffect::UpdateJournal(entry) => self.journal.push(Op::Update(entry)),
            ThreadEffect::Cancelled { ticket, ids } => {
                if let Some(Waiting::Ids(reply)) = self.replies.remove(&ticket) {
                    self.after_writes(Reply::Ids(reply, ids));
                }
            }
            ThreadEffect::Aborted { ticket, stopped } => {
                let clears = std::mem::take(&mut self.clearing);
                match self.replies.remove(&ticket) {
                    Some(Waiting::Aborted(reply)) if clears => self.after_writes(Reply::Aborted(reply, stopped)),
                    Some(Waiting::Aborted(reply)) => Reply::Aborted(reply, stopped).send(),
                    _ => {}
                }
            }
            ThreadEffect::Promoted { ticket, run_id, to } => {
                if let Some(Waiting::Promoted(reply)) = self.replies.remove(&ticket) {
                    self.after_writes(Reply::Promoted(reply, Promoted { run_id, to }));
                }
            }
            ThreadEffect::Edited { ticket, signal } => {
                if let Some(Waiting::Edited(reply)) = self.replies.remove(&ticket) {
                    self.after_writes(Reply::Edited(reply, signal));
                }
            }
            ThreadEffect::RetryAfter { attempts } => {
                let wait = match attempts {
                    0 | 1 => 1,
                    2 => 5,
                    _ => 30,
                };
                self.retry_at = Some(Instant::now() + Duration::from_secs(wait));
            }
        }
    }

    /// Answers once the writes that make the answer true are done: what was cancelled must not run after a restart.
    fn after_writes(&mut self, reply: Reply) {
        if self.journal.is_idle() {
            reply.send();
        } else {
            self.journal.push(Op::Answer(reply));
        }
    }

    fn routed(&mut self, ticket: Ticket, routed: Routed) {
        let Routed { action, run_id, signal, waiting_for } = routed;
        if let Some(Waiting::Sent { taken, accepted, persisted }) = self.replies.remove(&ticket) {
            if let Some(taken) = taken {
                let _ = taken.send(Ok(()));
            }
            let _ = accepted.send(Ok(Outcome { action, run_id, waiting_for, signal }));
            match persisted {
                Some(persisted) if action == crate::runtime::Action::Persist => {
                    self.replies.insert(ticket, Waiting::Persisted(persisted));
                }
                Some(persisted) => {
                    let _ = persisted.send(Ok(()));
                }
                None => {}
            }
        }
    }

    fn refuse(&mut self, ticket: Ticket, why: Refusal) {
        let error = match why {
            Refusal::Limit => Error::InputLimit(self.key.clone()),
            Refusal::DifferentContent(id) => StorageError::DifferentContent { id }.into(),
            Refusal::Taken(id, run_id) => Error::AlreadyTaken { id, run_id },
            Refusal::Unknown(id) => Error::UnknownInput(id),
        };
        match self.replies.remove(&ticket) {
            // The limit is told at once, the rest with the outcome (SIG-003, SIG-509).
            Some(Waiting::Sent { taken: Some(taken), .. }) if matches!(error, Error::InputLimit(_)) => {
                let _ = taken.send(Err(error));
            }
            Some(Waiting::Sent { taken, accepted, .. }) => {
                if let Some(taken) = taken {
                    let _ = taken.send(Ok(()));
                }
                let _ = accepted.send(Err(error));
            }
            Some(Waiting::Promoted(reply)) => {
                let _ = reply.send(Err(error));
            }
            Some(Waiting::Edited(reply)) => {
                let _ = reply.send(Err(error));
            }
            _ => {}
        }
    }

    /// Takes out the direct runs whose callers have left (HTTP-026).
    fn withdraw(&mut self) {
        let left = self.direct.values().filter(|request| request.shared.abort.is_cancelled());
        for run_id in left.map(|request| request.shared.run_id.clone()).collect::<Vec<_>>() {
            self.feed(ThreadEvent::Withdrawn { run_id });
        }
    }

    fn refuse_direct(&mut self, run_id: &RunId) {
        let Some(request) = self.direct.remove(run_id) else { return };
        if request.shared.abort.is_cancelled() {
            let chunks = crate::run::aborted_direct(run_id);
            self.thread.log.end_run(&request.shared, None, DirectEnd { replaces_last: false, chunks });
            if let Some(output) = request.output {
                let _ = output.send(RunOutput::aborted(run_id.clone()));
            }
            return;
        }
        let message = format!("thread {} cannot be owned now: {}; try again", self.key, self.unowned);
        let error = ErrorInfo::new("ThreadUnavailable", message);
        let chunks = crate::run::failed_direct(run_id, &error);
        self.thread.log.end_run(&request.shared, None, DirectEnd { replaces_last: false, chunks });
        if let Some(output) = request.output {
            let _ = output.send(RunOutput::failed(run_id.clone(), error));
        }
    }

    fn persist(&mut self, ticket: Ticket, input: Input, echo: bool) {
        let agent = self.inner.agent_by_id(&input.entry.agent_id);
        if agent.as_ref().is_none_or(|agent| agent.memory().is_none()) {
            // Nothing is written, so nothing is shown (SIG-133).
            if let Some(Waiting::Persisted(reply)) = self.replies.remove(&ticket) {
                let _ = reply.send(Err(Error::NoMemory(input.entry.agent_id)));
            }
            return;
        }
        let size = input.size();
        let waiting: usize = self.persists.values().map(|write| write.size).sum();
        if self.persists.len() >= INBOX_ENTRIES || waiting + size > INBOX_BYTES {
            if let Some(Waiting::Persisted(reply)) = self.replies.remove(&ticket) {
                let _ = reply.send(Err(Error::InputLimit(self.key.clone())));
            }
            return;
        }
        let echo = echo.then(|| (input.entry.agent_id.clone(), input.entry.signal.clone()));
        self.write_row(ticket, input.entry.signal, PersistWrite { size, echo, given_up: false });
    }

    fn give_up(&mut self, input: Input) {
        let size = input.size();
        self.next_ticket += 1;
        self.write_row(self.next_ticket, input.entry.signal, PersistWrite { size, echo: None, given_up: true });
    }

    fn write_row(&mut self, ticket: Ticket, signal: Signal, write: PersistWrite) {
        let placed_at = next_time(&self.placed, self.inner.clock.now());
        let message = Box::new(signal.to_stored(Some(&self.key), placed_at));
        let create = self.key.resource_id.as_deref().map(|resource| NewThread {
            id: Some(self.key.thread_id.to_string()),
            resource_id: resource.to_owned(),
            ..NewThread::default()
        });
        let epoch = (self.epoch > 0).then_some(self.epoch);
        let consumes = write.given_up;
        self.persists.insert(ticket, write);
        self.journal.push(Op::Persist { ticket, message, create, epoch, consumes });
    }

    fn start_run(&mut self, start: StartRun) {
        let StartRun { run_id, agent_id, source, aborted, rollback } = start;
        let nudge = Arc::new(Notify::new());
        let link = ThreadLink {
            key: self.key.clone(),
            epoch: self.epoch,
            thread: self.thread.clone(),
            nudge: nudge.clone(),
            placed: self.placed.clone(),
        };
        let mut claim = None;
        let (kind, shared, options, agent, output, streaming) = match source {
            RunSource::Input(first) => {
                let agent = self.inner.agent_by_id(&agent_id);
                (SeedKind::Woken, RunShared::new(run_id.clone()), first.options.clone(), agent, None, true)
            }
            RunSource::Direct => match self.direct.remove(&run_id) {
                Some(request) => {
                    let DirectRequest { agent, input, options, shared, output, streaming, claim: held, .. } = request;
                    claim = Some(held);
                    (SeedKind::Direct(Box::new(input)), shared, options, Some(agent), output, streaming)
                }
                None => {
                    return self.feed(ThreadEvent::RunEnded { run_id, returned: Vec::new(), failed_to_start: false });
                }
            },
            RunSource::Record => {
                let agent = self.inner.agent_by_id(&agent_id);
                let options = Arc::new(RunOptions::default());
                (SeedKind::Recorded, RunShared::new(run_id.clone()), options, agent, None, true)
            }
        };
        let Some(agent) = agent else {
            tracing::error!(thread = %self.key, agent = agent_id, "the agent of this input is not registered");
            // Its record and its input stay as they are; the next start with the agent goes on with them.
            let error = ErrorInfo::new("UnknownAgent", format!("Agent with id {agent_id} not found"));
            self.thread.log.push(Chunk::agent(&run_id, Payload::Error { error }));
            return self.feed(ThreadEvent::RunEnded { run_id, returned: Vec::new(), failed_to_start: true });
        };
        if aborted {
            shared.stop(rollback);
        }
        // A run of the same input writes the same record, and ends it.
        self.unended.retain(|ended| ended.run_id != run_id);
        if !self.inner.hub.run_started(&run_id, &self.key, self.inner.clock.now()) {
            // Only what an earlier process left can meet this: its id was taken meanwhile.
            tracing::error!(thread = %self.key, run = %run_id, "a run of another thread has this run's id");
            let text = format!("run id {run_id} is taken by a run of another thread");
            let error = ErrorInfo::new("RunIdTaken", text);
            if let Some(output) = output {
                let chunks = crate::run::failed_direct(&run_id, &error);
                self.thread.log.end_run(&shared, None, DirectEnd { replaces_last: false, chunks });
                let _ = output.send(RunOutput::failed(run_id.clone(), error));
            }
            return self.feed(ThreadEvent::RunEnded { run_id, returned: Vec::new(), failed_to_start: true });
        }
        drop(claim);
        self.run = Some(LiveRun { shared: shared.clone(), nudge, options: options.clone() });
        let seed = RunSeed {
            agent,
            options,
            kind,
            shared,
            log: self.thread.log.clone(),
            link: Some(link),
            output,
            inner: self.inner.clone(),
            streaming,
            delegated: false,
        };
        self.inner.hub.tasks.spawn(crate::run::drive(seed));
    }

    fn journal_done(&mut self, done: Done) {
        match done {
            Done::Appended { entries, result } => self.appended(entries, result),
            Done::Claimed(result) => {
                if let Err(error @ StorageError::ThreadOwnership { .. }) = &result {
                    tracing::error!(thread = %self.key, %error, "what waits for this thread can never have it");
                    self.feed(ThreadEvent::Unownable);
                }
                let held = self.lease(result.map_err(Error::from));
                self.feed(ThreadEvent::Claimed(if held { Ok(()) } else { Err(ClaimFailed) }));
            }
            Done::Persisted { ticket, message, epoch, result } => {
                if let Some(epoch) = epoch {
                    self.own(epoch);
                }
                self.persisted(ticket, &message, result);
            }
            Done::Recovered(found) => self.recovered(found),
            Done::RunClosed { ended, result } => self.record_ended(*ended, result),
            Done::Removed(Ok(ids)) => self.removed = ids,
            Done::Removed(Err(error)) => {
                tracing::error!(thread = %self.key, %error, "input could not be taken out of the journal; it stays");
                self.removed.clear();
                self.journal.push(Op::Recover);
            }
            Done::Updated(id, Ok(())) => {
                self.unwritten.take_if(|(unwritten, _)| *unwritten == id);
            }
            Done::Updated(id, Err(error)) => {
                tracing::error!(thread = %self.key, signal = %id, %error, "a journal entry could not be rewritten");
                self.unwritten = Some((id, error.into()));
            }
            Done::Answer(Reply::Ids(reply, mut ids)) => {
                // What turns out to have been placed before was not cancelled (R18, SIG-290).
                let removed = std::mem::take(&mut self.removed);
                ids.retain(|id| removed.contains(id));
                Reply::Ids(reply, ids).send();
            }
            Done::Answer(Reply::Promoted(reply, promoted)) => match self.unwritten.take() {
                Some((id, error)) => {
                    self.reread(id);
                    let _ = reply.send(Err(error));
                }
                None => Reply::Promoted(reply, promoted).send(),
            },
            Done::Answer(Reply::Edited(reply, signal)) => match self.unwritten.take() {
                Some((id, error)) => {
                    self.reread(id);
                    let _ = reply.send(Err(error));
                }
                None => Reply::Edited(reply, signal).send(),
            },
            Done::Answer(reply) => reply.send(),
            Done::Quiet => {}
        }
    }

    /// The journal says what the entry is, since it could not be changed.
    fn reread(&mut self, id: MessageId) {
        self.feed(ThreadEvent::Reread { id });
        self.journal.push(Op::Recover);
    }

    fn appended(
        &mut self,
        entries: Vec<crate::storage::InboxEntry>,
        result: Result<crate::storage::Accepted, StorageError>,
    ) {
        let accepted = match result {
            Ok(accepted) => accepted,
            // One bad entry must not refuse its neighbours.
            Err(StorageError::DifferentContent { .. }) if entries.len() > 1 => {
                return self.journal.retry_apart(entries);
            }
            Err(error) => {
                for entry in entries {
                    let id = entry.signal.id;
                    self.refused.insert(id.clone(), same_error(&error));
                    self.feed(ThreadEvent::Journaled { id: id.clone(), result: JournalAnswer::Failed });
                    self.refused.remove(&id);
                }
                return;
            }
        };
        let elsewhere = match accepted.lease {
            Some(Lease::HeldBy { owner }) => Some(owner),
            Some(Lease::Held { epoch }) => {
                self.own(epoch);
                None
            }
            None => None,
        };
        if let Some(owner) = elsewhere {
            if self.epoch > 0 {
                self.lose();
            }
            let ids: Vec<MessageId> = entries.iter().map(|entry| entry.signal.id.clone()).collect();
            self.journal.push(Op::Remove { ids: ids.clone(), why: InboxEnd::Dropped });
            for id in ids {
                let error = Error::OwnedElsewhere { thread: self.key.clone(), owner: owner.clone() };
                self.refused.insert(id.clone(), error);
                self.feed(ThreadEvent::Journaled { id: id.clone(), result: JournalAnswer::Failed });
                self.refused.remove(&id);
            }
            return;
        }
        for (entry, outcome) in entries.into_iter().zip(accepted.entries) {
            let result = match outcome {
                EntryOutcome::Appended { position } => JournalAnswer::Appended { position },
                EntryOutcome::Waiting { run_id } => JournalAnswer::Known { run_id: Some(run_id), waits: true },
                EntryOutcome::Placed { run_id } => JournalAnswer::Known { run_id, waits: false },
            };
            self.feed(ThreadEvent::Journaled { id: entry.signal.id, result });
        }
    }

    /// Takes in the answer to a claim; `true` if the thread is ours.
    fn lease(&mut self, result: Result<Lease, Error>) -> bool {
        match result {
            Ok(Lease::Held { epoch }) => {
                self.own(epoch);
                true
            }
            Ok(Lease::HeldBy { owner }) => {
                tracing::warn!(thread = %self.key, owner, "the thread is owned by another process");
                self.unowned = format!("another process, {owner}, owns it");
                self.lose();
                false
            }
            Err(error) => {
                tracing::error!(thread = %self.key, %error, "the thread's lease could not be taken");
                self.unowned = error.to_string();
                // A run at work keeps its epoch; the store refuses its writes if it is stale.
                self.epoch > 0
            }
        }
    }

    fn own(&mut self, epoch: u64) {
        if std::mem::take(&mut self.resync) {
            self.journal.push(Op::Recover);
        }
        if self.epoch != 0 && self.epoch != epoch && self.run.is_some() {
            // Somebody else has owned the thread in between: what the run writes would be refused (ruling 4).
            self.lose_run();
        }
        self.epoch = epoch;
        self.thread.log.begin_epoch(epoch);
        self.show_view();
    }

    fn lose(&mut self) {
        self.epoch = 0;
        self.resync = true;
        self.lose_run();
        self.feed(ThreadEvent::LeaseLost { run_id: None });
    }

    fn lose_run(&mut self) {
        if let Some(run) = &self.run {
            run.shared.fence();
        }
    }

    fn persisted(&mut self, ticket: Ticket, message: &StoredMessage, result: Result<bool, StorageError>) {
        let Some(write) = self.persists.remove(&ticket) else { return };
        let written = result.as_ref().is_ok_and(|new| *new);
        if let Err(error) = &result {
            tracing::error!(thread = %self.key, %error, "a row could not be written");
        }
        if write.given_up {
            let what = match &result {
                Ok(_) => "it is stored unanswered".to_owned(),
                Err(error) if error.is_retryable() => {
                    format!("it could not be stored either ({error}), and stays in the journal to be tried again later")
                }
                Err(error) => {
                    self.journal.push(Op::Remove { ids: vec![message.id.clone()], why: InboxEnd::Dropped });
                    format!("it cannot be stored either, and was dropped: {error}")
                }
            };
            let text = format!("no run could be started for signal {}; {what}", message.id);
            tracing::error!(thread = %self.key, text, "input was given up");
            let mut error = ErrorInfo::new("InputGivenUp", text);
            error.details = Some(serde_json::json!({ "signalId": message.id }));
            self.thread.log.push(Chunk::agent(&RunId::random(), Payload::Error { error }));
        }
        if let Some(Waiting::Persisted(reply)) = self.replies.remove(&ticket) {
            let _ = reply.send(result.map(|_| ()).map_err(Error::from));
        }
        // The echo shows what a load would give (SIG-051), after the write and in order (SIG-341).
        if written
            && let Some((agent_id, _)) = write.echo
            && let Some(placed) = Signal::from_stored(message)
        {
            self.show_persisted(agent_id, &placed);
        }
    }

    /// Shows an idle persist as a run of its own kind, after the current step of the active run (SIG-340, SIG-342).
    fn show_persisted(&self, agent_id: String, signal: &Signal) {
        let run_id = RunId::random();
        let message_id: MessageId = format!("persisted-signal:{}", signal.id).into();
        let start = Payload::Start { id: agent_id, message_id: message_id.clone() };
        let zero = Usage { input_tokens: Some(0), output_tokens: Some(0), total_tokens: Some(0), ..Usage::default() };
        let finish = Payload::Finish(Box::new(StepFinishPayload {
            message_id,
            step_result: StepResult {
                reason: FinishReason::Stop,
                raw_reason: None,
                is_continued: false,
                warnings: Vec::new(),
                message_id: None,
                stop_cause: None,
            },
            metadata: crate::chunk::ResponseMetadata::default(),
            output: StepOutput { usage: zero, ..StepOutput::default() },
            messages: None,
            response: None,
            processor_retry_count: 0,
            is_task_complete_check_failed: None,
            consumed_signal_ids: Vec::new(),
            unanswered_signal_ids: Vec::new(),
            warnings: Vec::new(),
        }));
        let mut echo = signal.echo(&run_id);
        if let ChunkBody::Data(data) = &mut echo.body {
            // Always `data-signal`, whatever its type: the run is no run of a user (SIG-340).
            data.kind = "data-signal".to_owned();
        }
        self.thread.log.push_between_steps([Chunk::agent(&run_id, start), echo, Chunk::agent(&run_id, finish)]);
    }
}
