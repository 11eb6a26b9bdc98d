//! What a step and the run give: summaries, `step-finish`, `finish`, the settled result.

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;
use crate::{
    chunk::{FinishReason, StepFinishPayload, StepOutput, ToolResultPayload},
    json::json,
    run::RunOutput,
};

impl RunMachine {
    pub(super) fn seal_step(&mut self, is_continued: bool, stop_cause: Option<&str>) {
        let finish = self.response.finish.clone();
        self.stop_cause = stop_cause.map(str::to_owned);
        self.step_result = Some(StepResult {
            reason: self.reason(),
            raw_reason: finish.and_then(|finish| finish.raw_reason),
            is_continued,
            warnings: self.response.warnings.clone(),
            message_id: None,
            stop_cause: self.stop_cause.clone(),
        });
    }

    pub(super) fn summary(&self, reason: FinishReason) -> StepSummary {
        let chunk = |payload| Chunk::agent(&self.settings.run_id, payload);
        let results = self.calls.iter().filter_map(|state| match &state.outcome {
            Some(ToolOutcome::Result { value, is_error, model_output }) => {
                Some(chunk(Payload::ToolResult(ToolResultPayload {
                    args: state.call.args.clone(),
                    tool_call_id: state.call.id.clone(),
                    tool_name: state.call.name.clone(),
                    result: value.clone(),
                    is_error: is_error.then_some(true),
                    provider_executed: None,
                    provider_metadata: model_output.as_ref().map(model_output_metadata),
                })))
            }
            _ => None,
        });
        StepSummary {
            text: self.response.text(),
            reasoning_text: self.response.reasoning(),
            finish_reason: reason,
            usage: self.response.finish.as_ref().map(|finish| finish.usage.clone()).unwrap_or_default(),
            tool_calls: self.response.calls().map(|call| chunk(Payload::ToolCall(call.payload()))).collect(),
            tool_results: results.collect(),
            warnings: self.response.warnings.clone(),
            response: self.metadata(),
            tripwire: self.judged.rejected.clone(),
        }
    }

    pub(super) fn metadata(&self) -> ResponseMetadata {
        let mut metadata = self.response.metadata.clone();
        metadata.model_metadata = Some(json!({
            "modelId": self.model.model,
            "modelVersion": "v2",
            "modelProvider": self.model.provider,
        }));
        metadata
    }

    pub(super) fn finish_payload(&self, summary: &StepSummary, result: StepResult) -> StepFinishPayload {
        let calls = self.response.calls();
        StepFinishPayload {
            message_id: self.message_id.clone(),
            step_result: result,
            metadata: summary.response.clone(),
            output: StepOutput {
                text: summary.text.clone(),
                tool_calls: calls
                    .map(|call| {
                        let payload = call.payload();
                        json!({ "toolCallId": payload.tool_call_id, "toolName": payload.tool_name, "args": payload.args })
                    })
                    .collect(),
                usage: summary.usage.clone(),
                sub_agent_usage: None,
                object: self.object(),
            },
            messages: None,
            response: None,
            processor_retry_count: self.judged.retries,
            is_task_complete_check_failed: self.pending_verdict.as_ref().map(|verdict| !verdict.passed),
            consumed_signal_ids: Vec::new(),
            unanswered_signal_ids: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Shows the end of the step and keeps its summary.
    pub(super) fn finish_step(&mut self, effects: &mut Effects) {
        let result = self.step_result.take().unwrap_or(StepResult {
            reason: self.reason(),
            raw_reason: None,
            is_continued: false,
            warnings: Vec::new(),
            message_id: None,
            stop_cause: None,
        });
        let is_continued = result.is_continued;
        let summary = self.summary(result.reason);
        effects.push(RunEffect::StepEnded(Box::new(summary.clone())));
        let payload = self.finish_payload(&summary, result);
        effects.push(self.chunk(Payload::StepFinish(Box::new(payload))));
        self.last_metadata = summary.response.clone();
        self.steps.push(summary);
        self.judged.rejected = None;
        let next = self.next_message_id.take();
        let failed = self.pending_verdict.take().is_some_and(|verdict| !verdict.passed);
        if failed && is_continued {
            self.message_id = format!("{}-{}", self.first_message_id, self.iteration).into();
            if self.answer_from == self.steps.len() {
                self.answer_message = Some(self.message_id.clone());
            }
        } else if let Some(next) = next {
            self.message_id = next;
        }
    }
}

impl RunMachine {
    /// The tool of a call under way.
    pub(crate) fn tool_name(&self, call_id: &str) -> Option<String> {
        self.calls.iter().find(|state| state.call.id == call_id).map(|state| state.call.name.clone())
    }

    /// Keeps a data chunk that a tool wrote with the answer (LOOP-075).
    pub(crate) fn keep_data(&mut self, call_id: &str, data: &crate::chunk::DataChunk) {
        if let (Some(answer), Ok(part)) = (self.transcript.with_call(call_id), serde_json::to_value(data)) {
            answer.content.parts.push(Part::Other(part));
        }
    }

    /// The payload of `finish`, as subscribers see it.
    pub(crate) fn finish(&self, reason: Option<FinishReason>) -> StepFinishPayload {
        let last = self.steps.last();
        let step_reason = last.map_or(FinishReason::Stop, |step| step.finish_reason);
        let mut tool_calls = Vec::new();
        for step in self.steps.iter().filter(|step| step.tripwire.is_none()) {
            for call in &step.tool_calls {
                if let Some(Payload::ToolCall(call)) = call.payload() {
                    tool_calls.push(
                        json!({ "toolCallId": call.tool_call_id, "toolName": call.tool_name, "args": call.args }),
                    );
                }
            }
        }
        StepFinishPayload {
            message_id: self.message_id.clone(),
            step_result: StepResult {
                reason: reason.unwrap_or(step_reason),
                raw_reason: self.response.finish.as_ref().and_then(|finish| finish.raw_reason.clone()),
                is_continued: false,
                warnings: Vec::new(),
                message_id: None,
                stop_cause: self.stop_cause.clone(),
            },
            metadata: self.last_metadata.clone(),
            output: StepOutput {
                text: self.answer_text(reason),
                tool_calls,
                usage: self.total_usage(),
                sub_agent_usage: self.delegation.usage.clone(),
                object: self.object(),
            },
            messages: None,
            response: None,
            processor_retry_count: 0,
            is_task_complete_check_failed: None,
            consumed_signal_ids: self.consumed.clone(),
            unanswered_signal_ids: self.unanswered.clone(),
            warnings: self.warnings.clone(),
        }
    }

    /// The sum so far, always numbers (LOOP-162).
    pub(super) fn total_usage(&self) -> Usage {
        let mut usage = self.usage.clone();
        usage.input_tokens.get_or_insert(0);
        usage.output_tokens.get_or_insert(0);
        usage.total_tokens.get_or_insert(0);
        usage
    }

    /// The value, from the answer or from a processor.
    fn object(&self) -> Option<Value> {
        let own = self.structured.as_ref().and_then(|structured| structured.object().cloned());
        self.judged.object.clone().or(own)
    }

    pub(super) fn answer_text(&self, reason: Option<FinishReason>) -> String {
        if reason == Some(FinishReason::Tripwire) {
            // What was stopped is not given (PROC-051).
            return String::new();
        }
        if let (None, Some(text)) = (reason, &self.judged.text) {
            return text.clone();
        }
        let mut text = self.earlier_text.clone();
        let counted = self.steps.iter().skip(self.answer_from.min(self.steps.len()));
        let steps: String = counted.filter(|step| step.tripwire.is_none()).map(|step| step.text.as_str()).collect();
        text.push_str(&steps);
        if reason.is_some() {
            // The step under way was not finished; what it said is part of the answer.
            text.push_str(&self.response.text());
        }
        text
    }

    /// The settled result.
    pub(crate) fn output(&self, ending: &Ending) -> RunOutput {
        let reason = match ending {
            Ending::Finished => None,
            Ending::Failed(_) => Some(FinishReason::Error),
            Ending::Aborted => Some(FinishReason::Aborted),
            Ending::Tripped(_) => Some(FinishReason::Tripwire),
            Ending::Parked => return self.parked_output(),
        };
        let finish = self.finish(reason);
        RunOutput {
            run_id: self.settings.run_id.clone(),
            text: finish.output.text,
            finish_reason: finish.step_result.reason,
            usage: finish.output.usage,
            sub_agent_usage: finish.output.sub_agent_usage,
            steps: self.steps.clone(),
            object: finish.output.object,
            used_fallback_value: self.structured.as_ref().is_some_and(Structured::used_fallback),
            error: match ending {
                Ending::Failed(error) => Some(error.clone()),
                _ => None,
            },
            tripwire: match ending {
                Ending::Tripped(tripwire) => Some(tripwire.clone()),
                _ => None,
            },
            suspend_payload: None,
            parked: None,
            resume_schema: None,
            parked_calls: Vec::new(),
            response_messages: self.transcript.answers(),
            messages: self.transcript.own(),
            remembered_messages: self.transcript.remembered(),
            message_id: self.message_id.clone(),
            files: self.files.clone(),
            sources: self.sources.clone(),
            warnings: self.steps.last().map_or_else(Vec::new, |step| [&step.warnings[..], &finish.warnings].concat()),
            consumed_signal_ids: finish.consumed_signal_ids,
            response: self.last_metadata.clone(),
        }
    }
}
