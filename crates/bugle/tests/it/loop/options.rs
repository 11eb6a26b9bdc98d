//! What a caller and an agent may say (LOOP §1, §2, §4, §13, §16).

use std::sync::Arc;

use bugle::{
    RequestContext, RunOptions,
    agent::ModelEntry,
    json::{Value, json},
    message::{Role, StoredMessage},
    model::{ModelSettings, Script, ScriptedModel, ToolChoice},
    run::{Hooks, Texts, ToolChoiceMode, ToolChoiceOption, ToolLiteral},
    runtime::RunInput,
};
use parking_lot::Mutex;

use super::{call, echo, input, prompt, roles, run_on, world_with};
use crate::support::{builder, world_of};

fn hello() -> Script {
    Script::new().text("Hello")
}

#[tokio::test(start_paused = true)]
async fn loop_001_loop_002_generate_and_stream_run_the_same_loop() {
    let scripts = || [call(1), hello()];
    let streamed = world_with(scripts(), |agent| agent.tool(echo())).await;
    let ran = streamed.run("go").await;
    let generated = world_with(scripts(), |agent| agent.tool(echo())).await;
    let output = generated.agent.generate(input("go"), Some(&generated.thread), RunOptions::default()).await.unwrap();
    assert_eq!((&output.text, output.finish_reason), (&ran.output.text, ran.output.finish_reason));
    assert_eq!(output.steps.len(), ran.output.steps.len());
    assert_eq!(generated.texts().await, streamed.texts().await);
    assert!(generated.model.requests().iter().all(|request| !request.streaming));
    assert!(streamed.model.requests().iter().all(|request| request.streaming));
}

#[tokio::test(start_paused = true)]
async fn loop_004_system_messages_of_the_input_come_before_the_others_and_are_not_stored() {
    let world = world_with([hello(), hello()], |agent| agent).await;
    let message = |role, text: &str| StoredMessage::text("".into(), role, text, Default::default());
    let messages = vec![message(Role::User, "hi"), message(Role::System, "Be kind."), message(Role::User, "go")];
    let input = RunInput { messages, tool_results: Vec::new() };
    world.agent.generate(input, Some(&world.thread), RunOptions::default()).await.unwrap();
    let prompt = prompt(&world.model.requests()[0]);
    assert_eq!(roles(&world.model.requests()[0])[..2], ["system", "system"]);
    assert_eq!((&prompt[0]["content"], &prompt[1]["content"]), (&json!("You are plain."), &json!("Be kind.")));
    assert_eq!(world.texts().await, ["hi", "go", "Hello"], "MEM-052");
    // Nothing to say is legal.
    let output = world.agent.generate(RunInput::default(), Some(&world.thread), RunOptions::default()).await.unwrap();
    assert_eq!(output.text, "Hello");
}

#[tokio::test(start_paused = true)]
async fn loop_005_loop_210_instructions_and_models_may_depend_on_the_request() {
    let small = ScriptedModel::with_responses([hello()]).named("test", "small");
    let large = ScriptedModel::with_responses([hello()]).named("test", "large");
    let (one, two) = (small.clone(), large.clone());
    let agent = builder("plain", &small)
        .instructions_per(|context| context.get("theme").map(|theme| format!("Theme: {theme}")))
        .models_per(move |context| {
            let model = if context.get("size").is_some() { &two } else { &one };
            vec![ModelEntry { model: Arc::new(model.clone()), max_retries: None }]
        })
        .build()
        .unwrap();
    let world = world_of(small.clone(), [agent]).await;
    world.run("go").await;
    let mut options = RunOptions::default();
    options.request_context.set("size", "large").set("theme", "dark");
    world.run_with("go", options).await;
    assert_eq!((small.requested(), large.requested()), (1, 1));
    assert_eq!(roles(&small.requests()[0])[0], "user");
    assert_eq!(prompt(&large.requests()[0])[0]["content"], "Theme: \"dark\"");
}

#[tokio::test(start_paused = true)]
async fn loop_212_reserved_keys_of_a_client_never_reach_the_agent() {
    let context = RequestContext::from_client(json!({"MastraMemory": {}, "a": 1}).as_object().unwrap().clone());
    assert_eq!(context.values().keys().collect::<Vec<_>>(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn loop_006_options_of_agent_and_call_merge_deeply() {
    let settings = |value: Value| Some(serde_json::from_value::<ModelSettings>(value).unwrap());
    let object = |value: Value| value.as_object().cloned();
    let base = RunOptions {
        model_settings: settings(json!({"temperature": 0.1, "topK": 3, "stopSequences": ["a", "b"]})),
        provider_options: object(json!({"openai": {"user": "u", "store": false}})),
        max_steps: Some(1),
        ..RunOptions::default()
    };
    let world = world_with([call(1)], |agent| agent.tool(echo()).default_options(base)).await;
    let options = RunOptions {
        model_settings: settings(json!({"maxOutputTokens": 5, "stopSequences": ["c"]})),
        provider_options: object(json!({"openai": {"store": true}})),
        ..RunOptions::default()
    };
    world.run_with("go", options).await;
    let request = &world.model.requests()[0];
    let sent = serde_json::to_value(&request.settings).unwrap();
    assert_eq!(sent, json!({"temperature": 0.1, "topK": 3, "maxOutputTokens": 5, "stopSequences": ["c"]}));
    assert_eq!(request.provider_options, object(json!({"openai": {"user": "u", "store": true}})));
    assert_eq!(world.model.requested(), 1, "the agent's step limit");
}

#[tokio::test(start_paused = true)]
async fn loop_007_a_run_has_the_callers_id_or_a_new_one() {
    let world = world_with([hello(), hello(), hello()], |agent| agent).await;
    let named = RunOptions { run_id: Some("mine".into()), ..RunOptions::default() };
    assert_eq!(world.run_with("go", named).await.output.run_id, "mine".into());
    let (one, two) = (world.run("go").await.output.run_id, world.run("go").await.output.run_id);
    assert_ne!(one, two);
    assert_eq!(one.as_str().len(), 36);
}

#[tokio::test(start_paused = true)]
async fn loop_008_runs_of_one_thread_take_turns_and_those_without_do_not() {
    let gate = bugle::model::Gate::new();
    let world = world_with([hello().gate(&gate), hello(), hello()], |agent| agent).await;
    let first = world.agent.stream(input("one"), Some(&world.thread), RunOptions::default()).await.unwrap();
    gate.reached().await;
    let second = world.agent.stream(input("two"), Some(&world.thread), RunOptions::default()).await.unwrap();
    run_on(&world.agent, "apart", None, RunOptions::default()).await;
    assert_eq!(world.model.requested(), 2, "the second run of the thread waits");
    gate.open();
    first.output().await.unwrap();
    second.output().await.unwrap();
    assert_eq!(world.texts().await, ["one", "Hello", "two", "Hello"]);
}

#[tokio::test(start_paused = true)]
async fn loop_041_tool_choice_and_active_tools() {
    let mode = |mode| RunOptions { tool_choice: Some(ToolChoiceOption::Mode(mode)), ..RunOptions::default() };
    let one = ToolChoiceOption::Tool { kind: ToolLiteral::Tool, tool_name: "echo".into() };
    let active = |names: &[&str]| RunOptions {
        active_tools: Some(names.iter().map(|name| (*name).to_owned()).collect()),
        ..RunOptions::default()
    };
    for (options, names, choice) in [
        (RunOptions::default(), vec!["echo", "other"], ToolChoice::Auto),
        (mode(ToolChoiceMode::None), vec![], ToolChoice::None),
        (mode(ToolChoiceMode::Required), vec!["echo", "other"], ToolChoice::Required),
        (
            RunOptions { tool_choice: Some(one), ..RunOptions::default() },
            vec!["echo", "other"],
            ToolChoice::Tool("echo".into()),
        ),
        (active(&[]), vec![], ToolChoice::Auto),
        (active(&["other"]), vec!["other"], ToolChoice::Auto),
    ] {
        let world = world_with([hello()], |agent| agent.tool(echo()).tool_as("other", echo())).await;
        world.run_with("go", options).await;
        let request = &world.model.requests()[0];
        let offered: Vec<&str> = request.tools.iter().map(|tool| tool.name.as_str()).collect();
        assert_eq!((offered, &request.tool_choice), (names, &choice));
    }
}

#[tokio::test(start_paused = true)]
async fn loop_043_a_request_carries_its_thread() {
    let world = world_with([hello(), hello()], |agent| agent).await;
    world.run("go").await;
    run_on(&world.agent, "go", None, RunOptions::default()).await;
    let requests = world.model.requests();
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(requests[0].headers, [pair("x-thread-id", "thread"), pair("x-resource-id", "user")]);
    assert!(requests[1].headers.is_empty());
}

#[tokio::test(start_paused = true)]
async fn loop_2_instructions_system_and_context_of_a_call() {
    let world = world_with([hello()], |agent| agent).await;
    let context = StoredMessage::text("ctx".into(), Role::User, "known before", Default::default());
    let options = RunOptions {
        instructions: Some(Texts::One("Other.".into())),
        system: Some(Texts::Many(vec!["One.".into(), "Two.".into()])),
        context: vec![context],
        ..RunOptions::default()
    };
    world.run_with("go", options).await;
    let prompt = prompt(&world.model.requests()[0]);
    let system: Vec<&Value> = (0..3).map(|at| &prompt[at]["content"]).collect();
    assert_eq!(system, [&json!("Other."), &json!("One."), &json!("Two.")]);
    assert_eq!(world.asked(0), ["known before", "go"]);
    assert_eq!(world.texts().await, ["go", "Hello"], "context is not stored");
}

#[tokio::test(start_paused = true)]
async fn loop_180_loop_181_hooks_are_called_in_order_and_cannot_break_the_run() {
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let note = |what: &'static str| {
        let seen = seen.clone();
        move |detail: String| seen.lock().push(format!("{what} {detail}").trim().to_owned())
    };
    let (chunk, step, finish) = (note("chunk"), note("step"), note("finish"));
    let hooks = Hooks {
        on_chunk: Some(Arc::new(move |one| {
            chunk(one.kind().to_owned());
            panic!("a hook that fails");
        })),
        on_step_finish: Some(Arc::new(move |one| {
            step(format!("{} {}", one.text, one.tool_results.len()));
            panic!("a hook that fails");
        })),
        on_finish: Some(Arc::new(move |run| {
            finish(format!("{} {}", run.text, run.messages.len()));
            panic!("a hook that fails");
        })),
        ..Hooks::default()
    };
    let world = world_with([call(1), Script::new().think("hm").text("Hello")], |agent| agent.tool(echo())).await;
    let ran = world.run_with("go", RunOptions { hooks, ..RunOptions::default() }).await;
    assert_eq!(ran.output.text, "Hello");
    assert_eq!(
        *seen.lock(),
        [
            "chunk tool-call-input-streaming-start",
            "chunk tool-call-delta",
            "chunk tool-call-delta",
            "chunk tool-call-input-streaming-end",
            "chunk tool-call",
            "chunk tool-result",
            "step  1",
            "chunk reasoning-delta",
            "chunk text-delta",
            "step Hello 0",
            "finish Hello 2",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn loop_206_a_run_that_is_stopped_while_it_waits_gives_up_its_turn() {
    let gate = bugle::model::Gate::new();
    let world = world_with([hello().gate(&gate), hello()], |agent| agent).await;
    let first = world.agent.stream(input("one"), Some(&world.thread), RunOptions::default()).await.unwrap();
    gate.reached().await;
    let mut second = world.agent.stream(input("two"), Some(&world.thread), RunOptions::default()).await.unwrap();
    let third = world.agent.stream(input("three"), Some(&world.thread), RunOptions::default()).await.unwrap();
    second.abort();
    let mut kinds = Vec::new();
    while let Some(chunk) = second.next().await {
        kinds.push(chunk.chunk().kind().to_owned());
    }
    assert_eq!(kinds, ["abort", "finish"], "at once, although the first run goes on");
    assert_eq!(second.output().await.unwrap().finish_reason, bugle::chunk::FinishReason::Aborted);
    // `generate` whose caller leaves does the same.
    let generate = world.agent.generate(input("four"), Some(&world.thread), RunOptions::default());
    assert!(tokio::time::timeout(std::time::Duration::from_secs(1), generate).await.is_err());
    gate.open();
    assert_eq!(
        (first.output().await.unwrap().text, third.output().await.unwrap().text),
        ("Hello".into(), "Hello".into())
    );
    assert_eq!(world.texts().await, ["one", "Hello", "three", "Hello"]);
    assert_eq!(world.model.requested(), 2);
}
