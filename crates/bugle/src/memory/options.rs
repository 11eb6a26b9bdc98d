//! Options of a call over those of the agent (MEM-001, MEM-002).

use serde_json::Value;

use super::MemoryOptions;
use crate::{error::Error, json::Object};

/// Keys that no option has any more, and what to use instead.
const OLD: [(&str, &str); 2] = [
    ("threads", "use generateTitle at the top level"),
    ("processors", "give processors to the agent, not to its memory"),
];
/// Options of the reference that this version does not have.
const MISSING: [(&str, &str); 3] = [
    ("semanticRecall", "it needs a vector store and an embedder, and none is configured"),
    ("observationalMemory", "this version does not have it"),
    ("messageHistory", "this version bounds history by lastMessages only"),
];

impl MemoryOptions {
    /// These options with those of a call merged over them, deeply (MEM-001).
    ///
    /// # Errors
    /// [`Error::Invalid`] below `memory.options` for an old spelling (MEM-002), for an option this version lacks, and for
    /// a value of the wrong kind.
    pub fn merged(&self, change: Option<&Value>) -> Result<Self, Error> {
        let change = match change {
            None | Some(Value::Null) => return Ok(self.clone()),
            Some(Value::Object(change)) => change,
            Some(_) => return Err(Error::invalid("memory.options", "memory.options must be an object")),
        };
        check(change)?;
        let mut merged = serde_json::to_value(self).map_err(|_| Error::Internal("memory options are not JSON"))?;
        let Value::Object(fields) = &mut merged else { return Err(Error::Internal("memory options are no object")) };
        for (key, value) in change {
            match (key.as_str(), value) {
                ("generateTitle" | "workingMemory", Value::Bool(false) | Value::Null) => {
                    fields.shift_remove(key);
                }
                ("generateTitle", Value::Bool(true)) => {
                    fields.entry(key.clone()).or_insert_with(|| Value::Object(Object::new()));
                }
                ("workingMemory", Value::Object(change)) => {
                    let held = fields.entry(key.clone()).or_insert(Value::Null);
                    // One excludes the other: what the call gives replaces what the agent has.
                    if let Value::Object(held) = held {
                        for (given, replaced) in [("template", "schema"), ("schema", "template")] {
                            if change.contains_key(given) {
                                held.shift_remove(replaced);
                            }
                        }
                    }
                    merge(held, value);
                }
                _ => merge(fields.entry(key.clone()).or_insert(Value::Null), value),
            }
        }
        let merged: Self = serde_json::from_value(merged)
            .map_err(|error| Error::invalid("memory.options", format!("memory.options: {error}")))?;
        merged.check()?;
        Ok(merged)
    }

    /// Checks what the types cannot say.
    ///
    /// # Errors
    /// [`Error::Invalid`] if working memory has both a template and a schema.
    pub fn check(&self) -> Result<(), Error> {
        match &self.working_memory {
            Some(working) if working.template.is_some() && working.schema.is_some() => Err(Error::invalid(
                "memory.options.workingMemory",
                "working memory has either a template or a schema, not both",
            )),
            _ => Ok(()),
        }
    }
}

fn check(change: &Object) -> Result<(), Error> {
    let refuse = |key: &str, why: &str| {
        let field = format!("memory.options.{key}");
        Err(Error::invalid(&field, format!("{field} is not an option: {why}")))
    };
    for (key, why) in OLD {
        if change.contains_key(key) {
            return refuse(key, why);
        }
    }
    for (key, why) in MISSING {
        if change.get(key).is_some_and(|value| !matches!(value, Value::Null | Value::Bool(false))) {
            return refuse(key, why);
        }
    }
    if change.get("workingMemory").is_some_and(|working| working.get("use").is_some()) {
        return refuse("workingMemory.use", "working memory is always changed by its tool; leave it out");
    }
    if let Some(last) = change.get("lastMessages")
        && serde_json::from_value::<super::LastMessages>(last.clone()).is_err()
    {
        let field = "memory.options.lastMessages";
        return Err(Error::invalid(field, format!("{field} must be a whole number from 0, or false")));
    }
    Ok(())
}

/// Objects merge by key; anything else replaces.
fn merge(into: &mut Value, change: &Value) {
    match (into, change) {
        (Value::Object(into), Value::Object(change)) => {
            for (key, value) in change {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (into, change) => *into = change.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::memory::{LastMessages, Scope, TitleOptions, WorkingMemoryOptions};

    #[test]
    fn mem_001_options_of_a_call_merge_deeply() {
        let base = MemoryOptions {
            last_messages: LastMessages(Some(5)),
            working_memory: Some(WorkingMemoryOptions {
                scope: Scope::Thread,
                template: Some("# Me".into()),
                ..WorkingMemoryOptions::default()
            }),
            ..MemoryOptions::default()
        };
        assert_eq!(base.merged(None).unwrap(), base);
        let merged = base
            .merged(Some(&json!({"lastMessages": false, "readOnly": true, "workingMemory": {"readOnly": true}, "generateTitle": true})))
            .unwrap();
        let working = WorkingMemoryOptions { read_only: true, ..base.working_memory.clone().unwrap() };
        let expected = MemoryOptions {
            last_messages: LastMessages(None),
            read_only: true,
            working_memory: Some(working),
            generate_title: Some(TitleOptions::default()),
            filter_incomplete_tool_calls: true,
        };
        assert_eq!(merged, expected);
        let titled = merged.merged(Some(&json!({"generateTitle": {"minMessages": 3}}))).unwrap();
        assert_eq!(titled.generate_title, Some(TitleOptions { min_messages: 3, ..TitleOptions::default() }));
        let off = titled
            .merged(Some(&json!({"generateTitle": false, "workingMemory": false, "semanticRecall": false})))
            .unwrap();
        assert_eq!((off.generate_title, off.working_memory), (None, None));
        let schema = base.merged(Some(&json!({"workingMemory": {"schema": {"type": "object"}}}))).unwrap();
        assert_eq!(schema.working_memory.map(|working| working.template), Some(None));
    }

    #[test]
    fn mem_002_mem_111_old_spellings_and_wrong_values_are_errors() {
        for (change, field) in [
            (json!({"threads": {"generateTitle": true}}), "memory.options.threads"),
            (json!({"processors": []}), "memory.options.processors"),
            (json!({"workingMemory": {"enabled": true, "use": "tool-call"}}), "memory.options.workingMemory.use"),
            (json!({"lastMessages": -1}), "memory.options.lastMessages"),
            (json!({"lastMessages": 1.5}), "memory.options.lastMessages"),
            (json!({"lastMessages": true}), "memory.options.lastMessages"),
            (json!({"semanticRecall": true}), "memory.options.semanticRecall"),
            (json!({"observationalMemory": {"enabled": true}}), "memory.options.observationalMemory"),
            (json!({"messageHistory": {"maxTokens": 5}}), "memory.options.messageHistory"),
            (json!({"workingMemory": {"template": "x", "schema": {}}}), "memory.options.workingMemory"),
            (json!({"readOnly": "yes"}), "memory.options"),
            (json!("last"), "memory.options"),
        ] {
            match MemoryOptions::default().merged(Some(&change)) {
                Err(Error::Invalid { field: named, .. }) => assert_eq!(named, field, "{change}"),
                other => panic!("{change}: {other:?}"),
            }
        }
    }
}
