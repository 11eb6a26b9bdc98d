//! Performs the effects of a run: asks the model, runs tools, commits, shows chunks. One task per run.

mod ending;
mod hooks;
mod resume;
mod scoring;
mod tools;

pub(crate) use ending::{aborted_direct, failed_direct, give_back};
use ending::{fail_to_start, left_unread};
use hooks::Hooks;
use resume::Claiming;
pub(crate) use resume::parked_of;

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
    completion::{Verdicts, judge},
    guard::{Cut, PROCESSOR_GRACE, Watch, at, guard_first, guard_later, guard_pending},
    machine::{Ending, RunEffect, RunEvent, RunMachine, ToolOutcome, ToolRun},
    prepare::{Prepared, prepare},
    request::{Request, RequestEvent, timeout_error},
    settings::{HARD_STEPS, RunSettings},
    tools::{CallContext, ToolTable, panicked},
    transcript::Transcript,
};
use crate::{
    agent::{Agent, Dynamic, ModelEntry},
    chunk::{
        Chunk, ChunkBody, ChunkFrom, ErrorInfo, FinishReason, Payload, ResponseMetadata, StepFinishPayload, StepOutput,
        StepResult, Usage,
    },
    error::Error,
    id::{MessageId, RunId, ThreadKey},
    json::{Value, json},
    message::{ErrorPart, Part, PromptOptions, Role, StoredMessage, build_prompt_for, to_model_messages},
    model::{ModelRequest, PromptMessage, ToolChoice},
    processor::{Processors, RunInfo, Runner},
    runtime::{Bugle, Inner, RunInput},
    storage::InboxEntry,
    subagent::{DEFAULT_DEPTH, DelegationState, Detached, Scope, call_iteration_hook},
    thread::{DirectEnd, Input, Leftover, Letter, RunEnd, RunShared, StreamLog, ThreadLink},
    time::Timestamp,
    tool::{Written, WrittenWhat},
};

/// Tools that ignore an abort are let go after this time (SIG-312, LOOP-134).
const TOOL_GRACE: Duration = Duration::from_secs(1);
/// Writes of tools that wait to be shown, at most; past it the tool waits.
const WRITES: usize = 1024;

/// What a run starts from.
#[derive(Debug)]
pub(crate) enum SeedKind {
    /// Input that waits on the thread.
    Woken,
    /// A caller's messages.
    Direct(Box<RunInput>),
    /// The record an earlier process left.
    Recorded,
    /// A parked run.
    Resumed(Box<ResumeSeed>),
}

/// How a parked run is gone on with.
#[derive(Debug)]
pub(crate) struct ResumeSeed {
    /// Where a delegated run stands, out of its parent's call; absent for a run with rows of its own.
    pub(crate) nested: Option<Box<RunSnapshot>>,
    /// What is to become of it.
    pub(crate) what: Resolution,
    /// Pending input that came with the decision (ruling 6).
    pub(crate) messages: RunInput,
    /// Told once the run is ours, or why it is not.
    pub(crate) claimed: Option<oneshot::Sender<Claimed>>,
}

/// The run is ours, and its chunks are in this log from here on; or why it is not.
pub(crate) type Claimed = Result<(Arc<StreamLog>, u64), Error>;

/// What is to become of a parked run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Resolution {
    /// It goes on.
    Decide(Decision),
    /// It is stopped (SIG-310).
    Abort,
    /// It is given up (LOOP-121).
    Discard,
}

/// All that a run needs.
pub(crate) struct RunSeed {
    pub(crate) agent: Agent,
    pub(crate) options: Arc<RunOptions>,
    pub(crate) kind: SeedKind,
    pub(crate) shared: Arc<RunShared>,
    pub(crate) log: Arc<StreamLog>,
    pub(crate) link: Option<ThreadLink>,
    pub(crate) output: Option<oneshot::Sender<RunOutput>>,
    pub(crate) inner: Arc<Inner>,
    pub(crate) streaming: bool,
    /// It works for another run, which keeps what it parks: nothing is parked in the store.
    pub(crate) delegated: bool,
    /// Such a run's own place: its thread, which others write for it, and its depth.
    pub(crate) detached: Option<Detached>,
}

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

/// Runs a run to its end, whatever the code of its agent does: a panic ends the run, not the thread.
pub(crate) async fn drive(seed: RunSeed) {
    let (shared, log, link) = (seed.shared.clone(), seed.log.clone(), seed.link.clone());
    let retry = matches!(seed.kind, SeedKind::Woken);
    // Boxed, as the parts below are: a run's task stays small while it waits.
    if AssertUnwindSafe(Box::pin(drive_to_end(seed))).catch_unwind().await.is_ok() {
        return;
    }
    let run_id = shared.run_id.clone();
    tracing::error!(run = %run_id, "a run panicked");
    if !shared.has_ended() {
        let error = ErrorInfo::new("RunPanic", "the run was stopped by a panic in the agent's code; see the log");
        let mut direct = failed_direct(&run_id, &error);
        let last = direct.remove(0);
        log.end_run(&shared, Some(last), DirectEnd { replaces_last: false, chunks: direct });
    }
    if let Some(link) = link {
        let left = Leftover::Unknown;
        link.tell(Letter::RunEnded(RunEnd { failed_to_start: retry, left, ..RunEnd::new(run_id) })).await;
    }
}

async fn drive_to_end(seed: RunSeed) {
    let RunSeed { agent, options, mut kind, shared, log, link, output, inner, streaming, delegated, detached } = seed;
    let run_id = shared.run_id.clone();
    let mut claiming = None;
    let mut known = Vec::new();
    let mut resolution = None;
    if let SeedKind::Resumed(seed) = &mut kind {
        let waits = Claiming::new(seed);
        match resume::load(&inner.storage, agent.id(), &run_id, seed).await {
            Ok(found) => {
                known = found.known;
                seed.nested = Some(Box::new(found.snapshot));
            }
            Err(error) => return resume::refuse(waits, error, agent.id(), &inner, link, run_id).await,
        }
        claiming = Some(waits);
        resolution = Some(seed.what.clone());
    } else {
        log.begin_run(&run_id);
    }
    let agent_id = agent.id().to_owned();
    let recorded = matches!(kind, SeedKind::Recorded);
    // Nobody but subscribers waits for it.
    let woken = match &kind {
        SeedKind::Direct(_) => false,
        SeedKind::Resumed(_) => output.is_none(),
        SeedKind::Woken | SeedKind::Recorded => true,
    };
    let prepared = Box::pin(prepare(&inner, agent, &options, kind, (link.as_ref(), detached.as_ref()), &run_id)).await;
    let mut prepared = match prepared {
        Ok(prepared) => prepared,
        Err(error) if claiming.is_some() => {
            let waits = claiming.take().expect("it is there");
            return resume::refuse(waits, Error::Run(Box::new(error)), &agent_id, &inner, link, run_id).await;
        }
        Err(error) => {
            let left = match (recorded, &link) {
                (true, Some(link)) => left_unread(&error, link.now(&inner.clock)),
                _ => Leftover::Nothing,
            };
            return fail_to_start(&shared, &log, link, output, &error, (woken && !recorded, left)).await;
        }
    };
    let (writer, written) = mpsc::channel(WRITES);
    let key = prepared.thread().cloned();
    let runner = runner(&prepared, &inner, &shared, key.as_ref());
    let settings = RunSettings {
        run_id: run_id.clone(),
        agent_id: prepared.agent.id().to_owned(),
        agent_name: prepared.agent.name().to_owned(),
        max_steps: prepared.max_steps(),
        given_steps: prepared.given_steps(),
        hard_steps: prepared.given_steps().unwrap_or(HARD_STEPS),
        has_iteration_hook: prepared.options.on_iteration_complete.is_some(),
        stop_when: prepared.options.stop_when.clone(),
        on_step_limit: prepared.options.on_step_limit.unwrap_or(prepared.agent.inner().on_step_limit),
        interruptible: prepared.agent.inner().interrupt == crate::agent::Interrupt::Reasoning,
        completion: prepared.completion.as_ref().map(|completion| completion.when),
        structured_output: prepared.options.structured_output.clone(),
        stores: !delegated && link.is_some() && prepared.stores(),
        judges: Hooks::judges(&runner),
        stored_options: prepared.options.to_stored(),
    };
    let history = std::mem::take(&mut prepared.history);
    let delegations = prepared.snapshot.as_ref().map(|snapshot| snapshot.delegation.clone()).unwrap_or_default();
    let delegations = Arc::new(DelegationState::from_record(delegations));
    let machine = match &prepared.snapshot {
        Some(snapshot) => {
            let open = snapshot.step.as_ref().map_or(&snapshot.message_id, |step| &step.message_id);
            let transcript = Transcript::restored(history, &snapshot.kept, key, &snapshot.own, open);
            match (resolution, &snapshot.step) {
                (Some(resolution), Some(step)) => {
                    RunMachine::resumed(settings, transcript, snapshot, step, resolution, known)
                }
                _ => RunMachine::recovered(settings, transcript, snapshot),
            }
        }
        None => {
            let mut transcript = Transcript::new(history, key);
            for id in &prepared.completed {
                transcript.touch(id);
            }
            for context in &prepared.options.context {
                transcript.add_context(context.clone());
            }
            RunMachine::new(settings, transcript, MessageId::fresh())
        }
    };
    if let (Some(link), Some(newest)) = (&link, machine.transcript().newest()) {
        link.placed_up_to(newest);
    }
    let hooks = Hooks::new(runner, &prepared, link.as_ref().map(|link| &link.key));
    let total = prepared.options.model_settings.as_ref().and_then(|settings| settings.timeout?.total_ms);
    let committer = Committer::new(&inner, link.as_ref(), &prepared, &run_id, woken);
    let mut driver = Box::new(Driver {
        first_messages: std::mem::take(&mut prepared.first_messages),
        prepared,
        shared,
        log,
        link,
        inner,
        streaming,
        machine,
        committer,
        in_hand: Vec::new(),
        committed: false,
        // Input of a run that goes on is judged one by one (SIG-208).
        first_drain: claiming.is_none(),
        request: None,
        model_index: 0,
        verdicts: Verdicts::default(),
        tools: JoinSet::new(),
        waiting_tools: VecDeque::new(),
        tool_messages: Arc::default(),
        running_tools: Vec::new(),
        tool_abort: CancellationToken::new(),
        tool_deadline: None,
        written,
        writer,
        hooks,
        total_deadline: total.map(|ms| Instant::now() + Duration::from_secs_f64(ms / 1000.0)),
        delegations,
        detached,
        sequential: false,
        delegated,
        claiming,
        parked_at: Timestamp::default(),
    });
    let ending = if driver.take_in_pending().await { driver.run().await } else { None };
    driver.finish(ending, output).await;
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
            let request = async {
                match &mut self.request {
                    Some(request) => request.next().await,
                    None => std::future::pending().await,
                }
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
                Some(written) = self.written.recv() => {
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
                RunEffect::Score(step) => {
                    let check = self.check(*step);
                    let mut watch = self.watch(Duration::ZERO);
                    let Some(completion) = &self.prepared.completion else { continue };
                    let judged = judge(completion, &mut self.verdicts, check);
                    match watch.wait(judged).await {
                        Ok(verdict) => events.push_back(RunEvent::Scored(verdict)),
                        // The abort itself is seen by the loop.
                        Err(Cut::Aborted) => {}
                        Err(Cut::Left) => return Flow::Left,
                        Err(Cut::TimedOut) => {
                            let timed_out = self.timed_out();
                            events.push_back(timed_out);
                        }
                    }
                }
                RunEffect::IterationEnded(iteration) => {
                    let Some(hook) = self.prepared.options.on_iteration_complete.clone() else { continue };
                    let asked = call_iteration_hook(&hook, *iteration);
                    match self.watch(Duration::ZERO).wait(asked).await {
                        Ok(decision) => events.push_back(RunEvent::IterationJudged(decision)),
                        // The abort itself is seen by the loop.
                        Err(Cut::Aborted) => {}
                        Err(Cut::Left) => return Flow::Left,
                        Err(Cut::TimedOut) => {
                            let timed_out = self.timed_out();
                            events.push_back(timed_out);
                        }
                    }
                }
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

    // Input.

    /// Takes what waits, past the guards.
    async fn drain(&mut self) -> Option<RunEvent> {
        let taken = match &self.link {
            Some(link) => {
                let (reply, answer) = oneshot::channel();
                let run_id = self.shared.run_id.clone();
                // Stopped by its caller, it takes in no more than if the thread had stopped it (SIG-205, SIG-311).
                let stopping = self.shared.abort.is_cancelled();
                link.tell(Letter::Drain { run_id, stopping, reply }).await;
                // No answer: the actor has ended, so the runtime is stopping.
                answer.await.ok()?
            }
            None => Vec::new(),
        };
        let entries: Vec<InboxEntry> = taken.iter().map(|input| input.entry.clone()).collect();
        self.in_hand.extend(taken);
        let first = std::mem::take(&mut self.first_drain);
        let messages = if first { std::mem::take(&mut self.first_messages) } else { Vec::new() };
        let unguarded = !self.hooks.runner.has(crate::processor::Hook::Input);
        if unguarded || (entries.is_empty() && messages.is_empty()) {
            return Some(RunEvent::Drained { inputs: entries, rejected: Vec::new(), messages });
        }
        match self.guard(first, entries, messages).await {
            Ok(event) => Some(event),
            // What was not judged goes back to the thread with the run's end.
            Err(Cut::TimedOut) => Some(self.timed_out()),
            Err(Cut::Left | Cut::Aborted) => None,
        }
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

    // Commits.

    async fn commit(&mut self) -> Option<RunEvent> {
        let (messages, entries) = self.machine.take_commit();
        let rollback = self.shared.is_rollback() && self.machine.is_stopping();
        if rollback {
            self.machine.drop_echoes();
        }
        let claims = self.machine.has_to_claim();
        let committed = if self.machine.is_parking() {
            let last = self.log.last_number() + self.machine.chunks_to_come();
            self.park(&messages, last).await
        } else if self.machine.is_ending() {
            let last = self.log.last_number() + self.machine.chunks_to_come();
            let ended = if rollback {
                let joined = self.machine.joined().cloned().collect();
                let placed = (self.machine.wake().cloned(), joined);
                self.committer.roll_back(self.machine.transcript().own_ids(), placed, (last, claims)).await
            } else if claims && !self.delegated && !self.committer.has_thread() {
                match self.unpark().await {
                    Ok(true) => Ok(()),
                    Ok(false) => Err(CommitError::NotParked),
                    Err(error) => Err(error),
                }
            } else {
                self.committer.end(&messages, &entries, (last, claims)).await
            };
            if claims && ended.is_ok() {
                self.now_ours();
            }
            ended
        } else if claims {
            self.claim(&messages).await
        } else {
            self.committer.step(&messages, &entries, &self.machine.snapshot()).await
        };
        match committed {
            Ok(()) => {
                self.committed |= !entries.is_empty();
                if rollback {
                    // What others had sent goes back to the thread, in order (ruling 33).
                    give_back(&self.machine, &mut self.in_hand);
                } else {
                    self.in_hand.retain(|input| !entries.iter().any(|entry| entry.signal.id == *input.id()));
                }
                if let (Some(link), Some(newest)) = (&self.link, self.machine.transcript().newest()) {
                    link.placed_up_to(newest);
                }
                Some(RunEvent::Committed)
            }
            Err(CommitError::Stale) => {
                tracing::warn!(run = %self.shared.run_id, "the thread has another owner; this run stops");
                self.shared.fence();
                None
            }
            Err(CommitError::NotParked) => {
                self.not_ours();
                None
            }
            Err(CommitError::Failed(error)) if claims => {
                // It stays parked, and its caller may try again.
                if let Some(claiming) = &mut self.claiming {
                    claiming.tell(Err(Error::Run(Box::new(error))));
                }
                None
            }
            Err(CommitError::Failed(error)) => {
                self.machine.restore_commit(&messages, entries);
                if self.machine.is_ending()
                    && let Some(hook) = &self.prepared.options.hooks.on_error
                {
                    // What was said is not stored (MEM-054).
                    guarded("onError", || hook(&error));
                }
                Some(RunEvent::CommitFailed(error))
            }
        }
    }

    // The model.

    /// Sends a request; with nothing given, that of the call.
    fn ask(&mut self, given: Option<(Vec<ModelEntry>, ModelRequest)>) {
        let (models, request) = given.unwrap_or_else(|| {
            let models = self.prepared.models.clone();
            let request = self.model_request(&models, self.prepared.system.clone(), &self.prepared.tools);
            (models, request)
        });
        let asks = self.hooks.runner.has(crate::processor::Hook::ApiError);
        self.request = Some(Request::new(models, self.model_index, request, self.prepared.retries()).asking(asks));
    }

    fn model_request(&self, models: &[ModelEntry], system: Vec<PromptMessage>, tools: &ToolTable) -> ModelRequest {
        let prepared = &self.prepared;
        let options = PromptOptions {
            filter_incomplete_tool_calls: prepared.memory.filter_incomplete_tool_calls,
            max_tool_result_bytes: prepared.options.max_tool_result_bytes,
        };
        let provider = models.get(self.model_index).map(|entry| entry.model.provider().to_owned());
        let mut prompt = system;
        prompt.extend(build_prompt_for(self.machine.transcript().messages(), &options, provider.as_deref()));
        let offers_tools = self.machine.offers_tools();
        let response_format = prepared.response_format();
        prepared.inject_schema(&mut prompt);
        ModelRequest {
            prompt,
            tools: if offers_tools { tools.definitions() } else { Vec::new() },
            tool_choice: if offers_tools { tools.choice() } else { ToolChoice::None },
            settings: prepared.options.model_settings.clone().unwrap_or_default(),
            provider_options: prepared.options.provider_options.clone(),
            response_format,
            headers: prepared.headers(prepared.thread()),
            streaming: self.streaming,
            include_raw: prepared.options.include_raw_chunks,
        }
    }

    // Chunks.

    fn emit(&self, chunk: Chunk) {
        match &self.prepared.options.hooks.on_chunk {
            Some(hook) if is_hooked(&chunk) => {
                self.log.push(chunk.clone());
                guarded("onChunk", || hook(&chunk));
            }
            _ => self.log.push(chunk),
        }
    }
}

/// A hook that panics is logged and changes nothing (LOOP-181).
fn guarded(name: &str, hook: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(hook)).is_err() {
        tracing::error!(hook = name, "a hook panicked");
    }
}

/// The chunks that `onChunk` gets (LOOP §13).
fn is_hooked(chunk: &Chunk) -> bool {
    matches!(
        chunk.payload(),
        Some(
            Payload::TextDelta { .. }
                | Payload::ReasoningDelta { .. }
                | Payload::Source(_)
                | Payload::ToolCall(_)
                | Payload::ToolCallInputStart { .. }
                | Payload::ToolCallInputEnd { .. }
                | Payload::ToolCallDelta { .. }
                | Payload::ToolResult(_)
                | Payload::Raw(_)
        )
    )
}

/// The snapshot in a run's record.
pub(crate) fn read_snapshot(value: Value) -> Result<RunSnapshot, ErrorInfo> {
    serde_json::from_value(value).map_err(|error| {
        ErrorInfo::new("InvalidSnapshot", format!("the record of the run cannot be read ({error}); it is dropped"))
    })
}

/// The processors of a run: those of the call in the place of the agent's (PROC-003).
fn runner(prepared: &Prepared, inner: &Arc<Inner>, shared: &RunShared, thread: Option<&ThreadKey>) -> Runner {
    let (options, agent) = (&prepared.options, prepared.agent.inner());
    let context = &options.request_context;
    let list = |own: &Option<Processors>, of_agent: &Dynamic<Processors>| {
        own.clone().unwrap_or_else(|| of_agent.resolve(context))
    };
    let input = list(&options.input_processors, &agent.input_processors);
    let output = list(&options.output_processors, &agent.output_processors);
    let error = list(&options.error_processors, &agent.error_processors);
    let info = RunInfo {
        run_id: shared.run_id.clone(),
        agent_id: prepared.agent.id().to_owned(),
        thread: thread.cloned(),
        request_context: context.clone(),
        abort: shared.abort.clone(),
        runtime: Some(Bugle { inner: inner.clone() }),
    };
    let retries = options.max_processor_retries.or(agent.max_processor_retries);
    Runner::new([&input, &output, &error], retries, info)
}
