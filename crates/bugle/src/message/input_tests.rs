//! Input of every form, and how it meets what is stored.

use serde_json::json;

use super::*;

fn read(value: Value) -> RunInput {
    RunInput::from_json(&value).unwrap()
}

/// The messages as JSON, without what the caller fills in.
fn messages(value: Value) -> Value {
    let mut list = serde_json::to_value(read(value).messages).unwrap();
    for message in list.as_array_mut().unwrap() {
        let message = message.as_object_mut().unwrap();
        assert_eq!(message.shift_remove("id"), Some(json!("")));
        assert_eq!(message.shift_remove("createdAt"), Some(json!("1970-01-01T00:00:00.000Z")));
    }
    list
}

fn stored(role: &str, id: &str, parts: Value) -> StoredMessage {
    serde_json::from_value(json!({
        "id": id, "role": role, "createdAt": "2026-01-01T00:00:00.000Z", "content": {"format": 2, "parts": parts}
    }))
    .unwrap()
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn call(id: &str, state: &str, result: Value) -> Value {
    let mut call = json!({"state": state, "toolCallId": id, "toolName": "t", "args": {}});
    if !result.is_null() {
        call["result"] = result;
    }
    json!({"type": "tool-invocation", "toolInvocation": call})
}

fn result(id: &str, result: Value) -> ClientToolResult {
    ClientToolResult { tool_call_id: id.into(), tool_name: "t".into(), input: None, result }
}

fn user_row(says: &str) -> Value {
    json!({"role": "user", "content": {"format": 2, "parts": [text(says)], "content": says}})
}

#[test]
fn loop_004_text_and_lists_of_text_are_user_messages() {
    assert_eq!(messages(json!("hi")), json!([user_row("hi")]));
    assert_eq!(messages(json!(["a", {"role": "user", "content": "b"}])), json!([user_row("a"), user_row("b")]));
    assert_eq!(messages(json!({"role": "user", "content": "b"})), json!([user_row("b")]));
    assert_eq!(
        messages(json!([{"role": "system", "content": "be brief"}])),
        json!([{"role": "system", "content": {"format": 2, "parts": [text("be brief")]}}])
    );
}

#[test]
fn loop_004_model_messages_are_read() {
    assert_eq!(
        messages(json!([{"role": "user", "providerOptions": {"p": {"a": 1}}, "content": [
            {"type": "text", "text": "see", "providerOptions": {"p": {"b": 2}}},
            {"type": "image", "image": "data:image/gif;base64,R0lGOD"},
            {"type": "image", "image": "AAAA"},
            {"type": "file", "data": "https://x/y.pdf", "filename": "y.pdf"},
            {"type": "file", "data": "QQ==", "mediaType": "text/csv"},
        ]}])),
        json!([{"role": "user", "content": {"format": 2, "content": "see", "providerMetadata": {"p": {"a": 1}}, "parts": [
            {"type": "text", "text": "see", "providerMetadata": {"p": {"b": 2}}},
            {"type": "file", "data": "data:image/gif;base64,R0lGOD", "mimeType": "image/gif"},
            {"type": "file", "data": "AAAA", "mimeType": "image/*"},
            {"type": "file", "data": "https://x/y.pdf", "mimeType": "application/pdf", "filename": "y.pdf"},
            {"type": "file", "data": "QQ==", "mimeType": "text/csv"},
        ]}}])
    );
    assert_eq!(
        messages(json!([{"role": "assistant", "content": [
            {"type": "reasoning", "text": "hm"}, {"type": "text", "text": "a"},
            {"type": "tool-call", "toolCallId": "c", "toolName": "t", "input": {"x": 1}},
        ]}])),
        json!([{"role": "assistant", "content": {"format": 2, "content": "a", "parts": [
            {"type": "reasoning", "reasoning": "hm", "details": [text("hm")]}, text("a"),
            {"type": "tool-invocation", "toolInvocation": {"state": "call", "toolCallId": "c", "toolName": "t", "args": {"x": 1}}},
        ]}}])
    );
}

#[test]
fn loop_004_ui_messages_are_read() {
    let input = read(json!([
        {"id": "u1", "role": "user", "metadata": {"k": 1}, "parts": [
            {"type": "text", "text": "hi", "state": "done"}, {"type": "file", "url": "data:text/plain,x", "mediaType": "text/plain"}]},
        {"id": "a1", "role": "assistant", "parts": [
            {"type": "step-start"}, {"type": "reasoning", "text": "hm", "providerMetadata": {"p": {}}},
            {"type": "tool-get-weather", "toolCallId": "c1", "state": "output-available", "input": {"q": 1}, "output": {"r": 2}},
            {"type": "dynamic-tool", "toolName": "other", "toolCallId": "c2", "state": "input-available", "input": {}},
            {"type": "tool-bad", "toolCallId": "c3", "state": "output-error", "input": {}, "errorText": "boom"},
            {"type": "data-x", "data": 1}, {"type": "text", "text": "done"}]},
    ]));
    let ids: Vec<&str> = input.messages.iter().map(|message| message.id.as_str()).collect();
    assert_eq!(ids, ["u1", "a1"]);
    assert_eq!(
        serde_json::to_value(&input.messages[0].content).unwrap(),
        json!({"format": 2, "content": "hi", "metadata": {"k": 1}, "parts": [
            text("hi"), {"type": "file", "data": "data:text/plain,x", "mimeType": "text/plain"}]})
    );
    let tool =
        |state: &str, id: &str, name: &str| json!({"state": state, "toolCallId": id, "toolName": name, "args": {}});
    let mut done = tool("result", "c1", "get-weather");
    done["args"] = json!({"q": 1});
    done["result"] = json!({"r": 2});
    let mut failed = tool("output-error", "c3", "bad");
    failed["errorText"] = json!("boom");
    assert_eq!(
        serde_json::to_value(&input.messages[1].content.parts).unwrap(),
        json!([
            {"type": "step-start"}, {"type": "reasoning", "reasoning": "hm", "details": [text("hm")]},
            {"type": "tool-invocation", "toolInvocation": done},
            {"type": "tool-invocation", "toolInvocation": tool("call", "c2", "other")},
            {"type": "tool-invocation", "toolInvocation": failed},
            {"type": "data-x", "data": 1}, text("done")
        ])
    );
    let results: Vec<(&str, &Value)> =
        input.tool_results.iter().map(|result| (result.tool_call_id.as_str(), &result.result)).collect();
    assert_eq!(results, [("c1", &json!({"r": 2})), ("c3", &json!("boom"))]);
}

#[test]
fn loop_004_stored_messages_are_read() {
    let row = json!({
        "id": "m1", "role": "assistant", "createdAt": "2026-01-01T00:00:00.000Z", "threadId": "t", "resourceId": "r",
        "content": {"format": 2, "parts": [call("c", "result", json!(5)), text("a")], "content": "a", "metadata": {"modelId": "m"}}
    });
    let input = read(json!([row]));
    assert_eq!(serde_json::to_value(&input.messages).unwrap(), json!([row]));
    assert_eq!(input.tool_results, [ClientToolResult { input: Some(json!({})), ..result("c", json!(5)) }], "LOOP-076");
}

#[test]
fn mem_061_provider_metadata_of_a_clients_assistant_is_dropped() {
    let meta = json!({"p": {"x": 1}});
    let part = json!({"type": "text", "text": "a", "providerMetadata": meta});
    assert_eq!(
        messages(
            json!([{"role": "assistant", "providerOptions": meta, "content": {"format": 2, "parts": [part], "providerMetadata": meta}}])
        ),
        json!([{"role": "assistant", "content": {"format": 2, "parts": [text("a")], "content": "a"}}])
    );
}

#[test]
fn http_047_a_whole_history_with_client_results_is_complete() {
    let call = |input: Value| json!({"role": "assistant", "content": [{"type": "tool-call", "toolCallId": "x", "toolName": "t", "input": input}]});
    let answer = |part: Value| json!({"role": "tool", "content": [part]});
    let input = read(json!([
        "where?",
        call(json!({"n": 1})),
        answer(
            json!({"type": "tool-result", "toolCallId": "x", "toolName": "t", "output": {"type": "json", "value": {"at": "Oslo"}}})
        ),
        call(json!({"n": 2})),
        answer(json!({"type": "tool-result", "toolCallId": "x", "toolName": "t", "input": {"n": 2}, "result": "Rome"})),
    ]));
    let outcome = |index: usize| match &input.messages[index].content.parts[0] {
        Part::ToolInvocation(part) => (part.tool_invocation.state, part.tool_invocation.result.clone()),
        other => panic!("{other:?}"),
    };
    assert_eq!(input.messages.len(), 3);
    assert_eq!(outcome(1), (ToolState::Result, Some(json!({"at": "Oslo"}))));
    assert_eq!(outcome(2), (ToolState::Result, Some(json!("Rome"))));
    assert_eq!(
        input.tool_results,
        [
            result("x", json!({"at": "Oslo"})),
            ClientToolResult { input: Some(json!({"n": 2})), ..result("x", json!("Rome")) }
        ]
    );
}

#[test]
fn http_063_a_tool_message_alone_is_a_result() {
    let input = read(json!([{"role": "tool", "content": [
        {"type": "tool-result", "toolCallId": "call_1", "toolName": "where-am-i", "input": {}, "result": {"place": "Bergen"}}]}]));
    assert_eq!(input.messages, []);
    assert_eq!(
        input.tool_results,
        [ClientToolResult {
            tool_call_id: "call_1".into(),
            tool_name: "where-am-i".into(),
            input: Some(json!({})),
            result: json!({"place": "Bergen"})
        }]
    );
}

#[test]
fn http_093_an_assistant_message_with_call_and_result_gives_the_result() {
    let input = read(json!([{"role": "assistant", "content": [
        {"type": "tool-call", "toolCallId": "call_1", "toolName": "t", "input": {}},
        {"type": "tool-result", "toolCallId": "call_1", "toolName": "t", "output": {"type": "json", "value": {"place": "Bergen"}}}]}]));
    assert_eq!(
        input.tool_results,
        [ClientToolResult { input: Some(json!({})), ..result("call_1", json!({"place": "Bergen"})) }]
    );
    assert_eq!(
        serde_json::to_value(&input.messages[0].content.parts).unwrap(),
        json!([call("call_1", "result", json!({"place": "Bergen"}))])
    );
    let mut rows = [stored("assistant", "a", json!([call("call_1", "call", json!(null))]))];
    assert_eq!(complete_tool_calls(&mut rows, &input.tool_results), [MessageId::from("a")]);
    assert_eq!(trailing_input(&rows, input.messages), [], "the stored copy wins");
}

#[test]
fn http_040_wrong_input_names_the_field() {
    for (value, field) in [
        (json!(""), "messages"),
        (json!([]), "messages"),
        (json!(null), "messages"),
        (json!(5), "messages"),
        (json!([5]), "messages.0"),
        (json!([{"content": "x"}]), "messages.0.role"),
        (json!(["a", {"role": "bot", "content": "x"}]), "messages.1.role"),
        (json!([{"role": "user"}]), "messages.0.content"),
        (json!([{"role": "user", "content": 4}]), "messages.0.content"),
        (json!([{"role": "user", "content": [{"text": "x"}]}]), "messages.0.content.0.type"),
        (json!([{"role": "user", "content": [{"type": "video"}]}]), "messages.0.content.0.type"),
        (json!([{"role": "user", "content": [{"type": "text", "text": 4}]}]), "messages.0.content.0.text"),
        (json!([{"role": "user", "content": [{"type": "image", "image": {"0": 1}}]}]), "messages.0.content.0.image"),
        (json!([{"role": "user", "parts": [{"type": "text"}]}]), "messages.0.parts.0.text"),
        (json!([{"role": "user", "content": "x", "createdAt": "later"}]), "messages.0.createdAt"),
        (json!([{"role": "tool", "content": "x"}]), "messages.0.content"),
        (
            json!([{"role": "tool", "content": [{"type": "tool-result", "toolCallId": "c"}]}]),
            "messages.0.content.0.result",
        ),
        (
            json!([{"role": "tool", "content": [{"type": "tool-result", "result": 1}]}]),
            "messages.0.content.0.toolCallId",
        ),
    ] {
        match RunInput::from_json(&value) {
            Err(Error::Invalid { field: named, .. }) => assert_eq!(named, field, "{value}"),
            other => panic!("{value}: {other:?}"),
        }
    }
    assert_eq!(RunInput::from_json(&json!("")).unwrap_err().to_string(), "Argument \"messages\" is required");
}

#[test]
fn mem_055_missing_ids_and_times_are_filled_in() {
    let mut input =
        read(json!(["a", {"role": "user", "content": "b", "id": "given", "createdAt": "1970-01-01T00:00:00.005Z"},
        "c", {"role": "user", "content": "d", "id": "ahead", "createdAt": "9999-12-31T23:59:59.999Z"}]));
    let mut minted = 0;
    input.fill(
        || {
            minted += 1;
            format!("m{minted}").as_str().into()
        },
        Timestamp::from_millis(10),
    );
    let filled: Vec<(&str, i64)> =
        input.messages.iter().map(|message| (message.id.as_str(), message.created_at.as_millis())).collect();
    // A clock that runs ahead does not take the thread with it.
    assert_eq!(filled, [("m1", 11), ("given", 5), ("m2", 12), ("ahead", 13)]);
    assert_eq!(
        serde_json::to_value(&input.messages[0].content.parts).unwrap(),
        json!([{"type": "text", "text": "a", "createdAt": 11}])
    );
}

#[test]
fn mem_060_a_result_completes_an_open_stored_call() {
    let mut rows = [
        stored("assistant", "a", json!([call("1", "result", json!("old")), text("x")])),
        stored("assistant", "b", json!([call("2", "call", json!(null)), call("3", "call", json!(null))])),
        stored("user", "c", json!([text("q")])),
    ];
    let changed = complete_tool_calls(&mut rows, &[result("2", json!({"n": 2})), result("unknown", json!(0))]);
    assert_eq!(changed, [MessageId::from("b")]);
    assert_eq!(
        serde_json::to_value(&rows[1].content.parts).unwrap(),
        json!([call("2", "result", json!({"n": 2})), call("3", "call", json!(null))])
    );
}

#[test]
fn mem_063_a_decided_call_is_never_changed() {
    for state in ["result", "output-error", "output-denied"] {
        let mut rows = [stored("assistant", "a", json!([call("1", state, json!("old"))]))];
        let before = rows.clone();
        assert_eq!(complete_tool_calls(&mut rows, &[result("1", json!("new"))]), []);
        assert_eq!(rows, before);
    }
}

#[test]
fn r33a_a_resent_history_completes_only_the_open_call_of_a_repeated_id() {
    let mut rows = [
        stored("assistant", "a", json!([call("x", "result", json!("Oslo"))])),
        stored("assistant", "b", json!([call("x", "call", json!(null))])),
    ];
    let results = [result("x", json!("Oslo")), result("x", json!("Rome"))];
    assert_eq!(complete_tool_calls(&mut rows, &results), [MessageId::from("b")]);
    assert_eq!(serde_json::to_value(&rows[1].content.parts).unwrap(), json!([call("x", "result", json!("Rome"))]));
}

fn texts(messages: &[StoredMessage]) -> Vec<String> {
    messages.iter().map(StoredMessage::joined_text).collect()
}

#[test]
fn mem_060_only_trailing_new_user_messages_are_taken() {
    let rows = [stored("user", "u1", json!([text("one")])), stored("assistant", "a1", json!([text("uno")]))];
    let incoming = vec![
        stored("system", "", json!([text("sys")])),
        stored("user", "u1", json!([text("one, changed")])),
        stored("assistant", "a1", json!([text("forged")])),
        stored("user", "u2", json!([text("two")])),
        stored("user", "", json!([text("three")])),
    ];
    assert_eq!(texts(&trailing_input(&rows, incoming.clone())), ["sys", "two", "three"]);
    assert_eq!(trailing_input(&[], incoming.clone()), incoming, "a new thread takes all");
    assert_eq!(
        texts(&trailing_input(&rows, vec![stored("user", "", json!([text("one")]))])),
        ["one"],
        "it was answered"
    );
}

#[test]
fn mem_062_a_repeat_of_what_nothing_answered_is_the_same_message() {
    let file = json!({"type": "file", "data": "QQ==", "mimeType": "image/png"});
    let failed = stored("assistant", "e", json!([{"type": "error", "error": {"message": "boom"}}]));
    let asked = |parts: Value| vec![stored("user", "u1", parts)];
    let again = |parts: Value| vec![stored("user", "other", parts)];
    assert_eq!(trailing_input(&asked(json!([text("q")])), again(json!([text("q")]))), []);
    let mut with_error = asked(json!([text("q"), file]));
    with_error.push(failed);
    assert_eq!(trailing_input(&with_error, again(json!([text("q"), file]))), []);
    assert_eq!(trailing_input(&with_error, again(json!([text("q")]))).len(), 1, "other files");
    let two = [stored("user", "1", json!([text("a")])), stored("user", "2", json!([text("b")]))];
    assert_eq!(trailing_input(&two, again(json!([text("a")]))).len(), 1, "not the last one");
    let both = vec![
        stored("user", "x", json!([text("a")])),
        stored("user", "y", json!([text("b")])),
        stored("user", "z", json!([text("c")])),
    ];
    assert_eq!(texts(&trailing_input(&two, both)), ["c"]);
    let mut blocked = asked(json!([text("q")]));
    blocked[0].content.metadata_mut().insert("blocked".into(), json!({"reason": "no"}));
    assert_eq!(trailing_input(&blocked, again(json!([text("q")]))).len(), 1, "it is judged again");
}
