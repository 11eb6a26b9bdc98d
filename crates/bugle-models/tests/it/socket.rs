//! Connections: left at once when nobody reads, kept when the answer is complete.

use std::sync::Arc;

use bugle::model::{LanguageModel, ModelEvent};
use futures::StreamExt;
use serde_json::json;
use tokio::sync::Notify;

use crate::provider::*;

#[tokio::test]
async fn loop_030_dropping_the_stream_closes_the_socket() {
    let mut provider = Provider::start([vec![
        sse_head(),
        delta(json!({ "content": "one " })),
        delta(json!({ "reasoning_content": "two" })),
        Act::UntilLeft,
    ]])
    .await;
    let mut response = provider.model().stream(request()).await.unwrap();
    while !matches!(response.events.next().await, Some(Ok(ModelEvent::ReasoningDelta { .. }))) {}
    drop(response);
    provider.until_left(1).await;
}

#[tokio::test]
async fn loop_030_dropping_the_request_before_the_headers_closes_the_socket() {
    let mut provider = Provider::start([vec![Act::UntilLeft]]).await;
    let model = provider.model();
    let asking = tokio::spawn(async move { model.stream(request()).await.map(|_| ()) });
    while provider.requests().is_empty() {
        tokio::task::yield_now().await;
    }
    asking.abort();
    provider.until_left(1).await;
}

#[tokio::test]
async fn deltas_arrive_while_the_provider_still_writes() {
    let gate = Arc::new(Notify::new());
    let answer = stream([
        delta(json!({ "content": "first" })),
        Act::Wait(gate.clone()),
        delta(json!({ "content": " second" })),
        finish("stop"),
        done(),
    ]);
    let provider = Provider::start([answer]).await;
    let mut events = provider.model().stream(request()).await.unwrap().events;
    let mut next = async || outline(&[events.next().await.unwrap().unwrap()]).remove(0);
    assert_eq!([next().await, next().await], ["+txt-0", "first"]);
    gate.notify_one();
    assert_eq!([next().await, next().await, next().await], [" second", "-txt-0", "Stop stop"]);
}

#[tokio::test]
async fn a_complete_answer_leaves_its_connection_for_the_next_request() {
    let answer = || stream([delta(json!({ "content": "x" })), finish("stop"), done()]);
    let provider = Provider::start([answer(), answer(), answer()]).await;
    let model = provider.model();
    for _ in 0..3 {
        // Read as the loop reads: not past the finish.
        let mut events = model.stream(request()).await.unwrap().events;
        while !matches!(events.next().await, Some(Ok(ModelEvent::Finish { .. }))) {}
    }
    let connections: Vec<_> = provider.requests().iter().map(|seen| seen.connection).collect();
    assert_eq!(connections, [0, 0, 0]);
}
