//! From the run fields of a body to the runtime's options (HTTP §5.1).

use bugle::{
    RunOptions, ThreadKey,
    json::{Object, Value},
    run::{Texts, ThreadSeed},
    runtime::RunInput,
    subagent::Delegation,
};
use serde::de::DeserializeOwned;

use crate::{
    call::{Call, flag, object, text, whole},
    error::Failure,
};

/// How deep callers may let delegations nest (SUB-165).
const DEPTH_MAX: u32 = 8;

/// A run that a client asks for.
pub(crate) struct RunRequest {
    pub(crate) input: RunInput,
    pub(crate) thread: Option<ThreadKey>,
    pub(crate) options: RunOptions,
}

/// The run that a `generate` or `stream` body asks for.
pub(crate) fn run_request(call: &Call) -> Result<RunRequest, Failure> {
    let messages = call.body.get("messages").unwrap_or(&Value::Null);
    match messages {
        Value::String(text) if text.is_empty() => {
            return Err(Failure::bad_request("Argument \"messages\" is required"));
        }
        Value::Array(list) if list.is_empty() => return Err(Failure::field("messages", "at least one is required")),
        _ => {}
    }
    let input = read_input("messages", messages)?;
    let thread = match object(&call.body, "memory") {
        Some(memory) => Some(memory_thread(call, memory)?),
        None => None,
    };
    Ok(RunRequest { input, thread, options: run_options(call, &call.body)? })
}

/// Messages in any of the forms that clients send them in; issues name `field`.
pub(crate) fn read_input(field: &str, messages: &Value) -> Result<RunInput, Failure> {
    Ok(RunInput::read(messages, field)?)
}

fn memory_thread(call: &Call, memory: &Object) -> Result<ThreadKey, Failure> {
    let thread = match memory.get("thread") {
        Some(Value::String(id)) => id.as_str(),
        Some(Value::Object(thread)) => text(thread, "id").unwrap_or_default(),
        _ => "",
    };
    if thread.is_empty() {
        return Err(Failure::field("memory.thread", "a thread id is required"));
    }
    match call.resource(text(memory, "resource")) {
        Some(resource) => Ok(ThreadKey::new(resource, thread)),
        None => Err(Failure::bad_request(
            "A resource ID is required when using memory: give `memory.resource`, or turn on auth, which binds each \
             user to one.",
        )),
    }
}

/// The options in the run fields of `fields`: a `generate` body, or `streamOptions`.
pub(crate) fn run_options(call: &Call, fields: &Object) -> Result<RunOptions, Failure> {
    if object(fields, "versions").and_then(|versions| object(versions, "agents")).is_some_and(|map| !map.is_empty()) {
        // A pinned version that cannot be served is an error (ruling 11).
        return Err(Failure::unsupported("This server does not store agent versions; leave `versions` out."));
    }
    let structured = object(fields, "structuredOutput");
    if structured.is_some_and(|structured| text(structured, "model").is_some()) {
        return Err(Failure::field(
            "structuredOutput.model",
            "a model of its own for structured output is not supported",
        ));
    }
    let context = match fields.get("context") {
        Some(messages @ Value::Array(_)) => read_input("context", messages)?.messages,
        _ => Vec::new(),
    };
    let model = match text(fields, "model") {
        Some(name) => Some(
            match &call.app.options.models {
                Some(models) => models.resolve(name),
                None => Err("this server lets nobody choose a model; leave `model` out".into()),
            }
            .map_err(|why| Failure::field("model", why))?,
        ),
        None => None,
    };
    let (memory_options, thread_seed) = object(fields, "memory").map(memory_parts).unwrap_or_default();
    Ok(RunOptions {
        run_id: text(fields, "runId").filter(|id| !id.is_empty()).map(Into::into),
        max_steps: whole(fields, "maxSteps"),
        tool_choice: typed(fields, "toolChoice")?,
        active_tools: typed(fields, "activeTools")?,
        client_tools: typed(fields, "clientTools")?.unwrap_or_default(),
        model_settings: typed(fields, "modelSettings")?,
        provider_options: object(fields, "providerOptions").cloned(),
        instructions: texts(fields, "instructions")?,
        system: texts(fields, "system")?,
        context,
        // A caller may ask for more approvals than the agent does, never for fewer (LOOP-090).
        require_tool_approval: flag(fields, "requireToolApproval").filter(|all| *all),
        tool_call_concurrency: whole(fields, "toolCallConcurrency"),
        auto_resume_suspended_tools: flag(fields, "autoResumeSuspendedTools"),
        delegation: delegation(call, fields)?,
        structured_output: typed(fields, "structuredOutput")?,
        include_raw_chunks: flag(fields, "includeRawChunks").unwrap_or(false),
        request_context: call.request_context(fields.get("requestContext")),
        memory_options,
        thread_seed,
        model,
        ..RunOptions::default()
    })
}

/// A caller may have less than the agent allows, not more (SUB-034, SUB-165).
fn delegation(call: &Call, fields: &Object) -> Result<Delegation, Failure> {
    let mut delegation: Delegation = typed(fields, "delegation")?.unwrap_or_default();
    if delegation.max_depth.is_some_and(|depth| depth > DEPTH_MAX) {
        return Err(Failure::field("delegation.maxDepth", format!("at most {DEPTH_MAX}")));
    }
    let own = call.agent().ok().and_then(|agent| agent.agent().default_options().delegation.max_depth);
    delegation.max_depth = delegation.max_depth.map(|depth| depth.min(own.unwrap_or(DEPTH_MAX)));
    // Not said: the agent's own word counts.
    delegation.include_parent_system = delegation.include_parent_system.filter(|include| !*include);
    Ok(delegation)
}

/// Overrides of the memory options, and what a new thread is called.
fn memory_parts(memory: &Object) -> (Option<Value>, Option<ThreadSeed>) {
    let mut options = object(memory, "options").cloned().unwrap_or_default();
    if let Some(read_only) = flag(memory, "readOnly") {
        options.insert("readOnly".into(), read_only.into());
    }
    let seed = object(memory, "thread").map(|thread| ThreadSeed {
        title: text(thread, "title").map(str::to_owned),
        metadata: object(thread, "metadata").cloned(),
    });
    let seed = seed.filter(|seed| seed.title.is_some() || seed.metadata.is_some());
    ((!options.is_empty()).then_some(Value::Object(options)), seed)
}

/// A field whose shape has passed, as its type.
fn typed<T: DeserializeOwned>(fields: &Object, name: &str) -> Result<Option<T>, Failure> {
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => {
            // Optional fields inside may be null, which shapes take for absent and some types do not.
            let value = without_nulls(value.clone());
            serde_json::from_value(value).map(Some).map_err(|error| Failure::field(name, error.to_string()))
        }
    }
}

fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(fields.into_iter().filter(|(_, value)| !value.is_null()).collect()),
        other => other,
    }
}

/// System texts: one, several, or system messages.
fn texts(fields: &Object, name: &str) -> Result<Option<Texts>, Failure> {
    fn one(value: &Value, path: &str) -> Result<String, Failure> {
        let content = match value {
            Value::String(text) => return Ok(text.clone()),
            Value::Object(message) => message.get("content"),
            _ => None,
        };
        match content {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(Value::Array(parts)) => {
                Ok(parts.iter().filter_map(|part| part.get("text").and_then(Value::as_str)).collect())
            }
            _ => Err(Failure::field(format!("{path}.content"), "expected text")),
        }
    }
    match fields.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Array(list)) => {
            let each = list.iter().enumerate().map(|(index, value)| one(value, &format!("{name}.{index}")));
            Ok(Some(Texts::Many(each.collect::<Result<_, _>>()?)))
        }
        Some(value) => Ok(Some(Texts::One(one(value, name)?))),
    }
}
