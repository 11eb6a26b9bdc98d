//! Notifications: outside events with a record, delivered as signals by policy (NOTIF).
//!
//! [`ingest`] stores the record and hands it to the agent at once where the policy says so; [`inbox_tool`] lets the agent
//! look into its inbox. What is due later stays in the inbox, with its due time in the record.

mod inbox;
mod ingest;
mod render;

pub use inbox::inbox_tool;
pub use ingest::ingest;

use async_trait::async_trait;
use serde_json::Value;

use crate::{
    error::Error,
    id::ThreadKey,
    json::Object,
    runtime::{Action, AgentHandle, IfActive, IfIdle, Outcome, Target},
    signal::SignalInput,
    storage::SharedStorage,
};

/// An outside event for a thread. Build one with [`NewNotification::new`] and set what else is known.
#[derive(Debug, Clone)]
pub struct NewNotification {
    /// The thread it is for.
    pub thread: ThreadKey,
    /// Where it came from: `github`.
    pub source: String,
    /// What kind of event: `ci-status`.
    pub kind: String,
    /// One line for the model.
    pub summary: String,
    /// `low`, `medium` (default), `high` or `urgent`.
    pub priority: Option<String>,
    /// The event itself; the model sees it when it reads the record (NOTIF-103).
    pub payload: Option<Value>,
    /// The source's own id.
    pub source_id: Option<String>,
    /// A record with this key that is still pending is the same event (NOTIF-030, NOTIF-034).
    pub dedupe_key: Option<String>,
    /// Pending records with this key are counted together (NOTIF-030).
    pub coalesce_key: Option<String>,
    /// Shown to the model as XML attributes, after the record's own.
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

/// What delivery needs of the runtime.
#[async_trait]
trait Courier: Send + Sync {
    fn agent_id(&self) -> &str;
    fn storage(&self) -> &SharedStorage;
    /// Whether a run occupies the thread (NOTIF-013).
    async fn is_active(&self, thread: &ThreadKey) -> bool;
    /// Hands a signal over; returns once it is decided what becomes of it, and it is written if it is only stored.
    async fn send(&self, agent_id: &str, target: Target, signal: SignalInput) -> Result<Outcome, Error>;
}

#[async_trait]
impl Courier for AgentHandle {
    fn agent_id(&self) -> &str {
        self.agent().id()
    }

    fn storage(&self) -> &SharedStorage {
        self.bugle().storage()
    }

    async fn is_active(&self, thread: &ThreadKey) -> bool {
        self.active_run_id(thread).is_some()
    }

    async fn send(&self, agent_id: &str, target: Target, signal: SignalInput) -> Result<Outcome, Error> {
        let mut sent = if agent_id == self.agent().id() {
            self.send_signal(target, signal).await?
        } else {
            self.bugle().agent(agent_id)?.send_signal(target, signal).await?
        };
        let outcome = sent.accepted().await?;
        if outcome.action == Action::Persist {
            sent.persisted().await?;
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests;
