//! An agent file taken apart: front matter with places, and the body (CLI-010).

use std::fmt;

use bugle::json::{Object, Value};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::Spanned;

/// A YAML value that knows where it stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Node {
    /// From 1, in the file.
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) data: Data,
}

/// What a [`Node`] is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Data {
    Scalar(Value),
    List(Vec<Node>),
    Map(Vec<(Key, Node)>),
}

/// A key and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Key {
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) name: String,
}

impl Node {
    /// The value without places.
    pub(crate) fn value(&self) -> Value {
        match &self.data {
            Data::Scalar(value) => value.clone(),
            Data::List(items) => items.iter().map(Self::value).collect(),
            Data::Map(entries) => {
                let entries = entries.iter().map(|(key, node)| (key.name.clone(), node.value()));
                Value::Object(entries.collect::<Object>())
            }
        }
    }

    pub(crate) fn as_str(&self) -> Option<&str> {
        match &self.data {
            Data::Scalar(Value::String(text)) => Some(text),
            _ => None,
        }
    }
}

/// A file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Document {
    pub(crate) fields: Vec<(Key, Node)>,
    pub(crate) body: String,
    /// The line on which the body begins.
    pub(crate) body_line: usize,
}

/// The longest file that is read as an agent.
const FILE_LEN_MAX: usize = 1 << 20;

impl Document {
    /// Takes a file apart.
    ///
    /// # Errors
    /// Line, column, and what is wrong there.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, (usize, usize, String)> {
        if bytes.len() > FILE_LEN_MAX {
            return Err((1, 1, format!("the file has more than {FILE_LEN_MAX} bytes, too many for an agent")));
        }
        let text = std::str::from_utf8(bytes).map_err(|error| {
            let line = bytes[..error.valid_up_to()].split(|byte| *byte == b'\n').count();
            (line, 1, "the file is not UTF-8".to_owned())
        })?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", "\n");
        let Some(rest) = text.strip_prefix("---\n") else {
            return Ok(Self { fields: Vec::new(), body: text.trim().to_owned(), body_line: 1 });
        };
        let mut end = None;
        let mut at = 0;
        for line in rest.split_inclusive('\n') {
            if line.trim_end() == "---" {
                end = Some((at, at + line.len()));
                break;
            }
            at += line.len();
        }
        let Some((yaml_end, body_start)) = end else {
            return Err((1, 1, "the front matter has no end; close it with a line ---".into()));
        };
        let yaml = &rest[..yaml_end];
        let body_line = yaml.matches('\n').count() + 3;
        let fields = parse(yaml)?;
        Ok(Self { fields, body: rest[body_start..].trim().to_owned(), body_line })
    }
}

fn parse(yaml: &str) -> Result<Vec<(Key, Node)>, (usize, usize, String)> {
    if yaml.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(Vec::new());
    }
    let mut budget = serde_saphyr::Budget::default();
    (budget.max_anchors, budget.max_aliases, budget.max_merge_keys, budget.max_depth) = (0, 0, 0, 32);
    let options = serde_saphyr::options! {
        budget: Some(budget),
        with_snippet: false,
        reject_unsupported_tags: true,
    };
    let root: Spanned<Raw> = serde_saphyr::from_str_with_options(yaml, options).map_err(|error| {
        let (line, column) = error.location().map_or((1, 1), |at| (at.line() as usize, at.column() as usize));
        let text = error.to_string();
        // The place is said once, by us.
        let text = text.lines().next().unwrap_or_default();
        (line + 1, column.max(1), format!("the front matter is not readable: {text}"))
    })?;
    match place(root) {
        Node { data: Data::Map(fields), .. } => Ok(fields),
        Node { line, .. } => Err((line, 1, "the front matter must be fields: NAME: VALUE".into())),
    }
}

/// As the parser gives it: places count from the front matter's first line.
#[derive(Debug)]
enum Raw {
    Scalar(Value),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

fn place(raw: Spanned<Raw>) -> Node {
    let at = |location: serde_saphyr::Location| (location.line() as usize + 1, (location.column() as usize).max(1));
    let (line, column) = at(raw.referenced);
    let data = match raw.value {
        Raw::Scalar(value) => Data::Scalar(value),
        Raw::List(items) => Data::List(items.into_iter().map(place).collect()),
        Raw::Map(entries) => Data::Map(
            entries
                .into_iter()
                .map(|(key, node)| {
                    let (line, column) = at(key.referenced);
                    (Key { line, column, name: key.value }, place(node))
                })
                .collect(),
        ),
    };
    Node { line, column, data }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyNode;
        impl<'de> Visitor<'de> for AnyNode {
            type Value = Raw;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text, number, list or map")
            }
            fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
                Ok(Raw::Scalar(value.into()))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
                Ok(Raw::Scalar(value.into()))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
                Ok(Raw::Scalar(value.into()))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
                Ok(Raw::Scalar(value.into()))
            }
            fn visit_str<E>(self, value: &str) -> Result<Raw, E> {
                Ok(Raw::Scalar(value.into()))
            }
            fn visit_unit<E>(self) -> Result<Raw, E> {
                Ok(Raw::Scalar(Value::Null))
            }
            fn visit_none<E>(self) -> Result<Raw, E> {
                Ok(Raw::Scalar(Value::Null))
            }
            fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Raw, D::Error> {
                Raw::deserialize(deserializer)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Raw, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(Raw::List(list))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Raw, A::Error> {
                let mut map = Vec::new();
                while let Some(entry) = entries.next_entry()? {
                    map.push(entry);
                }
                Ok(Raw::Map(map))
            }
        }
        deserializer.deserialize_any(AnyNode)
    }
}
