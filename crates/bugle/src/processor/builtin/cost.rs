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
/// process; a restart forgets.
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
    spent: Mutex<HashMap<String, VecDeque<(Timestamp, f64)>>>,
}

/// More accounts than this are swept of those that have spent nothing within the window.
const ACCOUNTS_MAX: usize = 10_000;

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
        while entries.front().is_some_and(|(at, _)| at.plus(self.window) <= now) {
            entries.pop_front();
        }
        entries.iter().map(|(_, cost)| cost).sum()
    }

    fn add(&self, account: String, now: Timestamp, cost: f64) {
        let mut spent = self.spent.lock();
        if spent.len() >= ACCOUNTS_MAX {
            spent.retain(|_, entries| entries.back().is_some_and(|(at, _)| at.plus(self.window) > now));
        }
        let entries = spent.entry(account).or_default();
        // Entries of one second are one.
        match entries.back_mut() {
            Some((at, held)) if at.plus(Duration::from_secs(1)) > now => *held += cost,
            _ => entries.push_back((now, cost)),
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
