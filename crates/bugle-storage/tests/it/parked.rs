//! Parked runs of the reference, and rows that are wrong (STO §6, ruling 40).

use std::sync::{Arc, Mutex};

use bugle::{
    Agent, Bugle, Error, RunOptions, Tool,
    chunk::FinishReason,
    id::ThreadKey,
    memory::MemoryOptions,
    model::{Script, ScriptedModel},
    run::Decision,
    runtime::SuspendedQuery,
    storage::{Commit, ParkedQuery, RunChange, Storage, StorageError},
    tool::{Approval, ToolContext, ToolError},
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

/// What the tools of the golden runs did.
type Ran = Arc<Mutex<Vec<String>>>;

/// A runtime on a copy of the golden file, with an agent of this id and the tools that its parked run needs.
async fn with_agent(path: &std::path::Path, id: &str, answers: &[&str]) -> (Bugle, ScriptedModel, Ran) {
    let ran = Ran::default();
    let did = |what: &Ran, text: String| what.lock().unwrap().push(text);
    let model = ScriptedModel::with_responses(answers.iter().map(|text| Script::new().text(text)));
    let (of_remove, of_ask) = (ran.clone(), ran.clone());
    let remove = Tool::json("remove", move |input: Value, _| {
        did(&of_remove, format!("remove {}", input["path"].as_str().unwrap()));
        async move { Ok(json!({"removed": input["path"]})) }
    });
    let ask = Tool::json("ask", move |_: Value, context: ToolContext| {
        let data = context.resume_data.clone().unwrap();
        did(&of_ask, format!("ask {data}"));
        async move { Ok(json!({"answer": data["answer"]})) }
    });
    let weather = Tool::json("weather", |_: Value, _| async { Err::<Value, _>(ToolError::failed("it ran before")) });
    let agent = Agent::builder(id)
        .model(Arc::new(model.clone()))
        .memory(MemoryOptions::last(20))
        .tool(remove.with_approval(Approval::Always))
        .tool(ask.with_resume_schema(json!({"type": "object", "required": ["answer"]})))
        .tool(weather);
    let bugle = Bugle::builder().agent(agent.build().unwrap()).storage(open(path)).build().await.unwrap();
    (bugle, model, ran)
}

/// The parts of a thread's tool calls, and its last text.
async fn conversation(bugle: &Bugle, thread: &str) -> (Vec<Value>, Vec<Value>, String) {
    let rows = bugle.storage().recent_messages(&ThreadKey::new("user-1", thread), u32::MAX).await.unwrap();
    let stored: Vec<Value> = rows.iter().map(|row| serde_json::to_value(row).unwrap()).collect();
    let calls = rows.iter().flat_map(|row| &row.content.parts).map(|part| serde_json::to_value(part).unwrap());
    let calls = calls.filter(|part| part["type"] == "tool-invocation").map(|mut part| part["toolInvocation"].take());
    let text = rows.last().unwrap().joined_text();
    (calls.collect(), stored, text)
}

async fn is_gone(bugle: &Bugle, run: &str) {
    assert_eq!(bugle.storage().parked_run(&run.into()).await.unwrap(), None, "STO-112");
    assert_eq!(bugle.storage().get_run(&run.into()).await.unwrap(), None);
}

#[tokio::test]
async fn sto_110_bugle_goes_on_with_an_approval_that_the_reference_parked() {
    let (_directory, path) = golden();
    let (bugle, model, ran) = with_agent(&path, "approve-agent", &["It is gone."]).await;
    let agent = bugle.agent("approve-agent").unwrap();
    let listed = agent.list_suspended_runs(SuspendedQuery::default()).await.unwrap();
    let call = &listed.runs[0].tool_calls[0];
    assert_eq!((listed.total, call.tool_call_id.as_str(), call.requires_approval), (1, "call_a1", true));
    let decision = Decision::approve(Some("call_a1"));
    let output = agent.resume_generate(&"run-0039".into(), decision, RunOptions::default()).await.unwrap();
    assert_eq!(*ran.lock().unwrap(), ["remove tmp.txt"]);
    assert!(output.text.ends_with("It is gone."), "{}", output.text);
    assert!(output.usage.total_tokens.unwrap() > 15, "LOOP-161: with the steps before: {:?}", output.usage);
    let prompt = serde_json::to_string(&model.requests()[0].prompt).unwrap();
    assert!(prompt.contains("Delete tmp.txt") && prompt.contains("removed"), "{prompt}");
    let (calls, stored, text) = conversation(&bugle, "thread-approval").await;
    assert_eq!((calls.len(), text.as_str()), (1, "It is gone."));
    assert_eq!((&calls[0]["state"], &calls[0]["result"]), (&json!("result"), &json!({"removed": "tmp.txt"})));
    assert_eq!(stored[1]["content"]["metadata"].get("pendingToolApprovals"), None, "LOOP-113");
    is_gone(&bugle, "run-0039").await;
    let again = agent.resume_generate(&"run-0039".into(), Decision::approve(None), RunOptions::default()).await;
    assert!(matches!(again, Err(Error::NoSuspendedRun { .. })), "LOOP-115: {again:?}");
}

#[tokio::test]
async fn sto_110_bugle_answers_a_tool_that_the_reference_suspended() {
    let (_directory, path) = golden();
    let (bugle, _model, ran) = with_agent(&path, "suspend-agent", &["Blue it is."]).await;
    let agent = bugle.agent("suspend-agent").unwrap();
    let decision = Decision::resume(None, json!({"answer": "blue"}));
    let output = agent.resume_generate(&"run-0044".into(), decision, RunOptions::default()).await.unwrap();
    assert_eq!(*ran.lock().unwrap(), [r#"ask {"answer":"blue"}"#]);
    assert_eq!(output.text, "Blue it is.");
    let (calls, stored, _) = conversation(&bugle, "thread-suspended").await;
    assert_eq!(calls[0]["result"], json!({"answer": "blue"}));
    assert_eq!(stored[1]["content"]["metadata"].get("suspendedTools"), None, "LOOP-113");
    is_gone(&bugle, "run-0044").await;
}

#[tokio::test]
async fn sto_110_bugle_decides_the_rest_of_a_step_that_the_reference_parked() {
    let (_directory, path) = golden();
    let (bugle, model, ran) = with_agent(&path, "multi-agent", &["One is gone."]).await;
    let agent = bugle.agent("multi-agent").unwrap();
    let run = "run-0049".into();
    let approve = Decision::approve(Some("call_m2"));
    let output = agent.resume_generate(&run, approve, RunOptions::default()).await.unwrap();
    assert_eq!(output.finish_reason, FinishReason::Suspended, "{output:?}");
    assert_eq!(*ran.lock().unwrap(), ["remove a.txt"], "what ran before the park does not run again");
    let decline = Decision::decline(Some("call_m3"), Some("keep it"));
    let output = agent.resume_generate(&run, decline, RunOptions::default()).await.unwrap();
    assert_eq!(output.text, "One is gone.");
    assert_eq!(*ran.lock().unwrap(), ["remove a.txt"]);
    let prompt = serde_json::to_string(&model.requests()[0].prompt).unwrap();
    for told in ["snow", "removed", "keep it"] {
        assert!(prompt.contains(told), "{told}: {prompt}");
    }
    let (calls, _, _) = conversation(&bugle, "thread-multi").await;
    let states: Vec<&Value> = calls.iter().map(|call| &call["state"]).collect();
    assert_eq!(states, ["result", "result", "output-denied"]);
    assert_eq!(calls[0]["result"]["sky"], "snow", "its result was in the snapshot alone");
    is_gone(&bugle, "run-0049").await;
}

#[tokio::test]
async fn sto_111_a_missing_row_is_an_error_that_says_which() {
    let (_directory, path) = golden();
    raw(&path)
        .execute_batch(
            "DELETE FROM mastra_workflow_snapshot WHERE run_id = 'run-0039' AND workflow_name = 'executionWorkflow';
             DELETE FROM mastra_workflow_snapshot WHERE run_id = 'run-0044' AND workflow_name = 'agentic-loop';",
        )
        .unwrap();
    let resume = async |agent: &str, run: &str| {
        let (bugle, _, _) = with_agent(&path, agent, &[]).await;
        let handle = bugle.agent(agent).unwrap();
        let answer = handle.resume_generate(&run.into(), Decision::approve(None), RunOptions::default()).await;
        bugle.shutdown(std::time::Duration::from_secs(5)).await;
        answer
    };
    let no_inner = resume("approve-agent", "run-0039").await;
    assert!(matches!(no_inner, Err(Error::NotSuspended { .. })), "{no_inner:?}");
    let no_outer = resume("suspend-agent", "run-0044").await;
    assert!(matches!(no_outer, Err(Error::NoSuspendedRun { .. })), "{no_outer:?}");
}
