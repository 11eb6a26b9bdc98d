//! The run slot: filled, drained, stopped, freed (SIG-162, SIG §12).

use std::collections::VecDeque;

use super::{
    Effects, INBOX_ENTRIES, RecoveredRun, RunSource, START_ATTEMPTS, Slot, SlotSource, SlotState, StartRun,
    ThreadEffect, ThreadMachine, Turn,
};
use crate::{
    id::{MessageId, RunId},
    runtime::AbortOptions,
    storage::{InboxEnd, InputMode},
    thread::input::{Input, Ticket},
};

/// The newest taken inputs that are kept in mind: as many as may wait at once.
const TAKEN: usize = INBOX_ENTRIES;
/// The newest ended runs that are kept in mind.
const ENDED: usize = 64;

impl ThreadMachine {
    /// Fills a free slot by SIG-162: recovered runs, left-over input, continuations, queued turns.
    pub(super) fn start_next(&mut self, effects: &mut Effects) {
        if self.held {
            return;
        }
        if self.slot.is_none() && (self.suspended.is_some() || !self.resumes.is_empty()) {
            self.start_beside_suspended(effects);
        } else if self.slot.is_none() && !self.resting {
            let source = if let Some(run) = self.recovered.front() {
                Some((run.run_id.clone(), run.agent_id.clone(), SlotSource::Record))
            } else if let Some(first) = self.pending.front() {
                // Input that was to have a run of its own gives it its id; what had joined another run gets a new one.
                let mut mine = self.pending.iter().filter(|input| input.entry.agent_id == first.entry.agent_id);
                let is_its = |input: &&Input| !input.joined && !self.parked_ids.contains(&input.entry.run_id);
                let own_id = mine.find(is_its).map(|input| input.entry.run_id.clone());
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
                    SlotSource::Resume(_) => {}
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
            SlotSource::Resume(ticket) => RunSource::Resume(*ticket),
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

    pub(super) fn drain(&mut self, run_id: &RunId, ticket: Ticket, effects: &mut Effects) {
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

    pub(super) fn run_ended(&mut self, run_id: &RunId, returned: Vec<Input>, failed: bool, effects: &mut Effects) {
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

    pub(super) fn abort(&mut self, ticket: Ticket, options: &AbortOptions, effects: &mut Effects) {
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
        let stopped = self.active_run().is_some();
        self.stop_run(false, effects);
        effects.push(ThreadEffect::Aborted { ticket, stopped });
    }

    pub(super) fn stop_run(&mut self, rollback: bool, effects: &mut Effects) {
        let Some(slot) = &mut self.slot else {
            if let Some(run) = self.suspended.clone() {
                self.end_suspended(run.run_id, run.agent_id, rollback, effects);
            }
            return;
        };
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
}
