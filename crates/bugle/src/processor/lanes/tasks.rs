//! The agent's task list: four tools that change it, and a lane that keeps it in view (STATE-096, PROV-007).

use std::fmt::Write as _;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{
    json::{Value, json},
    processor::{
        Context, Outcome, ProcessorError,
        lane::{Current, Lane, Reading},
    },
    tool::{Tool, ToolContext, ToolError},
};

/// Under this kind the list lies in the thread's state.
const KIND: &str = "task";
/// The most tasks of a list.
const TASKS_MAX: usize = 200;

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TaskStatus {
    /// Not begun.
    #[default]
    Pending,
    /// Worked on; at most one task is.
    InProgress,
    /// Done.
    Completed,
}

/// One task.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Task {
    /// Unique in the list.
    pub id: String,
    /// What is to be done.
    pub content: String,
    /// Where it stands.
    pub status: TaskStatus,
    /// How it is called while it is worked on.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub active_form: String,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
struct GivenTask {
    /// Leave out to have one made, or to go on with the task of the same content.
    #[serde(default)]
    id: Option<String>,
    /// What is to be done.
    content: String,
    #[serde(default)]
    status: TaskStatus,
    /// How it is called while it is worked on.
    #[serde(default)]
    active_form: Option<String>,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
struct WriteInput {
    /// The whole list.
    tasks: Vec<GivenTask>,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
struct UpdateInput {
    id: String,
    #[serde(default)]
    content: Option<String>,
    #[serde(default)]
    status: Option<TaskStatus>,
    #[serde(default)]
    active_form: Option<String>,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
struct CompleteInput {
    id: String,
}

#[derive(Debug, Deserialize, schemars::JsonSchema)]
struct CheckInput {}

/// The tools `task_write`, `task_update`, `task_complete` and `task_check`. They need a run on a stored thread.
///
/// ```
/// use std::sync::Arc;
/// use bugle::{Agent, model::ScriptedModel, processor::{lane::LaneProcessor, lanes::{TaskLane, task_tools}}};
/// let mut agent = Agent::builder("worker").model(Arc::new(ScriptedModel::new()));
/// for tool in task_tools() {
///     agent = agent.tool(tool);
/// }
/// let agent = agent.input_processor(LaneProcessor::new(TaskLane)).build()?;
/// # Ok::<(), bugle::Error>(())
/// ```
pub fn task_tools() -> Vec<Tool> {
    vec![
        Tool::typed(
            "task_write",
            "Replaces your task list. Give all tasks, in order.",
            |input: WriteInput, cx| async move { change(&cx, |tasks| write(tasks, input.tasks)).await },
        ),
        Tool::typed(
            "task_update",
            "Changes one task of your list: its content, status or both.",
            |input: UpdateInput, cx| async move { change(&cx, |tasks| update(tasks, input)).await },
        ),
        Tool::typed(
            "task_complete",
            "Marks a task of your list as completed.",
            |input: CompleteInput, cx| async move {
                let done =
                    UpdateInput { id: input.id, content: None, status: Some(TaskStatus::Completed), active_form: None };
                change(&cx, |tasks| update(tasks, done)).await
            },
        ),
        Tool::typed(
            "task_check",
            "Shows your task list and whether everything is done.",
            |_: CheckInput, cx| async move { change(&cx, Ok).await },
        ),
    ]
}

/// Reads, changes and writes the list of the tool's thread.
async fn change(
    cx: &ToolContext,
    change: impl FnOnce(Vec<Task>) -> Result<Vec<Task>, String>,
) -> Result<Value, ToolError> {
    let stored = async {
        let runtime = cx.runtime.as_ref()?;
        let thread = cx.thread.as_ref()?;
        runtime.inner.storage.get_thread(&thread.thread_id).await.ok()??;
        Some((runtime.inner.storage.clone(), thread.thread_id.to_string()))
    };
    let Some((storage, thread)) = stored.await else {
        return Err(ToolError::failed("tasks need a conversation with memory; nothing was stored"));
    };
    let failed = |error: crate::storage::StorageError| ToolError::failed(error.to_string());
    let before = read(storage.get_thread_state(&thread, KIND).await.map_err(failed)?);
    let after = change(before.clone()).map_err(ToolError::failed)?;
    if after != before {
        storage.set_thread_state(&thread, KIND, Some(json!(after))).await.map_err(failed)?;
    }
    let open = after.iter().filter(|task| task.status != TaskStatus::Completed).count();
    Ok(json!({ "tasks": after, "open": open, "allCompleted": open == 0 && !after.is_empty() }))
}

fn read(value: Option<Value>) -> Vec<Task> {
    let items = match value {
        Some(Value::Array(items)) => items,
        _ => Vec::new(),
    };
    items.into_iter().filter_map(|item| serde_json::from_value(item).ok()).collect()
}

fn write(before: Vec<Task>, given: Vec<GivenTask>) -> Result<Vec<Task>, String> {
    if given.len() > TASKS_MAX {
        return Err(format!("a list holds at most {TASKS_MAX} tasks"));
    }
    let mut tasks: Vec<Task> = Vec::with_capacity(given.len());
    for given in given {
        let content = given.content.trim().to_owned();
        if content.is_empty() {
            return Err("a task needs a content".to_owned());
        }
        let id = match given.id.filter(|id| !id.trim().is_empty()) {
            Some(id) if tasks.iter().any(|task| task.id == id) => return Err(format!("two tasks have the id {id}")),
            Some(id) => id,
            None => {
                // The one earlier task of this content goes on, if it is one.
                let mut same = before.iter().filter(|task| task.content == content);
                let known = same.next().filter(|_| same.next().is_none()).map(|task| task.id.clone());
                let free = |id: &String| !tasks.iter().any(|task| task.id == *id);
                known.filter(&free).unwrap_or_else(|| fresh_id(&content, &free))
            }
        };
        tasks.push(Task { id, content, status: given.status, active_form: given.active_form.unwrap_or_default() });
    }
    one_in_progress(tasks)
}

fn update(mut tasks: Vec<Task>, change: UpdateInput) -> Result<Vec<Task>, String> {
    if change.content.is_none() && change.status.is_none() && change.active_form.is_none() {
        return Err("nothing is to be changed; give content, status or activeForm".to_owned());
    }
    let known: Vec<String> = tasks.iter().map(|task| task.id.clone()).collect();
    let Some(task) = tasks.iter_mut().find(|task| task.id == change.id) else {
        return Err(format!("there is no task {}; there are: {}", change.id, known.join(", ")));
    };
    if let Some(content) = change.content.map(|content| content.trim().to_owned()).filter(|content| !content.is_empty())
    {
        task.content = content;
    }
    task.status = change.status.unwrap_or(task.status);
    if let Some(form) = change.active_form {
        task.active_form = form;
    }
    one_in_progress(tasks)
}

fn one_in_progress(tasks: Vec<Task>) -> Result<Vec<Task>, String> {
    let working: Vec<&str> =
        tasks.iter().filter(|task| task.status == TaskStatus::InProgress).map(|task| task.id.as_str()).collect();
    if working.len() > 1 {
        return Err(format!("only one task may be in progress, and these are: {}", working.join(", ")));
    }
    Ok(tasks)
}

/// `task_<slug>`, at most 48 characters, with a number where it is taken.
fn fresh_id(content: &str, free: &dyn Fn(&String) -> bool) -> String {
    let mut slug = String::new();
    for c in content.chars().flat_map(char::to_lowercase) {
        if c.is_ascii_alphanumeric() {
            slug.push(c);
        } else if !slug.ends_with('_') && !slug.is_empty() {
            slug.push('_');
        }
    }
    let slug: String = slug.trim_matches('_').chars().take(40).collect();
    let base = format!("task_{}", if slug.is_empty() { "item" } else { slug.trim_matches('_') });
    let mut id = base.clone();
    let mut copy = 2;
    while !free(&id) {
        id = format!("{base}_{copy}");
        copy += 1;
    }
    id
}

/// Keeps the task list in the model's view.
#[derive(Debug, Clone, Copy, Default)]
pub struct TaskLane;

fn line(task: &Task) -> String {
    let mark = match task.status {
        TaskStatus::Pending => '○',
        TaskStatus::InProgress => '▸',
        TaskStatus::Completed => '✓',
    };
    let shown = match task.status {
        TaskStatus::InProgress if !task.active_form.is_empty() => &task.active_form,
        _ => &task.content,
    };
    format!("{mark} {shown} {{id: {}}}", task.id)
}

#[async_trait]
impl Lane for TaskLane {
    type State = Vec<Task>;

    fn id(&self) -> &'static str {
        "tasks"
    }

    async fn current(&self, cx: &mut Context<'_>) -> Outcome<Current<Vec<Task>>> {
        let (Some(runtime), Some(thread)) = (cx.runtime(), cx.thread()) else { return Ok(Current::Unknown) };
        let state = runtime.inner.storage.get_thread_state(&thread.thread_id, KIND).await;
        let state = state.map_err(|error| ProcessorError::Failed(error.to_string()))?;
        Ok(if state.is_none() { Current::Unknown } else { Current::State(read(state)) })
    }

    fn read(&self, tasks: &Vec<Task>) -> Reading {
        let lines: Vec<String> = tasks.iter().map(line).collect();
        Reading::text(lines.join("\n")).tagged("current-task-list").with("count", tasks.len())
    }

    fn change(&self, before: &Vec<Task>, now: &Vec<Task>) -> Option<Reading> {
        let (mut text, mut ops) = (String::new(), Vec::new());
        for task in now {
            match before.iter().find(|known| known.id == task.id) {
                None => {
                    let _ = writeln!(text, "added {}", line(task));
                    ops.push(json!({ "op": "add", "task": task }));
                }
                Some(known) if known != task => {
                    let _ = writeln!(text, "changed {}", line(task));
                    ops.push(json!({ "op": "update", "task": task }));
                }
                Some(_) => {}
            }
        }
        for task in before.iter().filter(|task| !now.iter().any(|known| known.id == task.id)) {
            let _ = writeln!(text, "removed {}", line(task));
            ops.push(json!({ "op": "remove", "id": task.id }));
        }
        // Another order alone is no change of a task: it is said as a whole.
        if ops.is_empty() {
            return None;
        }
        let reading = Reading::text(text.trim_end()).tagged("task-list-update").with("changes", ops.len());
        Some(Reading { delta: Some(json!({ "ops": ops })), ..reading })
    }

    fn key(&self, tasks: &Vec<Task>) -> String {
        // Every field with its length, so that no content can look like another list (STATE-096).
        let mut key = String::new();
        for task in tasks {
            for field in [&task.id, &task.content, &format!("{:?}", task.status), &task.active_form] {
                let _ = write!(key, "{}:{field}", field.len());
            }
        }
        format!("tasks:{}:{key}", tasks.len())
    }

    fn fold(&self, mut before: Vec<Task>, delta: &Value) -> Option<Vec<Task>> {
        for op in delta.get("ops")?.as_array()? {
            let task = || serde_json::from_value::<Task>(op.get("task")?.clone()).ok();
            match op.get("op")?.as_str()? {
                "add" => before.push(task()?),
                "update" => {
                    let task = task()?;
                    let at = before.iter().position(|known| known.id == task.id)?;
                    before[at] = task;
                }
                "remove" => {
                    let id = op.get("id")?.as_str()?;
                    before.retain(|known| known.id != id);
                }
                _ => return None,
            }
        }
        Some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(content: &str, status: TaskStatus) -> GivenTask {
        GivenTask { id: None, content: content.into(), status, active_form: None }
    }

    #[test]
    fn prov_007_ids_are_made_kept_and_told_apart() {
        let first = write(
            vec![],
            vec![given("Pack the bags!", TaskStatus::Pending), given("Pack the bags!", TaskStatus::Pending)],
        );
        let first = first.unwrap();
        assert_eq!((first[0].id.as_str(), first[1].id.as_str()), ("task_pack_the_bags", "task_pack_the_bags_2"));
        let kept = write(vec![first[1].clone()], vec![given("Pack the bags!", TaskStatus::Completed)]).unwrap();
        assert_eq!(kept[0].id, "task_pack_the_bags_2", "the one earlier task of this content");
        let long = write(vec![], vec![given(&"word ".repeat(40), TaskStatus::Pending)]).unwrap();
        assert!(long[0].id.len() <= 48, "{}", long[0].id);
        let two = vec![given("a", TaskStatus::InProgress), given("b", TaskStatus::InProgress)];
        assert!(write(vec![], two).unwrap_err().contains("only one task may be in progress"));
        let change = |id: &str, status| UpdateInput { id: id.into(), content: None, status, active_form: None };
        assert!(update(first.clone(), change("nope", Some(TaskStatus::Completed))).unwrap_err().contains("task_pack"));
        assert!(update(first.clone(), change("task_pack_the_bags", None)).unwrap_err().contains("nothing"));
        let done = update(first, change("task_pack_the_bags", Some(TaskStatus::Completed))).unwrap();
        assert_eq!(done[0].status, TaskStatus::Completed);
    }

    #[test]
    fn state_096_readings_folds_and_keys() {
        let task = |id: &str, content: &str, status| Task {
            id: id.into(),
            content: content.into(),
            status,
            ..Task::default()
        };
        let before = vec![task("a", "Pack", TaskStatus::Pending), task("b", "Book", TaskStatus::Pending)];
        let now = vec![task("a", "Pack", TaskStatus::Completed), task("c", "Go", TaskStatus::InProgress)];
        let lane = TaskLane;
        let whole = lane.read(&before);
        assert_eq!(
            (whole.tag_name.as_deref(), whole.attributes["count"].clone()),
            (Some("current-task-list"), json!(2))
        );
        assert_eq!(json!(whole.contents), "○ Pack {id: a}\n○ Book {id: b}");
        let change = lane.change(&before, &now).unwrap();
        assert_eq!(
            (change.tag_name.as_deref(), change.attributes["changes"].clone()),
            (Some("task-list-update"), json!(3))
        );
        let folded = lane.fold(before.clone(), change.delta.as_ref().unwrap()).unwrap();
        assert_eq!(folded, now);
        let tricky = [vec![task("a", "x1:y", TaskStatus::Pending)], vec![task("a", "x", TaskStatus::Pending)]];
        assert_ne!(lane.key(&tricky[0]), lane.key(&tricky[1]));
        assert_eq!(
            lane.change(&before, &vec![before[1].clone(), before[0].clone()]),
            None,
            "another order is said whole"
        );
    }
}
