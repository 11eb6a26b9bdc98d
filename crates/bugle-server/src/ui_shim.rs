//! Local stand-in.
use bugle::{
    json::{Value, json},
    message::StoredMessage,
};
pub(crate) fn to_ui_message(message: &StoredMessage) -> Value {
    json!({"id": message.id, "role": message.role, "parts": message.content.parts})
}
pub(crate) fn to_model_messages(messages: &[StoredMessage]) -> Vec<Value> {
    messages.iter().map(|m| json!({"role": m.role, "content": m.content.parts})).collect()
}
