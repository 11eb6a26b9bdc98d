//! Agents that name each other: looked up by id when they are needed, so that cycles are legal (CLI-012, SUB-165).

use async_trait::async_trait;
use bugle::{
    chunk::ErrorInfo,
    subagent::{SubAgent, SubRun, Task},
};

use super::fields::Definition;

/// An agent of the runtime, as a subagent of others.
#[derive(Debug, Clone)]
pub(super) struct ById {
    id: String,
    name: String,
    description: String,
    max_steps: Option<u32>,
    has_memory: bool,
}

impl ById {
    pub(super) fn of(definition: &Definition) -> Self {
        Self {
            id: definition.id.clone(),
            name: definition.name.clone(),
            description: definition.description.clone(),
            max_steps: definition.options.max_steps,
            has_memory: definition.memory.as_ref().is_some_and(|memory| !memory.read_only),
        }
    }

    pub(super) fn is(&self, id: &str) -> bool {
        self.id == id
    }
}

#[async_trait]
impl SubAgent for ById {
    fn id(&self) -> &str {
        &self.id
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> Option<&str> {
        (!self.description.is_empty()).then_some(&self.description)
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
