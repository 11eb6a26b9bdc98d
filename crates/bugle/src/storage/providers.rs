//! The subscriptions of signal providers (PROV-003, PROV-014): which thread hears of which outside resource.

use std::fmt;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::StorageError;
use crate::{json::Object, time::Timestamp};

/// Keeps subscriptions. Every operation is one transaction; the time is the caller's.
#[async_trait]
pub trait ProviderSubscriptions: fmt::Debug + Send + Sync {
    /// Stores a subscription. One with the same key is there already: metadata is merged, delivery options are replaced
    /// where given, it is enabled again, and the first one is given back (PROV-003).
    async fn subscribe(&self, subscription: ProviderSubscription) -> Result<ProviderSubscription, StorageError>;

    /// Deletes those that the query selects; gives how many there were.
    async fn unsubscribe(&self, query: &SubscriptionQuery) -> Result<usize, StorageError>;

    /// The subscriptions that the query selects, oldest first.
    async fn list(&self, query: &SubscriptionQuery) -> Result<Vec<ProviderSubscription>, StorageError>;

    /// How many subscriptions the query selects (PROV-003).
    async fn count_subscriptions(&self, query: &SubscriptionQuery) -> Result<usize, StorageError> {
        Ok(self.list(query).await?.len())
    }

    /// Whether there is one that the query selects (PROV-003).
    async fn has_subscription(&self, query: &SubscriptionQuery) -> Result<bool, StorageError> {
        Ok(self.count_subscriptions(query).await? > 0)
    }

    /// Takes the enabled subscriptions of a provider that nobody else polls, until `until` (PROV-014).
    async fn claim_polls(
        &self,
        query: &SubscriptionQuery,
        token: &str,
        now: Timestamp,
        until: Timestamp,
    ) -> Result<Vec<ProviderSubscription>, StorageError>;

    /// Ends a poll: stores the new cursor, if there is one, and lets others poll from `next` on. `false` if `token` does
    /// not hold the subscription any more; nothing is written then.
    async fn end_poll(
        &self,
        id: &str,
        token: &str,
        cursor: Option<&str>,
        next: Timestamp,
    ) -> Result<bool, StorageError>;
}

/// A thread's subscription to a resource of a provider.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ProviderSubscription {
    /// Names it.
    pub id: String,
    /// The agent that is told.
    pub agent_id: String,
    /// The provider.
    pub provider_id: String,
    /// Whose thread it is.
    pub resource_id: String,
    /// The thread.
    pub thread_id: String,
    /// What is followed, as the provider names it: `acme/app`.
    pub external_resource_id: String,
    /// Events are delivered; else it only is there.
    pub enabled: bool,
    /// Where the last poll ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// How notifications are delivered: `{ifActive, ifIdle, priority}` as the wire has them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery_options: Option<Value>,
    /// Keys of the subscriber.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Object>,
    /// When it was made.
    pub subscribed_at: Timestamp,
}

impl ProviderSubscription {
    /// Whether `other` follows the same thing for the same thread.
    pub fn is_same(&self, other: &Self) -> bool {
        self.agent_id == other.agent_id
            && self.provider_id == other.provider_id
            && self.resource_id == other.resource_id
            && self.thread_id == other.thread_id
            && self.external_resource_id == other.external_resource_id
    }

    /// Takes in what a repeated subscription says (PROV-003).
    pub fn merge(&mut self, again: &Self) {
        if let Some(metadata) = &again.metadata {
            self.metadata.get_or_insert_default().extend(metadata.clone());
        }
        if again.delivery_options.is_some() {
            self.delivery_options.clone_from(&again.delivery_options);
        }
        self.enabled = again.enabled;
    }
}

/// Which subscriptions. What is `None` does not matter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SubscriptionQuery {
    /// With this id.
    pub id: Option<String>,
    /// Of this agent.
    pub agent_id: Option<String>,
    /// Of this provider.
    pub provider_id: Option<String>,
    /// Of this resource.
    pub resource_id: Option<String>,
    /// Of this thread.
    pub thread_id: Option<String>,
    /// Following one of these; empty = anything.
    pub external_resource_ids: Vec<String>,
}

impl SubscriptionQuery {
    /// Those of a provider.
    pub fn of_provider(provider_id: impl Into<String>) -> Self {
        Self { provider_id: Some(provider_id.into()), ..Self::default() }
    }

    /// Whether it selects the subscription.
    pub fn selects(&self, subscription: &ProviderSubscription) -> bool {
        let equal = |wanted: &Option<String>, held: &str| wanted.as_deref().is_none_or(|wanted| wanted == held);
        equal(&self.id, &subscription.id)
            && equal(&self.agent_id, &subscription.agent_id)
            && equal(&self.provider_id, &subscription.provider_id)
            && equal(&self.resource_id, &subscription.resource_id)
            && equal(&self.thread_id, &subscription.thread_id)
            && (self.external_resource_ids.is_empty()
                || self.external_resource_ids.contains(&subscription.external_resource_id))
    }
}
