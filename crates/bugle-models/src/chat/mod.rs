//! The OpenAI Chat Completions protocol.

mod answer;
mod calls;
mod details;
mod request;
mod stream;
mod strict;
mod wire;

use std::fmt;

use async_trait::async_trait;
use bugle::{
    json::Object,
    model::{LanguageModel, ModelError, ModelErrorKind, ModelRequest, ModelResponse},
};
use reqwest::{
    Url,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
};

use crate::{
    http,
    secret::{ApiKey, Scrubber},
};

/// What the most tokens of an answer are called in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum MaxTokensField {
    /// `max_tokens`: what most servers know.
    #[default]
    MaxTokens,
    /// `max_completion_tokens`: what OpenAI asks for.
    MaxCompletionTokens,
}

/// A model behind an OpenAI-compatible Chat endpoint.
///
/// Streams always ask for usage and do without it where the server ignores that (LOOP-225). Without a key no
/// `Authorization` header is sent (LOOP-224).
#[derive(Clone)]
pub struct ChatModel {
    provider: String,
    model: String,
    base_url: String,
    key: Option<ApiKey>,
    key_variable: Option<String>,
    headers: Vec<(String, String)>,
    quirks: Quirks,
}

impl fmt::Debug for ChatModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Headers may hold keys: their names only.
        let headers: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("ChatModel")
            .field("provider", &self.provider)
            .field("model", &self.model)
            .field("base_url", &self.base_url())
            .field("key", &self.key)
            .field("headers", &headers)
            .field("quirks", &self.quirks)
            .finish_non_exhaustive()
    }
}

/// In what a provider differs from the others.
#[derive(Debug, Clone)]
struct Quirks {
    replay_reasoning: bool,
    max_tokens_field: MaxTokensField,
    structured_outputs: bool,
    sampling: bool,
}

/// Makes a [`ChatModel`].
#[derive(Debug, Clone)]
pub struct ChatModelBuilder {
    model: ChatModel,
}

impl ChatModel {
    /// A model named `model` at `<base_url>/chat/completions`. The provider is called `custom` until named.
    pub fn builder(base_url: impl Into<String>, model: impl Into<String>) -> ChatModelBuilder {
        let quirks = Quirks {
            replay_reasoning: true,
            max_tokens_field: MaxTokensField::default(),
            structured_outputs: true,
            sampling: true,
        };
        let model = ChatModel {
            provider: "custom".into(),
            model: model.into(),
            base_url: base_url.into().trim_end_matches('/').to_owned(),
            key: None,
            key_variable: None,
            headers: Vec::new(),
            quirks,
        };
        ChatModelBuilder { model }
    }

    /// Where requests go, without what must not be shown.
    pub fn base_url(&self) -> String {
        http::shown(&self.base_url)
    }

    /// What must not be shown of this model's requests: the key, and what the headers hold.
    fn scrubber(&self, request: &ModelRequest) -> Scrubber {
        let mut scrub = Scrubber::default();
        if let Some(key) = &self.key {
            scrub.hide(key.expose());
        }
        if let Some(password) = Url::parse(&self.base_url).ok().as_ref().and_then(Url::password) {
            scrub.hide(password);
        }
        let settings = request.settings.headers.iter().flatten();
        let settings = settings.filter_map(|(name, value)| Some((name.as_str(), value.as_str()?)));
        let own = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        for (name, value) in own.chain(settings) {
            let name = name.to_ascii_lowercase();
            if ["authorization", "key", "token", "secret", "cookie"].iter().any(|mark| name.contains(mark)) {
                scrub.hide(value.strip_prefix("Bearer ").unwrap_or(value).trim());
            }
        }
        scrub
    }

    /// The request's headers, later wins: of the request, of the model, of the settings (LOOP-043).
    fn headers(&self, request: &ModelRequest) -> Result<HeaderMap, ModelError> {
        let mut headers = HeaderMap::new();
        let mut set = |name: &str, value: &str| -> Result<(), ModelError> {
            let wrong = |what| {
                let message = format!("the {what} of header {name:?} for {} is not allowed in HTTP", self.provider);
                ModelError::new(ModelErrorKind::Configuration, message)
            };
            let parsed = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong("name"))?;
            let mut value = HeaderValue::from_str(value).map_err(|_| wrong("value"))?;
            value.set_sensitive(parsed == AUTHORIZATION);
            headers.insert(parsed, value);
            Ok(())
        };
        set(CONTENT_TYPE.as_str(), "application/json")?;
        set("accept", if request.streaming { "text/event-stream" } else { "application/json" })?;
        if let Some(key) = self.key.as_ref().map(ApiKey::expose).filter(|key| !key.is_empty()) {
            set(AUTHORIZATION.as_str(), &format!("Bearer {key}"))?;
        }
        for (name, value) in request.headers.iter().chain(&self.headers) {
            set(name, value)?;
        }
        for (name, value) in request.settings.headers.iter().flatten() {
            match value {
                serde_json::Value::String(value) => set(name, value)?,
                serde_json::Value::Null => {}
                other => set(name, &other.to_string())?,
            }
        }
        Ok(headers)
    }

    /// The options meant for this provider.
    fn options<'a>(&self, all: Option<&'a Object>) -> Option<&'a Object> {
        all?.get(&self.provider)?.as_object()
    }
}

impl ChatModelBuilder {
    /// The provider's id: what errors name, and the key of `providerOptions` meant for it.
    pub fn provider(mut self, provider: impl Into<String>) -> Self {
        self.model.provider = provider.into();
        self
    }

    /// The key, sent as a bearer token.
    pub fn api_key(mut self, key: impl Into<ApiKey>) -> Self {
        self.model.key = Some(key.into());
        self
    }

    /// The environment variable that the key came from: named by the error of a refused key.
    pub fn api_key_variable(mut self, variable: impl Into<String>) -> Self {
        self.model.key_variable = Some(variable.into());
        self
    }

    /// A header of every request. Names go out in lower case; a later one wins.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.model.headers.push((name.into(), value.into()));
        self
    }

    /// Whether a message that holds a call is sent back with the reasoning before it, as `reasoning_content`, which
    /// several reasoning models ask for (R37). Default: yes.
    pub fn replay_reasoning(mut self, replay: bool) -> Self {
        self.model.quirks.replay_reasoning = replay;
        self
    }

    /// What the limit of an answer is called. Default: `max_tokens`.
    pub fn max_tokens_field(mut self, field: MaxTokensField) -> Self {
        self.model.quirks.max_tokens_field = field;
        self
    }

    /// Whether the provider takes a JSON schema as response format. Default: yes; else it is asked for any JSON object.
    pub fn structured_outputs(mut self, takes: bool) -> Self {
        self.model.quirks.structured_outputs = takes;
        self
    }

    /// Whether the model takes temperature, top-p and penalties. Default: yes; else they are left out with a warning
    /// (LOOP-044).
    pub fn sampling(mut self, takes: bool) -> Self {
        self.model.quirks.sampling = takes;
        self
    }

    /// The model.
    pub fn build(self) -> ChatModel {
        self.model
    }
}

#[async_trait]
impl LanguageModel for ChatModel {
    fn provider(&self) -> &str {
        &self.provider
    }

    fn model_id(&self) -> &str {
        &self.model
    }

    async fn stream(&self, request: ModelRequest) -> Result<ModelResponse, ModelError> {
        let client = http::client()?;
        let scrub = self.scrubber(&request);
        let headers = self.headers(&request)?;
        let (body, warnings, strict) = request::body(self, &request)?;
        let (streaming, include_raw) = (request.streaming, request.include_raw);
        drop(request);
        let url = format!("{}/chat/completions", self.base_url);
        let sent = client.post(&url).headers(headers).body(body).send().await;
        let response = sent.map_err(|error| http::send_error(&error, &self.provider, &url, &scrub))?;
        if !response.status().is_success() {
            let variable = self.key_variable.as_deref();
            return Err(http::status_error(response, &self.provider, variable, &scrub).await);
        }
        let answer = answer::Answer::new(self.provider.clone(), include_raw, warnings, strict);
        let json = response.headers().get(CONTENT_TYPE).is_some_and(|kind| {
            kind.to_str().is_ok_and(|kind| kind.trim_start().to_ascii_lowercase().starts_with("application/json"))
        });
        // Some servers answer a request for a stream with the plain answer, or with an error under status 200.
        let events = if streaming && !json {
            stream::events(response, answer, scrub)
        } else {
            stream::whole(response, answer, scrub).await?
        };
        Ok(ModelResponse { events })
    }
}
