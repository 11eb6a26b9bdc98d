//! A runtime for AI agents whose conversations are live mailboxes.
//!
//! A *thread* is one conversation. People and systems subscribe to it, [send](AgentHandle::send_message) a message (it
//! steers the running loop, or wakes an idle agent), [queue](AgentHandle::queue_message) one for the next turn,
//! [signal](AgentHandle::send_signal) it with context, cancel, and abort. What is accepted is durable before it is
//! acknowledged, and answered exactly once.
//!
//! The rooms, from the ground up: [`id`], [`time`], [`error`] → [`message`], [`signal`], [`chunk`] → [`model`], [`tool`],
//! [`storage`], [`pubsub`] → [`run`] → [`thread`] → [`memory`], [`processor`], [`scorer`], [`subagent`], [`notification`],
//! [`provider`] → [`agent`] →
//! [`runtime`]. What stands later may use what stands before.

pub mod agent;
pub mod chunk;
pub mod error;
pub mod id;
pub mod json;
pub mod memory;
pub mod message;
pub mod model;
pub mod notification;
pub mod processor;
pub mod provider;
pub mod pubsub;
pub mod run;
pub mod runtime;
pub mod scorer;
pub mod signal;
#[cfg(test)]
mod simulation;
pub mod storage;
pub mod subagent;
pub mod thread;
pub mod time;
pub mod tool;

pub use agent::{Agent, RequestContext};
pub use error::Error;
pub use id::{MessageId, RunId, ThreadKey};
pub use run::{RunOptions, RunOutput};
pub use runtime::{AgentHandle, Bugle};
pub use signal::{Signal, SignalInput};
pub use tool::Tool;

/// The guides' examples, compiled and run.
#[cfg(doctest)]
mod guides {
    #[doc = include_str!("../../../docs/processors.md")]
    struct Processors;
    #[doc = include_str!("../../../docs/signals.md")]
    struct Signals;
}

/// The guide's snippets are tested like the library's own.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/subagents.md")]
pub struct SubagentsGuide;
