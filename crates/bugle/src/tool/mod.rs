//! Tools: what a model may call.

mod limit;
mod schema;

pub use limit::limit_for_model;
pub use schema::{ValidationReport, Validator, draft7, repair_json};

use std::{fmt, future::Future, sync::Arc};

use async_trait::async_trait;
use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    agent::RequestContext,
    chunk::DataChunk,
    id::{RunId, ThreadKey},
    message::StoredMessage,
};

/// What a tool does when it is called.
#[async_trait]
pub trait Execute: Send + Sync {
    /// Runs the tool. `input` has passed the tool's schema. Dropped when an aborted run has waited long enough
    /// (SIG-312); until then [`ToolContext::abort`] tells.
    async fn execute(&self, input: Value, context: ToolContext) -> Result<Value, ToolError>;
}

/// Why a tool gave no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// It failed; the model reads the text (LOOP-072).
    #[error("{message}")]
    Failed {
        /// What the model and the client read.
        message: String,
        /// The class of error, `Error` by default.
        name: String,
    },
    /// It waits for a person, who reads the payload (LOOP §7).
    #[error("suspended")]
    Suspend(Value),
    /// A delegation: something below it waits for a person (SUB-120).
    #[doc(hidden)]
    #[error("suspended below")]
    Delegated(Box<crate::run::DelegatedPark>),
}

impl ToolError {
    /// A failure with a message.
    pub fn failed(message: impl Into<String>) -> Self {
        Self::Failed { message: message.into(), name: "Error".into() }
    }
}

impl From<String> for ToolError {
    fn from(message: String) -> Self {
        Self::failed(message)
    }
}

impl From<&str> for ToolError {
    fn from(message: &str) -> Self {
        Self::failed(message)
    }
}

/// What a tool may use while it runs (LOOP-062).
#[derive(Clone)]
pub struct ToolContext {
    /// The call.
    pub tool_call_id: String,
    /// The run; absent when the tool is executed directly (HTTP-141).
    pub run_id: Option<RunId>,
    /// The agent whose tool it is.
    pub agent_id: String,
    /// The thread, if the run has one.
    pub thread: Option<ThreadKey>,
    /// The conversation as the model saw it, the call included; empty when the tool is executed directly.
    pub messages: Arc<[StoredMessage]>,
    /// The run's request context.
    pub request_context: RequestContext,
    /// Fires when the run is aborted.
    pub abort: CancellationToken,
    /// Given by a person to a suspended call.
    pub resume_data: Option<Value>,
    /// A delegation that goes on.
    #[allow(dead_code, reason = "read by delegations")]
    pub(crate) resume: Option<Box<crate::run::parked::DelegatedResume>>,
    /// Writes chunks of its own (LOOP-075).
    pub writer: ToolWriter,
    /// The runtime, where there is one.
    pub runtime: Option<crate::runtime::Bugle>,
}

impl ToolContext {
    /// The context of a call outside of any run (HTTP-141).
    pub fn outside(tool_call_id: impl Into<String>) -> Self {
        Self {
            tool_call_id: tool_call_id.into(),
            run_id: None,
            agent_id: String::new(),
            thread: None,
            messages: Arc::default(),
            request_context: RequestContext::default(),
            abort: CancellationToken::new(),
            resume_data: None,
            resume: None,
            writer: ToolWriter::default(),
            runtime: None,
        }
    }
}

impl fmt::Debug for ToolContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolContext").field("tool_call_id", &self.tool_call_id).finish_non_exhaustive()
    }
}

/// Lets a running tool write to the stream. Writing never blocks the run: past 1,024 unread writes the tool waits.
#[derive(Debug, Clone, Default)]
pub struct ToolWriter {
    pub(crate) sink: Option<mpsc::Sender<Written>>,
    pub(crate) tool_call_id: String,
}

/// What a tool wrote.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Written {
    pub(crate) tool_call_id: String,
    pub(crate) what: WrittenWhat,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum WrittenWhat {
    Output(Value),
    Data(DataChunk),
}

impl ToolWriter {
    /// Writes a value as a `tool-output` chunk.
    pub async fn write(&self, output: Value) {
        self.send(WrittenWhat::Output(output)).await;
    }

    /// Writes a `data-…` chunk. It is stored with the message unless it is transient.
    pub async fn custom(&self, data: DataChunk) {
        self.send(WrittenWhat::Data(data)).await;
    }

    async fn send(&self, what: WrittenWhat) {
        if let Some(sink) = &self.sink {
            // The run may have ended; nobody reads then.
            let _ = sink.send(Written { tool_call_id: self.tool_call_id.clone(), what }).await;
        }
    }
}

/// Whether a call waits for a person (LOOP-090).
#[derive(Clone, Default)]
pub enum Approval {
    /// Never by itself.
    #[default]
    None,
    /// Always.
    Always,
    /// If the predicate says so; its verdict is final.
    When(Arc<dyn Fn(&Value, &RequestContext) -> bool + Send + Sync>),
}

impl fmt::Debug for Approval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Always => "Always",
            Self::When(_) => "When(..)",
        })
    }
}

/// Maps a result to what the model reads of it (LOOP-074).
pub type ToModelOutput = Arc<dyn Fn(&Value) -> crate::model::ToolOutput + Send + Sync>;

/// A tool: cheap to clone, shared between agents.
///
/// ```
/// use bugle::tool::{Tool, ToolContext};
/// #[derive(serde::Deserialize, schemars::JsonSchema)]
/// struct City { city: String }
/// let weather = Tool::typed("get-weather", "Current weather for a city.", |input: City, _: ToolContext| async move {
///     Ok(serde_json::json!({ "city": input.city, "tempC": 21 }))
/// });
/// assert_eq!(weather.id(), "get-weather");
/// ```
#[derive(Clone)]
pub struct Tool {
    inner: Arc<ToolInner>,
}

#[derive(Clone)]
struct ToolInner {
    id: String,
    description: Option<String>,
    input_schema: Option<Value>,
    output_schema: Option<Value>,
    resume_schema: Option<Value>,
    approval: Approval,
    to_model_output: Option<ToModelOutput>,
    execute: Option<Arc<dyn Execute>>,
    suspends: bool,
    strict: bool,
    input_validator: Option<Arc<Validator>>,
    output_validator: Option<Arc<Validator>>,
    resume_validator: Option<Arc<Validator>>,
}

impl fmt::Debug for Tool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tool").field("id", &self.inner.id).finish_non_exhaustive()
    }
}

struct FnExecute<F>(F);

#[async_trait]
impl<F> Execute for FnExecute<F>
where
    F: Fn(Value, ToolContext) -> BoxFuture<'static, Result<Value, ToolError>> + Send + Sync,
{
    async fn execute(&self, input: Value, context: ToolContext) -> Result<Value, ToolError> {
        (self.0)(input, context).await
    }
}

impl Tool {
    /// A tool whose arguments are a Rust type; the schema is the type's.
    pub fn typed<I, O, F, R>(id: impl Into<String>, description: impl Into<String>, execute: F) -> Self
    where
        I: DeserializeOwned + JsonSchema + Send + 'static,
        O: Serialize,
        F: Fn(I, ToolContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<O, ToolError>> + Send + 'static,
    {
        let execute = Arc::new(execute);
        let run = move |input: Value, context: ToolContext| -> BoxFuture<'static, Result<Value, ToolError>> {
            let execute = execute.clone();
            Box::pin(async move {
                let input = serde_json::from_value::<I>(input).map_err(|error| ToolError::failed(error.to_string()))?;
                let output = execute(input, context).await?;
                serde_json::to_value(output).map_err(|error| ToolError::failed(error.to_string()))
            })
        };
        Self::new(id).described(description).with_input_schema(draft7::<I>()).with_execute(FnExecute(run))
    }

    /// A tool whose arguments are JSON.
    pub fn json<F, R>(id: impl Into<String>, execute: F) -> Self
    where
        F: Fn(Value, ToolContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Value, ToolError>> + Send + 'static,
    {
        let run = move |input: Value, context: ToolContext| -> BoxFuture<'static, Result<Value, ToolError>> {
            Box::pin(execute(input, context))
        };
        Self::new(id).with_execute(FnExecute(run))
    }

    /// A tool without server code: the client runs it (LOOP-076).
    pub fn client(id: impl Into<String>) -> Self {
        Self::new(id)
    }

    fn new(id: impl Into<String>) -> Self {
        Self {
            inner: Arc::new(ToolInner {
                id: id.into(),
                description: None,
                input_schema: None,
                output_schema: None,
                resume_schema: None,
                approval: Approval::None,
                to_model_output: None,
                execute: None,
                suspends: false,
                strict: false,
                input_validator: None,
                output_validator: None,
                resume_validator: None,
            }),
        }
    }

    fn change(mut self, change: impl FnOnce(&mut ToolInner)) -> Self {
        change(Arc::make_mut(&mut self.inner));
        self
    }

    /// Says what it does.
    pub fn described(self, description: impl Into<String>) -> Self {
        self.change(|tool| tool.description = Some(description.into()))
    }

    /// JSON Schema of the arguments. A schema that is none is ignored with a warning.
    pub fn with_input_schema(self, schema: Value) -> Self {
        self.change(|tool| {
            tool.input_validator = Validator::compile(&schema).map(Arc::new);
            tool.input_schema = Some(schema);
        })
    }

    /// JSON Schema of the result.
    pub fn with_output_schema(self, schema: Value) -> Self {
        self.change(|tool| {
            tool.output_validator = Validator::compile(&schema).map(Arc::new);
            tool.output_schema = Some(schema);
        })
    }

    /// JSON Schema of what a person answers when the tool suspends. Marks the tool as one that may suspend.
    pub fn with_resume_schema(self, schema: Value) -> Self {
        self.change(|tool| {
            tool.resume_validator = Validator::compile(&schema).map(Arc::new);
            tool.resume_schema = Some(schema);
            tool.suspends = true;
        })
    }

    /// When a call waits for a person.
    pub fn with_approval(self, approval: Approval) -> Self {
        self.change(|tool| tool.approval = approval)
    }

    /// What the model reads of a result.
    pub fn with_model_output(self, map: impl Fn(&Value) -> crate::model::ToolOutput + Send + Sync + 'static) -> Self {
        self.change(|tool| tool.to_model_output = Some(Arc::new(map)))
    }

    /// What it does when called.
    pub fn with_execute(self, execute: impl Execute + 'static) -> Self {
        self.change(|tool| tool.execute = Some(Arc::new(execute)))
    }

    /// Asks providers to enforce the schema.
    pub fn strict(self) -> Self {
        self.change(|tool| tool.strict = true)
    }

    /// Its id.
    pub fn id(&self) -> &str {
        &self.inner.id
    }

    /// What it does.
    pub fn description(&self) -> Option<&str> {
        self.inner.description.as_deref()
    }

    /// JSON Schema of the arguments, if declared (LOOP-082).
    pub fn input_schema(&self) -> Option<&Value> {
        self.inner.input_schema.as_ref()
    }

    /// JSON Schema of the result, if declared.
    pub fn output_schema(&self) -> Option<&Value> {
        self.inner.output_schema.as_ref()
    }

    /// JSON Schema of the answer to a suspension, if declared.
    pub fn resume_schema(&self) -> Option<&Value> {
        self.inner.resume_schema.as_ref()
    }

    /// When a call waits for a person.
    pub fn approval(&self) -> &Approval {
        &self.inner.approval
    }

    /// What the model reads of a result.
    pub fn to_model_output(&self) -> Option<&ToModelOutput> {
        self.inner.to_model_output.as_ref()
    }

    /// What it does; `None` for a client tool.
    pub fn execute(&self) -> Option<&Arc<dyn Execute>> {
        self.inner.execute.as_ref()
    }

    /// Whether it may suspend itself.
    pub fn suspends(&self) -> bool {
        self.inner.suspends
    }

    /// Whether providers are asked to enforce the schema.
    pub fn is_strict(&self) -> bool {
        self.inner.strict
    }

    /// Checks arguments; `Err` is the result the model reads instead (LOOP-070).
    pub fn check_input(&self, input: &Value) -> Result<(), Value> {
        check(self.inner.input_validator.as_deref(), input, "input", &self.inner.id)
    }

    /// Checks resume data; `Err` is the result the model reads instead (LOOP-114).
    pub fn check_resume(&self, data: &Value) -> Result<(), Value> {
        check(self.inner.resume_validator.as_deref(), data, "resume data", &self.inner.id)
    }

    /// Checks a result; `Err` is the result the model reads instead (LOOP-070).
    pub fn check_output(&self, output: &Value) -> Result<(), Value> {
        check(self.inner.output_validator.as_deref(), output, "output", &self.inner.id)
    }
}

fn check(validator: Option<&Validator>, value: &Value, what: &str, tool: &str) -> Result<(), Value> {
    let Some(validator) = validator else { return Ok(()) };
    validator.check(value).map_err(|report| report.as_tool_result(what, tool, value))
}

/// The name providers accept for a tool key: other characters than letters, digits, `_` and `-` become `_`, at most 64.
pub fn provider_safe_name(key: &str) -> String {
    key.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' }).take(64).collect()
}
