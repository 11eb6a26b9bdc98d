//! Rows that no run takes in (SIG-340, ruling 32), and input that is given up (SIG-255).

use super::{Actor, Waiting, link::next_time};
use crate::{
    chunk::{Chunk, ChunkBody, ErrorInfo, FinishReason, Payload, StepFinishPayload, StepOutput, StepResult, Usage},
    error::Error,
    id::{MessageId, RunId},
    message::StoredMessage,
    signal::Signal,
    storage::{InboxEnd, NewThread},
    thread::{
        input::{Input, Ticket},
        journal::Op,
        machine::{INBOX_BYTES, INBOX_ENTRIES},
    },
};

pub(super) struct PersistWrite {
    pub(super) size: usize,
    pub(super) echo: Option<(String, Signal)>,
    pub(super) given_up: bool,
}

/// Whether a row that could not be written may be written later.
fn may_work_later(error: &Error) -> bool {
    match error {
        Error::Storage(error) => error.is_retryable(),
        Error::OwnedElsewhere { .. } => true,
        _ => false,
    }
}

impl Actor {
    pub(super) fn persist(&mut self, ticket: Ticket, input: Input, echo: bool) {
        let agent = self.inner.agent_by_id(&input.entry.agent_id);
        if agent.as_ref().is_none_or(|agent| agent.memory().is_none()) {
            // Nothing is written, so nothing is shown (SIG-133).
            if let Some(Waiting::Persisted(reply)) = self.replies.remove(&ticket) {
                let _ = reply.send(Err(Error::NoMemory(input.entry.agent_id)));
            }
            return;
        }
        let size = input.size();
        let waiting: usize = self.persists.values().map(|write| write.size).sum();
        if self.persists.len() >= INBOX_ENTRIES || waiting + size > INBOX_BYTES {
            if let Some(Waiting::Persisted(reply)) = self.replies.remove(&ticket) {
                let _ = reply.send(Err(Error::InputLimit(self.key.clone())));
            }
            return;
        }
        let echo = echo.then(|| (input.entry.agent_id.clone(), input.entry.signal.clone()));
        let entry = &input.entry;
        self.write_row(ticket, (&entry.agent_id, &entry.signal), PersistWrite { size, echo, given_up: false });
    }

    pub(super) fn give_up(&mut self, input: Input) {
        let size = input.size();
        self.next_ticket += 1;
        let write = PersistWrite { size, echo: None, given_up: true };
        self.write_row(self.next_ticket, (&input.entry.agent_id, &input.entry.signal), write);
    }

    fn write_row(&mut self, ticket: Ticket, (agent_id, signal): (&str, &Signal), write: PersistWrite) {
        let placed_at = next_time(&self.placed, self.inner.clock.now());
        let mut message = Box::new(signal.to_stored(Some(&self.key), placed_at));
        if self.inner.agent_by_id(agent_id).is_some_and(|agent| agent.judges_input()) {
            // No run, so no guard has seen it: the first run that reads it judges it (ruling 34).
            message.mark_unjudged();
        }
        let create = self.key.resource_id.as_deref().map(|resource| NewThread {
            id: Some(self.key.thread_id.to_string()),
            resource_id: resource.to_owned(),
            ..NewThread::default()
        });
        let epoch = (self.epoch > 0).then_some(self.epoch);
        let consumes = write.given_up;
        self.persists.insert(ticket, write);
        self.journal.push(Op::Persist { ticket, message, create, epoch, consumes });
    }

    pub(super) fn persisted(&mut self, ticket: Ticket, message: &StoredMessage, result: Result<bool, Error>) {
        let Some(write) = self.persists.remove(&ticket) else { return };
        let written = result.as_ref().is_ok_and(|new| *new);
        if let Err(Error::OwnedElsewhere { owner, .. }) = &result {
            tracing::debug!(thread = %self.key, owner, "a row was not written: another process has the thread");
            if self.epoch > 0 {
                self.lose();
            }
        } else if let Err(error) = &result {
            tracing::error!(thread = %self.key, %error, "a row could not be written");
        }
        if write.given_up {
            let what = match &result {
                Ok(_) => "it is stored unanswered".to_owned(),
                Err(error) if may_work_later(error) => {
                    format!("it could not be stored either ({error}), and stays in the journal to be tried again later")
                }
                Err(error) => {
                    self.journal.push(Op::Remove { ids: vec![message.id.clone()], why: InboxEnd::Dropped });
                    format!("it cannot be stored either, and was dropped: {error}")
                }
            };
            let text = format!("no run could be started for signal {}; {what}", message.id);
            tracing::error!(thread = %self.key, text, "input was given up");
            let mut error = ErrorInfo::new("InputGivenUp", text);
            error.details = Some(serde_json::json!({ "signalId": message.id }));
            self.thread.log.push(Chunk::agent(&RunId::random(), Payload::Error { error }));
        }
        if let Some(Waiting::Persisted(reply)) = self.replies.remove(&ticket) {
            let _ = reply.send(result.map(drop));
        }
        // The echo shows what a load would give (SIG-051), after the write and in order (SIG-341).
        if written
            && let Some((agent_id, _)) = write.echo
            && let Some(placed) = Signal::from_stored(message)
        {
            self.show_persisted(agent_id, &placed);
        }
    }

    /// Shows an idle persist as a run of its own kind, after the current step of the active run (SIG-340, SIG-342).
    fn show_persisted(&self, agent_id: String, signal: &Signal) {
        let run_id = RunId::random();
        let message_id: MessageId = format!("persisted-signal:{}", signal.id).into();
        let start = Payload::Start { id: agent_id, message_id: message_id.clone() };
        let zero = Usage { input_tokens: Some(0), output_tokens: Some(0), total_tokens: Some(0), ..Usage::default() };
        let finish = Payload::Finish(Box::new(StepFinishPayload {
            message_id,
            step_result: StepResult {
                reason: FinishReason::Stop,
                raw_reason: None,
                is_continued: false,
                warnings: Vec::new(),
                message_id: None,
                stop_cause: None,
            },
            metadata: crate::chunk::ResponseMetadata::default(),
            output: StepOutput { usage: zero, ..StepOutput::default() },
            messages: None,
            response: None,
            processor_retry_count: 0,
            is_task_complete_check_failed: None,
            consumed_signal_ids: Vec::new(),
            unanswered_signal_ids: Vec::new(),
            warnings: Vec::new(),
        }));
        let mut echo = signal.echo(&run_id);
        if let ChunkBody::Data(data) = &mut echo.body {
            // Always `data-signal`, whatever its type: the run is no run of a user (SIG-340).
            data.kind = "data-signal".to_owned();
        }
        self.thread.log.push_between_steps([Chunk::agent(&run_id, start), echo, Chunk::agent(&run_id, finish)]);
    }
}
