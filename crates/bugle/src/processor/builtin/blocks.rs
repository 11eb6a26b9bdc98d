//! What a stream hook sees of text and of reasoning: the blocks that deltas belong to. What is held of one block is kept
//! apart from what is held of others.

use crate::{
    chunk::{Chunk, ChunkBody, ChunkFrom, Payload},
    id::RunId,
};

/// A block of text or of reasoning.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    reasoning: bool,
    id: String,
}

impl Block {
    /// A delta of the block.
    pub(super) fn delta(&self, run_id: &RunId, text: String) -> Chunk {
        let id = self.id.clone();
        let payload = if self.reasoning {
            Payload::ReasoningDelta { id, text, provider_metadata: None }
        } else {
            Payload::TextDelta { id, text, provider_metadata: None }
        };
        let body = ChunkBody::Payload(payload);
        Chunk { run_id: Some(run_id.clone()), from: ChunkFrom::Agent, body, metadata: None }
    }
}

/// What a chunk says, and in which block.
pub(super) fn said(chunk: &Chunk) -> Option<(Block, &str)> {
    match chunk.payload()? {
        Payload::TextDelta { id, text, .. } => Some((Block { reasoning: false, id: id.clone() }, text)),
        Payload::ReasoningDelta { id, text, .. } => Some((Block { reasoning: true, id: id.clone() }, text)),
        _ => None,
    }
}

/// The block that a chunk ends.
pub(super) fn ended(chunk: &Chunk) -> Option<Block> {
    match chunk.payload()? {
        Payload::TextEnd { id, .. } => Some(Block { reasoning: false, id: id.clone() }),
        Payload::ReasoningEnd { id, .. } => Some(Block { reasoning: true, id: id.clone() }),
        _ => None,
    }
}

/// The end of a block that does not say any more what the provider said: what proves the provider's text is left out.
pub(super) fn unsigned(chunk: &mut Chunk) {
    if let ChunkBody::Payload(Payload::ReasoningEnd { provider_metadata, signature, .. }) = &mut chunk.body {
        *provider_metadata = None;
        *signature = None;
    }
}

/// What is kept for each block that is open.
#[derive(Debug)]
pub(super) struct Blocks<T>(Vec<(Block, T)>);

impl<T> Default for Blocks<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Blocks<T> {
    /// What is kept for the block, from now on if it is new.
    pub(super) fn of(&mut self, block: &Block, new: impl FnOnce() -> T) -> &mut T {
        let at = self.0.iter().position(|(known, _)| known == block).unwrap_or_else(|| {
            self.0.push((block.clone(), new()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }

    /// Takes what is kept for a block.
    pub(super) fn take(&mut self, block: &Block) -> Option<T> {
        let at = self.0.iter().position(|(known, _)| known == block)?;
        Some(self.0.remove(at).1)
    }

    /// Takes all, oldest first.
    pub(super) fn take_all(&mut self) -> Vec<(Block, T)> {
        std::mem::take(&mut self.0)
    }
}
