//! Checking and completing what a caller gives (SIG-010 … SIG-022).

use super::Attributes;

/// Why a signal was refused (SIG-011, 012, 016, 017, 034).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct InvalidSignal {
    /// Which field, dotted: `contents`, `attributes.a b`, `type`.
    pub field: String,
    /// What is wrong with it, in the words of the spec.
    pub message: String,
}

/// Merges a branch's attributes over the top-level ones (SIG-021).
pub fn merge_attributes(_base: Option<&Attributes>, _branch: Option<&Attributes>) -> Option<Attributes> {
    unimplemented!()
}

/// Checks names and values (SIG-017, SIG-034).
pub fn validate_attributes(_attributes: &Attributes) -> Result<(), InvalidSignal> {
    unimplemented!()
}
