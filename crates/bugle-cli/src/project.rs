//! The project: where it is, and the state of its own in `.bugle/` (CLI-001, CLI-005).

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use bugle::time::Timestamp;
use serde::{Deserialize, Serialize};

use crate::exit::Failure;

/// Finds the project directory: `given`, else the nearest directory from `start` upwards that holds `bugle.toml` or
/// `agents/`; the search ends at a directory with `.git`, at `home`, and at the root. Else `start`.
pub(crate) fn find(given: Option<&Path>, start: &Path, home: Option<&Path>) -> Result<PathBuf, Failure> {
    if let Some(given) = given {
        let path = start.join(given);
        if !path.is_dir() {
            return Err(Failure::usage(format!("{} is no directory", given.display())).hint("name an existing one"));
        }
        return Ok(path);
    }
    for directory in start.ancestors() {
        if directory.join("bugle.toml").is_file() || directory.join("agents").is_dir() {
            return Ok(directory.to_owned());
        }
        if directory.join(".git").exists() || Some(directory) == home {
            break;
        }
    }
    Ok(start.to_owned())
}

/// `.bugle/`, made if missing: private, and ignored by git.
pub(crate) fn state_directory(project: &Path) -> io::Result<PathBuf> {
    let path = project.join(".bugle");
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    match builder.create(&path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    let ignore = path.join(".gitignore");
    if !ignore.exists() {
        fs::write(ignore, "*\n")?;
    }
    Ok(path)
}

/// `.bugle/server.json`: which server runs for this project. Holds no token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServerFile {
    pub(crate) url: String,
    pub(crate) pid: u32,
    pub(crate) started_at: Timestamp,
}

impl ServerFile {
    /// The file of a project, if the process it names lives.
    pub(crate) fn live(project: &Path) -> Option<Self> {
        let text = fs::read_to_string(project.join(".bugle/server.json")).ok()?;
        let file: Self = serde_json::from_str(&text).ok()?;
        is_alive(file.pid).then_some(file)
    }

    /// Writes the file, whole or not at all. It is removed when the guard is dropped.
    pub(crate) fn write(&self, project: &Path) -> io::Result<ServerFileGuard> {
        let directory = state_directory(project)?;
        let (path, temporary) = (directory.join("server.json"), directory.join(format!("server.json.{}", self.pid)));
        fs::write(&temporary, serde_json::to_vec(self)?)?;
        fs::rename(&temporary, &path)?;
        Ok(ServerFileGuard { path, pid: self.pid })
    }
}

/// Removes `server.json` if it is still this process's.
#[derive(Debug)]
pub(crate) struct ServerFileGuard {
    path: PathBuf,
    pid: u32,
}

impl Drop for ServerFileGuard {
    fn drop(&mut self) {
        let own = fs::read_to_string(&self.path)
            .ok()
            .and_then(|text| serde_json::from_str::<ServerFile>(&text).ok())
            .is_some_and(|file| file.pid == self.pid);
        if own {
            // Nothing else can be done at the end; a dead pid in the file is recognised.
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(unix)]
fn is_alive(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    // A process of somebody else cannot be signalled, but it lives.
    pid.is_some_and(|pid| matches!(rustix::process::test_kill_process(pid), Ok(()) | Err(rustix::io::Errno::PERM)))
}

#[cfg(not(unix))]
fn is_alive(_pid: u32) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cli_001_the_nearest_directory_with_a_file_of_bugle_is_the_project() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let deep = root.join("repo/app/src");
        fs::create_dir_all(&deep).unwrap();
        fs::create_dir(root.join("repo/.git")).unwrap();
        fs::write(root.join("bugle.toml"), "").unwrap();
        // The repository's border ends the search before the file above it.
        assert_eq!(find(None, &deep, None).unwrap(), deep);
        fs::create_dir(root.join("repo/app/agents")).unwrap();
        assert_eq!(find(None, &deep, None).unwrap(), root.join("repo/app"));
        assert_eq!(find(Some(Path::new("../agents")), &deep, None).unwrap(), deep.join("../agents"));
        assert_eq!(find(Some(Path::new("nowhere")), &deep, None).unwrap_err().code, 2);
        let home = root.join("home/me");
        fs::create_dir_all(home.join("work")).unwrap();
        assert_eq!(find(None, &home.join("work"), Some(&home)).unwrap(), home.join("work"));
        assert_eq!(find(None, &home.join("work"), None).unwrap(), root);
    }

    #[test]
    fn cli_005_server_json_names_a_live_process_and_goes_with_it() {
        let project = tempfile::tempdir().unwrap();
        let file = ServerFile {
            url: "http://127.0.0.1:1".into(),
            pid: std::process::id(),
            started_at: Timestamp::from_millis(0),
        };
        let guard = file.write(project.path()).unwrap();
        assert_eq!(ServerFile::live(project.path()), Some(file.clone()));
        let text = fs::read_to_string(project.path().join(".bugle/server.json")).unwrap();
        assert_eq!(
            text,
            format!(
                "{{\"url\":\"http://127.0.0.1:1\",\"pid\":{},\"startedAt\":\"1970-01-01T00:00:00.000Z\"}}",
                file.pid
            )
        );
        assert_eq!(fs::read_to_string(project.path().join(".bugle/.gitignore")).unwrap(), "*\n");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = fs::metadata(project.path().join(".bugle")).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
        }
        drop(guard);
        assert_eq!(ServerFile::live(project.path()), None);
        // No process has this id.
        let _dead = ServerFile { pid: i32::MAX as u32, ..file }.write(project.path()).unwrap();
        assert_eq!(ServerFile::live(project.path()), None);
    }
}
