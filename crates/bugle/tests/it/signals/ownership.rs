//! Whose thread it is, and what an idle thread costs (SIG §16, §22.4).

use std::time::Duration;

use bugle::{
    Error, ThreadKey,
    model::{Gate, Script, ScriptedModel},
    runtime::{ActiveBehavior, IdleBehavior, SubscribeOptions, Target},
    storage::{Lease, LeaseClaim, NewThread},
};

use crate::support::{World, accepted, agent, world, world_on};

async fn world_with_thread(resource: &str) -> World {
    let world = world(ScriptedModel::with_responses(["a", "b", "c"])).await;
    let thread = NewThread { id: Some("thread".into()), resource_id: resource.into(), ..NewThread::default() };
    world.storage.create_thread(thread).await.unwrap();
    world
}

#[tokio::test(start_paused = true)]
async fn sig_360_one_thread_id_under_two_resources_is_two_keys() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().gate(&gate), Script::new().gate(&gate)]);
    let world = world(model).await;
    world.send("hi").await;
    gate.reached().await;
    assert_eq!(world.agent.active_run_id(&ThreadKey::new("somebody", "thread")), None);
}

#[tokio::test(start_paused = true)]
async fn sig_362_a_wake_creates_the_thread() {
    let world = world(ScriptedModel::with_responses(["a"])).await;
    let mut watcher = world.watch().await;
    world.send("hi").await;
    watcher.until("finish").await;
    assert_eq!(world.storage.get_thread("thread").await.unwrap().unwrap().resource_id, "user");
}

#[tokio::test(start_paused = true)]
async fn sig_363_sig_364_sig_512_nothing_touches_another_resources_thread() {
    let world = world_with_thread("owner").await;
    let text = "Thread \"thread\" belongs to resource \"owner\" but resource \"user\" was provided. \
                A thread can only be used by the resource that owns it.";
    let thread = &world.thread;
    let mut sent = world.agent.send_message(thread, "hi").await.unwrap();
    assert_eq!(sent.accepted().await.unwrap_err().to_string(), text);
    let mut queued = world.agent.queue_message(thread, "hi").await.unwrap();
    assert_eq!(queued.accepted().await.unwrap_err().to_string(), text);
    let target = world.target_for(ActiveBehavior::Deliver, IdleBehavior::Persist);
    let mut persisted = world.agent.send_message(target, "hi").await.unwrap();
    assert_eq!(persisted.persisted().await.unwrap_err().to_string(), text);
    let refused = world.agent.subscribe(thread, SubscribeOptions::default()).await.unwrap_err();
    assert_eq!(refused.to_string(), text, "ruling 39");
    let refused = world.agent.abort_thread(thread, Default::default()).await.unwrap_err();
    assert_eq!(refused.to_string(), text);
    assert!(matches!(world.agent.queue_events(thread, None).await, Err(Error::Storage(_))));
    assert!(world.stored().await.is_empty());
    assert!(world.storage.inbox(thread).await.unwrap().is_empty());
    let rightful = accepted(world.agent.send_message(&ThreadKey::new("owner", "thread"), "hi").await.unwrap()).await;
    assert!(rightful.run_id.is_some());
}

#[tokio::test(start_paused = true)]
async fn sig_363_a_thread_without_resource_is_anybodys() {
    let world = world_with_thread("").await;
    let mut watcher = world.watch().await;
    world.send("hi").await;
    watcher.until("finish").await;
    assert_eq!(world.model.requested(), 1);
}

#[tokio::test(start_paused = true)]
async fn sig_361_subscription_and_abort_work_without_a_resource() {
    let world = world(ScriptedModel::with_responses(["a"])).await;
    let unowned = ThreadKey::unowned("other");
    let subscription = world.agent.subscribe(&unowned, SubscribeOptions::default()).await.unwrap();
    assert_eq!(subscription.active_run_id(), None);
    assert!(!world.agent.abort_thread(&unowned, Default::default()).await.unwrap());
    assert!(matches!(world.agent.send_message(Target::from(&unowned), "x").await, Err(Error::NoActiveRun)));
}

#[tokio::test(start_paused = true)]
async fn sig_452_sig_405_an_idle_thread_holds_no_lease() {
    let store = crate::faulty::Faulty::new();
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into()]);
    let world = world_on(model.clone(), [agent("plain", &model)], store).await;
    let mut watcher = world.watch().await;
    world.send("hi").await;
    gate.reached().await;
    let stranger = LeaseClaim::new("stranger", Duration::from_secs(15));
    let held = world.storage.acquire_lease(&world.thread, &stranger).await.unwrap();
    assert!(matches!(held, Lease::HeldBy { .. }));
    gate.open();
    watcher.until("finish").await;
    // The actor gives the lease up in its own time; nothing else wakes it.
    tokio::time::sleep(Duration::from_millis(1)).await;
    let held = world.storage.acquire_lease(&world.thread, &stranger).await.unwrap();
    assert!(matches!(held, Lease::Held { epoch: 2 }), "{held:?}");
    world.storage.release_lease(&world.thread, "stranger", None).await.unwrap();
    world.send("again").await;
    watcher.until("finish").await;
    assert_eq!(world.texts().await, ["hi", "a", "again", "b"]);
}

#[tokio::test(start_paused = true)]
async fn sig_405_a_run_behind_one_that_renewed_the_lease_has_it() {
    let gates = [Gate::new(), Gate::new()];
    let scripts = gates.clone().map(|gate| Script::new().text("a").gate(&gate));
    let world = world(ScriptedModel::with_responses(scripts)).await;
    let run = async |text: &str| world.run(text).await.output.text;
    let watch = async {
        gates[0].reached().await;
        // Longer than a third of the lease: it is renewed meanwhile.
        tokio::time::sleep(Duration::from_secs(20)).await;
        gates[0].open();
        gates[1].reached().await;
        let stranger = LeaseClaim::new("stranger", Duration::from_secs(15));
        let held = world.storage.acquire_lease(&world.thread, &stranger).await.unwrap();
        assert!(matches!(held, Lease::HeldBy { .. }), "SIG-450: nobody else has it: {held:?}");
        gates[1].open();
    };
    let (one, two, ()) = tokio::join!(run("one"), run("two"), watch);
    assert_eq!((one.as_str(), two.as_str()), ("a", "a"));
}

#[tokio::test(start_paused = true)]
async fn sig_509_a_hundred_thousand_idle_threads_hold_no_memory() {
    const THREADS: usize = 100_000; // About half a minute in a debug build on a busy machine.
    let world = world(ScriptedModel::new()).await;
    let target = |n: usize| {
        let mut target = Target::from(&ThreadKey::new("user", n.to_string()));
        target.if_idle.behavior = IdleBehavior::Discard;
        target
    };
    for n in 0..THREADS {
        world.agent.send_message(target(n), "x").await.unwrap();
    }
    assert_eq!(world.bugle.live_threads(), THREADS);
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(world.bugle.live_threads(), 0);
    let mut watcher = world.watch().await;
    world.send("hi").await;
    watcher.until("finish").await;
    assert_eq!(world.bugle.live_threads(), 1);
}
