//! Judging whether the work is done (SCO §3).

use std::{
    panic::AssertUnwindSafe,
    time::{Duration, Instant},
};

use futures::{FutureExt, future::join_all};

use super::machine::{Verdict, passes};
use crate::{
    json::{Object, json},
    scorer::{Score, ScorerInput, TaskCompletion},
};

/// Runs the scorers, in parallel, within their time limit.
pub(crate) async fn judge(completion: &TaskCompletion, input: ScorerInput) -> Verdict {
    let begun = Instant::now();
    let scored = join_all(completion.scorers.iter().map(|scorer| {
        let input = &input;
        async move {
            let begun = Instant::now();
            let judged = AssertUnwindSafe(scorer.score(input)).catch_unwind();
            let outcome = tokio::time::timeout(completion.timeout, judged).await;
            let outcome = outcome.map(|judged| judged.unwrap_or_else(|_| Err("the scorer panicked".to_owned())));
            let (score, timed_out) = match outcome {
                Ok(Ok(score)) => (score, false),
                Ok(Err(reason)) => (Score { score: 0.0, reason: Some(reason) }, false),
                Err(_) => (Score { score: 0.0, reason: Some("timed out".to_owned()) }, true),
            };
            (scorer, score, begun.elapsed(), timed_out)
        }
    }))
    .await;
    let is_pass = |score: &Score| score.score >= 1.0;
    let passed: Vec<bool> = scored.iter().map(|(_, score, ..)| is_pass(score)).collect();
    let all = passes(completion.strategy, &passed);
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let results: Vec<_> = scored
        .iter()
        .map(|(scorer, score, took, _)| {
            let mut result = json!({
                "score": score.score,
                "passed": is_pass(score),
                "scorerId": scorer.id(),
                "scorerName": scorer.name(),
                "duration": millis(*took),
            });
            if let Some(reason) = &score.reason {
                result["reason"] = json!(reason);
            }
            result
        })
        .collect();
    let mut payload = Object::new();
    payload.insert("iteration".to_owned(), input.iteration.into());
    payload.insert("passed".to_owned(), all.into());
    payload.insert("results".to_owned(), results.into());
    payload.insert("duration".to_owned(), millis(begun.elapsed()).into());
    payload.insert("timedOut".to_owned(), scored.iter().any(|(.., timed_out)| *timed_out).into());
    payload.insert("suppressFeedback".to_owned(), completion.suppress_feedback.into());
    let feedback = (!all && !completion.suppress_feedback).then(|| {
        let failed = scored.iter().filter(|(_, score, ..)| !is_pass(score));
        let lines: Vec<String> = failed
            .map(|(scorer, score, ..)| match &score.reason {
                Some(reason) => format!("- {}: {reason}", scorer.name()),
                None => format!("- {}: not yet", scorer.name()),
            })
            .collect();
        format!("The task is not complete yet. Checks that did not pass:\n{}\nGo on with the work.", lines.join("\n"))
    });
    Verdict { passed: all, payload, feedback }
}
