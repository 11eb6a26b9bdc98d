//! Stopping runs (SIG §14; rulings 24 and 33).

use std::{future::pending, time::Duration};

use bugle::{
    RunOptions,
    json::json,
    model::{Gate, Script, ScriptedModel},
    runtime::{AbortOptions, Action, ActiveBehavior, IdleBehavior},
    tool::{Tool, ToolContext},
};

use crate::support::{World, accepted, agent, builder, message, world, world_of, world_on};

const KEEP: AbortOptions = AbortOptions { clear_pending_signals: false, expected_run_id: None };
const CLEAR: AbortOptions = AbortOptions { clear_pending_signals: true, expected_run_id: None };

async fn abort(world: &World, options: AbortOptions) -> bool {
    world.agent.abort_thread(&world.thread, options).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn sig_301_nothing_to_stop() {
    let world = world(ScriptedModel::with_responses(["a"])).await;
    assert!(!abort(&world, KEEP).await);
    assert!(!abort(&world, CLEAR).await);
    assert_eq!(world.bugle.live_threads(), 0);
    let mut watcher = world.watch().await;
    world.send("hi").await;
    assert_eq!(watcher.until("finish").await.kind(), "finish", "SIG-303: later input starts runs");
    assert!(!abort(&world, KEEP).await);
}

#[tokio::test(start_paused = true)]
async fn sig_302_sig_303_what_waits_is_kept_or_cleared() {
    for options in [KEEP, CLEAR] {
        let gate = Gate::new();
        let model = ScriptedModel::with_responses([Script::new().text("partial").gate(&gate), "s".into(), "q".into()]);
        let world = world(model).await;
        let mut watcher = world.watch().await;
        let run = world.send("hi").await.run_id.unwrap();
        gate.reached().await;
        world.queue("Q").await;
        world.send("S").await;
        assert!(abort(&world, options.clone()).await);
        watcher.until_end_of(&run).await;
        if options.clear_pending_signals {
            assert!(world.storage.inbox(&world.thread).await.unwrap().is_empty());
            assert_eq!(world.texts().await, ["hi", "partial"]);
            assert_eq!(world.agent.active_run_id(&world.thread), None);
        } else {
            watcher.until("finish").await;
            watcher.until("finish").await;
            assert_eq!(world.texts().await, ["hi", "partial", "S", "s", "Q", "q"], "SIG-162");
        }
        assert_eq!(watcher.kinds_of(&run).last(), Some(&"abort"));
        assert!(!watcher.kinds_of(&run).contains(&"step-finish"), "SIG-307");
    }
}

#[tokio::test(start_paused = true)]
async fn sig_305_r22_another_expected_run_stops_and_clears_nothing() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into()]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    let queued = world.queue("Q").await.run_id.unwrap();
    let expected =
        |run: &bugle::RunId| AbortOptions { clear_pending_signals: true, expected_run_id: Some(run.clone()) };
    assert!(!abort(&world, expected(&queued)).await);
    assert_eq!(world.waiting().await.len(), 1);
    gate.open();
    watcher.until_end_of(&queued).await;
    assert!(!abort(&world, expected(&run)).await);
    assert_eq!(world.texts().await, ["hi", "a", "Q", "b"]);
}

#[tokio::test(start_paused = true)]
async fn sig_308_r23_a_run_that_is_stopped_while_it_is_prepared() {
    let store = crate::faulty::Faulty::new();
    let model = ScriptedModel::with_responses(["follow-up"]);
    let world = world_on(model.clone(), [agent("plain", &model)], store.clone()).await;
    let mut watcher = world.watch().await;
    let hold = store.hold("recent_messages");
    let woken = world.send("wake").await;
    assert_eq!(woken.action, Action::Wake);
    let run = woken.run_id.unwrap();
    hold.reached().await;
    world.send("joined").await;
    assert!(abort(&world, KEEP).await);
    assert!(abort(&world, KEEP).await, "SIG-309");
    hold.open();
    watcher.until_end_of(&run).await;
    assert_eq!(watcher.kinds(), ["data-user-message", "start", "abort"]);
    watcher.until("finish").await;
    assert_eq!(world.asked(0), ["wake", "joined"], "the follow-up run of what had joined");
    assert_eq!(world.model.requested(), 1);
    assert_eq!(world.texts().await, ["wake", "joined", "follow-up"]);
}

#[tokio::test(start_paused = true)]
async fn sig_308_a_run_that_is_stopped_while_its_input_is_journaled() {
    let store = crate::faulty::Faulty::new();
    let model = ScriptedModel::with_responses(["never"]);
    let world = world_on(model.clone(), [agent("plain", &model)], store.clone()).await;
    let mut watcher = world.watch().await;
    let hold = store.hold("accept");
    let mut sent = world.agent.send_message(&world.thread, "wake").await.unwrap();
    let mut joined = world.agent.send_message(&world.thread, "joined").await.unwrap();
    hold.reached().await;
    // The answer may wait for the journal, which is held.
    let (stopped, ()) = tokio::join!(abort(&world, CLEAR), async {
        tokio::task::yield_now().await;
        hold.open();
    });
    assert!(stopped);
    let outcome = sent.accepted().await.unwrap();
    assert_eq!(outcome.action, Action::Wake, "SIG-153");
    joined.accepted().await.unwrap();
    watcher.until_end_of(&outcome.run_id.unwrap()).await;
    assert_eq!(watcher.kinds(), ["data-user-message", "start", "abort"]);
    assert_eq!((world.texts().await, world.model.requested()), (vec!["wake".to_owned()], 0));
    assert!(world.storage.inbox(&world.thread).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn sig_309_a_second_abort_makes_no_second_chunk() {
    let gate = Gate::new();
    let store = crate::faulty::Faulty::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "next".into()]);
    let world = world_on(model.clone(), [agent("plain", &model)], store.clone()).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    let hold = store.hold("commit");
    assert!(abort(&world, KEEP).await);
    hold.reached().await;
    assert!(abort(&world, KEEP).await, "it is still winding down");
    hold.open();
    watcher.until_end_of(&run).await;
    world.send("again").await;
    watcher.until("finish").await;
    assert_eq!(watcher.kinds().iter().filter(|kind| **kind == "abort").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn sig_311_the_callers_own_signal_is_an_abort_without_clear() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "next".into()]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let stop = tokio_util::sync::CancellationToken::new();
    let mut target = world.target();
    target.if_idle.options = Some(Box::new(RunOptions { abort: Some(stop.clone()), ..RunOptions::default() }));
    let run = world.send_to(target, "hi").await.run_id.unwrap();
    gate.reached().await;
    world.send("more").await;
    stop.cancel();
    assert_eq!(watcher.until_end_of(&run).await.kind(), "abort");
    watcher.until("finish").await;
    assert_eq!(world.texts().await, ["hi", "a", "more", "next"], "the follow-up run has no abort signal (SIG-260)");
}

#[tokio::test(start_paused = true)]
async fn sig_312_deaf_tools_do_not_block_the_thread() {
    let model = ScriptedModel::with_responses([
        Script::new().call("deaf", json!({})).call("deaf", json!({})).call("deaf", json!({})),
        "next".into(),
    ]);
    let (began, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let deaf = Tool::json("deaf", move |_, _: ToolContext| {
        began.send(()).unwrap();
        pending()
    });
    let options = RunOptions { tool_call_concurrency: Some(2), ..RunOptions::default() };
    let agent = builder("plain", &model).tool(deaf).default_options(options).build().unwrap();
    let world = world_of(model, [agent]).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    seen.recv().await.unwrap();
    seen.recv().await.unwrap();
    let queued = world.queue("Q").await.run_id.unwrap();
    let stopped = tokio::time::Instant::now();
    assert!(abort(&world, KEEP).await);
    assert_eq!(watcher.until_end_of(&run).await.kind(), "abort");
    assert_eq!(stopped.elapsed(), Duration::from_secs(1), "two that run and one that waits for its turn");
    watcher.until_end_of(&queued).await;
    assert!(seen.try_recv().is_err(), "the third was never started");
}

#[tokio::test(start_paused = true)]
async fn sig_307_a_tool_that_hears_the_abort_ends_at_once_and_its_result_is_kept() {
    let model = ScriptedModel::with_responses([Script::new().call("good", json!({})), "next".into()]);
    let (began, mut seen) = tokio::sync::mpsc::unbounded_channel();
    let good = Tool::json("good", move |_, context: ToolContext| {
        began.send(()).unwrap();
        async move {
            context.abort.cancelled().await;
            Ok(json!("stopped in time"))
        }
    });
    let agent = builder("plain", &model).tool(good).build().unwrap();
    let world = world_of(model, [agent]).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    seen.recv().await.unwrap();
    assert!(abort(&world, KEEP).await);
    watcher.until_end_of(&run).await;
    let stored = serde_json::to_value(world.stored().await).unwrap();
    assert!(stored.to_string().contains("stopped in time"));
}

#[tokio::test(start_paused = true)]
async fn ruling_24_interrupt_keeps_what_was_stored_and_runs_the_input_next() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("partial").gate(&gate), "now".into(), "q".into()]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    let queued = world.queue("Q").await.run_id.unwrap();
    let next = world.send_to(world.target_for(ActiveBehavior::Interrupt, IdleBehavior::Wake), "stop!").await;
    assert_eq!(next.action, Action::Deliver);
    assert_eq!(watcher.until_end_of(&run).await.kind(), "abort");
    assert_eq!(watcher.until_end_of(next.run_id.as_ref().unwrap()).await.kind(), "finish");
    watcher.until_end_of(&queued).await;
    assert_eq!(world.texts().await, ["hi", "partial", "stop!", "now", "Q", "q"]);
    assert_eq!(watcher.run_order(), [run, next.run_id.unwrap(), queued]);
}

#[tokio::test(start_paused = true)]
async fn ruling_33_rollback_removes_the_run_and_gives_back_what_had_joined() {
    let gate = Gate::new();
    let second = Gate::new();
    let model = ScriptedModel::with_responses([
        Script::new().text("a").gate(&gate),
        Script::new().text("partial").gate(&second),
        "fresh".into(),
    ]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    accepted(world.agent.send_message(&world.thread, message("joined")).await.unwrap()).await;
    gate.open();
    second.reached().await;
    assert_eq!(world.texts().await, ["hi", "a", "joined"]);
    let next = world.send_to(world.target_for(ActiveBehavior::Rollback, IdleBehavior::Wake), "instead").await;
    assert_eq!(watcher.until_end_of(&run).await.kind(), "abort");
    watcher.until_end_of(next.run_id.as_ref().unwrap()).await;
    assert_eq!(world.texts().await, ["joined", "instead", "fresh"]);
    assert_eq!(world.asked(2), ["joined", "instead"]);
    assert!(world.storage.inbox(&world.thread).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn r21_input_after_the_clear_survives() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "next".into()]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    world.send("before").await;
    assert!(abort(&world, CLEAR).await);
    world.send("after").await;
    watcher.until_end_of(&run).await;
    watcher.until("finish").await;
    assert_eq!(world.texts().await, ["hi", "a", "after", "next"]);
}

#[tokio::test(start_paused = true)]
async fn r24_the_run_that_is_about_to_start_is_the_target_and_the_rest_goes_on() {
    let store = crate::faulty::Faulty::new();
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "q2".into()]);
    let world = world_on(model.clone(), [agent("plain", &model)], store.clone()).await;
    let mut watcher = world.watch().await;
    world.send("hi").await;
    gate.reached().await;
    let q1 = world.queue("Q1").await.run_id.unwrap();
    let q2 = world.queue("Q2").await.run_id.unwrap();
    let hold = store.hold("recent_messages");
    gate.open();
    hold.reached().await;
    let expected = AbortOptions { expected_run_id: Some(q1.clone()), ..KEEP };
    assert!(abort(&world, expected).await);
    hold.open();
    assert_eq!(watcher.until_end_of(&q1).await.kind(), "abort");
    assert_eq!(watcher.until_end_of(&q2).await.kind(), "finish");
    assert_eq!(world.texts().await, ["hi", "a", "Q1", "Q2", "q2"]);
}
