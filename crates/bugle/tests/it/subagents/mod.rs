//! Delegation on the scripted model (SUB).

mod approvals;
mod delegate;
mod errors;
mod hooks;
mod iteration;
mod options;
mod stream;
mod trees;

use std::sync::Arc;

use bugle::{
    Agent, RunOptions, RunOutput, ThreadKey,
    agent::AgentBuilder,
    chunk::{Chunk, Payload},
    json::{Value, json},
    memory::MemoryOptions,
    message::{Part, Role, StoredMessage, ToolInvocation},
    model::{AssistantPart, ModelRequest, PromptMessage, Script, ScriptedModel, ToolOutput},
    runtime::RunInput,
    storage::{MemoryStorage, SharedStorage, ThreadQuery},
    subagent::Delegation,
};

use crate::support::{World, builder, user_texts, world_on};

pub(crate) fn input(text: &str) -> RunInput {
    RunInput {
        messages: vec![StoredMessage::text("".into(), Role::User, text, Default::default())],
        tool_results: Vec::new(),
    }
}

/// A parent `p` that delegates to `explorer-agent` under the key `explorer`, each on a model of its own.
pub(crate) struct Pair {
    pub(crate) world: World,
    pub(crate) parent: ScriptedModel,
    pub(crate) child: ScriptedModel,
}

pub(crate) fn scripted(scripts: Vec<Script>) -> ScriptedModel {
    ScriptedModel::with_responses(scripts)
}

pub(crate) fn to_explorer(prompt: &str) -> Script {
    Script::new().call_as("c1", "agent-explorer", &json!({ "prompt": prompt }).to_string())
}

pub(crate) fn explorer(child: &ScriptedModel) -> AgentBuilder {
    Agent::builder("explorer-agent")
        .name("Explorer")
        .description("Finds things.")
        .instructions("You explore.")
        .model(Arc::new(child.clone()))
        .max_retries(0)
}

pub(crate) fn lead(parent: &ScriptedModel) -> AgentBuilder {
    builder("p", parent).name("Parent")
}

pub(crate) fn delegating(delegation: Delegation) -> RunOptions {
    RunOptions { delegation, ..RunOptions::default() }
}

pub(crate) async fn pair(parent: Vec<Script>, child: Vec<Script>, delegation: Delegation) -> Pair {
    let (parent, child) = (scripted(parent), scripted(child));
    let explorer = explorer(&child).build().unwrap();
    pair_of(lead(&parent).default_options(delegating(delegation)).agent("explorer", explorer), parent, child).await
}

pub(crate) async fn pair_of(lead: AgentBuilder, parent: ScriptedModel, child: ScriptedModel) -> Pair {
    pair_on(lead, parent, child, Arc::new(MemoryStorage::new())).await
}

pub(crate) async fn pair_on(
    lead: AgentBuilder,
    parent: ScriptedModel,
    child: ScriptedModel,
    storage: SharedStorage,
) -> Pair {
    let world = world_on(parent.clone(), [lead.build().unwrap()], storage).await;
    Pair { world, parent, child }
}

impl Pair {
    pub(crate) async fn generate(&self, text: &str) -> RunOutput {
        self.generate_with(text, RunOptions::default()).await
    }

    pub(crate) async fn generate_with(&self, text: &str, options: RunOptions) -> RunOutput {
        self.world.agent.generate(input(text), Some(&self.world.thread), options).await.unwrap()
    }

    pub(crate) async fn stream(&self, text: &str) -> (Vec<Chunk>, RunOutput) {
        self.stream_with(text, RunOptions::default()).await
    }

    pub(crate) async fn stream_with(&self, text: &str, options: RunOptions) -> (Vec<Chunk>, RunOutput) {
        let mut stream = self.world.agent.stream(input(text), Some(&self.world.thread), options).await.unwrap();
        let mut chunks = Vec::new();
        while let Some(chunk) = stream.next().await {
            chunks.push(chunk.chunk().clone());
        }
        (chunks, stream.output().await.unwrap())
    }

    /// The stored calls of the parent's thread.
    pub(crate) async fn calls(&self) -> Vec<ToolInvocation> {
        calls(&self.world.stored().await)
    }

    /// What the parent's model read of each result in its `n`th request.
    pub(crate) fn told(&self, n: usize) -> Vec<String> {
        told(&self.parent.requests()[n])
    }

    pub(crate) fn child_asked(&self, n: usize) -> Vec<String> {
        user_texts(&self.child.requests()[n].prompt)
    }

    /// The messages of a delegation's thread.
    pub(crate) async fn sub_messages(&self, result: &Value) -> Vec<StoredMessage> {
        let key = ThreadKey::new(
            result["subAgentResourceId"].as_str().unwrap(),
            result["subAgentThreadId"].as_str().unwrap(),
        );
        self.world.storage.recent_messages(&key, u32::MAX).await.unwrap()
    }

    pub(crate) async fn threads_of(&self, resource: &str) -> Vec<bugle::message::Thread> {
        let query = ThreadQuery { resource_id: Some(resource.into()), ..ThreadQuery::default() };
        self.world.storage.list_threads(query).await.unwrap().items
    }
}

pub(crate) fn calls(messages: &[StoredMessage]) -> Vec<ToolInvocation> {
    let parts = messages.iter().flat_map(|message| &message.content.parts);
    parts
        .filter_map(|part| match part {
            Part::ToolInvocation(call) => Some(call.tool_invocation.clone()),
            _ => None,
        })
        .collect()
}

pub(crate) fn outputs(request: &ModelRequest) -> Vec<ToolOutput> {
    let turns = request.prompt.iter().filter_map(|message| match message {
        PromptMessage::Tool { content } => Some(content),
        _ => None,
    });
    turns.flatten().map(|result| result.output.clone()).collect()
}

pub(crate) fn told(request: &ModelRequest) -> Vec<String> {
    outputs(request).iter().map(ToolOutput::to_text).collect()
}

/// The prompt as `role: text`, results and calls left out.
pub(crate) fn spoken(request: &ModelRequest) -> Vec<String> {
    let line = |message: &PromptMessage| match message {
        PromptMessage::System { content, .. } => Some(format!("system: {content}")),
        PromptMessage::User { .. } => Some(format!("user: {}", user_texts(std::slice::from_ref(message)).concat())),
        PromptMessage::Assistant { content, .. } => {
            let texts = content.iter().map(|part| match part {
                AssistantPart::Text { text, .. } => text.clone(),
                AssistantPart::ToolCall { tool_name, .. } => format!("<{tool_name}>"),
                _ => "<other>".to_owned(),
            });
            Some(format!("assistant: {}", texts.collect::<String>()))
        }
        PromptMessage::Tool { .. } => Some("tool".to_owned()),
    };
    request.prompt.iter().filter_map(line).collect()
}

/// The chunks of the delegation's call, unwrapped.
pub(crate) fn nested(chunks: &[Chunk], call: &str) -> Vec<Value> {
    let outputs = chunks.iter().filter_map(|chunk| match chunk.payload() {
        Some(Payload::ToolOutput { output, tool_call_id, .. }) if tool_call_id == call => Some(output.clone()),
        _ => None,
    });
    outputs.collect()
}

pub(crate) fn kinds(chunks: &[Value]) -> Vec<&str> {
    chunks.iter().filter_map(|chunk| chunk["type"].as_str()).collect()
}

pub(crate) fn memory() -> MemoryOptions {
    MemoryOptions::last(500)
}
