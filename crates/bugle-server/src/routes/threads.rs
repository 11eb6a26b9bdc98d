//! Following and stopping a thread (HTTP §6).

use bugle::{
    ThreadKey,
    json::{Object, json},
    runtime::{AbortOptions, Replay, ReplayFrom, SubscribeOptions},
};

use super::{Answer, Route, answer, route};
use crate::{
    call::{Call, flag, text},
    fields, sse,
};

pub(super) const ROUTES: &[Route] = &[
    route!(Post "/agents/{agentId}/threads/subscribe" "Follows a thread: all its runs, until the client leaves", subscribe, query: fields::EVENT_IDS_QUERY, body: fields::SUBSCRIBE, streams: true),
    route!(Get "/agents/{agentId}/threads/subscribe" "The same for EventSource, with event ids", subscribe_by_get, query: fields::SUBSCRIBE_QUERY, streams: true),
    route!(Post "/agents/{agentId}/threads/abort" "Stops the thread's run", abort, body: fields::ABORT),
];

async fn subscribe(call: Call) -> Answer {
    let thread = call.named_thread(&call.body)?;
    let asked = flag(&call.body, "eventIds").or_else(|| flag(&call.query, "eventIds"));
    follow(call, thread, asked.unwrap_or(false)).await
}

async fn subscribe_by_get(call: Call) -> Answer {
    let thread = call.named_thread(&call.query)?;
    let asked = flag(&call.query, "eventIds").unwrap_or(true);
    follow(call, thread, asked).await
}

async fn follow(call: Call, thread: ThreadKey, event_ids: bool) -> Answer {
    let agent = call.agent()?;
    let last = call.headers.get("last-event-id").map(|value| value.to_str().unwrap_or_default());
    let replay = match last {
        None => Replay::Current,
        Some(id) => Replay::After(id.trim().parse().map_or(ReplayFrom::Unknown, ReplayFrom::Event)),
    };
    let event_ids = event_ids || last.is_some();
    let subscription = agent.subscribe(&thread, SubscribeOptions { replay, ..SubscribeOptions::default() }).await?;
    Ok(sse::subscription(subscription, call.app.options.keep_alive, event_ids))
}

/// HTTP-081.
async fn abort(call: Call) -> Answer {
    let agent = call.agent()?;
    let thread = call.named_thread(&call.body)?;
    let aborted = agent.abort_thread(&thread, options(&call.body)).await?;
    Ok(answer(json!({"aborted": aborted})))
}

fn options(body: &Object) -> AbortOptions {
    AbortOptions {
        clear_pending_signals: flag(body, "clearPendingSignals").unwrap_or(false),
        expected_run_id: text(body, "expectedRunId").map(Into::into),
    }
}
