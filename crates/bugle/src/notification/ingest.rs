//! Taking notifications in: the record, the decision, the act (NOTIF §2 … §4).

use std::time::Duration;

use super::{
    Courier, DecideContext, Decision, DeliveryAction, NewNotification, Notified,
    deliver::{self, Held, RETRY_FIRST, SAFETY_NET, Settled, signal_id},
    policy, render,
    state::{LastSummary, State},
};
use crate::{
    error::Error,
    id::ThreadKey,
    runtime::{Action, IdleBehavior, IfActive, IfIdle, Target},
    signal::validate_attributes,
    storage::{
        CreatedHow, InputMode, NOTIFICATION_PRIORITIES, NewRecord, NotificationRecord, RecordChange, RecordClaim,
        RecordKey,
    },
};

/// Payload and metadata of one record, at most, as JSON text.
pub(crate) const PAYLOAD_MAX: usize = 256 * 1024;
/// A record whose delivery was cut short by a crash is due again after this (NOTIF-023).
const SAFETY_TIME: Duration = Duration::from_secs(60);

/// Records that one ingress summary covers at most; a further one begins another.
const SUMMARY_MAX: usize = 100;

/// A notification whose record is stored, and that is still to be acted on.
#[derive(Debug)]
pub(super) struct Stored {
    record: NotificationRecord,
    how: CreatedHow,
    /// The claim's token; `None` if somebody else is just delivering the record.
    token: Option<String>,
    if_active: IfActive,
    if_idle: IfIdle,
}

impl Stored {
    pub(super) fn id(&self) -> &str {
        &self.record.id
    }

    pub(super) fn is_duplicate(&self) -> bool {
        self.how == CreatedHow::Duplicate
    }
}

/// Wakes the dispatcher if the work ends before its time: what is stored is due by then.
struct WakeOnDrop<'a>(Option<&'a State>);

impl Drop for WakeOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.0 {
            state.wake();
        }
    }
}

/// Stores the records, all of them before anything is delivered (NOTIF-012). Each is claimed, and due in a minute should
/// the delivery never happen (NOTIF-023).
pub(super) async fn store(
    courier: &dyn Courier,
    agent_id: &str,
    inputs: Vec<NewNotification>,
) -> Result<Vec<Stored>, Error> {
    let store = courier.store()?;
    inputs.iter().try_for_each(validate)?;
    let mut guard = WakeOnDrop(Some(courier.state()));
    let mut all = Vec::with_capacity(inputs.len());
    for input in inputs {
        let now = courier.now();
        let (if_active, if_idle) = (input.if_active.clone(), input.if_idle.clone());
        let claim = State::claim(now);
        let token = claim.token.clone();
        let new = NewRecord {
            priority_given: input.priority.is_some(),
            dedupe_window: input.dedupe_window.unwrap_or(courier.state().options.dedupe_window),
            claim: Some(claim),
            record: new_record(courier, agent_id, input),
        };
        let created = store.create(new).await?;
        let token = created.claimed.then_some(token);
        all.push(Stored { record: created.record, how: created.how, token, if_active, if_idle });
    }
    guard.0 = None;
    Ok(all)
}

/// Decides on stored records and acts, in order. Never fails: what goes wrong is in the records, and due again.
pub(super) async fn act_on(courier: &dyn Courier, stored: Vec<Stored>) -> Vec<Notified> {
    let mut guard = WakeOnDrop(Some(courier.state()));
    let now = courier.now();
    let mut states: Vec<(ThreadKey, bool)> = Vec::new();
    let mut decided = Vec::with_capacity(stored.len());
    for one in stored {
        let thread = deliver::thread_of(&one.record);
        let known = states.iter().find(|(of, _)| *of == thread).map(|(_, is_active)| *is_active);
        let is_active = match known {
            Some(is_active) => is_active,
            None => {
                let is_active = courier.is_active(&thread).await;
                states.push((thread, is_active));
                is_active
            }
        };
        let decision = match (one.how, &one.token) {
            (CreatedHow::Duplicate, _) => Decision::from(DeliveryAction::Discard).because("duplicate"),
            // Who delivers it finds that it has grown, and delivers it again.
            (_, None) => Decision::from(DeliveryAction::Defer).because("merged-into-delivery"),
            _ => decide(courier, &one.record, is_active).await,
        };
        decided.push((one, decision));
    }
    let mut notified = Vec::with_capacity(decided.len());
    let mut wake = false;
    for (one, decision) in decided {
        let Some(token) = one.token else {
            notified.push(Notified { record: one.record, decision, outcome: None });
            continue;
        };
        let known = one.record.clone();
        let held = Held { record: one.record, token, dispatched: false };
        let settled = match act(courier, &held, &decision, (one.if_active, one.if_idle)).await {
            Ok(settled) => settled,
            Err(error) => {
                // The record keeps its safety net; its claim runs out by then.
                tracing::error!(notification = known.id, %error, "what became of a notification could not be written");
                wake = true;
                Settled { record: known, outcome: None, error: Some(error.to_string()) }
            }
        };
        wake |= settled.record.due_at().is_some();
        let outcome = settled.outcome.filter(|outcome| !matches!(outcome.action, Action::Blocked | Action::Discard));
        notified.push(Notified { record: settled.record, decision, outcome });
    }
    guard.0 = guard.0.filter(|_| wake);
    tracing::trace!(count = notified.len(), at = %now, "notifications were taken in");
    notified
}

/// What the agent's policy says about a record.
pub(super) async fn decide(courier: &dyn Courier, record: &NotificationRecord, is_active: bool) -> Decision {
    let policy = record.agent_id.as_deref().and_then(|agent| courier.policy(agent));
    let context = DecideContext { record: record.clone(), is_active, now: courier.now() };
    policy::resolve(policy.as_deref(), context, courier.state().options.safety_poll).await
}

/// Does what was decided (NOTIF-015).
pub(super) async fn act(
    courier: &dyn Courier,
    held: &Held,
    decision: &Decision,
    (if_active, mut if_idle): (IfActive, IfIdle),
) -> Result<Settled, Error> {
    let now = courier.now();
    if if_idle.options.is_none() {
        if_idle.options.clone_from(&decision.stream_options);
    }
    let quiet = |record| Settled { record, outcome: None, error: None };
    let change = RecordChange {
        deliver_at: Some(None),
        summary_at: Some(None),
        delivery_reason: Some(decision.reason.clone()),
        ..held.change(now)
    };
    match decision.action {
        DeliveryAction::Deliver => deliver::full(courier, held, decision, InputMode::Steer, (if_active, if_idle)).await,
        DeliveryAction::Queue => deliver::full(courier, held, decision, InputMode::Queue, (if_active, if_idle)).await,
        DeliveryAction::Summarize => {
            // Without its safety net, a due time that a merged record had stays.
            let kept = held.record.deliver_at.filter(|_| held.record.delivery_reason.as_deref() != Some(SAFETY_NET));
            let deliver_at = decision.deliver_at.or(kept);
            let priority = held.record.priority.as_str();
            let is_due = decision.summary_at.is_some_and(|at| at <= now);
            if is_due && (priority == "medium" || (priority == "high" && deliver_at.is_some())) {
                return summarise(courier, held, decision, deliver_at, if_idle).await;
            }
            let change = RecordChange { deliver_at: Some(deliver_at), summary_at: Some(decision.summary_at), ..change };
            Ok(quiet(held.write(courier, change).await?))
        }
        DeliveryAction::Defer => {
            let change =
                RecordChange { deliver_at: Some(decision.deliver_at), summary_at: Some(decision.summary_at), ..change };
            Ok(quiet(held.write(courier, change).await?))
        }
        DeliveryAction::Persist => Ok(quiet(held.write(courier, change).await?)),
        DeliveryAction::Discard => {
            let change = RecordChange { status: Some("discarded"), ..change };
            Ok(quiet(held.write(courier, change).await?))
        }
    }
}

/// A summary at ingress (NOTIF-015, NOTIF-016). One that no run has taken in yet is replaced by one that covers its
/// records too (NOTIF-043).
async fn summarise(
    courier: &dyn Courier,
    held: &Held,
    decision: &Decision,
    deliver_at: Option<crate::time::Timestamp>,
    if_idle: IfIdle,
) -> Result<Settled, Error> {
    let store = courier.store()?;
    let record = &held.record;
    let (Some(agent_id), thread) = (record.agent_id.as_deref(), held.thread()) else {
        return deliver::full(courier, held, decision, InputMode::Steer, (IfActive::default(), if_idle)).await;
    };
    let slot = courier.state().summary_slot(agent_id, &thread);
    let mut last = slot.lock().await;
    let mut earlier = Vec::new();
    if let Some(last) = last.take() {
        earlier = withdraw(courier, agent_id, &thread, &last, held).await?;
    }
    let covered: Vec<&NotificationRecord> = earlier.iter().chain([record]).collect();
    let id = signal_id("summary", &covered);
    // Should this process die now, the next one sees of each of them whether this went out (NOTIF-075).
    store.intend(&deliver::keys(covered.iter().copied()), &held.token, &id).await?;
    let mut signal = render::summary(&covered, courier.state().options.render_id);
    signal.id = Some(id.clone());
    // NOTIF-016: if the run has ended meanwhile, a summary of `high` wakes nobody; the full delivery will.
    let behavior = if record.priority == "high" { IdleBehavior::Persist } else { IdleBehavior::Wake };
    let target = Target { thread: Some(thread), if_idle: IfIdle { behavior, ..if_idle }, ..Target::default() };
    let sent = courier.send(agent_id, target, signal, InputMode::Steer).await;
    let now = courier.now();
    let change = RecordChange {
        deliver_at: Some(deliver_at),
        delivery_reason: Some(decision.reason.clone()),
        ..held.change(now)
    };
    match sent {
        Ok(outcome) if matches!(outcome.action, Action::Wake | Action::Deliver | Action::Persist) => {
            if !earlier.is_empty() {
                let change =
                    RecordChange { summary_at: Some(None), summary_signal_id: Some(id.clone()), ..held.change(now) };
                store.update_all(&deliver::keys(&earlier), change).await?;
            }
            let change = RecordChange { summary_at: Some(None), summary_signal_id: Some(id.clone()), ..change };
            *last = Some(LastSummary { signal_id: id, keys: deliver::keys(covered) });
            Ok(Settled { record: held.write(courier, change).await?, outcome: Some(outcome), error: None })
        }
        Ok(outcome) => {
            store.release(&deliver::keys(&earlier), &held.token).await?;
            let change = RecordChange { summary_at: Some(Some(now.plus(RETRY_FIRST))), ..change };
            Ok(Settled { record: held.write(courier, change).await?, outcome: Some(outcome), error: None })
        }
        Err(error) => {
            let mut failed = deliver::failure(courier, held, &error, true, decision.reason.clone());
            if failed.status.is_none() {
                failed.deliver_at = Some(deliver_at);
            }
            Ok(Settled { record: held.write(courier, failed).await?, outcome: None, error: Some(error.to_string()) })
        }
    }
}

/// Takes the last summary back if no run has it yet; gives its records that are still pending, under the claim of the new
/// one. Until the new summary is out they are due for one, so that a crash in between loses nothing, and intended to be
/// shown by the old one, so that it shows nothing twice if the old one stays.
async fn withdraw(
    courier: &dyn Courier,
    agent_id: &str,
    thread: &ThreadKey,
    last: &LastSummary,
    new: &Held,
) -> Result<Vec<NotificationRecord>, Error> {
    if last.keys.len() >= SUMMARY_MAX || !courier.waits(agent_id, thread, &last.signal_id).await {
        return Ok(Vec::new());
    }
    let store = courier.store()?;
    let now = courier.now();
    let due = |at, release| RecordChange {
        if_claimed: Some(new.token.clone()),
        only_pending: true,
        summary_at: Some(at),
        release,
        ..RecordChange::at(now)
    };
    let own = new.record.key();
    let keys: Vec<RecordKey> = last.keys.iter().filter(|key| **key != own).cloned().collect();
    let claim = RecordClaim { token: new.token.clone(), ..State::claim(now) };
    let claimed = store.claim(&keys, &claim).await?;
    let (pending, gone): (Vec<_>, Vec<_>) = claimed.into_iter().partition(|record| record.status == "pending");
    store.release(&deliver::keys(&gone), &new.token).await?;
    store.intend(&deliver::keys(&pending), &new.token, &last.signal_id).await?;
    let pending = store.update_all(&deliver::keys(&pending), due(Some(now.plus(SAFETY_TIME)), false)).await?;
    if courier.withdraw(agent_id, thread, &last.signal_id).await {
        return Ok(pending);
    }
    store.update_all(&deliver::keys(&pending), due(None, true)).await?;
    Ok(Vec::new())
}

/// NOTIF-006.
fn validate(input: &NewNotification) -> Result<(), Error> {
    let wrong = |field: &str, message: String| Err(Error::invalid(field, format!("notification_invalid: {message}")));
    for (field, text) in [("source", &input.source), ("kind", &input.kind), ("summary", &input.summary)] {
        if text.trim().is_empty() {
            return wrong(field, format!("{field} must not be empty"));
        }
    }
    if let Some(priority) = &input.priority
        && !NOTIFICATION_PRIORITIES.contains(&priority.as_str())
    {
        return wrong("priority", format!("priority is {priority}; it must be low, medium, high or urgent"));
    }
    if let Some(attributes) = &input.attributes {
        validate_attributes(&attributes.iter().map(|(name, value)| (name.clone(), value.clone())).collect())?;
    }
    let size = input.payload.as_ref().map_or(0, |payload| payload.to_string().len())
        + input.metadata.as_ref().map_or(0, |metadata| serde_json::to_string(metadata).map_or(0, |text| text.len()));
    if size > PAYLOAD_MAX {
        return wrong("payload", format!("payload and metadata have {size} bytes; at most {PAYLOAD_MAX} are kept"));
    }
    Ok(())
}

fn new_record(courier: &dyn Courier, agent_id: &str, input: NewNotification) -> NotificationRecord {
    let now = courier.now();
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
        deliver_at: Some(now.plus(SAFETY_TIME)),
        summary_at: None,
        delivery_reason: Some(SAFETY_NET.to_owned()),
        delivery_attempts: 0,
        last_delivery_attempt_at: None,
        last_delivery_error: None,
        delivered_signal_id: None,
        summary_signal_id: None,
    }
}
