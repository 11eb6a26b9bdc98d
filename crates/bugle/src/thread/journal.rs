//! A thread's writes to the inbox journal, strictly in order, adjacent appends in one transaction.

use std::{collections::VecDeque, future::Future, pin::Pin, sync::Arc, time::Duration};

use super::{actor::Reply, input::Ticket};
use crate::{
    error::Error,
    id::{MessageId, RunId, ThreadKey},
    message::StoredMessage,
    signal::Signal,
    storage::{
        Accept, Accepted, Commit, InboxEnd, InboxEntry, Lease, LeaseClaim, Left, NewThread, ParkedQuery, ParkedRun,
        RunChange, RunRecord, SharedStorage, Storage, StorageError, rules,
    },
};

/// Appends that one transaction takes at most.
const BATCH: usize = 64;

/// Waits before another try to accept input: 2 s in all.
const ACCEPT_RETRIES: [Duration; 5] = [
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(600),
    Duration::from_millis(1000),
];

/// One write.
#[derive(Debug)]
pub(super) enum Op {
    /// Append entries and claim the lease.
    Append(Vec<InboxEntry>),
    /// Claim the lease only, after checking who owns the thread.
    Claim,
    /// Claim, then write a row that no run takes in (ruling 32).
    Persist {
        ticket: Ticket,
        message: Box<StoredMessage>,
        create: Option<NewThread>,
        epoch: Option<u64>,
        consumes: bool,
    },
    /// Take entries out.
    Remove { ids: Vec<MessageId>, why: InboxEnd },
    /// Rewrite an entry.
    Update(Box<InboxEntry>),
    /// Tells somebody that the writes before it are done.
    Answer(Reply),
    /// Read what an earlier process left (SIG-502).
    Recover,
    /// End the record of a run that could not do so itself.
    EndRun { epoch: u64, ended: Box<EndedRun> },
    /// Give the lease up; the number of the thread's last chunk stays on record.
    Release { last_event: u64 },
}

/// A run that is over, whose record is still to be ended.
#[derive(Debug, Clone)]
pub(super) struct EndedRun {
    pub(super) run_id: RunId,
    pub(super) last_event: u64,
    /// What tells readers of the conversation why.
    pub(super) message: Option<Box<StoredMessage>>,
    /// Tries that failed.
    pub(super) tries: u32,
}

/// What a write gave.
#[derive(Debug)]
pub(super) enum Done {
    Appended {
        entries: Vec<InboxEntry>,
        result: Result<Accepted, StorageError>,
        /// What is parked on the thread, if it has become ours with this.
        parked: Option<Vec<ParkedRun>>,
    },
    Claimed {
        result: Result<(Lease, Left), StorageError>,
        parked: Option<Vec<ParkedRun>>,
    },
    Persisted {
        ticket: Ticket,
        message: Box<StoredMessage>,
        epoch: Option<u64>,
        left: Left,
        /// Whether it was written now; `false` if the same row was there (SIG-503).
        result: Result<bool, Error>,
    },
    Recovered(Result<(Vec<InboxEntry>, Vec<RunRecord>), StorageError>),
    /// These were in the journal, and no run had placed them. A removal that failed has removed nothing.
    Removed(Result<Vec<MessageId>, StorageError>),
    /// An entry was rewritten, or is as it was.
    Updated(MessageId, Result<(), StorageError>),
    RunClosed {
        ended: Box<EndedRun>,
        result: Result<(), StorageError>,
    },
    Answer(Reply),
    Quiet,
}

type Running = Pin<Box<dyn Future<Output = Done> + Send>>;

/// The writes that wait, and the one in flight.
pub(super) struct Journal {
    storage: SharedStorage,
    thread: ThreadKey,
    claim: LeaseClaim,
    /// What is appended makes its thread.
    creates: bool,
    waiting: VecDeque<Op>,
    running: Option<Running>,
    /// What the write in flight answers of the lease may be older than the lease's release.
    doubted: bool,
}

impl Journal {
    pub(super) fn new(storage: SharedStorage, thread: ThreadKey, lease_ttl: Duration) -> Self {
        let claim = LeaseClaim::new(storage.owner(), lease_ttl);
        Self { storage, thread, claim, creates: false, waiting: VecDeque::new(), running: None, doubted: false }
    }

    /// Adds a write; one that appends joins an append that still waits.
    pub(super) fn push(&mut self, op: Op) {
        if let Op::Append(more) = op {
            match self.waiting.back_mut() {
                Some(Op::Append(entries)) if entries.len() + more.len() <= BATCH => entries.extend(more),
                _ => self.waiting.push_back(Op::Append(more)),
            }
        } else {
            self.waiting.push_back(op);
        }
    }

    /// Input of an agent with memory makes the thread it is for, with its acceptance (SIG-362).
    pub(super) fn creates_thread(&mut self) {
        self.creates = true;
    }

    /// Puts writes back, one entry each, in front of what waits.
    pub(super) fn retry_apart(&mut self, entries: Vec<InboxEntry>) {
        for entry in entries.into_iter().rev() {
            self.waiting.push_front(Op::Append(vec![entry]));
        }
    }

    /// Takes in nothing new: what waits to be appended is refused with its sender's channel. What was taken back or
    /// changed is written.
    pub(super) fn stop(&mut self) {
        self.waiting.retain(|op| !matches!(op, Op::Append(_) | Op::Claim | Op::Recover));
    }

    /// The lease was released by somebody else's write: a claim that is in flight may have been answered before it.
    pub(super) fn doubt(&mut self) {
        self.doubted = self.running.is_some();
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none() && self.waiting.is_empty()
    }

    /// The result of the next write. Pending for ever while there is none. Cancel-safe.
    pub(super) async fn next(&mut self) -> Done {
        if self.running.is_none() {
            match self.waiting.pop_front() {
                Some(op) => {
                    let (storage, thread, claim) = (self.storage.clone(), self.thread.clone(), self.claim.clone());
                    self.running = Some(Box::pin(perform(storage, thread, claim, op, self.creates)));
                }
                None => std::future::pending::<()>().await,
            }
        }
        let done = match &mut self.running {
            Some(running) => running.await,
            None => std::future::pending().await,
        };
        self.running = None;
        if std::mem::take(&mut self.doubted) {
            match &done {
                // Asked again before anybody relies on it.
                Done::Claimed { result: Ok((Lease::Held { .. }, left)), parked: None }
                    if left.entries.is_empty() && left.runs.is_empty() =>
                {
                    self.waiting.push_front(Op::Claim);
                    return Done::Quiet;
                }
                Done::Claimed { .. } | Done::Appended { .. } | Done::Persisted { .. } => {
                    self.waiting.push_front(Op::Claim);
                }
                _ => {}
            }
        }
        self.kept(done)
    }

    /// Keeps the epoch in mind, and leaves out of what is found what a write that waits will take out.
    fn kept(&mut self, mut done: Done) -> Done {
        let (lease, left) = match &mut done {
            Done::Appended { result: Ok(accepted), .. } => (accepted.lease.as_ref(), &mut accepted.left),
            Done::Claimed { result: Ok((lease, left)), .. } => (Some(&*lease), left),
            Done::Persisted { epoch: Some(epoch), left, .. } => {
                self.claim.kept = Some(*epoch);
                (None, left)
            }
            _ => return done,
        };
        if let Some(Lease::Held { epoch }) = lease {
            self.claim.kept = Some(*epoch);
        }
        let waiting = &self.waiting;
        left.entries.retain(|entry| {
            !waiting.iter().any(|op| match op {
                Op::Remove { ids, .. } => ids.contains(&entry.signal.id),
                Op::Persist { message, consumes, .. } => *consumes && message.id == entry.signal.id,
                _ => false,
            })
        });
        left.runs.retain(|run| {
            !waiting.iter().any(|op| matches!(op, Op::EndRun { ended, .. } if ended.run_id == run.run_id))
        });
        done
    }
}

async fn perform(storage: Arc<dyn Storage>, thread: ThreadKey, claim: LeaseClaim, op: Op, create_thread: bool) -> Done {
    match op {
        Op::Append(entries) => {
            let accept =
                Accept { entries: entries.clone(), thread, claim: Some(claim), check_only: false, create_thread };
            let kept = accept.claim.as_ref().and_then(|claim| claim.kept);
            let result = patiently(|| storage.accept(accept.clone())).await;
            let lease = result.as_ref().ok().and_then(|accepted| accepted.lease.as_ref());
            let parked = if is_new(lease, kept) { look(&*storage, &accept.thread).await } else { None };
            Done::Appended { entries, result, parked }
        }
        Op::Claim => {
            let kept = claim.kept;
            let result = claim_only(&*storage, &thread, claim).await;
            let lease = result.as_ref().ok().map(|(lease, _)| lease);
            let parked = if is_new(lease, kept) { look(&*storage, &thread).await } else { None };
            Done::Claimed { result, parked }
        }
        Op::Persist { ticket, message, create, epoch, consumes } => {
            let mut commit = Commit::new(thread, 0);
            commit.create_thread = create;
            commit.messages = vec![(*message).clone()];
            if consumes {
                commit.consumed = vec![message.id.clone()];
            }
            let (epoch, left, result) = persist(&*storage, claim, epoch, commit).await;
            Done::Persisted { ticket, message, epoch, left, result }
        }
        Op::Remove { ids, why } => Done::Removed(patiently(|| storage.remove_inbox(&thread, &ids, why)).await),
        Op::Update(entry) => {
            let updated = patiently(|| storage.update_inbox((*entry).clone())).await;
            // One that is gone was placed meanwhile.
            Done::Updated(entry.signal.id, updated.map(|_| ()))
        }
        Op::Answer(reply) => Done::Answer(reply),
        Op::Recover => {
            let found = async { Ok((storage.inbox(&thread).await?, storage.runs(&thread).await?)) };
            Done::Recovered(found.await)
        }
        Op::EndRun { epoch, ended } => {
            let mut commit = Commit::new(thread, epoch);
            commit.messages = ended.message.iter().map(|message| (**message).clone()).collect();
            commit.run = RunChange::End { run_id: ended.run_id.clone(), last_event: ended.last_event };
            Done::RunClosed { result: storage.commit(commit).await.map(drop), ended }
        }
        Op::Release { last_event } => {
            if let Err(error) = storage.release_lease(&thread, &claim.owner, Some(last_event)).await {
                tracing::warn!(%thread, %error, "the lease could not be given up; it ends by itself");
            }
            Done::Quiet
        }
    }
}

/// Whether the thread is ours anew: while nobody else has had it, what is parked on it is known.
fn is_new(lease: Option<&Lease>, kept: Option<u64>) -> bool {
    matches!(lease, Some(Lease::Held { epoch }) if Some(*epoch) != kept)
}

/// What is parked on a thread, newest first. A store that parks nothing has nothing parked.
async fn look(storage: &dyn Storage, thread: &ThreadKey) -> Option<Vec<ParkedRun>> {
    match patiently(|| storage.list_parked(ParkedQuery::of_thread(thread))).await {
        Ok(page) => Some(page.items),
        Err(StorageError::Unsupported { .. }) => None,
        Err(error) => {
            tracing::error!(%thread, %error, "whether a run of this thread waits for a person cannot be read");
            None
        }
    }
}

/// Tries for about 2 s while the store is away; afterwards who waits is told, and nothing is retained (ruling 3).
async fn patiently<T, F>(write: impl Fn() -> F) -> Result<T, StorageError>
where
    F: Future<Output = Result<T, StorageError>>,
{
    let mut waits = ACCEPT_RETRIES.iter();
    loop {
        match write().await {
            Err(error) if error.is_retryable() => match waits.next() {
                Some(wait) => tokio::time::sleep(*wait).await,
                None => return Err(error),
            },
            answer => return answer,
        }
    }
}

async fn claim_only(
    storage: &dyn Storage,
    thread: &ThreadKey,
    claim: LeaseClaim,
) -> Result<(Lease, Left), StorageError> {
    let accept = Accept {
        entries: Vec::new(),
        thread: thread.clone(),
        claim: Some(claim),
        check_only: true,
        create_thread: false,
    };
    let accepted = storage.accept(accept).await?;
    let lease = accepted.lease.ok_or_else(|| StorageError::Unavailable {
        message: format!("the store did not answer who owns thread {thread}"),
        source: None,
    })?;
    Ok((lease, accepted.left))
}

async fn persist(
    storage: &dyn Storage,
    claim: LeaseClaim,
    epoch: Option<u64>,
    mut commit: Commit,
) -> (Option<u64>, Left, Result<bool, Error>) {
    let mut found = Left::default();
    if let Some(epoch) = epoch {
        commit.epoch = epoch;
        match write_new(storage, commit.clone()).await {
            // Somebody else has had the thread meanwhile: whose it is now is asked anew.
            Err(StorageError::StaleEpoch { .. }) => {}
            written => return (Some(epoch), found, written.map_err(Error::from)),
        }
    }
    commit.epoch = match patiently(|| claim_only(storage, &commit.thread, claim.clone())).await {
        Ok((Lease::Held { epoch }, left)) => {
            found = left;
            epoch
        }
        // Whoever sends it takes that for busy, not for a failure of the store (NOTIF-082).
        Ok((Lease::HeldBy { owner }, _)) => {
            return (None, found, Err(Error::OwnedElsewhere { thread: commit.thread, owner }));
        }
        Err(error) => return (None, found, Err(error.into())),
    };
    (Some(commit.epoch), found, write_new(storage, commit).await.map_err(Error::from))
}

/// Writes a row under an id that is new, or was used for the same (SIG-503).
async fn write_new(storage: &dyn Storage, commit: Commit) -> Result<bool, StorageError> {
    if commit.consumed.is_empty()
        && let Some(message) = commit.messages.first()
    {
        let ids = [message.id.clone()];
        let known = patiently(|| storage.get_messages(&ids)).await?;
        if let Some(known) = known.first() {
            let here = known.thread_id.as_deref() == Some(&*commit.thread.thread_id);
            let same = Signal::from_stored(message).is_some_and(|signal| rules::message_holds(known, &signal));
            return if here && same {
                Ok(false)
            } else {
                Err(StorageError::DifferentContent { id: message.id.clone() })
            };
        }
    }
    patiently(|| storage.commit(commit.clone())).await?;
    Ok(true)
}

/// The same error for another caller; the cause stays with the first.
pub(super) fn same_error(error: &StorageError) -> Error {
    Error::Storage(match error {
        StorageError::ThreadOwnership { thread, owner, given } => {
            StorageError::ThreadOwnership { thread: thread.clone(), owner: owner.clone(), given: given.clone() }
        }
        StorageError::DifferentContent { id } => StorageError::DifferentContent { id: id.clone() },
        StorageError::MessageOwnership { id } => StorageError::MessageOwnership { id: id.clone() },
        StorageError::Invalid(message) => StorageError::Invalid(message.clone()),
        other => StorageError::Unavailable { message: other.to_string(), source: None },
    })
}
