//! What is sent and what is skipped (STATE §4), for producers outside and inside of a run.

use std::collections::{HashMap, HashSet};

use super::{LaneChange, StateError, StateInput, StateMode, Tracking, history::LaneSignal, lane_signals};
use crate::{
    id::{MessageId, ThreadKey},
    json::json,
    message::StoredMessage,
    signal::Signal,
    time::Timestamp,
};

/// What is to be done with a state.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Decision {
    /// The model has it.
    Skip,
    /// It is this version of its lane.
    Accept { version: u64 },
}

/// The most lanes of a thread: they travel with every listing of it. A further one is refused.
pub(crate) const LANES_MAX: usize = 256;

/// Refuses one lane too many.
///
/// # Errors
/// `state_too_many_lanes`.
pub(crate) fn check_room(lanes: usize) -> Result<(), StateError> {
    if lanes < LANES_MAX {
        return Ok(());
    }
    let message = format!("a thread has at most {LANES_MAX} lanes; use fewer ids, with the state in value or contents");
    Err(StateError::new("state_too_many_lanes", message))
}

/// STATE-030. `window` is the lane's signals in the run's conversation; `None` for a producer outside of runs.
///
/// # Errors
/// `state_stale_base` (STATE-082).
pub(crate) fn decide(
    state: &StateInput,
    tracking: Option<&Tracking>,
    window: Option<&[LaneSignal]>,
) -> Result<Decision, StateError> {
    let current = tracking.map_or(0, |tracking| tracking.version);
    if state.mode == StateMode::Delta
        && let Some(base) = state.base_version()
        && base != current
    {
        let message =
            format!("the delta builds on version {base}, but the lane is at version {current}; send a snapshot");
        return Err(StateError::new("state_stale_base", message));
    }
    let next = Decision::Accept { version: current + 1 };
    let Some(tracking) = tracking else { return Ok(next) };
    if tracking.current_cache_key != state.key() {
        return Ok(next);
    }
    let Some(window) = window else {
        return Ok(if tracking.current_mode == Some(state.mode) { Decision::Skip } else { next });
    };
    let mode_fits = tracking.current_mode.is_none_or(|mode| mode == state.mode);
    if !mode_fits {
        return Ok(next);
    }
    let copy = window.iter().any(|signal| signal.mode == state.mode && signal.cache_key == state.cache_key);
    if copy {
        return Ok(Decision::Skip);
    }
    // It fell out of view: the same version again (STATE-031).
    Ok(if tracking.current_mode.is_some() { Decision::Accept { version: current.max(1) } } else { next })
}

/// The lanes of one run's thread while a request is prepared: read once, written once (STATE-060).
#[derive(Debug)]
pub(crate) struct LaneBook {
    thread: ThreadKey,
    read: HashMap<String, Tracking>,
    now: HashMap<String, Tracking>,
    /// In order of their first change.
    changed: Vec<String>,
    /// What was placed since the last write, in order.
    placed: Vec<Placed>,
    /// Lanes whose snapshot is not in the prompt that was sent (STATE-076).
    stale: HashSet<String>,
    /// How often each lane's processor has failed in a row (STATE-058).
    failures: HashMap<String, u32>,
}

/// A state that was placed, and is not tracked yet.
#[derive(Debug)]
struct Placed {
    lane: String,
    signal: MessageId,
    key: String,
    mode: StateMode,
    at: Timestamp,
    /// It is a new version, not an old one again.
    grew: bool,
}

impl LaneBook {
    pub(crate) fn new(thread: ThreadKey) -> Self {
        Self {
            thread,
            read: HashMap::new(),
            now: HashMap::new(),
            changed: Vec::new(),
            placed: Vec::new(),
            stale: HashSet::new(),
            failures: HashMap::new(),
        }
    }

    pub(crate) fn thread(&self) -> &ThreadKey {
        &self.thread
    }

    /// Begins a step with what the thread says.
    pub(crate) fn begin(&mut self, tracked: Vec<(String, Tracking)>) {
        self.read = tracked.into_iter().collect();
        self.now.clone_from(&self.read);
        self.changed.clear();
        self.placed.clear();
    }

    pub(crate) fn tracking(&self, lane: &str) -> Option<&Tracking> {
        self.now.get(lane)
    }

    pub(crate) fn mark_stale(&mut self, lane: &str) {
        self.stale.insert(lane.to_owned());
    }

    pub(crate) fn is_stale(&self, lane: &str) -> bool {
        self.stale.contains(lane)
    }

    /// Another failure of the lane's processor; gives how many there were in a row.
    pub(crate) fn failed(&mut self, lane: &str) -> u32 {
        let count = self.failures.entry(lane.to_owned()).or_default();
        *count += 1;
        *count
    }

    pub(crate) fn succeeded(&mut self, lane: &str) {
        self.failures.remove(lane);
    }

    /// Takes in a state of this run: the signal to place, or `None` if the model has it already.
    ///
    /// # Errors
    /// Whatever is wrong with the state (STATE-003, STATE-004, STATE-082).
    pub(crate) fn accept(
        &mut self,
        default_lane: &str,
        state: &StateInput,
        window: &[StoredMessage],
        now: Timestamp,
    ) -> Result<Option<Signal>, StateError> {
        state.check()?;
        let lane = state.lane(Some(default_lane))?;
        let signals =
            if self.stale.contains(&lane) { Vec::new() } else { lane_signals(window, &lane, &self.thread.thread_id) };
        let earlier = self.now.get(&lane);
        if earlier.is_none() {
            check_room(self.now.len())?;
        }
        let Decision::Accept { version } = decide(state, earlier, Some(&signals))? else { return Ok(None) };
        let grew = version > earlier.map_or(0, |earlier| earlier.version);
        let signal = state.signal(&lane, &self.thread.thread_id, version, MessageId::fresh(), now)?;
        let tracking = Tracking::after(earlier, (state.key(), state.mode, version), &signal.id, now);
        if state.mode == StateMode::Snapshot {
            self.stale.remove(&lane);
        }
        self.now.insert(lane.clone(), tracking);
        if !self.changed.contains(&lane) {
            self.changed.push(lane.clone());
        }
        self.placed.push(Placed { lane, signal: signal.id.clone(), key: state.key(), mode: state.mode, at: now, grew });
        Ok(Some(signal))
    }

    /// What is to be written, if anything.
    pub(crate) fn changes(&self) -> Vec<LaneChange> {
        let change = |lane: &String| LaneChange {
            lane: lane.clone(),
            expected: self.read.get(lane).cloned(),
            tracking: self.now.get(lane).cloned(),
        };
        self.changed.iter().map(change).collect()
    }

    /// The write is durable.
    pub(crate) fn written(&mut self) {
        self.read.clone_from(&self.now);
        self.changed.clear();
        self.placed.clear();
    }

    /// Somebody else wrote first (STATE-081): this run's states come after theirs. Gives the new version of each signal
    /// that has to change.
    pub(crate) fn rebase(&mut self, tracked: Vec<(String, Tracking)>) -> Vec<(MessageId, u64)> {
        let read: HashMap<String, Tracking> = tracked.into_iter().collect();
        let mut moved = Vec::new();
        for lane in &self.changed {
            let mut tracking = read.get(lane).cloned();
            for placed in self.placed.iter().filter(|placed| placed.lane == *lane) {
                let current = tracking.as_ref().map_or(0, |tracking| tracking.version);
                let version = if placed.grew { current + 1 } else { current.max(1) };
                let written = (placed.key.clone(), placed.mode, version);
                tracking = Some(Tracking::after(tracking.as_ref(), written, &placed.signal, placed.at));
                moved.push((placed.signal.clone(), version));
            }
            if let Some(tracking) = tracking {
                self.now.insert(lane.clone(), tracking);
            }
        }
        for (lane, tracking) in &read {
            if !self.changed.contains(lane) {
                self.now.insert(lane.clone(), tracking.clone());
            }
        }
        self.read = read;
        moved
    }
}

/// Writes another version into a placed state.
pub(crate) fn set_version(message: &mut StoredMessage, version: u64) {
    let signal = message.content.metadata.as_mut().and_then(|metadata| metadata.get_mut("signal"));
    if let Some(state) = signal.and_then(|signal| signal.pointer_mut("/metadata/state"))
        && let Some(state) = state.as_object_mut()
    {
        state.insert("version".to_owned(), json!(version));
    }
}
