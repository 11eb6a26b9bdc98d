//! How the run in the slot is set off.

use std::sync::Arc;

use tokio::sync::Notify;

use super::{Actor, DirectRequest, LiveRun, ResumeRequest, ThreadLink};
use crate::{
    chunk::{Chunk, ErrorInfo, Payload},
    run::{Resolution, ResumeSeed, RunOptions, RunOutput, RunSeed, SeedKind},
    runtime::RunInput,
    thread::{
        log::{DirectEnd, RunShared},
        machine::{RunSource, StartRun, ThreadEvent},
    },
};

impl Actor {
    pub(super) fn start_run(&mut self, start: StartRun) {
        let StartRun { run_id, agent_id, source, aborted, rollback } = start;
        let nudge = Arc::new(Notify::new());
        let link = ThreadLink {
            key: self.key.clone(),
            epoch: self.epoch,
            thread: self.thread.clone(),
            nudge: nudge.clone(),
            released: Arc::default(),
            placed: self.placed.clone(),
        };
        let mut claim = None;
        let (kind, shared, options, agent, output, streaming) = match source {
            RunSource::Input(first) => {
                let agent = self.inner.agent_by_id(&agent_id);
                (SeedKind::Woken, RunShared::new(run_id.clone()), first.options.clone(), agent, None, true)
            }
            RunSource::Direct => match self.direct.remove(&run_id) {
                Some(request) => {
                    let DirectRequest { agent, input, options, shared, output, streaming, claim: held, .. } = request;
                    claim = Some(held);
                    (SeedKind::Direct(Box::new(input)), shared, options, Some(agent), output, streaming)
                }
                None => {
                    return self.feed(ThreadEvent::RunEnded { run_id, returned: Vec::new(), failed_to_start: false });
                }
            },
            RunSource::Record => {
                let agent = self.inner.agent_by_id(&agent_id);
                let options = Arc::new(RunOptions::default());
                (SeedKind::Recorded, RunShared::new(run_id.clone()), options, agent, None, true)
            }
            RunSource::Resume(ticket) => match ticket.and_then(|ticket| self.resumes.remove(&ticket)) {
                Some(request) => {
                    let ResumeRequest { agent, options, shared, output, streaming, what, messages, claimed, .. } =
                        request;
                    let seed = ResumeSeed { nested: None, what, messages, claimed: Some(claimed) };
                    (SeedKind::Resumed(Box::new(seed)), shared, options, Some(agent), output, streaming)
                }
                None => {
                    let agent = self.inner.agent_by_id(&agent_id);
                    let (what, messages) = (Resolution::Abort, RunInput::default());
                    let seed = ResumeSeed { nested: None, what, messages, claimed: None };
                    let options = Arc::new(RunOptions::default());
                    let kind = SeedKind::Resumed(Box::new(seed));
                    (kind, RunShared::new(run_id.clone()), options, agent, None, true)
                }
            },
        };
        let Some(agent) = agent else {
            tracing::error!(thread = %self.key, agent = agent_id, "the agent of this input is not registered");
            // Its record and its input stay as they are; the next start with the agent goes on with them.
            let error = ErrorInfo::new("UnknownAgent", format!("Agent with id {agent_id} not found"));
            self.thread.log.push(Chunk::agent(&run_id, Payload::Error { error }));
            return self.feed(ThreadEvent::RunEnded { run_id, returned: Vec::new(), failed_to_start: true });
        };
        if aborted {
            shared.stop(rollback);
        }
        // A run of the same input writes the same record, and ends it.
        self.unended.retain(|ended| ended.run_id != run_id);
        if !self.inner.hub.run_started(&run_id, &self.key, self.inner.clock.now()) {
            // Only what an earlier process left can meet this: its id was taken meanwhile.
            tracing::error!(thread = %self.key, run = %run_id, "a run of another thread has this run's id");
            let text = format!("run id {run_id} is taken by a run of another thread");
            let error = ErrorInfo::new("RunIdTaken", text);
            if let Some(output) = output {
                let chunks = crate::run::failed_direct(&run_id, &error);
                self.thread.log.end_run(&shared, None, DirectEnd { replaces_last: false, chunks });
                let _ = output.send(RunOutput::failed(run_id.clone(), error));
            }
            return self.feed(ThreadEvent::RunEnded { run_id, returned: Vec::new(), failed_to_start: true });
        }
        drop(claim);
        self.claimed_again = false;
        self.run =
            Some(LiveRun { released: link.released.clone(), shared: shared.clone(), nudge, options: options.clone() });
        let seed = RunSeed {
            agent,
            options,
            kind,
            shared,
            log: self.thread.log.clone(),
            link: Some(link),
            output,
            inner: self.inner.clone(),
            streaming,
            delegated: false,
            detached: None,
        };
        self.inner.hub.tasks.spawn(crate::run::drive(seed));
    }
}
