//! Event buses and leases for Bugle.
