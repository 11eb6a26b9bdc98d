//! Parked runs: what waits for a person, as the pair of rows that the reference shares (LOOP-100, STO §6).
//!
//! The pair is the only truth: while it is there the run is parked, and who deletes it goes on with it (STO-112,
//! LOOP-116). Bugle's own state lies in the outer row under the key `bugle`, which the reference ignores.

use serde_json::Value;

use super::Page;
use crate::{
    id::{RunId, ThreadKey},
    time::Timestamp,
};

/// A run that waits for an approval or for resume data.
#[derive(Debug, Clone, PartialEq)]
pub struct ParkedRun {
    /// The run; the top one, where runs are nested (SUB-124).
    pub run_id: RunId,
    /// Its thread, if it has one.
    pub thread: Option<ThreadKey>,
    /// Whom it works for; the thread's resource, if it has a thread.
    pub resource_id: Option<String>,
    /// Its agent.
    pub agent_id: String,
    /// The snapshot of row `agentic-loop`, or of `durable-agentic-loop` if the reference wrote that.
    pub outer: Value,
    /// The snapshot of row `executionWorkflow`; null if it is missing (STO-111).
    pub inner: Value,
    /// When it was parked.
    pub suspended_at: Timestamp,
}

impl ParkedRun {
    /// Whether `run` may be parked in its place: a run of the same id that parks again, and not somebody else's whose
    /// caller chose the same id. Whom it works for counts where both say so.
    pub fn is_replaced_by(&self, run: &ParkedRun) -> bool {
        let owners = (&self.resource_id, &run.resource_id);
        let same_owner = !matches!(owners, (Some(one), Some(other)) if one != other);
        self.run_id == run.run_id && self.thread == run.thread && self.agent_id == run.agent_id && same_owner
    }
}

/// Which parked runs to list. All conditions hold at once.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ParkedQuery {
    /// Of this agent.
    pub agent_id: Option<String>,
    /// Of this thread.
    pub thread_id: Option<String>,
    /// Of this resource.
    pub resource_id: Option<String>,
    /// Parked at this time or later.
    pub from: Option<Timestamp>,
    /// Parked at this time or before.
    pub to: Option<Timestamp>,
    /// Which page, from 0.
    pub page: u32,
    /// Its size; all on one page if absent.
    pub per_page: Option<u32>,
}

impl ParkedQuery {
    /// The parked runs of one thread, of any agent.
    pub fn of_thread(thread: &ThreadKey) -> Self {
        Self {
            thread_id: Some(thread.thread_id.to_string()),
            resource_id: thread.resource_id.as_deref().map(str::to_owned),
            ..Self::default()
        }
    }

    /// Whether a run is one of those asked for.
    pub fn matches(&self, run: &ParkedRun) -> bool {
        let thread = run.thread.as_ref().map(|thread| &*thread.thread_id);
        self.agent_id.as_ref().is_none_or(|agent| *agent == run.agent_id)
            && self.thread_id.as_deref().is_none_or(|wanted| thread == Some(wanted))
            && self.resource_id.as_ref().is_none_or(|wanted| run.resource_id.as_ref() == Some(wanted))
            && self.from.is_none_or(|from| run.suspended_at >= from)
            && self.to.is_none_or(|to| run.suspended_at <= to)
    }

    /// The page of `found`, which holds all that match in any order: newest first.
    pub fn page_of(&self, mut found: Vec<ParkedRun>) -> Page<ParkedRun> {
        found.sort_by(|a, b| b.suspended_at.cmp(&a.suspended_at).then_with(|| b.run_id.cmp(&a.run_id)));
        let total = found.len();
        let size = self.per_page.map_or(usize::MAX, |size| size as usize);
        let start = (self.page as usize).saturating_mul(size).min(total);
        let start = if self.page == 0 { 0 } else { start };
        let items: Vec<ParkedRun> = found.into_iter().skip(start).take(size).collect();
        let has_more = start + items.len() < total;
        Page { items, total, page: self.page, per_page: self.per_page, has_more }
    }
}
