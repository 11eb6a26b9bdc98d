//! Notification records.

use serde_json::json;

use super::{Checked, at, key, object, with_thread};
use crate::storage::{NotificationQuery, NotificationRecord, SharedStorage, StorageError};

fn record(id: &str, millis: i64) -> NotificationRecord {
    let value = json!({
        "id": id, "threadId": "t1", "resourceId": "ann", "agentId": "helper", "source": "github", "kind": "ci",
        "priority": "high", "status": "pending", "summary": "CI failed", "payload": {"runs": [1, 2]},
        "dedupeKey": "k", "coalescedCount": 1, "attributes": {"branch": "main"}, "metadata": {"a": 1},
        "createdAt": at(millis), "updatedAt": at(millis), "deliverAt": at(99), "deliveryAttempts": 0,
    });
    serde_json::from_value(value).unwrap_or_else(|error| panic!("{error}"))
}

pub(super) async fn records_are_stored_listed_and_updated(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    let mut first = record("n1", 1);
    assert_eq!(store.create_notification(first.clone()).await?, first, "NOTIF §2");
    let second = NotificationRecord { priority: "low".into(), source: "mail".into(), ..record("n2", 2) };
    store.create_notification(second.clone()).await?;
    let taken = store.create_notification(first.clone()).await;
    assert!(matches!(taken, Err(StorageError::Exists { what: "notification", .. })), "STO-053: {taken:?}");
    let all = NotificationQuery { thread: key(), statuses: Vec::new(), priority: None, source: None, limit: 10 };
    assert_eq!(store.list_notifications(all.clone()).await?, [second.clone(), first.clone()], "newest first");
    assert_eq!(
        store.list_notifications(NotificationQuery { limit: 1, ..all.clone() }).await?,
        std::slice::from_ref(&second)
    );
    first.status = "seen".into();
    first.seen_at = Some(at(5));
    first.attributes = None;
    first.payload = Some(json!("text"));
    assert!(store.update_notification(first.clone()).await?);
    for (what, query) in [
        ("status", NotificationQuery { statuses: vec!["seen".into(), "archived".into()], ..all.clone() }),
        ("priority", NotificationQuery { priority: Some("high".into()), ..all.clone() }),
        ("source", NotificationQuery { source: Some("github".into()), ..all.clone() }),
    ] {
        assert_eq!(store.list_notifications(query).await?, [first.clone()], "by {what}");
    }
    let other = NotificationQuery { thread: crate::id::ThreadKey::new("bob", "t1"), ..all.clone() };
    assert_eq!(store.list_notifications(other).await?, [], "of another resource");
    assert!(!store.update_notification(record("none", 0)).await?);
    first.metadata = Some(object(json!({"b": null})));
    store.update_notification(first).await?;
    store.delete_thread("t1").await?;
    assert_eq!(store.list_notifications(all).await?, [], "MEM-019");
    Ok(())
}
