//! The agent loop as data: no IO, no clock, no `.await` (LOOP §3, §14; SIG §10, §11).
//!
//! Feed it what happened, perform what it says, in order. It asks for a commit before anything is shown that a commit
//! must cover: input before its echo, an answer before `finish`. What it needs to go on after a crash is its
//! [`RunSnapshot`].

use std::collections::VecDeque;

use serde_json::Value;
use smallvec::SmallVec;

use super::{
    RunOutput, StepSummary,
    response::{Call, Response},
    settings::RunSettings,
    snapshot::{RunSnapshot, SnapshotPhase},
    structured::Structured,
    transcript::{Transcript, is_call},
};
use crate::{
    agent::OnStepLimit,
    chunk::{
        Chunk, ChunkBody, ErrorInfo, FinishReason, Payload, ResponseMetadata, StepFinishPayload, StepOutput,
        StepResult, ToolResultPayload, TripwirePayload, Usage,
    },
    id::MessageId,
    json::{Object, json},
    message::{ErrorPart, Part, Role, StoredMessage, ToolState},
    model::{ModelEvent, ToolOutput},
    scorer::Strategy,
    signal::Signal,
    storage::{InboxEntry, InputMode},
    time::Timestamp,
};

/// What has happened to the run.
#[derive(Debug)]
pub(crate) enum RunEvent {
    /// History is loaded; the run may take in its input.
    Begun,
    /// What waited was taken in, past the guards. `rejected` are the ids and reasons of input a guard refused.
    Drained { inputs: Vec<InboxEntry>, rejected: Vec<(InboxEntry, TripwirePayload)>, messages: Vec<StoredMessage> },
    /// A guard stopped the run before it began; what it stopped is kept for people (ruling 34).
    Tripped { tripwire: TripwirePayload, inputs: Vec<InboxEntry>, messages: Vec<StoredMessage> },
    /// The commit is durable.
    Committed,
    /// The commit failed for good.
    CommitFailed(ErrorInfo),
    /// The model has answered with headers.
    Answered { model: ModelName, warnings: Vec<Value> },
    /// An event of the response.
    Model(ModelEvent),
    /// The request failed; retries and fallbacks are used up.
    ModelFailed(ErrorInfo),
    /// Input waits that may interrupt.
    InputWaits,
    /// A tool has finished.
    ToolDone { index: usize, outcome: ToolOutcome },
    /// The completion check has a verdict.
    Scored(Verdict),
    /// Stop.
    Abort,
    /// A time limit of the whole run passed.
    TimedOut(ErrorInfo),
}

/// Which model answers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ModelName {
    pub(crate) provider: String,
    pub(crate) model: String,
}

/// How a call ended.
#[derive(Debug, Clone)]
pub(crate) enum ToolOutcome {
    /// It returned. `model_output` is what the model reads instead, if the tool says so.
    Result { value: Value, is_error: bool, model_output: Option<ToolOutput> },
    /// It failed.
    Failed(ErrorInfo),
    /// The client runs it.
    Client,
    /// It was cut off by an abort: it stays a call (LOOP-135).
    Interrupted,
}

/// What a completion check says.
#[derive(Debug, Clone)]
pub(crate) struct Verdict {
    pub(crate) passed: bool,
    /// The `is-task-complete` payload, without `maxIterationReached`.
    pub(crate) payload: Object,
    /// Told to the model.
    pub(crate) feedback: Option<String>,
}

/// What is to be done, in order.
#[derive(Debug)]
pub(crate) enum RunEffect {
    /// Give what waits for the run: [`RunEvent::Drained`].
    Drain,
    /// Make what has changed durable: [`RunEvent::Committed`].
    Commit,
    /// Show a chunk.
    Emit(Chunk),
    /// Ask the model.
    Request,
    /// Close the request.
    CancelRequest,
    /// Run the calls: one [`RunEvent::ToolDone`] each.
    RunTools(Vec<ToolRun>),
    /// Stop the running calls, within the grace time.
    CancelTools,
    /// Check whether the work is done: [`RunEvent::Scored`].
    Score { answer: String, iteration: u32 },
    /// A step has ended: hooks.
    StepEnded(Box<StepSummary>),
    /// The run is over.
    End(Ending),
}

/// A call to run.
#[derive(Debug, Clone)]
pub(crate) struct ToolRun {
    pub(crate) index: usize,
    pub(crate) id: String,
    pub(crate) name: String,
    /// `None` if they are no JSON.
    pub(crate) args: Option<Value>,
}

/// How the run ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Ending {
    Finished,
    Failed(ErrorInfo),
    Aborted,
    Tripped(TripwirePayload),
}

type Effects = SmallVec<[RunEffect; 4]>;

#[derive(Debug)]
enum Phase {
    /// Nothing has happened.
    New,
    /// Waits for input at a drain point.
    Draining(DrainPoint),
    /// Waits for a commit.
    Committing(AfterCommit),
    /// The model is asked.
    Requesting,
    /// Calls run.
    Tools,
    /// The answer is being judged.
    Scoring,
    /// Over.
    Done,
}

/// SIG §10.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DrainPoint {
    /// D0 to D2: before the first request.
    First,
    /// D2: before a request. After an interrupt, too.
    Entry,
    /// D3: the step's tools have settled.
    Boundary,
    /// D4: the last look.
    Last,
}

#[derive(Debug)]
enum AfterCommit {
    /// Input is placed: show it, then ask the model.
    Request { echoes: Vec<Chunk> },
    /// The calls are on record: run them.
    RunTools,
    /// Some calls have finished; others run on.
    ToolProgress,
    /// The step is over and another follows.
    NextStep { echoes: Vec<Chunk> },
    /// The run is over.
    End { echoes: Vec<Chunk>, ending: Ending },
}

#[derive(Debug)]
struct CallState {
    call: Call,
    outcome: Option<ToolOutcome>,
}

/// The loop of one run.
#[derive(Debug)]
pub(crate) struct RunMachine {
    settings: RunSettings,
    phase: Phase,
    transcript: Transcript,
    response: Response,
    calls: Vec<CallState>,
    /// Calls have finished while others were being committed.
    late_results: bool,
    model: ModelName,
    message_id: MessageId,
    first_message_id: MessageId,
    /// `start` is out.
    started: bool,
    /// `step-start` of the current request is out.
    step_started: bool,
    /// A completion check has failed: the next answer has the id `<first>-<n>` (HTTP-065).
    iteration: u32,
    steps: Vec<StepSummary>,
    earlier_steps: u32,
    /// Texts before the last failed completion check are left out of the answer (SCO-048).
    answer_from: usize,
    usage: Usage,
    consumed: Vec<MessageId>,
    /// Entries that the next commit takes out of the journal.
    to_consume: Vec<InboxEntry>,
    /// All entries this run has placed, for a rollback.
    placed: Vec<InboxEntry>,
    /// The input that started the run, if input did.
    wake: Option<MessageId>,
    unanswered: Vec<MessageId>,
    pending_verdict: Option<Verdict>,
    aborting: bool,
    structured: Option<Structured>,
    warnings: Vec<Value>,
    last_metadata: ResponseMetadata,
    files: Vec<Chunk>,
    sources: Vec<Chunk>,
    step_result: Option<StepResult>,
    /// The limit that cut the run, if its last step asked for more (LOOP-028).
    stop_cause: Option<String>,
}

impl RunMachine {
    /// A fresh run.
    pub(crate) fn new(settings: RunSettings, transcript: Transcript, message_id: MessageId) -> Self {
        let structured = settings.structured_output.clone().map(Structured::new);
        Self {
            settings,
            phase: Phase::New,
            transcript,
            response: Response::default(),
            calls: Vec::new(),
            late_results: false,
            model: ModelName::default(),
            first_message_id: message_id.clone(),
            message_id,
            started: false,
            step_started: false,
            iteration: 1,
            steps: Vec::new(),
            earlier_steps: 0,
            answer_from: 0,
            usage: Usage::default(),
            consumed: Vec::new(),
            to_consume: Vec::new(),
            placed: Vec::new(),
            wake: None,
            unanswered: Vec::new(),
            pending_verdict: None,
            aborting: false,
            structured,
            warnings: Vec::new(),
            last_metadata: ResponseMetadata::default(),
            files: Vec::new(),
            sources: Vec::new(),
            step_result: None,
            stop_cause: None,
        }
    }

    /// A run that an earlier process left. A call that was started and has no result is not repeated (LOOP-255).
    pub(crate) fn recovered(settings: RunSettings, mut transcript: Transcript, snapshot: &RunSnapshot) -> Self {
        if snapshot.phase == SnapshotPhase::Tools
            && let Some(answer) = transcript.open_answer()
        {
            for part in &mut answer.content.parts {
                if is_call(part, ToolState::Call)
                    && let Part::ToolInvocation(call) = part
                {
                    call.tool_invocation.state = ToolState::OutputError;
                    call.tool_invocation.error_text =
                        Some("outcome unknown after a restart: the call was started and is not repeated".to_owned());
                }
            }
        }
        let mut machine = Self::new(settings, transcript, snapshot.message_id.clone());
        machine.first_message_id = snapshot.first_message_id.clone();
        machine.iteration = snapshot.iteration;
        machine.earlier_steps = snapshot.steps + u32::from(snapshot.phase == SnapshotPhase::Tools);
        machine.usage = snapshot.usage.clone();
        machine.consumed = snapshot.consumed.clone();
        machine.placed = machine.placed_before();
        machine.wake = snapshot.wake.clone();
        machine
    }

    /// What an earlier process placed for this run, from its rows: a rollback gives it back (ruling 33).
    fn placed_before(&self) -> Vec<InboxEntry> {
        let Some(thread) = self.transcript.thread() else { return Vec::new() };
        let rows = self.transcript.messages().iter().filter(|message| self.consumed.contains(&message.id));
        rows.filter_map(Signal::from_stored)
            .map(|signal| InboxEntry {
                signal,
                thread: thread.clone(),
                agent_id: self.settings.agent_id.clone(),
                mode: InputMode::Steer,
                run_id: self.settings.run_id.clone(),
                options: self.settings.stored_options.clone(),
                queue_owner_id: None,
                attempts: 0,
                position: 0,
            })
            .collect()
    }

    /// What the run goes on from after a crash.
    pub(crate) fn snapshot(&self) -> RunSnapshot {
        let in_tools = matches!(self.phase, Phase::Committing(AfterCommit::RunTools | AfterCommit::ToolProgress));
        RunSnapshot {
            message_id: self.message_id.clone(),
            first_message_id: self.first_message_id.clone(),
            iteration: self.iteration,
            steps: self.step_count(),
            usage: self.usage.clone(),
            consumed: self.consumed.clone(),
            wake: self.wake.clone(),
            own: self.transcript.own_ids(),
            phase: if in_tools { SnapshotPhase::Tools } else { SnapshotPhase::Request },
            options: self.settings.stored_options.clone(),
        }
    }

    /// The conversation.
    pub(crate) fn transcript(&self) -> &Transcript {
        &self.transcript
    }

    /// What the next commit writes: messages, and the entries they place.
    pub(crate) fn take_commit(&mut self) -> (Vec<StoredMessage>, Vec<InboxEntry>) {
        (self.transcript.take_dirty(), std::mem::take(&mut self.to_consume))
    }

    /// Puts back what a failed commit took.
    pub(crate) fn restore_commit(&mut self, messages: &[StoredMessage], entries: Vec<InboxEntry>) {
        for message in messages {
            self.transcript.touch(&message.id);
        }
        self.to_consume = entries;
    }

    /// The input that started the run; a rollback removes it.
    pub(crate) fn wake(&self) -> Option<&MessageId> {
        self.wake.as_ref()
    }

    /// All other entries the run has placed; a rollback gives them back (ruling 33).
    pub(crate) fn joined(&self) -> impl Iterator<Item = &InboxEntry> {
        self.placed.iter().filter(|entry| self.wake.as_ref() != Some(&entry.signal.id))
    }

    /// Whether the run has placed this input, durably or not.
    pub(crate) fn has_placed(&self, id: &MessageId) -> bool {
        self.placed.iter().any(|entry| entry.signal.id == *id)
    }

    /// Whether the commit under way is the run's last.
    pub(crate) fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Committing(AfterCommit::End { .. }))
    }

    /// Whether the commit under way ends a run that was stopped: only that can be rolled back.
    pub(crate) fn is_stopping(&self) -> bool {
        matches!(self.phase, Phase::Committing(AfterCommit::End { ending: Ending::Aborted, .. }))
    }

    /// The last commit is a rollback: what was not shown yet is not shown (SIG-454).
    pub(crate) fn drop_echoes(&mut self) {
        if let Phase::Committing(AfterCommit::End { echoes, .. }) = &mut self.phase {
            echoes.clear();
        }
    }

    /// How many chunks of the run are still to come once its last commit is durable.
    pub(crate) fn chunks_to_come(&self) -> u64 {
        let Phase::Committing(AfterCommit::End { echoes, ending }) = &self.phase else { return 0 };
        let own = match ending {
            Ending::Finished => 2,
            Ending::Failed(_) | Ending::Aborted => 1 + u64::from(!self.started),
            Ending::Tripped(_) => 2,
        };
        own + echoes.len() as u64
    }

    fn step_count(&self) -> u32 {
        self.earlier_steps + u32::try_from(self.steps.len()).unwrap_or(u32::MAX)
    }

    fn chunk(&self, payload: Payload) -> RunEffect {
        RunEffect::Emit(Chunk::agent(&self.settings.run_id, payload))
    }

    /// Takes in an event and says what is to be done. `now` dates what is placed.
    pub(crate) fn apply(&mut self, event: RunEvent, now: Timestamp) -> Effects {
        let mut effects = Effects::new();
        match event {
            RunEvent::Begun => {
                self.phase = Phase::Draining(DrainPoint::First);
                effects.push(RunEffect::Drain);
            }
            RunEvent::Drained { inputs, rejected, messages } => {
                self.drained(inputs, rejected, messages, now, &mut effects);
            }
            RunEvent::Tripped { tripwire, inputs, messages } => {
                self.note_wake(&inputs, &messages);
                for entry in inputs {
                    self.reject(entry, &tripwire, now);
                }
                for mut message in messages {
                    mark_blocked(&mut message, &tripwire);
                    self.transcript.add_input(message);
                }
                if self.aborting {
                    self.end_aborted(now, &mut effects);
                } else {
                    self.end(Ending::Tripped(tripwire), now, &mut effects);
                }
            }
            RunEvent::Committed => self.committed(now, &mut effects),
            RunEvent::CommitFailed(error) => self.commit_failed(error, &mut effects),
            RunEvent::Answered { model, warnings } => {
                self.model = model;
                // Nothing of a model that failed before it is kept (LOOP-048).
                self.response = Response::default();
                self.response.warnings = warnings;
                self.start_step(now, &mut effects);
            }
            RunEvent::Model(event) => self.model_event(event, now, &mut effects),
            RunEvent::ModelFailed(error) => {
                if matches!(self.phase, Phase::Requesting) {
                    self.start_step(now, &mut effects);
                    self.fail(error, now, &mut effects);
                }
            }
            RunEvent::InputWaits => self.input_waits(&mut effects),
            RunEvent::ToolDone { index, outcome } => self.tool_done(index, outcome, now, &mut effects),
            RunEvent::Scored(verdict) => self.scored(verdict, now, &mut effects),
            RunEvent::Abort => self.abort(now, &mut effects),
            RunEvent::TimedOut(error) => {
                match self.phase {
                    Phase::Requesting => effects.push(RunEffect::CancelRequest),
                    Phase::Tools => effects.push(RunEffect::CancelTools),
                    Phase::Done | Phase::Committing(AfterCommit::End { .. }) => return effects,
                    _ => {}
                }
                self.fail(error, now, &mut effects);
            }
        }
        effects
    }

    // Input.

    fn drained(
        &mut self,
        inputs: Vec<InboxEntry>,
        rejected: Vec<(InboxEntry, TripwirePayload)>,
        messages: Vec<StoredMessage>,
        now: Timestamp,
        effects: &mut Effects,
    ) {
        let Phase::Draining(point) = self.phase else { return };
        let took_in = !inputs.is_empty();
        if point == DrainPoint::First {
            self.note_wake(&inputs, &messages);
        }
        if took_in && self.started {
            self.rotate_message_id();
        }
        for message in messages {
            self.transcript.add_input(message);
        }
        let mut echoes = Vec::new();
        for entry in inputs {
            let placed = self.transcript.place(&entry.signal, now);
            echoes.push(placed.echo(&self.settings.run_id));
            self.consumed.push(entry.signal.id.clone());
            self.placed.push(entry.clone());
            self.to_consume.push(entry);
        }
        for (entry, tripwire) in rejected {
            echoes.push(self.reject(entry, &tripwire, now));
        }
        if self.aborting {
            self.mark_aborted();
            return self.end_with(Ending::Aborted, echoes, now, effects);
        }
        match point {
            DrainPoint::First | DrainPoint::Entry => {
                self.phase = Phase::Committing(AfterCommit::Request { echoes });
                effects.push(RunEffect::Commit);
            }
            DrainPoint::Boundary => self.after_boundary(took_in, echoes, now, effects),
            DrainPoint::Last if took_in => self.go_on(true, echoes, now, effects),
            DrainPoint::Last => {
                self.seal_step(false, None);
                self.end_with(Ending::Finished, echoes, now, effects);
            }
        }
    }

    /// A run that begins without messages of a caller was started by its first input.
    fn note_wake(&mut self, inputs: &[InboxEntry], messages: &[StoredMessage]) {
        if messages.is_empty() && self.consumed.is_empty() && self.wake.is_none() {
            self.wake = inputs.first().map(|entry| entry.signal.id.clone());
        }
    }

    /// Input that a guard refused is stored for people and kept from models (ruling 34, SIG-208).
    fn reject(&mut self, entry: InboxEntry, tripwire: &TripwirePayload, now: Timestamp) -> Chunk {
        let id = entry.signal.id.clone();
        self.transcript.place(&entry.signal, now);
        if let Some(message) = self.transcript.messages_mut().iter_mut().find(|message| message.id == id) {
            mark_blocked(message, tripwire);
        }
        self.placed.push(entry.clone());
        self.to_consume.push(entry);
        let data = json!({ "id": id, "reason": tripwire.reason });
        Chunk::transient_data(&self.settings.run_id, "data-signal-rejected", data)
    }

    fn rotate_message_id(&mut self) {
        self.transcript.seal();
        self.message_id = MessageId::fresh();
    }

    fn input_waits(&mut self, effects: &mut Effects) {
        let open = matches!(self.phase, Phase::Requesting) && !self.response.committed;
        if !open || self.response.finish.is_some() || !self.settings.interruptible {
            return;
        }
        // The response is as if it had never been (SIG-230 to 236).
        effects.push(RunEffect::CancelRequest);
        for payload in self.response.close_all() {
            effects.push(self.chunk(payload));
        }
        self.response = Response::default();
        if let Some(structured) = &mut self.structured {
            structured.reset();
        }
        self.step_started = false;
        self.phase = Phase::Draining(DrainPoint::Entry);
        effects.push(RunEffect::Drain);
    }

    // Commits.

    fn committed(&mut self, now: Timestamp, effects: &mut Effects) {
        let Phase::Committing(after) = std::mem::replace(&mut self.phase, Phase::New) else { return };
        match after {
            AfterCommit::Request { echoes } | AfterCommit::NextStep { echoes } if self.aborting => {
                self.show_echoes(echoes, effects);
                self.end_aborted(now, effects);
            }
            AfterCommit::RunTools if self.aborting => self.end_aborted(now, effects),
            AfterCommit::Request { echoes } => {
                self.show_echoes(echoes, effects);
                self.request(effects);
            }
            AfterCommit::RunTools => {
                self.phase = Phase::Tools;
                let runs = self.calls.iter().enumerate().filter(|(_, state)| state.outcome.is_none());
                let runs: Vec<ToolRun> = runs
                    .map(|(index, state)| ToolRun {
                        index,
                        id: state.call.id.clone(),
                        name: state.call.name.clone(),
                        args: state.call.args.clone(),
                    })
                    .collect();
                effects.push(RunEffect::RunTools(runs));
            }
            AfterCommit::ToolProgress => {
                self.phase = Phase::Tools;
                if self.late_results {
                    self.tools_progressed(now, effects);
                }
            }
            AfterCommit::NextStep { echoes } => {
                self.show_echoes(echoes, effects);
                self.finish_step(effects);
                self.response = Response::default();
                // D2: whatever came since D3 goes into the same request (R12).
                self.phase = Phase::Draining(DrainPoint::Entry);
                effects.push(RunEffect::Drain);
            }
            AfterCommit::End { echoes, ending } => {
                self.show_echoes(echoes, effects);
                self.show_end(&ending, effects);
                self.phase = Phase::Done;
                effects.push(RunEffect::End(ending));
            }
        }
    }

    fn commit_failed(&mut self, error: ErrorInfo, effects: &mut Effects) {
        let Phase::Committing(after) = std::mem::replace(&mut self.phase, Phase::Done) else { return };
        // What was not placed goes back to the thread: this run has neither taken it in nor shows it (SIG-207, SIG-454).
        for entry in std::mem::take(&mut self.to_consume) {
            let id = entry.signal.id;
            self.consumed.retain(|consumed| *consumed != id);
            self.unanswered.retain(|unanswered| *unanswered != id);
            self.placed.retain(|placed| placed.signal.id != id);
        }
        match after {
            // What was shown is not stored; say so and end as intended (MEM-054).
            AfterCommit::End { ending, .. } => {
                self.warnings.push(json!({ "type": "memory-write-failed", "message": error.message }));
                self.show_end(&ending, effects);
                effects.push(RunEffect::End(ending));
            }
            AfterCommit::Request { .. }
            | AfterCommit::NextStep { .. }
            | AfterCommit::RunTools
            | AfterCommit::ToolProgress => {
                effects.push(self.chunk(Payload::Error { error: error.clone() }));
                effects.push(RunEffect::End(Ending::Failed(error)));
            }
        }
    }

    fn show_echoes(&mut self, echoes: Vec<Chunk>, effects: &mut Effects) {
        let is_user = |chunk: &Chunk| matches!(&chunk.body, ChunkBody::Data(data) if data.kind == "data-user-message");
        if self.started {
            effects.extend(echoes.into_iter().map(RunEffect::Emit));
            return;
        }
        // Echoes of users come before `start`, others after it (rulings 19, 36).
        let (before, after): (VecDeque<_>, VecDeque<_>) = echoes.into_iter().partition(is_user);
        effects.extend(before.into_iter().map(RunEffect::Emit));
        self.show_start(effects);
        effects.extend(after.into_iter().map(RunEffect::Emit));
    }

    fn show_start(&mut self, effects: &mut Effects) {
        if !self.started {
            self.started = true;
            let start = Payload::Start { id: self.settings.agent_id.clone(), message_id: self.message_id.clone() };
            effects.push(self.chunk(start));
        }
    }

    // The request.

    fn request(&mut self, effects: &mut Effects) {
        self.response = Response::default();
        self.calls.clear();
        self.step_started = false;
        self.step_result = None;
        if let Some(structured) = &mut self.structured {
            structured.reset();
        }
        self.phase = Phase::Requesting;
        effects.push(RunEffect::Request);
    }

    fn start_step(&mut self, now: Timestamp, effects: &mut Effects) {
        if self.step_started {
            return;
        }
        self.step_started = true;
        effects.push(self.chunk(Payload::StepStart {
            message_id: self.message_id.clone(),
            started_at: now.as_millis(),
            request: Object::new(),
            warnings: self.response.warnings.clone(),
        }));
    }

    fn model_event(&mut self, event: ModelEvent, now: Timestamp, effects: &mut Effects) {
        if !matches!(self.phase, Phase::Requesting) {
            return;
        }
        self.start_step(now, effects);
        let finished = matches!(event, ModelEvent::Finish { .. });
        let step = self.step_count() + 1;
        let transcript = &self.transcript;
        let unique = |id: &str| {
            if transcript.has_call(id) { format!("{id}#{step}") } else { id.to_owned() }
        };
        for payload in self.response.take(event, unique) {
            if let (Payload::TextDelta { text, .. }, Some(structured)) = (&payload, &mut self.structured)
                && let Some(partial) = structured.push(text)
            {
                let object = ChunkBody::Object(partial);
                effects.push(RunEffect::Emit(Chunk::with_body(&self.settings.run_id, object)));
            }
            let chunk = Chunk::agent(&self.settings.run_id, payload);
            match chunk.payload() {
                Some(Payload::File { .. }) => self.files.push(chunk.clone()),
                Some(Payload::Source(_)) => self.sources.push(chunk.clone()),
                _ => {}
            }
            effects.push(RunEffect::Emit(chunk));
        }
        if finished {
            self.response_complete(now, effects);
        }
    }

    fn response_complete(&mut self, now: Timestamp, effects: &mut Effects) {
        let calls: Vec<Call> = self.response.calls().filter(|call| !call.provider_executed).cloned().collect();
        let empty = self.response.is_empty() && calls.is_empty();
        let Some(finish) = &mut self.response.finish else { return };
        if finish.reason == FinishReason::ToolCalls && calls.is_empty() {
            // Nothing was called: the model is done (R29).
            finish.reason = FinishReason::Stop;
        }
        if finish.reason == FinishReason::Other && empty && finish.usage.output_tokens.unwrap_or(0) == 0 {
            let message = "the model ended without an answer and without a reason; try again or use another model";
            let mut error = ErrorInfo::new("AGENT_STREAM_ERROR", message);
            error.id = Some("AGENT_STREAM_ERROR".to_owned());
            return self.fail(error, now, effects);
        }
        self.usage.add(&finish.usage.clone());
        self.keep_response(true, now);
        if calls.is_empty() {
            return self.boundary(now, effects);
        }
        self.calls = calls.into_iter().map(|call| CallState { call, outcome: None }).collect();
        self.phase = Phase::Committing(AfterCommit::RunTools);
        effects.push(RunEffect::Commit);
    }

    /// Writes the response into the answer under construction.
    fn keep_response(&mut self, calls: bool, now: Timestamp) {
        if self.response.is_empty() && self.response.calls().next().is_none() && self.response.reasoning().is_empty() {
            return;
        }
        let model = format!("{}/{}", self.model.provider, self.model.model);
        let (provider, model_id) = (self.model.provider.clone(), self.model.model.clone());
        let message_id = self.message_id.clone();
        let answer = self.transcript.answer(&message_id, now);
        let after_tool = answer.content.parts.iter().any(|part| matches!(part, Part::ToolInvocation(_)));
        let parts = self.response.parts(calls, after_tool, &model, now);
        answer.content.parts.extend(parts);
        let metadata = answer.content.metadata_mut();
        metadata.insert("modelId".to_owned(), model_id.into());
        metadata.insert("provider".to_owned(), provider.into());
    }

    // Tools.

    fn tool_done(&mut self, index: usize, outcome: ToolOutcome, now: Timestamp, effects: &mut Effects) {
        // One that comes while an earlier one is being committed is taken in all the same.
        let committing = matches!(self.phase, Phase::Committing(AfterCommit::ToolProgress));
        if !committing && !matches!(self.phase, Phase::Tools) {
            return;
        }
        let Some(state) = self.calls.get_mut(index) else { return };
        if state.outcome.is_some() {
            return;
        }
        let id = state.call.id.clone();
        settle(self.transcript.open_answer(), &id, &outcome);
        state.outcome = Some(outcome);
        if committing {
            self.late_results = true;
        } else {
            self.tools_progressed(now, effects);
        }
    }

    /// Commits what has finished, or goes on once all calls have.
    fn tools_progressed(&mut self, now: Timestamp, effects: &mut Effects) {
        self.late_results = false;
        if self.calls.iter().any(|state| state.outcome.is_none()) {
            self.phase = Phase::Committing(AfterCommit::ToolProgress);
            effects.push(RunEffect::Commit);
            return;
        }
        self.show_results(effects);
        if self.aborting {
            return self.end_aborted(now, effects);
        }
        self.boundary(now, effects);
    }

    /// Results in call order, after the last call has finished (LOOP-065, LOOP-073).
    fn show_results(&mut self, effects: &mut Effects) {
        for CallState { call, outcome } in &self.calls {
            let payload = match outcome {
                Some(ToolOutcome::Result { value, is_error, model_output }) => Payload::ToolResult(ToolResultPayload {
                    args: call.args.clone(),
                    tool_call_id: call.id.clone(),
                    tool_name: call.name.clone(),
                    result: value.clone(),
                    is_error: is_error.then_some(true),
                    provider_executed: None,
                    provider_metadata: model_output.as_ref().map(model_output_metadata),
                }),
                Some(ToolOutcome::Failed(error)) => Payload::ToolError {
                    tool_call_id: call.id.clone(),
                    tool_name: call.name.clone(),
                    args: Some(call.payload().args),
                    error: error.clone(),
                    provider_executed: None,
                },
                Some(ToolOutcome::Client | ToolOutcome::Interrupted) | None => continue,
            };
            effects.push(RunEffect::Emit(Chunk::agent(&self.settings.run_id, payload)));
        }
    }

    // The end of a step.

    fn boundary(&mut self, now: Timestamp, effects: &mut Effects) {
        if self.at_limit() && self.settings.on_step_limit == OnStepLimit::FollowUp {
            // What waits gets a run of its own with a fresh budget (SIG-204).
            self.phase = Phase::Draining(DrainPoint::Boundary);
            return self.after_boundary(false, Vec::new(), now, effects);
        }
        self.phase = Phase::Draining(DrainPoint::Boundary);
        effects.push(RunEffect::Drain);
    }

    fn at_limit(&self) -> bool {
        self.step_count() + 1 >= self.settings.max_steps
    }

    fn wants_more(&self) -> bool {
        let ran_tools = self.calls.iter().any(|state| !matches!(state.outcome, Some(ToolOutcome::Client)));
        let reason = self.response.finish.as_ref().map_or(FinishReason::Stop, |finish| finish.reason);
        match reason {
            FinishReason::Length | FinishReason::ContentFilter | FinishReason::Error => false,
            FinishReason::Stop => ran_tools,
            _ => true,
        }
    }

    fn after_boundary(&mut self, took_in: bool, echoes: Vec<Chunk>, now: Timestamp, effects: &mut Effects) {
        let waits_for_client = self.calls.iter().any(|state| matches!(state.outcome, Some(ToolOutcome::Client)));
        let more = self.wants_more() && !waits_for_client;
        if took_in || more {
            return self.go_on(took_in, echoes, now, effects);
        }
        if !waits_for_client && self.settings.has_completion && self.pending_verdict.is_none() {
            self.phase = Phase::Scoring;
            effects.push(RunEffect::Score { answer: self.response.text(), iteration: self.iteration });
            return;
        }
        self.seal_step(false, None);
        self.end_with(Ending::Finished, echoes, now, effects);
    }

    /// Another step, unless a limit says no.
    fn go_on(&mut self, took_in: bool, echoes: Vec<Chunk>, now: Timestamp, effects: &mut Effects) {
        let cause = if self.at_limit() {
            Some("max-steps")
        } else if self.settings.stop_when.is_empty() {
            None
        } else {
            let mut finished = self.steps.clone();
            finished.push(self.summary(self.reason()));
            self.settings.stop_when.iter().any(|stop| stop.is_met(&finished)).then_some("stop-when")
        };
        let Some(cause) = cause else {
            self.seal_step(true, None);
            if took_in && let Some(result) = &mut self.step_result {
                // Taken in although the model had finished (SIG-201).
                if result.reason == FinishReason::Stop {
                    result.reason = FinishReason::Other;
                }
                result.message_id = Some(self.message_id.clone());
            }
            self.phase = Phase::Committing(AfterCommit::NextStep { echoes });
            effects.push(RunEffect::Commit);
            return;
        };
        if took_in {
            // Stored, and not answered (SIG-203, SIG-204).
            let taken = self.to_consume.iter().map(|entry| entry.signal.id.clone());
            self.unanswered.extend(taken);
        }
        let asked_for_tools = self.wants_more();
        self.seal_step(false, asked_for_tools.then_some(cause));
        if took_in
            && let Some(result) = &mut self.step_result
            && result.reason == FinishReason::Stop
        {
            result.reason = FinishReason::Other;
        }
        self.end_with(Ending::Finished, echoes, now, effects);
    }

    fn scored(&mut self, verdict: Verdict, now: Timestamp, effects: &mut Effects) {
        if !matches!(self.phase, Phase::Scoring) {
            return;
        }
        let exhausted = self.at_limit();
        let mut payload = verdict.payload.clone();
        payload.insert("maxIterationReached".to_owned(), (!verdict.passed && exhausted).into());
        effects.push(self.chunk(Payload::IsTaskComplete(Value::Object(payload))));
        if verdict.passed || exhausted {
            self.pending_verdict = Some(verdict);
            if exhausted && self.settings.on_step_limit == OnStepLimit::FollowUp {
                // What waits gets a run of its own (SIG-204).
                self.seal_step(false, None);
                return self.end(Ending::Finished, now, effects);
            }
            // The last look, since judging took a while (D4).
            self.phase = Phase::Draining(DrainPoint::Last);
            effects.push(RunEffect::Drain);
            return;
        }
        self.iteration += 1;
        self.seal_step(true, None);
        self.answer_from = self.steps.len() + 1;
        self.transcript.seal();
        if let Some(feedback) = &verdict.feedback {
            let at = self.transcript.next_time(now);
            let mut message = StoredMessage::text(MessageId::fresh(), Role::User, feedback.clone(), at);
            message.content.metadata_mut().insert("completionResult".to_owned(), json!({ "passed": false }));
            self.transcript.add_feedback(message);
        }
        self.pending_verdict = Some(verdict);
        self.phase = Phase::Committing(AfterCommit::NextStep { echoes: Vec::new() });
        effects.push(RunEffect::Commit);
    }

    fn reason(&self) -> FinishReason {
        match self.response.finish.as_ref() {
            Some(finish) if finish.reason == FinishReason::Stop && !self.calls.is_empty() => FinishReason::ToolCalls,
            Some(finish) => finish.reason,
            None => FinishReason::Error,
        }
    }

    fn seal_step(&mut self, is_continued: bool, stop_cause: Option<&str>) {
        let finish = self.response.finish.clone();
        self.stop_cause = stop_cause.map(str::to_owned);
        self.step_result = Some(StepResult {
            reason: self.reason(),
            raw_reason: finish.and_then(|finish| finish.raw_reason),
            is_continued,
            warnings: self.response.warnings.clone(),
            message_id: None,
            stop_cause: self.stop_cause.clone(),
        });
    }

    fn summary(&self, reason: FinishReason) -> StepSummary {
        let chunk = |payload| Chunk::agent(&self.settings.run_id, payload);
        let results = self.calls.iter().filter_map(|state| match &state.outcome {
            Some(ToolOutcome::Result { value, is_error, model_output }) => {
                Some(chunk(Payload::ToolResult(ToolResultPayload {
                    args: state.call.args.clone(),
                    tool_call_id: state.call.id.clone(),
                    tool_name: state.call.name.clone(),
                    result: value.clone(),
                    is_error: is_error.then_some(true),
                    provider_executed: None,
                    provider_metadata: model_output.as_ref().map(model_output_metadata),
                })))
            }
            _ => None,
        });
        StepSummary {
            text: self.response.text(),
            reasoning_text: self.response.reasoning(),
            finish_reason: reason,
            usage: self.response.finish.as_ref().map(|finish| finish.usage.clone()).unwrap_or_default(),
            tool_calls: self.response.calls().map(|call| chunk(Payload::ToolCall(call.payload()))).collect(),
            tool_results: results.collect(),
            warnings: self.response.warnings.clone(),
            response: self.metadata(),
        }
    }

    fn metadata(&self) -> ResponseMetadata {
        let mut metadata = self.response.metadata.clone();
        metadata.model_metadata = Some(json!({
            "modelId": self.model.model,
            "modelVersion": "v2",
            "modelProvider": self.model.provider,
        }));
        metadata
    }

    fn finish_payload(&self, summary: &StepSummary, result: StepResult) -> StepFinishPayload {
        let calls = self.response.calls();
        StepFinishPayload {
            message_id: self.message_id.clone(),
            step_result: result,
            metadata: summary.response.clone(),
            output: StepOutput {
                text: summary.text.clone(),
                tool_calls: calls
                    .map(|call| {
                        let payload = call.payload();
                        json!({ "toolCallId": payload.tool_call_id, "toolName": payload.tool_name, "args": payload.args })
                    })
                    .collect(),
                usage: summary.usage.clone(),
                object: self.structured.as_ref().and_then(|structured| structured.object().cloned()),
            },
            messages: None,
            response: None,
            processor_retry_count: 0,
            is_task_complete_check_failed: self.pending_verdict.as_ref().map(|verdict| !verdict.passed),
            consumed_signal_ids: Vec::new(),
            unanswered_signal_ids: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Shows the end of the step and keeps its summary.
    fn finish_step(&mut self, effects: &mut Effects) {
        let result = self.step_result.take().unwrap_or(StepResult {
            reason: self.reason(),
            raw_reason: None,
            is_continued: false,
            warnings: Vec::new(),
            message_id: None,
            stop_cause: None,
        });
        let summary = self.summary(result.reason);
        effects.push(RunEffect::StepEnded(Box::new(summary.clone())));
        let payload = self.finish_payload(&summary, result);
        effects.push(self.chunk(Payload::StepFinish(Box::new(payload))));
        self.last_metadata = summary.response.clone();
        self.steps.push(summary);
        if self.pending_verdict.take().is_some_and(|verdict| !verdict.passed) {
            self.message_id = format!("{}-{}", self.first_message_id, self.iteration).into();
        }
    }

    // The end of the run.

    fn end(&mut self, ending: Ending, now: Timestamp, effects: &mut Effects) {
        self.end_with(ending, Vec::new(), now, effects);
    }

    fn end_with(&mut self, ending: Ending, echoes: Vec<Chunk>, now: Timestamp, effects: &mut Effects) {
        let mut ending = ending;
        // A run that was cut, or waits for its client, has no value yet (LOOP-024, LOOP-026).
        if ending == Ending::Finished
            && self.reason() != FinishReason::ToolCalls
            && let Some(structured) = &mut self.structured
        {
            match structured.finish(&self.response.text()) {
                Ok(Some(object)) => {
                    if let Some(answer) = self.transcript.open_answer() {
                        answer.content.metadata_mut().insert("structuredOutput".to_owned(), object.clone());
                    }
                    let mut chunk = Chunk::with_body(&self.settings.run_id, ChunkBody::ObjectResult(object));
                    if structured.used_fallback() {
                        chunk.metadata = Some(json!({ "fallback": true }));
                    }
                    effects.push(RunEffect::Emit(chunk));
                }
                Ok(None) => {}
                Err(error) => {
                    self.keep_error(&error, now);
                    ending = Ending::Failed(error);
                }
            }
        }
        self.phase = Phase::Committing(AfterCommit::End { echoes, ending });
        effects.push(RunEffect::Commit);
    }

    fn fail(&mut self, error: ErrorInfo, now: Timestamp, effects: &mut Effects) {
        for payload in self.response.close_all() {
            effects.push(self.chunk(payload));
        }
        // What was shown is kept (LOOP-142); calls that were not run are not (R31b).
        if self.calls.is_empty() {
            self.keep_response(false, now);
        }
        self.keep_error(&error, now);
        self.end(Ending::Failed(error), now, effects);
    }

    fn keep_error(&mut self, error: &ErrorInfo, now: Timestamp) {
        let message_id = self.message_id.clone();
        let answer = self.transcript.answer(&message_id, now);
        answer.content.parts.push(Part::Error(ErrorPart {
            error: json!({ "name": error.name, "message": error.message }),
            created_at: Some(now.as_millis()),
            extra: Object::new(),
        }));
    }

    fn abort(&mut self, now: Timestamp, effects: &mut Effects) {
        if self.aborting {
            return;
        }
        self.aborting = true;
        match self.phase {
            Phase::New | Phase::Draining(_) | Phase::Done => {}
            Phase::Committing(ref after) => match after {
                // Once it is written: the request is not sent, what is placed stays, and the end is a write of its own.
                AfterCommit::Request { .. } | AfterCommit::NextStep { .. } | AfterCommit::RunTools => {}
                AfterCommit::ToolProgress => effects.push(RunEffect::CancelTools),
                AfterCommit::End { .. } => self.aborting = false,
            },
            Phase::Requesting => {
                effects.push(RunEffect::CancelRequest);
                for payload in self.response.close_all() {
                    effects.push(self.chunk(payload));
                }
                self.keep_response(false, now);
                self.end_aborted(now, effects);
            }
            // The results of what stops in time are kept (LOOP-134).
            Phase::Tools => effects.push(RunEffect::CancelTools),
            Phase::Scoring => self.end_aborted(now, effects),
        }
    }

    fn end_aborted(&mut self, now: Timestamp, effects: &mut Effects) {
        self.mark_aborted();
        self.end(Ending::Aborted, now, effects);
    }

    /// The answer was cut off by an abort (LOOP-133).
    fn mark_aborted(&mut self) {
        if let Some(answer) = self.transcript.open_answer() {
            let mastra = answer.content.metadata_mut().entry("mastra").or_insert_with(|| json!({}));
            mastra["aborted"] = json!(true);
        }
    }

    /// The last chunks that all subscribers see, but the very last: the driver ends the stream with that.
    fn show_end(&mut self, ending: &Ending, effects: &mut Effects) {
        match ending {
            Ending::Finished => {
                self.show_start(effects);
                self.finish_step(effects);
            }
            Ending::Failed(_) | Ending::Aborted => self.show_start(effects),
            Ending::Tripped(_) => {}
        }
    }

    /// The tool of a call under way.
    pub(crate) fn tool_name(&self, call_id: &str) -> Option<String> {
        self.calls.iter().find(|state| state.call.id == call_id).map(|state| state.call.name.clone())
    }

    /// Keeps a data chunk that a tool wrote with the answer (LOOP-075).
    pub(crate) fn keep_data(&mut self, data: &crate::chunk::DataChunk) {
        if let (Some(answer), Ok(part)) = (self.transcript.open_answer(), serde_json::to_value(data)) {
            answer.content.parts.push(Part::Other(part));
        }
    }

    /// The payload of `finish`, as subscribers see it.
    pub(crate) fn finish(&self, reason: Option<FinishReason>) -> StepFinishPayload {
        let last = self.steps.last();
        let step_reason = last.map_or(FinishReason::Stop, |step| step.finish_reason);
        let mut tool_calls = Vec::new();
        for step in &self.steps {
            for call in &step.tool_calls {
                if let Some(Payload::ToolCall(call)) = call.payload() {
                    tool_calls.push(
                        json!({ "toolCallId": call.tool_call_id, "toolName": call.tool_name, "args": call.args }),
                    );
                }
            }
        }
        StepFinishPayload {
            message_id: self.message_id.clone(),
            step_result: StepResult {
                reason: reason.unwrap_or(step_reason),
                raw_reason: self.response.finish.as_ref().and_then(|finish| finish.raw_reason.clone()),
                is_continued: false,
                warnings: Vec::new(),
                message_id: None,
                stop_cause: self.stop_cause.clone(),
            },
            metadata: self.last_metadata.clone(),
            output: StepOutput {
                text: self.answer_text(reason),
                tool_calls,
                usage: self.total_usage(),
                object: self.structured.as_ref().and_then(|structured| structured.object().cloned()),
            },
            messages: None,
            response: None,
            processor_retry_count: 0,
            is_task_complete_check_failed: None,
            consumed_signal_ids: self.consumed.clone(),
            unanswered_signal_ids: self.unanswered.clone(),
            warnings: self.warnings.clone(),
        }
    }

    /// The sum so far, always numbers (LOOP-162).
    fn total_usage(&self) -> Usage {
        let mut usage = self.usage.clone();
        usage.input_tokens.get_or_insert(0);
        usage.output_tokens.get_or_insert(0);
        usage.total_tokens.get_or_insert(0);
        usage
    }

    fn answer_text(&self, reason: Option<FinishReason>) -> String {
        let mut text: String =
            self.steps.iter().skip(self.answer_from.min(self.steps.len())).map(|step| step.text.as_str()).collect();
        if reason.is_some() {
            // The step under way was not finished; what it said is part of the answer.
            text.push_str(&self.response.text());
        }
        text
    }

    /// The settled result.
    pub(crate) fn output(&self, ending: &Ending) -> RunOutput {
        let reason = match ending {
            Ending::Finished => None,
            Ending::Failed(_) => Some(FinishReason::Error),
            Ending::Aborted => Some(FinishReason::Aborted),
            Ending::Tripped(_) => Some(FinishReason::Tripwire),
        };
        let finish = self.finish(reason);
        RunOutput {
            run_id: self.settings.run_id.clone(),
            text: finish.output.text,
            finish_reason: finish.step_result.reason,
            usage: finish.output.usage,
            steps: self.steps.clone(),
            object: finish.output.object,
            used_fallback_value: self.structured.as_ref().is_some_and(Structured::used_fallback),
            error: match ending {
                Ending::Failed(error) => Some(error.clone()),
                _ => None,
            },
            tripwire: match ending {
                Ending::Tripped(tripwire) => Some(tripwire.clone()),
                _ => None,
            },
            suspend_payload: None,
            response_messages: self.transcript.answers(),
            messages: self.transcript.own(),
            remembered_messages: self.transcript.remembered(),
            message_id: self.message_id.clone(),
            files: self.files.clone(),
            sources: self.sources.clone(),
            warnings: self.steps.last().map_or_else(Vec::new, |step| [&step.warnings[..], &finish.warnings].concat()),
            consumed_signal_ids: finish.consumed_signal_ids,
            response: self.last_metadata.clone(),
        }
    }
}

fn mark_blocked(message: &mut StoredMessage, tripwire: &TripwirePayload) {
    let blocked = json!({ "reason": tripwire.reason, "processorId": tripwire.processor_id });
    message.content.metadata_mut().insert("blocked".to_owned(), blocked);
}

pub(super) fn model_output_metadata(output: &ToolOutput) -> Object {
    let mut metadata = Object::new();
    metadata.insert("mastra".to_owned(), json!({ "modelOutput": output }));
    metadata
}

/// Writes a call's outcome into the answer.
fn settle(answer: Option<&mut StoredMessage>, id: &str, outcome: &ToolOutcome) {
    let Some(answer) = answer else { return };
    let part = answer.content.parts.iter_mut().rev().find_map(|part| match part {
        Part::ToolInvocation(call) if call.tool_invocation.tool_call_id == id => Some(call),
        _ => None,
    });
    let Some(part) = part else { return };
    let call = &mut part.tool_invocation;
    match outcome {
        ToolOutcome::Result { value, is_error, model_output } => {
            call.state = ToolState::Result;
            call.result = Some(value.clone());
            call.is_error = is_error.then_some(true);
            if let Some(output) = model_output {
                part.provider_metadata.get_or_insert_default().extend(model_output_metadata(output));
            }
        }
        ToolOutcome::Failed(error) => {
            call.state = ToolState::OutputError;
            call.error_text = Some(error.message.clone());
        }
        ToolOutcome::Client | ToolOutcome::Interrupted => {}
    }
}

/// Decides a completion check from its scores (SCO §3).
pub(crate) fn passes(strategy: Strategy, passed: &[bool]) -> bool {
    match strategy {
        Strategy::All => passed.iter().all(|passed| *passed),
        Strategy::Any => passed.iter().any(|passed| *passed),
    }
}
