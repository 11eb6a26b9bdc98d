//! The processors that ship with Bugle, one file each (PROC §10). By name: [`super::catalog`].

mod agents_md;
mod batch_parts;
mod blocks;
mod classifier;
mod cost;
mod judge;
mod lexical;
mod memory;
mod model_selection;
mod prefill;
mod prefix;
mod redact;
mod regex_filter;
mod response_cache;
mod retry;
mod scrubber;
mod shown;
mod structured;
mod token_limiter;
mod tokens;
mod tool_call_filter;
mod trailing;
mod unicode;

pub use agents_md::{AgentsMd, InstructionReader, LocalReader};
pub use batch_parts::BatchParts;
pub use classifier::{Category, Classifier, Preset, Strategy};
pub use cost::{CostScope, TokenCostControl};
pub use memory::{MemoryInputFilter, MessageHistory, WorkingMemory};
pub use model_selection::ModelSelection;
pub use prefill::PrefillErrorHandler;
pub use redact::{Redactor, Rule};
pub use regex_filter::{OnMatch, RegexFilter, preset, preset_names};
pub use response_cache::ResponseCache;
pub use retry::StreamErrorRetry;
pub use scrubber::SystemPromptScrubber;
pub use structured::StructuredOutputProcessor;
pub use token_limiter::{OnOutputLimit, TokenLimiter, Trim};
pub use tokens::estimate_tokens;
pub use tool_call_filter::ToolCallFilter;
pub use trailing::TrailingAssistantGuard;
pub use unicode::UnicodeNormaliser;

use crate::{
    chunk::{Chunk, ChunkBody, ChunkFrom, Payload},
    id::RunId,
};

/// A text delta in the place of `like`.
fn text_delta(run_id: &RunId, id: &str, text: String) -> Chunk {
    let payload = Payload::TextDelta { id: id.to_owned(), text, provider_metadata: None };
    Chunk { run_id: Some(run_id.clone()), from: ChunkFrom::Agent, body: ChunkBody::Payload(payload), metadata: None }
}
