//! A run that waits for a person, as its thread's actor sees it: decisions, what the store has of it, and its time.

use std::time::Duration;

use tokio::time::Instant;

use super::{Actor, ResumeRequest};
use crate::{
    error::Error,
    id::{MessageId, RunId},
    json::json,
    run::Resolution,
    runtime::Action,
    storage::ParkedRun,
    thread::{
        input::{Routed, Ticket},
        machine::{INBOX_ENTRIES, Suspended, ThreadEvent},
    },
};

impl Actor {
    /// Takes in a decision. One about the run at work waits for it to park again, if it will (SIG-379, SIG-383).
    pub(super) fn resume(&mut self, request: ResumeRequest) {
        let run_id = request.shared.run_id.clone();
        if self.resumes.len() >= INBOX_ENTRIES {
            let _ = request.claimed.send(Err(Error::InputLimit(self.key.clone())));
            return;
        }
        let live = self.run.as_ref().filter(|run| run.shared.run_id == run_id);
        if let Some(live) = live {
            let tool_call_id = match &request.what {
                Resolution::Decide(decision) => decision.tool_call_id.clone(),
                Resolution::Abort | Resolution::Discard => None,
            };
            if !live.shared.is_waiting_for(tool_call_id.as_deref()) {
                let _ = request.claimed.send(Err(Error::NotSuspended { run_id, tool_call_id, answered: true }));
                return;
            }
        }
        let agent_id = request.agent.id().to_owned();
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        self.resumes.insert(ticket, request);
        self.feed(ThreadEvent::Resume { ticket, run_id, agent_id });
    }

    pub(super) fn refuse_resume(&mut self, ticket: Ticket) {
        let Some(request) = self.resumes.remove(&ticket) else { return };
        let run_id = request.shared.run_id.clone();
        let error = match (&request.what, self.epoch) {
            (_, 0) => Error::OwnedElsewhere { thread: self.key.clone(), owner: self.unowned.clone() },
            (Resolution::Decide(decision), _) => {
                Error::NotSuspended { run_id, tool_call_id: decision.tool_call_id.clone(), answered: true }
            }
            (Resolution::Abort | Resolution::Discard, _) => Error::NoSuspendedRun { run_id },
        };
        let _ = request.claimed.send(Err(error));
    }

    /// The thread has become ours: the newest of its parked runs keeps it, if its time is not over and its agent is here to
    /// go on with it.
    pub(super) fn found_parked(&mut self, parked: Option<Vec<ParkedRun>>) {
        let Some(parked) = parked else { return };
        let now = self.inner.clock.now();
        let ttl = self.inner.suspended_ttl;
        let ids = parked.iter().map(|run| run.run_id.clone()).collect();
        let keeps = parked
            .into_iter()
            .find(|run| run.suspended_at.plus(ttl) > now && self.inner.agent_by_id(&run.agent_id).is_some());
        let suspended = keeps.map(|run| {
            let known = crate::run::parked_of(&run, &run.agent_id);
            Suspended {
                run_id: run.run_id,
                agent_id: known.agent_id,
                waiting_for: known.waiting_for,
                since: known.since,
            }
        });
        self.feed(ThreadEvent::Found { suspended, parked: ids });
    }

    /// Keeps what others see of the suspended run as the machine has it.
    pub(super) fn note_suspended(&mut self) {
        let now = self.machine.suspended().map(|run| (run.run_id.clone(), run.since));
        let known = self.suspended.as_ref().map(|(run_id, _)| run_id.clone());
        if now.as_ref().map(|(run_id, _)| run_id) == known.as_ref() {
            return;
        }
        if let Some(gone) = known {
            // One that goes on is live; else its id is free.
            if self.machine.active_run() != Some(&gone) {
                self.inner.hub.run_ended(&gone);
                self.thread.log.forget_parked(&gone);
            }
        }
        self.suspended = now.map(|(run_id, since)| {
            self.inner.hub.run_parked(&run_id, &self.key, since);
            let clock = self.inner.clock.now();
            let passed = clock.as_millis().saturating_sub(since.as_millis()).max(0);
            let left = self.inner.suspended_ttl.saturating_sub(Duration::from_millis(passed.unsigned_abs()));
            (run_id, Instant::now() + left)
        });
    }

    /// The suspended run has had its time here (SIG-382).
    pub(super) fn evict(&mut self) {
        let Some((run_id, _)) = self.suspended.clone() else { return };
        tracing::info!(thread = %self.key, run = %run_id, "a suspended run keeps its thread no more; it can still be resumed");
        self.feed(ThreadEvent::Evicted { run_id });
    }

    /// Tells subscribers that input waits behind a person's decision (SIG-381).
    pub(super) fn show_waiting(&self, id: &MessageId, run_id: &RunId, waiting_for: &str) {
        let data = json!({ "id": id, "runId": run_id, "waitingFor": waiting_for });
        self.thread.log.push(crate::chunk::Chunk::transient_data(run_id, "data-signal-waiting", data));
    }

    /// As [`Self::show_waiting`], for input that was just routed.
    pub(super) fn show_if_waiting(&self, routed: &Routed) {
        if let (Action::Deliver, Some(run_id), Some(waiting_for)) = (routed.action, &routed.run_id, routed.waiting_for)
        {
            self.show_waiting(&routed.signal.id, run_id, waiting_for);
        }
    }
}
