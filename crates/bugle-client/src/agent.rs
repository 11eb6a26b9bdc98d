//! An agent, and a thread as one agent sees it: follow, send, queue, stop, what waits, and runs that wait for a person.

use bugle::{
    MessageId, RunId, Signal,
    json::{Object, Value, json},
    runtime::{PendingInput, PromoteTo},
    signal::StateInput,
    time::Timestamp,
};
use reqwest::Method;

use crate::{
    error::Error,
    http::{Http, segment},
    input::{Input, Routing},
    subscription::{RunStream, SubscribeOptions, Subscription},
    types::{
        Aborted, Accepted, ApprovalAccepted, Cancelled, Discarded, EditInput, Edited, Generated, Pending, Promoted,
        SuspendedQuery, SuspendedRuns, ToolApproval,
    },
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
        self.follow("stream", &run_body(messages.into(), options)).await
    }

    /// Lets a call run that waits for approval, and follows the rest of its run; dropping the stream aborts the run.
    /// `options` are the fields of HTTP §5.1. On a thread that others follow, [`Thread::send_tool_approval`] is better.
    ///
    /// # Errors
    /// [`Error::Status`] 404 if the run does not wait, 409 if the call was answered already (HTTP-108).
    pub async fn approve(&self, run: &RunId, call: &str, options: Object) -> Result<RunStream, Error> {
        self.follow("approve-tool-call", &answer_body(run, call, None, options)).await
    }

    /// Declines a call that waits for approval; the model is told `reason`.
    ///
    /// # Errors
    /// As [`Self::approve`].
    pub async fn decline(
        &self,
        run: &RunId,
        call: &str,
        reason: Option<&str>,
        options: Object,
    ) -> Result<RunStream, Error> {
        self.follow("decline-tool-call", &answer_body(run, call, reason, options)).await
    }

    /// As [`Self::approve`], and waits for the end of the run. Dropping the future aborts it.
    ///
    /// # Errors
    /// As [`Self::approve`].
    pub async fn approve_generate(&self, run: &RunId, call: &str, options: Object) -> Result<Generated, Error> {
        self.http.json(self.post("approve-tool-call-generate", &answer_body(run, call, None, options))).await
    }

    /// As [`Self::decline`], and waits for the end of the run. Dropping the future aborts it.
    ///
    /// # Errors
    /// As [`Self::approve`].
    pub async fn decline_generate(
        &self,
        run: &RunId,
        call: &str,
        reason: Option<&str>,
        options: Object,
    ) -> Result<Generated, Error> {
        self.http.json(self.post("decline-tool-call-generate", &answer_body(run, call, reason, options))).await
    }

    /// Gives a suspended tool what it asked for, and follows the rest of its run; dropping the stream aborts the run.
    /// Without `call` the first call that waits is meant.
    ///
    /// # Errors
    /// As [`Self::approve`].
    pub async fn resume(
        &self,
        run: &RunId,
        call: Option<&str>,
        data: impl Into<Value>,
        mut options: Object,
    ) -> Result<RunStream, Error> {
        options.insert("runId".into(), json!(run));
        options.insert("resumeData".into(), data.into());
        if let Some(call) = call {
            options.insert("toolCallId".into(), json!(call));
        }
        self.follow("resume-stream", &Value::Object(options)).await
    }

    /// The agent's runs that wait for a person, newest first (HTTP-101).
    pub async fn suspended_runs(&self, query: &SuspendedQuery) -> Result<SuspendedRuns, Error> {
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        let time = |time: Option<Timestamp>| time.map(|time| time.to_string());
        let all = [
            ("threadId", query.thread_id.clone()),
            ("resourceId", query.resource_id.clone()),
            ("fromDate", time(query.from)),
            ("toDate", time(query.to)),
            ("perPage", number(query.per_page)),
            ("page", number(Some(query.page).filter(|page| *page > 0))),
        ];
        let given: Vec<(&str, String)> = all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let request = self.http.request(Method::GET, &format!("{}/suspended-runs", self.path));
        self.http.json(request.query(&given)).await
    }

    /// Gives up a run that waits for a person: its open calls fail, and its thread goes on.
    ///
    /// # Errors
    /// [`Error::Status`] 404 if the run does not wait.
    pub async fn discard_suspended_run(&self, run: &RunId) -> Result<bool, Error> {
        let path = format!("{}/suspended-runs/{}", self.path, segment(run));
        let answer: Discarded = self.http.json(self.http.request(Method::DELETE, &path)).await?;
        Ok(answer.discarded)
    }

    async fn follow(&self, route: &str, body: &Value) -> Result<RunStream, Error> {
        Ok(RunStream::new(self.http.clone(), self.http.send(self.post(route, body)).await?))
    }

    fn post(&self, route: &str, body: &Value) -> reqwest::RequestBuilder {
        self.http.request(Method::POST, &format!("{}/{route}", self.path)).json(body)
    }
}

fn run_body(messages: Value, mut options: Object) -> Value {
    options.insert("messages".into(), messages);
    Value::Object(options)
}

fn answer_body(run: &RunId, call: &str, reason: Option<&str>, mut options: Object) -> Value {
    options.insert("runId".into(), json!(run));
    options.insert("toolCallId".into(), json!(call));
    if let Some(reason) = reason {
        options.insert("reason".into(), json!(reason));
    }
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

    /// The state of a lane of this thread, which must exist. `None`: the thread has this state already, and nothing was
    /// done (STATE-032).
    ///
    /// # Errors
    /// [`Error::Status`] 400 naming the field of a wrong state, 404 if there is no such thread, 409 for a delta that builds
    /// on a state that is no longer current (STATE-082).
    pub async fn send_state(&self, state: &StateInput, routing: &Routing) -> Result<Option<Accepted>, Error> {
        let mut fields = Object::new();
        fields.insert("state".into(), json!(state));
        let mut body = self.with(fields);
        routing.write(&mut body);
        let told: Value = self.post("state-signals", body).await?;
        if told["skipped"] == true {
            return Ok(None);
        }
        serde_json::from_value(told).map(Some).map_err(|error| Error::protocol(error.to_string()))
    }

    /// Answers a call that waits for a person; the rest of the run comes on the thread's subscriptions (HTTP-102).
    ///
    /// # Errors
    /// [`Error::Status`] 404 if no run of the thread waits on that call, 409 if it was answered already, or if several
    /// calls fit.
    pub async fn send_tool_approval(&self, approval: &ToolApproval) -> Result<ApprovalAccepted, Error> {
        let Value::Object(body) = json!(approval) else { return Err(Error::protocol("no object")) };
        self.post("send-tool-approval", self.with(body)).await
    }

    /// The runs of the thread that wait for a person.
    ///
    /// # Errors
    /// [`Error::Status`] 404 if there is no such thread.
    pub async fn suspended_runs(&self) -> Result<SuspendedRuns, Error> {
        let query = SuspendedQuery {
            thread_id: Some(self.id.clone()),
            resource_id: Some(self.resource.clone()),
            ..SuspendedQuery::default()
        };
        self.agent.suspended_runs(&query).await
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

    pub(crate) fn http(&self) -> &Http {
        &self.agent.http
    }

    pub(crate) fn path(&self) -> &str {
        &self.agent.path
    }

    pub(crate) fn with(&self, mut body: Object) -> Value {
        body.insert("threadId".into(), json!(self.id));
        body.insert("resourceId".into(), json!(self.resource));
        Value::Object(body)
    }

    pub(crate) async fn post<T: serde::de::DeserializeOwned>(&self, route: &str, body: Value) -> Result<T, Error> {
        self.agent.http.json(self.agent.post(route, &body)).await
    }
}
