//! What a run reads and writes (MEM).

use std::{sync::Arc, time::Duration};

use bugle::{
    Bugle, Error, RunOptions, ThreadKey,
    json::{Value, json},
    memory::{LastMessages, MemoryOptions, Scope, TitleOptions, WorkingMemoryOptions},
    message::{Role, StoredMessage},
    model::{Gate, Script, ScriptedModel},
    run::{Hooks, ThreadSeed},
    runtime::RunInput,
};
use parking_lot::Mutex;

use super::{call, echo, input, prompt, roles, run_on, world_with};
use crate::{
    faulty::Faulty,
    support::{agent, builder, world_of, world_on},
};

fn hello() -> Script {
    Script::new().text("Hello")
}

#[tokio::test(start_paused = true)]
async fn mem_003_no_recall_is_not_no_memory() {
    let options = MemoryOptions { last_messages: LastMessages(None), ..MemoryOptions::default() };
    let world = world_with([hello(), hello()], |agent| agent.memory(options)).await;
    world.run("one").await;
    world.run("two").await;
    assert_eq!(world.asked(1), ["two"]);
    assert_eq!(world.texts().await, ["one", "Hello", "two", "Hello"]);
}

#[tokio::test(start_paused = true)]
async fn mem_011_a_thread_needs_memory() {
    let model = ScriptedModel::with_responses([hello()]);
    let bare = bugle::Agent::builder("bare").model(Arc::new(model.clone())).build().unwrap();
    let world = world_of(model, [bare]).await;
    let refused = world.agent.stream(input("go"), Some(&world.thread), RunOptions::default()).await.unwrap_err();
    assert_eq!(refused.to_string(), "agent bare has no memory; give it memory to use threads");
    assert_eq!(world.model.requested(), 0);
}

#[tokio::test(start_paused = true)]
async fn mem_012_a_missing_thread_is_made_before_the_model_is_asked() {
    let gate = Gate::new();
    let world = world_with([hello().gate(&gate), hello()], |agent| agent).await;
    let seed = |title: &str, metadata: Value| RunOptions {
        thread_seed: Some(ThreadSeed { title: Some(title.into()), metadata: metadata.as_object().cloned() }),
        ..RunOptions::default()
    };
    let options = seed("Oslo", json!({"a": 1}));
    let stream = world.agent.stream(input("go"), Some(&world.thread), options).await.unwrap();
    gate.reached().await;
    let made = world.storage.get_thread("thread").await.unwrap().unwrap();
    assert_eq!((made.resource_id.as_str(), made.title.as_str()), ("user", "Oslo"));
    assert_eq!(world.texts().await, ["go"], "MEM-051");
    gate.open();
    stream.output().await.unwrap();
    world.run_with("again", seed("Rome", json!({"b": 2}))).await;
    let kept = world.storage.get_thread("thread").await.unwrap().unwrap();
    assert_eq!(json!(kept.metadata), json!({"a": 1, "b": 2}));
    assert_eq!((kept.title, kept.created_at), (made.title, made.created_at));
}

#[tokio::test(start_paused = true)]
async fn mem_013_a_thread_of_another_resource_is_refused_and_untouched() {
    let world = world_with([hello(), hello()], |agent| agent).await;
    world.run("mine").await;
    let theirs = ThreadKey::new("intruder", "thread");
    let refused = world.agent.stream(input("go"), Some(&theirs), RunOptions::default()).await.unwrap_err();
    assert!(matches!(refused, Error::Storage(_)), "{refused:?}");
    assert_eq!((world.model.requested(), world.texts().await), (1, vec!["mine".to_owned(), "Hello".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn mem_030_mem_031_the_first_exchange_gives_the_thread_its_title() {
    let options = MemoryOptions { generate_title: Some(TitleOptions::default()), ..MemoryOptions::default() };
    let world = world_with(["Hello", "Greetings", "Hello"], |agent| agent.memory(options)).await;
    world.run("hi").await;
    world.bugle.shutdown(Duration::from_secs(5)).await;
    let thread = world.storage.get_thread("thread").await.unwrap().unwrap();
    assert_eq!(thread.title, "Greetings");
    assert_eq!(world.model.requested(), 2);
}

#[tokio::test(start_paused = true)]
async fn mem_051_mem_053_every_step_is_durable_before_the_next_request() {
    let gate = Gate::new();
    let world = world_with([call(1), hello().gate(&gate)], |agent| agent.tool(echo())).await;
    let stream = world.agent.stream(input("go"), Some(&world.thread), RunOptions::default()).await.unwrap();
    gate.reached().await;
    let part = world.answer_parts().await[0].clone();
    assert_eq!(part["toolInvocation"]["state"], "result");
    gate.open();
    stream.output().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn mem_054_a_write_that_fails_is_tried_again_and_at_last_reported() {
    for (failures, warned) in [(2, false), (9, true)] {
        let storage = Faulty::new();
        let gate = Gate::new();
        let model = ScriptedModel::with_responses([Script::new().text("Hello").gate(&gate)]);
        let world = world_on(model.clone(), [agent("plain", &model)], storage.clone()).await;
        let errors: Arc<Mutex<Vec<String>>> = Arc::default();
        let keep = errors.clone();
        let hooks =
            Hooks { on_error: Some(Arc::new(move |error| keep.lock().push(error.name.clone()))), ..Hooks::default() };
        let options = RunOptions { hooks, ..RunOptions::default() };
        let stream = world.agent.stream(input("go"), Some(&world.thread), options).await.unwrap();
        gate.reached().await;
        storage.fail("commit", failures);
        gate.open();
        let output = stream.output().await.unwrap();
        assert_eq!((output.text.as_str(), &output.error), ("Hello", &None));
        let kinds: Vec<Value> = output.warnings.iter().map(|warning| warning["type"].clone()).collect();
        assert_eq!(kinds.contains(&json!("memory-write-failed")), warned, "{kinds:?}");
        assert_eq!(errors.lock().len(), usize::from(warned));
        storage.fail("commit", 0);
        assert_eq!(world.texts().await.len(), if warned { 1 } else { 2 });
    }
}

#[tokio::test(start_paused = true)]
async fn mem_054_input_that_cannot_be_stored_fails_the_run_and_asks_no_model() {
    let storage = Faulty::new();
    let model = ScriptedModel::with_responses([hello(), hello()]);
    let world = world_on(model.clone(), [agent("plain", &model)], storage.clone()).await;
    storage.fail("commit", 9);
    let ran = world.run("go").await;
    let error = ran.output.error.unwrap();
    assert!(error.message.contains("commit is down"), "{}", error.message);
    assert_eq!(world.model.requested(), 0);
    storage.fail("commit", 0);
    assert_eq!(world.run("again").await.output.text, "Hello");
}

#[tokio::test(start_paused = true)]
async fn mem_055_times_grow_even_when_the_clock_does_not() {
    let world = world_with([call(1), hello(), hello()], |agent| agent.tool(echo())).await;
    world.run("one").await;
    world.run("two").await;
    let stored = world.stored().await;
    assert_eq!(stored.len(), 4);
    assert!(stored.windows(2).all(|pair| pair[0].created_at < pair[1].created_at));
}

#[tokio::test(start_paused = true)]
async fn mem_058_a_read_only_memory_writes_nothing() {
    let options = MemoryOptions {
        read_only: true,
        generate_title: Some(TitleOptions::default()),
        working_memory: Some(WorkingMemoryOptions::default()),
        ..MemoryOptions::default()
    };
    let world = world_with([hello(), hello()], |agent| agent.memory(options)).await;
    world.run("go").await;
    world.bugle.shutdown(Duration::from_secs(5)).await;
    assert_eq!(world.storage.get_thread("thread").await.unwrap(), None);
    assert_eq!((world.stored().await.len(), world.model.requested()), (0, 1));
    assert!(world.model.requests()[0].tools.is_empty(), "MEM-101");
}

#[tokio::test(start_paused = true)]
async fn mem_060_mem_062_a_resent_conversation_is_not_stored_twice() {
    let world = world_with([hello(), hello(), Script::new().fail_with(400, "no"), hello()], |agent| agent).await;
    world.run("one").await;
    let message = |role, text: &str| StoredMessage::text("".into(), role, text, Default::default());
    let all = vec![message(Role::User, "one"), message(Role::Assistant, "Forged"), message(Role::User, "two")];
    let resent = RunInput { messages: all, tool_results: Vec::new() };
    world.agent.generate(resent, Some(&world.thread), RunOptions::default()).await.unwrap();
    assert_eq!(world.texts().await, ["one", "Hello", "two", "Hello"]);
    // A turn that failed is tried again with the same text.
    world.run("three").await;
    world.run("three").await;
    let people: Vec<String> =
        world.stored().await.iter().filter(|one| one.role == Role::User).map(StoredMessage::joined_text).collect();
    assert_eq!(people, ["one", "two", "three"]);
}

#[tokio::test(start_paused = true)]
async fn mem_061_mem_063_a_client_cannot_change_what_is_stored() {
    let world = world_with([call(1), hello(), hello()], |agent| agent.tool(echo())).await;
    world.run("one").await;
    let before = world.stored().await;
    let mut forged = before[1].clone();
    forged.content =
        serde_json::from_value(json!({"format": 2, "parts": [{"type": "text", "text": "Forged"}]})).unwrap();
    let messages =
        vec![before[0].clone(), forged, StoredMessage::text("".into(), Role::User, "two", Default::default())];
    let input = RunInput { messages, tool_results: Vec::new() };
    world.agent.generate(input, Some(&world.thread), RunOptions::default()).await.unwrap();
    assert_eq!(world.stored().await[..2], before[..]);
    assert!(!prompt(&world.model.requests()[2]).to_string().contains("Forged"));
}

#[tokio::test(start_paused = true)]
async fn mem_080_mem_088_the_window_is_the_newest_and_begins_with_a_person() {
    let world = world_with((0..4).map(|_| hello()), |agent| agent.memory(MemoryOptions::last(3))).await;
    for text in ["one", "two", "three", "four"] {
        world.run(text).await;
    }
    // Three rows would begin with an answer: the window takes one turn more.
    assert_eq!(world.asked(3), ["two", "three", "four"]);
    assert_eq!(roles(&world.model.requests()[3])[..2], ["system", "user"]);
}

#[tokio::test(start_paused = true)]
async fn mem_083_mem_084_a_later_prompt_has_pairs_only() {
    let script = Script::new().text("Looking ").call("echo", json!({"n": 1}));
    let world = world_with([script, hello(), hello()], |agent| agent.tool(echo())).await;
    world.run("one").await;
    world.run("two").await;
    let request = &world.model.requests()[2];
    assert_eq!(roles(request), ["system", "user", "assistant", "tool", "assistant", "user"]);
    let prompt = prompt(request);
    assert_eq!(prompt[2]["content"][0]["text"], "Looking ");
    assert_eq!(prompt[2]["content"][1]["toolCallId"], prompt[3]["content"][0]["toolCallId"]);
}

#[tokio::test(start_paused = true)]
async fn mem_100_mem_101_working_memory_is_told_and_written_by_its_tool() {
    for scope in [Scope::Resource, Scope::Thread] {
        let working =
            WorkingMemoryOptions { scope, template: Some("# Name".into()), ..WorkingMemoryOptions::default() };
        let options = MemoryOptions { working_memory: Some(working), ..MemoryOptions::last(10) };
        let update = Script::new().call("updateWorkingMemory", json!({"memory": "# Name: Ann"}));
        let world = world_with([update, hello(), hello()], |agent| agent.memory(options)).await;
        world.run("I am Ann").await;
        let first = prompt(&world.model.requests()[0]);
        assert!(first[1]["content"].as_str().unwrap().contains("# Name"), "{first}");
        assert_eq!(world.model.requests()[0].tools[0].name, "updateWorkingMemory");
        let other = ThreadKey::new("user", "other");
        run_on(&world.agent, "who am I?", Some(&other), RunOptions::default()).await;
        let later = prompt(&world.model.requests()[2])[1]["content"].to_string();
        assert_eq!(later.contains("Ann"), scope == Scope::Resource, "{later}");
        // Its call is not part of the conversation (MEM-052).
        let stored = serde_json::to_string(&world.stored().await).unwrap();
        assert!(!stored.contains("updateWorkingMemory"), "{stored}");
    }
}

#[tokio::test(start_paused = true)]
async fn mem_102_the_bare_template_does_not_wipe_what_is_known() {
    let working = WorkingMemoryOptions { template: Some("# Name".into()), ..WorkingMemoryOptions::default() };
    let options = MemoryOptions { working_memory: Some(working), ..MemoryOptions::last(10) };
    let update = |text: &str| Script::new().call("updateWorkingMemory", json!({ "memory": text }));
    let world =
        world_with([update("# Name: Ann"), hello(), update(" #  Name "), hello()], |agent| agent.memory(options)).await;
    world.run("I am Ann").await;
    world.run("forget me").await;
    let resource = world.storage.get_resource("user").await.unwrap().unwrap();
    assert_eq!(resource.working_memory.as_deref(), Some("# Name: Ann"));
}

#[tokio::test(start_paused = true)]
async fn loop_255_a_call_that_was_started_before_a_crash_is_not_repeated() {
    let storage: bugle::storage::SharedStorage = Arc::new(bugle::storage::MemoryStorage::new());
    let (count, running) = (Arc::new(std::sync::atomic::AtomicUsize::new(0)), Arc::new(tokio::sync::Notify::new()));
    let tool = || {
        let (count, running) = (count.clone(), running.clone());
        bugle::Tool::json("pay", move |_, _| {
            count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            running.notify_one();
            std::future::pending()
        })
    };
    let model =
        ScriptedModel::with_responses([Script::new().call_as("c", "echo", "{}").call_as("d", "pay", "{}"), hello()]);
    let agent = || builder("plain", &model).tool(echo()).tool(tool()).build().unwrap();
    let world = world_on(model.clone(), [agent()], storage.clone()).await;
    world.send("go").await;
    running.notified().await;
    // The process stops without letting the tool end.
    world.bugle.shutdown(Duration::ZERO).await;
    let again = Bugle::builder().shared_storage(storage.clone()).agent(agent()).build().await.unwrap();
    model.until_requested(2).await;
    again.shutdown(Duration::from_secs(5)).await;
    assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), 1);
    let told = prompt(&model.requests()[1]);
    let results = &told.as_array().unwrap().iter().find(|turn| turn["role"] == "tool").unwrap()["content"];
    assert_eq!(results[0]["output"]["value"], json!({"echo": {}}));
    assert!(results[1]["output"].to_string().contains("outcome unknown after a restart"), "{results}");
    assert_eq!(world.texts().await.last().map(String::as_str), Some("Hello"));
}
