//! The fake model over HTTP: both wire formats, tools, failures and cancellation.

use std::time::Duration;

use bugle_bench::client::Http;
use bugle_bench::model;
use serde_json::{Value, json};

async fn start() -> Http {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(model::serve(listener, 8, std::future::pending()));
    Http::new(&format!("http://{address}"))
}

fn chat(messages: Value, stream: bool) -> Value {
    json!({ "model": "fake/tokens=2", "stream": stream, "messages": messages })
}

fn user(text: &str) -> Value {
    json!([{ "role": "user", "content": text }])
}

async fn events(model: &Http, path: &str, body: &Value) -> Vec<Value> {
    let mut events = model.events(path, body).await.unwrap();
    let mut all = Vec::new();
    while let Some((_, data)) = events.next_data().await.unwrap() {
        all.push(serde_json::from_str(&data).unwrap());
    }
    all
}

const CHAT: &str = "/v1/chat/completions";

#[tokio::test]
async fn chat_streams_reasoning_then_text_then_usage() {
    let model = start().await;
    let all = events(&model, CHAT, &chat(user("fake/reasoning=1,delay_ms=0.5"), true)).await;
    let deltas: Vec<_> = all.iter().map(|e| e["choices"][0]["delta"].clone()).collect();
    assert_eq!(
        deltas,
        [
            json!({ "role": "assistant", "content": "" }),
            json!({ "reasoning_content": "r0 " }),
            json!({ "content": "w0 " }),
            json!({ "content": "w1 " }),
            json!({}),
        ]
    );
    assert_eq!(all[4]["choices"][0]["finish_reason"], "stop");
    assert_eq!(all[4]["usage"]["completion_tokens"], 3);
}

#[tokio::test]
async fn a_tool_is_called_until_its_rounds_are_answered() {
    let model = start().await;
    let prompt = r#"fake/tool=add,args={"a":1},parallel=2,say="done""#;
    let mut messages = user(prompt);
    let whole = async |messages: &Value| -> Value {
        serde_json::from_slice(&model.post(CHAT, &chat(messages.clone(), false)).await.unwrap()).unwrap()
    };
    let first = whole(&messages).await;
    let calls = &first["choices"][0]["message"]["tool_calls"];
    assert_eq!(first["choices"][0]["finish_reason"], "tool_calls");
    assert_eq!(calls.as_array().unwrap().len(), 2);
    assert_eq!(calls[1]["function"], json!({ "name": "add", "arguments": r#"{"a":1}"# }));
    assert_ne!(calls[0]["id"], calls[1]["id"]);

    let answers = [
        json!({ "role": "assistant", "content": null, "tool_calls": calls }),
        json!({ "role": "tool", "tool_call_id": calls[0]["id"], "content": "1" }),
        json!({ "role": "tool", "tool_call_id": calls[1]["id"], "content": "1" }),
    ];
    messages.as_array_mut().unwrap().extend(answers);
    assert_eq!(whole(&messages).await["choices"][0]["message"]["content"], "done");
    assert_eq!(model.get_json("/stats").await.unwrap()["tool_calls"], 2);
}

#[tokio::test]
async fn responses_has_items_for_reasoning_calls_and_text() {
    let model = start().await;
    let body = |input: Value| json!({ "model": "fake/tokens=2", "stream": true, "input": input });
    let kinds = |all: &[Value]| -> Vec<String> {
        all.iter().map(|e| e["type"].as_str().unwrap().trim_start_matches("response.").to_owned()).collect()
    };
    let all = events(&model, "/v1/responses", &body("fake/tool=add".into())).await;
    assert_eq!(
        kinds(&all),
        ["created", "output_item.added", "function_call_arguments.delta", "output_item.done", "completed"]
    );
    assert_eq!(all[3]["item"]["name"], "add");
    let input = json!([
        { "role": "user", "content": [{ "type": "input_text", "text": "fake/tool=add,reasoning=1" }] },
        { "type": "function_call", "call_id": "c", "name": "add", "arguments": "{}" },
        { "type": "function_call_output", "call_id": "c", "output": "1" },
    ]);
    let all = events(&model, "/v1/responses", &body(input)).await;
    let output = all.last().unwrap()["response"]["output"].as_array().unwrap();
    assert_eq!([&output[0]["type"], &output[1]["type"]], ["reasoning", "message"]);
    assert_eq!(output[1]["content"][0]["text"], "w0 w1 ");
}

#[tokio::test]
async fn failures_and_disconnects_are_counted() {
    let model = start().await;
    let failure = model.post(CHAT, &chat(user("fake/status=429"), true)).await.unwrap_err();
    assert!(failure.to_string().contains("429"), "{failure}");

    let mut cut = model.events(CHAT, &chat(user("fake/cut=1"), true)).await.unwrap();
    let broken = loop {
        match cut.next_data().await {
            Ok(Some(_)) => {}
            end => break end.is_err(),
        }
    };
    assert!(broken);

    let mut hung = model.events(CHAT, &chat(user("fake/hang=1"), true)).await.unwrap();
    hung.next_data().await.unwrap();
    hung.next_data().await.unwrap();
    drop(hung);
    for _ in 0..100 {
        let stats = model.get_json("/stats").await.unwrap();
        if stats["cancelled"] == 1 {
            assert_eq!([&stats["requests"], &stats["failed"], &stats["active"]], [3, 1, 0]);
            assert_eq!(model.get_json("/requests").await.unwrap().as_array().unwrap().len(), 3);
            model.post("/reset", &Value::Null).await.unwrap();
            assert_eq!(model.get_json("/stats").await.unwrap()["requests"], 0);
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("the disconnect was not noticed");
}
