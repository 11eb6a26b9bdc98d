//! What is sent to a provider.

use bugle::{
    json::Object,
    model::{
        AssistantPart, ModelRequest, ModelSettings, PromptMessage, ResponseFormat, ToolChoice, ToolDefinition,
        ToolOutput, ToolResultTurn, UserPart,
    },
};
use bugle_models::{ChatModelBuilder, MaxTokensField};
use serde_json::{Value, json};

use crate::provider::*;

/// The request as the provider saw it.
async fn seen(request: ModelRequest, build: impl FnOnce(ChatModelBuilder) -> ChatModelBuilder) -> Seen {
    let provider = Provider::start([stream([finish("stop"), done()])]).await;
    let (_, error) = ask(&build(provider.builder()).build(), request).await;
    assert!(error.is_none(), "{error:?}");
    provider.requests().remove(0)
}

async fn sent(request: ModelRequest) -> Value {
    seen(request, |builder| builder).await.body
}

fn object(value: Value) -> Object {
    let Value::Object(object) = value else { panic!("no object") };
    object
}

fn tool(name: &str) -> ToolDefinition {
    let parameters = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    ToolDefinition { name: name.into(), description: Some("W".into()), parameters, strict: false }
}

fn tool_call() -> AssistantPart {
    AssistantPart::ToolCall {
        tool_call_id: "c1".into(),
        tool_name: "weather".into(),
        input: json!({ "city": "Oslo" }),
        provider_executed: None,
        provider_options: None,
    }
}

fn said(text: &str) -> AssistantPart {
    AssistantPart::Text { text: text.into(), provider_options: None }
}

fn thought(text: &str) -> AssistantPart {
    AssistantPart::Reasoning { text: text.into(), provider_options: None }
}

fn assistant(content: Vec<AssistantPart>) -> PromptMessage {
    PromptMessage::Assistant { content, provider_options: None }
}

fn result(output: ToolOutput) -> PromptMessage {
    let content = vec![ToolResultTurn { tool_call_id: "c1".into(), tool_name: "weather".into(), output }];
    PromptMessage::Tool { content }
}

fn file(data: &str, media_type: &str) -> UserPart {
    let (data, media_type) = (data.into(), media_type.into());
    UserPart::File { data, media_type, filename: Some("f".into()), provider_options: None }
}

#[tokio::test]
async fn loop_221_the_body_is_the_captured_one() {
    let pointed = vec![UserPart::Text { text: "And this?".into(), provider_options: None }, file("iVBO", "image/png")];
    let prompt = vec![
        PromptMessage::System { content: "Be brief.".into(), provider_options: None },
        user("Weather?"),
        assistant(vec![said("Looking"), tool_call()]),
        result(ToolOutput::Json(json!({ "t": 4 }))),
        PromptMessage::User { content: pointed, provider_options: None },
    ];
    let settings = ModelSettings { max_output_tokens: Some(50), temperature: Some(0.3), ..ModelSettings::default() };
    let seen = seen(ModelRequest { prompt, tools: vec![tool("weather")], settings, ..request() }, |b| b).await;
    assert!(seen.head.starts_with("POST /v1/chat/completions HTTP/1.1\r\n"), "{}", seen.head);
    let expected = json!({
        "model": "m", "max_tokens": 50, "temperature": 0.3,
        "messages": [
            { "role": "system", "content": "Be brief." },
            { "role": "user", "content": "Weather?" },
            { "role": "assistant", "content": "Looking", "tool_calls": [
                { "id": "c1", "type": "function", "function": { "name": "weather", "arguments": "{\"city\":\"Oslo\"}" } },
            ] },
            { "role": "tool", "tool_call_id": "c1", "content": "{\"t\":4}" },
            { "role": "user", "content": [
                { "type": "text", "text": "And this?" },
                { "type": "image_url", "image_url": { "url": "data:image/png;base64,iVBO" } },
            ] },
        ],
        "tools": [{ "type": "function", "function": {
            "name": "weather", "description": "W", "parameters": tool("weather").parameters,
        } }],
        "tool_choice": "auto", "stream": true, "stream_options": { "include_usage": true },
    });
    assert_eq!(seen.body.to_string(), expected.to_string());
}

#[tokio::test]
async fn loop_041_tool_choice_none_and_no_tools_send_neither() {
    for (tools, choice) in [(vec![tool("w")], ToolChoice::None), (vec![], ToolChoice::Auto)] {
        let body = sent(ModelRequest { tools, tool_choice: choice, ..request() }).await;
        assert_eq!((body.get("tools"), body.get("tool_choice")), (None, None));
    }
    let named = json!({ "type": "function", "function": { "name": "w" } });
    for (choice, expected) in [(ToolChoice::Required, json!("required")), (ToolChoice::Tool("w".into()), named)] {
        let body = sent(ModelRequest { tools: vec![tool("w")], tool_choice: choice, ..request() }).await;
        assert_eq!(body["tool_choice"], expected);
    }
}

#[tokio::test]
async fn loop_043_later_headers_win_and_names_are_lower_case() {
    let settings =
        ModelSettings { headers: Some(object(json!({ "X-Own": "call", "X-Num": 7 }))), ..ModelSettings::default() };
    let headers = vec![("x-thread-id".into(), "t1".into()), ("X-Own".into(), "request".into())];
    let seen = seen(ModelRequest { settings, headers, ..request() }, |builder| {
        builder.api_key("sk-1").header("X-Own", "model").header("X-Model", "yes")
    })
    .await;
    for (name, value) in [
        ("x-thread-id", "t1"),
        ("x-own", "call"),
        ("x-num", "7"),
        ("x-model", "yes"),
        ("authorization", "Bearer sk-1"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(seen.header(name), Some(value), "{name}");
    }
}

#[tokio::test]
async fn loop_224_without_a_key_there_is_no_authorization_header() {
    for key in [None, Some("")] {
        let seen = seen(request(), |builder| key.into_iter().fold(builder, ChatModelBuilder::api_key)).await;
        assert_eq!(seen.header("authorization"), None);
    }
}

#[tokio::test]
async fn loop_226_the_user_agent_is_bugle() {
    let seen = seen(request(), |builder| builder).await;
    assert_eq!(seen.header("user-agent"), Some(concat!("bugle/", env!("CARGO_PKG_VERSION"))));
}

#[tokio::test]
async fn r37_the_message_that_holds_the_call_holds_its_reasoning() {
    let prompt = vec![
        user("Hi"),
        assistant(vec![thought("I should "), thought("look"), tool_call()]),
        result(ToolOutput::Text("4".into())),
        assistant(vec![thought("done"), said("It is 4")]),
        user("Thanks"),
    ];
    let asked = ModelRequest { prompt, ..request() };
    let call = json!({ "id": "c1", "type": "function", "function": { "name": "weather", "arguments": "{\"city\":\"Oslo\"}" } });
    let messages = sent(asked.clone()).await["messages"].clone();
    let expected =
        json!({ "role": "assistant", "content": null, "reasoning_content": "I should look", "tool_calls": [call] });
    assert_eq!(messages[1], expected);
    assert_eq!(messages[3], json!({ "role": "assistant", "content": "It is 4" }));
    let off = seen(asked, |builder| builder.replay_reasoning(false)).await.body;
    assert_eq!(off["messages"][1], json!({ "role": "assistant", "content": null, "tool_calls": [call] }));
}

#[tokio::test]
async fn tool_results_go_as_text() {
    for (output, content) in [
        (ToolOutput::Text("x".into()), "x"),
        (ToolOutput::ErrorText("failed".into()), "failed"),
        (ToolOutput::Json(json!([1])), "[1]"),
        (ToolOutput::Content(vec![json!({ "type": "text", "text": "a" })]), "[{\"type\":\"text\",\"text\":\"a\"}]"),
    ] {
        let prompt = vec![user("Hi"), assistant(vec![tool_call()]), result(output)];
        assert_eq!(sent(ModelRequest { prompt, ..request() }).await["messages"][2]["content"], content);
    }
}

#[tokio::test]
async fn files_go_as_the_protocol_has_them() {
    let parts = vec![
        file("https://host/a.png", "image/png"),
        file("AAAA", "application/pdf"),
        file("BBBB", "audio/wav"),
        file("data:image/gif;base64,CC", "image/gif"),
    ];
    let prompt = vec![PromptMessage::User { content: parts, provider_options: None }];
    let content = sent(ModelRequest { prompt, ..request() }).await["messages"][0]["content"].clone();
    let expected = json!([
        { "type": "image_url", "image_url": { "url": "https://host/a.png" } },
        { "type": "file", "file": { "filename": "f", "file_data": "data:application/pdf;base64,AAAA" } },
        { "type": "input_audio", "input_audio": { "data": "BBBB", "format": "wav" } },
        { "type": "image_url", "image_url": { "url": "data:image/gif;base64,CC" } },
    ]);
    assert_eq!(content, expected);
}

#[tokio::test]
async fn sig_030_only_this_providers_options_make_parts_of_a_text() {
    let content = |options: Value| {
        let content = vec![UserPart::Text { text: "Hi".into(), provider_options: Some(object(options)) }];
        vec![PromptMessage::User { content, provider_options: None }]
    };
    let other = sent(ModelRequest { prompt: content(json!({ "mastra": { "a": 1 } })), ..request() }).await;
    assert_eq!(other["messages"][0]["content"], "Hi");
    let own = json!({ "test": { "cache_control": { "type": "ephemeral" } } });
    let own = sent(ModelRequest { prompt: content(own), ..request() }).await;
    let expected = json!([{ "type": "text", "text": "Hi", "cache_control": { "type": "ephemeral" } }]);
    assert_eq!(own["messages"][0]["content"], expected);
}

#[tokio::test]
async fn settings_and_options_reach_the_body_but_not_its_own_fields() {
    let settings = ModelSettings {
        temperature: Some(1.0),
        top_p: Some(0.9),
        presence_penalty: Some(0.5),
        frequency_penalty: Some(0.25),
        stop_sequences: Some(vec!["END".into()]),
        seed: Some(7),
        extra: object(json!({ "logit_bias": {}, "model": "other", "stream": false })),
        ..ModelSettings::default()
    };
    let options = json!({ "test": { "reasoningEffort": "low", "user": "u" }, "else": { "x": 1 } });
    let body = sent(ModelRequest { settings, provider_options: Some(object(options)), ..request() }).await;
    let expected = json!({
        "model": "m", "temperature": 1, "top_p": 0.9, "frequency_penalty": 0.25, "presence_penalty": 0.5,
        "stop": ["END"], "seed": 7, "logit_bias": {}, "reasoning_effort": "low", "user": "u",
        "messages": [{ "role": "user", "content": "Hi" }],
        "stream": true, "stream_options": { "include_usage": true },
    });
    assert_eq!(body.to_string(), expected.to_string());
}

#[tokio::test]
async fn loop_044_settings_a_model_does_not_take_are_left_out_with_a_warning() {
    let provider = Provider::start([stream([finish("stop"), done()])]).await;
    let model = provider.builder().sampling(false).max_tokens_field(MaxTokensField::MaxCompletionTokens).build();
    let settings = ModelSettings {
        temperature: Some(0.1),
        top_k: Some(3),
        max_output_tokens: Some(9),
        ..ModelSettings::default()
    };
    let (events, _) = ask(&model, ModelRequest { settings, ..request() }).await;
    let warning = |setting: &str| json!({ "type": "unsupported-setting", "setting": setting });
    assert_eq!(events[0], bugle::model::ModelEvent::Warnings(vec![warning("temperature"), warning("topK")]));
    let body = &provider.requests()[0].body;
    assert_eq!((body["max_completion_tokens"].as_u64(), body.get("max_tokens")), (Some(9), None));
    assert_eq!(body.get("temperature"), None);
}

#[tokio::test]
async fn loop_151_a_schema_goes_out_as_response_format() {
    let schema = json!({
        "type": "object", "properties": { "a": { "type": "string" } }, "required": ["a"], "additionalProperties": false,
    });
    let with = |schema: &Value| {
        let format = ResponseFormat { schema: schema.clone(), name: "answer".into() };
        ModelRequest { response_format: Some(format), ..request() }
    };
    let body = sent(with(&schema)).await;
    let expected =
        json!({ "type": "json_schema", "json_schema": { "name": "answer", "schema": schema, "strict": true } });
    assert_eq!(body["response_format"], expected);
    // Strict mode would refuse a property that may be missing.
    let open = json!({ "type": "object", "properties": { "a": { "type": "string" } } });
    assert_eq!(sent(with(&open)).await["response_format"]["json_schema"]["strict"], false);
    let body = seen(with(&schema), |builder| builder.structured_outputs(false)).await.body;
    assert_eq!(body["response_format"], json!({ "type": "json_object" }));
}

#[tokio::test]
async fn loop_042_strict_is_asked_for_where_the_schema_allows_it() {
    let mut strict = tool("w");
    strict.strict = true;
    let function = async |tool: ToolDefinition| {
        sent(ModelRequest { tools: vec![tool], ..request() }).await["tools"][0]["function"].clone()
    };
    let asked = function(strict.clone()).await;
    assert_eq!((asked["strict"].clone(), asked["parameters"]["required"].clone()), (json!(true), json!(["city"])));
    strict.parameters["additionalProperties"] = json!(true);
    let asked = function(strict.clone()).await;
    assert_eq!((asked.get("strict"), &asked["parameters"]), (None, &strict.parameters));
}
