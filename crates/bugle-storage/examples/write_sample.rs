//! Writes a small file that another program can read: `cargo run -p bugle-storage --example write_sample FILE`;
//! with a second argument `check`, reads what that program has written to it since (see `interop/`).

use bugle::{
    id::ThreadKey,
    message::{Role, StoredMessage},
    storage::{
        Accept, Commit, InboxEntry, InputMode, LeaseClaim, NewRecord, NewThread, NotificationRecord, NotificationStore,
        ResourceChange, RunChange, Storage,
    },
    time::Timestamp,
};
use bugle_storage::libsql::LibSql;
use serde_json::json;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: write_sample FILE")?;
    let store = LibSql::open(&path)?;
    if std::env::args().nth(2).as_deref() == Some("check") {
        return check(&store).await;
    }
    let thread = ThreadKey::new("ann", "trip");
    let at = |second: i64| Timestamp::from_millis(1_767_225_600_000 + second * 1000);

    let signal = json!({
        "id": "m1", "type": "user", "tagName": "user", "contents": "How cold is Oslo? 🙂",
        "createdAt": at(1), "acceptedAt": at(1),
    });
    let entry = InboxEntry {
        signal: serde_json::from_value(signal.clone())?,
        thread: thread.clone(),
        agent_id: "helper".into(),
        mode: InputMode::Steer,
        run_id: "run-1".into(),
        options: serde_json::Value::Null,
        queue_owner_id: None,
        attempts: 0,
        position: 0,
    };
    let claim = Some(LeaseClaim::new(store.owner(), std::time::Duration::from_secs(30)));
    store
        .accept(Accept { entries: vec![entry], thread: thread.clone(), claim, check_only: false, create_thread: false })
        .await?;

    let mut asked = StoredMessage::text("m1".into(), Role::Signal, "How cold is Oslo? 🙂", at(1));
    asked.kind = Some("user".into());
    let described = json!({"signal": {
        "id": "m1", "type": "user", "tagName": "user", "createdAt": at(1), "acceptedAt": at(1),
    }});
    asked.content.metadata = described.as_object().cloned();
    let answered = StoredMessage::text("m2".into(), Role::Assistant, "Ask \"yr.no\"\nor look outside.", at(2));
    let new = NewThread {
        id: None,
        resource_id: "ann".into(),
        title: Some("Trip to Oslo".into()),
        metadata: json!({"color": "red", "n": 3}).as_object().cloned(),
    };
    let commit = Commit {
        create_thread: Some(new),
        consumed: vec!["m1".into()],
        messages: vec![asked, answered],
        run: RunChange::End { run_id: "run-1".into(), last_event: 12 },
        ..Commit::new(thread.clone(), 1)
    };
    store.commit(commit).await?;
    store.update_resource("ann", ResourceChange::WorkingMemory(Some("# Ann\n- likes snow".into()))).await?;
    store
        .update_resource(
            "ann",
            ResourceChange::Metadata(json!({"plan": "free"}).as_object().cloned().unwrap_or_default()),
        )
        .await?;
    let note: NotificationRecord = serde_json::from_value(json!({
        "id": "n1", "threadId": "trip", "resourceId": "ann", "source": "github", "kind": "ci", "priority": "high",
        "status": "pending", "summary": "CI failed", "payload": {"run": 7}, "coalescedCount": 1, "deliveryAttempts": 0,
        "createdAt": at(3), "updatedAt": at(3),
    }))?;
    store
        .create(NewRecord { record: note, priority_given: true, dedupe_window: std::time::Duration::ZERO, claim: None })
        .await?;
    store.release_lease(&thread, &store.owner(), None).await?;
    store.close().await;
    Ok(())
}

async fn check(store: &LibSql) -> Result<(), Box<dyn std::error::Error>> {
    let thread = store.get_thread("trip").await?.ok_or("the thread is gone")?;
    assert_eq!(thread.title, "Trip to Bergen");
    assert_eq!(thread.metadata, json!({"color": "red", "n": 3, "by": "reference"}).as_object().cloned());
    let messages = store.recent_messages(&ThreadKey::new("ann", "trip"), 10).await?;
    let texts: Vec<String> = messages.iter().map(StoredMessage::joined_text).collect();
    assert_eq!(texts, ["How cold is Oslo? 🙂", "Ask \"yr.no\"\nor look outside.", "And Bergen?"]);
    Ok(())
}
