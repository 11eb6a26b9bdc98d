//! What the runtime keeps in mind about notifications: its settings, what waits for a run to end, and who is to be woken.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use indexmap::IndexMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Cron;
use crate::{
    error::Error,
    id::{MessageId, ThreadKey},
    storage::{RecordClaim, RecordKey},
    time::Timestamp,
};

/// How long a claim holds without renewal (NOTIF-075).
pub(super) const CLAIM_TIME: Duration = Duration::from_secs(60);
/// Records of which is kept in mind that they wait for a run to end, at most. Runs in other processes end unheard, so what
/// waits for them stays: past the bound the half that has waited the longest is forgotten. Such records are delivered
/// when they are due, at the next safety poll, instead of at once.
const HELD_MAX: usize = 10_000;
/// Slots of ingress summaries that are kept at most; past it those that nobody is using are forgotten. The next summary on
/// such a thread then stands for itself instead of replacing one that no run has taken in.
const SUMMARIES_MAX: usize = 10_000;

/// Settings of notifications (NOTIF-070, `[notifications]` of `bugle.toml`).
///
/// ```
/// use bugle::notification::NotificationOptions;
/// let options = NotificationOptions::builder().max_attempts(3).build();
/// assert_eq!(options.batch_size, 100);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, bon::Builder)]
pub struct NotificationOptions {
    /// Whether this runtime dispatches what is due by itself. Default: `true`. Without it
    /// [`Bugle::dispatch_notifications`](crate::Bugle::dispatch_notifications) does.
    #[builder(default = true)]
    pub dispatch: bool,
    /// Records per pass. Default: 100.
    #[builder(default = 100)]
    pub batch_size: u32,
    /// How often is looked for what other processes may have left, while anything is due at all. Default: 60 s.
    #[builder(default = Duration::from_secs(60))]
    pub safety_poll: Duration,
    /// The same in cron's words, as the reference has it (NOTIF-070): its shortest interval is taken in the place of
    /// `safety_poll`. One that is wrong is refused when the runtime is built. Default: none.
    #[builder(into)]
    pub cron: Option<String>,
    /// After so many failures a record is given up (NOTIF-080). Default: 5.
    #[builder(default = 5)]
    pub max_attempts: u32,
    /// How long a `dedupe_key` stands for one event whatever became of its record; zero: while it is pending (NOTIF-034,
    /// ruling 8). Default: zero.
    #[builder(default)]
    pub dedupe_window: Duration,
    /// Shows the model a notification's id and a summary's priority (NOTIF-058). Default: `false`.
    #[builder(default)]
    pub render_id: bool,
}

impl Default for NotificationOptions {
    fn default() -> Self {
        Self::builder().build()
    }
}

impl NotificationOptions {
    /// With what `cron` says put in place.
    pub(crate) fn checked(mut self) -> Result<Self, Error> {
        if let Some(cron) = &self.cron {
            let cron: Cron =
                cron.parse().map_err(|error| Error::configuration(format!("notifications.dispatch.cron: {error}")))?;
            self.safety_poll = cron.interval();
        }
        Ok(self)
    }
}

/// What the parts of the room share.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(super) options: NotificationOptions,
    /// Something is due at a time the dispatcher does not know of.
    pub(super) due: Notify,
    /// Something can be done at once.
    pub(super) now: Notify,
    /// Other processes are to hear of it.
    pub(super) announce: Notify,
    closed: AtomicBool,
    waiting: Mutex<Waiting>,
    summaries: Mutex<HashMap<(String, ThreadKey), Arc<SummarySlot>>>,
}

/// Serialises the ingress summaries of one agent on one thread, and holds the last of them.
pub(super) type SummarySlot = tokio::sync::Mutex<Option<LastSummary>>;

/// The last summary that ingress sent (NOTIF-043).
#[derive(Debug)]
pub(super) struct LastSummary {
    pub(super) signal_id: MessageId,
    pub(super) keys: Vec<RecordKey>,
}

/// Records that wait for the run on their thread to end, and those for which it has.
#[derive(Debug, Default)]
struct Waiting {
    /// Those that wait the longest come first, more or less.
    held: IndexMap<ThreadKey, HashSet<RecordKey>>,
    /// How many records are held.
    count: usize,
    ended: HashSet<RecordKey>,
}

impl Waiting {
    fn hold(&mut self, thread: &ThreadKey, key: RecordKey) {
        if self.count >= HELD_MAX {
            let half = self.held.len().div_ceil(2);
            let forgotten: usize = self.held.drain(..half).map(|(_, keys)| keys.len()).sum();
            self.count -= forgotten;
        }
        let is_new = self.held.entry(thread.clone()).or_default().insert(key);
        self.count += usize::from(is_new);
    }

    fn take(&mut self, thread: &ThreadKey) -> Option<HashSet<RecordKey>> {
        let keys = self.held.swap_remove(thread)?;
        self.count -= keys.len();
        Some(keys)
    }
}

impl State {
    pub(crate) fn new(options: NotificationOptions) -> Arc<Self> {
        Arc::new(Self { options, ..Self::default() })
    }

    /// There is a new due time, or a changed one (NOTIF-074a).
    pub(crate) fn wake(&self) {
        self.due.notify_one();
        self.announce.notify_one();
    }

    pub(crate) fn is_dispatching(&self) -> bool {
        self.options.dispatch
    }

    /// The runtime is gone.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::Release);
        self.now.notify_one();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// A thread has no run any more (NOTIF-074c). Costs a look into two maps, which are empty as a rule.
    pub(crate) fn thread_is_idle(&self, thread: &ThreadKey) {
        let mut summaries = self.summaries.lock();
        if !summaries.is_empty() {
            summaries.retain(|(_, of), _| of != thread);
        }
        drop(summaries);
        let mut waiting = self.waiting.lock();
        if let Some(keys) = waiting.take(thread) {
            // Where nobody makes passes, what has ended is due all the same.
            let room = HELD_MAX.saturating_sub(waiting.ended.len());
            waiting.ended.extend(keys.into_iter().take(room));
            drop(waiting);
            self.now.notify_one();
        }
    }

    /// The record waits for its thread to become idle. Called before the thread is looked at, so that no end is missed.
    pub(super) fn hold(&self, thread: &ThreadKey, key: RecordKey) {
        self.waiting.lock().hold(thread, key);
    }

    /// It does not wait after all.
    pub(super) fn let_go(&self, thread: &ThreadKey, key: &RecordKey) {
        let mut waiting = self.waiting.lock();
        if let Some(keys) = waiting.held.get_mut(thread) {
            let was_held = keys.remove(key);
            if keys.is_empty() {
                waiting.held.swap_remove(thread);
            }
            waiting.count -= usize::from(was_held);
        }
        waiting.ended.remove(key);
    }

    /// Whether a wait is over.
    pub(super) fn has_ended(&self) -> bool {
        !self.waiting.lock().ended.is_empty()
    }

    /// The records whose wait is over.
    pub(super) fn take_ended(&self) -> Vec<RecordKey> {
        self.waiting.lock().ended.drain().collect()
    }

    pub(super) fn summary_slot(&self, agent_id: &str, thread: &ThreadKey) -> Arc<SummarySlot> {
        let mut summaries = self.summaries.lock();
        let key = (agent_id.to_owned(), thread.clone());
        if summaries.len() >= SUMMARIES_MAX && !summaries.contains_key(&key) {
            summaries.retain(|_, slot| Arc::strong_count(slot) > 1);
        }
        summaries.entry(key).or_default().clone()
    }

    /// A fresh claim.
    pub(super) fn claim(now: Timestamp) -> RecordClaim {
        RecordClaim { token: uuid::Uuid::new_v4().to_string(), now, until: now.plus(CLAIM_TIME) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> RecordKey {
        RecordKey { thread_id: format!("t{number}"), id: "n".into() }
    }

    fn thread(number: usize) -> ThreadKey {
        ThreadKey::new("r", format!("t{number}"))
    }

    #[test]
    fn notif_074_what_waits_for_runs_of_other_processes_is_bounded() {
        let state = State::new(NotificationOptions::default());
        for number in 0..5 * HELD_MAX {
            state.hold(&thread(number), key(number));
        }
        let newest = 5 * HELD_MAX - 1;
        {
            let waiting = state.waiting.lock();
            assert!(waiting.count <= HELD_MAX && waiting.count == waiting.held.len(), "{}", waiting.count);
        }
        state.thread_is_idle(&thread(newest));
        state.thread_is_idle(&thread(0));
        assert_eq!(state.take_ended(), [key(newest)], "the newest are known, the oldest are found when they are due");
        // Of one thread there may be many, too.
        for number in 0..2 * HELD_MAX {
            state.hold(&thread(1), key(number));
        }
        assert!(state.waiting.lock().count <= HELD_MAX);
        // Where no passes are made, the ended ones do not pile up.
        for number in 0..3 * HELD_MAX {
            state.hold(&thread(number), key(number));
            state.thread_is_idle(&thread(number));
        }
        assert!(state.waiting.lock().ended.len() <= HELD_MAX);
        state.let_go(&thread(1), &key(1));
        let waiting = state.waiting.lock();
        assert_eq!(waiting.count, waiting.held.values().map(HashSet::len).sum::<usize>());
    }

    #[test]
    fn notif_043_slots_of_summaries_are_bounded() {
        let state = State::new(NotificationOptions::default());
        let used = state.summary_slot("a", &thread(0));
        for number in 1..3 * SUMMARIES_MAX {
            state.summary_slot("a", &thread(number));
        }
        assert!(state.summaries.lock().len() <= SUMMARIES_MAX);
        assert!(Arc::ptr_eq(&used, &state.summary_slot("a", &thread(0))), "one that is used stays");
        state.thread_is_idle(&thread(0));
        assert!(!Arc::ptr_eq(&used, &state.summary_slot("a", &thread(0))));
    }
}
