//! Files of the reference, old files, and rows that do not parse.

use std::collections::BTreeMap;

use bugle::{
    id::ThreadKey,
    message::MessageContent,
    storage::{MessageQuery, NotificationQuery, NotificationStore, Storage, ThreadQuery, ThreadUpdate},
};
use bugle_storage::libsql::LibSql;
use serde_json::{Value, json};

use crate::support::{fixture, golden, key, message, open, raw};

/// The rows of a table as the fixture tells them.
fn rows(table: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(fixture(&format!("libsql/{table}.json"))).unwrap();
    let Value::Array(rows) = serde_json::from_str::<Value>(&text).unwrap()["rows"].take() else { panic!("no rows") };
    assert!(!rows.is_empty());
    rows
}

/// Without keys whose value is null: a column of a table is an absent field of a record.
fn without_nulls(row: &Value) -> Value {
    let fields = row.as_object().unwrap().iter().filter(|(_, value)| !value.is_null());
    Value::Object(fields.map(|(key, value)| (key.clone(), value.clone())).collect())
}

async fn every_row_is_read(store: &LibSql) {
    let threads = rows("mastra_threads");
    let listed = store.list_threads(ThreadQuery { per_page: None, ..ThreadQuery::default() }).await.unwrap();
    let listed: BTreeMap<String, Value> =
        listed.items.iter().map(|thread| (thread.id.clone(), serde_json::to_value(thread).unwrap())).collect();
    assert_eq!(listed.len(), threads.len());
    for row in &threads {
        assert_eq!(&listed[row["id"].as_str().unwrap()], row);
    }

    let mut by_thread: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for row in rows("mastra_messages") {
        by_thread.entry(row["thread_id"].as_str().unwrap().to_owned()).or_default().push(row);
    }
    for (thread, mut expected) in by_thread {
        expected.sort_by_key(|row| (row["createdAt"].to_string(), row["id"].to_string()));
        let read = store.recent_messages(&ThreadKey::unowned(thread.as_str()), u32::MAX).await.unwrap();
        assert_eq!(read.len(), expected.len(), "{thread}");
        for (read, row) in read.iter().zip(&expected) {
            let mut read = serde_json::to_value(read).unwrap();
            let content = read["content"].take();
            let stored: Value = serde_json::from_str(row["content"].as_str().unwrap()).unwrap();
            assert_eq!(content, stored, "{thread}");
            let expected = json!({
                "id": row["id"], "threadId": row["thread_id"], "role": row["role"], "type": row["type"],
                "createdAt": row["createdAt"], "resourceId": row["resourceId"], "content": null,
            });
            assert_eq!(read, expected, "{thread}");
        }
    }

    for row in rows("mastra_resources") {
        let read = store.get_resource(row["id"].as_str().unwrap()).await.unwrap().unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), row);
    }

    for row in rows("mastra_notifications") {
        let query = NotificationQuery::of_thread(row["threadId"].as_str().unwrap());
        let read = NotificationStore::list(store, &query).await.unwrap().records;
        let read = read.iter().find(|record| record.id == row["id"].as_str().unwrap()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), without_nulls(&row));
    }
}

#[tokio::test]
async fn sto_7_1_notif_001_notif_112_every_row_of_a_file_of_the_reference_is_read() {
    let (_directory, path) = golden();
    let before = std::fs::read(&path).unwrap();
    let store = LibSql::open(&format!("file:{}?mode=ro", path.display())).unwrap();
    every_row_is_read(&store).await;
    store.close().await;
    assert_eq!(std::fs::read(&path).unwrap(), before, "a read-only file is not written");
    every_row_is_read(&open(&path)).await;
}

#[tokio::test]
async fn sto_7_2_a_file_of_the_reference_goes_on() {
    let (_directory, path) = golden();
    let store = open(&path);
    let thread = ThreadKey::new("user-1", "thread-plain");
    let before = store.recent_messages(&thread, u32::MAX).await.unwrap();
    let mut new = message("thread-plain", "new");
    new.created_at = bugle::time::Timestamp::now().max(before.last().unwrap().created_at);
    new.resource_id = Some("user-1".into());
    new.kind = Some("v2".into());
    store.save_messages(vec![new.clone()]).await.unwrap();
    store.close().await;
    let store = open(&path);
    let after = store.recent_messages(&thread, u32::MAX).await.unwrap();
    assert_eq!(after, [before, vec![new]].concat());
    // What the reference wrote as JSONB stays JSONB, and its columns are what it expects.
    let update = ThreadUpdate { id: "thread-plain".into(), title: Some("New".into()), ..ThreadUpdate::default() };
    store.update_thread(update).await.unwrap();
    let types: String = raw(&path)
        .query_row(
            "SELECT typeof(metadata) || ' ' || typeof(title) || ' ' || length(\"createdAt\") || ' ' || length(\"updatedAt\")
             FROM mastra_threads WHERE id = 'thread-plain'",
            (),
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(types, "blob text 24 24");
}

#[tokio::test]
async fn mem_019_a_parked_run_that_only_mentions_a_thread_stays() {
    let (_directory, path) = golden();
    let store = open(&path);
    raw(&path)
        .execute(
            "UPDATE mastra_workflow_snapshot SET snapshot =
               jsonb_set(snapshot, '$.value.memoryInfo', jsonb('{\"threadId\":\"thread-plain\"}')) WHERE run_id = 'run-0044'",
            (),
        )
        .unwrap();
    assert!(store.delete_thread("thread-plain").await.unwrap());
    assert!(
        store.parked_run(&"run-0044".into()).await.unwrap().is_some(),
        "what an application says is not whose it is"
    );
}

#[tokio::test]
async fn mem_019_deletion_of_a_thread_leaves_nothing_of_it() {
    let (_directory, path) = golden();
    let store = open(&path);
    for thread in ["thread-plain", "thread-approval"] {
        assert!(store.delete_thread(thread).await.unwrap());
    }
    let connection = raw(&path);
    for (sql, left) in [
        ("SELECT count(*) FROM mastra_messages WHERE thread_id IN ('thread-plain', 'thread-approval')", 0),
        (r#"SELECT count(*) FROM mastra_thread_state WHERE "threadId" = 'thread-plain'"#, 0),
        (r#"SELECT count(*) FROM mastra_notifications WHERE "threadId" = 'thread-plain'"#, 0),
        ("SELECT count(*) FROM mastra_background_tasks WHERE thread_id = 'thread-plain'", 0),
        ("SELECT count(*) FROM mastra_workflow_snapshot WHERE run_id = 'run-0039'", 0),
        ("SELECT count(*) FROM mastra_workflow_snapshot WHERE run_id IN ('run-0044', 'run-0049')", 4),
        ("SELECT count(*) FROM mastra_schedules WHERE id = 'sched-agent'", 0),
        ("SELECT count(*) FROM mastra_schedule_triggers WHERE schedule_id = 'sched-agent'", 0),
        ("SELECT count(*) FROM mastra_schedules WHERE id = 'sched-wf'", 1),
        ("SELECT count(*) FROM mastra_threads WHERE id = 'thread-clone'", 1),
    ] {
        let count: i64 = connection.query_row(sql, (), |row| row.get(0)).unwrap();
        assert_eq!(count, left, "{sql}");
    }
}

#[tokio::test]
async fn sto_011_sto_7_7_json_columns_may_be_text_or_blob_and_bad_ones_hide_nothing() {
    let (_directory, path) = golden();
    let store = open(&path);
    raw(&path)
        .execute_batch(
            r#"UPDATE mastra_threads SET metadata = '{"n": 7}' WHERE id = 'thread-wm';
               UPDATE mastra_threads SET metadata = jsonb('{"n": 7}') WHERE id = 'thread-file';
               UPDATE mastra_threads SET metadata = '{broken' WHERE id = 'thread-error';
               UPDATE mastra_threads SET metadata = x'0bff' WHERE id = 'thread-abort';
               UPDATE mastra_threads SET metadata = 12.5 WHERE id = 'thread-denied';
               UPDATE mastra_threads SET "createdAt" = 'yesterday' WHERE id = 'thread-client';
               UPDATE mastra_notifications SET payload = '[1]', attributes = 'x', metadata = jsonb('{"m": 1}') WHERE id = 'note-1';
               INSERT INTO mastra_workflow_snapshot (workflow_name, run_id, snapshot) VALUES ('w', 'bad', '{broken');
               UPDATE mastra_messages SET content = 'plain old text' WHERE id = 'message-0001';
               UPDATE mastra_messages SET role = 'robot' WHERE id = 'id-0001';
               UPDATE mastra_messages SET content = '{"format":2,"parts":[{"type":"text","text":"a\u0000b\ud83dc"}]}' WHERE id = 'message-0003';"#,
        )
        .unwrap();
    let all = ThreadQuery { per_page: None, ..ThreadQuery::default() };
    let listed = store.list_threads(all.clone()).await.unwrap();
    let count = rows("mastra_threads").len();
    assert_eq!(listed.items.len(), count - 1, "STO-012: only the row without a time is left out");
    for (id, metadata) in [
        ("thread-wm", json!({"n": 7})),
        ("thread-file", json!({"n": 7})),
        ("thread-error", Value::Null),
        ("thread-abort", Value::Null),
    ] {
        let thread = listed.items.iter().find(|thread| thread.id == id).unwrap();
        assert_eq!(json!(thread.metadata), metadata, "{id}");
    }
    let filtered = ThreadQuery { metadata: json!({"n": 7}).as_object().unwrap().clone(), ..all };
    assert_eq!(store.list_threads(filtered).await.unwrap().total, 2, "MEM-017: text and blob are filtered alike");

    let query = MessageQuery {
        thread_ids: vec!["thread-plain".into()],
        per_page: Some(1),
        hide_signal_types: vec!["reactive".into()],
        metadata: json!({"none": null}).as_object().unwrap().clone(),
        ..MessageQuery::default()
    };
    assert!(store.list_messages(query).await.unwrap().total >= 4, "ruling 40: filters are guarded");
    let messages = store.recent_messages(&ThreadKey::unowned("thread-plain"), u32::MAX).await.unwrap();
    let by_id = |id: &str| messages.iter().find(|message| message.id.as_str() == id);
    assert_eq!(by_id("message-0001").unwrap().content, MessageContent::from_stored("plain old text"), "MEM-042");
    assert!(by_id("id-0001").is_none(), "ruling 40: the row is left out");
    assert_eq!(by_id("message-0003").unwrap().joined_text(), "a\0b\u{fffd}c", "R39");

    let query = NotificationQuery::of_thread("thread-plain");
    let notes = NotificationStore::list(&store, &query).await.unwrap().records;
    let note = notes.iter().find(|note| note.id == "note-1").unwrap();
    assert_eq!((&note.payload, &note.attributes), (&Some(json!([1])), &None));
    assert_eq!(note.metadata, json!({"m": 1}).as_object().cloned());

    let update = ThreadUpdate { id: "thread-error".into(), title: Some("t".into()), ..ThreadUpdate::default() };
    store.update_thread(update).await.unwrap();
    assert!(store.delete_thread("thread-abort").await.unwrap(), "MEM-019: a bad snapshot does not stop a deletion");
}

#[tokio::test]
async fn sto_7_8_missing_columns_of_old_files_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("old.db");
    raw(&path)
        .execute_batch(
            r#"CREATE TABLE mastra_threads ("id" TEXT NOT NULL PRIMARY KEY, "resourceId" TEXT NOT NULL, "title" TEXT NOT NULL,
                 "metadata" TEXT, "createdAt" TEXT NOT NULL, "updatedAt" TEXT NOT NULL);
               CREATE TABLE mastra_messages ("id" TEXT NOT NULL PRIMARY KEY, "thread_id" TEXT NOT NULL, "content" TEXT NOT NULL,
                 "role" TEXT NOT NULL, "type" TEXT NOT NULL, "createdAt" TEXT NOT NULL);
               CREATE TABLE mastra_background_tasks ("id" TEXT NOT NULL PRIMARY KEY, "status" TEXT NOT NULL);
               CREATE TABLE mastra_other ("x" TEXT);
               INSERT INTO mastra_threads VALUES ('t1', 'ann', '', NULL, '2026-01-01T00:00:00Z', '2026-01-01T00:00:00.000Z');
               INSERT INTO mastra_messages VALUES ('m1', 't1', '{"format":2,"parts":[]}', 'user', 'v2', '2026-01-01T00:00:00.000Z');
               INSERT INTO mastra_background_tasks VALUES ('b1', 'done');"#,
        )
        .unwrap();
    let store = open(&path);
    store.save_messages(vec![message("t1", "m2")]).await.unwrap();
    let found = store.recent_messages(&ThreadKey::unowned("t1"), 9).await.unwrap();
    let resources: Vec<_> = found.iter().map(|message| message.resource_id.as_deref()).collect();
    assert_eq!(resources, [None, Some("ann")]);
    // A row from before the column may be given its resource (MEM-044 keeps it from others).
    store.save_messages(vec![message("t1", "m1")]).await.unwrap();
    assert_eq!(store.recent_messages(&key("t1"), 9).await.unwrap().len(), 2);
    let connection = raw(&path);
    let columns: i64 = connection
        .query_row("SELECT count(*) FROM pragma_table_info('mastra_background_tasks')", (), |row| row.get(0))
        .unwrap();
    assert_eq!(columns, 19);
    let kept: (String, i64) = connection
        .query_row("SELECT status, (SELECT count(*) FROM mastra_other) FROM mastra_background_tasks", (), |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .unwrap();
    assert_eq!(kept, ("done".into(), 0), "STO-031: nothing is dropped");
}
