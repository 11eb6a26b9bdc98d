//! The chunk that shows an accepted signal to subscribers (SIG §5).
