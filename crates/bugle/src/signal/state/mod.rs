//! State signals: the current value of a named, thread-scoped lane, told once and kept in view (STATE).
//!
//! What a producer gives is a [`StateInput`]. `tracking` is the small record per lane on the thread, `book` decides what
//! is sent and what is skipped, `history` finds a lane's signals among messages. All of it is without IO.

mod book;
mod history;
mod input;
mod tracking;

pub(crate) use book::{Decision, LaneBook, check_room, decide, set_version};
pub use history::{LaneSignal, LaneView};
pub(crate) use history::{lane_signals, wanted_ids};
pub use input::{StateError, StateInput, StateMode};
pub(crate) use tracking::patch_lanes;
pub use tracking::{LaneCopy, Tracking, lane_key, tracked_lanes};

use serde::{Deserialize, Serialize};

use super::Signal;

/// What became of a state that a processor sent.
#[derive(Debug, Clone, PartialEq)]
pub enum StateAnswer {
    /// It is in the conversation now.
    Sent(Signal),
    /// It is what the model sees already (STATE-032).
    Skipped,
}

/// One change of a lane's tracking, written only if the lane is still as it was read (STATE-026, STATE-081).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LaneChange {
    /// The lane.
    pub lane: String,
    /// The lane as it was read; `None` if it was not tracked.
    pub expected: Option<Tracking>,
    /// The lane as it is to be; `None` takes it away.
    pub tracking: Option<Tracking>,
}

#[cfg(test)]
mod tests;
