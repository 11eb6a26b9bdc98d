//! SQLite and libSQL files for Bugle.
