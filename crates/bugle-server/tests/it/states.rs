//! The state of a lane over HTTP (STATE §5).

use axum::http::StatusCode;
use bugle::json::{Value, json};

use crate::support::Server;

const STATES: &str = "/api/agents/plain/state-signals";

fn state(fields: Value) -> Value {
    let mut state = json!({"id": "editor", "cacheKey": "main.rs", "contents": "Open file: main.rs"});
    for (name, value) in fields.as_object().unwrap() {
        state[name] = value.clone();
    }
    json!({"resourceId": "ann", "threadId": "t1", "ifIdle": {"behavior": "persist"}, "state": state})
}

#[tokio::test]
async fn state_032_state_043_a_state_is_told_once() {
    let server = Server::new().await;
    let none = server.post(STATES, state(json!({}))).await;
    assert_eq!(none.status, StatusCode::NOT_FOUND, "STATE-041: {}", none.text);
    server
        .post("/api/agents/plain/generate", json!({"messages": "hi", "memory": {"thread": "t1", "resource": "ann"}}))
        .await;

    let told = server.post(STATES, state(json!({"value": {"line": 12}}))).await;
    assert_eq!((told.status, &told.json["action"]), (StatusCode::OK, &json!("persist")), "{}", told.text);
    assert_eq!(told.json["signal"]["metadata"]["state"]["version"], 1);
    let again = server.post(STATES, state(json!({}))).await;
    assert_eq!(again.json, json!({"skipped": true, "reason": "unchanged"}));
    let delta = json!({"cacheKey": "40", "mode": "delta", "contents": "Now at line 40", "delta": {"line": 40}});
    assert_eq!(server.post(STATES, state(delta)).await.json["signal"]["metadata"]["state"]["version"], 2);

    let thread = server.get("/api/memory/threads/t1?agentId=plain&resourceId=ann").await;
    assert_eq!(thread.json["metadata"]["mastra"]["stateSignals"]["editor"]["currentCacheKey"], "40", "{}", thread.text);
    let mut waking = state(json!({"cacheKey": "lib.rs", "contents": "Open file: lib.rs"}));
    waking.as_object_mut().unwrap().remove("ifIdle");
    assert_eq!(server.post(STATES, waking).await.json["action"], "wake", "STATE-044");
}

#[tokio::test]
async fn state_003_state_004_a_wrong_state_names_its_field_and_nothing_is_stored() {
    let server = Server::new().await;
    server
        .post("/api/agents/plain/generate", json!({"messages": "hi", "memory": {"thread": "t1", "resource": "ann"}}))
        .await;
    for (wrong, field) in [
        (json!({"id": ""}), "state.id"),
        (json!({"id": "x".repeat(257)}), "state.id"),
        (json!({"cacheKey": ""}), "state.cacheKey"),
        (json!({"cacheKey": 7}), "state.cacheKey"),
        (json!({"mode": "weird"}), "state.mode"),
        (json!({"transient": false}), "state.transient"),
        (json!({"tagName": "a b"}), "state.tagName"),
        (json!({"attributes": {"a b": 1}}), "state.attributes.a b"),
    ] {
        let answer = server.post(STATES, state(wrong.clone())).await;
        assert_eq!(
            (answer.status, answer.fields()),
            (StatusCode::BAD_REQUEST, vec![field]),
            "{wrong}: {}",
            answer.text
        );
    }
    let stale = json!({"mode": "delta", "metadata": {"state": {"baseVersion": 3}}});
    assert_eq!(server.post(STATES, state(stale)).await.status, StatusCode::CONFLICT, "STATE-082");
    let mut foreign = state(json!({}));
    foreign["resourceId"] = json!("bob");
    assert_eq!(server.post(STATES, foreign).await.status, StatusCode::FORBIDDEN, "STATE-042");
    let thread = server.get("/api/memory/threads/t1?agentId=plain&resourceId=ann").await;
    assert!(thread.json["metadata"].get("mastra").is_none(), "{}", thread.text);
}
