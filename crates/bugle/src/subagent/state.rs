//! What the delegations of one parent run share, and what of it outlives the process.

use indexmap::IndexMap;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{input::Ref, references::References};
use crate::chunk::Usage;

/// What a run keeps of its delegations in its snapshot.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct DelegationRecord {
    /// References minted so far, by key (SUB-103).
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(crate) counters: IndexMap<String, u32>,
    /// Threads of subagents that keep theirs for the run, by key.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub(crate) threads: IndexMap<String, String>,
    /// A hook has ended the loop (SUB-081).
    #[serde(skip_serializing_if = "crate::json::is_false")]
    pub(crate) bailed: bool,
    /// What is told to the parent's next turn (SUB-082).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) feedback: Vec<String>,
    /// What all sub-runs cost (SUB-154).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) usage: Option<Usage>,
}

impl DelegationRecord {
    /// Whether it says nothing.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Shared by the delegations of one run.
#[derive(Debug, Default)]
pub(crate) struct DelegationState {
    inner: Mutex<Inner>,
    /// Fires when a hook bails and takes the other delegations with it.
    pub(super) cancel_siblings: CancellationToken,
}

#[derive(Debug, Default)]
struct Inner {
    record: DelegationRecord,
    changed: bool,
    references: References,
}

impl DelegationState {
    /// Goes on from a snapshot; texts of references are gone (SUB-103).
    pub(crate) fn from_record(record: DelegationRecord) -> Self {
        Self { inner: Mutex::new(Inner { record, ..Inner::default() }), ..Self::default() }
    }

    /// The record, if it has changed since the last call.
    pub(crate) fn take_change(&self) -> Option<DelegationRecord> {
        let mut inner = self.inner.lock();
        std::mem::take(&mut inner.changed).then(|| inner.record.clone())
    }

    fn change<T>(&self, change: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.inner.lock();
        inner.changed = true;
        change(&mut inner)
    }

    pub(super) fn expand(&self, refs: &[Ref], prompt: String) -> String {
        self.inner.lock().references.expand(refs, prompt)
    }

    /// Mints a reference for a result (SUB-101).
    pub(super) fn mint(&self, key: &str, text: &str) -> String {
        self.change(|inner| {
            let count = inner.record.counters.entry(key.to_owned()).or_default();
            *count += 1;
            let id = format!("{key}-{count}");
            inner.references.keep(id.clone(), key, text);
            id
        })
    }

    /// The thread the subagent under `key` keeps for this run.
    pub(super) fn thread_of(&self, key: &str, make: impl FnOnce() -> String) -> String {
        self.change(|inner| inner.record.threads.entry(key.to_owned()).or_insert_with(make).clone())
    }

    pub(super) fn bail(&self, cancel_siblings: bool) {
        self.change(|inner| inner.record.bailed = true);
        if cancel_siblings {
            self.cancel_siblings.cancel();
        }
    }

    pub(super) fn tell_next_turn(&self, feedback: String) {
        self.change(|inner| inner.record.feedback.push(feedback));
    }

    pub(super) fn add_usage(&self, usage: &Usage) {
        self.change(|inner| inner.record.usage.get_or_insert_default().add(usage));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub_101_sub_103_references_count_on_from_a_snapshot_and_know_no_older_text() {
        let state = DelegationState::default();
        assert_eq!(state.mint("explorer", "one"), "explorer-1");
        assert_eq!(state.mint("writer", "w"), "writer-1");
        let record = state.take_change().unwrap();
        assert_eq!(state.take_change(), None);
        let stored = serde_json::to_value(&record).unwrap();
        let later = DelegationState::from_record(serde_json::from_value(stored).unwrap());
        assert_eq!(later.mint("explorer", "two"), "explorer-2");
        let refs = ["explorer-1", "explorer-2"].map(|id| Ref { id: id.into(), ..Ref::default() });
        let prompt = later.expand(&refs, "Go.".into());
        assert!(prompt.contains("two") && !prompt.contains("one"), "{prompt}");
    }
}
