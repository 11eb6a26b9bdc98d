//! Input while the model only thinks (SIG §11).

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bugle::{
    RunOptions,
    agent::{Interrupt, ModelEntry},
    chunk::{FinishReason, Payload, SourcePayload, Usage},
    json::json,
    model::{Gate, ModelEvent, ModelSettings, Script, ScriptedModel, Timeouts},
    run::Hooks,
    runtime::{Action, ActiveBehavior, IdleBehavior, Target},
    tool::{Tool, ToolContext},
};

use crate::support::{World, builder, message, world, world_of};

fn options(world: &World, options: RunOptions) -> Target {
    let mut target = world.target();
    target.if_idle.options = Some(Box::new(options));
    target
}

/// Sends a second message once the first answer has produced `events`; gives how many requests were cancelled.
async fn cancelled_after(events: impl IntoIterator<Item = ModelEvent>) -> usize {
    let gate = Gate::new();
    let first = events.into_iter().fold(Script::new().headers(), Script::emit);
    let model = ScriptedModel::with_responses([first.gate(&gate).text("end"), "second".into()]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let run = world.send("one").await.run_id.unwrap();
    gate.reached().await;
    let joined = world.send("two").await;
    assert_eq!((joined.action, joined.run_id.as_ref()), (Action::Deliver, Some(&run)));
    gate.open();
    watcher.until_end_of(&run).await;
    assert_eq!(watcher.echoes(), ["one", "two"]);
    world.model.cancelled()
}

/// One test per kind of event: before content it interrupts, after it does not (SIG-222).
macro_rules! kinds {
    ($($name:ident: [$($event:expr),* $(,)?] => $cancelled:literal;)*) => {
        $(
            #[tokio::test(start_paused = true)]
            async fn $name() {
                assert_eq!(cancelled_after([$($event),*]).await, $cancelled);
            }
        )*
    };
}

fn reasoning(id: &str) -> ModelEvent {
    ModelEvent::ReasoningStart { id: id.into(), provider_metadata: None }
}

kinds! {
    sig_220_nothing_yet_is_interrupted: [] => 1;
    sig_222_warnings_are_no_content: [ModelEvent::Warnings(vec![json!("slow")])] => 1;
    sig_222_metadata_is_no_content: [ModelEvent::Metadata { id: None, timestamp: None, model_id: None }] => 1;
    sig_222_raw_is_no_content: [ModelEvent::Raw(json!({"n": 1}))] => 1;
    sig_222_reasoning_start_is_no_content: [reasoning("r")] => 1;
    sig_222_reasoning_delta_is_no_content: [
        reasoning("r"), ModelEvent::ReasoningDelta { id: "r".into(), text: "hm".into() },
    ] => 1;
    sig_222_signed_reasoning_is_no_content: [
        reasoning("r"),
        ModelEvent::ReasoningEnd {
            id: "r".into(),
            provider_metadata: json!({"anthropic": {"signature": "s"}}).as_object().cloned(),
        },
    ] => 1;
    sig_222_text_start_is_content: [ModelEvent::TextStart { id: "t".into(), provider_metadata: None }] => 0;
    sig_222_text_delta_is_content: [ModelEvent::TextDelta { id: "t".into(), text: "a".into() }] => 0;
    sig_222_empty_text_delta_is_content: [ModelEvent::TextDelta { id: "t".into(), text: String::new() }] => 0;
    sig_222_text_end_is_content: [ModelEvent::TextEnd { id: "t".into(), provider_metadata: None }] => 0;
    sig_222_tool_input_start_is_content: [
        ModelEvent::ToolInputStart { id: "c".into(), name: "search".into(), provider_executed: true },
    ] => 0;
    sig_222_tool_input_delta_is_content: [ModelEvent::ToolInputDelta { id: "c".into(), delta: "{".into() }] => 0;
    sig_222_tool_input_end_is_content: [ModelEvent::ToolInputEnd { id: "c".into() }] => 0;
    sig_222_tool_call_is_content: [ModelEvent::ToolCall {
        id: "c".into(), name: "search".into(), input: "{}".into(), provider_executed: true, provider_metadata: None,
    }] => 0;
    sig_222_tool_result_is_content: [ModelEvent::ToolResult {
        id: "c".into(), name: "search".into(), result: json!(1), is_error: false,
    }] => 0;
    sig_222_source_is_content: [ModelEvent::Source(SourcePayload {
        id: "s".into(), source_type: "url".into(), title: "T".into(), mime_type: None,
        url: Some("https://example.org".into()), provider_metadata: None,
    })] => 0;
    sig_222_file_is_content: [ModelEvent::File { data: "AA==".into(), media_type: "image/png".into() }] => 0;
}

#[tokio::test(start_paused = true)]
async fn sig_226_a_response_of_reasoning_only_that_has_ended_is_kept() {
    let model = ScriptedModel::with_responses([Script::new().think("hmm"), "second".into()]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let run = world.send("one").await.run_id.unwrap();
    // It has ended, but its run has not, when input comes.
    watcher.until("reasoning-end").await;
    world.send("two").await;
    watcher.until_end_of(&run).await;
    if watcher.echoes().len() == 1 {
        // The run had looked for the last time: a run of its own answers.
        watcher.until("finish").await;
    }
    assert_eq!(world.model.cancelled(), 0);
    assert_eq!(world.model.requested(), 2);
    assert_eq!(world.stored().await.len(), 4, "the reasoning is kept");
    assert_eq!(watcher.echoes(), ["one", "two"]);
}

#[tokio::test(start_paused = true)]
async fn sig_243_a_tool_is_started_by_a_request_that_can_no_longer_be_interrupted() {
    let gates = [Gate::new(), Gate::new()];
    let call = ModelEvent::ToolCall {
        id: "c".into(),
        name: "look".into(),
        input: "{}".into(),
        provider_executed: false,
        provider_metadata: None,
    };
    let begun = ModelEvent::ToolInputStart { id: "c".into(), name: "look".into(), provider_executed: false };
    let model = ScriptedModel::with_responses([
        Script::new().think("hmm").gate(&gates[0]).emit(call.clone()),
        Script::new()
            .think("hmm")
            .emit(begun)
            .gate(&gates[1])
            .emit(ModelEvent::ToolInputEnd { id: "c".into() })
            .emit(call),
        "done".into(),
    ]);
    let ran = Arc::new(AtomicUsize::new(0));
    let count = ran.clone();
    let look = Tool::json("look", move |_, _: ToolContext| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok(json!("seen")) }
    });
    let agent = builder("plain", &model).tool(look).build().unwrap();
    let world = world_of(model, [agent]).await;
    let mut watcher = world.watch().await;
    let run = world.send("one").await.run_id.unwrap();
    gates[0].reached().await;
    world.send("two").await;
    gates[0].open();
    gates[1].reached().await;
    assert_eq!((world.model.cancelled(), ran.load(Ordering::SeqCst)), (1, 0));
    world.send("three").await;
    gates[1].open();
    watcher.until_end_of(&run).await;
    assert_eq!((world.model.cancelled(), ran.load(Ordering::SeqCst)), (1, 1), "runs once");
    assert_eq!(world.asked(2), ["one", "two", "three"]);
}

#[tokio::test(start_paused = true)]
async fn sig_244_the_request_is_cancelled_within_five_milliseconds() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().think("hmm").gate(&gate), "answer".into()]);
    let world = world(model).await;
    world.send("one").await;
    gate.reached().await;
    // Virtual time passes only while everything waits for it: work counts as nothing, a delay counts in full.
    let began = tokio::time::Instant::now();
    world.send("two").await;
    world.model.until_cancelled(1).await;
    assert!(began.elapsed() <= Duration::from_millis(5), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn loop_032_loop_036_sig_237_five_interrupts_in_a_row_are_one_step() {
    let gates: Vec<Gate> = (0..5).map(|_| Gate::new()).collect();
    let thinking = gates.iter().map(|gate| Script::new().think("hmm").gate(gate).text("never"));
    let model = ScriptedModel::with_responses(thinking.chain(["answer".into()]).collect::<Vec<Script>>());
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let limit = options(&world, RunOptions { max_steps: Some(1), ..RunOptions::default() });
    let run = world.send_to(limit, "0").await.run_id.unwrap();
    for (n, gate) in gates.iter().enumerate() {
        gate.reached().await;
        assert_eq!(world.send(&(n + 1).to_string()).await.run_id.as_ref(), Some(&run));
    }
    watcher.until_end_of(&run).await;
    assert_eq!((world.model.requested(), world.model.cancelled()), (6, 5));
    assert_eq!(world.asked(5), ["0", "1", "2", "3", "4", "5"]);
    let kinds = watcher.kinds();
    assert_eq!(kinds.iter().filter(|kind| **kind == "step-finish").count(), 1, "SIG-236");
    assert_eq!(kinds.iter().filter(|kind| **kind == "reasoning-end").count(), 5, "SIG-233");
    assert_eq!(world.texts().await, ["0", "1", "2", "3", "4", "5", "answer"], "SIG-231");
    assert_eq!(watcher.echoes(), ["0", "1", "2", "3", "4", "5"]);
}

#[tokio::test(start_paused = true)]
async fn sig_246_two_hundred_inputs_during_reasoning() {
    const INPUTS: usize = 200;
    let gates: Vec<Gate> = (0..INPUTS).map(|_| Gate::new()).collect();
    let thinking = gates.iter().map(|gate| Script::new().think("hmm").gate(gate));
    let model = ScriptedModel::with_responses(thinking.chain(["answer".into()]).collect::<Vec<Script>>());
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let limit = options(&world, RunOptions { max_steps: Some(1), ..RunOptions::default() });
    let run = world.send_to(limit, "0").await.run_id.unwrap();
    for (n, gate) in gates.iter().enumerate() {
        gate.reached().await;
        world.send(&(n + 1).to_string()).await;
    }
    watcher.until_end_of(&run).await;
    let all: Vec<String> = (0..=INPUTS).map(|n| n.to_string()).collect();
    assert_eq!(world.model.requested(), INPUTS + 1);
    assert_eq!(world.asked(INPUTS), all);
    assert_eq!(watcher.echoes(), all);
    assert_eq!(watcher.text_of(&run), "answer");
}

#[tokio::test(start_paused = true)]
async fn sig_238_two_inputs_share_one_replacement() {
    let gate = Gate::new();
    let store = crate::faulty::Faulty::new();
    let model = ScriptedModel::with_responses([Script::new().think("hmm").gate(&gate), "answer".into()]);
    let world = crate::support::world_on(model.clone(), [crate::support::agent("plain", &model)], store.clone()).await;
    let mut watcher = world.watch().await;
    let run = world.send("one").await.run_id.unwrap();
    gate.reached().await;
    // Both are in the thread before the journal answers; the run waits for it (R9).
    let hold = store.hold("accept");
    let mut x = world.agent.send_message(&world.thread, "X").await.unwrap();
    let mut y = world.agent.send_message(&world.thread, "Y").await.unwrap();
    hold.reached().await;
    hold.open();
    x.accepted().await.unwrap();
    y.accepted().await.unwrap();
    watcher.until_end_of(&run).await;
    assert_eq!((world.model.requested(), world.model.cancelled()), (2, 1));
    assert_eq!(world.asked(1), ["one", "X", "Y"]);
}

#[tokio::test(start_paused = true)]
async fn sig_223_r06_input_that_is_in_the_next_prompt_costs_no_request() {
    let store = crate::faulty::Faulty::new();
    let model = ScriptedModel::with_responses(["answer"]);
    let world = crate::support::world_on(model.clone(), [crate::support::agent("plain", &model)], store.clone()).await;
    let mut watcher = world.watch().await;
    // The run has drained its wake input and writes it: input now comes between drain and request.
    let hold = store.hold("commit");
    let run = world.send("one").await.run_id.unwrap();
    hold.reached().await;
    world.send("two").await;
    world.send("three").await;
    hold.open();
    watcher.until_end_of(&run).await;
    let asked = world.model.requests().last().map(|request| crate::support::user_texts(&request.prompt)).unwrap();
    assert_eq!(asked, ["one", "two", "three"]);
    assert!(world.model.requested() <= 1, "the first request was not sent, or not without them");
}

#[tokio::test(start_paused = true)]
async fn sig_223_input_taken_at_a_boundary_does_not_cancel_the_next_request() {
    let store = crate::faulty::Faulty::new();
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into()]);
    let world = crate::support::world_on(model.clone(), [crate::support::agent("plain", &model)], store.clone()).await;
    let mut watcher = world.watch().await;
    let run = world.send("one").await.run_id.unwrap();
    gate.reached().await;
    world.send("two").await;
    let hold = store.hold("commit");
    gate.open();
    // "two" is taken in at D3 and written; "three" is taken in at D2, before the next request.
    hold.reached().await;
    world.send("three").await;
    hold.open();
    watcher.until_end_of(&run).await;
    assert_eq!((world.model.requested(), world.model.cancelled()), (2, 0));
    assert_eq!(world.asked(1), ["one", "two", "three"]);
}

#[tokio::test(start_paused = true)]
async fn loop_033_sig_221_queued_persisted_and_discarded_input_does_not_interrupt() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().think("hmm").gate(&gate).text("a"), "b".into()]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    world.send("one").await;
    gate.reached().await;
    let queued = world.queue("later").await.run_id.unwrap();
    world.send_to(world.target_for(ActiveBehavior::Persist, IdleBehavior::Wake), "note").await;
    world.send_to(world.target_for(ActiveBehavior::Discard, IdleBehavior::Wake), "gone").await;
    gate.open();
    watcher.until_end_of(&queued).await;
    assert_eq!((world.model.requested(), world.model.cancelled()), (2, 0));
    assert_eq!(world.asked(0), ["one"]);
}

#[tokio::test(start_paused = true)]
async fn sig_245_an_agent_or_an_input_may_leave_thinking_alone() {
    for per_input in [false, true] {
        let gate = Gate::new();
        let model = ScriptedModel::with_responses([Script::new().think("hmm").gate(&gate).text("a"), "b".into()]);
        let agent = builder("plain", &model);
        let agent = if per_input { agent } else { agent.interrupt(Interrupt::Never) };
        let world = world_of(model, [agent.build().unwrap()]).await;
        let mut watcher = world.watch().await;
        let run = world.send("one").await.run_id.unwrap();
        gate.reached().await;
        let quiet = RunOptions { interrupt: per_input.then_some(Interrupt::Never), ..RunOptions::default() };
        let joined = world.send_to(options(&world, quiet), "two").await;
        assert_eq!(joined.run_id.as_ref(), Some(&run), "SIG-247: same outcome");
        gate.open();
        watcher.until_end_of(&run).await;
        assert_eq!((world.model.requested(), world.model.cancelled()), (2, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn sig_245_not_interrupting_is_said_of_one_input_only() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().think("hmm").gate(&gate), "b".into()]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let quiet = RunOptions { interrupt: Some(Interrupt::Never), ..RunOptions::default() };
    let run = world.send_to(options(&world, quiet), "one").await.run_id.unwrap();
    gate.reached().await;
    world.send("two").await;
    watcher.until_end_of(&run).await;
    assert_eq!(world.model.cancelled(), 1);
}

#[tokio::test(start_paused = true)]
async fn sig_239_usage_of_interrupted_requests_is_in_no_total() {
    let usage = |total| Usage { total_tokens: Some(total), ..Usage::default() };
    let gate = Gate::new();
    // It has reported its usage, but not ended, when it is interrupted.
    let model = ScriptedModel::with_responses([
        Script::new().think("hmm").gate(&gate).finish_with(FinishReason::Stop, usage(100)),
        Script::new().text("a").finish_with(FinishReason::Stop, usage(7)),
    ]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    world.send("one").await;
    gate.reached().await;
    world.send("two").await;
    let finish = watcher.until("finish").await;
    let Some(Payload::Finish(finish)) = finish.payload() else { panic!("no finish") };
    assert_eq!(finish.output.usage.total_tokens, Some(7));
}

#[tokio::test(start_paused = true)]
async fn sig_232_hooks_do_not_see_an_interrupt() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().think("hmm").gate(&gate), "a".into()]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let counts: Arc<[AtomicUsize; 4]> = Arc::default();
    let count = |n: usize| {
        let counts = counts.clone();
        move || {
            counts[n].fetch_add(1, Ordering::SeqCst);
        }
    };
    let (steps, finishes, errors, aborts) = (count(0), count(1), count(2), count(3));
    let hooks = Hooks {
        on_chunk: None,
        on_step_finish: Some(Arc::new(move |_: &_| steps())),
        on_finish: Some(Arc::new(move |_: &_| finishes())),
        on_error: Some(Arc::new(move |_: &_| errors())),
        on_abort: Some(Arc::new(move |_: &_| aborts())),
    };
    let run = world.send_to(options(&world, RunOptions { hooks, ..RunOptions::default() }), "one").await;
    gate.reached().await;
    world.send("two").await;
    watcher.until_end_of(run.run_id.as_ref().unwrap()).await;
    assert_eq!(counts.each_ref().map(|count| count.load(Ordering::SeqCst)), [1, 1, 0, 0]);
}

#[tokio::test(start_paused = true)]
async fn sig_231_earlier_steps_stay_byte_for_byte_in_the_replacement() {
    let gate = Gate::new();
    let signed = json!({"anthropic": {"signature": "s1"}}).as_object().cloned();
    let model = ScriptedModel::with_responses([
        Script::new()
            .emit(reasoning("r"))
            .emit(ModelEvent::ReasoningDelta { id: "r".into(), text: "why".into() })
            .emit(ModelEvent::ReasoningEnd { id: "r".into(), provider_metadata: signed })
            .call("look", json!({"n": 1})),
        Script::new().think("hmm").gate(&gate),
        "done".into(),
    ]);
    let look = Tool::json("look", |_, _: ToolContext| async { Ok(json!({"seen": [1, 2]})) });
    let agent = builder("plain", &model).tool(look).build().unwrap();
    let world = world_of(model, [agent]).await;
    let mut watcher = world.watch().await;
    let run = world.send("one").await.run_id.unwrap();
    gate.reached().await;
    world.send("two").await;
    watcher.until_end_of(&run).await;
    let requests = world.model.requests();
    let (before, after) = (&requests[1].prompt, &requests[2].prompt);
    assert_eq!(&after[..before.len()], &before[..]);
    assert_eq!(after.len(), before.len() + 1);
}

#[tokio::test(start_paused = true)]
async fn sig_225_the_replacement_starts_with_the_model_that_was_selected() {
    let gate = Gate::new();
    let broken = ScriptedModel::with_responses([Script::new().fail_with(400, "no")]).named("first", "broken");
    let backup =
        ScriptedModel::with_responses([Script::new().think("hmm").gate(&gate), "a".into()]).named("second", "backup");
    let agent = bugle::Agent::builder("plain")
        .model_entry(ModelEntry { model: Arc::new(broken.clone()), max_retries: Some(0) })
        .model_entry(ModelEntry { model: Arc::new(backup.clone()), max_retries: Some(0) })
        .memory(bugle::memory::MemoryOptions::last(20))
        .build()
        .unwrap();
    let world = world_of(backup.clone(), [agent]).await;
    let mut watcher = world.watch().await;
    let run = world.send("one").await.run_id.unwrap();
    gate.reached().await;
    world.send("two").await;
    watcher.until_end_of(&run).await;
    assert_eq!((broken.requested(), backup.requested()), (1, 2));
}

#[tokio::test(start_paused = true)]
async fn sig_241_r11_the_total_time_limit_wins_and_pending_input_is_answered_later() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().think("hmm").gate(&gate), "follow-up".into()]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let settings = ModelSettings {
        timeout: Some(Timeouts { total_ms: Some(100.0), ..Timeouts::default() }),
        ..ModelSettings::default()
    };
    let limit = options(&world, RunOptions { model_settings: Some(settings), ..RunOptions::default() });
    let run = world.send_to(limit, "one").await.run_id.unwrap();
    gate.reached().await;
    tokio::time::advance(Duration::from_millis(100)).await;
    world.send("two").await;
    let end = watcher.until_end_of(&run).await;
    assert_eq!(end.kind(), "error");
    watcher.until("finish").await;
    assert_eq!(world.model.requested(), 2);
    assert_eq!(watcher.echoes(), ["one", "two"]);
    assert_eq!(watcher.kinds_of(&run).iter().filter(|kind| **kind == "error").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn sig_241_r10_an_abort_wins_over_an_interrupt() {
    let gate = Gate::new();
    let store = crate::faulty::Faulty::new();
    let model = ScriptedModel::with_responses([Script::new().think("hmm").gate(&gate), "follow-up".into()]);
    let world = crate::support::world_on(model.clone(), [crate::support::agent("plain", &model)], store.clone()).await;
    let mut watcher = world.watch().await;
    let run = world.send("one").await.run_id.unwrap();
    gate.reached().await;
    // The interrupted run waits for the journal when it is stopped.
    let hold = store.hold("accept");
    let mut sent = world.agent.send_message(&world.thread, message("two")).await.unwrap();
    hold.reached().await;
    world.model.until_cancelled(1).await;
    assert!(world.agent.abort_thread(&world.thread, Default::default()).await.unwrap());
    hold.open();
    sent.accepted().await.unwrap();
    let end = watcher.until_end_of(&run).await;
    assert_eq!(end.kind(), "abort");
    watcher.until("finish").await;
    assert_eq!(watcher.echoes(), ["one", "two"]);
    assert_eq!(world.model.requested(), 2);
    assert_eq!(world.texts().await, ["one", "two", "follow-up"]);
}
