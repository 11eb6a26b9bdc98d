//! One model request: establishing it with retries and fallbacks, and its time limits (LOOP-046 to 049).
//!
//! Until something visible has come, a failure is invisible: the same model is tried again, then the next. Afterwards
//! it is final. Dropping a request closes the provider's connection.

use std::{pin::Pin, time::Duration};

use futures::{StreamExt, future::BoxFuture};
use serde_json::{Value, json};
use tokio::time::{Instant, Sleep, sleep_until};

use super::machine::ModelName;
use crate::{
    agent::ModelEntry,
    model::{ModelError, ModelErrorKind, ModelEvent, ModelRequest, ModelResponse, ModelStream, Timeouts},
};

/// Retries unless model, call or agent says otherwise (LOOP-046).
pub(crate) const DEFAULT_RETRIES: u32 = 2;
/// The longest wait a provider may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);

/// What a request gives.
#[derive(Debug)]
pub(crate) enum RequestEvent {
    /// A model has answered.
    Answered {
        model: ModelName,
        warnings: Vec<Value>,
    },
    Event(ModelEvent),
    Failed(ModelError),
}

/// A request under way.
pub(crate) struct Request {
    models: Vec<ModelEntry>,
    at: usize,
    /// Given away with the last try.
    request: Option<ModelRequest>,
    streaming: bool,
    default_retries: u32,
    tries: u32,
    state: State,
    timeouts: Timeouts,
    step_deadline: Option<Instant>,
    first_deadline: Option<Instant>,
    answered: bool,
    visible: bool,
    /// A model that failed for good is told before the next one is asked (PROC-062).
    asks: bool,
}

enum State {
    Waiting(Pin<Box<Sleep>>),
    Connecting(BoxFuture<'static, Result<ModelResponse, ModelError>>),
    Streaming(ModelStream),
    Done,
}

impl Request {
    /// Begins with the model at `at`, which is where an interrupted request was (SIG-225).
    pub(crate) fn new(models: Vec<ModelEntry>, at: usize, request: ModelRequest, default_retries: u32) -> Self {
        let timeouts = request.settings.timeout.unwrap_or_default();
        let mut this = Self {
            models,
            at,
            streaming: request.streaming,
            request: Some(request),
            default_retries,
            tries: 0,
            state: State::Done,
            timeouts,
            step_deadline: None,
            first_deadline: None,
            answered: false,
            visible: false,
            asks: false,
        };
        this.connect();
        this
    }

    /// Tells of a model that failed for good before the next one is asked.
    #[must_use]
    pub(crate) fn asking(mut self, asks: bool) -> Self {
        self.asks = asks;
        self
    }

    /// An answer in the model's place (PROC-014).
    pub(crate) fn replay(models: Vec<ModelEntry>, at: usize, events: Vec<ModelEvent>, streaming: bool) -> Self {
        Self {
            models,
            at,
            request: None,
            streaming,
            default_retries: 0,
            tries: 0,
            state: State::Streaming(futures::stream::iter(events.into_iter().map(Ok)).boxed()),
            timeouts: Timeouts::default(),
            step_deadline: None,
            first_deadline: None,
            answered: false,
            visible: false,
            asks: false,
        }
    }

    /// The models it may ask.
    pub(crate) fn models(&self) -> &[ModelEntry] {
        &self.models
    }

    /// Goes on with the next model after a failure was told. `false` if there is none.
    pub(crate) fn next_model(&mut self) -> bool {
        if self.visible || self.at + 1 >= self.models.len() || self.request.is_none() {
            return false;
        }
        self.at += 1;
        self.tries = 0;
        self.connect();
        true
    }

    /// Which model is asked.
    pub(crate) fn model_index(&self) -> usize {
        self.at
    }

    /// How often the current model is tried again.
    fn retries(&self) -> u32 {
        self.models.get(self.at).and_then(|entry| entry.max_retries).unwrap_or(self.default_retries)
    }

    fn connect(&mut self) {
        let Some(entry) = self.models.get(self.at) else {
            self.state = State::Done;
            return;
        };
        let model = entry.model.clone();
        let last = self.tries >= self.retries() && self.at + 1 >= self.models.len();
        let request = if last { self.request.take() } else { self.request.clone() };
        let Some(request) = request else {
            self.state = State::Done;
            return;
        };
        let after = |ms: Option<f64>| ms.map(|ms| Instant::now() + Duration::from_secs_f64(ms / 1000.0));
        self.step_deadline = after(self.timeouts.step_ms);
        self.first_deadline = if self.streaming { after(self.timeouts.first_chunk_ms) } else { None };
        self.state = State::Connecting(Box::pin(async move { model.stream(request).await }));
    }

    /// The next event; `None` after the response's end. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<RequestEvent> {
        loop {
            let deadline = match (self.step_deadline, self.first_deadline) {
                (Some(step), Some(first)) => Some(step.min(first)),
                (step, first) => step.or(first),
            };
            let limit = async {
                match deadline {
                    Some(deadline) => sleep_until(deadline).await,
                    None => std::future::pending().await,
                }
            };
            let failure = match &mut self.state {
                State::Done => return None,
                State::Waiting(sleep) => {
                    sleep.await;
                    self.connect();
                    continue;
                }
                State::Connecting(connecting) => tokio::select! {
                    biased;
                    answer = connecting => match answer {
                        Ok(response) => {
                            self.state = State::Streaming(response.events);
                            continue;
                        }
                        Err(error) => error,
                    },
                    () = limit => self.timeout(),
                },
                State::Streaming(events) => tokio::select! {
                    biased;
                    event = events.next() => match event {
                        Some(Ok(event)) => return Some(self.event(event)),
                        Some(Err(error)) => error,
                        None => {
                            // A stream that ends without a finish is broken off (R31a).
                            let message = "the model's stream ended before the answer was complete";
                            ModelError::new(ModelErrorKind::Truncated, message)
                        }
                    },
                    () = limit => self.timeout(),
                },
            };
            if let Some(failed) = self.failed(failure) {
                return Some(failed);
            }
        }
    }

    fn event(&mut self, event: ModelEvent) -> RequestEvent {
        if !self.answered {
            // The event waits in the stream's place until the next call.
            self.answered = true;
            let entry = &self.models[self.at];
            let name =
                ModelName { provider: entry.model.provider().to_owned(), model: entry.model.model_id().to_owned() };
            // What the provider warned of belongs to the beginning of the step.
            let event = match event {
                ModelEvent::Warnings(warnings) => return RequestEvent::Answered { model: name, warnings },
                event => event,
            };
            let rest = std::mem::replace(&mut self.state, State::Done);
            if let State::Streaming(rest) = rest {
                self.state = State::Streaming(futures::stream::iter([Ok(event)]).chain(rest).boxed());
            }
            return RequestEvent::Answered { model: name, warnings: Vec::new() };
        }
        match &event {
            ModelEvent::Metadata { .. } | ModelEvent::Warnings(_) | ModelEvent::Raw(_) => {}
            ModelEvent::Finish { .. } => {
                self.state = State::Done;
                self.visible = true;
            }
            _ => self.visible = true,
        }
        if event.is_content() {
            self.first_deadline = None;
        }
        RequestEvent::Event(event)
    }

    fn timeout(&self) -> ModelError {
        let first = self.first_deadline.is_some_and(|first| self.step_deadline.is_none_or(|step| first <= step));
        let (kind, ms) =
            if first { ("firstChunk", self.timeouts.first_chunk_ms) } else { ("step", self.timeouts.step_ms) };
        timeout_error(kind, ms.unwrap_or_default())
    }

    /// Another try, another model, or the end.
    fn failed(&mut self, error: ModelError) -> Option<RequestEvent> {
        self.state = State::Done;
        // Which model failed is said only if its failure is shown.
        self.answered = self.answered && self.visible;
        if self.visible {
            return Some(RequestEvent::Failed(error));
        }
        if error.is_retryable() && error.kind != ModelErrorKind::Truncated && self.tries < self.retries() {
            let backoff = Duration::from_secs(1 << self.tries.min(5));
            let wait = error.retry_after.map_or(backoff, |asked| asked.min(RETRY_AFTER_MAX));
            self.tries += 1;
            tracing::warn!(attempt = self.tries, ?wait, %error, "model request failed; trying again");
            self.state = State::Waiting(Box::pin(tokio::time::sleep(wait)));
            self.step_deadline = None;
            self.first_deadline = None;
            return None;
        }
        if self.at + 1 < self.models.len() && !self.asks {
            tracing::warn!(%error, "model failed; trying the next one");
            self.at += 1;
            self.tries = 0;
            self.connect();
            return None;
        }
        Some(RequestEvent::Failed(error))
    }
}

/// A time limit has passed (LOOP-049).
pub(crate) fn timeout_error(kind: &str, ms: f64) -> ModelError {
    let mut error = ModelError::new(ModelErrorKind::Timeout, format!("the {kind} time limit of {ms} ms has passed"));
    error.details = Some(json!({ "timeoutType": kind, "timeoutMs": ms }));
    error
}
