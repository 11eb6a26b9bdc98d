//! What processors cost: a pass-through stream hook per chunk, a state lane per step. In memory, on the
//! scripted model, in processor time, since other work on the machine does not count then.
//!
//! `cargo run --profile perf -p bugle --example processor_speed`
#![allow(clippy::print_stdout)]

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bugle::{
    Agent, AgentHandle, Bugle, Error, RunOptions, ThreadKey,
    agent::AgentBuilder,
    chunk::Chunk,
    memory::MemoryOptions,
    message::{Role, StoredMessage},
    model::{Script, ScriptedModel},
    processor::{
        Chunks, Context, Hook, HookSet, Outcome, Processor,
        lane::{Current, Lane, LaneProcessor, Reading},
    },
    runtime::RunInput,
};

const TOKENS: usize = 2_000;
const ROUNDS: usize = 40;
const STEPS: usize = 200;

/// Passes every chunk on.
struct PassThrough;

#[async_trait]
impl Processor for PassThrough {
    fn id(&self) -> &'static str {
        "pass-through"
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::OutputStream])
    }
    async fn process_output_stream(&self, _: &mut Context<'_>, chunk: Chunk, out: &mut Chunks) -> Outcome {
        out.push(chunk);
        Ok(())
    }
}

/// A state that is told once per thread.
struct Still;

#[async_trait]
impl Lane for Still {
    type State = String;
    fn id(&self) -> &'static str {
        "still"
    }
    async fn current(&self, _: &mut Context<'_>) -> Outcome<Current<String>> {
        Ok(Current::State("Open file: main.rs".to_owned()))
    }
    fn read(&self, state: &String) -> Reading {
        Reading::text(state.clone())
    }
    fn change(&self, _: &String, _: &String) -> Option<Reading> {
        None
    }
}

async fn agent(scripts: Vec<Script>, build: impl FnOnce(AgentBuilder) -> AgentBuilder) -> Result<AgentHandle, Error> {
    let model = Arc::new(ScriptedModel::with_responses(scripts));
    let agent = build(Agent::builder("a").model(model).memory(MemoryOptions::last(20))).build()?;
    Bugle::builder().agent(agent).build().await?.agent("a")
}

/// Processor time of this thread, on which everything runs; where the system does not tell, the time of day.
fn used(since: Instant) -> Duration {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let told = told.and_then(|told| told.split(' ').next()?.parse().ok());
    told.map_or_else(|| since.elapsed(), Duration::from_nanos)
}

/// The time of the runs, one after the other, each on a thread of its own.
async fn time(agent: &AgentHandle, runs: usize) -> Result<Duration, Error> {
    let since = Instant::now();
    let began = used(since);
    for run in 0..runs {
        let message = StoredMessage::text("".into(), Role::User, "go", Default::default());
        let input = RunInput { messages: vec![message], tool_results: Vec::new() };
        let thread = ThreadKey::new("r", format!("t{run}"));
        let mut stream = agent.stream(input, Some(&thread), RunOptions::default()).await?;
        while stream.next().await.is_some() {}
        stream.output().await?;
    }
    Ok(used(since).saturating_sub(began))
}

fn answers() -> Vec<Script> {
    (0..ROUNDS).map(|_| (0..TOKENS).fold(Script::new(), |script, _| script.text("x"))).collect()
}

fn main() -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let Ok(runtime) = runtime else { return Err(Error::Internal("no runtime")) };
    runtime.block_on(async {
        let chunks = (ROUNDS * TOKENS) as f64;
        let per_chunk = |time: Duration| time.as_secs_f64() * 1e6 / chunks;
        time(&agent(answers(), |agent| agent).await?, ROUNDS).await?;
        let none = time(&agent(answers(), |agent| agent).await?, ROUNDS).await?;
        let one = time(&agent(answers(), |agent| agent.output_processor(PassThrough)).await?, ROUNDS).await?;
        println!("per chunk: no hook {:.2} µs, one pass-through hook {:.2} µs", per_chunk(none), per_chunk(one));

        let short = || (0..STEPS).map(|_| Script::new().text("ok")).collect::<Vec<_>>();
        time(&agent(short(), |agent| agent).await?, STEPS).await?;
        let none = time(&agent(short(), |agent| agent).await?, STEPS).await?;
        let lane =
            time(&agent(short(), |agent| agent.input_processor(LaneProcessor::new(Still))).await?, STEPS).await?;
        let per_step = |time: Duration| time.as_secs_f64() * 1e6 / STEPS as f64;
        println!("per step: no lane {:.1} µs, one lane {:.1} µs", per_step(none), per_step(lane));
        Ok(())
    })
}
