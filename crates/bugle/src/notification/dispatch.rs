//! Delivering what is due (NOTIF §6, NOTIF-074): one pass, and the task that makes passes when there is something to do.

use std::{sync::Weak, time::Duration};

use futures::StreamExt;
use indexmap::IndexMap;

use super::{
    Courier, DecideContext, Decision, DeliveryAction,
    deliver::{self, Held, RETRY_FIRST, SAFETY_NET, Settled, signal_id},
    ingest, policy, render,
    state::{CLAIM_TIME, State},
};
use crate::{
    error::Error,
    id::{MessageId, ThreadKey},
    runtime::{Action, Bugle, IdleBehavior, IfActive, IfIdle, Inner, Target},
    signal::Signal,
    storage::{
        ClaimedRecord, DueQuery, InputMode, NOTIFICATION_PRIORITIES, NotificationRecord, NotificationStore,
        RecordChange, RecordClaim, RecordKey,
    },
    time::Timestamp,
};

/// Groups that are worked on at once.
const GROUPS: usize = 16;
/// After a record has become due in this process, so long is waited for more: what comes together is summarised together.
const GATHER: Duration = Duration::from_millis(500);
/// Waits after a failed look into the store.
const STORE_RETRY: Duration = Duration::from_secs(5);
const STORE_RETRY_MAX: Duration = Duration::from_secs(60);

/// What a pass has done (NOTIF-067).
#[derive(Debug, Default)]
pub struct DispatchReport {
    /// Records that were delivered or summarised, as they stand now.
    pub delivered: Vec<NotificationRecord>,
    /// Records whose delivery failed, and why. They are due again, or given up.
    pub failed: Vec<(NotificationRecord, String)>,
    /// What was sent.
    pub signals: Vec<Signal>,
    /// How many records were looked at.
    pub claimed: usize,
}

impl DispatchReport {
    fn add(&mut self, settled: Settled) {
        let shown = settled.outcome.filter(|outcome| !matches!(outcome.action, Action::Blocked | Action::Discard));
        match (settled.error, shown) {
            (Some(error), _) => self.failed.push((settled.record, error)),
            (None, Some(outcome)) => {
                self.signals.push(outcome.signal);
                self.delivered.push(settled.record);
            }
            (None, None) if settled.record.delivered_signal_id.is_some() => self.delivered.push(settled.record),
            (None, None) => {}
        }
    }

    fn merge(&mut self, other: Self) {
        self.delivered.extend(other.delivered);
        self.failed.extend(other.failed);
        self.signals.extend(other.signals);
    }
}

/// The records of one agent on one thread.
#[derive(Debug, Default)]
struct Group {
    records: Vec<ClaimedRecord>,
}

/// What is to be sent: one after the other within a group (NOTIF-062).
#[derive(Debug)]
enum Item {
    One(Box<ClaimedRecord>),
    Summary(Vec<ClaimedRecord>),
}

impl Item {
    fn records(&self) -> &[ClaimedRecord] {
        match self {
            Self::One(one) => std::slice::from_ref(one),
            Self::Summary(all) => all,
        }
    }

    /// Highest priority first, then the earliest.
    fn rank(&self) -> (usize, Timestamp) {
        let records = || self.records().iter().map(|claimed| &claimed.record);
        let priority = records().map(|record| rank(&record.priority)).min().unwrap_or_default();
        (priority, records().map(|record| record.created_at).min().unwrap_or_default())
    }
}

fn rank(priority: &str) -> usize {
    NOTIFICATION_PRIORITIES.iter().position(|known| *known == priority).unwrap_or(NOTIFICATION_PRIORITIES.len() - 1)
}

/// One pass over at most `limit` records: claims them, sends what they stand for, writes what became of it.
pub(super) async fn pass(courier: &dyn Courier, limit: u32) -> Result<DispatchReport, Error> {
    let store = courier.store()?;
    let now = courier.now();
    let claim = State::claim(now);
    let mut claimed = store.claim_due(&DueQuery::at(now, limit), &claim).await?;
    // Those that waited for a run which has ended; they are not due by their time.
    let ended = courier.state().take_ended();
    if !ended.is_empty() {
        let records = store.claim(&ended, &claim).await?;
        let (pending, other): (Vec<_>, Vec<_>) = records.into_iter().partition(|record| record.status == "pending");
        store.release(&deliver::keys(&other), &claim.token).await?;
        claimed.extend(pending.into_iter().map(|record| ClaimedRecord { record, intended: None }));
    }
    let mut report = DispatchReport { claimed: claimed.len(), ..DispatchReport::default() };
    if claimed.is_empty() {
        return Ok(report);
    }
    let keys = deliver::keys(claimed.iter().map(|claimed| &claimed.record));
    let mut groups: IndexMap<(Option<String>, Option<String>, String), Group> = IndexMap::new();
    for one in claimed {
        let record = &one.record;
        let of = (record.agent_id.clone(), record.resource_id.clone(), record.thread_id.clone());
        groups.entry(of).or_default().records.push(one);
    }
    // Those that nobody can get come last (NOTIF-066).
    let (addressed, unaddressed): (Vec<_>, Vec<_>) =
        groups.into_iter().partition(|((agent, resource, _), _)| agent.is_some() && resource.is_some());
    let token = &claim.token;
    let work = async {
        let groups = addressed.into_iter().chain(unaddressed);
        let mut reports =
            futures::stream::iter(groups.map(|(_, group)| work_off(courier, group, token, now))).buffered(GROUPS);
        while let Some(done) = reports.next().await {
            report.merge(done);
        }
    };
    renewing(courier, store, &keys, &claim, work).await;
    Ok(report)
}

/// Does the work while holding on to the claims (NOTIF-075).
async fn renewing(
    courier: &dyn Courier,
    store: &dyn NotificationStore,
    keys: &[RecordKey],
    claim: &RecordClaim,
    work: impl Future<Output = ()>,
) {
    tokio::pin!(work);
    loop {
        tokio::select! {
            biased;
            () = &mut work => return,
            () = tokio::time::sleep(CLAIM_TIME / 3) => {}
        }
        if let Err(error) = store.renew(keys, &claim.token, courier.now().plus(CLAIM_TIME)).await {
            tracing::warn!(%error, "claims on notifications could not be renewed");
        }
    }
}

async fn work_off(courier: &dyn Courier, group: Group, token: &str, now: Timestamp) -> DispatchReport {
    let mut report = DispatchReport::default();
    let (summary, single): (Vec<_>, Vec<_>) = group
        .records
        .into_iter()
        .partition(|one| one.record.summary_at.is_some_and(|at| at <= now) && !is_undecided(&one.record));
    let mut items: Vec<Item> = single.into_iter().map(|one| Item::One(Box::new(one))).collect();
    if !summary.is_empty() {
        items.push(Item::Summary(summary));
    }
    items.sort_by_key(Item::rank);
    for item in items {
        let known: Vec<NotificationRecord> = item.records().iter().map(|one| one.record.clone()).collect();
        let done = match item {
            Item::One(one) => single_record(courier, *one, token).await.map(|settled| report.add(settled)),
            Item::Summary(all) => summary_of(courier, all, token, &mut report).await,
        };
        if let Err(error) = done {
            // The claims stay until they run out; then the records are due once more.
            tracing::error!(%error, "what became of notifications could not be written");
            let error = error.to_string();
            report.failed.extend(known.into_iter().map(|record| (record, error.clone())));
        }
    }
    report
}

/// Its sender died before its decision was written.
fn is_undecided(record: &NotificationRecord) -> bool {
    record.delivery_reason.as_deref() == Some(SAFETY_NET)
}

/// NOTIF-063.
async fn single_record(courier: &dyn Courier, claimed: ClaimedRecord, token: &str) -> Result<Settled, Error> {
    let ClaimedRecord { record, intended } = claimed;
    let thread = deliver::thread_of(&record);
    let held = Held { record, token: token.to_owned(), dispatched: true };
    let record = &held.record;
    let quiet = |record| Settled { record, outcome: None, error: None };
    let now = courier.now();
    if record.delivered_signal_id.is_some() {
        let change = RecordChange { deliver_at: Some(None), ..held.change(now) };
        return Ok(quiet(held.write(courier, change).await?));
    }
    if is_undecided(record) && record.agent_id.is_some() && record.resource_id.is_some() {
        let full = signal_id("full", &[record]);
        let sent: Vec<MessageId> = [full.clone()].into_iter().chain(intended).collect();
        match deliver::shown(courier.storage(), &thread, &sent).await? {
            Some(id) if id != full => {
                // What went out is the summary.
                let change = RecordChange {
                    deliver_at: Some(Some(now).filter(|_| record.priority == "high")),
                    summary_at: Some(None),
                    summary_signal_id: Some(id),
                    delivery_reason: Some(None),
                    ..held.change(now)
                };
                return Ok(quiet(held.write(courier, change).await?));
            }
            Some(_) => {}
            None => {
                let decision = ingest::decide(courier, record, courier.is_active(&thread).await).await;
                return ingest::act(courier, &held, &decision, Default::default()).await;
            }
        }
    }
    if record.priority == "high" && record.summary_signal_id.is_some() {
        courier.state().hold(&thread, record.key());
        if courier.is_active(&thread).await {
            // A record that waits is in nobody's way (NOTIF-068).
            let interval = courier.state().options.safety_poll;
            let change = RecordChange { deliver_at: Some(Some(now.plus(interval))), ..held.change(now) };
            return Ok(quiet(held.write(courier, change).await?));
        }
        courier.state().let_go(&thread, &record.key());
    }
    let policy = record.agent_id.as_deref().and_then(|agent| courier.policy(agent));
    let options = match &policy {
        Some(policy) => {
            let is_active = courier.is_active(&thread).await;
            let context = DecideContext { record: record.clone(), is_active, now };
            policy::stream_options(Some(policy), context).await
        }
        None => None,
    };
    let reason = record.delivery_reason.clone().filter(|reason| reason != SAFETY_NET);
    let decision = Decision { reason, ..Decision::from(DeliveryAction::Deliver) };
    let if_idle = IfIdle { options, ..IfIdle::default() };
    deliver::full(courier, &held, &decision, InputMode::Steer, (IfActive::default(), if_idle)).await
}

/// NOTIF-064: one signal for all of them.
async fn summary_of(
    courier: &dyn Courier,
    all: Vec<ClaimedRecord>,
    token: &str,
    report: &mut DispatchReport,
) -> Result<(), Error> {
    let Some(first) = all.first().map(|one| one.record.clone()) else { return Ok(()) };
    let thread = deliver::thread_of(&first);
    let hold = |record| Held { record, token: token.to_owned(), dispatched: true };
    let (Some(agent_id), Some(_)) = (first.agent_id.clone(), &thread.resource_id) else {
        for one in all {
            let missing = Error::invalid("resourceId", "the notification names no agent or no resource");
            let held = hold(one.record);
            let change = deliver::failure(courier, &held, &missing, true, held.record.delivery_reason.clone());
            let record = held.write(courier, change).await?;
            report.failed.push((record, missing.to_string()));
        }
        return Ok(());
    };
    let mut open: Vec<Held> = Vec::with_capacity(all.len());
    // What an earlier claimant was about to send may have gone out.
    let intended: Vec<MessageId> = all.iter().filter_map(|one| one.intended.clone()).collect();
    let known = if intended.is_empty() { None } else { known_of(courier, &thread, &intended).await? };
    for one in all {
        let held = hold(one.record);
        match one.intended.filter(|id| known.as_ref().is_some_and(|known| known.contains(id))) {
            Some(id) => report.delivered.extend(summarised(courier, &[held], &id).await?),
            None => open.push(held),
        }
    }
    if open.is_empty() {
        return Ok(());
    }
    let records: Vec<&NotificationRecord> = open.iter().map(|held| &held.record).collect();
    let all_low = records.iter().all(|record| rank(&record.priority) == NOTIFICATION_PRIORITIES.len() - 1);
    let id = signal_id("summary", &records);
    let store = courier.store()?;
    store.intend(&deliver::keys(records.iter().copied()), token, &id).await?;
    let mut signal = render::summary(&records, courier.state().options.render_id);
    signal.id = Some(id.clone());
    let options = match courier.policy(&agent_id) {
        Some(policy) if !all_low => {
            let is_active = courier.is_active(&thread).await;
            let context = DecideContext { record: first, is_active, now: courier.now() };
            policy::stream_options(Some(&policy), context).await
        }
        _ => None,
    };
    let behavior = if all_low { IdleBehavior::Persist } else { IdleBehavior::Wake };
    let if_idle = IfIdle { behavior, options, ..IfIdle::default() };
    let target = Target { thread: Some(thread.clone()), if_idle, ..Target::default() };
    match courier.send(&agent_id, target, signal, InputMode::Steer).await {
        Ok(outcome) if matches!(outcome.action, Action::Wake | Action::Deliver | Action::Persist) => {
            report.signals.push(outcome.signal);
            report.delivered.extend(summarised(courier, &open, &id).await?);
        }
        Ok(_) => {
            let at = courier.now().plus(RETRY_FIRST);
            for held in &open {
                courier.state().hold(&thread, held.record.key());
                let change = RecordChange { summary_at: Some(Some(at)), ..held.change(courier.now()) };
                held.write(courier, change).await?;
            }
        }
        Err(error) => {
            for held in &open {
                let reason = held.record.delivery_reason.clone();
                let change = deliver::failure(courier, held, &error, true, reason);
                let record = held.write(courier, change).await?;
                report.failed.push((record, error.to_string()));
            }
        }
    }
    Ok(())
}

/// Those of these signals that the thread has.
async fn known_of(
    courier: &dyn Courier,
    thread: &ThreadKey,
    ids: &[MessageId],
) -> Result<Option<Vec<MessageId>>, Error> {
    let storage = courier.storage();
    let stored = storage.get_messages(ids).await?;
    let mut known: Vec<MessageId> = stored
        .into_iter()
        .filter(|message| message.thread_id.as_deref() == Some(&*thread.thread_id))
        .map(|message| message.id)
        .collect();
    known.extend(storage.inbox(thread).await?.into_iter().map(|entry| entry.signal.id));
    Ok(Some(known))
}

/// NOTIF-003: a summary leaves the records pending. All are written in one transaction.
async fn summarised(
    courier: &dyn Courier,
    held: &[Held],
    signal: &MessageId,
) -> Result<Vec<NotificationRecord>, Error> {
    let Some(first) = held.first() else { return Ok(Vec::new()) };
    let now = courier.now();
    let change = RecordChange {
        summary_at: Some(None),
        summary_signal_id: Some(signal.clone()),
        last_delivery_attempt_at: Some(now),
        ..first.change(now)
    };
    let keys = deliver::keys(held.iter().map(|held| &held.record));
    let written = courier.store()?.update_all(&keys, change).await?;
    if written.len() < held.len() {
        tracing::warn!(
            lost = held.len() - written.len(),
            "claims on notifications were lost; another process has them"
        );
    }
    Ok(written)
}

/// Why the dispatcher goes to work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Woken {
    /// A due time that it knew, or the safety poll.
    Time,
    /// A record has become due in this process.
    Record,
    /// A run has ended for which records waited.
    Run,
}

/// The dispatcher's task: sleeps until something is due, and has no timer while nothing is (NOTIF-074).
pub(crate) async fn run(inner: Weak<Inner>, state: std::sync::Arc<State>, stop: tokio_util::sync::CancellationToken) {
    let mut failures = 0_u32;
    loop {
        let Some(bugle) = inner.upgrade().map(|inner| Bugle { inner }) else { return };
        if state.is_closed() || bugle.is_draining() {
            return;
        }
        // Work first: what an earlier process left may be due now.
        let next = match round(&bugle).await {
            Ok(next) => {
                failures = 0;
                next.map(|at| {
                    let wait = at.as_millis().saturating_sub(bugle.inner.clock.now().as_millis());
                    Duration::from_millis(u64::try_from(wait).unwrap_or_default()).min(state.options.safety_poll)
                })
            }
            Err(error) => {
                failures += 1;
                if failures == 1 {
                    tracing::error!(%error, "notifications cannot be dispatched for now; they stay in the inbox");
                }
                Some(STORE_RETRY.saturating_mul(1 << (failures - 1).min(8)).min(STORE_RETRY_MAX))
            }
        };
        drop(bugle);
        let timer = async {
            match next {
                Some(wait) => tokio::time::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        let woken = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = state.now.notified() => Woken::Run,
            () = state.due.notified() => Woken::Record,
            () = timer => Woken::Time,
        };
        if woken == Woken::Record {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = state.now.notified() => {}
                () = tokio::time::sleep(GATHER) => {}
            }
        }
    }
}

/// Passes until nothing is due; gives when something will be.
async fn round(bugle: &Bugle) -> Result<Option<Timestamp>, Error> {
    let Some(store) = bugle.storage().notifications() else { return Ok(None) };
    let state = &bugle.inner.notifications;
    let ended = state.has_ended();
    let mut next = store.next_due_at(bugle.inner.clock.now()).await?;
    if !ended && next.is_none_or(|at| at > bugle.inner.clock.now()) {
        return Ok(next);
    }
    loop {
        let report = pass(bugle, state.options.batch_size.max(1)).await?;
        for (record, error) in &report.failed {
            tracing::warn!(notification = record.id, status = record.status, error, "a notification was not delivered");
        }
        next = store.next_due_at(bugle.inner.clock.now()).await?;
        if report.claimed == 0 || bugle.is_draining() || next.is_none_or(|at| at > bugle.inner.clock.now()) {
            return Ok(next);
        }
    }
}
