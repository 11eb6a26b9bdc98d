//! Input of a thread over HTTP (HTTP §6).

use axum::{
    body::Body,
    http::{Method, StatusCode},
};
use bugle::json::{Value, json};

use crate::support::{Server, chunk};

fn on_thread(more: Value) -> Value {
    let mut body = json!({"threadId": "t", "resourceId": "r"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

async fn post(server: &Server, route: &str, body: Value) -> Value {
    let answer = server.post(&format!("/api/agents/plain/{route}"), on_thread(body)).await;
    assert_eq!(answer.status, StatusCode::OK, "{route} {}", answer.text);
    answer.json
}

#[tokio::test]
async fn http_079_the_answer_names_what_was_done_the_run_and_the_signal() {
    let server = Server::new().await;
    let message =
        json!({"contents": "[[say x]]", "metadata": {"clientMessageId": "c-1"}, "attributes": {"name": "Jane"}});
    let woken = post(&server, "send-message", json!({"message": message})).await;
    assert_eq!((&woken["accepted"], &woken["action"]), (&json!(true), &json!("wake")));
    assert!(woken["runId"].is_string());
    let signal = &woken["signal"];
    assert_eq!(
        (&signal["type"], &signal["tagName"], &signal["contents"]),
        (&json!("user"), &json!("user"), &json!("[[say x]]"))
    );
    assert_eq!(signal["metadata"], json!({"clientMessageId": "c-1"}));
    assert!(signal["createdAt"].is_string() && signal["acceptedAt"].is_string());
    assert!(woken.get("__isCreatedSignal").is_none());
}

#[tokio::test]
async fn http_077_http_079_persisted_and_discarded_input_has_its_own_id_for_a_run() {
    let server = Server::new().await;
    for behavior in ["persist", "discard"] {
        let signal = json!({"type": "notification", "contents": behavior});
        let body = json!({"signal": signal, "ifIdle": {"behavior": behavior}});
        let answer = post(&server, "signals", body).await;
        assert_eq!(answer["action"], behavior);
        assert_eq!(answer["runId"], answer["signal"]["id"]);
    }
    let listed = server.get("/api/memory/threads/t/messages?agentId=plain").await.json;
    let texts: Vec<&Value> =
        listed["messages"].as_array().unwrap().iter().map(|one| &one["content"]["parts"][0]["text"]).collect();
    assert_eq!(texts, ["persist"]);
    assert!(server.model.requests().is_empty());
}

#[tokio::test]
async fn http_240_http_091_http_241_http_242_what_waits_is_listed_edited_promoted_and_taken_back() {
    let server = Server::new().await;
    let mut frames = server.subscribe("t", "r").await;
    let running = post(&server, "send-message", json!({"message": "[[say one ;; hang]]"})).await;
    frames.until("text-delta").await;
    let mut ids = Vec::new();
    for text in ["first", "second", "third"] {
        ids.push(post(&server, "queue-message", json!({"message": text})).await["signal"]["id"].clone());
    }
    let pending = |listed: &Value| -> Vec<Value> {
        listed["pending"].as_array().unwrap().iter().map(|one| one["signalId"].clone()).collect()
    };
    let list = "/api/agents/plain/threads/pending?threadId=t&resourceId=r";
    let listed = server.get(list).await.json;
    assert_eq!(pending(&listed), ids);
    assert_eq!((&listed["pending"][0]["mode"], &listed["pending"][0]["agentId"]), (&json!("queue"), &json!("plain")));

    let path = format!("/api/agents/plain/queued-messages/{}", ids[1].as_str().unwrap());
    let edited = server.json_as(Method::PATCH, "", &path, on_thread(json!({"contents": "changed"}))).await;
    assert_eq!((edited.status, &edited.json["signal"]["contents"]), (StatusCode::OK, &json!("changed")));
    let front = post(&server, "promote-queued-message", json!({"signalId": ids[2], "to": "front"})).await;
    assert_eq!((&front["promoted"], &front["to"]), (&json!(true), &json!("front")));
    assert_eq!(pending(&server.get(list).await.json), [ids[2].clone(), ids[0].clone(), ids[1].clone()]);

    let cancelled = post(&server, "cancel-queued-messages", json!({"signalIds": [ids[0], "unknown"]})).await;
    assert_eq!(cancelled, json!({"cancelledSignalIds": [ids[0]]}));
    let gone = server.post("/api/agents/plain/promote-queued-message", on_thread(json!({"signalId": ids[0]}))).await;
    assert_eq!(gone.status, StatusCode::NOT_FOUND);

    let stopped =
        post(&server, "threads/abort", json!({"clearPendingSignals": true, "expectedRunId": running["runId"]})).await;
    assert_eq!(stopped, json!({"aborted": true}));
    let last = frames.until("\"type\":\"abort\"").await;
    assert_eq!(chunk(last.last().unwrap())["runId"], running["runId"]);
    assert_eq!(server.get(list).await.json, json!({"pending": []}));
}

#[tokio::test]
async fn r8_sig_252_a_follow_up_has_the_options_of_the_run_it_waited_behind() {
    let server = Server::new().await;
    let body = json!({
        "messages": "[[say one ;; hang]]", "instructions": "Speak like a pirate.", "runId": "first",
        "memory": {"thread": "t", "resource": "r"}, "requestContext": {"who": "alice"},
    });
    let headers = [("content-type", "application/json")];
    let stream = server.open(Method::POST, "/api/agents/plain/stream", &headers, Body::from(body.to_string())).await;
    server.model.until_requested(1).await;
    let queued = post(&server, "queue-message", json!({"message": "[[say two]]", "requestContext": {"who": "bob"}}));
    assert_eq!(queued.await["action"], "deliver");
    let own = json!({"message": "[[say three]]", "ifIdle": {"streamOptions": {"maxSteps": 2}}});
    post(&server, "queue-message", own).await;
    drop(stream);
    server.model.until_requested(3).await;
    let systems: Vec<bool> =
        server.model.requests().iter().map(|one| format!("{one:?}").contains("Speak like a pirate.")).collect();
    assert_eq!(systems, [true, true, false], "options of its own replace them all");
}

#[tokio::test]
async fn http_012_a_thread_of_another_resource_is_403_to_writers_and_404_to_readers() {
    let server = Server::new().await;
    let body = json!({"messages": "[[say mine]]", "memory": {"thread": "t", "resource": "owner"}});
    assert_eq!(server.post("/api/agents/plain/generate", body).await.status, StatusCode::OK);
    for (route, body) in [
        ("generate", json!({"messages": "x", "memory": {"thread": "t", "resource": "r"}})),
        ("send-message", on_thread(json!({"message": "x"}))),
        ("threads/subscribe", on_thread(json!({}))),
        ("threads/abort", on_thread(json!({}))),
    ] {
        let answer = server.post(&format!("/api/agents/plain/{route}"), body).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{route}");
        assert_eq!(answer.json, json!({"error": "Access denied: thread belongs to a different resource"}));
    }
    let read = server.get("/api/memory/threads/t?agentId=plain&resourceId=r").await;
    assert_eq!((read.status, read.json), (StatusCode::NOT_FOUND, json!({"error": "Thread not found"})));
}

#[tokio::test]
async fn http_013_another_threads_message_id_is_refused_as_the_callers_mistake() {
    let server = Server::new().await;
    let ask = |resource: &str, thread: &str, id: &str| {
        json!({
            "messages": [{"id": id, "role": "user", "content": "[[say fine]]"}],
            "memory": {"thread": thread, "resource": resource},
        })
    };
    let first = server.post("/api/agents/plain/generate", ask("ann", "a", "m-1")).await;
    assert_eq!(first.status, StatusCode::OK, "{}", first.text);
    let taken = server.post("/api/agents/plain/generate", ask("bob", "b", "m-1")).await;
    assert_eq!(taken.status, StatusCode::FORBIDDEN, "{}", taken.text);
    assert!(taken.json["error"].as_str().unwrap().contains("m-1"), "{}", taken.text);
    let again = server.post("/api/agents/plain/generate", ask("bob", "b", "m-2")).await;
    assert_eq!(again.status, StatusCode::OK, "{}", again.text);
}

#[tokio::test]
async fn sig_364_a_run_is_not_reached_through_another_resource_even_without_tokens() {
    let server = Server::new().await;
    let body = json!({
        "messages": "[[say mine ;; hang]]", "runId": "first", "memory": {"thread": "t", "resource": "owner"},
    });
    let headers = [("content-type", "application/json")];
    let stream = server.open(Method::POST, "/api/agents/plain/stream", &headers, Body::from(body.to_string())).await;
    server.model.until_requested(1).await;
    for body in [
        json!({"message": "x", "runId": "first", "resourceId": "mallory"}),
        json!({"message": "x", "runId": "first", "resourceId": "mallory", "threadId": "t"}),
        json!({"message": "x", "resourceId": "mallory", "threadId": "t", "ifIdle": {"behavior": "discard"}}),
        json!({"message": "x", "resourceId": "mallory", "threadId": "t", "ifActive": {"behavior": "discard"}}),
    ] {
        let answer = server.post("/api/agents/plain/send-message", body.clone()).await;
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{body}: {}", answer.text);
    }
    let own = json!({"message": "x", "runId": "first", "resourceId": "owner"});
    let answer = server.post("/api/agents/plain/send-message", own).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    drop(stream);
}

#[tokio::test]
async fn ruling_20_what_waits_on_a_thread_is_as_good_as_none_to_who_does_not_name_its_resource() {
    let server = Server::new().await;
    let body = json!({"messages": "[[say mine]]", "memory": {"thread": "t", "resource": "owner"}});
    assert_eq!(server.post("/api/agents/plain/generate", body).await.status, StatusCode::OK);
    for (query, status) in [
        ("threadId=t", StatusCode::NOT_FOUND),
        ("threadId=t&resourceId=mallory", StatusCode::NOT_FOUND),
        ("threadId=t&resourceId=owner", StatusCode::OK),
    ] {
        let answer = server.get(&format!("/api/agents/plain/threads/pending?{query}")).await;
        assert_eq!(answer.status, status, "{query}: {}", answer.text);
    }
}

#[tokio::test]
async fn sig_060_a_blank_thread_id_names_no_thread() {
    let server = Server::new().await;
    for route in ["send-message", "queue-message", "threads/subscribe", "threads/abort"] {
        let body = json!({"message": "x", "resourceId": "r", "threadId": " \t"});
        let answer = server.post(&format!("/api/agents/plain/{route}"), body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{route}: {}", answer.text);
        assert_eq!(answer.fields(), ["threadId"], "{route}");
    }
}
