//! The durable inbox, commits and run records.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    id::{MessageId, RunId, ThreadKey},
    message::StoredMessage,
    signal::Signal,
    storage::{NewThread, ParkedRun},
    time::Timestamp,
};

/// How an input enters the thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InputMode {
    /// Joins the running loop, or wakes an idle agent.
    Steer,
    /// Waits for a run of its own.
    Queue,
}

/// One accepted input that is still to be placed (SIG-500).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InboxEntry {
    /// The signal; its id names the entry.
    pub signal: Signal,
    /// The thread.
    pub thread: ThreadKey,
    /// The agent that will answer.
    pub agent_id: String,
    /// How it enters.
    pub mode: InputMode,
    /// The run reserved for it, for `Queue`; else the run it is expected to join.
    pub run_id: RunId,
    /// Options of the run it starts: the serialisable form of `run::RunOptions`.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub options: Value,
    /// Groups queued entries (SIG-259).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_owner_id: Option<String>,
    /// How often its run failed to start (SIG-255).
    #[serde(default)]
    pub attempts: u32,
    /// Orders the thread's entries; set by the store on append, changed to move an entry. Smaller is earlier.
    #[serde(default)]
    pub position: i64,
}

/// Input to accept.
#[derive(Debug, Clone, PartialEq)]
pub struct Accept {
    /// The input, in order; all of one thread.
    pub entries: Vec<InboxEntry>,
    /// The thread.
    pub thread: ThreadKey,
    /// Takes or renews the lease in the same transaction.
    pub claim: Option<LeaseClaim>,
    /// Only check who owns the thread; used for input that is not journaled.
    pub check_only: bool,
    /// Makes the thread for its resource, if it is missing, in the same transaction: of two resources that meet on a new
    /// thread one is refused before anything of it is accepted (SIG-362, SIG-364).
    pub create_thread: bool,
}

/// A wish to own a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseClaim {
    /// Who wants it: opaque, unique per process.
    pub owner: String,
    /// How long it holds without renewal, by the store's clock.
    pub ttl: Duration,
    /// The epoch under which the claimant held it before. If nobody has held it since, it stays the same although the
    /// lease was given up meanwhile. `None` for a newcomer, whose epoch is always a new one unless it holds the lease.
    pub kept: Option<u64>,
}

impl LeaseClaim {
    /// The claim of a newcomer.
    pub fn new(owner: impl Into<String>, ttl: Duration) -> Self {
        Self { owner: owner.into(), ttl, kept: None }
    }
}

/// Who owns a thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lease {
    /// The claimant, from now on or still.
    Held {
        /// Grows with every change of owner.
        epoch: u64,
    },
    /// Somebody else who is alive.
    HeldBy {
        /// Who.
        owner: String,
    },
}

/// What became of input to accept.
#[derive(Debug, Clone, PartialEq)]
pub struct Accepted {
    /// One for each entry, in order.
    pub entries: Vec<EntryOutcome>,
    /// The lease, if it was claimed.
    pub lease: Option<Lease>,
    /// What an earlier owner left on the thread, if the lease is held under another epoch than the one that was kept
    /// (SIG-502); else nothing.
    pub left: Left,
}

/// What an owner finds on a thread that is new to it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Left {
    /// What waits, in order of acceptance, without what was just appended.
    pub entries: Vec<InboxEntry>,
    /// Runs that have not ended.
    pub runs: Vec<RunRecord>,
    /// The thread's last event as it is stored, by epoch and number (HTTP-243).
    pub last_event: Option<(u64, u64)>,
}

/// What became of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryOutcome {
    /// It is in the journal.
    Appended {
        /// Its place.
        position: i64,
    },
    /// The same id with the same content was accepted before and still waits; nothing was appended (SIG-503).
    Waiting {
        /// The run named for it then.
        run_id: RunId,
    },
    /// The same id with the same content was placed before.
    Placed {
        /// The run that took it, where known.
        run_id: Option<RunId>,
    },
}

/// Why an entry leaves the journal without being placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InboxEnd {
    /// Withdrawn by a caller.
    Cancelled,
    /// Cleared by an abort.
    Cleared,
    /// Handed to nobody: dropped by policy, or transient and seen.
    Dropped,
}

impl InboxEnd {
    /// Whether a notification that the entry showed is pending again (NOTIF-018): somebody took it back before a run had
    /// it. What is dropped is told to its sender instead.
    pub fn undelivers(self) -> bool {
        matches!(self, Self::Cancelled | Self::Cleared)
    }
}

/// All that a step changes.
#[derive(Debug, Clone, PartialEq)]
pub struct Commit {
    /// The thread.
    pub thread: ThreadKey,
    /// The writer's ownership; a store with a newer one refuses.
    pub epoch: u64,
    /// Creates the thread if it is missing, before anything else.
    pub create_thread: Option<NewThread>,
    /// Entries that this commit places; they leave the journal. An entry that is no longer there is not an error: the
    /// message is upserted by id. An entry is remembered as placed (SIG-503) if this commit holds the message of its id.
    pub consumed: Vec<MessageId>,
    /// Messages to upsert by id, `created_at` kept on conflict.
    pub messages: Vec<StoredMessage>,
    /// Messages to delete (rollback, ruling 33).
    pub removed: Vec<MessageId>,
    /// Entries to put back into the journal, in order, in front of what waits (rollback, ruling 33).
    pub returned: Vec<InboxEntry>,
    /// The run's record.
    pub run: RunChange,
    /// Gives up the lease of this owner, if after all this nothing waits for the thread and no run of it is on record
    /// (SIG-405).
    pub release: Option<String>,
}

/// What a commit has done besides what it was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Committed {
    /// The lease was given up.
    pub released: bool,
}

impl Commit {
    /// A commit that changes nothing yet.
    pub fn new(thread: ThreadKey, epoch: u64) -> Self {
        Self {
            thread,
            epoch,
            create_thread: None,
            consumed: Vec::new(),
            messages: Vec::new(),
            removed: Vec::new(),
            returned: Vec::new(),
            run: RunChange::Keep,
            release: None,
        }
    }
}

/// What a commit does to the run's record.
#[derive(Debug, Clone, PartialEq)]
pub enum RunChange {
    /// Nothing.
    Keep,
    /// Writes it.
    Save(RunRecord),
    /// The run has ended; remembers its last event id on the thread (HTTP-243).
    End {
        /// The run.
        run_id: RunId,
        /// The number of the thread's last chunk in this epoch.
        last_event: u64,
    },
    /// Parks the run: writes its pair of rows and ends its record; remembers its last event id on the thread.
    Park {
        /// The run, of this thread.
        run: Box<ParkedRun>,
        /// The number of the thread's last chunk in this epoch.
        last_event: u64,
    },
    /// Goes on with a parked run: deletes its pair and saves its record. If the pair is gone, nothing of the commit is
    /// written: [`StorageError::NotParked`](crate::storage::StorageError::NotParked) (LOOP-116).
    Resume(RunRecord),
    /// Gives a parked run up: deletes its pair; remembers its last event id on the thread. Fails as [`Self::Resume`] does.
    Discard {
        /// The run.
        run_id: RunId,
        /// The number of the thread's last chunk in this epoch.
        last_event: u64,
    },
}

/// A run that has not ended: what recovery and resumption start from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunRecord {
    /// The run.
    pub run_id: RunId,
    /// Its thread.
    pub thread: ThreadKey,
    /// Its agent.
    pub agent_id: String,
    /// The serialised `run::RunSnapshot`.
    pub snapshot: Value,
    /// When it was last written.
    pub updated_at: Timestamp,
}
