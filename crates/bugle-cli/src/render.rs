//! Chunks and messages for a person to read.

use bugle::{
    chunk::{Chunk, DataChunk, Payload},
    json::Value,
    message::{Part, Role, StoredMessage},
};

use crate::{
    out::{Out, Style},
    text::{clean, short},
};

/// The widest JSON shown of arguments and results, in characters.
const JSON_WIDTH: usize = 120;

/// The answer to `send`: its text on stdout, all else as one line each on stderr (CLI-053).
pub(crate) struct Answer {
    out: Out,
    text: String,
    /// The last thing printed did not end a line.
    open: bool,
}

impl Answer {
    pub(crate) const fn new(out: Out) -> Self {
        Self { out, text: String::new(), open: false }
    }

    /// What was said so far.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    pub(crate) fn chunk(&mut self, chunk: &Chunk) {
        match chunk.payload() {
            Some(Payload::TextDelta { text, .. }) => self.say(text),
            // A new block after another begins on a line of its own.
            Some(Payload::TextStart { .. }) if !self.text.is_empty() && !self.text.ends_with('\n') => self.say("\n"),
            Some(payload) => {
                if let Some((style, line)) = tool_line(payload)
                    && !self.out.json
                {
                    self.end();
                    self.out.note(style, &line);
                }
            }
            None => {}
        }
    }

    /// Text from the store instead of the stream.
    pub(crate) fn stored(&mut self, text: &str) {
        self.say(text);
    }

    fn say(&mut self, text: &str) {
        self.text.push_str(text);
        let shown = clean(text);
        if !self.out.json && !shown.is_empty() {
            // The newline before a block is printed already if a note has ended the line.
            if shown == "\n" && !self.open {
                return;
            }
            self.out.print(&shown);
            self.open = !shown.ends_with('\n');
        }
    }

    /// Ends the line.
    pub(crate) fn end(&mut self) {
        if self.open {
            self.out.print("\n");
            self.open = false;
        }
    }
}

/// A tool's part of a run as one line; of a delegated run's, below its delegation.
pub(crate) fn tool_line(payload: &Payload) -> Option<(Style, String)> {
    let json = |value: &Value| short(&value.to_string(), JSON_WIDTH);
    Some(match payload {
        Payload::ToolCall(call) => (Style::Cyan, format!("* {} {}", clean(&call.tool_name), json(&call.args))),
        Payload::ToolResult(result) => {
            (Style::Dim, format!("  {} -> {}", clean(&result.tool_name), json(&result.result)))
        }
        Payload::ToolError { tool_name, error, .. } => {
            (Style::Red, format!("  {} failed: {}", clean(tool_name), short(&error.message, 300)))
        }
        Payload::ToolCallApproval { tool_name, args, .. } => {
            (Style::Yellow, format!("? {} {} waits for approval", clean(tool_name), json(args)))
        }
        Payload::ToolCallSuspended { tool_name, suspend_payload, .. } => {
            (Style::Yellow, format!("? {} waits: {}", clean(tool_name), json(suspend_payload)))
        }
        Payload::ToolOutputDenied { tool_name, .. } => (Style::Yellow, format!("  {} was declined", clean(tool_name))),
        Payload::ToolOutput { output, .. } => match nested(output) {
            Some(inner) => {
                let (style, line) = tool_line(inner.payload()?)?;
                (style, format!("│ {line}"))
            }
            None => (Style::Dim, format!("  | {}", json(output))),
        },
        Payload::Tripwire(tripwire) => (Style::Yellow, format!("! stopped: {}", short(&tripwire.reason, 300))),
        _ => return None,
    })
}

/// The chunk of a delegated run that a tool wrote (HTTP-121); `None` if it wrote something else.
pub(crate) fn nested(output: &Value) -> Option<Chunk> {
    let is_chunk =
        output.get("type").is_some_and(Value::is_string) && output.get("runId").is_some_and(Value::is_string);
    is_chunk.then(|| serde_json::from_value(output.clone()).ok()).flatten()
}

/// The echo of input: who said what, and whether it steers a run that goes on.
pub(crate) fn echo_line(data: &DataChunk, steered: bool, signals: bool) -> Option<(Style, String)> {
    let field = |name: &str| data.data.get(name).and_then(Value::as_str);
    let text = value_text(data.data.get("contents").unwrap_or(&Value::Null));
    let attribute = |name: &str| data.data.get("attributes").and_then(|it| it.get(name)).and_then(Value::as_str);
    let mark = if steered { "» steered " } else { "> " };
    match data.kind.as_str() {
        "data-user-message" => {
            let who = attribute("name").unwrap_or("user");
            Some((Style::Cyan, format!("{mark}{}: {}", short(who, 40), clean(&text))))
        }
        "data-signal" if signals => {
            let tag = field("tagName").or_else(|| field("type")).unwrap_or("signal");
            Some((Style::Yellow, format!("{mark}<{}> {}", short(tag, 40), clean(&text))))
        }
        _ => None,
    }
}

/// The text of contents in JSON; files by name.
fn value_text(contents: &Value) -> String {
    match contents {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().map(|part| match part.get("text").and_then(Value::as_str) {
                Some(text) => text.to_owned(),
                None => format!("[{}]", part.get("filename").and_then(Value::as_str).unwrap_or("file")),
            });
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

/// A stored message, for transcripts.
pub(crate) fn transcript(message: &StoredMessage, out: Out) -> String {
    let who = match (message.role, message.kind.as_deref()) {
        (Role::Signal, Some(kind)) if kind != "v2" => kind,
        (Role::Signal, _) => "signal",
        (Role::User, _) => "user",
        (Role::Assistant, _) => "assistant",
        (Role::System, _) => "system",
    };
    let mut lines = Vec::new();
    for part in &message.content.parts {
        let json = serde_json::to_value(part).unwrap_or_default();
        match part {
            Part::Text(text) => lines.push(clean(&text.text)),
            _ if json["type"] == "reasoning" => {
                let text = json["reasoning"].as_str().unwrap_or_default();
                if !text.is_empty() {
                    lines.push(out.paint(Style::Dim, &clean(text)));
                }
            }
            _ if json["type"] == "tool-invocation" => {
                let call = &json["toolInvocation"];
                let name = call["toolName"].as_str().unwrap_or("tool");
                let result = call.get("result").map(|result| format!(" -> {}", short(&result.to_string(), JSON_WIDTH)));
                let args = short(&call["args"].to_string(), JSON_WIDTH);
                lines.push(out.paint(Style::Cyan, &format!("* {} {args}{}", clean(name), result.unwrap_or_default())));
            }
            _ if json["type"] == "file" => lines.push("[file]".into()),
            _ if json["type"] == "error" => {
                let text = json["error"]["message"].as_str().unwrap_or("failed");
                lines.push(out.paint(Style::Red, &format!("failed: {}", clean(text))));
            }
            _ => {}
        }
    }
    let head = out.paint(Style::Bold, &format!("{}:", clean(who)));
    format!("{head} {}\n", lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use bugle::json::json;

    use super::*;

    fn data(kind: &str, data: Value) -> DataChunk {
        DataChunk { kind: kind.into(), data, id: None, transient: Some(true) }
    }

    #[test]
    fn watch_says_who_said_what_and_marks_what_steers() {
        let said = data("data-user-message", json!({"contents": "hi\u{1b}[2J", "attributes": {"name": "Ann"}}));
        assert_eq!(echo_line(&said, false, true).unwrap().1, "> Ann: hi[2J");
        assert_eq!(echo_line(&said, true, true).unwrap().1, "» steered Ann: hi[2J");
        let signal = data(
            "data-signal",
            json!({"type": "reactive", "tagName": "skill", "contents": [{"type": "text", "text": "x"}]}),
        );
        assert_eq!(echo_line(&signal, true, true).unwrap().1, "» steered <skill> x");
        assert_eq!(echo_line(&signal, true, false), None);
        assert_eq!(echo_line(&data("data-note", json!({})), true, true), None);
    }

    #[test]
    fn tools_are_one_line_each() {
        let call: Chunk = serde_json::from_value(json!({
            "type": "tool-call", "runId": "r",
            "payload": {"toolCallId": "c", "toolName": "clock", "args": {"a": "b\nc"}}
        }))
        .unwrap();
        assert_eq!(tool_line(call.payload().unwrap()).unwrap().1, "* clock {\"a\":\"b\\nc\"}");
    }

    #[test]
    fn a_stored_message_is_readable() {
        let message: StoredMessage = serde_json::from_value(json!({
            "id": "m", "role": "signal", "type": "user", "createdAt": "2026-01-01T00:00:00.000Z",
            "content": {"format": 2, "parts": [{"type": "text", "text": "hello"}]}
        }))
        .unwrap();
        let out = Out::new(false, crate::args::ColorWhen::Never, &crate::env::Env::default());
        assert_eq!(transcript(&message, out), "user: hello\n");
    }
}
