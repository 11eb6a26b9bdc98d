//! Journal, commits, runs and leases.

use std::time::Duration;

use serde_json::json;

use super::{Checked, at, entry, entry_ids, ids, key, message, message_ids, new_thread, object, signal, with_thread};
use crate::{
    id::ThreadKey,
    storage::{
        Accept, Commit, EntryOutcome, InboxEnd, InboxEntry, Lease, LeaseClaim, Left, NewThread, RunChange, RunRecord,
        SharedStorage, StorageError,
    },
};

fn accept(ids: &[&str]) -> Accept {
    Accept {
        entries: ids.iter().map(|id| entry(id)).collect(),
        thread: key(),
        claim: None,
        check_only: false,
        create_thread: false,
    }
}

fn commit(epoch: u64) -> Commit {
    Commit::new(key(), epoch)
}

fn claim(owner: &str, ttl_secs: u64) -> LeaseClaim {
    LeaseClaim::new(owner, Duration::from_secs(ttl_secs))
}

fn run(id: &str) -> RunRecord {
    RunRecord {
        run_id: id.into(),
        thread: key(),
        agent_id: "helper".into(),
        snapshot: json!({"step": 1, "text": "a\u{0}b"}),
        updated_at: at(3),
    }
}

async fn waiting(store: &SharedStorage) -> Result<Vec<String>, StorageError> {
    Ok(entry_ids(&store.inbox(&key()).await?).into_iter().map(str::to_owned).collect())
}

pub(super) async fn sig_500_entries_wait_in_order(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    let first = store.accept(accept(&["s1", "s2"])).await?;
    let second = store.accept(accept(&["s0"])).await?;
    assert_eq!((first.lease, second.lease), (None, None));
    let places: Vec<i64> = first
        .entries
        .iter()
        .chain(&second.entries)
        .map(|outcome| match outcome {
            EntryOutcome::Appended { position } => *position,
            other => panic!("SIG-500: {other:?}"),
        })
        .collect();
    assert!(places.is_sorted_by(|a, b| a < b), "SIG-500: places grow: {places:?}");
    let found = store.inbox(&key()).await?;
    let expected: Vec<InboxEntry> = ["s1", "s2", "s0"]
        .iter()
        .zip(&places)
        .map(|(id, place)| InboxEntry { position: *place, ..entry(id) })
        .collect();
    assert_eq!(found, expected, "SIG-500: entries come back as accepted, in order");
    assert_eq!(store.inbox(&ThreadKey::new("bob", "t1")).await?, [], "SIG-360: another key");
    let stray = Accept { thread: ThreadKey::new("ann", "t2"), ..accept(&["s9"]) };
    assert!(matches!(store.accept(stray).await, Err(StorageError::Invalid(_))));
    let checked = store.accept(Accept { check_only: true, ..accept(&["s8"]) }).await?;
    assert_eq!((checked.entries, waiting(&store).await?.len()), (vec![], 3), "check_only appends nothing");
    Ok(())
}

pub(super) async fn sig_501_commit_places_input_with_its_message(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    store.accept(accept(&["s1", "s2"])).await?;
    let placed = Commit { consumed: message_ids(&["s1"]), messages: vec![message("s1", 1)], ..commit(0) };
    store.commit(placed).await?;
    assert_eq!(waiting(&store).await?, ["s2"], "SIG-501");
    assert_eq!(ids(&store.recent_messages(&key(), 9).await?), ["s1"], "SIG-501");
    // Withdrawn meanwhile: the message is written all the same.
    store.remove_inbox(&key(), &message_ids(&["s2"]), InboxEnd::Cancelled).await?;
    store.commit(Commit { consumed: message_ids(&["s2"]), messages: vec![message("s2", 2)], ..commit(0) }).await?;
    assert_eq!(ids(&store.recent_messages(&key(), 9).await?), ["s1", "s2"], "SIG-501");
    let mut bare = message("s3", 3);
    (bare.thread_id, bare.resource_id, bare.kind) = (None, None, None);
    store.commit(Commit { messages: vec![bare], ..commit(0) }).await?;
    assert_eq!(
        store.get_messages(&message_ids(&["s3"])).await?,
        [message("s3", 3)],
        "a commit's messages are of its thread"
    );
    Ok(())
}

pub(super) async fn sig_503_repeated_acceptance(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    store.accept(accept(&["s1", "s2"])).await?;
    let mut retry = entry("s1");
    retry.run_id = "another".into();
    retry.signal.created_at = at(50);
    retry.signal.accepted_at = Some(at(51));
    let retry = Accept { entries: vec![retry], ..accept(&[]) };
    let run_id = "run-of-s1".into();
    assert_eq!(store.accept(retry.clone()).await?.entries, [EntryOutcome::Waiting { run_id }], "SIG-503: waits");
    let other = InboxEntry { signal: signal("s1", "something else"), ..entry("s1") };
    let other = Accept { entries: vec![entry("s3"), other], ..accept(&[]) };
    let refused = |answer: Result<_, StorageError>| matches!(&answer, Err(StorageError::DifferentContent { id }) if id.as_str() == "s1");
    assert!(refused(store.accept(other.clone()).await), "SIG-503: other content while it waits");
    assert_eq!(waiting(&store).await?, ["s1", "s2"], "SIG-503: nothing of a refused call is appended");
    store.commit(Commit { consumed: message_ids(&["s1"]), messages: vec![message("s1", 1)], ..commit(0) }).await?;
    let run_id = Some("run-of-s1".into());
    assert_eq!(store.accept(retry).await?.entries, [EntryOutcome::Placed { run_id }], "SIG-503: placed");
    assert!(refused(store.accept(other).await), "SIG-503: other content after placement");
    // A row that no acceptance here wrote.
    let mut foreign = message("s4", 4);
    foreign.content = crate::message::StoredMessage::text("s4".into(), foreign.role, "says s4", at(4)).content;
    store.save_messages(vec![foreign]).await?;
    let known = store.accept(accept(&["s4"])).await?;
    assert_eq!(known.entries, [EntryOutcome::Placed { run_id: None }], "SIG-503: a stored message counts as placed");
    let mut other = entry("s4");
    other.signal = signal("s4", "no");
    let answer = store.accept(Accept { entries: vec![other], ..accept(&[]) }).await;
    assert!(matches!(answer, Err(StorageError::DifferentContent { .. })), "SIG-503: {answer:?}");
    let forgotten = store.accept(accept(&["s6"])).await?;
    store.commit(Commit { consumed: message_ids(&["s6"]), ..commit(0) }).await?;
    let again = store.accept(accept(&["s6"])).await?;
    assert!(
        matches!(
            (&forgotten.entries[0], &again.entries[0]),
            (EntryOutcome::Appended { .. }, EntryOutcome::Appended { .. })
        ),
        "SIG-503: what became no message is not remembered: {again:?}"
    );
    store.remove_inbox(&key(), &message_ids(&["s6"]), InboxEnd::Dropped).await?;
    let twice = store.accept(accept(&["s5", "s5"])).await?;
    assert!(matches!(twice.entries[1], EntryOutcome::Waiting { .. }), "SIG-503: twice in one call: {twice:?}");
    assert_eq!(waiting(&store).await?, ["s2", "s5"]);
    Ok(())
}

pub(super) async fn sig_364_ownership_is_checked_before_every_write(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    let bob = ThreadKey::new("bob", "t1");
    let theirs = InboxEntry { thread: bob.clone(), ..entry("s1") };
    let refused = |answer: &StorageError| matches!(answer, StorageError::ThreadOwnership { owner, given, .. } if owner == "ann" && given == "bob");
    for check_only in [false, true] {
        let attempt = Accept {
            entries: vec![theirs.clone()],
            thread: bob.clone(),
            claim: Some(claim("x", 9)),
            check_only,
            create_thread: true,
        };
        let answer = store.accept(attempt).await;
        assert!(answer.as_ref().is_err_and(refused), "SIG-364: {answer:?}");
    }
    assert_eq!(store.inbox(&bob).await?, [], "SIG-364");
    let answer = store.commit(Commit { messages: vec![], ..Commit::new(bob.clone(), 0) }).await;
    assert!(answer.as_ref().is_err_and(refused), "SIG-364: {answer:?}");
    let unowned = store.accept(Accept { entries: vec![], thread: ThreadKey::unowned("t1"), ..accept(&[]) }).await;
    assert!(matches!(unowned, Err(StorageError::ThreadOwnership { .. })), "SIG-364: {unowned:?}");
    // A thread without resource is anyone's (SIG-363); a thread that is not there yet can be written to (SIG-362).
    store.create_thread(new_thread("free", "")).await?;
    for thread in ["free", "new"].map(|id| ThreadKey::new("bob", id)) {
        let mine = InboxEntry { thread: thread.clone(), ..entry(&format!("s-{}", thread.thread_id)) };
        store
            .accept(Accept { entries: vec![mine], thread, claim: None, check_only: false, create_thread: false })
            .await?;
    }
    // The first resource whose input is accepted on a new thread owns it from then on (SIG-362).
    let meet = |resource: &str, id: &str| {
        let thread = ThreadKey::new(resource, "meet");
        let entries = vec![InboxEntry { thread: thread.clone(), ..entry(id) }];
        Accept { entries, thread, claim: Some(claim("x", 9)), check_only: false, create_thread: true }
    };
    store.accept(meet("cid", "s-cid")).await?;
    assert_eq!(store.get_thread("meet").await?.map(|thread| thread.resource_id), Some("cid".to_owned()), "SIG-362");
    let late = store.accept(meet("dora", "s-dora")).await;
    assert!(matches!(late, Err(StorageError::ThreadOwnership { .. })), "SIG-364: {late:?}");
    assert_eq!(store.inbox(&ThreadKey::new("dora", "meet")).await?, [], "SIG-364");
    Ok(())
}

pub(super) async fn sig_290_removal_names_what_was_there(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    store.accept(accept(&["s1", "s2", "s3"])).await?;
    store.commit(Commit { consumed: message_ids(&["s2"]), ..commit(0) }).await?;
    let asked = message_ids(&["s3", "s1", "s2", "none", "s1"]);
    let removed = store.remove_inbox(&key(), &asked, InboxEnd::Cancelled).await?;
    assert_eq!(removed, message_ids(&["s3", "s1"]), "SIG-290, SIG-282: each once, in request order");
    let elsewhere = store.remove_inbox(&ThreadKey::new("bob", "t1"), &asked, InboxEnd::Cleared).await?;
    assert_eq!(elsewhere, [], "SIG-290");
    assert_eq!(waiting(&store).await?.len(), 0);
    Ok(())
}

pub(super) async fn ruling_23_waiting_input_is_edited_and_moved(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    store.accept(accept(&["s1", "s2", "s3"])).await?;
    let mut found = store.inbox(&key()).await?;
    let mut last = found.pop().unwrap_or_else(|| panic!("three entries wait"));
    last.position = found[0].position - 1;
    last.signal = signal("s3", "edited");
    last.attempts = 2;
    assert!(store.update_inbox(last.clone()).await?, "ruling 23");
    let now = store.inbox(&key()).await?;
    assert_eq!((entry_ids(&now), &now[0]), (vec!["s3", "s1", "s2"], &last), "ruling 23: moved to the front");
    let retried = store.accept(accept(&["s3"])).await?.entries;
    assert!(
        matches!(retried[..], [EntryOutcome::Waiting { .. }]),
        "SIG-503: the first sending may be repeated: {retried:?}"
    );
    store.commit(Commit { consumed: message_ids(&["s3"]), ..commit(0) }).await?;
    assert!(!store.update_inbox(last).await?, "ruling 23: it has been taken");
    Ok(())
}

pub(super) async fn ruling_33_rollback_returns_input_in_order(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    store.accept(accept(&["s1", "s2", "s3", "s4"])).await?;
    let taken = store.inbox(&key()).await?;
    let messages = ["s1", "s2", "s3", "answer"].into_iter().zip(1..).map(|(id, n)| message(id, n)).collect();
    store.commit(Commit { consumed: message_ids(&["s1", "s2", "s3"]), messages, ..commit(0) }).await?;
    let rollback = Commit {
        removed: message_ids(&["s1", "s2", "s3", "answer", "none"]),
        returned: taken[1..3].to_vec(),
        ..commit(0)
    };
    store.commit(rollback).await?;
    assert_eq!(waiting(&store).await?, ["s2", "s3", "s4"], "ruling 33: in order, in front of what waits");
    assert_eq!(store.recent_messages(&key(), 9).await?, [], "ruling 33");
    let again = store.accept(accept(&["s1", "s2"])).await?.entries;
    assert!(
        matches!(again[..], [EntryOutcome::Appended { .. }, EntryOutcome::Waiting { .. }]),
        "ruling 33: the removed input may be sent again: {again:?}"
    );
    Ok(())
}

pub(super) async fn ruling_4_stale_epochs_are_refused(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    store.acquire_lease(&key(), &claim("a", 0)).await?;
    let Lease::Held { epoch } = store.acquire_lease(&key(), &claim("b", 60)).await? else {
        panic!("ruling 4: a lease that has run out is free");
    };
    let stale = store.commit(Commit { messages: vec![message("m1", 1)], ..commit(epoch - 1) }).await;
    assert!(
        matches!(stale, Err(StorageError::StaleEpoch { given, current, .. }) if (given, current) == (epoch - 1, epoch)),
        "ruling 4: {stale:?}"
    );
    assert_eq!(store.recent_messages(&key(), 9).await?, [], "ruling 4: nothing is written");
    store.commit(Commit { messages: vec![message("m2", 2)], ..commit(epoch) }).await?;
    // A lease of another backend may be ahead; the store keeps up (ruling 39).
    store.commit(commit(epoch + 5)).await?;
    let stale = store.commit(commit(epoch)).await;
    assert!(matches!(stale, Err(StorageError::StaleEpoch { .. })), "ruling 39: {stale:?}");
    Ok(())
}

pub(super) async fn commits_are_whole_or_nothing(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    store.create_thread(new_thread("t2", "bob")).await?;
    let theirs = crate::message::StoredMessage {
        thread_id: Some("t2".into()),
        resource_id: Some("bob".into()),
        ..message("theirs", 1)
    };
    store.save_messages(vec![theirs.clone(), message("mine", 1)]).await?;
    store.accept(accept(&["s1"])).await?;
    let bad = Commit {
        consumed: message_ids(&["s1"]),
        messages: vec![message("s1", 1), message("theirs", 2)],
        removed: message_ids(&["mine", "theirs"]),
        returned: vec![entry("s0")],
        run: RunChange::Save(run("r1")),
        ..commit(7)
    };
    let answer = store.commit(bad).await;
    assert!(matches!(answer, Err(StorageError::MessageOwnership { .. })), "MEM-044: {answer:?}");
    assert_eq!(waiting(&store).await?, ["s1"], "decision 4: nothing is consumed or returned");
    assert_eq!(ids(&store.recent_messages(&key(), 9).await?), ["mine"], "decision 4: no message");
    assert_eq!(store.get_run(&"r1".into()).await?, None, "decision 4: no run record");
    store.commit(Commit { removed: message_ids(&["theirs"]), ..commit(0) }).await?;
    assert_eq!(store.get_messages(&message_ids(&["theirs"])).await?, [theirs], "a commit removes only its thread's");
    let elsewhere = crate::message::StoredMessage { thread_id: Some("t2".into()), ..message("m", 1) };
    let answer = store.commit(Commit { messages: vec![elsewhere], ..commit(0) }).await;
    assert!(matches!(answer, Err(StorageError::Invalid(_))), "a commit writes one thread: {answer:?}");
    Ok(())
}

pub(super) async fn commits_create_their_thread(store: SharedStorage) -> Checked {
    let missing = store.commit(Commit { messages: vec![message("m1", 1)], ..commit(0) }).await;
    assert!(matches!(missing, Err(StorageError::NotFound { what: "thread", .. })), "MEM-045: {missing:?}");
    let new = NewThread {
        id: None,
        resource_id: "ann".into(),
        title: Some("Hello".into()),
        metadata: Some(object(json!({"a": 1}))),
    };
    let create = Commit { create_thread: Some(new.clone()), messages: vec![message("m1", 1)], ..commit(0) };
    store.commit(create).await?;
    let made = store.get_thread("t1").await?.unwrap_or_else(|| panic!("MEM-012: the thread is not there"));
    assert_eq!((made.title.as_str(), made.resource_id.as_str()), ("Hello", "ann"), "MEM-012");
    let later = NewThread { title: Some("Other".into()), metadata: Some(object(json!({"b": 2}))), ..new };
    store.commit(Commit { create_thread: Some(later), ..commit(0) }).await?;
    let after = store.get_thread("t1").await?.unwrap_or_else(|| panic!("MEM-012: the thread is gone"));
    assert_eq!(after.title, "Hello", "MEM-012: an existing thread keeps its title");
    assert_eq!(after.metadata, Some(object(json!({"a": 1, "b": 2}))), "MEM-012: keys are merged in");
    assert_eq!(after.created_at, made.created_at);
    Ok(())
}

pub(super) async fn run_records_live_until_the_run_ends(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    let save = |record: &RunRecord| Commit { run: RunChange::Save(record.clone()), ..commit(2) };
    let first = run("r1");
    let second = run("r2");
    store.commit(save(&first)).await?;
    store.commit(save(&second)).await?;
    let later = RunRecord { snapshot: json!({"step": 2}), updated_at: at(9), ..run("r1") };
    store.commit(save(&later)).await?;
    assert_eq!(store.get_run(&"r1".into()).await?, Some(later.clone()), "decision 3: replaced");
    assert_eq!(store.runs(&key()).await?, [later, second.clone()]);
    assert_eq!(store.runs(&ThreadKey::new("ann", "t9")).await?, []);
    assert_eq!(store.last_event(&key()).await?, None);
    store.commit(Commit { run: RunChange::End { run_id: "r1".into(), last_event: 41 }, ..commit(2) }).await?;
    assert_eq!(store.get_run(&"r1".into()).await?, None);
    assert_eq!(store.runs(&key()).await?, [second]);
    assert_eq!(store.last_event(&key()).await?, Some((2, 41)), "HTTP-243: the last event is remembered");
    Ok(())
}

pub(super) async fn r1_a_run_record_belongs_to_its_thread(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    let mine = run("r1");
    store.commit(Commit { run: RunChange::Save(mine.clone()), ..commit(2) }).await?;
    let other = ThreadKey::new("bob", "t2");
    let theirs = RunRecord { thread: other.clone(), snapshot: json!({"stolen": true}), ..mine.clone() };
    let taken = store.commit(Commit { run: RunChange::Save(theirs), ..Commit::new(other.clone(), 1) }).await;
    assert!(matches!(taken, Err(StorageError::Exists { what: "run", .. })), "{taken:?}");
    assert_eq!(store.get_run(&"r1".into()).await?, Some(mine.clone()), "another thread's record is not changed");
    let end = RunChange::End { run_id: "r1".into(), last_event: 1 };
    store.commit(Commit { run: end, ..Commit::new(other, 1) }).await?;
    assert_eq!(store.get_run(&"r1".into()).await?, Some(mine), "nor deleted");
    Ok(())
}

pub(super) async fn r11_a_thread_at_work_is_not_transferred(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    let busy = |answer: Result<_, StorageError>| matches!(answer, Err(StorageError::Busy { thread }) if thread == "t1");
    let accept =
        Accept { entries: vec![entry("s1")], thread: key(), claim: None, check_only: false, create_thread: false };
    store.accept(accept.clone()).await?;
    assert!(busy(store.transfer_thread("t1", "bob").await), "input waits");
    let record = RunRecord {
        run_id: "r1".into(),
        thread: key(),
        agent_id: "helper".into(),
        snapshot: json!({}),
        updated_at: at(1),
    };
    let placed = Commit {
        consumed: message_ids(&["s1"]),
        messages: vec![signal("s1", "says s1").to_stored(Some(&key()), at(1))],
        run: RunChange::Save(record),
        ..Commit::new(key(), 3)
    };
    store.commit(placed).await?;
    assert!(busy(store.transfer_thread("t1", "bob").await), "a run is recorded");
    store
        .commit(Commit { run: RunChange::End { run_id: "r1".into(), last_event: 1 }, ..Commit::new(key(), 3) })
        .await?;
    store.transfer_thread("t1", "bob").await?;
    let moved = ThreadKey::new("bob", "t1");
    let again = InboxEntry { thread: moved.clone(), ..entry("s1") };
    let accepted = store.accept(Accept { entries: vec![again], thread: moved.clone(), ..accept }).await?;
    assert!(matches!(accepted.entries[..], [EntryOutcome::Placed { .. }]), "SIG-503: {accepted:?}");
    let stale = store.commit(Commit::new(moved, 2)).await;
    assert!(matches!(stale, Err(StorageError::StaleEpoch { .. })), "ruling 4: epochs never shrink: {stale:?}");
    Ok(())
}

pub(super) async fn leases_have_one_owner_and_growing_epochs(store: SharedStorage) -> Checked {
    let owner = store.owner();
    assert!(!owner.is_empty() && owner == store.owner(), "ruling 26: one owner per handle");
    let first = store.acquire_lease(&key(), &claim("a", 60)).await?;
    let Lease::Held { epoch } = first else { panic!("ruling 25: {first:?}") };
    assert_eq!(
        store.acquire_lease(&key(), &claim("a", 60)).await?,
        Lease::Held { epoch },
        "PSL-112: renewal keeps the epoch"
    );
    assert_eq!(store.acquire_lease(&key(), &claim("b", 60)).await?, Lease::HeldBy { owner: "a".into() }, "PSL-112");
    store.release_lease(&key(), "b", None).await?;
    assert_eq!(
        store.acquire_lease(&key(), &claim("b", 60)).await?,
        Lease::HeldBy { owner: "a".into() },
        "not its to give up"
    );
    store.release_lease(&key(), "a", None).await?;
    assert_eq!(
        store.acquire_lease(&key(), &claim("b", 60)).await?,
        Lease::Held { epoch: epoch + 1 },
        "PSL-123: the epoch stays in mind"
    );
    store.release_lease(&key(), "b", None).await?;
    assert_eq!(
        store.acquire_lease(&key(), &claim("b", 0)).await?,
        Lease::Held { epoch: epoch + 2 },
        "PSL-123: a new life, a new epoch"
    );
    assert_eq!(
        store.acquire_lease(&key(), &claim("c", 60)).await?,
        Lease::Held { epoch: epoch + 3 },
        "ruling 26: a lease runs out"
    );
    let other = store.acquire_lease(&ThreadKey::new("ann", "t2"), &claim("d", 60)).await?;
    assert!(matches!(other, Lease::Held { .. }), "threads are leased apart");
    store.delete_thread("t1").await?;
    store.release_lease(&key(), "c", None).await?;
    assert_eq!(
        store.acquire_lease(&key(), &claim("c", 60)).await?,
        Lease::Held { epoch: epoch + 4 },
        "ruling 39: epochs never shrink"
    );
    Ok(())
}

pub(super) async fn sig_405_the_lease_goes_with_the_last_commit_if_nothing_waits(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    let owner = claim("a", 60);
    let taken = store.accept(Accept { claim: Some(owner.clone()), ..accept(&["s1", "s2"]) }).await?;
    let Some(Lease::Held { epoch }) = taken.lease else { panic!("ruling 25: {taken:?}") };
    let end = |consumed: &str| Commit {
        consumed: vec![consumed.into()],
        messages: vec![message(consumed, 1)],
        run: RunChange::End { run_id: "r1".into(), last_event: 9 },
        release: Some("a".into()),
        ..commit(epoch)
    };
    store.commit(Commit { run: RunChange::Save(run("r1")), ..commit(epoch) }).await?;
    assert!(!store.commit(end("s1")).await?.released, "s2 waits");
    assert_eq!(store.acquire_lease(&key(), &claim("b", 60)).await?, Lease::HeldBy { owner: "a".into() });
    store.commit(Commit { run: RunChange::Save(run("r2")), ..commit(epoch) }).await?;
    assert!(!store.commit(end("s2")).await?.released, "a run is on record");
    let end = Commit { run: RunChange::End { run_id: "r2".into(), last_event: 12 }, ..end("s2") };
    let others = Commit { release: Some("b".into()), ..end.clone() };
    assert!(!store.commit(others).await?.released, "not its to give up");
    assert!(store.commit(end.clone()).await?.released);
    assert!(!store.commit(end).await?.released, "it is free");
    // Nobody has had it since: who kept its epoch goes on in it.
    let again = LeaseClaim { kept: Some(epoch), ..owner.clone() };
    assert_eq!(store.acquire_lease(&key(), &again).await?, Lease::Held { epoch });
    store.release_lease(&key(), "a", Some(15)).await?;
    assert_eq!(store.last_event(&key()).await?, Some((epoch, 15)), "HTTP-243");
    assert_eq!(store.acquire_lease(&key(), &claim("b", 60)).await?, Lease::Held { epoch: epoch + 1 });
    store.release_lease(&key(), "b", None).await?;
    assert_eq!(store.last_event(&key()).await?, Some((epoch, 15)));
    assert_eq!(store.acquire_lease(&key(), &again).await?, Lease::Held { epoch: epoch + 2 }, "somebody has");
    Ok(())
}

pub(super) async fn sig_502_a_new_owner_is_told_what_was_left(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    let by = |claim: LeaseClaim, id: &str| Accept { claim: Some(claim), ..accept(&[id]) };
    let first = store.accept(by(claim("a", 0), "s1")).await?;
    assert_eq!(first.left, Left::default(), "nothing was there before: {first:?}");
    let Some(Lease::Held { epoch }) = first.lease else { panic!("ruling 25: {first:?}") };
    let own = LeaseClaim { kept: Some(epoch), ..claim("a", 0) };
    let second = store.accept(by(own, "s2")).await?;
    assert_eq!(second.left, Left::default(), "who has kept the thread knows: {second:?}");
    let ended = Commit { run: RunChange::End { run_id: "r0".into(), last_event: 7 }, ..commit(epoch) };
    store.commit(ended).await?;
    store.commit(Commit { run: RunChange::Save(run("r1")), ..commit(epoch) }).await?;
    let new = store.accept(by(claim("b", 0), "s3")).await?;
    assert_eq!(entry_ids(&new.left.entries), ["s1", "s2"], "in order, without what was just appended");
    assert!(new.left.entries.iter().all(|entry| entry.position > 0));
    let runs: Vec<&str> = new.left.runs.iter().map(|run| run.run_id.as_str()).collect();
    assert_eq!((runs, new.left.last_event), (vec!["r1"], Some((epoch, 7))));
    let only = Accept { check_only: true, entries: Vec::new(), ..by(claim("c", 60), "s4") };
    let claimed = store.accept(only).await?;
    assert_eq!(entry_ids(&claimed.left.entries), ["s1", "s2", "s3"], "a claim alone tells it too");
    Ok(())
}

pub(super) async fn ruling_25_acceptance_takes_the_lease(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    let by = |owner: &str, id: &str| Accept { claim: Some(claim(owner, 60)), ..accept(&[id]) };
    let taken = store.accept(by("a", "s1")).await?;
    assert!(matches!(taken.lease, Some(Lease::Held { .. })), "ruling 25: {taken:?}");
    let second = store.accept(by("b", "s2")).await?;
    assert_eq!(second.lease, Some(Lease::HeldBy { owner: "a".into() }), "ruling 25");
    assert_eq!(waiting(&store).await?, ["s1", "s2"], "ruling 25: the second journals its input");
    assert_eq!(store.accept(by("a", "s3")).await?.lease, taken.lease, "ruling 25: the owner renews");
    let checked = store.accept(Accept { check_only: true, ..by("b", "s4") }).await?;
    assert_eq!(checked.lease, Some(Lease::HeldBy { owner: "a".into() }));
    Ok(())
}

pub(super) async fn sig_502_unfinished_work_is_found(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    assert_eq!(store.unfinished("me", None, 10).await?, []);
    let (queued, working) = (key(), ThreadKey::new("ann", "t2"));
    store.accept(accept(&["s1", "s2"])).await?;
    let record = RunRecord { thread: working.clone(), ..run("t2") };
    store.commit(Commit { run: RunChange::Save(record), ..Commit::new(working.clone(), 0) }).await?;
    let found = |threads: Vec<ThreadKey>| {
        let mut threads = threads;
        threads.sort();
        threads
    };
    assert_eq!(found(store.unfinished("me", None, 10).await?), [queued.clone(), working.clone()], "SIG-502");
    assert_eq!(store.unfinished("me", None, 1).await?, std::slice::from_ref(&queued), "SIG-502: bounded, in order");
    let rest = store.unfinished("me", Some(&queued), 1).await?;
    assert_eq!(rest, std::slice::from_ref(&working), "r24: what lies behind the limit comes next");
    assert_eq!(store.unfinished("me", Some(&working), 1).await?, []);
    store.acquire_lease(&queued, &claim("other", 60)).await?;
    store.acquire_lease(&working, &claim("me", 60)).await?;
    assert_eq!(
        store.unfinished("me", None, 10).await?,
        std::slice::from_ref(&working),
        "ruling 26: not what a living owner holds"
    );
    store.acquire_lease(&working, &claim("me", 0)).await?;
    assert_eq!(store.unfinished("you", None, 10).await?, [working], "ruling 26: what has run out");
    Ok(())
}

pub(super) async fn sig_170_overlapping_acceptances_keep_their_order(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    let names: Vec<String> = (0..40).map(|n| format!("s{n:02}")).collect();
    let calls = names.iter().map(|name| store.accept(accept(&[name])));
    futures::future::try_join_all(calls).await?;
    assert_eq!(waiting(&store).await?, names, "calls that overlap are appended in the order they were made");
    Ok(())
}
