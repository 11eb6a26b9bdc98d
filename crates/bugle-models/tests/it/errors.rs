//! What goes wrong, and how it is told. No key appears in any of it.

use std::time::Duration;

use bugle::model::{LanguageModel, ModelError, ModelErrorKind};
use bugle_models::ChatModel;
use serde_json::json;

use crate::provider::*;

const JSON: &str = "content-type: application/json\r\n";
const KEY: &str = "sk-very-secret-0123456789";

async fn refused(status: &str, headers: &str, body: &str) -> ModelError {
    let (events, error) = answered(plain(status, headers, body)).await;
    assert_eq!(events, []);
    error.unwrap()
}

#[tokio::test]
async fn loop_143_an_error_keeps_the_providers_words_and_status() {
    let body = json!({ "error": { "message": "boom", "type": "server_error", "code": "500" } }).to_string();
    let error = refused("500 Internal Server Error", JSON, &body).await;
    assert_eq!((error.message.as_str(), error.status, error.kind), ("boom", Some(500), ModelErrorKind::Status));
    assert_eq!(error.response_body.as_deref(), Some(body.as_str()));
    assert!(error.is_retryable());
    for (body, message) in [
        (json!({ "error": "no such model" }), "no such model"),
        (json!({ "message": "bad" }), "bad"),
        (json!({ "detail": "not here" }), "not here"),
        (json!({ "error": { "message": "up", "metadata": { "raw": "stream" } } }), "up: stream"),
    ] {
        let error = refused("404 Not Found", JSON, &body.to_string()).await;
        assert_eq!((error.message.as_str(), error.is_retryable()), (message, false));
    }
    let error = refused("502 Bad Gateway", "content-type: text/html\r\n", "<html>").await;
    assert_eq!(error.message, "test answered 502 Bad Gateway");
}

#[tokio::test]
async fn loop_046_a_rate_limit_says_how_long_to_wait() {
    let body = json!({ "error": { "message": "slow down" } }).to_string();
    for (header, wait) in [("retry-after: 7\r\n", 7000), ("retry-after-ms: 250\r\n", 250)] {
        let error = refused("429 Too Many Requests", &format!("{JSON}{header}"), &body).await;
        assert_eq!((error.status, error.retry_after), (Some(429), Some(Duration::from_millis(wait))));
        assert!(error.is_retryable());
    }
}

#[tokio::test]
async fn loop_048_an_error_event_is_in_band() {
    for (error, status, retryable) in [
        (json!({ "error": { "message": "slow", "code": 429 } }), Some(429), true),
        (json!({ "error": { "message": "slow", "code": "503" } }), Some(503), true),
        (json!({ "error": { "message": "slow", "type": "rate_limit_error", "code": null } }), Some(429), true),
        (json!({ "error": { "message": "slow", "code": "context_length_exceeded" } }), Some(400), false),
        (json!({ "error": { "message": "slow", "type": "odd" } }), None, true),
        (json!({ "error": "slow" }), None, true),
        (json!({ "object": "error", "message": "slow", "code": 400 }), Some(400), false),
    ] {
        let (events, told) = answered(stream([event(&error)])).await;
        let told = told.unwrap();
        assert_eq!(events, []);
        assert_eq!(
            (told.kind, told.status, told.message.as_str()),
            (ModelErrorKind::InBand, status, "slow"),
            "{error}"
        );
        assert_eq!(told.is_retryable(), retryable, "{error}");
    }
    // By the event's name …
    let (_, told) = answered(stream([chunk("event: error\ndata: {\"message\":\"slow\"}\n\n")])).await;
    assert_eq!(told.unwrap().kind, ModelErrorKind::InBand);
    let (_, told) = answered(stream([chunk("event: error\ndata: overloaded\n\n")])).await;
    assert_eq!(told.unwrap().message, "overloaded");
    // … as a plain answer with status 200 …
    let body = json!({ "error": { "message": "slow", "code": 429 } }).to_string();
    let (_, told) = answered(plain("200 OK", JSON, &body)).await;
    assert_eq!(told.unwrap().kind, ModelErrorKind::InBand);
    // … and after content.
    let (events, told) = answered(stream([delta(json!({ "content": "a" })), event(&json!({ "error": "x" }))])).await;
    assert_eq!((text(&events).as_str(), told.unwrap().kind), ("a", ModelErrorKind::InBand));
}

#[tokio::test]
async fn a_null_error_is_none() {
    let last = json!({ "error": null, "choices": [{ "delta": { "content": "x" }, "finish_reason": "stop" }] });
    let (events, error) = answered(stream([event(&last), done()])).await;
    assert!(error.is_none());
    assert_eq!(text(&events), "x");
}

#[tokio::test]
async fn what_is_no_chat_completion_is_a_protocol_error() {
    let kind = async |answer| answered(answer).await.1.unwrap().kind;
    assert_eq!(kind(stream([chunk("data: {not json\n\n")])).await, ModelErrorKind::Protocol);
    assert_eq!(kind(stream([chunk("data: 7\n\n")])).await, ModelErrorKind::Protocol);
    let html = plain("200 OK", "content-type: text/html\r\n", "<html>\n<p>log in</p>\n</html>");
    let (_, error) = answered(html).await;
    let error = error.unwrap();
    assert_eq!(error.kind, ModelErrorKind::Protocol);
    assert!(error.response_body.unwrap().contains("log in"));
    assert_eq!(kind(plain("200 OK", JSON, "{\"hello\":1}")).await, ModelErrorKind::Protocol);
}

#[tokio::test]
async fn an_empty_body_is_truncated() {
    for headers in [JSON, "content-type: text/event-stream\r\n"] {
        let (events, error) = answered(plain("200 OK", headers, "")).await;
        let error = error.unwrap();
        assert_eq!((events, error.kind), (vec![], ModelErrorKind::Truncated));
        assert_eq!(error.message, "test answered 200 with an empty body");
    }
}

#[tokio::test]
async fn a_provider_that_is_not_there_is_a_connect_error() {
    // Bound, so that nobody else takes the port; nobody listens.
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    let model = ChatModel::builder(format!("http://127.0.0.1:{port}/v1"), "m").provider("test").build();
    let error = model.stream(request()).await.unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::Connect);
    assert!(error.message.starts_with(&format!("cannot reach test at http://127.0.0.1:{port}/v1")), "{error}");
    assert!(error.is_retryable());
    // Closed before any answer.
    let (_, error) = answered(vec![Act::Close]).await;
    assert_eq!(error.unwrap().kind, ModelErrorKind::Connect);
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let error = refused("307 Temporary Redirect", "location: http://127.0.0.1:1/steal\r\n", "").await;
    assert_eq!((error.kind, error.status), (ModelErrorKind::Status, Some(307)));
}

#[tokio::test]
async fn loop_143_no_key_appears_in_any_error() {
    let echo = format!("Incorrect API key provided: {KEY}");
    let body = json!({ "error": { "message": echo, "code": "invalid_api_key" } }).to_string();
    let header = "tok-of-a-header-98765";
    let answers = vec![
        plain("401 Unauthorized", JSON, &body),
        plain("500 Internal Server Error", JSON, &json!({ "error": { "message": header } }).to_string()),
        plain("502 Bad Gateway", "content-type: text/html\r\n", &format!("<p>{KEY}</p>")),
        stream([event(&json!({ "error": { "message": echo } }))]),
        stream([chunk(format!("data: {KEY}\n\n"))]),
        stream([chunk(format!("{KEY}\n"))]),
        stream([chunk(format!("event: error\ndata: {KEY}\n\n"))]),
        vec![Act::Close],
    ];
    let count = answers.len();
    let provider = Provider::start(answers).await;
    let url = provider.url.replace("http://", &format!("http://user:{KEY}@"));
    let model = ChatModel::builder(url, "m").provider("test").api_key(KEY).api_key_variable("TEST_API_KEY");
    let model = model.header("X-Api-Token", header).build();
    let mut told = vec![format!("{model:?}")];
    for _ in 0..count {
        let (_, error) = ask(&model, request()).await;
        let error = error.unwrap();
        told.push(format!("{error} {error:?} {}", serde_json::to_string(&error.info()).unwrap()));
    }
    assert_eq!(provider.requests().len(), count);
    for text in &told {
        assert!(!text.contains(KEY) && !text.contains("98765"), "{text}");
    }
    // And yet a refused key says what to look at.
    assert!(told[1].contains("check the key in TEST_API_KEY"), "{}", told[1]);
    assert!(told[1].contains("Incorrect API key provided: [key]"), "{}", told[1]);
}

#[tokio::test]
async fn a_header_that_http_does_not_allow_is_named_without_its_value() {
    let model = ChatModel::builder("http://127.0.0.1:1", "m").api_key("secret\nkey-value").build();
    let error = model.stream(request()).await.unwrap_err();
    assert_eq!(error.kind, ModelErrorKind::Configuration);
    assert!(error.message.contains("authorization") && !error.message.contains("secret"), "{error}");
}
