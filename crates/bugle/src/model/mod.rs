//! The seam to language models: what the loop asks, and what a provider's stream says.

mod prompt;
mod scripted;
mod settings;

pub use prompt::*;
pub use scripted::{Gate, Script, ScriptStep, ScriptedModel, script_blocks};
pub use settings::*;

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures::stream::BoxStream;
use serde_json::Value;

use crate::{
    chunk::{ErrorInfo, FinishReason, SourcePayload, Usage},
    json::Object,
    time::Timestamp,
};

/// A model of some provider.
///
/// Implementations do not retry and do not fall back: the run does (LOOP-046, LOOP-047).
#[async_trait]
pub trait LanguageModel: fmt::Debug + Send + Sync {
    /// The provider's id, such as `openai`.
    fn provider(&self) -> &str;

    /// The provider's name for the model.
    fn model_id(&self) -> &str;

    /// Sends one request. Resolves when the provider has answered with headers.
    ///
    /// Dropping the future, or the stream it gave, closes the provider's connection.
    ///
    /// # Errors
    /// [`ModelError`] if the provider cannot be reached or refuses. A failure after the headers is an item of the
    /// stream; nothing follows it.
    async fn stream(&self, request: ModelRequest) -> Result<ModelResponse, ModelError>;
}

/// A shared model.
pub type SharedModel = Arc<dyn LanguageModel>;

/// One request to a model.
#[derive(Debug, Clone, Default)]
pub struct ModelRequest {
    /// What the model reads, system messages first.
    pub prompt: Vec<PromptMessage>,
    /// The tools it may call. Empty with [`ToolChoice::None`] (LOOP-041).
    pub tools: Vec<ToolDefinition>,
    /// Which of them it must call.
    pub tool_choice: ToolChoice,
    /// Sampling, limits, headers.
    pub settings: ModelSettings,
    /// Passed through untouched, keyed by provider.
    pub provider_options: Option<Object>,
    /// Constrains the answer to a JSON schema, where the provider can (LOOP-151).
    pub response_format: Option<ResponseFormat>,
    /// Added to the settings' headers: `x-thread-id`, `x-resource-id` (LOOP-043).
    pub headers: Vec<(String, String)>,
    /// Ask for a stream. `false` asks the provider's plain operation; the answer still comes as events (LOOP-002).
    pub streaming: bool,
    /// Also pass the provider's events as [`ModelEvent::Raw`].
    pub include_raw: bool,
}

/// A provider's answer.
pub struct ModelResponse {
    /// The events. Ends after [`ModelEvent::Finish`], or with an error.
    pub events: ModelStream,
}

impl fmt::Debug for ModelResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelResponse").finish_non_exhaustive()
    }
}

/// The events of a response. Dropping it cancels the request at the provider.
pub type ModelStream = BoxStream<'static, Result<ModelEvent, ModelError>>;

/// One event of a response. Blocks are bracketed: start, deltas, end, all with the block's id.
#[derive(Debug, Clone, PartialEq)]
pub enum ModelEvent {
    /// What the provider warned of.
    Warnings(Vec<Value>),
    /// Which model answered.
    Metadata {
        /// The response's id.
        id: Option<String>,
        /// When it was made.
        timestamp: Option<Timestamp>,
        /// The model's name by the provider's word.
        model_id: Option<String>,
    },
    /// Text begins.
    TextStart {
        /// The block.
        id: String,
        /// From the provider.
        provider_metadata: Option<Object>,
    },
    /// Text.
    TextDelta {
        /// The block.
        id: String,
        /// The text.
        text: String,
    },
    /// Text ends.
    TextEnd {
        /// The block.
        id: String,
        /// From the provider.
        provider_metadata: Option<Object>,
    },
    /// Reasoning begins.
    ReasoningStart {
        /// The block.
        id: String,
        /// From the provider.
        provider_metadata: Option<Object>,
    },
    /// Reasoning.
    ReasoningDelta {
        /// The block.
        id: String,
        /// The text.
        text: String,
    },
    /// Reasoning ends.
    ReasoningEnd {
        /// The block.
        id: String,
        /// Signature and ids to replay (LOOP-228).
        provider_metadata: Option<Object>,
    },
    /// The arguments of a call begin.
    ToolInputStart {
        /// The call. Never empty: an adapter makes one up if the provider has none (R27).
        id: String,
        /// The tool.
        name: String,
        /// The provider runs it.
        provider_executed: bool,
    },
    /// Argument text.
    ToolInputDelta {
        /// The call.
        id: String,
        /// The text.
        delta: String,
    },
    /// The arguments of a call end.
    ToolInputEnd {
        /// The call.
        id: String,
    },
    /// A complete call. Follows [`ModelEvent::ToolInputEnd`] if the arguments were streamed.
    ToolCall {
        /// The call.
        id: String,
        /// The tool.
        name: String,
        /// The arguments as text; the loop parses and repairs (LOOP-068, LOOP-069).
        input: String,
        /// The provider runs it.
        provider_executed: bool,
        /// From the provider.
        provider_metadata: Option<Object>,
    },
    /// The result of a call that the provider ran (LOOP-077).
    ToolResult {
        /// The call.
        id: String,
        /// The tool.
        name: String,
        /// What it returned.
        result: Value,
        /// It failed.
        is_error: bool,
    },
    /// A citation.
    Source(SourcePayload),
    /// A generated file.
    File {
        /// Base64.
        data: String,
        /// The media type.
        media_type: String,
    },
    /// The provider's event as it came.
    Raw(Value),
    /// The response is complete. Nothing follows.
    Finish {
        /// Why.
        reason: FinishReason,
        /// As the provider said it.
        raw_reason: Option<String>,
        /// What it cost.
        usage: Usage,
        /// The provider's own data.
        provider_metadata: Option<Object>,
    },
}

impl ModelEvent {
    /// Whether this event is response content, which commits the request (SIG-222).
    pub fn is_content(&self) -> bool {
        match self {
            Self::Warnings(_)
            | Self::Metadata { .. }
            | Self::ReasoningStart { .. }
            | Self::ReasoningDelta { .. }
            | Self::ReasoningEnd { .. }
            | Self::Raw(_)
            | Self::Finish { .. } => false,
            Self::TextStart { .. }
            | Self::TextDelta { .. }
            | Self::TextEnd { .. }
            | Self::ToolInputStart { .. }
            | Self::ToolInputDelta { .. }
            | Self::ToolInputEnd { .. }
            | Self::ToolCall { .. }
            | Self::ToolResult { .. }
            | Self::Source(_)
            | Self::File { .. } => true,
        }
    }
}

/// Why a request failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
#[non_exhaustive]
pub struct ModelError {
    /// What happened, in the provider's words where it gave any. Holds no key.
    pub message: String,
    /// The class of failure.
    pub kind: ModelErrorKind,
    /// The provider's HTTP status.
    pub status: Option<u16>,
    /// How long the provider asks to wait.
    pub retry_after: Option<Duration>,
    /// What the provider answered, cut to 4 KiB.
    pub response_body: Option<String>,
    /// Anything else that helps: which limit passed (LOOP-049).
    pub details: Option<Value>,
}

/// The classes of model failures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelErrorKind {
    /// The provider could not be reached, or the connection broke before anything was answered.
    Connect,
    /// The provider answered with an error status.
    Status,
    /// The provider reported an error inside a 200 answer (LOOP-048).
    InBand,
    /// The stream ended before the response was complete (R31a).
    Truncated,
    /// The answer makes no sense.
    Protocol,
    /// A time limit of the run passed (LOOP-049).
    Timeout,
    /// The model is not configured: no key, unknown provider. Never retried.
    Configuration,
}

impl ModelError {
    /// A failure of `kind`.
    pub fn new(kind: ModelErrorKind, message: impl Into<String>) -> Self {
        Self { message: message.into(), kind, status: None, retry_after: None, response_body: None, details: None }
    }

    /// Adds the provider's status.
    pub fn with_status(mut self, status: u16) -> Self {
        self.status = Some(status);
        self
    }

    /// Adds the wait that the provider asks for.
    pub fn with_retry_after(mut self, wait: Option<Duration>) -> Self {
        self.retry_after = wait;
        self
    }

    /// Adds what the provider answered, cut to 4 KiB.
    pub fn with_body(mut self, mut body: String) -> Self {
        let mut end = body.len().min(4096);
        while !body.is_char_boundary(end) {
            end -= 1;
        }
        body.truncate(end);
        self.response_body = Some(body);
        self
    }

    /// Whether the same request may succeed later (LOOP-046).
    pub fn is_retryable(&self) -> bool {
        match self.kind {
            ModelErrorKind::Connect | ModelErrorKind::Truncated => true,
            ModelErrorKind::Status | ModelErrorKind::InBand => {
                self.status.is_none_or(|status| status == 408 || status == 409 || status == 429 || status >= 500)
            }
            ModelErrorKind::Protocol | ModelErrorKind::Timeout | ModelErrorKind::Configuration => false,
        }
    }

    /// The error as clients see it.
    pub fn info(&self) -> ErrorInfo {
        let name = match self.kind {
            ModelErrorKind::Timeout => "MastraTimeoutError",
            ModelErrorKind::Configuration => "ModelConfigurationError",
            _ => "AI_APICallError",
        };
        ErrorInfo {
            status_code: self.status,
            is_retryable: Some(self.is_retryable()),
            response_body: self.response_body.clone(),
            details: self.details.clone(),
            ..ErrorInfo::new(name, self.message.clone())
        }
    }
}
