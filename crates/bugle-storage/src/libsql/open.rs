//! Options, and what happens at opening: pragmas, tables, threads.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use bugle::storage::StorageError;
use rusqlite::{Connection, OpenFlags};

use super::{
    Inner, LibSql, Near,
    alive::{Life, Watch},
    checkpoint::{Checkpoints, LOG_LEN_KEPT},
    error::{explain, no_directory, unavailable},
    network, schema,
    worker::Worker,
};

/// What an acknowledged write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Synchronous {
    /// The death of the process, not a loss of power: about 13 µs a commit.
    #[default]
    Normal,
    /// A loss of power too: a disk flush for every commit.
    Full,
}

/// How a file is opened.
///
/// ```
/// # fn main() -> Result<(), bugle::storage::StorageError> {
/// use bugle_storage::libsql::{LibSqlOptions, Synchronous};
/// let options = LibSqlOptions::builder().url(":memory:").synchronous(Synchronous::Full).build();
/// let store = options.open()?;
/// # drop(store);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, bon::Builder)]
pub struct LibSqlOptions {
    /// A path, `file:PATH` with SQLite's URI parameters (`mode=ro`), or `:memory:`.
    #[builder(into)]
    pub url: String,
    /// What an acknowledged write survives. Default: the death of the process.
    #[builder(default)]
    pub synchronous: Synchronous,
    /// How long to wait for a write lock that another process holds. Default: 15 s (STO-040).
    #[builder(default = Duration::from_secs(15))]
    pub busy_timeout: Duration,
    /// How many jobs may wait in a queue; when it is full, callers wait their turn. Default: 4096.
    #[builder(default = 4096)]
    pub queue_len_max: usize,
    /// Threads that read. Default: 2. A database in memory has none.
    #[builder(default = 2)]
    pub readers: usize,
    /// The file may not grow beyond so many pages of 4 KiB. Default: no limit but the disk's.
    pub pages_max: Option<u32>,
}

impl LibSqlOptions {
    /// Opens the file, made if missing, and completes its tables (STO-030, STO-031).
    ///
    /// Blocks for a few milliseconds, longer while another process holds the write lock.
    ///
    /// # Errors
    /// [`StorageError::Unavailable`] with what happened and what to do.
    pub fn open(&self) -> Result<LibSql, StorageError> {
        let target = Target::parse(&self.url);
        let name: Arc<str> = target.name().into();
        let Some(path) = &target.path else { return self.open_in_memory(name) };
        check_place(&name, path)?;
        let explain = |error| explain(&name, error);
        let fresh =
            self.synchronous == Synchronous::Normal && std::fs::metadata(path).map_or(true, |file| file.len() == 0);
        let connection = self.connect_as(&target.uri, fresh).map_err(explain)?;
        let is_read_only = connection.is_readonly("main").map_err(explain)?;
        let life = if is_read_only {
            stand_in(&connection, &name)?;
            None
        } else {
            schema::complete(&connection).map_err(explain)?;
            if fresh {
                self.synchronise(&connection).map_err(explain)?;
            }
            Some(Life::begin(path).map_err(|error| {
                unavailable(format!("{name}: the directory {}-bugle cannot be used ({error})", path.display()))
            })?)
        };
        let (owner, watch) = match &life {
            Some(life) => (life.owner().to_owned(), life.watch()),
            None => anonymous("reader"),
        };
        let thread_failed =
            |error| unavailable(format!("{name}: a thread for the database cannot be started: {error}"));
        let mut readers = Vec::with_capacity(self.readers);
        let (reading, read) = std::sync::mpsc::channel();
        for _ in 0..self.readers.max(1) {
            let reader = self.connect(&target.uri).map_err(explain)?;
            if is_read_only {
                stand_in(&reader, &name)?;
            }
            reader.pragma_update(None, "query_only", true).map_err(explain)?;
            readers.push(
                Worker::reader(reader, Arc::clone(&name), self.queue_len_max, reading.clone())
                    .map_err(thread_failed)?,
            );
        }
        let checkpoints = if is_read_only {
            None
        } else {
            let mover = self.connect(&target.uri).map_err(explain)?;
            connection.pragma_update(None, "wal_autocheckpoint", 0).map_err(explain)?;
            Some(Checkpoints::start(mover, path, fresh, reading.clone()).map_err(thread_failed)?)
        };
        let near = self.connect_near(&target.uri, is_read_only, &name)?;
        let reading_near = reading;
        let writer = Worker::writer(connection, Arc::clone(&name), self.queue_len_max, checkpoints, read, life)
            .map_err(thread_failed)?;
        let near = Some(Near::new(near, reading_near));
        let inner = Inner { name, is_durable: true, owner, watch, writer, readers, near, next_reader: 0.into() };
        Ok(LibSql { inner: Arc::new(inner) })
    }

    fn open_in_memory(&self, name: Arc<str>) -> Result<LibSql, StorageError> {
        let connection = in_memory().map_err(|error| explain(&name, error))?;
        let writer =
            Worker::writer(connection, Arc::clone(&name), self.queue_len_max, None, std::sync::mpsc::channel().1, ())
                .map_err(|error| unavailable(format!("{name}: a thread for the database cannot be started: {error}")))?;
        let (owner, watch) = anonymous("memory");
        let inner = Inner {
            name,
            is_durable: false,
            owner,
            watch,
            writer,
            readers: Vec::new(),
            near: None,
            next_reader: 0.into(),
        };
        Ok(LibSql { inner: Arc::new(inner) })
    }

    /// What looks things up at once, on the caller's thread: it never waits for a lock.
    fn connect_near(&self, uri: &str, is_read_only: bool, name: &str) -> Result<Connection, StorageError> {
        let near = self.connect(uri).map_err(|error| explain(name, error))?;
        if is_read_only {
            stand_in(&near, name)?;
        }
        let ready = near.pragma_update(None, "query_only", true).and_then(|()| near.busy_timeout(Duration::ZERO));
        ready.map_err(|error| explain(name, error))?;
        Ok(near)
    }

    /// A connection with the pragmas of STO-040.
    fn connect(&self, uri: &str) -> rusqlite::Result<Connection> {
        self.connect_as(uri, false)
    }

    /// The same; a fresh file is made without waiting for the disk, which is made up for as soon as it is open.
    fn connect_as(&self, uri: &str, fresh: bool) -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_URI
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(uri, flags)?;
        prepare(&connection)?;
        connection.busy_timeout(self.busy_timeout)?;
        if fresh {
            connection.execute_batch("PRAGMA synchronous=OFF")?;
        }
        if !connection.is_readonly("main")? {
            // Answers with the mode; a read of the header tells at once whether this is a database.
            let _mode: String = connection.query_row("PRAGMA journal_mode=WAL", (), |row| row.get(0))?;
        }
        if !fresh {
            self.synchronise(&connection)?;
        }
        connection.execute_batch("PRAGMA temp_store=MEMORY; PRAGMA cache_size=-16000;")?;
        let _kept: i64 =
            connection.query_row(&format!("PRAGMA journal_size_limit={LOG_LEN_KEPT}"), (), |row| row.get(0))?;
        let _size: Option<i64> = connection.query_row("PRAGMA mmap_size=134217728", (), |row| row.get(0)).ok();
        if let Some(pages) = self.pages_max {
            let _pages: i64 = connection.query_row(&format!("PRAGMA max_page_count={pages}"), (), |row| row.get(0))?;
        }
        Ok(connection)
    }

    fn synchronise(&self, connection: &Connection) -> rusqlite::Result<()> {
        connection.execute_batch(match self.synchronous {
            Synchronous::Normal => "PRAGMA synchronous=NORMAL",
            Synchronous::Full => "PRAGMA synchronous=FULL",
        })
    }
}

/// A database in memory has none of a file's pragmas (STO-042).
fn in_memory() -> rusqlite::Result<Connection> {
    let connection = Connection::open_in_memory()?;
    prepare(&connection)?;
    schema::complete(&connection)?;
    Ok(connection)
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_prepared_statement_cache_capacity(128);
    // Read the catalog now: a file that is no database is found here.
    connection.query_row("SELECT count(*) FROM sqlite_master", (), |_| Ok(()))
}

/// Empty temporary tables for those that a read-only file lacks.
fn stand_in(connection: &Connection, name: &str) -> Result<(), StorageError> {
    let missing = schema::missing(connection).map_err(|error| explain(name, error))?;
    if missing.needs_columns() {
        return Err(unavailable(format!(
            "{name}: the database is read-only and its tables are of an older version; open it once for writing"
        )));
    }
    missing.stand_in(connection).map_err(|error| explain(name, error))
}

/// An owner whose life nothing but its lease shows.
fn anonymous(kind: &str) -> (String, Watch) {
    let owner = format!("{kind}-{}", uuid::Uuid::new_v4());
    (owner.clone(), Watch::in_memory(owner))
}

/// Refuses what cannot work before SQLite answers less clearly.
fn check_place(name: &str, path: &Path) -> Result<(), StorageError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !directory.is_dir() {
        return Err(no_directory(name, directory));
    }
    if path.is_dir() {
        return Err(unavailable(format!("{name}: this is a directory; name a file in it")));
    }
    let real = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    if let Some(kind) = network::network_file_system(&real) {
        return Err(unavailable(format!(
            "{name}: the file lies on a network file system ({kind}), where SQLite loses data; use a local disk"
        )));
    }
    Ok(())
}

/// What a URL names.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    /// For SQLite, always a URI or a plain path.
    uri: String,
    /// The file; none in memory.
    path: Option<PathBuf>,
}

impl Target {
    fn parse(url: &str) -> Self {
        let Some(rest) = url.strip_prefix("file:") else {
            let path = (url != ":memory:").then(|| PathBuf::from(url));
            return Self { uri: url.to_owned(), path };
        };
        let path = rest.split(['?', '#']).next().unwrap_or_default();
        // file:///a/b and file://localhost/a/b have an authority; file:a and file:/a have none.
        let path = match path.strip_prefix("//") {
            Some(rest) => rest.find('/').map_or("", |slash| &rest[slash..]),
            None => path,
        };
        if path == ":memory:" {
            return Self { uri: url.to_owned(), path: None };
        }
        Self { uri: url.to_owned(), path: Some(PathBuf::from(percent_decoded(path))) }
    }

    fn name(&self) -> String {
        match &self.path {
            Some(path) => format!("file:{}", path.display()),
            None => "file::memory:".into(),
        }
    }
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = text.get(at + 1..at + 3).filter(|_| bytes[at] == b'%');
        if let Some(byte) = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            decoded.push(byte);
            at += 3;
        } else {
            decoded.push(bytes[at]);
            at += 1;
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pragma(connection: &Connection, name: &str) -> String {
        let value = connection.query_row(&format!("PRAGMA {name}"), (), |row| row.get::<_, rusqlite::types::Value>(0));
        match value.unwrap() {
            rusqlite::types::Value::Integer(number) => number.to_string(),
            rusqlite::types::Value::Text(text) => text,
            other => panic!("{name}: {other:?}"),
        }
    }

    #[test]
    fn sto_040_a_file_is_opened_with_the_settings_that_the_reference_shares() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.db").display().to_string();
        let options = LibSqlOptions::builder().url(path.as_str()).build();
        let _store = options.open().unwrap();
        let connection = options.connect(&path).unwrap();
        for (name, value) in [
            ("journal_mode", "wal"),
            ("synchronous", "1"),
            ("busy_timeout", "15000"),
            ("temp_store", "2"),
            ("cache_size", "-16000"),
            ("mmap_size", "134217728"),
        ] {
            assert_eq!(pragma(&connection, name), value, "{name}");
        }
    }

    #[test]
    fn sto_042_a_database_in_memory_has_none_of_them() {
        let connection = in_memory().unwrap();
        let plain = Connection::open_in_memory().unwrap();
        for name in ["journal_mode", "synchronous", "busy_timeout", "temp_store", "cache_size"] {
            assert_eq!(pragma(&connection, name), pragma(&plain, name), "{name}");
        }
        assert_eq!(pragma(&connection, "journal_mode"), "memory");
    }

    #[test]
    fn urls_name_files() {
        let path = |url: &str| Target::parse(url).path.map(|path| path.display().to_string());
        assert_eq!(path("bugle.db").as_deref(), Some("bugle.db"));
        assert_eq!(path("file:bugle.db").as_deref(), Some("bugle.db"));
        assert_eq!(path("file:///tmp/a%20b.db?mode=ro").as_deref(), Some("/tmp/a b.db"));
        assert_eq!(path("file:/tmp/a.db").as_deref(), Some("/tmp/a.db"));
        assert_eq!(path(":memory:"), None);
        assert_eq!(path("file::memory:"), None);
    }
}
