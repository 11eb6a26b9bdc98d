//! A parked run as the pair of rows that the reference reads and writes (LOOP-100, LOOP-101, STO-110, STO-111).
//!
//! Bugle's own snapshot lies in the outer row under [`KEY`]. A pair without it was written by the reference; what it
//! says is made into a snapshot, so that it can be gone on with here.

use serde_json::Value;

use super::{
    APPROVAL_SCHEMA, KeptMessage, ParkKind, ParkedCall, ParkedStep, RunSnapshot, SnapshotPhase, StepCall,
    StepCallState, machine::ToolOutcome,
};
use crate::{
    chunk::{ErrorInfo, FinishReason, ResponseMetadata, Usage},
    error::Error,
    id::{MessageId, RunId, ThreadKey},
    json::{Object, json},
    message::{Part, Role, StoredMessage, ToolState},
    storage::ParkedRun,
    time::Timestamp,
};

/// Where Bugle's own state lies in the outer row.
const KEY: &str = "bugle";

/// A run to park.
#[derive(Debug)]
pub(crate) struct Parking<'a> {
    pub(crate) run_id: &'a RunId,
    pub(crate) agent_id: &'a str,
    pub(crate) thread: Option<&'a ThreadKey>,
    /// The conversation as the run sees it.
    pub(crate) messages: &'a [StoredMessage],
    pub(crate) snapshot: RunSnapshot,
    pub(crate) now: Timestamp,
}

/// A parked run as it was read.
#[derive(Debug)]
pub(crate) struct Unparked {
    pub(crate) snapshot: RunSnapshot,
    /// Outcomes that only the rows hold: the reference keeps results of a parked step from the conversation (LOOP-096).
    pub(crate) known: Vec<(String, ToolOutcome)>,
}

/// The pair of rows of a run that parks.
pub(crate) fn write(parking: Parking<'_>) -> ParkedRun {
    let Parking { run_id, agent_id, thread, messages, snapshot, now } = parking;
    let at = now.as_millis();
    let step = snapshot.step.clone().unwrap_or_else(|| empty_step(&snapshot.message_id));
    let resource_id = thread.and_then(|thread| thread.resource_id.as_deref().map(str::to_owned));
    let entries: Vec<Value> = step.calls.iter().map_while(|call| entry(call, agent_id, messages, at)).collect();
    let parked: Vec<(usize, &ParkedCall)> = step
        .calls
        .iter()
        .enumerate()
        .filter_map(|(index, call)| match &call.state {
            StepCallState::Parked(parked) => Some((index, &**parked)),
            _ => None,
        })
        .collect();
    let first = parked.first().map_or(0, |(index, _)| *index);
    let labels: Object = parked
        .iter()
        .map(|(index, call)| (call.tool_call_id.clone(), json!({ "stepId": "toolCallStep", "foreachIndex": index })))
        .collect();
    let outer_labels: Object =
        parked.iter().map(|(_, call)| (call.tool_call_id.clone(), json!({ "stepId": "executionWorkflow" }))).collect();
    let payload = parked.first().map(|(_, call)| suspend_payload(call, agent_id)).unwrap_or_default();
    let meta = json!({ "foreachIndex": first, "foreachOutput": entries, "resumeLabels": labels });

    let mut inner_payload = payload.clone();
    inner_payload.insert("__workflow_meta".to_owned(), meta.clone());
    let calls: Vec<Value> = step.calls.iter().map(call_json).collect();
    let inner = row(
        run_id,
        json!({
            "input": {},
            "llm-execution": {
                "startedAt": at,
                "status": "success",
                "output": {
                    "messageId": step.message_id,
                    "stepResult": { "reason": step.reason, "isContinued": true },
                    "metadata": {},
                    "output": { "text": step.text, "toolCalls": calls, "usage": step.usage, "steps": [] },
                    "processorRetryCount": 0,
                },
                "endedAt": at,
            },
            "map-tool-calls": { "startedAt": at, "status": "success", "output": calls, "endedAt": at },
            "toolCallStep": {
                "startedAt": at, "suspendedAt": at, "status": "suspended", "suspendPayload": inner_payload,
            },
        }),
        json!({ "toolCallStep": [2] }),
        labels,
        at,
    );

    let mut outer_payload = payload;
    let mut outer_meta = meta;
    outer_meta["runId"] = json!(run_id);
    outer_meta["path"] = json!(["toolCallStep"]);
    outer_payload.insert("__streamState".to_owned(), stream_state(run_id, thread, messages, &snapshot, &step));
    outer_payload.insert("__workflow_meta".to_owned(), outer_meta);
    let context = json!({
        "input": {},
        "executionWorkflow": {
            "startedAt": at, "status": "suspended", "suspendPayload": outer_payload, "suspendedAt": at,
        },
    });
    let mut outer = row(run_id, context, json!({ "executionWorkflow": [0] }), outer_labels, at);
    outer[KEY] = own_state(snapshot);
    ParkedRun {
        run_id: run_id.clone(),
        thread: thread.cloned(),
        resource_id,
        agent_id: agent_id.to_owned(),
        outer,
        inner,
        suspended_at: now,
    }
}

/// Bugle's snapshot; the messages it keeps are in the list of the row already, so only their ids are written.
fn own_state(mut snapshot: RunSnapshot) -> Value {
    let kept = std::mem::take(&mut snapshot.kept);
    let kept: Vec<Value> = kept.iter().map(|kept| json!([kept.message.id, kept.own, kept.ephemeral])).collect();
    let mut state = serde_json::to_value(snapshot).unwrap_or(Value::Null);
    if !kept.is_empty() {
        state["keptIds"] = Value::Array(kept);
    }
    state
}

fn row(run_id: &RunId, context: Value, paths: Value, labels: Object, at: i64) -> Value {
    json!({
        "runId": run_id,
        "status": "suspended",
        "value": {},
        "context": context,
        "activePaths": [],
        "serializedStepGraph": [],
        "suspendedPaths": paths,
        "resumeLabels": labels,
        "timestamp": at,
    })
}

fn call_json(call: &StepCall) -> Value {
    json!({ "toolCallId": call.tool_call_id, "toolName": call.tool_name, "args": call.args })
}

/// What a suspended step says of the call it waits for.
fn suspend_payload(call: &ParkedCall, agent_id: &str) -> Object {
    let (tool_name, args) = call.shown();
    let mut payload = Object::new();
    match &call.kind {
        ParkKind::Approval => {
            let asked = json!({ "toolCallId": call.tool_call_id, "toolName": tool_name, "args": args });
            payload.insert("requireToolApproval".to_owned(), asked);
        }
        ParkKind::Suspension { payload: told } => {
            payload.insert("toolCallSuspended".to_owned(), told.clone());
            payload.insert("toolCallId".to_owned(), call.tool_call_id.clone().into());
            payload.insert("toolName".to_owned(), tool_name.into());
        }
    }
    payload.insert("__agentId".to_owned(), agent_id.into());
    payload
}

/// The entry of a call that was started; `None` for the first that was not, since the calls are in order.
fn entry(call: &StepCall, agent_id: &str, messages: &[StoredMessage], at: i64) -> Option<Value> {
    let payload = call_json(call);
    match &call.state {
        StepCallState::Open => None,
        StepCallState::Parked(parked) => {
            let mut entry = json!({
                "payload": payload, "startedAt": at, "status": "suspended",
                "suspendPayload": suspend_payload(parked, agent_id), "suspendedAt": at,
            });
            if !parked.kind.is_approval() {
                entry["suspendOutput"] = payload;
            }
            Some(entry)
        }
        StepCallState::Done | StepCallState::Client => {
            let mut output = payload.clone();
            let parts = messages.iter().rev().flat_map(|message| &message.content.parts);
            let part = parts.into_iter().find_map(|part| match part {
                Part::ToolInvocation(part) if part.tool_invocation.tool_call_id == call.tool_call_id => Some(part),
                _ => None,
            });
            match part.map(|part| &part.tool_invocation) {
                Some(call) if call.state == ToolState::Result => {
                    output["result"] = call.result.clone().unwrap_or_default();
                }
                Some(call) if call.state == ToolState::OutputError => {
                    output["error"] = json!({ "name": "Error", "message": call.error_text });
                }
                Some(call) if call.state == ToolState::OutputDenied => {
                    let reason = call.approval.as_ref().and_then(|given| given.get("reason")).cloned();
                    output["result"] = reason.unwrap_or_default();
                    output["approval"] = call.approval.clone().unwrap_or_default();
                }
                _ => {}
            }
            Some(json!({
                "payload": payload, "startedAt": at, "status": "success", "output": output, "endedAt": at,
            }))
        }
    }
}

/// What the reference rebuilds the stream and the conversation from. System messages come from the agent as it is
/// configured then (LOOP-102).
fn stream_state(
    run_id: &RunId,
    thread: Option<&ThreadKey>,
    messages: &[StoredMessage],
    snapshot: &RunSnapshot,
    step: &ParkedStep,
) -> Value {
    let calls: Vec<Value> = step
        .calls
        .iter()
        .map(|call| json!({ "type": "tool-call", "runId": run_id, "from": "AGENT", "payload": call_json(call) }))
        .collect();
    let is_own = |message: &&StoredMessage| snapshot.own.contains(&message.id);
    let ids = |wanted: &dyn Fn(&&StoredMessage) -> bool| -> Vec<&MessageId> {
        messages.iter().filter(|message| wanted(message)).map(|message| &message.id).collect()
    };
    let remembered = ids(&|message| !is_own(message));
    let memory = match thread {
        Some(thread) => json!({ "threadId": thread.thread_id, "resourceId": thread.resource_id }),
        None => Value::Null,
    };
    let text: Vec<&str> = if step.text.is_empty() { Vec::new() } else { vec![&step.text] };
    json!({
        "status": "suspended",
        "wasSuspended": true,
        "bufferedSteps": [],
        "bufferedReasoningDetails": {},
        "bufferedByStepReasoningDetails": {},
        "bufferedByStep": {
            "text": step.text, "reasoning": [], "sources": [], "files": [], "toolCalls": calls, "toolResults": [],
            "dynamicToolCalls": [], "dynamicToolResults": [], "staticToolCalls": [], "staticToolResults": [],
            "content": [], "usage": {}, "warnings": [], "request": {},
            "response": { "id": "", "timestamp": Timestamp::from_millis(0), "modelId": "", "messages": [], "uiMessages": [] },
            "reasoningText": "",
        },
        "bufferedText": text,
        "bufferedTextChunks": {},
        "bufferedSources": [],
        "bufferedReasoning": [],
        "bufferedFiles": [],
        "toolCallArgsDeltas": {},
        "toolCallDeltaIdNameMap": {},
        "toolCallStreamingMeta": {},
        "toolCalls": calls,
        "toolResults": [],
        "warnings": [],
        "request": {},
        "usageCount": before(&snapshot.usage, &step.usage),
        "messageList": {
            "messages": messages,
            "systemMessages": [],
            "taggedSystemMessages": {},
            "memoryInfo": memory,
            "_agentNetworkAppend": false,
            "memoryMessages": remembered,
            "newUserMessages": [],
            "newResponseMessages": [],
            "userContextMessages": [],
            "memoryMessagesPersisted": remembered,
            "newUserMessagesPersisted": ids(&|message| is_own(message) && message.role != Role::Assistant),
            "newResponseMessagesPersisted": ids(&|message| is_own(message) && message.role == Role::Assistant),
            "userContextMessagesPersisted": [],
        },
    })
}

/// The usage of the steps before: the sum without the step's.
fn before(sum: &Usage, step: &Usage) -> Usage {
    let less = |sum: Option<u64>, step: Option<u64>| {
        sum.map(|sum| sum.saturating_sub(step.unwrap_or(0))).filter(|left| *left > 0)
    };
    Usage {
        input_tokens: less(sum.input_tokens, step.input_tokens),
        output_tokens: less(sum.output_tokens, step.output_tokens),
        total_tokens: less(sum.total_tokens, step.total_tokens),
        reasoning_tokens: less(sum.reasoning_tokens, step.reasoning_tokens),
        cached_input_tokens: less(sum.cached_input_tokens, step.cached_input_tokens),
        cache_creation_input_tokens: less(sum.cache_creation_input_tokens, step.cache_creation_input_tokens),
        ..Usage::default()
    }
}

fn empty_step(message_id: &MessageId) -> ParkedStep {
    ParkedStep {
        message_id: message_id.clone(),
        calls: Vec::new(),
        reason: FinishReason::ToolCalls,
        raw_reason: None,
        usage: Usage::default(),
        text: String::new(),
        model: Default::default(),
        metadata: ResponseMetadata::default(),
        warnings: Vec::new(),
    }
}

/// Reads a pair of rows.
///
/// # Errors
/// [`Error::NotSuspended`] if the inner row is missing (STO-111), [`Error::Run`] if the pair cannot be read.
pub(crate) fn read(run: &ParkedRun) -> Result<Unparked, Error> {
    if run.inner.is_null() {
        let run_id = run.run_id.clone();
        return Err(Error::NotSuspended { run_id, tool_call_id: None, answered: false });
    }
    let list = &run.outer["context"]["executionWorkflow"]["suspendPayload"]["__streamState"]["messageList"];
    match run.outer.get(KEY) {
        Some(own) => read_own(run, own, list),
        None => read_foreign(run, list),
    }
}

fn unreadable(run: &ParkedRun, why: impl std::fmt::Display) -> Error {
    let text = format!("the snapshot of suspended run {} cannot be read ({why}); discard the run to go on", run.run_id);
    Error::Run(Box::new(ErrorInfo::new("InvalidSnapshot", text)))
}

fn listed(list: &Value) -> impl Iterator<Item = StoredMessage> {
    let messages = list["messages"].as_array().into_iter().flatten();
    messages.filter_map(|message| serde_json::from_value::<StoredMessage>(message.clone()).ok())
}

fn read_own(run: &ParkedRun, own: &Value, list: &Value) -> Result<Unparked, Error> {
    let mut snapshot: RunSnapshot = serde_json::from_value(own.clone()).map_err(|error| unreadable(run, error))?;
    if let Some(kept) = own.get("keptIds") {
        let kept: Vec<(MessageId, bool, bool)> =
            serde_json::from_value(kept.clone()).map_err(|error| unreadable(run, error))?;
        let messages: Vec<StoredMessage> = listed(list).collect();
        snapshot.kept = kept
            .into_iter()
            .filter_map(|(id, own, ephemeral)| {
                let message = messages.iter().find(|message| message.id == id)?.clone();
                Some(KeptMessage { message, own, ephemeral })
            })
            .collect();
    }
    if snapshot.step.is_none() {
        return Err(unreadable(run, "it has no step"));
    }
    Ok(Unparked { snapshot, known: Vec::new() })
}

/// What the reference wrote.
fn read_foreign(run: &ParkedRun, list: &Value) -> Result<Unparked, Error> {
    let response = &run.inner["context"]["llm-execution"]["output"];
    let calls = run.inner["context"]["map-tool-calls"]["output"].as_array();
    let calls = calls.ok_or_else(|| unreadable(run, "it names no tool calls"))?;
    let outer_payload = &run.outer["context"]["executionWorkflow"]["suspendPayload"];
    let inner_payload = &run.inner["context"]["toolCallStep"]["suspendPayload"];
    let entries = [outer_payload, inner_payload].map(|payload| &payload["__workflow_meta"]["foreachOutput"]);
    let entry_of = |index: usize| -> Option<&Value> {
        entries.iter().find_map(|entries| entries.get(index).or_else(|| entries.get(index.to_string())))
    };
    let messages: Vec<StoredMessage> = listed(list).collect();
    let message_id: MessageId = response["messageId"].as_str().unwrap_or_default().into();
    let mut step = empty_step(&message_id);
    let mut known = Vec::new();
    for (index, call) in calls.iter().enumerate() {
        let text = |key: &str| call[key].as_str().unwrap_or_default().to_owned();
        let (id, name, args) = (text("toolCallId"), text("toolName"), call.get("args").cloned());
        let entry = entry_of(index).filter(|entry| entry.is_object());
        let state = match entry.and_then(|entry| entry["status"].as_str()) {
            Some("suspended") => {
                let payload = entry.map_or(&Value::Null, |entry| &entry["suspendPayload"]);
                let kind = match payload.get("toolCallSuspended") {
                    Some(told) => ParkKind::Suspension { payload: told.clone() },
                    None => ParkKind::Approval,
                };
                let resume_schema =
                    schema_of(&messages, &id).or_else(|| kind.is_approval().then(|| APPROVAL_SCHEMA.to_owned()));
                let args = args.clone().unwrap_or_default();
                let parked = ParkedCall {
                    tool_call_id: id.clone(),
                    tool_name: name.clone(),
                    args,
                    kind,
                    resume_schema,
                    delegated: None,
                };
                StepCallState::Parked(Box::new(parked))
            }
            Some("success") => {
                let output = entry.map_or(&Value::Null, |entry| &entry["output"]);
                known.push((id.clone(), outcome_of(output)));
                StepCallState::Open
            }
            _ => StepCallState::Open,
        };
        step.calls.push(StepCall { tool_call_id: id, tool_name: name, args, state });
    }
    if step.parked().next().is_none() {
        return Err(unreadable(run, "no call of it waits"));
    }
    step.reason = serde_json::from_value(response["stepResult"]["reason"].clone()).unwrap_or(FinishReason::ToolCalls);
    step.usage = serde_json::from_value(response["output"]["usage"].clone()).unwrap_or_default();
    step.text = response["output"]["text"].as_str().unwrap_or_default().to_owned();
    if let Some(message) = messages.iter().find(|message| message.id == message_id) {
        let meta = |key: &str| message.content.meta(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        step.model = (meta("provider"), meta("modelId"));
    }
    let state = &outer_payload["__streamState"];
    let mut usage: Usage = serde_json::from_value(state["usageCount"].clone()).unwrap_or_default();
    usage.add(&step.usage);
    let own: Vec<MessageId> =
        ["newUserMessages", "newUserMessagesPersisted", "newResponseMessages", "newResponseMessagesPersisted"]
            .into_iter()
            .flat_map(|key| list[key].as_array().into_iter().flatten())
            .filter_map(|id| id.as_str().map(MessageId::from))
            .collect();
    let kept = messages
        .into_iter()
        .map(|message| KeptMessage { own: own.contains(&message.id), message, ephemeral: false })
        .collect();
    let steps = state["bufferedSteps"].as_array().map_or(0, Vec::len);
    let snapshot = RunSnapshot {
        message_id: message_id.clone(),
        first_message_id: message_id,
        iteration: 1,
        steps: u32::try_from(steps).unwrap_or(u32::MAX),
        usage,
        consumed: Vec::new(),
        wake: None,
        own,
        recoveries: 0,
        phase: SnapshotPhase::Parked,
        options: Value::Null,
        step: Some(step),
        kept,
        answer_from: None,
        delegation: Default::default(),
        last_turn: false,
    };
    Ok(Unparked { snapshot, known })
}

/// The schema that the message of a call has of its answer.
fn schema_of(messages: &[StoredMessage], id: &str) -> Option<String> {
    messages.iter().rev().find_map(|message| {
        ["pendingToolApprovals", "suspendedTools"].into_iter().find_map(|key| {
            let schema = message.content.meta(key)?.get(id)?.get("resumeSchema")?.as_str()?;
            Some(schema.to_owned())
        })
    })
}

fn outcome_of(output: &Value) -> ToolOutcome {
    if let Some(error) = output.get("error").filter(|error| !error.is_null()) {
        let message = error.get("message").or(Some(error)).and_then(Value::as_str).unwrap_or("the tool failed");
        return ToolOutcome::Failed(ErrorInfo::new("Error", message));
    }
    let approval = output.get("approval").filter(|approval| approval.get("approved") == Some(&Value::Bool(false)));
    if let Some(approval) = approval {
        let reason = approval.get("reason").and_then(Value::as_str).unwrap_or(super::NOT_APPROVED);
        return ToolOutcome::Denied { reason: reason.to_owned() };
    }
    let value = output.get("result").cloned().unwrap_or_default();
    let is_error = value.get("error") == Some(&Value::Bool(true)) && value.get("validationErrors").is_some();
    ToolOutcome::Result { value, is_error, model_output: None }
}
