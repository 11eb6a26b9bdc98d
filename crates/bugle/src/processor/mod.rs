//! Processors: what guards and shapes a run's input.

use std::{fmt, sync::Arc};

use async_trait::async_trait;

use crate::{agent::RequestContext, chunk::TripwirePayload, message::StoredMessage};

/// Looks at input before the model does.
#[async_trait]
pub trait InputProcessor: Send + Sync {
    /// Its id, named in tripwires.
    fn id(&self) -> &str;

    /// May change the new messages of a run, or stop it. Also runs over input that arrives mid-run (SIG-208), whose
    /// rejection drops that input only.
    ///
    /// # Errors
    /// [`ProcessorError::Tripwire`] stops; [`ProcessorError::Failed`] fails closed (ruling 35).
    async fn process_input(&self, input: &mut ProcessInput<'_>) -> Result<(), ProcessorError>;
}

/// What an input processor sees.
#[derive(Debug)]
pub struct ProcessInput<'a> {
    /// The new messages, oldest first.
    pub messages: &'a mut Vec<StoredMessage>,
    /// The run's request context.
    pub request_context: &'a RequestContext,
}

/// Why a processor did not let input pass.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessorError {
    /// It stopped the run.
    #[error("{reason}")]
    Tripwire {
        /// Said to the caller.
        reason: String,
        /// Asks for another try.
        retry: bool,
        /// The processor's own data.
        metadata: Option<serde_json::Value>,
    },
    /// It broke.
    #[error("{0}")]
    Failed(String),
}

impl ProcessorError {
    /// A tripwire with a reason.
    pub fn tripwire(reason: impl Into<String>) -> Self {
        Self::Tripwire { reason: reason.into(), retry: false, metadata: None }
    }

    /// The tripwire's payload, or the failure's text.
    pub(crate) fn into_payload(self, processor_id: &str) -> Result<TripwirePayload, String> {
        match self {
            Self::Tripwire { reason, retry, metadata } => {
                Ok(TripwirePayload { reason, retry, processor_id: processor_id.to_owned(), metadata })
            }
            Self::Failed(message) => Err(format!("processor {processor_id} failed: {message}")),
        }
    }
}

/// A shared input processor.
pub type SharedInputProcessor = Arc<dyn InputProcessor>;

impl fmt::Debug for dyn InputProcessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InputProcessor({})", self.id())
    }
}
