//! The agent loop on the scripted model (LOOP, MEM, SCO).

mod abort;
mod chunks;
mod errors;
mod guards;
mod memory;
mod options;
mod steps;
mod structured;
mod tools;

use bugle::{
    Agent, AgentHandle, RunOptions, RunOutput, ThreadKey, Tool,
    agent::AgentBuilder,
    chunk::Chunk,
    json::{Value, json},
    message::{Role, StoredMessage},
    model::{ModelRequest, Script, ScriptedModel},
    runtime::RunInput,
};

use crate::support::{World, builder, world_of};

/// One message of a person.
pub(crate) fn input(text: &str) -> RunInput {
    let message = StoredMessage::text("".into(), Role::User, text, Default::default());
    RunInput { messages: vec![message], tool_results: Vec::new() }
}

/// A run to its end: what its caller saw, and the result.
pub(crate) struct Ran {
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) output: RunOutput,
}

impl Ran {
    pub(crate) fn kinds(&self) -> Vec<&str> {
        self.chunks.iter().map(Chunk::kind).collect()
    }

    /// All chunks of this type, as JSON.
    pub(crate) fn all(&self, kind: &str) -> Vec<Value> {
        let found = self.chunks.iter().filter(|chunk| chunk.kind() == kind);
        found.map(|chunk| serde_json::to_value(chunk).unwrap()).collect()
    }

    /// The payload of the only chunk of this type.
    pub(crate) fn payload(&self, kind: &str) -> Value {
        let mut found = self.all(kind);
        assert_eq!(found.len(), 1, "{kind}: {:?}", self.kinds());
        found[0]["payload"].take()
    }

    pub(crate) fn finish(&self) -> Value {
        assert_eq!(self.kinds().last(), Some(&"finish"), "{:?}", self.kinds());
        self.payload("finish")
    }
}

pub(crate) async fn run_on(agent: &AgentHandle, text: &str, thread: Option<&ThreadKey>, options: RunOptions) -> Ran {
    let mut stream = agent.stream(input(text), thread, options).await.unwrap();
    let mut chunks = Vec::new();
    while let Some(chunk) = stream.next().await {
        chunks.push(chunk.chunk().clone());
    }
    Ran { chunks, output: stream.output().await.unwrap() }
}

impl World {
    /// Streams a run on the world's thread.
    pub(crate) async fn run(&self, text: &str) -> Ran {
        self.run_with(text, RunOptions::default()).await
    }

    pub(crate) async fn run_with(&self, text: &str, options: RunOptions) -> Ran {
        run_on(&self.agent, text, Some(&self.thread), options).await
    }

    /// The parts of the last stored answer.
    pub(crate) async fn answer_parts(&self) -> Vec<Value> {
        let stored = self.stored().await;
        let answer = stored.iter().rfind(|message| message.role == Role::Assistant).expect("an answer is stored");
        serde_json::to_value(&answer.content).unwrap()["parts"].as_array().unwrap().clone()
    }
}

/// An agent with memory on these answers, changed by `build`.
pub(crate) async fn world_with<S: Into<Script>>(
    scripts: impl IntoIterator<Item = S>,
    build: impl FnOnce(AgentBuilder) -> AgentBuilder,
) -> World {
    let model = ScriptedModel::with_responses(scripts);
    let agent: Agent = build(builder("plain", &model)).build().unwrap();
    world_of(model, [agent]).await
}

/// A tool that gives its arguments back.
pub(crate) fn echo() -> Tool {
    Tool::json("echo", |input: Value, _| async move { Ok(json!({ "echo": input })) })
}

pub(crate) fn call(value: u32) -> Script {
    Script::new().call("echo", json!({ "n": value }))
}

/// The prompt as JSON.
pub(crate) fn prompt(request: &ModelRequest) -> Value {
    serde_json::to_value(&request.prompt).unwrap()
}

/// The prompt's turns by role.
pub(crate) fn roles(request: &ModelRequest) -> Vec<String> {
    let prompt = prompt(request);
    prompt.as_array().unwrap().iter().map(|turn| turn["role"].as_str().unwrap().to_owned()).collect()
}
