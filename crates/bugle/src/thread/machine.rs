//! What happens to one thread: the decisions, without IO, clock or `.await` (SIG §7, §12 to §14, §20).
//!
//! Owns the run slot and the lists of input. Knows no storage, model or channel: it says what is to be done as effects,
//! and is told of the results as events. The order of events is the order the spec speaks of.
//!
//! Invariants (SIG-450 to 454): at most one run in the slot; an input is in at most one list; queued input keeps its
//! order; only the end of the run in the slot frees it; an input that is not journaled is not taken by a run.

use std::collections::VecDeque;

use indexmap::IndexMap;
use smallvec::SmallVec;

use super::{
    hub::QueueGroup,
    input::{Input, Routed, Send, Ticket},
};
use crate::{
    id::{MessageId, RunId},
    runtime::{AbortOptions, Action, ActiveBehavior, IdleBehavior, PendingMode, PromoteTo},
    signal::{Attributes, Contents, Signal},
    storage::{InboxEnd, InboxEntry, InputMode},
};

/// Entries a thread may hold (SIG-509).
pub(crate) const INBOX_ENTRIES: usize = 1000;
/// Bytes a thread may hold (SIG-509).
pub(crate) const INBOX_BYTES: usize = 8 * 1024 * 1024;
/// After so many failed starts an input is given up (SIG-255).
const START_ATTEMPTS: u32 = 3;

/// What has happened.
#[derive(Debug)]
pub(crate) enum ThreadEvent {
    /// Input is handed over; `mode` of its entry says whether it steers or queues.
    Send(Box<Send>),
    /// The journal has answered for one input.
    Journaled { id: MessageId, result: Journal },
    /// The lease that was claimed for a run without input.
    Claimed(Result<(), ClaimFailed>),
    /// A plain run asks for its turn.
    Direct { run_id: RunId, agent_id: String, continuation: bool },
    /// The caller of a direct run that may still wait has left.
    Withdrawn { run_id: RunId },
    /// The run in the slot takes what waits for it; one that is `stopping` only what started it.
    Drain { run_id: RunId, stopping: bool, ticket: Ticket },
    /// A run has ended; `returned` was taken but not placed.
    RunEnded { run_id: RunId, returned: Vec<Input>, failed_to_start: bool },
    /// The run in the slot, about to be reported as ended, panicked: what it took is read anew from the journal.
    Crashed { run_id: RunId },
    /// The record that the run in the slot, about to be reported as ended, starts from could not be read for now.
    Deferred { run_id: RunId },
    /// A waiting input could not be rewritten; it is read anew from the journal.
    Reread { id: MessageId },
    /// The thread belongs to another resource: what waits can never run.
    Unownable,
    /// Another process owns the thread, or has owned it since: the journal is its, and so is `run_id`'s record.
    LeaseLost { run_id: Option<RunId> },
    /// Take back these.
    Cancel { ticket: Ticket, ids: Vec<MessageId> },
    /// Take back the queued entries of this agent's group.
    CancelGroup { ticket: Ticket, agent_id: String, group: String },
    /// Stop the run.
    Abort { ticket: Ticket, options: AbortOptions },
    /// Move a queued input (ruling 23).
    Promote { ticket: Ticket, id: MessageId, to: PromoteTo },
    /// Change a queued input (HTTP-242).
    Edit { ticket: Ticket, id: MessageId, contents: Option<Contents>, attributes: Option<Attributes> },
    /// What an earlier process left (SIG-502).
    Recovered { inputs: Vec<Input>, runs: Vec<RecoveredRun> },
    /// The wait before another start is over.
    RetryDue,
}

/// A run that an earlier process left.
#[derive(Debug, Clone)]
pub(crate) struct RecoveredRun {
    pub(crate) run_id: RunId,
    pub(crate) agent_id: String,
}

/// The journal's answer.
#[derive(Debug)]
pub(crate) enum Journal {
    /// Appended, at this place; the thread is ours.
    Appended { position: i64 },
    /// The same input was accepted before and is known to the store.
    Known {
        run_id: Option<RunId>,
        /// It still waits in the journal; else it was placed.
        waits: bool,
    },
    /// Refused or failed.
    Failed,
}

/// Why a claim failed; the actor keeps the error.
#[derive(Debug)]
pub(crate) struct ClaimFailed;

/// What is to be done, in order.
#[derive(Debug)]
pub(crate) enum ThreadEffect {
    /// Append to the journal and claim the lease; answer with [`ThreadEvent::Journaled`].
    Journal(Box<Input>),
    /// Claim the lease; answer with [`ThreadEvent::Claimed`].
    Claim,
    /// Start the run in the slot.
    StartRun(StartRun),
    /// Tell the run that input waits.
    Nudge { interrupt: bool },
    /// Stop the run.
    AbortRun { rollback: bool },
    /// Give the run what it asked for.
    Drained { ticket: Ticket, inputs: Vec<Input> },
    /// Tell the sender what became of its input.
    Routed { ticket: Ticket, routed: Box<Routed> },
    /// Tell the sender that its input was refused.
    Refused { ticket: Ticket, why: Refusal },
    /// Tell the senders what the journal said went wrong with `id`.
    JournalRefused { tickets: Vec<Ticket>, id: MessageId },
    /// Tell a plain run's caller that the claim failed.
    DirectRefused { run_id: RunId },
    /// Write the input as a row of its own, echo it if asked to, and answer its `persisted`.
    Persist { ticket: Ticket, input: Box<Input>, echo: bool },
    /// Store the input unanswered and say so to subscribers (SIG-255).
    GiveUp(Box<Input>),
    /// Take entries out of the journal.
    RemoveJournal { ids: Vec<MessageId>, why: InboxEnd },
    /// Rewrite an entry of the journal.
    UpdateJournal(Box<InboxEntry>),
    /// Answer a cancel.
    Cancelled { ticket: Ticket, ids: Vec<MessageId> },
    /// Answer an abort.
    Aborted { ticket: Ticket, stopped: bool },
    /// Answer a promotion.
    Promoted { ticket: Ticket, run_id: RunId, to: PromoteTo },
    /// Answer an edit.
    Edited { ticket: Ticket, signal: Box<Signal> },
    /// Send [`ThreadEvent::RetryDue`] after the wait for this many failed starts.
    RetryAfter { attempts: u32 },
}

/// Why input was refused by the machine itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// SIG-509.
    Limit,
    /// SIG-503.
    DifferentContent(MessageId),
    /// Taken by a run already.
    Taken(MessageId, RunId),
    /// No such input.
    Unknown(MessageId),
}

/// A run to start.
#[derive(Debug)]
pub(crate) struct StartRun {
    pub(crate) run_id: RunId,
    pub(crate) agent_id: String,
    pub(crate) source: RunSource,
    /// It was stopped before it began (SIG-308).
    pub(crate) aborted: bool,
    /// Stopped by an input that wants it undone (ruling 24).
    pub(crate) rollback: bool,
}

/// What a run starts from.
#[derive(Debug)]
pub(crate) enum RunSource {
    /// Input that waits in the slot; the first one brought the options.
    Input(Box<Input>),
    /// A plain run that asked for its turn.
    Direct,
    /// The record of an earlier process.
    Record,
}

/// Where the run in the slot stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// Reserved; waits for journal or lease.
    Reserved,
    /// Started; its first request is not built.
    Preparing,
    /// Has taken in input.
    Running,
    /// Asked to stop.
    Stopping,
}

#[derive(Debug)]
struct Slot {
    run_id: RunId,
    agent_id: String,
    state: SlotState,
    source: SlotSource,
    aborted: bool,
    rollback: bool,
    /// What the run has taken in; until it is placed, no list and no row holds it (SIG-503).
    taken: IndexMap<MessageId, Signal>,
}

impl Slot {
    fn reserved(run_id: RunId, agent_id: String, source: SlotSource) -> Self {
        let state = SlotState::Reserved;
        Self { run_id, agent_id, state, source, aborted: false, rollback: false, taken: IndexMap::new() }
    }
}

#[derive(Debug)]
enum SlotSource {
    /// The wake input and those that joined before the run began.
    Input(VecDeque<Input>),
    Direct,
    Record,
}

/// A queued turn.
#[derive(Debug)]
enum Turn {
    Input(Input),
    Direct { run_id: RunId, agent_id: String },
}

/// An input whose sender waits for the journal.
#[derive(Debug)]
struct Accepting {
    ticket: Ticket,
    /// Others who have sent the same input meanwhile (SIG-503).
    more: Vec<Ticket>,
    action: Action,
    run_id: RunId,
    signal: Signal,
    /// Once it is durable, it stops this run, and rolls it back if `true` (ruling 24).
    stops: Option<(RunId, bool)>,
}

/// The thread.
#[derive(Debug, Default)]
pub(crate) struct ThreadMachine {
    slot: Option<Slot>,
    pending: VecDeque<Input>,
    continuations: VecDeque<Turn>,
    queue: VecDeque<Turn>,
    recovered: VecDeque<RecoveredRun>,
    accepting: IndexMap<MessageId, Accepting>,
    /// A run's request for input that waits for the journal.
    draining: Option<Ticket>,
    /// The thread's lease is ours.
    leased: bool,
    claiming: bool,
    /// Starting waits for a timer after failures.
    resting: bool,
    /// Inputs that runs before this one took, for "already taken" (ruling 23).
    taken: VecDeque<(MessageId, RunId)>,
    /// Runs that have ended lately: a look at the store that overlapped their end does not revive them.
    ended: VecDeque<RunId>,
    /// The run in the slot is at its end because the thread was lost; its record is to be gone on with.
    fenced: Option<RunId>,
    /// What runs that panicked had taken: counted as failed starts when the journal still has it.
    crashed: Vec<MessageId>,
    /// The record of the run in the slot is to be tried again.
    deferred: Option<RunId>,
    /// The process drains: nothing is started, all stays for the next owner (CLI-072).
    held: bool,
}

/// The newest taken inputs that are kept in mind: as many as may wait at once.
const TAKEN: usize = INBOX_ENTRIES;
/// The newest ended runs that are kept in mind.
const ENDED: usize = 64;

type Effects = SmallVec<[ThreadEffect; 4]>;

impl ThreadMachine {
    /// Takes in an event and says what is to be done.
    pub(crate) fn apply(&mut self, event: ThreadEvent) -> Effects {
        let mut effects = Effects::new();
        match event {
            ThreadEvent::Send(send) => self.send(*send, &mut effects),
            ThreadEvent::Journaled { id, result } => self.journaled(&id, result, &mut effects),
            ThreadEvent::Claimed(result) => self.claimed(result.is_ok(), &mut effects),
            ThreadEvent::Direct { run_id, agent_id, continuation } => {
                let list = if continuation { &mut self.continuations } else { &mut self.queue };
                list.push_back(Turn::Direct { run_id, agent_id });
            }
            ThreadEvent::Withdrawn { run_id: left } => {
                let is_it = |turn: &Turn| matches!(turn, Turn::Direct { run_id, .. } if *run_id == left);
                let waiting = self.continuations.len() + self.queue.len();
                self.continuations.retain(|turn| !is_it(turn));
                self.queue.retain(|turn| !is_it(turn));
                // One that has begun stops by itself.
                if self.continuations.len() + self.queue.len() < waiting {
                    effects.push(ThreadEffect::DirectRefused { run_id: left });
                }
            }
            ThreadEvent::Drain { run_id, stopping, ticket } => {
                if stopping && let Some(slot) = self.slot.as_mut().filter(|slot| slot.run_id == run_id) {
                    slot.state = SlotState::Stopping;
                }
                self.drain(&run_id, ticket, &mut effects);
            }
            ThreadEvent::RunEnded { run_id, returned, failed_to_start } => {
                self.run_ended(&run_id, returned, failed_to_start, &mut effects);
            }
            ThreadEvent::Crashed { run_id } => {
                if let Some(slot) = self.slot.as_mut().filter(|slot| slot.run_id == run_id) {
                    self.crashed.extend(std::mem::take(&mut slot.taken).into_keys());
                }
            }
            ThreadEvent::Reread { id } => drop(self.take_waiting(&id)),
            ThreadEvent::Unownable => self.give_all_up(&mut effects),
            ThreadEvent::Deferred { run_id } => self.deferred = Some(run_id),
            ThreadEvent::Cancel { ticket, ids } => {
                let removed: Vec<MessageId> = ids.into_iter().filter(|id| self.take_waiting(id).is_some()).collect();
                self.removed(ticket, removed, &mut effects);
            }
            ThreadEvent::CancelGroup { ticket, agent_id, group } => {
                let in_group = |input: &Input| {
                    input.entry.agent_id == agent_id && input.entry.queue_owner_id.as_deref() == Some(&group)
                };
                let ids: Vec<MessageId> =
                    self.queued().filter(|input| in_group(input)).map(|input| input.id().clone()).collect();
                let removed = ids.into_iter().filter(|id| self.take_waiting(id).is_some()).collect();
                self.removed(ticket, removed, &mut effects);
            }
            ThreadEvent::LeaseLost { run_id } => self.lease_lost(run_id.as_ref()),
            ThreadEvent::Abort { ticket, options } => self.abort(ticket, &options, &mut effects),
            ThreadEvent::Promote { ticket, id, to } => self.promote(ticket, &id, to, &mut effects),
            ThreadEvent::Edit { ticket, id, contents, attributes } => {
                self.edit(ticket, &id, contents, attributes, &mut effects);
            }
            ThreadEvent::Recovered { inputs, runs } => self.recover(inputs, runs, &mut effects),
            ThreadEvent::RetryDue => self.resting = false,
        }
        self.start_next(&mut effects);
        // A sender that is told of its run finds it (SIG-151).
        effects.sort_by_key(
            |effect| matches!(effect, ThreadEffect::Routed { routed, .. } if routed.action == Action::Wake),
        );
        effects
    }

    /// The lease was given up; the next run claims it again.
    pub(crate) fn lease_gone(&mut self) {
        self.leased = false;
    }

    /// Starts nothing while `held`.
    pub(crate) fn hold(&mut self, held: bool) {
        self.held = held;
    }

    /// What the journal holds is its new owner's to answer; only that may be forgotten here.
    fn lease_lost(&mut self, fenced: Option<&RunId>) {
        self.leased = false;
        self.recovered.clear();
        self.pending.retain(|input| !input.journaled);
        self.queue.retain(|turn| !matches!(turn, Turn::Input(input) if input.journaled));
        if let Some(fenced) = fenced {
            self.fenced = Some(fenced.clone());
            if let Some(Slot { run_id, source: SlotSource::Input(inputs), .. }) = &mut self.slot
                && run_id == fenced
            {
                inputs.retain(|input| !input.journaled);
            }
            // If the thread comes back to us, the journal says what the run had not placed.
            if let Some(slot) = self.slot.as_mut().filter(|slot| slot.run_id == *fenced) {
                slot.taken.clear();
            }
        }
    }

    /// Options of the run that is about to start; what is accepted meanwhile takes them over (SIG-252).
    pub(crate) fn reserved_options(&self) -> Option<std::sync::Arc<crate::run::RunOptions>> {
        let slot = self.slot.as_ref().filter(|slot| slot.state == SlotState::Reserved)?;
        match &slot.source {
            SlotSource::Input(inputs) => inputs.front().map(|input| input.options.clone()),
            _ => None,
        }
    }

    /// Queued entries by agent and group, in order of first appearance (SIG-266).
    pub(crate) fn queue_groups(&self) -> Vec<QueueGroup> {
        let mut groups: Vec<QueueGroup> = Vec::new();
        let acquiring = match &self.slot {
            Some(Slot { state: SlotState::Reserved, source: SlotSource::Input(inputs), .. }) => {
                inputs.front().filter(|input| input.entry.mode == InputMode::Queue)
            }
            _ => None,
        };
        for InboxEntry { agent_id, queue_owner_id, .. } in acquiring.into_iter().chain(self.queued()).map(|i| &i.entry)
        {
            let Some(group) = queue_owner_id else { continue };
            match groups.iter_mut().find(|known| known.agent_id == *agent_id && known.group == *group) {
                Some(known) => known.count += 1,
                None => groups.push(QueueGroup { agent_id: agent_id.clone(), group: group.clone(), count: 1 }),
            }
        }
        groups
    }

    /// Nothing runs and nothing waits (state I of SIG §20).
    pub(crate) fn is_idle(&self) -> bool {
        self.slot.is_none()
            && self.pending.is_empty()
            && self.continuations.is_empty()
            && self.queue.is_empty()
            && self.recovered.is_empty()
            && self.accepting.is_empty()
            && !self.claiming
    }

    /// The run that occupies the thread.
    pub(crate) fn active_run(&self) -> Option<&RunId> {
        self.slot.as_ref().map(|slot| &slot.run_id)
    }

    /// Entries that get a run of their own, the one that waits for the lease included (SIG-266).
    pub(crate) fn queue_count(&self) -> usize {
        let acquiring = self.slot.as_ref().is_some_and(|slot| {
            slot.state == SlotState::Reserved
                && matches!(&slot.source, SlotSource::Input(inputs)
                    if inputs.front().is_some_and(|input| input.entry.mode == InputMode::Queue))
        });
        self.queued().count() + usize::from(acquiring)
    }

    /// What waits, in the order it will be taken (SIG-162, SIG-269).
    pub(crate) fn waiting(&self) -> Vec<(PendingMode, Option<RunId>, &Input)> {
        let run = self.slot.as_ref().map(|slot| slot.run_id.clone());
        let joining = match self.slot.as_ref().map(|slot| &slot.source) {
            Some(SlotSource::Input(inputs)) => inputs.iter().skip(1).collect(),
            _ => Vec::new(),
        };
        let mode = if self.is_preparing() { PendingMode::PreRun } else { PendingMode::Pending };
        joining
            .into_iter()
            .map(|input| (PendingMode::PreRun, run.clone(), input))
            .chain(self.pending.iter().map(|input| (mode, run.clone(), input)))
            .chain(self.queued().map(|input| (PendingMode::Queue, Some(input.entry.run_id.clone()), input)))
            .collect()
    }

    fn is_preparing(&self) -> bool {
        self.slot.as_ref().is_some_and(|slot| matches!(slot.state, SlotState::Reserved | SlotState::Preparing))
    }

    fn queued(&self) -> impl Iterator<Item = &Input> {
        self.queue.iter().filter_map(|turn| match turn {
            Turn::Input(input) => Some(input),
            Turn::Direct { .. } => None,
        })
    }

    fn inputs(&self) -> impl Iterator<Item = &Input> {
        let joining = match self.slot.as_ref().map(|slot| &slot.source) {
            Some(SlotSource::Input(inputs)) => Some(inputs.iter()),
            _ => None,
        };
        joining.into_iter().flatten().chain(&self.pending).chain(self.queued())
    }

    fn send(&mut self, send: Send, effects: &mut Effects) {
        let Send { ticket, mut input, active, idle, active_attributes, idle_attributes, by_run } = send;
        // The same id again: the original outcome, no second run (SIG-503).
        let known = self.inputs().find(|known| known.id() == input.id());
        let known = known.map(|known| (known.entry.signal.clone(), self.expected_run(known)));
        if let Some((signal, run_id)) = known {
            if !signal.same_content(&input.entry.signal) {
                effects.push(ThreadEffect::Refused { ticket, why: Refusal::DifferentContent(signal.id) });
            } else if let Some(accepting) = self.accepting.get_mut(&signal.id) {
                // Neither is told before it is durable.
                accepting.more.push(ticket);
            } else {
                let routed = Routed { action: Action::Deliver, run_id: Some(run_id), signal, waiting_for: None };
                effects.push(ThreadEffect::Routed { ticket, routed: Box::new(routed) });
            }
            return;
        }
        if let Some(slot) = &self.slot
            && let Some(signal) = slot.taken.get(input.id())
        {
            effects.push(if signal.same_content(&input.entry.signal) {
                let run_id = Some(slot.run_id.clone());
                let routed = Routed { action: Action::Deliver, run_id, signal: signal.clone(), waiting_for: None };
                ThreadEffect::Routed { ticket, routed: Box::new(routed) }
            } else {
                ThreadEffect::Refused { ticket, why: Refusal::DifferentContent(input.id().clone()) }
            });
            return;
        }
        let queue = input.entry.mode == InputMode::Queue;
        let own = self.slot.as_ref().map(|slot| slot.agent_id == input.entry.agent_id);
        // Another agent's run is active for those who address it, idle for those who address the thread (SIG §7).
        let is_active = own == Some(true) || (own == Some(false) && by_run);
        let branch = if is_active { &active_attributes } else { &idle_attributes };
        input.entry.signal = input.entry.signal.with_branch(branch.as_ref());
        input.measure();
        let settle = |action, run_id: Option<RunId>, signal: &Signal| {
            let routed = Routed { action, run_id, signal: signal.clone(), waiting_for: None };
            ThreadEffect::Routed { ticket, routed: Box::new(routed) }
        };
        let (persists, discards) = if queue {
            (false, false)
        } else if is_active {
            (active == ActiveBehavior::Persist, active == ActiveBehavior::Discard)
        } else {
            (idle == IdleBehavior::Persist, idle == IdleBehavior::Discard)
        };
        // A transient signal is never stored (SIG-027).
        if discards || (persists && input.entry.signal.transient) {
            effects.push(settle(Action::Discard, None, &input.entry.signal));
            return;
        }
        if persists {
            effects.push(settle(Action::Persist, None, &input.entry.signal));
            effects.push(ThreadEffect::Persist { ticket, input: Box::new(input), echo: !is_active });
            return;
        }
        if own == Some(false) && by_run && !queue {
            let blocker = self.active_run().cloned();
            effects.push(settle(Action::Blocked, blocker, &input.entry.signal));
            return;
        }
        let (count, bytes) = self.inputs().fold((0, 0), |(count, bytes), held| (count + 1, bytes + held.size()));
        if count >= INBOX_ENTRIES || bytes + input.size() > INBOX_BYTES {
            effects.push(ThreadEffect::Refused { ticket, why: Refusal::Limit });
            return;
        }
        self.place(ticket, input, own, active, effects);
    }

    /// Puts accepted input into its list and has it journaled.
    fn place(
        &mut self,
        ticket: Ticket,
        mut input: Input,
        own: Option<bool>,
        active: ActiveBehavior,
        effects: &mut Effects,
    ) {
        let queue = input.entry.mode == InputMode::Queue;
        // New input is a reason to try again what could not start (SIG-255).
        self.resting = false;
        let stops_run = matches!(active, ActiveBehavior::Interrupt | ActiveBehavior::Rollback);
        let (action, run_id) = match own {
            None if self.nothing_waits() => (Action::Wake, input.entry.run_id.clone()),
            None => (Action::Deliver, input.entry.run_id.clone()),
            // The run that follows the stopped one is its own (ruling 24).
            Some(true) if !queue && stops_run => (Action::Deliver, input.entry.run_id.clone()),
            Some(true) if !queue => {
                input.joined = true;
                let run_id = self.active_run().cloned().unwrap_or_else(|| input.entry.run_id.clone());
                input.entry.run_id = run_id.clone();
                (Action::Deliver, run_id)
            }
            Some(_) => (Action::Deliver, input.entry.run_id.clone()),
        };
        let signal = input.entry.signal.clone();
        let stops = match active {
            ActiveBehavior::Interrupt | ActiveBehavior::Rollback if own == Some(true) && !queue => {
                self.active_run().map(|run| (run.clone(), active == ActiveBehavior::Rollback))
            }
            _ => None,
        };
        let accepting = Accepting { ticket, more: Vec::new(), action, run_id, signal, stops };
        self.accepting.insert(input.id().clone(), accepting);
        let steers = own == Some(true) && !queue;
        if !steers {
            input.entry.mode = if own.is_none() { input.entry.mode } else { InputMode::Queue };
        }
        effects.push(ThreadEffect::Journal(Box::new(input.clone())));
        if own.is_none() && self.nothing_waits() {
            let (run_id, agent_id) = (input.entry.run_id.clone(), input.entry.agent_id.clone());
            self.slot = Some(Slot::reserved(run_id, agent_id, SlotSource::Input(VecDeque::from([input]))));
        } else if own.is_none() && !queue {
            // Nothing runs, but something is about to: this joins what runs next.
            self.pending.push_back(input);
        } else if !steers {
            self.queue.push_back(Turn::Input(input));
        } else {
            match active {
                ActiveBehavior::Interrupt | ActiveBehavior::Rollback => self.pending.push_front(input),
                _ => {
                    let slot = self.slot.as_mut().expect("an own run is active");
                    match &mut slot.source {
                        SlotSource::Input(inputs)
                            if matches!(slot.state, SlotState::Reserved | SlotState::Preparing) =>
                        {
                            inputs.push_back(input);
                        }
                        _ => {
                            let interrupt = may_interrupt(&input);
                            self.pending.push_back(input);
                            if slot.state == SlotState::Running {
                                effects.push(ThreadEffect::Nudge { interrupt });
                            }
                        }
                    }
                }
            }
        }
    }

    fn nothing_waits(&self) -> bool {
        self.slot.is_none()
            && self.pending.is_empty()
            && self.continuations.is_empty()
            && self.queue.is_empty()
            && self.recovered.is_empty()
            && !self.claiming
    }

    fn expected_run(&self, input: &Input) -> RunId {
        match (&self.slot, input.entry.mode) {
            (Some(slot), InputMode::Steer) if slot.agent_id == input.entry.agent_id => slot.run_id.clone(),
            _ => input.entry.run_id.clone(),
        }
    }

    fn journaled(&mut self, id: &MessageId, result: Journal, effects: &mut Effects) {
        let accepting = self.accepting.shift_remove(id);
        let durable = matches!(result, Journal::Appended { .. } | Journal::Known { waits: true, .. });
        let stops = accepting.as_ref().and_then(|accepting| accepting.stops.clone()).filter(|_| durable);
        match result {
            Journal::Appended { position } => {
                self.leased = true;
                if let Some(input) = self.input_mut(id) {
                    input.journaled = true;
                    if input.entry.position == 0 {
                        input.entry.position = position;
                    }
                    if std::mem::take(&mut input.rewrite) {
                        effects.push(ThreadEffect::UpdateJournal(Box::new(input.entry.clone())));
                    }
                }
                // One that was cancelled meanwhile keeps its outcome (SIG-153); its removal follows the append.
                Self::accepted(accepting, None, effects);
            }
            // An append that failed by its answer had happened; nobody else holds the entry, so it is this one.
            Journal::Known { waits: true, .. } => {
                self.leased = true;
                if let Some(input) = self.input_mut(id) {
                    input.journaled = true;
                    if std::mem::take(&mut input.rewrite) {
                        effects.push(ThreadEffect::UpdateJournal(Box::new(input.entry.clone())));
                    }
                }
                Self::accepted(accepting, None, effects);
            }
            Journal::Known { run_id, waits: false } => {
                self.leased = true;
                self.discard_unjournaled(id);
                Self::accepted(accepting, Some((Action::Deliver, run_id)), effects);
            }
            Journal::Failed => {
                self.discard_unjournaled(id);
                if let Some(Accepting { ticket, more, .. }) = accepting {
                    let tickets = std::iter::once(ticket).chain(more).collect();
                    effects.push(ThreadEffect::JournalRefused { tickets, id: id.clone() });
                }
            }
        }
        if let Some((run_id, rollback)) = stops
            && self.active_run() == Some(&run_id)
            && self.pending.iter().any(|input| input.id() == id)
        {
            self.stop_run(rollback, effects);
        }
        if let Some(ticket) = self.draining
            && let Some(run_id) = self.active_run().cloned()
        {
            self.draining = None;
            self.drain(&run_id, ticket, effects);
        }
    }

    /// Tells all who have sent an input what became of it; `known` if it was accepted before.
    fn accepted(accepting: Option<Accepting>, known: Option<(Action, Option<RunId>)>, effects: &mut Effects) {
        let Some(Accepting { ticket, more, action, run_id, signal, .. }) = accepting else { return };
        let (action, known_run) = known.unwrap_or((action, None));
        let run_id = Some(known_run.unwrap_or(run_id));
        let mut tell = |ticket, action| {
            let routed = Routed { action, run_id: run_id.clone(), signal: signal.clone(), waiting_for: None };
            effects.push(ThreadEffect::Routed { ticket, routed: Box::new(routed) });
        };
        tell(ticket, action);
        for ticket in more {
            tell(ticket, Action::Deliver);
        }
    }

    /// Takes an input that the journal refused out of its list. The run reserved for it is off; what joined it goes on.
    fn discard_unjournaled(&mut self, id: &MessageId) -> Option<Input> {
        if let Some(slot) = &mut self.slot
            && slot.state == SlotState::Reserved
            && let SlotSource::Input(inputs) = &mut slot.source
            && let Some(at) = inputs.iter().position(|input| input.id() == id)
        {
            let refused = inputs.remove(at);
            if at == 0 {
                let mut joined = std::mem::take(inputs);
                self.slot = None;
                while let Some(input) = joined.pop_back() {
                    self.pending.push_front(input);
                }
            }
            return refused;
        }
        self.take_waiting(id)
    }

    fn input_mut(&mut self, id: &MessageId) -> Option<&mut Input> {
        let joining = match self.slot.as_mut().map(|slot| &mut slot.source) {
            Some(SlotSource::Input(inputs)) => Some(inputs.iter_mut()),
            _ => None,
        };
        let queued = self.queue.iter_mut().filter_map(|turn| match turn {
            Turn::Input(input) => Some(input),
            Turn::Direct { .. } => None,
        });
        joining.into_iter().flatten().chain(&mut self.pending).chain(queued).find(|input| input.id() == id)
    }

    /// Takes an input out of whatever list it waits in; the wake input of a run does not wait (SIG-281).
    fn take_waiting(&mut self, id: &MessageId) -> Option<Input> {
        if let Some(Slot { source: SlotSource::Input(inputs), .. }) = &mut self.slot
            && let Some(at) = inputs.iter().skip(1).position(|input| input.id() == id)
        {
            return inputs.remove(at + 1);
        }
        // An entry that still waits for its lease is skipped (SIG-288); a wake is not.
        if let Some(slot) = &self.slot
            && slot.state == SlotState::Reserved
            && let SlotSource::Input(inputs) = &slot.source
            && inputs.front().is_some_and(|input| input.id() == id && input.entry.mode == InputMode::Queue)
            && !self.accepting.contains_key(id)
            && let Some(Slot { source: SlotSource::Input(mut inputs), .. }) = self.slot.take()
        {
            let taken = inputs.pop_front();
            while let Some(input) = inputs.pop_back() {
                self.pending.push_front(input);
            }
            return taken;
        }
        if let Some(at) = self.pending.iter().position(|input| input.id() == id) {
            return self.pending.remove(at);
        }
        let at = self.queue.iter().position(|turn| matches!(turn, Turn::Input(input) if input.id() == id))?;
        match self.queue.remove(at) {
            Some(Turn::Input(input)) => Some(input),
            _ => None,
        }
    }

    fn removed(&mut self, ticket: Ticket, ids: Vec<MessageId>, effects: &mut Effects) {
        if !ids.is_empty() {
            effects.push(ThreadEffect::RemoveJournal { ids: ids.clone(), why: InboxEnd::Cancelled });
        }
        effects.push(ThreadEffect::Cancelled { ticket, ids });
    }

    fn claimed(&mut self, held: bool, effects: &mut Effects) {
        self.claiming = false;
        self.leased = held;
        if !held {
            // The plain runs that wait cannot have the thread; queued input stays for the next trigger.
            let direct = |turn: &Turn| matches!(turn, Turn::Direct { .. });
            for list in [&mut self.continuations, &mut self.queue] {
                let refused: Vec<Turn> = {
                    let (refused, kept): (Vec<_>, Vec<_>) = list.drain(..).partition(direct);
                    list.extend(kept);
                    refused
                };
                for turn in refused {
                    if let Turn::Direct { run_id, .. } = turn {
                        effects.push(ThreadEffect::DirectRefused { run_id });
                    }
                }
            }
            if !self.is_idle() && !self.resting {
                self.resting = true;
                effects.push(ThreadEffect::RetryAfter { attempts: 1 });
            }
        }
    }

    fn drain(&mut self, run_id: &RunId, ticket: Ticket, effects: &mut Effects) {
        let Some(slot) = self.slot.as_mut().filter(|slot| slot.run_id == *run_id) else {
            return effects.push(ThreadEffect::Drained { ticket, inputs: Vec::new() });
        };
        if slot.state == SlotState::Stopping {
            // A run that is stopped takes in nothing more but what started it (SIG-205, SIG-308).
            let inputs = match &mut slot.source {
                SlotSource::Input(inputs) if inputs.front().is_some_and(|input| input.journaled) => {
                    inputs.pop_front().into_iter().collect()
                }
                _ => Vec::new(),
            };
            if let SlotSource::Input(rest) = &mut slot.source {
                while let Some(input) = rest.pop_back() {
                    self.pending.push_front(input);
                }
            }
            self.note_taken(&inputs);
            return effects.push(ThreadEffect::Drained { ticket, inputs });
        }
        let own = |input: &Input, slot: &Slot| input.entry.agent_id == slot.agent_id;
        let unready = match &slot.source {
            SlotSource::Input(inputs) => inputs.iter().any(|input| !input.journaled),
            _ => false,
        } || self.pending.iter().any(|input| own(input, slot) && !input.journaled);
        if unready {
            self.draining = Some(ticket);
            return;
        }
        slot.state = SlotState::Running;
        let mut inputs: Vec<Input> = match &mut slot.source {
            SlotSource::Input(inputs) => inputs.drain(..).collect(),
            _ => Vec::new(),
        };
        let (mine, others): (VecDeque<_>, VecDeque<_>) =
            std::mem::take(&mut self.pending).into_iter().partition(|input| own(input, slot));
        self.pending = others;
        inputs.extend(mine);
        self.note_taken(&inputs);
        effects.push(ThreadEffect::Drained { ticket, inputs });
    }

    fn note_taken(&mut self, inputs: &[Input]) {
        let Some(slot) = &mut self.slot else { return };
        slot.taken.extend(inputs.iter().map(|input| (input.id().clone(), input.entry.signal.clone())));
    }

    fn run_ended(&mut self, run_id: &RunId, returned: Vec<Input>, failed: bool, effects: &mut Effects) {
        // A late report about an older run changes nothing.
        if self.active_run() != Some(run_id) {
            return;
        }
        let Some(slot) = self.slot.take() else { return };
        let gone = slot.taken.into_keys().filter(|id| returned.iter().all(|input| input.id() != id));
        self.taken.extend(gone.map(|id| (id, slot.run_id.clone())));
        self.taken.drain(..self.taken.len().saturating_sub(TAKEN));
        if self.deferred.take().as_ref() == Some(&slot.run_id) {
            self.recovered.push_front(RecoveredRun { run_id: slot.run_id, agent_id: slot.agent_id });
            self.rest(START_ATTEMPTS, effects);
        } else if self.fenced.take().as_ref() != Some(&slot.run_id) {
            self.ended.push_back(slot.run_id);
        }
        if !self.crashed.is_empty() {
            // Until the journal has been read.
            self.rest(1, effects);
        }
        if self.ended.len() > ENDED {
            self.ended.pop_front();
        }
        if let Some(ticket) = self.draining.take() {
            effects.push(ThreadEffect::Drained { ticket, inputs: Vec::new() });
        }
        let left = match slot.source {
            SlotSource::Input(inputs) => inputs,
            _ => VecDeque::new(),
        };
        let mut back: VecDeque<Input> = returned.into();
        back.extend(left);
        let mut attempts = 0;
        if failed && let Some(mut first) = back.pop_front() {
            first.entry.attempts += 1;
            attempts = first.entry.attempts;
            if attempts >= START_ATTEMPTS {
                effects.push(ThreadEffect::GiveUp(Box::new(first)));
                attempts = 0;
            } else {
                // It stays at the head, whatever places the store gave to what came back.
                let others = back.iter().chain(self.inputs()).map(|input| input.entry.position).min();
                let position = first.entry.position;
                first.entry.position = others.map_or(position, |others| position.min(others - 1));
                effects.push(ThreadEffect::UpdateJournal(Box::new(first.entry.clone())));
                back.push_front(first);
            }
        }
        while let Some(input) = back.pop_back() {
            if input.entry.mode == InputMode::Queue {
                self.queue.push_front(Turn::Input(input));
            } else {
                self.pending.push_front(input);
            }
        }
        if attempts > 0 && !self.resting {
            self.resting = true;
            effects.push(ThreadEffect::RetryAfter { attempts });
        }
    }

    fn abort(&mut self, ticket: Ticket, options: &AbortOptions, effects: &mut Effects) {
        if options.expected_run_id.is_some() && options.expected_run_id.as_ref() != self.active_run() {
            return effects.push(ThreadEffect::Aborted { ticket, stopped: false });
        }
        if options.clear_pending_signals {
            let mut ids: Vec<MessageId> = self.pending.drain(..).map(|input| input.id().clone()).collect();
            if let Some(Slot { source: SlotSource::Input(inputs), .. }) = &mut self.slot {
                ids.extend(inputs.drain(1.min(inputs.len())..).map(|input| input.id().clone()));
            }
            self.queue.retain(|turn| match turn {
                Turn::Input(input) => {
                    ids.push(input.id().clone());
                    false
                }
                Turn::Direct { .. } => true,
            });
            if !ids.is_empty() {
                effects.push(ThreadEffect::RemoveJournal { ids, why: InboxEnd::Cleared });
            }
        }
        let stopped = self.slot.is_some();
        self.stop_run(false, effects);
        effects.push(ThreadEffect::Aborted { ticket, stopped });
    }

    fn stop_run(&mut self, rollback: bool, effects: &mut Effects) {
        let Some(slot) = &mut self.slot else { return };
        slot.aborted = true;
        match slot.state {
            // It starts stopped: the wake input is stored, the model is not asked (R23).
            SlotState::Reserved => slot.rollback |= rollback,
            SlotState::Preparing | SlotState::Running => {
                slot.state = SlotState::Stopping;
                effects.push(ThreadEffect::AbortRun { rollback });
            }
            SlotState::Stopping => {}
        }
        if let Some(ticket) = self.draining.take()
            && let Some(run_id) = self.active_run().cloned()
        {
            self.drain(&run_id, ticket, effects);
        }
    }

    fn promote(&mut self, ticket: Ticket, id: &MessageId, to: PromoteTo, effects: &mut Effects) {
        // What is not durable yet is not known to have been accepted.
        let durable = |turn: &Turn| matches!(turn, Turn::Input(input) if input.id() == id && input.journaled);
        let at = self.queue.iter().position(durable);
        let Some(at) = at else {
            return effects.push(ThreadEffect::Refused { ticket, why: self.gone(id) });
        };
        let Some(Turn::Input(mut input)) = self.queue.remove(at) else { return };
        let joins = to == PromoteTo::Run
            && self
                .slot
                .as_ref()
                .is_some_and(|slot| slot.agent_id == input.entry.agent_id && slot.state != SlotState::Stopping);
        if joins && let Some(slot) = &self.slot {
            let run_id = slot.run_id.clone();
            input.entry.mode = InputMode::Steer;
            input.entry.run_id = run_id.clone();
            input.joined = true;
            rewrite(&mut input, effects);
            if slot.state == SlotState::Running {
                effects.push(ThreadEffect::Nudge { interrupt: may_interrupt(&input) });
            }
            self.pending.push_back(input);
            effects.push(ThreadEffect::Promoted { ticket, run_id, to: PromoteTo::Run });
        } else {
            let journaled = self.queued().filter(|input| input.journaled);
            let first = journaled.map(|input| input.entry.position).min();
            input.entry.position = first.map_or(input.entry.position, |first| first - 1);
            let run_id = input.entry.run_id.clone();
            rewrite(&mut input, effects);
            self.queue.push_front(Turn::Input(input));
            effects.push(ThreadEffect::Promoted { ticket, run_id, to: PromoteTo::Front });
        }
    }

    fn edit(
        &mut self,
        ticket: Ticket,
        id: &MessageId,
        contents: Option<Contents>,
        attributes: Option<Attributes>,
        effects: &mut Effects,
    ) {
        if !self.queued().any(|input| input.id() == id && input.journaled) {
            return effects.push(ThreadEffect::Refused { ticket, why: self.gone(id) });
        }
        let bytes: usize = self.inputs().map(Input::size).sum();
        let Some(input) = self.input_mut(id) else { return };
        let mut signal = input.entry.signal.clone();
        if let Some(contents) = contents {
            signal.contents = contents;
        }
        if let Some(attributes) = attributes {
            signal.attributes = Some(attributes);
        }
        let (before, old) = (std::mem::replace(&mut input.entry.signal, signal), input.size());
        input.measure();
        if bytes - old + input.size() > INBOX_BYTES {
            input.entry.signal = before;
            input.measure();
            return effects.push(ThreadEffect::Refused { ticket, why: Refusal::Limit });
        }
        rewrite(input, effects);
        effects.push(ThreadEffect::Edited { ticket, signal: Box::new(input.entry.signal.clone()) });
    }

    fn gone(&self, id: &MessageId) -> Refusal {
        let now = self.slot.as_ref().filter(|slot| slot.taken.contains_key(id)).map(|slot| slot.run_id.clone());
        let before = || self.taken.iter().rev().find(|(taken, _)| taken == id).map(|(_, run)| run.clone());
        match now.or_else(before) {
            Some(run) => Refusal::Taken(id.clone(), run),
            None if self.inputs().any(|input| input.id() == id) => match self.active_run() {
                Some(run) => Refusal::Taken(id.clone(), run.clone()),
                None => Refusal::Unknown(id.clone()),
            },
            None => Refusal::Unknown(id.clone()),
        }
    }

    fn give_all_up(&mut self, effects: &mut Effects) {
        let recovered = self.recovered.drain(..).map(|run| run.run_id);
        self.ended.extend(recovered);
        let (gone, pending): (Vec<Input>, VecDeque<Input>) = {
            let (gone, pending): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.pending).into_iter().partition(|input| input.journaled);
            (gone, pending.into())
        };
        self.pending = pending;
        effects.extend(gone.into_iter().map(|input| ThreadEffect::GiveUp(Box::new(input))));
        for turn in std::mem::take(&mut self.queue) {
            match turn {
                Turn::Input(input) if input.journaled => effects.push(ThreadEffect::GiveUp(Box::new(input))),
                turn => self.queue.push_back(turn),
            }
        }
    }

    fn rest(&mut self, attempts: u32, effects: &mut Effects) {
        self.resting = true;
        effects.push(ThreadEffect::RetryAfter { attempts });
    }

    fn recover(&mut self, inputs: Vec<Input>, runs: Vec<RecoveredRun>, effects: &mut Effects) {
        let crashed = std::mem::take(&mut self.crashed);
        for run in runs {
            let known = self.active_run() == Some(&run.run_id)
                || self.ended.contains(&run.run_id)
                || self.recovered.iter().any(|recovered| recovered.run_id == run.run_id);
            if !known {
                self.recovered.push_back(run);
            }
        }
        let mut steer = Vec::new();
        let mut queue = Vec::new();
        for mut input in inputs {
            let known = self.inputs().any(|held| held.id() == input.id())
                || self.slot.as_ref().is_some_and(|slot| slot.taken.contains_key(input.id()))
                || self.taken.iter().any(|(taken, _)| taken == input.id());
            if known {
                continue;
            }
            input.journaled = true;
            if crashed.contains(input.id()) {
                // Its run panicked before it was placed (SIG-255).
                input.entry.attempts += 1;
                if input.entry.attempts >= START_ATTEMPTS {
                    effects.push(ThreadEffect::GiveUp(Box::new(input)));
                    continue;
                }
                effects.push(ThreadEffect::UpdateJournal(Box::new(input.entry.clone())));
                self.rest(input.entry.attempts, effects);
            }
            if input.entry.mode == InputMode::Queue { queue.push(input) } else { steer.push(input) }
        }
        // By its place: what an earlier process accepted comes before what this one has.
        let before = |held: &Input, input: &Input| held.journaled && held.entry.position <= input.entry.position;
        for input in steer {
            let at = self.pending.iter().rposition(|held| before(held, &input)).map_or(0, |at| at + 1);
            self.pending.insert(at, input);
        }
        for input in queue {
            let is_before = |turn: &Turn| matches!(turn, Turn::Input(held) if before(held, &input));
            let at = self.queue.iter().rposition(is_before).map_or(0, |at| at + 1);
            self.queue.insert(at, Turn::Input(input));
        }
    }

    /// Fills a free slot by SIG-162: recovered runs, left-over input, continuations, queued turns.
    fn start_next(&mut self, effects: &mut Effects) {
        if self.held {
            return;
        }
        if self.slot.is_none() && !self.resting {
            let source = if let Some(run) = self.recovered.front() {
                Some((run.run_id.clone(), run.agent_id.clone(), SlotSource::Record))
            } else if let Some(first) = self.pending.front() {
                // Input that was to have a run of its own gives it its id; what had joined another run gets a new one.
                let mut mine = self.pending.iter().filter(|input| input.entry.agent_id == first.entry.agent_id);
                let own_id = mine.find(|input| !input.joined).map(|input| input.entry.run_id.clone());
                first.journaled.then(|| {
                    let run_id = own_id.unwrap_or_else(RunId::random);
                    (run_id, first.entry.agent_id.clone(), SlotSource::Input(VecDeque::new()))
                })
            } else {
                let turn = self.continuations.front().or_else(|| self.queue.front());
                match turn {
                    Some(Turn::Direct { run_id, agent_id }) => {
                        Some((run_id.clone(), agent_id.clone(), SlotSource::Direct))
                    }
                    Some(Turn::Input(input)) => input.journaled.then(|| {
                        let source = SlotSource::Input(VecDeque::new());
                        (input.entry.run_id.clone(), input.entry.agent_id.clone(), source)
                    }),
                    None => None,
                }
            };
            if let Some((run_id, agent_id, mut source)) = source {
                if !self.leased {
                    if !self.claiming {
                        self.claiming = true;
                        effects.push(ThreadEffect::Claim);
                    }
                    return;
                }
                match &mut source {
                    SlotSource::Record => {
                        self.recovered.pop_front();
                    }
                    SlotSource::Input(inputs) if !self.pending.is_empty() => {
                        // The first becomes the wake input of one follow-up run, the rest join it.
                        let (mine, others): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.pending)
                            .into_iter()
                            .partition(|input| input.entry.agent_id == agent_id);
                        *inputs = mine;
                        self.pending = others;
                    }
                    SlotSource::Input(inputs) => {
                        let list =
                            if self.continuations.is_empty() { &mut self.queue } else { &mut self.continuations };
                        if let Some(Turn::Input(input)) = list.pop_front() {
                            inputs.push_back(input);
                        }
                    }
                    SlotSource::Direct => {
                        let list =
                            if self.continuations.is_empty() { &mut self.queue } else { &mut self.continuations };
                        list.pop_front();
                    }
                }
                self.slot = Some(Slot::reserved(run_id, agent_id, source));
            }
        }
        self.start_reserved(effects);
    }

    /// Starts the run in the slot once its first input is durable and the thread is ours.
    fn start_reserved(&mut self, effects: &mut Effects) {
        let Some(slot) = self.slot.as_mut().filter(|slot| slot.state == SlotState::Reserved) else { return };
        if !self.leased {
            return;
        }
        let source = match &slot.source {
            SlotSource::Input(inputs) => match inputs.front() {
                Some(first) if first.journaled => RunSource::Input(Box::new(first.clone())),
                _ => return,
            },
            SlotSource::Direct => RunSource::Direct,
            SlotSource::Record => RunSource::Record,
        };
        slot.state = if slot.aborted { SlotState::Stopping } else { SlotState::Preparing };
        effects.push(ThreadEffect::StartRun(StartRun {
            run_id: slot.run_id.clone(),
            agent_id: slot.agent_id.clone(),
            source,
            aborted: slot.aborted,
            rollback: slot.rollback,
        }));
    }
}

/// Rewrites an input's journal entry, once the journal holds it.
fn rewrite(input: &mut Input, effects: &mut Effects) {
    if input.journaled {
        effects.push(ThreadEffect::UpdateJournal(Box::new(input.entry.clone())));
    } else {
        input.rewrite = true;
    }
}

/// Whether this input may cut short a request that has produced nothing yet (SIG-245).
fn may_interrupt(input: &Input) -> bool {
    input.options.interrupt.is_none_or(|interrupt| interrupt == crate::agent::Interrupt::Reasoning)
}

#[cfg(test)]
mod tests;
