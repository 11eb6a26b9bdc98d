//! The agents that the conformance suite and the load driver talk to.

use std::sync::Arc;

use async_trait::async_trait;
use bugle::{
    Agent, Error, RunOptions,
    agent::AgentBuilder,
    memory::MemoryOptions,
    model::SharedModel,
    processor::{Context, Hook, HookSet, Input, Outcome, Processor, ProcessorError},
    scorer::{Score, Scorer, ScorerError, ScorerInput, TaskCompletion},
};

use super::tools;

/// All agents, on `model`.
pub(crate) fn all(model: SharedModel) -> Result<Vec<Agent>, Error> {
    let agent = |id: &str, name: &str, instructions: &str| -> AgentBuilder {
        Agent::builder(id).name(name).instructions(instructions).model(model.clone()).max_retries(0)
    };
    let remembers = || MemoryOptions::last(20);

    let researcher = agent("researcher", "Researcher", "You research.")
        .description("Gathers facts.")
        .tool(tools::delete_file())
        .tool(tools::get_weather())
        .build()?;
    let writer = agent("writer", "Writer", "You write.").description("Writes articles.").build()?;
    let delegates = |builder: AgentBuilder| {
        builder.memory(remembers()).agent("researcher", researcher.clone()).agent("writer", writer.clone()).build()
    };
    let mut tooled = agent("tooled", "Tooled", "You have tools.").memory(remembers());
    for tool in [tools::get_weather(), tools::slow_tool(), tools::fail_tool(), tools::delete_file(), tools::ask_user()]
    {
        tooled = tooled.tool(tool);
    }
    Ok(vec![
        agent("plain", "Plain", "You are plain.").description("Talks.").memory(remembers()).build()?,
        tooled.build()?,
        researcher.clone(),
        writer.clone(),
        delegates(agent("parent", "Parent", "You delegate."))?,
        delegates(agent("bgparent", "Background parent", "You delegate in the background."))?,
        agent("checked", "Checked", "You finish tasks.")
            .memory(remembers())
            .default_options(RunOptions { max_steps: Some(5), ..RunOptions::default() })
            .is_task_complete(TaskCompletion::all(vec![Arc::new(HasDone)]))
            .build()?,
        agent("guarded", "Guarded", "You are guarded.").memory(remembers()).input_processor(NoForbidden).build()?,
        agent("inbox", "Inbox", "You read your inbox.")
            .memory(remembers())
            .tool(bugle::notification::notification_inbox_tool())
            .tool(tools::notify())
            .build()?,
        // The load driver's.
        agent("echo", "Echo", "You answer.").memory(remembers()).build()?,
        agent("supervisor", "Supervisor", "You delegate.")
            .memory(remembers())
            .agent(
                "researcher",
                agent("load-researcher", "Researcher", "You research.").description("Gathers facts.").build()?,
            )
            .build()?,
    ])
}

/// 1 if the answer contains `DONE`.
struct HasDone;

#[async_trait]
impl Scorer for HasDone {
    fn id(&self) -> &'static str {
        "has-done"
    }

    fn name(&self) -> &'static str {
        "Has DONE"
    }

    async fn score(&self, answer: &ScorerInput) -> Result<Score, ScorerError> {
        Ok(Score::new(if answer.text().contains("DONE") { 1.0 } else { 0.0 }))
    }
}

/// Stops input that contains `forbidden`.
struct NoForbidden;

#[async_trait]
impl Processor for NoForbidden {
    fn id(&self) -> &'static str {
        "no-forbidden"
    }

    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::Input])
    }

    async fn process_input(&self, _: &mut Context<'_>, input: &mut Input) -> Outcome {
        if input.messages.iter().any(|message| message.joined_text().contains("forbidden")) {
            return Err(ProcessorError::tripwire("forbidden word"));
        }
        Ok(())
    }
}
