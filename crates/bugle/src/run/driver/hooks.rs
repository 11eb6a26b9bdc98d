//! Where processors have their say: of events on their way to the machine, of failures, steps and results (PROC §1).

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;
use crate::{
    chunk::TripwirePayload,
    model::ModelEvent,
    processor::{ApiFailure, Flush, Hook, LlmResponse, Recovery, Stop, ToolResult},
    run::{
        machine::{ResultVerdict, StepVerdict},
        settings::Judges,
    },
    signal::LaneBook,
};

/// What of the driver only runs with processors need.
pub(super) struct Hooks {
    pub(super) runner: Runner,
    /// The lanes of the run's thread; without memory or thread there are none.
    pub(super) lanes: Option<LaneBook>,
    /// The tools of the step under way.
    pub(super) tools: Arc<ToolTable>,
    /// `tools` is what this process made for a step; a parked step begins without (PROC-040).
    pub(super) shaped: bool,
    /// What hooks do to the run has no effect: only the tools they shape are wanted.
    pub(super) muted: bool,
    /// What the model has said in the response under way; with stream hooks, what they passed on.
    pub(super) said: Vec<ModelEvent>,
    pub(super) warnings: Vec<Value>,
    pub(super) model: String,
    /// The response under way comes from a processor.
    pub(super) replayed: bool,
    /// Failed requests that were tried again since a step was accepted.
    pub(super) error_tries: u32,
    /// Lanes that fell out of view were put back.
    pub(super) put_back: bool,
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

impl Driver {
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
