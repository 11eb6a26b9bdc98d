//! The rubric scorer (SCO §4). How replies are held against the list is tested beside the code.

use std::sync::Arc;

use bugle::{
    RunOptions,
    json::json,
    model::Script,
    scorer::{Criterion, Rubric, ScorerInput, TaskCompletion, rubric_scorer},
};

use super::{checks, judge_of, passed, verdict};
use crate::{r#loop::world_with, support::user_texts};

#[tokio::test(start_paused = true)]
async fn sco_060_sco_061_sco_069_sco_070_the_loop_goes_on_until_the_required_criteria_are_met() {
    let (judge, model) = judge_of([
        verdict(&[("1", true), ("2", false), ("3", false)]),
        verdict(&[("1", true), ("2", true), ("3", false)]),
    ]);
    let criteria = vec![
        Criterion::new("has an analysis"),
        Criterion::new("names sources"),
        Criterion::new("has a chart").optional(),
    ];
    let completion = TaskCompletion::all(vec![Arc::new(rubric_scorer(model, criteria))]);
    let world = world_with(["draft", "final"], |agent| agent.is_task_complete(completion)).await;
    let ran = world.run("Write a report").await;
    assert_eq!(passed(&ran), [(1, false), (2, true)]);
    assert_eq!((judge.requested(), ran.output.text.as_str()), (2, "final"));
    let result = &checks(&ran)[0]["results"][0];
    assert_eq!((&result["scorerId"], &result["scorerName"]), (&json!("rubric-scorer"), &json!("Rubric (LLM)")));
    // SCO-068.
    assert_eq!(
        result["reason"],
        "✓ [required] has an analysis: about 1\n✗ [required] names sources: about 2\n\
         ✗ [optional] has a chart: about 3\nOverall: so so\nRequired criteria not met: 1"
    );
    let told = world.asked(1).pop().unwrap();
    assert!(told.contains("✗ [required] names sources: about 2"), "{told}");
    assert!(!told.contains("has an analysis"), "only what is missing is said: {told}");
    // SCO-066: the judge reads the task, the work and the numbered list, the work as data.
    let asked = user_texts(&judge.requests()[0].prompt).remove(0);
    for part in ["Write a report", "draft", "1. [required] has an analysis", "3. [optional] has a chart", "It is data"]
    {
        assert!(asked.contains(part), "{part} is not in {asked}");
    }
    let fence = asked.split("<work_").nth(1).and_then(|rest| rest.split('>').next()).unwrap().to_owned();
    let next = user_texts(&judge.requests()[1].prompt).remove(0);
    assert!(fence.len() == 12 && !next.contains(&fence), "the fence is fresh each time: {fence}");
}

#[tokio::test(start_paused = true)]
async fn sco_067_sco_r1_an_empty_or_invented_list_passes_nothing() {
    for reply in [verdict(&[]), verdict(&[("it is lovely", true), ("it is long", true)])] {
        let (_, model) = judge_of([reply]);
        let scorer = rubric_scorer(model, "has an analysis\nnames sources");
        let run = scorer.run(ScorerInput::of("anything")).await.unwrap();
        assert_eq!(run.score, Some(0.0));
        assert!(run.reason.unwrap().ends_with("Required criteria not met: 2"));
    }
}

#[tokio::test(start_paused = true)]
async fn sco_065_sco_r2_without_criteria_the_judge_is_not_asked() {
    for rubric in [None, Some(""), Some("\n- \n")] {
        let (judge, model) = judge_of(["unused"]);
        let scorer = match rubric {
            Some(rubric) => rubric_scorer(model, rubric),
            None => Rubric::new(model).build(),
        };
        let run = scorer.run(ScorerInput::of("x")).await.unwrap();
        assert_eq!((run.score, judge.requested()), (Some(1.0), 0));
    }
}

#[tokio::test(start_paused = true)]
async fn sco_064_criteria_may_come_with_the_run() {
    let input = || {
        let mut input = ScorerInput::of("x").with_input(json!({"rubric": "from the input"}));
        input.more.insert("additionalContext".into(), json!({"rubric": [{"description": "from the context"}]}));
        input.request_context.insert("rubric".into(), json!(["from the request"]));
        input
    };
    let (mut without_request, mut bare) = (input(), input());
    without_request.request_context.clear();
    bare.request_context.clear();
    bare.more.clear();
    for (input, expected) in
        [(input(), "from the request"), (without_request, "from the context"), (bare, "from the input")]
    {
        let (judge, model) = judge_of([verdict(&[("1", true)])]);
        assert_eq!(Rubric::new(model).build().run(input).await.unwrap().score, Some(1.0));
        let asked = user_texts(&judge.requests()[0].prompt).remove(0);
        assert!(asked.contains(&format!("1. [required] {expected}\n")) && !asked.contains("\n2. "), "{asked}");
    }
    // Configured ones win.
    let (judge, model) = judge_of([verdict(&[("1", true)])]);
    rubric_scorer(model, "configured").run(input()).await.unwrap();
    assert!(user_texts(&judge.requests()[0].prompt)[0].contains("1. [required] configured"));
}

#[tokio::test(start_paused = true)]
async fn sco_063_another_scale_never_passes_a_check() {
    let (_, model) = judge_of([verdict(&[("1", true)])]);
    let scorer = Rubric::new(model).criteria("good").scale(10.0).build();
    assert_eq!(scorer.run(ScorerInput::of("x")).await.unwrap().score, Some(10.0));
    let (_, model) = judge_of([verdict(&[("1", true)])]);
    let scorer = Rubric::new(model).criteria("good").scale(10.0).build();
    let world = world_with(["x"], |agent| agent.is_task_complete(TaskCompletion::all(vec![Arc::new(scorer)]))).await;
    let ran = world.run_with("go", RunOptions { max_steps: Some(1), ..RunOptions::default() }).await;
    assert_eq!(passed(&ran), [(1, false)]);
}

#[tokio::test(start_paused = true)]
async fn sco_070_long_reasons_do_not_flood_the_context() {
    let long = json!({
        "criteria": [{"criterion": "1", "satisfied": false, "required": true, "reasoning": "x".repeat(50_000)}],
        "overallAssessment": "y".repeat(50_000),
    });
    let (_, model) = judge_of([Script::new().text(&long.to_string()), verdict(&[("1", true)])]);
    let completion = TaskCompletion::all(vec![Arc::new(rubric_scorer(model, "short"))]);
    let world = world_with(["draft", "final"], |agent| agent.is_task_complete(completion)).await;
    world.run("go").await;
    let told = world.asked(1).pop().unwrap();
    assert!((1000..1500).contains(&told.len()), "{}", told.len());
}
