//! The desk on which processors work on the run.

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;
use crate::{
    processor::{Desk, ProcessorError, Replaces, Stop},
    run::StepSummary,
    signal::{LaneBook, Signal, StateAnswer, StateInput},
    time::SharedClock,
};

/// The run as hooks work on it.
pub(super) struct RunDesk<'a> {
    pub(super) machine: &'a mut RunMachine,
    pub(super) lanes: Option<&'a mut LaneBook>,
    pub(super) log: &'a StreamLog,
    pub(super) run_id: &'a RunId,
    clock: &'a SharedClock,
    link: Option<&'a ThreadLink>,
    /// A signal was placed or a message was changed.
    pub(super) changed: bool,
    /// System messages among those that a hook has put in the place of others.
    system: Vec<String>,
    replaced: bool,
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
        now(self.link, self.clock)
    }

    fn place(&mut self, signal: &Signal, rotate: bool) -> Signal {
        if self.muted {
            return signal.clone();
        }
        self.changed = true;
        let placed = self.machine.place_signal(signal, rotate, Desk::now(self));
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

    fn replace_all(&mut self, of: Replaces, messages: Vec<StoredMessage>) -> Result<(), ProcessorError> {
        if self.muted {
            return Ok(());
        }
        let now = Desk::now(self);
        let system = self.machine.replace_messages(of, messages, now).map_err(|id| {
            ProcessorError::Failed(format!("two messages have the id {id}: which of them is meant is not known"))
        })?;
        (self.changed, self.replaced) = (true, true);
        self.system.extend(system);
        Ok(())
    }

    fn take_replaced(&mut self) -> bool {
        std::mem::take(&mut self.replaced)
    }

    fn take_system(&mut self) -> Vec<String> {
        std::mem::take(&mut self.system)
    }

    fn answers(&self) -> Vec<StoredMessage> {
        self.machine.transcript().answers()
    }

    fn set_message_id(&mut self, id: MessageId) -> Result<(), ProcessorError> {
        if self.muted {
            return Ok(());
        }
        self.machine.set_message_id(id).map_err(ProcessorError::Failed)
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
        let accepted = lanes.accept(lane, &input, self.machine.transcript().messages(), now(self.link, self.clock));
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

/// What hooks run on, what they run in, and what watches over them.
pub(super) struct AtDesk<'a> {
    pub(super) runner: &'a mut Runner,
    pub(super) desk: RunDesk<'a>,
    pub(super) watch: Watch<'a>,
}

impl Driver {
    /// Splits the driver for a hook. Borrows only: what a hook does not ask for costs nothing (PROC-073).
    pub(super) fn at_desk(&mut self) -> AtDesk<'_> {
        let Self { machine, hooks, log, shared, stops, link, inner, .. } = self;
        let runner = &mut hooks.runner;
        runner.retry_count = hooks.retry_count.unwrap_or_else(|| machine.retry_count() + hooks.tool_tries);
        let desk = RunDesk {
            machine,
            lanes: hooks.lanes.as_mut(),
            log,
            run_id: &shared.run_id,
            clock: &inner.clock,
            link: link.as_ref(),
            changed: false,
            system: Vec::new(),
            replaced: false,
            muted: hooks.muted,
        };
        AtDesk { runner, desk, watch: stops.watch(PROCESSOR_GRACE) }
    }

    pub(super) fn now(&self) -> Timestamp {
        now(self.link.as_ref(), &self.inner.clock)
    }

    pub(super) fn stopped(stop: Stop) -> RunEvent {
        match stop {
            Stop::Tripwire(tripwire) => RunEvent::Violated(tripwire),
            Stop::Failed { error, .. } => RunEvent::HookFailed(error),
        }
    }

    /// How the hooks of a point have ended: `Break` if what they were asked for does not go on, with the event that says
    /// why; the loop sees an abort by itself.
    pub(super) fn hooked(
        &mut self,
        outcome: Result<Result<(), Stop>, Cut>,
    ) -> Result<ControlFlow<Option<RunEvent>>, Flow> {
        Ok(match outcome {
            Ok(Ok(())) => ControlFlow::Continue(()),
            Ok(Err(stop)) => ControlFlow::Break(Some(Self::stopped(stop))),
            Err(cut) => ControlFlow::Break(self.cut(cut)?),
        })
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

fn now(link: Option<&ThreadLink>, clock: &SharedClock) -> Timestamp {
    link.map_or_else(|| clock.now(), |link| link.now(clock))
}
