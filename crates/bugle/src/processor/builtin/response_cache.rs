//! Replays the answer of an identical request (PROC §10). What one resource was told is never told another.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};

use crate::{
    chunk::FinishReason,
    json::json,
    model::{AssistantPart, ModelEvent, PromptMessage},
    processor::{Context, Hook, HookSet, LlmRequest, LlmResponse, OnError, Outcome, Processor},
    time::Timestamp,
};

type Key = [u8; 32];

/// Keeps complete answers in memory, by scope and request. Requests of runs without a resource are not cached.
///
/// ```
/// use std::time::Duration;
/// use bugle::processor::builtin::ResponseCache;
/// let cache = ResponseCache::new(1000, Duration::from_secs(600));
/// ```
#[derive(Debug)]
pub struct ResponseCache {
    entries_max: usize,
    keep: Duration,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    entries: HashMap<Key, (Vec<ModelEvent>, Timestamp)>,
    order: VecDeque<Key>,
}

/// The key of the request under way.
#[derive(Debug, Default)]
struct Pending(Option<Key>);

impl Default for ResponseCache {
    fn default() -> Self {
        Self::new(256, Duration::from_secs(300))
    }
}

impl ResponseCache {
    /// Keeps up to `entries_max` answers for `keep` each; the oldest goes first.
    pub fn new(entries_max: usize, keep: Duration) -> Self {
        Self { entries_max: entries_max.max(1), keep, held: Mutex::default() }
    }

    fn key(agent_id: &str, scope: &str, request: &LlmRequest) -> Key {
        let mut prompt = request.prompt.clone();
        strip_ids(&mut prompt);
        let said = json!([
            agent_id,
            scope,
            request.model.provider(),
            request.model.model_id(),
            prompt,
            request.model_settings,
            request.tools,
            format!("{:?}", request.tool_choice),
            request.response_format.as_ref().map(|format| (&format.name, &format.schema)),
            request.provider_options,
            // Answers are kept as these left them, and replayed past them.
            request.filters,
        ]);
        Sha256::digest(said.to_string().as_bytes()).into()
    }
}

/// Ids of calls differ from run to run and say nothing. Fields of that name in arguments and results do.
fn strip_ids(prompt: &mut [PromptMessage]) {
    for message in prompt {
        match message {
            PromptMessage::Assistant { content, .. } => {
                for part in content {
                    if let AssistantPart::ToolCall { tool_call_id, .. } = part {
                        tool_call_id.clear();
                    }
                }
            }
            PromptMessage::Tool { content } => content.iter_mut().for_each(|turn| turn.tool_call_id.clear()),
            PromptMessage::System { .. } | PromptMessage::User { .. } => {}
        }
    }
}

#[async_trait]
impl Processor for ResponseCache {
    fn id(&self) -> &'static str {
        "response-cache"
    }

    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::LlmRequest, Hook::LlmResponse])
    }

    fn on_error(&self) -> OnError {
        OnError::Pass
    }

    async fn process_llm_request(&self, cx: &mut Context<'_>, request: &mut LlmRequest) -> Outcome {
        let scope = cx.thread().and_then(|thread| thread.resource_id.as_deref()).map(str::to_owned);
        let key = scope.filter(|scope| !scope.is_empty()).map(|scope| Self::key(cx.agent_id(), &scope, request));
        *cx.state::<Pending>() = Pending(key);
        let Some(key) = key else { return Ok(()) };
        let now = cx.now();
        let held = self.held.lock();
        if let Some((events, at)) = held.entries.get(&key)
            && now < at.plus(self.keep)
            && request.response.is_none()
        {
            request.response = Some(events.clone());
        }
        Ok(())
    }

    async fn process_llm_response(&self, cx: &mut Context<'_>, response: &LlmResponse) -> Outcome {
        let now = cx.now();
        let Some(key) = cx.state::<Pending>().0.take() else { return Ok(()) };
        let complete = response.events.iter().any(|event| {
            matches!(event, ModelEvent::Finish { reason: FinishReason::Stop | FinishReason::ToolCalls, .. })
        });
        if !complete {
            return Ok(());
        }
        let mut held = self.held.lock();
        if held.entries.insert(key, (response.events.clone(), now)).is_none() {
            held.order.push_back(key);
        }
        while held.order.len() > self.entries_max {
            if let Some(oldest) = held.order.pop_front() {
                held.entries.remove(&oldest);
            }
        }
        Ok(())
    }
}
