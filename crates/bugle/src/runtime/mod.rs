//! The `Bugle` handle: agents, storage and threads of one runtime. Nothing is global.

mod agents;
mod builder;
mod outcome;

pub use agents::AgentHandle;
pub use builder::BugleBuilder;
pub use outcome::*;

use std::sync::Arc;

use crate::{agent::Agent, error::Error, storage::SharedStorage};

/// The runtime. Cheap to clone; ends with [`Bugle::shutdown`] or its last clone.
#[derive(Clone)]
pub struct Bugle {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) agents: indexmap::IndexMap<String, Agent>,
    pub(crate) storage: SharedStorage,
}

impl std::fmt::Debug for Bugle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bugle").finish_non_exhaustive()
    }
}

impl Bugle {
    /// Begins a runtime.
    pub fn builder() -> BugleBuilder {
        BugleBuilder::default()
    }

    /// The agent with this id, else the one registered under this key (HTTP-038).
    ///
    /// # Errors
    /// [`Error::UnknownAgent`].
    pub fn agent(&self, _id: &str) -> Result<AgentHandle, Error> {
        unimplemented!()
    }

    /// All agents by the key they were registered under, in order.
    pub fn agents(&self) -> &indexmap::IndexMap<String, Agent> {
        &self.inner.agents
    }

    /// The store.
    pub fn storage(&self) -> &SharedStorage {
        &self.inner.storage
    }

    /// Finds the thread of a live run of this process (SIG-060).
    pub fn thread_of_run(&self, _run_id: &crate::id::RunId) -> Option<crate::id::ThreadKey> {
        unimplemented!()
    }

    /// Stops taking new input; [`Error::Draining`] from now on (CLI-072).
    pub fn drain(&self) {
        unimplemented!()
    }

    /// Whether [`Self::drain`] was called.
    pub fn is_draining(&self) -> bool {
        unimplemented!()
    }

    /// Drains, lets runs reach a step boundary within `grace`, leaves the rest to the journal, and ends all tasks.
    pub async fn shutdown(&self, _grace: std::time::Duration) {
        unimplemented!()
    }
}
