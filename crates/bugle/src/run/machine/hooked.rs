//! What hooks see of the loop, and do to it: ids and counts, signals that are placed, messages in the place of others,
//! what a step changes for itself (PROC §2, §4, §8).

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;
use crate::{
    chunk::FinishReason,
    message::Role,
    processor::{OutputResult, OutputStep, Replaces},
    run::StructuredOutput,
    signal::set_version,
};

impl RunMachine {
    /// The step under way, from 0.
    pub(crate) fn step_number(&self) -> u32 {
        self.step_count()
    }

    /// The finished steps of this process.
    pub(crate) fn steps(&self) -> &[StepSummary] {
        &self.steps
    }

    /// The id of the answer under construction.
    pub(crate) fn message_id(&self) -> &MessageId {
        &self.message_id
    }

    /// How often the step under way was tried again.
    pub(crate) fn retry_count(&self) -> u32 {
        self.judged.retries
    }

    /// A call under way: id, tool, arguments.
    pub(crate) fn call_at(&self, index: usize) -> Option<(String, String, Value)> {
        let state = self.calls.get(index).filter(|state| state.outcome.is_none())?;
        let payload = state.call.payload();
        Some((payload.tool_call_id, payload.tool_name, payload.args))
    }

    /// Something of the response under way has been shown.
    pub(crate) fn has_shown(&self) -> bool {
        !self.response.is_empty()
    }

    /// The response under way does not pass stream hooks.
    pub(crate) fn bypass_stream(&mut self) {
        self.judged.bypass = true;
    }

    /// Places a signal of a processor; what follows it is another answer if `rotate` (PROC-081, PROC-082).
    pub(crate) fn place_signal(&mut self, signal: &Signal, rotate: bool, now: Timestamp) -> Signal {
        if rotate && self.transcript.seal() {
            self.message_id = MessageId::fresh();
        }
        self.transcript.place(signal, now)
    }

    /// Puts messages in the place of others (PROC-011); gives the texts of system messages that are new.
    pub(crate) fn replace_messages(
        &mut self,
        of: Replaces,
        messages: Vec<StoredMessage>,
        now: Timestamp,
    ) -> Result<Vec<String>, MessageId> {
        Transcript::check_ids(&messages)?;
        let is_new = |message: &StoredMessage| message.role != Role::System && !self.transcript.has(&message.id);
        if of == Replaces::Prompt && messages.iter().any(is_new) && self.transcript.seal() {
            // What the model says next comes after them (PROC-082).
            self.message_id = MessageId::fresh();
        }
        Ok(self.transcript.replace_all(of == Replaces::Answers, messages, now))
    }

    /// Another id for the answer of the step under way; the next step has one of its own again (PROC-040).
    pub(crate) fn set_message_id(&mut self, id: MessageId) -> Result<(), String> {
        if id == self.message_id {
            return Ok(());
        }
        if id.as_str().is_empty() || self.transcript.has(&id) {
            return Err(format!("the message id {id:?} is taken or empty"));
        }
        self.transcript.seal();
        let own = std::mem::replace(&mut self.message_id, id);
        let own = if self.transcript.has(&own) { MessageId::fresh() } else { own };
        self.judged.own_message_id.get_or_insert(own);
        Ok(())
    }

    /// A request is prepared: what a step has changed of the run is gone (PROC-040).
    pub(crate) fn begin_request(&mut self) {
        self.judged.bypass = false;
        if let Some(own) = self.judged.own_message_id.take() {
            self.transcript.seal();
            self.message_id = own;
        }
    }

    /// The id that the next step's answer has, if not that of this one.
    pub(super) fn own_message_id(&self) -> Option<&MessageId> {
        self.judged.own_message_id.as_ref()
    }

    /// The form of the answer of the step under way.
    pub(crate) fn structure_step(&mut self, wanted: Option<&StructuredOutput>) {
        if self.structured.as_ref().map(Structured::options) != wanted {
            self.structured = wanted.cloned().map(Structured::new);
        }
    }

    /// Whether another step may follow the one under way.
    pub(crate) fn may_go_on(&self) -> bool {
        !self.at_limit()
    }

    /// Closes the answer under construction.
    pub(crate) fn rotate(&mut self) -> MessageId {
        self.rotate_message_id();
        self.message_id.clone()
    }

    pub(crate) fn transcript_mut(&mut self) -> &mut Transcript {
        &mut self.transcript
    }

    /// States were accepted after those of others (STATE-081).
    pub(crate) fn set_state_versions(&mut self, versions: &[(MessageId, u64)]) {
        for (id, version) in versions {
            if let Some(message) = self.transcript.messages_mut().iter_mut().find(|message| message.id == *id) {
                set_version(message, *version);
                self.transcript.touch(id);
            }
        }
    }

    /// The response before its tools run.
    pub(crate) fn output_step(&self, now: Timestamp) -> OutputStep {
        let finish = self.response.finish.clone();
        let model = format!("{}/{}", self.model.provider, self.model.model);
        OutputStep {
            text: self.response.text(),
            reasoning: self.response.reasoning(),
            finish_reason: finish.as_ref().map_or(FinishReason::Other, |finish| finish.reason),
            tool_calls: self.response.calls().map(Call::payload).collect(),
            usage: finish.map(|finish| finish.usage).unwrap_or_default(),
            parts: self.response.parts(true, false, &model, now),
            provider_metadata: self.response.metadata.provider_metadata.clone(),
        }
    }

    /// The run's answer before its last write.
    pub(crate) fn output_result(&self) -> OutputResult {
        let mut text = self.answer_text(None);
        text.push_str(&self.response.text());
        OutputResult {
            text,
            object: None,
            usage: self.total_usage(),
            finish_reason: self.reason(),
            messages: self.transcript.answers(),
        }
    }
}
