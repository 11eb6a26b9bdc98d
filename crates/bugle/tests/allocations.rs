//! What the processor layer costs per chunk, in allocations (PROC-073): counts, not times, so that they are exact. A
//! binary of its own, with one test, since the count is of the whole process.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::{alloc::System, sync::Arc};

use async_trait::async_trait;
use bugle::{
    Agent, Bugle, RunOptions, ThreadKey,
    agent::AgentBuilder,
    chunk::Chunk,
    message::{Role, StoredMessage},
    model::{Script, ScriptedModel},
    processor::{Chunks, Context, Hook, HookSet, Outcome, Processor, SharedProcessor},
    runtime::RunInput,
};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Has these hooks, and leaves all alone.
struct Passing(&'static str, &'static [Hook]);

#[async_trait]
impl Processor for Passing {
    fn id(&self) -> &str {
        self.0
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(self.1)
    }
    async fn process_output_stream(&self, _: &mut Context<'_>, chunk: Chunk, out: &mut Chunks) -> Outcome {
        out.push(chunk);
        Ok(())
    }
}

/// Allocations, and those that grow, of one run whose answer comes in so many chunks.
fn of_a_run(chunks: usize, build: &dyn Fn(AgentBuilder) -> AgentBuilder) -> usize {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let script = (0..chunks).fold(Script::new(), |script, _| script.text("x"));
    let model = Arc::new(ScriptedModel::with_responses([script]));
    let agent = build(Agent::builder("a").model(model).memory(Default::default())).build().unwrap();
    let message = StoredMessage::text("m".into(), Role::User, "go", Default::default());
    let input = RunInput { messages: vec![message], tool_results: Vec::new() };
    runtime.block_on(async {
        let bugle = Bugle::builder().agent(agent).build().await.unwrap();
        let (agent, thread) = (bugle.agent("a").unwrap(), ThreadKey::new("r", "t"));
        let region = Region::new(ALLOCATOR);
        let mut stream = agent.stream(input, Some(&thread), RunOptions::default()).await.unwrap();
        let mut seen = 0;
        while stream.next().await.is_some() {
            seen += 1;
        }
        let change = region.change();
        assert!(seen > chunks, "{seen} chunks");
        change.allocations + change.reallocations
    })
}

/// What 2,000 more chunks cost.
fn of_chunks(build: impl Fn(AgentBuilder) -> AgentBuilder) -> usize {
    of_a_run(100, &build);
    of_a_run(4_096, &build) - of_a_run(2_096, &build)
}

#[test]
fn proc_073_no_stream_hook_allocates_nothing_per_chunk_and_a_hook_is_one_call() {
    // All hooks but those that are asked per chunk, or that get a copy of the response.
    const ALL: &[Hook] = &[
        Hook::Input,
        Hook::InputStep,
        Hook::State,
        Hook::LlmRequest,
        Hook::OutputStep,
        Hook::ToolResult,
        Hook::OutputResult,
        Hook::ApiError,
    ];
    let shared = |id, hooks| Arc::new(Passing(id, hooks)) as SharedProcessor;
    let none = of_chunks(|agent| agent);
    let others = of_chunks(|agent| {
        let (one, two) = (shared("one", ALL), shared("two", ALL));
        [one, two].into_iter().fold(agent, |agent, processor| {
            agent.shared_input_processor(processor.clone()).shared_output_processor(processor)
        })
    });
    let one = of_chunks(|agent| agent.output_processor(Passing("one", &[Hook::OutputStream])));
    let two = of_chunks(|agent| {
        let agent = agent.output_processor(Passing("one", &[Hook::OutputStream]));
        agent.output_processor(Passing("two", &[Hook::OutputStream]))
    });
    println!("of 2,000 chunks: none {none}, others {others}, one {one}, two {two}");
    assert_eq!(others, none, "a list without stream hooks allocates nothing per chunk");
    // The future of the call is boxed; nothing else.
    assert!(one <= none + 2_000 + 20, "one pass-through hook: {} for 2,000 chunks", one - none);
    assert!(two <= none + 4_000 + 40, "two pass-through hooks: {} for 2,000 chunks", two - none);
}
