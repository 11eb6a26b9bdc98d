//! What a delegation tool takes (SUB §2).

use std::fmt::Write as _;

use serde_json::{Value, json};

/// The fewest steps a model may ask for (SUB-061).
const STEPS_MIN: u32 = 3;

/// A delegation as the parent's model asked for it.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Input {
    pub(super) prompt: String,
    pub(super) instructions: Option<String>,
    pub(super) max_steps: Option<u32>,
    pub(super) refs: Vec<Ref>,
}

/// An earlier result to hand on (SUB-104).
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Ref {
    pub(super) id: String,
    pub(super) label: Option<String>,
    pub(super) note: Option<String>,
}

/// The schema offered to the model (SUB-010). Fields that only answer a suspension are accepted and ignored, but not
/// offered: models fill in what they see.
pub(super) fn schema(references: bool) -> Value {
    let mut schema = json!({
        "type": "object",
        "additionalProperties": false,
        "required": ["prompt"],
        "properties": {
            "prompt": { "type": "string", "description": "The task, with all the subagent needs to know for it." },
            "instructions": {
                "type": ["string", "null"],
                "description": "Instructions for this task, besides the subagent's own.",
            },
            "maxSteps": {
                "type": ["number", "string", "null"],
                "description": "The most steps the subagent may take: at least 3, a whole number.",
            },
        },
    });
    if references {
        schema["properties"]["contextFromRefs"] = json!({
            "type": ["array", "null"],
            "description": "Earlier results to hand to the subagent unchanged, by the ids in their [ref: …] lines.",
            "items": {
                "anyOf": [
                    { "type": "string", "minLength": 1 },
                    {
                        "type": "object",
                        "additionalProperties": false,
                        "required": ["ref"],
                        "properties": {
                            "ref": { "type": "string", "minLength": 1 },
                            "as": { "type": ["string", "null"], "description": "What the subagent knows it as." },
                            "note": { "type": ["string", "null"], "description": "What it is for." },
                        },
                    },
                ],
            },
        });
    }
    schema
}

/// Reads the arguments of a call. `Err` is what the model reads instead of a result: the field, and what is wrong with it
/// (SUB-013).
pub(super) fn parse(args: &Value, tool: &str, references: bool) -> Result<Input, Value> {
    let mut input = Input::default();
    let mut wrong: Vec<(&str, String)> = Vec::new();
    let Value::Object(fields) = args else {
        return Err(report(tool, &[("root", format!("must be an object, not {}", kind(args)))]));
    };
    // Null is as if it were not there (SUB-011).
    let given = |name: &str| fields.get(name).filter(|value| !value.is_null());
    match fields.get("prompt") {
        Some(Value::String(prompt)) => input.prompt.clone_from(prompt),
        Some(other) => wrong.push(("prompt", format!("must be a string, not {}", kind(other)))),
        None => wrong.push(("prompt", "required, but missing".to_owned())),
    }
    match given("instructions") {
        None => {}
        Some(Value::String(text)) => input.instructions = Some(text.clone()).filter(|text| !text.trim().is_empty()),
        Some(other) => wrong.push(("instructions", format!("must be a string, not {}", kind(other)))),
    }
    match given("maxSteps").map(steps) {
        None => {}
        Some(Ok(steps)) => input.max_steps = Some(steps),
        Some(Err(problem)) => wrong.push(("maxSteps", problem)),
    }
    if references {
        match given("contextFromRefs") {
            None => {}
            Some(Value::Array(refs)) => {
                for item in refs {
                    match read_ref(item) {
                        Ok(found) => input.refs.push(found),
                        Err(problem) => wrong.push(("contextFromRefs", problem)),
                    }
                }
            }
            Some(other) => wrong.push(("contextFromRefs", format!("must be a list, not {}", kind(other)))),
        }
    }
    if wrong.is_empty() { Ok(input) } else { Err(report(tool, &wrong)) }
}

/// The steps a model asked for: a number or its digits, raised to the minimum, rounded up (SUB-061).
fn steps(value: &Value) -> Result<u32, String> {
    let asked = match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => text.trim().parse::<f64>().ok(),
        _ => None,
    };
    let asked = asked.filter(|steps| steps.is_finite());
    let Some(asked) = asked else { return Err(format!("must be a number, not {}", kind(value))) };
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates, as it should")]
    let whole = asked.ceil() as u32;
    let steps = whole.max(STEPS_MIN);
    if (f64::from(steps) - asked).abs() > f64::EPSILON {
        tracing::warn!(asked, steps, "a model asked for a step budget that cannot be; the nearest above is used");
    }
    Ok(steps)
}

fn read_ref(item: &Value) -> Result<Ref, String> {
    let text = |value: &Value| value.as_str().filter(|text| !text.trim().is_empty()).map(str::to_owned);
    let found = match item {
        Value::String(_) => text(item).map(|id| Ref { id, ..Ref::default() }),
        Value::Object(fields) => {
            let id = fields.get("ref").and_then(text);
            let label = fields.get("as").filter(|value| !value.is_null());
            if label.is_some_and(|label| text(label).is_none()) {
                return Err("`as` must be a string that is not empty".to_owned());
            }
            let note = fields.get("note").and_then(text);
            id.map(|id| Ref { id, label: label.and_then(text), note })
        }
        _ => None,
    };
    found.ok_or_else(|| "each must be an id, or an object with a `ref` that is not empty".to_owned())
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn report(tool: &str, wrong: &[(&str, String)]) -> Value {
    let mut list = String::new();
    let mut fields = crate::json::Object::new();
    for (field, problem) in wrong {
        // Writing to a string cannot fail.
        let _ = write!(list, "\n- {field}: {problem}");
        let entry = fields.entry(*field).or_insert_with(|| json!({ "errors": [], "fields": {} }));
        if let Some(errors) = entry["errors"].as_array_mut() {
            errors.push(json!(problem));
        }
    }
    json!({
        "error": true,
        "message": format!(
            "Tool input validation failed for {tool}; the subagent was not run. Correct this and try again:{list}"
        ),
        "validationErrors": { "errors": [], "fields": fields },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub_011_null_is_absence_and_sub_012_ids_of_the_model_are_ignored() {
        let args = json!({"prompt": "p", "threadId": "victim", "resourceId": 3, "instructions": null, "maxSteps": null,
            "contextFromRefs": null, "resumeData": {"approved": true}, "suspendedToolRunId": "r"});
        let expected = Input { prompt: "p".into(), ..Input::default() };
        assert_eq!(parse(&args, "agent-x", true), Ok(expected));
    }

    #[test]
    fn sub_013_what_is_wrong_is_named() {
        for (args, field) in [
            (json!({}), "prompt: required"),
            (json!({"prompt": 7}), "prompt: must be a string, not a number"),
            (json!({"prompt": "p", "maxSteps": "many"}), "maxSteps: must be a number"),
            (json!({"prompt": "p", "contextFromRefs": [{"ref": ""}]}), "contextFromRefs: each must be"),
            (json!({"prompt": "p", "contextFromRefs": [{"ref": "a-1", "as": ""}]}), "`as` must be"),
            (json!("do it"), "root: must be an object"),
        ] {
            let told = parse(&args, "agent-x", true).unwrap_err();
            assert!(told["message"].as_str().unwrap().contains(field), "{told}");
            assert_eq!(told["error"], true);
        }
    }

    #[test]
    fn sub_061_step_budgets_are_read_raised_and_rounded() {
        for (asked, steps) in
            [(json!("4"), 4), (json!(1), 3), (json!(2), 3), (json!(2.5), 3), (json!(4.2), 5), (json!(-1), 3)]
        {
            let input = parse(&json!({"prompt": "p", "maxSteps": asked}), "agent-x", false).unwrap();
            assert_eq!(input.max_steps, Some(steps));
        }
    }

    #[test]
    fn sub_100_references_are_offered_only_where_they_are_on() {
        assert!(schema(false)["properties"].get("contextFromRefs").is_none());
        assert!(schema(true)["properties"].get("contextFromRefs").is_some());
        let args = json!({"prompt": "p", "contextFromRefs": ["explorer-1"]});
        assert!(parse(&args, "agent-x", false).unwrap().refs.is_empty());
    }
}
