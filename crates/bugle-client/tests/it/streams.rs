//! Subscriptions: when they stand, and how they come back (HTTP-099, HTTP-243, CLI-056).

use bugle_client::{Client, Delivery, Error, SubscribeOptions};
use serde_json::Value;

use crate::support::server;

const CHUNK: &str =
    "{\"type\":\"text-delta\",\"runId\":\"r\",\"from\":\"AGENT\",\"payload\":{\"id\":\"t\",\"text\":\"a\"}}";

#[tokio::test]
async fn http_099_subscribe_returns_once_the_server_has_confirmed_it() {
    let (url, requests) = server();
    let thread = Client::new(url).unwrap().agent("a").thread("r", "t");
    let subscribing = tokio::spawn(async move { thread.subscribe(SubscribeOptions::default()).await });
    let mut request = tokio::task::spawn_blocking(move || requests.recv().unwrap()).await.unwrap();
    let body: Value = serde_json::from_str(&request.body).unwrap();
    assert_eq!(body, serde_json::json!({"threadId": "t", "resourceId": "r", "eventIds": true}));
    request.event_stream();
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    assert!(!subscribing.is_finished());
    request.write(": connected\n\n");
    subscribing.await.unwrap().unwrap();
}

#[tokio::test]
async fn http_243_a_lost_subscription_comes_back_at_the_last_event_and_says_so_once() {
    let (url, requests) = server();
    let thread = Client::new(url).unwrap().agent("a").thread("r", "t");
    let script = tokio::task::spawn_blocking(move || {
        let mut first = requests.recv().unwrap();
        first.event_stream();
        first.write(&format!(": connected\n\nid: 1-7\ndata: {CHUNK}\n\n: heartbeat\n\n"));
        drop(first);
        // Down for two tries of the client's; each try is three more connections at most.
        let mut second = requests.recv().unwrap();
        assert_eq!(second.header("last-event-id"), Some("1-7"));
        second.event_stream();
        second.write(": connected\n\nevent: gap\ndata: {\"after\":\"1-7\",\"next\":\"2-3\",\"reload\":true}\n\n");
        second.write(&format!("id: 2-3\ndata: {CHUNK}\n\n"));
        drop(second);
        let third = requests.recv().unwrap();
        assert_eq!(third.header("last-event-id"), Some("2-3"));
        third.json("404 Not Found", "{\"error\":\"Agent with id a not found\"}");
    });
    let mut subscription = thread.subscribe(SubscribeOptions::default()).await.unwrap();
    let mut seen = Vec::new();
    while let Some(delivery) = subscription.next().await {
        seen.push(match delivery {
            Delivery::Chunk { event_id, chunk, .. } => format!("{} {}", event_id.unwrap(), chunk.kind()),
            Delivery::Gap { after, next } => format!("gap {} {}", after.unwrap(), next.unwrap()),
            Delivery::Lost { .. } => "lost".into(),
            Delivery::Back => "back".into(),
            Delivery::Ended(Error::Status { status, .. }) => format!("ended {status}"),
            Delivery::Ended(error) => format!("ended {error}"),
        });
    }
    assert_eq!(seen, ["1-7 text-delta", "lost", "back", "gap 1-7 2-3", "2-3 text-delta", "lost", "ended 404"]);
    assert_eq!(subscription.last_event_id(), Some("2-3"));
    script.await.unwrap();
}

#[tokio::test]
async fn http_099_without_reconnect_a_subscription_ends_with_its_connection() {
    let (url, requests) = server();
    let thread = Client::new(url).unwrap().agent("a").thread("r", "t");
    let script = tokio::task::spawn_blocking(move || {
        let mut request = requests.recv().unwrap();
        assert_eq!(request.header("last-event-id"), Some("3-4"));
        request.event_stream();
        request.write(": connected\n\ndata: not json\n\n");
    });
    let options = SubscribeOptions { reconnect: false, last_event_id: Some("3-4".into()) };
    let mut subscription = thread.subscribe(options).await.unwrap();
    assert!(matches!(subscription.next().await, Some(Delivery::Ended(_))));
    assert!(subscription.next().await.is_none());
    script.await.unwrap();
}

#[tokio::test]
async fn http_023_a_run_stream_ends_with_done_and_a_cut_one_with_an_error() {
    let (url, requests) = server();
    let agent = Client::new(url).unwrap().agent("a");
    let script = tokio::task::spawn_blocking(move || {
        for end in ["data: [DONE]\n\n", ""] {
            let mut request = requests.recv().unwrap();
            assert!(request.body.contains("\"messages\":\"hi\""), "{}", request.body);
            request.event_stream();
            request.write(&format!("data: {CHUNK}\n\n: heartbeat\n\n{end}"));
        }
    });
    let mut whole = agent.stream("hi", serde_json::Map::new()).await.unwrap();
    assert_eq!(whole.next().await.unwrap().unwrap().kind(), "text-delta");
    assert!(whole.next().await.is_none());
    let mut cut = agent.stream("hi", serde_json::Map::new()).await.unwrap();
    cut.next().await.unwrap().unwrap();
    assert!(cut.next().await.unwrap().is_err());
    assert!(cut.next().await.is_none());
    script.await.unwrap();
}
