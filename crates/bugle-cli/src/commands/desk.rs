//! Where a person at a terminal answers calls that wait: one question at a time, in order (CLI-053, `watch`).

use std::{
    collections::VecDeque,
    io::{self, BufRead as _, IsTerminal as _},
};

use bugle::{
    RunId,
    chunk::{Chunk, Payload},
    json::Value,
};
use bugle_client::{Delivery, Subscription, SuspendedCall, SuspendedRun, Thread, ToolApproval};
use tokio::sync::mpsc;

use crate::{
    out::{Out, Style},
    text::short,
};

/// Lines that may wait to be read.
const LINES_MAX: usize = 16;

/// A call that waits for this person.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Question {
    run: Option<RunId>,
    call: String,
    tool: String,
    /// `None` for an approval; else the one text that the tool's schema asks for, if it is so simple.
    asks: Option<Option<String>>,
}

/// What a line means.
#[derive(Debug, PartialEq)]
enum Said {
    Answer(ToolApproval),
    Later,
    Unclear,
}

impl Question {
    fn hint(&self) -> String {
        let tool = short(&self.tool, 60);
        match &self.asks {
            None => format!("? approve {tool}: y, or n and why"),
            Some(Some(field)) => format!("? answer {tool}: {} (empty = later)", short(field, 40)),
            Some(None) => format!("? answer {tool}: JSON or text (empty = later)"),
        }
    }

    fn read(&self, line: &str) -> Said {
        let line = line.trim();
        let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match &self.asks {
            Some(_) if line.is_empty() => Said::Later,
            Some(field) => {
                let data: Value = match (serde_json::from_str(line), field) {
                    (Ok(data @ Value::Object(_)), _) | (Ok(data), None) => data,
                    (_, Some(field)) => Value::Object([(field.clone(), line.into())].into_iter().collect()),
                    (Err(_), None) => line.into(),
                };
                Said::Answer(ToolApproval::resume(&self.call, data))
            }
            None => match first.to_ascii_lowercase().as_str() {
                "y" | "yes" => Said::Answer(ToolApproval::approve(&self.call)),
                "n" | "no" => {
                    let reason = Some(rest.trim().to_owned()).filter(|reason| !reason.is_empty());
                    Said::Answer(ToolApproval::decline(&self.call, reason))
                }
                _ => Said::Unclear,
            },
        }
    }
}

/// The questions, and the person's lines.
#[derive(Debug)]
pub(super) struct Desk {
    out: Out,
    lines: mpsc::Receiver<String>,
    waiting: VecDeque<Question>,
}

/// What came first.
pub(super) enum Heard {
    Delivery(Option<Delivery>),
    /// Standard input has ended: nobody answers any more.
    Silence,
}

impl Desk {
    /// A desk, if there is a person: standard input and error are a terminal, and stdout is not for a program.
    pub(super) fn of_terminal(out: Out) -> Option<Self> {
        if out.json || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
            return None;
        }
        let (sender, lines) = mpsc::channel(LINES_MAX);
        // It ends with the process: a read of a terminal cannot be cancelled.
        std::thread::spawn(move || {
            for line in io::stdin().lock().lines() {
                let Ok(line) = line else { break };
                if sender.blocking_send(line).is_err() {
                    break;
                }
            }
        });
        Some(Self { out, lines, waiting: VecDeque::new() })
    }

    /// Whether something waits for the person.
    pub(super) fn has_question(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// What waited before the desk was there.
    pub(super) fn open(&mut self, runs: &[SuspendedRun]) {
        for run in runs {
            for call in &run.tool_calls {
                self.ask(question_of(run, call));
            }
        }
    }

    /// Takes note of what was asked, and of what is answered.
    pub(super) fn chunk(&mut self, chunk: &Chunk) {
        match chunk.payload() {
            Some(Payload::ToolCallApproval { tool_call_id, tool_name, .. }) => self.ask(Question {
                run: chunk.run_id.clone(),
                call: tool_call_id.clone(),
                tool: tool_name.clone(),
                asks: None,
            }),
            Some(Payload::ToolCallSuspended { tool_call_id, tool_name, resume_schema, .. }) => self.ask(Question {
                run: chunk.run_id.clone(),
                call: tool_call_id.clone(),
                tool: tool_name.clone(),
                asks: Some(only_text(resume_schema)),
            }),
            Some(Payload::ToolError { tool_call_id, .. } | Payload::ToolOutputDenied { tool_call_id, .. }) => {
                self.answered(tool_call_id);
            }
            Some(Payload::ToolResult(result)) => self.answered(&result.tool_call_id),
            _ if chunk.ends_run() => {
                self.forget(|question| question.run == chunk.run_id);
            }
            _ => {}
        }
    }

    fn ask(&mut self, question: Question) {
        if self.waiting.iter().any(|known| known.call == question.call) {
            return;
        }
        self.waiting.push_back(question);
        if self.waiting.len() == 1 {
            self.say_first();
        }
    }

    fn answered(&mut self, call: &str) {
        self.forget(|question| question.call == call);
    }

    fn forget(&mut self, gone: impl Fn(&Question) -> bool) {
        let first = self.waiting.front().cloned();
        self.waiting.retain(|question| !gone(question));
        if self.waiting.front() != first.as_ref() {
            self.say_first();
        }
    }

    fn say_first(&self) {
        if let Some(question) = self.waiting.front() {
            self.out.note(Style::Yellow, &question.hint());
        }
    }

    async fn line(&mut self, line: &str, thread: &Thread) {
        let Some(question) = self.waiting.front().cloned() else { return };
        match question.read(line) {
            Said::Unclear => self.say_first(),
            Said::Later => {
                self.waiting.rotate_left(1);
                if self.waiting.len() > 1 {
                    self.say_first();
                }
            }
            Said::Answer(answer) => match thread.send_tool_approval(&answer).await {
                Ok(_) => {
                    let said = if answer.resume_data.is_some() {
                        "answered"
                    } else if answer.approved {
                        "approved"
                    } else {
                        "declined"
                    };
                    self.out.note(Style::Dim, &format!("{said} {}", short(&question.tool, 60)));
                    self.answered(&question.call);
                }
                Err(error) => {
                    self.out.note(Style::Yellow, &format!("! not answered: {error}"));
                    // Somebody else was faster.
                    if matches!(error.status(), Some(404 | 409)) {
                        self.answered(&question.call);
                    }
                }
            },
        }
    }
}

/// The next delivery; answers go out meanwhile, as they are typed.
pub(super) async fn hear(subscription: &mut Subscription, desk: &mut Option<Desk>, thread: &Thread) -> Heard {
    loop {
        let Some(open) = desk else { return Heard::Delivery(subscription.next().await) };
        let line = tokio::select! {
            delivery = subscription.next() => return Heard::Delivery(delivery),
            line = open.lines.recv() => line,
        };
        match line {
            Some(line) => open.line(&line, thread).await,
            None => {
                *desk = None;
                return Heard::Silence;
            }
        }
    }
}

fn question_of(run: &SuspendedRun, call: &SuspendedCall) -> Question {
    Question {
        run: Some(run.run_id.clone()),
        call: call.tool_call_id.clone(),
        tool: call.tool_name.clone(),
        asks: (!call.requires_approval).then_some(None),
    }
}

/// The name of the one text that a schema asks for.
fn only_text(schema: &str) -> Option<String> {
    let schema: Value = serde_json::from_str(schema).ok()?;
    let mut properties = schema.get("properties")?.as_object()?.iter();
    match (properties.next(), properties.next()) {
        (Some((name, shape)), None) if shape["type"] == "string" => Some(name.clone()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use bugle::json::json;

    use super::*;

    fn question(asks: Option<Option<String>>) -> Question {
        Question { run: Some("r".into()), call: "c".into(), tool: "delete-file".into(), asks }
    }

    #[test]
    fn y_approves_n_declines_with_its_reason_and_all_else_asks_again() {
        let question = question(None);
        let reason = |text: &str| Said::Answer(ToolApproval::decline("c", Some(text.into())));
        for (line, said) in [
            ("y", Said::Answer(ToolApproval::approve("c"))),
            (" YES ", Said::Answer(ToolApproval::approve("c"))),
            ("n", Said::Answer(ToolApproval::decline("c", None))),
            ("no  not today ", reason("not today")),
            ("", Said::Unclear),
            ("yesterday", Said::Unclear),
        ] {
            assert_eq!(question.read(line), said, "{line:?}");
        }
    }

    #[test]
    fn data_is_json_or_the_text_that_the_schema_asks_for() {
        let one = only_text(r#"{"type":"object","properties":{"answer":{"type":"string"}}}"#);
        assert_eq!(one.as_deref(), Some("answer"));
        assert_eq!(only_text(r#"{"properties":{"a":{"type":"string"},"b":{}}}"#), None);
        assert_eq!(only_text("{}"), None);
        let answer = |data: Value| Said::Answer(ToolApproval::resume("c", data));
        for (asks, line, said) in [
            (one.clone(), "blue", answer(json!({"answer": "blue"}))),
            (one.clone(), "7", answer(json!({"answer": "7"}))),
            (one.clone(), r#"{"answer":"red"}"#, answer(json!({"answer": "red"}))),
            (one, "", Said::Later),
            (None, "false", answer(json!(false))),
            (None, "some text", answer(json!("some text"))),
        ] {
            assert_eq!(question(Some(asks)).read(line), said, "{line:?}");
        }
    }

    #[test]
    fn questions_are_asked_once_in_order_and_go_when_anybody_has_answered() {
        let (_sender, lines) = mpsc::channel(1);
        let out = Out::new(false, crate::args::ColorWhen::Never, &crate::env::Env::default());
        let mut desk = Desk { out, lines, waiting: VecDeque::new() };
        let mut chunk = |kind: &str, call: &str, more: Value| {
            let mut payload = json!({"toolCallId": call, "toolName": "t", "args": {}});
            payload.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            desk.chunk(&serde_json::from_value(json!({"type": kind, "runId": "r", "payload": payload})).unwrap());
            desk.waiting.iter().map(|question| question.call.clone()).collect::<Vec<_>>()
        };
        let schema = json!({"resumeSchema": "{}"});
        assert_eq!(chunk("tool-call-approval", "a", schema.clone()), ["a"]);
        assert_eq!(chunk("tool-call-suspended", "b", json!({"resumeSchema": "{}", "suspendPayload": 1})), ["a", "b"]);
        assert_eq!(chunk("tool-call-approval", "a", schema), ["a", "b"]);
        assert_eq!(chunk("tool-result", "a", json!({"result": 1})), ["b"]);
        assert_eq!(chunk("abort", "", json!({})), [] as [&str; 0]);
    }
}
