//! Scoring runs once they have ended (SCO §5).

use std::sync::{Arc, Mutex};

use bugle::{
    RunOptions,
    json::{Value, json},
    model::Script,
    scorer::{LiveScore, LiveScorer, Sampling, Score, ScorerError, ScorerInput},
};
use tokio::sync::mpsc;

use super::By;
use crate::r#loop::world_with;

/// Scores by `judge`; what it gives can be awaited.
fn live(
    judge: impl Fn(&ScorerInput) -> Result<Score, ScorerError> + Send + Sync + 'static,
) -> (LiveScorer, mpsc::UnboundedReceiver<LiveScore>) {
    let (sender, scores) = mpsc::unbounded_channel();
    let scorer = By { id: "live", judge, threshold: None, pure: true };
    (LiveScorer::new(Arc::new(scorer)).on_score(move |score| sender.send(score).unwrap()), scores)
}

fn with(scorer: LiveScorer) -> RunOptions {
    RunOptions { scorers: Some([("key".to_owned(), scorer)].into()), ..RunOptions::default() }
}

#[tokio::test(start_paused = true)]
async fn sco_080_sco_010_a_run_is_scored_after_its_end_with_all_that_it_was() {
    let seen: Arc<Mutex<Value>> = Arc::default();
    let kept = seen.clone();
    let (scorer, mut scores) = live(move |run| {
        *kept.lock().unwrap() = serde_json::to_value(run).unwrap();
        Ok(Score::new(0.5).because(run.text()))
    });
    let world = world_with(["answer", "again"], |agent| agent.default_options(with(scorer))).await;
    let mut options = RunOptions::default();
    options.request_context.set("theme", "dark").set("mastra__resourceId", "user");
    let ran = world.run_with("question", options).await;
    let score = scores.recv().await.unwrap();
    assert_eq!(
        (score.run_id, score.agent_id.as_str(), score.thread),
        (ran.output.run_id, "plain", Some(world.thread.clone()))
    );
    assert_eq!((score.scorer_id.as_str(), score.score, score.reason.as_deref()), ("live", 0.5, Some("answer")));
    let run = seen.lock().unwrap().clone();
    assert_eq!(run["requestContext"], json!({"theme": "dark"}));
    assert_eq!(run["input"]["inputMessages"][0]["content"]["parts"][0]["text"], "question");
    assert_eq!(run["input"]["systemMessages"][0]["content"], "You are plain.");
    assert_eq!(run["input"]["rememberedMessages"], json!([]));
    world.run("more").await;
    scores.recv().await.unwrap();
    assert_eq!(seen.lock().unwrap()["input"]["rememberedMessages"].as_array().unwrap().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn sco_080_a_scorer_neither_delays_nor_fails_a_run_and_a_calls_replace_the_agents() {
    let (broken, _) = live(|_| panic!("as told"));
    let (own, mut scores) = live(|_| Ok(Score::pass()));
    let world = world_with(["one", "two"], |agent| agent.default_options(with(broken))).await;
    assert_eq!(world.run("first").await.output.text, "one");
    let ran = world.run_with("second", with(own)).await;
    assert_eq!(scores.recv().await.unwrap().run_id, ran.output.run_id);
}

#[tokio::test(start_paused = true)]
async fn sco_081_sco_082_the_filter_is_asked_first_and_then_the_sampling() {
    let asked: Arc<Mutex<Vec<Value>>> = Arc::default();
    let kept = asked.clone();
    let (scorer, mut scores) = live(|run| Ok(Score::pass().because(run.text())));
    let scorer = scorer.filter(move |about| {
        kept.lock().unwrap().push(about.clone());
        assert_ne!(about["requestContext"]["panic"], true, "as told");
        about["requestContext"]["score"] == true
    });
    let never = scorer.clone().sampling(Sampling::Ratio(0.0));
    let world = world_with(["a", "b", "c", "d"], |agent| agent.default_options(with(scorer))).await;
    let run = async |context: &[&str], options: RunOptions| {
        let mut options = options;
        for key in context {
            options.request_context.set(*key, true);
        }
        world.run_with("go", options).await;
    };
    run(&[], RunOptions::default()).await;
    run(&["panic", "score"], RunOptions::default()).await;
    run(&["score"], with(never)).await;
    run(&["score"], RunOptions::default()).await;
    assert_eq!(scores.recv().await.unwrap().reason.as_deref(), Some("d"));
    let asked = asked.lock().unwrap();
    assert_eq!(asked.len(), 4, "also where the sampling then says no");
    assert_eq!(
        asked[0],
        json!({
            "requestContext": {}, "entity": {"id": "plain", "name": "plain"}, "entityType": "AGENT", "source": "LIVE",
            "threadId": "thread", "resourceId": "user",
        })
    );
}

#[tokio::test(start_paused = true)]
async fn sco_084_failed_and_aborted_runs_are_not_scored() {
    let (scorer, mut scores) = live(|run| Ok(Score::pass().because(run.text())));
    let scripts = [Script::new().fail_with(400, "no"), Script::new().text("half ").hang(), Script::new().text("whole")];
    let world = world_with(scripts, |agent| agent.default_options(with(scorer))).await;
    world.run("fails").await;
    let abort = tokio_util::sync::CancellationToken::new();
    let stop = async {
        world.model.until_requested(2).await;
        abort.cancel();
    };
    let options = RunOptions { abort: Some(abort.clone()), ..RunOptions::default() };
    tokio::join!(world.run_with("aborted", options), stop);
    world.run("finishes").await;
    assert_eq!(scores.recv().await.unwrap().reason.as_deref(), Some("whole"));
    assert!(scores.try_recv().is_err());
}
