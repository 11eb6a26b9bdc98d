//! Messages in SQL (MEM §4, §6).

use std::{collections::HashMap, fmt::Write as _};

use bugle::{
    id::{MessageId, ThreadKey},
    message::StoredMessage,
    storage::{Direction, IncludeMessage, MessageQuery, Page, StorageError, rules},
    time::Timestamp,
};
use rusqlite::{Connection, OptionalExtension, ToSql, params, params_from_iter, types::Value as Sql};

use super::{
    codec::{self, MESSAGE_COLUMNS},
    error::Answer,
    threads,
};

/// A message as its columns, encoded before the job is queued so that the writer need not.
#[derive(Debug)]
pub(super) struct Row {
    id: String,
    thread: String,
    content: String,
    role: &'static str,
    kind: String,
    created_at: String,
    resource: Option<String>,
}

impl Row {
    pub(super) fn of(message: &StoredMessage) -> Self {
        Self {
            id: message.id.to_string(),
            thread: message.thread_id.clone().unwrap_or_default(),
            content: serde_json::to_string(&message.content).unwrap_or_default(),
            role: codec::role_name(message.role),
            kind: message.kind.clone().unwrap_or_else(|| "v2".into()),
            created_at: message.created_at.to_string(),
            resource: message.resource_id.clone(),
        }
    }
}

/// Upserts a message; `createdAt` stays (MEM-043). A message of another thread or resource is not touched (MEM-044).
pub(super) fn put(connection: &Connection, row: &Row) -> Answer<()> {
    let mut statement = connection.prepare_cached(
        r#"INSERT INTO mastra_messages (id, thread_id, content, role, type, "createdAt", "resourceId")
           VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
           ON CONFLICT (id) DO UPDATE SET content = excluded.content, role = excluded.role, type = excluded.type,
             "resourceId" = excluded."resourceId"
           WHERE thread_id = excluded.thread_id
             AND (coalesce("resourceId", '') = '' OR "resourceId" = excluded."resourceId")"#,
    )?;
    let params: [&dyn ToSql; 7] =
        [&row.id, &row.thread, &row.content, &row.role, &row.kind, &row.created_at, &row.resource];
    if statement.execute(params.as_slice())? == 0 {
        return Err(StorageError::MessageOwnership { id: row.id.as_str().into() }.into());
    }
    Ok(())
}

/// Saves messages after checking their threads.
pub(super) fn save(connection: &Connection, messages: &[(StoredMessage, Row)]) -> Answer<()> {
    let now = Timestamp::now();
    let mut owners: HashMap<&str, Option<String>> = HashMap::new();
    for thread in messages.iter().filter_map(|(message, _)| message.thread_id.as_deref()) {
        if !owners.contains_key(thread) {
            owners.insert(thread, threads::touch(connection, thread, now)?);
        }
    }
    put_all(connection, messages, |thread| Ok(owners.get(thread).cloned().flatten()))
}

/// Writes messages whose threads' owners are known.
pub(super) fn put_all(
    connection: &Connection,
    messages: &[(StoredMessage, Row)],
    owner: impl Fn(&str) -> Result<Option<String>, StorageError>,
) -> Answer<()> {
    for (message, row) in messages {
        rules::check_message_home(message, &owner)?;
        put(connection, row)?;
    }
    Ok(())
}

pub(super) fn delete(connection: &Connection, ids: &[MessageId]) -> Answer<usize> {
    let mut deleted = 0;
    let mut threads: Vec<String> = Vec::new();
    let mut thread =
        connection.prepare_cached("SELECT thread_id FROM mastra_messages WHERE id = ?1 AND role = 'signal'")?;
    let mut forget = connection.prepare_cached("DELETE FROM bugle_inbox WHERE id = ?1 AND state = 1")?;
    let mut delete = connection.prepare_cached("DELETE FROM mastra_messages WHERE id = ?1")?;
    for id in ids {
        let of = thread.query_row([id.as_str()], |row| codec::text(row, 0)).optional()?.flatten();
        threads.extend(of.filter(|of| !threads.contains(of)));
        deleted += delete.execute([id.as_str()])?;
        forget.execute([id.as_str()])?;
    }
    for thread in threads {
        threads::untrack(connection, &thread, ids, Timestamp::now())?;
    }
    Ok(deleted)
}

fn collect(connection: &Connection, sql: &str, params: &[Sql]) -> Answer<Vec<StoredMessage>> {
    let mut statement = connection.prepare_cached(sql)?;
    let rows = statement.query_map(params_from_iter(params), codec::message)?;
    Ok(rows.filter_map(Result::transpose).collect::<rusqlite::Result<_>>()?)
}

/// All messages of a thread, oldest first.
pub(super) fn of_thread(connection: &Connection, thread: &str) -> Answer<Vec<StoredMessage>> {
    let sql = format!(r#"SELECT {MESSAGE_COLUMNS} FROM mastra_messages WHERE thread_id = ?1 ORDER BY "createdAt", id"#);
    collect(connection, &sql, &[Sql::Text(thread.to_owned())])
}

pub(super) const RECENT: &str = r#"WHERE thread_id = ?1 ORDER BY "createdAt" DESC, id DESC LIMIT ?2"#;
pub(super) const RECENT_OF_RESOURCE: &str =
    r#"WHERE thread_id = ?1 AND "resourceId" = ?3 ORDER BY "createdAt" DESC, id DESC LIMIT ?2"#;

/// The newest messages, oldest first.
pub(super) fn recent(connection: &Connection, thread: &ThreadKey, limit: u32) -> Answer<Vec<StoredMessage>> {
    let limit = if limit == u32::MAX { -1 } else { i64::from(limit) };
    let mut params = vec![Sql::Text(thread.thread_id.to_string()), Sql::Integer(limit)];
    let tail = match &thread.resource_id {
        None => RECENT,
        Some(resource) => {
            params.push(Sql::Text(resource.to_string()));
            RECENT_OF_RESOURCE
        }
    };
    let mut found = collect(connection, &format!("SELECT {MESSAGE_COLUMNS} FROM mastra_messages {tail}"), &params)?;
    found.reverse();
    Ok(found)
}

pub(super) fn get(connection: &Connection, ids: &[MessageId]) -> Answer<Vec<StoredMessage>> {
    let sql = format!("SELECT {MESSAGE_COLUMNS} FROM mastra_messages WHERE id = ?1");
    let mut statement = connection.prepare_cached(&sql)?;
    let mut found = Vec::with_capacity(ids.len());
    let mut seen = std::collections::HashSet::new();
    for id in ids.iter().filter(|id| seen.insert(*id)) {
        found.extend(statement.query_row([id.as_str()], codec::message).optional()?.flatten());
    }
    Ok(found)
}

/// A WHERE clause under construction.
struct Filter {
    sql: String,
    params: Vec<Sql>,
}

impl Filter {
    fn new() -> Self {
        Self { sql: "WHERE 1".into(), params: Vec::new() }
    }

    fn bind(&mut self, value: impl Into<String>) -> usize {
        self.params.push(Sql::Text(value.into()));
        self.params.len()
    }

    fn list<'a>(&mut self, values: impl IntoIterator<Item = &'a str>) -> String {
        let numbers: Vec<String> = values.into_iter().map(|value| format!("?{}", self.bind(value))).collect();
        numbers.join(", ")
    }

    fn threads(&mut self, ids: &[String]) {
        let list = self.list(ids.iter().map(String::as_str));
        let _ = write!(self.sql, " AND thread_id IN ({list})");
    }

    /// The resource, and what the query hides: holds for pages and for included neighbours alike.
    fn visible(&mut self, query: &MessageQuery) {
        if let Some(resource) = &query.resource_id {
            let number = self.bind(resource);
            let _ = write!(self.sql, r#" AND "resourceId" = ?{number}"#);
        }
        if !query.hide_signal_tags.is_empty() {
            let list = self.list(query.hide_signal_tags.iter().map(String::as_str));
            let _ = write!(self.sql, " AND NOT (role = 'signal' AND type IN ({list}))");
        }
        if !query.hide_signal_types.is_empty() {
            let list = self.list(query.hide_signal_types.iter().map(String::as_str));
            let _ = write!(
                self.sql,
                " AND NOT (role = 'signal' AND coalesce(CASE WHEN json_valid(content, 10)
                   THEN json_extract(content, '$.metadata.signal.type') END, '') IN ({list}))"
            );
        }
    }

    fn place(&mut self, comparison: &str, place: &(String, String)) {
        let (at, id) = (self.bind(&place.0), self.bind(&place.1));
        let _ = write!(self.sql, r#" AND ("createdAt", id) {comparison} (?{at}, ?{id})"#);
    }

    fn page(&mut self, query: &MessageQuery, before: Option<&(String, String)>, after: Option<&(String, String)>) {
        self.threads(&query.thread_ids);
        self.visible(query);
        for (bound, inclusive, exclusive) in [(query.start, ">=", ">"), (query.end, "<=", "<")] {
            if let Some((at, is_exclusive)) = bound {
                let number = self.bind(at.to_string());
                let comparison = if is_exclusive { exclusive } else { inclusive };
                let _ = write!(self.sql, r#" AND "createdAt" {comparison} ?{number}"#);
            }
        }
        if !query.roles.is_empty() {
            let list = self.list(query.roles.iter().map(|role| codec::role_name(*role)));
            let _ = write!(self.sql, " AND role IN ({list})");
        }
        threads::filter_metadata(&mut self.sql, &mut self.params, &query.metadata, "content", "$.metadata");
        if let Some(place) = before {
            self.place("<", place);
        }
        if let Some(place) = after {
            self.place(">", place);
        }
    }
}

/// Where a message stands in the total order (MEM-056): `createdAt` as stored, and id.
fn place_of(connection: &Connection, id: &MessageId) -> Answer<Option<(String, String)>> {
    let mut statement = connection.prepare_cached(r#"SELECT "createdAt", id FROM mastra_messages WHERE id = ?1"#)?;
    Ok(statement.query_row([id.as_str()], |row| Ok((row.get(0)?, row.get(1)?))).optional()?)
}

fn cursor(connection: &Connection, id: Option<&MessageId>) -> Answer<Option<(String, String)>> {
    let Some(id) = id else { return Ok(None) };
    match place_of(connection, id)? {
        Some(place) => Ok(Some(place)),
        None => Err(StorageError::NotFound { what: "message", id: id.to_string() }.into()),
    }
}

pub(super) fn list(connection: &Connection, query: &MessageQuery) -> Answer<Page<StoredMessage>> {
    if let Some(resource) = &query.resource_id {
        for id in &query.thread_ids {
            if let Some(thread) = threads::get(connection, id)? {
                rules::check_owner(&thread, Some(resource))?;
            }
        }
    }
    let before = cursor(connection, query.before.as_ref())?;
    let after = cursor(connection, query.after.as_ref())?;
    let mut filter = Filter::new();
    filter.page(query, before.as_ref(), after.as_ref());
    let total: i64 = connection
        .prepare_cached(&format!("SELECT count(*) FROM mastra_messages {}", filter.sql))?
        .query_row(params_from_iter(&filter.params), |row| row.get(0))?;
    let total = usize::try_from(total).unwrap_or_default();
    let (first, has_more) = rules::page_bounds(query.page, query.per_page, total);
    let newest_first = query.newest_page_first || query.direction == Direction::Desc;
    let direction = if newest_first { "DESC" } else { "ASC" };
    let mut items = if query.per_page == Some(0) {
        Vec::new()
    } else {
        let sql = format!(
            r#"SELECT {MESSAGE_COLUMNS} FROM mastra_messages {} ORDER BY "createdAt" {direction}, id {direction} LIMIT {} OFFSET {first}"#,
            filter.sql,
            query.per_page.map_or(-1, i64::from),
        );
        collect(connection, &sql, &filter.params)?
    };
    for include in &query.include {
        items.extend(around(connection, query, include)?);
    }
    items.sort_by(|a, b| (a.created_at, &a.id).cmp(&(b.created_at, &b.id)));
    items.dedup_by(|a, b| a.id == b.id);
    if !query.newest_page_first && query.direction == Direction::Desc {
        items.reverse();
    }
    Ok(Page { items, total, page: query.page, per_page: query.per_page, has_more })
}

/// A message and its neighbours in its thread (MEM-068, MEM-069).
fn around(connection: &Connection, query: &MessageQuery, include: &IncludeMessage) -> Answer<Vec<StoredMessage>> {
    let mut filter = Filter::new();
    filter.visible(query);
    let number = filter.bind(include.id.as_str());
    let sql = format!("SELECT {MESSAGE_COLUMNS} FROM mastra_messages {} AND id = ?{number}", filter.sql);
    let mut found = collect(connection, &sql, &filter.params)?;
    let thread = found.first().and_then(|target| target.thread_id.clone());
    if !rules::may_include(query, include, thread.as_deref()) {
        return Ok(Vec::new());
    }
    let Some(thread) = thread else { return Ok(found) };
    let Some(place) = place_of(connection, &include.id)? else { return Ok(found) };
    for (count, comparison, direction) in
        [(include.with_previous_messages, "<", "DESC"), (include.with_next_messages, ">", "ASC")]
    {
        if count == 0 {
            continue;
        }
        let mut filter = Filter::new();
        filter.threads(std::slice::from_ref(&thread));
        filter.visible(query);
        filter.place(comparison, &place);
        let sql = format!(
            r#"SELECT {MESSAGE_COLUMNS} FROM mastra_messages {} ORDER BY "createdAt" {direction}, id {direction} LIMIT {count}"#,
            filter.sql
        );
        found.extend(collect(connection, &sql, &filter.params)?);
    }
    Ok(found)
}

/// Deletes the messages of a thread that a rollback takes back, and forgets their placement (ruling 33).
pub(super) fn remove(connection: &Connection, thread: &str, ids: &[MessageId]) -> Answer<()> {
    let mut forget = connection.prepare_cached("DELETE FROM bugle_inbox WHERE id = ?1 AND state = 1")?;
    let mut delete = connection.prepare_cached("DELETE FROM mastra_messages WHERE id = ?1 AND thread_id = ?2")?;
    for id in ids {
        delete.execute(params![id.as_str(), thread])?;
        forget.execute([id.as_str()])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mem_080_recent_messages_are_found_by_an_index() {
        let connection = Connection::open_in_memory().unwrap();
        crate::libsql::schema::complete(&connection).unwrap();
        for (tail, params) in [(RECENT, &["t", "10"][..]), (RECENT_OF_RESOURCE, &["t", "10", "r"][..])] {
            let sql = format!("EXPLAIN QUERY PLAN SELECT {MESSAGE_COLUMNS} FROM mastra_messages {tail}");
            let mut statement = connection.prepare(&sql).unwrap();
            let rows = statement.query_map(params_from_iter(params), |row| row.get::<_, String>(3)).unwrap();
            let plan: Vec<String> = rows.collect::<Result<_, _>>().unwrap();
            assert!(plan[0].starts_with("SEARCH mastra_messages USING INDEX"), "{plan:?}");
            assert!(!plan.iter().any(|line| line.contains("TEMP B-TREE FOR ORDER BY")), "{plan:?}");
        }
    }
}
