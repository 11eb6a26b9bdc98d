//! The signal: one normalised input of a thread (SIG §2). User messages are signals of type `user`.
//!
//! [`SignalInput`] is what a caller gives; [`Signal`] is what every other room sees. Validation happens once, in
//! [`SignalInput::normalise`]; after it a signal can be rendered, stored and echoed without failing.

mod echo;
mod normalise;
mod state;
mod stored;
mod xml;

pub use echo::echo_signal_type;
pub use normalise::{InvalidSignal, merge_attributes, validate_attributes};
pub(crate) use state::{Decision, LaneBook, check_room, decide, lane_signals, patch_lanes, set_version, wanted_ids};
pub use state::{
    LaneChange, LaneCopy, LaneSignal, LaneView, StateAnswer, StateError, StateInput, StateMode, Tracking, lane_key,
    tracked_lanes,
};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{id::MessageId, json::Object, time::Timestamp};

/// The four kinds of signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SignalType {
    /// Text written by a person.
    User,
    /// The value of something that changes.
    State,
    /// An outside event.
    Notification,
    /// Context that reacts to what happens: reminders, skills.
    Reactive,
}

impl SignalType {
    /// The wire name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::State => "state",
            Self::Notification => "notification",
            Self::Reactive => "reactive",
        }
    }

    /// The tag a signal of this type has unless it names its own.
    pub const fn default_tag(self) -> &'static str {
        match self {
            Self::Reactive => "system-reminder",
            other => other.as_str(),
        }
    }
}

/// What a signal says: text, or text and files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Contents {
    /// Text.
    Text(String),
    /// Text and files, in order.
    Parts(Vec<ContentPart>),
}

impl From<&str> for Contents {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Contents {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// A part of a signal's contents (SIG-015).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum ContentPart {
    /// Text.
    Text {
        /// The text.
        text: String,
        /// Options per provider; they stay on this part.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider_options: Option<Object>,
    },
    /// A file.
    File {
        /// Base64, a `data:` URI, or a URL.
        data: String,
        /// The media type.
        media_type: String,
        /// The file's name.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        filename: Option<String>,
        /// Options per provider; they stay on this part.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider_options: Option<Object>,
    },
}

/// Attributes in the order given: name to string, number, boolean or null.
pub type Attributes = IndexMap<String, Value>;

/// One normalised input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Signal {
    /// The id of the signal, and of the message it becomes.
    pub id: MessageId,
    /// Its kind.
    #[serde(rename = "type")]
    pub signal_type: SignalType,
    /// The XML element that shows it to the model.
    pub tag_name: String,
    /// What it says.
    pub contents: Contents,
    /// Shown to the model as XML attributes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Attributes>,
    /// Never shown to the model; echoed and stored unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Object>,
    /// Options per provider, for the whole message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_options: Option<Object>,
    /// When it was made and, once placed, when it was placed (SIG-042).
    pub created_at: Timestamp,
    /// When it was accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accepted_at: Option<Timestamp>,
    /// Seen by the current run only, never stored (SIG-025).
    #[serde(default, skip_serializing_if = "crate::json::is_false")]
    pub transient: bool,
}

/// What a caller gives for a signal. Build one with [`SignalInput::new`] or [`SignalInput::message`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SignalInput {
    /// Kept if given, else minted.
    pub id: Option<MessageId>,
    /// One of the types of SIG §2, legacy names included.
    pub signal_type: Option<String>,
    /// Kept if given, else the type's default.
    pub tag_name: Option<String>,
    /// Required.
    pub contents: Option<Contents>,
    /// Shown to the model as XML attributes.
    pub attributes: Option<Attributes>,
    /// Never shown to the model.
    pub metadata: Option<Object>,
    /// Options per provider.
    pub provider_options: Option<Object>,
    /// Default now.
    pub created_at: Option<Timestamp>,
    /// Kept when an already normalised signal is normalised again; overwritten on acceptance.
    pub accepted_at: Option<Timestamp>,
    /// `Some(_)` is refused for `state` (SIG-012).
    pub transient: Option<bool>,
}
