//! The steps of a scorer (SCO §1, §2).

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use bugle::{
    json::{Value, json},
    model::{PromptMessage, Script},
    scorer::{Judge, JudgeStep, PipelineScorer, Scorer, ScorerError, ScorerInput, Step},
};

use super::judge_of;
use crate::support::user_texts;

fn failed(error: &ScorerError) -> (Step, Vec<Step>, String) {
    let ScorerError::Run(run) = error else { panic!("{error:?}") };
    (run.failed_step, run.completed_steps.clone(), error.to_string())
}

#[tokio::test]
async fn sco_001_a_scorer_has_an_id_and_its_name_defaults_to_it() {
    let scorer = PipelineScorer::builder("quality").description("How good.").build().unwrap();
    assert_eq!((scorer.id(), scorer.name(), scorer.description()), ("quality", "quality", Some("How good.")));
    assert_eq!(PipelineScorer::builder("q").name("Quality").build().unwrap().name(), "Quality");
    for empty in ["", "  "] {
        let error = PipelineScorer::builder(empty).build().unwrap_err();
        assert_eq!(error.id(), Some("MASTR_SCORER_FAILED_TO_CREATE_MISSING_ID"));
    }
}

#[tokio::test]
async fn sco_002_steps_run_in_their_own_order_whatever_the_declarations() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = |step: &'static str| {
        let seen = seen.clone();
        move || seen.lock().unwrap().push(step)
    };
    let (reason, score, analyze, preprocess) = (note("reason"), note("score"), note("analyze"), note("preprocess"));
    let scorer = PipelineScorer::builder("order")
        .generate_reason(move |cx| {
            reason();
            async move { Ok(format!("{} {:?} {:?}", cx.score.unwrap(), cx.preprocess, cx.analyze)) }
        })
        .generate_score(move |cx| {
            score();
            async move { Ok(cx.analyze.unwrap().as_f64().unwrap() / 2.0) }
        })
        .analyze(move |cx| {
            analyze();
            async move { Ok(json!(cx.preprocess.unwrap().as_f64().unwrap() + 0.5)) }
        })
        .preprocess(move |_| {
            preprocess();
            async move { Ok(json!(1)) }
        })
        .build()
        .unwrap();
    let run = scorer.run(ScorerInput::of("x")).await.unwrap();
    assert_eq!(*seen.lock().unwrap(), ["preprocess", "analyze", "score", "reason"]);
    assert_eq!(
        (run.score, run.preprocess_step_result, run.analyze_step_result),
        (Some(0.75), Some(json!(1)), Some(json!(1.5)))
    );
    assert_eq!(run.reason.as_deref(), Some("0.75 Some(Number(1)) Some(Number(1.5))"));
}

#[test]
fn sco_002_a_step_declared_twice_is_an_error() {
    let twice = PipelineScorer::builder("twice")
        .analyze(|_| async { Ok(Value::Null) })
        .generate_score(|_| async { Ok(1.0) })
        .analyze_by(JudgeStep::new("again", |_| String::new()))
        .build();
    assert_eq!(twice.unwrap_err().to_string(), "scorer twice declares analyze twice; one of them would be lost");
}

#[tokio::test]
async fn sco_003_without_generate_score_no_step_runs() {
    let ran = Arc::new(AtomicUsize::new(0));
    let counted = ran.clone();
    let scorer = PipelineScorer::builder("scoreless")
        .preprocess(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Ok(Value::Null) }
        })
        .build()
        .unwrap();
    let error = scorer.run(ScorerInput::of("x")).await.unwrap_err();
    assert_eq!(error.id(), Some("MASTR_SCORER_FAILED_TO_RUN_MISSING_GENERATE_SCORE"));
    assert_eq!(ran.load(Ordering::SeqCst), 0);
}

#[tokio::test(start_paused = true)]
async fn sco_004_the_first_step_may_be_a_judges_too() {
    let (model, judge) = judge_of([Script::new().text("{\"claims\":[\"a\",\"b\",\"c\"]}")]);
    let scorer = PipelineScorer::builder("counted")
        .judge(Judge::new(judge, "You find claims."))
        .preprocess_by(JudgeStep::new("finds claims", |cx| format!("Claims of {}", cx.run.text())).output_schema(
            json!({"type": "object", "properties": {"claims": {"type": "array"}}, "required": ["claims"]}),
        ))
        .generate_score(|cx| async move { Ok(cx.preprocess.unwrap()["claims"].as_array().unwrap().len() as f64) })
        .build()
        .unwrap();
    let run = scorer.run(ScorerInput::of("text")).await.unwrap();
    assert_eq!((run.score, run.preprocess_step_result.clone()), (Some(3.0), Some(json!({"claims": ["a", "b", "c"]}))));
    assert_eq!(user_texts(&model.requests()[0].prompt), ["Claims of text"]);
    assert_eq!(serde_json::to_value(&run).unwrap()["preprocessPrompt"], "Claims of text");
    let twice = PipelineScorer::builder("twice")
        .preprocess(|_| async { Ok(Value::Null) })
        .preprocess_by(JudgeStep::new("again", |_| String::new()))
        .generate_score(|_| async { Ok(1.0) })
        .build();
    assert_eq!(twice.unwrap_err().to_string(), "scorer twice declares preprocess twice; one of them would be lost");
}

#[tokio::test(start_paused = true)]
async fn sco_004_sco_005_functions_and_judges_mix_and_a_step_may_have_a_judge_of_its_own() {
    let (model, judge) =
        judge_of([Script::new().text("{\"claims\":[\"a\",\"b\"]}"), Script::new().text(" Two claims. ")]);
    let (other, own) = judge_of([Script::new().text("{\"score\":0.5}")]);
    let scorer = PipelineScorer::builder("mixed")
        .judge(Judge::new(judge, "You count claims."))
        .preprocess(|cx| async move { Ok(json!({"length": cx.run.text().len()})) })
        .analyze_by(
            JudgeStep::new("finds claims", |cx| {
                format!("Claims of {}, {}", cx.run.text(), cx.preprocess.as_ref().unwrap())
            })
            .output_schema(
                json!({"type": "object", "properties": {"claims": {"type": "array"}}, "required": ["claims"]}),
            ),
        )
        .generate_score_by(
            JudgeStep::new("scores", |cx| format!("Score {}", cx.analyze.as_ref().unwrap()))
                .judge(Judge::of_model(own)),
        )
        .generate_reason_by(JudgeStep::new("explains", |cx| format!("Why {}?", cx.score.unwrap())))
        .build()
        .unwrap();
    let run = scorer.run(ScorerInput::of("text").with_input("task")).await.unwrap();
    assert_eq!((run.score, run.reason.as_deref()), (Some(0.5), Some("Two claims.")));
    assert_eq!(run.analyze_step_result, Some(json!({"claims": ["a", "b"]})));
    // The step's model with the scorer's instructions.
    let asked = other.requests().remove(0);
    assert!(matches!(&asked.prompt[0], PromptMessage::System { content, .. } if content == "You count claims."));
    assert_eq!(user_texts(&asked.prompt), ["Score {\"claims\":[\"a\",\"b\"]}"]);
    assert_eq!(asked.response_format.unwrap().schema["properties"]["score"]["type"], "number");
    assert_eq!(model.requests()[1].response_format.as_ref().map(|format| &format.schema), None);

    // SCO-011, SCO-014: what a record holds.
    let record = serde_json::to_value(&run).unwrap();
    assert_eq!((&record["input"], &record["output"], &record["score"]), (&json!("task"), &json!("text"), &json!(0.5)));
    assert!(record["runId"].is_string());
    assert_eq!(record["analyzePrompt"], "Claims of text, {\"length\":4}");
    assert_eq!(
        (&record["generateScorePrompt"], &record["generateReasonPrompt"]),
        (&json!("Score {\"claims\":[\"a\",\"b\"]}"), &json!("Why 0.5?"))
    );
    assert_eq!(record.get("preprocessPrompt"), None);
    let execution = &record["judge"]["generateScore"]["executions"][0];
    for (field, value) in [
        ("status", json!("success")),
        ("prompt", json!("Score {\"claims\":[\"a\",\"b\"]}")),
        ("output", json!({"score": 0.5})),
        ("judgeModelId", json!("judge-1")),
        ("judgeProvider", json!("judges")),
        ("attemptCount", json!(1)),
        ("modelCallCount", json!(1)),
        ("durationMs", json!(0)),
    ] {
        assert_eq!(execution[field], value, "{field}");
    }
    assert!(execution["usage"]["totalTokens"].as_u64().unwrap() > 0);
    assert_eq!(execution.get("error"), None);
    assert!(run.usage().total_tokens > Some(0));
}

#[tokio::test(start_paused = true)]
async fn sco_005_a_judge_without_model_or_instructions_fails_when_its_step_is_reached() {
    let ran = Arc::new(AtomicUsize::new(0));
    let counted = ran.clone();
    let (_, model) = judge_of(["unused"]);
    let builder = move |judge: Option<Judge>| {
        let counted = counted.clone();
        let builder = PipelineScorer::builder("unjudged")
            .preprocess(move |_| {
                counted.fetch_add(1, Ordering::SeqCst);
                async { Ok(Value::Null) }
            })
            .generate_score_by(JudgeStep::new("scores", |_| "score".into()));
        match judge {
            Some(judge) => builder.judge(judge),
            None => builder,
        }
    };
    for judge in [None, Some(Judge::of_model(model)), Some(Judge::of_instructions("Judge."))] {
        let before = ran.load(Ordering::SeqCst);
        let error = builder(judge).build().unwrap().run(ScorerInput::of("x")).await.unwrap_err();
        assert_eq!(error.id(), Some("MASTR_SCORER_FAILED_TO_RUN_MISSING_MODEL_OR_INSTRUCTIONS"));
        assert_eq!(failed(&error).0, Step::GenerateScore);
        assert_eq!(ran.load(Ordering::SeqCst), before + 1);
    }
}

#[tokio::test(start_paused = true)]
async fn sco_006_a_reply_that_does_not_fit_is_repaired_once() {
    let scorer = |answers: [&'static str; 2]| {
        let (model, judge) = judge_of(answers);
        let scorer = PipelineScorer::builder("strict")
            .judge(Judge::new(judge, "Judge."))
            .generate_score_by(JudgeStep::new("scores", |_| "score it".into()))
            .build()
            .unwrap();
        (model, scorer)
    };
    let (model, repaired) = scorer(["{\"score\":\"good\"}", "{\"score\":1}"]);
    let run = repaired.run(ScorerInput::of("x")).await.unwrap();
    let execution = &run.judge[&Step::GenerateScore].executions[0];
    assert_eq!((run.score, execution.attempt_count, execution.model_call_count), (Some(1.0), 2, 2));
    let second = &model.requests()[1].prompt;
    let asked = user_texts(second);
    assert_eq!(asked[0], "score it");
    assert!(asked[1].contains("score: \"good\" is not of type"), "{}", asked[1]);
    assert!(matches!(second[2], PromptMessage::Assistant { .. }));

    let (_, hopeless) = scorer(["no", "{}"]);
    let error = hopeless.run(ScorerInput::of("x")).await.unwrap_err();
    let ScorerError::Run(failed) = &error else { panic!("{error:?}") };
    let execution = &failed.partial.judge[&Step::GenerateScore].executions[0];
    assert_eq!((execution.status, execution.attempt_count), ("failed", 2));
    assert_eq!(execution.output, "{}");
    assert!(execution.error.as_deref().unwrap().contains("score: required"), "{execution:?}");
}

#[tokio::test(start_paused = true)]
async fn sco_006_a_schema_can_be_put_into_the_prompt() {
    let (model, judge) = judge_of(["```json\n{\"score\":1}\n```"]);
    let scorer = PipelineScorer::builder("injected")
        .judge(Judge::new(judge, "Judge.").schema_in_prompt())
        .generate_score_by(JudgeStep::new("scores", |_| "score it".into()))
        .build()
        .unwrap();
    assert_eq!(scorer.run(ScorerInput::of("x")).await.unwrap().score, Some(1.0));
    let request = model.requests().remove(0);
    assert!(request.response_format.is_none());
    assert!(user_texts(&request.prompt)[0].contains("\"score\":{\"type\":\"number\"}"));
}

#[tokio::test(start_paused = true)]
async fn sco_014_failures_that_may_pass_are_tried_again_and_counted() {
    let (_, judge) = judge_of([Script::new().fail_with(503, "busy"), Script::new().text("{\"score\":1}")]);
    let scorer = PipelineScorer::builder("patient")
        .judge(Judge::new(judge, "Judge."))
        .generate_score_by(JudgeStep::new("scores", |_| "score it".into()))
        .build()
        .unwrap();
    let run = scorer.run(ScorerInput::of("x")).await.unwrap();
    let execution = &run.judge[&Step::GenerateScore].executions[0];
    assert_eq!((run.score, execution.attempt_count, execution.model_call_count), (Some(1.0), 1, 2));
    assert_eq!(execution.duration_ms, 1000);
}

#[tokio::test]
async fn sco_007_sco_r9_a_score_is_a_finite_number() {
    for score in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let scorer = PipelineScorer::builder("odd").generate_score(move |_| async move { Ok(score) }).build().unwrap();
        let error = scorer.run(ScorerInput::of("x")).await.unwrap_err();
        let (step, done, message) = failed(&error);
        assert_eq!((step, done), (Step::GenerateScore, vec![]));
        assert!(message.contains("no finite number"), "{message}");
    }
}

#[tokio::test]
async fn sco_012_a_failing_step_stops_the_pipeline_and_says_what_there_was() {
    for panics in [false, true] {
        let scorer = PipelineScorer::builder("breaks")
            .preprocess(|_| async { Ok(json!(7)) })
            .analyze(move |_| async move {
                assert!(!panics, "as told");
                Err("no analysis today".into())
            })
            .generate_score(|_| async { unreachable!("it comes after a failed step") })
            .build()
            .unwrap();
        let error = scorer.run(ScorerInput::of("x")).await.unwrap_err();
        assert_eq!(error.id(), Some("MASTR_SCORER_FAILED_TO_RUN_WORKFLOW_FAILED"));
        let why = if panics { "the step panicked" } else { "no analysis today" };
        assert_eq!(failed(&error), (Step::Analyze, vec![Step::Preprocess], format!("Scorer Run Failed: {why}")));
        let ScorerError::Run(failed) = error else { unreachable!() };
        assert_eq!((failed.partial.preprocess_step_result, failed.partial.score), (Some(json!(7)), None));
    }
}

#[tokio::test]
async fn sco_013_a_step_may_find_nothing_to_judge() {
    let scorer = PipelineScorer::builder("picky")
        .preprocess(|_| async { Ok(json!("kept")) })
        .generate_score(|_| async { Err(ScorerError::not_scorable("there is no code in it")) })
        .generate_reason(|_| async { unreachable!("there is no score to explain") })
        .build()
        .unwrap();
    let run = scorer.run(ScorerInput::of("x")).await.unwrap();
    let record = serde_json::to_value(&run).unwrap();
    assert_eq!(record["notScorable"], json!({"step": "generateScore", "reason": "there is no code in it"}));
    assert_eq!((record.get("score"), &record["preprocessStepResult"]), (None, &json!("kept")));
    assert!(matches!(scorer.score(&ScorerInput::of("x")).await, Err(ScorerError::NotScorable(_))));
}

#[tokio::test]
async fn sco_015_runs_of_one_scorer_go_on_at_once_and_apart() {
    let both = Arc::new(tokio::sync::Barrier::new(2));
    let scorer = PipelineScorer::builder("twins")
        .preprocess(move |cx| {
            let both = both.clone();
            async move {
                // Neither goes on before the other has come.
                both.wait().await;
                Ok(json!(cx.run.text()))
            }
        })
        .generate_score(|cx| async move { Ok(cx.preprocess.unwrap().as_str().unwrap().len() as f64) })
        .build()
        .unwrap();
    let (short, long) = tokio::join!(scorer.run(ScorerInput::of("a")), scorer.run(ScorerInput::of("abc")));
    assert_eq!((short.unwrap().score, long.unwrap().score), (Some(1.0), Some(3.0)));
}

#[test]
fn sco_010_inputs_are_read_whatever_their_shape() {
    let stored =
        |text: &str| json!({"role": "user", "content": {"format": 2, "parts": [{"type": "text", "text": text}]}});
    let live = ScorerInput::of(json!([stored("an "), stored("answer")]))
        .with_input(json!({"inputMessages": [stored("first"), stored("second")], "rememberedMessages": []}));
    assert_eq!((live.text().as_str(), live.task().as_deref(), live.iteration()), ("an answer", Some("second"), 0));
    let check = ScorerInput::of("text").with_input(json!({"originalTask": "task", "iteration": 3}));
    assert_eq!((check.text().as_str(), check.task().as_deref(), check.iteration()), ("text", Some("task"), 3));
    let read: ScorerInput =
        serde_json::from_value(json!({"runId": "r", "output": 5, "groundTruth": 6, "expectedTrajectory": []})).unwrap();
    assert_eq!((read.run_id.as_str(), read.text().as_str(), &read.ground_truth), ("r", "5", &Some(json!(6))));
    assert_eq!(
        serde_json::to_value(&read).unwrap(),
        json!({"runId": "r", "output": 5, "groundTruth": 6, "expectedTrajectory": []})
    );
}
