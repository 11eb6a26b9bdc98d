//! Structured output: the answer as a value that fits a schema (LOOP §10).

use serde_json::Value;

use super::{ErrorStrategy, StructuredOutput};
use crate::{chunk::ErrorInfo, json::json, tool::Validator};

/// How the schema's root is wrapped, since providers want an object there (LOOP-152).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wrap {
    None,
    Elements,
    Result,
}

impl Wrap {
    fn of(schema: &Value) -> Self {
        match schema.get("type").and_then(Value::as_str) {
            Some("array") => Self::Elements,
            Some("object") | None if schema.get("enum").is_none() => Self::None,
            _ => Self::Result,
        }
    }

    fn unwrap(self, value: Value) -> Value {
        let key = match self {
            Self::None => return value,
            Self::Elements => "elements",
            Self::Result => "result",
        };
        match value {
            Value::Object(mut fields) if fields.contains_key(key) => fields.remove(key).unwrap_or_default(),
            other => other,
        }
    }
}

/// The schema as it is sent to a provider: its root an object.
pub(crate) fn provider_schema(schema: &Value) -> Value {
    let wrapped = |key: &str| {
        json!({
            "type": "object",
            "properties": { key: schema },
            "required": [key],
            "additionalProperties": false,
        })
    };
    match Wrap::of(schema) {
        Wrap::None => schema.clone(),
        Wrap::Elements => wrapped("elements"),
        Wrap::Result => wrapped("result"),
    }
}

/// The value under construction.
#[derive(Debug)]
pub(crate) struct Structured {
    options: StructuredOutput,
    wrap: Wrap,
    text: String,
    partial: Option<Value>,
    /// The length of the text from which the next partial value is looked for.
    next_at: usize,
    object: Option<Value>,
    used_fallback: bool,
}

/// A partial value is looked for in texts up to this size; longer ones give only the final value.
const PARTIAL_BYTES: usize = 64 * 1024;

impl Structured {
    /// What was asked for.
    pub(crate) fn options(&self) -> &StructuredOutput {
        &self.options
    }

    pub(crate) fn new(options: StructuredOutput) -> Self {
        let wrap = Wrap::of(&options.schema);
        Self { options, wrap, text: String::new(), partial: None, next_at: 0, object: None, used_fallback: false }
    }

    /// A request begins, or is thrown away (SIG-231).
    pub(crate) fn reset(&mut self) {
        self.text.clear();
        self.partial = None;
        self.next_at = 0;
    }

    /// Takes in text; gives the partial value if it has changed (LOOP-154) and the text has grown by a sixteenth since
    /// the last: each is a whole value, and all of them together stay in proportion to the text.
    pub(crate) fn push(&mut self, text: &str) -> Option<Value> {
        self.text.push_str(text);
        if self.text.len() > PARTIAL_BYTES || self.text.len() < self.next_at {
            return None;
        }
        let partial = self.wrap.unwrap(complete_json(&self.text)?);
        if self.partial.as_ref() == Some(&partial) {
            return None;
        }
        self.next_at = self.text.len() + (self.text.len() / 16).max(1);
        self.partial = Some(partial.clone());
        Some(partial)
    }

    /// The text is complete: checks it against the schema (LOOP-155).
    pub(crate) fn finish(&mut self, text: &str) -> Result<Option<Value>, ErrorInfo> {
        let found = checked(text, self.wrap, &self.options.schema);
        match (found, self.options.error_strategy) {
            (Ok(object), _) => {
                self.object = Some(object.clone());
                Ok(Some(object))
            }
            (Err(_), ErrorStrategy::Warn) => Ok(None),
            (Err(_), ErrorStrategy::Fallback) => {
                let fallback = self.options.fallback_value.clone().unwrap_or_default();
                self.used_fallback = true;
                self.object = Some(fallback.clone());
                Ok(Some(fallback))
            }
            (Err(why), ErrorStrategy::Strict) => {
                let name = "STRUCTURED_OUTPUT_SCHEMA_VALIDATION_FAILED";
                let mut error = ErrorInfo::new(name, format!("the answer does not fit the schema: {why}"));
                error.id = Some(name.to_owned());
                Err(error)
            }
        }
    }

    pub(crate) fn object(&self) -> Option<&Value> {
        self.object.as_ref()
    }

    pub(crate) fn used_fallback(&self) -> bool {
        self.used_fallback
    }
}

/// Reads an answer to a request with [`provider_schema`]; `Err` says what is wrong with it.
pub(crate) fn read_structured(text: &str, schema: &Value) -> Result<Value, String> {
    checked(text, Wrap::of(schema), schema)
}

fn checked(text: &str, wrap: Wrap, schema: &Value) -> Result<Value, String> {
    let text = strip_fence(text.trim());
    let value: Value = serde_json::from_str(text).map_err(|error| format!("it is no JSON ({error})"))?;
    let value = wrap.unwrap(value);
    if let Some(validator) = Validator::compile(schema)
        && let Err(report) = validator.check(&value)
    {
        let told = report.as_tool_result("output", "the answer", &value);
        let message = told.get("message").and_then(Value::as_str).unwrap_or("it breaks the schema");
        return Err(message.to_owned());
    }
    Ok(value)
}

/// Models like to put JSON into a code fence.
fn strip_fence(text: &str) -> &str {
    let Some(inner) = text.strip_prefix("```json").or_else(|| text.strip_prefix("```")) else { return text };
    inner.strip_suffix("```").unwrap_or(inner).trim()
}

/// The value a cut JSON text stands for: open strings and brackets are closed, a dangling key or comma is dropped.
fn complete_json(text: &str) -> Option<Value> {
    let text = strip_fence(text.trim_start());
    if let Ok(value) = serde_json::from_str(text) {
        return Some(value);
    }
    let mut closers = Vec::new();
    let (mut in_string, mut escaped) = (false, false);
    let mut safe = Vec::new();
    for (at, c) in text.char_indices() {
        if in_string {
            match c {
                _ if escaped => escaped = false,
                '\\' => escaped = true,
                '"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match c {
            '"' => in_string = true,
            '{' => closers.push('}'),
            '[' => closers.push(']'),
            '}' | ']' => {
                closers.pop();
            }
            ',' => safe.push((at, closers.clone())),
            _ => {}
        }
    }
    let close = |head: &str, closers: &[char]| -> Option<Value> {
        let mut whole = head.to_owned();
        whole.extend(closers.iter().rev());
        serde_json::from_str(&whole).ok()
    };
    let mut head = text.to_owned();
    if in_string {
        if escaped {
            head.pop();
        }
        head.push('"');
    }
    if let Some(value) = close(&head, &closers) {
        return Some(value);
    }
    // A key without its value, or half a literal: back to the last comma, or to the opening bracket.
    while let Some((at, closers)) = safe.pop() {
        if let Some(value) = close(&text[..at], &closers) {
            return Some(value);
        }
    }
    match text.chars().next() {
        Some('{') => Some(json!({})),
        Some('[') => Some(json!([])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loop_154_a_cut_json_text_gives_the_value_so_far() {
        for (text, value) in [
            ("{", json!({})),
            ("{\"a\"", json!({})),
            ("{\"a\":1", json!({"a": 1})),
            ("{\"a\":\"x", json!({"a": "x"})),
            ("{\"a\":1,\"b\":[1,", json!({"a": 1, "b": [1]})),
            ("{\"a\":1,\"b\":t", json!({"a": 1})),
            ("```json\n{\"a\":1", json!({"a": 1})),
        ] {
            assert_eq!(complete_json(text), Some(value), "{text}");
        }
        assert_eq!(complete_json("hello"), None);
    }

    #[test]
    fn loop_154_partial_values_together_stay_in_proportion_to_the_text() {
        let text = format!("{{\"a\":\"{}\"}}", "x".repeat(20_000));
        let options = StructuredOutput {
            schema: json!({"type": "object"}),
            instructions: None,
            json_prompt_injection: None,
            error_strategy: ErrorStrategy::Strict,
            fallback_value: None,
        };
        let mut structured = Structured::new(options);
        let mut sizes = Vec::new();
        for at in 0..text.len() {
            sizes.extend(structured.push(&text[at..=at]).map(|partial| partial.to_string().len()));
        }
        assert!(sizes.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(sizes.len() > 50, "{}", sizes.len());
        assert!(sizes.iter().sum::<usize>() < text.len() * 18, "{}", sizes.iter().sum::<usize>());
        assert_eq!(structured.finish(&text).unwrap().unwrap()["a"].as_str().unwrap().len(), 20_000);
    }

    #[test]
    fn loop_152_roots_that_are_no_objects_are_wrapped_and_unwrapped() {
        let schema = json!({"type": "array", "items": {"type": "number"}});
        assert_eq!(provider_schema(&schema)["required"], json!(["elements"]));
        let options = StructuredOutput {
            schema,
            instructions: None,
            json_prompt_injection: None,
            error_strategy: ErrorStrategy::Strict,
            fallback_value: None,
        };
        assert_eq!(Structured::new(options).finish("{\"elements\":[1,2]}").unwrap(), Some(json!([1, 2])));
    }

    #[test]
    fn loop_155_an_answer_that_does_not_fit_fails_warns_or_falls_back() {
        let of = |error_strategy| StructuredOutput {
            schema: json!({"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]}),
            instructions: None,
            json_prompt_injection: None,
            error_strategy,
            fallback_value: Some(json!({"n": 0})),
        };
        let error = Structured::new(of(ErrorStrategy::Strict)).finish("{}").unwrap_err();
        assert_eq!(error.id.as_deref(), Some("STRUCTURED_OUTPUT_SCHEMA_VALIDATION_FAILED"));
        assert_eq!(Structured::new(of(ErrorStrategy::Warn)).finish("no").unwrap(), None);
        let mut fallback = Structured::new(of(ErrorStrategy::Fallback));
        assert_eq!(fallback.finish("no").unwrap(), Some(json!({"n": 0})));
        assert!(fallback.used_fallback());
    }
}
