//! What the loop is told, and what it says is to be done.

use serde_json::Value;

use super::judge::{ResultVerdict, StepVerdict};
use crate::{
    chunk::{Chunk, ErrorInfo, TripwirePayload},
    json::Object,
    message::StoredMessage,
    model::{ModelEvent, ToolOutput},
    run::{ParkedCall, StepSummary, parked::DelegatedResume},
    storage::InboxEntry,
    subagent::{DelegationRecord, IterationComplete, IterationDecision},
};

/// What has happened to the run.
#[derive(Debug)]
pub(crate) enum RunEvent {
    /// History is loaded; the run may take in its input.
    Begun,
    /// What waited was taken in, past the guards. `rejected` are the ids and reasons of input a guard refused.
    Drained { inputs: Vec<InboxEntry>, rejected: Vec<(InboxEntry, TripwirePayload)>, messages: Vec<StoredMessage> },
    /// A guard stopped the run before it began; what it stopped is kept for people (ruling 34).
    /// With an error, it broke.
    Tripped {
        tripwire: TripwirePayload,
        error: Option<ErrorInfo>,
        inputs: Vec<InboxEntry>,
        messages: Vec<StoredMessage>,
    },
    /// The commit is durable.
    Committed,
    /// The commit failed for good.
    CommitFailed(ErrorInfo),
    /// The model has answered with headers.
    Answered { model: ModelName, warnings: Vec<Value> },
    /// An event of the response.
    Model(ModelEvent),
    /// The request failed; retries and fallbacks are used up.
    ModelFailed(ErrorInfo),
    /// Input waits that may interrupt.
    InputWaits,
    /// A tool has finished.
    ToolDone { index: usize, outcome: ToolOutcome },
    /// The completion check has a verdict.
    Scored(Verdict),
    /// All of the response has passed the stream hooks.
    StreamPassed,
    /// What processors say of the step.
    StepJudged(StepVerdict),
    /// What processors say of the answer.
    ResultJudged(ResultVerdict),
    /// A processor stops the run.
    Violated(TripwirePayload),
    /// A processor broke.
    HookFailed(ErrorInfo),
    /// The failed request is to be asked again.
    RetryRequest,
    /// What the run's delegations have led to so far, before the outcome of the one that changed it.
    Delegated(DelegationRecord),
    /// The hook at the end of an iteration has answered.
    IterationJudged(IterationDecision),
    /// Stop.
    Abort,
    /// A time limit of the whole run passed.
    TimedOut(ErrorInfo),
}

/// Which model answers.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ModelName {
    pub(crate) provider: String,
    pub(crate) model: String,
}

/// How a call ended.
#[derive(Debug, Clone)]
pub(crate) enum ToolOutcome {
    /// It returned. `model_output` is what the model reads instead, if the tool says so.
    Result { value: Value, is_error: bool, model_output: Option<ToolOutput> },
    /// It failed.
    Failed(ErrorInfo),
    /// A delegation failed: clients see the error, the model reads `told`, and `result` is stored (SUB-049, SUB-090).
    FailedAs { error: ErrorInfo, told: String, result: Value },
    /// The client runs it.
    Client,
    /// It was cut off by an abort: it stays a call (LOOP-135).
    Interrupted,
    /// It waits for a person.
    Parked(Box<ParkedCall>),
    /// A person declined it (LOOP-112).
    Denied { reason: String },
    /// It was not started, since a call before it waits for a person.
    NotStarted,
}

/// What a completion check says.
#[derive(Debug, Clone)]
pub(crate) struct Verdict {
    pub(crate) passed: bool,
    /// The `is-task-complete` payload.
    pub(crate) payload: Object,
    /// Told to the model.
    pub(crate) feedback: Option<String>,
    /// The feedback is not stored (SCO-043).
    pub(crate) suppress_feedback: bool,
}

/// What is to be done, in order.
#[derive(Debug)]
pub(crate) enum RunEffect {
    /// Give what waits for the run: [`RunEvent::Drained`].
    Drain,
    /// Make what has changed durable: [`RunEvent::Committed`].
    Commit,
    /// Show a chunk.
    Emit(Chunk),
    /// Pass a chunk through the stream hooks, take in what comes out, and show it.
    Filter(Chunk),
    /// The same with what the stream hooks hold: [`RunEvent::StreamPassed`].
    FlushStream,
    /// Have the step judged: [`RunEvent::StepJudged`].
    JudgeStep,
    /// Have the answer judged: [`RunEvent::ResultJudged`].
    JudgeResult,
    /// Ask the model.
    Request,
    /// Close the request.
    CancelRequest,
    /// Run the calls: one [`RunEvent::ToolDone`] each.
    RunTools(Vec<ToolRun>),
    /// Stop the running calls, within the grace time.
    CancelTools,
    /// Check whether the work is done: [`RunEvent::Scored`].
    Score(Box<StepToScore>),
    /// An iteration has ended: [`RunEvent::IterationJudged`].
    IterationEnded(Box<IterationComplete>),
    /// A step has ended: hooks.
    StepEnded(Box<StepSummary>),
    /// The run is over.
    End(Ending),
}

/// The step whose outcome a completion check judges (SCO-033).
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StepToScore {
    pub(crate) text: String,
    /// The turn of the loop, from 1.
    pub(crate) iteration: u32,
    /// No step is left after this one.
    pub(crate) last: bool,
    pub(crate) tool_calls: Vec<Value>,
    pub(crate) tool_results: Vec<Value>,
    /// How many calls the run has had until now.
    pub(crate) work: usize,
}

/// A call to run.
#[derive(Debug, Clone)]
pub(crate) struct ToolRun {
    pub(crate) index: usize,
    pub(crate) id: String,
    pub(crate) name: String,
    /// `None` if they are no JSON.
    pub(crate) args: Option<Value>,
    /// A person has let it go on.
    pub(crate) resume: Option<ToolResume>,
}

/// How a call that waited goes on.
#[derive(Debug, Clone)]
pub(crate) enum ToolResume {
    /// It may run.
    Approved,
    /// The data it has asked for.
    Data(Value),
    /// Something below it goes on.
    Delegated(Box<DelegatedResume>),
}

/// How the run ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Ending {
    Finished,
    Failed(ErrorInfo),
    Aborted,
    Tripped(TripwirePayload),
    /// It waits for a person (LOOP-094).
    Parked,
}
