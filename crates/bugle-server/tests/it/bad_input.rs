//! Requests that are wrong: what they are told, and that it is never 5xx (HTTP-003 … HTTP-008, HTTP-013).

use axum::{
    body::Body,
    http::{Method, StatusCode},
};
use bugle::json::{Value, json};

use crate::support::Server;

const GENERATE: &str = "/api/agents/plain/generate";

#[tokio::test]
async fn http_004_malformed_json_and_missing_bodies_are_400_with_one_issue() {
    let server = Server::new().await;
    let json = [("content-type", "application/json")];
    for (headers, body, field) in [
        (&json[..], "{oops", "body"),
        (&json, "", "root"),
        (&json, "[]", "root"),
        (&json, "null", "root"),
        (&[("content-type", "text/plain")], r#"{"messages":"x"}"#, "root"),
        (&[], "", "root"),
    ] {
        let answer = server.send(Method::POST, GENERATE, headers, Body::from(body)).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{body}");
        assert_eq!(answer.json["error"], "Invalid request body");
        assert_eq!(answer.fields(), [field], "{body}");
    }
}

#[tokio::test]
async fn http_005_the_field_that_is_wrong_is_named() {
    let server = Server::new().await;
    let thread = |more: Value| {
        let mut body = json!({"threadId": "t", "resourceId": "r"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    for (path, body, field) in [
        ("generate", json!({}), "messages"),
        ("generate", json!({"messages": 5}), "messages"),
        ("generate", json!({"messages": []}), "messages"),
        ("generate", json!({"messages": "x", "maxSteps": "many"}), "maxSteps"),
        ("generate", json!({"messages": "x", "modelSettings": {"temperature": "hot"}}), "modelSettings.temperature"),
        ("generate", json!({"messages": "x", "toolChoice": {"type": "tool"}}), "toolChoice.toolName"),
        ("generate", json!({"messages": "x", "memory": {"resource": "r"}}), "memory.thread"),
        ("generate", json!({"messages": "x", "clientTools": {"a": 1}}), "clientTools.a"),
        ("generate", json!({"messages": "x", "model": "openai/gpt"}), "model"),
        ("stream", json!({"messages": "x", "untilIdle": {"maxIdleMs": 0}}), "untilIdle.maxIdleMs"),
        ("send-message", json!({"message": "x", "threadId": "t"}), "resourceId"),
        ("send-message", json!({"message": "x", "resourceId": "r"}), "threadId"),
        ("send-message", thread(json!({})), "message"),
        ("send-message", thread(json!({"message": {"contents": [{"type": "text"}]}})), "message.contents.0.text"),
        ("send-message", thread(json!({"message": [{"type": "video"}]})), "message.0.type"),
        ("send-message", thread(json!({"message": "x", "ifIdle": {"behavior": "sometimes"}})), "ifIdle.behavior"),
        (
            "send-message",
            thread(json!({"message": "x", "ifIdle": {"streamOptions": {"maxSteps": -1}}})),
            "ifIdle.streamOptions.maxSteps",
        ),
        ("send-message", json!({"message": "x", "runId": "r", "ifIdle": {}}), "ifIdle"),
        (
            "queue-message",
            thread(json!({"message": {"contents": "x", "attributes": {"a": []}}})),
            "message.attributes.a",
        ),
        ("signals", thread(json!({"signal": {"type": "weird", "contents": "x"}})), "signal.type"),
        ("signals", thread(json!({"signal": {"type": "state", "contents": "x", "transient": 1}})), "signal.transient"),
        ("queue-signal", thread(json!({"signal": {"type": "user"}})), "signal.contents"),
        ("threads/subscribe", json!({}), "threadId"),
        ("threads/abort", json!({"threadId": 7}), "threadId"),
        ("cancel-queued-messages", thread(json!({"signalIds": "one"})), "signalIds"),
        ("promote-queued-message", thread(json!({"signalId": "m", "to": "back"})), "to"),
        ("tools/get-weather/execute", json!({}), "data"),
    ] {
        let answer = server.post(&format!("/api/agents/plain/{path}"), body.clone()).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{path} {body} {}", answer.text);
        assert_eq!(answer.json["error"], "Invalid request body", "{path} {body}");
        assert_eq!(answer.fields(), [field], "{path} {body}");
    }
    assert!(server.model.requests().is_empty());
}

#[tokio::test]
async fn http_159_bad_query_parameters_are_400_and_named() {
    let server = Server::new().await;
    for (query, field) in [
        ("page=-1", "page"),
        ("page=1.5", "page"),
        ("perPage=many", "perPage"),
        ("metadata=%7Boops", "metadata"),
        ("orderBy=sideways", "orderBy"),
        ("orderBy%5Bdirection%5D=up", "orderBy.direction"),
    ] {
        let answer = server.get(&format!("/api/memory/threads?{query}")).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{query}");
        assert_eq!(answer.json["error"], "Invalid query parameters");
        assert_eq!(answer.fields(), [field], "{query}");
    }
}

#[tokio::test]
async fn http_095_names_that_are_not_xml_safe_are_400() {
    let server = Server::new().await;
    for (signal, field) in [
        (json!({"type": "reactive", "tagName": "1 bad", "contents": "x"}), "signal.tagName"),
        (json!({"type": "reactive", "attributes": {"a b": "1"}, "contents": "x"}), "signal.attributes.a b"),
    ] {
        let body = json!({"signal": signal, "threadId": "t", "resourceId": "r"});
        let answer = server.post("/api/agents/plain/signals", body).await;
        assert_eq!((answer.status, answer.fields()), (StatusCode::BAD_REQUEST, vec![field]), "{}", answer.text);
    }
    assert!(server.model.requests().is_empty());
}

#[tokio::test]
async fn http_003_what_is_no_route_is_404_as_json() {
    let server = Server::new().await;
    for (method, path) in [
        (Method::GET, "/api/no-such-route"),
        (Method::GET, "/api/agents/plain/stream"),
        (Method::PUT, "/api/agents"),
        (Method::GET, "/api/agents/"),
        (Method::GET, "/agents"),
        (Method::POST, "/health"),
    ] {
        let answer = server.send(method.clone(), path, &[], Body::empty()).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{method} {path}");
        assert_eq!(answer.json, json!({"error": "Not Found"}));
    }
    let head = server.send(Method::HEAD, "/api/agents", &[], Body::empty()).await;
    assert_eq!((head.status, head.text.as_str()), (StatusCode::OK, ""));
}

#[tokio::test]
async fn http_034_http_038_agents_are_found_by_id_or_key_and_unknown_ones_are_404() {
    let server = Server::new().await;
    for path in ["generate", "stream", "send-message", "signals", "threads/subscribe", "threads/abort"] {
        let body = json!({
            "messages": "x", "message": "x", "signal": {"type": "user", "contents": "x"}, "threadId": "t", "resourceId": "r",
        });
        let answer = server.post(&format!("/api/agents/nope/{path}"), body).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
        assert_eq!(answer.json, json!({"error": "Agent with id nope not found"}));
    }
    for name in ["keyed", "forgetful"] {
        assert_eq!(server.get(&format!("/api/agents/{name}")).await.json["id"], "forgetful");
    }
    assert_eq!(server.get("/api/agents").await.json["forgetful"]["id"], "forgetful");
}

#[tokio::test]
async fn http_007_a_body_over_the_limit_is_413() {
    let server = Server::new().await;
    let body = json!({"messages": "x".repeat(10 * 1024 * 1024)});
    let answer = server.post(GENERATE, body).await;
    assert_eq!(answer.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(answer.json, json!({"error": "Request body too large"}));
}

#[tokio::test]
async fn http_040_refusals_in_words() {
    let server = Server::new().await;
    for (body, status, text) in [
        (json!({"messages": ""}), 400, "Argument \"messages\" is required"),
        (json!({"messages": "x", "memory": {"thread": "t"}}), 400, "resource"),
        (json!({"messages": "x", "versions": {"agents": {"plain": {"versionId": "v"}}}}), 501, "versions"),
    ] {
        let answer = server.post(GENERATE, body).await;
        assert_eq!(answer.status.as_u16(), status, "{}", answer.text);
        assert!(answer.json["error"].as_str().unwrap().contains(text), "{}", answer.text);
        assert_eq!(answer.json.as_object().unwrap().len(), 1);
    }
    let memory = json!({"messages": "x", "memory": {"thread": "t", "resource": "r"}});
    let answer = server.post("/api/agents/forgetful/generate", memory).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{}", answer.text);
}

#[tokio::test]
async fn http_084_a_run_nobody_knows_is_400() {
    let server = Server::new().await;
    let body = json!({"signal": {"type": "notification", "contents": "x"}, "runId": "no-such-run"});
    let answer = server.post("/api/agents/plain/signals", body).await;
    assert_eq!(answer.status, StatusCode::BAD_REQUEST);
    assert_eq!(answer.json, json!({"error": "No active agent run found for signal target"}));
}
