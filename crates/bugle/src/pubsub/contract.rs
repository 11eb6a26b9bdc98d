//! The contracts every backend of leases and of events fulfils. Panics where one is broken; every assertion names the
//! requirement.

mod bus;

pub use bus::bus;

use std::time::Duration;

use super::{Acquired, LeaseError, Leases};

/// Checks `leases`, which hold nothing. `pass` lets time pass on the backend's clock.
///
/// # Errors
/// Those of the backend.
pub async fn leases(leases: &dyn Leases, pass: impl Fn(Duration)) -> Result<(), LeaseError> {
    let ttl = Duration::from_secs(15);
    let held_by = |owner: &str| Acquired::HeldBy { owner: Some(owner.to_owned()) };
    let Acquired::Held { epoch: first } = leases.acquire("k", "a", ttl).await? else {
        panic!("PSL-112: a free key is granted")
    };
    assert_eq!(leases.acquire("k", "b", ttl).await?, held_by("a"), "PSL-112: a held one is refused");
    assert_eq!(leases.acquire("k", "a", ttl).await?, Acquired::Held { epoch: first }, "PSL-112: its owner renews it");
    assert!(matches!(leases.acquire("l", "b", ttl).await?, Acquired::Held { .. }), "PSL-112: keys are apart");
    let second = leases.transfer("k", "a", "b", ttl).await?.expect("PSL-112: its owner gives it away");
    assert!(second > first, "PSL-123: the epoch grows with the owner");
    assert!(!leases.renew("k", "a", ttl).await?, "PSL-112: who gave it away does not renew it");
    assert_eq!(leases.transfer("k", "a", "c", ttl).await?, None, "PSL-112: nor give it away again");
    leases.release("k", "a").await?;
    assert_eq!(leases.owner("k").await?.as_deref(), Some("b"), "PSL-112: nor release it");
    pass(ttl / 2);
    assert!(leases.renew("k", "b", ttl).await?, "PSL-112: its owner renews it");
    pass(ttl / 2 + ttl / 4);
    assert_eq!(leases.owner("k").await?.as_deref(), Some("b"), "PSL-112: the time started anew");
    pass(ttl);
    assert_eq!(leases.owner("k").await?, None, "PSL-042: it expires");
    assert!(!leases.renew("k", "b", ttl).await?, "PSL-112: an expired lease is not renewed");
    assert_eq!(leases.transfer("k", "b", "a", ttl).await?, None, "PSL-112: nor given away");
    let Acquired::Held { epoch: third } = leases.acquire("k", "a", ttl).await? else {
        panic!("PSL-112: an expired key is granted")
    };
    assert!(third > second, "PSL-123: the epoch never shrinks");
    leases.release("k", "a").await?;
    let Acquired::Held { epoch: fourth } = leases.acquire("k", "c", ttl).await? else {
        panic!("PSL-112: a released key is granted")
    };
    assert!(fourth > third, "PSL-123: the epoch grows over a release");
    Ok(())
}
