//! The form of what Bugle writes, as the reference and plain SQL see it (STO §1, §2).

use std::collections::BTreeMap;

use bugle::{
    Agent, Bugle,
    memory::MemoryOptions,
    model::ScriptedModel,
    notification::{NewNotification, NotificationOptions},
    storage::Storage,
};
use rusqlite::{Connection, types::Value};
use serde_json::json;

use crate::support::{golden, key, message, open, raw, with_thread};

/// Name, type, NOT NULL, place in the primary key.
type Column = (String, String, bool, i64);

/// The columns of every table, in order of creation.
fn tables(connection: &Connection) -> BTreeMap<String, Vec<Column>> {
    let mut statement = connection
        .prepare(
            r#"SELECT m.name, p.name, p.type, p."notnull", p.pk FROM sqlite_master m, pragma_table_info(m.name) p
               WHERE m.type = 'table' ORDER BY m.name, p.cid"#,
        )
        .unwrap();
    let mut rows = statement.query(()).unwrap();
    let mut tables: BTreeMap<String, Vec<Column>> = BTreeMap::new();
    while let Some(row) = rows.next().unwrap() {
        let column = (row.get(1).unwrap(), row.get(2).unwrap(), row.get(3).unwrap(), row.get(4).unwrap());
        tables.entry(row.get(0).unwrap()).or_default().push(column);
    }
    tables
}

fn one(connection: &Connection, sql: &str) -> Value {
    connection.query_row(sql, (), |row| row.get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

fn text(connection: &Connection, sql: &str) -> String {
    match one(connection, sql) {
        Value::Text(text) => text,
        other => panic!("{sql}: {other:?}"),
    }
}

#[tokio::test]
async fn sto_001_sto_024_a_fresh_file_has_the_references_columns_and_tables_of_our_own_beside_them() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("fresh.db");
    open(&path).close().await;
    let (_directory, golden) = golden();
    let before = tables(&raw(&golden));
    open(&golden).close().await;
    let fresh = tables(&raw(&path));
    let shared: Vec<&str> = fresh.keys().map(String::as_str).filter(|name| !name.starts_with("bugle_")).collect();
    assert_eq!(
        shared,
        [
            "mastra_agent_versions",
            "mastra_agents",
            "mastra_background_tasks",
            "mastra_channel_config",
            "mastra_channel_installations",
            "mastra_messages",
            "mastra_notifications",
            "mastra_observational_memory",
            "mastra_resources",
            "mastra_schedule_triggers",
            "mastra_schedules",
            "mastra_scorers",
            "mastra_thread_state",
            "mastra_threads",
            "mastra_workflow_snapshot",
        ]
    );
    for name in shared {
        assert_eq!(fresh[name], before[name], "{name}");
    }
    // A file of the reference has what it had, column by column, tables that are none of ours included.
    let after = tables(&raw(&golden));
    for (name, columns) in &before {
        assert_eq!(&after[name], columns, "{name}");
    }
    let added: Vec<&String> = after.keys().filter(|name| !before.contains_key(*name)).collect();
    assert!(!added.is_empty() && added.iter().all(|name| name.starts_with("bugle_")), "{added:?}");
}

#[tokio::test]
async fn sto_001_tables_of_others_stay_as_they_are() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    raw(&path)
        .execute_batch("CREATE TABLE mastra_ai_spans (x TEXT); INSERT INTO mastra_ai_spans VALUES ('y');")
        .unwrap();
    let store = open(&path);
    with_thread(&store, "t1").await;
    assert!(store.delete_thread("t1").await.unwrap());
    store.close().await;
    let connection = raw(&path);
    assert_eq!(tables(&connection)["mastra_ai_spans"].len(), 1);
    assert_eq!(text(&connection, "SELECT x FROM mastra_ai_spans"), "y");
}

#[tokio::test]
async fn sto_010_content_and_thread_state_are_text() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let store = open(&path);
    with_thread(&store, "t1").await;
    store.save_messages(vec![message("t1", "m1")]).await.unwrap();
    store.set_thread_state("t1", "task", Some(json!([{"id": "a"}]))).await.unwrap();
    store.close().await;
    let connection = raw(&path);
    assert_eq!(text(&connection, "SELECT typeof(content) FROM mastra_messages"), "text");
    assert_eq!(text(&connection, "SELECT content ->> '$.format' || '' FROM mastra_messages"), "2");
    assert_eq!(text(&connection, "SELECT typeof(value) FROM mastra_thread_state"), "text");
    assert_eq!(text(&connection, "SELECT value FROM mastra_thread_state"), r#"[{"id":"a"}]"#);
}

#[tokio::test]
async fn sto_013_sto_020_sto_021_what_is_absent_is_null_counts_begin_and_strings_are_json() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let store = open(&path);
    with_thread(&store, "t1").await;
    let agent = Agent::builder("helper")
        .model(std::sync::Arc::new(ScriptedModel::new()))
        .memory(MemoryOptions::last(9))
        .build()
        .unwrap();
    let bugle = Bugle::builder()
        .agent(agent)
        .storage(store.clone())
        .notifications(NotificationOptions::builder().dispatch(false).build())
        .build()
        .await
        .unwrap();
    let note = NewNotification::new(key("t1"), "mail", "new", "a letter").priority("low");
    let note = NewNotification { payload: Some(json!("plain text")), ..note };
    bugle.agent("helper").unwrap().send_notification(note).await.unwrap();

    let connection = raw(&path);
    assert_eq!(text(&connection, "SELECT title || '|' || typeof(metadata) FROM mastra_threads"), "|null");
    let note = |column: &str| one(&connection, &format!("SELECT {column} FROM mastra_notifications"));
    for absent in
        ["\"sourceId\"", "\"dedupeKey\"", "\"coalesceKey\"", "attributes", "metadata", "\"deliveredAt\"", "\"seenAt\""]
    {
        assert_eq!(note(absent), Value::Null, "{absent}");
    }
    assert_eq!((note("\"coalescedCount\""), note("\"deliveryAttempts\"")), (Value::Integer(1), Value::Integer(0)));
    assert_eq!(note("typeof(payload) || ' ' || json(payload)"), Value::Text("blob \"plain text\"".into()));
    let read = store.notifications().unwrap();
    let read = read.list(&bugle::storage::NotificationQuery::of_thread("t1")).await.unwrap().records;
    assert_eq!(read[0].payload, Some(json!("plain text")), "STO-004: the domain is the store's");
}

#[tokio::test]
async fn sto_033_an_agent_without_a_version_is_not_deleted_at_opening() {
    let (_directory, path) = golden();
    raw(&path)
        .execute_batch(
            r#"INSERT INTO mastra_agents (id, status, "createdAt", "updatedAt")
               VALUES ('half-made', 'draft', '2026-01-01T00:00:00.000Z', '2026-01-01T00:00:00.000Z')"#,
        )
        .unwrap();
    open(&path).close().await;
    assert_eq!(text(&raw(&path), "SELECT status FROM mastra_agents WHERE id = 'half-made'"), "draft");
}

#[tokio::test]
async fn mem_121_rows_of_observational_memory_stay_and_go_with_their_thread() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let store = open(&path);
    with_thread(&store, "t1").await;
    let connection = raw(&path);
    let columns = &tables(&connection)["mastra_observational_memory"];
    let needed: Vec<&Column> = columns.iter().filter(|(_, _, not_null, _)| *not_null).collect();
    for (id, thread) in [("o1", "'t1'"), ("o2", "'t2'"), ("o3", "NULL")] {
        let names: Vec<String> = needed.iter().map(|(name, ..)| format!("\"{name}\"")).collect();
        let values: Vec<String> =
            needed.iter().map(|(name, ..)| if name == "id" { format!("'{id}'") } else { "1".into() }).collect();
        let (names, values) = (names.join(", "), values.join(", "));
        let sql =
            format!("INSERT INTO mastra_observational_memory ({names}, \"threadId\") VALUES ({values}, {thread})");
        connection.execute_batch(&sql).unwrap();
    }
    store.save_messages(vec![message("t1", "m1")]).await.unwrap();
    let left =
        || text(&connection, "SELECT group_concat(id) FROM (SELECT id FROM mastra_observational_memory ORDER BY id)");
    assert_eq!(left(), "o1,o2,o3");
    assert!(store.delete_thread("t1").await.unwrap());
    assert_eq!(left(), "o2,o3");
}
