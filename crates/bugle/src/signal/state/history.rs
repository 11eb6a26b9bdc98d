//! A lane's signals among messages (STATE §7).

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::Value;

use super::{StateMode, Tracking};
use crate::{
    id::{MessageId, ThreadKey},
    message::{Role, StoredMessage},
    signal::Signal,
    time::Timestamp,
};

/// One state of a lane, as the conversation holds it.
#[derive(Debug, Clone, PartialEq)]
pub struct LaneSignal {
    /// The signal's id.
    pub id: MessageId,
    /// Whole or change.
    pub mode: StateMode,
    /// Its key, as its producer gave it.
    pub cache_key: String,
    /// Its version; rows of other writers may have none.
    pub version: Option<u64>,
    /// When it was placed.
    pub created_at: Timestamp,
    /// The whole signal.
    pub signal: Signal,
}

impl LaneSignal {
    /// The state as data, if its producer gave it.
    pub fn value(&self) -> Option<&Value> {
        self.signal.metadata.as_ref()?.get("value")
    }

    /// The change as data, if its producer gave it.
    pub fn delta(&self) -> Option<&Value> {
        self.signal.metadata.as_ref()?.get("delta")
    }

    fn of(message: &StoredMessage) -> Option<(String, String, Self)> {
        if message.role != Role::Signal || message.is_blocked() {
            return None;
        }
        // A cheap look first: most signals are no states.
        let state = message.content.meta("signal")?.get("metadata")?.get("state")?.as_object()?;
        let text = |name: &str| state.get(name).and_then(Value::as_str).map(str::to_owned);
        let (lane, thread) = (text("id")?, text("threadId")?);
        let mode = state.get("mode").and_then(|mode| StateMode::deserialize(mode).ok())?;
        let cache_key = text("cacheKey").unwrap_or_default();
        let version = state.get("version").and_then(Value::as_u64);
        let signal = Signal::from_stored(message)?;
        let found = Self { id: message.id.clone(), mode, cache_key, version, created_at: message.created_at, signal };
        Some((lane, thread, found))
    }
}

/// The lane's signals among `messages`, oldest first: by version, time, position; rows without a version first
/// (STATE-070, STATE-072).
pub(crate) fn lane_signals(messages: &[StoredMessage], lane: &str, thread: &str) -> Vec<LaneSignal> {
    let found = messages.iter().filter_map(LaneSignal::of);
    let of_lane = found.filter(|(of, on, _)| of == lane && on == thread);
    let mut signals: Vec<LaneSignal> = of_lane.map(|(_, _, signal)| signal).collect();
    signals.sort_by_key(|signal| (signal.version, signal.created_at));
    signals
}

/// What `compute_state_signal` knows of its lane (STATE-053).
#[derive(Debug, Clone, PartialEq)]
pub struct LaneView {
    /// The lane.
    pub lane: String,
    /// The thread.
    pub thread: ThreadKey,
    /// The lane's known signals, oldest first.
    pub active: Vec<LaneSignal>,
    /// A snapshot of the lane is in the window, and will be sent (STATE-074, STATE-076).
    pub has_snapshot: bool,
    /// The last snapshot, from the window or else from storage.
    pub last_snapshot: Option<LaneSignal>,
    /// The deltas after it; all deltas if there is no snapshot.
    pub deltas: Vec<LaneSignal>,
    /// What is kept on the thread. It may be newer than the window (STATE-083).
    pub tracking: Option<Tracking>,
}

impl LaneView {
    /// Resolves the lane from the window and from rows loaded of storage (STATE-070 … STATE-079). The window wins where
    /// both have a row.
    pub(crate) fn resolve(
        lane: &str,
        thread: &ThreadKey,
        window: &[StoredMessage],
        loaded: &[StoredMessage],
        tracking: Option<Tracking>,
        stale: bool,
    ) -> Self {
        let mut active = lane_signals(window, lane, &thread.thread_id);
        let has_snapshot = !stale && active.iter().any(|signal| signal.mode == StateMode::Snapshot);
        if !loaded.is_empty() {
            let known: HashSet<MessageId> = active.iter().map(|signal| signal.id.clone()).collect();
            let more = lane_signals(loaded, lane, &thread.thread_id);
            active.extend(more.into_iter().filter(|signal| !known.contains(&signal.id)));
            active.sort_by_key(|signal| (signal.version, signal.created_at));
        }
        let last = active.iter().rposition(|signal| signal.mode == StateMode::Snapshot);
        let after = last.map_or(0, |last| last + 1);
        let deltas = active[after..].iter().filter(|signal| signal.mode == StateMode::Delta).cloned().collect();
        let last_snapshot = last.map(|last| active[last].clone());
        Self { lane: lane.to_owned(), thread: thread.clone(), active, has_snapshot, last_snapshot, deltas, tracking }
    }
}

/// The rows to load because the window lacks them: nothing if it holds the snapshot that tracking names
/// (STATE-073, STATE-079).
pub(crate) fn wanted_ids(window: &[LaneSignal], tracking: Option<&Tracking>) -> Vec<MessageId> {
    let Some(tracking) = tracking else { return Vec::new() };
    let Some(latest) = &tracking.last_snapshot_signal_id else { return Vec::new() };
    if window.iter().any(|signal| signal.id == *latest) {
        return Vec::new();
    }
    let copies = tracking.active_copies.iter().map(|copy| &copy.id);
    let mut wanted: Vec<MessageId> = Vec::new();
    for id in copies.chain([latest]) {
        if !wanted.contains(id) && !window.iter().any(|signal| signal.id == *id) {
            wanted.push(id.clone());
        }
    }
    wanted
}
