//! The end of the run.

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;
use crate::{
    chunk::{ChunkBody, ErrorInfo, FinishReason},
    json::{Object, json},
    message::ErrorPart,
};

impl RunMachine {
    // The end of the run.

    pub(super) fn end(&mut self, ending: Ending, now: Timestamp, effects: &mut Effects) {
        self.end_with(ending, Vec::new(), now, effects);
    }

    pub(super) fn end_with(&mut self, ending: Ending, echoes: Vec<Chunk>, now: Timestamp, effects: &mut Effects) {
        let (mut ending, mut echoes) = (ending, echoes);
        if self.judge_result(&ending, &mut echoes, effects) {
            return;
        }
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
        self.keep_delegation_feedback(now);
        self.phase = Phase::Committing(AfterCommit::End { echoes, ending });
        effects.push(RunEffect::Commit);
    }

    pub(super) fn fail(&mut self, error: ErrorInfo, now: Timestamp, effects: &mut Effects) {
        for payload in self.response.close_all() {
            effects.push(self.chunk(payload));
        }
        // What was shown is kept (LOOP-142); calls that were not run are not (R31b).
        if self.calls.is_empty() {
            self.keep_cut_response(now);
        }
        self.keep_error(&error, now);
        self.end(Ending::Failed(error), now, effects);
    }

    /// Keeps what was said of a response that was cut off, unless a processor would have to judge it first.
    fn keep_cut_response(&mut self, now: Timestamp) {
        if !self.settings.judges.answers {
            self.keep_response(false, now);
        }
    }

    pub(super) fn keep_error(&mut self, error: &ErrorInfo, now: Timestamp) {
        let message_id = self.message_id.clone();
        let answer = self.transcript.answer(&message_id, now);
        answer.content.parts.push(Part::Error(ErrorPart {
            error: json!({ "name": error.name, "message": error.message }),
            created_at: Some(now.as_millis()),
            extra: Object::new(),
        }));
    }

    pub(super) fn abort(&mut self, now: Timestamp, effects: &mut Effects) {
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
                // What is parked by then is its thread's to give up.
                AfterCommit::End { .. } | AfterCommit::Park => self.aborting = false,
            },
            Phase::Requesting => {
                effects.push(RunEffect::CancelRequest);
                for payload in self.response.close_all() {
                    effects.push(self.chunk(payload));
                }
                self.keep_cut_response(now);
                self.end_aborted(now, effects);
            }
            // The results of what stops in time are kept (LOOP-134).
            Phase::Tools => effects.push(RunEffect::CancelTools),
            Phase::Guarding(Guarding::Step) => {
                self.keep_cut_response(now);
                self.end_aborted(now, effects);
            }
            Phase::Scoring | Phase::Guarding(Guarding::Result { .. }) => self.end_aborted(now, effects),
            Phase::Judging(_) => {
                self.leave_judging(effects);
                self.end_aborted(now, effects);
            }
        }
    }

    pub(super) fn end_aborted(&mut self, now: Timestamp, effects: &mut Effects) {
        self.mark_aborted();
        self.end(Ending::Aborted, now, effects);
    }

    /// The answer was cut off by an abort (LOOP-133).
    pub(super) fn mark_aborted(&mut self) {
        if let Some(answer) = self.transcript.open_answer() {
            let mastra = answer.content.metadata_mut().entry("mastra").or_insert_with(|| json!({}));
            mastra["aborted"] = json!(true);
        }
    }

    /// The last chunks that all subscribers see, but the very last: the driver ends the stream with that.
    pub(super) fn show_end(&mut self, ending: &Ending, effects: &mut Effects) {
        match ending {
            Ending::Finished => {
                self.show_start(effects);
                self.finish_step(effects);
            }
            Ending::Failed(_) | Ending::Aborted => self.show_start(effects),
            Ending::Tripped(_) | Ending::Parked => {}
        }
    }
}
