//! `inputProcessors`, `outputProcessors`, `errorProcessors` of an agent file: built-in ones by name (PROC §10).

use std::sync::Arc;

use bugle::{
    json::{Object, Value},
    processor::{
        List, SharedProcessor,
        catalog::{NAMES, Surroundings, make},
    },
};

use super::{
    fields::Reader,
    front::{Data, Key, Node},
};
use crate::text::nearest;

/// The processors of an agent, by list.
#[derive(Debug, Clone, Default)]
pub(super) struct Lists {
    pub(super) input: Vec<SharedProcessor>,
    pub(super) output: Vec<SharedProcessor>,
    pub(super) error: Vec<SharedProcessor>,
}

impl Reader<'_> {
    /// A list of names, or of `{name: options}`.
    pub(super) fn processors(&mut self, key: &Key, node: &Node) -> Vec<SharedProcessor> {
        let items = match &node.data {
            Data::Scalar(Value::Null | Value::Bool(false)) => return Vec::new(),
            Data::List(items) => items,
            _ => {
                self.wrong(key, format!("{}: must be a list of names, or of NAME: OPTIONS", key.name));
                return Vec::new();
            }
        };
        let list = List::ALL.into_iter().find(|list| list.name() == key.name);
        let mut made: Vec<SharedProcessor> = Vec::new();
        for item in items {
            let (name, options) = match (&item.data, item.as_str()) {
                (_, Some(name)) => (name.to_owned(), Object::new()),
                (Data::Map(entries), _) if entries.len() == 1 => match entries[0].1.value() {
                    Value::Object(options) => (entries[0].0.name.clone(), options),
                    Value::Null => (entries[0].0.name.clone(), Object::new()),
                    _ => {
                        let message = format!("{}.{}: must be options: NAME: VALUE", key.name, entries[0].0.name);
                        self.at(item.line, item.column, message);
                        continue;
                    }
                },
                _ => {
                    self.at(item.line, item.column, format!("{}: must be a name, or NAME: OPTIONS", key.name));
                    continue;
                }
            };
            if !NAMES.contains(&name.as_str()) {
                let near = nearest(&name, NAMES.iter().copied());
                let near = near.map(|near| format!("; did you mean {near:?}?")).unwrap_or_default();
                let message = format!("{}: there is no processor {name}{near} Known: {}", key.name, NAMES.join(", "));
                self.at(item.line, item.column, message);
                continue;
            }
            let models = self.models;
            let model = |name: &str| models.resolve(name).map(|resolved| resolved.entry.model);
            let around = Surroundings { root: models.directory().to_owned(), model: &model };
            match make(&name, &options, &around) {
                Ok(processor)
                    if made.iter().any(|known| known.id() == processor.id() && !Arc::ptr_eq(known, &processor)) =>
                {
                    self.at(item.line, item.column, format!("{}: {name} is in the list twice", key.name));
                }
                Ok(processor) => match list.and_then(|list| list.refuses(&*processor)) {
                    Some(reason) => self.at(item.line, item.column, format!("{}: {name}: {reason}", key.name)),
                    None => made.push(processor),
                },
                Err(message) => self.at(item.line, item.column, format!("{}.{name}: {message}", key.name)),
            }
        }
        made
    }
}
