//! Leases within one process (PSL-042).

use std::{collections::HashMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use parking_lot::Mutex;

use super::{Acquired, LeaseError, Leases};
use crate::time::{SharedClock, SystemClock, Timestamp};

/// Keys after which those that are free are looked for; the epochs of keys that are forgotten go on from the highest.
const KEYS: usize = 10_000;

/// Leases in memory: right for one process. Expired ones are reclaimed when somebody asks.
#[derive(Debug)]
pub struct MemoryLeases {
    clock: SharedClock,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Nothing is granted any more.
    closed: bool,
    held: HashMap<String, Held>,
    /// The highest epoch given out: one for all keys, so that a forgotten key's epoch still grows.
    epoch: u64,
    /// At so many keys expired ones are dropped; doubles while all of them are held.
    limit: usize,
}

#[derive(Debug)]
struct Held {
    owner: String,
    epoch: u64,
    expires_at: Timestamp,
}

impl Default for MemoryLeases {
    fn default() -> Self {
        Self::with_clock(Arc::new(SystemClock))
    }
}

impl MemoryLeases {
    /// Nothing is held.
    pub fn new() -> Self {
        Self::default()
    }

    /// Nothing is held; times come from `clock`.
    pub fn with_clock(clock: SharedClock) -> Self {
        Self { clock, state: Mutex::default() }
    }

    /// Gives every key up and grants none from now on: the bus they belong to is closed.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        state.closed = true;
        state.held.clear();
    }
}

impl State {
    fn live(&mut self, key: &str, now: Timestamp) -> Option<&mut Held> {
        self.held.get_mut(key).filter(|held| held.expires_at > now)
    }

    fn take(&mut self, key: &str, owner: &str, now: Timestamp, ttl: Duration) -> u64 {
        if self.held.len() >= self.limit.max(KEYS) {
            self.held.retain(|_, held| held.expires_at > now);
            self.limit = self.held.len() * 2;
        }
        self.epoch += 1;
        let held = Held { owner: owner.to_owned(), epoch: self.epoch, expires_at: now.plus(ttl) };
        self.held.insert(key.to_owned(), held);
        self.epoch
    }
}

#[async_trait]
impl Leases for MemoryLeases {
    async fn acquire(&self, key: &str, owner: &str, ttl: Duration) -> Result<Acquired, LeaseError> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        if state.closed {
            return Ok(Acquired::HeldBy { owner: None });
        }
        Ok(match state.live(key, now) {
            Some(held) if held.owner == owner => {
                held.expires_at = now.plus(ttl);
                Acquired::Held { epoch: held.epoch }
            }
            Some(held) => Acquired::HeldBy { owner: Some(held.owner.clone()) },
            None => Acquired::Held { epoch: state.take(key, owner, now, ttl) },
        })
    }

    async fn owner(&self, key: &str) -> Result<Option<String>, LeaseError> {
        let now = self.clock.now();
        Ok(self.state.lock().live(key, now).map(|held| held.owner.clone()))
    }

    async fn release(&self, key: &str, owner: &str) -> Result<(), LeaseError> {
        let mut state = self.state.lock();
        if state.held.get(key).is_some_and(|held| held.owner == owner) {
            state.held.remove(key);
        }
        Ok(())
    }

    async fn renew(&self, key: &str, owner: &str, ttl: Duration) -> Result<bool, LeaseError> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let Some(held) = state.live(key, now).filter(|held| held.owner == owner) else { return Ok(false) };
        held.expires_at = now.plus(ttl);
        Ok(true)
    }

    async fn transfer(&self, key: &str, from: &str, to: &str, ttl: Duration) -> Result<Option<u64>, LeaseError> {
        let now = self.clock.now();
        let mut state = self.state.lock();
        let holds = state.live(key, now).is_some_and(|held| held.owner == from);
        Ok(holds.then(|| state.take(key, to, now, ttl)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicI64, Ordering};

    use futures::FutureExt;

    use super::*;
    use crate::{pubsub::contract, time::Clock};

    #[derive(Debug, Default)]
    struct Hand(AtomicI64);

    impl Clock for Hand {
        fn now(&self) -> Timestamp {
            Timestamp::from_millis(self.0.load(Ordering::Relaxed))
        }
    }

    #[test]
    fn psl_112_memory_keeps_the_contract_of_leases() {
        let clock = Arc::new(Hand::default());
        let leases = MemoryLeases::with_clock(clock.clone());
        let pass = |time: Duration| {
            clock.0.fetch_add(time.as_millis() as i64, Ordering::Relaxed);
        };
        contract::leases(&leases, pass).now_or_never().expect("memory never waits").unwrap();
    }

    #[test]
    fn psl_043_keys_that_are_free_are_forgotten() {
        let clock = Arc::new(Hand::default());
        let leases = MemoryLeases::with_clock(clock.clone());
        for key in 0..3 * KEYS {
            let ttl = Duration::from_millis(1);
            leases.acquire(&key.to_string(), "a", ttl).now_or_never().expect("memory never waits").unwrap();
            clock.0.fetch_add(1, Ordering::Relaxed);
        }
        assert!(leases.state.lock().held.len() <= KEYS);
    }
}
