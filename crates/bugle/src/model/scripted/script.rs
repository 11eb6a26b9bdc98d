//! What a scripted answer is made of.

use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;

use super::super::{ModelError, ModelErrorKind, ModelEvent};
use crate::chunk::{FinishReason, Usage};

/// One step of a scripted answer.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum ScriptStep {
    /// The answer's headers: from here on a failure is in band. Whatever sends anything sends them too.
    Headers,
    /// One delta of text. Blocks are opened and closed as needed.
    Text(String),
    /// One delta of reasoning.
    Reasoning(String),
    /// `w1 w2 …`, or `t1 t2 …` as reasoning, with a wait before each.
    Words {
        /// How many.
        count: u64,
        /// How many have been sent.
        sent: u64,
        /// The wait before each.
        every: Duration,
        /// As reasoning.
        reasoning: bool,
    },
    /// A tool call, its arguments in two deltas. It is complete when the answer finishes.
    Call {
        /// The call's id; `None`: `call_1`, `call_2`, … counted over the model's life.
        id: Option<String>,
        /// The tool.
        name: String,
        /// The arguments as text, which need not be JSON.
        input: String,
    },
    /// This event as it is. Open text and reasoning stay open.
    Emit(ModelEvent),
    /// Pauses.
    Wait(Duration),
    /// Waits for the gate to be opened.
    Gate(Gate),
    /// Fails: the request itself before the headers, else the stream.
    Fail(ModelError),
    /// Sends nothing more until the caller leaves.
    Hang,
    /// Ends the answer. Added at the end of a script that does not end otherwise.
    Finish {
        /// Why; `None`: `tool_calls` if there was a call, else `stop`.
        reason: Option<FinishReason>,
        /// The usage; `None`: prompt tokens = number of messages, completion tokens = number of deltas.
        usage: Option<Usage>,
    },
}

/// A scripted answer: steps in order. Finishes by itself after the last.
#[derive(Debug, Clone, Default)]
pub struct Script {
    pub(super) steps: Vec<ScriptStep>,
}

impl From<Vec<ScriptStep>> for Script {
    fn from(steps: Vec<ScriptStep>) -> Self {
        Self { steps }
    }
}

impl From<&str> for Script {
    /// An answer that says this.
    fn from(text: &str) -> Self {
        Self::new().text(text)
    }
}

impl Script {
    /// An answer without content.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a step.
    pub fn step(mut self, step: ScriptStep) -> Self {
        self.steps.push(step);
        self
    }

    /// Streams text word by word.
    pub fn text(mut self, text: &str) -> Self {
        self.steps.extend(words(text).map(|word| ScriptStep::Text(word.to_owned())));
        self
    }

    /// Streams reasoning word by word.
    pub fn think(mut self, text: &str) -> Self {
        self.steps.extend(words(text).map(|word| ScriptStep::Reasoning(word.to_owned())));
        self
    }

    /// Calls a tool under the model's next id.
    pub fn call(self, name: &str, input: Value) -> Self {
        self.step(ScriptStep::Call { id: None, name: name.to_owned(), input: input.to_string() })
    }

    /// Calls a tool under this id, with arguments that need not be JSON.
    pub fn call_as(self, id: &str, name: &str, input: &str) -> Self {
        self.step(ScriptStep::Call { id: Some(id.to_owned()), name: name.to_owned(), input: input.to_owned() })
    }

    /// Sends this event.
    pub fn emit(self, event: ModelEvent) -> Self {
        self.step(ScriptStep::Emit(event))
    }

    /// Answers with headers before anything else happens.
    pub fn headers(self) -> Self {
        self.step(ScriptStep::Headers)
    }

    /// Pauses.
    pub fn wait(self, wait: Duration) -> Self {
        self.step(ScriptStep::Wait(wait))
    }

    /// Waits for the gate. Before any content and without [`Script::headers`] the request itself waits.
    pub fn gate(self, gate: &Gate) -> Self {
        self.step(ScriptStep::Gate(gate.clone()))
    }

    /// Fails: before the headers the request, else the stream.
    pub fn fail(self, error: ModelError) -> Self {
        self.step(ScriptStep::Fail(error))
    }

    /// Fails with an HTTP status before the headers; after them the connection breaks.
    pub fn fail_with(self, status: u16, message: &str) -> Self {
        let error = ModelError::new(ModelErrorKind::Status, message).with_status(status);
        self.fail(error.with_body(openai_error(status, message)))
    }

    /// Fails with an error event inside the answer (LOOP-048).
    pub fn fail_in_band(self, status: u16, message: &str) -> Self {
        self.headers().fail(ModelError::new(ModelErrorKind::InBand, message).with_status(status))
    }

    /// Ends the stream before the answer is complete (R31a).
    pub fn cut(self) -> Self {
        self.headers().fail(broken())
    }

    /// Sends nothing more until the caller leaves.
    pub fn hang(self) -> Self {
        self.step(ScriptStep::Hang)
    }

    /// Ends the answer with this reason.
    pub fn finish(self, reason: FinishReason) -> Self {
        self.step(ScriptStep::Finish { reason: Some(reason), usage: None })
    }

    /// Ends the answer with this reason and usage.
    pub fn finish_with(self, reason: FinishReason, usage: Usage) -> Self {
        self.step(ScriptStep::Finish { reason: Some(reason), usage: Some(usage) })
    }
}

/// Holds a scripted answer at one place until a test opens it, and tells the test that it has got there.
///
/// Stays open once opened. Clones are the same gate.
#[derive(Debug, Clone)]
pub struct Gate {
    open: watch::Sender<bool>,
    reached: watch::Sender<usize>,
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self { open: watch::Sender::new(false), reached: watch::Sender::new(0) }
    }

    /// Lets every answer pass, now and later.
    pub fn open(&self) {
        self.open.send_replace(true);
    }

    /// Waits until an answer has come to the gate.
    pub async fn reached(&self) {
        self.reached_by(1).await;
    }

    /// Waits until `count` answers have come to the gate.
    pub async fn reached_by(&self, count: usize) {
        // The sender lives as long as `self`.
        let _ = self.reached.subscribe().wait_for(|reached| *reached >= count).await;
    }

    pub(super) async fn pass(&self) {
        self.reached.send_modify(|reached| *reached += 1);
        let _ = self.open.subscribe().wait_for(|open| *open).await;
    }
}

/// Words with the blanks after them. Blanks at the start are left out; no word at all is one empty piece.
pub(super) fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text.trim_start();
    let mut first = true;
    std::iter::from_fn(move || {
        if rest.is_empty() && !first {
            return None;
        }
        first = false;
        let word_end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let end = rest[word_end..].find(|c: char| !c.is_whitespace()).map_or(rest.len(), |blanks| word_end + blanks);
        let (word, after) = rest.split_at(end);
        rest = after;
        Some(word)
    })
}

pub(super) fn openai_error(status: u16, message: &str) -> String {
    let code = status.to_string();
    serde_json::json!({ "error": { "message": message, "type": "scripted_error", "param": null, "code": code } })
        .to_string()
}

pub(super) fn broken() -> ModelError {
    ModelError::new(ModelErrorKind::Truncated, "the scripted model broke the connection before its answer was complete")
}
