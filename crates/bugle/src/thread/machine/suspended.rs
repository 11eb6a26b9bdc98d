//! A run that waits for a person: it keeps the thread, though nothing runs (SIG-104, SIG-310, SIG-379 … SIG-383).

use super::{Effects, Slot, SlotSource, SlotState, ThreadEffect, ThreadMachine, Turn};
use crate::{
    id::RunId,
    runtime::Action,
    storage::InputMode,
    thread::input::{Input, Ticket},
    time::Timestamp,
};

/// What a parked run leaves to its thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Parked {
    pub(crate) agent_id: String,
    /// `approval` or `resume` (SIG-381).
    pub(crate) waiting_for: &'static str,
    pub(crate) since: Timestamp,
    /// It was asked to stop while it parked; with `rollback`, to be undone.
    pub(crate) stopped: bool,
    pub(crate) rollback: bool,
}

/// The run that keeps the thread while it waits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Suspended {
    pub(crate) run_id: RunId,
    pub(crate) agent_id: String,
    pub(crate) waiting_for: &'static str,
    pub(crate) since: Timestamp,
}

/// A parked run that is to go on, or to end.
#[derive(Debug)]
pub(super) struct ResumeTurn {
    pub(super) run_id: RunId,
    pub(super) agent_id: String,
    /// Who asked; nobody if the thread itself ends the run.
    pub(super) ticket: Option<Ticket>,
    pub(super) rollback: bool,
}

impl ThreadMachine {
    /// The run that waits for a person and keeps the thread.
    pub(crate) fn suspended(&self) -> Option<&Suspended> {
        self.suspended.as_ref()
    }

    /// Whose run occupies the thread.
    pub(super) fn occupant(&self) -> Option<&str> {
        let suspended = self.suspended.as_ref().map(|run| run.agent_id.as_str());
        self.slot.as_ref().map(|slot| slot.agent_id.as_str()).or(suspended)
    }

    /// What input that was delivered to this run waits for.
    pub(super) fn waits_for(&self, run_id: &RunId) -> Option<&'static str> {
        let suspended = self.suspended.as_ref().filter(|run| self.slot.is_none() && run.run_id == *run_id)?;
        Some(suspended.waiting_for)
    }

    /// The run in the slot is parked: it keeps the thread.
    pub(super) fn parked(&mut self, run_id: &RunId, parked: Parked, returned: Vec<Input>, effects: &mut Effects) {
        if self.slot.as_ref().is_none_or(|slot| slot.run_id != *run_id) {
            return;
        }
        let (aborted, rollback) = self.slot.as_ref().map_or((false, false), |slot| (slot.aborted, slot.rollback));
        self.run_ended(run_id, returned, false, effects);
        self.ended.retain(|ended| ended != run_id);
        if aborted || parked.stopped {
            self.end_suspended(run_id.clone(), parked.agent_id.clone(), rollback || parked.rollback, effects);
        }
        let Parked { agent_id, waiting_for, since, .. } = parked;
        if !self.parked_ids.contains(run_id) {
            self.parked_ids.push(run_id.clone());
        }
        self.suspended = Some(Suspended { run_id: run_id.clone(), agent_id, waiting_for, since });
    }

    /// Somebody has decided about a parked run; it goes on once the slot is free (SIG-379).
    pub(super) fn resume(&mut self, ticket: Ticket, run_id: RunId, agent_id: String) {
        self.resting = false;
        self.resumes.push_back(ResumeTurn { run_id, agent_id, ticket: Some(ticket), rollback: false });
    }

    /// The parked run is to end: who has decided about it comes too late (R17).
    pub(super) fn end_suspended(&mut self, run_id: RunId, agent_id: String, rollback: bool, effects: &mut Effects) {
        if let Some(ends) = self.resumes.iter_mut().find(|turn| turn.run_id == run_id && turn.ticket.is_none()) {
            ends.rollback |= rollback;
            return;
        }
        self.refuse_resumes(Some(&run_id), effects);
        self.resumes.push_front(ResumeTurn { run_id, agent_id, ticket: None, rollback });
    }

    /// Tells those who have decided about this run, or about any, that it cannot go on.
    pub(super) fn refuse_resumes(&mut self, of: Option<&RunId>, effects: &mut Effects) {
        let (refused, kept): (Vec<ResumeTurn>, Vec<ResumeTurn>) =
            self.resumes.drain(..).partition(|turn| of.is_none_or(|run| turn.run_id == *run));
        self.resumes = kept.into();
        for turn in refused {
            if let Some(ticket) = turn.ticket {
                effects.push(ThreadEffect::ResumeRefused { ticket });
            }
        }
    }

    /// It has waited long enough in this process: the thread is free, and the run can still be gone on with from
    /// storage (SIG-382).
    pub(super) fn evicted(&mut self, run_id: &RunId) {
        if self.suspended.as_ref().is_some_and(|run| run.run_id == *run_id) {
            self.suspended = None;
        }
    }

    /// The thread has become ours: what the store says of its parked runs holds. Input that was to wake the agent waits
    /// behind the run (SIG-104).
    pub(super) fn found(&mut self, found: Option<Suspended>, effects: &mut Effects) {
        if self.slot.as_ref().is_some_and(|slot| slot.state != SlotState::Reserved) {
            return;
        }
        let run_id = match &found {
            Some(run) => run.run_id.clone(),
            None => {
                self.suspended = None;
                return;
            }
        };
        let agent_id = found.as_ref().map(|run| run.agent_id.clone()).unwrap_or_default();
        self.suspended = found;
        if !matches!(&self.slot, Some(Slot { source: SlotSource::Input(_), .. })) {
            return;
        }
        let Some(Slot { source: SlotSource::Input(mut inputs), aborted, rollback, .. }) = self.slot.take() else {
            return;
        };
        while let Some(mut input) = inputs.pop_back() {
            let joins = input.entry.agent_id == agent_id && input.entry.mode != InputMode::Queue;
            if joins {
                input.joined = true;
                input.entry.run_id = run_id.clone();
                super::edit::rewrite(&mut input, effects);
            }
            if let Some(accepting) = self.accepting.get_mut(input.id()) {
                accepting.action = Action::Deliver;
                accepting.run_id = input.entry.run_id.clone();
            }
            if joins {
                self.pending.push_front(input);
            } else {
                input.entry.mode = InputMode::Queue;
                self.queue.push_front(Turn::Input(input));
            }
        }
        if aborted {
            self.end_suspended(run_id, agent_id, rollback, effects);
        }
    }

    /// What may start while a run waits: that run, or a plain run of its agent, which does not wait for it (SIG-108).
    pub(super) fn next_beside_suspended(&self) -> Option<(RunId, String)> {
        let suspended = self.suspended.as_ref()?;
        self.queue.iter().find_map(|turn| match turn {
            Turn::Direct { run_id, agent_id } if *agent_id == suspended.agent_id => {
                Some((run_id.clone(), agent_id.clone()))
            }
            _ => None,
        })
    }

    /// Fills the slot while a run waits; `true` if it did, or waits for the lease to.
    pub(super) fn start_beside_suspended(&mut self, effects: &mut Effects) -> bool {
        let resumes = self.resumes.front().map(|turn| (turn.run_id.clone(), turn.agent_id.clone()));
        let next = resumes.clone().or_else(|| self.next_beside_suspended());
        let Some((run_id, agent_id)) = next else { return false };
        if !self.leased {
            if !self.claiming {
                self.claiming = true;
                effects.push(ThreadEffect::Claim);
            }
            return true;
        }
        if resumes.is_none() {
            let is_it = |turn: &Turn| matches!(turn, Turn::Direct { run_id: queued, .. } if *queued == run_id);
            self.queue.retain(|turn| !is_it(turn));
            self.slot = Some(Slot::reserved(run_id, agent_id, SlotSource::Direct));
            return true;
        }
        let Some(turn) = self.resumes.pop_front() else { return false };
        // Another run that waited is left to storage.
        self.suspended = None;
        let mut slot = Slot::reserved(run_id, agent_id, SlotSource::Resume(turn.ticket));
        slot.aborted = turn.ticket.is_none();
        slot.rollback = turn.rollback;
        self.slot = Some(slot);
        true
    }
}
