//! Input that is changed while it waits: taken back, promoted, edited (ruling 23).

use super::{Effects, INBOX_BYTES, Refusal, SlotState, ThreadEffect, ThreadMachine, Turn, inbox::may_interrupt};
use crate::{
    id::MessageId,
    runtime::PromoteTo,
    signal::{Attributes, Contents},
    storage::{InboxEnd, InputMode},
    thread::input::{Input, Ticket},
};

impl ThreadMachine {
    pub(super) fn removed(&mut self, ticket: Ticket, ids: Vec<MessageId>, effects: &mut Effects) {
        if !ids.is_empty() {
            effects.push(ThreadEffect::RemoveJournal { ids: ids.clone(), why: InboxEnd::Cancelled });
        }
        effects.push(ThreadEffect::Cancelled { ticket, ids });
    }

    pub(super) fn promote(&mut self, ticket: Ticket, id: &MessageId, to: PromoteTo, effects: &mut Effects) {
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

    pub(super) fn edit(
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
}

/// Rewrites an input's journal entry, once the journal holds it.
pub(super) fn rewrite(input: &mut Input, effects: &mut Effects) {
    if input.journaled {
        effects.push(ThreadEffect::UpdateJournal(Box::new(input.entry.clone())));
    } else {
        input.rewrite = true;
    }
}
