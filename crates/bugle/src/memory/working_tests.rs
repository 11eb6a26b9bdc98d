//! Working memory against the in-memory store.

use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::{
    message::Role,
    storage::{MemoryStorage, NewThread},
    tool::ToolWriter,
};

async fn store() -> (SharedStorage, ThreadKey) {
    let storage: SharedStorage = Arc::new(MemoryStorage::default());
    let thread = NewThread { id: Some("t".into()), resource_id: "r".into(), ..NewThread::default() };
    storage.create_thread(thread).await.unwrap();
    (storage, ThreadKey::new("r", "t"))
}

fn context() -> ToolContext {
    ToolContext {
        tool_call_id: "c".into(),
        run_id: None,
        agent_id: "a".into(),
        thread: None,
        messages: std::sync::Arc::default(),
        request_context: crate::RequestContext::default(),
        abort: tokio_util::sync::CancellationToken::new(),
        resume_data: None,
        resume: None,
        writer: ToolWriter::default(),
        runtime: None,
    }
}

async fn call(tool: &Tool, memory: Value) -> Result<Value, String> {
    let input = json!({"memory": memory});
    tool.check_input(&input).map_err(|report| report.to_string())?;
    tool.execute().unwrap().execute(input, context()).await.map_err(|error| error.to_string())
}

#[tokio::test]
async fn mem_100_working_memory_lives_with_the_resource_or_the_thread() {
    let (storage, thread) = store().await;
    for scope in [Scope::Resource, Scope::Thread] {
        assert_eq!(get_working_memory(&storage, &thread, scope).await.unwrap(), None);
        set_working_memory(&storage, &thread, scope, Some(format!("{scope:?}"))).await.unwrap();
    }
    for scope in [Scope::Resource, Scope::Thread] {
        assert_eq!(get_working_memory(&storage, &thread, scope).await.unwrap(), Some(format!("{scope:?}")));
    }
    let other = ThreadKey::new("r", "other");
    assert_eq!(get_working_memory(&storage, &other, Scope::Resource).await.unwrap().as_deref(), Some("Resource"));
    assert_eq!(get_working_memory(&storage, &other, Scope::Thread).await.unwrap(), None);
    let row = storage.get_thread("t").await.unwrap().unwrap();
    assert_eq!(row.metadata.unwrap().get("workingMemory"), Some(&json!("Thread")));
    set_working_memory(&storage, &thread, Scope::Thread, None).await.unwrap();
    assert_eq!(get_working_memory(&storage, &thread, Scope::Thread).await.unwrap(), None);
}

#[test]
fn mem_101_the_system_message_shows_content_or_template() {
    let options = WorkingMemoryOptions { template: Some("# Me".into()), ..WorkingMemoryOptions::default() };
    let shown = working_memory_system(&options, None).unwrap();
    assert!(shown.contains("# Me") && shown.contains(UPDATE_WORKING_MEMORY), "{shown}");
    let shown = working_memory_system(&options, Some("# Ann")).unwrap();
    assert!(shown.contains("# Ann") && !shown.contains("# Me"), "{shown}");
    let read_only = WorkingMemoryOptions { read_only: true, ..options.clone() };
    assert!(!working_memory_system(&read_only, Some("x")).unwrap().contains(UPDATE_WORKING_MEMORY));
    let off = WorkingMemoryOptions { enabled: false, ..options };
    assert_eq!(working_memory_system(&off, Some("x")), None);
    let schema = WorkingMemoryOptions { schema: Some(json!({"title": "S"})), ..WorkingMemoryOptions::default() };
    let shown = working_memory_system(&schema, None).unwrap();
    assert!(shown.contains("\n{}\n") && shown.contains("\"title\":\"S\""), "{shown}");
}

#[tokio::test]
async fn mem_101_markdown_replaces_the_whole_text() {
    let (storage, thread) = store().await;
    let tool = update_working_memory_tool(storage.clone(), thread.clone(), WorkingMemoryOptions::default());
    assert_eq!(tool.id(), "updateWorkingMemory");
    for text in ["one", "two"] {
        assert_eq!(call(&tool, json!(text)).await, Ok(json!({"success": true})));
        assert_eq!(get_working_memory(&storage, &thread, Scope::Resource).await.unwrap().as_deref(), Some(text));
    }
    assert!(call(&tool, json!({"a": 1})).await.is_err());
}

#[tokio::test]
async fn mem_101_a_schema_merges_deeply() {
    let schema = json!({"type": "object", "required": ["name"], "properties": {
        "name": {"type": "string"}, "home": {"$ref": "#/$defs/home"}, "tags": {"type": "array", "items": {"type": "string"}}},
        "$defs": {"home": {"type": "object", "properties": {"city": {"type": ["string", "null"]}, "zip": {"type": "string"}}}}});
    for scope in [Scope::Resource, Scope::Thread] {
        let (storage, thread) = store().await;
        let options = WorkingMemoryOptions { schema: Some(schema.clone()), scope, ..WorkingMemoryOptions::default() };
        let tool = update_working_memory_tool(storage.clone(), thread.clone(), options);
        for change in [
            json!({"name": "Ann", "home": {"city": "Oslo", "zip": "1"}, "tags": ["a", "b"]}),
            json!({"home": {"city": null}, "tags": ["c"]}),
            json!({"name": null}),
        ] {
            assert_eq!(call(&tool, change).await, Ok(json!({"success": true})));
        }
        let held = get_working_memory(&storage, &thread, scope).await.unwrap().unwrap();
        let held: Value = serde_json::from_str(&held).unwrap();
        assert_eq!(held, json!({"home": {"zip": "1"}, "tags": ["c"]}), "{scope:?}");
        assert!(call(&tool, json!({"name": 5})).await.is_err());
        assert!(call(&tool, json!("text")).await.is_err());
    }
}

#[tokio::test]
async fn mem_102_the_bare_template_does_not_wipe_what_is_known() {
    let (storage, thread) = store().await;
    let options = WorkingMemoryOptions { template: Some("# Me\n- Name:".into()), ..WorkingMemoryOptions::default() };
    let tool = update_working_memory_tool(storage.clone(), thread.clone(), options);
    call(&tool, json!("# Me\n- Name:")).await.unwrap();
    call(&tool, json!("# Me\n- Name: Ann")).await.unwrap();
    let refused = call(&tool, json!(" # Me\n\n-   Name:\n")).await.unwrap_err();
    assert!(refused.contains("empty template"), "{refused}");
    let held = get_working_memory(&storage, &thread, Scope::Resource).await.unwrap();
    assert_eq!(held.as_deref(), Some("# Me\n- Name: Ann"));
}

#[tokio::test]
async fn mem_103_a_missing_resource_and_disabled_memory_are_errors() {
    let (storage, thread) = store().await;
    let unowned = ThreadKey::unowned("t");
    assert!(get_working_memory(&storage, &unowned, Scope::Resource).await.is_err());
    let tool = update_working_memory_tool(storage.clone(), unowned, WorkingMemoryOptions::default());
    assert!(call(&tool, json!("x")).await.unwrap_err().contains("resource"));
    for options in [
        WorkingMemoryOptions { enabled: false, ..WorkingMemoryOptions::default() },
        WorkingMemoryOptions { read_only: true, ..WorkingMemoryOptions::default() },
    ] {
        let tool = update_working_memory_tool(storage.clone(), thread.clone(), options);
        assert!(call(&tool, json!("x")).await.is_err());
    }
}

#[tokio::test]
async fn mem_104_merges_of_different_keys_both_survive() {
    let (storage, thread) = store().await;
    let options = WorkingMemoryOptions { schema: Some(json!({"type": "object"})), ..WorkingMemoryOptions::default() };
    let tool = update_working_memory_tool(storage.clone(), thread.clone(), options);
    let (one, two) = tokio::join!(call(&tool, json!({"a": 1})), call(&tool, json!({"b": 2})));
    assert!(one.is_ok() && two.is_ok());
    let held = get_working_memory(&storage, &thread, Scope::Resource).await.unwrap().unwrap();
    assert_eq!(serde_json::from_str::<Value>(&held).unwrap(), json!({"a": 1, "b": 2}));
}

#[test]
fn mem_052_working_memory_is_not_stored() {
    let strip = |parts: Value| {
        let mut message: StoredMessage = serde_json::from_value(json!({
            "id": "m", "role": "assistant", "createdAt": "2026-01-01T00:00:00.000Z", "content": {"format": 2, "parts": parts}
        }))
        .unwrap();
        let kept = strip_working_memory(&mut message);
        (kept, serde_json::to_value(message.content.parts).unwrap())
    };
    let call = |name: &str| json!({"type": "tool-invocation", "toolInvocation": {"state": "result", "toolCallId": "c", "toolName": name, "args": {}, "result": 1}});
    let text = |text: &str| json!({"type": "text", "text": text});
    let start = json!({"type": "step-start"});
    assert_eq!(strip(json!([call("updateWorkingMemory")])), (false, json!([])));
    assert_eq!(strip(json!([call("updateWorkingMemory"), start, text("hi")])), (true, json!([text("hi")])));
    assert_eq!(
        strip(json!([call("t"), start, call("updateWorkingMemory"), start, text("hi")])),
        (true, json!([call("t"), start, text("hi")]))
    );
    assert_eq!(strip(json!([text("a<working_memory>x</working_memory>b")])), (true, json!([text("ab")])));
    assert_eq!(strip(json!([text("<working_memory>x")])), (false, json!([])));
    assert_eq!(strip(json!([text("plain"), start])), (true, json!([text("plain"), start])));
    let mut user =
        StoredMessage::text("u".into(), Role::User, "a <working_memory>b</working_memory>", Default::default());
    assert!(strip_working_memory(&mut user));
    assert_eq!(user.content.content.as_deref(), Some("a "));
}
