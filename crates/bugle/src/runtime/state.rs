//! State of a lane from outside of a run (STATE §5).

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
    time::Duration,
};

use parking_lot::Mutex;

use super::{Action, AgentHandle, Outcome, Target};
use crate::{
    error::Error,
    id::MessageId,
    signal::{
        Decision, LaneChange, Signal, SignalInput, StateError, StateInput, Tracking, check_room, decide, tracked_lanes,
        validate_attributes,
    },
    storage::{InputMode, rules},
};

/// How often a lane is tried again when another process was faster (STATE-081).
const TRIES: u32 = 6;
/// Tracking that its writer has not confirmed is believed for so long: it may still be routing.
const ROUTING_MAX: Duration = Duration::from_secs(10);
/// Locks that nobody holds are swept when there are more than these.
const SWEEP_AT: usize = 256;

/// One lock per thread on which state is being accepted.
#[derive(Debug, Default)]
pub(crate) struct LaneLocks(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl LaneLocks {
    fn of(&self, thread: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.0.lock();
        if locks.len() > SWEEP_AT {
            locks.retain(|_, lock| lock.strong_count() > 0);
        }
        if let Some(lock) = locks.get(thread).and_then(Weak::upgrade) {
            return lock;
        }
        let lock = Arc::new(tokio::sync::Mutex::new(()));
        locks.insert(thread.to_owned(), Arc::downgrade(&lock));
        lock
    }
}

/// What became of a state (STATE-032, STATE-043).
#[derive(Debug)]
pub enum StateSent {
    /// The thread has it already: nothing was stored, shown or woken.
    Unchanged,
    /// It was routed like any signal, and is the lane's state now unless it was dropped.
    Sent {
        /// The signal.
        signal: Signal,
        /// What became of it.
        outcome: Outcome,
        /// Resolves when the row of a persisted state is written; at once for other outcomes.
        persisted: StatePersisted,
    },
}

/// Waits for the row of a persisted state.
#[derive(Debug)]
pub struct StatePersisted(super::Sent);

impl StatePersisted {
    /// Waits until the row is written.
    ///
    /// # Errors
    /// The store's.
    pub async fn wait(&mut self) -> Result<(), Error> {
        self.0.persisted().await
    }
}

impl StateSent {
    /// Whether it was skipped.
    pub fn is_unchanged(&self) -> bool {
        matches!(self, Self::Unchanged)
    }

    /// What became of it, if it was not skipped.
    pub fn outcome(&self) -> Option<&Outcome> {
        match self {
            Self::Unchanged => None,
            Self::Sent { outcome, .. } => Some(outcome),
        }
    }
}

impl AgentHandle {
    /// Tells the state of a lane. What the thread has already is skipped; anything else goes the way of
    /// [`Self::send_signal`]: joins the running loop, or wakes an idle agent unless the target says otherwise.
    ///
    /// Resolves once it is decided, and durable, what becomes of it. The lane keeps the state only if it was really
    /// taken: after `discard` and `blocked` it is as before (STATE-034). Cancelling it later does not undo it (STATE-035).
    ///
    /// ```
    /// use bugle::{AgentHandle, Error, ThreadKey, signal::StateInput};
    /// async fn tell(agent: &AgentHandle, thread: &ThreadKey) -> Result<(), Error> {
    ///     let state = StateInput::snapshot("editor", "main.rs:12", "Open file: main.rs, line 12");
    ///     let sent = agent.send_state_signal(thread, state.clone()).await?;
    ///     assert!(!sent.is_unchanged());
    ///     assert!(agent.send_state_signal(thread, state).await?.is_unchanged());
    ///     Ok(())
    /// }
    /// ```
    ///
    /// Once called it goes on to its end, even if its future is dropped: a lane is never left half told.
    ///
    /// # Errors
    /// [`Error::State`] for what STATE-003, STATE-004, STATE-040 … STATE-042, STATE-081 and STATE-082 refuse, and for more
    /// than 256 lanes on a thread; else as [`Self::send_signal`] and [`super::Sent::accepted`].
    pub async fn send_state_signal(&self, target: impl Into<Target>, state: StateInput) -> Result<StateSent, Error> {
        let (agent, target) = (self.clone(), target.into());
        let told = tokio::spawn(async move { agent.tell_state(target, state).await });
        told.await.map_err(|_| Error::Internal("telling a state broke off"))?
    }

    async fn tell_state(&self, target: Target, state: StateInput) -> Result<StateSent, Error> {
        let inner = &self.bugle.inner;
        let lane = state.lane(None)?;
        state.check()?;
        for branch in [&target.if_active.attributes, &target.if_idle.attributes].into_iter().flatten() {
            validate_attributes(branch)?;
        }
        let key = target.thread.clone().filter(|thread| thread.resource_id.is_some());
        let key = key.ok_or_else(|| {
            StateError::new("state_target_required", "resourceId and threadId are required to send state")
        })?;
        if self.agent.memory().is_none() {
            let message = format!("agent {} has no memory, so it has no lanes; give it memory", self.agent.id());
            return Err(StateError::new("state_memory_required", message).into());
        }
        let lock = inner.lane_locks.of(&key.thread_id);
        let _turn = lock.lock().await;
        let mut tries = 0;
        let (reserved, previous, signal) = loop {
            let thread = inner.storage.get_thread(&key.thread_id).await?.ok_or_else(|| {
                let message = format!("thread {} does not exist; create it or send it a message first", key.thread_id);
                StateError::new("state_thread_not_found", message)
            })?;
            if rules::check_owner(&thread, key.resource_id.as_deref()).is_err() {
                let message = format!("thread {} belongs to another resource", key.thread_id);
                return Err(StateError::new("thread_resource_mismatch", message).into());
            }
            let tracked = tracked_lanes(&thread);
            let count = tracked.len();
            let previous = tracked.into_iter().find(|(known, _)| *known == lane).map(|(_, tracking)| tracking);
            if previous.is_none() {
                check_room(count)?;
            }
            let now = inner.clock.now();
            let version = match decide(&state, previous.as_ref(), None)? {
                Decision::Accept { version } => version,
                Decision::Skip => match &previous {
                    Some(tracking) if self.was_lost(tracking, &key).await? => tracking.version.max(1),
                    _ => return Ok(StateSent::Unchanged),
                },
            };
            let signal = state.signal(&lane, &key.thread_id, version, MessageId::fresh(), now)?;
            let mut tracking = Tracking::after(previous.as_ref(), (state.key(), state.mode, version), &signal.id, now);
            tracking.pending = true;
            let change =
                LaneChange { lane: lane.clone(), expected: previous.clone(), tracking: Some(tracking.clone()) };
            if inner.storage.track_lanes(&key.thread_id, vec![change]).await? {
                break (tracking, previous, signal);
            }
            tries += 1;
            if tries == TRIES {
                let message = format!("lane {lane} was changed by others {TRIES} times in a row; send it again");
                return Err(StateError::new("state_conflict", message).into());
            }
            // Spread out: a fresh id's last byte is random.
            let jitter = uuid::Uuid::new_v4().as_bytes()[15];
            tokio::time::sleep(Duration::from_millis(u64::from(jitter % 16) * u64::from(tries))).await;
        };
        let routed = async {
            let mut sent = self.hand_over(target, SignalInput::from(signal), InputMode::Steer).await?;
            let outcome = sent.accepted().await?;
            Ok::<_, Error>((sent, outcome))
        };
        let routed = routed.await;
        let taken = routed.as_ref().is_ok_and(|(_, outcome)| match outcome.action {
            Action::Wake | Action::Deliver | Action::Persist => true,
            Action::Discard | Action::Blocked => false,
        });
        let after = if taken { Some(Tracking { pending: false, ..reserved.clone() }) } else { previous };
        let change = LaneChange { lane: lane.clone(), expected: Some(reserved), tracking: after };
        match inner.storage.track_lanes(&key.thread_id, vec![change]).await {
            // A run has told the lane something newer meanwhile: that stands.
            Ok(_) => {}
            Err(error) if taken => {
                tracing::warn!(%error, lane, "a state was sent, but its lane could not be confirmed");
            }
            Err(error) => tracing::warn!(%error, lane, "a state was not taken, and its lane could not be put back"),
        }
        let (sent, outcome) = routed?;
        Ok(StateSent::Sent { signal: outcome.signal.clone(), outcome, persisted: StatePersisted(sent) })
    }

    /// Whether tracking names a state that nobody will ever see: its process died between reserving and routing.
    async fn was_lost(&self, tracking: &Tracking, key: &crate::id::ThreadKey) -> Result<bool, Error> {
        let inner = &self.bugle.inner;
        let Some(id) = tracking.last_signal_id.as_ref().filter(|_| tracking.pending) else { return Ok(false) };
        if inner.clock.now() < tracking.updated_at.plus(ROUTING_MAX) {
            return Ok(false);
        }
        if !inner.storage.get_messages(std::slice::from_ref(id)).await?.is_empty() {
            return Ok(false);
        }
        Ok(!inner.storage.inbox(key).await?.iter().any(|entry| entry.signal.id == *id))
    }
}
