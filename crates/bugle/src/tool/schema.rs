//! JSON schemas of tools: made from types, checked against values, and repaired arguments (LOOP-042, 068 … 070).

use schemars::JsonSchema;
use serde_json::Value;

/// A compiled schema.
#[derive(Debug)]
pub struct Validator {}

/// What is wrong with a value.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidationReport {}

impl Validator {
    /// Compiles a schema; `None`, with a warning, if it is none.
    pub fn compile(_schema: &Value) -> Option<Self> {
        unimplemented!()
    }

    /// Checks a value.
    pub fn check(&self, _value: &Value) -> Result<(), ValidationReport> {
        unimplemented!()
    }
}

impl ValidationReport {
    /// The result that the model reads (LOOP-070): `{error: true, message, validationErrors}`.
    pub fn as_tool_result(&self, _what: &str, _tool: &str, _value: &Value) -> Value {
        unimplemented!()
    }
}

/// The schema of a Rust type: JSON Schema draft 7, inlined, objects closed (LOOP-042).
pub fn draft7<T: JsonSchema>() -> Value {
    unimplemented!()
}

/// Parses arguments, repairing what LOOP-069 allows and nothing else. `None` if they are no JSON after that.
pub fn repair_json(_text: &str) -> Option<Value> {
    unimplemented!()
}
