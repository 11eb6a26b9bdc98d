//! Models that fail: retries, fallbacks, limits, and how a failed run ends (LOOP-046 … LOOP-050, LOOP §9).

use std::{sync::Arc, time::Duration};

use bugle::{
    Error, RunOptions,
    agent::ModelEntry,
    chunk::FinishReason,
    json::{Value, json},
    model::{ModelError, ModelErrorKind, ModelSettings, Script, ScriptedModel, Timeouts},
    run::Hooks,
};
use parking_lot::Mutex;

use super::{call, echo, input, world_with};

fn status(status: u16) -> Script {
    Script::new().fail_with(status, "provider says no")
}

fn limits(timeouts: Timeouts) -> RunOptions {
    let settings = ModelSettings { timeout: Some(timeouts), ..ModelSettings::default() };
    RunOptions { model_settings: Some(settings), ..RunOptions::default() }
}

#[tokio::test(start_paused = true)]
async fn loop_046_a_request_is_tried_again_after_one_two_four_seconds() {
    let refused = || Script::new().fail(ModelError::new(ModelErrorKind::Connect, "connection refused"));
    for (retries, took, works) in [(Some(0), 0, false), (Some(1), 1, false), (None, 3, false), (Some(3), 7, true)] {
        let scripts = [refused(), refused(), refused(), Script::new().text("Hello")];
        // The default, without what the tests' agents say.
        let model = ScriptedModel::with_responses(scripts);
        let mut agent = bugle::Agent::builder("plain").model(Arc::new(model.clone()));
        if let Some(retries) = retries {
            agent = agent.max_retries(retries);
        }
        let world = crate::support::world_of(model, [agent.build().unwrap()]).await;
        let began = tokio::time::Instant::now();
        let ran = super::run_on(&world.agent, "go", None, RunOptions::default()).await;
        assert_eq!(began.elapsed().as_secs(), took, "{retries:?}");
        assert_eq!(ran.output.error.is_none(), works, "{retries:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn loop_046_the_provider_says_how_long_to_wait_and_what_is_final() {
    for (asked, waited) in [(5, 5), (600, 30)] {
        let error = ModelError::new(ModelErrorKind::Status, "busy").with_status(429);
        let busy = Script::new().fail(error.with_retry_after(Some(Duration::from_secs(asked))));
        let world = world_with([busy, Script::new().text("Hello")], |agent| agent.max_retries(1)).await;
        let began = tokio::time::Instant::now();
        assert_eq!(world.run("go").await.output.text, "Hello");
        assert_eq!(began.elapsed().as_secs(), waited);
    }
    for code in [400, 401, 403, 404, 422] {
        let world = world_with([status(code)], |agent| agent.max_retries(3)).await;
        assert_eq!(world.run("go").await.output.error.unwrap().status_code, Some(code));
        assert_eq!(world.model.requested(), 1, "{code}");
    }
}

#[tokio::test(start_paused = true)]
async fn loop_046_who_says_how_often_the_model_then_the_call_then_the_agent() {
    let call = |retries| RunOptions {
        model_settings: Some(ModelSettings { max_retries: Some(retries), ..ModelSettings::default() }),
        ..RunOptions::default()
    };
    for (entry, options, tries) in [(None, RunOptions::default(), 2), (None, call(2), 3), (Some(3), call(2), 4)] {
        let model = ScriptedModel::with_responses((0..9).map(|_| status(500)));
        let first = ModelEntry { model: Arc::new(model.clone()), max_retries: entry };
        let agent = bugle::Agent::builder("plain").model_entry(first).max_retries(1).build().unwrap();
        let world = crate::support::world_of(model, [agent]).await;
        super::run_on(&world.agent, "go", None, options).await;
        assert_eq!(world.model.requested(), tries);
    }
}

#[tokio::test(start_paused = true)]
async fn loop_047_loop_048_the_next_model_answers_in_the_same_step() {
    for failure in [status(401), Script::new().fail_in_band(429, "busy"), Script::new().think("").cut()] {
        let other = ScriptedModel::with_responses([Script::new().text("Hello")]).named("other", "m2");
        let world = world_with([failure], |agent| agent.model(Arc::new(other.clone()))).await;
        let ran = world.run("go").await;
        assert_eq!((ran.output.text.as_str(), ran.output.steps.len()), ("Hello", 1));
        assert_eq!(world.answer_parts().await.len(), 1);
        let stored = world.stored().await;
        assert_eq!(stored[1].content.meta("provider"), Some(&json!("other")));
    }
}

#[tokio::test(start_paused = true)]
async fn loop_048_after_content_nothing_is_tried_again() {
    let other = ScriptedModel::with_responses([Script::new().text("Hello")]);
    let world = world_with([Script::new().text("half").fail_in_band(429, "busy")], |agent| {
        agent.max_retries(3).model(Arc::new(other.clone()))
    })
    .await;
    let ran = world.run("go").await;
    assert_eq!(ran.output.error.unwrap().message, "busy");
    assert_eq!((world.model.requested(), other.requested()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn loop_049_limits_of_a_request() {
    for (timeouts, kind, script) in [
        (Timeouts { step_ms: Some(500.0), ..Timeouts::default() }, "step", Script::new().text("x").hang()),
        (Timeouts { first_chunk_ms: Some(200.0), ..Timeouts::default() }, "firstChunk", Script::new().hang()),
        (Timeouts { first_chunk_ms: Some(200.0), ..Timeouts::default() }, "firstChunk", Script::new().headers().hang()),
    ] {
        let world = world_with([script], |agent| agent.max_retries(3)).await;
        let ran = world.run_with("go", limits(timeouts)).await;
        let error = &ran.payload("error")["error"];
        assert_eq!(error["name"], "MastraTimeoutError");
        assert_eq!(error["details"]["timeoutType"], kind);
        let end: Vec<&str> = ran.kinds().into_iter().rev().take(3).collect();
        assert_eq!(end, ["finish", "step-finish", "error"]);
        assert_eq!(world.model.requested(), 1, "timeouts are not tried again");
        // Another model gets its own time.
        let other = ScriptedModel::with_responses([Script::new().text("Hello")]);
        let world = world_with([Script::new().hang()], |agent| agent.model(Arc::new(other.clone()))).await;
        assert_eq!(world.run_with("go", limits(timeouts)).await.output.text, "Hello");
    }
}

#[tokio::test(start_paused = true)]
async fn loop_049_content_in_time_lifts_the_first_chunk_limit() {
    let script = Script::new().text("one ").wait(Duration::from_secs(9)).text("two");
    let world = world_with([script], |agent| agent).await;
    let timeouts = Timeouts { first_chunk_ms: Some(200.0), ..Timeouts::default() };
    assert_eq!(world.run_with("go", limits(timeouts)).await.output.text, "one two");
}

#[tokio::test(start_paused = true)]
async fn loop_047_loop_050_the_total_limit_ends_the_run_with_an_error_and_finish() {
    let other = ScriptedModel::with_responses([Script::new().text("never")]);
    let world = world_with([call(1), Script::new().text("half ").hang()], |agent| {
        agent.tool(echo()).model(Arc::new(other.clone()))
    })
    .await;
    let ran = world.run_with("go", limits(Timeouts { total_ms: Some(900.0), ..Timeouts::default() })).await;
    let kinds = ran.kinds();
    assert!(!kinds.contains(&"abort"), "{kinds:?}");
    assert_eq!(ran.payload("error")["error"]["details"], json!({"timeoutType": "total", "timeoutMs": 900.0}));
    assert_eq!(ran.finish()["stepResult"]["reason"], "error");
    assert_eq!(other.requested(), 0);
    let kinds: Vec<Value> = world.answer_parts().await.iter().map(|part| part["type"].clone()).collect();
    assert_eq!(kinds, ["tool-invocation", "step-start", "text", "error"]);
}

#[tokio::test(start_paused = true)]
async fn loop_010_limits_out_of_range_fail_the_call() {
    let world = world_with([Script::new().text("never")], |agent| agent).await;
    for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let options = limits(Timeouts { step_ms: Some(bad), ..Timeouts::default() });
        match world.agent.stream(input("go"), None, options).await {
            Err(Error::Invalid { field, .. }) => assert_eq!(field, "modelSettings.timeout.stepMs"),
            other => panic!("{bad}: {other:?}"),
        }
    }
    assert_eq!(world.model.requested(), 0);
}

#[tokio::test(start_paused = true)]
async fn loop_140_loop_141_loop_142_a_failed_run_tells_and_keeps_everything() {
    let order: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = order.clone();
    let hooks = Hooks {
        on_error: Some(Arc::new(move |error| log.lock().push(error.message.clone()))),
        on_finish: Some(Arc::new(|_| panic!("a failed run does not finish"))),
        ..Hooks::default()
    };
    let world =
        world_with([Script::new().text("half ").fail_in_band(500, "broken"), Script::new().text("ok")], |agent| agent)
            .await;
    let ran = world.run_with("go", RunOptions { hooks, ..RunOptions::default() }).await;
    assert_eq!(*order.lock(), ["broken"]);
    assert_eq!(ran.output.finish_reason, FinishReason::Error);
    assert_eq!(world.texts().await, ["go", "half "]);
    let id = json!(world.stored().await[1].id);
    assert_eq!(id, ran.payload("start")["messageId"]);
    let error = world.answer_parts().await.pop().unwrap();
    assert_eq!(error["error"], json!({"name": "AI_APICallError", "message": "broken"}));
    assert!(error["createdAt"].is_i64());
    // The next message works, and no model reads of the error.
    assert_eq!(world.run("again").await.output.text, "ok");
    let prompt = super::prompt(&world.model.requests()[1]).to_string();
    assert!(prompt.contains("half ") && !prompt.contains("broken"), "{prompt}");
}

#[tokio::test(start_paused = true)]
async fn sig_353_loop_143_an_error_on_the_wire_says_what_the_provider_said() {
    let world = world_with([status(429)], |agent| agent).await;
    let error = world.run("go").await.payload("error")["error"].clone();
    assert_eq!((&error["name"], &error["message"]), (&json!("AI_APICallError"), &json!("provider says no")));
    assert_eq!((&error["statusCode"], &error["isRetryable"]), (&json!(429), &json!(true)));
    assert!(error["responseBody"].as_str().unwrap().contains("provider says no"));
    assert_eq!(error.get("stack"), None);
}

#[tokio::test(start_paused = true)]
async fn loop_003_generate_fails_with_the_runs_error() {
    let world = world_with([status(400)], |agent| agent).await;
    match world.agent.generate(input("go"), Some(&world.thread), RunOptions::default()).await {
        Err(Error::Run(error)) => {
            assert_eq!((error.message.as_str(), error.status_code), ("provider says no", Some(400)));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(world.texts().await[0], "go");
}

#[tokio::test(start_paused = true)]
async fn loop_144_a_run_whose_agents_code_panics_ends_and_frees_the_thread() {
    let world = world_with([Script::new().text("Hello")], |agent| {
        agent.instructions_per(|context| {
            assert!(context.get("panic").is_none(), "as told");
            None
        })
    })
    .await;
    let mut options = RunOptions::default();
    options.request_context.set("panic", true);
    let mut stream = world.agent.stream(input("go"), Some(&world.thread), options).await.unwrap();
    let mut kinds = Vec::new();
    while let Some(chunk) = stream.next().await {
        kinds.push(chunk.chunk().kind().to_owned());
    }
    assert_eq!(kinds, ["error", "finish"]);
    assert_eq!(world.run("again").await.output.text, "Hello");
}

#[tokio::test(start_paused = true)]
async fn loop_012_an_agent_without_a_model_is_refused_by_name() {
    let error = bugle::Agent::builder("bare").build().unwrap_err().to_string();
    assert!(error.contains("agent bare has no model"), "{error}");
    let model = ScriptedModel::with_responses([Script::new().text("Hello")]);
    let agent = bugle::Agent::builder("bare").description("d").model(Arc::new(model.clone())).build().unwrap();
    assert_eq!((agent.name(), agent.instructions(&Default::default())), ("bare", None));
    let world = crate::support::world_of(model, [agent]).await;
    let ran = super::run_on(&world.agent, "go", None, RunOptions::default()).await;
    assert_eq!(ran.output.text, "Hello");
    assert_eq!(super::roles(&world.model.requests()[0]), ["user"], "no instructions, no system message");
}
