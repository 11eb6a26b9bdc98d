//! What a completion check does to the loop (SCO §3).

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;
use crate::{
    agent::OnStepLimit,
    chunk::FinishReason,
    json::json,
    message::{Role, StoredMessage},
    scorer::When,
};

/// Iterations that call nothing but these have done no work (SCO-031).
const WORKING_MEMORY_TOOLS: [&str; 3] = ["updateWorkingMemory", "setWorkingMemory", "update-working-memory"];

impl RunMachine {
    /// Whether the step that has ended is judged. `more`: its tools ask for another step.
    pub(super) fn is_scored(&self, more: bool) -> bool {
        let Some(when) = self.settings.completion else { return false };
        // An answer that broke off in an error is none (SCO-031).
        if self.pending_verdict.is_some() || self.reason() == FinishReason::Error {
            return false;
        }
        let remembers_only = !self.calls.is_empty()
            && self.calls.iter().all(|state| WORKING_MEMORY_TOOLS.contains(&state.call.name.as_str()));
        match when {
            When::Stop => !more,
            When::Iteration => !remembers_only,
        }
    }

    /// What the scorers see of it.
    pub(super) fn step_to_score(&self) -> StepToScore {
        let mut tool_results = Vec::new();
        for CallState { call, outcome, .. } in &self.calls {
            let (id, name) = (&call.id, &call.name);
            match outcome {
                Some(ToolOutcome::Result { value, is_error, .. }) => tool_results.push(
                    json!({ "toolCallId": id, "toolName": name, "args": call.args, "result": value, "isError": is_error }),
                ),
                Some(ToolOutcome::Failed(error)) => tool_results.push(
                    json!({ "toolCallId": id, "toolName": name, "args": call.args, "result": error.message, "isError": true }),
                ),
                Some(ToolOutcome::FailedAs { told, .. }) => tool_results.push(
                    json!({ "toolCallId": id, "toolName": name, "args": call.args, "result": told, "isError": true }),
                ),
                _ => {}
            }
        }
        let calls = self
            .calls
            .iter()
            .map(|CallState { call, .. }| json!({ "toolCallId": call.id, "toolName": call.name, "args": call.args }));
        StepToScore {
            text: self.response.text(),
            iteration: self.step_count() + 1,
            last: self.at_limit(),
            tool_calls: calls.collect(),
            tool_results,
            work: self.calls.len() + self.steps.iter().map(|step| step.tool_calls.len()).sum::<usize>(),
        }
    }

    pub(super) fn scored(&mut self, verdict: Verdict, now: Timestamp, effects: &mut Effects) {
        if !matches!(self.phase, Phase::Scoring) {
            return;
        }
        effects.push(self.chunk(Payload::IsTaskComplete(Value::Object(verdict.payload.clone()))));
        let exhausted = self.at_limit();
        let passed = verdict.passed;
        // A failed check makes it a step that would go on; so the other limits have their say (SCO-041).
        let cut = !passed && !exhausted && self.limit().is_some();
        let goes_on = !passed && !exhausted && !cut;
        if goes_on {
            self.transcript.seal();
        }
        if !passed {
            self.add_feedback(&verdict, now);
        }
        self.pending_verdict = Some(verdict);
        let plan = if goes_on { Plan::Again } else { Plan::Last };
        self.judge_iteration(plan, now, effects);
    }

    /// Another step, since the answer did not pass.
    pub(super) fn score_again(&mut self, effects: &mut Effects) {
        self.iteration += 1;
        let was_answer = !self.wants_more();
        self.seal_step(true, None);
        if was_answer {
            self.answer_from = self.steps.len() + 1;
            self.earlier_text.clear();
        }
        let echoes = std::mem::take(&mut self.held_echoes);
        self.phase = Phase::Committing(AfterCommit::NextStep { echoes });
        effects.push(RunEffect::Commit);
    }

    /// The end, after the last look, since judging took a while (D4).
    pub(super) fn end_scored(&mut self, now: Timestamp, effects: &mut Effects) {
        if self.at_limit() && self.settings.on_step_limit == OnStepLimit::FollowUp {
            // What waits gets a run of its own (SIG-204).
            self.seal_step(false, None);
            let echoes = std::mem::take(&mut self.held_echoes);
            return self.end_with(Ending::Finished, echoes, now, effects);
        }
        self.phase = Phase::Draining(DrainPoint::Last);
        effects.push(RunEffect::Drain);
    }

    /// What the check found missing joins the conversation (SCO-042, SCO-043).
    fn add_feedback(&mut self, verdict: &Verdict, now: Timestamp) {
        let Some(feedback) = &verdict.feedback else { return };
        let at = self.transcript.next_time(now);
        let mut message = StoredMessage::text(MessageId::fresh(), Role::Assistant, feedback.clone(), at);
        let metadata = message.content.metadata_mut();
        metadata.insert("mode".to_owned(), json!("stream"));
        let result = json!({ "passed": false, "suppressFeedback": verdict.suppress_feedback });
        metadata.insert("completionResult".to_owned(), result);
        self.transcript.add_feedback(message, !verdict.suppress_feedback);
    }
}
