//! Signal providers: what watches the outside for an agent, and tells threads that have subscribed (PROV).
//!
//! A [`SignalProvider`] reads webhooks, or polls, or both. Which thread hears of what is kept as subscriptions in the store
//! (PROV-014), so that they outlive the process and any process may take a webhook. What a provider finds becomes
//! notifications, one for each subscription that matches.

mod polling;
mod tasks;
mod tools;
mod verify;
mod webhook;

pub use tasks::TaskSignals;
pub use tools::subscription_tools;
pub use verify::{Encoding, Scheme, Secret, Verifier, WebhookRequest};
pub use webhook::{
    WebhookOptions, WebhookPreset, WebhookProvider, webhook_subscribe_signal, webhook_unsubscribe_signal,
};

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use indexmap::IndexMap;
use serde_json::{Value, json};

use crate::{
    agent::Agent,
    error::Error,
    id::ThreadKey,
    json::Object,
    notification::{NewNotification, Notified, PAYLOAD_MAX, fitted},
    processor::SharedProcessor,
    runtime::{ActiveBehavior, Bugle, IdleBehavior, IfActive, IfIdle, Inner},
    storage::{MemoryStorage, NOTIFICATION_PRIORITIES, ProviderSubscription, ProviderSubscriptions, SubscriptionQuery},
    tool::Tool,
};

/// How long a delivery of a webhook is told apart from its repetitions (PROV-012).
const DELIVERY_WINDOW: Duration = Duration::from_secs(24 * 60 * 60);

/// Things that one webhook may concern at most, all its events together.
const CONCERNED_MAX: usize = 1000;
/// Bytes that the name of a thing that is followed may have.
const EXTERNAL_MAX: usize = 1024;

/// Whether trying again would change nothing: what came in makes no notification.
const fn is_invalid(error: &Error) -> bool {
    matches!(error, Error::Invalid { .. } | Error::InvalidSignal(_))
}

/// The text, or if it is blank, what stands for it.
fn or_else(text: &str, default: impl FnOnce() -> String) -> String {
    if text.trim().is_empty() { default() } else { text.to_owned() }
}

/// Watches something outside for an agent (PROV-001).
#[async_trait]
pub trait SignalProvider: fmt::Debug + Send + Sync {
    /// Names it, in webhook addresses and subscriptions.
    fn id(&self) -> &str;

    /// Its shown name.
    fn name(&self) -> &str {
        self.id()
    }

    /// How often it is polled; `None`: never.
    fn poll_interval(&self) -> Option<Duration> {
        None
    }

    /// Called once before the first poll (PROV-015).
    ///
    /// # Errors
    /// Why it cannot start; it is not polled then.
    async fn start(&self, context: &ProviderContext) -> Result<(), ProviderError> {
        let _ = context;
        Ok(())
    }

    /// Called when the runtime ends.
    async fn stop(&self) {}

    /// Looks for news of these subscriptions, which no other process polls at this moment.
    ///
    /// # Errors
    /// Why it failed. It is tried again later; where each subscription's last poll ended stays as it is.
    async fn poll(
        &self,
        subscriptions: &[ProviderSubscription],
        context: &ProviderContext,
    ) -> Result<Vec<Polled>, ProviderError> {
        let _ = (subscriptions, context);
        Ok(Vec::new())
    }

    /// Proves that a webhook comes from where it says. Without one there is no webhook route (PROV-010).
    fn verifier(&self) -> Option<&Verifier> {
        None
    }

    /// What a webhook, whose signature is right, says.
    ///
    /// # Errors
    /// Why it cannot be read; the sender is told 400.
    fn read_webhook(&self, request: &WebhookRequest) -> Result<Vec<ProviderEvent>, ProviderError> {
        let _ = request;
        Ok(Vec::new())
    }

    /// Subscriptions that are always there, beside the stored ones.
    fn fixed_subscriptions(&self) -> &[ProviderSubscription] {
        &[]
    }

    /// Tools for its agent. A tool that the agent has under the same name wins (PROV-002).
    fn tools(&self) -> Vec<Tool> {
        Vec::new()
    }

    /// Input processors for its agent, before its own (PROC-004).
    fn input_processors(&self) -> Vec<SharedProcessor> {
        Vec::new()
    }

    /// Output processors for its agent, before its own (PROC-004).
    fn output_processors(&self) -> Vec<SharedProcessor> {
        Vec::new()
    }

    /// Shapes the notification that one subscription gets of an event (PROV-006). `made` is what it is by default; its
    /// thread, and the key that tells repeated deliveries apart (PROV-012), stay what they are.
    fn notification(
        &self,
        event: &ProviderEvent,
        subscription: &ProviderSubscription,
        made: NewNotification,
    ) -> NewNotification {
        let _ = (event, subscription);
        made
    }
}

/// A shared provider.
pub type SharedProvider = Arc<dyn SignalProvider>;

/// Why a provider failed; for people, without secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ProviderError(pub String);

/// Something that has happened outside.
#[derive(Debug, Clone, PartialEq)]
pub struct ProviderEvent {
    /// What it concerns; those who have subscribed to one of these are told, each once. The events of one webhook concern
    /// at most 1,000 things together; one with more is refused.
    pub external_resource_ids: Vec<String>,
    /// Where it came from.
    pub source: String,
    /// What kind of event.
    pub kind: String,
    /// One line for the model.
    pub summary: String,
    /// `low`, `medium`, `high`, `urgent`.
    pub priority: String,
    /// The event itself.
    pub payload: Option<Value>,
    /// Names this delivery: a repetition is told apart by it (PROV-012).
    pub delivery_id: String,
    /// Tells repetitions apart in the place of the delivery's name, where no signature covers that: whoever has overheard
    /// a delivery could send it again under a fresh one. The body's hash, say.
    pub repetition_key: Option<String>,
    /// Pending events of one key are counted together.
    pub coalesce_key: Option<String>,
    /// Shown to the model.
    pub attributes: Option<Object>,
}

impl ProviderEvent {
    /// The notification for one subscription. What comes from outside is made to fit: blank texts and unknown priorities
    /// give way to defaults, texts that are too long are cut, and of a payload that is too large its size is told.
    fn notification(&self, provider: &dyn SignalProvider, subscription: &ProviderSubscription) -> NewNotification {
        let made = self.plain_notification(provider.id(), subscription);
        let (thread, key, window) = (made.thread.clone(), made.dedupe_key.clone(), made.dedupe_window);
        let shaped = provider.notification(self, subscription, made);
        fitted(NewNotification { thread, dedupe_key: key, dedupe_window: window, ..shaped })
    }

    fn plain_notification(&self, provider: &str, subscription: &ProviderSubscription) -> NewNotification {
        let thread = ThreadKey::new(subscription.resource_id.as_str(), subscription.thread_id.as_str());
        let source = or_else(&self.source, || provider.to_owned());
        let kind = or_else(&self.kind, || "event".to_owned());
        let summary = or_else(&self.summary, || format!("{kind} from {source}"));
        let mut new = NewNotification::new(thread, source, kind, summary);
        let options = subscription.delivery_options.as_ref();
        let option = |name: &str| options.and_then(|options| options.get(name));
        let behavior = |name: &str| option(name).and_then(|branch| branch.get("behavior")).cloned();
        let priorities = [option("priority").and_then(Value::as_str), Some(self.priority.as_str())];
        let known = |priority: &&str| NOTIFICATION_PRIORITIES.contains(priority);
        let priority = priorities.into_iter().flatten().find(known).unwrap_or("medium");
        new.priority = Some(priority.to_owned());
        new.payload = self.payload.as_ref().map(|payload| match payload.to_string().len() {
            bytes if bytes > PAYLOAD_MAX => json!({"omitted": true, "bytes": bytes, "limit": PAYLOAD_MAX}),
            _ => payload.clone(),
        });
        new.source_id = Some(self.delivery_id.clone());
        let delivery = self.repetition_key.as_ref().unwrap_or(&self.delivery_id);
        new.dedupe_key = Some(format!("{provider}:{delivery}:{}", subscription.id));
        new.dedupe_window = Some(DELIVERY_WINDOW);
        new.coalesce_key.clone_from(&self.coalesce_key);
        new.attributes.clone_from(&self.attributes);
        let active = behavior("ifActive").and_then(|name| serde_json::from_value::<ActiveBehavior>(name).ok());
        let idle = behavior("ifIdle").and_then(|name| serde_json::from_value::<IdleBehavior>(name).ok());
        new.if_active = IfActive { behavior: active.unwrap_or_default(), ..IfActive::default() };
        new.if_idle = IfIdle { behavior: idle.unwrap_or_default(), ..IfIdle::default() };
        new
    }
}

/// What a poll of one subscription found.
#[derive(Debug, Clone, PartialEq)]
pub struct Polled {
    /// The subscription.
    pub subscription_id: String,
    /// What has happened since.
    pub events: Vec<ProviderEvent>,
    /// Where the next poll begins.
    pub cursor: Option<String>,
}

/// What a provider may use of the runtime.
#[derive(Debug, Clone)]
pub struct ProviderContext {
    bugle: Bugle,
    agent_id: String,
}

impl ProviderContext {
    /// The runtime.
    pub fn bugle(&self) -> &Bugle {
        &self.bugle
    }

    /// The agent it watches for.
    pub fn agent_id(&self) -> &str {
        &self.agent_id
    }

    /// Tells the agent of something (PROV-005).
    ///
    /// # Errors
    /// As [`AgentHandle::send_notification`](crate::AgentHandle::send_notification).
    pub async fn notify(&self, notification: NewNotification) -> Result<Notified, Error> {
        self.bugle.agent(&self.agent_id)?.send_notification(notification).await
    }
}

/// The providers of a runtime, and the subscriptions of one whose store keeps none.
#[derive(Debug, Default)]
pub(crate) struct Providers {
    /// By provider: the agents it watches for.
    by_id: IndexMap<String, Vec<(String, SharedProvider)>>,
    kept: MemoryStorage,
}

impl Providers {
    /// Those of the agents, and those given for an agent by its id.
    pub(crate) fn of<'a>(agents: impl Iterator<Item = &'a Agent>, more: Vec<(String, SharedProvider)>) -> Self {
        let mut by_id: IndexMap<String, Vec<(String, SharedProvider)>> = IndexMap::new();
        let own = agents.flat_map(|agent| {
            let providers = agent.inner().providers.iter();
            providers.map(|provider| (agent.id().to_owned(), provider.clone()))
        });
        for (agent, provider) in own.chain(more) {
            let known = by_id.entry(provider.id().to_owned()).or_default();
            if known.iter().all(|(known, _)| *known != agent) {
                known.push((agent, provider));
            }
        }
        Self { by_id, kept: MemoryStorage::new() }
    }

    /// Starts those that are polled.
    pub(crate) fn start(inner: &Arc<Inner>) {
        for (agent_id, provider) in inner.providers.by_id.values().flatten() {
            polling::spawn(inner, agent_id.clone(), provider.clone());
        }
    }
}

/// Where subscriptions are (PROV-014).
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// In the store.
    Stored,
    /// In this process only: the store keeps none.
    Process,
}

/// A webhook that was taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WebhookTaken {
    /// How many subscriptions it has told.
    pub matched: usize,
    /// All of them had been told of this delivery before.
    pub duplicate: bool,
}

/// Why a webhook was not taken in.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WebhookError {
    /// There is no such provider, or it has no verifier (PROV-010).
    #[error("no such webhook")]
    Unknown,
    /// Its signature is wrong or too old (PROV-011). Says no more, to nobody.
    #[error("the signature is not right")]
    Refused,
    /// It cannot be read.
    #[error("the webhook cannot be read: {0}")]
    Unreadable(String),
    /// One of its events makes no notification; sending it again would change nothing. Its other events were taken in.
    #[error("the webhook makes no notification: {0}")]
    Invalid(#[source] Box<Error>),
    /// Not everything could be stored; the sender is to try again (PROV-013).
    #[error("the webhook could not be stored; send it again")]
    NotStored(#[source] Box<Error>),
}

impl Bugle {
    /// The subscriptions of signal providers.
    pub fn provider_subscriptions(&self) -> &dyn ProviderSubscriptions {
        match self.inner.storage.provider_subscriptions() {
            Some(stored) => stored,
            None => &self.inner.providers.kept,
        }
    }

    /// Whether subscriptions outlive the process (PROV-014).
    pub fn subscription_durability(&self) -> Durability {
        match self.inner.storage.provider_subscriptions() {
            Some(_) if self.inner.storage.is_durable() => Durability::Stored,
            _ => Durability::Process,
        }
    }

    /// Subscribes a thread to something outside; a repeated subscription merges into the first (PROV-003).
    ///
    /// # Errors
    /// [`Error::Invalid`] for a thread without resource, an empty id, or one of more than 1,024 bytes; the store's.
    pub async fn subscribe_provider(
        &self,
        agent_id: &str,
        provider_id: &str,
        thread: &ThreadKey,
        external_resource_id: &str,
        delivery_options: Option<Value>,
        metadata: Option<Object>,
    ) -> Result<ProviderSubscription, Error> {
        let Some(resource) = &thread.resource_id else {
            return Err(Error::invalid("resourceId", "a subscription needs a thread with a resource"));
        };
        if external_resource_id.trim().is_empty() {
            return Err(Error::invalid("externalResourceId", "say what to subscribe to"));
        }
        if external_resource_id.len() > EXTERNAL_MAX {
            return Err(Error::invalid("externalResourceId", format!("at most {EXTERNAL_MAX} bytes are possible")));
        }
        let subscription = ProviderSubscription {
            id: uuid::Uuid::now_v7().to_string(),
            agent_id: agent_id.to_owned(),
            provider_id: provider_id.to_owned(),
            resource_id: resource.to_string(),
            thread_id: thread.thread_id.to_string(),
            external_resource_id: external_resource_id.trim().to_owned(),
            enabled: true,
            cursor: None,
            delivery_options,
            metadata,
            subscribed_at: self.inner.clock.now(),
        };
        Ok(self.provider_subscriptions().subscribe(subscription).await?)
    }

    /// Takes a webhook in: proves where it comes from, reads it, and stores a notification for each subscription that
    /// matches. Returns once all are stored; they are delivered afterwards (PROV-013). Header names are in lower case.
    /// Where several agents have a provider of this id, each whose own verifier believes the webhook is told, by it.
    ///
    /// # Errors
    /// [`WebhookError`]; nothing was stored, but for [`WebhookError::NotStored`], where repeating it is safe (PROV-012),
    /// and [`WebhookError::Invalid`].
    pub async fn take_webhook(
        &self,
        provider_id: &str,
        headers: Vec<(String, String)>,
        body: Bytes,
    ) -> Result<WebhookTaken, WebhookError> {
        let providers = self.inner.providers.by_id.get(provider_id).ok_or(WebhookError::Unknown)?;
        let request = WebhookRequest { headers, body, now: self.inner.clock.now() };
        let verified: Vec<_> =
            providers.iter().filter_map(|(agent, own)| Some((agent, own, own.verifier()?.accepts(&request)))).collect();
        if verified.is_empty() {
            return Err(WebhookError::Unknown);
        }
        let accepted = verified.into_iter().filter(|(_, _, accepted)| *accepted);
        let accepted: Vec<_> = accepted.map(|(agent_id, provider, _)| (agent_id, provider)).collect();
        if accepted.is_empty() {
            return Err(WebhookError::Refused);
        }
        let mut events = Vec::new();
        for (agent_id, provider) in accepted {
            let read = provider.read_webhook(&request).map_err(|error| WebhookError::Unreadable(error.0))?;
            let concerned: usize = read.iter().map(|event| event.external_resource_ids.len()).sum();
            if concerned > CONCERNED_MAX {
                let message = format!("it concerns {concerned} things; at most {CONCERNED_MAX} are possible");
                return Err(WebhookError::Unreadable(message));
            }
            for event in read {
                events.push((agent_id, provider, event));
            }
        }
        let mut taken = WebhookTaken { matched: 0, duplicate: false };
        let (mut repeated, mut invalid) = (0, None);
        for (agent_id, provider, event) in &events {
            let found = self.matching(agent_id, &***provider, event).await;
            let found = found.map_err(|error| WebhookError::NotStored(Box::new(error)))?;
            if found.is_empty() {
                continue;
            }
            let new = found.iter().map(|subscription| event.notification(&***provider, subscription)).collect();
            let accepted = async { self.agent(agent_id)?.accept_notifications(new).await }.await;
            match accepted {
                Ok(accepted) => {
                    taken.matched += accepted.len();
                    repeated += accepted.iter().filter(|(_, duplicate)| *duplicate).count();
                }
                Err(error) if is_invalid(&error) => {
                    tracing::warn!(provider = provider_id, %error, "an event of a webhook makes no notification");
                    invalid.get_or_insert(error);
                }
                Err(error) => {
                    tracing::error!(provider = provider_id, %error, "a webhook could not be stored");
                    return Err(WebhookError::NotStored(Box::new(error)));
                }
            }
        }
        if let Some(error) = invalid {
            return Err(WebhookError::Invalid(Box::new(error)));
        }
        taken.duplicate = taken.matched > 0 && repeated == taken.matched;
        Ok(taken)
    }

    /// The subscriptions of an agent that an event concerns, each once.
    async fn matching(
        &self,
        agent_id: &str,
        provider: &dyn SignalProvider,
        event: &ProviderEvent,
    ) -> Result<Vec<ProviderSubscription>, Error> {
        if event.external_resource_ids.is_empty() {
            return Ok(Vec::new());
        }
        let query = SubscriptionQuery {
            agent_id: Some(agent_id.to_owned()),
            external_resource_ids: event.external_resource_ids.clone(),
            ..SubscriptionQuery::of_provider(provider.id())
        };
        let mut found = self.provider_subscriptions().list(&query).await?;
        let fixed = provider
            .fixed_subscriptions()
            .iter()
            .map(|fixed| ProviderSubscription { agent_id: agent_id.to_owned(), ..fixed.clone() });
        for fixed in fixed.filter(|fixed| query.selects(fixed)) {
            if found.iter().all(|known| !known.is_same(&fixed)) {
                found.push(fixed);
            }
        }
        found.retain(|subscription| subscription.enabled);
        Ok(found)
    }
}

#[cfg(test)]
mod tests;
