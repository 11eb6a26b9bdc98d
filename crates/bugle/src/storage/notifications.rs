//! The notifications domain of a store (NOTIF §1, §3, §10): records, claims on them, and the rules all stores share.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::StorageError;
use crate::{id::MessageId, json::Object, time::Timestamp};

/// The statuses a record may have (NOTIF-002).
pub const NOTIFICATION_STATUSES: [&str; 7] =
    ["pending", "delivered", "seen", "dismissed", "archived", "discarded", "failed"];
/// The priorities, highest first.
pub const NOTIFICATION_PRIORITIES: [&str; 4] = ["urgent", "high", "medium", "low"];

/// Keeps notification records. Every operation is one transaction. Stores have no clock here: the time is the caller's.
#[async_trait]
pub trait NotificationStore: fmt::Debug + Send + Sync {
    /// Stores a record, or merges it into a pending one of the same key, or finds that it is a duplicate
    /// (NOTIF-030 … NOTIF-035). Of parallel calls with one key, one creates and the others merge.
    ///
    /// # Errors
    /// [`StorageError::Exists`] if the thread has a record of this id (STO-053).
    async fn create(&self, new: NewRecord) -> Result<CreatedRecord, StorageError>;

    /// The record, if there is one.
    async fn get(&self, thread_id: &str, id: &str) -> Result<Option<NotificationRecord>, StorageError>;

    /// A page of records, those changed last first (NOTIF-094).
    async fn list(&self, query: &NotificationQuery) -> Result<NotificationPage, StorageError>;

    /// The records that are due and that nobody has claimed, in the order of NOTIF-060.
    async fn list_due(&self, query: &DueQuery) -> Result<Vec<NotificationRecord>, StorageError>;

    /// Changes a record if the change's conditions hold; gives it as it stands then. `None`: they do not hold, and
    /// nothing was written.
    ///
    /// # Errors
    /// [`StorageError::NotFound`] if there is no such record.
    async fn update(&self, key: &RecordKey, change: RecordChange) -> Result<Option<NotificationRecord>, StorageError>;

    /// Makes the same change to many records, in one transaction: to those that are there and for which its conditions
    /// hold. Gives them as they stand then.
    async fn update_all(
        &self,
        keys: &[RecordKey],
        change: RecordChange,
    ) -> Result<Vec<NotificationRecord>, StorageError>;

    /// Sets one status on many records of a thread; unknown and repeated ids are skipped. Gives the changed records.
    async fn update_status(
        &self,
        thread_id: &str,
        ids: &[String],
        status: &str,
        now: Timestamp,
    ) -> Result<Vec<NotificationRecord>, StorageError>;

    /// Claims those of these records that are pending or delivered and that nobody else holds (NOTIF-075, NOTIF-076).
    async fn claim(&self, keys: &[RecordKey], claim: &RecordClaim) -> Result<Vec<NotificationRecord>, StorageError>;

    /// Lists what is due and claims it, in one transaction.
    async fn claim_due(&self, query: &DueQuery, claim: &RecordClaim) -> Result<Vec<ClaimedRecord>, StorageError>;

    /// Notes which signal is about to show these records, so that who takes them over after a crash can tell whether
    /// it went out (NOTIF-075). Gives how many are still held under `token`.
    async fn intend(&self, keys: &[RecordKey], token: &str, signal: &MessageId) -> Result<usize, StorageError>;

    /// Holds on to claims until `until`; gives how many are still held under `token`.
    async fn renew(&self, keys: &[RecordKey], token: &str, until: Timestamp) -> Result<usize, StorageError>;

    /// Gives claims up.
    async fn release(&self, keys: &[RecordKey], token: &str) -> Result<(), StorageError>;

    /// When there is something to do next: the earliest due time, or the end of the earliest claim. `None`: never, as
    /// things stand (NOTIF-074).
    async fn next_due_at(&self, now: Timestamp) -> Result<Option<Timestamp>, StorageError>;

    /// How many records the query selects; its limit and cursor are ignored.
    async fn count(&self, query: &NotificationQuery) -> Result<usize, StorageError>;

    /// Deletes records created before `before` that have one of these statuses; all statuses if none is given.
    async fn prune(&self, before: Timestamp, statuses: &[String]) -> Result<usize, StorageError>;

    /// Deletes everything.
    async fn clear(&self) -> Result<(), StorageError>;
}

/// A notification record, in the reference's fields (STO §2.2, NOTIF-001).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotificationRecord {
    /// Unique on its thread.
    pub id: String,
    /// The thread it is for.
    pub thread_id: String,
    /// The resource it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_id: Option<String>,
    /// The agent it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<String>,
    /// Where it came from.
    pub source: String,
    /// What kind of event.
    pub kind: String,
    /// `low`, `medium`, `high`, `urgent`.
    pub priority: String,
    /// One of [`NOTIFICATION_STATUSES`].
    pub status: String,
    /// One line for the model.
    pub summary: String,
    /// The event itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
    /// The source's own id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_id: Option<String>,
    /// Records with this key are one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dedupe_key: Option<String>,
    /// Records with this key are counted together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coalesce_key: Option<String>,
    /// How many events it stands for, from 1.
    pub coalesced_count: u32,
    /// Shown to the model as XML attributes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Object>,
    /// Keys of the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Object>,
    /// When it came in.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When the model got it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_at: Option<Timestamp>,
    /// When it was seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen_at: Option<Timestamp>,
    /// When it was dismissed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dismissed_at: Option<Timestamp>,
    /// When it was archived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archived_at: Option<Timestamp>,
    /// When it was discarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discarded_at: Option<Timestamp>,
    /// When full delivery is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliver_at: Option<Timestamp>,
    /// When a summary is due.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary_at: Option<Timestamp>,
    /// Why it was delivered when it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_reason: Option<String>,
    /// How often delivery failed.
    pub delivery_attempts: u32,
    /// When it was last tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_delivery_attempt_at: Option<Timestamp>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_delivery_error: Option<String>,
    /// The signal that delivered it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivered_signal_id: Option<MessageId>,
    /// The summary that named it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub summary_signal_id: Option<MessageId>,
}

impl NotificationRecord {
    /// Names it.
    pub fn key(&self) -> RecordKey {
        RecordKey { thread_id: self.thread_id.clone(), id: self.id.clone() }
    }

    /// The earlier of its due times, if it is pending (NOTIF-060).
    pub fn due_at(&self) -> Option<Timestamp> {
        if self.status != "pending" {
            return None;
        }
        self.deliver_at.into_iter().chain(self.summary_at).min()
    }
}

/// Names a record: its id is unique on its thread only.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RecordKey {
    /// The thread.
    pub thread_id: String,
    /// The record's id.
    pub id: String,
}

/// A record to store, or to merge into one.
#[derive(Debug, Clone, PartialEq)]
pub struct NewRecord {
    /// The record as it is stored if it is new. Its creation time is this moment.
    pub record: NotificationRecord,
    /// The sender named a priority; else a merge keeps the one that is there.
    pub priority_given: bool,
    /// How long a `dedupe_key` makes a record of any status the same event; zero: only while it is pending (NOTIF-034).
    pub dedupe_window: Duration,
    /// Claims the record for the caller, who is about to deliver it.
    pub claim: Option<RecordClaim>,
}

/// What became of a record to store.
#[derive(Debug, Clone, PartialEq)]
pub struct CreatedRecord {
    /// As it is stored now.
    pub record: NotificationRecord,
    /// New, merged or a duplicate.
    pub how: CreatedHow,
    /// The claim was taken. `false` if it was not asked for, or somebody is just delivering the record.
    pub claimed: bool,
}

/// How a record came to be stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreatedHow {
    /// It is new.
    New,
    /// It went into a pending one (NOTIF-030).
    Merged,
    /// It was there already, within its window; only its count has grown (NOTIF-034).
    Duplicate,
}

/// A claim on records: who holds it is the only one who sends them (NOTIF-075).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordClaim {
    /// Unique per claim.
    pub token: String,
    /// This moment.
    pub now: Timestamp,
    /// When it ends by itself.
    pub until: Timestamp,
}

/// A claimed record.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimedRecord {
    /// The record.
    pub record: NotificationRecord,
    /// The signal that an earlier claimant, who has not come back, was about to send for it.
    pub intended: Option<MessageId>,
}

/// Which records are due.
#[derive(Debug, Clone, PartialEq)]
pub struct DueQuery {
    /// This moment.
    pub now: Timestamp,
    /// At most so many.
    pub limit: u32,
    /// Of this agent.
    pub agent_id: Option<String>,
    /// Of this resource.
    pub resource_id: Option<String>,
}

impl DueQuery {
    /// All that is due at `now`, at most `limit`.
    pub fn at(now: Timestamp, limit: u32) -> Self {
        Self { now, limit, agent_id: None, resource_id: None }
    }
}

/// Which notification records. Of one thread or of one resource; of all where neither is given.
#[derive(Debug, Clone, PartialEq)]
pub struct NotificationQuery {
    /// Of this thread.
    pub thread_id: Option<String>,
    /// Of this resource.
    pub resource_id: Option<String>,
    /// Of this agent.
    pub agent_id: Option<String>,
    /// With one of these statuses; empty = all.
    pub statuses: Vec<String>,
    /// With one of these priorities; empty = all.
    pub priorities: Vec<String>,
    /// From this source.
    pub source: Option<String>,
    /// Summary, kind or source contain this text, whatever its case (NOTIF-113).
    pub search: Option<String>,
    /// At most so many; 0 = none.
    pub limit: u32,
    /// Those behind this place.
    pub after: Option<NotificationCursor>,
}

impl NotificationQuery {
    /// All records of a thread, up to 1000.
    pub fn of_thread(thread_id: impl Into<String>) -> Self {
        Self { thread_id: Some(thread_id.into()), ..Self::all() }
    }

    /// All records, up to 1000.
    pub fn all() -> Self {
        Self {
            thread_id: None,
            resource_id: None,
            agent_id: None,
            statuses: Vec::new(),
            priorities: Vec::new(),
            source: None,
            search: None,
            limit: 1000,
            after: None,
        }
    }
}

/// A place in a listing. Its text form is opaque to clients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotificationCursor {
    /// When the record before it last changed.
    pub updated_at: Timestamp,
    /// That record's id.
    pub id: String,
}

impl NotificationCursor {
    /// Reads the text form.
    pub fn parse(text: &str) -> Option<Self> {
        let (millis, id) = text.split_once(':')?;
        Some(Self { updated_at: Timestamp::from_millis(millis.parse().ok()?), id: id.to_owned() })
    }
}

impl fmt::Display for NotificationCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.updated_at.as_millis(), self.id)
    }
}

/// A page of records.
#[derive(Debug, Clone, PartialEq)]
pub struct NotificationPage {
    /// The records, those changed last first.
    pub records: Vec<NotificationRecord>,
    /// There are more behind them.
    pub has_more: bool,
}

impl NotificationPage {
    /// Where the next page begins, if there is one.
    pub fn next(&self) -> Option<NotificationCursor> {
        let last = self.records.last().filter(|_| self.has_more)?;
        Some(NotificationCursor { updated_at: last.updated_at, id: last.id.clone() })
    }
}

/// A change of one record. What is `None` stays.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RecordChange {
    /// This moment.
    pub now: Timestamp,
    /// Condition: the record is claimed under this token.
    pub if_claimed: Option<String>,
    /// Condition: nothing was merged into it since it had this count.
    pub if_count: Option<u32>,
    /// Condition: it has one of these statuses.
    pub if_status: Option<&'static [&'static str]>,
    /// Gives the claim `if_claimed` up.
    pub release: bool,
    /// The new status; stamps its time.
    pub status: Option<&'static str>,
    /// Status, reason and due times change only while the record is pending (NOTIF-005).
    pub only_pending: bool,
    /// `Some(None)` clears it.
    pub deliver_at: Option<Option<Timestamp>>,
    /// `Some(None)` clears it.
    pub summary_at: Option<Option<Timestamp>>,
    /// `Some(None)` clears it.
    pub delivery_reason: Option<Option<String>>,
    /// The new count of failures.
    pub delivery_attempts: Option<u32>,
    /// When it was last tried.
    pub last_delivery_attempt_at: Option<Timestamp>,
    /// `Some(None)` clears it.
    pub last_delivery_error: Option<Option<String>>,
    /// The signal that shows it in full; `Some(None)` clears it.
    pub delivered_signal_id: Option<Option<MessageId>>,
    /// The signal that names it.
    pub summary_signal_id: Option<MessageId>,
}

impl RecordChange {
    /// Changes nothing yet.
    pub fn at(now: Timestamp) -> Self {
        Self { now, ..Self::default() }
    }
}

/// What stores decide alike.
pub mod rules {
    use std::cmp::Ordering;

    use super::{
        CreatedHow, DueQuery, NewRecord, NotificationQuery, NotificationRecord, RecordChange, StorageError, Timestamp,
    };

    /// Attributes that a record has at most, however many were merged into it (NOTIF-006).
    pub const ATTRIBUTES_MAX: usize = 64;

    /// Whether what names `resource` is a thread's whose owner is `owner`: its own, or nobody's.
    pub fn belongs(resource: Option<&str>, owner: Option<&str>) -> bool {
        resource.is_none_or(|resource| resource.is_empty() || owner == Some(resource))
    }

    fn same_key(held: Option<&str>, given: Option<&str>) -> bool {
        given.is_some_and(|given| !given.is_empty() && held == Some(given))
    }

    /// Whether `new` goes into `held`, and how (NOTIF-030, NOTIF-034). The key that matches first wins: see
    /// [`choose`].
    pub fn meets(held: &NotificationRecord, new: &NewRecord) -> Option<CreatedHow> {
        let record = &new.record;
        let same = held.thread_id == record.thread_id
            && held.source == record.source
            && held.kind == record.kind
            && held.agent_id == record.agent_id
            && held.resource_id == record.resource_id;
        if !same {
            return None;
        }
        let dedupes = same_key(held.dedupe_key.as_deref(), record.dedupe_key.as_deref());
        if dedupes && !new.dedupe_window.is_zero() && held.created_at.plus(new.dedupe_window) > record.created_at {
            return Some(CreatedHow::Duplicate);
        }
        let coalesces = same_key(held.coalesce_key.as_deref(), record.coalesce_key.as_deref());
        (held.status == "pending" && (dedupes || coalesces)).then_some(CreatedHow::Merged)
    }

    /// Of two records that `new` meets, which it goes into: the duplicate, then the same `dedupe_key`, then the one that
    /// changed last (NOTIF-033).
    pub fn choose(new: &NewRecord, a: &NotificationRecord, b: &NotificationRecord) -> Ordering {
        let rank = |held: &NotificationRecord| {
            let duplicate = meets(held, new) == Some(CreatedHow::Duplicate);
            let dedupes = same_key(held.dedupe_key.as_deref(), new.record.dedupe_key.as_deref());
            (duplicate, dedupes, held.updated_at)
        };
        rank(a).cmp(&rank(b)).then_with(|| a.id.cmp(&b.id))
    }

    /// Merges `new` into `held` (NOTIF-031). A due time that `held` has stays, unless `new` brings one for good: what
    /// [`super::NewRecord`] carries as a safety net (NOTIF-023) is taken only where there was none.
    pub fn merge(held: &mut NotificationRecord, new: &NewRecord, how: CreatedHow) {
        let record = &new.record;
        held.coalesced_count = held.coalesced_count.saturating_add(1);
        held.updated_at = record.created_at.max(held.updated_at);
        if how == CreatedHow::Duplicate {
            return;
        }
        held.summary.clone_from(&record.summary);
        if record.payload.is_some() {
            held.payload.clone_from(&record.payload);
        }
        if new.priority_given {
            held.priority.clone_from(&record.priority);
        }
        if held.due_at().is_none() {
            held.deliver_at = record.deliver_at;
            held.summary_at = record.summary_at;
            if record.delivery_reason.is_some() {
                held.delivery_reason.clone_from(&record.delivery_reason);
            }
        }
        if let Some(given) = &record.attributes {
            let held = held.attributes.get_or_insert_default();
            for (name, value) in given {
                if held.len() < ATTRIBUTES_MAX || held.contains_key(name) {
                    held.insert(name.clone(), value.clone());
                }
            }
        }
        if let Some(given) = &record.metadata {
            held.metadata.get_or_insert_default().extend(given.clone());
        }
    }

    /// Whether the conditions of a change hold; `claimed_by` is the token that holds the record at `change.now`.
    pub fn holds(record: &NotificationRecord, change: &RecordChange, claimed_by: Option<&str>) -> bool {
        change.if_claimed.as_deref().is_none_or(|token| claimed_by == Some(token))
            && change.if_count.is_none_or(|count| count == record.coalesced_count)
            && change.if_status.is_none_or(|statuses| statuses.contains(&record.status.as_str()))
    }

    /// Writes a status and its time (STO-053).
    pub fn set_status(record: &mut NotificationRecord, status: &str, now: Timestamp) {
        status.clone_into(&mut record.status);
        let at = match status {
            "delivered" => &mut record.delivered_at,
            "seen" => &mut record.seen_at,
            "dismissed" => &mut record.dismissed_at,
            "archived" => &mut record.archived_at,
            "discarded" => &mut record.discarded_at,
            _ => return,
        };
        *at = Some(now);
    }

    /// Makes a change whose conditions hold.
    pub fn apply(record: &mut NotificationRecord, change: &RecordChange) {
        if !change.only_pending || record.status == "pending" {
            if let Some(at) = change.deliver_at {
                record.deliver_at = at;
            }
            if let Some(at) = change.summary_at {
                record.summary_at = at;
            }
            if let Some(reason) = &change.delivery_reason {
                record.delivery_reason.clone_from(reason);
            }
            if let Some(status) = change.status {
                set_status(record, status, change.now);
            }
        }
        if let Some(attempts) = change.delivery_attempts {
            record.delivery_attempts = attempts;
        }
        if change.last_delivery_attempt_at.is_some() {
            record.last_delivery_attempt_at = change.last_delivery_attempt_at;
        }
        if let Some(error) = &change.last_delivery_error {
            record.last_delivery_error.clone_from(error);
        }
        if let Some(signal) = &change.delivered_signal_id {
            record.delivered_signal_id.clone_from(signal);
        }
        if change.summary_signal_id.is_some() {
            record.summary_signal_id.clone_from(&change.summary_signal_id);
        }
        record.updated_at = change.now.max(record.updated_at);
    }

    /// A record whose signal was removed from its thread is pending again: due at once after a rollback (ruling 33), quietly in
    /// the inbox if somebody took it back.
    pub fn undeliver(record: &mut NotificationRecord, now: Timestamp, due: bool) {
        record.delivered_signal_id = None;
        if matches!(record.status.as_str(), "delivered" | "seen") {
            "pending".clone_into(&mut record.status);
            record.delivered_at = None;
            record.seen_at = None;
            record.deliver_at = due.then_some(now);
        }
        record.updated_at = now.max(record.updated_at);
    }

    /// Whether the query selects the record, its cursor and limit aside.
    pub fn selects(query: &NotificationQuery, record: &NotificationRecord) -> bool {
        let equal =
            |wanted: &Option<String>, held: Option<&str>| wanted.as_deref().is_none_or(|wanted| held == Some(wanted));
        equal(&query.thread_id, Some(&record.thread_id))
            && equal(&query.resource_id, record.resource_id.as_deref())
            && equal(&query.agent_id, record.agent_id.as_deref())
            && equal(&query.source, Some(&record.source))
            && (query.statuses.is_empty() || query.statuses.contains(&record.status))
            && (query.priorities.is_empty() || query.priorities.contains(&record.priority))
            && found(query.search.as_deref(), record)
    }

    /// Whether summary, kind or source contain the text, whatever its case (NOTIF-113).
    pub fn found(search: Option<&str>, record: &NotificationRecord) -> bool {
        let Some(search) = search else { return true };
        let search = search.to_lowercase();
        [&record.summary, &record.kind, &record.source].iter().any(|text| text.to_lowercase().contains(&search))
    }

    /// Whether the record lies behind the query's cursor.
    pub fn is_behind(query: &NotificationQuery, record: &NotificationRecord) -> bool {
        let Some(after) = &query.after else { return true };
        (record.updated_at, record.id.as_str()) < (after.updated_at, after.id.as_str())
    }

    /// Whether the record is due for the query.
    pub fn is_due(query: &DueQuery, record: &NotificationRecord) -> bool {
        record.due_at().is_some_and(|at| at <= query.now)
            && query.agent_id.as_ref().is_none_or(|agent| record.agent_id.as_ref() == Some(agent))
            && query.resource_id.as_ref().is_none_or(|resource| record.resource_id.as_ref() == Some(resource))
    }

    /// The order in which due records are taken (NOTIF-060); sort with it stably, so that what came first goes first.
    pub fn due_order(a: &NotificationRecord, b: &NotificationRecord) -> Ordering {
        (a.due_at(), a.updated_at).cmp(&(b.due_at(), b.updated_at))
    }

    /// There is no such record.
    pub fn unknown(id: &str) -> StorageError {
        StorageError::NotFound { what: "notification", id: id.to_owned() }
    }
}
