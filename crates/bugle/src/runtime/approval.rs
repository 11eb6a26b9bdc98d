//! People's decisions: approve, decline, resume, list and give up runs that wait for them (LOOP §7, SIG §17).

#![allow(clippy::unused_async, reason = "the seam, being filled")]

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{AgentHandle, RunInput};
use crate::{
    error::Error,
    id::{RunId, ThreadKey},
    run::{Decision, RunOptions, RunOutput, RunStream},
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

impl AgentHandle {
    /// Answers a parked call and gives the live stream of what follows. With a thread, its subscribers see it too.
    /// Returns once the run is ours: nobody else goes on with it (LOOP-116).
    ///
    /// # Errors
    /// [`Error::NoSuspendedRun`], [`Error::NotSuspended`], [`Error::AmbiguousToolCall`], [`Error::Draining`].
    pub async fn resume_stream(
        &self,
        run_id: &RunId,
        decision: Decision,
        options: RunOptions,
    ) -> Result<RunStream, Error> {
        let _ = (run_id, decision, options);
        Err(Error::Internal("resuming is not built yet"))
    }

    /// As [`Self::resume_stream`], and waits for the end, or for the next call that waits.
    ///
    /// # Errors
    /// As [`Self::resume_stream`]; [`Error::Run`] if the run failed.
    pub async fn resume_generate(
        &self,
        run_id: &RunId,
        decision: Decision,
        options: RunOptions,
    ) -> Result<RunOutput, Error> {
        let _ = (run_id, decision, options);
        Err(Error::Internal("resuming is not built yet"))
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
        let _ = (thread, approval);
        Err(Error::Internal("resuming is not built yet"))
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
        let _ = (thread, run_id, decision, options);
        Err(Error::Internal("resuming is not built yet"))
    }

    /// This agent's runs that wait for people, from storage (LOOP-118).
    ///
    /// # Errors
    /// [`Error::Invalid`] for a page size of 0, [`Error::Storage`].
    pub async fn list_suspended_runs(&self, query: SuspendedQuery) -> Result<SuspendedRuns, Error> {
        let _ = query;
        Err(Error::Internal("resuming is not built yet"))
    }

    /// Gives a parked run up: its rows are deleted and its open calls closed, so that its thread can go on (LOOP-121).
    ///
    /// # Errors
    /// [`Error::NoSuspendedRun`], [`Error::Draining`].
    pub async fn discard_suspended_run(&self, run_id: &RunId) -> Result<(), Error> {
        let _ = run_id;
        Err(Error::Internal("resuming is not built yet"))
    }
}
