//! Scorers, task completion and rubrics on the scripted model (SCO).

mod completion;
mod live;
mod pipeline;
mod rubric;
mod subagents;
mod verdicts;

use std::sync::Arc;

use bugle::{
    json::{Value, json},
    model::{Script, ScriptedModel, SharedModel},
    scorer::{Score, Scorer, ScorerError, ScorerInput},
};

use crate::r#loop::Ran;

/// A judge that gives these answers, one a request.
fn judge_of<S: Into<Script>>(answers: impl IntoIterator<Item = S>) -> (ScriptedModel, SharedModel) {
    let model = ScriptedModel::with_responses(answers).named("judges", "judge-1");
    (model.clone(), Arc::new(model))
}

type Judged = Result<Score, ScorerError>;

/// A scorer made of a function.
struct By<F> {
    id: &'static str,
    judge: F,
    threshold: Option<f64>,
    pure: bool,
}

fn by<F>(id: &'static str, judge: F) -> Arc<dyn Scorer>
where
    F: Fn(&ScorerInput) -> Judged + Send + Sync + 'static,
{
    Arc::new(By { id, judge, threshold: None, pure: true })
}

#[async_trait::async_trait]
impl<F: Fn(&ScorerInput) -> Judged + Send + Sync> Scorer for By<F> {
    fn id(&self) -> &str {
        self.id
    }
    fn pass_threshold(&self) -> Option<f64> {
        self.threshold
    }
    fn is_pure(&self) -> bool {
        self.pure
    }
    async fn score(&self, run: &ScorerInput) -> Judged {
        (self.judge)(run)
    }
}

/// Passes answers that hold a word.
fn holds(word: &'static str) -> Arc<dyn Scorer> {
    by("holds", move |run| {
        Ok(if run.text().contains(word) { Score::pass() } else { Score::fail(format!("no {word}")) })
    })
}

/// The payloads of the run's checks.
fn checks(ran: &Ran) -> Vec<Value> {
    ran.all("is-task-complete").iter().map(|chunk| chunk["payload"].clone()).collect()
}

/// Of each check, its iteration and whether it passed.
fn passed(ran: &Ran) -> Vec<(u64, bool)> {
    let of = |check: &Value| (check["iteration"].as_u64().unwrap(), check["passed"].as_bool().unwrap());
    checks(ran).iter().map(of).collect()
}

/// A reply of a rubric's judge.
fn verdict(entries: &[(&str, bool)]) -> Script {
    let entries: Vec<Value> = entries
        .iter()
        .map(|(criterion, satisfied)| {
            json!({"criterion": criterion, "satisfied": satisfied, "required": true, "reasoning": format!("about {criterion}")})
        })
        .collect();
    Script::new().text(&json!({"criteria": entries, "overallAssessment": "so so"}).to_string())
}
