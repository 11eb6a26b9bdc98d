//! What only the bus in memory promises; the rest is in the contract.

use futures::{FutureExt, StreamExt, poll};
use proptest::prelude::*;

use super::*;
use crate::{
    json::json,
    pubsub::{Delivery, NewEvent, Received, contract},
};

fn small(queue_len_max: usize) -> MemoryPubSub {
    let queue_len_max = NonZeroUsize::new(queue_len_max).unwrap();
    MemoryPubSub::with(MemoryPubSubOptions::builder().queue_len_max(queue_len_max).build())
}

async fn join(bus: &MemoryPubSub, group: &str) -> Subscription {
    bus.subscribe("t", SubscribeOptions::builder().group(group).build()).await.unwrap()
}

async fn alone(bus: &MemoryPubSub) -> Subscription {
    bus.subscribe("t", SubscribeOptions::default()).await.unwrap()
}

async fn publish(bus: &MemoryPubSub, numbers: impl IntoIterator<Item = u64>) {
    for n in numbers {
        let event = NewEvent { index: Some(n), ..NewEvent::new("e", "r", json!(n)) };
        bus.publish("t", event, Reach::Everywhere).await.unwrap();
    }
}

/// What the subscriber has to take at once: memory never makes it wait.
fn take(subscription: &mut Subscription) -> Option<Received> {
    subscription.next().now_or_never().flatten()
}

fn delivery(subscription: &mut Subscription) -> Delivery {
    match take(subscription) {
        Some(Received::Event(delivery)) => delivery,
        other => panic!("no event but {other:?}"),
    }
}

/// Takes and acknowledges all there is; `Err` says how many were missed.
async fn drain(subscription: &mut Subscription) -> Vec<Result<u64, u64>> {
    let mut got = Vec::new();
    while let Some(received) = take(subscription) {
        match received {
            Received::Event(delivery) => {
                got.push(Ok(delivery.event.index.unwrap()));
                delivery.ack().await.unwrap();
            }
            Received::Lagged { missed } => got.push(Err(missed)),
        }
    }
    got
}

#[tokio::test(start_paused = true)]
async fn psl_014_memory_keeps_the_contract_of_buses() {
    contract::bus(&MemoryPubSub::new()).await.unwrap();
}

#[tokio::test]
async fn psl_040_members_of_a_group_take_turns_in_the_order_of_joining() {
    let bus = MemoryPubSub::new();
    let (mut a, mut b, mut c) = (join(&bus, "g").await, join(&bus, "g").await, join(&bus, "g").await);
    publish(&bus, 0..7).await;
    assert_eq!(drain(&mut a).await, [Ok(0), Ok(3), Ok(6)]);
    assert_eq!(drain(&mut b).await, [Ok(1), Ok(4)]);
    assert_eq!(drain(&mut c).await, [Ok(2), Ok(5)]);
}

#[tokio::test]
async fn psl_040_what_is_given_back_goes_to_the_next_member() {
    let bus = MemoryPubSub::new();
    let (mut a, mut b, mut c) = (join(&bus, "g").await, join(&bus, "g").await, join(&bus, "g").await);
    publish(&bus, 0..2).await;
    delivery(&mut b).nack().await.unwrap();
    assert_eq!(drain(&mut b).await, []);
    let again = delivery(&mut c);
    assert_eq!((again.event.index, again.event.delivery_attempt), (Some(1), 2));
    drop(again);
    publish(&bus, [2]).await;
    assert_eq!(drain(&mut a).await, [Ok(0), Ok(1)]);
    assert_eq!(drain(&mut b).await, [Ok(2)], "the turn goes on after whom the event went to");
}

#[tokio::test]
async fn psl_040_without_a_group_nothing_is_delivered_again() {
    let bus = MemoryPubSub::new();
    let (mut one, mut other) = (alone(&bus).await, alone(&bus).await);
    publish(&bus, 0..3).await;
    delivery(&mut one).nack().await.unwrap();
    drop(delivery(&mut one));
    assert_eq!(drain(&mut one).await, [Ok(2)]);
    assert_eq!(drain(&mut other).await, [Ok(0), Ok(1), Ok(2)]);
}

#[tokio::test]
async fn psl_040_a_member_that_leaves_loses_nothing() {
    let bus = MemoryPubSub::new();
    let (mut a, mut b) = (join(&bus, "g").await, join(&bus, "g").await);
    publish(&bus, 0..4).await;
    let taken = delivery(&mut a);
    drop(a);
    assert_eq!(drain(&mut b).await, [Ok(1), Ok(3), Ok(2)]);
    drop(taken);
    let again = delivery(&mut b);
    assert_eq!((again.event.index, again.event.delivery_attempt), (Some(0), 2));
    again.ack().await.unwrap();
    bus.flush().now_or_never().expect("everything is settled");
}

#[tokio::test]
async fn psl_040_the_turn_stays_where_it_was_when_a_member_leaves() {
    let bus = MemoryPubSub::new();
    let (a, mut b, mut c) = (join(&bus, "g").await, join(&bus, "g").await, join(&bus, "g").await);
    publish(&bus, 0..2).await;
    bus.unsubscribe(a.id()).await;
    assert_eq!(drain(&mut c).await, [Ok(0)], "it was the third's turn");
    publish(&bus, 2..4).await;
    assert_eq!(drain(&mut b).await, [Ok(1), Ok(2)]);
    assert_eq!(drain(&mut c).await, [Ok(3)]);
}

#[tokio::test]
async fn psl_043_an_event_is_given_back_four_times_and_no_more() {
    let bus = MemoryPubSub::new();
    let mut member = join(&bus, "g").await;
    publish(&bus, [0]).await;
    for attempt in 1..=5 {
        let delivery = delivery(&mut member);
        assert_eq!(delivery.event.delivery_attempt, attempt);
        delivery.nack().await.unwrap();
    }
    assert!(take(&mut member).is_none());
    bus.flush().now_or_never().expect("it was dropped");
}

#[tokio::test]
async fn psl_043_a_slow_subscriber_is_told_how_many_events_it_missed_and_where() {
    let bus = small(2);
    let (mut slow, mut quick) = (alone(&bus).await, alone(&bus).await);
    publish(&bus, [0]).await;
    assert_eq!(drain(&mut quick).await, [Ok(0)]);
    let taken = delivery(&mut slow);
    publish(&bus, 1..3).await;
    assert_eq!(drain(&mut quick).await, [Ok(1), Ok(2)]);
    publish(&bus, 3..5).await;
    assert_eq!(drain(&mut quick).await, [Ok(3), Ok(4)], "who is quick misses nothing");
    taken.ack().await.unwrap();
    assert_eq!(drain(&mut slow).await, [Err(2), Ok(3), Ok(4)]);
    publish(&bus, [5]).await;
    assert_eq!(drain(&mut slow).await, [Ok(5)], "it is told once");
}

#[tokio::test]
async fn psl_043_a_group_loses_events_only_when_all_its_members_are_full() {
    let bus = small(2);
    let (mut a, mut b) = (join(&bus, "g").await, join(&bus, "g").await);
    publish(&bus, 0..3).await;
    assert_eq!(drain(&mut b).await, [Ok(1)]);
    publish(&bus, 3..5).await;
    assert_eq!(drain(&mut b).await, [Ok(3), Ok(4)], "the first was passed over: it is full");
    publish(&bus, 5..9).await;
    let (a, b) = (drain(&mut a).await, drain(&mut b).await);
    let lost = |got: &[Result<u64, u64>]| got.iter().filter_map(|got| got.err()).sum::<u64>();
    assert_eq!((lost(&a) + lost(&b), a.len() + b.len()), (2, 6), "{a:?} {b:?}");
}

#[tokio::test]
async fn psl_043_what_a_member_missed_is_told_to_another_when_it_leaves() {
    let bus = small(1);
    let a = join(&bus, "g").await;
    publish(&bus, 0..3).await;
    let mut b = join(&bus, "g").await;
    drop(a);
    assert_eq!(drain(&mut b).await, [Err(2), Ok(2)]);
}

#[tokio::test]
async fn psl_041_a_flush_waits_for_redeliveries_too() {
    let bus = MemoryPubSub::new();
    let mut member = join(&bus, "g").await;
    publish(&bus, [0]).await;
    let mut flush = std::pin::pin!(bus.flush());
    assert!(poll!(flush.as_mut()).is_pending(), "an event is queued");
    let first = delivery(&mut member);
    assert!(poll!(flush.as_mut()).is_pending(), "it is not settled");
    first.nack().await.unwrap();
    assert!(poll!(flush.as_mut()).is_pending(), "it is delivered again");
    delivery(&mut member).ack().await.unwrap();
    assert!(poll!(flush.as_mut()).is_ready());
}

#[tokio::test]
async fn psl_041_closing_ends_what_waits() {
    let bus = Arc::new(MemoryPubSub::new());
    let mut idle = bus.subscribe("idle", SubscribeOptions::default()).await.unwrap();
    let waits = tokio::spawn(async move { idle.next().await.is_none() });
    let mut busy = join(&bus, "g").await;
    publish(&bus, [0]).await;
    let taken = delivery(&mut busy);
    let flushes = tokio::spawn({
        let bus = bus.clone();
        async move { bus.flush().await }
    });
    tokio::task::yield_now().await;
    bus.close().await;
    flushes.await.unwrap();
    taken.nack().await.unwrap();
    assert!(take(&mut busy).is_none(), "redeliveries are cancelled");
    drop(busy);
    assert!(waits.await.unwrap(), "who waits is told the end");
}

#[tokio::test]
async fn psl_014_a_subscriber_that_waits_is_woken() {
    let bus = MemoryPubSub::new();
    let mut subscription = alone(&bus).await;
    let waits = tokio::spawn(async move {
        let first = subscription.next().await;
        let waits = subscription.next();
        // The first is settled by another task while this one waits for the second.
        tokio::spawn(async move { drop(first) });
        matches!(waits.await, Some(Received::Event(delivery)) if delivery.event.index == Some(1))
    });
    tokio::task::yield_now().await;
    publish(&bus, 0..2).await;
    assert!(waits.await.unwrap());
}

#[tokio::test]
async fn psl_043_topics_that_nobody_listens_to_are_forgotten() {
    let bus = MemoryPubSub::new();
    let subscriptions = (alone(&bus).await, join(&bus, "g").await, join(&bus, "g").await);
    publish(&bus, 0..10).await;
    drop(subscriptions);
    publish(&bus, 10..20).await;
    let state = bus.shared.state.lock();
    assert!(state.topics.is_empty() && state.seats.is_empty() && state.is_idle());
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Publish,
    Take(usize),
    Ack,
    Nack,
    Drop,
    /// Leaves and joins again; the first member always stays.
    Rejoin(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Publish),
        3 => (0..3_usize).prop_map(Step::Take),
        1 => Just(Step::Ack),
        1 => Just(Step::Nack),
        1 => Just(Step::Drop),
        1 => (1..3_usize).prop_map(Step::Rejoin),
    ]
}

/// A group whose queues hold everything handles each event once, whoever comes, goes and gives back.
async fn play(steps: Vec<Step>) {
    let bus = MemoryPubSub::with(MemoryPubSubOptions::builder().delivery_attempts_max(u32::MAX).build());
    let mut all = alone(&bus).await;
    let mut members = [join(&bus, "g").await, join(&bus, "g").await, join(&bus, "g").await];
    let (mut published, mut held, mut handled) = (0, VecDeque::new(), Vec::new());
    for step in steps {
        match step {
            Step::Publish => {
                publish(&bus, [published]).await;
                published += 1;
            }
            Step::Take(who) => held.extend(take(&mut members[who])),
            Step::Rejoin(who) => members[who] = join(&bus, "g").await,
            Step::Ack | Step::Nack | Step::Drop => {
                let Some(Received::Event(delivery)) = held.pop_front() else { continue };
                match step {
                    Step::Ack => {
                        handled.extend(delivery.event.index);
                        delivery.ack().await.unwrap();
                    }
                    Step::Nack => delivery.nack().await.unwrap(),
                    _ => drop(delivery),
                }
            }
        }
    }
    held.clear();
    for member in &mut members {
        handled.extend(drain(member).await.into_iter().map(|got| got.expect("nothing is missed")));
    }
    handled.sort_unstable();
    assert_eq!(handled, (0..published).collect::<Vec<_>>());
    assert_eq!(drain(&mut all).await, (0..published).map(Ok).collect::<Vec<_>>());
    bus.flush().now_or_never().expect("everything is settled");
}

proptest! {
    #[test]
    fn psl_011_a_group_handles_each_event_once_whatever_happens(steps in prop::collection::vec(step(), 0..80)) {
        play(steps).now_or_never().expect("memory never waits");
    }
}
