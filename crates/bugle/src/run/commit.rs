//! What a run writes, with retries while the store is away (MEM-051, MEM-054).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{RunSnapshot, prepare::Prepared};
use crate::{
    chunk::ErrorInfo,
    id::{MessageId, RunId, ThreadKey},
    json::Value,
    memory::strip_working_memory,
    message::StoredMessage,
    runtime::Inner,
    storage::{Commit, Committed, InboxEntry, NewThread, ParkedRun, RunChange, RunRecord, SharedStorage, StorageError},
    thread::ThreadLink,
    time::SharedClock,
};

/// Waits before another try of a failed write; after the last, the run is told.
const RETRIES: [Duration; 3] = [Duration::from_millis(50), Duration::from_millis(250), Duration::from_secs(1)];

/// Why a commit did not happen.
pub(super) enum CommitError {
    /// Another owner has the thread (ruling 4).
    Stale,
    /// Somebody else has gone on with the parked run, or given it up (LOOP-116).
    NotParked,
    Failed(ErrorInfo),
}

/// Writes what a run changes.
pub(crate) struct Committer {
    target: Option<Target>,
    run_id: RunId,
    agent_id: String,
    /// Rows are written at all: the agent has memory, and it is not read-only.
    stores: bool,
    /// A record is kept, so that another process can go on. A plain run gets one when it takes in input of others.
    records: bool,
    /// Nobody but subscribers waits for the run, so that it can be left to another process.
    woken: bool,
    create: Option<NewThread>,
    /// The store may hold a record of the run that has not ended.
    open: bool,
    /// Told of a lease that went with the run's end.
    released: Option<Arc<AtomicBool>>,
}

struct Target {
    storage: SharedStorage,
    clock: SharedClock,
    thread: ThreadKey,
    epoch: u64,
}

impl Committer {
    pub(super) fn new(
        inner: &Arc<Inner>,
        link: Option<&ThreadLink>,
        prepared: &Prepared,
        run_id: &RunId,
        woken: bool,
    ) -> Self {
        let target = link.map(|link| Target {
            storage: inner.storage.clone(),
            clock: inner.clock.clone(),
            thread: link.key.clone(),
            epoch: link.epoch,
        });
        let stores = prepared.agent.memory().is_some() && !prepared.memory.read_only;
        Self {
            create: if stores { prepared.new_thread(link.map(|link| &link.key)) } else { None },
            target,
            run_id: run_id.clone(),
            agent_id: prepared.agent.id().to_owned(),
            stores,
            records: (woken || prepared.resumes()) && stores,
            woken: woken && stores,
            open: prepared.snapshot.is_some() && !prepared.resumes(),
            released: link.map(|link| link.released.clone()),
        }
    }

    /// Whether the run's record is still to be ended.
    pub(super) fn is_open(&self) -> bool {
        self.open
    }

    /// Whether another process can go on with the run from its record.
    pub(super) fn is_recoverable(&self) -> bool {
        self.woken && self.target.is_some()
    }

    /// What a simulated run writes with.
    #[cfg(test)]
    pub(crate) fn simulated(
        storage: SharedStorage,
        clock: SharedClock,
        (thread, epoch): (ThreadKey, u64),
        (run_id, agent_id): (RunId, String),
        woken: bool,
    ) -> Self {
        let create = NewThread {
            id: Some(thread.thread_id.to_string()),
            resource_id: thread.resource_id.as_deref().unwrap_or_default().to_owned(),
            ..NewThread::default()
        };
        let target = Some(Target { storage, clock, thread, epoch });
        Self {
            target,
            run_id,
            agent_id,
            stores: true,
            records: woken,
            woken,
            create: Some(create),
            open: false,
            released: None,
        }
    }

    /// Writes a step; the run goes on.
    pub(super) async fn step(
        &mut self,
        messages: &[StoredMessage],
        entries: &[InboxEntry],
        snapshot: &RunSnapshot,
    ) -> Result<(), CommitError> {
        match self.step_commit(messages, entries, snapshot) {
            Some(commit) => self.write(commit).await,
            None => Ok(()),
        }
    }

    /// What a step writes, if anything.
    pub(crate) fn step_commit(
        &mut self,
        messages: &[StoredMessage],
        entries: &[InboxEntry],
        snapshot: &RunSnapshot,
    ) -> Option<Commit> {
        let target = self.target.as_ref()?;
        self.records |= self.stores && !entries.is_empty();
        if messages.is_empty() && entries.is_empty() && self.create.is_none() && !self.records {
            return None;
        }
        let mut commit = self.begin(target, messages, entries);
        if self.records {
            commit.run = RunChange::Save(self.record(target, snapshot));
        }
        Some(commit)
    }

    fn record(&self, target: &Target, snapshot: &RunSnapshot) -> RunRecord {
        RunRecord {
            run_id: self.run_id.clone(),
            thread: target.thread.clone(),
            agent_id: self.agent_id.clone(),
            snapshot: serde_json::to_value(snapshot).unwrap_or(Value::Null),
            updated_at: target.clock.now(),
        }
    }

    /// Makes a parked run ours, with what the decision changes.
    pub(super) async fn claim(
        &mut self,
        messages: &[StoredMessage],
        snapshot: &RunSnapshot,
    ) -> Result<(), CommitError> {
        match self.claim_commit(messages, snapshot) {
            Some(commit) => self.write(commit).await,
            None => Ok(()),
        }
    }

    /// What the claim of a parked run writes.
    pub(crate) fn claim_commit(&self, messages: &[StoredMessage], snapshot: &RunSnapshot) -> Option<Commit> {
        let target = self.target.as_ref()?;
        let mut commit = self.begin(target, messages, &[]);
        commit.run = RunChange::Resume(self.record(target, snapshot));
        Some(commit)
    }

    /// Parks the run, with what its step has changed.
    pub(super) async fn park(
        &mut self,
        messages: &[StoredMessage],
        run: ParkedRun,
        last_event: u64,
    ) -> Result<(), CommitError> {
        match self.park_commit(messages, run, last_event) {
            Some(commit) => self.write(commit).await,
            None => Ok(()),
        }
    }

    /// What parking writes.
    pub(crate) fn park_commit(&self, messages: &[StoredMessage], run: ParkedRun, last_event: u64) -> Option<Commit> {
        let target = self.target.as_ref()?;
        let mut commit = self.begin(target, messages, &[]);
        commit.run = RunChange::Park { run: Box::new(run), last_event };
        // While it waits the thread is nobody's.
        commit.release = Some(target.storage.owner());
        Some(commit)
    }

    /// Whether the run has a thread that it writes to.
    pub(super) fn has_thread(&self) -> bool {
        self.target.is_some()
    }

    /// Writes the run's end; of one that is still parked, if `parked`.
    pub(super) async fn end(
        &mut self,
        messages: &[StoredMessage],
        entries: &[InboxEntry],
        (last_event, parked): (u64, bool),
    ) -> Result<(), CommitError> {
        match self.end_commit(messages, entries, (last_event, parked)) {
            Some(commit) => self.write(commit).await,
            None => Ok(()),
        }
    }

    /// What the run's end writes.
    pub(crate) fn end_commit(
        &self,
        messages: &[StoredMessage],
        entries: &[InboxEntry],
        (last_event, parked): (u64, bool),
    ) -> Option<Commit> {
        let target = self.target.as_ref()?;
        let mut commit = self.begin(target, messages, entries);
        commit.run = self.over(last_event, parked);
        commit.release = Some(target.storage.owner());
        Some(commit)
    }

    /// The end of the run; of one that is still parked, if `parked`.
    fn over(&self, last_event: u64, parked: bool) -> RunChange {
        let run_id = self.run_id.clone();
        if parked { RunChange::Discard { run_id, last_event } } else { RunChange::End { run_id, last_event } }
    }

    /// Removes what the run stored; what joined it goes back to the journal (ruling 33).
    pub(super) async fn roll_back(
        &mut self,
        own: Vec<MessageId>,
        (wake, joined): (Option<MessageId>, Vec<InboxEntry>),
        (last_event, parked): (u64, bool),
    ) -> Result<(), CommitError> {
        match self.rollback_commit(own, (wake, joined), (last_event, parked)) {
            Some(commit) => self.write(commit).await,
            None => Ok(()),
        }
    }

    /// What a rollback writes.
    pub(crate) fn rollback_commit(
        &self,
        own: Vec<MessageId>,
        (wake, joined): (Option<MessageId>, Vec<InboxEntry>),
        (last_event, parked): (u64, bool),
    ) -> Option<Commit> {
        let target = self.target.as_ref()?;
        let mut commit = Commit::new(target.thread.clone(), target.epoch);
        commit.consumed = wake.into_iter().collect();
        commit.removed = own;
        commit.returned = joined;
        commit.run = self.over(last_event, parked);
        Some(commit)
    }

    /// A write has happened.
    #[cfg(test)]
    pub(crate) fn written(&mut self) {
        self.create = None;
    }

    fn begin(&self, target: &Target, messages: &[StoredMessage], entries: &[InboxEntry]) -> Commit {
        let mut commit = Commit::new(target.thread.clone(), target.epoch);
        commit.create_thread.clone_from(&self.create);
        commit.consumed = entries.iter().map(|entry| entry.signal.id.clone()).collect();
        if self.stores {
            commit.messages = messages.iter().map(|message| self.row(message, &target.thread)).collect();
            // A message that holds nothing but working memory is not stored (MEM-052).
            commit.messages.retain(|message| !message.content.parts.is_empty());
        }
        commit
    }

    fn row(&self, message: &StoredMessage, thread: &ThreadKey) -> StoredMessage {
        let mut row = message.clone();
        if row.thread_id.is_none() {
            row = row.on(thread);
        }
        strip_working_memory(&mut row);
        row
    }

    async fn write(&mut self, commit: Commit) -> Result<(), CommitError> {
        let Some(target) = &self.target else { return Ok(()) };
        // A write that fails may have happened.
        self.open |= matches!(commit.run, RunChange::Save(_));
        let mut tries = 0;
        let mut waits = RETRIES.iter();
        loop {
            match target.storage.commit(commit.clone()).await {
                Ok(Committed { released }) => {
                    if released && let Some(told) = &self.released {
                        told.store(true, Ordering::Release);
                    }
                    self.create = None;
                    self.open |= matches!(commit.run, RunChange::Resume(_));
                    self.open &= !matches!(commit.run, RunChange::End { .. } | RunChange::Park { .. });
                    return Ok(());
                }
                Err(StorageError::StaleEpoch { .. }) => return Err(CommitError::Stale),
                Err(StorageError::NotParked { .. }) => {
                    return if tries > 0 && self.has_happened(&commit).await {
                        // A try that was reported as failed had happened.
                        self.open |= matches!(commit.run, RunChange::Resume(_));
                        Ok(())
                    } else {
                        Err(CommitError::NotParked)
                    };
                }
                Err(error) => match waits.next() {
                    Some(wait) if error.is_retryable() => {
                        tries += 1;
                        tracing::warn!(%error, ?wait, "a write failed; trying again");
                        tokio::time::sleep(*wait).await;
                    }
                    _ => {
                        tracing::error!(%error, run = %self.run_id, "a write failed for good");
                        return Err(CommitError::Failed(storage_error(&error)));
                    }
                },
            }
        }
    }
}

impl Committer {
    /// Whether the claim or end of a parked run is this run's own: no other owner has the thread, so its record tells.
    async fn has_happened(&self, commit: &Commit) -> bool {
        let Some(target) = &self.target else { return false };
        match &commit.run {
            RunChange::Resume(record) => {
                let stored = target.storage.get_run(&record.run_id).await;
                matches!(stored, Ok(Some(stored)) if stored.snapshot == record.snapshot)
            }
            RunChange::Discard { .. } => true,
            _ => false,
        }
    }
}

/// A store's error as a run shows it.
pub(super) fn storage_error(error: &StorageError) -> ErrorInfo {
    let mut info = ErrorInfo::new("StorageError", error.to_string());
    info.id = match error {
        StorageError::ThreadOwnership { .. } => Some("AGENT_MEMORY_THREAD_RESOURCE_MISMATCH".to_owned()),
        StorageError::MessageOwnership { .. } => Some("MESSAGE_OWNERSHIP".to_owned()),
        _ => None,
    };
    info
}
