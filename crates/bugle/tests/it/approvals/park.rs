//! What happens when a call waits: verdict, order, chunks, what is stored.

use std::{sync::Arc, time::Duration};

use bugle::{
    RunOptions, Tool,
    chunk::FinishReason,
    json::{Value, json},
    model::Script,
    run::{APPROVAL_SCHEMA, ApproveWhen, Hooks, ToolStrategy},
    tool::Approval,
};

use super::{Count, ask, brief, call_remove, done, plain, remove, resumed, world};
use crate::r#loop::{echo, world_with};

fn with_approval(options: RunOptions) -> RunOptions {
    RunOptions { require_tool_approval: Some(true), ..options }
}

#[tokio::test(start_paused = true)]
async fn loop_091_a_call_that_needs_approval_ends_the_stream_with_it() {
    let count = Count::default();
    let world = world([call_remove("c1", "/a"), done()], &count).await;
    let ran = world.run("go").await;
    assert_eq!(brief(&ran.chunks), ["start", "step-start", "tool-call", "tool-call-approval"], "LOOP-094");
    let asked = json!({
        "toolCallId": "c1", "toolName": "remove", "args": {"path": "/a"}, "resumeSchema": APPROVAL_SCHEMA,
    });
    assert_eq!(ran.payload("tool-call-approval"), asked);
    assert_eq!(ran.output.finish_reason, FinishReason::Suspended);
    assert_eq!(ran.output.suspend_payload, Some(asked));
    assert_eq!((count.get(), world.model.requests().len()), (0, 1));
    assert_eq!(world.parked().await, std::slice::from_ref(&ran.output.run_id));
    let message = world.with_call("c1").await;
    let pending = json!({"c1": {
        "toolCallId": "c1", "toolName": "remove", "args": {"path": "/a"}, "type": "approval",
        "runId": ran.output.run_id, "resumeSchema": APPROVAL_SCHEMA,
    }});
    assert_eq!(message["content"]["metadata"]["pendingToolApprovals"], pending, "LOOP-092");
    assert_eq!(world.call("c1").await["state"], "call", "LOOP-093");
    assert_eq!(world.texts().await[0], "go", "LOOP-093: the input is stored too");
}

#[tokio::test(start_paused = true)]
async fn loop_091_a_tool_that_suspends_shows_its_payload_and_schema() {
    let script = Script::new().call_as("c1", "ask", r#"{"q":"colour?"}"#);
    let world = world([script, done()], &Count::default()).await;
    let ran = world.run("go").await;
    let told = ran.payload("tool-call-suspended");
    assert_eq!(told["suspendPayload"], json!({"question": "colour?"}));
    assert_eq!(told["args"], json!({"q": "colour?"}));
    let schema: Value = serde_json::from_str(told["resumeSchema"].as_str().unwrap()).unwrap();
    assert_eq!(schema["$schema"], "http://json-schema.org/draft-07/schema#");
    assert_eq!(schema["required"], json!(["answer"]));
    assert_eq!(ran.output.suspend_payload, Some(json!({"question": "colour?"})));
    let message = world.with_call("c1").await;
    let entry = &message["content"]["metadata"]["suspendedTools"]["c1"];
    assert_eq!((&entry["type"], &entry["suspendPayload"]), (&json!("suspension"), &told["suspendPayload"]));
}

#[tokio::test(start_paused = true)]
async fn loop_090_the_tools_predicate_comes_first_then_its_word_then_the_runs() {
    let when = |yes: bool| Approval::When(Arc::new(move |_, _| yes));
    let never = ApproveWhen(Arc::new(|_| false));
    let by_name = ApproveWhen(Arc::new(|asked| asked.tool_name == "t" && asked.args["n"] == 1));
    let broken = ApproveWhen(Arc::new(|_| panic!("a bad predicate")));
    let run = |approve_when| RunOptions { approve_when: Some(approve_when), ..RunOptions::default() };
    let plain = RunOptions::default;
    for (what, approval, options, waits) in [
        ("nothing said", Approval::None, plain(), false),
        ("the tool says so", Approval::Always, plain(), true),
        ("the run says so", Approval::None, with_approval(plain()), true),
        ("a tool's predicate is final", when(false), with_approval(plain()), false),
        ("a tool's predicate", when(true), plain(), true),
        ("a tool's word stands against the run's predicate", Approval::Always, run(never), true),
        ("a run's predicate sees call and arguments", Approval::None, run(by_name), true),
        ("a predicate that fails means yes", Approval::None, run(broken), true),
        ("a tool's predicate that fails means yes", Approval::When(Arc::new(|_, _| panic!("bad"))), plain(), true),
    ] {
        let script = Script::new().call("t", json!({"n": 1, "approved": true, "resumeData": {"approved": true}}));
        let world = world_with([script, done()], |agent| agent.tool_as("t", echo().with_approval(approval))).await;
        let ran = world.run_with("go", options).await;
        assert_eq!(ran.kinds().contains(&"tool-call-approval"), waits, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn loop_097_nobody_is_asked_before_the_parked_run_is_durable() {
    for fails in [false, true] {
        let (store, gate) = (crate::faulty::Faulty::new(), bugle::model::Gate::new());
        let script = call_remove("c1", "/a").gate(&gate);
        let world = super::world_again([script, done()], &Count::default(), store.clone()).await;
        let mut watcher = world.watch().await;
        let run = world.send("go").await.run_id.unwrap();
        gate.reached().await;
        if fails {
            store.fail("commit", usize::MAX);
            gate.open();
            watcher.until_end_of(&run).await;
            assert!(!watcher.kinds().contains(&"tool-call-approval"), "{:?}", watcher.kinds());
            continue;
        }
        let hold = store.hold("commit");
        gate.open();
        hold.reached().await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut shown = Vec::new();
        while let Some(bugle::runtime::Delivery::Chunk(chunk)) = watcher.try_next() {
            shown.push(chunk.chunk.kind().to_owned());
        }
        assert!(
            shown.contains(&"tool-call".to_owned()) && !shown.contains(&"tool-call-approval".to_owned()),
            "{shown:?}"
        );
        hold.open();
        watcher.until("tool-call-approval").await;
        assert_eq!(world.parked().await, [run]);
    }
}

#[tokio::test(start_paused = true)]
async fn loop_094_no_finish_hook_is_called_for_a_run_that_waits() {
    let finished = Count::default();
    let seen = finished.clone();
    let hooks = Hooks {
        on_finish: Some(Arc::new(move |_| {
            seen.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        })),
        ..Hooks::default()
    };
    let world = world([call_remove("c1", "/a"), done()], &Count::default()).await;
    let ran = world.run_with("go", RunOptions { hooks, ..RunOptions::default() }).await;
    assert_eq!((ran.output.finish_reason, finished.get()), (FinishReason::Suspended, 0));
    assert_eq!(ran.output.usage, bugle::chunk::Usage::default(), "LOOP-094: usage is empty");
    assert!(ran.output.steps.is_empty());
    assert_eq!(ran.output.parked_calls.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn loop_095_calls_after_the_one_that_waits_have_not_run() {
    let (count, others) = (Count::default(), Count::default());
    let script = Script::new()
        .call_as("m1", "plain", "{}")
        .call_as("m2", "remove", r#"{"path":"/2"}"#)
        .call_as("m3", "remove", r#"{"path":"/3"}"#)
        .call_as("m4", "plain", "{}");
    let world = world_with([script, done()], |agent| {
        let one_by_one = RunOptions { tool_strategy: Some(ToolStrategy::Available), ..RunOptions::default() };
        agent.tool(remove(&count)).tool(plain(&others)).default_options(one_by_one)
    })
    .await;
    let ran = world.run("go").await;
    let after_calls: Vec<&str> = brief(&ran.chunks).into_iter().skip(6).collect();
    assert_eq!(after_calls, ["tool-result", "tool-call-approval"], "LOOP-096: what has finished is shown at once");
    assert_eq!(ran.payload("tool-call-approval")["toolCallId"], "m2");
    assert_eq!((count.get(), others.get()), (0, 1));
    assert_eq!(world.call("m1").await["state"], "result", "LOOP-096: and stored");

    let run_id = ran.output.run_id.clone();
    let ran = resumed(&world.agent, &run_id, bugle::run::Decision::approve(Some("m2"))).await;
    assert_eq!(brief(&ran.chunks), ["tool-result", "tool-call-approval"]);
    assert_eq!(ran.payload("tool-result")["toolCallId"], "m2", "LOOP-096: m1 is not shown again");
    assert_eq!(ran.payload("tool-call-approval")["toolCallId"], "m3");
    assert_eq!((count.get(), others.get()), (1, 1));

    let ran = resumed(&world.agent, &run_id, bugle::run::Decision::decline(Some("m3"), Some("no"))).await;
    assert_eq!(
        brief(&ran.chunks),
        ["tool-output-denied", "tool-result", "step-finish", "step-start", "step-finish", "finish"],
    );
    assert_eq!((count.get(), others.get()), (1, 2));
    assert_eq!(ran.output.text, "done");
    let prompt = crate::r#loop::prompt(&world.model.requests()[1]);
    let told: Vec<&Value> = prompt.as_array().unwrap().iter().filter(|turn| turn["role"] == "tool").collect();
    let ids: Vec<&Value> = told[0]["content"].as_array().unwrap().iter().map(|one| &one["toolCallId"]).collect();
    assert_eq!(ids, ["m1", "m2", "m3", "m4"], "results of the step in order");
}

#[tokio::test(start_paused = true)]
async fn r35a_calls_of_one_step_wait_side_by_side_and_are_answered_in_any_order() {
    let (count, others) = (Count::default(), Count::default());
    let script = Script::new()
        .call_as("a", "remove", r#"{"path":"/a"}"#)
        .call_as("b", "remove", r#"{"path":"/b"}"#)
        .call_as("c", "plain", "{}");
    let world = world_with([script, done()], |agent| agent.tool(remove(&count)).tool(plain(&others))).await;
    let ran = world.run("go").await;
    let asked: Vec<Value> =
        ran.all("tool-call-approval").iter().map(|chunk| chunk["payload"]["args"].clone()).collect();
    assert_eq!(asked, [json!({ "path": "/a" }), json!({ "path": "/b" })], "both are pending");
    assert_eq!((count.get(), others.get()), (0, 0), "what comes behind them waits");

    let run_id = ran.output.run_id.clone();
    let ran = resumed(&world.agent, &run_id, bugle::run::Decision::approve(Some("b"))).await;
    assert_eq!(brief(&ran.chunks), ["tool-result", "tool-call-approval"]);
    assert_eq!(ran.payload("tool-result")["result"], json!({ "removed": "/b" }));
    assert_eq!(ran.payload("tool-call-approval")["toolCallId"], "a", "the first is still asked for");
    assert_eq!((count.get(), others.get()), (1, 0));

    let ran = resumed(&world.agent, &run_id, bugle::run::Decision::approve(Some("a"))).await;
    assert_eq!((ran.output.text.as_str(), count.get(), others.get()), ("done", 2, 1), "each ran once");
    let prompt = crate::r#loop::prompt(&world.model.requests()[1]);
    let told: Vec<&Value> = prompt.as_array().unwrap().iter().filter(|turn| turn["role"] == "tool").collect();
    let results = told[0]["content"].as_array().unwrap();
    let ids: Vec<&Value> = results.iter().map(|one| &one["toolCallId"]).collect();
    assert_eq!(ids, ["a", "b", "c"], "both results are in the next request");
}

#[tokio::test(start_paused = true)]
async fn loop_063_calls_run_one_after_the_other_if_one_of_them_may_wait() {
    let slow = |ms: u64| {
        Tool::json("slow", move |_, _| async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            Ok(json!(null))
        })
    };
    let never = || echo().with_approval(Approval::When(Arc::new(|_, _| false)));
    let options = |strategy| RunOptions { tool_strategy: strategy, ..RunOptions::default() };
    let two = || Script::new().call("a", json!({})).call("b", json!({}));
    for (what, script, options, took) in [
        ("LOOP-064: one that is merely there slows nobody", two(), options(None), 300),
        ("with `available` it does", two(), options(Some(ToolStrategy::Available)), 400),
        ("one that is called does", two().call("gate", json!({})), options(None), 400),
        (
            "a run that asks for everything",
            two(),
            {
                let never = ApproveWhen(Arc::new(|_| false));
                RunOptions { approve_when: Some(never), ..RunOptions::default() }
            },
            400,
        ),
    ] {
        let world = world_with([script, done()], |agent| {
            agent.tool_as("a", slow(300)).tool_as("b", slow(100)).tool_as("gate", never())
        })
        .await;
        let began = tokio::time::Instant::now();
        let ran = world.run_with("go", options).await;
        assert_eq!(ran.output.text, "done", "{what}");
        assert_eq!(began.elapsed().as_millis(), took, "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn loop_101_a_long_run_parks_small_and_goes_on_with_its_budget() {
    let count = Count::default();
    let steps = (0..199).map(|n| Script::new().text("thinking ").call_as(&format!("p{n}"), "plain", "{}"));
    let world = world(steps.chain([call_remove("c1", "/a"), done()]), &count).await;
    let options = RunOptions { max_steps: Some(201), ..RunOptions::default() };
    let ran = world.run_with("go", options).await;
    assert_eq!(ran.output.finish_reason, FinishReason::Suspended);
    let parked = world.storage.parked_run(&ran.output.run_id).await.unwrap().unwrap();
    let mut outer = parked.outer.clone();
    let list = &mut outer["context"]["executionWorkflow"]["suspendPayload"]["__streamState"]["messageList"];
    assert!(list["messages"].as_array().unwrap().len() >= 2, "the conversation is in the outer row");
    list["messages"] = json!([]);
    let size = outer.to_string().len() + parked.inner.to_string().len();
    assert!(size < 64 * 1024, "{size} bytes besides the messages");
    assert!(!parked.inner.to_string().contains("thinking thinking"), "LOOP-101: the conversation is written once");
    let ran = resumed(&world.agent, &ran.output.run_id, bugle::run::Decision::approve(None)).await;
    assert_eq!(ran.output.finish_reason, FinishReason::Stop);
    assert_eq!(count.get(), 200);
    assert_eq!(ran.output.text.matches("thinking").count(), 199, "LOOP-164: all steps' texts");
    assert!(ran.output.text.ends_with("done"));
}

#[tokio::test(start_paused = true)]
async fn loop_161_totals_and_the_step_limit_count_the_steps_before_parking() {
    use bugle::chunk::Usage;
    let used = |script: Script, tokens: u64| {
        let usage = Usage { input_tokens: Some(tokens), total_tokens: Some(tokens), ..Usage::default() };
        script.finish_with(FinishReason::ToolCalls, usage)
    };
    let count = Count::default();
    let scripts = [
        used(Script::new().call("plain", json!({})), 10),
        used(call_remove("c1", "/a"), 20),
        used(Script::new().call("plain", json!({})), 30),
        done(),
    ];
    let world = world(scripts, &count).await;
    let ran = world.run_with("go", RunOptions { max_steps: Some(3), ..RunOptions::default() }).await;
    let ran = resumed(&world.agent, &ran.output.run_id, bugle::run::Decision::approve(None)).await;
    assert_eq!(ran.output.finish_reason, FinishReason::ToolCalls, "the third step is the last");
    assert_eq!(ran.output.usage.input_tokens, Some(60));
    assert_eq!(ran.all("step-finish")[0]["payload"]["output"]["usage"]["inputTokens"], 20, "the parked step's own");
    assert_eq!(world.model.requests().len(), 3);
}

#[tokio::test(start_paused = true)]
async fn loop_060_an_agent_without_memory_parks_with_its_conversation() {
    use bugle::model::ScriptedModel;
    let count = Count::default();
    let model = ScriptedModel::with_responses([call_remove("c1", "/a"), done()]);
    let agent =
        bugle::Agent::builder("bare").model(Arc::new(model.clone())).tool(remove(&count)).tool(ask()).build().unwrap();
    let world = crate::support::world_of(model, [agent]).await;
    let ran = crate::r#loop::run_on(&world.agent, "please remove it", None, RunOptions::default()).await;
    assert_eq!(ran.output.finish_reason, FinishReason::Suspended);
    let listed = world.agent.list_suspended_runs(Default::default()).await.unwrap();
    assert_eq!((listed.total, listed.runs[0].thread_id.clone()), (1, None));
    let decision = bugle::run::Decision::approve(Some("c1"));
    let ran = resumed(&world.agent, &ran.output.run_id, decision.clone()).await;
    assert_eq!((ran.output.text.as_str(), count.get()), ("done", 1));
    assert_eq!(world.asked(1), ["please remove it"], "LOOP-100: the conversation was kept");
    let again = world.agent.resume_stream(&ran.output.run_id, decision, RunOptions::default()).await;
    assert!(matches!(again, Err(bugle::Error::NoSuspendedRun { .. })), "LOOP-115: {again:?}");
}
