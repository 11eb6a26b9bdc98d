//! Finds, and makes, the actor of a thread.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    actor::{self, Letter},
    log::StreamLog,
};
use crate::{
    error::Error,
    id::{MessageId, RunId, ThreadKey},
    runtime::{AbortOptions, Inner},
    time::Timestamp,
};

/// Letters that wait for an actor at most; past it, senders wait.
pub(super) const MAILBOX: usize = 1024;

/// Missing agents that are told of at most.
const MISSING: usize = 1000;

/// All threads that are not idle.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    threads: Mutex<HashMap<ThreadKey, ThreadRef>>,
    /// Agents that are not registered, but have left work: those that were told of.
    missing: Mutex<HashSet<String>>,
    runs: Arc<Mutex<Runs>>,
    /// Every task of the runtime: actors and runs.
    pub(crate) tasks: TaskTracker,
    /// Fires when the runtime ends.
    pub(crate) stop: CancellationToken,
}

/// The run ids that are in use in this process: no two runs have the same at a time.
#[derive(Debug, Default)]
struct Runs {
    live: HashMap<RunId, LiveRun>,
    reserved: HashMap<RunId, Reserved>,
    /// Runs at work that have no thread.
    unthreaded: usize,
}

#[derive(Debug)]
struct LiveRun {
    thread: ThreadKey,
    since: Timestamp,
    /// It waits for a person: it is not at work.
    parked: bool,
}

#[derive(Debug)]
struct Reserved {
    of: RunUser,
    claims: usize,
}

/// Who reserves a run id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RunUser {
    /// A plain run without a thread.
    Unthreaded,
    /// A plain run that waits for its turn.
    Direct,
    /// Input that may start it. The same input sent again has it too (SIG-503).
    Input { thread: ThreadKey, id: MessageId },
}

/// Holds a run id until it is dropped.
#[derive(Debug)]
pub(crate) struct RunClaim {
    run_id: RunId,
    runs: Arc<Mutex<Runs>>,
}

impl Drop for RunClaim {
    fn drop(&mut self) {
        let mut runs = self.runs.lock();
        let Some(reserved) = runs.reserved.get_mut(&self.run_id) else { return };
        reserved.claims -= 1;
        if reserved.claims == 0 {
            let unthreaded = reserved.of == RunUser::Unthreaded;
            runs.reserved.remove(&self.run_id);
            runs.unthreaded -= usize::from(unthreaded);
        }
    }
}

/// A thread's actor, from outside.
#[derive(Debug, Clone)]
pub(crate) struct ThreadRef {
    pub(super) mailbox: mpsc::Sender<Box<Letter>>,
    pub(crate) log: Arc<StreamLog>,
    pub(super) view: watch::Receiver<View>,
    pub(super) subscribers: Arc<std::sync::atomic::AtomicUsize>,
    pub(super) left: Arc<tokio::sync::Notify>,
}

/// What others may see of a thread without asking its actor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct View {
    pub(crate) active_run: Option<RunId>,
    pub(crate) queue_count: usize,
    /// Queued entries by agent and group (SIG-266).
    pub(crate) queue_groups: Vec<QueueGroup>,
    /// The thread's lease is ours.
    pub(crate) owned: bool,
}

/// The queued entries of one agent's group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct QueueGroup {
    pub(crate) agent_id: String,
    pub(crate) group: String,
    pub(crate) count: usize,
}

impl Hub {
    /// The actor of a thread, made if there is none.
    fn thread(&self, threads: &mut HashMap<ThreadKey, ThreadRef>, inner: &Arc<Inner>, key: &ThreadKey) -> ThreadRef {
        if let Some(thread) = threads.get(key).filter(|thread| !thread.mailbox.is_closed()) {
            return thread.clone();
        }
        let (mailbox, letters) = mpsc::channel(MAILBOX);
        let (view_sender, view) = watch::channel(View::default());
        let thread =
            ThreadRef { mailbox, log: Arc::default(), view, subscribers: Arc::default(), left: Arc::default() };
        threads.insert(key.clone(), thread.clone());
        self.tasks.spawn(actor::run(inner.clone(), key.clone(), thread.clone(), letters, view_sender));
        thread
    }

    /// The actor of a thread, if it has one.
    pub(crate) fn existing(&self, key: &ThreadKey) -> Option<ThreadRef> {
        self.threads.lock().get(key).filter(|thread| !thread.mailbox.is_closed()).cloned()
    }

    /// Sends a letter to the thread's actor, made if there is none. Waits while its mailbox is full.
    ///
    /// The letter is put into the mailbox under the lock under which an idle actor retires, so that none is lost and
    /// two letters of one sender keep their order.
    pub(crate) async fn send(&self, inner: &Arc<Inner>, key: &ThreadKey, letter: Letter) -> Result<(), Error> {
        let mut letter = Box::new(letter);
        loop {
            if self.stop.is_cancelled() {
                return Err(Error::Draining);
            }
            let full = {
                let mut threads = self.threads.lock();
                let thread = self.thread(&mut threads, inner, key);
                match thread.mailbox.try_send(letter) {
                    Ok(()) => return Ok(()),
                    Err(mpsc::error::TrySendError::Full(back) | mpsc::error::TrySendError::Closed(back)) => {
                        letter = back;
                        thread.mailbox
                    }
                }
            };
            // There is room, or the actor is gone; either way the next try tells.
            drop(full.reserve().await);
        }
    }

    /// Sends a letter that asks, and waits for the answer.
    pub(crate) async fn ask<T>(
        &self,
        inner: &Arc<Inner>,
        key: &ThreadKey,
        letter: impl FnOnce(oneshot::Sender<T>) -> Letter,
    ) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        self.send(inner, key, letter(reply)).await?;
        answer.await.map_err(|_| Error::Draining)
    }

    /// Ends an idle actor's mailbox, unless a letter has come in. Nothing can slip in between.
    pub(super) fn retire(
        &self,
        key: &ThreadKey,
        thread: &ThreadRef,
        letters: &mut mpsc::Receiver<Box<Letter>>,
    ) -> bool {
        let mut threads = self.threads.lock();
        if !letters.is_empty() {
            return false;
        }
        letters.close();
        if threads.get(key).is_some_and(|known| known.mailbox.same_channel(&thread.mailbox)) {
            threads.remove(key);
        }
        true
    }

    /// An actor has ended.
    pub(super) fn forget(&self, key: &ThreadKey, thread: &ThreadRef) {
        let mut threads = self.threads.lock();
        if threads.get(key).is_some_and(|known| known.mailbox.same_channel(&thread.mailbox)) {
            threads.remove(key);
        }
    }

    /// Takes a run id that no run of this process has, neither live nor waiting, until the claim is dropped.
    pub(crate) fn reserve(&self, run_id: &RunId, of: RunUser) -> Result<RunClaim, Error> {
        let mut runs = self.runs.lock();
        let taken = || Err(Error::RunIdTaken { run_id: run_id.clone() });
        if let Some(live) = runs.live.get(run_id) {
            // Input sent again whose run is at work; the journal tells it apart.
            let again = matches!(&of, RunUser::Input { thread, .. } if *thread == live.thread);
            if !again {
                return taken();
            }
        }
        if let Some(reserved) = runs.reserved.get_mut(run_id) {
            if reserved.of != of || !matches!(of, RunUser::Input { .. }) {
                return taken();
            }
            reserved.claims += 1;
        } else {
            runs.unthreaded += usize::from(of == RunUser::Unthreaded);
            runs.reserved.insert(run_id.clone(), Reserved { of, claims: 1 });
        }
        drop(runs);
        Ok(RunClaim { run_id: run_id.clone(), runs: self.runs.clone() })
    }

    /// A thread's run begins; `false` if a run of another thread has its id.
    pub(super) fn run_started(&self, run_id: &RunId, key: &ThreadKey, since: Timestamp) -> bool {
        let mut runs = self.runs.lock();
        let live =
            runs.live.entry(run_id.clone()).or_insert_with(|| LiveRun { thread: key.clone(), since, parked: false });
        if live.thread == *key {
            live.parked = false;
        }
        live.thread == *key
    }

    /// When a live run began.
    pub(crate) fn run_began(&self, run_id: &RunId) -> Option<Timestamp> {
        self.runs.lock().live.get(run_id).map(|live| live.since)
    }

    /// A thread's run waits for a person.
    pub(super) fn run_parked(&self, run_id: &RunId, key: &ThreadKey, since: Timestamp) {
        let live = LiveRun { thread: key.clone(), since, parked: true };
        self.runs.lock().live.insert(run_id.clone(), live);
    }

    pub(super) fn run_ended(&self, run_id: &RunId) {
        self.runs.lock().live.remove(run_id);
    }

    /// An agent that left work is not registered; `true` the first time, to log it once.
    pub(super) fn misses(&self, agent_id: &str) -> bool {
        let mut missing = self.missing.lock();
        missing.len() < MISSING && missing.insert(agent_id.to_owned())
    }

    /// The thread of a live run.
    pub(crate) fn thread_of_run(&self, run_id: &RunId) -> Option<ThreadKey> {
        self.runs.lock().live.get(run_id).map(|live| live.thread.clone())
    }

    /// All live runs.
    pub(crate) fn active_runs(&self) -> Vec<(RunId, ThreadKey)> {
        self.runs.lock().live.iter().map(|(run, live)| (run.clone(), live.thread.clone())).collect()
    }

    /// Whether a run is at work, on a thread or without one.
    pub(crate) fn has_runs(&self) -> bool {
        let runs = self.runs.lock();
        runs.live.values().any(|run| !run.parked) || runs.unthreaded > 0
    }

    /// How many threads have an actor.
    pub(crate) fn thread_count(&self) -> usize {
        self.threads.lock().len()
    }
}

impl ThreadRef {
    /// The run that occupies the thread.
    pub(crate) fn active_run_id(&self) -> Option<RunId> {
        self.view.borrow().active_run.clone()
    }

    /// The thread's lease is ours, so what its journal holds is known here.
    pub(crate) fn is_owned(&self) -> bool {
        self.view.borrow().owned
    }

    /// Stops the thread's run.
    pub(crate) async fn abort(&self, options: AbortOptions) -> Result<bool, Error> {
        let (reply, answer) = oneshot::channel();
        let letter = Letter::Abort { options, reply };
        self.mailbox.send(Box::new(letter)).await.map_err(|_| Error::Draining)?;
        answer.await.map_err(|_| Error::Draining)
    }

    /// Counts a subscriber; its thread keeps its actor.
    pub(super) fn subscribed(&self) {
        self.subscribers.fetch_add(1, std::sync::atomic::Ordering::AcqRel);
    }

    pub(super) fn unsubscribed(&self) {
        if self.subscribers.fetch_sub(1, std::sync::atomic::Ordering::AcqRel) == 1 {
            self.left.notify_one();
        }
    }
}
