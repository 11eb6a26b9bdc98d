//! JSON schemas of tools: made from types, checked against values, and repaired arguments (LOOP-042, 068 … 070).

use std::{borrow::Cow, fmt::Write};

use indexmap::IndexMap;
use jsonschema::{Draft, ValidationError, error::ValidationErrorKind};
use schemars::{JsonSchema, generate::SchemaSettings};
use serde_json::{Value, json};

use crate::json::without_lone_surrogates;

/// The most failures one report lists; the others follow from these often enough.
const FAILURES_MAX: usize = 50;
/// The most of the provided arguments that a report repeats, in bytes.
const PROVIDED_MAX: usize = 4096;

/// A compiled schema.
#[derive(Debug)]
pub struct Validator {
    compiled: jsonschema::Validator,
}

/// What is wrong with a value: at most 50 failures, each with the place it was found at.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidationReport {
    failures: Vec<Failure>,
}

#[derive(Debug, Clone, PartialEq)]
struct Failure {
    path: Vec<String>,
    message: String,
}

/// Failures as a tree: the shape of `validationErrors`.
#[derive(Default)]
struct Node {
    errors: Vec<String>,
    fields: IndexMap<String, Node>,
}

impl Validator {
    /// Compiles a schema; `None`, with a warning, if it is none.
    ///
    /// A schema that names no dialect is read as draft 7. References to other documents are not fetched.
    pub fn compile(schema: &Value) -> Option<Self> {
        let mut options = jsonschema::options();
        if schema.get("$schema").is_none() {
            options = options.with_draft(Draft::Draft7);
        }
        match options.build(schema) {
            Ok(compiled) => Some(Self { compiled }),
            Err(error) => {
                tracing::warn!(%error, "a tool's schema is no JSON Schema; its values will not be checked");
                None
            }
        }
    }

    /// Checks a value.
    pub fn check(&self, value: &Value) -> Result<(), ValidationReport> {
        if self.compiled.is_valid(value) {
            return Ok(());
        }
        let mut failures = Vec::new();
        for error in self.compiled.iter_errors(value) {
            explain(&error, &mut failures);
            if failures.len() >= FAILURES_MAX {
                failures.truncate(FAILURES_MAX);
                break;
            }
        }
        Err(ValidationReport { failures })
    }
}

/// One error of the checker as failures at the fields they speak of.
fn explain(error: &ValidationError<'_>, failures: &mut Vec<Failure>) {
    let path: Vec<String> = error.instance_path().iter().map(|segment| segment.to_string()).collect();
    let mut at = |name: Option<&str>, message: String| {
        let path = path.iter().cloned().chain(name.map(str::to_owned)).collect();
        failures.push(Failure { path, message });
    };
    match error.kind() {
        ValidationErrorKind::Required { property } => {
            let name = property.as_str().unwrap_or_default();
            at(Some(name), "required, but missing".into());
        }
        ValidationErrorKind::AdditionalProperties { unexpected }
        | ValidationErrorKind::UnevaluatedProperties { unexpected } => {
            for name in unexpected {
                at(Some(name), "not a known property".into());
            }
        }
        _ => at(None, error.to_string()),
    }
}

impl ValidationReport {
    /// The result that the model reads (LOOP-070): `{error: true, message, validationErrors}`.
    pub fn as_tool_result(&self, what: &str, tool: &str, value: &Value) -> Value {
        let mut root = Node::default();
        let mut list = String::new();
        for Failure { path, message } in &self.failures {
            let mut node = &mut root;
            for name in path {
                node = node.fields.entry(name.clone()).or_default();
            }
            node.errors.push(message.clone());
            let place = if path.is_empty() { "root".to_owned() } else { path.join(".") };
            // Writing to a string cannot fail.
            let _ = writeln!(list, "- {place}: {message}");
        }
        let provided = serde_json::to_string_pretty(value).unwrap_or_default();
        let provided = super::limit_for_model(&provided, PROVIDED_MAX);
        let message = format!(
            "Tool {what} validation failed for {tool}. Please fix the following errors and try again:\n{list}\n\
             Provided arguments: {provided}"
        );
        json!({ "error": true, "message": message, "validationErrors": root.into_json() })
    }
}

impl Node {
    fn into_json(self) -> Value {
        let fields: crate::json::Object =
            self.fields.into_iter().map(|(name, node)| (name, node.into_json())).collect();
        json!({ "errors": self.errors, "fields": fields })
    }
}

/// The schema of a Rust type: JSON Schema draft 7, inlined, objects closed (LOOP-042).
///
/// A type that contains itself keeps a reference; a flattened enum keeps its object open, since draft 7 cannot close it.
pub fn draft7<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true);
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    close_objects(&mut schema);
    schema
}

/// Sets `additionalProperties: false` on every object that says nothing about other properties.
fn close_objects(schema: &mut Value) {
    let Value::Object(object) = schema else { return };
    let combined = ["allOf", "anyOf", "oneOf", "$ref"].iter().any(|key| object.contains_key(*key));
    let has_properties = object.contains_key("properties");
    for (key, inner) in object.iter_mut() {
        match key.as_str() {
            "properties" | "patternProperties" | "definitions" | "$defs" => {
                if let Value::Object(schemas) = inner {
                    schemas.values_mut().for_each(close_objects);
                }
            }
            "items" | "additionalItems" | "additionalProperties" | "contains" => match inner {
                Value::Array(schemas) => schemas.iter_mut().for_each(close_objects),
                one => close_objects(one),
            },
            // Every branch sees the whole object, so none may forbid what a sibling or the parent declares.
            "anyOf" | "oneOf" if !has_properties => {
                if let Value::Array(schemas) = inner {
                    schemas.iter_mut().for_each(close_objects);
                }
            }
            _ => {}
        }
    }
    let is_object = match object.get("type") {
        Some(Value::String(name)) => name == "object",
        Some(Value::Array(names)) => names.iter().any(|name| name == "object"),
        _ => false,
    };
    if is_object && !combined && !object.contains_key("additionalProperties") {
        object.insert("additionalProperties".into(), Value::Bool(false));
    }
}

/// Parses arguments, repairing what LOOP-069 allows and nothing else. `None` if they are no JSON after that.
///
/// Allowed are trailing commas, unquoted keys, and a closing quote or brackets missing at the end. No text at all is
/// the empty object. Half a surrogate pair in an escape reads as U+FFFD (R39a).
pub fn repair_json(text: &str) -> Option<Value> {
    let text = text.trim();
    if text.is_empty() {
        return Some(Value::Object(crate::json::Object::new()));
    }
    let text = match serde_json::from_str(text) {
        Ok(value) => return Some(value),
        Err(_) => without_lone_surrogates(text),
    };
    if let Cow::Owned(mended) = &text
        && let Ok(value) = serde_json::from_str(mended)
    {
        return Some(value);
    }
    let repaired = Repair::default().run(&text)?;
    serde_json::from_str(&without_lone_surrogates(&repaired)).ok()
}

/// One pass over broken JSON. What is inside a string is copied, never judged.
#[derive(Default)]
struct Repair {
    out: String,
    /// The closing brackets that are due, innermost last.
    open: Vec<char>,
}

impl Repair {
    fn run(mut self, text: &str) -> Option<String> {
        self.out.reserve(text.len() + 8);
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            match c {
                '"' => rest = self.string(rest),
                '{' | '[' => {
                    self.open.push(if c == '{' { '}' } else { ']' });
                    self.out.push(c);
                    rest = &rest[1..];
                }
                '}' | ']' => {
                    if self.open.pop() != Some(c) {
                        return None;
                    }
                    self.out.push(c);
                    rest = &rest[1..];
                }
                ',' => {
                    let next = rest[1..].trim_start();
                    if !(next.is_empty() || next.starts_with(['}', ']'])) {
                        self.out.push(c);
                    }
                    rest = &rest[1..];
                }
                _ if self.at_key() && is_key_char(c) && !c.is_ascii_digit() => {
                    let end = rest.find(|c| !is_key_char(c)).unwrap_or(rest.len());
                    let (key, after) = rest.split_at(end);
                    if after.trim_start().starts_with(':') {
                        self.out.extend(["\"", key, "\""]);
                    } else {
                        self.out.push_str(key);
                    }
                    rest = after;
                }
                _ => {
                    self.out.push(c);
                    rest = &rest[c.len_utf8()..];
                }
            }
        }
        self.out.extend(self.open.into_iter().rev());
        Some(self.out)
    }

    /// Copies the string at the start of `text` and gives what follows it. Closes it if the text ends inside.
    fn string<'a>(&mut self, text: &'a str) -> &'a str {
        let bytes = text.as_bytes();
        let mut at = 1;
        while at < bytes.len() {
            match bytes[at] {
                b'"' => {
                    self.out.push_str(&text[..=at]);
                    return &text[at + 1..];
                }
                b'\\' => {
                    let length = if bytes.get(at + 1) == Some(&b'u') { 6 } else { 2 };
                    if at + length > bytes.len() {
                        break; // An escape cut in half says nothing.
                    }
                    at += length;
                }
                _ => at += 1,
            }
        }
        let mut end = at.min(bytes.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        self.out.push_str(&text[..end]);
        self.out.push('"');
        ""
    }

    /// Whether a key of an object is due here.
    fn at_key(&self) -> bool {
        self.open.last() == Some(&'}') && self.out.trim_end().ends_with(['{', ','])
    }
}

fn is_key_char(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '$' | '-')
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Weather {
        city: String,
        days: Option<u8>,
        place: Place,
    }

    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Place {
        lat: f64,
        tags: BTreeMap<String, String>,
    }

    #[derive(Deserialize, JsonSchema)]
    #[expect(dead_code, reason = "only its schema is used")]
    struct Flat {
        id: u8,
        #[serde(flatten)]
        kind: Kind,
    }

    #[derive(Deserialize, JsonSchema)]
    #[serde(tag = "kind")]
    #[expect(dead_code, reason = "only its schema is used")]
    enum Kind {
        A { a: u8 },
        B { b: u8 },
    }

    fn city() -> Validator {
        Validator::compile(&json!({
            "type": "object",
            "properties": {
                "city": { "type": "string" },
                "at": { "type": "object", "properties": { "lat": { "type": "number" } }, "required": ["lat"] },
            },
            "required": ["city"],
            "additionalProperties": false,
        }))
        .unwrap()
    }

    #[test]
    fn loop_042_a_types_schema_is_draft_7_inlined_and_closed() {
        let schema = draft7::<Weather>();
        assert_eq!(schema["$schema"], "http://json-schema.org/draft-07/schema#");
        assert_eq!(schema["additionalProperties"], false);
        assert_eq!(schema["required"], json!(["city", "place"]));
        assert_eq!(schema["properties"]["place"]["additionalProperties"], false);
        assert_eq!(schema["properties"]["place"]["properties"]["tags"]["additionalProperties"]["type"], "string");
        assert!(!schema.to_string().contains("$ref"));
    }

    #[test]
    fn loop_042_a_flattened_enum_still_accepts_its_own_values() {
        let schema = draft7::<Flat>();
        let validator = Validator::compile(&schema).unwrap();
        assert_eq!(validator.check(&json!({ "id": 1, "kind": "A", "a": 2 })), Ok(()));
        assert!(validator.check(&json!({ "id": 1, "kind": "A" })).is_err());
        let tagged = Validator::compile(&draft7::<Kind>()).unwrap();
        assert_eq!(tagged.check(&json!({ "kind": "B", "b": 2 })), Ok(()));
        assert!(tagged.check(&json!({ "kind": "B", "b": 2, "c": 3 })).is_err());
    }

    #[test]
    fn loop_070_a_failed_check_reads_as_a_tool_result() {
        let value = json!({ "city": 5 });
        let report = city().check(&value).unwrap_err();
        let what = "5 is not of type \"string\"";
        let expected = json!({
            "error": true,
            "message": format!(
                "Tool input validation failed for get-weather. Please fix the following errors and try again:\n\
                 - city: {what}\n\nProvided arguments: {{\n  \"city\": 5\n}}"
            ),
            "validationErrors": { "errors": [], "fields": { "city": { "errors": [what], "fields": {} } } },
        });
        assert_eq!(report.as_tool_result("input", "get-weather", &value), expected);
    }

    #[test]
    fn loop_070_missing_unknown_and_nested_fields_are_named_where_they_belong() {
        let value = json!({ "at": { "lat": "x" }, "town": "Oslo" });
        let result = city().check(&value).unwrap_err().as_tool_result("input", "t", &value);
        let fields = &result["validationErrors"]["fields"];
        assert_eq!(fields["city"]["errors"], json!(["required, but missing"]));
        assert_eq!(fields["town"]["errors"], json!(["not a known property"]));
        assert_eq!(fields["at"]["errors"], json!([]));
        assert_eq!(fields["at"]["fields"]["lat"]["errors"].as_array().map(Vec::len), Some(1));
        let message = result["message"].as_str().unwrap();
        assert!(message.contains("\n- at.lat: "), "{message}");
    }

    #[test]
    fn loop_070_an_error_of_the_whole_value_stands_at_the_root() {
        let result = city().check(&json!(3)).unwrap_err().as_tool_result("output", "t", &json!(3));
        assert_eq!(result["validationErrors"]["errors"].as_array().map(Vec::len), Some(1));
        assert!(result["message"].as_str().unwrap().starts_with("Tool output validation failed for t."));
    }

    #[test]
    fn loop_070_a_report_is_bounded() {
        let items: Vec<Value> = (0..1000).map(Value::from).collect();
        let validator = Validator::compile(&json!({ "items": { "type": "string" } })).unwrap();
        let report = validator.check(&Value::Array(items)).unwrap_err();
        assert_eq!(report.failures.len(), FAILURES_MAX);
    }

    #[test]
    fn a_schema_that_is_none_is_not_compiled() {
        assert!(Validator::compile(&json!({ "type": 7 })).is_none());
    }

    #[test]
    fn loop_069_what_may_be_repaired_is() {
        for (broken, whole) in [
            ("", json!({})),
            ("  \n", json!({})),
            (r#"{"a":1,}"#, json!({ "a": 1 })),
            (r#"{"a":[1,2, ],}"#, json!({ "a": [1, 2] })),
            (r"{a:1, b_2 : {c-d:true}}", json!({ "a": 1, "b_2": { "c-d": true } })),
            (r#"{"city":"Os"#, json!({ "city": "Os" })),
            (r#"{"a":["x","#, json!({ "a": ["x"] })),
            (r#"{"a":{"b":[1"#, json!({ "a": { "b": [1] } })),
            (r#"{"a":"x\"#, json!({ "a": "x" })),
            (r#"{"a":"x\u00e"#, json!({ "a": "x" })),
            (r#"{"a":"ø\"#, json!({ "a": "ø" })),
        ] {
            assert_eq!(repair_json(broken), Some(whole), "{broken}");
        }
    }

    #[test]
    fn loop_069_text_inside_a_value_is_never_touched() {
        for text in [r#"{"a":"it's, ok,}"}"#, r#"{"a":"{b:1,}"}"#, r#"{"a":"\\"}"#] {
            assert_eq!(repair_json(text), serde_json::from_str(text).ok(), "{text}");
        }
        assert_eq!(repair_json(r#"{"a":"it's, [x,]",}"#), Some(json!({ "a": "it's, [x,]" })));
    }

    #[test]
    fn loop_068_what_may_not_be_repaired_is_no_json() {
        for text in
            ["hello", "{'a':'b'}", r#"{"a":1]"#, r#"{"a""#, r#"{"a":"#, r#"{"a":1}}"#, "{a b}", r#"{"a" 1}"#, "[tru"]
        {
            assert_eq!(repair_json(text), None, "{text}");
        }
    }

    #[test]
    fn r39a_half_a_surrogate_in_arguments_reads_as_the_replacement_character() {
        assert_eq!(repair_json(r#"{"a":"x\ud83dy"}"#), Some(json!({ "a": "x\u{fffd}y" })));
        assert_eq!(repair_json(r#"{"a":"\ud83d\ude00","#), Some(json!({ "a": "😀" })));
    }

    proptest::proptest! {
        #[test]
        fn loop_069_json_is_returned_as_it_is(text in r#"[\PC"'\\{}\[\],:]{0,40}"#) {
            let value = json!({ "k": text, "n": [text] });
            let written = value.to_string();
            proptest::prop_assert_eq!(repair_json(&written), Some(value));
            // Cut anywhere, it never panics.
            for end in (0..written.len()).filter(|end| written.is_char_boundary(*end)) {
                let _ = repair_json(&written[..end]);
            }
        }
    }
}
