//! The guards of a run: input processors, and waiting for an agent's code without being deaf to a stop.

use std::{
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::machine::RunEvent;
use crate::{
    chunk::{ErrorInfo, TripwirePayload},
    id::MessageId,
    message::{Role, StoredMessage},
    processor::{Desk, Input, Runner, Stop},
    signal::Signal,
    storage::InboxEntry,
    thread::RunShared,
};

/// Processors that have no answer are let go this long after an abort (SIG-312).
pub(super) const PROCESSOR_GRACE: Duration = Duration::from_millis(250);

/// What may end a wait for an agent's code: an abort, the runtime's stop, the run's time limit. One per run.
pub(super) struct Stops {
    pub(super) shared: Arc<RunShared>,
    /// The caller's own signal (SIG-311).
    pub(super) caller: CancellationToken,
    pub(super) stop: CancellationToken,
    pub(super) deadline: Option<Instant>,
}

impl Stops {
    /// Watches over a wait; code that has no answer when the run is aborted may go on for `grace`.
    pub(super) fn watch(&self, grace: Duration) -> Watch<'_> {
        Watch { stops: self, grace, grace_ends: None }
    }
}

/// A wait for an agent's code. It costs nothing until that code does not answer at once (PROC-073).
pub(super) struct Watch<'a> {
    stops: &'a Stops,
    /// How long the code may go on after an abort; once for all that is watched.
    grace: Duration,
    grace_ends: Option<Instant>,
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

impl Watch<'_> {
    /// The outcome of `work`, unless something ends the wait; `work` is dropped then.
    pub(super) async fn wait<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Cut> {
        self.wait_for(pin!(work)).await
    }

    /// The same for work that is pinned already: it is not moved, which matters where it is done per chunk.
    pub(super) async fn wait_for<T>(&mut self, mut work: Pin<&mut impl Future<Output = T>>) -> Result<T, Cut> {
        // Most hooks answer at once: nothing needs to be watched then.
        let at_once = std::future::poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Some(done)),
            Poll::Pending => Poll::Ready(None),
        });
        if let Some(done) = at_once.await {
            return Ok(done);
        }
        let Stops { shared, caller, stop, deadline } = self.stops;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Err(Cut::Left),
                done = &mut work => return Ok(done),
                () = shared.abort.cancelled(), if self.grace_ends.is_none() => {
                    self.grace_ends = Some(Instant::now() + self.grace);
                }
                () = caller.cancelled(), if !shared.abort.is_cancelled() => shared.stop(false),
                () = at(self.grace_ends), if self.grace_ends.is_some() => return Err(Cut::Aborted),
                () = at(*deadline), if deadline.is_some() && self.grace_ends.is_none() => return Err(Cut::TimedOut),
            }
            if shared.is_fenced() {
                return Err(Cut::Left);
            }
        }
    }
}

/// Judges what starts a run: a refusal stops the run before it begins. What is left of the input is what counts.
pub(super) async fn guard_first(
    runner: &mut Runner,
    desk: &mut dyn Desk,
    watch: &mut Watch<'_>,
    entries: Vec<InboxEntry>,
    messages: Vec<StoredMessage>,
) -> Result<(RunEvent, Vec<String>), Cut> {
    let now = desk.now();
    let mut seen: Vec<StoredMessage> = messages.clone();
    seen.extend(entries.iter().map(|entry| entry.signal.to_stored(None, now)));
    let known: Vec<MessageId> = messages.iter().map(|message| message.id.clone()).collect();
    let mut input = Input { messages: seen, ..Input::default() };
    if let Err((tripwire, error)) = guard(runner, desk, watch, &mut input).await? {
        return Ok((RunEvent::Tripped { tripwire, error, inputs: entries, messages }, Vec::new()));
    }
    let Sorted { inputs, rejected, messages: left, system } = sort_out(entries, &known, input);
    if inputs.is_empty() && left.is_empty() {
        // Nothing is left to answer.
        let inputs = rejected.into_iter().map(|(entry, _)| entry).collect();
        return Ok((RunEvent::Tripped { tripwire: filtered(), error: None, inputs, messages }, Vec::new()));
    }
    Ok((RunEvent::Drained { inputs, rejected, messages: left }, system))
}

/// Input that arrives mid-run is judged one by one; a refusal drops that input only (SIG-208, ruling 35).
pub(super) async fn guard_later(
    runner: &mut Runner,
    desk: &mut dyn Desk,
    watch: &mut Watch<'_>,
    entries: Vec<InboxEntry>,
) -> Result<(RunEvent, Vec<String>), Cut> {
    let now = desk.now();
    let (mut inputs, mut rejected) = (Vec::new(), Vec::new());
    let (mut added, mut system) = (Vec::new(), Vec::new());
    for entry in entries {
        let messages = vec![entry.signal.to_stored(None, now)];
        let mut input = Input { messages, mid_run: true, ..Input::default() };
        match guard(runner, desk, watch, &mut input).await? {
            Ok(()) => {
                let mut sorted = sort_out(vec![entry], &[], input);
                inputs.append(&mut sorted.inputs);
                rejected.append(&mut sorted.rejected);
                added.append(&mut sorted.messages);
                system.append(&mut sorted.system);
            }
            Err((tripwire, _)) => rejected.push((entry, tripwire)),
        }
    }
    Ok((RunEvent::Drained { inputs, rejected, messages: added }, system))
}

/// Judges a message that came with a decision: what is left of it, or it as it was and why it is refused.
pub(super) async fn guard_pending(
    runner: &mut Runner,
    desk: &mut dyn Desk,
    watch: &mut Watch<'_>,
    message: StoredMessage,
) -> Result<(Vec<StoredMessage>, Option<TripwirePayload>), Cut> {
    let mut input = Input { messages: vec![message.clone()], mid_run: true, ..Input::default() };
    let refused = match guard(runner, desk, watch, &mut input).await {
        Ok(Ok(())) if input.messages.is_empty() => filtered(),
        Ok(Ok(())) => return Ok((input.messages, None)),
        Ok(Err((tripwire, _))) => tripwire,
        Err(Cut::Left) => return Err(Cut::Left),
        Err(Cut::Aborted | Cut::TimedOut) => {
            let reason = "the run's time was over before the input processors had answered".to_owned();
            TripwirePayload { reason, ..filtered() }
        }
    };
    Ok((vec![message], Some(refused)))
}

/// Judges a row that is stored: what is left of it, and why it is refused if it is. A processor that fails refuses it.
pub(super) async fn guard_stored(
    runner: &mut Runner,
    desk: &mut dyn Desk,
    watch: &mut Watch<'_>,
    row: StoredMessage,
) -> Result<(Vec<StoredMessage>, Option<TripwirePayload>), Cut> {
    let mut input = Input { messages: vec![row.clone()], mid_run: true, ..Input::default() };
    let refused = match guard(runner, desk, watch, &mut input).await? {
        Ok(()) if input.messages.iter().any(|message| message.id == row.id) => return Ok((input.messages, None)),
        Ok(()) => filtered(),
        Err((tripwire, _)) => tripwire,
    };
    Ok((vec![row], Some(refused)))
}

/// What guards have left of input.
struct Sorted {
    /// The signals, as they were changed.
    inputs: Vec<InboxEntry>,
    /// Those that were taken out.
    rejected: Vec<(InboxEntry, TripwirePayload)>,
    /// What is no signal: messages of a caller, and those that guards have added.
    messages: Vec<StoredMessage>,
    /// For the instructions of the whole run: what guards have added, system messages among the input (PROC-011).
    system: Vec<String>,
}

fn sort_out(entries: Vec<InboxEntry>, known: &[MessageId], input: Input) -> Sorted {
    let (mut inputs, mut rejected) = (Vec::new(), Vec::new());
    let Input { messages, mut system, .. } = input;
    let (signals, left): (Vec<_>, Vec<_>) =
        messages.into_iter().partition(|message| entries.iter().any(|entry| entry.signal.id == message.id));
    // A system message of the caller stays where it is; one that a guard has added is an instruction.
    let (instructions, messages): (Vec<_>, Vec<_>) =
        left.into_iter().partition(|message| message.role == Role::System && !known.contains(&message.id));
    system.extend(instructions.iter().map(StoredMessage::joined_text).filter(|text| !text.is_empty()));
    for mut entry in entries {
        match signals.iter().find(|message| message.id == entry.signal.id) {
            None => rejected.push((entry, filtered())),
            Some(message) => {
                // Only what a message says can be changed; who sent it and what it is stays.
                if let Some(changed) = Signal::from_stored(message) {
                    entry.signal.contents = changed.contents;
                    entry.signal.attributes = changed.attributes;
                }
                inputs.push(entry);
            }
        }
    }
    Sorted { inputs, rejected, messages, system }
}

fn filtered() -> TripwirePayload {
    let reason = "filtered out by an input processor".to_owned();
    TripwirePayload { reason, retry: false, processor_id: "input".to_owned(), metadata: None }
}

/// What the processors say. One that has no answer when the run is aborted has refused (ruling 35, SIG-312).
async fn guard(
    runner: &mut Runner,
    desk: &mut dyn Desk,
    watch: &mut Watch<'_>,
    input: &mut Input,
) -> Result<Result<(), (TripwirePayload, Option<ErrorInfo>)>, Cut> {
    let held =
        |processor_id: String, reason: String| TripwirePayload { reason, retry: false, processor_id, metadata: None };
    match watch.wait(runner.input(desk, input)).await {
        Ok(Ok(())) => Ok(Ok(())),
        Ok(Err(Stop::Tripwire(tripwire))) => Ok(Err((tripwire, None))),
        Ok(Err(Stop::Failed { processor_id, error })) => {
            Ok(Err((held(processor_id, error.message.clone()), Some(error))))
        }
        Err(Cut::Aborted) => {
            let processor_id = runner.working().unwrap_or_default();
            let reason = format!("the run was stopped before processor {processor_id} had answered");
            Ok(Err((held(processor_id, reason), None)))
        }
        Err(cut) => Err(cut),
    }
}

/// Waits until `deadline`; forever without one.
pub(super) async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
