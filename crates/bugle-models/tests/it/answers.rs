//! What becomes of a provider's answer.

use bugle::{
    chunk::FinishReason,
    model::{AssistantPart, ModelErrorKind, ModelEvent, ModelRequest, PromptMessage, ToolDefinition},
    time::Timestamp,
};
use serde_json::{Value, json};

use crate::provider::*;

fn call(index: Option<u64>, id: Option<&str>, name: Option<&str>, arguments: &str) -> Value {
    let mut function = json!({ "arguments": arguments });
    if let Some(name) = name {
        function["name"] = name.into();
    }
    let mut call = json!({ "type": "function", "function": function });
    if let Some(index) = index {
        call["index"] = index.into();
    }
    if let Some(id) = id {
        call["id"] = id.into();
    }
    call
}

fn calling(calls: impl IntoIterator<Item = Value>) -> Act {
    delta(json!({ "tool_calls": calls.into_iter().collect::<Vec<_>>() }))
}

#[tokio::test]
async fn loop_191_text_comes_in_one_block_with_metadata_and_usage() {
    let usage = json!({
        "prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17,
        "prompt_tokens_details": { "cached_tokens": 4 }, "completion_tokens_details": { "reasoning_tokens": 2 },
    });
    let first = json!({
        "id": "chatcmpl_1", "created": 1_767_225_600, "model": "m-2026",
        "choices": [{ "index": 0, "delta": { "role": "assistant", "content": "" }, "finish_reason": null }],
    });
    let (events, error) = answered(stream([
        event(&first),
        delta(json!({ "content": "Hello " })),
        delta(json!({ "content": "\"there\"" })),
        finish("stop"),
        event(&json!({ "choices": [], "usage": usage })),
        done(),
    ]))
    .await;
    assert!(error.is_none());
    let metadata = ModelEvent::Metadata {
        id: Some("chatcmpl_1".into()),
        timestamp: Timestamp::parse("2026-01-01T00:00:00Z"),
        model_id: Some("m-2026".into()),
    };
    assert_eq!(events[0], metadata);
    assert_eq!(outline(&events[1..]), ["+txt-0", "Hello ", "\"there\"", "-txt-0", "Stop stop"]);
    let Some(ModelEvent::Finish { usage: told, provider_metadata, .. }) = events.last() else { panic!("no finish") };
    let expected = json!({
        "inputTokens": 12, "outputTokens": 5, "totalTokens": 17, "reasoningTokens": 2, "cachedInputTokens": 4,
        "raw": {
            "inputTokens": { "total": 12, "noCache": 8, "cacheRead": 4 },
            "outputTokens": { "total": 5, "text": 3, "reasoning": 2 },
            "raw": usage,
        },
    });
    assert_eq!(serde_json::to_value(told).unwrap(), expected);
    assert_eq!(serde_json::to_value(provider_metadata).unwrap(), json!({ "test": {} }));
}

#[tokio::test]
async fn loop_225_a_server_that_sends_no_usage_or_no_done_is_accepted() {
    let (events, error) = answered(stream([delta(json!({ "content": "x" })), finish("length")])).await;
    assert!(error.is_none());
    let Some(ModelEvent::Finish { reason, usage, .. }) = events.last() else { panic!("no finish") };
    assert_eq!((*reason, usage), (FinishReason::Length, &bugle::chunk::Usage::default()));
}

#[tokio::test]
async fn loop_162_counts_that_are_left_out_are_absent() {
    let usage = json!({ "choices": [], "usage": { "prompt_tokens": 2, "completion_tokens": 3 } });
    let (events, _) = answered(stream([finish("stop"), event(&usage), done()])).await;
    let Some(ModelEvent::Finish { usage, .. }) = events.last() else { panic!("no finish") };
    assert_eq!((usage.total_tokens, usage.reasoning_tokens, usage.cached_input_tokens), (Some(5), None, None));
}

#[tokio::test]
async fn loop_192_reasoning_ends_before_what_follows_it() {
    for field in ["reasoning_content", "reasoning"] {
        let (events, error) = answered(stream([
            delta(json!({ field: "I should " })),
            delta(json!({ field: "look" })),
            delta(json!({ "content": "Looking" })),
            calling([call(Some(0), Some("c1"), Some("weather"), "")]),
            calling([call(Some(0), None, None, "{\"city\":")]),
            calling([call(Some(0), None, None, "\"Oslo\"}")]),
            finish("tool_calls"),
            done(),
        ]))
        .await;
        assert!(error.is_none());
        let expected = [
            "+reasoning-0",
            "I should ",
            "look",
            "-reasoning-0",
            "+txt-0",
            "Looking",
            "-txt-0",
            "+c1 weather",
            "c1 {\"city\":",
            "c1 \"Oslo\"}",
            "-c1",
            "c1 weather {\"city\":\"Oslo\"}",
            "ToolCalls tool_calls",
        ];
        assert_eq!(outline(&events), expected);
    }
}

#[tokio::test]
async fn reasoning_as_parts_of_the_content_is_reasoning() {
    let parts = json!([
        { "type": "thinking", "thinking": [{ "type": "text", "text": "hm" }] },
        { "type": "text", "text": "so" },
    ]);
    let (events, _) = answered(stream([delta(json!({ "content": parts })), finish("stop"), done()])).await;
    assert_eq!(outline(&events), ["+reasoning-0", "hm", "-reasoning-0", "+txt-0", "so", "-txt-0", "Stop stop"]);
}

#[tokio::test]
async fn loop_228_what_a_provider_needs_back_of_its_reasoning_is_kept_and_sent() {
    let detail = |detail: Value| delta(json!({ "reasoning": detail["text"], "reasoning_details": [detail] }));
    let answer = stream([
        detail(json!({ "type": "reasoning.text", "index": 0, "text": "I " })),
        detail(json!({ "type": "reasoning.text", "index": 0, "text": "see" })),
        delta(json!({ "reasoning_details": [{ "type": "reasoning.text", "index": 0, "signature": "sig" }] })),
        delta(json!({ "reasoning_details": [{ "type": "reasoning.encrypted", "index": 1, "data": "xyz" }] })),
        delta(json!({ "content": "So" })),
        finish("stop"),
        done(),
    ]);
    let provider = Provider::start([answer, stream([finish("stop"), done()])]).await;
    let (events, _) = ask(&provider.model(), request()).await;
    assert_eq!(outline(&events)[..3], ["+reasoning-0", "I ", "see"]);
    let ModelEvent::ReasoningEnd { provider_metadata, .. } = &events[3] else { panic!("{events:?}") };
    let details = json!([
        { "type": "reasoning.text", "index": 0, "text": "I see", "signature": "sig" },
        { "type": "reasoning.encrypted", "index": 1, "data": "xyz" },
    ]);
    assert_eq!(json!(provider_metadata), json!({ "test": { "reasoning_details": details } }));

    let content = vec![
        AssistantPart::Reasoning { text: "I see".into(), provider_options: provider_metadata.clone() },
        AssistantPart::Text { text: "So".into(), provider_options: None },
    ];
    let prompt = vec![user("Hi"), PromptMessage::Assistant { content, provider_options: None }, user("And?")];
    ask(&provider.model(), ModelRequest { prompt, ..request() }).await;
    let expected = json!({ "role": "assistant", "content": "So", "reasoning_details": details });
    assert_eq!(provider.requests()[1].body["messages"][1], expected);
}

#[tokio::test]
async fn r27_a_call_without_an_id_gets_one() {
    let (events, error) = answered(stream([
        calling([call(Some(0), None, Some("get-weather"), "{\"city\":")]),
        calling([call(Some(0), None, None, "\"Oslo\"}")]),
        finish("tool_calls"),
        done(),
    ]))
    .await;
    assert!(error.is_none());
    let calls = calls(&events);
    let [(id, name, input)] = &calls[..] else { panic!("{calls:?}") };
    assert_eq!((name.as_str(), input.as_str()), ("get-weather", "{\"city\":\"Oslo\"}"));
    assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
    let inputs = events.iter().filter(|event| matches!(event, ModelEvent::ToolInputStart { id: of, .. } if of == id));
    assert_eq!(inputs.count(), 1);
}

#[tokio::test]
async fn r27_calls_are_told_apart_however_they_come() {
    let (oslo, rome) = ("{\"city\":\"Oslo\"}", "{\"city\":\"Rome\"}");
    let cases: Vec<(&str, Vec<Act>)> = vec![
        (
            "interleaved by index",
            vec![
                calling([call(Some(0), Some("a"), Some("w"), "{\"city\":")]),
                calling([call(Some(1), Some("b"), Some("w"), "{\"city\":")]),
                calling([call(Some(0), None, None, "\"Oslo\"}"), call(Some(1), None, None, "\"Rome\"}")]),
            ],
        ),
        (
            "index starts at one",
            vec![
                calling([call(Some(1), Some("a"), Some("w"), oslo)]),
                calling([call(Some(2), Some("b"), Some("w"), rome)]),
            ],
        ),
        (
            "no index, ids",
            vec![
                calling([
                    call(None, Some("a"), Some("w"), "{\"city\":"),
                    call(None, Some("b"), Some("w"), "{\"city\":"),
                ]),
                calling([call(None, Some("a"), None, "\"Oslo\"}"), call(None, Some("b"), None, "\"Rome\"}")]),
            ],
        ),
        ("no index, no ids", vec![calling([call(None, None, Some("w"), oslo), call(None, None, Some("w"), rome)])]),
        (
            "no index, no ids, one after the other",
            vec![
                calling([call(None, None, Some("w"), "{\"city\":")]),
                calling([call(None, None, None, "\"Oslo\"}")]),
                calling([call(None, None, Some("w"), rome)]),
            ],
        ),
        (
            "the same index for all",
            vec![
                calling([call(Some(0), Some("a"), Some("w"), oslo)]),
                calling([call(Some(0), Some("b"), Some("w"), rome)]),
            ],
        ),
        (
            "id and name with each delta",
            vec![
                calling([call(Some(0), Some("a"), Some("w"), "{\"city\":")]),
                calling([call(Some(0), Some("a"), Some("w"), "\"Oslo\"}")]),
                calling([call(Some(1), Some("b"), Some("w"), rome)]),
            ],
        ),
        (
            "empty ids and names later",
            vec![
                calling([call(Some(0), Some("a"), Some("w"), "{\"city\":")]),
                calling([call(Some(0), Some(""), Some(""), "\"Oslo\"}")]),
                calling([call(Some(1), Some("b"), Some("w"), rome)]),
            ],
        ),
    ];
    for (what, acts) in cases {
        let (events, error) = answered(stream(acts.into_iter().chain([finish("tool_calls"), done()]))).await;
        assert!(error.is_none(), "{what}");
        let calls = calls(&events);
        let inputs: Vec<_> = calls.iter().map(|(_, _, input)| input.as_str()).collect();
        assert_eq!(inputs, [oslo, rome], "{what}");
        assert_ne!(calls[0].0, calls[1].0, "{what}");
        assert!(calls.iter().all(|(id, name, _)| !id.is_empty() && name == "w"), "{what}");
        // What was streamed of each call is its arguments.
        for (id, _, input) in &calls {
            let delta = |event: &ModelEvent| match event {
                ModelEvent::ToolInputDelta { id: of, delta } if of == id => Some(delta.clone()),
                _ => None,
            };
            assert_eq!(&events.iter().filter_map(delta).collect::<String>(), input, "{what}");
        }
    }
}

#[tokio::test]
async fn arguments_may_be_an_object_or_missing() {
    let object = json!({ "index": 0, "id": "a", "function": { "name": "w", "arguments": { "city": "Oslo" } } });
    let none = json!({ "index": 1, "id": "b", "function": { "name": "v" } });
    let (events, _) = answered(stream([calling([object, none]), finish("tool_calls"), done()])).await;
    let expected = [("a", "w", "{\"city\":\"Oslo\"}"), ("b", "v", "")];
    assert_eq!(calls(&events), expected.map(|(id, name, input)| (id.into(), name.into(), input.into())));
}

#[tokio::test]
async fn loop_042_null_in_a_strict_answer_is_an_absent_property() {
    let answer = stream([
        calling([call(Some(0), Some("a"), Some("w"), "{\"city\":\"Oslo\",\"days\":null}")]),
        finish("tool_calls"),
        done(),
    ]);
    let provider = Provider::start([answer.clone(), answer]).await;
    for (strict, expected) in [(true, "{\"city\":\"Oslo\"}"), (false, "{\"city\":\"Oslo\",\"days\":null}")] {
        let properties = json!({ "city": { "type": "string" }, "days": { "type": "integer" } });
        let tool = ToolDefinition {
            name: "w".into(),
            description: None,
            parameters: json!({ "type": "object", "properties": properties, "required": ["city"] }),
            strict,
        };
        let (events, _) = ask(&provider.model(), ModelRequest { tools: vec![tool], ..request() }).await;
        assert_eq!(calls(&events)[0].2, expected);
    }
}

#[tokio::test]
async fn a_call_without_a_name_is_an_error() {
    let (events, error) =
        answered(stream([calling([call(Some(0), Some("a"), None, "{}")]), finish("tool_calls"), done()])).await;
    assert_eq!(error.unwrap().kind, ModelErrorKind::Protocol);
    assert_eq!(calls(&events), []);
}

#[tokio::test]
async fn r29_the_reason_tool_calls_without_a_call_is_a_stop() {
    let (events, error) =
        answered(stream([delta(json!({ "content": "nothing to call" })), finish("tool_calls"), done()])).await;
    assert!(error.is_none());
    assert_eq!(outline(&events), ["+txt-0", "nothing to call", "-txt-0", "Stop tool_calls"]);
}

#[tokio::test]
async fn loop_022_the_reason_stop_with_a_call_stays_stop() {
    let (events, _) =
        answered(stream([calling([call(Some(0), Some("a"), Some("w"), "{}")]), finish("stop"), done()])).await;
    assert_eq!(outline(&events).last().unwrap(), "Stop stop");
    assert_eq!(calls(&events).len(), 1);
}

#[tokio::test]
async fn finish_reasons_are_mapped_and_kept_raw() {
    for (raw, reason) in [
        ("stop", "Stop"),
        ("length", "Length"),
        ("content_filter", "ContentFilter"),
        ("unknown", "Other"),
        ("insufficient_system_resource", "Other"),
    ] {
        let (events, _) = answered(stream([delta(json!({ "content": "x" })), finish(raw), done()])).await;
        assert_eq!(outline(&events).last().unwrap(), &format!("{reason} {raw}"));
    }
}

#[tokio::test]
async fn r31a_a_stream_that_ends_without_reason_or_done_is_truncated() {
    let (events, error) =
        answered(stream([delta(json!({ "content": "half an " })), delta(json!({ "content": "answer" }))])).await;
    let error = error.unwrap();
    assert_eq!(error.kind, ModelErrorKind::Truncated);
    assert_eq!(error.message, "test ended its answer before it was complete");
    assert_eq!(outline(&events), ["+txt-0", "half an ", "answer"]);
}

#[tokio::test]
async fn r31a_a_connection_that_breaks_is_truncated() {
    let (events, error) = answered(vec![sse_head(), delta(json!({ "content": "half" })), Act::Close]).await;
    assert_eq!(error.unwrap().kind, ModelErrorKind::Truncated);
    assert_eq!(text(&events), "half");
}

#[tokio::test]
async fn r31b_a_call_of_a_truncated_stream_is_no_call() {
    let (events, error) =
        answered(stream([calling([call(Some(0), Some("c1"), Some("w"), "{\"city\":\"Oslo\"}")])])).await;
    assert_eq!(error.unwrap().kind, ModelErrorKind::Truncated);
    assert_eq!(outline(&events), ["+c1 w", "c1 {\"city\":\"Oslo\"}"]);
}

#[tokio::test]
async fn r31c_done_completes_an_answer_without_a_reason() {
    let (events, error) = answered(stream([delta(json!({ "content": "whole answer" })), done()])).await;
    assert!(error.is_none());
    assert_eq!(outline(&events), ["+txt-0", "whole answer", "-txt-0", "Stop null"]);
    let (events, error) = answered(stream([calling([call(Some(0), Some("a"), Some("w"), "{}")]), done()])).await;
    assert!(error.is_none());
    assert_eq!(outline(&events).last().unwrap(), "ToolCalls null");
}

#[tokio::test]
async fn r31c_a_last_line_without_its_newline_counts() {
    let acts = [delta(json!({ "content": "x" })), chunk("data: [DONE]")];
    let (events, error) = answered(stream(acts)).await;
    assert!(error.is_none());
    assert_eq!(outline(&events).last().unwrap(), "Stop null");
}

#[tokio::test]
async fn r33b_two_calls_of_one_id_get_ids_of_their_own() {
    for indexed in [true, false] {
        let index = |index| indexed.then_some(index);
        let (events, _) = answered(stream([
            calling([call(index(0), Some("x"), Some("w"), "{\"city\":\"Oslo\"}")]),
            calling([call(index(1), Some("x"), Some("w"), "{\"city\":\"Rome\"}")]),
            finish("tool_calls"),
            done(),
        ]))
        .await;
        let calls = calls(&events);
        let inputs: Vec<_> = calls.iter().map(|(_, _, input)| input.as_str()).collect();
        assert_eq!(inputs, ["{\"city\":\"Oslo\"}", "{\"city\":\"Rome\"}"]);
        assert_eq!(calls[0].0, "x");
        assert!(!calls[1].0.is_empty() && calls[1].0 != "x");
    }
}

#[tokio::test]
async fn r39a_half_a_surrogate_pair_does_not_break_the_answer() {
    let raw = |content: &str| chunk(format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{content}\"}}}}]}}\n\n"));
    let (events, error) =
        answered(stream([raw(r"a\u0000b\ud83dc"), raw(r" end \ud83d\ude00"), finish("stop"), done()])).await;
    assert!(error.is_none());
    assert_eq!(text(&events), "a\0b\u{fffd}c end 😀");

    let arguments = r#"data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"w","arguments":"{\"c\":\"\ude00\"}"}}]}}]}"#;
    let (events, _) = answered(stream([chunk(format!("{arguments}\n\n")), finish("tool_calls"), done()])).await;
    assert_eq!(calls(&events)[0].2, "{\"c\":\"\u{fffd}\"}");
}

#[tokio::test]
async fn an_answer_is_the_same_however_it_is_cut() {
    let body = "data: {\"choices\":[{\"delta\":{\"content\":\"æøå\"}}]}\r\n\r\n: ping\n\ndata: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n";
    for size in [1, 2, 3, 7, body.len()] {
        let (events, error) = answered(stream(body.as_bytes().chunks(size).map(chunk))).await;
        assert!(error.is_none());
        assert_eq!(outline(&events), ["+txt-0", "æøå", "-txt-0", "Stop stop"], "cut at {size}");
    }
}

#[tokio::test]
async fn loop_190_raw_events_come_when_asked_for() {
    let provider =
        Provider::start([stream([delta(json!({ "content": "x", "extra": 1 })), finish("stop"), done()])]).await;
    let asked = ModelRequest { include_raw: true, ..request() };
    let (events, _) = ask(&provider.model(), asked).await;
    let raw: Vec<_> = events.iter().filter(|event| matches!(event, ModelEvent::Raw(_))).collect();
    assert_eq!(raw.len(), 2);
    let ModelEvent::Raw(first) = &events[0] else { panic!("{events:?}") };
    assert_eq!(first["choices"][0]["delta"]["extra"], 1);
}

#[tokio::test]
async fn loop_002_the_plain_operation_gives_the_same_events() {
    let body = json!({
        "id": "chatcmpl_1", "created": 1, "model": "m",
        "choices": [{
            "index": 0, "finish_reason": "tool_calls",
            "message": {
                "role": "assistant", "content": "Looking", "reasoning_content": "hm",
                "tool_calls": [{ "id": "c1", "type": "function", "function": { "name": "w", "arguments": "{}" } }],
            },
        }],
        "usage": { "prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3 },
    });
    let provider = Provider::start([plain("200 OK", "content-type: application/json\r\n", &body.to_string())]).await;
    let asked = ModelRequest { streaming: false, ..request() };
    let (events, error) = ask(&provider.model(), asked).await;
    assert!(error.is_none());
    let expected =
        ["+reasoning-0", "hm", "-reasoning-0", "+txt-0", "Looking", "-txt-0", "c1 w {}", "ToolCalls tool_calls"];
    assert_eq!(outline(&events[1..]), expected);
    let sent = &provider.requests()[0].body;
    assert_eq!((sent["stream"].clone(), sent.get("stream_options")), (json!(false), None));
}

#[tokio::test]
async fn a_plain_answer_to_a_request_for_a_stream_is_read() {
    let body = json!({ "choices": [{ "message": { "content": "whole" }, "finish_reason": "stop" }] }).to_string();
    let (events, error) = answered(plain("200 OK", "content-type: application/json; charset=utf-8\r\n", &body)).await;
    assert!(error.is_none());
    assert_eq!(outline(&events), ["+txt-0", "whole", "-txt-0", "Stop stop"]);
}
