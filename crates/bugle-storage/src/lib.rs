//! SQLite and libSQL files for Bugle.
//!
//! [`open`] takes a URL: `file:bugle.db` (or a bare path) is a SQLite file in the format that the reference shares,
//! `memory:` is a store that ends with the process.

#[cfg(feature = "libsql")]
#[cfg_attr(docsrs, doc(cfg(feature = "libsql")))]
pub mod libsql;

use std::sync::Arc;

use bugle::storage::{MemoryStorage, SharedStorage, StorageError};

/// Opens the store that `url` names: `file:PATH` or a bare path for a SQLite file (made if missing), `memory:` for
/// memory.
///
/// # Errors
/// [`StorageError::Invalid`] for a kind of store that this build does not have, [`StorageError::Unavailable`] for a file
/// that cannot be opened. Both say what to do; neither repeats a URL that may hold a password.
///
/// ```
/// # fn main() -> Result<(), bugle::storage::StorageError> {
/// let store = bugle_storage::open("memory:")?;
/// assert_eq!(store.describe(), "memory:");
/// # Ok(())
/// # }
/// ```
pub fn open(url: &str) -> Result<SharedStorage, StorageError> {
    let url = url.trim();
    if matches!(url, "memory:" | ":memory:" | "file::memory:") {
        return Ok(Arc::new(MemoryStorage::new()));
    }
    if url.is_empty() {
        return Err(StorageError::Invalid("the storage URL is empty; use file:PATH, or memory:".into()));
    }
    let scheme = match url.split_once(':') {
        // One letter is a drive, a slash before the colon is a path.
        Some((scheme, _))
            if scheme.len() > 1 && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+.-".contains(&b)) =>
        {
            scheme.to_ascii_lowercase()
        }
        _ => "file".into(),
    };
    let kind = match scheme.as_str() {
        "file" => return open_file(url),
        "postgres" | "postgresql" => "PostgreSQL",
        "mongodb" | "mongodb+srv" => "MongoDB",
        "libsql" | "http" | "https" | "ws" | "wss" => "remote libSQL",
        _ => {
            return Err(StorageError::Invalid(format!(
                "unknown kind of storage URL \"{scheme}:\"; use file:PATH for a SQLite file, or memory:"
            )));
        }
    };
    Err(StorageError::Invalid(format!("this build has no {kind} store yet; use file:PATH")))
}

#[cfg(feature = "libsql")]
fn open_file(url: &str) -> Result<SharedStorage, StorageError> {
    Ok(Arc::new(libsql::LibSql::open(url)?))
}

#[cfg(not(feature = "libsql"))]
fn open_file(_url: &str) -> Result<SharedStorage, StorageError> {
    Err(StorageError::Invalid("this build has no SQLite store; build it with feature `libsql`, or use memory:".into()))
}
