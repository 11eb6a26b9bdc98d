//! What a person reads when the file cannot be used.

use std::time::Duration;

use bugle::storage::{Storage, StorageError};
use bugle_storage::libsql::{LibSql, LibSqlOptions};

use crate::support::{key, message, open, raw, with_thread};

/// The text of an error that is worth trying again, and says so.
fn text<T: std::fmt::Debug>(answer: Result<T, StorageError>) -> String {
    let error = answer.unwrap_err();
    assert!(matches!(error, StorageError::Unavailable { .. }) && error.is_retryable(), "{error:?}");
    error.to_string()
}

#[tokio::test]
async fn a_read_only_file_is_read_and_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let store = open(&path);
    with_thread(&store, "t1").await;
    store.close().await;
    let store = LibSql::open(&format!("file:{}?mode=ro", path.display())).unwrap();
    assert!(store.get_thread("t1").await.unwrap().is_some());
    let refused = text(store.save_messages(vec![message("t1", "m1")]).await);
    assert!(refused.contains("the database is read-only; give the process write permission"), "{refused}");
}

#[test]
fn what_is_no_database_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notes.txt");
    std::fs::write(&path, "these are my notes\n".repeat(500)).unwrap();
    let refused = text(LibSql::open(path.to_str().unwrap()));
    assert!(refused.contains("notes.txt: this file is not a SQLite database"), "{refused}");
    let refused = text(LibSql::open(directory.path().to_str().unwrap()));
    assert!(refused.contains("this is a directory; name a file in it"), "{refused}");
    let refused = text(LibSql::open(directory.path().join("none/a.db").to_str().unwrap()));
    assert!(refused.contains("none does not exist; create it or name another file"), "{refused}");
}

#[tokio::test]
async fn a_damaged_file_is_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let store = open(&path);
    with_thread(&store, "t1").await;
    store.close().await;
    raw(&path).execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[4096..].fill(0xa5);
    std::fs::write(&path, bytes).unwrap();
    let refused = text(LibSql::open(path.to_str().unwrap()));
    assert!(refused.contains("the database file is damaged; stop all processes that use it"), "{refused}");
}

#[tokio::test]
async fn a_full_disk_fails_what_does_not_fit_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let store = open(&path);
    with_thread(&store, "t1").await;
    let pages: u32 = raw(&path).query_row("PRAGMA page_count", (), |row| row.get(0)).unwrap();
    store.close().await;
    let store = LibSqlOptions::builder().url(path.to_str().unwrap()).pages_max(pages + 20).build().open().unwrap();
    let mut huge = message("t1", "huge");
    huge.content.content = Some("x".repeat(200 * 4096));
    // Asked for together, so that they share a transaction until one of them does not fit.
    let saves = (0..10).map(|n| match n {
        5 => store.save_messages(vec![huge.clone()]),
        n => store.save_messages(vec![message("t1", &format!("m{n}"))]),
    });
    let answers = futures::future::join_all(saves).await;
    for (n, answer) in answers.into_iter().enumerate() {
        if n == 5 {
            let refused = text(answer);
            assert!(refused.contains("there is no room left on the disk"), "{refused}");
        } else {
            answer.unwrap();
        }
    }
    assert_eq!(store.recent_messages(&key("t1"), 99).await.unwrap().len(), 9);
    store.save_messages(vec![message("t1", "after")]).await.unwrap();
}

#[tokio::test]
async fn a_write_lock_held_too_long_is_named_and_nothing_is_lost_by_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let options = LibSqlOptions::builder().url(path.to_str().unwrap()).busy_timeout(Duration::from_millis(20)).build();
    let store = options.open().unwrap();
    with_thread(&store, "t1").await;
    let other = raw(&path);
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let refused = text(store.save_messages(vec![message("t1", "m1")]).await);
    assert!(refused.contains("another process has held the write lock for too long; try again"), "{refused}");
    assert!(store.get_thread("t1").await.unwrap().is_some(), "readers do not wait for writers");
    other.execute_batch("COMMIT").unwrap();
    store.save_messages(vec![message("t1", "m1")]).await.unwrap();
}

#[test]
fn urls_of_other_stores_are_refused_with_what_to_use() {
    for (url, says) in [
        ("postgres://ann:secret@db/x", "this build has no PostgreSQL store yet; use file:PATH"),
        ("mongodb+srv://db/x", "this build has no MongoDB store yet; use file:PATH"),
        ("libsql://x.turso.io?authToken=secret", "this build has no remote libSQL store yet; use file:PATH"),
        ("redis://x", "unknown kind of storage URL \"redis:\"; use file:PATH"),
        ("", "the storage URL is empty; use file:PATH"),
    ] {
        let error = bugle_storage::open(url).unwrap_err();
        assert!(matches!(error, StorageError::Invalid(_)));
        let text = error.to_string();
        assert!(text.contains(says) && !text.contains("secret"), "{text}");
    }
    assert_eq!(bugle_storage::open("memory:").unwrap().describe(), "memory:");
    let directory = tempfile::tempdir().unwrap();
    for url in [format!("file:{}/a.db", directory.path().display()), format!("{}/b.db", directory.path().display())] {
        let store = bugle_storage::open(&url).unwrap();
        assert!(store.is_durable() && store.describe().starts_with("file:/"), "{}", store.describe());
    }
}
