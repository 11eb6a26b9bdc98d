//! The seams to event buses (PSL §1) and to leases that span processes (PSL §5), and their forms in memory.
//!
//! The runtime does not use them yet: its leases come from the store, in the transaction that journals input (ruling
//! 25). A shared bus adds immediacy across processes.

mod bus;
mod event;
mod memory;
mod memory_bus;

#[cfg(any(test, feature = "contract-tests"))]
pub mod contract;

pub use bus::{
    BusError, Delivery, PubSub, Received, Settle, Settlement, SharedPubSub, StartFrom, SubscribeOptions, Subscription,
    SubscriptionId,
};
pub use event::{Event, NewEvent, Reach};
pub use memory::MemoryLeases;
pub use memory_bus::{MemoryPubSub, MemoryPubSubOptions};

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;

/// Exclusive, expiring ownership of keys across processes.
///
/// Times to live count on the backend's clock, in whole milliseconds. An epoch belongs to a key and never shrinks: it
/// grows with every change of owner, so that a writer who has lost the key can be told apart (PSL-123). A dropped call
/// may leave the key held until its time has passed.
#[async_trait]
pub trait Leases: fmt::Debug + Send + Sync {
    /// Takes `key` for `owner` if it is free or expired; renews it if `owner` holds it (PSL-112).
    ///
    /// # Errors
    /// [`LeaseError`]: the backend gave no answer; who owns `key` is unknown.
    async fn acquire(&self, key: &str, owner: &str, ttl: Duration) -> Result<Acquired, LeaseError>;

    /// Who holds `key`; nobody once it has expired.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    async fn owner(&self, key: &str) -> Result<Option<String>, LeaseError>;

    /// Gives `key` up, only if `owner` holds it.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    async fn release(&self, key: &str, owner: &str) -> Result<(), LeaseError>;

    /// Starts the time anew; `false` if `owner` does not hold `key` any more.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    async fn renew(&self, key: &str, owner: &str, ttl: Duration) -> Result<bool, LeaseError>;

    /// Gives `key` from one owner to another in one step, so that nobody gets in between. The new epoch, or `None` if
    /// `from` does not hold it.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    async fn transfer(&self, key: &str, from: &str, to: &str, ttl: Duration) -> Result<Option<u64>, LeaseError>;
}

/// Shared leases.
pub type SharedLeases = Arc<dyn Leases>;

/// The answer to a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Acquired {
    /// The claimant holds the key.
    Held {
        /// Grows with every change of owner.
        epoch: u64,
    },
    /// Somebody else does.
    HeldBy {
        /// Who, where known.
        owner: Option<String>,
    },
}

/// Why a backend gave no answer.
#[derive(Debug, thiserror::Error)]
#[error("the lease backend {backend} is unavailable; who owns the key is unknown")]
pub struct LeaseError {
    /// Which backend.
    pub backend: &'static str,
    /// The cause.
    #[source]
    pub source: Box<dyn std::error::Error + Send + Sync>,
}
