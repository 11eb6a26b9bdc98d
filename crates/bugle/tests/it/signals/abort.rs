//! abort
