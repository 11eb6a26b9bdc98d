//! The tools that the conformance suite asks for.

use std::time::Duration;

use bugle::{
    ThreadKey, Tool,
    json::{Value, json},
    notification::NewNotification,
    tool::{Approval, ToolContext, ToolError},
};

/// An object with these required properties and no others.
fn object(properties: Value, required: &[&str]) -> Value {
    json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
}

fn text_of(input: &Value, name: &str) -> String {
    input[name].as_str().unwrap_or_default().to_owned()
}

pub(crate) fn get_weather() -> Tool {
    let text = || json!({"type": "string"});
    Tool::json("get-weather", |input, _| async move { Ok(json!({"city": input["city"], "tempC": 21, "sky": "clear"})) })
        .described("Current weather for a city.")
        .with_input_schema(object(json!({"city": text()}), &["city"]))
        .with_output_schema(object(
            json!({"city": text(), "tempC": {"type": "number"}, "sky": text()}),
            &["city", "tempC", "sky"],
        ))
}

pub(crate) fn slow_tool() -> Tool {
    Tool::json("slow-tool", |input, context: ToolContext| async move {
        let ms = input["ms"].as_f64().unwrap_or_default();
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs_f64((ms / 1000.0).clamp(0.0, 3600.0))) => Ok(json!({"waited": input["ms"]})),
            () = context.abort.cancelled() => Err(ToolError::failed("aborted")),
        }
    })
    .described("Waits, then returns.")
    .with_input_schema(object(json!({"ms": {"type": "number"}}), &["ms"]))
}

pub(crate) fn fail_tool() -> Tool {
    Tool::json("fail-tool", |_, _| async { Err(ToolError::failed("tool exploded")) })
        .described("Always fails.")
        .with_input_schema(object(json!({}), &[]))
}

pub(crate) fn delete_file() -> Tool {
    Tool::json("delete-file", |input, _| async move { Ok(json!({"deleted": input["path"]})) })
        .described("Deletes a file. Needs approval.")
        .with_input_schema(object(json!({"path": {"type": "string"}}), &["path"]))
        .with_approval(Approval::Always)
}

pub(crate) fn ask_user() -> Tool {
    Tool::json("ask-user", |input, context: ToolContext| async move {
        match context.resume_data {
            Some(data) => Ok(json!({"question": input["question"], "answer": data["answer"]})),
            None => Err(ToolError::Suspend(json!({"question": input["question"]}))),
        }
    })
    .described("Asks the user a question.")
    .with_input_schema(object(json!({"question": {"type": "string"}}), &["question"]))
    .with_resume_schema(object(json!({"answer": {"type": "string"}}), &["answer"]))
}

pub(crate) fn notify() -> Tool {
    let text = || json!({"type": "string"});
    Tool::json("notify", |input: Value, context: ToolContext| async move {
        let bugle = context.runtime.ok_or("notify needs the runtime")?;
        let thread = ThreadKey::new(text_of(&input, "resourceId"), text_of(&input, "threadId"));
        let mut event = NewNotification::new(thread, "conformance", "test", text_of(&input, "summary"));
        event.priority = Some(input["priority"].as_str().unwrap_or("medium").to_owned());
        let failed = |error: bugle::Error| ToolError::failed(error.to_string());
        let inbox = bugle.agent("inbox").map_err(failed)?;
        let notified = inbox.send_notification(event).await.map_err(failed)?;
        Ok(json!({"record": notified.record}))
    })
    .described("Puts a notification into an inbox.")
    .with_input_schema(object(
        json!({
            "threadId": text(), "resourceId": text(), "summary": text(),
            "priority": {"type": "string", "enum": ["low", "medium", "high", "urgent"]},
        }),
        &["threadId", "resourceId", "summary"],
    ))
}
