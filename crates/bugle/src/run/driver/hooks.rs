//! Where processors have their say on events before the machine hears of them: results of tools, failed requests, an
//! abort; and the machine's questions, what becomes of a step and of the answer (PROC §1). What else they do: `placing`
//! (input), `asking` (requests), `lanes` (state), `stream` (chunks).

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;
use crate::{
    chunk::TripwirePayload,
    model::{ModelEvent, ToolOutput},
    processor::{ApiFailure, Flush, Hook, LlmResponse, Recovery, Stop, ToolResult},
    run::{
        StepSummary,
        machine::{ResultVerdict, StepVerdict},
        settings::Judges,
    },
    signal::LaneBook,
};

/// The processors of the run, and what the driver keeps for them. `tools` and `put_back` serve runs without any, too.
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
    /// Failed requests that were tried again since a step was accepted (PROC-061).
    error_tries: u32,
    /// Tool results that were asked for again, in as many steps in a row (PROC-055 c).
    pub(super) tool_tries: u32,
    /// A result of the step under way was.
    asked_again: bool,
    /// What the step's hooks are told of retries, if not what the machine counts.
    pub(super) retry_count: Option<u32>,
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
            tool_tries: 0,
            asked_again: false,
            retry_count: None,
            put_back: !prepared.history_cut,
            abort_flushed: false,
        }
    }

    /// A step is over. One that was accepted takes the counts of retries with it.
    pub(super) fn step_ended(&mut self, summary: &StepSummary) {
        if summary.tripwire.is_some() {
            return;
        }
        self.error_tries = 0;
        if !std::mem::take(&mut self.asked_again) {
            self.tool_tries = 0;
        }
    }

    /// Where the machine has to ask.
    pub(super) fn judges(runner: &Runner) -> Judges {
        Judges {
            stream: runner.has(Hook::OutputStream),
            step: runner.has(Hook::OutputStep) || runner.has(Hook::LlmResponse),
            result: runner.has(Hook::OutputResult),
            answers: runner.judges_answers(),
            retries: runner.step_retries(),
        }
    }
}

impl Driver {
    /// Keeps what the model says for `process_llm_response`. What passes stream hooks is kept as they pass it on.
    pub(super) fn hear(&mut self, event: &RunEvent) {
        let Hooks { runner, said, warnings: kept, model: name, replayed, .. } = &mut self.hooks;
        if !runner.has(Hook::LlmResponse) {
            return;
        }
        match event {
            RunEvent::Answered { model, warnings } => {
                said.clear();
                kept.clone_from(warnings);
                *name = format!("{}/{}", model.provider, model.model);
            }
            RunEvent::Model(event) if !*replayed => {
                let raw = !runner.has(Hook::OutputStream)
                    || matches!(
                        event,
                        ModelEvent::Warnings(_) | ModelEvent::Metadata { .. } | ModelEvent::Finish { .. }
                    );
                if raw {
                    said.push(event.clone());
                }
            }
            _ => {}
        }
    }

    /// Whether hooks have a say on an event: asked of every one, so that a list without such hooks costs nothing
    /// (PROC-073).
    pub(super) fn concerns_hooks(&self, event: &RunEvent) -> bool {
        let runner = &self.hooks.runner;
        match event {
            RunEvent::Model(ModelEvent::ToolResult { is_error: false, .. })
            | RunEvent::ToolDone { outcome: ToolOutcome::Result { is_error: false, .. }, .. } => {
                runner.has(Hook::ToolResult)
            }
            RunEvent::ModelFailed(_) => runner.has(Hook::ApiError),
            RunEvent::Abort => runner.has(Hook::OutputStream) && !self.hooks.abort_flushed,
            _ => false,
        }
    }

    /// Lets hooks have their say before the machine hears of an event. `None` = the event is not passed on.
    pub(super) async fn intercept(&mut self, event: RunEvent) -> Result<Option<RunEvent>, Flow> {
        match event {
            RunEvent::Model(ModelEvent::ToolResult { id, name, result, is_error }) => {
                let mut shown = ToolResult {
                    tool_name: name.clone(),
                    tool_call_id: id.clone(),
                    args: Value::Null,
                    result,
                    provider_executed: true,
                };
                Ok(match self.tool_result_hooks(&mut shown).await? {
                    ControlFlow::Continue(()) => {
                        let result = shown.result;
                        Some(RunEvent::Model(ModelEvent::ToolResult { id, name, result, is_error }))
                    }
                    // What the provider's tool gave went into the response already: it cannot be asked for again.
                    ControlFlow::Break(event) => event,
                })
            }
            RunEvent::ToolDone { index, outcome: ToolOutcome::Result { value, is_error: false, model_output } } => {
                self.tool_done(index, value, model_output).await
            }
            RunEvent::ModelFailed(error) => self.failed_request(error).await,
            RunEvent::Abort => {
                self.hooks.abort_flushed = true;
                self.flush_aborted().await;
                Ok(Some(RunEvent::Abort))
            }
            event => Ok(Some(event)),
        }
    }

    /// A tool has succeeded.
    async fn tool_done(
        &mut self,
        index: usize,
        value: Value,
        model_output: Option<ToolOutput>,
    ) -> Result<Option<RunEvent>, Flow> {
        let Some((id, name, args)) = self.machine.call_at(index) else {
            let outcome = ToolOutcome::Result { value, is_error: false, model_output };
            return Ok(Some(RunEvent::ToolDone { index, outcome }));
        };
        let before = value.clone();
        let mut shown = ToolResult { tool_name: name, tool_call_id: id, args, result: value, provider_executed: false };
        let outcome = match self.tool_result_hooks(&mut shown).await? {
            ControlFlow::Continue(()) => {
                // What the model reads instead was made of the old result.
                let model_output = model_output.filter(|_| shown.result == before);
                ToolOutcome::Result { value: shown.result, is_error: false, model_output }
            }
            // The model reads why, and decides anew (PROC-055 c).
            ControlFlow::Break(Some(RunEvent::Violated(tripwire))) if self.asks_again(&tripwire) => {
                ToolOutcome::Failed(ErrorInfo::new("ProcessorTripwire", tripwire.reason))
            }
            ControlFlow::Break(Some(event)) => return Ok(Some(event)),
            // Aborted before it was judged: it is none (ruling 35).
            ControlFlow::Break(None) => ToolOutcome::Interrupted,
        };
        Ok(Some(RunEvent::ToolDone { index, outcome }))
    }

    /// Whether a result that a processor did not let pass is asked for again.
    fn asks_again(&mut self, tripwire: &TripwirePayload) -> bool {
        if !tripwire.retry {
            return false;
        }
        let allowed = self.hooks.runner.step_retries().unwrap_or(0);
        let again = self.hooks.asked_again || self.hooks.tool_tries < allowed && self.machine.may_go_on();
        if !again {
            warn_of_no_retry(tripwire, allowed);
        } else if !std::mem::replace(&mut self.hooks.asked_again, true) {
            self.hooks.tool_tries += 1;
        }
        again
    }

    async fn tool_result_hooks(&mut self, result: &mut ToolResult) -> Result<ControlFlow<Option<RunEvent>>, Flow> {
        let mut at = self.at_desk();
        let outcome = at.watch.wait(at.runner.tool_result(&mut at.desk, result)).await;
        self.hooked(outcome)
    }

    /// A request failed: error hooks, then the next model, then the failure itself (PROC §6).
    async fn failed_request(&mut self, error: ErrorInfo) -> Result<Option<RunEvent>, Flow> {
        let model = self.request.as_ref().map_or(self.model_index, Request::model_index);
        if self.hooks.error_tries < self.hooks.runner.error_retries() {
            let name = self.request.as_ref().and_then(|request| request.models().get(model)).map(model_name);
            let failure =
                ApiFailure { error: error.clone(), model: name.unwrap_or_default(), partial: self.machine.has_shown() };
            let mut at = self.at_desk();
            match at.watch.wait(at.runner.api_error(&mut at.desk, &failure)).await {
                Ok(Recovery::Retry) => {
                    self.hooks.error_tries += 1;
                    self.model_index = model;
                    self.request = None;
                    // What stream hooks hold of the failed try is dropped.
                    let mut at = self.at_desk();
                    let _ = at.watch.wait(at.runner.flush(&mut at.desk, Flush::Abort)).await;
                    return Ok(Some(RunEvent::RetryRequest));
                }
                Ok(Recovery::GiveUp) => {}
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
            let mut at = self.at_desk();
            match at.watch.wait(at.runner.llm_response(&mut at.desk, &response)).await {
                Ok(Ok(())) => {}
                Ok(Err(stop)) => return Ok(Some(verdict(stop))),
                Err(cut) => return self.cut(cut),
            }
        }
        let (mut text, mut reasoning) = (None, None);
        if self.hooks.runner.has(Hook::OutputStep) {
            let now = self.now();
            let mut step = self.machine.output_step(now);
            let before = (step.text.clone(), step.reasoning.clone());
            let mut at = self.at_desk();
            match at.watch.wait(at.runner.output_step(&mut at.desk, &mut step)).await {
                Ok(Ok(())) => {
                    text = (step.text != before.0).then_some(step.text);
                    reasoning = (step.reasoning != before.1).then_some(step.reasoning);
                }
                Ok(Err(stop)) => return Ok(Some(verdict(stop))),
                Err(cut) => return self.cut(cut),
            }
        }
        Ok(Some(RunEvent::StepJudged(StepVerdict::Pass { text, reasoning })))
    }

    /// What processors say of the answer.
    pub(super) async fn judge_result(&mut self) -> Result<Option<RunEvent>, Flow> {
        let mut result = self.machine.output_result();
        let (before, messages) = (result.text.clone(), result.messages.clone());
        let mut at = self.at_desk();
        let outcome = at.watch.wait(at.runner.output_result(&mut at.desk, &mut result)).await;
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

pub(super) fn warn_of_no_retry(tripwire: &TripwirePayload, allowed: u32) {
    tracing::warn!(
        processor = tripwire.processor_id,
        allowed,
        "nothing is tried again: no retries (maxProcessorRetries) or steps are left"
    );
}
