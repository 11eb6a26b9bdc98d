//! Taking a notification in: the record, the decision, the delivery (NOTIF §2 … §4).

use std::time::Duration;

use super::{Courier, NewNotification, render};
use crate::{
    error::Error,
    id::ThreadKey,
    runtime::{Action, AgentHandle, IdleBehavior, IfIdle, Outcome, Target},
    signal::validate_attributes,
    storage::{NotificationQuery, NotificationRecord, SharedStorage, StorageError},
    time::Timestamp,
};

/// Payload and metadata of one record, at most, as JSON text.
const PAYLOAD_MAX: usize = 256 * 1024;
/// A record whose delivery was cut short by a crash is due again after this (NOTIF-023).
const SAFETY_NET: Duration = Duration::from_secs(60);
const RETRY_FIRST: Duration = Duration::from_secs(30);
const RETRY_LAST: Duration = Duration::from_secs(3600);
/// After so many failures a record is given up (NOTIF-080).
const ATTEMPTS_MAX: u32 = 5;
/// How many records of a thread are looked through.
const SCAN_MAX: u32 = 1000;

/// Takes a notification in: stores its record, or merges it into a pending one of the same key, and delivers it as the
/// default policy says (NOTIF-040): on an idle thread everything but `low` wakes the agent; on an active one `urgent`
/// joins the run, `high` and `medium` show a one-line summary, and `low` waits in the inbox. Gives the record as it
/// stands afterwards.
///
/// A delivery that fails is no error: the record stays pending, with the failure and the time of the next try
/// (NOTIF-019).
///
/// # Errors
/// [`Error::Invalid`] with the field that is wrong (NOTIF-006), or the store's, such as that it keeps no notifications
/// (NOTIF-010). Nothing is stored then.
pub async fn ingest(handle: &AgentHandle, input: NewNotification) -> Result<NotificationRecord, Error> {
    take_in(handle, input, Timestamp::now()).await
}

pub(super) async fn take_in(
    courier: &dyn Courier,
    input: NewNotification,
    now: Timestamp,
) -> Result<NotificationRecord, Error> {
    validate(&input)?;
    let storage = courier.storage();
    let (thread, if_active, if_idle) = (input.thread.clone(), input.if_active.clone(), input.if_idle.clone());
    let record = match mergeable(storage, courier.agent_id(), &input).await? {
        Some(existing) => {
            let merged = merge(existing, input, now);
            if storage.update_notification(merged.clone()).await? { merged } else { create(storage, merged).await? }
        }
        None => create(storage, new_record(courier.agent_id(), input, now)).await?,
    };
    let decision = decide(&record.priority, courier.is_active(&thread).await);
    let target =
        |if_idle| Target { thread: Some(thread.clone()), if_active: if_active.clone(), if_idle, ..Target::default() };
    let agent = courier.agent_id().to_owned();
    match decision.show {
        Show::Full => {
            let outcome = courier.send(&agent, target(if_idle), render::full(&record)).await;
            settle(storage, &thread, record, decision.reason, outcome, now).await
        }
        Show::Summary { then_full } => {
            // NOTIF-016: if the run has ended meanwhile, a summary of `high` wakes nobody; the full delivery will.
            let behavior = if then_full { IdleBehavior::Persist } else { IdleBehavior::Wake };
            let if_idle = IfIdle { behavior, ..if_idle };
            let outcome = courier.send(&agent, target(if_idle), render::summary(&[&record])).await;
            let full_at = then_full.then_some(now);
            change(storage, &thread, record, |record| {
                record.deliver_at = full_at;
                record.delivery_reason = Some(decision.reason.to_owned());
                match &outcome {
                    Ok(outcome) if matches!(outcome.action, Action::Wake | Action::Deliver | Action::Persist) => {
                        record.summary_at = None;
                        record.summary_signal_id = Some(outcome.signal.id.clone());
                    }
                    Ok(_) => record.summary_at = Some(now.plus(RETRY_FIRST)),
                    Err(error) => {
                        count_failure(record, error, now);
                        // What failed is the summary: that is what is due again (NOTIF-020).
                        record.summary_at = record.deliver_at.take();
                        record.deliver_at = full_at.filter(|_| record.status == "pending");
                    }
                }
            })
            .await
        }
        Show::Later => {
            change(storage, &thread, record, |record| {
                record.deliver_at = None;
                record.summary_at = Some(now);
                record.delivery_reason = Some(decision.reason.to_owned());
            })
            .await
        }
    }
}

struct Decision {
    show: Show,
    reason: &'static str,
}

#[derive(Debug, PartialEq)]
enum Show {
    /// The whole notification, now.
    Full,
    /// One line now; the whole later, when idle, if asked to.
    Summary { then_full: bool },
    /// In a later summary.
    Later,
}

/// The built-in default (NOTIF-040 with NOTIF-015).
fn decide(priority: &str, active: bool) -> Decision {
    let (show, reason) = match (priority, active) {
        ("urgent", _) => (Show::Full, "urgent"),
        ("high", false) => (Show::Full, "idle-high"),
        ("high", true) => (Show::Summary { then_full: true }, "active-high-summary-then-full"),
        ("medium", false) => (Show::Full, "idle-medium"),
        ("medium", true) => (Show::Summary { then_full: false }, "active-batch-summary"),
        (_, false) => (Show::Later, "idle-low-summary"),
        (_, true) => (Show::Later, "active-batch-summary"),
    };
    Decision { show, reason }
}

/// Writes what became of a full delivery (NOTIF-005, NOTIF-018, NOTIF-019).
pub(super) async fn settle(
    storage: &SharedStorage,
    thread: &ThreadKey,
    record: NotificationRecord,
    reason: &str,
    outcome: Result<Outcome, Error>,
    now: Timestamp,
) -> Result<NotificationRecord, Error> {
    change(storage, thread, record, |record| match &outcome {
        Ok(outcome) if matches!(outcome.action, Action::Wake | Action::Deliver | Action::Persist) => {
            record.delivered_signal_id = Some(outcome.signal.id.clone());
            record.deliver_at = None;
            record.summary_at = None;
            if record.status == "pending" {
                record.status = "delivered".to_owned();
                record.delivered_at = Some(now);
                record.delivery_reason = Some(reason.to_owned());
            } else {
                record.last_delivery_attempt_at = Some(now);
            }
        }
        // Busy or dropped: nothing was shown, and trying again does not count as a failure (NOTIF-082).
        Ok(_) => record.deliver_at = Some(now.plus(RETRY_FIRST)),
        Err(error) => count_failure(record, error, now),
    })
    .await
}

/// NOTIF-080 … NOTIF-082.
fn count_failure(record: &mut NotificationRecord, error: &Error, now: Timestamp) {
    record.delivery_attempts += 1;
    record.last_delivery_attempt_at = Some(now);
    record.last_delivery_error = Some(error.to_string());
    let permanent = matches!(
        error,
        Error::UnknownAgent(_)
            | Error::InvalidSignal(_)
            | Error::Invalid { .. }
            | Error::Configuration(_)
            | Error::NoMemory(_)
    );
    if permanent || record.delivery_attempts >= ATTEMPTS_MAX {
        if record.status == "pending" {
            record.status = "failed".to_owned();
        }
        record.deliver_at = None;
        return;
    }
    let wait = RETRY_FIRST.saturating_mul(1 << (record.delivery_attempts - 1)).min(RETRY_LAST);
    // ± 20 %, so that records that failed together do not come back together.
    let percent = 80 + (uuid::Uuid::new_v4().as_u128() % 41) as u32;
    record.deliver_at = Some(now.plus(wait * percent / 100));
}

/// Changes the record as it stands in the store by now, which may be further than `known`.
pub(super) async fn change(
    storage: &SharedStorage,
    thread: &ThreadKey,
    known: NotificationRecord,
    change: impl FnOnce(&mut NotificationRecord),
) -> Result<NotificationRecord, Error> {
    let mut record = find(storage, thread, &known.id).await?.unwrap_or(known);
    change(&mut record);
    record.updated_at = Timestamp::now();
    storage.update_notification(record.clone()).await?;
    Ok(record)
}

/// The thread's record with this id.
pub(super) async fn find(
    storage: &SharedStorage,
    thread: &ThreadKey,
    id: &str,
) -> Result<Option<NotificationRecord>, StorageError> {
    let query = NotificationQuery {
        thread: thread.clone(),
        statuses: Vec::new(),
        priority: None,
        source: None,
        limit: SCAN_MAX,
    };
    Ok(storage.list_notifications(query).await?.into_iter().find(|record| record.id == id))
}

async fn create(storage: &SharedStorage, record: NotificationRecord) -> Result<NotificationRecord, StorageError> {
    storage.create_notification(record).await
}

fn validate(input: &NewNotification) -> Result<(), Error> {
    for (field, text) in [("source", &input.source), ("kind", &input.kind), ("summary", &input.summary)] {
        if text.trim().is_empty() {
            return Err(Error::invalid(field, format!("notification {field} must not be empty")));
        }
    }
    if let Some(priority) = &input.priority
        && !["low", "medium", "high", "urgent"].contains(&priority.as_str())
    {
        let message = format!("notification priority is {priority}; it must be low, medium, high or urgent");
        return Err(Error::invalid("priority", message));
    }
    if let Some(attributes) = &input.attributes {
        validate_attributes(&attributes.iter().map(|(name, value)| (name.clone(), value.clone())).collect())?;
    }
    let size = input.payload.as_ref().map_or(0, |payload| payload.to_string().len())
        + input.metadata.as_ref().map_or(0, |metadata| serde_json::to_string(metadata).map_or(0, |text| text.len()));
    if size > PAYLOAD_MAX {
        let message = format!("notification payload and metadata have {size} bytes; at most {PAYLOAD_MAX} are kept");
        return Err(Error::invalid("payload", message));
    }
    Ok(())
}

/// The pending record that this one is merged into (NOTIF-030): by `dedupe_key` before `coalesce_key`, then the one
/// that changed last (NOTIF-033).
async fn mergeable(
    storage: &SharedStorage,
    agent_id: &str,
    input: &NewNotification,
) -> Result<Option<NotificationRecord>, StorageError> {
    let key = |key: &Option<String>| key.clone().filter(|key| !key.is_empty());
    let (dedupe, coalesce) = (key(&input.dedupe_key), key(&input.coalesce_key));
    if dedupe.is_none() && coalesce.is_none() {
        return Ok(None);
    }
    let query = NotificationQuery {
        thread: input.thread.clone(),
        statuses: vec!["pending".to_owned()],
        priority: None,
        source: Some(input.source.clone()),
        limit: SCAN_MAX,
    };
    let found = storage.list_notifications(query).await?;
    let matches = |record: &&NotificationRecord| {
        record.kind == input.kind
            && record.agent_id.as_deref() == Some(agent_id)
            && record.resource_id.as_deref() == input.thread.resource_id.as_deref()
    };
    let newest = |same: &dyn Fn(&NotificationRecord) -> bool| {
        let candidates = found.iter().filter(matches).filter(|record| same(record));
        candidates.max_by_key(|record| record.updated_at).cloned()
    };
    Ok(newest(&|record| dedupe.is_some() && record.dedupe_key == dedupe)
        .or_else(|| newest(&|record| coalesce.is_some() && record.coalesce_key == coalesce)))
}

/// NOTIF-031.
fn merge(mut record: NotificationRecord, input: NewNotification, now: Timestamp) -> NotificationRecord {
    record.summary = input.summary;
    record.payload = input.payload.or(record.payload);
    record.priority = input.priority.unwrap_or(record.priority);
    for (held, given) in [(&mut record.attributes, input.attributes), (&mut record.metadata, input.metadata)] {
        if let Some(given) = given {
            held.get_or_insert_default().extend(given);
        }
    }
    record.coalesced_count += 1;
    record.updated_at = now;
    record
}

fn new_record(agent_id: &str, input: NewNotification, now: Timestamp) -> NotificationRecord {
    NotificationRecord {
        id: uuid::Uuid::new_v4().to_string(),
        thread_id: input.thread.thread_id.to_string(),
        resource_id: input.thread.resource_id.as_deref().map(str::to_owned),
        agent_id: Some(agent_id.to_owned()),
        source: input.source,
        kind: input.kind,
        priority: input.priority.unwrap_or_else(|| "medium".to_owned()),
        status: "pending".to_owned(),
        summary: input.summary,
        payload: input.payload,
        source_id: input.source_id,
        dedupe_key: input.dedupe_key,
        coalesce_key: input.coalesce_key,
        coalesced_count: 1,
        attributes: input.attributes,
        metadata: input.metadata,
        created_at: now,
        updated_at: now,
        delivered_at: None,
        seen_at: None,
        dismissed_at: None,
        archived_at: None,
        discarded_at: None,
        deliver_at: Some(now.plus(SAFETY_NET)),
        summary_at: None,
        delivery_reason: None,
        delivery_attempts: 0,
        last_delivery_attempt_at: None,
        last_delivery_error: None,
        delivered_signal_id: None,
        summary_signal_id: None,
    }
}
