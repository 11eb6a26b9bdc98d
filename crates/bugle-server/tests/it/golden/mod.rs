//! The captures of the reference, frame by frame. `rules` says how they are compared.

macro_rules! capture {
    ($name:literal) => {
        include_str!(concat!("../../fixtures/http/", $name, ".http"))
    };
}

mod capture;
mod rules;
mod threads;

use std::sync::Arc;

use axum::body::Body;
use bugle::{
    Bugle,
    json::Value,
    model::{Script, ScriptedModel},
    storage::MemoryStorage,
};
use bugle_server::{ServerOptions, router};

use self::{
    capture::{Answer, Exchange},
    rules::{Rules, echo_first, with_calls},
};
use crate::support::{Server, chunk};

#[path = "../../../examples/conformance_target/agents.rs"]
pub(crate) mod agents;
#[path = "../../../examples/conformance_target/tools.rs"]
mod tools;

/// The agents of the conformance suite, on the scripted model.
pub(crate) async fn target() -> Server {
    target_with(ServerOptions::default()).await
}

pub(crate) async fn target_with(options: ServerOptions) -> Server {
    target_on(ScriptedModel::recording(), options).await
}

async fn target_on(model: ScriptedModel, options: ServerOptions) -> Server {
    let mut builder = Bugle::builder().storage(MemoryStorage::new());
    for agent in agents::all(Arc::new(model.clone())).unwrap() {
        builder = builder.agent(agent);
    }
    let bugle = builder.build().await.unwrap();
    Server { router: router(bugle.clone(), options), bugle, model }
}

async fn ask(server: &Server, exchange: &Exchange, rules: &Rules) -> crate::support::Answer {
    let headers: &[(&str, &str)] = if exchange.body.is_some() { &[("content-type", "application/json")] } else { &[] };
    let body = exchange.body.as_ref().map(|body| rules.known(&body.to_string())).unwrap_or_default();
    server.send(exchange.method.clone(), &exchange.path, headers, Body::from(body)).await
}

/// Asks all that a capture asks, in order, and compares every answer. `pending` are the arguments of the call that the
/// resuming requests answer.
async fn play(text: &str, pending: Value) {
    play_on(target().await, text, pending).await;
}

async fn play_on(server: Server, text: &str, pending: Value) {
    let mut rules = Rules::default();
    for exchange in capture::read(text) {
        let answer = ask(&server, &exchange, &rules).await;
        assert_eq!(answer.status.as_u16(), exchange.status, "{}: {}", exchange.path, answer.text);
        match &exchange.answer {
            Answer::Json(expected) => rules.same(expected, &answer.json),
            Answer::Chunks(expected) => {
                assert!(answer.text.ends_with("data: [DONE]\n\n"), "{}", answer.text);
                let resumes = exchange.body.as_ref().is_some_and(|body| body.get("runId").is_some());
                let expected = if resumes { with_calls(expected, &pending) } else { expected.clone() };
                rules.same_chunks(&expected, &capture::chunks(&answer.text));
            }
        }
    }
}

#[tokio::test]
async fn http_100_http_104_http_105_stream_approval() {
    play(capture!("stream-approval"), bugle::json::json!({"path": "/a"})).await;
}

#[tokio::test]
async fn http_107_stream_suspend_resume() {
    play(capture!("stream-suspend-resume"), bugle::json::json!({"question": "colour?"})).await;
}

#[tokio::test]
async fn http_065_stream_is_task_complete() {
    // The feedback is a user's turn (ruling 10), so the prompt is no program for the second answer.
    let model = ScriptedModel::with_responses(["not yet", "all DONE"].map(|text| Script::new().text(text)));
    play_on(target_on(model, ServerOptions::default()).await, capture!("stream-is-task-complete"), Value::Null).await;
}

#[tokio::test]
async fn http_045_http_106_generate_suspended() {
    play(capture!("generate-suspended"), Value::Null).await;
}

#[tokio::test]
async fn http_102_http_109_subscribe_approval() {
    let server = target().await;
    let mut rules = Rules::default();
    let [subscribe, send, messages, approve, again] =
        <[Exchange; 5]>::try_from(capture::read(capture!("subscribe-approval"))).unwrap();
    let path = "/api/agents/tooled/threads/subscribe?threadId=thread-13&resourceId=user-1&eventIds=false";
    let mut frames = server.open_frames(path, &[]).await;
    let sent = ask(&server, &send, &rules).await;
    let mut seen = frames.until("\"type\":\"tool-call-approval\"").await;
    let stored = ask(&server, &messages, &rules).await;
    let chunks = |seen: &[String]| seen.iter().map(|frame| chunk(frame)).collect::<Vec<_>>();
    let expected = echo_first(subscribe.chunks());
    let parked = chunks(&seen);
    rules.same_chunks(&expected[..parked.len().min(expected.len())], &parked);
    for (exchange, answer) in [(&send, &sent), (&messages, &stored)] {
        let Answer::Json(expected) = &exchange.answer else { panic!() };
        assert_eq!(answer.status.as_u16(), exchange.status, "{}", answer.text);
        rules.same(expected, &answer.json);
    }
    let approved = ask(&server, &approve, &rules).await;
    let Answer::Json(accepted) = &approve.answer else { panic!() };
    rules.same(accepted, &approved.json);
    seen.extend(frames.until("\"type\":\"finish\"").await);
    rules.same_chunks(&expected, &chunks(&seen));
    // The reference answers 500, which its own client sends again (HTTP-013, HTTP-108).
    let again = ask(&server, &again, &rules).await;
    assert_eq!(again.status.as_u16(), 409, "{}", again.text);
}

#[tokio::test]
async fn http_120_http_121_http_122_subagent_stream() {
    play(capture!("subagent-stream"), Value::Null).await;
}

#[tokio::test]
async fn sub_171_http_124_subagent_approval() {
    let prompt = r#"[[call delete-file {"path":"/x"}]] [[say removed]]"#;
    play(capture!("subagent-approval"), bugle::json::json!({"prompt": prompt})).await;
}

#[tokio::test]
async fn http_125_subagent_failure() {
    play(capture!("subagent-failure"), Value::Null).await;
}

#[tokio::test(start_paused = true)]
async fn http_040_http_041_generate_text() {
    play(capture!("generate-text"), Value::Null).await;
}

#[tokio::test(start_paused = true)]
async fn http_046_generate_structured() {
    play(capture!("generate-structured"), Value::Null).await;
}

#[tokio::test(start_paused = true)]
async fn http_020_http_049_stream_text() {
    play(capture!("stream-text"), Value::Null).await;
}

#[tokio::test(start_paused = true)]
async fn http_056_stream_structured() {
    play(capture!("stream-structured"), Value::Null).await;
}

#[tokio::test(start_paused = true)]
async fn http_054_http_055_stream_tool_failures() {
    play(capture!("stream-tool-failures"), Value::Null).await;
}

#[tokio::test(start_paused = true)]
async fn http_058_stream_model_failure() {
    play(capture!("stream-model-failure"), Value::Null).await;
}
