//! Commands that talk to a server.

mod abort;
mod answer;
mod connect;
mod desk;
mod follow;
mod input;
mod notify;
mod queue;
mod send;
mod state;
mod threads;
mod watch;

use std::{future::Future, time::Duration};

use crate::{
    args::{Command, Common, Target},
    env::Env,
    exit::{self, Failure},
    log,
    out::{Out, Style},
};

/// What every client command has.
pub(crate) struct Session {
    pub(crate) common: Common,
    pub(crate) env: Env,
    pub(crate) out: Out,
}

/// Runs a client command.
pub(crate) async fn run(command: Command, common: Common, env: Env, out: Out) -> Result<u8, Failure> {
    log::of_client(&common);
    let session = Session { common, env, out };
    let target = match &command {
        Command::Send(args) => &args.target,
        Command::Queue(args) => &args.target,
        Command::Watch(args) => &args.target,
        Command::Approve(args) => &args.target,
        Command::Decline(args) => &args.target,
        Command::Abort(args) => &args.target,
        Command::Threads(args) => &args.target,
        Command::State(args) => &args.target,
        Command::Notify(args) => &args.target,
        Command::Inbox(args) => &args.target,
        Command::Dev(_) | Command::Serve(_) => return Err(Failure::new(exit::BUG, "no client command")),
    };
    let limits =
        Limits { timeout: target.timeout, follows_runs: !matches!(command, Command::Threads(_) | Command::Inbox(_)) };
    limits
        .hold(out, async {
            match command {
                Command::Send(args) => send::run(args, &session).await,
                Command::Queue(args) => queue::run(args, &session).await,
                Command::Watch(args) => watch::run(args, &session).await,
                Command::Approve(args) => answer::approve(args, &session).await,
                Command::Decline(args) => answer::decline(args, &session).await,
                Command::Abort(args) => abort::run(args, &session).await,
                Command::Threads(args) => threads::run(args, &session).await,
                Command::State(args) => state::run(args, &session).await,
                Command::Notify(args) => notify::notify(args, &session).await,
                Command::Inbox(args) => notify::inbox(args, &session).await,
                Command::Dev(_) | Command::Serve(_) => Err(Failure::new(exit::BUG, "no client command")),
            }
        })
        .await
}

struct Limits {
    timeout: Option<Duration>,
    follows_runs: bool,
}

impl Limits {
    /// Ends the command, never the run, on `--timeout`, SIGINT or SIGTERM (CLI-071).
    async fn hold(&self, out: Out, work: impl Future<Output = Result<u8, Failure>>) -> Result<u8, Failure> {
        let late = async {
            match self.timeout {
                Some(timeout) => tokio::time::sleep(timeout).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            done = work => done,
            code = interrupted() => {
                if self.follows_runs {
                    out.note(Style::Dim, "the run goes on; stop it with: bugle abort");
                }
                Ok(code)
            }
            () = late => Err(Failure::new(exit::TIMEOUT, "--timeout passed; the run goes on").hint("stop it with: bugle abort")),
        }
    }
}

#[cfg(unix)]
async fn interrupted() -> u8 {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => exit::TERMINATED,
        _ = interrupt.recv() => exit::INTERRUPTED,
    }
}

#[cfg(not(unix))]
async fn interrupted() -> u8 {
    match tokio::signal::ctrl_c().await {
        Ok(()) => exit::INTERRUPTED,
        Err(_) => std::future::pending().await,
    }
}

/// A copy of what a command targets, for hints: `bugle abort -t x`.
pub(crate) fn command_with(target: &Target, command: &str) -> String {
    let mut text = format!("bugle {command}");
    for (flag, value) in
        [("-s", &target.server), ("-a", &target.agent), ("-t", &target.thread), ("-r", &target.resource)]
    {
        if let Some(value) = value {
            text.extend([" ", flag, " ", value]);
        }
    }
    text
}
