//! Plays one script as one response.

use std::collections::VecDeque;

use serde_json::json;
use tokio::time::sleep;

use super::{
    super::{ModelError, ModelErrorKind, ModelEvent, ModelRequest},
    ScriptedModel, language,
    script::{Script, ScriptStep, broken},
};
use crate::{
    chunk::{FinishReason, Usage},
    time::Timestamp,
};

/// When every scripted answer was made.
const CREATED_AT: Timestamp = Timestamp::from_millis(1_700_000_000_000);

/// One response being played. Dropped before its end it counts as cancelled.
pub(super) struct Player {
    model: ScriptedModel,
    steps: VecDeque<ScriptStep>,
    ready: VecDeque<ModelEvent>,
    answer: Answer,
    started: bool,
    ended: bool,
}

/// What has been said so far.
#[derive(Default)]
struct Answer {
    prompt_messages: u64,
    deltas: u64,
    text_open: bool,
    texts: usize,
    reasoning_open: bool,
    reasonings: usize,
    calls: Vec<(String, String, String)>,
}

impl Drop for Player {
    fn drop(&mut self) {
        if !self.ended {
            self.model.inner.counts.send_modify(|counts| counts.cancelled += 1);
        }
    }
}

impl Player {
    pub(super) fn new(model: ScriptedModel, script: Script, request: &ModelRequest) -> Self {
        let mut steps = VecDeque::from(script.steps);
        let ends = matches!(steps.back(), Some(ScriptStep::Fail(_) | ScriptStep::Hang | ScriptStep::Finish { .. }))
            || matches!(steps.back(), Some(ScriptStep::Emit(ModelEvent::Finish { .. })));
        if !ends {
            steps.push_back(ScriptStep::Finish { reason: None, usage: None });
        }
        let answer = Answer { prompt_messages: language::turn_count(&request.prompt), ..Answer::default() };
        Self { model, steps, ready: VecDeque::new(), answer, started: false, ended: false }
    }

    /// Plays what comes before the headers.
    pub(super) async fn until_headers(&mut self) -> Result<(), ModelError> {
        loop {
            match self.steps.pop_front() {
                Some(ScriptStep::Wait(wait)) => sleep(wait).await,
                Some(ScriptStep::Gate(gate)) => gate.pass().await,
                Some(ScriptStep::Hang) => std::future::pending().await,
                Some(ScriptStep::Fail(error)) => {
                    self.end();
                    return Err(error);
                }
                Some(ScriptStep::Words { count, sent: 0, every, reasoning }) if !every.is_zero() && count > 0 => {
                    sleep(every).await;
                    self.steps.push_front(ScriptStep::Words { count, sent: 1, every, reasoning });
                    let first = if reasoning { "t1 " } else { "w1 " };
                    self.begin();
                    self.delta(first.to_owned(), reasoning);
                    return Ok(());
                }
                Some(step) => {
                    self.steps.push_front(step);
                    self.begin();
                    return Ok(());
                }
                None => {
                    self.begin();
                    return Ok(());
                }
            }
        }
    }

    /// The next event, after the headers.
    pub(super) async fn next(&mut self) -> Option<Result<ModelEvent, ModelError>> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                if matches!(event, ModelEvent::Finish { .. }) {
                    self.end();
                }
                return Some(Ok(event));
            }
            if self.ended {
                return None;
            }
            match self.steps.pop_front() {
                Some(step) => {
                    if let Err(error) = self.play(step).await {
                        self.end();
                        return Some(Err(error));
                    }
                }
                None => self.end(),
            }
        }
    }

    /// The whole answer as a plain operation gives it: a failure anywhere is the request's, blocks come in one piece.
    pub(super) async fn play_whole(&mut self) -> Result<Vec<ModelEvent>, ModelError> {
        let mut events: Vec<ModelEvent> = Vec::new();
        let status = self.steps.iter().find_map(|step| match step {
            ScriptStep::Fail(error) if error.kind == ModelErrorKind::Status => Some(error.clone()),
            _ => None,
        });
        self.until_headers().await?;
        while let Some(event) = self.next().await {
            match (event, events.last_mut()) {
                (Err(error), _) if error.kind == ModelErrorKind::Truncated => return Err(status.unwrap_or(error)),
                (Err(error), _) => return Err(error),
                (Ok(ModelEvent::TextDelta { text, .. }), Some(ModelEvent::TextDelta { text: whole, .. }))
                | (Ok(ModelEvent::ReasoningDelta { text, .. }), Some(ModelEvent::ReasoningDelta { text: whole, .. })) =>
                {
                    whole.push_str(&text);
                }
                (
                    Ok(
                        ModelEvent::ToolInputStart { .. }
                        | ModelEvent::ToolInputDelta { .. }
                        | ModelEvent::ToolInputEnd { .. },
                    ),
                    _,
                ) => {}
                (Ok(event), _) => events.push(event),
            }
        }
        Ok(events)
    }

    async fn play(&mut self, step: ScriptStep) -> Result<(), ModelError> {
        match step {
            ScriptStep::Headers => {}
            ScriptStep::Text(text) => self.delta(text, false),
            ScriptStep::Reasoning(text) => self.delta(text, true),
            ScriptStep::Words { count, sent, every, reasoning } => {
                if sent < count {
                    sleep(every).await;
                    let sent = sent + 1;
                    self.delta(format!("{}{sent} ", if reasoning { 't' } else { 'w' }), reasoning);
                    self.steps.push_front(ScriptStep::Words { count, sent, every, reasoning });
                }
            }
            ScriptStep::Call { id, name, input } => {
                let id = id.unwrap_or_else(|| self.model.inner.ids.call());
                self.answer.close_blocks(&mut self.ready);
                self.answer.deltas += 1;
                let start = ModelEvent::ToolInputStart { id: id.clone(), name: name.clone(), provider_executed: false };
                self.ready.push_back(start);
                let half =
                    input.char_indices().nth(input.chars().count().div_ceil(2)).map_or(input.len(), |(at, _)| at);
                for piece in [&input[..half], &input[half..]].into_iter().filter(|piece| !piece.is_empty()) {
                    self.answer.deltas += 1;
                    self.ready.push_back(ModelEvent::ToolInputDelta { id: id.clone(), delta: piece.to_owned() });
                }
                self.answer.calls.push((id, name, input));
            }
            ScriptStep::Emit(event) => self.ready.push_back(event),
            ScriptStep::Wait(wait) => sleep(wait).await,
            ScriptStep::Gate(gate) => gate.pass().await,
            // After the headers a status can no longer be said.
            ScriptStep::Fail(error) if error.kind == ModelErrorKind::Status => return Err(broken()),
            ScriptStep::Fail(error) => return Err(error),
            ScriptStep::Hang => std::future::pending().await,
            ScriptStep::Finish { reason, usage } => self.finish(reason, usage),
        }
        Ok(())
    }

    fn begin(&mut self) {
        if self.started {
            return;
        }
        self.started = true;
        self.ready.push_back(ModelEvent::Metadata {
            id: Some(self.model.inner.ids.response()),
            timestamp: Some(CREATED_AT),
            model_id: Some(self.model.inner.model_id.clone()),
        });
    }

    fn end(&mut self) {
        if !self.ended {
            self.ended = true;
            self.model.inner.counts.send_modify(|counts| counts.finished += 1);
        }
    }

    fn delta(&mut self, text: String, reasoning: bool) {
        let (answer, ready) = (&mut self.answer, &mut self.ready);
        answer.deltas += 1;
        if text.is_empty() {
            return;
        }
        if reasoning {
            if !answer.reasoning_open {
                answer.close_blocks(ready);
                answer.reasoning_open = true;
                ready.push_back(ModelEvent::ReasoningStart { id: answer.reasoning_id(), provider_metadata: None });
            }
            ready.push_back(ModelEvent::ReasoningDelta { id: answer.reasoning_id(), text });
        } else {
            if !answer.text_open {
                answer.close_blocks(ready);
                answer.text_open = true;
                ready.push_back(ModelEvent::TextStart { id: answer.text_id(), provider_metadata: None });
            }
            ready.push_back(ModelEvent::TextDelta { id: answer.text_id(), text });
        }
    }

    fn finish(&mut self, reason: Option<FinishReason>, usage: Option<Usage>) {
        self.answer.close_blocks(&mut self.ready);
        let called = !self.answer.calls.is_empty();
        for (id, name, input) in self.answer.calls.drain(..) {
            self.ready.push_back(ModelEvent::ToolInputEnd { id: id.clone() });
            let call = ModelEvent::ToolCall { id, name, input, provider_executed: false, provider_metadata: None };
            self.ready.push_back(call);
        }
        let reason = reason.unwrap_or(if called { FinishReason::ToolCalls } else { FinishReason::Stop });
        let raw_reason = match reason {
            FinishReason::Stop => "stop",
            FinishReason::Length => "length",
            FinishReason::ContentFilter => "content_filter",
            FinishReason::ToolCalls => "tool_calls",
            _ => "other",
        };
        let mut own = crate::json::Object::new();
        own.insert(self.model.inner.provider.clone(), json!({}));
        self.ready.push_back(ModelEvent::Finish {
            reason,
            raw_reason: Some(raw_reason.to_owned()),
            usage: usage.unwrap_or_else(|| self.answer.usage()),
            provider_metadata: Some(own),
        });
        self.steps.clear();
    }
}

impl Answer {
    fn text_id(&self) -> String {
        format!("txt-{}", self.texts)
    }

    fn reasoning_id(&self) -> String {
        format!("reasoning-{}", self.reasonings)
    }

    fn close_blocks(&mut self, ready: &mut VecDeque<ModelEvent>) {
        if self.reasoning_open {
            ready.push_back(ModelEvent::ReasoningEnd { id: self.reasoning_id(), provider_metadata: None });
            self.reasoning_open = false;
            self.reasonings += 1;
        }
        if self.text_open {
            ready.push_back(ModelEvent::TextEnd { id: self.text_id(), provider_metadata: None });
            self.text_open = false;
            self.texts += 1;
        }
    }

    fn usage(&self) -> Usage {
        let (read, written) = (self.prompt_messages, self.deltas);
        Usage {
            input_tokens: Some(read),
            output_tokens: Some(written),
            total_tokens: Some(read + written),
            reasoning_tokens: Some(0),
            cached_input_tokens: Some(0),
            cache_creation_input_tokens: None,
            raw: Some(json!({
                "inputTokens": { "total": read, "noCache": read, "cacheRead": 0 },
                "outputTokens": { "total": written, "text": written, "reasoning": 0 },
                "raw": { "prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written },
            })),
        }
    }
}
