//! Pairs of rows that the reference has written, and what it finds in ours (LOOP-100, STO-110, STO-111).

use bugle::{
    Error, RunOptions, ThreadKey,
    json::{Value, json},
    model::{Script, ScriptedModel},
    run::Decision,
    storage::{NewThread, ParkedRun},
    time::Timestamp,
};

use super::{Count, ask, call_remove, done, remove, resumed, world};
use crate::support::{World, builder, world_of};

/// A pair as the reference wrote it, with the thread it is of.
fn fixture(text: &str, agent_id: &str) -> ParkedRun {
    let mut rows: Value = serde_json::from_str(text).unwrap();
    let outer = rows["agentic-loop"].take();
    let memory = &outer["context"]["executionWorkflow"]["suspendPayload"]["__streamState"]["messageList"]["memoryInfo"];
    let id = |key: &str| memory[key].as_str().unwrap().to_owned();
    ParkedRun {
        run_id: outer["runId"].as_str().unwrap().into(),
        thread: Some(ThreadKey::new(id("resourceId"), id("threadId"))),
        resource_id: Some(id("resourceId")),
        agent_id: agent_id.to_owned(),
        suspended_at: Timestamp::from_millis(outer["timestamp"].as_i64().unwrap()),
        outer,
        inner: rows["executionWorkflow"].take(),
    }
}

/// A store with the pair and the conversation it is part of, and the agent it is of.
async fn world_with_pair(run: &ParkedRun, count: &Count) -> World {
    let model = ScriptedModel::with_responses([done()]);
    let agent = builder(&run.agent_id, &model).tool(remove(count)).tool(ask()).build().unwrap();
    let mut world = world_of(model, [agent]).await;
    world.thread = run.thread.clone().unwrap();
    let new = NewThread {
        id: Some(world.thread.thread_id.to_string()),
        resource_id: run.resource_id.clone().unwrap(),
        ..NewThread::default()
    };
    world.storage.create_thread(new).await.unwrap();
    let list = &run.outer["context"]["executionWorkflow"]["suspendPayload"]["__streamState"]["messageList"];
    let messages = serde_json::from_value(list["messages"].clone()).unwrap();
    world.storage.save_messages(messages).await.unwrap();
    world.storage.park(run.clone()).await.unwrap();
    world
}

const APPROVAL: &str = include_str!("../../fixtures/suspended-approval.min.json");
const SUSPENSION: &str = include_str!("../../fixtures/suspended-tool.min.json");

#[tokio::test(start_paused = true)]
async fn sto_110_an_approval_that_the_reference_parked_is_approved_here() {
    let run = fixture(APPROVAL, "approve-agent");
    let count = Count::default();
    let world = world_with_pair(&run, &count).await;
    let listed = world.agent.list_suspended_runs(Default::default()).await.unwrap();
    let call = &listed.runs[0].tool_calls[0];
    assert_eq!(
        (call.tool_call_id.as_str(), call.tool_name.as_str(), call.requires_approval),
        ("call_a1", "remove", true)
    );
    let ran = resumed(&world.agent, &run.run_id, Decision::approve(Some("call_a1"))).await;
    assert_eq!((ran.output.text.as_str(), count.get()), ("I need leave for this.done", 1));
    assert!(ran.output.usage.input_tokens.unwrap_or(0) >= 10, "LOOP-100: the step's usage counts");
    assert_eq!(world.asked(0), ["Delete tmp.txt"]);
    let call = world.call("call_a1").await;
    assert_eq!((&call["state"], &call["result"]), (&json!("result"), &json!({"removed": "tmp.txt"})));
    assert_eq!(world.with_call("call_a1").await["content"]["metadata"].get("pendingToolApprovals"), None);
}

#[tokio::test(start_paused = true)]
async fn sto_110_a_suspension_of_the_reference_is_resumed_here() {
    let run = fixture(SUSPENSION, "suspend-agent");
    let world = world_with_pair(&run, &Count::default()).await;
    let ran = resumed(&world.agent, &run.run_id, Decision::resume(Some("call_q1"), json!({"answer": "red"}))).await;
    assert_eq!(ran.payload("tool-result")["result"]["answer"], "red");
    assert_eq!(ran.output.text, "done");
}

#[tokio::test(start_paused = true)]
async fn sto_111_outputs_by_index_and_results_that_only_the_rows_hold() {
    let mut run = fixture(APPROVAL, "approve-agent");
    // A call before it has finished; the reference keeps that from the conversation (LOOP-096).
    let before = json!({"toolCallId": "call_a0", "toolName": "ask", "args": {"q": "?"}});
    let calls = run.inner["context"]["map-tool-calls"]["output"].as_array_mut().unwrap();
    calls.insert(0, before.clone());
    let finished = json!({
        "status": "success", "payload": before, "startedAt": 1, "endedAt": 2,
        "output": {"toolCallId": "call_a0", "toolName": "ask", "args": {"q": "?"}, "result": {"answer": "early"}},
    });
    let payload = &mut run.outer["context"]["executionWorkflow"]["suspendPayload"];
    let waiting = payload["__workflow_meta"]["foreachOutput"][0].clone();
    payload["__workflow_meta"]["foreachOutput"] = json!({"0": finished, "1": waiting});
    let parts = &mut payload["__streamState"]["messageList"]["messages"][1]["content"]["parts"];
    let mut part = parts[1].clone();
    part["toolInvocation"]["toolCallId"] = json!("call_a0");
    part["toolInvocation"]["toolName"] = json!("ask");
    parts.as_array_mut().unwrap().insert(1, part);
    let count = Count::default();
    let world = world_with_pair(&run, &count).await;
    let ran = resumed(&world.agent, &run.run_id, Decision::approve(None)).await;
    let results: Vec<Value> = ran.all("tool-result").iter().map(|one| one["payload"]["result"].clone()).collect();
    assert_eq!(results, [json!({"answer": "early"}), json!({"removed": "tmp.txt"})]);
    assert_eq!(world.call("call_a0").await["result"], json!({"answer": "early"}), "it is stored now");
    assert_eq!(count.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn sto_111_a_pair_without_its_inner_row_is_not_suspended_and_can_be_given_up() {
    let run = ParkedRun { inner: Value::Null, ..fixture(APPROVAL, "approve-agent") };
    let world = world_with_pair(&run, &Count::default()).await;
    let refused = world.agent.resume_stream(&run.run_id, Decision::approve(None), RunOptions::default()).await;
    assert!(matches!(refused, Err(Error::NotSuspended { .. })), "{refused:?}");
    world.agent.discard_suspended_run(&run.run_id).await.unwrap();
    assert_eq!(world.parked().await, []);
}

#[tokio::test(start_paused = true)]
async fn loop_100_our_pair_has_what_the_reference_reads() {
    let script = Script::new()
        .text("I need leave.")
        .call_as("c0", "plain", "{}")
        .call_as("c1", "remove", r#"{"path":"/a"}"#)
        .call_as("c2", "plain", "{}");
    let world = world([script], &Count::default()).await;
    let run_id = world.run("go").await.output.run_id;
    let run = world.storage.parked_run(&run_id).await.unwrap().unwrap();
    for row in [&run.outer, &run.inner] {
        for (key, value) in [
            ("runId", json!(run_id)),
            ("status", json!("suspended")),
            ("value", json!({})),
            ("activePaths", json!([])),
            ("serializedStepGraph", json!([])),
        ] {
            assert_eq!(row[key], value, "{key}");
        }
        assert!(row["timestamp"].is_i64());
    }
    assert_eq!(run.outer["suspendedPaths"], json!({"executionWorkflow": [0]}));
    assert_eq!(run.outer["resumeLabels"], json!({"c1": {"stepId": "executionWorkflow"}}));
    assert_eq!(run.inner["suspendedPaths"], json!({"toolCallStep": [2]}));
    assert_eq!(run.inner["resumeLabels"], json!({"c1": {"stepId": "toolCallStep", "foreachIndex": 1}}));
    let payload = &run.outer["context"]["executionWorkflow"]["suspendPayload"];
    let asked = json!({"toolCallId": "c1", "toolName": "remove", "args": {"path": "/a"}});
    assert_eq!((&payload["requireToolApproval"], &payload["__agentId"]), (&asked, &json!("plain")));
    let meta = &payload["__workflow_meta"];
    let states: Vec<&Value> = meta["foreachOutput"].as_array().unwrap().iter().map(|one| &one["status"]).collect();
    assert_eq!(states, ["success", "suspended"], "calls not yet started have no entry");
    assert_eq!(meta["foreachOutput"][0]["output"]["result"], json!({"ran": 1}));
    assert_eq!((&meta["foreachIndex"], &meta["runId"]), (&json!(1), &json!(run_id)));
    let list = &payload["__streamState"]["messageList"];
    assert_eq!(list["memoryInfo"], json!({"threadId": "thread", "resourceId": "user"}));
    assert_eq!(list["messages"].as_array().unwrap().len(), 2);
    assert_eq!(list["systemMessages"], json!([]), "LOOP-101, LOOP-102");
    let response = &run.inner["context"]["llm-execution"]["output"];
    assert_eq!(response["output"]["text"], "I need leave.");
    assert_eq!((&response["metadata"], &response["stepResult"]["reason"]), (&json!({}), &json!("tool-calls")));
    assert!(response["output"]["usage"].is_object());
    let calls = run.inner["context"]["map-tool-calls"]["output"].as_array().unwrap();
    assert_eq!(calls.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn loop_100_our_pair_is_read_without_our_own_state_too() {
    let count = Count::default();
    let world = world([call_remove("c1", "/a"), done()], &count).await;
    let run_id = world.run("go").await.output.run_id;
    let mut run = world.storage.parked_run(&run_id).await.unwrap().unwrap();
    run.outer.as_object_mut().unwrap().shift_remove("bugle").expect("our own state");
    world.storage.park(run).await.unwrap();
    let ran = resumed(&world.agent, &run_id, Decision::approve(None)).await;
    assert_eq!((ran.output.text.as_str(), count.get()), ("done", 1));
    assert_eq!(world.texts().await, ["go", "", "done"]);
}
