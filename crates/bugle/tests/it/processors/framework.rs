//! The framework's own parts, named, placed and replaced like any processor (PROC-004 … PROC-006).

use std::sync::Arc;

use async_trait::async_trait;
use bugle::{
    Agent, Error, RunOptions,
    json::json,
    memory::{LastMessages, MemoryOptions, Scope, WorkingMemoryOptions, set_working_memory},
    model::ScriptedModel,
    processor::{
        Context, Hook, HookSet, Input, LlmRequest, Outcome, Part, Processor, Processors,
        builtin::{MemoryInputFilter, MessageHistory, WorkingMemory},
        lane::LaneProcessor,
        lanes::WorkingMemoryLane,
    },
    storage::NewThread,
};
use parking_lot::Mutex;

use super::{ALL, Spy};
use crate::{
    r#loop::{prompt, world_with},
    support::{World, builder, world_of},
};

type Log = Arc<Mutex<Vec<String>>>;

/// A part of the framework that writes down when it was called.
struct Logged<P>(P, Log);

#[async_trait]
impl<P: Processor> Processor for Logged<P> {
    fn id(&self) -> &str {
        self.0.id()
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::Input])
    }
    fn part(&self) -> Option<Part> {
        self.0.part()
    }
    async fn process_input(&self, _: &mut Context<'_>, _: &mut Input) -> Outcome {
        self.1.lock().push(format!("{}.processInput", self.id()));
        Ok(())
    }
}

/// A processor of a user with the id of a part.
struct Own(&'static str);

#[async_trait]
impl Processor for Own {
    fn id(&self) -> &str {
        self.0
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::LlmRequest])
    }
    async fn process_llm_request(&self, _: &mut Context<'_>, _: &mut LlmRequest) -> Outcome {
        Ok(())
    }
}

fn working(scope: Scope) -> WorkingMemoryOptions {
    WorkingMemoryOptions { scope, ..WorkingMemoryOptions::default() }
}

fn order(agent: &Agent, options: &RunOptions) -> (Vec<String>, Vec<String>) {
    let order = agent.effective_processors(options).unwrap();
    (order.input, order.output)
}

async fn world(build: impl FnOnce(bugle::agent::AgentBuilder) -> bugle::agent::AgentBuilder) -> World {
    let model = ScriptedModel::recording();
    let agent = build(Agent::builder("plain").model(Arc::new(model.clone()))).build().unwrap();
    let world = world_of(model, [agent]).await;
    world.storage.create_thread(NewThread::of(&world.thread)).await.unwrap();
    world
}

#[tokio::test(start_paused = true)]
async fn proc_004_005_memorys_parts_come_first_unless_the_list_has_them() {
    let model = ScriptedModel::new();
    let memory = MemoryOptions { working_memory: Some(working(Scope::Thread)), ..MemoryOptions::last(10) };
    let spy = Spy::new("mine", &ALL);
    let plain = builder("plain", &model).memory(memory.clone());
    let plain = plain.input_processor(spy.clone()).output_processor(spy.clone()).build().unwrap();
    let (input, output) = order(&plain, &RunOptions::default());
    assert_eq!(input, ["memory-input-filter", "working-memory", "message-history", "mine"]);
    assert_eq!(output, ["mine", "message-history"], "memory saves last");
    // A call's list replaces the configured ones, never the framework's (PROC-003).
    let none = RunOptions { input_processors: Some(Processors::default()), ..RunOptions::default() };
    assert_eq!(order(&plain, &none).0, ["memory-input-filter", "working-memory", "message-history"]);
    // What memory does not do is not there.
    let off = json!({"workingMemory": false, "lastMessages": false, "readOnly": true});
    let off = RunOptions { memory_options: Some(off), ..RunOptions::default() };
    assert_eq!(order(&plain, &off), (vec!["memory-input-filter".into(), "mine".into()], vec!["mine".into()]));
    // In the list, they are where the list has them, and work there.
    let log: Log = spy.log.clone();
    let placed = builder("plain", &model)
        .memory(memory)
        .input_processor(Logged(MessageHistory::new(), log.clone()))
        .input_processor(spy.clone())
        .input_processor(Logged(MemoryInputFilter, log.clone()))
        .input_processor(Logged(WorkingMemory::new(working(Scope::Thread)), log.clone()))
        .build()
        .unwrap();
    let expected = ["message-history", "mine", "memory-input-filter", "working-memory"];
    assert_eq!(order(&placed, &RunOptions::default()).0, expected);
    let world = world_of(ScriptedModel::recording(), [placed]).await;
    world.run("hi").await;
    let called: Vec<String> = expected.iter().map(|id| format!("{id}.processInput")).collect();
    assert_eq!(log.lock()[..4], called);
    // Twice is an error, as for any processor (PROC-031).
    let twice = builder("plain", &model).input_processor(MessageHistory::new()).input_processor(MessageHistory::new());
    assert!(matches!(twice.build(), Err(Error::Configuration(_))));
}

#[tokio::test(start_paused = true)]
async fn proc_004_message_history_says_how_much_is_recalled() {
    let texts = |world: &World, n: usize| world.asked(n);
    let told = ["one", "two", "three"];
    // Over the agent's memory.
    let model = ScriptedModel::recording();
    let agent = builder("plain", &model).input_processor(MessageHistory::new().last_messages(2)).build().unwrap();
    let listed = world_of(model, [agent]).await;
    // An agent without memory gets one by it.
    let alone = world(|agent| agent.input_processor(MessageHistory::new().last_messages(2))).await;
    for world in [&listed, &alone] {
        for text in told {
            world.run(text).await;
        }
        assert_eq!(texts(world, 2), ["two", "three"], "two messages: the last question and its answer");
        assert_eq!(world.stored().await.len(), 6, "PROC-006: all of it is stored");
    }
    // What a call says still wins, and its list replaces the agent's.
    let call = RunOptions { memory_options: Some(json!({"lastMessages": 4})), ..RunOptions::default() };
    listed.run_with("four", call).await;
    assert_eq!(texts(&listed, 3), ["two", "three", "four"]);
    let list = Processors::new([Arc::new(MessageHistory::new().last_messages(0)) as _]).unwrap();
    listed.run_with("five", RunOptions { input_processors: Some(list.clone()), ..RunOptions::default() }).await;
    assert_eq!(texts(&listed, 4), ["five"]);
    // In the output list alone it stores.
    let saves = world(|agent| agent.output_processor(MessageHistory::new())).await;
    for text in told {
        saves.run(text).await;
    }
    assert_eq!((texts(&saves, 2), saves.stored().await.len()), (vec!["three".into()], 6));
    // An agent without memory is told what is missing.
    let bare = world(|agent| agent).await;
    let run = RunOptions { input_processors: Some(list), ..RunOptions::default() };
    let ran = crate::r#loop::run_on(&bare.agent, "hi", None, run).await;
    assert!(
        ran.payload("error")
            .to_string()
            .contains("message-history is in a list of this run, but agent plain has no memory")
    );
}

#[tokio::test(start_paused = true)]
async fn proc_004_a_processor_of_ones_own_takes_a_parts_place() {
    // History: nothing is recalled, all is stored.
    let world = world_with(["a", "b"], |agent| agent.input_processor(Own("message-history"))).await;
    world.run("one").await;
    world.run("two").await;
    assert_eq!((world.asked(1), world.stored().await.len()), (vec!["two".into()], 4));
    // The filter: what is sent again is taken again, but nothing that is stored is overwritten (MEM-063).
    for (filter, asked) in [("memory-input-filter", vec!["one", "one"]), ("another", vec!["one"])] {
        let world = world_with(["a", "b"], |agent| agent.input_processor(Own(filter))).await;
        world.run("one").await;
        let rows = world.stored().await;
        world.storage.delete_messages(&[rows[1].id.clone()]).await.unwrap();
        world.run("one").await;
        assert_eq!(world.asked(1), asked, "{filter}");
        let forged = bugle::message::StoredMessage {
            content: bugle::message::StoredMessage::text(
                "".into(),
                bugle::message::Role::User,
                "forged",
                Default::default(),
            )
            .content,
            ..rows[0].clone()
        };
        let input = bugle::runtime::RunInput { messages: vec![forged], tool_results: vec![] };
        let _ = world.agent.generate(input, Some(&world.thread), RunOptions::default()).await;
        assert_eq!(world.texts().await[0], "one", "{filter}");
    }
}

#[tokio::test(start_paused = true)]
async fn proc_004_working_memory_is_configured_by_its_processor() {
    let system = |world: &World, n: usize| prompt(&world.model.requests()[n])[0]["content"].clone().to_string();
    let tools = |world: &World, n: usize| -> Vec<String> {
        world.model.requests()[n].tools.iter().map(|tool| tool.name.clone()).collect()
    };
    let listed = world(|agent| agent.input_processor(WorkingMemory::new(working(Scope::Thread)))).await;
    set_working_memory(&listed.storage, &listed.thread, Scope::Thread, Some("Name: Ann".into())).await.unwrap();
    listed.run("one").await;
    listed.run("two").await;
    assert!(system(&listed, 0).contains("Name: Ann"));
    assert_eq!(tools(&listed, 0), ["updateWorkingMemory"]);
    assert_eq!(listed.asked(1), ["two"], "it brings no history");
    assert_eq!(listed.agent.agent().memory().unwrap().last_messages, LastMessages(None));
    // Over the agent's memory: another scope, and read-only.
    let read_only = WorkingMemoryOptions { read_only: true, ..working(Scope::Thread) };
    let memory = MemoryOptions { working_memory: Some(working(Scope::Resource)), ..MemoryOptions::last(3) };
    let over = world(|agent| agent.memory(memory.clone()).input_processor(WorkingMemory::new(read_only))).await;
    set_working_memory(&over.storage, &over.thread, Scope::Resource, Some("of the resource".into())).await.unwrap();
    set_working_memory(&over.storage, &over.thread, Scope::Thread, Some("of the thread".into())).await.unwrap();
    over.run("one").await;
    assert!(system(&over, 0).contains("of the thread") && !system(&over, 0).contains("of the resource"));
    assert!(tools(&over, 0).is_empty(), "shown, never changed");
    // The lane has the part's id: told as a state instead of a system message, with the tool (STATE-098).
    let lane = LaneProcessor::new(WorkingMemoryLane { scope: Scope::Resource });
    let state = world(|agent| agent.memory(memory).input_processor(lane)).await;
    set_working_memory(&state.storage, &state.thread, Scope::Resource, Some("Name: Ann".into())).await.unwrap();
    state.run("one").await;
    assert!(state.asked(0).iter().any(|text| text.contains("<working-memory>Name: Ann")), "{:?}", state.asked(0));
    assert!(!system(&state, 0).contains("working_memory_data"));
    assert_eq!(tools(&state, 0), ["updateWorkingMemory"]);
}
