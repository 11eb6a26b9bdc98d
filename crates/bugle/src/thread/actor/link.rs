//! What ties a run to its thread, and the times of a thread's messages.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicI64, Ordering},
};

use tokio::sync::Notify;

use super::Letter;
use crate::{
    id::ThreadKey,
    thread::hub::ThreadRef,
    time::{SharedClock, Timestamp},
};

/// What ties a run to its thread.
#[derive(Debug, Clone)]
pub(crate) struct ThreadLink {
    pub(crate) key: ThreadKey,
    pub(crate) epoch: u64,
    pub(crate) thread: ThreadRef,
    /// Input waits that may interrupt.
    pub(crate) nudge: Arc<Notify>,
    /// The lease went with the run's end.
    pub(crate) released: Arc<AtomicBool>,
    /// The newest time given to a message of this thread, in ms (SIG-042).
    pub(crate) placed: Arc<AtomicI64>,
}

impl ThreadLink {
    /// Messages up to `at` exist.
    pub(crate) fn placed_up_to(&self, at: Timestamp) {
        self.placed.fetch_max(at.as_millis(), Ordering::AcqRel);
    }

    /// Now, but later than every message of the thread (SIG-042).
    pub(crate) fn now(&self, clock: &SharedClock) -> Timestamp {
        let newest = self.placed.load(Ordering::Acquire);
        clock.now().max(Timestamp::from_millis(newest.saturating_add(1)))
    }

    pub(crate) async fn tell(&self, letter: Letter) {
        // The actor outlives its run unless the runtime is stopping.
        let _ = self.thread.mailbox.send(Box::new(letter)).await;
    }
}

pub(super) fn next_time(placed: &AtomicI64, now: Timestamp) -> Timestamp {
    let now = now.as_millis();
    let last = placed.fetch_update(Ordering::AcqRel, Ordering::Acquire, |last| Some(now.max(last + 1)));
    Timestamp::from_millis(now.max(last.unwrap_or_default() + 1))
}
