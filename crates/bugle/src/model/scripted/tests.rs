//! The script language and the player, against the conformance suite's rules.

use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};

use super::*;
use crate::{
    chunk::FinishReason,
    model::{AssistantPart, ModelEvent, PromptMessage, ToolOutput, ToolResultTurn, UserPart},
};

fn user(text: &str) -> PromptMessage {
    let content = vec![UserPart::Text { text: text.into(), provider_options: None }];
    PromptMessage::User { content, provider_options: None }
}

fn said(text: &str) -> PromptMessage {
    let content = vec![AssistantPart::Text { text: text.into(), provider_options: None }];
    PromptMessage::Assistant { content, provider_options: None }
}

fn result(output: ToolOutput) -> PromptMessage {
    let content = vec![ToolResultTurn { tool_call_id: "call_1".into(), tool_name: "t".into(), output }];
    PromptMessage::Tool { content }
}

fn request(prompt: Vec<PromptMessage>) -> ModelRequest {
    ModelRequest { prompt, streaming: true, ..ModelRequest::default() }
}

async fn collect(model: &ScriptedModel, request: ModelRequest) -> Vec<ModelEvent> {
    let response = model.stream(request).await.unwrap();
    response.events.map(Result::unwrap).collect().await
}

async fn ask(prompt: Vec<PromptMessage>) -> Vec<ModelEvent> {
    collect(&ScriptedModel::new(), request(prompt)).await
}

fn text_of(events: &[ModelEvent]) -> String {
    let text = |event: &ModelEvent| match event {
        ModelEvent::TextDelta { text, .. } => Some(text.clone()),
        _ => None,
    };
    events.iter().filter_map(text).collect()
}

/// A short word for each event.
fn outline(events: &[ModelEvent]) -> Vec<String> {
    let word = |event: &ModelEvent| match event {
        ModelEvent::Metadata { id, .. } => format!("meta {}", id.as_deref().unwrap_or_default()),
        ModelEvent::TextStart { id, .. } | ModelEvent::ReasoningStart { id, .. } => format!("+{id}"),
        ModelEvent::TextDelta { text, .. } | ModelEvent::ReasoningDelta { text, .. } => text.clone(),
        ModelEvent::TextEnd { id, .. } | ModelEvent::ReasoningEnd { id, .. } => format!("-{id}"),
        ModelEvent::ToolInputStart { id, name, .. } => format!("+{id} {name}"),
        ModelEvent::ToolInputDelta { delta, .. } => delta.clone(),
        ModelEvent::ToolInputEnd { id } => format!("-{id}"),
        ModelEvent::ToolCall { id, input, .. } => format!("{id} {input}"),
        ModelEvent::Finish { reason, .. } => format!("{reason:?}"),
        other => format!("{other:?}"),
    };
    events.iter().map(word).collect()
}

#[test]
fn blocks_nest() {
    assert_eq!(script_blocks("a [[x]] b [[ y [[z]] w ]]"), ["x", "y [[z]] w"]);
    assert_eq!(script_blocks("no ]] blocks [["), Vec::<String>::new());
    assert_eq!(script_blocks("æ[[ø]]å"), ["ø"]);
}

#[tokio::test]
async fn text_streams_word_by_word() {
    let events = ask(vec![user("[[say Hello there]]")]).await;
    let expected = ["meta chatcmpl_1", "+txt-0", "Hello ", "there", "-txt-0", "Stop"];
    assert_eq!(outline(&events), expected);
    let Some(ModelEvent::Finish { usage, raw_reason, .. }) = events.last() else { panic!("no finish") };
    assert_eq!(raw_reason.as_deref(), Some("stop"));
    let expected = json!({
        "inputTokens": 1, "outputTokens": 2, "totalTokens": 3, "reasoningTokens": 0, "cachedInputTokens": 0,
        "raw": {
            "inputTokens": { "total": 1, "noCache": 1, "cacheRead": 0 },
            "outputTokens": { "total": 2, "text": 2, "reasoning": 0 },
            "raw": { "prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3 },
        },
    });
    assert_eq!(serde_json::to_value(usage).unwrap(), expected);
}

#[tokio::test]
async fn a_block_holds_several_actions_and_parallel_calls() {
    let events = ask(vec![user(r#"[[think a b ;; call w {"c":1} ;; call v]]"#)]).await;
    let expected = [
        "meta chatcmpl_1",
        "+reasoning-0",
        "a ",
        "b",
        "-reasoning-0",
        "+call_1 w",
        r#"{"c""#,
        ":1}",
        "+call_2 v",
        "{",
        "}",
        "-call_1",
        r#"call_1 {"c":1}"#,
        "-call_2",
        "call_2 {}",
        "ToolCalls",
    ];
    assert_eq!(outline(&events), expected);
}

#[tokio::test]
async fn the_nth_block_is_the_nth_answer_then_tools_or_ack() {
    let script = "[[call t]] [[say two]]";
    let reached = |turns: Vec<PromptMessage>| async { text_of(&ask(turns).await) };
    assert_eq!(reached(vec![user(script), said(""), result(ToolOutput::Text("x".into()))]).await, "two");
    let json = result(ToolOutput::Json(json!({ "a": 1 })));
    let turns = vec![user(script), said(""), json, said("two")];
    assert_eq!(reached(turns).await, r#"tools: {"a":1}"#);
    assert_eq!(reached(vec![user("old"), said("x"), user("Hi  you")]).await, "ack: Hi  you");
    assert_eq!(reached(vec![]).await, "ack: ");
}

#[tokio::test]
async fn a_nested_script_travels_in_arguments() {
    let events = ask(vec![user(r#"[[call agent {"prompt":"[[say a ;; say b]]"} ;; say x]]"#)]).await;
    let input = |event: &ModelEvent| match event {
        ModelEvent::ToolCall { input, .. } => Some(input.clone()),
        _ => None,
    };
    let inputs: Vec<_> = events.iter().filter_map(input).collect();
    assert_eq!(inputs, [r#"{"prompt":"[[say a ;; say b]]"}"#]);
}

#[tokio::test]
async fn dump_and_tools_tell_what_the_model_saw() {
    let mut asked =
        request(vec![PromptMessage::System { content: "S".into(), provider_options: None }, user("[[dump]]")]);
    let model = ScriptedModel::new();
    let dumped: Value = serde_json::from_str(&text_of(&collect(&model, asked.clone()).await)).unwrap();
    assert_eq!(dumped, json!([{ "role": "system", "text": "S" }, { "role": "user", "text": "[[dump]]" }]));
    let tool = |name: &str| crate::model::ToolDefinition {
        name: name.into(),
        description: None,
        parameters: json!({}),
        strict: false,
    };
    asked.prompt = vec![user("[[tools]]")];
    asked.tools = vec![tool("b"), tool("a")];
    assert_eq!(text_of(&collect(&model, asked).await), "a,b");
}

#[tokio::test(start_paused = true)]
async fn slow_words_and_waits_take_the_time_they_say() {
    let start = tokio::time::Instant::now();
    let events = ask(vec![user("[[slow-think 2 100 ;; wait 50 ;; slow 2 10]]")]).await;
    assert_eq!(start.elapsed(), Duration::from_millis(270));
    let said = ["t1 ", "t2 ", "-reasoning-0", "+txt-0", "w1 ", "w2 "];
    assert_eq!(outline(&events)[2..8], said);
}

#[tokio::test]
async fn a_failure_before_output_is_the_requests_after_it_the_streams() {
    let model = ScriptedModel::new();
    let error = model.stream(request(vec![user("[[fail 429 slow down]]")])).await.unwrap_err();
    assert_eq!((error.kind, error.status), (ModelErrorKind::Status, Some(429)));
    assert_eq!(error.message, "slow down");
    assert!(error.response_body.unwrap().contains(r#""code":"429""#));
    let error = model.stream(request(vec![user("[[jump]]")])).await.unwrap_err();
    assert_eq!((error.status, error.message.as_str()), (Some(400), "unknown script verb: jump"));

    let response = model.stream(request(vec![user("[[say half ;; fail 500]]")])).await.unwrap();
    let events: Vec<_> = response.events.collect().await;
    let error = events.last().unwrap().as_ref().unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::Truncated);
    assert_eq!((events.len(), model.cancelled(), model.finished()), (4, 0, 3));

    // The plain operation has sent nothing yet.
    let plain = ModelRequest { streaming: false, ..request(vec![user("[[say half ;; fail 500]]")]) };
    assert_eq!(model.stream(plain).await.unwrap_err().status, Some(500));
}

#[tokio::test]
async fn the_plain_operation_gives_blocks_in_one_piece() {
    let plain = ModelRequest { streaming: false, ..request(vec![user("[[think a b ;; say c d ;; call t]]")]) };
    let events = collect(&ScriptedModel::new(), plain).await;
    let expected =
        ["meta chatcmpl_1", "+reasoning-0", "a b", "-reasoning-0", "+txt-0", "c d", "-txt-0", "call_1 {}", "ToolCalls"];
    assert_eq!(outline(&events), expected);
}

#[tokio::test]
async fn scripts_are_played_in_order_and_requests_recorded() {
    let model =
        ScriptedModel::with_responses([Script::from("one"), Script::new().text("two").finish(FinishReason::Length)]);
    assert_eq!(text_of(&collect(&model, request(vec![user("a")])).await), "one");
    let events = collect(&model, request(vec![user("b")])).await;
    assert_eq!(outline(&events).last().unwrap(), "Length");
    let error = model.stream(request(vec![])).await.unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::Configuration);
    let prompts: Vec<_> = model.requests().into_iter().map(|request| request.prompt).collect();
    assert_eq!(prompts, [vec![user("a")], vec![user("b")], vec![]]);
    assert_eq!((model.requested(), model.finished(), model.cancelled()), (3, 3, 0));
}

#[tokio::test]
async fn a_gate_holds_an_answer_and_tells_that_it_is_reached() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a ").gate(&gate).text("b")]);
    let task = tokio::spawn({
        let model = model.clone();
        async move { text_of(&collect(&model, request(vec![])).await) }
    });
    gate.reached().await;
    assert_eq!(model.finished(), 0);
    gate.open();
    assert_eq!(task.await.unwrap(), "a b");
}

#[tokio::test]
async fn dropping_an_unfinished_request_counts_as_cancelled() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([
        Script::new().gate(&gate),
        Script::new().think("hm").hang(),
        Script::from("done"),
    ]);
    // Before the headers the future is dropped …
    let task = tokio::spawn({
        let model = model.clone();
        async move { model.stream(request(vec![])).await.map(|_| ()) }
    });
    gate.reached().await;
    task.abort();
    model.until_cancelled(1).await;
    // … after them the stream.
    let mut response = model.stream(request(vec![])).await.unwrap();
    for _ in 0..3 {
        response.events.next().await.unwrap().unwrap();
    }
    assert_eq!(model.cancelled(), 1);
    drop(response);
    assert_eq!(model.cancelled(), 2);
    collect(&model, request(vec![])).await;
    assert_eq!((model.cancelled(), model.finished()), (2, 1));
}

#[tokio::test]
async fn loop_048_an_error_event_is_in_band() {
    let model = ScriptedModel::with_responses([Script::new().fail_in_band(429, "slow down")]);
    let response = model.stream(request(vec![])).await.unwrap();
    let events: Vec<_> = response.events.collect().await;
    let error = events.last().unwrap().as_ref().unwrap_err();
    assert_eq!((events.len(), error.kind, error.status), (2, ModelErrorKind::InBand, Some(429)));
}
