//! Tracking of state lanes, and thread state.

use serde_json::json;

use super::{Checked, message, new_thread, object};
use crate::{
    id::MessageId,
    signal::{LaneChange, StateInput, StateMode, Tracking, tracked_lanes},
    storage::{CloneThread, Commit, MetadataChange, SharedStorage, StorageError, ThreadUpdate},
};

fn at(version: u64) -> Tracking {
    Tracking { current_cache_key: format!("k{version}"), version, ..Tracking::default() }
}

fn change(lane: &str, from: Option<u64>, to: Option<u64>) -> LaneChange {
    LaneChange { lane: lane.into(), expected: from.map(at), tracking: to.map(at) }
}

async fn versions(store: &SharedStorage) -> Result<Vec<(String, u64)>, StorageError> {
    let thread = store.get_thread("t1").await?.expect("the thread is there");
    Ok(tracked_lanes(&thread).into_iter().map(|(lane, tracking)| (lane, tracking.version)).collect())
}

pub(super) async fn state_026_tracking_is_a_patch_of_one_lane(store: SharedStorage) -> Checked {
    let created = store.create_thread(new_thread("t1", "ann")).await?;
    let metadata = json!({"mine": 1, "mastra": {"other": {"a": 1}, "stateSignals": {"old": "not an object"}}});
    let own = MetadataChange::Own(object(metadata));
    store.update_thread(ThreadUpdate { id: "t1".into(), metadata: own, ..ThreadUpdate::default() }).await?;
    // A title and two lanes at once: all survive.
    let title = ThreadUpdate { id: "t1".into(), title: Some("New".into()), ..ThreadUpdate::default() };
    let (titled, one, two) = futures::join!(
        store.update_thread(title),
        store.track_lanes("t1", vec![change("a", None, Some(1))]),
        store.track_lanes("t1", vec![change("b", None, Some(1))]),
    );
    titled?;
    assert!(one? && two?, "STATE-026");
    let thread = store.get_thread("t1").await?.expect("the thread is there");
    assert_eq!((thread.title.as_str(), thread.created_at), ("New", created.created_at), "STATE-026");
    let metadata = json!(thread.metadata);
    assert_eq!(metadata["mine"], 1, "STATE-021");
    assert_eq!(metadata["mastra"]["other"], json!({"a": 1}), "STATE-021");
    assert_eq!(metadata["mastra"]["stateSignals"]["old"], "not an object", "STATE-021");
    let mut lanes = versions(&store).await?;
    lanes.sort();
    assert_eq!(lanes, [("a".to_owned(), 1), ("b".to_owned(), 1)], "STATE-081: no lane is lost");
    let missing = store.track_lanes("none", vec![change("a", None, Some(1))]).await;
    assert!(matches!(missing, Err(StorageError::NotFound { what: "thread", .. })), "{missing:?}");
    Ok(())
}

pub(super) async fn state_081_a_lane_changes_only_as_expected(store: SharedStorage) -> Checked {
    store.create_thread(new_thread("t1", "ann")).await?;
    assert!(store.track_lanes("t1", vec![change("a", None, Some(1))]).await?);
    assert!(!store.track_lanes("t1", vec![change("a", None, Some(1))]).await?, "STATE-081: it is tracked by now");
    let both = vec![change("b", None, Some(1)), change("a", Some(4), Some(5))];
    assert!(!store.track_lanes("t1", both).await?);
    assert_eq!(versions(&store).await?, [("a".to_owned(), 1)], "STATE-081: all or nothing");
    let writes = (0..8).map(|_| store.track_lanes("t1", vec![change("a", Some(1), Some(2))]));
    let won = futures::future::try_join_all(writes).await?.into_iter().filter(|won| *won).count();
    assert_eq!(won, 1, "STATE-081: one of eight wins");
    assert!(store.track_lanes("t1", vec![change("a", Some(2), None)]).await?);
    assert_eq!(versions(&store).await?, []);
    Ok(())
}

pub(super) async fn state_077_a_clone_has_lanes_of_its_own(store: SharedStorage) -> Checked {
    store.create_thread(new_thread("t1", "ann")).await?;
    let mut row = message("s1", 0);
    row.thread_id = Some("t1".into());
    row.content.metadata = Some(object(json!({"signal": {"metadata": {"state": {"id": "a", "threadId": "t1"}}}})));
    store.save_messages(vec![row]).await?;
    let tracking = Tracking { last_signal_id: Some("s1".into()), ..at(1) };
    let tracked = LaneChange { lane: "a".into(), expected: None, tracking: Some(tracking) };
    store.track_lanes("t1", vec![tracked, change("gone", None, Some(3))]).await?;
    let clone =
        CloneThread { source_thread_id: "t1".into(), new_thread_id: Some("t2".into()), ..CloneThread::default() };
    let cloned = store.clone_thread(clone).await?;
    let copied = json!(cloned.cloned_messages[0]);
    assert_eq!(copied["content"]["metadata"]["signal"]["metadata"]["state"]["threadId"], "t2", "STATE-077");
    let stored = store.get_thread("t2").await?.expect("the clone is there");
    let lanes = tracked_lanes(&stored);
    assert_eq!(lanes.len(), 1, "STATE-077: a lane without its state is not known");
    let fresh: Option<&MessageId> = cloned.message_id_map.get(&MessageId::from("s1"));
    assert_eq!(lanes[0].1.last_signal_id.as_ref(), fresh, "STATE-077");
    Ok(())
}

pub(super) async fn state_034_what_is_taken_back_leaves_its_lane(store: SharedStorage) -> Checked {
    store.create_thread(new_thread("t1", "ann")).await?;
    let mut tracking = None;
    let mut rows = Vec::new();
    for (id, version) in [("s1", 1), ("s2", 2), ("s3", 3), ("s4", 4)] {
        let state = StateInput::snapshot("a", format!("k{version}"), "x");
        let now = super::at(i64::try_from(version).unwrap_or_default());
        let signal = state.signal("a", "t1", version, id.into(), now).unwrap_or_else(|error| panic!("{error}"));
        rows.push(signal.to_stored(Some(&super::key()), now));
        tracking =
            Some(Tracking::after(tracking.as_ref(), (state.key(), StateMode::Snapshot, version), &id.into(), now));
    }
    store.save_messages(rows.clone()).await?;
    let tracked = LaneChange { lane: "a".into(), expected: None, tracking };
    store.track_lanes("t1", vec![tracked]).await?;
    let current = async || -> Result<_, StorageError> {
        let thread = store.get_thread("t1").await?.expect("the thread is there");
        let (_, tracking) = tracked_lanes(&thread).remove(0);
        Ok((tracking.current_cache_key, tracking.version))
    };
    // Rolled back, blocked, deleted.
    store.commit(Commit { removed: vec!["s4".into()], ..Commit::new(super::key(), 1) }).await?;
    assert_eq!(current().await?, ("k3".to_owned(), 4));
    let mut blocked = rows.swap_remove(2);
    blocked.mark_blocked("no", "guard");
    store.commit(Commit { messages: vec![blocked], ..Commit::new(super::key(), 1) }).await?;
    assert_eq!(current().await?, ("k2".to_owned(), 4));
    store.delete_messages(&["s2".into()]).await?;
    assert_eq!(current().await?, ("k1".to_owned(), 4));
    store.delete_messages(&["s1".into()]).await?;
    assert_eq!(current().await?, (String::new(), 4), "any state is new");
    Ok(())
}

pub(super) async fn prov_007_sto_058_thread_state_is_kept_by_kind(store: SharedStorage) -> Checked {
    store.create_thread(new_thread("t1", "ann")).await?;
    assert_eq!(store.get_thread_state("t1", "task").await?, None);
    store.set_thread_state("t1", "task", Some(json!([{"id": "a"}]))).await?;
    store.set_thread_state("t1", "goal", Some(json!({"objective": "x"}))).await?;
    store.set_thread_state("t1", "task", Some(json!([]))).await?;
    assert_eq!(store.get_thread_state("t1", "task").await?, Some(json!([])));
    let text = store.set_thread_state("t1", "task", Some(json!("text"))).await;
    assert!(matches!(text, Err(StorageError::Invalid(_))), "STO-079: {text:?}");
    let homeless = store.set_thread_state("none", "task", Some(json!([]))).await;
    assert!(matches!(homeless, Err(StorageError::NotFound { .. })), "{homeless:?}");
    store.set_thread_state("t1", "task", None).await?;
    assert_eq!(store.get_thread_state("t1", "task").await?, None);
    assert!(store.delete_thread("t1").await?);
    assert_eq!(store.get_thread_state("t1", "goal").await?, None, "MEM-019");
    Ok(())
}
