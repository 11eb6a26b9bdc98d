//! interrupt
