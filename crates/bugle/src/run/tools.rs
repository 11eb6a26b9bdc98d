//! The tools of a run: what the model is offered, and running one call.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt;
use indexmap::IndexMap;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    APPROVAL_SCHEMA, ApprovalQuery, ApproveWhen, ParkKind, ParkedCall, RunOptions, ToolChoiceMode, ToolChoiceOption,
    ToolStrategy,
    machine::{ToolOutcome, ToolResume, ToolRun},
};
use crate::{
    agent::RequestContext,
    chunk::ErrorInfo,
    id::{RunId, ThreadKey},
    json::{Value, json},
    message::StoredMessage,
    model::{ToolChoice, ToolDefinition},
    runtime::Bugle,
    subagent::{Delegate, Delegation, Scope, SubAgents},
    tool::{Approval, Tool, ToolContext, ToolError, ToolWriter, Written, provider_safe_name},
};

/// The tools of a run, by the name the model knows.
#[derive(Debug, Clone)]
pub(crate) struct ToolTable {
    tools: IndexMap<String, Tool>,
    active: Option<Vec<String>>,
    choice: ToolChoice,
    require_approval: bool,
    /// Those of `tools` that delegate.
    delegates: IndexMap<String, Delegate>,
    approve_when: Option<ApproveWhen>,
    strategy: ToolStrategy,
}

/// What a call may use.
#[derive(Clone)]
pub(crate) struct CallContext {
    pub(crate) run_id: RunId,
    pub(crate) agent_id: String,
    pub(crate) thread: Option<ThreadKey>,
    pub(crate) messages: Arc<[StoredMessage]>,
    pub(crate) request_context: RequestContext,
    pub(crate) abort: CancellationToken,
    pub(crate) written: mpsc::Sender<Written>,
    pub(crate) runtime: Bugle,
    /// What delegations need besides.
    pub(crate) scope: Arc<Scope>,
}

impl ToolTable {
    /// The agent's tools, then those the client brings; a client tool never replaces one with server code.
    pub(crate) fn new(tools: &IndexMap<String, Tool>, extra: Vec<Tool>, options: &RunOptions) -> Self {
        let mut tools = tools.clone();
        for tool in extra {
            tools.entry(tool.id().to_owned()).or_insert(tool);
        }
        for (name, client) in &options.client_tools {
            let mut tool = Tool::client(name.clone());
            if let Some(description) = &client.description {
                tool = tool.described(description.clone());
            }
            if let Some(schema) = &client.input_schema {
                tool = tool.with_input_schema(schema.clone());
            }
            tools.entry(name.clone()).or_insert(tool);
        }
        let choice = choice_of(options.tool_choice.as_ref());
        Self {
            tools,
            active: options.active_tools.clone(),
            choice,
            require_approval: options.require_tool_approval == Some(true),
            delegates: IndexMap::new(),
            approve_when: options.approve_when.clone(),
            strategy: options.tool_strategy.unwrap_or_default(),
        }
    }

    /// The tools of one step, as processors want them (PROC-040).
    pub(crate) fn for_step(
        &self,
        tools: IndexMap<String, Tool>,
        active: Option<Vec<String>>,
        choice: Option<&ToolChoiceOption>,
    ) -> Self {
        Self { tools, active, choice: choice_of(choice), ..self.clone() }
    }

    /// All tools, by the name the model knows.
    pub(crate) fn all(&self) -> &IndexMap<String, Tool> {
        &self.tools
    }

    /// Adds the tools that delegate; one replaces a tool of the same name (SUB-005).
    pub(crate) fn with_agents(mut self, agents: SubAgents, options: &Delegation) -> Self {
        for (key, agent) in agents {
            let delegate = Delegate::new(&key, agent);
            let tool = delegate.tool(options);
            self.tools.insert(tool.id().to_owned(), tool.clone());
            self.delegates.insert(tool.id().to_owned(), delegate);
        }
        self
    }

    /// Two names that are one for a provider (LOOP-081).
    pub(crate) fn collision(&self) -> Option<(&str, &str)> {
        let mut safe = IndexMap::new();
        self.tools
            .keys()
            .find_map(|key| safe.insert(provider_safe_name(key), key).map(|other| (other.as_str(), key.as_str())))
    }

    /// Which tool the model must call.
    pub(crate) fn choice(&self) -> ToolChoice {
        self.choice.clone()
    }

    /// What the model is offered (LOOP-041, LOOP-042).
    pub(crate) fn definitions(&self) -> Vec<ToolDefinition> {
        if self.choice == ToolChoice::None {
            return Vec::new();
        }
        let active = self.tools.iter().filter(|(name, _)| self.is_active(name));
        active
            .map(|(name, tool)| ToolDefinition {
                name: name.clone(),
                description: tool.description().map(str::to_owned),
                parameters: tool
                    .input_schema()
                    .cloned()
                    .unwrap_or_else(|| json!({ "type": "object", "properties": {}, "additionalProperties": true })),
                strict: tool.is_strict(),
            })
            .collect()
    }

    /// Whether this process runs the tool.
    pub(crate) fn runs_here(&self, name: &str) -> bool {
        self.find(name).is_some_and(|tool| tool.execute().is_some() || self.delegates.contains_key(tool.id()))
    }

    fn is_active(&self, name: &str) -> bool {
        self.active.as_ref().is_none_or(|active| active.iter().any(|known| known == name))
    }

    /// By key, then by id (LOOP-061).
    fn find(&self, name: &str) -> Option<&Tool> {
        let found = self.tools.get_key_value(name).or_else(|| self.tools.iter().find(|(_, tool)| tool.id() == name));
        found.filter(|(key, _)| self.is_active(key)).map(|(_, tool)| tool)
    }

    /// Whether a call waits for a person's leave: the tool's predicate, whose verdict is final, else the tool's own word,
    /// else the run's (LOOP-090). A predicate that fails means yes.
    fn asks(&self, tool: &Tool, name: &str, id: &str, args: &Value, context: &RequestContext) -> bool {
        let judged = |verdict: &dyn Fn() -> bool| std::panic::catch_unwind(AssertUnwindSafe(verdict)).unwrap_or(true);
        match tool.approval() {
            Approval::When(predicate) => judged(&|| predicate(args, context)),
            Approval::Always => true,
            Approval::None => match &self.approve_when {
                Some(ApproveWhen(predicate)) => {
                    let asked = ApprovalQuery { tool_name: name, tool_call_id: id, args, request_context: context };
                    judged(&|| predicate(&asked))
                }
                None => self.require_approval,
            },
        }
    }

    /// Whether the calls of a step run one after the other: one that was called, or with [`ToolStrategy::Available`] one
    /// that could have been, may wait for a person (LOOP-063, LOOP-064).
    pub(crate) fn is_sequential(&self, runs: &[ToolRun]) -> bool {
        if runs.len() < 2 && self.strategy == ToolStrategy::Called {
            return false;
        }
        let may_wait = |tool: &Tool| !matches!(tool.approval(), Approval::None) || tool.suspends();
        self.require_approval
            || self.approve_when.is_some()
            || match self.strategy {
                ToolStrategy::Called => runs.iter().filter_map(|run| self.find(&run.name)).any(may_wait),
                ToolStrategy::Available => self.tools.iter().any(|(name, tool)| self.is_active(name) && may_wait(tool)),
            }
    }

    /// What a call behind one that waits for a person waits for itself, if that is a person's leave: people see all they
    /// are asked for at once, and answer in any order (R35a). With [`ToolStrategy::Available`] it is asked for when its
    /// turn comes (LOOP-095).
    pub(crate) fn waits_too(&self, run: &ToolRun, context: &RequestContext) -> Option<Box<ParkedCall>> {
        if self.strategy != ToolStrategy::Called || run.resume.is_some() {
            return None;
        }
        let tool = self.find(&run.name)?;
        let delegates = self.delegates.contains_key(tool.id());
        let args = run.args.clone()?;
        let runs_here = delegates || tool.execute().is_some() && tool.check_input(&args).is_ok();
        let asks = runs_here && self.asks(tool, &run.name, &run.id, &args, context);
        asks.then(|| waits_for_leave(run.clone(), args))
    }

    /// Runs one call. Never panics, whatever the tool does (LOOP-080).
    pub(crate) async fn run(self: Arc<Self>, run: ToolRun, context: CallContext) -> ToolOutcome {
        let Some(tool) = self.find(&run.name) else {
            let known: Vec<&str> = self.tools.keys().map(String::as_str).filter(|name| self.is_active(name)).collect();
            let message = format!("Tool \"{}\" not found. Available tools: {}", run.name, known.join(", "));
            return ToolOutcome::Failed(ErrorInfo::new("ToolNotFoundError", message));
        };
        let delegate = self.delegates.get(tool.id()).filter(|_| tool.execute().is_none());
        if tool.execute().is_none() && delegate.is_none() {
            return ToolOutcome::Client;
        }
        let Some(args) = run.args.clone() else {
            let message = format!("invalid arguments for tool {}: they are no JSON", run.name);
            return ToolOutcome::Failed(ErrorInfo::new("InvalidToolArguments", message));
        };
        let mut resume_data = None;
        let mut below = None;
        match run.resume.clone() {
            // It has been checked and asked for before.
            Some(ToolResume::Approved) => {}
            Some(ToolResume::Data(data)) => {
                if let Err(value) = tool.check_resume(&data) {
                    return ToolOutcome::Result { value, is_error: true, model_output: None };
                }
                resume_data = Some(data);
            }
            Some(ToolResume::Delegated(resume)) => below = Some(resume),
            None => {
                if delegate.is_none()
                    && let Err(value) = tool.check_input(&args)
                {
                    return ToolOutcome::Result { value, is_error: true, model_output: None };
                }
                if self.asks(tool, &run.name, &run.id, &args, &context.request_context) {
                    return ToolOutcome::Parked(waits_for_leave(run, args));
                }
            }
        }
        if let Some(delegate) = delegate {
            return delegate.run((run.id, args), context, below).await;
        }
        let Some(execute) = tool.execute() else { return ToolOutcome::Client };
        let asked = args.clone();
        let tool_context = ToolContext {
            tool_call_id: run.id.clone(),
            run_id: Some(context.run_id),
            agent_id: context.agent_id,
            thread: context.thread,
            messages: context.messages,
            request_context: context.request_context,
            abort: context.abort.clone(),
            resume_data,
            resume: below,
            writer: ToolWriter { sink: Some(context.written), tool_call_id: run.id.clone() },
            runtime: Some(context.runtime),
        };
        let result = AssertUnwindSafe(execute.execute(args, tool_context)).catch_unwind().await;
        match result {
            Err(panic) => panicked(&*panic),
            Ok(Err(_)) if context.abort.is_cancelled() => ToolOutcome::Interrupted,
            Ok(Err(ToolError::Failed { message, name })) => ToolOutcome::Failed(ErrorInfo::new(name, message)),
            Ok(Err(ToolError::Suspend(payload))) => ToolOutcome::Parked(Box::new(ParkedCall {
                tool_call_id: run.id,
                tool_name: run.name,
                args: asked,
                kind: ParkKind::Suspension { payload },
                resume_schema: tool.resume_schema().map(schema_text),
                delegated: None,
            })),
            Ok(Err(ToolError::Delegated(delegated))) => ToolOutcome::Parked(Box::new(ParkedCall {
                tool_call_id: run.id,
                tool_name: run.name,
                args: asked,
                kind: delegated.surface.kind.clone(),
                resume_schema: delegated.surface.resume_schema.clone(),
                delegated: Some(delegated),
            })),
            Ok(Ok(value)) => match tool.check_output(&value) {
                Err(value) => ToolOutcome::Result { value, is_error: true, model_output: None },
                Ok(()) => {
                    let model_output = tool.to_model_output().map(|map| map(&value));
                    ToolOutcome::Result { value, is_error: false, model_output }
                }
            },
        }
    }
}

/// A call that waits for a person's leave.
fn waits_for_leave(run: ToolRun, args: Value) -> Box<ParkedCall> {
    Box::new(ParkedCall {
        tool_call_id: run.id,
        tool_name: run.name,
        args,
        kind: ParkKind::Approval,
        resume_schema: Some(APPROVAL_SCHEMA.to_owned()),
        delegated: None,
    })
}

/// A schema as clients read it: text, with its dialect (LOOP-091).
fn schema_text(schema: &Value) -> String {
    let Value::Object(fields) = schema else { return schema.to_string() };
    if fields.contains_key("$schema") {
        return schema.to_string();
    }
    let mut with_dialect = crate::json::Object::new();
    with_dialect.insert("$schema".to_owned(), "http://json-schema.org/draft-07/schema#".into());
    with_dialect.extend(fields.clone());
    Value::Object(with_dialect).to_string()
}

fn choice_of(option: Option<&ToolChoiceOption>) -> ToolChoice {
    match option {
        None | Some(ToolChoiceOption::Mode(ToolChoiceMode::Auto)) => ToolChoice::Auto,
        Some(ToolChoiceOption::Mode(ToolChoiceMode::None)) => ToolChoice::None,
        Some(ToolChoiceOption::Mode(ToolChoiceMode::Required)) => ToolChoice::Required,
        Some(ToolChoiceOption::Tool { tool_name, .. }) => ToolChoice::Tool(tool_name.clone()),
    }
}

/// A tool that panicked has failed (LOOP-080).
pub(crate) fn panicked(panic: &(dyn std::any::Any + Send)) -> ToolOutcome {
    ToolOutcome::Failed(ErrorInfo::new("ToolPanic", panic_text(panic)))
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the tool panicked: {}", text.unwrap_or_else(|| "no message".to_owned()))
}
