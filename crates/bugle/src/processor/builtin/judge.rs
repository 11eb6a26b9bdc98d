//! Asks a model for a JSON verdict.

use std::time::Duration;

use futures::StreamExt;

use crate::{
    json::Value,
    model::{
        ModelError, ModelEvent, ModelRequest, ModelSettings, PromptMessage, ResponseFormat, SharedModel, UserPart,
    },
    tool::{Validator, repair_json},
};

/// A verdict takes at most so long.
const TIME_MAX: Duration = Duration::from_secs(60);

/// The model's answer as JSON that fits `schema`.
///
/// # Errors
/// What went wrong, for people.
pub(super) async fn ask(model: &SharedModel, system: &str, text: &str, schema: &Value) -> Result<Value, String> {
    let told =
        format!("{system}\nAnswer with one JSON value that fits this JSON Schema, and with nothing else:\n{schema}");
    let request = ModelRequest {
        prompt: vec![
            PromptMessage::System { content: told, provider_options: None },
            PromptMessage::User {
                content: vec![UserPart::Text { text: text.to_owned(), provider_options: None }],
                provider_options: None,
            },
        ],
        settings: ModelSettings { temperature: Some(0.0), ..ModelSettings::default() },
        response_format: Some(ResponseFormat { schema: schema.clone(), name: "verdict".to_owned() }),
        ..ModelRequest::default()
    };
    let answer = tokio::time::timeout(TIME_MAX, answer(model, request)).await;
    let answer = answer.map_err(|_| "the judge took too long".to_owned())?.map_err(|error| error.to_string())?;
    let value = json_in(&answer).ok_or_else(|| "the judge's answer is no JSON".to_owned())?;
    if let Some(validator) = Validator::compile(schema)
        && validator.check(&value).is_err()
    {
        return Err("the judge's answer does not fit its schema".to_owned());
    }
    Ok(value)
}

async fn answer(model: &SharedModel, request: ModelRequest) -> Result<String, ModelError> {
    let mut events = model.stream(request).await?.events;
    let mut text = String::new();
    while let Some(event) = events.next().await {
        if let ModelEvent::TextDelta { text: more, .. } = event? {
            text.push_str(&more);
        }
    }
    Ok(text)
}

/// The JSON in an answer: the whole of it, or what a fence or prose surrounds.
fn json_in(answer: &str) -> Option<Value> {
    if let Some(value) = repair_json(answer.trim()).filter(|value| value.is_object() || value.is_array()) {
        return Some(value);
    }
    let (start, end) = (answer.find('{')?, answer.rfind('}')?);
    repair_json(answer.get(start..=end)?)
}
