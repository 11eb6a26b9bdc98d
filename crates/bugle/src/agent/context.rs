//! The request context: what a caller tells a run's dynamic values, tools and hooks (LOOP §16).

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

/// An ordered map of JSON values that travels with one run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RequestContext {
    values: Object,
}

impl RequestContext {
    /// From a client: reserved keys are left out (LOOP-212).
    pub fn from_client(mut values: Object) -> Self {
        values.retain(|key, _| !RESERVED_KEYS.contains(&key.as_str()));
        Self { values }
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
