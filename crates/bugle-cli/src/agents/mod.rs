//! Agents from files: `agents/*.md` (CLI §2).

mod completion;
mod fields;
mod front;
mod models;
mod processors;

pub(crate) use models::Models;

use std::{
    fs,
    path::{Path, PathBuf},
};

use bugle::{Agent, RunOptions, agent::AgentSource, memory::MemoryOptions, scorer::Judge, subagent::Registered};
use indexmap::IndexMap;

use self::{
    fields::{Definition, Reference},
    front::Document,
};
use crate::{
    settings::{Problem, Settings},
    text::nearest,
    webhooks::Webhooks,
};

/// The tools that an agent file can name.
pub(crate) const BUILT_IN_TOOLS: [&str; 1] = ["notification-inbox"];

/// Metadata of the agent that clients take when they name none: `agents.default`, or the demo's assistant.
pub(crate) const DEFAULT_MARK: &str = "bugleDefault";

/// An agent that can be served.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    pub(crate) agent: Agent,
    /// `openai/gpt-4o-mini`.
    pub(crate) model: String,
    /// What its runs lack: `OPENAI_API_KEY is not set; its runs will fail`.
    pub(crate) missing: Vec<String>,
    /// The signal providers that it names.
    pub(crate) signals: Vec<String>,
}

/// What the folders of agents hold.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) agents: Vec<Served>,
    pub(crate) problems: Vec<Problem>,
    pub(crate) warnings: Vec<String>,
    /// There was at least one file.
    pub(crate) any: bool,
}

/// Reads all agent files of the project, in order of their names.
pub(crate) fn load(settings: &Settings, models: &Models, webhooks: &Webhooks) -> Found {
    let mut found = Found::default();
    let mut places: IndexMap<String, String> = IndexMap::new();
    let mut faulty: IndexMap<String, String> = IndexMap::new();
    let mut definitions: Vec<(String, Definition)> = Vec::new();
    for path in files(settings, &mut found) {
        found.any = true;
        let shown = path.strip_prefix(&settings.directory).unwrap_or(&path).display().to_string();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) => {
                found.problems.push(Problem { place: shown, message: format!("the file cannot be read: {error}") });
                continue;
            }
        };
        let (definition, mut problems) = read(&shown, &stem, &bytes, (models, webhooks), &mut found.warnings);
        if let Some(first) = places.get(&definition.id) {
            let message = format!("a second agent with the id {}; the first is {first}", definition.id);
            problems.push(Problem { place: format!("{shown}:{}:1", definition.id_line), message });
        }
        if problems.is_empty() {
            places.insert(definition.id.clone(), shown.clone());
            definitions.push((shown, definition));
        } else {
            faulty.insert(definition.id, shown);
            found.problems.append(&mut problems);
        }
    }
    check_references(&mut definitions, faulty, &mut found.problems);
    let agents: IndexMap<String, Registered> =
        definitions.iter().map(|(_, definition)| (definition.id.clone(), as_subagent(definition))).collect();
    for (shown, definition) in &definitions {
        match build(definition, &agents, settings, webhooks) {
            Ok(served) => found.agents.push(served),
            Err(message) => found.problems.push(Problem { place: shown.clone(), message }),
        }
    }
    found
}

/// Leaves out the files that name subagents which do not exist, or have errors, themselves included; until what is left
/// is whole (CLI-012).
fn check_references(
    definitions: &mut Vec<(String, Definition)>,
    mut faulty: IndexMap<String, String>,
    problems: &mut Vec<Problem>,
) {
    loop {
        let mut known: Vec<String> = definitions.iter().map(|(_, definition)| definition.id.clone()).collect();
        known.sort();
        let mut wrong = Vec::new();
        for (at, (shown, definition)) in definitions.iter().enumerate() {
            let before = problems.len();
            for Reference { id, line, column } in definition.agents.values() {
                if known.contains(id) {
                    continue;
                }
                let message = match faulty.get(id) {
                    Some(other) => format!("agents: {id} cannot be delegated to, since {other} has errors"),
                    None => {
                        let near = nearest(id, known.iter().map(String::as_str));
                        let near = near.map(|near| format!("; did you mean {near}?")).unwrap_or_default();
                        format!("agents: {id}: unknown agent; known are {}{near}", known.join(", "))
                    }
                };
                problems.push(Problem { place: format!("{shown}:{line}:{column}"), message });
            }
            if problems.len() > before {
                wrong.push(at);
            }
        }
        if wrong.is_empty() {
            return;
        }
        for at in wrong.into_iter().rev() {
            let (shown, definition) = definitions.remove(at);
            faulty.insert(definition.id, shown);
        }
    }
}

/// The agent files of the folders, sorted; folders that are named but missing are a problem.
fn files(settings: &Settings, found: &mut Found) -> Vec<PathBuf> {
    let base = settings.base_of("agents.dirs");
    let mut paths = Vec::new();
    for directory in settings.list("agents.dirs").unwrap_or_default() {
        let path = base.join(directory);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && directory == "agents" => continue,
            Err(error) => {
                let message = format!("the folder cannot be read: {error}");
                found.problems.push(Problem { place: directory.clone(), message });
                continue;
            }
        };
        for entry in entries.flatten() {
            if is_agent_file(&entry.path()) {
                paths.push(entry.path());
            }
        }
    }
    paths.sort();
    paths
}

fn is_agent_file(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.extension().is_some_and(|extension| extension == "md")
        && !name.starts_with(['.', '_'])
        && name != "README.md"
        && path.is_file()
}

fn read(
    shown: &str,
    stem: &str,
    bytes: &[u8],
    (models, webhooks): (&Models, &Webhooks),
    warnings: &mut Vec<String>,
) -> (Definition, Vec<Problem>) {
    let document = match Document::read(bytes) {
        Ok(document) => document,
        Err((line, column, message)) => {
            let problem = Problem { place: format!("{shown}:{line}:{column}"), message };
            return (Definition::named(stem), vec![problem]);
        }
    };
    fields::Reader::new(shown, stem, models, webhooks, warnings).read(&document)
}

/// An agent as those see it who name it. They find it by its id, so cycles are legal (SUB-165).
fn as_subagent(definition: &Definition) -> Registered {
    let mut agent = Registered::new(&definition.id).name(&definition.name).description(&definition.description);
    if let Some(steps) = definition.options.max_steps {
        agent = agent.max_steps(steps);
    }
    if definition.memory.as_ref().is_none_or(|memory| memory.read_only) {
        agent = agent.without_memory();
    }
    agent
}

fn build(
    definition: &Definition,
    agents: &IndexMap<String, Registered>,
    settings: &Settings,
    webhooks: &Webhooks,
) -> Result<Served, String> {
    let concurrency = settings.number("runs.tool-concurrency").and_then(|number| u32::try_from(number).ok());
    let mut delegation = definition.options.delegation.clone();
    let depth = settings.number("runs.max-delegation-depth").and_then(|number| u32::try_from(number).ok());
    delegation.max_depth = delegation.max_depth.or(depth);
    let options = RunOptions {
        delegation,
        tool_call_concurrency: concurrency,
        on_step_limit: Some(definition.on_step_limit),
        ..definition.options.clone()
    };
    let mut builder = Agent::builder(definition.id.clone())
        .name(definition.name.clone())
        .description(definition.description.clone())
        .instructions(definition.instructions.clone())
        .default_options(options)
        .interrupt(definition.interrupt)
        .on_step_limit(definition.on_step_limit)
        .source(AgentSource::Fs);
    for entry in &definition.models {
        builder = builder.model_entry(entry.clone());
    }
    for (key, tool) in &definition.tools {
        builder = builder.tool_as(key.clone(), tool.clone());
    }
    for (key, reference) in &definition.agents {
        if let Some(agent) = agents.get(&reference.id) {
            builder = builder.agent(key.clone(), agent.clone());
        }
    }
    if let (Some(completion), Some(entry)) = (&definition.completion, definition.models.first()) {
        builder = builder.is_task_complete(completion.build(&Judge::of_model(entry.model.clone())));
    }
    for name in &definition.signals {
        // Of one whose secrets are missing its own place is told.
        if let Some(provider) = webhooks.provider(name, &definition.id) {
            builder = builder.provider(provider);
        }
    }
    for processor in &definition.processors.input {
        builder = builder.shared_input_processor(processor.clone());
    }
    for processor in &definition.processors.output {
        builder = builder.shared_output_processor(processor.clone());
    }
    for processor in &definition.processors.error {
        builder = builder.shared_error_processor(processor.clone());
    }
    if let Some(memory) = &definition.memory {
        builder = builder.memory(MemoryOptions::clone(memory));
    }
    if let Some(policy) = definition.notifications.clone() {
        builder = builder.notifications(policy);
    }
    let mut metadata = definition.metadata.clone();
    if settings.text("agents.default") == Some(&definition.id) {
        metadata.get_or_insert_default().insert(DEFAULT_MARK.into(), true.into());
    }
    if let Some(metadata) = metadata {
        builder = builder.metadata(metadata);
    }
    let agent = builder.build().map_err(|error| error.to_string())?;
    Ok(Served {
        agent,
        model: definition.model_names.join(", "),
        missing: definition.missing.clone(),
        signals: definition.signals.clone(),
    })
}

#[cfg(test)]
mod tests;
