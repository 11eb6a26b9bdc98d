//! Whose the thread is.

use super::Actor;
use crate::{
    chunk::EventId,
    error::Error,
    storage::{Lease, Left, ParkedRun},
    thread::{journal::Op, machine::ThreadEvent},
};

impl Actor {
    pub(super) fn give_up_lease(&mut self) {
        self.journal.push(Op::Release { last_event: self.thread.log.last_number() });
        self.lease_gone();
    }

    /// The lease went with the run's last commit. If it was claimed meanwhile, by a renewal or with input, nobody here knows
    /// in which order: what begins next claims it again, under the same epoch while nobody else has had it.
    pub(super) fn lease_went(&mut self) {
        if !self.claimed_again && self.journal.is_idle() {
            self.lease_gone();
        } else {
            self.machine.lease_gone();
            self.journal.doubt();
        }
    }

    fn lease_gone(&mut self) {
        self.epoch = 0;
        self.machine.lease_gone();
        self.show_view();
    }

    /// Takes in the answer to a claim; `true` if the thread is ours.
    pub(super) fn lease(&mut self, result: Result<(Lease, Left), Error>, parked: Option<Vec<ParkedRun>>) -> bool {
        match result {
            Ok((Lease::Held { epoch }, left)) => {
                self.own(epoch, left, parked);
                true
            }
            Ok((Lease::HeldBy { owner }, _)) => {
                tracing::warn!(thread = %self.key, owner, "the thread is owned by another process");
                self.unowned = format!("another process, {owner}, owns it");
                self.lose();
                false
            }
            Err(error) => {
                tracing::error!(thread = %self.key, %error, "the thread's lease could not be taken");
                self.unowned = error.to_string();
                // A run at work keeps its epoch; the store refuses its writes if it is stale.
                self.epoch > 0
            }
        }
    }

    /// The thread is ours. What an earlier owner left on it comes before what we begin (SIG-502).
    pub(super) fn own(&mut self, epoch: u64, left: Left, parked: Option<Vec<ParkedRun>>) {
        self.claimed_again = true;
        if std::mem::take(&mut self.resync) {
            self.journal.push(Op::Recover);
        }
        if self.epoch != 0 && self.epoch != epoch && self.run.is_some() {
            // Somebody else has owned the thread in between: what the run writes would be refused (ruling 4).
            self.lose_run();
        }
        self.epoch = epoch;
        // After a run that was cut off nobody has seen all there was.
        let whole = left.last_event.filter(|_| left.runs.is_empty());
        self.thread.log.begin_epoch(epoch, whole.map(|(epoch, number)| EventId { epoch, number }));
        self.found_parked(parked);
        if !left.entries.is_empty() || !left.runs.is_empty() {
            self.found(left.entries, left.runs, true);
        }
        self.show_view();
    }

    pub(super) fn lose(&mut self) {
        self.epoch = 0;
        self.resync = true;
        self.lose_run();
        self.feed(ThreadEvent::LeaseLost { run_id: None });
    }

    fn lose_run(&mut self) {
        if let Some(run) = &self.run {
            run.shared.fence();
        }
    }
}
