//! What hooks get, and may put in the place of messages: ids, the stream so far, arrays (PROC §2).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use bugle::{
    MessageId, RunOptions, ThreadKey,
    chunk::Chunk,
    json::json,
    message::{Part, Role, StoredMessage},
    model::{Gate, Script, ScriptedModel},
    processor::{
        ApiFailure, Chunks, Context, Hook, HookSet, Input, InputStep, LlmRequest, LlmResponse, Outcome, OutputResult,
        OutputStep, Processor, Recovery, ToolResult,
    },
    runtime::AbortOptions,
    signal::{LaneView, StateInput},
};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::{ALL, Act, Spy};
use crate::{
    r#loop::{call, echo, prompt, world_with},
    support::{builder, world_of},
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
pub(super) struct Doing(Hook, AtomicUsize, usize, Change);

impl Doing {
    pub(super) fn new(
        hook: Hook,
        n: usize,
        change: impl Fn(&mut Context<'_>) -> Outcome + Send + Sync + 'static,
    ) -> Self {
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
