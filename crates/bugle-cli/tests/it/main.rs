//! The real binary, as people and scripts use it.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

mod approvals;
mod clients;
mod codes;
mod conversation;
mod kill;
mod kill_inbox;
mod lifecycle;
mod notifications;
mod processors;
mod subagents;
mod support;
