//! Signals in one process (SIG).

mod abort;
mod basics;
mod cancel;
mod drain;
mod handles;
mod interrupt;
mod ownership;
mod queue;
mod races;
mod routing;
mod subscription;
