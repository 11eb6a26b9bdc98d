//! What a run resolves before it begins: options, model, tools, memory, history (LOOP-005, LOOP-006, MEM-080).

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::{
    RunOptions, RunOutput, RunSnapshot, SeedKind, StructuredOutput, commit::storage_error, driver::read_snapshot,
    machine::model_output_metadata, request::DEFAULT_RETRIES, settings::DEFAULT_STEPS, structured::provider_schema,
    tools::ToolTable,
};
use crate::{
    agent::{Agent, ModelEntry},
    chunk::ErrorInfo,
    error::Error,
    id::{MessageId, RunId, ThreadKey},
    json::Value,
    memory::{MemoryOptions, generate_title, get_working_memory, update_working_memory_tool, working_memory_system},
    message::{HISTORY_EXTRA, Part, StoredMessage, complete_tool_calls, history_window, trailing_input},
    model::{PromptMessage, ResponseFormat, UserPart},
    processor::{Parts, Processors},
    runtime::{Inner, RunInput},
    scorer::TaskCompletion,
    storage::{Commit, NewThread, RunChange, RunRecord, SharedStorage},
    subagent::{Detached, SubAgents, check_names, tool_name},
    thread::ThreadLink,
    tool::Tool,
};

/// A run whose process has died without a step in between is gone on with this often; then it is given up. High, since
/// most processes die of something else than their run.
const RECOVERIES: u32 = 20;

/// All that a run has resolved.
pub(super) struct Prepared {
    pub(super) agent: Agent,
    pub(super) options: RunOptions,
    pub(super) models: Vec<ModelEntry>,
    pub(super) tools: Arc<ToolTable>,
    pub(super) memory: MemoryOptions,
    /// Input, output, error processors.
    pub(super) processors: [Processors; 3],
    pub(super) system: Vec<PromptMessage>,
    pub(super) history: Vec<StoredMessage>,
    /// The thread holds more than the history.
    pub(super) history_cut: bool,
    /// Remembered messages whose calls the input has completed.
    pub(super) completed: Vec<MessageId>,
    /// The calls whose results the client has given.
    pub(super) client_calls: Vec<String>,
    pub(super) first_messages: Vec<StoredMessage>,
    pub(super) completion: Option<TaskCompletion>,
    pub(super) snapshot: Option<RunSnapshot>,
    resumes: bool,
    storage: SharedStorage,
    thread: Option<ThreadKey>,
}

/// Resolves a run.
///
/// # Errors
/// What a person should know of why it cannot begin.
pub(super) async fn prepare(
    inner: &Arc<Inner>,
    agent: Agent,
    options: &RunOptions,
    kind: SeedKind,
    (link, detached): (Option<&ThreadLink>, Option<&Detached>),
    run_id: &RunId,
) -> Result<Prepared, ErrorInfo> {
    let storage = inner.storage.clone();
    let given = options;
    let mut options = given.over(agent.default_options());
    let mut snapshot = None;
    if matches!(kind, SeedKind::Recorded) {
        let record = storage.get_run(run_id).await.map_err(|error| storage_error(&error))?;
        let record = record.ok_or_else(|| ErrorInfo::new("RunGone", "the record of this run is gone"))?;
        let mut found = read_snapshot(record.snapshot.clone())?;
        if found.recoveries >= RECOVERIES {
            let text = format!(
                "run {run_id} was given up: the process that worked on it ended {} times in the same step",
                found.recoveries + 1
            );
            return Err(ErrorInfo::new("RunGivenUp", text));
        }
        found.recoveries += 1;
        if let Some(link) = link {
            // Before anything of it runs: should it kill this process too, the next one knows.
            let mut commit = Commit::new(link.key.clone(), link.epoch);
            let snapshot = serde_json::to_value(&found).unwrap_or(record.snapshot.clone());
            commit.run = RunChange::Save(RunRecord { snapshot, updated_at: inner.clock.now(), ..record });
            storage.commit(commit).await.map_err(|error| storage_error(&error))?;
        }
        options = RunOptions::from_stored(&found.options).over(agent.default_options());
        snapshot = Some(found);
    }
    let mut kind = kind;
    let resumes = matches!(kind, SeedKind::Resumed(_));
    if let SeedKind::Resumed(seed) = &mut kind {
        // What the resuming call says comes first, then what the run was started with (SUB-134).
        let stored = seed.nested.as_ref().map(|found| RunOptions::from_stored(&found.options)).unwrap_or_default();
        options = given.over(&stored.over(agent.default_options()));
        snapshot = seed.nested.take().map(|found| *found);
    }
    let processors = agent.lists(&options);
    let parts = Parts::of(&processors[0], &processors[1]);
    let mut memory = match agent.memory_of(&parts) {
        Some(memory) => memory.merged(options.memory_options.as_ref()).map_err(|error| refused(&error))?,
        None if detached.is_some_and(|detached| detached.remembers) => parts.over(MemoryOptions::default()),
        None if parts.needs_memory().is_some() => {
            let part = parts.needs_memory().unwrap_or_default();
            let message =
                format!("{part} is in a list of this run, but agent {} has no memory; give it memory", agent.id());
            return Err(ErrorInfo::new("InvalidOptions", message));
        }
        None => MemoryOptions { last_messages: crate::memory::LastMessages(None), ..MemoryOptions::default() },
    };
    let models = match &options.model {
        Some(model) => vec![ModelEntry { model: model.clone(), max_retries: None }],
        None => agent.models(&options.request_context),
    };
    if models.is_empty() {
        let message = format!("agent {} has no model for this request", agent.id());
        return Err(ErrorInfo::new("ModelConfigurationError", message));
    }
    let thread = link.map(|link| link.key.clone()).or_else(|| detached?.thread.clone());
    let (mut history, history_cut) = match &thread {
        // A delegated run begins without, unless it keeps its thread (SUB-046); one that goes on has all it needs.
        Some(_) if detached.is_some_and(|detached| !detached.remembers || snapshot.is_some()) => (Vec::new(), false),
        Some(thread) if agent.memory().is_some() || detached.is_some() => {
            let completes = match &kind {
                SeedKind::Direct(input) => !input.tool_results.is_empty(),
                SeedKind::Resumed(seed) => !seed.messages.tool_results.is_empty(),
                SeedKind::Woken | SeedKind::Recorded => false,
            };
            load_history(&storage, thread, &memory, snapshot.as_ref(), completes).await?
        }
        _ => (Vec::new(), false),
    };
    let (mut completed, mut client_calls) = (Vec::new(), Vec::new());
    let mut first_messages = Vec::new();
    let input = match kind {
        SeedKind::Direct(input) => Some(*input),
        SeedKind::Resumed(seed) => Some(seed.messages).filter(|input| *input != RunInput::default()),
        SeedKind::Woken | SeedKind::Recorded => None,
    };
    if let Some(input) = input {
        let calls: Vec<String> = input.tool_results.iter().map(|result| result.tool_call_id.clone()).collect();
        (completed, first_messages) = take_input(input, &mut history, inner, thread.as_ref(), !parts.own_filter);
        // A blocked message that is sent again takes the place of its row.
        history.retain(|row| !(row.is_blocked() && first_messages.iter().any(|message| message.id == row.id)));
        for message in history.iter_mut().chain(&mut first_messages) {
            map_for_model(message, &calls, &agent);
        }
        client_calls = calls;
    }
    if detached.is_some() {
        memory.generate_title = None;
    }
    let mut extra = Vec::new();
    let mut system = system_messages(&agent, &options);
    if let (Some(thread), Some(working)) = (&thread, memory.working_memory.as_ref().filter(|working| working.enabled)) {
        let current = get_working_memory(&storage, thread, working.scope).await.map_err(|error| refused(&error))?;
        if let Some(text) = working_memory_system(working, current.as_deref()).filter(|_| parts.tells_working_memory())
        {
            system.push(PromptMessage::System { content: text, provider_options: None });
        }
        if !working.read_only && !memory.read_only {
            extra.push(update_working_memory_tool(storage.clone(), thread.clone(), working.clone()));
        }
    }
    let agents = sub_agents(&agent, &options)?;
    let tools = Arc::new(ToolTable::new(agent.tools(), extra, &options).with_agents(agents, &options.delegation));
    if let Some((one, other)) = tools.collision() {
        let message = format!("tools {one} and {other} have the same name for providers; rename one");
        let mut error = ErrorInfo::new("AGENT_TOOL_NAME_COLLISION", message);
        error.id = Some("AGENT_TOOL_NAME_COLLISION".to_owned());
        return Err(error);
    }
    let completion = options.is_task_complete.clone().or_else(|| agent.inner().task_completion.clone());
    Ok(Prepared {
        agent,
        options,
        models,
        tools,
        memory,
        processors,
        system,
        history,
        history_cut,
        completed,
        client_calls,
        first_messages,
        completion: completion.filter(|completion| !completion.scorers.is_empty()),
        snapshot,
        resumes,
        storage,
        thread,
    })
}

/// The subagents of a run (SUB-003, SUB-007).
fn sub_agents(agent: &Agent, options: &RunOptions) -> Result<SubAgents, ErrorInfo> {
    let failed = |id: &str, message: String| {
        let mut error = ErrorInfo::new(id, message);
        error.id = Some(id.to_owned());
        error
    };
    let agents = agent.agents_for(&options.request_context).ok_or_else(|| {
        let message =
            format!("the function that makes the subagents of agent {} gave none; an empty map is fine", agent.id());
        failed("AGENT_GET_AGENTS_FUNCTION_EMPTY_RETURN", message)
    })?;
    if let Err((one, other)) = check_names(&agents) {
        let message = format!("subagents {one} and {other} have the same tool name, {}; rename one", tool_name(&one));
        return Err(failed("AGENT_TOOL_NAME_COLLISION", message));
    }
    Ok(agents)
}

fn refused(error: &Error) -> ErrorInfo {
    ErrorInfo::new("InvalidOptions", error.to_string())
}

/// So many blocked rows are looked past at most.
const BLOCKED_MAX: u32 = 1_000;

async fn load_history(
    storage: &SharedStorage,
    thread: &ThreadKey,
    memory: &MemoryOptions,
    snapshot: Option<&RunSnapshot>,
    completes_calls: bool,
) -> Result<(Vec<StoredMessage>, bool), ErrorInfo> {
    let own = snapshot.map_or(0, |snapshot| u32::try_from(snapshot.own.len()).unwrap_or(u32::MAX));
    let mut wanted = memory.last_messages.count().saturating_add(own);
    if completes_calls {
        // A client's results complete stored calls, however little history the prompt has.
        wanted = wanted.max(2);
    }
    if wanted == 0 {
        return Ok((Vec::new(), true));
    }
    let enough = wanted.saturating_add(HISTORY_EXTRA);
    let mut asked = enough;
    let rows = loop {
        let rows = storage.recent_messages(thread, asked).await.map_err(|error| storage_error(&error))?;
        let blocked = rows.iter().filter(|row| row.is_blocked()).count();
        // Whoever may send must not be able to push the conversation out of sight (ruling 34).
        let is_short = rows.len() - blocked < enough as usize && rows.len() >= asked as usize;
        if !is_short || asked >= enough.saturating_add(BLOCKED_MAX) {
            break rows;
        }
        asked = asked.saturating_mul(4).min(enough.saturating_add(BLOCKED_MAX));
    };
    let window = history_window(&rows, wanted as usize);
    let cut = window.len() < rows.len() || rows.len() >= asked as usize;
    Ok((window.to_vec(), cut))
}

/// A plain run's input against what is stored: results complete calls, resent messages are left out (MEM-060).
fn take_input(
    mut input: RunInput,
    history: &mut [StoredMessage],
    inner: &Arc<Inner>,
    thread: Option<&ThreadKey>,
    filters: bool,
) -> (Vec<MessageId>, Vec<StoredMessage>) {
    let newest = history.iter().map(|message| message.created_at).max();
    let after = newest.map_or_else(|| inner.clock.now(), |newest| inner.clock.now().max(newest));
    input.fill(MessageId::fresh, after);
    let mut completed = complete_tool_calls(history, &input.tool_results);
    let mut messages = if filters {
        trailing_input(history, input.messages)
    } else {
        // Somebody else's filter decides, but what is stored is not overwritten (MEM-063).
        let is_new =
            |message: &StoredMessage| history.iter().all(|stored| stored.id != message.id || stored.is_blocked());
        input.messages.into_iter().filter(is_new).collect()
    };
    completed.extend(complete_tool_calls(&mut messages, &input.tool_results));
    if let Some(thread) = thread {
        messages = messages.into_iter().map(|message| message.on(thread)).collect();
    }
    (completed, messages)
}

/// What the model reads of a client's result is the tool's to say, as for tools with code (LOOP-076).
fn map_for_model(message: &mut StoredMessage, calls: &[String], agent: &Agent) {
    for part in &mut message.content.parts {
        let Part::ToolInvocation(call) = part else { continue };
        let invocation = &call.tool_invocation;
        let map = agent.tools().get(&invocation.tool_name).and_then(Tool::to_model_output);
        let (Some(map), Some(result)) = (map, &invocation.result) else { continue };
        if !calls.contains(&invocation.tool_call_id) {
            continue;
        }
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| map(result))) {
            Ok(output) => call.provider_metadata.get_or_insert_default().extend(model_output_metadata(&output)),
            Err(_) => tracing::error!(tool = invocation.tool_name, "mapping a client's result for the model panicked"),
        }
    }
}

fn system_messages(agent: &Agent, options: &RunOptions) -> Vec<PromptMessage> {
    let instructions: Vec<String> = match &options.instructions {
        Some(texts) => texts.list().to_vec(),
        None => agent.instructions(&options.request_context).into_iter().collect(),
    };
    let added = options.system.iter().flat_map(|texts| texts.list().iter().cloned());
    let all = instructions.into_iter().chain(added).filter(|text| !text.is_empty());
    all.map(|content| PromptMessage::System { content, provider_options: None }).collect()
}

impl Prepared {
    /// Whether it goes on with a parked run.
    pub(super) fn resumes(&self) -> bool {
        self.resumes
    }

    /// Whether what is said is stored.
    pub(super) fn stores(&self) -> bool {
        self.agent.memory().is_some() && !self.memory.read_only
    }

    /// The most steps: 0 counts as not given (LOOP-020).
    pub(super) fn max_steps(&self) -> u32 {
        match self.options.max_steps {
            Some(steps) if steps > 0 => steps,
            // With other stop conditions they alone decide.
            _ if !self.options.stop_when.is_empty() => u32::MAX,
            _ => DEFAULT_STEPS,
        }
    }

    /// `maxSteps`, if given.
    pub(super) fn given_steps(&self) -> Option<u32> {
        self.options.max_steps.filter(|steps| *steps > 0)
    }

    /// The thread: its own, or that of a delegated run, which others write for it.
    pub(super) fn thread(&self) -> Option<&ThreadKey> {
        self.thread.as_ref()
    }

    /// Tries after the first, for models that do not say (LOOP-046).
    pub(super) fn retries(&self) -> u32 {
        let call = self.options.model_settings.as_ref().and_then(|settings| settings.max_retries);
        call.or(self.agent.inner().max_retries).unwrap_or(DEFAULT_RETRIES)
    }

    /// The thread to make, if it is missing (MEM-012, SIG-362).
    pub(super) fn new_thread(&self, key: Option<&ThreadKey>) -> Option<NewThread> {
        let key = key?;
        let seed = self.options.thread_seed.clone().unwrap_or_default();
        Some(NewThread {
            id: Some(key.thread_id.to_string()),
            resource_id: key.resource_id.as_deref().unwrap_or_default().to_owned(),
            title: seed.title,
            metadata: seed.metadata,
        })
    }

    /// Headers of a request: the thread, then the settings' (LOOP-043).
    pub(super) fn headers(&self, key: Option<&ThreadKey>) -> Vec<(String, String)> {
        let mut headers = Vec::new();
        if let Some(key) = key {
            headers.push(("x-thread-id".to_owned(), key.thread_id.to_string()));
            if let Some(resource) = &key.resource_id {
                headers.push(("x-resource-id".to_owned(), resource.to_string()));
            }
        }
        headers
    }

    /// Makes the thread's title after the first exchange; never delays or fails the run (MEM-030).
    /// It ends with `stop`.
    pub(super) fn title_task(
        &self,
        output: &RunOutput,
        stop: CancellationToken,
    ) -> Option<impl Future<Output = ()> + Send + 'static> {
        let options = self.memory.generate_title.clone()?;
        let thread = self.thread.clone()?;
        if self.memory.read_only {
            return None;
        }
        let model = self.models.first()?.model.clone();
        let storage = self.storage.clone();
        let mut messages = output.remembered_messages.clone();
        messages.extend(output.messages.clone());
        Some(async move {
            // Dropping it writes nothing.
            stop.run_until_cancelled(generate_title(&model, &messages, &options, &storage, &thread)).await;
        })
    }
}

fn injects_schema(structured: &StructuredOutput) -> Option<&Value> {
    let injection = structured.json_prompt_injection.as_ref()?;
    let off = injection == &Value::Bool(false) || injection == "auto";
    (!off).then_some(injection)
}

/// The schema as the provider's own response format (LOOP-151).
pub(super) fn response_format(structured: &StructuredOutput) -> Option<ResponseFormat> {
    if injects_schema(structured).is_some() {
        return None;
    }
    Some(ResponseFormat { schema: provider_schema(&structured.schema), name: "answer".to_owned() })
}

/// The schema in the prompt instead.
pub(super) fn inject_schema(structured: &StructuredOutput, prompt: &mut Vec<PromptMessage>) {
    let mut text = structured.instructions.clone().unwrap_or_default();
    if let Some(injection) = injects_schema(structured) {
        let schema = provider_schema(&structured.schema);
        let told = format!("Answer with one JSON value that fits this JSON Schema, and with nothing else:\n{schema}");
        text = if text.is_empty() { told } else { format!("{text}\n{told}") };
        if injection == "inline"
            && let Some(PromptMessage::User { content, .. }) =
                prompt.iter_mut().rfind(|message| matches!(message, PromptMessage::User { .. }))
        {
            content.push(UserPart::Text { text, provider_options: None });
            return;
        }
    }
    if !text.is_empty() {
        let at = prompt.iter().take_while(|message| matches!(message, PromptMessage::System { .. })).count();
        prompt.insert(at, PromptMessage::System { content: text, provider_options: None });
    }
}
