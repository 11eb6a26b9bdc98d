//! Rows that were stored without a run, judged by the first run that reads them (rulings 34, 35).

#[allow(clippy::wildcard_imports, reason = "one type in several files")]
use super::*;
use crate::{
    message::{MessageContent, ToolInvocationPart, ToolState},
    processor::Hook,
    run::guard::guard_stored,
};

impl Driver {
    /// Judges what this run has read of the thread and no guard has seen: `persist` starts no run, so nobody judged it then.
    /// What is refused is marked, and no prompt has it. `Err` = given up.
    pub(super) async fn judge_stored(&mut self) -> Result<(), Cut> {
        if !self.hooks.runner.has(Hook::Input) {
            return Ok(());
        }
        let rows = self.machine.transcript().messages().iter();
        let unjudged: Vec<StoredMessage> = rows.filter(|row| row.is_unjudged()).cloned().collect();
        for row in unjudged {
            for judged in self.judge_row(row).await? {
                self.machine.transcript_mut().rewrite(judged);
            }
        }
        Ok(())
    }

    /// A stored row as the guards have left it, and what they have added.
    pub(super) async fn judge_row(&mut self, row: StoredMessage) -> Result<Vec<StoredMessage>, Cut> {
        let AtDesk { runner, mut desk, mut watch } = self.at_desk();
        let judged = guard_stored(runner, &mut desk, &mut watch, row.clone()).await;
        if self.shared.abort.is_cancelled() {
            // Nobody can tell an answer from a stop: the next run asks again.
            return Ok(vec![row]);
        }
        let (mut rows, refused) = judged?;
        for row in &mut rows {
            row.mark_judged();
            if let Some(refused) = &refused {
                row.mark_blocked(&refused.reason, &refused.processor_id);
            }
        }
        Ok(rows)
    }

    /// What a client has answered to calls of remembered messages: each message with nothing but these results, for the
    /// guards. Calls of the input itself are judged with it.
    pub(super) fn client_results(&self) -> Vec<StoredMessage> {
        let Prepared { completed, client_calls, .. } = &self.prepared;
        let rows = self.machine.transcript().messages().iter().filter(|row| completed.contains(&row.id));
        let shown = rows.map(|row| {
            let parts = row.content.parts.iter().filter_map(|part| match part {
                Part::ToolInvocation(call) if client_calls.contains(&call.tool_invocation.tool_call_id) => {
                    let mut call = call.clone();
                    // These are the model's.
                    call.tool_invocation.args = Value::Null;
                    Some(Part::ToolInvocation(call))
                }
                _ => None,
            });
            let content = MessageContent { parts: parts.collect(), ..MessageContent::default() };
            StoredMessage { content, ..row.clone() }
        });
        shown.filter(|row| !row.content.parts.is_empty()).collect()
    }

    /// Puts the results of a client back as guards have left them; what they have refused is an error for the model, now and
    /// later. Takes the messages that showed them out of the event.
    pub(super) fn results_judged(&mut self, shown: &[StoredMessage], event: &mut RunEvent) {
        let mut judged = Vec::new();
        let mut refused = "an input processor".to_owned();
        let is_shown = |row: &StoredMessage| shown.iter().any(|known| known.id == row.id);
        match event {
            RunEvent::Drained { messages, .. } => {
                let (back, left) = std::mem::take(messages).into_iter().partition(is_shown);
                (judged, *messages) = (back, left);
            }
            RunEvent::Tripped { messages, tripwire, .. } => {
                messages.retain(|row| !is_shown(row));
                refused.clone_from(&tripwire.processor_id);
            }
            _ => {}
        }
        let calls = |row: &StoredMessage| {
            let parts = row.content.parts.clone().into_iter().filter_map(|part| match part {
                Part::ToolInvocation(call) => Some(call),
                _ => None,
            });
            parts.collect::<Vec<ToolInvocationPart>>()
        };
        let passed: Vec<ToolInvocationPart> = judged.iter().flat_map(calls).collect();
        let asked: Vec<ToolInvocationPart> = shown.iter().flat_map(calls).collect();
        let rows = self.machine.transcript_mut().messages_mut().iter_mut().filter(|row| is_shown(row));
        for call in rows.flat_map(|row| &mut row.content.parts) {
            let Part::ToolInvocation(call) = call else { continue };
            let id = &call.tool_invocation.tool_call_id;
            if !asked.iter().any(|known| known.tool_invocation.tool_call_id == *id) {
                continue;
            }
            if let Some(passed) = passed.iter().find(|known| known.tool_invocation.tool_call_id == *id) {
                let args = std::mem::take(&mut call.tool_invocation.args);
                *call = passed.clone();
                call.tool_invocation.args = args;
                continue;
            }
            call.tool_invocation.state = ToolState::OutputError;
            call.tool_invocation.result = None;
            call.tool_invocation.error_text = Some(format!("rejected by {refused}"));
            if let Some(mastra) = call.provider_metadata.as_mut().and_then(|metadata| metadata.get_mut("mastra"))
                && let Some(mastra) = mastra.as_object_mut()
            {
                mastra.shift_remove("modelOutput");
            }
        }
    }
}
