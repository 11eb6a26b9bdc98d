//! One process's side of the thread: performs what the thread's machine says, as the actor does, write by write.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use futures::FutureExt;

use super::{
    run::{Seed, SimRun},
    world::{AGENTS, LEASE_MS, Sabotage, World},
};
use crate::{
    id::{MessageId, RunId},
    message::{Role, StoredMessage},
    run::{Resolution, RunOptions},
    runtime::{AbortOptions, Action, ActiveBehavior, IdleBehavior, PromoteTo},
    signal::Contents,
    storage::{
        Accept, Accepted, Commit, EntryOutcome, InboxEnd, InboxEntry, InputMode, Lease, LeaseClaim, Left, NewThread,
        ParkedQuery, RunRecord, Storage, StorageError,
    },
    thread::{
        input::{Input, Routed, Send, Ticket},
        machine::{ClaimFailed, Journal, RecoveredRun, Suspended, ThreadEffect, ThreadEvent, ThreadMachine},
    },
    time::{Clock, Timestamp},
};

/// A write that waits.
#[derive(Debug)]
pub(super) enum Op {
    Append(Vec<InboxEntry>),
    Claim,
    Persist {
        message: Box<StoredMessage>,
        given_up: bool,
    },
    Remove {
        ids: Vec<MessageId>,
        why: InboxEnd,
    },
    Update(Box<InboxEntry>),
    Recover,
    /// Tells somebody once all writes before it are done.
    Tell(Told),
}

/// A write that is done, or failed.
#[derive(Debug)]
pub(super) enum Answer {
    Appended { entries: Vec<InboxEntry>, result: Result<Accepted, StorageError> },
    Claimed(Result<Accepted, StorageError>),
    Persisted { id: MessageId, given_up: bool, epoch: Option<u64>, done: bool },
    Recovered { entries: Vec<InboxEntry>, runs: Vec<RunRecord> },
    Tell(Told),
    Quiet,
}

/// What somebody is told.
#[derive(Debug)]
pub(super) enum Told {
    Cancelled(Vec<MessageId>),
    Cleared(Vec<MessageId>),
    Edited(MessageId, String),
    Promoted,
}

/// Who waits.
#[derive(Debug)]
pub(super) enum Waiting {
    Sent(MessageId),
    Drain,
    Cancel,
    Abort,
    Promote(MessageId),
    Edit(MessageId, String),
}

/// A process.
pub(super) struct Process {
    pub(super) machine: ThreadMachine,
    pub(super) ops: VecDeque<Op>,
    pub(super) answer: Option<Answer>,
    pub(super) run: Option<SimRun>,
    pub(super) retry: bool,
    pub(super) epoch: u64,
    /// The epoch it had last.
    kept: Option<u64>,
    pub(super) owner: String,
    /// The lease was claimed since the run began.
    claimed_again: bool,
    direct: HashMap<RunId, usize>,
    resumes: HashMap<Ticket, Resolution>,
    waiting: HashMap<Ticket, Waiting>,
    next_ticket: Ticket,
    next_direct: usize,
    /// What the abort at work clears.
    clearing: Vec<MessageId>,
    /// What the last removal took out of the journal.
    removed: Vec<MessageId>,
    pub(super) placed_at: Timestamp,
}

impl Process {
    pub(super) fn new(life: usize) -> Self {
        Self {
            machine: ThreadMachine::default(),
            ops: VecDeque::new(),
            answer: None,
            run: None,
            retry: false,
            epoch: 0,
            kept: None,
            owner: format!("process-{life}"),
            claimed_again: false,
            direct: HashMap::new(),
            resumes: HashMap::new(),
            waiting: HashMap::new(),
            next_ticket: 0,
            next_direct: life * 1000,
            clearing: Vec::new(),
            removed: Vec::new(),
            placed_at: Timestamp::default(),
        }
    }

    pub(super) fn can_write(&self) -> bool {
        self.answer.is_none() && !self.ops.is_empty()
    }

    fn ticket(&mut self, waiting: Waiting) -> Ticket {
        self.next_ticket += 1;
        self.waiting.insert(self.next_ticket, waiting);
        self.next_ticket
    }

    pub(super) fn drain_ticket(&mut self) -> Ticket {
        self.ticket(Waiting::Drain)
    }

    /// As the actor does.
    pub(super) fn lease_went(&mut self) {
        if !self.claimed_again && self.ops.is_empty() && self.answer.is_none() {
            self.epoch = 0;
            self.machine.lease_gone();
        }
    }

    fn claim(&self) -> LeaseClaim {
        LeaseClaim { kept: self.kept, ..LeaseClaim::new(&*self.owner, Duration::from_millis(LEASE_MS.unsigned_abs())) }
    }

    fn push(&mut self, op: Op) {
        if let (Op::Append(more), Some(Op::Append(entries))) = (&op, self.ops.back_mut()) {
            entries.extend(more.iter().cloned());
        } else {
            self.ops.push_back(op);
        }
    }
}

fn away() -> StorageError {
    StorageError::Unavailable { message: "the store is away".to_owned(), source: None }
}

impl World {
    // What callers ask.

    pub(super) fn send(
        &mut self,
        id: &MessageId,
        mode: InputMode,
        (active, idle): (ActiveBehavior, IdleBehavior),
        by_run: bool,
    ) {
        let signal = self.signal(id);
        let agent = AGENTS[self.oracle.inputs[id].agent].to_owned();
        self.note(|| format!("send {id} to {agent} as {mode:?}, active {active:?}, idle {idle:?}, by run {by_run}"));
        let entry = InboxEntry {
            signal,
            thread: self.key.clone(),
            agent_id: agent,
            mode,
            run_id: format!("run-of-{id}-{}", self.process.next_ticket).into(),
            options: serde_json::Value::Null,
            queue_owner_id: (mode == InputMode::Queue).then(|| "group".to_owned()),
            attempts: 0,
            position: 0,
        };
        let input = Input::new(entry, RunOptions::default(), true);
        let ticket = self.process.ticket(Waiting::Sent(id.clone()));
        let (active_attributes, idle_attributes) = (None, None);
        let send = Send { ticket, input, active, idle, active_attributes, idle_attributes, by_run };
        self.feed(ThreadEvent::Send(Box::new(send)));
    }

    pub(super) fn direct(&mut self, agent: usize, continuation: bool) {
        let run_id: RunId = format!("plain-{}", self.process.next_direct).into();
        self.process.next_direct += 1;
        self.note(|| format!("plain run {run_id} of {}, continuation {continuation}", AGENTS[agent]));
        self.process.direct.insert(run_id.clone(), agent);
        self.oracle.run(&run_id).direct = true;
        self.feed(ThreadEvent::Direct { run_id, agent_id: AGENTS[agent].to_owned(), continuation });
    }

    pub(super) fn cancel(&mut self, ids: Vec<MessageId>) {
        self.note(|| format!("cancel {ids:?}"));
        let ticket = self.process.ticket(Waiting::Cancel);
        self.feed(ThreadEvent::Cancel { ticket, ids });
    }

    pub(super) fn cancel_group(&mut self, agent: usize) {
        self.note(|| format!("cancel the group of {}", AGENTS[agent]));
        let ticket = self.process.ticket(Waiting::Cancel);
        let agent_id = AGENTS[agent].to_owned();
        self.feed(ThreadEvent::CancelGroup { ticket, agent_id, group: "group".to_owned() });
    }

    pub(super) fn abort(&mut self, options: AbortOptions) {
        self.note(|| format!("abort {options:?}"));
        let ticket = self.process.ticket(Waiting::Abort);
        self.feed(ThreadEvent::Abort { ticket, options });
    }

    pub(super) fn promote(&mut self, id: MessageId, to: PromoteTo) {
        self.note(|| format!("promote {id} to {to:?}"));
        let ticket = self.process.ticket(Waiting::Promote(id.clone()));
        self.feed(ThreadEvent::Promote { ticket, id, to });
    }

    pub(super) fn edit(&mut self, id: MessageId) {
        let text = format!("edited {id} {}", self.process.next_ticket);
        self.note(|| format!("edit {id}"));
        let ticket = self.process.ticket(Waiting::Edit(id.clone(), text.clone()));
        self.feed(ThreadEvent::Edit { ticket, id, contents: Some(Contents::Text(text)), attributes: None });
    }

    pub(super) fn resume(&mut self, run_id: RunId, agent_id: String, what: Resolution) {
        self.process.next_ticket += 1;
        let ticket = self.process.next_ticket;
        self.process.resumes.insert(ticket, what);
        self.feed(ThreadEvent::Resume { ticket, run_id, agent_id });
    }

    pub(super) fn recover(&mut self) {
        self.process.push(Op::Recover);
    }

    pub(super) fn retry(&mut self) {
        self.process.retry = false;
        self.note(|| "the wait is over".to_owned());
        self.feed(ThreadEvent::RetryDue);
    }

    // What the machine says.

    pub(super) fn feed(&mut self, event: ThreadEvent) {
        for effect in self.process.machine.apply(event) {
            self.perform(effect);
        }
    }

    fn perform(&mut self, effect: ThreadEffect) {
        self.note(|| format!("    {}", short(&effect)));
        match effect {
            ThreadEffect::Journal(input) => {
                let id = input.id().clone();
                let record = self.record(&id);
                record.refused = false;
                if record.mode.is_none() || (record.told.is_none() && record.placed.is_empty()) {
                    record.mode = Some(input.entry.mode);
                }
                self.process.push(Op::Append(vec![input.entry]));
            }
            ThreadEffect::Claim => self.process.push(Op::Claim),
            ThreadEffect::StartRun(start) => self.start_run(start),
            ThreadEffect::Nudge { interrupt } => {
                if interrupt && let Some(run) = &mut self.process.run {
                    run.nudged = true;
                }
            }
            ThreadEffect::AbortRun { rollback } => {
                if let Some(run) = &mut self.process.run {
                    run.rollback |= rollback;
                    run.aborted = true;
                }
            }
            ThreadEffect::Drained { ticket, mut inputs } => {
                self.process.waiting.remove(&ticket);
                if self.sabotage == Sabotage::LoseDrained && inputs.len() > 1 {
                    inputs.remove(0);
                }
                if self.sabotage == Sabotage::DrainTwice && inputs.len() > 1 {
                    inputs.push(inputs[0].clone());
                }
                self.run_drained(inputs);
            }
            ThreadEffect::Routed { ticket, routed } => self.routed(ticket, *routed),
            ThreadEffect::Refused { ticket, .. } => {
                if let Some(Waiting::Sent(id)) = self.process.waiting.remove(&ticket) {
                    self.record(&id).refused = true;
                }
            }
            ThreadEffect::JournalRefused { tickets, id } => {
                for ticket in tickets {
                    self.process.waiting.remove(&ticket);
                }
                // What an earlier process had appended waits, whatever its sender was told now.
                let waiting = now(self.storage.inbox(&self.key)).unwrap_or_default();
                let waits = waiting.iter().any(|entry| entry.signal.id == id);
                let record = self.record(&id);
                record.refused = !waits;
                record.unclear |= waits;
            }
            ThreadEffect::ResumeRefused { ticket } => {
                self.process.resumes.remove(&ticket);
            }
            ThreadEffect::DirectRefused { run_id } => {
                self.process.direct.remove(&run_id);
            }
            ThreadEffect::Persist { input, .. } => {
                self.record(input.id()).persisted = Some(false);
                self.write_row(&input, false);
            }
            ThreadEffect::GiveUp(input) => {
                self.record(input.id()).given_up = true;
                self.write_row(&input, true);
            }
            ThreadEffect::RemoveJournal { ids, why } => {
                for id in &ids {
                    self.record(id).leaving = true;
                }
                if why == InboxEnd::Cleared {
                    self.process.clearing.extend(ids.iter().cloned());
                }
                self.process.push(Op::Remove { ids, why });
            }
            ThreadEffect::UpdateJournal(entry) => self.process.push(Op::Update(entry)),
            ThreadEffect::Cancelled { ticket, ids } => {
                self.process.waiting.remove(&ticket);
                self.process.push(Op::Tell(Told::Cancelled(ids)));
            }
            ThreadEffect::Aborted { ticket, .. } => {
                self.process.waiting.remove(&ticket);
                let cleared = std::mem::take(&mut self.process.clearing);
                self.process.push(Op::Tell(Told::Cleared(cleared)));
            }
            ThreadEffect::Promoted { ticket, .. } => {
                if let Some(Waiting::Promote(id)) = self.process.waiting.remove(&ticket) {
                    self.record(&id).jumps = true;
                    self.process.push(Op::Tell(Told::Promoted));
                }
            }
            ThreadEffect::Edited { ticket, .. } => {
                if let Some(Waiting::Edit(id, text)) = self.process.waiting.remove(&ticket) {
                    self.record(&id).edited = true;
                    self.record(&id).edits.push(text.clone());
                    self.process.push(Op::Tell(Told::Edited(id, text)));
                }
            }
            ThreadEffect::RetryAfter { .. } => self.process.retry = true,
        }
    }

    fn routed(&mut self, ticket: Ticket, routed: Routed) {
        let Some(Waiting::Sent(id)) = self.process.waiting.remove(&ticket) else {
            return self.oracle.fault("somebody is told twice what became of an input");
        };
        let record = self.record(&id);
        if matches!(routed.action, Action::Wake | Action::Deliver) {
            record.told = Some(routed.action);
        } else {
            record.told.get_or_insert(routed.action);
        }
    }

    fn write_row(&mut self, input: &Input, given_up: bool) {
        let at = self.clock.now().max(Timestamp::from_millis(self.process.placed_at.as_millis() + 1));
        self.process.placed_at = at;
        let message = Box::new(input.entry.signal.to_stored(Some(&self.key), at));
        self.process.push(Op::Persist { message, given_up });
    }

    fn start_run(&mut self, start: crate::thread::machine::StartRun) {
        use crate::thread::machine::RunSource;
        if let Some(run) = &self.process.run {
            let both = format!("run {} starts while {} goes on (SIG-450)", start.run_id, run.id);
            return self.oracle.fault(both);
        }
        let seed = match &start.source {
            RunSource::Input(first) => {
                let wake = first.id().clone();
                // Stopped before it began, it only stores its input, ahead of what an earlier process left.
                self.record(&wake).jumps |= start.aborted;
                self.oracle.run(&start.run_id).wake = Some(wake);
                Seed::Woken
            }
            RunSource::Direct => {
                if self.process.direct.remove(&start.run_id).is_none() {
                    self.oracle.fault(format!("plain run {} starts twice", start.run_id));
                }
                Seed::Direct
            }
            RunSource::Record => Seed::Record,
            RunSource::Resume(_) => Seed::Resume,
        };
        let agent = usize::from(start.agent_id == AGENTS[1]);
        let resolution = match start.source {
            RunSource::Resume(Some(ticket)) => self.process.resumes.remove(&ticket),
            RunSource::Resume(None) => Some(Resolution::Abort),
            _ => None,
        };
        let mut run = SimRun::new(start.run_id, agent, seed, (start.aborted, start.rollback), self.process.epoch);
        run.resolution = resolution;
        self.process.claimed_again = false;
        self.process.run = Some(run);
    }

    // Writes.

    /// The next write happens, or fails; nobody knows yet.
    pub(super) fn write(&mut self) {
        let Some(op) = self.process.ops.pop_front() else { return };
        let fails = self.rng.chance(self.rates.journal_fails);
        // A failure may be told of a write that happened.
        let happens = !fails || self.rng.chance(30);
        let claim = self.process.claim();
        let storage = self.storage.clone();
        let answer = match op {
            Op::Append(mut entries) => {
                if self.sabotage == Sabotage::SwapAppends {
                    entries.reverse();
                }
                let accept = Accept {
                    entries: entries.clone(),
                    thread: self.key.clone(),
                    claim: Some(claim),
                    check_only: self.sabotage == Sabotage::ForgetAppend,
                    create_thread: true,
                };
                let mut result = if happens { now(storage.accept(accept)) } else { Err(away()) };
                if self.sabotage == Sabotage::ForgetAppend
                    && let Ok(accepted) = &mut result
                {
                    accepted.entries = entries.iter().map(|_| EntryOutcome::Appended { position: 1 }).collect();
                }
                if let Ok(accepted) = &result {
                    for (entry, outcome) in entries.iter().zip(&accepted.entries) {
                        if matches!(outcome, EntryOutcome::Appended { .. }) {
                            let sequence = self.oracle.next_sequence();
                            let record = self.record(&entry.signal.id);
                            record.sequence = sequence;
                            // Sent again after a rollback had removed it, it is another input.
                            record.rolled_back = false;
                        }
                    }
                }
                if fails && happens && result.is_ok() {
                    for entry in &entries {
                        self.record(&entry.signal.id).unclear = true;
                    }
                }
                Answer::Appended { entries, result: if fails { Err(away()) } else { result } }
            }
            Op::Claim => {
                let fails = self.rng.chance(self.rates.claim_fails);
                let accept = Accept {
                    entries: Vec::new(),
                    thread: self.key.clone(),
                    claim: Some(claim),
                    check_only: true,
                    create_thread: false,
                };
                let claimed = now(storage.accept(accept));
                Answer::Claimed(if fails { Err(away()) } else { claimed })
            }
            Op::Persist { message, given_up } => self.write_persist(*message, given_up, &claim, (fails, happens)),
            Op::Remove { ids, why } => {
                let removed = if self.sabotage == Sabotage::ForgetRemoval {
                    ids
                } else {
                    now(storage.remove_inbox(&self.key, &ids, why)).unwrap_or_default()
                };
                for id in &removed {
                    self.record(id).removed = true;
                }
                self.process.removed = removed;
                Answer::Quiet
            }
            Op::Update(entry) => {
                let _ = now(storage.update_inbox(*entry));
                Answer::Quiet
            }
            Op::Recover => {
                let entries = now(storage.inbox(&self.key)).unwrap_or_default();
                let runs = now(storage.runs(&self.key)).unwrap_or_default();
                Answer::Recovered { entries, runs }
            }
            Op::Tell(told) => Answer::Tell(told),
        };
        self.note(|| format!("write: {answer:.300?}", answer = Brief(&answer)));
        self.process.answer = Some(answer);
    }

    fn write_persist(
        &mut self,
        message: StoredMessage,
        given_up: bool,
        claim: &LeaseClaim,
        (fails, happens): (bool, bool),
    ) -> Answer {
        let id = message.id.clone();
        let epoch = match (self.process.epoch, now(self.storage.acquire_lease(&self.key, claim))) {
            (0, Ok(Lease::Held { epoch })) => epoch,
            (epoch, _) => epoch,
        };
        let mut commit = Commit::new(self.key.clone(), epoch);
        commit.create_thread = Some(NewThread {
            id: Some(self.key.thread_id.to_string()),
            resource_id: "user".to_owned(),
            ..NewThread::default()
        });
        commit.messages = vec![message];
        if given_up {
            commit.consumed = vec![id.clone()];
        }
        let stored = happens && now(self.storage.commit(commit)).is_ok();
        if given_up && (fails || !stored) {
            // It stays in the journal, and the next owner tries again.
            self.record(&id).unclear = true;
        }
        Answer::Persisted { id, given_up, epoch: Some(epoch), done: stored && !fails }
    }

    /// The answer to a write arrives.
    pub(super) fn answer(&mut self) {
        let Some(answer) = self.process.answer.take() else { return };
        self.note(|| format!("answered: {:.60?}", Brief(&answer)));
        match answer {
            Answer::Appended { entries, result } => self.appended(entries, result),
            Answer::Claimed(result) => {
                let held = match result {
                    Ok(Accepted { lease: Some(Lease::Held { epoch }), left, .. }) => {
                        self.own(epoch, left);
                        true
                    }
                    Ok(_) => {
                        self.process.epoch = 0;
                        self.process.machine.lease_gone();
                        false
                    }
                    Err(_) => self.process.epoch > 0,
                };
                self.feed(ThreadEvent::Claimed(if held { Ok(()) } else { Err(ClaimFailed) }));
            }
            Answer::Persisted { id, given_up, epoch, done } => {
                if let Some(epoch) = epoch {
                    self.process.epoch = epoch;
                }
                if !given_up {
                    self.record(&id).persisted = Some(done);
                }
            }
            Answer::Recovered { entries, runs } => self.found(entries, runs, false),
            Answer::Tell(told) => self.tell(told),
            Answer::Quiet => {}
        }
    }

    fn tell(&mut self, told: Told) {
        match told {
            Told::Cancelled(ids) => {
                let removed = std::mem::take(&mut self.process.removed);
                for id in ids.into_iter().filter(|id| removed.contains(id)) {
                    self.record(&id).cancelled = true;
                }
            }
            Told::Cleared(ids) => {
                let removed = std::mem::take(&mut self.process.removed);
                for id in ids.into_iter().filter(|id| removed.contains(id)) {
                    self.record(&id).cleared = true;
                }
            }
            Told::Edited(id, text) => {
                let record = self.record(&id);
                record.text = text;
            }
            Told::Promoted => {}
        }
    }

    /// As the actor does: what an earlier process left comes before what this one begins, without what a write that
    /// waits will take out.
    fn own(&mut self, epoch: u64, mut left: Left) {
        let is_new = self.process.kept != Some(epoch);
        self.process.epoch = epoch;
        self.process.kept = Some(epoch);
        self.process.claimed_again = true;
        if is_new {
            self.found_parked();
        }
        let ops = &self.process.ops;
        left.entries.retain(|entry| {
            !ops.iter().any(|op| match op {
                Op::Remove { ids, .. } => ids.contains(&entry.signal.id),
                Op::Persist { message, given_up } => *given_up && message.id == entry.signal.id,
                _ => false,
            })
        });
        if !left.entries.is_empty() || !left.runs.is_empty() {
            self.found(left.entries, left.runs, true);
        }
    }

    /// What is parked on the thread keeps it.
    fn found_parked(&mut self) {
        let parked = now(self.storage.list_parked(ParkedQuery::default())).map(|page| page.items).unwrap_or_default();
        let ids = parked.iter().map(|run| run.run_id.clone()).collect();
        let suspended = parked.into_iter().next().map(|run| Suspended {
            waiting_for: "approval",
            since: run.suspended_at,
            run_id: run.run_id,
            agent_id: run.agent_id,
        });
        self.feed(ThreadEvent::Found { suspended, parked: ids });
    }

    fn found(&mut self, entries: Vec<InboxEntry>, runs: Vec<RunRecord>, leased: bool) {
        let inputs = entries.into_iter().map(Input::of_journal);
        let runs = runs.into_iter().map(|run| RecoveredRun { run_id: run.run_id, agent_id: run.agent_id });
        let event = ThreadEvent::Recovered { inputs: inputs.collect(), runs: runs.collect(), leased };
        self.feed(event);
    }

    fn appended(&mut self, entries: Vec<InboxEntry>, result: Result<Accepted, StorageError>) {
        let accepted = match result {
            Ok(accepted) => accepted,
            Err(StorageError::DifferentContent { .. }) if entries.len() > 1 => {
                for entry in entries.into_iter().rev() {
                    self.process.ops.push_front(Op::Append(vec![entry]));
                }
                return;
            }
            Err(_) => {
                for entry in entries {
                    self.feed(ThreadEvent::Journaled { id: entry.signal.id, result: Journal::Failed });
                }
                return;
            }
        };
        if let Some(Lease::Held { epoch }) = accepted.lease {
            self.own(epoch, accepted.left);
        }
        for (entry, outcome) in entries.into_iter().zip(accepted.entries) {
            let result = match outcome {
                EntryOutcome::Appended { position } => Journal::Appended { position },
                EntryOutcome::Waiting { run_id } => Journal::Known { run_id: Some(run_id), waits: true },
                EntryOutcome::Placed { run_id } => Journal::Known { run_id, waits: false },
            };
            self.feed(ThreadEvent::Journaled { id: entry.signal.id, result });
        }
    }

    /// A caller's message for a plain run.
    pub(super) fn plain_message(&self, run: &RunId) -> StoredMessage {
        let id = format!("message-of-{run}").into();
        StoredMessage::text(id, Role::User, "hello", self.clock.now()).on(&self.key)
    }
}

/// The store in memory never waits.
pub(super) fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("the store in memory never waits")
}

fn short(effect: &ThreadEffect) -> String {
    match effect {
        ThreadEffect::Journal(input) => format!("journal {} as {:?}", input.id(), input.entry.mode),
        ThreadEffect::Drained { inputs, .. } => {
            let ids: Vec<&MessageId> = inputs.iter().map(Input::id).collect();
            format!("drained {ids:?}")
        }
        ThreadEffect::StartRun(start) => format!("start {} aborted {}", start.run_id, start.aborted),
        ThreadEffect::Routed { routed, .. } => format!("routed {}: {:?}", routed.signal.id, routed.action),
        ThreadEffect::UpdateJournal(entry) => format!("update {} position {}", entry.signal.id, entry.position),
        ThreadEffect::GiveUp(input) => format!("give up {}", input.id()),
        ThreadEffect::Persist { input, .. } => format!("persist {}", input.id()),
        other => format!("{other:?}"),
    }
}

struct Brief<'a>(&'a Answer);

impl std::fmt::Debug for Brief<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Answer::Appended { entries, result } => {
                let ids: Vec<&MessageId> = entries.iter().map(|entry| &entry.signal.id).collect();
                let outcomes = result.as_ref().map(|accepted| &accepted.entries);
                write!(f, "append {ids:?}: {outcomes:?}")
            }
            Answer::Recovered { entries, runs } => {
                let ids: Vec<(&MessageId, InputMode)> =
                    entries.iter().map(|entry| (&entry.signal.id, entry.mode)).collect();
                let runs: Vec<&RunId> = runs.iter().map(|run| &run.run_id).collect();
                write!(f, "left over: {ids:?}, runs {runs:?}")
            }
            other => write!(f, "{other:?}"),
        }
    }
}
