//! Prompts, row by row of MEM §7.

use serde_json::json;

use super::*;
use crate::{model::PromptMessage, signal::SignalInput, time::Timestamp};

fn row(role: &str, parts: Value) -> StoredMessage {
    row_with(role, parts, json!(null))
}

fn row_with(role: &str, parts: Value, metadata: Value) -> StoredMessage {
    serde_json::from_value(json!({
        "id": "m", "role": role, "createdAt": "2026-01-01T00:00:00.000Z",
        "content": {"format": 2, "parts": parts, "metadata": metadata}
    }))
    .unwrap()
}

fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn called(id: &str, state: &str, more: Value) -> Value {
    let mut call = json!({"state": state, "toolCallId": id, "toolName": "t", "args": {"a": id}});
    call.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({"type": "tool-invocation", "toolInvocation": call})
}

fn prompt(rows: &[StoredMessage]) -> Value {
    prompt_with(rows, &PromptOptions::default())
}

fn prompt_with(rows: &[StoredMessage], options: &PromptOptions) -> Value {
    serde_json::to_value(build_prompt(rows, options)).unwrap()
}

fn call(id: &str) -> Value {
    json!({"type": "tool-call", "toolCallId": id, "toolName": "t", "input": {"a": id}})
}

fn result(id: &str, output: Value) -> Value {
    json!({"toolCallId": id, "toolName": "t", "output": output})
}

fn assistant(content: Value) -> Value {
    json!({"role": "assistant", "content": content})
}

fn tool(content: Value) -> Value {
    json!({"role": "tool", "content": content})
}

fn user(says: &str) -> Value {
    json!({"role": "user", "content": [text(says)]})
}

#[test]
fn mem_081_parts_that_are_not_for_the_model_are_dropped() {
    let rows = [
        row("user", json!([text("q")])),
        row(
            "assistant",
            json!([{"type": "data-x", "data": 1}, {"type": "step-start"}, {"type": "source", "source": {}},
                {"type": "error", "error": {"message": "boom"}}, text(""), text("a")]),
        ),
        row("assistant", json!([{"type": "error", "error": {"message": "boom"}}])),
        row("user", json!([text("again")])),
    ];
    assert_eq!(prompt(&rows), json!([user("q"), assistant(json!([text("a")])), user("again")]));
}

#[test]
fn mem_081_reasoning_is_replayed_with_its_provider_metadata() {
    let thought = json!({"type": "reasoning", "reasoning": "", "details": [{"type": "text", "text": "I "}, {"type": "text", "text": "think"}],
        "providerMetadata": {"openai": {"itemId": "rs_1"}, "mastra": {"x": 1}}});
    let signed = json!({"type": "reasoning", "reasoning": "ab", "details": [
        {"type": "text", "text": "ab", "signature": "sig"}, {"type": "redacted", "data": "zz"}]});
    assert_eq!(
        prompt(&[row("assistant", json!([thought, signed, text("a")]))]),
        json!([assistant(json!([
            {"type": "reasoning", "text": "I think", "providerOptions": {"openai": {"itemId": "rs_1"}}},
            {"type": "reasoning", "text": "ab", "providerOptions": {"anthropic": {"signature": "sig"}}},
            {"type": "reasoning", "text": "", "providerOptions": {"anthropic": {"redactedData": "zz"}}},
            text("a")
        ]))])
    );
}

#[test]
fn r37_reasoning_stands_on_the_turn_of_its_call() {
    let thought = json!({"type": "reasoning", "reasoning": "I should look", "details": []});
    let parts = json!([thought, called("c", "result", json!({"result": "ok"})), {"type": "step-start"}, text("done")]);
    assert_eq!(
        prompt(&[row("assistant", parts)]),
        json!([
            assistant(json!([{"type": "reasoning", "text": "I should look"}, call("c")])),
            tool(json!([result("c", json!({"type": "text", "value": "ok"}))])),
            assistant(json!([text("done")]))
        ])
    );
    let lonely = [row("assistant", json!([{"type": "reasoning", "reasoning": "hm", "details": []}]))];
    assert_eq!(prompt(&lonely), json!([]), "thoughts that led to nothing are no turn");
}

#[test]
fn mem_082_signals_become_user_turns() {
    let reminder = SignalInput {
        attributes: Some([("path".to_owned(), json!("/var"))].into()),
        ..SignalInput::new("reactive", "Disk <90% & falling>")
    };
    let stored = |input: SignalInput| {
        input.normalise(|| "s".into(), Timestamp::default()).unwrap().to_stored(None, Timestamp::default())
    };
    assert_eq!(
        prompt(&[stored(SignalInput::message("Hi <b>")), stored(reminder)]),
        json!([
            user("Hi <b>"),
            user("<system-reminder path=\"/var\">Disk &lt;90% &amp; falling&gt;</system-reminder>")
        ])
    );
}

#[test]
fn mem_083_an_answer_is_split_at_each_call_followed_by_content() {
    let parts = json!([
        text("let me see"), called("1", "result", json!({"result": {"n": 1}})), called("2", "result", json!({"result": "two"})),
        {"type": "step-start"}, text("and"), called("3", "result", json!({"result": null})), text("done")
    ]);
    assert_eq!(
        prompt(&[row("assistant", parts)]),
        json!([
            assistant(json!([text("let me see"), call("1"), call("2")])),
            tool(json!([
                result("1", json!({"type": "json", "value": {"n": 1}})),
                result("2", json!({"type": "text", "value": "two"}))
            ])),
            assistant(json!([text("and"), call("3")])),
            tool(json!([result("3", json!({"type": "json", "value": null}))])),
            assistant(json!([text("done")]))
        ])
    );
}

#[test]
fn mem_083_every_outcome_has_its_text() {
    let stored = json!({"mastra": {"modelOutput": {"type": "content", "value": [{"type": "text", "text": "short"}]}}});
    let mut mapped = called("m", "result", json!({"result": {"long": true}}));
    mapped["providerMetadata"] = stored;
    let denied = |approval: Value| called("d", "output-denied", json!({"approval": approval}));
    for (part, output) in [
        (mapped, json!({"type": "content", "value": [{"type": "text", "text": "short"}]})),
        (called("e", "output-error", json!({"errorText": "boom"})), json!({"type": "error-text", "value": "boom"})),
        (called("e", "output-error", json!({"result": {"x": 1}})), json!({"type": "error-text", "value": "{\"x\":1}"})),
        (denied(json!({"id": "d", "approved": false, "reason": "no"})), json!({"type": "text", "value": "no"})),
        (
            denied(json!({"id": "d", "approved": false})),
            json!({"type": "text", "value": "The user did not approve this tool call; it was not run."}),
        ),
    ] {
        let id = part["toolInvocation"]["toolCallId"].as_str().unwrap().to_owned();
        assert_eq!(
            prompt(&[row("assistant", json!([part]))]),
            json!([assistant(json!([call(&id)])), tool(json!([result(&id, output)]))])
        );
    }
}

#[test]
fn mem_084_calls_without_a_result_are_dropped_or_pending() {
    let rows = [
        row("user", json!([text("q")])),
        row("assistant", json!([text("a"), called("1", "call", json!({})), called("2", "partial-call", json!({}))])),
    ];
    assert_eq!(prompt(&rows), json!([user("q"), assistant(json!([text("a")]))]));
    let pending = PromptOptions { filter_incomplete_tool_calls: false, ..PromptOptions::default() };
    assert_eq!(
        prompt_with(&rows, &pending),
        json!([
            user("q"),
            assistant(json!([text("a"), call("1")])),
            tool(json!([result("1", json!({"type": "text", "value": "This call is pending: it has no result yet."}))]))
        ])
    );
}

#[test]
fn mem_084_every_prompt_has_matched_pairs() {
    // Every state a call can have, in every order of three parts, in one row or in three.
    let states = ["result", "call", "output-error", "output-denied", "partial-call", "approval-requested"];
    for filter in [true, false] {
        let options = PromptOptions { filter_incomplete_tool_calls: filter, ..PromptOptions::default() };
        for combination in 0..6 * 6 * 6 {
            let part = |index: usize| called("x", states[combination / 6_usize.pow(index as u32) % 6], json!({}));
            let one = vec![row("assistant", json!([part(0), part(1), text("t"), part(2)]))];
            let three = vec![
                row("assistant", json!([part(0)])),
                row("user", json!([text("u")])),
                row("assistant", json!([part(1), part(2)])),
            ];
            for rows in [one, three] {
                assert_matched(&build_prompt(&rows, &options));
            }
        }
    }
}

fn assert_matched(prompt: &[PromptMessage]) {
    let mut expected: Vec<String> = Vec::new();
    for message in prompt {
        match message {
            PromptMessage::Assistant { content, .. } => {
                assert!(expected.is_empty(), "calls without results before {message:?}");
                assert!(!content.is_empty());
                expected = content
                    .iter()
                    .filter_map(|part| match part {
                        AssistantPart::ToolCall { tool_call_id, .. } => Some(tool_call_id.clone()),
                        _ => None,
                    })
                    .collect();
            }
            PromptMessage::Tool { content } => {
                let given: Vec<String> = content.iter().map(|result| result.tool_call_id.clone()).collect();
                assert_eq!(std::mem::take(&mut expected), given);
            }
            _ => assert!(expected.is_empty(), "calls without results before {message:?}"),
        }
    }
    assert!(expected.is_empty());
}

#[test]
fn r33a_repeated_call_ids_stay_apart_and_in_order() {
    let step = |city: &str| called("x", "result", json!({"result": city}));
    let expected = json!([
        assistant(json!([call("x")])),
        tool(json!([result("x", json!({"type": "text", "value": "Oslo"}))])),
        assistant(json!([call("x")])),
        tool(json!([result("x", json!({"type": "text", "value": "Rome"}))])),
        assistant(json!([call("x")])),
        tool(json!([result("x", json!({"type": "text", "value": "Lima"}))])),
    ]);
    let start = json!({"type": "step-start"});
    let marked = row("assistant", json!([step("Oslo"), start, step("Rome"), start, step("Lima")]));
    let bare = row("assistant", json!([step("Oslo"), step("Rome"), step("Lima")]));
    assert_eq!(prompt(&[marked]), expected);
    assert_eq!(prompt(&[bare]), expected);
}

#[test]
fn mem_086_what_another_provider_executed_is_dropped() {
    let mut search = called("s", "result", json!({"result": "found"}));
    search["providerExecuted"] = json!(true);
    let rows = [row_with("assistant", json!([search, text("a")]), json!({"provider": "openai"}))];
    let turns = |provider: Option<&str>| build_prompt_for(&rows, &PromptOptions::default(), provider).len();
    assert_eq!((turns(Some("anthropic")), turns(Some("openai")), turns(None)), (1, 3, 3));
}

#[test]
fn mem_087_assistant_rows_merge_unless_sealed() {
    for (metadata, turns) in [
        (json!(null), 1),
        (json!({"mastra": {"responseBoundary": true}}), 2),
        (json!({"mastra": {"sealed": true}}), 2),
        (json!({"completionResult": {"passed": false}}), 2),
        (json!({"modelId": "m"}), 1),
    ] {
        let rows = [row_with("assistant", json!([text("a")]), metadata), row("assistant", json!([text("b")]))];
        assert_eq!(build_prompt(&rows, &PromptOptions::default()).len(), turns);
    }
    let calls = [
        row("assistant", json!([called("1", "result", json!({"result": "a"}))])),
        row("assistant", json!([called("2", "result", json!({"result": "b"}))])),
    ];
    assert_eq!(build_prompt(&calls, &PromptOptions::default()).len(), 4, "calls of two rows are two steps");
}

#[test]
fn mem_088_the_cut_does_not_start_with_an_answer() {
    let rows: Vec<StoredMessage> = "uauasaa"
        .chars()
        .map(|role| {
            row(
                match role {
                    'u' => "user",
                    's' => "signal",
                    _ => "assistant",
                },
                json!([text("x")]),
            )
        })
        .collect();
    let lengths: Vec<usize> = (0..=8).map(|limit| history_window(&rows, limit).len()).collect();
    assert_eq!(lengths, [0, 3, 3, 3, 5, 5, 7, 7, 7]);
    assert_eq!(history_window(&rows[1..2], 1).len(), 1, "what was answered is not there");
}

#[test]
fn loop_004_system_messages_go_first() {
    let rows = [row("user", json!([text("q")])), row("system", json!([text("be"), text("brief")]))];
    assert_eq!(prompt(&rows), json!([{"role": "system", "content": "be\nbrief"}, user("q")]));
}

#[test]
fn ruling_34_blocked_rows_are_left_out() {
    let blocked = json!({"blocked": {"reason": "no", "processorId": "p"}});
    let rows = [row_with("user", json!([text("bad")]), blocked), row("user", json!([text("good")]))];
    assert_eq!(prompt(&rows), json!([user("good")]));
}

#[test]
fn r42_tool_results_are_cut_for_the_model() {
    let long = called("c", "result", json!({"result": {"text": "x".repeat(5000)}}));
    let options = PromptOptions { max_tool_result_bytes: Some(200), ..PromptOptions::default() };
    let turns = build_prompt(&[row("assistant", json!([long]))], &options);
    let PromptMessage::Tool { content } = &turns[1] else { panic!("{turns:?}") };
    assert!(content[0].output.to_text().len() <= 200, "{content:?}");
}

#[test]
fn mem_040_rows_older_than_parts_are_read() {
    let old: Vec<StoredMessage> = serde_json::from_value(json!([
        {"id": "u", "role": "user", "createdAt": "2026-01-01T00:00:00.000Z", "content": {"format": 2, "parts": [],
            "content": "see", "experimental_attachments": [{"url": "https://x/a.png?b=1", "name": "a.png"}]}},
        {"id": "a", "role": "assistant", "createdAt": "2026-01-01T00:00:00.000Z", "content": {"format": 2, "parts": [],
            "content": "done", "toolInvocations": [{"state": "result", "toolCallId": "c", "toolName": "t", "args": {"a": "c"}, "result": "r"}]}}
    ]))
    .unwrap();
    assert_eq!(
        prompt(&old),
        json!([
            {"role": "user", "content": [text("see"), {"type": "file", "data": "https://x/a.png?b=1", "mediaType": "image/png", "filename": "a.png"}]},
            assistant(json!([call("c")])),
            tool(json!([result("c", json!({"type": "text", "value": "r"}))])),
            assistant(json!([text("done")]))
        ])
    );
}
