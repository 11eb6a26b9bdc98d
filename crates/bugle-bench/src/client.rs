//! A small HTTP client: JSON posts and server-sent events, with arrival times.

use std::borrow::Cow;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Method, Request, Response, header};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde_json::Value;

#[derive(Clone)]
pub struct Http {
    base: String,
    client: Client<HttpConnector, Full<Bytes>>,
}

impl Http {
    /// `base` is `http://host:port` with an optional path, to which request paths are appended.
    pub fn new(base: &str) -> Http {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Http { base: base.trim_end_matches('/').to_owned(), client }
    }

    pub async fn get(&self, path: &str) -> Result<Bytes> {
        let response = self.request(Method::GET, path, Bytes::new()).await?;
        Ok(response.into_body().collect().await?.to_bytes())
    }

    pub async fn get_json(&self, path: &str) -> Result<Value> {
        Ok(serde_json::from_slice(&self.get(path).await?)?)
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Bytes> {
        let response = self.request(Method::POST, path, serde_json::to_vec(body)?.into()).await?;
        Ok(response.into_body().collect().await?.to_bytes())
    }

    /// Posts and resolves with the event stream once the response headers are in.
    pub async fn events(&self, path: &str, body: &Value) -> Result<Events> {
        let response = self.request(Method::POST, path, serde_json::to_vec(body)?.into()).await?;
        Ok(Events { body: response.into_body(), buffer: Vec::new(), read: 0, at: Instant::now() })
    }

    async fn request(&self, method: Method, path: &str, body: Bytes) -> Result<Response<Incoming>> {
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        let response = self.client.request(request).await.with_context(|| path.to_owned())?;
        let status = response.status();
        if !status.is_success() {
            let body = response.into_body().collect().await?.to_bytes();
            bail!("{path}: {status}: {:.200}", String::from_utf8_lossy(&body));
        }
        Ok(response)
    }
}

/// A response body read as server-sent events.
pub struct Events {
    body: Incoming,
    buffer: Vec<u8>,
    read: usize,
    at: Instant,
}

/// A stream chunk of the agent API, or any other JSON event.
pub struct Chunk {
    /// When the bytes that completed the event arrived.
    pub at: Instant,
    pub kind: String,
    pub run_id: String,
    pub json: String,
}

impl Events {
    /// The data of the next event, and when it arrived; `None` once the stream has ended.
    pub async fn next_data(&mut self) -> Result<Option<(Instant, String)>> {
        loop {
            while let Some(len) = find(&self.buffer[self.read..], b"\n\n") {
                let event = &self.buffer[self.read..self.read + len];
                let data = event.strip_prefix(b"data: ").map(|d| String::from_utf8_lossy(d).into_owned());
                self.read += len + 2;
                match data {
                    Some(data) if data == "[DONE]" => return Ok(None),
                    Some(data) => return Ok(Some((self.at, data))),
                    None => {} // a comment
                }
            }
            self.buffer.drain(..self.read);
            self.read = 0;
            match self.body.frame().await {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(bytes) = frame?.into_data() {
                        self.at = Instant::now();
                        self.buffer.extend_from_slice(&bytes);
                    }
                }
            }
        }
    }

    pub async fn next(&mut self) -> Result<Option<Chunk>> {
        #[derive(Deserialize)]
        struct Head<'a> {
            #[serde(rename = "type", borrow, default)]
            kind: Cow<'a, str>,
            #[serde(rename = "runId", borrow, default)]
            run_id: Cow<'a, str>,
        }
        let Some((at, json)) = self.next_data().await? else {
            return Ok(None);
        };
        let head: Head = serde_json::from_str(&json)?;
        let (kind, run_id) = (head.kind.into_owned(), head.run_id.into_owned());
        Ok(Some(Chunk { at, kind, run_id, json }))
    }

    /// Reads on until a chunk satisfies `wanted`; the end of the stream is an error.
    pub async fn until(&mut self, mut wanted: impl FnMut(&Chunk) -> bool) -> Result<Chunk> {
        loop {
            match self.next().await? {
                Some(chunk) if wanted(&chunk) => return Ok(chunk),
                Some(chunk) if chunk.kind == "error" => bail!("error chunk: {:.300}", chunk.json),
                Some(_) => {}
                None => bail!("the stream ended early"),
            }
        }
    }
}

impl Chunk {
    pub fn is(&self, kind: &str) -> bool {
        self.kind == kind
    }

    /// Whether this is the echo of an input signal whose contents include `marker`.
    pub fn echoes(&self, marker: &str) -> bool {
        self.kind.starts_with("data-") && self.json.contains(marker)
    }

    /// `payload.text`.
    pub fn text(&self) -> String {
        let value: Value = serde_json::from_str(&self.json).unwrap_or_default();
        value["payload"]["text"].as_str().unwrap_or_default().to_owned()
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|w| w == needle)
}
