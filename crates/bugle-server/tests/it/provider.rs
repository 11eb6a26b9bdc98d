//! A chat-completions provider of the tests' own: each request gets the next answer, byte for byte.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use bugle::json::{Value, json};
use bugle_models::{ChatModel, ChatModelBuilder};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

pub(crate) struct Provider {
    pub(crate) url: String,
    answers: Arc<Mutex<VecDeque<Vec<u8>>>>,
    bodies: Arc<Mutex<Vec<Value>>>,
}

impl Provider {
    pub(crate) async fn start(answers: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let answers = Arc::new(Mutex::new(answers.into_iter().collect::<VecDeque<_>>()));
        let bodies: Arc<Mutex<Vec<Value>>> = Arc::default();
        let (ready, seen) = (answers.clone(), bodies.clone());
        tokio::spawn(async move {
            loop {
                let (mut socket, _) = listener.accept().await.unwrap();
                let (ready, seen) = (ready.clone(), seen.clone());
                tokio::spawn(async move {
                    let Some(body) = read_request(&mut socket).await else { return };
                    seen.lock().unwrap().push(body);
                    let answer = ready.lock().unwrap().pop_front().expect("an answer for each request");
                    // The client may have left.
                    let _ = socket.write_all(&answer).await;
                    let _ = socket.shutdown().await;
                });
            }
        });
        Self { url, answers, bodies }
    }

    pub(crate) fn model(&self) -> ChatModel {
        self.builder().build()
    }

    pub(crate) fn builder(&self) -> ChatModelBuilder {
        ChatModel::builder(&self.url, "m").provider("test")
    }

    /// Adds an answer.
    pub(crate) fn then(&self, answer: Vec<u8>) {
        self.answers.lock().unwrap().push_back(answer);
    }

    /// The bodies of the requests so far.
    pub(crate) fn bodies(&self) -> Vec<Value> {
        self.bodies.lock().unwrap().clone()
    }

    /// The messages of the request with this number.
    pub(crate) fn messages(&self, request: usize) -> Vec<Value> {
        self.bodies()[request]["messages"].as_array().unwrap().clone()
    }
}

async fn read_request(socket: &mut TcpStream) -> Option<Value> {
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
    Some(serde_json::from_slice(&body).unwrap())
}

/// An answer with this status, these header lines (each ending in CRLF) and body; the connection closes after it.
pub(crate) fn plain(status: &str, headers: &str, body: &str) -> Vec<u8> {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}").into_bytes()
}

/// A streamed answer of these frames and nothing after them.
pub(crate) fn frames(frames: &[String]) -> Vec<u8> {
    let body = frames.iter().flat_map(|frame| ["data: ", frame, "\n\n"]).collect::<String>();
    plain("200 OK", "content-type: text/event-stream\r\n", &body)
}

/// A streamed answer of these deltas, complete with its reason.
pub(crate) fn answer(deltas: &[Value], reason: &str) -> Vec<u8> {
    let mut all: Vec<String> = deltas.iter().map(delta).collect();
    all.push(json!({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}).to_string());
    all.push("[DONE]".to_owned());
    frames(&all)
}

/// One choice's delta as a frame.
pub(crate) fn delta(delta: &Value) -> String {
    json!({"choices": [{"index": 0, "delta": delta, "finish_reason": null}]}).to_string()
}

/// An answer that says this.
pub(crate) fn said(text: &str) -> Vec<u8> {
    answer(&[json!({"content": text})], "stop")
}

/// A call of `get-weather` as a delta.
pub(crate) fn call(index: u32, id: &str, city: &str) -> Value {
    let arguments = json!({"city": city}).to_string();
    json!({"tool_calls": [{"index": index, "id": id, "function": {"name": "get-weather", "arguments": arguments}}]})
}
