//! The shapes of bodies and query parameters: one declaration checks a request and describes it in OpenAPI, so the
//! two cannot differ (HTTP-004, HTTP-005).
//!
//! What passed a shape has the types the shape says; unknown fields pass untouched and nobody reads them (HTTP-008).
//! A `null` in an optional field counts as absent.

use bugle::json::{Object, Value, json};

/// What a JSON value must look like.
pub(crate) enum Shape {
    /// Anything that is there.
    Any,
    /// `null`.
    Null,
    /// Text.
    Text,
    /// `true` or `false`.
    Flag,
    /// Any number.
    Number,
    /// A whole number from the given one up to `u32::MAX`.
    Whole(u64),
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// A list of one shape.
    List(&'static Shape),
    /// An object of one shape, under any keys.
    Map(&'static Shape),
    /// An object with these fields, and others that are ignored.
    Fields(&'static [Field]),
    /// An object whose field `.0` says which fields it has.
    Tagged(&'static str, &'static [(&'static str, &'static [Field])]),
    /// Several shapes of different JSON types: the value's type chooses, so that an issue names the field that is
    /// wrong and not the whole union.
    Either(&'static [&'static Shape]),
}

/// A field of an object.
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) shape: &'static Shape,
    pub(crate) required: bool,
}

/// A field that must be there.
pub(crate) const fn required(name: &'static str, shape: &'static Shape) -> Field {
    Field { name, shape, required: true }
}

/// A field that may be there.
pub(crate) const fn optional(name: &'static str, shape: &'static Shape) -> Field {
    Field { name, shape, required: false }
}

/// What is wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub(crate) struct Issue {
    /// The dotted path; `root` for the whole value.
    pub(crate) field: String,
    /// What is wrong with it.
    pub(crate) message: String,
}

impl Issue {
    pub(crate) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }

    fn missing(field: String, shape: &Shape) -> Self {
        Self::new(field, format!("Invalid input: expected {}, received undefined", shape.expected()))
    }
}

impl Shape {
    /// Everything that is wrong with `value`, in order.
    pub(crate) fn check(&self, value: &Value) -> Vec<Issue> {
        let mut issues = Vec::new();
        self.check_at(value, &mut Vec::new(), &mut issues);
        issues
    }

    fn check_at(&self, value: &Value, path: &mut Vec<String>, issues: &mut Vec<Issue>) {
        if !self.takes(value) {
            let message = format!("Invalid input: expected {}, received {}", self.expected(), kind_of(value));
            issues.push(Issue::new(dotted(path), message));
            return;
        }
        match (self, value) {
            (Self::Whole(least), Value::Number(number))
                if !number.as_u64().is_some_and(|number| number >= *least && u32::try_from(number).is_ok()) =>
            {
                issues.push(Issue::new(dotted(path), format!("expected a whole number of at least {least}")));
            }
            (Self::OneOf(options), Value::String(text)) if !options.contains(&text.as_str()) => {
                let message = format!("Invalid option: expected one of {}", choice(options.iter().copied()));
                issues.push(Issue::new(dotted(path), message));
            }
            (Self::List(item), Value::Array(items)) => {
                for (index, value) in items.iter().enumerate() {
                    path.push(index.to_string());
                    item.check_at(value, path, issues);
                    path.pop();
                }
            }
            (Self::Map(item), Value::Object(fields)) => {
                for (name, value) in fields {
                    path.push(name.clone());
                    item.check_at(value, path, issues);
                    path.pop();
                }
            }
            (Self::Fields(fields), Value::Object(object)) => check_fields(fields, object, path, issues),
            (Self::Tagged(tag, variants), Value::Object(object)) => {
                let chosen = object.get(*tag).and_then(Value::as_str);
                if let Some((_, fields)) = variants.iter().find(|(name, _)| Some(*name) == chosen) {
                    check_fields(fields, object, path, issues);
                } else {
                    let names = choice(variants.iter().map(|(name, _)| *name));
                    path.push((*tag).to_owned());
                    issues.push(Issue::new(dotted(path), format!("Invalid option: expected one of {names}")));
                    path.pop();
                }
            }
            (Self::Either(shapes), value) => {
                if let Some(shape) = shapes.iter().find(|shape| shape.takes(value)) {
                    shape.check_at(value, path, issues);
                }
            }
            _ => {}
        }
    }

    /// Whether a value of this JSON type can fit at all.
    fn takes(&self, value: &Value) -> bool {
        match self {
            Self::Any => true,
            Self::Null => value.is_null(),
            Self::Text | Self::OneOf(_) => value.is_string(),
            Self::Flag => value.is_boolean(),
            Self::Number | Self::Whole(_) => value.is_number(),
            Self::List(_) => value.is_array(),
            Self::Map(_) | Self::Fields(_) | Self::Tagged(..) => value.is_object(),
            Self::Either(shapes) => shapes.iter().any(|shape| shape.takes(value)),
        }
    }

    fn expected(&self) -> String {
        match self {
            Self::Any => "a value".into(),
            Self::Null => "null".into(),
            Self::Text | Self::OneOf(_) => "string".into(),
            Self::Flag => "boolean".into(),
            Self::Number | Self::Whole(_) => "number".into(),
            Self::List(_) => "array".into(),
            Self::Map(_) | Self::Fields(_) | Self::Tagged(..) => "object".into(),
            Self::Either(shapes) => shapes.iter().map(|shape| shape.expected()).collect::<Vec<_>>().join(" or "),
        }
    }

    /// Whether a request may leave the whole value out (HTTP-018).
    pub(crate) fn may_be_absent(&self) -> bool {
        match self {
            Self::Fields(fields) => fields.iter().all(|field| !field.required),
            _ => false,
        }
    }

    /// The shape as JSON Schema.
    pub(crate) fn schema(&self) -> Value {
        match self {
            Self::Any => json!({}),
            Self::Null => json!({"type": "null"}),
            Self::Text => json!({"type": "string"}),
            Self::Flag => json!({"type": "boolean"}),
            Self::Number => json!({"type": "number"}),
            Self::Whole(least) => json!({"type": "integer", "minimum": least, "maximum": u32::MAX}),
            Self::OneOf(options) => json!({"type": "string", "enum": options}),
            Self::List(item) => json!({"type": "array", "items": item.schema()}),
            Self::Map(item) => json!({"type": "object", "additionalProperties": item.schema()}),
            Self::Fields(fields) => fields_schema(fields, None),
            Self::Tagged(tag, variants) => {
                let each = variants.iter().map(|(name, fields)| fields_schema(fields, Some((tag, name))));
                json!({"oneOf": each.collect::<Vec<_>>()})
            }
            Self::Either(shapes) => json!({"anyOf": shapes.iter().map(|shape| shape.schema()).collect::<Vec<_>>()}),
        }
    }

    /// A query parameter's text as JSON of this shape, as well as it can be read; what cannot stays text, which the
    /// check then names.
    pub(crate) fn read_text(&self, text: &str) -> Value {
        let read = match self {
            Self::Any | Self::Null | Self::Text | Self::OneOf(_) => None,
            Self::Flag | Self::Number | Self::Whole(_) | Self::List(_) | Self::Map(_) => {
                serde_json::from_str(text).ok()
            }
            Self::Fields(_) | Self::Tagged(..) | Self::Either(_) => serde_json::from_str(text).ok(),
        };
        match read {
            Some(value) if self.takes(&value) => value,
            _ => Value::String(text.to_owned()),
        }
    }
}

fn check_fields(fields: &[Field], object: &Object, path: &mut Vec<String>, issues: &mut Vec<Issue>) {
    for field in fields {
        match object.get(field.name) {
            None | Some(Value::Null) if !field.required => {}
            None => {
                path.push(field.name.to_owned());
                issues.push(Issue::missing(dotted(path), field.shape));
                path.pop();
            }
            Some(value) => {
                path.push(field.name.to_owned());
                field.shape.check_at(value, path, issues);
                path.pop();
            }
        }
    }
}

fn fields_schema(fields: &[Field], tag: Option<(&str, &str)>) -> Value {
    let mut properties = Object::new();
    let mut required = Vec::new();
    if let Some((name, value)) = tag {
        properties.insert(name.to_owned(), json!({"type": "string", "const": value}));
        required.push(name);
    }
    for field in fields {
        properties.insert(field.name.to_owned(), field.shape.schema());
        if field.required {
            required.push(field.name);
        }
    }
    let mut schema = json!({"type": "object", "properties": properties});
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

fn choice<'a>(options: impl Iterator<Item = &'a str>) -> String {
    options.map(|option| format!("\"{option}\"")).collect::<Vec<_>>().join("|")
}

fn dotted(path: &[String]) -> String {
    if path.is_empty() { "root".to_owned() } else { path.join(".") }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static PART: Shape = Shape::Tagged(
        "type",
        &[("text", &[required("text", &Shape::Text)]), ("file", &[required("data", &Shape::Text)])],
    );
    static PARTS: Shape = Shape::List(&PART);
    static CONTENTS: Shape = Shape::Either(&[&Shape::Text, &PARTS]);
    static BODY: Shape = Shape::Fields(&[
        required("contents", &CONTENTS),
        optional("limit", &Shape::Whole(1)),
        optional("mode", &Shape::OneOf(&["a", "b"])),
    ]);

    fn fields(value: Value) -> Vec<String> {
        BODY.check(&value).into_iter().map(|issue| issue.field).collect()
    }

    #[test]
    fn http_005_issues_name_the_field_that_is_wrong_also_inside_unions() {
        assert_eq!(fields(json!({"contents": "x", "limit": null, "more": 1})), Vec::<String>::new());
        assert_eq!(fields(json!({})), ["contents"]);
        assert_eq!(fields(json!([])), ["root"]);
        assert_eq!(fields(json!({"contents": 5, "limit": 0, "mode": "c"})), ["contents", "limit", "mode"]);
        assert_eq!(fields(json!({"contents": [{"type": "text", "text": "a"}, {"type": "file"}]})), ["contents.1.data"]);
        assert_eq!(fields(json!({"contents": [{"type": "video"}]})), ["contents.0.type"]);
        assert_eq!(fields(json!({"contents": "x", "limit": 1.5})), ["limit"]);
    }

    #[test]
    fn http_017_a_shape_describes_what_it_checks() {
        let schema = BODY.schema();
        assert_eq!(schema["required"], json!(["contents"]));
        assert_eq!(
            schema["properties"]["contents"]["anyOf"][1]["items"]["oneOf"][1]["required"],
            json!(["type", "data"])
        );
    }
}
