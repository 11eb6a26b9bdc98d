//! The agent loop: one machine without IO, and the driver that performs its effects.

mod options;

pub use options::*;

mod output;

pub use output::*;
