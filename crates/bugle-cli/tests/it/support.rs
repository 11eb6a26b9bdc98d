//! A project in a temporary directory, a server in a process of its own, and commands run against it.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    time::Duration,
};

use serde_json::Value;

/// How long anything may take. Only failures wait for it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A project directory, removed at the end.
pub(crate) struct Project {
    directory: tempfile::TempDir,
}

impl Project {
    pub(crate) fn empty() -> Self {
        let directory = tempfile::tempdir().unwrap();
        // The search for a project ends here.
        std::fs::create_dir(directory.path().join(".git")).unwrap();
        Self { directory }
    }

    /// With one agent `helper` on the scripted model.
    pub(crate) fn with_agent() -> Self {
        let project = Self::empty();
        project.file("agents/helper.md", "---\nmodel: scripted/scripted\nmaxSteps: 20\n---\nHelp.\n");
        project
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A command in the project, free of the caller's environment.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_bugle"));
        command.args(args).current_dir(self.path()).env_clear();
        for name in ["PATH", "TMPDIR", "SystemRoot", "LLVM_PROFILE_FILE"] {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        command.env("HOME", self.path()).env("USER", "ann").env("XDG_CONFIG_HOME", self.path().join(".config"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Done {
        Done::of(self.command(args).spawn().unwrap())
    }

    /// Starts a server: `dev` or `serve` with more arguments. Returns once it says that it listens.
    pub(crate) fn serve(&self, args: &[&str]) -> Server {
        let mut all = args.to_vec();
        all.extend(["--port", "0", "--json"]);
        let running = Running::start(self.command(&all));
        let line = running.line();
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line:?}"));
        assert_eq!(ready["event"], "listening");
        Server { running, ready }
    }
}

/// What a command did.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    fn of(child: Child) -> Self {
        let running = Running::of(child);
        running.wait()
    }

    /// The lines of stdout as JSON; fails on anything else.
    pub(crate) fn json(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line:?}"))).collect()
    }

    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }
}

/// A process whose lines are read as they come.
pub(crate) struct Running {
    child: Child,
    lines: mpsc::Receiver<String>,
    stderr: mpsc::Receiver<String>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        Self::of(command.spawn().unwrap())
    }

    fn of(mut child: Child) -> Self {
        let (sender, lines) = mpsc::channel();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in stdout.lines() {
                // The test may be over.
                let Ok(line) = line else { break };
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let (sender, stderr) = mpsc::channel();
        // On a terminal the test reads it.
        if let Some(mut pipe) = child.stderr.take() {
            std::thread::spawn(move || {
                let mut text = String::new();
                let _ = pipe.read_to_string(&mut text);
                let _ = sender.send(text);
            });
        }
        Self { child, lines, stderr }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line of stdout.
    pub(crate) fn line(&self) -> String {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => line,
            Err(error) => {
                panic!("no line: {error}; stderr: {:?}", self.stderr.recv_timeout(Duration::from_millis(200)))
            }
        }
    }

    /// The first line of stdout from here on that fits.
    pub(crate) fn line_where(&self, fits: impl Fn(&str) -> bool) -> String {
        loop {
            let line = self.line();
            if fits(&line) {
                return line;
            }
        }
    }

    pub(crate) fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.pid().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits for the end of the process; kills it when it takes too long.
    pub(crate) fn wait(mut self) -> Done {
        let status = self.status();
        let stdout: String = self.lines.iter().map(|line| line + "\n").collect();
        let stderr = self.stderr.recv_timeout(PATIENCE).unwrap_or_default();
        Done { code: status.code(), stdout, stderr }
    }

    fn status(&mut self) -> ExitStatus {
        let start = std::time::Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            if start.elapsed() > PATIENCE {
                self.child.kill().unwrap();
                panic!("the process did not end: {:?}", self.stderr.recv_timeout(PATIENCE));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A test that failed must not leave a server behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that listens.
pub(crate) struct Server {
    pub(crate) running: Running,
    pub(crate) ready: Value,
}

impl Server {
    pub(crate) fn url(&self) -> &str {
        self.ready["url"].as_str().unwrap()
    }

    /// Ends it in order.
    pub(crate) fn stop(self) -> Done {
        self.running.signal("TERM");
        self.running.wait()
    }
}

/// Runs a command with text on its standard input.
pub(crate) fn run_with_input(mut command: Command, text: &str) -> Done {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    Done::of(child)
}

/// A server that answers each request with one fixed response, for statuses that are hard to cause. Gives its URL.
pub(crate) fn fixed_server(status: &'static str, body: &'static str) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { break };
            let mut request = [0_u8; 16 * 1024];
            let _ = stream.read(&mut request);
            let answer = format!(
                "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    url
}
