//! The real binary, as people and scripts use it.

mod clients;
mod codes;
mod conversation;
mod lifecycle;
mod support;
