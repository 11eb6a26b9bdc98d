//! Input as the thread holds it, and what routing decides about it.

use std::sync::Arc;

use super::hub::RunClaim;
use crate::{
    id::{MessageId, RunId},
    run::RunOptions,
    runtime::{Action, ActiveBehavior, IdleBehavior},
    signal::{Attributes, Signal},
    storage::{InboxEntry, InputMode},
};

/// Names a caller who waits for an answer; the actor keeps the channel.
pub(crate) type Ticket = u64;

/// One accepted input.
#[derive(Debug, Clone)]
pub(crate) struct Input {
    pub(crate) entry: InboxEntry,
    /// Options of the run it starts, those of code included.
    pub(crate) options: Arc<RunOptions>,
    /// It brought options of its own, rather than taking over those of the run it waits behind.
    pub(crate) own_options: bool,
    /// The journal holds it. Until then no run may take it.
    pub(crate) journaled: bool,
    /// It joined a run, whose id its entry names; else the entry's run is its own.
    pub(crate) joined: bool,
    /// It was changed before the journal had answered; its entry is rewritten then.
    pub(crate) rewrite: bool,
    size: usize,
    /// Keeps the id of its run from others until it is gone; what comes from the journal has none.
    pub(crate) claim: Option<Arc<RunClaim>>,
}

impl Input {
    pub(crate) fn new(entry: InboxEntry, options: RunOptions, own_options: bool) -> Self {
        let options = Arc::new(options);
        let mut input =
            Self { entry, options, own_options, journaled: false, joined: false, rewrite: false, size: 0, claim: None };
        input.measure();
        input
    }

    /// Keeps the id of its run from others.
    pub(crate) fn with_claim(mut self, claim: RunClaim) -> Self {
        self.claim = Some(Arc::new(claim));
        self
    }

    /// What the journal holds of an input; which run it was to join has gone.
    pub(crate) fn of_journal(entry: InboxEntry) -> Self {
        let options = RunOptions::from_stored(&entry.options);
        let joined = entry.mode != InputMode::Queue;
        Self { journaled: true, joined, ..Self::new(entry, options, true) }
    }

    pub(crate) fn id(&self) -> &MessageId {
        &self.entry.signal.id
    }

    /// What it takes of the inbox's limit, in bytes, about.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Counts its size anew, after a change: all of its entry.
    pub(crate) fn measure(&mut self) {
        self.size = json_size(&self.entry);
    }
}

/// How long the value is as JSON, in bytes.
pub(super) fn json_size(value: &impl serde::Serialize) -> usize {
    struct Count(usize);
    impl std::io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // Counting does not fail, and what cannot be written as JSON is never accepted.
    let _ = serde_json::to_writer(&mut count, value);
    count.0
}

/// A wish to hand input to the thread.
#[derive(Debug)]
pub(crate) struct Send {
    pub(crate) ticket: Ticket,
    pub(crate) input: Input,
    pub(crate) active: ActiveBehavior,
    pub(crate) idle: IdleBehavior,
    pub(crate) active_attributes: Option<Attributes>,
    pub(crate) idle_attributes: Option<Attributes>,
    /// Addressed by a run's id, not only by thread (SIG §7, "foreign").
    pub(crate) by_run: bool,
}

/// What became of it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Routed {
    pub(crate) action: Action,
    pub(crate) run_id: Option<RunId>,
    pub(crate) signal: Signal,
    pub(crate) waiting_for: Option<&'static str>,
}
