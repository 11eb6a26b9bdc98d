//! Processes that are killed, and several at work at once: this binary runs itself as the child.

use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use bugle::{
    id::MessageId,
    storage::{Commit, Lease, MetadataChange, ResourceChange, RunChange, Storage, ThreadUpdate},
};

use crate::support::{accept, claim, key, message, open, raw, with_thread};

const PATH: &str = "BUGLE_TEST_DB";
const NAME: &str = "BUGLE_TEST_NAME";

fn child(test: &str, path: &Path, name: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"])
        .env(PATH, path)
        .env(NAME, name)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn told() -> (PathBuf, String) {
    (std::env::var_os(PATH).expect("run by another test").into(), std::env::var(NAME).unwrap())
}

fn integrity(path: &Path) -> String {
    raw(path).query_row("PRAGMA integrity_check", (), |row| row.get(0)).unwrap()
}

#[tokio::test]
#[ignore = "a child process of sto_7_6"]
async fn child_saves_until_killed() {
    let (path, _) = told();
    let store = open(&path);
    store.acquire_lease(&key("t1"), &claim(&store.owner(), 3600)).await.unwrap();
    store.accept(accept("t1", "waits")).await.unwrap();
    for n in 0..100_000 {
        let id = format!("m{n:06}");
        store.save_messages(vec![message("t1", &id)]).await.unwrap();
        println!("saved {id}");
    }
}

#[tokio::test]
async fn sto_7_6_what_was_acknowledged_survives_kill_9_and_the_lease_is_free_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let store = open(&path);
    with_thread(&store, "t1").await;
    let mut child = child("durability::child_saves_until_killed", &path, "");
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut saved = Vec::new();
    let mut lines = output.lines().map(Result::unwrap);
    while saved.len() < 1000 {
        let line = lines.next().expect("the child went on");
        // The test harness may write on the same line.
        saved.extend(line.split_once("saved ").map(|(_, id)| MessageId::from(id)));
    }
    let held = store.acquire_lease(&key("t1"), &claim(&store.owner(), 60)).await.unwrap();
    assert!(matches!(held, Lease::HeldBy { .. }), "the child lives: {held:?}");
    assert_eq!(store.unfinished(&store.owner(), None, 9).await.unwrap(), []);
    child.kill().unwrap();
    child.wait().unwrap();
    saved.extend(lines.filter_map(|line| line.split_once("saved ").map(|(_, id)| MessageId::from(id))));

    assert_eq!(store.unfinished(&store.owner(), None, 9).await.unwrap(), [key("t1")], "ruling 26: it is dead");
    let taken = store.acquire_lease(&key("t1"), &claim(&store.owner(), 60)).await.unwrap();
    assert_eq!(taken, Lease::Held { epoch: 2 }, "ruling 26: recovery starts at once");
    let found = store.get_messages(&saved).await.unwrap();
    assert_eq!(found.len(), saved.len(), "what was acknowledged is there");
    assert_eq!(store.inbox(&key("t1")).await.unwrap().len(), 1);
    assert_eq!(integrity(&path), "ok");
}

#[tokio::test]
#[ignore = "a child process of sto_7_5"]
async fn child_writes_a_thousand() {
    let (path, name) = told();
    let store = open(&path);
    for n in 0..200 {
        let id = format!("{name}-{n}");
        store.save_messages(vec![message("t1", &format!("m-{id}"))]).await.unwrap();
        store.accept(accept("t1", &format!("s-{id}"))).await.unwrap();
        let commit = Commit {
            consumed: vec![format!("s-{id}").into()],
            messages: vec![message("t1", &format!("s-{id}"))],
            run: RunChange::Keep,
            ..Commit::new(key("t1"), 0)
        };
        store.commit(commit).await.unwrap();
        let metadata = MetadataChange::Merge([(format!("k-{id}"), n.into())].into_iter().collect());
        store.update_thread(ThreadUpdate { id: "t1".into(), metadata, ..ThreadUpdate::default() }).await.unwrap();
        let merge = ResourceChange::MergeWorkingMemory([(id, n.into())].into_iter().collect());
        store.update_resource("ann", merge).await.unwrap();
    }
}

#[tokio::test]
async fn mem_059_sto_7_5_two_processes_write_a_thousand_times_each_and_nothing_is_lost() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let store = open(&path);
    with_thread(&store, "t1").await;
    let children = ["a", "b"].map(|name| child("durability::child_writes_a_thousand", &path, name));
    for child in children {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let names: BTreeSet<String> =
        ["a", "b"].into_iter().flat_map(|name| (0..200).map(move |n| format!("{name}-{n}"))).collect();
    let stored = store.recent_messages(&key("t1"), u32::MAX).await.unwrap();
    let stored: BTreeSet<&str> = stored.iter().map(|message| message.id.as_str()).collect();
    let expected: Vec<String> = names.iter().flat_map(|name| [format!("m-{name}"), format!("s-{name}")]).collect();
    assert_eq!(stored, expected.iter().map(String::as_str).collect());
    assert_eq!(store.inbox(&key("t1")).await.unwrap(), []);
    let thread = store.get_thread("t1").await.unwrap().unwrap();
    assert_eq!(thread.metadata.unwrap().len(), names.len(), "MEM-015");
    let memory = store.get_resource("ann").await.unwrap().unwrap().working_memory.unwrap();
    let memory: bugle::json::Object = serde_json::from_str(&memory).unwrap();
    assert_eq!(memory.len(), names.len(), "MEM-104");
    assert_eq!(integrity(&path), "ok");
}

#[tokio::test]
async fn the_log_is_moved_into_the_file_while_writes_go_on_and_closing_leaves_none() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let log = directory.path().join("a.db-wal");
    let store = open(&path);
    with_thread(&store, "t1").await;
    let mut longest = 0;
    let mut large = message("t1", "m");
    large.content.content = Some("x".repeat(96 * 1024));
    for _ in 0..1000 {
        store.save_messages(vec![large.clone()]).await.unwrap();
        longest = longest.max(std::fs::metadata(&log).unwrap().len());
    }
    // 1000 × 96 KiB = 94 MiB went through it.
    assert!(longest < 48 << 20, "{longest}");
    store.close().await;
    assert!(!log.exists());
    assert_eq!(integrity(&path), "ok");
    assert_eq!(open(&path).get_messages(&["m".into()]).await.unwrap()[0].content, large.content);
}
