//! A lead that hands work to a researcher and a writer, and is not done before its answer names a source.
//!
//! On the scripted model, so it needs no key and says the same each time: `cargo run -p bugle --example subagents`.

#![allow(clippy::print_stdout, reason = "an example that shows its answer")]

use std::sync::Arc;

use bugle::{
    Agent, Bugle, Error, RunOptions, ThreadKey,
    chunk::Payload,
    json::json,
    memory::MemoryOptions,
    message::{Role, StoredMessage},
    model::{Script, ScriptedModel},
    runtime::RunInput,
    scorer::{Score, Scorer, ScorerError, ScorerInput, TaskCompletion},
    subagent::{Delegation, StartDecision},
};

/// Passes answers that say where they are from.
struct NamesSources;

#[async_trait::async_trait]
impl Scorer for NamesSources {
    fn id(&self) -> &'static str {
        "names-sources"
    }

    async fn score(&self, run: &ScorerInput) -> Result<Score, ScorerError> {
        Ok(if run.text().contains("Sources:") { Score::pass() } else { Score::fail("no line begins with Sources:") })
    }
}

/// The three agents. What their models will say is written down here, in order.
fn lead() -> Result<Agent, Error> {
    let research = Agent::builder("research")
        .description("Finds facts and says where they are from. Answers with a list.")
        .instructions("Find what is asked. Give each fact with its source.")
        .model(Arc::new(ScriptedModel::with_responses(["Otters hold hands while they sleep (Otter Yearbook 2026)."])))
        .build()?;
    let writing = Agent::builder("writing")
        .description("Turns a list of facts into a short text. Needs the facts in its prompt.")
        .instructions("Write plain sentences from the facts you are given.")
        .model(Arc::new(ScriptedModel::with_responses(["Sleeping otters hold hands, lest they drift apart."])))
        .build()?;
    let says = ScriptedModel::with_responses([
        Script::new().call("agent-research", json!({"prompt": "How do otters sleep?"})),
        Script::new().call("agent-writing", json!({"prompt": "Write: otters hold hands while they sleep."})),
        Script::new().text("Sleeping otters hold hands."),
        // The check has said what is missing.
        Script::new().text("Sleeping otters hold hands.\nSources: Otter Yearbook 2026"),
    ]);
    let delegation = Delegation::default().on_delegation_start(|start| async move {
        println!("-> {} is asked: {}", start.primitive_id, start.prompt);
        Ok(StartDecision::proceed())
    });
    Agent::builder("lead")
        .instructions("You make reports. Ask agent-research for facts first, then give them to agent-writing.")
        .model(Arc::new(says))
        .memory(MemoryOptions::default())
        .agent("research", research)
        .agent("writing", writing)
        .is_task_complete(TaskCompletion::all(vec![Arc::new(NamesSources)]))
        .default_options(RunOptions { delegation, ..RunOptions::default() })
        .build()
}

/// Runs it and gives what was seen, a line each.
async fn report() -> Result<Vec<String>, Error> {
    let bugle = Bugle::builder().agent(lead()?).build().await?;
    let question = StoredMessage::text("".into(), Role::User, "How do otters sleep?", Default::default());
    let input = RunInput { messages: vec![question], ..RunInput::default() };
    let thread = ThreadKey::new("user_123", "otters");
    let mut run = bugle.agent("lead")?.stream(input, Some(&thread), RunOptions::default()).await?;
    let mut seen = Vec::new();
    while let Some(chunk) = run.next().await {
        match chunk.chunk().payload() {
            Some(Payload::ToolResult(result)) => {
                seen.push(format!("{}: {}", result.tool_name, result.result["text"].as_str().unwrap_or_default()));
            }
            Some(Payload::IsTaskComplete(check)) => {
                seen.push(format!("check: {}", if check["passed"] == true { "passed" } else { "not passed" }));
            }
            _ => {}
        }
    }
    seen.push(format!("answer: {}", run.output().await?.text));
    Ok(seen)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    for line in report().await? {
        println!("{line}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn the_example_delegates_twice_and_answers_once_its_check_is_content() {
        assert_eq!(
            super::report().await.unwrap(),
            [
                "agent-research: Otters hold hands while they sleep (Otter Yearbook 2026).",
                "agent-writing: Sleeping otters hold hands, lest they drift apart.",
                "check: not passed",
                "check: passed",
                "answer: Sleeping otters hold hands.\nSources: Otter Yearbook 2026",
            ]
        );
    }
}
