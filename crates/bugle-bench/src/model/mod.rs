//! The scripted model: an HTTP server with the streaming shapes of the OpenAI Chat Completions and
//! Responses APIs.

mod wire;

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use bytes::Bytes;
use futures_util::stream;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::script::Script;
use wire::{Piece, Reply, Wire};

/// The largest request taken: long conversations are welcome.
const MAX_BODY: usize = 64 << 20;
/// The longest a `hang` holds its connection.
const HANG: Duration = Duration::from_secs(600);
/// The wait before a `cut`, so that what came before it is sent.
const CUT: Duration = Duration::from_millis(1);
/// Events that need no wait between them share one body frame up to this size.
const FRAME: usize = 16 * 1024;

#[derive(Default)]
struct Stats {
    requests: AtomicU64,
    failed: AtomicU64,
    finished: AtomicU64,
    cancelled: AtomicU64,
    active: AtomicU64,
    max_active: AtomicU64,
    tool_calls: AtomicU64,
    tokens: AtomicU64,
}

struct Server {
    stats: Stats,
    /// Replies begun. Never reset, so that the ids made from it stay unique.
    serial: AtomicU64,
    recorded: Mutex<VecDeque<Recorded>>,
    record: usize,
}

struct Recorded {
    path: &'static str,
    body: Bytes,
}

/// The server's routes. The last `record` request bodies are kept for `GET /requests`.
pub fn router(record: usize) -> Router {
    let server =
        Arc::new(Server { stats: Stats::default(), serial: AtomicU64::new(0), recorded: Mutex::default(), record });
    Router::new()
        .route("/v1/chat/completions", post(|s, b| complete(Wire::Chat, s, b)))
        .route("/v1/responses", post(|s, b| complete(Wire::Responses, s, b)))
        .route("/stats", get(stats))
        .route("/requests", get(requests))
        .route("/reset", post(reset))
        .route("/hello", get(|| async { "hello\n" }))
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .with_state(server)
}

async fn stats(State(server): State<Arc<Server>>) -> Json<Value> {
    let s = &server.stats;
    Json(json!({
        "requests": s.requests.load(Relaxed),
        "failed": s.failed.load(Relaxed),
        "finished": s.finished.load(Relaxed),
        "cancelled": s.cancelled.load(Relaxed),
        "active": s.active.load(Relaxed),
        "max_active": s.max_active.load(Relaxed),
        "tool_calls": s.tool_calls.load(Relaxed),
        "tokens": s.tokens.load(Relaxed),
    }))
}

async fn requests(State(server): State<Arc<Server>>) -> Json<Vec<Value>> {
    let recorded = server.recorded.lock().unwrap();
    let parse = |r: &Recorded| json!({ "path": r.path, "body": serde_json::from_slice::<Value>(&r.body).ok() });
    Json(recorded.iter().map(parse).collect())
}

async fn reset(State(server): State<Arc<Server>>) {
    let s = &server.stats;
    for counter in [&s.requests, &s.failed, &s.finished, &s.cancelled, &s.max_active, &s.tool_calls, &s.tokens] {
        counter.store(0, Relaxed);
    }
    server.recorded.lock().unwrap().clear();
}

async fn complete(wire: Wire, State(server): State<Arc<Server>>, body: Bytes) -> Response {
    let number = server.serial.fetch_add(1, Relaxed) + 1;
    server.stats.requests.fetch_add(1, Relaxed);
    server.record(wire.path(), &body);
    let request: Request = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(e) => return server.fail(StatusCode::BAD_REQUEST, &e.to_string()),
    };
    let prompt = Prompt::read(&request);
    let script = Script::resolve(&request.model, &prompt.last_user_text);
    if let Some(status) = script.status {
        return server.fail(StatusCode::from_u16(status).unwrap(), "scripted failure");
    }
    let calls = match &script.tool {
        Some(_) if prompt.rounds < script.steps => script.parallel,
        _ => 0,
    };
    server.stats.tool_calls.fetch_add(calls.into(), Relaxed);
    let reply = Reply { number, model: request.model.into(), input_tokens: body.len() as u64 / 4, calls, script };
    let run = Run::start(server, reply);
    if request.stream { run.stream(wire) } else { run.whole(wire).await }
}

impl Server {
    fn record(&self, path: &'static str, body: &Bytes) {
        if self.record > 0 {
            let mut recorded = self.recorded.lock().unwrap();
            if recorded.len() == self.record {
                recorded.pop_front();
            }
            recorded.push_back(Recorded { path, body: body.clone() });
        }
    }

    fn fail(&self, status: StatusCode, message: &str) -> Response {
        self.stats.failed.fetch_add(1, Relaxed);
        let error = json!({ "message": message, "type": "fake_model", "param": null, "code": status.as_u16() });
        (status, Json(json!({ "error": error }))).into_response()
    }
}

/// One reply being given. Dropping it before its end counts as a cancellation.
struct Run {
    server: Arc<Server>,
    reply: Reply,
    /// What comes next, and the wait before it.
    upcoming: Option<(Duration, Piece)>,
    /// When the previous piece was due. Waits count from here, so that late timers do not add up.
    due: Instant,
    ended: bool,
}

impl Run {
    fn start(server: Arc<Server>, reply: Reply) -> Run {
        let active = server.stats.active.fetch_add(1, Relaxed) + 1;
        server.stats.max_active.fetch_max(active, Relaxed);
        let upcoming = Some((reply.script.ttft, Piece::Start));
        Run { server, reply, upcoming, due: Instant::now(), ended: false }
    }

    fn following(&self, piece: Piece) -> Option<(Duration, Piece)> {
        let piece = self.reply.after(piece)?;
        let script = &self.reply.script;
        let wait = match self.reply.token(piece) {
            token @ Some(_) if token == script.hang => return Some((HANG, Piece::Finish)),
            token @ Some(_) if token == script.cut => script.delay.max(CUT),
            Some(0) | None => Duration::ZERO,
            Some(_) => script.delay,
        };
        Some((wait, piece))
    }

    fn is_cut_before(&self, piece: Piece) -> bool {
        let token = self.reply.token(piece);
        token.is_some() && token == self.reply.script.cut
    }

    async fn wait(&mut self, wait: Duration) {
        self.due += wait;
        tokio::time::sleep_until(self.due).await;
    }

    fn end(&mut self) {
        self.ended = true;
        self.upcoming = None;
        self.server.stats.finished.fetch_add(1, Relaxed);
    }

    fn stream(self, wire: Wire) -> Response {
        let frames = stream::unfold(self, move |mut run| async move {
            let frame = run.frame(wire).await?;
            Some((frame, run))
        });
        let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
        (headers, Body::from_stream(frames)).into_response()
    }

    /// The events up to the next wait, or up to a full frame.
    async fn frame(&mut self, wire: Wire) -> Option<io::Result<Bytes>> {
        let mut out = Vec::with_capacity(1024);
        while let Some((wait, piece)) = self.upcoming {
            if !wait.is_zero() {
                if !out.is_empty() {
                    break;
                }
                self.wait(wait).await;
            }
            if self.is_cut_before(piece) {
                self.end();
                return Some(Err(io::Error::other("scripted cut")));
            }
            if self.reply.token(piece).is_some() {
                self.server.stats.tokens.fetch_add(1, Relaxed);
            }
            wire.event(&self.reply, piece, &mut out);
            self.upcoming = self.following(piece);
            if piece == Piece::Finish {
                self.end();
            }
            if out.len() >= FRAME {
                break;
            }
        }
        (!out.is_empty()).then(|| Ok(out.into()))
    }

    async fn whole(mut self, wire: Wire) -> Response {
        while let Some((wait, piece)) = self.upcoming {
            self.wait(wait).await;
            if self.is_cut_before(piece) {
                self.end();
                let broken = async { Err::<Bytes, _>(io::Error::other("scripted cut")) };
                return Body::from_stream(stream::once(broken)).into_response();
            }
            self.upcoming = self.following(piece);
        }
        self.end();
        Json(wire.whole(&self.reply)).into_response()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.server.stats.active.fetch_sub(1, Relaxed);
        if !self.ended {
            self.server.stats.cancelled.fetch_add(1, Relaxed);
        }
    }
}

#[derive(Deserialize)]
struct Request<'a> {
    model: std::borrow::Cow<'a, str>,
    #[serde(default)]
    stream: bool,
    /// Chat Completions.
    #[serde(default)]
    messages: Vec<Message<'a>>,
    /// Responses: text or items.
    #[serde(default, borrow)]
    input: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(default)]
    role: &'a str,
    #[serde(default, rename = "type")]
    kind: &'a str,
    #[serde(default, borrow)]
    content: Option<&'a RawValue>,
    #[serde(default, borrow)]
    tool_calls: Option<&'a RawValue>,
}

/// What the script depends on.
#[derive(Default)]
struct Prompt {
    last_user_text: String,
    /// Rounds of tool calls since the last user message.
    rounds: u32,
}

impl Prompt {
    fn read(request: &Request) -> Prompt {
        let items;
        let messages = match request.input {
            None => &request.messages,
            Some(raw) => match serde_json::from_str::<Vec<Message>>(raw.get()) {
                Ok(parsed) => {
                    items = parsed;
                    &items
                }
                Err(_) => {
                    let last_user_text = serde_json::from_str(raw.get()).unwrap_or_default();
                    return Prompt { last_user_text, rounds: 0 };
                }
            },
        };
        let mut prompt = Prompt::default();
        let mut in_calls = false;
        for message in messages {
            let calls = message.tool_calls.is_some() || message.kind == "function_call";
            if message.role == "user" {
                prompt = Prompt { last_user_text: text_of(message.content), rounds: 0 };
            } else if calls && !in_calls {
                prompt.rounds += 1;
            }
            in_calls = calls && message.kind == "function_call";
        }
        prompt
    }
}

/// The text of a message content: a string, or the `text` of every part.
fn text_of(content: Option<&RawValue>) -> String {
    match content.and_then(|raw| serde_json::from_str(raw.get()).ok()) {
        Some(Value::String(text)) => text,
        Some(Value::Array(parts)) => parts.iter().filter_map(|p| p["text"].as_str()).collect(),
        _ => String::new(),
    }
}

/// Serves on `listener` until `until` resolves.
pub async fn serve(
    listener: tokio::net::TcpListener,
    record: usize,
    until: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    use axum::serve::ListenerExt;
    let listener = listener.tap_io(|socket| {
        let _ = socket.set_nodelay(true);
    });
    axum::serve(listener, router(record)).with_graceful_shutdown(until).await
}
