//! What processors do to the loop: chunks that pass hooks before they count, steps and results that are judged, retries,
//! tripwires, signals that hooks place (PROC §4, §5, §6, §8).

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;
use crate::{
    chunk::{ChunkBody, ErrorInfo, FinishReason, TripwirePayload},
    json::json,
    message::Role,
    model::ModelEvent,
    run::response::Response,
};

/// What of the loop only runs with processors need.
#[derive(Debug, Default)]
pub(super) struct Judged {
    /// The response as the model gives it, while what hooks pass on is what counts (PROC-070).
    pub(super) raw: Response,
    /// The response under way does not pass stream hooks: it comes from a cache (PROC-014).
    pub(super) bypass: bool,
    /// Tries of the step under way that a processor asked for.
    pub(super) retries: u32,
    /// Feedback that goes with the next accepted step (PROC-055 a).
    feedback: Vec<MessageId>,
    /// The step's answer has an id that a processor gave it; this is the next one's.
    pub(super) own_message_id: Option<MessageId>,
    /// The id under which the response under way is shown.
    pub(super) shown_id: Option<MessageId>,
    /// The step under way was rejected: it is summed up so.
    pub(super) rejected: Option<TripwirePayload>,
    /// How many parts the open answer had before the last response was kept.
    pub(super) kept_from: Option<usize>,
    result_done: bool,
    /// What a processor made of the answer.
    pub(super) text: Option<String>,
    pub(super) object: Option<Value>,
}

/// What is being judged.
#[derive(Debug)]
pub(super) enum Guarding {
    /// A response, before its tools run.
    Step,
    /// The run's answer, before its last write.
    Result { echoes: Vec<Chunk> },
}

/// What processors say of a step.
#[derive(Debug)]
pub(crate) enum StepVerdict {
    /// It counts; with another text or other thoughts if they are given.
    Pass { text: Option<String>, reasoning: Option<String> },
    /// It does not count; a tripwire may ask for another try.
    Stop(TripwirePayload),
    /// A processor broke.
    Failed(ErrorInfo),
}

/// What processors say of the answer.
#[derive(Debug)]
pub(crate) enum ResultVerdict {
    /// It is given, changed where something is given here.
    Pass { text: Option<String>, object: Option<Value>, messages: Vec<StoredMessage> },
    /// It is not given.
    Stop(TripwirePayload),
    /// A processor broke.
    Failed(ErrorInfo),
}

impl RunMachine {
    // The stream.

    /// An event of a response whose chunks pass hooks before they count.
    pub(super) fn raw_event(&mut self, event: ModelEvent, effects: &mut Effects) {
        let finished = matches!(event, ModelEvent::Finish { .. });
        let step = self.step_count() + 1;
        let transcript = &self.transcript;
        let unique = |id: &str| {
            if transcript.has_call(id) { format!("{id}#{step}") } else { id.to_owned() }
        };
        for payload in self.judged.raw.take(event, unique) {
            effects.push(RunEffect::Filter(Chunk::agent(&self.settings.run_id, payload)));
        }
        if finished {
            effects.push(RunEffect::FlushStream);
        }
    }

    /// Takes in a chunk that has passed the hooks and is about to be shown; gives what is to be shown after it.
    pub(crate) fn passed(&mut self, chunk: &Chunk) -> Option<Chunk> {
        if !matches!(self.phase, Phase::Requesting) {
            return None;
        }
        let payload = chunk.payload()?;
        self.response.record(payload, &self.judged.raw);
        match payload {
            Payload::File { .. } => self.files.push(chunk.clone()),
            Payload::Source(_) => self.sources.push(chunk.clone()),
            Payload::TextDelta { text, .. } => {
                let partial = self.structured.as_mut()?.push(text)?;
                return Some(Chunk::with_body(&self.settings.run_id, ChunkBody::Object(partial)));
            }
            _ => {}
        }
        None
    }

    /// All of the response has passed.
    pub(super) fn stream_passed(&mut self, now: Timestamp, effects: &mut Effects) {
        if !matches!(self.phase, Phase::Requesting) {
            return;
        }
        let raw = std::mem::take(&mut self.judged.raw);
        self.response.finish = raw.finish;
        self.response.metadata = raw.metadata;
        for payload in self.response.close_all() {
            effects.push(self.chunk(payload));
        }
        self.response_complete(now, effects);
    }

    // Steps.

    /// Has the step judged, if anybody judges steps.
    pub(super) fn judge_step(&mut self, effects: &mut Effects) -> bool {
        if !self.settings.judges.step {
            return false;
        }
        self.phase = Phase::Guarding(Guarding::Step);
        effects.push(RunEffect::JudgeStep);
        true
    }

    pub(super) fn step_judged(&mut self, verdict: StepVerdict, now: Timestamp, effects: &mut Effects) {
        if !matches!(self.phase, Phase::Guarding(Guarding::Step)) {
            return;
        }
        match verdict {
            StepVerdict::Pass { text, reasoning } => {
                if let Some(text) = text {
                    self.response.rewrite_text(&text);
                }
                if let Some(reasoning) = reasoning {
                    self.response.rewrite_reasoning(&reasoning);
                }
                self.accept_step(now, effects);
            }
            StepVerdict::Stop(tripwire) => {
                let allowed = self.settings.judges.retries.unwrap_or(0);
                if tripwire.retry && self.judged.retries < allowed && !self.at_limit() {
                    return self.retry_step(tripwire, now, effects);
                }
                if tripwire.retry {
                    tracing::warn!(
                        processor = tripwire.processor_id,
                        allowed,
                        "a step is not tried again: no retries (maxProcessorRetries) or steps are left"
                    );
                }
                self.violate(tripwire, now, effects);
            }
            StepVerdict::Failed(error) => {
                self.drop_response(&error.message, None, effects);
                self.fail(error, now, effects);
            }
        }
    }

    /// An accepted step takes the feedback with it (PROC-055 a).
    pub(super) fn step_accepted(&mut self) {
        self.judged.retries = 0;
        self.judged.kept_from = Some(self.transcript.open_answer_parts());
        for id in std::mem::take(&mut self.judged.feedback) {
            self.transcript.remove_message(&id);
        }
    }

    /// The step counts and is taken back (PROC-054).
    fn retry_step(&mut self, tripwire: TripwirePayload, now: Timestamp, effects: &mut Effects) {
        self.retract(&tripwire.reason, Some(&tripwire.processor_id), effects);
        self.seal_step(true, None);
        if let Some(result) = &mut self.step_result {
            result.reason = FinishReason::Retry;
        }
        let at = self.transcript.next_time(now);
        let text = format!("[Processor Feedback] {}", tripwire.reason);
        let mut message = StoredMessage::text(MessageId::fresh(), Role::User, text, at);
        let feedback = json!({ "processorId": tripwire.processor_id });
        message.content.metadata_mut().insert("processorFeedback".to_owned(), feedback);
        self.judged.feedback.push(message.id.clone());
        self.transcript.add_feedback(message, false);
        self.judged.retries += 1;
        self.judged.rejected = Some(tripwire);
        self.phase = Phase::Committing(AfterCommit::NextStep { echoes: Vec::new() });
        effects.push(RunEffect::Commit);
    }

    /// Tells clients to take back what was shown of the response (PROC-055 d).
    fn retract(&mut self, reason: &str, processor: Option<&str>, effects: &mut Effects) {
        self.close_shown(reason, effects);
        if self.response.is_empty() {
            return;
        }
        self.tell_retracted(reason, processor, effects);
        if self.transcript.open_answer_parts() == 0 {
            // Nothing else is under the id: the next try has one of its own.
            self.message_id = MessageId::fresh();
        }
    }

    /// The end of all that clients have seen open.
    fn close_shown(&mut self, reason: &str, effects: &mut Effects) {
        for payload in self.response.close_all() {
            effects.push(self.chunk(payload));
        }
        for call in self.response.calls().filter(|call| !call.provider_executed) {
            effects.push(self.chunk(rejected_call(call, reason)));
        }
    }

    fn tell_retracted(&self, reason: &str, processor: Option<&str>, effects: &mut Effects) {
        // A signal that was sent since may have moved the answer on (PROC-081).
        let data = json!({
            "messageId": self.judged.shown_id.as_ref().unwrap_or(&self.message_id),
            "stepNumber": self.step_count(),
            "reason": reason,
            "processorId": processor,
        });
        effects.push(RunEffect::Emit(Chunk::transient_data(&self.settings.run_id, "data-retract", data)));
    }

    /// What was shown of the response is closed, and nothing of it is kept. Of a processor that has rejected it, clients
    /// are told to take it back (PROC-055 d).
    fn drop_response(&mut self, reason: &str, rejected: Option<&TripwirePayload>, effects: &mut Effects) {
        self.close_shown(reason, effects);
        if let Some(tripwire) = rejected.filter(|_| !self.response.is_empty()) {
            self.tell_retracted(&tripwire.reason, Some(&tripwire.processor_id), effects);
        }
        self.response = Response::default();
        self.judged.raw = Response::default();
        self.calls.clear();
    }

    // Stops.

    /// A processor stops the run, in whichever hook (PROC-051).
    pub(super) fn violate(&mut self, tripwire: TripwirePayload, now: Timestamp, effects: &mut Effects) {
        match self.phase {
            Phase::Done | Phase::New => return,
            Phase::Requesting => effects.push(RunEffect::CancelRequest),
            Phase::Tools | Phase::Committing(AfterCommit::ToolProgress) => effects.push(RunEffect::CancelTools),
            _ => {}
        }
        let reason = format!("rejected by {}", tripwire.processor_id);
        let in_tools = self.calls.iter().any(|state| state.outcome.is_none());
        if in_tools {
            // The calls are on record: they have an outcome, and it is not the rejected one (PROC-052).
            for at in 0..self.calls.len() {
                if self.calls[at].outcome.is_some() {
                    continue;
                }
                let call = self.calls[at].call.clone();
                let outcome = ToolOutcome::Failed(ErrorInfo::new("ProcessorTripwire", reason.clone()));
                self.settle(at, outcome);
                effects.push(self.chunk(rejected_call(&call, &reason)));
            }
            self.response = Response::default();
        } else if self.calls.is_empty() {
            self.drop_response(&reason, Some(&tripwire), effects);
        }
        if self.aborting {
            return self.end_aborted(now, effects);
        }
        self.end(Ending::Tripped(tripwire), now, effects);
    }

    /// A processor broke, and nothing unjudged passes (PROC-056).
    pub(super) fn hook_failed(&mut self, error: ErrorInfo, now: Timestamp, effects: &mut Effects) {
        match self.phase {
            Phase::Done | Phase::New => return,
            Phase::Requesting => effects.push(RunEffect::CancelRequest),
            Phase::Tools | Phase::Committing(AfterCommit::ToolProgress) => effects.push(RunEffect::CancelTools),
            _ => {}
        }
        if self.aborting {
            return self.end_aborted(now, effects);
        }
        self.fail(error, now, effects);
    }

    /// A failed request is asked again: the same step, nothing of the failed try kept (PROC-061).
    pub(super) fn retry_request(&mut self, now: Timestamp, effects: &mut Effects) {
        if !matches!(self.phase, Phase::Requesting) {
            return;
        }
        self.start_step(now, effects);
        self.retract("the request failed and is tried again", None, effects);
        self.response = Response::default();
        self.judged.raw = Response::default();
        self.judged.retries += 1;
        let summary = self.summary(FinishReason::Retry);
        let result = StepResult {
            reason: FinishReason::Retry,
            raw_reason: None,
            is_continued: true,
            warnings: Vec::new(),
            message_id: None,
            stop_cause: None,
        };
        let payload = self.finish_payload(&summary, result);
        effects.push(self.chunk(Payload::StepFinish(Box::new(payload))));
        if let Some(structured) = &mut self.structured {
            structured.reset();
        }
        self.step_started = false;
        self.phase = Phase::Draining(DrainPoint::Entry);
        effects.push(RunEffect::Drain);
    }

    // The result.

    /// Has the answer judged, once, if anybody judges it.
    pub(super) fn judge_result(&mut self, ending: &Ending, echoes: &mut Vec<Chunk>, effects: &mut Effects) -> bool {
        if *ending != Ending::Finished || !self.settings.judges.result || self.judged.result_done {
            return false;
        }
        self.judged.result_done = true;
        self.phase = Phase::Guarding(Guarding::Result { echoes: std::mem::take(echoes) });
        effects.push(RunEffect::JudgeResult);
        true
    }

    pub(super) fn result_judged(&mut self, verdict: ResultVerdict, now: Timestamp, effects: &mut Effects) {
        if !matches!(self.phase, Phase::Guarding(Guarding::Result { .. })) {
            return;
        }
        let Phase::Guarding(Guarding::Result { echoes }) = std::mem::replace(&mut self.phase, Phase::Scoring) else {
            return;
        };
        match verdict {
            ResultVerdict::Pass { text, object, messages } => {
                self.judged.text = text;
                for message in messages {
                    self.transcript.replace_message(message);
                }
                if let Some(object) = object {
                    if let Some(answer) = self.transcript.open_answer() {
                        answer.content.metadata_mut().insert("structuredOutput".to_owned(), object.clone());
                    }
                    let body = ChunkBody::ObjectResult(object.clone());
                    effects.push(RunEffect::Emit(Chunk::with_body(&self.settings.run_id, body)));
                    self.judged.object = Some(object);
                }
                self.end_with(Ending::Finished, echoes, now, effects);
            }
            ResultVerdict::Stop(tripwire) => {
                if let Some(kept) = self.judged.kept_from {
                    self.transcript.truncate_open_answer(kept);
                    if !self.response.is_empty() {
                        self.tell_retracted(&tripwire.reason, Some(&tripwire.processor_id), effects);
                    }
                }
                self.response = Response::default();
                self.end_with(Ending::Tripped(tripwire), echoes, now, effects);
            }
            ResultVerdict::Failed(error) => {
                self.keep_error(&error, now);
                self.end_with(Ending::Failed(error), echoes, now, effects);
            }
        }
    }
}

fn rejected_call(call: &Call, reason: &str) -> Payload {
    Payload::ToolError {
        tool_call_id: call.id.clone(),
        tool_name: call.name.clone(),
        args: Some(call.payload().args),
        error: ErrorInfo::new("ProcessorTripwire", reason.to_owned()),
        provider_executed: None,
    }
}
