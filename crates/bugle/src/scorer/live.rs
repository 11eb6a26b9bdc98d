//! Scoring runs once they have ended, beside the work (SCO §5).

use std::{fmt, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::FutureExt;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::{Scorer, ScorerError, ScorerInput};
use crate::{
    id::{RunId, ThreadKey},
    json::{Value, json},
};

/// Runs that one live scorer works on, or has waiting, at most; more are not scored.
const WAITING_MAX: usize = 1024;
/// Of them, so many at once.
const AT_ONCE: usize = 16;
/// The longest one score may take.
const TIME_MAX: Duration = Duration::from_mins(10);

/// Which runs are scored (SCO-081).
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Sampling {
    /// All.
    #[default]
    Always,
    /// This share of them, from 0 to 1. The run's id decides, so the same run is always in or always out.
    Ratio(f64),
}

impl Sampling {
    /// Whether the run with this id is scored: its hash, as a number from 0 to 1, is below the rate.
    fn takes(self, run_id: &RunId) -> bool {
        match self {
            Self::Always => true,
            Self::Ratio(rate) => {
                let hash = Sha256::digest(run_id.as_str());
                let bits = hash[..6].iter().fold(0_u64, |bits, byte| bits << 8 | u64::from(*byte));
                (bits as f64) / ((1_u64 << 48) as f64) < rate
            }
        }
    }
}

type Filter = Arc<dyn Fn(&Value) -> bool + Send + Sync>;
type OnScore = Arc<dyn Fn(LiveScore) + Send + Sync>;

/// A scorer for runs that have ended: never delays a run and never fails one; what goes wrong is logged (SCO-080).
/// Runs that failed, were aborted, or wait for a person are not scored (SCO-084).
///
/// ```
/// use std::sync::Arc;
/// use bugle::{RunOptions, model::ScriptedModel, scorer::{LiveScorer, Sampling, rubric_scorer}};
/// let judge = Arc::new(ScriptedModel::new());
/// let polite = LiveScorer::new(Arc::new(rubric_scorer(judge, "is polite")))
///     .sampling(Sampling::Ratio(0.1))
///     .filter(|about| about["resourceId"] != "test")
///     .on_score(|scored| println!("{} got {}", scored.run_id, scored.score));
/// let options = RunOptions { scorers: Some([("polite".to_owned(), polite)].into()), ..RunOptions::default() };
/// assert!(options.scorers.is_some());
/// ```
#[derive(Clone)]
pub struct LiveScorer {
    scorer: Arc<dyn Scorer>,
    sampling: Sampling,
    filter: Option<Filter>,
    on_score: Option<OnScore>,
    at_once: Arc<Semaphore>,
    waiting: Arc<Semaphore>,
}

/// What a live scorer gave.
#[derive(Debug, Clone, PartialEq)]
pub struct LiveScore {
    /// The scorer.
    pub scorer_id: String,
    /// The agent.
    pub agent_id: String,
    /// The run.
    pub run_id: RunId,
    /// Its thread, if it has one.
    pub thread: Option<ThreadKey>,
    /// The score.
    pub score: f64,
    /// Why.
    pub reason: Option<String>,
}

impl fmt::Debug for LiveScorer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveScorer")
            .field("scorer", &self.scorer.id())
            .field("sampling", &self.sampling)
            .finish_non_exhaustive()
    }
}

/// A run to be scored.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) agent_id: String,
    pub(crate) agent_name: String,
    pub(crate) thread: Option<ThreadKey>,
    pub(crate) input: ScorerInput,
}

impl LiveScorer {
    /// Scores all runs.
    pub fn new(scorer: Arc<dyn Scorer>) -> Self {
        Self {
            scorer,
            sampling: Sampling::Always,
            filter: None,
            on_score: None,
            at_once: Arc::new(Semaphore::new(AT_ONCE)),
            waiting: Arc::new(Semaphore::new(WAITING_MAX)),
        }
    }

    /// Scores some of them.
    #[must_use]
    pub fn sampling(mut self, sampling: Sampling) -> Self {
        self.sampling = sampling;
        self
    }

    /// Scores those of which it says `true`; asked before sampling. It sees `{requestContext, entity: {id, name},
    /// entityType, source, threadId, resourceId}`. One that panics has said no (SCO-082).
    #[must_use]
    pub fn filter(mut self, filter: impl Fn(&Value) -> bool + Send + Sync + 'static) -> Self {
        self.filter = Some(Arc::new(filter));
        self
    }

    /// Called with each score.
    #[must_use]
    pub fn on_score(mut self, hook: impl Fn(LiveScore) + Send + Sync + 'static) -> Self {
        self.on_score = Some(Arc::new(hook));
        self
    }

    fn wants(&self, ended: &Ended) -> bool {
        if let Some(filter) = &self.filter {
            let thread = ended.thread.as_ref();
            let about = json!({
                "requestContext": ended.input.request_context,
                "entity": { "id": ended.agent_id, "name": ended.agent_name },
                "entityType": "AGENT",
                "source": "LIVE",
                "threadId": thread.map(|thread| &thread.thread_id),
                "resourceId": thread.and_then(|thread| thread.resource_id.as_ref()),
            });
            let said = std::panic::catch_unwind(AssertUnwindSafe(|| filter(&about)));
            let said = said.unwrap_or_else(|_| {
                tracing::error!(
                    scorer = self.scorer.id(),
                    "the filter of a live scorer panicked; the run is not scored"
                );
                false
            });
            if !said {
                return false;
            }
        }
        self.sampling.takes(&ended.input.run_id)
    }

    /// Scores a run, if it is one of those.
    pub(crate) async fn score(&self, ended: &Ended) {
        if !self.wants(ended) {
            return;
        }
        let (scorer, run) = (self.scorer.id(), &ended.input.run_id);
        let Ok(_place) = self.waiting.try_acquire() else {
            return tracing::warn!(scorer, %run, "too many runs wait to be scored; this one is not");
        };
        // Never closed.
        let Ok(_turn) = self.at_once.acquire().await else { return };
        let judged = AssertUnwindSafe(async { self.scorer.score(&ended.input).await }).catch_unwind();
        match tokio::time::timeout(TIME_MAX, judged).await {
            Ok(Ok(Ok(score))) if score.score.is_finite() => {
                tracing::debug!(scorer, %run, score = score.score, "a run was scored");
                let Some(hook) = &self.on_score else { return };
                let scored = LiveScore {
                    scorer_id: scorer.to_owned(),
                    agent_id: ended.agent_id.clone(),
                    run_id: run.clone(),
                    thread: ended.thread.clone(),
                    score: score.score,
                    reason: score.reason,
                };
                if std::panic::catch_unwind(AssertUnwindSafe(|| hook(scored))).is_err() {
                    tracing::error!(scorer, "the hook of a live scorer panicked");
                }
            }
            Ok(Ok(Ok(score))) => tracing::error!(scorer, %run, score = score.score, "a score is no finite number"),
            Ok(Ok(Err(ScorerError::NotScorable(reason)))) => tracing::debug!(scorer, %run, reason, "not scorable"),
            Ok(Ok(Err(error))) => tracing::error!(scorer, %run, %error, "a run could not be scored"),
            Ok(Err(_)) => tracing::error!(scorer, %run, "a scorer panicked"),
            Err(_) => tracing::error!(scorer, %run, "a scorer took too long"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sco_081_a_ratio_takes_its_share_and_the_same_runs_each_time() {
        let runs: Vec<RunId> = (0..2000).map(|number| format!("run-{number}").as_str().into()).collect();
        let taken = |rate: f64| runs.iter().filter(|run| Sampling::Ratio(rate).takes(run)).count();
        assert_eq!((taken(0.0), taken(1.0)), (0, 2000));
        let quarter = taken(0.25);
        assert!((400..600).contains(&quarter), "{quarter}");
        let (some, more) = (Sampling::Ratio(0.25), Sampling::Ratio(0.5));
        assert!(runs.iter().all(|run| !some.takes(run) || more.takes(run)), "who is in at 0.25 is in at 0.5");
        // abc hashes to ba7816bf8f01…, which is 0.728… of 2^48.
        assert!(Sampling::Ratio(0.7285).takes(&"abc".into()) && !Sampling::Ratio(0.728).takes(&"abc".into()));
    }
}
