//! How a parked run is gone on with: read, checked against the decision, and claimed before anything runs (LOOP-110 …
//! LOOP-116).

use std::sync::Arc;

use tokio::sync::oneshot;

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;
use crate::{
    run::{
        interchange::{self, Parking, Unparked},
        parked::ParkedOutput,
    },
    storage::{SharedStorage, StorageError},
    thread::Parked,
};

/// What a run that is gone on with still has to settle with its caller.
#[derive(Debug)]
pub(super) struct Claiming {
    /// Who waits to hear that the run is ours.
    reply: Option<oneshot::Sender<Claimed>>,
    /// The call that was decided.
    tool_call_id: Option<String>,
    decides: bool,
}

impl Claiming {
    pub(super) fn new(seed: &mut ResumeSeed) -> Self {
        let (tool_call_id, decides) = match &seed.what {
            Resolution::Decide(decision) => (decision.tool_call_id.clone(), true),
            Resolution::Abort | Resolution::Discard => (None, false),
        };
        Self { reply: seed.claimed.take(), tool_call_id, decides }
    }

    /// Tells the caller how it went.
    pub(super) fn tell(&mut self, result: Claimed) {
        if let Some(reply) = self.reply.take() {
            // The caller may have gone; the run goes on all the same.
            let _ = reply.send(result);
        }
    }

    /// The run is another's by now.
    fn lost(&self, run_id: &RunId) -> Error {
        if self.decides {
            Error::NotSuspended { run_id: run_id.clone(), tool_call_id: self.tool_call_id.clone(), answered: true }
        } else {
            Error::NoSuspendedRun { run_id: run_id.clone() }
        }
    }
}

/// Reads a parked run and checks the decision against it.
///
/// # Errors
/// [`Error::NoSuspendedRun`], [`Error::NotSuspended`], [`Error::AmbiguousToolCall`], [`Error::Storage`].
pub(super) async fn load(
    storage: &SharedStorage,
    agent_id: &str,
    run_id: &RunId,
    seed: &mut ResumeSeed,
) -> Result<Unparked, Error> {
    let found = match seed.nested.take() {
        Some(snapshot) => Unparked { snapshot: *snapshot, known: Vec::new() },
        None => {
            let gone = || Error::NoSuspendedRun { run_id: run_id.clone() };
            let parked = storage.parked_run(run_id).await?.ok_or_else(gone)?;
            if parked.agent_id != agent_id {
                return Err(gone());
            }
            match (interchange::read(&parked), &seed.what) {
                (Ok(found), _) => found,
                (Err(error), _) => return Err(error),
            }
        }
    };
    if let (Resolution::Decide(decision), Some(step)) = (&seed.what, &found.snapshot.step) {
        step.find(run_id, decision)?;
    }
    Ok(found)
}

/// A parked run that could not be gone on with stays parked; its caller is told, its thread too.
pub(super) async fn refuse(
    mut claiming: Claiming,
    error: Error,
    agent_id: &str,
    inner: &Arc<Inner>,
    link: Option<ThreadLink>,
    run_id: RunId,
) {
    tracing::info!(run = %run_id, %error, "a suspended run was not gone on with");
    let parked = still_parked(&inner.storage, &run_id, unknown(agent_id, inner.clock.now())).await;
    claiming.tell(Err(error));
    if let Some(link) = link {
        link.tell(Letter::RunEnded(RunEnd { parked, ..RunEnd::new(run_id) })).await;
    }
}

/// What the store says the run waits for; `known` if it cannot say: the thread stays suspended then, and what it waits
/// for is found again by the next decision.
pub(super) async fn still_parked(storage: &SharedStorage, run_id: &RunId, known: Parked) -> Option<Parked> {
    match storage.parked_run(run_id).await {
        Ok(found) => found.map(|parked| parked_of(&parked, &known.agent_id)),
        Err(StorageError::Unsupported { .. }) => None,
        Err(error) => {
            tracing::error!(run = %run_id, %error, "whether the run still waits for a person cannot be read; it is taken to");
            Some(known)
        }
    }
}

/// A parked run of which no more is known.
pub(super) fn unknown(agent_id: &str, since: Timestamp) -> Parked {
    Parked { agent_id: agent_id.to_owned(), waiting_for: "approval", since, stopped: false, rollback: false }
}

/// What a thread needs to know of a parked run.
pub(crate) fn parked_of(run: &crate::storage::ParkedRun, agent_id: &str) -> Parked {
    let read = interchange::read(run).ok();
    let step = read.and_then(|found| found.snapshot.step);
    let waits = step.as_ref().map(|step| waiting_for(step.parked()));
    Parked {
        agent_id: agent_id.to_owned(),
        waiting_for: waits.unwrap_or("approval"),
        since: run.suspended_at,
        stopped: false,
        rollback: false,
    }
}

/// What input behind the run is told (SIG-381).
fn waiting_for<'a>(mut calls: impl Iterator<Item = &'a crate::run::ParkedCall>) -> &'static str {
    if calls.any(|call| call.kind.is_approval()) { "approval" } else { "resume" }
}

impl Driver {
    /// What the run leaves while it waits for a person.
    pub(super) fn parked(&self) -> Parked {
        Parked {
            agent_id: self.prepared.agent.id().to_owned(),
            waiting_for: waiting_for(self.machine.parked_calls()),
            since: self.parked_at,
            stopped: self.shared.abort.is_cancelled()
                || self.prepared.options.abort.as_ref().is_some_and(CancellationToken::is_cancelled),
            rollback: self.shared.is_rollback(),
        }
    }

    /// The ids by which calls of the run that wait are addressed.
    pub(super) fn waiting_ids(&self) -> Vec<String> {
        let calls = self.machine.parked_calls();
        calls
            .flat_map(|call| std::iter::once(call.tool_call_id.as_str()).chain(call.inner_ids()))
            .map(str::to_owned)
            .collect()
    }

    /// Makes the parked run ours: of several who would, one does (LOOP-116).
    pub(super) async fn claim(&mut self, messages: &[StoredMessage]) -> Result<(), CommitError> {
        if !self.delegated {
            if self.committer.has_thread() {
                self.committer.claim(messages, &self.machine.snapshot()).await?;
            } else if !self.unpark().await? {
                return Err(CommitError::NotParked);
            }
        }
        self.now_ours();
        Ok(())
    }

    /// The parked run is ours: nobody else goes on with it.
    pub(super) fn now_ours(&mut self) {
        self.machine.claimed();
        // What it gives back from now on is no sign of a start that failed.
        self.committed = true;
        self.log.begin_run(&self.shared.run_id);
        self.shared.set_waiting(self.waiting_ids());
        if let Some(claiming) = &mut self.claiming {
            claiming.tell(Ok((self.log.clone(), self.log.live())));
        }
    }

    /// The parked run is another's.
    pub(super) fn not_ours(&mut self) {
        let run_id = self.shared.run_id.clone();
        if let Some(claiming) = &mut self.claiming {
            let error = claiming.lost(&run_id);
            claiming.tell(Err(error));
        }
    }

    pub(super) async fn unpark(&mut self) -> Result<bool, CommitError> {
        let gone = self.inner.storage.unpark(&self.shared.run_id).await;
        gone.map_err(|error| CommitError::Failed(storage_error(&error)))
    }

    /// Parks the run: durable before it is said (LOOP-097). A delegated run is kept by the one above it.
    pub(super) async fn park(&mut self, messages: &[StoredMessage], last: u64) -> Result<(), CommitError> {
        let now = self.inner.clock.now();
        self.parked_at = now;
        self.shared.set_waiting(self.waiting_ids());
        if self.delegated {
            return Ok(());
        }
        let parking = Parking {
            run_id: &self.shared.run_id,
            agent_id: self.prepared.agent.id(),
            thread: self.link.as_ref().map(|link| &link.key),
            messages: self.machine.transcript().messages(),
            snapshot: self.machine.snapshot(),
            now,
        };
        let mut run = interchange::write(parking);
        if run.resource_id.is_none() {
            // Whose run it is where no thread says so: callers who are bound to a resource reach their own (HTTP-012).
            let owner = self.prepared.options.request_context.get("mastra__resourceId");
            run.resource_id = owner.and_then(serde_json::Value::as_str).map(str::to_owned);
        }
        if self.committer.has_thread() {
            return self.committer.park(messages, run, last).await;
        }
        let parked = self.inner.storage.park(run).await;
        parked.map_err(|error| CommitError::Failed(storage_error(&error)))
    }

    /// What a parked run leaves to the run that started it.
    pub(super) fn for_parent(&self) -> Option<Box<ParkedOutput>> {
        self.delegated.then(|| Box::new(self.machine.parked_for_parent()))
    }
}
