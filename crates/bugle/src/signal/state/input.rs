//! What a producer says about a lane (STATE §1).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::tracking::lane_key;
use crate::{
    id::MessageId,
    json::{Object, json},
    signal::{Attributes, Contents, InvalidSignal, Signal, SignalInput},
    time::Timestamp,
};

/// The longest id of a lane, in bytes.
const LANE_ID_MAX: usize = 256;

/// Whether a state is whole or a change (STATE-002).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StateMode {
    /// The full state.
    #[default]
    Snapshot,
    /// What has changed since the last snapshot and the deltas after it.
    Delta,
}

/// The state of a lane.
///
/// ```
/// use bugle::signal::StateInput;
/// let open = StateInput::snapshot("editor", "main.rs:12", "Open file: main.rs, line 12");
/// assert_eq!(open.id.as_deref(), Some("editor"));
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StateInput {
    /// The lane. Producers outside of a run must name one; for a processor its own lane is the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Identity of this state: states with equal keys and modes are one. Keys over 256 bytes are kept as a hash.
    pub cache_key: String,
    /// What the model reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contents: Option<Contents>,
    /// Whole or change.
    pub mode: StateMode,
    /// The state as data, for the producer; allowed on deltas too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<Value>,
    /// The change as data, for the producer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delta: Option<Value>,
    /// Rendered on the tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Attributes>,
    /// Stored, never rendered. `state.baseVersion` makes a delta fail if the lane has moved on (STATE-082);
    /// `state.reinject: false` keeps the lane from being put back when it falls out of view (STATE-036).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Object>,
    /// For the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provider_options: Option<Object>,
    /// The tag the model sees. Default `state`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag_name: Option<String>,
    /// Must stay `None`: state is always kept (STATE-003).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transient: Option<bool>,
}

/// Why a state was refused. Nothing was stored.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct StateError {
    /// A stable code: `state_id_required`, `state_conflict`, ….
    pub code: &'static str,
    /// The field of the state that is wrong, if one is.
    pub field: Option<String>,
    /// What is wrong and what to do.
    pub message: String,
}

impl StateError {
    pub(crate) fn new(code: &'static str, message: impl Into<String>) -> Self {
        Self { code, field: None, message: message.into() }
    }

    fn at(field: impl Into<String>, code: &'static str, message: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..Self::new(code, message) }
    }
}

impl From<InvalidSignal> for StateError {
    fn from(error: InvalidSignal) -> Self {
        Self::at(error.field, "state_invalid", error.message)
    }
}

impl StateInput {
    /// A whole state.
    pub fn snapshot(id: impl Into<String>, cache_key: impl Into<String>, contents: impl Into<Contents>) -> Self {
        Self { id: Some(id.into()), cache_key: cache_key.into(), contents: Some(contents.into()), ..Self::default() }
    }

    /// A change.
    pub fn delta(id: impl Into<String>, cache_key: impl Into<String>, contents: impl Into<Contents>) -> Self {
        Self { mode: StateMode::Delta, ..Self::snapshot(id, cache_key, contents) }
    }

    /// Reads a wire body.
    ///
    /// # Errors
    /// [`StateError`] with the code of STATE-003, or `state_invalid` naming the field.
    pub fn from_json(value: &Value) -> Result<Self, StateError> {
        let Value::Object(fields) = value else {
            return Err(StateError::new("state_invalid", "a state must be an object with id, cacheKey and contents"));
        };
        if fields.contains_key("transient") {
            return Err(not_transient());
        }
        let text = |name: &str| match fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(StateError::at(name, "state_invalid", format!("{name} must be a string"))),
        };
        let object = |name: &str| match fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object.clone())),
            Some(_) => Err(StateError::at(name, "state_invalid", format!("{name} must be an object"))),
        };
        let mode = match fields.get("mode") {
            None | Some(Value::Null) => StateMode::Snapshot,
            Some(mode) => serde_json::from_value(mode.clone())
                .map_err(|_| StateError::at("mode", "state_invalid", "mode must be snapshot or delta"))?,
        };
        let contents = match fields.get("contents") {
            None | Some(Value::Null) => None,
            Some(contents) => Some(Contents::from_json(contents)?),
        };
        Ok(Self {
            id: text("id")?,
            cache_key: text("cacheKey")?.unwrap_or_default(),
            contents,
            mode,
            value: fields.get("value").cloned(),
            delta: fields.get("delta").cloned(),
            attributes: object("attributes")?.map(|object| object.into_iter().collect()),
            metadata: object("metadata")?,
            provider_options: object("providerOptions")?,
            tag_name: text("tagName")?,
            transient: None,
        })
    }

    /// The lane this state is for.
    ///
    /// # Errors
    /// `state_id_required`; `state_invalid` for one that is too long.
    pub(crate) fn lane(&self, default: Option<&str>) -> Result<String, StateError> {
        let lane = self.id.as_deref().or(default).filter(|lane| !lane.trim().is_empty()).ok_or_else(|| {
            StateError::at("id", "state_id_required", "a state needs the id of its lane, such as \"browser\"")
        })?;
        if lane.len() > LANE_ID_MAX {
            let message = format!("the id of a lane is at most {LANE_ID_MAX} bytes long");
            return Err(StateError::at("id", "state_invalid", message));
        }
        Ok(lane.to_owned())
    }

    /// Checks what can be checked without knowing the lane (STATE-003, STATE-004).
    ///
    /// # Errors
    /// The code of STATE-003, or `state_invalid`.
    pub(crate) fn check(&self) -> Result<(), StateError> {
        if self.cache_key.is_empty() {
            let message = "a state needs a cacheKey: states with equal keys count as the same";
            return Err(StateError::at("cacheKey", "state_cache_key_required", message));
        }
        if self.transient.is_some() {
            return Err(not_transient());
        }
        let probe = self.signal_input(Object::new());
        probe.normalise(|| MessageId::from("probe"), Timestamp::default())?;
        Ok(())
    }

    fn signal_input(&self, metadata: Object) -> SignalInput {
        SignalInput {
            signal_type: Some("state".to_owned()),
            tag_name: self.tag_name.clone(),
            contents: self.contents.clone(),
            attributes: self.attributes.clone(),
            metadata: (!metadata.is_empty()).then_some(metadata),
            provider_options: self.provider_options.clone(),
            ..SignalInput::default()
        }
    }

    /// The version a delta builds on, if its producer says so (STATE-082).
    pub(crate) fn base_version(&self) -> Option<u64> {
        self.metadata.as_ref()?.get("state")?.get("baseVersion")?.as_u64()
    }

    /// The key that tracking compares (STATE-025).
    pub(crate) fn key(&self) -> String {
        lane_key(&self.cache_key)
    }

    /// The signal of this state as `version` of the lane (STATE-005, STATE-010).
    ///
    /// # Errors
    /// `state_invalid`.
    pub(crate) fn signal(
        &self,
        lane: &str,
        thread: &str,
        version: u64,
        id: MessageId,
        now: Timestamp,
    ) -> Result<Signal, StateError> {
        let mut metadata = self.metadata.clone().unwrap_or_default();
        let mut state = match metadata.shift_remove("state") {
            Some(Value::Object(state)) => state,
            _ => Object::new(),
        };
        for (name, value) in [
            ("id", json!(lane)),
            ("cacheKey", json!(self.cache_key)),
            ("mode", json!(self.mode)),
            ("threadId", json!(thread)),
            ("version", json!(version)),
        ] {
            state.insert(name.to_owned(), value);
        }
        metadata.insert("state".to_owned(), Value::Object(state));
        if let Some(value) = &self.value {
            metadata.insert("value".to_owned(), value.clone());
        }
        if let Some(delta) = &self.delta {
            metadata.insert("delta".to_owned(), delta.clone());
        }
        let mut signal = self.signal_input(metadata).normalise(|| id, now)?;
        signal.accepted_at = Some(now);
        Ok(signal)
    }
}

fn not_transient() -> StateError {
    StateError::at("transient", "state_not_transient", "a state is always kept; leave transient out")
}
