//! What happens to one thread: the decisions, without IO, clock or `.await` (SIG §7, §12 to §14, §20).
//!
//! Owns the run slot and the lists of input. Knows no storage, model or channel: it says what is to be done as effects,
//! and is told of the results as events. The order of events is the order the spec speaks of.
//!
//! Invariants (SIG-450 to 454): at most one run in the slot; an input is in at most one list; queued input keeps its
//! order; only the end of the run in the slot frees it; an input that is not journaled is not taken by a run.

mod edit;
mod event;
mod inbox;
mod lists;
mod owner;
mod slot;
mod suspended;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

pub(crate) use event::{ClaimFailed, Journal, RecoveredRun, Refusal, RunSource, StartRun, ThreadEffect, ThreadEvent};
use indexmap::IndexMap;
use smallvec::SmallVec;
use suspended::ResumeTurn;
pub(crate) use suspended::{Parked, Suspended};

use super::input::{Input, Ticket};
use crate::{
    id::{MessageId, RunId},
    runtime::Action,
    signal::Signal,
};

/// Entries a thread may hold (SIG-509).
pub(crate) const INBOX_ENTRIES: usize = 1000;
/// Bytes a thread may hold (SIG-509).
pub(crate) const INBOX_BYTES: usize = 8 * 1024 * 1024;
/// After so many failed starts an input is given up (SIG-255).
const START_ATTEMPTS: u32 = 3;

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
    /// A parked run; who asked for it.
    Resume(Option<Ticket>),
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
    /// A run that waits for a person. It occupies the thread while the slot is free.
    suspended: Option<Suspended>,
    /// Runs of the thread that are parked in the store: their ids are theirs.
    parked_ids: Vec<RunId>,
    /// Decisions about parked runs, in order.
    resumes: VecDeque<ResumeTurn>,
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
            ThreadEvent::Parked { run_id, parked, returned } => {
                self.parked(&run_id, parked, returned, &mut effects);
            }
            ThreadEvent::Resume { ticket, run_id, agent_id } => self.resume(ticket, run_id, agent_id),
            ThreadEvent::Evicted { run_id } => self.evicted(&run_id),
            ThreadEvent::Found { suspended, parked } => {
                self.parked_ids = parked;
                self.found(suspended, &mut effects);
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
            ThreadEvent::Recovered { inputs, runs, leased } => {
                self.leased |= leased;
                self.recover(inputs, runs, &mut effects);
            }
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
}
