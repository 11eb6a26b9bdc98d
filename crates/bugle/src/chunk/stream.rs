//! A chunk on a thread's stream: numbered, and encoded at most once.

use std::{fmt, str::FromStr, sync::OnceLock};

use bytes::Bytes;

use super::Chunk;

/// Where a chunk stands on its thread: the owner's epoch, and its number in that epoch (ruling 39, HTTP-243).
/// Ids compare in that order and never return.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventId {
    /// The epoch of the ownership under which the chunk was made.
    pub epoch: u64,
    /// Counts from 1 in each epoch.
    pub number: u64,
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.number)
    }
}

impl FromStr for EventId {
    type Err = ();
    fn from_str(text: &str) -> Result<Self, ()> {
        let (epoch, number) = text.split_once('-').ok_or(())?;
        let decimal = |text: &str| {
            if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().map_err(|_| ()) } else { Err(()) }
        };
        Ok(Self { epoch: decimal(epoch)?, number: decimal(number)? })
    }
}

/// A chunk on its thread's stream. Shared by the log and every subscriber behind an `Arc`.
#[derive(Debug)]
pub struct StreamChunk {
    /// Where it stands.
    pub id: EventId,
    /// What it says.
    pub chunk: Chunk,
    frame: OnceLock<Bytes>,
}

impl StreamChunk {
    /// Puts `chunk` at `id`.
    pub fn new(id: EventId, chunk: Chunk) -> Self {
        Self { id, chunk, frame: OnceLock::new() }
    }

    /// The server-sent event `data: <json>\n\n`, encoded on first use (HTTP-021). Empty for a chunk that cannot be
    /// encoded, which is logged once (HTTP §3).
    pub fn frame(&self) -> Bytes {
        self.frame.get_or_init(|| encode_frame(&self.chunk)).clone()
    }

    #[cfg(test)]
    pub(crate) fn is_encoded(&self) -> bool {
        self.frame.get().is_some()
    }

    /// Drops the encoded event. It is made again should anybody ask.
    pub(crate) fn forget_frame(&mut self) {
        self.frame.take();
    }

    /// The chunk's JSON, from the same bytes.
    pub fn json(&self) -> Bytes {
        let frame = self.frame();
        if frame.is_empty() { frame } else { frame.slice(6..frame.len() - 2) }
    }
}

/// Encodes one chunk as `data: <json>\n\n`; empty if it cannot be encoded.
pub fn encode_frame(chunk: &Chunk) -> Bytes {
    let mut out = Vec::with_capacity(160);
    out.extend_from_slice(b"data: ");
    match serde_json::to_writer(&mut out, chunk) {
        Ok(()) => {
            out.extend_from_slice(b"\n\n");
            Bytes::from(out)
        }
        Err(error) => {
            tracing::error!(kind = chunk.kind(), %error, "chunk cannot be encoded; skipped");
            Bytes::new()
        }
    }
}
