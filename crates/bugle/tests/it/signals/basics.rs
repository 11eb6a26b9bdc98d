//! Waking, steering, queueing, stopping (SIG §7 to §14).

use bugle::{
    chunk::{FinishReason, Payload},
    model::{Gate, Script, ScriptedModel},
    runtime::{AbortOptions, Action},
};

use crate::support::world;

#[tokio::test(start_paused = true)]
async fn sig_100_sig_321_input_on_an_idle_thread_starts_a_run() {
    let world = world(ScriptedModel::with_responses([Script::new().text("awake")])).await;
    let mut watcher = world.watch().await;
    let sent = world.send("hello").await;
    assert_eq!(sent.action, Action::Wake);
    let run_id = sent.run_id.unwrap();
    watcher.until_end_of(&run_id).await;
    assert_eq!(
        watcher.kinds(),
        ["data-user-message", "start", "step-start", "text-start", "text-delta", "text-end", "step-finish", "finish"]
    );
    assert_eq!(watcher.text_of(&run_id), "awake");
    assert_eq!(world.texts().await, ["hello", "awake"]);
    assert_eq!(world.asked(0), ["hello"]);
}

#[tokio::test(start_paused = true)]
async fn sig_101_sig_201_sig_227_input_on_a_running_thread_joins_the_loop() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate).text("b"), Script::new().text("c")]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let first = world.send("one").await;
    gate.reached().await;
    let second = world.send("two").await;
    assert_eq!((second.action, &second.run_id), (Action::Deliver, &first.run_id));
    gate.open();
    watcher.until_end_of(first.run_id.as_ref().unwrap()).await;
    let kinds = watcher.kinds();
    let step = kinds.iter().position(|kind| *kind == "step-finish").unwrap();
    assert_eq!(kinds[step - 1], "data-user-message");
    let Some(Payload::StepFinish(finish)) = watcher.chunks[step].payload() else { panic!("no step-finish") };
    assert_eq!((finish.step_result.reason, finish.step_result.is_continued), (FinishReason::Other, true));
    assert_eq!(world.asked(1), ["one", "two"]);
    assert_eq!(world.texts().await, ["one", "ab", "two", "c"]);
}

#[tokio::test(start_paused = true)]
async fn sig_167_sig_230_input_during_reasoning_cancels_the_request_and_the_step_is_asked_again() {
    let gate = Gate::new();
    let model =
        ScriptedModel::with_responses([Script::new().think("hmm").gate(&gate).text("never"), Script::new().text("ok")]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let first = world.send("one").await;
    gate.reached().await;
    let second = world.send("two").await;
    assert_eq!(second.run_id, first.run_id);
    watcher.until_end_of(first.run_id.as_ref().unwrap()).await;
    assert_eq!(world.model.cancelled(), 1);
    assert_eq!(world.asked(1), ["one", "two"]);
    let kinds = watcher.kinds();
    assert_eq!(
        kinds,
        [
            "data-user-message",
            "start",
            "step-start",
            "reasoning-start",
            "reasoning-delta",
            "reasoning-end",
            "data-user-message",
            "step-start",
            "text-start",
            "text-delta",
            "text-end",
            "step-finish",
            "finish"
        ]
    );
    assert_eq!(world.texts().await, ["one", "two", "ok"]);
}

#[tokio::test(start_paused = true)]
async fn sig_162_queued_messages_get_runs_of_their_own_in_order() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([
        Script::new().text("a").gate(&gate),
        Script::new().text("s"),
        Script::new().text("q1"),
        Script::new().text("q2"),
    ]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let first = world.send("hi").await;
    gate.reached().await;
    let one = world.queue("Q1").await;
    world.send("S1").await;
    let two = world.queue("Q2").await;
    assert_eq!((one.action, two.action), (Action::Deliver, Action::Deliver));
    gate.open();
    watcher.until_end_of(first.run_id.as_ref().unwrap()).await;
    watcher.until_end_of(one.run_id.as_ref().unwrap()).await;
    watcher.until_end_of(two.run_id.as_ref().unwrap()).await;
    assert_eq!(world.texts().await, ["hi", "a", "S1", "s", "Q1", "q1", "Q2", "q2"]);
}

#[tokio::test(start_paused = true)]
async fn sig_307_abort_keeps_the_text_so_far_and_queued_input_runs() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("partial").gate(&gate), Script::new().text("next")]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let first = world.send("hi").await;
    gate.reached().await;
    let queued = world.queue("later").await;
    assert!(world.agent.abort_thread(&world.thread, AbortOptions::default()).await.unwrap());
    let end = watcher.until_end_of(first.run_id.as_ref().unwrap()).await;
    assert_eq!(end.kind(), "abort");
    watcher.until_end_of(queued.run_id.as_ref().unwrap()).await;
    assert_eq!(world.texts().await, ["hi", "partial", "later", "next"]);
    assert!(!world.agent.abort_thread(&world.thread, AbortOptions::default()).await.unwrap());
}
