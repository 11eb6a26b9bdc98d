//! The desk on which processors work on the run.

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;
use crate::{
    processor::{Desk, ProcessorError, Stop},
    run::StepSummary,
    signal::{LaneBook, Signal, StateAnswer, StateInput},
};

/// The run as hooks work on it.
pub(super) struct RunDesk<'a> {
    pub(super) machine: &'a mut RunMachine,
    pub(super) lanes: Option<&'a mut LaneBook>,
    pub(super) log: &'a StreamLog,
    pub(super) run_id: &'a RunId,
    pub(super) now: Timestamp,
    /// A signal was placed or a message was changed.
    pub(super) changed: bool,
    /// Nothing is placed, shown or changed.
    pub(super) muted: bool,
}

impl Desk for RunDesk<'_> {
    fn messages(&self) -> &[StoredMessage] {
        self.machine.transcript().messages()
    }

    fn is_own(&self, id: &MessageId) -> bool {
        self.machine.transcript().is_own(id)
    }

    fn steps(&self) -> &[StepSummary] {
        self.machine.steps()
    }

    fn step_number(&self) -> u32 {
        self.machine.step_number()
    }

    fn message_id(&self) -> MessageId {
        self.machine.message_id().clone()
    }

    fn now(&self) -> Timestamp {
        self.now
    }

    fn place(&mut self, signal: &Signal, rotate: bool) -> Signal {
        if self.muted {
            return signal.clone();
        }
        self.changed = true;
        let placed = self.machine.place_signal(signal, rotate, self.now);
        self.log.push(placed.echo(self.run_id));
        placed
    }

    fn show(&mut self, body: ChunkBody) {
        if !self.muted {
            self.log.push(Chunk { run_id: Some(self.run_id.clone()), from: ChunkFrom::Agent, body, metadata: None });
        }
    }

    fn remove(&mut self, id: &MessageId) -> bool {
        !self.muted && self.machine.transcript_mut().remove_message(id)
    }

    fn replace(&mut self, message: StoredMessage) -> bool {
        if self.muted {
            return false;
        }
        self.changed = true;
        self.machine.transcript_mut().replace_message(message)
    }

    fn rotate(&mut self) -> MessageId {
        if self.muted { self.message_id() } else { self.machine.rotate() }
    }

    fn send_state(&mut self, lane: &str, input: StateInput) -> Result<StateAnswer, ProcessorError> {
        if self.muted {
            return Ok(StateAnswer::Skipped);
        }
        let Some(lanes) = self.lanes.as_deref_mut() else {
            return Err(ProcessorError::Failed("state needs an agent with memory and a run on a thread".to_owned()));
        };
        let accepted = lanes.accept(lane, &input, self.machine.transcript().messages(), self.now);
        match accepted.map_err(|error| ProcessorError::Failed(error.to_string()))? {
            Some(signal) => Ok(StateAnswer::Sent(self.place(&signal, true))),
            None => Ok(StateAnswer::Skipped),
        }
    }

    fn mark_stale(&mut self, lane: &str) {
        if let Some(lanes) = self.lanes.as_deref_mut().filter(|_| !self.muted) {
            lanes.mark_stale(lane);
        }
    }
}

/// Splits the driver into what hooks run on and what they run in.
macro_rules! at_desk {
    ($driver:ident, |$runner:ident, $desk:ident| $call:expr) => {{
        let now = $driver.now();
        let mut watch = $driver.watch(PROCESSOR_GRACE);
        let retries = $driver.machine.retry_count();
        let Driver { machine, hooks, log, shared, .. } = &mut *$driver;
        let mut run_desk = RunDesk {
            machine,
            lanes: hooks.lanes.as_mut(),
            log,
            run_id: &shared.run_id,
            now,
            changed: false,
            muted: hooks.muted,
        };
        let $desk = &mut run_desk;
        let $runner = &mut hooks.runner;
        $runner.retry_count = retries;
        let outcome = watch.wait($call).await;
        (outcome, run_desk.changed)
    }};
}

impl Driver {
    pub(super) fn now(&self) -> Timestamp {
        self.link.as_ref().map_or_else(|| self.inner.clock.now(), |link| link.now(&self.inner.clock))
    }

    pub(super) fn stopped(stop: Stop) -> RunEvent {
        match stop {
            Stop::Tripwire(tripwire) => RunEvent::Violated(tripwire),
            Stop::Failed { error, .. } => RunEvent::HookFailed(error),
        }
    }

    /// What becomes of a wait that was given up. The abort itself is seen by the loop.
    pub(super) fn cut(&mut self, cut: Cut) -> Result<Option<RunEvent>, Flow> {
        match cut {
            Cut::Aborted => Ok(None),
            Cut::Left => Err(Flow::Left),
            Cut::TimedOut => Ok(Some(self.timed_out())),
        }
    }
}
