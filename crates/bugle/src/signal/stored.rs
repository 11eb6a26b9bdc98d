//! The stored form of a signal, and reading it back (SIG §4).
