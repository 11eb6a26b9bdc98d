//! subscription
