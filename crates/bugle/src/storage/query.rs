//! What is asked of a store, and its answers.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::{
    id::{MessageId, ThreadKey},
    json::Object,
    message::{Role, StoredMessage, Thread},
    time::Timestamp,
};

/// A thread to create (MEM-014). Without an id one is made.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct NewThread {
    /// The id.
    pub id: Option<String>,
    /// Who it belongs to.
    pub resource_id: String,
    /// Kept as it is when absent and the thread exists.
    pub title: Option<String>,
    /// Merged by key when the thread exists.
    pub metadata: Option<Object>,
}

impl NewThread {
    /// The thread of a key, untitled.
    pub fn of(key: &ThreadKey) -> Self {
        Self {
            id: Some(key.thread_id.to_string()),
            resource_id: key.resource_id.as_deref().unwrap_or_default().to_owned(),
            ..Self::default()
        }
    }
}

/// A change of a thread.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ThreadUpdate {
    /// The thread.
    pub id: String,
    /// The new title.
    pub title: Option<String>,
    /// Write the title only if there is none yet (MEM-031).
    pub title_if_empty: bool,
    /// The metadata's change.
    pub metadata: MetadataChange,
}

/// How a thread's metadata changes. The keys that the runtime owns stay whatever a caller says.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum MetadataChange {
    /// As it is.
    #[default]
    Keep,
    /// Top-level keys are merged (MEM-015).
    Merge(Object),
    /// Replaced, but for `mastra` and `workingMemory` (HTTP-153).
    Replace(Object),
    /// The runtime's own write: merged with nothing held back; a null removes its key.
    Own(Object),
}

/// Order of a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Direction {
    /// Oldest first.
    Asc,
    /// Newest first.
    #[default]
    Desc,
}

/// What threads are ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ThreadOrder {
    /// When they were made.
    #[default]
    CreatedAt,
    /// When they were last written.
    UpdatedAt,
}

/// Which threads (MEM-016).
#[derive(Debug, Clone, PartialEq)]
pub struct ThreadQuery {
    /// Of this resource.
    pub resource_id: Option<String>,
    /// With these metadata values: AND of equalities; keys checked by MEM-017.
    pub metadata: Object,
    /// From 0.
    pub page: u32,
    /// `None` = all.
    pub per_page: Option<u32>,
    /// By what.
    pub order: ThreadOrder,
    /// In which direction.
    pub direction: Direction,
}

impl Default for ThreadQuery {
    fn default() -> Self {
        Self {
            resource_id: None,
            metadata: Object::new(),
            page: 0,
            per_page: Some(100),
            order: ThreadOrder::default(),
            direction: Direction::default(),
        }
    }
}

/// A page of a listing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Page<T> {
    /// The page's items.
    pub items: Vec<T>,
    /// How many there are on all pages.
    pub total: usize,
    /// Which page this is.
    pub page: u32,
    /// Its size; `None` = all.
    pub per_page: Option<u32>,
    /// There is a page after it.
    pub has_more: bool,
}

/// Which messages (MEM-065 … MEM-072).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct MessageQuery {
    /// Of these threads; at least one, none blank.
    pub thread_ids: Vec<String>,
    /// Of this resource.
    pub resource_id: Option<String>,
    /// From 0.
    pub page: u32,
    /// `None` = all; 0 = only what `include` names.
    pub per_page: Option<u32>,
    /// Which end is page 0. Items of a page are oldest first whatever this says when [`Self::newest_page_first`].
    pub direction: Direction,
    /// Page 0 is the newest page, its items oldest first (MEM-066, HTTP-154). `direction` is ignored then.
    pub newest_page_first: bool,
    /// Not older than this.
    pub start: Option<(Timestamp, Exclusive)>,
    /// Not newer than this.
    pub end: Option<(Timestamp, Exclusive)>,
    /// Of these roles; empty = all.
    pub roles: Vec<Role>,
    /// `content.metadata` has these values.
    pub metadata: Object,
    /// Messages around others, added to the page and not counted. Without a resource, only those on one of the
    /// query's threads or on the thread that they name, which the caller has checked.
    pub include: Vec<IncludeMessage>,
    /// Stored signal types that are left out, before paging (MEM-072): `user`, `reactive`, …
    pub hide_signal_types: Vec<String>,
    /// Tags of signal rows that are left out, before paging (HTTP-163).
    pub hide_signal_tags: Vec<String>,
    /// Only messages before this one in the thread's order (MEM-070).
    pub before: Option<MessageId>,
    /// Only messages after this one.
    pub after: Option<MessageId>,
}

/// Whether a bound excludes its own value.
pub type Exclusive = bool;

/// A message to include with its neighbours (MEM-068).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IncludeMessage {
    /// The message.
    pub id: MessageId,
    /// Its thread, if not one of the query's.
    #[serde(default)]
    pub thread_id: Option<String>,
    /// How many before it.
    #[serde(default)]
    pub with_previous_messages: u32,
    /// How many after it.
    #[serde(default)]
    pub with_next_messages: u32,
}

/// A thread to copy (MEM-020).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct CloneThread {
    /// The source.
    pub source_thread_id: String,
    /// The copy's id; made if absent.
    pub new_thread_id: Option<String>,
    /// The copy's resource; the source's if absent.
    pub resource_id: Option<String>,
    /// The copy's title; `Clone of <title>` if absent.
    pub title: Option<String>,
    /// The copy's own metadata.
    pub metadata: Option<Object>,
    /// Only the newest so many messages.
    pub message_limit: Option<u32>,
    /// Not older than this.
    pub start: Option<Timestamp>,
    /// Not newer than this.
    pub end: Option<Timestamp>,
    /// Only these messages.
    pub message_ids: Option<Vec<MessageId>>,
}

/// A copied thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClonedThread {
    /// The copy.
    pub thread: Thread,
    /// Its messages, oldest first.
    pub cloned_messages: Vec<StoredMessage>,
    /// Source id to copy's id.
    pub message_id_map: HashMap<MessageId, MessageId>,
}

/// A change of a resource.
#[derive(Debug, Clone, PartialEq)]
pub enum ResourceChange {
    /// Replaces the working memory; with a hash, only if the present text has it (MEM-105).
    WorkingMemory(Option<String>),
    /// Deep-merges into working memory that holds JSON: null deletes a key, arrays replace (MEM-101).
    MergeWorkingMemory(Object),
    /// Merges metadata by top-level key.
    Metadata(Object),
}
