//! What can be delegated to: the trait, what it is given, and what it gives back.

use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    agent::RequestContext,
    chunk::{Chunk, ChunkBody, ErrorInfo, FinishReason, Payload, Usage},
    id::{RunId, ThreadKey},
    json::{Object, Value},
    message::StoredMessage,
    model::PromptMessage,
    run::{Decision, ParkedCall, RunSnapshot},
    runtime::Bugle,
    tool::{Written, WrittenWhat},
};

/// Something an agent can delegate to. [`Agent`](crate::Agent) implements it; so may a service of another kind.
///
/// One value serves many delegations at once. A delegation ends when the future does; it is dropped if an aborted run has
/// waited long enough for it.
///
/// ```
/// use async_trait::async_trait;
/// use bugle::{Agent, model::ScriptedModel, subagent::{SubAgent, SubRun, Task}};
/// struct Echo;
/// #[async_trait]
/// impl SubAgent for Echo {
///     fn id(&self) -> &str {
///         "echo"
///     }
///     fn description(&self) -> Option<&str> {
///         Some("Says what it is told.")
///     }
///     async fn run(&self, task: Task) -> SubRun {
///         SubRun::text(task.prompt)
///     }
/// }
/// let model = std::sync::Arc::new(ScriptedModel::new());
/// let lead = Agent::builder("lead").model(model).agent("echo", Echo).build()?;
/// assert_eq!(lead.agents()["echo"].description(), Some("Says what it is told."));
/// # Ok::<(), bugle::Error>(())
/// ```
#[async_trait]
pub trait SubAgent: Send + Sync {
    /// Its id, which hooks see. The tool is named by the key it is registered under.
    fn id(&self) -> &str;

    /// Its shown name; the id by default.
    fn name(&self) -> &str {
        self.id()
    }

    /// What it is for: what the parent's model decides by (SUB-009).
    fn description(&self) -> Option<&str> {
        None
    }

    /// The most steps a task may have unless a hook says otherwise (SUB-060). Without one, 5 by default.
    fn max_steps(&self) -> Option<u32> {
        None
    }

    /// Whether it has memory of its own; else it may borrow the parent's for its transcript (SUB-045).
    fn has_memory(&self) -> bool {
        false
    }

    /// Works on a task to its end.
    async fn run(&self, task: Task) -> SubRun;
}

#[async_trait]
impl<T: SubAgent + ?Sized> SubAgent for Arc<T> {
    fn id(&self) -> &str {
        (**self).id()
    }
    fn name(&self) -> &str {
        (**self).name()
    }
    fn description(&self) -> Option<&str> {
        (**self).description()
    }
    fn max_steps(&self) -> Option<u32> {
        (**self).max_steps()
    }
    fn has_memory(&self) -> bool {
        (**self).has_memory()
    }
    async fn run(&self, task: Task) -> SubRun {
        (**self).run(task).await
    }
}

/// A delegated task, after hooks and filter.
#[derive(Debug)]
#[non_exhaustive]
pub struct Task {
    /// The id of the sub-run.
    pub run_id: RunId,
    /// The delegation's call in the parent.
    pub tool_call_id: String,
    /// What is to be done.
    pub prompt: String,
    /// The parent's conversation, not to be stored.
    pub context: Vec<PromptMessage>,
    /// Instructions besides its own (SUB-031).
    pub instructions: Option<String>,
    /// The most steps; `None`: its own default, else 5.
    pub max_steps: Option<u32>,
    /// Its request context.
    pub request_context: RequestContext,
    /// Its thread and resource. The transcript is saved there by the one who delegates.
    pub thread: ThreadKey,
    /// Fires when the parent is aborted.
    pub abort: CancellationToken,
    /// Whether anybody watches: then [`Task::emit`] shows chunks in the parent's stream.
    pub streaming: bool,
    /// How deep it is; the top run is 0, so at least 1.
    pub depth: u32,
    /// The runtime.
    pub runtime: Bugle,
    pub(super) message: StoredMessage,
    pub(super) stores: bool,
    pub(super) remembers: bool,
    pub(super) thread_metadata: Option<Object>,
    pub(super) depth_limit: u32,
    /// It was parked, and goes on with a person's answer.
    pub(super) resume: Option<Box<(RunSnapshot, Decision)>>,
    pub(super) sink: Sink,
}

impl Task {
    /// Shows a chunk of the sub-run in the parent's stream (SUB-150); nothing if nobody watches. Waits while the stream
    /// is behind (SUB-157). A `data-…` chunk is shown as it is (SUB-152).
    pub async fn emit(&self, chunk: Chunk) {
        if self.streaming {
            self.sink.send(chunk).await;
        }
    }
}

/// Where chunks of a sub-run go.
#[derive(Debug, Clone)]
pub(super) struct Sink {
    pub(super) written: mpsc::Sender<Written>,
    pub(super) tool_call_id: String,
}

impl Sink {
    pub(super) async fn send(&self, chunk: Chunk) {
        let what = match slim(chunk) {
            Chunk { body: ChunkBody::Data(data), .. } => WrittenWhat::Data(data),
            chunk => match serde_json::to_value(&chunk) {
                Ok(output) => WrittenWhat::Output(output),
                Err(error) => return tracing::error!(%error, "a chunk of a sub-run is no JSON"),
            },
        };
        // The parent may have ended; nobody reads then.
        let _ = self.written.send(Written { tool_call_id: self.tool_call_id.clone(), what }).await;
    }
}

/// A chunk without what grows with the run (SUB-156).
fn slim(mut chunk: Chunk) -> Chunk {
    match &mut chunk.body {
        ChunkBody::Payload(Payload::StepFinish(finish) | Payload::Finish(finish)) => {
            finish.messages = None;
            finish.response = None;
        }
        ChunkBody::Payload(Payload::StepStart { request, .. }) => request.clear(),
        _ => {}
    }
    chunk
}

/// What a sub-run that belongs to no thread's actor works on.
#[derive(Debug)]
pub(crate) struct Detached {
    /// Its thread, if it has one; others write there for it.
    pub(crate) thread: Option<ThreadKey>,
    /// It remembers what is stored on its thread.
    pub(crate) remembers: bool,
    /// How deep it is, and how deep delegations may nest.
    pub(crate) depth: u32,
    pub(crate) depth_limit: u32,
}

/// One tool result of a sub-run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubToolResult {
    /// The tool.
    pub tool_name: String,
    /// The call.
    pub tool_call_id: String,
    /// Its arguments.
    pub args: Value,
    /// Its result; of a failed call, the error's text.
    pub result: Value,
    /// The call failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub is_error: Option<bool>,
}

/// A call that nobody ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubToolCall {
    /// The tool.
    pub tool_name: String,
    /// The call.
    pub tool_call_id: String,
    /// Its arguments.
    pub args: Value,
}

/// How a sub-run ended, and what it gave.
///
/// ```
/// use bugle::{chunk::ErrorInfo, subagent::SubRun};
/// assert!(SubRun::text("found it").error.is_none());
/// assert!(SubRun::failed(ErrorInfo::new("Error", "no connection")).error.is_some());
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SubRun {
    /// Its text, after its output processors.
    pub text: String,
    /// Why it ended. [`FinishReason::Error`] is a failure, [`FinishReason::Aborted`] an abort.
    pub finish_reason: FinishReason,
    /// What it cost, without its own subagents.
    pub usage: Usage,
    /// What its own subagents cost (SUB-154).
    pub sub_agent_usage: Option<Usage>,
    /// Results of its tools, in order.
    pub tool_results: Vec<SubToolResult>,
    /// Calls that only a client could run (SUB-094).
    pub pending_tool_calls: Vec<SubToolCall>,
    /// Its answers, to be stored after the prompt.
    pub response_messages: Vec<StoredMessage>,
    /// Why it failed.
    pub error: Option<ErrorInfo>,
    /// It waits for a person.
    pub(super) parked: Option<Box<Parked>>,
}

/// A sub-run that waits.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Parked {
    pub(super) run_id: RunId,
    pub(super) snapshot: RunSnapshot,
    pub(super) calls: Vec<ParkedCall>,
}

impl SubRun {
    /// A finished run with this text.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            finish_reason: FinishReason::Stop,
            usage: Usage::default(),
            sub_agent_usage: None,
            tool_results: Vec::new(),
            pending_tool_calls: Vec::new(),
            response_messages: Vec::new(),
            error: None,
            parked: None,
        }
    }

    /// A failed run. The parent's model reads a generic text instead of the error (SUB-090).
    pub fn failed(error: ErrorInfo) -> Self {
        Self { finish_reason: FinishReason::Error, error: Some(error), ..Self::text("") }
    }

    /// A run that was stopped.
    pub fn aborted() -> Self {
        Self { finish_reason: FinishReason::Aborted, ..Self::text("") }
    }

    pub(super) fn is_success(&self) -> bool {
        self.error.is_none() && !matches!(self.finish_reason, FinishReason::Error | FinishReason::Aborted)
    }
}
