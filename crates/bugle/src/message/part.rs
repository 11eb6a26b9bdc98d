//! The parts of a stored message.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::{json::Object, time::Timestamp};

/// One part. The order of parts is the order of events.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Text.
    Text(TextPart),
    /// What the model thought.
    Reasoning(ReasoningPart),
    /// A tool call and, once known, its outcome.
    ToolInvocation(ToolInvocationPart),
    /// A file, sent or generated.
    File(FilePart),
    /// A step begins after a tool call.
    StepStart(StepStartPart),
    /// The turn failed. Never sent to a model (LOOP-141).
    Error(ErrorPart),
    /// Any other part, kept as it is: `source`, `data-*`, and kinds of later versions.
    Other(Value),
}

/// A text part.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TextPart {
    /// The text.
    pub text: String,
    /// Milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<i64>,
    /// Options and ids of the provider, replayed to it (LOOP-228).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_metadata: Option<Object>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Object,
}

/// A reasoning part.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReasoningPart {
    /// The joined text.
    #[serde(default)]
    pub reasoning: String,
    /// `{type:"text", text, signature?}` or `{type:"redacted", data}`.
    #[serde(default)]
    pub details: Vec<Value>,
    /// Milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<i64>,
    /// Signatures and ids of the provider, replayed to it (LOOP-228).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_metadata: Option<Object>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Object,
}

/// A tool call part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolInvocationPart {
    /// The call.
    pub tool_invocation: ToolInvocation,
    /// Milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<i64>,
    /// `mastra.modelOutput` (LOOP-074), and what the provider wants replayed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_metadata: Option<Object>,
    /// The provider ran the tool itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_executed: Option<bool>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Object,
}

/// A tool call and its outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolInvocation {
    /// Where the call stands.
    pub state: ToolState,
    /// Unique in the conversation.
    pub tool_call_id: String,
    /// The key the tool is registered under.
    pub tool_name: String,
    /// The arguments.
    #[serde(default)]
    pub args: Value,
    /// What the tool returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_text: Option<String>,
    /// The result reports a failure (LOOP-071).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_error: Option<bool>,
    /// `{id, approved, reason?}` of a decided approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Value>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Object,
}

/// Where a tool call stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ToolState {
    /// Arguments are still streaming. Never stored.
    PartialCall,
    /// Called; no result yet.
    Call,
    /// Has a result.
    Result,
    /// Failed.
    OutputError,
    /// A person declined it.
    OutputDenied,
    /// Waits for a person (UI messages only).
    ApprovalRequested,
    /// A person has answered (UI messages only).
    ApprovalResponded,
}

/// A file part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FilePart {
    /// Raw base64, a `data:` URI, or a URL.
    #[serde(alias = "url")]
    pub data: String,
    /// The media type.
    #[serde(alias = "mediaType", default, skip_serializing_if = "Option::is_none")]
    pub mime_type: Option<String>,
    /// The file's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filename: Option<String>,
    /// Milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<i64>,
    /// Options for the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_metadata: Option<Object>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Object,
}

/// A step begins.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepStartPart {
    /// Milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<i64>,
    /// `provider/model`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Object,
}

/// A failure of the turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ErrorPart {
    /// `{name, message}`.
    pub error: Value,
    /// Milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created_at: Option<i64>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Object,
}

impl Part {
    /// A text part.
    pub fn text(text: impl Into<String>, created_at: Option<Timestamp>) -> Self {
        Self::Text(TextPart {
            text: text.into(),
            created_at: created_at.map(Timestamp::as_millis),
            ..TextPart::default()
        })
    }
}

impl Serialize for Part {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Tagged<'a, T> {
            #[serde(rename = "type")]
            kind: &'static str,
            #[serde(flatten)]
            part: &'a T,
        }
        macro_rules! tagged {
            ($kind:literal, $part:expr) => {
                Tagged { kind: $kind, part: $part }.serialize(serializer)
            };
        }
        match self {
            Self::Text(part) => tagged!("text", part),
            Self::Reasoning(part) => tagged!("reasoning", part),
            Self::ToolInvocation(part) => tagged!("tool-invocation", part),
            Self::File(part) => tagged!("file", part),
            Self::StepStart(part) => tagged!("step-start", part),
            Self::Error(part) => tagged!("error", part),
            Self::Other(part) => part.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Part {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self::from_value(Value::deserialize(deserializer)?))
    }
}

impl Part {
    /// Reads a part; one that does not fit a known shape is kept as [`Part::Other`] (MEM-041).
    pub fn from_value(value: Value) -> Self {
        fn read<T: serde::de::DeserializeOwned>(value: Value, wrap: fn(T) -> Part) -> Part {
            let Value::Object(mut fields) = value else { return Part::Other(value) };
            let kind = fields.shift_remove("type");
            let mut value = Value::Object(fields);
            // By reference: a part can be large, and one that does not fit is kept.
            if let Ok(part) = T::deserialize(&value) {
                return wrap(part);
            }
            if let (Value::Object(fields), Some(kind)) = (&mut value, kind) {
                fields.shift_insert(0, "type".into(), kind);
            }
            Part::Other(value)
        }
        match value.get("type").and_then(Value::as_str) {
            Some("text") => read(value, Part::Text),
            Some("reasoning") => read(value, Part::Reasoning),
            Some("tool-invocation") => read(value, Part::ToolInvocation),
            Some("file") => read(value, Part::File),
            Some("step-start") => read(value, Part::StepStart),
            Some("error") => read(value, Part::Error),
            _ => Part::Other(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn mem_041_unknown_parts_and_fields_survive_a_round_trip() {
        for value in [
            json!({"type": "text", "text": "a", "createdAt": 5, "later": {"x": 1}}),
            json!({"type": "source", "source": {"id": "s"}}),
            json!({"type": "data-note", "data": 1}),
            json!({"type": "tool-invocation", "toolInvocation": {"state": "call", "toolCallId": "c", "toolName": "t", "args": {}, "step": 3}}),
            json!({"type": "text", "text": 7}),
        ] {
            let part: Part = serde_json::from_value(value.clone()).unwrap();
            assert_eq!(serde_json::to_value(&part).unwrap(), value);
        }
    }
}
