//! Whose the thread is.

use super::Actor;
use crate::{
    error::Error,
    storage::Lease,
    thread::{journal::Op, machine::ThreadEvent},
};

impl Actor {
    pub(super) fn give_up_lease(&mut self) {
        self.epoch = 0;
        self.machine.lease_gone();
        self.journal.push(Op::Release);
        self.show_view();
    }

    /// Takes in the answer to a claim; `true` if the thread is ours.
    pub(super) fn lease(&mut self, result: Result<Lease, Error>) -> bool {
        match result {
            Ok(Lease::Held { epoch }) => {
                self.own(epoch);
                true
            }
            Ok(Lease::HeldBy { owner }) => {
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

    pub(super) fn own(&mut self, epoch: u64) {
        if std::mem::take(&mut self.resync) {
            self.journal.push(Op::Recover);
        }
        if self.epoch != 0 && self.epoch != epoch && self.run.is_some() {
            // Somebody else has owned the thread in between: what the run writes would be refused (ruling 4).
            self.lose_run();
        }
        self.epoch = epoch;
        self.thread.log.begin_epoch(epoch);
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
