//! Performs the effects of a run: asks the model, runs tools, commits, shows chunks. One task per run.

#[macro_use]
mod desk;
mod asking;
mod begin;
mod ending;
mod hooks;
mod lanes;
mod placing;
mod resume;
mod scoring;
mod seed;
mod stream;
mod tools;

use asking::model_name;
pub(crate) use begin::{drive, read_snapshot};
use desk::RunDesk;
pub(crate) use ending::{aborted_direct, failed_direct, give_back};
use ending::{fail_to_start, left_unread};
use hooks::Hooks;
use resume::Claiming;
pub(crate) use resume::parked_of;
pub(crate) use seed::{Claimed, Resolution, ResumeSeed, RunSeed, SeedKind};

use std::{collections::VecDeque, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    Decision, RunOptions, RunOutput, RunSnapshot,
    commit::{CommitError, Committer, storage_error},
    completion::Verdicts,
    guard::{Cut, PROCESSOR_GRACE, Watch, at, guard_first, guard_later, guard_pending},
    machine::{Ending, RunEffect, RunEvent, RunMachine, ToolOutcome, ToolRun},
    prepare::{Prepared, prepare},
    request::{Request, RequestEvent, timeout_error},
    settings::{HARD_STEPS, RunSettings},
    tools::{CallContext, ToolTable, panicked},
    transcript::Transcript,
};
use crate::{
    agent::{Agent, ModelEntry},
    chunk::{
        Chunk, ChunkBody, ChunkFrom, ErrorInfo, FinishReason, Payload, ResponseMetadata, StepFinishPayload, StepOutput,
        StepResult, Usage,
    },
    error::Error,
    id::{MessageId, RunId, ThreadKey},
    json::{Value, json},
    message::{ErrorPart, Part, PromptOptions, Role, StoredMessage, build_prompt_for, to_model_messages},
    model::{ModelRequest, PromptMessage, ToolChoice},
    processor::{RunInfo, Runner},
    runtime::{Bugle, Inner, RunInput},
    storage::InboxEntry,
    subagent::{DEFAULT_DEPTH, DelegationState, Detached, Scope},
    thread::{DirectEnd, Input, Leftover, Letter, RunEnd, RunShared, StreamLog, ThreadLink},
    time::Timestamp,
    tool::{Written, WrittenWhat},
};

/// Tools that ignore an abort are let go after this time (SIG-312, LOOP-134).
const TOOL_GRACE: Duration = Duration::from_secs(1);
/// Writes of tools that wait to be shown, at most; past it the tool waits.
const WRITES: usize = 1024;

/// How the driver's loop went on.
enum Flow {
    On,
    /// The run is over.
    Ended(Ending),
    /// The run is left to the next owner: the process stops, or the thread is not ours any more.
    Left,
}

struct Driver {
    prepared: Prepared,
    shared: Arc<RunShared>,
    log: Arc<StreamLog>,
    link: Option<ThreadLink>,
    inner: Arc<Inner>,
    streaming: bool,
    machine: RunMachine,
    committer: Committer,
    /// Taken from the thread, not placed yet.
    in_hand: Vec<Input>,
    /// Some input has been placed for good.
    committed: bool,
    /// A direct run's messages, for its first drain.
    first_messages: Vec<StoredMessage>,
    first_drain: bool,
    request: Option<Request>,
    model_index: usize,
    /// Verdicts of completion checks, so that the same answer is not judged twice.
    verdicts: Verdicts,
    tools: JoinSet<(usize, ToolOutcome)>,
    waiting_tools: VecDeque<ToolRun>,
    /// The conversation as the step's tools see it (LOOP-062).
    tool_messages: Arc<[StoredMessage]>,
    running_tools: Vec<usize>,
    tool_abort: CancellationToken,
    tool_deadline: Option<Instant>,
    written: mpsc::Receiver<Written>,
    writer: mpsc::Sender<Written>,
    total_deadline: Option<Instant>,
    hooks: Hooks,
    /// What the run's delegations share.
    delegations: Arc<DelegationState>,
    detached: Option<Detached>,
    /// The calls of the step run one after the other (LOOP-063).
    sequential: bool,
    /// It works for another run.
    delegated: bool,
    claiming: Option<Claiming>,
    parked_at: Timestamp,
}

impl Driver {
    /// The loop; `None` if the run is left to another owner.
    async fn run(&mut self) -> Option<Ending> {
        let mut events = VecDeque::from([RunEvent::Begun]);
        let mut abort_seen = false;
        let stop = self.inner.hub.stop.clone();
        // The caller's own signal stops the run like an abort without clear (SIG-311).
        let caller_abort = self.prepared.options.abort.clone().unwrap_or_default();
        loop {
            while let Some(event) = events.pop_front() {
                if self.shared.is_fenced() {
                    return None;
                }
                // Stopping wins over whatever else has happened (R10, R17).
                if !abort_seen && self.shared.abort.is_cancelled() {
                    abort_seen = true;
                    events.push_front(event);
                    events.push_front(RunEvent::Abort);
                    self.tool_abort.cancel();
                    continue;
                }
                match self.feed(event, &mut events).await {
                    Flow::On => {}
                    Flow::Ended(ending) => return Some(ending),
                    Flow::Left => return None,
                }
            }
            let deadline = self.total_deadline;
            let tool_deadline = self.tool_deadline;
            let nudged = async {
                match &self.link {
                    Some(link) => link.nudge.notified().await,
                    None => std::future::pending().await,
                }
            };
            // A run that is passed on waits for its reader (SUB-157); what stops it is heard meanwhile.
            let log = &self.log;
            let request = async {
                match &mut self.request {
                    Some(request) => {
                        log.room().await;
                        request.next().await
                    }
                    None => std::future::pending().await,
                }
            };
            let written = async {
                log.room().await;
                self.written.recv().await
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return None,
                () = self.shared.abort.cancelled(), if !abort_seen => {
                    abort_seen = true;
                    self.tool_abort.cancel();
                    events.push_back(RunEvent::Abort);
                }
                () = caller_abort.cancelled(), if !abort_seen => self.shared.stop(false),
                () = at(deadline), if deadline.is_some() => {
                    let timed_out = self.timed_out();
                    events.push_back(timed_out);
                }
                () = at(tool_deadline), if tool_deadline.is_some() => self.let_tools_go(&mut events),
                () = nudged => events.push_back(RunEvent::InputWaits),
                Some(written) = written => {
                    if self.show_written(written, &mut events).await.is_err() {
                        return None;
                    }
                }
                event = request => match event {
                    Some(RequestEvent::Answered { model, warnings }) => {
                        self.model_index = self.request.as_ref().map_or(0, Request::model_index);
                        events.push_back(RunEvent::Answered { model, warnings });
                    }
                    Some(RequestEvent::Event(event)) => events.push_back(RunEvent::Model(event)),
                    Some(RequestEvent::Failed(error)) => {
                        // Error hooks may go on with the request's next model.
                        if !self.hooks.runner.has(crate::processor::Hook::ApiError) {
                            self.request = None;
                        }
                        events.push_back(RunEvent::ModelFailed(error.info()));
                    }
                    None => self.request = None,
                },
                Some(done) = self.tools.join_next() => {
                    if self.tool_ended(done, &mut events).await.is_err() {
                        return None;
                    }
                }
            }
        }
    }

    async fn feed(&mut self, event: RunEvent, events: &mut VecDeque<RunEvent>) -> Flow {
        let event = match self.intercept(event, events).await {
            Ok(Some(event)) => event,
            Ok(None) => return Flow::On,
            Err(flow) => return flow,
        };
        let machine = &mut self.machine;
        let effects = match &self.link {
            Some(link) => link.placing(&self.inner.clock, |now| {
                let effects = machine.apply(event, now);
                (effects, machine.transcript().newest_placed())
            }),
            None => machine.apply(event, self.inner.clock.now()),
        };
        for effect in effects {
            match effect {
                RunEffect::Drain => match self.drain().await {
                    Some(event) => events.push_back(event),
                    None => return Flow::Left,
                },
                RunEffect::Commit => match self.commit().await {
                    Some(event) => events.push_back(event),
                    None => return Flow::Left,
                },
                RunEffect::Emit(chunk) if self.is_filtered(&chunk) => {
                    // What a processor stops ends here: the machine hears of it before it does anything else.
                    match self.emit_filtered(chunk, events).await {
                        Ok(true) => {}
                        Ok(false) => break,
                        Err(flow) => return flow,
                    }
                }
                RunEffect::Emit(chunk) => self.emit(chunk),
                RunEffect::Filter(chunk) => match self.filter(chunk, events).await {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(flow) => return flow,
                },
                RunEffect::FlushStream => {
                    if let Err(flow) = self.flush_stream(events).await {
                        return flow;
                    }
                }
                RunEffect::JudgeStep => match self.judge_step().await {
                    Ok(event) => events.extend(event),
                    Err(flow) => return flow,
                },
                RunEffect::JudgeResult => match self.judge_result().await {
                    Ok(event) => events.extend(event),
                    Err(flow) => return flow,
                },
                RunEffect::Request => {
                    if self.inner.is_draining() && self.committer.is_recoverable() {
                        // At a boundary while the process drains: the next owner goes on from here (CLI-072).
                        return Flow::Left;
                    }
                    match Box::pin(self.prepare_request()).await {
                        Ok(event) => events.extend(event),
                        Err(flow) => return flow,
                    }
                }
                RunEffect::CancelRequest => self.request = None,
                RunEffect::RunTools(runs) => {
                    if let Err(flow) = Box::pin(self.start_tools(runs, events)).await {
                        return flow;
                    }
                }
                RunEffect::CancelTools => {
                    self.tool_abort.cancel();
                    for run in std::mem::take(&mut self.waiting_tools) {
                        events.push_back(RunEvent::ToolDone { index: run.index, outcome: ToolOutcome::Interrupted });
                    }
                    self.tool_deadline = Some(Instant::now() + self.tool_grace());
                }
                RunEffect::Score(step) => match Box::pin(self.score(*step)).await {
                    Ok(event) => events.extend(event),
                    Err(flow) => return flow,
                },
                RunEffect::IterationEnded(iteration) => match Box::pin(self.iteration_ended(*iteration)).await {
                    Ok(event) => events.extend(event),
                    Err(flow) => return flow,
                },
                RunEffect::StepEnded(summary) => {
                    if let Some(hook) = &self.prepared.options.hooks.on_step_finish {
                        guarded("onStepFinish", || hook(&summary));
                    }
                }
                RunEffect::End(ending) => return Flow::Ended(ending),
            }
        }
        Flow::On
    }

    /// Watches over a wait for the agent's code.
    fn watch(&self, grace: Duration) -> Watch {
        Watch {
            shared: self.shared.clone(),
            caller: self.prepared.options.abort.clone().unwrap_or_default(),
            stop: self.inner.hub.stop.clone(),
            deadline: self.total_deadline,
            grace,
            grace_ends: None,
        }
    }

    fn timed_out(&mut self) -> RunEvent {
        self.total_deadline = None;
        let ms = self.prepared.options.model_settings.as_ref().and_then(|settings| settings.timeout?.total_ms);
        RunEvent::TimedOut(timeout_error("total", ms.unwrap_or_default()).info())
    }
}

/// A hook that panics is logged and changes nothing (LOOP-181).
fn guarded(name: &str, hook: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(hook)).is_err() {
        tracing::error!(hook = name, "a hook panicked");
    }
}
