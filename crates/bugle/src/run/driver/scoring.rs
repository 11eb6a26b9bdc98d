//! What scorers are told of a run (SCO-033).

use super::Driver;
use crate::{
    json::{Object, Value, json},
    message::{Part, Role},
    run::{completion::Check, machine::StepToScore},
    scorer::ScorerInput,
};

impl Driver {
    /// The check of the step that has ended.
    pub(super) fn check(&self, step: StepToScore) -> Check {
        let (agent, run_id) = (&self.prepared.agent, &self.shared.run_id);
        let thread = self.link.as_ref().map(|link| &link.key);
        let max_steps = Some(self.prepared.max_steps()).filter(|steps| *steps != u32::MAX);
        let mut custom = Object::new();
        custom.insert("toolCalls".to_owned(), step.tool_calls.into());
        custom.insert("toolResults".to_owned(), step.tool_results.into());
        custom.insert("agentId".to_owned(), agent.id().into());
        custom.insert("agentName".to_owned(), agent.name().into());
        let input = json!({
            "iteration": step.iteration,
            "maxIterations": max_steps,
            "messages": self.machine.transcript().messages(),
            "originalTask": self.task(),
            "selectedPrimitive": { "id": "stream", "type": "agent" },
            "primitivePrompt": "",
            "primitiveResult": step.text,
            "networkName": agent.name(),
            "runId": run_id,
            "threadId": thread.map(|key| &key.thread_id),
            "resourceId": thread.and_then(|key| key.resource_id.as_ref()),
            "customContext": &custom,
        });
        let mut request_context = self.prepared.options.request_context.plain();
        request_context.extend(custom);
        Check {
            input: ScorerInput {
                run_id: run_id.clone(),
                input,
                output: Value::String(step.text),
                ground_truth: None,
                request_context,
                more: Object::new(),
            },
            iteration: step.iteration,
            last: step.last,
            work: step.work,
        }
    }

    /// What was asked for: the first text of the first message of this call.
    fn task(&self) -> String {
        let own = self.machine.transcript().own();
        let first = own.iter().find(|message| message.role != Role::Assistant);
        let text = first.and_then(|message| {
            message.content.parts.iter().find_map(|part| match part {
                Part::Text(part) => Some(part.text.clone()),
                _ => None,
            })
        });
        text.unwrap_or_else(|| "Unknown task".to_owned())
    }
}
