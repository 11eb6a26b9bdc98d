//! Notification records, claims on them, and subscriptions of providers.

use std::{sync::Arc, time::Duration};

use serde_json::json;

use super::{Checked, at, key, object, with_thread};
use crate::{
    id::MessageId,
    storage::{
        Accept, Commit, CreatedHow, DueQuery, InboxEnd, NewRecord, NotificationCursor, NotificationQuery,
        NotificationRecord, NotificationStore, ProviderSubscription, ProviderSubscriptions, RecordChange, RecordClaim,
        RecordKey, SharedStorage, StorageError, SubscriptionQuery,
    },
};

fn domain(store: &SharedStorage) -> &dyn NotificationStore {
    store.notifications().unwrap_or_else(|| panic!("NOTIF-010: {} has no notifications domain", store.describe()))
}

fn subscriptions(store: &SharedStorage) -> &dyn ProviderSubscriptions {
    let kept = store.provider_subscriptions();
    kept.unwrap_or_else(|| panic!("PROV-014: {} keeps no subscriptions", store.describe()))
}

fn record(id: &str, millis: i64) -> NotificationRecord {
    let value = json!({
        "id": id, "threadId": "t1", "resourceId": "ann", "agentId": "helper", "source": "github", "kind": "ci",
        "priority": "high", "status": "pending", "summary": "CI failed", "payload": {"runs": [1, 2]},
        "coalescedCount": 1, "attributes": {"branch": "main"}, "metadata": {"a": 1},
        "createdAt": at(millis), "updatedAt": at(millis), "deliveryAttempts": 0,
    });
    serde_json::from_value(value).unwrap_or_else(|error| panic!("{error}"))
}

fn new(record: NotificationRecord) -> NewRecord {
    NewRecord { record, priority_given: true, dedupe_window: Duration::ZERO, claim: None }
}

fn claim(token: &str, now: i64, until: i64) -> RecordClaim {
    RecordClaim { token: token.into(), now: at(now), until: at(until) }
}

fn names(records: &[NotificationRecord]) -> Vec<&str> {
    records.iter().map(|record| record.id.as_str()).collect()
}

pub(super) async fn notif_004_110_111_records_are_stored_listed_and_updated(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    let domain = domain(&store);
    let first = record("n1", 1);
    let created = domain.create(new(first.clone())).await?;
    assert_eq!((&created.record, created.how, created.claimed), (&first, CreatedHow::New, false));
    let second = NotificationRecord { priority: "low".into(), source: "mail".into(), ..record("n2", 2) };
    domain.create(new(second.clone())).await?;
    let taken = domain.create(new(first.clone())).await;
    assert!(matches!(taken, Err(StorageError::Exists { what: "notification", .. })), "STO-053: {taken:?}");
    let elsewhere = NotificationRecord { thread_id: "t2".into(), ..first.clone() };
    domain.create(new(elsewhere)).await?;
    assert_eq!(domain.get("t1", "n1").await?.as_ref(), Some(&first), "ids are a thread's own");
    assert_eq!(domain.get("t1", "none").await?, None);

    let all = NotificationQuery::of_thread("t1");
    assert_eq!(domain.list(&all).await?.records, [second.clone(), first.clone()], "changed last first");
    let seen = RecordChange { status: Some("seen"), ..RecordChange::at(at(5)) };
    let changed = domain.update(&first.key(), seen.clone()).await?.unwrap_or_else(|| panic!("no condition was given"));
    assert_eq!((changed.status.as_str(), changed.seen_at, changed.updated_at), ("seen", Some(at(5)), at(5)));
    assert_eq!(changed.deliver_at, None);
    for status in ["archived", "pending", "failed", "delivered", "discarded", "seen"] {
        let change = RecordChange { status: Some(status), ..RecordChange::at(at(5)) };
        let changed = domain.update(&first.key(), change).await?.unwrap_or_else(|| panic!("no condition was given"));
        assert_eq!(changed.status, status, "NOTIF-004: any status may follow any other");
    }
    for (what, query) in [
        ("status", NotificationQuery { statuses: vec!["seen".into(), "archived".into()], ..all.clone() }),
        ("priority", NotificationQuery { priorities: vec!["high".into(), "urgent".into()], ..all.clone() }),
        ("source", NotificationQuery { source: Some("github".into()), ..all.clone() }),
        ("place", NotificationQuery { limit: 1, ..all.clone() }),
    ] {
        assert_eq!(names(&domain.list(&query).await?.records), ["n1"], "by {what}");
    }
    assert_eq!(names(&domain.list(&all).await?.records), ["n1", "n2"], "it has changed last");
    let of_bob = NotificationQuery { resource_id: Some("bob".into()), ..all.clone() };
    assert_eq!(domain.list(&of_bob).await?.records, []);
    let of_ann = NotificationQuery { resource_id: Some("ann".into()), ..NotificationQuery::all() };
    assert_eq!((domain.list(&of_ann).await?.records.len(), domain.count(&of_ann).await?), (3, 3), "NOTIF-111");
    let none = domain.list(&NotificationQuery { limit: 0, ..all.clone() }).await?;
    assert_eq!((none.records.len(), none.has_more), (0, false), "NOTIF-113");
    let keys = [RecordKey { thread_id: "t1".into(), id: "none".into() }, first.key(), second.key()];
    let pending =
        RecordChange { if_status: Some(&["pending"]), summary_at: Some(Some(at(7))), ..RecordChange::at(at(6)) };
    let changed = domain.update_all(&keys, pending).await?;
    assert_eq!(names(&changed), ["n2"], "n1 is not pending, and the other not there");
    assert_eq!(changed[0].summary_at, Some(at(7)));
    let unknown = domain.update(&RecordKey { thread_id: "t1".into(), id: "none".into() }, seen).await;
    assert!(matches!(unknown, Err(StorageError::NotFound { what: "notification", .. })), "{unknown:?}");

    let ids = ["n2", "none", "n2", "n1"].map(str::to_owned);
    let marked = domain.update_status("t1", &ids, "archived", at(9)).await?;
    assert_eq!(names(&marked), ["n2", "n1"], "repeated and unknown ids are skipped");
    assert!(marked.iter().all(|record| record.archived_at == Some(at(9)) && record.status == "archived"));

    assert_eq!(domain.prune(at(2), &["pending".into()]).await?, 1, "only t2's is pending");
    assert_eq!(domain.prune(at(2), &[]).await?, 1);
    assert_eq!(names(&domain.list(&NotificationQuery::all()).await?.records), ["n2"]);
    store.delete_thread("t1").await?;
    assert_eq!(domain.list(&all).await?.records, [], "NOTIF-114, MEM-019");
    domain.create(new(record("n9", 1))).await?;
    domain.clear().await?;
    assert_eq!(domain.count(&NotificationQuery::all()).await?, 0);
    Ok(())
}

pub(super) async fn notif_030_031_033_records_of_one_key_merge(store: SharedStorage) -> Checked {
    let domain = domain(&store);
    let keyed = |id: &str, millis, dedupe: Option<&str>, coalesce: Option<&str>| NotificationRecord {
        dedupe_key: dedupe.map(str::to_owned),
        coalesce_key: coalesce.map(str::to_owned),
        ..record(id, millis)
    };
    domain.create(new(keyed("a", 1, Some("d1"), None))).await?;
    let second = NotificationRecord {
        summary: "two".into(),
        priority: "low".into(),
        payload: None,
        attributes: Some(object(json!({"y": 2}))),
        ..keyed("b", 2, Some("d1"), None)
    };
    let merged = domain.create(NewRecord { priority_given: false, ..new(second.clone()) }).await?;
    let record = &merged.record;
    assert_eq!((merged.how, record.id.as_str(), record.coalesced_count), (CreatedHow::Merged, "a", 2));
    assert_eq!((record.summary.as_str(), record.priority.as_str()), ("two", "high"), "NOTIF-031");
    assert_eq!((&record.payload, record.updated_at, record.created_at), (&Some(json!({"runs": [1, 2]})), at(2), at(1)));
    assert_eq!(record.attributes, Some(object(json!({"branch": "main", "y": 2}))));

    // NOTIF-030: all of thread, source, kind, agent and resource must be equal, and a key that is not empty.
    for (what, other) in [
        ("kind", NotificationRecord { kind: "other".into(), ..second.clone() }),
        ("agent", NotificationRecord { agent_id: None, ..second.clone() }),
        ("resource", NotificationRecord { resource_id: Some("bob".into()), ..second.clone() }),
        ("key", NotificationRecord { dedupe_key: Some(String::new()), ..second.clone() }),
    ] {
        let other = NotificationRecord { id: format!("by-{what}"), ..other };
        assert_eq!(domain.create(new(other)).await?.how, CreatedHow::New, "{what}");
    }
    // NOTIF-033: the same dedupe key goes before the same coalesce key, then what changed last.
    domain.create(new(keyed("c", 10, None, Some("c1")))).await?;
    domain.create(new(keyed("d", 11, Some("d2"), Some("c9")))).await?;
    let both = domain.create(new(keyed("x", 12, Some("d2"), Some("c1")))).await?;
    assert_eq!(both.record.id, "d", "NOTIF-033");
    assert_eq!(domain.create(new(keyed("x", 13, None, Some("c1")))).await?.record.id, "c");

    // NOTIF-034: what is no longer pending is another event, unless a window says otherwise.
    domain.update_status("t1", &["d".into()], "delivered", at(20)).await?;
    let again = NewRecord { dedupe_window: Duration::from_millis(100), ..new(keyed("e", 30, Some("d2"), None)) };
    let duplicate = domain.create(again.clone()).await?;
    assert_eq!((duplicate.how, duplicate.record.id.as_str()), (CreatedHow::Duplicate, "d"));
    assert_eq!((duplicate.record.status.as_str(), duplicate.record.coalesced_count), ("delivered", 3));
    assert_eq!(domain.create(NewRecord { dedupe_window: Duration::ZERO, ..again }).await?.how, CreatedHow::New);
    let late = NewRecord { dedupe_window: Duration::from_millis(100), ..new(keyed("f", 131, Some("d2"), None)) };
    assert_eq!(domain.create(late).await?.record.id, "e", "the window of d is over, and e is pending");
    Ok(())
}

pub(super) async fn notif_035_parallel_records_of_one_key_are_one(store: SharedStorage) -> Checked {
    let tasks: Vec<_> = (0..50)
        .map(|number| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let record = NotificationRecord { dedupe_key: Some("k".into()), ..record(&format!("p{number}"), 1) };
                domain(&store).create(new(record)).await.map(|created| created.how)
            })
        })
        .collect();
    let mut made = 0;
    for task in tasks {
        match task.await {
            Ok(how) => made += usize::from(how? == CreatedHow::New),
            Err(error) => panic!("{error}"),
        }
    }
    let all = domain(&store).list(&NotificationQuery::of_thread("t1")).await?.records;
    assert_eq!((made, all.len(), all[0].coalesced_count), (1, 1, 50));
    Ok(())
}

pub(super) async fn notif_060_due_records_come_in_order(store: SharedStorage) -> Checked {
    let domain = domain(&store);
    let due = |id: &str, deliver: Option<i64>, summary: Option<i64>| NotificationRecord {
        deliver_at: deliver.map(at),
        summary_at: summary.map(at),
        ..record(id, 1)
    };
    assert_eq!(domain.next_due_at(at(0)).await?, None);
    for record in [
        due("late", Some(500), None),
        due("third", Some(300), Some(400)),
        due("first", None, Some(100)),
        due("second", Some(900), Some(200)),
        due("never", None, None),
        NotificationRecord { status: "seen".into(), ..due("read", Some(1), None) },
        NotificationRecord { thread_id: "t2".into(), agent_id: Some("other".into()), ..due("other", Some(250), None) },
    ] {
        domain.create(new(record)).await?;
    }
    assert_eq!(domain.next_due_at(at(0)).await?, Some(at(100)));
    let query = DueQuery::at(at(450), 10);
    assert_eq!(names(&domain.list_due(&query).await?), ["first", "second", "other", "third"]);
    assert_eq!(names(&domain.list_due(&DueQuery { limit: 2, ..query.clone() }).await?), ["first", "second"]);
    let of_other = DueQuery { agent_id: Some("other".into()), ..query.clone() };
    assert_eq!(names(&domain.list_due(&of_other).await?), ["other"]);
    let of_bob = DueQuery { resource_id: Some("bob".into()), ..query.clone() };
    assert_eq!(names(&domain.list_due(&of_bob).await?), [] as [&str; 0]);

    // NOTIF-075: what is claimed is not due for others until the claim has run out.
    let two = DueQuery { limit: 2, ..query.clone() };
    let claimed = domain.claim_due(&two, &claim("one", 450, 600)).await?;
    let claimed: Vec<&str> = claimed.iter().map(|one| one.record.id.as_str()).collect();
    assert_eq!(claimed, ["first", "second"]);
    assert_eq!(names(&domain.list_due(&query).await?), ["other", "third"]);
    assert_eq!(domain.next_due_at(at(450)).await?, Some(at(250)));
    let rest = domain.claim_due(&query, &claim("two", 450, 550)).await?;
    assert_eq!(rest.len(), 2);
    assert_eq!(domain.next_due_at(at(450)).await?, Some(at(500)), "late is due before the first claim ends");
    let late = domain.claim_due(&DueQuery::at(at(520), 10), &claim("three", 520, 700)).await?;
    assert_eq!(late.len(), 1);
    assert_eq!(domain.next_due_at(at(520)).await?, Some(at(550)), "the end of a claim");
    Ok(())
}

pub(super) async fn notif_075_claims_have_one_holder(store: SharedStorage) -> Checked {
    let domain = domain(&store);
    let due = NotificationRecord { deliver_at: Some(at(0)), ..record("n1", 0) };
    let first = NewRecord { claim: Some(claim("one", 0, 100)), ..new(due) };
    let created = domain.create(first.clone()).await?;
    assert!(created.claimed, "NOTIF-076");
    let key = created.record.key();
    let keys = [key.clone()];
    assert_eq!(domain.claim(&keys, &claim("two", 50, 150)).await?, []);
    assert_eq!(domain.intend(&keys, "two", &"s".into()).await?, 0);
    assert_eq!(domain.intend(&keys, "one", &"s".into()).await?, 1);
    assert_eq!(domain.renew(&keys, "two", at(999)).await?, 0);
    assert_eq!(domain.renew(&keys, "one", at(200)).await?, 1);
    domain.release(&keys, "two").await?;
    assert_eq!(domain.claim_due(&DueQuery::at(at(199), 9), &claim("two", 199, 300)).await?, []);
    let taken = domain.claim_due(&DueQuery::at(at(200), 9), &claim("two", 200, 300)).await?;
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].intended, Some("s".into()), "who takes over knows what was about to be sent");

    // The final write needs the claim, the count, the status.
    let delivered = |token: &str| RecordChange {
        if_claimed: Some(token.into()),
        if_count: Some(1),
        release: true,
        only_pending: true,
        status: Some("delivered"),
        deliver_at: Some(None),
        delivered_signal_id: Some(Some("s".into())),
        ..RecordChange::at(at(210))
    };
    assert_eq!(domain.update(&key, delivered("one")).await?, None, "the claim is another's");
    let more = RecordChange { if_count: Some(2), ..delivered("two") };
    assert_eq!(domain.update(&key, more).await?, None);
    let read = RecordChange { if_status: Some(&["seen"]), ..delivered("two") };
    assert_eq!(domain.update(&key, read).await?, None);
    domain.update_status("t1", &["n1".into()], "dismissed", at(205)).await?;
    let put_away = domain.update(&key, delivered("two")).await?.unwrap_or_else(|| panic!("its conditions hold"));
    assert_eq!((put_away.status.as_str(), put_away.delivered_at), ("dismissed", None), "NOTIF-005");
    assert_eq!((put_away.delivered_signal_id, put_away.deliver_at), (Some("s".into()), Some(at(0))));
    assert_eq!(domain.claim(&keys, &claim("three", 220, 300)).await?, [], "what is put away is not sent");
    assert_eq!(domain.next_due_at(at(220)).await?, None, "the claim is gone with the write");

    // What is merged into while it is claimed is not the new one's to send.
    let keyed = |id: &str| NotificationRecord { coalesce_key: Some("c".into()), ..record(id, 230) };
    let held = NewRecord { claim: Some(claim("four", 230, 330)), ..new(keyed("m1")) };
    domain.create(held).await?;
    let second = NewRecord { claim: Some(claim("five", 231, 331)), ..new(keyed("m2")) };
    let merged = domain.create(second).await?;
    assert_eq!((merged.how, merged.claimed), (CreatedHow::Merged, false));
    Ok(())
}

pub(super) async fn notif_075_parallel_claims_take_each_record_once(store: SharedStorage) -> Checked {
    for number in 0..100 {
        let due = NotificationRecord { deliver_at: Some(at(number % 7)), ..record(&format!("n{number:03}"), number) };
        domain(&store).create(new(due)).await?;
    }
    let tasks: Vec<_> = (0..8)
        .map(|worker| {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                let mut taken = Vec::new();
                loop {
                    let claim = claim(&format!("w{worker}"), 50, 500);
                    let batch = domain(&store).claim_due(&DueQuery::at(at(50), 9), &claim).await?;
                    if batch.is_empty() {
                        return Ok::<_, StorageError>(taken);
                    }
                    taken.extend(batch.into_iter().map(|one| one.record.id));
                }
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        match task.await {
            Ok(taken) => all.extend(taken?),
            Err(error) => panic!("{error}"),
        }
    }
    all.sort();
    let expected: Vec<String> = (0..100).map(|number| format!("n{number:03}")).collect();
    assert_eq!(all, expected);
    Ok(())
}

pub(super) async fn notif_097_pages_follow_a_cursor_and_113_searches_are_literal(store: SharedStorage) -> Checked {
    let domain = domain(&store);
    for (number, summary) in ["Load is 100%", "load is 100 in all", "a_b", "aXb", "ÄRGER"].iter().enumerate() {
        // Two changed at the same moment: the id tells them apart.
        let record = NotificationRecord {
            summary: (*summary).into(),
            source: format!("Source{number}"),
            kind: format!("kind-{number}"),
            ..record(&format!("n{number}"), number as i64 / 2)
        };
        domain.create(new(record)).await?;
    }
    let mut query = NotificationQuery { limit: 2, ..NotificationQuery::of_thread("t1") };
    let mut pages = Vec::new();
    loop {
        let page = domain.list(&query).await?;
        pages.push(page.records.iter().map(|record| record.id.clone()).collect::<Vec<_>>());
        let Some(next) = page.next() else { break };
        query.after = NotificationCursor::parse(&next.to_string());
    }
    assert_eq!(pages, [vec!["n4", "n3"], vec!["n2", "n1"], vec!["n0"]]);
    let search = |text: &str| NotificationQuery {
        search: Some(text.to_owned()),
        limit: 10,
        ..NotificationQuery::of_thread("t1")
    };
    for (text, found) in [
        ("100%", vec!["n0"]),
        ("LOAD", vec!["n1", "n0"]),
        ("a_b", vec!["n2"]),
        ("ärger", vec!["n4"]),
        ("source3", vec!["n3"]),
        ("KIND-2", vec!["n2"]),
        ("none", vec![]),
    ] {
        assert_eq!(names(&domain.list(&search(text)).await?.records), found, "{text}");
        assert_eq!(domain.count(&search(text)).await?, found.len(), "{text}");
    }
    let one = domain.list(&NotificationQuery { limit: 1, ..search("load") }).await?;
    assert_eq!((names(&one.records), one.has_more), (vec!["n1"], true));
    Ok(())
}

pub(super) async fn ruling_33_a_rollback_makes_notifications_pending_again(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    store.save_messages(vec![super::message("s1", 1), super::message("s2", 2)]).await?;
    let shown = |id: &str, signal: &str| NotificationRecord {
        status: "delivered".into(),
        delivered_at: Some(at(1)),
        delivered_signal_id: Some(signal.into()),
        ..record(id, 1)
    };
    domain(&store).create(new(shown("n1", "s1"))).await?;
    domain(&store).create(new(shown("n2", "s2"))).await?;
    let removed: Vec<MessageId> = vec!["s1".into()];
    store.commit(Commit { removed, ..Commit::new(key(), 1) }).await?;
    let first = domain(&store).get("t1", "n1").await?.unwrap_or_else(|| panic!("n1 is there"));
    assert_eq!((first.status.as_str(), first.delivered_at, first.delivered_signal_id), ("pending", None, None));
    assert!(first.deliver_at.is_some(), "it is due");
    assert_eq!(domain(&store).get("t1", "n2").await?, Some(shown("n2", "s2")));
    Ok(())
}

pub(super) async fn notif_018_what_is_taken_back_is_pending_again(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    let entries = ["s1", "s2", "s3", "s4"].map(super::entry).to_vec();
    let accept = Accept { entries, thread: key(), claim: None, check_only: false, create_thread: false };
    store.accept(accept).await?;
    for (id, signal) in [("n1", "s1"), ("n2", "s2"), ("n3", "s3"), ("n4", "s4")] {
        let shown = NotificationRecord {
            status: "delivered".into(),
            delivered_at: Some(at(1)),
            delivered_signal_id: Some(signal.into()),
            ..record(id, 1)
        };
        domain(&store).create(new(shown)).await?;
    }
    for (signals, why) in
        [(vec!["s1", "none"], InboxEnd::Cancelled), (vec!["s2"], InboxEnd::Cleared), (vec!["s3"], InboxEnd::Dropped)]
    {
        let signals: Vec<MessageId> = signals.into_iter().map(MessageId::from).collect();
        store.remove_inbox(&key(), &signals, why).await?;
    }
    for (id, is_pending) in [("n1", true), ("n2", true), ("n3", false), ("n4", false)] {
        let found = domain(&store).get("t1", id).await?.unwrap_or_else(|| panic!("{id} is there"));
        assert_eq!(found.status, if is_pending { "pending" } else { "delivered" }, "NOTIF-018: {id}");
        assert_eq!((found.delivered_signal_id.is_none(), found.deliver_at), (is_pending, None), "quiet: {id}");
    }
    Ok(())
}

pub(super) async fn notif_114_what_another_resource_waits_for_stays(store: SharedStorage) -> Checked {
    let (domain, kept) = (domain(&store), subscriptions(&store));
    let subscription = |resource: &str| ProviderSubscription {
        id: format!("of-{resource}"),
        agent_id: "helper".into(),
        provider_id: "github".into(),
        resource_id: resource.into(),
        thread_id: "t1".into(),
        external_resource_id: "acme/app".into(),
        enabled: true,
        cursor: None,
        delivery_options: None,
        metadata: None,
        subscribed_at: at(1),
    };
    // Bob waits for a thread that is not there yet; Ann makes it and deletes it.
    let theirs = NotificationRecord { resource_id: Some("bob".into()), ..record("theirs", 1) };
    domain.create(NewRecord { claim: Some(claim("bobs", 1, 100)), ..new(theirs.clone()) }).await?;
    kept.subscribe(subscription("bob")).await?;
    store.delete_thread("t1").await?;
    with_thread(&*store).await?;
    for (id, resource) in [("mine", Some("ann")), ("nobodys", None)] {
        let own = NotificationRecord { resource_id: resource.map(str::to_owned), ..record(id, 2) };
        domain.create(NewRecord { claim: Some(claim("anns", 1, 100)), ..new(own) }).await?;
    }
    kept.subscribe(subscription("ann")).await?;
    store.transfer_thread("t1", "cid").await?;
    let owners = domain.list(&NotificationQuery::of_thread("t1")).await?.records;
    let owner = |id: &str| owners.iter().find(|record| record.id == id).and_then(|record| record.resource_id.clone());
    let cid = || Some("cid".to_owned());
    assert_eq!((owner("mine"), owner("nobodys"), owner("theirs")), (cid(), cid(), Some("bob".into())), "MEM-022");
    assert!(store.delete_thread("t1").await?);
    let left = domain.list(&NotificationQuery::of_thread("t1")).await?.records;
    assert_eq!(left, std::slice::from_ref(&theirs), "NOTIF-114");
    let held = domain.claim(&[theirs.key()], &claim("other", 50, 150)).await?;
    assert_eq!(held, [], "NOTIF-114: who was about to send it still holds it");
    let left = kept.list(&SubscriptionQuery::default()).await?;
    assert_eq!(left, [subscription("bob")], "PROV-015");
    let again = NewRecord { claim: Some(claim("new", 50, 150)), ..new(record("mine", 3)) };
    assert!(domain.create(again).await?.claimed, "NOTIF-114: the claims go with their records");
    Ok(())
}

pub(super) async fn prov_003_very_many_things_are_asked_for_at_once(store: SharedStorage) -> Checked {
    let kept = subscriptions(&store);
    let subscription = |id: &str, external: &str| ProviderSubscription {
        id: id.into(),
        agent_id: "helper".into(),
        provider_id: "github".into(),
        resource_id: "ann".into(),
        thread_id: "t1".into(),
        external_resource_id: external.into(),
        enabled: true,
        cursor: None,
        delivery_options: None,
        metadata: None,
        subscribed_at: at(1),
    };
    for (id, external) in [("s1", "acme/32999"), ("s2", "acme/0"), ("s3", "acme/web")] {
        kept.subscribe(subscription(id, external)).await?;
    }
    let mut externals: Vec<String> = (0..33_000).map(|number| format!("acme/{number}")).collect();
    externals.push("acme/0".into());
    let query = SubscriptionQuery { external_resource_ids: externals, ..SubscriptionQuery::of_provider("github") };
    let found: Vec<String> = kept.list(&query).await?.into_iter().map(|one| one.id).collect();
    assert_eq!(found, ["s1", "s2"], "PROV-003: oldest first, each once");
    assert_eq!(kept.claim_polls(&query, "one", at(0), at(100)).await?.len(), 2);
    assert_eq!(kept.unsubscribe(&query).await?, 2);
    let left: Vec<String> = kept.list(&SubscriptionQuery::default()).await?.into_iter().map(|one| one.id).collect();
    assert_eq!(left, ["s3"]);
    Ok(())
}

pub(super) async fn prov_003_014_subscriptions_are_kept_and_polled_by_one(store: SharedStorage) -> Checked {
    let kept = subscriptions(&store);
    let subscription = |id: &str, thread: &str, external: &str| ProviderSubscription {
        id: id.into(),
        agent_id: "helper".into(),
        provider_id: "github".into(),
        resource_id: "ann".into(),
        thread_id: thread.into(),
        external_resource_id: external.into(),
        enabled: true,
        cursor: None,
        delivery_options: None,
        metadata: Some(object(json!({"a": 1}))),
        subscribed_at: at(1),
    };
    let first = kept.subscribe(subscription("s1", "t1", "acme/app")).await?;
    let again = ProviderSubscription {
        metadata: Some(object(json!({"b": 2}))),
        delivery_options: Some(json!({"ifIdle": {"behavior": "persist"}})),
        ..subscription("other", "t1", "acme/app")
    };
    let merged = kept.subscribe(again).await?;
    assert_eq!((&merged.id, &merged.metadata), (&first.id, &Some(object(json!({"a": 1, "b": 2})))), "PROV-003");
    assert!(merged.delivery_options.is_some());
    kept.subscribe(subscription("s2", "t2", "acme/app")).await?;
    kept.subscribe(subscription("s3", "t2", "acme/web")).await?;
    let ids = |found: Vec<ProviderSubscription>| found.into_iter().map(|one| one.id).collect::<Vec<_>>();
    let all = SubscriptionQuery::of_provider("github");
    assert_eq!(ids(kept.list(&all).await?), ["s1", "s2", "s3"]);
    let app = SubscriptionQuery { external_resource_ids: vec!["acme/app".into()], ..all.clone() };
    assert_eq!(ids(kept.list(&app).await?), ["s1", "s2"]);
    assert_eq!(ids(kept.list(&SubscriptionQuery::of_provider("other")).await?), [] as [String; 0]);

    let polled = kept.claim_polls(&all, "one", at(0), at(100)).await?;
    assert_eq!(polled.len(), 3);
    assert_eq!(kept.claim_polls(&all, "two", at(50), at(150)).await?, [], "one instance polls");
    assert!(!kept.end_poll("s1", "two", Some("c"), at(60)).await?);
    assert!(kept.end_poll("s1", "one", Some("c1"), at(60)).await?);
    let next = kept.claim_polls(&all, "two", at(60), at(150)).await?;
    assert_eq!(
        next.iter().map(|one| (one.id.as_str(), one.cursor.as_deref())).collect::<Vec<_>>(),
        [("s1", Some("c1"))]
    );
    assert_eq!(ids(kept.claim_polls(&all, "three", at(100), at(200)).await?), ["s2", "s3"], "the first has died");

    store.create_thread(super::new_thread("t1", "ann")).await?;
    store.delete_thread("t1").await?;
    assert_eq!(ids(kept.list(&all).await?), ["s2", "s3"], "PROV-015");
    let web = SubscriptionQuery {
        thread_id: Some("t2".into()),
        external_resource_ids: vec!["acme/web".into()],
        ..all.clone()
    };
    assert_eq!(kept.unsubscribe(&web).await?, 1);
    assert_eq!(kept.unsubscribe(&web).await?, 0);
    assert_eq!(ids(kept.list(&SubscriptionQuery::default()).await?), ["s2"]);
    Ok(())
}
