//! The calls of a step: their outcomes, kept and shown.

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::{
    park::{CLOSED_BY_ABORT, note_pending},
    *,
};
use crate::{
    chunk::ToolResultPayload,
    json::{Object, json},
    model::ToolOutput,
};

impl RunMachine {
    // Tools.

    pub(super) fn tool_done(&mut self, index: usize, outcome: ToolOutcome, now: Timestamp, effects: &mut Effects) {
        // One that comes while an earlier one is being committed is taken in all the same.
        let committing = matches!(self.phase, Phase::Committing(AfterCommit::ToolProgress));
        if !committing && !matches!(self.phase, Phase::Tools) {
            return;
        }
        if self.calls.get(index).is_none_or(|state| state.outcome.is_some()) {
            return;
        }
        let waits = matches!(outcome, ToolOutcome::NotStarted);
        self.settle(index, outcome);
        if waits && self.calls.iter().any(|state| state.outcome.is_none()) {
            // The call it waits behind is about to be told of.
            return;
        }
        if committing {
            self.late_results = true;
        } else {
            self.tools_progressed(now, effects);
        }
    }

    /// Takes in a call's outcome and writes it into the message that holds the call.
    pub(super) fn settle(&mut self, index: usize, outcome: ToolOutcome) {
        let run_id = self.settings.run_id.clone();
        let Some(state) = self.calls.get_mut(index) else { return };
        let approved = matches!(state.resume, Some(ToolResume::Approved));
        if let Some(message) = self.transcript.with_call(&state.call.id) {
            settle(message, &state.call.id, &outcome, approved);
            if let ToolOutcome::Parked(parked) = &outcome {
                note_pending(message, parked, &run_id);
            }
        }
        state.outcome = Some(outcome);
    }

    /// Commits what has finished, or goes on once all calls have.
    pub(super) fn tools_progressed(&mut self, now: Timestamp, effects: &mut Effects) {
        self.late_results = false;
        if self.calls.iter().any(|state| state.outcome.is_none()) {
            self.phase = Phase::Committing(AfterCommit::ToolProgress);
            effects.push(RunEffect::Commit);
            return;
        }
        if self.aborting {
            self.show_results(effects);
            self.close_parked(CLOSED_BY_ABORT, effects);
            return self.end_aborted(now, effects);
        }
        if self.waits_for_people() {
            return self.park(effects);
        }
        self.show_results(effects);
        self.boundary(now, effects);
    }

    /// Results in call order, after the last call has finished (LOOP-065, LOOP-073).
    pub(super) fn show_results(&mut self, effects: &mut Effects) {
        for state in &mut self.calls {
            if state.shown {
                continue;
            }
            if let Some(payload) = state.result() {
                state.shown = true;
                effects.push(RunEffect::Emit(Chunk::agent(&self.settings.run_id, payload)));
            }
        }
    }
}

impl CallState {
    /// The chunk of its outcome, if it has one to show.
    pub(super) fn result(&self) -> Option<Payload> {
        let call = &self.call;
        match &self.outcome {
            Some(ToolOutcome::Result { value, is_error, model_output }) => {
                Some(Payload::ToolResult(ToolResultPayload {
                    args: call.args.clone(),
                    tool_call_id: call.id.clone(),
                    tool_name: call.name.clone(),
                    result: value.clone(),
                    is_error: is_error.then_some(true),
                    provider_executed: None,
                    provider_metadata: model_output.as_ref().map(model_output_metadata),
                }))
            }
            Some(ToolOutcome::Failed(error) | ToolOutcome::FailedAs { error, .. }) => Some(Payload::ToolError {
                tool_call_id: call.id.clone(),
                tool_name: call.name.clone(),
                args: Some(call.payload().args),
                error: error.clone(),
                provider_executed: None,
            }),
            Some(ToolOutcome::Denied { reason }) => Some(Payload::ToolOutputDenied {
                tool_call_id: call.id.clone(),
                tool_name: call.name.clone(),
                args: Some(call.payload().args),
                approval: json!({ "id": call.id, "approved": false, "reason": reason }),
            }),
            Some(ToolOutcome::Client | ToolOutcome::Interrupted | ToolOutcome::Parked(_) | ToolOutcome::NotStarted)
            | None => None,
        }
    }
}

pub(in crate::run) fn model_output_metadata(output: &ToolOutput) -> Object {
    let mut metadata = Object::new();
    metadata.insert("mastra".to_owned(), json!({ "modelOutput": output }));
    metadata
}

/// Writes a call's outcome into the message that holds the call.
fn settle(message: &mut StoredMessage, id: &str, outcome: &ToolOutcome, approved: bool) {
    let part = message.content.parts.iter_mut().rev().find_map(|part| match part {
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
        ToolOutcome::FailedAs { told, result, .. } => {
            call.state = ToolState::OutputError;
            call.error_text = Some(told.clone());
            call.result = Some(result.clone());
        }
        ToolOutcome::Denied { reason } => {
            call.state = ToolState::OutputDenied;
            call.approval = Some(json!({ "id": id, "approved": false, "reason": reason }));
        }
        ToolOutcome::Client | ToolOutcome::Interrupted | ToolOutcome::Parked(_) | ToolOutcome::NotStarted => return,
    }
    if approved {
        call.approval = Some(json!({ "id": id, "approved": true }));
    }
}
