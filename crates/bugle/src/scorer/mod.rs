//! Scorers: judging an answer with a number, and saying when the work is done (SCO).
//!
//! A scorer is anything that implements [`Scorer`]; [`PipelineScorer`] builds one from steps, each a function or a
//! question to a judge model, and [`Rubric`] is a ready one that checks an answer against a list. [`TaskCompletion`]
//! puts scorers into the agent's loop: as long as they are not content, the agent goes on.

mod completion;
mod judge;
mod live;
mod pipeline;
mod record;
mod rubric;

pub use completion::{CompletionResult, OnComplete, ScorerResult, Strategy, TaskCompletion, When};
pub use judge::{Judge, JudgeStep};
pub(crate) use live::Ended;
pub use live::{LiveScore, LiveScorer, Sampling};
pub use pipeline::{PipelineBuilder, PipelineScorer, StepContext};
pub use record::{FailedRun, JudgeExecution, JudgeRecord, NotScorable, ScorerRun, Step};
pub use rubric::{Criteria, Criterion, Rubric, rubric_scorer};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{
    id::RunId,
    json::{Object, Value},
};

/// Judges an answer.
///
/// ```
/// use bugle::scorer::{Score, Scorer, ScorerError, ScorerInput};
///
/// /// Passes answers that hold both parts.
/// struct HasParts;
///
/// #[async_trait::async_trait]
/// impl Scorer for HasParts {
///     fn id(&self) -> &str {
///         "has-parts"
///     }
///     async fn score(&self, run: &ScorerInput) -> Result<Score, ScorerError> {
///         let text = run.text();
///         if text.contains("analysis") && text.contains("recommendation") {
///             return Ok(Score::pass());
///         }
///         Ok(Score::fail("the answer needs an analysis and a recommendation"))
///     }
/// }
/// ```
#[async_trait]
pub trait Scorer: Send + Sync {
    /// Its id.
    fn id(&self) -> &str;

    /// Its shown name; the id by default (SCO-001).
    fn name(&self) -> &str {
        self.id()
    }

    /// The score from which a completion check passes. `None`: the score has to be exactly 1 (SCO-034, SCO-R11).
    fn pass_threshold(&self) -> Option<f64> {
        None
    }

    /// Whether the verdict follows from the run alone, so that within one run the same answer, with no tool run in
    /// between, need not be judged twice (SCO-R10). Say `false` if it looks at the world outside: a build, a file.
    fn is_pure(&self) -> bool {
        true
    }

    /// Judges. A failure is [`ScorerError`] (a text turns into one with `?`); [`ScorerError::not_scorable`] says that
    /// there is nothing to judge. Dropping the future stops the work; a check that has run out of time does that.
    async fn score(&self, run: &ScorerInput) -> Result<Score, ScorerError>;
}

/// What a scorer judges (SCO-010).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ScorerInput {
    /// The run; made up if it is not said.
    #[serde(default = "RunId::random")]
    pub run_id: RunId,
    /// What the run was given. In a completion check the object of SCO-033: `originalTask`, `messages`, `iteration`,
    /// `maxIterations` and more; of a live run `inputMessages`, `rememberedMessages`, `systemMessages`.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub input: Value,
    /// What it gave: a text in a completion check, the response messages of a live run.
    pub output: Value,
    /// What would have been right, if that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ground_truth: Option<Value>,
    /// The run's request context, as plain JSON.
    #[serde(default, skip_serializing_if = "Object::is_empty")]
    pub request_context: Object,
    /// Further members: `additionalContext`, `expectedTrajectory`, …
    #[serde(flatten)]
    pub more: Object,
}

impl ScorerInput {
    /// An output to judge; the run id is made up.
    ///
    /// ```
    /// use bugle::scorer::ScorerInput;
    /// assert_eq!(ScorerInput::of("an answer").text(), "an answer");
    /// ```
    pub fn of(output: impl Into<Value>) -> Self {
        Self {
            run_id: RunId::random(),
            input: Value::Null,
            output: output.into(),
            ground_truth: None,
            request_context: Object::new(),
            more: Object::new(),
        }
    }

    /// What was asked for.
    #[must_use]
    pub fn with_input(mut self, input: impl Into<Value>) -> Self {
        self.input = input.into();
        self
    }

    /// The output as a text: itself, or the texts of the messages it is made of; else its JSON.
    pub fn text(&self) -> String {
        match &self.output {
            Value::String(text) => text.clone(),
            Value::Array(messages) => messages.iter().map(message_text).collect(),
            Value::Null => String::new(),
            other => other.to_string(),
        }
    }

    /// What the person asked for: `originalTask`, or the last text among the input messages, or a plain text input.
    pub fn task(&self) -> Option<String> {
        if let Some(text) = self.input.as_str().or_else(|| self.input.get("originalTask")?.as_str()) {
            return Some(text.to_owned());
        }
        let messages = self.input.get("inputMessages")?.as_array()?;
        messages.iter().rev().map(message_text).find(|text| !text.is_empty())
    }

    /// The turn of the loop that is judged, from 1; 0 outside a completion check.
    pub fn iteration(&self) -> u32 {
        let iteration = self.input.get("iteration").and_then(Value::as_u64);
        iteration.and_then(|iteration| u32::try_from(iteration).ok()).unwrap_or(0)
    }
}

/// The text of a stored message in JSON.
fn message_text(message: &Value) -> String {
    let Some(parts) = message.pointer("/content/parts").and_then(Value::as_array) else {
        return message.get("content").and_then(Value::as_str).unwrap_or_default().to_owned();
    };
    let texts = parts.iter().filter(|part| part.get("type").is_some_and(|kind| kind == "text"));
    texts.filter_map(|part| part.get("text")?.as_str()).collect()
}

/// A scorer's verdict.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    /// How good; 1 passes a completion check unless the scorer has a threshold. Always finite: anything else counts as
    /// a failure of the scorer (SCO-007).
    pub score: f64,
    /// Why.
    pub reason: Option<String>,
    /// What the model is told of a failed check, if not the reason: only what is missing (SCO-070).
    pub feedback: Option<String>,
}

impl Score {
    /// This score, without a reason.
    pub fn new(score: f64) -> Self {
        Self { score, reason: None, feedback: None }
    }

    /// 1.
    pub fn pass() -> Self {
        Self::new(1.0)
    }

    /// 0, and why.
    pub fn fail(reason: impl Into<String>) -> Self {
        Self::new(0.0).because(reason)
    }

    /// Adds why.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }
}

/// Why a scorer has no score.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ScorerError {
    /// It failed.
    #[error("{0}")]
    Failed(String),
    /// There is nothing to judge (SCO-013). Neutral in a completion check (SCO-039).
    #[error("not scorable: {0}")]
    NotScorable(String),
    /// A scorer without an id (SCO-001).
    #[error("a scorer needs an id; give it one that is not empty")]
    MissingId,
    /// A step was declared twice (SCO-002).
    #[error("scorer {scorer} declares {step} twice; one of them would be lost")]
    StepTwice {
        /// The scorer.
        scorer: String,
        /// The step.
        step: Step,
    },
    /// No `generateScore` step (SCO-003).
    #[error("scorer {0} has no generateScore step, so it cannot give a score; add one")]
    MissingGenerateScore(String),
    /// A judge step without a model, or without instructions (SCO-005).
    #[error("step {0} asks a judge, but neither the step nor its scorer says which model, with which instructions")]
    MissingJudge(Step),
    /// A step of a pipeline failed (SCO-012).
    #[error("Scorer Run Failed: {}", .0.cause)]
    Run(Box<FailedRun>),
}

impl ScorerError {
    /// It failed.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }

    /// There is nothing to judge.
    pub fn not_scorable(reason: impl Into<String>) -> Self {
        Self::NotScorable(reason.into())
    }

    /// The stable id, such as `MASTR_SCORER_FAILED_TO_RUN_WORKFLOW_FAILED`; none of what a scorer says itself.
    pub fn id(&self) -> Option<&'static str> {
        match self {
            Self::Failed(_) | Self::NotScorable(_) | Self::StepTwice { .. } => None,
            Self::MissingId => Some("MASTR_SCORER_FAILED_TO_CREATE_MISSING_ID"),
            Self::MissingGenerateScore(_) => Some("MASTR_SCORER_FAILED_TO_RUN_MISSING_GENERATE_SCORE"),
            Self::MissingJudge(_) => Some("MASTR_SCORER_FAILED_TO_RUN_MISSING_MODEL_OR_INSTRUCTIONS"),
            Self::Run(failed) => Some(failed.cause.id().unwrap_or("MASTR_SCORER_FAILED_TO_RUN_WORKFLOW_FAILED")),
        }
    }
}

impl From<String> for ScorerError {
    fn from(message: String) -> Self {
        Self::Failed(message)
    }
}

impl From<&str> for ScorerError {
    fn from(message: &str) -> Self {
        Self::Failed(message.to_owned())
    }
}

/// Whether a score passes (SCO-034, SCO-R11).
pub(crate) fn passes(score: f64, threshold: Option<f64>) -> bool {
    #[allow(clippy::float_cmp, reason = "0.99 fails: the score is exactly 1")]
    match threshold {
        Some(threshold) => score >= threshold,
        None => score == 1.0,
    }
}
