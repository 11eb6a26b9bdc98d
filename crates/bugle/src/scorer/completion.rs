//! When the work is done: which scorers say so, together (SCO §3).

use std::{fmt, future::Future, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use serde::{Deserialize, Serialize};

use super::Scorer;

/// How several scorers decide together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// All must pass.
    #[default]
    All,
    /// One is enough.
    Any,
}

/// Which iterations are checked (SCO-051).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// Those in which the model would stop (SCO-030).
    #[default]
    Stop,
    /// Those that end in tool calls, too: there a pass ends the run.
    Iteration,
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// Called after every check: see [`TaskCompletion::on_complete`].
pub type OnComplete = Arc<dyn Fn(CompletionResult) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync>;

/// When the work is done. As long as the check fails, the model is told why and goes on, within the run's step limit.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use bugle::{model::ScriptedModel, scorer::{TaskCompletion, rubric_scorer}};
/// let judge = Arc::new(ScriptedModel::new());
/// let completion = TaskCompletion::all(vec![Arc::new(rubric_scorer(judge, "names its sources\nhas a summary"))])
///     .timeout(Duration::from_secs(60))
///     .on_complete(|result| async move {
///         println!("complete: {}", result.complete);
///         Ok(())
///     });
/// assert!(completion.parallel);
/// ```
#[derive(Clone)]
pub struct TaskCompletion {
    /// Who judges. An empty list turns the check off.
    pub scorers: Vec<Arc<dyn Scorer>>,
    /// How they decide together.
    pub strategy: Strategy,
    /// At once; else in list order until the verdict is clear (SCO-037). Default: true.
    pub parallel: bool,
    /// The longest that one check may take; the scorers that have not finished by then are stopped (SCO-036).
    /// Default: 600 s.
    pub timeout: Duration,
    /// The model is told why a check failed, but nothing of that is stored (SCO-043).
    pub suppress_feedback: bool,
    /// Which iterations are checked.
    pub when: When,
    /// Called after every check.
    pub on_complete: Option<OnComplete>,
}

impl TaskCompletion {
    /// All of `scorers` must pass.
    pub fn all(scorers: Vec<Arc<dyn Scorer>>) -> Self {
        Self {
            scorers,
            strategy: Strategy::All,
            parallel: true,
            timeout: Duration::from_secs(600),
            suppress_feedback: false,
            when: When::Stop,
            on_complete: None,
        }
    }

    /// One of `scorers` is enough.
    pub fn any(scorers: Vec<Arc<dyn Scorer>>) -> Self {
        Self { strategy: Strategy::Any, ..Self::all(scorers) }
    }

    /// One scorer after the other, until the verdict is clear.
    #[must_use]
    pub fn sequential(mut self) -> Self {
        self.parallel = false;
        self
    }

    /// The longest that one check may take.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Stores nothing of the feedback.
    #[must_use]
    pub fn suppress_feedback(mut self) -> Self {
        self.suppress_feedback = true;
        self
    }

    /// Which iterations are checked.
    #[must_use]
    pub fn when(mut self, when: When) -> Self {
        self.when = when;
        self
    }

    /// Called after every check, passed or not, before the loop goes on (SCO-046). What it fails with is logged and
    /// changes nothing. An abort of the run does not wait for it.
    #[must_use]
    pub fn on_complete<F, R>(mut self, hook: F) -> Self
    where
        F: Fn(CompletionResult) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), BoxError>> + Send + 'static,
    {
        self.on_complete = Some(Arc::new(move |result| hook(result).boxed()));
        self
    }
}

impl fmt::Debug for TaskCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scorers: Vec<&str> = self.scorers.iter().map(|scorer| scorer.id()).collect();
        f.debug_struct("TaskCompletion")
            .field("scorers", &scorers)
            .field("strategy", &self.strategy)
            .finish_non_exhaustive()
    }
}

/// The verdict of one check (SCO-038).
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CompletionResult {
    /// The work is done.
    pub complete: bool,
    /// What the first passing scorer says, else the first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_reason: Option<String>,
    /// The scorers that ran, in list order.
    pub scorers: Vec<ScorerResult>,
    /// Of the whole check, in milliseconds.
    pub total_duration: u64,
    /// Some scorers had no time to finish.
    pub timed_out: bool,
}

/// One scorer's part in it (SCO-035).
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ScorerResult {
    /// Its score; 0 without one.
    #[serde(serialize_with = "plain_number")]
    pub score: f64,
    /// It is content.
    pub passed: bool,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its id.
    pub scorer_id: String,
    /// Its name.
    pub scorer_name: String,
    /// How long it took, in milliseconds; 0 for a verdict that was reused (SCO-R10).
    pub duration: u64,
    /// It failed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub errored: bool,
    /// It had nothing to judge, and so no say (SCO-039).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub not_scorable: bool,
    /// What the model is told instead of the reason.
    #[serde(skip)]
    pub(crate) feedback: Option<String>,
}

/// 1 and 0 as clients know them, without a fraction.
#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands references")]
fn plain_number<S: serde::Serializer>(score: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    #[allow(clippy::float_cmp, reason = "whole numbers are exact")]
    if *score == score.trunc() && score.abs() < 1e15 {
        return serializer.serialize_i64(*score as i64);
    }
    serializer.serialize_f64(*score)
}
