//! Runs that wait for a person: approving, declining, resuming, listing, giving up (HTTP §5.4).

use bugle::{
    Error, RunId, RunOptions, ThreadKey,
    json::{Object, Value, json},
    message::Part,
    run::Decision,
    runtime::{RunInput, SuspendedQuery, ToolApproval},
    storage::ParkedRun,
    time::Timestamp,
};

use super::{Answer, Route, answer, route};
use crate::{
    answer::generated,
    call::{Call, belongs, flag, object, text, whole},
    error::{Failure, Place},
    fields,
    run_fields::{read_input, run_options},
    shape::Issue,
    sse::{self, PendingCalls},
};

/// How many of a thread's newest messages are looked at for the outcome of a call.
const ANSWERED_WITHIN: u32 = 100;

pub(super) const ROUTES: &[Route] = &[
    route!(Post "/agents/{agentId}/approve-tool-call" "Lets a call run that waits for approval; streams the rest of its run", approve, body: fields::ANSWER_CALL, streams: true),
    route!(Post "/agents/{agentId}/decline-tool-call" "Declines a call that waits for approval; streams the rest of its run", decline, body: fields::ANSWER_CALL, streams: true),
    route!(Post "/agents/{agentId}/approve-tool-call-generate" "Lets a call run that waits for approval; answers the finished run", approve_and_wait, body: fields::ANSWER_CALL),
    route!(Post "/agents/{agentId}/decline-tool-call-generate" "Declines a call that waits for approval; answers the finished run", decline_and_wait, body: fields::ANSWER_CALL),
    route!(Post "/agents/{agentId}/resume-stream" "Gives a suspended tool what it asked for; streams the rest of its run", resume, body: fields::RESUME, streams: true),
    route!(Post "/agents/{agentId}/resume-stream-until-idle" "The same, until nothing is left to do", resume, body: fields::RESUME, streams: true),
    route!(Post "/agents/{agentId}/send-tool-approval" "Answers a call that waits for a person, or hands over results of client tools; the thread's subscribers see the rest", tool_approval, body: fields::TOOL_APPROVAL),
    route!(Get "/agents/{agentId}/suspended-runs" "The agent's runs that wait for a person, newest first", list, query: fields::SUSPENDED_QUERY),
    route!(Delete "/agents/{agentId}/suspended-runs/{runId}" "Gives a run up that waits for a person, so that its thread can go on", discard),
    route!(Post "/agents/{agentId}/observe" "Durable agents' runs: there are none", observe, body: fields::OBSERVE, streams: true),
    route!(Post "/agents/{agentId}/recover" "Durable agents' runs: there are none; interrupted runs go on by themselves", recover, body: fields::RECOVER, streams: true),
];

async fn approve(call: Call) -> Answer {
    let data = verdict(&call.body, true);
    stream(call, data).await
}

async fn decline(call: Call) -> Answer {
    let data = verdict(&call.body, false);
    stream(call, data).await
}

async fn approve_and_wait(call: Call) -> Answer {
    let data = verdict(&call.body, true);
    generate(call, data).await
}

async fn decline_and_wait(call: Call) -> Answer {
    let data = verdict(&call.body, false);
    generate(call, data).await
}

async fn resume(call: Call) -> Answer {
    let data = call.body.get("resumeData").cloned().unwrap_or_default();
    stream(call, data).await
}

/// What an approval says (LOOP-091).
fn verdict(body: &Object, approved: bool) -> Value {
    let decision = if approved { Decision::approve(None) } else { Decision::decline(None, text(body, "reason")) };
    decision.data
}

async fn stream(call: Call, data: Value) -> Answer {
    let agent = call.agent()?;
    let run = Waiting::of(&call, &call.body).await?;
    let options = run_options(&call, &call.body)?;
    let pending = PendingCalls::new(run.calls());
    let stream = match agent.resume_stream(&run.id, decision(&call, data), options).await {
        Ok(stream) => stream,
        Err(error) => return Err(run.refusal(&call, error)),
    };
    call.app.resumed.add(&run.id);
    // There are no background tasks to wait for yet, so a run is idle when it has ended (HTTP-064).
    Ok(sse::resumed(stream, call.bugle().clone(), call.app.options.keep_alive, pending))
}

/// HTTP-106.
async fn generate(call: Call, data: Value) -> Answer {
    let agent = call.agent()?;
    let run = Waiting::of(&call, &call.body).await?;
    let options = run_options(&call, &call.body)?;
    // A client that leaves drops this future, which stops the run (HTTP-026).
    let output = match agent.resume_generate(&run.id, decision(&call, data), options).await {
        Ok(output) => output,
        Err(error) => return Err(run.refusal(&call, error)),
    };
    call.app.resumed.add(&run.id);
    Ok(answer(generated(&output)))
}

fn decision(call: &Call, data: Value) -> Decision {
    let tool_call_id = text(&call.body, "toolCallId").filter(|id| !id.is_empty()).map(str::to_owned);
    Decision { tool_call_id, data }
}

/// A run that somebody wants to answer, whom they may answer.
struct Waiting {
    id: RunId,
    /// `None` where it is not parked: the runtime knows why.
    parked: Option<ParkedRun>,
}

impl Waiting {
    /// The run that `fields` name with `runId`. A caller who is bound to a resource, or names one, reaches only runs of
    /// that resource (HTTP-012; answers are writes, ruling 39).
    async fn of(call: &Call, fields: &Object) -> Result<Self, Failure> {
        let named = object(fields, "memory").and_then(|memory| text(memory, "resource"));
        Self::find(call, text(fields, "runId").unwrap_or_default(), named).await
    }

    async fn find(call: &Call, id: &str, named: Option<&str>) -> Result<Self, Failure> {
        let id = RunId::from(id);
        let storage = call.bugle().storage();
        let parked = storage.parked_run(&id).await?;
        let thread = match &parked {
            Some(run) => run.thread.clone(),
            None => match call.bugle().thread_of_run(&id) {
                Some(thread) => Some(thread),
                None => storage.get_run(&id).await?.map(|run| run.thread),
            },
        };
        let of_thread = thread.and_then(|thread| thread.resource_id);
        let owner = of_thread.as_deref().or_else(|| parked.as_ref()?.resource_id.as_deref());
        match (call.resource(named), owner) {
            (Some(resource), Some(owner)) if resource != owner => Err(Failure::foreign_thread()),
            _ => Ok(Self { id, parked }),
        }
    }

    /// Somebody was faster, or there never was such a run (HTTP-108).
    fn refusal(&self, call: &Call, error: Error) -> Failure {
        if matches!(error, Error::NoSuspendedRun { .. }) && call.app.resumed.contains(&self.id) {
            return Failure::conflict(error.to_string());
        }
        error.into()
    }

    /// The calls of the step that waits, by id, as the stored pair has them (LOOP-100).
    fn calls(&self) -> Vec<(String, (String, Value))> {
        let Some(parked) = &self.parked else { return Vec::new() };
        let steps = parked.outer.get("context").and_then(Value::as_object).into_iter().flat_map(Object::values);
        let calls = steps.filter_map(|step| step.pointer("/suspendPayload/__workflow_meta/foreachOutput"));
        let entries = calls.flat_map(|calls| -> Vec<&Value> {
            // A list, or an object with index keys (STO-111).
            match calls {
                Value::Array(list) => list.iter().collect(),
                Value::Object(map) => map.values().collect(),
                _ => Vec::new(),
            }
        });
        let call = |entry: &Value| {
            let payload = entry.get("payload")?.as_object()?;
            let args = payload.get("args").cloned().unwrap_or_default();
            Some((text(payload, "toolCallId")?.to_owned(), (text(payload, "toolName")?.to_owned(), args)))
        };
        entries.filter_map(call).collect()
    }
}

/// HTTP-102, HTTP-093.
async fn tool_approval(call: Call) -> Answer {
    let agent = call.agent()?;
    let thread = call.named_thread(&call.body)?;
    call.check_writable(&thread).await?;
    let body = &call.body;
    let messages = body.get("messages").filter(|list| list.as_array().is_some_and(|list| !list.is_empty()));
    let options = match object(body, "streamOptions") {
        Some(fields) => run_options(&call, fields).map_err(|failure| failure.under("streamOptions"))?,
        None => RunOptions { request_context: call.request_context(None), ..RunOptions::default() },
    };
    let context = object(body, "declineContext");
    let why = |name: &str| context.and_then(|context| text(context, name));
    let reason = text(body, "reason").or_else(|| why("reason")).or_else(|| why("message"));
    let approval = ToolApproval {
        tool_call_id: text(body, "toolCallId").filter(|id| !id.is_empty()).map(str::to_owned),
        approved: flag(body, "approved").unwrap_or(false),
        reason: reason.map(str::to_owned),
        resume_data: body.get("resumeData").filter(|data| !data.is_null()).cloned(),
        messages: match messages {
            Some(messages) => read_input("messages", messages)?,
            None => RunInput::default(),
        },
        options,
    };
    let tool_call_id = approval.tool_call_id.clone();
    match agent.send_tool_approval(&thread, approval).await {
        Ok(accepted) => {
            call.app.resumed.add(&accepted.run_id);
            Ok(answer(json!({"accepted": true, "runId": accepted.run_id, "toolCallId": accepted.tool_call_id})))
        }
        Err(error @ (Error::NoSuspendedThreadRun { .. } | Error::NotSuspended { .. }))
            if is_answered(&call, &thread, tool_call_id.as_deref()).await? =>
        {
            Err(Failure::conflict(error.to_string()))
        }
        Err(error) => Err(error.into()),
    }
}

/// Whether the conversation knows the call, which does not wait: then it was answered before, and may still be running
/// (HTTP-108).
async fn is_answered(call: &Call, thread: &ThreadKey, tool_call_id: Option<&str>) -> Result<bool, Failure> {
    let Some(id) = tool_call_id else { return Ok(false) };
    let recent = call.bugle().storage().recent_messages(thread, ANSWERED_WITHIN).await?;
    let mut parts = recent.iter().flat_map(|message| &message.content.parts);
    Ok(parts.any(|part| matches!(part, Part::ToolInvocation(part) if part.tool_invocation.tool_call_id == id)))
}

/// HTTP-101.
async fn list(call: Call) -> Answer {
    let agent = call.agent()?;
    let resource = call.resource(text(&call.query, "resourceId"));
    let thread_id = text(&call.query, "threadId").filter(|id| !id.is_empty());
    if let Some(id) = thread_id {
        // Another resource's thread is as good as none (ruling 20), and so is one of an agent without memory.
        let stored = call.bugle().storage().get_thread(id).await?;
        let is_known = stored.is_some_and(|thread| belongs(&thread, resource));
        if !is_known || agent.agent().memory().is_none() {
            return Err(Failure::unknown_thread());
        }
    }
    let (from, to) = (date(&call, "fromDate")?, date(&call, "toDate")?);
    if from.zip(to).is_some_and(|(from, to)| from > to) {
        return Err(wrong("fromDate", "lies after toDate"));
    }
    let query = SuspendedQuery {
        thread_id: thread_id.map(str::to_owned),
        resource_id: resource.map(str::to_owned),
        from,
        to,
        per_page: whole(&call.query, "perPage"),
        page: whole(&call.query, "page").unwrap_or(0),
    };
    Ok(answer(agent.list_suspended_runs(query).await?))
}

fn date(call: &Call, name: &str) -> Result<Option<Timestamp>, Failure> {
    let Some(text) = text(&call.query, name).filter(|text| !text.is_empty()) else { return Ok(None) };
    Timestamp::parse(text).map(Some).ok_or_else(|| wrong(name, "expected an ISO 8601 date and time"))
}

fn wrong(field: &str, message: &str) -> Failure {
    Failure::invalid(Place::Query, vec![Issue::new(field, message)])
}

/// LOOP-121; Bugle's own.
async fn discard(call: Call) -> Answer {
    let agent = call.agent()?;
    let run = Waiting::find(&call, call.path("runId"), None).await?;
    agent.discard_suspended_run(&run.id).await?;
    Ok(answer(json!({"discarded": true, "runId": run.id})))
}

/// The reference keeps the stream of a run it does not know open for minutes; nothing comes.
async fn observe(call: Call) -> Answer {
    call.agent()?;
    let id = text(&call.body, "runId").unwrap_or_default();
    Err(Failure::not_found(format!("No durable run with id {id} found; follow its thread with threads/subscribe")))
}

async fn recover(call: Call) -> Answer {
    let id = call.agent()?.agent().id().to_owned();
    Err(Failure::bad_request(format!(
        "Agent {id} is not a durable agent and cannot recover a run; runs that a restart interrupted go on by themselves"
    )))
}
