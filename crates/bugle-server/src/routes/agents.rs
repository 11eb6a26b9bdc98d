//! Agents as clients see them (HTTP §4).

use std::panic::{AssertUnwindSafe, catch_unwind};

use bugle::{
    Agent, RequestContext,
    json::{Object, Value, json},
    processor::Processors,
};

use super::{Answer, Route, answer, route, tools::describe_tool};
use crate::{
    call::{Call, flag, text},
    error::Failure,
    fields,
};

pub(super) const ROUTES: &[Route] = &[
    route!(Get "/agents" "All agents, by id", list, query: fields::AGENTS_QUERY),
    route!(Get "/agents/providers" "The model providers that can be chosen", providers),
    route!(Get "/agents/{agentId}" "An agent", details, query: fields::AGENT_QUERY),
    route!(Get "/agents/{agentId}/voice/speakers" "The agent's voices: none", speakers),
];

async fn list(call: Call) -> Answer {
    let partial = flag(&call.query, "partial").unwrap_or(false);
    let context = call.request_context(None);
    let mut agents = Object::new();
    for agent in call.bugle().agents().values() {
        // Instructions may be code of the user's; one that panics must not hide the other agents (HTTP-037).
        if let Ok(described) = catch_unwind(AssertUnwindSafe(|| describe(agent, &context, partial))) {
            agents.insert(agent.id().to_owned(), described);
        } else {
            tracing::error!(agent = agent.id(), "agent cannot be described; left out of the list");
        }
    }
    Ok(answer(agents))
}

async fn details(call: Call) -> Answer {
    let agent = call.agent()?;
    if let Some(version) = text(&call.query, "versionId") {
        return Err(Failure::not_found(format!("Version {version} of agent {} not found", agent.agent().id())));
    }
    Ok(answer(describe(agent.agent(), &call.request_context(None), false)))
}

async fn providers(_: Call) -> Answer {
    Ok(answer(json!({"providers": []})))
}

async fn speakers(call: Call) -> Answer {
    call.agent()?;
    Ok(answer(json!([])))
}

fn describe(agent: &Agent, context: &RequestContext, partial: bool) -> Value {
    let tools: Object = agent.tools().iter().map(|(key, tool)| (key.clone(), describe_tool(tool, partial))).collect();
    let agents: Object = agent
        .agents()
        .iter()
        .map(|(key, agent)| (key.clone(), json!({"id": agent.id(), "name": agent.name()})))
        .collect();
    let shown = |list: &Processors| -> Vec<Value> {
        list.iter().map(|processor| json!({"id": processor.id(), "name": processor.name()})).collect()
    };
    let models = agent.models(context);
    let mut described = json!({
        "id": agent.id(),
        "name": agent.name(),
        "description": agent.description().unwrap_or_default(),
        "instructions": agent.instructions(context).unwrap_or_default(),
        "agents": agents,
        "tools": tools,
        "workflows": {},
        "skills": [],
        "workspaceTools": [],
        "browserTools": [],
        "hasBrowser": false,
        "inputProcessors": shown(&agent.input_processors(context)),
        "outputProcessors": shown(&agent.output_processors(context)),
        "provider": models.first().map(|entry| entry.model.provider()),
        "modelId": models.first().map(|entry| entry.model.model_id()),
        "modelVersion": "v2",
        // Of the kind of agent, not of this one: `/memory/status` says whether it has any.
        "supportsMemory": true,
        "defaultOptions": default_options(agent),
        "defaultGenerateOptionsLegacy": {},
        "defaultStreamOptionsLegacy": {},
        "source": agent.source(),
        "hasDraft": false,
    });
    if models.len() > 1 {
        let list = models.iter().map(|entry| {
            json!({
                "id": format!("{}/{}", entry.model.provider(), entry.model.model_id()),
                "enabled": true,
                "maxRetries": entry.max_retries,
                "model": {"provider": entry.model.provider(), "modelId": entry.model.model_id(), "modelVersion": "v2"},
            })
        });
        described["modelList"] = list.collect();
    }
    if let Some(metadata) = agent.metadata() {
        described["metadata"] = json!(metadata);
    }
    described
}

/// What the agent sets itself; switches that are off are left out.
fn default_options(agent: &Agent) -> Value {
    match serde_json::to_value(agent.default_options()) {
        Ok(Value::Object(fields)) => fields.into_iter().filter(|(_, value)| *value != json!(false)).collect(),
        _ => json!({}),
    }
}
