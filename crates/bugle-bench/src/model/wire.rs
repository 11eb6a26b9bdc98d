//! Rendering of replies in the two OpenAI wire formats.

use serde::Serialize;
use serde_json::{Value, json};

use crate::script::Script;

#[derive(Clone, Copy)]
pub enum Wire {
    Chat,
    Responses,
}

/// A reply is `Start`, its reasoning, its tool calls or its text, and `Finish`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Piece {
    Start,
    Reasoning(u32),
    Text(u32),
    Call(u32),
    Finish,
}

pub struct Reply {
    pub number: u64,
    pub model: String,
    pub input_tokens: u64,
    /// Tool calls to make; zero for a text answer.
    pub calls: u32,
    pub script: Script,
}

impl Reply {
    pub fn after(&self, piece: Piece) -> Option<Piece> {
        let content = || match self.calls {
            0 => self.text(0),
            _ => Piece::Call(0),
        };
        Some(match piece {
            Piece::Start if self.script.reasoning > 0 => Piece::Reasoning(0),
            Piece::Start => content(),
            Piece::Reasoning(i) if i + 1 < self.script.reasoning => Piece::Reasoning(i + 1),
            Piece::Reasoning(_) => content(),
            Piece::Call(i) if i + 1 < self.calls => Piece::Call(i + 1),
            Piece::Text(i) => self.text(i + 1),
            Piece::Call(_) => Piece::Finish,
            Piece::Finish => return None,
        })
    }

    fn text(&self, i: u32) -> Piece {
        if i < self.script.text_len() { Piece::Text(i) } else { Piece::Finish }
    }

    /// The position of `piece` among the reasoning and text tokens.
    pub fn token(&self, piece: Piece) -> Option<u32> {
        match piece {
            Piece::Reasoning(i) => Some(i),
            Piece::Text(i) => Some(self.script.reasoning + i),
            _ => None,
        }
    }

    fn id(&self) -> String {
        format!("fake-{}", self.number)
    }

    fn call_id(&self, i: u32) -> String {
        format!("call-{}-{i}", self.number)
    }

    fn tool(&self) -> &str {
        self.script.tool.as_deref().unwrap_or_default()
    }

    fn full_text(&self) -> String {
        (0..self.script.text_len()).map(|i| self.script.text(i)).collect()
    }

    fn output_tokens(&self) -> u64 {
        let content = if self.calls > 0 { self.calls } else { self.script.text_len() };
        (self.script.reasoning + content).into()
    }

    fn chat_finish(&self) -> &'static str {
        if self.calls > 0 { "tool_calls" } else { "stop" }
    }

    fn chat_usage(&self) -> Value {
        json!({
            "prompt_tokens": self.input_tokens,
            "completion_tokens": self.output_tokens(),
            "total_tokens": self.input_tokens + self.output_tokens(),
            "completion_tokens_details": { "reasoning_tokens": self.script.reasoning },
        })
    }

    fn responses_usage(&self) -> Value {
        json!({
            "input_tokens": self.input_tokens,
            "input_tokens_details": { "cached_tokens": 0 },
            "output_tokens": self.output_tokens(),
            "output_tokens_details": { "reasoning_tokens": self.script.reasoning },
            "total_tokens": self.input_tokens + self.output_tokens(),
        })
    }
}

fn reasoning_text(i: u32) -> String {
    format!("r{i} ")
}

impl Wire {
    pub fn path(self) -> &'static str {
        match self {
            Wire::Chat => "/v1/chat/completions",
            Wire::Responses => "/v1/responses",
        }
    }

    /// Appends the server-sent events of `piece`.
    pub fn event(self, reply: &Reply, piece: Piece, out: &mut Vec<u8>) {
        match self {
            Wire::Chat => chat_event(reply, piece, out),
            Wire::Responses => responses_event(reply, piece, out),
        }
    }

    /// The reply to a request that does not stream.
    pub fn whole(self, reply: &Reply) -> Value {
        match self {
            Wire::Chat => chat_whole(reply),
            Wire::Responses => responses_whole(reply, "completed"),
        }
    }
}

fn push(out: &mut Vec<u8>, data: &impl Serialize) {
    out.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut *out, data).expect("JSON to memory");
    out.extend_from_slice(b"\n\n");
}

#[derive(Serialize)]
struct ChatChunk<'a, D> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: [ChatChoice<D>; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Value>,
}

#[derive(Serialize)]
struct ChatChoice<D> {
    index: u32,
    delta: D,
    finish_reason: Option<&'static str>,
}

#[derive(Default, Serialize)]
struct ChatDelta {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[Value; 1]>,
}

fn chat_event(reply: &Reply, piece: Piece, out: &mut Vec<u8>) {
    let mut delta = ChatDelta::default();
    let mut finish_reason = None;
    let mut usage = None;
    match piece {
        Piece::Start => {
            delta.role = Some("assistant");
            delta.content = Some(String::new());
        }
        Piece::Reasoning(i) => delta.reasoning_content = Some(reasoning_text(i)),
        Piece::Text(i) => delta.content = Some(reply.script.text(i)),
        Piece::Call(i) => delta.tool_calls = Some([chat_call(reply, i)]),
        Piece::Finish => {
            finish_reason = Some(reply.chat_finish());
            usage = Some(reply.chat_usage());
        }
    }
    push(
        out,
        &ChatChunk {
            id: reply.id(),
            object: "chat.completion.chunk",
            created: 0,
            model: &reply.model,
            choices: [ChatChoice { index: 0, delta, finish_reason }],
            usage,
        },
    );
    if piece == Piece::Finish {
        out.extend_from_slice(b"data: [DONE]\n\n");
    }
}

fn chat_call(reply: &Reply, i: u32) -> Value {
    json!({
        "index": i,
        "id": reply.call_id(i),
        "type": "function",
        "function": { "name": reply.tool(), "arguments": reply.script.args },
    })
}

fn chat_whole(reply: &Reply) -> Value {
    let mut message = json!({ "role": "assistant", "content": null });
    if reply.script.reasoning > 0 {
        message["reasoning_content"] = (0..reply.script.reasoning).map(reasoning_text).collect::<String>().into();
    }
    if reply.calls > 0 {
        message["tool_calls"] = (0..reply.calls).map(|i| chat_call(reply, i)).collect();
    } else {
        message["content"] = reply.full_text().into();
    }
    json!({
        "id": reply.id(),
        "object": "chat.completion",
        "created": 0,
        "model": reply.model,
        "choices": [{ "index": 0, "message": message, "finish_reason": reply.chat_finish() }],
        "usage": reply.chat_usage(),
    })
}

fn responses_event(reply: &Reply, piece: Piece, out: &mut Vec<u8>) {
    let thinking = reply.script.reasoning > 0;
    let item_id = |kind: &str, i: u32| format!("{kind}-{}-{i}", reply.number);
    // Reasoning, when there is any, is output item 0.
    let output_index = |i: u32| i + u32::from(thinking);
    match piece {
        Piece::Start => {
            push(out, &json!({ "type": "response.created", "response": responses_whole(reply, "in_progress") }))
        }
        Piece::Reasoning(i) => {
            let id = item_id("rs", 0);
            if i == 0 {
                let item = json!({ "type": "reasoning", "id": id, "summary": [] });
                push(out, &json!({ "type": "response.output_item.added", "output_index": 0, "item": item }));
                push(
                    out,
                    &json!({
                        "type": "response.reasoning_summary_part.added", "item_id": id, "output_index": 0,
                        "summary_index": 0, "part": { "type": "summary_text", "text": "" },
                    }),
                );
            }
            push(
                out,
                &json!({
                    "type": "response.reasoning_summary_text.delta", "item_id": id, "output_index": 0,
                    "summary_index": 0, "delta": reasoning_text(i),
                }),
            );
            if i + 1 == reply.script.reasoning {
                let item = reasoning_item(reply);
                push(out, &json!({ "type": "response.output_item.done", "output_index": 0, "item": item }));
            }
        }
        Piece::Text(i) => {
            let (id, index) = (item_id("msg", 0), output_index(0));
            if i == 0 {
                let item = json!({
                    "type": "message", "id": id, "role": "assistant", "status": "in_progress", "content": [],
                });
                push(out, &json!({ "type": "response.output_item.added", "output_index": index, "item": item }));
            }
            push(
                out,
                &json!({
                    "type": "response.output_text.delta", "item_id": id, "output_index": index,
                    "content_index": 0, "delta": reply.script.text(i),
                }),
            );
            if i + 1 == reply.script.text_len() {
                let item = message_item(reply);
                push(out, &json!({ "type": "response.output_item.done", "output_index": index, "item": item }));
            }
        }
        Piece::Call(i) => {
            let index = output_index(i);
            let mut item = call_item(reply, i);
            item["arguments"] = "".into();
            push(out, &json!({ "type": "response.output_item.added", "output_index": index, "item": item }));
            push(
                out,
                &json!({
                    "type": "response.function_call_arguments.delta", "item_id": item["id"],
                    "output_index": index, "delta": reply.script.args,
                }),
            );
            let item = call_item(reply, i);
            push(out, &json!({ "type": "response.output_item.done", "output_index": index, "item": item }));
        }
        Piece::Finish => {
            push(out, &json!({ "type": "response.completed", "response": responses_whole(reply, "completed") }))
        }
    }
}

fn reasoning_item(reply: &Reply) -> Value {
    let text: String = (0..reply.script.reasoning).map(reasoning_text).collect();
    json!({
        "type": "reasoning", "id": format!("rs-{}-0", reply.number),
        "summary": [{ "type": "summary_text", "text": text }],
    })
}

fn message_item(reply: &Reply) -> Value {
    json!({
        "type": "message", "id": format!("msg-{}-0", reply.number), "role": "assistant", "status": "completed",
        "content": [{ "type": "output_text", "text": reply.full_text(), "annotations": [] }],
    })
}

fn call_item(reply: &Reply, i: u32) -> Value {
    json!({
        "type": "function_call", "id": format!("fc-{}-{i}", reply.number), "call_id": reply.call_id(i),
        "name": reply.tool(), "arguments": reply.script.args, "status": "completed",
    })
}

fn responses_whole(reply: &Reply, status: &str) -> Value {
    let mut output = Vec::new();
    let mut usage = Value::Null;
    if status == "completed" {
        if reply.script.reasoning > 0 {
            output.push(reasoning_item(reply));
        }
        if reply.calls > 0 {
            output.extend((0..reply.calls).map(|i| call_item(reply, i)));
        } else {
            output.push(message_item(reply));
        }
        usage = reply.responses_usage();
    }
    json!({
        "id": reply.id(), "object": "response", "created_at": 0, "model": reply.model, "status": status,
        "output": output, "usage": usage,
    })
}
