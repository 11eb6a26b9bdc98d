//! Journal, commits, runs and leases in SQL (SIG §22.1, rulings 4, 25, 26, 39).

use bugle::{
    id::{MessageId, RunId, ThreadKey},
    storage::{
        Accepted, Committed, EntryOutcome, InboxEnd, InboxEntry, Lease, LeaseClaim, Left, NewThread, RunChange,
        RunRecord, StorageError,
        rules::{self, LeaseState},
    },
    time::Timestamp,
};
use rusqlite::{Connection, OptionalExtension, params};

use super::{
    alive::Watch,
    codec,
    error::{Answer, Failure, unavailable},
    messages, notifications, parked, threads,
};

/// Resource and thread columns of a key. No resource is the empty text.
fn columns(thread: &ThreadKey) -> (&str, &str) {
    (thread.resource_id.as_deref().unwrap_or_default(), &thread.thread_id)
}

fn key(resource: String, thread: String) -> ThreadKey {
    if resource.is_empty() { ThreadKey::unowned(thread) } else { ThreadKey::new(resource, thread) }
}

fn encode(value: &impl serde::Serialize) -> Answer<String> {
    serde_json::to_string(value)
        .map_err(|error| Failure::Rule(StorageError::Invalid(format!("a value cannot be stored as JSON: {error}"))))
}

/// Refuses a key whose resource does not own the thread (SIG-364).
fn check_owner(connection: &Connection, thread: &ThreadKey) -> Answer<()> {
    check_owned(thread, threads::owner(connection, &thread.thread_id)?)
}

fn check_owned(thread: &ThreadKey, owner: Option<String>) -> Answer<()> {
    let (resource, id) = columns(thread);
    match owner {
        Some(owner) if !owner.is_empty() && owner != resource => Err(Failure::Rule(StorageError::ThreadOwnership {
            thread: id.to_owned(),
            owner,
            given: resource.to_owned(),
        })),
        _ => Ok(()),
    }
}

/// An entry to append, encoded before the job is queued.
#[derive(Debug)]
pub(super) struct Draft {
    entry: InboxEntry,
    fingerprint: String,
}

impl Draft {
    pub(super) fn of(entry: InboxEntry) -> Self {
        Self { fingerprint: rules::signal_fingerprint(&entry.signal), entry }
    }
}

pub(super) fn accept(
    connection: &Connection,
    watch: &Watch,
    thread: &ThreadKey,
    drafts: &[Draft],
    claim: Option<&LeaseClaim>,
    create_thread: bool,
) -> Answer<Accepted> {
    let owner = threads::owner(connection, &thread.thread_id)?;
    let missing = owner.is_none();
    check_owned(thread, owner)?;
    let now = Timestamp::now();
    if create_thread && missing && !drafts.is_empty() {
        threads::ensure(connection, &NewThread::of(thread), now)?;
    }
    let mut entries = Vec::with_capacity(drafts.len());
    let (mut position, mut first, mut waited) = (None, i64::MAX, true);
    for draft in drafts {
        if let Some(outcome) = known(connection, draft)? {
            entries.push(outcome);
            continue;
        }
        let next = match position {
            Some(position) => position + 1,
            None => {
                let last = waiting_edge(connection, thread, "max")?;
                waited = last.is_some();
                first = rules::next_position(last, now.as_millis().saturating_mul(1000));
                first
            }
        };
        position = Some(next);
        insert(connection, draft, next)?;
        entries.push(EntryOutcome::Appended { position: next });
    }
    let Some(claim) = claim else { return Ok(Accepted { entries, lease: None, left: Left::default() }) };
    let existing = lease(connection, thread)?;
    let lease = take(connection, watch, thread, claim, existing.as_ref(), now)?;
    let mut left = Left::default();
    if matches!(lease, Lease::Held { epoch } if claim.kept != Some(epoch)) {
        left.last_event = existing.as_ref().and_then(|stored| stored.last_event);
        if waited {
            left.entries = waiting(connection, thread, first)?;
        }
        // A thread without a lease has never had a run.
        if existing.is_some() {
            left.runs = runs(connection, thread)?;
        }
    }
    Ok(Accepted { entries, lease: Some(lease), left })
}

/// What became of an entry's id before (SIG-503).
fn known(connection: &Connection, draft: &Draft) -> Answer<Option<EntryOutcome>> {
    let id = &draft.entry.signal.id;
    let different = || Failure::Rule(StorageError::DifferentContent { id: id.clone() });
    let mut statement = connection
        .prepare_cached("SELECT state, run_id, fingerprint, resource, thread FROM bugle_inbox WHERE id = ?1")?;
    let recorded: Option<(i64, String, String, String, String)> = statement
        .query_row([id.as_str()], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?)))
        .optional()?;
    if let Some((state, run_id, fingerprint, resource, thread)) = recorded {
        if fingerprint != draft.fingerprint || columns(&draft.entry.thread) != (&*resource, &*thread) {
            return Err(different());
        }
        return Ok(Some(match state {
            0 => EntryOutcome::Waiting { run_id: run_id.into() },
            _ => EntryOutcome::Placed { run_id: Some(run_id.into()) },
        }));
    }
    let Some(message) = messages::get(connection, std::slice::from_ref(id))?.pop() else { return Ok(None) };
    let here = message.thread_id.as_deref() == Some(&*draft.entry.thread.thread_id);
    if here && rules::message_holds(&message, &draft.entry.signal) {
        Ok(Some(EntryOutcome::Placed { run_id: None }))
    } else {
        Err(different())
    }
}

/// The smallest or largest place among what waits.
fn waiting_edge(connection: &Connection, thread: &ThreadKey, edge: &str) -> Answer<Option<i64>> {
    let sql = format!("SELECT {edge}(position) FROM bugle_inbox WHERE resource = ?1 AND thread = ?2 AND state = 0");
    Ok(connection.prepare_cached(&sql)?.query_row(columns(thread), |row| row.get(0))?)
}

fn insert(connection: &Connection, draft: &Draft, position: i64) -> Answer<()> {
    let (resource, thread) = columns(&draft.entry.thread);
    connection
        .prepare_cached(
            "INSERT INTO bugle_inbox (id, resource, thread, position, state, run_id, fingerprint, entry)
             VALUES (?1, ?2, ?3, ?4, 0, ?5, ?6, ?7)
             ON CONFLICT (id) DO UPDATE SET position = excluded.position, state = 0, run_id = excluded.run_id,
               fingerprint = excluded.fingerprint, entry = excluded.entry",
        )?
        .execute(params![
            draft.entry.signal.id.as_str(),
            resource,
            thread,
            position,
            draft.entry.run_id.as_str(),
            draft.fingerprint,
            encode(&draft.entry)?,
        ])?;
    Ok(())
}

pub(super) fn list(connection: &Connection, thread: &ThreadKey) -> Answer<Vec<InboxEntry>> {
    waiting(connection, thread, i64::MAX)
}

/// What waits before this place.
fn waiting(connection: &Connection, thread: &ThreadKey, before: i64) -> Answer<Vec<InboxEntry>> {
    let mut statement = connection.prepare_cached(
        "SELECT id, position, entry FROM bugle_inbox
         WHERE resource = ?1 AND thread = ?2 AND state = 0 AND position < ?3 ORDER BY position",
    )?;
    let (resource, id) = columns(thread);
    let mut rows = statement.query(params![resource, id, before])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let parsed: Option<InboxEntry> = codec::parse_json(&codec::text(row, 2)?.unwrap_or_default());
        match parsed {
            Some(mut entry) => {
                entry.position = row.get(1)?;
                found.push(entry);
            }
            None => codec::report("bugle_inbox", &codec::text(row, 0)?.unwrap_or_default(), "entry"),
        }
    }
    Ok(found)
}

pub(super) fn remove(
    connection: &Connection,
    thread: &ThreadKey,
    ids: &[MessageId],
    why: InboxEnd,
) -> Answer<Vec<MessageId>> {
    let (resource, id) = columns(thread);
    let mut statement = connection
        .prepare_cached("DELETE FROM bugle_inbox WHERE id = ?1 AND resource = ?2 AND thread = ?3 AND state = 0")?;
    let mut removed = Vec::new();
    for entry in ids {
        if statement.execute([entry.as_str(), resource, id])? > 0 {
            removed.push(entry.clone());
        }
    }
    if why.undelivers() {
        notifications::undeliver(connection, id, &removed, Timestamp::now(), false)?;
    }
    Ok(removed)
}

pub(super) fn update(connection: &Connection, draft: &Draft) -> Answer<bool> {
    let (resource, thread) = columns(&draft.entry.thread);
    let changed = connection
        .prepare_cached(
            // The fingerprint stays that of the first sending, which may be repeated (SIG-503).
            "UPDATE bugle_inbox SET position = ?4, run_id = ?5, entry = ?6
             WHERE id = ?1 AND resource = ?2 AND thread = ?3 AND state = 0",
        )?
        .execute(params![
            draft.entry.signal.id.as_str(),
            resource,
            thread,
            draft.entry.position,
            draft.entry.run_id.as_str(),
            encode(&draft.entry)?,
        ])?;
    Ok(changed > 0)
}

/// A commit, encoded before the job is queued.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) thread: ThreadKey,
    pub(super) epoch: u64,
    pub(super) create_thread: Option<NewThread>,
    pub(super) consumed: Vec<MessageId>,
    pub(super) messages: Vec<(bugle::message::StoredMessage, messages::Row)>,
    pub(super) removed: Vec<MessageId>,
    pub(super) returned: Vec<Draft>,
    /// The rows of a run that parks.
    pub(super) parked: Option<parked::Draft>,
    pub(super) run: RunChange,
    pub(super) release: Option<String>,
}

pub(super) fn commit(connection: &Connection, step: &Step) -> Answer<Committed> {
    let now = Timestamp::now();
    let (resource, id) = columns(&step.thread);
    let held = lease(connection, &step.thread)?;
    let current = held.as_ref().map_or(0, |held| held.state.epoch);
    if step.epoch < current {
        let stale = StorageError::StaleEpoch { thread: id.to_owned(), given: step.epoch, current };
        return Err(Failure::Rule(stale));
    }
    if step.epoch > current {
        connection
            .prepare_cached(
                "INSERT INTO bugle_leases (resource, thread, owner, epoch, expires_at) VALUES (?1, ?2, NULL, ?3, 0)
                 ON CONFLICT (resource, thread) DO UPDATE SET epoch = excluded.epoch",
            )?
            .execute(params![resource, id, step.epoch as i64])?;
    }
    if let Some(new) = &step.create_thread {
        check_owner(connection, &step.thread)?;
        threads::ensure(connection, new, now)?;
    }
    // One statement reads the owner and marks the thread as written.
    let owner =
        if step.messages.is_empty() { threads::owner(connection, id)? } else { threads::touch(connection, id, now)? };
    check_owned(&step.thread, owner.clone())?;
    place(connection, step)?;
    let mut untold = rules::blocked_states(step.messages.iter().map(|(message, _)| message));
    if !step.removed.is_empty() {
        messages::remove(connection, id, &step.removed)?;
        let waits = |id: &&MessageId| step.returned.iter().any(|draft| draft.entry.signal.id == **id);
        let gone: Vec<MessageId> = step.removed.iter().filter(|id| !waits(id)).cloned().collect();
        notifications::undeliver(connection, id, &gone, now, true)?;
        untold.extend(gone);
    }
    if !untold.is_empty() {
        threads::untrack(connection, id, &untold, now)?;
    }
    messages::put_all(connection, &step.messages, |_| Ok(owner.clone()))?;
    put_back(connection, &step.thread, &step.returned, now)?;
    let end = |run_id: &RunId, last_event: u64| end_run(connection, step, held.as_ref(), run_id, last_event);
    match &step.run {
        RunChange::Keep => {}
        RunChange::Save(record) => save_run(connection, record)?,
        RunChange::End { run_id, last_event } => return end(run_id, *last_event),
        RunChange::Park { run, last_event } => {
            if let Some(draft) = &step.parked {
                parked::put(connection, draft)?;
            }
            return end(&run.run_id, *last_event);
        }
        RunChange::Resume(record) => {
            parked::take(connection, &step.thread, &record.run_id)?;
            save_run(connection, record)?;
        }
        RunChange::Discard { run_id, last_event } => {
            parked::take(connection, &step.thread, run_id)?;
            return end(run_id, *last_event);
        }
    }
    let released = releases(connection, step, held.as_ref())?;
    if released && let Some(owner) = &step.release {
        release(connection, &step.thread, owner, None)?;
    }
    Ok(Committed { released })
}

/// Whether a step gives the lease up: it is asked to, holds it, and nothing is left to do (SIG-405).
fn releases(connection: &Connection, step: &Step, held: Option<&Stored>) -> Answer<bool> {
    let owner = held.and_then(|held| held.state.owner.as_deref());
    if owner.is_none() || owner != step.release.as_deref() {
        return Ok(false);
    }
    let mut statement = connection.prepare_cached(
        "SELECT NOT EXISTS (SELECT 1 FROM bugle_inbox WHERE resource = ?1 AND thread = ?2 AND state = 0)
            AND NOT EXISTS (SELECT 1 FROM bugle_runs WHERE resource = ?1 AND thread = ?2)",
    )?;
    Ok(statement.query_row(columns(&step.thread), |row| row.get(0))?)
}

/// The run is at work no more; its last event stays in mind.
fn end_run(
    connection: &Connection,
    step: &Step,
    held: Option<&Stored>,
    run_id: &RunId,
    last_event: u64,
) -> Answer<Committed> {
    let (resource, id) = columns(&step.thread);
    connection
        .prepare_cached("DELETE FROM bugle_runs WHERE run_id = ?1 AND resource = ?2 AND thread = ?3")?
        .execute([run_id.as_str(), resource, id])?;
    let released = releases(connection, step, held)?;
    connection
        .prepare_cached(
            "INSERT INTO bugle_leases (resource, thread, owner, epoch, expires_at, event_epoch, event_number)
             VALUES (?1, ?2, NULL, ?3, 0, ?3, ?4)
             ON CONFLICT (resource, thread) DO UPDATE SET event_epoch = ?3, event_number = ?4,
               owner = CASE WHEN ?5 THEN NULL ELSE owner END",
        )?
        .execute(params![resource, id, step.epoch as i64, last_event as i64, released])?;
    Ok(Committed { released })
}

/// Takes consumed entries out of the journal. Those that became a message stay on record, so that a repeated acceptance is
/// told apart (SIG-503).
fn place(connection: &Connection, step: &Step) -> Answer<()> {
    let (resource, id) = columns(&step.thread);
    for consumed in &step.consumed {
        let is_stored = step.messages.iter().any(|(message, _)| message.id == *consumed);
        let sql = if is_stored {
            "UPDATE bugle_inbox SET state = 1, entry = NULL WHERE id = ?1 AND resource = ?2 AND thread = ?3 AND state = 0"
        } else {
            "DELETE FROM bugle_inbox WHERE id = ?1 AND resource = ?2 AND thread = ?3 AND state = 0"
        };
        connection.prepare_cached(sql)?.execute([consumed.as_str(), resource, id])?;
    }
    Ok(())
}

/// Puts entries in front of what waits, in order (ruling 33).
fn put_back(connection: &Connection, thread: &ThreadKey, returned: &[Draft], now: Timestamp) -> Answer<()> {
    if returned.is_empty() {
        return Ok(());
    }
    let mut forget = connection.prepare_cached("DELETE FROM bugle_inbox WHERE id = ?1")?;
    for draft in returned {
        forget.execute([draft.entry.signal.id.as_str()])?;
    }
    let first = waiting_edge(connection, thread, "min")?;
    let first = first.unwrap_or_else(|| now.as_millis().saturating_mul(1000));
    for (position, draft) in (first.saturating_sub(returned.len() as i64)..).zip(returned) {
        insert(connection, draft, position)?;
    }
    Ok(())
}

fn save_run(connection: &Connection, record: &RunRecord) -> Answer<()> {
    let (resource, thread) = columns(&record.thread);
    // A run of another thread is not touched.
    let written = connection
        .prepare_cached(
            "INSERT INTO bugle_runs (run_id, resource, thread, agent_id, status, snapshot, updated_at)
             VALUES (?1, ?2, ?3, ?4, 'running', ?5, ?6)
             ON CONFLICT (run_id) DO UPDATE SET snapshot = excluded.snapshot, agent_id = excluded.agent_id,
               updated_at = excluded.updated_at
             WHERE resource = excluded.resource AND thread = excluded.thread",
        )?
        .execute(params![
            record.run_id.as_str(),
            resource,
            thread,
            record.agent_id,
            encode(&record.snapshot)?,
            record.updated_at.as_millis(),
        ])?;
    if written == 0 {
        return Err(Failure::Rule(StorageError::Exists { what: "run", id: record.run_id.to_string() }));
    }
    Ok(())
}

const RUN_COLUMNS: &str = "run_id, resource, thread, agent_id, snapshot, updated_at";

fn run(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<RunRecord>> {
    let id: String = row.get(0)?;
    let Some(snapshot) = codec::parse_json(&codec::text(row, 4)?.unwrap_or_default()) else {
        codec::report("bugle_runs", &id, "snapshot");
        return Ok(None);
    };
    Ok(Some(RunRecord {
        run_id: id.into(),
        thread: key(row.get(1)?, row.get(2)?),
        agent_id: row.get(3)?,
        snapshot,
        updated_at: Timestamp::from_millis(row.get(5)?),
    }))
}

pub(super) fn get_run(connection: &Connection, id: &RunId) -> Answer<Option<RunRecord>> {
    let sql = format!("SELECT {RUN_COLUMNS} FROM bugle_runs WHERE run_id = ?1");
    Ok(connection.prepare_cached(&sql)?.query_row([id.as_str()], run).optional()?.flatten())
}

pub(super) fn runs(connection: &Connection, thread: &ThreadKey) -> Answer<Vec<RunRecord>> {
    let sql = format!("SELECT {RUN_COLUMNS} FROM bugle_runs WHERE resource = ?1 AND thread = ?2 ORDER BY run_id");
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(columns(thread), run)?;
    Ok(rows.filter_map(Result::transpose).collect::<rusqlite::Result<_>>()?)
}

/// Threads with work that no living process does (SIG-502).
pub(super) fn unfinished(
    connection: &Connection,
    watch: &Watch,
    owner: &str,
    after: Option<&ThreadKey>,
    limit: u32,
) -> Answer<Vec<ThreadKey>> {
    let now = Timestamp::now();
    let mut statement = connection.prepare_cached(
        "SELECT w.resource, w.thread, l.owner, l.epoch, l.expires_at FROM (
           SELECT resource, thread FROM bugle_inbox WHERE state = 0
           UNION SELECT resource, thread FROM bugle_runs
         ) w LEFT JOIN bugle_leases l ON l.resource = w.resource AND l.thread = w.thread
         WHERE (w.resource, w.thread) > (?1, ?2) ORDER BY w.resource, w.thread",
    )?;
    // No key comes before the one of empty texts, which no thread has.
    let mut rows = statement.query(after.map_or(("", ""), columns))?;
    let mut found = Vec::new();
    while found.len() < limit as usize
        && let Some(row) = rows.next()?
    {
        let lease = LeaseState {
            owner: row.get(2)?,
            epoch: row.get::<_, Option<i64>>(3)?.unwrap_or_default() as u64,
            expires_at: Timestamp::from_millis(row.get::<_, Option<i64>>(4)?.unwrap_or_default()),
        };
        if lease.is_free_for(owner, now, |other| watch.is_alive(other)) {
            found.push(key(row.get(0)?, row.get(1)?));
        }
    }
    Ok(found)
}

/// A lease, and the last event that is stored with it.
struct Stored {
    state: LeaseState,
    last_event: Option<(u64, u64)>,
}

fn lease(connection: &Connection, thread: &ThreadKey) -> Answer<Option<Stored>> {
    let mut statement = connection.prepare_cached(
        "SELECT owner, epoch, expires_at, event_epoch, event_number FROM bugle_leases
         WHERE resource = ?1 AND thread = ?2",
    )?;
    let found = statement.query_row(columns(thread), |row| {
        let epoch: i64 = row.get(1)?;
        let event = (row.get::<_, Option<i64>>(3)?, row.get::<_, Option<i64>>(4)?);
        Ok(Stored {
            state: LeaseState {
                owner: row.get(0)?,
                epoch: epoch as u64,
                expires_at: Timestamp::from_millis(row.get(2)?),
            },
            last_event: event.0.zip(event.1).map(|(epoch, number)| (epoch as u64, number as u64)),
        })
    });
    Ok(found.optional()?)
}

pub(super) fn claim(
    connection: &Connection,
    watch: &Watch,
    thread: &ThreadKey,
    claim: &LeaseClaim,
    now: Timestamp,
) -> Answer<Lease> {
    let existing = lease(connection, thread)?;
    take(connection, watch, thread, claim, existing.as_ref(), now)
}

fn take(
    connection: &Connection,
    watch: &Watch,
    thread: &ThreadKey,
    claim: &LeaseClaim,
    existing: Option<&Stored>,
    now: Timestamp,
) -> Answer<Lease> {
    let existing = existing.map(|stored| &stored.state);
    let Some(lease) = LeaseState::claim(existing, claim, now, |owner| watch.is_alive(owner)) else {
        let Some(owner) = existing.and_then(|lease| lease.owner.clone()) else {
            return Err(Failure::Rule(unavailable("a lease without owner was refused; this is a bug".into())));
        };
        return Ok(Lease::HeldBy { owner });
    };
    let (resource, id) = columns(thread);
    connection
        .prepare_cached(
            "INSERT INTO bugle_leases (resource, thread, owner, epoch, expires_at) VALUES (?1, ?2, ?3, ?4, ?5)
             ON CONFLICT (resource, thread) DO UPDATE SET owner = excluded.owner, epoch = excluded.epoch,
               expires_at = excluded.expires_at",
        )?
        .execute(params![resource, id, lease.owner, lease.epoch as i64, lease.expires_at.as_millis()])?;
    Ok(Lease::Held { epoch: lease.epoch })
}

/// Who holds the lease now, if its process may be alive (NOTIF-013).
pub(super) fn lease_holder(connection: &Connection, watch: &Watch, thread: &ThreadKey) -> Answer<Option<String>> {
    let now = Timestamp::now();
    let held =
        lease(connection, thread)?.filter(|lease| !lease.state.is_free_for("", now, |owner| watch.is_alive(owner)));
    Ok(held.and_then(|lease| lease.state.owner))
}

pub(super) fn release(connection: &Connection, thread: &ThreadKey, owner: &str, last_event: Option<u64>) -> Answer<()> {
    let (resource, id) = columns(thread);
    connection
        .prepare_cached(
            "UPDATE bugle_leases SET owner = NULL,
               event_epoch = CASE WHEN ?4 IS NULL THEN event_epoch ELSE epoch END,
               event_number = coalesce(?4, event_number)
             WHERE resource = ?1 AND thread = ?2 AND owner = ?3",
        )?
        .execute(params![resource, id, owner, last_event.map(|number| number as i64)])?;
    Ok(())
}

pub(super) fn last_event(connection: &Connection, thread: &ThreadKey) -> Answer<Option<(u64, u64)>> {
    Ok(lease(connection, thread)?.and_then(|stored| stored.last_event))
}
