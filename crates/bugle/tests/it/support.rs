//! A runtime on a scripted model, and a watcher that keeps what a subscriber sees.

use std::sync::Arc;

use bugle::{
    Agent, AgentHandle, Bugle, MessageId, RunId, ThreadKey,
    agent::AgentBuilder,
    chunk::{Chunk, ChunkBody, Payload},
    json::Value,
    memory::MemoryOptions,
    message::StoredMessage,
    model::{PromptMessage, ScriptedModel, UserPart},
    runtime::{ActiveBehavior, Delivery, IdleBehavior, Message, Outcome, Sent, SubscribeOptions, Target},
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
    let agent = agent("plain", &model);
    world_of(model, [agent]).await
}

/// The same with a second agent, `other`, on the same model.
pub(crate) async fn world_of_two(model: ScriptedModel) -> World {
    let agents = [agent("plain", &model), agent("other", &model)];
    world_of(model, agents).await
}

pub(crate) fn agent(id: &str, model: &ScriptedModel) -> Agent {
    builder(id, model).build().unwrap()
}

pub(crate) fn builder(id: &str, model: &ScriptedModel) -> AgentBuilder {
    Agent::builder(id)
        .instructions("You are plain.")
        .model(Arc::new(model.clone()))
        .max_retries(0)
        .memory(MemoryOptions::last(500))
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
        self.watch_with(SubscribeOptions::default()).await
    }

    pub(crate) async fn watch_with(&self, options: SubscribeOptions) -> Watcher {
        let subscription = self.agent.subscribe(&self.thread, options).await.unwrap();
        Watcher { subscription, chunks: Vec::new() }
    }

    pub(crate) async fn send(&self, text: &str) -> Outcome {
        accepted(self.agent.send_message(&self.thread, text).await.unwrap()).await
    }

    pub(crate) async fn queue(&self, text: &str) -> Outcome {
        accepted(self.agent.queue_message(&self.thread, text).await.unwrap()).await
    }

    pub(crate) fn other(&self) -> AgentHandle {
        self.bugle.agent("other").unwrap()
    }

    pub(crate) fn target(&self) -> Target {
        Target::from(&self.thread)
    }

    /// The thread, with these behaviors.
    pub(crate) fn target_for(&self, active: ActiveBehavior, idle: IdleBehavior) -> Target {
        let mut target = self.target();
        target.if_active.behavior = active;
        target.if_idle.behavior = idle;
        target
    }

    pub(crate) async fn send_to(&self, target: Target, text: &str) -> Outcome {
        accepted(self.agent.send_message(target, text).await.unwrap()).await
    }

    /// The ids of what waits, in order.
    pub(crate) async fn waiting(&self) -> Vec<MessageId> {
        let pending = self.agent.pending_input(&self.thread).await.unwrap();
        pending.into_iter().map(|input| input.signal_id).collect()
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

/// A message whose id is its text.
pub(crate) fn message(id: &str) -> Message {
    Message { id: Some(id.into()), ..Message::from(id) }
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

    /// The types of a run's chunks.
    pub(crate) fn kinds_of(&self, run_id: &RunId) -> Vec<&str> {
        let of_run = self.chunks.iter().filter(|chunk| chunk.run_id.as_ref() == Some(run_id));
        of_run.map(Chunk::kind).collect()
    }

    /// The texts of the echoed signals, in order.
    pub(crate) fn echoes(&self) -> Vec<String> {
        let echoes = self.chunks.iter().filter_map(|chunk| match &chunk.body {
            ChunkBody::Data(data) if data.kind == "data-signal" || data.kind == "data-user-message" => {
                data.data.get("contents").and_then(Value::as_str)
            }
            _ => None,
        });
        echoes.map(str::to_owned).collect()
    }

    /// The order in which runs were seen, each once per stretch.
    pub(crate) fn run_order(&self) -> Vec<RunId> {
        let mut runs: Vec<RunId> = self.chunks.iter().filter_map(|chunk| chunk.run_id.clone()).collect();
        runs.dedup();
        runs
    }

    pub(crate) async fn delivery(&mut self) -> Option<Delivery> {
        self.subscription.next().await
    }

    pub(crate) fn try_next(&mut self) -> Option<Delivery> {
        self.subscription.try_next()
    }

    pub(crate) fn subscription(&self) -> &Subscription {
        &self.subscription
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

/// Keeps the warnings and errors that this thread logs while the guard lives.
pub(crate) fn warnings() -> (Warnings, tracing::subscriber::DefaultGuard) {
    let warnings = Warnings::default();
    let guard = tracing::subscriber::set_default(warnings.clone());
    (warnings, guard)
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Warnings(Arc<parking_lot::Mutex<Vec<String>>>);

impl Warnings {
    pub(crate) fn containing(&self, text: &str) -> Vec<String> {
        self.0.lock().iter().filter(|line| line.contains(text)).cloned().collect()
    }
}

impl tracing::field::Visit for Warnings {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        if let Some(line) = self.0.lock().last_mut() {
            let _ = std::fmt::Write::write_fmt(line, format_args!(" {field}={value:?}"));
        }
    }
}

impl tracing::Subscriber for Warnings {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        *metadata.level() <= tracing::Level::WARN
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        self.0.lock().push(String::new());
        event.record(&mut self.clone());
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}
