//! Tests of the stores.

mod contract;
