//! How an answer is compared with a capture of the reference. All rules are here:
//!
//! 1. **Ids** (`00000000-0000-4000-8000-…`, `call_…`) stand for one id each: the first that is met in its place, the same
//!    everywhere else, and no other's. They may be part of a longer text.
//! 2. **Times** (`1767225600000`, `2026-01-01T00:00:00.000Z`) and `duration` stand for any.
//! 3. **`<…>`** (`<elided>`, `<model request>`, `<server stack trace>`) stands for anything, or nothing. A member `<cut>`
//!    says that the capture ends there: the object may go on.
//! 4. Object members come in any order. Members that the reference has and Bugle leaves out, and the reverse, are named
//!    in [`LEFT_OUT`] and [`ADDED`], each with the requirement that says so.
//! 5. **Model requests** are shown nowhere: `request` is `{}` (HTTP-029).
//! 6. **Errors** keep name, message, status and what the provider said; a tool's error has a message of its own (HTTP-029,
//!    HTTP-054, LOOP-143).
//! 7. **Usage**: the counts that both name; those of a failed run are the sum so far (LOOP-162). The prompts of delegated
//!    runs differ, since the parent's system messages are not forwarded (ruling 9): what they read is not compared.
//! 8. **A response that resumes** says a pending call again before what became of it (HTTP-104).
//! 9. **On a subscription** the echo of a user comes before `start` (HTTP-221).
//! 10. **`finish`** has text and calls of the whole run; the reference those of its last step (HTTP §16, "totals of the run").
//!     The one of a run that only shows a persisted signal is a whole `finish`; the reference's has two members (HTTP-077).
//! 11. **A `generate` that waits** tells what is stored by then; the reference's `response` says nothing (HTTP-041).
//! 12. **Steps of `generate`** have what is theirs; the reference repeats messages, and what earlier steps said (HTTP-068):
//!     the `content` of a step is that of the step before it, and after that step's end it lacks the step's own text, which
//!     its `text` has. Of an answer with steps, `toolCalls` and `toolResults` are those of all steps (HTTP-120); the
//!     reference has those of the last one. See [`own_steps`].
//! 13. **Chunks of Bugle's own** ([`OWN_CHUNKS`]) are passed over, and the end of a block that an abort cut off.
//! 14. **What a validator says** of a wrong argument is its own text.

use std::collections::HashMap;

use bugle::{
    json::{Object, Value, json},
    time::Timestamp,
};

/// Members of the reference that Bugle does not send: where (the name of the object or of the chunk; empty = anywhere),
/// name.
const LEFT_OUT: &[(&str, &str)] = &[
    // The reference repeats the chunk's type inside (HTTP §16).
    ("payload", "type"),
    // Said by the `step-finish` before it; `finish` repeats nothing of steps (HTTP-068).
    ("finish", "isTaskCompleteCheckFailed"),
    // A mark of its own (HTTP-079).
    ("signal", "__isCreatedSignal"),
    // Model requests, also when they are empty (HTTP-049).
    ("", "request"),
    // An empty list.
    ("stepResult", "warnings"),
    // All messages and steps so far, once a step (HTTP-068).
    ("output", "steps"),
    ("step-finish", "messages"),
    ("messages", "all"),
    ("messages", "user"),
    ("response", "uiMessages"),
    // What the provider sent, as it came.
    ("response", "body"),
    // Of the library that makes its schemas (HTTP-033).
    ("json", "$schema"),
    ("", "suspendSchema"),
    ("", "resumeSchema"),
];

/// Members of the reference's steps that Bugle does not repeat (rule 12).
const LEFT_OUT_OF_STEPS: &[&str] =
    &["body", "messages", "dbMessages", "uiMessages", "providerMetadata", "providerOptions"];

/// A delegation goes on (SUB-133).
const OWN_CHUNKS: &[&str] = &["data-tool-call-resumed"];

/// Members that Bugle sends and the reference does not.
const ADDED: &[(&str, &str)] = &[
    // What became of the input (HTTP-079).
    ("", "action"),
    // How a delegation ended, and what delegations cost (SUB §4, SUB-154).
    ("result", "finishReason"),
    ("result", "usage"),
    ("output", "subAgentUsage"),
    // Which inputs the run has seen (SIG-514).
    ("finish", "consumedSignalIds"),
    // Said of every failed result (LOOP-143).
    ("payload", "isError"),
    // Of parts, which the reference forgets for delegations.
    ("", "createdAt"),
    // Rule 11.
    ("response", "messages"),
    ("response", "uiMessages"),
];

/// What is known of ids so far.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    ids: HashMap<String, String>,
}

const CUT: &str = "<cut>";
const UUID: &str = "00000000-0000-4000-8000-";
const UUID_LEN: usize = 36;

/// The first id in a text of a capture: where it begins and ends.
fn placeholder(text: &str) -> Option<(usize, usize)> {
    if let Some(start) = text.find(UUID) {
        return Some((start, start + UUID_LEN));
    }
    let is_call =
        text.strip_prefix("call_").is_some_and(|rest| !rest.is_empty() && rest.bytes().all(|b| b.is_ascii_digit()));
    is_call.then_some((0, text.len()))
}

fn is_elided(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.starts_with('<') && text.ends_with('>'))
}

impl Rules {
    /// A request of a capture with the ids that are known by now.
    pub(crate) fn known(&self, text: &str) -> String {
        self.ids.iter().fold(text.to_owned(), |text, (placeholder, id)| {
            text.replace(&format!("\"{placeholder}\""), &format!("\"{id}\""))
        })
    }

    /// Fails with all differences of two lists of chunks.
    pub(crate) fn same_chunks(&mut self, expected: &[Value], actual: &[Value]) {
        let known = |chunk: &Value| !OWN_CHUNKS.iter().any(|kind| chunk["type"] == *kind);
        let cut = |at: usize| {
            let ends = actual[at]["type"].as_str().is_some_and(|kind| kind.ends_with("-end"));
            ends && actual.get(at + 1).is_some_and(|next| next["type"] == "abort")
        };
        let actual = actual.iter().enumerate().filter(|(at, chunk)| known(chunk) && !cut(*at));
        let actual: Vec<Value> = actual.map(|(_, chunk)| chunk.clone()).collect();
        let kinds = |chunks: &[Value]| chunks.iter().map(kind).collect::<Vec<_>>();
        assert_eq!(kinds(expected), kinds(&actual), "the types of the chunks");
        let mut found = Vec::new();
        for (at, (expected, actual)) in expected.iter().zip(&actual).enumerate() {
            self.compare(&format!("{at}:{}", kind(expected)), expected, actual, &mut found);
        }
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    /// Fails with all differences of two values.
    pub(crate) fn same(&mut self, expected: &Value, actual: &Value) {
        let mut found = Vec::new();
        self.compare("", &own_steps(expected), actual, &mut found);
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    fn compare(&mut self, path: &str, expected: &Value, actual: &Value, found: &mut Vec<String>) {
        let name = path.rsplit('/').next().unwrap_or_default();
        match (expected, actual) {
            _ if is_elided(expected) || name == "duration" => {}
            (_, Value::Object(actual)) if name == "request" => {
                if !actual.is_empty() {
                    found.push(format!("{path}: a request is shown"));
                }
            }
            (Value::Object(expected), Value::Object(actual)) if name == "error" => {
                Self::compare_errors(path, expected, actual, found);
            }
            (Value::Object(expected), Value::Object(actual)) if name == "usage" || name == "totalUsage" => {
                compare_usage(path, expected, actual, found);
            }
            (Value::Object(expected), Value::Object(actual)) => self.compare_objects(path, expected, actual, found),
            // Rule 10.
            (Value::Array(last), Value::Array(all))
                if name == "toolCalls" && of_finish(path) && all.len() > last.len() =>
            {
                let all = Value::Array(all[all.len() - last.len()..].to_vec());
                self.compare(&format!("{path}/last"), expected, &all, found);
            }
            (Value::String(last), Value::String(all)) if name == "text" && of_finish(path) && all.ends_with(last) => {}
            // Rule 14.
            (Value::String(_), Value::String(said)) if path.contains("/validationErrors/fields/") => {
                if said.is_empty() {
                    found.push(format!("{path}: says nothing"));
                }
            }
            (Value::String(expected), Value::String(said))
                if name == "message" && expected.starts_with("Tool input validation failed for ") =>
            {
                if said.lines().next() != expected.lines().next() {
                    found.push(format!("{path}: {said:?}, not {expected:?}"));
                }
            }
            // Rule 11.
            (Value::Array(none), Value::Array(_)) if name == "dbMessages" && none.is_empty() => {}
            (Value::Array(expected), Value::Array(actual)) => {
                if expected.len() != actual.len() {
                    found.push(format!("{path}: {} items, not {}", actual.len(), expected.len()));
                }
                for (at, (expected, actual)) in expected.iter().zip(actual).enumerate() {
                    self.compare(&format!("{path}/{at}"), expected, actual, found);
                }
            }
            (Value::String(expected), Value::String(actual)) => self.compare_texts(path, expected, actual, found),
            (Value::Number(number), _) if number.as_u64() == Some(1_767_225_600_000) => {
                if actual.as_u64().is_none_or(|time| time < 1_600_000_000_000) {
                    found.push(format!("{path}: {actual} is no time"));
                }
            }
            (expected, actual) if expected == actual => {}
            (Value::Number(one), Value::Number(other)) if one.as_f64() == other.as_f64() => {}
            (expected, actual) => found.push(format!("{path}: {actual}, not {expected}")),
        }
    }

    fn compare_objects(&mut self, path: &str, expected: &Object, actual: &Object, found: &mut Vec<String>) {
        let mut places = path.rsplit('/').map(|place| place.rsplit(':').next().unwrap_or_default());
        let (place, around) = (places.next().unwrap_or_default(), places.next().unwrap_or_default());
        let is_in = |list: &[(&str, &str)], name: &str| {
            let is_here = |of: &str| of.is_empty() || of == place || (place == "payload" && of == around);
            list.iter().any(|(of, member)| *member == name && is_here(of))
        };
        for (name, value) in expected.iter().filter(|(name, _)| *name != CUT) {
            match actual.get(name) {
                Some(actual) => self.compare(&format!("{path}/{name}"), value, actual, found),
                None if is_elided(value) || is_in(LEFT_OUT, name) => {}
                None if path.contains("/steps/") && LEFT_OUT_OF_STEPS.contains(&&**name) => {}
                None => found.push(format!("{path}/{name}: missing; {value}")),
            }
        }
        let is_pretended = place == "payload" && of_finish(path) && !expected.contains_key("messageId");
        let is_cut = expected.contains_key(CUT) || is_pretended || (is_small(around, expected) && of_finish(path));
        let others = actual.iter().filter(|(name, _)| !is_cut && !expected.contains_key(*name) && !is_in(ADDED, name));
        for (name, value) in others {
            // The form of stored messages, which the reference's answers leave out where its rows have it (STO §2.2).
            if name == "type" && value == "v2" && path.contains("essages") {
                continue;
            }
            found.push(format!("{path}/{name}: not in the capture; {value}"));
        }
    }

    fn compare_texts(&mut self, path: &str, expected: &str, actual: &str, found: &mut Vec<String>) {
        if expected == "2026-01-01T00:00:00.000Z" {
            if Timestamp::parse(actual).is_none() {
                found.push(format!("{path}: {actual} is no time"));
            }
            return;
        }
        let Some((start, end)) = placeholder(expected) else {
            // Schemas as text: the members count, not their order.
            let both = (serde_json::from_str::<Object>(expected), serde_json::from_str::<Object>(actual));
            match both {
                (Ok(expected), Ok(actual)) => {
                    self.compare(path, &Value::Object(expected), &Value::Object(actual), found);
                }
                _ if expected != actual => found.push(format!("{path}: {actual:?}, not {expected:?}")),
                _ => {}
            }
            return;
        };
        let (before, id, after) = (&expected[..start], &expected[start..end], &expected[end..]);
        let given = actual.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        let Some(given) = given.filter(|given| !given.is_empty()) else {
            found.push(format!("{path}: {actual:?}, not {expected:?}"));
            return;
        };
        match self.ids.get(id) {
            Some(known) if known == given => {}
            Some(known) => found.push(format!("{path}: {given} where {id} was {known}")),
            None if self.ids.values().any(|known| known == given) => {
                found.push(format!("{path}: {given} is the id of something else, not {id}"));
            }
            None => {
                self.ids.insert(id.to_owned(), given.to_owned());
            }
        }
    }

    fn compare_errors(path: &str, expected: &Object, actual: &Object, found: &mut Vec<String>) {
        // Its name is that of the library which the reference uses. A tool's error has its message in a cause (HTTP-054).
        for name in ["message", "statusCode", "responseBody", "isRetryable"] {
            if let (Some(one), Some(other)) = (expected.get(name), actual.get(name))
                && one != other
            {
                found.push(format!("{path}/{name}: {other}, not {one}"));
            }
        }
        if actual.get("message").and_then(Value::as_str).is_none_or(str::is_empty) {
            found.push(format!("{path}: no message in {}", json!(actual)));
        }
        let whole = json!(actual).to_string();
        for shown in ["\"stack\"", "\"requestBodyValues\"", "\"responseHeaders\""] {
            if whole.contains(shown) {
                found.push(format!("{path}: {shown} is shown"));
            }
        }
    }
}

/// Whether an object is one of a pretended run's `finish` (rule 10).
fn is_small(around: &str, expected: &Object) -> bool {
    around == "payload" && expected.len() == 1 && (expected.contains_key("reason") || expected.contains_key("usage"))
}

/// Whether a path lies in a run's `finish`, of a delegated run too.
fn of_finish(path: &str) -> bool {
    let chunk = path.split('/').next().unwrap_or_default();
    chunk.ends_with(":finish") || chunk.ends_with(" finish")
}

fn compare_usage(path: &str, expected: &Object, actual: &Object, found: &mut Vec<String>) {
    let is_nested = path.contains("/output/payload/");
    let counts: &[&str] = if is_nested { &["outputTokens"] } else { &["inputTokens", "outputTokens", "totalTokens"] };
    for &name in counts {
        match (expected.get(name), actual.get(name)) {
            (Some(one), Some(other)) if one != other => found.push(format!("{path}/{name}: {other}, not {one}")),
            (Some(one), None) if one.as_u64() != Some(0) => found.push(format!("{path}/{name}: missing; {one}")),
            _ => {}
        }
    }
}

fn kind(chunk: &Value) -> String {
    let own = chunk["type"].as_str().unwrap_or_default();
    match chunk.pointer("/payload/output/type").and_then(Value::as_str) {
        Some(inner) if own == "tool-output" => format!("{own} {inner}"),
        _ => own.to_owned(),
    }
}

/// Rule 12: the capture of a `generate`, with what is each step's own, and at its end what all of them did.
fn own_steps(answer: &Value) -> Value {
    let mut own = answer.clone();
    let Some(steps) = answer["steps"].as_array().filter(|steps| !steps.is_empty()) else { return own };
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    for (at, pair) in steps.windows(2).enumerate() {
        let (before, step) = (list(&pair[0]["content"]), list(&pair[1]["content"]));
        let mut content = step.strip_prefix(before.as_slice()).unwrap_or(&step).to_vec();
        let text = pair[1]["text"].as_str().unwrap_or_default();
        if !text.is_empty() && content.iter().all(|part| part["type"] != "text") {
            content.insert(0, json!({"type": "text", "text": text}));
        }
        own["steps"][at + 1]["content"] = Value::Array(content);
    }
    for name in ["toolCalls", "toolResults"] {
        own[name] = steps.iter().flat_map(|step| list(&step[name])).collect();
    }
    own
}

/// Rule 8: the capture of a response that resumes, as Bugle sends it.
pub(crate) fn with_calls(chunks: &[Value], args: &Value) -> Vec<Value> {
    let mut said: Vec<Value> = Vec::new();
    let mut all = Vec::new();
    for chunk in chunks {
        let payload = &chunk["payload"];
        let id = payload["toolCallId"].clone();
        let is_call = chunk["type"] == "tool-call" || chunk["type"] == "tool-call-input-streaming-start";
        if id.is_string() && !is_call && !said.contains(&id) {
            let call = json!({"toolCallId": id, "toolName": payload["toolName"], "args": args});
            all.push(json!({"type": "tool-call", "runId": chunk["runId"], "from": "AGENT", "payload": call}));
        }
        if id.is_string() {
            said.push(id);
        }
        all.push(chunk.clone());
    }
    all
}

/// Rule 9: the capture of a subscription, as Bugle sends it.
pub(crate) fn echo_first(chunks: &[Value]) -> Vec<Value> {
    let mut all = chunks.to_vec();
    for at in 1..all.len() {
        if all[at]["type"] == "data-user-message" && all[at - 1]["type"] == "start" {
            all.swap(at, at - 1);
        }
    }
    all
}
