//! From stored messages to what a model reads (MEM §7).

use serde_json::Value;

use super::{FilePart, Part, ReasoningPart, Role, StoredMessage, ToolInvocation, ToolInvocationPart, ToolState};
use crate::{
    json::Object,
    model::{AssistantPart, PromptMessage, ToolOutput, ToolResultTurn, UserPart},
    signal::Signal,
};

/// How a prompt is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PromptOptions {
    /// Leave calls without a result out; else they are answered as pending (MEM-084). Default: true.
    pub filter_incomplete_tool_calls: bool,
    /// What the model reads of one tool result, at most, in bytes (R42). Default: no limit.
    pub max_tool_result_bytes: Option<usize>,
}

impl Default for PromptOptions {
    fn default() -> Self {
        Self { filter_incomplete_tool_calls: true, max_tool_result_bytes: None }
    }
}

/// How many rows before the wanted ones [`history_window`] should be given, so that it can extend the window by a turn.
pub const HISTORY_EXTRA: u32 = 16;

/// The newest `limit` rows of `rows` (oldest first), extended backwards to the input that the first of them answers if
/// they would start with an assistant row (MEM-088). Not extended if that input is not among `rows`. Rows that a guard
/// blocked come along and do not count: no prompt has them (ruling 34).
pub fn history_window(rows: &[StoredMessage], limit: usize) -> &[StoredMessage] {
    let mut counted = 0;
    let first = rows.iter().rposition(|row| {
        counted += usize::from(!row.is_blocked());
        !row.is_blocked() && counted == limit
    });
    let cut = if limit == 0 { rows.len() } else { first.unwrap_or(0) };
    let (before, kept) = rows.split_at(cut);
    if kept.first().is_none_or(|first| first.role != Role::Assistant) {
        return kept;
    }
    let input = before.iter().rposition(|row| matches!(row.role, Role::User | Role::Signal));
    input.map_or(kept, |start| &rows[start..])
}

/// What a model reads of `messages`, which are in the order of the transcript: system messages first, then turns in
/// which every call is followed by its one result (MEM-081 … MEM-088). Rows that a guard blocked are left out
/// (ruling 34).
///
/// ```
/// use bugle::message::{PromptOptions, Role, StoredMessage, build_prompt};
/// let hello = StoredMessage::text("m1".into(), Role::User, "Hello", Default::default());
/// assert_eq!(build_prompt(&[hello], &PromptOptions::default()).len(), 1);
/// ```
pub fn build_prompt(messages: &[StoredMessage], options: &PromptOptions) -> Vec<PromptMessage> {
    build_prompt_for(messages, options, None)
}

/// As [`build_prompt`], for a model of `provider`: what another provider executed itself is dropped (MEM-086).
pub fn build_prompt_for(
    messages: &[StoredMessage],
    options: &PromptOptions,
    provider: Option<&str>,
) -> Vec<PromptMessage> {
    let mut out = Vec::with_capacity(messages.len() + 1);
    out.extend(messages.iter().filter(|row| row.role == Role::System && !row.is_blocked()).map(|row| {
        PromptMessage::System {
            content: row.joined_text(),
            provider_options: provider_options(row.content.provider_metadata.as_ref()),
        }
    }));
    let mut builder = Builder { out, turn: Turn::default(), options: *options, provider };
    for row in messages.iter().filter(|row| !row.is_blocked()) {
        match row.role {
            Role::System => {}
            // Feedback of a check is stored as the reference stores it, and read as a reminder on the user's side (ruling 10).
            Role::Assistant if row.content.meta("completionResult").is_some() => {
                builder.flush();
                builder.out.extend(user_turn(row));
            }
            Role::Assistant => builder.assistant(row),
            Role::User => {
                builder.flush();
                builder.out.extend(user_turn(row));
            }
            Role::Signal => {
                builder.flush();
                builder.out.extend(Signal::from_stored(row).as_ref().map(Signal::to_prompt));
            }
        }
    }
    builder.flush();
    builder.out
}

/// An assistant turn under construction, and the results of its calls.
#[derive(Default)]
struct Turn {
    content: Vec<AssistantPart>,
    provider_options: Option<Object>,
    results: Vec<ToolResultTurn>,
}

struct Builder<'a> {
    out: Vec<PromptMessage>,
    turn: Turn,
    options: PromptOptions,
    provider: Option<&'a str>,
}

impl Builder<'_> {
    fn flush(&mut self) {
        let Turn { content, provider_options, results } = std::mem::take(&mut self.turn);
        // Thoughts that led to nothing are refused by providers that demand their following item.
        if content.iter().all(|part| matches!(part, AssistantPart::Reasoning { .. })) {
            return;
        }
        self.out.push(PromptMessage::Assistant { content, provider_options });
        if !results.is_empty() {
            self.out.push(PromptMessage::Tool { content: results });
        }
    }

    /// What follows a call belongs to the next turn.
    fn after_calls(&mut self) {
        if !self.turn.results.is_empty() {
            self.flush();
        }
    }

    fn assistant(&mut self, row: &StoredMessage) {
        self.after_calls();
        let options = provider_options(row.content.provider_metadata.as_ref());
        if !self.turn.content.is_empty() && self.turn.provider_options != options {
            self.flush();
        }
        self.turn.provider_options = options;
        let foreign = match (self.provider, row.content.meta("provider").and_then(Value::as_str)) {
            (Some(now), Some(then)) => now != then,
            _ => false,
        };
        for call in old_invocations(row) {
            self.call(&call, foreign);
        }
        if row.content.parts.is_empty()
            && let Some(text) = &row.content.content
        {
            self.text(text, None);
        }
        for part in &row.content.parts {
            match part {
                Part::Text(part) => self.text(&part.text, part.provider_metadata.as_ref()),
                Part::Reasoning(part) => {
                    self.after_calls();
                    reasoning(part, &mut self.turn.content);
                }
                Part::File(part) => {
                    self.after_calls();
                    self.turn
                        .content
                        .push(AssistantPart::File { data: part.data.clone(), media_type: media_type(part) });
                }
                Part::ToolInvocation(part) => self.call(part, foreign),
                Part::StepStart(_) => self.after_calls(),
                Part::Error(_) | Part::Other(_) => {}
            }
        }
        if is_sealed(row) {
            self.flush();
        }
    }

    fn text(&mut self, text: &str, metadata: Option<&Object>) {
        if text.is_empty() {
            return;
        }
        self.after_calls();
        self.turn
            .content
            .push(AssistantPart::Text { text: text.to_owned(), provider_options: provider_options(metadata) });
    }

    fn call(&mut self, part: &ToolInvocationPart, foreign: bool) {
        let call = &part.tool_invocation;
        if foreign && part.provider_executed == Some(true) {
            return;
        }
        let Some(output) = self.output(part) else { return };
        // The same id again is a later step, not a parallel call (R33a).
        if self.turn.results.iter().any(|result| result.tool_call_id == call.tool_call_id) {
            self.flush();
        }
        self.turn.content.push(AssistantPart::ToolCall {
            tool_call_id: call.tool_call_id.clone(),
            tool_name: call.tool_name.clone(),
            input: call.args.clone(),
            provider_executed: part.provider_executed,
            provider_options: provider_options(part.provider_metadata.as_ref()),
        });
        self.turn.results.push(ToolResultTurn {
            tool_call_id: call.tool_call_id.clone(),
            tool_name: call.tool_name.clone(),
            output,
        });
    }

    /// What the model reads of the call's outcome; `None` drops the call.
    fn output(&self, part: &ToolInvocationPart) -> Option<ToolOutput> {
        if let Some(output) = tool_output(part) {
            return Some(self.limited(output));
        }
        let dropped = part.tool_invocation.state == ToolState::PartialCall || self.options.filter_incomplete_tool_calls;
        (!dropped).then(|| ToolOutput::Text("This call is pending: it has no result yet.".to_owned()))
    }

    fn limited(&self, output: ToolOutput) -> ToolOutput {
        let Some(max) = self.options.max_tool_result_bytes else { return output };
        match output {
            ToolOutput::Text(text) if text.len() > max => ToolOutput::Text(crate::tool::limit_for_model(&text, max)),
            ToolOutput::ErrorText(text) if text.len() > max => {
                ToolOutput::ErrorText(crate::tool::limit_for_model(&text, max))
            }
            ToolOutput::Json(value) => {
                let text = value.to_string();
                if text.len() > max {
                    ToolOutput::Text(crate::tool::limit_for_model(&text, max))
                } else {
                    ToolOutput::Json(value)
                }
            }
            other => other,
        }
    }
}

/// What a model reads of a call's outcome (MEM-083); `None` if it has none yet.
pub(super) fn tool_output(part: &ToolInvocationPart) -> Option<ToolOutput> {
    let call = &part.tool_invocation;
    match call.state {
        ToolState::Result => Some(model_output(part).unwrap_or_else(|| match &call.result {
            Some(Value::String(text)) => ToolOutput::Text(text.clone()),
            Some(value) => ToolOutput::Json(value.clone()),
            None => ToolOutput::Json(Value::Null),
        })),
        ToolState::OutputError => Some(ToolOutput::ErrorText(error_text(call))),
        ToolState::OutputDenied => Some(ToolOutput::Text(denial(call))),
        ToolState::PartialCall | ToolState::Call | ToolState::ApprovalRequested | ToolState::ApprovalResponded => None,
    }
}

/// Whether the next assistant row starts a turn of its own (MEM-087).
fn is_sealed(row: &StoredMessage) -> bool {
    let mastra = row.content.meta("mastra");
    let flag = |name: &str| mastra.and_then(|mastra| mastra.get(name)) == Some(&Value::Bool(true));
    flag("responseBoundary") || flag("sealed") || row.content.meta("completionResult").is_some()
}

/// LOOP-074.
fn model_output(part: &ToolInvocationPart) -> Option<ToolOutput> {
    let output = part.provider_metadata.as_ref()?.get("mastra")?.get("modelOutput")?;
    serde_json::from_value(output.clone()).ok()
}

pub(super) fn error_text(call: &ToolInvocation) -> String {
    match (&call.error_text, &call.result) {
        (Some(text), _) => text.clone(),
        (None, Some(Value::String(text))) => text.clone(),
        (None, Some(value)) => value.to_string(),
        (None, None) => "The tool failed.".to_owned(),
    }
}

/// LOOP-112.
fn denial(call: &ToolInvocation) -> String {
    let reason = call.approval.as_ref().and_then(|approval| approval.get("reason")).and_then(Value::as_str);
    let told = reason.or_else(|| call.result.as_ref().and_then(Value::as_str)).filter(|reason| !reason.is_empty());
    told.unwrap_or("The user did not approve this tool call; it was not run.").to_owned()
}

/// Calls of rows older than parts (MEM-040).
fn old_invocations(row: &StoredMessage) -> Vec<ToolInvocationPart> {
    let has_parts = row.content.parts.iter().any(|part| matches!(part, Part::ToolInvocation(_)));
    match row.content.extra.get("toolInvocations") {
        Some(Value::Array(calls)) if !has_parts => calls
            .iter()
            .filter_map(|call| serde_json::from_value(call.clone()).ok())
            .map(|tool_invocation| ToolInvocationPart {
                tool_invocation,
                created_at: None,
                provider_metadata: None,
                provider_executed: None,
                extra: Object::new(),
            })
            .collect(),
        _ => Vec::new(),
    }
}

/// Thoughts with what the provider wants back (MEM-081, LOOP-228).
pub(super) fn reasoning(part: &ReasoningPart, content: &mut Vec<AssistantPart>) {
    let detail = |detail: &Value, name: &str| detail.get(name).and_then(Value::as_str).map(str::to_owned);
    let signed = |detail: &Value| detail.get("signature").is_some() || detail.get("data").is_some();
    let options = provider_options(part.provider_metadata.as_ref());
    if options.is_none() && part.details.iter().any(signed) {
        for piece in &part.details {
            let anthropic = match (detail(piece, "signature"), detail(piece, "data")) {
                (Some(signature), _) => Some(("signature", signature)),
                (None, Some(data)) => Some(("redactedData", data)),
                (None, None) => None,
            };
            let provider_options = anthropic
                .and_then(|(name, value)| serde_json::json!({"anthropic": {name: value}}).as_object().cloned());
            let text = detail(piece, "text").unwrap_or_default();
            content.push(AssistantPart::Reasoning { text, provider_options });
        }
        return;
    }
    let text = if part.reasoning.is_empty() {
        part.details.iter().filter_map(|piece| piece.get("text")?.as_str()).collect()
    } else {
        part.reasoning.clone()
    };
    if !text.is_empty() || options.is_some() {
        content.push(AssistantPart::Reasoning { text, provider_options: options });
    }
}

fn user_turn(row: &StoredMessage) -> Option<PromptMessage> {
    let mut content: Vec<UserPart> = row
        .content
        .parts
        .iter()
        .filter_map(|part| match part {
            Part::Text(part) => Some(UserPart::Text {
                text: part.text.clone(),
                provider_options: provider_options(part.provider_metadata.as_ref()),
            }),
            Part::File(part) => Some(UserPart::File {
                data: part.data.clone(),
                media_type: media_type(part),
                filename: part.filename.clone(),
                provider_options: provider_options(part.provider_metadata.as_ref()),
            }),
            _ => None,
        })
        .collect();
    if content.is_empty()
        && let Some(text) = &row.content.content
    {
        content.push(UserPart::Text { text: text.clone(), provider_options: None });
    }
    if !content.iter().any(|part| matches!(part, UserPart::File { .. })) {
        content.extend(old_attachments(row));
    }
    let provider_options = provider_options(row.content.provider_metadata.as_ref());
    (!content.is_empty()).then_some(PromptMessage::User { content, provider_options })
}

/// Files of rows that kept them beside their parts (MEM-040).
fn old_attachments(row: &StoredMessage) -> Vec<UserPart> {
    let Some(Value::Array(files)) = row.content.extra.get("experimental_attachments") else { return Vec::new() };
    files
        .iter()
        .filter_map(|file| {
            let text = |name: &str| file.get(name).and_then(Value::as_str).map(str::to_owned);
            let data = text("url")?;
            let media_type = text("contentType").unwrap_or_else(|| guess_media_type(&data).to_owned());
            Some(UserPart::File { data, media_type, filename: text("name"), provider_options: None })
        })
        .collect()
}

/// Provider metadata without what the runtime keeps there for itself.
fn provider_options(metadata: Option<&Object>) -> Option<Object> {
    let metadata = metadata?;
    let kept: Object =
        metadata.iter().filter(|(key, _)| *key != "mastra").map(|(key, value)| (key.clone(), value.clone())).collect();
    (!kept.is_empty()).then_some(kept)
}

pub(super) fn media_type(part: &FilePart) -> String {
    part.mime_type.clone().unwrap_or_else(|| guess_media_type(&part.data).to_owned())
}

/// The media type of a file whose sender named none, by its `data:` URI, its extension or its first bytes.
pub(super) fn guess_media_type(data: &str) -> &str {
    const UNKNOWN: &str = "application/octet-stream";
    if let Some(rest) = data.strip_prefix("data:") {
        return rest.split([';', ',']).next().filter(|media_type| !media_type.is_empty()).unwrap_or("text/plain");
    }
    if data.starts_with("http://") || data.starts_with("https://") {
        let path = data.split(['?', '#']).next().unwrap_or(data);
        let extension = path.rsplit('/').next().and_then(|name| name.rsplit_once('.')).map(|(_, extension)| extension);
        return match extension.map(str::to_ascii_lowercase).as_deref() {
            Some("png") => "image/png",
            Some("jpg" | "jpeg") => "image/jpeg",
            Some("gif") => "image/gif",
            Some("webp") => "image/webp",
            Some("svg") => "image/svg+xml",
            Some("pdf") => "application/pdf",
            Some("txt" | "md") => "text/plain",
            Some("mp3") => "audio/mpeg",
            Some("wav") => "audio/wav",
            Some("mp4") => "video/mp4",
            _ => UNKNOWN,
        };
    }
    let magic = [
        ("iVBORw0KGgo", "image/png"),
        ("/9j/", "image/jpeg"),
        ("R0lGOD", "image/gif"),
        ("UklGR", "image/webp"),
        ("JVBERi", "application/pdf"),
    ];
    magic.iter().find(|(start, _)| data.starts_with(start)).map_or(UNKNOWN, |(_, media_type)| media_type)
}

#[cfg(test)]
#[path = "prompt_tests.rs"]
mod tests;
