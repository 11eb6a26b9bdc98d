//! What the model sees of a signal (SIG §3).
