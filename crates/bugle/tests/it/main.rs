//! The runtime on the scripted model.

mod support;

mod runs;
mod signals;
