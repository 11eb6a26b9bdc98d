//! Event streams: frames, batches, heartbeats, event ids (HTTP §3, HTTP-098, HTTP-243, HTTP-244).
//!
//! A chunk is encoded once for all who watch it; its bytes are shared, not copied, unless several are ready at once
//! and go out in one write.

use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    future::Future,
    time::Duration,
};

use axum::{
    body::Body,
    http::{HeaderValue, header},
    response::Response,
};
use bugle::{
    Bugle,
    chunk::{Chunk, ChunkBody, ChunkFrom, Payload, ToolCallPayload, encode_frame},
    json::{Value, json},
    run::{DirectChunk, RunStream},
    runtime::Delivery,
    thread::Subscription,
};
use bytes::{Bytes, BytesMut};
use futures::{Stream, stream};

/// The most bytes of one batch.
const BATCH_LEN_MAX: usize = 64 * 1024;

const CONNECTED: Bytes = Bytes::from_static(b": connected\n\n");
const HEARTBEAT: Bytes = Bytes::from_static(b": heartbeat\n\n");
const DONE: Bytes = Bytes::from_static(b"data: [DONE]\n\n");

/// A subscription as the body of an event-stream response, for routes of your own (HTTP-098).
///
/// When nothing was sent for `keep_alive` (25 s is usual), sends `comment` as a comment frame. The subscription and
/// its timer end when the body is dropped, which is when the client goes.
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn f(agent: bugle::AgentHandle) -> Result<axum::body::Body, bugle::Error> {
/// let subscription = agent.subscribe(&bugle::ThreadKey::new("user_1", "thread_1"), Default::default()).await?;
/// Ok(bugle_server::sse::body(subscription, Duration::from_secs(25), "keep-alive"))
/// # }
/// ```
pub fn body(subscription: Subscription, keep_alive: Duration, comment: &str) -> Body {
    let comment: Vec<&str> = comment.trim_start_matches(':').split_whitespace().collect();
    let pulse = Pulse { every: keep_alive, comment: format!(": {}\n\n", comment.join(" ")).into() };
    Body::from_stream(frames(ThreadFrames { subscription, event_ids: false, over: false }, pulse, None))
}

/// The response to a subscription: begins at once, never ends by itself (HTTP-024, HTTP-070).
pub(crate) fn subscription(subscription: Subscription, keep_alive: Duration, event_ids: bool) -> Response {
    let pulse = Pulse { every: keep_alive, comment: HEARTBEAT };
    respond(Body::from_stream(frames(ThreadFrames { subscription, event_ids, over: false }, pulse, Some(CONNECTED))))
}

/// The response to a run: ends with the run (HTTP-023); a client that leaves stops it (HTTP-026). A `lean` one does not say
/// the messages again that the stream was made of (LOOP-199).
pub(crate) fn run(run: RunStream, bugle: Bugle, keep_alive: Duration, lean: bool) -> Response {
    direct(run, bugle, keep_alive, None, lean)
}

/// The response to a run that goes on: says the calls that were pending again, before what became of them (HTTP-104).
pub(crate) fn resumed(run: RunStream, bugle: Bugle, keep_alive: Duration, pending: PendingCalls) -> Response {
    direct(run, bugle, keep_alive, Some(pending), false)
}

fn direct(run: RunStream, bugle: Bugle, keep_alive: Duration, pending: Option<PendingCalls>, lean: bool) -> Response {
    let pulse = Pulse { every: keep_alive, comment: HEARTBEAT };
    let source = RunFrames { run, bugle, pending, lean, ended: false, complete: false, left: false };
    let frames = frames(source, pulse, None);
    respond(Body::from_stream(frames))
}

fn respond(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(header::CONNECTION, HeaderValue::from_static("keep-alive"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

/// Comments in silence.
struct Pulse {
    every: Duration,
    comment: Bytes,
}

/// Where frames come from.
trait Source: Send + 'static {
    /// The next frame; `None` at the end. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Option<Bytes>> + Send;
    /// The next frame if there is one now.
    fn try_next(&mut self) -> Option<Bytes>;
    /// What ends the stream.
    fn farewell(&self) -> Option<Bytes>;
}

fn frames<S: Source>(
    source: S,
    pulse: Pulse,
    greeting: Option<Bytes>,
) -> impl Stream<Item = Result<Bytes, Infallible>> + Send {
    struct State<S> {
        /// `None` once it has ended.
        source: Option<S>,
        pulse: Pulse,
        greeting: Option<Bytes>,
    }
    stream::unfold(State { source: Some(source), pulse, greeting }, |mut state| async move {
        if let Some(greeting) = state.greeting.take() {
            return Some((Ok(greeting), state));
        }
        let source = state.source.as_mut()?;
        let frame = match tokio::time::timeout(state.pulse.every, source.next()).await {
            Err(_) => state.pulse.comment.clone(),
            Ok(Some(first)) => batch(first, source),
            Ok(None) => state.source.take()?.farewell()?,
        };
        Some((Ok(frame), state))
    })
}

/// `first` and what is ready behind it, in one piece.
fn batch<S: Source>(first: Bytes, source: &mut S) -> Bytes {
    let Some(second) = source.try_next() else { return first };
    let mut all = BytesMut::with_capacity((first.len() + second.len()) * 2);
    all.extend_from_slice(&first);
    all.extend_from_slice(&second);
    while all.len() < BATCH_LEN_MAX {
        let Some(next) = source.try_next() else { break };
        all.extend_from_slice(&next);
    }
    all.freeze()
}

struct ThreadFrames {
    subscription: Subscription,
    event_ids: bool,
    /// A gap was met that this client cannot be told of.
    over: bool,
}

impl ThreadFrames {
    /// The frame of a delivery; `None` ends the stream.
    fn frame(&mut self, delivery: Delivery) -> Option<Bytes> {
        match delivery {
            Delivery::Chunk(chunk) if self.event_ids => {
                let frame = chunk.frame();
                // What this subscription alone is told, such as that it lags, has no place to come back to.
                if frame.is_empty() || chunk.id.number == 0 {
                    return Some(frame);
                }
                let mut numbered = BytesMut::with_capacity(frame.len() + 32);
                numbered.extend_from_slice(format!("id: {}\n", chunk.id).as_bytes());
                numbered.extend_from_slice(&frame);
                Some(numbered.freeze())
            }
            Delivery::Chunk(chunk) => Some(chunk.frame()),
            Delivery::Gap { after, next } if self.event_ids => {
                let text = |id: Option<bugle::chunk::EventId>| id.map(|id| id.to_string());
                let data = json!({"after": text(after), "next": text(next), "reload": true});
                Some(format!("event: gap\ndata: {data}\n\n").into())
            }
            // Such a client cannot be told; when it comes back it gets the active run from its start (HTTP-082).
            Delivery::Gap { .. } => {
                self.over = true;
                None
            }
        }
    }
}

impl Source for ThreadFrames {
    async fn next(&mut self) -> Option<Bytes> {
        while !self.over {
            let delivery = self.subscription.next().await?;
            let frame = self.frame(delivery)?;
            if !frame.is_empty() {
                return Some(frame);
            }
        }
        None
    }

    fn try_next(&mut self) -> Option<Bytes> {
        let delivery = self.subscription.try_next()?;
        self.frame(delivery)
    }

    fn farewell(&self) -> Option<Bytes> {
        None
    }
}

/// The calls of a parked step, to be said again on the response that resumes it: clients take no result without its
/// call.
#[derive(Debug, Default)]
pub(crate) struct PendingCalls {
    /// By id: the tool and its arguments.
    calls: HashMap<String, (String, Value)>,
    said: HashSet<String>,
}

impl PendingCalls {
    pub(crate) fn new(calls: impl IntoIterator<Item = (String, (String, Value))>) -> Self {
        Self { calls: calls.into_iter().collect(), said: HashSet::new() }
    }

    /// The call that has to be said before `chunk`.
    fn before(&mut self, chunk: &Chunk) -> Option<Chunk> {
        let (id, tool, args) = match chunk.payload()? {
            Payload::ToolCall(call) => {
                self.said.insert(call.tool_call_id.clone());
                return None;
            }
            Payload::ToolResult(result) => (&result.tool_call_id, Some(&result.tool_name), result.args.as_ref()),
            Payload::ToolError { tool_call_id, tool_name, args, .. }
            | Payload::ToolOutputDenied { tool_call_id, tool_name, args, .. } => {
                (tool_call_id, Some(tool_name), args.as_ref())
            }
            Payload::ToolOutput { tool_call_id, .. } => (tool_call_id, None, None),
            _ => return None,
        };
        if self.said.contains(id) {
            return None;
        }
        let (tool_name, args) = match (self.calls.remove(id), tool) {
            (Some(call), _) => call,
            (None, Some(tool)) => (tool.clone(), args.cloned().unwrap_or_default()),
            (None, None) => return None,
        };
        self.said.insert(id.clone());
        let call = ToolCallPayload {
            tool_call_id: id.clone(),
            tool_name,
            args,
            provider_executed: None,
            provider_metadata: None,
        };
        Some(Chunk {
            run_id: chunk.run_id.clone(),
            from: ChunkFrom::Agent,
            body: ChunkBody::Payload(Payload::ToolCall(call)),
            metadata: None,
        })
    }
}

struct RunFrames {
    run: RunStream,
    bugle: Bugle,
    /// Of a run that goes on.
    pending: Option<PendingCalls>,
    /// Messages are not said again at the end.
    lean: bool,
    /// The run has said its last chunk.
    ended: bool,
    /// That chunk says how it ended, or that it waits for a person.
    complete: bool,
    /// This process has stopped working on the run; it goes on elsewhere (CLI-072).
    left: bool,
}

impl RunFrames {
    fn frame(&mut self, chunk: Option<DirectChunk>) -> Option<Bytes> {
        let Some(chunk) = chunk else {
            self.ended = true;
            return None;
        };
        self.complete = completes(chunk.chunk());
        self.left |= is_left(chunk.chunk());
        let frame = match slim(chunk.chunk()).filter(|_| self.lean) {
            Some(chunk) => encode_frame(&chunk),
            None => chunk.frame(),
        };
        let Some(call) = self.pending.as_mut().and_then(|pending| pending.before(chunk.chunk())) else {
            return Some(frame);
        };
        let mut both = BytesMut::from(&*encode_frame(&call));
        both.extend_from_slice(&frame);
        Some(both.freeze())
    }
}

/// A chunk without the messages of its run; `None` = it has none (LOOP-199).
fn slim(chunk: &Chunk) -> Option<Chunk> {
    let Some(Payload::StepFinish(finish) | Payload::Finish(finish)) = chunk.payload() else { return None };
    if finish.messages.is_none() && finish.response.is_none() {
        return None;
    }
    let mut slim = chunk.clone();
    if let ChunkBody::Payload(Payload::StepFinish(finish) | Payload::Finish(finish)) = &mut slim.body {
        finish.messages = None;
        if let Some(Value::Object(response)) = &mut finish.response {
            response.retain(|key, _| key != "messages" && key != "uiMessages");
        }
    }
    Some(slim)
}

/// Whether a response may end after this chunk (HTTP-050, 057, 058, 067, 100, 107).
fn completes(chunk: &Chunk) -> bool {
    matches!(
        chunk.payload(),
        Some(
            Payload::Finish(_)
                | Payload::Error { .. }
                | Payload::Abort {}
                | Payload::Tripwire(_)
                | Payload::ToolCallApproval { .. }
                | Payload::ToolCallSuspended { .. }
        )
    )
}

fn is_left(chunk: &Chunk) -> bool {
    matches!(chunk.payload(), Some(Payload::Error { error }) if error.name == "RunLeft")
}

impl Source for RunFrames {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            let chunk = self.run.next().await;
            let frame = self.frame(chunk)?;
            if !frame.is_empty() {
                return Some(frame);
            }
        }
    }

    fn try_next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        let chunk = self.run.try_next()?;
        self.frame(Some(chunk))
    }

    fn farewell(&self) -> Option<Bytes> {
        // A run that the end of the process cut short has not finished; `[DONE]` would say so (CLI-072).
        (!self.left && (self.complete || !self.bugle.is_draining())).then_some(DONE)
    }
}

impl Drop for RunFrames {
    fn drop(&mut self) {
        if !self.ended {
            self.run.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use futures::StreamExt;
    use tokio::sync::mpsc;

    use super::*;

    struct Fake {
        frames: mpsc::UnboundedReceiver<Bytes>,
        ready: VecDeque<Bytes>,
    }

    impl Source for Fake {
        async fn next(&mut self) -> Option<Bytes> {
            self.frames.recv().await
        }
        fn try_next(&mut self) -> Option<Bytes> {
            self.ready.pop_front()
        }
        fn farewell(&self) -> Option<Bytes> {
            Some(DONE)
        }
    }

    fn pulse() -> Pulse {
        Pulse { every: Duration::from_secs(25), comment: HEARTBEAT }
    }

    #[tokio::test(start_paused = true)]
    async fn http_025_heartbeats_count_from_the_last_frame_and_done_ends() {
        let (sender, receiver) = mpsc::unbounded_channel();
        let source = Fake { frames: receiver, ready: VecDeque::new() };
        let mut frames = Box::pin(frames(source, pulse(), Some(CONNECTED)));
        let start = tokio::time::Instant::now();
        assert_eq!(frames.next().await.unwrap().unwrap(), CONNECTED);
        assert_eq!(frames.next().await.unwrap().unwrap(), HEARTBEAT);
        assert_eq!(start.elapsed().as_secs(), 25);
        tokio::time::advance(Duration::from_secs(20)).await;
        sender.send(Bytes::from_static(b"data: {}\n\n")).unwrap();
        assert_eq!(frames.next().await.unwrap().unwrap(), "data: {}\n\n");
        assert_eq!(frames.next().await.unwrap().unwrap(), HEARTBEAT);
        assert_eq!(start.elapsed().as_secs(), 70);
        drop(sender);
        assert_eq!(frames.next().await.unwrap().unwrap(), DONE);
        assert!(frames.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn http_098_idle_for_60_s_is_two_comments_and_a_body_dropped_has_let_go_of_its_source() {
        let (sender, receiver) = mpsc::unbounded_channel();
        let source = Fake { frames: receiver, ready: VecDeque::new() };
        let mut frames = Box::pin(frames(source, pulse(), None));
        let mut comments = 0;
        let idle = async {
            while let Some(Ok(frame)) = frames.next().await {
                assert_eq!(frame, HEARTBEAT);
                comments += 1;
            }
        };
        assert!(tokio::time::timeout(Duration::from_mins(1), idle).await.is_err());
        assert_eq!(comments, 2);
        assert!(!sender.is_closed());
        drop(frames);
        assert!(sender.is_closed());
    }

    #[tokio::test]
    async fn http_021_a_single_frame_is_not_copied_and_ready_ones_share_a_bounded_write() {
        let big = Bytes::from(vec![b'x'; 40 * 1024]);
        let (sender, receiver) = mpsc::unbounded_channel();
        for _ in 0..2 {
            sender.send(big.clone()).unwrap();
        }
        let mut source = Fake { frames: receiver, ready: VecDeque::from(vec![big.clone(); 3]) };
        let first = source.next().await.unwrap();
        assert_eq!(batch(first, &mut source).len(), 80 * 1024);
        source.ready.clear();
        let second = source.next().await.unwrap();
        assert_eq!(batch(second, &mut source).as_ptr(), big.as_ptr());
    }
}
