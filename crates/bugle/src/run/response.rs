//! One response of the model as it comes in: what the client is shown of it, and what is kept.

use serde_json::Value;

use super::parked::{ParkedStep, StepCall};
use crate::{
    chunk::{FinishReason, Payload, ResponseMetadata, ToolCallPayload, ToolResultPayload, Usage},
    id::MessageId,
    json::{Object, json},
    message::{FilePart, Part, ReasoningPart, StepStartPart, TextPart, ToolInvocation, ToolInvocationPart, ToolState},
    model::ModelEvent,
    time::Timestamp,
    tool::repair_json,
};

/// A response under construction.
#[derive(Debug, Default)]
pub(crate) struct Response {
    blocks: Vec<Block>,
    pub(crate) metadata: ResponseMetadata,
    pub(crate) warnings: Vec<Value>,
    pub(crate) finish: Option<Finish>,
    /// Text blocks whose provider id is a bare number, and their ids of ours (LOOP-173).
    text_ids: Vec<(String, String)>,
    /// It has produced content: input no longer interrupts it (SIG-220).
    pub(crate) committed: bool,
}

/// How a response ended.
#[derive(Debug, Clone)]
pub(crate) struct Finish {
    pub(crate) reason: FinishReason,
    pub(crate) raw_reason: Option<String>,
    pub(crate) usage: Usage,
}

#[derive(Debug)]
enum Block {
    Text { id: String, text: String, metadata: Option<Object>, open: bool },
    Reasoning { id: String, text: String, metadata: Option<Object>, open: bool },
    Call(Call),
    Result { id: String, name: String, result: Value, is_error: bool },
    File { data: String, media_type: String },
    Source(Value),
}

/// A tool call of the response.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    /// The provider's id.
    provider_id: String,
    /// Ours: the provider's, made unique in the conversation (LOOP-079).
    pub(crate) id: String,
    pub(crate) name: String,
    input: String,
    /// Parsed arguments; `None` if they are no JSON (LOOP-068).
    pub(crate) args: Option<Value>,
    pub(crate) complete: bool,
    pub(crate) provider_executed: bool,
    metadata: Option<Object>,
}

impl Response {
    /// The response of a step that was parked.
    pub(crate) fn restored(step: &ParkedStep) -> Self {
        let mut blocks = Vec::new();
        if !step.text.is_empty() {
            let text = Block::Text { id: String::new(), text: step.text.clone(), metadata: None, open: false };
            blocks.push(text);
        }
        blocks.extend(step.calls.iter().map(|call| Block::Call(Call::restored(call))));
        let finish = Finish { reason: step.reason, raw_reason: step.raw_reason.clone(), usage: step.usage.clone() };
        Self {
            blocks,
            metadata: step.metadata.clone(),
            warnings: step.warnings.clone(),
            finish: Some(finish),
            text_ids: Vec::new(),
            committed: true,
        }
    }

    /// Takes in an event; gives the chunks it makes. `unique` makes a call's id unique.
    pub(crate) fn take(&mut self, event: ModelEvent, unique: impl Fn(&str) -> String) -> Vec<Payload> {
        self.committed |= event.is_content();
        match self.with_own_text_id(event) {
            ModelEvent::Warnings(warnings) => {
                self.warnings.extend(warnings);
                Vec::new()
            }
            ModelEvent::Metadata { id, timestamp, model_id } => {
                self.metadata.id = id.or(self.metadata.id.take());
                self.metadata.timestamp = timestamp.or(self.metadata.timestamp);
                self.metadata.model_id = model_id.or(self.metadata.model_id.take());
                Vec::new()
            }
            ModelEvent::TextStart { id, provider_metadata } => {
                let block = Block::Text {
                    id: id.clone(),
                    text: String::new(),
                    metadata: provider_metadata.clone(),
                    open: true,
                };
                self.blocks.push(block);
                vec![Payload::TextStart { id, provider_metadata }]
            }
            ModelEvent::TextDelta { id, text } => {
                let mut out = Vec::with_capacity(2);
                match self.open_text(&id) {
                    Some(held) => held.push_str(&text),
                    None => {
                        let block = Block::Text { id: id.clone(), text: text.clone(), metadata: None, open: true };
                        self.blocks.push(block);
                        out.push(Payload::TextStart { id: id.clone(), provider_metadata: None });
                    }
                }
                out.push(Payload::TextDelta { id, text, provider_metadata: None });
                out
            }
            ModelEvent::TextEnd { id, provider_metadata } => self.close(&id, provider_metadata),
            ModelEvent::ReasoningStart { id, provider_metadata } => {
                let block = Block::Reasoning {
                    id: id.clone(),
                    text: String::new(),
                    metadata: provider_metadata.clone(),
                    open: true,
                };
                self.blocks.push(block);
                vec![Payload::ReasoningStart { id, provider_metadata }]
            }
            ModelEvent::ReasoningDelta { id, text } => {
                let mut out = Vec::with_capacity(2);
                match self.open_reasoning(&id) {
                    Some(held) => held.push_str(&text),
                    None => {
                        let block = Block::Reasoning { id: id.clone(), text: text.clone(), metadata: None, open: true };
                        self.blocks.push(block);
                        out.push(Payload::ReasoningStart { id: id.clone(), provider_metadata: None });
                    }
                }
                out.push(Payload::ReasoningDelta { id, text, provider_metadata: None });
                out
            }
            ModelEvent::ReasoningEnd { id, provider_metadata } => self.close(&id, provider_metadata),
            ModelEvent::ToolInputStart { id, name, provider_executed } => {
                let tool_name = name.clone();
                let tool_call_id = self.begin_call(id, name, provider_executed, unique);
                let provider_executed = provider_executed.then_some(true);
                vec![Payload::ToolCallInputStart { tool_call_id, tool_name, provider_executed }]
            }
            ModelEvent::ToolInputDelta { id, delta } => match self.call(&id) {
                Some(call) => {
                    call.input.push_str(&delta);
                    vec![Payload::ToolCallDelta {
                        args_text_delta: delta,
                        tool_call_id: call.id.clone(),
                        tool_name: Some(call.name.clone()),
                    }]
                }
                None => Vec::new(),
            },
            ModelEvent::ToolInputEnd { id } => match self.call(&id) {
                Some(call) => vec![Payload::ToolCallInputEnd { tool_call_id: call.id.clone() }],
                None => Vec::new(),
            },
            ModelEvent::ToolCall { id, name, input, provider_executed, provider_metadata } => {
                if self.call(&id).is_none() {
                    self.begin_call(id.clone(), name, provider_executed, unique);
                }
                let Some(call) = self.call(&id) else { return Vec::new() };
                // A call whose arguments were streamed is announced once (LOOP-078).
                call.complete = true;
                call.input = input;
                call.metadata = provider_metadata;
                call.args = repair_json(&call.input);
                vec![Payload::ToolCall(call.payload())]
            }
            ModelEvent::ToolResult { id, name, result, is_error } => {
                let id = self.latest_call(&id).map_or(id, |call| call.id.clone());
                let args = self.latest_call(&id).and_then(|call| call.args.clone());
                self.blocks.push(Block::Result {
                    id: id.clone(),
                    name: name.clone(),
                    result: result.clone(),
                    is_error,
                });
                vec![Payload::ToolResult(ToolResultPayload {
                    args,
                    tool_call_id: id,
                    tool_name: name,
                    result,
                    is_error: is_error.then_some(true),
                    provider_executed: Some(true),
                    provider_metadata: None,
                })]
            }
            ModelEvent::Source(source) => {
                self.blocks.push(Block::Source(json!({
                    "type": "source",
                    "source": { "sourceType": source.source_type, "id": source.id, "url": source.url, "title": source.title },
                })));
                vec![Payload::Source(source)]
            }
            ModelEvent::File { data, media_type } => {
                self.blocks.push(Block::File { data: data.clone(), media_type: media_type.clone() });
                vec![Payload::File { data, mime_type: media_type, filename: None, provider_metadata: None }]
            }
            ModelEvent::Raw(value) => vec![Payload::Raw(value)],
            ModelEvent::Finish { reason, raw_reason, usage, provider_metadata } => {
                self.metadata.provider_metadata = provider_metadata;
                self.finish = Some(Finish { reason, raw_reason, usage });
                self.close_all()
            }
        }
    }

    fn with_own_text_id(&mut self, mut event: ModelEvent) -> ModelEvent {
        let begins = matches!(event, ModelEvent::TextStart { .. });
        if let ModelEvent::TextStart { id, .. } | ModelEvent::TextDelta { id, .. } | ModelEvent::TextEnd { id, .. } =
            &mut event
            && !id.is_empty()
            && id.bytes().all(|byte| byte.is_ascii_digit())
        {
            let known = self.text_ids.iter().rev().find(|(theirs, _)| theirs == id).map(|(_, ours)| ours.clone());
            *id = match known {
                Some(known) if !begins => known,
                _ => {
                    let own = MessageId::fresh().to_string();
                    self.text_ids.push((id.clone(), own.clone()));
                    own
                }
            };
        }
        event
    }

    /// Keeps a payload that has passed the stream hooks. Calls are those of `raw`, where they are known there.
    pub(crate) fn record(&mut self, payload: &Payload, raw: &Self) {
        self.committed |= raw.committed;
        match payload {
            Payload::TextStart { id, provider_metadata } => {
                let metadata = provider_metadata.clone();
                self.blocks.push(Block::Text { id: id.clone(), text: String::new(), metadata, open: true });
            }
            Payload::TextDelta { id, text, .. } => match self.open_text(id) {
                Some(held) => held.push_str(text),
                None => {
                    let block = Block::Text { id: id.clone(), text: text.clone(), metadata: None, open: true };
                    self.blocks.push(block);
                }
            },
            Payload::TextEnd { id, provider_metadata } => {
                self.close(id, provider_metadata.clone());
            }
            Payload::ReasoningStart { id, provider_metadata } => {
                let metadata = provider_metadata.clone();
                self.blocks.push(Block::Reasoning { id: id.clone(), text: String::new(), metadata, open: true });
            }
            Payload::ReasoningDelta { id, text, .. } => match self.open_reasoning(id) {
                Some(held) => held.push_str(text),
                None => {
                    let block = Block::Reasoning { id: id.clone(), text: text.clone(), metadata: None, open: true };
                    self.blocks.push(block);
                }
            },
            Payload::ReasoningEnd { id, provider_metadata, .. } => {
                self.close(id, provider_metadata.clone());
            }
            Payload::ToolCall(call) => {
                let known = raw.latest_call(&call.tool_call_id);
                // Arguments that are no JSON are shown as their text and stay none.
                let shown = known.map(Call::shown_args);
                let args = match known {
                    Some(known) if shown.as_ref() == Some(&call.args) => known.args.clone(),
                    _ => Some(call.args.clone()),
                };
                self.blocks.push(Block::Call(Call {
                    provider_id: known.map_or_else(|| call.tool_call_id.clone(), |known| known.provider_id.clone()),
                    id: call.tool_call_id.clone(),
                    name: call.tool_name.clone(),
                    input: known.map(|known| known.input.clone()).unwrap_or_default(),
                    args,
                    complete: true,
                    provider_executed: call.provider_executed == Some(true),
                    metadata: call.provider_metadata.clone(),
                }));
            }
            Payload::ToolResult(result) if result.provider_executed == Some(true) => {
                self.blocks.push(Block::Result {
                    id: result.tool_call_id.clone(),
                    name: result.tool_name.clone(),
                    result: result.result.clone(),
                    is_error: result.is_error == Some(true),
                });
            }
            Payload::Source(source) => self.blocks.push(Block::Source(json!({
                "type": "source",
                "source": { "sourceType": source.source_type, "id": source.id, "url": source.url, "title": source.title },
            }))),
            Payload::File { data, mime_type, .. } => {
                self.blocks.push(Block::File { data: data.clone(), media_type: mime_type.clone() });
            }
            _ => {}
        }
    }

    /// Puts another text in the place of all text.
    pub(crate) fn rewrite_text(&mut self, new: &str) {
        let mut new = Some(new);
        for block in &mut self.blocks {
            if let Block::Text { text, .. } = block {
                new.take().unwrap_or_default().clone_into(text);
            }
        }
        if let Some(new) = new.filter(|new| !new.is_empty()) {
            let id = MessageId::fresh().to_string();
            self.blocks.push(Block::Text { id, text: new.to_owned(), metadata: None, open: false });
        }
    }

    /// Puts other thoughts in the place of all thoughts. What proves them to the provider goes with them.
    pub(crate) fn rewrite_reasoning(&mut self, new: &str) {
        let mut new = Some(new);
        for block in &mut self.blocks {
            if let Block::Reasoning { text, metadata, .. } = block {
                new.take().unwrap_or_default().clone_into(text);
                *metadata = None;
            }
        }
    }

    /// The end of every block the client has seen open (SIG-233).
    pub(crate) fn close_all(&mut self) -> Vec<Payload> {
        let mut out = Vec::new();
        for block in &mut self.blocks {
            match block {
                Block::Text { id, open, .. } if *open => {
                    *open = false;
                    out.push(Payload::TextEnd { id: id.clone(), provider_metadata: None });
                }
                Block::Reasoning { id, open, .. } if *open => {
                    *open = false;
                    out.push(Payload::ReasoningEnd { id: id.clone(), provider_metadata: None, signature: None });
                }
                _ => {}
            }
        }
        out
    }

    fn close(&mut self, wanted: &str, provider_metadata: Option<Object>) -> Vec<Payload> {
        for block in self.blocks.iter_mut().rev() {
            match block {
                Block::Text { id, metadata, open, .. } if id == wanted && *open => {
                    *open = false;
                    merge(metadata, provider_metadata.as_ref());
                    return vec![Payload::TextEnd { id: wanted.to_owned(), provider_metadata }];
                }
                Block::Reasoning { id, metadata, open, .. } if id == wanted && *open => {
                    *open = false;
                    merge(metadata, provider_metadata.as_ref());
                    return vec![Payload::ReasoningEnd { id: wanted.to_owned(), provider_metadata, signature: None }];
                }
                _ => {}
            }
        }
        Vec::new()
    }

    fn open_text(&mut self, wanted: &str) -> Option<&mut String> {
        self.blocks.iter_mut().rev().find_map(|block| match block {
            Block::Text { id, text, open: true, .. } if id == wanted => Some(text),
            _ => None,
        })
    }

    fn open_reasoning(&mut self, wanted: &str) -> Option<&mut String> {
        self.blocks.iter_mut().rev().find_map(|block| match block {
            Block::Reasoning { id, text, open: true, .. } if id == wanted => Some(text),
            _ => None,
        })
    }

    /// A call begins; gives its id.
    fn begin_call(
        &mut self,
        provider_id: String,
        name: String,
        provider_executed: bool,
        unique: impl Fn(&str) -> String,
    ) -> String {
        let mut id = unique(&provider_id);
        // Two calls of one response with one id (R33b): the second gets an id of its own.
        let mut copy = 2;
        while self.calls().any(|call| call.id == id) {
            id = format!("{}~{copy}", unique(&provider_id));
            copy += 1;
        }
        self.blocks.push(Block::Call(Call {
            provider_id,
            id: id.clone(),
            name,
            input: String::new(),
            args: None,
            complete: false,
            provider_executed,
            metadata: None,
        }));
        id
    }

    /// The call under construction with this provider id.
    fn call(&mut self, provider_id: &str) -> Option<&mut Call> {
        self.blocks.iter_mut().rev().find_map(|block| match block {
            Block::Call(call) if call.provider_id == provider_id && !call.complete => Some(call),
            _ => None,
        })
    }

    fn latest_call(&self, id: &str) -> Option<&Call> {
        self.blocks.iter().rev().find_map(|block| match block {
            Block::Call(call) if call.provider_id == id || call.id == id => Some(call),
            _ => None,
        })
    }

    /// The complete calls, in order.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &Call> {
        self.blocks.iter().filter_map(|block| match block {
            Block::Call(call) if call.complete => Some(call),
            _ => None,
        })
    }

    /// The text so far.
    pub(crate) fn text(&self) -> String {
        let texts = self.blocks.iter().filter_map(|block| match block {
            Block::Text { text, .. } => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// The reasoning so far.
    pub(crate) fn reasoning(&self) -> String {
        let texts = self.blocks.iter().filter_map(|block| match block {
            Block::Reasoning { text, .. } => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    /// Whether it holds anything to keep.
    pub(crate) fn is_empty(&self) -> bool {
        self.blocks.iter().all(|block| match block {
            Block::Text { text, .. } => text.is_empty(),
            Block::Call(call) => !call.complete,
            _ => false,
        })
    }

    /// The parts to store. With `calls` false (a response that broke off), calls are left out: none has run (R31b).
    pub(crate) fn parts(&self, calls: bool, after_tool: bool, model: &str, now: Timestamp) -> Vec<Part> {
        let created_at = Some(now.as_millis());
        let mut parts = Vec::new();
        if after_tool {
            parts.push(Part::StepStart(StepStartPart {
                created_at,
                model: Some(model.to_owned()),
                ..StepStartPart::default()
            }));
        }
        for block in &self.blocks {
            match block {
                Block::Text { text, .. } if text.is_empty() => {}
                Block::Text { text, metadata, .. } => parts.push(Part::Text(TextPart {
                    text: text.clone(),
                    created_at,
                    provider_metadata: metadata.clone(),
                    extra: Object::new(),
                })),
                Block::Reasoning { text, metadata, .. } => {
                    if text.is_empty() && metadata.is_none() {
                        continue;
                    }
                    parts.push(Part::Reasoning(ReasoningPart {
                        reasoning: text.clone(),
                        details: vec![json!({ "type": "text", "text": text })],
                        created_at,
                        provider_metadata: metadata.clone(),
                        extra: Object::new(),
                    }));
                }
                Block::Call(call) if calls && call.complete => parts.push(Part::ToolInvocation(call.part(created_at))),
                Block::Call(_) => {}
                Block::Result { id, name, result, is_error } => {
                    settle_provider_call(&mut parts, id, name, result, *is_error);
                }
                Block::File { data, media_type } => parts.push(Part::File(FilePart {
                    data: data.clone(),
                    mime_type: Some(media_type.clone()),
                    filename: None,
                    created_at,
                    provider_metadata: None,
                    extra: Object::new(),
                })),
                Block::Source(source) => parts.push(Part::Other(source.clone())),
            }
        }
        parts
    }
}

impl Call {
    /// A call of a parked step.
    pub(crate) fn restored(call: &StepCall) -> Self {
        Self {
            provider_id: call.tool_call_id.clone(),
            id: call.tool_call_id.clone(),
            name: call.tool_name.clone(),
            input: String::new(),
            args: call.args.clone(),
            complete: true,
            provider_executed: false,
            metadata: None,
        }
    }

    pub(crate) fn payload(&self) -> ToolCallPayload {
        ToolCallPayload {
            tool_call_id: self.id.clone(),
            tool_name: self.name.clone(),
            args: self.shown_args(),
            provider_executed: self.provider_executed.then_some(true),
            provider_metadata: self.metadata.clone(),
        }
    }

    /// The arguments, or their text if they are no JSON.
    fn shown_args(&self) -> Value {
        self.args.clone().unwrap_or_else(|| Value::String(self.input.clone()))
    }

    fn part(&self, created_at: Option<i64>) -> ToolInvocationPart {
        ToolInvocationPart {
            tool_invocation: ToolInvocation {
                state: ToolState::Call,
                tool_call_id: self.id.clone(),
                tool_name: self.name.clone(),
                args: self.shown_args(),
                result: None,
                error_text: None,
                is_error: None,
                approval: None,
                extra: Object::new(),
            },
            created_at,
            provider_metadata: self.metadata.clone(),
            provider_executed: self.provider_executed.then_some(true),
            extra: Object::new(),
        }
    }
}

/// The event that makes this payload; none for what only shows how arguments come in, and for what is not the model's.
pub(crate) fn as_event(payload: &Payload) -> Option<ModelEvent> {
    Some(match payload.clone() {
        Payload::TextStart { id, provider_metadata } => ModelEvent::TextStart { id, provider_metadata },
        Payload::TextDelta { id, text, .. } => ModelEvent::TextDelta { id, text },
        Payload::TextEnd { id, provider_metadata } => ModelEvent::TextEnd { id, provider_metadata },
        Payload::ReasoningStart { id, provider_metadata } => ModelEvent::ReasoningStart { id, provider_metadata },
        Payload::ReasoningDelta { id, text, .. } => ModelEvent::ReasoningDelta { id, text },
        Payload::ReasoningEnd { id, provider_metadata, .. } => ModelEvent::ReasoningEnd { id, provider_metadata },
        Payload::ToolCall(call) => ModelEvent::ToolCall {
            id: call.tool_call_id,
            name: call.tool_name,
            // Arguments that are no JSON are shown as their text.
            input: match call.args {
                Value::String(text) => text,
                args => args.to_string(),
            },
            provider_executed: call.provider_executed == Some(true),
            provider_metadata: call.provider_metadata,
        },
        Payload::ToolResult(result) if result.provider_executed == Some(true) => ModelEvent::ToolResult {
            id: result.tool_call_id,
            name: result.tool_name,
            result: result.result,
            is_error: result.is_error == Some(true),
        },
        Payload::Source(source) => ModelEvent::Source(source),
        Payload::File { data, mime_type, .. } => ModelEvent::File { data, media_type: mime_type },
        _ => return None,
    })
}

fn settle_provider_call(parts: &mut [Part], id: &str, name: &str, result: &Value, is_error: bool) {
    for part in parts.iter_mut().rev() {
        if let Part::ToolInvocation(call) = part
            && call.tool_invocation.tool_call_id == id
            && call.tool_invocation.tool_name == name
        {
            call.tool_invocation.state = ToolState::Result;
            call.tool_invocation.result = Some(result.clone());
            call.tool_invocation.is_error = is_error.then_some(true);
            return;
        }
    }
}

fn merge(held: &mut Option<Object>, more: Option<&Object>) {
    if let Some(more) = more {
        held.get_or_insert_default().extend(more.clone());
    }
}
