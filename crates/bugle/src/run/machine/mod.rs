//! The agent loop as data: no IO, no clock, no `.await` (LOOP §3, §14; SIG §10, §11).
//!
//! Feed it what happened, perform what it says, in order. It asks for a commit before anything is shown that a commit
//! must cover: input before its echo, an answer before `finish`. What it needs to go on after a crash is its
//! [`RunSnapshot`].

mod end;
mod event;
mod hooked;
mod input;
mod iteration;
mod judge;
mod park;
mod result;
mod scoring;
mod step;
mod tools;

pub(crate) use event::*;
use input::mark_blocked;
use iteration::Plan;
use judge::{Guarding, Judged};
pub(crate) use judge::{ResultVerdict, StepVerdict};
pub(super) use tools::model_output_metadata;

use serde_json::Value;

use super::{
    ParkedCall, Resolution, StepSummary,
    response::{Call, Response},
    settings::RunSettings,
    snapshot::{RunSnapshot, SnapshotPhase},
    structured::Structured,
    transcript::{Transcript, is_call},
};
use crate::{
    chunk::{Chunk, ErrorInfo, Payload, ResponseMetadata, StepResult, Usage},
    id::MessageId,
    message::{Part, StoredMessage, ToolState},
    signal::Signal,
    storage::{InboxEntry, InputMode},
    subagent::DelegationRecord,
    time::Timestamp,
};

type Effects = Vec<RunEffect>;

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
    /// Processors judge a step or the answer.
    Guarding(Guarding),
    /// The hook at the end of the iteration is asked.
    Judging(Plan),
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
    /// The run is parked: say for what.
    Park,
    /// The step is over and another follows.
    NextStep { echoes: Vec<Chunk> },
    /// The run is over.
    End { echoes: Vec<Chunk>, ending: Ending },
}

#[derive(Debug)]
struct CallState {
    call: Call,
    outcome: Option<ToolOutcome>,
    /// Its result is out.
    shown: bool,
    /// How it goes on after it was parked.
    resume: Option<ToolResume>,
}

impl CallState {
    fn new(call: Call) -> Self {
        Self { call, outcome: None, shown: false, resume: None }
    }

    fn parked(&self) -> Option<&ParkedCall> {
        match &self.outcome {
            Some(ToolOutcome::Parked(parked)) => Some(parked),
            _ => None,
        }
    }
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
    /// Echoes of the step that is being judged.
    held_echoes: Vec<Chunk>,
    /// What clients are told of refused messages once the run goes on.
    refusals: Vec<Chunk>,
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
    /// How often the run was gone on with since it had finished this many steps.
    recoveries: (u32, u32),
    judged: Judged,
    /// What delegations have led to.
    delegation: DelegationRecord,
    /// The hook was asked about the current iteration.
    iteration_judged: bool,
    /// The current turn is the last one granted; it offers no tools (SUB-111).
    last_turn: bool,
    /// The id of the answer after this step.
    next_message_id: Option<MessageId>,
    /// The step at work was parked before.
    step_resumed: bool,
    /// What is to become of the parked run.
    resolution: Option<Resolution>,
    /// Where the run is parked, or was: the message of its calls.
    call_message_id: MessageId,
    /// The answer's text of steps before this process had the run.
    earlier_text: String,
    /// The first message of the answer, after failed completion checks (SCO-048).
    answer_message: Option<MessageId>,
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
            call_message_id: message_id.clone(),
            message_id,
            started: false,
            step_started: false,
            iteration: 1,
            steps: Vec::new(),
            earlier_steps: 0,
            held_echoes: Vec::new(),
            refusals: Vec::new(),
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
            recoveries: (0, 0),
            judged: Judged::default(),
            delegation: DelegationRecord::default(),
            iteration_judged: false,
            last_turn: false,
            next_message_id: None,
            step_resumed: false,
            resolution: None,
            earlier_text: String::new(),
            answer_message: None,
        }
    }

    /// A run that an earlier process left. A call that was started and has no result is not repeated (LOOP-255).
    pub(crate) fn recovered(settings: RunSettings, mut transcript: Transcript, snapshot: &RunSnapshot) -> Self {
        let unknown = "outcome unknown after a restart: the call was started and is not repeated";
        if let Some(step) = &snapshot.step {
            let mut machine = Self::restored(settings, transcript, snapshot, step);
            for at in 0..machine.calls.len() {
                if machine.calls[at].outcome.is_none() {
                    machine.settle(at, ToolOutcome::Failed(ErrorInfo::new("Error", unknown)));
                }
            }
            return machine;
        }
        if snapshot.phase == SnapshotPhase::Tools
            && let Some(answer) = transcript.open_answer()
        {
            for part in &mut answer.content.parts {
                if is_call(part, ToolState::Call)
                    && let Part::ToolInvocation(call) = part
                {
                    call.tool_invocation.state = ToolState::OutputError;
                    call.tool_invocation.error_text = Some(unknown.to_owned());
                }
            }
        }
        let mut machine = Self::new(settings, transcript, snapshot.message_id.clone());
        machine.take_over(snapshot);
        machine.earlier_steps += u32::from(snapshot.phase == SnapshotPhase::Tools);
        machine.recoveries = (snapshot.recoveries, machine.step_count());
        machine
    }

    /// What a snapshot says of the steps before.
    fn take_over(&mut self, snapshot: &RunSnapshot) {
        self.first_message_id = snapshot.first_message_id.clone();
        self.iteration = snapshot.iteration;
        self.earlier_steps = snapshot.steps;
        self.usage = snapshot.usage.clone();
        self.consumed = snapshot.consumed.clone();
        self.placed = self.placed_before();
        self.wake = snapshot.wake.clone();
        self.delegation = snapshot.delegation.clone();
        self.last_turn = snapshot.last_turn;
        self.answer_message = snapshot.answer_from.clone();
        self.earlier_text = self.transcript.answer_text(self.answer_message.as_ref());
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

    /// What the run goes on from after a crash, or after a person's decision.
    pub(crate) fn snapshot(&self) -> RunSnapshot {
        let phase = match self.phase {
            Phase::Committing(AfterCommit::Park) => SnapshotPhase::Parked,
            Phase::Committing(AfterCommit::RunTools | AfterCommit::ToolProgress) => SnapshotPhase::Tools,
            _ => SnapshotPhase::Request,
        };
        // The step that this commit ends is told of only once it is durable.
        let ends_step = matches!(self.phase, Phase::Committing(AfterCommit::NextStep { .. }));
        let steps = self.step_count() + u32::from(ends_step);
        let has_step = phase != SnapshotPhase::Request && (self.step_resumed || self.waits_for_people());
        RunSnapshot {
            message_id: self
                .next_message_id
                .as_ref()
                .or_else(|| self.own_message_id().filter(|_| ends_step))
                .unwrap_or(&self.message_id)
                .clone(),
            first_message_id: self.first_message_id.clone(),
            iteration: self.iteration,
            steps,
            usage: self.usage.clone(),
            consumed: self.consumed.clone(),
            wake: self.wake.clone(),
            own: self.transcript.own_ids(),
            // A step that is finished did not kill its process.
            recoveries: if steps > self.recoveries.1 { 0 } else { self.recoveries.0 },
            phase,
            options: self.settings.stored_options.clone(),
            delegation: self.delegation.clone(),
            last_turn: self.last_turn,
            step: has_step.then(|| self.parked_step()),
            kept: if has_step { self.transcript.kept(!self.settings.stores) } else { Vec::new() },
            answer_from: self.answer_message.clone(),
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
        let (echoes, ending) = match &self.phase {
            Phase::Committing(AfterCommit::End { echoes, ending }) => (echoes, ending),
            Phase::Committing(AfterCommit::Park) => return self.park_chunk_count(),
            _ => return 0,
        };
        let own = match ending {
            Ending::Finished => 2,
            Ending::Failed(_) | Ending::Aborted => 1 + u64::from(!self.started),
            Ending::Tripped(_) => 2 + u64::from(!self.started),
            Ending::Parked => 0,
        };
        own + echoes.len() as u64
    }

    pub(super) fn step_count(&self) -> u32 {
        self.earlier_steps + u32::try_from(self.steps.len()).unwrap_or(u32::MAX)
    }

    /// The model turn under way, from 1, over suspensions and restarts (ruling 16).
    pub(crate) fn turn(&self) -> u32 {
        self.step_count().saturating_add(1)
    }

    pub(super) fn chunk(&self, payload: Payload) -> RunEffect {
        RunEffect::Emit(Chunk::agent(&self.settings.run_id, payload))
    }

    /// Takes in an event and says what is to be done.
    #[cfg(test)]
    pub(crate) fn apply(&mut self, event: RunEvent, now: Timestamp) -> Effects {
        let mut effects = Effects::new();
        self.apply_into(event, now, &mut effects);
        effects
    }

    /// Takes in an event and adds what is to be done to `effects`. `now` dates what is placed.
    pub(crate) fn apply_into(&mut self, event: RunEvent, now: Timestamp, effects: &mut Effects) {
        match event {
            RunEvent::Begun if self.resolution.is_some() => self.go_on_parked(now, effects),
            // An earlier process had the step.
            RunEvent::Begun if self.step_resumed => {
                self.phase = Phase::Tools;
                self.tools_progressed(now, effects);
            }
            RunEvent::Begun => {
                self.phase = Phase::Draining(DrainPoint::First);
                effects.push(RunEffect::Drain);
            }
            RunEvent::Drained { inputs, rejected, messages } => {
                self.drained(inputs, rejected, messages, now, effects);
            }
            RunEvent::StreamPassed => self.stream_passed(now, effects),
            RunEvent::StepJudged(verdict) => self.step_judged(verdict, now, effects),
            RunEvent::ResultJudged(verdict) => self.result_judged(verdict, now, effects),
            RunEvent::Violated(tripwire) => self.violate(tripwire, now, effects),
            RunEvent::HookFailed(error) => self.hook_failed(error, now, effects),
            RunEvent::RetryRequest => self.retry_request(now, effects),
            RunEvent::Tripped { tripwire, error, inputs, messages } => {
                self.note_wake(&inputs, &messages);
                let mut echoes = Vec::new();
                for entry in inputs {
                    // People see it, as after a reload (ruling 34); the `tripwire` says what became of it.
                    echoes.push(entry.signal.echo(&self.settings.run_id));
                    self.reject(entry, &tripwire, now);
                }
                for mut message in messages {
                    mark_blocked(&mut message, &tripwire);
                    self.transcript.add_input(message);
                }
                let ending = match error {
                    _ if self.aborting => {
                        self.mark_aborted();
                        Ending::Aborted
                    }
                    Some(error) => Ending::Failed(error),
                    None => Ending::Tripped(tripwire),
                };
                self.end_with(ending, echoes, now, effects);
            }
            RunEvent::Committed => self.committed(now, effects),
            RunEvent::CommitFailed(error) => self.commit_failed(error, effects),
            RunEvent::Answered { model, warnings } => {
                self.model = model;
                // Nothing of a model that failed before it is kept (LOOP-048).
                self.response = Response::default();
                self.judged.raw = Response::default();
                self.response.warnings = warnings;
                self.start_step(now, effects);
            }
            RunEvent::Model(event) => self.model_event(event, now, effects),
            RunEvent::ModelFailed(error) => {
                if matches!(self.phase, Phase::Requesting) {
                    self.start_step(now, effects);
                    self.fail(error, now, effects);
                }
            }
            RunEvent::InputWaits => self.input_waits(effects),
            RunEvent::ToolDone { index, outcome } => self.tool_done(index, outcome, now, effects),
            RunEvent::Scored(verdict) => self.scored(verdict, now, effects),
            RunEvent::Delegated(record) => self.delegation = record,
            RunEvent::IterationJudged(decision) => self.iteration_judged(decision, now, effects),
            RunEvent::Abort => self.abort(now, effects),
            RunEvent::TimedOut(error) => {
                match self.phase {
                    Phase::Requesting => effects.push(RunEffect::CancelRequest),
                    Phase::Tools => effects.push(RunEffect::CancelTools),
                    Phase::Done | Phase::Committing(AfterCommit::End { .. } | AfterCommit::Park) => return,
                    Phase::Judging(_) => self.leave_judging(effects),
                    _ => {}
                }
                self.fail(error, now, effects);
            }
        }
    }
}
