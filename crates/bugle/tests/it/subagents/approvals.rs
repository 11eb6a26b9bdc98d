//! Approvals that travel up: any depth, side by side, over restarts (SUB §11).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bugle::{
    Agent, Error, RunId, RunOptions, Tool,
    agent::AgentBuilder,
    chunk::{Chunk, FinishReason, Payload},
    json::{Value, json},
    message::{Part, ToolState},
    model::{Script, ScriptedModel},
    run::Decision,
    runtime::SuspendedQuery,
    storage::{MemoryStorage, ParkedQuery, SharedStorage},
    subagent::{CompleteDecision, Delegation, StartDecision},
    tool::{Approval, ToolContext, ToolError},
};
use parking_lot::Mutex;

use super::{Pair, calls, delegating, explorer, input, kinds, lead, nested, pair_on, scripted, to_explorer, told};

#[derive(Clone, Default)]
struct Count(Arc<AtomicUsize>);

impl Count {
    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn delete(count: &Count) -> Tool {
    let count = count.clone();
    Tool::json("delete-file", move |input: Value, _: ToolContext| {
        count.0.fetch_add(1, Ordering::SeqCst);
        async move { Ok::<Value, ToolError>(json!({ "deleted": input["path"] })) }
    })
    .with_approval(Approval::Always)
}

fn delete_call(id: &str, path: &str) -> Script {
    Script::new().call_as(id, "delete-file", &json!({ "path": path }).to_string())
}

fn ask() -> Tool {
    let schema = json!({"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]});
    Tool::json("ask", |input: Value, context: ToolContext| async move {
        match context.resume_data {
            Some(data) => Ok(json!({ "answer": data["answer"] })),
            None => Err(ToolError::Suspend(json!({ "question": input["q"] }))),
        }
    })
    .with_resume_schema(schema)
}

struct Case {
    pair: Pair,
    count: Count,
}

impl Case {
    fn build(parent: &ScriptedModel, child: &ScriptedModel, count: &Count, delegation: Delegation) -> AgentBuilder {
        let explorer = explorer(child).tool(delete(count)).tool(ask()).build().unwrap();
        lead(parent).default_options(delegating(delegation)).agent("explorer", explorer)
    }

    async fn new(parent: Vec<Script>, child: Vec<Script>, delegation: Delegation) -> Self {
        Self::on(parent, child, delegation, Count::default(), Arc::new(MemoryStorage::new())).await
    }

    async fn on(
        parent: Vec<Script>,
        child: Vec<Script>,
        delegation: Delegation,
        count: Count,
        storage: SharedStorage,
    ) -> Self {
        let (parent, child) = (scripted(parent), scripted(child));
        let lead = Self::build(&parent, &child, &count, delegation);
        Self { pair: pair_on(lead, parent, child, storage).await, count }
    }

    /// Another process on the same store.
    async fn again(&self, parent: Vec<Script>, child: Vec<Script>, delegation: Delegation) -> Self {
        self.pair.world.bugle.shutdown(std::time::Duration::ZERO).await;
        Self::on(parent, child, delegation, self.count.clone(), self.pair.world.storage.clone()).await
    }

    async fn resume(&self, run_id: &RunId, decision: Decision) -> (Vec<Chunk>, bugle::RunOutput) {
        self.resume_with(run_id, decision, RunOptions::default()).await
    }

    async fn resume_with(
        &self,
        run_id: &RunId,
        decision: Decision,
        options: RunOptions,
    ) -> (Vec<Chunk>, bugle::RunOutput) {
        let mut stream = self.pair.world.agent.resume_stream(run_id, decision, options).await.unwrap();
        let mut chunks = Vec::new();
        while let Some(chunk) = stream.next().await {
            chunks.push(chunk.chunk().clone());
        }
        (chunks, stream.output().await.unwrap())
    }

    async fn listed(&self) -> Vec<Value> {
        let runs = self.pair.world.agent.list_suspended_runs(SuspendedQuery::default()).await.unwrap().runs;
        runs.iter().map(|run| serde_json::to_value(run).unwrap()).collect()
    }
}

fn find<'a>(chunks: &'a [Chunk], kind: &str) -> Vec<&'a Chunk> {
    chunks.iter().filter(|chunk| chunk.kind() == kind).collect()
}

#[tokio::test(start_paused = true)]
async fn sub_120_sub_121_sub_123_sub_124_an_approval_below_is_asked_for_on_top() {
    let case = Case::new(vec![to_explorer("clean up")], vec![delete_call("d1", "/x")], Delegation::default()).await;
    let (chunks, output) = case.pair.stream("hi").await;
    assert_eq!((output.finish_reason, case.count.get()), (FinishReason::Suspended, 0));
    let inner = nested(&chunks, "c1");
    assert!(kinds(&inner).contains(&"tool-call-approval"), "{:?}", kinds(&inner));
    let asked = find(&chunks, "tool-call-approval");
    let Some(Payload::ToolCallApproval { tool_call_id, tool_name, args, resume_schema }) = asked[0].payload() else {
        panic!("{asked:?}")
    };
    assert_eq!((tool_call_id.as_str(), tool_name.as_str(), args), ("c1", "delete-file", &json!({"path": "/x"})));
    assert!(resume_schema.contains("approved"));
    assert_eq!(chunks.last().unwrap().kind(), "tool-call-approval");
    let listed = case.listed().await;
    assert_eq!(listed.len(), 1, "the top run alone");
    assert_eq!(listed[0]["runId"], json!(output.run_id));
    let call = json!({"toolCallId": "c1", "toolName": "delete-file", "args": {"path": "/x"}, "requiresApproval": true});
    assert_eq!(listed[0]["toolCalls"], json!([call]));
    let stored = case.pair.world.stored().await;
    let pending = stored[1].content.meta("pendingToolApprovals").unwrap()["c1"].clone();
    assert_eq!((&pending["toolName"], &pending["args"]), (&json!("delete-file"), &json!({"path": "/x"})));
    assert_eq!(pending["parentToolName"], "agent-explorer");
    assert!(pending["delegatedRunId"].is_string());
}

#[tokio::test(start_paused = true)]
async fn ruling_7_sub_125_either_id_approves_and_the_tool_runs_once() {
    for id in [Some("c1"), Some("d1"), None] {
        let case = Case::new(
            vec![to_explorer("clean up"), Script::from("ok")],
            vec![delete_call("d1", "/x"), Script::from("removed")],
            Delegation::default(),
        )
        .await;
        let run_id = case.pair.generate("hi").await.run_id;
        let (chunks, output) = case.resume(&run_id, Decision::approve(id)).await;
        assert_eq!((output.text.as_str(), case.count.get()), ("ok", 1));
        assert_eq!(case.pair.told(1), ["removed"]);
        let acknowledged = find(&chunks, "data-tool-call-resumed");
        assert_eq!(acknowledged.len(), 1, "SUB-133");
        assert_eq!(case.pair.parent.requested(), 2);
        let call = case.pair.calls().await.remove(0);
        assert_eq!(call.state, ToolState::Result);
        let result = call.result.unwrap();
        assert_eq!(result["subAgentToolResults"][0]["result"], json!({"deleted": "/x"}));
        // SUB-043, SUB-044, SUB-050: the prompt once, each call once.
        let sub = case.pair.sub_messages(&result).await;
        let prompts = sub.iter().filter(|message| message.joined_text() == "clean up").count();
        assert_eq!((prompts, calls(&sub).len()), (1, 1));
        assert!(case.listed().await.is_empty());
        let stored = case.pair.world.stored().await;
        assert!(stored.iter().all(|message| message.content.meta("pendingToolApprovals").is_none()));
        let late = case.pair.world.agent.resume_stream(&run_id, Decision::approve(id), RunOptions::default()).await;
        assert!(matches!(late, Err(Error::NoSuspendedRun { .. })), "SUB-128");
    }
}

#[tokio::test(start_paused = true)]
async fn sub_125_a_declined_tool_does_not_run_and_the_sub_run_goes_on() {
    let case = Case::new(
        vec![to_explorer("clean up"), Script::from("ok")],
        vec![delete_call("d1", "/x"), Script::from("kept it")],
        Delegation::default(),
    )
    .await;
    let run_id = case.pair.generate("hi").await.run_id;
    let (chunks, output) = case.resume(&run_id, Decision::decline(Some("c1"), Some("too risky"))).await;
    assert_eq!((output.text.as_str(), case.count.get()), ("ok", 0));
    assert!(kinds(&nested(&chunks, "c1")).contains(&"tool-output-denied"));
    assert_eq!(told(&case.pair.child.requests()[1]), ["too risky"]);
    assert_eq!(case.pair.told(1), ["kept it"]);
}

#[tokio::test(start_paused = true)]
async fn sub_122_sub_126_a_suspension_below_is_answered_by_data_that_is_checked() {
    let question = Script::new().call_as("q1", "ask", r#"{"q":"which?"}"#);
    let case = Case::new(
        vec![to_explorer("go"), Script::from("ok")],
        vec![question, Script::from("blue it is")],
        Delegation::default(),
    )
    .await;
    let (chunks, output) = case.pair.stream("hi").await;
    assert_eq!(output.finish_reason, FinishReason::Suspended);
    let asked = serde_json::to_value(chunks.last().unwrap()).unwrap();
    assert_eq!(
        (&asked["type"], &asked["payload"]["toolName"]),
        (&json!("tool-call-suspended"), &json!("agent-explorer"))
    );
    assert_eq!((&asked["payload"]["toolCallId"], &asked["payload"]["args"]["prompt"]), (&json!("c1"), &json!("go")));
    assert_eq!(asked["payload"]["suspendPayload"], json!({"question": "which?"}));
    assert!(asked["payload"]["resumeSchema"].as_str().unwrap().contains("answer"));
    let (_, output) = case.resume(&output.run_id, Decision::resume(Some("c1"), json!({"answer": "blue"}))).await;
    assert_eq!(output.text, "ok");
    assert_eq!(told(&case.pair.child.requests()[1]), [r#"{"answer":"blue"}"#]);
}

#[tokio::test(start_paused = true)]
async fn sub_132_generate_reports_the_innermost_tool() {
    let case = Case::new(vec![to_explorer("clean up")], vec![delete_call("d1", "/x")], Delegation::default()).await;
    let output = case.pair.generate("hi").await;
    assert_eq!(output.finish_reason, FinishReason::Suspended);
    let payload = output.suspend_payload.unwrap();
    assert_eq!((&payload["toolCallId"], &payload["toolName"]), (&json!("c1"), &json!("delete-file")));
    assert_eq!(payload["args"], json!({"path": "/x"}));
}

#[tokio::test(start_paused = true)]
async fn sub_127_a_new_process_answers_and_sub_134_its_hooks_apply() {
    let started = Arc::new(Mutex::new(Vec::new()));
    let kept = started.clone();
    let hooked = Delegation::default()
        .on_delegation_start(move |start| {
            kept.lock().push((start.is_resume, start.prompt, start.iteration));
            async { Ok(StartDecision::proceed()) }
        })
        .on_delegation_complete(|_| async {
            Ok(CompleteDecision { result_text: Some("by the new hook".into()), feedback: None })
        });
    let first = Case::new(vec![to_explorer("clean up")], vec![delete_call("d1", "/x")], Delegation::default()).await;
    let run_id = first.pair.generate("hi").await.run_id;
    let case = first.again(vec![Script::from("ok")], vec![Script::from("removed")], hooked).await;
    let (_, output) = case.resume(&run_id, Decision::approve(Some("c1"))).await;
    assert_eq!((output.text.as_str(), case.count.get()), ("ok", 1));
    assert_eq!(*started.lock(), [(true, "clean up".to_owned(), 1)]);
    assert_eq!(told(&case.pair.parent.requests()[0]), ["by the new hook"]);
    let seen = super::spoken(&case.pair.child.requests()[0]);
    assert_eq!(seen[..3], ["system: You explore.", "user: hi", "user: clean up"], "the context it had");
}

#[tokio::test(start_paused = true)]
async fn sub_080_the_complete_hook_is_called_once_after_the_resume_and_not_on_suspension() {
    let done = Arc::new(Mutex::new(Vec::new()));
    let kept = done.clone();
    let delegation = Delegation::default().on_delegation_complete(move |complete| {
        kept.lock().push((complete.tool_call_id, complete.success));
        async { Ok(CompleteDecision::default()) }
    });
    let case = Case::new(
        vec![to_explorer("clean up"), Script::new().call_as("c2", "agent-explorer", r#"{"prompt":"b"}"#), "ok".into()],
        vec![delete_call("d1", "/x"), Script::from("removed"), Script::new().fail_with(400, "boom")],
        delegation,
    )
    .await;
    let run_id = case.pair.generate("hi").await.run_id;
    assert_eq!(*done.lock(), []);
    let (_, output) = case.resume(&run_id, Decision::approve(Some("c1"))).await;
    assert_eq!(output.text, "ok");
    assert_eq!(*done.lock(), [("c1".to_owned(), true), ("c2".to_owned(), false)]);
}

#[tokio::test(start_paused = true)]
async fn sub_161_approvals_inside_a_subagent_do_not_make_the_parents_turn_sequential() {
    use bugle::run::ToolStrategy;
    let both = || {
        Script::new().call_as("c1", "agent-explorer", r#"{"prompt":"a"}"#).call_as(
            "c2",
            "agent-explorer",
            r#"{"prompt":"b"}"#,
        )
    };
    let slow = || Script::new().wait(std::time::Duration::from_secs(5)).text("found");
    let never = || Tool::json("own", |_, _: ToolContext| async { Ok::<Value, ToolError>(json!(1)) });
    let options = |strategy| RunOptions { tool_strategy: Some(strategy), ..RunOptions::default() };
    let all = RunOptions { require_tool_approval: Some(true), ..options(ToolStrategy::Called) };
    for (what, own, options, seconds) in [
        ("the subagent's tools ask", Approval::None, options(ToolStrategy::Available), 5),
        ("a tool of the parent asks", Approval::Always, options(ToolStrategy::Available), 10),
        ("it is not called", Approval::Always, options(ToolStrategy::Called), 5),
        ("the run asks for everything", Approval::None, all, 10),
    ] {
        let (parent, child) = (scripted(vec![both(), Script::from("ok")]), scripted(vec![slow(), slow()]));
        let lead = Case::build(&parent, &child, &Count::default(), Delegation::default());
        let pair = pair_on(lead.tool(never().with_approval(own)), parent, child, Arc::new(MemoryStorage::new())).await;
        let began = tokio::time::Instant::now();
        let mut output = pair.generate_with("hi", options).await;
        while output.finish_reason == FinishReason::Suspended {
            let call = output.suspend_payload.as_ref().unwrap()["toolCallId"].as_str().unwrap().to_owned();
            let decision = Decision::approve(Some(&call));
            let run = pair.world.agent.resume_generate(&output.run_id, decision, RunOptions::default());
            output = run.await.unwrap();
        }
        assert_eq!((output.text.as_str(), began.elapsed().as_secs()), ("ok", seconds), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn sub_077_a_rejection_on_resume_ends_the_delegation() {
    let first = Case::new(vec![to_explorer("clean up")], vec![delete_call("d1", "/x")], Delegation::default()).await;
    let run_id = first.pair.generate("hi").await.run_id;
    let rejects = Delegation::default().on_delegation_start(|_| async { Ok(StartDecision::reject("not any more")) });
    let case = first.again(vec![Script::from("ok")], vec![], rejects).await;
    let (_, output) = case.resume(&run_id, Decision::approve(Some("c1"))).await;
    assert_eq!((output.text.as_str(), case.count.get()), ("ok", 0));
    assert_eq!(told(&case.pair.parent.requests()[0]), ["[Delegation Rejected] not any more"]);
    assert!(case.listed().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn ruling_16_sub_073_the_iteration_goes_on_after_a_resume() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = seen.clone();
    let delegation = Delegation::default().on_delegation_start(move |start| {
        kept.lock().push(start.iteration);
        async { Ok(StartDecision::proceed()) }
    });
    let case = Case::new(
        vec![to_explorer("a"), Script::new().call_as("c2", "agent-explorer", r#"{"prompt":"b"}"#), Script::from("ok")],
        vec![delete_call("d1", "/x"), Script::from("1"), Script::from("2")],
        delegation,
    )
    .await;
    let run_id = case.pair.generate("hi").await.run_id;
    case.resume(&run_id, Decision::approve(None)).await;
    assert_eq!(*seen.lock(), [1, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn r35a_sub_129_parallel_delegations_wait_side_by_side_and_are_answered_in_any_order() {
    for reversed in [false, true] {
        let (child, count) = (ScriptedModel::recording(), Count::default());
        let script = |path: &str| format!("[[call delete-file {{\"path\":\"{path}\"}}]] [[say removed {path}]]");
        let calls = Script::new()
            .call_as("c1", "agent-explorer", &json!({"prompt": script("/1")}).to_string())
            .call_as("c2", "agent-explorer", &json!({"prompt": script("/2")}).to_string());
        let parent = scripted(vec![calls, Script::from("ok")]);
        let lead = Case::build(&parent, &child, &count, Delegation::default());
        let pair = pair_on(lead, parent, child, Arc::new(MemoryStorage::new())).await;
        let case = Case { pair, count };
        let run_id = case.pair.generate("hi").await.run_id;
        assert_eq!(case.listed().await[0]["toolCalls"].as_array().unwrap().len(), 2);
        let (one, other) = if reversed { ("c2", "c1") } else { ("c1", "c2") };
        let (_, output) = case.resume(&run_id, Decision::approve(Some(one))).await;
        assert_eq!((output.finish_reason, case.count.get()), (FinishReason::Suspended, 1));
        assert_eq!(case.pair.parent.requested(), 1, "the parent's model waits for all");
        assert_eq!(case.listed().await[0]["toolCalls"][0]["toolCallId"], other);
        let (_, output) = case.resume(&run_id, Decision::approve(Some(other))).await;
        assert_eq!((output.text.as_str(), case.count.get()), ("ok", 2));
        assert_eq!(case.pair.told(1), ["removed /1", "removed /2"]);
    }
}

#[tokio::test(start_paused = true)]
async fn sub_130_several_calls_below_surface_one_after_another() {
    let two =
        Script::new().call_as("d1", "delete-file", r#"{"path":"/1"}"#).call_as("d2", "delete-file", r#"{"path":"/2"}"#);
    let case =
        Case::new(vec![to_explorer("go"), Script::from("ok")], vec![two, Script::from("both")], Delegation::default())
            .await;
    let run_id = case.pair.generate("hi").await.run_id;
    let shown = async || {
        let listed = case.listed().await;
        (listed[0]["toolCalls"].as_array().unwrap().len(), listed[0]["toolCalls"][0]["args"]["path"].clone())
    };
    assert_eq!(shown().await, (1, json!("/1")));
    let (_, output) = case.resume(&run_id, Decision::approve(Some("c1"))).await;
    assert_eq!((output.finish_reason, case.count.get()), (FinishReason::Suspended, 1));
    assert_eq!(shown().await, (1, json!("/2")));
    let (_, output) = case.resume(&run_id, Decision::approve(Some("d2"))).await;
    assert_eq!((output.text.as_str(), case.count.get()), ("ok", 2));
    assert_eq!(case.pair.told(1), ["both"]);
    let result = case.pair.calls().await[0].result.clone().unwrap();
    assert_eq!(result["subAgentToolResults"].as_array().unwrap().len(), 2);
    assert_eq!(calls(&case.pair.sub_messages(&result).await).len(), 2, "SUB-044");
}

/// Three levels: `p` → `middle` → `deep`, which asks before it deletes.
async fn three_levels(
    scripts: [Vec<Script>; 3],
    count: &Count,
    storage: SharedStorage,
) -> (crate::support::World, [ScriptedModel; 3]) {
    let models = scripts.map(scripted);
    let deepest = Agent::builder("deepest").model(Arc::new(models[2].clone())).tool(delete(count)).build().unwrap();
    let middle = Agent::builder("middle").model(Arc::new(models[1].clone())).agent("deep", deepest).build().unwrap();
    let top = lead(&models[0]).agent("middle", middle).build().unwrap();
    (crate::support::world_on(models[0].clone(), [top], storage).await, models)
}

#[tokio::test(start_paused = true)]
async fn sub_120_sub_164_at_depth_three_with_a_restart_by_any_id() {
    for id in ["c1", "m1", "d1"] {
        let count = Count::default();
        let scripts = [
            vec![Script::new().call_as("c1", "agent-middle", r#"{"prompt":"a"}"#)],
            vec![Script::new().call_as("m1", "agent-deep", r#"{"prompt":"b"}"#)],
            vec![delete_call("d1", "/x")],
        ];
        let (first, _) = three_levels(scripts, &count, Arc::new(MemoryStorage::new())).await;
        let mut stream = first.agent.stream(input("hi"), Some(&first.thread), RunOptions::default()).await.unwrap();
        let mut chunks = Vec::new();
        while let Some(chunk) = stream.next().await {
            chunks.push(chunk.chunk().clone());
        }
        let asked = serde_json::to_value(chunks.last().unwrap()).unwrap();
        assert_eq!(
            (&asked["type"], &asked["payload"]["toolName"]),
            (&json!("tool-call-approval"), &json!("delete-file"))
        );
        assert_eq!(asked["payload"]["toolCallId"], "c1");
        let run_id = stream.run_id.clone();
        first.bugle.shutdown(std::time::Duration::ZERO).await;

        let scripts = [vec![Script::from("top")], vec![Script::from("middle")], vec![Script::from("deep")]];
        let (world, models) = three_levels(scripts, &count, first.storage.clone()).await;
        let wrong = world.agent.resume_generate(&run_id, Decision::approve(Some("zz")), RunOptions::default()).await;
        assert!(matches!(wrong, Err(Error::NotSuspended { .. })), "SUB-128");
        let output =
            world.agent.resume_generate(&run_id, Decision::approve(Some(id)), RunOptions::default()).await.unwrap();
        assert_eq!((output.text.as_str(), count.get()), ("top", 1));
        assert_eq!(told(&models[0].requests()[0]), ["middle"]);
        assert_eq!(told(&models[1].requests()[0]), ["deep"]);
        assert_eq!(told(&models[2].requests()[0]), [r#"{"deleted":"/x"}"#]);
    }
}

#[tokio::test(start_paused = true)]
async fn sub_125_a_decline_at_depth_three() {
    let count = Count::default();
    let scripts = [
        vec![Script::new().call_as("c1", "agent-middle", r#"{"prompt":"a"}"#), Script::from("top")],
        vec![Script::new().call_as("m1", "agent-deep", r#"{"prompt":"b"}"#), Script::from("middle")],
        vec![delete_call("d1", "/x"), Script::from("kept")],
    ];
    let (world, models) = three_levels(scripts, &count, Arc::new(MemoryStorage::new())).await;
    let parked = world.agent.generate(input("hi"), Some(&world.thread), RunOptions::default()).await.unwrap();
    let no = Decision::decline(Some("c1"), None);
    let output = world.agent.resume_generate(&parked.run_id, no, RunOptions::default()).await.unwrap();
    assert_eq!((output.text.as_str(), count.get()), ("top", 0));
    assert_eq!(told(&models[2].requests()[1]), ["Tool call was not approved by the user"]);
    assert_eq!(told(&models[1].requests()[1]), ["kept"]);
}

#[tokio::test(start_paused = true)]
async fn sub_135_an_abort_while_waiting_discards_all_levels_and_leaves_a_well_formed_thread() {
    let case = Case::new(
        vec![to_explorer("clean up"), Script::from("next")],
        vec![delete_call("d1", "/x")],
        Delegation::default(),
    )
    .await;
    let run_id = case.pair.generate("hi").await.run_id;
    case.pair.world.agent.abort_thread(&case.pair.world.thread, Default::default()).await.unwrap();
    let gone = case.pair.world.agent.resume_stream(&run_id, Decision::approve(None), RunOptions::default()).await;
    assert!(gone.is_err());
    assert!(case.pair.world.storage.list_parked(ParkedQuery::default()).await.unwrap().items.is_empty());
    assert_eq!(case.count.get(), 0);
    let stored = case.pair.world.stored().await;
    let parts = stored.iter().flat_map(|message| &message.content.parts);
    let open = parts
        .filter(|part| matches!(part, Part::ToolInvocation(call) if call.tool_invocation.state == ToolState::Call));
    assert_eq!(open.count(), 0, "{stored:?}");
    assert_eq!(case.pair.generate("go on").await.text, "next");
}

#[tokio::test(start_paused = true)]
async fn sub_128_of_two_racing_answers_one_wins() {
    let case = Case::new(
        vec![to_explorer("clean up"), Script::from("ok")],
        vec![delete_call("d1", "/x"), Script::from("removed")],
        Delegation::default(),
    )
    .await;
    let run_id = case.pair.generate("hi").await.run_id;
    let agent = &case.pair.world.agent;
    let answer = |decision| agent.resume_generate(&run_id, decision, RunOptions::default());
    let (one, other) = tokio::join!(answer(Decision::approve(Some("c1"))), answer(Decision::approve(Some("d1"))));
    assert!(one.is_ok() != other.is_ok(), "{one:?} {other:?}");
    assert_eq!(case.count.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn sub_081_sub_082_what_a_hook_said_survives_a_siblings_wait_and_a_restart() {
    let delegation = || {
        Delegation::default().on_delegation_complete(|done| async move {
            if done.tool_call_id != "c1" {
                return Ok(CompleteDecision::default());
            }
            done.bail();
            Ok(CompleteDecision { feedback: Some("next time".into()), result_text: None })
        })
    };
    let script = "[[call delete-file {\"path\":\"/2\"}]] [[say removed]]";
    let calls = Script::new().call_as("c1", "agent-explorer", r#"{"prompt":"[[say fast]]"}"#).call_as(
        "c2",
        "agent-explorer",
        &json!({ "prompt": script }).to_string(),
    );
    let (child, count) = (ScriptedModel::recording(), Count::default());
    let parent = scripted(vec![calls]);
    let lead = Case::build(&parent, &child, &count, delegation());
    let pair = pair_on(lead, parent, child, Arc::new(MemoryStorage::new())).await;
    let first = Case { pair, count };
    let run_id = first.pair.generate("hi").await.run_id;
    assert!(!first.pair.world.texts().await.contains(&"next time".to_owned()));
    first.pair.world.bugle.shutdown(std::time::Duration::ZERO).await;
    let (parent, child) = (scripted(vec![]), ScriptedModel::recording());
    let lead = Case::build(&parent, &child, &first.count, delegation());
    let pair = pair_on(lead, parent, child, first.pair.world.storage.clone()).await;
    let case = Case { pair, count: first.count.clone() };
    let (_, output) = case.resume(&run_id, Decision::approve(Some("c2"))).await;
    assert_eq!((output.finish_reason, case.count.get()), (FinishReason::ToolCalls, 1));
    assert_eq!(case.pair.parent.requested(), 0, "the loop had been ended");
    assert_eq!(case.pair.world.texts().await.last().unwrap(), "next time");
}

// Reports.

fn two_deletes() -> Script {
    Script::new().call_as("d1", "delete-file", r#"{"path":"/a"}"#).call_as("d2", "delete-file", r#"{"path":"/b"}"#)
}

#[tokio::test(start_paused = true)]
async fn r35b_an_id_that_does_not_wait_is_refused_and_both_stay() {
    let (model, count) = (scripted(vec![two_deletes(), Script::from("ok")]), Count::default());
    let agent = crate::support::builder("p", &model).tool(delete(&count)).build().unwrap();
    let world = crate::support::world_of(model, [agent]).await;
    let run_id = world.agent.generate(input("hi"), Some(&world.thread), RunOptions::default()).await.unwrap().run_id;
    let before = world.agent.list_suspended_runs(SuspendedQuery::default()).await.unwrap().runs[0].tool_calls.clone();
    let refused = world.agent.resume_generate(&run_id, Decision::approve(Some("d9")), RunOptions::default()).await;
    assert!(matches!(refused, Err(Error::NotSuspended { .. })));
    let after = world.agent.list_suspended_runs(SuspendedQuery::default()).await.unwrap().runs[0].tool_calls.clone();
    assert_eq!((before, count.get()), (after, 0));
}
