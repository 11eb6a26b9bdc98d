//! What an agent remembers: options, history, working memory, titles (MEM).

mod options;
mod title;
mod working;

pub use title::generate_title;
pub use working::{
    UPDATE_WORKING_MEMORY, get_working_memory, set_working_memory, strip_working_memory, update_working_memory_tool,
    working_memory_system,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Options of an agent's memory (MEM §2). Deep-merged with those of a call (MEM-001).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryOptions {
    /// How many stored messages precede the prompt; `false` or 0 = none, and they are still saved (MEM-003).
    pub last_messages: LastMessages,
    /// Read history, write nothing (MEM-058).
    pub read_only: bool,
    /// Working memory; off by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub working_memory: Option<WorkingMemoryOptions>,
    /// Titles; off by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generate_title: Option<TitleOptions>,
    /// Leave calls without a result out of prompts (MEM-084).
    pub filter_incomplete_tool_calls: bool,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            last_messages: LastMessages(Some(10)),
            read_only: false,
            working_memory: None,
            generate_title: None,
            filter_incomplete_tool_calls: true,
        }
    }
}

impl MemoryOptions {
    /// The defaults with `count` messages of history.
    pub fn last(count: u32) -> Self {
        Self { last_messages: LastMessages(Some(count)), ..Self::default() }
    }
}

/// How many messages are recalled: a number, or `false` for none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastMessages(pub Option<u32>);

impl LastMessages {
    /// The number; 0 for none.
    pub const fn count(self) -> u32 {
        match self.0 {
            Some(count) => count,
            None => 0,
        }
    }
}

impl Serialize for LastMessages {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Some(count) => serializer.serialize_u32(count),
            None => serializer.serialize_bool(false),
        }
    }
}

impl<'de> Deserialize<'de> for LastMessages {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Bool(false) => Ok(Self(None)),
            Value::Number(number) => number
                .as_u64()
                .and_then(|count| u32::try_from(count).ok())
                .map(|count| Self(Some(count)))
                .ok_or_else(|| serde::de::Error::custom("lastMessages must be a whole number from 0, or false")),
            _ => Err(serde::de::Error::custom("lastMessages must be a whole number from 0, or false")),
        }
    }
}

/// Where working memory lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// With the resource, shared by its threads.
    #[default]
    Resource,
    /// With the thread.
    Thread,
}

/// Working memory (MEM §8).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkingMemoryOptions {
    /// Whether it is on.
    pub enabled: bool,
    /// Where it lives.
    pub scope: Scope,
    /// Markdown to fill in. Excludes a schema.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// JSON Schema of its content. Excludes a template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// Shown, never changed.
    pub read_only: bool,
}

impl Default for WorkingMemoryOptions {
    fn default() -> Self {
        Self { enabled: true, scope: Scope::Resource, template: None, schema: None, read_only: false }
    }
}

/// Titles (MEM-030).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TitleOptions {
    /// What the model is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instructions: Option<String>,
    /// Not before so many user messages.
    pub min_messages: u32,
    /// Send a transient `data-thread-title` chunk.
    pub emit_event: bool,
}

impl Default for TitleOptions {
    fn default() -> Self {
        Self { instructions: None, min_messages: 1, emit_event: false }
    }
}
