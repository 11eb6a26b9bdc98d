//! Event buses and leases for Bugle that span processes.
//!
//! Empty in this version: the backends on a Unix socket and on Redis Streams come later. Until then processes that share
//! a store share threads through its leases.
