//! Notifications: taking them in, and a person's view of an inbox (HTTP §12, NOTIF-121).

use std::time::Duration;

use bugle::{
    ThreadKey,
    json::{Object, Value, json},
    notification::{InboxAction, NewNotification},
    storage::{NOTIFICATION_PRIORITIES, NOTIFICATION_STATUSES, NotificationCursor, NotificationQuery},
};

use super::{Answer, Route, answer, messages, route};
use crate::{
    call::{Call, object, text, whole},
    error::{Failure, Place},
    fields,
    shape::Issue,
};

/// Records of a page, unless the request says otherwise; and at most.
const LIMIT: u32 = 20;
const LIMIT_MAX: u32 = 200;

pub(super) const ROUTES: &[Route] = &[
    route!(Post "/agents/{agentId}/notifications" "An outside event: stored, and told to the agent as its policy says", send, body: fields::NOTIFICATION),
    route!(Get "/agents/{agentId}/notifications" "The inbox of a thread, or of a resource", list, query: fields::NOTIFICATIONS_QUERY),
    route!(Post "/agents/{agentId}/notifications/{notificationId}/seen" "Marks a notification seen", seen, body: fields::NOTIFICATION_MARK),
    route!(Post "/agents/{agentId}/notifications/{notificationId}/dismiss" "Puts a notification away", dismiss, body: fields::NOTIFICATION_MARK),
    route!(Post "/agents/{agentId}/notifications/{notificationId}/archive" "Puts a notification away for good", archive, body: fields::NOTIFICATION_MARK),
    route!(Post "/agents/{agentId}/notifications/{notificationId}/retry" "Tries the delivery of one that has failed anew", retry, body: fields::NOTIFICATION_MARK),
];

async fn send(call: Call) -> Answer {
    let agent = call.agent()?;
    let body = &call.body;
    let mut issues = Vec::new();
    if call.resource(text(body, "resourceId")).is_none() {
        issues.push(Issue::new("resourceId", "Invalid input: expected string, received undefined"));
    }
    if text(body, "threadId").is_none_or(str::is_empty) {
        issues.push(Issue::new("threadId", "Invalid input: expected string, received undefined"));
    }
    if !issues.is_empty() {
        return Err(Failure::invalid(Place::Body, issues));
    }
    let thread = call.named_thread(body)?;
    call.check_writable(&thread).await?;
    let given = |name: &str| text(body, name).map(str::to_owned);
    let (if_active, if_idle) = messages::branches(&call)?;
    let mut event = NewNotification::new(
        thread,
        given("source").unwrap_or_default(),
        given("kind").unwrap_or_default(),
        given("summary").unwrap_or_default(),
    );
    event.priority = given("priority");
    event.payload = body.get("payload").filter(|payload| !payload.is_null()).cloned();
    event.source_id = given("sourceId");
    event.dedupe_key = given("dedupeKey");
    event.dedupe_window = whole(body, "dedupeWindowMs").map(|ms| Duration::from_millis(ms.into()));
    event.coalesce_key = given("coalesceKey");
    event.attributes = object(body, "attributes").cloned();
    event.metadata = object(body, "metadata").cloned();
    event.if_active = if_active;
    event.if_idle = if_idle;
    let notified = agent.send_notification(event).await?;
    let mut told = json!({
        "accepted": notified.is_accepted(),
        "notificationId": notified.record.id,
        "decision": notified.decision,
        "record": notified.record,
    });
    if let Some(run_id) = notified.run_id() {
        told["runId"] = json!(run_id);
    }
    if let Some(outcome) = &notified.outcome {
        told["action"] = json!(outcome.action);
        told["signalId"] = json!(outcome.signal.id);
    }
    Ok(answer(told))
}

async fn list(call: Call) -> Answer {
    let agent = call.agent()?;
    let query = &call.query;
    let thread = match text(query, "threadId").filter(|id| !id.is_empty()) {
        Some(_) => Some(call.readable_thread(query).await?),
        None => None,
    };
    let resource = call.resource(text(query, "resourceId")).map(str::to_owned);
    if thread.is_none() && resource.is_none() {
        let issue = Issue::new("threadId", "say whose inbox it is: threadId, or resourceId");
        return Err(Failure::invalid(Place::Query, vec![issue]));
    }
    let after = match text(query, "cursor") {
        Some(cursor) => Some(NotificationCursor::parse(cursor).ok_or_else(|| {
            Failure::invalid(Place::Query, vec![Issue::new("cursor", "no nextCursor of an earlier page")])
        })?),
        None => None,
    };
    let page = call
        .bugle()
        .notifications(&NotificationQuery {
            thread_id: thread.map(|thread| thread.thread_id.to_string()),
            resource_id: resource,
            agent_id: Some(agent.agent().id().to_owned()),
            statuses: listed(query, "status", &NOTIFICATION_STATUSES)?,
            priorities: listed(query, "priority", &NOTIFICATION_PRIORITIES)?,
            source: text(query, "source").map(str::to_owned),
            search: text(query, "search").filter(|search| !search.is_empty()).map(str::to_owned),
            limit: whole(query, "limit").unwrap_or(LIMIT).min(LIMIT_MAX),
            after,
        })
        .await?;
    let mut told = json!({"notifications": page.records, "hasMore": page.has_more});
    if let Some(next) = page.next() {
        told["nextCursor"] = next.to_string().into();
    }
    Ok(answer(told))
}

/// A comma-separated list of known words.
fn listed(query: &Object, name: &str, known: &[&str]) -> Result<Vec<String>, Failure> {
    let words = text(query, name).unwrap_or_default().split(',').map(str::trim).filter(|word| !word.is_empty());
    words
        .map(|word| {
            if known.contains(&word) {
                return Ok(word.to_owned());
            }
            let issue = Issue::new(name, format!("{word} is none; known are {}", known.join(", ")));
            Err(Failure::invalid(Place::Query, vec![issue]))
        })
        .collect()
}

async fn seen(call: Call) -> Answer {
    mark(call, InboxAction::Seen).await
}

async fn dismiss(call: Call) -> Answer {
    mark(call, InboxAction::Dismiss).await
}

async fn archive(call: Call) -> Answer {
    mark(call, InboxAction::Archive).await
}

async fn retry(call: Call) -> Answer {
    mark(call, InboxAction::Retry).await
}

async fn mark(call: Call, action: InboxAction) -> Answer {
    let agent = call.agent()?;
    let thread = call.named_thread(&call.body)?;
    call.check_writable(&thread).await?;
    let id = call.path("notificationId");
    own(&call, agent.agent().id(), &thread, id).await?;
    let record = call.bugle().mark_notification(&thread.thread_id, id, action).await?;
    Ok(answer(json!({"notification": record})))
}

/// The record must be this agent's, and of the resource that asks.
async fn own(call: &Call, agent: &str, thread: &ThreadKey, id: &str) -> Result<(), Failure> {
    let unknown = || Failure::not_found(format!("notification {id} not found"));
    let store = call.bugle().storage().notifications().ok_or_else(unknown)?;
    let record = store.get(&thread.thread_id, id).await?.ok_or_else(unknown)?;
    let of_agent = record.agent_id.as_deref().is_none_or(|of| of == agent);
    let of_resource = thread.resource_id.is_none() || record.resource_id.as_deref() == thread.resource_id.as_deref();
    if of_agent && of_resource { Ok(()) } else { Err(unknown()) }
}

/// What a webhook may do is in its signature, not in a token (PROV-010).
pub(super) const WEBHOOK_ROUTES: &[Route] = &[Route {
    raw: Some(1 << 20),
    ..route!(Post "/signals/{providerId}/webhook" "An event of an outside system, signed by it", webhook)
}];

async fn webhook(call: Call) -> Answer {
    let headers = call
        .headers
        .iter()
        .filter_map(|(name, value)| Some((name.as_str().to_owned(), value.to_str().ok()?.to_owned())));
    let headers = headers.collect();
    let taken = call.bugle().take_webhook(call.path("providerId"), headers, call.raw.clone()).await;
    let taken = taken.map_err(|error| Failure::of_webhook(&error))?;
    let mut told = json!({"matched": taken.matched});
    if taken.duplicate {
        told["duplicate"] = Value::Bool(true);
    }
    Ok(answer(told))
}
