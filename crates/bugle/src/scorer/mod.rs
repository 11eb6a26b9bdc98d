//! Scorers: judging an answer, and saying when the work is done (SCO §3).

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;

/// Judges an answer.
#[async_trait]
pub trait Scorer: Send + Sync {
    /// Its id.
    fn id(&self) -> &str;

    /// Its shown name; the id by default.
    fn name(&self) -> &str {
        self.id()
    }

    /// A score from 0 to 1; 1 passes. `Err` is a failed check with the text as reason.
    async fn score(&self, answer: &ScorerInput) -> Result<Score, String>;
}

/// What a scorer sees.
#[derive(Debug, Clone, PartialEq)]
pub struct ScorerInput {
    /// What the person asked.
    pub input: String,
    /// The answer so far.
    pub output: String,
    /// Counts from 1.
    pub iteration: u32,
}

/// A scorer's verdict.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// From 0 to 1.
    pub score: f64,
    /// Why.
    pub reason: Option<String>,
}

/// How several scorers decide together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Strategy {
    /// All must pass.
    #[default]
    All,
    /// One is enough.
    Any,
}

/// When the work is done.
#[derive(Clone)]
pub struct TaskCompletion {
    /// Who judges, in parallel.
    pub scorers: Vec<Arc<dyn Scorer>>,
    /// How they decide together.
    pub strategy: Strategy,
    /// The longest all of them may take.
    pub timeout: Duration,
    /// Tell the model nothing of a failed check.
    pub suppress_feedback: bool,
}

impl TaskCompletion {
    /// All of `scorers` must pass; 600 s at most.
    pub fn all(scorers: Vec<Arc<dyn Scorer>>) -> Self {
        Self { scorers, strategy: Strategy::All, timeout: Duration::from_secs(600), suppress_feedback: false }
    }
}

impl fmt::Debug for TaskCompletion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TaskCompletion").field("strategy", &self.strategy).finish_non_exhaustive()
    }
}
