//! The body of a Chat request.

use std::borrow::Cow;

use bugle::{
    json::Object,
    model::{
        AssistantPart, ModelError, ModelErrorKind, ModelRequest, PromptMessage, ToolChoice, ToolDefinition, UserPart,
    },
};
use serde::Serialize;
use serde_json::{Value, json};

use super::{ChatModel, MaxTokensField, details, strict::StrictTools};

/// What settings and options may not replace.
const OWN_FIELDS: [&str; 6] = ["model", "messages", "tools", "tool_choice", "stream", "stream_options"];

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    #[serde(flatten)]
    settings: Object,
    messages: Vec<Message<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_choice: Option<Value>,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "lowercase")]
enum Message<'a> {
    System {
        content: &'a str,
        #[serde(flatten)]
        options: Option<&'a Object>,
    },
    User {
        content: UserContent<'a>,
        #[serde(flatten)]
        options: Option<&'a Object>,
    },
    Assistant {
        content: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning_content: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        reasoning_details: Vec<Value>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<Call<'a>>,
        #[serde(flatten)]
        options: Option<&'a Object>,
    },
    Tool {
        tool_call_id: &'a str,
        content: String,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum UserContent<'a> {
    Text(&'a str),
    Parts(Vec<Part<'a>>),
}

#[derive(Serialize)]
struct Part<'a> {
    #[serde(flatten)]
    kind: PartKind<'a>,
    #[serde(flatten)]
    options: Option<&'a Object>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum PartKind<'a> {
    Text { text: &'a str },
    ImageUrl { image_url: ImageUrl<'a> },
    InputAudio { input_audio: InputAudio<'a> },
    File { file: File<'a> },
}

#[derive(Serialize)]
struct ImageUrl<'a> {
    url: Cow<'a, str>,
}

#[derive(Serialize)]
struct InputAudio<'a> {
    data: &'a str,
    format: &'static str,
}

#[derive(Serialize)]
struct File<'a> {
    filename: &'a str,
    file_data: Cow<'a, str>,
}

#[derive(Serialize)]
struct Call<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    function: CalledFunction<'a>,
}

#[derive(Serialize)]
struct CalledFunction<'a> {
    name: &'a str,
    arguments: String,
}

#[derive(Serialize)]
struct Tool<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<&'a str>,
    parameters: Cow<'a, Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    strict: Option<bool>,
}

/// The body of a request, what of it the provider does not take, and its strict tools.
type Ready = (Vec<u8>, Vec<Value>, StrictTools);

/// Writes the body of `request`.
pub(super) fn body(model: &ChatModel, request: &ModelRequest) -> Result<Ready, ModelError> {
    let (mut warnings, mut strict) = (Vec::new(), StrictTools::default());
    let none = request.tool_choice == ToolChoice::None;
    let tools: Vec<Tool<'_>> =
        if none { Vec::new() } else { request.tools.iter().map(|definition| tool(definition, &mut strict)).collect() };
    let body = Body {
        model: &model.model,
        settings: settings(model, request, &mut warnings),
        messages: messages(model, &request.prompt),
        tool_choice: (!tools.is_empty()).then(|| tool_choice(&request.tool_choice)),
        tools,
        stream: request.streaming,
        stream_options: request.streaming.then_some(StreamOptions { include_usage: true }),
    };
    let body = serde_json::to_vec(&body).map_err(|error| {
        ModelError::new(ModelErrorKind::Protocol, format!("the request cannot be written as JSON: {error}"))
    })?;
    Ok((body, warnings, strict))
}

fn settings(model: &ChatModel, request: &ModelRequest, warnings: &mut Vec<Value>) -> Object {
    let settings = &request.settings;
    let mut body = Object::new();
    if let Some(limit) = settings.max_output_tokens {
        let field = match model.quirks.max_tokens_field {
            MaxTokensField::MaxTokens => "max_tokens",
            MaxTokensField::MaxCompletionTokens => "max_completion_tokens",
        };
        body.insert(field.into(), limit.into());
    }
    let sampling = [
        ("temperature", "temperature", settings.temperature),
        ("top_p", "topP", settings.top_p),
        ("frequency_penalty", "frequencyPenalty", settings.frequency_penalty),
        ("presence_penalty", "presencePenalty", settings.presence_penalty),
    ];
    let mut unsupported = |setting: &str| warnings.push(json!({ "type": "unsupported-setting", "setting": setting }));
    for (field, setting, value) in sampling {
        let Some(value) = value else { continue };
        if model.quirks.sampling {
            body.insert(field.into(), number(value));
        } else {
            unsupported(setting);
        }
    }
    if settings.top_k.is_some() {
        unsupported("topK");
    }
    if let Some(stop) = settings.stop_sequences.as_ref().filter(|stop| !stop.is_empty()) {
        body.insert("stop".into(), json!(stop));
    }
    if let Some(seed) = settings.seed {
        body.insert("seed".into(), seed.into());
    }
    if let Some(format) = &request.response_format {
        let format = if model.quirks.structured_outputs {
            let strict = is_strict(&format.schema);
            json!({
                "type": "json_schema",
                "json_schema": { "name": format.name, "schema": format.schema, "strict": strict },
            })
        } else {
            json!({ "type": "json_object" })
        };
        body.insert("response_format".into(), format);
    }
    let options = model.options(request.provider_options.as_ref());
    let options = options.into_iter().flatten().map(|(name, value)| (option_field(name), value));
    let extra = settings.extra.iter().map(|(name, value)| (name.as_str(), value));
    for (name, value) in extra.chain(options).filter(|(name, _)| !OWN_FIELDS.contains(name)) {
        body.insert(name.to_owned(), value.clone());
    }
    body
}

/// A whole number without a fraction, as JavaScript writes it.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 { json!(value as i64) } else { json!(value) }
}

/// What the reference's options are called in the protocol; others go as they are.
fn option_field(name: &str) -> &str {
    match name {
        "reasoningEffort" => "reasoning_effort",
        "textVerbosity" => "verbosity",
        "parallelToolCalls" => "parallel_tool_calls",
        "serviceTier" => "service_tier",
        "promptCacheKey" => "prompt_cache_key",
        other => other,
    }
}

fn messages<'a>(model: &ChatModel, prompt: &'a [PromptMessage]) -> Vec<Message<'a>> {
    let mut messages = Vec::with_capacity(prompt.len());
    for message in prompt {
        match message {
            PromptMessage::System { content, provider_options } => {
                messages.push(Message::System { content, options: model.options(provider_options.as_ref()) });
            }
            PromptMessage::User { content, provider_options } => {
                let options = model.options(provider_options.as_ref());
                messages.push(Message::User { content: user_content(model, content), options });
            }
            PromptMessage::Assistant { content, provider_options } => {
                let options = model.options(provider_options.as_ref());
                messages.push(assistant(model, content, options));
            }
            PromptMessage::Tool { content } => {
                messages.extend(content.iter().map(|result| Message::Tool {
                    tool_call_id: &result.tool_call_id,
                    content: result.output.to_text(),
                }));
            }
        }
    }
    messages
}

fn user_content<'a>(model: &ChatModel, parts: &'a [UserPart]) -> UserContent<'a> {
    match parts {
        [] => UserContent::Text(""),
        [UserPart::Text { text, provider_options }] if model.options(provider_options.as_ref()).is_none() => {
            UserContent::Text(text)
        }
        parts => UserContent::Parts(parts.iter().map(|part| user_part(model, part)).collect()),
    }
}

fn user_part<'a>(model: &ChatModel, part: &'a UserPart) -> Part<'a> {
    match part {
        UserPart::Text { text, provider_options } => {
            Part { kind: PartKind::Text { text }, options: model.options(provider_options.as_ref()) }
        }
        UserPart::File { data, media_type, filename, provider_options } => {
            let kind = match media_type.as_str() {
                kind if kind.starts_with("image/") => {
                    let media_type = if kind == "image/*" { "image/jpeg" } else { kind };
                    PartKind::ImageUrl { image_url: ImageUrl { url: uri(data, media_type) } }
                }
                "audio/wav" | "audio/x-wav" if !is_uri(data) => audio(data, "wav"),
                "audio/mpeg" | "audio/mp3" if !is_uri(data) => audio(data, "mp3"),
                kind => {
                    let filename = filename.as_deref().unwrap_or("file");
                    PartKind::File { file: File { filename, file_data: uri(data, kind) } }
                }
            };
            Part { kind, options: model.options(provider_options.as_ref()) }
        }
    }
}

fn audio<'a>(data: &'a str, format: &'static str) -> PartKind<'a> {
    PartKind::InputAudio { input_audio: InputAudio { data, format } }
}

fn is_uri(data: &str) -> bool {
    ["data:", "http://", "https://"].iter().any(|scheme| data.starts_with(scheme))
}

fn uri<'a>(data: &'a str, media_type: &str) -> Cow<'a, str> {
    if is_uri(data) { Cow::Borrowed(data) } else { Cow::Owned(format!("data:{media_type};base64,{data}")) }
}

fn assistant<'a>(model: &ChatModel, parts: &'a [AssistantPart], options: Option<&'a Object>) -> Message<'a> {
    let (mut text, mut reasoning) = (Cow::Borrowed(""), Cow::Borrowed(""));
    let mut tool_calls = Vec::new();
    for part in parts {
        match part {
            AssistantPart::Text { text: more, .. } => join(&mut text, more),
            AssistantPart::Reasoning { text: more, .. } => join(&mut reasoning, more),
            AssistantPart::ToolCall { tool_call_id, tool_name, input, provider_executed, .. } => {
                if *provider_executed != Some(true) {
                    let function = CalledFunction { name: tool_name, arguments: input.to_string() };
                    tool_calls.push(Call { id: tool_call_id, kind: "function", function });
                }
            }
            // The protocol has no place for a file that the model made.
            AssistantPart::File { .. } => {}
        }
    }
    // Details hold the text as well. They go back with every message: a signature must not be parted from its turn.
    let replay = model.quirks.replay_reasoning;
    let reasoning_details = if replay { details::replayed(&model.provider, parts) } else { Vec::new() };
    let replayed = replay && reasoning_details.is_empty() && !tool_calls.is_empty() && !reasoning.is_empty();
    Message::Assistant {
        content: (tool_calls.is_empty() || !text.is_empty()).then_some(text),
        reasoning_content: replayed.then_some(reasoning),
        reasoning_details,
        tool_calls,
        options,
    }
}

fn join<'a>(whole: &mut Cow<'a, str>, more: &'a str) {
    if whole.is_empty() {
        *whole = Cow::Borrowed(more);
    } else {
        whole.to_mut().push_str(more);
    }
}

fn tool<'a>(definition: &'a ToolDefinition, strict: &mut StrictTools) -> Tool<'a> {
    let schema = strict.schema(definition);
    Tool {
        kind: "function",
        function: Function {
            name: &definition.name,
            description: definition.description.as_deref(),
            strict: schema.is_some().then_some(true),
            parameters: schema.map_or(Cow::Borrowed(&definition.parameters), Cow::Owned),
        },
    }
}

fn tool_choice(choice: &ToolChoice) -> Value {
    match choice {
        ToolChoice::Auto => json!("auto"),
        ToolChoice::None => json!("none"),
        ToolChoice::Required => json!("required"),
        ToolChoice::Tool(name) => json!({ "type": "function", "function": { "name": name } }),
    }
}

/// Whether strict mode takes the schema: every object closed, every property required.
fn is_strict(schema: &Value) -> bool {
    match schema {
        Value::Array(schemas) => schemas.iter().all(is_strict),
        Value::Object(object) => {
            let properties = object.get("properties").and_then(Value::as_object);
            let is_object = properties.is_some() || object.get("type").is_some_and(|kind| kind == "object");
            let required = object.get("required").and_then(Value::as_array);
            let closed = object.get("additionalProperties") == Some(&Value::Bool(false));
            let all_required = properties.is_none_or(|properties| {
                properties.keys().all(|name| required.is_some_and(|names| names.iter().any(|known| known == name)))
            });
            (!is_object || (closed && all_required))
                && object.iter().all(|(key, inner)| match key.as_str() {
                    // Names of properties are no keywords.
                    "properties" | "definitions" | "$defs" => {
                        inner.as_object().is_none_or(|schemas| schemas.values().all(is_strict))
                    }
                    "enum" | "const" | "default" | "examples" | "required" => true,
                    _ => is_strict(inner),
                })
        }
        _ => true,
    }
}
