//! JSON shorthands.

pub use serde_json::{Value, json};

/// A JSON object that keeps the order of its keys.
pub type Object = serde_json::Map<String, Value>;

/// `true` for the default: what serde leaves out when it writes.
pub(crate) fn is_false(value: &bool) -> bool {
    !*value
}
