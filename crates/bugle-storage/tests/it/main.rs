//! Tests of the stores.

mod contract;
mod durability;
mod errors;
mod golden;
mod ownership;
mod runtime;
mod shared_file;
mod support;
