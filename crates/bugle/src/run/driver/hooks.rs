//! Where the driver runs processors: the desk they work on, the preparation of a request, what they say of chunks, steps,
//! results and failures (PROC §1). Nothing of this runs for agents without processors.

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;
use crate::{
    chunk::TripwirePayload,
    model::ModelEvent,
    processor::{
        ApiFailure, Chunks, Desk, Flush, Hook, InputStep, LlmRequest, LlmResponse, ProcessorError, Recovery, Stop,
        ToolResult,
    },
    run::{
        StepSummary,
        machine::{ResultVerdict, StepVerdict},
        response::as_event,
        settings::Judges,
    },
    signal::{LaneBook, LaneView, Signal, StateAnswer, StateInput, lane_signals, tracked_lanes, wanted_ids},
};

/// How often tracking is written again when others were faster (STATE-081).
const LANE_TRIES: u32 = 5;
/// A lane whose processor has failed so often in a row is reported to clients (STATE-058).
const LANE_FAILURES: u32 = 3;

/// What of the driver only runs with processors need.
pub(super) struct Hooks {
    pub(super) runner: Runner,
    /// The lanes of the run's thread; without memory or thread there are none.
    lanes: Option<LaneBook>,
    /// The tools of the step under way.
    pub(super) tools: Arc<ToolTable>,
    /// `tools` is what this process made for a step; a parked step begins without (PROC-040).
    shaped: bool,
    /// What hooks do to the run has no effect: only the tools they shape are wanted.
    muted: bool,
    /// What the model has said in the response under way; with stream hooks, what they passed on.
    said: Vec<ModelEvent>,
    warnings: Vec<Value>,
    model: String,
    /// The response under way comes from a processor.
    replayed: bool,
    /// Failed requests that were tried again since a step was accepted.
    error_tries: u32,
    /// Lanes that fell out of view were put back.
    put_back: bool,
    /// What hooks held was asked for because of an abort.
    abort_flushed: bool,
}

impl Hooks {
    pub(super) fn new(runner: Runner, prepared: &Prepared, thread: Option<&ThreadKey>) -> Self {
        let lanes = thread.filter(|_| prepared.agent.memory().is_some()).cloned().map(LaneBook::new);
        Self {
            runner,
            lanes,
            tools: prepared.tools.clone(),
            shaped: false,
            muted: false,
            said: Vec::new(),
            warnings: Vec::new(),
            model: String::new(),
            replayed: false,
            error_tries: 0,
            put_back: !prepared.history_cut,
            abort_flushed: false,
        }
    }

    /// Where the machine has to ask.
    pub(super) fn judges(runner: &Runner) -> Judges {
        Judges {
            stream: runner.has(Hook::OutputStream),
            step: runner.has(Hook::OutputStep) || runner.has(Hook::LlmResponse),
            result: runner.has(Hook::OutputResult),
            retries: runner.step_retries(),
        }
    }
}

/// The run as hooks work on it.
struct RunDesk<'a> {
    machine: &'a mut RunMachine,
    lanes: Option<&'a mut LaneBook>,
    log: &'a StreamLog,
    run_id: &'a RunId,
    now: Timestamp,
    /// A signal was placed or a message was changed.
    changed: bool,
    /// Nothing is placed, shown or changed.
    muted: bool,
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
    fn now(&self) -> Timestamp {
        self.link.as_ref().map_or_else(|| self.inner.clock.now(), |link| link.now(&self.inner.clock))
    }

    fn stopped(stop: Stop) -> RunEvent {
        match stop {
            Stop::Tripwire(tripwire) => RunEvent::Violated(tripwire),
            Stop::Failed { error, .. } => RunEvent::HookFailed(error),
        }
    }

    /// What becomes of a wait that was given up. The abort itself is seen by the loop.
    fn cut(&mut self, cut: Cut) -> Result<Option<RunEvent>, Flow> {
        match cut {
            Cut::Aborted => Ok(None),
            Cut::Left => Err(Flow::Left),
            Cut::TimedOut => Ok(Some(self.timed_out())),
        }
    }

    // Input.

    /// Judges input that was taken (SIG-208).
    pub(super) async fn guard(
        &mut self,
        first: bool,
        entries: Vec<InboxEntry>,
        messages: Vec<StoredMessage>,
    ) -> Result<RunEvent, Cut> {
        let now = self.now();
        let mut watch = self.watch(PROCESSOR_GRACE);
        let Self { machine, hooks, log, shared, prepared, .. } = self;
        let lanes = hooks.lanes.as_mut();
        let mut desk = RunDesk { machine, lanes, log, run_id: &shared.run_id, now, changed: false, muted: false };
        if !first {
            return guard_later(&mut hooks.runner, &mut desk, &mut watch, entries).await;
        }
        let (event, system) = guard_first(&mut hooks.runner, &mut desk, &mut watch, entries, messages).await?;
        let added = system.into_iter().map(|content| PromptMessage::System { content, provider_options: None });
        prepared.system.extend(added);
        Ok(event)
    }

    /// Judges the messages that came with a decision, and takes them in before anything is claimed: what was accepted is
    /// durable with the claim (ruling 6). `false` if this process leaves the run.
    pub(super) async fn take_in_pending(&mut self) -> bool {
        if self.claiming.is_none() || self.first_messages.is_empty() {
            return true;
        }
        let messages = std::mem::take(&mut self.first_messages);
        if !self.hooks.runner.has(Hook::Input) {
            for message in messages {
                self.machine.add_pending(message, None);
            }
            self.note_newest();
            return true;
        }
        let now = self.now();
        let mut watch = self.watch(PROCESSOR_GRACE);
        let Self { machine, hooks, log, shared, .. } = self;
        let lanes = hooks.lanes.as_mut();
        let mut desk = RunDesk { machine, lanes, log, run_id: &shared.run_id, now, changed: false, muted: false };
        for message in messages {
            match guard_pending(&mut hooks.runner, &mut desk, &mut watch, message).await {
                Ok((messages, refused)) => {
                    for message in messages {
                        desk.machine.add_pending(message, refused.as_ref());
                    }
                }
                Err(_) => return false,
            }
        }
        self.note_newest();
        true
    }

    /// What others place on the thread comes after what the run holds.
    fn note_newest(&self) {
        if let (Some(link), Some(newest)) = (&self.link, self.machine.transcript().newest()) {
            link.placed_up_to(newest);
        }
    }

    // The request.

    /// Prepares and sends a request: step hooks, lanes, the prepare-step callback, prompt hooks (STATE-050).
    pub(super) async fn prepare_request(&mut self) -> Result<Option<RunEvent>, Flow> {
        self.hooks.said.clear();
        self.hooks.replayed = false;
        self.machine.bypass_stream(false);
        self.hooks.tools = self.prepared.tools.clone();
        self.hooks.shaped = true;
        self.put_lanes_back().await;
        let shapes = self.hooks.runner.has(Hook::InputStep) || self.prepared.options.prepare_step.is_some();
        let lanes = self.hooks.runner.lanes();
        if !shapes && lanes.is_empty() && !self.hooks.runner.has(Hook::LlmRequest) {
            self.ask(None);
            return Ok(None);
        }
        let mut step = self.plain_step();
        let mut changed = false;
        // One read of the thread serves all lanes of the step (STATE-060).
        let keeps_lanes = !lanes.is_empty() || self.hooks.runner.has(Hook::InputStep);
        if let Err(error) = self.read_lanes(keeps_lanes && !lanes.is_empty()).await {
            return Ok(Some(RunEvent::HookFailed(error)));
        }
        if self.hooks.runner.has(Hook::InputStep) {
            let (outcome, touched) = at_desk!(self, |runner, desk| runner.input_step(desk, &mut step));
            changed |= touched;
            match outcome {
                Ok(Ok(())) => {}
                Ok(Err(stop)) => return Ok(Some(Self::stopped(stop))),
                Err(cut) => return self.cut(cut),
            }
        }
        for (at, lane) in lanes {
            match self.compute_lane(at, &lane).await? {
                (Some(event), _) => return Ok(Some(event)),
                (None, touched) => changed |= touched,
            }
        }
        if let Err(error) = self.call_prepare_step(&mut step) {
            return Ok(Some(RunEvent::HookFailed(error)));
        }
        if changed {
            self.write_lanes().await;
            if let Some(event) = self.write_placed().await? {
                return Ok(Some(event));
            }
        }
        if step.models.is_empty() {
            let error = ErrorInfo::new("ModelConfigurationError", "a processor left the step without a model");
            return Ok(Some(RunEvent::HookFailed(error)));
        }
        if shapes {
            match self.table_of(&mut step) {
                Ok(table) => self.hooks.tools = table,
                Err(error) => return Ok(Some(RunEvent::HookFailed(error))),
            }
        }
        let index = self.model_index.min(step.models.len() - 1);
        self.model_index = index;
        let mut request = self.model_request(&step.models, step.system, &self.hooks.tools);
        request.settings = step.model_settings;
        request.provider_options = step.provider_options;
        if self.hooks.runner.has(Hook::LlmRequest) {
            let mut shown = LlmRequest {
                prompt: std::mem::take(&mut request.prompt),
                model: step.models[index].model.clone(),
                model_settings: request.settings.clone(),
                tools: request.tools.clone(),
                tool_choice: request.tool_choice.clone(),
                response_format: request.response_format.clone(),
                provider_options: request.provider_options.clone(),
                filters: self.hooks.runner.stream_ids(),
                response: None,
            };
            let (outcome, _) = at_desk!(self, |runner, desk| runner.llm_request(desk, &mut shown));
            match outcome {
                Ok(Ok(())) => {}
                Ok(Err(stop)) => return Ok(Some(Self::stopped(stop))),
                Err(cut) => return self.cut(cut),
            }
            request.prompt = shown.prompt;
            if let Some(events) = shown.response {
                self.hooks.replayed = true;
                self.machine.bypass_stream(true);
                self.request = Some(Request::replay(step.models, index, events, self.streaming));
                return Ok(None);
            }
        }
        self.ask(Some((step.models, request)));
        Ok(None)
    }

    /// A step with the call's own values.
    fn plain_step(&self) -> InputStep {
        InputStep {
            models: self.prepared.models.clone(),
            tools: self.prepared.tools.all().clone(),
            tool_choice: self.prepared.options.tool_choice.clone(),
            active_tools: self.prepared.options.active_tools.clone(),
            provider_options: self.prepared.options.provider_options.clone(),
            model_settings: self.prepared.options.model_settings.clone().unwrap_or_default(),
            system: self.prepared.system.clone(),
        }
    }

    fn call_prepare_step(&self, step: &mut InputStep) -> Result<(), ErrorInfo> {
        let Some(prepare) = self.prepared.options.prepare_step.clone() else { return Ok(()) };
        std::panic::catch_unwind(AssertUnwindSafe(|| (prepare.0)(step)))
            .map_err(|_| ErrorInfo::new("PrepareStepPanic", "the prepare-step callback panicked; see the log"))
    }

    /// The tools as the step's hooks left them.
    fn table_of(&self, step: &mut InputStep) -> Result<Arc<ToolTable>, ErrorInfo> {
        let (tools, active) = (std::mem::take(&mut step.tools), step.active_tools.take());
        let table = self.prepared.tools.for_step(tools, active, step.tool_choice.as_ref());
        if let Some((one, other)) = table.collision() {
            let message = format!("tools {one} and {other} have the same name for providers; rename one");
            return Err(ErrorInfo::new("AGENT_TOOL_NAME_COLLISION", message));
        }
        Ok(Arc::new(table))
    }

    /// Makes the tools of a step that an earlier process asked for: its step hooks are asked once more, of what they do
    /// only the tools count, and what they keep is as it was afterwards (PROC-030, PROC-040). `false` = no call may run; the
    /// event that says why is in `events`, or the loop sees the abort.
    pub(super) async fn shape_again(&mut self, events: &mut VecDeque<RunEvent>) -> Result<bool, Flow> {
        let hooked = self.hooks.runner.has(Hook::InputStep);
        if std::mem::replace(&mut self.hooks.shaped, true) || (!hooked && self.prepared.options.prepare_step.is_none())
        {
            return Ok(true);
        }
        let mut step = self.plain_step();
        if hooked {
            self.hooks.muted = true;
            let kept = self.hooks.runner.exchange_slots(None);
            let (outcome, _) = at_desk!(self, |runner, desk| runner.input_step(desk, &mut step));
            self.hooks.muted = false;
            self.hooks.runner.exchange_slots(Some(kept));
            let stopped = match outcome {
                Ok(Ok(())) => None,
                Ok(Err(stop)) => Some(Some(Self::stopped(stop))),
                Err(cut) => Some(self.cut(cut)?),
            };
            if let Some(event) = stopped {
                events.extend(event);
                return Ok(false);
            }
        }
        let table = self.call_prepare_step(&mut step).and_then(|()| self.table_of(&mut step));
        match table {
            Ok(table) => {
                self.hooks.tools = table;
                Ok(true)
            }
            Err(error) => {
                events.push_back(RunEvent::HookFailed(error));
                Ok(false)
            }
        }
    }

    /// Reads what the thread keeps of its lanes.
    async fn read_lanes(&mut self, needed: bool) -> Result<(), ErrorInfo> {
        let Some(lanes) = &mut self.hooks.lanes else {
            if needed && self.prepared.agent.memory().is_none() {
                let message =
                    format!("agent {} has a state lane and no memory; give it memory", self.prepared.agent.id());
                return Err(ErrorInfo::new("StateMemoryRequired", message));
            }
            return Ok(());
        };
        if !needed && !self.hooks.runner.has(Hook::InputStep) {
            return Ok(());
        }
        let thread = self.inner.storage.get_thread(&lanes.thread().thread_id).await;
        match thread {
            Ok(thread) => {
                lanes.begin(thread.as_ref().map(tracked_lanes).unwrap_or_default());
                Ok(())
            }
            Err(error) if needed => Err(super::super::commit::storage_error(&error)),
            Err(error) => {
                tracing::warn!(%error, "the thread's lanes could not be read");
                lanes.begin(Vec::new());
                Ok(())
            }
        }
    }

    /// Asks one processor for its lane's state. Gives what stops the run, and whether something was placed.
    async fn compute_lane(&mut self, at: usize, lane: &str) -> Result<(Option<RunEvent>, bool), Flow> {
        let Some(lanes) = &self.hooks.lanes else {
            tracing::debug!(lane, "no thread, so no lane");
            return Ok((None, false));
        };
        let thread = lanes.thread().clone();
        let tracking = lanes.tracking(lane).cloned();
        let window = self.machine.transcript().messages();
        let wanted = wanted_ids(&lane_signals(window, lane, &thread.thread_id), tracking.as_ref());
        let loaded = if wanted.is_empty() {
            Vec::new()
        } else {
            match self.inner.storage.get_messages(&wanted).await {
                Ok(loaded) => loaded,
                Err(error) => {
                    tracing::warn!(lane, %error, "a lane's history could not be read");
                    Vec::new()
                }
            }
        };
        let stale = lanes.is_stale(lane);
        let view = LaneView::resolve(lane, &thread, self.machine.transcript().messages(), &loaded, tracking, stale);
        let (outcome, mut touched) = at_desk!(self, |runner, desk| runner.state(desk, at, &view));
        let answer = match outcome {
            Ok(Ok(None)) => Ok(()),
            Ok(Ok(Some(state))) => {
                if cfg!(debug_assertions) && state.id.as_deref().is_some_and(|id| id != lane) {
                    let message = format!("the processor of lane {lane} gave state for lane {:?}", state.id);
                    Err(ErrorInfo::new("ProcessorError", message))
                } else {
                    let (sent, placed) = self.send_state(lane, state);
                    touched |= placed;
                    sent
                }
            }
            Ok(Err(Stop::Tripwire(tripwire))) => return Ok((Some(RunEvent::Violated(tripwire)), touched)),
            Ok(Err(Stop::Failed { error, .. })) => Err(error),
            Err(cut) => return self.cut(cut).map(|event| (event, touched)),
        };
        let Some(lanes) = &mut self.hooks.lanes else { return Ok((None, touched)) };
        match answer {
            Ok(()) => lanes.succeeded(lane),
            Err(error) => {
                tracing::error!(
                    lane,
                    error = error.message,
                    "a lane could not be computed; the step goes on without it"
                );
                if lanes.failed(lane) == LANE_FAILURES {
                    let data = json!({ "lane": lane, "message": error.message });
                    self.log.push(Chunk::transient_data(&self.shared.run_id, "data-state-error", data));
                }
            }
        }
        Ok((None, touched))
    }

    fn send_state(&mut self, lane: &str, state: StateInput) -> (Result<(), ErrorInfo>, bool) {
        let now = self.now();
        let Self { machine, hooks, log, shared, .. } = self;
        let lanes = hooks.lanes.as_mut();
        let mut desk = RunDesk { machine, lanes, log, run_id: &shared.run_id, now, changed: false, muted: false };
        let sent = desk.send_state(lane, state);
        let sent = sent.map(|_| ()).map_err(|error| ErrorInfo::new("ProcessorError", error.to_string()));
        (sent, desk.changed)
    }

    /// Writes what the step's states changed, once (STATE-060). After others, if they were faster (STATE-081).
    async fn write_lanes(&mut self) {
        let read_only = self.prepared.memory.read_only;
        let Some(lanes) = &mut self.hooks.lanes else { return };
        for _ in 0..LANE_TRIES {
            let changes = lanes.changes();
            if changes.is_empty() || read_only {
                lanes.written();
                return;
            }
            let thread_id = lanes.thread().thread_id.to_string();
            match self.inner.storage.track_lanes(&thread_id, changes).await {
                Ok(true) => {
                    lanes.written();
                    return;
                }
                Ok(false) => {}
                Err(error) => {
                    // The next step looks again: what is not tracked is sent again.
                    tracing::warn!(%error, "the lanes of a step could not be tracked");
                    return;
                }
            }
            let thread = self.inner.storage.get_thread(&thread_id).await.ok().flatten();
            let moved = lanes.rebase(thread.as_ref().map(tracked_lanes).unwrap_or_default());
            self.machine.set_state_versions(&moved);
        }
        tracing::warn!("the lanes of a step were changed by others all the time; they are not tracked");
    }

    /// Makes durable what hooks have placed, before the model reads it.
    async fn write_placed(&mut self) -> Result<Option<RunEvent>, Flow> {
        Ok(match self.commit().await {
            Some(RunEvent::Committed) => None,
            Some(RunEvent::CommitFailed(error)) => Some(RunEvent::HookFailed(error)),
            Some(other) => Some(other),
            None => return Err(Flow::Left),
        })
    }

    /// Lanes of producers outside that fell out of view are put back as context, once a run (STATE-036).
    async fn put_lanes_back(&mut self) {
        if std::mem::replace(&mut self.hooks.put_back, true) {
            return;
        }
        let Some(lanes) = &self.hooks.lanes else { return };
        let thread = lanes.thread().clone();
        let tracked = match self.inner.storage.get_thread(&thread.thread_id).await {
            Ok(thread) => thread.as_ref().map(tracked_lanes).unwrap_or_default(),
            Err(error) => {
                tracing::warn!(%error, "lanes out of view are not put back: the thread could not be read");
                return;
            }
        };
        let owned = self.hooks.runner.lanes();
        let mut back = Vec::new();
        for (lane, tracking) in tracked {
            if owned.iter().any(|(_, known)| *known == lane) {
                continue;
            }
            let window = lane_signals(self.machine.transcript().messages(), &lane, &thread.thread_id);
            let wanted = wanted_ids(&window, Some(&tracking));
            if wanted.is_empty() {
                continue;
            }
            let Ok(loaded) = self.inner.storage.get_messages(&wanted).await else { continue };
            let view = LaneView::resolve(&lane, &thread, &[], &loaded, None, false);
            let Some(snapshot) = view.last_snapshot else { continue };
            let reinject =
                snapshot.signal.metadata.as_ref().and_then(|metadata| metadata.get("state")?.get("reinject"));
            if reinject == Some(&Value::Bool(false)) {
                continue;
            }
            for signal in std::iter::once(&snapshot).chain(&view.deltas) {
                back.extend(loaded.iter().find(|message| message.id == signal.id).cloned());
            }
        }
        if !back.is_empty() {
            back.sort_by_key(|message| message.created_at);
            self.machine.transcript_mut().put_back(back);
        }
    }

    // Events on their way to the machine.

    /// Lets hooks have their say before the machine hears of an event. `None` = the event is not passed on.
    pub(super) async fn intercept(
        &mut self,
        event: RunEvent,
        events: &mut VecDeque<RunEvent>,
    ) -> Result<Option<RunEvent>, Flow> {
        match event {
            RunEvent::Answered { ref model, ref warnings } if self.hooks.runner.has(Hook::LlmResponse) => {
                self.hooks.said.clear();
                self.hooks.warnings.clone_from(warnings);
                self.hooks.model = format!("{}/{}", model.provider, model.model);
                Ok(Some(event))
            }
            RunEvent::Model(model_event) => {
                self.hear(&model_event);
                match model_event {
                    ModelEvent::ToolResult { id, name, result, is_error }
                        if !is_error && self.hooks.runner.has(Hook::ToolResult) =>
                    {
                        let mut shown = ToolResult {
                            tool_name: name.clone(),
                            tool_call_id: id.clone(),
                            args: Value::Null,
                            result,
                            provider_executed: true,
                        };
                        Ok(match self.tool_result_hooks(&mut shown).await? {
                            None => {
                                let result = shown.result;
                                Some(RunEvent::Model(ModelEvent::ToolResult { id, name, result, is_error }))
                            }
                            Some(event) => Some(event),
                        })
                    }
                    model_event => Ok(Some(RunEvent::Model(model_event))),
                }
            }
            RunEvent::ToolDone { index, outcome: ToolOutcome::Result { value, is_error: false, model_output } }
                if self.hooks.runner.has(Hook::ToolResult) =>
            {
                let Some((id, name, args)) = self.machine.call_at(index) else {
                    let outcome = ToolOutcome::Result { value, is_error: false, model_output };
                    return Ok(Some(RunEvent::ToolDone { index, outcome }));
                };
                let before = value.clone();
                let mut shown =
                    ToolResult { tool_name: name, tool_call_id: id, args, result: value, provider_executed: false };
                let stopped = self.tool_result_hooks(&mut shown).await?;
                Ok(Some(match stopped {
                    None => {
                        // What the model reads instead was made of the old result.
                        let model_output = model_output.filter(|_| shown.result == before);
                        let outcome = ToolOutcome::Result { value: shown.result, is_error: false, model_output };
                        RunEvent::ToolDone { index, outcome }
                    }
                    Some(RunEvent::Violated(tripwire)) if self.may_retry(&tripwire) => {
                        // The model reads why, and decides anew (PROC-055 c).
                        let outcome = ToolOutcome::Failed(ErrorInfo::new("ProcessorTripwire", tripwire.reason));
                        RunEvent::ToolDone { index, outcome }
                    }
                    Some(event) => event,
                }))
            }
            RunEvent::ModelFailed(error) => self.failed_request(error).await,
            RunEvent::Abort if !std::mem::replace(&mut self.hooks.abort_flushed, true) => {
                match self.flush_aborted().await {
                    None => Ok(Some(RunEvent::Abort)),
                    Some(passed) => {
                        events.push_front(RunEvent::Abort);
                        Ok(Some(passed))
                    }
                }
            }
            event => Ok(Some(event)),
        }
    }

    /// Keeps what the model said for `process_llm_response`. What passes stream hooks is kept as they pass it on.
    fn hear(&mut self, event: &ModelEvent) {
        let runner = &self.hooks.runner;
        if !runner.has(Hook::LlmResponse) || self.hooks.replayed {
            return;
        }
        let kept = !runner.has(Hook::OutputStream)
            || matches!(event, ModelEvent::Warnings(_) | ModelEvent::Metadata { .. } | ModelEvent::Finish { .. });
        if kept {
            self.hooks.said.push(event.clone());
        }
    }

    fn may_retry(&mut self, tripwire: &TripwirePayload) -> bool {
        let allowed = self.hooks.runner.step_retries().unwrap_or(0);
        let may = tripwire.retry && self.hooks.error_tries < allowed;
        self.hooks.error_tries += u32::from(may);
        may
    }

    async fn tool_result_hooks(&mut self, result: &mut ToolResult) -> Result<Option<RunEvent>, Flow> {
        let (outcome, _) = at_desk!(self, |runner, desk| runner.tool_result(desk, result));
        match outcome {
            Ok(Ok(())) => Ok(None),
            Ok(Err(stop)) => Ok(Some(Self::stopped(stop))),
            Err(cut) => self.cut(cut),
        }
    }

    /// A request failed: error hooks, then the next model, then the failure itself (PROC §6).
    async fn failed_request(&mut self, error: ErrorInfo) -> Result<Option<RunEvent>, Flow> {
        if !self.hooks.runner.has(Hook::ApiError) {
            return Ok(Some(RunEvent::ModelFailed(error)));
        }
        let at = self.request.as_ref().map_or(self.model_index, Request::model_index);
        if self.hooks.error_tries < self.hooks.runner.error_retries() {
            let model = self.request.as_ref().and_then(|request| request.models().get(at)).map(model_name);
            let failure = ApiFailure {
                error: error.clone(),
                model: model.unwrap_or_default(),
                partial: self.machine.has_shown(),
            };
            let (answer, _) =
                at_desk!(self, |runner, desk| async { Ok::<_, Stop>(runner.api_error(desk, &failure).await) });
            match answer {
                Ok(Ok(Recovery::Retry)) => {
                    self.hooks.error_tries += 1;
                    self.model_index = at;
                    self.request = None;
                    // What stream hooks hold of the failed try is dropped.
                    let _ = at_desk!(self, |runner, desk| runner.flush(desk, Flush::Abort));
                    return Ok(Some(RunEvent::RetryRequest));
                }
                Ok(_) => {}
                Err(cut) => return self.cut(cut),
            }
        }
        if self.request.as_mut().is_some_and(Request::next_model) {
            return Ok(None);
        }
        self.request = None;
        Ok(Some(RunEvent::ModelFailed(error)))
    }

    // The stream.

    /// Whether a chunk that the machine shows passes the stream hooks first.
    pub(super) fn is_filtered(&self, chunk: &Chunk) -> bool {
        if !self.hooks.runner.has(Hook::OutputStream) || self.hooks.replayed {
            return false;
        }
        match &chunk.body {
            ChunkBody::Object(_) => true,
            ChunkBody::Payload(payload) => matches!(
                payload,
                Payload::StepStart { .. } | Payload::ToolResult(_) | Payload::ToolError { .. } | Payload::StepFinish(_)
            ),
            _ => false,
        }
    }

    /// Shows a chunk of the machine as the stream hooks pass it on. A `step-finish` is always shown, once.
    /// `false` = stopped.
    pub(super) async fn emit_filtered(&mut self, chunk: Chunk, events: &mut VecDeque<RunEvent>) -> Result<bool, Flow> {
        let kept = matches!(chunk.payload(), Some(Payload::StepFinish(_))).then(|| chunk.clone());
        let (outcome, _) = at_desk!(self, |runner, desk| runner.stream(desk, chunk));
        match (outcome, kept) {
            (Ok(Ok(_)) | Err(Cut::Aborted | Cut::TimedOut), Some(finish)) => self.emit(finish),
            (Ok(Ok(chunks)), None) => chunks.into_iter().for_each(|chunk| self.emit(chunk)),
            (Ok(Err(_)), Some(finish)) => self.emit(finish),
            (Ok(Err(stop)), None) => {
                events.push_front(Self::stopped(stop));
                return Ok(false);
            }
            (Err(cut), _) => events.extend(self.cut(cut)?),
        }
        Ok(true)
    }

    /// Passes a chunk of the response through the hooks; the machine hears of what was shown.
    /// `false` = stopped.
    pub(super) async fn filter(&mut self, chunk: Chunk, events: &mut VecDeque<RunEvent>) -> Result<bool, Flow> {
        let (outcome, _) = at_desk!(self, |runner, desk| runner.stream(desk, chunk));
        match outcome {
            Ok(Ok(chunks)) => self.pass(chunks, events),
            Ok(Err(stop)) => {
                events.push_back(Self::stopped(stop));
                return Ok(false);
            }
            Err(cut) => {
                events.extend(self.cut(cut)?);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Tells the stream hooks of the error that ends the run; they cannot hold it back (PROC-063).
    pub(super) async fn tell_stream_hooks(&mut self, error: &ErrorInfo) {
        if self.hooks.runner.has(Hook::OutputStream) {
            let chunk = Chunk::agent(&self.shared.run_id, Payload::Error { error: error.clone() });
            let _ = at_desk!(self, |runner, desk| async {
                runner.tell_stream(desk, &chunk).await;
                Ok::<_, Stop>(())
            });
        }
    }

    /// Shows what a tool wrote as the stream hooks that want data pass it on (PROC-070).
    pub(super) async fn emit_written(
        &mut self,
        tool_call_id: &str,
        chunk: Chunk,
        events: &mut VecDeque<RunEvent>,
    ) -> Result<(), Flow> {
        let chunks = if self.hooks.runner.filters_data() {
            let (outcome, _) = at_desk!(self, |runner, desk| runner.stream(desk, chunk));
            match outcome {
                Ok(Ok(chunks)) => chunks,
                Ok(Err(stop)) => {
                    events.push_back(Self::stopped(stop));
                    return Ok(());
                }
                Err(cut) => {
                    events.extend(self.cut(cut)?);
                    return Ok(());
                }
            }
        } else {
            Chunks::from_iter([chunk])
        };
        for chunk in chunks {
            if let ChunkBody::Data(data) = &chunk.body
                && data.transient != Some(true)
            {
                self.machine.keep_data(tool_call_id, data);
            }
            self.emit(chunk);
        }
        Ok(())
    }

    /// Asks the hooks for what they hold, at the end of a response.
    pub(super) async fn flush_stream(&mut self, events: &mut VecDeque<RunEvent>) -> Result<(), Flow> {
        let (outcome, _) = at_desk!(self, |runner, desk| runner.flush(desk, Flush::Step));
        match outcome {
            Ok(Ok(chunks)) => {
                self.pass(chunks, events);
                events.push_back(RunEvent::StreamPassed);
            }
            Ok(Err(stop)) => events.push_back(Self::stopped(stop)),
            Err(cut) => events.extend(self.cut(cut)?),
        }
        Ok(())
    }

    /// Gives what hooks hold when the run is aborted; it counts as shown (PROC-072).
    pub(super) async fn flush_aborted(&mut self) -> Option<RunEvent> {
        if !self.hooks.runner.has(Hook::OutputStream) {
            return None;
        }
        let (outcome, _) = at_desk!(self, |runner, desk| runner.flush(desk, Flush::Abort));
        let chunks = outcome.ok()?.ok()?;
        if chunks.is_empty() {
            return None;
        }
        let mut events = VecDeque::new();
        self.pass(chunks, &mut events);
        events.pop_front()
    }

    fn pass(&mut self, chunks: Chunks, events: &mut VecDeque<RunEvent>) {
        if chunks.is_empty() {
            return;
        }
        let heard = self.hooks.runner.has(Hook::LlmResponse);
        for chunk in &chunks {
            self.emit(chunk.clone());
            if heard {
                self.hooks.said.extend(chunk.payload().and_then(as_event));
            }
        }
        events.push_back(RunEvent::Passed(chunks.into_vec()));
    }

    // Verdicts.

    /// What processors say of the step: first of the response, then of the step (PROC-002).
    pub(super) async fn judge_step(&mut self) -> Result<Option<RunEvent>, Flow> {
        let verdict = |stop: Stop| {
            RunEvent::StepJudged(match stop {
                Stop::Tripwire(tripwire) => StepVerdict::Stop(tripwire),
                Stop::Failed { error, .. } => StepVerdict::Failed(error),
            })
        };
        if self.hooks.runner.has(Hook::LlmResponse) && !self.hooks.replayed {
            let mut events = std::mem::take(&mut self.hooks.said);
            // Hooks give what they held after the response has ended.
            events.sort_by_key(|event| matches!(event, ModelEvent::Finish { .. }));
            let response = LlmResponse {
                events,
                model: self.hooks.model.clone(),
                warnings: std::mem::take(&mut self.hooks.warnings),
            };
            let (outcome, _) = at_desk!(self, |runner, desk| runner.llm_response(desk, &response));
            match outcome {
                Ok(Ok(())) => {}
                Ok(Err(stop)) => return Ok(Some(verdict(stop))),
                Err(cut) => return self.cut(cut),
            }
        }
        let mut text = None;
        if self.hooks.runner.has(Hook::OutputStep) {
            let now = self.now();
            let mut step = self.machine.output_step(now);
            let before = step.text.clone();
            let (outcome, _) = at_desk!(self, |runner, desk| runner.output_step(desk, &mut step));
            match outcome {
                Ok(Ok(())) => text = (step.text != before).then_some(step.text),
                Ok(Err(stop)) => return Ok(Some(verdict(stop))),
                Err(cut) => return self.cut(cut),
            }
        }
        self.hooks.error_tries = 0;
        Ok(Some(RunEvent::StepJudged(StepVerdict::Pass { text })))
    }

    /// What processors say of the answer.
    pub(super) async fn judge_result(&mut self) -> Result<Option<RunEvent>, Flow> {
        let mut result = self.machine.output_result();
        let (before, messages) = (result.text.clone(), result.messages.clone());
        let (outcome, _) = at_desk!(self, |runner, desk| runner.output_result(desk, &mut result));
        Ok(Some(RunEvent::ResultJudged(match outcome {
            Ok(Ok(())) => ResultVerdict::Pass {
                text: (result.text != before).then_some(result.text),
                object: result.object,
                messages: result.messages.into_iter().filter(|message| !messages.contains(message)).collect(),
            },
            Ok(Err(Stop::Tripwire(tripwire))) => ResultVerdict::Stop(tripwire),
            Ok(Err(Stop::Failed { error, .. })) => ResultVerdict::Failed(error),
            Err(cut) => return self.cut(cut),
        })))
    }
}

fn model_name(entry: &ModelEntry) -> String {
    format!("{}/{}", entry.model.provider(), entry.model.model_id())
}
