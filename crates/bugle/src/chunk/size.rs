//! How much memory a chunk takes, for those who hold a bounded number of bytes of them (SIG-507).

use super::{Chunk, ChunkBody, ErrorInfo, Payload, StepFinishPayload, StreamChunk};
use crate::json::{Object, Value};

/// What a chunk takes, its encoded frame included: never less than it holds.
pub(crate) fn approximate_size(chunk: &Chunk) -> usize {
    /// The chunk itself and the frame's envelope.
    const OVERHEAD: usize = size_of::<StreamChunk>() + 200;
    let content = match &chunk.body {
        ChunkBody::Payload(payload) => payload_size(payload),
        ChunkBody::AbortNotice => 0,
        ChunkBody::Data(data) => data.kind.len() + data.id.as_ref().map_or(0, String::len) + value_size(&data.data),
        ChunkBody::Object(object) | ChunkBody::ObjectResult(object) => value_size(object),
        ChunkBody::Unknown { kind, payload } => kind.len() + option_size(payload.as_ref()),
    };
    // Once as a value, once in the frame.
    OVERHEAD + 2 * (content + option_size(chunk.metadata.as_ref()))
}

fn payload_size(payload: &Payload) -> usize {
    match payload {
        Payload::Start { id, message_id } => id.len() + message_id.as_str().len(),
        Payload::StepStart { request, warnings, .. } => object_size(request) + values_size(warnings),
        Payload::TextStart { id, provider_metadata } | Payload::TextEnd { id, provider_metadata } => {
            id.len() + metadata_size(provider_metadata.as_ref())
        }
        Payload::ReasoningStart { id, provider_metadata } => id.len() + metadata_size(provider_metadata.as_ref()),
        Payload::ReasoningEnd { id, provider_metadata, signature } => {
            id.len() + metadata_size(provider_metadata.as_ref()) + signature.as_ref().map_or(0, String::len)
        }
        Payload::TextDelta { id, text, provider_metadata }
        | Payload::ReasoningDelta { id, text, provider_metadata } => {
            id.len() + text.len() + metadata_size(provider_metadata.as_ref())
        }
        Payload::RedactedReasoning { id, data, provider_metadata } => {
            id.len() + value_size(data) + metadata_size(provider_metadata.as_ref())
        }
        Payload::Source(source) => {
            let url = source.url.as_ref().map_or(0, String::len);
            source.id.len() + source.title.len() + url + metadata_size(source.provider_metadata.as_ref())
        }
        Payload::File { data, mime_type, filename, provider_metadata } => {
            let filename = filename.as_ref().map_or(0, String::len);
            data.len() + mime_type.len() + filename + metadata_size(provider_metadata.as_ref())
        }
        Payload::Raw(value) | Payload::IsTaskComplete(value) => value_size(value),
        Payload::ToolCallInputStart { tool_call_id, tool_name, .. } => tool_call_id.len() + tool_name.len(),
        Payload::ToolCallDelta { args_text_delta, tool_call_id, tool_name } => {
            args_text_delta.len() + tool_call_id.len() + tool_name.as_ref().map_or(0, String::len)
        }
        Payload::ToolCallInputEnd { tool_call_id } => tool_call_id.len(),
        Payload::ToolCall(call) => {
            let names = call.tool_call_id.len() + call.tool_name.len();
            names + value_size(&call.args) + metadata_size(call.provider_metadata.as_ref())
        }
        Payload::ToolCallApproval { tool_call_id, tool_name, args, resume_schema } => {
            tool_call_id.len() + tool_name.len() + value_size(args) + resume_schema.len()
        }
        Payload::ToolCallSuspended { tool_call_id, tool_name, args, suspend_payload, resume_schema } => {
            let values = value_size(args) + value_size(suspend_payload);
            tool_call_id.len() + tool_name.len() + values + resume_schema.len()
        }
        Payload::ToolOutput { output, tool_call_id, tool_name } => {
            value_size(output) + tool_call_id.len() + tool_name.as_ref().map_or(0, String::len)
        }
        Payload::ToolResult(result) => {
            let names = result.tool_call_id.len() + result.tool_name.len();
            let values = value_size(&result.result) + option_size(result.args.as_ref());
            names + values + metadata_size(result.provider_metadata.as_ref())
        }
        Payload::ToolError { tool_call_id, tool_name, args, error, .. } => {
            tool_call_id.len() + tool_name.len() + option_size(args.as_ref()) + error_size(error)
        }
        Payload::ToolOutputDenied { tool_call_id, tool_name, args, approval } => {
            tool_call_id.len() + tool_name.len() + option_size(args.as_ref()) + value_size(approval)
        }
        Payload::StepFinish(finish) | Payload::Finish(finish) => finish_size(finish),
        Payload::Error { error } => error_size(error),
        Payload::Abort {} => 0,
        Payload::Tripwire(tripwire) => {
            tripwire.reason.len() + tripwire.processor_id.len() + option_size(tripwire.metadata.as_ref())
        }
    }
}

fn finish_size(finish: &StepFinishPayload) -> usize {
    let output = &finish.output;
    let said = output.text.len() + values_size(&output.tool_calls) + option_size(output.object.as_ref());
    let warnings = values_size(&finish.warnings) + values_size(&finish.step_result.warnings);
    let metadata = option_size(finish.metadata.model_metadata.as_ref())
        + metadata_size(finish.metadata.provider_metadata.as_ref())
        + option_size(output.usage.raw.as_ref());
    let rest = option_size(finish.messages.as_ref()) + option_size(finish.response.as_ref());
    let ids = finish.consumed_signal_ids.iter().chain(&finish.unanswered_signal_ids);
    let ids: usize = ids.map(|id| id.as_str().len() + 32).sum();
    size_of::<StepFinishPayload>() + said + warnings + metadata + rest + ids
}

fn error_size(error: &ErrorInfo) -> usize {
    let body = error.response_body.as_ref().map_or(0, String::len);
    let cause = error.cause.as_deref().map_or(0, error_size);
    error.message.len() + error.name.len() + body + option_size(error.details.as_ref()) + cause
}

fn values_size(values: &[Value]) -> usize {
    values.iter().map(value_size).sum()
}

fn option_size(value: Option<&Value>) -> usize {
    value.map_or(0, value_size)
}

fn metadata_size(metadata: Option<&Object>) -> usize {
    metadata.map_or(0, object_size)
}

fn object_size(fields: &Object) -> usize {
    fields.iter().map(|(key, value)| size_of::<String>() + key.len() + value_size(value)).sum()
}

fn value_size(value: &Value) -> usize {
    let content = match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.len(),
        Value::Array(items) => values_size(items),
        Value::Object(fields) => object_size(fields),
    };
    size_of::<Value>() + content
}
