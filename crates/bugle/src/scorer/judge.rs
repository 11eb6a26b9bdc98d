//! Judges: asking a model for a verdict that fits a schema, with one repair (SCO-005, SCO-006, SCO-014).

use std::{fmt, sync::Arc, time::Duration};

use futures::StreamExt;
use tokio::time::Instant;

use super::{JudgeExecution, StepContext};
use crate::{
    chunk::Usage,
    json::{Value, json},
    model::{
        AssistantPart, ModelError, ModelErrorKind, ModelEvent, ModelRequest, ModelSettings, PromptMessage,
        ResponseFormat, SharedModel, UserPart,
    },
    run::structured::{provider_schema, read_structured},
};

/// Requests after the first that a judge's model is given for failures that may pass.
const RETRIES: u32 = 2;
/// The longest wait between them that a provider may ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(30);
/// The longest answer of a judge, in bytes.
const ANSWER_MAX: usize = 1 << 20;

/// Who judges: a model, and what it is told about its task. What a step's judge leaves open, its scorer's says.
///
/// ```
/// use std::sync::Arc;
/// use bugle::{model::ScriptedModel, scorer::Judge};
/// let judge = Judge::new(Arc::new(ScriptedModel::new()), "You judge answers strictly.");
/// assert!(format!("{judge:?}").contains("scripted"));
/// ```
#[derive(Clone, Default)]
pub struct Judge {
    model: Option<SharedModel>,
    instructions: Option<String>,
    settings: Option<ModelSettings>,
    schema_in_prompt: Option<bool>,
}

impl Judge {
    /// This model with these instructions.
    pub fn new(model: SharedModel, instructions: impl Into<String>) -> Self {
        Self { model: Some(model), instructions: Some(instructions.into()), ..Self::default() }
    }

    /// Another model, with the scorer's instructions.
    pub fn of_model(model: SharedModel) -> Self {
        Self { model: Some(model), ..Self::default() }
    }

    /// Other instructions, for the scorer's model.
    pub fn of_instructions(instructions: impl Into<String>) -> Self {
        Self { instructions: Some(instructions.into()), ..Self::default() }
    }

    /// Sampling and limits of its requests.
    #[must_use]
    pub fn model_settings(mut self, settings: ModelSettings) -> Self {
        self.settings = Some(settings);
        self
    }

    /// Puts the schema into the prompt, for models without a response format of their own.
    #[must_use]
    pub fn schema_in_prompt(mut self) -> Self {
        self.schema_in_prompt = Some(true);
        self
    }

    /// What this one leaves open is `base`'s.
    pub(super) fn over(&self, base: Option<&Self>) -> Self {
        let Some(base) = base else { return self.clone() };
        Self {
            model: self.model.clone().or_else(|| base.model.clone()),
            instructions: self.instructions.clone().or_else(|| base.instructions.clone()),
            settings: self.settings.clone().or_else(|| base.settings.clone()),
            schema_in_prompt: self.schema_in_prompt.or(base.schema_in_prompt),
        }
    }

    /// The model and the instructions, if both are there.
    pub(super) fn resolved(&self) -> Option<(&SharedModel, &str)> {
        Some((self.model.as_ref()?, self.instructions.as_deref()?))
    }
}

impl fmt::Debug for Judge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let model = self.model.as_ref().map(|model| format!("{}/{}", model.provider(), model.model_id()));
        f.debug_struct("Judge").field("model", &model).finish_non_exhaustive()
    }
}

type MakePrompt = Arc<dyn Fn(&StepContext) -> String + Send + Sync>;
type Needed = Arc<dyn Fn(&StepContext) -> bool + Send + Sync>;

/// A step that a judge model does (SCO-005).
///
/// ```
/// use bugle::{json::json, scorer::JudgeStep};
/// let schema = json!({"type": "object", "properties": {"claims": {"type": "array", "items": {"type": "string"}}}});
/// let step = JudgeStep::new("finds the claims", |cx| format!("List the claims of this text:\n{}", cx.run.text()))
///     .output_schema(schema);
/// assert_eq!(step.description(), "finds the claims");
/// ```
#[derive(Clone)]
pub struct JudgeStep {
    description: String,
    make_prompt: MakePrompt,
    needed: Option<Needed>,
    pub(super) output_schema: Option<Value>,
    pub(super) judge: Option<Judge>,
}

impl JudgeStep {
    /// What it does, and the prompt that asks for it.
    pub fn new(
        description: impl Into<String>,
        make_prompt: impl Fn(&StepContext) -> String + Send + Sync + 'static,
    ) -> Self {
        Self {
            description: description.into(),
            make_prompt: Arc::new(make_prompt),
            needed: None,
            output_schema: None,
            judge: None,
        }
    }

    /// JSON Schema of the answer. `generateScore` has one of its own, `{score: number}`; `generateReason` is free text.
    #[must_use]
    pub fn output_schema(mut self, schema: Value) -> Self {
        self.output_schema = Some(schema);
        self
    }

    /// Another judge than the scorer's.
    #[must_use]
    pub fn judge(mut self, judge: Judge) -> Self {
        self.judge = Some(judge);
        self
    }

    /// Without need the model is not asked and the step gives null.
    pub(super) fn when(mut self, needed: impl Fn(&StepContext) -> bool + Send + Sync + 'static) -> Self {
        self.needed = Some(Arc::new(needed));
        self
    }

    /// What it does.
    pub fn description(&self) -> &str {
        &self.description
    }

    pub(super) fn is_needed(&self, context: &StepContext) -> bool {
        self.needed.as_ref().is_none_or(|needed| needed(context))
    }

    pub(super) fn prompt(&self, context: &StepContext) -> String {
        (self.make_prompt)(context)
    }
}

impl fmt::Debug for JudgeStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JudgeStep").field("description", &self.description).finish_non_exhaustive()
    }
}

/// Asks the judge. With a schema the answer is a value that fits it, at the second try at the latest; without, a text.
/// Dropping the future cancels the request at the provider.
pub(super) async fn ask(
    judge: &Judge,
    (model, instructions): (&SharedModel, &str),
    prompt: String,
    schema: Option<&Value>,
) -> (JudgeExecution, Result<Value, String>) {
    let begun = Instant::now();
    let in_prompt = judge.schema_in_prompt == Some(true);
    let mut asked = prompt.clone();
    if let Some(schema) = schema.filter(|_| in_prompt) {
        let schema = provider_schema(schema);
        asked.push_str("\n\nAnswer with one JSON value that fits this JSON Schema, and with nothing else:\n");
        asked.push_str(&schema.to_string());
    }
    let mut request = ModelRequest {
        prompt: vec![PromptMessage::System { content: instructions.to_owned(), provider_options: None }, user(asked)],
        settings: judge.settings.clone().unwrap_or_default(),
        response_format: schema
            .filter(|_| !in_prompt)
            .map(|schema| ResponseFormat { schema: provider_schema(schema), name: "verdict".to_owned() }),
        ..ModelRequest::default()
    };
    let mut execution = JudgeExecution {
        status: "failed",
        prompt,
        output: Value::Null,
        judge_model_id: model.model_id().to_owned(),
        judge_provider: model.provider().to_owned(),
        usage: Usage::default(),
        attempt_count: 0,
        model_call_count: 0,
        duration_ms: 0,
        error: None,
    };
    let result = loop {
        execution.attempt_count += 1;
        let text = match call(model, &request, &mut execution).await {
            Ok(text) => text,
            Err(error) => break Err(format!("the judge's model failed: {error}")),
        };
        execution.output = Value::String(text.clone());
        let why = match schema {
            None if !text.trim().is_empty() => break Ok(Value::String(text.trim().to_owned())),
            None => "the answer is empty".to_owned(),
            Some(schema) => match read_structured(&text, schema) {
                Ok(value) => break Ok(value),
                Err(why) => why,
            },
        };
        if execution.attempt_count >= 2 {
            break Err(format!("the judge's answer cannot be used, and neither could its first: {why}"));
        }
        // One repair, which quotes what is wrong (SCO-006).
        if !text.is_empty() {
            let content = vec![AssistantPart::Text { text, provider_options: None }];
            request.prompt.push(PromptMessage::Assistant { content, provider_options: None });
        }
        request.prompt.push(user(format!("That answer cannot be used: {why}\nAnswer again, in the form asked for.")));
    };
    match &result {
        Ok(value) => {
            execution.status = "success";
            execution.output = value.clone();
        }
        Err(error) => execution.error = Some(error.clone()),
    }
    execution.duration_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
    (execution, result)
}

fn user(text: String) -> PromptMessage {
    let content = vec![UserPart::Text { text, provider_options: None }];
    PromptMessage::User { content, provider_options: None }
}

/// One answer, with retries of failures that may pass.
async fn call(
    model: &SharedModel,
    request: &ModelRequest,
    execution: &mut JudgeExecution,
) -> Result<String, ModelError> {
    let mut tries = 0;
    loop {
        execution.model_call_count += 1;
        let error = match collect(model, request.clone(), &mut execution.usage).await {
            Ok(text) => return Ok(text),
            Err(error) => error,
        };
        if !error.is_retryable() || tries >= RETRIES {
            return Err(error);
        }
        let backoff = Duration::from_secs(1 << tries);
        let wait = error.retry_after.map_or(backoff, |asked| asked.min(RETRY_AFTER_MAX));
        tries += 1;
        tracing::warn!(attempt = tries, ?wait, %error, "a judge's request failed; trying again");
        tokio::time::sleep(wait).await;
    }
}

async fn collect(model: &SharedModel, request: ModelRequest, usage: &mut Usage) -> Result<String, ModelError> {
    let mut events = model.stream(request).await?.events;
    let mut text = String::new();
    while let Some(event) = events.next().await {
        match event? {
            ModelEvent::TextDelta { text: delta, .. } => {
                text.push_str(&delta);
                if text.len() > ANSWER_MAX {
                    let message = format!("the judge's answer is longer than {ANSWER_MAX} bytes");
                    return Err(ModelError::new(ModelErrorKind::Protocol, message));
                }
            }
            ModelEvent::Finish { usage: step, .. } => {
                usage.add(&step);
                return Ok(text);
            }
            _ => {}
        }
    }
    Err(ModelError::new(ModelErrorKind::Truncated, "the judge's answer ended before it was complete"))
}

/// The schema of a `generateScore` judge.
pub(super) fn score_schema() -> Value {
    json!({
        "type": "object",
        "properties": { "score": { "type": "number" } },
        "required": ["score"],
        "additionalProperties": false,
    })
}
