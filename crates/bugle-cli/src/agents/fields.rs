//! The fields of an agent file: checked one by one, each error with its line and what is known (CLI-011, CLI-012).

use std::sync::LazyLock;

use bugle::{
    RunOptions, Tool,
    agent::{Interrupt, ModelEntry, OnStepLimit},
    json::{Object, Value},
    memory::MemoryOptions,
    notification::DeliveryPolicy,
    subagent::Delegation,
    tool::Approval,
};
use indexmap::IndexMap;
use secrecy::SecretString;
use serde::de::DeserializeOwned;

use super::{
    BUILT_IN_TOOLS,
    completion::Completion,
    front::{Data, Document, Key, Node},
    models::{Models, Resolved},
    processors::Lists,
};
use crate::{settings::Problem, text::nearest, webhooks::Webhooks};

/// Fields of this version.
const KNOWN: [&str; 24] = [
    "id",
    "name",
    "description",
    "model",
    "tools",
    "agents",
    "memory",
    "maxSteps",
    "modelSettings",
    "providerOptions",
    "toolChoice",
    "activeTools",
    "requireToolApproval",
    "interrupt",
    "onStepLimit",
    "delegation",
    "isTaskComplete",
    "inputProcessors",
    "outputProcessors",
    "errorProcessors",
    "maxProcessorRetries",
    "signals",
    "notifications",
    "metadata",
];
/// Fields that a later version has. With a value that asks for nothing they are taken.
const LATER: [&str; 1] = ["backgroundTasks"];
/// Fields of `delegation`.
const DELEGATION: [&str; 7] = [
    "hookErrorStrategy",
    "includeSubAgentToolResultsInModelContext",
    "enableResultReferences",
    "inheritMemory",
    "includeParentSystem",
    "maxDepth",
    "threadScope",
];
/// Fields of other tools, ignored with a warning.
const FOREIGN: [&str; 4] = ["color", "permissionMode", "skills", "hooks"];

/// What a file says, ready to build.
#[derive(Debug)]
pub(super) struct Definition {
    pub(super) id: String,
    pub(super) id_line: usize,
    pub(super) name: String,
    pub(super) description: String,
    pub(super) instructions: String,
    pub(super) models: Vec<ModelEntry>,
    pub(super) model_names: Vec<String>,
    pub(super) missing: Vec<String>,
    pub(super) tools: IndexMap<String, Tool>,
    /// Subagents by key; whether they exist is known once all files are read.
    pub(super) agents: IndexMap<String, Reference>,
    pub(super) completion: Option<Completion>,
    pub(super) processors: Lists,
    pub(super) memory: Option<MemoryOptions>,
    pub(super) options: RunOptions,
    pub(super) interrupt: Interrupt,
    pub(super) on_step_limit: OnStepLimit,
    /// Signal providers, by name.
    pub(super) signals: Vec<String>,
    pub(super) notifications: Option<DeliveryPolicy>,
    pub(super) metadata: Option<Object>,
}

/// An agent that a file names, and where.
#[derive(Debug, Clone)]
pub(super) struct Reference {
    pub(super) id: String,
    pub(super) line: usize,
    pub(super) column: usize,
}

impl Definition {
    /// All defaults.
    pub(super) fn named(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            id_line: 1,
            name: id.to_owned(),
            description: String::new(),
            instructions: String::new(),
            models: Vec::new(),
            model_names: Vec::new(),
            missing: Vec::new(),
            tools: IndexMap::new(),
            agents: IndexMap::new(),
            completion: None,
            processors: Lists::default(),
            memory: Some(MemoryOptions::default()),
            options: RunOptions::default(),
            interrupt: Interrupt::default(),
            on_step_limit: OnStepLimit::default(),
            signals: Vec::new(),
            notifications: None,
            metadata: None,
        }
    }
}

/// Reads one file's fields.
pub(super) struct Reader<'a> {
    shown: &'a str,
    pub(super) models: &'a Models,
    webhooks: &'a Webhooks,
    warnings: &'a mut Vec<String>,
    pub(super) definition: Definition,
    problems: Vec<Problem>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        shown: &'a str,
        stem: &str,
        models: &'a Models,
        webhooks: &'a Webhooks,
        warnings: &'a mut Vec<String>,
    ) -> Self {
        Self { shown, models, webhooks, warnings, definition: Definition::named(stem), problems: Vec::new() }
    }

    pub(super) fn read(mut self, document: &Document) -> (Definition, Vec<Problem>) {
        let foreign: Vec<&str> =
            document.fields.iter().map(|(key, _)| key.name.as_str()).filter(|name| FOREIGN.contains(name)).collect();
        if !foreign.is_empty() {
            self.warnings.push(format!("{}: {} of another tool has no meaning here", self.shown, foreign.join(", ")));
        }
        // The id first: the name's default is it.
        if let Some((key, node)) = document.fields.iter().find(|(key, _)| key.name == "id") {
            self.definition.id_line = key.line;
            match node.as_str() {
                Some(id) => id.clone_into(&mut self.definition.id),
                None => self.wrong(key, "id: must be a text"),
            }
            self.definition.name.clone_from(&self.definition.id);
        }
        if !is_id(&self.definition.id) {
            let line = self.definition.id_line;
            let message = format!(
                "id: {:?} must be letters, digits, - and _, at most 63, beginning with a letter or digit",
                self.definition.id
            );
            self.problems.push(Problem { place: format!("{}:{line}:1", self.shown), message });
        }
        for (key, node) in &document.fields {
            self.field(key, node);
        }
        if !document.fields.iter().any(|(key, _)| key.name == "model") {
            self.model_name(None, "inherit", 1, 1);
        }
        if document.body.is_empty() {
            let message = "the body is empty; write the instructions below the front matter".to_owned();
            self.problems.push(Problem { place: format!("{}:{}:1", self.shown, document.body_line), message });
        }
        self.definition.instructions.clone_from(&document.body);
        (self.definition, self.problems)
    }

    pub(super) fn at(&mut self, line: usize, column: usize, message: impl Into<String>) {
        self.problems.push(Problem { place: format!("{}:{line}:{column}", self.shown), message: message.into() });
    }

    pub(super) fn wrong(&mut self, key: &Key, message: impl Into<String>) {
        self.at(key.line, key.column, message);
    }

    fn field(&mut self, key: &Key, node: &Node) {
        match key.name.as_str() {
            "id" => {}
            "name" | "description" => match node.as_str() {
                Some(text) if key.name == "name" => text.clone_into(&mut self.definition.name),
                Some(text) => text.clone_into(&mut self.definition.description),
                None => self.wrong(key, format!("{}: must be a text", key.name)),
            },
            "model" => self.model(key, node),
            "tools" => self.tools(key, node),
            "agents" => self.agents(key, node),
            "requireToolApproval" => match node.value() {
                Value::Bool(all) => self.definition.options.require_tool_approval = Some(all),
                _ => self.wrong(key, "requireToolApproval: must be true or false"),
            },
            "delegation" => self.delegation(key, node),
            "isTaskComplete" => self.definition.completion = self.completion(key, node),
            "memory" => self.memory(key, node),
            "maxSteps" => match node.value().as_u64().and_then(|number| u32::try_from(number).ok()) {
                Some(steps) if steps >= 1 => self.definition.options.max_steps = Some(steps),
                _ => self.wrong(key, "maxSteps: must be a whole number from 1"),
            },
            "modelSettings" => self.definition.options.model_settings = self.map(key, node),
            "providerOptions" => self.definition.options.provider_options = self.map(key, node),
            "signals" => self.signals(key, node),
            "notifications" => self.definition.notifications = self.map(key, node),
            "metadata" => self.definition.metadata = self.map(key, node),
            "toolChoice" => {
                let what = "auto, none, required, or {type: tool, toolName: NAME}";
                self.definition.options.tool_choice = self.typed(key, node, what);
            }
            "activeTools" => self.definition.options.active_tools = self.typed(key, node, "a list of names"),
            "interrupt" => {
                if let Some(interrupt) = self.typed(key, node, "reasoning or never") {
                    self.definition.interrupt = interrupt;
                }
            }
            "onStepLimit" => {
                if let Some(behavior) = self.typed(key, node, "save or followUp") {
                    self.definition.on_step_limit = behavior;
                }
            }
            "inputProcessors" => self.definition.processors.input = self.processors(key, node),
            "outputProcessors" => self.definition.processors.output = self.processors(key, node),
            "errorProcessors" => self.definition.processors.error = self.processors(key, node),
            "maxProcessorRetries" => {
                self.definition.options.max_processor_retries = self.typed(key, node, "a whole number from 0");
            }
            name if LATER.contains(&name) => {
                let value = node.value();
                let asks_nothing = match &value {
                    Value::Null | Value::Bool(false) => true,
                    Value::Array(items) => items.is_empty(),
                    Value::Object(entries) => entries.is_empty(),
                    _ => false,
                };
                if !asks_nothing {
                    self.wrong(key, format!("{name} is not in this version; remove it"));
                }
            }
            name if FOREIGN.contains(&name) => {}
            name => {
                let near = nearest(name, KNOWN.iter().chain(&LATER).copied());
                let near = near.map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default();
                self.wrong(key, format!("{name}: unknown field{near}"));
            }
        }
    }

    /// Signal providers by name: `tasks`, and the ids of `[[webhooks]]`.
    fn signals(&mut self, key: &Key, node: &Node) {
        let items = match &node.data {
            Data::Scalar(Value::Null | Value::Bool(false)) => return,
            Data::List(items) => items,
            _ => return self.wrong(key, "signals: must be a list of names: tasks, and ids of [[webhooks]]"),
        };
        let webhooks = self.webhooks;
        let known = webhooks.names();
        for item in items {
            let Some(name) = item.as_str() else {
                self.at(item.line, item.column, "signals: must be a name");
                continue;
            };
            if !known.contains(&name) {
                let near = nearest(name, known.iter().copied());
                let near = near.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
                let known = known.join(", ");
                let message = format!(
                    "signals: there is no provider {name}; known are {known} (others are [[webhooks]] of bugle.toml){near}"
                );
                self.at(item.line, item.column, message);
            } else if self.definition.signals.iter().any(|held| held == name) {
                self.at(item.line, item.column, format!("signals: {name} is in the list twice"));
            } else {
                self.definition.signals.push(name.to_owned());
            }
        }
    }

    pub(super) fn typed<T: DeserializeOwned>(&mut self, key: &Key, node: &Node, what: &str) -> Option<T> {
        let value = serde_json::from_value(node.value()).ok();
        if value.is_none() {
            self.wrong(key, format!("{}: must be {what}", key.name));
        }
        value
    }

    fn map<T: DeserializeOwned>(&mut self, key: &Key, node: &Node) -> Option<T> {
        match serde_json::from_value(node.value()) {
            Ok(value) if matches!(node.data, Data::Map(_)) => Some(value),
            Err(error) if matches!(node.data, Data::Map(_)) => {
                self.wrong(key, format!("{}: {error}", key.name));
                None
            }
            _ => {
                self.wrong(key, format!("{}: must be fields: NAME: VALUE", key.name));
                None
            }
        }
    }

    fn memory(&mut self, key: &Key, node: &Node) {
        let value = node.value();
        match (&node.data, &value) {
            (_, Value::Bool(true)) => {}
            (_, Value::Bool(false)) => self.definition.memory = None,
            (Data::Map(_), _) => match MemoryOptions::default().merged(Some(&value)) {
                Ok(options) => self.definition.memory = Some(options),
                Err(error) => {
                    let message = error.to_string().replace("memory.options", "memory");
                    self.wrong(key, message);
                }
            },
            _ => self.wrong(key, "memory: must be true, false, or options"),
        }
    }

    fn model(&mut self, key: &Key, node: &Node) {
        match &node.data {
            Data::Scalar(Value::String(name)) => self.model_name(Some(key), name, node.line, node.column),
            Data::List(items) if !items.is_empty() => {
                for item in items {
                    match item.as_str() {
                        Some(name) => self.model_name(Some(key), name, item.line, item.column),
                        None => self.model_map(item),
                    }
                }
            }
            Data::Map(_) => self.model_map(node),
            _ => self.wrong(key, "model: must be provider/model, an alias, inherit, a list of these, or fields"),
        }
    }

    fn model_name(&mut self, key: Option<&Key>, name: &str, line: usize, column: usize) {
        match self.models.resolve(name) {
            Ok(resolved) => self.take_model(resolved),
            Err(message) if key.is_none() => self.at(line, column, format!("model: {message}, or `model:` here")),
            Err(message) => self.at(line, column, format!("model: {message}")),
        }
    }

    fn take_model(&mut self, resolved: Resolved) {
        self.definition.models.push(resolved.entry);
        self.definition.model_names.push(resolved.name);
        self.definition.missing.extend(resolved.missing);
    }

    /// `{id, url, apiKey, headers, api, maxRetries}`.
    fn model_map(&mut self, node: &Node) {
        let Data::Map(entries) = &node.data else {
            return self.at(node.line, node.column, "model: must be a text or fields");
        };
        let (mut id, mut url, mut api_key, mut headers, mut retries) = (None, None, None, Vec::new(), None);
        let before = self.problems.len();
        for (key, value) in entries {
            match (key.name.as_str(), value.as_str()) {
                ("id", Some(text)) => id = Some(text.to_owned()),
                ("url", Some(text)) => url = Some(text.to_owned()),
                ("apiKey", Some(text)) => api_key = Some(SecretString::from(text)),
                ("api", Some("chat")) => {}
                ("api", Some(_)) => self.wrong(key, "model.api: only chat is in this version"),
                ("maxRetries", _) => match value.value().as_u64().filter(|count| *count <= 100) {
                    Some(count) => retries = u32::try_from(count).ok(),
                    None => self.wrong(key, "model.maxRetries: must be a whole number from 0 to 100"),
                },
                ("headers", _) => match &value.data {
                    Data::Map(pairs) => {
                        for (name, text) in pairs {
                            match text.as_str() {
                                Some(text) => headers.push((name.name.clone(), text.to_owned())),
                                None => self.wrong(name, format!("model.headers.{}: must be a text", name.name)),
                            }
                        }
                    }
                    _ => self.wrong(key, "model.headers: must be fields"),
                },
                ("id" | "url" | "apiKey" | "api", None) => {
                    self.wrong(key, format!("model.{}: must be a text", key.name));
                }
                (name, _) => self.wrong(key, format!("model.{name}: unknown field")),
            }
        }
        if self.problems.len() > before {
            return;
        }
        let Some(id) = id else { return self.at(node.line, node.column, "model.id: missing") };
        let resolved = match url {
            Some(url) if !["http://", "https://"].iter().any(|scheme| url.starts_with(scheme)) => {
                Err(format!("model.url: {url:?} is no http:// or https:// address"))
            }
            Some(url) => self.models.at_url(&id, &url, api_key.as_ref(), &headers, retries),
            None if api_key.is_some() || !headers.is_empty() => {
                Err("model.url: missing; apiKey and headers need it in this version".into())
            }
            None => self.models.resolve(&id).map(|mut resolved| {
                resolved.entry.max_retries = retries.or(resolved.entry.max_retries);
                resolved
            }),
        };
        match resolved {
            Ok(resolved) => self.take_model(resolved),
            Err(message) => self.at(node.line, node.column, message),
        }
    }

    /// A list of ids, or a map key → id; the key names the tool (SUB-002).
    fn agents(&mut self, key: &Key, node: &Node) {
        match &node.data {
            Data::Scalar(Value::Null) => {}
            Data::List(items) => {
                for item in items {
                    match item.as_str() {
                        Some(id) => self.reference(id, id, item),
                        None => self.at(item.line, item.column, "agents: must be ids of agents"),
                    }
                }
            }
            Data::Map(entries) => {
                for (name, item) in entries {
                    match item.as_str() {
                        Some(id) => self.reference(&name.name, id, item),
                        None => self.wrong(name, format!("agents.{}: must be the id of an agent", name.name)),
                    }
                }
            }
            Data::Scalar(_) => self.wrong(key, "agents: must be a list of ids, or fields KEY: ID"),
        }
    }

    /// The options that can be written down (SUB-070).
    fn delegation(&mut self, key: &Key, node: &Node) {
        let entries = match &node.data {
            Data::Map(entries) => entries.as_slice(),
            Data::Scalar(Value::Null) => &[],
            _ => return self.wrong(key, "delegation: must be fields"),
        };
        let mut options = Object::new();
        for (name, value) in entries {
            let what = match name.name.as_str() {
                "hookErrorStrategy" => "warn or throw",
                "maxDepth" => "a whole number from 0",
                "threadScope" => "call, run, parentThread or shared",
                known if DELEGATION.contains(&known) => "true or false",
                unknown => {
                    let near = nearest(unknown, DELEGATION);
                    let near = near.map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default();
                    self.wrong(name, format!("delegation.{unknown}: unknown field{near}"));
                    continue;
                }
            };
            let one: Object = [(name.name.clone(), value.value())].into_iter().collect();
            if serde_json::from_value::<Delegation>(one.clone().into()).is_ok() {
                options.extend(one);
            } else {
                self.wrong(name, format!("delegation.{}: must be {what}", name.name));
            }
        }
        self.definition.options.delegation = serde_json::from_value(options.into()).unwrap_or_default();
    }

    fn reference(&mut self, key: &str, id: &str, at: &Node) {
        let reference = Reference { id: id.to_owned(), line: at.line, column: at.column };
        if key.trim().is_empty() || self.definition.agents.insert(key.to_owned(), reference).is_some() {
            self.at(at.line, at.column, format!("agents: {key:?} is there twice, or empty"));
        }
    }

    fn tools(&mut self, key: &Key, node: &Node) {
        match &node.data {
            Data::Scalar(Value::Null) => {}
            Data::Scalar(Value::String(list)) => {
                for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
                    self.tool(name, node.line, node.column, &ToolOptions::default());
                }
            }
            Data::List(items) => {
                for item in items {
                    match item.as_str() {
                        Some(name) => self.tool(name, item.line, item.column, &ToolOptions::default()),
                        None => self.at(item.line, item.column, "tools: must be names"),
                    }
                }
            }
            Data::Map(entries) => {
                for (name, options) in entries {
                    let options = self.tool_options(name, options);
                    self.tool(&name.name, name.line, name.column, &options);
                }
            }
            Data::Scalar(_) => self.wrong(key, "tools: must be a list of names, names with commas, or fields"),
        }
    }

    /// `{approval?, background?, description?}`.
    fn tool_options(&mut self, tool: &Key, node: &Node) -> ToolOptions {
        let entries = match &node.data {
            Data::Map(entries) => entries.as_slice(),
            Data::Scalar(Value::Null) => &[],
            _ => {
                self.wrong(tool, format!("tools.{}: must be fields, or {{}}", tool.name));
                &[]
            }
        };
        let mut options = ToolOptions::default();
        for (key, value) in entries {
            match (key.name.as_str(), &value.data) {
                ("description", Data::Scalar(Value::String(text))) => options.description = Some(text.clone()),
                ("description", _) => self.wrong(key, format!("tools.{}.description: must be a text", tool.name)),
                ("approval", Data::Scalar(Value::Bool(needed))) => options.approval = Some(*needed),
                ("approval", _) => self.wrong(key, format!("tools.{}.approval: must be true or false", tool.name)),
                ("background", Data::Scalar(Value::Bool(false))) => {}
                ("background", _) => {
                    self.wrong(key, format!("tools.{}.{} is not in this version; remove it", tool.name, key.name));
                }
                (name, _) => {
                    let near = nearest(name, ["approval", "background", "description"]);
                    let near = near.map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default();
                    self.wrong(key, format!("tools.{}.{name}: unknown field{near}", tool.name));
                }
            }
        }
        options
    }

    fn tool(&mut self, name: &str, line: usize, column: usize, options: &ToolOptions) {
        let names: Vec<&str> = if name == "*" { BUILT_IN_TOOLS.to_vec() } else { vec![name] };
        for name in names {
            if !BUILT_IN_TOOLS.contains(&name) {
                let message = if name.starts_with("mcp__") {
                    format!("tools: {name}: tool servers are not in this version; remove it")
                } else {
                    format!("tools: {name}: unknown tool; known are {}", BUILT_IN_TOOLS.join(", "))
                };
                self.at(line, column, message);
                continue;
            }
            let mut tool = INBOX.clone();
            if let Some(description) = &options.description {
                tool = tool.described(description.clone());
            }
            match options.approval {
                Some(true) => tool = tool.with_approval(Approval::Always),
                Some(false) => tool = tool.with_approval(Approval::None),
                None => {}
            }
            self.definition.tools.insert(name.to_owned(), tool);
        }
    }
}

static INBOX: LazyLock<Tool> = LazyLock::new(bugle::notification::notification_inbox_tool);
/// What a file says of one of its tools.
#[derive(Default)]
struct ToolOptions {
    description: Option<String>,
    approval: Option<bool>,
}

fn is_id(id: &str) -> bool {
    id.len() <= 63
        && id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}
