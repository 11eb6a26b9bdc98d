//! The row a signal is stored as, and the way back (SIG §4).

use serde_json::{Value, json};

use super::{ContentPart, Contents, Signal, SignalType};
use crate::{
    id::{MessageId, ThreadKey},
    json::Object,
    message::{FilePart, MessageContent, Part, Role, StoredMessage, TextPart},
    time::Timestamp,
};

impl Signal {
    /// The row the signal is stored as once it stands in the transcript (SIG-040, SIG-042).
    pub fn to_stored(&self, thread: Option<&ThreadKey>, placed_at: Timestamp) -> StoredMessage {
        let created = Some(placed_at.as_millis());
        let text_part = |text: &str, provider_metadata: Option<&Object>| {
            Part::Text(TextPart {
                text: text.to_owned(),
                created_at: created,
                provider_metadata: provider_metadata.cloned(),
                extra: Object::new(),
            })
        };
        let parts = match &self.contents {
            Contents::Text(text) => vec![text_part(text, None)],
            Contents::Parts(parts) if parts.is_empty() => vec![text_part("", None)],
            Contents::Parts(parts) => parts
                .iter()
                .map(|part| match part {
                    ContentPart::Text { text, provider_options } => text_part(text, provider_options.as_ref()),
                    ContentPart::File { data, media_type, filename, provider_options } => Part::File(FilePart {
                        data: data.clone(),
                        mime_type: Some(media_type.clone()),
                        filename: filename.clone(),
                        created_at: created,
                        provider_metadata: provider_options.clone(),
                        extra: Object::new(),
                    }),
                })
                .collect(),
        };
        let mut signal = Object::new();
        signal.insert("id".into(), json!(self.id));
        signal.insert("type".into(), json!(self.signal_type));
        signal.insert("tagName".into(), json!(self.tag_name));
        signal.insert("createdAt".into(), json!(placed_at));
        signal.insert("acceptedAt".into(), json!(self.accepted_at.unwrap_or(self.created_at)));
        if let Some(attributes) = &self.attributes {
            signal.insert("attributes".into(), json!(attributes));
        }
        if let Some(metadata) = &self.metadata {
            signal.insert("metadata".into(), Value::Object(metadata.clone()));
        }
        if self.transient {
            signal.insert("transient".into(), json!(true));
        }
        if matches!(&self.contents, Contents::Parts(parts) if parts.is_empty()) {
            // The one case that parts cannot tell: no parts, and one empty text, are stored alike but shown differently.
            signal.insert("contents".into(), json!([]));
        }
        let mut metadata = Object::new();
        metadata.insert("signal".into(), Value::Object(signal));
        StoredMessage {
            id: self.id.clone(),
            role: Role::Signal,
            created_at: placed_at,
            thread_id: thread.map(|thread| thread.thread_id.to_string()),
            resource_id: thread.and_then(|thread| thread.resource_id.as_deref().map(str::to_owned)),
            kind: Some(self.tag_name.clone()),
            content: MessageContent {
                parts,
                metadata: Some(metadata),
                provider_metadata: self.provider_options.clone(),
                ..MessageContent::default()
            },
        }
    }

    /// The signal that a row holds, legacy forms included (SIG-045, SIG-046); `None` if the row is not a signal. Never
    /// fails: what cannot be read falls back to the row's own columns.
    pub fn from_stored(message: &StoredMessage) -> Option<Self> {
        if message.role != Role::Signal {
            return None;
        }
        let empty = Object::new();
        let meta = message.content.meta("signal").and_then(Value::as_object).unwrap_or(&empty);
        let text = |name: &str| meta.get(name).and_then(Value::as_str);
        let time = |name: &str| meta.get(name).and_then(|at| serde_json::from_value::<Timestamp>(at.clone()).ok());
        let kind = message.kind.as_deref().filter(|kind| *kind != "v2");
        let row_type = kind.map_or(Some(SignalType::User), SignalType::parse);
        let signal_type = text("type").and_then(SignalType::parse).or(row_type).unwrap_or(SignalType::Reactive);
        let tag_name = text("tagName").map_or_else(
            || match kind {
                // A row type that names no signal type can only be a tag.
                Some(kind) if row_type.is_none() => kind.to_owned(),
                _ => signal_type.default_tag().to_owned(),
            },
            str::to_owned,
        );
        let contents = meta
            .get("contents")
            .and_then(legacy_contents)
            .unwrap_or_else(|| Contents::Parts(message.content.parts.iter().filter_map(from_part).collect()));
        // A row whose parts hold nothing to show still says something: nothing.
        let contents = match contents {
            Contents::Parts(parts) if parts.is_empty() && !meta.contains_key("contents") => {
                Contents::Text(message.content.content.clone().unwrap_or_default())
            }
            other => other.as_stored().into_owned(),
        };
        Some(Self {
            id: text("id").map_or_else(|| message.id.clone(), MessageId::from),
            signal_type,
            tag_name,
            contents,
            attributes: meta
                .get("attributes")
                .and_then(Value::as_object)
                .map(|attributes| attributes.iter().map(|(name, value)| (name.clone(), value.clone())).collect()),
            metadata: meta.get("metadata").and_then(Value::as_object).cloned(),
            provider_options: message.content.provider_metadata.clone(),
            created_at: time("createdAt").unwrap_or(message.created_at),
            accepted_at: time("acceptedAt"),
            transient: meta.get("transient") == Some(&Value::Bool(true)),
        })
    }
}

fn from_part(part: &Part) -> Option<ContentPart> {
    match part {
        Part::Text(part) => {
            Some(ContentPart::Text { text: part.text.clone(), provider_options: part.provider_metadata.clone() })
        }
        Part::File(part) => Some(ContentPart::File {
            data: part.data.clone(),
            media_type: part.mime_type.clone().unwrap_or_else(|| "application/octet-stream".to_owned()),
            filename: part.filename.clone(),
            provider_options: part.provider_metadata.clone(),
        }),
        _ => None,
    }
}

/// What older rows kept beside their parts: a string, parts, `{role: "user", content}`, or an array of those.
fn legacy_contents(value: &Value) -> Option<Contents> {
    match value {
        Value::String(text) => Some(Contents::Text(text.clone())),
        Value::Object(message) if message.contains_key("content") => legacy_contents(message.get("content")?),
        Value::Array(items) => {
            let mut parts = Vec::new();
            for item in items {
                if item.get("role").is_some() || item.get("content").is_some() {
                    match legacy_contents(item)? {
                        Contents::Text(text) => parts.push(ContentPart::Text { text, provider_options: None }),
                        Contents::Parts(more) => parts.extend(more),
                    }
                } else if let Value::String(text) = item {
                    parts.push(ContentPart::Text { text: text.clone(), provider_options: None });
                } else {
                    parts.extend(legacy_part(item));
                }
            }
            (!parts.is_empty() || items.is_empty()).then_some(Contents::Parts(parts))
        }
        _ => None,
    }
}

fn legacy_part(value: &Value) -> Option<ContentPart> {
    let text = |names: &[&str]| names.iter().find_map(|name| value.get(name)?.as_str()).map(str::to_owned);
    let provider_options =
        ["providerOptions", "providerMetadata"].iter().find_map(|name| value.get(name)?.as_object()).cloned();
    match value.get("type")?.as_str()? {
        "text" => Some(ContentPart::Text { text: text(&["text"])?, provider_options }),
        kind @ ("file" | "image") => Some(ContentPart::File {
            data: text(&["data", "image", "url"])?,
            media_type: text(&["mediaType", "mimeType"])
                .unwrap_or_else(|| if kind == "image" { "image/*" } else { "application/octet-stream" }.to_owned()),
            filename: text(&["filename"]),
            provider_options,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::signal::{
        Attributes, SignalInput,
        xml::tests::{content_json, rows},
    };

    fn at(text: &str) -> Timestamp {
        Timestamp::parse(text).unwrap()
    }

    fn row(value: Value) -> StoredMessage {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn sig_040_a_signal_is_stored_as_one_row() {
        let input = SignalInput {
            id: Some("sig-1".into()),
            attributes: Some([("source".to_owned(), json!("ci"))].into()),
            metadata: json!({"build": 7}).as_object().cloned(),
            created_at: Some(at("2025-11-30T10:05:02.100Z")),
            accepted_at: Some(at("2025-11-30T10:05:02.124Z")),
            ..SignalInput::new("notification", "CI failed")
        };
        let signal = input.normalise(|| unreachable!(), Timestamp::default()).unwrap();
        let stored = signal.to_stored(Some(&ThreadKey::new("r1", "t1")), at("2025-11-30T10:05:02.169Z"));
        let expected = json!({
            "id": "sig-1", "role": "signal", "type": "notification", "createdAt": "2025-11-30T10:05:02.169Z",
            "threadId": "t1", "resourceId": "r1",
            "content": {"format": 2, "parts": [{"type": "text", "text": "CI failed", "createdAt": 1_764_497_102_169_i64}],
                "metadata": {"signal": {"id": "sig-1", "type": "notification", "tagName": "notification",
                    "createdAt": "2025-11-30T10:05:02.169Z", "acceptedAt": "2025-11-30T10:05:02.124Z",
                    "attributes": {"source": "ci"}, "metadata": {"build": 7}}}}
        });
        assert_eq!(serde_json::to_value(&stored).unwrap(), expected);
        assert_eq!(Signal::from_stored(&stored).unwrap(), signal.placed(at("2025-11-30T10:05:02.169Z")));
    }

    #[test]
    fn sig_040_files_options_and_the_transient_flag_have_their_places() {
        let body = json!({"type": "user", "tagName": "note", "transient": true, "attributes": {"n": null},
            "providerOptions": {"openai": {"a": 1}},
            "contents": [{"type": "file", "data": "QQ==", "mediaType": "image/png", "filename": "a.png", "providerOptions": {"p": {}}}]});
        let signal =
            SignalInput::from_json(&body).unwrap().normalise(|| "s".into(), Timestamp::from_millis(1)).unwrap();
        let stored = serde_json::to_value(signal.to_stored(None, Timestamp::from_millis(9))).unwrap();
        assert_eq!(stored["type"], "note");
        assert_eq!(
            stored["content"]["parts"],
            json!([{"type": "file", "data": "QQ==", "mimeType": "image/png", "filename": "a.png", "createdAt": 9, "providerMetadata": {"p": {}}}])
        );
        assert_eq!(stored["content"]["providerMetadata"], json!({"openai": {"a": 1}}));
        let meta = &stored["content"]["metadata"]["signal"];
        assert_eq!((&meta["transient"], &meta["attributes"]), (&json!(true), &json!({"n": null})));
        assert_eq!(meta.get("contents"), None, "SIG-041");
        assert_eq!(meta["acceptedAt"], "1970-01-01T00:00:00.001Z", "SIG-042: falls back to the old createdAt");
        let empty = SignalInput::message("").normalise(|| "s".into(), Timestamp::default()).unwrap();
        let stored = serde_json::to_value(empty.to_stored(None, Timestamp::default())).unwrap();
        assert_eq!(stored["content"]["parts"], json!([{"type": "text", "text": "", "createdAt": 0}]));
    }

    #[test]
    fn sig_045_what_the_metadata_lacks_the_row_gives() {
        let loaded = Signal::from_stored(&row(json!({
            "id": "m", "role": "signal", "createdAt": "2026-01-01T00:00:00.000Z",
            "content": {"format": 2, "parts": [{"type": "text", "text": "hi"}]}
        })))
        .unwrap();
        assert_eq!((loaded.id.as_str(), loaded.signal_type, loaded.tag_name.as_str()), ("m", SignalType::User, "user"));
        assert_eq!((loaded.created_at, loaded.accepted_at), (at("2026-01-01T00:00:00Z"), None));
        let of_kind = |kind: &str, meta: Value| {
            let loaded = Signal::from_stored(&row(json!({
                "id": "m", "role": "signal", "type": kind, "createdAt": "2026-01-01T00:00:00.000Z",
                "content": {"format": 2, "parts": [], "metadata": {"signal": meta}}
            })));
            loaded.map(|loaded| (loaded.signal_type.as_str(), loaded.tag_name)).unwrap()
        };
        assert_eq!(of_kind("system-reminder", json!(null)), ("reactive", "system-reminder".to_owned()));
        assert_eq!(of_kind("skill", json!({})), ("reactive", "skill".to_owned()));
        assert_eq!(of_kind("ci", json!({"type": "notification"})), ("notification", "ci".to_owned()));
        assert_eq!(of_kind("user", json!({"type": "user-message", "tagName": "x"})), ("user", "x".to_owned()));
        assert_eq!(of_kind("v2", json!({})), ("user", "user".to_owned()));
        let user =
            row(json!({"id": "m", "role": "user", "createdAt": "2026-01-01T00:00:00.000Z", "content": {"parts": []}}));
        assert_eq!(Signal::from_stored(&user), None);
    }

    #[test]
    fn sig_046_older_forms_of_contents_load() {
        let load = |contents: Value| {
            let loaded = Signal::from_stored(&row(json!({
                "id": "m", "role": "signal", "type": "user-message", "createdAt": "2026-01-01T00:00:00.000Z",
                "content": {"format": 2, "parts": [{"type": "text", "text": "parts"}],
                    "metadata": {"signal": {"type": "user-message", "contents": contents}}}
            })));
            serde_json::to_value(loaded.unwrap().contents).unwrap()
        };
        let file = json!({"type": "file", "data": "QQ==", "mediaType": "image/png"});
        assert_eq!(load(json!("old")), json!("old"));
        assert_eq!(load(json!([{"type": "text", "text": "one"}])), json!("one"));
        assert_eq!(load(json!({"role": "user", "content": "c"})), json!("c"));
        assert_eq!(
            load(
                json!([{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}]}])
            ),
            json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])
        );
        assert_eq!(load(json!([{"type": "image", "image": "QQ==", "mimeType": "image/png"}])), json!([file]));
        assert_eq!(
            load(json!([{"type": "file", "data": "QQ==", "mimeType": "image/png"}, {"type": "x"}])),
            json!([file])
        );
        assert_eq!(load(json!(7)), json!("parts"));
        assert_eq!(load(json!([{"type": "x"}])), json!("parts"));
    }

    #[test]
    fn sig_040_rows_of_the_reference_are_written_back_as_they_were() {
        let rows: Vec<StoredMessage> =
            serde_json::from_str(include_str!("../../tests/fixtures/signal-rows.json")).unwrap();
        assert_eq!(rows.len(), 9);
        for mut row in rows {
            let signal = Signal::from_stored(&row).unwrap();
            let thread = ThreadKey::new(row.resource_id.as_deref().unwrap(), row.thread_id.as_deref().unwrap());
            let mut again = signal.to_stored(Some(&thread), row.created_at);
            // When a part was made is not the signal's.
            for part in row.content.parts.iter_mut().chain(&mut again.content.parts) {
                if let Part::Text(part) = part {
                    part.created_at = None;
                }
            }
            assert_eq!(again, row);
        }
    }

    #[test]
    fn sig_046_other_parts_of_a_row_are_dropped() {
        let loaded = Signal::from_stored(&row(json!({
            "id": "m", "role": "signal", "type": "state", "createdAt": "2026-01-01T00:00:00.000Z",
            "content": {"format": 2, "parts": [{"type": "step-start"}, {"type": "text", "text": "a"}, {"type": "data-x", "data": 1}]}
        })));
        assert_eq!(loaded.unwrap().contents, Contents::from("a"));
    }

    #[test]
    fn sig_047_every_row_renders_the_same_after_a_round_trip() {
        for (signal, expected) in rows() {
            let stored = signal.to_stored(None, Timestamp::from_millis(77));
            let stored: StoredMessage = serde_json::from_str(&serde_json::to_string(&stored).unwrap()).unwrap();
            let loaded = Signal::from_stored(&stored).unwrap();
            assert_eq!(content_json(&loaded.to_prompt()), expected, "{signal:?}");
        }
    }

    fn any_signal() -> impl Strategy<Value = Signal> {
        let options = || prop::option::of(Just(json!({"p": {"k": 1}}).as_object().cloned().unwrap_or_default()));
        let part = prop_oneof![
            (".{0,12}", options()).prop_map(|(text, provider_options)| ContentPart::Text { text, provider_options }),
            ("[A-Za-z0-9+/=]{0,8}", prop::option::of(".{0,6}"), options()).prop_map(
                |(data, filename, provider_options)| {
                    ContentPart::File { data, media_type: "image/png".into(), filename, provider_options }
                }
            ),
        ];
        let contents = prop_oneof![
            ".{0,30}".prop_map(Contents::Text),
            prop::collection::vec(part, 0..4).prop_map(Contents::Parts),
        ];
        let value = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
        ];
        let attributes = prop::option::of(
            prop::collection::vec(("[A-Za-z_][A-Za-z0-9_.-]{0,5}", value), 0..4)
                .prop_map(|pairs| pairs.into_iter().collect::<Attributes>()),
        );
        let kind = prop::sample::select(vec!["user", "state", "notification", "reactive", "user-message"]);
        (kind, contents, attributes, prop::option::of("[A-Za-z_][A-Za-z0-9_.-]{0,5}"), options()).prop_map(
            |(kind, contents, attributes, tag_name, provider_options)| {
                let input = SignalInput { tag_name, attributes, provider_options, ..SignalInput::new(kind, contents) };
                input.normalise(|| "s".into(), Timestamp::from_millis(4)).unwrap()
            },
        )
    }

    proptest! {
        #[test]
        fn sig_047_any_signal_renders_the_same_after_a_round_trip(signal in any_signal()) {
            let stored = signal.to_stored(None, Timestamp::from_millis(77));
            let stored: StoredMessage = serde_json::from_str(&serde_json::to_string(&stored).unwrap()).unwrap();
            let loaded = Signal::from_stored(&stored).unwrap();
            prop_assert_eq!(loaded.to_prompt(), signal.to_prompt());
            prop_assert!(loaded.same_content(&signal));
            prop_assert_eq!(loaded, signal.placed(Timestamp::from_millis(77)));
        }
    }
}
