//! `isTaskComplete` of an agent file: rubrics that say when the work is done (SCO §3, §4).

use std::{sync::Arc, time::Duration};

use bugle::{
    json::Value,
    scorer::{Criteria, Criterion, Judge, Rubric, Scorer, Strategy, TaskCompletion, When},
};

use super::{
    fields::Reader,
    front::{Data, Key, Node},
};
use crate::settings::value::parse_duration;

/// What a file says of it. Which model judges, if the rubric does not say, is known once the file is read.
#[derive(Debug)]
pub(super) struct Completion {
    rubrics: Vec<(Criteria, Option<Judge>)>,
    strategy: Strategy,
    parallel: bool,
    timeout: Option<Duration>,
    suppress_feedback: bool,
    when: When,
}

impl Completion {
    /// The check, with `model` as judge where a rubric names none.
    pub(super) fn build(&self, model: &Judge) -> TaskCompletion {
        let scorers = self.rubrics.iter().map(|(criteria, judge)| -> Arc<dyn Scorer> {
            let judge = judge.as_ref().unwrap_or(model).clone();
            Arc::new(Rubric::of(judge).criteria(criteria.clone()).build())
        });
        let mut completion = TaskCompletion::all(scorers.collect());
        completion.strategy = self.strategy;
        completion.parallel = self.parallel;
        completion.suppress_feedback = self.suppress_feedback;
        completion.when = self.when;
        if let Some(timeout) = self.timeout {
            completion.timeout = timeout;
        }
        completion
    }
}

/// CLI-004.
fn duration(value: &Value) -> Option<Duration> {
    match value {
        Value::String(text) => parse_duration(text).ok(),
        value => value.as_u64().map(Duration::from_millis),
    }
}

const FIELDS: [&str; 6] = ["scorers", "strategy", "parallel", "timeout", "suppressFeedback", "when"];

impl Reader<'_> {
    /// `{scorers: [{rubric: [text…], model?}], strategy?, parallel?, timeout?, suppressFeedback?, when?}`.
    pub(super) fn completion(&mut self, key: &Key, node: &Node) -> Option<Completion> {
        let entries = match &node.data {
            Data::Scalar(Value::Null | Value::Bool(false)) => return None,
            Data::Map(entries) => entries,
            _ => {
                self.wrong(key, "isTaskComplete: must be fields, with scorers");
                return None;
            }
        };
        let mut completion = Completion {
            rubrics: Vec::new(),
            strategy: Strategy::All,
            parallel: true,
            timeout: None,
            suppress_feedback: false,
            when: When::Stop,
        };
        for (field, value) in entries {
            let flag = value.value().as_bool();
            match (field.name.as_str(), flag) {
                ("scorers", _) => completion.rubrics = self.rubrics(field, value),
                ("strategy", _) => {
                    completion.strategy = self.typed_in(field, value, "all or any").unwrap_or_default();
                }
                ("when", _) => completion.when = self.typed_in(field, value, "stop or iteration").unwrap_or_default(),
                ("timeout", _) => match duration(&value.value()) {
                    Some(timeout) if !timeout.is_zero() => completion.timeout = Some(timeout),
                    _ => self.wrong(field, "isTaskComplete.timeout: must be a duration, such as 60s"),
                },
                ("parallel", Some(flag)) => completion.parallel = flag,
                ("suppressFeedback", Some(flag)) => completion.suppress_feedback = flag,
                ("parallel" | "suppressFeedback", None) => {
                    self.wrong(field, format!("isTaskComplete.{}: must be true or false", field.name));
                }
                (name, _) => {
                    let near = crate::text::nearest(name, FIELDS);
                    let near = near.map(|near| format!("; did you mean \"{near}\"?")).unwrap_or_default();
                    self.wrong(field, format!("isTaskComplete.{name}: unknown field{near}"));
                }
            }
        }
        if completion.rubrics.is_empty() && !entries.iter().any(|(field, _)| field.name == "scorers") {
            self.wrong(key, "isTaskComplete: scorers is missing; such as scorers: [{ rubric: [names its sources] }]");
        }
        Some(completion)
    }

    fn typed_in<T: serde::de::DeserializeOwned>(&mut self, field: &Key, node: &Node, what: &str) -> Option<T> {
        let value = serde_json::from_value(node.value()).ok();
        if value.is_none() {
            self.wrong(field, format!("isTaskComplete.{}: must be {what}", field.name));
        }
        value
    }

    fn rubrics(&mut self, key: &Key, node: &Node) -> Vec<(Criteria, Option<Judge>)> {
        let Data::List(items) = &node.data else {
            self.wrong(key, "isTaskComplete.scorers: must be a list");
            return Vec::new();
        };
        let mut rubrics = Vec::new();
        for item in items {
            let Data::Map(entries) = &item.data else {
                self.at(
                    item.line,
                    item.column,
                    "isTaskComplete.scorers: must be fields: rubric, and model if not the agent's",
                );
                continue;
            };
            let (mut criteria, mut judge) = (None, None);
            for (field, value) in entries {
                match field.name.as_str() {
                    "rubric" => criteria = Some(self.criteria(field, value)),
                    "model" => match value.as_str().map(|name| self.models.resolve(name)) {
                        Some(Ok(resolved)) => {
                            self.definition.missing.extend(resolved.missing);
                            judge = Some(Judge::of_model(resolved.entry.model));
                        }
                        Some(Err(message)) => {
                            self.at(value.line, value.column, format!("isTaskComplete.scorers.model: {message}"));
                        }
                        None => self.wrong(field, "isTaskComplete.scorers.model: must be a name"),
                    },
                    name => self
                        .wrong(field, format!("isTaskComplete.scorers.{name}: unknown field; known are rubric, model")),
                }
            }
            match criteria {
                Some(criteria) => rubrics.push((criteria, judge)),
                None => self.at(item.line, item.column, "isTaskComplete.scorers: rubric is missing"),
            }
        }
        rubrics
    }

    /// A text with one criterion a line, or a list of texts and `{description, id?, required?}`.
    fn criteria(&mut self, key: &Key, node: &Node) -> Criteria {
        let criteria = match &node.data {
            Data::Scalar(Value::String(text)) => Criteria::from(text.as_str()),
            Data::List(items) => {
                let mut criteria = Vec::new();
                for item in items {
                    let read = match item.as_str() {
                        Some(text) => Ok(Criterion::new(text)),
                        None => serde_json::from_value(item.value()),
                    };
                    match read {
                        Ok(criterion) => criteria.push(criterion),
                        Err(_) => self.at(
                            item.line,
                            item.column,
                            "isTaskComplete.scorers.rubric: must be a text, or { description: TEXT, required: false }",
                        ),
                    }
                }
                Criteria::from(criteria)
            }
            _ => Criteria::default(),
        };
        if criteria.0.is_empty() {
            self.wrong(key, "isTaskComplete.scorers.rubric: must say at least one thing that has to be so");
        }
        criteria
    }
}
