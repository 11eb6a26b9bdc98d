//! An agent, and a thread as one agent sees it: follow, send, queue, stop, and what waits.

use bugle::{
    MessageId, RunId, Signal,
    json::{Object, Value, json},
    runtime::{PendingInput, PromoteTo},
};
use reqwest::Method;

use crate::{
    error::Error,
    http::{Http, segment},
    input::Input,
    subscription::{RunStream, SubscribeOptions, Subscription},
    types::{Aborted, Accepted, Cancelled, EditInput, Edited, Generated, Pending, Promoted},
};

/// An agent of a server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Agent {
    http: Http,
    id: String,
    path: String,
}

impl Agent {
    pub(crate) fn new(http: Http, id: String) -> Self {
        let path = format!("/agents/{}", segment(&id));
        Self { http, id, path }
    }

    /// Its id, or the key it was asked for by.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The thread `thread` of `resource`, answered by this agent. Nothing is sent yet.
    pub fn thread(&self, resource: impl Into<String>, thread: impl Into<String>) -> Thread {
        Thread { agent: self.clone(), resource: resource.into(), id: thread.into() }
    }

    /// Runs the agent and waits for its answer. `messages` is text or an array of messages; `options` are the fields
    /// of HTTP §5.1. Dropping the future aborts the run.
    pub async fn generate(&self, messages: impl Into<Value>, options: Object) -> Result<Generated, Error> {
        self.http.json(self.post("generate", &run_body(messages.into(), options))).await
    }

    /// Runs the agent and follows the run; dropping the stream aborts the run.
    pub async fn stream(&self, messages: impl Into<Value>, options: Object) -> Result<RunStream, Error> {
        let request = self.post("stream", &run_body(messages.into(), options));
        Ok(RunStream::new(self.http.clone(), self.http.send(request).await?))
    }

    fn post(&self, route: &str, body: &Value) -> reqwest::RequestBuilder {
        self.http.request(Method::POST, &format!("{}/{route}", self.path)).json(body)
    }
}

fn run_body(messages: Value, mut options: Object) -> Value {
    options.insert("messages".into(), messages);
    Value::Object(options)
}

/// A thread of a resource, and the agent that answers on it. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Thread {
    agent: Agent,
    resource: String,
    id: String,
}

impl Thread {
    /// The thread's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The resource it belongs to.
    pub fn resource(&self) -> &str {
        &self.resource
    }

    /// The agent.
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// Follows the thread: all its runs, one after the other. Returns once the server has confirmed it, so that input
    /// sent afterwards is seen from its first chunk (HTTP-099).
    pub async fn subscribe(&self, options: SubscribeOptions) -> Result<Subscription, Error> {
        let path = format!("{}/threads/subscribe", self.agent.path);
        let body = json!({"threadId": self.id, "resourceId": self.resource, "eventIds": true});
        Subscription::open(self.agent.http.clone(), path, body, options).await
    }

    /// Text of a person, seen now: it steers the running loop, or wakes an idle agent.
    pub async fn send_message(&self, message: Input) -> Result<Accepted, Error> {
        self.post("send-message", message.message_body(&self.resource, &self.id)).await
    }

    /// Text of a person that gets a turn of its own.
    pub async fn queue_message(&self, message: Input) -> Result<Accepted, Error> {
        self.post("queue-message", message.message_body(&self.resource, &self.id)).await
    }

    /// Context made by a system, seen now.
    pub async fn send_signal(&self, signal: Input) -> Result<Accepted, Error> {
        self.post("signals", signal.signal_body(&self.resource, &self.id)).await
    }

    /// Context made by a system that gets a turn of its own.
    pub async fn queue_signal(&self, signal: Input) -> Result<Accepted, Error> {
        self.post("queue-signal", signal.signal_body(&self.resource, &self.id)).await
    }

    /// Answers a call that waits for a person (HTTP-102). `reason` and `resumeData` go into `fields`.
    ///
    /// # Errors
    /// [`Error::Status`] 501 from a server that does not have approvals yet.
    pub async fn send_tool_approval(&self, call: &str, approved: bool, fields: Object) -> Result<Value, Error> {
        let mut body = fields;
        body.insert("toolCallId".into(), json!(call));
        body.insert("approved".into(), json!(approved));
        self.post("send-tool-approval", self.with(body)).await
    }

    /// Stops the thread's run; `true` iff one was asked to stop. `expected` guards against stopping a later run.
    pub async fn abort(&self, expected: Option<&RunId>, clear_pending: bool) -> Result<bool, Error> {
        let mut body = json!({"clearPendingSignals": clear_pending});
        if let Some(run) = expected {
            body["expectedRunId"] = json!(run);
        }
        let Value::Object(body) = body else { return Err(Error::protocol("no object")) };
        let answer: Aborted = self.post("threads/abort", self.with(body)).await?;
        Ok(answer.aborted)
    }

    /// Takes back waiting input; gives the ids that this call removed.
    pub async fn cancel_queued(&self, ids: &[MessageId]) -> Result<Vec<MessageId>, Error> {
        let body = [("signalIds".to_owned(), json!(ids))].into_iter().collect();
        let answer: Cancelled = self.post("cancel-queued-messages", self.with(body)).await?;
        Ok(answer.cancelled_signal_ids)
    }

    /// The input that waits, in the order it will be taken (HTTP-240).
    pub async fn pending(&self) -> Result<Vec<PendingInput>, Error> {
        let path = format!("{}/threads/pending", self.agent.path);
        let query = [("threadId", &self.id), ("resourceId", &self.resource)];
        let http = &self.agent.http;
        let answer: Pending = http.json(http.request(Method::GET, &path).query(&query)).await?;
        Ok(answer.pending)
    }

    /// Moves a queued message into the running loop, or to the front of the queue (HTTP-241).
    ///
    /// # Errors
    /// [`Error::Status`] 409 if it has been taken, 404 if it is unknown.
    pub async fn promote(&self, id: &MessageId, to: PromoteTo) -> Result<Promoted, Error> {
        let body = [("signalId".to_owned(), json!(id)), ("to".to_owned(), json!(to))].into_iter().collect();
        self.post("promote-queued-message", self.with(body)).await
    }

    /// Changes a queued message; its id and place stay (HTTP-242).
    ///
    /// # Errors
    /// As [`Self::promote`].
    pub async fn edit(&self, id: &MessageId, edit: &EditInput) -> Result<Signal, Error> {
        let path = format!("{}/queued-messages/{}", self.agent.path, segment(id));
        let Value::Object(body) = json!(edit) else { return Err(Error::protocol("no object")) };
        let http = &self.agent.http;
        let answer: Edited = http.json(http.request(Method::PATCH, &path).json(&self.with(body))).await?;
        Ok(answer.signal)
    }

    fn with(&self, mut body: Object) -> Value {
        body.insert("threadId".into(), json!(self.id));
        body.insert("resourceId".into(), json!(self.resource));
        Value::Object(body)
    }

    async fn post<T: serde::de::DeserializeOwned>(&self, route: &str, body: Value) -> Result<T, Error> {
        self.agent.http.json(self.agent.post(route, &body)).await
    }
}
