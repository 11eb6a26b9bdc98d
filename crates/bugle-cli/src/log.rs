//! The log: to stderr or a file, as text on a terminal and as JSON elsewhere (CLI §4, `[log]`).

use std::{fs::File, io::IsTerminal as _, sync::Mutex};

use tracing_subscriber::{EnvFilter, fmt};

use crate::{args::Common, exit::Failure, settings::Settings};

/// Starts the log of a server.
pub(crate) fn of_server(settings: &Settings, common: &Common) -> Result<(), Failure> {
    let level = settings.text("log.level").unwrap_or("info");
    let level = shifted(level, common);
    let filter = EnvFilter::try_new(&level).map_err(|error| {
        Failure::usage(format!("log.level: {level:?} is no level: {error}"))
            .hint("use error, warn, info, debug or trace")
    })?;
    let file =
        match settings.text("log.file") {
            Some(path) => {
                let path = settings.base_of("log.file").join(path);
                let open = File::options().create(true).append(true).open(&path);
                Some(open.map_err(|error| {
                    Failure::usage(format!("log.file: {} cannot be opened: {error}", path.display()))
                })?)
            }
            None => None,
        };
    let terminal = file.is_none() && std::io::stderr().is_terminal();
    let json = match settings.text("log.format") {
        Some("json") => true,
        Some("text") => false,
        _ => !terminal,
    };
    let builder = fmt().with_env_filter(filter).with_ansi(terminal && !json);
    let started = match (file, json) {
        (Some(file), true) => builder.json().with_writer(Mutex::new(file)).try_init(),
        (Some(file), false) => builder.with_writer(Mutex::new(file)).try_init(),
        (None, true) => builder.json().with_writer(std::io::stderr).try_init(),
        (None, false) => builder.with_writer(std::io::stderr).try_init(),
    };
    started.map_err(|error| Failure::new(crate::exit::BUG, error.to_string()))
}

/// Starts the log of a client command: silent but for warnings, unless `-v`.
pub(crate) fn of_client(common: &Common) {
    let level = shifted("warn", common);
    // A level of our own always parses; a second start is harmless.
    let filter = EnvFilter::new(format!("error,bugle={level},bugle_client={level}"));
    let _ = fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().try_init();
}

/// `-v` and `-q` move a plain level; filters are left alone.
fn shifted(level: &str, common: &Common) -> String {
    const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];
    let Some(at) = LEVELS.iter().position(|one| *one == level) else { return level.to_owned() };
    let at = (at + usize::from(common.verbose)).saturating_sub(usize::from(common.quiet));
    LEVELS[at.min(LEVELS.len() - 1)].to_owned()
}
