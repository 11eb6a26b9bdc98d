//! The runtime on the scripted model.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod faulty;
mod support;

mod leftovers;
mod r#loop;
mod processors;
mod runs;
mod scorers;
mod signals;
mod subagents;
