//! What clients send as input of a run, read into stored form (LOOP-004), and how it meets what is stored (MEM-060 …
//! MEM-063).

use std::collections::{HashMap, HashSet};

use serde_json::Value;

use super::{
    FilePart, MessageContent, Part, ReasoningPart, Role, StoredMessage, TextPart, ToolInvocation, ToolInvocationPart,
    ToolState, prompt::guess_media_type,
};
use crate::{
    error::Error,
    id::MessageId,
    json::Object,
    runtime::{ClientToolResult, RunInput},
    time::Timestamp,
};

/// Input over this many messages is refused: no conversation that a model reads is as long.
const MESSAGES_MAX: usize = 10_000;

impl RunInput {
    /// Reads the `messages` of a request: text, one message, or a list of texts and messages. A message may be a UI
    /// message (`parts`), a model message (`role`, `content`), or a stored one (`content.format` 2).
    ///
    /// Ids and times that were not given are empty and 1970; [`RunInput::fill`] completes them. Results of client tools,
    /// whether they came in a message of role `tool` or inside an assistant message, are in
    /// [`tool_results`](RunInput::tool_results). They also complete the calls among [`messages`](RunInput::messages), so
    /// a client that sends its whole history needs nothing stored; where the call *is* stored, the run completes the
    /// stored one ([`complete_tool_calls`]) and drops the client's copy ([`trailing_input`]).
    ///
    /// # Errors
    /// [`Error::Invalid`] with the field: `messages`, `messages.0.content`, ….
    pub fn from_json(value: &Value) -> Result<Self, Error> {
        Self::read(value, "messages")
    }

    /// As [`Self::from_json`], for a list in another field, such as `context`.
    ///
    /// # Errors
    /// [`Error::Invalid`] with the field below `field`.
    pub fn read(value: &Value, field: &str) -> Result<Self, Error> {
        let missing = || Err(Error::invalid(field, format!("Argument \"{field}\" is required")));
        let mut input = Self::default();
        match value {
            Value::Null => return missing(),
            Value::String(text) if text.is_empty() => return missing(),
            Value::Array(items) if items.is_empty() => return missing(),
            Value::Array(items) if items.len() > MESSAGES_MAX => {
                let message = format!("{} messages are too many; send at most {MESSAGES_MAX}", items.len());
                return Err(Error::invalid(field, message));
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    input.push(item, &format!("{field}.{index}"))?;
                }
            }
            other => input.push(other, field)?,
        }
        Ok(input)
    }

    /// Gives ids and times to messages that have none: times grow by at least a millisecond from `after` (MEM-055). Texts
    /// and files without a time get their message's.
    pub fn fill(&mut self, mut mint: impl FnMut() -> MessageId, after: Timestamp) {
        let mut last = after.as_millis();
        for message in &mut self.messages {
            if message.id.is_empty() {
                message.id = mint();
            }
            // A time from a client's clock that runs ahead would put everything after it into the future as well.
            if message.created_at == Timestamp::default() || message.created_at > after {
                message.created_at = Timestamp::from_millis(last + 1);
            }
            let at = message.created_at.as_millis();
            for part in &mut message.content.parts {
                if let Part::Text(TextPart { created_at, .. }) | Part::File(FilePart { created_at, .. }) = part {
                    created_at.get_or_insert(at);
                }
            }
            last = last.max(at);
        }
    }

    fn push(&mut self, value: &Value, path: &str) -> Result<(), Error> {
        let fields = match value {
            Value::String(text) => {
                self.messages.push(StoredMessage::text("".into(), Role::User, text.as_str(), Timestamp::default()));
                strip_times(self.messages.last_mut());
                return Ok(());
            }
            Value::Object(fields) => fields,
            _ => return Err(Error::invalid(path, format!("{path} must be a text or a message object"))),
        };
        let role = match fields.get("role").and_then(Value::as_str) {
            Some("user") => Role::User,
            Some("assistant") => Role::Assistant,
            Some("system") => Role::System,
            Some("signal") => Role::Signal,
            Some("tool") => return self.tool_message(fields, path),
            Some(other) => {
                let message = format!("{path}.role is {other}; it must be user, assistant, system or tool");
                return Err(Error::invalid(format!("{path}.role"), message));
            }
            None => return Err(Error::invalid(format!("{path}.role"), format!("{path}.role is required"))),
        };
        let content = match (fields.get("content"), fields.get("parts")) {
            (Some(content), _) if content.get("parts").is_some_and(Value::is_array) => {
                serde_json::from_value::<MessageContent>(content.clone()).map_err(|error| {
                    let field = format!("{path}.content");
                    Error::invalid(&field, format!("{field} is not a stored message's content: {error}"))
                })?
            }
            (_, Some(Value::Array(parts))) if !parts.is_empty() => ui_content(fields, parts, role, path)?,
            (Some(Value::String(text)), _) => {
                let parts = vec![Part::Text(TextPart { text: text.clone(), ..TextPart::default() })];
                MessageContent { parts, ..MessageContent::default() }
            }
            (Some(Value::Array(parts)), _) => model_content(parts, role, path)?,
            (_, Some(Value::Array(_))) => MessageContent::default(),
            _ => {
                let field = format!("{path}.content");
                return Err(Error::invalid(&field, format!("{field} must be a text or a list of parts")));
            }
        };
        let message = self.finish(fields, role, content, path)?;
        self.messages.push(message);
        Ok(())
    }

    /// Puts a message together from its content and its other fields.
    fn finish(
        &mut self,
        fields: &Object,
        role: Role,
        mut content: MessageContent,
        path: &str,
    ) -> Result<StoredMessage, Error> {
        let text = |name: &str| fields.get(name).and_then(Value::as_str).map(str::to_owned);
        let created_at = match fields.get("createdAt") {
            None | Some(Value::Null) => Timestamp::default(),
            Some(at) => serde_json::from_value(at.clone()).map_err(|_| {
                let field = format!("{path}.createdAt");
                Error::invalid(&field, format!("{field} must be an ISO 8601 date and time"))
            })?,
        };
        if content.metadata.is_none() {
            content.metadata = fields.get("metadata").and_then(Value::as_object).cloned();
        }
        if content.provider_metadata.is_none() {
            let options = fields.get("providerOptions").or_else(|| fields.get("providerMetadata"));
            content.provider_metadata = options.and_then(Value::as_object).cloned();
        }
        if role == Role::Assistant {
            // MEM-061: what a client says of a provider cannot be trusted to be the provider's.
            content.provider_metadata = None;
            for part in &mut content.parts {
                drop_provider_metadata(part);
                if let Part::ToolInvocation(part) = part {
                    self.collect_result(&part.tool_invocation);
                }
            }
        }
        let mut message = StoredMessage {
            id: text("id").unwrap_or_default().into(),
            role,
            created_at,
            thread_id: text("threadId"),
            resource_id: text("resourceId"),
            kind: if role == Role::Signal { text("type") } else { None },
            content,
        };
        if message.content.content.is_none() && matches!(role, Role::User | Role::Assistant) {
            message.content.content = Some(message.joined_text()).filter(|text| !text.is_empty());
        }
        Ok(message)
    }

    fn collect_result(&mut self, call: &ToolInvocation) {
        let result = match (call.state, &call.result, &call.error_text) {
            (ToolState::Result, result, _) => result.clone().unwrap_or_default(),
            (ToolState::OutputError, _, Some(text)) => Value::String(text.clone()),
            _ => return,
        };
        self.tool_results.push(ClientToolResult {
            tool_call_id: call.tool_call_id.clone(),
            tool_name: call.tool_name.clone(),
            input: Some(call.args.clone()),
            result,
        });
    }

    /// A message of role `tool`: its results complete the newest open calls among the messages before it.
    fn tool_message(&mut self, fields: &Object, path: &str) -> Result<(), Error> {
        let Some(Value::Array(parts)) = fields.get("content") else {
            let field = format!("{path}.content");
            return Err(Error::invalid(&field, format!("{field} must be a list of tool-result parts")));
        };
        for (index, part) in parts.iter().enumerate() {
            let path = format!("{path}.content.{index}");
            if part.get("type").and_then(Value::as_str) == Some("tool-approval-response") {
                continue;
            }
            let result = tool_result(part, &path)?;
            let open = self
                .messages
                .iter_mut()
                .rev()
                .flat_map(|message| message.content.parts.iter_mut().rev())
                .find_map(|part| open_call(part, &result.tool_call_id));
            if let Some(open) = open {
                settle(open, &result.result);
            }
            self.tool_results.push(result);
        }
        Ok(())
    }
}

fn ui_content(fields: &Object, parts: &[Value], role: Role, path: &str) -> Result<MessageContent, Error> {
    let parts = parts
        .iter()
        .enumerate()
        .map(|(index, part)| ui_part(part, &format!("{path}.parts.{index}")))
        .collect::<Result<Vec<_>, _>>()?;
    let mut content = MessageContent { parts, ..MessageContent::default() };
    // UI messages older than `file` parts carry their files beside them.
    if role == Role::User
        && let Some(files @ Value::Array(_)) = fields.get("experimental_attachments")
    {
        content.extra.insert("experimental_attachments".into(), files.clone());
    }
    Ok(content)
}

fn model_content(parts: &[Value], role: Role, path: &str) -> Result<MessageContent, Error> {
    let mut content = MessageContent::default();
    for (index, part) in parts.iter().enumerate() {
        let path = format!("{path}.content.{index}");
        match part.get("type").and_then(Value::as_str) {
            Some("tool-result") if role == Role::Assistant => {
                let result = tool_result(part, &path)?;
                let open = content.parts.iter_mut().rev().find_map(|part| open_call(part, &result.tool_call_id));
                if let Some(open) = open {
                    settle(open, &result.result);
                } else {
                    // A result whose call was left out: the call is made up of what the result says of it.
                    let args = result.input.unwrap_or_else(|| Value::Object(Object::new()));
                    let mut call = new_call(result.tool_call_id, result.tool_name, args);
                    settle(&mut call.tool_invocation, &result.result);
                    content.parts.push(Part::ToolInvocation(call));
                }
            }
            _ => content.parts.push(model_part(part, &path)?),
        }
    }
    Ok(content)
}

fn strip_times(message: Option<&mut StoredMessage>) {
    for part in message.into_iter().flat_map(|message| &mut message.content.parts) {
        if let Part::Text(text) = part {
            text.created_at = None;
        }
    }
}

fn drop_provider_metadata(part: &mut Part) {
    match part {
        Part::Text(part) => part.provider_metadata = None,
        Part::Reasoning(part) => part.provider_metadata = None,
        Part::ToolInvocation(part) => part.provider_metadata = None,
        Part::File(part) => part.provider_metadata = None,
        Part::StepStart(_) | Part::Error(_) | Part::Other(_) => {}
    }
}

fn new_call(tool_call_id: String, tool_name: String, args: Value) -> ToolInvocationPart {
    ToolInvocationPart {
        tool_invocation: ToolInvocation {
            state: ToolState::Call,
            tool_call_id,
            tool_name,
            args,
            result: None,
            error_text: None,
            is_error: None,
            approval: None,
            extra: Object::new(),
        },
        created_at: None,
        provider_metadata: None,
        provider_executed: None,
        extra: Object::new(),
    }
}

fn open_call<'a>(part: &'a mut Part, id: &str) -> Option<&'a mut ToolInvocation> {
    match part {
        Part::ToolInvocation(part)
            if part.tool_invocation.state == ToolState::Call && part.tool_invocation.tool_call_id == id =>
        {
            Some(&mut part.tool_invocation)
        }
        _ => None,
    }
}

fn settle(call: &mut ToolInvocation, result: &Value) {
    call.state = ToolState::Result;
    call.result = Some(result.clone());
}

/// Reads fields of one part, and says which is wrong.
struct Fields<'a> {
    part: &'a Value,
    path: &'a str,
}

impl Fields<'_> {
    fn wrong(&self, name: &str, must: &str) -> Error {
        let field = if name.is_empty() { self.path.to_owned() } else { format!("{}.{name}", self.path) };
        Error::invalid(&field, format!("{field} {must}"))
    }

    fn get(&self, names: &[&str]) -> Option<&Value> {
        names.iter().find_map(|name| self.part.get(name)).filter(|value| !value.is_null())
    }

    fn text(&self, names: &[&str]) -> Result<String, Error> {
        match self.get(names) {
            Some(Value::String(text)) => Ok(text.clone()),
            _ => Err(self.wrong(names[0], "must be a string")),
        }
    }

    fn optional(&self, names: &[&str]) -> Option<String> {
        self.get(names).and_then(Value::as_str).map(str::to_owned)
    }

    fn metadata(&self) -> Option<Object> {
        self.get(&["providerOptions", "providerMetadata"]).and_then(Value::as_object).cloned()
    }

    fn file(&self, names: &[&str]) -> Result<Part, Error> {
        let data = match self.get(names) {
            Some(Value::String(data)) => data.clone(),
            Some(Value::Object(file)) if file.get("url").is_some_and(Value::is_string) => {
                file.get("url").and_then(Value::as_str).unwrap_or_default().to_owned()
            }
            _ => return Err(self.wrong(names[0], "must be base64 text, a data: URI or a URL")),
        };
        let mime_type = self.optional(&["mediaType", "mimeType"]).unwrap_or_else(|| match guess_media_type(&data) {
            "application/octet-stream" if names[0] == "image" => "image/*".to_owned(),
            guessed => guessed.to_owned(),
        });
        Ok(Part::File(FilePart {
            mime_type: Some(mime_type),
            data,
            filename: self.optional(&["filename"]),
            created_at: None,
            provider_metadata: self.metadata(),
            extra: Object::new(),
        }))
    }

    fn text_part(&self) -> Result<Part, Error> {
        let text = self.text(&["text"])?;
        Ok(Part::Text(TextPart { text, provider_metadata: self.metadata(), ..TextPart::default() }))
    }

    fn reasoning(&self) -> Result<Part, Error> {
        let reasoning = self.text(&["text", "reasoning"])?;
        let details = vec![serde_json::json!({"type": "text", "text": reasoning})];
        let provider_metadata = self.metadata();
        Ok(Part::Reasoning(ReasoningPart { reasoning, details, provider_metadata, ..ReasoningPart::default() }))
    }
}

fn model_part(part: &Value, path: &str) -> Result<Part, Error> {
    let fields = Fields { part, path };
    match part.get("type").and_then(Value::as_str) {
        Some("text") => fields.text_part(),
        Some("image") => fields.file(&["image", "data", "url"]),
        Some("file") => fields.file(&["data", "url"]),
        Some("reasoning") => fields.reasoning(),
        Some("tool-call") => {
            let id = fields.text(&["toolCallId"])?;
            let name = fields.text(&["toolName"])?;
            let args = fields.get(&["input", "args"]).cloned().unwrap_or_else(|| Value::Object(Object::new()));
            let provider_executed = part.get("providerExecuted").and_then(Value::as_bool);
            Ok(Part::ToolInvocation(ToolInvocationPart { provider_executed, ..new_call(id, name, args) }))
        }
        Some("tool-approval-request" | "redacted-reasoning") => Ok(Part::Other(part.clone())),
        Some(kind) => Err(fields.wrong("type", &format!("is {kind}, which is no part of such a message"))),
        None => Err(fields.wrong("type", "is required")),
    }
}

fn ui_part(part: &Value, path: &str) -> Result<Part, Error> {
    let fields = Fields { part, path };
    let kind = part.get("type").and_then(Value::as_str).ok_or_else(|| fields.wrong("type", "is required"))?;
    match kind {
        "text" => fields.text_part(),
        "reasoning" if part.get("details").is_none() => fields.reasoning(),
        "file" => fields.file(&["url", "data"]),
        "dynamic-tool" => ui_call(&fields, fields.text(&["toolName"])?),
        "tool-invocation" => Ok(Part::from_value(part.clone())),
        _ => match kind.strip_prefix("tool-") {
            Some(name) if part.get("toolCallId").is_some() => ui_call(&fields, name.to_owned()),
            // Sources, data parts, step starts and kinds of later versions are kept as they are.
            _ => Ok(Part::from_value(part.clone())),
        },
    }
}

fn ui_call(fields: &Fields<'_>, name: String) -> Result<Part, Error> {
    let args = fields.get(&["input", "rawInput"]).cloned().unwrap_or_else(|| Value::Object(Object::new()));
    let mut part = new_call(fields.text(&["toolCallId"])?, name, args);
    part.provider_executed = fields.part.get("providerExecuted").and_then(Value::as_bool);
    let call = &mut part.tool_invocation;
    match fields.optional(&["state"]).as_deref() {
        Some("output-available") => settle(call, fields.part.get("output").unwrap_or(&Value::Null)),
        Some("output-error") => {
            call.state = ToolState::OutputError;
            call.error_text = fields.optional(&["errorText"]);
        }
        Some("output-denied") => {
            call.state = ToolState::OutputDenied;
            call.approval = fields.get(&["approval"]).cloned();
        }
        Some("input-streaming") => call.state = ToolState::PartialCall,
        _ => {}
    }
    Ok(Part::ToolInvocation(part))
}

/// A tool-result part: `{toolCallId, toolName, input?, result | output: {type, value}}`.
fn tool_result(part: &Value, path: &str) -> Result<ClientToolResult, Error> {
    let fields = Fields { part, path };
    if part.get("type").and_then(Value::as_str) != Some("tool-result") {
        return Err(fields.wrong("type", "must be tool-result"));
    }
    let result = match (part.get("output"), part.get("result")) {
        (Some(output), _) => match (output.get("type").and_then(Value::as_str), output.get("value")) {
            (Some("execution-denied"), _) => output.get("reason").cloned().unwrap_or_default(),
            (Some(_), Some(value)) => value.clone(),
            _ => output.clone(),
        },
        (None, Some(result)) => result.clone(),
        (None, None) => return Err(fields.wrong("result", "is required")),
    };
    Ok(ClientToolResult {
        tool_call_id: fields.text(&["toolCallId"])?,
        tool_name: fields.optional(&["toolName"]).unwrap_or_default(),
        input: fields.get(&["input", "args"]).cloned(),
        result,
    })
}

/// Completes open stored calls with what a client computed; gives the ids of the rows that changed, in order (MEM-060).
/// A call that has an outcome is never changed (MEM-063). Where an id was called more than once, the last results go to
/// the calls that are open.
pub fn complete_tool_calls(stored: &mut [StoredMessage], results: &[ClientToolResult]) -> Vec<MessageId> {
    if results.is_empty() {
        return Vec::new();
    }
    let mut given: HashMap<&str, Vec<&ClientToolResult>> = HashMap::new();
    for result in results {
        given.entry(&result.tool_call_id).or_default().push(result);
    }
    let mut changed = Vec::new();
    for message in stored.iter_mut().rev().filter(|message| message.role == Role::Assistant) {
        let mut touched = false;
        for part in message.content.parts.iter_mut().rev() {
            let Part::ToolInvocation(part) = part else { continue };
            let call = &mut part.tool_invocation;
            if call.state != ToolState::Call {
                continue;
            }
            if let Some(result) = given.get_mut(call.tool_call_id.as_str()).and_then(Vec::pop) {
                settle(call, &result.result);
                touched = true;
            }
        }
        if touched {
            changed.push(message.id.clone());
        }
    }
    changed.reverse();
    changed
}

/// What of `incoming` is new to a thread that holds `stored` (oldest first): the user messages and signals after the
/// client's last assistant message, and system messages, less what is stored already by id (MEM-060) or as the last
/// user message that nothing has answered (MEM-062). All of it if nothing is stored.
pub fn trailing_input(stored: &[StoredMessage], incoming: Vec<StoredMessage>) -> Vec<StoredMessage> {
    if stored.is_empty() {
        return incoming;
    }
    // What a guard blocked is judged again (ruling 34).
    let known: HashSet<&MessageId> =
        stored.iter().filter(|message| !message.is_blocked()).map(|message| &message.id).collect();
    let start = incoming.iter().rposition(|message| message.role == Role::Assistant).map_or(0, |last| last + 1);
    let mut taken: Vec<StoredMessage> = incoming
        .into_iter()
        .enumerate()
        .filter(|(index, message)| {
            (message.role == Role::System || *index >= start) && (message.id.is_empty() || !known.contains(&message.id))
        })
        .map(|(_, message)| message)
        .collect();

    let unanswered = unanswered(stored);
    let users: Vec<usize> = (0..taken.len()).filter(|&index| taken[index].role == Role::User).collect();
    let repeated = (1..=unanswered.len().min(users.len())).rev().find(|&count| {
        let tail = &unanswered[unanswered.len() - count..];
        tail.iter().zip(&users).all(|(stored, &index)| says_the_same(stored, &taken[index]))
    });
    for &index in users[..repeated.unwrap_or(0)].iter().rev() {
        taken.remove(index);
    }
    taken
}

/// The stored user messages after the last reply, oldest first. A row that holds only an error is no reply.
fn unanswered(stored: &[StoredMessage]) -> Vec<&StoredMessage> {
    let is_reply = |message: &StoredMessage| {
        message.role == Role::Assistant
            && message.content.parts.iter().any(|part| !matches!(part, Part::Error(_) | Part::StepStart(_)))
    };
    let start = stored.iter().rposition(is_reply).map_or(0, |last| last + 1);
    stored[start..].iter().filter(|message| message.role == Role::User && !message.is_blocked()).collect()
}

/// Role, text and files (MEM-062).
fn says_the_same(one: &StoredMessage, other: &StoredMessage) -> bool {
    fn files(message: &StoredMessage) -> impl Iterator<Item = (&str, Option<&str>)> {
        message.content.parts.iter().filter_map(|part| match part {
            Part::File(file) => Some((file.data.as_str(), file.mime_type.as_deref())),
            _ => None,
        })
    }
    one.role == other.role && one.joined_text() == other.joined_text() && files(one).eq(files(other))
}

#[cfg(test)]
#[path = "input_tests.rs"]
mod tests;
