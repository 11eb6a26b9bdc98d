//! How a command ends: exit codes and the one line that says why (CLI-062, CLI §8).

use std::fmt::Write as _;

use bugle::json::json;

/// The answer is no: the run failed, or there was nothing to do.
pub(crate) const NO: u8 = 1;
/// Usage, configuration, bad input.
pub(crate) const USAGE: u8 = 2;
/// Agent, thread or record not found.
pub(crate) const NOT_FOUND: u8 = 3;
/// Not allowed.
pub(crate) const DENIED: u8 = 4;
/// Answered or taken already, waits for an approval, limit reached.
pub(crate) const CONFLICT: u8 = 5;
/// Server unreachable or unavailable.
pub(crate) const UNAVAILABLE: u8 = 6;
/// `--timeout` passed.
pub(crate) const TIMEOUT: u8 = 7;
/// A bug.
pub(crate) const BUG: u8 = 70;
/// Ended by SIGINT, SIGTERM.
pub(crate) const INTERRUPTED: u8 = 130;
pub(crate) const TERMINATED: u8 = 143;

/// Why a command did not do what it was asked to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// What happened, one entry a line; several for files with several errors.
    pub(crate) whats: Vec<String>,
    /// What to do.
    pub(crate) hint: Option<String>,
    /// The HTTP status, if a server answered.
    pub(crate) status: Option<u16>,
    /// Shown with `-v`.
    pub(crate) causes: Vec<String>,
}

impl Failure {
    pub(crate) fn new(code: u8, what: impl Into<String>) -> Self {
        Self { code, whats: vec![what.into()], hint: None, status: None, causes: Vec::new() }
    }

    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::new(USAGE, what)
    }

    /// Errors in files, all of them.
    pub(crate) fn files(problems: impl IntoIterator<Item = impl ToString>) -> Self {
        let whats = problems.into_iter().map(|problem| problem.to_string()).collect();
        Self { whats, ..Self::usage("") }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    pub(crate) fn caused_by(mut self, error: &dyn std::error::Error) -> Self {
        let mut source = error.source();
        while let Some(cause) = source {
            self.causes.push(cause.to_string());
            source = cause.source();
        }
        self
    }

    /// The lines for stderr.
    pub(crate) fn render(&self, as_json: bool, verbose: bool) -> String {
        let mut out = String::new();
        for what in &self.whats {
            let what = one_line(what);
            if as_json {
                let mut error = json!({"code": self.name(), "message": what});
                if let Some(hint) = &self.hint {
                    error["hint"] = one_line(hint).into();
                }
                if let Some(status) = self.status {
                    error["status"] = status.into();
                }
                // Writing to a `String` cannot fail.
                let _ = writeln!(out, "{}", json!({"error": error}));
            } else {
                let hint = self.hint.as_ref().map(|hint| format!("; {}", one_line(hint))).unwrap_or_default();
                let _ = writeln!(out, "error: {what}{hint}");
            }
        }
        if verbose && !as_json {
            for cause in &self.causes {
                let _ = writeln!(out, "  because: {}", one_line(cause));
            }
        }
        out
    }

    const fn name(&self) -> &'static str {
        match self.code {
            NO => "failed",
            USAGE => "usage",
            NOT_FOUND => "not-found",
            DENIED => "denied",
            CONFLICT => "conflict",
            UNAVAILABLE => "unavailable",
            TIMEOUT => "timeout",
            INTERRUPTED | TERMINATED => "interrupted",
            _ => "bug",
        }
    }
}

fn one_line(text: &str) -> String {
    crate::text::clean(text).split_whitespace().collect::<Vec<_>>().join(" ")
}

impl From<bugle_client::Error> for Failure {
    fn from(error: bugle_client::Error) -> Self {
        use bugle_client::Error;
        let what = error.to_string();
        let failure = match &error {
            Error::Url { .. } => Self::usage(what),
            Error::Unreachable { .. } => Self::new(UNAVAILABLE, what).hint("start one with: bugle dev"),
            Error::Status { status, .. } => {
                let code = match status {
                    404 => NOT_FOUND,
                    401 | 403 => DENIED,
                    409 | 429 => CONFLICT,
                    500.. => UNAVAILABLE,
                    _ => USAGE,
                };
                let mut failure = Self { status: Some(*status), ..Self::new(code, what) };
                if *status == 401 {
                    failure = failure.hint("set BUGLE_TOKEN to a token of this server");
                }
                failure
            }
            _ => Self::new(UNAVAILABLE, what),
        };
        failure.caused_by(&error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cli_062_an_error_is_one_line_what_and_hint() {
        let failure = Failure::usage("no\nthread").hint("name one with -t");
        assert_eq!(failure.render(false, false), "error: no thread; name one with -t\n");
        assert_eq!(
            failure.render(true, false),
            "{\"error\":{\"code\":\"usage\",\"message\":\"no thread\",\"hint\":\"name one with -t\"}}\n"
        );
    }

    #[test]
    fn cli_070_statuses_map_to_codes() {
        let of = |status| {
            let error = bugle_client::Error::Status {
                status,
                message: "m".into(),
                body: bugle::json::Value::Null,
                retry_after: None,
            };
            Failure::from(error).code
        };
        let codes = [400, 413, 404, 401, 403, 409, 429, 500, 503].map(of);
        assert_eq!(codes, [2, 2, 3, 4, 4, 5, 5, 6, 6]);
    }
}
