//! State of producers outside of runs (STATE §4, §5, §8).

use std::sync::Arc;

use bugle::{
    Error,
    json::json,
    memory::MemoryOptions,
    model::{Gate, Script, ScriptedModel},
    processor::builtin::{OnMatch, RegexFilter, Rule},
    runtime::{Action, ActiveBehavior, IdleBehavior, StateSent},
    signal::{StateInput, Tracking, tracked_lanes},
    storage::{MetadataChange, NewThread, ThreadUpdate},
};

use crate::{
    faulty::Faulty,
    support::{World, builder, world, world_of, world_on},
};

fn snapshot(lane: &str, key: &str) -> StateInput {
    StateInput::snapshot(lane, key, key)
}

async fn tracking(world: &World, lane: &str) -> Option<Tracking> {
    let thread = world.storage.get_thread("thread").await.unwrap()?;
    tracked_lanes(&thread).into_iter().find(|(known, _)| known == lane).map(|(_, tracking)| tracking)
}

/// A thread that exists, and an agent that answers everything.
async fn ready() -> World {
    let world = world(ScriptedModel::recording()).await;
    world.storage.create_thread(NewThread::of(&world.thread)).await.unwrap();
    world
}

/// Stores without waking anybody.
async fn store(world: &World, state: StateInput) -> Result<StateSent, Error> {
    let target = world.target_for(ActiveBehavior::Persist, IdleBehavior::Persist);
    world.agent.send_state_signal(target, state).await
}

fn code(sent: Result<StateSent, Error>) -> &'static str {
    match sent {
        Err(Error::State(error)) => error.code,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn state_020_022_032_versions_skips_and_tracking() {
    let world = ready().await;
    let own = MetadataChange::Own(json!({"mine": 1, "mastra": {"other": 2}}).as_object().unwrap().clone());
    world
        .storage
        .update_thread(ThreadUpdate { id: "thread".into(), metadata: own, ..ThreadUpdate::default() })
        .await
        .unwrap();
    assert!(!store(&world, snapshot("browser", "k1")).await.unwrap().is_unchanged());
    assert!(store(&world, snapshot("browser", "k1")).await.unwrap().is_unchanged());
    let delta = StateInput::delta("browser", "k1", "changed");
    assert!(!store(&world, delta).await.unwrap().is_unchanged(), "the other mode");
    let held = tracking(&world, "browser").await.unwrap();
    assert_eq!((held.version, held.active_copies.len(), held.pending), (2, 2, None));
    let thread = json!(world.storage.get_thread("thread").await.unwrap().unwrap());
    let rows = world.stored().await;
    assert_eq!(
        thread["metadata"],
        json!({"mine": 1, "mastra": {"other": 2, "stateSignals": {"browser": {
            "currentCacheKey": "k1", "currentMode": "delta", "version": 2, "lastSignalId": rows[1].id,
            "lastSnapshotSignalId": rows[0].id, "updatedAt": json!(held.updated_at), "activeCopies": [
                {"id": rows[0].id, "cacheKey": "k1", "mode": "snapshot", "version": 1},
                {"id": rows[1].id, "cacheKey": "k1", "mode": "delta", "version": 2}]}}}}),
        "STATE-020, STATE-021, STATE-024"
    );
    for (key, version) in [("k2", 3), ("k1", 4)] {
        store(&world, snapshot("browser", key)).await.unwrap();
        assert_eq!(tracking(&world, "browser").await.unwrap().version, version);
    }
    assert_eq!(world.stored().await.len(), 4, "STATE-032: a skip stores nothing");
}

#[tokio::test(start_paused = true)]
async fn state_043_044_a_state_wakes_an_idle_agent() {
    let world = ready().await;
    let mut watcher = world.watch().await;
    let sent = world.agent.send_state_signal(&world.thread, snapshot("browser", "open")).await.unwrap();
    let outcome = sent.outcome().unwrap().clone();
    assert_eq!(outcome.action, Action::Wake);
    watcher.until_end_of(&outcome.run_id.unwrap()).await;
    assert_eq!(world.asked(0), ["<state>open</state>"]);
}

#[tokio::test(start_paused = true)]
async fn state_003_040_041_042_what_is_refused() {
    let world = ready().await;
    let send = |state| store(&world, state);
    assert_eq!(code(send(StateInput { id: None, ..snapshot("a", "k") }).await), "state_id_required");
    assert_eq!(code(send(snapshot("a", "")).await), "state_cache_key_required");
    assert_eq!(code(send(StateInput { transient: Some(false), ..snapshot("a", "k") }).await), "state_not_transient");
    let bad = StateInput { attributes: Some([("a b".to_owned(), json!(1))].into()), ..snapshot("a", "k") };
    assert_eq!(code(send(bad).await), "state_invalid", "STATE-004");
    let anyone = bugle::ThreadKey::unowned("thread");
    assert_eq!(code(world.agent.send_state_signal(&anyone, snapshot("a", "k")).await), "state_target_required");
    let missing = bugle::ThreadKey::new("user", "none");
    assert_eq!(code(world.agent.send_state_signal(&missing, snapshot("a", "k")).await), "state_thread_not_found");
    let stranger = bugle::ThreadKey::new("mallory", "thread");
    assert_eq!(code(world.agent.send_state_signal(&stranger, snapshot("a", "k")).await), "thread_resource_mismatch");
    let model = ScriptedModel::new();
    let forgetful = bugle::Agent::builder("plain").model(Arc::new(model.clone())).build().unwrap();
    let forgetful = world_of(model, [forgetful]).await;
    assert_eq!(
        code(forgetful.agent.send_state_signal(&forgetful.thread, snapshot("a", "k")).await),
        "state_memory_required"
    );
    assert!(world.stored().await.is_empty() && tracking(&world, "a").await.is_none(), "nothing was stored");
    // STATE-082
    store(&world, snapshot("a", "k1")).await.unwrap();
    let based = |base: u64| StateInput {
        metadata: json!({"state": {"baseVersion": base}}).as_object().cloned(),
        ..StateInput::delta("a", "d", "d")
    };
    assert_eq!(code(store(&world, based(7)).await), "state_stale_base");
    assert!(store(&world, based(1)).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn state_034_a_state_nobody_took_can_be_sent_again() {
    let world = ready().await;
    let dropped = world.target_for(ActiveBehavior::Discard, IdleBehavior::Discard);
    let sent = world.agent.send_state_signal(dropped, snapshot("a", "k")).await.unwrap();
    assert_eq!(sent.outcome().unwrap().action, Action::Discard);
    assert_eq!(tracking(&world, "a").await, None);
    // A send that fails in routing.
    let faulty = Faulty::new();
    let model = ScriptedModel::recording();
    let agent = builder("plain", &model).build().unwrap();
    let broken = world_on(model, [agent], faulty.clone()).await;
    broken.storage.create_thread(NewThread::of(&broken.thread)).await.unwrap();
    store(&broken, snapshot("a", "first")).await.unwrap();
    let before = tracking(&broken, "a").await;
    faulty.fail("accept", 100);
    assert!(broken.agent.send_state_signal(&broken.thread, snapshot("a", "second")).await.is_err());
    assert_eq!(tracking(&broken, "a").await, before, "as before");
    faulty.fail("accept", 0);
    assert!(!store(&broken, snapshot("a", "second")).await.unwrap().is_unchanged());
    assert_eq!(tracking(&broken, "a").await.unwrap().version, 2);
    // And the first world's state is taken now.
    assert!(!store(&world, snapshot("a", "k")).await.unwrap().is_unchanged());
}

#[tokio::test(start_paused = true)]
async fn state_034_a_state_whose_process_died_before_it_was_routed_is_told_again() {
    let world = ready().await;
    let lost = Tracking {
        current_cache_key: "k".into(),
        current_mode: Some(bugle::signal::StateMode::Snapshot),
        version: 3,
        last_signal_id: Some("nobody".into()),
        pending: Some("somebody".into()),
        ..Tracking::default()
    };
    let change = bugle::signal::LaneChange { lane: "a".into(), expected: None, tracking: Some(lost) };
    world.storage.track_lanes("thread", vec![change]).await.unwrap();
    assert!(!store(&world, snapshot("a", "k")).await.unwrap().is_unchanged());
    let held = tracking(&world, "a").await.unwrap();
    assert_eq!((held.version, held.pending), (3, None));
    assert!(store(&world, snapshot("a", "k")).await.unwrap().is_unchanged());
}

#[tokio::test(start_paused = true)]
async fn state_034_a_persisted_state_whose_row_cannot_be_written_is_not_the_lanes() {
    let faulty = Faulty::new();
    let model = ScriptedModel::recording();
    let agent = builder("plain", &model).build().unwrap();
    let world = world_on(model, [agent], faulty.clone()).await;
    world.storage.create_thread(NewThread::of(&world.thread)).await.unwrap();
    store(&world, snapshot("a", "first")).await.unwrap();
    let before = tracking(&world, "a").await;
    faulty.fail("commit", 100);
    assert!(store(&world, snapshot("a", "second")).await.is_err());
    assert_eq!(tracking(&world, "a").await, before);
    faulty.fail("commit", 0);
    assert!(!store(&world, snapshot("a", "second")).await.unwrap().is_unchanged());
    assert_eq!(tracking(&world, "a").await.unwrap().version, 2, "no hole");
}

#[tokio::test(start_paused = true)]
async fn state_034_ruling_33_a_state_that_was_rolled_back_is_told_again() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into(), "c".into()]);
    let world = world(model).await;
    world.storage.create_thread(NewThread::of(&world.thread)).await.unwrap();
    store(&world, snapshot("a", "before")).await.unwrap();
    let mut watcher = world.watch().await;
    world.agent.send_state_signal(&world.thread, snapshot("a", "woke")).await.unwrap();
    gate.reached().await;
    let instead = world.target_for(ActiveBehavior::Rollback, IdleBehavior::Wake);
    let run = world.agent.send_message(instead, "instead").await.unwrap().accepted().await.unwrap().run_id.unwrap();
    gate.open();
    watcher.until_end_of(&run).await;
    let held = tracking(&world, "a").await.unwrap();
    assert_eq!((held.current_cache_key.as_str(), held.version), ("before", 2));
    assert!(store(&world, snapshot("a", "before")).await.unwrap().is_unchanged());
    assert!(!store(&world, snapshot("a", "woke")).await.unwrap().is_unchanged());
    let row = world.stored().await.pop().unwrap().id;
    world.storage.delete_messages(std::slice::from_ref(&row)).await.unwrap();
    assert!(!store(&world, snapshot("a", "woke")).await.unwrap().is_unchanged(), "its row was deleted");
}

#[tokio::test(start_paused = true)]
async fn state_034_ruling_34_a_state_that_a_guard_blocked_is_not_the_lanes() {
    let model = ScriptedModel::recording();
    let rule = Rule::new("bad", "forbidden", 9).unwrap();
    let guard = RegexFilter::new("guard", vec![rule], OnMatch::Block);
    let agent = builder("plain", &model).memory(MemoryOptions::last(2)).input_processor(guard).build().unwrap();
    let world = world_of(model, [agent]).await;
    world.storage.create_thread(NewThread::of(&world.thread)).await.unwrap();
    store(&world, snapshot("a", "good")).await.unwrap();
    let mut watcher = world.watch().await;
    let sent = world.agent.send_state_signal(&world.thread, snapshot("a", "forbidden")).await.unwrap();
    watcher.until_end_of(sent.outcome().unwrap().run_id.as_ref().unwrap()).await;
    assert_eq!(tracking(&world, "a").await.unwrap().current_cache_key, "good");
    store(&world, StateInput::delta("a", "d", "then")).await.unwrap();
    for text in ["one", "two", "three"] {
        world.run(text).await;
    }
    let asked = world.asked(world.model.requested() - 1);
    assert_eq!(asked[..2], ["<state>good</state>", "<state>then</state>"], "put back: {asked:?}");
}

#[tokio::test(start_paused = true)]
async fn ruling_34_what_was_persisted_is_judged_by_the_first_run_that_reads_it() {
    let model = ScriptedModel::recording();
    let rule = |name, pattern| Rule::new(name, pattern, 9).unwrap();
    let block = RegexFilter::new("block", vec![rule("bad", "forbidden")], OnMatch::Block);
    let redact = RegexFilter::new("redact", vec![rule("number", "[0-9]{4}")], OnMatch::Redact);
    let agent = builder("plain", &model).memory(MemoryOptions::last(5)).input_processor(block).input_processor(redact);
    let world = world_of(model, [agent.build().unwrap()]).await;
    world.storage.create_thread(NewThread::of(&world.thread)).await.unwrap();
    let quiet = || world.target_for(ActiveBehavior::Persist, IdleBehavior::Persist);
    for text in ["forbidden words", "pin 1234", "fine"] {
        world.agent.send_message(quiet(), text).await.unwrap().persisted().await.unwrap();
    }
    store(&world, snapshot("a", "good")).await.unwrap();
    store(&world, snapshot("a", "forbidden state")).await.unwrap();
    assert!(world.stored().await.iter().all(bugle::message::StoredMessage::is_unjudged));
    world.run("hello").await;
    let asked = world.asked(0);
    assert_eq!(asked, ["pin [number]", "fine", "<state>good</state>", "hello"]);
    let rows = world.stored().await;
    assert!(!rows.iter().any(bugle::message::StoredMessage::is_unjudged), "judged once");
    let blocked: Vec<_> = rows.iter().filter(|row| row.is_blocked()).map(|row| row.joined_text()).collect();
    assert_eq!(blocked, ["forbidden words", "forbidden state"], "kept for people");
    assert_eq!(tracking(&world, "a").await.unwrap().current_cache_key, "good");
    for text in ["one", "two", "three"] {
        world.run(text).await;
    }
    assert_eq!(world.asked(3)[0], "<state>good</state>", "put back");
    assert!(!world.asked(3).iter().any(|text| text.contains("forbidden") || text.contains("1234")));
}

#[tokio::test(start_paused = true)]
async fn state_035_cancelling_a_queued_input_does_not_undo_its_state() {
    let gate = Gate::new();
    let world = world(ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into()])).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    let sent = world.agent.send_state_signal(&world.thread, snapshot("a", "k")).await.unwrap();
    let StateSent::Sent { signal, .. } = sent else { panic!() };
    let cancelled = world
        .agent
        .cancel_queued(&world.thread, bugle::runtime::CancelSelector::Signals(vec![signal.id.clone()]))
        .await
        .unwrap();
    assert_eq!(cancelled, [signal.id]);
    assert_eq!(tracking(&world, "a").await.unwrap().version, 1);
    assert!(world.agent.send_state_signal(&world.thread, snapshot("a", "k")).await.unwrap().is_unchanged());
    gate.open();
    watcher.until_end_of(&run).await;
}

#[tokio::test(start_paused = true)]
async fn state_036_an_external_lane_that_fell_out_of_view_is_put_back() {
    let model = ScriptedModel::recording();
    let agent = builder("plain", &model).memory(MemoryOptions::last(2)).build().unwrap();
    let world = world_of(model, [agent]).await;
    world.storage.create_thread(NewThread::of(&world.thread)).await.unwrap();
    store(&world, snapshot("browser", "open")).await.unwrap();
    store(&world, StateInput::delta("browser", "d1", "tab 2")).await.unwrap();
    let hidden = StateInput {
        metadata: json!({"state": {"reinject": false}}).as_object().cloned(),
        ..snapshot("private", "hidden")
    };
    store(&world, hidden).await.unwrap();
    for text in ["one", "two", "three"] {
        world.run(text).await;
    }
    let rows = world.stored().await.len();
    let ran = world.run("four").await;
    let asked = world.asked(3);
    assert_eq!(asked[..2], ["<state>open</state>", "<state>tab 2</state>"], "before the rest: {asked:?}");
    assert!(!asked.iter().any(|text| text.contains("hidden")));
    assert_eq!(world.stored().await.len(), rows + 2, "not stored again");
    assert!(ran.all("data-signal").is_empty(), "not shown again");
    assert_eq!(tracking(&world, "browser").await.unwrap().version, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn state_081_eight_producers_on_one_lane_and_four_lanes() {
    let world = Arc::new(ready().await);
    // Identical sends: one is accepted.
    let sends = (0..20).map(|_| store(&world, snapshot("same", "k")));
    let sent = futures::future::try_join_all(sends).await.unwrap();
    assert_eq!(sent.iter().filter(|sent| !sent.is_unchanged()).count(), 1);
    // Eight producers, each its own states, on four lanes: no gap, no lane lost.
    let producers = (0..8).map(|producer| {
        let world = world.clone();
        tokio::spawn(async move {
            for n in 0..5 {
                let lane = format!("lane-{}", producer % 4);
                store(&world, snapshot(&lane, &format!("{producer}-{n}"))).await.unwrap();
            }
        })
    });
    futures::future::try_join_all(producers).await.unwrap();
    for lane in 0..4 {
        let held = tracking(&world, &format!("lane-{lane}")).await.unwrap();
        assert_eq!(held.version, 10, "lane {lane}");
    }
    let rows = world.stored().await;
    for lane in 0..4 {
        let lane = format!("lane-{lane}");
        let state = |row: &bugle::message::StoredMessage| {
            json!(row)["content"]["metadata"]["signal"]["metadata"]["state"].clone()
        };
        let of_lane = rows.iter().map(state).filter(|state| state["id"] == lane.as_str());
        let mut versions: Vec<u64> = of_lane.map(|state| state["version"].as_u64().unwrap()).collect();
        versions.sort_unstable();
        assert_eq!(versions, (1..=10).collect::<Vec<u64>>());
    }
}

#[tokio::test(start_paused = true)]
async fn state_081_another_process_that_is_faster() {
    // The store says twice that the lane has changed meanwhile.
    let world = ready().await;
    store(&world, snapshot("a", "k1")).await.unwrap();
    let other = world_on(
        ScriptedModel::recording(),
        [builder("plain", &ScriptedModel::new()).build().unwrap()],
        world.storage.clone(),
    )
    .await;
    let (one, two) = futures::join!(store(&world, snapshot("a", "k2")), store(&other, snapshot("a", "k3")));
    let _ = (one.unwrap(), two);
    assert!(tracking(&world, "a").await.unwrap().version >= 2);
}

#[tokio::test(start_paused = true)]
async fn state_026_a_title_and_a_state_at_once_both_survive() {
    let world = ready().await;
    let title = ThreadUpdate { id: "thread".into(), title: Some("New".into()), ..ThreadUpdate::default() };
    let (titled, sent) = futures::join!(world.storage.update_thread(title), store(&world, snapshot("a", "k")));
    titled.unwrap();
    sent.unwrap();
    let thread = world.storage.get_thread("thread").await.unwrap().unwrap();
    assert_eq!(thread.title, "New");
    assert_eq!(tracked_lanes(&thread).len(), 1);
}
