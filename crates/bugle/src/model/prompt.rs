//! What a model reads.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::json::Object;

/// One turn of a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum PromptMessage {
    /// Instructions.
    System {
        /// The text.
        content: String,
        /// Options per provider.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider_options: Option<Object>,
    },
    /// From a person, or a signal.
    User {
        /// Text and files. One text part without options is sent as a bare string (SIG-030).
        content: Vec<UserPart>,
        /// Options per provider.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider_options: Option<Object>,
    },
    /// From the model.
    Assistant {
        /// Text, reasoning and calls, in order.
        content: Vec<AssistantPart>,
        /// Options per provider.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider_options: Option<Object>,
    },
    /// The results of the calls before it; every call has exactly one (MEM-084).
    Tool {
        /// In call order.
        content: Vec<ToolResultTurn>,
    },
}

/// A part of a user turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum UserPart {
    /// Text.
    Text {
        /// The text.
        text: String,
        /// Options per provider.
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
        /// Options per provider.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider_options: Option<Object>,
    },
}

/// A part of an assistant turn.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", rename_all_fields = "camelCase")]
pub enum AssistantPart {
    /// Text.
    Text {
        /// The text.
        text: String,
        /// From the provider, replayed to it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider_options: Option<Object>,
    },
    /// What the model thought.
    Reasoning {
        /// The text.
        text: String,
        /// Signatures and ids from the provider, replayed to it (LOOP-228).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider_options: Option<Object>,
    },
    /// A file the model made.
    File {
        /// Base64, a `data:` URI, or a URL.
        data: String,
        /// The media type.
        media_type: String,
    },
    /// A call.
    ToolCall {
        /// Unique in the prompt.
        tool_call_id: String,
        /// The tool.
        tool_name: String,
        /// The arguments.
        input: Value,
        /// The provider ran it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider_executed: Option<bool>,
        /// From the provider, replayed to it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider_options: Option<Object>,
    },
}

/// The result of one call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolResultTurn {
    /// The call.
    pub tool_call_id: String,
    /// The tool.
    pub tool_name: String,
    /// What the model reads of the result.
    pub output: ToolOutput,
}

/// What a model reads of a tool's result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "value", rename_all = "kebab-case")]
pub enum ToolOutput {
    /// Text.
    Text(String),
    /// JSON.
    Json(Value),
    /// Text and media parts, as the provider's protocol names them.
    Content(Vec<Value>),
    /// The tool failed.
    ErrorText(String),
}

impl ToolOutput {
    /// The output as text: JSON compactly, content parts as JSON.
    pub fn to_text(&self) -> String {
        match self {
            Self::Text(text) | Self::ErrorText(text) => text.clone(),
            Self::Json(value) => value.to_string(),
            Self::Content(parts) => Value::Array(parts.clone()).to_string(),
        }
    }
}

/// A tool as the model is told of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolDefinition {
    /// The key it is registered under (LOOP-061).
    pub name: String,
    /// What it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema draft 7 of its arguments (LOOP-042).
    pub parameters: Value,
    /// Ask the provider to enforce the schema.
    #[serde(default)]
    pub strict: bool,
}

/// Which tool the model must call.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum ToolChoice {
    /// Its own choice.
    #[default]
    Auto,
    /// None; no tools are sent.
    None,
    /// Any.
    Required,
    /// This one.
    Tool(String),
}

/// Constrains an answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ResponseFormat {
    /// JSON Schema of the answer; its root is an object (LOOP-152).
    pub schema: Value,
    /// A name for it.
    pub name: String,
}
