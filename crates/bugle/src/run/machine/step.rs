//! A step: commits, the request, the response, the boundary.

use std::collections::VecDeque;

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::{park::CLOSED_BY_ABORT, *};
use crate::{
    agent::OnStepLimit,
    chunk::{ChunkBody, ErrorInfo, FinishReason},
    json::{Object, json},
    model::ModelEvent,
};

impl RunMachine {
    // Commits.

    pub(super) fn committed(&mut self, now: Timestamp, effects: &mut Effects) {
        let Phase::Committing(after) = std::mem::replace(&mut self.phase, Phase::New) else { return };
        match after {
            AfterCommit::Request { echoes } | AfterCommit::NextStep { echoes } if self.aborting => {
                self.show_echoes(echoes, effects);
                self.end_aborted(now, effects);
            }
            AfterCommit::RunTools if self.aborting => {
                self.close_parked(CLOSED_BY_ABORT, effects);
                self.end_aborted(now, effects);
            }
            AfterCommit::Request { echoes } => {
                self.show_echoes(echoes, effects);
                self.request(effects);
            }
            AfterCommit::RunTools => {
                self.phase = Phase::Tools;
                if self.step_resumed {
                    self.show_results(effects);
                    self.acknowledge(effects);
                    self.hold_back();
                }
                let runs = self.calls.iter().enumerate().filter(|(_, state)| state.outcome.is_none());
                let runs: Vec<ToolRun> = runs
                    .map(|(index, state)| ToolRun {
                        index,
                        id: state.call.id.clone(),
                        name: state.call.name.clone(),
                        args: state.call.args.clone(),
                        resume: state.resume.clone(),
                    })
                    .collect();
                if runs.is_empty() {
                    // All that the step still had to do was decided.
                    return self.tools_progressed(now, effects);
                }
                effects.push(RunEffect::RunTools(runs));
            }
            AfterCommit::ToolProgress => {
                self.phase = Phase::Tools;
                if self.step_resumed {
                    // Part of the step was shown before it was parked: the rest as it becomes known (LOOP-096).
                    self.show_results(effects);
                }
                if self.late_results {
                    self.tools_progressed(now, effects);
                }
            }
            AfterCommit::Park => self.parked(effects),
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

    pub(super) fn commit_failed(&mut self, error: ErrorInfo, effects: &mut Effects) {
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
            | AfterCommit::ToolProgress
            | AfterCommit::Park => {
                effects.push(self.chunk(Payload::Error { error: error.clone() }));
                effects.push(RunEffect::End(Ending::Failed(error)));
            }
        }
    }

    pub(super) fn show_echoes(&mut self, echoes: Vec<Chunk>, effects: &mut Effects) {
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

    pub(super) fn show_start(&mut self, effects: &mut Effects) {
        if !self.started {
            self.started = true;
            let start = Payload::Start { id: self.settings.agent_id.clone(), message_id: self.message_id.clone() };
            effects.push(self.chunk(start));
        }
    }

    // The request.

    pub(super) fn request(&mut self, effects: &mut Effects) {
        self.response = Response::default();
        self.calls.clear();
        self.iteration_judged = false;
        self.step_resumed = false;
        self.step_started = false;
        self.step_result = None;
        if let Some(structured) = &mut self.structured {
            structured.reset();
        }
        self.phase = Phase::Requesting;
        effects.push(RunEffect::Request);
    }

    pub(super) fn start_step(&mut self, now: Timestamp, effects: &mut Effects) {
        if self.step_started {
            return;
        }
        self.step_started = true;
        self.judged.shown_id = Some(self.message_id.clone());
        effects.push(self.chunk(Payload::StepStart {
            message_id: self.message_id.clone(),
            started_at: now.as_millis(),
            request: Object::new(),
            warnings: self.response.warnings.clone(),
        }));
    }

    pub(super) fn model_event(&mut self, event: ModelEvent, now: Timestamp, effects: &mut Effects) {
        if !matches!(self.phase, Phase::Requesting) {
            return;
        }
        self.start_step(now, effects);
        if self.settings.judges.stream && !self.judged.bypass {
            return self.raw_event(event, effects);
        }
        let finished = matches!(event, ModelEvent::Finish { .. });
        let step = self.step_count() + 1;
        let transcript = &self.transcript;
        let unique = |id: &str| {
            let mut own = if transcript.has_call(id) { format!("{id}#{step}") } else { id.to_owned() };
            while transcript.has_call(&own) {
                own.push('+');
            }
            own
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

    pub(super) fn response_complete(&mut self, now: Timestamp, effects: &mut Effects) {
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
        if !self.judge_step(effects) {
            self.accept_step(now, effects);
        }
    }

    /// The response counts: it is kept, and its calls run.
    pub(super) fn accept_step(&mut self, now: Timestamp, effects: &mut Effects) {
        let calls: Vec<Call> = self.response.calls().filter(|call| !call.provider_executed).cloned().collect();
        self.step_accepted();
        self.keep_response(true, now);
        if calls.is_empty() {
            return self.boundary(now, effects);
        }
        self.calls = calls.into_iter().map(CallState::new).collect();
        if self.last_turn {
            return self.refuse_calls(now, effects);
        }
        self.phase = Phase::Committing(AfterCommit::RunTools);
        effects.push(RunEffect::Commit);
    }

    /// Writes the response into the answer under construction.
    pub(super) fn keep_response(&mut self, calls: bool, now: Timestamp) {
        if self.response.is_empty() && self.response.calls().next().is_none() && self.response.reasoning().is_empty() {
            return;
        }
        let model = format!("{}/{}", self.model.provider, self.model.model);
        let (provider, model_id) = (self.model.provider.clone(), self.model.model.clone());
        let message_id = self.message_id.clone();
        let answer = self.transcript.answer(&message_id, now);
        self.judged.kept_from = Some(answer.content.parts.len());
        let after_tool = answer.content.parts.iter().any(|part| matches!(part, Part::ToolInvocation(_)));
        let parts = self.response.parts(calls, after_tool, &model, now);
        answer.content.parts.extend(parts);
        let metadata = answer.content.metadata_mut();
        metadata.insert("modelId".to_owned(), model_id.into());
        metadata.insert("provider".to_owned(), provider.into());
    }
}

impl RunMachine {
    // The end of a step.

    pub(super) fn boundary(&mut self, now: Timestamp, effects: &mut Effects) {
        let follow_up = self.at_limit() && self.settings.on_step_limit == OnStepLimit::FollowUp;
        if follow_up || self.is_last_turn() {
            // What waits gets a run of its own with a fresh budget (SIG-204).
            self.phase = Phase::Draining(DrainPoint::Boundary);
            return self.after_boundary(false, Vec::new(), now, effects);
        }
        self.phase = Phase::Draining(DrainPoint::Boundary);
        effects.push(RunEffect::Drain);
    }

    pub(super) fn at_limit(&self) -> bool {
        self.step_count() + 1 >= self.settings.max_steps
    }

    pub(super) fn wants_more(&self) -> bool {
        let ran_tools = self.calls.iter().any(|state| !matches!(state.outcome, Some(ToolOutcome::Client)));
        let reason = self.response.finish.as_ref().map_or(FinishReason::Stop, |finish| finish.reason);
        match reason {
            FinishReason::Length | FinishReason::ContentFilter | FinishReason::Error => false,
            FinishReason::Stop => ran_tools,
            _ => true,
        }
    }

    pub(super) fn after_boundary(&mut self, took_in: bool, echoes: Vec<Chunk>, now: Timestamp, effects: &mut Effects) {
        let waits_for_client = self.calls.iter().any(|state| matches!(state.outcome, Some(ToolOutcome::Client)));
        if self.is_last_turn() {
            return self.judge_iteration(Plan::End { took_in, cause: None, echoes }, now, effects);
        }
        let more = self.wants_more() && !waits_for_client;
        if !took_in && !waits_for_client && self.is_scored(more) {
            self.held_echoes = echoes;
            self.phase = Phase::Scoring;
            effects.push(RunEffect::Score(Box::new(self.step_to_score())));
            return;
        }
        if took_in || more {
            return self.go_on(took_in, echoes, now, effects);
        }
        self.judge_iteration(Plan::End { took_in: false, cause: None, echoes }, now, effects);
    }

    /// Which limit says that no step may follow.
    pub(super) fn limit(&self) -> Option<&'static str> {
        if self.at_limit() {
            return Some("max-steps");
        }
        if self.settings.stop_when.is_empty() {
            return None;
        }
        let mut finished = self.steps.clone();
        finished.push(self.summary(self.reason()));
        self.settings.stop_when.iter().any(|stop| stop.is_met(&finished)).then_some("stop-when")
    }

    /// Another step, unless a limit says no.
    pub(super) fn go_on(&mut self, took_in: bool, echoes: Vec<Chunk>, now: Timestamp, effects: &mut Effects) {
        let plan = match self.limit() {
            None => Plan::Next { took_in, echoes },
            cause => Plan::End { took_in, cause, echoes },
        };
        self.judge_iteration(plan, now, effects);
    }

    pub(super) fn reason(&self) -> FinishReason {
        match self.response.finish.as_ref() {
            Some(finish) if finish.reason == FinishReason::Stop && !self.calls.is_empty() => FinishReason::ToolCalls,
            Some(finish) => finish.reason,
            None => FinishReason::Error,
        }
    }
}
