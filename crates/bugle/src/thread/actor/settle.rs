//! What the journal answers, and the records of runs that have ended.

use std::time::Duration;

use tokio::time::Instant;

use super::{Actor, Reply};
use crate::{
    error::Error,
    id::{MessageId, RunId},
    message::StoredMessage,
    storage::{Accepted, EntryOutcome, InboxEnd, InboxEntry, Lease, ParkedRun, RunRecord, StorageError},
    thread::{
        input::Input,
        journal::{Done, EndedRun, Op, same_error},
        machine::{ClaimFailed, Journal as JournalAnswer, RecoveredRun, ThreadEvent},
    },
};

/// The wait before another try to end a record.
fn end_wait(tries: u32) -> Duration {
    Duration::from_secs(1 << tries.saturating_sub(1).min(5))
}

impl Actor {
    pub(super) fn journal_done(&mut self, done: Done) {
        match done {
            Done::Appended { entries, result, parked } => self.appended(entries, result, parked),
            Done::Claimed { result, parked } => {
                if let Err(error @ StorageError::ThreadOwnership { .. }) = &result {
                    tracing::error!(thread = %self.key, %error, "what waits for this thread can never have it");
                    self.feed(ThreadEvent::Unownable);
                }
                let held = self.lease(result.map_err(Error::from), parked);
                self.feed(ThreadEvent::Claimed(if held { Ok(()) } else { Err(ClaimFailed) }));
            }
            Done::Persisted { ticket, message, epoch, left, result } => {
                if let Some(epoch) = epoch {
                    self.own(epoch, left, None);
                }
                self.persisted(ticket, &message, result);
            }
            Done::Recovered(found) => self.recovered(found),
            Done::RunClosed { ended, result } => self.record_ended(*ended, result),
            Done::Removed(Ok(ids)) => self.removed = ids,
            Done::Removed(Err(error)) => {
                tracing::error!(thread = %self.key, %error, "input could not be taken out of the journal; it stays");
                self.removed.clear();
                self.journal.push(Op::Recover);
            }
            Done::Updated(id, Ok(())) => {
                self.unwritten.take_if(|(unwritten, _)| *unwritten == id);
            }
            Done::Updated(id, Err(error)) => {
                tracing::error!(thread = %self.key, signal = %id, %error, "a journal entry could not be rewritten");
                self.unwritten = Some((id, error.into()));
            }
            Done::Answer(Reply::Ids(reply, mut ids)) => {
                // What turns out to have been placed before was not cancelled (R18, SIG-290).
                let removed = std::mem::take(&mut self.removed);
                ids.retain(|id| removed.contains(id));
                Reply::Ids(reply, ids).send();
            }
            Done::Answer(Reply::Promoted(reply, promoted)) => match self.unwritten.take() {
                Some((id, error)) => {
                    self.reread(id);
                    let _ = reply.send(Err(error));
                }
                None => Reply::Promoted(reply, promoted).send(),
            },
            Done::Answer(Reply::Edited(reply, signal)) => match self.unwritten.take() {
                Some((id, error)) => {
                    self.reread(id);
                    let _ = reply.send(Err(error));
                }
                None => Reply::Edited(reply, signal).send(),
            },
            Done::Answer(reply) => reply.send(),
            Done::Quiet => {}
        }
    }

    /// The journal says what the entry is, since it could not be changed.
    fn reread(&mut self, id: MessageId) {
        self.feed(ThreadEvent::Reread { id });
        self.journal.push(Op::Recover);
    }

    fn appended(
        &mut self,
        entries: Vec<InboxEntry>,
        result: Result<Accepted, StorageError>,
        parked: Option<Vec<ParkedRun>>,
    ) {
        let accepted = match result {
            Ok(accepted) => accepted,
            // One bad entry must not refuse its neighbours.
            Err(StorageError::DifferentContent { .. }) if entries.len() > 1 => {
                return self.journal.retry_apart(entries);
            }
            Err(error) => {
                for entry in entries {
                    let id = entry.signal.id;
                    self.refused.insert(id.clone(), same_error(&error));
                    self.feed(ThreadEvent::Journaled { id: id.clone(), result: JournalAnswer::Failed });
                    self.refused.remove(&id);
                }
                return;
            }
        };
        let elsewhere = match accepted.lease {
            Some(Lease::HeldBy { owner }) => Some(owner),
            Some(Lease::Held { epoch }) => {
                self.own(epoch, accepted.left, parked);
                None
            }
            None => None,
        };
        if let Some(owner) = elsewhere {
            if self.epoch > 0 {
                self.lose();
            }
            let ids: Vec<MessageId> = entries.iter().map(|entry| entry.signal.id.clone()).collect();
            self.journal.push(Op::Remove { ids: ids.clone(), why: InboxEnd::Dropped });
            for id in ids {
                let error = Error::OwnedElsewhere { thread: self.key.clone(), owner: owner.clone() };
                self.refused.insert(id.clone(), error);
                self.feed(ThreadEvent::Journaled { id: id.clone(), result: JournalAnswer::Failed });
                self.refused.remove(&id);
            }
            return;
        }
        for (entry, outcome) in entries.into_iter().zip(accepted.entries) {
            let result = match outcome {
                EntryOutcome::Appended { position } => JournalAnswer::Appended { position },
                EntryOutcome::Waiting { run_id } => JournalAnswer::Known { run_id: Some(run_id), waits: true },
                EntryOutcome::Placed { run_id } => JournalAnswer::Known { run_id, waits: false },
            };
            self.feed(ThreadEvent::Journaled { id: entry.signal.id, result });
        }
    }

    fn recovered(&mut self, found: Result<(Vec<InboxEntry>, Vec<RunRecord>), StorageError>) {
        match found {
            Ok((entries, runs)) => self.found(entries, runs, false),
            Err(error) => tracing::error!(thread = %self.key, %error, "what an earlier process left cannot be read"),
        }
        for reply in std::mem::take(&mut self.recovering) {
            let _ = reply.send(());
        }
    }

    /// What the store holds of the thread; most of it may be known.
    pub(super) fn found(&mut self, mut entries: Vec<InboxEntry>, mut runs: Vec<RunRecord>, leased: bool) {
        // What an agent left that is not registered now stays in the store for a process that has it.
        entries.retain(|entry| self.is_registered(&entry.agent_id));
        runs.retain(|run| self.is_registered(&run.agent_id));
        let inputs = entries.into_iter().map(Input::of_journal);
        let runs = runs.into_iter().map(|run| RecoveredRun { run_id: run.run_id, agent_id: run.agent_id });
        let event = ThreadEvent::Recovered { inputs: inputs.collect(), runs: runs.collect(), leased };
        self.feed(event);
    }

    fn is_registered(&self, agent_id: &str) -> bool {
        let registered = self.inner.agent_by_id(agent_id).is_some();
        if !registered && self.inner.hub.misses(agent_id) {
            tracing::error!(
                thread = %self.key,
                agent = agent_id,
                "an earlier process left work of an agent that is not registered; register it to go on with that"
            );
        }
        registered
    }

    /// Ends the record of a run that has ended without, so that no look at the store revives it.
    pub(super) fn end_record(&mut self, run_id: &RunId, message: Option<Box<StoredMessage>>) {
        let last_event = self.thread.log.last_number();
        self.unended.push(EndedRun { run_id: run_id.clone(), last_event, message, tries: 0 });
        self.end_records();
    }

    pub(super) fn end_records(&mut self) {
        self.end_at = None;
        if self.epoch == 0 {
            // The records are the next owner's.
            self.unended.clear();
        }
        for ended in &self.unended {
            self.journal.push(Op::EndRun { epoch: self.epoch, ended: Box::new(ended.clone()) });
        }
    }

    fn record_ended(&mut self, mut ended: EndedRun, result: Result<(), StorageError>) {
        let Some(at) = self.unended.iter().position(|waiting| waiting.run_id == ended.run_id) else { return };
        match result {
            Ok(()) => drop(self.unended.swap_remove(at)),
            Err(error @ StorageError::StaleEpoch { .. }) => {
                tracing::warn!(thread = %self.key, run = %ended.run_id, %error, "the record of a run that has ended is another process's");
                self.unended.swap_remove(at);
            }
            Err(error) => {
                ended.tries += 1;
                if !error.is_retryable() {
                    // Perhaps there is no conversation any more that the message could be written into.
                    self.unended[at].message = None;
                }
                let wait = end_wait(ended.tries);
                tracing::error!(thread = %self.key, run = %ended.run_id, %error, ?wait, "a run has ended, but not its record; trying again");
                self.unended[at].tries = ended.tries;
                let due = Instant::now() + wait;
                self.end_at = Some(self.end_at.map_or(due, |at| at.min(due)));
            }
        }
    }
}
