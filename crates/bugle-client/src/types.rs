//! What the server answers.

pub use bugle::runtime::{SuspendedCall, SuspendedQuery, SuspendedRun, SuspendedRuns};
use bugle::{
    MessageId, RunId, Signal,
    json::{Object, Value},
    runtime::{Action, PromoteTo},
    signal::{Attributes, Contents},
};
use serde::{Deserialize, Serialize};

/// What became of input (HTTP-079). It is durable by now.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Accepted {
    /// What was done. Servers other than Bugle do not say.
    #[serde(default)]
    pub action: Option<Action>,
    /// The run that took or will take it; the signal's id where no run does.
    pub run_id: RunId,
    /// The signal as accepted.
    pub signal: Signal,
    /// `approval` or `resume`, if the run waits for a person.
    #[serde(default)]
    pub waiting_for: Option<String>,
}

/// Where a queued message was moved (HTTP-241).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Promoted {
    /// The run that takes it.
    pub run_id: RunId,
    /// Where it stands now.
    pub to: PromoteTo,
}

/// A change of a queued message: what is absent stays (HTTP-242).
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct EditInput {
    /// New contents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contents: Option<Contents>,
    /// New attributes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Attributes>,
}

/// An agent of the server (HTTP-030).
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct AgentInfo {
    /// Its id.
    pub id: String,
    /// Its shown name.
    pub name: String,
    /// All that the server says of it.
    #[serde(flatten)]
    pub fields: Object,
}

/// A page of a list.
#[derive(Debug, Clone, PartialEq)]
pub struct Page<T> {
    /// The items.
    pub items: Vec<T>,
    /// How many there are on all pages.
    pub total: u64,
    /// Another page follows.
    pub has_more: bool,
}

/// The answer of `generate` (HTTP-041).
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Generated {
    /// The final text.
    #[serde(default)]
    pub text: String,
    /// `stop`, `tool-calls`, `suspended`, and so on.
    #[serde(default)]
    pub finish_reason: Option<String>,
    /// The run.
    #[serde(default)]
    pub run_id: Option<RunId>,
    /// The value, with structured output.
    #[serde(default)]
    pub object: Option<Value>,
    /// All other fields.
    #[serde(flatten)]
    pub fields: Object,
}

/// An answer to a call that waits for a person (HTTP-102).
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolApproval {
    /// The call; of a delegation, the outer or the inner call (ruling 7).
    pub tool_call_id: String,
    /// Whether the call may run. Default: no.
    pub approved: bool,
    /// Why not; the model is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What a suspended tool asked for; stands in for the verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_data: Option<Value>,
    /// Input of the run that goes on, or results of client tools.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<Value>,
    /// Fields of HTTP §5.1 for the run that goes on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_options: Option<Object>,
}

impl ToolApproval {
    /// The call may run.
    pub fn approve(call: impl Into<String>) -> Self {
        Self { tool_call_id: call.into(), approved: true, ..Self::default() }
    }

    /// The call may not run.
    pub fn decline(call: impl Into<String>, reason: Option<String>) -> Self {
        Self { tool_call_id: call.into(), reason, ..Self::default() }
    }

    /// What a suspended tool asked for.
    pub fn resume(call: impl Into<String>, data: impl Into<Value>) -> Self {
        Self { resume_data: Some(data.into()), ..Self::approve(call) }
    }
}

/// The answer counts; the rest of the run comes on the thread's subscriptions.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApprovalAccepted {
    /// The run that goes on.
    pub run_id: RunId,
    /// The call that was answered.
    #[serde(default)]
    pub tool_call_id: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Discarded {
    pub(crate) discarded: bool,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Pending {
    pub(crate) pending: Vec<bugle::runtime::PendingInput>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Aborted {
    pub(crate) aborted: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Cancelled {
    pub(crate) cancelled_signal_ids: Vec<MessageId>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Edited {
    pub(crate) signal: Signal,
}
