//! Steps and stopping (LOOP §3), prompts (LOOP §4), usage and ids (LOOP §11, §12).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use bugle::{
    RunOptions, Tool,
    chunk::{FinishReason, Usage},
    json::{Value, json},
    model::Script,
    processor::{
        Context, Hook, HookSet, Input, InputStep, LlmRequest, Outcome, OutputStep, Processor, SharedProcessor,
    },
    run::{Hooks, StopCondition},
    scorer::{Score, Scorer, ScorerError, ScorerInput, TaskCompletion, When},
    subagent::{IterationDecision, IterationHook},
};
use parking_lot::Mutex;

use super::{call, echo, prompt, roles, world_with};

fn usage(input: u64, output: u64) -> Usage {
    Usage {
        input_tokens: Some(input),
        output_tokens: Some(output),
        total_tokens: Some(input + output),
        ..Usage::default()
    }
}

#[tokio::test(start_paused = true)]
async fn loop_020_the_step_limit_is_five_or_what_the_call_says() {
    for (max_steps, requests) in [(None, 5), (Some(0), 5), (Some(1), 1), (Some(7), 7)] {
        let world = world_with((0..9).map(call), |agent| agent.tool(echo())).await;
        let ran = world.run_with("go", RunOptions { max_steps, ..RunOptions::default() }).await;
        assert_eq!((world.model.requested(), ran.output.steps.len()), (requests, requests), "{max_steps:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn loop_021_loop_028_a_stop_condition_ends_the_run_and_is_named() {
    let seen = Arc::new(AtomicUsize::new(0));
    let calls = seen.clone();
    let two = StopCondition(Arc::new(move |steps| {
        calls.fetch_add(1, Ordering::Relaxed);
        steps.len() >= 2
    }));
    let world = world_with((0..3).map(call), |agent| agent.tool(echo())).await;
    let options = RunOptions { max_steps: Some(3), stop_when: vec![two.clone()], ..RunOptions::default() };
    let ran = world.run_with("go", options).await;
    assert_eq!(world.model.requested(), 2);
    assert_eq!(
        ran.finish()["stepResult"],
        json!({"reason": "tool-calls", "rawReason": "tool_calls", "isContinued": false, "stopCause": "stop-when"})
    );
    assert_eq!(seen.load(Ordering::Relaxed), 2);
    // A run that would not go on asks no condition.
    let world = world_with([Script::new().text("done")], |agent| agent).await;
    let ran = world.run_with("go", RunOptions { stop_when: vec![two], ..RunOptions::default() }).await;
    assert_eq!(seen.load(Ordering::Relaxed), 2);
    assert_eq!(ran.finish()["stepResult"]["stopCause"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn loop_181_a_stop_condition_that_panics_is_not_met() {
    let world = world_with([call(1), Script::new().text("done")], |agent| agent.tool(echo())).await;
    let broken = StopCondition(Arc::new(|_| panic!("broken")));
    let ran = world.run_with("go", RunOptions { stop_when: vec![broken], ..RunOptions::default() }).await;
    assert_eq!(ran.output.text, "done");
}

#[tokio::test(start_paused = true)]
async fn loop_022_what_the_model_says_decides_whether_the_loop_goes_on() {
    use FinishReason::{ContentFilter, Length, Other, Stop, ToolCalls};
    for (reason, with_call, requests) in [
        (Stop, false, 1),
        (Stop, true, 2),
        (ToolCalls, true, 2),
        (Other, false, 2),
        (Length, false, 1),
        (Length, true, 1),
        (ContentFilter, true, 1),
    ] {
        let first = if with_call { call(1) } else { Script::new().text("half ") };
        let world = world_with([first.finish(reason), Script::new().text("done")], |agent| agent.tool(echo())).await;
        let ran = world.run("go").await;
        assert_eq!(world.model.requested(), requests, "{reason:?} {with_call}");
        assert_eq!(ran.all("tool-result").len(), usize::from(with_call), "{reason:?}: calls asked for are run");
        if requests == 1 {
            assert_eq!(ran.output.finish_reason, reason);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn loop_023_an_answer_of_nothing_for_no_reason_is_an_error() {
    let world = world_with([Script::new().finish_with(FinishReason::Other, Usage::default())], |agent| agent).await;
    let ran = world.run("go").await;
    let error = ran.output.error.clone().unwrap();
    assert_eq!(error.name, "AGENT_STREAM_ERROR");
    assert!(error.message.contains("without an answer and without a reason"), "{}", error.message);
    assert_eq!(ran.finish()["stepResult"]["reason"], "error");
}

#[tokio::test(start_paused = true)]
async fn loop_024_loop_028_the_limit_ends_a_run_without_an_error() {
    let world = world_with([call(1), call(2)], |agent| agent.tool(echo())).await;
    let ran = world.run_with("go", RunOptions { max_steps: Some(2), ..RunOptions::default() }).await;
    let last = ran.all("step-finish").pop().unwrap();
    let finish = ran.finish();
    for result in [&last["payload"]["stepResult"], &finish["stepResult"]] {
        assert_eq!((&result["reason"], &result["isContinued"]), (&json!("tool-calls"), &json!(false)));
        assert_eq!(result["stopCause"], "max-steps");
    }
    assert_eq!((ran.output.error, ran.output.text.as_str()), (None, ""));
    assert_eq!(ran.output.finish_reason, FinishReason::ToolCalls);
}

#[tokio::test(start_paused = true)]
async fn loop_026_loop_028_a_client_tool_ends_the_run_after_its_siblings() {
    let script = Script::new().call("where", json!({})).call("echo", json!({"n": 1}));
    let world = world_with([script], |agent| agent.tool(echo()).tool(Tool::client("where"))).await;
    let ran = world.run("go").await;
    assert_eq!(ran.all("tool-call").len(), 2);
    assert_eq!(ran.payload("tool-result")["toolName"], "echo");
    assert_eq!(
        ran.finish()["stepResult"],
        json!({"reason": "tool-calls", "rawReason": "tool_calls", "isContinued": false})
    );
    let states: Vec<Value> =
        world.answer_parts().await.iter().map(|part| part["toolInvocation"]["state"].clone()).collect();
    assert_eq!(states, ["call", "result"]);
}

#[tokio::test(start_paused = true)]
async fn loop_040_every_step_reads_the_whole_conversation() {
    let world = world_with([call(1), call(2), Script::new().text("done")], |agent| agent.tool(echo())).await;
    world.run("go").await;
    let requests = world.model.requests();
    assert_eq!(roles(&requests[0]), ["system", "user"]);
    assert_eq!(roles(&requests[1]), ["system", "user", "assistant", "tool"]);
    assert_eq!(roles(&requests[2]), ["system", "user", "assistant", "tool", "assistant", "tool"]);
    let (earlier, later) = (prompt(&requests[1]), prompt(&requests[2]));
    assert!(later.as_array().unwrap().starts_with(earlier.as_array().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn loop_160_loop_162_usage_of_steps_and_their_sum() {
    let world = world_with(
        [
            call(1).finish_with(FinishReason::ToolCalls, usage(10, 5)),
            Script::new().text("x").finish_with(FinishReason::Stop, usage(20, 6)),
        ],
        |agent| agent.tool(echo()),
    )
    .await;
    let ran = world.run("go").await;
    let steps: Vec<Value> =
        ran.all("step-finish").iter().map(|one| one["payload"]["output"]["usage"].clone()).collect();
    assert_eq!(steps[0], json!({"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}));
    assert_eq!(ran.finish()["output"]["usage"], json!({"inputTokens": 30, "outputTokens": 11, "totalTokens": 41}));
    assert_eq!(ran.output.usage, usage(30, 11));
    // A provider that says nothing: numbers all the same.
    let silent = Script::new().text("x").finish_with(FinishReason::Stop, Usage::default());
    let world = world_with([silent], |agent| agent).await;
    let ran = world.run("go").await;
    assert_eq!(ran.finish()["output"]["usage"], json!({"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}));
    assert_eq!(ran.payload("step-finish")["output"]["usage"], json!({}));
}

#[tokio::test(start_paused = true)]
async fn loop_162_the_usage_of_a_failed_run_is_the_sum_so_far() {
    let world = world_with(
        [call(1).finish_with(FinishReason::ToolCalls, usage(10, 5)), Script::new().fail_with(400, "no")],
        |agent| agent.tool(echo()),
    )
    .await;
    let ran = world.run("go").await;
    assert_eq!(ran.finish()["output"]["usage"], json!({"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}));
    assert_eq!(ran.all("step-finish").pop().unwrap()["payload"]["output"]["usage"], json!({}), "LOOP-140");
}

#[tokio::test(start_paused = true)]
async fn loop_163_loop_164_the_result_joins_the_texts_of_all_steps() {
    let with_call = |text: &str| Script::new().text(text).call("echo", json!({}));
    let world = world_with([with_call("A"), with_call("B"), Script::new().text("C")], |agent| agent.tool(echo())).await;
    let output = world.run("go").await.output;
    assert_eq!((output.text.as_str(), output.steps.last().unwrap().text.as_str()), ("ABC", "C"));
    assert_eq!(output.steps[0].tool_calls.len() + output.steps[0].tool_results.len(), 2);
    assert_eq!(output.response_messages.len(), 1);
    assert_eq!(output.messages.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn loop_170_loop_172_one_response_id_for_all_steps() {
    let world = world_with([call(1), Script::new().text("done")], |agent| agent.tool(echo())).await;
    let ran = world.run("go").await;
    let id = ran.payload("start")["messageId"].clone();
    assert!(ran.all("step-start").iter().all(|one| one["payload"]["messageId"] == id));
    assert_eq!(ran.finish()["messageId"], id);
    let stored = world.stored().await;
    assert_eq!(stored.len(), 2);
    assert_eq!(json!(stored[1].id), id);
    let kinds: Vec<Value> = world.answer_parts().await.iter().map(|part| part["type"].clone()).collect();
    assert_eq!(kinds, ["tool-invocation", "step-start", "text"]);
}

#[tokio::test(start_paused = true)]
async fn loop_171_input_between_steps_seals_the_answer_and_changes_the_id() {
    let gate = bugle::model::Gate::new();
    let world = world_with([call(1).gate(&gate), Script::new().text("done")], |agent| agent.tool(echo())).await;
    let mut watcher = world.watch().await;
    let outcome = world.send("go").await;
    gate.reached().await;
    world.send("also").await;
    gate.open();
    watcher.until_end_of(&outcome.run_id.unwrap()).await;
    let stored = world.stored().await;
    let roles: Vec<String> = stored.iter().map(|one| format!("{:?}", one.role)).collect();
    assert_eq!(roles, ["Signal", "Assistant", "Signal", "Assistant"]);
    assert_eq!(stored[1].content.meta("mastra"), Some(&json!({"responseBoundary": true})));
    assert_ne!(stored[1].id, stored[3].id);
    assert!(stored.windows(2).all(|pair| pair[0].created_at < pair[1].created_at), "MEM-055");
}

#[tokio::test(start_paused = true)]
async fn loop_173_text_ids_that_are_bare_numbers_become_ids_of_ours() {
    use bugle::model::ModelEvent::{TextDelta, TextEnd, TextStart};
    let block = |script: Script, text: &str| {
        script
            .emit(TextStart { id: "0".into(), provider_metadata: None })
            .emit(TextDelta { id: "0".into(), text: text.into() })
            .emit(TextEnd { id: "0".into(), provider_metadata: None })
    };
    let world = world_with([block(block(Script::new(), "a"), "b")], |agent| agent).await;
    let ran = world.run("go").await;
    let ids = |kind: &str| -> Vec<Value> { ran.all(kind).iter().map(|one| one["payload"]["id"].clone()).collect() };
    assert_eq!((ids("text-start"), ids("text-start")), (ids("text-delta"), ids("text-end")));
    let ids = ids("text-start");
    assert!(ids[0] != ids[1] && ids.iter().all(|id| id.as_str().unwrap().len() > 8), "{ids:?}");
}

/// Writes down what happens, in order.
#[derive(Clone, Default)]
struct Order(Arc<Mutex<Vec<&'static str>>>);

impl Order {
    fn note(&self, what: &'static str) {
        self.0.lock().push(what);
    }
}

#[async_trait]
impl Processor for Order {
    fn id(&self) -> &'static str {
        "order"
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::Input, Hook::InputStep, Hook::LlmRequest, Hook::OutputStep])
    }
    async fn process_input(&self, _: &mut Context<'_>, input: &mut Input) -> Outcome {
        if input.mid_run {
            self.note("signals");
        }
        Ok(())
    }
    async fn process_input_step(&self, _: &mut Context<'_>, _: &mut InputStep) -> Outcome {
        self.note("input step");
        Ok(())
    }
    async fn process_llm_request(&self, _: &mut Context<'_>, _: &mut LlmRequest) -> Outcome {
        self.note("request");
        Ok(())
    }
    async fn process_output_step(&self, _: &mut Context<'_>, _: &mut OutputStep) -> Outcome {
        self.note("output step");
        Ok(())
    }
}

#[async_trait]
impl Scorer for Order {
    fn id(&self) -> &'static str {
        "order"
    }
    async fn score(&self, _: &ScorerInput) -> Result<Score, ScorerError> {
        self.note("scorers");
        Ok(Score::fail("not yet"))
    }
}

#[tokio::test(start_paused = true)]
async fn loop_025_what_happens_in_an_iteration_has_an_order() {
    let order = Order::default();
    let gate = bugle::model::Gate::new();
    let (in_tool, in_stop, in_hook, in_finish) = (order.clone(), order.clone(), order.clone(), order.clone());
    let tool = Tool::json("echo", move |_, _| {
        in_tool.note("tools");
        async { Ok(json!(1)) }
    });
    let stop = StopCondition(Arc::new(move |_| {
        in_stop.note("stop conditions");
        false
    }));
    let hook = IterationHook::new(move |_| {
        in_hook.note("iteration hook");
        async { Ok(IterationDecision::default()) }
    });
    let hooks = Hooks { on_step_finish: Some(Arc::new(move |_| in_finish.note("step finish"))), ..Hooks::default() };
    let completion = TaskCompletion::all(vec![Arc::new(order.clone())]).when(When::Iteration);
    let processor: SharedProcessor = Arc::new(order.clone());
    let world = world_with([call(1), call(2).gate(&gate), Script::new().text("never")], |agent| {
        let agent = agent.tool(tool).is_task_complete(completion);
        agent.shared_input_processor(processor.clone()).shared_output_processor(processor)
    })
    .await;
    let options = RunOptions {
        max_steps: Some(2),
        stop_when: vec![stop],
        on_iteration_complete: Some(hook),
        hooks,
        ..RunOptions::default()
    };
    let stream = world.agent.stream(super::input("go"), Some(&world.thread), options).await.unwrap();
    gate.reached().await;
    world.send("also").await;
    gate.open();
    stream.output().await.unwrap();
    let first = [
        "input step",
        "request",
        "output step",
        "tools",
        "scorers",
        "stop conditions",
        "iteration hook",
        "step finish",
    ];
    let second = ["input step", "request", "output step", "tools", "signals", "iteration hook", "step finish"];
    assert_eq!(*order.0.lock(), [&first[..], &second].concat());
}
