//! The stored message: one row of a conversation, in the format the reference shares (MEM §4).
//!
//! Reading and writing a row changes nothing that Bugle does not know: unknown parts, fields and metadata keys
//! survive (MEM-041).

mod input;
mod part;
mod prompt;
mod ui;

pub use input::{complete_tool_calls, trailing_input};
pub use part::*;
pub use prompt::{HISTORY_EXTRA, PromptOptions, build_prompt, build_prompt_for, history_window};
pub use ui::{to_model_messages, to_ui_message};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    id::{MessageId, ThreadKey},
    json::Object,
    time::Timestamp,
};

/// Who a stored message is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// A person, through `generate` or `stream`.
    User,
    /// The model.
    Assistant,
    /// Instructions. Never stored by a run (MEM-052).
    System,
    /// Input that came as a message or signal (SIG-040).
    Signal,
}

/// One message of a thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StoredMessage {
    /// Unique in the store.
    pub id: MessageId,
    /// Who it is from.
    pub role: Role,
    /// When it was placed in the transcript.
    pub created_at: Timestamp,
    /// The thread it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// The resource it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_id: Option<String>,
    /// `v2`, or the tag name of a signal. Absent counts as `v2`.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// What it says.
    pub content: MessageContent,
}

/// The mark of rows that no guard has seen.
const UNJUDGED: &str = "unjudged";

impl StoredMessage {
    /// Whether a guard has blocked it: it is shown to people, and kept out of prompts and lanes (ruling 34).
    pub fn is_blocked(&self) -> bool {
        self.content.meta("blocked").is_some_and(|blocked| !matches!(blocked, Value::Null | Value::Bool(false)))
    }

    pub(crate) fn mark_blocked(&mut self, reason: &str, processor_id: &str) {
        let blocked = serde_json::json!({ "reason": reason, "processorId": processor_id });
        self.content.metadata_mut().insert("blocked".to_owned(), blocked);
    }

    /// Whether it was stored without a run, and no guard of its agent has seen it yet. The first run that reads it judges it.
    pub fn is_unjudged(&self) -> bool {
        self.content.meta(UNJUDGED) == Some(&Value::Bool(true))
    }

    pub(crate) fn mark_unjudged(&mut self) {
        self.content.metadata_mut().insert(UNJUDGED.to_owned(), Value::Bool(true));
    }

    pub(crate) fn mark_judged(&mut self) {
        self.content.metadata_mut().shift_remove(UNJUDGED);
    }

    /// A message of `role` with one text part.
    pub fn text(id: MessageId, role: Role, text: impl Into<String>, created_at: Timestamp) -> Self {
        let text = text.into();
        let content = MessageContent {
            content: (role != Role::Signal && !text.is_empty()).then(|| text.clone()),
            parts: vec![Part::text(text, Some(created_at))],
            ..MessageContent::default()
        };
        Self { id, role, created_at, thread_id: None, resource_id: None, kind: None, content }
    }

    /// Puts the message on a thread.
    pub fn on(mut self, thread: &ThreadKey) -> Self {
        self.thread_id = Some(thread.thread_id.to_string());
        self.resource_id = thread.resource_id.as_deref().map(str::to_owned);
        self
    }

    /// The text parts, joined by newlines.
    pub fn joined_text(&self) -> String {
        let mut texts = self.content.parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.text.as_str()),
            _ => None,
        });
        let first = texts.next().unwrap_or_default().to_owned();
        texts.fold(first, |joined, text| joined + "\n" + text)
    }
}

/// What a message says. `format` is always 2.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MessageContent {
    /// The version of this shape.
    #[serde(default = "format_two")]
    pub format: u8,
    /// What happened, in order.
    #[serde(default)]
    pub parts: Vec<Part>,
    /// A plain copy of the text; absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<String>,
    /// Keys of the runtime (MEM §4) and of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Object>,
    /// Message-level options for providers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider_metadata: Option<Object>,
    /// Fields this version does not know.
    #[serde(flatten)]
    pub extra: Object,
}

const fn format_two() -> u8 {
    2
}

impl Default for MessageContent {
    fn default() -> Self {
        Self {
            format: 2,
            parts: Vec::new(),
            content: None,
            metadata: None,
            provider_metadata: None,
            extra: Object::new(),
        }
    }
}

impl MessageContent {
    /// Reads a stored `content` column; text that is not a JSON object is one text part (MEM-042).
    pub fn from_stored(text: &str) -> Self {
        match serde_json::from_str::<Self>(text) {
            Ok(content) => content,
            Err(_) => Self {
                parts: vec![Part::text(text.to_owned(), None)],
                content: Some(text.to_owned()),
                ..Self::default()
            },
        }
    }

    /// The value at `metadata[key]`.
    pub fn meta(&self, key: &str) -> Option<&serde_json::Value> {
        self.metadata.as_ref()?.get(key)
    }

    /// The metadata object, made if missing.
    pub fn metadata_mut(&mut self) -> &mut Object {
        self.metadata.get_or_insert_default()
    }
}

/// A conversation as it is stored (MEM-010).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Thread {
    /// The thread's id.
    pub id: String,
    /// The one resource it belongs to; empty for a thread that anyone may use.
    pub resource_id: String,
    /// Never null: an untitled thread has `""`.
    pub title: String,
    /// Keys of the user, and `mastra`, which the runtime owns (MEM-023).
    pub metadata: Option<Object>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it, or a message of it, was last written.
    pub updated_at: Timestamp,
}

/// What is remembered about a resource across its threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Resource {
    /// The resource's id.
    pub id: String,
    /// Working memory: markdown, or JSON text where a schema is set (MEM-100).
    pub working_memory: Option<String>,
    /// Keys of the user.
    pub metadata: Option<Object>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last written.
    pub updated_at: Timestamp,
}
