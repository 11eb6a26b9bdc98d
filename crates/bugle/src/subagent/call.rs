//! One delegation: from the call of the parent's model to what it reads, and everything in between (SUB-071).

use std::{
    sync::{Arc, atomic::AtomicU8},
    time::Instant,
};

use tokio_util::sync::CancellationToken;

use super::{
    CompleteDecision, Delegation, DelegationComplete, DelegationContext, DelegationStart, DelegationState,
    FilterContext, HookFailure, SharedSubAgent, StartDecision, StartParams, SubAgents, SubRun, Task, TaskResult,
    ThreadScope,
    context::forwarded,
    hooks::{bailed, call},
    input::{Input, parse, schema},
    isolation::{save, thread_for},
    output,
    task::Sink,
    tool_name,
};
use crate::{
    agent::RequestContext,
    chunk::{Chunk, ErrorInfo, FinishReason, Payload},
    id::{MessageId, RunId, ThreadKey},
    json::{Object, Value, json},
    message::{PromptOptions, Role, StoredMessage},
    model::{PromptMessage, ToolOutput},
    run::{CallContext, DelegatedPark, DelegatedResume, ParkedCall, ToolOutcome},
    tool::Tool,
};

/// What the model reads of a rejection without a reason (SUB-074).
const REJECTED: &str = "Delegation rejected by onDelegationStart hook";
/// The text of a failed delegation never says more than this (SUB-090).
const FAILED_ID: &str = "AGENT_AGENT_TOOL_EXECUTION_FAILED";
const HOOK_FAILED_ID: &str = "AGENT_DELEGATION_HOOK_FAILED";

/// What the delegations of a step need to know of the run above them.
pub(crate) struct Scope {
    pub(crate) agent_name: String,
    pub(crate) options: Delegation,
    pub(crate) state: Arc<DelegationState>,
    /// The run's model turn, from 1 (SUB-073).
    pub(crate) iteration: u32,
    pub(crate) streaming: bool,
    /// The run's system messages.
    pub(crate) system: Vec<PromptMessage>,
    pub(crate) prompt_options: PromptOptions,
    /// Whose model sees the conversation.
    pub(crate) provider: Option<String>,
    pub(crate) depth: u32,
    pub(crate) depth_limit: u32,
    /// The agent's own memory stores, so a subagent without may borrow it (SUB-045).
    pub(crate) lends_memory: bool,
}

/// One subagent of a run.
#[derive(Clone)]
pub(crate) struct Delegate {
    key: String,
    name: String,
    agent: SharedSubAgent,
}

impl std::fmt::Debug for Delegate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Delegate").field("key", &self.key).finish_non_exhaustive()
    }
}

/// Two keys that name one tool (SUB-003).
pub(crate) fn check_names(agents: &SubAgents) -> Result<(), (String, String)> {
    let mut names = indexmap::IndexMap::new();
    for key in agents.keys() {
        if let Some(other) = names.insert(tool_name(key), key) {
            return Err((other.clone(), key.clone()));
        }
    }
    Ok(())
}

impl Delegate {
    pub(crate) fn new(key: &str, agent: SharedSubAgent) -> Self {
        Self { key: key.to_owned(), name: tool_name(key), agent }
    }

    /// The tool as the parent's model is offered it (SUB-002, SUB-004, SUB-010).
    pub(crate) fn tool(&self, options: &Delegation) -> Tool {
        let described = self.agent.description().filter(|text| !text.trim().is_empty());
        let description = described.map_or_else(|| format!("Agent: {}", self.key), str::to_owned);
        Tool::client(self.name.clone()).described(description).with_input_schema(schema(options.references()))
    }

    /// Runs one call to its end, or to where a person is asked.
    pub(crate) async fn run(
        &self,
        (call_id, args): (String, Value),
        context: CallContext,
        resume: Option<Box<DelegatedResume>>,
    ) -> ToolOutcome {
        let scope = context.scope.clone();
        let input = match parse(&args, &self.name, scope.options.references()) {
            Ok(input) => input,
            Err(value) => return ToolOutcome::Result { value, is_error: true, model_output: None },
        };
        let depth = scope.depth + 1;
        if depth > scope.depth_limit {
            let message = format!(
                "delegation to {} was refused: it would be {depth} levels deep, and maxDepth is {}; answer without it",
                self.key, scope.depth_limit
            );
            return ToolOutcome::Failed(ErrorInfo::new("DelegationDepthError", message));
        }
        let thread = match &resume {
            Some(resume) => ThreadKey {
                resource_id: resume.parked.resource_id.as_deref().map(Into::into),
                thread_id: resume.parked.thread_id.as_deref().unwrap_or_default().into(),
            },
            None => {
                let kind = scope.options.thread_scope.unwrap_or_default();
                thread_for(kind, context.thread.as_ref(), &self.key, &scope.state)
            }
        };
        let attempt = Attempt::new(self, &scope, &context, call_id, thread, resume.is_some());
        attempt.run(input, args, resume).await
    }
}

/// One attempt at a delegation.
struct Attempt<'a> {
    delegate: &'a Delegate,
    scope: &'a Scope,
    context: &'a CallContext,
    call_id: String,
    thread: ThreadKey,
    /// Rows are written to its thread.
    stores: bool,
    begun: Instant,
    is_resume: bool,
}

/// A delegation after its start hook.
struct Ready {
    prompt: StoredMessage,
    text: String,
    instructions: Option<String>,
    max_steps: Option<u32>,
    metadata: Option<Object>,
    request_context: RequestContext,
    messages: Vec<PromptMessage>,
}

impl<'a> Attempt<'a> {
    fn new(
        delegate: &'a Delegate,
        scope: &'a Scope,
        context: &'a CallContext,
        call_id: String,
        thread: ThreadKey,
        is_resume: bool,
    ) -> Self {
        let inherits = scope.options.inherit_memory != Some(false) && scope.lends_memory && context.thread.is_some();
        Self {
            delegate,
            scope,
            context,
            call_id,
            thread,
            stores: delegate.agent.has_memory() || inherits,
            begun: Instant::now(),
            is_resume,
        }
    }

    async fn run(&self, input: Input, args: Value, resume: Option<Box<DelegatedResume>>) -> ToolOutcome {
        let mut ready = self.ready(&input, resume.as_deref());
        let start = match self.start(&input, &ready).await {
            Ok((decision, request_context)) => {
                ready.request_context = request_context;
                decision
            }
            Err(failure) => return self.failed(&failure.info(), HOOK_FAILED_ID, None, None),
        };
        self.apply(&mut ready, start.clone(), &input);
        if !start.proceed {
            return self.reject(ready, start.rejection_reason).await;
        }
        if let Err(failure) = self.filter(&mut ready).await {
            let run = SubRun::failed(failure.info());
            return self.ended(run, &ready, Vec::new()).await;
        }
        let ended = CancellationToken::new();
        // What watches over the sub-run ends with it.
        let watching = ended.clone().drop_guard();
        let run = self.delegate.agent.run(self.task(&ready, resume.as_deref(), &ended)).await;
        drop(watching);
        let mut messages = vec![ready.prompt.clone()];
        messages.extend(run.response_messages.iter().cloned());
        if self.stores {
            // The prompt was saved when the sub-run was parked (SUB-050).
            let saved = if self.is_resume { messages[1..].to_vec() } else { messages.clone() };
            let storage = &self.context.runtime.inner.storage;
            save(storage, &self.thread, ready.metadata.as_ref(), saved).await;
        }
        if run.parked.is_some() {
            return self.parked(run, &ready, args);
        }
        self.ended(run, &ready, messages).await
    }

    /// The delegation as the model asked for it.
    fn ready(&self, input: &Input, resume: Option<&DelegatedResume>) -> Ready {
        let now = self.context.runtime.inner.clock.now();
        let held = resume.and_then(|resume| {
            serde_json::from_value::<StoredMessage>(resume.parked.context.get("prompt")?.clone()).ok()
        });
        let prompt = held.unwrap_or_else(|| {
            let text = self.scope.state.expand(&input.refs, input.prompt.clone());
            StoredMessage::text(MessageId::fresh(), Role::User, text, now)
        });
        let mut messages = Vec::new();
        if self.scope.options.include_parent_system == Some(true) {
            messages.extend(self.scope.system.iter().cloned());
        }
        messages.extend(forwarded(
            &self.context.messages,
            &self.call_id,
            &self.scope.prompt_options,
            self.scope.provider.as_deref(),
        ));
        Ready {
            text: prompt.joined_text(),
            prompt,
            instructions: input.instructions.clone(),
            max_steps: None,
            metadata: None,
            request_context: self.context.request_context.for_delegation(),
            messages,
        }
    }

    async fn start(&self, input: &Input, ready: &Ready) -> Result<(StartDecision, RequestContext), HookFailure> {
        let Some(hook) = &self.scope.options.on_delegation_start else {
            return Ok((StartDecision::proceed(), ready.request_context.clone()));
        };
        let request_context = DelegationContext::new(ready.request_context.clone());
        let parent = self.context.thread.as_ref();
        let start = DelegationStart {
            primitive_id: self.delegate.agent.id().to_owned(),
            primitive_type: "agent",
            prompt: ready.text.clone(),
            iteration: self.scope.iteration,
            request_context: request_context.clone(),
            params: StartParams {
                thread_id: parent.map(|parent| parent.thread_id.to_string()),
                resource_id: parent.and_then(|parent| parent.resource_id.as_deref().map(str::to_owned)),
                instructions: input.instructions.clone(),
                max_steps: input.max_steps,
            },
            run_id: self.context.run_id.clone(),
            thread: self.context.thread.clone(),
            parent_agent_id: self.context.agent_id.clone(),
            parent_agent_name: self.scope.agent_name.clone(),
            tool_call_id: self.call_id.clone(),
            messages: ready.messages.clone(),
            is_resume: self.is_resume,
        };
        match call(&**hook, start).await {
            Ok(decision) => Ok((decision, request_context.snapshot())),
            Err(failure) => {
                self.record("onDelegationStart", &failure);
                if self.scope.options.throws() {
                    return Err(failure);
                }
                Ok((StartDecision::proceed(), request_context.snapshot()))
            }
        }
    }

    /// Applies what the start hook said.
    fn apply(&self, ready: &mut Ready, start: StartDecision, input: &Input) {
        if let Some(text) = start.modified_prompt.filter(|_| !self.is_resume) {
            let id = ready.prompt.id.clone();
            ready.prompt = StoredMessage::text(id, Role::User, text.clone(), ready.prompt.created_at);
            ready.text = text;
        }
        if start.modified_instructions.is_some() {
            ready.instructions = start.modified_instructions;
        }
        let own = self.delegate.agent.max_steps();
        ready.max_steps = start.modified_max_steps.or_else(|| {
            let asked = input.max_steps?;
            match own.filter(|own| *own < asked) {
                Some(own) => {
                    tracing::warn!(
                        agent = self.delegate.agent.id(),
                        asked,
                        own,
                        "a step budget is lowered to the subagent's own"
                    );
                    Some(own)
                }
                None => Some(asked),
            }
        });
        ready.metadata = start.thread_metadata;
    }

    async fn reject(&self, ready: Ready, reason: Option<String>) -> ToolOutcome {
        let reason = reason.filter(|reason| !reason.is_empty()).unwrap_or_else(|| REJECTED.to_owned());
        let text = format!("[Delegation Rejected] {reason}");
        if self.scope.streaming {
            let run_id = &self.context.run_id;
            let id = format!("{}-rejected", self.call_id);
            let delta = Payload::TextDelta { id, text: text.clone(), provider_metadata: None };
            self.sink().send(Chunk::agent(run_id, delta)).await;
        }
        if self.stores {
            let at = crate::time::Timestamp::from_millis(ready.prompt.created_at.as_millis() + 1);
            let answer = StoredMessage::text(MessageId::fresh(), Role::Assistant, text.clone(), at);
            let mut messages = vec![ready.prompt, answer];
            if self.is_resume {
                messages.remove(0);
            }
            let storage = &self.context.runtime.inner.storage;
            save(storage, &self.thread, ready.metadata.as_ref(), messages).await;
        }
        let value = output::rejected(&text, &self.thread);
        ToolOutcome::Result { value, is_error: false, model_output: Some(ToolOutput::Text(text)) }
    }

    async fn filter(&self, ready: &mut Ready) -> Result<(), HookFailure> {
        // The context of a sub-run that goes on is what it saw before.
        let Some(filter) = self.scope.options.message_filter.as_ref().filter(|_| !self.is_resume) else {
            return Ok(());
        };
        let context = FilterContext {
            messages: ready.messages.clone(),
            primitive_id: self.delegate.agent.id().to_owned(),
            primitive_type: "agent",
            prompt: ready.text.clone(),
            iteration: self.scope.iteration,
            run_id: self.context.run_id.clone(),
            thread: self.context.thread.clone(),
            parent_agent_id: self.context.agent_id.clone(),
            parent_agent_name: self.scope.agent_name.clone(),
            tool_call_id: self.call_id.clone(),
        };
        match call(&**filter, context).await {
            Ok(messages) => ready.messages = messages,
            Err(failure) => {
                self.record("messageFilter", &failure);
                if self.scope.options.throws() {
                    return Err(failure);
                }
            }
        }
        Ok(())
    }

    fn task(&self, ready: &Ready, resume: Option<&DelegatedResume>, ended: &CancellationToken) -> Task {
        let kind = self.scope.options.thread_scope.unwrap_or_default();
        Task {
            run_id: resume.map_or_else(RunId::random, |resume| resume.parked.run_id.clone()),
            tool_call_id: self.call_id.clone(),
            prompt: ready.text.clone(),
            context: ready.messages.clone(),
            instructions: ready.instructions.clone(),
            max_steps: ready.max_steps,
            request_context: ready.request_context.clone(),
            thread: self.thread.clone(),
            abort: self.abort(ended),
            streaming: self.scope.streaming,
            depth: self.scope.depth + 1,
            runtime: self.context.runtime.clone(),
            message: ready.prompt.clone(),
            stores: self.stores,
            remembers: self.stores && matches!(kind, ThreadScope::Run | ThreadScope::ParentThread),
            thread_metadata: ready.metadata.clone(),
            depth_limit: self.scope.depth_limit,
            resume: resume.map(|resume| Box::new((*resume.parked.snapshot.clone(), resume.decision.clone()))),
            sink: self.sink(),
        }
    }

    /// Fires with the parent's, or when a sibling's hook cancels this one.
    fn abort(&self, ended: &CancellationToken) -> CancellationToken {
        let abort = self.context.abort.child_token();
        let (own, siblings) = (abort.clone(), self.scope.state.cancel_siblings.clone());
        let ended = ended.clone();
        self.context.runtime.inner.hub.tasks.spawn(async move {
            tokio::select! {
                () = siblings.cancelled() => own.cancel(),
                () = own.cancelled() => {}
                () = ended.cancelled() => {}
            }
        });
        abort
    }

    fn sink(&self) -> Sink {
        Sink { written: self.context.written.clone(), tool_call_id: self.call_id.clone() }
    }

    fn parked(&self, run: SubRun, ready: &Ready, args: Value) -> ToolOutcome {
        let Some(parked) = run.parked else { return ToolOutcome::Interrupted };
        let Some(first) = parked.calls.first() else { return ToolOutcome::Interrupted };
        let surface = first.surface();
        let delegated = DelegatedPark {
            run_id: parked.run_id.clone(),
            agent_id: self.delegate.agent.id().to_owned(),
            snapshot: Box::new(parked.snapshot.clone()),
            thread_id: Some(self.thread.thread_id.to_string()),
            resource_id: self.thread.resource_id.as_deref().map(str::to_owned),
            context: json!({ "prompt": ready.prompt }),
            surface: surface.clone(),
        };
        ToolOutcome::Parked(Box::new(ParkedCall {
            tool_call_id: self.call_id.clone(),
            tool_name: self.delegate.name.clone(),
            args,
            kind: surface.kind,
            resume_schema: surface.resume_schema,
            delegated: Some(Box::new(delegated)),
        }))
    }

    /// The sub-run is over: tells the hook, and says what the parent's model reads.
    async fn ended(&self, run: SubRun, ready: &Ready, messages: Vec<StoredMessage>) -> ToolOutcome {
        self.scope.state.add_usage(&run.usage);
        if let Some(usage) = &run.sub_agent_usage {
            self.scope.state.add_usage(usage);
        }
        if !run.pending_tool_calls.is_empty() {
            let tools: Vec<&str> = run.pending_tool_calls.iter().map(|call| call.tool_name.as_str()).collect();
            tracing::warn!(
                agent = self.delegate.agent.id(),
                ?tools,
                "a subagent called tools that only a client can run; they were not run: give them to the parent, or let \
                 a tool of the subagent suspend"
            );
        }
        let aborted = run.finish_reason == FinishReason::Aborted;
        let error = match &run.error {
            Some(error) => Some(error.clone()),
            None if aborted => Some(ErrorInfo::new("AbortError", "the delegation was aborted")),
            None if !run.is_success() => Some(ErrorInfo::new("Error", "the subagent ended with an error")),
            None => None,
        };
        let (decision, hook_error) = self.complete(&run, error.as_ref(), ready, messages).await;
        let stopped = self.context.abort.is_cancelled() || self.scope.state.cancel_siblings.is_cancelled();
        if aborted && stopped {
            return ToolOutcome::Interrupted;
        }
        if let Some(error) = error {
            tracing::warn!(agent = self.delegate.agent.id(), error = error.message, "a delegation failed");
            return self.failed(&error, FAILED_ID, decision.result_text, hook_error.as_ref());
        }
        if let Some(failure) = hook_error.filter(|_| self.scope.options.throws()) {
            return self.failed(&failure.info(), FAILED_ID, None, None);
        }
        let text = decision.result_text.clone().unwrap_or_else(|| run.text.clone());
        let minted = self.scope.options.references() && !text.trim().is_empty();
        let reference = minted.then(|| self.scope.state.mint(&self.delegate.key, &text));
        let value = output::payload(&run, &text, &self.thread, reference.as_deref());
        let replaced = decision.result_text.as_deref();
        let told = output::for_model(&run, self.delegate.agent.name(), replaced, reference.as_deref());
        let whole = self.scope.options.include_sub_agent_tool_results_in_model_context == Some(true);
        let model_output = Some(output::project(told, &value, whole));
        ToolOutcome::Result { value, is_error: false, model_output }
    }

    async fn complete(
        &self,
        run: &SubRun,
        error: Option<&ErrorInfo>,
        ready: &Ready,
        messages: Vec<StoredMessage>,
    ) -> (CompleteDecision, Option<HookFailure>) {
        let Some(hook) = &self.scope.options.on_delegation_complete else {
            return (CompleteDecision::default(), None);
        };
        let bail = Arc::new(AtomicU8::new(0));
        let done = DelegationComplete {
            primitive_id: self.delegate.agent.id().to_owned(),
            primitive_type: "agent",
            prompt: ready.text.clone(),
            result: TaskResult {
                text: run.text.clone(),
                usage: Some(run.usage.clone()),
                finish_reason: Some(run.finish_reason),
                sub_agent_tool_results: run.tool_results.clone(),
                sub_agent_pending_tool_calls: run.pending_tool_calls.clone(),
                sub_agent_thread_id: self.thread.thread_id.to_string(),
                sub_agent_resource_id: self.thread.resource_id.as_deref().unwrap_or_default().to_owned(),
            },
            success: error.is_none(),
            error: error.cloned(),
            messages,
            duration_ms: u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX),
            iteration: self.scope.iteration,
            run_id: self.context.run_id.clone(),
            tool_call_id: self.call_id.clone(),
            parent_agent_id: self.context.agent_id.clone(),
            parent_agent_name: self.scope.agent_name.clone(),
            bail: bail.clone(),
        };
        match call(&**hook, done).await {
            Ok(decision) => {
                let (bails, cancels) = bailed(&bail);
                if bails {
                    self.scope.state.bail(cancels);
                }
                if let Some(feedback) = decision.feedback.clone().filter(|text| !text.is_empty()) {
                    self.scope.state.tell_next_turn(feedback);
                }
                (decision, None)
            }
            Err(failure) => {
                self.record("onDelegationComplete", &failure);
                (CompleteDecision::default(), Some(failure))
            }
        }
    }

    /// A failed tool result: the model reads a generic text, or what a hook put in its place (SUB-090, SUB-099).
    fn failed(
        &self,
        cause: &ErrorInfo,
        id: &str,
        result_text: Option<String>,
        hook: Option<&HookFailure>,
    ) -> ToolOutcome {
        let generic =
            format!("[Agent:{}] - Failed agent tool execution for {}", self.scope.agent_name, self.delegate.key);
        let ids = json!({
            "subAgentThreadId": self.thread.thread_id,
            "subAgentResourceId": self.thread.resource_id,
        });
        let mut details = json!({
            "agentName": self.scope.agent_name,
            "subAgentName": self.delegate.agent.name(),
            "subAgentThreadId": self.thread.thread_id,
            "subAgentResourceId": self.thread.resource_id,
            "runId": self.context.run_id,
        });
        if let Some(parent) = &self.context.thread {
            details["threadId"] = json!(parent.thread_id);
            details["resourceId"] = json!(parent.resource_id);
        }
        if let Some(hook) = hook {
            details["hookError"] = json!({ "name": hook.name, "message": hook.message });
        }
        let mut error = ErrorInfo::new("Error", generic.clone());
        error.id = Some(id.to_owned());
        error.details = Some(details);
        error.cause = Some(Box::new(cause.clone()));
        ToolOutcome::FailedAs { error, told: result_text.unwrap_or(generic), result: ids }
    }

    /// Keeps a hook's failure where the parent's caller reads it (SUB-085).
    fn record(&self, hook: &str, failure: &HookFailure) {
        let tool_call_id = &self.call_id;
        let (name, message) = (&failure.name, &failure.message);
        tracing::warn!(hook, tool_call_id, name, message, "a hook of a delegation failed");
        self.context.request_context.record_hook_error(json!({
            "hook": hook,
            "primitiveId": self.delegate.agent.id(),
            "toolCallId": self.call_id,
            "runId": self.context.run_id,
            "name": name,
            "message": message,
        }));
    }
}
