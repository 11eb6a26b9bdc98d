//! Watching a thread (SIG §15, §22.4).

use bugle::{
    SignalInput,
    chunk::{Chunk, ChunkBody, Payload, StreamChunk},
    json::json,
    model::{Gate, ModelEvent, Script, ScriptedModel},
    runtime::{ActiveBehavior, Delivery, HideSignals, IdleBehavior, Replay, ReplayFrom, SubscribeOptions},
};
use std::{sync::Arc, time::Duration};

use crate::support::{Watcher, World, accepted, message, text, world, world_of_two};

fn deltas(count: usize) -> Script {
    (0..count)
        .fold(Script::new(), |script, n| script.emit(ModelEvent::TextDelta { id: "t".into(), text: format!("{n} ") }))
}

/// Everything that can be read now.
fn ready(watcher: &mut Watcher) -> Vec<Delivery> {
    std::iter::from_fn(|| watcher.try_next()).collect()
}

fn chunks(deliveries: &[Delivery]) -> Vec<Chunk> {
    let chunks = deliveries.iter().filter_map(|delivery| match delivery {
        Delivery::Chunk(chunk) => Some(chunk.chunk.clone()),
        Delivery::Gap { .. } => None,
    });
    chunks.collect()
}

#[tokio::test(start_paused = true)]
async fn sig_330_a_late_subscriber_misses_nothing_and_sees_nothing_twice() {
    // The same chunks, held up after each of them in turn.
    const DELTAS: usize = 200;
    let gates: Vec<Gate> = (0..DELTAS).map(|_| Gate::new()).collect();
    let script = gates.iter().enumerate().fold(Script::new(), |script, (n, gate)| {
        script.emit(ModelEvent::TextDelta { id: "t".into(), text: format!("{n} ") }).gate(gate)
    });
    let world = world(ScriptedModel::with_responses([script])).await;
    let mut watchers = vec![world.watch().await];
    let run = world.send("hi").await.run_id.unwrap();
    for gate in &gates {
        gate.reached().await;
        watchers.push(world.watch().await);
        gate.open();
    }
    let mut whole = Vec::new();
    for (n, watcher) in watchers.iter_mut().enumerate() {
        watcher.until_end_of(&run).await;
        if n == 0 {
            whole = watcher.chunks.clone();
            assert!(whole.len() > DELTAS);
        }
        assert_eq!(watcher.chunks, whole, "subscriber {n}");
    }
    assert_eq!(whole[0].kind(), "data-user-message", "SIG-331: echoes are replayed");
    let mut late = world.watch().await;
    assert!(ready(&mut late).is_empty(), "nothing of a run that has ended");
}

#[tokio::test(start_paused = true)]
async fn sig_335_a_hundred_subscribers_see_the_same_five_runs() {
    let world = world(ScriptedModel::new()).await;
    let mut watchers = Vec::new();
    for _ in 0..100 {
        watchers.push(world.watch().await);
    }
    let mut last = None;
    for n in 0..5 {
        last = world.queue(&format!("run {n}")).await.run_id;
    }
    let last = last.unwrap();
    // One that leaves and one that does not read affect nobody.
    drop(watchers.pop());
    let sleeper = watchers.pop();
    let mut first: Option<Vec<Chunk>> = None;
    for watcher in &mut watchers {
        watcher.until_end_of(&last).await;
        let seen = first.get_or_insert_with(|| watcher.chunks.clone());
        assert_eq!(&watcher.chunks, seen);
        assert_eq!(watcher.run_order().len(), 5, "SIG-168: whole runs, one after the other");
    }
    assert_eq!(chunks(&ready(&mut sleeper.unwrap())), first.unwrap());
}

#[tokio::test(start_paused = true)]
async fn sig_336_a_run_goes_on_although_nobody_reads() {
    let world = world(ScriptedModel::with_responses([deltas(5000)])).await;
    let idle = world.watch().await;
    let mut reader = world.watch().await;
    world.send("hi").await;
    reader.until("finish").await;
    assert_eq!(world.stored().await.len(), 2);
    drop(idle);
}

#[tokio::test(start_paused = true)]
async fn loop_205_sig_508_a_slow_subscriber_is_told_and_gets_merged_deltas() {
    let gate = Gate::new();
    let script = deltas(1).gate(&gate);
    let script = (1..3000)
        .fold(script, |script, n| script.emit(ModelEvent::TextDelta { id: "t".into(), text: format!("{n} ") }));
    let world = world(ScriptedModel::with_responses([script])).await;
    let mut slow = world.watch().await;
    let mut fast = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    fast.until("text-delta").await;
    slow.until("text-delta").await;
    gate.open();
    loop {
        let chunk = fast.next().await;
        if chunk.ends_run() {
            break;
        }
    }
    let rest = ready(&mut slow);
    let total = last_number(&rest);
    let rest = chunks(&rest);
    assert_eq!(rest[0].kind(), "data-subscription-lagged");
    let ChunkBody::Data(notice) = &rest[0].body else { panic!("no data") };
    assert_eq!((&notice.data["runId"], notice.transient), (&json!(run), Some(true)));
    let skipped = notice.data["skipped"].as_u64().unwrap();
    assert_eq!(slow.chunks.len() as u64 + skipped + rest.len() as u64 - 1, total);
    assert_eq!(rest.iter().filter(|chunk| chunk.kind() == "text-delta").count(), 1);
    let seen: Vec<Chunk> = slow.chunks.iter().cloned().chain(rest).collect();
    assert_eq!(text(&seen), (0..3000).map(|n| n.to_string() + " ").collect::<String>());
    assert_eq!(seen.last().unwrap().kind(), "finish");
}

/// The number of the last chunk: how many the thread has had.
fn last_number(deliveries: &[Delivery]) -> u64 {
    match deliveries.last() {
        Some(Delivery::Chunk(chunk)) => chunk.id.number,
        other => panic!("no chunk: {other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn sig_508_what_a_subscriber_has_lost_is_counted() {
    // 12 MiB in blocks of 4 KiB: the log drops what is older than 8 MiB.
    const BLOCKS: usize = 3000;
    let gate = Gate::new();
    let block = "x".repeat(4096);
    let script = (0..BLOCKS).fold(Script::new().text("begin ").gate(&gate), |script, n| {
        let id = format!("t{n}");
        script.emit(ModelEvent::TextDelta { id, text: block.clone() })
    });
    let world = world(ScriptedModel::with_responses([script])).await;
    let mut slow = world.watch().await;
    let mut fast = world.watch().await;
    world.send("hi").await;
    gate.reached().await;
    slow.until("text-delta").await;
    let before = slow.chunks.len();
    gate.open();
    loop {
        if fast.next().await.ends_run() {
            break;
        }
    }
    let rest = ready(&mut slow);
    let total = last_number(&rest);
    let rest = chunks(&rest);
    let ChunkBody::Data(notice) = &rest[0].body else { panic!("no notice: {:?}", rest[0]) };
    let skipped = notice.data["skipped"].as_u64().unwrap();
    assert!(skipped > 1000, "{skipped}");
    assert_eq!(before as u64 + skipped + rest.len() as u64 - 1, total, "never a silent hole");
    assert_eq!(rest.last().unwrap().kind(), "finish", "the last chunk of a run is never lost");
}

#[tokio::test(start_paused = true)]
async fn sig_320_sig_322_r34_dropping_a_subscription_ends_it_and_the_run_goes_on() {
    let gate = Gate::new();
    let world = world(ScriptedModel::with_responses([Script::new().text("a ").gate(&gate).text("b")])).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    watcher.until("text-delta").await;
    assert_eq!(watcher.subscription().active_run_id(), Some(run.clone()), "SIG-324");
    drop(watcher);
    gate.open();
    let mut again = world.watch().await;
    again.until_end_of(&run).await;
    assert_eq!(world.texts().await, ["hi", "a b"]);
    drop(again);
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(world.bugle.live_threads(), 0);
}

#[tokio::test(start_paused = true)]
async fn sig_332_replay_none_starts_at_the_live_edge() {
    let gate = Gate::new();
    let world = world(ScriptedModel::with_responses([Script::new().text("a ").gate(&gate).text("b")])).await;
    let mut first = world.watch().await;
    world.send("hi").await;
    gate.reached().await;
    first.until("text-delta").await;
    let options = SubscribeOptions { replay: Replay::None, ..SubscribeOptions::default() };
    let mut live = world.watch_with(options).await;
    gate.open();
    live.until("finish").await;
    assert_eq!(live.kinds(), ["text-delta", "text-end", "step-finish", "finish"]);
}

async fn echo_kinds(hide: HideSignals) -> Vec<String> {
    let world = world(ScriptedModel::with_responses(["a", "b", "c"])).await;
    let options = SubscribeOptions { hide_signals: hide, ..SubscribeOptions::default() };
    let mut watcher = world.watch_with(options).await;
    let mut plain = world.watch().await;
    world.send("user").await;
    watcher.until("finish").await;
    for kind in ["reactive", "notification"] {
        accepted(world.agent.send_signal(&world.thread, SignalInput::new(kind, kind)).await.unwrap()).await;
        watcher.until("finish").await;
    }
    for _ in 0..3 {
        plain.until("finish").await;
    }
    assert_eq!(plain.echoes(), ["user", "reactive", "notification"], "others see all");
    assert_eq!(world.asked(2).len(), 3, "so does the model");
    watcher.echoes()
}

#[tokio::test(start_paused = true)]
async fn sig_345_sig_346_signals_can_be_hidden_from_one_subscriber() {
    let types = |types: &[&str]| HideSignals::Types(types.iter().map(|name| (*name).to_owned()).collect());
    assert_eq!(echo_kinds(HideSignals::None).await, ["user", "reactive", "notification"]);
    assert_eq!(echo_kinds(types(&[])).await, ["user", "reactive", "notification"]);
    assert!(echo_kinds(HideSignals::All).await.is_empty());
    assert_eq!(echo_kinds(types(&["system-reminder"])).await, ["user", "notification"], "legacy names count");
    assert_eq!(echo_kinds(types(&["user-message", "notification"])).await, ["reactive"]);
}

fn persist(world: &World) -> bugle::runtime::Target {
    world.target_for(ActiveBehavior::Deliver, IdleBehavior::Persist)
}

#[tokio::test(start_paused = true)]
async fn sig_340_an_idle_persist_is_shown_as_a_run_of_its_own_kind() {
    let world = world(ScriptedModel::with_responses(["a"])).await;
    let mut watcher = world.watch().await;
    let signal = SignalInput { id: Some("SIG".into()), ..SignalInput::new("notification", "CI failed") };
    let mut sent = world.agent.send_signal(persist(&world), signal).await.unwrap();
    sent.persisted().await.unwrap();
    watcher.until("finish").await;
    let seen = serde_json::to_value(&watcher.chunks).unwrap();
    assert_eq!(watcher.kinds(), ["start", "data-signal", "finish"]);
    assert_eq!(seen[0]["payload"]["id"], "plain");
    assert_eq!(seen[0]["payload"]["messageId"], "persisted-signal:SIG");
    assert_eq!(seen[2]["payload"]["stepResult"]["reason"], "stop");
    assert_eq!(seen[2]["payload"]["output"]["usage"]["totalTokens"], 0);
    assert!(
        seen[0]["runId"].is_string() && seen[0]["runId"] == seen[1]["runId"] && seen[1]["runId"] == seen[2]["runId"]
    );
    let stored = bugle::Signal::from_stored(&world.stored().await[0]).unwrap();
    let echoed = &seen[1]["data"];
    assert_eq!(echoed["createdAt"], json!(stored.created_at), "SIG-051");
    assert_eq!((world.model.requested(), watcher.subscription().active_run_id()), (0, None), "SIG-342");
}

#[tokio::test(start_paused = true)]
async fn sig_341_echoes_follow_successful_writes_in_order_of_acceptance() {
    let store = crate::faulty::Faulty::new();
    let model = ScriptedModel::with_responses(["a"]);
    let world = crate::support::world_on(model.clone(), [crate::support::agent("plain", &model)], store.clone()).await;
    let mut watcher = world.watch().await;
    let hold = store.hold("commit");
    let mut sent = Vec::new();
    for id in ["one", "two", "three"] {
        sent.push(world.agent.send_message(persist(&world), message(id)).await.unwrap());
    }
    hold.reached().await;
    assert!(ready(&mut watcher).is_empty(), "not before the write");
    store.fail("commit", 6); // all tries of the first (ruling 3)
    hold.open();
    assert!(sent[0].persisted().await.is_err());
    sent[1].persisted().await.unwrap();
    sent[2].persisted().await.unwrap();
    watcher.until("finish").await;
    watcher.until("finish").await;
    assert_eq!(watcher.echoes(), ["two", "three"]);
}

#[tokio::test(start_paused = true)]
async fn sig_342_an_idle_persist_waits_for_the_end_of_the_active_runs_step() {
    let gate = Gate::new();
    let second = Gate::new();
    let model =
        ScriptedModel::with_responses([Script::new().text("a").gate(&gate), Script::new().text("b").gate(&second)]);
    let world = world_of_two(model).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    let mut sent = world.other().send_message(persist(&world), "note").await.unwrap();
    sent.persisted().await.unwrap();
    world.send("more").await;
    gate.open();
    second.reached().await;
    second.open();
    watcher.until_end_of(&run).await;
    let kinds = watcher.kinds();
    let at = kinds.iter().position(|kind| *kind == "step-finish").unwrap();
    assert_eq!(kinds[at + 1..at + 5], ["start", "data-signal", "finish", "step-start"]);
}

fn event_ids(deliveries: &[Delivery]) -> Vec<bugle::chunk::EventId> {
    let ids = deliveries.iter().map(|delivery| match delivery {
        Delivery::Chunk(chunk) => chunk.id,
        Delivery::Gap { .. } => panic!("a gap"),
    });
    ids.collect()
}

#[tokio::test(start_paused = true)]
async fn ruling_21_a_reconnect_gets_exactly_what_it_missed() {
    let world = world(ScriptedModel::with_responses([deltas(30), deltas(30)])).await;
    let mut watcher = world.watch().await;
    let mut all: Vec<Arc<StreamChunk>> = Vec::new();
    for text in ["one", "two"] {
        world.send(text).await;
        loop {
            let Some(Delivery::Chunk(chunk)) = watcher.delivery().await else { panic!("no chunk") };
            all.push(chunk.clone());
            if chunk.chunk.ends_run() {
                break;
            }
        }
    }
    for (n, seen) in all.iter().enumerate() {
        let replay = Replay::After(ReplayFrom::Event(seen.id));
        let mut again = world.watch_with(SubscribeOptions { replay, ..SubscribeOptions::default() }).await;
        let ids = event_ids(&ready(&mut again));
        assert_eq!(ids, all[n + 1..].iter().map(|chunk| chunk.id).collect::<Vec<_>>());
    }
    let unknown = SubscribeOptions { replay: Replay::After(ReplayFrom::Unknown), ..SubscribeOptions::default() };
    let mut again = world.watch_with(unknown).await;
    assert!(matches!(again.try_next(), Some(Delivery::Gap { after: None, .. })));
    assert_eq!(event_ids(&ready(&mut again)).len(), all.len());
}

#[tokio::test(start_paused = true)]
async fn ruling_21_what_the_log_no_longer_holds_is_a_gap_and_the_last_event_is_none() {
    let world = world(ScriptedModel::with_responses(["one", "two"])).await;
    let mut watcher = world.watch().await;
    let mut ids = Vec::new();
    world.send("hi").await;
    loop {
        let Some(Delivery::Chunk(chunk)) = watcher.delivery().await else { panic!("no chunk") };
        ids.push(chunk.id);
        if chunk.chunk.ends_run() {
            break;
        }
    }
    drop(watcher);
    tokio::time::sleep(Duration::from_secs(31)).await;
    assert_eq!(world.bugle.live_threads(), 0);
    let after = |id| SubscribeOptions { replay: Replay::After(ReplayFrom::Event(id)), ..SubscribeOptions::default() };
    let mut complete = world.watch_with(after(*ids.last().unwrap())).await;
    assert!(complete.try_next().is_none(), "nothing was missed");
    let mut behind = world.watch_with(after(ids[2])).await;
    assert!(matches!(behind.try_next(), Some(Delivery::Gap { after: Some(id), next: None }) if id == ids[2]));
    world.send("more").await;
    let first = complete.delivery().await;
    let Some(Delivery::Chunk(first)) = first else { panic!("no chunk") };
    assert!(first.id > *ids.last().unwrap(), "ids grow");
}

#[tokio::test(start_paused = true)]
async fn sig_352_what_is_broadcast_does_not_leak_prompts() {
    let world = world(ScriptedModel::with_responses(["a"])).await;
    let mut watcher = world.watch().await;
    world.send("hi").await;
    watcher.until("finish").await;
    for chunk in &watcher.chunks {
        let value = serde_json::to_value(chunk).unwrap();
        match chunk.payload() {
            Some(Payload::StepStart { .. }) => {
                assert!(value["payload"].get("inputMessages").is_none());
                assert!(value["payload"]["request"].get("body").is_none());
            }
            Some(Payload::StepFinish(_) | Payload::Finish(_)) => {
                assert!(value["payload"].get("messages").is_none());
                assert!(value["payload"]["metadata"].get("request").is_none());
                assert!(value["payload"]["output"].get("steps").is_none());
            }
            _ => {}
        }
    }
}
