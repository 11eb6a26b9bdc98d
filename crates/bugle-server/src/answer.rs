//! The answer of `generate` (HTTP-041 … HTTP-049), without the model's request (HTTP-029).

use bugle::{
    RunOutput,
    chunk::{Chunk, FinishReason, Payload, ToolCallPayload},
    json::{Object, Value, json},
    message::{Part, StoredMessage, ToolInvocation, to_model_messages, to_ui_message},
    run::StepSummary,
};

/// The JSON of a finished run.
pub(crate) fn generated(output: &RunOutput) -> Value {
    let response = response(output);
    let steps: Vec<Value> = output.steps.iter().enumerate().map(|(index, one)| step(index, one)).collect();
    let last = output.steps.last();
    let provider_metadata = output.response.provider_metadata.clone();
    let mut body = json!({
        "text": output.text,
        "usage": output.usage,
        "steps": steps,
        "finishReason": output.finish_reason,
        "warnings": output.warnings,
        "providerMetadata": provider_metadata,
        "reasoning": reasoning(&output.response_messages),
        "reasoningText": last.map(|step| step.reasoning_text.as_str()).filter(|text| !text.is_empty()),
        "toolCalls": tool_calls(output),
        "toolResults": output.steps.iter().flat_map(|step| &step.tool_results).collect::<Vec<_>>(),
        "sources": output.sources,
        "files": output.files,
        "response": response,
        "totalUsage": output.usage,
        "usedFallbackValue": output.used_fallback_value,
        "runId": output.run_id,
        "messages": output.messages,
        "rememberedMessages": output.remembered_messages,
    });
    let mut add = |name: &str, value: Option<Value>| {
        if let (Some(value), Some(fields)) = (value, body.as_object_mut()) {
            fields.insert(name.to_owned(), value);
        }
    };
    add("object", output.object.clone());
    add("tripwire", output.tripwire.as_ref().map(|tripwire| json!(tripwire)));
    add("error", output.error.as_ref().map(|error| json!(error)));
    if let Some(payload) = &output.suspend_payload {
        add("suspendPayload", Some(payload.clone()));
        add("resumeSchema", payload.get("resumeSchema").cloned());
    }
    if let Some(fields) = body.as_object_mut() {
        fields.retain(|name, value| !value.is_null() || name == "object");
    }
    body
}

/// The calls of all steps; of a run that waits, those of the step that waits (HTTP-045).
fn tool_calls(output: &RunOutput) -> Vec<Chunk> {
    if output.finish_reason != FinishReason::Suspended {
        return output.steps.iter().flat_map(|step| step.tool_calls.clone()).collect();
    }
    let parts = output.response_messages.last().map(|message| message.content.parts.as_slice()).unwrap_or_default();
    let step = parts.rsplit(|part| matches!(part, Part::StepStart(_))).next().unwrap_or_default();
    let calls = step.iter().filter_map(|part| match part {
        Part::ToolInvocation(part) => Some(&part.tool_invocation),
        _ => None,
    });
    let chunk = |call: &ToolInvocation| {
        let call = ToolCallPayload {
            tool_call_id: call.tool_call_id.clone(),
            tool_name: call.tool_name.clone(),
            args: call.args.clone(),
            provider_executed: None,
            provider_metadata: None,
        };
        Chunk::agent(&output.run_id, Payload::ToolCall(call))
    };
    calls.map(chunk).collect()
}

/// React shows `uiMessages`; client tools go on from `messages`.
fn response(output: &RunOutput) -> Value {
    let mut response = to_object(&output.response);
    response.shift_remove("providerMetadata");
    let ui: Vec<Value> = output.response_messages.iter().map(to_ui_message).collect();
    response.insert("messages".into(), json!(to_model_messages(&output.response_messages)));
    response.insert("uiMessages".into(), json!(ui));
    response.insert("dbMessages".into(), json!(output.response_messages));
    Value::Object(response)
}

fn step(index: usize, step: &StepSummary) -> Value {
    let mut response = to_object(&step.response);
    let provider_metadata = response.shift_remove("providerMetadata");
    let mut body = json!({
        "stepType": if index == 0 { "initial" } else { "tool-result" },
        "sources": [],
        "files": [],
        "toolCalls": step.tool_calls,
        "toolResults": step.tool_results,
        "content": content(step),
        "text": step.text,
        "reasoningText": step.reasoning_text,
        "reasoning": reasoning_text(&step.reasoning_text),
        "staticToolCalls": [],
        "dynamicToolCalls": [],
        "staticToolResults": [],
        "dynamicToolResults": [],
        "finishReason": step.finish_reason,
        "usage": step.usage,
        "warnings": step.warnings,
        "response": response,
    });
    if let Some(metadata) = provider_metadata {
        body["providerMetadata"] = metadata;
    }
    body
}

/// What the step said and did, as content parts.
fn content(step: &StepSummary) -> Vec<Value> {
    let mut content = reasoning_text(&step.reasoning_text);
    if !step.text.is_empty() {
        content.push(json!({"type": "text", "text": step.text}));
    }
    content.extend(step.tool_calls.iter().filter_map(call_part));
    content.extend(step.tool_results.iter().filter_map(result_part));
    content
}

fn call_part(chunk: &Chunk) -> Option<Value> {
    let Payload::ToolCall(call) = chunk.payload()? else { return None };
    Some(json!({
        "type": "tool-call", "toolCallId": call.tool_call_id, "toolName": call.tool_name, "input": call.args,
    }))
}

fn result_part(chunk: &Chunk) -> Option<Value> {
    let Payload::ToolResult(result) = chunk.payload()? else { return None };
    let output = match &result.result {
        Value::String(text) => json!({"type": "text", "value": text}),
        value => json!({"type": "json", "value": value}),
    };
    Some(json!({
        "type": "tool-result",
        "input": result.args,
        "output": output,
        "toolCallId": result.tool_call_id,
        "toolName": result.tool_name,
    }))
}

fn reasoning_text(text: &str) -> Vec<Value> {
    if text.is_empty() { Vec::new() } else { vec![json!({"type": "reasoning", "text": text})] }
}

/// The reasoning of the answer.
fn reasoning(messages: &[StoredMessage]) -> Vec<Value> {
    let parts = messages.iter().flat_map(|message| &message.content.parts);
    let reasoning = parts.filter_map(|part| match part {
        Part::Reasoning(part) if !part.reasoning.is_empty() => Some(&part.reasoning),
        _ => None,
    });
    reasoning.map(|text| json!({"type": "reasoning", "text": text})).collect()
}

fn to_object(value: impl serde::Serialize) -> Object {
    match serde_json::to_value(value) {
        Ok(Value::Object(fields)) => fields,
        _ => Object::new(),
    }
}
