//! Where input goes and what it does there (SIG §1, §6 to §8).

use std::sync::Arc;

use bugle::{
    Error, SignalInput,
    json::json,
    model::{Gate, Script, ScriptedModel},
    runtime::{Action, ActiveBehavior, IdleBehavior, Message, Target},
    signal::SignalType,
};

use crate::{
    faulty::Faulty,
    support::{World, accepted, agent, message, world, world_of_two, world_on},
};

use ActiveBehavior::{Deliver, Discard, Persist};
use IdleBehavior::Wake;

#[allow(clippy::unnecessary_wraps)] // as a branch takes them
fn attributes(value: &str) -> Option<bugle::signal::Attributes> {
    Some([("branch".to_owned(), json!(value))].into_iter().collect())
}

#[tokio::test(start_paused = true)]
async fn sig_006_input_is_answered_although_its_handle_is_dropped() {
    let world = world(ScriptedModel::with_responses(["answer"])).await;
    let mut watcher = world.watch().await;
    drop(world.agent.send_message(&world.thread, "hi").await.unwrap());
    watcher.until("finish").await;
    assert_eq!(world.texts().await, ["hi", "answer"]);
}

#[tokio::test(start_paused = true)]
async fn sig_005_each_operation_stores_its_own_type() {
    let world = world(ScriptedModel::with_responses(["1", "2", "3"])).await;
    let mut watcher = world.watch().await;
    world.send("text").await;
    watcher.until("finish").await;
    let signal = SignalInput { tag_name: Some("skill".into()), ..SignalInput::new("reactive", "context") };
    accepted(world.agent.send_signal(&world.thread, signal).await.unwrap()).await;
    watcher.until("finish").await;
    accepted(world.agent.queue_signal(&world.thread, SignalInput::new("notification", "event")).await.unwrap()).await;
    watcher.until("finish").await;
    let kinds: Vec<_> = world.stored().await.into_iter().filter_map(|message| message.kind).collect();
    assert_eq!(kinds, ["user", "v2", "skill", "v2", "notification", "v2"]);
}

#[tokio::test(start_paused = true)]
async fn sig_020_the_branch_that_is_taken_supplies_the_attributes() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into()]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let target = || {
        let mut target = world.target();
        target.if_active.attributes = attributes("active");
        target.if_idle.attributes = attributes("idle");
        target
    };
    let first = world.send_to(target(), "one").await;
    gate.reached().await;
    let second = world.send_to(target(), "two").await;
    assert_eq!(
        (first.signal.attributes.as_ref(), second.signal.attributes.as_ref()),
        (attributes("idle").as_ref(), attributes("active").as_ref())
    );
    gate.open();
    watcher.until("finish").await;
    assert_eq!(world.asked(1), ["<user branch=\"idle\">one</user>", "<user branch=\"active\">two</user>"]);
    let bad = [(String::from("bad name"), json!(1))].into_iter().collect();
    let mut target = world.target();
    target.if_active.attributes = Some(bad);
    let refused = world.agent.send_message(target, "x").await.unwrap_err();
    assert_eq!(refused.to_string(), "Invalid signal XML attribute name: bad name", "SIG-017: either branch is checked");
}

#[tokio::test(start_paused = true)]
async fn sig_025_transient_input_is_seen_once_and_never_stored() {
    let world = world(ScriptedModel::with_responses(["one", "two"])).await;
    let mut watcher = world.watch().await;
    let signal = SignalInput { transient: Some(true), ..SignalInput::new("reactive", "now") };
    accepted(world.agent.send_signal(&world.thread, signal.clone()).await.unwrap()).await;
    watcher.until("finish").await;
    world.send("and?").await;
    watcher.until("finish").await;
    assert_eq!(world.asked(0), ["<system-reminder>now</system-reminder>"]);
    assert_eq!(world.asked(1), ["and?"]);
    assert_eq!(world.texts().await, ["one", "and?", "two"]);
    assert_eq!(watcher.echoes(), ["now", "and?"]);
    let target = world.target_for(Deliver, IdleBehavior::Persist);
    let dropped = accepted(world.agent.send_signal(target, signal).await.unwrap()).await;
    assert_eq!(dropped.action, Action::Discard, "SIG-027");
}

#[tokio::test(start_paused = true)]
async fn sig_060_targets() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into(), "c".into()]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    let by_run = |run_id: &str| Target { run_id: Some(run_id.into()), ..Target::default() };
    let joined = world.send_to(by_run(run.as_str()), "joins").await;
    assert_eq!((joined.action, joined.run_id.as_ref()), (Action::Deliver, Some(&run)));

    let unknown = world.agent.send_message(by_run("nobody"), "x").await.unwrap_err();
    assert_eq!(unknown.to_string(), "No active agent run found for signal target");
    for target in [Target::default(), Target::from(&bugle::ThreadKey::unowned("thread"))] {
        assert!(matches!(world.agent.send_message(target, "x").await, Err(Error::NoActiveRun)));
    }
    for target in [by_run(run.as_str()), Target::from(&bugle::ThreadKey::unowned("thread"))] {
        let refused = world.agent.queue_message(target, "x").await.unwrap_err();
        assert_eq!(refused.to_string(), "resourceId and threadId are required to queue a message");
    }
    let mut persist = by_run(run.as_str());
    persist.if_active.behavior = Persist;
    let refused = world.agent.send_message(persist, "x").await.unwrap_err();
    assert_eq!(refused.to_string(), "resourceId and threadId are required to persist an active signal");

    gate.open();
    watcher.until("finish").await;
    let fresh = world.send_to(Target { run_id: Some("nobody".into()), ..world.target() }, "wakes").await;
    assert_eq!(fresh.action, Action::Wake);
    assert_ne!(fresh.run_id.unwrap().as_str(), "nobody");
}

#[tokio::test(start_paused = true)]
async fn sig_061_a_run_of_another_thread_is_refused() {
    let gate = Gate::new();
    let world = world(ScriptedModel::with_responses([Script::new().text("a").gate(&gate)])).await;
    let run = world.send("hi").await.run_id.unwrap();
    let target = Target { run_id: Some(run.clone()), ..Target::from(&bugle::ThreadKey::new("user", "elsewhere")) };
    let refused = world.agent.send_message(target, "x").await.unwrap_err();
    assert_eq!(refused.to_string(), format!("run {run} is not on thread elsewhere"));
}

#[tokio::test(start_paused = true)]
async fn sig_062_idle_persist_and_discard() {
    let world = world(ScriptedModel::with_responses(["answer"])).await;
    let mut sent =
        world.agent.send_message(world.target_for(Deliver, IdleBehavior::Persist), message("kept")).await.unwrap();
    assert_eq!(sent.accepted().await.unwrap().action, Action::Persist);
    sent.persisted().await.unwrap();
    let dropped = world.send_to(world.target_for(Deliver, IdleBehavior::Discard), "dropped").await;
    assert_eq!((dropped.action, dropped.run_id), (Action::Discard, None));
    assert_eq!((world.texts().await, world.model.requested()), (vec!["kept".to_owned()], 0));
    let mut watcher = world.watch().await;
    world.send("hi").await;
    watcher.until("finish").await;
    assert_eq!(world.asked(0), ["kept", "hi"], "SIG-131");
}

#[tokio::test(start_paused = true)]
async fn sig_130_active_persist_is_stored_and_not_shown_to_the_run() {
    let gate = Gate::new();
    let model =
        ScriptedModel::with_responses([Script::new().text("a").gate(&gate), Script::new().text("b"), "c".into()]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    world.send("hi").await;
    gate.reached().await;
    let mut sent = world.agent.send_message(world.target_for(Persist, Wake), "note").await.unwrap();
    assert_eq!(sent.accepted().await.unwrap().action, Action::Persist);
    sent.persisted().await.unwrap();
    assert_eq!(world.texts().await, ["hi", "note"], "written at once");
    let dropped = world.send_to(world.target_for(Discard, Wake), "gone").await;
    assert_eq!(dropped.action, Action::Discard);
    world.send("more").await;
    gate.open();
    watcher.until("finish").await;
    assert_eq!(world.asked(1), ["hi", "more"], "SIG-131: the active run does not see it");
    assert_eq!(watcher.echoes(), ["hi", "more"], "SIG-132");
    world.send("again").await;
    watcher.until("finish").await;
    assert_eq!(world.asked(2), ["hi", "note", "more", "again"], "SIG-131: later runs do");
}

#[tokio::test(start_paused = true)]
async fn sig_133_persist_without_memory_is_refused_and_not_shown() {
    let model = ScriptedModel::with_responses([""; 0]);
    let bare = bugle::Agent::builder("bare").model(Arc::new(model.clone())).build().unwrap();
    let world = crate::support::world_of(model, [bare]).await;
    let watcher = world.watch().await;
    let mut sent = world.agent.send_message(world.target_for(Deliver, IdleBehavior::Persist), "x").await.unwrap();
    assert_eq!(sent.accepted().await.unwrap().action, Action::Persist);
    assert!(matches!(sent.persisted().await, Err(Error::NoMemory(_))));
    assert!(world.stored().await.is_empty());
    let mut subscription = watcher;
    assert!(subscription.try_next().is_none());
}

/// A run that is held while it loads its history.
async fn preparing(model: ScriptedModel) -> (World, crate::faulty::Hold, bugle::RunId) {
    let store = Faulty::new();
    let agents = [agent("plain", &model), agent("other", &model)];
    let world = world_on(model, agents, store.clone()).await;
    let hold = store.hold("recent_messages");
    let run = world.send("wake").await;
    assert_eq!(run.action, Action::Wake);
    hold.reached().await;
    (world, hold, run.run_id.unwrap())
}

#[tokio::test(start_paused = true)]
async fn sig_165_input_during_preparation_joins_the_first_request() {
    let (world, hold, run) = preparing(ScriptedModel::with_responses(["answer"])).await;
    let mut watcher = world.watch().await;
    let joined = world.send("joins").await;
    assert_eq!((joined.action, joined.run_id.as_ref()), (Action::Deliver, Some(&run)));
    let signal = SignalInput::new("reactive", "context");
    accepted(world.agent.send_signal(&world.thread, signal).await.unwrap()).await;
    let dropped = world.send_to(world.target_for(Discard, Wake), "gone").await;
    assert_eq!(dropped.action, Action::Discard);
    hold.open();
    watcher.until("finish").await;
    assert_eq!(world.asked(0), ["wake", "joins", "<system-reminder>context</system-reminder>"]);
    assert_eq!(
        watcher.kinds()[..5],
        ["data-user-message", "data-user-message", "start", "data-signal", "step-start"],
        "ruling 36: all user echoes of the first request come before start"
    );
    assert_eq!(world.model.requested(), 1);
}

#[tokio::test(start_paused = true)]
async fn sig_130_persist_during_preparation_sorts_before_the_wake_input() {
    let (world, hold, _) = preparing(ScriptedModel::with_responses(["answer"])).await;
    let mut watcher = world.watch().await;
    let mut sent = world.agent.send_message(world.target_for(Persist, Wake), "note").await.unwrap();
    sent.persisted().await.unwrap();
    assert_eq!(world.storage.get_thread("thread").await.unwrap().unwrap().resource_id, "user");
    hold.open();
    watcher.until("finish").await;
    assert_eq!(world.texts().await, ["note", "wake", "answer"]);
}

#[tokio::test(start_paused = true)]
async fn sig_106_input_for_another_agent_waits_while_a_run_is_prepared() {
    let (world, hold, run) = preparing(ScriptedModel::with_responses(["one", "two", "three"])).await;
    let mut watcher = world.watch().await;
    let other = accepted(world.other().send_message(&world.thread, "for the other").await.unwrap()).await;
    let own = other.run_id.unwrap();
    assert_eq!(other.action, Action::Deliver);
    assert_ne!(own, run);
    let queued = world.queue("next").await.run_id.unwrap();
    hold.open();
    watcher.until_end_of(&queued).await;
    assert_eq!(watcher.run_order(), [run, own.clone(), queued], "R40: one FIFO");
    let start = watcher.chunks.iter().find(|c| c.run_id.as_ref() == Some(&own) && c.kind() == "start").unwrap();
    assert_eq!(serde_json::to_value(start).unwrap()["payload"]["id"], "other", "SIG-251: under its own agent");
}

#[tokio::test(start_paused = true)]
async fn sig_052_sig_7_another_agents_run_addressed_by_thread_and_by_run() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into()]);
    let world = world_of_two(model).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    let other = world.other();
    let behaves = |by_run: bool, active, idle| {
        let mut target = world.target_for(active, idle);
        target.run_id = by_run.then(|| run.clone());
        target
    };
    let act = async |target: Target, text: &str| {
        let mut sent = other.send_message(target, message(text)).await.unwrap();
        let outcome = sent.accepted().await.unwrap();
        sent.persisted().await.unwrap();
        outcome
    };
    // By thread the idle branch counts.
    let queued = act(behaves(false, Discard, Wake), "queued").await;
    assert_eq!(queued.action, Action::Deliver);
    assert_ne!(queued.run_id.as_ref(), Some(&run));
    assert_eq!(act(behaves(false, Discard, IdleBehavior::Persist), "p1").await.action, Action::Persist);
    assert_eq!(act(behaves(false, Deliver, IdleBehavior::Discard), "d1").await.action, Action::Discard);
    // By run the active branch does.
    let blocked = act(behaves(true, Deliver, IdleBehavior::Discard), "b1").await;
    assert_eq!((blocked.action, blocked.run_id.as_ref()), (Action::Blocked, Some(&run)));
    assert_eq!(act(behaves(true, Persist, Wake), "p2").await.action, Action::Persist);
    assert_eq!(act(behaves(true, Discard, Wake), "d2").await.action, Action::Discard);
    gate.open();
    watcher.until_end_of(queued.run_id.as_ref().unwrap()).await;
    assert_eq!(world.texts().await, ["hi", "p1", "p2", "a", "queued", "b"]);
    assert_eq!(watcher.echoes(), ["hi", "p1", "queued"], "p1 is an idle persist: write and echo; p2 is not");
}

#[tokio::test(start_paused = true)]
async fn sig_110_r27_an_idle_persist_leaves_the_active_run_alone() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into()]);
    let world = world_of_two(model).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    let queued = world.queue("next").await.run_id.unwrap();
    let target = world.target_for(Deliver, IdleBehavior::Persist);
    let mut sent = world.other().send_message(target, "note").await.unwrap();
    sent.persisted().await.unwrap();
    assert_eq!(world.agent.active_run_id(&world.thread), Some(run.clone()), "SIG-342");
    gate.open();
    watcher.until_end_of(&queued).await;
    assert_eq!(world.texts().await, ["hi", "note", "a", "next", "b"]);
}

#[tokio::test(start_paused = true)]
async fn sig_102_queued_input_on_an_idle_thread_starts_a_run() {
    let world = world(ScriptedModel::with_responses(["a", "b"])).await;
    let mut watcher = world.watch().await;
    let queued = world.queue("hi").await;
    assert_eq!(queued.action, Action::Wake);
    watcher.until_end_of(&queued.run_id.unwrap()).await;
    let signal = SignalInput {
        tag_name: Some("skill".into()),
        attributes: Some([("name".to_owned(), json!("triage"))].into_iter().collect()),
        ..SignalInput::new("reactive", "go")
    };
    let queued = accepted(world.agent.queue_signal(&world.thread, signal).await.unwrap()).await;
    assert_eq!(queued.action, Action::Wake);
    assert_eq!((queued.signal.signal_type, queued.signal.tag_name.as_str()), (SignalType::Reactive, "skill"));
    watcher.until_end_of(&queued.run_id.unwrap()).await;
    assert_eq!(world.asked(1), ["hi", "<skill name=\"triage\">go</skill>"], "SIG-103");
}

#[tokio::test(start_paused = true)]
async fn sig_150_acceptance_does_not_wait_for_the_run_and_is_never_taken_back() {
    let gate = Gate::new();
    let world = world(ScriptedModel::with_responses([Script::new().gate(&gate).text("a")])).await;
    let mut watcher = world.watch().await;
    let sent = world.send("hi").await;
    assert_eq!(sent.action, Action::Wake);
    let run = sent.run_id.unwrap();
    gate.reached().await;
    // SIG-151: the sender finds its run.
    assert_eq!(world.bugle.thread_of_run(&run), Some(world.thread.clone()));
    assert_eq!(world.bugle.active_runs(), [(run.clone(), world.thread.clone())], "SIG-366");
    assert!(watcher.subscription().abort(Default::default()).await.unwrap());
    watcher.until_end_of(&run).await;
    assert!(watcher.chunks.iter().all(|chunk| chunk.run_id.as_ref() == Some(&run)), "SIG-156, SIG-325");
}

#[tokio::test(start_paused = true)]
async fn sig_151_the_run_of_a_wake_can_be_addressed_at_once() {
    let world = world(ScriptedModel::new()).await;
    for _ in 0..20 {
        let thread = bugle::ThreadKey::new("user", uuid::Uuid::new_v4().to_string());
        let woken = accepted(world.agent.send_message(&thread, "[[hang]]").await.unwrap()).await.run_id;
        let target = Target { run_id: woken.clone(), ..Target::default() };
        let joined = accepted(world.agent.send_message(target, "me too").await.unwrap()).await;
        assert_eq!(joined.run_id, woken);
    }
}

#[tokio::test(start_paused = true)]
async fn sig_503_the_same_input_twice_is_one_input() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into(), "c".into()]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let first = world.send("hi").await.run_id;
    gate.reached().await;
    let queue = async |message: Message| {
        let mut sent = world.agent.queue_message(&world.thread, message).await.unwrap();
        sent.accepted().await
    };
    let one = queue(message("again")).await.unwrap();
    let two = queue(message("again")).await.unwrap();
    assert_eq!(one.run_id, two.run_id);
    let other = queue(Message { contents: "different".into(), ..message("again") }).await.unwrap_err();
    assert_eq!(other.to_string(), "signal again was already accepted with different content");
    gate.open();
    watcher.until_end_of(one.run_id.as_ref().unwrap()).await;
    let placed = queue(message("again")).await.unwrap();
    assert_eq!((placed.action, placed.run_id), (Action::Deliver, one.run_id), "remembered once placed");
    let other = queue(Message { contents: "different".into(), ..message("again") }).await.unwrap_err();
    assert_eq!(other.to_string(), "signal again was already accepted with different content");
    world.send("last").await;
    watcher.until("finish").await;
    assert_eq!(world.texts().await, ["hi", "a", "again", "b", "last", "c"]);
    assert!(first.is_some());
}

#[tokio::test(start_paused = true)]
async fn sig_509_a_full_inbox_refuses_at_once() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into()]);
    let world = world(model).await;
    world.send("hi").await;
    gate.reached().await;
    let big = "x".repeat(3 * 1024 * 1024);
    world.queue(&big).await;
    world.queue(&big).await;
    let refused = world.agent.queue_message(&world.thread, big.as_str()).await.unwrap_err();
    assert!(refused.to_string().starts_with("thread input limit reached"), "{refused}");
    for n in 0..998 {
        world.agent.queue_message(&world.thread, message(&n.to_string())).await.unwrap();
    }
    let refused = world.agent.send_message(&world.thread, "one too many").await.unwrap_err();
    assert!(matches!(refused, Error::InputLimit(_)), "{refused}");
    assert_eq!(world.waiting().await.len(), 1000);
}

#[tokio::test(start_paused = true)]
async fn sig_120_sig_152_ruling_3_a_journal_that_is_away_is_waited_for_two_seconds_and_then_refuses() {
    let store = Faulty::new();
    let model = ScriptedModel::with_responses(["a"]);
    let agents = [agent("plain", &model)];
    let world = world_on(model, agents, store.clone()).await;
    let mut watcher = world.watch().await;
    store.fail("accept", 100);
    let began = tokio::time::Instant::now();
    let mut sent = world.agent.send_message(&world.thread, message("hi")).await.unwrap();
    assert!(matches!(sent.accepted().await, Err(Error::Storage(_))));
    assert_eq!(began.elapsed().as_millis(), 2000);
    assert_eq!(world.agent.active_run_id(&world.thread), None);
    store.fail("accept", 2);
    let again = accepted(world.agent.send_message(&world.thread, message("hi")).await.unwrap()).await;
    assert_eq!(again.action, Action::Wake, "a repeat is safe");
    watcher.until("finish").await;
    assert_eq!(world.texts().await, ["hi", "a"]);
}
