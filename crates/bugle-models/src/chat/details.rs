//! Reasoning with what a provider needs back: signatures, encrypted thoughts (LOOP-228). The form is OpenRouter's.

use bugle::{json::Object, model::AssistantPart};
use serde_json::{Value, json};

/// Their name in the protocol and in the metadata.
const FIELD: &str = "reasoning_details";

/// Adds a piece of a stream: a piece of the same type and index goes on with the last one.
pub(super) fn add(details: &mut Vec<Value>, piece: &Value) {
    let same = |last: &Value| ["type", "index"].iter().all(|key| last.get(key) == piece.get(key));
    let continued = details.last_mut().filter(|last| same(last)).and_then(Value::as_object_mut);
    let (Some(last), Some(piece)) = (continued, piece.as_object()) else {
        details.push(piece.clone());
        return;
    };
    for (key, value) in piece {
        match (last.get_mut(key), value) {
            (Some(Value::String(text)), Value::String(more)) if ["text", "summary", "data"].contains(&key.as_str()) => {
                text.push_str(more);
            }
            (Some(_), Value::Null) => {}
            _ => {
                last.insert(key.clone(), value.clone());
            }
        }
    }
}

/// The metadata of a reasoning block.
pub(super) fn metadata(provider: &str, details: Vec<Value>) -> Option<Object> {
    if details.is_empty() {
        return None;
    }
    let mut metadata = Object::new();
    metadata.insert(provider.to_owned(), json!({ FIELD: details }));
    Some(metadata)
}

/// What a message sends back of its reasoning.
pub(super) fn replayed(provider: &str, parts: &[AssistantPart]) -> Vec<Value> {
    let details = parts.iter().filter_map(|part| match part {
        AssistantPart::Reasoning { provider_options, .. } => {
            provider_options.as_ref()?.get(provider)?.get(FIELD)?.as_array()
        }
        _ => None,
    });
    details.flatten().cloned().collect()
}
