//! Merges text deltas, so that slow readers get fewer and longer ones (PROC §10).

use async_trait::async_trait;

use super::text_delta;
use crate::{
    chunk::{Chunk, Payload},
    processor::{Chunks, Context, Flush, Hook, HookSet, Outcome, Processor},
};

/// Merges deltas of one text block. What is merged leaves when enough has come, or before anything else does.
///
/// ```
/// use bugle::processor::builtin::BatchParts;
/// let batch = BatchParts::new(5);
/// ```
#[derive(Debug, Clone)]
pub struct BatchParts {
    size: usize,
}

#[derive(Debug, Default)]
struct Held {
    block: String,
    text: String,
    count: usize,
}

impl Default for BatchParts {
    fn default() -> Self {
        Self::new(5)
    }
}

impl BatchParts {
    /// Merges up to `size` deltas; at least one.
    pub fn new(size: usize) -> Self {
        Self { size: size.max(1) }
    }
}

fn release(cx: &mut Context<'_>, out: &mut Chunks) {
    let held = std::mem::take(cx.state::<Held>());
    if !held.text.is_empty() {
        out.push(text_delta(cx.run_id(), &held.block, held.text));
    }
}

#[async_trait]
impl Processor for BatchParts {
    fn id(&self) -> &'static str {
        "batch-parts"
    }

    fn hooks(&self) -> HookSet {
        HookSet::of(&[Hook::OutputStream])
    }

    async fn process_output_stream(&self, cx: &mut Context<'_>, chunk: Chunk, out: &mut Chunks) -> Outcome {
        let Some(Payload::TextDelta { id, text, .. }) = chunk.payload() else {
            release(cx, out);
            out.push(chunk);
            return Ok(());
        };
        if cx.state::<Held>().block != *id {
            release(cx, out);
        }
        let held = cx.state::<Held>();
        held.block.clone_from(id);
        held.text.push_str(text);
        held.count += 1;
        if held.count >= self.size {
            release(cx, out);
        }
        Ok(())
    }

    async fn flush_output_stream(&self, cx: &mut Context<'_>, _: Flush, out: &mut Chunks) -> Outcome {
        release(cx, out);
        Ok(())
    }
}
