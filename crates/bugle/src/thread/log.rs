//! The stream log of a thread: every chunk once, in order, shared by all who read it.
//!
//! Readers hold a cursor and copy nothing; one that is slow costs nothing and slows nobody. The log keeps the newest
//! [`LOG_BYTES`]; what a reader has lost by then it is told (SIG-507, SIG-508).

use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{
    chunk::{Chunk, EventId, Payload, StreamChunk, approximate_size},
    id::RunId,
    run::DirectChunk,
};

/// What a log holds at most, by the approximate size of its chunks.
const LOG_BYTES: usize = 8 * 1024 * 1024;
/// What is kept of runs that have ended, for those who reconnect: some five thousand short deltas.
const ENDED_BYTES: usize = 4 * 1024 * 1024;

/// A run that has one reader waits when this many of its chunks, or bytes, are unread (SUB-157).
const UNREAD_CHUNKS: usize = 1024;
const UNREAD_BYTES: usize = 1024 * 1024;

/// Who reads a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Readers {
    /// Anybody, from any place; the newest chunks are kept.
    #[default]
    Any,
    /// One reader: what it has read is gone, and who writes waits for it.
    One,
    /// Nobody: the newest chunk is kept.
    Nobody,
}

/// The log.
#[derive(Debug, Default)]
pub(crate) struct StreamLog {
    readers: Readers,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    epoch: u64,
    number: u64,
    entries: VecDeque<Entry>,
    bytes: usize,
    /// Bytes of all chunks there ever were.
    written: u64,
    /// The sequence number the next chunk gets; counts over epochs, private to this log.
    next: u64,
    active: Option<Active>,
    /// Chunks that are no part of the active run and wait for the end of its step (SIG-342).
    held: Vec<Chunk>,
    closed: bool,
    /// Where the newest epoch begins, and the last event of the one before, which was another log's.
    joint: Option<(EventId, u64)>,
}

#[derive(Debug)]
struct Entry {
    seq: u64,
    size: usize,
    /// Bytes of all chunks before it, those dropped included.
    offset: u64,
    chunk: Arc<StreamChunk>,
}

#[derive(Debug)]
struct Active {
    run_id: RunId,
    first: u64,
    /// It waits for a person: no step is under way.
    parked: bool,
}

impl State {
    fn front(&self) -> u64 {
        self.entries.front().map_or(self.next, |entry| entry.seq)
    }

    fn at(&self, seq: u64) -> Option<&Arc<StreamChunk>> {
        let index = usize::try_from(seq.checked_sub(self.front())?).ok()?;
        self.entries.get(index).map(|entry| &entry.chunk)
    }

    fn read(&self, cursor: &mut u64) -> Read {
        let front = self.front();
        if *cursor < front {
            let lost = front - *cursor;
            *cursor = front;
            return Read::Lost(lost);
        }
        match self.at(*cursor) {
            Some(chunk) => {
                *cursor += 1;
                Read::Chunk(chunk.clone())
            }
            None if self.closed => Read::Closed,
            None => Read::Nothing,
        }
    }

    fn behind(&self, cursor: u64) -> Lag {
        let index = usize::try_from(cursor.saturating_sub(self.front())).unwrap_or(usize::MAX);
        let offset = self.entries.get(index).map_or(self.written, |entry| entry.offset);
        Lag { chunks: self.next.saturating_sub(cursor), bytes: self.written - offset }
    }

    fn push(&mut self, chunk: Chunk) -> u64 {
        self.number += 1;
        let id = EventId { epoch: self.epoch, number: self.number };
        let size = size_of::<Entry>() + approximate_size(&chunk);
        let seq = self.next;
        self.next += 1;
        self.bytes += size;
        let offset = self.written;
        self.written += size as u64;
        self.entries.push_back(Entry { seq, size, offset, chunk: Arc::new(StreamChunk::new(id, chunk)) });
        self.trim();
        seq
    }

    fn show_held(&mut self) {
        for chunk in std::mem::take(&mut self.held) {
            self.push(chunk);
        }
    }

    /// Of a run that has ended the chunks stay, for those who reconnect; their frames, which few of them will ask for, are
    /// encoded again for the first who does.
    fn forget_frames(&mut self, first: u64) {
        let front = self.front();
        let from = usize::try_from(first.saturating_sub(front)).unwrap_or(usize::MAX).min(self.entries.len());
        for entry in self.entries.range_mut(from..) {
            // One that somebody is just reading keeps it.
            if let Some(chunk) = Arc::get_mut(&mut entry.chunk) {
                chunk.forget_frame();
            }
        }
    }

    /// Drops what its only reader has read.
    fn drop_before(&mut self, cursor: u64) {
        while let Some(front) = self.entries.pop_front_if(|front| front.seq < cursor) {
            self.bytes -= front.size;
        }
    }

    fn trim(&mut self) {
        let first_of_run = self.active.as_ref().map_or(u64::MAX, |active| active.first);
        // The newest stays however large it is: a run's last chunk is never lost.
        while self.entries.len() > 1
            && let Some(front) = self.entries.front()
        {
            let limit = if front.seq < first_of_run { ENDED_BYTES } else { LOG_BYTES };
            if self.bytes <= limit {
                break;
            }
            self.bytes -= front.size;
            self.entries.pop_front();
        }
    }
}

impl StreamLog {
    /// The log of a run that one reader passes on: it keeps nothing that was read, and [`Self::room`] waits for the
    /// reader (SUB-157).
    pub(crate) fn for_one_reader() -> Self {
        Self { readers: Readers::One, ..Self::default() }
    }

    /// The log of a run that nobody watches: it keeps the newest chunk only.
    pub(crate) fn for_nobody() -> Self {
        Self { readers: Readers::Nobody, ..Self::default() }
    }

    /// Returns once its only reader is not too far behind; at once if it has no such reader. Cancel-safe.
    pub(crate) async fn room(&self) {
        if self.readers != Readers::One {
            return;
        }
        self.changed(|| {
            let state = self.state.lock();
            let has_room = state.entries.len() < UNREAD_CHUNKS && state.bytes < UNREAD_BYTES;
            (has_room || state.closed).then_some(())
        })
        .await;
    }

    /// A new owner's epoch begins; chunk numbers start anew in it. `last` is the last event before it, if nothing came
    /// after that.
    pub(crate) fn begin_epoch(&self, epoch: u64, last: Option<EventId>) {
        let mut state = self.state.lock();
        if epoch > state.epoch {
            state.epoch = epoch;
            state.number = 0;
            state.joint = last.map(|last| (last, state.next));
        }
    }

    /// A run begins; those who subscribe from now on get it from here.
    pub(crate) fn begin_run(&self, run_id: &RunId) {
        let mut state = self.state.lock();
        // One that was parked here is read from its first chunk on (SIG-330).
        let known = state.active.as_ref().filter(|active| active.run_id == *run_id).map(|active| active.first);
        let first = known.unwrap_or(state.next);
        state.active = Some(Active { run_id: run_id.clone(), first, parked: false });
    }

    /// Adds a chunk.
    pub(crate) fn push(&self, chunk: Chunk) {
        let mut state = self.state.lock();
        let ends_step = matches!(chunk.payload(), Some(Payload::StepFinish(_)));
        let seq = state.push(chunk);
        if self.readers == Readers::Nobody {
            state.drop_before(seq);
        }
        if ends_step {
            state.show_held();
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Adds chunks that nobody may see apart and that are no part of the active run: at once, or after its current
    /// step (SIG-342).
    pub(crate) fn push_between_steps(&self, chunks: impl IntoIterator<Item = Chunk>) {
        let mut state = self.state.lock();
        state.held.extend(chunks);
        if state.active.as_ref().is_none_or(|active| active.parked) {
            state.show_held();
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Ends a run: its last shared chunk, and what its direct reader gets.
    pub(crate) fn end_run(&self, run: &RunShared, last: Option<Chunk>, end: DirectEnd) {
        let mut state = self.state.lock();
        let last_seq = match last {
            Some(chunk) => state.push(chunk),
            None => state.next.saturating_sub(1),
        };
        let first = run.end.set(End { last_seq, direct: end });
        debug_assert!(first.is_ok(), "a run ends once");
        if let Some(active) = state.active.take_if(|active| active.run_id == run.run_id) {
            state.forget_frames(active.first);
            state.show_held();
        }
        state.trim();
        drop(state);
        self.changed.notify_waiters();
    }

    /// A run waits for a person: its last chunk for now. Those who subscribe still get it from its first.
    pub(crate) fn park_run(&self, run: &RunShared, last: Option<Chunk>) {
        let mut state = self.state.lock();
        let last_seq = match last {
            Some(chunk) => state.push(chunk),
            None => state.next.saturating_sub(1),
        };
        let first = run.end.set(End { last_seq, direct: DirectEnd::default() });
        debug_assert!(first.is_ok(), "a run ends once");
        if let Some(active) = state.active.as_mut().filter(|active| active.run_id == run.run_id) {
            active.parked = true;
        }
        state.show_held();
        state.trim();
        drop(state);
        self.changed.notify_waiters();
    }

    /// A parked run keeps its thread no more.
    pub(crate) fn forget_parked(&self, run_id: &RunId) {
        let mut state = self.state.lock();
        if state.active.as_ref().is_some_and(|active| active.parked && active.run_id == *run_id) {
            state.active = None;
            state.trim();
        }
    }

    /// Drops what has ended, but for the newest chunk, by which a reconnecting reader sees that it has missed nothing.
    pub(crate) fn forget_ended(&self) {
        let mut state = self.state.lock();
        if state.active.is_some() {
            return;
        }
        while state.entries.len() > 1 {
            if let Some(old) = state.entries.pop_front() {
                state.bytes -= old.size;
            }
        }
        state.entries.shrink_to_fit();
    }

    /// The id of the last chunk, as it is stored with a run's end.
    pub(crate) fn last_number(&self) -> u64 {
        self.state.lock().number
    }

    /// No chunk follows; readers end.
    pub(crate) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_waiters();
    }

    /// Where a new reader of the active run starts: its first chunk, else the live end.
    pub(crate) fn current(&self) -> u64 {
        let state = self.state.lock();
        state.active.as_ref().map_or(state.next, |active| active.first)
    }

    /// The live end.
    pub(crate) fn live(&self) -> u64 {
        self.state.lock().next
    }

    /// Where a reader that has seen everything up to `id` goes on, or the gap (HTTP-243, HTTP-244). `last` is the
    /// thread's last event as stored, for a log that holds nothing.
    pub(crate) fn after(&self, id: EventId, last: Option<EventId>) -> Result<u64, Gap> {
        let state = self.state.lock();
        let newest = state.entries.back().map(|entry| entry.chunk.id);
        let gap = |after| {
            let next = state.entries.front().map(|entry| entry.chunk.id);
            Err(Gap { after, next, resume: state.front() })
        };
        let Some(newest) = newest else {
            return if last == Some(id) {
                Ok(state.next)
            } else {
                gap(last.is_some_and(|last| id < last).then_some(id))
            };
        };
        if id == newest || last == Some(id) {
            let index = state.entries.partition_point(|entry| entry.chunk.id <= id);
            return Ok(state.front() + index as u64);
        }
        if id > newest {
            return gap(None);
        }
        // The last one before this epoch: nothing was missed although this log has never held it (HTTP-243).
        if let Some((_, seq)) = state.joint.filter(|(last, seq)| *last == id && *seq >= state.front()) {
            return Ok(seq);
        }
        let index = state.entries.partition_point(|entry| entry.chunk.id <= id);
        let follows = state.entries.get(index).is_some_and(|entry| {
            let next = entry.chunk.id;
            // Held before it, or exactly the one after it.
            index > 0 && state.entries[index - 1].chunk.id == id
                || next.epoch == id.epoch && next.number == id.number + 1
        });
        if follows { Ok(state.front() + index as u64) } else { gap(Some(id)) }
    }

    /// The gap of a reader whose last id is none of this thread's.
    pub(crate) fn unknown_gap(&self) -> Gap {
        let state = self.state.lock();
        Gap { after: None, next: state.entries.front().map(|entry| entry.chunk.id), resume: state.front() }
    }

    /// The chunk at `cursor`, which moves on. `Lost` tells how many were dropped before it could be read.
    pub(crate) fn read(&self, cursor: &mut u64) -> Read {
        let mut state = self.state.lock();
        let read = state.read(cursor);
        // A look that finds nothing wakes nobody, least of all itself.
        if self.readers == Readers::One && state.front() < *cursor {
            state.drop_before(*cursor);
            drop(state);
            self.changed.notify_waiters();
        }
        read
    }

    /// The same for a reader that may lag behind by so much; `None` if it lags further.
    pub(crate) fn read_within(&self, cursor: &mut u64, limit: Lag) -> Option<Read> {
        let state = self.state.lock();
        let behind = state.behind(*cursor);
        // One chunk by itself is no lag, however large.
        let lags = behind.chunks > limit.chunks || (behind.chunks > 1 && behind.bytes > limit.bytes);
        (!lags).then(|| state.read(cursor))
    }

    /// Waits for a change after `probe` found nothing.
    pub(crate) async fn changed<T>(&self, mut probe: impl FnMut() -> Option<T>) -> T {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(found) = probe() {
                return found;
            }
            changed.await;
        }
    }
}

/// How far a cursor is behind.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lag {
    pub(crate) chunks: u64,
    pub(crate) bytes: u64,
}

/// What a cursor finds.
#[derive(Debug)]
pub(crate) enum Read {
    Chunk(Arc<StreamChunk>),
    Lost(u64),
    Nothing,
    Closed,
}

/// Chunks that a reconnecting reader has missed for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gap {
    pub(crate) after: Option<EventId>,
    pub(crate) next: Option<EventId>,
    /// The cursor to go on from.
    pub(crate) resume: u64,
}

/// What a run and its callers share.
#[derive(Debug)]
pub(crate) struct RunShared {
    pub(crate) run_id: RunId,
    /// Fires to stop the run.
    pub(crate) abort: CancellationToken,
    rollback: AtomicBool,
    fenced: AtomicBool,
    /// The ids of its calls that wait for a person, or will again.
    waiting: Mutex<Vec<String>>,
    /// Told of a stop while the run waits for its turn.
    waits_at: OnceLock<Arc<Notify>>,
    end: OnceLock<End>,
}

impl RunShared {
    pub(crate) fn new(run_id: RunId) -> Arc<Self> {
        Self::stopped_by(run_id, CancellationToken::new())
    }

    /// A run that stops with the one above it.
    pub(crate) fn under(run_id: RunId, parent: &CancellationToken) -> Arc<Self> {
        Self::stopped_by(run_id, parent.child_token())
    }

    fn stopped_by(run_id: RunId, abort: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            run_id,
            abort,
            rollback: AtomicBool::new(false),
            fenced: AtomicBool::new(false),
            waiting: Mutex::default(),
            waits_at: OnceLock::new(),
            end: OnceLock::new(),
        })
    }

    /// Asks the run to stop; with `rollback`, to remove what it stored (ruling 24).
    pub(crate) fn stop(&self, rollback: bool) {
        if rollback {
            self.rollback.store(true, Ordering::Release);
        }
        self.abort.cancel();
        if let Some(thread) = self.waits_at.get() {
            thread.notify_one();
        }
    }

    /// The run waits for its turn on a thread, which is told if it is stopped before that.
    pub(crate) fn wait_at(&self, thread: Arc<Notify>) {
        let thread = self.waits_at.get_or_init(|| thread);
        if self.abort.is_cancelled() {
            thread.notify_one();
        }
    }

    /// These calls of it wait for a person.
    pub(crate) fn set_waiting(&self, ids: Vec<String>) {
        *self.waiting.lock() = ids;
    }

    /// Whether a decision about this call, or about any, has something to decide.
    pub(crate) fn is_waiting_for(&self, tool_call_id: Option<&str>) -> bool {
        let waiting = self.waiting.lock();
        tool_call_id.map_or(!waiting.is_empty(), |id| waiting.iter().any(|known| known == id))
    }

    pub(crate) fn is_rollback(&self) -> bool {
        self.rollback.load(Ordering::Acquire)
    }

    /// The thread is not ours any more: the run stops and publishes nothing (ruling 4).
    pub(crate) fn fence(&self) {
        self.fenced.store(true, Ordering::Release);
        self.abort.cancel();
    }

    pub(crate) fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::Acquire)
    }

    /// Whether its last chunk is out.
    pub(crate) fn has_ended(&self) -> bool {
        self.end.get().is_some()
    }
}

#[derive(Debug)]
struct End {
    last_seq: u64,
    direct: DirectEnd,
}

/// How a direct response ends, where it differs from what subscribers see (HTTP-067, HTTP-068).
#[derive(Debug, Default)]
pub(crate) struct DirectEnd {
    /// The last shared chunk is replaced.
    pub(crate) replaces_last: bool,
    /// What follows it.
    pub(crate) chunks: Vec<Chunk>,
}

/// Reads the chunks of one run.
#[derive(Debug)]
pub struct LogReader {
    log: Arc<StreamLog>,
    run: Arc<RunShared>,
    cursor: u64,
    tail: usize,
    finished: bool,
}

impl LogReader {
    pub(crate) fn new(log: Arc<StreamLog>, run: Arc<RunShared>, cursor: u64) -> Self {
        Self { log, run, cursor, tail: 0, finished: false }
    }

    /// The next chunk of the run; `None` after the last. Cancel-safe.
    pub(crate) async fn next_direct(&mut self) -> Option<DirectChunk> {
        if self.finished {
            return None;
        }
        let log = self.log.clone();
        log.changed(|| self.poll()).await
    }

    /// The next chunk if there is one now.
    pub(crate) fn try_next_direct(&mut self) -> Option<DirectChunk> {
        if self.finished { None } else { self.poll().flatten() }
    }

    fn poll(&mut self) -> Option<Option<DirectChunk>> {
        loop {
            if let Some(end) = self.run.end.get()
                && self.cursor > end.last_seq
            {
                let own = end.direct.chunks.get(self.tail).cloned();
                self.tail += 1;
                self.finished = own.is_none();
                return Some(own.map(|chunk| DirectChunk::Own(Box::new(chunk))));
            }
            let seq = self.cursor;
            match self.log.read(&mut self.cursor) {
                Read::Chunk(chunk) if chunk.chunk.run_id.as_ref() == Some(&self.run.run_id) => {
                    let replaced =
                        self.run.end.get().is_some_and(|end| end.last_seq == seq && end.direct.replaces_last);
                    if !replaced {
                        return Some(Some(DirectChunk::Shared(chunk)));
                    }
                }
                Read::Chunk(_) => {}
                Read::Lost(skipped) => {
                    let notice = lagged(&self.run.run_id, skipped);
                    return Some(Some(DirectChunk::Own(Box::new(notice))));
                }
                Read::Nothing => return None,
                Read::Closed => {
                    self.finished = true;
                    return Some(None);
                }
            }
        }
    }
}

/// Tells a reader that it has missed chunks (SIG-508).
pub(crate) fn lagged(run_id: &RunId, skipped: u64) -> Chunk {
    let data = serde_json::json!({ "runId": run_id, "skipped": skipped });
    Chunk::transient_data(run_id, "data-subscription-lagged", data)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        chunk::{ChunkBody, ErrorInfo, ToolCallPayload},
        json::json,
    };

    fn delta(run: &RunId, text: &str) -> Chunk {
        Chunk::agent(run, Payload::TextDelta { id: "t".into(), text: text.into(), provider_metadata: None })
    }

    #[tokio::test]
    async fn sub_157_what_the_only_reader_has_read_is_gone_and_the_writer_waits_for_it() {
        use futures::FutureExt as _;
        let (log, run) = (Arc::new(StreamLog::for_one_reader()), RunId::from("r"));
        let mut reader = LogReader::new(log.clone(), RunShared::new(run.clone()), 0);
        for _ in 0..UNREAD_CHUNKS {
            assert!(log.room().now_or_never().is_some());
            log.push(delta(&run, "x"));
        }
        assert!(log.room().now_or_never().is_none(), "the reader is that far behind");
        let mut waiting = Box::pin(log.room());
        assert!(waiting.as_mut().now_or_never().is_none());
        let first = reader.try_next_direct().unwrap();
        waiting.await;
        let DirectChunk::Shared(shared) = &first else { panic!("{first:?}") };
        assert_eq!(Arc::strong_count(shared), 1, "nobody else has it, so passing it on copies nothing");
        while reader.try_next_direct().is_some() {}
        let state = log.state.lock();
        assert_eq!((state.entries.len(), state.bytes), (0, 0));
        drop(state);
        // Large chunks count by their bytes.
        let long = "x".repeat(300 * 1024);
        for _ in 0..4 {
            log.push(delta(&run, &long));
        }
        assert!(log.room().now_or_never().is_none());
        assert!(StreamLog::default().room().now_or_never().is_some(), "subscribers slow nobody");
    }

    #[test]
    fn ruling_21_a_run_that_has_ended_is_replayed_byte_for_byte_without_its_frames_being_kept() {
        let (log, run) = (StreamLog::default(), RunId::from("r"));
        log.begin_epoch(3, None);
        log.begin_run(&run);
        for number in 0..50 {
            log.push(delta(&run, &format!("word {number} ")));
        }
        let read = |mut cursor: u64| {
            let mut frames = Vec::new();
            while let Read::Chunk(chunk) = log.read(&mut cursor) {
                frames.push((chunk.id, chunk.frame()));
            }
            frames
        };
        let live = read(0);
        log.end_run(&RunShared::new(run), None, DirectEnd::default());
        let kept = |state: &State| state.entries.iter().filter(|entry| entry.chunk.is_encoded()).count();
        assert_eq!(kept(&log.state.lock()), 0);
        let from = log.after(live[9].0, None).unwrap();
        assert_eq!(read(from), live[10..], "by event id, nothing more and nothing less");
    }

    #[test]
    fn sub_157_a_run_that_nobody_watches_keeps_its_newest_chunk_only() {
        let (log, run) = (StreamLog::for_nobody(), RunId::from("r"));
        for _ in 0..100 {
            log.push(delta(&run, "x"));
        }
        let state = log.state.lock();
        assert_eq!((state.entries.len(), state.number), (1, 100));
    }

    fn held(chunks: impl IntoIterator<Item = ChunkBody>) -> (usize, usize) {
        let log = StreamLog::default();
        let run = RunId::from("r");
        log.begin_run(&run);
        for body in chunks {
            log.push(Chunk::with_body(&run, body));
        }
        let state = log.state.lock();
        let frames = state.entries.iter().map(|entry| entry.chunk.frame().len()).sum();
        (state.entries.len(), frames)
    }

    #[test]
    fn http_243_the_last_event_of_an_earlier_owner_is_no_gap_when_a_new_run_has_begun() {
        let id = |epoch, number| EventId { epoch, number };
        let run = RunId::from("r");
        let log = StreamLog::default();
        log.begin_epoch(2, Some(id(1, 41)));
        log.begin_run(&run);
        for _ in 0..3 {
            log.push(Chunk::with_body(&run, ChunkBody::AbortNotice));
        }
        assert_eq!(log.after(id(1, 41), Some(id(1, 41))), Ok(0), "from the first chunk of the new epoch");
        assert_eq!(log.after(id(2, 2), None), Ok(2));
        assert!(log.after(id(1, 40), None).is_err(), "something was missed");
        // A lease that was given up and taken again goes on counting.
        log.begin_epoch(2, None);
        log.push(Chunk::with_body(&run, ChunkBody::AbortNotice));
        assert_eq!(log.last_number(), 4);
    }

    #[test]
    fn sig_337_sig_507_the_log_is_bounded_whatever_its_chunks_are() {
        let text = "x".repeat(64 * 1024);
        let value = json!({ "text": text, "numbers": vec![1; 1000] });
        let call = |args| ToolCallPayload {
            tool_call_id: "c".into(),
            tool_name: "t".into(),
            args,
            provider_executed: None,
            provider_metadata: None,
        };
        let error = ErrorInfo::new("Error", text.clone());
        let tool_error = Payload::ToolError {
            tool_call_id: "c".into(),
            tool_name: "t".into(),
            args: None,
            error: error.clone(),
            provider_executed: None,
        };
        let ended = crate::run::aborted_direct(&RunId::from("r")).pop().unwrap();
        let Some(Payload::Finish(finish)) = ended.payload() else { panic!("no finish") };
        let mut finish = finish.clone();
        finish.output.tool_calls = vec![value.clone()];
        let mut with_object = finish.clone();
        with_object.output = crate::chunk::StepOutput { object: Some(value.clone()), ..Default::default() };
        for body in [
            ChunkBody::Object(value.clone()),
            ChunkBody::ObjectResult(value.clone()),
            ChunkBody::Payload(Payload::Raw(value.clone())),
            ChunkBody::Payload(Payload::ToolCall(call(value.clone()))),
            ChunkBody::Payload(Payload::Error { error }),
            ChunkBody::Payload(tool_error),
            ChunkBody::Payload(Payload::StepFinish(finish)),
            ChunkBody::Payload(Payload::Finish(with_object)),
            ChunkBody::Unknown { kind: "new".into(), payload: Some(value) },
        ] {
            let kind = Chunk::with_body(&RunId::from("r"), body.clone()).kind().to_owned();
            let (count, frames) = held(std::iter::repeat_n(body, 300));
            assert!(count > 20 && count < 100, "{kind}: {count}");
            assert!(frames <= LOG_BYTES / 2, "{kind}: {frames}");
        }
    }
}
