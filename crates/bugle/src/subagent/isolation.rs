//! The thread of a delegation, and what is saved to it (SUB §5).

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::DelegationState;
use crate::{
    id::ThreadKey,
    json::Object,
    message::StoredMessage,
    storage::{NewThread, SharedStorage, StorageError},
};

/// Which thread a subagent has. In all but the first the subagent remembers what it did there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ThreadScope {
    /// One for each delegation, `<parent thread>-<random>` (SUB-040).
    #[default]
    Call,
    /// One for each subagent and parent run.
    Run,
    /// One for each subagent and parent thread, `<parent thread>-<key>`: a lasting conversation between the two.
    ParentThread,
    /// The parent's own thread and resource: what the subagent is asked and says is kept between the parent's messages,
    /// and working memory is shared.
    Shared,
}

/// The ids of a delegation (SUB-040, SUB-041).
pub(super) fn thread_for(
    scope: ThreadScope,
    parent: Option<&ThreadKey>,
    key: &str,
    state: &DelegationState,
) -> ThreadKey {
    let random = || uuid::Uuid::new_v4().to_string();
    if scope == ThreadScope::Shared
        && let Some(parent) = parent
    {
        return parent.clone();
    }
    let resource: Arc<str> = match parent.and_then(|parent| parent.resource_id.as_deref()) {
        Some(resource) => format!("{resource}-{key}").into(),
        None => random().into(),
    };
    let fresh = || match parent {
        Some(parent) => format!("{}-{}", parent.thread_id, random()),
        None => random(),
    };
    let thread = match (scope, parent) {
        (ThreadScope::Call, _) => fresh(),
        (ThreadScope::ParentThread, Some(parent)) => format!("{}-{key}", parent.thread_id),
        (ThreadScope::Run | ThreadScope::ParentThread | ThreadScope::Shared, _) => state.thread_of(key, fresh),
    };
    ThreadKey { resource_id: Some(resource), thread_id: thread.into() }
}

/// Makes the thread unless it is there. Metadata is given to a new thread only (SUB-042).
pub(super) async fn make_thread(
    storage: &SharedStorage,
    thread: &ThreadKey,
    metadata: Option<&Object>,
) -> Result<(), StorageError> {
    if storage.get_thread(&thread.thread_id).await?.is_some() {
        return Ok(());
    }
    storage.create_thread(NewThread { metadata: metadata.cloned(), ..NewThread::of(thread) }).await.map(drop)
}

/// Saves what a sub-run said and was told. A failure is logged and changes nothing else (SUB-043, SUB-048).
pub(super) async fn save(
    storage: &SharedStorage,
    thread: &ThreadKey,
    metadata: Option<&Object>,
    messages: Vec<StoredMessage>,
) {
    let saved = async {
        make_thread(storage, thread, metadata).await?;
        let mut rows: Vec<_> = messages.into_iter().map(|message| message.on(thread)).collect();
        for row in &mut rows {
            crate::memory::strip_working_memory(row);
        }
        rows.retain(|row| !row.content.parts.is_empty());
        storage.save_messages(rows).await
    };
    if let Err(error) = saved.await {
        tracing::error!(%error, thread = %thread, "the transcript of a delegation could not be saved");
    }
}
