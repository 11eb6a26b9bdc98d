//! A store in memory whose operations a test can hold up or let fail.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
};

use async_trait::async_trait;
use bugle::{
    id::{MessageId, RunId, ThreadKey},
    json::Value,
    message::{Resource, StoredMessage, Thread},
    signal::LaneChange,
    storage::*,
    time::Timestamp,
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

/// Its notifications domain is the store in memory's, with the same faults.
#[derive(Debug, Default)]
pub(crate) struct Faulty {
    inner: Arc<MemoryStorage>,
    /// Without notifications.
    bare: bool,
    /// How many writes are left until its process dies: from then on everything fails.
    writes_left: Option<AtomicI64>,
    calls: AtomicUsize,
    holds: Mutex<HashMap<&'static str, Hold>>,
    failing: Mutex<HashMap<&'static str, usize>>,
    spared: Mutex<HashMap<&'static str, usize>>,
    /// Commits until the process that has it dies.
    life: Mutex<Option<usize>>,
    dead: watch::Sender<bool>,
    /// Whether a rival got the thread, after each commit.
    rival: Mutex<Option<Vec<bool>>>,
}

impl Faulty {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Without the notifications domain.
    pub(crate) fn bare() -> Arc<Self> {
        Arc::new(Self { bare: true, ..Self::default() })
    }

    /// A process's view of a store that outlives it; the process dies after this many writes.
    pub(crate) fn on(inner: &Arc<MemoryStorage>, writes: Option<i64>) -> Arc<Self> {
        Arc::new(Self { inner: inner.clone(), writes_left: writes.map(AtomicI64::new), ..Self::default() })
    }

    /// Whether its process is out of writes.
    fn is_out_of_writes(&self) -> bool {
        self.writes_left.as_ref().is_some_and(|left| left.load(Ordering::SeqCst) < 0)
    }

    /// How often it was called.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }

    async fn write(&self, operation: &'static str) -> Result<(), StorageError> {
        if let Some(left) = &self.writes_left {
            left.fetch_sub(1, Ordering::SeqCst);
        }
        self.pass(operation).await
    }

    /// The same store for another process.
    pub(crate) fn again(&self) -> Arc<Self> {
        Arc::new(Self { inner: self.inner.clone(), ..Self::default() })
    }

    /// After so many commits nothing is written any more, and nobody hears of it: to its process the store is gone.
    pub(crate) fn die_after(&self, commits: usize) {
        *self.life.lock() = Some(commits);
    }

    /// From now on somebody else claims the thread right after each commit.
    pub(crate) fn let_a_rival_in(&self) {
        *self.rival.lock() = Some(Vec::new());
    }

    /// After which of the commits the rival got the thread.
    pub(crate) fn rival_won(&self) -> Vec<bool> {
        self.rival.lock().clone().unwrap_or_default()
    }

    async fn rival_claims(&self, thread: &ThreadKey) {
        if self.rival.lock().is_some() {
            let claim = LeaseClaim::new("rival", std::time::Duration::from_secs(3600));
            let answer = self.inner.acquire_lease(thread, &claim).await;
            let won = matches!(answer, Ok(Lease::Held { .. }));
            self.rival.lock().iter_mut().for_each(|wins| wins.push(won));
        }
    }

    pub(crate) fn is_dead(&self) -> bool {
        *self.dead.borrow() || self.is_out_of_writes()
    }

    pub(crate) async fn dead(&self) {
        let _ = self.dead.subscribe().wait_for(|dead| *dead).await;
    }

    async fn live(&self) {
        if *self.dead.borrow() {
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

    /// As [`Self::fail`], after `spared` calls that succeed.
    pub(crate) fn fail_after(&self, operation: &'static str, spared: usize, times: usize) {
        self.spared.lock().insert(operation, spared);
        self.fail(operation, times);
    }

    async fn pass(&self, operation: &'static str) -> Result<(), StorageError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        if self.is_out_of_writes() {
            return Err(StorageError::Unavailable { message: "the process is dead".into(), source: None });
        }
        self.live().await;
        let hold = self.holds.lock().get(operation).cloned();
        if let Some(hold) = hold {
            hold.pass().await;
        }
        if let Some(spared) = self.spared.lock().get_mut(operation).filter(|spared| **spared > 0) {
            *spared -= 1;
            return Ok(());
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
        self.pass("get_thread").await?;
        self.inner.get_thread(id).await
    }
    async fn create_thread(&self, thread: NewThread) -> Result<Thread, StorageError> {
        self.write("create_thread").await?;
        self.inner.create_thread(thread).await
    }
    async fn update_thread(&self, update: ThreadUpdate) -> Result<Thread, StorageError> {
        self.write("update_thread").await?;
        self.inner.update_thread(update).await
    }
    async fn list_threads(&self, query: ThreadQuery) -> Result<Page<Thread>, StorageError> {
        self.pass("list_threads").await?;
        self.inner.list_threads(query).await
    }
    async fn delete_thread(&self, id: &str) -> Result<bool, StorageError> {
        self.write("delete_thread").await?;
        self.inner.delete_thread(id).await
    }
    async fn clone_thread(&self, clone: CloneThread) -> Result<ClonedThread, StorageError> {
        self.write("clone_thread").await?;
        self.inner.clone_thread(clone).await
    }
    async fn transfer_thread(&self, id: &str, resource_id: &str) -> Result<Thread, StorageError> {
        self.write("transfer_thread").await?;
        self.inner.transfer_thread(id, resource_id).await
    }
    async fn track_lanes(&self, thread_id: &str, changes: Vec<LaneChange>) -> Result<bool, StorageError> {
        self.write("track_lanes").await?;
        self.inner.track_lanes(thread_id, changes).await
    }
    async fn get_thread_state(&self, thread_id: &str, kind: &str) -> Result<Option<Value>, StorageError> {
        self.inner.get_thread_state(thread_id, kind).await
    }
    async fn set_thread_state(&self, thread_id: &str, kind: &str, value: Option<Value>) -> Result<(), StorageError> {
        self.inner.set_thread_state(thread_id, kind, value).await
    }
    async fn list_messages(&self, query: MessageQuery) -> Result<Page<StoredMessage>, StorageError> {
        self.pass("list_messages").await?;
        self.inner.list_messages(query).await
    }
    async fn recent_messages(&self, thread: &ThreadKey, limit: u32) -> Result<Vec<StoredMessage>, StorageError> {
        self.pass("recent_messages").await?;
        self.inner.recent_messages(thread, limit).await
    }
    async fn get_messages(&self, ids: &[MessageId]) -> Result<Vec<StoredMessage>, StorageError> {
        self.pass("get_messages").await?;
        self.inner.get_messages(ids).await
    }
    async fn save_messages(&self, messages: Vec<StoredMessage>) -> Result<(), StorageError> {
        self.write("save_messages").await?;
        self.inner.save_messages(messages).await
    }
    async fn delete_messages(&self, ids: &[MessageId]) -> Result<usize, StorageError> {
        self.write("delete_messages").await?;
        self.inner.delete_messages(ids).await
    }
    async fn get_resource(&self, id: &str) -> Result<Option<Resource>, StorageError> {
        self.pass("get_resource").await?;
        self.inner.get_resource(id).await
    }
    async fn update_resource(&self, id: &str, change: ResourceChange) -> Result<Resource, StorageError> {
        self.write("update_resource").await?;
        self.inner.update_resource(id, change).await
    }
    async fn accept(&self, accept: Accept) -> Result<Accepted, StorageError> {
        self.write("accept").await?;
        self.inner.accept(accept).await
    }
    async fn inbox(&self, thread: &ThreadKey) -> Result<Vec<InboxEntry>, StorageError> {
        self.pass("inbox").await?;
        self.inner.inbox(thread).await
    }
    async fn remove_inbox(
        &self,
        thread: &ThreadKey,
        ids: &[MessageId],
        why: InboxEnd,
    ) -> Result<Vec<MessageId>, StorageError> {
        self.write("remove_inbox").await?;
        self.inner.remove_inbox(thread, ids, why).await
    }
    async fn update_inbox(&self, entry: InboxEntry) -> Result<bool, StorageError> {
        self.write("update_inbox").await?;
        self.inner.update_inbox(entry).await
    }
    async fn commit(&self, commit: Commit) -> Result<Committed, StorageError> {
        self.write("commit").await?;
        let thread = commit.thread.clone();
        let done = self.inner.commit(commit).await;
        self.rival_claims(&thread).await;
        self.committed().await;
        done
    }
    async fn parked_run(&self, run_id: &RunId) -> Result<Option<ParkedRun>, StorageError> {
        self.pass("parked_run").await?;
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
        self.pass("get_run").await?;
        self.inner.get_run(run_id).await
    }
    async fn unfinished(
        &self,
        owner: &str,
        after: Option<&ThreadKey>,
        limit: u32,
    ) -> Result<Vec<ThreadKey>, StorageError> {
        self.pass("unfinished").await?;
        self.inner.unfinished(owner, after, limit).await
    }
    async fn runs(&self, thread: &ThreadKey) -> Result<Vec<RunRecord>, StorageError> {
        self.pass("runs").await?;
        self.inner.runs(thread).await
    }
    async fn acquire_lease(&self, thread: &ThreadKey, claim: &LeaseClaim) -> Result<Lease, StorageError> {
        self.write("acquire_lease").await?;
        self.inner.acquire_lease(thread, claim).await
    }
    async fn release_lease(
        &self,
        thread: &ThreadKey,
        owner: &str,
        last_event: Option<u64>,
    ) -> Result<(), StorageError> {
        self.write("release_lease").await?;
        self.inner.release_lease(thread, owner, last_event).await
    }
    async fn last_event(&self, thread: &ThreadKey) -> Result<Option<(u64, u64)>, StorageError> {
        self.pass("last_event").await?;
        self.inner.last_event(thread).await
    }
    async fn lease_holder(&self, thread: &ThreadKey) -> Result<Option<String>, StorageError> {
        self.pass("lease_holder").await?;
        self.inner.lease_holder(thread).await
    }
    fn notifications(&self) -> Option<&dyn NotificationStore> {
        (!self.bare).then_some(self)
    }
    fn provider_subscriptions(&self) -> Option<&dyn ProviderSubscriptions> {
        self.inner.provider_subscriptions()
    }
}

#[async_trait]
impl NotificationStore for Faulty {
    async fn create(&self, new: NewRecord) -> Result<CreatedRecord, StorageError> {
        self.write("create").await?;
        self.inner.create(new).await
    }
    async fn get(&self, thread_id: &str, id: &str) -> Result<Option<NotificationRecord>, StorageError> {
        self.pass("get").await?;
        self.inner.get(thread_id, id).await
    }
    async fn list(&self, query: &NotificationQuery) -> Result<NotificationPage, StorageError> {
        self.pass("list").await?;
        NotificationStore::list(&*self.inner, query).await
    }
    async fn list_due(&self, query: &DueQuery) -> Result<Vec<NotificationRecord>, StorageError> {
        self.pass("list_due").await?;
        self.inner.list_due(query).await
    }
    async fn update(&self, key: &RecordKey, change: RecordChange) -> Result<Option<NotificationRecord>, StorageError> {
        self.write("update").await?;
        self.inner.update(key, change).await
    }
    async fn update_all(
        &self,
        keys: &[RecordKey],
        change: RecordChange,
    ) -> Result<Vec<NotificationRecord>, StorageError> {
        self.write("update_all").await?;
        self.inner.update_all(keys, change).await
    }
    async fn update_status(
        &self,
        thread_id: &str,
        ids: &[String],
        status: &str,
        now: Timestamp,
    ) -> Result<Vec<NotificationRecord>, StorageError> {
        self.write("update_status").await?;
        self.inner.update_status(thread_id, ids, status, now).await
    }
    async fn claim(&self, keys: &[RecordKey], claim: &RecordClaim) -> Result<Vec<NotificationRecord>, StorageError> {
        self.write("claim").await?;
        self.inner.claim(keys, claim).await
    }
    async fn claim_due(&self, query: &DueQuery, claim: &RecordClaim) -> Result<Vec<ClaimedRecord>, StorageError> {
        self.write("claim_due").await?;
        self.inner.claim_due(query, claim).await
    }
    async fn intend(&self, keys: &[RecordKey], token: &str, signal: &MessageId) -> Result<usize, StorageError> {
        self.write("intend").await?;
        self.inner.intend(keys, token, signal).await
    }
    async fn renew(&self, keys: &[RecordKey], token: &str, until: Timestamp) -> Result<usize, StorageError> {
        self.write("renew").await?;
        self.inner.renew(keys, token, until).await
    }
    async fn release(&self, keys: &[RecordKey], token: &str) -> Result<(), StorageError> {
        self.write("release").await?;
        self.inner.release(keys, token).await
    }
    async fn next_due_at(&self, now: Timestamp) -> Result<Option<Timestamp>, StorageError> {
        self.pass("next_due_at").await?;
        self.inner.next_due_at(now).await
    }
    async fn count(&self, query: &NotificationQuery) -> Result<usize, StorageError> {
        self.pass("count").await?;
        self.inner.count(query).await
    }
    async fn prune(&self, before: Timestamp, statuses: &[String]) -> Result<usize, StorageError> {
        self.write("prune").await?;
        self.inner.prune(before, statuses).await
    }
    async fn clear(&self) -> Result<(), StorageError> {
        self.write("clear").await?;
        self.inner.clear().await
    }
}
