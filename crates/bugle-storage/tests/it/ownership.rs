//! Who owns a thread when several handles or processes share a file (rulings 25 and 26).

use bugle::storage::{Lease, Storage};

use crate::support::{accept, claim, key, open, with_thread};

#[tokio::test]
async fn ruling_26_a_closed_store_owns_nothing_and_a_living_one_keeps_what_it_holds() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let (first, second) = (open(&path), open(&path));
    with_thread(&first, "t1").await;
    assert_ne!(first.owner(), second.owner());
    first.accept(accept("t1", "s1")).await.unwrap();
    let Lease::Held { epoch } = first.acquire_lease(&key("t1"), &claim(&first.owner(), 600)).await.unwrap() else {
        panic!("the lease is free");
    };
    let mine = claim(&second.owner(), 600);
    assert_eq!(second.acquire_lease(&key("t1"), &mine).await.unwrap(), Lease::HeldBy { owner: first.owner() });
    assert_eq!(second.unfinished(&second.owner(), None, 9).await.unwrap(), [], "the first one lives");
    assert_eq!(first.unfinished(&first.owner(), None, 9).await.unwrap(), [key("t1")], "one's own work is unfinished");
    first.close().await;
    assert_eq!(second.unfinished(&second.owner(), None, 9).await.unwrap(), [key("t1")]);
    assert_eq!(second.acquire_lease(&key("t1"), &mine).await.unwrap(), Lease::Held { epoch: epoch + 1 });
}

#[tokio::test]
async fn ruling_26_owners_of_other_kinds_are_judged_by_time_alone() {
    let directory = tempfile::tempdir().unwrap();
    let store = open(&directory.path().join("a.db"));
    store.acquire_lease(&key("t1"), &claim("../../etc/passwd", 600)).await.unwrap();
    let answer = store.acquire_lease(&key("t1"), &claim(&store.owner(), 600)).await.unwrap();
    assert_eq!(answer, Lease::HeldBy { owner: "../../etc/passwd".into() });
}

#[tokio::test]
async fn ruling_26_nothing_is_left_behind_by_handles_that_were_closed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let (first, second) = (open(&path), open(&path));
    let locks = directory.path().join("a.db-bugle");
    assert_eq!(std::fs::read_dir(&locks).unwrap().count(), 2);
    // What a process that was killed leaves: a file nobody holds.
    std::fs::write(locks.join("db-00000000-0000-4000-8000-000000000000.lock"), "").unwrap();
    let third = open(&path);
    assert_eq!(std::fs::read_dir(&locks).unwrap().count(), 3, "the dead one's is cleared away");
    for store in [first, second, third] {
        store.close().await;
    }
    assert!(!locks.exists());
}
