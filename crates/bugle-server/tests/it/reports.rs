//! What users of other agent servers ran into, from the provider's bytes to the stored file. A test is named after its report.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::http::StatusCode;
use bugle::{
    Agent, Bugle, RunOptions, Tool,
    json::{Value, json},
    memory::MemoryOptions,
    model::{ScriptedModel, SharedModel},
};
use bugle_server::{ServerOptions, router};
use bugle_storage::libsql::LibSql;

use crate::{
    provider::{Provider, answer, call, delta, frames, said},
    support::{Server, chunk},
};

/// A server on a file, which can be started again.
pub(crate) struct Filed {
    directory: tempfile::TempDir,
    pub(crate) provider: Provider,
    pub(crate) server: Server,
    calls: Arc<AtomicUsize>,
}

/// What the tool and the agent are like.
#[derive(Default)]
struct Setup {
    result: Option<Value>,
    limit: Option<usize>,
    no_replay: bool,
}

async fn serve(path: &std::path::Path, model: SharedModel, calls: Arc<AtomicUsize>, setup: &Setup) -> Server {
    let result = setup.result.clone();
    let weather = Tool::json("get-weather", move |input: Value, _| {
        calls.fetch_add(1, Ordering::SeqCst);
        let result = result.clone().unwrap_or_else(|| json!({"weather in": input["city"]}));
        async move { Ok(result) }
    });
    let options = RunOptions { max_tool_result_bytes: setup.limit, ..RunOptions::default() };
    let agent = Agent::builder("plain").model(model).max_retries(2).memory(MemoryOptions::last(20)).tool(weather);
    let store = LibSql::open(path.to_str().unwrap()).unwrap();
    let bugle = Bugle::builder().agent(agent.default_options(options).build().unwrap()).storage(store);
    let bugle = bugle.build().await.unwrap();
    Server { router: router(bugle.clone(), ServerOptions::default()), bugle, model: ScriptedModel::new() }
}

impl Filed {
    async fn new(answers: impl IntoIterator<Item = Vec<u8>>) -> Self {
        Self::with(answers, &Setup::default()).await
    }

    async fn with(answers: impl IntoIterator<Item = Vec<u8>>, setup: &Setup) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let provider = Provider::start(answers).await;
        let calls = Arc::new(AtomicUsize::new(0));
        let model: SharedModel = Arc::new(provider.builder().replay_reasoning(!setup.no_replay).build());
        let server = serve(&directory.path().join("a.db"), model, calls.clone(), setup).await;
        Self { directory, provider, server, calls }
    }

    /// The process ends and another begins on the file.
    async fn restart(&mut self) {
        self.server.bugle.shutdown(std::time::Duration::from_secs(5)).await;
        let path = self.directory.path().join("a.db");
        let model: SharedModel = Arc::new(self.provider.model());
        self.server = serve(&path, model, self.calls.clone(), &Setup::default()).await;
    }

    /// Streams a run on the thread: its chunks.
    pub(crate) async fn run(&self, text: &str) -> Vec<Value> {
        let body = json!({"messages": text, "memory": {"thread": "t", "resource": "r"}});
        let answer = self.server.post("/api/agents/plain/stream", body).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        answer.text.split_terminator("\n\n").map(chunk).filter(Value::is_object).collect()
    }

    pub(crate) async fn stored(&self) -> Vec<Value> {
        let answer = self.server.get("/api/memory/threads/t/messages?agentId=plain").await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        answer.json["messages"].as_array().unwrap().clone()
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

fn of<'a>(chunks: &'a [Value], kind: &str) -> Vec<&'a Value> {
    chunks.iter().filter(|chunk| chunk["type"] == kind).map(|chunk| &chunk["payload"]).collect()
}

fn text(chunks: &[Value]) -> String {
    of(chunks, "text-delta").iter().filter_map(|payload| payload["text"].as_str()).collect()
}

fn reason(chunks: &[Value]) -> &Value {
    assert_eq!(chunks.last().unwrap()["type"], "finish");
    &chunks.last().unwrap()["payload"]["stepResult"]["reason"]
}

/// The calls and results of a request, in order: `call id args` and `result id content`.
fn pairs(messages: &[Value]) -> Vec<String> {
    let mut all = Vec::new();
    for message in messages {
        for call in message["tool_calls"].as_array().into_iter().flatten() {
            all.push(format!(
                "call {} {}",
                call["id"].as_str().unwrap(),
                call["function"]["arguments"].as_str().unwrap()
            ));
        }
        if message["role"] == "tool" {
            let content = message["content"].as_str().unwrap();
            all.push(format!("result {} {content}", message["tool_call_id"].as_str().unwrap()));
        }
    }
    all
}

#[tokio::test]
async fn r27_a_call_without_an_id_runs_once_and_keeps_the_id_made_up_for_it() {
    let piece = |function: Value| json!({"tool_calls": [{"index": 0, "function": function}]});
    let deltas =
        [piece(json!({"name": "get-weather", "arguments": "{\"city\":"})), piece(json!({"arguments": "\"Oslo\"}"}))];
    let world = Filed::new([answer(&deltas, "tool_calls"), said("Cold")]).await;
    let chunks = world.run("hi").await;
    let calls = of(&chunks, "tool-call");
    assert_eq!((calls.len(), &calls[0]["args"], world.calls()), (1, &json!({"city": "Oslo"}), 1));
    let messages = world.provider.messages(1);
    let id = messages[1]["tool_calls"][0]["id"].as_str().unwrap();
    assert!(!id.is_empty());
    assert_eq!(messages[2]["tool_call_id"], id);
    assert_eq!(text(&chunks), "Cold");
}

#[tokio::test]
async fn r29_the_reason_tool_calls_without_a_call_ends_the_run() {
    let world = Filed::new([answer(&[json!({"content": "nothing to call"})], "tool_calls")]).await;
    let chunks = world.run("hi").await;
    assert_eq!((text(&chunks).as_str(), world.provider.bodies().len()), ("nothing to call", 1));
    assert_eq!(reason(&chunks), "stop");
}

#[tokio::test]
async fn r31a_an_answer_that_breaks_off_is_an_error_that_keeps_the_text() {
    let cut = frames(&[delta(&json!({"content": "half an "})), delta(&json!({"content": "answer"}))]);
    let world = Filed::new([cut, said("whole")]).await;
    let chunks = world.run("hi").await;
    let error = &of(&chunks, "error")[0]["error"];
    assert!(error["message"].as_str().unwrap().contains("ended its answer before it was complete"), "{error}");
    assert_eq!((reason(&chunks), world.provider.bodies().len()), (&json!("error"), 1));
    assert_eq!(world.stored().await[1]["content"]["parts"][0]["text"], "half an answer");
    assert_eq!(text(&world.run("again").await), "whole");
    assert_eq!(world.provider.messages(1)[1], json!({"role": "assistant", "content": "half an answer"}));
}

#[tokio::test]
async fn r31b_a_call_of_an_answer_that_breaks_off_does_not_run() {
    let world = Filed::new([frames(&[delta(&call(0, "c", "Oslo"))]), said("whole")]).await;
    let chunks = world.run("hi").await;
    assert_eq!((reason(&chunks), world.calls()), (&json!("error"), 0));
    world.run("again").await;
    assert_eq!(pairs(&world.provider.messages(1)), Vec::<String>::new());
    assert_eq!(world.calls(), 0);
}

#[tokio::test]
async fn r31c_done_makes_an_answer_complete() {
    let world = Filed::new([frames(&[delta(&json!({"content": "whole answer"})), "[DONE]".to_owned()])]).await;
    let chunks = world.run("hi").await;
    assert_eq!((text(&chunks).as_str(), world.provider.bodies().len()), ("whole answer", 1));
    assert!(of(&chunks, "error").is_empty());
}

#[tokio::test]
async fn r33a_a_call_id_used_in_every_step_keeps_calls_and_results_apart() {
    let step = |city: &str| answer(&[call(0, "x", city)], "tool_calls");
    let mut world = Filed::new([step("Oslo"), step("Rome"), step("Lima"), said("Done")]).await;
    world.run("hi").await;
    assert_eq!(world.calls(), 3);
    let check = |messages: &[Value]| {
        let pairs = pairs(messages);
        assert_eq!(pairs.len(), 6, "{pairs:?}");
        for (at, city) in ["Oslo", "Rome", "Lima"].iter().enumerate() {
            let (call, result) = (&pairs[2 * at], &pairs[2 * at + 1]);
            assert!(call.contains(city) && result.contains(city), "{pairs:?}");
            assert_eq!(call.split(' ').nth(1), result.split(' ').nth(1), "{pairs:?}");
        }
        let ids: std::collections::BTreeSet<_> = pairs.iter().map(|pair| pair.split(' ').nth(1)).collect();
        assert_eq!(ids.len(), 3, "{pairs:?}");
    };
    check(&world.provider.messages(3));
    world.restart().await;
    world.provider.then(said("Again"));
    assert_eq!(text(&world.run("again").await), "Again");
    check(&world.provider.messages(4));
}

#[tokio::test]
async fn r33b_two_calls_of_one_step_with_one_id_both_run() {
    let world = Filed::new([answer(&[call(0, "x", "Oslo"), call(1, "x", "Rome")], "tool_calls"), said("Done")]).await;
    world.run("hi").await;
    assert_eq!(world.calls(), 2);
    let pairs = pairs(&world.provider.messages(1));
    let id = |at: usize| pairs[at].split(' ').nth(1).unwrap();
    assert_eq!((id(0), id(1)), (id(2), id(3)));
    assert_ne!(id(0), id(1));
    assert!(pairs[2].contains("Oslo") && pairs[3].contains("Rome"), "{pairs:?}");
}

#[tokio::test]
async fn r37_reasoning_goes_back_with_its_call_also_after_a_restart() {
    let deltas =
        [json!({"reasoning_content": "I should "}), json!({"reasoning_content": "look"}), call(0, "c", "Oslo")];
    let mut world = Filed::new([answer(&deltas, "tool_calls"), said("Cold")]).await;
    world.run("hi").await;
    let with_call = |messages: &[Value]| {
        messages.iter().find(|message| message["tool_calls"].is_array()).expect("the call is replayed").clone()
    };
    assert_eq!(with_call(&world.provider.messages(1))["reasoning_content"], "I should look");
    world.restart().await;
    world.provider.then(said("Again"));
    world.run("again").await;
    assert_eq!(with_call(&world.provider.messages(2))["reasoning_content"], "I should look");
    let off = Setup { no_replay: true, ..Setup::default() };
    let world = Filed::with([answer(&deltas, "tool_calls"), said("Cold")], &off).await;
    world.run("hi").await;
    assert_eq!(with_call(&world.provider.messages(1)).get("reasoning_content"), None);
}

#[tokio::test]
async fn r39a_what_a_store_cannot_hold_does_not_break_the_answer() {
    let piece = |content: &str| {
        format!(r#"{{"choices":[{{"index":0,"delta":{{"content":"{content}"}},"finish_reason":null}}]}}"#)
    };
    let deltas = [piece(r"a\u0000b\ud83dc"), piece(r" \ud83d\ude00 end"), "[DONE]".to_owned()];
    let mut world = Filed::new([frames(&deltas), said("ok")]).await;
    let chunks = world.run("hi").await;
    assert!(of(&chunks, "error").is_empty());
    world.restart().await;
    let read = world.stored().await[1]["content"]["parts"][0]["text"].as_str().unwrap().to_owned();
    assert!(read.starts_with('a') && read.ends_with("c \u{1f600} end") && read.contains('\u{fffd}'), "{read:?}");
    assert_eq!(text(&world.run("again").await), "ok");
}

#[tokio::test]
async fn r39b_a_result_with_nul_characters_is_kept() {
    let result = json!({"text": "W\u{0}s\u{0}l\u{0}"});
    let setup = Setup { result: Some(result.clone()), ..Setup::default() };
    let mut world = Filed::with([answer(&[call(0, "c", "Oslo")], "tool_calls"), said("ok")], &setup).await;
    let chunks = world.run("hi").await;
    assert_eq!(of(&chunks, "tool-result")[0]["result"], result);
    assert_eq!(text(&chunks), "ok");
    world.restart().await;
    let kept = world.stored().await[1]["content"]["parts"][0]["toolInvocation"]["result"]["text"].clone();
    let kept = kept.as_str().unwrap();
    assert_eq!(kept.replace(['\0', '\u{fffd}'], ""), "Wsl", "{kept:?}");
    assert_eq!(kept.chars().count(), 6, "{kept:?}");
}

#[tokio::test]
async fn r42_a_long_result_is_cut_for_the_model_and_for_nobody_else() {
    const WHOLE: usize = 3 * 1024 * 1024;
    let result = json!("æ".repeat(WHOLE / 2));
    for limit in [Some(64 * 1024), None] {
        let setup = Setup { result: Some(result.clone()), limit, no_replay: false };
        let world = Filed::with([answer(&[call(0, "c", "Oslo")], "tool_calls"), said("ok")], &setup).await;
        let chunks = world.run("hi").await;
        assert_eq!(text(&chunks), "ok");
        assert_eq!(of(&chunks, "tool-result")[0]["result"], result);
        let stored = world.stored().await;
        assert_eq!(stored[1]["content"]["parts"][0]["toolInvocation"]["result"], result);
        let messages = world.provider.messages(1);
        let told = messages[2]["content"].as_str().unwrap();
        match limit {
            None => assert_eq!(told.len(), WHOLE),
            Some(limit) => {
                assert!(told.len() <= limit && told.len() > limit / 2, "{}", told.len());
                assert!(told.starts_with('æ') && told.ends_with('æ') && !told.contains('\u{fffd}'));
                let kept = told.matches('æ').count() * 2;
                let line = told.trim_matches('æ');
                assert!(line.contains(&(WHOLE - kept).to_string()), "{line}");
            }
        }
    }
}
