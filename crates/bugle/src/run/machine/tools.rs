//! The calls of a step: their outcomes, kept and shown.

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;
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
    pub(super) fn tools_progressed(&mut self, now: Timestamp, effects: &mut Effects) {
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
    pub(super) fn show_results(&mut self, effects: &mut Effects) {
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
                Some(ToolOutcome::Failed(error) | ToolOutcome::FailedAs { error, .. }) => Payload::ToolError {
                    tool_call_id: call.id.clone(),
                    tool_name: call.name.clone(),
                    args: Some(call.payload().args),
                    error: error.clone(),
                    provider_executed: None,
                },
                _ => continue,
            };
            effects.push(RunEffect::Emit(Chunk::agent(&self.settings.run_id, payload)));
        }
    }
}

pub(in crate::run) fn model_output_metadata(output: &ToolOutput) -> Object {
    let mut metadata = Object::new();
    metadata.insert("mastra".to_owned(), json!({ "modelOutput": output }));
    metadata
}

/// Writes a call's outcome into the answer.
pub(super) fn settle(answer: Option<&mut StoredMessage>, id: &str, outcome: &ToolOutcome) {
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
        ToolOutcome::FailedAs { told, result, .. } => {
            call.state = ToolState::OutputError;
            call.error_text = Some(told.clone());
            call.result = Some(result.clone());
        }
        _ => {}
    }
}
