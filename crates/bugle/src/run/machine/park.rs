//! Parking: the run waits for a person, and goes on with a decision (LOOP §7).

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;
use crate::{
    chunk::{FinishReason, ResponseMetadata, TripwirePayload},
    id::RunId,
    json::{Object, Value, json},
    run::{
        Decision, ParkKind, ParkedStep, RunOutput, StepCall, StepCallState,
        parked::{DelegatedResume, ParkedOutput},
    },
};

/// Why an open call of an aborted run has no result.
pub(super) const CLOSED_BY_ABORT: &str = "The run was aborted before this call was decided";
/// Why an open call of a run that was given up has no result.
const DISCARDED: &str = "discarded: the run was given up before this call was decided";

const APPROVALS: &str = "pendingToolApprovals";
const SUSPENSIONS: &str = "suspendedTools";

impl RunMachine {
    /// A parked run that is gone on with, stopped or given up. `known` are outcomes that the conversation does not hold yet.
    pub(crate) fn resumed(
        settings: RunSettings,
        transcript: Transcript,
        snapshot: &RunSnapshot,
        step: &ParkedStep,
        resolution: Resolution,
        known: Vec<(String, ToolOutcome)>,
    ) -> Self {
        let mut machine = Self::restored(settings, transcript, snapshot, step);
        for (id, outcome) in known {
            if let Some(at) = machine.calls.iter().position(|state| state.call.id == id) {
                machine.settle(at, outcome);
            }
        }
        // What was parked is one message, what follows another (LOOP-111).
        machine.transcript.seal();
        machine.message_id = MessageId::fresh();
        machine.resolution = Some(resolution);
        machine
    }

    /// Takes in a message that came with the decision, before the claim, which makes it durable (ruling 6). One that a guard
    /// refused is kept for people and from models (ruling 34).
    pub(crate) fn add_pending(&mut self, mut message: StoredMessage, refused: Option<&TripwirePayload>) {
        if let Some(tripwire) = refused {
            let data = json!({ "id": message.id, "reason": tripwire.reason });
            let chunk = Chunk::transient_data(&self.settings.run_id, "data-signal-rejected", data);
            self.refusals.push(chunk);
            mark_blocked(&mut message, tripwire);
        }
        self.transcript.add_input(message);
    }

    /// A run in the step that was parked.
    pub(super) fn restored(
        settings: RunSettings,
        transcript: Transcript,
        snapshot: &RunSnapshot,
        step: &ParkedStep,
    ) -> Self {
        let mut machine = Self::new(settings, transcript, snapshot.message_id.clone());
        machine.take_over(snapshot);
        if machine.earlier_text.ends_with(&step.text) {
            // The step's own text is its response's.
            let before = machine.earlier_text.len() - step.text.len();
            machine.earlier_text.truncate(before);
        }
        machine.recoveries = (snapshot.recoveries, machine.step_count());
        machine.call_message_id = step.message_id.clone();
        machine.started = true;
        machine.step_started = true;
        machine.step_resumed = true;
        machine.response = Response::restored(step);
        let (provider, model) = step.model.clone();
        machine.model = ModelName { provider, model };
        let calls: Vec<Call> = machine.response.calls().cloned().collect();
        for (call, stored) in calls.into_iter().zip(&step.calls) {
            let mut state = CallState::new(call);
            state.outcome = match &stored.state {
                StepCallState::Open => None,
                StepCallState::Client => Some(ToolOutcome::Client),
                StepCallState::Parked(parked) => Some(ToolOutcome::Parked(parked.clone())),
                StepCallState::Done => {
                    state.shown = true;
                    Some(machine.stored_outcome(&stored.tool_call_id))
                }
            };
            machine.calls.push(state);
        }
        machine
    }

    /// The outcome of a call as the conversation has it.
    fn stored_outcome(&self, id: &str) -> ToolOutcome {
        let parts = self.transcript.messages().iter().rev().flat_map(|message| &message.content.parts);
        let part = parts.into_iter().find_map(|part| match part {
            Part::ToolInvocation(call) if call.tool_invocation.tool_call_id == id => Some(call),
            _ => None,
        });
        let gone = || ToolOutcome::Failed(ErrorInfo::new("Error", "the result of this call is not stored any more"));
        let Some(part) = part else { return gone() };
        let call = &part.tool_invocation;
        match call.state {
            ToolState::Result => {
                let metadata = part.provider_metadata.as_ref();
                let output = metadata.and_then(|metadata| metadata.get("mastra")?.get("modelOutput"));
                ToolOutcome::Result {
                    value: call.result.clone().unwrap_or_default(),
                    is_error: call.is_error == Some(true),
                    model_output: output.and_then(|output| serde_json::from_value(output.clone()).ok()),
                }
            }
            ToolState::OutputError => {
                let text = call.error_text.clone().unwrap_or_default();
                ToolOutcome::Failed(ErrorInfo::new("Error", text))
            }
            ToolState::OutputDenied => {
                let reason = call.approval.as_ref().and_then(|approval| approval.get("reason")?.as_str());
                ToolOutcome::Denied { reason: reason.unwrap_or_default().to_owned() }
            }
            _ => gone(),
        }
    }

    /// Whether a call of the step waits for a person.
    pub(super) fn waits_for_people(&self) -> bool {
        self.calls.iter().any(|state| state.parked().is_some())
    }

    /// The calls that wait, in order.
    pub(crate) fn parked_calls(&self) -> impl Iterator<Item = &ParkedCall> {
        self.calls.iter().filter_map(CallState::parked)
    }

    /// Whether the commit under way parks the run.
    pub(crate) fn is_parking(&self) -> bool {
        matches!(self.phase, Phase::Committing(AfterCommit::Park))
    }

    /// Whether the run was parked, and this process has not made it its own yet.
    pub(crate) fn has_to_claim(&self) -> bool {
        self.resolution.is_some()
    }

    /// The claim is durable.
    pub(crate) fn claimed(&mut self) {
        self.resolution = None;
    }

    /// All calls of the step that can run have: what is left waits (LOOP-095). It is made durable before it is said
    /// (LOOP-097).
    pub(super) fn park(&mut self, effects: &mut Effects) {
        for state in &mut self.calls {
            if matches!(state.outcome, Some(ToolOutcome::NotStarted)) {
                state.outcome = None;
            }
        }
        if !self.step_resumed {
            self.call_message_id = self.message_id.clone();
        }
        self.phase = Phase::Committing(AfterCommit::Park);
        effects.push(RunEffect::Commit);
    }

    /// The run is parked: what is known of the step is shown (LOOP-096), then what is waited for; the last chunk is the
    /// driver's to show, since it ends the stream (HTTP-100).
    pub(super) fn parked(&mut self, effects: &mut Effects) {
        self.show_results(effects);
        let mut chunks = self.park_payloads();
        chunks.pop();
        for payload in chunks {
            effects.push(self.chunk(payload));
        }
        self.phase = Phase::Done;
        effects.push(RunEffect::End(Ending::Parked));
    }

    /// How many chunks follow the commit that parks.
    pub(super) fn park_chunk_count(&self) -> u64 {
        let results = self.calls.iter().filter(|state| !state.shown && state.result().is_some()).count();
        (results + self.parked_calls().count()) as u64
    }

    /// The last chunk of a parked run.
    pub(crate) fn last_park_chunk(&self) -> Option<Chunk> {
        self.park_payloads().pop().map(|payload| Chunk::agent(&self.settings.run_id, payload))
    }

    fn park_payloads(&self) -> Vec<Payload> {
        self.parked_calls().map(payload_of).collect()
    }

    /// The step as the next process needs it.
    pub(super) fn parked_step(&self) -> ParkedStep {
        let finish = self.response.finish.as_ref();
        let message_id = if self.step_resumed { self.call_message_id.clone() } else { self.message_id.clone() };
        ParkedStep {
            message_id,
            calls: self.calls.iter().map(CallState::stored).collect(),
            reason: finish.map_or(FinishReason::ToolCalls, |finish| finish.reason),
            raw_reason: finish.and_then(|finish| finish.raw_reason.clone()),
            usage: finish.map(|finish| finish.usage.clone()).unwrap_or_default(),
            text: self.response.text(),
            model: (self.model.provider.clone(), self.model.model.clone()),
            metadata: ResponseMetadata { provider_metadata: None, ..self.response.metadata.clone() },
            warnings: self.response.warnings.clone(),
        }
    }

    /// Goes on with a parked run, as was decided. Nothing runs before the claim is durable (LOOP-116).
    pub(super) fn go_on_parked(&mut self, now: Timestamp, effects: &mut Effects) {
        match self.resolution.clone() {
            Some(Resolution::Decide(decision)) => {
                self.decide(&decision);
                self.phase = Phase::Committing(AfterCommit::RunTools);
                effects.push(RunEffect::Commit);
            }
            Some(Resolution::Discard) => {
                self.close_with(|| ToolOutcome::Failed(ErrorInfo::new("Error", DISCARDED)));
                self.end_aborted(now, effects);
            }
            Some(Resolution::Abort) | None => {
                let denied = || ToolOutcome::Denied { reason: CLOSED_BY_ABORT.to_owned() };
                self.close_with(denied);
                self.end_aborted(now, effects);
            }
        }
    }

    /// Takes in a person's decision, which was found to be about a call that waits.
    fn decide(&mut self, decision: &Decision) {
        let Ok((call, below)) =
            self.parked_step().find(&self.settings.run_id, decision).map(|(call, below)| (call.clone(), below))
        else {
            return;
        };
        let Some(at) = self.calls.iter().position(|state| state.call.id == call.tool_call_id) else { return };
        self.forget_pending(&call.tool_call_id);
        let state = &mut self.calls[at];
        state.outcome = None;
        match (call.delegated, call.kind) {
            (Some(parked), _) => {
                let resume = DelegatedResume { parked: *parked, decision: below };
                state.resume = Some(ToolResume::Delegated(Box::new(resume)));
            }
            (None, ParkKind::Approval) if decision.is_approval() => state.resume = Some(ToolResume::Approved),
            (None, ParkKind::Approval) => {
                self.settle(at, ToolOutcome::Denied { reason: decision.reason() });
            }
            (None, ParkKind::Suspension { .. }) => {
                state.resume = Some(ToolResume::Data(decision.data.clone()));
            }
        }
    }

    /// A call that has not been started stays behind the ones before it that still wait (LOOP-095).
    pub(super) fn hold_back(&mut self) {
        let mut behind = false;
        for state in &mut self.calls {
            behind |= state.parked().is_some();
            if behind && state.outcome.is_none() && state.resume.is_none() {
                state.outcome = Some(ToolOutcome::NotStarted);
            }
        }
    }

    /// Says what was refused of the decision's messages, and that delegations go on, so that a prompt for them can be
    /// cleared at once (SUB-133).
    pub(super) fn acknowledge(&mut self, effects: &mut Effects) {
        effects.extend(self.refusals.drain(..).map(RunEffect::Emit));
        for state in &self.calls {
            if let (Some(ToolResume::Delegated(_)), None) = (&state.resume, &state.outcome) {
                let data = json!({ "toolCallId": state.call.id, "runId": self.settings.run_id });
                let chunk = Chunk::transient_data(&self.settings.run_id, "data-tool-call-resumed", data);
                effects.push(RunEffect::Emit(chunk));
            }
        }
    }

    /// The calls of an aborted run that wait, and those behind them: the conversation stays one in which every call of
    /// a parked step has an answer (SIG-310).
    pub(super) fn close_parked(&mut self, reason: &str, effects: &mut Effects) {
        if self.step_resumed || self.waits_for_people() {
            self.close_with(|| ToolOutcome::Denied { reason: reason.to_owned() });
            self.show_results(effects);
        }
    }

    fn close_with(&mut self, outcome: impl Fn() -> ToolOutcome) {
        for at in 0..self.calls.len() {
            let state = &self.calls[at];
            let parked = state.parked().is_some();
            let started = state.resume.is_some() && !parked;
            if parked {
                let id = state.call.id.clone();
                self.forget_pending(&id);
            }
            // One that was started and cut off stays a call (LOOP-135).
            let open = matches!(&self.calls[at].outcome, None | Some(ToolOutcome::NotStarted)) && !started;
            if parked || open {
                self.settle(at, outcome());
            }
        }
    }

    /// A call is decided: it is pending no more (LOOP-113).
    fn forget_pending(&mut self, id: &str) {
        let Some(message) = self.transcript.with_call(id) else { return };
        let Some(metadata) = message.content.metadata.as_mut() else { return };
        for key in [APPROVALS, SUSPENSIONS] {
            let emptied = metadata.get_mut(key).and_then(Value::as_object_mut).is_some_and(|pending| {
                pending.shift_remove(id);
                pending.is_empty()
            });
            if emptied {
                metadata.shift_remove(key);
            }
        }
    }

    /// The settled result of a run that waits (LOOP-094).
    pub(super) fn parked_output(&self) -> RunOutput {
        let first = self.parked_calls().next();
        let mut output = RunOutput {
            finish_reason: FinishReason::Suspended,
            ..RunOutput::failed(self.settings.run_id.clone(), ErrorInfo::new("", ""))
        };
        output.error = None;
        output.message_id = self.call_message_id.clone();
        output.suspend_payload = first.map(suspend_payload);
        output.resume_schema = first.map(|call| call.schema_text().to_owned());
        output.parked_calls = self
            .response
            .calls()
            .map(|call| Chunk::agent(&self.settings.run_id, Payload::ToolCall(call.payload())))
            .collect();
        output.response_messages = self.transcript.answers();
        output.messages = self.transcript.own();
        output.remembered_messages = self.transcript.remembered();
        output.consumed_signal_ids = self.consumed.clone();
        output
    }

    /// What the parked run leaves to the run that started it.
    pub(crate) fn parked_for_parent(&self) -> ParkedOutput {
        let snapshot = RunSnapshot {
            phase: SnapshotPhase::Parked,
            step: Some(self.parked_step()),
            kept: self.transcript.kept(true),
            ..self.snapshot()
        };
        ParkedOutput { snapshot, calls: self.parked_calls().cloned().collect() }
    }
}

impl CallState {
    fn stored(&self) -> StepCall {
        let state = match &self.outcome {
            None | Some(ToolOutcome::NotStarted | ToolOutcome::Interrupted) => StepCallState::Open,
            Some(ToolOutcome::Client) => StepCallState::Client,
            Some(ToolOutcome::Parked(parked)) => StepCallState::Parked(parked.clone()),
            Some(
                ToolOutcome::Result { .. }
                | ToolOutcome::Failed(_)
                | ToolOutcome::FailedAs { .. }
                | ToolOutcome::Denied { .. },
            ) => StepCallState::Done,
        };
        StepCall {
            tool_call_id: self.call.id.clone(),
            tool_name: self.call.name.clone(),
            args: self.call.args.clone(),
            state,
        }
    }
}

/// Notes in the message of a call that it waits, as clients read it after a reload (LOOP-092, HTTP-109).
pub(super) fn note_pending(message: &mut StoredMessage, call: &ParkedCall, run_id: &RunId) {
    let (tool_name, args) = call.shown();
    let approval = call.kind.is_approval();
    let mut entry = Object::new();
    entry.insert("toolCallId".to_owned(), call.tool_call_id.clone().into());
    entry.insert("toolName".to_owned(), tool_name.into());
    entry.insert("args".to_owned(), args.clone());
    if let Some(delegated) = &call.delegated {
        entry.insert("parentToolName".to_owned(), call.tool_name.clone().into());
        entry.insert("parentArgs".to_owned(), call.args.clone());
        entry.insert("delegatedRunId".to_owned(), delegated.run_id.as_str().into());
    }
    entry.insert("type".to_owned(), if approval { "approval" } else { "suspension" }.into());
    entry.insert("runId".to_owned(), run_id.as_str().into());
    if let ParkKind::Suspension { payload } = &call.kind {
        entry.insert("suspendPayload".to_owned(), payload.clone());
    }
    entry.insert("resumeSchema".to_owned(), call.schema_text().into());
    let key = if approval { APPROVALS } else { SUSPENSIONS };
    let pending = message.content.metadata_mut().entry(key.to_owned()).or_insert_with(|| json!({}));
    if let Value::Object(pending) = pending {
        pending.insert(call.tool_call_id.clone(), Value::Object(entry));
    }
}

/// The chunk that says what is waited for (LOOP-091).
fn payload_of(call: &ParkedCall) -> Payload {
    let (tool_name, args) = call.shown();
    let (tool_call_id, tool_name, args) = (call.tool_call_id.clone(), tool_name.to_owned(), args.clone());
    let resume_schema = call.schema_text().to_owned();
    match &call.kind {
        ParkKind::Approval => Payload::ToolCallApproval { tool_call_id, tool_name, args, resume_schema },
        ParkKind::Suspension { payload } => Payload::ToolCallSuspended {
            tool_call_id,
            tool_name,
            args,
            suspend_payload: payload.clone(),
            resume_schema,
        },
    }
}

/// What `generate` says of a call that waits (HTTP-045).
fn suspend_payload(call: &ParkedCall) -> Value {
    let (tool_name, args) = call.shown();
    match &call.kind {
        ParkKind::Approval => json!({
            "toolCallId": call.tool_call_id, "toolName": tool_name, "args": args, "resumeSchema": call.schema_text(),
        }),
        ParkKind::Suspension { payload } => payload.clone(),
    }
}
