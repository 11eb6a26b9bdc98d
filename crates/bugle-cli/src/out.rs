//! Standard output and error: colours only on a terminal, JSON lines flushed one by one, a closed reader is no error
//! (CLI-060, CLI-061).

use std::io::{self, IsTerminal as _, Write as _};

use bugle::json::Value;

use crate::{args::ColorWhen, env::Env};

/// How a piece of text looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Style {
    Plain,
    Dim,
    Bold,
    Cyan,
    Yellow,
    Red,
}

impl Style {
    const fn code(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Dim => "\u{1b}[2m",
            Self::Bold => "\u{1b}[1m",
            Self::Cyan => "\u{1b}[36m",
            Self::Yellow => "\u{1b}[33m",
            Self::Red => "\u{1b}[31m",
        }
    }
}

/// Where a command writes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Out {
    pub(crate) json: bool,
    stdout_color: bool,
    stderr_color: bool,
}

impl Out {
    pub(crate) fn new(json: bool, when: ColorWhen, env: &Env) -> Self {
        let wanted = |is_terminal: bool| match when {
            ColorWhen::Always => true,
            ColorWhen::Never => false,
            ColorWhen::Auto if env.get("NO_COLOR").is_some() => false,
            ColorWhen::Auto if env.get("CLICOLOR_FORCE").is_some_and(|value| value != "0") => true,
            ColorWhen::Auto => is_terminal && env.get("TERM") != Some("dumb"),
        };
        Self {
            json,
            stdout_color: wanted(io::stdout().is_terminal()),
            stderr_color: wanted(io::stderr().is_terminal()),
        }
    }

    /// `text`, styled if stdout has colours.
    pub(crate) fn paint(self, style: Style, text: &str) -> String {
        painted(self.stdout_color, style, text)
    }

    /// Writes to stdout and flushes.
    #[allow(clippy::unused_self, reason = "whoever writes has been given the place to write to")]
    pub(crate) fn print(self, text: &str) {
        let mut stdout = io::stdout().lock();
        if let Err(error) = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            closed(&error);
        }
    }

    /// A line on stdout.
    pub(crate) fn line(self, text: &str) {
        self.print(&format!("{text}\n"));
    }

    /// A JSON line on stdout.
    pub(crate) fn json_line(self, value: &Value) {
        self.line(&value.to_string());
    }

    /// A line on stderr. Without stderr there is nobody to tell.
    pub(crate) fn note(self, style: Style, text: &str) {
        let text = painted(self.stderr_color, style, text);
        let _ = io::stderr().lock().write_all(format!("{text}\n").as_bytes());
    }
}

fn painted(color: bool, style: Style, text: &str) -> String {
    if color && style != Style::Plain && !text.is_empty() {
        format!("{}{text}\u{1b}[0m", style.code())
    } else {
        text.to_owned()
    }
}

/// Stdout cannot be written: its reader has gone, which ends the command well (CLI §8, code 0), or the disk is full.
fn closed(error: &io::Error) -> ! {
    if error.kind() == io::ErrorKind::BrokenPipe {
        std::process::exit(0);
    }
    let _ = writeln!(io::stderr(), "error: standard output cannot be written: {error}");
    std::process::exit(1);
}
