//! The `Bugle` handle: agents, storage and threads of one runtime. Nothing is global.

mod agents;
mod approval;
mod builder;
mod outcome;
mod state;

pub use agents::AgentHandle;
pub use approval::*;
pub use builder::BugleBuilder;
pub use outcome::*;
pub use state::StateSent;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt, TryStreamExt};
use indexmap::IndexMap;
use parking_lot::Mutex;

use crate::{
    agent::Agent,
    error::Error,
    id::{RunId, ThreadKey},
    notification,
    provider::Providers,
    storage::SharedStorage,
    thread::{Hub, Letter},
    time::SharedClock,
};

/// How many unfinished threads one look at the store takes up.
const RECOVERY_BATCH: u32 = 1000;
/// How many threads are asked to take up what is theirs at once.
const RECOVERIES: usize = 16;
/// How long tasks have to stop when the runtime ends.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);

/// The runtime. Cheap to clone; ends with [`Bugle::shutdown`].
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// use std::sync::Arc;
/// use bugle::{Agent, Bugle, ThreadKey, memory::MemoryOptions, model::ScriptedModel};
/// let agent = Agent::builder("support").model(Arc::new(ScriptedModel::new())).memory(MemoryOptions::default()).build()?;
/// let bugle = Bugle::builder().agent(agent).build().await?;
/// let thread = ThreadKey::new("user_123", "thread_456");
/// let mut sent = bugle.agent("support")?.send_message(&thread, "Hello").await?;
/// assert!(sent.accepted().await?.run_id.is_some());
/// # Ok::<(), bugle::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
pub struct Bugle {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) agents: IndexMap<String, Agent>,
    pub(crate) storage: SharedStorage,
    pub(crate) clock: SharedClock,
    pub(crate) hub: Hub,
    pub(crate) lease_ttl: Duration,
    pub(crate) notifications: Arc<notification::State>,
    pub(crate) providers: Providers,
    /// How long a run that waits for a person keeps its thread (SIG-382).
    pub(crate) suspended_ttl: Duration,
    /// Makes state of one thread be accepted one after the other (STATE-081).
    pub(crate) lane_locks: state::LaneLocks,
    /// Models by name, for processors (PROC-041).
    pub(crate) model_router: Option<builder::ModelRouter>,
    draining: AtomicBool,
    /// Where the last look at the store for unfinished threads ended, if it did not see all.
    swept: Mutex<Option<ThreadKey>>,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("storage", &self.storage).finish_non_exhaustive()
    }
}

impl fmt::Debug for Bugle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bugle").field("storage", &self.inner.storage).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.notifications.close();
    }
}

impl Inner {
    pub(crate) fn agent_by_id(&self, id: &str) -> Option<Agent> {
        let found = self.agents.values().find(|agent| agent.id() == id);
        found.or_else(|| self.agents.get(id)).cloned()
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Acquire)
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
    pub fn agent(&self, id: &str) -> Result<AgentHandle, Error> {
        let agent = self.inner.agent_by_id(id).ok_or_else(|| Error::UnknownAgent(id.to_owned()))?;
        Ok(AgentHandle { bugle: self.clone(), agent })
    }

    /// All agents by the key they were registered under, in order.
    pub fn agents(&self) -> &IndexMap<String, Agent> {
        &self.inner.agents
    }

    /// The store.
    pub fn storage(&self) -> &SharedStorage {
        &self.inner.storage
    }

    /// Finds the thread of a live run of this process (SIG-060).
    pub fn thread_of_run(&self, run_id: &RunId) -> Option<ThreadKey> {
        self.inner.hub.thread_of_run(run_id)
    }

    /// The runs that occupy threads in this process (SIG-366).
    pub fn active_runs(&self) -> Vec<(RunId, ThreadKey)> {
        self.inner.hub.active_runs()
    }

    /// How many threads hold memory now: those with a run, input, a subscriber, or one of these a moment ago.
    pub fn live_threads(&self) -> usize {
        self.inner.hub.thread_count()
    }

    /// Stops taking new input; [`Error::Draining`] from now on. Runs go on to their next step boundary and are left to
    /// the next owner there (CLI-072).
    pub fn drain(&self) {
        self.inner.draining.store(true, Ordering::Release);
    }

    /// Whether [`Self::drain`] was called.
    pub fn is_draining(&self) -> bool {
        self.inner.is_draining()
    }

    /// Drains, waits at most `grace` for runs, those without a thread too, to reach a boundary or their end, then stops
    /// all tasks, and waits for that at most 5 s more. What is left is in
    /// the journal and in run records: the next process on the same store goes on with it. Streams end without a last
    /// chunk.
    pub async fn shutdown(&self, grace: Duration) {
        self.drain();
        let idle = async {
            while self.inner.hub.has_runs() {
                // Runs end on their own time; this only looks whether they have.
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let _ = tokio::time::timeout(grace, idle).await;
        self.inner.hub.stop.cancel();
        self.inner.hub.tasks.close();
        let left = &self.inner.hub.tasks;
        if tokio::time::timeout(STOP_TIME_MAX, left.wait()).await.is_err() {
            tracing::warn!(tasks = left.len(), "not everything has stopped; the next process goes on with it");
        }
    }

    /// Takes up what no living process works on (SIG-502, ruling 26). Called at start and every lease time.
    ///
    /// # Errors
    /// [`Error::Storage`] if the store cannot be read.
    pub(crate) async fn recover(&self) -> Result<usize, Error> {
        let owner = self.inner.storage.owner();
        let after = self.inner.swept.lock().clone();
        let mut threads = self.inner.storage.unfinished(&owner, after.as_ref(), RECOVERY_BATCH).await?;
        // The next look goes on behind these, so that none waits for ever.
        let last = threads.last().filter(|_| threads.len() >= RECOVERY_BATCH as usize).cloned();
        *self.inner.swept.lock() = last;
        // An actor that owns its thread knows of all that its journal holds.
        threads.retain(|thread| self.inner.hub.existing(thread).is_none_or(|thread| !thread.is_owned()));
        let taken = threads.len();
        futures::stream::iter(threads)
            .map(|thread| {
                let inner = self.inner.clone();
                async move { inner.hub.ask(&inner, &thread, |reply| Letter::Recover { reply }).await }
            })
            .buffer_unordered(RECOVERIES)
            .try_for_each(async |()| Ok(()))
            .await?;
        Ok(taken)
    }
}
