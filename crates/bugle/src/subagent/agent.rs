//! An agent as a subagent: its run is a detached one, seen through the parent's stream only.

use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::oneshot;

use super::{Detached, SubAgent, SubRun, Task, context::as_messages, isolation::make_thread, output, task::Parked};
use crate::{
    agent::Agent,
    chunk::{ErrorInfo, FinishReason},
    run::{Resolution, ResumeSeed, RunOptions, RunOutput, RunSeed, SeedKind, Texts, drive},
    runtime::RunInput,
    thread::{LogReader, RunShared, StreamLog},
};

#[async_trait]
impl SubAgent for Agent {
    fn id(&self) -> &str {
        Self::id(self)
    }

    fn name(&self) -> &str {
        Self::name(self)
    }

    fn description(&self) -> Option<&str> {
        Self::description(self)
    }

    fn max_steps(&self) -> Option<u32> {
        self.default_options().max_steps.filter(|steps| *steps > 0)
    }

    fn has_memory(&self) -> bool {
        self.memory().is_some_and(|memory| !memory.read_only)
    }

    async fn run(&self, task: Task) -> SubRun {
        let inner = task.runtime.inner.clone();
        let options = RunOptions {
            run_id: Some(task.run_id.clone()),
            max_steps: task.max_steps,
            instructions: instructions(self, &task),
            // Not later than the prompt, which it stands before.
            context: as_messages(task.context.clone(), task.message.created_at),
            request_context: task.request_context.clone(),
            ..RunOptions::default()
        };
        let thread = task.stores.then(|| task.thread.clone());
        let working = self.listed_memory().and_then(|memory| memory.working_memory);
        if let Some(thread) = thread.as_ref().filter(|_| working.is_some_and(|working| working.enabled))
            && let Err(error) = make_thread(&inner.storage, thread, task.thread_metadata.as_ref()).await
        {
            // Its tool will say so, should it want to write there.
            tracing::error!(%error, thread = %thread, "the thread of a delegation could not be made");
        }
        let shared = RunShared::under(task.run_id.clone(), &task.abort);
        let log = if task.streaming { StreamLog::for_one_reader() } else { StreamLog::for_nobody() };
        let log = Arc::new(log);
        let mut chunks = LogReader::new(log.clone(), shared.clone(), 0);
        let (sender, output) = oneshot::channel();
        let kind = match &task.resume {
            Some(resume) => SeedKind::Resumed(Box::new(ResumeSeed {
                nested: Some(Box::new(resume.0.clone())),
                what: Resolution::Decide(resume.1.clone()),
                messages: RunInput { messages: Vec::new(), tool_results: Vec::new() },
                claimed: None,
            })),
            None => {
                SeedKind::Direct(Box::new(RunInput { messages: vec![task.message.clone()], tool_results: Vec::new() }))
            }
        };
        let seed = RunSeed {
            agent: self.clone(),
            options: Arc::new(options),
            kind,
            shared,
            log,
            link: None,
            output: Some(sender),
            inner,
            streaming: task.streaming,
            delegated: true,
            detached: Some(Detached {
                thread,
                remembers: task.remembers,
                depth: task.depth,
                depth_limit: task.depth_limit,
            }),
        };
        if task.streaming {
            let show = async {
                while let Some(chunk) = chunks.next_direct().await {
                    task.emit(chunk.into_chunk()).await;
                }
            };
            tokio::join!(drive(seed), show);
        } else {
            drive(seed).await;
        }
        match output.await {
            Ok(output) => sub_run(output),
            Err(_) if task.runtime.inner.hub.stop.is_cancelled() => SubRun::aborted(),
            Err(_) => {
                let message = "the run of the subagent ended without a result; see the log";
                SubRun::failed(ErrorInfo::new("RunPanic", message))
            }
        }
    }
}

/// Its own instructions, then those of the task (SUB-031).
fn instructions(agent: &Agent, task: &Task) -> Option<Texts> {
    let added = task.instructions.as_deref()?;
    let own = match &agent.default_options().instructions {
        Some(texts) => texts.list().to_vec(),
        None => agent.instructions(&task.request_context).into_iter().collect(),
    };
    let mut texts = own;
    match texts.last_mut().filter(|last| !last.is_empty()) {
        Some(last) => {
            last.push_str("\n\n");
            last.push_str(added);
        }
        None => texts.push(added.to_owned()),
    }
    Some(Texts::Many(texts))
}

fn sub_run(output: RunOutput) -> SubRun {
    let mut run = SubRun::text(output.text);
    run.finish_reason = output.finish_reason;
    run.usage = output.usage;
    run.sub_agent_usage = output.sub_agent_usage;
    run.tool_results = output::tool_results(&output.response_messages);
    if output.finish_reason == FinishReason::ToolCalls {
        run.pending_tool_calls = output::pending_calls(&output.response_messages);
    }
    if let Some(tripwire) = &output.tripwire {
        run.error = Some(ErrorInfo::new("TripWire", tripwire.reason.clone()));
    }
    run.error = output.error.or(run.error);
    run.response_messages = output.response_messages;
    run.parked = output
        .parked
        .map(|parked| Box::new(Parked { run_id: output.run_id, snapshot: parked.snapshot, calls: parked.calls }));
    run
}
