//! What a run gives: its settled result, and its live stream.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::oneshot;

use crate::{
    chunk::{Chunk, ErrorInfo, FinishReason, ResponseMetadata, StreamChunk, TripwirePayload, Usage},
    id::{MessageId, RunId},
    message::StoredMessage,
};

/// One finished step: an accepted response and the tools it asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepSummary {
    /// Its text.
    pub text: String,
    /// Its reasoning.
    #[serde(default)]
    pub reasoning_text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// What it cost.
    pub usage: Usage,
    /// Its `tool-call` chunks.
    pub tool_calls: Vec<Chunk>,
    /// Its `tool-result` chunks.
    pub tool_results: Vec<Chunk>,
    /// What the provider warned of.
    #[serde(default)]
    pub warnings: Vec<Value>,
    /// Which model answered.
    #[serde(default)]
    pub response: ResponseMetadata,
    /// A processor rejected it and had it tried again; its text is no part of the answer (PROC-054).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tripwire: Option<TripwirePayload>,
}

/// The settled result of a run (LOOP-163).
#[derive(Debug, Clone, PartialEq)]
pub struct RunOutput {
    /// The run.
    pub run_id: RunId,
    /// All steps' texts, joined (LOOP-164).
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// The sum over its steps.
    pub usage: Usage,
    /// What its delegations cost, which `usage` does not hold (SUB-154).
    pub sub_agent_usage: Option<Usage>,
    /// Its steps, oldest first.
    pub steps: Vec<StepSummary>,
    /// With structured output, the value.
    pub object: Option<Value>,
    /// The object is the fallback value.
    pub used_fallback_value: bool,
    /// Why it failed.
    pub error: Option<ErrorInfo>,
    /// What stopped it.
    pub tripwire: Option<TripwirePayload>,
    /// `{toolCallId, toolName, args, resumeSchema}` of a parked call, or the tool's own payload.
    pub suspend_payload: Option<Value>,
    /// JSON Schema of the answer to the parked call, as text.
    pub resume_schema: Option<String>,
    /// The calls of the step that is parked, as `tool-call` chunks; the step itself is not finished.
    pub parked_calls: Vec<Chunk>,
    /// The messages this run produced: assistant rows.
    pub response_messages: Vec<StoredMessage>,
    /// The messages of the call: its input and what it produced.
    pub messages: Vec<StoredMessage>,
    /// The messages loaded from memory.
    pub remembered_messages: Vec<StoredMessage>,
    /// The id of the last answer.
    pub message_id: MessageId,
    /// Generated files, sources: their chunks.
    pub files: Vec<Chunk>,
    /// Citations: their chunks.
    pub sources: Vec<Chunk>,
    /// What went wrong without ending the run.
    pub warnings: Vec<Value>,
    /// Signals the run has seen (SIG-514).
    pub consumed_signal_ids: Vec<MessageId>,
    /// Completion checks failed before the last answer; texts before it are left out of `text` (SCO-048).
    pub response: ResponseMetadata,
    /// What a parked run leaves to the run that started it.
    pub(crate) parked: Option<Box<super::parked::ParkedOutput>>,
}

/// A run as its caller sees it: every chunk from the first, then the result.
///
/// Dropping it does not stop the run (LOOP-206); [`RunStream::abort`] does.
#[derive(Debug)]
pub struct RunStream {
    /// The run.
    pub run_id: RunId,
    pub(crate) chunks: crate::thread::LogReader,
    pub(crate) output: oneshot::Receiver<RunOutput>,
    pub(crate) shared: Arc<crate::thread::RunShared>,
}

impl RunOutput {
    /// The result of a run that could not begin.
    pub(crate) fn failed(run_id: RunId, error: ErrorInfo) -> Self {
        Self {
            run_id,
            text: String::new(),
            finish_reason: FinishReason::Error,
            usage: Usage::default(),
            sub_agent_usage: None,
            steps: Vec::new(),
            object: None,
            used_fallback_value: false,
            error: Some(error),
            tripwire: None,
            suspend_payload: None,
            response_messages: Vec::new(),
            messages: Vec::new(),
            remembered_messages: Vec::new(),
            message_id: MessageId::fresh(),
            files: Vec::new(),
            sources: Vec::new(),
            warnings: Vec::new(),
            consumed_signal_ids: Vec::new(),
            response: ResponseMetadata::default(),
            parked: None,
            resume_schema: None,
            parked_calls: Vec::new(),
        }
    }
}

impl RunOutput {
    /// The result of a run that was stopped while it waited for its turn.
    pub(crate) fn aborted(run_id: RunId) -> Self {
        let none = ErrorInfo::new("", "");
        Self { finish_reason: FinishReason::Aborted, error: None, ..Self::failed(run_id, none) }
    }
}

impl RunStream {
    /// The next chunk; `None` after the last. `finish` and `abort` of a direct stream differ from what subscribers
    /// see: see [`DirectChunk`].
    pub async fn next(&mut self) -> Option<DirectChunk> {
        self.chunks.next_direct().await
    }

    /// The next chunk if there is one now: lets a transport write many at once.
    pub fn try_next(&mut self) -> Option<DirectChunk> {
        self.chunks.try_next_direct()
    }

    /// Stops the run. One that still waits for its turn gives it up.
    pub fn abort(&self) {
        self.shared.stop(false);
    }

    /// The result; waits for the end of the run. Chunks need not be read (SIG-336).
    ///
    /// # Errors
    /// [`crate::Error::Internal`] if the run's task died.
    pub async fn output(self) -> Result<RunOutput, crate::Error> {
        self.output.await.map_err(|_| crate::Error::Internal("a run ended without a result"))
    }
}

/// A chunk of a direct stream.
#[derive(Debug, Clone)]
pub enum DirectChunk {
    /// The same chunk that subscribers get, encoded once for all.
    Shared(Arc<StreamChunk>),
    /// One that only this response gets (HTTP-067, HTTP-068).
    Own(Box<Chunk>),
}

impl DirectChunk {
    /// The chunk.
    pub fn chunk(&self) -> &Chunk {
        match self {
            Self::Shared(chunk) => &chunk.chunk,
            Self::Own(chunk) => chunk,
        }
    }

    /// The chunk, copied only if others read it too.
    pub(crate) fn into_chunk(self) -> Chunk {
        match self {
            Self::Shared(chunk) => Arc::try_unwrap(chunk).map_or_else(|held| held.chunk.clone(), |own| own.chunk),
            Self::Own(chunk) => *chunk,
        }
    }

    /// The chunk as a server-sent event.
    pub fn frame(&self) -> bytes::Bytes {
        match self {
            Self::Shared(chunk) => chunk.frame(),
            Self::Own(chunk) => crate::chunk::encode_frame(chunk),
        }
    }
}
