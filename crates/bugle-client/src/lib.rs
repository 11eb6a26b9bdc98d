//! The HTTP API of Bugle from Rust.
