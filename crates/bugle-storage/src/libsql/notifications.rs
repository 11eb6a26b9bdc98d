//! Notification records in SQL (STO-053) and the claims on them. What they mean is decided by the shared rules.

use std::{fmt::Write as _, sync::LazyLock};

use async_trait::async_trait;
use bugle::{
    MessageId,
    storage::{
        ClaimedRecord, CreatedHow, CreatedRecord, DueQuery, NewRecord, NotificationPage, NotificationQuery,
        NotificationRecord, NotificationStore, RecordChange, RecordClaim, RecordKey, StorageError,
        notifications::rules,
    },
    time::Timestamp,
};
use rusqlite::{Connection, OptionalExtension, Row, params, params_from_iter, types::Value as Sql};

use super::{LibSql, codec, error::Answer};

const TABLE: &str = "mastra_notifications";

/// In the order of the fields that [`values`] and [`read`] use; JSON columns are marked.
const COLUMNS: [(&str, bool); 31] = [
    ("id", false),
    ("threadId", false),
    ("source", false),
    ("kind", false),
    ("priority", false),
    ("status", false),
    ("summary", false),
    ("payload", true),
    ("resourceId", false),
    ("agentId", false),
    ("sourceId", false),
    ("dedupeKey", false),
    ("coalesceKey", false),
    ("coalescedCount", false),
    ("attributes", true),
    ("createdAt", false),
    ("updatedAt", false),
    ("deliveredAt", false),
    ("seenAt", false),
    ("dismissedAt", false),
    ("archivedAt", false),
    ("discardedAt", false),
    ("deliverAt", false),
    ("summaryAt", false),
    ("deliveryReason", false),
    ("deliveryAttempts", false),
    ("lastDeliveryAttemptAt", false),
    ("lastDeliveryError", false),
    ("deliveredSignalId", false),
    ("summarySignalId", false),
    ("metadata", true),
];

fn values(record: &NotificationRecord) -> Vec<Sql> {
    let text = |text: Option<&str>| text.map_or(Sql::Null, |text| Sql::Text(text.to_owned()));
    let time = |time: Option<Timestamp>| time.map_or(Sql::Null, |time| Sql::Text(time.to_string()));
    let object = |object| codec::object_text(object).map_or(Sql::Null, Sql::Text);
    vec![
        text(Some(&record.id)),
        text(Some(&record.thread_id)),
        text(Some(&record.source)),
        text(Some(&record.kind)),
        text(Some(&record.priority)),
        text(Some(&record.status)),
        text(Some(&record.summary)),
        record.payload.as_ref().map_or(Sql::Null, |payload| Sql::Text(payload.to_string())),
        text(record.resource_id.as_deref()),
        text(record.agent_id.as_deref()),
        text(record.source_id.as_deref()),
        text(record.dedupe_key.as_deref()),
        text(record.coalesce_key.as_deref()),
        Sql::Integer(i64::from(record.coalesced_count)),
        object(record.attributes.as_ref()),
        time(Some(record.created_at)),
        time(Some(record.updated_at)),
        time(record.delivered_at),
        time(record.seen_at),
        time(record.dismissed_at),
        time(record.archived_at),
        time(record.discarded_at),
        time(record.deliver_at),
        time(record.summary_at),
        text(record.delivery_reason.as_deref()),
        Sql::Integer(i64::from(record.delivery_attempts)),
        time(record.last_delivery_attempt_at),
        text(record.last_delivery_error.as_deref()),
        text(record.delivered_signal_id.as_deref()),
        text(record.summary_signal_id.as_deref()),
        object(record.metadata.as_ref()),
    ]
}

fn read(row: &Row<'_>) -> rusqlite::Result<Option<NotificationRecord>> {
    let id = codec::text(row, 0)?.unwrap_or_default();
    let required = |index| codec::text(row, index).map(Option::unwrap_or_default);
    let optional = |index| codec::text(row, index);
    let time = |index| codec::timestamp(row, index);
    let count = |index| row.get::<_, Option<u32>>(index).map(Option::unwrap_or_default);
    let (Some(created_at), Some(updated_at)) = (time(15)?, time(16)?) else {
        codec::report(TABLE, &id, "createdAt");
        return Ok(None);
    };
    Ok(Some(NotificationRecord {
        thread_id: required(1)?,
        source: required(2)?,
        kind: required(3)?,
        priority: required(4)?,
        status: required(5)?,
        summary: required(6)?,
        payload: codec::json(row, 7, (TABLE, &id, "payload"))?,
        resource_id: optional(8)?,
        agent_id: optional(9)?,
        source_id: optional(10)?,
        dedupe_key: optional(11)?,
        coalesce_key: optional(12)?,
        coalesced_count: count(13)?,
        attributes: codec::json(row, 14, (TABLE, &id, "attributes"))?,
        created_at,
        updated_at,
        delivered_at: time(17)?,
        seen_at: time(18)?,
        dismissed_at: time(19)?,
        archived_at: time(20)?,
        discarded_at: time(21)?,
        deliver_at: time(22)?,
        summary_at: time(23)?,
        delivery_reason: optional(24)?,
        delivery_attempts: count(25)?,
        last_delivery_attempt_at: time(26)?,
        last_delivery_error: optional(27)?,
        delivered_signal_id: optional(28)?.map(Into::into),
        summary_signal_id: optional(29)?.map(Into::into),
        metadata: codec::json(row, 30, (TABLE, &id, "metadata"))?,
        id,
    }))
}

fn names(separator: &str, each: impl Fn(usize, &str, bool) -> String) -> String {
    let names: Vec<String> =
        COLUMNS.iter().enumerate().map(|(index, (name, json))| each(index + 1, name, *json)).collect();
    names.join(separator)
}

static INSERT: LazyLock<String> = LazyLock::new(|| {
    let columns = names(", ", |_, name, _| format!("\"{name}\""));
    let places = names(", ", |number, _, json| if json { format!("jsonb(?{number})") } else { format!("?{number}") });
    format!(
        r#"INSERT INTO {TABLE} ({columns}) SELECT {places}
           WHERE NOT EXISTS (SELECT 1 FROM {TABLE} WHERE "threadId" = ?2 AND id = ?1)"#
    )
});

static UPDATE: LazyLock<String> =
    LazyLock::new(|| {
        let set = names(", ", |number, name, json| {
            if json { format!("\"{name}\" = jsonb(?{number})") } else { format!("\"{name}\" = ?{number}") }
        });
        format!(r#"UPDATE {TABLE} SET {set} WHERE "threadId" = ?2 AND id = ?1"#)
    });

static SELECT: LazyLock<String> = LazyLock::new(|| {
    let columns = names(", ", |_, name, json| {
        let quoted = format!("\"{name}\"");
        if json { codec::json_column(&quoted) } else { quoted }
    });
    format!("SELECT {columns} FROM {TABLE}")
});

/// A record that nobody holds at the moment `?1`.
const FREE: &str = r#"NOT EXISTS (SELECT 1 FROM bugle_notification_claims c
    WHERE c.thread = n."threadId" AND c.id = n.id AND c.until > ?1)"#;

/// A record of the resource `?2`, or of nobody ([`rules::belongs`]).
const OWN: &str = r#"("resourceId" IS NULL OR "resourceId" IN ('', ?2))"#;
/// Values that one statement is given, at most.
const VARIABLES: usize = 500;

fn insert(connection: &Connection, record: &NotificationRecord) -> Answer<()> {
    if connection.prepare_cached(&INSERT)?.execute(params_from_iter(values(record)))? == 0 {
        return Err(StorageError::Exists { what: "notification", id: record.id.clone() }.into());
    }
    Ok(())
}

fn save(connection: &Connection, record: &NotificationRecord) -> Answer<()> {
    connection.prepare_cached(&UPDATE)?.execute(params_from_iter(values(record)))?;
    Ok(())
}

fn select(connection: &Connection, condition: &str, params: &[Sql]) -> Answer<Vec<NotificationRecord>> {
    let mut statement = connection.prepare_cached(&format!("{} {condition}", *SELECT))?;
    let rows = statement.query_map(params_from_iter(params), read)?;
    Ok(rows.filter_map(Result::transpose).collect::<rusqlite::Result<_>>()?)
}

fn sql_text(text: &str) -> Sql {
    Sql::Text(text.to_owned())
}

fn get(connection: &Connection, key: &RecordKey) -> Answer<Option<NotificationRecord>> {
    let found =
        select(connection, r#"WHERE "threadId" = ?1 AND id = ?2"#, &[sql_text(&key.thread_id), sql_text(&key.id)])?;
    Ok(found.into_iter().next())
}

fn holder(connection: &Connection, key: &RecordKey, now: Timestamp) -> Answer<Option<String>> {
    let mut statement = connection
        .prepare_cached("SELECT token FROM bugle_notification_claims WHERE thread = ?1 AND id = ?2 AND until > ?3")?;
    Ok(statement.query_row(params![key.thread_id, key.id, now.as_millis()], |row| row.get(0)).optional()?)
}

/// Writes a claim; gives what the one before it intended.
fn take(connection: &Connection, key: &RecordKey, claim: &RecordClaim) -> Answer<Option<MessageId>> {
    let mut statement = connection.prepare_cached(
        "INSERT INTO bugle_notification_claims (thread, id, token, until) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (thread, id) DO UPDATE SET token = excluded.token, until = excluded.until RETURNING intended",
    )?;
    let intended: Option<String> =
        statement.query_row(params![key.thread_id, key.id, claim.token, claim.until.as_millis()], |row| row.get(0))?;
    Ok(intended.map(Into::into))
}

fn give_up(connection: &Connection, key: &RecordKey, token: &str) -> Answer<()> {
    connection
        .prepare_cached("DELETE FROM bugle_notification_claims WHERE thread = ?1 AND id = ?2 AND token = ?3")?
        .execute([&key.thread_id, &key.id, token])?;
    Ok(())
}

fn create(connection: &Connection, new: &NewRecord) -> Answer<CreatedRecord> {
    let record = &new.record;
    let key = |key: &Option<String>| key.clone().filter(|key| !key.is_empty());
    let (dedupe, coalesce) = (key(&record.dedupe_key), key(&record.coalesce_key));
    let mut met = Vec::new();
    if dedupe.is_some() || coalesce.is_some() {
        let of = |key: Option<String>| key.map_or(Sql::Null, Sql::Text);
        met = select(
            connection,
            r#"WHERE "threadId" = ?1 AND source = ?2 AND kind = ?3 AND ("dedupeKey" = ?4 OR "coalesceKey" = ?5)"#,
            &[sql_text(&record.thread_id), sql_text(&record.source), sql_text(&record.kind), of(dedupe), of(coalesce)],
        )?;
    }
    let found = met.into_iter().filter_map(|held| rules::meets(&held, new).map(|how| (held, how)));
    let found = found.max_by(|(a, _), (b, _)| rules::choose(new, a, b));
    let (record, how) = if let Some((mut held, how)) = found {
        rules::merge(&mut held, new, how);
        save(connection, &held)?;
        (held, how)
    } else {
        insert(connection, record)?;
        (record.clone(), CreatedHow::New)
    };
    let key = record.key();
    let mut claimed = false;
    if let Some(claim) = new.claim.as_ref().filter(|_| how != CreatedHow::Duplicate)
        && (how == CreatedHow::New || holder(connection, &key, claim.now)?.is_none())
    {
        take(connection, &key, claim)?;
        claimed = true;
    }
    Ok(CreatedRecord { record, how, claimed })
}

/// The condition of a query, its parameters, and whether rows still have to be searched for its text.
fn condition(query: &NotificationQuery) -> (String, Vec<Sql>) {
    let (mut sql, mut params) = (String::from("WHERE 1"), Vec::new());
    let given = [
        ("\"threadId\"", query.thread_id.as_deref()),
        ("\"resourceId\"", query.resource_id.as_deref()),
        ("\"agentId\"", query.agent_id.as_deref()),
        ("source", query.source.as_deref()),
    ];
    for (column, value) in given {
        if let Some(value) = value {
            params.push(sql_text(value));
            let _ = write!(sql, " AND {column} = ?{}", params.len());
        }
    }
    for (column, wanted) in [("status", &query.statuses), ("priority", &query.priorities)] {
        if !wanted.is_empty() {
            let numbers: Vec<String> = wanted
                .iter()
                .map(|value| {
                    params.push(sql_text(value));
                    format!("?{}", params.len())
                })
                .collect();
            let _ = write!(sql, " AND {column} IN ({})", numbers.join(", "));
        }
    }
    (sql, params)
}

fn list(connection: &Connection, query: &NotificationQuery) -> Answer<NotificationPage> {
    if query.limit == 0 {
        return Ok(NotificationPage { records: Vec::new(), has_more: false });
    }
    let (mut sql, mut params) = condition(query);
    if let Some(after) = &query.after {
        params.push(Sql::Text(after.updated_at.to_string()));
        params.push(sql_text(&after.id));
        let number = params.len();
        let _ = write!(sql, r#" AND ("updatedAt", id) < (?{}, ?{number})"#, number - 1);
    }
    sql.push_str(r#" ORDER BY "updatedAt" DESC, id DESC"#);
    let limit = query.limit as usize;
    if query.search.is_none() {
        let _ = write!(sql, " LIMIT {}", limit + 1);
    }
    let mut statement = connection.prepare_cached(&format!("{} {sql}", *SELECT))?;
    let mut rows = statement.query(params_from_iter(params))?;
    let mut records = Vec::new();
    while let Some(row) = rows.next()? {
        // A text is searched for here, since SQLite knows the case of ASCII only.
        let Some(record) = read(row)?.filter(|record| rules::found(query.search.as_deref(), record)) else { continue };
        if records.len() == limit {
            return Ok(NotificationPage { records, has_more: true });
        }
        records.push(record);
    }
    Ok(NotificationPage { records, has_more: false })
}

/// What is due: those due for delivery and those due for a summary, each in the order of an index, then the first of
/// both. Records due at the same moment come in the order in which they were stored.
fn due(connection: &Connection, query: &DueQuery) -> Answer<Vec<NotificationRecord>> {
    let mut params = vec![Sql::Integer(query.now.as_millis()), Sql::Text(query.now.to_string())];
    let mut filter = String::from(FREE);
    for (column, value) in [("\"agentId\"", &query.agent_id), ("\"resourceId\"", &query.resource_id)] {
        if let Some(value) = value {
            params.push(sql_text(value));
            let _ = write!(filter, " AND n.{column} = ?{}", params.len());
        }
    }
    let of = |column: &str| {
        format!(
            "SELECT * FROM (SELECT n.rowid FROM {TABLE} n WHERE n.status = 'pending' AND n.\"{column}\" <= ?2 AND {filter}
             ORDER BY n.\"{column}\" LIMIT {})",
            query.limit
        )
    };
    let condition = format!("WHERE rowid IN ({} UNION {})", of("deliverAt"), of("summaryAt"));
    let mut due = select(connection, &condition, &params)?;
    due.sort_by(rules::due_order);
    due.truncate(query.limit as usize);
    Ok(due)
}

fn next_due_at(connection: &Connection, now: Timestamp) -> Answer<Option<Timestamp>> {
    let of = |column: &str| {
        format!(
            "SELECT * FROM (SELECT n.\"{column}\" AS at FROM {TABLE} n
             WHERE n.status = 'pending' AND n.\"{column}\" > '' AND {FREE} ORDER BY n.\"{column}\" LIMIT 1)"
        )
    };
    let sql = format!("SELECT min(at) FROM ({} UNION ALL {})", of("deliverAt"), of("summaryAt"));
    let due = connection.prepare_cached(&sql)?.query_row([now.as_millis()], |row| codec::timestamp(row, 0))?;
    let claim: Option<i64> = connection
        .prepare_cached("SELECT min(until) FROM bugle_notification_claims WHERE until > ?1")?
        .query_row([now.as_millis()], |row| row.get(0))?;
    Ok(due.into_iter().chain(claim.map(Timestamp::from_millis)).min())
}

fn update(connection: &Connection, key: &RecordKey, change: &RecordChange) -> Answer<Option<NotificationRecord>> {
    let Some(mut record) = get(connection, key)? else { return Err(rules::unknown(&key.id).into()) };
    let holder = match &change.if_claimed {
        Some(_) => holder(connection, key, change.now)?,
        None => None,
    };
    if !rules::holds(&record, change, holder.as_deref()) {
        return Ok(None);
    }
    rules::apply(&mut record, change);
    save(connection, &record)?;
    if let Some(token) = change.if_claimed.as_deref().filter(|_| change.release) {
        give_up(connection, key, token)?;
    }
    Ok(Some(record))
}

/// What is the thread's goes with it; what another resource has under the same id stays (NOTIF-114).
pub(super) fn delete_thread(connection: &Connection, thread: &str, owner: &str) -> Answer<()> {
    let sql = format!(r#"DELETE FROM {TABLE} WHERE "threadId" = ?1 AND {OWN}"#);
    connection.prepare_cached(&sql)?.execute([thread, owner])?;
    connection
        .prepare_cached(
            r#"DELETE FROM bugle_notification_claims WHERE thread = ?1 AND NOT EXISTS (SELECT 1
               FROM mastra_notifications n WHERE n."threadId" = ?1 AND n.id = bugle_notification_claims.id)"#,
        )?
        .execute([thread])?;
    Ok(())
}

pub(super) fn transfer(connection: &Connection, thread: &str, owner: &str, resource: &str) -> Answer<()> {
    let sql = format!(r#"UPDATE {TABLE} SET "resourceId" = ?3 WHERE "threadId" = ?1 AND {OWN}"#);
    connection.prepare_cached(&sql)?.execute([thread, owner, resource])?;
    Ok(())
}

/// The signals of these records are gone (ruling 33).
pub(super) fn undeliver(
    connection: &Connection,
    thread: &str,
    removed: &[MessageId],
    now: Timestamp,
    due: bool,
) -> Answer<()> {
    for removed in removed.chunks(VARIABLES) {
        let places: Vec<String> = (2..removed.len() + 2).map(|number| format!("?{number}")).collect();
        let condition = format!(r#"WHERE "threadId" = ?1 AND "deliveredSignalId" IN ({})"#, places.join(", "));
        let params: Vec<Sql> = [sql_text(thread)].into_iter().chain(removed.iter().map(|id| sql_text(id))).collect();
        for mut record in select(connection, &condition, &params)? {
            rules::undeliver(&mut record, now, due);
            save(connection, &record)?;
        }
    }
    Ok(())
}

#[async_trait]
impl NotificationStore for LibSql {
    async fn create(&self, new: NewRecord) -> Result<CreatedRecord, StorageError> {
        self.write(move |connection| create(connection, &new)).await
    }

    async fn get(&self, thread_id: &str, id: &str) -> Result<Option<NotificationRecord>, StorageError> {
        let key = RecordKey { thread_id: thread_id.to_owned(), id: id.to_owned() };
        self.read(move |connection| get(connection, &key)).await
    }

    async fn list(&self, query: &NotificationQuery) -> Result<NotificationPage, StorageError> {
        let query = query.clone();
        self.read(move |connection| list(connection, &query)).await
    }

    async fn list_due(&self, query: &DueQuery) -> Result<Vec<NotificationRecord>, StorageError> {
        let query = query.clone();
        self.read(move |connection| due(connection, &query)).await
    }

    async fn update(&self, key: &RecordKey, change: RecordChange) -> Result<Option<NotificationRecord>, StorageError> {
        let key = key.clone();
        self.write(move |connection| update(connection, &key, &change)).await
    }

    async fn update_all(
        &self,
        keys: &[RecordKey],
        change: RecordChange,
    ) -> Result<Vec<NotificationRecord>, StorageError> {
        let keys = keys.to_vec();
        self.write(move |connection| {
            let mut changed = Vec::new();
            for key in &keys {
                if get(connection, key)?.is_some() {
                    changed.extend(update(connection, key, &change)?);
                }
            }
            Ok(changed)
        })
        .await
    }

    async fn update_status(
        &self,
        thread_id: &str,
        ids: &[String],
        status: &str,
        now: Timestamp,
    ) -> Result<Vec<NotificationRecord>, StorageError> {
        let mut seen = std::collections::HashSet::new();
        let keys: Vec<RecordKey> = ids
            .iter()
            .filter(|id| seen.insert(id.as_str()))
            .map(|id| RecordKey { thread_id: thread_id.to_owned(), id: id.clone() })
            .collect();
        let status = status.to_owned();
        self.write(move |connection| {
            let mut changed = Vec::new();
            for key in &keys {
                let Some(mut record) = get(connection, key)? else { continue };
                rules::set_status(&mut record, &status, now);
                record.updated_at = now.max(record.updated_at);
                save(connection, &record)?;
                changed.push(record);
            }
            Ok(changed)
        })
        .await
    }

    async fn claim(&self, keys: &[RecordKey], claim: &RecordClaim) -> Result<Vec<NotificationRecord>, StorageError> {
        let (keys, claim) = (keys.to_vec(), claim.clone());
        self.write(move |connection| {
            let mut claimed = Vec::new();
            for key in &keys {
                if holder(connection, key, claim.now)?.is_some() {
                    continue;
                }
                let Some(record) = get(connection, key)? else { continue };
                if matches!(record.status.as_str(), "pending" | "delivered") {
                    take(connection, key, &claim)?;
                    claimed.push(record);
                }
            }
            Ok(claimed)
        })
        .await
    }

    async fn claim_due(&self, query: &DueQuery, claim: &RecordClaim) -> Result<Vec<ClaimedRecord>, StorageError> {
        let (query, claim) = (query.clone(), claim.clone());
        self.write(move |connection| {
            // A claim that has run out matters only through what it intended, and only while its record is pending.
            connection
                .prepare_cached(
                    r#"DELETE FROM bugle_notification_claims WHERE until <= ?1 AND NOT EXISTS (SELECT 1
                       FROM mastra_notifications n WHERE n."threadId" = thread AND n.id = bugle_notification_claims.id
                       AND n.status = 'pending')"#,
                )?
                .execute([claim.now.as_millis()])?;
            let mut claimed = Vec::new();
            for record in due(connection, &query)? {
                let intended = take(connection, &record.key(), &claim)?;
                claimed.push(ClaimedRecord { record, intended });
            }
            Ok(claimed)
        })
        .await
    }

    async fn intend(&self, keys: &[RecordKey], token: &str, signal: &MessageId) -> Result<usize, StorageError> {
        let (keys, token, signal) = (keys.to_vec(), token.to_owned(), signal.to_string());
        self.write(move |connection| {
            let mut statement = connection.prepare_cached(
                "UPDATE bugle_notification_claims SET intended = ?4 WHERE thread = ?1 AND id = ?2 AND token = ?3",
            )?;
            let mut held = 0;
            for key in &keys {
                held += statement.execute([&key.thread_id, &key.id, &token, &signal])?;
            }
            Ok(held)
        })
        .await
    }

    async fn renew(&self, keys: &[RecordKey], token: &str, until: Timestamp) -> Result<usize, StorageError> {
        let (keys, token) = (keys.to_vec(), token.to_owned());
        self.write(move |connection| {
            let mut statement = connection.prepare_cached(
                "UPDATE bugle_notification_claims SET until = ?4 WHERE thread = ?1 AND id = ?2 AND token = ?3",
            )?;
            let mut held = 0;
            for key in &keys {
                held += statement.execute(params![key.thread_id, key.id, token, until.as_millis()])?;
            }
            Ok(held)
        })
        .await
    }

    async fn release(&self, keys: &[RecordKey], token: &str) -> Result<(), StorageError> {
        let (keys, token) = (keys.to_vec(), token.to_owned());
        self.write(move |connection| keys.iter().try_for_each(|key| give_up(connection, key, &token))).await
    }

    async fn next_due_at(&self, now: Timestamp) -> Result<Option<Timestamp>, StorageError> {
        self.read(move |connection| next_due_at(connection, now)).await
    }

    async fn count(&self, query: &NotificationQuery) -> Result<usize, StorageError> {
        let query = NotificationQuery { after: None, ..query.clone() };
        self.read(move |connection| {
            let (sql, params) = condition(&query);
            if query.search.is_some() {
                let found = select(connection, &sql, &params)?;
                return Ok(found.iter().filter(|record| rules::found(query.search.as_deref(), record)).count());
            }
            let sql = format!("SELECT count(*) FROM {TABLE} {sql}");
            let count: i64 = connection.prepare_cached(&sql)?.query_row(params_from_iter(params), |row| row.get(0))?;
            Ok(usize::try_from(count).unwrap_or_default())
        })
        .await
    }

    async fn prune(&self, before: Timestamp, statuses: &[String]) -> Result<usize, StorageError> {
        let query = NotificationQuery { statuses: statuses.to_vec(), ..NotificationQuery::all() };
        self.write(move |connection| {
            let (sql, mut params) = condition(&query);
            params.push(Sql::Text(before.to_string()));
            let sql = format!("DELETE FROM {TABLE} {sql} AND \"createdAt\" < ?{}", params.len());
            Ok(connection.prepare_cached(&sql)?.execute(params_from_iter(params))?)
        })
        .await
    }

    async fn clear(&self) -> Result<(), StorageError> {
        self.write(|connection| {
            Ok(connection.execute_batch("DELETE FROM mastra_notifications; DELETE FROM bugle_notification_claims")?)
        })
        .await
    }
}
