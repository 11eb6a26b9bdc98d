//! A server in this process, and requests to it.

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, Method, Request, StatusCode},
};
use bugle::{
    Agent, Bugle, Tool,
    json::{Value, json},
    memory::{MemoryOptions, WorkingMemoryOptions},
    model::ScriptedModel,
    storage::MemoryStorage,
    tool::ToolError,
};
use bugle_server::{Auth, ServerOptions, Token, router};
use futures::StreamExt;
use tower::ServiceExt;

pub(crate) struct Server {
    pub(crate) bugle: Bugle,
    pub(crate) router: Router,
    pub(crate) model: ScriptedModel,
}

pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    pub(crate) json: Value,
}

impl Answer {
    /// The fields that issues name.
    pub(crate) fn fields(&self) -> Vec<&str> {
        let issues = self.json["issues"].as_array();
        issues.into_iter().flatten().filter_map(|issue| issue["field"].as_str()).collect()
    }
}

impl Server {
    pub(crate) async fn new() -> Self {
        Self::with(ServerOptions::default()).await
    }

    pub(crate) async fn with_auth() -> Self {
        let token = |user: &str, allow| {
            Token::builder().secret(format!("token-{user}")).user(user).resource(user).allow(allow).build()
        };
        let tokens = vec![token("alice", true), token("bob", true), token("mallory", false)];
        Self::with(ServerOptions::builder().auth(Auth::Tokens(tokens)).build()).await
    }

    pub(crate) async fn with(options: ServerOptions) -> Self {
        let model = ScriptedModel::recording();
        let weather = Tool::json("get-weather", |input: Value, _| async move { Ok(json!({"city": input["city"]})) })
            .described("Current weather for a city.")
            .with_input_schema(json!({
                "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
            }));
        let fails = Tool::json("fail-tool", |_, _| async { Err::<Value, _>(ToolError::failed("tool exploded")) });
        let agent = |id: &str| Agent::builder(id).instructions("You are plain.").model(Arc::new(model.clone()));
        let plain =
            agent("plain").memory(MemoryOptions::last(20)).tool(weather).tool(fails).tool(Tool::client("where"));
        let noting =
            MemoryOptions { working_memory: Some(WorkingMemoryOptions::default()), ..MemoryOptions::default() };
        let bugle = Bugle::builder()
            .agent(plain.build().unwrap())
            .agent(agent("noting").memory(noting).build().unwrap())
            .agent_as("keyed", agent("forgetful").build().unwrap())
            .storage(MemoryStorage::new())
            .build()
            .await
            .unwrap();
        Self { router: router(bugle.clone(), options), bugle, model }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(Method::GET, path, &[], Body::empty()).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.post_as("", path, body).await
    }

    /// As the user whose token is `token-<user>`.
    pub(crate) async fn get_as(&self, user: &str, path: &str) -> Answer {
        self.send(Method::GET, path, &[("authorization", &format!("Bearer token-{user}"))], Body::empty()).await
    }

    pub(crate) async fn post_as(&self, user: &str, path: &str, body: Value) -> Answer {
        self.json_as(Method::POST, user, path, body).await
    }

    pub(crate) async fn json_as(&self, method: Method, user: &str, path: &str, body: Value) -> Answer {
        let bearer = format!("Bearer token-{user}");
        let headers = [("content-type", "application/json"), ("authorization", &bearer)];
        self.send(method, path, &headers, Body::from(body.to_string())).await
    }

    pub(crate) async fn send(&self, method: Method, path: &str, headers: &[(&str, &str)], body: Body) -> Answer {
        let response = self.open(method, path, headers, body).await;
        let (parts, body) = response.into_parts();
        let bytes = axum::body::to_bytes(body, usize::MAX).await.unwrap();
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let json = serde_json::from_str(&text).unwrap_or_default();
        Answer { status: parts.status, headers: parts.headers, text, json }
    }

    /// The response, with its body still to be read.
    pub(crate) async fn open(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Body,
    ) -> axum::response::Response {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.router.clone().oneshot(request.body(body).unwrap()).await.unwrap()
    }

    /// Subscribes without event ids.
    pub(crate) async fn subscribe(&self, thread: &str, resource: &str) -> Frames {
        let path =
            format!("/api/agents/plain/threads/subscribe?threadId={thread}&resourceId={resource}&eventIds=false");
        self.open_frames(&path, &[]).await
    }

    /// Opens a subscription and reads its greeting: what is sent from now on is seen.
    pub(crate) async fn open_frames(&self, path: &str, headers: &[(&str, &str)]) -> Frames {
        Frames::of(self.open(Method::GET, path, headers, Body::empty()).await).await
    }
}

/// The frames of an event stream.
pub(crate) struct Frames {
    body: axum::body::BodyDataStream,
    read: String,
}

impl Frames {
    /// Those of a subscription, its greeting read.
    pub(crate) async fn of(response: axum::response::Response) -> Self {
        assert_eq!(response.status(), StatusCode::OK);
        let mut frames = Self { body: response.into_body().into_data_stream(), read: String::new() };
        assert_eq!(frames.next().await, ": connected");
        frames
    }

    pub(crate) async fn next(&mut self) -> String {
        loop {
            if let Some(end) = self.read.find("\n\n") {
                let rest = self.read.split_off(end + 2);
                let frame = std::mem::replace(&mut self.read, rest);
                return frame.trim_end().to_owned();
            }
            let piece = tokio::time::timeout(Duration::from_mins(10), self.body.next()).await;
            let piece = piece.expect("a frame comes").expect("the stream goes on").unwrap();
            self.read.push_str(std::str::from_utf8(&piece).unwrap());
        }
    }

    /// The frames up to one that holds `text`, that one included.
    pub(crate) async fn until(&mut self, text: &str) -> Vec<String> {
        let mut frames = Vec::new();
        loop {
            frames.push(self.next().await);
            if frames.last().unwrap().contains(text) {
                return frames;
            }
        }
    }
}

/// The chunk in a data frame.
pub(crate) fn chunk(frame: &str) -> Value {
    let data = frame.lines().find_map(|line| line.strip_prefix("data: ")).unwrap_or_default();
    serde_json::from_str(data).unwrap_or_default()
}

/// The types of the chunks in these frames.
pub(crate) fn kinds(frames: &[String]) -> Vec<String> {
    frames.iter().filter_map(|frame| chunk(frame)["type"].as_str().map(str::to_owned)).collect()
}
