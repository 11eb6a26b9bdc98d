//! Checking and completing what a caller gives (SIG-010 … SIG-022).

use serde_json::Value;

use super::{Attributes, ContentPart, Contents, Signal, SignalInput, SignalType};
use crate::{id::MessageId, json::Object, time::Timestamp};

/// Why a signal was refused (SIG-011, 012, 016, 017, 034).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidSignal {
    /// Which field, dotted: `contents`, `attributes.a b`, `type`.
    pub field: String,
    /// What is wrong with it, in the words of the spec.
    pub message: String,
}

impl InvalidSignal {
    pub(super) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }

    /// The same, with the field below `parent`: what a caller reports whose body holds the signal in a field.
    #[must_use]
    pub fn under(mut self, parent: &str) -> Self {
        self.field = format!("{parent}.{}", self.field);
        self
    }
}

/// Whether `name` may name an XML element or attribute: `^[A-Za-z_][A-Za-z0-9_.-]*$`.
pub(super) fn is_xml_name(name: &str) -> bool {
    let mut chars = name.chars();
    chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && chars.all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

/// Merges a branch's attributes over the top-level ones (SIG-021): the branch wins, keys keep their first place, an
/// absent or empty branch changes nothing.
pub fn merge_attributes(base: Option<&Attributes>, branch: Option<&Attributes>) -> Option<Attributes> {
    let Some(branch) = branch.filter(|branch| !branch.is_empty()) else { return base.cloned() };
    let mut merged = base.cloned().unwrap_or_default();
    merged.extend(branch.iter().map(|(name, value)| (name.clone(), value.clone())));
    Some(merged)
}

/// Checks names and values (SIG-017, SIG-034). An attribute that is null is skipped, its name unchecked.
///
/// # Errors
/// [`InvalidSignal`] names the first attribute that is wrong.
pub fn validate_attributes(attributes: &Attributes) -> Result<(), InvalidSignal> {
    for (name, value) in attributes.iter().filter(|(_, value)| !value.is_null()) {
        let wrong = |message| Err(InvalidSignal::new(format!("attributes.{name}"), message));
        if !is_xml_name(name) {
            return wrong(format!("Invalid signal XML attribute name: {name}"));
        }
        if value.is_object() || value.is_array() {
            return wrong(format!("signal attribute {name} must be a string, a number, a boolean or null"));
        }
    }
    Ok(())
}

impl SignalType {
    /// The type a name stands for; legacy names count as their new ones (SIG-010).
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "user" | "user-message" => Some(Self::User),
            "state" => Some(Self::State),
            "notification" => Some(Self::Notification),
            "reactive" | "system-reminder" => Some(Self::Reactive),
            _ => None,
        }
    }
}

impl SignalInput {
    /// A message of a person: type and tag `user` (SIG-014).
    pub fn message(contents: impl Into<Contents>) -> Self {
        Self::new("user", contents)
    }

    /// A signal of a type of SIG §2, legacy names included. Whether there is such a type is checked by
    /// [`Self::normalise`].
    pub fn new(signal_type: &str, contents: impl Into<Contents>) -> Self {
        Self { signal_type: Some(signal_type.to_owned()), contents: Some(contents.into()), ..Self::default() }
    }

    /// Checks and completes the input (SIG-010 … SIG-017, SIG-034). `mint` is asked for an id if there is none, `now` is
    /// the default of `created_at`. `accepted_at` is kept as given: who accepts the signal sets it. Idempotent (SIG-019).
    ///
    /// # Errors
    /// [`InvalidSignal`] with the field that is wrong.
    pub fn normalise(self, mint: impl FnOnce() -> MessageId, now: Timestamp) -> Result<Signal, InvalidSignal> {
        let given = self.signal_type.as_deref();
        let signal_type = given.and_then(SignalType::parse).ok_or_else(|| {
            let message = format!(
                "Invalid signal type: {}. Use a supported signal type and set tagName for custom XML tags.",
                given.unwrap_or("undefined")
            );
            InvalidSignal::new("type", message)
        })?;
        if signal_type == SignalType::State && self.transient.is_some() {
            return Err(InvalidSignal::new("transient", "state signals cannot be transient"));
        }
        let tag_name = self.tag_name.unwrap_or_else(|| signal_type.default_tag().to_owned());
        if !is_xml_name(&tag_name) {
            return Err(InvalidSignal::new("tagName", format!("Invalid signal XML tag name: {tag_name}")));
        }
        if self.id.as_ref().is_some_and(|id| id.trim().is_empty()) {
            return Err(InvalidSignal::new("id", "id must not be blank; leave it out to have one made"));
        }
        let contents = self.contents.ok_or_else(|| missing_contents("contents"))?;
        if let Some(attributes) = &self.attributes {
            validate_attributes(attributes)?;
        }
        Ok(Signal {
            id: self.id.unwrap_or_else(mint),
            signal_type,
            tag_name,
            contents,
            attributes: self.attributes,
            metadata: self.metadata,
            provider_options: self.provider_options,
            created_at: self.created_at.unwrap_or(now),
            accepted_at: self.accepted_at,
            transient: self.transient == Some(true),
        })
    }

    /// Reads a wire body. Fields that a signal does not have are ignored; whether the type and the names are right is
    /// left to [`Self::normalise`].
    ///
    /// # Errors
    /// [`InvalidSignal`] with the field that has the wrong shape: `contents`, `contents.0.type`, `createdAt`, ….
    pub fn from_json(value: &Value) -> Result<Self, InvalidSignal> {
        let Value::Object(fields) = value else {
            return Err(InvalidSignal::new("signal", "a signal must be an object with type and contents"));
        };
        let text = |name: &str| text_field(fields, name);
        let object = |name: &str| match fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Object(object)) => Ok(Some(object.clone())),
            Some(_) => Err(InvalidSignal::new(name, format!("{name} must be an object"))),
        };
        let time = |name: &str| match fields.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(given) => serde_json::from_value::<Timestamp>(given.clone()).map(Some).map_err(|_| {
                InvalidSignal::new(
                    name,
                    format!("{name} must be an ISO 8601 date and time, such as 2026-01-01T00:00:00Z"),
                )
            }),
        };
        let attributes: Option<Attributes> = object("attributes")?.map(|object| object.into_iter().collect());
        if let Some(attributes) = &attributes {
            validate_attributes(attributes)?;
        }
        let transient = match fields.get("transient") {
            None | Some(Value::Null) => None,
            Some(Value::Bool(transient)) => Some(*transient),
            Some(_) => return Err(InvalidSignal::new("transient", "transient must be true or false")),
        };
        let id = text("id")?;
        if id.as_deref() == Some("") {
            return Err(InvalidSignal::new("id", "id must not be empty; leave it out to get one"));
        }
        Ok(Self {
            id: id.map(MessageId::from),
            signal_type: text("type")?,
            tag_name: text("tagName")?,
            contents: Some(Contents::from_json(fields.get("contents").unwrap_or(&Value::Null))?),
            attributes,
            metadata: object("metadata")?,
            provider_options: object("providerOptions")?,
            created_at: time("createdAt")?,
            accepted_at: time("acceptedAt")?,
            transient,
        })
    }
}

fn missing_contents(field: &str) -> InvalidSignal {
    InvalidSignal::new(field, format!("{field} is required: a string, or a list of text and file parts"))
}

fn text_field(fields: &Object, name: &str) -> Result<Option<String>, InvalidSignal> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text.clone())),
        Some(_) => Err(InvalidSignal::new(name, format!("{name} must be a string"))),
    }
}

impl From<Signal> for SignalInput {
    /// An input that normalises to this very signal (SIG-019).
    fn from(signal: Signal) -> Self {
        Self {
            id: Some(signal.id),
            signal_type: Some(signal.signal_type.as_str().to_owned()),
            tag_name: Some(signal.tag_name),
            contents: Some(signal.contents),
            attributes: signal.attributes,
            metadata: signal.metadata,
            provider_options: signal.provider_options,
            created_at: Some(signal.created_at),
            accepted_at: signal.accepted_at,
            transient: signal.transient.then_some(true),
        }
    }
}

impl Signal {
    /// The signal with the attributes of the branch that was taken (SIG-020).
    #[must_use]
    pub fn with_branch(&self, branch: Option<&Attributes>) -> Self {
        Self { attributes: merge_attributes(self.attributes.as_ref(), branch), ..self.clone() }
    }

    /// Whether both say the same: type, tag, contents, attributes, metadata, provider options; not the times (SIG-503).
    pub fn same_content(&self, other: &Self) -> bool {
        self.signal_type == other.signal_type
            && self.tag_name == other.tag_name
            && self.contents.as_stored() == other.contents.as_stored()
            && self.attributes == other.attributes
            && self.metadata == other.metadata
            && self.provider_options == other.provider_options
    }

    /// The signal as it stands in the transcript from `at` on (SIG-042): created then, accepted when it was accepted,
    /// else when it was made, its contents as a later load gives them (SIG-051). Echo what this gives.
    #[must_use]
    pub fn placed(&self, at: Timestamp) -> Self {
        Self {
            contents: self.contents.as_stored().into_owned(),
            accepted_at: self.accepted_at.or(Some(self.created_at)),
            created_at: at,
            ..self.clone()
        }
    }
}

impl Contents {
    /// Reads a wire value (SIG-015): a string, or an array of text and file parts.
    ///
    /// # Errors
    /// [`InvalidSignal`] with the field below `contents` that is wrong (SIG-016).
    pub fn from_json(value: &Value) -> Result<Self, InvalidSignal> {
        match value {
            Value::String(text) => Ok(Self::Text(text.clone())),
            Value::Array(parts) => parts
                .iter()
                .enumerate()
                .map(|(index, part)| ContentPart::from_json(part, &format!("contents.{index}")))
                .collect::<Result<_, _>>()
                .map(Self::Parts),
            _ => Err(missing_contents("contents")),
        }
    }

    /// The contents as a stored row gives them back: a single text part without options is its text (SIG-046).
    pub(super) fn as_stored(&self) -> std::borrow::Cow<'_, Self> {
        use std::borrow::Cow;
        match self {
            Self::Parts(parts) => match parts.as_slice() {
                [ContentPart::Text { text, provider_options: None }] => Cow::Owned(Self::Text(text.clone())),
                _ => Cow::Borrowed(self),
            },
            Self::Text(_) => Cow::Borrowed(self),
        }
    }
}

impl ContentPart {
    fn from_json(value: &Value, path: &str) -> Result<Self, InvalidSignal> {
        let at = |name: &str| format!("{path}.{name}");
        let Value::Object(fields) = value else {
            return Err(InvalidSignal::new(path, format!("{path} must be an object: a text or a file part")));
        };
        let text = |name: &str| match fields.get(name) {
            Some(Value::String(text)) => Ok(text.clone()),
            _ => Err(InvalidSignal::new(at(name), format!("{} must be a string", at(name)))),
        };
        let provider_options = match fields.get("providerOptions") {
            None | Some(Value::Null) => None,
            Some(Value::Object(options)) => Some(options.clone()),
            Some(_) => {
                let field = at("providerOptions");
                return Err(InvalidSignal::new(&field, format!("{field} must be an object")));
            }
        };
        match fields.get("type").and_then(Value::as_str) {
            Some("text") => Ok(Self::Text { text: text("text")?, provider_options }),
            Some("file") => {
                // Rows and older clients say `mimeType`, UI messages say `url`.
                let data =
                    if fields.contains_key("data") { text("data")? } else { text("url").or_else(|_| text("data"))? };
                let media_type = text("mediaType").or_else(|wrong| text("mimeType").map_err(|_| wrong))?;
                let filename = match fields.get("filename") {
                    None | Some(Value::Null) => None,
                    Some(_) => Some(text("filename")?),
                };
                Ok(Self::File { data, media_type, filename, provider_options })
            }
            Some(kind) => {
                let message = format!("contents hold text and file parts, but {path} is of type {kind}");
                Err(InvalidSignal::new(at("type"), message))
            }
            None => Err(InvalidSignal::new(at("type"), format!("{} must be text or file", at("type")))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn normal(input: SignalInput) -> Result<Signal, InvalidSignal> {
        input.normalise(|| "minted".into(), Timestamp::from_millis(7))
    }

    fn attributes(value: Value) -> Attributes {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn sig_016_a_blank_id_is_rejected_at_acceptance() {
        for id in ["", " ", "\n"] {
            let error = normal(SignalInput { id: Some(id.into()), ..SignalInput::message("x") }).unwrap_err();
            assert_eq!(error.field, "id");
        }
    }

    #[test]
    fn sig_010_types_map_and_get_their_default_tags() {
        for (given, name, tag) in [
            ("user", "user", "user"),
            ("state", "state", "state"),
            ("notification", "notification", "notification"),
            ("reactive", "reactive", "system-reminder"),
            ("user-message", "user", "user"),
            ("system-reminder", "reactive", "system-reminder"),
        ] {
            let signal = normal(SignalInput::new(given, "x")).unwrap();
            assert_eq!((signal.signal_type.as_str(), signal.tag_name.as_str()), (name, tag));
            assert_eq!((signal.id.as_str(), signal.created_at.as_millis()), ("minted", 7));
        }
        let note = SignalInput { tag_name: Some("note".into()), ..SignalInput::new("user-message", "x") };
        let note = normal(note).unwrap();
        assert_eq!((note.signal_type, note.tag_name.as_str()), (SignalType::User, "note"));
    }

    #[test]
    fn sig_011_other_types_are_refused() {
        let refused = normal(SignalInput::new("foo", "x")).unwrap_err();
        assert_eq!(
            refused,
            InvalidSignal::new(
                "type",
                "Invalid signal type: foo. Use a supported signal type and set tagName for custom XML tags."
            )
        );
        assert_eq!(
            normal(SignalInput { contents: Some("x".into()), ..SignalInput::default() }).unwrap_err().field,
            "type"
        );
    }

    #[test]
    fn sig_012_state_signals_cannot_be_transient() {
        for transient in [true, false] {
            let input = SignalInput { transient: Some(transient), ..SignalInput::new("state", "x") };
            let refused = normal(input).unwrap_err();
            assert_eq!(refused, InvalidSignal::new("transient", "state signals cannot be transient"));
            let input = SignalInput { transient: Some(transient), ..SignalInput::new("reactive", "x") };
            assert_eq!(normal(input).unwrap().transient, transient);
        }
    }

    #[test]
    fn sig_016_sig_511_wrong_bodies_name_the_field() {
        for (body, field) in [
            (json!("x"), "signal"),
            (json!({"type": "user"}), "contents"),
            (json!({"type": "user", "contents": null}), "contents"),
            (json!({"type": "user", "contents": 4}), "contents"),
            (json!({"type": "user", "contents": ["x"]}), "contents.0"),
            (json!({"type": "user", "contents": [{"type": "image", "image": "x"}]}), "contents.0.type"),
            (json!({"type": "user", "contents": [{"text": "x"}]}), "contents.0.type"),
            (json!({"type": "user", "contents": [{"type": "text", "text": "a"}, {"type": "text"}]}), "contents.1.text"),
            (json!({"type": "user", "contents": [{"type": "file", "mediaType": "a/b"}]}), "contents.0.data"),
            (json!({"type": "user", "contents": [{"type": "file", "data": "x"}]}), "contents.0.mediaType"),
            (json!({"type": "user", "contents": "x", "createdAt": "yesterday"}), "createdAt"),
            (json!({"type": "user", "contents": "x", "attributes": []}), "attributes"),
            (json!({"type": "user", "contents": "x", "attributes": {"a b": 1}}), "attributes.a b"),
            (json!({"type": "user", "contents": "x", "metadata": 1}), "metadata"),
            (json!({"type": "user", "contents": "x", "transient": "yes"}), "transient"),
            (json!({"type": "user", "contents": "x", "id": ""}), "id"),
            (json!({"type": 3, "contents": "x"}), "type"),
        ] {
            assert_eq!(SignalInput::from_json(&body).unwrap_err().field, field, "{body}");
        }
        assert_eq!(normal(SignalInput { contents: None, ..SignalInput::message("") }).unwrap_err().field, "contents");
    }

    #[test]
    fn sig_015_wire_bodies_are_read() {
        let body = json!({
            "id": "s1", "type": "notification", "tagName": "ci", "contents": [
                {"type": "text", "text": "a", "providerOptions": {"openai": {"x": 1}}},
                {"type": "file", "data": "QQ==", "mediaType": "image/png", "filename": "a.png"},
            ],
            "attributes": {"pr": 1, "gone": null}, "metadata": {"k": []}, "providerOptions": {"p": {}},
            "createdAt": "2026-01-01T00:00:00Z", "acceptedAt": "2026-01-01T00:00:01.000Z", "transient": true,
            "__isCreatedSignal": true
        });
        let signal = normal(SignalInput::from_json(&body).unwrap()).unwrap();
        let mut expected = body;
        expected.as_object_mut().unwrap().shift_remove("__isCreatedSignal");
        expected["createdAt"] = "2026-01-01T00:00:00.000Z".into();
        assert_eq!(serde_json::to_value(signal).unwrap(), expected);
    }

    #[test]
    fn sig_017_bad_tag_name_is_rejected_at_acceptance() {
        for bad in ["a b", "", "1a", "-a", "a:b", "ü"] {
            let input = SignalInput { tag_name: Some(bad.into()), ..SignalInput::message("x") };
            let expected = InvalidSignal::new("tagName", format!("Invalid signal XML tag name: {bad}"));
            assert_eq!(normal(input).unwrap_err(), expected);
        }
        for good in ["a", "_", "A1_.-"] {
            assert!(normal(SignalInput { tag_name: Some(good.into()), ..SignalInput::message("x") }).is_ok());
        }
    }

    #[test]
    fn sig_017_bad_attribute_name_is_rejected_unless_it_is_null() {
        let refused = validate_attributes(&attributes(json!({"ok": 1, "bad attr": 1}))).unwrap_err();
        let expected = InvalidSignal::new("attributes.bad attr", "Invalid signal XML attribute name: bad attr");
        assert_eq!(refused, expected);
        assert_eq!(validate_attributes(&attributes(json!({"bad attr": null}))), Ok(()));
    }

    #[test]
    fn sig_034_object_and_array_attributes_are_rejected() {
        for value in [json!({}), json!([1])] {
            assert_eq!(validate_attributes(&attributes(json!({"a": value}))).unwrap_err().field, "attributes.a");
        }
    }

    #[test]
    fn sig_019_normalisation_is_idempotent() {
        let input = SignalInput {
            attributes: Some(attributes(json!({"b": 1, "a": null}))),
            accepted_at: Some(Timestamp::from_millis(3)),
            transient: Some(true),
            ..SignalInput::new("system-reminder", "x")
        };
        let once = normal(input).unwrap();
        let twice = SignalInput::from(once.clone())
            .normalise(|| unreachable!("it has an id"), Timestamp::from_millis(99))
            .unwrap();
        assert_eq!(twice, once);
    }

    #[test]
    fn sig_021_branch_attributes_merge_over_the_top_level() {
        let order = |merged: Option<Attributes>| merged.map(|merged| serde_json::to_string(&merged).unwrap());
        let merge = |base: Option<Value>, branch: Option<Value>| {
            order(merge_attributes(base.map(attributes).as_ref(), branch.map(attributes).as_ref()))
        };
        let (base, branch) = (json!({"a": 1, "b": 2}), json!({"b": 3, "c": 4}));
        assert_eq!(merge(Some(base.clone()), Some(branch)).unwrap(), r#"{"a":1,"b":3,"c":4}"#);
        assert_eq!(merge(Some(json!({"a": 1})), Some(json!({"a": null}))).unwrap(), r#"{"a":null}"#);
        assert_eq!(merge(None, Some(json!({}))), None);
        assert_eq!(merge(Some(base.clone()), None).unwrap(), r#"{"a":1,"b":2}"#);
        assert_eq!(merge(None, Some(base)).unwrap(), r#"{"a":1,"b":2}"#);
    }

    #[test]
    fn sig_503_same_content_ignores_times_and_ids() {
        let one = normal(SignalInput::message("x")).unwrap();
        let other = SignalInput {
            id: Some("b".into()),
            ..SignalInput::message(Contents::Parts(vec![ContentPart::Text {
                text: "x".into(),
                provider_options: None,
            }]))
        };
        let other = other.normalise(|| "c".into(), Timestamp::from_millis(99)).unwrap();
        assert!(one.same_content(&other));
        assert!(one.same_content(&one.placed(Timestamp::from_millis(1000))));
        assert!(!one.same_content(&normal(SignalInput::message("y")).unwrap()));
        assert!(!one.same_content(&one.with_branch(Some(&attributes(json!({"a": 1}))))));
    }
}
