//! What waits on a thread: looks at its lists, and what is taken out of them.

use super::{Slot, SlotSource, SlotState, ThreadMachine, Turn};
use crate::{
    id::{MessageId, RunId},
    runtime::PendingMode,
    storage::{InboxEntry, InputMode},
    thread::{hub::QueueGroup, input::Input},
};

impl ThreadMachine {
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
            && self.resumes.is_empty()
            && !self.claiming
    }

    /// The run that occupies the thread.
    pub(crate) fn active_run(&self) -> Option<&RunId> {
        let suspended = self.suspended.as_ref().map(|run| &run.run_id);
        self.slot.as_ref().map(|slot| &slot.run_id).or(suspended)
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
        let run = self.active_run().cloned();
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

    pub(super) fn is_preparing(&self) -> bool {
        self.slot.as_ref().is_some_and(|slot| matches!(slot.state, SlotState::Reserved | SlotState::Preparing))
    }

    pub(super) fn queued(&self) -> impl Iterator<Item = &Input> {
        self.queue.iter().filter_map(|turn| match turn {
            Turn::Input(input) => Some(input),
            Turn::Direct { .. } => None,
        })
    }

    pub(super) fn inputs(&self) -> impl Iterator<Item = &Input> {
        let joining = match self.slot.as_ref().map(|slot| &slot.source) {
            Some(SlotSource::Input(inputs)) => Some(inputs.iter()),
            _ => None,
        };
        joining.into_iter().flatten().chain(&self.pending).chain(self.queued())
    }

    pub(super) fn nothing_waits(&self) -> bool {
        self.slot.is_none()
            && self.suspended.is_none()
            && self.resumes.is_empty()
            && self.pending.is_empty()
            && self.continuations.is_empty()
            && self.queue.is_empty()
            && self.recovered.is_empty()
            && !self.claiming
    }

    pub(super) fn input_mut(&mut self, id: &MessageId) -> Option<&mut Input> {
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
    pub(super) fn take_waiting(&mut self, id: &MessageId) -> Option<Input> {
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
            let taken = self.pending.remove(at)?;
            if !taken.joined {
                // Those who were told that they join its run have that run all the same (HTTP-079).
                let mut heirs = self.pending.iter_mut().filter(|input| input.entry.run_id == taken.entry.run_id);
                if let Some(heir) = heirs.next() {
                    heir.joined = false;
                }
            }
            return Some(taken);
        }
        let at = self.queue.iter().position(|turn| matches!(turn, Turn::Input(input) if input.id() == id))?;
        match self.queue.remove(at) {
            Some(Turn::Input(input)) => Some(input),
            _ => None,
        }
    }
}
