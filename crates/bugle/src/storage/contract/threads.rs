//! Threads and resources.

use serde_json::json;

use super::{Checked, at, entry, key, message, new_thread, object, with_thread};
use crate::{
    id::MessageId,
    message::Role,
    storage::{
        Accept, CloneThread, Commit, Direction, MessageQuery, MetadataChange, NewThread, ResourceChange, SharedStorage,
        StorageError, ThreadOrder, ThreadQuery, ThreadUpdate,
    },
};

pub(super) async fn mem_014_sto_051_create_keeps_owner_and_creation_time(store: SharedStorage) -> Checked {
    let given = NewThread { metadata: Some(object(json!({"a": 1}))), ..new_thread("t1", "ann") };
    let first = store.create_thread(given).await?;
    assert_eq!((first.title.as_str(), first.created_at), ("", first.updated_at), "MEM-010");
    assert_eq!(store.get_thread("t1").await?, Some(first.clone()), "MEM-014: what is returned is stored");
    let again =
        NewThread { title: Some("Trip".into()), metadata: Some(object(json!({"b": 2}))), ..new_thread("t1", "ann") };
    let second = store.create_thread(again).await?;
    assert_eq!(second.created_at, first.created_at, "MEM-014: createdAt stays");
    assert_eq!((second.title.as_str(), second.metadata), ("Trip", Some(object(json!({"a": 1, "b": 2})))), "MEM-014");
    let bare = store.create_thread(new_thread("t1", "ann")).await?;
    assert_eq!(bare.title, "Trip", "MEM-014: what is not given stays");
    let stolen = store.create_thread(NewThread { title: Some("mine".into()), ..new_thread("t1", "bob") }).await;
    assert!(
        matches!(&stolen, Err(StorageError::ThreadOwnership { owner, given, .. }) if owner == "ann" && given == "bob"),
        "MEM-014: another owner is refused: {stolen:?}"
    );
    assert_eq!(store.get_thread("t1").await?.map(|thread| thread.title).as_deref(), Some("Trip"), "MEM-014");
    let minted = store.create_thread(NewThread { resource_id: "ann".into(), ..NewThread::default() }).await?;
    assert!(!minted.id.is_empty() && minted.id != "t1", "MEM-014: an id is made");
    assert_eq!(store.get_thread("none").await?, None);
    Ok(())
}

pub(super) async fn mem_015_updates_merge_and_none_is_lost(store: SharedStorage) -> Checked {
    let before = store.create_thread(new_thread("t1", "ann")).await?;
    let updates = (1..=4).map(|n| {
        let metadata = MetadataChange::Merge(object(json!({format!("k{n}"): n})));
        store.update_thread(ThreadUpdate { id: "t1".into(), metadata, ..ThreadUpdate::default() })
    });
    futures::future::try_join_all(updates).await?;
    let title = ThreadUpdate { id: "t1".into(), title: Some("New".into()), ..ThreadUpdate::default() };
    let after = store.update_thread(title).await?;
    assert_eq!(
        after.metadata.clone(),
        Some(object(json!({"k1": 1, "k2": 2, "k3": 3, "k4": 4}))),
        "MEM-015: 4 concurrent updates leave all four"
    );
    assert!(after.updated_at >= before.updated_at && after.created_at == before.created_at, "MEM-015");
    assert_eq!(store.get_thread("t1").await?, Some(after), "MEM-015");
    let missing = store.update_thread(ThreadUpdate { id: "none".into(), ..ThreadUpdate::default() }).await;
    assert!(matches!(missing, Err(StorageError::NotFound { what: "thread", .. })), "MEM-015: {missing:?}");
    Ok(())
}

pub(super) async fn mem_016_threads_are_paged(store: SharedStorage) -> Checked {
    for n in 0..5 {
        store.create_thread(new_thread(&format!("t{n}"), "ann")).await?;
    }
    store.create_thread(new_thread("other", "bob")).await?;
    // Written last, so first by updatedAt unless all share a millisecond; then the id decides, and "t4" is the largest.
    let mut message = message("m", 0);
    message.thread_id = Some("t4".into());
    store.save_messages(vec![message]).await?;
    let query = ThreadQuery { resource_id: Some("ann".into()), per_page: Some(2), ..ThreadQuery::default() };
    let mut seen = Vec::new();
    for page in 0..4 {
        let found = store.list_threads(ThreadQuery { page, ..query.clone() }).await?;
        assert_eq!((found.total, found.page, found.per_page), (5, page, Some(2)), "MEM-016");
        assert_eq!(found.has_more, page < 2, "MEM-016: page {page}");
        seen.extend(found.items.into_iter().map(|thread| thread.id));
    }
    let all = store.list_threads(ThreadQuery { per_page: None, ..query.clone() }).await?;
    let listed: Vec<_> = all.items.iter().map(|thread| thread.id.clone()).collect();
    assert_eq!(seen, listed, "MEM-016: the pages are the whole");
    assert!(all.items.is_sorted_by(|a, b| (a.created_at, &a.id) > (b.created_at, &b.id)), "MEM-016: newest first");
    let oldest = ThreadQuery { direction: Direction::Asc, ..query.clone() };
    assert_eq!(store.list_threads(oldest).await?.items[0].id, listed[4], "MEM-016: ascending");
    let updated = ThreadQuery { order: ThreadOrder::UpdatedAt, ..query.clone() };
    assert_eq!(store.list_threads(updated).await?.items[0].id, "t4", "MEM-016: by updatedAt");
    assert_eq!(store.list_threads(ThreadQuery::default()).await?.total, 6, "MEM-016: of all resources");
    let bad = store.list_threads(ThreadQuery { per_page: None, page: 1, ..query }).await;
    assert!(matches!(bad, Err(StorageError::Invalid(_))), "MEM-016: {bad:?}");
    Ok(())
}

pub(super) async fn mem_017_metadata_filters(store: SharedStorage) -> Checked {
    for (id, metadata) in [
        ("t-int", json!({"n": 3, "s": "x"})),
        ("t-float", json!({"n": 3.5})),
        ("t-text", json!({"n": "3"})),
        ("t-bool", json!({"n": true})),
        ("t-null", json!({"n": null})),
        ("t-deep", json!({"n": {"a": 1}})),
    ] {
        store.create_thread(NewThread { metadata: Some(object(metadata)), ..new_thread(id, "ann") }).await?;
    }
    store.create_thread(new_thread("t-none", "ann")).await?;
    for (filter, found) in [
        (json!({"n": 3}), vec!["t-int"]),
        (json!({"n": 3.5}), vec!["t-float"]),
        (json!({"n": "3"}), vec!["t-text"]),
        (json!({"n": true}), vec!["t-bool"]),
        (json!({"n": false}), vec![]),
        (json!({"n": null}), vec!["t-none", "t-null"]),
        (json!({"n": 3, "s": "x"}), vec!["t-int"]),
        (json!({"n": 3, "s": "y"}), vec![]),
    ] {
        let query = ThreadQuery { metadata: object(filter.clone()), ..ThreadQuery::default() };
        let page = store.list_threads(query).await?;
        let mut listed: Vec<_> = page.items.iter().map(|thread| thread.id.as_str()).collect();
        listed.sort_unstable();
        assert_eq!((listed, page.total), (found.clone(), found.len()), "MEM-017: {filter}");
    }
    let long = "k".repeat(129);
    for bad in
        [json!({"a b": 1}), json!({"": 1}), json!({"1a": 1}), json!({"x'": 1}), json!({long: 1}), json!({"a": [1]})]
    {
        let query = ThreadQuery { metadata: object(bad.clone()), ..ThreadQuery::default() };
        let answer = store.list_threads(query).await;
        assert!(matches!(answer, Err(StorageError::Invalid(_))), "MEM-017: {bad}: {answer:?}");
    }
    Ok(())
}

pub(super) async fn mem_019_sto_059_deletion_leaves_nothing(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    store.save_messages(vec![message("m1", 1)]).await?;
    let accept = Accept {
        entries: vec![entry("s1"), entry("s2")],
        thread: key(),
        claim: None,
        check_only: false,
        create_thread: false,
    };
    store.accept(accept.clone()).await?;
    store.commit(Commit { consumed: vec!["s1".into()], ..Commit::new(key(), 0) }).await?;
    assert!(store.delete_thread("t1").await?, "MEM-019");
    assert!(!store.delete_thread("t1").await?, "MEM-019: deleting nothing is no error");
    assert_eq!(store.get_thread("t1").await?, None, "MEM-019");
    assert_eq!(store.recent_messages(&key(), u32::MAX).await?, [], "MEM-019");
    assert_eq!(store.get_messages(&["m1".into()]).await?, [], "MEM-019");
    assert_eq!(store.inbox(&key()).await?, [], "MEM-019: the journal goes too");
    assert_eq!(store.unfinished("me", None, 10).await?, [], "MEM-019");
    let again = store.accept(accept).await?;
    assert!(
        again.entries.iter().all(|outcome| matches!(outcome, crate::storage::EntryOutcome::Appended { .. })),
        "MEM-019: placement is forgotten: {again:?}"
    );
    Ok(())
}

pub(super) async fn mem_020_clones(store: SharedStorage) -> Checked {
    let metadata = Some(object(json!({"own": 1, "workingMemory": "# notes", "mastra": {"stateSignals": {}}})));
    store.create_thread(NewThread { title: Some("Trip".into()), metadata, ..new_thread("t1", "ann") }).await?;
    let mut messages: Vec<_> = (1..=4).map(|n| message(&format!("m{n}"), n)).collect();
    *messages[3].content.metadata_mut() =
        object(json!({"pendingToolApprovals": {"c": 1}, "suspendedTools": {}, "kept": 1}));
    store.save_messages(messages).await?;
    let clone = CloneThread {
        source_thread_id: "t1".into(),
        new_thread_id: Some("t2".into()),
        resource_id: Some("bob".into()),
        metadata: Some(object(json!({"given": true}))),
        message_limit: Some(2),
        ..CloneThread::default()
    };
    let cloned = store.clone_thread(clone.clone()).await?;
    let thread = &cloned.thread;
    assert_eq!(
        (thread.id.as_str(), thread.resource_id.as_str(), thread.title.as_str()),
        ("t2", "bob", "Clone of Trip")
    );
    let expected = json!({
        "given": true,
        "workingMemory": "# notes",
        "clone": {"sourceThreadId": "t1", "clonedAt": thread.created_at, "lastMessageId": "m4"},
    });
    assert_eq!(thread.metadata, Some(object(expected)), "MEM-020, MEM-021");
    assert_eq!(store.get_thread("t2").await?.as_ref(), Some(thread), "MEM-020");
    let stored = store.recent_messages(&crate::id::ThreadKey::new("bob", "t2"), 10).await?;
    assert_eq!(stored, cloned.cloned_messages, "MEM-020");
    let times: Vec<_> = stored.iter().map(|message| message.created_at).collect();
    assert_eq!(times, [at(3), at(4)], "MEM-020: the newest n, times kept");
    assert_eq!(cloned.message_id_map.get(&MessageId::from("m4")), Some(&stored[1].id), "MEM-020");
    assert_eq!(
        stored[1].content.metadata,
        Some(object(json!({"kept": 1}))),
        "MEM-021: foreign pending calls are dropped"
    );
    assert!(!stored.iter().any(|message| message.id.starts_with('m')), "MEM-020: new ids");
    let taken = store.clone_thread(clone.clone()).await;
    assert!(matches!(taken, Err(StorageError::Exists { what: "thread", .. })), "MEM-020: {taken:?}");
    let missing = store.clone_thread(CloneThread { source_thread_id: "none".into(), ..CloneThread::default() }).await;
    assert!(matches!(missing, Err(StorageError::NotFound { what: "thread", .. })), "MEM-020: {missing:?}");
    let window = CloneThread {
        source_thread_id: "t1".into(),
        start: Some(at(2)),
        end: Some(at(3)),
        message_ids: Some(vec!["m3".into(), "m4".into()]),
        ..CloneThread::default()
    };
    let narrow = store.clone_thread(window).await?;
    assert_eq!(narrow.message_id_map.into_keys().collect::<Vec<_>>(), ["m3".into()], "MEM-020: filters");
    Ok(())
}

pub(super) async fn mem_022_transfer(store: SharedStorage) -> Checked {
    store.create_thread(NewThread { metadata: Some(object(json!({"a": 1}))), ..new_thread("t1", "ann") }).await?;
    store.save_messages(vec![message("m1", 1)]).await?;
    let moved = store.transfer_thread("t1", "bob").await?;
    assert_eq!((moved.resource_id.as_str(), moved.metadata.clone()), ("bob", Some(object(json!({"a": 1})))), "MEM-022");
    assert_eq!(store.get_thread("t1").await?, Some(moved), "MEM-022");
    let query =
        MessageQuery { thread_ids: vec!["t1".into()], resource_id: Some("bob".into()), ..MessageQuery::default() };
    let found = store.list_messages(MessageQuery { per_page: Some(10), ..query }).await?;
    assert_eq!(found.items[0].resource_id.as_deref(), Some("bob"), "MEM-022: messages move too");
    let missing = store.transfer_thread("none", "bob").await;
    assert!(matches!(missing, Err(StorageError::NotFound { .. })), "MEM-022: {missing:?}");
    Ok(())
}

pub(super) async fn mem_023_runtime_keys_stay(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    let change = |metadata| ThreadUpdate { id: "t1".into(), metadata, ..ThreadUpdate::default() };
    let own = object(json!({"mastra": {"s": 1}, "workingMemory": "w", "gone": 1}));
    store.update_thread(change(MetadataChange::Own(own))).await?;
    let foreign = object(json!({"mastra": 0, "a": 1}));
    let merged = store.update_thread(change(MetadataChange::Merge(foreign))).await?;
    assert_eq!(
        merged.metadata,
        Some(object(json!({"mastra": {"s": 1}, "workingMemory": "w", "gone": 1, "a": 1}))),
        "MEM-023"
    );
    let foreign = object(json!({"mastra": 0, "workingMemory": 0, "b": 2}));
    let replaced = store.update_thread(change(MetadataChange::Replace(foreign))).await?;
    assert_eq!(
        replaced.metadata,
        Some(object(json!({"b": 2, "mastra": {"s": 1}, "workingMemory": "w"}))),
        "HTTP-153: replaced but for the runtime's keys"
    );
    let cleared = store.update_thread(change(MetadataChange::Own(object(json!({"mastra": null}))))).await?;
    assert_eq!(cleared.metadata, Some(object(json!({"b": 2, "workingMemory": "w"}))), "null removes a key");
    Ok(())
}

pub(super) async fn mem_031_title_only_if_empty(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    let title = |title: &str, title_if_empty| ThreadUpdate {
        id: "t1".into(),
        title: Some(title.into()),
        title_if_empty,
        ..ThreadUpdate::default()
    };
    assert_eq!(store.update_thread(title("first", true)).await?.title, "first", "MEM-031");
    assert_eq!(store.update_thread(title("second", true)).await?.title, "first", "MEM-031");
    assert_eq!(store.update_thread(title("third", false)).await?.title, "third", "MEM-031");
    Ok(())
}

pub(super) async fn mem_104_resource_changes_merge(store: SharedStorage) -> Checked {
    assert_eq!(store.get_resource("ann").await?, None);
    let merge = |value| store.update_resource("ann", ResourceChange::MergeWorkingMemory(object(value)));
    let changes = [json!({"a": {"x": 1}}), json!({"a": {"y": 2}}), json!({"b": [1]}), json!({"c": 1})];
    futures::future::try_join_all(changes.map(merge)).await?;
    let written = merge(json!({"b": [2], "c": null, "a": {"x": null}})).await?;
    let memory: serde_json::Value = serde_json::from_str(written.working_memory.as_deref().unwrap_or_default())
        .map_err(|error| StorageError::Invalid(error.to_string()))?;
    assert_eq!(memory, json!({"a": {"y": 2}, "b": [2]}), "MEM-104, MEM-101");
    let with_metadata = store.update_resource("ann", ResourceChange::Metadata(object(json!({"m": 1})))).await?;
    assert_eq!(store.get_resource("ann").await?, Some(with_metadata.clone()), "MEM-104");
    assert_eq!(with_metadata.working_memory, written.working_memory, "MEM-104: the rest stays");
    let text = store.update_resource("ann", ResourceChange::WorkingMemory(Some("# text".into()))).await?;
    assert_eq!(text.working_memory.as_deref(), Some("# text"), "MEM-101");
    assert_eq!(text.created_at, written.created_at);
    let broken = merge(json!({"a": 1})).await;
    assert!(matches!(broken, Err(StorageError::Invalid(_))), "MEM-101: markdown cannot be merged: {broken:?}");
    let none = store.update_resource("ann", ResourceChange::WorkingMemory(None)).await?;
    assert_eq!(none.working_memory, None);
    Ok(())
}

pub(super) async fn r39_text_comes_back_whole(store: SharedStorage) -> Checked {
    let text = "a\0b\u{fffd}c \u{1f600} \u{7f} end";
    let metadata = Some(object(json!({"k": text})));
    let given = NewThread { title: Some(text.into()), metadata, ..new_thread("t1", "ann") };
    store.create_thread(given).await?;
    let mut stored = message("m1", 1);
    stored.content = crate::message::StoredMessage::text("m1".into(), Role::User, text, at(1)).content;
    store.save_messages(vec![stored.clone()]).await?;
    let thread = store.get_thread("t1").await?.unwrap_or_else(|| panic!("the thread is gone"));
    for read in [thread.title.as_str(), thread.metadata.as_ref().and_then(|m| m["k"].as_str()).unwrap_or_default()] {
        assert!(read.starts_with('a') && read.ends_with("c \u{1f600} \u{7f} end"), "R39: {read:?}");
        assert!(read == text || read == text.replace('\0', "\u{fffd}"), "R39: {read:?}");
    }
    let read = store.get_messages(&["m1".into()]).await?[0].joined_text();
    assert!(read == text || read == text.replace('\0', "\u{fffd}"), "R39: {read:?}");
    Ok(())
}
