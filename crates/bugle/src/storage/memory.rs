//! A store in memory: what a runtime without storage uses. Nothing survives the process.

/// The in-memory store.
#[derive(Debug, Default)]
pub struct MemoryStorage {}
