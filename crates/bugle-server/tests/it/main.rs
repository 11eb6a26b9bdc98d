//! The HTTP API, from requests to bytes, on the scripted model and in-memory storage.

mod auth;
mod bad_input;
mod messages;
mod runs;
mod serving;
mod streams;
mod support;
