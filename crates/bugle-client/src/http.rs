//! One request: address, token, repeats, refusals.

use std::{sync::Arc, time::Duration};

use reqwest::{Method, RequestBuilder, Response, header};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Error, message_of};

/// Waits before the repeats of a request that the network lost.
const REPEATS: [Duration; 3] = [Duration::from_millis(50), Duration::from_millis(100), Duration::from_millis(200)];
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes kept of a refusal.
const REFUSAL_LEN_MAX: usize = 64 * 1024;

/// Where requests go. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Http {
    inner: Arc<Inner>,
}

struct Inner {
    client: reqwest::Client,
    /// Without the prefix: what a person calls the server.
    origin: String,
    /// Origin and prefix, without a slash at the end.
    base: String,
    token: Option<String>,
}

impl std::fmt::Debug for Http {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Http").field("base", &self.inner.base).finish_non_exhaustive()
    }
}

impl Http {
    /// `url` is the server's address; its path is the API's prefix, `/api` if it has none.
    pub(crate) fn new(url: &str, token: Option<String>) -> Result<Self, Error> {
        let wrong = || Error::Url { url: url.to_owned() };
        let parsed = reqwest::Url::parse(url.trim()).map_err(|_| wrong())?;
        if !matches!(parsed.scheme(), "http" | "https") || parsed.host_str().is_none() {
            return Err(wrong());
        }
        // A user and password of the URL are not shown in errors.
        let mut shown = parsed.clone();
        let _ = shown.set_username("");
        let _ = shown.set_password(None);
        shown.set_query(None);
        shown.set_fragment(None);
        let path = parsed.path().trim_end_matches('/').to_owned();
        let origin = shown.as_str().trim_end_matches('/').to_owned();
        let mut base = parsed;
        base.set_query(None);
        base.set_fragment(None);
        base.set_path(if path.is_empty() { "/api" } else { &path });
        let base = base.as_str().trim_end_matches('/').to_owned();
        let inner = Inner { client: build()?, origin, base, token };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The server as a person calls it.
    pub(crate) fn origin(&self) -> &str {
        &self.inner.origin
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.inner.client.request(method, format!("{}{path}", self.inner.base));
        match &self.inner.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Sends, and repeats what the network lost before an answer (CLI-054). Gives the answer if it is a success.
    pub(crate) async fn send(&self, request: RequestBuilder) -> Result<Response, Error> {
        let mut waits = REPEATS.iter();
        loop {
            // Bodies here are JSON in memory, so a request can always be copied.
            let Some(attempt) = request.try_clone() else { return Err(Error::protocol("a body cannot be repeated")) };
            match attempt.send().await {
                Ok(response) if response.status().is_success() => return Ok(response),
                Ok(response) => return Err(refusal(response).await),
                Err(source) if source.is_builder() => return Err(Error::Setup(source)),
                Err(source) => {
                    let Some(wait) = waits.next() else {
                        return Err(Error::Unreachable { url: self.origin().to_owned(), source: source.without_url() });
                    };
                    tracing::debug!(error = %source, "no answer; once more");
                    tokio::time::sleep(*wait).await;
                }
            }
        }
    }

    /// As [`Self::send`], with a JSON answer.
    pub(crate) async fn json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, Error> {
        let response = self.send(request).await?;
        let bytes = response.bytes().await.map_err(|source| self.broken(source))?;
        serde_json::from_slice(&bytes).map_err(|error| Error::protocol(error.to_string()))
    }

    pub(crate) fn broken(&self, source: reqwest::Error) -> Error {
        Error::Unreachable { url: self.origin().to_owned(), source: source.without_url() }
    }
}

fn build() -> Result<reqwest::Client, Error> {
    // Somebody else may have installed one; theirs serves as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let builder = |without_roots: bool| {
        let builder = reqwest::Client::builder()
            .user_agent(concat!("bugle-client/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .tcp_nodelay(true)
            .http1_only();
        let builder = if without_roots { builder.tls_certs_only([]) } else { builder };
        builder.build()
    };
    // A machine without root certificates can still reach a server at http://.
    builder(false).or_else(|_| builder(true)).map_err(Error::Setup)
}

async fn refusal(mut response: Response) -> Error {
    let status = response.status().as_u16();
    let retry_after = response
        .headers()
        .get(header::RETRY_AFTER)
        .and_then(|value| value.to_str().ok()?.trim().parse().ok())
        .map(Duration::from_secs);
    let mut text = Vec::new();
    while let Ok(Some(piece)) = response.chunk().await {
        text.extend_from_slice(&piece);
        if text.len() >= REFUSAL_LEN_MAX {
            text.truncate(REFUSAL_LEN_MAX);
            break;
        }
    }
    let body =
        serde_json::from_slice(&text).unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&text).into_owned()));
    Error::Status { status, message: message_of(status, &body), body, retry_after }
}

/// A path segment, percent-encoded.
pub(crate) fn segment(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            use std::fmt::Write as _;
            // Writing to a `String` cannot fail.
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_001_a_url_without_a_path_gets_the_usual_prefix() {
        let base = |url| Http::new(url, None).map(|http| http.inner.base.clone());
        assert_eq!(base("http://127.0.0.1:4111").unwrap(), "http://127.0.0.1:4111/api");
        assert_eq!(base("http://127.0.0.1:4111/").unwrap(), "http://127.0.0.1:4111/api");
        assert_eq!(base("https://bugle.example/v1/").unwrap(), "https://bugle.example/v1");
        for wrong in ["127.0.0.1:4111", "ftp://host", "", "http://"] {
            assert!(matches!(base(wrong), Err(Error::Url { .. })), "{wrong}");
        }
    }

    #[test]
    fn http_001_ids_are_percent_encoded_in_paths() {
        assert_eq!(segment("a/b c~é"), "a%2Fb%20c~%C3%A9");
    }
}
