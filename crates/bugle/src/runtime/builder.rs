//! The runtime's builder.

use std::{sync::Arc, time::Duration};

use indexmap::IndexMap;

use super::{Bugle, Inner};
use crate::{
    agent::Agent,
    error::Error,
    storage::{MemoryStorage, SharedStorage},
    thread::Hub,
    time::{SharedClock, SystemClock},
};

/// Builds a [`Bugle`].
#[derive(Debug, Default)]
#[must_use]
pub struct BugleBuilder {
    agents: IndexMap<String, Agent>,
    storage: Option<SharedStorage>,
    clock: Option<SharedClock>,
    lease_ttl: Option<Duration>,
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

    /// The runtime. Takes up what an earlier process left unfinished, here and every lease time (SIG-502).
    ///
    /// # Errors
    /// [`Error::Configuration`] if two agents have one id, [`Error::Storage`] if the store cannot be read.
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
        let inner = Arc::new(Inner {
            agents: self.agents,
            storage,
            clock: self.clock.unwrap_or_else(|| Arc::new(SystemClock)),
            hub: Hub::default(),
            lease_ttl: self.lease_ttl.unwrap_or(Duration::from_secs(15)).max(Duration::from_millis(30)),
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
