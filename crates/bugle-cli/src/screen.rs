//! A thread as it happens, for `watch`: runs, what they say, and the tree of delegations below them.

use std::collections::{BTreeSet, HashMap};

use bugle::{
    RunId,
    chunk::{Chunk, ChunkBody, Payload},
};

use crate::{
    out::{Out, Style},
    render::{echo_line, nested, tool_line},
    text::{clean, short},
};

/// The delegations around something, outermost first, by the ids of their calls. Nothing is around the thread's own run.
type Lane = Vec<String>;

/// What `watch` has shown so far.
pub(crate) struct Screen {
    out: Out,
    signals: bool,
    /// Runs that have begun and not ended.
    running: BTreeSet<RunId>,
    queue: usize,
    /// Who works in a lane.
    names: HashMap<Lane, String>,
    /// Whose line is the last one.
    lane: Lane,
    /// That line has not ended.
    open: bool,
    /// What is to be printed.
    text: String,
}

impl Screen {
    pub(crate) fn new(out: Out, signals: bool) -> Self {
        Self {
            out,
            signals,
            running: BTreeSet::new(),
            queue: 0,
            names: HashMap::new(),
            lane: Lane::new(),
            open: false,
            text: String::new(),
        }
    }

    /// Ends a line that streaming has begun.
    pub(crate) fn fresh_line(&mut self) {
        self.end_line();
        self.flush();
    }

    /// How much waits now; said when it changes.
    pub(crate) fn queue(&mut self, count: usize) {
        if count != self.queue {
            self.queue = count;
            self.line(&[], Style::Dim, &queue_line(count));
            self.flush();
        }
    }

    pub(crate) fn chunk(&mut self, chunk: &Chunk) {
        self.draw(&[], chunk);
        self.flush();
    }

    fn flush(&mut self) {
        if !self.text.is_empty() {
            self.out.print(&std::mem::take(&mut self.text));
        }
    }

    fn draw(&mut self, lane: &[String], chunk: &Chunk) {
        match &chunk.body {
            // What a delegated run was told is its call's arguments.
            ChunkBody::Data(_) if !lane.is_empty() => {}
            ChunkBody::Data(data) => {
                let steered = chunk.run_id.as_ref().is_some_and(|run| self.running.contains(run));
                if let Some((style, line)) = echo_line(data, steered, self.signals) {
                    self.line(lane, style, &line);
                }
            }
            ChunkBody::AbortNotice => self.ended(lane, chunk, Style::Yellow, "-- aborted"),
            ChunkBody::Payload(payload) => self.payload(lane, chunk, payload),
            ChunkBody::Object(_) | ChunkBody::ObjectResult(_) | ChunkBody::Unknown { .. } => {}
        }
    }

    fn payload(&mut self, lane: &[String], chunk: &Chunk, payload: &Payload) {
        match payload {
            Payload::Start { id, .. } => {
                let run = chunk.run_id.as_ref().map(RunId::as_str).unwrap_or_default();
                // It names itself; no label before it.
                lane.clone_into(&mut self.lane);
                self.line(lane, Style::Bold, &format!("-- {} runs ({})", clean(id), clean(run)));
                self.names.insert(lane.to_vec(), clean(id));
                self.running.extend(chunk.run_id.clone());
            }
            Payload::TextStart { .. } | Payload::ReasoningStart { .. } => self.end_line_of(lane),
            Payload::TextDelta { text, .. } => self.stream(lane, Style::Plain, text),
            Payload::ReasoningDelta { text, .. } => self.stream(lane, Style::Dim, text),
            Payload::TextEnd { .. } | Payload::ReasoningEnd { .. } | Payload::StepFinish(_) => self.end_line_of(lane),
            Payload::Finish(finish) => {
                let reason = serde_json::to_value(finish.step_result.reason).unwrap_or_default();
                let tokens =
                    finish.output.usage.total_tokens.map(|count| format!(", {count} tokens")).unwrap_or_default();
                let line = format!("-- done ({}{tokens})", reason.as_str().unwrap_or_default());
                self.ended(lane, chunk, Style::Bold, &line);
            }
            Payload::Error { error } => {
                self.ended(lane, chunk, Style::Red, &format!("-- failed: {}", short(&error.message, 300)));
            }
            Payload::Abort {} => self.ended(lane, chunk, Style::Yellow, "-- aborted"),
            Payload::ToolOutput { output, tool_call_id, .. } if let Some(inner) = nested(output) => {
                let mut below = lane.to_vec();
                below.push(tool_call_id.clone());
                self.draw(&below, &inner);
            }
            payload => {
                if let Some((style, line)) = tool_line(payload) {
                    self.line(lane, style, &line);
                }
            }
        }
    }

    fn ended(&mut self, lane: &[String], chunk: &Chunk, style: Style, line: &str) {
        if let Some(run) = &chunk.run_id {
            self.running.remove(run);
        }
        self.line(lane, style, line);
    }

    fn end_line(&mut self) {
        if self.open {
            self.text.push('\n');
            self.open = false;
        }
    }

    /// Ends the line that this lane streams, not one of a delegation beside it.
    fn end_line_of(&mut self, lane: &[String]) {
        if self.lane == lane {
            self.end_line();
        }
    }

    fn line(&mut self, lane: &[String], style: Style, line: &str) {
        self.end_line();
        for line in line.split('\n') {
            let start = self.start(lane);
            let line = self.out.paint(style, line);
            self.text.extend([start.as_str(), &line, "\n"]);
        }
    }

    fn stream(&mut self, lane: &[String], style: Style, text: &str) {
        let text = clean(text);
        if self.lane != lane {
            self.end_line();
        }
        for piece in text.split_inclusive('\n') {
            if !self.open {
                let start = self.start(lane);
                self.text.push_str(&start);
            }
            self.text.push_str(&self.out.paint(style, piece));
            self.open = !piece.ends_with('\n');
        }
    }

    /// What a line of a lane begins with: a bar for each delegation around it, and who speaks where that has changed.
    fn start(&mut self, lane: &[String]) -> String {
        let mut start = "│ ".repeat(lane.len());
        if self.lane != lane {
            if let Some(name) = self.names.get(lane).filter(|_| !lane.is_empty()) {
                start.extend(["[", name, "] "]);
            }
            lane.clone_into(&mut self.lane);
        }
        self.out.paint(Style::Dim, &start)
    }
}

fn queue_line(count: usize) -> String {
    match count {
        0 => "   queue: empty".into(),
        count => format!("   queue: {count} waiting"),
    }
}

#[cfg(test)]
mod tests {
    use bugle::json::{Value, json};

    use super::*;

    fn screen() -> Screen {
        Screen::new(Out::new(false, crate::args::ColorWhen::Never, &crate::env::Env::default()), true)
    }

    fn chunk(run: &str, kind: &str, payload: Value) -> Value {
        json!({"type": kind, "runId": run, "from": "AGENT", "payload": payload})
    }

    fn within(call: &str, inner: Value) -> Value {
        json!({"type": "tool-output", "runId": "r0", "from": "USER",
               "payload": {"output": inner, "toolCallId": call, "toolName": "agent-x"}})
    }

    fn drawn(chunks: impl IntoIterator<Item = Value>) -> String {
        let mut screen = screen();
        for chunk in chunks {
            screen.draw(&[], &serde_json::from_value(chunk).unwrap());
        }
        screen.text
    }

    #[test]
    fn parallel_delegations_are_a_tree_whose_lines_do_not_mix() {
        let start = |run: &str, agent: &str| chunk(run, "start", json!({"id": agent, "messageId": "m"}));
        let say = |run: &str, text: &str| chunk(run, "text-delta", json!({"id": "t", "text": text}));
        let call = |run: &str, id: &str, name: &str| {
            chunk(run, "tool-call", json!({"toolCallId": id, "toolName": name, "args": {}}))
        };
        let text = drawn([
            start("r0", "parent"),
            call("r0", "c1", "agent-researcher"),
            call("r0", "c2", "agent-writer"),
            within("c1", start("r1", "researcher")),
            within("c2", start("r2", "writer")),
            within("c1", say("r1", "one ")),
            within("c1", say("r1", "more")),
            within("c2", say("r2", "two\nlines")),
            within("c1", chunk("r1", "text-end", json!({"id": "t"}))),
            within("c2", call("r2", "c3", "agent-checker")),
            within("c2", within("c3", start("r3", "checker"))),
            within("c2", within("c3", say("r3", "deep"))),
            within("c1", chunk("r1", "error", json!({"error": {"name": "E", "message": "sub boom"}}))),
            say("r0", "Final"),
        ]);
        let expected = "\
-- parent runs (r0)
* agent-researcher {}
* agent-writer {}
│ -- researcher runs (r1)
│ -- writer runs (r2)
│ [researcher] one more
│ [writer] two
│ lines
│ * agent-checker {}
│ │ -- checker runs (r3)
│ │ deep
│ [researcher] -- failed: sub boom
Final";
        assert_eq!(text, expected);
    }

    #[test]
    fn what_a_tool_writes_that_is_no_chunk_is_shown_as_it_is() {
        assert_eq!(
            drawn([within("c1", json!({"type": "note"})), within("c1", json!("x"))]),
            "  | {\"type\":\"note\"}\n  | \"x\"\n"
        );
    }

    #[test]
    fn the_queue_is_said_in_a_line() {
        assert_eq!(queue_line(0), "   queue: empty");
        assert_eq!(queue_line(2), "   queue: 2 waiting");
    }
}
