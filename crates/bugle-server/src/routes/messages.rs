//! Input of a thread: messages, signals, and what waits (HTTP §6).

use bugle::{
    Error, SignalInput, ThreadKey,
    json::{Object, Value, json},
    runtime::{
        Action, ActiveBehavior, CancelSelector, EditInput, IdleBehavior, IfActive, IfIdle, Message, Outcome, PromoteTo,
        Sent, StateSent, Target,
    },
    signal::{Attributes, Contents, StateInput},
    storage::StorageError,
    time::Timestamp,
};
use serde::de::DeserializeOwned;

use super::{Answer, Route, answer, route};
use crate::{
    call::{Call, flag, object, text},
    error::{Failure, Place},
    fields,
    run_fields::run_options,
    shape::Issue,
};

pub(super) const ROUTES: &[Route] = &[
    route!(Post "/agents/{agentId}/send-message" "Text of a person, seen now", send_message, body: fields::SEND_MESSAGE),
    route!(Post "/agents/{agentId}/queue-message" "Text of a person, for a run of its own", queue_message, body: fields::SEND_MESSAGE),
    route!(Post "/agents/{agentId}/signals" "Context made by a system, seen now", send_signal, body: fields::SEND_SIGNAL),
    route!(Post "/agents/{agentId}/queue-signal" "Context made by a system, for a run of its own", queue_signal, body: fields::SEND_SIGNAL),
    route!(Post "/agents/{agentId}/state-signals" "The state of a lane: told once, and kept in view", send_state, body: fields::SEND_STATE),
    route!(Get "/agents/{agentId}/threads/pending" "Input that waits, in order", pending, query: fields::THREAD_QUERY),
    route!(Post "/agents/{agentId}/cancel-queued-messages" "Takes back input that waits", cancel, body: fields::CANCEL),
    route!(Post "/agents/{agentId}/promote-queued-message" "Moves a queued message into the running loop or to the front", promote, body: fields::PROMOTE),
    route!(Patch "/agents/{agentId}/queued-messages/{signalId}" "Changes a queued message", edit, body: fields::EDIT),
];

async fn send_message(call: Call) -> Answer {
    let (agent, target, message) = (call.agent()?, target(&call)?, message(&call.body)?);
    accepted(agent.send_message(target, message).await.map_err(|error| Failure::from(error).under("message"))?).await
}

async fn queue_message(call: Call) -> Answer {
    let (agent, target, message) = (call.agent()?, target(&call)?, message(&call.body)?);
    accepted(agent.queue_message(target, message).await.map_err(|error| Failure::from(error).under("message"))?).await
}

async fn send_signal(call: Call) -> Answer {
    let (agent, target, signal) = (call.agent()?, target(&call)?, signal(&call.body)?);
    accepted(agent.send_signal(target, signal).await.map_err(|error| Failure::from(error).under("signal"))?).await
}

async fn queue_signal(call: Call) -> Answer {
    let (agent, target, signal) = (call.agent()?, target(&call)?, signal(&call.body)?);
    accepted(agent.queue_signal(target, signal).await.map_err(|error| Failure::from(error).under("signal"))?).await
}

/// STATE-043. The thread must exist; what it has already is skipped.
async fn send_state(call: Call) -> Answer {
    let (agent, target) = (call.agent()?, target(&call)?);
    let under = |error: Error| Failure::from(error).under("state");
    let state =
        StateInput::from_json(call.body.get("state").unwrap_or(&Value::Null)).map_err(|error| under(error.into()))?;
    match agent.send_state_signal(target, state).await.map_err(under)? {
        StateSent::Unchanged => Ok(answer(json!({"skipped": true, "reason": "unchanged"}))),
        StateSent::Sent { outcome, mut persisted, .. } => {
            if outcome.action == Action::Persist {
                persisted.wait().await?;
            }
            Ok(answer(told(outcome)))
        }
    }
}

/// HTTP-079. Answers once the input is safe; a refusal means that nothing was accepted (HTTP-013).
async fn accepted(mut sent: Sent) -> Answer {
    let outcome = sent.accepted().await?;
    if outcome.action == Action::Persist {
        sent.persisted().await?;
    }
    Ok(answer(told(outcome)))
}

fn told(outcome: Outcome) -> Value {
    let Outcome { action, run_id, waiting_for, signal } = outcome;
    // For input that no run takes, its own id stands in.
    let run_id = match (action, run_id) {
        (Action::Persist | Action::Discard, _) | (_, None) => signal.id.to_string(),
        (_, Some(run_id)) => run_id.to_string(),
    };
    let mut body = json!({"accepted": true, "action": action, "runId": run_id, "signal": signal});
    if let Some(waiting_for) = waiting_for {
        body["waitingFor"] = waiting_for.into();
    }
    body
}

/// Where the input goes: a thread, or a live run that names one.
fn target(call: &Call) -> Result<Target, Failure> {
    let body = &call.body;
    let run_id = text(body, "runId").filter(|id| !id.is_empty());
    let thread = match run_id {
        Some(run_id) => run_thread(call, run_id)?,
        None => call.thread(body),
    };
    let mut issues = Vec::new();
    if run_id.is_some() && body.get("ifIdle").is_some_and(|value| !value.is_null()) {
        issues.push(Issue::new("ifIdle", "a target with a runId is a live run; leave ifIdle out"));
    }
    if run_id.is_none() && call.resource(text(body, "resourceId")).is_none() {
        issues.push(Issue::new("resourceId", "Invalid input: expected string, received undefined"));
    }
    if run_id.is_none() && text(body, "threadId").is_none_or(|id| id.trim().is_empty()) {
        issues.push(Issue::new("threadId", "Invalid input: expected string, received undefined"));
    }
    if !issues.is_empty() {
        return Err(Failure::invalid(Place::Body, issues));
    }
    let (if_active, if_idle) = branches(call)?;
    Ok(Target {
        request_context: Some(call.request_context(None)),
        thread,
        run_id: run_id.map(Into::into),
        if_active,
        if_idle,
        queue_owner_id: None,
    })
}

/// What the input does while a run is active, and while none is.
pub(super) fn branches(call: &Call) -> Result<(IfActive, IfIdle), Failure> {
    let body = &call.body;
    let empty = Object::new();
    let active = object(body, "ifActive").unwrap_or(&empty);
    let idle = object(body, "ifIdle").unwrap_or(&empty);
    let options = match object(idle, "streamOptions") {
        Some(fields) => {
            let options = run_options(call, fields).map_err(|failure| failure.under("ifIdle.streamOptions"))?;
            Some(Box::new(options))
        }
        // Those of the run it waits behind, if there is one (SIG-252).
        None => None,
    };
    Ok((
        IfActive {
            behavior: typed::<ActiveBehavior>(active, "behavior").unwrap_or_default(),
            attributes: attributes(active),
        },
        IfIdle {
            behavior: typed::<IdleBehavior>(idle, "behavior").unwrap_or_default(),
            attributes: attributes(idle),
            options,
        },
    ))
}

/// The thread of a target that names a run: as the request says, else as the run says. A caller who is bound to a
/// resource, or names one, reaches only runs on threads of its own.
fn run_thread(call: &Call, run_id: &str) -> Result<Option<ThreadKey>, Failure> {
    if let Some(resource) = call.resource(text(&call.body, "resourceId"))
        && let Some(thread) = call.bugle().thread_of_run(&run_id.into())
        && thread.resource_id.as_deref().is_some_and(|owner| owner != resource)
    {
        return Err(Failure::foreign_thread());
    }
    Ok(call.thread(&call.body))
}

fn message(body: &Object) -> Result<Message, Failure> {
    let value = body.get("message").unwrap_or(&Value::Null);
    match value {
        Value::Object(fields) => Ok(Message {
            contents: contents(fields.get("contents"))?,
            attributes: attributes(fields),
            metadata: object(fields, "metadata").cloned(),
            provider_options: object(fields, "providerOptions").cloned(),
            id: text(fields, "id").map(Into::into),
        }),
        value => Ok(contents(Some(value))?.into()),
    }
}

fn signal(body: &Object) -> Result<SignalInput, Failure> {
    let empty = Object::new();
    let fields = object(body, "signal").unwrap_or(&empty);
    let created_at = match text(fields, "createdAt") {
        Some(at) => Some(
            Timestamp::parse(at)
                .ok_or_else(|| Failure::field("signal.createdAt", "expected an ISO 8601 date and time"))?,
        ),
        None => None,
    };
    Ok(SignalInput {
        id: text(fields, "id").map(Into::into),
        signal_type: text(fields, "type").map(str::to_owned),
        tag_name: text(fields, "tagName").map(str::to_owned),
        contents: Some(contents(fields.get("contents"))?),
        attributes: attributes(fields),
        metadata: object(fields, "metadata").cloned(),
        provider_options: object(fields, "providerOptions").cloned(),
        created_at,
        accepted_at: None,
        transient: flag(fields, "transient"),
    })
}

fn contents(value: Option<&Value>) -> Result<Contents, Failure> {
    let value = value.cloned().unwrap_or_default();
    serde_json::from_value(value).map_err(|error| Failure::field("contents", error.to_string()))
}

fn attributes(fields: &Object) -> Option<Attributes> {
    object(fields, "attributes").map(|map| map.iter().map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// A text of a fixed set, which the shape has checked.
fn typed<T: DeserializeOwned>(fields: &Object, name: &str) -> Option<T> {
    fields.get(name).and_then(|value| serde_json::from_value(value.clone()).ok())
}

/// HTTP-240.
async fn pending(call: Call) -> Answer {
    let agent = call.agent()?;
    let thread = call.readable_thread(&call.query).await?;
    match agent.pending_input(&thread).await {
        // Asked for without its resource, it is as good as none (ruling 20).
        Err(Error::Storage(StorageError::ThreadOwnership { .. })) => Err(Failure::unknown_thread()),
        pending => Ok(answer(json!({"pending": pending?}))),
    }
}

/// HTTP-091.
async fn cancel(call: Call) -> Answer {
    let agent = call.agent()?;
    let thread = call.named_thread(&call.body)?;
    let ids = call.body.get("signalIds").and_then(Value::as_array).into_iter().flatten();
    let ids = ids.filter_map(Value::as_str).map(Into::into).collect();
    let cancelled = agent.cancel_queued(&thread, CancelSelector::Signals(ids)).await?;
    Ok(answer(json!({"cancelledSignalIds": cancelled})))
}

/// HTTP-241.
async fn promote(call: Call) -> Answer {
    let agent = call.agent()?;
    let thread = call.named_thread(&call.body)?;
    let id = text(&call.body, "signalId").unwrap_or_default().into();
    let to = typed::<PromoteTo>(&call.body, "to").unwrap_or_default();
    let promoted = agent.promote_queued(&thread, &id, to).await?;
    Ok(answer(json!({"promoted": true, "runId": promoted.run_id, "to": promoted.to})))
}

/// HTTP-242.
async fn edit(call: Call) -> Answer {
    let agent = call.agent()?;
    let thread = call.named_thread(&call.body)?;
    let contents = match call.body.get("contents") {
        None | Some(Value::Null) => None,
        value => Some(contents(value)?),
    };
    let edit = EditInput { contents, attributes: attributes(&call.body) };
    let signal = agent.edit_queued(&thread, &call.path("signalId").into(), edit).await?;
    Ok(answer(json!({"signal": signal})))
}
