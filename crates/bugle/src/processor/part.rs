//! The framework's own parts among the configured processors (PROC-004, PROC-005).

use super::Processors;
use crate::memory::{LastMessages, MemoryOptions, WorkingMemoryOptions};

/// The part that leaves out what a client sends again (MEM-060).
pub(crate) const INPUT_FILTER: &str = "memory-input-filter";
/// The part that shows working memory (MEM-101).
pub(crate) const WORKING_MEMORY: &str = "working-memory";
/// The part that recalls, and stores, the conversation (MEM-080, MEM-051).
pub(crate) const MESSAGE_HISTORY: &str = "message-history";

/// What a processor says of the part of the framework that it stands for.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Part {
    /// What a client sends again is left out, as without it.
    InputFilter,
    /// Working memory works like this, in the place of what the agent's memory says.
    WorkingMemory(WorkingMemoryOptions),
    /// History works like this; what is `None` is as the agent's memory says.
    MessageHistory {
        /// How many stored messages precede the prompt.
        last_messages: Option<LastMessages>,
        /// Whether calls without a result are left out of prompts (MEM-084).
        filter_incomplete_tool_calls: Option<bool>,
    },
}

/// The ids of all that works on a run, in order: the configured processors, and the framework's parts where none of the
/// configured ones has their id (PROC-004, PROC-005).
///
/// ```
/// use std::sync::Arc;
/// use bugle::{Agent, RunOptions, memory::MemoryOptions, model::ScriptedModel, processor::builtin::MessageHistory};
/// let agent = Agent::builder("a").model(Arc::new(ScriptedModel::new())).memory(MemoryOptions::default());
/// let agent = agent.input_processor(MessageHistory::new().last_messages(5)).build()?;
/// let order = agent.effective_processors(&RunOptions::default())?;
/// assert_eq!(order.input, ["memory-input-filter", "message-history"]);
/// assert_eq!(order.output, ["message-history"]);
/// # Ok::<(), bugle::Error>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EffectiveProcessors {
    /// What works before the model.
    pub input: Vec<String>,
    /// What works after it.
    pub output: Vec<String>,
    /// What works on failed requests only.
    pub error: Vec<String>,
}

/// What configured lists say of the framework's parts.
#[derive(Debug, Default)]
pub(crate) struct Parts {
    working: Option<WorkingMemoryOptions>,
    history: Option<(Option<LastMessages>, Option<bool>)>,
    /// The conversation is stored: `message-history` is in the output list.
    saves: bool,
    /// Somebody else's processor has the id of the part, so the framework leaves it to that one.
    pub(crate) own_filter: bool,
    own_working: bool,
    own_history: bool,
}

impl Parts {
    /// Of the input and the output list.
    pub(crate) fn of(input: &Processors, output: &Processors) -> Self {
        let mut parts = Self::default();
        for processor in input.iter() {
            match (processor.part(), processor.id()) {
                (Some(Part::WorkingMemory(options)), _) => parts.working = Some(options),
                (Some(Part::MessageHistory { last_messages, filter_incomplete_tool_calls }), _) => {
                    parts.history = Some((last_messages, filter_incomplete_tool_calls));
                }
                (Some(Part::InputFilter), _) => {}
                (None, INPUT_FILTER) => parts.own_filter = true,
                (None, WORKING_MEMORY) => parts.own_working = true,
                (None, MESSAGE_HISTORY) => parts.own_history = true,
                (None, _) => {}
            }
        }
        parts.saves = output.iter().any(|processor| matches!(processor.part(), Some(Part::MessageHistory { .. })));
        parts
    }

    /// The part that needs an agent with memory, if one is listed.
    pub(crate) fn needs_memory(&self) -> Option<&'static str> {
        match self {
            Self { history: Some(_), .. } | Self { saves: true, .. } => Some(MESSAGE_HISTORY),
            Self { working: Some(_), .. } => Some(WORKING_MEMORY),
            _ => None,
        }
    }

    /// The memory of an agent that has none but for its parts: nothing is recalled that is not asked for.
    pub(crate) fn own_memory(&self) -> Option<MemoryOptions> {
        self.needs_memory()?;
        let default = MemoryOptions::default();
        let last_messages = if self.history.is_some() { default.last_messages } else { LastMessages(None) };
        Some(MemoryOptions { last_messages, ..default })
    }

    /// These options as the parts change them.
    pub(crate) fn over(&self, mut memory: MemoryOptions) -> MemoryOptions {
        if let Some((last, filter)) = self.history {
            memory.last_messages = last.unwrap_or(memory.last_messages);
            memory.filter_incomplete_tool_calls = filter.unwrap_or(memory.filter_incomplete_tool_calls);
        }
        if self.own_history {
            memory.last_messages = LastMessages(None);
        }
        if let Some(working) = &self.working {
            memory.working_memory = Some(working.clone());
        }
        memory
    }

    /// Whether working memory is told in a system message. Its tool is there either way.
    pub(crate) fn tells_working_memory(&self) -> bool {
        !self.own_working
    }
}

/// The order in which all of these work; `memory` is what is in force, parts included.
pub(crate) fn effective(lists: &[Processors; 3], memory: Option<&MemoryOptions>) -> EffectiveProcessors {
    let [mut input, mut output, error] = lists.each_ref().map(Processors::ids);
    if let Some(memory) = memory {
        let works = memory.working_memory.as_ref().is_some_and(|working| working.enabled);
        let parts =
            [(INPUT_FILTER, true), (WORKING_MEMORY, works), (MESSAGE_HISTORY, memory.last_messages.count() > 0)];
        let parts = parts.into_iter().filter(|(id, works)| *works && !input.iter().any(|known| known == id));
        let first: Vec<String> = parts.map(|(id, _)| id.to_owned()).collect();
        input.splice(..0, first);
        if !memory.read_only && !output.iter().any(|known| known == MESSAGE_HISTORY) {
            output.push(MESSAGE_HISTORY.to_owned());
        }
    }
    EffectiveProcessors { input, output, error }
}
