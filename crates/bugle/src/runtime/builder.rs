//! The runtime's builder.

use std::{sync::Arc, time::Duration};

use indexmap::IndexMap;

use super::{Bugle, Inner};
use crate::{
    agent::Agent,
    error::Error,
    notification::{self, NotificationOptions},
    provider::{Providers, SharedProvider},
    pubsub::SharedPubSub,
    storage::{MemoryStorage, SharedStorage},
    thread::Hub,
    time::{SharedClock, SystemClock},
};

/// A run that waits for a person keeps its thread this long (SIG-382).
const SUSPENDED_TTL: Duration = Duration::from_secs(30 * 60);

/// Builds a [`Bugle`].
#[derive(Debug, Default)]
#[must_use]
pub struct BugleBuilder {
    agents: IndexMap<String, Agent>,
    storage: Option<SharedStorage>,
    clock: Option<SharedClock>,
    lease_ttl: Option<Duration>,
    notifications: NotificationOptions,
    notification_bus: Option<SharedPubSub>,
    providers: Vec<(String, SharedProvider)>,
    suspended_ttl: Option<Duration>,
}

impl BugleBuilder {
    /// An agent, under its id.
    pub fn agent(self, agent: Agent) -> Self {
        let key = agent.id().to_owned();
        self.agent_as(key, agent)
    }

    /// An agent, under a key of its own (HTTP-038).
    pub fn agent_as(mut self, key: impl Into<String>, agent: Agent) -> Self {
        self.agents.insert(key.into(), agent);
        self
    }

    /// The store. Without one, everything is kept in memory and one warning says so (MEM-004).
    pub fn storage(self, storage: impl crate::storage::Storage + 'static) -> Self {
        self.shared_storage(Arc::new(storage))
    }

    /// The store, shared with others.
    pub fn shared_storage(mut self, storage: SharedStorage) -> Self {
        self.storage = Some(storage);
        self
    }

    /// The clock; the system's by default.
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// How long a thread's lease holds without renewal; renewed every third of it. Default: 15 s (SIG-401).
    pub fn lease_ttl(mut self, ttl: Duration) -> Self {
        self.lease_ttl = Some(ttl);
        self
    }

    /// How notifications are delivered (NOTIF-070).
    pub fn notifications(mut self, options: NotificationOptions) -> Self {
        self.notifications = options;
        self
    }

    /// A bus that spans the processes of one store: on it their dispatchers tell each other that a notification has become
    /// due, so that one whose sender dies is delivered by another (NOTIF-074). Without it that happens at the next start.
    pub fn notification_bus(mut self, bus: SharedPubSub) -> Self {
        self.notification_bus = Some(bus);
        self
    }

    /// A provider that watches the outside for the agent with this id; see [`AgentBuilder::provider`] for one that brings
    /// tools along.
    ///
    /// [`AgentBuilder::provider`]: crate::agent::AgentBuilder::provider
    pub fn provider(mut self, agent_id: impl Into<String>, provider: SharedProvider) -> Self {
        self.providers.push((agent_id.into(), provider));
        self
    }

    /// How long a run that waits for a person keeps its thread; afterwards what waits behind it is answered by a run of
    /// its own, and the suspended run can still be resumed (SIG-382). Default: 30 minutes.
    pub fn suspended_ttl(mut self, ttl: Duration) -> Self {
        self.suspended_ttl = Some(ttl);
        self
    }

    /// The runtime. Takes up what an earlier process left unfinished, here and every lease time (SIG-502).
    ///
    /// # Errors
    /// [`Error::Configuration`] if two agents have one id, or for a wrong cron expression (NOTIF-070); [`Error::Storage`] if the store cannot be read.
    pub async fn build(self) -> Result<Bugle, Error> {
        let mut ids = std::collections::HashSet::new();
        for agent in self.agents.values() {
            if !ids.insert(agent.id()) {
                return Err(Error::configuration(format!("two agents have the id {}; rename one", agent.id())));
            }
        }
        let storage = self.storage.unwrap_or_else(|| {
            tracing::warn!("no storage is configured: nothing survives a restart");
            Arc::new(MemoryStorage::new())
        });
        if let Some((unknown, provider)) = self.providers.iter().find(|(agent, _)| !ids.contains(agent.as_str())) {
            let message = format!("provider {} is for agent {unknown}, which is not there", provider.id());
            return Err(Error::configuration(message));
        }
        let notifications = self.notifications.checked()?;
        let inner = Arc::new(Inner {
            providers: Providers::of(self.agents.values(), self.providers),
            agents: self.agents,
            storage,
            clock: self.clock.unwrap_or_else(|| Arc::new(SystemClock)),
            hub: Hub::default(),
            suspended_ttl: self.suspended_ttl.unwrap_or(SUSPENDED_TTL),
            lease_ttl: self.lease_ttl.unwrap_or(Duration::from_secs(15)).max(Duration::from_millis(30)),
            notifications: notification::State::new(notifications),
            lane_locks: Default::default(),
            draining: std::sync::atomic::AtomicBool::new(false),
            swept: parking_lot::Mutex::default(),
        });
        let bugle = Bugle { inner };
        let recovered = bugle.recover().await?;
        if recovered > 0 {
            tracing::info!(threads = recovered, "went on with what an earlier process left");
        }
        if bugle.inner.storage.is_durable() {
            sweep(&bugle);
        }
        Providers::start(&bugle.inner);
        if let Some(bus) = self.notification_bus {
            let inner = &bugle.inner;
            let talk = notification::wake_others(bus, inner.notifications.clone(), inner.hub.stop.clone());
            inner.hub.tasks.spawn(talk);
        }
        if bugle.inner.storage.notifications().is_some() && bugle.inner.notifications.is_dispatching() {
            let inner = &bugle.inner;
            let dispatcher =
                notification::dispatcher(Arc::downgrade(inner), inner.notifications.clone(), inner.hub.stop.clone());
            inner.hub.tasks.spawn(dispatcher);
        }
        Ok(bugle)
    }
}

/// Looks every lease time for what a process that died since has left. Ends with the runtime.
fn sweep(bugle: &Bugle) {
    let weak = Arc::downgrade(&bugle.inner);
    let stop = bugle.inner.hub.stop.clone();
    let every = bugle.inner.lease_ttl;
    bugle.inner.hub.tasks.spawn(async move {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(every) => {}
            }
            let Some(inner) = weak.upgrade() else { return };
            let bugle = Bugle { inner };
            if bugle.is_draining() {
                return;
            }
            if let Err(error) = bugle.recover().await {
                tracing::error!(%error, "what other processes left cannot be read");
            }
        }
    });
}
