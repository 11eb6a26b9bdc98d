//! A live view of a thread, for one subscriber.

use std::{collections::VecDeque, sync::Arc};

use super::{
    ThreadRef,
    log::{Gap, Lag, Read, StreamLog, lagged},
};
use crate::{
    chunk::{Chunk, ChunkBody, DataChunk, Payload, StreamChunk},
    error::Error,
    id::RunId,
    runtime::{AbortOptions, Delivery, HideSignals, Replay, ReplayFrom, SubscribeOptions},
    signal::SignalType,
};

/// A subscriber further behind than this is told, and gets what it missed with adjacent deltas merged (SIG-508).
const LAG: Lag = Lag { chunks: 1024, bytes: 1024 * 1024 };
/// What is merged at once, at most; the rest follows with a notice of its own.
const CATCH_UP: usize = 8192;

/// A live view of a thread: all its runs, of any agent, one after the other. Dropping it unsubscribes; nothing else ends
/// it but the runtime's shutdown (SIG-322).
#[derive(Debug)]
pub struct Subscription {
    log: Arc<StreamLog>,
    thread: ThreadRef,
    cursor: u64,
    /// Chunks before this one are replay, which is no lag.
    caught_up_at: u64,
    ready: VecDeque<Delivery>,
    hidden: Hidden,
    last_run: Option<RunId>,
}

#[derive(Debug)]
enum Hidden {
    None,
    All,
    Types(Vec<SignalType>),
}

impl Subscription {
    pub(super) fn new(
        log: Arc<StreamLog>,
        thread: ThreadRef,
        options: &SubscribeOptions,
        last_event: Option<crate::chunk::EventId>,
    ) -> Self {
        let mut ready = VecDeque::new();
        let cursor = match options.replay {
            Replay::Current => log.current(),
            Replay::None => log.live(),
            Replay::After(from) => {
                let found = match from {
                    ReplayFrom::Event(id) => log.after(id, last_event),
                    ReplayFrom::Unknown => Err(log.unknown_gap()),
                };
                found.unwrap_or_else(|Gap { after, next, resume }| {
                    ready.push_back(Delivery::Gap { after, next });
                    resume
                })
            }
        };
        let hidden = match &options.hide_signals {
            HideSignals::None => Hidden::None,
            HideSignals::All => Hidden::All,
            HideSignals::Types(types) => {
                Hidden::Types(types.iter().filter_map(|name| SignalType::parse(name)).collect())
            }
        };
        Self { caught_up_at: log.live(), log, thread, cursor, ready, hidden, last_run: None }
    }

    /// The next chunk; `None` once the runtime has shut down. Cancel-safe.
    pub async fn next(&mut self) -> Option<Delivery> {
        let log = self.log.clone();
        log.changed(|| self.poll()).await
    }

    /// The next chunk if there is one now: lets a transport write many at once.
    pub fn try_next(&mut self) -> Option<Delivery> {
        self.poll().flatten()
    }

    /// The run that occupies the thread, as this process knows it (SIG-324).
    pub fn active_run_id(&self) -> Option<RunId> {
        self.thread.active_run_id()
    }

    /// Stops the thread's run; `true` iff one was asked to stop (SIG-300, SIG-301).
    ///
    /// # Errors
    /// [`Error::Internal`] if the runtime has shut down.
    pub async fn abort(&self, options: AbortOptions) -> Result<bool, Error> {
        self.thread.abort(options).await
    }

    fn poll(&mut self) -> Option<Option<Delivery>> {
        loop {
            if let Some(ready) = self.ready.pop_front() {
                return Some(Some(ready));
            }
            let read = if self.cursor < self.caught_up_at {
                Some(self.log.read(&mut self.cursor))
            } else {
                self.log.read_within(&mut self.cursor, LAG)
            };
            let Some(read) = read else {
                self.catch_up();
                continue;
            };
            match read {
                Read::Chunk(chunk) => {
                    if self.shows(&chunk.chunk) {
                        self.note_run(&chunk);
                        return Some(Some(Delivery::Chunk(chunk)));
                    }
                }
                Read::Lost(skipped) => self.tell_lag(skipped),
                Read::Nothing => return None,
                Read::Closed => return Some(None),
            }
        }
    }

    fn note_run(&mut self, chunk: &StreamChunk) {
        if chunk.chunk.run_id != self.last_run {
            self.last_run.clone_from(&chunk.chunk.run_id);
        }
    }

    /// Takes what is held at once, adjacent deltas of one block merged under the id of their last.
    fn catch_up(&mut self) {
        let mut merged: VecDeque<Arc<StreamChunk>> = VecDeque::new();
        // Deltas being merged, which belong after `merged`.
        let mut growing: Option<StreamChunk> = None;
        let mut skipped = 0;
        for _ in 0..CATCH_UP {
            let chunk = match self.log.read(&mut self.cursor) {
                Read::Chunk(chunk) => chunk,
                Read::Lost(lost) => {
                    skipped += lost;
                    continue;
                }
                Read::Nothing | Read::Closed => break,
            };
            if !self.shows(&chunk.chunk) {
                continue;
            }
            if let Some(grown) = &mut growing {
                if continues(&grown.chunk, &chunk.chunk) {
                    append(&mut grown.chunk, &chunk.chunk);
                    grown.id = chunk.id;
                    skipped += 1;
                    continue;
                }
                merged.extend(growing.take().map(Arc::new));
            }
            match merged.pop_back() {
                Some(last) if continues(&last.chunk, &chunk.chunk) => {
                    let mut both = last.chunk.clone();
                    append(&mut both, &chunk.chunk);
                    skipped += 1;
                    growing = Some(StreamChunk::new(chunk.id, both));
                }
                last => merged.extend(last.into_iter().chain([chunk])),
            }
        }
        merged.extend(growing.map(Arc::new));
        if let Some(first) = merged.front().and_then(|chunk| chunk.chunk.run_id.clone()) {
            self.last_run = Some(first);
        }
        self.tell_lag(skipped);
        self.ready.extend(merged.into_iter().map(Delivery::Chunk));
    }

    fn tell_lag(&mut self, skipped: u64) {
        let run_id = self.last_run.clone().unwrap_or_else(|| "unknown".into());
        let id = crate::chunk::EventId { epoch: 0, number: 0 };
        self.ready.push_back(Delivery::Chunk(Arc::new(StreamChunk::new(id, lagged(&run_id, skipped)))));
    }

    fn shows(&self, chunk: &Chunk) -> bool {
        let ChunkBody::Data(DataChunk { kind, data, .. }) = &chunk.body else { return true };
        if kind != "data-signal" && kind != "data-user-message" {
            return true;
        }
        let signal_type = data.get("type").and_then(|kind| kind.as_str()).and_then(SignalType::parse);
        match (&self.hidden, signal_type) {
            (Hidden::None, _) | (_, None) => true,
            (Hidden::All, Some(_)) => false,
            (Hidden::Types(types), Some(signal_type)) => !types.contains(&signal_type),
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.thread.unsubscribed();
    }
}

/// Whether these are deltas of one block.
fn continues(first: &Chunk, second: &Chunk) -> bool {
    first.run_id == second.run_id
        && match (first.payload(), second.payload()) {
            (Some(Payload::TextDelta { id: a, .. }), Some(Payload::TextDelta { id: b, .. }))
            | (Some(Payload::ReasoningDelta { id: a, .. }), Some(Payload::ReasoningDelta { id: b, .. })) => a == b,
            _ => false,
        }
}

/// Adds a delta that continues `first`; what else it says replaces what `first` said.
fn append(first: &mut Chunk, second: &Chunk) {
    if let (
        ChunkBody::Payload(
            Payload::TextDelta { text, provider_metadata, .. }
            | Payload::ReasoningDelta { text, provider_metadata, .. },
        ),
        Some(
            Payload::TextDelta { text: more, provider_metadata: newer, .. }
            | Payload::ReasoningDelta { text: more, provider_metadata: newer, .. },
        ),
    ) = (&mut first.body, second.payload())
    {
        text.push_str(more);
        provider_metadata.clone_from(newer);
        first.metadata.clone_from(&second.metadata);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(id: &str, text: &str) -> Chunk {
        let payload = Payload::TextDelta { id: id.into(), text: text.into(), provider_metadata: None };
        Chunk::agent(&"r".into(), payload)
    }

    #[test]
    fn sig_508_deltas_of_one_block_are_appended_and_those_of_others_are_not() {
        let (mut first, same, other) = (delta("t", "a"), delta("t", "b"), delta("u", "c"));
        assert!(continues(&first, &same) && !continues(&first, &other));
        let reasoning = Payload::ReasoningDelta { id: "t".into(), text: "b".into(), provider_metadata: None };
        assert!(!continues(&first, &Chunk::agent(&"r".into(), reasoning)));
        append(&mut first, &same);
        assert_eq!(first, delta("t", "ab"));
    }
}
