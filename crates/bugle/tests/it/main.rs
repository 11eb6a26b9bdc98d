//! The runtime on the scripted model.

mod faulty;
mod support;

mod runs;
mod signals;
