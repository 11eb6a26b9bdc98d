//! Runs the hooks of one run in order: slots, panics, failures, violations (PROC §1, §5).

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt;

use super::{
    ApiFailure, Chunks, Context, Desk, Flush, Hook, HookSet, Input, InputStep, List, LlmRequest, LlmResponse, OnError,
    Outcome, OutputResult, OutputStep, Processor, ProcessorError, Processors, Recovery, RunInfo, SharedProcessor, Slot,
    ToolResult, Violation,
};
use crate::{
    chunk::{Chunk, ChunkBody, ErrorInfo, Payload, TripwirePayload},
    json::json,
    model::PromptMessage,
    signal::{LaneView, StateInput},
};

/// Retries of failed requests where nobody says how many (PROC-061).
const ERROR_RETRIES: u32 = 3;

/// Why the hooks of a point did not all run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Stop {
    /// A processor has stopped the run.
    Tripwire(TripwirePayload),
    /// A processor broke, and does not let unjudged things pass.
    Failed { processor_id: String, error: ErrorInfo },
}

struct Entry {
    processor: SharedProcessor,
    hooks: HookSet,
    slot: usize,
    /// Keeps the chunks of the step for it.
    keeps_parts: bool,
}

impl Entry {
    /// What its hook gets.
    fn context<'a>(
        &'a self,
        hook: Hook,
        slots: &'a mut [Slot],
        (info, retry_count): (&'a RunInfo, u32),
        desk: &'a mut (dyn Desk + 'a),
    ) -> Context<'a> {
        let lane = self.processor.state_id();
        Context { info, hook, lane, retry_count, slot: &mut slots[self.slot], desk }
    }
}

/// The processors of one run, and what they keep.
pub(crate) struct Runner {
    input: Vec<Entry>,
    output: Vec<Entry>,
    error: Vec<Entry>,
    slots: Vec<Slot>,
    hooks: HookSet,
    info: RunInfo,
    /// Counts retries of the step under way.
    pub(crate) retry_count: u32,
    max_retries: Option<u32>,
    /// Whose input hook is working.
    working: Option<String>,
    /// What stream hooks have given, until it is taken; and what they gave to those behind them. Kept here, so that chunks
    /// are moved as little as possible.
    given: Chunks,
    passing: Chunks,
}

/// Runs one hook of the processors of a list, up to the first that stops.
macro_rules! each {
    ($runner:ident, $list:ident, $hook:expr, $desk:ident, |$processor:ident, $cx:ident| $call:expr) => {
        each!($runner, $list, $hook, $desk, |$processor, $cx| $call, {})
    };
    ($runner:ident, $list:ident, $hook:expr, $desk:ident, |$processor:ident, $cx:ident| $call:expr, $then:expr) => {{
        let Runner { $list: list, slots, info, retry_count, .. } = &mut *$runner;
        for entry in list.iter().filter(|entry| entry.hooks.has($hook)) {
            let $processor = &*entry.processor;
            {
                let $cx = &mut entry.context($hook, slots, (info, *retry_count), &mut *$desk);
                let outcome = AssertUnwindSafe($call).catch_unwind().await;
                judge($processor, $hook, outcome.unwrap_or_else(|panic| Err(panicked(&*panic))))?;
            }
            $then;
        }
    }};
}

impl Runner {
    pub(crate) fn new(lists: [&Processors; 3], max_retries: Option<u32>, info: RunInfo) -> Self {
        let mut ids: Vec<String> = Vec::new();
        let mut hooks = HookSet::default();
        let mut entries = |list: &Processors, of: &[Hook]| -> Vec<Entry> {
            let mut entries = Vec::new();
            for processor in list.iter() {
                let has = processor.hooks();
                hooks = hooks.and(has.only(of)).and(has.only(&[Hook::ApiError]));
                // One id, one slot, also across lists (PROC-030).
                let known = ids.iter().position(|id| id == processor.id());
                let slot = known.unwrap_or_else(|| {
                    ids.push(processor.id().to_owned());
                    ids.len() - 1
                });
                if !has.is_empty() {
                    // An instance that is in the list twice gets one history.
                    let keeps_parts = has.only(of).has(Hook::OutputStream)
                        && processor.wants_stream_parts()
                        && !entries.iter().any(|entry: &Entry| entry.slot == slot);
                    entries.push(Entry { processor: processor.clone(), hooks: has, slot, keeps_parts });
                }
            }
            entries
        };
        let input = entries(lists[0], List::Input.hooks());
        let output = entries(lists[1], List::Output.hooks());
        let error = entries(lists[2], List::Error.hooks());
        let slots = ids.iter().map(|_| Slot::default()).collect();
        Self {
            input,
            output,
            error,
            slots,
            hooks,
            info,
            retry_count: 0,
            max_retries,
            working: None,
            given: Chunks::new(),
            passing: Chunks::new(),
        }
    }

    /// Whether no processor works anywhere.
    pub(crate) fn is_empty(&self) -> bool {
        self.hooks.is_empty()
    }

    /// A step begins: what was kept of the stream of the one before goes.
    pub(crate) fn begin_step(&mut self) {
        self.slots.iter_mut().for_each(|slot| slot.parts.clear());
    }

    /// Whether any processor works at this point.
    pub(crate) fn has(&self, hook: Hook) -> bool {
        self.hooks.has(hook)
    }

    /// The processors that the stream passes, in order.
    pub(crate) fn stream_ids(&self) -> Vec<String> {
        let entries = self.output.iter().filter(|entry| entry.hooks.has(Hook::OutputStream));
        entries.map(|entry| entry.processor.id().to_owned()).collect()
    }

    /// Whether any stream hook wants data parts (PROC-070).
    pub(crate) fn filters_data(&self) -> bool {
        let mut entries = self.output.iter().filter(|entry| entry.hooks.has(Hook::OutputStream));
        entries.any(|entry| entry.processor.processes_data_parts())
    }

    /// Puts `slots` in the place of what processors keep for the run; gives what they kept.
    pub(crate) fn exchange_slots(&mut self, slots: Option<Vec<Slot>>) -> Vec<Slot> {
        let fresh = || self.slots.iter().map(|_| Slot::default()).collect();
        let slots = slots.unwrap_or_else(fresh);
        std::mem::replace(&mut self.slots, slots)
    }

    /// Whether an output processor has to judge an answer before it may be read again.
    pub(crate) fn judges_answers(&self) -> bool {
        let judging = [Hook::OutputStep, Hook::OutputResult];
        let judges = |hooks: HookSet| judging.iter().any(|hook| hooks.has(*hook));
        self.output.iter().any(|entry| judges(entry.hooks) && entry.processor.judges_answers())
    }

    /// How often a step may be tried again (PROC-053).
    pub(crate) fn step_retries(&self) -> Option<u32> {
        self.max_retries
    }

    /// How often a failed request may be tried again (PROC-061).
    pub(crate) fn error_retries(&self) -> u32 {
        if self.has(Hook::ApiError) { self.max_retries.unwrap_or(ERROR_RETRIES) } else { 0 }
    }

    pub(crate) async fn input(&mut self, desk: &mut dyn Desk, input: &mut Input) -> Result<(), Stop> {
        let Self { input: list, slots, info, retry_count, working, .. } = self;
        for entry in list.iter().filter(|entry| entry.hooks.has(Hook::Input)) {
            let processor = &*entry.processor;
            *working = Some(processor.id().to_owned());
            let mut context = entry.context(Hook::Input, slots, (info, *retry_count), &mut *desk);
            let outcome = AssertUnwindSafe(processor.process_input(&mut context, input)).catch_unwind().await;
            judge(processor, Hook::Input, outcome.unwrap_or_else(|panic| Err(panicked(&*panic))))?;
        }
        *working = None;
        Ok(())
    }

    /// Whose input hook has no answer yet.
    pub(crate) fn working(&self) -> Option<String> {
        self.working.clone()
    }

    pub(crate) async fn input_step(&mut self, desk: &mut dyn Desk, step: &mut InputStep) -> Result<(), Stop> {
        let Self { input, slots, info, retry_count, .. } = self;
        for entry in input.iter().filter(|entry| entry.hooks.has(Hook::InputStep)) {
            let processor = &*entry.processor;
            let before = step.message_id.clone();
            let mut context = entry.context(Hook::InputStep, slots, (info, *retry_count), &mut *desk);
            let outcome = AssertUnwindSafe(processor.process_input_step(&mut context, step)).catch_unwind().await;
            judge(processor, Hook::InputStep, outcome.unwrap_or_else(|panic| Err(panicked(&*panic))))?;
            // What one changes, the next sees (PROC-040).
            if step.message_id == before {
                step.message_id = desk.message_id();
            } else {
                let set = desk.set_message_id(step.message_id.clone());
                set.map_err(|error| stop(processor, Hook::InputStep, error))?;
            }
            *retry_count = step.retry_count;
            let added = desk.take_system().into_iter();
            step.system.extend(added.map(|content| PromptMessage::System { content, provider_options: None }));
        }
        Ok(())
    }

    pub(crate) async fn llm_request(&mut self, desk: &mut dyn Desk, request: &mut LlmRequest) -> Result<(), Stop> {
        each!(self, input, Hook::LlmRequest, desk, |processor, cx| async {
            let answered = request.response.clone();
            let outcome = processor.process_llm_request(cx, request).await;
            // The first answer wins (PROC-014).
            if answered.is_some() {
                request.response = answered;
            }
            outcome
        });
        Ok(())
    }

    pub(crate) async fn llm_response(&mut self, desk: &mut dyn Desk, response: &LlmResponse) -> Result<(), Stop> {
        each!(self, input, Hook::LlmResponse, desk, |processor, cx| processor.process_llm_response(cx, response));
        Ok(())
    }

    pub(crate) async fn output_step(&mut self, desk: &mut dyn Desk, step: &mut OutputStep) -> Result<(), Stop> {
        each!(self, output, Hook::OutputStep, desk, |processor, cx| processor.process_output_step(cx, step));
        Ok(())
    }

    pub(crate) async fn tool_result(&mut self, desk: &mut dyn Desk, result: &mut ToolResult) -> Result<(), Stop> {
        each!(self, output, Hook::ToolResult, desk, |processor, cx| processor.process_tool_result(cx, result));
        Ok(())
    }

    pub(crate) async fn output_result(&mut self, desk: &mut dyn Desk, result: &mut OutputResult) -> Result<(), Stop> {
        each!(self, output, Hook::OutputResult, desk, |processor, cx| processor.process_output_result(cx, result), {
            if desk.take_replaced() {
                result.messages = desk.answers();
            }
        });
        Ok(())
    }

    /// Whether a failed request is tried again: all lists, the first yes wins (PROC-060). What breaks is logged, and the
    /// failure stands (PROC-056).
    pub(crate) async fn api_error(&mut self, desk: &mut dyn Desk, failure: &ApiFailure) -> Recovery {
        let Self { input, output, error, slots, info, retry_count, .. } = self;
        let mut asked: Vec<usize> = Vec::new();
        for entry in input.iter().chain(output.iter()).chain(error.iter()) {
            // The same instance in two lists is asked once.
            let address = std::ptr::from_ref(&*entry.processor).cast::<()>().addr();
            if !entry.hooks.has(Hook::ApiError) || asked.contains(&address) {
                continue;
            }
            let processor = &*entry.processor;
            let mut context = entry.context(Hook::ApiError, slots, (info, *retry_count), &mut *desk);
            let answer = AssertUnwindSafe(processor.process_api_error(&mut context, failure)).catch_unwind().await;
            asked.push(address);
            match answer.unwrap_or_else(|panic| Err(panicked(&*panic))) {
                Ok(Recovery::Retry) => return Recovery::Retry,
                Ok(Recovery::GiveUp) => {}
                Err(problem) => {
                    tracing::error!(processor = processor.id(), %problem, "an error processor failed; the error stands");
                }
            }
        }
        Recovery::GiveUp
    }

    /// The processors that have a lane: their places in the list, and the lanes.
    pub(crate) fn lanes(&self) -> Vec<(usize, String)> {
        let with_state = self.input.iter().enumerate().filter(|(_, entry)| entry.hooks.has(Hook::State));
        with_state.map(|(at, entry)| (at, entry.processor.state_id().to_owned())).collect()
    }

    /// The state of one processor's lane.
    pub(crate) async fn state(
        &mut self,
        desk: &mut dyn Desk,
        at: usize,
        lane: &LaneView,
    ) -> Result<Option<StateInput>, Stop> {
        let Self { input, slots, info, retry_count, .. } = self;
        let Some(entry) = input.get(at) else { return Ok(None) };
        let processor = &*entry.processor;
        let mut context = entry.context(Hook::State, slots, (info, *retry_count), desk);
        let outcome = AssertUnwindSafe(processor.compute_state_signal(&mut context, lane)).catch_unwind().await;
        match outcome.unwrap_or_else(|panic| Err(panicked(&*panic))) {
            Ok(state) => Ok(state),
            Err(error) => Err(stop(processor, Hook::State, error)),
        }
    }

    /// Takes what stream hooks have given, in order.
    pub(crate) fn take_given(&mut self) -> Option<Chunk> {
        if self.given.len() < 2 { self.given.pop() } else { Some(self.given.remove(0)) }
    }

    /// Passes a chunk through the stream hooks; what comes out is [taken](Self::take_given) to be shown.
    pub(crate) async fn stream(&mut self, desk: &mut dyn Desk, chunk: Chunk) -> Result<(), Stop> {
        let Self { output, slots, info, retry_count, given, passing, .. } = self;
        given.clear();
        given.push(chunk);
        for entry in output.iter().filter(|entry| entry.hooks.has(Hook::OutputStream)) {
            std::mem::swap(given, passing);
            given.clear();
            while !passing.is_empty() {
                one(entry, slots, (info, *retry_count), desk, passing, given).await?;
            }
        }
        Ok(())
    }

    /// Tells every stream hook of a chunk that none of them can change, drop or stop (PROC-063).
    pub(crate) async fn tell_stream(&mut self, desk: &mut dyn Desk, chunk: &Chunk) {
        let Self { output, slots, info, retry_count, given, passing, .. } = self;
        for entry in output.iter().filter(|entry| entry.hooks.has(Hook::OutputStream)) {
            passing.clear();
            passing.push(chunk.clone());
            // Whoever stops or breaks here has its failure logged, and changes nothing.
            let _ = one(entry, slots, (info, *retry_count), desk, passing, given).await;
        }
        given.clear();
    }

    /// Asks the stream hooks for what they hold; what one gives passes those after it.
    pub(crate) async fn flush(&mut self, desk: &mut dyn Desk, at: Flush) -> Result<(), Stop> {
        let Self { output, slots, info, retry_count, given, passing, .. } = self;
        given.clear();
        for entry in output.iter().filter(|entry| entry.hooks.has(Hook::OutputStream)) {
            std::mem::swap(given, passing);
            given.clear();
            while !passing.is_empty() {
                one(entry, slots, (info, *retry_count), desk, passing, given).await?;
            }
            flush_one(entry, slots, (info, *retry_count), desk, at, given).await?;
        }
        Ok(())
    }
}

/// The next of `passing` through one stream hook: one dynamic call (PROC-073).
async fn one(
    entry: &Entry,
    slots: &mut [Slot],
    run: (&RunInfo, u32),
    desk: &mut dyn Desk,
    passing: &mut Chunks,
    out: &mut Chunks,
) -> Result<(), Stop> {
    let processor = &*entry.processor;
    let Some(chunk) = passing.first() else { return Ok(()) };
    if matches!(chunk.body, ChunkBody::Data(_)) && !processor.processes_data_parts() {
        out.push(passing.remove(0));
        return Ok(());
    }
    if matches!(chunk.payload(), Some(Payload::TextEnd { .. })) {
        flush_one(entry, slots, run, desk, Flush::Text, out).await?;
    }
    let Some(chunk) = passing.first() else { return Ok(()) };
    if entry.keeps_parts {
        slots[entry.slot].parts.push(Arc::new(chunk.clone()));
    }
    // Kept for a processor that breaks and lets things pass.
    let spare = (processor.on_error() == OnError::Pass).then(|| Box::new(chunk.clone()));
    let given = out.len();
    let mut context = entry.context(Hook::OutputStream, slots, run, desk);
    let call = processor.process_output_stream(&mut context, passing.remove(0), out);
    let outcome = AssertUnwindSafe(call).catch_unwind().await;
    if let Err(error) = outcome.unwrap_or_else(|panic| Err(panicked(&*panic))) {
        out.truncate(given);
        let broke = matches!(error, ProcessorError::Failed(_));
        judge(processor, Hook::OutputStream, Err(error))?;
        if broke {
            out.extend(spare.map(|chunk| *chunk));
        }
    }
    Ok(())
}

async fn flush_one(
    entry: &Entry,
    slots: &mut [Slot],
    run: (&RunInfo, u32),
    desk: &mut dyn Desk,
    at: Flush,
    out: &mut Chunks,
) -> Result<(), Stop> {
    let processor = &*entry.processor;
    let mut context = entry.context(Hook::OutputStream, slots, run, desk);
    let outcome = AssertUnwindSafe(processor.flush_output_stream(&mut context, at, out)).catch_unwind().await;
    judge(processor, Hook::OutputStream, outcome.unwrap_or_else(|panic| Err(panicked(&*panic))))
}

/// A failure that its processor lets pass is logged and is none.
fn judge(processor: &dyn Processor, hook: Hook, outcome: Outcome) -> Result<(), Stop> {
    let Err(error) = outcome else { return Ok(()) };
    if let ProcessorError::Failed(message) = &error
        && processor.on_error() != OnError::Abort
    {
        tracing::error!(processor = processor.id(), hook = hook.name(), message, "a processor failed and is skipped");
        return Ok(());
    }
    Err(stop(processor, hook, error))
}

fn stop(processor: &dyn Processor, hook: Hook, error: ProcessorError) -> Stop {
    match error.into_payload(processor.id()) {
        Ok(tripwire) => {
            let violation = Violation {
                processor_id: tripwire.processor_id.clone(),
                hook,
                message: tripwire.reason.clone(),
                detail: tripwire.metadata.clone(),
            };
            tracing::info!(processor = processor.id(), hook = hook.name(), "a processor stopped the run");
            if std::panic::catch_unwind(AssertUnwindSafe(|| processor.on_violation(&violation))).is_err() {
                tracing::error!(processor = processor.id(), "on_violation panicked");
            }
            Stop::Tripwire(tripwire)
        }
        Err(message) => {
            tracing::error!(processor = processor.id(), hook = hook.name(), message, "a processor failed");
            let mut error = ErrorInfo::new("ProcessorError", format!("{message} (in {})", hook.name()));
            error.details = Some(json!({ "processorId": processor.id(), "hook": hook.name() }));
            Stop::Failed { processor_id: processor.id().to_owned(), error }
        }
    }
}

fn panicked(panic: &(dyn std::any::Any + Send)) -> ProcessorError {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    ProcessorError::Failed(format!("it panicked: {}", text.unwrap_or_else(|| "no message".to_owned())))
}
