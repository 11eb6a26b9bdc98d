//! A server that is killed again and again while others tell it states and notifications over HTTP (STATE-034, NOTIF-023,
//! NOTIF-075): what was accepted is there once, what lanes claim is what is stored, and every thread can run again.
//!
//! Between any two writes, with a store whose process dies after each number of them, and with all that is due delivered:
//! the tests of `bugle` and `bugle-storage`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    kill::{EndAnyway, Rng, number, request},
    support::{PATIENCE, Project},
};

/// Kills, unless `BUGLE_KILLS` says otherwise.
const KILLS: u64 = 20;
const THREADS: u64 = 2;

/// What was accepted.
#[derive(Debug, Default)]
struct Accepted {
    /// By signal: thread, lane, version.
    states: BTreeMap<String, (String, String, u64)>,
    /// Ids of records.
    records: BTreeSet<String>,
}

struct Sender<'a> {
    address: &'a RwLock<String>,
    stop: &'a AtomicBool,
    accepted: &'a Mutex<Accepted>,
}

impl Sender<'_> {
    /// The answer to a body, if it was accepted.
    fn post(&self, route: &str, body: &Value) -> Option<Value> {
        let to = self.address.read().unwrap().clone();
        match request(&to, "POST", &format!("/api/agents/helper/{route}"), &body.to_string()) {
            Some((200, answer)) => Some(serde_json::from_str(&answer).unwrap()),
            // The server is gone, or going; or another one was faster.
            None | Some((409 | 500..=599, _)) => {
                std::thread::sleep(Duration::from_millis(3));
                None
            }
            Some((status, text)) => panic!("{status}: {text}"),
        }
    }

    fn tell_states(&self, producer: u64) {
        let lane = if producer < 2 { "shared".to_owned() } else { format!("lane-{producer}") };
        let mut n = 0;
        while !self.stop.load(Ordering::Acquire) {
            n += 1;
            let told = format!("s{producer}-{n}.");
            let mode = if n % 3 == 0 { "snapshot" } else { "delta" };
            let state = json!({"id": lane, "cacheKey": told, "mode": mode, "contents": format!("[[say ok]] {told}")});
            let thread = format!("t{}", producer % 2);
            let Some(answer) =
                self.post("state-signals", &json!({"threadId": thread, "resourceId": "ann", "state": state}))
            else {
                continue;
            };
            if matches!(answer["action"].as_str(), Some("wake" | "deliver" | "persist")) {
                let signal = &answer["signal"];
                let version = signal["metadata"]["state"]["version"].as_u64().unwrap();
                let id = signal["id"].as_str().unwrap().to_owned();
                self.accepted.lock().unwrap().states.insert(id, (thread, lane.clone(), version));
            }
        }
    }

    fn notify(&self, sender: u64, mut rng: Rng) {
        let mut n = 0;
        while !self.stop.load(Ordering::Acquire) {
            n += 1;
            let priority = ["low", "medium", "high", "urgent"][usize::try_from(rng.below(4)).unwrap()];
            let body = json!({
                "threadId": format!("t{}", rng.below(THREADS)), "resourceId": "ann", "source": "ci", "kind": "status",
                "priority": priority, "summary": format!("[[say ok]] e{sender}-{n}."),
            });
            if let Some(answer) = self.post("notifications", &body) {
                let id = answer["notificationId"].as_str().unwrap().to_owned();
                self.accepted.lock().unwrap().records.insert(id);
            }
            std::thread::sleep(Duration::from_millis(rng.below(10)));
        }
    }
}

fn alive(address: &str, thread: u64, again: &str) {
    let body = json!({"messages": "[[say alive]]", "memory": {"thread": format!("t{thread}"), "resource": "ann"}});
    let (status, answer) =
        request(address, "POST", "/api/agents/helper/generate", &body.to_string()).expect("the server answers");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    // What is delivered just then joins the run, and the model answers that.
    assert_eq!((status, &answer["finishReason"]), (200, &json!("stop")), "t{thread}: {answer}; {again}");
    assert_ne!(answer["text"], "", "t{thread}: {answer}; {again}");
}

#[test]
fn state_034_notif_023_a_killed_server_loses_no_state_and_no_record() {
    let seed = number("BUGLE_KILL_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let kills = number("BUGLE_KILLS").unwrap_or(KILLS);
    let again = format!("repeat with BUGLE_KILL_SEED={seed} BUGLE_KILLS={kills}");
    let project = Project::with_agent();
    let (address, stop, accepted) = (RwLock::new(String::new()), AtomicBool::new(false), Mutex::default());
    let sender = Sender { address: &address, stop: &stop, accepted: &accepted };
    let server = std::thread::scope(|scope| {
        let start = || {
            let server = project.serve(&["serve"]);
            server.url().strip_prefix("http://").unwrap().clone_into(&mut address.write().unwrap());
            server
        };
        let mut server = start();
        for thread in 0..THREADS {
            alive(&address.read().unwrap(), thread, &again);
        }
        let ended = EndAnyway(&stop);
        for number in 0..4 {
            let sender = &sender;
            scope.spawn(move || sender.tell_states(number));
        }
        for number in 0..3 {
            let sender = &sender;
            scope.spawn(move || sender.notify(number, Rng(seed ^ (number + 1) << 32)));
        }
        let mut rng = Rng(seed);
        for _ in 0..kills {
            std::thread::sleep(Duration::from_micros(rng.below(200_000)));
            server.running.signal("KILL");
            drop(server);
            server = start();
        }
        drop(ended);
        server
    });
    let address = address.into_inner().unwrap();
    let begun = Instant::now();
    for thread in 0..THREADS {
        let path = format!("/api/agents/helper/threads/pending?resourceId=ann&threadId=t{thread}");
        while request(&address, "GET", &path, "").is_some_and(|(_, body)| body.contains("signalId")) {
            assert!(begun.elapsed() < PATIENCE, "t{thread} still has pending input; {again}");
            std::thread::sleep(Duration::from_millis(20));
        }
        alive(&address, thread, &again);
    }
    assert_eq!(server.stop().code, Some(0), "{again}");
    let accepted = accepted.into_inner().unwrap();
    let (states, records) = (accepted.states.len() as u64, accepted.records.len() as u64);
    assert!(states > kills && records > kills, "{states} states and {records} records were accepted; {again}");
    let file = rusqlite::Connection::open(project.path().join("bugle.db")).unwrap();
    let faults = judge(&file, &accepted);
    assert!(faults.is_empty(), "{again}:\n{}", faults.join("\n"));
    let text = |sql: &str| file.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(text("PRAGMA integrity_check"), "ok", "{again}");
}

/// The JSON objects that a query gives, a column each row.
fn rows(file: &rusqlite::Connection, sql: &str) -> Vec<Value> {
    let mut statement = file.prepare(sql).unwrap();
    let rows = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
    rows.map(|row| serde_json::from_str(&row.unwrap()).unwrap()).collect()
}

fn judge(file: &rusqlite::Connection, accepted: &Accepted) -> Vec<String> {
    let mut faults = Vec::new();
    let messages = rows(
        file,
        "SELECT json_object('id', id, 'thread', thread_id, 'of', \
         json(coalesce(json_extract(content, '$.metadata.signal.metadata'), '{}'))) FROM mastra_messages \
         UNION ALL SELECT json_object('id', id, 'thread', thread, 'of', \
         json(coalesce(json_extract(entry, '$.signal.metadata'), '{}'))) FROM bugle_inbox WHERE state = 0",
    );
    let mut newest: BTreeMap<(String, String), (u64, String)> = BTreeMap::new();
    let mut versions = BTreeSet::new();
    let mut told: BTreeMap<String, usize> = BTreeMap::new();
    let mut stored = BTreeSet::new();
    for message in &messages {
        let (id, thread) = (message["id"].as_str().unwrap(), message["thread"].as_str().unwrap());
        stored.insert(id);
        let state = &message["of"]["state"];
        if let (Some(lane), Some(version)) = (state["id"].as_str(), state["version"].as_u64()) {
            let key = (thread.to_owned(), lane.to_owned());
            if !versions.insert((key.clone(), version)) {
                faults.push(format!("{key:?} has version {version} twice"));
            }
            let held = newest.entry(key).or_default();
            *held = held.clone().max((version, id.to_owned()));
        }
        if let Some(record) = message["of"]["notification"]["recordId"].as_str() {
            *told.entry(record.to_owned()).or_default() += 1;
        }
    }
    for (id, state) in &accepted.states {
        if !stored.contains(id.as_str()) {
            faults.push(format!("the state {id} {state:?} was accepted, and is not stored"));
        }
    }
    for thread in rows(file, "SELECT json_object('id', id, 'metadata', json(metadata)) FROM mastra_threads") {
        for (lane, tracking) in thread["metadata"]["mastra"]["stateSignals"].as_object().into_iter().flatten() {
            let key = (thread["id"].as_str().unwrap().to_owned(), lane.clone());
            let (version, id) = newest.get(&key).cloned().unwrap_or_default();
            let tracked =
                (tracking["version"].as_u64().unwrap(), tracking["lastSignalId"].as_str().unwrap().to_owned());
            // A process that died before it had routed leaves a reservation, under which the state can be told again.
            let reserved = tracking["pending"].is_string() && tracked.0 > version;
            if tracked != (version, id.clone()) && !reserved {
                faults.push(format!("{key:?} is tracked as {tracking}, the newest is {version} {id}"));
            }
        }
    }
    let records = rows(
        file,
        "SELECT json_object('id', id, 'status', status, 'delivered', deliveredSignalId, 'summary', summarySignalId, \
         'due', min(coalesce(deliverAt, summaryAt), coalesce(summaryAt, deliverAt)), 'late', \
         julianday('now') - julianday(min(coalesce(deliverAt, summaryAt), coalesce(summaryAt, deliverAt))), 'held', \
         (SELECT c.until > unixepoch() * 1000 FROM bugle_notification_claims c \
          WHERE c.thread = n.threadId AND c.id = n.id)) FROM mastra_notifications n",
    );
    let mut seen = BTreeSet::new();
    for record in &records {
        let id = record["id"].as_str().unwrap();
        if !seen.insert(id) {
            faults.push(format!("{record} is there twice"));
        }
        let shown = |signal: &Value| signal.as_str().is_some_and(|signal| stored.contains(signal));
        let times = told.get(id).copied().unwrap_or_default();
        let right = match record["status"].as_str().unwrap() {
            "delivered" => times == 1 && shown(&record["delivered"]),
            // What a killed process had in hand is its for a minute after that.
            "pending" if record["due"].is_string() => {
                times <= 1 && (record["held"] == 1 || record["late"].as_f64().unwrap() * 86_400.0 < 10.0)
            }
            "pending" => times == 0 && shown(&record["summary"]),
            _ => false,
        };
        if !right {
            faults.push(format!("told {times} times: {record}"));
        }
    }
    let missing: Vec<&String> = accepted.records.iter().filter(|id| !seen.contains(id.as_str())).collect();
    if !missing.is_empty() {
        faults.push(format!("{missing:?} were accepted, and are not there"));
    }
    faults
}
