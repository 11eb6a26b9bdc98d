//! Sending what a claimed record stands for, and writing what became of it (NOTIF-005, NOTIF-015, NOTIF §8).

use std::time::Duration;

use sha2::{Digest, Sha256};

use super::{Courier, Decision, render};
use crate::{
    error::Error,
    id::{MessageId, ThreadKey},
    runtime::{Action, IfActive, IfIdle, Outcome, Target},
    storage::{InputMode, NotificationRecord, RecordChange, RecordKey, SharedStorage, StorageError},
    time::Timestamp,
};

/// The reason that a record has until its decision is written: if that never happens, it is decided anew (NOTIF-023).
pub(super) const SAFETY_NET: &str = "safety-net";
pub(super) const RETRY_FIRST: Duration = Duration::from_secs(30);
/// Another process has the thread, as a rule for the time of a run.
const RETRY_OWNED: Duration = Duration::from_secs(2);
const RETRY_LAST: Duration = Duration::from_secs(3600);

/// A record under a claim of ours.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) record: NotificationRecord,
    pub(super) token: String,
    /// Sent by the dispatcher: its attempt is noted even where it succeeds (NOTIF-063).
    pub(super) dispatched: bool,
}

/// What became of a record.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) record: NotificationRecord,
    pub(super) outcome: Option<Outcome>,
    pub(super) error: Option<String>,
}

impl Held {
    /// A change of the record under its claim, which it gives up.
    pub(super) fn change(&self, now: Timestamp) -> RecordChange {
        RecordChange {
            if_claimed: Some(self.token.clone()),
            release: true,
            only_pending: true,
            ..RecordChange::at(now)
        }
    }

    pub(super) fn thread(&self) -> ThreadKey {
        thread_of(&self.record)
    }

    /// Writes a change, unless the claim was lost; gives the record as it stands then.
    pub(super) async fn write(&self, courier: &dyn Courier, change: RecordChange) -> Result<NotificationRecord, Error> {
        let store = courier.store()?;
        if let Some(record) = store.update(&self.record.key(), change).await? {
            return Ok(record);
        }
        tracing::warn!(notification = self.record.id, "the claim on a notification was lost; another process has it");
        Ok(store.get(&self.record.thread_id, &self.record.id).await?.unwrap_or_else(|| self.record.clone()))
    }
}

/// The thread a record is for.
pub(super) fn thread_of(record: &NotificationRecord) -> ThreadKey {
    match record.resource_id.as_deref().filter(|resource| !resource.is_empty()) {
        Some(resource) => ThreadKey::new(resource, record.thread_id.as_str()),
        None => ThreadKey::unowned(record.thread_id.as_str()),
    }
}

/// The id of the signal that shows these records: the same however often it is tried (NOTIF-075), another one once
/// something was merged into one of them.
pub(super) fn signal_id(kind: &str, records: &[&NotificationRecord]) -> MessageId {
    let mut hash = Sha256::new();
    hash.update(kind);
    for record in records {
        for part in [&record.thread_id, &record.id] {
            hash.update([0]);
            hash.update(part);
        }
        hash.update([0]);
        hash.update(record.coalesced_count.to_le_bytes());
        if kind == "summary" {
            hash.update(record.summary_at.map_or(0, Timestamp::as_millis).to_le_bytes());
        }
    }
    let digest = hash.finalize();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&digest[..16]);
    uuid::Builder::from_custom_bytes(bytes).into_uuid().to_string().into()
}

/// The first of these signals that the thread has already: in its history, or accepted and waiting.
pub(super) async fn shown(
    storage: &SharedStorage,
    thread: &ThreadKey,
    ids: &[MessageId],
) -> Result<Option<MessageId>, StorageError> {
    let stored = storage.get_messages(ids).await?;
    if let Some(message) = stored.into_iter().find(|message| message.thread_id.as_deref() == Some(&*thread.thread_id)) {
        return Ok(Some(message.id));
    }
    let waiting = storage.inbox(thread).await?;
    Ok(waiting.into_iter().map(|entry| entry.signal.id).find(|id| ids.contains(id)))
}

/// Sends the full notification and writes what became of it.
pub(super) async fn full(
    courier: &dyn Courier,
    held: &Held,
    decision: &Decision,
    mode: InputMode,
    (if_active, if_idle): (IfActive, IfIdle),
) -> Result<Settled, Error> {
    let record = &held.record;
    let id = signal_id("full", &[record]);
    let Some(agent_id) = record.agent_id.as_deref() else { return unaddressed(courier, held).await };
    let thread = held.thread();
    if thread.resource_id.is_none() {
        return unaddressed(courier, held).await;
    }
    // Only who takes a record over can meet a signal that went out already.
    if held.dispatched && shown(courier.storage(), &thread, std::slice::from_ref(&id)).await?.is_some() {
        let record = delivered(courier, held, decision, id).await?;
        return Ok(Settled { record, outcome: None, error: None });
    }
    let mut signal = render::full(record, courier.state().options.render_id);
    signal.id = Some(id.clone());
    let target = Target { thread: Some(thread.clone()), if_active, if_idle, ..Target::default() };
    match courier.send(agent_id, target, signal, mode).await {
        Ok(outcome) if matches!(outcome.action, Action::Wake | Action::Deliver | Action::Persist) => {
            let record = delivered(courier, held, decision, id).await?;
            Ok(Settled { record, outcome: Some(outcome), error: None })
        }
        Ok(outcome) => {
            // Busy, or dropped by the sender's own wish: nothing was shown, and that is no failure (NOTIF-018, 082).
            courier.state().hold(&thread, record.key());
            let change = RecordChange {
                deliver_at: Some(Some(courier.now().plus(RETRY_FIRST))),
                delivery_reason: Some(decision.reason.clone()),
                ..held.change(courier.now())
            };
            let record = held.write(courier, change).await?;
            courier.state().wake();
            Ok(Settled { record, outcome: Some(outcome), error: None })
        }
        Err(Error::Storage(StorageError::DifferentContent { .. })) => {
            // Its id is known to the thread: it went out, before something about it changed.
            let record = delivered(courier, held, decision, id).await?;
            Ok(Settled { record, outcome: None, error: None })
        }
        Err(error) => {
            let change = failure(courier, held, &error, false, decision.reason.clone());
            let record = held.write(courier, change).await?;
            courier.state().wake();
            Ok(Settled { record, outcome: None, error: Some(error.to_string()) })
        }
    }
}

/// NOTIF-005: a record that was put away meanwhile stays as it is, but knows its signal.
async fn delivered(
    courier: &dyn Courier,
    held: &Held,
    decision: &Decision,
    signal: MessageId,
) -> Result<NotificationRecord, Error> {
    let now = courier.now();
    let change = RecordChange {
        if_count: Some(held.record.coalesced_count),
        status: Some("delivered"),
        deliver_at: Some(None),
        summary_at: Some(None),
        delivery_reason: Some(decision.reason.clone()),
        delivered_signal_id: Some(Some(signal)),
        last_delivery_attempt_at: held.dispatched.then_some(now),
        ..held.change(now)
    };
    let store = courier.store()?;
    let key = held.record.key();
    let Some(record) = store.update(&key, change).await? else {
        // Something was merged into it after it had been sent: that is delivered too, once more. Or the claim is lost.
        let again = RecordChange { deliver_at: Some(Some(now)), ..held.change(now) };
        let record = held.write(courier, again).await?;
        courier.state().wake();
        return Ok(record);
    };
    if record.status != "delivered" && !held.dispatched {
        let noted = RecordChange { last_delivery_attempt_at: Some(now), ..RecordChange::at(now) };
        return Ok(store.update(&key, noted).await?.unwrap_or(record));
    }
    Ok(record)
}

/// NOTIF-066.
async fn unaddressed(courier: &dyn Courier, held: &Held) -> Result<Settled, Error> {
    let missing = Error::invalid("resourceId", "the notification names no agent or no resource, so nobody can get it");
    let reason = held.record.delivery_reason.clone();
    let for_summary = held.record.deliver_at.is_none();
    let record = held.write(courier, failure(courier, held, &missing, for_summary, reason)).await?;
    Ok(Settled { record, outcome: None, error: Some(missing.to_string()) })
}

/// How a failure is to be taken (NOTIF-082).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// Trying again is of no use.
    Permanent,
    /// It may work later.
    Transient,
    /// Somebody else is at it, or this process is ending: no failure at all.
    Busy,
}

pub(super) fn classify(error: &Error) -> Class {
    match error {
        Error::UnknownAgent(_)
        | Error::InvalidSignal(_)
        | Error::Invalid { .. }
        | Error::Configuration(_)
        | Error::NoMemory(_)
        | Error::Storage(StorageError::ThreadOwnership { .. }) => Class::Permanent,
        Error::Draining | Error::OwnedElsewhere { .. } | Error::InputLimit(_) => Class::Busy,
        _ => Class::Transient,
    }
}

/// The change that a failed delivery makes (NOTIF-080 … NOTIF-082); `of_summary` says what is due again.
pub(super) fn failure(
    courier: &dyn Courier,
    held: &Held,
    error: &Error,
    of_summary: bool,
    reason: Option<String>,
) -> RecordChange {
    let now = courier.now();
    let class = classify(error);
    let max = courier.state().options.max_attempts.max(1);
    let known = held.record.delivery_attempts;
    let attempts = if class == Class::Busy || known >= max { known } else { known + 1 };
    let mut change = RecordChange {
        last_delivery_attempt_at: Some(now),
        last_delivery_error: Some(Some(error.to_string())),
        delivery_attempts: Some(attempts),
        delivery_reason: Some(reason),
        ..held.change(now)
    };
    if class == Class::Permanent || (class == Class::Transient && attempts >= max) {
        change.status = Some("failed");
        change.deliver_at = Some(None);
        change.summary_at = Some(None);
        return change;
    }
    let wait = if matches!(error, Error::OwnedElsewhere { .. }) { RETRY_OWNED } else { backoff(attempts.max(1)) };
    let next = Some(Some(now.plus(wait)));
    if of_summary {
        change.summary_at = next;
    } else {
        change.deliver_at = next;
    }
    change
}

/// NOTIF-081, with ± 20 %, so that records that failed together do not come back together.
fn backoff(attempt: u32) -> Duration {
    let wait = RETRY_FIRST.saturating_mul(1 << (attempt - 1).min(16)).min(RETRY_LAST);
    let percent = 80 + (uuid::Uuid::new_v4().as_u128() % 41) as u32;
    wait * percent / 100
}

/// The keys of these records.
pub(super) fn keys<'a>(records: impl IntoIterator<Item = &'a NotificationRecord>) -> Vec<RecordKey> {
    records.into_iter().map(NotificationRecord::key).collect()
}
