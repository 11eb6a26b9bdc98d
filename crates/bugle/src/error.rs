//! What can go wrong before a run has started. What goes wrong later is a chunk.

use crate::{
    chunk::ErrorInfo,
    id::{MessageId, RunId, ThreadKey},
    signal::InvalidSignal,
    storage::StorageError,
};

/// Why a call was refused. Nothing was accepted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The program is put together wrongly.
    #[error("{0}")]
    Configuration(String),
    /// No agent has this id or key.
    #[error("Agent with id {0} not found")]
    UnknownAgent(String),
    /// The signal breaks a rule of SIG §2.
    #[error(transparent)]
    InvalidSignal(#[from] InvalidSignal),
    /// A field of the call is wrong.
    #[error("{message}")]
    Invalid {
        /// Which field, dotted.
        field: String,
        /// What is wrong with it.
        message: String,
    },
    /// SIG-060.
    #[error("No active agent run found for signal target")]
    NoActiveRun,
    /// SIG-061.
    #[error("run {run_id} is not on thread {thread}")]
    RunNotOnThread {
        /// The run.
        run_id: RunId,
        /// The thread.
        thread: String,
    },
    /// The agent has no memory, so it has no threads.
    #[error("agent {0} has no memory; give it memory to use threads")]
    NoMemory(String),
    /// SIG-509.
    #[error("thread input limit reached: {0} holds as much input as it may; send again when some has been answered")]
    InputLimit(ThreadKey),
    /// The input has been taken already (ruling 23).
    #[error("input {id} has been taken by run {run_id}")]
    AlreadyTaken {
        /// The input.
        id: MessageId,
        /// Who took it.
        run_id: RunId,
    },
    /// The message belongs to a run in progress (ruling 32).
    #[error("message {id} belongs to run {run_id}, which is in progress; wait for its end or abort it")]
    RunInProgress {
        /// The message.
        id: MessageId,
        /// The run.
        run_id: RunId,
    },
    /// Another run that is live or waits has the id that the caller chose (LOOP-007).
    #[error("run id {run_id} is taken by a run that is live or waits; choose another runId or leave it out")]
    RunIdTaken {
        /// The id.
        run_id: RunId,
    },
    /// No such run is parked (LOOP-115): unknown, ended, discarded, or gone on with.
    #[error("run {run_id} is not suspended; it may have been resumed, completed or discarded already")]
    NoSuspendedRun {
        /// The run.
        run_id: RunId,
    },
    /// The run does not wait for this call (LOOP-115).
    #[error("run {run_id} does not wait for {}; it may have been answered already", .tool_call_id.as_deref().unwrap_or("any call"))]
    NotSuspended {
        /// The run.
        run_id: RunId,
        /// The call, if one was named.
        tool_call_id: Option<String>,
        /// The call is one of the step's: it was answered before.
        answered: bool,
    },
    /// No run of the thread waits for a person (LOOP-119, LOOP-120).
    #[error(
        "no active or suspended run was found for thread {thread}; the run may have completed or been resumed already"
    )]
    NoSuspendedThreadRun {
        /// The thread.
        thread: ThreadKey,
        /// The call, if one was named.
        tool_call_id: Option<String>,
    },
    /// Several runs of the thread wait, and no call was named (LOOP-119).
    #[error("several runs of thread {thread} wait for a person ({}); name the tool call", run_ids.iter().map(RunId::as_str).collect::<Vec<_>>().join(", "))]
    AmbiguousSuspendedRuns {
        /// The thread.
        thread: ThreadKey,
        /// The runs.
        run_ids: Vec<RunId>,
    },
    /// An inner call id fits several pending calls (ruling 37).
    #[error("call {tool_call_id} is pending below several calls ({}); name one of these", tool_call_ids.join(", "))]
    AmbiguousToolCall {
        /// The id given.
        tool_call_id: String,
        /// The outer calls it lies below.
        tool_call_ids: Vec<String>,
    },
    /// What is to be resumed was not said (LOOP-120).
    #[error("a run or a tool call to resume is required")]
    MissingResumeTarget,
    /// No such input waits.
    #[error("no input {0} waits on this thread")]
    UnknownInput(MessageId),
    /// The process is stopping and takes nothing new (CLI-072).
    #[error("the server is draining; send again in a moment")]
    Draining,
    /// Another living process owns the thread and cannot be reached.
    #[error("thread {thread} is owned by another process, {owner}")]
    OwnedElsewhere {
        /// The thread.
        thread: ThreadKey,
        /// Who owns it.
        owner: String,
    },
    /// The state of a lane was refused (STATE-003, STATE-004, STATE-041, STATE-042, STATE-081, STATE-082).
    #[error(transparent)]
    State(#[from] crate::signal::StateError),
    /// The store refused or failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// NOTIF-010.
    #[error("notifications_storage_missing: {0} does not store notifications; configure a store that does")]
    NotificationsUnsupported(String),
    /// The run failed: what `generate` gives instead of an answer (LOOP-003).
    #[error("{}", .0.message)]
    Run(Box<ErrorInfo>),
    /// A broken invariant.
    #[error("internal error: {0}; please report it")]
    Internal(&'static str),
}

impl Error {
    /// The id by which clients of the reference know this error, if it has one.
    pub fn id(&self) -> Option<&'static str> {
        match self {
            Self::NoSuspendedRun { .. } => Some("AGENT_RESUME_NO_SNAPSHOT_FOUND"),
            Self::NotSuspended { .. } | Self::AmbiguousToolCall { .. } => Some("AGENT_RESUME_TOOL_CALL_NOT_SUSPENDED"),
            Self::NoSuspendedThreadRun { .. } => Some("AGENT_SEND_TOOL_APPROVAL_NO_ACTIVE_THREAD_RUN"),
            Self::AmbiguousSuspendedRuns { .. } => Some("AGENT_SEND_TOOL_APPROVAL_AMBIGUOUS_SUSPENDED_RUNS"),
            Self::MissingResumeTarget => Some("AGENT_SEND_STREAM_RESUME_MISSING_TARGET"),
            Self::Run(error) => match error.id.as_deref() {
                Some("AGENT_TOOL_NAME_COLLISION") => Some("AGENT_TOOL_NAME_COLLISION"),
                _ => None,
            },
            _ => None,
        }
    }

    /// A configuration error.
    pub fn configuration(message: impl Into<String>) -> Self {
        Self::Configuration(message.into())
    }

    /// An error in one field of a call.
    pub fn invalid(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid { field: field.into(), message: message.into() }
    }
}
