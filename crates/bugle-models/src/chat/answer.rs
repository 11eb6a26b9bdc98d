//! One answer being read: events of the protocol in, events of the seam out.

use std::{borrow::Cow, collections::VecDeque};

use bugle::{
    chunk::{FinishReason, Usage},
    json::{Object, without_lone_surrogates},
    model::{ModelError, ModelErrorKind, ModelEvent},
    time::Timestamp,
};
use serde_json::{Value, json};

use super::{
    calls::Calls,
    details,
    strict::StrictTools,
    wire::{Chunk, Content, Delta, Part},
};
use crate::{http, secret::Scrubber};

/// The most of an event that is no JSON that an error shows, in bytes.
const SHOWN_MAX: usize = 200;

pub(super) struct Answer {
    provider: String,
    include_raw: bool,
    /// Events to give out.
    pub(super) ready: VecDeque<ModelEvent>,
    described: bool,
    text: Block,
    reasoning: Block,
    /// What must be sent back with the open reasoning.
    details: Vec<Value>,
    calls: Calls,
    called: bool,
    /// As the provider said it.
    reason: Option<String>,
    usage: Usage,
    /// Something of the protocol was understood.
    pub(super) understood: bool,
}

/// Text or reasoning: which block is open, and how many there were.
#[derive(Default)]
struct Block {
    open: bool,
    count: usize,
}

impl Answer {
    pub(super) fn new(provider: String, include_raw: bool, warnings: Vec<Value>, strict: StrictTools) -> Self {
        let mut ready = VecDeque::new();
        if !warnings.is_empty() {
            ready.push_back(ModelEvent::Warnings(warnings));
        }
        Self {
            provider,
            include_raw,
            ready,
            described: false,
            text: Block::default(),
            reasoning: Block::default(),
            details: Vec::new(),
            calls: Calls::new(strict),
            called: false,
            reason: None,
            usage: Usage::default(),
            understood: false,
        }
    }

    /// Whether the provider has said that the answer is complete.
    pub(super) fn is_complete(&self) -> bool {
        self.reason.is_some()
    }

    pub(super) fn provider(&self) -> &str {
        &self.provider
    }

    /// Takes the JSON of one event of a stream, or of a plain answer.
    pub(super) fn take(&mut self, data: &[u8], is_error: bool, scrub: &Scrubber) -> Result<(), ModelError> {
        // The strict check is several times faster than the lossy one.
        let text = std::str::from_utf8(data).map_or_else(|_| String::from_utf8_lossy(data), Cow::Borrowed);
        match serde_json::from_str::<Chunk<'_>>(&text) {
            Ok(chunk) => self.chunk(&text, &chunk, is_error, scrub),
            Err(error) => {
                let mended = without_lone_surrogates(&text);
                match serde_json::from_str::<Chunk<'_>>(&mended) {
                    Ok(chunk) => self.chunk(&mended, &chunk, is_error, scrub),
                    Err(_) if is_error => Err(http::in_band_error(&Value::String(text.into()), &self.provider, scrub)),
                    Err(_) => Err(self.nonsense(&text, &error, scrub)),
                }
            }
        }
    }

    fn chunk(&mut self, text: &str, chunk: &Chunk<'_>, is_error: bool, scrub: &Scrubber) -> Result<(), ModelError> {
        if self.include_raw {
            self.ready.push_back(ModelEvent::Raw(serde_json::from_str(text).unwrap_or_default()));
        }
        if is_error || chunk.error.is_some_and(|raw| raw.get() != "null") || chunk.object.0 == "error" {
            let error = serde_json::from_str(text).unwrap_or_default();
            return Err(http::in_band_error(&error, &self.provider, scrub));
        }
        let usage = chunk.usage.filter(|raw| raw.get() != "null");
        self.understood |= chunk.choices.present || usage.is_some();
        if !self.described && (chunk.id.get().is_some() || chunk.model.get().is_some()) {
            self.described = true;
            self.ready.push_back(ModelEvent::Metadata {
                id: chunk.id.get().map(str::to_owned),
                timestamp: chunk.created.and_then(|raw| created(raw.get())),
                model_id: chunk.model.get().map(str::to_owned),
            });
        }
        if let Some(usage) = usage {
            self.usage = usage_of(serde_json::from_str(usage.get()).unwrap_or_default());
        }
        // What follows the reason is no content.
        let Some(choice) = chunk.choices.first.as_ref().filter(|_| self.reason.is_none()) else { return Ok(()) };
        if let Some(delta) = choice.delta.as_ref().or(choice.message.as_deref()) {
            self.delta(delta).map_err(|error| self.nonsense(text, &error, scrub))?;
        }
        if let Some(reason) = choice.finish_reason.get() {
            self.reason = Some(reason.to_owned());
            self.complete()?;
        }
        Ok(())
    }

    fn delta(&mut self, delta: &Delta<'_>) -> Result<(), serde_json::Error> {
        // A server that sends both sends the same twice.
        let reasoning = delta.reasoning_content.get().or(delta.reasoning.get());
        self.reasoning(reasoning.unwrap_or_default());
        for detail in delta.reasoning_details.iter().flatten() {
            self.open_reasoning();
            details::add(&mut self.details, detail);
        }
        match &delta.content {
            Content::None => {}
            Content::Text(text) => self.text(text),
            Content::Parts(parts) => parts.iter().for_each(|part| self.part(part)),
        }
        self.text(delta.refusal.get().unwrap_or_default());
        if let Some(calls) = delta.tool_calls.as_ref().filter(|calls| !calls.is_empty()) {
            self.close_blocks();
            self.called = true;
            self.calls.deltas(calls, &mut self.ready)?;
        }
        Ok(())
    }

    fn part(&mut self, part: &Part<'_>) {
        for thought in part.thinking.iter().flatten() {
            self.reasoning(&thought.text.0);
        }
        self.text(&part.text.0);
    }

    fn text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if !self.text.open {
            self.close_blocks();
            self.text.open = true;
            self.ready.push_back(ModelEvent::TextStart { id: self.text.id("txt"), provider_metadata: None });
        }
        self.ready.push_back(ModelEvent::TextDelta { id: self.text.id("txt"), text: text.to_owned() });
    }

    fn reasoning(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        self.open_reasoning();
        self.ready.push_back(ModelEvent::ReasoningDelta { id: self.reasoning.id("reasoning"), text: text.to_owned() });
    }

    fn open_reasoning(&mut self) {
        if !self.reasoning.open {
            self.close_blocks();
            self.reasoning.open = true;
            let id = self.reasoning.id("reasoning");
            self.ready.push_back(ModelEvent::ReasoningStart { id, provider_metadata: None });
        }
    }

    fn close_blocks(&mut self) {
        if self.reasoning.open {
            let id = self.reasoning.close("reasoning");
            let provider_metadata = details::metadata(&self.provider, std::mem::take(&mut self.details));
            self.ready.push_back(ModelEvent::ReasoningEnd { id, provider_metadata });
        }
        if self.text.open {
            let id = self.text.close("txt");
            self.ready.push_back(ModelEvent::TextEnd { id, provider_metadata: None });
        }
    }

    /// The content is complete: closes the blocks and completes the calls.
    fn complete(&mut self) -> Result<(), ModelError> {
        self.close_blocks();
        self.called = !self.calls.is_empty();
        self.calls.finish(&mut self.ready).map_err(|()| {
            let message = format!("{} sent a tool call without a name", self.provider);
            ModelError::new(ModelErrorKind::Protocol, message)
        })
    }

    /// The answer is over, by the provider's word (R31c) or by its end after a finish reason.
    pub(super) fn finish(&mut self) -> Result<(), ModelError> {
        if self.reason.is_none() {
            self.complete()?;
        }
        let called = self.called;
        let reason = match self.reason.as_deref() {
            Some("stop" | "eos" | "eos_token" | "end_turn" | "stop_sequence") => FinishReason::Stop,
            Some("length" | "model_length" | "max_tokens") => FinishReason::Length,
            Some("content_filter" | "content-filter") => FinishReason::ContentFilter,
            // R29: the loop must not go on for calls that are not there.
            Some("tool_calls" | "tool-calls" | "function_call") | None if called => FinishReason::ToolCalls,
            Some("tool_calls" | "tool-calls" | "function_call") | None => FinishReason::Stop,
            Some("error") => FinishReason::Error,
            Some(_) => FinishReason::Other,
        };
        let mut own = Object::new();
        own.insert(self.provider.clone(), json!({}));
        self.ready.push_back(ModelEvent::Finish {
            reason,
            raw_reason: self.reason.clone(),
            usage: std::mem::take(&mut self.usage),
            provider_metadata: Some(own),
        });
        Ok(())
    }

    /// The stream ended too early (R31a).
    pub(super) fn truncated(&self) -> ModelError {
        let message = format!("{} ended its answer before it was complete", self.provider);
        ModelError::new(ModelErrorKind::Truncated, message)
    }

    /// What came is not of the protocol.
    pub(super) fn nonsense(&self, text: &str, error: &dyn std::fmt::Display, scrub: &Scrubber) -> ModelError {
        let mut end = text.len().min(SHOWN_MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let message = format!("{} sent something that is no chat completion ({error})", self.provider);
        ModelError::new(ModelErrorKind::Protocol, message).with_body(scrub.clean(text[..end].to_owned()))
    }
}

impl Block {
    fn id(&self, kind: &str) -> String {
        format!("{kind}-{}", self.count)
    }

    fn close(&mut self, kind: &str) -> String {
        let id = self.id(kind);
        self.open = false;
        self.count += 1;
        id
    }
}

/// Seconds since 1970, or a date as text.
fn created(raw: &str) -> Option<Timestamp> {
    match serde_json::from_str(raw).ok()? {
        Value::Number(seconds) => Some(Timestamp::from_millis((seconds.as_f64()? * 1000.0) as i64)),
        Value::String(text) => Timestamp::parse(&text),
        _ => None,
    }
}

/// The protocol's usage. What the provider leaves out is absent (LOOP-162); `raw` holds the sums and the original.
fn usage_of(raw: Value) -> Usage {
    let at = |pointers: &[&str]| pointers.iter().find_map(|pointer| raw.pointer(pointer)?.as_u64());
    let input = at(&["/prompt_tokens", "/input_tokens"]);
    let output = at(&["/completion_tokens", "/output_tokens"]);
    let total = at(&["/total_tokens"]).or_else(|| Some(input?.saturating_add(output?)));
    let cached = at(&["/prompt_tokens_details/cached_tokens", "/prompt_cache_hit_tokens", "/cached_tokens"]);
    let written = at(&["/prompt_tokens_details/cache_write_tokens", "/cache_creation_input_tokens"]);
    let reasoning = at(&["/completion_tokens_details/reasoning_tokens", "/reasoning_tokens"]);
    let less = |all: Option<u64>, part: Option<u64>| all.map(|all| all.saturating_sub(part.unwrap_or(0)));
    let sums = json!({
        "inputTokens": { "total": input, "noCache": less(input, cached), "cacheRead": cached.unwrap_or(0) },
        "outputTokens": { "total": output, "text": less(output, reasoning), "reasoning": reasoning.unwrap_or(0) },
        "raw": raw,
    });
    Usage {
        input_tokens: input,
        output_tokens: output,
        total_tokens: total,
        reasoning_tokens: reasoning,
        cached_input_tokens: cached,
        cache_creation_input_tokens: written,
        raw: Some(sums),
    }
}
