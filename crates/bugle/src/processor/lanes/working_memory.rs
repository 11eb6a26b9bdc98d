//! Working memory as a lane (STATE-098): told once, then as changes, in the place of a system message each request.

use async_trait::async_trait;

use crate::{
    memory::{Scope, get_working_memory},
    processor::{
        Context, Outcome, ProcessorError,
        lane::{Current, Lane, Reading},
    },
};

/// Keeps stored working memory in the model's view. Give it to agents whose working memory is read-only or changed by
/// others; memory that is on for the agent itself is in its system message already.
#[derive(Debug, Clone, Copy, Default)]
pub struct WorkingMemoryLane {
    /// Of which scope.
    pub scope: Scope,
}

#[async_trait]
impl Lane for WorkingMemoryLane {
    type State = String;

    fn id(&self) -> &'static str {
        "working-memory"
    }

    async fn current(&self, cx: &mut Context<'_>) -> Outcome<Current<String>> {
        let (Some(runtime), Some(thread)) = (cx.runtime(), cx.thread()) else { return Ok(Current::Unknown) };
        let held = get_working_memory(&runtime.inner.storage, thread, self.scope).await;
        let held = held.map_err(|error| ProcessorError::Failed(error.to_string()))?;
        Ok(held.filter(|text| !text.trim().is_empty()).map_or(Current::Unknown, Current::State))
    }

    fn read(&self, text: &String) -> Reading {
        Reading::text(text.clone()).tagged("working-memory")
    }

    fn change(&self, before: &String, now: &String) -> Option<Reading> {
        // JSON is always told whole.
        if serde_json::from_str::<crate::json::Value>(now).is_ok_and(|value| value.is_object() || value.is_array()) {
            return None;
        }
        let diff = diff(before, now);
        // A change that says more than the text is told as the text.
        (diff.len() < now.len()).then(|| Reading::text(diff).tagged("working-memory").with("format", "diff"))
    }
}

/// A unified diff of lines without context: the lines that are alike at both ends are left out.
fn diff(before: &str, now: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), now.lines().collect());
    let head = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let tail = old[head..].iter().rev().zip(new[head..].iter().rev()).take_while(|(a, b)| a == b).count();
    let (old_part, new_part) = (&old[head..old.len() - tail], &new[head..new.len() - tail]);
    let mut out = format!("@@ -{},{} +{},{} @@", head + 1, old_part.len(), head + 1, new_part.len());
    for line in old_part {
        out.push_str("\n-");
        out.push_str(line);
    }
    for line in new_part {
        out.push_str("\n+");
        out.push_str(line);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_098_changes_are_diffs_and_json_is_whole() {
        let lane = WorkingMemoryLane::default();
        let before = "# User\n- Name: Ann\n- City: Oslo\n- Work: much of it, and more to come".to_owned();
        let now = before.replace("Oslo", "Rome");
        let change = lane.change(&before, &now).unwrap();
        assert_eq!(change.contents, "@@ -3,1 +3,1 @@\n-- City: Oslo\n+- City: Rome".into());
        assert_eq!(lane.change(&"{}".to_owned(), &r#"{"a": 1}"#.to_owned()), None);
        assert_eq!(lane.change(&"a".to_owned(), &"b".to_owned()), None, "shorter whole");
    }
}
