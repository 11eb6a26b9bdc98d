//! Providers and disks that fail: what a person reads, and that nothing is lost and the thread works afterwards.

use std::{path::Path, sync::Arc};

use axum::http::StatusCode;
use bugle::{
    Agent, Bugle, Tool,
    json::{Value, json},
    memory::MemoryOptions,
    model::{ScriptedModel, SharedModel},
    storage::MemoryStorage,
};
use bugle_server::{ServerOptions, router};
use bugle_storage::libsql::{LibSql, LibSqlOptions};

use crate::{
    provider::{Provider, plain, said},
    support::{Server, chunk},
};

const JSON: &str = "content-type: application/json\r\n";

async fn on(provider: &Provider) -> Server {
    let model: SharedModel = Arc::new(provider.builder().api_key("sk-very-secret").build());
    let agent = Agent::builder("plain").model(model).max_retries(0).memory(MemoryOptions::last(20)).build().unwrap();
    let bugle = Bugle::builder().agent(agent).storage(MemoryStorage::new()).build().await.unwrap();
    Server { router: router(bugle.clone(), ServerOptions::default()), bugle, model: ScriptedModel::new() }
}

fn thread(more: Value) -> Value {
    let mut body = json!({"threadId": "t", "resourceId": "r"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn in_memory(text: &str) -> Value {
    json!({"messages": text, "memory": {"thread": "t", "resource": "r"}})
}

/// The texts of the people on the thread.
async fn people(server: &Server) -> Vec<String> {
    let answer = server.get("/api/memory/threads/t/messages?agentId=plain&perPage=100").await;
    let messages = answer.json["messages"].as_array().cloned().unwrap_or_default();
    let people = messages.iter().filter(|message| message["role"] != "assistant");
    people.map(|message| message["content"]["parts"][0]["text"].as_str().unwrap_or_default().to_owned()).collect()
}

/// A kind of answer, and what is read of it.
fn failures() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let words = |message: &str| json!({"error": {"message": message}}).to_string();
    vec![
        (
            "401",
            plain("401 Unauthorized", JSON, &words("Incorrect API key provided: sk-very-secret")),
            "Incorrect API key provided",
        ),
        ("429", plain("429 Too Many Requests", &format!("{JSON}retry-after: 7\r\n"), &words("slow down")), "slow down"),
        ("500", plain("500 Internal Server Error", JSON, &words("out of order")), "out of order"),
        (
            "500 without words",
            plain("500 Internal Server Error", "content-type: text/html\r\n", "<html>"),
            "test answered 500",
        ),
        ("garbage", plain("200 OK", JSON, "what?"), "test"),
        ("garbage in a stream", plain("200 OK", "content-type: text/event-stream\r\n", "data: {oops\n\n"), "test"),
        ("nothing", plain("200 OK", "content-type: text/event-stream\r\n", ""), ""),
        ("closes", Vec::new(), "test"),
    ]
}

#[tokio::test]
async fn loop_140_loop_143_what_a_failing_provider_is_to_a_subscriber() {
    for (name, bytes, says) in failures() {
        let provider = Provider::start([bytes, said("Here again")]).await;
        let server = on(&provider).await;
        let mut frames = server.subscribe("t", "r").await;
        let sent = server.post("/api/agents/plain/send-message", thread(json!({"message": "one"}))).await;
        assert_eq!(sent.status, StatusCode::OK, "{name}: acceptance does not wait for the model");
        let seen = frames.until("\"type\":\"error\"").await;
        let error = chunk(seen.last().unwrap())["payload"]["error"].clone();
        let message = error["message"].as_str().unwrap();
        assert!(!message.is_empty() && message.contains(says), "{name}: {error}");
        assert!(!error.to_string().contains("very-secret"), "{name}: {error}");
        let sent = server.post("/api/agents/plain/send-message", thread(json!({"message": "two"}))).await;
        assert_eq!(sent.status, StatusCode::OK, "{name}");
        let seen = frames.until("\"type\":\"finish\"").await;
        assert!(seen.iter().any(|frame| frame.contains("Here again")), "{name}");
        assert_eq!(people(&server).await, ["one", "two"], "{name}");
    }
}

#[tokio::test]
async fn http_044_what_a_failing_provider_is_to_generate_and_stream() {
    for (name, bytes, says) in failures() {
        let provider = Provider::start([bytes.clone(), bytes, said("Here again")]).await;
        let server = on(&provider).await;
        let answer = server.post("/api/agents/plain/generate", in_memory("one")).await;
        assert!(answer.status.is_server_error() || answer.status.is_client_error(), "{name}: {}", answer.text);
        assert_eq!(answer.status, StatusCode::BAD_GATEWAY, "{name}: {}", answer.text);
        let message = answer.json["error"].as_str().unwrap();
        assert!(!message.is_empty() && message.contains(says), "{name}: {message}");
        assert!(!answer.text.contains("very-secret"), "{name}: {}", answer.text);
        let answer = server.post("/api/agents/plain/stream", in_memory("two")).await;
        assert_eq!(answer.status, StatusCode::OK, "{name}");
        let kinds: Vec<Value> = answer
            .text
            .split_terminator("\n\n")
            .map(|frame| chunk(frame)["type"].clone())
            .filter(Value::is_string)
            .collect();
        let end: Vec<&Value> = kinds.iter().rev().take(3).collect();
        assert_eq!(end, ["finish", "step-finish", "error"], "{name}");
        assert!(answer.text.ends_with("data: [DONE]\n\n"), "{name}");
        let answer = server.post("/api/agents/plain/stream", in_memory("three")).await;
        assert!(answer.text.contains("Here again"), "{name}: {}", answer.text);
        assert_eq!(people(&server).await, ["one", "two", "three"], "{name}");
    }
}

/// A server on a file with this model of words in brackets.
async fn on_file(url: &str, pages_max: Option<u32>) -> Server {
    let model = ScriptedModel::recording();
    let long = Tool::json("long", |_, _| async { Ok(json!("x".repeat(200 * 4096))) });
    let agent = Agent::builder("plain").model(Arc::new(model.clone())).memory(MemoryOptions::last(20)).tool(long);
    let store = LibSqlOptions::builder().url(url).maybe_pages_max(pages_max).build().open().unwrap();
    let bugle = Bugle::builder().agent(agent.build().unwrap()).storage(store).build().await.unwrap();
    Server { router: router(bugle.clone(), ServerOptions::default()), bugle, model }
}

/// A file with a thread of one exchange.
async fn file(directory: &Path) -> std::path::PathBuf {
    let path = directory.join("a.db");
    let server = on_file(path.to_str().unwrap(), None).await;
    let answer = server.post("/api/agents/plain/generate", in_memory("[[say Hello]]")).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    server.bugle.shutdown(std::time::Duration::from_secs(5)).await;
    path
}

#[tokio::test]
async fn sto_a_full_disk_refuses_what_does_not_fit_and_loses_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path()).await;
    let pages = u32::try_from(std::fs::metadata(&path).unwrap().len() / 4096).unwrap();
    let server = on_file(path.to_str().unwrap(), Some(pages + 60)).await;
    let mut frames = server.subscribe("t", "r").await;
    let huge = "x".repeat(200 * 4096);
    let refused = server.post("/api/agents/plain/send-message", thread(json!({ "message": huge }))).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE, "{}", refused.text);
    assert!(refused.json["error"].as_str().unwrap().contains("there is no room left on the disk"), "{}", refused.text);
    let refused = server.post("/api/agents/plain/generate", in_memory(&huge)).await;
    assert!(refused.status.is_server_error(), "{}", refused.status);
    assert!(refused.json["error"].as_str().unwrap().contains("there is no room left on the disk"), "{}", refused.text);
    // A tool whose result does not fit: the run says so, and what came before it is kept.
    let sent = server.post("/api/agents/plain/send-message", thread(json!({"message": "[[call long {}]]"}))).await;
    assert_eq!(sent.status, StatusCode::OK, "{}", sent.text);
    let seen = frames.until("\"type\":\"error\"").await;
    assert!(seen.last().unwrap().contains("there is no room left on the disk"), "{}", seen.last().unwrap());
    let sent = server.post("/api/agents/plain/send-message", thread(json!({"message": "[[say Still here]]"}))).await;
    assert_eq!(sent.status, StatusCode::OK, "{}", sent.text);
    frames.until("here").await;
    frames.until("\"type\":\"finish\"").await;
    let people = people(&server).await;
    assert_eq!(people.first().map(String::as_str), Some("[[say Hello]]"));
    assert_eq!(people[people.len() - 2..], ["[[call long {}]]", "[[say Still here]]"]);
}

#[tokio::test]
async fn sto_a_read_only_file_is_read_and_refuses_input() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(directory.path()).await;
    let server = on_file(&format!("file:{}?mode=ro", path.display()), None).await;
    assert_eq!(people(&server).await, ["[[say Hello]]"]);
    let _frames = server.subscribe("t", "r").await;
    for (route, body, status) in [
        ("send-message", thread(json!({"message": "[[say x]]"})), StatusCode::SERVICE_UNAVAILABLE),
        ("generate", in_memory("[[say x]]"), StatusCode::SERVICE_UNAVAILABLE),
    ] {
        let refused = server.post(&format!("/api/agents/plain/{route}"), body).await;
        assert_eq!(refused.status, status, "{route} {}", refused.text);
        let message = refused.json["error"].as_str().unwrap();
        assert!(message.contains("the database is read-only; give the process write permission"), "{route} {message}");
    }
    assert!(server.model.requests().is_empty());
    server.bugle.shutdown(std::time::Duration::from_secs(5)).await;
    let again = on_file(path.to_str().unwrap(), None).await;
    let answer = again.post("/api/agents/plain/generate", in_memory("[[say Back]]")).await;
    assert_eq!((answer.status, &answer.json["text"]), (StatusCode::OK, &json!("Back")));
}

#[tokio::test]
async fn sto_a_damaged_file_is_named_to_those_who_need_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let server = on_file(path.to_str().unwrap(), None).await;
    for _ in 0..20 {
        let long = format!("[[say x]] {}", "y".repeat(40 * 1024));
        let answer = server.post("/api/agents/plain/generate", in_memory(&long)).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    }
    server.bugle.shutdown(std::time::Duration::from_secs(5)).await;
    drop(server);
    // The last one to close a file writes its log into it.
    LibSql::open(path.to_str().unwrap()).unwrap().close().await;
    let mut bytes = std::fs::read(&path).unwrap();
    let from = bytes.len() / 2;
    bytes[from..].fill(0xa5);
    std::fs::write(&path, bytes).unwrap();
    let server = on_file(path.to_str().unwrap(), None).await;
    let answer = server.post("/api/agents/plain/generate", in_memory("[[say x]]")).await;
    assert!(answer.status.is_server_error(), "{}", answer.status);
    let message = answer.json["error"].as_str().unwrap();
    assert!(message.contains("the database file is damaged; stop all processes that use it"), "{message}");
    assert!(server.model.requests().is_empty());
}
