//! What a server says when it is ready (CLI-063, CLI-064).

use bugle::json::{Value, json};

use super::plan::Plan;
use crate::out::{Out, Style};

/// The bus of this version: within the process. What the store holds is shared by all who have it open.
const PUBSUB: &str = "memory:";

/// `dev` on a terminal or in a file.
pub(super) fn dev(plan: &Plan, origin: &str, storage: &str, out: Out, quiet: bool) {
    if !quiet {
        let prefix = plan.settings.text("server.prefix").unwrap_or("/api");
        let agents: Vec<String> =
            plan.agents.iter().map(|served| format!("{} ({})", served.agent.id(), served.model)).collect();
        let tools: Vec<String> = plan
            .agents
            .iter()
            .filter(|served| !served.agent.tools().is_empty())
            .map(|served| match served.agent.tools().len() {
                1 => format!("{}: 1 tool", served.agent.id()),
                count => format!("{}: {count} tools", served.agent.id()),
            })
            .collect();
        let mut text =
            format!("{}\n\n", out.paint(Style::Bold, concat!("bugle ", env!("CARGO_PKG_VERSION"), " (dev)")));
        let mut rows = Vec::new();
        let mut row = |name: &str, value: &str| {
            if !value.is_empty() {
                rows.push(format!("  {name:<9} {value}"));
            }
        };
        row("API", &format!("{origin}{prefix}"));
        row("agents", &agents.join(", "));
        row("tools", &tools.join(", "));
        row("signals", &signals(plan).join("; "));
        row("storage", storage);
        row("auth", &plan.auth_text());
        let hint =
            if plan.is_demo { "bugle send \"[[call clock]] [[say It is late.]]\"" } else { "bugle send \"Hello\"" };
        rows.push(format!("\n  try       {hint}\n"));
        text.push_str(&rows.join("\n"));
        out.print(&text);
    }
    warnings(plan, out);
}

/// `support: tasks, github`, for each agent that names signal providers.
fn signals(plan: &Plan) -> Vec<String> {
    let named = plan.agents.iter().filter(|served| !served.signals.is_empty());
    named.map(|served| format!("{}: {}", served.agent.id(), served.signals.join(", "))).collect()
}

/// What is missing, one line each.
pub(super) fn warnings(plan: &Plan, out: Out) {
    for problem in &plan.left_out {
        out.note(Style::Yellow, &format!("! {problem}; left out"));
    }
    for warning in plan.warnings() {
        out.note(Style::Yellow, &format!("! {warning}"));
    }
    out.note(Style::Yellow, "! changes of files need a restart; reloading is not in this version");
}

/// The line of `serve`, and of `dev --json`.
pub(super) fn json(plan: &Plan, origin: &str, storage: &str) -> Value {
    let agents: Vec<&str> = plan.agents.iter().map(|served| served.agent.id()).collect();
    json!({
        "event": "listening",
        "url": origin,
        "pid": std::process::id(),
        "version": env!("CARGO_PKG_VERSION"),
        "agents": agents,
        "storage": storage,
        "pubsub": PUBSUB,
    })
}
