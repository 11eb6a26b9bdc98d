//! Journal, commits, runs and leases of the in-memory store.

use std::collections::BTreeSet;

use super::{Place, Placed, State};
use crate::{
    id::{MessageId, ThreadKey},
    storage::{
        Accept, Accepted, Commit, Committed, EntryOutcome, InboxEntry, Lease, LeaseClaim, Left, NewThread, ParkedRun,
        RunChange, RunRecord, StorageError,
        rules::{self, LeaseState},
    },
    time::Timestamp,
};

impl State {
    pub(super) fn accept(&mut self, accept: Accept, now: Timestamp) -> Result<Accepted, StorageError> {
        if let Some(thread) = self.threads.get(&*accept.thread.thread_id) {
            rules::check_owner(thread, accept.thread.resource_id.as_deref())?;
        }
        let mut entries = Vec::with_capacity(accept.entries.len());
        if !accept.check_only {
            // All are judged before the first is appended, so that a refusal leaves nothing behind.
            let known = accept.entries.iter().map(|entry| self.known(entry)).collect::<Result<Vec<_>, _>>()?;
            if accept.create_thread && !self.threads.contains_key(&*accept.thread.thread_id) {
                let new = NewThread::of(&accept.thread);
                let thread = rules::create_or_update_thread(None, new, now)?;
                self.threads.insert(thread.id.clone(), thread);
            }
            for (entry, known) in accept.entries.into_iter().zip(known) {
                // An id that comes twice in one call meets itself here.
                let known = match known {
                    Some(outcome) => Some(outcome),
                    None => self.known(&entry)?,
                };
                entries.push(known.unwrap_or_else(|| self.append(entry, now)));
            }
        }
        let kept = accept.claim.as_ref().and_then(|claim| claim.kept);
        let lease = accept.claim.map(|claim| self.claim(&accept.thread, &claim, now));
        let left = match lease {
            Some(Lease::Held { epoch }) if kept != Some(epoch) => self.left(&accept.thread, &entries),
            _ => Left::default(),
        };
        Ok(Accepted { entries, lease, left })
    }

    /// What an earlier owner left, before what was just appended.
    fn left(&self, thread: &ThreadKey, appended: &[EntryOutcome]) -> Left {
        let first = appended.iter().find_map(|outcome| match outcome {
            EntryOutcome::Appended { position } => Some(*position),
            _ => None,
        });
        let waiting = self.waiting.get(thread).into_iter().flatten();
        let before = waiting.take_while(|(position, _)| first.is_none_or(|first| **position < first));
        Left {
            entries: before.map(|(_, entry)| entry.clone()).collect(),
            runs: self.runs.values().filter(|run| run.thread == *thread).cloned().collect(),
            last_event: self.last_events.get(thread).copied(),
        }
    }

    /// What became of an entry's id before (SIG-503).
    fn known(&self, entry: &InboxEntry) -> Result<Option<EntryOutcome>, StorageError> {
        let id = &entry.signal.id;
        let different = || StorageError::DifferentContent { id: id.clone() };
        if let Some(place) = self.places.get(id) {
            let same = place.thread == entry.thread && place.fingerprint == rules::signal_fingerprint(&entry.signal);
            let waiting = self.waiting.get(&place.thread).and_then(|waiting| waiting.get(&place.position));
            return match waiting.filter(|_| same) {
                Some(waiting) => Ok(Some(EntryOutcome::Waiting { run_id: waiting.run_id.clone() })),
                None => Err(different()),
            };
        }
        if let Some(placed) = self.placed.get(id) {
            let same = placed.thread == entry.thread && placed.fingerprint == rules::signal_fingerprint(&entry.signal);
            return if same {
                Ok(Some(EntryOutcome::Placed { run_id: Some(placed.run_id.clone()) }))
            } else {
                Err(different())
            };
        }
        if let Some(message) = self.messages.get(id) {
            let same = message.thread_id.as_deref() == Some(&*entry.thread.thread_id)
                && rules::message_holds(message, &entry.signal);
            return if same { Ok(Some(EntryOutcome::Placed { run_id: None })) } else { Err(different()) };
        }
        Ok(None)
    }

    fn append(&mut self, mut entry: InboxEntry, now: Timestamp) -> EntryOutcome {
        let last = self.waiting.get(&entry.thread).and_then(|waiting| waiting.keys().next_back()).copied();
        let position = rules::next_position(last, now.as_millis().saturating_mul(1000));
        entry.position = position;
        let fingerprint = rules::signal_fingerprint(&entry.signal);
        self.put_waiting(entry, fingerprint);
        EntryOutcome::Appended { position }
    }

    pub(super) fn put_waiting(&mut self, mut entry: InboxEntry, fingerprint: String) {
        let waiting = self.waiting.entry(entry.thread.clone()).or_default();
        // Places are unique; who asks for a taken one comes after it.
        while waiting.contains_key(&entry.position) {
            entry.position += 1;
        }
        let place = Place { thread: entry.thread.clone(), position: entry.position, fingerprint };
        self.places.insert(entry.signal.id.clone(), place);
        waiting.insert(entry.position, entry);
    }

    /// Takes an entry out, with the fingerprint of what was accepted.
    pub(super) fn take_waiting(&mut self, thread: &ThreadKey, id: &MessageId) -> Option<(InboxEntry, String)> {
        self.places.get(id).filter(|place| place.thread == *thread)?;
        let place = self.places.remove(id)?;
        let waiting = self.waiting.get_mut(thread)?;
        let entry = waiting.remove(&place.position)?;
        if waiting.is_empty() {
            self.waiting.remove(thread);
        }
        Some((entry, place.fingerprint))
    }

    pub(super) fn commit(&mut self, commit: Commit, now: Timestamp) -> Result<Committed, StorageError> {
        let Commit { thread, epoch, create_thread, consumed, messages, removed, returned, run, release } = commit;
        let id = &*thread.thread_id;
        let current = self.leases.get(&thread).map_or(0, |lease| lease.epoch);
        if epoch < current {
            return Err(StorageError::StaleEpoch { thread: id.to_owned(), given: epoch, current });
        }
        // Everything is checked before anything is written.
        let created = match (self.threads.get(id), create_thread) {
            (Some(existing), new) => {
                rules::check_owner(existing, thread.resource_id.as_deref())?;
                let mut changed = existing.clone();
                match new {
                    Some(new) if rules::touch_existing_thread(&mut changed, &new, now)? => Some(changed),
                    _ => None,
                }
            }
            (None, Some(new)) => Some(rules::create_or_update_thread(None, new, now)?),
            (None, None) if messages.is_empty() => None,
            (None, None) => return Err(StorageError::NotFound { what: "thread", id: id.to_owned() }),
        };
        let owner = created.as_ref().or(self.threads.get(id)).map(|thread| thread.resource_id.clone());
        for message in &messages {
            rules::check_message_home(message, |_| Ok(owner.clone()))?;
            if let Some(stored) = self.messages.get(&message.id) {
                let stored = (stored.thread_id.as_deref().unwrap_or_default(), stored.resource_id.as_deref());
                rules::check_message_owner(&message.id, stored, (id, message.resource_id.as_deref()))?;
            }
        }
        if let RunChange::Resume(RunRecord { run_id, .. }) | RunChange::Discard { run_id, .. } = &run
            && self.parked.get(run_id).is_none_or(|parked| parked.thread.as_ref() != Some(&thread))
        {
            return Err(StorageError::NotParked { run_id: run_id.clone() });
        }
        if let RunChange::Park { run, .. } = &run {
            self.check_parks(run)?;
        }
        if let RunChange::Save(record) | RunChange::Resume(record) = &run
            && self.runs.get(&record.run_id).is_some_and(|stored| stored.thread != record.thread)
        {
            return Err(StorageError::Exists { what: "run", id: record.run_id.to_string() });
        }

        if epoch > current {
            self.leases.entry(thread.clone()).or_default().epoch = epoch;
        }
        if let Some(created) = created {
            self.threads.insert(created.id.clone(), created);
        }
        for consumed in &consumed {
            let taken = self.take_waiting(&thread, consumed);
            // What left no message, such as a transient signal, is not kept in mind.
            if let Some((entry, fingerprint)) = taken.filter(|_| messages.iter().any(|message| message.id == *consumed))
            {
                let placed = Placed { thread: thread.clone(), fingerprint, run_id: entry.run_id };
                self.placed.insert(consumed.clone(), placed);
            }
        }
        for removed in &removed {
            self.placed.remove(removed);
            if self.messages.get(removed).is_some_and(|message| message.thread_id.as_deref() == Some(id)) {
                self.remove_message(removed);
            }
        }
        let mut untold = rules::blocked_states(&messages);
        if !removed.is_empty() {
            let waits = |id: &&MessageId| returned.iter().any(|entry| entry.signal.id == **id);
            let gone: Vec<MessageId> = removed.iter().filter(|id| !waits(id)).cloned().collect();
            self.notifications.undeliver(id, &gone, now, true);
            untold.extend(gone);
        }
        self.untrack(id, &untold, now);
        if !messages.is_empty() {
            self.touch(id, now);
        }
        for message in messages {
            self.put_message(message);
        }
        self.put_back(&thread, returned, now);
        match run {
            RunChange::Keep => {}
            RunChange::Save(record) => {
                self.runs.insert(record.run_id.clone(), record);
            }
            RunChange::End { run_id, last_event } => {
                if self.runs.get(&run_id).is_some_and(|stored| stored.thread == thread) {
                    self.runs.remove(&run_id);
                }
                self.last_events.insert(thread.clone(), (epoch, last_event));
            }
            RunChange::Park { run, last_event } => {
                self.runs.remove(&run.run_id);
                self.parked.insert(run.run_id.clone(), *run);
                self.last_events.insert(thread.clone(), (epoch, last_event));
            }
            RunChange::Resume(record) => {
                self.parked.remove(&record.run_id);
                self.runs.insert(record.run_id.clone(), record);
            }
            RunChange::Discard { run_id, last_event } => {
                self.parked.remove(&run_id);
                self.last_events.insert(thread.clone(), (epoch, last_event));
            }
        }
        Ok(Committed { released: release.is_some_and(|owner| self.release_if_done(&thread, &owner)) })
    }

    /// Nobody else's parked run is overwritten.
    pub(super) fn check_parks(&self, run: &ParkedRun) -> Result<(), StorageError> {
        match self.parked.get(&run.run_id) {
            Some(there) if !there.is_replaced_by(run) => {
                Err(StorageError::Exists { what: "suspended run", id: run.run_id.to_string() })
            }
            _ => Ok(()),
        }
    }

    fn release_if_done(&mut self, thread: &ThreadKey, owner: &str) -> bool {
        if self.waiting.contains_key(thread) || self.runs.values().any(|run| run.thread == *thread) {
            return false;
        }
        let held = self.leases.get_mut(thread).filter(|lease| lease.owner.as_deref() == Some(owner));
        held.is_some_and(|lease| lease.owner.take().is_some())
    }

    /// Puts entries in front of what waits, in order (ruling 33).
    fn put_back(&mut self, thread: &ThreadKey, returned: Vec<InboxEntry>, now: Timestamp) {
        for entry in &returned {
            self.take_waiting(thread, &entry.signal.id);
            self.placed.remove(&entry.signal.id);
        }
        let first = self.waiting.get(thread).and_then(|waiting| waiting.keys().next()).copied();
        let first = first.unwrap_or_else(|| now.as_millis().saturating_mul(1000));
        for (position, mut entry) in (first.saturating_sub(returned.len() as i64)..).zip(returned) {
            entry.position = position;
            entry.thread = thread.clone();
            let fingerprint = rules::signal_fingerprint(&entry.signal);
            self.put_waiting(entry, fingerprint);
        }
    }

    pub(super) fn claim(&mut self, thread: &ThreadKey, claim: &LeaseClaim, now: Timestamp) -> Lease {
        let existing = self.leases.get(thread);
        // Every owner of this store lives in this process.
        if let Some(lease) = LeaseState::claim(existing, claim, now, |_| true) {
            let epoch = lease.epoch;
            self.leases.insert(thread.clone(), lease);
            return Lease::Held { epoch };
        }
        let owner = existing.and_then(|lease| lease.owner.clone()).unwrap_or_default();
        Lease::HeldBy { owner }
    }

    pub(super) fn unfinished(
        &self,
        owner: &str,
        after: Option<&ThreadKey>,
        limit: usize,
        now: Timestamp,
    ) -> Vec<ThreadKey> {
        let running = self.runs.values().map(|run| &run.thread);
        let threads: BTreeSet<&ThreadKey> = self.waiting.keys().chain(running).collect();
        let is_free =
            |thread: &&ThreadKey| self.leases.get(*thread).is_none_or(|lease| lease.is_free_for(owner, now, |_| true));
        let is_after = |thread: &&ThreadKey| after.is_none_or(|after| *thread > after);
        threads.into_iter().filter(is_after).filter(is_free).take(limit).cloned().collect()
    }
}
