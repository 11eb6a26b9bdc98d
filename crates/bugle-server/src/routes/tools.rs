//! Tools: shown, and executed without an agent's run (HTTP §7).

use std::sync::Arc;

use bugle::{
    AgentHandle, Tool,
    json::{Object, Value, json},
    tool::{Approval, ToolContext, ToolError},
};

use super::{Answer, Route, answer, route};
use crate::{call::Call, error::Failure, fields};

pub(super) const ROUTES: &[Route] = &[
    route!(Get "/agents/{agentId}/tools/{toolId}" "A tool of the agent", of_agent),
    route!(Post "/agents/{agentId}/tools/{toolId}/execute" "Executes a tool of the agent and answers its result", execute_of_agent, body: fields::EXECUTE),
    route!(Get "/tools" "The tools of all agents, by id", list),
    route!(Get "/tools/{toolId}" "A tool", details),
    route!(Post "/tools/{toolId}/execute" "Executes a tool and answers its result", execute, body: fields::EXECUTE),
];

async fn of_agent(call: Call) -> Answer {
    let agent = call.agent()?;
    Ok(answer(describe_tool(&find(&agent, call.path("toolId"))?, false)))
}

async fn execute_of_agent(call: Call) -> Answer {
    let agent = call.agent()?;
    let tool = find(&agent, call.path("toolId"))?;
    run(&call, tool, agent.agent().id()).await
}

async fn list(call: Call) -> Answer {
    let mut tools = Object::new();
    for agent in call.bugle().agents().values() {
        for tool in agent.tools().values() {
            tools.entry(tool.id()).or_insert_with(|| describe_tool(tool, false));
        }
    }
    Ok(answer(tools))
}

async fn details(call: Call) -> Answer {
    Ok(answer(describe_tool(&find_anywhere(&call)?.0, false)))
}

async fn execute(call: Call) -> Answer {
    let (tool, agent) = find_anywhere(&call)?;
    run(&call, tool, &agent).await
}

fn unknown() -> Failure {
    Failure::not_found("Tool not found")
}

/// By id, else by the key the model knows it by.
fn find(agent: &AgentHandle, id: &str) -> Result<Tool, Failure> {
    let tools = agent.agent().tools();
    tools.values().find(|tool| tool.id() == id).or_else(|| tools.get(id)).cloned().ok_or_else(unknown)
}

/// The tool, and the id of an agent that has it (HTTP-142).
fn find_anywhere(call: &Call) -> Result<(Tool, String), Failure> {
    let id = call.path("toolId");
    let all = call.bugle().agents().values().flat_map(|agent| agent.tools().values().map(move |tool| (agent, tool)));
    all.filter(|(_, tool)| tool.id() == id)
        .map(|(agent, tool)| (tool.clone(), agent.id().to_owned()))
        .next()
        .ok_or_else(unknown)
}

/// HTTP-141: no approval is asked here.
async fn run(call: &Call, tool: Tool, agent_id: &str) -> Answer {
    let Some(execute) = tool.execute() else { return Err(Failure::bad_request("Tool is not executable")) };
    let input = call.body.get("data").cloned().unwrap_or_default();
    if let Err(report) = tool.check_input(&input) {
        return Ok(answer(report));
    }
    let abort = tokio_util::sync::CancellationToken::new();
    // A client that leaves drops this future; the tool is told so.
    let _left = abort.clone().drop_guard();
    let mut context = ToolContext::outside(format!("direct-{}", bugle::MessageId::fresh()));
    agent_id.clone_into(&mut context.agent_id);
    context.request_context = call.request_context(None);
    context.abort = abort;
    context.runtime = Some(call.bugle().clone());
    match Arc::clone(execute).execute(input, context).await {
        Ok(result) => Ok(answer(tool.check_output(&result).err().unwrap_or(result))),
        Err(ToolError::Suspend(_)) => {
            Err(Failure::bad_request("The tool waits for a person, which only an agent's run can do"))
        }
        Err(error) => Err(Failure::new(axum::http::StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
    }
}

/// HTTP-033; `partial` leaves the schemas out (HTTP-031).
pub(super) fn describe_tool(tool: &Tool, partial: bool) -> Value {
    let mut described = json!({"id": tool.id()});
    if let Some(description) = tool.description() {
        described["description"] = description.into();
    }
    if !partial {
        for (name, schema) in [("inputSchema", tool.input_schema()), ("outputSchema", tool.output_schema())] {
            if let Some(schema) = schema {
                described[name] = json!({"json": schema}).to_string().into();
            }
        }
    }
    described["requireApproval"] = (!matches!(tool.approval(), Approval::None)).into();
    described
}
