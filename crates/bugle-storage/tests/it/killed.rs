//! Processes that are killed in the middle of their work on lanes and inboxes: nothing lost, nothing twice (STATE-034,
//! STATE-081, NOTIF-023, NOTIF-075).
//!
//! The processes are this test binary again, told by their environment what to do. They write down what they were told is
//! accepted, a line after each answer; what a killed process had not heard of yet may be there or not, but not twice.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::Write as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use bugle::{
    Agent, AgentHandle, Bugle, RunOptions, ThreadKey,
    memory::MemoryOptions,
    message::{Role, StoredMessage},
    model::ScriptedModel,
    notification::{NewNotification, NotificationOptions},
    runtime::{Action, RunInput, StateSent},
    signal::{StateInput, tracked_lanes},
    storage::{NewRecord, NewThread, NotificationQuery, NotificationRecord, NotificationStore, Storage},
    time::{Clock, Timestamp},
};
use bugle_storage::libsql::LibSql;
use serde_json::Value;

use crate::support::open;

/// Kills, unless `BUGLE_KILLS` says otherwise.
const KILLS: u64 = 20;
const THREADS: usize = 3;
/// Of any test of this file.
const THREADS_MAX: usize = 20;
/// Producers of state; the even ones share a lane.
const PRODUCERS: usize = 8;
/// Senders of notifications.
const SENDERS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(120);

/// The system's clock, moved on: what is due later is due now.
#[derive(Debug)]
struct Moved(AtomicI64);

impl Clock for Moved {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(Timestamp::now().as_millis() + self.0.load(Ordering::SeqCst))
    }
}

/// splitmix64.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn key(number: usize) -> ThreadKey {
    ThreadKey::new("ann", format!("t{number}"))
}

// What the processes do.

/// Not a test: what a process of these tests is.
#[test]
#[ignore = "started by the tests of this file"]
fn process() {
    let Ok(task) = std::env::var("BUGLE_KILLED_TASK") else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let work = Work::begin().await;
        match task.as_str() {
            "produce" => work.produce().await,
            "dispatch" => work.dispatch().await,
            "settle" => work.settle().await,
            other => panic!("{other}"),
        }
    });
}

struct Work {
    bugle: Bugle,
    agent: AgentHandle,
    store: LibSql,
    clock: Arc<Moved>,
    life: u64,
    log: PathBuf,
}

impl Work {
    async fn begin() -> Self {
        let directory = PathBuf::from(std::env::var_os("BUGLE_KILLED_DIR").unwrap());
        let life = number("BUGLE_KILLED_LIFE").unwrap();
        let store = open(&directory.join("a.db"));
        // Each life is a minute later, so that what earlier ones deferred is due.
        let clock = Arc::new(Moved(AtomicI64::new(i64::try_from(life).unwrap() * 61_000)));
        let model = Arc::new(ScriptedModel::new());
        let agent = Agent::builder("helper").model(model).memory(MemoryOptions::last(4)).build().unwrap();
        let bugle = Bugle::builder()
            .agent(agent)
            .storage(store.clone())
            .clock(clock.clone())
            .notifications(NotificationOptions::default())
            .build()
            .await
            .unwrap();
        let agent = bugle.agent("helper").unwrap();
        Self { agent, bugle, store, clock, life, log: directory.join("accepted") }
    }

    /// One line, whole or not at all.
    fn write_down(&self, line: &str) {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&self.log).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// Sends states and notifications until it is killed.
    async fn produce(self) {
        for thread in 0..THREADS {
            if self.store.get_thread(&key(thread).thread_id).await.unwrap().is_none() {
                self.store.create_thread(NewThread::of(&key(thread))).await.unwrap();
            }
        }
        let work = Arc::new(self);
        for producer in 0..PRODUCERS {
            tokio::spawn(work.clone().tell_states(producer));
        }
        for sender in 0..SENDERS {
            tokio::spawn(work.clone().notify(sender));
        }
        std::future::pending::<()>().await;
    }

    async fn tell_states(self: Arc<Self>, producer: usize) {
        let lane = if producer.is_multiple_of(2) { "shared".to_owned() } else { format!("lane-{producer}") };
        for n in 0.. {
            let thread = key((producer / 2) % 2);
            let told = format!("[[say ok]] s{}-{producer}-{n}.", self.life);
            let state = match n % 3 {
                0 => StateInput::snapshot(&*lane, &*told, &*told),
                _ => StateInput::delta(&*lane, &*told, &*told),
            };
            let Ok(StateSent::Sent { signal, outcome, .. }) = self.agent.send_state_signal(&thread, state).await else {
                continue;
            };
            if matches!(outcome.action, Action::Wake | Action::Deliver | Action::Persist) {
                self.write_down(&format!("state {} {lane} {}", thread.thread_id, signal.id));
            }
        }
    }

    async fn notify(self: Arc<Self>, sender: usize) {
        let mut rng = Rng(self.life << 8 | sender as u64);
        for n in 0.. {
            let thread = key(usize::try_from(rng.below(THREADS as u64)).unwrap());
            let priority = ["low", "medium", "high", "urgent"][usize::try_from(rng.below(4)).unwrap()];
            let summary = format!("[[say ok]] e{}-{sender}-{n}.", self.life);
            let mut event = NewNotification::new(thread.clone(), "ci", "status", summary).priority(priority);
            if rng.below(3) == 0 {
                event.coalesce_key = Some(format!("build-{sender}"));
            }
            if let Ok(told) = self.agent.send_notification(event).await {
                self.write_down(&format!("note {} {}", thread.thread_id, told.record.id));
            }
            tokio::time::sleep(Duration::from_millis(rng.below(5))).await;
        }
    }

    /// Delivers what is due until it is killed, or nothing is left.
    async fn dispatch(self) {
        while pending(&self.store).await > 0 {
            let _ = self.bugle.dispatch_notifications(20).await;
            // A thread that the other one has at this moment is tried again.
            tokio::time::sleep(Duration::from_millis(5)).await;
            self.clock.0.fetch_add(3000, Ordering::SeqCst);
        }
        self.bugle.shutdown(Duration::from_secs(10)).await;
    }

    /// Lets all that earlier ones left come to its end, and shows that every thread can run.
    async fn settle(self) {
        let begun = Instant::now();
        loop {
            self.bugle.dispatch_notifications(100).await.unwrap();
            self.clock.0.fetch_add(61_000, Ordering::SeqCst);
            let records = self.store.list(&NotificationQuery::all()).await.unwrap().records;
            let due = records.iter().filter(|record| record.due_at().is_some()).count();
            let mut waiting = 0;
            for thread in 0..THREADS_MAX {
                waiting += self.store.inbox(&key(thread)).await.unwrap().len();
            }
            if due + waiting == 0 {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "{due} records are due, {waiting} inputs wait");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for thread in 0..THREADS {
            let message = StoredMessage::text("".into(), Role::User, "[[say alive]]", Timestamp::default());
            let input = RunInput { messages: vec![message], tool_results: Vec::new() };
            let output = self.agent.generate(input, Some(&key(thread)), RunOptions::default()).await.unwrap();
            assert_eq!(output.text, "alive", "t{thread}");
        }
        self.settle_lanes().await;
        self.bugle.shutdown(Duration::from_secs(10)).await;
    }

    /// A state that its lane claims, and that nobody ever saw, can be told again (STATE-034).
    async fn settle_lanes(&self) {
        for thread in 0..2 {
            let key = key(thread);
            let held = self.store.get_thread(&key.thread_id).await.unwrap().unwrap();
            for (lane, tracking) in tracked_lanes(&held) {
                let last = tracking.last_signal_id.clone().unwrap();
                let seen = !self.store.get_messages(&[last]).await.unwrap().is_empty();
                let mut again = StateInput::snapshot(&*lane, &*tracking.current_cache_key, "[[say ok]] again");
                again.mode = tracking.current_mode.unwrap();
                let sent = self.agent.send_state_signal(&key, again).await.unwrap();
                assert_eq!(sent.is_unchanged(), seen, "{lane}: {tracking:?}");
                let fresh = StateInput::snapshot(&*lane, format!("last-{lane}"), "[[say ok]] last");
                let StateSent::Sent { signal, .. } = self.agent.send_state_signal(&key, fresh).await.unwrap() else {
                    panic!("{lane}: a fresh state is never unchanged");
                };
                self.write_down(&format!("state {} {lane} {}", key.thread_id, signal.id));
            }
        }
        // What the last states woke.
        let begun = Instant::now();
        for thread in 0..2 {
            while !self.store.inbox(&key(thread)).await.unwrap().is_empty() {
                assert!(begun.elapsed() < PATIENCE);
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}

async fn pending(store: &LibSql) -> usize {
    let query = NotificationQuery { statuses: vec!["pending".into()], ..NotificationQuery::all() };
    store.count(&query).await.unwrap()
}

// What the tests do with them.

/// A process, killed when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(directory: &Path, task: &str, life: u64) -> Running {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "killed::process", "--ignored", "--nocapture"]);
    command.env("BUGLE_KILLED_TASK", task).env("BUGLE_KILLED_DIR", directory);
    command.env("BUGLE_KILLED_LIFE", life.to_string());
    Running(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit()).spawn().unwrap())
}

/// Waits for the end of a process that ends by itself.
fn ended(mut running: Running, what: &str) {
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = running.0.try_wait().unwrap() {
            break status;
        }
        assert!(begun.elapsed() < PATIENCE * 2, "{what} does not end");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "{what}: {status}");
}

/// `metadata` of the signal that a row holds.
fn signal_metadata(row: &StoredMessage) -> Value {
    let row = serde_json::to_value(row).unwrap();
    row["content"]["metadata"]["signal"]["metadata"].clone()
}

#[test]
fn state_034_notif_075_kills_lose_no_lane_and_tell_nothing_twice() {
    let seed = number("BUGLE_KILL_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let kills = number("BUGLE_KILLS").unwrap_or(KILLS);
    let again = format!("repeat with BUGLE_KILL_SEED={seed} BUGLE_KILLS={kills}");
    let directory = tempfile::tempdir().unwrap();
    let mut rng = Rng(seed);
    for life in 0..kills {
        let running = start(directory.path(), "produce", life);
        std::thread::sleep(Duration::from_millis(40 + rng.below(400)));
        drop(running);
    }
    ended(start(directory.path(), "settle", kills), &format!("the last process; {again}"));
    let accepted = std::fs::read_to_string(directory.path().join("accepted")).unwrap();
    let lines: Vec<Vec<&str>> = accepted.lines().map(|line| line.split(' ').collect()).collect();
    let count = |kind: &str| lines.iter().filter(|line| line[0] == kind).count() as u64;
    assert!(count("state") > kills && count("note") > kills, "too little was accepted; {again}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let faults = runtime.block_on(async {
        let store = open(&directory.path().join("a.db"));
        let mut rows = BTreeMap::new();
        for thread in 0..THREADS {
            let key = key(thread);
            rows.insert(key.thread_id.to_string(), store.recent_messages(&key, u32::MAX).await.unwrap());
        }
        let mut faults = Vec::new();
        judge_lanes(&store, &rows, &lines, &mut faults).await;
        judge_inboxes(&store, &rows, &lines, &mut faults).await;
        faults
    });
    assert!(faults.is_empty(), "{again}:\n{}", faults.join("\n"));
    let file = crate::support::raw(&directory.path().join("a.db"));
    let text = |sql: &str| file.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
    let count = |sql: &str| file.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(text("PRAGMA integrity_check"), "ok", "{again}");
    assert_eq!(count("SELECT count(*) FROM bugle_inbox WHERE state = 0"), 0, "{again}");
    assert_eq!(count("SELECT count(*) FROM bugle_runs"), 0, "{again}");
}

type Rows = BTreeMap<String, Vec<StoredMessage>>;

/// Every accepted state is a row, and its lane's newest or older than that; what lanes claim is what is stored.
async fn judge_lanes(store: &LibSql, rows: &Rows, lines: &[Vec<&str>], faults: &mut Vec<String>) {
    for line in lines.iter().filter(|line| line[0] == "state") {
        let of_it: Vec<Value> =
            rows[line[1]].iter().filter(|row| row.id.as_str() == line[3]).map(signal_metadata).collect();
        match of_it.as_slice() {
            [one] if one["state"]["id"] == line[2] => {}
            other => faults.push(format!("{line:?} is stored as {other:?}")),
        }
    }
    for thread in 0..2 {
        let id = format!("t{thread}");
        let held = store.get_thread(&id).await.unwrap().unwrap();
        let tracked: BTreeMap<String, _> = tracked_lanes(&held).into_iter().collect();
        let mut versions: BTreeMap<String, Vec<(u64, String)>> = BTreeMap::new();
        for row in &rows[&id] {
            let state = signal_metadata(row)["state"].clone();
            if let (Some(lane), Some(version)) = (state["id"].as_str(), state["version"].as_u64()) {
                versions.entry(lane.to_owned()).or_default().push((version, row.id.to_string()));
            }
        }
        for (lane, mut told) in versions {
            told.sort_unstable();
            let unique: BTreeSet<u64> = told.iter().map(|(version, _)| *version).collect();
            if unique.len() != told.len() {
                faults.push(format!("{id} {lane}: one version twice: {told:?}"));
            }
            let (newest, signal) = told.last().unwrap();
            match tracked.get(&lane) {
                Some(tracking)
                    if tracking.version == *newest
                        && tracking.last_signal_id.as_ref().is_some_and(|last| last.as_str() == signal) => {}
                other => faults.push(format!("{id} {lane}: the newest is {newest} {signal}, tracked is {other:?}")),
            }
        }
    }
}

/// Every accepted record is there once; each was delivered once or summarised, and nothing is due.
async fn judge_inboxes(store: &LibSql, rows: &Rows, lines: &[Vec<&str>], faults: &mut Vec<String>) {
    let records = store.list(&NotificationQuery::all()).await.unwrap().records;
    let mut by_id: HashMap<&str, &NotificationRecord> = HashMap::new();
    for record in &records {
        if by_id.insert(&record.id, record).is_some() {
            faults.push(format!("{} is there twice", record.id));
        }
    }
    for line in lines.iter().filter(|line| line[0] == "note") {
        match by_id.get(line[2]) {
            Some(record) if record.thread_id == line[1] => {}
            other => faults.push(format!("{line:?} was accepted, and is {other:?}")),
        }
    }
    let mut full: HashMap<String, Vec<(String, String)>> = HashMap::new();
    let mut summarised: HashMap<String, usize> = HashMap::new();
    let mut ids = BTreeSet::new();
    for row in rows.values().flatten() {
        if !ids.insert(row.id.clone()) {
            faults.push(format!("{} is told twice", row.id));
        }
        let metadata = signal_metadata(row);
        if let Some(id) = metadata["notification"]["recordId"].as_str() {
            full.entry(id.to_owned()).or_default().push((row.joined_text(), row.id.to_string()));
        }
        for id in metadata["notificationIds"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            *summarised.entry(id.to_owned()).or_default() += 1;
        }
    }
    for record in &records {
        let told = full.remove(&record.id).unwrap_or_default();
        let named = summarised.get(&record.id).copied().unwrap_or_default();
        let in_history = |signal: &Option<bugle::MessageId>| signal.as_ref().is_some_and(|signal| ids.contains(signal));
        let right = match record.status.as_str() {
            // What was merged into it after it had been told is told as well, if nobody had heard of the telling.
            "delivered" => {
                let texts: BTreeSet<&str> = told.iter().map(|(text, _)| text.as_str()).collect();
                let last = record.delivered_signal_id.as_ref().map(bugle::MessageId::as_str);
                let newest = told.iter().find(|(text, _)| text.contains(&record.summary));
                texts.len() == told.len()
                    && told.len() <= record.coalesced_count as usize
                    && newest.is_some_and(|(_, id)| Some(id.as_str()) == last)
            }
            "pending" => {
                told.len() < record.coalesced_count as usize && named >= 1 && in_history(&record.summary_signal_id)
            }
            _ => false,
        };
        // A merged event may be summarised anew.
        if !right || named > record.coalesced_count as usize || record.due_at().is_some() {
            faults.push(format!("told {told:?}, named {named} times: {record:?}"));
        }
    }
}

#[test]
fn notif_075_of_two_processes_one_is_killed_and_each_record_is_told_once() {
    const RECORDS: usize = 200;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a.db");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = open(&path);
        let now = Timestamp::now();
        for number in 0..RECORDS {
            let value = serde_json::json!({
                "id": format!("n{number}"), "threadId": format!("t{}", number % THREADS_MAX), "resourceId": "ann",
                "agentId": "helper", "source": "s", "kind": "k", "priority": "medium", "status": "pending",
                "summary": format!("[[say ok]] event {number}."), "coalescedCount": 1, "deliveryAttempts": 0,
                "createdAt": now, "updatedAt": now, "deliverAt": now,
            });
            let record: NotificationRecord = serde_json::from_value(value).unwrap();
            let new = NewRecord { record, priority_given: true, dedupe_window: Duration::ZERO, claim: None };
            store.create(new).await.unwrap();
        }
    });
    let (killed, survivor) = (start(directory.path(), "dispatch", 0), start(directory.path(), "dispatch", 0));
    // Killed while both are at it: some are delivered, many are not.
    let begun = Instant::now();
    let store = open(&path);
    let left = loop {
        let left = runtime.block_on(pending(&store));
        if left < RECORDS - 20 {
            break left;
        }
        assert!(begun.elapsed() < PATIENCE, "nothing is delivered");
        std::thread::sleep(Duration::from_millis(1));
    };
    drop(killed);
    assert!(left > 0, "it was killed too late to show anything");
    ended(survivor, "the other process");
    // What the killed one had journaled and not run is the next process's.
    ended(start(directory.path(), "settle", 1), "the last process");
    let (mut shown, mut records): (HashMap<String, usize>, Vec<NotificationRecord>) = Default::default();
    runtime.block_on(async {
        records.extend(store.list(&NotificationQuery::all()).await.unwrap().records);
        for thread in 0..THREADS_MAX {
            for row in store.recent_messages(&key(thread), u32::MAX).await.unwrap() {
                if let Some(id) = signal_metadata(&row)["notification"]["recordId"].as_str() {
                    *shown.entry(id.to_owned()).or_default() += 1;
                }
            }
        }
    });
    let twice: Vec<_> = shown.iter().filter(|(_, times)| **times != 1).collect();
    assert_eq!((shown.len(), twice.len()), (RECORDS, 0), "{twice:?}");
    assert!(records.iter().all(|record| record.status == "delivered" && record.delivered_signal_id.is_some()));
}
