//! The threads that own the connections: one writer that commits in groups, and readers.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
};

use bugle::storage::StorageError;
use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot, watch};

use super::{
    checkpoint::Checkpoints,
    error::{Answer, explain, unavailable},
};

/// Jobs of one group commit at most: bounds how long the first one waits for the last.
const GROUP_MAX: usize = 256;

/// Work for a connection. It may run twice: a group that cannot be committed is taken apart and each job runs alone.
trait Job: Send {
    /// Runs it inside a transaction; `false` means its changes are to be undone.
    fn run(&mut self, connection: &Connection, name: &str) -> bool;
    /// Answers with the result of the last run, or with what went wrong afterwards.
    fn answer(self: Box<Self>, failed: Option<StorageError>);
    /// Nobody waits for the answer any more and it has not begun.
    fn is_abandoned(&self) -> bool;
}

/// What is never sent.
#[derive(Debug)]
pub(super) enum Never {}

struct Task<T, F> {
    work: F,
    result: Option<Result<T, StorageError>>,
    waiter: oneshot::Sender<Result<T, StorageError>>,
}

impl<T: Send, F: Fn(&Connection) -> Answer<T> + Send> Job for Task<T, F> {
    fn run(&mut self, connection: &Connection, name: &str) -> bool {
        let result = match catch_unwind(AssertUnwindSafe(|| (self.work)(connection))) {
            Ok(result) => result.map_err(|failure| failure.explain(name)),
            Err(_) => {
                Err(unavailable(format!("{name}: a storage operation panicked; this is a bug, please report it")))
            }
        };
        let ok = result.is_ok();
        self.result = Some(result);
        ok
    }

    fn answer(self: Box<Self>, failed: Option<StorageError>) {
        let result = match (failed, self.result) {
            (Some(failed), _) => Err(failed),
            (None, Some(result)) => result,
            (None, None) => Err(unavailable("the storage operation did not run".into())),
        };
        // The caller may have stopped waiting.
        let _ = self.waiter.send(result);
    }

    fn is_abandoned(&self) -> bool {
        self.waiter.is_closed()
    }
}

/// Sends jobs to one thread. The queue is bounded: when it is full, callers wait their turn in order.
#[derive(Debug, Clone)]
pub(super) struct Worker {
    queue: mpsc::Sender<Box<dyn Job>>,
    name: Arc<str>,
    /// Its sender lives as long as the thread.
    life: watch::Receiver<()>,
}

impl std::fmt::Debug for dyn Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Job")
    }
}

impl Worker {
    /// A thread whose jobs run in write transactions. After its last job it waits until `readers` are gone, so that it
    /// closes the file last and leaves no log file behind; then it lets go of `keep`.
    pub(super) fn writer(
        connection: Connection,
        name: Arc<str>,
        queue_len_max: usize,
        mut checkpoints: Option<Checkpoints>,
        readers: std::sync::mpsc::Receiver<Never>,
        keep: impl Send + 'static,
    ) -> std::io::Result<Self> {
        Self::spawn("bugle-db-write", name, queue_len_max, move |mut queue, name| {
            let mut group = Vec::new();
            while queue.blocking_recv_many(&mut group, GROUP_MAX) > 0 {
                commit_group(&connection, &name, &mut group);
                if let Some(checkpoints) = &mut checkpoints {
                    checkpoints.after_transaction(&connection);
                }
            }
            drop(checkpoints);
            // Nothing is ever sent: this returns when every reader has dropped its end.
            let _ = readers.recv();
            drop(connection);
            drop(keep);
        })
    }

    /// A thread whose jobs each see one snapshot. It drops `open` when it has closed its connection.
    pub(super) fn reader(
        connection: Connection,
        name: Arc<str>,
        queue_len_max: usize,
        open: std::sync::mpsc::Sender<Never>,
    ) -> std::io::Result<Self> {
        Self::spawn("bugle-db-read", name, queue_len_max, move |mut queue, name| {
            while let Some(mut job) = queue.blocking_recv() {
                if job.is_abandoned() {
                    continue;
                }
                let failed = match begin(&connection, "BEGIN") {
                    Ok(()) => {
                        job.run(&connection, &name);
                        end(&connection, "COMMIT").err()
                    }
                    Err(error) => Some(error),
                };
                job.answer(failed.map(|error| explain(&name, error)));
            }
            drop(connection);
            drop(open);
        })
    }

    fn spawn(
        thread_name: &str,
        name: Arc<str>,
        queue_len_max: usize,
        body: impl FnOnce(mpsc::Receiver<Box<dyn Job>>, Arc<str>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (queue, jobs) = mpsc::channel(queue_len_max.max(1));
        let (alive, life) = watch::channel(());
        let for_thread = Arc::clone(&name);
        thread::Builder::new().name(thread_name.into()).spawn(move || {
            body(jobs, for_thread);
            drop(alive);
        })?;
        Ok(Self { queue, name, life })
    }

    /// Runs `work` and returns once its transaction has ended. If the future is dropped, it may still take effect.
    pub(super) async fn run<T, F>(&self, work: F) -> Result<T, StorageError>
    where
        T: Send + 'static,
        F: Fn(&Connection) -> Answer<T> + Send + 'static,
    {
        let (waiter, answer) = oneshot::channel();
        let closed = || unavailable(format!("{}: the database has been closed", self.name));
        self.queue.send(Box::new(Task { work, result: None, waiter })).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    /// Returns when the thread has ended. Does not keep it from ending.
    pub(super) fn ended(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut life = self.life.clone();
        async move { while life.changed().await.is_ok() {} }
    }

    /// How many jobs wait.
    pub(super) fn waiting(&self) -> usize {
        self.queue.max_capacity() - self.queue.capacity()
    }
}

fn begin(connection: &Connection, how: &str) -> rusqlite::Result<()> {
    // A transaction left open by an earlier failure would be joined silently.
    if !connection.is_autocommit() {
        end(connection, "ROLLBACK")?;
    }
    end(connection, how)
}

fn end(connection: &Connection, how: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(how)?.raw_execute().map(drop)
}

/// Runs all jobs in one transaction, each in a savepoint of its own, and answers them after the commit.
fn commit_group(connection: &Connection, name: &str, group: &mut Vec<Box<dyn Job>>) {
    group.retain(|job| !job.is_abandoned());
    if group.len() > 1 && run_together(connection, name, group) {
        group.drain(..).for_each(|job| job.answer(None));
        return;
    }
    for mut job in group.drain(..) {
        let failed = run_alone(connection, name, &mut *job).err();
        job.answer(failed.map(|error| explain(name, error)));
    }
}

/// `false` if nothing of the group was written.
fn run_together(connection: &Connection, name: &str, group: &mut [Box<dyn Job>]) -> bool {
    let mut run = || -> rusqlite::Result<bool> {
        begin(connection, "BEGIN IMMEDIATE")?;
        for job in &mut *group {
            end(connection, "SAVEPOINT job")?;
            let ok = job.run(connection, name);
            // SQLite itself rolls everything back when the disk is full and the like.
            if connection.is_autocommit() {
                return Ok(false);
            }
            if !ok {
                end(connection, "ROLLBACK TO job")?;
            }
            end(connection, "RELEASE job")?;
        }
        end(connection, "COMMIT")?;
        Ok(true)
    };
    let committed = matches!(run(), Ok(true));
    if !committed && !connection.is_autocommit() {
        // If even this fails, `begin` tries again and reports it.
        let _ = end(connection, "ROLLBACK");
    }
    committed
}

fn run_alone(connection: &Connection, name: &str, job: &mut dyn Job) -> rusqlite::Result<()> {
    begin(connection, "BEGIN IMMEDIATE")?;
    let ok = job.run(connection, name);
    if connection.is_autocommit() {
        return Ok(());
    }
    let ended = end(connection, if ok { "COMMIT" } else { "ROLLBACK" });
    if ended.is_err() && !connection.is_autocommit() {
        let _ = end(connection, "ROLLBACK");
    }
    ended
}
