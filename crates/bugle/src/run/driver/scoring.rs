//! What scorers and the iteration hook are told of a run (SCO-033), and what they answer.

use std::time::Duration;

use super::{Driver, Flow};
use crate::{
    chunk::FinishReason,
    json::{Object, Value, json},
    message::{Part, Role, StoredMessage},
    run::{
        RunOutput,
        completion::{Check, judge},
        machine::{RunEvent, StepToScore},
    },
    scorer::{Ended, ScorerInput},
    subagent::{IterationComplete, call_iteration_hook},
};

impl Driver {
    /// Asks the checks of the run whether the step that has ended completes it.
    pub(super) async fn score(&mut self, step: StepToScore) -> Result<Option<RunEvent>, Flow> {
        let check = self.check(step);
        let Some(completion) = &self.prepared.completion else { return Ok(None) };
        let judged = judge(completion, &mut self.verdicts, check);
        match self.stops.watch(Duration::ZERO).wait(judged).await {
            Ok(verdict) => Ok(Some(RunEvent::Scored(verdict))),
            Err(cut) => self.cut(cut),
        }
    }

    /// Asks the iteration hook what comes next.
    pub(super) async fn iteration_ended(&mut self, iteration: IterationComplete) -> Result<Option<RunEvent>, Flow> {
        let Some(hook) = self.prepared.options.on_iteration_complete.clone() else { return Ok(None) };
        let asked = call_iteration_hook(&hook, iteration);
        match self.stops.watch(Duration::ZERO).wait(asked).await {
            Ok(decision) => Ok(Some(RunEvent::IterationJudged(decision))),
            Err(cut) => self.cut(cut),
        }
    }

    /// The check of the step that has ended.
    fn check(&self, step: StepToScore) -> Check {
        let (agent, run_id) = (&self.prepared.agent, &self.shared.run_id);
        let thread = self.prepared.thread();
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

    /// Scores the run that has ended, beside the work (SCO-080). The process does not wait for it when it stops.
    pub(super) fn live_scores(&self, result: &RunOutput) -> Option<impl Future<Output = ()> + Send + 'static> {
        let scorers = self.prepared.options.scorers.clone().filter(|scorers| !scorers.is_empty())?;
        // A run that waits for a person has not ended (SCO-084).
        if result.finish_reason == FinishReason::Suspended {
            return None;
        }
        // Most runs of a small sample are not scored: nothing is made of them then (SCO-081).
        if !scorers.values().any(|scorer| scorer.may_want(&result.run_id)) {
            return None;
        }
        let input: Vec<_> = result.messages.iter().filter(|message| message.role != Role::Assistant).collect();
        // What the run was told by its own checks is no answer (SCO-042).
        let is_answer = |message: &&StoredMessage| message.content.meta("completionResult").is_none();
        let answers: Vec<_> = result.response_messages.iter().filter(is_answer).collect();
        let ended = Ended {
            agent_id: self.prepared.agent.id().to_owned(),
            agent_name: self.prepared.agent.name().to_owned(),
            thread: self.prepared.thread().cloned(),
            input: ScorerInput {
                run_id: result.run_id.clone(),
                input: json!({
                    "inputMessages": input,
                    "rememberedMessages": result.remembered_messages,
                    "systemMessages": self.prepared.system,
                    "taggedSystemMessages": {},
                }),
                output: json!(answers),
                ground_truth: None,
                request_context: self.prepared.options.request_context.plain(),
                more: Object::new(),
            },
        };
        let stop = self.inner.hub.stop.clone();
        Some(async move {
            let all = async {
                for scorer in scorers.values() {
                    scorer.score(&ended).await;
                }
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = all => {}
            }
        })
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
