//! What every event bus does.

use std::{num::NonZeroUsize, time::Duration};

use futures::{FutureExt, StreamExt, stream};

use crate::{
    json::json,
    pubsub::{
        Acquired, BusError, Delivery, NewEvent, PubSub, Reach, Received, StartFrom, SubscribeOptions, Subscription,
        SubscriptionId,
    },
    time::Timestamp,
};

/// After so long without an answer the contract counts as broken.
const PATIENCE: Duration = Duration::from_secs(20);

/// Checks `bus`, which nobody uses, and closes it.
///
/// # Errors
/// Those of the backend.
pub async fn bus(bus: &dyn PubSub) -> Result<(), BusError> {
    envelope(bus).await?;
    order(bus).await?;
    groups(bus).await?;
    settlement(bus).await?;
    concurrency(bus).await?;
    unsubscribing(bus).await?;
    reach(bus).await?;
    history(bus).await?;
    closing(bus).await
}

fn numbered(index: u64) -> NewEvent {
    NewEvent { index: Some(index), ..NewEvent::new("e", "r", json!({"n": index})) }
}

fn of_group(group: &str) -> SubscribeOptions {
    SubscribeOptions::builder().group(group).build()
}

async fn received(subscription: &mut Subscription) -> Option<Received> {
    tokio::time::timeout(PATIENCE, subscription.next()).await.expect("PSL-010: what was published arrives")
}

async fn delivery(subscription: &mut Subscription) -> Delivery {
    match received(subscription).await {
        Some(Received::Event(delivery)) => delivery,
        other => panic!("PSL-014: an event arrives, not {other:?}"),
    }
}

/// Takes one event, acknowledges it, and tells its number.
async fn number(subscription: &mut Subscription) -> Option<u64> {
    let delivery = delivery(subscription).await;
    let index = delivery.event.index;
    delivery.ack().await.expect("PSL-015: a delivery is acknowledged");
    index
}

fn is_silent(subscription: &mut Subscription) -> bool {
    subscription.next().now_or_never().is_none()
}

async fn flushed(bus: &dyn PubSub) {
    tokio::time::timeout(PATIENCE, bus.flush()).await.expect("PSL-041: a flush ends once everything is settled");
}

async fn envelope(bus: &dyn PubSub) -> Result<(), BusError> {
    let mut all = bus.subscribe("envelope", SubscribeOptions::default()).await?;
    let first = bus.publish("envelope", numbered(7), Reach::Everywhere).await?;
    let second = bus.publish("envelope", numbered(7), Reach::Everywhere).await?;
    assert_ne!(first.id, second.id, "PSL-001: each publish has an id of its own");
    assert_eq!((first.index, first.delivery_attempt), (Some(7), 1), "PSL-001: the index passes through");
    for sent in [first, second] {
        let delivery = delivery(&mut all).await;
        assert_eq!(*delivery.event, sent, "PSL-001: what arrives is what went out");
        delivery.ack().await?;
    }
    let stamped = numbered(8).stamp(Timestamp::from_millis(1));
    bus.forward("envelope", stamped.clone(), Reach::Everywhere).await?;
    let delivery = delivery(&mut all).await;
    assert_eq!(*delivery.event, stamped, "PSL-003: an inner layer keeps id and time");
    delivery.ack().await
}

async fn order(bus: &dyn PubSub) -> Result<(), BusError> {
    let mut one = bus.subscribe("order", SubscribeOptions::default()).await?;
    let latest = SubscribeOptions::builder().start_from(StartFrom::Latest).build();
    let mut other = bus.subscribe("order", latest).await?;
    assert_ne!(one.id(), other.id(), "PSL-014: each subscription has a handle of its own");
    for n in 0..100 {
        bus.publish("order", numbered(n), Reach::Everywhere).await?;
        bus.publish("another", numbered(1_000), Reach::Everywhere).await?;
    }
    for n in 0..100 {
        assert_eq!(number(&mut one).await, Some(n), "PSL-014: events arrive in order, those of this topic only");
        assert_eq!(number(&mut other).await, Some(n), "PSL-011: everybody without a group receives each event");
    }
    flushed(bus).await;
    assert!(is_silent(&mut one) && is_silent(&mut other), "PSL-015: what is acknowledged does not come again");
    Ok(())
}

async fn groups(bus: &dyn PubSub) -> Result<(), BusError> {
    let mut first = bus.subscribe("groups", of_group("pair")).await?;
    let mut second = bus.subscribe("groups", of_group("pair")).await?;
    let mut single = bus.subscribe("groups", of_group("single")).await?;
    let mut all = bus.subscribe("groups", SubscribeOptions::default()).await?;
    for n in 0..20 {
        bus.publish("groups", numbered(n), Reach::Everywhere).await?;
    }
    let mut pair = Vec::new();
    for n in 0..20 {
        assert_eq!(number(&mut single).await, Some(n), "PSL-011: each group receives each event");
        assert_eq!(number(&mut all).await, Some(n), "PSL-011: so does who has no group");
        let mut either = stream::select(&mut first, &mut second);
        let Ok(Some(Received::Event(delivery))) = tokio::time::timeout(PATIENCE, either.next()).await else {
            panic!("PSL-011: one member receives each event")
        };
        pair.extend(delivery.event.index);
        delivery.ack().await?;
    }
    pair.sort_unstable();
    assert_eq!(pair, (0..20).collect::<Vec<_>>(), "PSL-011: and only one");
    flushed(bus).await;
    assert!(is_silent(&mut first) && is_silent(&mut second), "PSL-011: there is nothing left");
    Ok(())
}

async fn settlement(bus: &dyn PubSub) -> Result<(), BusError> {
    let mut member = bus.subscribe("settlement", of_group("g")).await?;
    let sent = bus.publish("settlement", numbered(0), Reach::Everywhere).await?;
    delivery(&mut member).await.nack().await?;
    let second = delivery(&mut member).await;
    assert_eq!(*second.event, sent.redelivered(), "PSL-015: what is given back comes again, as the next attempt");
    drop(second);
    let third = delivery(&mut member).await;
    assert_eq!(*third.event, sent.redelivered().redelivered(), "PSL-016: what is dropped counts as given back");
    third.ack().await?;
    bus.publish("settlement", numbered(1), Reach::Everywhere).await?;
    assert_eq!(number(&mut member).await, Some(1), "PSL-015: what is acknowledged does not come again");
    Ok(())
}

async fn concurrency(bus: &dyn PubSub) -> Result<(), BusError> {
    let mut one = bus.subscribe("concurrency", SubscribeOptions::default()).await?;
    let two = SubscribeOptions::builder().concurrency(NonZeroUsize::MIN.saturating_add(1)).build();
    let mut two = bus.subscribe("concurrency", two).await?;
    for n in 0..3 {
        bus.publish("concurrency", numbered(n), Reach::Everywhere).await?;
    }
    let first = delivery(&mut one).await;
    assert!(is_silent(&mut one), "PSL-014: by default the next event comes when the one before is settled");
    first.ack().await?;
    assert_eq!(number(&mut one).await, Some(1), "PSL-014: then it comes");
    let (first, second) = (delivery(&mut two).await, delivery(&mut two).await);
    assert!(is_silent(&mut two), "PSL-014: no more than asked for are out at once");
    second.ack().await?;
    assert_eq!(number(&mut two).await, Some(2), "PSL-014: they are settled in any order");
    first.ack().await?;
    assert_eq!(number(&mut one).await, Some(2), "PSL-014: subscriptions do not hold each other up");
    Ok(())
}

async fn unsubscribing(bus: &dyn PubSub) -> Result<(), BusError> {
    let mut leaves = bus.subscribe("unsubscribing", of_group("g")).await?;
    let before = bus.publish("unsubscribing", numbered(0), Reach::Everywhere).await?;
    let taken = delivery(&mut leaves).await;
    let mut stays = bus.subscribe("unsubscribing", of_group("g")).await?;
    bus.unsubscribe(leaves.id()).await;
    bus.unsubscribe(leaves.id()).await;
    bus.unsubscribe(SubscriptionId::random()).await;
    assert!(received(&mut leaves).await.is_none(), "PSL §1.2: after the return no delivery starts");
    assert_eq!(taken.event.id, before.id);
    taken.ack().await?;
    for n in 1..4 {
        bus.publish("unsubscribing", numbered(n), Reach::Everywhere).await?;
        assert_eq!(number(&mut stays).await, Some(n), "PSL-011: who stays receives everything");
    }
    Ok(())
}

async fn reach(bus: &dyn PubSub) -> Result<(), BusError> {
    for (topic, reach) in [("reach", Reach::ThisProcess), ("workflow.events.v2.run", Reach::Everywhere)] {
        let mut here = bus.subscribe(topic, SubscribeOptions::default()).await?;
        let mut member = bus.subscribe(topic, of_group("g")).await?;
        bus.publish(topic, numbered(0), reach).await?;
        assert_eq!(number(&mut here).await, Some(0), "PSL-017: local events reach subscribers here");
        assert_eq!(number(&mut member).await, Some(0), "PSL-017: groups too");
        assert_eq!(bus.history(topic, 0).await?, [], "PSL-017: local events are not retained");
    }
    Ok(())
}

async fn history(bus: &dyn PubSub) -> Result<(), BusError> {
    for offset in [0, 3] {
        bus.clear_topic("history").await;
        assert_eq!(bus.history("history", offset).await?, [], "PSL §1.2: a cleared topic has no history");
        let mut replayed = bus.subscribe_from("history", offset).await?;
        bus.publish("history", numbered(offset), Reach::Everywhere).await?;
        assert_eq!(number(&mut replayed).await, Some(offset), "PSL §1.2: it goes on live");
    }
    Ok(())
}

async fn closing(bus: &dyn PubSub) -> Result<(), BusError> {
    let ttl = Duration::from_secs(15);
    if let Some(leases) = bus.leases() {
        let granted = leases.acquire("k", "a", ttl).await.expect("PSL-112: leases answer");
        assert!(matches!(granted, Acquired::Held { .. }), "PSL-112: a free key is granted");
    }
    let mut open = bus.subscribe("closing", of_group("g")).await?;
    bus.publish("closing", numbered(0), Reach::Everywhere).await?;
    let taken = delivery(&mut open).await;
    bus.close().await;
    bus.close().await;
    flushed(bus).await;
    assert!(received(&mut open).await.is_none(), "PSL-041: subscriptions end");
    drop(taken);
    let refused = bus.publish("closing", numbered(1), Reach::Everywhere).await.expect_err("PSL-018: it is closed");
    assert!(matches!(refused, BusError::Closed) && refused.to_string().contains("closed"), "PSL-018: {refused}");
    let refused = bus.subscribe("closing", SubscribeOptions::default()).await;
    assert!(matches!(refused, Err(BusError::Closed)), "PSL-018: {refused:?}");
    if let Some(leases) = bus.leases() {
        for owner in ["a", "b"] {
            let answer = leases.acquire("l", owner, ttl).await.expect("PSL §1.2: leases answer after close");
            assert!(matches!(answer, Acquired::HeldBy { .. }), "PSL §1.2: nothing is granted after close");
            let renewed = leases.renew("k", owner, ttl).await.expect("PSL §1.2: leases answer after close");
            assert!(!renewed, "PSL §1.2: nor renewed");
        }
    }
    Ok(())
}
