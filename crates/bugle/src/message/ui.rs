//! Stored messages as clients show them (UI messages) and as they send them back (model messages).

use serde_json::{Value, json};

use super::{FilePart, Part, Role, StoredMessage, ToolInvocationPart, ToolState, prompt};
use crate::{json::Object, model::AssistantPart, signal::Signal, signal::SignalType};

/// The UI message of a stored one, as in `response.uiMessages` (HTTP-041): `{id, role, metadata, parts}`. A signal that
/// a person wrote is a user message; any other is a user message with one `data-signal` part.
pub fn to_ui_message(message: &StoredMessage) -> Value {
    let mut metadata = message.content.metadata.clone().unwrap_or_default();
    metadata.insert("createdAt".into(), json!(message.created_at));
    for (name, value) in [("threadId", &message.thread_id), ("resourceId", &message.resource_id)] {
        if let Some(value) = value {
            metadata.insert(name.into(), json!(value));
        }
    }
    let signal = Signal::from_stored(message).filter(|signal| signal.signal_type != SignalType::User);
    let parts: Vec<Value> = match signal {
        Some(signal) => vec![json!({"type": "data-signal", "data": signal})],
        None => message.content.parts.iter().map(ui_part).collect(),
    };
    let role = if message.role == Role::Signal { Role::User } else { message.role };
    json!({"id": message.id, "role": role, "metadata": metadata, "parts": parts})
}

fn ui_part(part: &Part) -> Value {
    match part {
        Part::Text(part) => {
            let mut out = object(json!({"type": "text", "text": part.text}));
            insert(&mut out, "providerMetadata", stamped(part.provider_metadata.as_ref(), part.created_at));
            Value::Object(out)
        }
        Part::Reasoning(part) => {
            let mut out = object(json!({"type": "reasoning", "text": reasoning_text(part)}));
            insert(&mut out, "providerMetadata", stamped(part.provider_metadata.as_ref(), part.created_at));
            Value::Object(out)
        }
        Part::File(part) => {
            let mut out = object(json!({"type": "file", "url": file_url(part), "mediaType": prompt::media_type(part)}));
            insert(&mut out, "filename", part.filename.as_ref().map(|name| json!(name)));
            insert(&mut out, "providerMetadata", part.provider_metadata.clone().map(Value::Object));
            Value::Object(out)
        }
        Part::ToolInvocation(part) => ui_call(part),
        other => serde_json::to_value(other).unwrap_or_default(),
    }
}

fn ui_call(part: &ToolInvocationPart) -> Value {
    let call = &part.tool_invocation;
    let mut out = Object::new();
    out.insert("type".into(), format!("tool-{}", call.tool_name).into());
    out.insert("toolCallId".into(), json!(call.tool_call_id));
    out.insert("input".into(), call.args.clone());
    let state = match call.state {
        ToolState::Result => {
            out.insert("output".into(), call.result.clone().unwrap_or_default());
            "output-available"
        }
        ToolState::OutputError => {
            out.insert("errorText".into(), prompt::error_text(call).into());
            "output-error"
        }
        ToolState::OutputDenied => "output-denied",
        ToolState::PartialCall => "input-streaming",
        ToolState::Call => "input-available",
        ToolState::ApprovalRequested => "approval-requested",
        ToolState::ApprovalResponded => "approval-responded",
    };
    out.insert("state".into(), state.into());
    insert(&mut out, "approval", call.approval.clone());
    insert(&mut out, "providerExecuted", part.provider_executed.map(Value::Bool));
    insert(&mut out, "callProviderMetadata", part.provider_metadata.clone().map(Value::Object));
    Value::Object(out)
}

/// The model messages of stored ones, as in `response.messages` (HTTP-041, HTTP-047): assistant turns, each followed by
/// the results of its calls. A call that the client is to answer stands without a result.
pub fn to_model_messages(messages: &[StoredMessage]) -> Vec<Value> {
    let mut out = Vec::new();
    for message in messages {
        match message.role {
            Role::Assistant => assistant(message, &mut out),
            Role::System => out.push(json!({"role": "system", "content": message.joined_text()})),
            Role::User => out.push(json!({"role": "user", "content": user_content(message)})),
            Role::Signal => out
                .extend(Signal::from_stored(message).and_then(|signal| serde_json::to_value(signal.to_prompt()).ok())),
        }
    }
    out
}

fn assistant(message: &StoredMessage, out: &mut Vec<Value>) {
    let mut turn = Turn::default();
    for part in &message.content.parts {
        match part {
            Part::Text(part) => {
                turn.after_calls(out);
                let mut text = object(json!({"type": "text", "text": part.text}));
                insert(&mut text, "providerOptions", stamped(part.provider_metadata.as_ref(), part.created_at));
                turn.content.push(Value::Object(text));
            }
            Part::Reasoning(part) => {
                turn.after_calls(out);
                let mut pieces: Vec<AssistantPart> = Vec::new();
                prompt::reasoning(part, &mut pieces);
                turn.content.extend(pieces.iter().filter_map(|piece| serde_json::to_value(piece).ok()));
            }
            Part::File(part) => {
                turn.after_calls(out);
                turn.content.push(file(part));
            }
            Part::ToolInvocation(part) => turn.call(part, out),
            Part::StepStart(_) => turn.after_calls(out),
            Part::Error(_) | Part::Other(_) => {}
        }
    }
    turn.flush(out);
}

#[derive(Default)]
struct Turn {
    content: Vec<Value>,
    results: Vec<Value>,
    calls: Vec<String>,
}

impl Turn {
    fn after_calls(&mut self, out: &mut Vec<Value>) {
        if !self.calls.is_empty() {
            self.flush(out);
        }
    }

    fn flush(&mut self, out: &mut Vec<Value>) {
        let Self { content, results, .. } = std::mem::take(self);
        if !content.is_empty() {
            out.push(json!({"role": "assistant", "content": content}));
        }
        if !results.is_empty() {
            out.push(json!({"role": "tool", "content": results}));
        }
    }

    fn call(&mut self, part: &ToolInvocationPart, out: &mut Vec<Value>) {
        let call = &part.tool_invocation;
        if call.state == ToolState::PartialCall {
            return;
        }
        if self.calls.contains(&call.tool_call_id) {
            self.flush(out);
        }
        self.calls.push(call.tool_call_id.clone());
        let mut said = object(json!({
            "type": "tool-call", "toolCallId": call.tool_call_id, "toolName": call.tool_name, "input": call.args
        }));
        insert(&mut said, "providerExecuted", part.provider_executed.map(Value::Bool));
        self.content.push(Value::Object(said));
        if let Some(output) = prompt::tool_output(part) {
            self.results.push(json!({
                "type": "tool-result", "toolCallId": call.tool_call_id, "toolName": call.tool_name, "output": output,
                "input": call.args
            }));
        }
    }
}

fn user_content(message: &StoredMessage) -> Value {
    let parts = message.content.parts.iter().filter_map(|part| match part {
        Part::Text(part) => {
            let mut text = object(json!({"type": "text", "text": part.text}));
            insert(&mut text, "providerOptions", stamped(part.provider_metadata.as_ref(), part.created_at));
            Some(Value::Object(text))
        }
        Part::File(part) => Some(file(part)),
        _ => None,
    });
    Value::Array(parts.collect())
}

fn file(part: &FilePart) -> Value {
    let mut file = object(json!({"type": "file", "data": part.data, "mediaType": prompt::media_type(part)}));
    insert(&mut file, "filename", part.filename.as_ref().map(|name| json!(name)));
    Value::Object(file)
}

fn file_url(part: &FilePart) -> String {
    if part.data.starts_with("data:") || part.data.contains("://") {
        return part.data.clone();
    }
    format!("data:{};base64,{}", prompt::media_type(part), part.data)
}

fn reasoning_text(part: &super::ReasoningPart) -> String {
    if part.reasoning.is_empty() {
        return part.details.iter().filter_map(|piece| piece.get("text")?.as_str()).collect();
    }
    part.reasoning.clone()
}

/// Provider metadata with the part's time under `mastra`, where clients of the reference look for it.
fn stamped(metadata: Option<&Object>, created_at: Option<i64>) -> Option<Value> {
    let mut metadata = metadata.cloned().unwrap_or_default();
    if let Some(at) = created_at {
        let mastra = metadata.entry("mastra").or_insert_with(|| Value::Object(Object::new()));
        if let Value::Object(mastra) = mastra {
            mastra.insert("createdAt".into(), at.into());
        }
    }
    (!metadata.is_empty()).then_some(Value::Object(metadata))
}

fn object(value: Value) -> Object {
    match value {
        Value::Object(object) => object,
        _ => Object::new(),
    }
}

fn insert(out: &mut Object, name: &str, value: Option<Value>) {
    if let Some(value) = value {
        out.insert(name.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signal::SignalInput;

    /// The stored answer of the capture `generate-tools.http`.
    fn captured() -> StoredMessage {
        serde_json::from_value(json!({
            "id": "m2", "role": "assistant", "createdAt": "2026-01-01T00:00:00.000Z",
            "content": {"format": 2, "content": "Clear", "metadata": {"modelId": "scripted", "provider": "scripted"}, "parts": [
                {"type": "tool-invocation", "createdAt": 1_767_225_600_000_i64, "toolInvocation": {"state": "result",
                    "toolCallId": "call_1", "toolName": "get-weather", "args": {"city": "Oslo"},
                    "result": {"city": "Oslo", "tempC": 21, "sky": "clear"}}},
                {"type": "step-start", "createdAt": 1_767_225_600_000_i64, "model": "scripted/scripted"},
                {"type": "text", "text": "Clear", "createdAt": 1_767_225_600_000_i64}]}
        }))
        .unwrap()
    }

    #[test]
    fn http_041_ui_messages_are_as_captured() {
        assert_eq!(
            to_ui_message(&captured()),
            json!({"id": "m2", "role": "assistant",
                "metadata": {"modelId": "scripted", "provider": "scripted", "createdAt": "2026-01-01T00:00:00.000Z"},
                "parts": [
                    {"type": "tool-get-weather", "toolCallId": "call_1", "input": {"city": "Oslo"},
                        "output": {"city": "Oslo", "tempC": 21, "sky": "clear"}, "state": "output-available"},
                    {"type": "step-start", "createdAt": 1_767_225_600_000_i64, "model": "scripted/scripted"},
                    {"type": "text", "text": "Clear", "providerMetadata": {"mastra": {"createdAt": 1_767_225_600_000_i64}}}]})
        );
    }

    #[test]
    fn http_041_model_messages_are_as_captured() {
        assert_eq!(
            to_model_messages(&[captured()]),
            [
                json!({"role": "assistant", "content": [
                    {"type": "tool-call", "toolCallId": "call_1", "toolName": "get-weather", "input": {"city": "Oslo"}}]}),
                json!({"role": "tool", "content": [
                    {"type": "tool-result", "toolCallId": "call_1", "toolName": "get-weather",
                        "output": {"type": "json", "value": {"city": "Oslo", "tempC": 21, "sky": "clear"}}, "input": {"city": "Oslo"}}]}),
                json!({"role": "assistant", "content": [
                    {"type": "text", "text": "Clear", "providerOptions": {"mastra": {"createdAt": 1_767_225_600_000_i64}}}]}),
            ]
        );
    }

    #[test]
    fn http_047_a_call_for_the_client_stands_without_a_result() {
        let mut message = captured();
        message.content.parts.truncate(1);
        if let Part::ToolInvocation(part) = &mut message.content.parts[0] {
            part.tool_invocation.state = ToolState::Call;
            part.tool_invocation.result = None;
        }
        let out = to_model_messages(&[message.clone()]);
        assert_eq!(
            out,
            [json!({"role": "assistant", "content": [
                {"type": "tool-call", "toolCallId": "call_1", "toolName": "get-weather", "input": {"city": "Oslo"}}]})]
        );
        assert_eq!(to_ui_message(&message)["parts"][0]["state"], "input-available");
        // What a client sends back of it is read again.
        let mut sent = out;
        sent.push(json!({"role": "tool", "content": [{"type": "tool-result", "toolCallId": "call_1", "toolName": "get-weather", "result": 1}]}));
        let read = crate::runtime::RunInput::from_json(&json!(sent)).unwrap();
        assert_eq!((read.messages.len(), read.tool_results.len()), (1, 1));
    }

    #[test]
    fn http_041_every_part_has_a_ui_form() {
        let message: StoredMessage = serde_json::from_value(json!({
            "id": "m", "role": "assistant", "createdAt": "2026-01-01T00:00:00.000Z", "threadId": "t", "resourceId": "r",
            "content": {"format": 2, "parts": [
                {"type": "reasoning", "reasoning": "", "details": [{"type": "text", "text": "hm"}], "providerMetadata": {"p": {}}},
                {"type": "file", "data": "iVBORw0KGgo", "filename": "a.png"}, {"type": "file", "data": "https://x/a.pdf"},
                {"type": "tool-invocation", "toolInvocation": {"state": "output-error", "toolCallId": "c", "toolName": "t", "args": {}, "errorText": "boom"}},
                {"type": "tool-invocation", "toolInvocation": {"state": "output-denied", "toolCallId": "c", "toolName": "t", "args": {},
                    "approval": {"id": "c", "approved": false}}},
                {"type": "data-x", "data": 1}, {"type": "error", "error": {"message": "boom"}}]}
        }))
        .unwrap();
        let ui = to_ui_message(&message);
        assert_eq!(
            ui["metadata"],
            json!({"createdAt": "2026-01-01T00:00:00.000Z", "threadId": "t", "resourceId": "r"})
        );
        assert_eq!(
            ui["parts"],
            json!([
                {"type": "reasoning", "text": "hm", "providerMetadata": {"p": {}}},
                {"type": "file", "url": "data:image/png;base64,iVBORw0KGgo", "mediaType": "image/png", "filename": "a.png"},
                {"type": "file", "url": "https://x/a.pdf", "mediaType": "application/pdf"},
                {"type": "tool-t", "toolCallId": "c", "input": {}, "errorText": "boom", "state": "output-error"},
                {"type": "tool-t", "toolCallId": "c", "input": {}, "state": "output-denied", "approval": {"id": "c", "approved": false}},
                {"type": "data-x", "data": 1}, {"type": "error", "error": {"message": "boom"}}
            ])
        );
        // A client that sends UI messages back says the same of its calls.
        let again = crate::runtime::RunInput::from_json(&json!([ui])).unwrap();
        let calls = |message: &StoredMessage| {
            let parts = message.content.parts.iter();
            parts.filter(|part| matches!(part, Part::ToolInvocation(_))).cloned().collect::<Vec<_>>()
        };
        assert_eq!(calls(&again.messages[0]), calls(&message));
    }

    #[test]
    fn http_163_signals_are_user_messages_to_a_ui() {
        let stored = |input: SignalInput| {
            input.normalise(|| "s".into(), Default::default()).unwrap().to_stored(None, Default::default())
        };
        let person = to_ui_message(&stored(SignalInput::message("hi")));
        assert_eq!((&person["role"], &person["parts"][0]["text"]), (&json!("user"), &json!("hi")));
        let event = to_ui_message(&stored(SignalInput::new("notification", "CI")));
        assert_eq!((&event["role"], &event["parts"][0]["data"]["contents"]), (&json!("user"), &json!("CI")));
        let turns = to_model_messages(&[stored(SignalInput::new("notification", "CI"))]);
        assert_eq!(
            turns,
            [json!({"role": "user", "content": [{"type": "text", "text": "<notification>CI</notification>"}]})]
        );
    }
}
