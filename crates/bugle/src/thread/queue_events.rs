//! How many entries wait in a thread's queue, as it changes (SIG-265 to 268).

use tokio::sync::watch;

use super::hub::{ThreadRef, View};

/// Tells how many entries wait in a thread's queue. Dropping it ends it (SIG-267).
///
/// Counts entries that get a run of their own, the one that is about to start included; not input that joins a run
/// (SIG-266). Changes that come faster than they are read are seen as one.
#[derive(Debug)]
pub struct QueueEvents {
    thread: ThreadRef,
    view: watch::Receiver<View>,
    /// Agent and group.
    of: Option<(String, String)>,
    told: Option<usize>,
}

impl QueueEvents {
    pub(super) fn new(thread: ThreadRef, of: Option<(String, String)>) -> Self {
        thread.subscribed();
        Self { view: thread.view.clone(), thread, of, told: None }
    }

    /// The number now.
    pub fn count(&self) -> usize {
        count(&self.view.borrow(), self.of.as_ref())
    }

    /// The number: at once the first time, then whenever it has changed. `None` once the runtime has shut down.
    /// Cancel-safe.
    pub async fn next(&mut self) -> Option<usize> {
        loop {
            let count = count(&self.view.borrow_and_update(), self.of.as_ref());
            if self.told != Some(count) {
                self.told = Some(count);
                return Some(count);
            }
            self.view.changed().await.ok()?;
        }
    }
}

impl Drop for QueueEvents {
    fn drop(&mut self) {
        self.thread.unsubscribed();
    }
}

fn count(view: &View, of: Option<&(String, String)>) -> usize {
    let Some((agent_id, group)) = of else { return view.queue_count };
    let found = view.queue_groups.iter().find(|found| found.agent_id == *agent_id && found.group == *group);
    found.map_or(0, |found| found.count)
}
