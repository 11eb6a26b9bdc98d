//! A provider of the tests' own: raw TCP, so that answers can be paced and cut anywhere.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use bugle::model::{LanguageModel, ModelError, ModelEvent, ModelRequest, PromptMessage, UserPart};
use bugle_models::{ChatModel, ChatModelBuilder};
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::{Notify, watch},
};

/// What the provider does next on a connection.
#[derive(Clone)]
pub(crate) enum Act {
    Write(Vec<u8>),
    /// Waits for the test.
    Wait(Arc<Notify>),
    /// Closes the connection.
    Close,
    /// Waits until the client has closed the connection.
    UntilLeft,
}

/// A request as it was received.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// Request line and headers.
    pub(crate) head: String,
    pub(crate) body: Value,
    /// The number of the connection.
    pub(crate) connection: usize,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

pub(crate) struct Provider {
    pub(crate) url: String,
    requests: Arc<Mutex<Vec<Seen>>>,
    left: watch::Receiver<usize>,
}

impl Provider {
    /// Answers each request with the next script.
    pub(crate) async fn start(scripts: impl IntoIterator<Item = Vec<Act>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let scripts = Arc::new(Mutex::new(scripts.into_iter().collect::<VecDeque<_>>()));
        let (leave, left) = watch::channel(0);
        let seen = requests.clone();
        tokio::spawn(async move {
            for connection in 0.. {
                let (socket, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(socket, connection, scripts.clone(), seen.clone(), leave.clone()));
            }
        });
        Self { url, requests, left }
    }

    /// The model behind it.
    pub(crate) fn model(&self) -> ChatModel {
        self.builder().build()
    }

    pub(crate) fn builder(&self) -> ChatModelBuilder {
        ChatModel::builder(&self.url, "m").provider("test")
    }

    pub(crate) fn requests(&self) -> Vec<Seen> {
        self.requests.lock().unwrap().clone()
    }

    /// Waits until `count` clients have left before their answer was complete.
    pub(crate) async fn until_left(&mut self, count: usize) {
        self.left.wait_for(|left| *left >= count).await.unwrap();
    }
}

async fn serve(
    mut socket: TcpStream,
    connection: usize,
    scripts: Arc<Mutex<VecDeque<Vec<Act>>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
    leave: watch::Sender<usize>,
) {
    while let Some((head, body)) = read_request(&mut socket).await {
        let body = serde_json::from_slice(&body).unwrap();
        seen.lock().unwrap().push(Seen { head, body, connection });
        let script = scripts.lock().unwrap().pop_front().expect("a script for each request");
        for act in script {
            match act {
                Act::Write(bytes) => {
                    if socket.write_all(&bytes).await.is_err() {
                        leave.send_modify(|left| *left += 1);
                        return;
                    }
                }
                Act::Wait(gate) => gate.notified().await,
                Act::Close => return,
                Act::UntilLeft => {
                    let mut byte = [0];
                    // End of file and a reset both mean that the client has gone.
                    let read = socket.read(&mut byte).await;
                    assert!(matches!(read, Ok(0) | Err(_)), "the client sent more");
                    leave.send_modify(|left| *left += 1);
                    return;
                }
            }
        }
    }
}

async fn read_request(socket: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if socket.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap().parse::<usize>().unwrap();
    let mut body = bytes.split_off(end + 4);
    while body.len() < length {
        if socket.read_buf(&mut body).await.ok()? == 0 {
            return None;
        }
    }
    Some((head, body))
}

/// The start of a chunked answer.
pub(crate) fn head(status: &str, headers: &str) -> Act {
    Act::Write(format!("HTTP/1.1 {status}\r\n{headers}transfer-encoding: chunked\r\n\r\n").into_bytes())
}

pub(crate) fn chunk(data: impl AsRef<[u8]>) -> Act {
    let data = data.as_ref();
    let mut bytes = format!("{:x}\r\n", data.len()).into_bytes();
    bytes.extend_from_slice(data);
    bytes.extend_from_slice(b"\r\n");
    Act::Write(bytes)
}

/// The proper end of a chunked answer.
pub(crate) fn end() -> Act {
    Act::Write(b"0\r\n\r\n".to_vec())
}

pub(crate) fn sse_head() -> Act {
    head("200 OK", "content-type: text/event-stream\r\n")
}

pub(crate) fn event(value: &Value) -> Act {
    chunk(format!("data: {value}\n\n"))
}

/// One choice's delta as an event.
pub(crate) fn delta(delta: Value) -> Act {
    event(&json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": null }] }))
}

pub(crate) fn finish(reason: &str) -> Act {
    event(&json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] }))
}

pub(crate) fn done() -> Act {
    chunk("data: [DONE]\n\n")
}

/// A streamed answer: head, these acts, and the proper end of the body.
pub(crate) fn stream(acts: impl IntoIterator<Item = Act>) -> Vec<Act> {
    std::iter::once(sse_head()).chain(acts).chain([end()]).collect()
}

/// An answer with a length.
pub(crate) fn plain(status: &str, headers: &str, body: &str) -> Vec<Act> {
    let length = body.len();
    vec![Act::Write(format!("HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\n\r\n{body}").into_bytes())]
}

pub(crate) fn user(text: &str) -> PromptMessage {
    let content = vec![UserPart::Text { text: text.into(), provider_options: None }];
    PromptMessage::User { content, provider_options: None }
}

pub(crate) fn request() -> ModelRequest {
    ModelRequest { prompt: vec![user("Hi")], streaming: true, ..ModelRequest::default() }
}

/// Asks and reads to the end: the events, and the failure if there was one.
pub(crate) async fn ask(model: &ChatModel, request: ModelRequest) -> (Vec<ModelEvent>, Option<ModelError>) {
    let mut response = match model.stream(request).await {
        Ok(response) => response.events,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut events = Vec::new();
    while let Some(event) = response.next().await {
        match event {
            Ok(event) => events.push(event),
            Err(error) => {
                assert!(response.next().await.is_none(), "something followed an error");
                return (events, Some(error));
            }
        }
    }
    (events, None)
}

/// Asks a provider that gives this answer.
pub(crate) async fn answered(answer: Vec<Act>) -> (Vec<ModelEvent>, Option<ModelError>) {
    let provider = Provider::start([answer]).await;
    ask(&provider.model(), request()).await
}

/// A short word for each event; finish gives its reasons.
pub(crate) fn outline(events: &[ModelEvent]) -> Vec<String> {
    let word = |event: &ModelEvent| match event {
        ModelEvent::TextStart { id, .. } | ModelEvent::ReasoningStart { id, .. } => format!("+{id}"),
        ModelEvent::TextDelta { text, .. } | ModelEvent::ReasoningDelta { text, .. } => text.clone(),
        ModelEvent::TextEnd { id, .. } | ModelEvent::ReasoningEnd { id, .. } => format!("-{id}"),
        ModelEvent::ToolInputStart { id, name, .. } => format!("+{id} {name}"),
        ModelEvent::ToolInputDelta { id, delta } => format!("{id} {delta}"),
        ModelEvent::ToolInputEnd { id } => format!("-{id}"),
        ModelEvent::ToolCall { id, name, input, .. } => format!("{id} {name} {input}"),
        ModelEvent::Finish { reason, raw_reason, .. } => {
            format!("{reason:?} {}", raw_reason.as_deref().unwrap_or("null"))
        }
        other => format!("{other:?}"),
    };
    events.iter().map(word).collect()
}

/// The calls: id, name, arguments.
pub(crate) fn calls(events: &[ModelEvent]) -> Vec<(String, String, String)> {
    let call = |event: &ModelEvent| match event {
        ModelEvent::ToolCall { id, name, input, .. } => Some((id.clone(), name.clone(), input.clone())),
        _ => None,
    };
    events.iter().filter_map(call).collect()
}

pub(crate) fn text(events: &[ModelEvent]) -> String {
    let text = |event: &ModelEvent| match event {
        ModelEvent::TextDelta { text, .. } => Some(text.clone()),
        _ => None,
    };
    events.iter().filter_map(text).collect()
}
