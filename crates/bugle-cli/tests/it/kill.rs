//! A server that is killed again and again, and senders that never notice: nothing lost, nothing twice (SIG-502, SIG-503).
//!
//! Senders post numbered messages, each with an id of its own, and repeat a request with the same id until it is
//! answered with 200. Meanwhile the server is killed with SIGKILL at random moments and started anew on the same file.
//! In the end, through the memory API and in the file:
//!
//! - every accepted input is one row, and no row is there that nobody sent;
//! - on a thread that only gets queued messages, the transcript is exactly input, answer, input, answer, …, in the order
//!   of sending, each answer being the one `ack` of its input;
//! - on a thread that is steered too, an input that joined a run is answered by the run that took it in: a row of the
//!   assistant follows it, and the `ack`s that name it are at most one (the model answers the newest message);
//! - journal and run records are empty, and the file passes `PRAGMA integrity_check`.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read as _, Write as _},
    net::TcpStream,
    sync::{
        Mutex, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::support::{PATIENCE, Project, Server};

/// Kills, unless `BUGLE_KILLS` says otherwise.
const KILLS: usize = 200;
/// Threads that only get queued messages; the first of them has one sender, so that its order is known.
const QUEUED: usize = 3;
/// Threads that are steered and queued on.
const MIXED: usize = 3;
/// Senders of each thread but the first.
const SENDERS: usize = 2;

#[test]
fn sig_502_200_kills_lose_nothing_and_answer_nothing_twice() {
    let seed = number("BUGLE_KILL_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let kills = number("BUGLE_KILLS").map_or(KILLS, |kills| usize::try_from(kills).unwrap());
    let again = format!("repeat with BUGLE_KILL_SEED={seed} BUGLE_KILLS={kills}");
    let project = Project::with_agent();
    let address = RwLock::new(String::new());
    let stop = AtomicBool::new(false);
    let sent: Mutex<BTreeMap<String, Sent>> = Mutex::default();
    let mut server = std::thread::scope(|scope| {
        let start = || {
            let server = project.serve(&["serve"]);
            server.url().strip_prefix("http://").unwrap().clone_into(&mut address.write().unwrap());
            server
        };
        let mut server = start();
        for thread in 0..QUEUED + MIXED {
            for sender in 0..if thread == 0 { 1 } else { SENDERS } {
                let seed = seed ^ ((thread * SENDERS + sender + 1) as u64) << 32;
                let (address, stop, sent) = (&address, &stop, &sent);
                scope.spawn(move || send_until_stopped((thread, sender), Rng(seed), address, stop, sent));
            }
        }
        let mut rng = Rng(seed);
        // Whatever goes wrong here, the senders must end, or the test never does.
        let ended = EndAnyway(&stop);
        for _ in 0..kills {
            std::thread::sleep(Duration::from_micros(rng.below(120_000)));
            server.running.signal("KILL");
            drop(server);
            server = start();
        }
        drop(ended);
        server
    });
    let sent = sent.into_inner().unwrap();
    assert!(sent.len() > kills, "{} messages were accepted, {again}", sent.len());
    let address = address.into_inner().unwrap();
    let rows = settled(&address, &sent, &again);
    let faults = judge(&sent, &rows);
    assert!(faults.is_empty(), "{again}:\n{}", faults.join("\n"));
    server = quiet(server);
    assert_eq!(server.stop().code, Some(0), "{again}");
    let file = rusqlite::Connection::open(project.path().join("bugle.db")).unwrap();
    let text = |sql: &str| file.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
    let count = |sql: &str| file.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!(text("PRAGMA integrity_check"), "ok", "{again}");
    assert_eq!(count("SELECT count(*) FROM bugle_inbox WHERE state = 0"), 0, "{again}");
    assert_eq!(count("SELECT count(*) FROM bugle_runs"), 0, "{again}");
}

/// An accepted message.
#[derive(Debug)]
struct Sent {
    thread: usize,
    sender: usize,
    number: usize,
    /// What the answer names.
    marker: String,
}

pub(crate) struct EndAnyway<'a>(pub(crate) &'a AtomicBool);

impl Drop for EndAnyway<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// splitmix64.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

fn send_until_stopped(
    (thread, sender): (usize, usize),
    mut rng: Rng,
    address: &RwLock<String>,
    stop: &AtomicBool,
    sent: &Mutex<BTreeMap<String, Sent>>,
) {
    let mut number = 0;
    while !stop.load(Ordering::Acquire) {
        number += 1;
        let marker = format!("m{thread}-{sender}-{number}.");
        let id = format!("id-{marker}");
        let words = 1 + rng.below(20);
        let text = match rng.below(3) {
            0 => format!("[[slow-think {words} 2;; say ack: {marker}]]"),
            1 => format!("[[slow {words} 2;; say ack: {marker}]]"),
            _ => marker.clone(),
        };
        let route = if thread < QUEUED || rng.below(3) == 0 { "queue-message" } else { "send-message" };
        let body = json!({
            "message": { "contents": text, "id": id },
            "resourceId": "ann",
            "threadId": format!("t{thread}"),
        });
        let begun = Instant::now();
        loop {
            let to = address.read().unwrap().clone();
            match request(&to, "POST", &format!("/api/agents/helper/{route}"), &body.to_string()) {
                Some((200, _)) => break,
                // The server is gone, or going.
                None | Some((500..=599, _)) => std::thread::sleep(Duration::from_millis(3)),
                Some((status, text)) => panic!("{status}: {text}"),
            }
            assert!(begun.elapsed() < PATIENCE, "{id} is never accepted");
        }
        sent.lock().unwrap().insert(id, Sent { thread, sender, number, marker });
        std::thread::sleep(Duration::from_millis(rng.below(60)));
    }
}

/// One request on a connection of its own; `None` if the connection breaks before the whole answer is here.
pub(crate) fn request(address: &str, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body.as_bytes()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8(answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    (length.is_none_or(|length| length == body.len())).then(|| (status, body.to_owned()))
}

/// One row of a transcript.
#[derive(Debug)]
struct Row {
    id: String,
    assistant: bool,
    text: String,
}

fn transcript(address: &str, thread: usize) -> Vec<Row> {
    let path = format!("/api/memory/threads/t{thread}/messages?agentId=helper&resourceId=ann&perPage=false");
    let (status, body) = request(address, "GET", &path, "").expect("the server answers");
    assert_eq!(status, 200, "{body}");
    let body: Value = serde_json::from_str(&body).unwrap();
    let rows = body["messages"].as_array().expect("messages").iter();
    rows.map(|row| {
        let parts = row["content"]["parts"].as_array().into_iter().flatten();
        Row {
            id: row["id"].as_str().unwrap_or_default().to_owned(),
            assistant: row["role"] == "assistant",
            text: parts.filter_map(|part| part["text"].as_str()).collect(),
        }
    })
    .collect()
}

/// The transcripts, once the last input of each is answered.
fn settled(address: &str, sent: &BTreeMap<String, Sent>, again: &str) -> Vec<Vec<Row>> {
    let begun = Instant::now();
    loop {
        let rows: Vec<Vec<Row>> = (0..QUEUED + MIXED).map(|thread| transcript(address, thread)).collect();
        let stored: usize = rows.iter().flatten().filter(|row| !row.assistant).count();
        let answered = rows.iter().all(|rows| rows.last().is_none_or(|row| row.assistant));
        if stored >= sent.len() && answered {
            return rows;
        }
        if begun.elapsed() > PATIENCE * 4 {
            let ids: BTreeSet<&str> = rows.iter().flatten().map(|row| &*row.id).collect();
            let missing: Vec<&String> = sent.keys().filter(|id| !ids.contains(&***id)).collect();
            panic!("{stored} of {} are stored, all answered: {answered}; missing: {missing:?}; {again}", sent.len());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Nothing runs any more: what the last runs write has been written.
fn quiet(server: Server) -> Server {
    let begun = Instant::now();
    let address = server.url().strip_prefix("http://").unwrap().to_owned();
    for thread in 0..QUEUED + MIXED {
        let path = format!("/api/agents/helper/threads/pending?resourceId=ann&threadId=t{thread}");
        while request(&address, "GET", &path, "").is_some_and(|(_, body)| body.contains("signalId")) {
            assert!(begun.elapsed() < PATIENCE, "t{thread} still has pending input");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    server
}

fn judge(sent: &BTreeMap<String, Sent>, transcripts: &[Vec<Row>]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut rows_of: BTreeMap<&str, usize> = BTreeMap::new();
    for (thread, rows) in transcripts.iter().enumerate() {
        for row in rows.iter().filter(|row| !row.assistant) {
            *rows_of.entry(&row.id).or_default() += 1;
            match sent.get(&row.id) {
                None => faults.push(format!("t{thread} holds {row:?}, which nobody sent")),
                Some(input) if input.thread != thread => faults.push(format!("{} is on t{thread}", row.id)),
                Some(input) if !row.text.contains(&input.marker) => faults.push(format!("{row:?} says something else")),
                Some(_) => {}
            }
        }
    }
    for (id, input) in sent {
        let rows = &transcripts[input.thread];
        let count = rows_of.get(&**id).copied().unwrap_or_default();
        if count != 1 {
            faults.push(format!("{id} is stored {count} times"));
            continue;
        }
        let ack = format!("ack: {}", input.marker);
        let acks: usize = rows.iter().filter(|row| row.assistant).map(|row| count_acks(&row.text, &ack)).sum();
        let at = rows.iter().position(|row| row.id == *id).unwrap_or_default();
        let follows = rows[at..].iter().any(|row| row.assistant);
        let once = if input.thread < QUEUED { acks == 1 } else { acks <= 1 };
        if !once || !follows {
            faults.push(format!("{id} has {acks} answers of its own; an answer follows: {follows}"));
        }
    }
    for (thread, rows) in transcripts.iter().enumerate().take(QUEUED) {
        for pair in rows.chunks(2) {
            let input = sent.get(&pair[0].id);
            let answered = pair.get(1).zip(input).is_some_and(|(answer, input)| {
                answer.assistant && count_acks(&answer.text, &format!("ack: {}", input.marker)) == 1
            });
            if !answered {
                faults.push(format!("t{thread} is not input and answer in turn: {pair:?}"));
            }
        }
    }
    // One sender's messages keep their order (SIG-160, SIG-163).
    for rows in &transcripts[..QUEUED] {
        let mut last: BTreeMap<usize, usize> = BTreeMap::new();
        for input in rows.iter().filter_map(|row| sent.get(&row.id)) {
            if last.insert(input.sender, input.number).is_some_and(|before| before >= input.number) {
                faults.push(format!("{} came too late", input.marker));
            }
        }
    }
    faults
}

/// How often the answer is in a text.
fn count_acks(text: &str, ack: &str) -> usize {
    text.matches(ack).count()
}
