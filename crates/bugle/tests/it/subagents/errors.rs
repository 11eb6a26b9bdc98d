//! Failures, and tools that only a client can run (SUB §8).

use bugle::{
    RunOptions, Tool,
    chunk::FinishReason,
    json::{Value, json},
    message::ToolState,
    model::Script,
    subagent::{CompleteDecision, Delegation},
    tool::{ToolContext, ToolError},
};

use super::{delegating, explorer, kinds, lead, nested, pair, pair_of, scripted, to_explorer};

const GENERIC: &str = "[Agent:Parent] - Failed agent tool execution for explorer";

#[tokio::test(start_paused = true)]
async fn sub_090_sub_091_sub_049_a_failing_sub_run_is_a_failed_result_without_the_providers_words() {
    let child = vec![Script::new().fail_with(400, "sub boom")];
    let pair = pair(vec![to_explorer("go"), Script::from("ok")], child, Delegation::default()).await;
    let (chunks, output) = pair.stream("hi").await;
    assert_eq!(output.text, "ok");
    assert_eq!(pair.told(1), [GENERIC]);
    let inner = nested(&chunks, "c1");
    assert_eq!(kinds(&inner), ["start", "step-start", "error", "step-finish", "finish"]);
    let error = chunks.iter().find(|chunk| chunk.kind() == "tool-error").unwrap();
    let error = serde_json::to_value(error).unwrap()["payload"]["error"].clone();
    assert_eq!(error["id"], "AGENT_AGENT_TOOL_EXECUTION_FAILED");
    assert_eq!((&error["message"], &error["cause"]["message"]), (&json!(GENERIC), &json!("sub boom")));
    let call = pair.calls().await.remove(0);
    assert_eq!((call.state, call.error_text.as_deref()), (ToolState::OutputError, Some(GENERIC)));
    let result = call.result.unwrap();
    assert_eq!(result["subAgentResourceId"], "user-explorer");
    assert!(!pair.sub_messages(&result).await.is_empty(), "what there is of the transcript is saved (SUB-047)");
}

#[tokio::test(start_paused = true)]
async fn sub_092_sub_093_sub_099_a_result_text_changes_what_the_model_reads_and_nothing_else() {
    let delegation = Delegation::default().on_delegation_complete(|done| async move {
        assert!(!done.success && done.result.text.is_empty());
        assert_eq!(done.error.as_ref().map(|error| error.message.as_str()), Some("secret boom"));
        Ok(CompleteDecision { feedback: None, result_text: Some("failed".into()) })
    });
    let child = vec![Script::new().fail_with(400, "secret boom")];
    let pair = pair(vec![to_explorer("go"), Script::from("ok")], child, delegation).await;
    let (chunks, _) = pair.stream("hi").await;
    assert_eq!(pair.told(1), ["failed"]);
    assert!(!format!("{:?}", pair.parent.requests()[1].prompt).contains("secret boom"));
    let error = chunks.iter().find(|chunk| chunk.kind() == "tool-error").unwrap();
    assert_eq!(serde_json::to_value(error).unwrap()["payload"]["error"]["cause"]["message"], "secret boom");
}

#[tokio::test(start_paused = true)]
async fn sub_048_a_transcript_that_cannot_be_saved_changes_nothing() {
    let store = crate::faulty::Faulty::new();
    store.fail("save_messages", usize::MAX);
    let (parent, child) =
        (scripted(vec![to_explorer("go"), Script::from("ok")]), scripted(vec![Script::from("found")]));
    let lead = lead(&parent).agent("explorer", explorer(&child).build().unwrap());
    let pair = super::pair_on(lead, parent, child, store).await;
    let output = pair.generate("hi").await;
    assert_eq!((output.text.as_str(), pair.told(1)), ("ok", vec!["found".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn sub_094_sub_095_sub_096_sub_098_client_tools_in_a_subagent_are_named_and_not_run() {
    let delegation = Delegation::default().on_delegation_complete(|done| async move {
        assert!(done.success);
        assert_eq!(done.result.sub_agent_pending_tool_calls[0].tool_name, "open-tab");
        Ok(CompleteDecision::default())
    });
    let (parent, child) = (
        scripted(vec![to_explorer("go"), Script::from("ok")]),
        scripted(vec![
            Script::new().text("Opening.").call_as("t1", "open-tab", r#"{"url":"x"}"#).call_as("g1", "grep", "{}"),
        ]),
    );
    let grep = Tool::json("grep", |_, _: ToolContext| async { Ok::<Value, ToolError>(json!({"hits": 2})) });
    let explorer = explorer(&child).tool(Tool::client("open-tab")).tool(grep).build().unwrap();
    let lead = lead(&parent).default_options(delegating(delegation)).agent("explorer", explorer);
    let pair = pair_of(lead, parent, child).await;
    let (warnings, _guard) = crate::support::warnings();
    let output = pair.generate("hi").await;
    assert_eq!(output.text, "ok");
    let warned = warnings.containing("only a client can run");
    let names_all = |line: &String| {
        ["explorer-agent", "open-tab", "give them to the parent", "suspend"].iter().all(|text| line.contains(text))
    };
    assert!(warned.len() == 1 && names_all(&warned[0]), "SUB-095, SUB-098: {warned:?}");
    let result = pair.calls().await[0].result.clone().unwrap();
    assert_eq!(result["finishReason"], json!(FinishReason::ToolCalls));
    let pending = json!([{"toolName": "open-tab", "toolCallId": "t1", "args": {"url": "x"}}]);
    assert_eq!(result["subAgentPendingToolCalls"], pending);
    assert_eq!(result["subAgentToolResults"][0]["toolName"], "grep");
    let told = &pair.told(1)[0];
    assert!(told.starts_with("Opening.\n\n") && told.contains("open-tab") && told.contains("Never executed"), "{told}");
}

#[tokio::test(start_paused = true)]
async fn sub_165_depth_is_limited_and_the_limit_is_named() {
    let pair = pair(
        vec![to_explorer("go"), Script::from("ok")],
        vec![Script::from("found")],
        Delegation { max_depth: Some(0), ..Delegation::default() },
    )
    .await;
    pair.generate("hi").await;
    assert!(pair.told(1)[0].contains("maxDepth is 0"), "{:?}", pair.told(1));
    assert_eq!(pair.child.requested(), 0);
}

#[tokio::test(start_paused = true)]
async fn sub_165_an_agent_may_delegate_to_itself_until_the_limit() {
    use std::sync::{Arc, OnceLock};
    let me: Arc<OnceLock<bugle::Agent>> = Arc::default();
    let model = scripted(
        (0..9)
            .map(|_| Script::new().call("agent-self", json!({"prompt": "deeper"})))
            .chain((0..9).map(|_| Script::from("up")))
            .collect(),
    );
    let found = me.clone();
    let agent = crate::support::builder("loop", &model)
        .agents_per(move |_| {
            let me = found.get()?.clone();
            Some([("self".to_owned(), Arc::new(me) as _)].into_iter().collect())
        })
        .build()
        .unwrap();
    me.set(agent.clone()).unwrap();
    let world = crate::support::world_of(model.clone(), [agent]).await;
    let output = world.agent.generate(super::input("hi"), None, RunOptions::default()).await.unwrap();
    assert_eq!(output.text, "up");
    assert_eq!(model.requested(), 18, "nine runs, the top one and eight below, of two steps each");
    let deepest = super::told(&model.requests()[9]);
    assert!(deepest[0].contains("maxDepth is 8"), "{deepest:?}");
}
