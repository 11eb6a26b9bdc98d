//! The next-turn queue: order, options, failures, its length (SIG §9, §12; ruling 23).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bugle::{
    Error, RequestContext, RunOptions, ThreadKey,
    agent::ModelEntry,
    chunk::Payload,
    model::{Gate, Script, ScriptedModel},
    runtime::{AbortOptions, Action, CancelSelector, EditInput, PromoteTo, Promoted, RunInput, Target},
};

use crate::support::{World, accepted, builder, message, world, world_of, world_of_two, world_on};

/// A world whose first answer waits at the gate, and the run that gives it.
async fn busy(answers: &[&str]) -> (World, Gate, bugle::RunId) {
    let gate = Gate::new();
    let first = Script::new().text("first").gate(&gate);
    let scripts = std::iter::once(first).chain(answers.iter().map(|answer| Script::from(*answer)));
    let world = world_of_two(ScriptedModel::with_responses(scripts.collect::<Vec<_>>())).await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    (world, gate, run)
}

#[tokio::test(start_paused = true)]
async fn sig_250_sig_251_two_hundred_entries_get_two_hundred_runs_in_order() {
    let gate = Gate::new();
    let model = ScriptedModel::new();
    let world = world_of(model.clone(), [builder("plain", &model).build().unwrap()]).await;
    let mut watcher = world.watch().await;
    let first = world.send("[[hang]]").await.run_id.unwrap();
    watcher.until("start").await;
    let mut runs = Vec::new();
    for n in 0..200 {
        runs.push(world.queue(&format!("q{n}")).await.run_id.unwrap());
    }
    drop(gate);
    world.agent.abort_thread(&world.thread, AbortOptions::default()).await.unwrap();
    watcher.until_end_of(runs.last().unwrap()).await;
    let order = watcher.run_order();
    assert_eq!(order[0], first);
    assert_eq!(order[1..], runs);
    let echoes: Vec<String> = std::iter::once("[[hang]]".to_owned()).chain((0..200).map(|n| format!("q{n}"))).collect();
    assert_eq!(watcher.echoes(), echoes);
}

#[tokio::test(start_paused = true)]
async fn sig_161_sig_166_one_drain_takes_everything_in_order() {
    let (world, gate, run) = busy(&["second"]).await;
    let mut watcher = world.watch().await;
    for text in ["S1", "S2", "S3"] {
        world.send(text).await;
    }
    gate.open();
    watcher.until_end_of(&run).await;
    assert_eq!(world.asked(1), ["hi", "S1", "S2", "S3"]);
    assert_eq!(world.model.requested(), 2);
    let kinds = watcher.kinds();
    let at = kinds.iter().position(|kind| *kind == "step-finish").unwrap();
    assert_eq!(kinds[at - 3..=at], ["data-user-message", "data-user-message", "data-user-message", "step-finish"]);
    assert_eq!(kinds[at + 1], "step-start", "SIG-166");
    assert_eq!(world.texts().await, ["hi", "first", "S1", "S2", "S3", "second"], "SIG-169");
}

#[tokio::test(start_paused = true)]
async fn sig_252_queued_input_takes_over_options_but_no_context_and_no_callbacks() {
    let gate = Gate::new();
    let model =
        ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into(), "c".into(), "d".into()]);
    let seen: Arc<parking_lot::Mutex<Vec<Option<String>>>> = Arc::default();
    let noted = seen.clone();
    let who = move |context: &RequestContext| context.get("user").and_then(|user| user.as_str()).map(str::to_owned);
    let agent = builder("plain", &model).instructions_per(move |context| {
        noted.lock().push(who(context));
        Some("go".into())
    });
    let world = world_of(model, [agent.build().unwrap()]).await;
    let mut watcher = world.watch().await;
    let mut options = RunOptions { system: Some(bugle::run::Texts::One("formal".into())), ..RunOptions::default() };
    options.request_context.set("user", "alice");
    let finished = Arc::new(AtomicBool::new(false));
    let hook = finished.clone();
    options.hooks.on_chunk = Some(Arc::new(move |_: &_| hook.store(true, Ordering::SeqCst)));
    let own = |options: RunOptions| {
        let mut target = world.target();
        target.if_idle.options = Some(Box::new(options));
        target
    };
    world.send_to(own(options), "alice's").await;
    gate.reached().await;
    finished.store(false, Ordering::SeqCst);
    let bob = world.queue("bob's").await.run_id.unwrap();
    let mut carol_options = RunOptions::default();
    carol_options.request_context.set("user", "carol");
    let carol = accepted(world.agent.queue_message(own(carol_options), "carol's").await.unwrap()).await;
    let inherits = RunOptions { inherit_request_context: true, ..RunOptions::default() };
    let dave = accepted(world.agent.queue_message(own(inherits), "dave's").await.unwrap()).await;
    gate.open();
    watcher.until_end_of(&bob).await;
    watcher.until_end_of(&carol.run_id.unwrap()).await;
    watcher.until_end_of(&dave.run_id.unwrap()).await;
    let seen: Vec<_> = seen.lock().iter().map(|user| user.clone().unwrap_or_default()).collect();
    assert_eq!(seen, ["alice", "", "carol", "alice"], "SIG-513, ruling 5");
    let systems = |n: usize| {
        let requests = world.model.requests();
        requests[n].prompt.iter().filter(|m| matches!(m, bugle::model::PromptMessage::System { .. })).count()
    };
    assert_eq!([systems(0), systems(1), systems(2), systems(3)], [2, 2, 1, 1], "bob's run is formal too");
    assert!(!finished.load(Ordering::SeqCst), "bob's run must not call alice's hooks");
}

#[tokio::test(start_paused = true)]
async fn sig_252_an_entry_has_its_own_abort_signal() {
    let (world, gate, _) = busy(&["second"]).await;
    let mut watcher = world.watch().await;
    let stop = tokio_util::sync::CancellationToken::new();
    let mut target = world.target();
    target.if_idle.options = Some(Box::new(RunOptions { abort: Some(stop.clone()), ..RunOptions::default() }));
    let queued = accepted(world.agent.queue_message(target, "stopped").await.unwrap()).await.run_id.unwrap();
    let next = world.queue("next").await.run_id.unwrap();
    stop.cancel();
    gate.open();
    let end = watcher.until_end_of(&queued).await;
    assert_eq!(end.kind(), "abort");
    watcher.until_end_of(&next).await;
    assert_eq!(world.model.requested(), 2, "no provider call for the stopped one");
    assert_eq!(world.texts().await, ["hi", "first", "stopped", "next", "second"]);
}

#[tokio::test(start_paused = true)]
async fn sig_171_sig_253_sig_254_errors_and_aborts_start_the_next_entry() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([
        Script::new().text("partial").gate(&gate).fail_in_band(500, "broken"),
        Script::new().fail_with(400, "refused"),
        "third".into(),
    ]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let first = world.send("one").await.run_id.unwrap();
    gate.reached().await;
    let second = world.queue("two").await.run_id.unwrap();
    let third = world.queue("three").await.run_id.unwrap();
    gate.open();
    assert_eq!(watcher.until_end_of(&first).await.kind(), "error");
    assert_eq!(watcher.until_end_of(&second).await.kind(), "error");
    assert_eq!(watcher.until_end_of(&third).await.kind(), "finish");
    assert_eq!(watcher.run_order(), [first, second, third]);
    assert_eq!(world.asked(2), ["one", "two", "three"], "SIG-171 (R37): failed runs are flushed first");
}

/// An agent whose models can be taken away after input was accepted.
async fn fragile(model: ScriptedModel) -> (World, Arc<AtomicBool>, Arc<crate::faulty::Faulty>) {
    let broken = Arc::new(AtomicBool::new(false));
    let (flag, shared) = (broken.clone(), model.clone());
    let agent = builder("plain", &model).models_per(move |_| {
        if flag.load(Ordering::SeqCst) {
            return Vec::new();
        }
        vec![ModelEntry { model: Arc::new(shared.clone()), max_retries: Some(0) }]
    });
    let store = crate::faulty::Faulty::new();
    let world = world_on(model, [agent.build().unwrap()], store.clone()).await;
    (world, broken, store)
}

#[tokio::test(start_paused = true)]
async fn sig_255_an_entry_that_cannot_start_keeps_its_place_and_is_given_up_after_three_tries() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into()]);
    let (world, broken, _) = fragile(model).await;
    let mut watcher = world.watch().await;
    let first = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    let one = accepted(world.agent.queue_message(&world.thread, message("one")).await.unwrap()).await.run_id.unwrap();
    let two = accepted(world.agent.queue_message(&world.thread, message("two")).await.unwrap()).await.run_id.unwrap();
    broken.store(true, Ordering::SeqCst);
    gate.open();
    watcher.until_end_of(&first).await;
    let began = tokio::time::Instant::now();
    for _ in 0..3 {
        assert_eq!(watcher.until_end_of(&one).await.kind(), "error");
        if began.elapsed().as_secs() < 6 {
            assert_eq!(world.waiting().await, ["one", "two"].map(bugle::MessageId::from), "order is kept");
        }
    }
    assert_eq!(began.elapsed().as_secs(), 6, "after 1 s and 5 s");
    broken.store(false, Ordering::SeqCst);
    let given_up = watcher.until("error").await;
    let Some(Payload::Error { error }) = given_up.payload() else { panic!("no error") };
    assert_eq!(error.details, Some(bugle::json::json!({"signalId": "one"})));
    // The queue goes on; its second entry may have failed once before the agent was mended.
    loop {
        if watcher.until_end_of(&two).await.kind() == "finish" {
            break;
        }
    }
    assert_eq!(world.texts().await, ["hi", "a", "one", "two", "b"], "stored unanswered");
    assert!(world.storage.inbox(&world.thread).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn sig_255_new_input_tries_again_at_once() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into(), "c".into()]);
    let (world, broken, _) = fragile(model).await;
    let mut watcher = world.watch().await;
    world.send("hi").await;
    gate.reached().await;
    let one = world.queue("one").await.run_id.unwrap();
    broken.store(true, Ordering::SeqCst);
    gate.open();
    watcher.until_end_of(&one).await;
    broken.store(false, Ordering::SeqCst);
    let began = tokio::time::Instant::now();
    let two = world.queue("two").await;
    assert_eq!(two.action, Action::Deliver);
    assert_eq!(watcher.until_end_of(&one).await.kind(), "finish");
    watcher.until_end_of(&two.run_id.unwrap()).await;
    assert_eq!(began.elapsed(), Duration::ZERO);
    assert_eq!(world.texts().await, ["hi", "a", "one", "b", "two", "c"]);
}

#[tokio::test(start_paused = true)]
async fn sig_122_r36_what_joined_a_run_that_failed_to_start_is_answered() {
    let model = ScriptedModel::with_responses(["answer"]);
    let (world, broken, store) = fragile(model).await;
    let mut watcher = world.watch().await;
    let hold = store.hold("recent_messages");
    let run = world.send("wake").await.run_id.unwrap();
    hold.reached().await;
    let joined = world.send("joined").await;
    assert_eq!(joined.run_id.as_ref(), Some(&run));
    store.fail("recent_messages", 1);
    hold.open();
    assert_eq!(watcher.until_end_of(&run).await.kind(), "error", "SIG-350: the stream stays open");
    assert!(!broken.load(Ordering::SeqCst));
    assert_eq!(world.agent.active_run_id(&world.thread), None);
    assert_eq!(watcher.until_end_of(&run).await.kind(), "finish", "the wake input keeps its run's id");
    assert_eq!(world.asked(0), ["wake", "joined"]);
    assert_eq!(watcher.echoes(), ["wake", "joined"]);
}

#[tokio::test(start_paused = true)]
async fn sig_207_input_that_could_not_be_placed_is_tried_again() {
    let store = crate::faulty::Faulty::new();
    let model = ScriptedModel::with_responses(["answer"]);
    let world = world_on(model.clone(), [crate::support::agent("plain", &model)], store.clone()).await;
    let mut watcher = world.watch().await;
    // One commit, and all of its retries.
    store.fail("commit", 4);
    let run = world.send("hi").await.run_id.unwrap();
    assert_eq!(watcher.until_end_of(&run).await.kind(), "error");
    let failed = tokio::time::Instant::now();
    watcher.until("finish").await;
    assert_eq!(failed.elapsed().as_secs(), 1, "not at once: a store that is down must not be hammered");
    assert_eq!(world.texts().await, ["hi", "answer"]);
    assert_eq!(watcher.echoes(), ["hi"]);
}

#[tokio::test(start_paused = true)]
async fn sig_260_left_over_input_follows_with_the_runs_options() {
    let (world, gate, run) = busy(&["second"]).await;
    let mut watcher = world.watch().await;
    let s1 = world.send("S1").await;
    world.send("S2").await;
    assert_eq!(s1.run_id.as_ref(), Some(&run), "SIG-155: the active run at acceptance");
    world.agent.abort_thread(&world.thread, AbortOptions::default()).await.unwrap();
    watcher.until_end_of(&run).await;
    gate.open();
    let finish = watcher.until("finish").await;
    assert_ne!(finish.run_id.as_ref(), Some(&run), "another run takes it");
    assert_eq!(world.asked(1), ["hi", "S1", "S2"], "SIG-162: one follow-up run for both");
    let Some(Payload::Finish(finish)) = finish.payload() else { panic!("no finish") };
    assert_eq!(finish.consumed_signal_ids.len(), 2, "SIG-514");
}

#[tokio::test(start_paused = true)]
async fn sig_514_finish_names_what_the_run_has_seen() {
    let (world, gate, run) = busy(&["second"]).await;
    let mut watcher = world.watch().await;
    accepted(world.agent.send_message(&world.thread, message("S1")).await.unwrap()).await;
    gate.open();
    let finish = watcher.until_end_of(&run).await;
    let Some(Payload::Finish(finish)) = finish.payload() else { panic!("no finish") };
    assert_eq!(finish.consumed_signal_ids.len(), 2);
    assert_eq!(finish.consumed_signal_ids[1], "S1".into());
}

fn run_input(text: &str) -> RunInput {
    let message = bugle::message::StoredMessage::text("".into(), bugle::message::Role::User, text, Default::default());
    RunInput { messages: vec![message], tool_results: Vec::new() }
}

#[tokio::test(start_paused = true)]
async fn sig_108_sig_109_r26_plain_runs_and_queued_input_are_served_in_order_of_arrival() {
    let (world, gate, run) = busy(&["q1", "plain", "q2"]).await;
    let mut watcher = world.watch().await;
    let q1 = world.queue("Q1").await.run_id.unwrap();
    let plain = world.agent.stream(run_input("P"), Some(&world.thread), RunOptions::default()).await.unwrap();
    let q2 = world.queue("Q2").await.run_id.unwrap();
    let plain_id = plain.run_id.clone();
    gate.open();
    assert_eq!(plain.output().await.unwrap().text, "plain");
    watcher.until_end_of(&q2).await;
    assert_eq!(watcher.run_order(), [run, q1, plain_id, q2]);
    assert_eq!(world.texts().await, ["hi", "first", "Q1", "q1", "P", "plain", "Q2", "q2"]);
}

#[tokio::test(start_paused = true)]
async fn sig_370_continuations_come_before_the_queue_and_are_no_signals() {
    let (world, gate, run) = busy(&["continued", "queued"]).await;
    let mut watcher = world.watch().await;
    let queued = world.queue("Q").await.run_id.unwrap();
    let continued =
        world.agent.continue_with_messages(&world.thread, run_input("C"), RunOptions::default()).await.unwrap();
    let events = world.agent.queue_events(&world.thread, None).await.unwrap();
    assert_eq!(events.count(), 1, "not counted");
    let cleared = AbortOptions { clear_pending_signals: true, ..AbortOptions::default() };
    assert_eq!(world.waiting().await.len(), 1, "not listed as input");
    gate.open();
    watcher.until_end_of(&queued).await;
    assert_eq!(watcher.run_order(), [run, continued, queued]);
    assert_eq!(watcher.echoes(), ["hi", "Q"], "not echoed");
    assert!(!world.agent.abort_thread(&world.thread, cleared).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn sig_304_continuations_are_not_cleared() {
    let (world, gate, run) = busy(&["continued"]).await;
    let mut watcher = world.watch().await;
    let continued =
        world.agent.continue_with_messages(&world.thread, run_input("C"), RunOptions::default()).await.unwrap();
    let cleared = AbortOptions { clear_pending_signals: true, ..AbortOptions::default() };
    assert!(world.agent.abort_thread(&world.thread, cleared).await.unwrap());
    assert_eq!(watcher.until_end_of(&run).await.kind(), "abort");
    assert_eq!(watcher.until_end_of(&continued).await.kind(), "finish");
    gate.open();
}

#[tokio::test(start_paused = true)]
async fn sig_371_a_continuation_that_cannot_start_lets_the_next_work_go_on() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into()]);
    let (world, _, store) = fragile(model).await;
    let mut watcher = world.watch().await;
    world.send("hi").await;
    gate.reached().await;
    let continued =
        world.agent.continue_with_messages(&world.thread, run_input("C"), RunOptions::default()).await.unwrap();
    let queued = world.queue("Q").await.run_id.unwrap();
    store.fail("recent_messages", 1);
    gate.open();
    assert_eq!(watcher.until_end_of(&continued).await.kind(), "error");
    assert_eq!(watcher.until_end_of(&queued).await.kind(), "finish");
}

#[tokio::test(start_paused = true)]
async fn sig_211_generate_drains_and_waits_its_turn() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().think("hmm").gate(&gate), "both".into()]);
    let world = world(model).await;
    let (agent, thread) = (world.agent.clone(), world.thread.clone());
    let generating =
        tokio::spawn(async move { agent.generate(run_input("hi"), Some(&thread), RunOptions::default()).await });
    gate.reached().await;
    world.send("more").await;
    assert_eq!(generating.await.unwrap().unwrap().text, "both");
    assert_eq!(world.asked(1), ["hi", "more"]);
}

#[tokio::test(start_paused = true)]
async fn sig_205_a_plain_run_stopped_by_its_caller_takes_in_nothing_more() {
    let store = crate::faulty::Faulty::new();
    let model = ScriptedModel::with_responses(["answer"]);
    let world = world_on(model.clone(), [crate::support::agent("plain", &model)], store.clone()).await;
    let mut watcher = world.watch().await;
    let hold = store.hold("recent_messages");
    let stream = world.agent.stream(run_input("hi"), Some(&world.thread), RunOptions::default()).await.unwrap();
    hold.reached().await;
    world.send("later").await;
    stream.abort();
    hold.open();
    watcher.until_end_of(&stream.run_id.clone()).await;
    watcher.until("finish").await;
    assert_eq!(world.asked(0), ["hi", "later"]);
    assert_eq!(watcher.text_of(watcher.run_order().last().unwrap()), "answer");
}

#[tokio::test(start_paused = true)]
async fn sig_265_to_268_the_length_of_the_queue() {
    let (world, gate, _) = busy(&["q1", "q2", "q3"]).await;
    let group = |name: &str| Target { queue_owner_id: Some(name.into()), ..world.target() };
    let mut all = world.agent.queue_events(&world.thread, None).await.unwrap();
    let mut ann = world.agent.queue_events(&world.thread, Some("ann")).await.unwrap();
    let mut other_ann = world.other().queue_events(&world.thread, Some("ann")).await.unwrap();
    assert_eq!((all.next().await, ann.next().await, other_ann.next().await), (Some(0), Some(0), Some(0)));
    world.send("steers").await;
    accepted(world.agent.queue_message(group("ann"), "1").await.unwrap()).await;
    assert_eq!((all.next().await, ann.next().await), (Some(1), Some(1)), "SIG-266: steering does not count");
    accepted(world.agent.queue_message(group("bob"), "2").await.unwrap()).await;
    assert_eq!(all.next().await, Some(2));
    accepted(world.other().queue_message(group("ann"), "3").await.unwrap()).await;
    assert_eq!((all.next().await, other_ann.next().await, ann.count()), (Some(3), Some(1), 1));
    let cleared = AbortOptions { clear_pending_signals: true, ..AbortOptions::default() };
    world.agent.abort_thread(&world.thread, cleared).await.unwrap();
    assert_eq!((all.next().await, ann.next().await, other_ann.next().await), (Some(0), Some(0), Some(0)), "SIG-268");
    gate.open();
    drop((all, ann, other_ann));
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(world.bugle.live_threads(), 0);
}

#[tokio::test(start_paused = true)]
async fn sig_269_what_waits_is_listed_in_the_order_it_is_taken() {
    let (world, gate, run) = busy(&["b", "c", "d"]).await;
    let mut watcher = world.watch().await;
    accepted(world.agent.queue_message(&world.thread, message("q1")).await.unwrap()).await;
    accepted(world.agent.send_message(&world.thread, message("s1")).await.unwrap()).await;
    let q2 = accepted(world.other().queue_message(&world.thread, message("q2")).await.unwrap()).await;
    let waiting = world.agent.pending_input(&world.thread).await.unwrap();
    let rows: Vec<_> = waiting
        .iter()
        .map(|input| (input.signal_id.as_str(), format!("{:?}", input.mode), input.agent_id.as_str()))
        .collect();
    let row = |id, mode: &str, agent| (id, mode.to_owned(), agent);
    assert_eq!(rows, [row("s1", "Pending", "plain"), row("q1", "Queue", "plain"), row("q2", "Queue", "other")]);
    assert_eq!(waiting[0].run_id, Some(run));
    assert_eq!(waiting[2].run_id, q2.run_id);
    gate.open();
    watcher.until_end_of(q2.run_id.as_ref().unwrap()).await;
    assert!(world.waiting().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn ruling_23_queued_input_is_promoted_once_and_edited_while_it_waits() {
    let (world, gate, run) = busy(&["b", "c", "d"]).await;
    let mut watcher = world.watch().await;
    for id in ["q1", "q2", "q3"] {
        accepted(world.agent.queue_message(&world.thread, message(id)).await.unwrap()).await;
    }
    let thread = &world.thread;
    let edit = EditInput { contents: Some("q2, better".into()), attributes: None };
    world.agent.edit_queued(thread, &"q2".into(), edit).await.unwrap();
    assert_eq!(world.waiting().await, ["q1", "q2", "q3"].map(bugle::MessageId::from), "its place stays");
    world.agent.promote_queued(thread, &"q3".into(), PromoteTo::Front).await.unwrap();
    let joined = world.agent.promote_queued(thread, &"q2".into(), PromoteTo::Run).await.unwrap();
    assert_eq!(joined, Promoted { run_id: run.clone(), to: PromoteTo::Run });
    assert_eq!(world.waiting().await, ["q2", "q3", "q1"].map(bugle::MessageId::from));
    let journal: Vec<_> = world.storage.inbox(thread).await.unwrap().into_iter().map(|entry| entry.signal.id).collect();
    assert_eq!(journal, ["q3", "q1", "q2"].map(bugle::MessageId::from), "the journal has the same turns");
    gate.open();
    watcher.until("finish").await;
    watcher.until("finish").await;
    watcher.until("finish").await;
    assert_eq!(world.texts().await, ["hi", "first", "q2, better", "b", "q3", "c", "q1", "d"]);
    let late = world.agent.promote_queued(thread, &"q2".into(), PromoteTo::Run).await.unwrap_err();
    assert!(matches!(late, Error::AlreadyTaken { run_id, .. } if run_id == run));
    let unknown = world.agent.promote_queued(thread, &"nobody".into(), PromoteTo::Run).await.unwrap_err();
    assert!(matches!(unknown, Error::UnknownInput(_)));
}

#[tokio::test(start_paused = true)]
async fn sig_259_sig_285_a_group_is_cancelled_for_the_calling_agent_only() {
    let (world, gate, _) = busy(&["b", "c"]).await;
    let mut watcher = world.watch().await;
    let group = |name: &str| Target { queue_owner_id: Some(name.into()), ..world.target() };
    for (agent, owner, id) in [(&world.agent, "ann", "1"), (&world.agent, "bob", "2"), (&world.other(), "ann", "3")] {
        accepted(agent.queue_message(group(owner), message(id)).await.unwrap()).await;
    }
    let cancelled = world.agent.cancel_queued(&world.thread, CancelSelector::QueueOwner("ann".into())).await.unwrap();
    assert_eq!(cancelled, ["1".into()]);
    gate.open();
    watcher.until("finish").await;
    watcher.until("finish").await;
    watcher.until("finish").await;
    assert_eq!(watcher.echoes(), ["hi", "2", "3"]);
    let nobody = ThreadKey::new("user", "nobody");
    assert!(world.agent.cancel_queued(&nobody, CancelSelector::QueueOwner("ann".into())).await.unwrap().is_empty());
}
