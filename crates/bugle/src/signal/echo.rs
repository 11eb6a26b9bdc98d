//! The chunk that shows an accepted signal to subscribers (SIG §5).

use serde_json::Value;

use super::{Signal, SignalType};
use crate::{
    chunk::{Chunk, ChunkBody},
    id::RunId,
};

const USER_MESSAGE: &str = "data-user-message";
const SIGNAL: &str = "data-signal";

impl Signal {
    /// The echo of the signal in the run that took it in (SIG-050). Call it on what [`Signal::placed`] gives, so that
    /// the echo equals what a later load of the row gives (SIG-051).
    pub fn echo(&self, run_id: &RunId) -> Chunk {
        let kind = if self.signal_type == SignalType::User { USER_MESSAGE } else { SIGNAL };
        let contents = self.contents.as_stored().into_owned();
        // A signal is made of strings, numbers and JSON: writing it as JSON cannot fail.
        let data = serde_json::to_value(Self { contents, ..self.clone() }).unwrap_or_default();
        Chunk::transient_data(run_id, kind, data)
    }
}

/// The type of the signal that a chunk echoes; `None` if it is no echo of a known type (SIG-346).
pub fn echo_signal_type(chunk: &Chunk) -> Option<SignalType> {
    let ChunkBody::Data(data) = &chunk.body else { return None };
    let named = data.data.get("type").and_then(Value::as_str);
    match data.kind.as_str() {
        USER_MESSAGE => named.map_or(Some(SignalType::User), SignalType::parse),
        SIGNAL => named.and_then(SignalType::parse),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        signal::{SignalInput, xml::tests::rows},
        time::Timestamp,
    };

    #[test]
    fn sig_050_an_echo_shows_the_signal() {
        let input = SignalInput {
            id: Some("5c".into()),
            attributes: Some([("name".to_owned(), json!("Jane"))].into()),
            accepted_at: Timestamp::parse("2025-11-30T10:05:02.124Z"),
            ..SignalInput::message("Use the note too.")
        };
        let signal = input.normalise(|| unreachable!(), Timestamp::default()).unwrap();
        let echo = signal.placed(Timestamp::parse("2025-11-30T10:05:02.169Z").unwrap()).echo(&"9f".into());
        assert_eq!(
            serde_json::to_value(&echo).unwrap(),
            json!({"type": "data-user-message", "transient": true, "runId": "9f", "data": {
                "id": "5c", "type": "user", "tagName": "user", "contents": "Use the note too.",
                "createdAt": "2025-11-30T10:05:02.169Z", "acceptedAt": "2025-11-30T10:05:02.124Z",
                "attributes": {"name": "Jane"}}})
        );
        let transient = SignalInput { transient: Some(true), ..SignalInput::new("reactive", "x") };
        let transient = transient.normalise(|| "t".into(), Timestamp::default()).unwrap().echo(&"r".into());
        let value = serde_json::to_value(&transient).unwrap();
        assert_eq!((&value["type"], &value["data"]["transient"]), (&json!("data-signal"), &json!(true)));
        assert_eq!(echo_signal_type(&transient), Some(SignalType::Reactive));
    }

    #[test]
    fn sig_051_an_echo_equals_what_a_later_load_gives() {
        let at = Timestamp::from_millis(1000);
        for (signal, _) in rows() {
            let loaded = Signal::from_stored(&signal.to_stored(None, at)).unwrap();
            assert_eq!(signal.placed(at).echo(&"r".into()), loaded.echo(&"r".into()));
        }
    }

    #[test]
    fn sig_346_only_echoes_of_known_types_can_be_hidden() {
        let run = RunId::from("r");
        let chunk = |kind: &str, data| Chunk::transient_data(&run, kind, data);
        for (kind, data, expected) in [
            ("data-user-message", json!({"type": "user"}), Some(SignalType::User)),
            ("data-user-message", json!({"type": "user-message"}), Some(SignalType::User)),
            ("data-signal", json!({"type": "system-reminder"}), Some(SignalType::Reactive)),
            ("data-signal", json!({"type": "state"}), Some(SignalType::State)),
            ("data-signal", json!({"type": "weather"}), None),
            ("data-other", json!({"type": "user"}), None),
        ] {
            assert_eq!(echo_signal_type(&chunk(kind, data)), expected);
        }
    }
}
