//! Parked runs: pairs of rows in the table that the reference parks its own in (LOOP-100, STO-052, STO §6).
//!
//! The outer row says that a run is parked, and nothing else does (STO-112). Its JSON names agent and thread; a row that
//! does not parse, or names no agent, is left out of every answer (ruling 40).

use bugle::{
    id::{RunId, ThreadKey},
    storage::{Page, ParkedQuery, ParkedRun, StorageError, rules},
    time::Timestamp,
};
use rusqlite::{Connection, params};
use serde_json::Value;

use super::{
    codec,
    error::{Answer, Failure},
};

/// What the reference calls the loop of a run, and what that of a durable agent.
const OUTER: &str = "('agentic-loop', 'durable-agentic-loop')";
/// The step inside either.
const INNER: &str = "('executionWorkflow', 'durable-agentic-execution')";
/// Guarded, and as the index has it (STO-023, ruling 40).
const SUSPENDED: &str = "CASE WHEN json_valid(snapshot, 10) THEN json_extract(snapshot, '$.status') END = 'suspended'";

/// What a listing needs to know of a snapshot, in one pass over its JSON.
const HEAD: &str = "CASE WHEN json_valid(snapshot, 10) THEN json_extract(snapshot,
    '$.context.executionWorkflow.suspendPayload.__agentId',
    '$.context.\"durable-agentic-execution\".suspendPayload.__agentId',
    '$.context.input.agentId',
    '$.context.executionWorkflow.suspendPayload.__streamState.messageList.memoryInfo',
    '$.context.\"durable-agentic-execution\".suspendPayload.__streamState.messageList.memoryInfo',
    '$.context.input.messageListState.memoryInfo',
    '$.timestamp') END";

/// Who and where of a parked run.
#[derive(Debug, Clone)]
struct Head {
    run_id: String,
    agent_id: String,
    thread_id: Option<String>,
    /// As the conversation says.
    owner: Option<String>,
    /// As the row says, else as the conversation does.
    resource_id: Option<String>,
    suspended_at: Timestamp,
}

const HEAD_COLUMNS: [&str; 4] = ["run_id", "\"resourceId\"", "\"updatedAt\"", HEAD];

/// Reads the first columns of a row; `None` if the snapshot names no agent.
fn head(row: &rusqlite::Row<'_>) -> rusqlite::Result<Option<Head>> {
    let Some(run_id) = codec::text(row, 0)? else { return Ok(None) };
    let found: Option<[Value; 7]> = codec::text(row, 3)?.and_then(|text| codec::parse_json(&text));
    let Some([agent, durable_agent, input_agent, memory, durable_memory, input_memory, timestamp]) = found else {
        codec::report("mastra_workflow_snapshot", &run_id, "snapshot");
        return Ok(None);
    };
    let Some(agent_id) = [agent, durable_agent, input_agent].iter().find_map(|id| id.as_str().map(str::to_owned))
    else {
        codec::report("mastra_workflow_snapshot", &run_id, "snapshot");
        return Ok(None);
    };
    let memory = [memory, durable_memory, input_memory].into_iter().find(Value::is_object).unwrap_or_default();
    let member = |name: &str| memory.get(name).and_then(Value::as_str).filter(|id| !id.is_empty()).map(str::to_owned);
    let owner = member("resourceId");
    let written = codec::timestamp(row, 2)?.or_else(|| timestamp.as_i64().map(Timestamp::from_millis));
    Ok(Some(Head {
        agent_id,
        thread_id: member("threadId"),
        resource_id: codec::text(row, 1)?.filter(|id| !id.is_empty()).or_else(|| owner.clone()),
        owner,
        suspended_at: written.unwrap_or_default(),
        run_id,
    }))
}

impl Head {
    fn fits(&self, query: &ParkedQuery) -> bool {
        let is =
            |wanted: &Option<String>, value: Option<&str>| wanted.as_deref().is_none_or(|wanted| Some(wanted) == value);
        is(&query.agent_id, Some(&self.agent_id))
            && is(&query.thread_id, self.thread_id.as_deref())
            && is(&query.resource_id, self.resource_id.as_deref())
            && query.from.is_none_or(|from| self.suspended_at >= from)
            && query.to.is_none_or(|to| self.suspended_at <= to)
    }

    fn thread(&self) -> Option<ThreadKey> {
        let id = self.thread_id.as_deref()?;
        Some(match self.owner.as_deref() {
            Some(owner) => ThreadKey::new(owner, id),
            None => ThreadKey::unowned(id),
        })
    }

    fn with(self, outer: Value, inner: Value) -> ParkedRun {
        ParkedRun {
            thread: self.thread(),
            run_id: self.run_id.into(),
            resource_id: self.resource_id,
            agent_id: self.agent_id,
            outer,
            inner,
            suspended_at: self.suspended_at,
        }
    }
}

pub(super) fn get(connection: &Connection, run_id: &RunId) -> Answer<Option<ParkedRun>> {
    let sql = format!(
        "SELECT {}, {} FROM mastra_workflow_snapshot
         WHERE run_id = ?1 AND workflow_name IN {OUTER} AND {SUSPENDED} ORDER BY workflow_name",
        HEAD_COLUMNS.join(", "),
        codec::json_column("snapshot"),
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query([run_id.as_str()])?;
    while let Some(row) = rows.next()? {
        let Some(head) = head(row)? else { continue };
        let outer = codec::json(row, HEAD_COLUMNS.len(), ("mastra_workflow_snapshot", run_id, "snapshot"))?;
        if let Some(outer) = outer {
            return Ok(Some(head.with(outer, inner(connection, run_id)?)));
        }
    }
    Ok(None)
}

/// The inner row; null if there is none that can be read (STO-111).
fn inner(connection: &Connection, run_id: &RunId) -> Answer<Value> {
    let sql = format!(
        "SELECT {} FROM mastra_workflow_snapshot WHERE run_id = ?1 AND workflow_name IN {INNER} AND {SUSPENDED}
         ORDER BY workflow_name DESC",
        codec::json_column("snapshot")
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query([run_id.as_str()])?;
    while let Some(row) = rows.next()? {
        if let Some(found) = codec::json(row, 0, ("mastra_workflow_snapshot", run_id, "snapshot"))? {
            return Ok(found);
        }
    }
    Ok(Value::Null)
}

/// Reads the heads of all parked runs, or of those whose row has one owner: other rows' snapshots are not read. The `+`
/// keeps the planner from the index by name, which would read them all.
fn list_sql(of_owner: bool) -> String {
    let owner = if of_owner { r#" AND "resourceId" IS ?1"# } else { "" };
    format!(
        "SELECT {} FROM mastra_workflow_snapshot WHERE +workflow_name IN {OUTER} AND {SUSPENDED}{owner}
         ORDER BY +workflow_name",
        HEAD_COLUMNS.join(", ")
    )
}

pub(super) fn list(connection: &Connection, query: &ParkedQuery) -> Answer<Page<ParkedRun>> {
    let mut found: Vec<Head> = Vec::new();
    let mut statement = connection.prepare_cached(&list_sql(query.resource_id.is_some()))?;
    let mut read = |rows: &mut rusqlite::Rows<'_>| -> rusqlite::Result<()> {
        while let Some(row) = rows.next()? {
            found.extend(head(row)?.filter(|head| head.fits(query)));
        }
        Ok(())
    };
    match &query.resource_id {
        // Rows that name nobody leave it to the conversation.
        Some(owner) => {
            for owner in [Some(owner.as_str()), Some(""), None] {
                read(&mut statement.query([owner])?)?;
            }
        }
        None => read(&mut statement.query(())?)?,
    }
    found.sort_by(|a, b| (b.suspended_at, &b.run_id).cmp(&(a.suspended_at, &a.run_id)));
    found.dedup_by(|a, b| a.run_id == b.run_id);
    let total = found.len();
    let (first, has_more) = rules::page_bounds(query.page, query.per_page, total);
    let count = query.per_page.map_or(usize::MAX, |count| count as usize);
    let mut items = Vec::new();
    for head in found.into_iter().skip(first).take(count) {
        items.extend(get(connection, &head.run_id.into())?);
    }
    Ok(Page { items, total, page: query.page, per_page: query.per_page, has_more })
}

/// Whether a run of the thread is parked.
pub(super) fn is_any_of(connection: &Connection, thread_id: &str) -> Answer<bool> {
    let query = ParkedQuery { thread_id: Some(thread_id.to_owned()), per_page: Some(1), ..ParkedQuery::default() };
    Ok(list(connection, &query)?.total > 0)
}

/// Both rows as they are written.
#[derive(Debug)]
pub(super) struct Draft {
    run_id: RunId,
    thread: Option<ThreadKey>,
    agent_id: String,
    resource_id: Option<String>,
    at: String,
    outer: String,
    inner: String,
}

impl Draft {
    pub(super) fn of(run: &ParkedRun) -> Self {
        let owner = run.thread.as_ref().and_then(|thread| thread.resource_id.as_deref());
        Self {
            run_id: run.run_id.clone(),
            thread: run.thread.clone(),
            agent_id: run.agent_id.clone(),
            resource_id: run.resource_id.clone().or_else(|| owner.map(str::to_owned)),
            at: run.suspended_at.to_string(),
            outer: run.outer.to_string(),
            inner: run.inner.to_string(),
        }
    }
}

/// Writes the pair, in the place of an earlier one of the same run only: callers choose run ids.
pub(super) fn put(connection: &Connection, draft: &Draft) -> Answer<()> {
    for head in heads(connection, &draft.run_id)? {
        let other_owner = matches!((&head.resource_id, &draft.resource_id), (Some(one), Some(other)) if one != other);
        if other_owner || head.thread() != draft.thread || head.agent_id != draft.agent_id {
            return Err(Failure::Rule(StorageError::Exists { what: "suspended run", id: draft.run_id.to_string() }));
        }
    }
    let mut statement = connection.prepare_cached(
        r#"INSERT INTO mastra_workflow_snapshot (workflow_name, run_id, "resourceId", snapshot, "createdAt", "updatedAt")
           VALUES (?1, ?2, ?3, jsonb(?4), ?5, ?5)
           ON CONFLICT (workflow_name, run_id) DO UPDATE SET snapshot = excluded.snapshot,
             "resourceId" = coalesce(excluded."resourceId", "resourceId"), "updatedAt" = excluded."updatedAt""#,
    )?;
    for (name, snapshot) in [("agentic-loop", &draft.outer), ("executionWorkflow", &draft.inner)] {
        statement.execute(params![name, draft.run_id.as_str(), draft.resource_id, snapshot, draft.at])?;
    }
    Ok(())
}

/// Who and where of the parked run of an id; several if it was written under both names.
fn heads(connection: &Connection, run_id: &RunId) -> Answer<Vec<Head>> {
    let sql = format!(
        "SELECT {} FROM mastra_workflow_snapshot WHERE run_id = ?1 AND workflow_name IN {OUTER} AND {SUSPENDED}",
        HEAD_COLUMNS.join(", ")
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let found = statement.query_map([run_id.as_str()], head)?.collect::<rusqlite::Result<Vec<_>>>()?;
    Ok(found.into_iter().flatten().collect())
}

/// Takes the pair away; `false` if the run is not parked (any more): of several who try, one succeeds (LOOP-116).
pub(super) fn remove(connection: &Connection, run_id: &RunId) -> Answer<bool> {
    let sql =
        format!("DELETE FROM mastra_workflow_snapshot WHERE run_id = ?1 AND workflow_name IN {OUTER} AND {SUSPENDED}");
    if connection.prepare_cached(&sql)?.execute([run_id.as_str()])? == 0 {
        return Ok(false);
    }
    let sql = format!("DELETE FROM mastra_workflow_snapshot WHERE run_id = ?1 AND workflow_name IN {INNER}");
    connection.prepare_cached(&sql)?.execute([run_id.as_str()])?;
    Ok(true)
}

/// As [`remove`], for a run of `thread` that is about to go on or to be given up.
pub(super) fn take(connection: &Connection, thread: &ThreadKey, run_id: &RunId) -> Answer<()> {
    let is_here = heads(connection, run_id)?.iter().any(|head| head.thread().as_ref() == Some(thread));
    if is_here && remove(connection, run_id)? {
        return Ok(());
    }
    Err(Failure::Rule(StorageError::NotParked { run_id: run_id.clone() }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::libsql::schema;

    #[test]
    fn sto_023_the_parked_runs_of_an_owner_are_found_by_index() {
        let connection = Connection::open_in_memory().unwrap();
        schema::complete(&connection).unwrap();
        let plan = |sql: String, owner: &[&str]| -> String {
            let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
            let rows = statement.query_map(rusqlite::params_from_iter(owner), |row| row.get::<_, String>(3)).unwrap();
            rows.map(Result::unwrap).collect::<Vec<_>>().join("; ")
        };
        let owned = plan(list_sql(true), &["user"]);
        assert!(owned.contains("idx_bugle_snapshot_owner (<expr>=? AND resourceId=?)"), "{owned}");
        let all = plan(list_sql(false), &[]);
        assert!(all.contains("idx_bugle_snapshot_owner (<expr>=?)"), "{all}");
    }
}
