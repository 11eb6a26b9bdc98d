//! Result references (SUB §9).

use bugle::{
    json::{Value, json},
    model::Script,
    subagent::{CompleteDecision, Delegation, StartDecision},
};

use super::{pair, to_explorer};

fn with_refs() -> Delegation {
    Delegation { enable_result_references: Some(true), ..Delegation::default() }
}

fn call(id: &str, refs: Value) -> Script {
    Script::new().call_as(id, "agent-explorer", &json!({"prompt": "go", "contextFromRefs": refs}).to_string())
}

#[tokio::test(start_paused = true)]
async fn sub_100_to_105_a_result_is_handed_on_by_its_reference() {
    let parent = vec![
        to_explorer("first"),
        call("c2", json!(["explorer-1", {"ref": "explorer-1", "as": "map", "note": "old"}, "explorer-9"])),
        call("c3", json!(["nobody-1"])),
        Script::from("ok"),
    ];
    let child = vec![Script::from("one <b>"), Script::from(" "), Script::from("three")];
    let pair = pair(parent, child, with_refs()).await;
    pair.generate("hi").await;
    assert_eq!(pair.told(3)[0], "one <b>\n\n[ref: explorer-1]");
    let results: Vec<Value> = pair.calls().await.into_iter().map(|call| call.result.unwrap()).collect();
    let refs: Vec<Option<&str>> = results.iter().map(|result| result.get("ref").and_then(Value::as_str)).collect();
    assert_eq!(refs, [Some("explorer-1"), None, Some("explorer-2")], "an empty result uses no number up");
    let prompt = pair.child_asked(1).pop().unwrap();
    assert_eq!(prompt.matches("\none <b>\n").count(), 2, "{prompt}");
    assert!(prompt.contains("as=\"map\" note=\"old\"") && prompt.ends_with("\n\ngo"), "{prompt}");
    assert_eq!(pair.child_asked(2).pop().unwrap(), "go");
}

#[tokio::test(start_paused = true)]
async fn sub_102_sub_105_the_text_is_the_final_one_and_hooks_see_the_blocks() {
    let delegation = with_refs()
        .on_delegation_start(|start| async move {
            assert_eq!(start.prompt.contains("replaced"), start.iteration == 2);
            Ok(StartDecision::proceed())
        })
        .on_delegation_complete(|_| async {
            Ok(CompleteDecision { result_text: Some("replaced".into()), feedback: None })
        });
    let parent = vec![to_explorer("first"), call("c2", json!(["explorer-1"])), Script::from("ok")];
    let pair = pair(parent, vec![Script::from("one"), Script::from("two")], delegation).await;
    pair.generate("hi").await;
    let prompt = pair.child_asked(1).pop().unwrap();
    assert!(prompt.contains("\nreplaced\n") && !prompt.contains("[ref:"), "{prompt}");
    assert_eq!(pair.told(2), ["replaced\n\n[ref: explorer-1]", "replaced\n\n[ref: explorer-2]"]);
}

#[tokio::test(start_paused = true)]
async fn sub_100_sub_101_off_means_off_and_failures_get_none() {
    let parent = vec![call("c1", json!(["explorer-1"])), Script::from("ok")];
    let pair1 = pair(parent, vec![Script::from("one")], Delegation::default()).await;
    pair1.generate("hi").await;
    assert_eq!(pair1.told(1), ["one"]);
    let parent = vec![to_explorer("a"), call("c2", json!([])), Script::from("ok")];
    let child = vec![Script::new().fail_with(400, "boom"), Script::from("two")];
    let pair2 = pair(parent, child, with_refs()).await;
    pair2.generate("hi").await;
    assert_eq!(pair2.told(2)[1], "two\n\n[ref: explorer-1]");
}

#[tokio::test(start_paused = true)]
async fn sub_103_references_end_with_their_run() {
    let parent = vec![to_explorer("a"), Script::from("ok"), call("c2", json!(["explorer-1"])), Script::from("ok")];
    let pair = pair(parent, vec![Script::from("one"), Script::from("two")], with_refs()).await;
    pair.generate("hi").await;
    pair.generate("ho").await;
    assert_eq!(pair.child_asked(1).pop().unwrap(), "go");
    assert_eq!(pair.told(3)[1], "two\n\n[ref: explorer-1]");
}
