//! Tools (LOOP §6).

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bugle::{
    RunOptions, Tool,
    chunk::DataChunk,
    json::{Value, json},
    model::{ModelEvent, Script, ToolOutput},
    run::ClientTool,
    runtime::{ClientToolResult, RunInput},
    tool::{ToolContext, ToolError},
};
use parking_lot::Mutex;

use super::{call, echo, prompt, run_on, world_with};

fn done() -> Script {
    Script::new().text("done")
}

/// What the model read of the call's result, in its second request.
fn told(world: &crate::support::World) -> Value {
    let prompt = prompt(&world.model.requests()[1]);
    let tool = prompt.as_array().unwrap().iter().find(|turn| turn["role"] == "tool").cloned();
    tool.unwrap()["content"][0]["output"].clone()
}

#[tokio::test(start_paused = true)]
async fn loop_061_a_tool_is_known_by_its_key_and_found_by_its_id() {
    let world = world_with([Script::new().call("say", json!({})).call("echo", json!({})), done()], |agent| {
        agent.tool_as("say", echo())
    })
    .await;
    let ran = world.run("go").await;
    let offered: Vec<String> = world.model.requests()[0].tools.iter().map(|tool| tool.name.clone()).collect();
    assert_eq!(offered, ["say"]);
    assert_eq!(ran.all("tool-result").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn loop_062_a_tool_sees_its_call_its_run_and_the_conversation() {
    let seen: Arc<Mutex<Option<ToolContext>>> = Arc::default();
    let keep = seen.clone();
    let look = Tool::json("look", move |_, context: ToolContext| {
        assert!(!context.abort.is_cancelled());
        *keep.lock() = Some(context);
        async { Ok(json!(null)) }
    });
    let world = world_with([Script::new().call_as("c1", "look", "{}"), done()], |agent| agent.tool(look)).await;
    let mut options = RunOptions { run_id: Some("run-7".into()), ..RunOptions::default() };
    options.request_context.set("theme", "dark");
    world.run_with("go", options).await;
    let context = seen.lock().take().unwrap();
    assert_eq!((context.tool_call_id.as_str(), context.agent_id.as_str()), ("c1", "plain"));
    assert_eq!((context.run_id, context.thread), (Some("run-7".into()), Some(world.thread.clone())));
    assert_eq!(context.request_context.get("theme"), Some(&json!("dark")));
    assert_eq!(context.messages.len(), 2);
    assert_eq!(context.messages[0].joined_text(), "go");
    assert!(context.runtime.is_some() && context.resume_data.is_none());
}

#[tokio::test(start_paused = true)]
async fn loop_063_at_most_so_many_calls_run_at_once() {
    for (limit, expected, took) in [(None, 10, 200), (Some(3), 3, 400), (Some(1), 1, 1200)] {
        let running = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
        let counts = running.clone();
        let slow = Tool::json("slow", move |_, _| {
            let counts = counts.clone();
            async move {
                let now = counts.0.fetch_add(1, Ordering::SeqCst) + 1;
                counts.1.fetch_max(now, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(100)).await;
                counts.0.fetch_sub(1, Ordering::SeqCst);
                Ok(json!(1))
            }
        });
        let calls = (0..12).fold(Script::new(), |script, _| script.call("slow", json!({})));
        let world = world_with([calls, done()], |agent| agent.tool(slow)).await;
        let began = tokio::time::Instant::now();
        world.run_with("go", RunOptions { tool_call_concurrency: limit, ..RunOptions::default() }).await;
        assert_eq!(running.1.load(Ordering::SeqCst), expected);
        assert_eq!(began.elapsed().as_millis(), took);
    }
}

#[tokio::test(start_paused = true)]
async fn loop_065_loop_073_results_and_errors_come_in_call_order() {
    let wait = Tool::json("wait", |input: Value, _| async move {
        let ms = input["ms"].as_u64().unwrap_or(0);
        tokio::time::sleep(Duration::from_millis(ms)).await;
        if ms == 100 { Err(ToolError::failed("too short")) } else { Ok(json!(ms)) }
    });
    let calls = [300, 100, 200].into_iter().fold(Script::new(), |script, ms| script.call("wait", json!({"ms": ms})));
    let world = world_with([calls, done()], |agent| agent.tool(wait)).await;
    let ran = world.run("go").await;
    let kinds: Vec<&str> =
        ran.kinds().into_iter().filter(|kind| matches!(*kind, "tool-result" | "tool-error")).collect();
    assert_eq!(kinds, ["tool-result", "tool-error", "tool-result"]);
    let results: Vec<Value> = ran.all("tool-result").iter().map(|one| one["payload"]["result"].clone()).collect();
    assert_eq!(results, [300, 200]);
}

#[tokio::test(start_paused = true)]
async fn loop_067_a_tool_that_is_not_there_or_not_active_is_told_with_those_that_are() {
    let script = Script::new().call("nope", json!({})).call("hidden", json!({}));
    let world = world_with([script, done()], |agent| agent.tool(echo()).tool_as("hidden", echo())).await;
    let options = RunOptions { active_tools: Some(vec!["echo".into()]), ..RunOptions::default() };
    let ran = world.run_with("go", options).await;
    for (error, name) in ran.all("tool-error").iter().zip(["nope", "hidden"]) {
        let error = &error["payload"]["error"];
        assert_eq!(error["name"], "ToolNotFoundError");
        assert_eq!(error["message"], format!("Tool \"{name}\" not found. Available tools: echo"));
    }
    assert_eq!(ran.output.text, "done");
    assert_eq!(world.answer_parts().await[0]["toolInvocation"]["state"], "output-error");
}

#[tokio::test(start_paused = true)]
async fn loop_068_loop_069_arguments_are_repaired_or_refused() {
    for (text, args) in [
        (r#"{"city": "it's", }"#, Some(json!({"city": "it's"}))),
        (r#"{city: "Oslo"}"#, Some(json!({"city": "Oslo"}))),
        (r#"{"city": "Os"#, Some(json!({"city": "Os"}))),
        ("{'city': 'Oslo'}", None),
        ("Oslo!", None),
    ] {
        let world = world_with([Script::new().call_as("c", "echo", text), done()], |agent| agent.tool(echo())).await;
        let ran = world.run("go").await;
        match args {
            Some(args) => assert_eq!(ran.payload("tool-result")["result"], json!({ "echo": args }), "{text}"),
            None => {
                let error = ran.payload("tool-error");
                let message = error["error"]["message"].as_str().unwrap();
                assert!(message.contains("invalid arguments for tool echo"), "{message}");
                assert_eq!(error["args"], text);
            }
        }
        assert_eq!(ran.output.text, "done", "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn loop_070_loop_071_arguments_and_results_that_do_not_fit_are_results_that_say_so() {
    let ran_at_all = Arc::new(AtomicUsize::new(0));
    let count = ran_at_all.clone();
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]});
    let tool = Tool::json("weather", move |input: Value, _| {
        count.fetch_add(1, Ordering::SeqCst);
        async move { Ok(if input["city"] == "Oslo" { json!({"city": 4}) } else { input }) }
    });
    let tool = tool.with_input_schema(schema.clone()).with_output_schema(schema);
    let script = Script::new().call("weather", json!({"city": 4})).call("weather", json!({"city": "Oslo"}));
    let world = world_with([script, done()], |agent| agent.tool(tool)).await;
    let ran = world.run("go").await;
    let results = ran.all("tool-result");
    for (result, side) in results.iter().zip(["input", "output"]) {
        let payload = &result["payload"];
        assert_eq!((&payload["isError"], &payload["result"]["error"]), (&json!(true), &json!(true)));
        let message = payload["result"]["message"].as_str().unwrap();
        assert!(message.starts_with(&format!("Tool {side} validation failed for weather")), "{message}");
        assert!(payload["result"]["validationErrors"]["fields"]["city"]["errors"][0].is_string());
    }
    assert_eq!((results.len(), ran_at_all.load(Ordering::SeqCst)), (2, 1), "the tool runs for good arguments only");
    assert_eq!(told(&world)["type"], "json");
    for part in &world.answer_parts().await[..2] {
        assert_eq!(
            (&part["toolInvocation"]["state"], &part["toolInvocation"]["isError"]),
            (&json!("result"), &json!(true))
        );
    }
}

#[tokio::test(start_paused = true)]
async fn loop_072_loop_080_a_tool_that_fails_or_panics_is_a_tool_error() {
    let fails = Tool::json("fails", |_, _| async { Err::<Value, _>(ToolError::failed("no such city")) });
    let panics = Tool::json("panics", |_, _| async { panic!("off by one") as _ });
    let maps = echo().with_model_output(|_| panic!("cannot map"));
    let script = Script::new().call("fails", json!({"a": 1})).call("panics", json!({})).call("maps", json!({}));
    let world = world_with([script, done()], |agent| agent.tool(fails).tool(panics).tool_as("maps", maps)).await;
    let ran = world.run("go").await;
    let errors = ran.all("tool-error");
    let messages: Vec<&str> = errors.iter().filter_map(|one| one["payload"]["error"]["message"].as_str()).collect();
    assert_eq!(messages, ["no such city", "the tool panicked: off by one", "the tool panicked: cannot map"]);
    assert_eq!(errors[0]["payload"]["args"], json!({"a": 1}));
    let stored = world.answer_parts().await[0]["toolInvocation"].clone();
    assert_eq!((&stored["state"], &stored["errorText"]), (&json!("output-error"), &json!("no such city")));
    assert_eq!(told(&world)["value"], "no such city");
    assert_eq!(ran.output.text, "done");
}

#[tokio::test(start_paused = true)]
async fn loop_074_the_model_reads_what_the_tool_maps_its_result_to_ever_after() {
    let short = echo().with_model_output(|_| ToolOutput::Text("short".into()));
    let world = world_with([call(1), done(), done()], |agent| agent.tool(short)).await;
    let ran = world.run("go").await;
    assert_eq!(ran.payload("tool-result")["result"], json!({"echo": {"n": 1}}));
    assert_eq!(told(&world), json!({"type": "text", "value": "short"}));
    let part = world.answer_parts().await[0].clone();
    assert_eq!(part["providerMetadata"]["mastra"]["modelOutput"], json!({"type": "text", "value": "short"}));
    world.run("again").await;
    let later = prompt(&world.model.requests()[2]).to_string();
    assert!(later.contains("short") && !later.contains("echo\\\":{"), "{later}");
}

#[tokio::test(start_paused = true)]
async fn loop_075_what_a_tool_writes_is_shown_and_stored_unless_transient() {
    let writes = Tool::json("writes", |_, context: ToolContext| async move {
        context.writer.write(json!("half")).await;
        for (id, transient) in [("kept", None), ("gone", Some(true))] {
            let data =
                DataChunk { kind: "data-progress".into(), data: json!({"p": id}), id: Some(id.into()), transient };
            context.writer.custom(data).await;
        }
        Ok(json!("whole"))
    });
    let world = world_with([Script::new().call_as("c", "writes", "{}"), done()], |agent| agent.tool(writes)).await;
    let ran = world.run("go").await;
    let written = &ran.all("tool-output")[0];
    assert_eq!(written["payload"], json!({"output": "half", "toolCallId": "c", "toolName": "writes"}));
    assert_eq!(written["from"], "USER");
    let data = ran.all("data-progress");
    assert_eq!(data.len(), 2);
    assert_eq!(
        (&data[0]["data"], &data[0]["id"], data[0].get("payload")),
        (&json!({"p": "kept"}), &json!("kept"), None)
    );
    let parts = world.answer_parts().await;
    let kept: Vec<&Value> = parts.iter().filter(|part| part["type"] == "data-progress").collect();
    assert_eq!(kept.len(), 1);
    assert_eq!(kept[0]["data"], json!({"p": "kept"}));
    assert!(!prompt(&world.model.requests()[1]).to_string().contains("progress"), "MEM-081");
}

#[tokio::test(start_paused = true)]
async fn loop_076_a_client_tool_is_completed_by_the_next_request() {
    let mut options = RunOptions::default();
    let place = ClientTool { description: Some("Where the user is.".into()), ..ClientTool::default() };
    options.client_tools.insert("place".into(), place);
    let world = world_with([Script::new().call_as("c", "place", "{}"), done()], |agent| agent).await;
    let ran = world.run_with("go", options.clone()).await;
    assert_eq!(ran.output.finish_reason, bugle::chunk::FinishReason::ToolCalls);
    assert_eq!(world.model.requests()[0].tools[0].name, "place");
    assert_eq!(world.answer_parts().await[0]["toolInvocation"]["state"], "call");
    let before = world.stored().await;
    let result =
        ClientToolResult { tool_call_id: "c".into(), tool_name: "place".into(), input: None, result: json!("Oslo") };
    let input = RunInput { messages: Vec::new(), tool_results: vec![result] };
    let output = world.agent.generate(input, Some(&world.thread), options).await.unwrap();
    assert_eq!(output.text, "done");
    assert_eq!(told(&world), json!({"type": "text", "value": "Oslo"}));
    let stored = world.stored().await;
    assert_eq!((stored[1].id.clone(), stored[1].created_at), (before[1].id.clone(), before[1].created_at), "MEM-057");
    let part = serde_json::to_value(&stored[1].content.parts[0]).unwrap();
    assert_eq!(
        (&part["toolInvocation"]["state"], &part["toolInvocation"]["result"]),
        (&json!("result"), &json!("Oslo"))
    );
}

#[tokio::test(start_paused = true)]
async fn loop_076_a_definition_with_code_says_what_the_model_reads_of_a_clients_result() {
    let place = Tool::client("place").with_model_output(|result| ToolOutput::Text(format!("in {result}")));
    let world = world_with([Script::new().call_as("c", "place", "{}"), done()], |agent| agent.tool(place)).await;
    world.run("go").await;
    let result =
        ClientToolResult { tool_call_id: "c".into(), tool_name: "place".into(), input: None, result: json!("Oslo") };
    let input = RunInput { messages: Vec::new(), tool_results: vec![result] };
    world.agent.generate(input, Some(&world.thread), RunOptions::default()).await.unwrap();
    assert_eq!(told(&world), json!({"type": "text", "value": "in \"Oslo\""}));
    let part = world.answer_parts().await;
    assert!(part.iter().any(|part| part["text"] == "done"));
}

#[tokio::test(start_paused = true)]
async fn loop_077_a_tool_that_the_provider_runs_is_not_run_here_and_does_not_continue_the_loop() {
    let script = Script::new()
        .emit(ModelEvent::ToolCall {
            id: "s".into(),
            name: "echo".into(),
            input: "{\"q\":1}".into(),
            provider_executed: true,
            provider_metadata: None,
        })
        .emit(ModelEvent::ToolResult { id: "s".into(), name: "echo".into(), result: json!("hit"), is_error: false })
        .text("found");
    let world = world_with([script], |agent| agent.tool(echo())).await;
    let ran = world.run("go").await;
    assert_eq!(ran.payload("tool-call")["providerExecuted"], true);
    let result = ran.payload("tool-result");
    assert_eq!((&result["result"], &result["providerExecuted"]), (&json!("hit"), &json!(true)));
    assert_eq!((world.model.requested(), ran.output.text.as_str()), (1, "found"));
    assert_eq!(world.answer_parts().await[0]["toolInvocation"]["state"], "result");
}

#[tokio::test(start_paused = true)]
async fn loop_078_a_call_whose_arguments_were_streamed_is_announced_once() {
    let world = world_with([call(1), done()], |agent| agent.tool(echo())).await;
    let ran = world.run("go").await;
    let of_call: Vec<&str> = ran.kinds().into_iter().filter(|kind| kind.starts_with("tool-")).collect();
    assert_eq!(
        of_call,
        [
            "tool-call-input-streaming-start",
            "tool-call-delta",
            "tool-call-delta",
            "tool-call-input-streaming-end",
            "tool-call",
            "tool-result"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn loop_079_a_call_id_that_comes_again_in_a_later_step_is_a_new_call() {
    let again = |n: u32| Script::new().call_as("x", "echo", &json!({"n": n}).to_string());
    let world = world_with([again(1), again(2), done()], |agent| agent.tool(echo())).await;
    let ran = world.run("go").await;
    let ids: Vec<Value> = ran.all("tool-result").iter().map(|one| one["payload"]["toolCallId"].clone()).collect();
    assert_eq!(ids, ["x", "x#2"]);
    assert_eq!(ran.all("tool-call").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn loop_081_names_that_collide_for_a_provider_fail_before_the_model_is_asked() {
    let world = world_with([done()], |agent| agent.tool_as("get weather", echo())).await;
    let mut options = RunOptions::default();
    options.client_tools.insert("get_weather".into(), ClientTool::default());
    let ran = run_on(&world.agent, "go", Some(&world.thread), options).await;
    let error = ran.output.error.unwrap();
    assert_eq!(error.id.as_deref(), Some("AGENT_TOOL_NAME_COLLISION"));
    assert!(error.message.contains("get weather and get_weather"), "{}", error.message);
    assert_eq!(world.model.requested(), 0);
}

#[tokio::test(start_paused = true)]
async fn loop_082_a_tool_without_schema_takes_anything() {
    let world =
        world_with([Script::new().call("echo", json!({"userId": "u"})), done()], |agent| agent.tool(echo())).await;
    let ran = world.run("go").await;
    let offered = &world.model.requests()[0].tools[0];
    assert_eq!(
        (&offered.parameters["type"], &offered.parameters["additionalProperties"]),
        (&json!("object"), &json!(true))
    );
    assert_eq!(offered.description, None);
    assert_eq!(ran.payload("tool-result")["result"], json!({"echo": {"userId": "u"}}));
}
