//! A second model turns the answer's text into a value (PROC §10).

use std::fmt;

use async_trait::async_trait;

use super::judge;
use crate::{
    json::Value,
    model::SharedModel,
    processor::{Context, Hook, HookSet, OnError, Outcome, OutputResult, Processor, ProcessorError},
};

/// Reads the finished text with a model of its own and sets the run's value.
///
/// ```
/// use std::sync::Arc;
/// use bugle::{json::json, model::ScriptedModel, processor::builtin::StructuredOutputProcessor};
/// let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}});
/// let reader = StructuredOutputProcessor::new(Arc::new(ScriptedModel::new()), schema);
/// ```
#[derive(Clone)]
pub struct StructuredOutputProcessor {
    model: SharedModel,
    schema: Value,
    instructions: Option<String>,
    on_error: OnError,
}

impl fmt::Debug for StructuredOutputProcessor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StructuredOutputProcessor").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl StructuredOutputProcessor {
    /// Gives values that fit `schema`; a failure fails the run.
    pub fn new(model: SharedModel, schema: Value) -> Self {
        Self { model, schema, instructions: None, on_error: OnError::Abort }
    }

    /// Told to the model beside the schema.
    #[must_use]
    pub fn instructions(mut self, instructions: impl Into<String>) -> Self {
        self.instructions = Some(instructions.into());
        self
    }

    /// What happens when no value can be had. [`OnError::Pass`]: the run has none.
    #[must_use]
    pub fn on_failure(mut self, on_error: OnError) -> Self {
        self.on_error = on_error;
        self
    }
}

#[async_trait]
impl Processor for StructuredOutputProcessor {
    fn id(&self) -> &'static str {
        "structured-output"
    }

    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::OutputResult])
    }

    fn on_error(&self) -> OnError {
        self.on_error
    }

    async fn process_output_result(&self, _: &mut Context<'_>, result: &mut OutputResult) -> Outcome {
        if result.object.is_some() || result.text.is_empty() {
            return Ok(());
        }
        let system = self.instructions.as_deref().unwrap_or("Turn the text into data. Add nothing it does not say.");
        let value = judge::ask(&self.model, system, &result.text, &self.schema).await;
        result.object = Some(value.map_err(ProcessorError::Failed)?);
        Ok(())
    }
}
