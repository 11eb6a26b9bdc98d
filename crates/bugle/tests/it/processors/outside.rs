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
async fn state_020_022_023_024_032_versions_skips_and_tracking() {
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
    let blocked: Vec<_> =
        rows.iter().filter(|row| row.is_blocked()).map(bugle::message::StoredMessage::joined_text).collect();
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
async fn state_080_081_eight_producers_on_one_lane_and_four_lanes() {
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

#[tokio::test(start_paused = true)]
async fn state_082_of_two_producers_the_last_wins_and_a_delta_may_name_its_base() {
    let world = ready().await;
    store(&world, snapshot("a", "one's")).await.unwrap();
    store(&world, snapshot("a", "other's")).await.unwrap();
    let held = tracking(&world, "a").await.unwrap();
    assert_eq!((held.version, held.current_cache_key.as_str()), (2, "other's"), "the last accepted");
    let based = |base: u64| StateInput {
        metadata: json!({"state": {"baseVersion": base}}).as_object().cloned(),
        ..StateInput::delta("a", "d", "d")
    };
    assert_eq!(code(store(&world, based(1)).await), "state_stale_base");
    assert_eq!((world.stored().await.len(), tracking(&world, "a").await), (2, Some(held)), "nothing was stored");
    assert!(!store(&world, based(2)).await.unwrap().is_unchanged());
    assert_eq!(tracking(&world, "a").await.unwrap().version, 3);
}

#[tokio::test(start_paused = true)]
async fn state_034_a_state_that_a_suspended_run_blocked_can_be_sent_again() {
    use crate::approvals::{Count, call_remove, remove};
    let count = Count::default();
    let model = ScriptedModel::with_responses([call_remove("c1", "/a"), "done".into(), "other's".into()]);
    let suspends = builder("plain", &model).tool(remove(&count)).build().unwrap();
    let other = builder("other", &model).build().unwrap();
    let world = world_of(model, [suspends, other]).await;
    let mut watcher = world.watch().await;
    world.send("go").await;
    watcher.until("tool-call-approval").await;
    let sent = world.other().send_state_signal(&world.thread, snapshot("a", "k")).await.unwrap();
    assert_eq!(sent.outcome().unwrap().action, Action::Blocked);
    assert_eq!(tracking(&world, "a").await, None, "as before");
    let run = world.agent.active_run_id(&world.thread).unwrap();
    let decision = bugle::run::Decision::approve(None);
    crate::approvals::resumed(&world.agent, &run, decision).await;
    let sent = world.other().send_state_signal(&world.thread, snapshot("a", "k")).await.unwrap();
    assert_eq!(sent.outcome().unwrap().action, Action::Wake);
    assert_eq!(tracking(&world, "a").await.unwrap().version, 1);
}

#[tokio::test(start_paused = true)]
async fn state_004_a_bad_attribute_leaves_the_run_under_way_alone() {
    let gate = Gate::new();
    let world = world(ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into()])).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    let bad = StateInput { attributes: Some([("a b".to_owned(), json!(1))].into()), ..snapshot("a", "k") };
    assert_eq!(code(world.agent.send_state_signal(&world.thread, bad).await), "state_invalid");
    gate.open();
    watcher.until_end_of(&run).await;
    assert_eq!((world.texts().await, world.model.requested()), (vec!["hi".into(), "a".into()], 1));
    assert_eq!(tracking(&world, "a").await, None);
}

/// Eight producers on one lane, each with a key of its own, some with the same; their process dies after each number of
/// writes, and another one goes on.
#[tokio::test(start_paused = true)]
async fn state_034_081_a_death_at_any_write_of_eight_producers_on_one_lane() {
    use bugle::{
        AgentHandle, Bugle,
        storage::{MemoryStorage, SharedStorage},
        time::{SharedClock, TimerClock, Timestamp},
    };
    use std::time::Duration;
    let state = |producer: usize| match producer {
        // Two say the same, three change what is there.
        0..2 => snapshot("lane", "same"),
        2..5 => StateInput::delta("lane", format!("delta-{producer}"), format!("delta-{producer}")),
        _ => snapshot("lane", &format!("snapshot-{producer}")),
    };
    for writes in 0.. {
        let clock: SharedClock = Arc::new(TimerClock::starting_at(Timestamp::from_millis(1_767_225_600_000)));
        let memory = Arc::new(MemoryStorage::with_clock(clock.clone()));
        let model = ScriptedModel::recording();
        let key = bugle::ThreadKey::new("user", "thread");
        let begin = async |storage: Arc<Faulty>| -> (Bugle, AgentHandle) {
            let storage: SharedStorage = storage;
            let agent = builder("plain", &model).build().unwrap();
            let bugle =
                Bugle::builder().shared_storage(storage).clock(clock.clone()).agent(agent).build().await.unwrap();
            let agent = bugle.agent("plain").unwrap();
            (bugle, agent)
        };
        let view = Faulty::on(&memory, None);
        bugle::storage::Storage::create_thread(&*view, NewThread::of(&key)).await.unwrap();
        let mortal = Faulty::on(&memory, Some(writes));
        let (first, agent) = begin(mortal.clone()).await;
        let sends = (0..8).map(|producer| agent.send_state_signal(&key, state(producer)));
        let sent: Vec<_> = futures::future::join_all(sends).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        first.shutdown(Duration::ZERO).await;
        let died = mortal.is_dead();

        // The next process, when nobody may be routing any more; each producer that was not answered tells again.
        tokio::time::sleep(Duration::from_secs(11)).await;
        let (second, agent) = begin(view.clone()).await;
        let what = format!("after {writes} writes");
        let mut accepted = Vec::new();
        for (producer, sent) in sent.into_iter().enumerate() {
            let sent = match sent {
                Ok(sent) => sent,
                Err(_) => agent
                    .send_state_signal(&key, state(producer))
                    .await
                    .unwrap_or_else(|error| panic!("{what}: {error}")),
            };
            if let StateSent::Sent { signal, .. } = sent {
                accepted.push(signal);
            }
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        let rows = bugle::storage::Storage::recent_messages(&*view, &key, u32::MAX).await.unwrap();
        let lane_state = |metadata: Option<&bugle::json::Object>| {
            metadata.and_then(|metadata| metadata.get("state").cloned()).unwrap_or_default()
        };
        for signal in &accepted {
            let stored = rows.iter().filter(|row| row.id == signal.id).count();
            assert_eq!(stored, 1, "{what}: {signal:?}");
        }
        let mut versions: Vec<u64> = rows
            .iter()
            .filter_map(bugle::signal::Signal::from_stored)
            .filter_map(|signal| lane_state(signal.metadata.as_ref())["version"].as_u64())
            .collect();
        versions.sort_unstable();
        assert!(versions.windows(2).all(|pair| pair[0] < pair[1]), "{what}: no version twice: {versions:?}");
        let newest =
            accepted.iter().max_by_key(|signal| lane_state(signal.metadata.as_ref())["version"].as_u64()).unwrap();
        let thread = bugle::storage::Storage::get_thread(&*view, "thread").await.unwrap().unwrap();
        let held = tracked_lanes(&thread).into_iter().next().unwrap().1;
        // Perhaps unconfirmed, if the process died right then: its row is proof enough.
        assert_eq!(Some(&newest.id), held.last_signal_id.as_ref(), "{what}");
        assert_eq!(Some(&held.version), versions.last(), "{what}");
        let same = StateInput { mode: held.current_mode.unwrap(), ..snapshot("lane", &held.current_cache_key) };
        assert!(agent.send_state_signal(&key, same).await.unwrap().is_unchanged(), "{what}: the model has seen it");
        assert!(!agent.send_state_signal(&key, snapshot("lane", "alive")).await.unwrap().is_unchanged());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(
            crate::support::user_texts(&model.requests().last().unwrap().prompt).pop().unwrap().contains("alive"),
            "{what}"
        );
        second.shutdown(Duration::ZERO).await;
        if !died {
            assert!(writes > 16, "the process lived through all of it");
            return;
        }
    }
}
