//! The built-in model: deterministic, no key, no network. The prompt is the program; or a test is.

mod language;
mod player;
mod script;

pub use language::script_blocks;
pub use script::{Gate, Script, ScriptStep};

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use async_trait::async_trait;
use futures::StreamExt;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::{LanguageModel, ModelError, ModelErrorKind, ModelRequest, ModelResponse};
use player::Player;

/// The most requests a recording model keeps; later ones are counted only.
const RECORDED_MAX: usize = 10_000;

/// A model that does what it is told, the same each time. Clones share their counters and their record.
///
/// [`ScriptedModel::new`] does what the last user message says: `[[say Hello]]`, `[[call get-weather {"city":"Oslo"}]]
/// [[say Done]]`, and so on; a message without a script is answered `ack: <message>`. [`ScriptedModel::with_responses`]
/// plays one script per request and ignores the prompt, which is what tests of the loop are made of:
///
/// ```
/// use bugle::model::{Gate, Script, ScriptedModel};
/// use serde_json::json;
///
/// let gate = Gate::new();
/// let model = ScriptedModel::with_responses([
///     Script::new().think("Where?").call("get-weather", json!({"city": "Oslo"})),
///     Script::new().text("It is ").gate(&gate).text("cold."),
/// ]);
/// // … run an agent on `model`; `gate.reached().await` tells when the second answer has come to the gate,
/// // `gate.open()` lets it go on.
/// assert!(model.requests().is_empty());
/// ```
///
/// Waits use tokio's timers, so paused time works. A request whose future or stream is dropped before its end counts
/// as [cancelled](Self::cancelled).
#[derive(Debug, Clone)]
pub struct ScriptedModel {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    provider: String,
    model_id: String,
    /// `None`: the prompt is the program.
    scripts: Option<Vec<Script>>,
    record: bool,
    ids: Ids,
    requests: Mutex<Vec<ModelRequest>>,
    counts: watch::Sender<Counts>,
}

/// Numbers for the ids a model makes up, one row per kind.
#[derive(Debug, Default)]
struct Ids {
    responses: AtomicU64,
    calls: AtomicU64,
    scripts: AtomicUsize,
}

impl Ids {
    fn response(&self) -> String {
        format!("chatcmpl_{}", self.responses.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn call(&self) -> String {
        format!("call_{}", self.calls.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Counts {
    requested: usize,
    cancelled: usize,
    finished: usize,
}

impl Default for ScriptedModel {
    fn default() -> Self {
        Self::new()
    }
}

impl ScriptedModel {
    /// The model whose program is the prompt. It records nothing.
    pub fn new() -> Self {
        Self::build(None, false)
    }

    /// Plays one script per request, in the order in which requests come, and records the requests. A request past
    /// the last script fails with a configuration error.
    pub fn with_responses<S: Into<Script>>(scripts: impl IntoIterator<Item = S>) -> Self {
        Self::build(Some(scripts.into_iter().map(Into::into).collect()), true)
    }

    /// The model whose program is the prompt, recording the requests (the first 10,000).
    pub fn recording() -> Self {
        Self::build(None, true)
    }

    fn build(scripts: Option<Vec<Script>>, record: bool) -> Self {
        let inner = Inner {
            provider: "scripted".into(),
            model_id: "scripted".into(),
            scripts,
            record,
            ids: Ids::default(),
            requests: Mutex::default(),
            counts: watch::Sender::new(Counts::default()),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Gives the model another provider and name, such as for tests of fallback. Ids and record start anew.
    pub fn named(self, provider: impl Into<String>, model_id: impl Into<String>) -> Self {
        let inner = Inner {
            provider: provider.into(),
            model_id: model_id.into(),
            scripts: self.inner.scripts.clone(),
            record: self.inner.record,
            ids: Ids::default(),
            requests: Mutex::default(),
            counts: watch::Sender::new(Counts::default()),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The requests received so far, oldest first. Empty unless the model records.
    pub fn requests(&self) -> Vec<ModelRequest> {
        self.inner.requests.lock().clone()
    }

    /// How many requests were received.
    pub fn requested(&self) -> usize {
        self.inner.counts.borrow().requested
    }

    /// How many requests were dropped before they had ended.
    pub fn cancelled(&self) -> usize {
        self.inner.counts.borrow().cancelled
    }

    /// How many requests ended by themselves, in an answer or a failure.
    pub fn finished(&self) -> usize {
        self.inner.counts.borrow().finished
    }

    /// Waits until `count` requests have been received.
    pub async fn until_requested(&self, count: usize) {
        self.until(|counts| counts.requested >= count).await;
    }

    /// Waits until `count` requests have been cancelled.
    pub async fn until_cancelled(&self, count: usize) {
        self.until(|counts| counts.cancelled >= count).await;
    }

    async fn until(&self, reached: impl FnMut(&Counts) -> bool) {
        // The sender lives as long as `self`, so waiting ends by the condition only.
        let _ = self.inner.counts.subscribe().wait_for(reached).await;
    }

    fn script_for(&self, request: &ModelRequest) -> Result<Script, ModelError> {
        let Some(scripts) = &self.inner.scripts else { return Ok(language::script_for(request)) };
        let index = self.inner.ids.scripts.fetch_add(1, Ordering::Relaxed);
        scripts.get(index).cloned().ok_or_else(|| {
            let message = format!("the scripted model has {} answers; this is request {}", scripts.len(), index + 1);
            ModelError::new(ModelErrorKind::Configuration, message)
        })
    }
}

#[async_trait]
impl LanguageModel for ScriptedModel {
    fn provider(&self) -> &str {
        &self.inner.provider
    }

    fn model_id(&self) -> &str {
        &self.inner.model_id
    }

    async fn stream(&self, request: ModelRequest) -> Result<ModelResponse, ModelError> {
        if self.inner.record {
            let mut requests = self.inner.requests.lock();
            if requests.len() < RECORDED_MAX {
                requests.push(request.clone());
            }
        }
        self.inner.counts.send_modify(|counts| counts.requested += 1);
        let script = match self.script_for(&request) {
            Ok(script) => script,
            Err(error) => {
                self.inner.counts.send_modify(|counts| counts.finished += 1);
                return Err(error);
            }
        };
        let streaming = request.streaming;
        let mut player = Player::new(self.clone(), script, &request);
        drop(request);
        if !streaming {
            let events = player.play_whole().await?;
            return Ok(ModelResponse { events: futures::stream::iter(events.into_iter().map(Ok)).boxed() });
        }
        player.until_headers().await?;
        let events = futures::stream::unfold(player, |mut player| async move { Some((player.next().await?, player)) });
        Ok(ModelResponse { events: events.boxed() })
    }
}

#[cfg(test)]
mod tests;
