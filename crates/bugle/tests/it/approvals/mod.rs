//! Runs that wait for people (LOOP §7, SIG §17).

mod decide;
mod discard;
mod interchange;
mod park;
mod races;
mod restart;
mod thread;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bugle::{
    AgentHandle, RunId, RunOptions, RunOutput, Tool,
    chunk::Chunk,
    json::{Value, json},
    message::StoredMessage,
    model::{Script, ScriptedModel},
    run::Decision,
    storage::{ParkedQuery, SharedStorage},
    tool::{Approval, ToolContext, ToolError},
};

use crate::{
    r#loop::Ran,
    support::{World, builder, world_on},
};

/// How often the dangerous tools have run.
#[derive(Debug, Clone, Default)]
pub(crate) struct Count(Arc<AtomicUsize>);

impl Count {
    pub(crate) fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

/// A tool that asks before it runs.
pub(crate) fn remove(count: &Count) -> Tool {
    let count = count.clone();
    Tool::json("remove", move |input: Value, _| {
        let count = count.clone();
        async move {
            count.0.fetch_add(1, Ordering::SeqCst);
            Ok(json!({ "removed": input["path"] }))
        }
    })
    .with_approval(Approval::Always)
}

/// A tool that asks a question, and runs on with the answer.
pub(crate) fn ask() -> Tool {
    let schema = json!({
        "type": "object", "properties": { "answer": { "type": "string" } }, "required": ["answer"],
        "additionalProperties": false,
    });
    Tool::json("ask", |input: Value, context: ToolContext| async move {
        match context.resume_data {
            Some(data) => Ok(json!({ "question": input["q"], "answer": data["answer"] })),
            None => Err(ToolError::Suspend(json!({ "question": input["q"] }))),
        }
    })
    .with_resume_schema(schema)
}

/// A tool that only runs.
pub(crate) fn plain(count: &Count) -> Tool {
    let count = count.clone();
    Tool::json("plain", move |_, _| {
        let count = count.clone();
        async move { Ok(json!({ "ran": count.0.fetch_add(1, Ordering::SeqCst) + 1 })) }
    })
}

pub(crate) fn call_remove(id: &str, path: &str) -> Script {
    Script::new().call_as(id, "remove", &json!({ "path": path }).to_string())
}

pub(crate) fn done() -> Script {
    Script::new().text("done")
}

/// An agent with the tools of this file, on a store that may have been used before.
pub(crate) async fn world_again(
    scripts: impl IntoIterator<Item = Script>,
    count: &Count,
    storage: SharedStorage,
) -> World {
    let model = ScriptedModel::with_responses(scripts);
    let agent = builder("plain", &model).tool(remove(count)).tool(ask()).tool(plain(count)).build().unwrap();
    world_on(model, [agent], storage).await
}

pub(crate) async fn world(scripts: impl IntoIterator<Item = Script>, count: &Count) -> World {
    world_again(scripts, count, Arc::new(bugle::storage::MemoryStorage::new())).await
}

/// A resumed run to its end, or to the next call that waits.
pub(crate) async fn resumed(agent: &AgentHandle, run_id: &RunId, decision: Decision) -> Ran {
    resumed_with(agent, run_id, decision, RunOptions::default()).await
}

pub(crate) async fn resumed_with(agent: &AgentHandle, run_id: &RunId, decision: Decision, options: RunOptions) -> Ran {
    let mut stream = agent.resume_stream(run_id, decision, options).await.unwrap();
    let mut chunks = Vec::new();
    while let Some(chunk) = stream.next().await {
        chunks.push(chunk.chunk().clone());
    }
    let output: RunOutput = stream.output().await.unwrap();
    Ran { chunks, output }
}

/// Without what a model streams.
pub(crate) fn brief(chunks: &[Chunk]) -> Vec<&str> {
    let noise = ["text-start", "text-delta", "text-end", "tool-call-input-streaming-start", "tool-call-delta"];
    let is_noise = |kind: &&str| !noise.contains(kind) && *kind != "tool-call-input-streaming-end";
    chunks.iter().map(Chunk::kind).filter(is_noise).collect()
}

impl World {
    pub(crate) async fn parked(&self) -> Vec<RunId> {
        let found = self.storage.list_parked(ParkedQuery::of_thread(&self.thread)).await.unwrap();
        found.items.into_iter().map(|run| run.run_id).collect()
    }

    /// The stored message that holds a call, as JSON.
    pub(crate) async fn with_call(&self, id: &str) -> Value {
        let stored = self.stored().await;
        let holds = |message: &&StoredMessage| serde_json::to_value(message).unwrap().to_string().contains(id);
        let found = stored.iter().find(|message| message.role == bugle::message::Role::Assistant && holds(message));
        serde_json::to_value(found.expect("the call is stored")).unwrap()
    }

    /// The stored call with this id.
    pub(crate) async fn call(&self, id: &str) -> Value {
        let message = self.with_call(id).await;
        let parts = message["content"]["parts"].as_array().unwrap().clone();
        let is_it = |part: &&Value| part["toolInvocation"]["toolCallId"] == id;
        parts.iter().find(is_it).expect("the call is there")["toolInvocation"].clone()
    }
}
