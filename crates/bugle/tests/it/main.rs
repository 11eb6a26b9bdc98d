//! The runtime on the scripted model.

mod faulty;
mod support;

mod r#loop;
mod runs;
mod signals;
