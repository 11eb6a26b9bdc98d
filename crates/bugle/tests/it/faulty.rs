//! A store in memory whose operations a test can hold up or let fail.

use std::{collections::HashMap, sync::Arc};

use async_trait::async_trait;
use bugle::{
    id::{MessageId, RunId, ThreadKey},
    message::{Resource, StoredMessage, Thread},
    storage::*,
};
use parking_lot::Mutex;
use tokio::sync::watch;

/// Holds whoever comes by until it is opened.
#[derive(Debug, Clone)]
pub(crate) struct Hold {
    open: watch::Sender<bool>,
    reached: watch::Sender<usize>,
}

impl Hold {
    pub(crate) async fn reached(&self) {
        let _ = self.reached.subscribe().wait_for(|reached| *reached > 0).await;
    }

    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }

    async fn pass(&self) {
        self.reached.send_modify(|reached| *reached += 1);
        let _ = self.open.subscribe().wait_for(|open| *open).await;
    }
}

#[derive(Debug, Default)]
pub(crate) struct Faulty {
    inner: Arc<MemoryStorage>,
    holds: Mutex<HashMap<&'static str, Hold>>,
    failing: Mutex<HashMap<&'static str, usize>>,
    /// Commits until the process that has it dies.
    life: Mutex<Option<usize>>,
    dead: watch::Sender<bool>,
}

impl Faulty {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The same store for another process.
    pub(crate) fn again(&self) -> Arc<Self> {
        Arc::new(Self { inner: self.inner.clone(), ..Self::default() })
    }

    /// After so many commits nothing is written any more, and nobody hears of it: to its process the store is gone.
    pub(crate) fn die_after(&self, commits: usize) {
        *self.life.lock() = Some(commits);
    }

    pub(crate) fn is_dead(&self) -> bool {
        *self.dead.borrow()
    }

    pub(crate) async fn dead(&self) {
        let _ = self.dead.subscribe().wait_for(|dead| *dead).await;
    }

    async fn live(&self) {
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
    }

    async fn committed(&self) {
        let dies = self.life.lock().as_mut().is_some_and(|left| {
            *left = left.saturating_sub(1);
            *left == 0
        });
        if dies {
            self.dead.send_replace(true);
            self.live().await;
        }
    }

    /// The next calls of `operation` wait.
    pub(crate) fn hold(&self, operation: &'static str) -> Hold {
        let hold = Hold { open: watch::Sender::new(false), reached: watch::Sender::new(0) };
        self.holds.lock().insert(operation, hold.clone());
        hold
    }

    /// The next `times` calls of `operation` fail.
    pub(crate) fn fail(&self, operation: &'static str, times: usize) {
        self.failing.lock().insert(operation, times);
    }

    async fn pass(&self, operation: &'static str) -> Result<(), StorageError> {
        self.live().await;
        let hold = self.holds.lock().get(operation).cloned();
        if let Some(hold) = hold {
            hold.pass().await;
        }
        let mut failing = self.failing.lock();
        if let Some(left) = failing.get_mut(operation).filter(|left| **left > 0) {
            *left -= 1;
            return Err(StorageError::Unavailable { message: format!("{operation} is down"), source: None });
        }
        Ok(())
    }
}

#[async_trait]
impl Storage for Faulty {
    fn describe(&self) -> String {
        "faulty:".into()
    }
    fn is_durable(&self) -> bool {
        false
    }
    fn owner(&self) -> String {
        self.inner.owner()
    }
    async fn get_thread(&self, id: &str) -> Result<Option<Thread>, StorageError> {
        self.inner.get_thread(id).await
    }
    async fn create_thread(&self, thread: NewThread) -> Result<Thread, StorageError> {
        self.inner.create_thread(thread).await
    }
    async fn update_thread(&self, update: ThreadUpdate) -> Result<Thread, StorageError> {
        self.inner.update_thread(update).await
    }
    async fn list_threads(&self, query: ThreadQuery) -> Result<Page<Thread>, StorageError> {
        self.inner.list_threads(query).await
    }
    async fn delete_thread(&self, id: &str) -> Result<bool, StorageError> {
        self.inner.delete_thread(id).await
    }
    async fn clone_thread(&self, clone: CloneThread) -> Result<ClonedThread, StorageError> {
        self.inner.clone_thread(clone).await
    }
    async fn transfer_thread(&self, id: &str, resource_id: &str) -> Result<Thread, StorageError> {
        self.inner.transfer_thread(id, resource_id).await
    }
    async fn list_messages(&self, query: MessageQuery) -> Result<Page<StoredMessage>, StorageError> {
        self.inner.list_messages(query).await
    }
    async fn recent_messages(&self, thread: &ThreadKey, limit: u32) -> Result<Vec<StoredMessage>, StorageError> {
        self.pass("recent_messages").await?;
        self.inner.recent_messages(thread, limit).await
    }
    async fn get_messages(&self, ids: &[MessageId]) -> Result<Vec<StoredMessage>, StorageError> {
        self.inner.get_messages(ids).await
    }
    async fn save_messages(&self, messages: Vec<StoredMessage>) -> Result<(), StorageError> {
        self.pass("save_messages").await?;
        self.inner.save_messages(messages).await
    }
    async fn delete_messages(&self, ids: &[MessageId]) -> Result<usize, StorageError> {
        self.inner.delete_messages(ids).await
    }
    async fn get_resource(&self, id: &str) -> Result<Option<Resource>, StorageError> {
        self.inner.get_resource(id).await
    }
    async fn update_resource(&self, id: &str, change: ResourceChange) -> Result<Resource, StorageError> {
        self.inner.update_resource(id, change).await
    }
    async fn accept(&self, accept: Accept) -> Result<Accepted, StorageError> {
        self.pass("accept").await?;
        self.inner.accept(accept).await
    }
    async fn inbox(&self, thread: &ThreadKey) -> Result<Vec<InboxEntry>, StorageError> {
        self.inner.inbox(thread).await
    }
    async fn remove_inbox(
        &self,
        thread: &ThreadKey,
        ids: &[MessageId],
        why: InboxEnd,
    ) -> Result<Vec<MessageId>, StorageError> {
        self.pass("remove_inbox").await?;
        self.inner.remove_inbox(thread, ids, why).await
    }
    async fn update_inbox(&self, entry: InboxEntry) -> Result<bool, StorageError> {
        self.pass("update_inbox").await?;
        self.inner.update_inbox(entry).await
    }
    async fn commit(&self, commit: Commit) -> Result<Committed, StorageError> {
        self.pass("commit").await?;
        let done = self.inner.commit(commit).await;
        self.committed().await;
        done
    }
    async fn parked_run(&self, run_id: &RunId) -> Result<Option<ParkedRun>, StorageError> {
        self.inner.parked_run(run_id).await
    }
    async fn list_parked(&self, query: ParkedQuery) -> Result<Page<ParkedRun>, StorageError> {
        self.inner.list_parked(query).await
    }
    async fn park(&self, run: ParkedRun) -> Result<(), StorageError> {
        self.inner.park(run).await
    }
    async fn unpark(&self, run_id: &RunId) -> Result<bool, StorageError> {
        self.inner.unpark(run_id).await
    }
    async fn get_run(&self, run_id: &RunId) -> Result<Option<RunRecord>, StorageError> {
        self.inner.get_run(run_id).await
    }
    async fn unfinished(
        &self,
        owner: &str,
        after: Option<&ThreadKey>,
        limit: u32,
    ) -> Result<Vec<ThreadKey>, StorageError> {
        self.inner.unfinished(owner, after, limit).await
    }
    async fn runs(&self, thread: &ThreadKey) -> Result<Vec<RunRecord>, StorageError> {
        self.inner.runs(thread).await
    }
    async fn acquire_lease(&self, thread: &ThreadKey, claim: &LeaseClaim) -> Result<Lease, StorageError> {
        self.inner.acquire_lease(thread, claim).await
    }
    async fn release_lease(
        &self,
        thread: &ThreadKey,
        owner: &str,
        last_event: Option<u64>,
    ) -> Result<(), StorageError> {
        self.inner.release_lease(thread, owner, last_event).await
    }
    async fn last_event(&self, thread: &ThreadKey) -> Result<Option<(u64, u64)>, StorageError> {
        self.inner.last_event(thread).await
    }
}
