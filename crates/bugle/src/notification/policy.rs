//! What is done with a notification when it comes in (NOTIF §4): the built-in table, and an agent's own policy.

use std::{collections::HashMap, fmt, future::Future, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures::{FutureExt, future::BoxFuture};
use serde::{Deserialize, Deserializer, Serialize};

use crate::{run::RunOptions, storage::NotificationRecord, time::Timestamp};

/// What is done with a notification (NOTIF-015).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DeliveryAction {
    /// The whole notification, now: it wakes the agent or joins its run.
    Deliver,
    /// The whole notification, in a run of its own after the active one.
    Queue,
    /// A line that counts it among others.
    Summarize,
    /// The whole notification, later.
    Defer,
    /// Nothing; it waits in the inbox until somebody looks.
    Persist,
    /// Nothing, and it is put away.
    Discard,
}

/// A decision on one notification.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Decision {
    /// What is done.
    pub action: DeliveryAction,
    /// When full delivery is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deliver_at: Option<Timestamp>,
    /// When a summary is due.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub summary_at: Option<Timestamp>,
    /// Why; kept with the record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Options of the run that it wakes, unless the sender gives some (NOTIF-017).
    #[serde(skip)]
    pub stream_options: Option<Box<RunOptions>>,
}

impl<'de> Deserialize<'de> for Decision {
    /// An action's name, or `{action, deliverAt?, summaryAt?, reason?}` (NOTIF-041).
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase", deny_unknown_fields)]
        struct Full {
            action: DeliveryAction,
            deliver_at: Option<Timestamp>,
            summary_at: Option<Timestamp>,
            reason: Option<String>,
        }
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "an action (deliver, queue, summarize, defer, persist, discard), or {action, …}")]
        enum Written {
            Name(DeliveryAction),
            Full(Full),
        }
        Ok(match Written::deserialize(deserializer)? {
            Written::Name(action) => action.into(),
            Written::Full(Full { action, deliver_at, summary_at, reason }) => {
                Self { action, deliver_at, summary_at, reason, stream_options: None }
            }
        })
    }
}

impl From<DeliveryAction> for Decision {
    fn from(action: DeliveryAction) -> Self {
        Self { action, deliver_at: None, summary_at: None, reason: None, stream_options: None }
    }
}

impl Decision {
    /// With a reason.
    pub fn because(self, reason: impl Into<String>) -> Self {
        Self { reason: Some(reason.into()), ..self }
    }

    /// Full delivery at this time.
    pub fn deliver_at(self, at: Timestamp) -> Self {
        Self { deliver_at: Some(at), ..self }
    }

    /// A summary at this time.
    pub fn summary_at(self, at: Timestamp) -> Self {
        Self { summary_at: Some(at), ..self }
    }
}

/// What a decide function knows.
#[derive(Debug, Clone)]
pub struct DecideContext {
    /// The record as it is stored.
    pub record: NotificationRecord,
    /// A run occupies the thread (NOTIF-013).
    pub is_active: bool,
    /// This moment.
    pub now: Timestamp,
}

type Decide = Arc<dyn Fn(DecideContext) -> BoxFuture<'static, Result<Option<Decision>, String>> + Send + Sync>;

/// An agent's delivery policy (NOTIF-041). The first that has an answer decides: the decide function, the record's source,
/// its priority, the default, the built-in table.
///
/// ```
/// use bugle::notification::{Decision, DeliveryAction, DeliveryPolicy};
/// let policy = DeliveryPolicy::new()
///     .source("newsletter", DeliveryAction::Discard)
///     .priority("low", DeliveryAction::Persist)
///     .decide(|asked| async move {
///         let at_night = asked.now.as_millis() % 86_400_000 < 6 * 3_600_000;
///         Ok(at_night.then(|| Decision::from(DeliveryAction::Persist).because("night")))
///     });
/// # let _ = policy;
/// ```
///
/// Its JSON form is `{default?, priorities?, sources?}`; a decision is the name of an action, or an object with it.
#[derive(Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeliveryPolicy {
    default: Option<Decision>,
    priorities: Priorities,
    sources: HashMap<String, Decision>,
    #[serde(skip)]
    decide: Option<Decide>,
}

/// Decisions by priority, none of which can be misspelt.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Priorities {
    low: Option<Decision>,
    medium: Option<Decision>,
    high: Option<Decision>,
    urgent: Option<Decision>,
}

impl Priorities {
    fn of(&mut self, priority: &str) -> Option<&mut Option<Decision>> {
        Some(match priority {
            "low" => &mut self.low,
            "medium" => &mut self.medium,
            "high" => &mut self.high,
            "urgent" => &mut self.urgent,
            _ => return None,
        })
    }

    fn get(&self, priority: &str) -> Option<&Decision> {
        match priority {
            "low" => self.low.as_ref(),
            "medium" => self.medium.as_ref(),
            "high" => self.high.as_ref(),
            "urgent" => self.urgent.as_ref(),
            _ => None,
        }
    }
}

impl fmt::Debug for DeliveryPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeliveryPolicy")
            .field("default", &self.default)
            .field("priorities", &self.priorities)
            .field("sources", &self.sources)
            .finish_non_exhaustive()
    }
}

impl DeliveryPolicy {
    /// The built-in table.
    pub fn new() -> Self {
        Self::default()
    }

    /// What is decided where nothing else says otherwise.
    pub fn otherwise(mut self, decision: impl Into<Decision>) -> Self {
        self.default = Some(decision.into());
        self
    }

    /// The decision for `low`, `medium`, `high` or `urgent`. Another priority does not exist, and changes nothing.
    pub fn priority(mut self, priority: &str, decision: impl Into<Decision>) -> Self {
        if let Some(held) = self.priorities.of(priority) {
            *held = Some(decision.into());
        }
        self
    }

    /// The decision for a source.
    pub fn source(mut self, source: impl Into<String>, decision: impl Into<Decision>) -> Self {
        self.sources.insert(source.into(), decision.into());
        self
    }

    /// A function that is asked first; `None` falls through. It is asked when a notification comes in, and again when
    /// the dispatcher delivers it, of which only the stream options count (NOTIF-042): it should have no side effects.
    /// Where it fails or panics, the built-in table decides (NOTIF-021).
    pub fn decide<F, Made>(mut self, decide: F) -> Self
    where
        F: Fn(DecideContext) -> Made + Send + Sync + 'static,
        Made: Future<Output = Result<Option<Decision>, String>> + Send + 'static,
    {
        self.decide = Some(Arc::new(move |context| decide(context).boxed()));
        self
    }

    /// What the policy says, if it says anything.
    async fn answer(&self, context: DecideContext) -> Result<Option<Decision>, String> {
        if let Some(decide) = &self.decide {
            let asked = AssertUnwindSafe(async { decide(context.clone()).await });
            let decided = asked.catch_unwind().await.unwrap_or_else(|_| Err("the decide function panicked".into()))?;
            if decided.is_some() {
                return Ok(decided);
            }
        }
        let record = &context.record;
        let named = self.sources.get(&record.source).or_else(|| self.priorities.get(&record.priority));
        Ok(named.or(self.default.as_ref()).cloned())
    }
}

/// Decides. Never fails: a policy that does is logged, and the built-in table decides (NOTIF-021). A decision without the
/// time it needs means one dispatch interval from now (NOTIF-022).
pub(super) async fn resolve(policy: Option<&DeliveryPolicy>, context: DecideContext, interval: Duration) -> Decision {
    let (record, is_active, now) = (&context.record, context.is_active, context.now);
    let built_in = built_in(&record.priority, is_active, now);
    let Some(policy) = policy else { return built_in };
    match policy.answer(context.clone()).await {
        Ok(None) => built_in,
        Ok(Some(mut decision)) => {
            let later = Some(now.plus(interval));
            match decision.action {
                DeliveryAction::Defer => decision.deliver_at = decision.deliver_at.or(later),
                DeliveryAction::Summarize => decision.summary_at = decision.summary_at.or(later),
                _ => {}
            }
            decision
        }
        Err(error) => {
            tracing::error!(notification = record.id, error, "the delivery policy failed; the built-in one decides");
            built_in.because("policy-error")
        }
    }
}

/// The options that the policy gives a run which the dispatcher wakes (NOTIF-042).
pub(super) async fn stream_options(policy: Option<&DeliveryPolicy>, context: DecideContext) -> Option<Box<RunOptions>> {
    let notification = context.record.id.clone();
    match policy?.answer(context).await {
        Ok(decision) => decision?.stream_options,
        Err(error) => {
            tracing::warn!(notification, error, "the delivery policy failed; the run is woken without its options");
            None
        }
    }
}

/// NOTIF-040.
fn built_in(priority: &str, is_active: bool, now: Timestamp) -> Decision {
    let deliver = Decision::from(DeliveryAction::Deliver);
    let summarize = Decision::from(DeliveryAction::Summarize).summary_at(now);
    match (priority, is_active) {
        ("urgent", _) => deliver.because("urgent"),
        ("high", false) => deliver.because("idle-high"),
        ("high", true) => summarize.deliver_at(now).because("active-high-summary-then-full"),
        ("medium", false) => deliver.because("idle-medium"),
        ("medium", true) => summarize.because("active-batch-summary"),
        (_, false) => summarize.because("idle-low-summary"),
        (_, true) => summarize.because("active-batch-summary"),
    }
}
