//! Stopping a run (LOOP §8).

use std::{sync::Arc, time::Duration};

use bugle::{
    RunOptions, Tool,
    chunk::{FinishReason, Usage},
    json::{Value, json},
    model::{Gate, Script, ScriptedModel},
    run::Hooks,
    tool::ToolContext,
};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{call, echo, input, world_with};
use crate::{
    faulty::Faulty,
    support::{World, agent, world_on},
};

/// Runs until `reached`, aborts, and reads the rest.
async fn aborted(world: &World, reached: impl Future<Output = ()>, options: RunOptions) -> super::Ran {
    let mut stream = world.agent.stream(input("go"), Some(&world.thread), options).await.unwrap();
    reached.await;
    stream.abort();
    let mut chunks = Vec::new();
    while let Some(chunk) = stream.next().await {
        chunks.push(chunk.chunk().clone());
    }
    super::Ran { chunks, output: stream.output().await.unwrap() }
}

#[tokio::test(start_paused = true)]
async fn loop_131_loop_132_loop_133_loop_196_an_abort_in_text() {
    let gate = Gate::new();
    let world = world_with([Script::new().text("half ").gate(&gate).text("rest")], |agent| agent).await;
    let told: Arc<Mutex<Option<(usize, String)>>> = Arc::default();
    let keep = told.clone();
    let hooks = Hooks {
        on_abort: Some(Arc::new(move |run| *keep.lock() = Some((run.steps.len(), run.text.clone())))),
        on_finish: Some(Arc::new(|_| panic!("an aborted run does not finish"))),
        ..Hooks::default()
    };
    let ran = aborted(&world, gate.reached(), RunOptions { hooks, ..RunOptions::default() }).await;
    assert_eq!(ran.kinds(), ["start", "step-start", "text-start", "text-delta", "text-end", "abort", "finish"]);
    assert_eq!(ran.finish()["stepResult"]["reason"], "aborted");
    assert_eq!((ran.output.finish_reason, ran.output.text.as_str()), (FinishReason::Aborted, "half "));
    assert_eq!(*told.lock(), Some((0, "half ".into())));
    assert_eq!(world.model.cancelled(), 1);
    let stored = world.stored().await;
    assert_eq!(json!(stored[1].id), ran.payload("start")["messageId"]);
    assert_eq!(stored[1].joined_text(), "half ");
    assert_eq!(stored[1].content.meta("mastra"), Some(&json!({"aborted": true})));
}

#[tokio::test(start_paused = true)]
async fn loop_130_the_callers_own_signal_stops_the_run() {
    let gate = Gate::new();
    let world = world_with([Script::new().text("half ").gate(&gate)], |agent| agent).await;
    let abort = CancellationToken::new();
    let options = RunOptions { abort: Some(abort.clone()), ..RunOptions::default() };
    let stream = world.agent.stream(input("go"), Some(&world.thread), options).await.unwrap();
    gate.reached().await;
    abort.cancel();
    assert_eq!(stream.output().await.unwrap().finish_reason, FinishReason::Aborted);
}

#[tokio::test(start_paused = true)]
async fn loop_134_loop_135_an_abort_while_tools_run_keeps_what_has_finished() {
    let running = Arc::new(Notify::new());
    let tell = running.clone();
    let deaf = Tool::json("deaf", move |_, context: ToolContext| {
        let tell = tell.clone();
        async move {
            let _held = context;
            tell.notify_one();
            std::future::pending::<()>().await;
            Ok(json!(null))
        }
    });
    let world = world_with(
        [Script::new().call("echo", json!({})).call("deaf", json!({})), Script::new().text("again")],
        |agent| agent.tool(echo()).tool(deaf),
    )
    .await;
    let began = tokio::time::Instant::now();
    let ran = aborted(&world, running.notified(), RunOptions::default()).await;
    assert_eq!(began.elapsed(), Duration::from_secs(1), "a deaf tool gets a second");
    let end: Vec<&str> = ran.kinds().into_iter().rev().take(3).collect();
    assert_eq!(end, ["finish", "abort", "tool-result"]);
    assert_eq!(ran.finish()["stepResult"]["reason"], "aborted");
    let states: Vec<Value> =
        world.answer_parts().await.iter().map(|part| part["toolInvocation"]["state"].clone()).collect();
    assert_eq!(states, ["result", "call"]);
    // The call without a result is not told to a model.
    world.run("again").await;
    let prompt = super::prompt(&world.model.requests()[1]).to_string();
    assert!(prompt.contains("echo") && !prompt.contains("deaf"), "{prompt}");
}

#[tokio::test(start_paused = true)]
async fn loop_134_a_tool_that_listens_stops_at_once() {
    let running = Arc::new(Notify::new());
    let tell = running.clone();
    let listens = Tool::json("listens", move |_, context: ToolContext| {
        let tell = tell.clone();
        async move {
            tell.notify_one();
            context.abort.cancelled().await;
            Err::<Value, _>("stopped".into())
        }
    });
    let world = world_with([Script::new().call("listens", json!({}))], |agent| agent.tool(listens)).await;
    let began = tokio::time::Instant::now();
    let ran = aborted(&world, running.notified(), RunOptions::default()).await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert!(ran.all("tool-error").is_empty(), "LOOP-135: never stored as an error");
    assert_eq!(world.answer_parts().await[0]["toolInvocation"]["state"], "call");
}

#[tokio::test(start_paused = true)]
async fn loop_136_aborting_before_the_model_is_asked_and_twice() {
    let storage = Faulty::new();
    let model = ScriptedModel::with_responses([Script::new().text("never")]);
    let world = world_on(model.clone(), [agent("plain", &model)], storage.clone()).await;
    let preparing = storage.hold("recent_messages");
    let mut stream = world.agent.stream(input("go"), Some(&world.thread), RunOptions::default()).await.unwrap();
    preparing.reached().await;
    stream.abort();
    stream.abort();
    preparing.open();
    let mut kinds = Vec::new();
    while let Some(chunk) = stream.next().await {
        kinds.push(chunk.chunk().kind().to_owned());
    }
    assert_eq!(kinds, ["start", "abort", "finish"]);
    assert_eq!(world.model.requested(), 0);
    assert_eq!(world.texts().await, ["go"], "MEM-051: what the person said is kept");
    assert_eq!(stream.output().await.unwrap().finish_reason, FinishReason::Aborted);
}

#[tokio::test(start_paused = true)]
async fn loop_137_usage_of_an_aborted_run_is_a_number() {
    let gate = Gate::new();
    let usage = Usage { input_tokens: Some(3), output_tokens: Some(4), total_tokens: Some(7), ..Usage::default() };
    let first = call(1).finish_with(FinishReason::ToolCalls, usage);
    let world = world_with([first, Script::new().text("x").gate(&gate)], |agent| agent.tool(echo())).await;
    let ran = aborted(&world, gate.reached(), RunOptions::default()).await;
    assert_eq!(ran.finish()["output"]["usage"], json!({"inputTokens": 3, "outputTokens": 4, "totalTokens": 7}));
    assert_eq!(ran.output.text, "x", "the step before it said nothing");
}
