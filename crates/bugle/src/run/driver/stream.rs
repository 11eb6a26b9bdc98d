//! Chunks on their way out: past the stream hooks (PROC §4), into the log, to `onChunk`.

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;
use std::pin::pin;

use crate::{
    processor::{Flush, Hook},
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
        let mut at = self.at_desk();
        let outcome = at.watch.wait(at.runner.stream(&mut at.desk, chunk)).await;
        match (outcome, kept) {
            (Ok(_) | Err(Cut::Aborted | Cut::TimedOut), Some(finish)) => self.emit(finish),
            (Ok(Ok(())), None) => {
                while let Some(chunk) = self.hooks.runner.take_given() {
                    self.emit(chunk);
                }
            }
            (Ok(Err(stop)), None) => {
                events.push_front(Self::stopped(stop));
                return Ok(false);
            }
            (Err(cut), _) => events.extend(self.cut(cut)?),
        }
        Ok(true)
    }

    /// Passes a chunk of the response through the hooks; the machine hears of what is shown. `false` = stopped.
    pub(super) async fn filter(&mut self, chunk: Chunk, events: &mut VecDeque<RunEvent>) -> Result<bool, Flow> {
        let mut at = self.at_desk();
        let outcome = at.watch.wait_for(pin!(at.runner.stream(&mut at.desk, chunk))).await;
        match self.hooked(outcome)? {
            ControlFlow::Continue(()) => self.pass(events).await,
            ControlFlow::Break(event) => {
                events.extend(event);
                Ok(false)
            }
        }
    }

    /// Tells the stream hooks of the error that ends the run; they cannot hold it back (PROC-063).
    pub(super) async fn tell_stream_hooks(&mut self, error: &ErrorInfo) {
        if self.hooks.runner.has(Hook::OutputStream) {
            let chunk = Chunk::agent(&self.shared.run_id, Payload::Error { error: error.clone() });
            let mut at = self.at_desk();
            let _ = at.watch.wait(at.runner.tell_stream(&mut at.desk, &chunk)).await;
        }
    }

    /// Shows what a tool wrote as the stream hooks that want data pass it on (PROC-070).
    pub(super) async fn emit_written(
        &mut self,
        tool_call_id: &str,
        chunk: Chunk,
        events: &mut VecDeque<RunEvent>,
    ) -> Result<(), Flow> {
        if !self.hooks.runner.filters_data() {
            self.emit_data(tool_call_id, chunk);
            return Ok(());
        }
        let mut at = self.at_desk();
        let outcome = at.watch.wait(at.runner.stream(&mut at.desk, chunk)).await;
        if let ControlFlow::Break(event) = self.hooked(outcome)? {
            events.extend(event);
            return Ok(());
        }
        while let Some(chunk) = self.hooks.runner.take_given() {
            self.emit_data(tool_call_id, chunk);
        }
        Ok(())
    }

    fn emit_data(&mut self, tool_call_id: &str, chunk: Chunk) {
        if let ChunkBody::Data(data) = &chunk.body
            && data.transient != Some(true)
        {
            self.machine.keep_data(tool_call_id, data);
        }
        self.emit(chunk);
    }

    /// Asks the hooks for what they hold, at the end of a response.
    pub(super) async fn flush_stream(&mut self, events: &mut VecDeque<RunEvent>) -> Result<(), Flow> {
        let mut at = self.at_desk();
        let outcome = at.watch.wait(at.runner.flush(&mut at.desk, Flush::Step)).await;
        match self.hooked(outcome)? {
            ControlFlow::Continue(()) => {
                if self.pass(events).await? {
                    events.push_back(RunEvent::StreamPassed);
                }
            }
            ControlFlow::Break(event) => events.extend(event),
        }
        Ok(())
    }

    /// Gives what hooks hold when the run is aborted; it counts as shown (PROC-072).
    pub(super) async fn flush_aborted(&mut self) {
        let mut at = self.at_desk();
        let outcome = at.watch.wait(at.runner.flush(&mut at.desk, Flush::Abort)).await;
        if let Ok(Ok(())) = outcome {
            while let Some(chunk) = self.hooks.runner.take_given() {
                self.machine.passed(&chunk);
                self.emit(chunk);
            }
        }
    }

    /// Shows what hooks have passed on; the machine hears of each chunk first, and shows partial values after it.
    /// `false` = stopped.
    async fn pass(&mut self, events: &mut VecDeque<RunEvent>) -> Result<bool, Flow> {
        let heard = self.hooks.runner.has(Hook::LlmResponse);
        let mut partials = Vec::new();
        while let Some(chunk) = self.hooks.runner.take_given() {
            let partial = self.machine.passed(&chunk);
            if heard {
                self.hooks.said.extend(chunk.payload().and_then(as_event));
            }
            self.emit(chunk);
            partials.extend(partial);
        }
        // The newest holds what those before it do.
        match partials.pop() {
            Some(partial) => Box::pin(self.emit_filtered(partial, events)).await,
            None => Ok(true),
        }
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
