//! A store in memory: what a runtime without storage uses. Nothing survives the process.

mod inbox;
mod messages;
mod notifications;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt,
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{
    Accept, Accepted, CloneThread, ClonedThread, Commit, Committed, Direction, InboxEnd, InboxEntry, Lease, LeaseClaim,
    MessageQuery, NewThread, NotificationStore, Page, ParkedQuery, ParkedRun, ProviderSubscriptions, ResourceChange,
    RunRecord, Storage, StorageError, ThreadOrder, ThreadQuery, ThreadUpdate,
    rules::{self, LeaseState},
};
use crate::{
    id::{MessageId, RunId, ThreadKey},
    json::Value,
    message::{Resource, Role, StoredMessage, Thread},
    signal::LaneChange,
    time::{SharedClock, SystemClock, Timestamp},
};

/// The in-memory store.
pub struct MemoryStorage {
    owner: String,
    clock: SharedClock,
    state: Mutex<State>,
}

impl fmt::Debug for MemoryStorage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStorage").field("owner", &self.owner).finish_non_exhaustive()
    }
}

impl Default for MemoryStorage {
    fn default() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }
}

impl MemoryStorage {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// An empty store whose times, those of leases included, come from `clock`.
    pub fn with_clock(clock: SharedClock) -> Self {
        let owner = format!("memory-{}", uuid::Uuid::new_v4());
        Self { owner, clock, state: Mutex::default() }
    }
}

/// Everything that is stored. One lock; no operation waits while it holds it.
#[derive(Debug, Default)]
struct State {
    threads: HashMap<String, Thread>,
    messages: HashMap<MessageId, StoredMessage>,
    /// The total order of each thread (MEM-056).
    order: HashMap<String, BTreeSet<(Timestamp, MessageId)>>,
    resources: HashMap<String, Resource>,
    waiting: HashMap<ThreadKey, BTreeMap<i64, InboxEntry>>,
    /// Where each waiting entry is.
    places: HashMap<MessageId, Place>,
    placed: HashMap<MessageId, Placed>,
    runs: BTreeMap<RunId, RunRecord>,
    parked: BTreeMap<RunId, ParkedRun>,
    leases: HashMap<ThreadKey, LeaseState>,
    last_events: HashMap<ThreadKey, (u64, u64)>,
    notifications: notifications::Notifications,
    /// By thread and kind.
    thread_states: BTreeMap<(String, String), Value>,
}

/// Where an entry waits, and what it said when it was accepted; it may have been edited since (ruling 23).
#[derive(Debug)]
struct Place {
    thread: ThreadKey,
    position: i64,
    fingerprint: String,
}

/// What is remembered of an entry that was placed (SIG-503).
#[derive(Debug)]
struct Placed {
    thread: ThreadKey,
    fingerprint: String,
    run_id: RunId,
}

impl State {
    fn delete_thread(&mut self, id: &str) -> bool {
        let removed = self.threads.remove(id);
        for (_, message) in self.order.remove(id).unwrap_or_default() {
            self.messages.remove(&message);
        }
        self.notifications.delete_thread(id, removed.as_ref().map(|thread| thread.resource_id.as_str()));
        self.thread_states.retain(|(thread, _), _| thread != id);
        self.runs.retain(|_, run| *run.thread.thread_id != *id);
        self.parked.retain(|_, run| run.thread.as_ref().is_none_or(|thread| *thread.thread_id != *id));
        self.waiting.retain(|thread, _| *thread.thread_id != *id);
        self.places.retain(|_, place| *place.thread.thread_id != *id);
        self.placed.retain(|_, placed| *placed.thread.thread_id != *id);
        // The lease stays: its epoch never shrinks (ruling 39).
        removed.is_some()
    }

    fn list_threads(&self, query: &ThreadQuery) -> Page<Thread> {
        let mut found: Vec<&Thread> = self
            .threads
            .values()
            .filter(|thread| {
                query.resource_id.as_ref().is_none_or(|resource| *resource == thread.resource_id)
                    && rules::metadata_matches(thread.metadata.as_ref(), &query.metadata)
            })
            .collect();
        let key = |thread: &Thread| match query.order {
            ThreadOrder::CreatedAt => thread.created_at,
            ThreadOrder::UpdatedAt => thread.updated_at,
        };
        found.sort_unstable_by(|a, b| (key(a), &a.id).cmp(&(key(b), &b.id)));
        if query.direction == Direction::Desc {
            found.reverse();
        }
        let total = found.len();
        let (first, has_more) = rules::page_bounds(query.page, query.per_page, total);
        let size = query.per_page.map_or(usize::MAX, |size| size as usize);
        let items = found.into_iter().skip(first).take(size).cloned().collect();
        Page { items, total, page: query.page, per_page: query.per_page, has_more }
    }
}

#[async_trait]
impl Storage for MemoryStorage {
    fn describe(&self) -> String {
        "memory:".into()
    }

    fn is_durable(&self) -> bool {
        false
    }

    fn owner(&self) -> String {
        self.owner.clone()
    }

    async fn get_thread(&self, id: &str) -> Result<Option<Thread>, StorageError> {
        Ok(self.state.lock().threads.get(id).cloned())
    }

    async fn create_thread(&self, new: NewThread) -> Result<Thread, StorageError> {
        let state = &mut *self.state.lock();
        let existing = new.id.as_ref().and_then(|id| state.threads.get(id)).cloned();
        let thread = rules::create_or_update_thread(existing, new, self.clock.now())?;
        state.threads.insert(thread.id.clone(), thread.clone());
        Ok(thread)
    }

    async fn update_thread(&self, update: ThreadUpdate) -> Result<Thread, StorageError> {
        let state = &mut *self.state.lock();
        let Some(thread) = state.threads.get_mut(&update.id) else {
            return Err(StorageError::NotFound { what: "thread", id: update.id });
        };
        rules::update_thread(thread, update, self.clock.now());
        Ok(thread.clone())
    }

    async fn list_threads(&self, query: ThreadQuery) -> Result<Page<Thread>, StorageError> {
        rules::check_thread_query(&query)?;
        Ok(self.state.lock().list_threads(&query))
    }

    async fn delete_thread(&self, id: &str) -> Result<bool, StorageError> {
        Ok(self.state.lock().delete_thread(id))
    }

    async fn clone_thread(&self, clone: CloneThread) -> Result<ClonedThread, StorageError> {
        let state = &mut *self.state.lock();
        let Some(source) = state.threads.get(&clone.source_thread_id).cloned() else {
            return Err(StorageError::NotFound { what: "thread", id: clone.source_thread_id });
        };
        if let Some(id) = clone.new_thread_id.as_ref().filter(|id| state.threads.contains_key(*id)) {
            return Err(StorageError::Exists { what: "thread", id: id.clone() });
        }
        let messages = state.thread_messages(&source.id).cloned().collect();
        let cloned = rules::clone_of(&source, messages, clone, self.clock.now());
        state.threads.insert(cloned.thread.id.clone(), cloned.thread.clone());
        for message in &cloned.cloned_messages {
            state.put_message(message.clone());
        }
        Ok(cloned)
    }

    async fn transfer_thread(&self, id: &str, resource_id: &str) -> Result<Thread, StorageError> {
        let state = &mut *self.state.lock();
        let Some(thread) = state.threads.get_mut(id) else {
            return Err(StorageError::NotFound { what: "thread", id: id.to_owned() });
        };
        let at_work = state.runs.values().map(|run| &run.thread);
        let parked = state.parked.values().filter_map(|run| run.thread.as_ref());
        if state.waiting.keys().chain(at_work).chain(parked).any(|key| *key.thread_id == *id) {
            return Err(StorageError::Busy { thread: id.to_owned() });
        }
        let owner = std::mem::replace(&mut thread.resource_id, resource_id.to_owned());
        thread.updated_at = self.clock.now().max(thread.updated_at);
        let thread = thread.clone();
        state.notifications.transfer(id, &owner, resource_id);
        for (_, message) in state.order.get(id).into_iter().flatten() {
            if let Some(message) = state.messages.get_mut(message) {
                message.resource_id = Some(resource_id.to_owned());
            }
        }
        let key = if resource_id.is_empty() { ThreadKey::unowned(id) } else { ThreadKey::new(resource_id, id) };
        // Repeated input is told apart, and epochs grow, under the new key too.
        for placed in state.placed.values_mut().filter(|placed| *placed.thread.thread_id == *id) {
            placed.thread = key.clone();
        }
        let epochs = state.leases.iter().filter(|(key, _)| *key.thread_id == *id).map(|(_, lease)| lease.epoch);
        if let Some(epoch) = epochs.max() {
            state.leases.entry(key).or_default().epoch = epoch;
        }
        Ok(thread)
    }

    async fn track_lanes(&self, thread_id: &str, changes: Vec<LaneChange>) -> Result<bool, StorageError> {
        let state = &mut *self.state.lock();
        let Some(thread) = state.threads.get_mut(thread_id) else {
            return Err(StorageError::NotFound { what: "thread", id: thread_id.to_owned() });
        };
        Ok(rules::track_lanes(thread, &changes, self.clock.now()))
    }

    async fn get_thread_state(&self, thread_id: &str, kind: &str) -> Result<Option<Value>, StorageError> {
        let key = (thread_id.to_owned(), kind.to_owned());
        Ok(self.state.lock().thread_states.get(&key).cloned())
    }

    async fn set_thread_state(&self, thread_id: &str, kind: &str, value: Option<Value>) -> Result<(), StorageError> {
        let state = &mut *self.state.lock();
        if !state.threads.contains_key(thread_id) {
            return Err(StorageError::NotFound { what: "thread", id: thread_id.to_owned() });
        }
        let key = (thread_id.to_owned(), kind.to_owned());
        match value {
            Some(value) => {
                rules::check_thread_state(&value)?;
                state.thread_states.insert(key, value);
            }
            None => {
                state.thread_states.remove(&key);
            }
        }
        Ok(())
    }

    async fn list_messages(&self, query: MessageQuery) -> Result<Page<StoredMessage>, StorageError> {
        rules::check_message_query(&query)?;
        self.state.lock().list_messages(&query)
    }

    async fn recent_messages(&self, thread: &ThreadKey, limit: u32) -> Result<Vec<StoredMessage>, StorageError> {
        Ok(self.state.lock().recent_messages(thread, limit as usize))
    }

    async fn get_messages(&self, ids: &[MessageId]) -> Result<Vec<StoredMessage>, StorageError> {
        let state = self.state.lock();
        let wanted: BTreeSet<&MessageId> = ids.iter().collect();
        Ok(wanted.into_iter().filter_map(|id| state.messages.get(id)).cloned().collect())
    }

    async fn save_messages(&self, messages: Vec<StoredMessage>) -> Result<(), StorageError> {
        self.state.lock().save_messages(messages, self.clock.now())
    }

    async fn delete_messages(&self, ids: &[MessageId]) -> Result<usize, StorageError> {
        rules::check_delete_ids(ids)?;
        let now = self.clock.now();
        let state = &mut *self.state.lock();
        let gone: Vec<StoredMessage> = ids.iter().filter_map(|id| state.remove_message(id)).collect();
        for thread in gone.iter().filter(|row| row.role == Role::Signal).filter_map(|row| row.thread_id.as_deref()) {
            state.untrack(thread, ids, now);
        }
        Ok(gone.len())
    }

    async fn get_resource(&self, id: &str) -> Result<Option<Resource>, StorageError> {
        Ok(self.state.lock().resources.get(id).cloned())
    }

    async fn update_resource(&self, id: &str, change: ResourceChange) -> Result<Resource, StorageError> {
        let now = self.clock.now();
        let state = &mut *self.state.lock();
        let mut resource = state.resources.get(id).cloned().unwrap_or_else(|| rules::new_resource(id, now));
        rules::change_resource(&mut resource, change, now)?;
        state.resources.insert(id.to_owned(), resource.clone());
        Ok(resource)
    }

    async fn accept(&self, accept: Accept) -> Result<Accepted, StorageError> {
        rules::check_accept(&accept)?;
        self.state.lock().accept(accept, self.clock.now())
    }

    async fn inbox(&self, thread: &ThreadKey) -> Result<Vec<InboxEntry>, StorageError> {
        Ok(self.state.lock().waiting.get(thread).into_iter().flat_map(BTreeMap::values).cloned().collect())
    }

    async fn remove_inbox(
        &self,
        thread: &ThreadKey,
        ids: &[MessageId],
        why: InboxEnd,
    ) -> Result<Vec<MessageId>, StorageError> {
        let now = self.clock.now();
        let state = &mut *self.state.lock();
        let removed: Vec<_> = ids.iter().filter(|id| state.take_waiting(thread, id).is_some()).cloned().collect();
        if why.undelivers() {
            state.notifications.undeliver(&thread.thread_id, &removed, now, false);
        }
        Ok(removed)
    }

    async fn update_inbox(&self, entry: InboxEntry) -> Result<bool, StorageError> {
        let state = &mut *self.state.lock();
        let Some((_, fingerprint)) = state.take_waiting(&entry.thread, &entry.signal.id) else { return Ok(false) };
        state.put_waiting(entry, fingerprint);
        Ok(true)
    }

    async fn commit(&self, mut commit: Commit) -> Result<Committed, StorageError> {
        rules::complete_commit(&mut commit)?;
        self.state.lock().commit(commit, self.clock.now())
    }

    async fn get_run(&self, run_id: &RunId) -> Result<Option<RunRecord>, StorageError> {
        Ok(self.state.lock().runs.get(run_id).cloned())
    }

    async fn unfinished(
        &self,
        owner: &str,
        after: Option<&ThreadKey>,
        limit: u32,
    ) -> Result<Vec<ThreadKey>, StorageError> {
        Ok(self.state.lock().unfinished(owner, after, limit as usize, self.clock.now()))
    }

    async fn runs(&self, thread: &ThreadKey) -> Result<Vec<RunRecord>, StorageError> {
        let state = self.state.lock();
        Ok(state.runs.values().filter(|run| run.thread == *thread).cloned().collect())
    }

    async fn parked_run(&self, run_id: &RunId) -> Result<Option<ParkedRun>, StorageError> {
        Ok(self.state.lock().parked.get(run_id).cloned())
    }

    async fn list_parked(&self, query: ParkedQuery) -> Result<Page<ParkedRun>, StorageError> {
        let state = self.state.lock();
        let found = state.parked.values().filter(|run| query.matches(run)).cloned().collect();
        Ok(query.page_of(found))
    }

    async fn park(&self, run: ParkedRun) -> Result<(), StorageError> {
        let state = &mut *self.state.lock();
        state.check_parks(&run)?;
        state.parked.insert(run.run_id.clone(), run);
        Ok(())
    }

    async fn unpark(&self, run_id: &RunId) -> Result<bool, StorageError> {
        Ok(self.state.lock().parked.remove(run_id).is_some())
    }

    async fn acquire_lease(&self, thread: &ThreadKey, claim: &LeaseClaim) -> Result<Lease, StorageError> {
        Ok(self.state.lock().claim(thread, claim, self.clock.now()))
    }

    async fn release_lease(
        &self,
        thread: &ThreadKey,
        owner: &str,
        last_event: Option<u64>,
    ) -> Result<(), StorageError> {
        let state = &mut *self.state.lock();
        if let Some(lease) = state.leases.get_mut(thread).filter(|lease| lease.owner.as_deref() == Some(owner)) {
            lease.owner = None;
            if let Some(number) = last_event {
                state.last_events.insert(thread.clone(), (lease.epoch, number));
            }
        }
        Ok(())
    }

    async fn last_event(&self, thread: &ThreadKey) -> Result<Option<(u64, u64)>, StorageError> {
        Ok(self.state.lock().last_events.get(thread).copied())
    }

    async fn lease_holder(&self, thread: &ThreadKey) -> Result<Option<String>, StorageError> {
        let (state, now) = (self.state.lock(), self.clock.now());
        let lease = state.leases.get(thread).filter(|lease| lease.expires_at > now);
        Ok(lease.and_then(|lease| lease.owner.clone()))
    }

    fn notifications(&self) -> Option<&dyn NotificationStore> {
        Some(self)
    }

    fn provider_subscriptions(&self) -> Option<&dyn ProviderSubscriptions> {
        Some(self)
    }
}
