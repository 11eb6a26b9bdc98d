//! The actor of one thread: takes letters one at a time, lets the machine decide, and performs what it says.

mod lease;
mod letter;
mod link;
mod persist;
mod reply;
mod settle;
mod start;
mod suspended;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

pub(crate) use letter::{DirectRequest, Leftover, Letter, ResumeRequest, RunEnd, SendLetter};
pub(crate) use link::ThreadLink;
use parking_lot::Mutex;
use persist::PersistWrite;
pub(super) use reply::Reply;
use reply::{Waiting, same_refusal};
use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};

use super::{
    hub::{ThreadRef, View},
    input::Ticket,
    journal::{Done, EndedRun, Journal, Op},
    log::RunShared,
    machine::{ThreadEffect, ThreadEvent, ThreadMachine},
};
use crate::{
    error::Error,
    id::{MessageId, RunId, ThreadKey},
    run::RunOptions,
    runtime::{Inner, Promoted},
    storage::InboxEnd,
    time::Timestamp,
};

/// An idle thread keeps its log this long, for those who reconnect; without subscribers, its actor too.
const LINGER: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct LiveRun {
    shared: Arc<RunShared>,
    nudge: Arc<Notify>,
    options: Arc<RunOptions>,
    released: Arc<AtomicBool>,
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
    /// The lease was claimed since the run began.
    claimed_again: bool,
    /// The lease was lost: once it is ours again, the journal is read anew.
    resync: bool,
    placed: Arc<Mutex<Timestamp>>,
    retry_at: Option<Instant>,
    /// Runs whose records are still to be ended; until then the thread is not idle, and nobody revives them.
    unended: Vec<EndedRun>,
    /// When to try that again.
    end_at: Option<Instant>,
    recovering: Vec<oneshot::Sender<()>>,
    /// Decisions that wait for the thread.
    resumes: HashMap<Ticket, ResumeRequest>,
    /// The run that waits for a person, and until when it keeps the thread (SIG-382).
    suspended: Option<(RunId, Instant)>,
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
        claimed_again: false,
        resync: false,
        placed: Arc::default(),
        retry_at: None,
        unended: Vec::new(),
        end_at: None,
        recovering: Vec::new(),
        resumes: HashMap::new(),
        suspended: None,
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
        // A run that waits keeps its thread's actor, though not its lease.
        let lingers = idle_since.is_some() && actor.suspended.is_none() && !(watched && forgotten);
        let evict_at = actor.suspended.as_ref().map(|(_, at)| *at);
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
            () = sleep_until(evict_at.unwrap_or_else(far)), if evict_at.is_some() => Happened::EvictDue,
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
            Happened::EvictDue => actor.evict(),
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
            actor.journal.push(Op::Release { last_event: actor.thread.log.last_number() });
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
    EvictDue,
    Renew,
    Left,
    Idle,
}

fn far() -> Instant {
    Instant::now() + Duration::from_secs(86_400)
}

impl Actor {
    fn is_idle(&self) -> bool {
        self.machine.is_idle() && self.journal.is_idle() && self.unended.is_empty()
    }

    fn feed(&mut self, event: ThreadEvent) {
        self.machine.hold(self.inner.is_draining());
        let effects = self.machine.apply(event);
        for effect in effects {
            self.perform(effect);
        }
        self.note_suspended();
        self.show_view();
    }

    /// Shows others what has changed, all of it at once.
    fn show_view(&self) {
        let active_run = self.machine.active_run();
        let queue_count = self.machine.queue_count();
        let queue_groups = self.machine.queue_groups();
        let owned = self.epoch > 0;
        let becomes_idle = active_run.is_none() && self.view.borrow().active_run.is_some();
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
        if becomes_idle {
            self.inner.notifications.thread_is_idle(&self.key);
        }
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
            ThreadEffect::ResumeRefused { ticket } => self.refuse_resume(ticket),
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
}
