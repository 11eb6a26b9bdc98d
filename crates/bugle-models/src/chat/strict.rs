//! Strict mode: what a schema must look like for it, and how an answer is read back (LOOP-042).

use std::collections::HashMap;

use bugle::{json::Object, model::ToolDefinition};
use serde_json::{Value, json};

/// Keywords that strict mode does not take, or that say more about an object than its properties do.
const FOREIGN: [&str; 7] = ["$ref", "allOf", "oneOf", "not", "if", "patternProperties", "dependencies"];

/// The schemas of the tools that were offered in strict mode.
#[derive(Debug, Default)]
pub(super) struct StrictTools(HashMap<String, Value>);

impl StrictTools {
    /// Makes the strict schema of a tool, if it asks for one and can have one.
    pub(super) fn schema(&mut self, tool: &ToolDefinition) -> Option<Value> {
        if !tool.strict {
            return None;
        }
        let schema = strict(&tool.parameters).filter(|schema| schema.get("properties").is_some())?;
        self.0.insert(tool.name.clone(), tool.parameters.clone());
        Some(schema)
    }

    /// The arguments of a call as the tool's own schema has them: `null` for an optional property is its absence.
    pub(super) fn read_back(&self, tool: &str, arguments: String) -> String {
        let Some(schema) = self.0.get(tool) else { return arguments };
        let Ok(mut value) = serde_json::from_str::<Value>(&arguments) else { return arguments };
        if drop_nulls(&mut value, schema) { value.to_string() } else { arguments }
    }
}

/// The schema with every object closed and every property required, the optional ones nullable. `None`: strict mode
/// cannot say what the schema says.
fn strict(schema: &Value) -> Option<Value> {
    let Value::Object(object) = schema else { return None };
    if FOREIGN.iter().any(|keyword| object.contains_key(*keyword)) {
        return None;
    }
    let mut out = object.clone();
    if let Some(properties) = object.get("properties").and_then(Value::as_object) {
        let made = properties.iter().map(|(name, inner)| {
            let inner_strict = strict(inner)?;
            Some((name.clone(), if is_required(object, name) { inner_strict } else { nullable(inner_strict) }))
        });
        out.insert("properties".into(), Value::Object(made.collect::<Option<Object>>()?));
        out.insert("required".into(), properties.keys().cloned().collect::<Vec<_>>().into());
    }
    let is_object = object.contains_key("properties") || object.get("type").is_some_and(|kind| kind == "object");
    if is_object {
        match object.get("additionalProperties") {
            None | Some(Value::Bool(false)) => {}
            // A map: its keys are not known.
            Some(_) => return None,
        }
        out.insert("additionalProperties".into(), Value::Bool(false));
    }
    if let Some(items) = object.get("items") {
        out.insert("items".into(), strict(items)?);
    }
    if let Some(branches) = object.get("anyOf").and_then(Value::as_array) {
        out.insert("anyOf".into(), branches.iter().map(strict).collect::<Option<Vec<_>>>()?.into());
    }
    Some(Value::Object(out))
}

fn is_required(object: &Object, name: &str) -> bool {
    object.get("required").and_then(Value::as_array).is_some_and(|names| names.iter().any(|known| known == name))
}

fn nullable(mut schema: Value) -> Value {
    if takes_null(&schema) {
        return schema;
    }
    let simple = !["enum", "const", "anyOf"].iter().any(|keyword| schema.get(*keyword).is_some());
    if simple && let Some(kind) = schema.get_mut("type") {
        match kind {
            Value::Array(kinds) => kinds.push("null".into()),
            one => *one = json!([one, "null"]),
        }
        return schema;
    }
    json!({ "anyOf": [schema, { "type": "null" }] })
}

fn takes_null(schema: &Value) -> bool {
    let null = |kind: &Value| kind == "null";
    let by_type =
        schema.get("type").is_some_and(|kind| null(kind) || kind.as_array().is_some_and(|k| k.iter().any(null)));
    let listed = schema.get("enum").and_then(Value::as_array).is_none_or(|values| values.contains(&Value::Null));
    let any = schema.get("anyOf").and_then(Value::as_array).is_some_and(|branches| branches.iter().any(takes_null));
    (by_type && listed) || any
}

/// Removes the nulls that stand for absent properties; `true`: there were some.
fn drop_nulls(value: &mut Value, schema: &Value) -> bool {
    let mut dropped = false;
    match (value, schema.as_object()) {
        (Value::Object(fields), Some(object)) => {
            for (name, inner) in object.get("properties").and_then(Value::as_object).into_iter().flatten() {
                let absent = !is_required(object, name) && !takes_null(inner);
                if absent && fields.get(name).is_some_and(Value::is_null) {
                    fields.shift_remove(name);
                    dropped = true;
                } else if let Some(field) = fields.get_mut(name) {
                    dropped |= drop_nulls(field, inner);
                }
            }
        }
        (Value::Array(items), Some(object)) => {
            if let Some(inner) = object.get("items") {
                for item in items {
                    dropped |= drop_nulls(item, inner);
                }
            }
        }
        _ => {}
    }
    dropped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(parameters: Value) -> ToolDefinition {
        ToolDefinition { name: "t".into(), description: None, parameters, strict: true }
    }

    #[test]
    fn loop_042_strict_makes_all_required_and_optional_ones_nullable() {
        let schema = json!({
            "type": "object",
            "properties": {
                "a": { "type": "string" },
                "b": { "type": "integer" },
                "c": { "enum": ["x"] },
                "d": { "type": ["string", "null"] },
                "e": { "type": "array", "items": { "type": "object", "properties": { "f": { "type": "string" } } } },
            },
            "required": ["a", "e"],
        });
        let mut tools = StrictTools::default();
        let expected = json!({
            "type": "object",
            "properties": {
                "a": { "type": "string" },
                "b": { "type": ["integer", "null"] },
                "c": { "anyOf": [{ "enum": ["x"] }, { "type": "null" }] },
                "d": { "type": ["string", "null"] },
                "e": { "type": "array", "items": {
                    "type": "object", "properties": { "f": { "type": ["string", "null"] } },
                    "required": ["f"], "additionalProperties": false,
                } },
            },
            "required": ["a", "b", "c", "d", "e"],
            "additionalProperties": false,
        });
        assert_eq!(tools.schema(&tool(schema)), Some(expected));
        let said = r#"{"a":"1","b":null,"c":null,"d":null,"e":[{"f":null}]}"#;
        assert_eq!(tools.read_back("t", said.into()), r#"{"a":"1","d":null,"e":[{}]}"#);
        let same = r#"{ "a": "1", "e": [] }"#;
        assert_eq!(tools.read_back("t", same.into()), same);
        assert_eq!(tools.read_back("other", said.into()), said);
        assert_eq!(tools.read_back("t", "{\"a".into()), "{\"a");
    }

    #[test]
    fn loop_042_what_strict_mode_cannot_say_goes_as_it_is() {
        for schema in [
            json!({ "type": "object", "properties": {}, "additionalProperties": true }),
            json!({ "type": "object", "properties": { "m": { "type": "object", "additionalProperties": { "type": "string" } } } }),
            json!({ "type": "object", "properties": { "r": { "$ref": "#" } } }),
            json!({ "type": "object", "properties": { "any": true } }),
            json!({ "type": "object", "additionalProperties": true }),
        ] {
            assert_eq!(StrictTools::default().schema(&tool(schema.clone())), None, "{schema}");
        }
    }
}
