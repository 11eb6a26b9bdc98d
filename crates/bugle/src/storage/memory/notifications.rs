//! Notification records and provider subscriptions of the in-memory store.

use std::collections::HashMap;

use async_trait::async_trait;
use indexmap::IndexMap;

use super::MemoryStorage;
use crate::{
    id::MessageId,
    storage::{
        ClaimedRecord, CreatedHow, CreatedRecord, DueQuery, NewRecord, NotificationPage, NotificationQuery,
        NotificationRecord, NotificationStore, ProviderSubscription, ProviderSubscriptions, RecordChange, RecordClaim,
        RecordKey, StorageError, SubscriptionQuery, notifications::rules,
    },
    time::Timestamp,
};

/// All records, by thread and id, and the claims on them.
#[derive(Debug, Default)]
pub(super) struct Notifications {
    records: IndexMap<String, IndexMap<String, NotificationRecord>>,
    claims: HashMap<RecordKey, Claim>,
    subscriptions: Vec<Subscription>,
}

#[derive(Debug)]
struct Claim {
    token: String,
    until: Timestamp,
    intended: Option<MessageId>,
}

#[derive(Debug)]
struct Subscription {
    subscription: ProviderSubscription,
    poll: Option<(String, Timestamp)>,
}

impl Notifications {
    /// What is the thread's goes with it; what another resource has under the same id stays (NOTIF-114).
    pub(super) fn delete_thread(&mut self, id: &str, owner: Option<&str>) {
        if let Some(records) = self.records.get_mut(id) {
            records.retain(|_, record| !rules::belongs(record.resource_id.as_deref(), owner));
            let left = &*records;
            self.claims.retain(|key, _| key.thread_id != id || left.contains_key(&key.id));
            if left.is_empty() {
                self.records.swap_remove(id);
            }
        }
        self.subscriptions.retain(|held| {
            held.subscription.thread_id != id || !rules::belongs(Some(&held.subscription.resource_id), owner)
        });
    }

    pub(super) fn transfer(&mut self, thread: &str, owner: &str, resource: &str) {
        for record in self.records.get_mut(thread).into_iter().flat_map(IndexMap::values_mut) {
            if rules::belongs(record.resource_id.as_deref(), Some(owner)) {
                record.resource_id = Some(resource.to_owned());
            }
        }
        for Subscription { subscription, .. } in &mut self.subscriptions {
            if subscription.thread_id == thread && rules::belongs(Some(&subscription.resource_id), Some(owner)) {
                resource.clone_into(&mut subscription.resource_id);
            }
        }
    }

    /// The signals of these records are gone (ruling 33).
    pub(super) fn undeliver(&mut self, thread: &str, removed: &[MessageId], now: Timestamp, due: bool) {
        for record in self.records.get_mut(thread).into_iter().flat_map(IndexMap::values_mut) {
            if record.delivered_signal_id.as_ref().is_some_and(|signal| removed.contains(signal)) {
                rules::undeliver(record, now, due);
            }
        }
    }

    fn all(&self) -> impl Iterator<Item = &NotificationRecord> {
        self.records.values().flat_map(IndexMap::values)
    }

    fn record(&mut self, key: &RecordKey) -> Option<&mut NotificationRecord> {
        self.records.get_mut(&key.thread_id)?.get_mut(&key.id)
    }

    fn holder(&self, key: &RecordKey, now: Timestamp) -> Option<&str> {
        self.claims.get(key).filter(|claim| claim.until > now).map(|claim| claim.token.as_str())
    }

    fn take(&mut self, key: &RecordKey, claim: &RecordClaim) -> Option<MessageId> {
        let intended = self.claims.remove(key).and_then(|claim| claim.intended);
        let held = Claim { token: claim.token.clone(), until: claim.until, intended: intended.clone() };
        self.claims.insert(key.clone(), held);
        intended
    }

    fn create(&mut self, new: &NewRecord) -> Result<CreatedRecord, StorageError> {
        let records = self.records.entry(new.record.thread_id.clone()).or_default();
        let met = records.values_mut().filter_map(|held| rules::meets(held, new).map(|how| (held, how)));
        let found = met.max_by(|(a, _), (b, _)| rules::choose(new, a, b));
        let (record, how) = if let Some((held, how)) = found {
            rules::merge(held, new, how);
            (held.clone(), how)
        } else if records.contains_key(&new.record.id) {
            return Err(StorageError::Exists { what: "notification", id: new.record.id.clone() });
        } else {
            records.insert(new.record.id.clone(), new.record.clone());
            (new.record.clone(), CreatedHow::New)
        };
        let key = record.key();
        let claim = new.claim.as_ref().filter(|_| how != CreatedHow::Duplicate);
        let claim = claim.filter(|claim| self.holder(&key, claim.now).is_none());
        let claimed = claim.is_some();
        if let Some(claim) = claim {
            self.take(&key, claim);
        }
        Ok(CreatedRecord { record, how, claimed })
    }

    fn update(&mut self, key: &RecordKey, change: &RecordChange) -> Result<Option<NotificationRecord>, StorageError> {
        let holder = self.holder(key, change.now).map(str::to_owned);
        let record = self.record(key).ok_or_else(|| rules::unknown(&key.id))?;
        if !rules::holds(record, change, holder.as_deref()) {
            return Ok(None);
        }
        rules::apply(record, change);
        let record = record.clone();
        if change.release && holder == change.if_claimed {
            self.claims.remove(key);
        }
        Ok(Some(record))
    }

    fn due(&self, query: &DueQuery) -> Vec<NotificationRecord> {
        let free = |record: &&NotificationRecord| self.holder(&record.key(), query.now).is_none();
        let mut due: Vec<&NotificationRecord> =
            self.all().filter(|record| rules::is_due(query, record)).filter(free).collect();
        due.sort_by(|a, b| rules::due_order(a, b));
        due.into_iter().take(query.limit as usize).cloned().collect()
    }

    fn list(&self, query: &NotificationQuery) -> NotificationPage {
        let limit = query.limit as usize;
        let of_thread = query.thread_id.as_ref().map(|thread| self.records.get(thread));
        let candidates: Box<dyn Iterator<Item = &NotificationRecord>> = match of_thread {
            Some(records) => Box::new(records.into_iter().flat_map(IndexMap::values)),
            None => Box::new(self.all()),
        };
        let mut found: Vec<&NotificationRecord> =
            candidates.filter(|record| rules::selects(query, record) && rules::is_behind(query, record)).collect();
        found.sort_unstable_by(|a, b| (b.updated_at, &b.id).cmp(&(a.updated_at, &a.id)));
        let has_more = limit > 0 && found.len() > limit;
        NotificationPage { records: found.into_iter().take(limit).cloned().collect(), has_more }
    }
}

#[async_trait]
impl NotificationStore for MemoryStorage {
    async fn create(&self, new: NewRecord) -> Result<CreatedRecord, StorageError> {
        self.state.lock().notifications.create(&new)
    }

    async fn get(&self, thread_id: &str, id: &str) -> Result<Option<NotificationRecord>, StorageError> {
        let state = self.state.lock();
        Ok(state.notifications.records.get(thread_id).and_then(|records| records.get(id)).cloned())
    }

    async fn list(&self, query: &NotificationQuery) -> Result<NotificationPage, StorageError> {
        Ok(self.state.lock().notifications.list(query))
    }

    async fn list_due(&self, query: &DueQuery) -> Result<Vec<NotificationRecord>, StorageError> {
        Ok(self.state.lock().notifications.due(query))
    }

    async fn update(&self, key: &RecordKey, change: RecordChange) -> Result<Option<NotificationRecord>, StorageError> {
        self.state.lock().notifications.update(key, &change)
    }

    async fn update_all(
        &self,
        keys: &[RecordKey],
        change: RecordChange,
    ) -> Result<Vec<NotificationRecord>, StorageError> {
        let notifications = &mut self.state.lock().notifications;
        Ok(keys.iter().filter_map(|key| notifications.update(key, &change).ok().flatten()).collect())
    }

    async fn update_status(
        &self,
        thread_id: &str,
        ids: &[String],
        status: &str,
        now: Timestamp,
    ) -> Result<Vec<NotificationRecord>, StorageError> {
        let notifications = &mut self.state.lock().notifications;
        let Some(records) = notifications.records.get_mut(thread_id) else { return Ok(Vec::new()) };
        let mut changed: IndexMap<&str, NotificationRecord> = IndexMap::new();
        for id in ids {
            if changed.contains_key(id.as_str()) {
                continue;
            }
            let Some(record) = records.get_mut(id) else { continue };
            rules::set_status(record, status, now);
            record.updated_at = now.max(record.updated_at);
            changed.insert(id, record.clone());
        }
        Ok(changed.into_values().collect())
    }

    async fn claim(&self, keys: &[RecordKey], claim: &RecordClaim) -> Result<Vec<NotificationRecord>, StorageError> {
        let notifications = &mut self.state.lock().notifications;
        let mut claimed = Vec::new();
        for key in keys {
            if notifications.holder(key, claim.now).is_some() {
                continue;
            }
            let Some(record) = notifications.record(key) else { continue };
            if matches!(record.status.as_str(), "pending" | "delivered") {
                claimed.push(record.clone());
                notifications.take(key, claim);
            }
        }
        Ok(claimed)
    }

    async fn claim_due(&self, query: &DueQuery, claim: &RecordClaim) -> Result<Vec<ClaimedRecord>, StorageError> {
        let notifications = &mut self.state.lock().notifications;
        let due = notifications.due(query);
        Ok(due
            .into_iter()
            .map(|record| ClaimedRecord { intended: notifications.take(&record.key(), claim), record })
            .collect())
    }

    async fn intend(&self, keys: &[RecordKey], token: &str, signal: &MessageId) -> Result<usize, StorageError> {
        let notifications = &mut self.state.lock().notifications;
        let mut held = 0;
        for key in keys {
            if let Some(claim) = notifications.claims.get_mut(key).filter(|claim| claim.token == token) {
                claim.intended = Some(signal.clone());
                held += 1;
            }
        }
        Ok(held)
    }

    async fn renew(&self, keys: &[RecordKey], token: &str, until: Timestamp) -> Result<usize, StorageError> {
        let notifications = &mut self.state.lock().notifications;
        let mut held = 0;
        for key in keys {
            if let Some(claim) = notifications.claims.get_mut(key).filter(|claim| claim.token == token) {
                claim.until = until;
                held += 1;
            }
        }
        Ok(held)
    }

    async fn release(&self, keys: &[RecordKey], token: &str) -> Result<(), StorageError> {
        let notifications = &mut self.state.lock().notifications;
        for key in keys {
            if notifications.claims.get(key).is_some_and(|claim| claim.token == token) {
                notifications.claims.remove(key);
            }
        }
        Ok(())
    }

    async fn next_due_at(&self, now: Timestamp) -> Result<Option<Timestamp>, StorageError> {
        let notifications = &mut self.state.lock().notifications;
        // A claim that has run out matters only through what it intended, and only while its record is due.
        let records = &notifications.records;
        notifications.claims.retain(|key, claim| {
            let record = records.get(&key.thread_id).and_then(|records| records.get(&key.id));
            claim.until > now || record.is_some_and(|record| record.due_at().is_some())
        });
        let free = notifications.all().filter(|record| notifications.holder(&record.key(), now).is_none());
        let due = free.filter_map(NotificationRecord::due_at);
        let claims = notifications.claims.values().map(|claim| claim.until).filter(|until| *until > now);
        Ok(due.chain(claims).min())
    }

    async fn count(&self, query: &NotificationQuery) -> Result<usize, StorageError> {
        Ok(self.state.lock().notifications.all().filter(|record| rules::selects(query, record)).count())
    }

    async fn prune(&self, before: Timestamp, statuses: &[String]) -> Result<usize, StorageError> {
        let notifications = &mut self.state.lock().notifications;
        let mut pruned = 0;
        for records in notifications.records.values_mut() {
            let held = records.len();
            records.retain(|_, record| {
                record.created_at >= before || !(statuses.is_empty() || statuses.contains(&record.status))
            });
            pruned += held - records.len();
        }
        Ok(pruned)
    }

    async fn clear(&self) -> Result<(), StorageError> {
        let notifications = &mut self.state.lock().notifications;
        notifications.records.clear();
        notifications.claims.clear();
        Ok(())
    }
}

#[async_trait]
impl ProviderSubscriptions for MemoryStorage {
    async fn subscribe(&self, subscription: ProviderSubscription) -> Result<ProviderSubscription, StorageError> {
        let held = &mut self.state.lock().notifications.subscriptions;
        if let Some(held) = held.iter_mut().find(|held| held.subscription.is_same(&subscription)) {
            held.subscription.merge(&subscription);
            return Ok(held.subscription.clone());
        }
        held.push(Subscription { subscription: subscription.clone(), poll: None });
        Ok(subscription)
    }

    async fn unsubscribe(&self, query: &SubscriptionQuery) -> Result<usize, StorageError> {
        let held = &mut self.state.lock().notifications.subscriptions;
        let before = held.len();
        held.retain(|held| !query.selects(&held.subscription));
        Ok(before - held.len())
    }

    async fn list(&self, query: &SubscriptionQuery) -> Result<Vec<ProviderSubscription>, StorageError> {
        let state = self.state.lock();
        let held = state.notifications.subscriptions.iter().map(|held| &held.subscription);
        Ok(held.filter(|subscription| query.selects(subscription)).cloned().collect())
    }

    async fn claim_polls(
        &self,
        query: &SubscriptionQuery,
        token: &str,
        now: Timestamp,
        until: Timestamp,
    ) -> Result<Vec<ProviderSubscription>, StorageError> {
        let held = &mut self.state.lock().notifications.subscriptions;
        let free = held.iter_mut().filter(|held| {
            held.subscription.enabled
                && query.selects(&held.subscription)
                && held.poll.as_ref().is_none_or(|(_, until)| *until <= now)
        });
        Ok(free
            .map(|held| {
                held.poll = Some((token.to_owned(), until));
                held.subscription.clone()
            })
            .collect())
    }

    async fn end_poll(
        &self,
        id: &str,
        token: &str,
        cursor: Option<&str>,
        next: Timestamp,
    ) -> Result<bool, StorageError> {
        let held = &mut self.state.lock().notifications.subscriptions;
        let Some(held) = held.iter_mut().find(|held| held.subscription.id == id) else { return Ok(false) };
        if held.poll.as_ref().is_none_or(|(holder, _)| holder != token) {
            return Ok(false);
        }
        if let Some(cursor) = cursor {
            held.subscription.cursor = Some(cursor.to_owned());
        }
        held.poll = Some((String::new(), next));
        Ok(true)
    }
}
