//! Approvals that travel up.
