//! The runtime on the scripted model.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod faulty;
mod support;

mod approvals;
#[path = "../../examples/subagents.rs"]
#[allow(dead_code, reason = "its main is the example's")]
mod example;

mod leftovers;
mod r#loop;
mod notifications;
mod processors;
mod providers;
mod runs;
mod scorers;
mod signals;
mod subagents;
