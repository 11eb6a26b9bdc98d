//! Model providers for Bugle.
