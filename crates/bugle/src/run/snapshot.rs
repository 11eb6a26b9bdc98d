//! What a run goes on from after a crash: small, and without the conversation, which is stored anyway (LOOP-101).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::parked::{KeptMessage, ParkedStep};
use crate::{chunk::Usage, id::MessageId, subagent::DelegationRecord};

/// The state of a run between two commits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RunSnapshot {
    /// The answer under construction.
    pub message_id: MessageId,
    /// The first answer of the run.
    pub first_message_id: MessageId,
    /// Counts completion checks, from 1.
    pub iteration: u32,
    /// Finished steps.
    pub steps: u32,
    /// Their usage.
    pub usage: Usage,
    /// Signals the run has placed.
    pub consumed: Vec<MessageId>,
    /// The input that started the run, if input did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake: Option<MessageId>,
    /// The run's stored messages.
    pub own: Vec<MessageId>,
    /// How often a process went on with it since its last finished step, to die of it.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub recoveries: u32,
    /// What it was about to do.
    pub phase: SnapshotPhase,
    /// Its options.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub options: Value,
    /// The step whose calls wait for a person, or waited before the run was gone on with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<ParkedStep>,
    /// Messages that no store holds: of a run without memory, of a delegated run, and those that are never stored.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kept: Vec<KeptMessage>,
    /// The first message whose text counts as the answer; all if absent (SCO-048).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_from: Option<MessageId>,
    /// What its delegations have led to.
    #[serde(default, skip_serializing_if = "DelegationRecord::is_empty")]
    pub(crate) delegation: DelegationRecord,
    /// The turn under way is the last one granted (SUB-111).
    #[serde(default, skip_serializing_if = "crate::json::is_false")]
    pub(crate) last_turn: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands references")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// What a run was about to do when it was last committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotPhase {
    /// Ask the model.
    Request,
    /// Run tools: calls without a result were started.
    Tools,
    /// Wait for a person: calls without a result were not started.
    Parked,
}
