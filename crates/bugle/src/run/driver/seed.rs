//! What a run starts from.

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;

/// What a run starts from.
#[derive(Debug)]
pub(crate) enum SeedKind {
    /// Input that waits on the thread.
    Woken,
    /// A caller's messages.
    Direct(Box<RunInput>),
    /// The record an earlier process left.
    Recorded,
    /// A parked run.
    Resumed(Box<ResumeSeed>),
}

/// How a parked run is gone on with.
#[derive(Debug)]
pub(crate) struct ResumeSeed {
    /// Where a delegated run stands, out of its parent's call; absent for a run with rows of its own.
    pub(crate) nested: Option<Box<RunSnapshot>>,
    /// What is to become of it.
    pub(crate) what: Resolution,
    /// Pending input that came with the decision (ruling 6).
    pub(crate) messages: RunInput,
    /// Told once the run is ours, or why it is not.
    pub(crate) claimed: Option<oneshot::Sender<Claimed>>,
}

/// The run is ours, and its chunks are in this log from here on; or why it is not.
pub(crate) type Claimed = Result<(Arc<StreamLog>, u64), Error>;

/// What is to become of a parked run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Resolution {
    /// It goes on.
    Decide(Decision),
    /// It is stopped (SIG-310).
    Abort,
    /// It is given up (LOOP-121).
    Discard,
}

/// All that a run needs.
pub(crate) struct RunSeed {
    pub(crate) agent: Agent,
    pub(crate) options: Arc<RunOptions>,
    pub(crate) kind: SeedKind,
    pub(crate) shared: Arc<RunShared>,
    pub(crate) log: Arc<StreamLog>,
    pub(crate) link: Option<ThreadLink>,
    pub(crate) output: Option<oneshot::Sender<RunOutput>>,
    pub(crate) inner: Arc<Inner>,
    pub(crate) streaming: bool,
    /// It works for another run, which keeps what it parks: nothing is parked in the store.
    pub(crate) delegated: bool,
    /// Such a run's own place: its thread, which others write for it, and its depth.
    pub(crate) detached: Option<Detached>,
}
