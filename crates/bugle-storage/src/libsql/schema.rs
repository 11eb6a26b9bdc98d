//! Making and completing the tables (STO-030, STO-031): one catalog read on a file that has them all.

use std::collections::{HashMap, HashSet};

use rusqlite::Connection;

const SHARED: &str = include_str!("shared.sql");
const OWN: &str = include_str!("own.sql");

/// Name, table, and what is indexed.
const INDEXES: &[(&str, &str)] = &[
    ("idx_messages_thread_created_at", "ON mastra_messages (thread_id, \"createdAt\")"),
    ("idx_messages_thread_resource_created_at", "ON mastra_messages (thread_id, \"resourceId\", \"createdAt\")"),
    ("idx_notifications_thread_status_updated", "ON mastra_notifications (\"threadId\", \"status\", \"updatedAt\")"),
    (
        "idx_notifications_coalescing",
        "ON mastra_notifications (\"threadId\", \"source\", \"kind\", \"status\", \"agentId\", \"resourceId\", \"dedupeKey\", \"coalesceKey\")",
    ),
    ("idx_notifications_due", "ON mastra_notifications (\"status\", \"deliverAt\", \"summaryAt\")"),
    ("idx_om_lookup_key", "ON mastra_observational_memory (\"lookupKey\")"),
    ("idx_schedules_status_next_fire", "ON mastra_schedules (\"status\", \"next_fire_at\")"),
    ("idx_schedule_triggers_schedule_fire", "ON mastra_schedule_triggers (\"schedule_id\", \"actual_fire_at\")"),
    ("idx_channel_installations_platform_agent", "ON mastra_channel_installations (\"platform\", \"agentId\")"),
    ("idx_bugle_bg_thread", "ON mastra_background_tasks (thread_id, status)"),
    ("idx_bugle_bg_status", "ON mastra_background_tasks (status, \"createdAt\")"),
    (
        "idx_bugle_snapshot_owner",
        "ON mastra_workflow_snapshot (CASE WHEN json_valid(snapshot, 10) THEN json_extract(snapshot, '$.status') END, \"resourceId\")",
    ),
    ("idx_bugle_threads_resource", "ON mastra_threads (\"resourceId\", \"createdAt\", id)"),
    ("idx_bugle_inbox_waiting", "ON bugle_inbox (resource, thread, position) WHERE state = 0"),
    ("idx_bugle_notifications_id", "ON mastra_notifications (\"threadId\", id)"),
    (
        "idx_bugle_notifications_summary",
        "ON mastra_notifications (status, \"summaryAt\") WHERE \"summaryAt\" IS NOT NULL",
    ),
    ("idx_bugle_notifications_resource", "ON mastra_notifications (\"resourceId\", \"updatedAt\")"),
    ("idx_bugle_subscriptions_thread", "ON bugle_subscriptions (thread)"),
    ("idx_bugle_runs_thread", "ON bugle_runs (thread, resource)"),
];

/// Indexes of ours that earlier versions made and that cost more than they gave.
const DROPPED: &[&str] = &["idx_bugle_messages_order", "idx_bugle_snapshot_status"];

const UNIQUE_INDEXES: &[(&str, &str)] = &[
    ("idx_channel_installations_webhook", "ON mastra_channel_installations (\"webhookId\")"),
    ("idx_bugle_subscriptions_key", "ON bugle_subscriptions (provider_id, external, agent_id, resource, thread)"),
];

struct Table {
    name: &'static str,
    ddl: &'static str,
    /// Name and declaration.
    columns: Vec<(&'static str, &'static str)>,
}

fn tables() -> Vec<Table> {
    let mut found = Vec::new();
    for source in [SHARED, OWN] {
        for part in source.split_inclusive(';') {
            let Some(start) = part.find("CREATE TABLE IF NOT EXISTS ") else { continue };
            let ddl = &part[start..];
            let name = ddl["CREATE TABLE IF NOT EXISTS ".len()..].split_whitespace().next().unwrap_or_default();
            let columns = ddl
                .lines()
                .filter_map(|line| {
                    let line = line.trim().trim_end_matches(',');
                    let (column, declaration) = line.strip_prefix('"')?.split_once('"')?;
                    Some((column, declaration.trim()))
                })
                .collect();
            found.push(Table { name, ddl, columns });
        }
    }
    found
}

/// What a file lacks.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Missing {
    statements: Vec<String>,
}

impl Missing {
    /// Nothing is missing.
    pub(super) fn is_empty(&self) -> bool {
        self.statements.is_empty()
    }

    /// A table lacks columns.
    pub(super) fn needs_columns(&self) -> bool {
        self.statements.iter().any(|statement| statement.starts_with("ALTER"))
    }

    /// Makes missing tables as empty temporary ones of this connection.
    pub(super) fn stand_in(&self, connection: &Connection) -> rusqlite::Result<()> {
        let tables = self.statements.iter().filter_map(|statement| statement.strip_prefix("CREATE TABLE"));
        tables.into_iter().try_for_each(|rest| connection.execute_batch(&format!("CREATE TEMP TABLE{rest}")))
    }
}

/// Reads the catalog and tells what is missing.
pub(super) fn missing(connection: &Connection) -> rusqlite::Result<Missing> {
    let mut columns: HashMap<String, HashSet<String>> = HashMap::new();
    let mut indexes: HashSet<String> = HashSet::new();
    let mut catalog = connection.prepare(
        "SELECT m.type, m.name, p.name FROM sqlite_master m LEFT JOIN pragma_table_info(m.name) p ON m.type = 'table'
         WHERE m.type IN ('table', 'index') AND (m.name LIKE 'mastra%' OR m.name LIKE 'bugle%' OR m.name LIKE 'idx%')",
    )?;
    let mut rows = catalog.query(())?;
    while let Some(row) = rows.next()? {
        let (kind, name): (String, String) = (row.get(0)?, row.get(1)?);
        if kind == "index" {
            indexes.insert(name);
        } else {
            columns.entry(name).or_default().extend(row.get::<_, Option<String>>(2)?);
        }
    }
    let mut statements = Vec::new();
    for table in tables() {
        let Some(present) = columns.get(table.name) else {
            statements.push(table.ddl.to_owned());
            continue;
        };
        for (column, declaration) in table.columns.iter().filter(|(column, _)| !present.contains(*column)) {
            statements.push(format!("ALTER TABLE {} ADD COLUMN \"{column}\" {}", table.name, addable(declaration)));
        }
    }
    for (unique, list) in [("", INDEXES), ("UNIQUE ", UNIQUE_INDEXES)] {
        for (name, on) in list.iter().filter(|(name, _)| !indexes.contains(*name)) {
            statements.push(format!("CREATE {unique}INDEX IF NOT EXISTS {name} {on}"));
        }
    }
    let dropped = DROPPED.iter().filter(|name| indexes.contains(**name));
    statements.extend(dropped.map(|name| format!("DROP INDEX IF EXISTS {name}")));
    Ok(Missing { statements })
}

/// A column can be added as NOT NULL only with a default, and never as a key.
fn addable(declaration: &str) -> String {
    let declaration = declaration.replace(" PRIMARY KEY", "");
    if !declaration.contains("NOT NULL") {
        return declaration;
    }
    let default = if declaration.starts_with("TEXT") { "''" } else { "0" };
    format!("{declaration} DEFAULT {default}")
}

/// Makes what is missing in one immediate transaction. Several processes may do so at once; nothing is dropped.
pub(super) fn complete(connection: &Connection) -> rusqlite::Result<()> {
    if missing(connection)?.is_empty() {
        return Ok(());
    }
    connection.execute_batch("BEGIN IMMEDIATE")?;
    // Read again: another process may have made it meanwhile.
    let made = missing(connection)
        .and_then(|missing| missing.statements.iter().try_for_each(|statement| connection.execute_batch(statement)));
    connection.execute_batch(if made.is_ok() { "COMMIT" } else { "ROLLBACK" })?;
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sto_030_init_completes_once_and_then_finds_nothing_missing() {
        let connection = Connection::open_in_memory().unwrap();
        assert!(!missing(&connection).unwrap().is_empty());
        complete(&connection).unwrap();
        assert_eq!(missing(&connection).unwrap(), Missing::default());
        connection.execute_batch("CREATE INDEX idx_bugle_messages_order ON mastra_messages (thread_id)").unwrap();
        complete(&connection).unwrap();
        assert_eq!(missing(&connection).unwrap(), Missing::default(), "what earlier versions made is taken away");
        assert_eq!(tables().len(), 20);
    }
}
