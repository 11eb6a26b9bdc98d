//! One thread in one process at a time: the store that outlives it, and what may happen next.

use std::{
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
};

use super::{
    oracle::{Oracle, Record, Stored},
    process::{Process, now},
    rng::Rng,
};
use crate::{
    id::{MessageId, RunId, ThreadKey, numbered},
    message::Role,
    run::{Decision, Resolution},
    runtime::{AbortOptions, ActiveBehavior, IdleBehavior, PromoteTo},
    signal::{Signal, SignalInput},
    storage::{InputMode, MemoryStorage, MessageQuery, ParkedQuery, Storage},
    thread::machine::ThreadEvent,
    time::{Clock, Timestamp},
};

/// A clock that stands still unless it is moved.
#[derive(Debug, Default)]
pub(super) struct ManualClock(AtomicI64);

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::Relaxed))
    }
}

impl ManualClock {
    pub(super) fn pass(&self, millis: i64) {
        self.0.fetch_add(millis, Ordering::Relaxed);
    }
}

/// A bug put in on purpose, to see that it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Sabotage {
    #[default]
    None,
    /// The first input of a drain of several is dropped.
    LoseDrained,
    /// An append is answered and not done.
    ForgetAppend,
    /// A removal from the journal is not done.
    ForgetRemoval,
    /// The end of a run is not reported.
    ForgetEnd,
    /// Drained input is drained again.
    DrainTwice,
    /// Echoes are not shown.
    HideEcho,
    /// The queue is served from its end.
    SwapAppends,
    /// A parked run is gone on with, and its rows stay.
    ForgetClaim,
}

/// How often what goes wrong, in percent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rates {
    pub(super) journal_fails: usize,
    pub(super) commit_fails: usize,
    pub(super) model_fails: usize,
    pub(super) start_fails: usize,
    pub(super) crash: usize,
    pub(super) claim_fails: usize,
    /// Calls that wait for a person.
    pub(super) parks: usize,
}

impl Rates {
    const CALM: Self =
        Self { journal_fails: 0, commit_fails: 0, model_fails: 0, start_fails: 0, crash: 0, claim_fails: 0, parks: 0 };

    fn random(rng: &mut Rng) -> Self {
        let mut rate = |high: usize| if rng.chance(40) { rng.below(high) } else { 0 };
        Self {
            journal_fails: rate(20),
            commit_fails: rate(30),
            model_fails: rate(30),
            start_fails: rate(40),
            crash: rate(4),
            claim_fails: rate(30),
            parks: rate(60),
        }
    }
}

/// The agents that share the thread.
pub(super) const AGENTS: [&str; 2] = ["ann", "bob"];
/// How long a lease holds.
pub(super) const LEASE_MS: i64 = 10_000;

/// Everything.
pub(super) struct World {
    pub(super) rng: Rng,
    pub(super) rates: Rates,
    pub(super) clock: Arc<ManualClock>,
    pub(super) storage: Arc<MemoryStorage>,
    pub(super) key: ThreadKey,
    pub(super) process: Process,
    pub(super) lives: usize,
    pub(super) oracle: Oracle,
    pub(super) ids: Vec<MessageId>,
    pub(super) sabotage: Sabotage,
    trace: Option<String>,
    /// What the last process left is read at the sweep only, or with the lease.
    unswept: bool,
}

/// What may happen next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Move {
    /// A write of the journal is done; its answer is under way.
    Write,
    /// The journal's answer arrives.
    Answer,
    /// The run goes on.
    Run,
    /// The wait before another start is over.
    Retry,
}

impl World {
    pub(super) fn new(seed: u64, traced: bool, sabotage: Sabotage) -> Self {
        numbered::start();
        let mut rng = Rng::new(seed);
        let clock = Arc::new(ManualClock::default());
        clock.pass(1_767_225_600_000);
        let storage = Arc::new(MemoryStorage::with_clock(clock.clone()));
        Self {
            rates: Rates::random(&mut rng),
            rng,
            clock,
            storage,
            key: ThreadKey::new("user", "thread"),
            process: Process::new(0),
            lives: 1,
            oracle: Oracle::default(),
            ids: Vec::new(),
            sabotage,
            trace: traced.then(String::new),
            unswept: false,
        }
    }

    /// Notes a line of the trace, if there is one.
    pub(super) fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            let _ = writeln!(trace, "{}", line());
        }
    }

    pub(super) fn take_trace(&mut self) -> String {
        self.trace.take().unwrap_or_default()
    }

    /// Plays a history to its quiet end. Gives what was wrong.
    pub(super) fn play(&mut self, wishes: usize) -> Vec<String> {
        for _ in 0..wishes {
            if self.rng.chance(self.rates.crash) {
                self.crash();
            }
            self.wish();
            // Between two wishes a little or a lot happens.
            let moves = if self.rng.chance(20) { 40 } else { self.rng.below(8) };
            for _ in 0..moves {
                if !self.step() {
                    break;
                }
                if self.rates.crash > 0 && self.rng.below(400) < self.rates.crash {
                    self.crash();
                }
                if !self.oracle.faults.is_empty() {
                    return std::mem::take(&mut self.oracle.faults);
                }
            }
        }
        self.note(|| "-- nothing more is asked, nothing more fails".to_owned());
        self.rates = Rates::CALM;
        self.settle();
        let stored = self.stored();
        self.oracle.judge(&stored, false);
        if self.oracle.faults.is_empty() {
            self.crash();
            self.settle();
            let stored = self.stored();
            self.oracle.judge(&stored, true);
        }
        std::mem::take(&mut self.oracle.faults)
    }

    /// Until nothing moves any more.
    fn settle(&mut self) {
        for _ in 0..5000 {
            if !self.step() {
                if self.decide() {
                    continue;
                }
                if std::mem::take(&mut self.unswept) {
                    self.recover();
                    continue;
                }
                if !self.process.machine.is_idle() || self.process.run.is_some() {
                    let machine = format!("the thread is stuck (SIG-453): {:?}", self.process.machine);
                    self.oracle.fault(machine);
                }
                return;
            }
            if !self.oracle.faults.is_empty() {
                return;
            }
        }
        self.oracle.fault("the thread never comes to rest (SIG-453)");
    }

    /// One thing that can happen does. `false` if nothing can.
    fn step(&mut self) -> bool {
        let mut moves = [Move::Write; 4];
        let mut count = 0;
        let mut add = |one: Move, can: bool| {
            if can {
                moves[count] = one;
                count += 1;
            }
        };
        add(Move::Write, self.process.can_write());
        add(Move::Answer, self.process.answer.is_some());
        add(Move::Run, self.run_can_go_on());
        add(Move::Retry, self.process.retry);
        if count == 0 {
            return false;
        }
        self.clock.pass(i64::from(self.rng.chance(50)));
        match moves[self.rng.below(count)] {
            Move::Write => self.write(),
            Move::Answer => self.answer(),
            Move::Run => self.run_goes_on(),
            Move::Retry => self.retry(),
        }
        self.check();
        true
    }

    /// What must hold after every transition.
    fn check(&mut self) {
        let slot = self.process.machine.active_run().cloned();
        let live = self.process.run.as_ref().map(|run| run.id.clone());
        // SIG-450: what runs is what occupies the thread.
        if let Some(live) = &live
            && slot.as_ref() != Some(live)
        {
            self.oracle.fault(format!("run {live} goes on, and the thread is given to {slot:?} (SIG-450)"));
        }
        // An input is in one list at most, and in none while a run holds it.
        let mut waiting: Vec<MessageId> =
            self.process.machine.waiting().into_iter().map(|(_, _, input)| input.id().clone()).collect();
        if let Some(run) = &self.process.run {
            waiting.extend(run.in_hand.iter().map(|input| input.id().clone()));
        }
        waiting.sort_unstable();
        if let Some([twice, _]) = waiting.array_windows().find(|[one, next]| one == next) {
            let text = format!("{twice} waits twice (SIG-451)");
            self.oracle.fault(text);
        }
        if self.process.machine.is_idle() && live.is_some() {
            self.oracle.fault("the thread is idle and a run goes on (SIG-452)");
        }
    }

    /// The process dies; another takes over.
    fn crash(&mut self) {
        self.note(|| "-- kill -9".to_owned());
        self.clock.pass(LEASE_MS + 1);
        if let Some(run) = &self.process.run {
            // What is never stored dies with the run that saw it (SIG-025).
            let placed = self.oracle.run(&run.id).placed.clone();
            for id in placed {
                let record = self.record(&id);
                record.unclear |= record.transient;
            }
        }
        // A write that was under way may have happened or not: both are decided before (see `Blocked::Commit`).
        self.process = Process::new(self.lives);
        self.lives += 1;
        self.unswept = self.rng.chance(50);
        if self.unswept {
            // Another process that lives already is asked for something first: it learns of it with the lease (SIG-502).
            return;
        }
        self.recover();
        // As a runtime starts: what was left is read before anybody is served.
        self.write();
        self.answer();
    }

    pub(super) fn stored(&self) -> Stored {
        let query = MessageQuery { thread_ids: vec!["thread".to_owned()], per_page: None, ..MessageQuery::default() };
        let page = now(self.storage.list_messages(query));
        let rows = page.map(|page| page.items).unwrap_or_default();
        let waiting = now(self.storage.inbox(&self.key)).unwrap_or_default();
        let runs = now(self.storage.runs(&self.key)).unwrap_or_default();
        Stored {
            rows: rows
                .iter()
                .filter(|row| row.role == Role::Signal)
                .map(|row| (row.id.clone(), row.joined_text()))
                .collect(),
            waiting: waiting.into_iter().map(|entry| entry.signal.id).collect(),
            runs: runs.len(),
        }
    }

    /// Somebody wants something.
    fn wish(&mut self) {
        match self.rng.below(100) {
            0..=37 => self.wish_send(InputMode::Steer),
            38..=58 => self.wish_send(InputMode::Queue),
            59..=65 => self.wish_again(),
            66..=75 => self.wish_cancel(),
            76..=83 => self.wish_abort(),
            84..=86 => self.wish_promote(),
            87..=88 => {
                self.decide();
            }
            89..=92 => self.wish_edit(),
            _ => {
                let agent = self.an_agent();
                let continuation = self.rng.chance(25);
                self.direct(agent, continuation);
            }
        }
        self.check();
    }

    /// A person decides about a run that waits, or gives it up; or its time here is over. `false` if none waits.
    fn decide(&mut self) -> bool {
        let parked = now(self.storage.list_parked(ParkedQuery::default())).map(|page| page.items).unwrap_or_default();
        if parked.is_empty() {
            return false;
        }
        let run = parked[self.rng.below(parked.len())].clone();
        let what = match self.rng.below(10) {
            0 => Resolution::Discard,
            1 if self.process.machine.suspended().is_some_and(|suspended| suspended.run_id == run.run_id) => {
                self.note(|| format!("{} has had its time", run.run_id));
                self.feed(ThreadEvent::Evicted { run_id: run.run_id });
                return true;
            }
            2..=4 => Resolution::Decide(Decision::decline(None, None)),
            _ => Resolution::Decide(Decision::approve(None)),
        };
        self.note(|| format!("decide about {}: {what:?}", run.run_id));
        self.resume(run.run_id, run.agent_id, what);
        true
    }

    fn an_agent(&mut self) -> usize {
        usize::from(self.rng.chance(20))
    }

    fn wish_send(&mut self, mode: InputMode) {
        let id: MessageId = format!("s{:03}", self.ids.len()).into();
        let agent = self.an_agent();
        let transient = mode == InputMode::Steer && self.rng.chance(6);
        let text = format!("text of {id}");
        let record = Record { sequence: self.ids.len(), agent, text, transient, ..Record::default() };
        self.oracle.inputs.insert(id.clone(), record);
        self.ids.push(id.clone());
        let active = match self.rng.below(20) {
            0 => ActiveBehavior::Persist,
            1 => ActiveBehavior::Discard,
            2 => ActiveBehavior::Interrupt,
            3 => ActiveBehavior::Rollback,
            _ => ActiveBehavior::Deliver,
        };
        let idle = match self.rng.below(20) {
            0 => IdleBehavior::Persist,
            1 => IdleBehavior::Discard,
            _ => IdleBehavior::Wake,
        };
        let by_run = self.rng.chance(10);
        if matches!(active, ActiveBehavior::Interrupt | ActiveBehavior::Rollback) {
            self.record(&id).jumps = true;
        }
        self.send(&id, mode, (active, idle), by_run);
    }

    /// A sender that lost the answer sends once more, with the same id.
    fn wish_again(&mut self) {
        if self.ids.is_empty() {
            return;
        }
        let id = self.rng.pick(&self.ids).clone();
        let record = &self.oracle.inputs[&id];
        let over = record.leaving
            || record.cancelled
            || record.cleared
            || record.rolled_back
            || record.edited
            || record.given_up;
        let kept = !record.transient && record.persisted.is_none() && record.mode.is_some();
        if over || !kept {
            return;
        }
        let mode = record.mode.unwrap_or(InputMode::Steer);
        self.send(&id, mode, (ActiveBehavior::Deliver, IdleBehavior::Wake), false);
    }

    pub(super) fn record(&mut self, id: &MessageId) -> &mut Record {
        self.oracle.inputs.entry(id.clone()).or_default()
    }

    /// The signal with this id, as its sender says it.
    pub(super) fn signal(&self, id: &MessageId) -> Signal {
        let record = &self.oracle.inputs[id];
        let kind = if id.bytes().last().is_some_and(|last| last % 3 == 0) { "notification" } else { "user" };
        let mut input = SignalInput::new(kind, record.text.as_str());
        input.id = Some(id.clone());
        input.transient = record.transient.then_some(true);
        let now = self.clock.now();
        let mut signal = input.normalise(MessageId::fresh, now).expect("it is right");
        signal.accepted_at = Some(now);
        signal
    }

    fn wish_cancel(&mut self) {
        if self.rng.chance(15) {
            let agent = self.an_agent();
            return self.cancel_group(agent);
        }
        let mut ids = Vec::new();
        for _ in 0..=self.rng.below(2) {
            if !self.ids.is_empty() {
                // Mostly the newer ones, which still wait.
                let newest = self.ids.len().min(6);
                let at = self.ids.len() - 1 - self.rng.below(newest);
                ids.push(self.ids[at].clone());
            }
        }
        self.cancel(ids);
    }

    fn wish_abort(&mut self) {
        let active = self.process.machine.active_run().cloned();
        let expected_run_id = match self.rng.below(4) {
            0 => active,
            1 => Some(RunId::from("stale")),
            _ => None,
        };
        let clear_pending_signals = self.rng.chance(35);
        self.abort(AbortOptions { clear_pending_signals, expected_run_id });
    }

    fn a_recent(&mut self) -> Option<MessageId> {
        let newest = self.ids.len().min(8);
        (newest > 0).then(|| self.ids[self.ids.len() - 1 - self.rng.below(newest)].clone())
    }

    fn wish_promote(&mut self) {
        let Some(id) = self.a_recent() else { return };
        let to = if self.rng.chance(50) { PromoteTo::Run } else { PromoteTo::Front };
        self.promote(id, to);
    }

    fn wish_edit(&mut self) {
        let Some(id) = self.a_recent() else { return };
        self.edit(id);
    }
}
