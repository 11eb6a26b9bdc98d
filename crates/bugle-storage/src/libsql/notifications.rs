//! Notification records in SQL (STO-053). Create, list and update; what they mean is decided elsewhere.

use std::{fmt::Write as _, sync::LazyLock};

use bugle::{
    storage::{NotificationQuery, NotificationRecord, StorageError},
    time::Timestamp,
};
use rusqlite::{Connection, Row, params_from_iter, types::Value as Sql};

use super::{codec, error::Answer};

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

pub(super) fn create(connection: &Connection, record: &NotificationRecord) -> Answer<()> {
    if connection.prepare_cached(&INSERT)?.execute(params_from_iter(values(record)))? == 0 {
        return Err(StorageError::Exists { what: "notification", id: record.id.clone() }.into());
    }
    Ok(())
}

pub(super) fn update(connection: &Connection, record: &NotificationRecord) -> Answer<bool> {
    Ok(connection.prepare_cached(&UPDATE)?.execute(params_from_iter(values(record)))? > 0)
}

pub(super) fn list(connection: &Connection, query: &NotificationQuery) -> Answer<Vec<NotificationRecord>> {
    let mut sql = format!(r#"{} WHERE "threadId" = ?1"#, *SELECT);
    let mut params = vec![query.thread.thread_id.to_string()];
    let given = [
        ("\"resourceId\"", query.thread.resource_id.as_deref()),
        ("priority", query.priority.as_deref()),
        ("source", query.source.as_deref()),
    ];
    for (column, value) in given {
        if let Some(value) = value {
            params.push(value.to_owned());
            let _ = write!(sql, " AND {column} = ?{}", params.len());
        }
    }
    if !query.statuses.is_empty() {
        let numbers: Vec<String> = query
            .statuses
            .iter()
            .map(|status| {
                params.push(status.clone());
                format!("?{}", params.len())
            })
            .collect();
        let _ = write!(sql, " AND status IN ({})", numbers.join(", "));
    }
    let _ = write!(sql, r#" ORDER BY "createdAt" DESC, id DESC LIMIT {}"#, query.limit);
    let mut statement = connection.prepare_cached(&sql)?;
    let rows = statement.query_map(params_from_iter(params), read)?;
    Ok(rows.filter_map(Result::transpose).collect::<rusqlite::Result<_>>()?)
}
