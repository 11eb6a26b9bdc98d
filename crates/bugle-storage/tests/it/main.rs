//! Tests of the stores.

// The lint's exception for tests does not reach the helpers.
#![allow(clippy::unwrap_used)]

mod continuation;
mod contract;
mod durability;
mod errors;
mod format;
mod golden;
mod killed;
mod notifications;
mod ownership;
mod parked;
mod runtime;
mod shared_file;
mod support;
