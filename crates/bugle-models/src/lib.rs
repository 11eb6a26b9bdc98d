//! Model providers for Bugle.
//!
//! [`ChatModel`] speaks the OpenAI Chat Completions protocol, which most providers and local servers offer.
//! [`resolve`] turns a name such as `groq/llama-3.3-70b-versatile` into a model, with the address and the key variable of
//! the provider (LOOP §17).
//!
//! In this version `openai` and `xai` are served over their Chat endpoints, too; the Responses, Anthropic Messages and
//! Gemini protocols are not there yet, and a name that needs one is refused with an error that says so.
//!
//! ```
//! use bugle::model::LanguageModel;
//! use bugle_models::ChatModel;
//!
//! let model = ChatModel::builder("http://127.0.0.1:11434/v1", "qwen3").provider("ollama").build();
//! assert_eq!(model.provider(), "ollama");
//! ```
//!
//! Adapters neither retry nor fall back, and know no time limit but that of connecting (10 s): the run does all that.
//! Dropping an answer's stream closes the connection.

mod chat;
mod http;
mod providers;
mod secret;
mod sse;

pub use chat::{ChatModel, ChatModelBuilder, MaxTokensField};
pub use providers::{Protocol, Provider, Providers, resolve};
pub use secret::ApiKey;
