//! The thread's objective as a lane (STATE-097).

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{
    error::Error,
    id::ThreadKey,
    json::{Object, json},
    processor::{
        Context, Outcome,
        lane::{Current, Lane, Reading},
    },
    runtime::Bugle,
};

/// Under this kind the goal lies in the thread's state.
const KIND: &str = "goal";

/// What a thread is to reach. Fields of other writers are kept.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Goal {
    /// What is to be reached.
    pub objective: String,
    /// `active`, `paused`, …; the model reads it.
    pub status: String,
    /// Counters and whatever else is kept with it; not shown.
    #[serde(flatten)]
    pub extra: Object,
}

/// Sets or removes the goal of a stored thread.
///
/// # Errors
/// The store's.
pub async fn set_goal(bugle: &Bugle, thread: &ThreadKey, goal: Option<&Goal>) -> Result<(), Error> {
    let value = goal.map(|goal| json!(goal));
    Ok(bugle.inner.storage.set_thread_state(&thread.thread_id, KIND, value).await?)
}

/// Keeps the objective in the model's view. Always told whole; when it ends, one empty state takes it back.
#[derive(Debug, Clone, Copy, Default)]
pub struct GoalLane;

#[async_trait]
impl Lane for GoalLane {
    type State = Goal;

    fn id(&self) -> &'static str {
        "goal"
    }

    async fn current(&self, cx: &mut Context<'_>) -> Outcome<Current<Goal>> {
        let (Some(runtime), Some(thread)) = (cx.runtime(), cx.thread()) else { return Ok(Current::Unknown) };
        Ok(match runtime.inner.storage.get_thread_state(&thread.thread_id, KIND).await {
            // A store that cannot be read keeps what was said.
            Err(error) => {
                tracing::warn!(%error, "the goal could not be read");
                Current::Unknown
            }
            Ok(None) => Current::Nothing,
            Ok(Some(value)) => match serde_json::from_value::<Goal>(value) {
                Ok(goal) if goal.objective.trim().is_empty() => Current::Nothing,
                Ok(goal) => Current::State(goal),
                Err(_) => Current::Unknown,
            },
        })
    }

    fn read(&self, goal: &Goal) -> Reading {
        let status = if goal.status.is_empty() { "active" } else { &goal.status };
        Reading::text(goal.objective.clone()).tagged("current-objective").with("status", status)
    }

    fn change(&self, _: &Goal, _: &Goal) -> Option<Reading> {
        None
    }

    fn differs(&self, before: &Goal, now: &Goal) -> bool {
        (&before.objective, &before.status) != (&now.objective, &now.status)
    }

    fn key(&self, goal: &Goal) -> String {
        json!(["goal", goal.objective, goal.status]).to_string()
    }

    fn gone(&self, _: &Goal) -> Option<Reading> {
        Some(Reading::text("").tagged("current-objective").with("status", "none"))
    }
}
