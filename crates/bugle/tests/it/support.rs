//! A runtime on a scripted model, and a watcher that keeps what a subscriber sees.

use std::sync::Arc;

use bugle::{
    Agent, AgentHandle, Bugle, MessageId, RunId, ThreadKey,
    chunk::{Chunk, ChunkBody, Payload},
    json::Value,
    memory::MemoryOptions,
    message::StoredMessage,
    model::{PromptMessage, ScriptedModel, UserPart},
    runtime::{Delivery, Outcome, Sent, SubscribeOptions},
    storage::{MemoryStorage, SharedStorage},
    thread::Subscription,
};

pub(crate) struct World {
    pub(crate) bugle: Bugle,
    pub(crate) agent: AgentHandle,
    pub(crate) model: ScriptedModel,
    pub(crate) storage: SharedStorage,
    pub(crate) thread: ThreadKey,
}

/// An agent `plain` with memory on `model`, and a thread nobody has used.
pub(crate) async fn world(model: ScriptedModel) -> World {
    let agent = Agent::builder("plain")
        .instructions("You are plain.")
        .model(Arc::new(model.clone()))
        .max_retries(0)
        .memory(MemoryOptions::last(20))
        .build()
        .unwrap();
    world_of(model, [agent]).await
}

pub(crate) async fn world_of(model: ScriptedModel, agents: impl IntoIterator<Item = Agent>) -> World {
    world_on(model, agents, Arc::new(MemoryStorage::new())).await
}

pub(crate) async fn world_on(
    model: ScriptedModel,
    agents: impl IntoIterator<Item = Agent>,
    storage: SharedStorage,
) -> World {
    let mut builder = Bugle::builder().shared_storage(storage.clone());
    let mut first = None;
    for agent in agents {
        first.get_or_insert_with(|| agent.id().to_owned());
        builder = builder.agent(agent);
    }
    let bugle = builder.build().await.unwrap();
    let agent = bugle.agent(&first.unwrap()).unwrap();
    World { bugle, agent, model, storage, thread: ThreadKey::new("user", "thread") }
}

impl World {
    pub(crate) async fn watch(&self) -> Watcher {
        let subscription = self.agent.subscribe(&self.thread, SubscribeOptions::default()).await.unwrap();
        Watcher { subscription, chunks: Vec::new() }
    }

    pub(crate) async fn send(&self, text: &str) -> Outcome {
        accepted(self.agent.send_message(&self.thread, text).await.unwrap()).await
    }

    pub(crate) async fn queue(&self, text: &str) -> Outcome {
        accepted(self.agent.queue_message(&self.thread, text).await.unwrap()).await
    }

    pub(crate) async fn stored(&self) -> Vec<StoredMessage> {
        self.storage.recent_messages(&self.thread, u32::MAX).await.unwrap()
    }

    /// The texts of the stored messages.
    pub(crate) async fn texts(&self) -> Vec<String> {
        self.stored().await.iter().map(StoredMessage::joined_text).collect()
    }

    /// What the model was asked in its `n`th request: the texts of the user turns.
    pub(crate) fn asked(&self, n: usize) -> Vec<String> {
        user_texts(&self.model.requests()[n].prompt)
    }
}

pub(crate) async fn accepted(mut sent: Sent) -> Outcome {
    sent.accepted().await.unwrap()
}

pub(crate) fn user_texts(prompt: &[PromptMessage]) -> Vec<String> {
    let texts = prompt.iter().filter_map(|message| match message {
        PromptMessage::User { content, .. } => Some(content),
        _ => None,
    });
    texts
        .map(|content| {
            let texts = content.iter().filter_map(|part| match part {
                UserPart::Text { text, .. } => Some(text.as_str()),
                UserPart::File { .. } => None,
            });
            texts.collect::<Vec<_>>().join("\n")
        })
        .collect()
}

/// A subscriber that keeps what it sees.
pub(crate) struct Watcher {
    subscription: Subscription,
    pub(crate) chunks: Vec<Chunk>,
}

impl Watcher {
    pub(crate) async fn next(&mut self) -> Chunk {
        match self.subscription.next().await {
            Some(Delivery::Chunk(chunk)) => {
                self.chunks.push(chunk.chunk.clone());
                chunk.chunk.clone()
            }
            other => panic!("expected a chunk, got {other:?}"),
        }
    }

    /// Reads up to the first chunk of this type that is new.
    pub(crate) async fn until(&mut self, kind: &str) -> Chunk {
        loop {
            let chunk = self.next().await;
            if chunk.kind() == kind {
                return chunk;
            }
        }
    }

    pub(crate) async fn until_end_of(&mut self, run_id: &RunId) -> Chunk {
        loop {
            let chunk = self.next().await;
            if chunk.run_id.as_ref() == Some(run_id) && chunk.ends_run() {
                return chunk;
            }
        }
    }

    pub(crate) fn kinds(&self) -> Vec<&str> {
        self.chunks.iter().map(Chunk::kind).collect()
    }

    /// The ids of the echoed signals, in order.
    pub(crate) fn echoed(&self) -> Vec<MessageId> {
        let echoes = self.chunks.iter().filter_map(|chunk| match &chunk.body {
            ChunkBody::Data(data) if data.kind.starts_with("data-signal") || data.kind == "data-user-message" => {
                data.data.get("id").and_then(Value::as_str)
            }
            _ => None,
        });
        echoes.map(MessageId::from).collect()
    }

    pub(crate) fn text_of(&self, run_id: &RunId) -> String {
        text(self.chunks.iter().filter(|chunk| chunk.run_id.as_ref() == Some(run_id)))
    }
}

pub(crate) fn text<'a>(chunks: impl IntoIterator<Item = &'a Chunk>) -> String {
    let texts = chunks.into_iter().filter_map(|chunk| match chunk.payload() {
        Some(Payload::TextDelta { text, .. }) => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}
