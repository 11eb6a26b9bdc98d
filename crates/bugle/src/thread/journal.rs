//! A thread's writes to the inbox journal, strictly in order, adjacent appends in one transaction.

use std::{collections::VecDeque, future::Future, pin::Pin, sync::Arc, time::Duration};

use super::actor::Reply;
use crate::{
    error::Error,
    id::{MessageId, ThreadKey},
    message::StoredMessage,
    storage::{
        Accept, Accepted, Commit, InboxEnd, InboxEntry, Lease, LeaseClaim, NewThread, RunRecord, SharedStorage,
        Storage, StorageError,
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
    Persist { message: Box<StoredMessage>, create: Option<NewThread>, epoch: Option<u64>, consumes: bool },
    /// Take entries out.
    Remove { ids: Vec<MessageId>, why: InboxEnd },
    /// Rewrite an entry.
    Update(Box<InboxEntry>),
    /// Tells somebody that the writes before it are done.
    Answer(Reply),
    /// Read what an earlier process left (SIG-502).
    Recover,
    /// Give the lease up.
    Release,
}

/// What a write gave.
#[derive(Debug)]
pub(super) enum Done {
    Appended {
        entries: Vec<InboxEntry>,
        result: Result<Accepted, StorageError>,
    },
    Claimed(Result<Lease, StorageError>),
    Persisted {
        message: Box<StoredMessage>,
        epoch: Option<u64>,
        result: Result<(), StorageError>,
    },
    Recovered(Result<(Vec<InboxEntry>, Vec<RunRecord>), StorageError>),
    /// These were in the journal, and no run had placed them.
    Removed(Vec<MessageId>),
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
}

impl Journal {
    pub(super) fn new(storage: SharedStorage, thread: ThreadKey, lease_ttl: Duration) -> Self {
        let claim = LeaseClaim { owner: storage.owner(), ttl: lease_ttl };
        Self { storage, thread, claim, creates: false, waiting: VecDeque::new(), running: None }
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
        done
    }
}

async fn perform(storage: Arc<dyn Storage>, thread: ThreadKey, claim: LeaseClaim, op: Op, create_thread: bool) -> Done {
    match op {
        Op::Append(entries) => {
            let accept =
                Accept { entries: entries.clone(), thread, claim: Some(claim), check_only: false, create_thread };
            Done::Appended { entries, result: accept_patiently(&*storage, accept).await }
        }
        Op::Claim => Done::Claimed(claim_only(&*storage, &thread, claim).await),
        Op::Persist { message, create, epoch, consumes } => {
            let mut commit = Commit::new(thread, 0);
            commit.create_thread = create;
            commit.messages = vec![(*message).clone()];
            if consumes {
                commit.consumed = vec![message.id.clone()];
            }
            let (epoch, result) = persist(&*storage, claim, epoch, commit).await;
            Done::Persisted { message, epoch, result }
        }
        Op::Remove { ids, why } => Done::Removed(match storage.remove_inbox(&thread, &ids, why).await {
            Ok(removed) => removed,
            Err(error) => {
                tracing::error!(%thread, %error, "cancelled input could not be taken out of the journal");
                ids
            }
        }),
        Op::Update(entry) => {
            if let Err(error) = storage.update_inbox(*entry).await {
                tracing::error!(%thread, %error, "a journal entry could not be rewritten");
            }
            Done::Quiet
        }
        Op::Answer(reply) => Done::Answer(reply),
        Op::Recover => {
            let found = async { Ok((storage.inbox(&thread).await?, storage.runs(&thread).await?)) };
            Done::Recovered(found.await)
        }
        Op::Release => {
            if let Err(error) = storage.release_lease(&thread, &claim.owner).await {
                tracing::warn!(%thread, %error, "the lease could not be given up; it ends by itself");
            }
            Done::Quiet
        }
    }
}

/// Tries for about 2 s while the store is away; afterwards the sender is told, and nothing is retained (ruling 3).
async fn accept_patiently(storage: &dyn Storage, accept: Accept) -> Result<Accepted, StorageError> {
    let mut waits = ACCEPT_RETRIES.iter();
    loop {
        match storage.accept(accept.clone()).await {
            Err(error) if error.is_retryable() => match waits.next() {
                Some(wait) => tokio::time::sleep(*wait).await,
                None => return Err(error),
            },
            answer => return answer,
        }
    }
}

async fn claim_only(storage: &dyn Storage, thread: &ThreadKey, claim: LeaseClaim) -> Result<Lease, StorageError> {
    let accept = Accept {
        entries: Vec::new(),
        thread: thread.clone(),
        claim: Some(claim),
        check_only: true,
        create_thread: false,
    };
    let accepted = storage.accept(accept).await?;
    accepted.lease.ok_or_else(|| StorageError::Unavailable {
        message: format!("the store did not answer who owns thread {thread}"),
        source: None,
    })
}

async fn persist(
    storage: &dyn Storage,
    claim: LeaseClaim,
    epoch: Option<u64>,
    mut commit: Commit,
) -> (Option<u64>, Result<(), StorageError>) {
    commit.epoch = match epoch {
        Some(epoch) => epoch,
        None => match claim_only(storage, &commit.thread, claim).await {
            Ok(Lease::Held { epoch }) => epoch,
            Ok(Lease::HeldBy { owner }) => {
                let message = format!("thread {} is owned by another process, {owner}", commit.thread);
                return (None, Err(StorageError::Unavailable { message, source: None }));
            }
            Err(error) => return (None, Err(error)),
        },
    };
    (Some(commit.epoch), storage.commit(commit).await)
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
