//! Notifications: outside events with a durable record, delivered as signals by policy (NOTIF).
//!
//! An event comes in with [`AgentHandle::send_notification`]: its record is stored, the agent's [`DeliveryPolicy`] decides,
//! and the agent is told now, later, in a summary, or not at all. What is due later is delivered by the dispatcher, a task
//! of the runtime that sleeps until something is due. The agent looks into its inbox with [`notification_inbox_tool`].
//!
//! Records are claimed before they are sent, so that of many processes one sends; a signal's id follows from its record,
//! so that what was sent before a crash is recognised (NOTIF-075).

mod bounds;
mod cron;
mod deliver;
mod dispatch;
mod inbox;
mod ingest;
mod policy;
mod render;
mod state;
mod wake;

pub(crate) use bounds::{PAYLOAD_MAX, fitted};
pub use cron::{Cron, CronError};
pub use dispatch::DispatchReport;
pub(crate) use dispatch::run as dispatcher;
pub use inbox::{InboxToolOptions, notification_inbox_tool, notification_inbox_tool_with};
pub use policy::{DecideContext, Decision, DeliveryAction, DeliveryPolicy};
pub use state::NotificationOptions;
pub(crate) use state::State;
pub(crate) use wake::run as wake_others;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::Value;

use crate::{
    error::Error,
    id::{MessageId, RunId, ThreadKey},
    json::Object,
    runtime::{Action, AgentHandle, Bugle, CancelSelector, IfActive, IfIdle, Outcome, Target},
    signal::SignalInput,
    storage::{
        InputMode, NotificationPage, NotificationQuery, NotificationRecord, NotificationStore, RecordChange, RecordKey,
        SharedStorage,
    },
    time::Timestamp,
};

/// The guide's example is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/notifications.md")]
struct Guide;

/// An outside event for a thread. Build one with [`NewNotification::new`] and set what else is known.
#[derive(Debug, Clone)]
pub struct NewNotification {
    /// The thread it is for.
    pub thread: ThreadKey,
    /// Where it came from: `github`. At most 256 bytes (NOTIF-006).
    pub source: String,
    /// What kind of event: `ci-status`. At most 256 bytes.
    pub kind: String,
    /// One line for the model. At most 16 KiB.
    pub summary: String,
    /// `low`, `medium` (default), `high` or `urgent`.
    pub priority: Option<String>,
    /// The event itself; the model sees it when it reads the record (NOTIF-103). At most 256 KiB, metadata included.
    pub payload: Option<Value>,
    /// The source's own id. At most 256 bytes.
    pub source_id: Option<String>,
    /// A record with this key that is still pending is the same event (NOTIF-030, NOTIF-034). At most 1,024 bytes.
    pub dedupe_key: Option<String>,
    /// How long `dedupe_key` stands for one event, whatever became of its record (NOTIF-034); the runtime's setting if
    /// absent.
    pub dedupe_window: Option<Duration>,
    /// Pending records with this key are counted together (NOTIF-030). At most 1,024 bytes.
    pub coalesce_key: Option<String>,
    /// Shown to the model as XML attributes, after the record's own. At most 64, of 1,024 bytes each, name included; what is
    /// merged into a record adds no more than that in all.
    pub attributes: Option<Object>,
    /// Kept with the record and the signal, not shown.
    pub metadata: Option<Object>,
    /// What a full delivery does while a run is active.
    pub if_active: IfActive,
    /// What a full delivery does while none is.
    pub if_idle: IfIdle,
}

impl NewNotification {
    /// An event of priority `medium`.
    pub fn new(
        thread: ThreadKey,
        source: impl Into<String>,
        kind: impl Into<String>,
        summary: impl Into<String>,
    ) -> Self {
        Self {
            thread,
            source: source.into(),
            kind: kind.into(),
            summary: summary.into(),
            priority: None,
            payload: None,
            source_id: None,
            dedupe_key: None,
            dedupe_window: None,
            coalesce_key: None,
            attributes: None,
            metadata: None,
            if_active: IfActive::default(),
            if_idle: IfIdle::default(),
        }
    }

    /// With a priority.
    pub fn priority(self, priority: impl Into<String>) -> Self {
        Self { priority: Some(priority.into()), ..self }
    }
}

/// What became of a notification (NOTIF-014).
#[derive(Debug, Clone)]
pub struct Notified {
    /// The record after all writes.
    pub record: NotificationRecord,
    /// What was decided.
    pub decision: Decision,
    /// What became of the signal, if one was sent now and accepted.
    pub outcome: Option<Outcome>,
}

impl Notified {
    /// A signal was sent now, and accepted.
    pub fn is_accepted(&self) -> bool {
        self.outcome.is_some()
    }

    /// The run that takes the signal.
    pub fn run_id(&self) -> Option<&RunId> {
        self.outcome.as_ref()?.run_id.as_ref()
    }
}

impl AgentHandle {
    /// Takes a notification in: stores its record, or merges it into a pending one of the same key, and acts as the agent's
    /// policy says (NOTIF-040): by default everything but `low` wakes an idle agent; on an active thread `urgent` joins
    /// the run, `high` and `medium` show a one-line summary, and `low` waits for the next summary.
    ///
    /// A delivery that fails is no error: the record stays pending, with the failure and the time of the next try
    /// (NOTIF-019). Dropping the future leaves the record in the inbox; it is due a minute later.
    ///
    /// # Errors
    /// [`Error::NotificationsUnsupported`] (NOTIF-010), [`Error::Invalid`] with the field that is wrong (NOTIF-006), or the
    /// store's. Nothing is stored then.
    pub async fn send_notification(&self, notification: NewNotification) -> Result<Notified, Error> {
        let mut notified = self.send_notifications(vec![notification]).await?;
        notified.pop().ok_or(Error::Internal("a notification was lost on its way in"))
    }

    /// Takes several notifications in: all records are stored before the first is delivered; one result each, in order
    /// (NOTIF-011, NOTIF-012).
    ///
    /// # Errors
    /// As [`Self::send_notification`]. If the store fails in between, those stored before are due in a minute.
    pub async fn send_notifications(&self, notifications: Vec<NewNotification>) -> Result<Vec<Notified>, Error> {
        let stored = ingest::store(&self.bugle, self.agent.id(), notifications).await?;
        Ok(ingest::act_on(&self.bugle, stored).await)
    }

    /// Stores notifications and returns; they are delivered afterwards, by a task of the runtime (PROV-013). Gives the ids
    /// of the records, and for each whether it was a duplicate.
    ///
    /// # Errors
    /// As [`Self::send_notification`].
    pub async fn accept_notifications(
        &self,
        notifications: Vec<NewNotification>,
    ) -> Result<Vec<(String, bool)>, Error> {
        let stored = ingest::store(&self.bugle, self.agent.id(), notifications).await?;
        let ids = stored.iter().map(|stored| (stored.id().to_owned(), stored.is_duplicate())).collect();
        let bugle = self.bugle.clone();
        self.bugle.inner.hub.tasks.spawn(async move {
            ingest::act_on(&bugle, stored).await;
        });
        Ok(ids)
    }
}

/// What a person does with a record of an inbox (NOTIF-121).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InboxAction {
    /// It was looked at.
    Seen,
    /// It is put away.
    Dismiss,
    /// It is put away for good.
    Archive,
    /// Its delivery, which has failed, is tried anew, at once (NOTIF-083).
    Retry,
}

impl Bugle {
    /// The records that the query selects (NOTIF-110).
    ///
    /// # Errors
    /// [`Error::NotificationsUnsupported`], or the store's.
    pub async fn notifications(&self, query: &NotificationQuery) -> Result<NotificationPage, Error> {
        Ok(self.store()?.list(query).await?)
    }

    /// Marks a record, or tries its delivery anew.
    ///
    /// # Errors
    /// [`StorageError::NotFound`](crate::storage::StorageError::NotFound); [`Error::Invalid`] for a retry of a record that
    /// has not failed.
    pub async fn mark_notification(
        &self,
        thread_id: &str,
        id: &str,
        action: InboxAction,
    ) -> Result<NotificationRecord, Error> {
        let key = RecordKey { thread_id: thread_id.to_owned(), id: id.to_owned() };
        let now = self.inner.clock.now();
        let status = match action {
            InboxAction::Seen => "seen",
            InboxAction::Dismiss => "dismissed",
            InboxAction::Archive => "archived",
            InboxAction::Retry => "pending",
        };
        let mut change = RecordChange { status: Some(status), ..RecordChange::at(now) };
        if action == InboxAction::Retry {
            change.if_status = Some(&["failed"]);
            change.deliver_at = Some(Some(now));
            change.delivery_attempts = Some(0);
            change.last_delivery_error = Some(None);
        }
        let record = self.store()?.update(&key, change).await?;
        let record =
            record.ok_or_else(|| Error::invalid("id", "only a notification that has failed can be retried"))?;
        self.inner.notifications.wake();
        Ok(record)
    }

    /// Delivers what is due now, at most `limit` records (NOTIF-060). The runtime does so by itself unless
    /// [`NotificationOptions::dispatch`] is off.
    ///
    /// # Errors
    /// [`Error::NotificationsUnsupported`], or the store's.
    pub async fn dispatch_notifications(&self, limit: u32) -> Result<DispatchReport, Error> {
        dispatch::pass(self, limit).await
    }
}

/// What delivery needs of the runtime.
#[async_trait]
trait Courier: Send + Sync {
    fn storage(&self) -> &SharedStorage;
    fn state(&self) -> &State;
    fn now(&self) -> Timestamp;
    fn policy(&self, agent_id: &str) -> Option<Arc<DeliveryPolicy>>;
    /// Whether a run occupies the thread, here or elsewhere (NOTIF-013).
    async fn is_active(&self, thread: &ThreadKey) -> bool;
    /// Hands a signal over; returns once it is decided what becomes of it, and it is written if it is only stored.
    async fn send(
        &self,
        agent_id: &str,
        target: Target,
        signal: SignalInput,
        mode: InputMode,
    ) -> Result<Outcome, Error>;
    /// Whether a signal waits, taken in by no run yet.
    async fn waits(&self, agent_id: &str, thread: &ThreadKey, id: &MessageId) -> bool;
    /// Takes back a signal that waits; `true` if this call did.
    async fn withdraw(&self, agent_id: &str, thread: &ThreadKey, id: &MessageId) -> bool;

    fn store(&self) -> Result<&dyn NotificationStore, Error> {
        let store = self.storage().notifications();
        store.ok_or_else(|| Error::NotificationsUnsupported(self.storage().describe()))
    }
}

#[async_trait]
impl Courier for Bugle {
    fn storage(&self) -> &SharedStorage {
        &self.inner.storage
    }

    fn state(&self) -> &State {
        &self.inner.notifications
    }

    fn now(&self) -> Timestamp {
        self.inner.clock.now()
    }

    fn policy(&self, agent_id: &str) -> Option<Arc<DeliveryPolicy>> {
        self.inner.agent_by_id(agent_id)?.inner().notifications.clone()
    }

    async fn is_active(&self, thread: &ThreadKey) -> bool {
        if self.inner.hub.existing(thread).is_some_and(|thread| thread.active_run_id().is_some()) {
            return true;
        }
        match self.inner.storage.lease_holder(thread).await {
            Ok(holder) => holder.is_some_and(|holder| holder != self.inner.storage.owner()),
            Err(error) => {
                tracing::warn!(%thread, %error, "who owns the thread cannot be told; it counts as idle");
                false
            }
        }
    }

    async fn send(
        &self,
        agent_id: &str,
        target: Target,
        signal: SignalInput,
        mode: InputMode,
    ) -> Result<Outcome, Error> {
        let agent = self.agent(agent_id)?;
        let mut sent = match mode {
            InputMode::Queue => agent.queue_signal(target, signal).await?,
            InputMode::Steer => agent.send_signal(target, signal).await?,
        };
        let outcome = sent.accepted().await?;
        if outcome.action == Action::Persist {
            sent.persisted().await?;
        }
        Ok(outcome)
    }

    async fn waits(&self, agent_id: &str, thread: &ThreadKey, id: &MessageId) -> bool {
        let Ok(agent) = self.agent(agent_id) else { return false };
        let pending = agent.pending_input(thread).await.unwrap_or_default();
        pending.iter().any(|input| input.signal_id == *id)
    }

    async fn withdraw(&self, agent_id: &str, thread: &ThreadKey, id: &MessageId) -> bool {
        let Ok(agent) = self.agent(agent_id) else { return false };
        let cancelled = agent.cancel_queued(thread, CancelSelector::Signals(vec![id.clone()])).await;
        cancelled.is_ok_and(|ids| ids.contains(id))
    }
}

#[cfg(test)]
mod crowd;
#[cfg(test)]
mod tests;
