//! How input gets into a thread: routing, placing, and what the journal answers (SIG §7).

use std::collections::VecDeque;

use super::{
    Accepting, Effects, INBOX_BYTES, INBOX_ENTRIES, Journal, Refusal, Slot, SlotSource, SlotState, ThreadEffect,
    ThreadMachine, Turn,
};
use crate::{
    id::{MessageId, RunId},
    runtime::{Action, ActiveBehavior, IdleBehavior},
    signal::Signal,
    storage::InputMode,
    thread::input::{Input, Routed, Send, Ticket},
};

impl ThreadMachine {
    pub(super) fn send(&mut self, send: Send, effects: &mut Effects) {
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
                let waiting_for = self.waits_for(&run_id);
                let routed = Routed { action: Action::Deliver, run_id: Some(run_id), signal, waiting_for };
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
        let own = self.occupant().map(|agent| agent == input.entry.agent_id);
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
        // A run that waits for a person keeps others from being woken; what is queued waits its turn (SIG-107).
        let behind_suspended = self.slot.is_none() && self.suspended.is_some();
        if own == Some(false) && (by_run || behind_suspended) && !queue {
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
    pub(super) fn place(
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
            None if !queue => (Action::Deliver, self.follow_up(&mut input)),
            None => (Action::Deliver, input.entry.run_id.clone()),
            // The run that follows the stopped one is its own (ruling 24), or that of one that came before it.
            Some(true) if !queue && (stops_run || self.is_stopping()) => (Action::Deliver, self.follow_up(&mut input)),
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
                    let Some(slot) = &mut self.slot else {
                        // Taken in once the run goes on (SIG-381).
                        self.pending.push_back(input);
                        return;
                    };
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

    fn is_stopping(&self) -> bool {
        self.slot.as_ref().is_some_and(|slot| slot.state == SlotState::Stopping)
    }

    /// The run that takes this input after the one in the slot: that of the first input of its agent that waits to have
    /// one, since one run takes them all (SIG-162); else its own (HTTP-079).
    fn follow_up(&self, input: &mut Input) -> RunId {
        let first = self.pending.iter().find(|held| held.entry.agent_id == input.entry.agent_id && !held.joined);
        let recovered = self.recovered.front().filter(|run| run.agent_id == input.entry.agent_id);
        let run_id = recovered.map(|run| &run.run_id).or(first.map(|first| &first.entry.run_id));
        if let Some(run_id) = run_id.filter(|_| self.slot.is_none() || recovered.is_none()) {
            input.joined = true;
            input.entry.run_id = run_id.clone();
        }
        input.entry.run_id.clone()
    }

    pub(super) fn expected_run(&self, input: &Input) -> RunId {
        match (&self.slot, input.entry.mode) {
            (Some(slot), InputMode::Steer) if slot.agent_id == input.entry.agent_id => slot.run_id.clone(),
            _ => input.entry.run_id.clone(),
        }
    }

    pub(super) fn journaled(&mut self, id: &MessageId, result: Journal, effects: &mut Effects) {
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
                self.accepted(accepting, None, effects);
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
                self.accepted(accepting, None, effects);
            }
            Journal::Known { run_id, waits: false } => {
                self.leased = true;
                self.discard_unjournaled(id);
                self.accepted(accepting, Some((Action::Deliver, run_id)), effects);
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
    pub(super) fn accepted(
        &self,
        accepting: Option<Accepting>,
        known: Option<(Action, Option<RunId>)>,
        effects: &mut Effects,
    ) {
        let Some(Accepting { ticket, more, action, run_id, signal, .. }) = accepting else { return };
        let (action, known_run) = known.unwrap_or((action, None));
        let run_id = Some(known_run.unwrap_or(run_id));
        let waiting_for = run_id.as_ref().and_then(|run_id| self.waits_for(run_id));
        let mut tell = |ticket, action| {
            let routed = Routed { action, run_id: run_id.clone(), signal: signal.clone(), waiting_for };
            effects.push(ThreadEffect::Routed { ticket, routed: Box::new(routed) });
        };
        tell(ticket, action);
        for ticket in more {
            tell(ticket, Action::Deliver);
        }
    }

    /// Takes an input that the journal refused out of its list. The run reserved for it is off; what joined it goes on.
    pub(super) fn discard_unjournaled(&mut self, id: &MessageId) -> Option<Input> {
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
}

/// Whether this input may cut short a request that has produced nothing yet (SIG-245).
pub(super) fn may_interrupt(input: &Input) -> bool {
    input.options.interrupt.is_none_or(|interrupt| interrupt == crate::agent::Interrupt::Reasoning)
}
