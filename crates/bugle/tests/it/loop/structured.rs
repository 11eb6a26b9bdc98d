//! Structured output (LOOP §10) and completion checks (SCO §3).

use std::sync::Arc;

use bugle::{
    RunOptions,
    chunk::FinishReason,
    json::{Value, json},
    model::Script,
    run::{ErrorStrategy, StructuredOutput},
    scorer::{Score, Scorer, ScorerInput, TaskCompletion},
};

use super::{call, echo, prompt, world_with};

fn wanted(schema: Value, error_strategy: ErrorStrategy) -> RunOptions {
    let structured_output = StructuredOutput {
        schema,
        instructions: None,
        json_prompt_injection: None,
        error_strategy,
        fallback_value: Some(json!({"n": 0})),
    };
    RunOptions { structured_output: Some(structured_output), ..RunOptions::default() }
}

fn number() -> Value {
    json!({"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"], "additionalProperties": false})
}

#[tokio::test(start_paused = true)]
async fn loop_151_loop_154_loop_156_an_object_is_streamed_checked_and_stored() {
    let world = world_with([Script::new().text("{\"n\": 4 }")], |agent| agent).await;
    let ran = world.run_with("go", wanted(number(), ErrorStrategy::Strict)).await;
    let format = world.model.requests()[0].response_format.clone().unwrap();
    assert_eq!(format.schema, number());
    let objects: Vec<Value> = ran.all("object").iter().map(|one| one["object"].clone()).collect();
    assert_eq!((objects.first(), objects.last()), (Some(&json!({})), Some(&json!({"n": 4}))));
    assert!(objects.windows(2).all(|pair| pair[0] != pair[1]));
    let kinds = ran.kinds();
    assert_eq!(kinds[3..5], ["object", "text-delta"]);
    assert_eq!(kinds[kinds.len() - 4..], ["text-end", "object-result", "step-finish", "finish"]);
    let result = &ran.all("object-result")[0];
    assert_eq!((&result["object"], result.get("payload"), result.get("metadata")), (&json!({"n": 4}), None, None));
    assert_eq!(ran.output.object, Some(json!({"n": 4})));
    assert_eq!(ran.finish()["output"]["object"], json!({"n": 4}));
    assert_eq!(world.stored().await[1].content.meta("structuredOutput"), Some(&json!({"n": 4})));
}

#[tokio::test(start_paused = true)]
async fn loop_155_an_answer_that_does_not_fit() {
    let no_fit = || world_with([Script::new().text("{\"n\":\"four\"}")], |agent| agent);
    let ran = no_fit().await.run_with("go", wanted(number(), ErrorStrategy::Strict)).await;
    let kinds = ran.kinds();
    assert_eq!(kinds[kinds.len() - 4..], ["text-end", "error", "step-finish", "finish"]);
    let error = ran.output.error.clone().unwrap();
    assert_eq!(error.id.as_deref(), Some("STRUCTURED_OUTPUT_SCHEMA_VALIDATION_FAILED"));
    assert!(error.message.starts_with("the answer does not fit the schema: "), "{}", error.message);

    let ran = no_fit().await.run_with("go", wanted(number(), ErrorStrategy::Warn)).await;
    assert_eq!((ran.output.object, ran.output.error, ran.output.finish_reason), (None, None, FinishReason::Stop));

    let ran = no_fit().await.run_with("go", wanted(number(), ErrorStrategy::Fallback)).await;
    assert_eq!(ran.all("object-result")[0]["metadata"], json!({"fallback": true}));
    assert_eq!((ran.output.object, ran.output.used_fallback_value), (Some(json!({"n": 0})), true));
}

#[tokio::test(start_paused = true)]
async fn loop_151_the_schema_in_the_prompt_instead() {
    for (injection, role, format) in [
        (json!(true), "system", false),
        (json!("system"), "system", false),
        (json!("inline"), "user", false),
        (json!("auto"), "", true),
    ] {
        let world = world_with([Script::new().text("{\"n\":4}")], |agent| agent).await;
        let mut options = wanted(number(), ErrorStrategy::Strict);
        options.structured_output.as_mut().unwrap().json_prompt_injection = Some(injection.clone());
        assert_eq!(world.run_with("go", options).await.output.object, Some(json!({"n": 4})));
        let request = &world.model.requests()[0];
        assert_eq!(request.response_format.is_some(), format, "{injection}");
        let turns = prompt(request);
        let with: Vec<&Value> =
            turns.as_array().unwrap().iter().filter(|turn| turn.to_string().contains("JSON Schema")).collect();
        assert_eq!(with.len(), usize::from(!format), "{injection}");
        assert!(with.iter().all(|turn| turn["role"] == role), "{injection}");
    }
}

#[tokio::test(start_paused = true)]
async fn loop_152_lists_and_plain_values_are_wrapped_for_the_model_only() {
    for (schema, said, key, value) in [
        (json!({"type": "array", "items": {"type": "number"}}), "{\"elements\":[1,2]}", "elements", json!([1, 2])),
        (json!({"type": "string", "enum": ["a", "b"]}), "{\"result\":\"a\"}", "result", json!("a")),
        (json!({"type": "number"}), "{\"result\":7}", "result", json!(7)),
    ] {
        let world = world_with([Script::new().text(said)], |agent| agent).await;
        let ran = world.run_with("go", wanted(schema.clone(), ErrorStrategy::Strict)).await;
        let sent = world.model.requests()[0].response_format.clone().unwrap().schema;
        assert_eq!((&sent["properties"][key], &sent["required"]), (&schema, &json!([key])));
        assert_eq!(ran.output.object, Some(value));
    }
}

#[tokio::test(start_paused = true)]
async fn loop_024_a_run_cut_at_the_limit_is_not_checked_against_the_schema() {
    let world = world_with([call(1)], |agent| agent.tool(echo())).await;
    let options = RunOptions { max_steps: Some(1), ..wanted(number(), ErrorStrategy::Strict) };
    let ran = world.run_with("go", options).await;
    assert_eq!((ran.output.error, ran.output.object), (None, None));
}

/// Passes answers that hold a word.
struct Holds(&'static str);

#[async_trait::async_trait]
impl Scorer for Holds {
    fn id(&self) -> &'static str {
        "holds"
    }
    async fn score(&self, answer: &ScorerInput) -> Result<Score, String> {
        assert_ne!(answer.output, "panic", "as told");
        let score = if answer.output.contains(self.0) { 1.0 } else { 0.0 };
        Ok(Score { score, reason: Some(format!("{} of iteration {}", answer.input, answer.iteration)) })
    }
}

#[tokio::test(start_paused = true)]
async fn sco_030_sco_044_sco_048_the_loop_goes_on_until_the_check_passes() {
    let completion = TaskCompletion::all(vec![Arc::new(Holds("done"))]);
    let world = world_with(["not yet", "panic", "done"], |agent| agent.is_task_complete(completion)).await;
    let ran = world.run("work").await;
    let verdicts: Vec<Value> = ran.all("is-task-complete").iter().map(|one| one["payload"].clone()).collect();
    let passed: Vec<(Value, Value)> =
        verdicts.iter().map(|one| (one["iteration"].clone(), one["passed"].clone())).collect();
    assert_eq!(passed, [(json!(1), json!(false)), (json!(2), json!(false)), (json!(3), json!(true))]);
    assert_eq!(verdicts[0]["results"][0]["reason"], "work of iteration 1");
    assert_eq!(verdicts[1]["results"][0]["reason"], "the scorer panicked");
    assert_eq!(ran.output.text, "done");
    // The model reads why, on the user's side; it is not stored.
    let second = prompt(&world.model.requests()[1]);
    let last = second.as_array().unwrap().last().unwrap();
    assert_eq!(last["role"], "user");
    assert!(last.to_string().contains("work of iteration 1"), "{last}");
    assert_eq!(world.texts().await, ["work", "not yet", "panic", "done"]);
    // Each answer is a message of its own (LOOP-171).
    let ids: Vec<Value> = ran.all("step-start").iter().map(|one| one["payload"]["messageId"].clone()).collect();
    assert_eq!(ids[1], format!("{}-2", ids[0].as_str().unwrap()));
    assert_eq!(ids[2], format!("{}-3", ids[0].as_str().unwrap()));
}

#[tokio::test(start_paused = true)]
async fn sco_030_the_step_limit_ends_a_check_that_never_passes() {
    let completion = TaskCompletion::all(vec![Arc::new(Holds("done"))]);
    let world = world_with(["no", "no", "no"], |agent| agent.is_task_complete(completion)).await;
    let ran = world.run_with("work", RunOptions { max_steps: Some(2), ..RunOptions::default() }).await;
    assert_eq!(world.model.requested(), 2);
    let last = ran.all("is-task-complete").pop().unwrap();
    assert_eq!(last["payload"]["maxIterationReached"], true);
    assert_eq!(ran.output.error, None);
}
