//! What can be said on the command line (CLI §6).

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// A runtime for AI agents whose conversations are live mailboxes.
#[derive(Debug, Parser)]
#[command(name = "bugle", version, about, propagate_version = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Flags of every command.
#[derive(Debug, Clone, Args)]
pub(crate) struct Common {
    /// The project directory [default: the nearest with bugle.toml or agents/]
    #[arg(short = 'C', value_name = "DIR", global = true)]
    pub(crate) directory: Option<PathBuf>,
    /// Read this file instead of the project's bugle.toml
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) config: Option<PathBuf>,
    /// One JSON object per line on stdout
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Say less (repeat for less still)
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(crate) quiet: u8,
    /// Say more, causes of errors included (repeat for more)
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
    /// Colours
    #[arg(long, value_name = "WHEN", default_value = "auto", global = true)]
    pub(crate) color: ColorWhen,
}

/// When colours are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ColorWhen {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve the project, or a demo where there is none
    Dev(Dev),
    /// Serve the project
    Serve(Serve),
    /// Send a message: it steers the running agent, or wakes an idle one; prints the answer
    Send(Send),
    /// Queue a message for a turn of its own; without text, list what waits
    Queue(Queue),
    /// Follow a thread: runs, steering, queue, tools, delegations; answer what waits for you
    Watch(Watch),
    /// Let a call run that waits for approval, or give a suspended tool its data
    Approve(Approve),
    /// Decline a call that waits for approval
    Decline(Decline),
    /// Stop the thread's run
    Abort(Abort),
    /// List threads, show a transcript, delete a thread
    Threads(Threads),
    /// Tell the state of something that changes: told once, and kept in view
    State(State),
    /// Send a notification: stored, and told to the agent as its policy says
    Notify(Notify),
    /// The inbox of notifications: list it, or read, mark, put away, retry one
    Inbox(Inbox),
}

/// Flags of the commands that talk to a server.
#[derive(Debug, Clone, Args)]
pub(crate) struct Target {
    /// The server [env: BUGLE_SERVER] [default: the project's, else http://127.0.0.1:4111]
    #[arg(short, long, value_name = "URL", global = true)]
    pub(crate) server: Option<String>,
    /// The bearer token; BUGLE_TOKEN is better, others can see flags
    #[arg(long, value_name = "T", global = true)]
    pub(crate) token: Option<String>,
    /// The agent [env: BUGLE_AGENT] [default: agents.default, else the only one]
    #[arg(short, long, value_name = "ID", global = true)]
    pub(crate) agent: Option<String>,
    /// The thread [env: BUGLE_THREAD] [default: main]
    #[arg(short, long, value_name = "ID", global = true)]
    pub(crate) thread: Option<String>,
    /// Whose thread it is [env: BUGLE_RESOURCE] [default: your user name]
    #[arg(short, long, value_name = "ID", global = true)]
    pub(crate) resource: Option<String>,
    /// Give up after this time; the run goes on
    #[arg(long, value_name = "DURATION", global = true, value_parser = crate::settings::parse_duration)]
    pub(crate) timeout: Option<std::time::Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct Dev {
    /// The project directory
    #[arg(value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) listen: Listen,
}

/// Where to listen.
#[derive(Debug, Clone, Args)]
pub(crate) struct Listen {
    /// Listen on this address, HOST:PORT
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<String>,
    /// Listen on this port; 0 is a free one
    #[arg(long, value_name = "N", conflicts_with = "listen")]
    pub(crate) port: Option<u16>,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// The project directory
    #[arg(value_name = "DIR")]
    pub(crate) directory: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) listen: Listen,
    /// Read variables from this file; those that are set win
    #[arg(long, value_name = "F")]
    pub(crate) env_file: Option<PathBuf>,
    /// Check all files, print the effective settings, and exit
    #[arg(long)]
    pub(crate) check: bool,
}

/// What input carries.
#[derive(Debug, Clone, Args)]
pub(crate) struct InputFlags {
    /// An attribute that the model sees; repeatable
    #[arg(long = "attr", value_name = "K=V")]
    pub(crate) attributes: Vec<String>,
    /// Metadata that the model does not see
    #[arg(long, value_name = "JSON")]
    pub(crate) meta: Option<String>,
    /// The input's id; sending it twice is one message
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<String>,
    /// Send a signal of this type (reactive, notification, state) instead of a message
    #[arg(long, value_name = "TYPE")]
    pub(crate) signal: Option<String>,
    /// The signal's tag
    #[arg(long, value_name = "NAME", requires = "signal")]
    pub(crate) tag: Option<String>,
    /// Return once it is accepted
    #[arg(long)]
    pub(crate) no_wait: bool,
}

/// What input does (SIG-062).
#[derive(Debug, Clone, Args)]
pub(crate) struct RoutingFlags {
    /// While a run is active: deliver, persist, discard, interrupt, rollback
    #[arg(long, value_name = "B")]
    pub(crate) if_active: Option<String>,
    /// While none is: wake, persist, discard
    #[arg(long, value_name = "B")]
    pub(crate) if_idle: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Send {
    /// What to say; - reads standard input
    #[arg(value_name = "TEXT")]
    pub(crate) text: Option<String>,
    #[command(flatten)]
    pub(crate) input: InputFlags,
    /// Attach a file; repeatable
    #[arg(long = "file", value_name = "PATH")]
    pub(crate) files: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) routing: RoutingFlags,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Args)]
pub(crate) struct Queue {
    /// What to say; - reads standard input; without text, or with --list, lists what waits
    #[arg(value_name = "TEXT")]
    pub(crate) text: Option<String>,
    #[command(flatten)]
    pub(crate) input: InputFlags,
    /// List what waits
    #[arg(long, group = "action", conflicts_with = "text")]
    pub(crate) list: bool,
    /// Take these back
    #[arg(long, value_name = "ID", num_args = 1.., group = "action", conflicts_with = "text")]
    pub(crate) cancel: Vec<String>,
    /// Move this one into the running loop
    #[arg(long, value_name = "ID", group = "action", conflicts_with = "text")]
    pub(crate) promote: Option<String>,
    /// With --promote: to the front of the queue instead
    #[arg(long, requires = "promote")]
    pub(crate) front: bool,
    /// Replace the text of this one
    #[arg(long, value_name = "ID", group = "action")]
    pub(crate) edit: Option<String>,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Begin after this event
    #[arg(long, value_name = "EVENT_ID")]
    pub(crate) from: Option<String>,
    /// End after so many runs
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) runs: Option<u64>,
    /// Leave signals out
    #[arg(long)]
    pub(crate) no_signals: bool,
    /// Never ask for an answer
    #[arg(long)]
    pub(crate) read_only: bool,
    #[command(flatten)]
    pub(crate) target: Target,
}

/// Which call is answered, and how.
#[derive(Debug, Clone, Args)]
pub(crate) struct Answer {
    /// The call; of a delegation, the outer or the inner one [default: the only one that waits]
    #[arg(value_name = "CALL", conflicts_with = "list")]
    pub(crate) call: Option<String>,
    /// Of this run, whatever its thread
    #[arg(long, value_name = "ID")]
    pub(crate) run: Option<String>,
    /// What a suspended tool asked for
    #[arg(long, value_name = "JSON", conflicts_with = "list")]
    pub(crate) data: Option<String>,
    /// List what waits
    #[arg(long)]
    pub(crate) list: bool,
    /// Print what the run says until it ends
    #[arg(long, conflicts_with = "list")]
    pub(crate) wait: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Approve {
    #[command(flatten)]
    pub(crate) answer: Answer,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Args)]
pub(crate) struct Decline {
    #[command(flatten)]
    pub(crate) answer: Answer,
    /// Why; the model is told
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["list", "data"])]
    pub(crate) reason: Option<String>,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Args)]
pub(crate) struct State {
    /// What the state is of, such as "branch" or "editor"
    #[arg(value_name = "LANE")]
    pub(crate) lane: String,
    /// What the model reads; - reads standard input
    #[arg(value_name = "TEXT")]
    pub(crate) text: Option<String>,
    /// What makes two states the same [default: the text]
    #[arg(long, value_name = "K")]
    pub(crate) key: Option<String>,
    /// It is a change since the last state, not the whole
    #[arg(long)]
    pub(crate) delta: bool,
    /// The state as data, as JSON, or @FILE
    #[arg(long, value_name = "JSON")]
    pub(crate) value: Option<String>,
    /// An attribute that the model sees; repeatable
    #[arg(long = "attr", value_name = "K=V")]
    pub(crate) attributes: Vec<String>,
    /// The tag that the model sees [default: state]
    #[arg(long, value_name = "NAME")]
    pub(crate) tag: Option<String>,
    #[command(flatten)]
    pub(crate) routing: RoutingFlags,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Args)]
pub(crate) struct Notify {
    /// What has happened, in a line; - reads standard input
    #[arg(value_name = "SUMMARY")]
    pub(crate) summary: Option<String>,
    /// Where it came from
    #[arg(long, value_name = "S", default_value = "cli")]
    pub(crate) source: String,
    /// What kind of event
    #[arg(long, value_name = "K", default_value = "message")]
    pub(crate) kind: String,
    /// How urgent it is
    #[arg(long, value_name = "P", default_value = "medium", value_parser = ["low", "medium", "high", "urgent"])]
    pub(crate) priority: String,
    /// The event itself, as JSON, or @FILE
    #[arg(long, value_name = "JSON")]
    pub(crate) payload: Option<String>,
    /// A pending notification with this key is the same event
    #[arg(long, value_name = "K")]
    pub(crate) dedupe_key: Option<String>,
    /// Pending notifications with this key are counted together
    #[arg(long, value_name = "K")]
    pub(crate) coalesce_key: Option<String>,
    #[command(flatten)]
    pub(crate) target: Target,
}

/// What is done with a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum InboxVerb {
    /// Show it in full; it is seen then
    Read,
    /// Mark it seen
    Seen,
    /// Put it away
    Dismiss,
    /// Put it away for good
    Archive,
    /// Try its delivery anew
    Retry,
}

#[derive(Debug, Args)]
pub(crate) struct Inbox {
    /// What to do with one [default: list them]
    #[arg(value_name = "ACTION")]
    pub(crate) action: Option<InboxVerb>,
    /// Which one
    #[arg(value_name = "ID")]
    pub(crate) id: Option<String>,
    /// With these statuses, comma-separated
    #[arg(long, value_name = "S", conflicts_with = "action")]
    pub(crate) status: Option<String>,
    /// Of these priorities, comma-separated
    #[arg(long, value_name = "P", conflicts_with = "action")]
    pub(crate) priority: Option<String>,
    /// From this source
    #[arg(long, value_name = "S", conflicts_with = "action")]
    pub(crate) source: Option<String>,
    /// At most so many, up to 200
    #[arg(long, value_name = "N", default_value_t = 20, conflicts_with = "action", value_parser = clap::value_parser!(u32).range(1..=200))]
    pub(crate) limit: u32,
    /// Begin here: what the page before named
    #[arg(long, value_name = "C", conflicts_with = "action")]
    pub(crate) cursor: Option<String>,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Args)]
pub(crate) struct Abort {
    /// Stop this run only [default: the one that is seen running]
    #[arg(long, value_name = "ID")]
    pub(crate) run: Option<String>,
    /// Take back what waits, too
    #[arg(long)]
    pub(crate) clear: bool,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Args)]
pub(crate) struct Threads {
    #[command(subcommand)]
    pub(crate) action: Option<ThreadsAction>,
    /// How many
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000), global = true)]
    pub(crate) limit: u32,
    /// Which page, from 0
    #[arg(long, value_name = "N", default_value_t = 0, global = true)]
    pub(crate) page: u32,
    /// Those of everybody
    #[arg(long, global = true)]
    pub(crate) all_resources: bool,
    #[command(flatten)]
    pub(crate) target: Target,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ThreadsAction {
    /// Print a transcript
    Show {
        /// The thread
        id: String,
    },
    /// Delete a thread and its messages
    Delete {
        /// The thread
        id: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_well_formed() {
        super::Cli::command().debug_assert();
    }
}
