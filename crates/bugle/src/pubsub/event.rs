//! Events as publishers say them and as they travel (PSL §1.1).

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{json::Value, time::Timestamp};

/// What a publisher says.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// The event's name.
    pub kind: Arc<str>,
    /// The run; an event of a thread without a run carries the thread's key.
    pub run_id: Arc<str>,
    /// The payload.
    pub data: Arc<Value>,
    /// The place in a replayed topic; every backend passes it through.
    pub index: Option<u64>,
}

impl NewEvent {
    /// An event without an index.
    pub fn new(kind: impl Into<Arc<str>>, run_id: impl Into<Arc<str>>, data: impl Into<Arc<Value>>) -> Self {
        Self { kind: kind.into(), run_id: run_id.into(), data: data.into(), index: None }
    }

    /// Gives it an id and a time: once, in the outermost layer (PSL-003).
    pub fn stamp(self, created_at: Timestamp) -> Event {
        let Self { kind, run_id, data, index } = self;
        Event { kind, run_id, data, id: Uuid::new_v4().to_string().into(), created_at, index, delivery_attempt: 1 }
    }
}

/// An event as it travels (PSL §1.1). Cloning shares the payload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// The event's name.
    #[serde(rename = "type")]
    pub kind: Arc<str>,
    /// The run, or the thread's key.
    pub run_id: Arc<str>,
    /// The payload.
    #[serde(default)]
    pub data: Arc<Value>,
    /// Random (UUID v4); the same in every copy of the event.
    pub id: Arc<str>,
    /// When it was published.
    pub created_at: Timestamp,
    /// The place in a replayed topic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u64>,
    /// 1 at first, one more each time the event was given back (PSL-002).
    #[serde(default = "first_attempt")]
    pub delivery_attempt: u32,
}

fn first_attempt() -> u32 {
    1
}

impl Event {
    /// The same event, delivered once more.
    pub fn redelivered(&self) -> Self {
        Self { delivery_attempt: self.delivery_attempt.saturating_add(1), ..self.clone() }
    }
}

/// How far an event goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reach {
    /// To every subscriber of the bus.
    #[default]
    Everywhere,
    /// Only to subscribers in the publishing process; never serialised, never retained (PSL-017).
    ThisProcess,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::json;

    #[test]
    fn psl_001_the_envelope_reads_and_writes_as_specified() {
        let mut event = NewEvent::new("e", "r", json!({"x": 1})).stamp(Timestamp::from_millis(1_767_225_600_000));
        assert_eq!(Uuid::parse_str(&event.id).unwrap().get_version_num(), 4);
        event.id = "i".into();
        let mut wire = json!({
            "type": "e", "runId": "r", "data": {"x": 1}, "id": "i",
            "createdAt": "2026-01-01T00:00:00.000Z", "deliveryAttempt": 1
        });
        assert_eq!(serde_json::to_value(&event).unwrap(), wire);
        wire.as_object_mut().unwrap().remove("deliveryAttempt");
        assert_eq!(serde_json::from_value::<Event>(wire.clone()).unwrap(), event, "the first attempt need not be told");
        wire["index"] = json!(7);
        wire["deliveryAttempt"] = json!(2);
        let again = Event { index: Some(7), ..event.redelivered() };
        assert_eq!(serde_json::from_value::<Event>(wire).unwrap(), again);
    }
}
