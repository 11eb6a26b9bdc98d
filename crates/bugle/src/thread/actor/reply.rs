//! Answers that somebody waits for.

use tokio::sync::oneshot;

use super::Actor;
use crate::{
    chunk::ErrorInfo,
    error::Error,
    id::{MessageId, RunId},
    run::RunOutput,
    runtime::{Outcome, Promoted},
    signal::Signal,
    storage::StorageError,
    thread::{
        input::{Input, Routed, Ticket},
        journal::{Op, same_error},
        log::DirectEnd,
        machine::Refusal,
    },
};

/// An answer that somebody waits for.
#[derive(Debug)]
pub(super) enum Waiting {
    Sent {
        taken: Option<oneshot::Sender<Result<(), Error>>>,
        accepted: oneshot::Sender<Result<Outcome, Error>>,
        persisted: Option<oneshot::Sender<Result<(), Error>>>,
    },
    Persisted(oneshot::Sender<Result<(), Error>>),
    Drain(oneshot::Sender<Vec<Input>>),
    Ids(oneshot::Sender<Vec<MessageId>>),
    Aborted(oneshot::Sender<bool>),
    Promoted(oneshot::Sender<Result<Promoted, Error>>),
    Edited(oneshot::Sender<Result<Signal, Error>>),
}

/// An answer, and who gets it.
#[derive(Debug)]
pub(in crate::thread) enum Reply {
    Ids(oneshot::Sender<Vec<MessageId>>, Vec<MessageId>),
    Aborted(oneshot::Sender<bool>, bool),
    Promoted(oneshot::Sender<Result<Promoted, Error>>, Promoted),
    Edited(oneshot::Sender<Result<Signal, Error>>, Box<Signal>),
}

impl Reply {
    /// Who asked may have gone.
    pub(super) fn send(self) {
        match self {
            Self::Ids(reply, ids) => drop(reply.send(ids)),
            Self::Aborted(reply, stopped) => drop(reply.send(stopped)),
            Self::Promoted(reply, promoted) => drop(reply.send(Ok(promoted))),
            Self::Edited(reply, signal) => drop(reply.send(Ok(*signal))),
        }
    }
}

/// The same refusal for another sender of the same input.
pub(super) fn same_refusal(error: &Error) -> Error {
    match error {
        Error::Storage(error) => same_error(error),
        Error::OwnedElsewhere { thread, owner } => {
            Error::OwnedElsewhere { thread: thread.clone(), owner: owner.clone() }
        }
        _ => Error::Internal("an input was refused"),
    }
}

impl Actor {
    pub(super) fn ticket(&mut self, waiting: Waiting) -> Ticket {
        self.next_ticket += 1;
        self.replies.insert(self.next_ticket, waiting);
        self.next_ticket
    }

    /// Answers once the writes that make the answer true are done: what was cancelled must not run after a restart.
    pub(super) fn after_writes(&mut self, reply: Reply) {
        if self.journal.is_idle() {
            reply.send();
        } else {
            self.journal.push(Op::Answer(reply));
        }
    }

    pub(super) fn routed(&mut self, ticket: Ticket, routed: Routed) {
        self.show_if_waiting(&routed);
        let Routed { action, run_id, signal, waiting_for } = routed;
        if let Some(Waiting::Sent { taken, accepted, persisted }) = self.replies.remove(&ticket) {
            if let Some(taken) = taken {
                let _ = taken.send(Ok(()));
            }
            let _ = accepted.send(Ok(Outcome { action, run_id, waiting_for, signal }));
            match persisted {
                Some(persisted) if action == crate::runtime::Action::Persist => {
                    self.replies.insert(ticket, Waiting::Persisted(persisted));
                }
                Some(persisted) => {
                    let _ = persisted.send(Ok(()));
                }
                None => {}
            }
        }
    }

    pub(super) fn refuse(&mut self, ticket: Ticket, why: Refusal) {
        let error = match why {
            Refusal::Limit => Error::InputLimit(self.key.clone()),
            Refusal::DifferentContent(id) => StorageError::DifferentContent { id }.into(),
            Refusal::Taken(id, run_id) => Error::AlreadyTaken { id, run_id },
            Refusal::Unknown(id) => Error::UnknownInput(id),
        };
        match self.replies.remove(&ticket) {
            // The limit is told at once, the rest with the outcome (SIG-003, SIG-509).
            Some(Waiting::Sent { taken: Some(taken), .. }) if matches!(error, Error::InputLimit(_)) => {
                let _ = taken.send(Err(error));
            }
            Some(Waiting::Sent { taken, accepted, .. }) => {
                if let Some(taken) = taken {
                    let _ = taken.send(Ok(()));
                }
                let _ = accepted.send(Err(error));
            }
            Some(Waiting::Promoted(reply)) => {
                let _ = reply.send(Err(error));
            }
            Some(Waiting::Edited(reply)) => {
                let _ = reply.send(Err(error));
            }
            _ => {}
        }
    }

    pub(super) fn refuse_direct(&mut self, run_id: &RunId) {
        let Some(request) = self.direct.remove(run_id) else { return };
        if request.shared.abort.is_cancelled() {
            let chunks = crate::run::aborted_direct(run_id);
            self.thread.log.end_run(&request.shared, None, DirectEnd { replaces_last: false, chunks });
            if let Some(output) = request.output {
                let _ = output.send(RunOutput::aborted(run_id.clone()));
            }
            return;
        }
        let message = format!("thread {} cannot be owned now: {}; try again", self.key, self.unowned);
        let error = ErrorInfo::new("ThreadUnavailable", message);
        let chunks = crate::run::failed_direct(run_id, &error);
        self.thread.log.end_run(&request.shared, None, DirectEnd { replaces_last: false, chunks });
        if let Some(output) = request.output {
            let _ = output.send(RunOutput::failed(run_id.clone(), error));
        }
    }
}
