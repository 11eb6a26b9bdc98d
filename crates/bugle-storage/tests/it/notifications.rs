//! Two runtimes on one file deliver one inbox (NOTIF §12.6).

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use bugle::{
    Agent, Bugle, ThreadKey,
    memory::MemoryOptions,
    message::StoredMessage,
    model::ScriptedModel,
    notification::NotificationOptions,
    signal::Contents,
    storage::{NewRecord, NotificationQuery, NotificationRecord, NotificationStore, Storage},
    time::{Clock, Timestamp},
};
use bugle_storage::libsql::LibSql;

use crate::support::open;

const RECORDS: usize = 200;
const THREADS: usize = 20;

/// The system's clock, moved on at will: what is due later is due now.
#[derive(Debug, Default)]
struct Moved(AtomicI64);

impl Clock for Moved {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(Timestamp::now().as_millis() + self.0.load(Ordering::SeqCst))
    }
}

async fn runtime(store: &LibSql, clock: &Arc<Moved>) -> Bugle {
    let agent =
        Agent::builder("helper").model(Arc::new(ScriptedModel::new())).memory(MemoryOptions::last(10)).build().unwrap();
    Bugle::builder()
        .agent(agent)
        .storage(store.clone())
        .clock(clock.clone())
        .notifications(NotificationOptions::builder().dispatch(false).batch_size(20).build())
        .build()
        .await
        .unwrap()
}

async fn fill(store: &LibSql) {
    let now = Timestamp::now();
    for number in 0..RECORDS {
        let value = serde_json::json!({
            "id": format!("n{number}"), "threadId": format!("t{}", number % THREADS), "resourceId": "ann",
            "agentId": "helper", "source": "s", "kind": "k", "priority": "medium", "status": "pending",
            "summary": format!("[[say ok]] event {number}"), "coalescedCount": 1, "deliveryAttempts": 0,
            "createdAt": now, "updatedAt": now, "deliverAt": now,
        });
        let record: NotificationRecord = serde_json::from_value(value).unwrap();
        let new = NewRecord { record, priority_given: true, dedupe_window: Duration::ZERO, claim: None };
        store.create(new).await.unwrap();
    }
}

async fn pending(store: &LibSql) -> usize {
    let query = NotificationQuery { statuses: vec!["pending".into()], ..NotificationQuery::all() };
    store.count(&query).await.unwrap()
}

/// Every record stands exactly once in the history of its thread, or in its journal, where a run takes it from.
async fn check(store: &LibSql) {
    let mut shown: HashMap<String, usize> = HashMap::new();
    for number in 0..THREADS {
        let thread = ThreadKey::new("ann", format!("t{number}"));
        let stored = store.recent_messages(&thread, u32::MAX).await.unwrap();
        let waiting = store.inbox(&thread).await.unwrap().into_iter().map(|entry| match entry.signal.contents {
            Contents::Text(text) => text,
            Contents::Parts(_) => String::new(),
        });
        for text in stored.iter().map(StoredMessage::joined_text).chain(waiting) {
            if let Some(event) = text.strip_prefix("[[say ok]] event ") {
                *shown.entry(event.to_owned()).or_default() += 1;
            }
        }
    }
    let twice: Vec<_> = shown.iter().filter(|(_, times)| **times != 1).collect();
    assert_eq!((shown.len(), twice.len()), (RECORDS, 0), "{twice:?}");
    let all = store.list(&NotificationQuery::all()).await.unwrap().records;
    assert!(all.iter().all(|record| record.status == "delivered" && record.delivered_signal_id.is_some()));
}

/// The reference lets one process win a minute's pass; here both make theirs, and records are claimed one by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn notif_072_075_overlapping_passes_of_two_runtimes_deliver_each_record_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let (first, second) = (open(&path), open(&path));
    fill(&first).await;
    let clock = Arc::new(Moved::default());
    let (a, b) = (runtime(&first, &clock).await, runtime(&second, &clock).await);
    for _ in 0..200 {
        let passes = [&a, &b, &a].map(|bugle| bugle.dispatch_notifications(20));
        for done in futures::future::join_all(passes).await {
            done.unwrap();
        }
        if pending(&first).await == 0 {
            break;
        }
        // A thread that the other one has at this moment is tried again.
        tokio::time::sleep(Duration::from_millis(20)).await;
        clock.0.fetch_add(3000, Ordering::SeqCst);
    }
    a.shutdown(Duration::from_secs(5)).await;
    b.shutdown(Duration::from_secs(5)).await;
    check(&first).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn notif_075_another_runtime_goes_on_where_one_stopped_in_the_middle() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let (first, second) = (open(&path), open(&path));
    fill(&first).await;
    let clock = Arc::new(Moved::default());
    let a = runtime(&first, &clock).await;
    // Passes that end at any moment, their claims still held.
    for millis in [1, 3, 9, 27] {
        let _ = tokio::time::timeout(Duration::from_millis(millis), a.dispatch_notifications(40)).await;
    }
    a.shutdown(Duration::from_secs(5)).await;
    drop(a);
    first.close().await;
    let b = runtime(&second, &clock).await;
    for _ in 0..200 {
        b.dispatch_notifications(50).await.unwrap();
        if pending(&second).await == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
        clock.0.fetch_add(61_000, Ordering::SeqCst);
    }
    b.shutdown(Duration::from_secs(5)).await;
    check(&second).await;
}
