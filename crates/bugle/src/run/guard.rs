//! The guards of a run: input processors, and waiting for an agent's code without being deaf to a stop.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{machine::RunEvent, prepare::Prepared};
use crate::{
    chunk::TripwirePayload,
    message::StoredMessage,
    processor::{ProcessInput, ProcessorError},
    storage::InboxEntry,
    thread::RunShared,
    time::Timestamp,
};

/// Processors that have no answer are let go this long after an abort (SIG-312).
pub(super) const PROCESSOR_GRACE: Duration = Duration::from_millis(250);

/// What may end the wait for an agent's code: an abort, the runtime's stop, the run's time limit.
pub(super) struct Watch {
    pub(super) shared: Arc<RunShared>,
    /// The caller's own signal (SIG-311).
    pub(super) caller: CancellationToken,
    pub(super) stop: CancellationToken,
    pub(super) deadline: Option<Instant>,
    /// How long the code may go on after an abort; once for all that is watched.
    pub(super) grace: Duration,
    pub(super) grace_ends: Option<Instant>,
}

/// Why the wait was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cut {
    /// Aborted, and the grace time is over.
    Aborted,
    /// The process stops, or the thread is not ours any more.
    Left,
    /// The run's time limit has passed.
    TimedOut,
}

impl Watch {
    /// The outcome of `work`, unless something ends the wait; `work` is dropped then.
    pub(super) async fn wait<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Cut> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Err(Cut::Left),
                done = &mut work => return Ok(done),
                () = self.shared.abort.cancelled(), if self.grace_ends.is_none() => {
                    self.grace_ends = Some(Instant::now() + self.grace);
                }
                () = self.caller.cancelled(), if !self.shared.abort.is_cancelled() => self.shared.stop(false),
                () = at(self.grace_ends), if self.grace_ends.is_some() => return Err(Cut::Aborted),
                () = at(self.deadline), if self.deadline.is_some() && self.grace_ends.is_none() => return Err(Cut::TimedOut),
            }
            if self.shared.is_fenced() {
                return Err(Cut::Left);
            }
        }
    }
}

/// Judges what starts a run: a refusal stops the run before it begins.
pub(super) async fn guard_first(
    prepared: &Prepared,
    watch: &mut Watch,
    now: Timestamp,
    entries: Vec<InboxEntry>,
    messages: Vec<StoredMessage>,
) -> Result<RunEvent, Cut> {
    let mut seen: Vec<StoredMessage> = messages.clone();
    seen.extend(entries.iter().map(|entry| entry.signal.to_stored(None, now)));
    let direct = messages.len();
    Ok(match guard(prepared, watch, &mut seen).await? {
        Ok(()) => {
            seen.truncate(direct);
            RunEvent::Drained { inputs: entries, rejected: Vec::new(), messages: seen }
        }
        Err(tripwire) => RunEvent::Tripped { tripwire, inputs: entries, messages },
    })
}

/// Input that arrives mid-run is judged one by one; a refusal drops that input only (SIG-208, ruling 35).
pub(super) async fn guard_later(
    prepared: &Prepared,
    watch: &mut Watch,
    now: Timestamp,
    entries: Vec<InboxEntry>,
) -> Result<RunEvent, Cut> {
    let (mut inputs, mut rejected) = (Vec::new(), Vec::new());
    for entry in entries {
        let mut seen = vec![entry.signal.to_stored(None, now)];
        match guard(prepared, watch, &mut seen).await? {
            Ok(()) => inputs.push(entry),
            Err(tripwire) => rejected.push((entry, tripwire)),
        }
    }
    Ok(RunEvent::Drained { inputs, rejected, messages: Vec::new() })
}

/// What the processors say. One that has no answer when the run is aborted has refused (ruling 35, SIG-312).
async fn guard(
    prepared: &Prepared,
    watch: &mut Watch,
    messages: &mut Vec<StoredMessage>,
) -> Result<Result<(), TripwirePayload>, Cut> {
    for processor in &prepared.agent.inner().input_processors {
        let mut input = ProcessInput { messages, request_context: &prepared.options.request_context };
        let judged = watch.wait(AssertUnwindSafe(processor.process_input(&mut input)).catch_unwind()).await;
        let failed = |why: &str| Err(ProcessorError::Failed(why.to_owned()));
        let judged = match judged {
            Ok(judged) => judged.unwrap_or_else(|_| failed("the processor panicked")),
            Err(Cut::Aborted) => failed("the run was stopped before the processor had answered"),
            Err(cut) => return Err(cut),
        };
        if let Err(error) = judged {
            let processor_id = processor.id().to_owned();
            return Ok(Err(error.into_payload(&processor_id).unwrap_or_else(|reason| {
                tracing::error!(processor = processor_id, reason, "an input processor failed; input is held back");
                TripwirePayload { reason, retry: false, processor_id: processor_id.clone(), metadata: None }
            })));
        }
    }
    Ok(Ok(()))
}

/// Waits until `deadline`; forever without one.
pub(super) async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
