//! People's decisions: approve, decline, resume, list and give up runs that wait for them (LOOP §7, SIG §17).

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::oneshot;

use super::{AgentHandle, RunInput, agents::StopOnDrop};
use crate::{
    error::Error,
    id::{RunId, ThreadKey},
    run::{
        Decision, ParkKind, ParkedCall, ParkedStep, Resolution, ResumeSeed, RunOptions, RunOutput, RunSeed, RunStream,
        SeedKind, drive, interchange,
    },
    storage::{ParkedQuery, StorageError},
    thread::{Letter, LogReader, ResumeRequest, RunShared, RunUser, StreamLog},
    time::Timestamp,
};

/// A decision sent to a thread, whose subscribers see what follows (SIG-375).
#[derive(Debug, Clone, Default)]
pub struct ToolApproval {
    /// The call; needed if several runs of the thread wait.
    pub tool_call_id: Option<String>,
    /// Whether the call may run.
    pub approved: bool,
    /// Why not; the model reads it.
    pub reason: Option<String>,
    /// The data a suspended tool asked for; replaces `approved` and `reason` (SIG-376).
    pub resume_data: Option<Value>,
    /// Pending input of the resumed run; if nothing is suspended, input of a run of its own (ruling 6, HTTP-093).
    pub messages: RunInput,
    /// Options of the resumed run, over those it was started with.
    pub options: RunOptions,
}

/// A decision that was taken up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalAccepted {
    /// The run that goes on.
    pub run_id: RunId,
    /// The call that was decided; the one named, or the first that waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
}

/// Which suspended runs to list (LOOP-118).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SuspendedQuery {
    /// Of this thread.
    pub thread_id: Option<String>,
    /// Of this resource.
    pub resource_id: Option<String>,
    /// Suspended at this time or later.
    pub from: Option<Timestamp>,
    /// Suspended at this time or before.
    pub to: Option<Timestamp>,
    /// Which page, from 0.
    pub page: u32,
    /// Its size; all on one page if absent.
    pub per_page: Option<u32>,
}

/// A page of suspended runs, newest first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SuspendedRuns {
    /// The page's runs.
    pub runs: Vec<SuspendedRun>,
    /// How many there are on all pages.
    pub total: usize,
}

/// A run that waits for a person.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SuspendedRun {
    /// The run.
    pub run_id: RunId,
    /// Always `suspended`.
    #[serde(default)]
    pub status: SuspendedStatus,
    /// Its thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// Its resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_id: Option<String>,
    /// Since when.
    pub suspended_at: Timestamp,
    /// The calls that wait.
    pub tool_calls: Vec<SuspendedCall>,
}

/// The literal `suspended`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SuspendedStatus {
    /// `suspended`.
    #[default]
    Suspended,
}

/// A call that waits for a person, as lists show it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SuspendedCall {
    /// The call.
    pub tool_call_id: String,
    /// The tool that a person is asked about.
    #[serde(default)]
    pub tool_name: String,
    /// Its arguments; left out for suspensions, as the reference does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Value>,
    /// It waits for leave to run; else for data.
    pub requires_approval: bool,
    /// What the tool told the person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend_payload: Option<Value>,
}

impl From<&ParkedCall> for SuspendedCall {
    fn from(call: &ParkedCall) -> Self {
        let (tool_name, args) = call.shown();
        let (requires_approval, suspend_payload) = match &call.kind {
            ParkKind::Approval => (true, None),
            ParkKind::Suspension { payload } => (false, Some(payload.clone())),
        };
        Self {
            tool_call_id: call.tool_call_id.clone(),
            tool_name: tool_name.to_owned(),
            args: requires_approval.then(|| args.clone()),
            requires_approval,
            suspend_payload,
        }
    }
}

impl ToolApproval {
    /// The decision it stands for (SIG-376).
    fn decision(&self) -> Decision {
        let tool_call_id = self.tool_call_id.as_deref();
        match &self.resume_data {
            Some(data) => Decision::resume(tool_call_id, data.clone()),
            None if self.approved => Decision::approve(tool_call_id),
            None => Decision::decline(tool_call_id, self.reason.as_deref()),
        }
    }
}

impl AgentHandle {
    /// Answers a parked call and gives the live stream of what follows. With a thread, its subscribers see it too.
    /// Returns once the run is ours: nobody else goes on with it (LOOP-116). Of several decisions about one run each
    /// waits for the one before it (SIG-379). Dropping the stream does not stop the run.
    ///
    /// # Errors
    /// [`Error::NoSuspendedRun`], [`Error::NotSuspended`], [`Error::AmbiguousToolCall`], [`Error::Draining`].
    pub async fn resume_stream(
        &self,
        run_id: &RunId,
        decision: Decision,
        options: RunOptions,
    ) -> Result<RunStream, Error> {
        let what = Resolution::Decide(decision);
        let (output_sender, output) = oneshot::channel();
        let how = How { streaming: true, output: Some(output_sender) };
        let (shared, log, cursor) = self.resolve(run_id, what, RunInput::default(), options, how).await?;
        let chunks = LogReader::new(log, shared.clone(), cursor);
        Ok(RunStream { run_id: run_id.clone(), chunks, output, shared })
    }

    /// As [`Self::resume_stream`], and waits for the end, or for the next call that waits. Dropping the future after the
    /// run has gone on aborts it.
    ///
    /// # Errors
    /// As [`Self::resume_stream`]; [`Error::Run`] if the run failed.
    pub async fn resume_generate(
        &self,
        run_id: &RunId,
        decision: Decision,
        options: RunOptions,
    ) -> Result<RunOutput, Error> {
        let (output_sender, output) = oneshot::channel();
        let how = How { streaming: false, output: Some(output_sender) };
        let what = Resolution::Decide(decision);
        let (shared, _, _) = self.resolve(run_id, what, RunInput::default(), options, how).await?;
        let stop = StopOnDrop(Some(shared));
        let output = output.await.map_err(|_| Error::Internal("a run ended without a result"))?;
        drop(stop);
        match output.error.clone() {
            Some(error) => Err(Error::Run(Box::new(error))),
            None => Ok(output),
        }
    }

    /// Approves, declines or answers a call on a thread; what follows is seen by its subscribers (SIG-375). Returns as
    /// soon as the run goes on.
    ///
    /// # Errors
    /// [`Error::NoSuspendedThreadRun`], [`Error::AmbiguousSuspendedRuns`], and those of [`Self::resume_stream`].
    pub async fn send_tool_approval(
        &self,
        thread: &ThreadKey,
        approval: ToolApproval,
    ) -> Result<ApprovalAccepted, Error> {
        self.check_owner(thread).await?;
        let decision = approval.decision();
        let found = self.find_suspended(thread, None, &decision).await?;
        let ToolApproval { tool_call_id, approved, messages, options, .. } = approval;
        let has_messages = messages != RunInput::default();
        let Some((run_id, first)) = found else {
            if approved && has_messages {
                // The run has ended on calls of its client: this goes on from their results (HTTP-093).
                let run_id = self.continue_with_messages(thread, messages, options).await?;
                return Ok(ApprovalAccepted { run_id, tool_call_id });
            }
            return Err(Error::NoSuspendedThreadRun { thread: thread.clone(), tool_call_id });
        };
        let how = How { streaming: true, output: None };
        self.resolve(&run_id, Resolution::Decide(decision), messages, options, how).await?;
        Ok(ApprovalAccepted { run_id, tool_call_id: tool_call_id.or(first) })
    }

    /// Answers a suspended tool on a thread (LOOP-120).
    ///
    /// # Errors
    /// [`Error::MissingResumeTarget`] if neither run nor call is given, and those of [`Self::send_tool_approval`].
    pub async fn send_stream_resume(
        &self,
        thread: &ThreadKey,
        run_id: Option<&RunId>,
        decision: Decision,
        options: RunOptions,
    ) -> Result<ApprovalAccepted, Error> {
        if run_id.is_none() && decision.tool_call_id.is_none() {
            return Err(Error::MissingResumeTarget);
        }
        self.check_owner(thread).await?;
        let tool_call_id = decision.tool_call_id.clone();
        let found = self.find_suspended(thread, run_id, &decision).await?;
        let Some((run_id, first)) = found else {
            return Err(Error::NoSuspendedThreadRun { thread: thread.clone(), tool_call_id });
        };
        let how = How { streaming: true, output: None };
        self.resolve(&run_id, Resolution::Decide(decision), RunInput::default(), options, how).await?;
        Ok(ApprovalAccepted { run_id, tool_call_id: tool_call_id.or(first) })
    }

    /// This agent's runs that wait for people, from storage (LOOP-118).
    ///
    /// # Errors
    /// [`Error::Invalid`] for a page size of 0, [`Error::Storage`].
    pub async fn list_suspended_runs(&self, query: SuspendedQuery) -> Result<SuspendedRuns, Error> {
        let SuspendedQuery { thread_id, resource_id, from, to, page, per_page } = query;
        if per_page == Some(0) {
            return Err(Error::invalid("perPage", "must be at least 1"));
        }
        let agent_id = Some(self.agent.id().to_owned());
        let query = ParkedQuery { agent_id, thread_id, resource_id, from, to, page, per_page };
        let found = self.bugle.inner.storage.list_parked(query).await?;
        let runs = found.items.into_iter().filter_map(|run| match interchange::read(&run) {
            Ok(read) => Some(SuspendedRun {
                tool_calls: read.snapshot.step.iter().flat_map(ParkedStep::parked).map(SuspendedCall::from).collect(),
                run_id: run.run_id,
                status: SuspendedStatus::Suspended,
                thread_id: run.thread.as_ref().map(|thread| thread.thread_id.to_string()),
                resource_id: run.resource_id,
                suspended_at: run.suspended_at,
            }),
            Err(error) => {
                tracing::warn!(run = %run.run_id, %error, "a suspended run cannot be read; it is not listed");
                None
            }
        });
        Ok(SuspendedRuns { runs: runs.collect(), total: found.total })
    }

    /// Gives a parked run up: its rows are deleted and its open calls closed, so that its thread can go on (LOOP-121).
    ///
    /// # Errors
    /// [`Error::NoSuspendedRun`], [`Error::Draining`].
    pub async fn discard_suspended_run(&self, run_id: &RunId) -> Result<(), Error> {
        let how = How { streaming: true, output: None };
        let given_up = self.resolve(run_id, Resolution::Discard, RunInput::default(), RunOptions::default(), how).await;
        match given_up {
            Ok(_) => Ok(()),
            // One that cannot be read can still be given up.
            Err(Error::Run(error)) if error.name == "InvalidSnapshot" => self.drop_parked(run_id).await,
            Err(Error::NotSuspended { answered: false, tool_call_id: None, .. }) => self.drop_parked(run_id).await,
            Err(error) => Err(error),
        }
    }

    async fn drop_parked(&self, run_id: &RunId) -> Result<(), Error> {
        if self.bugle.inner.storage.unpark(run_id).await? {
            Ok(())
        } else {
            Err(Error::NoSuspendedRun { run_id: run_id.clone() })
        }
    }

    /// Ends the newest parked run of the thread, if this agent has one there.
    pub(super) async fn abort_parked(&self, thread: &ThreadKey, expected: Option<&RunId>) -> Result<bool, Error> {
        let agent_id = Some(self.agent.id().to_owned());
        let query = ParkedQuery { agent_id, ..ParkedQuery::of_thread(thread) };
        let found = match self.bugle.inner.storage.list_parked(query).await {
            Ok(found) => found.items,
            Err(StorageError::Unsupported { .. }) => return Ok(false),
            Err(error) => return Err(error.into()),
        };
        let Some(run) = found.into_iter().find(|run| expected.is_none_or(|expected| run.run_id == *expected)) else {
            return Ok(false);
        };
        let how = How { streaming: true, output: None };
        let ended = self.resolve(&run.run_id, Resolution::Abort, RunInput::default(), RunOptions::default(), how).await;
        match ended {
            Ok(_) => Ok(true),
            // Somebody has gone on with it (R17).
            Err(Error::NoSuspendedRun { .. } | Error::NotSuspended { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The run of a thread that a decision is about, and the call that waits first: the live one, else from storage
    /// (SIG-378).
    async fn find_suspended(
        &self,
        thread: &ThreadKey,
        run_id: Option<&RunId>,
        decision: &Decision,
    ) -> Result<Option<(RunId, Option<String>)>, Error> {
        let inner = &self.bugle.inner;
        let agent_id = Some(self.agent.id().to_owned());
        let query = ParkedQuery { agent_id, ..ParkedQuery::of_thread(thread) };
        let mut found = match inner.storage.list_parked(query).await {
            Ok(found) => found.items,
            Err(StorageError::Unsupported { .. }) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        found.retain(|run| run_id.is_none_or(|wanted| run.run_id == *wanted));
        let mut fits = Vec::new();
        for run in &found {
            let Ok(read) = interchange::read(run) else { continue };
            let Some(step) = &read.snapshot.step else { continue };
            match step.find(&run.run_id, decision) {
                Ok((call, _)) => fits.push((run.run_id.clone(), Some(call.tool_call_id.clone()))),
                Err(error @ Error::AmbiguousToolCall { .. }) => return Err(error),
                Err(_) => {}
            }
        }
        if fits.len() > 1 {
            let run_ids = fits.into_iter().map(|(run_id, _)| run_id).collect();
            return Err(Error::AmbiguousSuspendedRuns { thread: thread.clone(), run_ids });
        }
        if let Some(fit) = fits.pop() {
            return Ok(Some(fit));
        }
        if inner.hub.existing(thread).is_none() {
            return Ok(None);
        }
        // Perhaps the run is at work on a decision before this one (SIG-379).
        let tool_call_id = decision.tool_call_id.clone();
        let live = self.ask(thread, |reply| Letter::LiveWait { tool_call_id, reply }).await?;
        Ok(live.filter(|live| run_id.is_none_or(|wanted| wanted == live)).map(|run_id| (run_id, None)))
    }

    /// Goes on with a parked run, or ends it; returns once it is ours.
    async fn resolve(
        &self,
        run_id: &RunId,
        what: Resolution,
        messages: RunInput,
        options: RunOptions,
        how: How,
    ) -> Result<(Arc<RunShared>, Arc<StreamLog>, u64), Error> {
        let inner = &self.bugle.inner;
        if inner.is_draining() {
            return Err(Error::Draining);
        }
        options.check()?;
        let gone = || Error::NoSuspendedRun { run_id: run_id.clone() };
        let thread = match inner.storage.parked_run(run_id).await {
            Ok(Some(parked)) if parked.agent_id != self.agent.id() => return Err(gone()),
            Ok(Some(parked)) => parked.thread,
            Ok(None) | Err(StorageError::Unsupported { .. }) => Some(inner.hub.thread_of_run(run_id).ok_or_else(gone)?),
            Err(error) => return Err(error.into()),
        };
        let shared = RunShared::new(run_id.clone());
        let (claimed, answer) = oneshot::channel();
        let options = Arc::new(options);
        match thread {
            Some(thread) => {
                let request = Box::new(ResumeRequest {
                    agent: self.agent.clone(),
                    options,
                    shared: shared.clone(),
                    output: how.output,
                    streaming: how.streaming,
                    what,
                    messages,
                    claimed,
                });
                inner.hub.send(inner, &thread, Letter::Resume(request)).await?;
            }
            None => {
                let claim = inner.hub.reserve(run_id, RunUser::Unthreaded).map_err(|_| match &what {
                    Resolution::Decide(decision) => Error::NotSuspended {
                        run_id: run_id.clone(),
                        tool_call_id: decision.tool_call_id.clone(),
                        answered: true,
                    },
                    Resolution::Abort | Resolution::Discard => gone(),
                })?;
                let seed = ResumeSeed { nested: None, what, messages, claimed: Some(claimed) };
                let seed = RunSeed {
                    agent: self.agent.clone(),
                    options,
                    kind: SeedKind::Resumed(Box::new(seed)),
                    shared: shared.clone(),
                    log: Arc::default(),
                    link: None,
                    output: how.output,
                    inner: inner.clone(),
                    streaming: how.streaming,
                    delegated: false,
                    detached: None,
                };
                inner.hub.tasks.spawn(async move {
                    let _claim = claim;
                    drive(seed).await;
                });
            }
        }
        let (log, cursor) = answer.await.unwrap_or(Err(Error::Draining))?;
        Ok((shared, log, cursor))
    }
}

/// How the caller takes what follows.
struct How {
    streaming: bool,
    output: Option<oneshot::Sender<RunOutput>>,
}
