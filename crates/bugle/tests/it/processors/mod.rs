//! Processors and state lanes in running agents (PROC, STATE).

mod arguments;
mod blocked;
mod built_ins;
mod changes;
mod everywhere;
mod framework;
mod fuzz;
mod histories;
mod hooks;
mod lanes;
mod leaks;
mod outside;
mod setters;
mod signals;
mod stops;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use bugle::{
    chunk::{Chunk, Payload},
    processor::{
        ApiFailure, Chunks, Context, Flush, Hook, HookSet, Input, InputStep, LlmRequest, LlmResponse, OnError, Outcome,
        OutputResult, OutputStep, Processor, ProcessorError, Recovery, ToolResult, Violation,
    },
    signal::{LaneView, SignalInput, StateInput},
};
use parking_lot::Mutex;

pub(crate) const ALL: [Hook; 10] = [
    Hook::Input,
    Hook::InputStep,
    Hook::State,
    Hook::LlmRequest,
    Hook::OutputStream,
    Hook::LlmResponse,
    Hook::OutputStep,
    Hook::ToolResult,
    Hook::OutputResult,
    Hook::ApiError,
];

/// What a [`Spy`] does in one hook.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Act {
    Trip,
    Retry,
    Fail,
    Panic,
    /// Sends a reactive signal with this text.
    Signal(&'static str),
    /// The same, transient.
    Transient(&'static str),
}

type Decide = Arc<dyn Fn(Hook, usize) -> Option<Act> + Send + Sync>;

/// Writes down where it was called, and does what it is told.
#[derive(Clone)]
pub(crate) struct Spy {
    id: &'static str,
    hooks: HookSet,
    pub(crate) log: Arc<Mutex<Vec<String>>>,
    pub(crate) violations: Arc<Mutex<Vec<Violation>>>,
    decide: Decide,
    counts: Arc<[AtomicUsize; 10]>,
    on_error: OnError,
}

impl Spy {
    pub(crate) fn new(id: &'static str, hooks: &[Hook]) -> Self {
        Self {
            id,
            hooks: HookSet::of(hooks),
            log: Arc::default(),
            violations: Arc::default(),
            decide: Arc::new(|_, _| None),
            counts: Arc::default(),
            on_error: OnError::Abort,
        }
    }

    /// Acts in its `n`th call (from 0) of this hook.
    pub(crate) fn acting(self, hook: Hook, n: usize, act: Act) -> Self {
        self.deciding(move |at, count| (at == hook && count == n).then(|| act.clone()))
    }

    pub(crate) fn deciding(mut self, decide: impl Fn(Hook, usize) -> Option<Act> + Send + Sync + 'static) -> Self {
        self.decide = Arc::new(decide);
        self
    }

    pub(crate) fn logging_to(mut self, other: &Self) -> Self {
        self.log = other.log.clone();
        self
    }

    pub(crate) fn on_error(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }

    pub(crate) fn count(&self, hook: Hook) -> usize {
        self.counts[place(hook)].load(Ordering::SeqCst)
    }

    pub(crate) fn logged(&self) -> Vec<String> {
        self.log.lock().clone()
    }

    async fn at(&self, cx: &mut Context<'_>, hook: Hook, what: &str) -> Outcome {
        let n = self.counts[place(hook)].fetch_add(1, Ordering::SeqCst);
        let line = if what.is_empty() {
            format!("{}.{}", self.id, hook.name())
        } else {
            format!("{}.{} {what}", self.id, hook.name())
        };
        self.log.lock().push(line);
        let signal = |text: &str, transient: bool| SignalInput {
            transient: transient.then_some(true),
            ..SignalInput::new("reactive", text)
        };
        match (self.decide)(hook, n) {
            None => Ok(()),
            Some(Act::Trip) => {
                Err(ProcessorError::tripwire("no").with_metadata(bugle::json::json!({"at": hook.name()})))
            }
            Some(Act::Retry) => Err(ProcessorError::retry("again")),
            Some(Act::Fail) => Err(ProcessorError::Failed("boom".into())),
            Some(Act::Panic) => panic!("boom"),
            Some(Act::Signal(text)) => cx.send_signal(signal(text, false)).await.map(|_| ()),
            Some(Act::Transient(text)) => cx.send_signal(signal(text, true)).await.map(|_| ()),
        }
    }
}

fn place(hook: Hook) -> usize {
    ALL.iter().position(|known| *known == hook).unwrap()
}

#[async_trait]
impl Processor for Spy {
    fn id(&self) -> &str {
        self.id
    }
    fn hooks(&self) -> HookSet {
        self.hooks
    }
    fn on_error(&self) -> OnError {
        self.on_error
    }
    fn on_violation(&self, violation: &Violation) {
        self.violations.lock().push(violation.clone());
    }
    async fn process_input(&self, cx: &mut Context<'_>, _: &mut Input) -> Outcome {
        self.at(cx, Hook::Input, "").await
    }
    async fn process_input_step(&self, cx: &mut Context<'_>, _: &mut InputStep) -> Outcome {
        let step = cx.step_number().to_string();
        self.at(cx, Hook::InputStep, &step).await
    }
    async fn compute_state_signal(&self, cx: &mut Context<'_>, _: &LaneView) -> Outcome<Option<StateInput>> {
        self.at(cx, Hook::State, "").await.map(|()| None)
    }
    async fn process_llm_request(&self, cx: &mut Context<'_>, _: &mut LlmRequest) -> Outcome {
        self.at(cx, Hook::LlmRequest, "").await
    }
    async fn process_output_stream(&self, cx: &mut Context<'_>, chunk: Chunk, out: &mut Chunks) -> Outcome {
        let kind = chunk.kind().to_owned();
        self.at(cx, Hook::OutputStream, &kind).await?;
        out.push(chunk);
        Ok(())
    }
    async fn flush_output_stream(&self, _: &mut Context<'_>, _: Flush, _: &mut Chunks) -> Outcome {
        Ok(())
    }
    async fn process_llm_response(&self, cx: &mut Context<'_>, _: &LlmResponse) -> Outcome {
        self.at(cx, Hook::LlmResponse, "").await
    }
    async fn process_output_step(&self, cx: &mut Context<'_>, _: &mut OutputStep) -> Outcome {
        self.at(cx, Hook::OutputStep, "").await
    }
    async fn process_tool_result(&self, cx: &mut Context<'_>, _: &mut ToolResult) -> Outcome {
        self.at(cx, Hook::ToolResult, "").await
    }
    async fn process_output_result(&self, cx: &mut Context<'_>, _: &mut OutputResult) -> Outcome {
        self.at(cx, Hook::OutputResult, "").await
    }
    async fn process_api_error(&self, cx: &mut Context<'_>, _: &ApiFailure) -> Outcome<Recovery> {
        match self.at(cx, Hook::ApiError, "").await {
            Ok(()) => Ok(Recovery::GiveUp),
            Err(ProcessorError::Tripwire { retry: true, .. }) => Ok(Recovery::Retry),
            Err(error) => Err(error),
        }
    }
}

/// The text deltas in upper case, doubled: what a hook that changes the stream does.
pub(crate) struct Shout;

#[async_trait]
impl Processor for Shout {
    fn id(&self) -> &'static str {
        "shout"
    }
    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::OutputStream])
    }
    async fn process_output_stream(&self, _: &mut Context<'_>, mut chunk: Chunk, out: &mut Chunks) -> Outcome {
        if let bugle::chunk::ChunkBody::Payload(Payload::TextDelta { text, .. }) = &mut chunk.body {
            if text.contains("drop") {
                return Ok(());
            }
            *text = text.to_uppercase();
            out.push(chunk.clone());
        }
        out.push(chunk);
        Ok(())
    }
}
