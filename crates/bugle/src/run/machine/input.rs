//! Input: what is taken in at a drain point, and what may cut a request short.

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;
use crate::{chunk::TripwirePayload, json::json};

impl RunMachine {
    pub(super) fn drained(
        &mut self,
        inputs: Vec<InboxEntry>,
        rejected: Vec<(InboxEntry, TripwirePayload)>,
        messages: Vec<StoredMessage>,
        now: Timestamp,
        effects: &mut Effects,
    ) {
        let Phase::Draining(point) = self.phase else { return };
        // Guards may put messages of their own into the place of input that arrives mid-run (PROC-011).
        let took_in = !inputs.is_empty() || (point != DrainPoint::First && !messages.is_empty());
        if point == DrainPoint::First {
            self.note_wake(&inputs, &messages);
        }
        if took_in && self.started {
            self.rotate_message_id();
        }
        for message in messages {
            self.transcript.add_given(message, now);
        }
        let mut echoes = Vec::new();
        for entry in inputs {
            let placed = self.transcript.place(&entry.signal, now);
            echoes.push(placed.echo(&self.settings.run_id));
            self.consumed.push(entry.signal.id.clone());
            self.placed.push(entry.clone());
            self.to_consume.push(entry);
        }
        for (entry, tripwire) in rejected {
            echoes.push(self.reject(entry, &tripwire, now));
        }
        if self.aborting {
            self.mark_aborted();
            return self.end_with(Ending::Aborted, echoes, now, effects);
        }
        match point {
            DrainPoint::First | DrainPoint::Entry => {
                self.phase = Phase::Committing(AfterCommit::Request { echoes });
                effects.push(RunEffect::Commit);
            }
            DrainPoint::Boundary => self.after_boundary(took_in, echoes, now, effects),
            DrainPoint::Last => {
                let mut echoes = echoes;
                echoes.splice(0..0, std::mem::take(&mut self.held_echoes));
                if took_in {
                    return self.go_on(true, echoes, now, effects);
                }
                let failed = self.pending_verdict.as_ref().is_some_and(|verdict| !verdict.passed);
                self.seal_step(false, (failed && self.wants_more()).then_some("max-steps"));
                self.end_with(Ending::Finished, echoes, now, effects);
            }
        }
    }

    /// A run that begins without messages of a caller was started by its first input.
    pub(super) fn note_wake(&mut self, inputs: &[InboxEntry], messages: &[StoredMessage]) {
        if messages.is_empty() && self.consumed.is_empty() && self.wake.is_none() {
            self.wake = inputs.first().map(|entry| entry.signal.id.clone());
        }
    }

    /// Input that a guard refused is stored for people and kept from models (ruling 34, SIG-208).
    pub(super) fn reject(&mut self, entry: InboxEntry, tripwire: &TripwirePayload, now: Timestamp) -> Chunk {
        let id = entry.signal.id.clone();
        self.transcript.place(&entry.signal, now);
        if let Some(message) = self.transcript.messages_mut().iter_mut().find(|message| message.id == id) {
            mark_blocked(message, tripwire);
        }
        self.placed.push(entry.clone());
        self.to_consume.push(entry);
        let data = json!({ "id": id, "reason": tripwire.reason });
        Chunk::transient_data(&self.settings.run_id, "data-signal-rejected", data)
    }

    pub(super) fn rotate_message_id(&mut self) {
        self.transcript.seal();
        self.message_id = MessageId::fresh();
    }

    pub(super) fn input_waits(&mut self, effects: &mut Effects) {
        let open = matches!(self.phase, Phase::Requesting) && !self.response.committed && !self.judged.raw.committed;
        let finished = self.response.finish.is_some() || self.judged.raw.finish.is_some();
        if !open || finished || !self.settings.interruptible {
            return;
        }
        // The response is as if it had never been (SIG-230 to 236).
        effects.push(RunEffect::CancelRequest);
        for payload in self.response.close_all() {
            effects.push(self.chunk(payload));
        }
        self.response = Response::default();
        self.judged.raw = Response::default();
        if let Some(structured) = &mut self.structured {
            structured.reset();
        }
        self.step_started = false;
        self.phase = Phase::Draining(DrainPoint::Entry);
        effects.push(RunEffect::Drain);
    }
}

pub(super) fn mark_blocked(message: &mut StoredMessage, tripwire: &TripwirePayload) {
    message.mark_blocked(&tripwire.reason, &tripwire.processor_id);
}
