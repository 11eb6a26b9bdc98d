//! The built-in model: deterministic, no key, no network. The prompt is the program.

use async_trait::async_trait;

use super::{LanguageModel, ModelError, ModelRequest, ModelResponse};

/// Answers what the last user message tells it to (see the README, "The scripted model").
#[derive(Debug, Clone, Default)]
pub struct ScriptedModel {}

impl ScriptedModel {
    /// The model.
    pub fn new() -> Self {
        Self::default()
    }
}

#[async_trait]
impl LanguageModel for ScriptedModel {
    fn provider(&self) -> &str {
        "scripted"
    }

    fn model_id(&self) -> &str {
        "scripted"
    }

    async fn stream(&self, _request: ModelRequest) -> Result<ModelResponse, ModelError> {
        unimplemented!()
    }
}

/// Splits `a [[x]] b [[y [[z]] w]]` into `x` and `y [[z]] w`.
pub fn script_blocks(_text: &str) -> Vec<String> {
    unimplemented!()
}
