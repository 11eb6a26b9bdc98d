//! The agent's builder.

use std::sync::Arc;

use indexmap::IndexMap;

use super::{Agent, AgentInner, AgentSource, Dynamic, Interrupt, ModelEntry, OnStepLimit, RequestContext};
use crate::{
    error::Error,
    json::Object,
    memory::MemoryOptions,
    model::SharedModel,
    notification::DeliveryPolicy,
    processor::{List, Parts, Processor, Processors, SharedProcessor},
    provider::SharedProvider,
    run::RunOptions,
    scorer::TaskCompletion,
    subagent::{SubAgent, SubAgents},
    tool::Tool,
};

/// Builds an [`Agent`]. Only a model is required.
///
/// ```
/// use std::sync::Arc;
/// use bugle::{Agent, model::ScriptedModel};
/// let agent = Agent::builder("support").instructions("Help.").model(Arc::new(ScriptedModel::new())).build()?;
/// assert_eq!(agent.name(), "support");
/// # Ok::<(), bugle::Error>(())
/// ```
#[must_use]
pub struct AgentBuilder {
    inner: AgentInner,
}

impl AgentBuilder {
    pub(super) fn new(id: String) -> Self {
        Self {
            inner: AgentInner {
                name: id.clone(),
                id,
                description: None,
                instructions: Dynamic::Value(None),
                models: Dynamic::Value(Vec::new()),
                tools: IndexMap::new(),
                agents: IndexMap::new(),
                agents_per: None,
                memory: None,
                default_options: RunOptions::default(),
                max_retries: None,
                input_processors: Dynamic::Value(Processors::default()),
                output_processors: Dynamic::Value(Processors::default()),
                error_processors: Dynamic::Value(Processors::default()),
                max_processor_retries: None,
                task_completion: None,
                interrupt: Interrupt::default(),
                on_step_limit: OnStepLimit::default(),
                notifications: None,
                providers: Vec::new(),
                source: AgentSource::default(),
                metadata: None,
            },
        }
    }

    /// The shown name.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.inner.name = name.into();
        self
    }

    /// What it is for.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.inner.description = Some(description.into());
        self
    }

    /// What the model is told first.
    pub fn instructions(mut self, instructions: impl Into<String>) -> Self {
        self.inner.instructions = Dynamic::Value(Some(instructions.into()));
        self
    }

    /// Instructions made for each run.
    pub fn instructions_per(
        mut self,
        make: impl Fn(&RequestContext) -> Option<String> + Send + Sync + 'static,
    ) -> Self {
        self.inner.instructions = Dynamic::Per(Arc::new(make));
        self
    }

    /// Its model. Called again, adds a fallback (LOOP-047).
    pub fn model(self, model: SharedModel) -> Self {
        self.model_entry(ModelEntry { model, max_retries: None })
    }

    /// Its model, or another fallback, with its own retries.
    pub fn model_entry(mut self, entry: ModelEntry) -> Self {
        match &mut self.inner.models {
            Dynamic::Value(models) => models.push(entry),
            Dynamic::Per(_) => self.inner.models = Dynamic::Value(vec![entry]),
        }
        self
    }

    /// Models made for each run. An empty list fails the run.
    pub fn models_per(mut self, make: impl Fn(&RequestContext) -> Vec<ModelEntry> + Send + Sync + 'static) -> Self {
        self.inner.models = Dynamic::Per(Arc::new(make));
        self
    }

    /// A tool, known to the model by its id.
    pub fn tool(self, tool: Tool) -> Self {
        let key = tool.id().to_owned();
        self.tool_as(key, tool)
    }

    /// A tool, known to the model by `key` (LOOP-061).
    pub fn tool_as(mut self, key: impl Into<String>, tool: Tool) -> Self {
        self.inner.tools.insert(key.into(), tool);
        self
    }

    /// A subagent, under `key`: the model gets a tool `agent-<key>` to delegate with (SUB-001).
    ///
    /// ```
    /// use std::sync::Arc;
    /// use bugle::{Agent, model::ScriptedModel};
    /// let model = Arc::new(ScriptedModel::new());
    /// let writer = Agent::builder("writer").description("Writes short texts.").model(model.clone()).build()?;
    /// let lead = Agent::builder("lead").model(model).agent("writer", writer).build()?;
    /// assert_eq!(lead.agents()["writer"].id(), "writer");
    /// # Ok::<(), bugle::Error>(())
    /// ```
    pub fn agent(mut self, key: impl Into<String>, agent: impl SubAgent + 'static) -> Self {
        self.inner.agents.insert(key.into(), Arc::new(agent));
        self
    }

    /// Subagents made for each run, before its tools are; in place of the fixed ones. `None` fails the run with
    /// `AGENT_GET_AGENTS_FUNCTION_EMPTY_RETURN`, an empty map is legal (SUB-007). Agents may be found in each other's: a
    /// cycle is legal and ends at the depth limit.
    pub fn agents_per(mut self, make: impl Fn(&RequestContext) -> Option<SubAgents> + Send + Sync + 'static) -> Self {
        self.inner.agents_per = Some(Arc::new(make));
        self
    }

    /// What it remembers. Without, its runs have no thread, unless history or working memory is among its processors.
    pub fn memory(mut self, memory: MemoryOptions) -> Self {
        self.inner.memory = Some(memory);
        self
    }

    /// Options of every run.
    pub fn default_options(mut self, options: RunOptions) -> Self {
        self.inner.default_options = options;
        self
    }

    /// Tries after the first, where neither model nor call says (LOOP-046).
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.inner.max_retries = Some(retries);
        self
    }

    /// Guards and shapes input, requests and the prompt, after the ones before it (PROC-003).
    pub fn input_processor(self, processor: impl Processor + 'static) -> Self {
        self.shared_input_processor(Arc::new(processor))
    }

    /// The same, for a processor that is in several lists or agents.
    pub fn shared_input_processor(mut self, processor: SharedProcessor) -> Self {
        add(&mut self.inner.input_processors, processor);
        self
    }

    /// Input processors made for each run, in the place of those given one by one.
    pub fn input_processors_per(
        mut self,
        make: impl Fn(&RequestContext) -> Processors + Send + Sync + 'static,
    ) -> Self {
        self.inner.input_processors = Dynamic::Per(Arc::new(make));
        self
    }

    /// Guards and shapes what the model says, after the ones before it.
    pub fn output_processor(self, processor: impl Processor + 'static) -> Self {
        self.shared_output_processor(Arc::new(processor))
    }

    /// The same, for a processor that is in several lists or agents.
    pub fn shared_output_processor(mut self, processor: SharedProcessor) -> Self {
        add(&mut self.inner.output_processors, processor);
        self
    }

    /// Output processors made for each run, in the place of those given one by one.
    pub fn output_processors_per(
        mut self,
        make: impl Fn(&RequestContext) -> Processors + Send + Sync + 'static,
    ) -> Self {
        self.inner.output_processors = Dynamic::Per(Arc::new(make));
        self
    }

    /// Says whether failed requests are tried again (PROC §6).
    pub fn error_processor(self, processor: impl Processor + 'static) -> Self {
        self.shared_error_processor(Arc::new(processor))
    }

    /// The same, for a processor that is in several lists or agents.
    pub fn shared_error_processor(mut self, processor: SharedProcessor) -> Self {
        add(&mut self.inner.error_processors, processor);
        self
    }

    /// Error processors made for each run, in the place of those given one by one.
    pub fn error_processors_per(
        mut self,
        make: impl Fn(&RequestContext) -> Processors + Send + Sync + 'static,
    ) -> Self {
        self.inner.error_processors = Dynamic::Per(Arc::new(make));
        self
    }

    /// How often processors may have a step tried again (PROC-053). Without it a step is never tried again, and a failed
    /// request at most 3 times where a processor asks for it (PROC-061).
    pub fn max_processor_retries(mut self, retries: u32) -> Self {
        self.inner.max_processor_retries = Some(retries);
        self
    }

    /// Says when the work is done (SCO §3).
    pub fn is_task_complete(mut self, completion: TaskCompletion) -> Self {
        self.inner.task_completion = Some(completion);
        self
    }

    /// When input interrupts a request.
    pub fn interrupt(mut self, interrupt: Interrupt) -> Self {
        self.inner.interrupt = interrupt;
        self
    }

    /// What becomes of input at the step limit.
    pub fn on_step_limit(mut self, behavior: OnStepLimit) -> Self {
        self.inner.on_step_limit = behavior;
        self
    }

    /// What is done with notifications that come in (NOTIF-041). Default: the built-in table of NOTIF-040.
    pub fn notifications(mut self, policy: DeliveryPolicy) -> Self {
        self.inner.notifications = Some(Arc::new(policy));
        self
    }

    /// A provider that watches the outside for it: its processors come before the agent's own, its tools beside them
    /// (PROV-002).
    pub fn provider(mut self, provider: SharedProvider) -> Self {
        self.inner.providers.push(provider);
        self
    }

    /// Where it comes from.
    pub fn source(mut self, source: AgentSource) -> Self {
        self.inner.source = source;
        self
    }

    /// Shown as it is.
    pub fn metadata(mut self, metadata: Object) -> Self {
        self.inner.metadata = Some(metadata);
        self
    }

    /// The agent.
    ///
    /// # Errors
    /// [`Error::Configuration`] without a model, with an empty id, with default options that no run may have, with tools whose provider-safe names collide
    /// (LOOP-081), or with a processor in a list where none of its hooks ever runs (it names the lists that fit).
    pub fn build(self) -> Result<Agent, Error> {
        let mut inner = self.inner;
        let (mut input, mut output) = (Vec::new(), Vec::new());
        for provider in &inner.providers {
            for tool in provider.tools() {
                inner.tools.entry(tool.id().to_owned()).or_insert(tool);
            }
            input.extend(provider.input_processors());
            output.extend(provider.output_processors());
        }
        inner.input_processors = behind(inner.input_processors, input);
        inner.output_processors = behind(inner.output_processors, output);
        if inner.id.trim().is_empty() {
            return Err(Error::configuration("an agent needs an id"));
        }
        if matches!(&inner.models, Dynamic::Value(models) if models.is_empty()) {
            return Err(Error::configuration(format!("agent {} has no model; give it one with `.model(…)`", inner.id)));
        }
        inner.default_options.check().map_err(|error| {
            Error::configuration(format!("the default options of agent {} are wrong: {error}", inner.id))
        })?;
        let lists = [&inner.input_processors, &inner.output_processors, &inner.error_processors];
        for (list, of) in lists.into_iter().zip(List::ALL) {
            if let Dynamic::Value(list) = list {
                list.check(of)
                    .map_err(|error| Error::configuration(format!("processors of agent {}: {error}", inner.id)))?;
            }
        }
        if let (None, Dynamic::Value(input), Dynamic::Value(output)) =
            (&inner.memory, &inner.input_processors, &inner.output_processors)
        {
            inner.memory = Parts::of(input, output).own_memory();
        }
        let mut safe = IndexMap::new();
        for key in inner.tools.keys() {
            if let Some(other) = safe.insert(crate::tool::provider_safe_name(key), key) {
                return Err(Error::configuration(format!(
                    "AGENT_TOOL_NAME_COLLISION: tools {other} and {key} of agent {} have the same name for providers; rename one",
                    inner.id
                )));
            }
        }
        for (key, agent) in &inner.agents {
            if agent.description().is_none_or(|text| text.trim().is_empty()) {
                tracing::warn!(
                    agent = inner.id,
                    subagent = key,
                    "a subagent has no description, by which the model decides when to delegate to it; give it one"
                );
            }
        }
        Ok(Agent { inner: Arc::new(inner) })
    }
}

/// The agent's own list behind those of its providers (PROC-004).
fn behind(list: Dynamic<Processors>, first: Vec<SharedProcessor>) -> Dynamic<Processors> {
    match list {
        list if first.is_empty() => list,
        Dynamic::Value(list) => Dynamic::Value(list.behind(first)),
        Dynamic::Per(make) => Dynamic::Per(Arc::new(move |context| make(context).behind(first.clone()))),
    }
}

fn add(list: &mut Dynamic<Processors>, processor: SharedProcessor) {
    match list {
        Dynamic::Value(list) => list.push(processor),
        Dynamic::Per(_) => {
            let mut processors = Processors::default();
            processors.push(processor);
            *list = Dynamic::Value(processors);
        }
    }
}
