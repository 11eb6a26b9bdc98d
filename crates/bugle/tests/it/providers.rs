//! Signal providers of several processes on one store (PROV §11, PROC §12.14).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bugle::{
    Bugle, ThreadKey,
    model::ScriptedModel,
    notification::{DeliveryAction, DeliveryPolicy},
    provider::{Polled, ProviderContext, ProviderError, ProviderEvent, SignalProvider},
    storage::{MemoryStorage, NotificationQuery, ProviderSubscription, SharedStorage},
    time::{SharedClock, TimerClock, Timestamp},
};

use crate::support;

/// Finds one event per poll, until its process hangs.
#[derive(Debug, Default)]
struct Feed {
    polls: AtomicUsize,
    hangs: AtomicBool,
}

#[async_trait]
impl SignalProvider for Feed {
    fn id(&self) -> &'static str {
        "feed"
    }
    fn poll_interval(&self) -> Option<Duration> {
        Some(Duration::from_secs(10))
    }
    async fn poll(&self, held: &[ProviderSubscription], _: &ProviderContext) -> Result<Vec<Polled>, ProviderError> {
        if self.hangs.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.polls.fetch_add(1, Ordering::SeqCst);
        let polled = held.iter().map(|one| {
            let cursor = one.cursor.as_deref().and_then(|cursor| cursor.parse().ok()).unwrap_or(0) + 1;
            let event = ProviderEvent {
                external_resource_ids: Vec::new(),
                source: "feed".into(),
                kind: "item".into(),
                summary: format!("item {cursor}"),
                priority: "low".into(),
                payload: None,
                delivery_id: format!("item-{cursor}"),
                repetition_key: None,
                coalesce_key: None,
                attributes: None,
            };
            Polled { subscription_id: one.id.clone(), events: vec![event], cursor: Some(cursor.to_string()) }
        });
        Ok(polled.collect())
    }
}

async fn process(storage: &SharedStorage, clock: &SharedClock, feed: &Arc<Feed>) -> Bugle {
    let policy = DeliveryPolicy::new().priority("low", DeliveryAction::Persist);
    let agent = support::builder("helper", &ScriptedModel::recording()).notifications(policy).provider(feed.clone());
    let builder = Bugle::builder().agent(agent.build().unwrap()).shared_storage(storage.clone());
    builder.clock(clock.clone()).build().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn prov_014_of_two_processes_one_polls_and_the_other_takes_over_when_it_hangs() {
    let clock: SharedClock = Arc::new(TimerClock::starting_at(Timestamp::from_millis(1_767_225_600_000)));
    let storage: SharedStorage = Arc::new(MemoryStorage::with_clock(clock.clone()));
    let feeds = [Arc::new(Feed::default()), Arc::new(Feed::default())];
    let first = process(&storage, &clock, &feeds[0]).await;
    let second = process(&storage, &clock, &feeds[1]).await;
    let thread = ThreadKey::new("ann", "t1");
    first.subscribe_provider("helper", "feed", &thread, "x", None, None).await.unwrap();
    let polls = || feeds.each_ref().map(|feed| feed.polls.load(Ordering::SeqCst));
    tokio::time::sleep(Duration::from_secs(105)).await;
    let so_far: usize = polls().iter().sum();
    assert!((8..=11).contains(&so_far), "one poll an interval, whoever makes it: {:?}", polls());
    let told = async || {
        let records = second.notifications(&NotificationQuery::all()).await.unwrap().records;
        let mut told: Vec<usize> = records.iter().map(|record| record.summary[5..].parse().unwrap()).collect();
        told.sort_unstable();
        told
    };
    assert_eq!(told().await, (1..=so_far).collect::<Vec<_>>(), "each event once, none left out");
    // Whoever polls hangs; once its claim has run out the other one goes on where it was.
    feeds[0].hangs.store(true, Ordering::SeqCst);
    let before = polls();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let after = polls();
    assert_eq!(after[0], before[0]);
    assert!(after[1] >= before[1] + 30, "{before:?}, {after:?}");
    assert_eq!(told().await, (1..=after.iter().sum()).collect::<Vec<_>>());
    first.shutdown(Duration::ZERO).await;
    second.shutdown(Duration::ZERO).await;
}
