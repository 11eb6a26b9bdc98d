//! What one run of a scorer pipeline leaves: its results, prompts and judge calls (SCO-011, SCO-014).

use std::fmt;

use indexmap::IndexMap;
use serde::Serialize;

use super::{ScorerError, ScorerInput};
use crate::{chunk::Usage, json::Value};

/// A step of a pipeline, in the order in which they run (SCO-002).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Step {
    /// Takes out of the run what matters.
    Preprocess,
    /// Looks at it.
    Analyze,
    /// Gives the number.
    GenerateScore,
    /// Says why.
    GenerateReason,
}

impl Step {
    /// As it is written in records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Preprocess => "preprocess",
            Self::Analyze => "analyze",
            Self::GenerateScore => "generateScore",
            Self::GenerateReason => "generateReason",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One run of a pipeline (SCO-011). Its JSON is the reference's.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ScorerRun {
    /// What was judged.
    #[serde(flatten)]
    pub input: ScorerInput,
    /// The score; none if the run was not scorable, or failed before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What `preprocess` gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preprocess_step_result: Option<Value>,
    /// What `analyze` gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analyze_step_result: Option<Value>,
    /// What the judge of `preprocess` was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub preprocess_prompt: Option<String>,
    /// What the judge of `analyze` was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub analyze_prompt: Option<String>,
    /// What the judge of `generateScore` was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generate_score_prompt: Option<String>,
    /// What the judge of `generateReason` was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generate_reason_prompt: Option<String>,
    /// The judge calls, by step.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub judge: IndexMap<Step, JudgeRecord>,
    /// A step had nothing to judge (SCO-013).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_scorable: Option<NotScorable>,
}

impl ScorerRun {
    pub(super) fn new(input: ScorerInput) -> Self {
        Self {
            input,
            score: None,
            reason: None,
            preprocess_step_result: None,
            analyze_step_result: None,
            preprocess_prompt: None,
            analyze_prompt: None,
            generate_score_prompt: None,
            generate_reason_prompt: None,
            judge: IndexMap::new(),
            not_scorable: None,
        }
    }

    /// The judge calls of all steps, added up.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for execution in self.judge.values().flat_map(|record| &record.executions) {
            usage.add(&execution.usage);
        }
        usage
    }
}

/// Which step had nothing to judge, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NotScorable {
    /// The step.
    pub step: Step,
    /// Why.
    pub reason: String,
}

/// The judge calls of one step.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct JudgeRecord {
    /// One each time the step ran.
    pub executions: Vec<JudgeExecution>,
}

/// One question to a judge, with its repair (SCO-014).
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct JudgeExecution {
    /// `success` or `failed`.
    pub status: &'static str,
    /// What the judge was asked.
    pub prompt: String,
    /// What it answered: the value, or the text that was none.
    pub output: Value,
    /// The model.
    pub judge_model_id: String,
    /// Its provider.
    pub judge_provider: String,
    /// Of all its calls.
    pub usage: Usage,
    /// 1, or 2 if the first answer had to be repaired.
    pub attempt_count: u32,
    /// Requests to the model, retries included.
    pub model_call_count: u32,
    /// From the first request to the last answer.
    pub duration_ms: u64,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A pipeline that stopped at a failing step (SCO-012).
#[derive(Debug, Clone)]
pub struct FailedRun {
    /// The step.
    pub failed_step: Step,
    /// Those before it.
    pub completed_steps: Vec<Step>,
    /// What they gave, and the judge calls up to and with the failed one.
    pub partial: ScorerRun,
    /// Why.
    pub cause: ScorerError,
}
