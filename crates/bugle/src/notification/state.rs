//! What the runtime keeps in mind about notifications: its settings, what waits for a run to end, and who is to be woken.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    id::{MessageId, ThreadKey},
    storage::{RecordClaim, RecordKey},
    time::Timestamp,
};

/// How long a claim holds without renewal (NOTIF-075).
pub(super) const CLAIM_TIME: Duration = Duration::from_secs(60);
/// Threads of which is kept in mind that records wait for their run to end; the others are found by the safety poll.
const HELD_MAX: usize = 10_000;

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
    held: HashMap<ThreadKey, HashSet<RecordKey>>,
    ended: HashSet<RecordKey>,
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
        if let Some(keys) = waiting.held.remove(thread) {
            waiting.ended.extend(keys);
            drop(waiting);
            self.now.notify_one();
        }
    }

    /// The record waits for its thread to become idle. Called before the thread is looked at, so that no end is missed.
    pub(super) fn hold(&self, thread: &ThreadKey, key: RecordKey) {
        let mut waiting = self.waiting.lock();
        if waiting.held.len() < HELD_MAX || waiting.held.contains_key(thread) {
            waiting.held.entry(thread.clone()).or_default().insert(key);
        }
    }

    /// It does not wait after all.
    pub(super) fn let_go(&self, thread: &ThreadKey, key: &RecordKey) {
        let mut waiting = self.waiting.lock();
        if let Some(keys) = waiting.held.get_mut(thread) {
            keys.remove(key);
            if keys.is_empty() {
                waiting.held.remove(thread);
            }
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
        self.summaries.lock().entry((agent_id.to_owned(), thread.clone())).or_default().clone()
    }

    /// A fresh claim.
    pub(super) fn claim(now: Timestamp) -> RecordClaim {
        RecordClaim { token: uuid::Uuid::new_v4().to_string(), now, until: now.plus(CLAIM_TIME) }
    }
}
