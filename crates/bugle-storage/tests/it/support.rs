//! What the tests share.

use std::path::{Path, PathBuf};

use bugle::{
    id::ThreadKey,
    message::{Role, StoredMessage},
    storage::{Accept, InboxEntry, InputMode, LeaseClaim, NewThread, Storage},
    time::Timestamp,
};
use bugle_storage::libsql::LibSql;
use rusqlite::Connection;

pub(crate) fn key(thread: &str) -> ThreadKey {
    ThreadKey::new("ann", thread)
}

pub(crate) fn open(path: &Path) -> LibSql {
    LibSql::open(path.to_str().unwrap()).unwrap()
}

/// A connection past the store, as another program has it.
pub(crate) fn raw(path: &Path) -> Connection {
    Connection::open(path).unwrap()
}

pub(crate) async fn with_thread(store: &LibSql, id: &str) {
    let new = NewThread { id: Some(id.into()), resource_id: "ann".into(), ..NewThread::default() };
    store.create_thread(new).await.unwrap();
}

pub(crate) fn message(thread: &str, id: &str) -> StoredMessage {
    let at = Timestamp::from_millis(1_767_225_600_000);
    StoredMessage::text(id.into(), Role::User, format!("text of {id}"), at).on(&key(thread))
}

pub(crate) fn entry(thread: &str, id: &str) -> InboxEntry {
    let signal = serde_json::json!({
        "id": id, "type": "user", "tagName": "user", "contents": format!("text of {id}"),
        "createdAt": "2026-01-01T00:00:00.000Z",
    });
    InboxEntry {
        signal: serde_json::from_value(signal).unwrap(),
        thread: key(thread),
        agent_id: "helper".into(),
        mode: InputMode::Steer,
        run_id: "run-1".into(),
        options: serde_json::Value::Null,
        queue_owner_id: None,
        attempts: 0,
        position: 0,
    }
}

pub(crate) fn accept(thread: &str, id: &str) -> Accept {
    Accept {
        entries: vec![entry(thread, id)],
        thread: key(thread),
        claim: None,
        check_only: false,
        create_thread: false,
    }
}

pub(crate) fn claim(owner: &str, seconds: u64) -> LeaseClaim {
    LeaseClaim::new(owner, std::time::Duration::from_secs(seconds))
}

pub(crate) fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

/// A directory with a copy of the golden file.
pub(crate) fn golden() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("golden.db");
    std::fs::write(&path, std::fs::read(fixture("golden-libsql.db")).unwrap()).unwrap();
    (directory, path)
}
