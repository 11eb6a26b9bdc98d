//! Two handles on one file that race (STO-043).

use bugle::storage::{
    EntryOutcome, Lease, MetadataChange, NewRecord, NotificationRecord, NotificationStore, ResourceChange, Storage,
    ThreadUpdate,
};
use futures::future::{join, join_all};

use crate::support::{accept, claim, key, open, with_thread};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sto_7_9_races_have_one_winner_and_lose_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let (first, second) = (open(&path), open(&path));
    with_thread(&first, "t1").await;
    let both = [&first, &second];

    let updates = (0..8).map(|n| {
        let metadata = MetadataChange::Merge([(format!("k{n}"), n.into())].into_iter().collect());
        both[n % 2].update_thread(ThreadUpdate { id: "t1".into(), metadata, ..ThreadUpdate::default() })
    });
    join_all(updates).await.into_iter().for_each(|update| drop(update.unwrap()));
    assert_eq!(first.get_thread("t1").await.unwrap().unwrap().metadata.unwrap().len(), 8, "metadata");

    let merges = (0..8).map(|n| {
        let merge = ResourceChange::MergeWorkingMemory([(format!("k{n}"), n.into())].into_iter().collect());
        both[n % 2].update_resource("ann", merge)
    });
    join_all(merges).await.into_iter().for_each(|merge| drop(merge.unwrap()));
    let memory = first.get_resource("ann").await.unwrap().unwrap().working_memory.unwrap();
    assert_eq!(serde_json::from_str::<bugle::json::Object>(&memory).unwrap().len(), 8, "working memory");

    for n in 0..20 {
        let id = format!("s{n}");
        let (a, b) = join(first.accept(accept("t1", &id)), second.accept(accept("t1", &id))).await;
        let outcomes = [a.unwrap().entries.remove(0), b.unwrap().entries.remove(0)];
        let appended = outcomes.iter().filter(|outcome| matches!(outcome, EntryOutcome::Appended { .. })).count();
        let waiting = outcomes.iter().filter(|outcome| matches!(outcome, EntryOutcome::Waiting { .. })).count();
        assert_eq!((appended, waiting), (1, 1), "SIG-503: {outcomes:?}");

        let thread = key(&format!("lease-{n}"));
        let (mine, yours) = (claim(&first.owner(), 60), claim(&second.owner(), 60));
        let (a, b) = join(first.acquire_lease(&thread, &mine), second.acquire_lease(&thread, &yours)).await;
        let leases = [a.unwrap(), b.unwrap()];
        let held = leases.iter().filter(|lease| matches!(lease, Lease::Held { .. })).count();
        assert_eq!(held, 1, "ruling 25: {leases:?}");

        let value = serde_json::json!({
            "id": id, "threadId": "t1", "source": "s", "kind": "k", "priority": "low", "status": "pending",
            "summary": "", "coalescedCount": 1, "deliveryAttempts": 0,
            "createdAt": "2026-01-01T00:00:00.000Z", "updatedAt": "2026-01-01T00:00:00.000Z",
        });
        let record: NotificationRecord = serde_json::from_value(value).unwrap();
        let new = NewRecord { record, priority_given: true, dedupe_window: std::time::Duration::ZERO, claim: None };
        let (a, b) = join(first.create(new.clone()), second.create(new)).await;
        assert!(a.is_ok() != b.is_ok(), "STO-053: {a:?} {b:?}");
    }
}

#[tokio::test]
async fn sto_031_sto_032_several_handles_may_make_the_file_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let handles = (0..6).map(|_| {
        let path = path.clone();
        std::thread::spawn(move || open(&path))
    });
    let handles: Vec<_> = handles.collect();
    let stores: Vec<_> = handles.into_iter().map(|handle| handle.join().unwrap()).collect();
    with_thread(&stores[0], "t1").await;
    for store in &stores {
        assert!(store.get_thread("t1").await.unwrap().is_some());
    }
}
