//! Threads and resources in SQL (MEM §3, §8).

use std::fmt::Write as _;

use bugle::{
    MessageId, ThreadKey,
    json::Object,
    message::{Resource, Role, Thread},
    signal::LaneChange,
    storage::{
        CloneThread, ClonedThread, Direction, NewThread, Page, ResourceChange, StorageError, ThreadOrder, ThreadQuery,
        ThreadUpdate, rules,
    },
    time::Timestamp,
};
use rusqlite::{Connection, OptionalExtension, params, params_from_iter, types::Value as Sql};
use serde_json::Value;

use super::{codec, error::Answer, messages, notifications, parked, providers};

pub(super) fn get(connection: &Connection, id: &str) -> Answer<Option<Thread>> {
    let sql = format!("SELECT {} FROM mastra_threads WHERE id = ?1", *codec::THREAD_COLUMNS);
    Ok(connection.prepare_cached(&sql)?.query_row([id], codec::thread).optional()?.flatten())
}

/// The resource a thread belongs to: the cheap look that most writes need.
pub(super) fn owner(connection: &Connection, id: &str) -> Answer<Option<String>> {
    let mut statement = connection.prepare_cached(r#"SELECT "resourceId" FROM mastra_threads WHERE id = ?1"#)?;
    Ok(statement.query_row([id], |row| codec::text(row, 0)).optional()?.map(Option::unwrap_or_default))
}

/// Marks a thread as written now and returns the resource it belongs to (MEM-018).
pub(super) fn touch(connection: &Connection, id: &str, now: Timestamp) -> Answer<Option<String>> {
    let mut statement = connection.prepare_cached(
        r#"UPDATE mastra_threads SET "updatedAt" = max("updatedAt", ?2) WHERE id = ?1 RETURNING "resourceId""#,
    )?;
    let found = statement.query_row(params![id, now.to_string()], |row| codec::text(row, 0)).optional()?;
    Ok(found.map(Option::unwrap_or_default))
}

/// Writes a thread wholly; `createdAt` of an existing row stays.
fn put(connection: &Connection, thread: &Thread) -> Answer<()> {
    let mut statement = connection.prepare_cached(
        r#"INSERT INTO mastra_threads (id, "resourceId", title, metadata, "createdAt", "updatedAt")
           VALUES (?1, ?2, ?3, jsonb(?4), ?5, ?6)
           ON CONFLICT (id) DO UPDATE SET "resourceId" = excluded."resourceId", title = excluded.title,
             metadata = excluded.metadata, "updatedAt" = excluded."updatedAt""#,
    )?;
    statement.execute(params![
        thread.id,
        thread.resource_id,
        thread.title,
        codec::object_text(thread.metadata.as_ref()),
        thread.created_at.to_string(),
        thread.updated_at.to_string(),
    ])?;
    Ok(())
}

pub(super) fn create(connection: &Connection, new: NewThread) -> Answer<Thread> {
    let existing = match &new.id {
        Some(id) => get(connection, id)?,
        None => None,
    };
    let thread = rules::create_or_update_thread(existing, new, Timestamp::now())?;
    put(connection, &thread)?;
    Ok(thread)
}

/// What a run's start does to its thread: made if missing, else given metadata merged (MEM-012).
pub(super) fn ensure(connection: &Connection, new: &NewThread, now: Timestamp) -> Answer<()> {
    let existing = get(connection, new.id.as_deref().unwrap_or_default())?;
    match existing {
        Some(mut thread) => {
            if rules::touch_existing_thread(&mut thread, new, now)? {
                put(connection, &thread)?;
            }
        }
        None => put(connection, &rules::create_or_update_thread(None, new.clone(), now)?)?,
    }
    Ok(())
}

fn required(connection: &Connection, id: &str) -> Answer<Thread> {
    get(connection, id)?.ok_or_else(|| StorageError::NotFound { what: "thread", id: id.to_owned() }.into())
}

pub(super) fn update(connection: &Connection, update: ThreadUpdate) -> Answer<Thread> {
    let mut thread = required(connection, &update.id)?;
    rules::update_thread(&mut thread, update, Timestamp::now());
    put(connection, &thread)?;
    Ok(thread)
}

/// Changes the tracking of lanes; `false` if one is not as expected (STATE-026, STATE-081).
pub(super) fn track_lanes(connection: &Connection, id: &str, changes: &[LaneChange]) -> Answer<bool> {
    let mut thread = required(connection, id)?;
    let changed = rules::track_lanes(&mut thread, changes, Timestamp::now());
    if changed {
        put(connection, &thread)?;
    }
    Ok(changed)
}

/// The thread's lanes no longer have these signals (STATE-034).
pub(super) fn untrack(connection: &Connection, id: &str, gone: &[MessageId], now: Timestamp) -> Answer<()> {
    let Some(mut thread) = get(connection, id)?.filter(|thread| rules::tracks(thread, gone)) else {
        return Ok(());
    };
    let anyone = ThreadKey::unowned(id);
    let mut signals = messages::recent(connection, &anyone, rules::LANE_ROWS)?;
    signals.retain(|row| row.role == Role::Signal);
    if rules::untrack(&mut thread, gone, &signals, now) {
        put(connection, &thread)?;
    }
    Ok(())
}

pub(super) fn get_state(connection: &Connection, id: &str, kind: &str) -> Answer<Option<Value>> {
    let mut statement =
        connection.prepare_cached(r#"SELECT value FROM mastra_thread_state WHERE "threadId" = ?1 AND type = ?2"#)?;
    let found = statement.query_row(params![id, kind], |row| codec::text(row, 0)).optional()?.flatten();
    // A value that is no JSON counts as absent (ruling 40).
    Ok(found.and_then(|text| {
        serde_json::from_str(&text)
            .inspect_err(|error| tracing::warn!(thread = id, kind, %error, "a thread state is no JSON"))
            .ok()
    }))
}

pub(super) fn set_state(connection: &Connection, id: &str, kind: &str, value: Option<&Value>) -> Answer<()> {
    if owner(connection, id)?.is_none() {
        return Err(StorageError::NotFound { what: "thread", id: id.to_owned() }.into());
    }
    match value {
        Some(value) => connection
            .prepare_cached(
                r#"INSERT INTO mastra_thread_state ("threadId", type, value, "createdAt", "updatedAt")
                   VALUES (?1, ?2, ?3, ?4, ?4)
                   ON CONFLICT ("threadId", type) DO UPDATE SET value = excluded.value, "updatedAt" = excluded."updatedAt""#,
            )?
            .execute(params![id, kind, value.to_string(), Timestamp::now().to_string()])?,
        None => connection
            .prepare_cached(r#"DELETE FROM mastra_thread_state WHERE "threadId" = ?1 AND type = ?2"#)?
            .execute(params![id, kind])?,
    };
    Ok(())
}

/// Adds the conditions of a metadata filter on `column` below `path`; keys have been checked (MEM-017).
pub(super) fn filter_metadata(sql: &mut String, params: &mut Vec<Sql>, filter: &Object, column: &str, path: &str) {
    for (key, value) in filter {
        let of = |function: &str| {
            format!(r#"CASE WHEN json_valid({column}, 10) THEN {function}({column}, '{path}."{key}"') END"#)
        };
        let condition = match value {
            Value::Null => format!("coalesce({}, 'null') = 'null'", of("json_type")),
            Value::Bool(value) => format!("{} = '{value}'", of("json_type")),
            Value::Number(number) => {
                params.push(match number.as_i64() {
                    Some(number) => Sql::Integer(number),
                    None => Sql::Real(number.as_f64().unwrap_or(f64::NAN)),
                });
                format!("{} IN ('integer', 'real') AND {} = ?{}", of("json_type"), of("json_extract"), params.len())
            }
            Value::String(text) => {
                params.push(Sql::Text(text.clone()));
                format!("{} = 'text' AND {} = ?{}", of("json_type"), of("json_extract"), params.len())
            }
            // Refused by the check.
            Value::Array(_) | Value::Object(_) => "0".into(),
        };
        let _ = write!(sql, " AND {condition}");
    }
}

pub(super) fn list(connection: &Connection, query: &ThreadQuery) -> Answer<Page<Thread>> {
    let (mut filter, mut params) = (String::from("WHERE 1"), Vec::new());
    if let Some(resource) = &query.resource_id {
        params.push(Sql::Text(resource.clone()));
        filter.push_str(r#" AND "resourceId" = ?1"#);
    }
    filter_metadata(&mut filter, &mut params, &query.metadata, "metadata", "$");
    let total: i64 = connection
        .prepare_cached(&format!("SELECT count(*) FROM mastra_threads {filter}"))?
        .query_row(params_from_iter(&params), |row| row.get(0))?;
    let total = usize::try_from(total).unwrap_or_default();
    let (first, has_more) = rules::page_bounds(query.page, query.per_page, total);
    let order = match query.order {
        ThreadOrder::CreatedAt => "createdAt",
        ThreadOrder::UpdatedAt => "updatedAt",
    };
    let direction = match query.direction {
        Direction::Asc => "ASC",
        Direction::Desc => "DESC",
    };
    let sql = format!(
        r#"SELECT {} FROM mastra_threads {filter} ORDER BY "{order}" {direction}, id {direction} LIMIT {} OFFSET {first}"#,
        *codec::THREAD_COLUMNS,
        query.per_page.map_or(-1, i64::from),
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params_from_iter(&params), codec::thread)?;
    let items = rows.filter_map(Result::transpose).collect::<rusqlite::Result<_>>()?;
    Ok(Page { items, total, page: query.page, per_page: query.per_page, has_more })
}

/// Deletes all that is a thread's (MEM-019). Its lease stays, since the epoch never shrinks; it holds nothing of the user.
pub(super) fn delete(connection: &Connection, id: &str) -> Answer<bool> {
    // What was placed is named by its messages, what waits by its thread.
    for sql in [
        "DELETE FROM bugle_inbox WHERE id IN (SELECT id FROM mastra_messages WHERE thread_id = ?1)",
        "DELETE FROM bugle_inbox WHERE thread = ?1 AND state = 0",
    ] {
        connection.prepare_cached(sql)?.execute([id])?;
    }
    for (table, column) in [
        ("mastra_messages", "thread_id"),
        ("mastra_thread_state", "\"threadId\""),
        ("mastra_background_tasks", "thread_id"),
        ("mastra_observational_memory", "\"threadId\""),
        ("bugle_runs", "thread"),
    ] {
        connection.prepare_cached(&format!("DELETE FROM {table} WHERE {column} = ?1"))?.execute([id])?;
    }
    // Another resource may wait for a thread of this id of its own.
    let owner = owner(connection, id)?.unwrap_or_default();
    notifications::delete_thread(connection, id, &owner)?;
    providers::delete_thread(connection, id, &owner)?;
    delete_schedules(connection, id)?;
    delete_snapshots(connection, id)?;
    Ok(connection.prepare_cached("DELETE FROM mastra_threads WHERE id = ?1")?.execute([id])? > 0)
}

fn delete_schedules(connection: &Connection, id: &str) -> Answer<()> {
    const OF_THREAD: &str = "CASE WHEN json_valid(target, 10) THEN json_extract(target, '$.threadId') END = ?1";
    connection
        .prepare_cached(&format!(
            "DELETE FROM mastra_schedule_triggers
             WHERE schedule_id IN (SELECT id FROM mastra_schedules WHERE {OF_THREAD})"
        ))?
        .execute([id])?;
    connection.prepare_cached(&format!("DELETE FROM mastra_schedules WHERE {OF_THREAD}"))?.execute([id])?;
    Ok(())
}

/// Parked runs of the thread: their snapshots name it in the memory they carry.
fn delete_snapshots(connection: &Connection, id: &str) -> Answer<()> {
    let sql = format!(
        "SELECT run_id, {} FROM mastra_workflow_snapshot WHERE json_valid(snapshot, 10)",
        codec::json_column("snapshot")
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(())?;
    let mut parked = Vec::new();
    while let Some(row) = rows.next()? {
        let Some(run) = codec::text(row, 0)? else { continue };
        let snapshot: Option<Value> = codec::json(row, 1, ("mastra_workflow_snapshot", &run, "snapshot"))?;
        if snapshot.is_some_and(|snapshot| names_thread(&snapshot, id)) {
            parked.push(run);
        }
    }
    let mut delete = connection.prepare_cached("DELETE FROM mastra_workflow_snapshot WHERE run_id = ?1")?;
    for run in parked {
        delete.execute([run])?;
    }
    Ok(())
}

/// Where a snapshot says whose it is; what lies elsewhere is an application's, whatever it is called.
const HOMES: &[&str] = &[
    "/context/executionWorkflow/suspendPayload/__streamState/messageList/memoryInfo/threadId",
    "/context/durable-agentic-execution/suspendPayload/__streamState/messageList/memoryInfo/threadId",
    "/context/input/messageListState/memoryInfo/threadId",
    "/requestContext/MastraMemory/thread/id",
];

fn names_thread(snapshot: &Value, id: &str) -> bool {
    HOMES.iter().any(|home| snapshot.pointer(home).and_then(Value::as_str) == Some(id))
}

pub(super) fn clone(connection: &Connection, clone: CloneThread) -> Answer<ClonedThread> {
    let source = required(connection, &clone.source_thread_id)?;
    if let Some(id) = &clone.new_thread_id
        && owner(connection, id)?.is_some()
    {
        return Err(StorageError::Exists { what: "thread", id: id.clone() }.into());
    }
    let stored = messages::of_thread(connection, &source.id)?;
    let cloned = rules::clone_of(&source, stored, clone, Timestamp::now());
    put(connection, &cloned.thread)?;
    for message in &cloned.cloned_messages {
        messages::put(connection, &messages::Row::of(message))?;
    }
    Ok(cloned)
}

pub(super) fn transfer(connection: &Connection, id: &str, resource: &str) -> Answer<Thread> {
    let mut thread = required(connection, id)?;
    let busy: bool = connection
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM bugle_inbox WHERE thread = ?1 AND state = 0)
               OR EXISTS (SELECT 1 FROM bugle_runs WHERE thread = ?1)",
        )?
        .query_row([id], |row| row.get(0))?;
    if busy || parked::is_any_of(connection, id)? {
        return Err(StorageError::Busy { thread: id.to_owned() }.into());
    }
    // Repeated input is told apart, and epochs grow, under the new key too.
    connection.prepare_cached("UPDATE bugle_inbox SET resource = ?2 WHERE thread = ?1")?.execute([id, resource])?;
    connection
        .prepare_cached(
            "INSERT INTO bugle_leases (resource, thread, owner, epoch, expires_at)
             SELECT ?2, ?1, NULL, max(epoch), 0 FROM bugle_leases WHERE thread = ?1 GROUP BY thread
             ON CONFLICT (resource, thread) DO UPDATE SET epoch = excluded.epoch",
        )?
        .execute([id, resource])?;
    let owner = std::mem::replace(&mut thread.resource_id, resource.to_owned());
    thread.updated_at = Timestamp::now().max(thread.updated_at);
    put(connection, &thread)?;
    connection
        .prepare_cached(r#"UPDATE mastra_messages SET "resourceId" = ?2 WHERE thread_id = ?1"#)?
        .execute([id, resource])?;
    notifications::transfer(connection, id, &owner, resource)?;
    providers::transfer(connection, id, &owner, resource)?;
    Ok(thread)
}

pub(super) fn get_resource(connection: &Connection, id: &str) -> Answer<Option<Resource>> {
    let sql = format!(
        r#"SELECT "workingMemory", {}, "createdAt", "updatedAt" FROM mastra_resources WHERE id = ?1"#,
        codec::json_column("metadata")
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_row([id], |row| {
        Ok(Resource {
            id: id.to_owned(),
            working_memory: codec::text(row, 0)?,
            metadata: codec::json(row, 1, ("mastra_resources", id, "metadata"))?,
            created_at: codec::timestamp(row, 2)?.unwrap_or_default(),
            updated_at: codec::timestamp(row, 3)?.unwrap_or_default(),
        })
    });
    Ok(found.optional()?)
}

pub(super) fn update_resource(connection: &Connection, id: &str, change: ResourceChange) -> Answer<Resource> {
    let now = Timestamp::now();
    let mut resource = get_resource(connection, id)?.unwrap_or_else(|| rules::new_resource(id, now));
    rules::change_resource(&mut resource, change, now)?;
    connection
        .prepare_cached(
            r#"INSERT INTO mastra_resources (id, "workingMemory", metadata, "createdAt", "updatedAt")
               VALUES (?1, ?2, jsonb(?3), ?4, ?5)
               ON CONFLICT (id) DO UPDATE SET "workingMemory" = excluded."workingMemory",
                 metadata = excluded.metadata, "updatedAt" = excluded."updatedAt""#,
        )?
        .execute(params![
            id,
            resource.working_memory,
            codec::object_text(resource.metadata.as_ref()),
            resource.created_at.to_string(),
            resource.updated_at.to_string(),
        ])?;
    Ok(resource)
}
