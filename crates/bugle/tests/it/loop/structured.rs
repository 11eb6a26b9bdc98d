//! Structured output (LOOP §10).

use bugle::{
    RunOptions,
    chunk::FinishReason,
    json::{Value, json},
    model::Script,
    run::{ErrorStrategy, StructuredOutput},
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

#[tokio::test(start_paused = true)]
async fn loop_150_its_options_are_read_from_json_and_the_instructions_reach_the_model() {
    let structured_output = serde_json::from_value(json!({
        "schema": number(), "instructions": "Count well.", "jsonPromptInjection": "inline",
        "errorStrategy": "fallback", "fallbackValue": {"n": 7},
    }));
    let options = RunOptions { structured_output: Some(structured_output.unwrap()), ..RunOptions::default() };
    let world = world_with([Script::new().text("no idea")], |agent| agent).await;
    let ran = world.run_with("go", options).await;
    assert_eq!(ran.output.object, Some(json!({"n": 7})));
    let asked = world.asked(0).pop().unwrap();
    assert!(asked.contains("Count well.\n") && asked.contains("JSON Schema"), "{asked}");
}
