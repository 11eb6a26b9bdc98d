//! The runtime's builder.

use std::sync::Arc;

use crate::{agent::Agent, error::Error, runtime::Bugle, storage::SharedStorage, time::SharedClock};

/// Builds a [`Bugle`].
#[derive(Debug, Default)]
#[must_use]
pub struct BugleBuilder {
    agents: indexmap::IndexMap<String, Agent>,
    storage: Option<SharedStorage>,
    clock: Option<SharedClock>,
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
    pub fn storage(mut self, storage: impl crate::storage::Storage + 'static) -> Self {
        self.storage = Some(Arc::new(storage));
        self
    }

    /// The clock; the system's by default.
    pub fn clock(mut self, clock: SharedClock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// The runtime. Takes up what an earlier process left unfinished (SIG-502).
    ///
    /// # Errors
    /// [`Error::Storage`] if the store cannot be read.
    pub async fn build(self) -> Result<Bugle, Error> {
        unimplemented!()
    }
}
