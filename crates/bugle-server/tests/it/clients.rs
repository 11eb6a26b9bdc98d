//! What React's hook and Studio rely on (HTTP §14, §15).

use axum::{
    body::Body,
    http::{Method, StatusCode},
};
use bugle::json::{Value, json};

use crate::support::{Answer, Frames, Server, chunk};

const JSON: [(&str, &str); 1] = [("content-type", "application/json")];

async fn post(server: &Server, route: &str, body: Value) -> Answer {
    server.post(&format!("/api/agents/plain/{route}"), body).await
}

fn chunks(frames: &[String]) -> Vec<Value> {
    frames.iter().map(|frame| chunk(frame)).collect()
}

#[tokio::test]
async fn http_220_the_hook_subscribes_sends_and_stops_in_this_order() {
    let server = Server::new().await;
    let on = |more: Value| {
        // Without a resource of its own the hook names the agent.
        let mut body = json!({"threadId": "t", "resourceId": "plain"});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        body
    };
    let body = Body::from(on(json!({})).to_string());
    let response = server.open(Method::POST, "/api/agents/plain/threads/subscribe", &JSON, body).await;
    let mut frames = Frames::of(response).await;
    let options = json!({
        "maxSteps": 2, "modelSettings": {"temperature": 0.5}, "instructions": "Speak like a pirate.",
        "requestContext": {"who": "ann"},
        "clientTools": {"colour": {"id": "colour", "description": "Sets the colour", "inputSchema": {"type": "object"}}},
    });
    let message = json!({"contents": "[[say one ;; hang]]", "metadata": {"clientMessageId": "c-1"}});
    let sent =
        post(&server, "send-message", on(json!({"message": message, "ifIdle": {"streamOptions": options}}))).await;
    assert_eq!((sent.status, &sent.json["action"]), (StatusCode::OK, &json!("wake")), "{}", sent.text);
    let seen = chunks(&frames.until("text-delta").await);
    assert_eq!(seen[0]["type"], "data-user-message", "HTTP-221");
    assert_eq!(seen[0]["data"]["metadata"], json!({"clientMessageId": "c-1"}), "the hook finds its own message again");
    let asked = &server.model.requests()[0];
    let prompt = serde_json::to_string(&asked.prompt).unwrap();
    assert!(prompt.contains("Speak like a pirate.") && format!("{asked:?}").contains("colour"), "{asked:?}");
    assert_eq!(asked.settings.temperature, Some(0.5));
    let approval = on(json!({"toolCallId": "none", "approved": true}));
    let nothing = post(&server, "send-tool-approval", approval).await;
    assert!(nothing.status.is_client_error(), "{} {}", nothing.status, nothing.text);
    assert_eq!(post(&server, "threads/abort", on(json!({}))).await.json, json!({"aborted": true}));
    frames.until("\"type\":\"abort\"").await;
}

#[tokio::test]
async fn http_222_statuses_that_make_the_hook_fall_back_are_given_for_nothing_else() {
    let server = Server::new().await;
    let on = json!({"threadId": "new", "resourceId": "r", "message": "x", "signal": {"type": "user", "contents": "x"}});
    for route in ["send-message", "signals", "threads/subscribe", "stream"] {
        let body = if route == "stream" { json!({"messages": "x"}) } else { on.clone() };
        let answer = server.post(&format!("/api/agents/nobody/{route}"), body).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{route}: {}", answer.text);
    }
    let lost = post(&server, "send-message", json!({"message": "x", "runId": "nobody"})).await;
    assert_eq!(lost.status, StatusCode::BAD_REQUEST);
    assert!(lost.text.contains("No active agent run found for signal target"), "{}", lost.text);
    // A thread that is not there yet is none of these.
    let frames = server.subscribe("new", "r").await;
    let stopped = post(&server, "threads/abort", on.clone()).await;
    assert_eq!((stopped.status, stopped.json), (StatusCode::OK, json!({"aborted": false})));
    drop(frames);
    // The hook's second try.
    let signal = json!({"id": "m-1", "type": "user-message", "contents": "[[say hi]]"});
    let body =
        json!({"signal": signal, "threadId": "new", "resourceId": "r", "ifIdle": {"streamOptions": {"maxSteps": 1}}});
    let sent = post(&server, "signals", body).await;
    assert_eq!(
        (sent.status, &sent.json["action"], &sent.json["signal"]["id"]),
        (StatusCode::OK, &json!("wake"), &json!("m-1"))
    );
    assert_eq!(sent.json["signal"]["type"], "user");
}

#[tokio::test]
async fn http_223_every_run_ends_in_finish_abort_or_error_of_the_run_that_started() {
    let server = Server::new().await;
    let mut frames = server.subscribe("t", "r").await;
    let on = |message: &str| json!({"message": message, "threadId": "t", "resourceId": "r"});
    for (text, end) in [("[[say hi]]", "finish"), ("[[fail 400 no]]", "error"), ("[[say one ;; hang]]", "abort")] {
        let run = post(&server, "send-message", on(text)).await.json["runId"].clone();
        let mut seen = Vec::new();
        if end == "abort" {
            seen.extend(frames.until("text-delta").await);
            post(&server, "threads/abort", on("")).await;
        }
        seen.extend(frames.until(&format!("\"type\":\"{end}\"")).await);
        let seen = chunks(&seen);
        let start = seen.iter().rfind(|chunk| chunk["type"] == "start").unwrap();
        assert_eq!((&start["runId"], &seen.last().unwrap()["runId"]), (&run, &run), "{end}");
        let ends = seen.iter().filter(|chunk| ["finish", "abort", "error"].contains(&chunk["type"].as_str().unwrap()));
        assert_eq!(ends.count(), 1, "{seen:?}");
    }
}

#[tokio::test]
async fn http_230_the_twelve_routes_of_a_studio_on_another_port() {
    let server = Server::new().await;
    let body = json!({"messages": "[[say hi]]", "memory": {"thread": "t", "resource": "plain"}});
    assert_eq!(post(&server, "generate", body).await.status, StatusCode::OK);
    let headers = [
        ("content-type", "application/json"),
        ("origin", "http://localhost:3000"),
        ("x-mastra-client-type", "studio"),
        ("cookie", "session=1"),
    ];
    let on =
        json!({"threadId": "t", "resourceId": "plain", "message": "[[say hi]]", "approved": true, "toolCallId": "c"});
    for (method, path) in [
        (Method::GET, "/api/auth/capabilities"),
        (Method::GET, "/api/agents?partial=true"),
        (Method::GET, "/api/agents/plain"),
        (Method::POST, "/api/agents/plain/threads/subscribe"),
        (Method::POST, "/api/agents/plain/send-message"),
        (Method::POST, "/api/agents/plain/send-tool-approval"),
        (Method::GET, "/api/memory/status?agentId=plain"),
        (Method::GET, "/api/memory/config?agentId=plain"),
        (Method::GET, "/api/memory/threads?agentId=plain&resourceId=plain"),
        (Method::GET, "/api/memory/threads/t?agentId=plain"),
        (Method::GET, "/api/memory/threads/t/messages?agentId=plain"),
        (Method::GET, "/api/system/packages"),
    ] {
        let body = if method == Method::POST { Body::from(on.to_string()) } else { Body::empty() };
        let response = server.open(method, path, &headers, body).await;
        let expected = if path.ends_with("send-tool-approval") { StatusCode::NOT_FOUND } else { StatusCode::OK };
        assert_eq!(response.status(), expected, "{path}");
        assert_eq!(response.headers()["access-control-allow-origin"], "http://localhost:3000", "{path}");
        assert_eq!(response.headers()["access-control-allow-credentials"], "true", "{path}");
    }
    // Nothing waits for an approval here; the route is there and says so.
    let nothing = post(&server, "send-tool-approval", on).await;
    assert!(nothing.json["error"].as_str().unwrap().contains("suspended"), "{}", nothing.text);
}

#[tokio::test]
async fn http_018_a_route_whose_fields_are_all_optional_takes_no_body() {
    let server = Server::new().await;
    let create = json!({"threadId": "t", "resourceId": "r"});
    assert_eq!(server.post("/api/memory/threads?agentId=plain", create).await.status, StatusCode::OK);
    let bare = async |path: &str| server.send(Method::POST, path, &[], Body::empty()).await;
    let copy = bare("/api/memory/threads/t/clone?agentId=plain").await;
    assert_eq!(copy.status, StatusCode::OK, "{}", copy.text);
    assert_eq!(copy.json["thread"]["resourceId"], "r");
    let needs = bare("/api/agents/plain/generate").await;
    assert_eq!(needs.status, StatusCode::BAD_REQUEST, "{}", needs.text);
}

#[tokio::test]
async fn http_037_an_agent_that_cannot_be_described_does_not_hide_the_others() {
    let model = std::sync::Arc::new(bugle::model::ScriptedModel::recording());
    let agent = |id: &str| bugle::Agent::builder(id).model(model.clone());
    let broken = agent("broken").instructions_per(|_| panic!("no instructions today"));
    let bugle = bugle::Bugle::builder()
        .agent(broken.build().unwrap())
        .agent(agent("fine").source(bugle::agent::AgentSource::Fs).build().unwrap())
        .build()
        .await
        .unwrap();
    let router = bugle_server::router(bugle.clone(), bugle_server::ServerOptions::default());
    let server = Server { bugle, router, model: (*model).clone() };
    let listed = server.get("/api/agents").await;
    assert_eq!(listed.status, StatusCode::OK, "{}", listed.text);
    let ids: Vec<&String> = listed.json.as_object().unwrap().keys().collect();
    assert_eq!(ids, ["fine"]);
    assert_eq!(listed.json["fine"]["source"], "fs", "CLI-015");
}
