//! State lanes in a run: read once a step, computed, written (STATE §5).

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;
use crate::{
    processor::{Desk, Hook, Stop},
    signal::{LaneView, StateInput, Tracking, lane_signals, tracked_lanes, wanted_ids},
};

/// How often tracking is written again when others were faster (STATE-081).
const LANE_TRIES: u32 = 5;
/// A lane whose processor has failed so often in a row is reported to clients (STATE-058).
const LANE_FAILURES: u32 = 3;

impl Driver {
    /// Reads what the thread keeps of its lanes, once for all that the step does with them (STATE-060); before the first
    /// request of a run it also puts back those that fell out of view. `needed`: a processor has a lane.
    pub(super) async fn read_lanes(&mut self, needed: bool) -> Result<(), ErrorInfo> {
        let back = !std::mem::replace(&mut self.hooks.put_back, true);
        let reads = needed || self.hooks.runner.has(Hook::InputStep);
        let Some(lanes) = &mut self.hooks.lanes else {
            if needed && self.prepared.agent.memory().is_none() {
                let message =
                    format!("agent {} has a state lane and no memory; give it memory", self.prepared.agent.id());
                return Err(ErrorInfo::new("StateMemoryRequired", message));
            }
            return Ok(());
        };
        if !reads && !back {
            return Ok(());
        }
        let thread = match self.inner.storage.get_thread(&lanes.thread().thread_id).await {
            Ok(thread) => thread,
            Err(error) if needed => return Err(storage_error(&error)),
            Err(error) => {
                tracing::warn!(%error, "the thread's lanes could not be read");
                None
            }
        };
        let tracked = thread.as_ref().map(tracked_lanes).unwrap_or_default();
        if !back {
            lanes.begin(tracked);
            return Ok(());
        }
        if reads {
            lanes.begin(tracked.clone());
        }
        self.put_lanes_back(tracked).await;
        Ok(())
    }

    /// Asks one processor for its lane's state. Gives what stops the run, and whether something was placed.
    pub(super) async fn compute_lane(&mut self, at: usize, lane: &str) -> Result<(Option<RunEvent>, bool), Flow> {
        let Some(lanes) = &self.hooks.lanes else {
            tracing::debug!(lane, "no thread, so no lane");
            return Ok((None, false));
        };
        let thread = lanes.thread().clone();
        let tracking = lanes.tracking(lane).cloned();
        let window = self.machine.transcript().messages();
        let wanted = wanted_ids(&lane_signals(window, lane, &thread.thread_id), tracking.as_ref());
        let loaded = if wanted.is_empty() {
            Vec::new()
        } else {
            match self.inner.storage.get_messages(&wanted).await {
                Ok(loaded) => loaded,
                Err(error) => {
                    tracing::warn!(lane, %error, "a lane's history could not be read");
                    Vec::new()
                }
            }
        };
        let stale = lanes.is_stale(lane);
        let view = LaneView::resolve(lane, &thread, self.machine.transcript().messages(), &loaded, tracking, stale);
        let mut desk = self.at_desk();
        let outcome = desk.watch.wait(desk.runner.state(&mut desk.desk, at, &view)).await;
        let mut touched = desk.desk.changed;
        let answer = match outcome {
            Ok(Ok(None)) => Ok(()),
            Ok(Ok(Some(state))) => {
                if cfg!(debug_assertions) && state.id.as_deref().is_some_and(|id| id != lane) {
                    let message = format!("the processor of lane {lane} gave state for lane {:?}", state.id);
                    Err(ErrorInfo::new("ProcessorError", message))
                } else {
                    let (sent, placed) = self.send_state(lane, state);
                    touched |= placed;
                    sent
                }
            }
            Ok(Err(Stop::Tripwire(tripwire))) => return Ok((Some(RunEvent::Violated(tripwire)), touched)),
            Ok(Err(Stop::Failed { error, .. })) => Err(error),
            Err(cut) => return self.cut(cut).map(|event| (event, touched)),
        };
        let Some(lanes) = &mut self.hooks.lanes else { return Ok((None, touched)) };
        match answer {
            Ok(()) => lanes.succeeded(lane),
            Err(error) => {
                tracing::error!(
                    lane,
                    error = error.message,
                    "a lane could not be computed; the step goes on without it"
                );
                if lanes.failed(lane) == LANE_FAILURES {
                    let data = json!({ "lane": lane, "message": error.message });
                    self.log.push(Chunk::transient_data(&self.shared.run_id, "data-state-error", data));
                }
            }
        }
        Ok((None, touched))
    }

    pub(super) fn send_state(&mut self, lane: &str, state: StateInput) -> (Result<(), ErrorInfo>, bool) {
        let mut desk = self.at_desk().desk;
        let sent = desk.send_state(lane, state);
        let sent = sent.map(|_| ()).map_err(|error| ErrorInfo::new("ProcessorError", error.to_string()));
        (sent, desk.changed)
    }

    /// Writes what the step's states changed, once (STATE-060). After others, if they were faster (STATE-081).
    pub(super) async fn write_lanes(&mut self) {
        let read_only = self.prepared.memory.read_only;
        let Some(lanes) = &mut self.hooks.lanes else { return };
        for _ in 0..LANE_TRIES {
            let changes = lanes.changes();
            if changes.is_empty() || read_only {
                lanes.written();
                return;
            }
            let thread_id = lanes.thread().thread_id.to_string();
            match self.inner.storage.track_lanes(&thread_id, changes).await {
                Ok(true) => {
                    lanes.written();
                    return;
                }
                Ok(false) => {}
                Err(error) => {
                    // The next step looks again: what is not tracked is sent again.
                    tracing::warn!(%error, "the lanes of a step could not be tracked");
                    return;
                }
            }
            let thread = self.inner.storage.get_thread(&thread_id).await.ok().flatten();
            let moved = lanes.rebase(thread.as_ref().map(tracked_lanes).unwrap_or_default());
            self.machine.set_state_versions(&moved);
        }
        tracing::warn!("the lanes of a step were changed by others all the time; they are not tracked");
    }

    /// Makes durable what hooks have placed, before the model reads it.
    pub(super) async fn write_placed(&mut self) -> Result<Option<RunEvent>, Flow> {
        Ok(match self.commit().await {
            Some(RunEvent::Committed) => None,
            Some(RunEvent::CommitFailed(error)) => Some(RunEvent::HookFailed(error)),
            Some(other) => Some(other),
            None => return Err(Flow::Left),
        })
    }

    /// Lanes of producers outside that fell out of view are put back as context, once a run (STATE-036).
    async fn put_lanes_back(&mut self, tracked: Vec<(String, Tracking)>) {
        let Some(thread) = self.hooks.lanes.as_ref().map(|lanes| lanes.thread().clone()) else { return };
        let owned = self.hooks.runner.lanes();
        let mut back = Vec::new();
        for (lane, tracking) in tracked {
            if owned.iter().any(|(_, known)| *known == lane) {
                continue;
            }
            let window = lane_signals(self.machine.transcript().messages(), &lane, &thread.thread_id);
            let wanted = wanted_ids(&window, Some(&tracking));
            if wanted.is_empty() {
                continue;
            }
            let Ok(loaded) = self.inner.storage.get_messages(&wanted).await else { continue };
            let view = LaneView::resolve(&lane, &thread, &[], &loaded, None, false);
            let Some(snapshot) = view.last_snapshot else { continue };
            let reinject =
                snapshot.signal.metadata.as_ref().and_then(|metadata| metadata.get("state")?.get("reinject"));
            if reinject == Some(&Value::Bool(false)) {
                continue;
            }
            for signal in std::iter::once(&snapshot).chain(&view.deltas) {
                back.extend(loaded.iter().find(|message| message.id == signal.id).cloned());
            }
        }
        for row in std::mem::take(&mut back) {
            if row.is_unjudged() && self.hooks.runner.has(Hook::Input) {
                // What its guards refuse, or have no time for, stays out of view.
                let judged = self.judge_row(row).await.unwrap_or_default();
                back.extend(judged.into_iter().filter(|row| !row.is_blocked() && !row.is_unjudged()));
            } else {
                back.push(row);
            }
        }
        if !back.is_empty() {
            back.sort_by_key(|message| message.created_at);
            self.machine.transcript_mut().put_back(back);
        }
    }
}
