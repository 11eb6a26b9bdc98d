//! Scorers made of steps: preprocess, analyze, generate the score, generate the reason (SCO §1, §2).

use std::{fmt, future::Future, panic::AssertUnwindSafe, sync::Arc};

use async_trait::async_trait;
use futures::{FutureExt, future::BoxFuture};

use super::{
    FailedRun, Judge, JudgeStep, NotScorable, Score, Scorer, ScorerError, ScorerInput, ScorerRun, Step,
    judge::{ask, score_schema},
};
use crate::json::Value;

/// What a step sees (SCO-004).
#[derive(Debug, Clone)]
pub struct StepContext {
    /// What is judged.
    pub run: Arc<ScorerInput>,
    /// What `preprocess` gave, if there was one.
    pub preprocess: Option<Value>,
    /// What `analyze` gave, if there was one.
    pub analyze: Option<Value>,
    /// In `generateReason`, the score.
    pub score: Option<f64>,
}

type StepFn<T> = Arc<dyn Fn(StepContext) -> BoxFuture<'static, Result<T, ScorerError>> + Send + Sync>;

#[derive(Clone)]
enum Work<T> {
    Function(StepFn<T>),
    Judge(JudgeStep),
}

type FeedbackFn = Arc<dyn Fn(&ScorerRun) -> Option<String> + Send + Sync>;

/// A scorer made of steps. Cheap to clone; its runs are independent, and any number may go on at once (SCO-015).
///
/// ```
/// use bugle::scorer::{PipelineScorer, ScorerInput};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), bugle::scorer::ScorerError> {
/// let scorer = PipelineScorer::builder("has-parts")
///     .generate_score(|cx| async move { Ok(if cx.run.text().contains("analysis") { 1.0 } else { 0.0 }) })
///     .generate_reason(|cx| async move { Ok(format!("scored {}", cx.score.unwrap_or_default())) })
///     .build()?;
/// let run = scorer.run(ScorerInput::of("an analysis")).await?;
/// assert_eq!((run.score, run.reason.as_deref()), (Some(1.0), Some("scored 1")));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PipelineScorer {
    inner: Arc<Pipeline>,
}

struct Pipeline {
    id: String,
    name: String,
    description: Option<String>,
    judge: Option<Judge>,
    preprocess: Option<Work<Value>>,
    analyze: Option<Work<Value>>,
    score: Option<Work<f64>>,
    reason: Option<Work<String>>,
    threshold: Option<f64>,
    feedback: Option<FeedbackFn>,
}

impl fmt::Debug for PipelineScorer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PipelineScorer").field("id", &self.inner.id).finish_non_exhaustive()
    }
}

/// Builds a [`PipelineScorer`]. The order of the calls is free; each step may be declared once.
#[must_use]
pub struct PipelineBuilder {
    pipeline: Pipeline,
    twice: Option<Step>,
}

impl PipelineBuilder {
    /// The shown name; the id unless set.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.pipeline.name = name.into();
        self
    }

    /// What it looks at.
    pub fn description(mut self, description: impl Into<String>) -> Self {
        self.pipeline.description = Some(description.into());
        self
    }

    /// Who does the steps that ask a judge, unless they say otherwise.
    pub fn judge(mut self, judge: Judge) -> Self {
        self.pipeline.judge = Some(judge);
        self
    }

    /// A score from this on passes a completion check, instead of exactly 1 (SCO-R11).
    pub fn pass_threshold(mut self, threshold: f64) -> Self {
        self.pipeline.threshold = Some(threshold);
        self
    }

    /// First step: any JSON.
    pub fn preprocess<F, R>(mut self, step: F) -> Self
    where
        F: Fn(StepContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Value, ScorerError>> + Send + 'static,
    {
        self.declare(Step::Preprocess, self.pipeline.preprocess.is_some());
        self.pipeline.preprocess = Some(function(step));
        self
    }

    /// First step, by a judge.
    pub fn preprocess_by(mut self, step: JudgeStep) -> Self {
        self.declare(Step::Preprocess, self.pipeline.preprocess.is_some());
        self.pipeline.preprocess = Some(Work::Judge(step));
        self
    }

    /// Second step: any JSON.
    pub fn analyze<F, R>(mut self, step: F) -> Self
    where
        F: Fn(StepContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Value, ScorerError>> + Send + 'static,
    {
        self.declare(Step::Analyze, self.pipeline.analyze.is_some());
        self.pipeline.analyze = Some(function(step));
        self
    }

    /// Second step, by a judge.
    pub fn analyze_by(mut self, step: JudgeStep) -> Self {
        self.declare(Step::Analyze, self.pipeline.analyze.is_some());
        self.pipeline.analyze = Some(Work::Judge(step));
        self
    }

    /// The score; the only step that has to be there.
    pub fn generate_score<F, R>(mut self, step: F) -> Self
    where
        F: Fn(StepContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<f64, ScorerError>> + Send + 'static,
    {
        self.declare(Step::GenerateScore, self.pipeline.score.is_some());
        self.pipeline.score = Some(function(step));
        self
    }

    /// The score, by a judge that answers `{score: number}`.
    pub fn generate_score_by(mut self, step: JudgeStep) -> Self {
        self.declare(Step::GenerateScore, self.pipeline.score.is_some());
        self.pipeline.score = Some(Work::Judge(step));
        self
    }

    /// Why it is that score.
    pub fn generate_reason<F, R>(mut self, step: F) -> Self
    where
        F: Fn(StepContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<String, ScorerError>> + Send + 'static,
    {
        self.declare(Step::GenerateReason, self.pipeline.reason.is_some());
        self.pipeline.reason = Some(function(step));
        self
    }

    /// Why it is that score, by a judge, in free text.
    pub fn generate_reason_by(mut self, step: JudgeStep) -> Self {
        self.declare(Step::GenerateReason, self.pipeline.reason.is_some());
        self.pipeline.reason = Some(Work::Judge(step));
        self
    }

    /// What the model is told of a failed check instead of the reason.
    pub(super) fn feedback(mut self, feedback: impl Fn(&ScorerRun) -> Option<String> + Send + Sync + 'static) -> Self {
        self.pipeline.feedback = Some(Arc::new(feedback));
        self
    }

    fn declare(&mut self, step: Step, known: bool) {
        if known {
            self.twice.get_or_insert(step);
        }
    }

    /// The scorer.
    ///
    /// # Errors
    /// [`ScorerError::MissingId`]; [`ScorerError::StepTwice`], since one of the two would be lost (SCO-002).
    pub fn build(self) -> Result<PipelineScorer, ScorerError> {
        if self.pipeline.id.trim().is_empty() {
            return Err(ScorerError::MissingId);
        }
        if let Some(step) = self.twice {
            return Err(ScorerError::StepTwice { scorer: self.pipeline.id, step });
        }
        Ok(PipelineScorer { inner: Arc::new(self.pipeline) })
    }
}

fn function<T, F, R>(step: F) -> Work<T>
where
    F: Fn(StepContext) -> R + Send + Sync + 'static,
    R: Future<Output = Result<T, ScorerError>> + Send + 'static,
{
    Work::Function(Arc::new(move |context| step(context).boxed()))
}

/// A pipeline under way.
struct Going<'a> {
    pipeline: &'a Pipeline,
    context: StepContext,
    run: ScorerRun,
    done: Vec<Step>,
}

impl PipelineScorer {
    /// Begins a scorer with this id.
    pub fn builder(id: impl Into<String>) -> PipelineBuilder {
        let id = id.into();
        PipelineBuilder {
            pipeline: Pipeline {
                name: id.clone(),
                id,
                description: None,
                judge: None,
                preprocess: None,
                analyze: None,
                score: None,
                reason: None,
                threshold: None,
                feedback: None,
            },
            twice: None,
        }
    }

    /// What it looks at.
    pub fn description(&self) -> Option<&str> {
        self.inner.description.as_deref()
    }

    /// Runs the steps, in their order (SCO-002). A run that is not scorable has no score and says why (SCO-013).
    /// Dropping the future stops it, with the request of its judge.
    ///
    /// # Errors
    /// [`ScorerError::MissingGenerateScore`] before any step has run; [`ScorerError::Run`] with the failed step and
    /// what there was until then.
    pub async fn run(&self, input: ScorerInput) -> Result<ScorerRun, ScorerError> {
        let pipeline = &*self.inner;
        let Some(score) = &pipeline.score else {
            return Err(ScorerError::MissingGenerateScore(pipeline.id.clone()));
        };
        let context = StepContext { run: Arc::new(input.clone()), preprocess: None, analyze: None, score: None };
        let mut going = Going { pipeline, context, run: ScorerRun::new(input), done: Vec::new() };
        let ended = going.steps(score).await;
        let Going { run, done, .. } = going;
        match ended {
            Ok(()) => Ok(run),
            Err((step, ScorerError::NotScorable(reason))) => {
                let not_scorable = Some(NotScorable { step, reason });
                Ok(ScorerRun { score: None, reason: None, not_scorable, ..run })
            }
            Err((failed_step, cause)) => {
                Err(ScorerError::Run(Box::new(FailedRun { failed_step, completed_steps: done, partial: run, cause })))
            }
        }
    }
}

impl Going<'_> {
    async fn steps(&mut self, score: &Work<f64>) -> Result<(), (Step, ScorerError)> {
        if let Some(work) = &self.pipeline.preprocess {
            let value = self.step(Step::Preprocess, work, Ok).await?;
            self.run.preprocess_step_result = Some(value.clone());
            self.context.preprocess = Some(value);
        }
        if let Some(work) = &self.pipeline.analyze {
            let value = self.step(Step::Analyze, work, Ok).await?;
            self.run.analyze_step_result = Some(value.clone());
            self.context.analyze = Some(value);
        }
        let number = |value: Value| value.get("score").and_then(Value::as_f64).ok_or("the judge gave no number".into());
        let score = self.step(Step::GenerateScore, score, number).await?;
        if !score.is_finite() {
            // SCO-007.
            self.done.pop();
            let message = format!("the score is {score}, which is no finite number");
            return Err((Step::GenerateScore, message.into()));
        }
        self.run.score = Some(score);
        self.context.score = Some(score);
        if let Some(work) = &self.pipeline.reason {
            let text = |value: Value| value.as_str().map(str::to_owned).ok_or("the judge gave no text".into());
            self.run.reason = Some(self.step(Step::GenerateReason, work, text).await?);
        }
        Ok(())
    }

    async fn step<T>(
        &mut self,
        step: Step,
        work: &Work<T>,
        read: impl FnOnce(Value) -> Result<T, ScorerError>,
    ) -> Result<T, (Step, ScorerError)> {
        let result = match work {
            Work::Function(function) => {
                let context = self.context.clone();
                // The call itself may panic, too, before it gives a future.
                let called = AssertUnwindSafe(async { function(context).await }).catch_unwind().await;
                called.unwrap_or_else(|_| Err("the step panicked".into()))
            }
            Work::Judge(judge) => self.ask(step, judge).await.and_then(read),
        };
        match result {
            Ok(value) => {
                self.done.push(step);
                Ok(value)
            }
            Err(error) => Err((step, error)),
        }
    }

    async fn ask(&mut self, step: Step, work: &JudgeStep) -> Result<Value, ScorerError> {
        if !work.is_needed(&self.context) {
            return Ok(Value::Null);
        }
        let own = work.judge.clone().unwrap_or_default();
        let judge = own.over(self.pipeline.judge.as_ref());
        let Some(resolved) = judge.resolved() else { return Err(ScorerError::MissingJudge(step)) };
        let prompt = std::panic::catch_unwind(AssertUnwindSafe(|| work.prompt(&self.context)));
        let prompt = prompt.map_err(|_| ScorerError::failed("the step's prompt panicked"))?;
        let of_score = score_schema();
        let anything = Value::Object(Default::default());
        let schema = match step {
            Step::Preprocess | Step::Analyze => Some(work.output_schema.as_ref().unwrap_or(&anything)),
            Step::GenerateScore => Some(work.output_schema.as_ref().unwrap_or(&of_score)),
            Step::GenerateReason => None,
        };
        let slot = match step {
            Step::Preprocess => &mut self.run.preprocess_prompt,
            Step::Analyze => &mut self.run.analyze_prompt,
            Step::GenerateScore => &mut self.run.generate_score_prompt,
            Step::GenerateReason => &mut self.run.generate_reason_prompt,
        };
        *slot = Some(prompt.clone());
        let (execution, result) = ask(&judge, resolved, prompt, schema).await;
        self.run.judge.entry(step).or_default().executions.push(execution);
        result.map_err(ScorerError::Failed)
    }
}

#[async_trait]
impl Scorer for PipelineScorer {
    fn id(&self) -> &str {
        &self.inner.id
    }

    fn name(&self) -> &str {
        &self.inner.name
    }

    fn pass_threshold(&self) -> Option<f64> {
        self.inner.threshold
    }

    async fn score(&self, input: &ScorerInput) -> Result<Score, ScorerError> {
        let run = self.run(input.clone()).await?;
        let feedback = self.inner.feedback.as_ref().and_then(|feedback| feedback(&run));
        match (run.score, run.not_scorable) {
            (Some(score), _) => Ok(Score { score, reason: run.reason, feedback }),
            (None, Some(not)) => Err(ScorerError::NotScorable(not.reason)),
            (None, None) => Err("the pipeline gave no score".into()),
        }
    }
}
