//! Nested chunks, parallel delegations, aborts.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bugle::{
    RunOptions, Tool,
    chunk::{Chunk, ChunkBody, DataChunk, FinishReason},
    json::{Value, json},
    message::ToolState,
    model::Script,
    runtime::Delivery,
    subagent::{CompleteDecision, Delegation, SubAgent, SubRun, Task},
    tool::{ToolContext, ToolError},
};
use parking_lot::Mutex;

use super::{delegating, explorer, input, kinds, lead, nested, pair, pair_of, scripted, to_explorer};
use crate::support::world_of;

#[tokio::test(start_paused = true)]
async fn sub_150_sub_153_sub_156_a_sub_run_is_seen_between_call_and_result_without_bodies() {
    let pair =
        pair(vec![to_explorer("go"), Script::from("ok")], vec![Script::from("fact one")], Delegation::default()).await;
    let (chunks, output) = pair.stream("hi").await;
    let inner = nested(&chunks, "c1");
    assert_eq!(
        kinds(&inner),
        ["start", "step-start", "text-start", "text-delta", "text-delta", "text-end", "step-finish", "finish"]
    );
    let at = |kind: &str| chunks.iter().position(|chunk| chunk.kind() == kind).unwrap();
    let last = chunks.iter().rposition(|chunk| chunk.kind() == "tool-output").unwrap();
    assert!(at("tool-call") < at("tool-output") && last < at("tool-result"));
    let first = serde_json::to_value(&chunks[at("tool-output")]).unwrap();
    assert_eq!((&first["from"], &first["runId"]), (&json!("USER"), &json!(output.run_id)));
    assert_eq!(
        (&first["payload"]["toolCallId"], &first["payload"]["toolName"]),
        (&json!("c1"), &json!("agent-explorer"))
    );
    assert_ne!(inner[0]["runId"], json!(output.run_id));
    assert_eq!(inner[0]["payload"]["id"], "explorer-agent");
    let finish = inner.last().unwrap();
    assert!(finish["payload"].get("messages").is_none() && finish["payload"].get("response").is_none(), "{finish}");
    assert_eq!(finish["payload"]["stepResult"]["reason"], "stop");
    assert!(!serde_json::to_string(&inner).unwrap().contains("You explore."));
}

#[tokio::test(start_paused = true)]
async fn sub_151_deeper_levels_nest() {
    let (parent, child, deep) = (
        scripted(vec![to_explorer("go"), Script::from("ok")]),
        scripted(vec![Script::new().call_as("d1", "agent-deep", r#"{"prompt":"deeper"}"#), Script::from("found")]),
        scripted(vec![Script::from("bottom")]),
    );
    let deep = bugle::Agent::builder("deep").model(Arc::new(deep)).build().unwrap();
    let lead = lead(&parent).agent("explorer", explorer(&child).agent("deep", deep).build().unwrap());
    let pair = pair_of(lead, parent, child).await;
    let (chunks, _) = pair.stream("hi").await;
    let inner = nested(&chunks, "c1");
    let text = inner.iter().find(|chunk| chunk["payload"]["output"]["type"] == "text-delta").unwrap();
    assert_eq!((&text["type"], &text["payload"]["toolName"]), (&json!("tool-output"), &json!("agent-deep")));
    assert_eq!(text["payload"]["output"]["payload"]["text"], "bottom");
}

#[tokio::test(start_paused = true)]
async fn sub_152_data_chunks_bubble_to_the_top() {
    let (parent, child) = (
        scripted(vec![to_explorer("go"), Script::from("ok")]),
        scripted(vec![Script::new().call("report", json!({})), Script::from("found")]),
    );
    let report = Tool::json("report", |_, context: ToolContext| async move {
        let data = DataChunk { kind: "data-progress".into(), data: json!({"done": 1}), id: None, transient: None };
        context.writer.custom(data).await;
        Ok::<Value, ToolError>(json!(1))
    });
    let lead = lead(&parent).agent("explorer", explorer(&child).tool(report).build().unwrap());
    let pair = pair_of(lead, parent, child).await;
    let (chunks, output) = pair.stream("hi").await;
    let data: Vec<&Chunk> = chunks.iter().filter(|chunk| matches!(chunk.body, ChunkBody::Data(_))).collect();
    assert_eq!(data.len(), 1);
    assert_eq!((data[0].kind(), data[0].run_id.as_ref()), ("data-progress", Some(&output.run_id)));
}

#[tokio::test(start_paused = true)]
async fn sub_155_generate_gives_the_same_without_nested_chunks() {
    let scripts = || (vec![to_explorer("go"), Script::from("ok")], vec![Script::from("found")]);
    let (parent, child) = scripts();
    let one = pair(parent, child, Delegation::default()).await;
    let (parent, child) = scripts();
    let two = pair(parent, child, Delegation::default()).await;
    one.generate("hi").await;
    two.stream("hi").await;
    let strip = |mut value: Value| {
        value.as_object_mut().unwrap().shift_remove("subAgentThreadId");
        value
    };
    let result = |call: bugle::message::ToolInvocation| strip(call.result.unwrap());
    assert_eq!(result(one.calls().await.remove(0)), result(two.calls().await.remove(0)));
    assert!(!one.child.requests()[0].streaming && two.child.requests()[0].streaming);
}

#[tokio::test(start_paused = true)]
async fn sub_160_sub_163_delegations_of_one_turn_run_side_by_side_and_fail_alone() {
    let calls = Script::new()
        .call_as("c1", "agent-explorer", r#"{"prompt":"a"}"#)
        .call_as("c2", "agent-explorer", r#"{"prompt":"b"}"#)
        .call_as("c3", "agent-explorer", r#"{"prompt":"c"}"#);
    let slow = |text: &str| Script::new().wait(Duration::from_secs(5)).text(text);
    let child = vec![slow("one"), Script::new().fail_with(400, "boom"), slow("three")];
    let pair = pair(vec![calls, Script::from("ok")], child, Delegation::default()).await;
    let began = tokio::time::Instant::now();
    pair.generate("hi").await;
    assert_eq!(began.elapsed(), Duration::from_secs(5));
    let states: Vec<ToolState> = pair.calls().await.iter().map(|call| call.state).collect();
    let failed = states.iter().filter(|state| **state == ToolState::OutputError).count();
    assert_eq!((states.len(), failed), (3, 1));
}

#[tokio::test(start_paused = true)]
async fn sub_140_sub_141_sub_142_an_abort_reaches_every_level_and_is_no_success() {
    let done = Arc::new(Mutex::new(Vec::new()));
    let kept = done.clone();
    let delegation = Delegation::default().on_delegation_complete(move |complete| {
        kept.lock().push((complete.success, complete.error.map(|error| error.name)));
        async { Ok(CompleteDecision::default()) }
    });
    let deep_model = scripted(vec![Script::new().text("so far").hang()]);
    let deep = bugle::Agent::builder("deep").model(Arc::new(deep_model.clone())).build().unwrap();
    let both = Script::new().call_as("c1", "agent-explorer", r#"{"prompt":"a"}"#).call_as(
        "c2",
        "agent-explorer",
        r#"{"prompt":"b"}"#,
    );
    let (parent, child) = (
        scripted(vec![both]),
        scripted(vec![Script::new().call_as("d1", "agent-deep", r#"{"prompt":"deeper"}"#), Script::new().hang()]),
    );
    let explorer = explorer(&child).agent("deep", deep).build().unwrap();
    let lead = lead(&parent).default_options(delegating(delegation)).agent("explorer", explorer);
    let pair = pair_of(lead, parent, child).await;
    let mut stream =
        pair.world.agent.stream(input("hi"), Some(&pair.world.thread), RunOptions::default()).await.unwrap();
    deep_model.until_requested(1).await;
    pair.child.until_requested(2).await;
    stream.abort();
    let mut chunks = Vec::new();
    while let Some(chunk) = stream.next().await {
        chunks.push(chunk.chunk().clone());
    }
    let output = stream.output().await.unwrap();
    assert_eq!(output.finish_reason, FinishReason::Aborted);
    assert_eq!((deep_model.cancelled(), pair.child.cancelled(), pair.parent.requested()), (1, 1, 1));
    assert!(kinds(&nested(&chunks, "c1")).contains(&"abort"), "{:?}", kinds(&nested(&chunks, "c1")));
    let tail: Vec<&str> = chunks[chunks.len() - 2..].iter().map(Chunk::kind).collect();
    assert_eq!(tail, ["abort", "finish"]);
    let aborted = (false, Some("AbortError".to_owned()));
    assert_eq!(*done.lock(), [aborted.clone(), aborted]);
    assert!(pair.calls().await.iter().all(|call| call.state == ToolState::Call), "{:?}", pair.calls().await);
}

#[tokio::test(start_paused = true)]
async fn sub_140_a_deaf_tool_at_the_bottom_does_not_hold_the_abort_up() {
    let done = Arc::new(Mutex::new(0));
    let kept = done.clone();
    let delegation = Delegation::default().on_delegation_complete(move |_| {
        *kept.lock() += 1;
        async { Ok(CompleteDecision::default()) }
    });
    let (began, begun) = tokio::sync::oneshot::channel();
    let began = Mutex::new(Some(began));
    let deaf = Tool::json("deaf", move |_, _: ToolContext| {
        began.lock().take().map(|began| began.send(()));
        async {
            tokio::time::sleep(Duration::from_secs(3600)).await;
            Ok::<Value, ToolError>(json!(1))
        }
    });
    let (parent, child) = (scripted(vec![to_explorer("go")]), scripted(vec![Script::new().call("deaf", json!({}))]));
    let explorer = explorer(&child).tool(deaf).build().unwrap();
    let lead = lead(&parent).default_options(delegating(delegation)).agent("explorer", explorer);
    let pair = pair_of(lead, parent, child).await;
    let stream = pair.world.agent.stream(input("hi"), Some(&pair.world.thread), RunOptions::default()).await.unwrap();
    begun.await.unwrap();
    let at = tokio::time::Instant::now();
    stream.abort();
    assert_eq!(stream.output().await.unwrap().finish_reason, FinishReason::Aborted);
    assert!(at.elapsed() <= Duration::from_secs(1), "{:?}", at.elapsed());
    assert_eq!(*done.lock(), 1, "the hook was told");
}

/// Says much, and counts what it got rid of.
struct Chatty(Arc<AtomicUsize>);

#[async_trait]
impl SubAgent for Chatty {
    fn id(&self) -> &'static str {
        "chatty"
    }
    async fn run(&self, task: Task) -> SubRun {
        // 12 MiB in all: more than a thread keeps.
        let block = "x".repeat(4096);
        for _ in 0..TOLD {
            task.emit(Chunk::transient_data(&task.run_id, "data-progress", json!(block))).await;
            self.0.fetch_add(1, Ordering::SeqCst);
        }
        SubRun::text("told")
    }
}

const TOLD: usize = 3000;

#[tokio::test(start_paused = true)]
async fn sub_157_a_sub_run_waits_for_its_parent_and_a_reader_that_is_behind_is_told() {
    let told = Arc::new(AtomicUsize::new(0));
    let parent = scripted(vec![Script::new().call("agent-chatty", json!({"prompt": "go"})), Script::from("ok")]);
    let world = world_of(parent.clone(), [lead(&parent).agent("chatty", Chatty(told.clone())).build().unwrap()]).await;
    let mut slow = world.watch().await;
    world.agent.stream(input("hi"), Some(&world.thread), RunOptions::default()).await.unwrap().output().await.unwrap();
    assert_eq!(told.load(Ordering::SeqCst), TOLD);
    let mut held = Vec::new();
    while let Some(Delivery::Chunk(chunk)) = slow.try_next() {
        held.push(chunk.chunk.clone());
    }
    assert!(held.len() < TOLD - 500, "{} chunks were kept for a reader that read none", held.len());
    assert!(held.iter().any(|chunk| chunk.kind() == "data-subscription-lagged"));
    assert_eq!(held.last().unwrap().kind(), "finish");
}

#[tokio::test(start_paused = true)]
async fn sub_143_a_reader_who_leaves_does_not_abort() {
    let pair =
        pair(vec![to_explorer("go"), Script::from("ok")], vec![Script::from("found")], Delegation::default()).await;
    let stream = pair.world.agent.stream(input("hi"), Some(&pair.world.thread), RunOptions::default()).await.unwrap();
    drop(stream);
    pair.parent.until_requested(2).await;
    assert_eq!(pair.told(1), ["found"]);
}
