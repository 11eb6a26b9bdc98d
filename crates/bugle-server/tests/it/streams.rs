//! Event streams, byte for byte (HTTP §3, HTTP-098, HTTP-243 … HTTP-245).

use std::time::Duration;

use axum::{
    body::Body,
    http::{Method, StatusCode},
};
use bugle::{ThreadKey, json::json, runtime::SubscribeOptions};
use futures::StreamExt;

use crate::support::{Server, chunk, kinds};

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

#[tokio::test]
async fn http_020_http_021_http_022_http_023_the_framing_of_a_run() {
    let server = Server::new().await;
    let answer = server.post("/api/agents/plain/stream", json!({"messages": "[[say Hello there]]"})).await;
    assert_eq!(answer.status, StatusCode::OK);
    for (name, value) in [
        ("content-type", "text/event-stream"),
        ("cache-control", "no-cache"),
        ("connection", "keep-alive"),
        ("x-accel-buffering", "no"),
    ] {
        assert_eq!(answer.headers[name], value);
    }
    assert!(!answer.text.contains('\r') && answer.text.ends_with("\n\n"));
    let frames: Vec<String> = answer.text.split_terminator("\n\n").map(str::to_owned).collect();
    assert_eq!(frames.last().unwrap(), "data: [DONE]");
    for frame in &frames[..frames.len() - 1] {
        assert!(frame.starts_with("data: {") && !frame.contains('\n'), "{frame}");
        assert!(chunk(frame).is_object());
    }
    let kinds = kinds(&frames);
    assert_eq!(kinds.first().map(String::as_str), Some("start"));
    assert_eq!(kinds.last().map(String::as_str), Some("finish"));
}

#[tokio::test]
async fn loop_199_a_lean_stream_does_not_say_its_messages_again() {
    let server = Server::new().await;
    for lean in [false, true] {
        let body = json!({"messages": "[[call get-weather {}]] [[say Clear skies]]", "lean": lean});
        let answer = server.post("/api/agents/plain/stream", body).await;
        let finish = answer.text.split("\n\n").map(chunk).find(|chunk| chunk["type"] == "finish").unwrap();
        let payload = &finish["payload"];
        assert_eq!(payload["output"]["text"], "Clear skies");
        assert!(payload["response"]["modelId"].is_string(), "{payload}");
        assert_eq!(payload.get("messages").is_none(), lean);
        assert_eq!(payload["response"].get("messages").is_none(), lean);
        assert_eq!(finish.to_string().matches("Clear skies").count(), if lean { 1 } else { 3 }, "{payload}");
    }
}

#[tokio::test]
async fn http_026_leaving_a_direct_stream_stops_the_run() {
    let server = Server::new().await;
    let body = Body::from(json!({"messages": "[[say one ;; hang]]"}).to_string());
    let mut response =
        server.open(Method::POST, "/api/agents/plain/stream", &JSON, body).await.into_body().into_data_stream();
    while let Some(piece) = response.next().await {
        if String::from_utf8_lossy(&piece.unwrap()).contains("text-delta") {
            break;
        }
    }
    drop(response);
    server.model.until_cancelled(1).await;
}

#[tokio::test]
async fn http_067_a_run_stopped_through_its_thread_ends_its_own_stream_with_abort_and_finish() {
    let server = Server::new().await;
    let memory = json!({"thread": "t", "resource": "r"});
    let body = Body::from(json!({"messages": "[[say one ;; hang]]", "memory": memory}).to_string());
    let response = server.open(Method::POST, "/api/agents/plain/stream", &JSON, body).await;
    server.model.until_requested(1).await;
    let stop = json!({"threadId": "t", "resourceId": "r"});
    assert_eq!(server.post("/api/agents/plain/threads/abort", stop).await.json, json!({"aborted": true}));
    let bytes = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let frames: Vec<String> = String::from_utf8_lossy(&bytes).split_terminator("\n\n").map(str::to_owned).collect();
    let [.., abort, finish, done] = frames.as_slice() else { panic!("{frames:?}") };
    assert_eq!((&chunk(abort)["type"], &chunk(abort)["payload"]), (&json!("abort"), &json!({})));
    let finish = chunk(finish);
    assert_eq!((&finish["type"], &finish["payload"]["stepResult"]["reason"]), (&json!("finish"), &json!("aborted")));
    assert_eq!(done, "data: [DONE]");
}

#[tokio::test]
async fn http_026_leaving_while_a_run_waits_gives_up_its_turn() {
    let server = Server::new().await;
    let mut frames = server.subscribe("t", "r").await;
    let on = |more: bugle::json::Value| {
        let mut body = json!({"threadId": "t", "resourceId": "r"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    server.post("/api/agents/plain/send-message", on(json!({"message": "[[say one ;; hang]]"}))).await;
    frames.until("text-delta").await;
    let memory = json!({"thread": "t", "resource": "r"});
    let body = json!({"messages": "[[say never]]", "memory": memory}).to_string();
    let waiting = server.open(Method::POST, "/api/agents/plain/stream", &JSON, Body::from(body)).await;
    assert_eq!(waiting.status(), StatusCode::OK);
    drop(waiting);
    server.post("/api/agents/plain/threads/abort", on(json!({}))).await;
    let last = server.post("/api/agents/plain/generate", json!({"messages": "[[say last]]", "memory": memory})).await;
    assert_eq!(last.json["text"], "last", "{}", last.text);
    assert_eq!(server.model.requests().len(), 2);
}

#[tokio::test]
async fn http_024_http_027_a_subscription_greets_and_leaving_it_changes_nothing() {
    let server = Server::new().await;
    let mut leaver = server.subscribe("t", "r").await;
    let mut stayer = server.subscribe("t", "r").await;
    let body = json!({"message": "[[say one two three]]", "threadId": "t", "resourceId": "r"});
    assert_eq!(server.post("/api/agents/plain/send-message", body).await.status, StatusCode::OK);
    leaver.until("\"start\"").await;
    drop(leaver);
    let seen = stayer.until("\"type\":\"finish\"").await;
    let kinds = kinds(&seen);
    let place = |kind: &str| kinds.iter().position(|one| one == kind);
    assert!(place("data-user-message") < place("start") && place("start") < place("text-delta"), "{kinds:?}");
    assert!(seen.iter().all(|frame| !frame.contains("[DONE]") && !frame.starts_with("id:")));
}

#[tokio::test(start_paused = true)]
async fn http_025_an_idle_subscription_gets_a_heartbeat_every_25_seconds() {
    let server = Server::new().await;
    let mut frames = server.subscribe("t", "r").await;
    let start = tokio::time::Instant::now();
    for beat in 1..=3 {
        assert_eq!(frames.next().await, ": heartbeat");
        assert_eq!(start.elapsed().as_secs(), 25 * beat);
    }
}

#[tokio::test(start_paused = true)]
async fn http_025_a_silent_direct_stream_gets_heartbeats_too() {
    let server = Server::new().await;
    let body = Body::from(json!({"messages": "[[say one ;; wait 60000 ;; say two]]"}).to_string());
    let answer = server.send(Method::POST, "/api/agents/plain/stream", &JSON, body).await;
    assert_eq!(answer.text.matches(": heartbeat\n\n").count(), 2, "{}", answer.text);
    assert!(answer.text.ends_with("data: [DONE]\n\n"));
}

#[tokio::test(start_paused = true)]
async fn http_098_the_ready_made_body_comments_when_idle() {
    let server = Server::new().await;
    let agent = server.bugle.agent("plain").unwrap();
    let thread = ThreadKey::new("r", "t");
    let subscription = agent.subscribe(&thread, SubscribeOptions::default()).await.unwrap();
    let mut body = bugle_server::sse::body(subscription, Duration::from_secs(25), ": keep-alive").into_data_stream();
    let mut comments = 0;
    let idle = async {
        while let Some(piece) = body.next().await {
            assert_eq!(piece.unwrap(), ": keep-alive\n\n");
            comments += 1;
        }
    };
    assert!(tokio::time::timeout(Duration::from_mins(1), idle).await.is_err());
    assert_eq!(comments, 2);
}

#[tokio::test]
async fn http_225_http_243_http_245_event_ids_on_request_and_exact_replay_after_the_last_one_seen() {
    let server = Server::new().await;
    let path = "/api/agents/plain/threads/subscribe?threadId=t&resourceId=r";
    let mut frames = server.open_frames(path, &[]).await;
    let send = |text: &str| {
        let body = json!({"message": text, "threadId": "t", "resourceId": "r"});
        let server = &server;
        async move { server.post("/api/agents/plain/send-message", body).await.status }
    };
    assert_eq!(send("[[say one two]]").await, StatusCode::OK);
    let seen = frames.until("\"type\":\"finish\"").await;
    let ids: Vec<&str> = seen.iter().map(|frame| frame.lines().next().unwrap().strip_prefix("id: ").unwrap()).collect();
    assert!(seen.iter().all(|frame| frame.lines().count() == 2));
    // From the middle of the run: the rest, byte for byte, and then what is live.
    let middle = ids.len() / 2;
    let mut again = server.open_frames(path, &[("last-event-id", ids[middle])]).await;
    let rest = again.until("\"type\":\"finish\"").await;
    assert_eq!(rest, seen[middle + 1..]);
    // From its end: nothing but what comes next.
    let mut late = server.open_frames(path, &[("last-event-id", ids[ids.len() - 1])]).await;
    assert_eq!(send("[[say three]]").await, StatusCode::OK);
    assert_eq!(late.next().await, again.next().await);
}

#[tokio::test]
async fn http_244_an_id_that_cannot_be_continued_is_a_gap() {
    let server = Server::new().await;
    let path = "/api/agents/plain/threads/subscribe?threadId=t&resourceId=r";
    for id in ["999-7", "nonsense"] {
        let mut frames = server.open_frames(path, &[("last-event-id", id)]).await;
        let gap = frames.next().await;
        assert!(gap.starts_with("event: gap\ndata: "), "{gap}");
        assert_eq!(chunk(&gap), json!({"after": null, "next": null, "reload": true}), "{id}");
    }
}
