//! Decisions: approved, declined, resumed with data; what the stream and the conversation show of them.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bugle::{
    Error, RunOptions, Tool,
    chunk::FinishReason,
    json::{Value, json},
    model::Script,
    run::{Decision, Hooks, NOT_APPROVED},
    runtime::SuspendedQuery,
    tool::{Approval, ToolContext, ToolError},
};

use super::{Count, brief, call_remove, done, resumed, resumed_with, world};
use crate::r#loop::{prompt, world_with};

/// What the model read of a call's outcome.
fn told(world: &crate::support::World, id: &str) -> Value {
    let requests = world.model.requests();
    let prompt = prompt(requests.last().unwrap());
    let tools = prompt.as_array().unwrap().iter().filter(|turn| turn["role"] == "tool").cloned();
    let results = tools.flat_map(|turn| turn["content"].as_array().unwrap().clone());
    results.into_iter().find(|result| result["toolCallId"] == id).expect("a result")["output"].clone()
}

#[tokio::test(start_paused = true)]
async fn loop_112_an_approved_call_runs_once_and_the_loop_goes_on() {
    let count = Count::default();
    let world = world([call_remove("c1", "/a"), done()], &count).await;
    let first = world.run("go").await;
    let run_id = first.output.run_id.clone();
    let ran = resumed(&world.agent, &run_id, Decision::approve(Some("c1"))).await;
    assert_eq!(brief(&ran.chunks), ["tool-result", "step-finish", "step-start", "step-finish", "finish"], "LOOP-111");
    assert!(ran.chunks.iter().all(|chunk| chunk.run_id.as_ref() == Some(&run_id)), "LOOP-111: the same run");
    assert_eq!((ran.output.text.as_str(), count.get()), ("done", 1));
    let call = world.call("c1").await;
    assert_eq!(call["state"], "result");
    assert_eq!(call["approval"], json!({"id": "c1", "approved": true}));
    let message = world.with_call("c1").await;
    let metadata = &message["content"]["metadata"];
    assert_eq!(metadata.get("pendingToolApprovals"), None, "LOOP-113");
    assert_eq!(metadata["mastra"]["responseBoundary"], true, "LOOP-111: the old message is closed");
    let finish = ran.payload("finish");
    assert_ne!(finish["messageId"], message["id"], "LOOP-111: a new message from there on");
    let step = &ran.all("step-finish")[0]["payload"];
    assert_eq!((&step["messageId"], &step["stepResult"]["messageId"]), (&finish["messageId"], &finish["messageId"]));
    assert_eq!(step["stepResult"]["reason"], "tool-calls");
    assert_eq!(world.parked().await, [], "STO-112");
    assert_eq!(world.texts().await, ["go", "", "done"]);
    assert_eq!(world.storage.runs(&world.thread).await.unwrap(), [], "its record has ended");
}

#[tokio::test(start_paused = true)]
async fn loop_112_a_declined_call_never_runs_and_the_model_reads_why() {
    for (reason, expected) in [(Some("not today"), "not today"), (None, NOT_APPROVED)] {
        let count = Count::default();
        let world = world([call_remove("c1", "/a"), done()], &count).await;
        let run_id = world.run("go").await.output.run_id;
        let ran = resumed(&world.agent, &run_id, Decision::decline(Some("c1"), reason)).await;
        let approval = json!({"id": "c1", "approved": false, "reason": expected});
        assert_eq!(brief(&ran.chunks), ["tool-output-denied", "step-finish", "step-start", "step-finish", "finish"]);
        assert_eq!(
            ran.payload("tool-output-denied"),
            json!({"toolCallId": "c1", "toolName": "remove", "args": {"path": "/a"}, "approval": approval})
        );
        let call = world.call("c1").await;
        assert_eq!((&call["state"], &call["approval"]), (&json!("output-denied"), &approval));
        assert_eq!(told(&world, "c1")["value"], expected);
        assert_eq!((count.get(), ran.output.text.as_str()), (0, "done"));
    }
}

#[tokio::test(start_paused = true)]
async fn loop_110_only_approved_true_lets_a_call_run() {
    for data in [json!({}), json!({"approved": "true"}), json!({"approved": false}), json!(true), json!(null)] {
        let count = Count::default();
        let world = world([call_remove("c1", "/a"), done()], &count).await;
        let run_id = world.run("go").await.output.run_id;
        let ran = resumed(&world.agent, &run_id, Decision::resume(None, data.clone())).await;
        assert_eq!((count.get(), ran.all("tool-output-denied").len()), (0, 1), "{data}");
    }
}

#[tokio::test(start_paused = true)]
async fn loop_114_resume_data_reaches_the_tool_if_it_fits_its_schema() {
    let script = || Script::new().call_as("c1", "ask", r#"{"q":"colour?"}"#);
    let world = world([script(), done()], &Count::default()).await;
    let run_id = world.run("go").await.output.run_id;
    let ran = resumed(&world.agent, &run_id, Decision::resume(Some("c1"), json!({"answer": "blue"}))).await;
    assert_eq!(ran.payload("tool-result")["result"], json!({"question": "colour?", "answer": "blue"}));
    assert_eq!(world.with_call("c1").await["content"]["metadata"].get("suspendedTools"), None, "LOOP-113");

    let world = super::world([script(), done()], &Count::default()).await;
    let run_id = world.run("go").await.output.run_id;
    let ran = resumed(&world.agent, &run_id, Decision::resume(None, json!({"answer": 7}))).await;
    let result = ran.payload("tool-result");
    assert_eq!((&result["isError"], &result["result"]["error"]), (&json!(true), &json!(true)));
    let message = result["result"]["message"].as_str().unwrap();
    assert!(message.contains("validation failed for ask"), "{message}");
    assert_eq!(ran.output.text, "done", "LOOP-114: the model can correct itself");
}

#[tokio::test(start_paused = true)]
async fn loop_114_false_zero_and_empty_text_are_answers() {
    for data in [json!(false), json!(0), json!(""), json!(null)] {
        let given = Tool::json("given", |_, context: ToolContext| async move {
            context.resume_data.map_or_else(|| Err(ToolError::Suspend(json!("?"))), |data| Ok(json!({ "got": data })))
        });
        let script = Script::new().call_as("c1", "given", "{}");
        let world = world_with([script, done()], |agent| agent.tool(given)).await;
        let run_id = world.run("go").await.output.run_id;
        let ran = resumed(&world.agent, &run_id, Decision::resume(None, data.clone())).await;
        assert_eq!(ran.payload("tool-result")["result"], json!({ "got": data }));
    }
}

#[tokio::test(start_paused = true)]
async fn loop_091_an_approved_tool_may_still_ask() {
    let both = Tool::json("both", |_, context: ToolContext| async move {
        context.resume_data.map_or_else(|| Err(ToolError::Suspend(json!("which?"))), Ok)
    })
    .with_approval(Approval::Always);
    let world = world_with([Script::new().call_as("c1", "both", "{}"), done()], |agent| agent.tool(both)).await;
    let run_id = world.run("go").await.output.run_id;
    let ran = resumed(&world.agent, &run_id, Decision::approve(Some("c1"))).await;
    assert_eq!(brief(&ran.chunks), ["tool-call-suspended"]);
    assert_eq!(ran.output.finish_reason, FinishReason::Suspended);
    let ran = resumed(&world.agent, &run_id, Decision::resume(Some("c1"), json!("this"))).await;
    assert_eq!((ran.payload("tool-result")["result"].clone(), ran.output.text.as_str()), (json!("this"), "done"));
}

#[tokio::test(start_paused = true)]
async fn loop_115_wrong_and_late_decisions_change_nothing() {
    let count = Count::default();
    let world = world([call_remove("c1", "/a"), done()], &count).await;
    let unknown = world.agent.resume_stream(&"nope".into(), Decision::approve(None), RunOptions::default()).await;
    let unknown = unknown.unwrap_err();
    assert!(matches!(unknown, Error::NoSuspendedRun { .. }), "{unknown:?}");
    assert_eq!(unknown.id(), Some("AGENT_RESUME_NO_SNAPSHOT_FOUND"));
    let run_id = world.run("go").await.output.run_id;
    let wrong = world.agent.resume_stream(&run_id, Decision::approve(Some("c9")), RunOptions::default()).await;
    let wrong = wrong.unwrap_err();
    assert!(matches!(wrong, Error::NotSuspended { answered: false, .. }), "{wrong:?}");
    assert_eq!(wrong.id(), Some("AGENT_RESUME_TOOL_CALL_NOT_SUSPENDED"));
    assert_eq!(world.parked().await.len(), 1, "it waits still");
    resumed(&world.agent, &run_id, Decision::approve(Some("c1"))).await;
    let late = world.agent.resume_generate(&run_id, Decision::approve(Some("c1")), RunOptions::default()).await;
    assert!(matches!(late, Err(Error::NoSuspendedRun { .. })), "{late:?}");
    assert_eq!(count.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn loop_110_generate_waits_and_is_resumed() {
    let count = Count::default();
    let world = world([call_remove("c1", "/a"), done()], &count).await;
    let input = crate::r#loop::input("go");
    let output = world.agent.generate(input, Some(&world.thread), RunOptions::default()).await.unwrap();
    assert_eq!(output.finish_reason, FinishReason::Suspended);
    assert_eq!(output.suspend_payload.as_ref().unwrap()["toolCallId"], "c1");
    let decision = Decision::approve(Some("c1"));
    let output = world.agent.resume_generate(&output.run_id, decision, RunOptions::default()).await.unwrap();
    assert_eq!((output.text.as_str(), output.steps.len(), count.get()), ("done", 2, 1));
    assert_eq!(output.steps[0].tool_results.len(), 1, "the parked step is complete");
}

#[tokio::test(start_paused = true)]
async fn loop_118_suspended_runs_are_listed_for_their_agent() {
    let world =
        world([call_remove("c1", "/a"), Script::new().call_as("c2", "ask", r#"{"q":"?"}"#)], &Count::default()).await;
    let first = world.run("go").await.output.run_id;
    let other = bugle::ThreadKey::new("user", "other");
    crate::r#loop::run_on(&world.agent, "go", Some(&other), RunOptions::default()).await;
    let all = world.agent.list_suspended_runs(SuspendedQuery::default()).await.unwrap();
    assert_eq!((all.total, all.runs.len()), (2, 2));
    let query = SuspendedQuery { thread_id: Some("thread".into()), ..SuspendedQuery::default() };
    let listed = world.agent.list_suspended_runs(query).await.unwrap();
    let mut shown = serde_json::to_value(&listed).unwrap();
    shown["runs"][0]["suspendedAt"].take();
    assert_eq!(
        shown,
        json!({"total": 1, "runs": [{
            "runId": first, "status": "suspended", "threadId": "thread", "resourceId": "user", "suspendedAt": null,
            "toolCalls": [{"toolCallId": "c1", "toolName": "remove", "args": {"path": "/a"}, "requiresApproval": true}],
        }]})
    );
    let asks = all.runs.iter().find(|run| run.thread_id.as_deref() == Some("other")).unwrap();
    assert_eq!(asks.tool_calls[0].suspend_payload, Some(json!({"question": "?"})));
    assert!(!asks.tool_calls[0].requires_approval);
    let none = SuspendedQuery { per_page: Some(0), ..SuspendedQuery::default() };
    assert!(matches!(world.agent.list_suspended_runs(none).await, Err(Error::Invalid { .. })));
}

#[tokio::test(start_paused = true)]
async fn sub_134_hooks_and_context_of_the_resuming_call_apply() {
    let seen: Arc<parking_lot::Mutex<Vec<Value>>> = Arc::default();
    let keep = seen.clone();
    let look = Tool::json("look", move |_, context: ToolContext| {
        let context = context.request_context;
        keep.lock().push(json!([context.get("who"), context.get("kept")]));
        async { Ok(json!(null)) }
    })
    .with_approval(Approval::Always);
    let world = world_with([Script::new().call("look", json!({})), done()], |agent| agent.tool(look)).await;
    let mut options = RunOptions::default();
    options.request_context.set("who", "first");
    options.request_context.set("kept", 1);
    let run_id = world.run_with("go", options).await.output.run_id;
    let finished = Arc::new(AtomicUsize::new(0));
    let count = finished.clone();
    let on_finish: Arc<dyn Fn(&bugle::RunOutput) + Send + Sync> = Arc::new(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
    });
    let mut options =
        RunOptions { hooks: Hooks { on_finish: Some(on_finish), ..Hooks::default() }, ..RunOptions::default() };
    options.request_context.set("who", "second");
    resumed_with(&world.agent, &run_id, Decision::approve(None), options).await;
    assert_eq!(*seen.lock(), [json!(["second", 1])]);
    assert_eq!(finished.load(Ordering::SeqCst), 1);
}
