//! Asks the model: the request of a step as its hooks shape it, and the tools that go with it (PROC §1).

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;
use crate::processor::{Hook, InputStep, LlmRequest};

impl Driver {
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
    pub(super) fn plain_step(&self) -> InputStep {
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

    /// Sends a request; with nothing given, that of the call.
    pub(super) fn ask(&mut self, given: Option<(Vec<ModelEntry>, ModelRequest)>) {
        let (models, request) = given.unwrap_or_else(|| {
            let models = self.prepared.models.clone();
            let request = self.model_request(&models, self.prepared.system.clone(), &self.prepared.tools);
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
        let response_format = prepared.response_format();
        prepared.inject_schema(&mut prompt);
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
