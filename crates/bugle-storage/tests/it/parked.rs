//! Parked runs of the reference, and rows that are wrong (STO §6, ruling 40).

use bugle::{
    id::ThreadKey,
    storage::{Commit, ParkedQuery, RunChange, Storage, StorageError},
};
use bugle_storage::libsql::LibSql;
use serde_json::{Value, json};

use crate::support::{golden, open, raw};

async fn listed(store: &LibSql, query: ParkedQuery) -> Vec<String> {
    let page = store.list_parked(query).await.unwrap();
    page.items.iter().map(|run| run.run_id.to_string()).collect()
}

#[tokio::test]
async fn loop_118_parked_runs_of_the_reference_are_listed_and_read() {
    let (_directory, path) = golden();
    let store = open(&path);
    assert_eq!(listed(&store, ParkedQuery::default()).await, ["run-0049", "run-0044", "run-0039"]);
    let of_agent = ParkedQuery { agent_id: Some("suspend-agent".into()), ..ParkedQuery::default() };
    assert_eq!(listed(&store, of_agent).await, ["run-0044"]);
    let of_thread = ParkedQuery::of_thread(&ThreadKey::new("user-1", "thread-multi"));
    assert_eq!(listed(&store, of_thread).await, ["run-0049"]);
    let run = store.parked_run(&"run-0039".into()).await.unwrap().unwrap();
    assert_eq!((run.agent_id.as_str(), run.resource_id.as_deref()), ("approve-agent", Some("user-1")));
    assert_eq!(run.thread, Some(ThreadKey::new("user-1", "thread-approval")));
    assert_eq!(run.suspended_at.to_string(), "2026-11-30T10:20:48.200Z");
    assert_eq!(run.outer["resumeLabels"]["call_a1"]["stepId"], "executionWorkflow");
    assert_eq!(run.inner["resumeLabels"]["call_a1"]["foreachIndex"], 0);
    // A parked run that is no agent's loop, and one that has ended, are not.
    assert_eq!(store.parked_run(&"wf-run-1".into()).await.unwrap(), None);
    assert!(!store.unpark(&"wf-run-1".into()).await.unwrap());
}

#[tokio::test]
async fn sto_111_sto_112_either_row_may_be_missing_and_rows_come_in_any_order() {
    let (_directory, path) = golden();
    let store = open(&path);
    raw(&path)
        .execute_batch(
            "DELETE FROM mastra_workflow_snapshot WHERE run_id = 'run-0039' AND workflow_name = 'executionWorkflow';
             DELETE FROM mastra_workflow_snapshot WHERE run_id = 'run-0044' AND workflow_name = 'agentic-loop';
             CREATE TEMP TABLE kept AS SELECT * FROM mastra_workflow_snapshot WHERE run_id = 'run-0049';
             DELETE FROM mastra_workflow_snapshot WHERE run_id = 'run-0049';
             INSERT INTO mastra_workflow_snapshot SELECT * FROM kept ORDER BY workflow_name DESC;",
        )
        .unwrap();
    let get = async |id: &str| store.parked_run(&id.into()).await.unwrap();
    assert_eq!(get("run-0039").await.unwrap().inner, Value::Null, "no inner row");
    assert_eq!(get("run-0044").await, None, "no outer row: not parked");
    let whole = get("run-0049").await.unwrap();
    assert!(whole.outer.is_object() && whole.inner.is_object());
    assert_eq!(listed(&store, ParkedQuery::default()).await, ["run-0049", "run-0039"]);
    assert!(!store.unpark(&"run-0044".into()).await.unwrap(), "absence of the outer row means not parked");
}

#[tokio::test]
async fn ruling_40_rows_that_do_not_parse_are_skipped_and_break_nothing() {
    let (_directory, path) = golden();
    let store = open(&path);
    let text =
        |run: &str| format!("UPDATE mastra_workflow_snapshot SET snapshot = json(snapshot) WHERE run_id = '{run}';");
    raw(&path)
        .execute_batch(&format!(
            r#"UPDATE mastra_workflow_snapshot SET snapshot = '{{broken' WHERE run_id = 'run-0039' AND workflow_name = 'agentic-loop';
               UPDATE mastra_workflow_snapshot SET snapshot = x'0bff' WHERE run_id = 'run-0044' AND workflow_name = 'executionWorkflow';
               {}
               INSERT INTO mastra_workflow_snapshot (workflow_name, run_id, snapshot) VALUES
                 ('agentic-loop', 'no-agent', jsonb('{{"status":"suspended","context":{{}}}}')),
                 ('agentic-loop', 'no-object', jsonb('[1]')),
                 ('agentic-loop', 'none', NULL),
                 ('agentic-loop', NULL, jsonb('{{"status":"suspended"}}')),
                 ('agentic-loop', 'at-work', jsonb('{{"status":"running","context":{{"executionWorkflow":{{"suspendPayload":{{"__agentId":"a"}}}}}}}}')),
                 ('durable-agentic-loop', 'durable', jsonb('{{"status":"suspended","timestamp":1,"context":{{"input":{{"agentId":"d","messageListState":{{"memoryInfo":{{"threadId":"t9"}}}}}}}}}}'));"#,
            text("run-0049"),
        ))
        .unwrap();
    assert_eq!(listed(&store, ParkedQuery::default()).await, ["run-0049", "run-0044", "durable"]);
    assert_eq!(store.parked_run(&"run-0039".into()).await.unwrap(), None);
    assert_eq!(store.parked_run(&"run-0044".into()).await.unwrap().unwrap().inner, Value::Null);
    let durable = store.parked_run(&"durable".into()).await.unwrap().unwrap();
    assert_eq!((durable.agent_id.as_str(), durable.thread), ("d", Some(ThreadKey::unowned("t9"))));
    assert!(!store.unpark(&"at-work".into()).await.unwrap(), "a run at work is nobody's to take");
    assert!(store.unpark(&"durable".into()).await.unwrap());
}

#[tokio::test]
async fn sto_052_a_pair_that_is_written_again_keeps_its_creation_and_is_jsonb() {
    let (_directory, path) = golden();
    let store = open(&path);
    let mut run = store.parked_run(&"run-0039".into()).await.unwrap().unwrap();
    let thread = run.thread.clone().unwrap();
    run.outer["bugle"] = json!({"mine": true});
    run.suspended_at = bugle::time::Timestamp::now();
    run.resource_id = None;
    let change = RunChange::Park { run: Box::new(run.clone()), last_event: 3 };
    store.commit(Commit { run: change, ..Commit::new(thread.clone(), 1) }).await.unwrap();
    let rows: Vec<String> = raw(&path)
        .prepare(
            r#"SELECT workflow_name || ' ' || typeof(snapshot) || ' ' || "resourceId" || ' ' || ("createdAt" < "updatedAt")
               FROM mastra_workflow_snapshot WHERE run_id = 'run-0039' ORDER BY 1"#,
        )
        .unwrap()
        .query_map((), |row| row.get(0))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    assert_eq!(rows, ["agentic-loop blob user-1 1", "executionWorkflow blob user-1 1"]);
    let again = store.parked_run(&"run-0039".into()).await.unwrap().unwrap();
    assert_eq!((again.outer, again.resource_id.as_deref()), (run.outer, Some("user-1")));
    // Another thread's owner does not get it.
    let elsewhere = ThreadKey::new("user-1", "thread-plain");
    let discard = RunChange::Discard { run_id: "run-0039".into(), last_event: 4 };
    let answer = store.commit(Commit { run: discard.clone(), ..Commit::new(elsewhere, 1) }).await;
    assert!(matches!(answer, Err(StorageError::NotParked { .. })), "{answer:?}");
    store.commit(Commit { run: discard, ..Commit::new(thread, 1) }).await.unwrap();
    assert_eq!(store.parked_run(&"run-0039".into()).await.unwrap(), None);
}
