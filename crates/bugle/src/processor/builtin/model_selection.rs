//! Chooses a model per request (PROC §10).

use std::{fmt, sync::Arc};

use async_trait::async_trait;

use crate::{
    agent::ModelEntry,
    model::SharedModel,
    processor::{Context, Hook, HookSet, InputStep, Outcome, Processor},
};

type Choose = Arc<dyn Fn(&Context<'_>, &InputStep) -> Option<SharedModel> + Send + Sync>;

/// Chooses the model of each request; the agent's other models stay as fallbacks.
///
/// ```
/// use std::sync::Arc;
/// use bugle::{model::ScriptedModel, processor::builtin::ModelSelection};
/// let large: bugle::model::SharedModel = Arc::new(ScriptedModel::new());
/// let after_tools = ModelSelection::new(move |cx, _| (cx.step_number() > 2).then(|| large.clone()));
/// ```
pub struct ModelSelection {
    choose: Choose,
}

impl fmt::Debug for ModelSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ModelSelection(..)")
    }
}

impl ModelSelection {
    /// Asks `choose` before each request; `None` leaves the models as they are.
    pub fn new(choose: impl Fn(&Context<'_>, &InputStep) -> Option<SharedModel> + Send + Sync + 'static) -> Self {
        Self { choose: Arc::new(choose) }
    }

    /// `model` for conversations of at least so many estimated tokens.
    pub fn for_long_conversations(tokens: usize, model: SharedModel) -> Self {
        Self::new(move |cx, _| {
            let texts = cx.messages().iter().map(|message| super::estimate_tokens(&message.joined_text()));
            (texts.sum::<usize>() >= tokens).then(|| model.clone())
        })
    }
}

#[async_trait]
impl Processor for ModelSelection {
    fn id(&self) -> &'static str {
        "model-selection"
    }

    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::InputStep])
    }

    async fn process_input_step(&self, cx: &mut Context<'_>, step: &mut InputStep) -> Outcome {
        if let Some(model) = (self.choose)(cx, step) {
            step.models.insert(0, ModelEntry { model, max_retries: None });
        }
        Ok(())
    }
}
