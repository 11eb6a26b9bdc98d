//! The event bus within one process (PSL §2). It does not reach other processes (PSL-044).

use std::{
    collections::{HashMap, VecDeque},
    mem,
    num::NonZeroUsize,
    sync::Arc,
    task::Waker,
};

use async_trait::async_trait;
use indexmap::IndexMap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use self::feed::Feed;
use super::{
    BusError, Event, Leases, MemoryLeases, PubSub, Reach, Settlement, SubscribeOptions, Subscription, SubscriptionId,
};
use crate::time::{SharedClock, SystemClock, Timestamp};

mod feed;
#[cfg(test)]
mod tests;

/// The bounds of a [`MemoryPubSub`].
#[derive(Debug, Clone, bon::Builder)]
pub struct MemoryPubSubOptions {
    /// Stamps events and times leases. Default: the system's.
    #[builder(default = Arc::new(SystemClock))]
    pub clock: SharedClock,
    /// Events that wait for one subscriber; beyond it the oldest is lost and [`Received::Lagged`](super::Received::Lagged) says so (PSL-043).
    /// A group loses one only when all its members are full. Default: 1024.
    #[builder(default = NonZeroUsize::new(1024).expect("is not zero"))]
    pub queue_len_max: NonZeroUsize,
    /// Deliveries of one event to a group, the first included; given back at the last, it is dropped with a warning
    /// (PSL-043). Default: 5.
    #[builder(default = 5)]
    pub delivery_attempts_max: u32,
}

/// A bus in memory, with leases. Nothing is retained: who subscribes later sees only what is published later.
///
/// Members of a group take turns in the order in which they joined. What one gives back goes to the one after it, and
/// what lies in the queue of one that leaves goes to the others (PSL-040). Without a group nothing is delivered again.
///
/// ```
/// use bugle::{json::json, pubsub::{MemoryPubSub, NewEvent, PubSub, Reach, Received, SubscribeOptions}};
/// use futures::StreamExt;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let bus = MemoryPubSub::new();
/// let mut subscription = bus.subscribe("weather", SubscribeOptions::default()).await?;
/// bus.publish("weather", NewEvent::new("rain", "run-1", json!({"mm": 3})), Reach::Everywhere).await?;
/// if let Some(Received::Event(delivery)) = subscription.next().await {
///     assert_eq!(&*delivery.event.kind, "rain");
///     delivery.ack().await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MemoryPubSub {
    options: MemoryPubSubOptions,
    leases: MemoryLeases,
    shared: Arc<Shared>,
}

impl Default for MemoryPubSub {
    fn default() -> Self {
        Self::with(MemoryPubSubOptions::builder().build())
    }
}

impl MemoryPubSub {
    /// Nobody has subscribed; default bounds.
    pub fn new() -> Self {
        Self::default()
    }

    /// Nobody has subscribed; bounds and clock of `options`.
    pub fn with(options: MemoryPubSubOptions) -> Self {
        let shared = Shared {
            state: Mutex::default(),
            settled: Notify::new(),
            queue_len_max: options.queue_len_max.get(),
            delivery_attempts_max: options.delivery_attempts_max,
        };
        Self { leases: MemoryLeases::with_clock(options.clock.clone()), options, shared: Arc::new(shared) }
    }
}

#[async_trait]
impl PubSub for MemoryPubSub {
    async fn forward(&self, topic: &str, event: Event, _: Reach) -> Result<(), BusError> {
        let event = Arc::new(Event { delivery_attempt: 1, ..event });
        self.shared.change(|state, wake| {
            if state.closed {
                return Err(BusError::Closed);
            }
            let State { topics, seats, .. } = state;
            for group in topics.get_mut(topic).into_iter().flatten() {
                group.offer(seats, &event, group.next, self.shared.queue_len_max, wake);
            }
            Ok(())
        })
    }

    async fn subscribe(&self, topic: &str, options: SubscribeOptions) -> Result<Subscription, BusError> {
        let id = SubscriptionId::random();
        let topic: Arc<str> = topic.into();
        let mut state = self.shared.state.lock();
        if state.closed {
            return Err(BusError::Closed);
        }
        let groups = state.topics.entry(topic.clone()).or_default();
        match groups.iter_mut().find(|group| group.name.is_some() && group.name == options.group) {
            Some(group) => group.members.push(id),
            None => groups.push(Group { name: options.group.clone(), members: vec![id], next: 0 }),
        }
        let place = Place { id, topic, group: options.group };
        let seat = Seat {
            place: place.clone(),
            concurrency: options.concurrency.get(),
            in_flight: 0,
            queue: VecDeque::new(),
            missed: 0,
            waker: None,
        };
        state.seats.insert(id, seat);
        drop(state);
        Ok(Subscription::new(id, Feed { shared: self.shared.clone(), place }))
    }

    async fn unsubscribe(&self, subscription: SubscriptionId) {
        self.shared.leave(subscription);
    }

    async fn flush(&self) {
        loop {
            let mut settled = std::pin::pin!(self.shared.settled.notified());
            settled.as_mut().enable();
            if self.shared.state.lock().is_idle() {
                return;
            }
            settled.await;
        }
    }

    async fn close(&self) {
        self.shared.change(|state, wake| {
            state.closed = true;
            state.in_flight = 0;
            state.topics.clear();
            wake.extend(mem::take(&mut state.seats).into_values().filter_map(|seat| seat.waker));
        });
        self.shared.settled.notify_waiters();
        self.leases.close();
    }

    fn leases(&self) -> Option<&dyn Leases> {
        Some(&self.leases)
    }

    fn now(&self) -> Timestamp {
        self.options.clock.now()
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Told when a delivery was settled, a subscriber left, or the bus was closed: what [`PubSub::flush`] waits for.
    settled: Notify,
    queue_len_max: usize,
    delivery_attempts_max: u32,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    /// Deliveries handed out and not settled, of those who have left too.
    in_flight: usize,
    /// In the order of joining; a subscriber without a group is a group of its own. No entry without a member.
    topics: HashMap<Arc<str>, Vec<Group>>,
    seats: IndexMap<SubscriptionId, Seat>,
}

#[derive(Debug)]
struct Group {
    name: Option<Arc<str>>,
    /// In the order of joining, never empty.
    members: Vec<SubscriptionId>,
    /// Whose turn it is.
    next: usize,
}

/// One subscriber.
#[derive(Debug)]
struct Seat {
    place: Place,
    concurrency: usize,
    in_flight: usize,
    queue: VecDeque<Arc<Event>>,
    /// Events lost before the first in the queue.
    missed: u64,
    waker: Option<Waker>,
}

#[derive(Debug, Clone)]
struct Place {
    id: SubscriptionId,
    topic: Arc<str>,
    group: Option<Arc<str>>,
}

/// Who is to be woken once the lock is free: a waker may run anything.
type Wake = Vec<Waker>;

impl Shared {
    fn change<T>(&self, change: impl FnOnce(&mut State, &mut Wake) -> T) -> T {
        let mut wake = Wake::new();
        let result = change(&mut self.state.lock(), &mut wake);
        wake.into_iter().for_each(Waker::wake);
        result
    }

    fn leave(&self, id: SubscriptionId) {
        self.change(|state, wake| {
            let Some(seat) = state.seats.swap_remove(&id) else { return };
            wake.extend(seat.waker);
            let Some(groups) = state.topics.get_mut(&seat.place.topic) else { return };
            let Some(at) = groups.iter().position(|group| group.members.contains(&id)) else { return };
            let group = &mut groups[at];
            group.remove(id);
            if let Some(heir) = group.members.get(group.next) {
                if let Some(heir) = state.seats.get_mut(heir) {
                    heir.missed += seat.missed;
                    wake.extend(heir.waker.take());
                }
                for event in seat.queue {
                    group.offer(&mut state.seats, &event, group.next, self.queue_len_max, wake);
                }
                return;
            }
            groups.remove(at);
            if groups.is_empty() {
                state.topics.remove(&seat.place.topic);
            }
        });
        self.settled.notify_waiters();
    }

    fn settle(&self, place: &Place, event: &Event, how: Settlement) {
        self.change(|state, wake| {
            if state.closed {
                return;
            }
            state.in_flight -= 1;
            if let Some(seat) = state.seats.get_mut(&place.id) {
                seat.in_flight -= 1;
                wake.extend(seat.waker.take());
            }
            if how == Settlement::Ack || place.group.is_none() {
                return;
            }
            let State { topics, seats, .. } = state;
            let mut groups = topics.get_mut(&place.topic).into_iter().flatten();
            let Some(group) = groups.find(|group| group.name == place.group) else { return };
            if event.delivery_attempt >= self.delivery_attempts_max {
                let (topic, kind, id, attempts) = (&place.topic, &event.kind, &event.id, event.delivery_attempt);
                tracing::warn!(%topic, %kind, %id, attempts, "an event was given back too often and is dropped");
                return;
            }
            let from = group.members.iter().position(|member| *member == place.id).map_or(group.next, |at| at + 1);
            group.offer(seats, &Arc::new(event.redelivered()), from, self.queue_len_max, wake);
        });
        self.settled.notify_waiters();
    }
}

impl State {
    fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.seats.values().all(|seat| seat.queue.is_empty())
    }
}

impl Group {
    /// Queues `event` with the first member from `from` on that has room. If none has, `from` loses its oldest.
    fn offer(
        &mut self,
        seats: &mut IndexMap<SubscriptionId, Seat>,
        event: &Arc<Event>,
        from: usize,
        queue_len_max: usize,
        wake: &mut Wake,
    ) {
        let len = self.members.len();
        let has_room = |at: &usize| seats.get(&self.members[*at]).is_some_and(|seat| seat.queue.len() < queue_len_max);
        let chosen = (from..from + len).map(|at| at % len).find(has_room).unwrap_or(from % len);
        self.next = (chosen + 1) % len;
        let Some(seat) = seats.get_mut(&self.members[chosen]) else { return };
        if seat.queue.len() >= queue_len_max {
            seat.queue.pop_front();
            seat.missed += 1;
        }
        seat.queue.push_back(event.clone());
        wake.extend(seat.waker.take());
    }

    /// The turn stays with whom it was.
    fn remove(&mut self, id: SubscriptionId) {
        let Some(at) = self.members.iter().position(|member| *member == id) else { return };
        self.members.remove(at);
        if at < self.next {
            self.next -= 1;
        }
        if self.next >= self.members.len() {
            self.next = 0;
        }
    }
}
