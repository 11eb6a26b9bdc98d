//! The end of an iteration: what the loop would do, and what the hook says about it (SUB §10).

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;
use crate::{
    chunk::{ErrorInfo, FinishReason},
    json::json,
    message::Role,
    subagent::{IterationComplete, IterationDecision, IterationToolCall, IterationToolResult},
};

/// Told to a model that is asked again after its last word without being told why: providers refuse a conversation that
/// ends with the model's own words.
const GO_ON: &str = "Go on with the task.";

/// What the loop does next.
#[derive(Debug)]
pub(super) enum Plan {
    /// Another step.
    Next { took_in: bool, echoes: Vec<Chunk> },
    /// Another step, since the answer did not pass.
    Again,
    /// The end, unless input has come while the answer was scored (D4).
    Last,
    /// The end, and the limit that cut the run.
    End { took_in: bool, cause: Option<&'static str>, echoes: Vec<Chunk> },
}

impl Plan {
    fn is_final(&self) -> bool {
        matches!(self, Self::Last | Self::End { .. })
    }

    pub(super) fn into_echoes(self) -> Vec<Chunk> {
        match self {
            Self::Next { echoes, .. } | Self::End { echoes, .. } => echoes,
            // Theirs are held apart.
            Self::Again | Self::Last => Vec::new(),
        }
    }
}

impl RunMachine {
    /// Whether the loop ends with this step whatever it holds: a delegation's hook bailed (SUB-081), or the turn was
    /// the last one granted (SUB-111).
    pub(super) fn is_last_turn(&self) -> bool {
        self.delegation.bailed || self.last_turn
    }

    /// Whether the request under way offers tools.
    pub(crate) fn offers_tools(&self) -> bool {
        !self.last_turn
    }

    /// Asks the hook, if there is one, and does what comes of it.
    pub(super) fn judge_iteration(&mut self, plan: Plan, now: Timestamp, effects: &mut Effects) {
        if !self.settings.has_iteration_hook || self.iteration_judged {
            return self.perform(plan, now, effects);
        }
        let iteration = self.iteration_complete(plan.is_final());
        self.phase = Phase::Judging(plan);
        effects.push(RunEffect::IterationEnded(Box::new(iteration)));
    }

    /// The hook is not waited for any longer: what was taken in is shown.
    pub(super) fn leave_judging(&mut self, effects: &mut Effects) {
        if let Phase::Judging(plan) = std::mem::replace(&mut self.phase, Phase::New) {
            let mut echoes = std::mem::take(&mut self.held_echoes);
            echoes.extend(plan.into_echoes());
            self.show_echoes(echoes, effects);
        }
    }

    fn iteration_complete(&self, is_final: bool) -> IterationComplete {
        let calls = self.calls.iter();
        let results = self.calls.iter().filter_map(|state| {
            let result = match state.outcome.as_ref()? {
                ToolOutcome::Result { value, .. } => value.clone(),
                ToolOutcome::Failed(error) => error.message.clone().into(),
                ToolOutcome::FailedAs { told, .. } => told.clone().into(),
                _ => return None,
            };
            Some(IterationToolResult { id: state.call.id.clone(), name: state.call.name.clone(), result })
        });
        IterationComplete {
            iteration: self.turn(),
            max_iterations: self.settings.given_steps,
            finish_reason: self.reason(),
            text: self.response.text(),
            tool_calls: calls
                .map(|state| IterationToolCall {
                    id: state.call.id.clone(),
                    name: state.call.name.clone(),
                    args: state.call.args.clone().unwrap_or_default(),
                })
                .collect(),
            tool_results: results.collect(),
            is_final,
            run_id: self.settings.run_id.clone(),
            thread: self.transcript.thread().cloned(),
            agent_id: self.settings.agent_id.clone(),
            agent_name: self.settings.agent_name.clone(),
            messages: self.transcript.messages().to_vec(),
        }
    }

    /// SUB-111, cell by cell; SUB-112 for the limits.
    pub(super) fn iteration_judged(&mut self, decision: IterationDecision, now: Timestamp, effects: &mut Effects) {
        let Phase::Judging(plan) = std::mem::replace(&mut self.phase, Phase::New) else { return };
        self.iteration_judged = true;
        let IterationDecision { proceed, feedback } = decision;
        let feedback = feedback.filter(|text| !text.trim().is_empty());
        let waits_for_client = self.calls.iter().any(|state| matches!(state.outcome, Some(ToolOutcome::Client)));
        if self.is_last_turn() || waits_for_client {
            return self.perform(plan, now, effects);
        }
        let may_go_on = self.turn() < self.settings.hard_steps;
        let plan = match plan {
            Plan::Next { took_in, echoes } if proceed == Some(false) => match feedback {
                // One more turn to say so in words.
                Some(feedback) if !self.calls.is_empty() && may_go_on => {
                    self.add_iteration_feedback(feedback, now);
                    self.last_turn = true;
                    Plan::Next { took_in, echoes }
                }
                _ => Plan::End { took_in, cause: None, echoes },
            },
            Plan::Again if proceed == Some(false) => {
                Plan::End { took_in: false, cause: None, echoes: std::mem::take(&mut self.held_echoes) }
            }
            Plan::Next { took_in, echoes } => {
                if let Some(feedback) = feedback {
                    self.add_iteration_feedback(feedback, now);
                }
                Plan::Next { took_in, echoes }
            }
            Plan::Again => {
                // Beside what the check has said.
                if let Some(feedback) = feedback {
                    self.add_iteration_feedback(feedback, now);
                }
                Plan::Again
            }
            plan @ (Plan::End { .. } | Plan::Last) if proceed == Some(true) && may_go_on => {
                match feedback {
                    Some(feedback) => self.add_iteration_feedback(feedback, now),
                    None if self.calls.is_empty() => self.add_nudge(now),
                    None => {}
                }
                match plan {
                    Plan::Last if self.pending_verdict.as_ref().is_some_and(|verdict| !verdict.passed) => {
                        self.transcript.seal();
                        Plan::Again
                    }
                    Plan::Last => Plan::Next { took_in: false, echoes: std::mem::take(&mut self.held_echoes) },
                    Plan::End { took_in, echoes, .. } => Plan::Next { took_in, echoes },
                    plan => plan,
                }
            }
            plan => plan,
        };
        self.perform(plan, now, effects);
    }

    pub(super) fn perform(&mut self, plan: Plan, now: Timestamp, effects: &mut Effects) {
        match plan {
            Plan::Next { took_in, echoes } => {
                self.seal_step(true, None);
                if took_in && let Some(result) = &mut self.step_result {
                    // Taken in although the model had finished (SIG-201).
                    if result.reason == FinishReason::Stop {
                        result.reason = FinishReason::Other;
                    }
                    result.message_id = Some(self.message_id.clone());
                }
                if self.step_resumed
                    && let Some(result) = &mut self.step_result
                {
                    // The parked message is closed; the next step has another (LOOP-111).
                    result.message_id = Some(self.message_id.clone());
                }
                self.phase = Phase::Committing(AfterCommit::NextStep { echoes });
                effects.push(RunEffect::Commit);
            }
            Plan::Again => self.score_again(effects),
            Plan::Last => self.end_scored(now, effects),
            Plan::End { took_in, cause, echoes } => {
                if took_in {
                    // Stored, and not answered (SIG-203, SIG-204).
                    let taken = self.to_consume.iter().map(|entry| entry.signal.id.clone());
                    self.unanswered.extend(taken);
                }
                let cause = cause.filter(|_| self.wants_more());
                self.seal_step(false, cause);
                if took_in
                    && let Some(result) = &mut self.step_result
                    && result.reason == FinishReason::Stop
                {
                    result.reason = FinishReason::Other;
                }
                self.end_with(Ending::Finished, echoes, now, effects);
            }
        }
    }

    /// Feedback that the model reads on the user's side, kept in the thread, which a UI may hide; what follows is another
    /// answer (SUB-113, ruling 10).
    fn add_iteration_feedback(&mut self, feedback: String, now: Timestamp) {
        self.begin_next_answer();
        let message = self.hidden(feedback, now);
        self.transcript.add_feedback(message, true);
    }

    /// A message with the metadata by which prompts put it on the user's side and clients leave it out.
    fn hidden(&self, text: String, now: Timestamp) -> StoredMessage {
        let at = self.transcript.next_time(now);
        let mut message = StoredMessage::text(MessageId::fresh(), Role::Assistant, text, at);
        if let Some(thread) = self.transcript.thread() {
            message = message.on(thread);
        }
        let metadata = message.content.metadata_mut();
        metadata.insert("mode".to_owned(), "stream".into());
        metadata.insert("completionResult".to_owned(), json!({ "suppressFeedback": true }));
        message
    }

    fn add_nudge(&mut self, now: Timestamp) {
        self.begin_next_answer();
        let at = self.transcript.next_time(now);
        self.transcript.add_feedback(StoredMessage::text(MessageId::fresh(), Role::User, GO_ON, at), false);
    }

    fn begin_next_answer(&mut self) {
        // Input that was taken in has ended the answer already.
        if self.transcript.seal() {
            self.next_message_id = Some(MessageId::fresh());
        }
    }

    /// A model called tools in a turn that offers none: nothing runs, and the calls have results all the same.
    pub(super) fn refuse_calls(&mut self, now: Timestamp, effects: &mut Effects) {
        for at in 0..self.calls.len() {
            let error = ErrorInfo::new("ToolNotOffered", "no tools are offered in this turn");
            self.settle(at, ToolOutcome::Failed(error));
        }
        self.show_results(effects);
        self.boundary(now, effects);
    }

    /// What delegations told the parent's next turn, after all the run says: this run's model does not see it (SUB-082).
    pub(super) fn keep_delegation_feedback(&mut self, now: Timestamp) {
        for feedback in std::mem::take(&mut self.delegation.feedback) {
            let message = self.hidden(feedback, now);
            self.transcript.add_feedback(message, true);
        }
    }
}
