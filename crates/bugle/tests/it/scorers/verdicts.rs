//! How scorers decide together: strategies, time, cancellation, reuse (SCO §3.2).

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use bugle::{
    RunOptions,
    json::{Value, json},
    model::{Gate, Script},
    scorer::{PipelineScorer, Score, Scorer, ScorerError, ScorerInput, Strategy, TaskCompletion, rubric_scorer},
};

use super::{By, by, checks, holds, judge_of, passed, verdict};
use crate::r#loop::{Ran, call, echo, world_with};

/// One answer, checked once.
async fn once(completion: TaskCompletion) -> (Ran, Value) {
    let world = world_with(["answer"], |agent| agent.is_task_complete(completion)).await;
    let ran = world.run_with("work", RunOptions { max_steps: Some(1), ..RunOptions::default() }).await;
    let check = checks(&ran).remove(0);
    (ran, check)
}

fn scores(id: &'static str, score: f64) -> Arc<dyn Scorer> {
    by(id, move |_| Ok(Score::new(score).because(format!("{id} says {score}"))))
}

/// Counts its calls, waits, then scores.
struct Slow {
    id: &'static str,
    wait: Duration,
    score: f64,
    begun: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
}

fn slow(id: &'static str, seconds: u64, score: f64) -> (Arc<dyn Scorer>, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (begun, ended): (Arc<AtomicUsize>, Arc<AtomicUsize>) = Default::default();
    let slow = Slow { id, wait: Duration::from_secs(seconds), score, begun: begun.clone(), ended: ended.clone() };
    (Arc::new(slow), begun, ended)
}

#[async_trait::async_trait]
impl Scorer for Slow {
    fn id(&self) -> &str {
        self.id
    }
    async fn score(&self, _: &ScorerInput) -> Result<Score, ScorerError> {
        self.begun.fetch_add(1, SeqCst);
        tokio::time::sleep(self.wait).await;
        self.ended.fetch_add(1, SeqCst);
        Ok(Score::new(self.score).because(self.id))
    }
}

fn ids(check: &Value) -> Vec<&str> {
    check["results"].as_array().unwrap().iter().map(|result| result["scorerId"].as_str().unwrap()).collect()
}

#[tokio::test(start_paused = true)]
async fn sco_034_sco_r11_a_score_passes_at_exactly_one_unless_its_scorer_has_a_threshold() {
    for (score, threshold, passes) in
        [(1.0, None, true), (0.99, None, false), (1.5, None, false), (0.8, Some(0.8), true), (0.79, Some(0.8), false)]
    {
        let scorer = By { id: "s", judge: move |_: &ScorerInput| Ok(Score::new(score)), threshold, pure: true };
        let (_, check) = once(TaskCompletion::all(vec![Arc::new(scorer)])).await;
        assert_eq!(check["passed"], passes, "{score} with {threshold:?}");
    }
    let pipeline =
        PipelineScorer::builder("p").pass_threshold(0.5).generate_score(|_| async { Ok(0.6) }).build().unwrap();
    assert_eq!(once(TaskCompletion::all(vec![Arc::new(pipeline)])).await.1["passed"], true);
}

#[tokio::test(start_paused = true)]
async fn sco_034_sco_038_all_or_any_decide_and_the_first_to_pass_gives_the_reason() {
    let two = || vec![scores("no", 0.0), scores("yes", 1.0)];
    for (strategy, passes) in [(Strategy::All, false), (Strategy::Any, true)] {
        let completion = TaskCompletion { strategy, ..TaskCompletion::all(two()) };
        let (_, check) = once(completion).await;
        assert_eq!((&check["passed"], &check["reason"]), (&json!(passes), &json!("yes says 1")));
    }
    let (_, check) = once(TaskCompletion::any(vec![scores("no", 0.0), scores("nor", 0.5)])).await;
    assert_eq!((&check["passed"], &check["reason"]), (&json!(false), &json!("no says 0")));
    assert_eq!(check["results"][1]["score"], 0.5);
}

#[tokio::test(start_paused = true)]
async fn sco_035_a_scorer_that_fails_counts_as_zero_and_the_run_goes_on() {
    let broken = || by("broken", |_| Err("no network".into()));
    let panics = by("panics", |_| panic!("as told"));
    let odd = by("odd", |_| Ok(Score::new(f64::NAN)));
    let (ran, check) = once(TaskCompletion::all(vec![broken(), panics, odd])).await;
    assert_eq!(ran.output.error, None);
    let reasons: Vec<&Value> = check["results"].as_array().unwrap().iter().map(|result| &result["reason"]).collect();
    assert_eq!(
        reasons,
        [
            "Scorer threw an error: no network",
            "Scorer threw an error: the scorer panicked",
            "Scorer threw an error: the score is NaN, which is no finite number",
        ]
    );
    assert!(
        check["results"].as_array().unwrap().iter().all(|result| result["errored"] == true && result["score"] == 0)
    );
    assert_eq!(once(TaskCompletion::any(vec![broken(), scores("yes", 1.0)])).await.1["passed"], true);
}

#[tokio::test(start_paused = true)]
async fn sco_036_sco_r8_at_the_deadline_the_rest_is_stopped_and_counts_as_not_passed() {
    let (late, begun, ended) = slow("late", 20, 1.0);
    let completion = TaskCompletion::all(vec![scores("yes", 1.0), late]).timeout(Duration::from_secs(10));
    let (ran, check) = once(completion).await;
    assert_eq!(
        (&check["timedOut"], &check["passed"], &check["duration"]),
        (&json!(true), &json!(false), &json!(10_000))
    );
    assert_eq!(check["results"][1]["reason"], "Scorer did not finish before the completion timeout");
    assert_eq!((begun.load(SeqCst), ended.load(SeqCst), ran.output.error), (1, 0, None));

    // The judge's request is cancelled, not only forgotten.
    let gate = Gate::new();
    let (judge, model) = judge_of([Script::new().gate(&gate).text("late")]);
    let completion = TaskCompletion::all(vec![Arc::new(rubric_scorer(model, "good"))]).timeout(Duration::from_secs(10));
    once(completion).await;
    judge.until_cancelled(1).await;
    assert_eq!(judge.finished(), 0);
}

#[tokio::test(start_paused = true)]
async fn sco_042_feedback_says_that_time_ran_out() {
    let (late, _, _) = slow("late", 20, 1.0);
    let completion = TaskCompletion::all(vec![late]).timeout(Duration::from_secs(1));
    let world = world_with(["one", "two"], |agent| agent.is_task_complete(completion)).await;
    world.run_with("work", RunOptions { max_steps: Some(2), ..RunOptions::default() }).await;
    let told = world.asked(1).pop().unwrap();
    assert!(told.contains("ran out of time") && told.contains("Duration: 1000 ms"), "{told}");
}

#[tokio::test(start_paused = true)]
async fn sco_037_parallel_scorers_run_at_once_and_the_first_pass_of_any_stops_the_rest() {
    let (one, ..) = slow("one", 3, 1.0);
    let (two, ..) = slow("two", 3, 1.0);
    let (_, check) = once(TaskCompletion::all(vec![one, two])).await;
    assert_eq!((&check["duration"], &check["passed"]), (&json!(3000), &json!(true)));

    let (late, begun, ended) = slow("late", 60, 1.0);
    let (quick, ..) = slow("quick", 1, 1.0);
    let (_, check) = once(TaskCompletion::any(vec![late, quick])).await;
    assert_eq!((ids(&check), &check["duration"], &check["timedOut"]), (vec!["quick"], &json!(1000), &json!(false)));
    assert_eq!((begun.load(SeqCst), ended.load(SeqCst)), (1, 0));

    // With `all` the first failure is not final: all reasons are wanted.
    let (late, _, ended) = slow("late", 5, 0.0);
    let (_, check) = once(TaskCompletion::all(vec![scores("no", 0.0), late])).await;
    assert_eq!((ids(&check), ended.load(SeqCst)), (vec!["no", "late"], 1));
}

#[tokio::test(start_paused = true)]
async fn sco_037_sequential_scorers_run_in_order_until_the_verdict_is_clear() {
    let (never, begun, _) = slow("never", 1, 1.0);
    let list = vec![scores("yes", 1.0), scores("no", 0.0), never];
    let (_, check) = once(TaskCompletion::all(list).sequential()).await;
    assert_eq!((ids(&check), begun.load(SeqCst)), (vec!["yes", "no"], 0));

    let (never, begun, _) = slow("never", 1, 1.0);
    let list = vec![scores("no", 0.0), scores("yes", 1.0), never];
    let (_, check) = once(TaskCompletion::any(list).sequential()).await;
    assert_eq!((ids(&check), begun.load(SeqCst), &check["passed"]), (vec!["no", "yes"], 0, &json!(true)));

    let (one, ..) = slow("one", 3, 1.0);
    let (two, ..) = slow("two", 3, 1.0);
    assert_eq!(once(TaskCompletion::all(vec![one, two]).sequential()).await.1["duration"], 6000);
}

#[tokio::test(start_paused = true)]
async fn sco_039_sco_r4_what_cannot_be_scored_has_no_say() {
    let mute = || by("mute", |_| Err(ScorerError::not_scorable("no code in it")));
    for (others, strategy, passes) in [
        (vec![], Strategy::All, true),
        (vec![], Strategy::Any, true),
        (vec![scores("yes", 1.0)], Strategy::All, true),
        (vec![scores("no", 0.0)], Strategy::All, false),
        (vec![scores("no", 0.0)], Strategy::Any, false),
    ] {
        for parallel in [true, false] {
            let mut list = vec![mute()];
            list.extend(others.iter().cloned());
            let completion = TaskCompletion { strategy, parallel, ..TaskCompletion::all(list) };
            let (_, check) = once(completion).await;
            assert_eq!(check["passed"], passes, "{strategy:?} of {:?}", ids(&check));
            let result = &check["results"][0];
            assert_eq!(
                (&result["notScorable"], &result["reason"], result.get("errored")),
                (&json!(true), &json!("no code in it"), None)
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn sco_r10_the_same_answer_is_not_judged_twice() {
    let (judge, model) = judge_of([verdict(&[("1", false)]), verdict(&[("1", true)])]);
    let completion = TaskCompletion::all(vec![Arc::new(rubric_scorer(model, "good"))]);
    let world = world_with(["draft", "draft", "final"], |agent| agent.is_task_complete(completion)).await;
    let ran = world.run("work").await;
    assert_eq!((passed(&ran), judge.requested()), (vec![(1, false), (2, false), (3, true)], 2));
    assert_eq!(checks(&ran)[0]["results"][0]["reason"], checks(&ran)[1]["results"][0]["reason"]);
}

#[tokio::test(start_paused = true)]
async fn sco_r10_after_more_work_the_same_answer_is_judged_again() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let scorer =
        by("counts", move |_| Ok(if counted.fetch_add(1, SeqCst) == 1 { Score::pass() } else { Score::fail("again") }));
    let scripts = [Script::new().text("done"), call(1), Script::new().text("done")];
    let world =
        world_with(scripts, |agent| agent.tool(echo()).is_task_complete(TaskCompletion::all(vec![scorer]))).await;
    let ran = world.run("work").await;
    assert_eq!((passed(&ran), asked.load(SeqCst)), (vec![(1, false), (3, true)], 2));
}

#[tokio::test(start_paused = true)]
async fn sco_r10_failures_and_scorers_that_look_outside_are_asked_again() {
    let count = |pure: bool, fails: bool| {
        let asked = Arc::new(AtomicUsize::new(0));
        let counted = asked.clone();
        let judge = move |_: &ScorerInput| {
            counted.fetch_add(1, SeqCst);
            if fails { Err(ScorerError::failed("no network")) } else { Ok(Score::fail("not yet")) }
        };
        (Arc::new(By { id: "counts", judge, threshold: None, pure }), asked)
    };
    for (pure, fails, times) in [(true, false, 1), (true, true, 3), (false, false, 3)] {
        let (scorer, asked) = count(pure, fails);
        let completion = TaskCompletion::all(vec![scorer]);
        let world = world_with(["same", "same", "same"], |agent| agent.is_task_complete(completion)).await;
        world.run_with("work", RunOptions { max_steps: Some(3), ..RunOptions::default() }).await;
        assert_eq!(asked.load(SeqCst), times, "pure {pure}, fails {fails}");
    }
}

#[tokio::test(start_paused = true)]
async fn sco_036_an_abort_stops_a_check_under_way() {
    let (late, begun, ended) = slow("late", 600, 1.0);
    let world =
        world_with(["answer"], |agent| agent.is_task_complete(TaskCompletion::all(vec![late, holds("answer")]))).await;
    let abort = tokio_util::sync::CancellationToken::new();
    let options = RunOptions { abort: Some(abort.clone()), ..RunOptions::default() };
    let run = world.run_with("work", options);
    let stop = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        abort.cancel();
    };
    let (ran, ()) = tokio::join!(run, stop);
    assert_eq!((checks(&ran).len(), begun.load(SeqCst), ended.load(SeqCst)), (0, 1, 0));
    assert_eq!(ran.output.finish_reason, bugle::chunk::FinishReason::Aborted);
}
