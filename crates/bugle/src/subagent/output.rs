//! What a delegation gives: the payload clients and stores see, and the text the parent's model reads (SUB §3).

use std::fmt::Write as _;

use super::{SubRun, SubToolCall, SubToolResult};
use crate::{
    chunk::FinishReason,
    id::ThreadKey,
    json::{Object, Value, json},
    message::{Part, StoredMessage, ToolState},
    model::ToolOutput,
};

/// The payload (SUB-020). `reference` is set where one was minted.
pub(super) fn payload(run: &SubRun, text: &str, thread: &ThreadKey, reference: Option<&str>) -> Value {
    let mut fields = Object::new();
    fields.insert("text".to_owned(), text.into());
    fields.insert("subAgentThreadId".to_owned(), thread.thread_id.to_string().into());
    fields.insert("subAgentResourceId".to_owned(), thread.resource_id.as_deref().unwrap_or_default().into());
    fields.insert("subAgentToolResults".to_owned(), json!(run.tool_results));
    if !run.pending_tool_calls.is_empty() {
        fields.insert("subAgentPendingToolCalls".to_owned(), json!(run.pending_tool_calls));
    }
    fields.insert("finishReason".to_owned(), json!(run.finish_reason));
    fields.insert("usage".to_owned(), json!(run.usage));
    if let Some(reference) = reference {
        fields.insert("ref".to_owned(), reference.into());
    }
    Value::Object(fields)
}

/// The payload of a delegation that a hook rejected (SUB-074).
pub(super) fn rejected(text: &str, thread: &ThreadKey) -> Value {
    json!({
        "text": text,
        "subAgentThreadId": thread.thread_id,
        "subAgentResourceId": thread.resource_id,
        "subAgentToolResults": [],
    })
}

/// What the parent's model reads (SUB-021, SUB-024, SUB-096).
pub(super) fn for_model(run: &SubRun, name: &str, replaced: Option<&str>, reference: Option<&str>) -> String {
    let mut told = match replaced {
        Some(text) => text.to_owned(),
        None => {
            let mut told = run.text.clone();
            if told.trim().is_empty() && run.pending_tool_calls.is_empty() {
                let reason = reason(run.finish_reason);
                told = format!("[{name} ended without a text; finish reason: {reason}]");
            }
            if !run.pending_tool_calls.is_empty() {
                let names: Vec<&str> = run.pending_tool_calls.iter().map(|call| call.tool_name.as_str()).collect();
                let gap = if told.trim().is_empty() { "" } else { "\n\n" };
                let _ = write!(
                    told,
                    "{gap}[{name} stopped at tools that only a client can run. Never executed, without a result: {}]",
                    names.join(", ")
                );
            }
            told
        }
    };
    if let Some(reference) = reference {
        let _ = write!(told, "\n\n[ref: {reference}]");
    }
    told
}

/// The model's view of the payload (SUB-021, SUB-022).
pub(super) fn project(told: String, payload: &Value, whole: bool) -> ToolOutput {
    if whole { ToolOutput::Json(payload.clone()) } else { ToolOutput::Text(told) }
}

fn reason(reason: FinishReason) -> String {
    json!(reason).as_str().unwrap_or_default().to_owned()
}

/// The tool results in `messages`, in call order.
pub(super) fn tool_results(messages: &[StoredMessage]) -> Vec<SubToolResult> {
    let calls = messages.iter().flat_map(|message| &message.content.parts).filter_map(|part| match part {
        Part::ToolInvocation(call) => Some(&call.tool_invocation),
        _ => None,
    });
    calls
        .filter_map(|call| {
            let (result, is_error) = match call.state {
                ToolState::Result => (call.result.clone().unwrap_or_default(), call.is_error),
                ToolState::OutputError => {
                    let text = call.error_text.clone().map(Value::from);
                    (text.or_else(|| call.result.clone()).unwrap_or_default(), Some(true))
                }
                _ => return None,
            };
            Some(SubToolResult {
                tool_name: call.tool_name.clone(),
                tool_call_id: call.tool_call_id.clone(),
                args: call.args.clone(),
                result,
                is_error: is_error.filter(|is_error| *is_error),
            })
        })
        .collect()
}

/// The calls in `messages` that nobody has run.
pub(super) fn pending_calls(messages: &[StoredMessage]) -> Vec<SubToolCall> {
    let calls = messages.iter().flat_map(|message| &message.content.parts).filter_map(|part| match part {
        Part::ToolInvocation(call) => Some(&call.tool_invocation),
        _ => None,
    });
    calls
        .filter(|call| call.state == ToolState::Call)
        .map(|call| SubToolCall {
            tool_name: call.tool_name.clone(),
            tool_call_id: call.tool_call_id.clone(),
            args: call.args.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub_021_the_model_reads_text_and_sub_020_the_payload_has_it_all() {
        let run = SubRun::text("Token refresh is in auth.rs");
        let thread = ThreadKey::new("R-explorer", "T-1");
        let payload = payload(&run, &run.text, &thread, Some("explorer-1"));
        assert_eq!(payload["subAgentThreadId"], "T-1");
        assert_eq!(payload["finishReason"], "stop");
        let told = for_model(&run, "Explorer", None, Some("explorer-1"));
        assert_eq!(told, "Token refresh is in auth.rs\n\n[ref: explorer-1]");
        assert_eq!(project(told.clone(), &payload, false), ToolOutput::Text(told.clone()));
        assert_eq!(project(told, &payload, true), ToolOutput::Json(payload));
    }

    #[test]
    fn sub_024_an_empty_result_says_that_it_is_and_a_result_text_switches_that_off() {
        let mut run = SubRun::text(" \n");
        run.finish_reason = FinishReason::ToolCalls;
        let told = for_model(&run, "Explorer", None, None);
        assert!(told.contains("without a text") && told.contains("tool-calls"), "{told}");
        assert_eq!(for_model(&run, "Explorer", Some(""), None), "");
    }

    #[test]
    fn sub_096_calls_that_nobody_ran_are_named() {
        let mut run = SubRun::text("Look:");
        let call = |name: &str| SubToolCall { tool_name: name.into(), tool_call_id: "c".into(), args: json!({}) };
        run.pending_tool_calls = vec![call("open-tab"), call("scroll")];
        let told = for_model(&run, "Explorer", None, None);
        assert!(told.starts_with("Look:\n\n") && told.contains("open-tab, scroll") && told.contains("Never executed"));
    }
}
