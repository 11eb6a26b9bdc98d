//! The runtime on the scripted model.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod faulty;
mod support;

mod approvals;
mod leftovers;
mod r#loop;
mod runs;
mod scorers;
mod signals;
mod subagents;
