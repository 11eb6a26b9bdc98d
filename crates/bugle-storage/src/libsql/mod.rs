//! One SQLite file, in the format that the reference's libSQL store shares (STO §2).
//!
//! One thread owns the only writing connection. It takes all jobs that wait, runs each in a savepoint of one
//! `BEGIN IMMEDIATE`, and answers them after the commit: many callers share the cost of one. A few more threads read.
//! The write queue is bounded; when it is full, callers wait their turn, in order. Dropping a future cancels a job that
//! has not begun and does not disturb one that has.
//!
//! Several processes may use one file at once, the reference among them.

mod alive;
mod checkpoint;
mod codec;
mod error;
mod inbox;
mod messages;
mod network;
mod notifications;
mod open;
mod parked;
mod providers;
mod schema;
mod threads;
mod worker;

pub use open::{LibSqlOptions, Synchronous};

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use async_trait::async_trait;
use bugle::{
    id::{MessageId, RunId, ThreadKey},
    json::Value,
    message::{Resource, StoredMessage, Thread},
    signal::LaneChange,
    storage::{
        Accept, Accepted, CloneThread, ClonedThread, Commit, Committed, InboxEnd, InboxEntry, Lease, LeaseClaim,
        MessageQuery, NewThread, NotificationStore, Page, ParkedQuery, ParkedRun, ProviderSubscriptions,
        ResourceChange, RunChange, RunRecord, Storage, StorageError, ThreadQuery, ThreadUpdate, rules,
    },
    time::Timestamp,
};
use rusqlite::Connection;

use self::{
    alive::Watch,
    error::{Answer, Failure, is_busy},
    worker::Worker,
};

/// A store in a SQLite file.
///
/// The last clone's end closes the file once the jobs that wait are done, and gives up the proof of life, so that other
/// processes may take over its threads.
#[derive(Debug, Clone)]
pub struct LibSql {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// `file:bugle.db`.
    name: Arc<str>,
    is_durable: bool,
    owner: String,
    watch: Watch,
    writer: Worker,
    /// Empty for a database in memory: only the writer sees it.
    readers: Vec<Worker>,
    /// None for a database in memory.
    near: Option<Near>,
    next_reader: AtomicUsize,
}

/// A connection for small lookups on the caller's own thread: most take less time than handing them to another thread.
struct Near {
    connection: Mutex<Connection>,
    /// The writer closes the file last.
    _open: std::sync::mpsc::Sender<worker::Never>,
}

impl std::fmt::Debug for Near {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Near")
    }
}

impl Near {
    fn new(connection: Connection, open: std::sync::mpsc::Sender<worker::Never>) -> Self {
        Self { connection: Mutex::new(connection), _open: open }
    }
}

/// A lookup of more rows than this is handed to a reader.
const NEAR_ROWS: u32 = 64;

impl LibSql {
    /// Opens `url` with the default options: a path, `file:PATH` (with SQLite's URI parameters), or `:memory:`.
    ///
    /// # Errors
    /// [`StorageError::Unavailable`] with what happened and what to do.
    ///
    /// ```
    /// # fn main() -> Result<(), bugle::storage::StorageError> {
    /// use bugle_storage::libsql::LibSql;
    /// let store = LibSql::open(":memory:")?;
    /// # drop(store);
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(url: &str) -> Result<Self, StorageError> {
        LibSqlOptions::builder().url(url).build().open()
    }

    /// Drops this handle and waits until the file is closed and the proof of life given up: until the jobs that wait are
    /// done and every clone is gone.
    pub async fn close(self) {
        let ended = self.inner.writer.ended();
        drop(self);
        ended.await;
    }

    /// How many write jobs wait for the writer: the depth of the queue.
    pub fn writes_waiting(&self) -> usize {
        self.inner.writer.waiting()
    }

    async fn write<T: Send + 'static>(
        &self,
        work: impl Fn(&Connection) -> Answer<T> + Send + 'static,
    ) -> Result<T, StorageError> {
        self.inner.writer.run(work).await
    }

    async fn read<T: Send + 'static>(
        &self,
        work: impl Fn(&Connection) -> Answer<T> + Send + 'static,
    ) -> Result<T, StorageError> {
        let inner = &self.inner;
        let turn = inner.next_reader.fetch_add(1, Ordering::Relaxed);
        let reader = match inner.readers.len() {
            0 => &inner.writer,
            count => &inner.readers[turn % count],
        };
        reader.run(work).await
    }
}

impl LibSql {
    /// A lookup of a few rows by index, in one statement: at once if the connection for it is free.
    async fn look<T: Send + 'static>(
        &self,
        work: impl Fn(&Connection) -> Answer<T> + Send + 'static,
    ) -> Result<T, StorageError> {
        if let Some(near) = &self.inner.near
            && let Ok(connection) = near.connection.try_lock()
        {
            match work(&connection) {
                // Another process is just changing the file's form: a reader waits for it.
                Err(Failure::Sqlite(error)) if is_busy(&error) => {}
                answer => return answer.map_err(|failure| failure.explain(&self.inner.name)),
            }
        }
        self.read(work).await
    }
}

fn encoded(messages: Vec<StoredMessage>) -> Vec<(StoredMessage, messages::Row)> {
    messages
        .into_iter()
        .map(|message| {
            let row = messages::Row::of(&message);
            (message, row)
        })
        .collect()
}

#[async_trait]
impl Storage for LibSql {
    fn describe(&self) -> String {
        self.inner.name.to_string()
    }

    fn is_durable(&self) -> bool {
        self.inner.is_durable
    }

    fn owner(&self) -> String {
        self.inner.owner.clone()
    }

    async fn owner_lives(&self, owner: &str) -> bool {
        let (watch, owner) = (self.inner.watch.clone(), owner.to_owned());
        tokio::task::spawn_blocking(move || watch.is_alive(&owner)).await.unwrap_or(true)
    }

    async fn get_thread(&self, id: &str) -> Result<Option<Thread>, StorageError> {
        let id = id.to_owned();
        self.look(move |connection| threads::get(connection, &id)).await
    }

    async fn create_thread(&self, mut thread: NewThread) -> Result<Thread, StorageError> {
        // Made here, since a job may run twice.
        thread.id.get_or_insert_with(|| MessageId::fresh().to_string());
        self.write(move |connection| threads::create(connection, thread.clone())).await
    }

    async fn update_thread(&self, update: ThreadUpdate) -> Result<Thread, StorageError> {
        self.write(move |connection| threads::update(connection, update.clone())).await
    }

    async fn list_threads(&self, query: ThreadQuery) -> Result<Page<Thread>, StorageError> {
        rules::check_thread_query(&query)?;
        self.read(move |connection| threads::list(connection, &query)).await
    }

    async fn delete_thread(&self, id: &str) -> Result<bool, StorageError> {
        let id = id.to_owned();
        self.write(move |connection| threads::delete(connection, &id)).await
    }

    async fn clone_thread(&self, clone: CloneThread) -> Result<ClonedThread, StorageError> {
        self.write(move |connection| threads::clone(connection, clone.clone())).await
    }

    async fn track_lanes(&self, thread_id: &str, changes: Vec<LaneChange>) -> Result<bool, StorageError> {
        let thread_id = thread_id.to_owned();
        self.write(move |connection| threads::track_lanes(connection, &thread_id, &changes)).await
    }

    async fn get_thread_state(&self, thread_id: &str, kind: &str) -> Result<Option<Value>, StorageError> {
        let (thread_id, kind) = (thread_id.to_owned(), kind.to_owned());
        self.read(move |connection| threads::get_state(connection, &thread_id, &kind)).await
    }

    async fn set_thread_state(&self, thread_id: &str, kind: &str, value: Option<Value>) -> Result<(), StorageError> {
        if let Some(value) = &value {
            rules::check_thread_state(value)?;
        }
        let (thread_id, kind) = (thread_id.to_owned(), kind.to_owned());
        self.write(move |connection| threads::set_state(connection, &thread_id, &kind, value.as_ref())).await
    }

    async fn transfer_thread(&self, id: &str, resource_id: &str) -> Result<Thread, StorageError> {
        let (id, resource_id) = (id.to_owned(), resource_id.to_owned());
        self.write(move |connection| threads::transfer(connection, &id, &resource_id)).await
    }

    async fn list_messages(&self, query: MessageQuery) -> Result<Page<StoredMessage>, StorageError> {
        rules::check_message_query(&query)?;
        self.read(move |connection| messages::list(connection, &query)).await
    }

    async fn recent_messages(&self, thread: &ThreadKey, limit: u32) -> Result<Vec<StoredMessage>, StorageError> {
        let thread = thread.clone();
        if limit > NEAR_ROWS {
            return self.read(move |connection| messages::recent(connection, &thread, limit)).await;
        }
        self.look(move |connection| messages::recent(connection, &thread, limit)).await
    }

    async fn get_messages(&self, ids: &[MessageId]) -> Result<Vec<StoredMessage>, StorageError> {
        let ids = ids.to_vec();
        if ids.len() > NEAR_ROWS as usize {
            return self.read(move |connection| messages::get(connection, &ids)).await;
        }
        self.look(move |connection| messages::get(connection, &ids)).await
    }

    async fn save_messages(&self, messages: Vec<StoredMessage>) -> Result<(), StorageError> {
        let messages = encoded(messages);
        self.write(move |connection| messages::save(connection, &messages)).await
    }

    async fn delete_messages(&self, ids: &[MessageId]) -> Result<usize, StorageError> {
        rules::check_delete_ids(ids)?;
        if ids.is_empty() {
            return Ok(0);
        }
        let ids = ids.to_vec();
        self.write(move |connection| messages::delete(connection, &ids)).await
    }

    async fn get_resource(&self, id: &str) -> Result<Option<Resource>, StorageError> {
        let id = id.to_owned();
        self.look(move |connection| threads::get_resource(connection, &id)).await
    }

    async fn update_resource(&self, id: &str, change: ResourceChange) -> Result<Resource, StorageError> {
        let id = id.to_owned();
        self.write(move |connection| threads::update_resource(connection, &id, change.clone())).await
    }

    async fn accept(&self, accept: Accept) -> Result<Accepted, StorageError> {
        rules::check_accept(&accept)?;
        let Accept { entries, thread, claim, check_only, create_thread } = accept;
        let drafts: Vec<inbox::Draft> =
            if check_only { Vec::new() } else { entries.into_iter().map(inbox::Draft::of).collect() };
        let watch = self.inner.watch.clone();
        self.write(move |connection| inbox::accept(connection, &watch, &thread, &drafts, claim.as_ref(), create_thread))
            .await
    }

    async fn inbox(&self, thread: &ThreadKey) -> Result<Vec<InboxEntry>, StorageError> {
        let thread = thread.clone();
        self.read(move |connection| inbox::list(connection, &thread)).await
    }

    async fn remove_inbox(
        &self,
        thread: &ThreadKey,
        ids: &[MessageId],
        why: InboxEnd,
    ) -> Result<Vec<MessageId>, StorageError> {
        let (thread, ids) = (thread.clone(), ids.to_vec());
        self.write(move |connection| inbox::remove(connection, &thread, &ids, why)).await
    }

    async fn update_inbox(&self, entry: InboxEntry) -> Result<bool, StorageError> {
        let draft = inbox::Draft::of(entry);
        self.write(move |connection| inbox::update(connection, &draft)).await
    }

    async fn commit(&self, mut commit: Commit) -> Result<Committed, StorageError> {
        rules::complete_commit(&mut commit)?;
        let Commit { thread, epoch, create_thread, consumed, messages, removed, mut returned, run, release } = commit;
        for entry in &mut returned {
            entry.thread = thread.clone();
        }
        let step = inbox::Step {
            thread,
            epoch,
            create_thread,
            consumed,
            messages: encoded(messages),
            removed,
            returned: returned.into_iter().map(inbox::Draft::of).collect(),
            parked: match &run {
                RunChange::Park { run, .. } => Some(parked::Draft::of(run)),
                _ => None,
            },
            run,
            release,
        };
        self.write(move |connection| inbox::commit(connection, &step)).await
    }

    async fn get_run(&self, run_id: &RunId) -> Result<Option<RunRecord>, StorageError> {
        let run_id = run_id.clone();
        self.look(move |connection| inbox::get_run(connection, &run_id)).await
    }

    async fn unfinished(
        &self,
        owner: &str,
        after: Option<&ThreadKey>,
        limit: u32,
    ) -> Result<Vec<ThreadKey>, StorageError> {
        let (owner, after, watch) = (owner.to_owned(), after.cloned(), self.inner.watch.clone());
        self.read(move |connection| inbox::unfinished(connection, &watch, &owner, after.as_ref(), limit)).await
    }

    async fn runs(&self, thread: &ThreadKey) -> Result<Vec<RunRecord>, StorageError> {
        let thread = thread.clone();
        self.read(move |connection| inbox::runs(connection, &thread)).await
    }

    async fn parked_run(&self, run_id: &RunId) -> Result<Option<ParkedRun>, StorageError> {
        let run_id = run_id.clone();
        self.read(move |connection| parked::get(connection, &run_id)).await
    }

    async fn list_parked(&self, query: ParkedQuery) -> Result<Page<ParkedRun>, StorageError> {
        self.read(move |connection| parked::list(connection, &query)).await
    }

    async fn park(&self, run: ParkedRun) -> Result<(), StorageError> {
        let draft = parked::Draft::of(&run);
        self.write(move |connection| parked::put(connection, &draft)).await
    }

    async fn unpark(&self, run_id: &RunId) -> Result<bool, StorageError> {
        let run_id = run_id.clone();
        self.write(move |connection| parked::remove(connection, &run_id)).await
    }

    async fn acquire_lease(&self, thread: &ThreadKey, claim: &LeaseClaim) -> Result<Lease, StorageError> {
        let (thread, claim, watch) = (thread.clone(), claim.clone(), self.inner.watch.clone());
        self.write(move |connection| inbox::claim(connection, &watch, &thread, &claim, Timestamp::now())).await
    }

    async fn release_lease(
        &self,
        thread: &ThreadKey,
        owner: &str,
        last_event: Option<u64>,
    ) -> Result<(), StorageError> {
        let (thread, owner) = (thread.clone(), owner.to_owned());
        self.write(move |connection| inbox::release(connection, &thread, &owner, last_event)).await
    }

    async fn last_event(&self, thread: &ThreadKey) -> Result<Option<(u64, u64)>, StorageError> {
        let thread = thread.clone();
        self.look(move |connection| inbox::last_event(connection, &thread)).await
    }

    async fn lease_holder(&self, thread: &ThreadKey) -> Result<Option<String>, StorageError> {
        let (thread, watch) = (thread.clone(), self.inner.watch.clone());
        self.read(move |connection| inbox::lease_holder(connection, &watch, &thread)).await
    }

    fn notifications(&self) -> Option<&dyn NotificationStore> {
        Some(self)
    }

    fn provider_subscriptions(&self) -> Option<&dyn ProviderSubscriptions> {
        Some(self)
    }
}
