//! Moving the log into the file beside the writer, so that no commit waits for the disk's flush.
//!
//! SQLite's own way is that the commit which fills the log moves it, a few milliseconds every hundred commits. Here a
//! thread with a connection of its own does it. Under load it never catches up with the writer, and the log begins anew
//! only when all of it has been moved: once the log is long, the writer moves the little that is left.

use std::{
    path::{Path, PathBuf},
    sync::mpsc::{Sender, SyncSender, sync_channel},
    thread,
};

use rusqlite::Connection;

use super::worker::Never;

/// The log is moved by the other thread from this length on: 4 MiB, SQLite's own measure.
const LOG_LEN: u64 = 4 << 20;
/// What is kept of the log when it begins anew, so that its length goes on telling how much it holds.
pub(super) const LOG_LEN_KEPT: u64 = 1 << 20;
/// The writer moves what is left from this length on.
const LOG_LEN_LONG: u64 = 32 << 20;
/// The length is looked at after so many transactions.
const TRANSACTIONS: u32 = 64;

/// The writer's side.
#[derive(Debug)]
pub(super) struct Checkpoints {
    log: PathBuf,
    since: u32,
    /// Holds one wish at most.
    wish: SyncSender<()>,
}

impl Checkpoints {
    /// Starts the thread; it drops `open` when it has closed its connection. A `fresh` file was made without waiting for
    /// the disk: that is the first thing it does.
    pub(super) fn start(
        connection: Connection,
        database: &Path,
        fresh: bool,
        open: Sender<Never>,
    ) -> std::io::Result<Self> {
        let mut log = database.as_os_str().to_owned();
        log.push("-wal");
        let (wish, wishes) = sync_channel(1);
        let directory = database.parent().filter(|_| fresh).map(Path::to_owned);
        thread::Builder::new().name("bugle-db-move".into()).spawn(move || {
            if let Some(directory) = directory {
                checkpoint(&connection);
                let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { &directory };
                // Best effort: where a directory cannot be flushed, its file system does so in time.
                let _ = std::fs::File::open(directory).and_then(|directory| directory.sync_all());
            }
            while let Ok(()) = wishes.recv() {
                checkpoint(&connection);
            }
            drop(connection);
            drop(open);
        })?;
        Ok(Self { log: log.into(), since: 0, wish })
    }

    /// To be called after each transaction of the writer.
    pub(super) fn after_transaction(&mut self, writer: &Connection) {
        self.since += 1;
        if self.since < TRANSACTIONS {
            return;
        }
        self.since = 0;
        match std::fs::metadata(&self.log).map_or(0, |log| log.len()) {
            LOG_LEN_LONG.. => checkpoint(writer),
            // One that is under way will do.
            LOG_LEN.. => drop(self.wish.try_send(())),
            _ => {}
        }
    }
}

/// A failure is no harm: the log holds everything, and the next one tries again.
fn checkpoint(connection: &Connection) {
    let done = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", (), |row| row.get::<_, i64>(0));
    if let Err(error) = done {
        tracing::warn!(%error, "the database's log could not be moved into the file");
    }
}
