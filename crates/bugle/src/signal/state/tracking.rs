//! What the runtime keeps of a lane on its thread (STATE §3): under `metadata.mastra.stateSignals`, by lane.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{LaneSignal, StateMode};
use crate::{id::MessageId, json::Object, message::Thread, time::Timestamp};

/// The longest cache key that is kept as it is, in bytes (STATE-025).
const KEY_MAX: usize = 256;
/// No lane has more versions; what is stored beyond is a forgery.
const VERSION_MAX: u64 = u64::MAX / 2;
/// The most copies that are kept in mind (STATE-024).
pub(crate) const COPIES_MAX: usize = 64;

/// The record of one lane (STATE-020).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Tracking {
    /// The key of the latest state.
    pub current_cache_key: String,
    /// Its mode; rows of old versions have none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub current_mode: Option<StateMode>,
    /// Counts accepted states, from 1.
    pub version: u64,
    /// The latest state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_signal_id: Option<MessageId>,
    /// The latest snapshot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_snapshot_signal_id: Option<MessageId>,
    /// When it was written.
    pub updated_at: Timestamp,
    /// The last snapshot and the deltas since, oldest first (STATE-024).
    pub active_copies: Vec<LaneCopy>,
    /// Old deltas have been left out of `active_copies`.
    #[serde(skip_serializing_if = "crate::json::is_false")]
    pub truncated: bool,
    /// Written before its signal was routed, by this owner of the store ([`crate::storage::Storage::owner`]); taken away once
    /// it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pending: Option<String>,
}

/// One signal of a lane.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LaneCopy {
    /// The signal.
    pub id: MessageId,
    /// Its key.
    #[serde(default)]
    pub cache_key: String,
    /// Its mode.
    #[serde(default)]
    pub mode: StateMode,
    /// Its version.
    #[serde(default)]
    pub version: u64,
}

impl Tracking {
    /// Reads a record field by field: what cannot be read counts as absent, so that no stored row breaks a run.
    pub fn read(value: &Value) -> Option<Self> {
        let fields = value.as_object()?;
        let text = |name: &str| fields.get(name).and_then(Value::as_str);
        let id = |name: &str| text(name).filter(|id| !id.is_empty()).map(MessageId::from);
        let flag = |name: &str| fields.get(name) == Some(&Value::Bool(true));
        let copies = fields.get("activeCopies").and_then(Value::as_array);
        let copies = copies.into_iter().flatten().filter_map(|copy| LaneCopy::deserialize(copy).ok());
        Some(Self {
            current_cache_key: text("currentCacheKey")?.to_owned(),
            current_mode: fields.get("currentMode").and_then(|mode| StateMode::deserialize(mode).ok()),
            version: fields.get("version").and_then(Value::as_u64).unwrap_or_default().min(VERSION_MAX),
            last_signal_id: id("lastSignalId"),
            last_snapshot_signal_id: id("lastSnapshotSignalId"),
            updated_at: text("updatedAt").and_then(Timestamp::parse).unwrap_or_default(),
            active_copies: copies.take(COPIES_MAX * 2).collect(),
            truncated: flag("truncated"),
            pending: text("pending").map(str::to_owned),
        })
    }

    /// The record after `signal` was accepted as `version` (STATE-022, STATE-024).
    pub(crate) fn after(
        earlier: Option<&Self>,
        (key, mode, version): (String, StateMode, u64),
        signal: &MessageId,
        now: Timestamp,
    ) -> Self {
        let mut copies = match (mode, earlier) {
            (StateMode::Delta, Some(earlier)) => earlier.active_copies.clone(),
            _ => Vec::new(),
        };
        copies.push(LaneCopy { id: signal.clone(), cache_key: key.clone(), mode, version });
        let mut truncated = mode == StateMode::Delta && earlier.is_some_and(|earlier| earlier.truncated);
        while copies.len() > COPIES_MAX {
            // The snapshot stays; the oldest delta goes.
            let oldest = copies.iter().position(|copy| copy.mode == StateMode::Delta).unwrap_or(0);
            copies.remove(oldest);
            truncated = true;
        }
        let last_snapshot_signal_id = match mode {
            StateMode::Snapshot => Some(signal.clone()),
            StateMode::Delta => earlier.and_then(|earlier| earlier.last_snapshot_signal_id.clone()),
        };
        Self {
            current_cache_key: key,
            current_mode: Some(mode),
            version,
            last_signal_id: Some(signal.clone()),
            last_snapshot_signal_id,
            updated_at: now,
            active_copies: copies,
            truncated,
            pending: None,
        }
    }

    /// The record after some of the lane's signals were taken back: rolled back, or blocked by a guard (STATE-034). `rows` are
    /// the lane's other signals in the conversation. The version stays; with nothing left any state is new. `None` = none of
    /// them is known here.
    pub(crate) fn without(&self, gone: &[MessageId], rows: &[LaneSignal], now: Timestamp) -> Option<Self> {
        let is_gone = |id: &MessageId| gone.contains(id);
        let known = self.last_signal_id.iter().chain(&self.last_snapshot_signal_id);
        if !known.chain(self.active_copies.iter().map(|copy| &copy.id)).any(is_gone) {
            return None;
        }
        let mut copies: Vec<LaneCopy> = self.active_copies.iter().filter(|copy| !is_gone(&copy.id)).cloned().collect();
        let is_snapshot = |copy: &LaneCopy| copy.mode == StateMode::Snapshot;
        if !copies.iter().any(is_snapshot) {
            let rows = rows.iter().filter(|row| !is_gone(&row.id));
            let rows: Vec<LaneCopy> = rows
                .map(|row| LaneCopy {
                    id: row.id.clone(),
                    cache_key: lane_key(&row.cache_key),
                    mode: row.mode,
                    version: row.version.unwrap_or_default(),
                })
                .collect();
            if let Some(snapshot) = rows.iter().rposition(is_snapshot) {
                copies = rows[snapshot..].to_vec();
            }
        }
        let last = copies.last();
        Some(Self {
            current_cache_key: last.map(|copy| copy.cache_key.clone()).unwrap_or_default(),
            current_mode: last.map(|copy| copy.mode),
            version: self.version,
            last_signal_id: last.map(|copy| copy.id.clone()),
            last_snapshot_signal_id: copies.iter().rfind(|copy| is_snapshot(copy)).map(|copy| copy.id.clone()),
            updated_at: now,
            truncated: self.truncated && !copies.is_empty(),
            active_copies: copies,
            pending: None,
        })
    }

    /// Whether both are the same acceptance: what a compare-and-swap compares (STATE-081).
    pub fn is_same_write(&self, other: &Self) -> bool {
        self.version == other.version
            && self.last_signal_id == other.last_signal_id
            && self.current_cache_key == other.current_cache_key
            && self.pending == other.pending
    }
}

/// A cache key as tracking keeps and compares it (STATE-025).
pub fn lane_key(cache_key: &str) -> String {
    if cache_key.len() <= KEY_MAX {
        return cache_key.to_owned();
    }
    let digest = Sha256::digest(cache_key.as_bytes());
    let mut hashed = "sha256:".to_owned();
    for byte in digest {
        // Writing to a string cannot fail.
        let _ = write!(hashed, "{byte:02x}");
    }
    hashed
}

/// The tracked lanes of a thread, in stored order (STATE-021).
pub fn tracked_lanes(thread: &Thread) -> Vec<(String, Tracking)> {
    let lanes = thread.metadata.as_ref().and_then(lanes_of);
    let lanes = lanes.into_iter().flatten();
    lanes.filter_map(|(lane, record)| Some((lane.clone(), Tracking::read(record)?))).collect()
}

fn lanes_of(metadata: &Object) -> Option<&Object> {
    metadata.get("mastra")?.as_object()?.get("stateSignals")?.as_object()
}

/// Writes changes of lanes into a thread's metadata: all, or none if a lane is not as expected (STATE-026). Every other
/// key stays; what should be an object and is none counts as empty (STATE-021).
pub(crate) fn patch_lanes(metadata: &mut Option<Object>, changes: &[super::LaneChange]) -> bool {
    let held = metadata.as_ref().and_then(lanes_of);
    let as_expected = changes.iter().all(|change| {
        let now = held.and_then(|lanes| lanes.get(&change.lane)).and_then(Tracking::read);
        match (&now, &change.expected) {
            (None, None) => true,
            (Some(now), Some(expected)) => now.is_same_write(expected),
            _ => false,
        }
    });
    if !as_expected {
        return false;
    }
    let root = metadata.get_or_insert_default();
    let lanes = object_at(object_at(root, "mastra"), "stateSignals");
    for change in changes {
        match change.tracking.as_ref().and_then(|tracking| serde_json::to_value(tracking).ok()) {
            Some(record) => {
                lanes.insert(change.lane.clone(), record);
            }
            None => {
                lanes.shift_remove(&change.lane);
            }
        }
    }
    true
}

fn object_at<'a>(parent: &'a mut Object, key: &str) -> &'a mut Object {
    let held = parent.entry(key).or_insert_with(|| Value::Object(Object::new()));
    if !held.is_object() {
        *held = Value::Object(Object::new());
    }
    held.as_object_mut().expect("it was made an object above")
}
