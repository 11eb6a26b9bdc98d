//! When each hook runs, and what it may change (PROC §1 … §4, §7).

use std::sync::Arc;

use async_trait::async_trait;
use bugle::{
    Agent, RunOptions,
    agent::ModelEntry,
    chunk::Chunk,
    json::json,
    model::{Gate, PromptMessage, Script, ScriptedModel},
    processor::{
        Chunks, Context, Hook, HookSet, Input, InputStep, LlmRequest, Outcome, OutputResult, OutputStep, Processor,
        Processors, SharedProcessor, ToolResult,
    },
    run::{PrepareStep, ToolChoiceMode, ToolChoiceOption},
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{ALL, Shout, Spy};
use crate::{
    r#loop::{call, echo, prompt, world_with},
    support::builder,
};

#[tokio::test(start_paused = true)]
async fn proc_002_the_order_of_hooks_in_a_tool_step_and_an_answer_step() {
    let p1 = Spy::new("p1", &ALL);
    let (p2, o1, o2) = (Spy::new("p2", &ALL), Spy::new("o1", &ALL), Spy::new("o2", &ALL));
    let (p2, o1, o2) = (p2.logging_to(&p1), o1.logging_to(&p1), o2.logging_to(&p1));
    let world = world_with([call(1), "done".into()], |agent| {
        let agent = agent.tool(echo()).input_processor(p1.clone()).input_processor(p2);
        agent.output_processor(o1).output_processor(o2)
    })
    .await;
    let log = p1.log.clone();
    let prepare = PrepareStep(Arc::new(move |_: &mut InputStep| log.lock().push("prepare".into())));
    let ran = world.run_with("hi", RunOptions { prepare_step: Some(prepare), ..RunOptions::default() }).await;
    assert_eq!(ran.output.text, "done");
    let both = |a: &str, b: &str, hook: &str| [format!("{a}.{hook}"), format!("{b}.{hook}")];
    let mut expected: Vec<String> = both("p1", "p2", "processInput").into();
    let chunks = |kinds: &[&str]| -> Vec<String> {
        kinds.iter().flat_map(|kind| both("o1", "o2", &format!("processOutputStream {kind}"))).collect()
    };
    expected.extend(both("p1", "p2", "processInputStep 0"));
    expected.extend(both("p1", "p2", "computeStateSignal"));
    expected.push("prepare".into());
    expected.extend(both("p1", "p2", "processLLMRequest"));
    expected.extend(chunks(&["step-start", "tool-call"]));
    expected.extend(both("p1", "p2", "processLLMResponse"));
    expected.extend(both("o1", "o2", "processOutputStep"));
    expected.extend(both("o1", "o2", "processToolResult"));
    expected.extend(chunks(&["tool-result", "step-finish"]));
    expected.extend(both("p1", "p2", "processInputStep 1"));
    expected.extend(both("p1", "p2", "computeStateSignal"));
    expected.push("prepare".into());
    expected.extend(both("p1", "p2", "processLLMRequest"));
    expected.extend(chunks(&["step-start", "text-start", "text-delta", "text-end"]));
    expected.extend(both("p1", "p2", "processLLMResponse"));
    expected.extend(both("o1", "o2", "processOutputStep"));
    expected.extend(both("o1", "o2", "processOutputResult"));
    expected.extend(chunks(&["step-finish"]));
    // Arguments that stream in pass the hooks too; the order of those is the stream's.
    let logged: Vec<String> = p1.logged().into_iter().filter(|line| !line.contains("tool-call-")).collect();
    assert_eq!(logged, expected);
}

#[tokio::test(start_paused = true)]
async fn proc_003_a_calls_list_replaces_the_agents_and_lists_may_depend_on_the_context() {
    let (of_agent, of_call) = (Spy::new("agent", &[Hook::Input]), Spy::new("call", &[Hook::Input]));
    let world = world_with(["a", "b"], |agent| agent.input_processor(of_agent.clone())).await;
    let list = Processors::new([Arc::new(of_call.clone()) as SharedProcessor]).unwrap();
    world.run_with("hi", RunOptions { input_processors: Some(list), ..RunOptions::default() }).await;
    assert_eq!((of_agent.count(Hook::Input), of_call.count(Hook::Input)), (0, 1));
    world.run("hi").await;
    assert_eq!((of_agent.count(Hook::Input), of_call.count(Hook::Input)), (1, 1));
    // A function of the request context.
    let strict = Spy::new("strict", &[Hook::Input]);
    let made = strict.clone();
    let world = world_with(["a", "b"], |agent| {
        agent.input_processors_per(move |context| {
            let list = context.get("strict").map(|_| Arc::new(made.clone()) as SharedProcessor);
            Processors::new(list).unwrap()
        })
    })
    .await;
    world.run("hi").await;
    let mut options = RunOptions::default();
    options.request_context.set("strict", true);
    world.run_with("hi", options).await;
    assert_eq!(strict.count(Hook::Input), 1);
}

#[test]
fn proc_031_two_processors_with_one_id_are_refused() {
    let model = ScriptedModel::new();
    let agent = || Agent::builder("a").model(Arc::new(model.clone()));
    let two = agent().input_processor(Spy::new("x", &ALL)).input_processor(Spy::new("x", &ALL)).build();
    assert!(two.unwrap_err().to_string().contains("two processors have the id \"x\""));
    let same: SharedProcessor = Arc::new(Spy::new("x", &ALL));
    assert!(agent().shared_input_processor(same.clone()).shared_input_processor(same.clone()).build().is_ok());
    assert!(agent().shared_input_processor(same.clone()).shared_output_processor(same).build().is_ok());
}

/// Counts in a slot across hooks, and shows the count at the end.
struct Counting(Arc<Mutex<Vec<u32>>>);

#[derive(Default)]
struct Count(u32);

#[async_trait]
impl Processor for Counting {
    fn id(&self) -> &'static str {
        "counting"
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::Input, Hook::InputStep, Hook::OutputStep, Hook::OutputResult])
    }
    async fn process_input(&self, cx: &mut Context<'_>, _: &mut Input) -> Outcome {
        cx.state::<Count>().0 += 1;
        assert_eq!(cx.agent_id(), "plain");
        assert!(cx.agent().is_some() && cx.thread().is_some() && !cx.run_id().as_str().is_empty(), "PROC-010");
        Ok(())
    }
    async fn process_input_step(&self, cx: &mut Context<'_>, _: &mut InputStep) -> Outcome {
        cx.state::<Count>().0 += 10;
        Ok(())
    }
    async fn process_output_step(&self, cx: &mut Context<'_>, _: &mut OutputStep) -> Outcome {
        cx.state::<Count>().0 += 100;
        Ok(())
    }
    async fn process_output_result(&self, cx: &mut Context<'_>, _: &mut OutputResult) -> Outcome {
        self.0.lock().push(cx.state::<Count>().0);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn proc_030_032_state_is_shared_by_all_hooks_of_an_id_and_fresh_in_each_run() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let processor: SharedProcessor = Arc::new(Counting(seen.clone()));
    let world = world_with([call(1), "a".into(), "b".into()], |agent| {
        agent.tool(echo()).shared_input_processor(processor.clone()).shared_output_processor(processor)
    })
    .await;
    world.run("hi").await;
    world.run("hi").await;
    assert_eq!(*seen.lock(), [221, 111]);
}

/// Changes all that a step may change, in the step with this number.
struct Shaping(u32, ScriptedModel);

#[async_trait]
impl Processor for Shaping {
    fn id(&self) -> &'static str {
        "shaping"
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::InputStep, Hook::LlmRequest])
    }
    async fn process_input_step(&self, cx: &mut Context<'_>, step: &mut InputStep) -> Outcome {
        if cx.step_number() == self.0 {
            step.models = vec![ModelEntry { model: Arc::new(self.1.clone()), max_retries: None }];
            step.tool_choice = Some(ToolChoiceOption::Mode(ToolChoiceMode::Required));
            step.active_tools = Some(vec![]);
            step.model_settings.temperature = Some(0.0);
            step.system.push(PromptMessage::System { content: "now".into(), provider_options: None });
        }
        Ok(())
    }
    async fn process_llm_request(&self, _: &mut Context<'_>, request: &mut LlmRequest) -> Outcome {
        if request.model.model_id() == "other" {
            request.prompt.push(PromptMessage::System { content: "last".into(), provider_options: None });
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn proc_013_040_041_042_a_change_lasts_one_step() {
    let other = ScriptedModel::with_responses([call(2)]).named("scripted", "other");
    let world =
        world_with([call(1), "done".into()], |agent| agent.tool(echo()).input_processor(Shaping(1, other.clone())))
            .await;
    let settings = bugle::model::ModelSettings { top_p: Some(0.5), temperature: Some(0.9), ..Default::default() };
    world.run_with("hi", RunOptions { model_settings: Some(settings), ..RunOptions::default() }).await;
    let (first, shaped, last) = (&world.model.requests()[0], &other.requests()[0], &world.model.requests()[1]);
    let texts = |request: &bugle::model::ModelRequest| -> Vec<String> {
        let system = request.prompt.iter().filter_map(|turn| match turn {
            PromptMessage::System { content, .. } => Some(content.clone()),
            _ => None,
        });
        system.collect()
    };
    assert_eq!((texts(first), texts(last)), (vec!["You are plain.".into()], vec!["You are plain.".into()]));
    assert_eq!(texts(shaped), ["You are plain.", "now", "last"]);
    assert_eq!((shaped.settings.temperature, shaped.settings.top_p), (Some(0.0), Some(0.5)), "PROC-042");
    assert_eq!((first.settings.temperature, last.settings.temperature), (Some(0.9), Some(0.9)));
    assert_eq!((first.tools.len(), shaped.tools.len(), last.tools.len()), (1, 0, 1));
    // The call of an inactive tool was refused.
    let refused = json!(prompt(last)).to_string();
    assert!(refused.contains("Tool \\\"echo\\\" not found"), "{refused}");
}

#[tokio::test(start_paused = true)]
async fn proc_070_072_what_hooks_make_of_the_stream_is_what_counts() {
    let script = Script::new().text("one ").text("dropped ").text("two");
    let world = world_with([script], |agent| agent.output_processor(Shout)).await;
    let ran = world.run("hi").await;
    assert_eq!(ran.output.text, "ONE ONE TWOTWO");
    assert_eq!(crate::support::text(&ran.chunks), "ONE ONE TWOTWO");
    assert_eq!(world.texts().await, ["hi", "ONE ONE TWOTWO"]);
}

/// Drops calls of tools.
struct NoCalls;

#[async_trait]
impl Processor for NoCalls {
    fn id(&self) -> &'static str {
        "no-calls"
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::OutputStream])
    }
    async fn process_output_stream(&self, _: &mut Context<'_>, chunk: Chunk, out: &mut Chunks) -> Outcome {
        if chunk.kind() != "tool-call" {
            out.push(chunk);
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn proc_071_a_step_whose_every_call_was_dropped_ends_the_run() {
    let world = world_with([call(1), "never".into()], |agent| agent.tool(echo()).output_processor(NoCalls)).await;
    let ran = world.run("hi").await;
    assert_eq!(world.model.requested(), 1);
    assert!(ran.all("tool-result").is_empty());
    assert_eq!(ran.output.finish_reason, bugle::chunk::FinishReason::Stop);
}

/// Changes a tool's result, the step's text and the answer.
struct Editing;

#[async_trait]
impl Processor for Editing {
    fn id(&self) -> &'static str {
        "editing"
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::ToolResult, Hook::OutputStep, Hook::OutputResult])
    }
    async fn process_tool_result(&self, _: &mut Context<'_>, result: &mut ToolResult) -> Outcome {
        assert_eq!((&*result.tool_name, &result.args), ("echo", &json!({"n": 1})));
        result.result = json!("clean");
        Ok(())
    }
    async fn process_output_step(&self, _: &mut Context<'_>, step: &mut OutputStep) -> Outcome {
        step.text = step.text.replace("raw", "stored");
        Ok(())
    }
    async fn process_output_result(&self, _: &mut Context<'_>, result: &mut OutputResult) -> Outcome {
        result.text.push_str(" (given)");
        result.object = Some(json!({"seen": true}));
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn proc_010_results_texts_and_answers_may_be_changed() {
    let world = world_with([call(1), "raw".into()], |agent| agent.tool(echo()).output_processor(Editing)).await;
    let ran = world.run("hi").await;
    assert_eq!(ran.payload("tool-result")["result"], "clean");
    assert!(json!(prompt(&world.model.requests()[1])).to_string().contains("clean"));
    assert_eq!(ran.output.text, "stored (given)");
    assert_eq!(ran.output.object, Some(json!({"seen": true})));
    assert_eq!(world.stored().await.last().unwrap().joined_text(), "stored");
    assert_eq!(ran.finish()["output"]["object"], json!({"seen": true}));
}

#[tokio::test(start_paused = true)]
async fn proc_012_hooks_that_leave_all_alone_change_nothing() {
    let plain = world_with([call(1), "done".into()], |agent| agent.tool(echo())).await;
    let watched = world_with([call(1), "done".into()], |agent| {
        agent.tool(echo()).input_processor(Spy::new("p", &ALL)).output_processor(Spy::new("o", &ALL))
    })
    .await;
    let (one, other) = (plain.run("hi").await, watched.run("hi").await);
    assert_eq!(one.kinds(), other.kinds());
    assert_eq!(one.output.text, other.output.text);
    let parts = |parts: Vec<bugle::json::Value>| -> Vec<String> {
        let kinds = parts.iter().map(|part| format!("{}{}", part["type"], part["text"]));
        kinds.collect()
    };
    assert_eq!(parts(plain.answer_parts().await), parts(watched.answer_parts().await));
    assert_eq!(json!(prompt(&plain.model.requests()[1])), json!(prompt(&watched.model.requests()[1])));
}

#[tokio::test(start_paused = true)]
async fn loop_034_proc_044_sig_240_input_during_step_hooks_prepares_the_same_step_again() {
    struct Slow(Arc<Notify>, Arc<Notify>, Spy);
    #[async_trait]
    impl Processor for Slow {
        fn id(&self) -> &'static str {
            "slow"
        }
        fn hooks(&self) -> HookSet {
            HookSet::of(&[Hook::InputStep])
        }
        async fn process_input_step(&self, cx: &mut Context<'_>, step: &mut InputStep) -> Outcome {
            self.2.process_input_step(cx, step).await?;
            self.0.notify_one();
            self.1.notified().await;
            Ok(())
        }
    }
    let (reached, open) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let spy = Spy::new("slow", &ALL);
    let slow = Slow(reached.clone(), open.clone(), spy.clone());
    let world = world_with(["answer"], |agent| agent.input_processor(slow)).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    reached.notified().await;
    world.send("more").await;
    open.notify_one();
    reached.notified().await;
    open.notify_one();
    watcher.until_end_of(&run).await;
    assert_eq!(world.model.requested(), 1, "SIG-224: the first request was never sent");
    assert_eq!(world.asked(0), ["hi", "more"]);
    assert_eq!(spy.logged(), ["slow.processInputStep 0", "slow.processInputStep 0"]);
}

#[tokio::test(start_paused = true)]
async fn proc_014_a_processor_may_answer_in_the_models_place() {
    use bugle::{
        chunk::{FinishReason, Usage},
        model::ModelEvent,
    };
    struct Canned;
    #[async_trait]
    impl Processor for Canned {
        fn id(&self) -> &'static str {
            "canned"
        }
        fn hooks(&self) -> HookSet {
            HookSet::of(&[Hook::LlmRequest])
        }
        async fn process_llm_request(&self, _: &mut Context<'_>, request: &mut LlmRequest) -> Outcome {
            let (id, text) = ("t".to_owned(), "canned".to_owned());
            request.response = Some(vec![
                ModelEvent::TextDelta { id, text },
                ModelEvent::Finish {
                    reason: FinishReason::Stop,
                    raw_reason: None,
                    usage: Usage::default(),
                    provider_metadata: None,
                },
            ]);
            Ok(())
        }
    }
    let spy = Spy::new("spy", &[Hook::LlmRequest, Hook::LlmResponse]);
    let world = world_with(["never"], |agent| {
        agent.input_processor(Canned).input_processor(spy.clone()).output_processor(Shout)
    })
    .await;
    let ran = world.run("hi").await;
    assert_eq!((ran.output.text.as_str(), world.model.requested()), ("canned", 0), "stream hooks do not run");
    assert_eq!((spy.count(Hook::LlmRequest), spy.count(Hook::LlmResponse)), (1, 0));
    assert_eq!(world.texts().await, ["hi", "canned"]);
}

#[tokio::test(start_paused = true)]
async fn sig_208_input_hooks_change_signals_and_leave_them_out() {
    struct Clean;
    #[async_trait]
    impl Processor for Clean {
        fn id(&self) -> &'static str {
            "clean"
        }
        fn hooks(&self) -> HookSet {
            HookSet::of(&[Hook::Input])
        }
        async fn process_input(&self, _: &mut Context<'_>, input: &mut Input) -> Outcome {
            input.messages.retain(|message| message.joined_text() != "gone");
            for message in &mut input.messages {
                for part in &mut message.content.parts {
                    if let bugle::message::Part::Text(text) = part {
                        text.text = text.text.replace("secret", "***");
                    }
                }
            }
            if !input.mid_run {
                input.system.push("Be careful.".into());
            }
            Ok(())
        }
    }
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into()]);
    let agent = builder("plain", &model).input_processor(Clean).build().unwrap();
    let world = crate::support::world_of(model, [agent]).await;
    let mut watcher = world.watch().await;
    let run = world.send("my secret").await.run_id.unwrap();
    gate.reached().await;
    world.send("gone").await;
    world.send("secret too").await;
    gate.open();
    watcher.until_end_of(&run).await;
    assert_eq!(watcher.echoes(), ["my ***", "*** too"]);
    assert_eq!(world.asked(1), ["my ***", "*** too"]);
    assert_eq!(world.texts().await, ["my ***", "a", "*** too", "gone", "b"]);
    let system = json!(world.model.requests()[1].prompt[1]);
    assert_eq!(system["content"], "Be careful.", "of the whole run");
}

#[tokio::test(start_paused = true)]
async fn proc_001_a_processor_is_called_in_the_hooks_it_has_and_in_no_others() {
    for hook in ALL.iter().copied().filter(|hook| *hook != Hook::ApiError) {
        let (one, none) = (Spy::new("one", &[hook]), Spy::new("none", &[]));
        let shared: [SharedProcessor; 2] = [Arc::new(one.clone()), Arc::new(none.clone())];
        // Lists of a run may hold what does nothing in them.
        let list = Processors::new(shared).unwrap();
        let world = world_with([call(1), "done".into()], |agent| {
            let output = list.clone();
            agent
                .tool(echo())
                .input_processors_per(move |_| list.clone())
                .output_processors_per(move |_| output.clone())
        })
        .await;
        assert_eq!(world.run("hi").await.output.text, "done");
        let name = format!("one.{}", hook.name());
        assert!(one.count(hook) > 0 && one.logged().iter().all(|line| line.starts_with(&name)), "{:?}", one.logged());
        assert!(none.logged().is_empty(), "{:?}", none.logged());
    }
}

#[tokio::test(start_paused = true)]
async fn loop_052_proc_043_the_calls_prepare_step_comes_last_and_holds_for_one_step() {
    let other = ScriptedModel::with_responses(["done"]).named("scripted", "other");
    let (named, seen) = (other.clone(), Arc::new(Mutex::new(Vec::new())));
    let kept = seen.clone();
    let prepare = PrepareStep(Arc::new(move |step: &mut InputStep| {
        kept.lock().push((step.system.len(), step.active_tools.clone()));
        if step.active_tools.is_some() {
            step.models = vec![ModelEntry { model: Arc::new(named.clone()), max_retries: None }];
            step.active_tools = None;
            step.tool_choice = Some(ToolChoiceOption::Mode(ToolChoiceMode::Required));
            step.model_settings.temperature = Some(0.2);
        }
    }));
    let shaping = Shaping(1, ScriptedModel::new());
    let world = world_with([call(1)], |agent| agent.tool(echo()).input_processor(shaping)).await;
    let ran = world.run_with("hi", RunOptions { prepare_step: Some(prepare), ..RunOptions::default() }).await;
    assert_eq!(ran.output.text, "done");
    assert_eq!(*seen.lock(), [(1, None), (2, Some(vec![]))], "it sees what processors have made of the step");
    let (first, second) = (&world.model.requests()[0], &other.requests()[0]);
    assert_eq!((first.settings.temperature, second.settings.temperature), (None, Some(0.2)));
    assert_eq!((first.tools.len(), second.tools.len()), (1, 1));
    assert_eq!(second.tool_choice, bugle::model::ToolChoice::Required);
}
