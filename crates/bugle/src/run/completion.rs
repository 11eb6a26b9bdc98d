//! Judging whether the work is done (SCO §3).

use std::{
    collections::HashMap,
    fmt::Write as _,
    hash::{DefaultHasher, Hash, Hasher},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::time::{Instant, sleep_until};

use super::machine::Verdict;
use crate::{
    json::{Object, Value},
    scorer::{
        CompletionResult, Score, Scorer, ScorerError, ScorerInput, ScorerResult, Strategy, TaskCompletion, passes,
    },
};

/// The most characters of one reason that the model is told (SCO-070).
const REASON_MAX: usize = 1000;

/// What is checked.
pub(super) struct Check {
    pub(super) input: ScorerInput,
    /// The turn of the loop, from 1.
    pub(super) iteration: u32,
    /// No step is left after this one.
    pub(super) last: bool,
    /// How many calls the run has had results of: the same answer after more work is another one.
    pub(super) work: usize,
}

/// Verdicts of this run: the same answer is not judged twice (SCO-R10).
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    known: HashMap<(usize, u64), ScorerResult>,
}

/// Runs the scorers, within their time limit. Dropping the future stops them.
pub(super) async fn judge(completion: &TaskCompletion, known: &mut Verdicts, check: Check) -> Verdict {
    let begun = Instant::now();
    let (scored, timed_out) = run_all(completion, known, &check, begun + completion.timeout).await;
    let result = decide(completion.strategy, scored, begun.elapsed(), timed_out);
    if let Some(hook) = &completion.on_complete {
        let result = result.clone();
        match AssertUnwindSafe(async { hook(result).await }).catch_unwind().await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "the onComplete hook of a completion check failed"),
            Err(_) => tracing::error!("the onComplete hook of a completion check panicked"),
        }
    }
    let feedback = (!result.complete).then(|| feedback(completion, &result, check.last));
    Verdict {
        passed: result.complete,
        payload: payload(&result, &check, completion.suppress_feedback),
        feedback,
        suppress_feedback: completion.suppress_feedback,
    }
}

/// The results in list order, and whether time ran out.
async fn run_all(
    completion: &TaskCompletion,
    known: &mut Verdicts,
    check: &Check,
    deadline: Instant,
) -> (Vec<ScorerResult>, bool) {
    let key = {
        let mut hasher = DefaultHasher::new();
        (check.input.output.to_string(), check.work).hash(&mut hasher);
        hasher.finish()
    };
    let mut found: Vec<Option<ScorerResult>> = vec![None; completion.scorers.len()];
    let mut open = Vec::new();
    for (index, scorer) in completion.scorers.iter().enumerate() {
        match known.known.get(&(index, key)) {
            Some(verdict) => found[index] = Some(ScorerResult { duration: 0, ..verdict.clone() }),
            None => open.push((index, scorer)),
        }
    }
    let is_clear = |found: &[Option<ScorerResult>]| {
        completion.strategy == Strategy::Any && found.iter().flatten().any(|result| result.passed)
    };
    let mut timed_out = false;
    if completion.parallel {
        let mut running: FuturesUnordered<_> =
            open.iter().map(|(index, scorer)| score(*index, scorer, &check.input)).collect();
        while !running.is_empty() && !is_clear(&found) {
            tokio::select! {
                biased;
                Some((index, result)) = running.next() => found[index] = Some(result),
                () = sleep_until(deadline) => {
                    timed_out = true;
                    break;
                }
            }
        }
    } else {
        let mut ran = completion.scorers.len();
        for (index, scorer) in completion.scorers.iter().enumerate() {
            if found[index].is_none() {
                tokio::select! {
                    biased;
                    (_, result) = score(index, scorer, &check.input) => found[index] = Some(result),
                    () = sleep_until(deadline) => {
                        timed_out = true;
                        break;
                    }
                }
            }
            let Some(result) = &found[index] else { break };
            // The verdict is clear; those behind are not asked (SCO-037).
            let clear = match completion.strategy {
                Strategy::All => !result.passed && !result.not_scorable,
                Strategy::Any => result.passed,
            };
            if clear {
                ran = index + 1;
                break;
            }
        }
        found.truncate(ran);
    }
    for (index, scorer) in completion.scorers.iter().enumerate().take(found.len()) {
        match &found[index] {
            Some(result) if scorer.is_pure() && !result.errored => {
                known.known.insert((index, key), result.clone());
            }
            None if timed_out => {
                let reason = "Scorer did not finish before the completion timeout";
                let took = completion.timeout;
                found[index] = Some(result_of(scorer, took, (0.0, false), Some(reason.to_owned())));
            }
            _ => {}
        }
    }
    (found.into_iter().flatten().collect(), timed_out)
}

async fn score(index: usize, scorer: &Arc<dyn Scorer>, input: &ScorerInput) -> (usize, ScorerResult) {
    let begun = Instant::now();
    let judged = AssertUnwindSafe(async { scorer.score(input).await }).catch_unwind().await;
    let judged = judged.unwrap_or_else(|_| Err(ScorerError::failed("the scorer panicked")));
    let judged = match judged {
        // SCO-007.
        Ok(score) if !score.score.is_finite() => {
            Err(ScorerError::failed(format!("the score is {}, which is no finite number", score.score)))
        }
        judged => judged,
    };
    let took = begun.elapsed();
    let result = match judged {
        Ok(Score { score, reason, feedback }) => {
            let passed = passes(score, scorer.pass_threshold());
            ScorerResult { feedback, ..result_of(scorer, took, (score, passed), reason) }
        }
        Err(ScorerError::NotScorable(reason)) => {
            ScorerResult { not_scorable: true, ..result_of(scorer, took, (0.0, false), Some(reason)) }
        }
        Err(error) => {
            let reason = format!("Scorer threw an error: {error}");
            ScorerResult { errored: true, ..result_of(scorer, took, (0.0, false), Some(reason)) }
        }
    };
    (index, result)
}

fn result_of(
    scorer: &Arc<dyn Scorer>,
    took: Duration,
    (score, passed): (f64, bool),
    reason: Option<String>,
) -> ScorerResult {
    ScorerResult {
        score,
        passed,
        reason,
        scorer_id: scorer.id().to_owned(),
        scorer_name: scorer.name().to_owned(),
        duration: millis(took),
        errored: false,
        not_scorable: false,
        feedback: None,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// SCO-038, SCO-039.
fn decide(strategy: Strategy, scorers: Vec<ScorerResult>, took: Duration, timed_out: bool) -> CompletionResult {
    let mut counted = scorers.iter().filter(|result| !result.not_scorable).peekable();
    let complete = if counted.peek().is_none() {
        tracing::warn!("no scorer of a completion check had anything to judge; it counts as passed");
        true
    } else {
        match strategy {
            Strategy::All => counted.all(|result| result.passed),
            Strategy::Any => counted.any(|result| result.passed),
        }
    };
    let deciding = scorers.iter().find(|result| result.passed).or(scorers.first());
    CompletionResult {
        complete,
        completion_reason: deciding.and_then(|result| result.reason.clone()),
        total_duration: millis(took),
        timed_out,
        scorers,
    }
}

/// The `is-task-complete` payload (SCO-045).
fn payload(result: &CompletionResult, check: &Check, suppress_feedback: bool) -> Object {
    let mut payload = Object::new();
    payload.insert("iteration".to_owned(), check.iteration.into());
    payload.insert("passed".to_owned(), result.complete.into());
    payload.insert("results".to_owned(), serde_json::to_value(&result.scorers).unwrap_or(Value::Null));
    payload.insert("duration".to_owned(), result.total_duration.into());
    payload.insert("timedOut".to_owned(), result.timed_out.into());
    if let Some(reason) = &result.completion_reason {
        payload.insert("reason".to_owned(), reason.clone().into());
    }
    payload.insert("maxIterationReached".to_owned(), check.last.into());
    payload.insert("suppressFeedback".to_owned(), suppress_feedback.into());
    payload
}

/// What the model is told of a check that failed (SCO-042).
fn feedback(completion: &TaskCompletion, result: &CompletionResult, last: bool) -> String {
    let passed = result.scorers.iter().filter(|one| one.passed).count();
    let needed = match completion.strategy {
        Strategy::All => "all have to pass",
        Strategy::Any => "one has to pass",
    };
    // Writing to a string cannot fail.
    let mut text = format!(
        "# Completion check: the task is not complete\n\n{passed} of {} checks passed; {needed}. Duration: {} ms.\n",
        result.scorers.len(),
        result.total_duration
    );
    if result.timed_out {
        text.push_str("The check ran out of time before all scorers had finished.\n");
    }
    for one in &result.scorers {
        let verdict = match (one.passed, one.not_scorable) {
            (true, _) => "passed",
            (false, true) => "nothing to judge",
            (false, false) => "not passed",
        };
        let _ = write!(text, "\n- {} ({}): score {}, {verdict}", one.scorer_name, one.scorer_id, one.score);
        let reason = one.feedback.as_ref().or(one.reason.as_ref());
        if let Some(reason) = reason.filter(|_| !one.passed) {
            // A rubric's own text is cut by its criteria already.
            let reason = if one.feedback.is_some() { reason.clone() } else { cut(reason) };
            let _ = write!(text, "\n  {}", reason.replace('\n', "\n  "));
        }
    }
    text.push_str(if last {
        "\n\nThe limit of steps is reached; the work ends here."
    } else {
        "\n\nContinue working on the task, until these checks pass."
    });
    text
}

/// At most a thousand characters (SCO-070).
fn cut(text: &str) -> String {
    match text.char_indices().nth(REASON_MAX) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}
