//! Tripwires, failures and retries (PROC §5, §6).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bugle::{
    RunOptions, Tool,
    chunk::{Chunk, FinishReason},
    json::{Value, json},
    model::Script,
    processor::{Chunks, Context, Hook, HookSet, Input, OnError, Outcome, Processor, ProcessorError},
};

use super::{ALL, Act, Spy};
use crate::r#loop::{Ran, call, world_with};

/// A tool that counts how often it ran.
fn counted() -> (Tool, Arc<AtomicUsize>) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counter = runs.clone();
    let tool = Tool::json("echo", move |input: Value, _| {
        counter.fetch_add(1, Ordering::SeqCst);
        async move { Ok(input) }
    });
    (tool, runs)
}

fn ends(ran: &Ran) -> Vec<&str> {
    let kinds = ran.kinds();
    kinds[kinds.len() - 2..].to_vec()
}

#[tokio::test(start_paused = true)]
async fn proc_006_051_057_a_tripwire_means_the_same_in_every_hook() {
    // Two steps: a call, an answer. The hook trips in its last call of the run.
    for (hook, call_number) in [
        (Hook::Input, 0),
        (Hook::InputStep, 1),
        (Hook::State, 1),
        (Hook::LlmRequest, 1),
        (Hook::OutputStream, 10), // in the second step
        (Hook::LlmResponse, 1),
        (Hook::OutputStep, 1),
        (Hook::ToolResult, 0),
        (Hook::OutputResult, 0),
    ] {
        let spy = Spy::new("guard", &ALL).acting(hook, call_number, Act::Trip);
        let shared: bugle::processor::SharedProcessor = Arc::new(spy.clone());
        let (tool, _) = counted();
        let world = world_with([call(1), "bad answer".into(), "next".into()], |agent| {
            agent.tool(tool).shared_input_processor(shared.clone()).shared_output_processor(shared.clone())
        })
        .await;
        let ran = world.run("hi").await;
        let name = hook.name();
        assert_eq!(ends(&ran), ["tripwire", "finish"], "{name}: {:?}", ran.kinds());
        assert_eq!(
            ran.payload("tripwire"),
            json!({"reason": "no", "retry": false, "processorId": "guard", "metadata": {"at": name}}),
            "{name}"
        );
        assert_eq!(ran.finish()["stepResult"]["reason"], "tripwire", "{name}");
        assert_eq!(ran.finish()["output"]["text"], "", "{name}");
        assert_eq!((ran.output.text.as_str(), ran.output.finish_reason), ("", FinishReason::Tripwire), "{name}");
        assert_eq!(ran.output.tripwire.as_ref().unwrap().processor_id, "guard", "{name}");
        let texts = world.texts().await;
        assert_eq!(texts[0], "hi", "{name}: the input is stored");
        assert!(!texts.iter().any(|text| text.contains("bad")), "{name}: {texts:?}");
        let violations = spy.violations.lock().clone();
        assert_eq!(violations.len(), 1, "{name}");
        assert_eq!((violations[0].hook, violations[0].message.as_str()), (hook, "no"), "PROC-057");
        // The thread goes on, and the model never reads what was rejected.
        spy.violations.lock().clear();
        let next = world.run("more").await;
        assert!(next.output.tripwire.is_none(), "{name}");
        let asked = json!(world.model.requests().last().unwrap().prompt).to_string();
        assert!(!asked.contains("bad answer"), "{name}: {asked}");
    }
}

#[tokio::test(start_paused = true)]
async fn proc_052_an_abort_in_output_step_prevents_the_tools() {
    let spy = Spy::new("guard", &ALL).acting(Hook::OutputStep, 0, Act::Trip);
    let (tool, runs) = counted();
    let world = world_with([call(1), "next".into()], |agent| agent.tool(tool).output_processor(spy)).await;
    let ran = world.run("hi").await;
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    assert_eq!(ran.payload("tool-error")["error"]["message"], "rejected by guard");
    assert_eq!(world.texts().await, ["hi"]);
}

#[tokio::test(start_paused = true)]
async fn proc_053_054_055_retries_take_back_what_was_said() {
    let spy = Spy::new("guard", &ALL).deciding(|hook, n| (hook == Hook::OutputStep && n < 2).then_some(Act::Retry));
    let (tool, runs) = counted();
    let scripts = [Script::new().text("bad one").call("echo", json!({})), "bad two".into(), call(1), "good".into()];
    let world = world_with(scripts, |agent| agent.tool(tool).output_processor(spy).max_processor_retries(2)).await;
    let ran = world.run_with("hi", RunOptions { max_steps: Some(10), ..RunOptions::default() }).await;
    assert_eq!(ran.output.text, "good", "PROC-055 b");
    assert_eq!(runs.load(Ordering::SeqCst), 1, "the rejected step's call did not run");
    assert_eq!(world.model.requested(), 4);
    // The rejected text is in no prompt; the feedback is in those up to the accepted step.
    let feedback = "[Processor Feedback] again";
    assert_eq!(world.asked(1), ["hi", feedback]);
    assert_eq!(world.asked(2), ["hi", feedback, feedback]);
    assert_eq!(world.asked(3), ["hi"], "PROC-055 a: gone after acceptance");
    for request in world.model.requests() {
        assert!(!json!(request.prompt).to_string().contains("bad"));
    }
    let reasons: Vec<Value> =
        ran.all("step-finish").iter().map(|c| c["payload"]["stepResult"]["reason"].clone()).collect();
    assert_eq!(reasons, ["retry", "retry", "tool-calls", "stop"]);
    assert_eq!(ran.output.steps.iter().filter(|step| step.tripwire.is_some()).count(), 2, "it stays in steps");
    assert_eq!(ran.all("data-retract").len(), 2, "PROC-055 d");
    assert!(ran.all("tripwire").is_empty());
    assert_eq!(world.stored().await.len(), 2, "user and one answer");
    assert!(!json!(world.stored().await).to_string().contains("Feedback"), "never stored");
}

#[tokio::test(start_paused = true)]
async fn proc_053_without_retries_or_steps_left_a_retry_is_a_plain_abort() {
    for (retries, max_steps, requests) in [(None, 10, 1), (Some(0), 10, 1), (Some(1), 10, 2), (Some(9), 2, 2)] {
        let spy = Spy::new("guard", &ALL).deciding(|hook, _| (hook == Hook::OutputStep).then_some(Act::Retry));
        let world = world_with(["a", "b", "c"], |agent| agent.output_processor(spy)).await;
        let options =
            RunOptions { max_processor_retries: retries, max_steps: Some(max_steps), ..RunOptions::default() };
        let ran = world.run_with("hi", options).await;
        assert_eq!((ends(&ran), world.model.requested()), (vec!["tripwire", "finish"], requests), "{retries:?}");
        assert_eq!(ran.payload("tripwire")["retry"], true);
    }
}

#[tokio::test(start_paused = true)]
async fn proc_055c_a_tool_result_may_be_asked_for_again() {
    let spy = Spy::new("guard", &ALL).acting(Hook::ToolResult, 0, Act::Retry);
    let (tool, runs) = counted();
    let world = world_with([call(1), call(2), "good".into()], |agent| {
        agent.tool(tool).output_processor(spy).max_processor_retries(1)
    })
    .await;
    let ran = world.run("hi").await;
    assert_eq!((ran.output.text.as_str(), runs.load(Ordering::SeqCst)), ("good", 2));
    assert_eq!(ran.payload("tool-error")["error"]["message"], "again");
}

#[tokio::test(start_paused = true)]
async fn proc_056_what_breaks_fails_the_run_and_says_where() {
    for act in [Act::Fail, Act::Panic] {
        for hook in [
            Hook::Input,
            Hook::InputStep,
            Hook::LlmRequest,
            Hook::OutputStream,
            Hook::LlmResponse,
            Hook::OutputStep,
            Hook::ToolResult,
            Hook::OutputResult,
        ] {
            let spy = Spy::new("guard", &ALL).acting(hook, 0, act.clone());
            let shared: bugle::processor::SharedProcessor = Arc::new(spy.clone());
            let (tool, _) = counted();
            let world = world_with([call(1), "answer".into(), "next".into()], |agent| {
                agent.tool(tool).shared_input_processor(shared.clone()).shared_output_processor(shared)
            })
            .await;
            let ran = world.run("hi").await;
            let name = hook.name();
            let error = ran.payload("error")["error"].clone();
            assert_eq!(error["details"], json!({"processorId": "guard", "hook": name}));
            assert!(error["message"].as_str().unwrap().contains("boom"), "{error}");
            assert_eq!(ran.finish()["stepResult"]["reason"], "error", "{name}");
            assert_eq!(world.texts().await[0], "hi", "{name}");
            assert_eq!(world.run("more").await.output.error, None, "{name}: the thread goes on");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn proc_056_a_broken_stream_guard_lets_no_raw_chunk_out() {
    let script = || [Script::new().text("first ").text("secret ").text("last")];
    // step-start, text-start, delta, delta: the second delta breaks it.
    let guard =
        |on_error| Spy::new("guard", &[Hook::OutputStream]).acting(Hook::OutputStream, 3, Act::Fail).on_error(on_error);
    let world = world_with(script(), |agent| agent.output_processor(guard(OnError::Abort))).await;
    let ran = world.run("hi").await;
    assert_eq!(crate::support::text(&ran.chunks), "first ");
    assert_eq!(ran.output.finish_reason, FinishReason::Error);
    assert!(!json!(world.stored().await).to_string().contains("secret"));
    for (on_error, text) in [(OnError::Pass, "first secret last"), (OnError::Drop, "first last")] {
        let world = world_with(script(), |agent| agent.output_processor(guard(on_error))).await;
        let ran = world.run("hi").await;
        assert_eq!((ran.output.text.as_str(), crate::support::text(&ran.chunks).as_str()), (text, text));
    }
}

#[tokio::test(start_paused = true)]
async fn ruling_35_a_processor_may_declare_that_it_is_skipped() {
    let spy = Spy::new("lax", &ALL).deciding(|_, _| Some(Act::Fail)).on_error(OnError::Pass);
    let shared: bugle::processor::SharedProcessor = Arc::new(spy);
    let (tool, _) = counted();
    let world = world_with([call(1), "answer".into()], |agent| {
        agent.tool(tool).shared_input_processor(shared.clone()).shared_output_processor(shared)
    })
    .await;
    assert_eq!(world.run("hi").await.output.text, "answer");
}

fn refusing() -> Script {
    Script::new().fail_with(400, "no")
}

#[tokio::test(start_paused = true)]
async fn proc_060_061_a_failed_request_is_tried_again_within_the_budget() {
    // Any list, at most four calls by default.
    for list in 0..3 {
        let spy = Spy::new("retry", &ALL).deciding(|hook, _| (hook == Hook::ApiError).then_some(Act::Retry));
        let scripts = [refusing(), refusing(), refusing(), refusing(), "never".into()];
        let world = world_with(scripts, |agent| match list {
            0 => agent.input_processor(spy.clone()),
            1 => agent.output_processor(spy.clone()),
            _ => agent.error_processor(spy.clone()),
        })
        .await;
        let ran = world.run("hi").await;
        assert_eq!((world.model.requested(), spy.count(Hook::ApiError)), (4, 3));
        assert_eq!(ran.all("error").len(), 1);
        let steps: Vec<Value> =
            ran.all("step-finish").iter().map(|c| c["payload"]["stepResult"]["reason"].clone()).collect();
        assert_eq!(steps, ["retry", "retry", "retry", "error"]);
        assert!(ran.output.steps.is_empty(), "steps stay");
    }
    // One retry helps; what had been shown is taken back.
    let spy = Spy::new("retry", &ALL).acting(Hook::ApiError, 0, Act::Retry);
    let world = world_with([Script::new().text("half").cut(), "whole".into()], |agent| {
        agent.error_processor(spy.clone()).max_processor_retries(1).input_processor(Spy::new("p", &[Hook::InputStep]))
    })
    .await;
    let ran = world.run("hi").await;
    assert_eq!(ran.output.text, "whole");
    assert_eq!(ran.all("data-retract").len(), 1);
    assert_eq!(world.texts().await, ["hi", "whole"]);
    // Nobody asks: no retry.
    let world = world_with([refusing(), "never".into()], |agent| agent).await;
    assert_eq!(world.run("hi").await.output.finish_reason, FinishReason::Error);
    assert_eq!(world.model.requested(), 1);
    // A hook that breaks leaves the error as it is.
    let spy = Spy::new("broken", &ALL).acting(Hook::ApiError, 0, Act::Panic);
    let world = world_with([refusing()], |agent| agent.error_processor(spy)).await;
    let ran = world.run("hi").await;
    assert_eq!(ran.payload("error")["error"]["statusCode"], 400);
}

#[tokio::test(start_paused = true)]
async fn proc_062_the_hook_runs_before_the_next_model_and_a_retry_stays() {
    use bugle::model::ScriptedModel;
    let second = ScriptedModel::with_responses(["second"]).named("scripted", "second");
    for (retry, first, text) in [(true, 2, "first"), (false, 1, "second")] {
        let spy = Spy::new("retry", &ALL)
            .deciding(move |hook, n| (hook == Hook::ApiError && n == 0 && retry).then_some(Act::Retry));
        let world = world_with([refusing(), "first".into()], |agent| {
            agent.model(Arc::new(second.clone())).error_processor(spy.clone())
        })
        .await;
        let ran = world.run("hi").await;
        assert_eq!((ran.output.text.as_str(), world.model.requested(), spy.count(Hook::ApiError)), (text, first, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn proc_050_a_tripwire_names_its_processor_and_later_ones_do_not_run() {
    struct Silent;
    #[async_trait::async_trait]
    impl Processor for Silent {
        fn id(&self) -> &'static str {
            "silent"
        }
        fn hooks(&self) -> HookSet {
            HookSet::of(&[Hook::Input])
        }
        async fn process_input(&self, _: &mut Context<'_>, _: &mut Input) -> Outcome {
            Err(ProcessorError::tripwire(""))
        }
    }
    let (before, after) = (Spy::new("before", &[Hook::Input]), Spy::new("after", &[Hook::Input]));
    let world = world_with(["never"], |agent| {
        agent.input_processor(before.clone()).input_processor(Silent).input_processor(after.clone())
    })
    .await;
    let ran = world.run("hi").await;
    assert_eq!(
        ran.payload("tripwire"),
        json!({"reason": "stopped by processor silent", "retry": false, "processorId": "silent"})
    );
    assert_eq!((before.count(Hook::Input), after.count(Hook::Input), world.model.requested()), (1, 0, 0));
    for hook in [Hook::InputStep, Hook::LlmRequest] {
        let guard = Spy::new("guard", &ALL).acting(hook, 0, Act::Trip);
        let after = Spy::new("after", &ALL);
        let world = world_with(["never"], |agent| agent.input_processor(guard).input_processor(after.clone())).await;
        world.run("hi").await;
        assert_eq!((after.count(Hook::Input), after.count(hook)), (1, 0), "{}", hook.name());
    }
    for hook in [Hook::OutputStream, Hook::OutputStep, Hook::OutputResult] {
        let guard = Spy::new("guard", &ALL).acting(hook, 0, Act::Trip);
        let after = Spy::new("after", &ALL);
        let world = world_with(["answer"], |agent| agent.output_processor(guard).output_processor(after.clone())).await;
        world.run("hi").await;
        assert_eq!(after.count(hook), 0, "{}", hook.name());
    }
}

#[tokio::test(start_paused = true)]
async fn proc_063_stream_hooks_see_an_error_once_it_is_final_and_cannot_swallow_it() {
    struct Mute(Spy);
    #[async_trait::async_trait]
    impl Processor for Mute {
        fn id(&self) -> &'static str {
            "mute"
        }
        fn hooks(&self) -> HookSet {
            HookSet::of(&[Hook::OutputStream])
        }
        async fn process_output_stream(&self, cx: &mut Context<'_>, chunk: Chunk, _: &mut Chunks) -> Outcome {
            self.0.process_output_stream(cx, chunk, &mut Chunks::default()).await
        }
    }
    let spy = Spy::new("spy", &ALL);
    let retry = Spy::new("retry", &[Hook::ApiError]).acting(Hook::ApiError, 0, Act::Retry);
    let world = world_with([refusing(), refusing()], |agent| {
        agent.error_processor(retry).max_processor_retries(1).output_processor(Mute(spy.clone()))
    })
    .await;
    let ran = world.run("hi").await;
    assert_eq!(spy.logged().last().unwrap(), "spy.processOutputStream error", "{:?}", spy.logged());
    let seen = spy.logged().iter().filter(|line| line.ends_with(" error")).count();
    assert_eq!((world.model.requested(), seen, ran.all("error").len()), (2, 1, 1), "{:?}", spy.logged());
    assert_eq!(ran.output.finish_reason, FinishReason::Error);
}
