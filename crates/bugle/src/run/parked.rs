//! What waits for a person: parked calls, the step they belong to, and the person's decision (LOOP §7, SUB §11).

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::RunSnapshot;
use crate::{
    chunk::{FinishReason, ResponseMetadata, Usage},
    error::Error,
    id::{MessageId, RunId},
    json::{Object, json},
    message::StoredMessage,
};

/// The JSON Schema of the answer to an approval, as clients of the reference know it (LOOP-091).
pub const APPROVAL_SCHEMA: &str = r#"{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"approved":{"type":"boolean","description":"Controls if the tool call is approved or not, should be true when approved and false when declined"},"reason":{"description":"Optional explanation for the decision, surfaced to the model when the tool call is declined","type":"string"}},"required":["approved"],"additionalProperties":false}"#;

/// What the model reads of a call that was declined without a reason (LOOP-112).
pub const NOT_APPROVED: &str = "Tool call was not approved by the user";

/// A call that waits for a person.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParkedCall {
    /// The call.
    pub tool_call_id: String,
    /// The tool.
    pub tool_name: String,
    /// Its arguments.
    pub args: Value,
    /// What it waits for.
    #[serde(flatten)]
    pub kind: ParkKind,
    /// JSON Schema of the answer, as text; absent if the tool declares none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_schema: Option<String>,
    /// The call is a delegation, and something below it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delegated: Option<Box<DelegatedPark>>,
}

/// What a parked call waits for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "waitsFor", rename_all = "lowercase")]
pub enum ParkKind {
    /// Leave to run.
    Approval,
    /// Data, which the tool has asked for.
    Suspension {
        /// What it told the person.
        payload: Value,
    },
}

impl ParkKind {
    /// Whether it waits for leave to run.
    pub fn is_approval(&self) -> bool {
        matches!(self, Self::Approval)
    }

    /// What input behind the run is told it waits for (SIG-381).
    pub fn waiting_for(&self) -> &'static str {
        match self {
            Self::Approval => "approval",
            Self::Suspension { .. } => "resume",
        }
    }
}

/// A delegated run that waits: it has no record of its own, all of it lies in its parent's parked call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DelegatedPark {
    /// The delegated run.
    pub run_id: RunId,
    /// Its agent.
    pub agent_id: String,
    /// Where it stands, its messages included.
    pub snapshot: Box<RunSnapshot>,
    /// The innermost call that a person is asked about.
    pub surface: SurfaceCall,
    /// Its thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// Its resource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_id: Option<String>,
    /// What the delegation itself needs to go on; its own matter.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub context: Value,
}

/// The call below a delegation that a person is asked about (SUB-121, SUB-122).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SurfaceCall {
    /// The call.
    pub tool_call_id: String,
    /// The tool.
    pub tool_name: String,
    /// Its arguments.
    pub args: Value,
    /// What it waits for.
    #[serde(flatten)]
    pub kind: ParkKind,
    /// JSON Schema of the answer, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume_schema: Option<String>,
}

/// A person's answer to a parked call.
///
/// ```
/// use bugle::run::Decision;
/// let yes = Decision::approve(Some("call_1"));
/// assert_eq!(yes.data, serde_json::json!({ "approved": true }));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// Which call: its id or that of a call below it (rulings 7, 37). The first parked one if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_call_id: Option<String>,
    /// `{approved, reason?}`, or the data a suspended tool asked for.
    pub data: Value,
}

impl Decision {
    /// Lets the call run.
    pub fn approve(tool_call_id: Option<&str>) -> Self {
        Self { tool_call_id: tool_call_id.map(str::to_owned), data: json!({ "approved": true }) }
    }

    /// Declines the call; the model reads the reason.
    pub fn decline(tool_call_id: Option<&str>, reason: Option<&str>) -> Self {
        let mut data = Object::new();
        data.insert("approved".to_owned(), false.into());
        if let Some(reason) = reason {
            data.insert("reason".to_owned(), reason.into());
        }
        Self { tool_call_id: tool_call_id.map(str::to_owned), data: Value::Object(data) }
    }

    /// Answers a suspended tool.
    pub fn resume(tool_call_id: Option<&str>, data: Value) -> Self {
        Self { tool_call_id: tool_call_id.map(str::to_owned), data }
    }

    /// Whether it lets an approval pass: only `approved: true` does.
    pub fn is_approval(&self) -> bool {
        self.data.get("approved") == Some(&Value::Bool(true))
    }

    /// Why it was declined, in the model's words (LOOP-112).
    pub fn reason(&self) -> String {
        let reason = self.data.get("reason").or_else(|| self.data.get("declineContext")?.get("reason"));
        reason.and_then(Value::as_str).filter(|reason| !reason.is_empty()).unwrap_or(NOT_APPROVED).to_owned()
    }
}

/// How a delegation goes on: handed to its tool with the call.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DelegatedResume {
    /// Where the delegated run stands.
    pub(crate) parked: DelegatedPark,
    /// For the call below; its id is absent if the delegation's own was given.
    pub(crate) decision: Decision,
}

/// A step that was left while calls of it wait.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ParkedStep {
    /// The message that holds the calls.
    pub message_id: MessageId,
    /// Its calls, in order.
    pub calls: Vec<StepCall>,
    /// Why the response ended.
    pub reason: FinishReason,
    /// As the provider said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_reason: Option<String>,
    /// What the response cost.
    pub usage: Usage,
    /// What the response said, if the conversation does not hold it any more.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Who answered: provider and model.
    pub model: (String, String),
    /// Which response it was.
    #[serde(default)]
    pub metadata: ResponseMetadata,
    /// What the provider warned of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Value>,
}

/// A call of a parked step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepCall {
    /// The call.
    pub tool_call_id: String,
    /// The tool.
    pub tool_name: String,
    /// Its arguments; absent if they are no JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub args: Option<Value>,
    /// Where it stands.
    pub state: StepCallState,
}

/// Where a call of a parked step stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "is", content = "call", rename_all = "lowercase")]
pub enum StepCallState {
    /// Not started. In the record of a run at work: perhaps started, outcome unknown.
    Open,
    /// Its outcome is in the conversation.
    Done,
    /// The client runs it.
    Client,
    /// It waits for a person.
    Parked(Box<ParkedCall>),
}

impl ParkedCall {
    /// The ids that address it below its own, outermost first (ruling 7).
    pub fn inner_ids(&self) -> Vec<&str> {
        let Some(delegated) = &self.delegated else { return Vec::new() };
        let mut ids: Vec<&str> = delegated
            .snapshot
            .step
            .iter()
            .flat_map(ParkedStep::parked)
            .flat_map(|call| std::iter::once(call.tool_call_id.as_str()).chain(call.inner_ids()))
            .collect();
        if ids.is_empty() {
            ids.push(&delegated.surface.tool_call_id);
        }
        ids
    }

    /// What a person is asked about: the innermost call, under this call's id (SUB-121, SUB-122).
    pub fn shown(&self) -> (&str, &Value) {
        match &self.delegated {
            Some(delegated) if self.kind.is_approval() => (&delegated.surface.tool_name, &delegated.surface.args),
            _ => (&self.tool_name, &self.args),
        }
    }

    /// The call as it surfaces in the run above.
    pub fn surface(&self) -> SurfaceCall {
        if let Some(delegated) = &self.delegated {
            return delegated.surface.clone();
        }
        SurfaceCall {
            tool_call_id: self.tool_call_id.clone(),
            tool_name: self.tool_name.clone(),
            args: self.args.clone(),
            kind: self.kind.clone(),
            resume_schema: self.resume_schema.clone(),
        }
    }

    /// JSON Schema of the answer, as text (LOOP-091).
    pub fn schema_text(&self) -> &str {
        self.resume_schema.as_deref().unwrap_or(match self.kind {
            ParkKind::Approval => APPROVAL_SCHEMA,
            ParkKind::Suspension { .. } => "{}",
        })
    }
}

impl ParkedStep {
    /// The calls that wait, in order.
    pub fn parked(&self) -> impl Iterator<Item = &ParkedCall> {
        self.calls.iter().filter_map(|call| match &call.state {
            StepCallState::Parked(parked) => Some(&**parked),
            _ => None,
        })
    }

    /// The call that a decision is about, and the decision as that call understands it (rulings 7, 37).
    ///
    /// # Errors
    /// [`Error::NotSuspended`] if none, [`Error::AmbiguousToolCall`] if an inner id fits several.
    pub fn find(&self, run_id: &RunId, decision: &Decision) -> Result<(&ParkedCall, Decision), Error> {
        let not_parked = || Error::NotSuspended {
            run_id: run_id.clone(),
            tool_call_id: decision.tool_call_id.clone(),
            answered: decision
                .tool_call_id
                .as_ref()
                .is_none_or(|id| self.calls.iter().any(|call| call.tool_call_id == *id)),
        };
        let Some(id) = &decision.tool_call_id else {
            return self.parked().next().map(|call| (call, decision.clone())).ok_or_else(not_parked);
        };
        if let Some(call) = self.parked().find(|call| call.tool_call_id == *id) {
            return Ok((call, Decision { tool_call_id: None, ..decision.clone() }));
        }
        let mut inner = self.parked().filter(|call| call.inner_ids().contains(&id.as_str()));
        match (inner.next(), inner.next()) {
            (None, _) => Err(not_parked()),
            (Some(call), None) => Ok((call, decision.clone())),
            (Some(first), Some(second)) => {
                let all = [first, second].into_iter().chain(inner);
                let tool_call_ids = all.map(|call| call.tool_call_id.clone()).collect();
                Err(Error::AmbiguousToolCall { tool_call_id: id.clone(), tool_call_ids })
            }
        }
    }
}

/// What a parked run leaves to the one who started it, if that is another run.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ParkedOutput {
    /// Where it stands, its messages included.
    pub(crate) snapshot: RunSnapshot,
    /// What waits, in call order; never empty.
    pub(crate) calls: Vec<ParkedCall>,
}

/// A message kept with a snapshot, since no store holds it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeptMessage {
    /// The message.
    pub message: StoredMessage,
    /// It belongs to the run; else it was remembered, or is context.
    #[serde(default)]
    pub own: bool,
    /// It is never stored: context, feedback, transient signals.
    #[serde(default)]
    pub ephemeral: bool,
}
