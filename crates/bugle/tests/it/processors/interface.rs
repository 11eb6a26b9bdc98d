//! What hooks get and may give: ids, the stream so far, arrays that replace, the changes of a step (PROC §2, §4, §5).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use bugle::{
    Bugle, MessageId, RunOptions, ThreadKey,
    agent::ModelEntry,
    chunk::{Chunk, FinishReason},
    json::{Value, json},
    memory::MemoryOptions,
    message::{Part, Role, StoredMessage},
    model::{Gate, ModelError, Script, ScriptedModel, SharedModel},
    processor::{
        ApiFailure, Chunks, Context, Hook, HookSet, Input, InputStep, LlmRequest, LlmResponse, Outcome, OutputResult,
        OutputStep, Processor, ProcessorError, Recovery, ToolResult,
    },
    run::StructuredOutput,
    runtime::AbortOptions,
    signal::{LaneView, StateInput},
};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{ALL, Act, Spy};
use crate::{
    r#loop::{call, echo, prompt, world_with},
    support::{builder, warnings, world_of},
};

fn says(role: Role, text: &str) -> StoredMessage {
    StoredMessage::text(MessageId::from(""), role, text, Default::default())
}

fn rewrite(message: &mut StoredMessage, text: &str) {
    message.content.parts = vec![Part::text(text, None)];
}

/// What a hook knows of its run.
type Known = (Hook, bool, String, Option<ThreadKey>, CancellationToken);

/// Writes down in every hook who the run is.
#[derive(Clone, Default)]
struct Asking(Arc<Mutex<Vec<Known>>>);

impl Asking {
    fn at(&self, cx: &Context<'_>) {
        let agent = cx.agent().is_some_and(|agent| agent.agent().id() == cx.agent_id());
        let known = (cx.hook(), agent, cx.run_id().to_string(), cx.thread().cloned(), cx.abort().clone());
        self.0.lock().push(known);
    }
}

#[async_trait]
impl Processor for Asking {
    fn id(&self) -> &'static str {
        "asking"
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&ALL)
    }
    async fn process_input(&self, cx: &mut Context<'_>, _: &mut Input) -> Outcome {
        self.at(cx);
        Ok(())
    }
    async fn process_input_step(&self, cx: &mut Context<'_>, _: &mut InputStep) -> Outcome {
        self.at(cx);
        Ok(())
    }
    async fn compute_state_signal(&self, cx: &mut Context<'_>, _: &LaneView) -> Outcome<Option<StateInput>> {
        self.at(cx);
        Ok(None)
    }
    async fn process_llm_request(&self, cx: &mut Context<'_>, _: &mut LlmRequest) -> Outcome {
        self.at(cx);
        Ok(())
    }
    async fn process_output_stream(&self, cx: &mut Context<'_>, chunk: Chunk, out: &mut Chunks) -> Outcome {
        self.at(cx);
        out.push(chunk);
        Ok(())
    }
    async fn process_llm_response(&self, cx: &mut Context<'_>, _: &LlmResponse) -> Outcome {
        self.at(cx);
        Ok(())
    }
    async fn process_output_step(&self, cx: &mut Context<'_>, _: &mut OutputStep) -> Outcome {
        self.at(cx);
        Ok(())
    }
    async fn process_tool_result(&self, cx: &mut Context<'_>, _: &mut ToolResult) -> Outcome {
        self.at(cx);
        Ok(())
    }
    async fn process_output_result(&self, cx: &mut Context<'_>, _: &mut OutputResult) -> Outcome {
        self.at(cx);
        Ok(())
    }
    async fn process_api_error(&self, cx: &mut Context<'_>, _: &ApiFailure) -> Outcome<Recovery> {
        self.at(cx);
        Ok(Recovery::Retry)
    }
}

#[tokio::test(start_paused = true)]
async fn proc_010_every_hook_knows_agent_run_thread_resource_and_the_runs_own_token() {
    let asking = Asking::default();
    let shared: bugle::processor::SharedProcessor = Arc::new(asking.clone());
    let gate = Gate::new();
    let scripts = [Script::new().fail_with(400, "no"), call(1), Script::new().text("a").gate(&gate)];
    let world = world_with(scripts, |agent| {
        agent.tool(echo()).shared_input_processor(shared.clone()).shared_output_processor(shared)
    })
    .await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    let seen = asking.0.lock().clone();
    for hook in ALL.into_iter().filter(|hook| *hook != Hook::OutputResult) {
        assert!(seen.iter().any(|known| known.0 == hook), "{}", hook.name());
    }
    for (hook, agent, run_id, thread, abort) in &seen {
        assert!(*agent && *run_id == run.to_string(), "{}", hook.name());
        assert_eq!(thread.as_ref(), Some(&world.thread), "{}", hook.name());
        assert!(!abort.is_cancelled(), "{}", hook.name());
    }
    assert!(watcher.subscription().abort(AbortOptions::default()).await.unwrap());
    watcher.until("abort").await;
    assert!(seen.iter().all(|known| known.4.is_cancelled()), "it is the run's token in each of them");
    // At the end of a run, too.
    let world = world_with(["a"], |agent| agent.output_processor(asking.clone())).await;
    world.run("hi").await;
    let seen = asking.0.lock().clone();
    let last = seen.iter().find(|known| known.0 == Hook::OutputResult).unwrap();
    assert!(last.1 && last.3.as_ref() == Some(&world.thread));
}

/// Keeps what it sees of the stream so far.
#[derive(Clone)]
struct History {
    wants: bool,
    drops: &'static str,
    seen: Arc<Mutex<Vec<Vec<Arc<Chunk>>>>>,
}

#[async_trait]
impl Processor for History {
    fn id(&self) -> &str {
        if self.drops.is_empty() { "history" } else { "dropping" }
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::OutputStream])
    }
    fn wants_stream_parts(&self) -> bool {
        self.wants
    }
    async fn process_output_stream(&self, cx: &mut Context<'_>, chunk: Chunk, out: &mut Chunks) -> Outcome {
        self.seen.lock().push(cx.stream_parts().to_vec());
        if self.wants {
            assert_eq!(
                cx.stream_parts().last().map(|part| &**part),
                Some(&chunk),
                "the one that is judged is the last"
            );
        }
        if self.drops.is_empty() || !json!(chunk).to_string().contains(self.drops) {
            out.push(chunk);
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn proc_010_stream_parts_are_the_chunks_of_the_step_as_they_came_shared_and_only_where_wanted() {
    let history = |wants, drops| History { wants, drops, seen: Arc::default() };
    let (first, second, idle) = (history(true, "secret"), history(true, ""), history(false, "nothing"));
    let scripts = [Script::new().text("a ").text("secret ").text("b").call("echo", json!({})), "c".into()];
    let world = world_with(scripts, |agent| {
        agent.tool(echo()).output_processor(first.clone()).output_processor(second.clone())
    })
    .await;
    world.run("hi").await;
    let texts = |parts: &[Arc<Chunk>]| -> String { crate::support::text(parts.iter().map(|part| &**part)) };
    let seen = first.seen.lock().clone();
    let step = seen.iter().rposition(|parts| texts(parts).contains('b')).unwrap();
    assert_eq!(texts(&seen[step]), "a secret b", "as they came to it");
    let kinds: Vec<&str> = seen[step].iter().map(|part| part.kind()).collect();
    assert_eq!((kinds[0], kinds.last()), ("step-start", Some(&"step-finish")), "of the whole step: {kinds:?}");
    let last = seen.last().unwrap();
    assert_eq!((texts(last).as_str(), last[0].kind()), ("c", "step-start"), "each step has its own");
    for pair in seen[..=step].windows(2) {
        assert_eq!(pair[1].len(), pair[0].len() + 1);
        assert!(pair[0].iter().zip(&pair[1]).all(|(one, other)| Arc::ptr_eq(one, other)), "shared, not copied");
    }
    let of_second = second.seen.lock().iter().map(|parts| texts(parts)).max_by_key(String::len).unwrap();
    assert_eq!(of_second, "a b", "behind a hook that drops");
    let world = world_with(["a"], |agent| agent.output_processor(idle.clone())).await;
    world.run("hi").await;
    assert!(!idle.seen.lock().is_empty() && idle.seen.lock().iter().all(Vec::is_empty), "PROC-073: nothing is kept");
}

type Change = Arc<dyn Fn(&mut Context<'_>) -> Outcome + Send + Sync>;

/// Does something in one call of one hook.
struct Doing(Hook, AtomicUsize, usize, Change);

impl Doing {
    fn new(hook: Hook, n: usize, change: impl Fn(&mut Context<'_>) -> Outcome + Send + Sync + 'static) -> Self {
        Self(hook, AtomicUsize::new(0), n, Arc::new(change))
    }
    fn at(&self, cx: &mut Context<'_>) -> Outcome {
        if cx.hook() == self.0 && self.1.fetch_add(1, Ordering::SeqCst) == self.2 { (self.3)(cx) } else { Ok(()) }
    }
}

#[async_trait]
impl Processor for Doing {
    fn id(&self) -> &'static str {
        "doing"
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&[self.0])
    }
    async fn process_input(&self, cx: &mut Context<'_>, _: &mut Input) -> Outcome {
        self.at(cx)
    }
    async fn process_input_step(&self, cx: &mut Context<'_>, _: &mut InputStep) -> Outcome {
        self.at(cx)
    }
    async fn process_llm_request(&self, cx: &mut Context<'_>, _: &mut LlmRequest) -> Outcome {
        self.at(cx)
    }
    async fn process_output_step(&self, cx: &mut Context<'_>, _: &mut OutputStep) -> Outcome {
        self.at(cx)
    }
    async fn process_tool_result(&self, cx: &mut Context<'_>, _: &mut ToolResult) -> Outcome {
        self.at(cx)
    }
    async fn process_output_result(&self, cx: &mut Context<'_>, _: &mut OutputResult) -> Outcome {
        self.at(cx)
    }
}

#[tokio::test(start_paused = true)]
async fn proc_011_an_array_in_an_input_step_removes_changes_and_adds() {
    let doing = Doing::new(Hook::InputStep, 1, |cx| {
        let mut messages = cx.messages().to_vec();
        assert_eq!(messages.len(), 4, "{messages:?}");
        messages.remove(0);
        let answer = messages.iter_mut().find(|message| message.role == Role::User).unwrap();
        rewrite(answer, "go (changed)");
        messages.push(says(Role::User, "added"));
        messages.push(says(Role::System, "Be brief."));
        cx.replace_messages(messages)
    });
    let scripts: [Script; 4] = ["old".into(), call(1), "done".into(), "next".into()];
    let model = ScriptedModel::with_responses(scripts);
    let plain = builder("plain", &model).tool(echo()).build().unwrap();
    let shaping = builder("other", &model).tool(echo()).input_processor(doing).build().unwrap();
    let world = world_of(model, [plain, shaping]).await;
    world.run("early").await;
    crate::r#loop::run_on(&world.other(), "go", Some(&world.thread), RunOptions::default()).await;
    assert_eq!(world.asked(1), ["early", "go"]);
    assert_eq!(world.asked(2), ["go (changed)", "added"], "removed, changed, added");
    let asked = prompt(&world.model.requests()[2]);
    assert_eq!((&asked[1]["role"], &asked[1]["content"]), (&json!("system"), &json!("Be brief.")), "{asked}");
    assert!(asked.to_string().contains("old"), "what is left alone stays: {asked}");
    let roles: Vec<(Role, String)> =
        world.stored().await.iter().map(|message| (message.role, message.joined_text())).collect();
    assert_eq!(
        roles,
        [
            (Role::User, "early".into()),
            (Role::Assistant, "old".into()),
            (Role::User, "go (changed)".into()),
            (Role::Assistant, String::new()),
            (Role::User, "added".into()),
            (Role::Assistant, "done".into()),
        ],
        "what is removed leaves the prompt, not the store; the answer after what was added is another message"
    );
    world.run("then").await;
    let asked = prompt(&world.model.requests()[3]).to_string();
    assert!(!asked.contains("Be brief."), "of one step: {asked}");
}

#[tokio::test(start_paused = true)]
async fn proc_011_an_array_in_output_hooks_adds_to_the_answer_and_changes_it() {
    for (hook, n) in [(Hook::OutputStep, 0), (Hook::ToolResult, 0), (Hook::OutputResult, 0)] {
        let doing = Doing::new(hook, n, move |cx| {
            let mut messages = cx.messages().to_vec();
            if cx.hook() == Hook::OutputResult {
                messages.retain(|message| message.role == Role::Assistant);
                rewrite(&mut messages[0], "rewritten");
            }
            messages.push(says(Role::Assistant, "appendix"));
            messages.push(says(Role::System, "never"));
            cx.replace_messages(messages)
        });
        let world =
            world_with([call(1), "done".into(), "next".into()], |agent| agent.tool(echo()).output_processor(doing))
                .await;
        let ran = world.run("hi").await;
        assert_eq!(ran.output.error, None, "{}", hook.name());
        let texts = world.texts().await;
        assert!(texts.contains(&"appendix".to_owned()) && texts[0] == "hi", "{}: {texts:?}", hook.name());
        assert_eq!(texts.contains(&"rewritten".to_owned()), hook == Hook::OutputResult, "{texts:?}");
        world.run("more").await;
        let asked = prompt(world.model.requests().last().unwrap()).to_string();
        assert!(asked.contains("appendix") && !asked.contains("never"), "{asked}");
    }
    // Of two answers one is left out: it is none of the run's.
    let doing = Doing::new(Hook::OutputResult, 0, |cx| {
        let own = cx.messages().iter().filter(|message| message.role == Role::Assistant);
        let last: Vec<_> = own.skip(1).cloned().collect();
        assert_eq!(last.len(), 1);
        cx.replace_messages(last)
    });
    let remind = Spy::new("p", &ALL).acting(Hook::InputStep, 1, Act::Signal("remind"));
    let world = world_with([call(1), "done".into()], |agent| {
        agent.tool(echo()).input_processor(remind).output_processor(doing)
    })
    .await;
    let ran = world.run("hi").await;
    assert_eq!(ran.output.response_messages.len(), 1, "{:?}", ran.output.response_messages);
}

#[tokio::test(start_paused = true)]
async fn proc_012_an_empty_array_of_an_output_hook_changes_nothing_and_removing_is_explicit() {
    for hook in [Hook::OutputStep, Hook::ToolResult, Hook::OutputResult] {
        let doing = Doing::new(hook, 0, |cx| cx.replace_messages(Vec::new()));
        let world = world_with([call(1), "done".into()], |agent| agent.tool(echo()).output_processor(doing)).await;
        let ran = world.run("hi").await;
        assert_eq!(ran.output.text, "done");
        assert_eq!(world.texts().await, ["hi", "done"], "{}", hook.name());
    }
    let doing = Doing::new(Hook::InputStep, 1, |cx| {
        let first = cx.messages()[0].id.clone();
        assert!(cx.remove_message(&first) && !cx.remove_message(&first));
        Ok(())
    });
    let world = world_with([call(1), "done".into()], |agent| agent.tool(echo()).input_processor(doing)).await;
    world.run("hi").await;
    assert_eq!((world.asked(0), world.asked(1)), (vec!["hi".to_owned()], vec![]));
}

#[tokio::test(start_paused = true)]
async fn proc_011_hooks_without_messages_and_two_messages_of_one_id_are_errors() {
    let twice = |cx: &mut Context<'_>| {
        let one = cx.messages()[0].clone();
        cx.replace_messages(vec![one.clone(), one])
    };
    let doing = Doing::new(Hook::InputStep, 0, twice);
    let world = world_with(["never"], |agent| agent.input_processor(doing)).await;
    let error = world.run("hi").await.output.error.unwrap();
    assert!(error.message.contains("two messages have the id"), "{}", error.message);
    for hook in [Hook::Input, Hook::LlmRequest] {
        let doing = Doing::new(hook, 0, |cx| cx.replace_messages(Vec::new()));
        let world = world_with(["never"], |agent| agent.input_processor(doing)).await;
        let error = world.run("hi").await.output.error.unwrap();
        assert!(error.message.contains("cannot replace messages"), "{}", error.message);
    }
}

/// Puts other messages into the place of the new ones.
struct Expanding;

#[async_trait]
impl Processor for Expanding {
    fn id(&self) -> &'static str {
        "expanding"
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::Input])
    }
    async fn process_input(&self, _: &mut Context<'_>, input: &mut Input) -> Outcome {
        if input.messages.iter().any(|message| message.joined_text() == "short") {
            input.messages.clear();
            input.messages.push(says(Role::User, "a long question"));
        }
        input.messages.push(says(Role::System, "Answer at length."));
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn proc_011_new_messages_of_an_input_hook_are_input_and_system_ones_are_instructions() {
    let world = world_with([call(1), "done".into()], |agent| agent.tool(echo()).input_processor(Expanding)).await;
    world.run("short").await;
    for request in world.model.requests() {
        let asked = prompt(&request);
        assert_eq!(
            (&asked[1]["role"], &asked[1]["content"]),
            (&json!("system"), &json!("Answer at length.")),
            "{asked}"
        );
        assert_eq!(asked[2]["content"][0]["text"], "a long question", "{asked}");
    }
    assert_eq!(world.texts().await, ["a long question", "done"]);
    // Mid-run, too; the instruction is given once.
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into()]);
    let agent = builder("plain", &model).input_processor(Expanding).build().unwrap();
    let world = world_of(model, [agent]).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    world.send("short").await;
    gate.open();
    watcher.until_end_of(&run).await;
    assert_eq!(world.asked(1), ["hi", "a long question"]);
    let asked = prompt(&world.model.requests()[1]).to_string();
    assert_eq!(asked.matches("Answer at length.").count(), 1, "{asked}");
}

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
