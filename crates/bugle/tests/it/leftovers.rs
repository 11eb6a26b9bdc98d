//! What runs leave in the store when they end badly, and who settles it (SIG-502, MEM-054, ruling 26).

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bugle::{
    Agent, Error, SignalInput, ThreadKey,
    json::{Value, json},
    memory::MemoryOptions,
    model::{Gate, LanguageModel, ModelError, ModelRequest, ModelResponse, Script, ScriptedModel},
    runtime::{ActiveBehavior, CancelSelector, EditInput, IdleBehavior, Message, PromoteTo},
    storage::{
        Accept, Commit, InboxEntry, InputMode, Lease, LeaseClaim, MemoryStorage, NewThread, RunChange, RunRecord,
        SharedStorage, StorageError,
    },
};

use crate::{
    faulty::Faulty,
    support::{World, accepted, agent, message, world_on},
};

#[derive(Debug)]
struct Panics;

#[async_trait]
impl LanguageModel for Panics {
    fn provider(&self) -> &'static str {
        "test"
    }

    fn model_id(&self) -> &'static str {
        "panics"
    }

    async fn stream(&self, _: ModelRequest) -> Result<ModelResponse, ModelError> {
        panic!("the adapter is broken")
    }
}

/// A store in which a process that died has left this run.
async fn left(agent_id: &str, snapshot: Value) -> SharedStorage {
    let storage: SharedStorage = Arc::new(MemoryStorage::new());
    let thread = ThreadKey::new("user", "thread");
    let claim = LeaseClaim::new("dead", Duration::from_millis(1));
    let Lease::Held { epoch } = storage.acquire_lease(&thread, &claim).await.unwrap() else { panic!("held") };
    let mut commit = Commit::new(thread.clone(), epoch);
    commit.create_thread = Some(NewThread { resource_id: "user".into(), ..NewThread::default() });
    commit.run = RunChange::Save(RunRecord {
        run_id: "left".into(),
        thread: thread.clone(),
        agent_id: agent_id.into(),
        snapshot,
        updated_at: Default::default(),
    });
    storage.commit(commit).await.unwrap();
    storage.release_lease(&thread, "dead", None).await.unwrap();
    storage
}

fn snapshot(recoveries: u32) -> Value {
    json!({
        "messageId": "m", "firstMessageId": "m", "iteration": 1, "steps": 0, "usage": {}, "consumed": [], "own": [],
        "phase": "request", "recoveries": recoveries,
    })
}

async fn settle() {
    tokio::time::sleep(Duration::from_secs(10)).await;
}

async fn kinds_of_parts(world: &World) -> Vec<Value> {
    let stored = serde_json::to_value(world.stored().await).unwrap();
    let messages = stored.as_array().unwrap().iter();
    messages.flat_map(|message| message["content"]["parts"].as_array().unwrap().clone()).collect()
}

#[tokio::test(start_paused = true)]
async fn mem_054_a_run_whose_last_write_fails_for_good_is_not_revived() {
    let store = Faulty::new();
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "again".into()]);
    let world = world_on(model.clone(), [agent("plain", &model)], store.clone()).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    // All tries of the run, and the first ones of its thread.
    store.fail("commit", 6);
    gate.open();
    watcher.until_end_of(&run).await;
    assert_eq!(world.storage.runs(&world.thread).await.unwrap().len(), 1, "not ended yet");
    settle().await;
    assert!(world.storage.runs(&world.thread).await.unwrap().is_empty(), "ended later");
    let _second = world_on(model.clone(), [agent("plain", &model)], store).await;
    settle().await;
    assert_eq!(model.requested(), 1, "nobody has revived it");
}

#[tokio::test(start_paused = true)]
async fn sig_502_a_run_that_panics_is_ended_in_the_store_too() {
    let agent = Agent::builder("plain").model(Arc::new(Panics)).memory(MemoryOptions::default()).build().unwrap();
    let world = world_on(ScriptedModel::new(), [agent], Arc::new(MemoryStorage::new())).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    assert_eq!(watcher.until_end_of(&run).await.kind(), "error");
    settle().await;
    assert!(world.storage.runs(&world.thread).await.unwrap().is_empty());
    assert!(world.storage.inbox(&world.thread).await.unwrap().is_empty());
    assert_eq!(world.texts().await, ["hi"]);
}

#[tokio::test(start_paused = true)]
async fn sig_502_a_record_that_cannot_be_read_is_ended_and_says_so() {
    let model = ScriptedModel::new();
    let storage = left("plain", json!({ "phase": "of a later version" })).await;
    let world = world_on(model.clone(), [agent("plain", &model)], storage).await;
    settle().await;
    assert!(world.storage.runs(&world.thread).await.unwrap().is_empty());
    let parts = kinds_of_parts(&world).await;
    assert_eq!(parts[0]["type"], "error");
    assert_eq!(parts[0]["error"]["name"], "InvalidSnapshot");
}

#[tokio::test(start_paused = true)]
async fn sig_502_a_run_that_ends_its_process_is_given_up_after_twenty_recoveries() {
    let model = ScriptedModel::with_responses(["a", "b"]);
    let storage = left("plain", snapshot(20)).await;
    let world = world_on(model.clone(), [agent("plain", &model)], storage).await;
    settle().await;
    assert!(world.storage.runs(&world.thread).await.unwrap().is_empty());
    assert_eq!(model.requested(), 0);
    assert_eq!(kinds_of_parts(&world).await[0]["error"]["name"], "RunGivenUp");
}

#[tokio::test(start_paused = true)]
async fn sig_502_a_recovery_is_counted_before_it_begins() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().gate(&gate).text("a")]);
    let storage = left("plain", snapshot(2)).await;
    let world = world_on(model.clone(), [agent("plain", &model)], storage).await;
    gate.reached().await;
    let record = world.storage.get_run(&"left".into()).await.unwrap().unwrap();
    assert_eq!(record.snapshot["recoveries"], 3);
    gate.open();
    settle().await;
    assert!(world.storage.runs(&world.thread).await.unwrap().is_empty());
    assert_eq!(world.texts().await, ["a"]);
}

#[tokio::test(start_paused = true)]
async fn sig_502_what_an_unregistered_agent_left_stays_for_a_process_that_has_it() {
    let model = ScriptedModel::with_responses(["a"]);
    let storage = left("other", snapshot(0)).await;
    let without = world_on(model.clone(), [agent("plain", &model)], storage.clone()).await;
    settle().await;
    let record = without.storage.get_run(&"left".into()).await.unwrap().unwrap();
    assert_eq!(record.snapshot["recoveries"], 0, "untouched");
    let with = world_on(model.clone(), [agent("other", &model)], storage).await;
    settle().await;
    assert!(with.storage.runs(&with.thread).await.unwrap().is_empty());
    assert_eq!(with.texts().await, ["a"]);
}

fn persists(world: &World) -> bugle::runtime::Target {
    world.target_for(ActiveBehavior::Persist, IdleBehavior::Persist)
}

#[tokio::test(start_paused = true)]
async fn sig_503_persists_of_one_id_settle_each_and_change_nothing() {
    let model = ScriptedModel::new();
    let store = Faulty::new();
    let world = world_on(model.clone(), [agent("plain", &model)], store.clone()).await;
    let hold = store.hold("commit");
    let mut first = world.agent.send_message(persists(&world), message("one")).await.unwrap();
    let mut second = world.agent.send_message(persists(&world), message("one")).await.unwrap();
    let other = Message { id: Some("one".into()), ..Message::from("something else") };
    let mut third = world.agent.send_message(persists(&world), other).await.unwrap();
    hold.open();
    first.persisted().await.unwrap();
    second.persisted().await.unwrap();
    let refused = third.persisted().await.unwrap_err();
    assert!(matches!(refused, Error::Storage(StorageError::DifferentContent { .. })), "{refused:?}");
    assert_eq!(world.texts().await, ["one"]);
}

#[tokio::test(start_paused = true)]
async fn ruling_3_a_persist_is_tried_again_while_the_store_is_away() {
    let model = ScriptedModel::new();
    let store = Faulty::new();
    let world = world_on(model.clone(), [agent("plain", &model)], store.clone()).await;
    store.fail("commit", 3);
    let mut sent = world.agent.send_message(persists(&world), message("one")).await.unwrap();
    sent.persisted().await.unwrap();
    assert_eq!(world.texts().await, ["one"]);
}

#[tokio::test(start_paused = true)]
async fn sig_290_what_could_not_be_taken_back_is_not_reported_and_runs() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into(), "c".into()]);
    let store = Faulty::new();
    let world = world_on(model.clone(), [agent("plain", &model)], store.clone()).await;
    let mut watcher = world.watch().await;
    world.send("hi").await;
    gate.reached().await;
    accepted(world.agent.queue_message(&world.thread, message("one")).await.unwrap()).await;
    let two = accepted(world.agent.queue_message(&world.thread, message("two")).await.unwrap()).await;
    store.fail("remove_inbox", 100);
    let selector = CancelSelector::Signals(vec!["one".into()]);
    assert!(world.agent.cancel_queued(&world.thread, selector.clone()).await.unwrap().is_empty());
    store.fail("remove_inbox", 0);
    store.fail("update_inbox", 100);
    let edit = EditInput { contents: Some("changed".into()), attributes: None };
    assert!(world.agent.edit_queued(&world.thread, &"two".into(), edit).await.is_err());
    assert!(world.agent.promote_queued(&world.thread, &"two".into(), PromoteTo::Front).await.is_err());
    assert_eq!(world.waiting().await, ["one", "two"].map(bugle::MessageId::from), "as they were");
    store.fail("update_inbox", 0);
    gate.open();
    watcher.until_end_of(&two.run_id.unwrap()).await;
    assert_eq!(world.texts().await, ["hi", "a", "one", "b", "two", "c"]);
}

#[tokio::test(start_paused = true)]
async fn sig_363_input_of_a_thread_that_went_to_another_resource_is_given_up_and_says_so() {
    let model = ScriptedModel::new();
    let storage: SharedStorage = Arc::new(MemoryStorage::new());
    let thread = ThreadKey::new("user", "thread");
    // Accepted by a process that died before the thread was made; then somebody else made it.
    let signal = SignalInput { id: Some("one".into()), ..SignalInput::message("one") };
    let entry = InboxEntry {
        signal: signal.normalise(bugle::MessageId::fresh, Default::default()).unwrap(),
        thread: thread.clone(),
        agent_id: "plain".into(),
        mode: InputMode::Queue,
        run_id: "run".into(),
        options: Value::Null,
        queue_owner_id: None,
        attempts: 0,
        position: 0,
    };
    let accept =
        Accept { entries: vec![entry], thread: thread.clone(), claim: None, check_only: false, create_thread: false };
    storage.accept(accept).await.unwrap();
    let theirs = NewThread { id: Some("thread".into()), resource_id: "somebody".into(), ..NewThread::default() };
    storage.create_thread(theirs).await.unwrap();
    let world = world_on(model.clone(), [agent("plain", &model)], storage).await;
    settle().await;
    assert!(world.storage.inbox(&thread).await.unwrap().is_empty());
    assert_eq!(model.requested(), 0);
}
