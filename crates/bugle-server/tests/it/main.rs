//! The HTTP API, from requests to bytes, on the scripted model and in-memory storage.

#![allow(clippy::unwrap_used, reason = "helpers of tests may panic as tests do")]

mod auth;
mod bad_input;
mod bad_providers;
mod clients;
mod golden;
mod memory;
mod messages;
mod notifications;
mod provider;
mod reports;
mod runs;
mod serving;
mod states;
mod streams;
mod support;
mod suspended;
