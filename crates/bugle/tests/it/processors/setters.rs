//! Settings of built-in processors and of an agent's lists, each seen to change what happens.

use std::sync::Arc;

use bugle::{
    RequestContext, RunOptions, Tool,
    chunk::FinishReason,
    json::{Value, json},
    model::{Script, ScriptedModel},
    processor::{
        OnError, Processors, SharedProcessor,
        builtin::{
            AgentsMd, Classifier, OnMatch, Preset, RegexFilter, StreamErrorRetry, StructuredOutputProcessor, preset,
        },
    },
};

use crate::r#loop::world_with;

fn with(key: &str, value: &str) -> RunOptions {
    let mut context = RequestContext::default();
    context.set(key, value);
    RunOptions { request_context: context, ..RunOptions::default() }
}

#[tokio::test(start_paused = true)]
async fn proc_094_instruction_files_are_shown_where_they_are_enabled() {
    let root = std::env::temp_dir().join(format!("bugle-enabled-{}", std::process::id()));
    std::fs::create_dir_all(&root).unwrap();
    std::fs::write(root.join("AGENTS.md"), "the rules").unwrap();
    let path = root.join("x.ts").to_str().unwrap().to_owned();
    let read = Tool::json("read-file", |_: Value, _| async move { Ok(json!("text")) });
    let injector = AgentsMd::new(&root).enabled_if(|context| context.get("mode") == Some(&json!("code")));
    let reads = || Script::new().call("read-file", json!({ "path": path }));
    let scripts = [reads(), "off".into(), reads(), "on".into()];
    let world = world_with(scripts, |agent| agent.tool(read).input_processor(injector)).await;
    let off = world.run_with("hi", with("mode", "chat")).await;
    assert_eq!((off.output.text.as_str(), off.all("data-signal").len()), ("off", 0));
    let on = world.run_with("hi", with("mode", "code")).await;
    assert_eq!((on.output.text.as_str(), on.all("data-signal").len()), ("on", 1));
    let _ = std::fs::remove_dir_all(&root);
}

#[tokio::test(start_paused = true)]
async fn a_second_model_that_finds_no_data_may_be_passed_over() {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    for (on_error, reason) in [(OnError::Pass, FinishReason::Stop), (OnError::Abort, FinishReason::Error)] {
        let reader = ScriptedModel::with_responses(["no idea"; 5]);
        let reading = StructuredOutputProcessor::new(Arc::new(reader), schema.clone()).on_failure(on_error);
        let world = world_with(["It is Rome."], |agent| agent.output_processor(reading)).await;
        let ran = world.run("hi").await;
        assert_eq!((ran.output.finish_reason, &ran.output.object), (reason, &None), "{on_error:?}");
        if on_error == OnError::Pass {
            assert_eq!(ran.output.text, "It is Rome.");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn proc_031_a_second_classifier_of_a_kind_needs_an_id_of_its_own() {
    let fine = || Arc::new(ScriptedModel::with_responses([r#"{"findings": []}"#]));
    let found = Arc::new(ScriptedModel::with_responses([r#"{"findings": [{"category": "injection", "score": 0.9}]}"#]));
    let first = Classifier::preset(Preset::PromptInjection, fine());
    let same = Classifier::preset(Preset::PromptInjection, fine());
    let twice = bugle::Agent::builder("a").model(fine()).input_processor(first).input_processor(same).build();
    assert!(twice.unwrap_err().to_string().contains("two processors have the id"));
    let first = Classifier::preset(Preset::PromptInjection, fine());
    let second = Classifier::preset(Preset::PromptInjection, found).with_id("second-look");
    let world = world_with(["a"], |agent| agent.input_processor(first).input_processor(second)).await;
    assert_eq!(world.run("hi").await.payload("tripwire")["processorId"], "second-look");
}

#[tokio::test(start_paused = true)]
async fn proc_003_output_and_error_processors_may_be_made_for_each_run() {
    let only = |processor: SharedProcessor| Processors::new([processor]).unwrap();
    let redacting: SharedProcessor =
        Arc::new(RegexFilter::new("secrets", vec![preset("email").unwrap()], OnMatch::Redact));
    let says = || Script::new().text("ask ann@example.com");
    let world = world_with([says(), says()], |agent| {
        agent.output_processors_per(move |context| match context.get("user") {
            Some(_) => only(redacting.clone()),
            None => Processors::default(),
        })
    })
    .await;
    assert_eq!(world.run("hi").await.output.text, "ask ann@example.com");
    assert_eq!(world.run_with("hi", with("user", "guest")).await.output.text, "ask [email]");

    let broken = || Script::new().text("half").cut();
    let retrying: SharedProcessor = Arc::new(StreamErrorRetry::default());
    let world = world_with([broken(), broken(), "whole".into()], |agent| {
        agent.error_processors_per(move |context| match context.get("patient") {
            Some(_) => only(retrying.clone()),
            None => Processors::default(),
        })
    })
    .await;
    assert_eq!(world.run("hi").await.output.finish_reason, FinishReason::Error);
    let patient = world.run_with("hi", with("patient", "yes")).await;
    assert_eq!((patient.output.finish_reason, patient.output.text.as_str()), (FinishReason::Stop, "whole"));
}
