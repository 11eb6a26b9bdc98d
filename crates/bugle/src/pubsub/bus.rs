//! The seam to event buses (PSL §1): the trait that a backend implements, subscriptions and deliveries.

use std::{
    fmt,
    num::NonZeroUsize,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use async_trait::async_trait;
use futures::{Stream, StreamExt, stream::BoxStream};
use uuid::Uuid;

use super::{Event, Leases, NewEvent, Reach};
use crate::time::Timestamp;

/// Topics with this prefix never leave the process (PSL-017).
const LOCAL_PREFIX: &str = "workflow.events.v2.";

/// Carries events between subscribers, in one process or many.
///
/// Events of one topic arrive in the order in which the backend took them; one that was given back moves. Nothing
/// waits for a slow subscriber: what does not fit into its queue is lost to it, and it is told (PSL-043).
#[async_trait]
pub trait PubSub: fmt::Debug + Send + Sync {
    /// Publishes `event` under an id and time of its own, and gives back what went out (PSL-001).
    ///
    /// When it returns, the backend has the event (PSL-010): in memory it lies in every subscriber's queue. A dropped
    /// call may have published.
    ///
    /// # Errors
    /// [`BusError::Closed`] after [`Self::close`] (PSL-018); [`BusError::Unavailable`]: it may or may not be out.
    async fn publish(&self, topic: &str, event: NewEvent, reach: Reach) -> Result<Event, BusError> {
        let event = event.stamp(self.now());
        let reach = if topic.starts_with(LOCAL_PREFIX) { Reach::ThisProcess } else { reach };
        self.forward(topic, event.clone(), reach).await?;
        Ok(event)
    }

    /// Publishes an event that an outer layer has stamped: id and time stay as they are (PSL-003).
    ///
    /// # Errors
    /// As [`Self::publish`].
    async fn forward(&self, topic: &str, event: Event, reach: Reach) -> Result<(), BusError>;

    /// Subscribes to `topic`; every event published after the return is seen. Each call is a subscription of its own.
    ///
    /// # Errors
    /// As [`Self::publish`].
    async fn subscribe(&self, topic: &str, options: SubscribeOptions) -> Result<Subscription, BusError>;

    /// Ends a subscription, from wherever: its stream ends, and no delivery starts after the return. Does nothing if
    /// it has ended. Deliveries that were taken before can still be settled.
    async fn unsubscribe(&self, subscription: SubscriptionId);

    /// Waits until nothing is queued and every delivery is settled. A subscriber that does not read keeps it waiting,
    /// so give it a deadline; never call it while holding a delivery. Returns when the bus is closed.
    async fn flush(&self);

    /// Ends every subscription at once and refuses what comes later; leases are not granted any more. What is queued is
    /// lost: [`Self::flush`] first. Closing twice is once.
    async fn close(&self);

    /// Drops what the backend retains of `topic`, as far as it can.
    async fn clear_topic(&self, _topic: &str) {}

    /// The retained events of `topic` from `offset` on; none where the backend keeps no history.
    ///
    /// # Errors
    /// As [`Self::publish`].
    async fn history(&self, _topic: &str, _offset: u64) -> Result<Vec<Event>, BusError> {
        Ok(Vec::new())
    }

    /// Subscribes to everything retained from `offset` on, then to what comes. A backend without offsets gives all it
    /// retains and logs that it could not start at `offset`.
    ///
    /// # Errors
    /// As [`Self::publish`].
    async fn subscribe_from(&self, topic: &str, offset: u64) -> Result<Subscription, BusError> {
        if offset != 0 {
            tracing::warn!(topic, offset, "this event bus knows no offsets; subscribed to everything it retains");
        }
        self.subscribe(topic, SubscribeOptions::default()).await
    }

    /// Whether [`Self::subscribe_from`] starts where it is told to.
    fn supports_offsets(&self) -> bool {
        false
    }

    /// The leases that come with this bus (PSL-034).
    fn leases(&self) -> Option<&dyn Leases> {
        None
    }

    /// The time events are stamped with.
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }
}

/// A shared event bus.
pub type SharedPubSub = Arc<dyn PubSub>;

/// How to subscribe.
#[derive(Debug, Clone, bon::Builder)]
pub struct SubscribeOptions {
    /// Each event goes to one member of each group, and to everybody without a group (PSL-011). Default: no group.
    #[builder(into)]
    pub group: Option<Arc<str>>,
    /// Where a new subscriber starts. Default: at the earliest retained event.
    #[builder(default)]
    pub start_from: StartFrom,
    /// Deliveries handed out and not yet settled (PSL-014). Default: 1, so that events are handled in order.
    #[builder(default = NonZeroUsize::MIN)]
    pub concurrency: NonZeroUsize,
}

impl Default for SubscribeOptions {
    fn default() -> Self {
        Self::builder().build()
    }
}

/// Where a new group, or a subscriber without one, starts. An existing group goes on where it is; a backend that
/// retains nothing starts at the next event (PSL-012).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StartFrom {
    /// At the earliest retained event.
    #[default]
    Earliest,
    /// At the next event.
    Latest,
}

/// Names one subscription, in every process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SubscriptionId(Uuid);

impl SubscriptionId {
    /// A fresh one.
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }
}

/// An ordered stream of what a subscriber receives; ends when it is unsubscribed or the bus is closed. Dropping it
/// unsubscribes.
#[must_use = "dropping a subscription ends it"]
pub struct Subscription {
    id: SubscriptionId,
    stream: BoxStream<'static, Received>,
}

impl Subscription {
    /// For backends. Dropping `stream` must end the subscription.
    pub fn new(id: SubscriptionId, stream: impl Stream<Item = Received> + Send + 'static) -> Self {
        Self { id, stream: stream.boxed() }
    }

    /// What [`PubSub::unsubscribe`] takes.
    pub fn id(&self) -> SubscriptionId {
        self.id
    }
}

impl Stream for Subscription {
    type Item = Received;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Received>> {
        self.stream.poll_next_unpin(cx)
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("id", &self.id).finish_non_exhaustive()
    }
}

/// What a subscriber receives.
#[derive(Debug)]
#[non_exhaustive]
pub enum Received {
    /// An event.
    Event(Delivery),
    /// Here events are missing: the subscriber was too slow for its queue (PSL-043). What depends on all of them has to
    /// be read again from where it is stored.
    Lagged {
        /// How many.
        missed: u64,
    },
}

/// One event, to be settled once: every one, those that are of no interest too (PSL-015). Dropped without being settled
/// – its handler failed or was stopped – it counts as given back (PSL-016).
#[must_use = "a delivery that is dropped is given back; acknowledge it"]
pub struct Delivery {
    /// The event.
    pub event: Arc<Event>,
    token: Box<dyn Settle>,
}

impl Delivery {
    /// For backends.
    pub fn new(event: Arc<Event>, token: Box<dyn Settle>) -> Self {
        Self { event, token }
    }

    /// It has been processed.
    ///
    /// # Errors
    /// [`BusError::Unavailable`]: the backend may deliver it again.
    pub async fn ack(self) -> Result<(), BusError> {
        self.token.settle(Settlement::Ack).await
    }

    /// It is to be delivered again, where the backend can, as often as it allows.
    ///
    /// # Errors
    /// As [`Self::ack`].
    pub async fn nack(self) -> Result<(), BusError> {
        self.token.settle(Settlement::Nack).await
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery").field("event", &self.event).finish_non_exhaustive()
    }
}

/// A backend's side of a [`Delivery`]. One that is dropped unsettled counts as [`Settlement::Nack`].
#[async_trait]
pub trait Settle: Send + Sync {
    /// Settles the delivery.
    ///
    /// # Errors
    /// [`BusError::Unavailable`]: whether it is settled is unknown.
    async fn settle(self: Box<Self>, how: Settlement) -> Result<(), BusError>;
}

/// What became of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// Processed.
    Ack,
    /// Deliver it again.
    Nack,
}

/// Why a bus did not do it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BusError {
    /// PSL-018.
    #[error("the event bus is closed; publish and subscribe before it is closed, or make a new one")]
    Closed,
    /// The backend gave no answer.
    #[error("the event bus {backend} is unavailable; try again when it can be reached")]
    Unavailable {
        /// Which backend.
        backend: &'static str,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}
