//! Finds, and makes, the actor of a thread.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    actor::{self, Letter},
    log::StreamLog,
};
use crate::{
    error::Error,
    id::{RunId, ThreadKey},
    runtime::{AbortOptions, Inner},
};

/// Letters that wait for an actor at most; past it, senders wait.
pub(super) const MAILBOX: usize = 1024;

/// All threads that are not idle.
#[derive(Debug, Default)]
pub(crate) struct Hub {
    threads: Mutex<HashMap<ThreadKey, ThreadRef>>,
    runs: Mutex<HashMap<RunId, ThreadKey>>,
    /// Every task of the runtime: actors and runs.
    pub(crate) tasks: TaskTracker,
    /// Fires when the runtime ends.
    pub(crate) stop: CancellationToken,
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
}

impl Hub {
    /// The actor of a thread, made if there is none.
    pub(crate) fn thread(&self, inner: &Arc<Inner>, key: &ThreadKey) -> ThreadRef {
        let mut threads = self.threads.lock();
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

    /// Sends a letter, made anew if the actor ended meanwhile.
    pub(crate) async fn send(&self, inner: &Arc<Inner>, key: &ThreadKey, letter: Letter) -> Result<(), Error> {
        let mut letter = Box::new(letter);
        loop {
            if self.stop.is_cancelled() {
                return Err(Error::Draining);
            }
            let thread = self.thread(inner, key);
            match thread.mailbox.send(letter).await {
                Ok(()) => return Ok(()),
                Err(mpsc::error::SendError(back)) => letter = back,
            }
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

    /// An actor has ended.
    pub(super) fn forget(&self, key: &ThreadKey, thread: &ThreadRef) {
        let mut threads = self.threads.lock();
        if threads.get(key).is_some_and(|known| known.mailbox.same_channel(&thread.mailbox)) {
            threads.remove(key);
        }
    }

    pub(super) fn run_started(&self, run_id: &RunId, key: &ThreadKey) {
        self.runs.lock().insert(run_id.clone(), key.clone());
    }

    pub(super) fn run_ended(&self, run_id: &RunId) {
        self.runs.lock().remove(run_id);
    }

    /// The thread of a live run.
    pub(crate) fn thread_of_run(&self, run_id: &RunId) -> Option<ThreadKey> {
        self.runs.lock().get(run_id).cloned()
    }

    /// All live runs.
    pub(crate) fn active_runs(&self) -> Vec<(RunId, ThreadKey)> {
        self.runs.lock().iter().map(|(run, key)| (run.clone(), key.clone())).collect()
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
