//! Asks the model: the request of a step as its hooks shape it, and the tools that go with it (PROC §1).

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::{hooks::warn_of_no_retry, *};
use crate::{
    processor::{Hook, InputStep, LlmRequest, Stop},
    run::{
        StructuredOutput,
        prepare::{inject_schema, response_format},
    },
};

impl Driver {
    /// Prepares and sends a request: step hooks, lanes, the prepare-step callback, prompt hooks (STATE-050).
    pub(super) async fn prepare_request(&mut self) -> Result<Option<RunEvent>, Flow> {
        self.hooks.said.clear();
        self.hooks.replayed = false;
        self.hooks.tools = self.prepared.tools.clone();
        self.hooks.shaped = true;
        self.hooks.retry_count = None;
        self.hooks.runner.begin_step();
        self.machine.begin_request();
        let shapes = self.hooks.runner.has(Hook::InputStep) || self.prepared.options.prepare_step.is_some();
        let lanes = self.hooks.runner.lanes();
        if let Err(error) = self.read_lanes(!lanes.is_empty()).await {
            return Ok(Some(RunEvent::HookFailed(error)));
        }
        if !shapes && lanes.is_empty() && !self.hooks.runner.has(Hook::LlmRequest) {
            self.ask(None);
            return Ok(None);
        }
        let mut step = self.plain_step();
        let mut changed = false;
        if self.hooks.runner.has(Hook::InputStep) {
            let (outcome, touched) = self.shape_step(&mut step).await?;
            changed |= touched;
            if let ControlFlow::Break(event) = outcome {
                return Ok(event);
            }
        }
        for (at, lane) in lanes {
            match self.compute_lane(at, &lane).await? {
                (Some(event), _) => return Ok(Some(event)),
                (None, touched) => changed |= touched,
            }
        }
        step.message_id = self.machine.message_id().clone();
        if let Err(error) = self.call_prepare_step(&mut step) {
            return Ok(Some(RunEvent::HookFailed(error)));
        }
        if let Err(message) = self.machine.set_message_id(step.message_id.clone()) {
            return Ok(Some(RunEvent::HookFailed(ErrorInfo::new("ProcessorError", message))));
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
            self.hooks.retry_count = Some(step.retry_count);
            self.machine.structure_step(step.structured_output.as_ref());
        }
        let index = self.model_index.min(step.models.len() - 1);
        self.model_index = index;
        let structured = step.structured_output.as_ref();
        let mut request = self.model_request(&step.models, step.system, &self.hooks.tools, structured);
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
            let mut at = self.at_desk();
            let outcome = at.watch.wait(at.runner.llm_request(&mut at.desk, &mut shown)).await;
            if let ControlFlow::Break(event) = self.hooked(outcome)? {
                return Ok(event);
            }
            request.prompt = shown.prompt;
            if let Some(events) = shown.response {
                self.hooks.replayed = true;
                self.machine.bypass_stream();
                self.request = Some(Request::replay(step.models, index, events, self.streaming));
                return Ok(None);
            }
        }
        self.ask(Some((step.models, request)));
        Ok(None)
    }

    /// Asks the step hooks, again from the start where one asks for that (PROC-055 c). Gives how they have ended, and
    /// whether something was placed.
    async fn shape_step(&mut self, step: &mut InputStep) -> Result<(ControlFlow<Option<RunEvent>>, bool), Flow> {
        let allowed = self.hooks.runner.step_retries().unwrap_or(0);
        let (mut tries, mut changed) = (0, false);
        loop {
            let mut at = self.at_desk();
            let outcome = at.watch.wait(at.runner.input_step(&mut at.desk, step)).await;
            changed |= at.desk.changed;
            if let Ok(Err(Stop::Tripwire(tripwire))) = &outcome
                && tripwire.retry
            {
                if tries < allowed && !self.shared.abort.is_cancelled() {
                    tries += 1;
                    self.machine.begin_request();
                    *step = self.plain_step();
                    step.retry_count += tries;
                    self.hooks.retry_count = Some(step.retry_count);
                    continue;
                }
                warn_of_no_retry(tripwire, allowed);
            }
            return Ok((self.hooked(outcome)?, changed));
        }
    }

    /// A step with the call's own values.
    pub(super) fn plain_step(&self) -> InputStep {
        InputStep {
            models: self.prepared.models.clone(),
            tools: self.prepared.tools.all().clone(),
            tool_choice: self.prepared.options.tool_choice.clone(),
            active_tools: self.prepared.options.active_tools.clone(),
            provider_options: self.prepared.options.provider_options.clone(),
            model_settings: self.prepared.options.model_settings.clone().unwrap_or_default(),
            system: self.prepared.system.clone(),
            structured_output: self.prepared.options.structured_output.clone(),
            message_id: self.machine.message_id().clone(),
            retry_count: self.machine.retry_count() + self.hooks.tool_tries,
        }
    }

    pub(super) fn call_prepare_step(&self, step: &mut InputStep) -> Result<(), ErrorInfo> {
        let Some(prepare) = self.prepared.options.prepare_step.clone() else { return Ok(()) };
        std::panic::catch_unwind(AssertUnwindSafe(|| (prepare.0)(step)))
            .map_err(|_| ErrorInfo::new("PrepareStepPanic", "the prepare-step callback panicked; see the log"))
    }

    /// The tools as the step's hooks left them.
    pub(super) fn table_of(&self, step: &mut InputStep) -> Result<Arc<ToolTable>, ErrorInfo> {
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
            let outcome = self.shape_step(&mut step).await;
            self.hooks.muted = false;
            self.hooks.runner.exchange_slots(Some(kept));
            if let (ControlFlow::Break(event), _) = outcome? {
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

    /// Sends a request; with nothing given, that of the call.
    pub(super) fn ask(&mut self, given: Option<(Vec<ModelEntry>, ModelRequest)>) {
        let (models, request) = given.unwrap_or_else(|| {
            let models = self.prepared.models.clone();
            let structured = self.prepared.options.structured_output.as_ref();
            let system = self.prepared.system.clone();
            let request = self.model_request(&models, system, &self.prepared.tools, structured);
            (models, request)
        });
        let asks = self.hooks.runner.has(Hook::ApiError);
        self.request = Some(Request::new(models, self.model_index, request, self.prepared.retries()).asking(asks));
    }

    pub(super) fn model_request(
        &self,
        models: &[ModelEntry],
        system: Vec<PromptMessage>,
        tools: &ToolTable,
        structured: Option<&StructuredOutput>,
    ) -> ModelRequest {
        let prepared = &self.prepared;
        let options = PromptOptions {
            filter_incomplete_tool_calls: prepared.memory.filter_incomplete_tool_calls,
            max_tool_result_bytes: prepared.options.max_tool_result_bytes,
        };
        let provider = models.get(self.model_index).map(|entry| entry.model.provider().to_owned());
        let mut prompt = system;
        prompt.extend(build_prompt_for(self.machine.transcript().messages(), &options, provider.as_deref()));
        let offers_tools = self.machine.offers_tools();
        let response_format = structured.and_then(response_format);
        if let Some(structured) = structured {
            inject_schema(structured, &mut prompt);
        }
        ModelRequest {
            prompt,
            tools: if offers_tools { tools.definitions() } else { Vec::new() },
            tool_choice: if offers_tools { tools.choice() } else { ToolChoice::None },
            settings: prepared.options.model_settings.clone().unwrap_or_default(),
            provider_options: prepared.options.provider_options.clone(),
            response_format,
            headers: prepared.headers(prepared.thread()),
            streaming: self.streaming,
            include_raw: prepared.options.include_raw_chunks,
        }
    }
}

pub(super) fn model_name(entry: &ModelEntry) -> String {
    format!("{}/{}", entry.model.provider(), entry.model.model_id())
}
