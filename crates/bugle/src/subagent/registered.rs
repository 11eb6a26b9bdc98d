//! An agent of the runtime as a subagent of others, by its id: so agents can name each other (SUB-165).

use async_trait::async_trait;

use super::{SubAgent, SubRun, Task};
use crate::chunk::ErrorInfo;

/// An agent that the runtime knows, looked up when it is needed. What an agent is built with has to be there before it;
/// so this is how two agents are subagents of each other, or one of itself.
///
/// ```
/// use std::sync::Arc;
/// use bugle::{Agent, model::ScriptedModel, subagent::Registered};
/// let model = Arc::new(ScriptedModel::new());
/// let writer = Agent::builder("writer")
///     .model(model.clone())
///     .agent("editor", Registered::new("editor").description("Says what is wrong with a text."))
///     .build()?;
/// let editor = Agent::builder("editor").model(model).agent("writer", writer).build()?;
/// assert_eq!(editor.agents()["writer"].id(), "writer");
/// # Ok::<(), bugle::Error>(())
/// ```
#[derive(Debug, Clone)]
#[must_use]
pub struct Registered {
    id: String,
    name: Option<String>,
    description: Option<String>,
    max_steps: Option<u32>,
    has_memory: bool,
}

impl Registered {
    /// The agent with this id. A runtime that has none fails the delegation, not the run.
    pub fn new(id: impl Into<String>) -> Self {
        Self { id: id.into(), name: None, description: None, max_steps: None, has_memory: true }
    }

    /// Its shown name; the id unless set.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// What it is for: what the parent's model decides by (SUB-009).
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.description = Some(description.into());
        self
    }

    /// The most steps of a task, where the model asks for more (SUB-060).
    pub fn max_steps(mut self, steps: u32) -> Self {
        self.max_steps = Some(steps);
        self
    }

    /// It has no memory of its own, so its transcript is saved with the parent's (SUB-045).
    pub fn without_memory(mut self) -> Self {
        self.has_memory = false;
        self
    }
}

#[async_trait]
impl SubAgent for Registered {
    fn id(&self) -> &str {
        &self.id
    }

    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or(&self.id)
    }

    fn description(&self) -> Option<&str> {
        self.description.as_deref().filter(|text| !text.is_empty())
    }

    fn max_steps(&self) -> Option<u32> {
        self.max_steps
    }

    fn has_memory(&self) -> bool {
        self.has_memory
    }

    async fn run(&self, task: Task) -> SubRun {
        match task.runtime.agent(&self.id) {
            Ok(handle) => handle.agent().run(task).await,
            Err(error) => SubRun::failed(ErrorInfo::new("UnknownAgent", error.to_string())),
        }
    }
}
