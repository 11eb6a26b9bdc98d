//! The framework's own parts as processors: named, placed and configured like any other (PROC-004, PROC-005).
//!
//! None of them does its work in a hook. History is resolved before the first hook runs, and what is said is stored by the
//! loop, durably and one commit a step (MEM-051); these objects say how, and mark the place in the order.

use crate::{
    memory::{LastMessages, WorkingMemoryOptions},
    processor::{
        Hook, HookSet, Processor,
        part::{INPUT_FILTER, MESSAGE_HISTORY, Part, WORKING_MEMORY},
    },
};

/// Recalls the newest stored messages, and stores what is said.
///
/// In the input list it says how much is recalled. In the output list it stands for storing, which the loop does as it
/// always does. An agent without memory gets one by it: in the input list one that recalls and stores, in the output list
/// one that stores and recalls nothing. In the lists of a call it needs an agent with memory.
///
/// ```
/// use std::sync::Arc;
/// use bugle::{Agent, model::ScriptedModel, processor::builtin::MessageHistory};
/// let agent = Agent::builder("short").model(Arc::new(ScriptedModel::new()));
/// let agent = agent.input_processor(MessageHistory::new().last_messages(5)).build()?;
/// assert!(agent.memory().is_some());
/// # Ok::<(), bugle::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct MessageHistory {
    last_messages: Option<LastMessages>,
    filter_incomplete_tool_calls: Option<bool>,
}

impl MessageHistory {
    /// As the agent's memory says; 10 messages without one.
    pub fn new() -> Self {
        Self::default()
    }

    /// The newest so many messages precede the prompt; 0 = none. They are stored in any case.
    #[must_use]
    pub fn last_messages(mut self, count: u32) -> Self {
        self.last_messages = Some(LastMessages(Some(count)));
        self
    }

    /// Whether calls without a result are left out of prompts (MEM-084); else they are answered as pending.
    #[must_use]
    pub fn filter_incomplete_tool_calls(mut self, filter: bool) -> Self {
        self.filter_incomplete_tool_calls = Some(filter);
        self
    }
}

impl Processor for MessageHistory {
    fn id(&self) -> &'static str {
        MESSAGE_HISTORY
    }

    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::Input, Hook::OutputResult])
    }

    fn part(&self) -> Option<Part> {
        let Self { last_messages, filter_incomplete_tool_calls } = self.clone();
        Some(Part::MessageHistory { last_messages, filter_incomplete_tool_calls })
    }
}

/// Shows working memory in a system message, and gives the model the tool that changes it (MEM §8). In the place of the
/// working memory of the agent's memory; an agent without memory gets one by it.
///
/// ```
/// use bugle::{memory::{Scope, WorkingMemoryOptions}, processor::builtin::WorkingMemory};
/// let about_the_thread = WorkingMemory::new(WorkingMemoryOptions { scope: Scope::Thread, ..Default::default() });
/// ```
#[derive(Debug, Clone, Default)]
pub struct WorkingMemory(WorkingMemoryOptions);

impl WorkingMemory {
    /// With these options.
    pub fn new(options: WorkingMemoryOptions) -> Self {
        Self(options)
    }
}

impl Processor for WorkingMemory {
    fn id(&self) -> &'static str {
        WORKING_MEMORY
    }

    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::Input])
    }

    fn part(&self) -> Option<Part> {
        Some(Part::WorkingMemory(self.0.clone()))
    }
}

/// Leaves out what a client sends again (MEM-060), which memory does with and without it. A processor of your own with its
/// id takes the work over: it gets all that was sent but for messages whose id is stored.
#[derive(Debug, Clone, Copy, Default)]
pub struct MemoryInputFilter;

impl Processor for MemoryInputFilter {
    fn id(&self) -> &'static str {
        INPUT_FILTER
    }

    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::Input])
    }

    fn part(&self) -> Option<Part> {
        Some(Part::InputFilter)
    }
}
