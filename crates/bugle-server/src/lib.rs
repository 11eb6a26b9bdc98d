//! The HTTP API of Bugle.
