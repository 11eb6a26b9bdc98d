//! What ties a run to its thread, and the times of a thread's messages.

use std::sync::{Arc, atomic::AtomicBool};

use parking_lot::Mutex;
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
    /// The newest time given to a message of this thread (SIG-042).
    pub(crate) placed: Arc<Mutex<Timestamp>>,
}

impl ThreadLink {
    /// Messages up to `at` exist.
    pub(crate) fn placed_up_to(&self, at: Timestamp) {
        let mut placed = self.placed.lock();
        *placed = at.max(*placed);
    }

    /// Now, but later than every message of the thread (SIG-042).
    pub(crate) fn now(&self, clock: &SharedClock) -> Timestamp {
        after(*self.placed.lock(), clock.now())
    }

    /// Lets `place` give times to messages, from the one it is told on, and tell the newest: nobody else does meanwhile.
    pub(crate) fn placing<T>(&self, clock: &SharedClock, place: impl FnOnce(Timestamp) -> (T, Option<Timestamp>)) -> T {
        placing(&self.placed, clock.now(), place)
    }

    pub(crate) async fn tell(&self, letter: Letter) {
        // The actor outlives its run unless the runtime is stopping.
        let _ = self.thread.mailbox.send(Box::new(letter)).await;
    }
}

fn after(placed: Timestamp, now: Timestamp) -> Timestamp {
    now.max(Timestamp::from_millis(placed.as_millis().saturating_add(1)))
}

/// The time of a message that no run places.
pub(super) fn next_time(placed: &Mutex<Timestamp>, now: Timestamp) -> Timestamp {
    let mut placed = placed.lock();
    *placed = after(*placed, now);
    *placed
}

fn placing<T>(placed: &Mutex<Timestamp>, now: Timestamp, place: impl FnOnce(Timestamp) -> (T, Option<Timestamp>)) -> T {
    let mut placed = placed.lock();
    let (done, newest) = place(after(*placed, now));
    *placed = newest.map_or(*placed, |newest| newest.max(*placed));
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sig_042_rows_of_a_run_and_rows_beside_it_never_have_the_same_time() {
        let (placed, now) = (Mutex::default(), Timestamp::from_millis(1000));
        let beside = next_time(&placed, now);
        // The run places two rows at one moment of the clock, which has not moved.
        let (first, second) = placing(&placed, now, |at| {
            let second = Timestamp::from_millis(at.as_millis() + 1);
            ((at, second), Some(second))
        });
        // A step that places nothing takes no time.
        placing(&placed, now, |_| ((), None));
        let last = next_time(&placed, now);
        assert_eq!([beside, first, second, last].map(Timestamp::as_millis), [1000, 1001, 1002, 1003]);
    }
}
