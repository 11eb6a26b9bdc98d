//! Agents: what they are, and the values they resolve per run.

mod builder;
mod context;

pub use builder::AgentBuilder;
pub use context::RequestContext;

use std::{fmt, sync::Arc};

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::{
    json::Object,
    memory::MemoryOptions,
    model::SharedModel,
    notification::DeliveryPolicy,
    processor::{EffectiveProcessors, Hook, Parts, Processors, effective},
    provider::SharedProvider,
    run::RunOptions,
    scorer::TaskCompletion,
    subagent::SubAgents,
    tool::Tool,
};

/// A value, or a function of the request context, evaluated once per run (LOOP-005).
#[derive(Clone)]
pub enum Dynamic<T> {
    /// Always this.
    Value(T),
    /// Made for each run.
    Per(Arc<dyn Fn(&RequestContext) -> T + Send + Sync>),
}

impl<T: Clone> Dynamic<T> {
    /// The value for a run.
    pub fn resolve(&self, context: &RequestContext) -> T {
        match self {
            Self::Value(value) => value.clone(),
            Self::Per(make) => make(context),
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Dynamic<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => value.fmt(f),
            Self::Per(_) => f.write_str("Per(..)"),
        }
    }
}

impl<T> From<T> for Dynamic<T> {
    fn from(value: T) -> Self {
        Self::Value(value)
    }
}

/// One model of a fallback list (LOOP-047).
#[derive(Debug, Clone)]
pub struct ModelEntry {
    /// The model.
    pub model: SharedModel,
    /// Tries after the first; the run's, else the agent's, else 2 (LOOP-046).
    pub max_retries: Option<u32>,
}

/// When input interrupts a request that has produced no content yet (SIG-245).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Interrupt {
    /// While the model only reasons, or is silent (SIG-220).
    #[default]
    Reasoning,
    /// Never; input waits for the step's end.
    Never,
}

/// What becomes of input that is taken in at the step limit (SIG-204).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OnStepLimit {
    /// Stored without an answer; `finish` names it.
    #[default]
    Save,
    /// Left for a run of its own with a fresh budget.
    FollowUp,
}

/// Where an agent comes from (HTTP-030).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AgentSource {
    /// Rust code.
    #[default]
    Code,
    /// A stored record.
    Stored,
    /// A file.
    Fs,
}

/// Subagents made for each run; `None` fails the run (SUB-007).
pub(crate) type AgentsPer = Arc<dyn Fn(&RequestContext) -> Option<SubAgents> + Send + Sync>;

/// An agent. Cheap to clone; never changed once built.
#[derive(Clone)]
pub struct Agent {
    inner: Arc<AgentInner>,
}

pub(crate) struct AgentInner {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) description: Option<String>,
    pub(crate) instructions: Dynamic<Option<String>>,
    pub(crate) models: Dynamic<Vec<ModelEntry>>,
    pub(crate) tools: IndexMap<String, Tool>,
    pub(crate) agents: SubAgents,
    pub(crate) agents_per: Option<AgentsPer>,
    pub(crate) memory: Option<MemoryOptions>,
    pub(crate) default_options: RunOptions,
    pub(crate) max_retries: Option<u32>,
    pub(crate) input_processors: Dynamic<Processors>,
    pub(crate) output_processors: Dynamic<Processors>,
    pub(crate) error_processors: Dynamic<Processors>,
    pub(crate) max_processor_retries: Option<u32>,
    pub(crate) task_completion: Option<TaskCompletion>,
    pub(crate) interrupt: Interrupt,
    pub(crate) on_step_limit: OnStepLimit,
    pub(crate) notifications: Option<Arc<DeliveryPolicy>>,
    pub(crate) providers: Vec<SharedProvider>,
    pub(crate) source: AgentSource,
    pub(crate) metadata: Option<Object>,
}

impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agent").field("id", &self.inner.id).finish_non_exhaustive()
    }
}

impl Agent {
    /// Begins an agent with this id (LOOP-012).
    pub fn builder(id: impl Into<String>) -> AgentBuilder {
        AgentBuilder::new(id.into())
    }

    pub(crate) fn inner(&self) -> &AgentInner {
        &self.inner
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// Its name; the id unless set.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// What it is for, told to those who may delegate to it.
    pub fn description(&self) -> Option<&str> {
        self.inner.description.as_deref()
    }

    /// Its instructions for this request context.
    pub fn instructions(&self, context: &RequestContext) -> Option<String> {
        self.inner.instructions.resolve(context)
    }

    /// Its models for this request context, in order of fallback; never empty.
    pub fn models(&self, context: &RequestContext) -> Vec<ModelEntry> {
        self.inner.models.resolve(context)
    }

    /// Its tools by the key the model knows them by.
    pub fn tools(&self) -> &IndexMap<String, Tool> {
        &self.inner.tools
    }

    /// Its subagents by key; those that are made for each run are not among them, see [`Agent::agents_for`].
    pub fn agents(&self) -> &SubAgents {
        &self.inner.agents
    }

    /// Its subagents by key for this request context: those made for it, else the fixed ones. `None` if the function
    /// that makes them gave nothing, which fails a run (SUB-007).
    pub fn agents_for(&self, context: &RequestContext) -> Option<SubAgents> {
        match &self.inner.agents_per {
            Some(make) => make(context),
            None => Some(self.inner.agents.clone()),
        }
    }

    /// What it remembers; `None` = no memory, so no threads.
    pub fn memory(&self) -> Option<&MemoryOptions> {
        self.inner.memory.as_ref()
    }

    /// Options of every run, under those of the call (LOOP-006).
    pub fn default_options(&self) -> &RunOptions {
        &self.inner.default_options
    }

    /// When its work is done, if somebody says so (SCO §3).
    pub fn task_completion(&self) -> Option<&TaskCompletion> {
        self.inner.task_completion.as_ref()
    }

    /// Its input processors for this request context, in order.
    pub fn input_processors(&self, context: &RequestContext) -> Processors {
        self.inner.input_processors.resolve(context)
    }

    /// Whether its input processors judge input, or may.
    pub(crate) fn judges_input(&self) -> bool {
        match &self.inner.input_processors {
            Dynamic::Value(list) => list.iter().any(|processor| processor.hooks().has(Hook::Input)),
            Dynamic::Per(_) => true,
        }
    }

    /// Its output processors for this request context, in order.
    pub fn output_processors(&self, context: &RequestContext) -> Processors {
        self.inner.output_processors.resolve(context)
    }

    /// Its error processors for this request context, in order.
    pub fn error_processors(&self, context: &RequestContext) -> Processors {
        self.inner.error_processors.resolve(context)
    }

    /// The processors of a run: those of the call in the place of its own (PROC-003). Lists made for each run are made here.
    pub(crate) fn lists(&self, options: &RunOptions) -> [Processors; 3] {
        let list = |call: &Option<Processors>, own: &Dynamic<Processors>| {
            call.clone().unwrap_or_else(|| own.resolve(&options.request_context))
        };
        [
            list(&options.input_processors, &self.inner.input_processors),
            list(&options.output_processors, &self.inner.output_processors),
            list(&options.error_processors, &self.inner.error_processors),
        ]
    }

    /// All that would work on a run with these options, in order, the framework's own parts included (PROC-004). Lists that
    /// are made for each run are made for it.
    ///
    /// # Errors
    /// [`crate::Error::Invalid`] for memory options of the call that no run may have.
    pub fn effective_processors(&self, options: &RunOptions) -> Result<EffectiveProcessors, crate::Error> {
        let options = options.over(self.default_options());
        let lists = self.lists(&options);
        let memory = self.memory_of(&Parts::of(&lists[0], &lists[1]));
        let memory = memory.map(|memory| memory.merged(options.memory_options.as_ref())).transpose()?;
        Ok(effective(&lists, memory.as_ref()))
    }

    /// What it remembers, with parts that are listed as processors.
    pub(crate) fn memory_of(&self, parts: &Parts) -> Option<MemoryOptions> {
        self.memory().map(|memory| parts.over(memory.clone()))
    }

    /// The same for the agent's own lists, as far as they are the same for each run.
    pub(crate) fn listed_memory(&self) -> Option<MemoryOptions> {
        let listed = |list: &Dynamic<Processors>| match list {
            Dynamic::Value(list) => list.clone(),
            Dynamic::Per(_) => Processors::default(),
        };
        self.memory_of(&Parts::of(&listed(&self.inner.input_processors), &listed(&self.inner.output_processors)))
    }

    /// Where it comes from.
    pub fn source(&self) -> AgentSource {
        self.inner.source
    }

    /// Shown as it is.
    pub fn metadata(&self) -> Option<&Object> {
        self.inner.metadata.as_ref()
    }
}
