//! Proof that a process lives: a kernel lock on a file beside the database, held for as long as the store is open
//! (ruling 26). When the process dies, however it dies, the kernel lets go.

use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
};

use uuid::Uuid;

/// Owners of this form have a lock file.
const PREFIX: &str = "db-";

/// This handle's proof of life.
#[derive(Debug)]
pub(super) struct Life {
    owner: String,
    directory: PathBuf,
    /// Holds the lock.
    _file: File,
}

impl Life {
    /// Makes the lock file in `<database>-bugle/`, and clears away those of the dead.
    pub(super) fn begin(database: &Path) -> io::Result<Self> {
        let mut directory = database.as_os_str().to_owned();
        directory.push("-bugle");
        let directory = PathBuf::from(directory);
        let owner = format!("{PREFIX}{}", Uuid::new_v4());
        // Locked before it has its name, so that nobody takes it for a dead one's.
        let (file, unnamed) = loop {
            match fs::create_dir_all(&directory) {
                // Others make and remove it in this very moment; only a file in its place is an error.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && !directory.is_file() => continue,
                made => made?,
            }
            let unnamed = directory.join(format!("{owner}.new"));
            match File::create_new(&unnamed) {
                Ok(file) => break (file, unnamed),
                // The last one to leave has just removed the directory.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        };
        file.lock()?;
        fs::rename(&unnamed, lock_path(&directory, &owner))?;
        let life = Self { owner, directory, _file: file };
        life.clear_dead();
        Ok(life)
    }

    pub(super) fn owner(&self) -> &str {
        &self.owner
    }

    pub(super) fn watch(&self) -> Watch {
        Watch { owner: self.owner.clone(), directory: Some(self.directory.clone()) }
    }

    fn clear_dead(&self) {
        let watch = self.watch();
        for file in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            if let Some(owner) = file.file_name().to_str().and_then(|name| name.strip_suffix(".lock")) {
                watch.is_alive(owner);
            }
        }
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        // Best effort: what stays is cleared away by the next one.
        let _ = fs::remove_file(lock_path(&self.directory, &self.owner));
        let _ = fs::remove_dir(&self.directory);
    }
}

fn lock_path(directory: &Path, owner: &str) -> PathBuf {
    directory.join(format!("{owner}.lock"))
}

/// Tells who lives.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    owner: String,
    /// None for a database in memory, whose owners are all of this process.
    directory: Option<PathBuf>,
}

impl Watch {
    pub(super) fn in_memory(owner: String) -> Self {
        Self { owner, directory: None }
    }

    /// Whether the process of `owner` may still live. Only the lock of an owner of this form tells; of any other one only
    /// the lease's time does.
    pub(super) fn is_alive(&self, owner: &str) -> bool {
        let Some(directory) = &self.directory else { return true };
        if owner == self.owner || owner.strip_prefix(PREFIX).is_none_or(|id| Uuid::parse_str(id).is_err()) {
            return true;
        }
        let path = lock_path(directory, owner);
        let file = match File::options().write(true).open(&path) {
            Ok(file) => file,
            Err(error) => return error.kind() != io::ErrorKind::NotFound,
        };
        match file.try_lock() {
            Ok(()) => {
                let _ = fs::remove_file(&path);
                false
            }
            Err(TryLockError::WouldBlock) => true,
            // Cannot tell: the lease's time decides.
            Err(TryLockError::Error(_)) => true,
        }
    }
}
