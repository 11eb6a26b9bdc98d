//! Many dispatchers on one inbox: each record is sent once, and none is left, also where one dies in the middle.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use serde_json::json;

use super::*;
use crate::{
    message::StoredMessage,
    storage::{MemoryStorage, NewRecord, NewThread},
};

const RECORDS: usize = 10_000;
const THREADS: usize = 50;
const DISPATCHERS: usize = 8;

/// A process: its courier writes what it sends into the thread's history, as a run does.
struct Process {
    storage: SharedStorage,
    state: Arc<State>,
    now: Arc<AtomicI64>,
    sent: Arc<Mutex<HashMap<MessageId, usize>>>,
    /// How many sends are left until it hangs for good.
    life: AtomicUsize,
}

#[async_trait]
impl Courier for Process {
    fn storage(&self) -> &SharedStorage {
        &self.storage
    }
    fn state(&self) -> &State {
        &self.state
    }
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.now.load(Ordering::SeqCst))
    }
    fn policy(&self, _: &str) -> Option<Arc<DeliveryPolicy>> {
        None
    }
    async fn is_active(&self, _: &ThreadKey) -> bool {
        false
    }
    async fn send(&self, _: &str, target: Target, signal: SignalInput, _: InputMode) -> Result<Outcome, Error> {
        let signal = signal.normalise(|| "made".into(), Timestamp::default())?;
        tokio::task::yield_now().await;
        *self.sent.lock().entry(signal.id.clone()).or_default() += 1;
        let message: StoredMessage = signal.to_stored(target.thread.as_ref(), self.now());
        self.storage.save_messages(vec![message]).await?;
        if self.life.fetch_sub(1, Ordering::SeqCst) == 1 {
            std::future::pending::<()>().await;
        }
        Ok(Outcome { action: Action::Wake, run_id: Some("run".into()), waiting_for: None, signal })
    }
    async fn waits(&self, _: &str, _: &ThreadKey, _: &MessageId) -> bool {
        false
    }
    async fn withdraw(&self, _: &str, _: &ThreadKey, _: &MessageId) -> bool {
        false
    }
}

/// An inbox that is full of due records.
async fn filled() -> (SharedStorage, Arc<AtomicI64>) {
    let storage: SharedStorage = Arc::new(MemoryStorage::new());
    for number in 0..THREADS {
        let thread = NewThread::of(&ThreadKey::new("r", format!("t{number}")));
        storage.create_thread(thread).await.unwrap();
    }
    let now = Timestamp::from_millis(1_000_000);
    for number in 0..RECORDS {
        let value = json!({"id": format!("n{number}"), "threadId": format!("t{}", number % THREADS), "resourceId": "r",
            "agentId": "a1", "source": "s", "kind": "k", "priority": "medium", "status": "pending", "summary": "s",
            "coalescedCount": 1, "deliveryAttempts": 0, "createdAt": now, "updatedAt": now, "deliverAt": now});
        let record = serde_json::from_value(value).unwrap();
        let new = NewRecord { record, priority_given: true, dedupe_window: Duration::ZERO, claim: None };
        storage.notifications().unwrap().create(new).await.unwrap();
    }
    (storage, Arc::new(AtomicI64::new(now.as_millis())))
}

async fn crowd(lives: impl Fn(usize) -> usize) {
    let (storage, now) = filled().await;
    let sent: Arc<Mutex<HashMap<MessageId, usize>>> = Arc::default();
    let mut alive = Vec::new();
    let mut hung = Vec::new();
    for number in 0..DISPATCHERS {
        let life = lives(number);
        let process = Process {
            storage: storage.clone(),
            state: State::new(NotificationOptions::default()),
            now: now.clone(),
            sent: sent.clone(),
            life: AtomicUsize::new(life),
        };
        let work = tokio::spawn(async move {
            while dispatch::pass(&process, 100).await.unwrap().claimed > 0 {}
            process
        });
        if life == usize::MAX { alive.push(work) } else { hung.push(work) }
    }
    let mut processes = Vec::new();
    for work in alive {
        processes.push(work.await.unwrap());
    }
    let all_hung = hung.len();
    for work in hung {
        work.abort();
        let _ = work.await;
    }
    let store = storage.notifications().unwrap();
    let pending = NotificationQuery { statuses: vec!["pending".into()], ..NotificationQuery::all() };
    let left = store.count(&pending).await.unwrap();
    assert!(if all_hung == 0 { left == 0 } else { left > 0 && left <= 100 * all_hung }, "{left} of {all_hung}");
    // The claims of the dead run out; one that lives takes their records over.
    now.fetch_add(61_000, Ordering::SeqCst);
    while dispatch::pass(&processes[0], 100).await.unwrap().claimed > 0 {}
    assert_eq!(store.count(&pending).await.unwrap(), 0, "none is stuck");
    let delivered = NotificationQuery { statuses: vec!["delivered".into()], ..NotificationQuery::all() };
    assert_eq!(store.count(&delivered).await.unwrap(), RECORDS);
    let sent = sent.lock().clone();
    assert_eq!(sent.len(), RECORDS);
    let twice: Vec<_> = sent.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "sent twice: {twice:?}");
    assert_eq!(store.next_due_at(Timestamp::from_millis(now.load(Ordering::SeqCst))).await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn notif_075_eight_dispatchers_send_ten_thousand_records_once() {
    crowd(|_| usize::MAX).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn notif_075_what_dead_dispatchers_held_is_taken_over_and_sent_once() {
    // Three hang between their send and its record, each after another number of sends.
    crowd(|number| [7, 150, 333].get(number).copied().unwrap_or(usize::MAX)).await;
}
