//! The chunks of a run, exactly (LOOP-190 … LOOP-198), and how its output is read (LOOP-013, LOOP-206).

use std::sync::Arc;

use bugle::{
    RunOptions,
    agent::ModelEntry,
    chunk::{FinishReason, Usage},
    json::{Value, json},
    model::{LanguageModel, ModelError, ModelEvent, ModelRequest, ModelResponse, Script},
    runtime::SubscribeOptions,
};
use futures::StreamExt;

use super::{call, echo, input, world_with};
use crate::support::text;

const TEXT: [&str; 7] = ["start", "step-start", "text-start", "text-delta", "text-end", "step-finish", "finish"];

#[tokio::test(start_paused = true)]
async fn loop_190_every_chunk_has_type_run_origin_and_payload() {
    let world = world_with([call(1), Script::new().text("done")], |agent| agent.tool(echo())).await;
    let ran = world.run("go").await;
    for chunk in &ran.chunks {
        let json = serde_json::to_value(chunk).unwrap();
        assert_eq!((&json["runId"], &json["from"]), (&json!(ran.output.run_id), &json!("AGENT")), "{json}");
        assert!(json["type"].is_string() && json["payload"].is_object(), "{json}");
    }
    let start = ran.payload("start");
    assert_eq!((&start["id"], start["messageId"].is_string()), (&json!("plain"), true));
    let step = ran.all("step-start")[0]["payload"].clone();
    assert!(step["startedAt"].is_i64());
    assert_eq!((&step["request"], &step["warnings"]), (&json!({}), &json!([])));
}

#[tokio::test(start_paused = true)]
async fn loop_191_woken_by_a_message_the_echo_comes_before_start() {
    let world = world_with([Script::new().text("Hello")], |agent| agent).await;
    let mut watcher = world.watch().await;
    let run = world.send("go").await.run_id.unwrap();
    watcher.until_end_of(&run).await;
    assert_eq!(watcher.kinds(), [&["data-user-message"][..], &TEXT].concat());
}

#[tokio::test(start_paused = true)]
async fn sig_164_loop_192_woken_by_a_signal_the_echo_comes_after_start() {
    let world = world_with([Script::new().text("Hello")], |agent| agent).await;
    let mut watcher = world.watch().await;
    let signal = bugle::SignalInput::new("reactive", "rain");
    let run = crate::support::accepted(world.agent.send_signal(&world.thread, signal).await.unwrap()).await;
    watcher.until_end_of(&run.run_id.unwrap()).await;
    assert_eq!(watcher.kinds(), [&["start", "data-signal"][..], &TEXT[1..]].concat());
}

#[tokio::test(start_paused = true)]
async fn loop_193_reasoning_comes_before_the_text() {
    let world = world_with([Script::new().think("hm").text("Hello")], |agent| agent).await;
    let ran = world.run("go").await;
    let reasoning = ["start", "step-start", "reasoning-start", "reasoning-delta", "reasoning-end"];
    assert_eq!(ran.kinds(), [&reasoning[..], &TEXT[2..]].concat());
    assert_eq!(ran.output.steps[0].reasoning_text, "hm");
}

#[tokio::test(start_paused = true)]
async fn loop_194_a_tool_step_and_its_answer() {
    let world = world_with([call(1), Script::new().text("Hello")], |agent| agent.tool(echo())).await;
    let ran = world.run("go").await;
    let tool = [
        "start",
        "step-start",
        "tool-call-input-streaming-start",
        "tool-call-delta",
        "tool-call-delta",
        "tool-call-input-streaming-end",
        "tool-call",
        "tool-result",
        "step-finish",
    ];
    assert_eq!(ran.kinds(), [&tool[..], &TEXT[1..]].concat());
    let results: Vec<Value> = ran.all("step-finish").iter().map(|one| one["payload"]["stepResult"].clone()).collect();
    assert_eq!((&results[0]["reason"], &results[0]["isContinued"]), (&json!("tool-calls"), &json!(true)));
    assert_eq!((&results[1]["reason"], &results[1]["isContinued"]), (&json!("stop"), &json!(false)));
    let whole = ModelEvent::ToolCall {
        id: "c".into(),
        name: "echo".into(),
        input: "{}".into(),
        provider_executed: false,
        provider_metadata: None,
    };
    let world = world_with([Script::new().emit(whole), Script::new().text("Hello")], |agent| agent.tool(echo())).await;
    let plain = ["start", "step-start", "tool-call", "tool-result", "step-finish"];
    // The script's own end says `stop`: a step with calls goes on all the same (LOOP-022).
    assert_eq!(world.run("go").await.kinds(), [&plain[..], &TEXT[1..]].concat());
}

#[tokio::test(start_paused = true)]
async fn loop_195_a_failing_model() {
    let world = world_with([Script::new().fail_with(400, "no")], |agent| agent).await;
    assert_eq!(world.run("go").await.kinds(), ["start", "step-start", "error", "step-finish", "finish"]);
    let world = world_with([Script::new().text("half").cut()], |agent| agent).await;
    let with_text = ["start", "step-start", "text-start", "text-delta", "text-end", "error", "step-finish", "finish"];
    assert_eq!(world.run("go").await.kinds(), with_text);
}

#[tokio::test(start_paused = true)]
async fn loop_195_subscribers_see_the_error_last() {
    let world = world_with([Script::new().fail_with(400, "no")], |agent| agent).await;
    let mut watcher = world.watch().await;
    let run = world.send("go").await.run_id.unwrap();
    watcher.until_end_of(&run).await;
    assert_eq!(watcher.kinds(), ["data-user-message", "start", "step-start", "error"]);
}

#[tokio::test(start_paused = true)]
async fn loop_197_nothing_of_a_failed_model_is_visible() {
    let first = Script::new().emit(ModelEvent::Warnings(vec![json!("old")])).fail_in_band(429, "busy");
    let world = world_with([first, Script::new().text("Hello")], |agent| {
        let other = bugle::model::ScriptedModel::with_responses([Script::new().text("Hello")]).named("other", "m2");
        agent.model(std::sync::Arc::new(other))
    })
    .await;
    let ran = world.run("go").await;
    assert_eq!(ran.kinds(), TEXT);
    let step = ran.payload("step-finish");
    assert_eq!(step["metadata"]["modelMetadata"]["modelId"], "m2");
    assert_eq!(step["stepResult"].get("warnings"), None);
}

#[tokio::test(start_paused = true)]
async fn loop_198_a_signal_between_steps_is_shown_before_the_step_ends() {
    let gate = bugle::model::Gate::new();
    let world = world_with([call(1).gate(&gate), Script::new().text("Hello")], |agent| agent.tool(echo())).await;
    let mut watcher = world.watch().await;
    let run = world.send("go").await.run_id.unwrap();
    gate.reached().await;
    world.send("also").await;
    gate.open();
    watcher.until_end_of(&run).await;
    let kinds = watcher.kinds();
    let result = kinds.iter().position(|kind| *kind == "tool-result").unwrap();
    let after = ["data-user-message", "step-finish", "step-start", "text-start"];
    assert_eq!(kinds[result + 1..result + 5], after);
    let json: Vec<Value> = watcher.chunks.iter().map(|chunk| serde_json::to_value(chunk).unwrap()).collect();
    let id = |at: usize| &json[at]["payload"]["messageId"];
    assert_ne!(id(result + 3), id(1));
    assert_eq!(json[result + 2]["payload"]["stepResult"]["messageId"], *id(result + 3));
}

fn entry(model: impl LanguageModel + 'static) -> ModelEntry {
    ModelEntry { model: Arc::new(model), max_retries: None }
}

/// Warns, and says Hello.
#[derive(Debug)]
struct Warns;

#[async_trait::async_trait]
impl LanguageModel for Warns {
    fn provider(&self) -> &'static str {
        "test"
    }
    fn model_id(&self) -> &'static str {
        "warns"
    }
    async fn stream(&self, _: ModelRequest) -> Result<ModelResponse, ModelError> {
        let finish = ModelEvent::Finish {
            reason: FinishReason::Stop,
            raw_reason: None,
            usage: Usage::default(),
            provider_metadata: None,
        };
        let text = ModelEvent::TextDelta { id: "txt".into(), text: "Hello".into() };
        let events = [ModelEvent::Warnings(vec![json!({"type": "unsupported"})]), text, finish];
        Ok(ModelResponse { events: futures::stream::iter(events.map(Ok)).boxed() })
    }
}

#[tokio::test(start_paused = true)]
async fn loop_190_warnings_of_the_provider_are_in_the_step_and_in_the_result() {
    let world = world_with([Script::new()], |agent| agent.models_per(|_| vec![entry(Warns)])).await;
    let ran = world.run("go").await;
    let warnings = json!([{"type": "unsupported"}]);
    assert_eq!(ran.kinds(), TEXT);
    assert_eq!(ran.payload("step-start")["warnings"], warnings);
    assert_eq!(ran.payload("step-finish")["stepResult"]["warnings"], warnings);
    assert_eq!(json!(ran.output.warnings), warnings);
}

#[tokio::test(start_paused = true)]
async fn loop_013_readers_do_not_take_chunks_from_each_other() {
    let world = world_with([Script::new().text("one two three")], |agent| agent).await;
    let (mut one, mut two) = (world.watch().await, world.watch().await);
    let mut stream = world.agent.stream(input("go"), Some(&world.thread), RunOptions::default()).await.unwrap();
    let run = stream.run_id.clone();
    one.until_end_of(&run).await;
    two.until_end_of(&run).await;
    let mut own = Vec::new();
    while let Some(chunk) = stream.next().await {
        own.push(chunk.chunk().clone());
    }
    assert_eq!(
        (one.text_of(&run), two.text_of(&run), text(&own)),
        ("one two three".into(), "one two three".into(), "one two three".into())
    );
    assert_eq!(own.len(), one.chunks.len());
}

#[tokio::test(start_paused = true)]
async fn loop_206_dropping_the_stream_does_not_stop_the_run() {
    let gate = bugle::model::Gate::new();
    let world = world_with([Script::new().text("one ").gate(&gate).text("two")], |agent| agent).await;
    let mut watcher = world.watch_with(SubscribeOptions::default()).await;
    let stream = world.agent.stream(input("go"), Some(&world.thread), RunOptions::default()).await.unwrap();
    let run = stream.run_id.clone();
    gate.reached().await;
    drop(stream);
    gate.open();
    watcher.until_end_of(&run).await;
    assert_eq!(watcher.text_of(&run), "one two");
    assert_eq!(world.texts().await, ["go", "one two"]);
}
