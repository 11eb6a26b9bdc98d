//! The adapters against a scripted provider on a raw socket.
#![allow(clippy::unwrap_used, reason = "tests")]

mod answers;
mod errors;
mod provider;
mod providers;
mod requests;
mod socket;
