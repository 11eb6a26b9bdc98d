//! Stops runs of those who have used up their budget (PROC §10).

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;

use crate::{
    json::json,
    model::ModelEvent,
    processor::{Context, Hook, HookSet, InputStep, LlmResponse, Outcome, Processor, ProcessorError},
    time::Timestamp,
};

/// Whose spending is counted together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CostScope {
    /// All threads of a resource.
    #[default]
    Resource,
    /// One thread.
    Thread,
    /// One run.
    Run,
}

/// Counts what responses cost and refuses the next request when the limit of the window is reached. Counted in this
/// process; a restart forgets. It keeps 10,000 accounts and about a thousand entries for each; past that, accounts that have
/// spent the least are forgotten.
///
/// ```
/// use std::time::Duration;
/// use bugle::processor::builtin::{CostScope, TokenCostControl};
/// // 50,000 tokens an hour, whichever way they go.
/// let budget = TokenCostControl::tokens(50_000, Duration::from_secs(3600)).per(CostScope::Resource);
/// ```
#[derive(Debug)]
pub struct TokenCostControl {
    limit: f64,
    window: Duration,
    scope: CostScope,
    per_input: f64,
    per_output: f64,
    spent: Mutex<HashMap<String, VecDeque<Spent>>>,
}

/// What was spent from one moment to another.
#[derive(Debug)]
struct Spent {
    since: Timestamp,
    until: Timestamp,
    cost: f64,
}

/// Accounts that are kept at most. Past it those that have spent nothing within the window are forgotten, and if that is
/// not enough, the half of them that has spent the least.
const ACCOUNTS_MAX: usize = 10_000;
/// Parts of a window that are told apart: what was spent in one of them counts until the last of it is a window ago.
const PARTS: u32 = 1024;

impl TokenCostControl {
    /// A limit in tokens.
    pub fn tokens(limit: u64, window: Duration) -> Self {
        Self::priced(limit as f64, window, 1.0, 1.0)
    }

    /// A limit in money, with the price of one token read and one token written.
    pub fn priced(limit: f64, window: Duration, per_input_token: f64, per_output_token: f64) -> Self {
        Self {
            limit,
            window,
            scope: CostScope::default(),
            per_input: per_input_token,
            per_output: per_output_token,
            spent: Mutex::default(),
        }
    }

    /// Whose spending is counted together.
    #[must_use]
    pub fn per(mut self, scope: CostScope) -> Self {
        self.scope = scope;
        self
    }

    fn account(&self, cx: &Context<'_>) -> String {
        let run = || format!("run:{}", cx.run_id());
        match (self.scope, cx.thread()) {
            (CostScope::Run, _) | (_, None) => run(),
            (CostScope::Thread, Some(thread)) => format!("thread:{}", thread.thread_id),
            (CostScope::Resource, Some(thread)) => {
                thread.resource_id.as_deref().map_or_else(run, |resource| format!("resource:{resource}"))
            }
        }
    }

    fn spent(&self, account: &str, now: Timestamp) -> f64 {
        let mut spent = self.spent.lock();
        let Some(entries) = spent.get_mut(account) else { return 0.0 };
        while entries.front().is_some_and(|entry| self.is_over(entry, now)) {
            entries.pop_front();
        }
        entries.iter().map(|entry| entry.cost).sum()
    }

    fn is_over(&self, entry: &Spent, now: Timestamp) -> bool {
        entry.until.plus(self.window) <= now
    }

    fn add(&self, account: String, now: Timestamp, cost: f64) {
        let mut spent = self.spent.lock();
        if spent.len() >= ACCOUNTS_MAX && !spent.contains_key(&account) {
            self.make_room(&mut spent, now);
        }
        let entries = spent.entry(account).or_default();
        while entries.front().is_some_and(|entry| self.is_over(entry, now)) {
            entries.pop_front();
        }
        let part = (self.window / PARTS).max(Duration::from_secs(1));
        match entries.back_mut() {
            Some(last) if last.since.plus(part) > now => {
                last.until = now;
                last.cost += cost;
            }
            _ => entries.push_back(Spent { since: now, until: now, cost }),
        }
    }

    fn make_room(&self, spent: &mut HashMap<String, VecDeque<Spent>>, now: Timestamp) {
        spent.retain(|_, entries| entries.back().is_some_and(|last| !self.is_over(last, now)));
        if spent.len() < ACCOUNTS_MAX {
            return;
        }
        let mut totals: Vec<(f64, String)> = spent
            .iter()
            .map(|(account, entries)| (entries.iter().map(|entry| entry.cost).sum(), account.clone()))
            .collect();
        totals.sort_by(|a, b| a.0.total_cmp(&b.0));
        totals.truncate(ACCOUNTS_MAX / 2);
        tracing::warn!(
            forgotten = totals.len(),
            "more accounts than can be kept; those that spent the least are forgotten"
        );
        for (_, account) in totals {
            spent.remove(&account);
        }
    }
}

#[async_trait]
impl Processor for TokenCostControl {
    fn id(&self) -> &'static str {
        "token-cost-control"
    }

    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::InputStep, Hook::LlmResponse])
    }

    async fn process_input_step(&self, cx: &mut Context<'_>, _: &mut InputStep) -> Outcome {
        let account = self.account(cx);
        let spent = self.spent(&account, cx.now());
        if spent < self.limit {
            return Ok(());
        }
        Err(ProcessorError::tripwire(format!(
            "the budget is used up: {spent} of {} within {} s; try again later",
            self.limit,
            self.window.as_secs()
        ))
        .with_metadata(json!({ "spent": spent, "limit": self.limit, "windowMs": self.window.as_millis() as u64 })))
    }

    async fn process_llm_response(&self, cx: &mut Context<'_>, response: &LlmResponse) -> Outcome {
        for event in &response.events {
            if let ModelEvent::Finish { usage, .. } = event {
                let input = usage.input_tokens.unwrap_or(0) as f64 * self.per_input;
                let output = usage.output_tokens.unwrap_or(0) as f64 * self.per_output;
                self.add(self.account(cx), cx.now(), input + output);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_spending_is_bounded() {
        let day = Duration::from_secs(86_400);
        let control = TokenCostControl::tokens(u64::MAX, day);
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1000);
        for second in 0..2 * 86_400 {
            control.add("busy".into(), at(second), 1.0);
        }
        let entries = control.spent.lock()["busy"].len();
        assert!(entries <= PARTS as usize + 2, "{entries}");
        let counted = control.spent("busy", at(2 * 86_400));
        assert!((86_400.0..=86_400.0 + 100.0).contains(&counted), "never less than was spent in a day: {counted}");
        // The greatest spenders are not forgotten for the crowd.
        control.add("greedy".into(), at(2 * 86_400), 1e6);
        for number in 0..3 * ACCOUNTS_MAX {
            control.add(format!("one-{number}"), at(2 * 86_400), 1.0);
        }
        assert!(control.spent.lock().len() <= ACCOUNTS_MAX);
        assert_eq!(control.spent("greedy", at(2 * 86_400)) as u64, 1_000_000);
        // A window later they give way to others.
        control.add("late".into(), at(4 * 86_400), 1.0);
        let filled = control.spent.lock().len();
        for number in 0..=ACCOUNTS_MAX - filled {
            control.add(format!("new-{number}"), at(4 * 86_400), 1.0);
        }
        assert!(!control.spent.lock().contains_key("greedy"));
    }
}
