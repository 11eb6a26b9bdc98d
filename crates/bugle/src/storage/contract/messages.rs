//! Messages.

use serde_json::json;

use super::{Checked, at, ids, message, message_ids, new_thread, object, with_thread};
use crate::{
    id::ThreadKey,
    message::{MessageContent, Part, Role, StoredMessage},
    storage::{Direction, IncludeMessage, MessageQuery, Page, SharedStorage, StorageError},
};

fn query() -> MessageQuery {
    MessageQuery {
        thread_ids: vec!["t1".into()],
        per_page: Some(40),
        direction: Direction::Asc,
        ..MessageQuery::default()
    }
}

/// `m01` … `m12`, a millisecond apart.
async fn twelve(store: &SharedStorage) -> Checked {
    with_thread(&**store).await?;
    store.save_messages((1..=12).map(|n| message(&format!("m{n:02}"), n)).collect()).await
}

fn page(found: &Page<StoredMessage>) -> (Vec<&str>, usize, bool) {
    (ids(&found.items), found.total, found.has_more)
}

pub(super) async fn mem_018_saving_touches_the_thread(store: SharedStorage) -> Checked {
    let before = store.create_thread(new_thread("t1", "ann")).await?;
    store.save_messages(vec![message("m1", 1)]).await?;
    let after = store.get_thread("t1").await?.unwrap_or_else(|| panic!("the thread is gone"));
    assert!(after.updated_at >= before.updated_at, "MEM-018");
    assert_eq!(after.created_at, before.created_at, "MEM-018");
    Ok(())
}

pub(super) async fn mem_043_sto_050_saving_again_replaces_and_keeps_the_time(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    let mut first = message("m1", 5);
    first.content = MessageContent {
        parts: vec![Part::Other(json!({"type": "data-x", "data": {"later": [1]}}))],
        metadata: Some(object(json!({"signal": {"x": 1}}))),
        extra: object(json!({"unknown": true})),
        ..MessageContent::default()
    };
    store.save_messages(vec![first.clone()]).await?;
    assert_eq!(store.get_messages(&["m1".into()]).await?, [first], "MEM-041: unknown parts and fields survive");
    let mut second = message("m1", 9);
    second.role = Role::Assistant;
    second.kind = Some("tag".into());
    store.save_messages(vec![second.clone()]).await?;
    second.created_at = at(5);
    assert_eq!(store.recent_messages(&super::key(), 5).await?, [second], "MEM-043");
    Ok(())
}

pub(super) async fn mem_044_messages_of_others_are_not_overwritten(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    store.create_thread(new_thread("t2", "bob")).await?;
    let mine = message("m1", 1);
    store.save_messages(vec![mine.clone()]).await?;
    let fresh = StoredMessage { thread_id: Some("t2".into()), resource_id: Some("bob".into()), ..message("m2", 2) };
    let stolen = StoredMessage { id: "m1".into(), ..fresh.clone() };
    let answer = store.save_messages(vec![fresh, stolen]).await;
    assert!(
        matches!(&answer, Err(StorageError::MessageOwnership { id }) if id.as_str() == "m1"),
        "MEM-044: {answer:?}"
    );
    let other = StoredMessage { resource_id: Some("bob".into()), ..message("m1", 1) };
    let answer = store.save_messages(vec![other]).await;
    assert!(matches!(answer, Err(StorageError::MessageOwnership { .. })), "MEM-044: {answer:?}");
    assert_eq!(store.get_messages(&message_ids(&["m1", "m2"])).await?, [mine], "MEM-044: nothing is written");
    Ok(())
}

pub(super) async fn mem_045_messages_need_a_home(store: SharedStorage) -> Checked {
    let missing = store.save_messages(vec![message("m1", 1)]).await;
    assert!(
        matches!(&missing, Err(StorageError::NotFound { what: "thread", id }) if id == "t1"),
        "MEM-045: the thread must exist: {missing:?}"
    );
    with_thread(&*store).await?;
    for homeless in
        [StoredMessage { thread_id: None, ..message("m1", 1) }, StoredMessage { resource_id: None, ..message("m1", 1) }]
    {
        let answer = store.save_messages(vec![message("m0", 0), homeless]).await;
        assert!(matches!(answer, Err(StorageError::Invalid(_))), "MEM-045: {answer:?}");
    }
    assert_eq!(store.recent_messages(&super::key(), 5).await?, [], "MEM-045: nothing is written");
    store.save_messages(Vec::new()).await
}

pub(super) async fn mem_048_deletion(store: SharedStorage) -> Checked {
    twelve(&store).await?;
    assert_eq!(
        store.delete_messages(&message_ids(&["m01", "none", "m02"])).await?,
        2,
        "MEM-048: unknown ids are ignored"
    );
    assert_eq!(store.delete_messages(&[]).await?, 0, "MEM-048: an empty list does nothing");
    let empty = store.delete_messages(&message_ids(&["m03", ""])).await;
    assert!(matches!(empty, Err(StorageError::Invalid(_))), "MEM-048: {empty:?}");
    assert_eq!(store.list_messages(query()).await?.total, 10, "MEM-048");
    Ok(())
}

pub(super) async fn mem_056_order_is_time_then_id(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    let saved = vec![message("d", 5), message("b", 5), message("a", 7), message("c", 5), message("e", 1)];
    store.save_messages(saved).await?;
    assert_eq!(ids(&store.recent_messages(&super::key(), u32::MAX).await?), ["e", "b", "c", "d", "a"], "MEM-056");
    assert_eq!(ids(&store.recent_messages(&super::key(), 3).await?), ["c", "d", "a"], "MEM-080: newest, oldest first");
    assert_eq!(store.recent_messages(&super::key(), 0).await?, []);
    assert_eq!(ids(&store.list_messages(query()).await?.items), ["e", "b", "c", "d", "a"], "MEM-056");
    let foreign = StoredMessage { resource_id: Some("guest".into()), ..message("g", 9) };
    store.save_messages(vec![foreign]).await?;
    assert_eq!(ids(&store.recent_messages(&super::key(), 1).await?), ["a"], "MEM-046: only the key's resource");
    assert_eq!(ids(&store.recent_messages(&ThreadKey::unowned("t1"), 1).await?), ["g"], "MEM-046: without one, all");
    Ok(())
}

pub(super) async fn mem_066_newest_page_oldest_first(store: SharedStorage) -> Checked {
    twelve(&store).await?;
    let newest = MessageQuery { newest_page_first: true, per_page: Some(10), ..query() };
    let first = store.list_messages(newest.clone()).await?;
    let expected: Vec<String> = (3..=12).map(|n| format!("m{n:02}")).collect();
    assert_eq!(page(&first), (expected.iter().map(String::as_str).collect(), 12, true), "MEM-066");
    let second = store.list_messages(MessageQuery { page: 1, ..newest.clone() }).await?;
    assert_eq!(page(&second), (vec!["m01", "m02"], 12, false), "MEM-066");
    let descending = MessageQuery { newest_page_first: false, direction: Direction::Desc, per_page: Some(2), ..newest };
    assert_eq!(page(&store.list_messages(descending).await?), (vec!["m12", "m11"], 12, true), "MEM-066: ordered pages");
    Ok(())
}

pub(super) async fn mem_067_pages_and_filters(store: SharedStorage) -> Checked {
    twelve(&store).await?;
    store.create_thread(new_thread("t2", "ann")).await?;
    let mut other = StoredMessage { thread_id: Some("t2".into()), ..message("x", 0) };
    *other.content.metadata_mut() = object(json!({"n": 1}));
    other.role = Role::Assistant;
    store.save_messages(vec![other]).await?;
    for (what, asked, expected) in [
        (
            "page 1",
            MessageQuery { page: 1, per_page: Some(5), ..query() },
            (vec!["m06", "m07", "m08", "m09", "m10"], 12, true),
        ),
        ("past the end", MessageQuery { page: 9, per_page: Some(5), ..query() }, (vec![], 12, false)),
        ("0 = none", MessageQuery { per_page: Some(0), ..query() }, (vec![], 12, false)),
        (
            "bounds",
            MessageQuery { start: Some((at(3), false)), end: Some((at(5), false)), ..query() },
            (vec!["m03", "m04", "m05"], 3, false),
        ),
        (
            "exclusive",
            MessageQuery { start: Some((at(3), true)), end: Some((at(5), true)), ..query() },
            (vec!["m04"], 1, false),
        ),
        (
            "two threads",
            MessageQuery { thread_ids: vec!["t1".into(), "t2".into()], per_page: Some(2), ..query() },
            (vec!["x", "m01"], 13, true),
        ),
        (
            "roles",
            MessageQuery { thread_ids: vec!["t1".into(), "t2".into()], roles: vec![Role::Assistant], ..query() },
            (vec!["x"], 1, false),
        ),
        (
            "metadata",
            MessageQuery { thread_ids: vec!["t1".into(), "t2".into()], metadata: object(json!({"n": 1})), ..query() },
            (vec!["x"], 1, false),
        ),
        ("a missing thread", MessageQuery { thread_ids: vec!["none".into()], ..query() }, (vec![], 0, false)),
    ] {
        assert_eq!(page(&store.list_messages(asked).await?), expected, "MEM-067: {what}");
    }
    let all = store.list_messages(MessageQuery { per_page: None, ..query() }).await?;
    assert_eq!((all.items.len(), all.has_more), (12, false), "MEM-067: all");
    for bad in [
        MessageQuery { thread_ids: Vec::new(), ..query() },
        MessageQuery { thread_ids: vec![" ".into()], ..query() },
        MessageQuery { metadata: object(json!({"a.b": 1})), ..query() },
    ] {
        let answer = store.list_messages(bad).await;
        assert!(matches!(answer, Err(StorageError::Invalid(_))), "MEM-067: {answer:?}");
    }
    Ok(())
}

pub(super) async fn mem_068_includes_are_not_counted(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    store.create_thread(new_thread("t2", "bob")).await?;
    store.save_messages(["a", "b", "c", "d", "e"].map(|id| message(id, 5)).to_vec()).await?;
    let foreign = StoredMessage { thread_id: Some("t2".into()), resource_id: Some("bob".into()), ..message("z", 9) };
    store.save_messages(vec![foreign]).await?;
    let include = |id: &str, before, after| IncludeMessage {
        id: id.into(),
        thread_id: None,
        with_previous_messages: before,
        with_next_messages: after,
    };
    let asked = MessageQuery { per_page: Some(0), include: vec![include("d", 1, 0)], ..query() };
    assert_eq!(page(&store.list_messages(asked).await?), (vec!["c", "d"], 5, false), "MEM-069: total order decides");
    let on_its_thread = IncludeMessage { thread_id: Some("t2".into()), ..include("z", 0, 0) };
    let asked = MessageQuery { per_page: Some(2), include: vec![include("b", 1, 1), on_its_thread], ..query() };
    assert_eq!(
        page(&store.list_messages(asked.clone()).await?),
        (vec!["a", "b", "c", "z"], 5, true),
        "MEM-068: any thread that is named, once each"
    );
    let wrong = IncludeMessage { thread_id: Some("t1".into()), ..include("z", 1, 1) };
    for unnamed in [include("z", 1, 1), wrong] {
        let asked = MessageQuery { per_page: Some(0), include: vec![unnamed], ..query() };
        assert_eq!(ids(&store.list_messages(asked).await?.items), [""; 0], "r7: no other thread");
    }
    let mine = MessageQuery { resource_id: Some("ann".into()), ..asked };
    assert_eq!(ids(&store.list_messages(mine).await?.items), ["a", "b", "c"], "MEM-068: only that resource's");
    Ok(())
}

pub(super) async fn mem_070_cursors(store: SharedStorage) -> Checked {
    twelve(&store).await?;
    store.save_messages(vec![message("m02a", 2)]).await?;
    let after = MessageQuery { after: Some("m02".into()), per_page: Some(2), ..query() };
    assert_eq!(page(&store.list_messages(after).await?), (vec!["m02a", "m03"], 11, true), "MEM-070");
    let before = MessageQuery { before: Some("m03".into()), newest_page_first: true, per_page: Some(2), ..query() };
    assert_eq!(page(&store.list_messages(before).await?), (vec!["m02", "m02a"], 3, true), "MEM-070");
    let unknown = store.list_messages(MessageQuery { before: Some("none".into()), ..query() }).await;
    assert!(matches!(unknown, Err(StorageError::NotFound { what: "message", .. })), "MEM-070: {unknown:?}");
    Ok(())
}

pub(super) async fn mem_071_other_resources_are_refused(store: SharedStorage) -> Checked {
    twelve(&store).await?;
    let answer = store.list_messages(MessageQuery { resource_id: Some("bob".into()), ..query() }).await;
    assert!(
        matches!(&answer, Err(StorageError::ThreadOwnership { thread, owner, given }) if thread == "t1" && owner == "ann" && given == "bob"),
        "MEM-071: {answer:?}"
    );
    Ok(())
}

pub(super) async fn mem_072_hidden_signals_leave_full_pages(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    let row = |n: i64, kind: &str, tag: &str| {
        let mut row = message(&format!("m{n}"), n);
        row.role = Role::Signal;
        row.kind = Some(tag.into());
        *row.content.metadata_mut() = object(json!({"signal": {"type": kind}}));
        row
    };
    let rows = vec![
        message("m1", 1),
        row(2, "reactive", "system-reminder"),
        row(3, "user", "user"),
        row(4, "reactive", "build"),
        row(5, "state", "state"),
        message("m6", 6),
    ];
    store.save_messages(rows).await?;
    let tags = MessageQuery { hide_signal_tags: vec!["system-reminder".into()], per_page: Some(2), ..query() };
    assert_eq!(page(&store.list_messages(tags.clone()).await?), (vec!["m1", "m3"], 5, true), "HTTP-163");
    let types = MessageQuery { hide_signal_types: vec!["reactive".into(), "state".into()], ..query() };
    assert_eq!(page(&store.list_messages(types).await?), (vec!["m1", "m3", "m6"], 3, false), "MEM-072");
    let include = IncludeMessage { id: "m3".into(), thread_id: None, with_previous_messages: 1, with_next_messages: 0 };
    let around = MessageQuery { per_page: Some(0), include: vec![include], ..tags };
    assert_eq!(ids(&store.list_messages(around).await?.items), ["m1", "m3"], "MEM-072: windows too");
    Ok(())
}
