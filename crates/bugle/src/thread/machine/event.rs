//! What a thread is told, and what it says is to be done.

use super::super::input::{Input, Routed, Send, Ticket};
use super::{Parked, Suspended};
use crate::{
    id::{MessageId, RunId},
    runtime::{AbortOptions, PromoteTo},
    signal::{Attributes, Contents, Signal},
    storage::{InboxEnd, InboxEntry},
};

/// What has happened.
#[derive(Debug)]
pub(crate) enum ThreadEvent {
    /// Input is handed over; `mode` of its entry says whether it steers or queues.
    Send(Box<Send>),
    /// The journal has answered for one input.
    Journaled { id: MessageId, result: Journal },
    /// The lease that was claimed for a run without input.
    Claimed(Result<(), ClaimFailed>),
    /// A plain run asks for its turn.
    Direct { run_id: RunId, agent_id: String, continuation: bool },
    /// The caller of a direct run that may still wait has left.
    Withdrawn { run_id: RunId },
    /// The run in the slot takes what waits for it; one that is `stopping` only what started it.
    Drain { run_id: RunId, stopping: bool, ticket: Ticket },
    /// A run has ended; `returned` was taken but not placed.
    RunEnded { run_id: RunId, returned: Vec<Input>, failed_to_start: bool },
    /// The run in the slot is parked; `returned` was taken but not placed.
    Parked { run_id: RunId, parked: Parked, returned: Vec<Input> },
    /// A person has decided about a parked run.
    Resume { ticket: Ticket, run_id: RunId, agent_id: String },
    /// A suspended run has waited long enough here (SIG-382).
    Evicted { run_id: RunId },
    /// The thread has become ours: the run that keeps it, of those that the store has parked.
    Found { suspended: Option<Suspended>, parked: Vec<RunId> },
    /// The run in the slot, about to be reported as ended, panicked: what it took is read anew from the journal.
    Crashed { run_id: RunId },
    /// The record that the run in the slot, about to be reported as ended, starts from could not be read for now.
    Deferred { run_id: RunId },
    /// A waiting input could not be rewritten; it is read anew from the journal.
    Reread { id: MessageId },
    /// The thread belongs to another resource: what waits can never run.
    Unownable,
    /// Another process owns the thread, or has owned it since: the journal is its, and so is `run_id`'s record.
    LeaseLost { run_id: Option<RunId> },
    /// Take back these.
    Cancel { ticket: Ticket, ids: Vec<MessageId> },
    /// Take back the queued entries of this agent's group.
    CancelGroup { ticket: Ticket, agent_id: String, group: String },
    /// Stop the run.
    Abort { ticket: Ticket, options: AbortOptions },
    /// Move a queued input (ruling 23).
    Promote { ticket: Ticket, id: MessageId, to: PromoteTo },
    /// Change a queued input (HTTP-242).
    Edit { ticket: Ticket, id: MessageId, contents: Option<Contents>, attributes: Option<Attributes> },
    /// What an earlier process left (SIG-502); `leased` if it was read as the thread became ours.
    Recovered { inputs: Vec<Input>, runs: Vec<RecoveredRun>, leased: bool },
    /// The wait before another start is over.
    RetryDue,
}

/// A run that an earlier process left.
#[derive(Debug, Clone)]
pub(crate) struct RecoveredRun {
    pub(crate) run_id: RunId,
    pub(crate) agent_id: String,
}

/// The journal's answer.
#[derive(Debug)]
pub(crate) enum Journal {
    /// Appended, at this place; the thread is ours.
    Appended { position: i64 },
    /// The same input was accepted before and is known to the store.
    Known {
        run_id: Option<RunId>,
        /// It still waits in the journal; else it was placed.
        waits: bool,
    },
    /// Refused or failed.
    Failed,
}

/// Why a claim failed; the actor keeps the error.
#[derive(Debug)]
pub(crate) struct ClaimFailed;

/// What is to be done, in order.
#[derive(Debug)]
pub(crate) enum ThreadEffect {
    /// Append to the journal and claim the lease; answer with [`ThreadEvent::Journaled`].
    Journal(Box<Input>),
    /// Claim the lease; answer with [`ThreadEvent::Claimed`].
    Claim,
    /// Start the run in the slot.
    StartRun(StartRun),
    /// Tell the run that input waits.
    Nudge { interrupt: bool },
    /// Stop the run.
    AbortRun { rollback: bool },
    /// Give the run what it asked for.
    Drained { ticket: Ticket, inputs: Vec<Input> },
    /// Tell the sender what became of its input.
    Routed { ticket: Ticket, routed: Box<Routed> },
    /// Tell the sender that its input was refused.
    Refused { ticket: Ticket, why: Refusal },
    /// Tell the senders what the journal said went wrong with `id`.
    JournalRefused { tickets: Vec<Ticket>, id: MessageId },
    /// Tell a plain run's caller that the claim failed.
    DirectRefused { run_id: RunId },
    /// Tell who has decided about a parked run that it cannot go on.
    ResumeRefused { ticket: Ticket },
    /// Write the input as a row of its own, echo it if asked to, and answer its `persisted`.
    Persist { ticket: Ticket, input: Box<Input>, echo: bool },
    /// Store the input unanswered and say so to subscribers (SIG-255).
    GiveUp(Box<Input>),
    /// Take entries out of the journal.
    RemoveJournal { ids: Vec<MessageId>, why: InboxEnd },
    /// Rewrite an entry of the journal.
    UpdateJournal(Box<InboxEntry>),
    /// Answer a cancel.
    Cancelled { ticket: Ticket, ids: Vec<MessageId> },
    /// Answer an abort.
    Aborted { ticket: Ticket, stopped: bool },
    /// Answer a promotion.
    Promoted { ticket: Ticket, run_id: RunId, to: PromoteTo },
    /// Answer an edit.
    Edited { ticket: Ticket, signal: Box<Signal> },
    /// Send [`ThreadEvent::RetryDue`] after the wait for this many failed starts.
    RetryAfter { attempts: u32 },
}

/// Why input was refused by the machine itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// SIG-509.
    Limit,
    /// SIG-503.
    DifferentContent(MessageId),
    /// Taken by a run already.
    Taken(MessageId, RunId),
    /// No such input.
    Unknown(MessageId),
}

/// A run to start.
#[derive(Debug)]
pub(crate) struct StartRun {
    pub(crate) run_id: RunId,
    pub(crate) agent_id: String,
    pub(crate) source: RunSource,
    /// It was stopped before it began (SIG-308).
    pub(crate) aborted: bool,
    /// Stopped by an input that wants it undone (ruling 24).
    pub(crate) rollback: bool,
}

/// What a run starts from.
#[derive(Debug)]
pub(crate) enum RunSource {
    /// Input that waits in the slot; the first one brought the options.
    Input(Box<Input>),
    /// A plain run that asked for its turn.
    Direct,
    /// The record of an earlier process.
    Record,
    /// A parked run; who asked for it, or nobody if it is to end.
    Resume(Option<Ticket>),
}
