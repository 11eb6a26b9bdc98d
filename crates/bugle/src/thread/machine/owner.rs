//! A thread that changes hands: what an earlier process left, and what a later one takes over (SIG §22.1).

use std::collections::VecDeque;

use super::{Effects, RecoveredRun, START_ATTEMPTS, Slot, SlotSource, SlotState, ThreadEffect, ThreadMachine, Turn};
use crate::{id::RunId, runtime::Action, storage::InputMode, thread::input::Input};

impl ThreadMachine {
    /// What the journal holds is its new owner's to answer; only that may be forgotten here.
    pub(super) fn lease_lost(&mut self, fenced: Option<&RunId>) {
        self.leased = false;
        // Who owns the thread may have gone on with it; once it is ours again, the store tells.
        self.suspended = None;
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

    pub(super) fn claimed(&mut self, held: bool, effects: &mut Effects) {
        self.claiming = false;
        self.leased = held;
        if !held {
            self.refuse_resumes(None, effects);
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

    pub(super) fn give_all_up(&mut self, effects: &mut Effects) {
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

    pub(super) fn rest(&mut self, attempts: u32, effects: &mut Effects) {
        self.resting = true;
        effects.push(ThreadEffect::RetryAfter { attempts });
    }

    pub(super) fn recover(&mut self, inputs: Vec<Input>, runs: Vec<RecoveredRun>, effects: &mut Effects) {
        let crashed = std::mem::take(&mut self.crashed);
        for run in runs {
            let known = self.active_run() == Some(&run.run_id)
                || self.ended.contains(&run.run_id)
                || self.recovered.iter().any(|recovered| recovered.run_id == run.run_id);
            if !known {
                self.recovered.push_back(run);
            }
        }
        let (mut steer, mut queue, mut again) = (Vec::new(), Vec::new(), Vec::new());
        for mut input in inputs {
            if self.inputs().any(|held| held.id() == input.id()) {
                again.push((input.entry.signal.id, input.entry.position));
                continue;
            }
            let known = self.slot.as_ref().is_some_and(|slot| slot.taken.contains_key(input.id()))
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
        if !self.recovered.is_empty() || !steer.is_empty() || !queue.is_empty() {
            self.step_back();
            // What was sent again keeps the place that it has in the journal (SIG-503).
            for (id, position) in again {
                if self.inputs().any(|held| *held.id() == id && held.journaled) {
                    continue;
                }
                if let Some(mut held) = self.take_waiting(&id) {
                    held.journaled = true;
                    held.entry.position = position;
                    if held.entry.mode == InputMode::Queue { queue.push(held) } else { steer.push(held) }
                }
            }
            steer.sort_by_key(|input| input.entry.position);
            queue.sort_by_key(|input| input.entry.position);
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

    /// What was about to begin, and is not durable yet, waits behind what an earlier process left (SIG-502).
    fn step_back(&mut self) {
        let reserved = |slot: &mut Slot| {
            slot.state == SlotState::Reserved && !slot.aborted && matches!(slot.source, SlotSource::Input(_))
        };
        let Some(Slot { run_id, agent_id, source: SlotSource::Input(mut inputs), .. }) = self.slot.take_if(reserved)
        else {
            return;
        };
        if inputs.front().is_some_and(|first| first.entry.mode == InputMode::Queue)
            && let Some(first) = inputs.pop_front()
        {
            self.queue.push_front(Turn::Input(first));
        } else if let Some(recovered) = self.recovered.front().filter(|recovered| recovered.agent_id == agent_id) {
            // It joins the run that goes on.
            for input in inputs.iter_mut().filter(|input| input.entry.run_id == run_id) {
                input.joined = true;
                input.rewrite = true;
                input.entry.run_id = recovered.run_id.clone();
                if let Some(accepting) = self.accepting.get_mut(input.id()) {
                    accepting.run_id = recovered.run_id.clone();
                    accepting.action = Action::Deliver;
                }
            }
        }
        while let Some(input) = inputs.pop_back() {
            self.pending.push_front(input);
        }
    }
}
