//! Threads: one actor each, its machine, its inbox and its stream log.
//!
//! `machine` decides, `actor` performs, `hub` finds the actor of a thread, `log` keeps the stream, and `subscription`
//! reads it. All that happens to a thread goes through its actor's mailbox, one letter at a time.

mod actor;
mod hub;
pub(crate) mod input;
mod journal;
mod log;
pub(crate) mod machine;
mod queue_events;
mod subscription;

pub(crate) use actor::{DirectRequest, Leftover, Letter, ResumeRequest, RunEnd, SendLetter, ThreadLink};
pub(crate) use hub::{Hub, RunUser, ThreadRef};
pub(crate) use input::Input;
pub use log::LogReader;
pub(crate) use log::{DirectEnd, RunShared, StreamLog};
pub(crate) use machine::Parked;
pub use queue_events::QueueEvents;
pub use subscription::Subscription;
