//! One run: performs what the run's machine says, as the driver does, one await at a time.

use std::collections::VecDeque;

use serde_json::json;

use super::{
    oracle::End,
    process::now,
    world::{AGENTS, Sabotage, World},
};
use crate::{
    agent::OnStepLimit,
    chunk::{Chunk, ChunkBody, ErrorInfo, FinishReason, Usage},
    id::{MessageId, RunId},
    message::StoredMessage,
    model::ModelEvent,
    run::{
        ParkKind, ParkedCall, Resolution, RunSnapshot,
        commit::Committer,
        give_back,
        interchange::{self, Parking},
        machine::{Ending, ModelName, RunEffect, RunEvent, RunMachine, ToolOutcome, Verdict},
        settings::RunSettings,
        transcript::Transcript,
    },
    scorer::When,
    storage::{Commit, Committed, InboxEntry, RunChange, Storage},
    thread::{Parked, input::Input, machine::ThreadEvent},
    time::Clock,
};

/// What a run starts from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seed {
    Woken,
    Direct,
    Record,
    /// A parked run.
    Resume,
}

/// What the run waits for.
#[derive(Debug)]
enum Blocked {
    No,
    /// It has not begun.
    Preparing,
    Drain,
    Commit(Box<Write>),
    /// It has ended; its thread does not know yet.
    Ended {
        returned: Vec<Input>,
        failed_to_start: bool,
    },
    /// It waits for a person; its thread does not know yet.
    Parked {
        returned: Vec<Input>,
    },
}

#[derive(Debug)]
struct Write {
    commit: Commit,
    messages: Vec<StoredMessage>,
    entries: Vec<InboxEntry>,
    rollback: bool,
    tries: u32,
    /// In the store, whatever the run was told.
    landed: bool,
    /// What the run will be told.
    told: Option<bool>,
}

/// A run at work.
pub(super) struct SimRun {
    pub(super) id: RunId,
    agent: usize,
    seed: Seed,
    machine: Option<RunMachine>,
    committer: Option<Committer>,
    pub(super) in_hand: Vec<Input>,
    events: VecDeque<RunEvent>,
    effects: VecDeque<RunEffect>,
    blocked: Blocked,
    pub(super) aborted: bool,
    abort_seen: bool,
    pub(super) rollback: bool,
    pub(super) nudged: bool,
    /// What the model will say.
    script: VecDeque<RunEvent>,
    /// Calls at work, their ids, and whether a person has let them.
    tools: Vec<(usize, String, bool)>,
    pub(super) resolution: Option<Resolution>,
    cancelling: bool,
    scoring: bool,
    first_drain: bool,
    /// Some input has been placed for good.
    committed: bool,
    /// The thread has been asked for input.
    asked: bool,
    /// Placed by commits the run knows of, and not rolled back.
    placed: Vec<MessageId>,
    echoed: Vec<MessageId>,
    epoch: u64,
    /// The lease went with its last commit.
    released: bool,
}

impl SimRun {
    pub(super) fn new(id: RunId, agent: usize, seed: Seed, (aborted, rollback): (bool, bool), epoch: u64) -> Self {
        Self {
            id,
            agent,
            seed,
            machine: None,
            committer: None,
            in_hand: Vec::new(),
            events: VecDeque::new(),
            effects: VecDeque::new(),
            blocked: Blocked::Preparing,
            aborted,
            abort_seen: false,
            rollback,
            nudged: false,
            script: VecDeque::new(),
            tools: Vec::new(),
            resolution: None,
            cancelling: false,
            scoring: false,
            first_drain: true,
            committed: false,
            asked: false,
            placed: Vec::new(),
            echoed: Vec::new(),
            epoch,
            released: false,
        }
    }

    fn can_go_on(&self) -> bool {
        match &self.blocked {
            Blocked::Preparing | Blocked::Commit(_) | Blocked::Ended { .. } | Blocked::Parked { .. } => true,
            Blocked::Drain => false,
            Blocked::No => {
                !self.effects.is_empty()
                    || !self.events.is_empty()
                    || self.scoring
                    || !self.script.is_empty()
                    || !self.tools.is_empty()
                    || self.nudged
                    || (self.aborted && !self.abort_seen)
            }
        }
    }
}

impl World {
    pub(super) fn run_can_go_on(&self) -> bool {
        self.process.run.as_ref().is_some_and(SimRun::can_go_on)
    }

    /// The run does one thing.
    pub(super) fn run_goes_on(&mut self) {
        let Some(mut run) = self.process.run.take() else { return };
        match std::mem::replace(&mut run.blocked, Blocked::No) {
            Blocked::Preparing => self.prepare(&mut run),
            Blocked::Commit(write) => self.commit_goes_on(&mut run, *write),
            Blocked::Ended { returned, failed_to_start } => {
                self.note(|| format!("{} ends, {} returned, failed {failed_to_start}", run.id, returned.len()));
                if self.sabotage == Sabotage::ForgetEnd && self.rng.chance(20) {
                    return;
                }
                if run.released {
                    self.process.lease_went();
                }
                let event = ThreadEvent::RunEnded { run_id: run.id, returned, failed_to_start };
                return self.feed(event);
            }
            Blocked::Parked { returned } => {
                self.note(|| format!("{} is parked, {} returned", run.id, returned.len()));
                if run.released {
                    self.process.lease_went();
                }
                let parked = Parked {
                    agent_id: AGENTS[run.agent].to_owned(),
                    waiting_for: "approval",
                    since: self.clock.now(),
                    stopped: run.aborted,
                    rollback: run.rollback,
                };
                let event = ThreadEvent::Parked { run_id: run.id, parked, returned };
                return self.feed(event);
            }
            Blocked::Drain => run.blocked = Blocked::Drain,
            Blocked::No => self.run_free(&mut run),
        }
        // A drain is answered before the run is put back: the machine may have answered at once.
        self.process.run = Some(run);
        self.ask_for_input();
    }

    fn prepare(&mut self, run: &mut SimRun) {
        let record = (run.seed == Seed::Record).then(|| now(self.storage.get_run(&run.id)).ok().flatten()).flatten();
        if run.seed == Seed::Record && record.is_none() {
            run.blocked = Blocked::Ended { returned: Vec::new(), failed_to_start: false };
            return;
        }
        let parked = (run.seed == Seed::Resume).then(|| now(self.storage.parked_run(&run.id)).ok().flatten()).flatten();
        if run.seed == Seed::Resume && parked.is_none() {
            // Decided before.
            run.blocked = Blocked::Ended { returned: Vec::new(), failed_to_start: false };
            return;
        }
        if self.rng.chance(self.rates.start_fails) && matches!(run.seed, Seed::Woken | Seed::Direct) {
            self.note(|| format!("{} fails to start", run.id));
            run.blocked = Blocked::Ended { returned: Vec::new(), failed_to_start: run.seed == Seed::Woken };
            return;
        }
        let settings = RunSettings {
            run_id: run.id.clone(),
            agent_id: AGENTS[run.agent].to_owned(),
            max_steps: 1 + self.rng.below(4) as u32,
            stop_when: Vec::new(),
            on_step_limit: if self.rng.chance(30) { OnStepLimit::FollowUp } else { OnStepLimit::Save },
            interruptible: self.rng.chance(80),
            agent_name: "a".to_owned(),
            given_steps: None,
            hard_steps: 25,
            has_iteration_hook: false,
            completion: self.rng.chance(15).then(|| if self.rng.chance(30) { When::Iteration } else { When::Stop }),
            structured_output: None,
            stores: true,
            judges: Default::default(),
            stored_options: serde_json::Value::Null,
        };
        let history = now(self.storage.recent_messages(&self.key, 100_000)).unwrap_or_default();
        let key = Some(self.key.clone());
        let machine = match (record, parked) {
            (_, Some(parked)) => {
                let Ok(found) = interchange::read(&parked) else {
                    return self.oracle.fault("a parked run cannot be read");
                };
                let (snapshot, known) = (found.snapshot, found.known);
                let (Some(step), Some(resolution)) = (snapshot.step.clone(), run.resolution.take()) else {
                    return self.oracle.fault("a parked run has no step");
                };
                let transcript = Transcript::restored(history, &snapshot.kept, key, &snapshot.own, &step.message_id);
                run.first_drain = false;
                RunMachine::resumed(settings, transcript, &snapshot, &step, resolution, known)
            }
            (Some(record), None) => {
                let Ok(snapshot) = serde_json::from_value::<RunSnapshot>(record.snapshot) else {
                    return self.oracle.fault("a snapshot cannot be read");
                };
                let open = snapshot.step.as_ref().map_or(&snapshot.message_id, |step| &step.message_id);
                let transcript = Transcript::restored(history, &snapshot.kept, key, &snapshot.own, open);
                RunMachine::recovered(settings, transcript, &snapshot)
            }
            (None, None) => RunMachine::new(settings, Transcript::new(history, key), MessageId::fresh()),
        };
        run.machine = Some(machine);
        run.committer = Some(Committer::simulated(
            self.storage.clone(),
            self.clock.clone(),
            (self.key.clone(), run.epoch),
            (run.id.clone(), AGENTS[run.agent].to_owned()),
            run.seed != Seed::Direct,
        ));
        run.events.push_back(RunEvent::Begun);
    }

    /// The run waits for nothing.
    fn run_free(&mut self, run: &mut SimRun) {
        if let Some(effect) = run.effects.pop_front() {
            return self.run_performs(run, effect);
        }
        if run.scoring {
            run.scoring = false;
            if !run.aborted {
                let passed = self.rng.chance(60);
                let feedback = (!passed).then(|| "go on".to_owned());
                run.events.push_back(RunEvent::Scored(Verdict {
                    passed,
                    payload: Default::default(),
                    feedback,
                    suppress_feedback: self.rng.chance(30),
                }));
            }
            return;
        }
        if let Some(event) = run.events.pop_front() {
            let event = if run.aborted && !run.abort_seen {
                run.abort_seen = true;
                run.events.push_front(event);
                RunEvent::Abort
            } else {
                event
            };
            self.note(|| format!("  {}: {}", run.id, brief_event(&event)));
            let at = self.clock.now();
            if let Some(machine) = &mut run.machine {
                run.effects.extend(machine.apply(event, at));
            }
            return;
        }
        // What comes from outside, in any order.
        let mut can = Vec::with_capacity(4);
        if run.aborted && !run.abort_seen {
            can.push(0);
        }
        if run.nudged {
            can.push(1);
        }
        if !run.script.is_empty() {
            can.push(2);
        }
        if !run.tools.is_empty() {
            can.push(3);
        }
        if can.is_empty() {
            return;
        }
        match *self.rng.pick(&can) {
            0 => {
                run.abort_seen = true;
                run.events.push_back(RunEvent::Abort);
            }
            1 => {
                run.nudged = false;
                run.events.push_back(RunEvent::InputWaits);
            }
            2 => run.events.extend(run.script.pop_front()),
            _ => {
                let at = self.rng.below(run.tools.len());
                let (index, id, allowed) = run.tools.remove(at);
                let parks = !allowed && self.rng.chance(self.rates.parks);
                let outcome = match self.rng.below(10) {
                    _ if run.cancelling && self.rng.chance(50) => ToolOutcome::Interrupted,
                    _ if parks => ToolOutcome::Parked(Box::new(ParkedCall {
                        tool_call_id: id.clone(),
                        tool_name: "tool".into(),
                        args: json!({}),
                        kind: ParkKind::Approval,
                        resume_schema: None,
                        delegated: None,
                    })),
                    0 => ToolOutcome::Failed(ErrorInfo::new("Error", "the tool failed")),
                    1 if self.rates.model_fails > 0 => ToolOutcome::Client,
                    _ => ToolOutcome::Result { value: json!("done"), is_error: false, model_output: None },
                };
                if matches!(outcome, ToolOutcome::Result { .. } | ToolOutcome::Failed(_)) {
                    // Every call runs once at most (LOOP-116, LOOP-255).
                    let times = self.oracle.ran(&run.id, &id);
                    if times > 1 {
                        let text = format!("call {id} of {} ran {times} times", run.id);
                        self.oracle.fault(text);
                    }
                }
                run.events.push_back(RunEvent::ToolDone { index, outcome });
            }
        }
    }

    fn run_performs(&mut self, run: &mut SimRun, effect: RunEffect) {
        match effect {
            RunEffect::Drain => {
                self.note(|| format!("  {} asks for input", run.id));
                run.blocked = Blocked::Drain;
            }
            RunEffect::Commit => self.begin_commit(run),
            RunEffect::Emit(chunk) => self.emit(run, &chunk),
            RunEffect::Request => self.request(run),
            RunEffect::CancelRequest => run.script.clear(),
            RunEffect::RunTools(runs) => {
                run.tools = runs.into_iter().map(|tool| (tool.index, tool.id, tool.resume.is_some())).collect();
            }
            RunEffect::CancelTools => run.cancelling = true,
            RunEffect::Score(_) => run.scoring = true,
            RunEffect::IterationEnded(_) => unreachable!("simulated runs have no such hook"),
            RunEffect::StepEnded(_) => {}
            // The simulation runs no processors.
            RunEffect::Filter(_) | RunEffect::FlushStream | RunEffect::JudgeStep | RunEffect::JudgeResult => {}
            RunEffect::End(ending) => self.end(run, ending),
        }
    }

    // Input.

    /// Asks the thread for what waits; it may answer at once or later.
    fn ask_for_input(&mut self) {
        let Some(run) = &mut self.process.run else { return };
        if !matches!(run.blocked, Blocked::Drain) {
            return;
        }
        if run.asked {
            return;
        }
        run.asked = true;
        let stopping = run.aborted;
        let run_id = run.id.clone();
        let ticket = self.process.drain_ticket();
        self.feed(ThreadEvent::Drain { run_id, stopping, ticket });
    }

    pub(super) fn run_drained(&mut self, inputs: Vec<Input>) {
        let Some(run) = &mut self.process.run else {
            if !inputs.is_empty() {
                self.oracle.fault("input is given to a run that is gone");
            }
            return;
        };
        if !matches!(run.blocked, Blocked::Drain) {
            return;
        }
        run.blocked = Blocked::No;
        run.asked = false;
        let entries: Vec<InboxEntry> = inputs.iter().map(|input| input.entry.clone()).collect();
        run.in_hand.extend(inputs);
        let first = std::mem::replace(&mut run.first_drain, false);
        let (id, direct) = (run.id.clone(), run.seed == Seed::Direct);
        let messages = if first && direct { vec![self.plain_message(&id)] } else { Vec::new() };
        if let Some(run) = &mut self.process.run {
            run.events.push_back(RunEvent::Drained { inputs: entries, rejected: Vec::new(), messages });
        }
    }

    // Writes.

    fn begin_commit(&mut self, run: &mut SimRun) {
        let (Some(machine), Some(committer)) = (&mut run.machine, &mut run.committer) else { return };
        let (messages, entries) = machine.take_commit();
        let rollback = run.rollback && machine.is_stopping();
        if rollback {
            machine.drop_echoes();
        }
        let claims = machine.has_to_claim();
        let commit = if rollback {
            {
                let placed = (machine.wake().cloned(), machine.joined().cloned().collect());
                committer.rollback_commit(machine.transcript().own_ids(), placed, (1, claims))
            }
        } else if machine.is_ending() {
            committer.end_commit(&messages, &entries, (1, claims))
        } else if machine.is_parking() {
            let parking = Parking {
                run_id: &run.id,
                agent_id: AGENTS[run.agent],
                thread: Some(&self.key),
                messages: machine.transcript().messages(),
                snapshot: machine.snapshot(),
                now: self.clock.now(),
            };
            committer.park_commit(&messages, interchange::write(parking), 1)
        } else if claims {
            committer.claim_commit(&messages, &machine.snapshot())
        } else {
            committer.step_commit(&messages, &entries, &machine.snapshot())
        };
        if claims && self.sabotage == Sabotage::ForgetClaim && !machine.is_ending() {
            machine.claimed();
            run.events.push_back(RunEvent::Committed);
            return;
        }
        match commit {
            Some(mut commit) => {
                commit.release = commit.release.map(|_| self.process.owner.clone());
                let write = Write { commit, messages, entries, rollback, tries: 0, landed: false, told: None };
                run.blocked = Blocked::Commit(Box::new(write));
            }
            None => run.events.push_back(RunEvent::Committed),
        }
    }

    fn commit_goes_on(&mut self, run: &mut SimRun, mut write: Write) {
        if let Some(told) = write.told {
            return self.committed(run, write, told);
        }
        // Writes that park or claim are told apart by their rows; here they do not fail.
        let sure =
            matches!(write.commit.run, RunChange::Park { .. } | RunChange::Resume(_) | RunChange::Discard { .. });
        let fails = !sure && self.rng.chance(self.rates.commit_fails);
        if !fails || self.rng.chance(30) {
            match now(self.storage.commit(write.commit.clone())) {
                Ok(Committed { released }) => {
                    run.released |= released;
                    write.landed = true;
                    self.landed(run, &write);
                }
                Err(error) => {
                    self.oracle.fault(format!("the store refuses a commit of {}: {error}", run.id));
                    return;
                }
            }
        }
        write.tries += 1;
        if !fails {
            write.told = Some(true);
        } else if write.tries > 3 {
            write.told = Some(false);
        }
        self.note(|| format!("  {} writes: landed {}, told {:?}", run.id, write.landed, write.told));
        run.blocked = Blocked::Commit(Box::new(write));
    }

    /// The store holds what was written.
    fn landed(&mut self, run: &SimRun, write: &Write) {
        if write.rollback {
            if run.seed == Seed::Resume {
                // While it waited, runs beside it may have taken in later input (SIG-108).
                for id in self.oracle.run(&run.id).placed.clone() {
                    self.record(&id).jumps = true;
                }
            }
            return self.oracle.rolled_back(&run.id);
        }
        self.oracle.place(&run.id, &write.commit.consumed);
        if matches!(write.commit.run, RunChange::End { .. } | RunChange::Discard { .. }) {
            self.oracle.run(&run.id).end_landed = true;
        }
    }

    fn committed(&mut self, run: &mut SimRun, write: Write, told: bool) {
        let (Some(machine), Some(committer)) = (&mut run.machine, &mut run.committer) else { return };
        if told {
            if matches!(write.commit.run, RunChange::Resume(_) | RunChange::Discard { .. }) {
                machine.claimed();
                run.committed = true;
            }
            committer.written();
            run.committed |= !write.entries.is_empty();
            if write.rollback {
                give_back(machine, &mut run.in_hand);
                run.placed.clear();
                run.echoed.clear();
            } else {
                let placed = write.entries.iter().map(|entry| entry.signal.id.clone());
                run.placed.extend(placed);
                run.in_hand.retain(|input| !write.entries.iter().any(|entry| entry.signal.id == *input.id()));
            }
            run.events.push_back(RunEvent::Committed);
            return;
        }
        if write.landed {
            for entry in &write.entries {
                self.oracle.inputs.entry(entry.signal.id.clone()).or_default().unclear = true;
            }
        }
        let note = self.oracle.run(&run.id);
        note.write_failed = true;
        machine.restore_commit(&write.messages, write.entries);
        run.events.push_back(RunEvent::CommitFailed(ErrorInfo::new("StorageError", "the store is away")));
    }

    // What is shown, and the model.

    fn emit(&mut self, run: &mut SimRun, chunk: &Chunk) {
        let ChunkBody::Data(data) = &chunk.body else { return };
        if !matches!(data.kind.as_str(), "data-user-message" | "data-signal") || self.sabotage == Sabotage::HideEcho {
            return;
        }
        let id = data.data["id"].as_str().unwrap_or_default();
        self.note(|| format!("  {} echoes {id}", run.id));
        run.echoed.push(id.into());
    }

    fn request(&mut self, run: &mut SimRun) {
        let Some(machine) = &run.machine else { return };
        let mut read: Vec<MessageId> = Vec::new();
        for message in machine.transcript().messages() {
            if self.oracle.inputs.contains_key(&message.id) {
                read.push(message.id.clone());
            }
        }
        let count = read.len();
        let note = self.oracle.run(&run.id);
        note.read.extend(read.iter().cloned());
        read.sort_unstable();
        read.dedup();
        if read.len() != count {
            self.oracle.fault(format!("a prompt of {} holds an input twice", run.id));
        }
        if let Some(unread) = run.placed.iter().find(|id| read.binary_search(id).is_err()) {
            self.oracle.fault(format!("a prompt of {} lacks {unread}, which the run has placed", run.id));
        }
        run.script = self.script();
        run.cancelling = false;
    }

    /// What the model says next.
    fn script(&mut self) -> VecDeque<RunEvent> {
        let mut script = VecDeque::new();
        let failed = || RunEvent::ModelFailed(ErrorInfo::new("AI_APICallError", "the model failed"));
        let fails = self.rng.chance(self.rates.model_fails);
        if fails && self.rng.chance(30) {
            script.push_back(failed());
            return script;
        }
        script.push_back(RunEvent::Answered { model: ModelName::default(), warnings: Vec::new() });
        let mut say = |event| script.push_back(RunEvent::Model(event));
        if self.rng.chance(50) {
            say(ModelEvent::ReasoningStart { id: "r".into(), provider_metadata: None });
            say(ModelEvent::ReasoningDelta { id: "r".into(), text: "hm".into() });
            if self.rng.chance(70) {
                say(ModelEvent::ReasoningEnd { id: "r".into(), provider_metadata: None });
            }
        }
        if self.rng.chance(70) {
            say(ModelEvent::TextDelta { id: "t".into(), text: "an answer".into() });
        }
        let calls = if self.rng.chance(30) { 1 + self.rng.below(3) } else { 0 };
        for call in 0..calls {
            say(ModelEvent::ToolCall {
                id: format!("call-{call}"),
                name: "tool".into(),
                input: "{}".into(),
                provider_executed: false,
                provider_metadata: None,
            });
        }
        if fails {
            script.push_back(failed());
            return script;
        }
        let reason = match self.rng.below(12) {
            0 => FinishReason::Length,
            1 => FinishReason::Other,
            2 => FinishReason::ToolCalls,
            _ if calls > 0 => FinishReason::ToolCalls,
            _ => FinishReason::Stop,
        };
        let usage = Usage::default();
        say(ModelEvent::Finish { reason, raw_reason: None, usage, provider_metadata: None });
        script
    }

    // The end.

    fn end(&mut self, run: &mut SimRun, ending: Ending) {
        self.note(|| format!("  {} is over: {ending:?}", run.id));
        run.effects.clear();
        run.script.clear();
        run.tools.clear();
        let Some(machine) = &run.machine else { return };
        let unanswered = machine.finish(None).unanswered_signal_ids;
        let returned = std::mem::take(&mut run.in_hand);
        let failed_to_start = !returned.is_empty() && !run.committed;
        let note = self.oracle.run(&run.id);
        note.unanswered.extend(unanswered);
        let stored = note.end_landed;
        let end = match &ending {
            Ending::Finished if stored => End::Finished,
            Ending::Finished => End::FinishedUnstored,
            Ending::Failed(_) | Ending::Tripped(_) => End::Failed,
            Ending::Aborted if note.rolled_back => End::RolledBack,
            Ending::Aborted => End::Aborted,
            Ending::Parked => {
                run.placed.clear();
                run.echoed.clear();
                run.blocked = Blocked::Parked { returned };
                return;
            }
        };
        note.ends.push(end);
        // SIG-454: what is placed is shown, once.
        let (mut placed, mut echoed) = (std::mem::take(&mut run.placed), std::mem::take(&mut run.echoed));
        placed.sort_unstable();
        echoed.sort_unstable();
        if placed != echoed {
            let id = run.id.clone();
            self.oracle.fault(format!("{id} has placed {placed:?} and echoed {echoed:?} (SIG-454)"));
        }
        run.blocked = Blocked::Ended { returned, failed_to_start };
    }
}

fn brief_event(event: &RunEvent) -> String {
    match event {
        RunEvent::Drained { inputs, .. } => {
            let ids: Vec<&MessageId> = inputs.iter().map(|entry| &entry.signal.id).collect();
            format!("drained {ids:?}")
        }
        RunEvent::Model(event) => format!("{event:?}").chars().take(40).collect(),
        other => format!("{other:?}").chars().take(90).collect(),
    }
}
