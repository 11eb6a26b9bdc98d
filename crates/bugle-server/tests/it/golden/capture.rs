//! Captures of real traffic: requests, and the answers to them.

use axum::http::Method;
use bugle::json::Value;

/// One request and its answer.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) body: Option<Value>,
    pub(crate) status: u16,
    pub(crate) answer: Answer,
}

#[derive(Debug)]
pub(crate) enum Answer {
    Json(Value),
    /// The chunks of an event stream, comments and `[DONE]` left out.
    Chunks(Vec<Value>),
}

impl Exchange {
    pub(crate) fn chunks(&self) -> &[Value] {
        match &self.answer {
            Answer::Chunks(chunks) => chunks,
            Answer::Json(json) => panic!("no event stream: {json}"),
        }
    }
}

/// Reads a capture: `>>>` begins a request, `<<<` its answer; headers and body are parted by an empty line.
pub(crate) fn read(text: &str) -> Vec<Exchange> {
    let mut exchanges = Vec::new();
    for part in text.split("\n>>> ").skip(1) {
        let (request, answer) = part.split_once("\n<<< ").unwrap();
        let (line, rest) = request.split_once('\n').unwrap_or((request, ""));
        let (method, path) = line.split_once(' ').unwrap();
        let body = rest.split_once("\n\n").map(|(_, body)| body.trim()).filter(|body| !body.is_empty());
        let (head, content) = answer.split_once("\n\n").unwrap();
        let status = head.lines().next().unwrap().trim().parse().unwrap();
        let is_stream = head.contains("text/event-stream");
        exchanges.push(Exchange {
            method: method.parse().unwrap(),
            path: path.trim().to_owned(),
            body: body.map(|body| serde_json::from_str(body).unwrap()),
            status,
            answer: if is_stream { Answer::Chunks(chunks(content)) } else { Answer::Json(json(content)) },
        });
    }
    assert!(!exchanges.is_empty());
    exchanges
}

fn json(content: &str) -> Value {
    let mut values = serde_json::Deserializer::from_str(content).into_iter();
    values.next().unwrap().unwrap()
}

/// The chunks in an event stream.
pub(crate) fn chunks(stream: &str) -> Vec<Value> {
    let data = stream.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter(|data| *data != "[DONE]").map(|data| serde_json::from_str(data).unwrap()).collect()
}
