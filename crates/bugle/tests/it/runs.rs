//! Steps, tools and ends of runs (LOOP).

use std::sync::Arc;

use futures::FutureExt;

use bugle::{
    Agent, RunOptions, Tool,
    chunk::{Chunk, FinishReason},
    json::json,
    memory::MemoryOptions,
    message::{Role, StoredMessage},
    model::{Script, ScriptedModel},
    runtime::RunInput,
    tool::{ToolContext, ToolError},
};

use crate::support::{text, world, world_of};

fn input(text: &str) -> RunInput {
    RunInput {
        messages: vec![StoredMessage::text("".into(), Role::User, text, Default::default())],
        tool_results: Vec::new(),
    }
}

#[tokio::test(start_paused = true)]
async fn r20_a_caller_who_leaves_before_the_stream_begins_stops_the_run() {
    let model = ScriptedModel::recording();
    let world = world(model).await;
    let begun = world.agent.stream(input("[[say one ;; hang]]"), Some(&world.thread), RunOptions::default());
    assert!(begun.now_or_never().is_none());
    let next = world.agent.generate(input("[[say two]]"), Some(&world.thread), RunOptions::default()).await.unwrap();
    assert_eq!(next.text, "two");
}

#[tokio::test(start_paused = true)]
async fn r21_sig_311_a_run_that_waits_is_stopped_by_its_callers_signal() {
    let world = world(ScriptedModel::recording()).await;
    let first = world.agent.stream(input("[[say one ;; hang]]"), Some(&world.thread), RunOptions::default());
    let first = first.await.unwrap();
    let abort = tokio_util::sync::CancellationToken::new();
    let options = RunOptions { abort: Some(abort.clone()), ..RunOptions::default() };
    let second = world.agent.stream(input("[[say two]]"), Some(&world.thread), options).await.unwrap();
    abort.cancel();
    let output = tokio::time::timeout(std::time::Duration::from_mins(1), second.output()).await.unwrap().unwrap();
    assert_eq!(output.finish_reason, FinishReason::Aborted);
    assert_eq!(world.agent.active_run_id(&world.thread), Some(first.run_id.clone()));
}

#[tokio::test(start_paused = true)]
async fn r16_a_run_without_a_thread_has_its_grace_at_shutdown() {
    let gate = bugle::model::Gate::new();
    let world = world(ScriptedModel::with_responses([Script::new().gate(&gate).text("Hello")])).await;
    let stream = world.agent.stream(input("hi"), None, RunOptions::default()).await.unwrap();
    gate.reached().await;
    let bugle = world.bugle.clone();
    let shutdown = tokio::spawn(async move { bugle.shutdown(std::time::Duration::from_mins(1)).await });
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    gate.open();
    assert_eq!(stream.output().await.unwrap().text, "Hello");
    shutdown.await.unwrap();
}

#[test]
fn r25_default_options_that_no_run_may_have_are_refused_at_once() {
    let timeout: bugle::model::ModelSettings = serde_json::from_value(json!({"timeout": {"totalMs": -1.0}})).unwrap();
    let options = RunOptions { model_settings: Some(timeout), ..RunOptions::default() };
    let agent = Agent::builder("wrong").model(Arc::new(ScriptedModel::new())).default_options(options).build();
    assert!(agent.unwrap_err().to_string().contains("default options of agent wrong"));
}

#[tokio::test(start_paused = true)]
async fn loop_191_a_text_run_streams_and_settles() {
    let world = world(ScriptedModel::with_responses([Script::new().text("Hello")])).await;
    let mut stream = world.agent.stream(input("hi"), None, RunOptions::default()).await.unwrap();
    let mut chunks = Vec::new();
    while let Some(chunk) = stream.next().await {
        chunks.push(chunk.chunk().clone());
    }
    let kinds: Vec<&str> = chunks.iter().map(Chunk::kind).collect();
    assert_eq!(kinds, ["start", "step-start", "text-start", "text-delta", "text-end", "step-finish", "finish"]);
    assert_eq!(text(&chunks), "Hello");
    let output = stream.output().await.unwrap();
    assert_eq!((output.text.as_str(), output.finish_reason), ("Hello", FinishReason::Stop));
}

#[tokio::test(start_paused = true)]
async fn loop_065_results_come_in_call_order_after_the_last_call() {
    let model = ScriptedModel::with_responses([
        Script::new().call("wait", json!({"ms": 300})).call("wait", json!({"ms": 100})),
        Script::new().text("done"),
    ]);
    let wait = Tool::json("wait", |input, _: ToolContext| async move {
        let ms = input["ms"].as_u64().unwrap_or(0);
        tokio::time::sleep(std::time::Duration::from_millis(ms)).await;
        if ms == 100 { Err(ToolError::failed("too short")) } else { Ok(json!({ "waited": ms })) }
    });
    let agent = Agent::builder("tooled")
        .model(Arc::new(model.clone()))
        .tool(wait)
        .memory(MemoryOptions::default())
        .build()
        .unwrap();
    let world = world_of(model, [agent]).await;
    let began = tokio::time::Instant::now();
    let output = world.agent.generate(input("go"), Some(&world.thread), RunOptions::default()).await.unwrap();
    assert_eq!(began.elapsed().as_millis(), 300);
    assert_eq!(output.text, "done");
    assert_eq!(output.steps.len(), 2);
    assert_eq!(output.steps[0].finish_reason, FinishReason::ToolCalls);
    let stored = serde_json::to_value(world.stored().await).unwrap();
    let states: Vec<&str> = stored[1]["content"]["parts"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|part| part["toolInvocation"]["state"].as_str())
        .collect();
    assert_eq!(states, ["result", "output-error"]);
}
