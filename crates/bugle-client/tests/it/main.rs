//! The client against a server that does exactly what a test says.

mod requests;
mod streams;
mod support;
