//! A live view of a thread, for one subscriber.

use std::{collections::VecDeque, sync::Arc};

use super::{
    ThreadRef,
    log::{Gap, Read, StreamLog, lagged},
};
use crate::{
    chunk::{Chunk, ChunkBody, DataChunk, Payload, StreamChunk},
    error::Error,
    id::RunId,
    runtime::{AbortOptions, Delivery, HideSignals, Replay, ReplayFrom, SubscribeOptions},
    signal::SignalType,
};

/// A subscriber further behind than this is told, and gets what it missed with adjacent deltas merged (SIG-508).
const LAG_CHUNKS: u64 = 1024;
/// The same in bytes.
const LAG_BYTES: u64 = 1024 * 1024;

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
            if self.cursor >= self.caught_up_at && self.lags() {
                self.catch_up();
                continue;
            }
            match self.log.read(&mut self.cursor) {
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

    fn lags(&self) -> bool {
        let (chunks, bytes) = self.log.behind(self.cursor);
        // One chunk by itself is no lag, however large.
        chunks > LAG_CHUNKS || (chunks > 1 && bytes > LAG_BYTES)
    }

    fn note_run(&mut self, chunk: &StreamChunk) {
        if chunk.chunk.run_id != self.last_run {
            self.last_run.clone_from(&chunk.chunk.run_id);
        }
    }

    /// Takes all that is held at once, adjacent deltas of one block merged under the id of their last.
    fn catch_up(&mut self) {
        let mut merged: VecDeque<Arc<StreamChunk>> = VecDeque::new();
        let mut skipped = 0;
        loop {
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
            match merged.back().and_then(|last| merge(&last.chunk, &chunk.chunk)) {
                Some(both) => {
                    skipped += 1;
                    merged.pop_back();
                    merged.push_back(Arc::new(StreamChunk::new(chunk.id, both)));
                }
                None => merged.push_back(chunk),
            }
        }
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

/// Two deltas of one block as one.
fn merge(first: &Chunk, second: &Chunk) -> Option<Chunk> {
    if first.run_id != second.run_id {
        return None;
    }
    let payload = match (first.payload()?, second.payload()?) {
        (Payload::TextDelta { id: a, text, .. }, Payload::TextDelta { id: b, text: more, provider_metadata })
            if a == b =>
        {
            Payload::TextDelta {
                id: b.clone(),
                text: format!("{text}{more}"),
                provider_metadata: provider_metadata.clone(),
            }
        }
        (
            Payload::ReasoningDelta { id: a, text, .. },
            Payload::ReasoningDelta { id: b, text: more, provider_metadata },
        ) if a == b => Payload::ReasoningDelta {
            id: b.clone(),
            text: format!("{text}{more}"),
            provider_metadata: provider_metadata.clone(),
        },
        _ => return None,
    };
    Some(Chunk { body: ChunkBody::Payload(payload), ..second.clone() })
}
