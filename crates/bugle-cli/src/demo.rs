//! The demo: two agents on the scripted model, for a first look without files or keys (CLI-030).

use std::{path::Path, sync::Arc};

use bugle::{
    Agent, Error, Tool,
    json::json,
    memory::MemoryOptions,
    model::ScriptedModel,
    time::Timestamp,
    tool::{Approval, ToolContext, ToolError},
};
use schemars::JsonSchema;
use serde::Deserialize;

use crate::agents::{DEFAULT_MARK, Served};

mod calculator;

const MODEL: &str = "scripted/scripted";

/// The demo agents. Notes go into `state`, the project's `.bugle/`.
pub(crate) fn agents(state: &Path) -> Result<Vec<Served>, Error> {
    let model = Arc::new(ScriptedModel::new());
    let assistant = Agent::builder("assistant")
        .name("Assistant")
        .description("A demo with tools. Answers by script: [[say Hello]] [[call clock]]")
        .instructions("Help the person. Use your tools.")
        .model(model.clone())
        .tool(clock())
        .tool(calculator())
        .tool(write_note(state))
        .tool(bugle::notification::notification_inbox_tool())
        .memory(MemoryOptions::default())
        .metadata([(DEFAULT_MARK.to_owned(), true.into())].into_iter().collect())
        .build()?;
    let researcher = Agent::builder("researcher")
        .name("Researcher")
        .description("Looks things up and keeps notes. Use it for every fact. Answers with what it found.")
        .instructions("Find out what is asked, and say where it is from. Keep a note if you are told to.")
        .model(model.clone())
        .tool(calculator())
        .tool(write_note(state))
        .memory(MemoryOptions::default())
        .build()?;
    let planner = Agent::builder("planner")
        .name("Planner")
        .description("A demo that delegates; its researcher's write-note waits for your yes. [[call agent-researcher {\"prompt\": \"Look it up. [[say Found it.]]\"}]] [[say Done.]]")
        .instructions("Make a plan. Ask agent-researcher for facts before you rely on them.")
        .model(model)
        .agent("researcher", researcher)
        .memory(MemoryOptions::default())
        .build()?;
    let served = |agent| Served { agent, model: MODEL.into(), missing: Vec::new(), signals: Vec::new() };
    Ok(vec![served(assistant), served(planner)])
}

fn clock() -> Tool {
    #[derive(Deserialize, JsonSchema)]
    struct Input {
        /// Hours east of UTC, such as 1 or -5.5.
        #[serde(default)]
        utc_offset_hours: f64,
    }
    Tool::typed(
        "clock",
        "The date and time now, in UTC or at an offset from it.",
        |input: Input, _: ToolContext| async move {
            if !(-14.0..=14.0).contains(&input.utc_offset_hours) {
                return Err(ToolError::failed("utc_offset_hours must be from -14 to 14"));
            }
            let now = Timestamp::now();
            let shift = (input.utc_offset_hours * 3_600_000.0) as i64;
            let local = Timestamp::from_millis(now.as_millis() + shift).to_string();
            Ok(json!({"utc": now, "local": local.trim_end_matches('Z'), "utcOffsetHours": input.utc_offset_hours}))
        },
    )
}

fn calculator() -> Tool {
    #[derive(Deserialize, JsonSchema)]
    struct Input {
        /// Such as (2 + 3) * 4.5 / -6.
        expression: String,
    }
    let about = "Computes an expression of numbers with + - * / and brackets.";
    Tool::typed("calculator", about, |input: Input, _: ToolContext| async move {
        let value = calculator::evaluate(&input.expression).map_err(ToolError::failed)?;
        Ok(json!({"expression": input.expression, "value": value}))
    })
}

fn write_note(state: &Path) -> Tool {
    #[derive(Deserialize, JsonSchema)]
    struct Input {
        /// One line.
        text: String,
    }
    let path = state.join("notes.txt");
    let about = "Adds a line to the notes of the project. A person has to approve each call.";
    Tool::typed("write-note", about, move |input: Input, _: ToolContext| {
        let path = path.clone();
        async move {
            let line = format!("{}\n", input.text.split_whitespace().collect::<Vec<_>>().join(" "));
            let written = tokio::task::spawn_blocking(move || {
                use std::io::Write as _;
                std::fs::OpenOptions::new().create(true).append(true).open(path)?.write_all(line.as_bytes())
            });
            match written.await {
                Ok(Ok(())) => Ok(json!({"written": true})),
                Ok(Err(error)) => Err(ToolError::failed(format!("the note cannot be written: {error}"))),
                Err(_) => Err(ToolError::failed("the note was not written")),
            }
        }
    })
    .with_approval(Approval::Always)
}
