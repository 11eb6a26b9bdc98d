//! Messages of the in-memory store.

use std::collections::BTreeMap;

use super::State;
use crate::{
    id::{MessageId, ThreadKey},
    message::{Role, StoredMessage},
    storage::{Direction, MessageQuery, Page, StorageError, rules},
    time::Timestamp,
};

impl State {
    /// A thread's messages, oldest first.
    pub(super) fn thread_messages(&self, thread: &str) -> impl DoubleEndedIterator<Item = &StoredMessage> {
        self.order.get(thread).into_iter().flatten().filter_map(|(_, id)| self.messages.get(id))
    }

    pub(super) fn recent_messages(&self, thread: &ThreadKey, limit: usize) -> Vec<StoredMessage> {
        let of_resource = |message: &&StoredMessage| {
            thread.resource_id.is_none() || message.resource_id.as_deref() == thread.resource_id.as_deref()
        };
        let newest = self.thread_messages(&thread.thread_id).rev().filter(of_resource).take(limit);
        let mut found: Vec<StoredMessage> = newest.cloned().collect();
        found.reverse();
        found
    }

    pub(super) fn list_messages(&self, query: &MessageQuery) -> Result<Page<StoredMessage>, StorageError> {
        if let Some(resource) = &query.resource_id {
            for thread in query.thread_ids.iter().filter_map(|id| self.threads.get(id)) {
                rules::check_owner(thread, Some(resource))?;
            }
        }
        let cursor = |id: &Option<MessageId>| match id {
            None => Ok(None),
            Some(id) => match self.messages.get(id) {
                Some(message) => Ok(Some((message.created_at, message.id.clone()))),
                None => Err(StorageError::NotFound { what: "message", id: id.to_string() }),
            },
        };
        let (before, after) = (cursor(&query.before)?, cursor(&query.after)?);
        let mut found: BTreeMap<(Timestamp, &MessageId), &StoredMessage> = BTreeMap::new();
        for message in query.thread_ids.iter().flat_map(|thread| self.thread_messages(thread)) {
            let place = (message.created_at, &message.id);
            let in_window = before.as_ref().is_none_or(|(at, id)| place < (*at, id))
                && after.as_ref().is_none_or(|(at, id)| place > (*at, id));
            if in_window && rules::message_matches(message, query) {
                found.insert(place, message);
            }
        }
        let total = found.len();
        let (first, has_more) = rules::page_bounds(query.page, query.per_page, total);
        let size = query.per_page.map_or(usize::MAX, |size| size as usize);
        let newest_first = query.newest_page_first || query.direction == Direction::Desc;
        let mut page: BTreeMap<(Timestamp, &MessageId), &StoredMessage> = if newest_first {
            found.into_iter().rev().skip(first).take(size).collect()
        } else {
            found.into_iter().skip(first).take(size).collect()
        };
        self.include(query, &mut page);
        let mut items: Vec<StoredMessage> = page.into_values().cloned().collect();
        if !query.newest_page_first && query.direction == Direction::Desc {
            items.reverse();
        }
        Ok(Page { items, total, page: query.page, per_page: query.per_page, has_more })
    }

    /// Adds messages around others (MEM-068, MEM-069). What the query hides is not counted as a neighbour.
    fn include<'a>(&'a self, query: &MessageQuery, page: &mut BTreeMap<(Timestamp, &'a MessageId), &'a StoredMessage>) {
        let may_see = |message: &&StoredMessage| {
            (query.resource_id.is_none() || message.resource_id == query.resource_id)
                && rules::message_is_visible(message, query)
        };
        for include in &query.include {
            let Some(target) = self.messages.get(&include.id).filter(may_see) else { continue };
            if !rules::may_include(query, include, target.thread_id.as_deref()) {
                continue;
            }
            let place = (target.created_at, &target.id);
            let thread = || self.thread_messages(target.thread_id.as_deref().unwrap_or_default()).filter(may_see);
            let previous = thread().rev().skip_while(|m| (m.created_at, &m.id) >= place);
            let next = thread().skip_while(|m| (m.created_at, &m.id) <= place);
            let around = previous
                .take(include.with_previous_messages as usize)
                .chain(std::iter::once(target))
                .chain(next.take(include.with_next_messages as usize));
            page.extend(around.map(|message| ((message.created_at, &message.id), message)));
        }
    }

    /// Checks all, then writes all.
    pub(super) fn save_messages(&mut self, messages: Vec<StoredMessage>, now: Timestamp) -> Result<(), StorageError> {
        for message in &messages {
            self.check_message(message)?;
        }
        for message in messages {
            self.touch(message.thread_id.as_deref().unwrap_or_default(), now);
            self.put_message(message);
        }
        Ok(())
    }

    pub(super) fn check_message(&self, message: &StoredMessage) -> Result<(), StorageError> {
        let thread =
            rules::check_message_home(message, |id| Ok(self.threads.get(id).map(|thread| thread.resource_id.clone())))?;
        let Some(stored) = self.messages.get(&message.id) else { return Ok(()) };
        let stored = (stored.thread_id.as_deref().unwrap_or_default(), stored.resource_id.as_deref());
        rules::check_message_owner(&message.id, stored, (thread, message.resource_id.as_deref()))
    }

    pub(super) fn touch(&mut self, thread: &str, now: Timestamp) {
        if let Some(thread) = self.threads.get_mut(thread) {
            thread.updated_at = now.max(thread.updated_at);
        }
    }

    /// The thread's lanes no longer have these signals (STATE-034).
    pub(super) fn untrack(&mut self, id: &str, gone: &[MessageId], now: Timestamp) {
        if gone.is_empty() || !self.threads.get(id).is_some_and(|thread| rules::tracks(thread, gone)) {
            return;
        }
        let newest = self.thread_messages(id).rev().take(rules::LANE_ROWS as usize);
        let signals: Vec<StoredMessage> = newest.filter(|row| row.role == Role::Signal).cloned().collect();
        if let Some(thread) = self.threads.get_mut(id) {
            rules::untrack(thread, gone, &signals, now);
        }
    }

    /// Upserts a checked message; `created_at` of a stored one stays.
    pub(super) fn put_message(&mut self, mut message: StoredMessage) {
        if let Some(stored) = self.messages.get(&message.id) {
            message.created_at = stored.created_at;
        }
        message.kind.get_or_insert_with(|| "v2".into());
        let thread = message.thread_id.clone().unwrap_or_default();
        self.order.entry(thread).or_default().insert((message.created_at, message.id.clone()));
        self.messages.insert(message.id.clone(), message);
    }

    pub(super) fn remove_message(&mut self, id: &MessageId) -> Option<StoredMessage> {
        let message = self.messages.remove(id)?;
        if let Some(order) = self.order.get_mut(message.thread_id.as_deref().unwrap_or_default()) {
            order.remove(&(message.created_at, message.id.clone()));
        }
        self.placed.remove(id);
        Some(message)
    }
}
