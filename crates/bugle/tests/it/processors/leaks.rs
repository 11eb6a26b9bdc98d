//! Ways around processors that are closed: caches, resumed steps, data of tools, aborts (PROC-014, PROC-040, PROC-070,
//! PROC-074).

use std::sync::Arc;

use async_trait::async_trait;
use bugle::{
    RunOptions, ThreadKey, Tool,
    chunk::{Chunk, ChunkBody, DataChunk},
    json::{Object, Value, json},
    model::{Gate, Script},
    processor::{
        Chunks, Context, Hook, HookSet, InputStep, Outcome, Processor, SharedProcessor,
        builtin::{OnMatch, RegexFilter, ResponseCache, preset},
    },
    run::{Decision, ToolStrategy},
    signal::SignalInput,
    tool::{Approval, ToolContext},
};

use crate::{
    approvals::{Count, call_remove, done, plain, remove, resumed_with},
    r#loop::{Ran, input, run_on, world_with},
};

fn redactor() -> RegexFilter {
    RegexFilter::new("secrets", vec![preset("email").unwrap()], OnMatch::Redact)
}

#[tokio::test(start_paused = true)]
async fn proc_014_a_cached_answer_is_what_passed_the_stream_hooks() {
    let cache: SharedProcessor = Arc::new(ResponseCache::default());
    let script = Script::new().text("write to ann@exam").text("ple.com now");
    let world =
        world_with([script, "plain".into()], |agent| agent.shared_input_processor(cache).output_processor(redactor()))
            .await;
    for thread in ["1", "2"] {
        let ran = run_on(&world.agent, "hi", Some(&ThreadKey::new("ann", thread)), RunOptions::default()).await;
        assert_eq!(ran.output.text, "write to [email] now", "in thread {thread}");
        assert_eq!(crate::support::text(&ran.chunks), ran.output.text);
        let stored = world.storage.recent_messages(&ThreadKey::new("ann", thread), 9).await.unwrap();
        assert!(!json!([ran.chunks, stored]).to_string().contains("@exam"));
    }
    assert_eq!(world.model.requested(), 1, "the second was replayed");
    // What passed some hooks is no answer for a run with others.
    let other = RunOptions {
        output_processors: Some(
            bugle::processor::Processors::new([Arc::new(super::Shout) as SharedProcessor]).unwrap(),
        ),
        ..RunOptions::default()
    };
    let ran = run_on(&world.agent, "hi", Some(&ThreadKey::new("ann", "3")), other).await;
    assert_eq!(ran.output.text, "PLAINPLAIN");
}

#[tokio::test(start_paused = true)]
async fn proc_014_a_cache_tells_requests_apart_by_all_that_shapes_the_answer() {
    let cache: SharedProcessor = Arc::new(ResponseCache::default());
    let world = world_with(["a", "b", "c"], |agent| agent.shared_input_processor(cache)).await;
    let options = |provider: Option<Object>, tools: Value| RunOptions {
        provider_options: provider,
        client_tools: serde_json::from_value(tools).unwrap(),
        ..RunOptions::default()
    };
    let tool = |kind: &str| {
        let schema = json!({"type": "object", "properties": {"x": {"type": kind}}});
        json!({"look": {"description": "looks", "inputSchema": schema}})
    };
    let provider = json!({"p": {"effort": "high"}}).as_object().cloned();
    let cases = [
        (None, tool("string"), "a"),
        (None, tool("number"), "b"),
        (provider.clone(), tool("number"), "c"),
        (provider, tool("number"), "c"),
        (None, tool("string"), "a"),
    ];
    for (n, (provider, tools, expected)) in cases.into_iter().enumerate() {
        let thread = ThreadKey::new("ann", n.to_string());
        let ran = run_on(&world.agent, "hi", Some(&thread), options(provider, tools)).await;
        assert_eq!(ran.output.text, expected, "case {n}");
    }
}

/// Shapes the tools of each step, and says so to the model.
#[derive(Clone)]
struct Shape(Arc<dyn Fn(&mut InputStep) + Send + Sync>);

#[async_trait]
impl Processor for Shape {
    fn id(&self) -> &'static str {
        "shape"
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::InputStep])
    }
    async fn process_input_step(&self, cx: &mut Context<'_>, step: &mut InputStep) -> Outcome {
        (self.0)(step);
        cx.send_signal(SignalInput::new("reactive", "shaped")).await.map(|_| ())
    }
}

#[tokio::test(start_paused = true)]
async fn proc_040_a_resumed_step_has_the_tools_its_hooks_gave_it() {
    // A tool that only the step has runs when it is approved.
    let count = Count::default();
    let tool = remove(&count);
    let shape = Shape(Arc::new(move |step| {
        step.tools.insert("remove".to_owned(), tool.clone());
    }));
    let world = world_with([call_remove("c1", "/a"), done()], |agent| agent.input_processor(shape)).await;
    let first = world.run("go").await;
    let approved = Decision::approve(Some("c1"));
    let ran = resumed_with(&world.agent, &first.output.run_id, approved.clone(), RunOptions::default()).await;
    assert_eq!((ran.output.text.as_str(), count.get()), ("done", 1));
    assert_eq!(ran.all("data-signal").len(), 1, "the hook's other effects belong to the next request");
    // A call behind the approved one asks for the leave that the step's hook wants.
    let count = Count::default();
    let shape = Shape(Arc::new(|step| {
        let tool = step.tools["plain"].clone().with_approval(Approval::Always);
        step.tools.insert("plain".to_owned(), tool);
    }));
    let script = call_remove("c1", "/a").call_as("c2", "plain", "{}");
    let world =
        world_with([script, done()], |agent| agent.tool(remove(&count)).tool(plain(&count)).input_processor(shape))
            .await;
    let options = RunOptions { tool_strategy: Some(ToolStrategy::Available), ..RunOptions::default() };
    let first = world.run_with("go", options.clone()).await;
    let ran = resumed_with(&world.agent, &first.output.run_id, approved.clone(), options.clone()).await;
    assert_eq!((ran.payload("tool-call-approval")["toolCallId"].as_str(), count.get()), (Some("c2"), 1));
    let ran = resumed_with(&world.agent, &first.output.run_id, Decision::approve(Some("c2")), options).await;
    assert_eq!((ran.output.text.as_str(), count.get()), ("done", 2));
    // A hook that stops the step now stops its calls.
    let count = Count::default();
    let spy = super::Spy::new("spy", &[Hook::InputStep]).acting(Hook::InputStep, 1, super::Act::Trip);
    let world = world_with([call_remove("c1", "/a")], |agent| agent.tool(remove(&count)).input_processor(spy)).await;
    let first = world.run("go").await;
    let ran = resumed_with(&world.agent, &first.output.run_id, approved, RunOptions::default()).await;
    assert_eq!((ran.all("tripwire").len(), count.get()), (1, 0));
}

/// Takes secrets out of data parts, and drops some.
struct CleanData;

#[async_trait]
impl Processor for CleanData {
    fn id(&self) -> &'static str {
        "clean-data"
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::OutputStream])
    }
    fn processes_data_parts(&self) -> bool {
        true
    }
    async fn process_output_stream(&self, _: &mut Context<'_>, mut chunk: Chunk, out: &mut Chunks) -> Outcome {
        if let ChunkBody::Data(data) = &mut chunk.body {
            if data.kind == "data-drop" {
                return Ok(());
            }
            data.data = json!("clean");
        }
        out.push(chunk);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn proc_070_data_that_tools_write_passes_hooks_that_want_data() {
    let tool = || {
        Tool::json("echo", |_: Value, context: ToolContext| async move {
            for kind in ["data-note", "data-drop"] {
                let data = DataChunk { kind: kind.into(), data: json!("secret"), id: None, transient: None };
                context.writer.custom(data).await;
            }
            Ok(json!({}))
        })
    };
    let scripts = || [crate::r#loop::call(1), "done".into()];
    let world = world_with(scripts(), |agent| agent.tool(tool()).output_processor(CleanData)).await;
    let ran = world.run("hi").await;
    assert_eq!(ran.all("data-note")[0]["data"], "clean");
    assert!(ran.all("data-drop").is_empty());
    let everything = json!([ran.chunks, world.stored().await]).to_string();
    assert!(everything.contains("data-note") && !everything.contains("secret"), "{everything}");
    // Others do not see it.
    let world = world_with(scripts(), |agent| agent.tool(tool()).output_processor(super::Shout)).await;
    assert_eq!(world.run("hi").await.all("data-note")[0]["data"], "secret");
}

#[tokio::test(start_paused = true)]
async fn proc_074_an_abort_shows_no_beginning_of_a_secret() {
    let gate = Gate::new();
    let script = Script::new().text(&"word ".repeat(120)).text("write to ann.lee@exam").gate(&gate);
    let world = world_with([script], |agent| agent.output_processor(redactor())).await;
    let mut stream = world.agent.stream(input("hi"), Some(&world.thread), RunOptions::default()).await.unwrap();
    gate.reached().await;
    stream.abort();
    let mut chunks = Vec::new();
    while let Some(chunk) = stream.next().await {
        chunks.push(chunk.chunk().clone());
    }
    let ran = Ran { chunks, output: stream.output().await.unwrap() };
    assert_eq!(ran.all("abort").len(), 1);
    assert!(crate::support::text(&ran.chunks).starts_with("word "));
    let everything = json!([ran.chunks, world.stored().await, ran.output.text]).to_string();
    assert!(!everything.contains("ann"), "{everything}");
}
