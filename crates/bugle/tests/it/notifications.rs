//! Notifications through the whole runtime, on virtual time: policy, dispatch, the inbox tool, crashes (NOTIF §12).

mod crashes;
mod dispatch;
mod elsewhere;
mod ingress;
mod taken_back;

use std::{sync::Arc, time::Duration};

use bugle::{
    Agent, Bugle, ThreadKey,
    agent::AgentBuilder,
    model::ScriptedModel,
    notification::{NewNotification, NotificationOptions, notification_inbox_tool},
    storage::{MemoryStorage, NotificationQuery, NotificationRecord, SharedStorage},
    time::{SharedClock, TimerClock, Timestamp},
};

use crate::support::{self, World};

/// A clock that follows tokio's, for stores and runtimes alike.
pub(crate) fn clock() -> SharedClock {
    Arc::new(TimerClock::starting_at(Timestamp::from_millis(1_767_225_600_000)))
}

pub(crate) async fn world(model: ScriptedModel) -> World {
    world_with(model, NotificationOptions::default(), |agent| agent).await
}

pub(crate) async fn world_with(
    model: ScriptedModel,
    options: NotificationOptions,
    build: impl FnOnce(AgentBuilder) -> AgentBuilder,
) -> World {
    let clock = clock();
    let storage: SharedStorage = Arc::new(MemoryStorage::with_clock(clock.clone()));
    let agent = build(support::builder("plain", &model).tool(notification_inbox_tool())).build().unwrap();
    let other = support::agent("other", &model);
    let bugle = runtime(&storage, &clock, options, [agent, other]).await;
    World { agent: bugle.agent("plain").unwrap(), bugle, model, storage, thread: ThreadKey::new("user", "thread") }
}

pub(crate) async fn runtime(
    storage: &SharedStorage,
    clock: &SharedClock,
    options: NotificationOptions,
    agents: impl IntoIterator<Item = Agent>,
) -> Bugle {
    let mut builder = Bugle::builder().shared_storage(storage.clone()).clock(clock.clone()).notifications(options);
    for agent in agents {
        builder = builder.agent(agent);
    }
    builder.build().await.unwrap()
}

/// An event for the world's thread.
pub(crate) fn event(priority: &str, summary: &str) -> NewNotification {
    NewNotification::new(ThreadKey::new("user", "thread"), "github", "ci-status", summary).priority(priority)
}

pub(crate) async fn records(storage: &SharedStorage) -> Vec<NotificationRecord> {
    let mut records = storage.notifications().unwrap().list(&NotificationQuery::all()).await.unwrap().records;
    records.sort_by(|a, b| (a.created_at, &a.summary).cmp(&(b.created_at, &b.summary)));
    records
}

pub(crate) async fn record(storage: &SharedStorage, id: &str) -> NotificationRecord {
    storage.notifications().unwrap().get("thread", id).await.unwrap().unwrap()
}

/// Time passes; whatever is due by then happens.
pub(crate) async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}
