//! Parked runs: the pair of rows, listing, and that one caller goes on with a run.

use serde_json::json;

use super::{Checked, at, key, message, new_thread, with_thread};
use crate::{
    id::{RunId, ThreadKey},
    storage::{Commit, ParkedQuery, ParkedRun, RunChange, RunRecord, SharedStorage, StorageError},
};

/// A pair as runs write it: what the reference reads of it, and no more.
fn parked(run_id: &str, thread: Option<ThreadKey>, agent_id: &str, millis: i64) -> ParkedRun {
    let suspended_at = at(millis);
    let ms = suspended_at.as_millis();
    let memory = thread.as_ref().map_or(
        json!({}),
        |thread| json!({ "threadId": &*thread.thread_id, "resourceId": thread.resource_id.as_deref() }),
    );
    let payload = json!({
        "requireToolApproval": { "toolCallId": "c1", "toolName": "remove", "args": {} },
        "__agentId": agent_id,
        "__streamState": { "messageList": { "messages": [], "systemMessages": [], "memoryInfo": memory } },
    });
    let step = json!({ "status": "suspended", "startedAt": ms, "suspendedAt": ms, "suspendPayload": payload });
    let row = |context, path| {
        json!({
            "runId": run_id, "status": "suspended", "value": {}, "context": context, "activePaths": [],
            "serializedStepGraph": [], "suspendedPaths": path, "resumeLabels": {}, "timestamp": ms,
        })
    };
    ParkedRun {
        run_id: run_id.into(),
        resource_id: thread.as_ref().and_then(|thread| thread.resource_id.as_deref().map(str::to_owned)),
        thread,
        agent_id: agent_id.to_owned(),
        outer: row(json!({ "input": {}, "executionWorkflow": step }), json!({ "executionWorkflow": [0] })),
        inner: row(json!({ "input": {}, "toolCallStep": { "status": "suspended" } }), json!({ "toolCallStep": [2] })),
        suspended_at,
    }
}

fn record(run_id: &str) -> RunRecord {
    RunRecord {
        run_id: run_id.into(),
        thread: key(),
        agent_id: "helper".into(),
        snapshot: json!({ "step": 1 }),
        updated_at: at(1),
    }
}

fn commit(run: RunChange) -> Commit {
    Commit { run, ..Commit::new(key(), 1) }
}

async fn park(store: &SharedStorage, run: ParkedRun) -> Checked {
    let thread = run.thread.clone().unwrap_or_else(key);
    let run = RunChange::Park { run: Box::new(run), last_event: 7 };
    store.commit(Commit { run, ..Commit::new(thread, 1) }).await.map(drop)
}

pub(super) async fn loop_100_a_parked_run_is_its_pair(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    let id = RunId::from("r1");
    assert_eq!(store.parked_run(&id).await?, None);
    store.commit(commit(RunChange::Save(record("r1")))).await?;
    let run = parked("r1", Some(key()), "helper", 5);
    let parks = RunChange::Park { run: Box::new(run.clone()), last_event: 9 };
    store.commit(Commit { messages: vec![message("m1", 1)], ..commit(parks) }).await?;
    assert_eq!(store.parked_run(&id).await?, Some(run), "LOOP-100: it comes back as it was");
    assert_eq!(store.get_run(&id).await?, None, "LOOP-100: a parked run has no record");
    assert_eq!(store.last_event(&key()).await?, Some((1, 9)), "HTTP-243: the last event is remembered");
    assert_eq!(store.unfinished("me", None, 9).await?, [], "SIG-502: parked runs wait for people");
    assert_eq!(store.recent_messages(&key(), 9).await?.len(), 1, "LOOP-093: with its messages");
    let again = parked("r1", Some(key()), "helper", 6);
    store.commit(commit(RunChange::Resume(record("r1")))).await?;
    park(&store, again.clone()).await?;
    assert_eq!(store.parked_run(&id).await?, Some(again), "SUB-129: it parks again");
    Ok(())
}

pub(super) async fn loop_116_of_two_who_go_on_one_does(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    let id = RunId::from("r1");
    park(&store, parked("r1", Some(key()), "helper", 5)).await?;
    let resume = || Commit { messages: vec![message("m1", 1)], ..commit(RunChange::Resume(record("r1"))) };
    let (one, other) = tokio::join!(store.commit(resume()), store.commit(resume()));
    let refused = one.err().xor(other.err());
    assert!(matches!(refused, Some(StorageError::NotParked { .. })), "LOOP-116: {refused:?}");
    assert_eq!(store.parked_run(&id).await?, None, "STO-112");
    assert_eq!(store.get_run(&id).await?, Some(record("r1")));
    let late = Commit { messages: vec![message("m2", 2)], ..commit(RunChange::Resume(record("r1"))) };
    let late = store.commit(late).await;
    assert!(matches!(late, Err(StorageError::NotParked { .. })), "LOOP-115: {late:?}");
    assert_eq!(store.recent_messages(&key(), 9).await?.len(), 1, "LOOP-116: nothing of a refused commit is written");
    assert!(!store.unpark(&id).await?, "STO-112");
    Ok(())
}

pub(super) async fn loop_118_parked_runs_are_listed_newest_first(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    let other = ThreadKey::new("bob", "t2");
    store.create_thread(new_thread("t2", "bob")).await?;
    for (id, thread, agent, millis) in
        [("r1", key(), "helper", 1), ("r2", key(), "helper", 3), ("r3", key(), "other", 2), ("r4", other, "helper", 4)]
    {
        park(&store, parked(id, Some(thread), agent, millis)).await?;
    }
    let list = async |query: ParkedQuery| {
        let page = store.list_parked(query).await?;
        let ids: Vec<String> = page.items.iter().map(|run| run.run_id.to_string()).collect();
        Ok::<_, StorageError>((ids.join(" "), page.total, page.has_more))
    };
    let all = || ParkedQuery::default();
    let helper = || ParkedQuery { agent_id: Some("helper".into()), ..all() };
    assert_eq!(list(all()).await?, ("r4 r2 r3 r1".into(), 4, false), "LOOP-118");
    assert_eq!(list(helper()).await?, ("r4 r2 r1".into(), 3, false), "LOOP-118: only this agent's");
    assert_eq!(list(ParkedQuery::of_thread(&key())).await?, ("r2 r3 r1".into(), 3, false), "LOOP-118: of a thread");
    let bobs = ParkedQuery { resource_id: Some("bob".into()), ..all() };
    assert_eq!(list(bobs).await?, ("r4".into(), 1, false), "LOOP-118: of a resource");
    let between = ParkedQuery { from: Some(at(2)), to: Some(at(3)), ..all() };
    assert_eq!(list(between).await?, ("r2 r3".into(), 2, false), "LOOP-118: both ends count");
    let first = ParkedQuery { per_page: Some(2), ..all() };
    assert_eq!(list(first.clone()).await?, ("r4 r2".into(), 4, true), "LOOP-118: pages");
    assert_eq!(list(ParkedQuery { page: 1, ..first.clone() }).await?, ("r3 r1".into(), 4, false));
    assert_eq!(list(ParkedQuery { page: 2, ..first }).await?, (String::new(), 4, false));
    Ok(())
}

pub(super) async fn loop_121_giving_up_deletes_the_pair(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    let id = RunId::from("r1");
    park(&store, parked("r1", Some(key()), "helper", 5)).await?;
    let discard = || commit(RunChange::Discard { run_id: id.clone(), last_event: 12 });
    store.commit(Commit { messages: vec![message("m1", 1)], ..discard() }).await?;
    assert_eq!((store.parked_run(&id).await?, store.get_run(&id).await?), (None, None), "LOOP-121");
    assert_eq!(store.last_event(&key()).await?, Some((1, 12)));
    let again = store.commit(discard()).await;
    assert!(matches!(again, Err(StorageError::NotParked { .. })), "R17: {again:?}");
    Ok(())
}

pub(super) async fn mem_019_a_deleted_thread_has_no_parked_run(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    park(&store, parked("r1", Some(key()), "helper", 5)).await?;
    let moved = store.transfer_thread("t1", "bob").await;
    assert!(matches!(moved, Err(StorageError::Busy { .. })), "r11: a parked run is at work on it: {moved:?}");
    store.delete_thread("t1").await?;
    assert_eq!(store.parked_run(&"r1".into()).await?, None, "MEM-019, SUB-135");
    Ok(())
}

pub(super) async fn runs_without_a_thread_are_parked(store: SharedStorage) -> Checked {
    let id = RunId::from("r1");
    let run = parked("r1", None, "helper", 5);
    store.park(run.clone()).await?;
    assert_eq!(store.parked_run(&id).await?, Some(run));
    assert_eq!(store.list_parked(ParkedQuery::of_thread(&key())).await?.total, 0);
    let again = parked("r1", None, "helper", 6);
    store.park(again.clone()).await?;
    assert_eq!(store.parked_run(&id).await?, Some(again), "parking again replaces");
    let (one, other) = tokio::join!(store.unpark(&id), store.unpark(&id));
    assert!(one? != other?, "LOOP-116: one deletes it");
    assert_eq!(store.parked_run(&id).await?, None);
    Ok(())
}

pub(super) async fn loop_007_nobody_elses_parked_run_is_overwritten(store: SharedStorage) -> Checked {
    with_thread(&*store).await?;
    let other = ThreadKey::new("bob", "t2");
    store.create_thread(new_thread("t2", "bob")).await?;
    let (id, alone) = (RunId::from("r1"), RunId::from("r2"));
    let run = parked("r1", Some(key()), "helper", 5);
    park(&store, run.clone()).await?;
    let taken = |result: Checked| assert!(matches!(result, Err(StorageError::Exists { .. })), "{result:?}");
    taken(park(&store, parked("r1", Some(other), "helper", 6)).await);
    taken(park(&store, parked("r1", Some(key()), "another", 6)).await);
    taken(store.park(parked("r1", None, "helper", 6)).await);
    assert_eq!(store.parked_run(&id).await?, Some(run), "nothing of a refused commit is written");
    let of = |owner: &str| ParkedRun { resource_id: Some(owner.to_owned()), ..parked("r2", None, "helper", 7) };
    store.park(of("alice")).await?;
    taken(store.park(of("bob")).await);
    assert_eq!(store.parked_run(&alone).await?, Some(of("alice")));
    Ok(())
}
