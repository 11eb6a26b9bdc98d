//! The seam to storage: conversations, the durable inbox, parked and running runs, leases, notifications.
//!
//! One store serves all of them, since one [`Commit`] writes across them (STO-003, ruling 39). Every operation is one
//! transaction; what has been acknowledged is durable against the death of the process (design, "Durability").
//! A dropped future may or may not have taken effect.

#[cfg(any(test, feature = "contract-tests"))]
pub mod contract;
mod inbox;
mod memory;
pub mod notifications;
mod parked;
mod providers;
mod query;
pub mod rules;

pub use inbox::*;
pub use memory::MemoryStorage;
pub use notifications::{
    ClaimedRecord, CreatedHow, CreatedRecord, DueQuery, NOTIFICATION_PRIORITIES, NOTIFICATION_STATUSES, NewRecord,
    NotificationCursor, NotificationPage, NotificationQuery, NotificationRecord, NotificationStore, RecordChange,
    RecordClaim, RecordKey,
};
pub use parked::*;
pub use providers::*;
pub use query::*;

use std::{fmt, sync::Arc};

use async_trait::async_trait;

use crate::{
    id::{MessageId, RunId, ThreadKey},
    json::Value,
    message::{Resource, StoredMessage, Thread},
    signal::LaneChange,
};

/// A store.
#[async_trait]
pub trait Storage: fmt::Debug + Send + Sync {
    /// What it is, for people: `file:bugle.db`, `memory:`. Holds no secret.
    fn describe(&self) -> String;

    /// Whether what it holds survives the process.
    fn is_durable(&self) -> bool;

    /// Who this handle is as an owner of leases: unique per open handle. A store that can tell whether an owner's process
    /// lives does so for owners of this form (ruling 26).
    fn owner(&self) -> String;

    /// Whether the process of an owner may still live (ruling 26); `true` where a store cannot tell.
    async fn owner_lives(&self, owner: &str) -> bool {
        let _ = owner;
        true
    }

    // Threads (MEM §3).

    /// The thread, whoever owns it.
    async fn get_thread(&self, id: &str) -> Result<Option<Thread>, StorageError>;

    /// Creates the thread, or updates title and metadata where given (MEM-014). `created_at` of an existing thread stays.
    ///
    /// # Errors
    /// [`StorageError::ThreadOwnership`] if it belongs to another resource.
    async fn create_thread(&self, thread: NewThread) -> Result<Thread, StorageError>;

    /// Changes a thread in one transaction (MEM-015). Metadata key `mastra` of a caller is ignored (MEM-023).
    ///
    /// # Errors
    /// [`StorageError::NotFound`] if there is none.
    async fn update_thread(&self, update: ThreadUpdate) -> Result<Thread, StorageError>;

    /// A page of threads (MEM-016, MEM-017).
    async fn list_threads(&self, query: ThreadQuery) -> Result<Page<Thread>, StorageError>;

    /// Deletes the thread and all that belongs to it (MEM-019). `false` if there was none. Notifications and subscriptions
    /// of another resource, which wait for a thread of this id of their own, stay (NOTIF-114).
    async fn delete_thread(&self, id: &str) -> Result<bool, StorageError>;

    /// Copies a thread (MEM-020).
    ///
    /// # Errors
    /// [`StorageError::NotFound`] without a source, [`StorageError::Exists`] if the new id is taken.
    async fn clone_thread(&self, clone: CloneThread) -> Result<ClonedThread, StorageError>;

    /// Gives a thread and its messages to another resource (MEM-022).
    ///
    /// # Errors
    /// [`StorageError::NotFound`] if there is none, [`StorageError::Busy`] if input waits for it or a run of it is recorded.
    async fn transfer_thread(&self, id: &str, resource_id: &str) -> Result<Thread, StorageError>;

    // Messages (MEM §4, §6).

    /// A page of messages (MEM-066 … MEM-069).
    async fn list_messages(&self, query: MessageQuery) -> Result<Page<StoredMessage>, StorageError>;

    /// The newest `limit` messages of a thread, oldest first: what a prompt is made of (MEM-080). With a resource in
    /// the key, only that resource's. `u32::MAX` means all.
    async fn recent_messages(&self, thread: &ThreadKey, limit: u32) -> Result<Vec<StoredMessage>, StorageError>;

    /// The messages with these ids, in no order; unknown ids are left out.
    async fn get_messages(&self, ids: &[MessageId]) -> Result<Vec<StoredMessage>, StorageError>;

    /// Saves messages in one transaction: upsert by id, `created_at` kept (MEM-043, MEM-018).
    ///
    /// # Errors
    /// [`StorageError::NotFound`] if a thread is missing (MEM-045), [`StorageError::MessageOwnership`] if an id belongs
    /// to another thread or resource (MEM-044).
    async fn save_messages(&self, messages: Vec<StoredMessage>) -> Result<(), StorageError>;

    /// Deletes messages; unknown ids are ignored (MEM-048). Returns how many there were.
    async fn delete_messages(&self, ids: &[MessageId]) -> Result<usize, StorageError>;

    // Resources (MEM §8).

    /// What is remembered about a resource.
    async fn get_resource(&self, id: &str) -> Result<Option<Resource>, StorageError>;

    /// Reads, changes and writes a resource in one transaction, made if missing (MEM-104). Returns it as written.
    async fn update_resource(&self, id: &str, change: ResourceChange) -> Result<Resource, StorageError>;

    // State (STATE §3, PROV-007).

    /// Changes the tracking of state lanes of a thread in one transaction that touches nothing else of it: all of
    /// `changes`, or nothing and `false` if a lane is not as expected any more (STATE-026, STATE-081).
    ///
    /// # Errors
    /// [`StorageError::NotFound`] without the thread.
    async fn track_lanes(&self, thread_id: &str, changes: Vec<LaneChange>) -> Result<bool, StorageError> {
        let _ = (thread_id, changes);
        Err(StorageError::Unsupported { domain: "state signals", store: self.describe() })
    }

    /// What is kept under `kind` (`task`, `goal`) of a thread.
    async fn get_thread_state(&self, thread_id: &str, kind: &str) -> Result<Option<Value>, StorageError> {
        let _ = (thread_id, kind);
        Err(StorageError::Unsupported { domain: "thread state", store: self.describe() })
    }

    /// Replaces what is kept under `kind` of a thread; `None` removes it. Objects and lists only (STO-079).
    ///
    /// # Errors
    /// [`StorageError::NotFound`] without the thread, [`StorageError::Invalid`] for other values.
    async fn set_thread_state(&self, thread_id: &str, kind: &str, value: Option<Value>) -> Result<(), StorageError> {
        let _ = (thread_id, kind, value);
        Err(StorageError::Unsupported { domain: "thread state", store: self.describe() })
    }

    // The durable inbox and runs (SIG §22.1; decisions 3 to 5 of the design).

    /// Appends accepted input to its thread's journal, after checking who owns the thread, and takes the thread's lease
    /// in the same transaction if asked to (ruling 25).
    ///
    /// Entries of one call are appended in order; calls that overlap are appended in the order they were made.
    async fn accept(&self, accept: Accept) -> Result<Accepted, StorageError>;

    /// The entries of a thread that are still to be placed, in order of acceptance.
    async fn inbox(&self, thread: &ThreadKey) -> Result<Vec<InboxEntry>, StorageError>;

    /// Takes accepted entries out of the journal because they were cancelled, cleared or given up. Returns those that
    /// were still there (SIG-290). In the same transaction the notifications that they showed are pending again, if `why`
    /// [`undelivers`](InboxEnd::undelivers) (NOTIF-018).
    async fn remove_inbox(
        &self,
        thread: &ThreadKey,
        ids: &[MessageId],
        why: InboxEnd,
    ) -> Result<Vec<MessageId>, StorageError>;

    /// Rewrites an entry that still waits: its signal, mode, place, attempts (ruling 23). `false` if it is gone.
    async fn update_inbox(&self, entry: InboxEntry) -> Result<bool, StorageError>;

    /// Writes all that a step changes, in one transaction (design, decision 4), and gives up the lease in it if asked
    /// to and nothing is left to do.
    ///
    /// # Errors
    /// [`StorageError::StaleEpoch`] if another owner has written since, [`StorageError::ThreadOwnership`].
    async fn commit(&self, commit: Commit) -> Result<Committed, StorageError>;

    /// The record of a run that has not ended.
    async fn get_run(&self, run_id: &RunId) -> Result<Option<RunRecord>, StorageError>;

    /// Threads with input or runs that no living process works on, for recovery (SIG-502, ruling 26): the first
    /// `limit` behind `after`, in the order of their keys.
    async fn unfinished(
        &self,
        owner: &str,
        after: Option<&ThreadKey>,
        limit: u32,
    ) -> Result<Vec<ThreadKey>, StorageError>;

    /// The records of a thread's runs that have not ended.
    async fn runs(&self, thread: &ThreadKey) -> Result<Vec<RunRecord>, StorageError>;

    // Parked runs (LOOP §7, STO §6). A store without them says so, and its runs cannot wait for people.

    /// A parked run. `None` if its outer row is missing; its inner row may be (STO-111).
    async fn parked_run(&self, run_id: &RunId) -> Result<Option<ParkedRun>, StorageError> {
        let _ = run_id;
        Err(StorageError::Unsupported { domain: "parked runs", store: self.describe() })
    }

    /// A page of parked runs, newest first. Rows that do not parse are left out (ruling 40).
    async fn list_parked(&self, query: ParkedQuery) -> Result<Page<ParkedRun>, StorageError> {
        let _ = query;
        Err(StorageError::Unsupported { domain: "parked runs", store: self.describe() })
    }

    /// Parks a run that has no thread. Those with one are parked by [`RunChange::Park`].
    ///
    /// # Errors
    /// [`StorageError::Exists`] if a parked run of another thread, agent or resource has its id; that holds for
    /// [`RunChange::Park`] too.
    async fn park(&self, run: ParkedRun) -> Result<(), StorageError> {
        let _ = run;
        Err(StorageError::Unsupported { domain: "parked runs", store: self.describe() })
    }

    /// Deletes the pair of a parked run; `false` if it is gone. Of several callers one gets `true` (LOOP-116).
    async fn unpark(&self, run_id: &RunId) -> Result<bool, StorageError> {
        let _ = run_id;
        Err(StorageError::Unsupported { domain: "parked runs", store: self.describe() })
    }

    // Leases (ruling 25). Owners are opaque; epochs grow with every change of owner.

    /// Takes or renews a thread's lease for `claim.owner`.
    async fn acquire_lease(&self, thread: &ThreadKey, claim: &LeaseClaim) -> Result<Lease, StorageError>;

    /// Gives the lease up, if `owner` holds it. The epoch stays in mind, and so does the number of the thread's last
    /// chunk in it, if given (HTTP-243).
    async fn release_lease(&self, thread: &ThreadKey, owner: &str, last_event: Option<u64>)
    -> Result<(), StorageError>;

    /// Epoch and number of the thread's last chunk, as of the last run that ended or the last lease that was given up
    /// (HTTP-243, ruling 39).
    async fn last_event(&self, thread: &ThreadKey) -> Result<Option<(u64, u64)>, StorageError>;

    /// Who holds the thread's lease now, if anybody who lives does (NOTIF-013).
    async fn lease_holder(&self, thread: &ThreadKey) -> Result<Option<String>, StorageError> {
        let _ = thread;
        Ok(None)
    }

    /// The notifications domain, if the store has it (NOTIF-010, STO-004).
    fn notifications(&self) -> Option<&dyn NotificationStore> {
        None
    }

    /// The subscriptions of signal providers, if the store keeps them (PROV-014).
    fn provider_subscriptions(&self) -> Option<&dyn ProviderSubscriptions> {
        None
    }
}

/// A shared store.
pub type SharedStorage = Arc<dyn Storage>;

/// Why an operation did not take effect.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StorageError {
    /// MEM-013, SIG-363.
    #[error(
        "Thread \"{thread}\" belongs to resource \"{owner}\" but resource \"{given}\" was provided. \
         A thread can only be used by the resource that owns it."
    )]
    ThreadOwnership {
        /// The thread.
        thread: String,
        /// Who owns it.
        owner: String,
        /// Who asked.
        given: String,
    },
    /// MEM-044.
    #[error("message {id} belongs to another thread or resource; save it under an id of its own")]
    MessageOwnership {
        /// The message.
        id: MessageId,
    },
    /// Nothing has this id.
    #[error("{what} {id} not found")]
    NotFound {
        /// `thread`, `message`, …
        what: &'static str,
        /// The id.
        id: String,
    },
    /// The id is taken.
    #[error("{what} {id} already exists")]
    Exists {
        /// `thread`, …
        what: &'static str,
        /// The id.
        id: String,
    },
    /// Input waits for the thread, or a run of it has not ended.
    #[error("thread {thread} has input that waits or a run that has not ended; cancel or abort it first")]
    Busy {
        /// The thread.
        thread: String,
    },
    /// The thread has another owner by now; what this one writes is refused (ruling 4).
    #[error("the lease of thread {thread} was lost: epoch {given} is older than {current}")]
    StaleEpoch {
        /// The thread.
        thread: String,
        /// The writer's epoch.
        given: u64,
        /// The store's.
        current: u64,
    },
    /// The run is not parked: it has been gone on with, discarded, or was never parked. Nothing was written (LOOP-116).
    #[error("run {run_id} is not parked; it may have been resumed or discarded already")]
    NotParked {
        /// The run.
        run_id: RunId,
    },
    /// SIG-503.
    #[error("signal {id} was already accepted with different content")]
    DifferentContent {
        /// The signal.
        id: MessageId,
    },
    /// A bad argument.
    #[error("{0}")]
    Invalid(String),
    /// The store has no such domain.
    #[error("{store} does not store {domain}; configure a store that does")]
    Unsupported {
        /// The domain.
        domain: &'static str,
        /// The store.
        store: String,
    },
    /// The store cannot be written or read: disk full, read-only, corrupt, gone. Says what to do.
    #[error("{message}")]
    Unavailable {
        /// What happened and what to do.
        message: String,
        /// The cause.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
}

impl StorageError {
    /// Whether the same operation may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable { .. } => true,
            Self::ThreadOwnership { .. }
            | Self::MessageOwnership { .. }
            | Self::NotFound { .. }
            | Self::Exists { .. }
            | Self::Busy { .. }
            | Self::StaleEpoch { .. }
            | Self::NotParked { .. }
            | Self::DifferentContent { .. }
            | Self::Invalid(_)
            | Self::Unsupported { .. } => false,
        }
    }
}
