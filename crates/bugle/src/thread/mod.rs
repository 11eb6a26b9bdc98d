//! Threads: one actor each, its machine, its inbox and its stream log.

use crate::{
    error::Error,
    id::RunId,
    run::DirectChunk,
    runtime::{AbortOptions, Delivery},
};

/// A live view of a thread. Dropping it unsubscribes.
#[derive(Debug)]
pub struct Subscription {}

impl Subscription {
    /// The next chunk. Cancel-safe. Never ends by itself but when the runtime shuts down.
    pub async fn next(&mut self) -> Option<Delivery> {
        unimplemented!()
    }

    /// The next chunk if there is one now: lets a transport write many at once.
    pub fn try_next(&mut self) -> Option<Delivery> {
        unimplemented!()
    }

    /// The run that occupies the thread (SIG-324).
    pub fn active_run_id(&self) -> Option<RunId> {
        unimplemented!()
    }

    /// Stops the thread's run (SIG-300).
    pub async fn abort(&self, _options: AbortOptions) -> Result<bool, Error> {
        unimplemented!()
    }
}

/// Reads the chunks of one run.
#[derive(Debug)]
pub struct LogReader {}

impl LogReader {
    pub(crate) async fn next_direct(&mut self) -> Option<DirectChunk> {
        unimplemented!()
    }
}

/// Stops one run.
#[derive(Debug, Clone)]
pub struct RunHandle {}

impl RunHandle {
    pub(crate) fn abort(&self) {
        unimplemented!()
    }
}
