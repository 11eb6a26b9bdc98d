//! What a step may change for itself, and what is tried again (PROC §4 … §6).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use bugle::{
    Bugle, RunOptions, ThreadKey,
    agent::ModelEntry,
    chunk::FinishReason,
    json::{Value, json},
    memory::MemoryOptions,
    model::{ModelError, Script, ScriptedModel, SharedModel},
    processor::{ApiFailure, Context, Hook, HookSet, InputStep, Outcome, Processor, ProcessorError, Recovery},
    run::StructuredOutput,
};
use parking_lot::Mutex;

use super::{ALL, Act, Spy, arguments::Doing};
use crate::{
    r#loop::{call, echo, prompt, world_with},
    support::{builder, warnings},
};

type Shape = Arc<dyn Fn(&mut Context<'_>, &mut InputStep) -> Outcome + Send + Sync>;

/// Shapes each step.
struct Shaping(&'static str, Shape);

impl Shaping {
    fn new(
        id: &'static str,
        shape: impl Fn(&mut Context<'_>, &mut InputStep) -> Outcome + Send + Sync + 'static,
    ) -> Self {
        Self(id, Arc::new(shape))
    }
}

#[async_trait]
impl Processor for Shaping {
    fn id(&self) -> &str {
        self.0
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::InputStep])
    }
    async fn process_input_step(&self, cx: &mut Context<'_>, step: &mut InputStep) -> Outcome {
        (self.1)(cx, step)
    }
}

#[tokio::test(start_paused = true)]
async fn proc_040_a_step_may_have_a_message_id_of_its_own_or_a_fresh_one() {
    let log: Arc<Mutex<Vec<(u32, String)>>> = Arc::default();
    let seen = log.clone();
    let shaping = Shaping::new("one", |cx, step| {
        match cx.step_number() {
            1 => step.message_id = "mine".into(),
            2 => drop(cx.rotate_message_id()),
            _ => {}
        }
        Ok(())
    });
    let after = Shaping::new("two", move |cx, step| {
        assert_eq!(step.message_id, cx.message_id(), "the next processor sees it");
        seen.lock().push((cx.step_number(), step.message_id.to_string()));
        Ok(())
    });
    let scripts = [call(1), call(2), call(3), "done".into()];
    let world = world_with(scripts, |agent| agent.tool(echo()).input_processor(shaping).input_processor(after)).await;
    let ran = world.run("hi").await;
    let ids: Vec<String> = log.lock().iter().map(|(_, id)| id.clone()).collect();
    let answers: Vec<String> = world.stored().await.iter().skip(1).map(|message| message.id.to_string()).collect();
    assert_eq!(ids[1], "mine");
    assert!(ids[2] != ids[1] && ids[2] != ids[0] && ids[3] == ids[2], "{ids:?}");
    assert_eq!(answers, [&*ids[0], "mine", &*ids[2]], "one message per id");
    let shown: Vec<Value> = ran.all("step-start").iter().map(|chunk| chunk["payload"]["messageId"].clone()).collect();
    assert_eq!(shown, ids);
    assert_eq!(ran.output.text, "done");
    // An id that another message has is refused.
    let taken = Shaping::new("one", |cx, step| {
        step.message_id = cx.messages()[0].id.clone();
        Ok(())
    });
    let world = world_with(["never"], |agent| agent.input_processor(taken)).await;
    let error = world.run("hi").await.output.error.unwrap();
    assert!(error.message.contains("taken"), "{}", error.message);
}

#[tokio::test(start_paused = true)]
async fn proc_040_a_message_id_before_the_first_answer_holds_for_one_step() {
    let shaping = Shaping::new("one", |cx, step| {
        if cx.step_number() == 0 {
            step.message_id = "mine".into();
        }
        Ok(())
    });
    let world = world_with([call(1), "done".into()], |agent| agent.tool(echo()).input_processor(shaping)).await;
    let ran = world.run("hi").await;
    let own = ran.payload("start")["messageId"].clone();
    let stored: Vec<Value> = world.stored().await.iter().skip(1).map(|message| json!(message.id)).collect();
    assert_eq!(stored, [json!("mine"), own], "then the call's own again");
}

#[tokio::test(start_paused = true)]
async fn proc_040_the_retry_count_of_a_step_is_what_its_hooks_see() {
    let counts: Arc<Mutex<Vec<u32>>> = Arc::default();
    let (one, two, three) = (counts.clone(), counts.clone(), counts.clone());
    let first = Shaping::new("one", move |cx, step| {
        one.lock().push(cx.retry_count());
        if cx.step_number() == 0 {
            step.retry_count = 7;
        }
        Ok(())
    });
    let second = Shaping::new("two", move |cx, step| {
        assert_eq!(cx.retry_count(), step.retry_count);
        two.lock().push(cx.retry_count());
        Ok(())
    });
    let third = Doing::new(Hook::OutputStep, 0, move |cx| {
        three.lock().push(cx.retry_count());
        Ok(())
    });
    let world = world_with([call(1), "done".into()], |agent| {
        agent.tool(echo()).input_processor(first).input_processor(second).output_processor(third)
    })
    .await;
    world.run("hi").await;
    assert_eq!(*counts.lock(), [0, 7, 7, 0, 0], "gone in the next step");
}

#[tokio::test(start_paused = true)]
async fn proc_040_a_step_may_ask_for_another_form_and_other_system_messages() {
    let schema =
        |key: &str| json!({ "type": "object", "properties": { key: { "type": "number" } }, "required": [key] });
    let structured = |key: &str| StructuredOutput {
        schema: schema(key),
        instructions: None,
        json_prompt_injection: None,
        error_strategy: Default::default(),
        fallback_value: None,
    };
    let (first, last) = (structured("plan"), structured("b"));
    let shaping = Shaping::new("one", move |cx, step| {
        assert_eq!((step.system.len(), step.structured_output.is_some()), (1, true), "the call's own values");
        match cx.step_number() {
            0 => {
                step.structured_output = Some(first.clone());
                step.system.clear();
            }
            1 => step.structured_output = None,
            2 => step.structured_output = Some(last.clone()),
            _ => {}
        }
        Ok(())
    });
    let scripts = [call(1), call(2), Script::new().text("{\"b\": 2}")];
    let world = world_with(scripts, |agent| agent.tool(echo()).input_processor(shaping)).await;
    let options = RunOptions { structured_output: Some(structured("a")), ..RunOptions::default() };
    let ran = world.run_with("hi", options.clone()).await;
    let formats: Vec<Option<Value>> = world
        .model
        .requests()
        .into_iter()
        .map(|request| request.response_format.map(|format| format.schema["required"][0].clone()))
        .collect();
    assert_eq!(formats, [Some(json!("plan")), None, Some(json!("b"))]);
    let systems: Vec<usize> = world
        .model
        .requests()
        .iter()
        .map(|request| prompt(request).as_array().unwrap().iter().filter(|turn| turn["role"] == "system").count())
        .collect();
    assert_eq!(systems, [0, 1, 1], "PROC-013");
    assert_eq!(ran.output.object, Some(json!({ "b": 2 })), "judged by the form of the step that ends the run");
    let world = world_with([Script::new().text("{\"b\": 2}")], |agent| agent).await;
    assert!(world.run_with("hi", options).await.output.error.is_some(), "by the call's own form it is none");
}

#[tokio::test(start_paused = true)]
async fn proc_041_a_model_by_its_name_and_an_unknown_one_is_an_error() {
    let routed = ScriptedModel::with_responses(["routed"]).named("fast", "small-2");
    let own = ScriptedModel::with_responses(["own"]);
    for (name, text) in [("fast/small-2", Some("routed")), ("fast/small-1", None)] {
        let shaping = Shaping::new("one", move |cx, step| {
            let model = cx.model(name)?;
            step.models = vec![ModelEntry { model, max_retries: None }];
            Ok(())
        });
        let agent = builder("plain", &own).input_processor(shaping).memory(MemoryOptions::last(5)).build().unwrap();
        let known = routed.clone();
        let route = move |name: &str| match name {
            "fast/small-2" => Ok(Arc::new(known.clone()) as SharedModel),
            _ => Err(ModelError::new(bugle::model::ModelErrorKind::Configuration, format!("{name} is not supported"))),
        };
        let bugle = Bugle::builder().agent(agent).model_router(route).build().await.unwrap();
        let thread = ThreadKey::new("r", "t");
        let agent = bugle.agent("plain").unwrap();
        let ran = crate::r#loop::run_on(&agent, "hi", Some(&thread), RunOptions::default()).await;
        match text {
            Some(text) => assert_eq!(ran.output.text, text),
            None => {
                let error = ran.output.error.unwrap().message;
                assert!(error.contains("fast/small-1") && error.contains("not supported"), "{error}");
            }
        }
    }
    assert_eq!((routed.requested(), own.requested()), (1, 0));
    // Without a router no name is known.
    let shaping = Shaping::new("one", |cx, _| cx.model("a/b").map(drop));
    let world = world_with(["never"], |agent| agent.input_processor(shaping)).await;
    assert!(world.run("hi").await.output.error.unwrap().message.contains("no model router"));
}

#[tokio::test(start_paused = true)]
async fn proc_041_a_call_of_an_inactive_tool_is_refused() {
    let ran = Arc::new(AtomicUsize::new(0));
    let counter = ran.clone();
    let tool = bugle::Tool::json("echo", move |input: Value, _| {
        counter.fetch_add(1, Ordering::SeqCst);
        async move { Ok(input) }
    });
    let shaping = Shaping::new("one", |cx, step| {
        step.active_tools = (cx.step_number() == 0).then(Vec::new);
        Ok(())
    });
    let world = world_with([call(1), call(2), "done".into()], |agent| agent.tool(tool).input_processor(shaping)).await;
    let out = world.run("hi").await;
    assert_eq!((out.all("tool-error").len(), out.all("tool-result").len()), (1, 1));
    assert_eq!(ran.load(Ordering::SeqCst), 1);
    assert_eq!(world.model.requests().iter().map(|request| request.tools.len()).collect::<Vec<_>>(), [0, 1, 1]);
}

#[tokio::test(start_paused = true)]
async fn proc_055c_a_retry_in_an_input_step_runs_the_hooks_again_from_the_calls_own_values() {
    for (retries, tries, fine) in [(Some(2), 3, true), (Some(1), 2, false), (None, 1, false)] {
        let (logged, _guard) = warnings();
        let counts: Arc<Mutex<Vec<u32>>> = Arc::default();
        let seen = counts.clone();
        let first = Shaping::new("one", move |cx, step| {
            assert_eq!(step.model_settings.temperature, None, "from the call's own values");
            step.model_settings.temperature = Some(0.5);
            seen.lock().push(cx.retry_count());
            Ok(())
        });
        let second = Shaping::new("two", |cx, _| match cx.retry_count() {
            2 => Ok(()),
            _ => Err(ProcessorError::retry("not yet")),
        });
        let world = world_with(["done"], |agent| agent.input_processor(first).input_processor(second)).await;
        let options = RunOptions { max_processor_retries: retries, ..RunOptions::default() };
        let ran = world.run_with("hi", options).await;
        assert_eq!(*counts.lock(), (0..tries).collect::<Vec<u32>>());
        if fine {
            assert_eq!((ran.output.text.as_str(), world.model.requested()), ("done", 1));
            assert!(ran.all("tripwire").is_empty() && logged.containing("tried again").is_empty());
        } else {
            assert_eq!(ran.payload("tripwire")["reason"], "not yet");
            assert_eq!((ran.output.finish_reason, world.model.requested()), (FinishReason::Tripwire, 0));
            assert_eq!(logged.containing("nothing is tried again").len(), 1);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn proc_055c_a_tool_result_is_asked_for_again_within_the_budget_whoever_else_judges() {
    // A hook that judges steps must not renew the budget of the one that judges results.
    for judges in [&[Hook::ToolResult][..], &[Hook::ToolResult, Hook::OutputStep]] {
        let (logged, _guard) = warnings();
        let guard = Spy::new("guard", judges).deciding(|hook, _| (hook == Hook::ToolResult).then_some(Act::Retry));
        let scripts = (0..9).map(call);
        let world =
            world_with(scripts, |agent| agent.tool(echo()).output_processor(guard.clone()).max_processor_retries(2))
                .await;
        let ran = world.run_with("hi", RunOptions { max_steps: Some(9), ..RunOptions::default() }).await;
        assert_eq!((guard.count(Hook::ToolResult), world.model.requested()), (3, 3), "{:?}", ran.kinds());
        let errors: Vec<Value> =
            ran.all("tool-error").iter().map(|chunk| chunk["payload"]["error"]["message"].clone()).collect();
        assert_eq!(errors, ["again", "again", "rejected by guard"]);
        assert_eq!(ran.payload("tripwire")["reason"], "again");
        assert_eq!(logged.containing("nothing is tried again").len(), 1);
        assert!(prompt(&world.model.requests()[1]).to_string().contains("again"), "the model reads why");
    }
    // A step whose results pass renews it.
    let guard =
        Spy::new("guard", &ALL).deciding(|hook, n| (hook == Hook::ToolResult && n % 2 == 0).then_some(Act::Retry));
    let world = world_with((0..4).map(call).chain(["done".into()]), |agent| {
        agent.tool(echo()).output_processor(guard).max_processor_retries(1)
    })
    .await;
    let ran = world.run("hi").await;
    assert_eq!((ran.output.text.as_str(), ran.all("tool-error").len()), ("done", 2));
}

#[tokio::test(start_paused = true)]
async fn proc_055c_without_a_step_left_a_tool_result_is_not_asked_for_again() {
    let guard = Spy::new("guard", &ALL).acting(Hook::ToolResult, 0, Act::Retry);
    let world =
        world_with([call(1)], |agent| agent.tool(echo()).output_processor(guard).max_processor_retries(5)).await;
    let ran = world.run_with("hi", RunOptions { max_steps: Some(1), ..RunOptions::default() }).await;
    assert_eq!((ran.output.finish_reason, world.model.requested()), (FinishReason::Tripwire, 1));
}

#[tokio::test(start_paused = true)]
async fn proc_061_062_each_model_that_fails_is_told_and_tried_again_within_one_budget() {
    let refusing = || Script::new().fail_with(400, "no");
    let order: Arc<Mutex<Vec<(String, u32, u32)>>> = Arc::default();
    struct Retrying(Arc<Mutex<Vec<(String, u32, u32)>>>);
    #[async_trait]
    impl Processor for Retrying {
        fn id(&self) -> &'static str {
            "retrying"
        }
        fn hooks(&self) -> HookSet {
            HookSet::of(&[Hook::ApiError])
        }
        async fn process_api_error(&self, cx: &mut Context<'_>, failure: &ApiFailure) -> Outcome<Recovery> {
            let mut order = self.0.lock();
            order.push((failure.model.clone(), cx.step_number(), cx.retry_count()));
            // Every model once more.
            let again = order.iter().filter(|(model, ..)| *model == failure.model).count() == 1;
            Ok(if again { Recovery::Retry } else { Recovery::GiveUp })
        }
    }
    let second = ScriptedModel::with_responses([refusing(), refusing()]).named("scripted", "second");
    let third = ScriptedModel::with_responses([refusing(), "third".into()]).named("scripted", "third");
    let world = world_with([refusing(), refusing()], |agent| {
        agent.model(Arc::new(second.clone())).model(Arc::new(third.clone())).error_processor(Retrying(order.clone()))
    })
    .await;
    let ran = world.run("hi").await;
    assert_eq!(ran.output.text, "third");
    let model = |name: &str| format!("scripted/{name}");
    let first = order.lock()[0].0.clone();
    let expected = [
        (first.clone(), 0, 0),
        (first, 0, 1),
        (model("second"), 0, 1),
        (model("second"), 0, 2),
        (model("third"), 0, 2),
    ];
    assert_eq!(*order.lock(), expected, "told before the next model; a retry uses the same one");
    assert_eq!((world.model.requested(), second.requested(), third.requested()), (2, 2, 2));
    assert_eq!(ran.output.steps.len(), 1, "the step keeps its number");
    let reasons: Vec<Value> =
        ran.all("step-finish").iter().map(|chunk| chunk["payload"]["stepResult"]["reason"].clone()).collect();
    assert_eq!(reasons, ["retry", "retry", "retry", "stop"]);
    assert!(ran.all("error").is_empty());
    // One budget for all models of a step: with two retries the third model is asked once.
    let second = ScriptedModel::with_responses([refusing(), refusing()]).named("scripted", "second");
    let third = ScriptedModel::with_responses([refusing()]).named("scripted", "third");
    let world = world_with([refusing(), refusing()], |agent| {
        let agent = agent.model(Arc::new(second.clone())).model(Arc::new(third.clone()));
        agent.error_processor(Retrying(Arc::default())).max_processor_retries(2)
    })
    .await;
    let ran = world.run("hi").await;
    assert_eq!((world.model.requested(), second.requested(), third.requested()), (2, 2, 1));
    assert_eq!((ran.all("error").len(), ran.output.finish_reason), (1, FinishReason::Error));
}

#[tokio::test(start_paused = true)]
async fn proc_055d_081_what_a_failed_request_had_shown_is_taken_back_under_its_own_id() {
    struct Telling;
    #[async_trait]
    impl Processor for Telling {
        fn id(&self) -> &'static str {
            "telling"
        }
        fn hooks(&self) -> HookSet {
            HookSet::of(&[Hook::ApiError])
        }
        async fn process_api_error(&self, cx: &mut Context<'_>, _: &ApiFailure) -> Outcome<Recovery> {
            cx.send_signal(bugle::signal::SignalInput::new("reactive", "once more")).await?;
            Ok(Recovery::Retry)
        }
    }
    let scripts = [call(1), Script::new().text("half").cut(), "whole".into()];
    let world = world_with(scripts, |agent| agent.tool(echo()).error_processor(Telling)).await;
    let ran = world.run("hi").await;
    let shown: Vec<Value> = ran.all("step-start").iter().map(|chunk| chunk["payload"]["messageId"].clone()).collect();
    assert_eq!(ran.all("data-retract")[0]["data"]["messageId"], shown[1]);
    assert_ne!(shown[1], shown[2], "the answer after the signal is another message");
    assert_eq!(world.texts().await, ["hi", "", "once more", "whole"]);
}
