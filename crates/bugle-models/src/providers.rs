//! Names of models: which provider, where it is, which protocol it speaks, and where its key comes from (LOOP §17).

use std::{fmt, sync::Arc};

use async_trait::async_trait;
use bugle::model::{
    LanguageModel, ModelError, ModelErrorKind, ModelRequest, ModelResponse, ScriptedModel, SharedModel,
};

use crate::{ApiKey, ChatModel, MaxTokensField};

/// What a provider speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Protocol {
    /// OpenAI Chat Completions.
    Chat,
    /// OpenAI Responses. In this version these providers are served over Chat, which they offer as well.
    Responses,
    /// Anthropic Messages. Not in this version.
    Messages,
    /// Gemini generateContent. Not in this version.
    Gemini,
}

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Provider {
    /// What stands before the `/` in a model's name.
    pub id: &'static str,
    /// What it speaks.
    pub protocol: Protocol,
    /// Where it is, unless `<PROVIDER>_BASE_URL` says otherwise.
    pub base_url: &'static str,
    /// The variables its key may be in, the first that is set counts.
    pub key_variables: &'static [&'static str],
    /// It answers without a key, too.
    pub key_optional: bool,
}

const fn row(
    id: &'static str,
    protocol: Protocol,
    base_url: &'static str,
    key_variables: &'static [&'static str],
) -> Provider {
    Provider { id, protocol, base_url, key_variables, key_optional: false }
}

const fn local(id: &'static str, base_url: &'static str, key_variables: &'static [&'static str]) -> Provider {
    Provider { id, protocol: Protocol::Chat, base_url, key_variables, key_optional: true }
}

use Protocol::{Chat, Gemini, Messages, Responses};

const TABLE: &[Provider] = &[
    row("openai", Responses, "https://api.openai.com/v1", &["OPENAI_API_KEY"]),
    row("anthropic", Messages, "https://api.anthropic.com/v1", &["ANTHROPIC_API_KEY"]),
    row(
        "google",
        Gemini,
        "https://generativelanguage.googleapis.com/v1beta",
        &["GOOGLE_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY"],
    ),
    row("xai", Responses, "https://api.x.ai/v1", &["XAI_API_KEY"]),
    row("openrouter", Chat, "https://openrouter.ai/api/v1", &["OPENROUTER_API_KEY"]),
    row("groq", Chat, "https://api.groq.com/openai/v1", &["GROQ_API_KEY"]),
    row("mistral", Chat, "https://api.mistral.ai/v1", &["MISTRAL_API_KEY"]),
    row("deepseek", Chat, "https://api.deepseek.com", &["DEEPSEEK_API_KEY"]),
    row("togetherai", Chat, "https://api.together.xyz/v1", &["TOGETHER_API_KEY"]),
    row("cerebras", Chat, "https://api.cerebras.ai/v1", &["CEREBRAS_API_KEY"]),
    row("perplexity", Chat, "https://api.perplexity.ai", &["PERPLEXITY_API_KEY"]),
    row("deepinfra", Chat, "https://api.deepinfra.com/v1/openai", &["DEEPINFRA_API_KEY"]),
    row("fireworks-ai", Chat, "https://api.fireworks.ai/inference/v1", &["FIREWORKS_API_KEY"]),
    row("moonshotai", Messages, "https://api.moonshot.ai/anthropic/v1", &["MOONSHOT_API_KEY"]),
    row("minimax", Messages, "https://api.minimax.io/anthropic/v1", &["MINIMAX_API_KEY"]),
    row("zai", Chat, "https://api.z.ai/api/paas/v4", &["ZHIPU_API_KEY"]),
    row("nvidia", Chat, "https://integrate.api.nvidia.com/v1", &["NVIDIA_API_KEY"]),
    row("huggingface", Chat, "https://router.huggingface.co/v1", &["HF_TOKEN"]),
    row("vercel", Chat, "https://ai-gateway.vercel.sh/v1", &["AI_GATEWAY_API_KEY"]),
    local("lmstudio", "http://127.0.0.1:1234/v1", &["LMSTUDIO_API_KEY"]),
    row("ollama-cloud", Chat, "https://ollama.com/v1", &["OLLAMA_API_KEY"]),
    row("mastra", Chat, "https://gateway-api.mastra.ai/v1", &["MASTRA_GATEWAY_API_KEY"]),
    local("ollama", "http://127.0.0.1:11434/v1", &[]),
];

type Lookup = dyn Fn(&str) -> Option<String> + Send + Sync;

/// The providers, and where their keys and addresses come from.
#[derive(Clone)]
pub struct Providers {
    lookup: Arc<Lookup>,
}

impl fmt::Debug for Providers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Providers").finish_non_exhaustive()
    }
}

impl Providers {
    /// Keys and addresses come from `lookup`, which is given the name of a variable. An empty value counts as none.
    pub fn new(lookup: impl Fn(&str) -> Option<String> + Send + Sync + 'static) -> Self {
        Self { lookup: Arc::new(lookup) }
    }

    /// Keys and addresses come from the process's environment.
    pub fn from_env() -> Self {
        Self::new(|name| std::env::var(name).ok())
    }

    /// The known providers.
    pub fn table() -> &'static [Provider] {
        TABLE
    }

    fn get(&self, name: &str) -> Option<String> {
        (self.lookup)(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty())
    }
}

/// The model called `provider/model`, such as `groq/llama-3.3-70b-versatile` (LOOP-220).
///
/// `<PROVIDER>_BASE_URL` (dashes as underscores) replaces a provider's address (LOOP-223); with it, a provider that is
/// not in the table is reached over Chat, its key optional in `<PROVIDER>_API_KEY`. `scripted/scripted` is the
/// [`ScriptedModel`]. Without its key a model is given all the same, and each of its requests fails with an error that
/// names the variable and the model (LOOP-222).
///
/// # Errors
/// [`ModelErrorKind::Configuration`]: the name is no model's name, or the provider is unknown or needs a protocol that
/// this version does not have.
pub fn resolve(name: &str, providers: &Providers) -> Result<SharedModel, ModelError> {
    let wrong = |message: String| ModelError::new(ModelErrorKind::Configuration, message);
    let (id, model) =
        name.split_once('/').filter(|(id, model)| !id.is_empty() && !model.is_empty()).ok_or_else(|| {
            wrong(format!("{name:?} is no model; write provider/model, such as openai/gpt-4o-mini or ollama/qwen3"))
        })?;
    let prefix = prefix(id);
    let base_variable = format!("{prefix}_BASE_URL");
    let base_url = providers.get(&base_variable);
    if id == "scripted" && base_url.is_none() {
        return match model {
            "scripted" => Ok(Arc::new(ScriptedModel::new())),
            _ => Err(wrong(format!("{name:?} is unknown; the scripted model is scripted/scripted"))),
        };
    }
    if let Some(url) = &base_url
        && !["http://", "https://"].iter().any(|scheme| url.starts_with(scheme))
    {
        return Err(wrong(format!("{base_variable} is no http:// or https:// address")));
    }
    let Some(provider) = TABLE.iter().find(|provider| provider.id == id) else {
        let Some(base_url) = base_url else {
            let known: Vec<_> = TABLE.iter().map(|provider| provider.id).collect();
            let known = known.join(", ");
            return Err(wrong(format!(
                "the provider {id:?} of model {name:?} is unknown; known are {known}. \
                 Any server that speaks the OpenAI Chat protocol can be named with {base_variable}"
            )));
        };
        let key_variable = format!("{prefix}_API_KEY");
        let model = ChatModel::builder(base_url, model).provider(id).api_key_variable(&key_variable);
        let key = providers.get(&key_variable);
        return Ok(Arc::new(key.into_iter().fold(model, |model, key| model.api_key(ApiKey::new(key))).build()));
    };
    if matches!(provider.protocol, Messages | Gemini) {
        let protocol = if provider.protocol == Messages { "Anthropic Messages" } else { "Gemini" };
        return Err(wrong(format!(
            "{name:?} needs the {protocol} protocol, which is not in this version; \
             the same model may be reached through a gateway, such as openrouter/{id}/{model}"
        )));
    }
    let key = provider.key_variables.iter().find_map(|variable| Some((*variable, providers.get(variable)?)));
    // An own address may need no key.
    if key.is_none() && !provider.key_optional && base_url.is_none() {
        let variables = provider.key_variables.join(" or ");
        let message = format!("no API key for model {name:?}; set {variables}");
        return Ok(Arc::new(Unconfigured { provider: id.into(), model: model.into(), message }));
    }
    let base_url = base_url.unwrap_or_else(|| provider.base_url.to_owned());
    let mut builder = quirks(id, model, ChatModel::builder(base_url, model).provider(id));
    if let Some((variable, key)) = key {
        builder = builder.api_key(ApiKey::new(key)).api_key_variable(variable);
    } else if let Some(variable) = provider.key_variables.first() {
        builder = builder.api_key_variable(*variable);
    }
    Ok(Arc::new(builder.build()))
}

/// The start of a provider's variables.
fn prefix(id: &str) -> String {
    id.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

/// In what a provider differs from the others.
fn quirks(id: &str, model: &str, builder: crate::ChatModelBuilder) -> crate::ChatModelBuilder {
    match id {
        "openai" => {
            let reasons = ["o1", "o3", "o4", "gpt-5"].iter().any(|family| model.starts_with(family));
            let sampling = !reasons || model.starts_with("gpt-5-chat");
            // OpenAI's endpoint takes no reasoning back.
            let builder = builder.max_tokens_field(MaxTokensField::MaxCompletionTokens).replay_reasoning(false);
            builder.sampling(sampling)
        }
        "deepseek" => builder.structured_outputs(false),
        _ => builder,
    }
}

/// A model that cannot be asked for want of a key.
#[derive(Debug)]
struct Unconfigured {
    provider: String,
    model: String,
    message: String,
}

#[async_trait]
impl LanguageModel for Unconfigured {
    fn provider(&self) -> &str {
        &self.provider
    }

    fn model_id(&self) -> &str {
        &self.model
    }

    async fn stream(&self, _request: ModelRequest) -> Result<ModelResponse, ModelError> {
        Err(ModelError::new(ModelErrorKind::Configuration, self.message.clone()))
    }
}
