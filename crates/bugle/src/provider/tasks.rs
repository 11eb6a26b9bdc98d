//! The task list as a provider: its tools and its lane in one piece (PROV-007).

use std::sync::Arc;

use super::SignalProvider;
use crate::{
    processor::{
        SharedProcessor,
        lane::LaneProcessor,
        lanes::{TaskLane, task_tools},
    },
    tool::Tool,
};

/// Gives its agent a task list: the tools `task_write`, `task_update`, `task_complete` and `task_check`, and the lane
/// `tasks` that shows it. In agent files: `signals: [tasks]`.
///
/// ```
/// use std::sync::Arc;
/// use bugle::{Agent, model::ScriptedModel, provider::TaskSignals};
/// let agent = Agent::builder("worker").model(Arc::new(ScriptedModel::new())).provider(Arc::new(TaskSignals)).build()?;
/// assert!(agent.tools().contains_key("task_write"));
/// # Ok::<(), bugle::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct TaskSignals;

impl SignalProvider for TaskSignals {
    fn id(&self) -> &'static str {
        "task-signals"
    }

    fn tools(&self) -> Vec<Tool> {
        task_tools()
    }

    fn input_processors(&self) -> Vec<SharedProcessor> {
        vec![Arc::new(LaneProcessor::new(TaskLane))]
    }
}
