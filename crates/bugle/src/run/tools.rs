//! The tools of a run: what the model is offered, and running one call.

use std::{panic::AssertUnwindSafe, sync::Arc};

use futures::FutureExt;
use indexmap::IndexMap;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    RunOptions, ToolChoiceMode, ToolChoiceOption,
    machine::{ToolOutcome, ToolRun},
};
use crate::{
    agent::RequestContext,
    chunk::ErrorInfo,
    id::{RunId, ThreadKey},
    json::json,
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
        if delegate.is_none()
            && let Err(value) = tool.check_input(&args)
        {
            return ToolOutcome::Result { value, is_error: true, model_output: None };
        }
        let asks = match tool.approval() {
            Approval::When(predicate) => {
                // A predicate that fails means approval is needed (LOOP-090).
                std::panic::catch_unwind(AssertUnwindSafe(|| predicate(&args, &context.request_context)))
                    .unwrap_or(true)
            }
            Approval::Always => true,
            Approval::None => self.require_approval,
        };
        if asks {
            let message = format!(
                "tool {} needs a person's approval, which this version cannot ask for; it was not run",
                run.name
            );
            return ToolOutcome::Failed(ErrorInfo::new("ToolApprovalUnavailable", message));
        }
        if let Some(delegate) = delegate {
            return delegate.run(run, context, None).await;
        }
        let Some(execute) = tool.execute() else { return ToolOutcome::Client };
        let tool_context = ToolContext {
            tool_call_id: run.id.clone(),
            run_id: Some(context.run_id),
            agent_id: context.agent_id,
            thread: context.thread,
            messages: context.messages,
            request_context: context.request_context,
            abort: context.abort.clone(),
            resume_data: None,
            resume: None,
            writer: ToolWriter { sink: Some(context.written), tool_call_id: run.id },
            runtime: Some(context.runtime),
        };
        let result = AssertUnwindSafe(execute.execute(args, tool_context)).catch_unwind().await;
        match result {
            Err(panic) => panicked(&*panic),
            Ok(Err(_)) if context.abort.is_cancelled() => ToolOutcome::Interrupted,
            Ok(Err(ToolError::Failed { message, name })) => ToolOutcome::Failed(ErrorInfo::new(name, message)),
            Ok(Err(ToolError::Suspend(_) | ToolError::Delegated(_))) => {
                let message = format!("tool {} waits for a person, which this version cannot ask for", run.name);
                ToolOutcome::Failed(ErrorInfo::new("ToolSuspensionUnavailable", message))
            }
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
