//! Chunks on their way out: past the stream hooks (PROC §4), into the log, to `onChunk`.

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;
use crate::{
    processor::{Chunks, Flush, Hook, Stop},
    run::response::as_event,
};

impl Driver {
    /// Whether a chunk that the machine shows passes the stream hooks first.
    pub(super) fn is_filtered(&self, chunk: &Chunk) -> bool {
        if !self.hooks.runner.has(Hook::OutputStream) || self.hooks.replayed {
            return false;
        }
        match &chunk.body {
            ChunkBody::Object(_) => true,
            ChunkBody::Payload(payload) => matches!(
                payload,
                Payload::StepStart { .. } | Payload::ToolResult(_) | Payload::ToolError { .. } | Payload::StepFinish(_)
            ),
            _ => false,
        }
    }

    /// Shows a chunk of the machine as the stream hooks pass it on. A `step-finish` is always shown, once.
    /// `false` = stopped.
    pub(super) async fn emit_filtered(&mut self, chunk: Chunk, events: &mut VecDeque<RunEvent>) -> Result<bool, Flow> {
        let kept = matches!(chunk.payload(), Some(Payload::StepFinish(_))).then(|| chunk.clone());
        let (outcome, _) = at_desk!(self, |runner, desk| runner.stream(desk, chunk));
        match (outcome, kept) {
            (Ok(Ok(_)) | Err(Cut::Aborted | Cut::TimedOut), Some(finish)) => self.emit(finish),
            (Ok(Ok(chunks)), None) => chunks.into_iter().for_each(|chunk| self.emit(chunk)),
            (Ok(Err(_)), Some(finish)) => self.emit(finish),
            (Ok(Err(stop)), None) => {
                events.push_front(Self::stopped(stop));
                return Ok(false);
            }
            (Err(cut), _) => events.extend(self.cut(cut)?),
        }
        Ok(true)
    }

    /// Passes a chunk of the response through the hooks; the machine hears of what was shown.
    /// `false` = stopped.
    pub(super) async fn filter(&mut self, chunk: Chunk, events: &mut VecDeque<RunEvent>) -> Result<bool, Flow> {
        let (outcome, _) = at_desk!(self, |runner, desk| runner.stream(desk, chunk));
        match outcome {
            Ok(Ok(chunks)) => self.pass(chunks, events),
            Ok(Err(stop)) => {
                events.push_back(Self::stopped(stop));
                return Ok(false);
            }
            Err(cut) => {
                events.extend(self.cut(cut)?);
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Tells the stream hooks of the error that ends the run; they cannot hold it back (PROC-063).
    pub(super) async fn tell_stream_hooks(&mut self, error: &ErrorInfo) {
        if self.hooks.runner.has(Hook::OutputStream) {
            let chunk = Chunk::agent(&self.shared.run_id, Payload::Error { error: error.clone() });
            let _ = at_desk!(self, |runner, desk| async {
                runner.tell_stream(desk, &chunk).await;
                Ok::<_, Stop>(())
            });
        }
    }

    /// Shows what a tool wrote as the stream hooks that want data pass it on (PROC-070).
    pub(super) async fn emit_written(
        &mut self,
        tool_call_id: &str,
        chunk: Chunk,
        events: &mut VecDeque<RunEvent>,
    ) -> Result<(), Flow> {
        let chunks = if self.hooks.runner.filters_data() {
            let (outcome, _) = at_desk!(self, |runner, desk| runner.stream(desk, chunk));
            match outcome {
                Ok(Ok(chunks)) => chunks,
                Ok(Err(stop)) => {
                    events.push_back(Self::stopped(stop));
                    return Ok(());
                }
                Err(cut) => {
                    events.extend(self.cut(cut)?);
                    return Ok(());
                }
            }
        } else {
            Chunks::from_iter([chunk])
        };
        for chunk in chunks {
            if let ChunkBody::Data(data) = &chunk.body
                && data.transient != Some(true)
            {
                self.machine.keep_data(tool_call_id, data);
            }
            self.emit(chunk);
        }
        Ok(())
    }

    /// Asks the hooks for what they hold, at the end of a response.
    pub(super) async fn flush_stream(&mut self, events: &mut VecDeque<RunEvent>) -> Result<(), Flow> {
        let (outcome, _) = at_desk!(self, |runner, desk| runner.flush(desk, Flush::Step));
        match outcome {
            Ok(Ok(chunks)) => {
                self.pass(chunks, events);
                events.push_back(RunEvent::StreamPassed);
            }
            Ok(Err(stop)) => events.push_back(Self::stopped(stop)),
            Err(cut) => events.extend(self.cut(cut)?),
        }
        Ok(())
    }

    /// Gives what hooks hold when the run is aborted; it counts as shown (PROC-072).
    pub(super) async fn flush_aborted(&mut self) -> Option<RunEvent> {
        if !self.hooks.runner.has(Hook::OutputStream) {
            return None;
        }
        let (outcome, _) = at_desk!(self, |runner, desk| runner.flush(desk, Flush::Abort));
        let chunks = outcome.ok()?.ok()?;
        if chunks.is_empty() {
            return None;
        }
        let mut events = VecDeque::new();
        self.pass(chunks, &mut events);
        events.pop_front()
    }

    pub(super) fn pass(&mut self, chunks: Chunks, events: &mut VecDeque<RunEvent>) {
        if chunks.is_empty() {
            return;
        }
        let heard = self.hooks.runner.has(Hook::LlmResponse);
        for chunk in &chunks {
            self.emit(chunk.clone());
            if heard {
                self.hooks.said.extend(chunk.payload().and_then(as_event));
            }
        }
        events.push_back(RunEvent::Passed(chunks.into_vec()));
    }

    pub(super) fn emit(&self, chunk: Chunk) {
        match &self.prepared.options.hooks.on_chunk {
            Some(hook) if is_hooked(&chunk) => {
                self.log.push(chunk.clone());
                guarded("onChunk", || hook(&chunk));
            }
            _ => self.log.push(chunk),
        }
    }
}

/// The chunks that `onChunk` gets (LOOP §13).
fn is_hooked(chunk: &Chunk) -> bool {
    matches!(
        chunk.payload(),
        Some(
            Payload::TextDelta { .. }
                | Payload::ReasoningDelta { .. }
                | Payload::Source(_)
                | Payload::ToolCall(_)
                | Payload::ToolCallInputStart { .. }
                | Payload::ToolCallInputEnd { .. }
                | Payload::ToolCallDelta { .. }
                | Payload::ToolResult(_)
                | Payload::Raw(_)
        )
    )
}
