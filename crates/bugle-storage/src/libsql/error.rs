//! What SQLite's errors mean to a person.

use std::path::Path;

use bugle::storage::StorageError;
use rusqlite::ErrorCode;

/// Says what happened and what to do.
pub(super) fn explain(name: &str, error: rusqlite::Error) -> StorageError {
    let message = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => {
            format!(
                "{name}: there is no room left on the disk, or the file has reached its size limit; nothing of this operation was written. Free some space and try again"
            )
        }
        Some(ErrorCode::ReadOnly) => {
            format!(
                "{name}: the database is read-only; give the process write permission for the file and its directory"
            )
        }
        Some(ErrorCode::DatabaseCorrupt) => {
            format!(
                "{name}: the database file is damaged; stop all processes that use it, keep a copy, and restore a backup or run `sqlite3 FILE .recover`"
            )
        }
        Some(ErrorCode::NotADatabase) => {
            format!("{name}: this file is not a SQLite database (or it is encrypted); name another file")
        }
        Some(ErrorCode::CannotOpen) => {
            format!(
                "{name}: the database cannot be opened; its directory must exist and the process must be allowed to write there"
            )
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            format!(
                "{name}: another process has held the write lock for too long; try again, and look for a program that keeps a transaction open"
            )
        }
        Some(ErrorCode::SystemIoFailure) => {
            format!("{name}: reading or writing the file failed ({error}); check the disk")
        }
        _ => format!("{name}: {error}"),
    };
    StorageError::Unavailable { message, source: Some(Box::new(error)) }
}

/// Somebody else holds a lock that is needed.
pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// A failure that has no cause in SQLite.
pub(super) fn unavailable(message: String) -> StorageError {
    StorageError::Unavailable { message, source: None }
}

/// The directory of the file is not there.
pub(super) fn no_directory(name: &str, directory: &Path) -> StorageError {
    unavailable(format!("{name}: the directory {} does not exist; create it or name another file", directory.display()))
}

/// Either side of a job: SQLite failed, or a rule was broken.
#[derive(Debug)]
pub(super) enum Failure {
    /// SQLite failed.
    Sqlite(rusqlite::Error),
    /// A rule was broken.
    Rule(StorageError),
}

impl Failure {
    pub(super) fn explain(self, name: &str) -> StorageError {
        match self {
            Self::Sqlite(error) => explain(name, error),
            Self::Rule(error) => error,
        }
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<StorageError> for Failure {
    fn from(error: StorageError) -> Self {
        Self::Rule(error)
    }
}

/// What a job answers.
pub(super) type Answer<T> = Result<T, Failure>;
