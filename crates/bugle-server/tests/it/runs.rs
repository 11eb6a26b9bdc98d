//! generate, tools, agents and the OpenAPI document (HTTP §4, §5.2, §7).

use axum::http::StatusCode;
use bugle::json::{Value, json};

use crate::support::Server;

#[tokio::test]
async fn http_041_http_049_generate_answers_the_fields_that_clients_read_and_no_request() {
    let server = Server::new().await;
    let body = json!({"messages": "[[say Hello there]]", "runId": "run-1", "memory": {"thread": "t", "resource": "r"}});
    let answer = server.post("/api/agents/plain/generate", body).await;
    assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
    let json = &answer.json;
    assert_eq!(json["text"], "Hello there");
    assert_eq!(json["finishReason"], "stop");
    assert_eq!(json["runId"], "run-1");
    assert_eq!(json["usage"]["outputTokens"], 2);
    assert_eq!(json["totalUsage"], json["usage"]);
    for list in ["toolCalls", "toolResults", "reasoning", "sources", "files", "warnings", "rememberedMessages"] {
        assert_eq!(json[list], json!([]), "{list}");
    }
    assert_eq!(json["steps"][0]["stepType"], "initial");
    assert_eq!(json["steps"][0]["content"][0], json!({"type": "text", "text": "Hello there"}));
    assert_eq!(json["response"]["messages"][0]["role"], "assistant");
    assert_eq!(json["response"]["uiMessages"][0]["parts"][0]["text"], "Hello there");
    assert_eq!(json["response"]["dbMessages"][0]["content"]["format"], 2);
    assert_eq!(json["response"]["modelId"], "scripted");
    let roles: Vec<_> = json["messages"].as_array().unwrap().iter().map(|one| &one["role"]).collect();
    assert_eq!(roles, ["user", "assistant"]);
    assert!(!answer.text.contains("You are plain.") && !answer.text.contains("\"request\""));
}

#[tokio::test]
async fn http_043_a_tool_step_is_one_entry_with_its_calls_and_results_as_chunks() {
    let server = Server::new().await;
    let body = json!({"messages": "[[call get-weather {\"city\":\"Oslo\"}]] [[say Clear]]"});
    let json = server.post("/api/agents/plain/generate", body).await.json;
    assert_eq!(json["text"], "Clear");
    assert_eq!(json["steps"].as_array().map(Vec::len), Some(2));
    let step = &json["steps"][0];
    assert_eq!(step["toolCalls"][0]["type"], "tool-call");
    assert_eq!(step["toolCalls"][0]["payload"]["args"], json!({"city": "Oslo"}));
    assert_eq!(step["toolResults"][0]["payload"]["result"], json!({"city": "Oslo"}));
    let kinds: Vec<&str> =
        step["content"].as_array().unwrap().iter().filter_map(|part| part["type"].as_str()).collect();
    assert_eq!(kinds, ["tool-call", "tool-result"]);
    assert_eq!(json["steps"][1]["stepType"], "tool-result");
}

#[tokio::test]
async fn http_044_a_provider_failure_is_502_with_its_message() {
    let server = Server::new().await;
    let body = json!({"messages": "[[fail 400 no such model]]"});
    let answer = server.post("/api/agents/plain/generate", body).await;
    assert_eq!(answer.status, StatusCode::BAD_GATEWAY, "{}", answer.text);
    assert!(answer.json["error"].as_str().unwrap().contains("no such model"));
}

#[tokio::test]
async fn http_140_http_141_tools_are_shown_and_executed() {
    let server = Server::new().await;
    let tool = server.get("/api/agents/plain/tools/get-weather").await.json;
    assert_eq!(tool["description"], "Current weather for a city.");
    let schema: Value = serde_json::from_str(tool["inputSchema"].as_str().unwrap()).unwrap();
    assert_eq!(schema["json"]["required"], json!(["city"]));
    assert_eq!(tool["requireApproval"], false);
    for base in ["/api/agents/plain/tools", "/api/tools"] {
        let run = |tool: &str, data: Value| {
            let path = format!("{base}/{tool}/execute");
            let server = &server;
            async move { server.post(&path, json!({"data": data})).await }
        };
        assert_eq!(run("get-weather", json!({"city": "Oslo"})).await.json, json!({"city": "Oslo"}));
        let wrong = run("get-weather", json!({"city": 3})).await;
        assert_eq!((wrong.status, &wrong.json["error"]), (StatusCode::OK, &json!(true)));
        let thrown = run("fail-tool", json!({})).await;
        assert_eq!(thrown.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(thrown.json, json!({"error": "tool exploded"}));
        let unknown = run("nope", json!({})).await;
        assert_eq!((unknown.status, unknown.json), (StatusCode::NOT_FOUND, json!({"error": "Tool not found"})));
        let client = run("where", json!({})).await;
        assert_eq!(client.json, json!({"error": "Tool is not executable"}));
    }
}

#[tokio::test]
async fn http_030_http_031_http_036_agents_are_described() {
    let server = Server::new().await;
    let full = server.get("/api/agents").await.json;
    let plain = &full["plain"];
    assert_eq!(plain["instructions"], "You are plain.");
    assert_eq!((&plain["provider"], &plain["modelId"]), (&json!("scripted"), &json!("scripted")));
    assert_eq!((&plain["supportsMemory"], &full["forgetful"]["supportsMemory"]), (&json!(true), &json!(true)));
    for list in ["skills", "workspaceTools", "browserTools", "inputProcessors", "outputProcessors"] {
        assert_eq!(plain[list], json!([]), "{list}");
    }
    assert_eq!(*plain, server.get("/api/agents/plain").await.json);
    let partial = server.get("/api/agents?partial=true").await.json;
    assert!(plain["tools"]["get-weather"]["inputSchema"].is_string());
    assert_eq!(partial["plain"]["tools"]["get-weather"]["inputSchema"], Value::Null);
}

#[tokio::test]
async fn http_017_http_231_the_document_and_the_cheap_answers() {
    let server = Server::new().await;
    let document = server.get("/api/openapi.json").await.json;
    assert_eq!(document["servers"], json!([{"url": "/api"}]));
    let paths = document["paths"].as_object().unwrap();
    assert!(paths.len() > 40, "{}", paths.len());
    // What the document names is there; what needs no parameters answers.
    for (path, methods) in paths {
        if path.contains('{') || methods.get("get").is_none() {
            continue;
        }
        let answer = server.get(&format!("/api{path}")).await;
        let fine = answer.status.is_success() || matches!(answer.status.as_u16(), 400 | 501);
        assert!(fine && !answer.json.is_null(), "{path} {} {}", answer.status, answer.text);
    }
    assert_eq!(server.get("/api/agents/plain/voice/speakers").await.json, json!([]));
    assert_eq!(server.get("/api/memory/search?searchQuery=x").await.status, StatusCode::NOT_IMPLEMENTED);
}

/// The paths of all keys, items of lists under `*`.
fn key_paths(value: &Value, path: &str, all: &mut std::collections::BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                let path = format!("{path}.{name}");
                all.insert(path.clone());
                key_paths(value, &path, all);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| key_paths(item, &format!("{path}.*"), all)),
        _ => {}
    }
}

/// Captures of the reference, without what HTTP-029 hides: every key that clients may read is there.
#[tokio::test]
async fn http_041_answers_have_the_keys_of_the_captures() {
    let server = Server::new().await;
    let schema = json!({"type": "object", "properties": {"answer": {"type": "number"}}, "required": ["answer"]});
    for (capture, body) in [
        (include_str!("../fixtures/generate-text.json"), json!({"messages": "[[say Hello there]]"})),
        (
            include_str!("../fixtures/generate-tools.json"),
            json!({"messages": "[[call get-weather {\"city\":\"Oslo\"}]] [[say Clear]]"}),
        ),
        (
            include_str!("../fixtures/generate-structured.json"),
            json!({"messages": "[[say {\"answer\":42}]]", "structuredOutput": {"schema": schema}}),
        ),
    ] {
        let answer = server.post("/api/agents/plain/generate", body).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.text);
        let (mut expected, mut found) = (Default::default(), Default::default());
        key_paths(&serde_json::from_str(capture).unwrap(), "", &mut expected);
        key_paths(&answer.json, "", &mut found);
        let missing: Vec<&String> = expected.difference(&found).filter(|path| !left_out(path)).collect();
        assert!(missing.is_empty(), "{missing:#?}\n{:#}", answer.json);
    }
}

/// What Bugle does not repeat: messages inside steps (HTTP-068), raw usage in one provider's own shape, details of the
/// reference's bookkeeping.
fn left_out(path: &str) -> bool {
    let inside_step = path.starts_with(".steps.*.response.") && path.contains("essages");
    inside_step
        || path.contains(".raw")
        || path.contains("roviderMetadata")
        || path.contains(".providerOptions")
        || path.contains(".toolInvocations")
        || [".sky", ".tempC"].iter().any(|end| path.ends_with(end))
}

#[tokio::test]
async fn sub_173_an_agent_is_listed_with_its_subagents() {
    let server = crate::golden::target().await;
    let expected =
        json!({"researcher": {"id": "researcher", "name": "Researcher"}, "writer": {"id": "writer", "name": "Writer"}});
    assert_eq!(server.get("/api/agents").await.json["parent"]["agents"], expected);
    assert_eq!(server.get("/api/agents/parent").await.json["agents"], expected);
    assert_eq!(server.get("/api/agents/plain").await.json["agents"], json!({}));
}

#[tokio::test]
async fn loop_011_options_that_nobody_knows_are_ignored() {
    let server = Server::new().await;
    let body = json!({
        "messages": "[[say Hello]]", "optionOfTomorrow": {"a": 1}, "modelSettings": {"temperature": 0.5, "verve": 7},
        "memory": {"thread": "t", "resource": "r", "mood": "good"},
    });
    let answer = server.post("/api/agents/plain/generate", body).await;
    assert_eq!((answer.status, &answer.json["text"]), (StatusCode::OK, &json!("Hello")), "{}", answer.text);
    assert_eq!(server.model.requests()[0].settings.temperature, Some(0.5));
}
