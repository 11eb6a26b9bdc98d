//! Steps, tools and ends of runs (LOOP).

use std::sync::Arc;

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
