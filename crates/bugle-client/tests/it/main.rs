//! The client against a server that does exactly what a test says.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

mod requests;
mod streams;
mod support;
