//! The shared HTTP client, and what its failures mean.

use std::{
    sync::{Mutex, OnceLock, PoisonError},
    time::Duration,
};

use bugle::{
    model::{ModelError, ModelErrorKind},
    time::Timestamp,
};
use chrono::DateTime;
use reqwest::{
    Client, Response, StatusCode, Url,
    header::{HeaderMap, RETRY_AFTER},
    redirect, retry,
};
use serde_json::Value;

use crate::secret::Scrubber;

/// Time to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How much of an error's body is read, and how long.
const ERROR_BODY_MAX: usize = 64 << 10;
const ERROR_BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest message kept of an error.
const MESSAGE_MAX: usize = 2048;

/// The client that all models share: one pool of connections.
pub(crate) fn client() -> Result<Client, ModelError> {
    static CLIENT: OnceLock<Client> = OnceLock::new();
    static BUILDING: Mutex<()> = Mutex::new(());
    if let Some(client) = CLIENT.get() {
        return Ok(client.clone());
    }
    let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
    // Somebody else may have installed one; theirs serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    // A machine without root certificates can still reach a model at `http://`.
    let client = build(false).or_else(|error| {
        tracing::warn!(%error, "no root certificates; only http:// models can be reached. Install ca-certificates");
        build(true)
    });
    let client = client.map_err(|error| {
        let message = format!("the HTTP client cannot be set up: {}", cause(&error));
        ModelError::new(ModelErrorKind::Configuration, message)
    })?;
    Ok(CLIENT.get_or_init(|| client).clone())
}

fn build(without_roots: bool) -> reqwest::Result<Client> {
    // Never follows redirects: they would carry the prompt elsewhere. Never retries: the run does. HTTP/1.1, so that a
    // dropped answer closes its connection and the provider stops.
    let mut builder = Client::builder()
        .user_agent(concat!("bugle/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(redirect::Policy::none())
        .retry(retry::never())
        .tcp_nodelay(true)
        .pool_idle_timeout(Duration::from_secs(50))
        .http1_only();
    if without_roots {
        builder = builder.tls_certs_only([]);
    }
    builder.build()
}

/// The innermost cause of an error: what the others only wrap.
fn cause(error: &reqwest::Error) -> String {
    let mut inner: &dyn std::error::Error = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

/// An address that can be shown: no user, password or query.
pub(crate) fn shown(url: &str) -> String {
    let Ok(mut url) = Url::parse(url) else { return "an address that is no URL".into() };
    url.set_query(None);
    url.set_fragment(None);
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.to_string().trim_end_matches('/').to_owned()
}

/// A request that got no answer.
pub(crate) fn send_error(error: &reqwest::Error, provider: &str, url: &str, scrub: &Scrubber) -> ModelError {
    if error.is_builder() {
        let message = format!("the request to {provider} cannot be built; check the base URL {}", shown(url));
        return ModelError::new(ModelErrorKind::Configuration, message);
    }
    let what = if error.is_connect() && error.is_timeout() { "timed out connecting".into() } else { cause(error) };
    let message = format!("cannot reach {provider} at {}: {what}", shown(url));
    ModelError::new(ModelErrorKind::Connect, scrub.clean(message))
}

/// An answer that broke off.
pub(crate) fn body_error(error: &reqwest::Error, provider: &str) -> ModelError {
    let message = format!("{provider} broke off its answer before it was complete: {}", cause(error));
    ModelError::new(ModelErrorKind::Truncated, message)
}

/// An answer with an error status.
pub(crate) async fn status_error(
    mut response: Response,
    provider: &str,
    key_variable: Option<&str>,
    scrub: &Scrubber,
) -> ModelError {
    let status = response.status();
    let retry_after = retry_after(response.headers(), Timestamp::now());
    let mut body = Vec::new();
    let read = async {
        while let Ok(Some(bytes)) = response.chunk().await {
            body.extend_from_slice(&bytes[..bytes.len().min(ERROR_BODY_MAX - body.len())]);
            if body.len() >= ERROR_BODY_MAX {
                break;
            }
        }
    };
    // What has come by then is said; the status alone says enough.
    let _ = tokio::time::timeout(ERROR_BODY_TIMEOUT, read).await;
    let body = scrub.clean(String::from_utf8_lossy(&body).into_owned());
    let said = serde_json::from_str(&body).ok().and_then(|body| error_text(&body));
    let reason = status.canonical_reason().unwrap_or("an unknown status");
    let mut message = said.unwrap_or_else(|| format!("{provider} answered {} {reason}", status.as_u16()));
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        let check = match key_variable {
            Some(variable) => format!("the key in {variable}"),
            None => "the model's API key".to_owned(),
        };
        message = format!("{} ({provider} answered {}; check {check})", cut(message), status.as_u16());
    }
    let error = ModelError::new(ModelErrorKind::Status, cut(message));
    let error = error.with_status(status.as_u16()).with_retry_after(retry_after);
    if body.is_empty() { error } else { error.with_body(body) }
}

/// An error that came inside a 200 answer (LOOP-048).
pub(crate) fn in_band_error(error: &Value, provider: &str, scrub: &Scrubber) -> ModelError {
    let message = error_text(error).unwrap_or_else(|| format!("{provider} reported an error without a message"));
    let status = in_band_status(error.get("error").filter(|inner| inner.is_object()).unwrap_or(error));
    let body = scrub.clean(error.to_string());
    let error = ModelError::new(ModelErrorKind::InBand, scrub.clean(cut(message))).with_body(body);
    match status {
        Some(status) => error.with_status(status),
        None => error,
    }
}

/// The HTTP status that an error inside an answer stands for.
fn in_band_status(error: &Value) -> Option<u16> {
    let number = |value: &Value| -> Option<u16> {
        let number = value.as_u64().or_else(|| value.as_str()?.parse().ok())?;
        u16::try_from(number).ok().filter(|status| (400..600).contains(status))
    };
    let fields = ["status", "status_code", "statusCode", "code", "type"];
    if let Some(status) = fields.iter().find_map(|field| number(error.get(field)?)) {
        return Some(status);
    }
    let named = |field: &&str| -> Option<u16> {
        Some(match error.get(*field)?.as_str()? {
            "rate_limit_exceeded" | "rate_limit_error" | "insufficient_quota" | "requests" | "tokens" => 429,
            "overloaded_error" | "overloaded" | "engine_overloaded" => 503,
            "invalid_request_error" | "context_length_exceeded" | "invalid_prompt" => 400,
            "authentication_error" | "invalid_api_key" => 401,
            "permission_error" | "permission_denied" => 403,
            "not_found_error" | "model_not_found" => 404,
            _ => return None,
        })
    };
    ["code", "type"].iter().find_map(named)
}

/// The message of an error body, whatever the provider calls it.
fn error_text(body: &Value) -> Option<String> {
    let text = |value: &Value| value.as_str().filter(|text| !text.trim().is_empty()).map(str::to_owned);
    let error = body.get("error");
    // OpenRouter wraps the upstream provider's words.
    let upstream = error.and_then(|error| error.pointer("/metadata/raw")).and_then(text);
    let message = error.and_then(|error| error.get("message").and_then(text).or_else(|| text(error)));
    let message =
        message.or_else(|| ["message", "detail", "error_description"].iter().find_map(|key| text(body.get(key)?)));
    match (message, upstream) {
        (Some(message), Some(upstream)) => Some(format!("{message}: {upstream}")),
        (message, upstream) => message.or(upstream),
    }
    .or_else(|| text(body))
}

fn cut(mut message: String) -> String {
    if message.len() > MESSAGE_MAX {
        let mut end = MESSAGE_MAX;
        while !message.is_char_boundary(end) {
            end -= 1;
        }
        message.truncate(end);
        message.push('…');
    }
    message
}

/// How long the provider asks to wait: `retry-after-ms`, else `retry-after` in seconds or as a date.
fn retry_after(headers: &HeaderMap, now: Timestamp) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let millis = text("retry-after-ms").and_then(|millis| millis.parse::<f64>().ok());
    if let Some(wait) = millis.and_then(|millis| Duration::try_from_secs_f64(millis / 1000.0).ok()) {
        return Some(wait);
    }
    let value = text(RETRY_AFTER.as_str())?;
    if let Ok(seconds) = value.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let at = DateTime::parse_from_rfc2822(value).ok()?.timestamp_millis();
    Some(Duration::from_millis(u64::try_from(at - now.as_millis()).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_046_retry_after_is_read_in_every_form() {
        let now = Timestamp::parse("2026-01-01T00:00:00Z").unwrap();
        let read = |pairs: &[(&'static str, &'static str)]| {
            let pairs = pairs.iter().map(|(name, value)| {
                (reqwest::header::HeaderName::from_static(name), reqwest::header::HeaderValue::from_static(value))
            });
            retry_after(&pairs.collect::<HeaderMap>(), now)
        };
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[("retry-after", "7")]), Some(Duration::from_secs(7)));
        assert_eq!(read(&[("retry-after", "0.5")]), Some(Duration::from_millis(500)));
        assert_eq!(read(&[("retry-after", "-1")]), None);
        assert_eq!(read(&[("retry-after", "soon")]), None);
        assert_eq!(read(&[("retry-after-ms", "1250"), ("retry-after", "7")]), Some(Duration::from_millis(1250)));
        assert_eq!(read(&[("retry-after", "Thu, 01 Jan 2026 00:00:09 GMT")]), Some(Duration::from_secs(9)));
        assert_eq!(read(&[("retry-after", "Wed, 31 Dec 2025 00:00:00 GMT")]), Some(Duration::ZERO));
    }

    #[test]
    fn addresses_are_shown_without_credentials() {
        assert_eq!(shown("https://me:pw@host:8/v1/?key=abc#x"), "https://host:8/v1");
        assert_eq!(shown("not one"), "an address that is no URL");
    }
}
