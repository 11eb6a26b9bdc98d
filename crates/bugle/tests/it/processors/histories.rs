//! Random histories: processors that change steps, abort, ask for retries, send signals and hold back the stream, on a
//! model with tool steps, while messages arrive and runs are aborted (PROC-040, PROC-044, PROC-045, PROC-081).
//!
//! Seeded; a failure names its seed, and `BUGLE_SEED=…` plays that one.

use std::{
    fmt::Write as _,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use bugle::{
    RunId, Tool,
    chunk::{Chunk, ChunkBody, FinishReason, Payload},
    json::{Value, json},
    message::Role,
    model::{PromptMessage, Script, ScriptedModel},
    processor::{
        ApiFailure, Chunks, Context, Flush, HookSet, Input, InputStep, Outcome, OutputResult, OutputStep, Processor,
        ProcessorError, Recovery, ToolResult,
    },
    run::{ToolChoiceMode, ToolChoiceOption},
    runtime::{AbortOptions, Delivery},
    signal::SignalInput,
};
use parking_lot::Mutex;

use super::fuzz::Random;
use crate::support::{Watcher, builder, world_of};

const SEEDS: u64 = 60;

/// What the processor has done, and what it must be held to.
#[derive(Default)]
struct Log {
    /// Texts of responses that were rejected.
    rejected: Vec<String>,
    /// Calls of responses that were rejected.
    forbidden: Vec<String>,
    /// Calls that ran.
    executed: Vec<String>,
    /// Signals sent before a request, by id.
    reminders: Vec<String>,
    /// Signals sent when a request had failed, part of its answer shown.
    late: Vec<String>,
    /// The text of the step that was judged last.
    last: String,
    complaints: Vec<String>,
    sent: usize,
}

struct Chaos {
    random: Mutex<Random>,
    log: Arc<Mutex<Log>>,
    /// How wild it is, in percent.
    wildness: usize,
}

/// What it holds back of the stream.
#[derive(Default)]
struct Held(Vec<Chunk>);

impl Chaos {
    fn chance(&self, percent: usize) -> bool {
        self.random.lock().below(100) < percent * self.wildness / 100
    }

    async fn remind(&self, cx: &mut Context<'_>) -> Result<String, ProcessorError> {
        let n = {
            let mut log = self.log.lock();
            log.sent += 1;
            log.sent
        };
        let signal = cx.send_signal(SignalInput::new("reactive", format!("reminder {n}"))).await?;
        Ok(signal.id.to_string())
    }

    fn refuse(&self, percent: usize) -> Option<ProcessorError> {
        if self.chance(percent) {
            return Some(ProcessorError::retry("again"));
        }
        self.chance(percent / 3).then(|| ProcessorError::tripwire("no"))
    }
}

#[async_trait]
impl Processor for Chaos {
    fn id(&self) -> &'static str {
        "chaos"
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&super::ALL)
    }
    async fn process_input(&self, _: &mut Context<'_>, input: &mut Input) -> Outcome {
        if input.mid_run && self.chance(15) {
            return Err(ProcessorError::tripwire("not this one"));
        }
        Ok(())
    }
    async fn process_input_step(&self, cx: &mut Context<'_>, step: &mut InputStep) -> Outcome {
        let own = step.model_settings.temperature.is_none()
            && step.tool_choice.is_none()
            && step.active_tools.is_none()
            && step.structured_output.is_none()
            && (step.tools.len(), step.system.len(), step.models.len()) == (1, 1, 1)
            && step.message_id == cx.message_id();
        if !own {
            self.log.lock().complaints.push(format!("a step did not begin with the call's own values: {step:?}"));
        }
        if self.chance(25) {
            step.model_settings.temperature = Some(0.1);
            step.system.push(PromptMessage::System { content: "more".into(), provider_options: None });
        }
        if self.chance(10) {
            step.tool_choice = Some(ToolChoiceOption::Mode(ToolChoiceMode::Auto));
            step.message_id = format!("own-{}", self.random.lock().next()).into();
        }
        if self.chance(10) {
            step.active_tools = Some(Vec::new());
        }
        if self.chance(25) {
            // Input that arrives meanwhile has the same step prepared again (PROC-044).
            tokio::time::sleep(Duration::from_millis(7)).await;
        }
        if self.chance(25) {
            let id = self.remind(cx).await?;
            self.log.lock().reminders.push(id);
            step.message_id = cx.message_id();
        }
        self.refuse(9).map_or(Ok(()), Err)
    }
    async fn process_output_stream(&self, cx: &mut Context<'_>, chunk: Chunk, out: &mut Chunks) -> Outcome {
        if let Some(Payload::TextDelta { text, .. }) = chunk.payload() {
            if self.chance(1) {
                self.log.lock().rejected.push(text.clone());
                return Err(ProcessorError::tripwire("no"));
            }
            let hold = self.chance(30);
            let held = &mut cx.state::<Held>().0;
            held.push(chunk);
            if !hold {
                out.extend(held.drain(..));
            }
            return Ok(());
        }
        out.extend(cx.state::<Held>().0.drain(..));
        out.push(chunk);
        Ok(())
    }
    async fn flush_output_stream(&self, cx: &mut Context<'_>, _: Flush, out: &mut Chunks) -> Outcome {
        out.extend(cx.state::<Held>().0.drain(..));
        Ok(())
    }
    async fn process_output_step(&self, cx: &mut Context<'_>, step: &mut OutputStep) -> Outcome {
        self.log.lock().last.clone_from(&step.text);
        if self.chance(10) {
            self.remind(cx).await?;
        }
        if let Some(refused) = self.refuse(15) {
            let mut log = self.log.lock();
            log.rejected.push(step.text.clone());
            log.forbidden.extend(step.tool_calls.iter().map(|call| call.tool_call_id.clone()));
            return Err(refused);
        }
        Ok(())
    }
    async fn process_tool_result(&self, cx: &mut Context<'_>, _: &mut ToolResult) -> Outcome {
        if self.chance(10) {
            self.remind(cx).await?;
        }
        self.refuse(12).map_or(Ok(()), Err)
    }
    async fn process_output_result(&self, cx: &mut Context<'_>, _: &mut OutputResult) -> Outcome {
        if self.chance(10) {
            self.remind(cx).await?;
        }
        if self.chance(8) {
            let mut log = self.log.lock();
            let last = std::mem::take(&mut log.last);
            log.rejected.push(last);
            return Err(ProcessorError::tripwire("no"));
        }
        Ok(())
    }
    async fn process_api_error(&self, cx: &mut Context<'_>, _: &ApiFailure) -> Outcome<Recovery> {
        if self.chance(30) {
            let id = self.remind(cx).await?;
            self.log.lock().late.push(id);
        }
        Ok(if self.chance(70) { Recovery::Retry } else { Recovery::GiveUp })
    }
}

/// Answers with tool steps and failures, each text once, at random paces.
fn script(random: &mut Random, n: usize) -> Script {
    let mut script = Script::new();
    let pause = |random: &mut Random| Duration::from_millis(random.below(6) as u64);
    script = script.wait(pause(random));
    if random.below(12) == 0 {
        return if random.below(2) == 0 { script.fail_with(400, "no") } else { script.text("half ").cut() };
    }
    if random.below(4) == 0 {
        script = script.think("hm ").wait(pause(random));
    }
    let calls = random.below(5) < 3;
    if !calls || random.below(2) == 0 {
        // One word, so that it is one chunk.
        for part in 0..=random.below(3) {
            script = script.text(&format!("[text-{n}-{part}]")).wait(pause(random));
        }
    }
    if calls {
        for at in 0..=random.below(2) {
            script = script.call_as(&format!("call-{n}-{at}"), "work", "{}");
        }
    }
    script
}

/// Plays a seed; what is wrong, if anything.
async fn play(seed: u64) -> Result<(), String> {
    let mut random = Random::of(seed);
    let log: Arc<Mutex<Log>> = Arc::default();
    let scripts: Vec<Script> = (0..60).map(|n| script(&mut random, n)).collect();
    let wildness = [0, 60, 100, 160][random.below(4)];
    let chaos = Arc::new(Chaos { random: Mutex::new(Random::of(random.next())), log: log.clone(), wildness });
    let executed = log.clone();
    let tool = Tool::json("work", move |_: Value, cx| {
        let executed = executed.clone();
        async move {
            executed.lock().executed.push(cx.tool_call_id.clone());
            tokio::time::sleep(Duration::from_millis(3)).await;
            Ok(json!({}))
        }
    });
    let model = ScriptedModel::with_responses(scripts);
    let agent = builder("plain", &model).tool(tool).max_processor_retries(2).shared_input_processor(chaos.clone());
    let agent = agent.shared_output_processor(chaos).build().unwrap();
    let world = world_of(model, [agent]).await;
    let mut watcher = world.watch().await;
    for n in 0..=random.below(5) {
        world.send(&format!("message {n}")).await;
        settle(&mut watcher, Duration::from_millis(random.below(25) as u64)).await;
        if random.below(8) == 0 {
            let _ = watcher.subscription().abort(AbortOptions::default()).await;
        }
    }
    // Until nothing happens any more.
    settle(&mut watcher, Duration::from_secs(600)).await;
    if let Some(run) = world.agent.active_run_id(&world.thread) {
        return Err(format!("run {run} has not ended: {:?}", watcher.kinds()));
    }
    check(&watcher, &world.stored().await, &log.lock())
}

/// Reads on until nothing has come for so long.
async fn settle(watcher: &mut Watcher, silence: Duration) {
    while let Ok(Some(delivery)) = tokio::time::timeout(silence, watcher.delivery()).await {
        if let Delivery::Chunk(chunk) = delivery {
            watcher.chunks.push(chunk.chunk.clone());
        }
    }
}

fn check(watcher: &Watcher, stored: &[bugle::message::StoredMessage], log: &Log) -> Result<(), String> {
    if let Some(complaint) = log.complaints.first() {
        return Err(complaint.clone());
    }
    let mut runs: Vec<RunId> = watcher.chunks.iter().filter_map(|chunk| chunk.run_id.clone()).collect();
    runs.dedup();
    for (at, run) in runs.iter().enumerate() {
        if runs[..at].contains(run) {
            return Err(format!("the chunks of run {run} are not together"));
        }
        let chunks: Vec<&Chunk> = watcher.chunks.iter().filter(|chunk| chunk.run_id.as_ref() == Some(run)).collect();
        let kinds: Vec<&str> = chunks.iter().map(|chunk| chunk.kind()).collect();
        // At the step limit the `finish` says `tool-calls`.
        let is_end = |kind: &str| matches!(kind, "finish" | "error" | "abort");
        let ends = kinds.iter().filter(|kind| is_end(kind)).count();
        if ends != 1 || !kinds.last().is_some_and(|kind| is_end(kind)) {
            return Err(format!("run {run} has {ends} ends: {kinds:?}"));
        }
        let tripwires = kinds.iter().filter(|kind| **kind == "tripwire").count();
        let says = chunks.last().and_then(|chunk| match chunk.payload() {
            Some(Payload::Finish(finish)) => Some(finish.step_result.reason),
            _ => None,
        });
        if tripwires > 1 || (tripwires == 1) != (says == Some(FinishReason::Tripwire)) {
            return Err(format!("{tripwires} tripwires, finish {says:?}: {kinds:?}"));
        }
    }
    if let Some(call) = log.executed.iter().find(|call| log.forbidden.contains(call)) {
        return Err(format!("{call} was rejected and ran"));
    }
    // What was rejected is not stored.
    let rows: Vec<String> = stored.iter().map(|message| json!(message.content.parts).to_string()).collect();
    for text in log.rejected.iter().flat_map(|text| texts(text)) {
        if rows.iter().any(|row| row.contains(text)) {
            return Err(format!("{text} was rejected and is stored"));
        }
    }
    echoes(watcher, stored, &rows, log)
}

/// The texts of responses in a text.
fn texts(text: &str) -> impl Iterator<Item = &str> {
    text.split_inclusive(']').filter(|text| text.starts_with("[text-"))
}

/// Signals are shown in the order in which they are stored; those before a request stand between the answers, and the
/// answer after one comes after it (PROC-081).
fn echoes(
    watcher: &Watcher,
    stored: &[bugle::message::StoredMessage],
    rows: &[String],
    log: &Log,
) -> Result<(), String> {
    let row = |id: &str| stored.iter().position(|message| message.id.as_str() == id);
    let echo = |chunk: &Chunk| match &chunk.body {
        ChunkBody::Data(data) if matches!(&*data.kind, "data-signal" | "data-user-message") => {
            data.data["id"].as_str().and_then(row)
        }
        _ => None,
    };
    let echoed: Vec<usize> = watcher.chunks.iter().filter_map(echo).collect();
    let shown: Vec<usize> = stored
        .iter()
        .enumerate()
        .filter(|(_, row)| row.role == Role::Signal && row.content.meta("blocked").is_none())
        .map(|(at, _)| at)
        .collect();
    if echoed != shown {
        return Err(format!("rows {shown:?} are signals, {echoed:?} were shown"));
    }
    let (mut open, mut newest) = (false, 0);
    for chunk in &watcher.chunks {
        match &chunk.body {
            ChunkBody::Data(data) if data.kind == "data-signal" => {
                let id = data.data["id"].as_str().unwrap_or_default();
                let before_request = log.reminders.iter().any(|known| known == id);
                if !before_request && !log.late.iter().any(|known| known == id) {
                    continue;
                }
                if open && before_request {
                    return Err(format!("signal {id} was shown in the midst of an answer"));
                }
                newest = row(id).unwrap_or(newest);
            }
            ChunkBody::Payload(Payload::TextDelta { text, .. }) => {
                open = true;
                for text in texts(text) {
                    if rows.iter().position(|row| row.contains(text)).is_some_and(|at| at < newest) {
                        return Err(format!("{text} came after the signal of row {newest} and is stored before it"));
                    }
                }
            }
            ChunkBody::Payload(Payload::ToolCall(_)) => open = true,
            // Of a failed request, too: it is tried again, or is the end.
            ChunkBody::Payload(Payload::StepFinish(_) | Payload::Finish(_) | Payload::Error { .. })
            | ChunkBody::AbortNotice => open = false,
            _ => {}
        }
    }
    Ok(())
}

#[test]
fn proc_040_044_045_051_052_081_hold_in_random_histories() {
    let one = std::env::var("BUGLE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = one.map_or(1..SEEDS + 1, |seed: u64| seed..seed + 1);
    let (began, mut failures) = (Instant::now(), String::new());
    for seed in seeds {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        if let Err(wrong) = runtime.block_on(play(seed)) {
            let _ = writeln!(failures, "seed {seed} (BUGLE_SEED={seed}): {wrong}");
        }
    }
    assert!(failures.is_empty(), "{failures}({:?})", began.elapsed());
}
