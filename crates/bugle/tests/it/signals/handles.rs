//! What a sender holds, and what its input becomes (SIG §1 to §6, §8, §16).

use std::{sync::Arc, time::Duration};

use bugle::{
    Agent, Bugle, MessageId, RunOptions, Signal, SignalInput, ThreadKey,
    chunk::{ChunkBody, Payload},
    json::{Value, json},
    message::Role,
    model::{Gate, PromptMessage, Script, ScriptedModel},
    runtime::{AbortOptions, Action, ActiveBehavior, Delivery, IdleBehavior, Message, SubscribeOptions},
    signal::{Attributes, ContentPart, Contents, SignalType, StateInput},
    storage::{Lease, LeaseClaim},
};
use futures::FutureExt;

use crate::{
    faulty::Faulty,
    notifications::event,
    support::{World, accepted, agent, message, world, world_on},
};

fn attributes(name: &str, value: &str) -> Attributes {
    [(name.to_owned(), json!(value))].into_iter().collect()
}

/// The signals of the thread's rows.
async fn signals(world: &World) -> Vec<Signal> {
    world.stored().await.iter().filter_map(Signal::from_stored).collect()
}

#[tokio::test(start_paused = true)]
async fn sig_001_six_operations_accept_input() {
    let world = world(ScriptedModel::recording()).await;
    let mut watcher = world.watch().await;
    let (agent, thread) = (&world.agent, &world.thread);
    accepted(agent.send_message(thread, "said").await.unwrap()).await;
    watcher.until("finish").await;
    accepted(agent.queue_message(thread, "said in turn").await.unwrap()).await;
    watcher.until("finish").await;
    accepted(agent.send_signal(thread, SignalInput::new("reactive", "context")).await.unwrap()).await;
    watcher.until("finish").await;
    accepted(agent.queue_signal(thread, SignalInput::new("reactive", "context in turn")).await.unwrap()).await;
    watcher.until("finish").await;
    agent.send_state_signal(thread, StateInput::snapshot("browser", "k", "open")).await.unwrap();
    watcher.until("finish").await;
    agent.send_notification(event("urgent", "CI failed")).await.unwrap();
    watcher.until("finish").await;
    let types: Vec<SignalType> = signals(&world).await.iter().map(|signal| signal.signal_type).collect();
    use SignalType::{Notification, Reactive, State, User};
    assert_eq!(types, [User, User, Reactive, Reactive, State, Notification]);
    assert_eq!(world.model.requested(), 6, "each was answered");
}

#[tokio::test(start_paused = true)]
async fn sig_002_sig_154_a_handle_has_its_signal_at_once_and_settles_with_the_journal() {
    let store = Faulty::new();
    let model = ScriptedModel::with_responses(["answer"]);
    let world = world_on(model.clone(), [agent("plain", &model)], store.clone()).await;
    let hold = store.hold("accept");
    let mut sent = world.agent.send_message(&world.thread, "hi").await.unwrap();
    assert_eq!((sent.signal.signal_type, &sent.signal.contents), (SignalType::User, &Contents::from("hi")));
    assert!(!sent.signal.id.as_str().is_empty());
    hold.reached().await;
    assert!(sent.accepted().now_or_never().is_none());
    assert!(sent.persisted().now_or_never().is_none(), "the journal has not written it");
    hold.open();
    assert_eq!(sent.accepted().await.unwrap().action, Action::Wake);
    sent.persisted().await.unwrap();

    let thread = ThreadKey::new("user", "other");
    let hold = store.hold("commit");
    let mut target = bugle::runtime::Target::from(&thread);
    target.if_idle.behavior = IdleBehavior::Persist;
    let mut kept = world.agent.send_message(target, "kept").await.unwrap();
    assert_eq!(kept.accepted().await.unwrap().action, Action::Persist, "does not wait for the write");
    hold.reached().await;
    assert!(kept.persisted().now_or_never().is_none(), "the row is not written");
    hold.open();
    kept.persisted().await.unwrap();
    assert_eq!(world.storage.recent_messages(&thread, 9).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn sig_003_what_is_persisted_is_written_although_its_handle_is_dropped() {
    let world = world(ScriptedModel::new()).await;
    let mut watcher = world.watch().await;
    let target = world.target_for(ActiveBehavior::Deliver, IdleBehavior::Persist);
    drop(world.agent.send_message(target, "kept").await.unwrap());
    watcher.until("finish").await;
    assert_eq!((world.texts().await, watcher.echoes()), (vec!["kept".to_owned()], vec!["kept".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn sig_004_sig_014_a_message_is_text_parts_or_an_object_and_always_a_persons() {
    let object = |value: Value| value.as_object().cloned();
    let parts = Contents::Parts(vec![
        ContentPart::Text { text: "look".into(), provider_options: object(json!({"p": {"cache": true}})) },
        ContentPart::File {
            data: "QQ==".into(),
            media_type: "image/png".into(),
            filename: Some("a.png".into()),
            provider_options: None,
        },
    ]);
    let whole = Message {
        attributes: Some(attributes("name", "Jane")),
        metadata: object(json!({"trace": 1})),
        provider_options: object(json!({"p": {"k": 1}})),
        ..Message::from("whole")
    };
    for queued in [false, true] {
        let world = world(ScriptedModel::recording()).await;
        let mut watcher = world.watch().await;
        for message in [Message::from("text"), parts.clone().into(), whole.clone()] {
            let sent = if queued {
                world.agent.queue_message(&world.thread, message).await
            } else {
                world.agent.send_message(&world.thread, message).await
            };
            accepted(sent.unwrap()).await;
            watcher.until("finish").await;
        }
        let stored = signals(&world).await;
        assert!(stored.iter().all(|one| (one.signal_type, one.tag_name.as_str()) == (SignalType::User, "user")));
        let contents: Vec<&Contents> = stored.iter().map(|one| &one.contents).collect();
        assert_eq!(contents, [&"text".into(), &parts, &"whole".into()]);
        assert_eq!(
            (&stored[2].attributes, &stored[2].metadata, &stored[2].provider_options),
            (&whole.attributes, &whole.metadata, &whole.provider_options)
        );
        assert_eq!(world.asked(2), ["text", "look", "<user name=\"Jane\">whole</user>"]);
    }
}

#[tokio::test(start_paused = true)]
async fn sig_013_an_id_is_the_callers_or_minted_in_order_of_time() {
    let world = world(ScriptedModel::recording()).await;
    let minted = async || world.agent.send_message(&world.thread, "hi").await.unwrap().signal.id;
    let (one, two) = (minted().await, minted().await);
    for id in [&one, &two] {
        assert_eq!(uuid::Uuid::parse_str(id.as_str()).unwrap().get_version_num(), 7, "MEM-056: {id}");
    }
    assert!(one < two, "{one} {two}");
    let own = world.agent.send_message(&world.thread, message("mine")).await.unwrap();
    assert_eq!(own.signal.id, "mine".into());
    let signal = SignalInput { id: Some("theirs".into()), ..SignalInput::new("reactive", "x") };
    let queued = accepted(world.agent.queue_signal(&world.thread, signal).await.unwrap()).await;
    assert_eq!(queued.signal.id, "theirs".into());
}

#[tokio::test(start_paused = true)]
async fn sig_022_mem_130_the_merged_attributes_are_in_answer_prompt_store_and_echo() {
    let world = world(ScriptedModel::with_responses(["a"])).await;
    let mut watcher = world.watch().await;
    let mut target = world.target();
    target.if_idle.attributes = Some(attributes("sentFrom", "slack"));
    target.if_active.attributes = Some(attributes("sentFrom", "nowhere"));
    let message = Message { attributes: Some(attributes("from", "ann")), ..Message::from("ok") };
    let outcome = accepted(world.agent.send_message(target, message).await.unwrap()).await;
    watcher.until("finish").await;
    let merged: Attributes =
        [("from".to_owned(), json!("ann")), ("sentFrom".to_owned(), json!("slack"))].into_iter().collect();
    assert_eq!(outcome.signal.attributes.as_ref(), Some(&merged));
    assert_eq!(world.asked(0), ["<user from=\"ann\" sentFrom=\"slack\">ok</user>"]);
    let row = serde_json::to_value(&world.stored().await[0]).unwrap();
    assert_eq!(row["content"]["metadata"]["signal"]["attributes"], json!(merged));
    let ChunkBody::Data(echo) = &watcher.chunks[0].body else { panic!("no echo") };
    assert_eq!(echo.data["attributes"], json!(merged));
}

#[tokio::test(start_paused = true)]
async fn sig_026_a_transient_signal_takes_the_place_of_its_earlier_copy() {
    let gates = [Gate::new(), Gate::new()];
    let steps = gates.iter().map(|gate| Script::new().text("a").gate(gate)).chain(["end".into()]);
    let world = world(ScriptedModel::with_responses(steps.collect::<Vec<_>>())).await;
    let mut watcher = world.watch().await;
    let transient = async |id: &str, text: &str| {
        let signal = SignalInput { id: Some(id.into()), transient: Some(true), ..SignalInput::new("reactive", text) };
        accepted(world.agent.send_signal(&world.thread, signal).await.unwrap()).await;
    };
    let run = world.send("hi").await.run_id.unwrap();
    gates[0].reached().await;
    transient("first", "now").await;
    transient("other", "else").await;
    gates[0].open();
    gates[1].reached().await;
    let (now, other) = ("<system-reminder>now</system-reminder>", "<system-reminder>else</system-reminder>");
    assert_eq!(world.asked(1), ["hi", now, other]);
    world.send("more").await;
    transient("second", "now").await;
    gates[1].open();
    watcher.until_end_of(&run).await;
    assert_eq!(world.asked(2), ["hi", other, "more", now], "once, at the newer place");
}

#[tokio::test(start_paused = true)]
async fn sig_043_input_mid_run_seals_the_answer_and_a_new_one_begins() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into()]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let run = world.send("one").await.run_id.unwrap();
    gate.reached().await;
    world.send("two").await;
    gate.open();
    watcher.until_end_of(&run).await;
    let rows = world.stored().await;
    let roles: Vec<Role> = rows.iter().map(|row| row.role).collect();
    assert_eq!(roles, [Role::Signal, Role::Assistant, Role::Signal, Role::Assistant]);
    let sealed = |at: usize| serde_json::to_value(&rows[at]).unwrap()["content"]["metadata"]["mastra"].clone();
    assert_eq!(sealed(1), json!({"responseBoundary": true}));
    assert_eq!(sealed(3)["responseBoundary"], Value::Null);
    let began: Vec<MessageId> = watcher.chunks.iter().filter_map(step_message).collect();
    assert_eq!(began, [rows[1].id.clone(), rows[3].id.clone()]);
}

fn step_message(chunk: &bugle::chunk::Chunk) -> Option<MessageId> {
    let value = serde_json::to_value(chunk).unwrap();
    (value["type"] == "step-start").then(|| value["payload"]["messageId"].as_str().unwrap().into())
}

#[tokio::test(start_paused = true)]
async fn sig_063_options_are_for_the_run_that_the_input_starts() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into(), "c".into()]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let with = |system: &str| {
        let mut target = world.target();
        let system = Some(bugle::run::Texts::One(system.into()));
        target.if_idle.options = Some(Box::new(RunOptions { system, ..RunOptions::default() }));
        target
    };
    world.send_to(with("formal"), "one").await;
    gate.reached().await;
    let joined = world.send_to(with("ignored"), "two").await;
    assert_eq!(joined.action, Action::Deliver);
    gate.open();
    watcher.until("finish").await;
    world.send("three").await;
    watcher.until("finish").await;
    let systems = |n: usize| -> Vec<String> {
        let said = world.model.requests()[n].prompt.clone().into_iter().filter_map(|message| match message {
            PromptMessage::System { content, .. } => Some(content),
            _ => None,
        });
        said.collect()
    };
    assert_eq!(systems(0), ["You are plain.", "formal"]);
    assert_eq!(systems(1), ["You are plain.", "formal"], "that of the input which joined is not asked");
    assert_eq!(systems(2), ["You are plain."]);
}

#[tokio::test(start_paused = true)]
async fn sig_152_a_run_that_fails_once_it_has_begun_does_not_take_back_the_acceptance() {
    let world = world(ScriptedModel::with_responses([Script::new().fail_with(400, "no")])).await;
    let mut watcher = world.watch().await;
    let sent = world.send("hi").await;
    assert_eq!(sent.action, Action::Wake);
    assert_eq!(watcher.until_end_of(&sent.run_id.unwrap()).await.kind(), "error");
}

#[tokio::test(start_paused = true)]
async fn sig_256_the_lease_goes_from_run_to_run() {
    let store = Faulty::new();
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into(), "c".into()]);
    let world = world_on(model.clone(), [agent("plain", &model)], store.clone()).await;
    let mut watcher = world.watch().await;
    world.send("hi").await;
    gate.reached().await;
    world.queue("one").await;
    let last = world.queue("two").await.run_id.unwrap();
    store.let_a_rival_in();
    gate.open();
    watcher.until_end_of(&last).await;
    assert_eq!(world.texts().await, ["hi", "a", "one", "b", "two", "c"]);
    let won = store.rival_won();
    assert_eq!(won.iter().position(|won| *won), Some(won.len() - 1), "free after the last commit alone: {won:?}");
}

#[tokio::test(start_paused = true)]
async fn sig_300_a_subscription_stops_its_thread_with_the_same_options() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "never".into()]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    world.queue("Q").await;
    let abort = |run: &str| AbortOptions { clear_pending_signals: true, expected_run_id: Some(run.into()) };
    assert!(!watcher.subscription().abort(abort("another")).await.unwrap());
    assert_eq!((world.waiting().await.len(), world.model.cancelled()), (1, 0));
    assert!(watcher.subscription().abort(abort(run.as_str())).await.unwrap());
    assert_eq!(watcher.until_end_of(&run).await.kind(), "abort");
    assert!(world.waiting().await.is_empty() && world.model.requested() == 1);
    assert!(!watcher.subscription().abort(AbortOptions::default()).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn sig_365_runtimes_that_share_nothing_do_not_see_each_other() {
    let gate = Gate::new();
    let here = world(ScriptedModel::with_responses([Script::new().text("a").gate(&gate)])).await;
    let there = world(ScriptedModel::with_responses(["b"])).await;
    let mut watcher = there.watch().await;
    here.send("hi").await;
    gate.reached().await;
    assert_eq!(there.agent.active_run_id(&there.thread), None);
    assert!(watcher.try_next().is_none());
    let own = there.send("hello").await;
    assert_eq!(own.action, Action::Wake, "the same thread key, another runtime");
    watcher.until_end_of(&own.run_id.unwrap()).await;
    assert_eq!(there.texts().await, ["hello", "b"]);
}

#[tokio::test(start_paused = true)]
async fn sig_367_one_line_gives_an_agent_a_runtime_in_memory() {
    let model = ScriptedModel::with_responses(["streamed", "sent"]);
    let helper = Agent::builder("helper")
        .model(Arc::new(model.clone()))
        .memory(bugle::memory::MemoryOptions::last(9))
        .build()
        .unwrap();
    let bugle = Bugle::builder().agent(helper).build().await.unwrap();

    let helper = bugle.agent("helper").unwrap();
    let thread = ThreadKey::new("ann", "t");
    let mut subscription = helper.subscribe(&thread, SubscribeOptions::default()).await.unwrap();
    let stream = helper.stream(crate::r#loop::input("one"), Some(&thread), RunOptions::default()).await.unwrap();
    assert_eq!(stream.output().await.unwrap().text, "streamed");
    let run = accepted(helper.send_message(&thread, "two").await.unwrap()).await.run_id;
    let mut told = String::new();
    loop {
        let Some(Delivery::Chunk(chunk)) = subscription.next().await else { panic!("no chunk") };
        if let Some(Payload::TextDelta { text, .. }) = chunk.chunk.payload() {
            told.push_str(text);
        }
        if chunk.chunk.run_id == run && chunk.chunk.ends_run() {
            break;
        }
    }
    assert_eq!(told, "streamedsent");
    let stored = bugle.storage().recent_messages(&thread, 9).await.unwrap();
    assert_eq!(stored.len(), 4, "kept in memory");
    assert!(!bugle.storage().is_durable());
}

#[tokio::test(start_paused = true)]
async fn sig_517_a_run_whose_thread_was_taken_over_stops_and_writes_nothing_more() {
    let gate = Gate::new();
    let world = world(ScriptedModel::with_responses([Script::new().text("a ").gate(&gate).text("b")])).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    watcher.until("text-delta").await;
    let seen = watcher.chunks.len();
    // Its lease is lost, and another process owns the thread.
    world.storage.release_lease(&world.thread, &world.storage.owner(), None).await.unwrap();
    let stranger = LeaseClaim::new("stranger", Duration::from_secs(3600));
    let taken = world.storage.acquire_lease(&world.thread, &stranger).await.unwrap();
    assert_eq!(taken, Lease::Held { epoch: 2 });
    // It is noticed when the lease is renewed, at the latest.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(world.model.cancelled(), 1);
    gate.open();
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(world.agent.active_run_id(&world.thread), None);
    assert_eq!(world.texts().await, ["hi"], "nothing of the answer");
    let published = watcher.try_next();
    assert!(published.is_none(), "published after the loss: {published:?}");
    assert_eq!(watcher.chunks.len(), seen);
    assert_eq!(world.storage.runs(&world.thread).await.unwrap()[0].run_id, run, "its record is the new owner's");
}
