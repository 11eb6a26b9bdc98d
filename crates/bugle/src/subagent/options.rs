//! How an agent delegates (SUB-070).

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};

use super::{
    CompleteDecision, DelegationComplete, DelegationStart, FilterContext, HookFailure, StartDecision, ThreadScope,
};
use crate::model::PromptMessage;

/// What a hook gives, once awaited.
pub type HookAnswer<T> = BoxFuture<'static, Result<T, HookFailure>>;
/// See [`Delegation::on_delegation_start`].
pub type StartHook = Arc<dyn Fn(DelegationStart) -> HookAnswer<StartDecision> + Send + Sync>;
/// See [`Delegation::on_delegation_complete`].
pub type CompleteHook = Arc<dyn Fn(DelegationComplete) -> HookAnswer<CompleteDecision> + Send + Sync>;
/// See [`Delegation::message_filter`].
pub type MessageFilter = Arc<dyn Fn(FilterContext) -> HookAnswer<Vec<PromptMessage>> + Send + Sync>;

/// What a failing hook does (SUB-086).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HookErrorStrategy {
    /// It is recorded, and the delegation goes on as if the hook had said nothing.
    #[default]
    Warn,
    /// The delegation fails.
    Throw,
}

/// Options of delegation, in an agent's default options or for one run; merged field by field, the run's first
/// (SUB-070). They apply to the agent's own subagents, not to theirs (SUB-036, SUB-071).
///
/// ```
/// use bugle::subagent::{CompleteDecision, Delegation};
/// let delegation = Delegation::default()
///     .on_delegation_complete(|done| async move {
///         if !done.success {
///             done.bail();
///         }
///         Ok(CompleteDecision::default())
///     })
///     .message_filter(|context| async move { Ok(context.messages.into_iter().rev().take(4).rev().collect()) });
/// assert!(delegation.enable_result_references.is_none());
/// ```
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Delegation {
    /// Asked before a delegation: lets it pass, changes or rejects it (SUB §7.1).
    #[serde(skip)]
    pub on_delegation_start: Option<StartHook>,
    /// Told of its end (SUB §7.3).
    #[serde(skip)]
    pub on_delegation_complete: Option<CompleteHook>,
    /// Says which of the conversation the subagent sees (SUB-078).
    #[serde(skip)]
    pub message_filter: Option<MessageFilter>,
    /// What a failing hook does. Default: [`HookErrorStrategy::Warn`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hook_error_strategy: Option<HookErrorStrategy>,
    /// The model reads the whole payload as JSON instead of the text (SUB-022). Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include_sub_agent_tool_results_in_model_context: Option<bool>,
    /// Results get references that later delegations can use (SUB §9). Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable_result_references: Option<bool>,
    /// A subagent without memory saves its transcript with the parent's (SUB-045). Default: true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inherit_memory: Option<bool>,
    /// The parent's system messages are forwarded too (SUB-034, ruling 9). Default: false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub include_parent_system: Option<bool>,
    /// How deep delegations may nest, counted from the top run, which is 0 (SUB-165). Default: 8. A run below another
    /// never has more than its parent allows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_depth: Option<u32>,
    /// Which thread a subagent has. Default: one for each delegation (SUB-040).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_scope: Option<ThreadScope>,
}

impl fmt::Debug for Delegation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delegation")
            .field("on_delegation_start", &self.on_delegation_start.is_some())
            .field("on_delegation_complete", &self.on_delegation_complete.is_some())
            .field("message_filter", &self.message_filter.is_some())
            .field("hook_error_strategy", &self.hook_error_strategy)
            .finish_non_exhaustive()
    }
}

impl Delegation {
    /// Asked before each delegation; awaited. One hook, not a list: the last one set is used.
    #[must_use]
    pub fn on_delegation_start<F, R>(mut self, hook: F) -> Self
    where
        F: Fn(DelegationStart) -> R + Send + Sync + 'static,
        R: Future<Output = Result<StartDecision, HookFailure>> + Send + 'static,
    {
        self.on_delegation_start = Some(Arc::new(move |start| Box::pin(hook(start))));
        self
    }

    /// Told of each delegation's end, once, success or failure; awaited (SUB-080).
    #[must_use]
    pub fn on_delegation_complete<F, R>(mut self, hook: F) -> Self
    where
        F: Fn(DelegationComplete) -> R + Send + Sync + 'static,
        R: Future<Output = Result<CompleteDecision, HookFailure>> + Send + 'static,
    {
        self.on_delegation_complete = Some(Arc::new(move |done| Box::pin(hook(done))));
        self
    }

    /// Says which messages of the parent's conversation are forwarded; what it returns replaces them all.
    #[must_use]
    pub fn message_filter<F, R>(mut self, filter: F) -> Self
    where
        F: Fn(FilterContext) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Vec<PromptMessage>, HookFailure>> + Send + 'static,
    {
        self.message_filter = Some(Arc::new(move |context| Box::pin(filter(context))));
        self
    }

    /// These options where they say something, else those of `base`.
    pub(crate) fn over(&self, base: &Self) -> Self {
        Self {
            on_delegation_start: self.on_delegation_start.clone().or_else(|| base.on_delegation_start.clone()),
            on_delegation_complete: self.on_delegation_complete.clone().or_else(|| base.on_delegation_complete.clone()),
            message_filter: self.message_filter.clone().or_else(|| base.message_filter.clone()),
            hook_error_strategy: self.hook_error_strategy.or(base.hook_error_strategy),
            include_sub_agent_tool_results_in_model_context: self
                .include_sub_agent_tool_results_in_model_context
                .or(base.include_sub_agent_tool_results_in_model_context),
            enable_result_references: self.enable_result_references.or(base.enable_result_references),
            inherit_memory: self.inherit_memory.or(base.inherit_memory),
            include_parent_system: self.include_parent_system.or(base.include_parent_system),
            max_depth: self.max_depth.or(base.max_depth),
            thread_scope: self.thread_scope.or(base.thread_scope),
        }
    }

    /// What a run that follows one with these options takes over: no callbacks (SIG-252).
    pub(crate) fn without_hooks(&self) -> Self {
        Self { on_delegation_start: None, on_delegation_complete: None, message_filter: None, ..self.clone() }
    }

    /// Whether it says nothing that can be written down.
    pub(crate) fn says_nothing(&self) -> bool {
        serde_json::to_value(self).is_ok_and(|value| value.as_object().is_some_and(serde_json::Map::is_empty))
    }

    pub(crate) fn references(&self) -> bool {
        self.enable_result_references == Some(true)
    }

    pub(super) fn throws(&self) -> bool {
        self.hook_error_strategy == Some(HookErrorStrategy::Throw)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::json;

    #[test]
    fn sub_070_options_are_merged_field_by_field() {
        let base = Delegation { enable_result_references: Some(true), max_depth: Some(3), ..Delegation::default() }
            .message_filter(|_| async { Ok(Vec::new()) });
        let call = Delegation { max_depth: Some(2), ..Delegation::default() }
            .on_delegation_start(|_| async { Ok(StartDecision::proceed()) });
        let merged = call.over(&base);
        assert!(merged.on_delegation_start.is_some() && merged.message_filter.is_some());
        assert_eq!((merged.max_depth, merged.enable_result_references), (Some(2), Some(true)));
    }

    #[test]
    fn sub_170_what_can_travel_is_read_and_written() {
        let body = json!({"hookErrorStrategy": "throw", "includeSubAgentToolResultsInModelContext": true});
        let delegation: Delegation = serde_json::from_value(body.clone()).unwrap();
        assert!(delegation.throws());
        assert_eq!(serde_json::to_value(&delegation).unwrap(), body);
        assert!(Delegation::default().says_nothing());
    }
}
