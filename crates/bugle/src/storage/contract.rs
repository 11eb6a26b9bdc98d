//! The contract every store fulfils. Call [`run_all`] with a factory of empty stores.
