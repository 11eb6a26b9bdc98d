//! Health, capabilities, the OpenAPI document, and the cheap answers that Studio asks for (HTTP-216, 230, 231).

use std::sync::Arc;

use axum::{
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use bugle::{
    RequestContext,
    json::{Object, json},
};

use super::{Answer, Route, answer, route};
use crate::call::{App, Call};

pub(super) const ROUTES: &[Route] = &[
    route!(Get "/openapi.json" "This document", document),
    route!(Get "/auth/capabilities" "Whether tokens are asked for", capabilities),
    route!(Get "/system/packages" "What the server is made of", packages),
    route!(Get "/editor/builder/settings" "The agent editor: there is none", builder_settings),
    route!(Get "/editor/builder/models/available" "Models of the agent editor: none", no_providers),
    route!(Get "/workspaces" "Workspaces: none", workspaces),
    route!(Get "/workflows" "Workflows: none", nothing),
    route!(Get "/processors" "The agents' processors, by id", processors),
    route!(Get "/scores/scorers" "Scorers: none", nothing),
    route!(Get "/mcp/v0/servers" "Served tool servers: none", mcp_servers),
    route!(Get "/channels/platforms" "Channels: none", no_list),
    route!(Get "/experiments/review-summary" "Experiments: none", review_summary),
    route!(Get "/stored/agents/{agentId}/versions" "Stored versions of an agent: none", versions),
];

/// HTTP-002; while draining, whoever balances load should look elsewhere (CLI-072).
pub(super) async fn health(State(app): State<Arc<App>>) -> Response {
    let draining = app.bugle.is_draining();
    let status = if draining { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    (status, axum::Json(json!({"success": !draining}))).into_response()
}

async fn document(call: Call) -> Answer {
    Ok(([(header::CONTENT_TYPE, "application/json")], call.app.document.clone()).into_response())
}

async fn capabilities(call: Call) -> Answer {
    Ok(answer(json!({"enabled": call.app.options.auth.is_on(), "login": null})))
}

async fn packages(call: Call) -> Answer {
    // The kind of store, never its address.
    let store = call.bugle().storage().describe();
    let kind = store.split(':').next().unwrap_or_default();
    Ok(answer(json!({
        "packages": [], "isDev": false, "cmsEnabled": false, "observabilityEnabled": false, "storageType": kind,
    })))
}

async fn builder_settings(_: Call) -> Answer {
    Ok(answer(json!({"enabled": false, "modelPolicy": {"active": false}})))
}

async fn no_providers(_: Call) -> Answer {
    Ok(answer(json!({"providers": []})))
}

async fn workspaces(_: Call) -> Answer {
    Ok(answer(json!({"workspaces": []})))
}

async fn nothing(_: Call) -> Answer {
    Ok(answer(json!({})))
}

async fn no_list(_: Call) -> Answer {
    Ok(answer(json!([])))
}

async fn processors(call: Call) -> Answer {
    let mut processors = Object::new();
    for agent in call.bugle().agents().values() {
        let context = RequestContext::default();
        for (phase, list) in
            [("input", agent.input_processors(&context)), ("output", agent.output_processors(&context))]
        {
            for processor in list.iter() {
                let id = processor.id();
                let entry = processors.entry(id).or_insert_with(|| {
                    json!({
                        "id": id, "name": processor.name(), "phases": [], "agentIds": [], "configurations": [],
                        "isWorkflow": false,
                    })
                });
                for (list, item) in [
                    ("phases", json!(phase)),
                    ("agentIds", json!(agent.id())),
                    ("configurations", json!({"agentId": agent.id(), "type": phase})),
                ] {
                    if let Some(list) = entry[list].as_array_mut()
                        && !list.contains(&item)
                    {
                        list.push(item);
                    }
                }
            }
        }
    }
    Ok(answer(processors))
}

async fn mcp_servers(_: Call) -> Answer {
    Ok(answer(json!({"servers": [], "total_count": 0, "next": null})))
}

async fn review_summary(_: Call) -> Answer {
    Ok(answer(json!({"counts": []})))
}

async fn versions(call: Call) -> Answer {
    call.agent()?;
    Ok(answer(json!({"versions": [], "total": 0, "page": 0, "perPage": 20, "hasMore": false})))
}
