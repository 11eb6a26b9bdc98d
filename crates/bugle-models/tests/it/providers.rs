//! Names of models.

use std::collections::HashMap;

use bugle::model::ModelErrorKind;
use bugle_models::{Protocol, Providers, resolve};

use crate::provider::*;

fn with(variables: &[(&str, &str)]) -> Providers {
    let variables: HashMap<String, String> =
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Providers::new(move |name| variables.get(name).cloned())
}

fn answer() -> Vec<Act> {
    stream([delta(serde_json::json!({ "content": "x" })), finish("stop"), done()])
}

#[tokio::test]
async fn loop_220_the_rest_after_the_first_slash_is_the_models_name() {
    let model = resolve("openrouter/meta/llama-4", &with(&[("OPENROUTER_API_KEY", "k")])).unwrap();
    assert_eq!((model.provider(), model.model_id()), ("openrouter", "meta/llama-4"));
    for name in ["gpt-4o", "/x", "openai/", ""] {
        let error = resolve(name, &with(&[])).unwrap_err();
        assert_eq!(error.kind, ModelErrorKind::Configuration);
        assert!(error.message.contains("provider/model"), "{error}");
    }
}

#[tokio::test]
async fn loop_222_a_missing_key_fails_requests_and_names_variable_and_model() {
    for provider in Providers::table().iter().filter(|row| matches!(row.protocol, Protocol::Chat | Protocol::Responses))
    {
        let name = format!("{}/some-model", provider.id);
        let model = resolve(&name, &with(&[])).unwrap();
        assert_eq!((model.provider(), model.model_id()), (provider.id, "some-model"));
        if provider.key_optional {
            continue;
        }
        let error = model.stream(request()).await.unwrap_err();
        assert_eq!(error.kind, ModelErrorKind::Configuration, "{name}");
        assert!(error.message.contains(&name) && error.message.contains(provider.key_variables[0]), "{error}");
        assert!(!error.is_retryable());
    }
}

#[tokio::test]
async fn loop_223_the_base_url_of_every_provider_can_be_replaced() {
    for (name, prefix) in [
        ("openai/m", "OPENAI"),
        ("xai/m", "XAI"),
        ("fireworks-ai/m", "FIREWORKS_AI"),
        ("ollama/m", "OLLAMA"),
        ("my-own/m", "MY_OWN"),
        ("scripted/m", "SCRIPTED"),
    ] {
        let server = Provider::start([answer()]).await;
        // The key of a known provider is in the table's variable, else in the own one.
        let key = Providers::table().iter().find(|row| name.starts_with(&format!("{}/", row.id)));
        let key =
            key.map_or(format!("{prefix}_API_KEY"), |row| row.key_variables.first().unwrap_or(&"NONE").to_string());
        let variable = format!("{prefix}_BASE_URL");
        let model = resolve(name, &with(&[(&variable, &format!("{}/", server.url)), (&key, " k1 ")])).unwrap();
        model.stream(request()).await.unwrap();
        let seen = server.requests().remove(0);
        assert!(seen.head.starts_with("POST /v1/chat/completions "), "{}", seen.head);
        let expected = (key != "NONE").then_some("Bearer k1");
        assert_eq!(seen.header("authorization"), expected, "{name}");
        assert_eq!(seen.body["model"], "m");
    }
    let error = resolve("groq/m", &with(&[("GROQ_BASE_URL", "localhost:8")])).unwrap_err();
    assert!(error.message.contains("GROQ_BASE_URL"), "{error}");
}

#[tokio::test]
async fn loop_222_an_own_address_needs_no_key() {
    let server = Provider::start([answer()]).await;
    let model = resolve("openai/m", &with(&[("OPENAI_BASE_URL", &server.url)])).unwrap();
    model.stream(request()).await.unwrap();
    assert_eq!(server.requests()[0].header("authorization"), None);
}

#[test]
fn protocols_that_are_not_in_this_version_are_refused_and_said_so() {
    for name in ["anthropic/claude", "google/gemini", "moonshotai/k2", "minimax/m2"] {
        let error = resolve(name, &with(&[("ANTHROPIC_API_KEY", "k")])).unwrap_err();
        assert_eq!(error.kind, ModelErrorKind::Configuration);
        assert!(error.message.contains("not in this version") && error.message.contains("openrouter/"), "{error}");
    }
}

#[test]
fn an_unknown_provider_is_refused_with_the_known_ones() {
    let error = resolve("acme/m", &with(&[])).unwrap_err();
    assert!(error.message.contains("openai, anthropic") && error.message.contains("ACME_BASE_URL"), "{error}");
}

#[test]
fn loop_227_ollama_needs_nothing() {
    let model = resolve("ollama/qwen3", &with(&[])).unwrap();
    assert_eq!((model.provider(), model.model_id()), ("ollama", "qwen3"));
    assert!(format!("{model:?}").contains("http://127.0.0.1:11434/v1"));
}

#[tokio::test]
async fn scripted_is_the_built_in_model() {
    let model = resolve("scripted/scripted", &with(&[])).unwrap();
    let events = futures::StreamExt::collect::<Vec<_>>(model.stream(request()).await.unwrap().events).await;
    let events: Vec<_> = events.into_iter().map(Result::unwrap).collect();
    assert_eq!(text(&events), "ack: Hi");
    assert!(resolve("scripted/other", &with(&[])).is_err());
}
