//! The request context: what a caller tells a run's dynamic values, tools and hooks (LOOP §16).

use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::json::Object;

/// Keys that only trusted code sets (LOOP-211, HTTP-010).
pub(crate) const RESERVED_KEYS: [&str; 11] = [
    "MastraMemory",
    "mastra__authMode",
    "mastra__authToken",
    "mastra__inheritedMemory",
    "mastra__isStudio",
    "mastra__resourceId",
    "mastra__threadId",
    "mastra__user",
    "mastra__userPermissions",
    "mastra__userRoles",
    "organizationId",
];

/// Keys that are the parent run's own and do not cross to a delegation (SUB-072).
const IDENTITY_KEYS: [&str; 4] = ["MastraMemory", "mastra__inheritedMemory", "mastra__resourceId", "mastra__threadId"];

/// The most hook errors a context keeps.
const HOOK_ERRORS_MAX: usize = 1000;

/// An ordered map of JSON values that travels with one run.
///
/// Clones have values of their own, and share what the run reports: failures of delegation hooks (SUB-085). Keep a clone
/// of what is passed to a run and read them from it.
///
/// ```
/// use bugle::RequestContext;
/// let mut context = RequestContext::default();
/// context.set("theme", "dark");
/// let kept = context.clone(); // … run an agent with `context` in its options …
/// assert!(kept.delegation_hook_errors().is_empty());
/// ```
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestContext {
    values: Object,
    #[serde(skip)]
    hook_errors: Arc<Mutex<Vec<Value>>>,
}

impl PartialEq for RequestContext {
    fn eq(&self, other: &Self) -> bool {
        self.values == other.values
    }
}

impl RequestContext {
    /// From a client: reserved keys are left out (LOOP-212).
    pub fn from_client(mut values: Object) -> Self {
        values.retain(|key, _| !RESERVED_KEYS.contains(&key.as_str()));
        Self { values, ..Self::default() }
    }

    /// The value at `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// Sets a value. For trusted code: reserved keys are allowed.
    pub fn set(&mut self, key: impl Into<String>, value: impl Into<Value>) -> &mut Self {
        self.values.insert(key.into(), value.into());
        self
    }

    /// Removes a value.
    pub fn remove(&mut self, key: &str) -> Option<Value> {
        self.values.shift_remove(key)
    }

    /// What delegation hooks of the run have failed with, in the order they did, as
    /// `{hook, primitiveId, toolCallId, runId, name, message}`: the list the reference keeps under
    /// [`HOOK_ERRORS_KEY`](crate::subagent::HOOK_ERRORS_KEY). At most the first 1,000.
    pub fn delegation_hook_errors(&self) -> Vec<Value> {
        self.hook_errors.lock().clone()
    }

    pub(crate) fn record_hook_error(&self, error: Value) {
        let mut errors = self.hook_errors.lock();
        if errors.len() < HOOK_ERRORS_MAX {
            errors.push(error);
        }
    }

    /// A copy for a delegation, without the run's identity and with reports of its own (SUB-072).
    pub(crate) fn for_delegation(&self) -> Self {
        let mut values = self.values.clone();
        values.retain(|key, _| !IDENTITY_KEYS.contains(&key.as_str()));
        Self { values, ..Self::default() }
    }

    /// All values.
    pub fn values(&self) -> &Object {
        &self.values
    }

    /// All values but those of the framework: live objects and who the caller is (SCO-R5).
    pub(crate) fn plain(&self) -> Object {
        let plain = self.values.iter().filter(|(key, _)| !RESERVED_KEYS.contains(&key.as_str()));
        plain.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Adds what `other` has and this one lacks.
    pub fn fill_from(&mut self, other: &Self) {
        for (key, value) in &other.values {
            self.values.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_212_reserved_keys_of_a_client_are_ignored() {
        let values = serde_json::json!({"mastra__resourceId": "intruder", "theme": "dark"});
        let context = RequestContext::from_client(values.as_object().unwrap().clone());
        assert_eq!(context.get("mastra__resourceId"), None);
        assert_eq!(context.get("theme"), Some(&Value::from("dark")));
    }
}
