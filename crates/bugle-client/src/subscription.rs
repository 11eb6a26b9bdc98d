//! Following a thread or a run: chunks as they come, and the way back after a lost connection.

use std::time::Duration;

use bugle::chunk::Chunk;
use reqwest::{Method, Response};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    error::Error,
    http::Http,
    sse::{Frame, Frames},
};

/// A stream that is silent for longer than this is dead: the server sends a comment every 25 s (HTTP-025).
const SILENCE_MAX: Duration = Duration::from_secs(80);
const BACKOFF_MIN: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// How a thread is followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscribeOptions {
    /// Come back after a lost connection, for ever: after 0.5 s, doubling to 10 s, at the last event seen. Without, the
    /// subscription ends there. Default: true.
    pub reconnect: bool,
    /// Begin after this event instead of at the start of the active run.
    pub last_event_id: Option<String>,
}

impl Default for SubscribeOptions {
    fn default() -> Self {
        Self { reconnect: true, last_event_id: None }
    }
}

/// What a subscription gives.
#[derive(Debug)]
pub enum Delivery {
    /// A chunk.
    Chunk {
        /// Where it stands on the thread: `<epoch>-<n>`.
        event_id: Option<String>,
        /// The chunk.
        chunk: Box<Chunk>,
        /// The same, as it came.
        json: Value,
    },
    /// Chunks are missing: reload the messages (HTTP-244).
    Gap {
        /// The last event seen before it.
        after: Option<String>,
        /// The first event that is held.
        next: Option<String>,
    },
    /// The connection was lost; the subscription is coming back by itself.
    Lost {
        /// Why.
        reason: String,
    },
    /// The connection is back, and nothing was missed unless a gap follows.
    Back,
    /// The server refused to take the subscription back, or it was not to reconnect. Nothing follows.
    Ended(Error),
}

#[derive(Deserialize)]
struct Gap {
    after: Option<String>,
    next: Option<String>,
}

/// A thread, followed. Dropping it changes nothing for the runs.
#[derive(Debug)]
pub struct Subscription {
    http: Http,
    path: String,
    body: Value,
    reconnect: bool,
    last_event_id: Option<String>,
    connection: Option<Connection>,
    backoff: Duration,
    over: bool,
}

#[derive(Debug)]
struct Connection {
    response: Response,
    frames: Frames,
}

impl Connection {
    /// The next frame; `Ok(None)` at the end.
    async fn next(&mut self) -> Result<Option<Frame>, String> {
        loop {
            if let Some(frame) = self.frames.next() {
                return Ok(Some(frame));
            }
            let piece = match tokio::time::timeout(SILENCE_MAX, self.response.chunk()).await {
                Err(_) => return Err(format!("nothing came for {} s", SILENCE_MAX.as_secs())),
                Ok(Err(error)) => return Err(innermost(&error)),
                Ok(Ok(None)) => return Ok(None),
                Ok(Ok(Some(piece))) => piece,
            };
            self.frames.feed(&piece).map_err(|_| "an event is too long".to_owned())?;
        }
    }
}

fn innermost(error: &dyn std::error::Error) -> String {
    let mut inner = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

impl Subscription {
    pub(crate) async fn open(http: Http, path: String, body: Value, options: SubscribeOptions) -> Result<Self, Error> {
        let mut subscription = Self {
            http,
            path,
            body,
            reconnect: options.reconnect,
            last_event_id: options.last_event_id,
            connection: None,
            backoff: BACKOFF_MIN,
            over: false,
        };
        subscription.connection = Some(subscription.connect().await?);
        Ok(subscription)
    }

    /// The last event seen: where a later subscription can go on.
    pub fn last_event_id(&self) -> Option<&str> {
        self.last_event_id.as_deref()
    }

    async fn connect(&self) -> Result<Connection, Error> {
        let mut request = self.http.request(Method::POST, &self.path).json(&self.body);
        if let Some(id) = &self.last_event_id {
            request = request.header("last-event-id", id);
        }
        let response = self.http.send(request).await?;
        let mut connection = Connection { response, frames: Frames::default() };
        // HTTP-024: the server has registered the subscription when it says so.
        match connection.next().await {
            Ok(Some(Frame::Comment(_))) => Ok(connection),
            Ok(Some(Frame::Event { .. })) => Err(Error::protocol("a subscription begins with `: connected`")),
            Ok(None) => Err(Error::protocol("the subscription ended before it began")),
            Err(reason) => Err(Error::protocol(reason)),
        }
    }

    /// What comes next; `None` after [`Delivery::Ended`]. Cancel-safe.
    pub async fn next(&mut self) -> Option<Delivery> {
        loop {
            if self.over {
                return None;
            }
            let Some(connection) = &mut self.connection else {
                if let Some(delivery) = self.come_back().await {
                    return Some(delivery);
                }
                continue;
            };
            let reason = match connection.next().await {
                Ok(Some(Frame::Event { event, data, .. })) if event.is_empty() && data == "[DONE]" => {
                    "the server ended the stream".to_owned()
                }
                Ok(Some(Frame::Event { id, event, data })) => {
                    if let Some(delivery) = self.read(id, &event, &data) {
                        return Some(delivery);
                    }
                    continue;
                }
                Ok(Some(Frame::Comment(_))) => continue,
                Ok(None) => "the connection was closed".to_owned(),
                Err(reason) => reason,
            };
            self.connection = None;
            if !self.reconnect {
                self.over = true;
                return Some(Delivery::Ended(Error::protocol(reason)));
            }
            return Some(Delivery::Lost { reason });
        }
    }

    fn read(&mut self, id: Option<String>, event: &str, data: &str) -> Option<Delivery> {
        self.backoff = BACKOFF_MIN;
        if event == "gap" {
            let Ok(Gap { after, next }) = serde_json::from_str(data) else { return None };
            return Some(Delivery::Gap { after, next });
        }
        let Ok(json) = serde_json::from_str::<Value>(data) else {
            tracing::warn!("an event that is not JSON is skipped");
            return None;
        };
        let chunk = match Chunk::deserialize(&json) {
            Ok(chunk) => chunk,
            Err(error) => {
                tracing::warn!(%error, "an event that is no chunk is skipped");
                return None;
            }
        };
        if id.is_some() {
            self.last_event_id.clone_from(&id);
        }
        Some(Delivery::Chunk { event_id: id, chunk: Box::new(chunk), json })
    }

    async fn come_back(&mut self) -> Option<Delivery> {
        tokio::time::sleep(self.backoff).await;
        self.backoff = (self.backoff * 2).min(BACKOFF_MAX);
        match self.connect().await {
            Ok(connection) => {
                self.connection = Some(connection);
                Some(Delivery::Back)
            }
            // 4xx is an answer; what is wrong will not become right by asking again.
            Err(error @ Error::Status { status: 400..=499, .. }) => {
                self.over = true;
                Some(Delivery::Ended(error))
            }
            Err(error) => {
                tracing::debug!(%error, "still lost");
                None
            }
        }
    }
}

/// A run that this client started. Dropping it aborts the run (HTTP-026).
#[derive(Debug)]
pub struct RunStream {
    http: Http,
    connection: Connection,
    over: bool,
}

impl RunStream {
    pub(crate) fn new(http: Http, response: Response) -> Self {
        Self { http, connection: Connection { response, frames: Frames::default() }, over: false }
    }

    /// The next chunk; `None` when the run has ended.
    ///
    /// # Errors
    /// [`Error::Unreachable`] and [`Error::Protocol`] if the stream breaks before its end; nothing follows.
    pub async fn next(&mut self) -> Option<Result<Chunk, Error>> {
        while !self.over {
            match self.connection.next().await {
                Ok(Some(Frame::Event { data, .. })) if data == "[DONE]" => self.over = true,
                Ok(Some(Frame::Event { data, .. })) => {
                    return Some(serde_json::from_str(&data).map_err(|error| Error::protocol(error.to_string())));
                }
                Ok(Some(Frame::Comment(_))) => {}
                Ok(None) => {
                    self.over = true;
                    let url = self.http.origin();
                    return Some(Err(Error::protocol(format!("{url} closed the stream before the run had ended"))));
                }
                Err(reason) => {
                    self.over = true;
                    return Some(Err(Error::protocol(reason)));
                }
            }
        }
        None
    }
}
