//! Adds a user turn where the prompt would end with the model's own, which some providers refuse (PROC §10).

use async_trait::async_trait;

use crate::{
    model::{PromptMessage, UserPart},
    processor::{Context, Hook, HookSet, LlmRequest, Outcome, Processor},
};

/// Makes a prompt that ends with an answer end with a user turn. For this request only; nothing is stored.
///
/// ```
/// use bugle::processor::builtin::TrailingAssistantGuard;
/// let guard = TrailingAssistantGuard::default();
/// assert_eq!(guard.text, "Continue.");
/// ```
#[derive(Debug, Clone)]
pub struct TrailingAssistantGuard {
    /// What is added. Default `Continue.`
    pub text: String,
    /// Only for these providers; for all if empty. Default `anthropic`.
    pub providers: Vec<String>,
}

impl Default for TrailingAssistantGuard {
    fn default() -> Self {
        Self { text: "Continue.".to_owned(), providers: vec!["anthropic".to_owned()] }
    }
}

#[async_trait]
impl Processor for TrailingAssistantGuard {
    fn id(&self) -> &'static str {
        "trailing-assistant-guard"
    }

    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::LlmRequest])
    }

    async fn process_llm_request(&self, _: &mut Context<'_>, request: &mut LlmRequest) -> Outcome {
        let provider = request.model.provider();
        let concerned = self.providers.is_empty() || self.providers.iter().any(|named| provider.starts_with(&**named));
        if concerned && matches!(request.prompt.last(), Some(PromptMessage::Assistant { .. })) {
            let text = UserPart::Text { text: self.text.clone(), provider_options: None };
            request.prompt.push(PromptMessage::User { content: vec![text], provider_options: None });
        }
        Ok(())
    }
}
