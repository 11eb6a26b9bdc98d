//! Writes runs that wait for a person, for `interop/approve.mjs` to go on with: `park_sample FILE`. Prints, one a line, run and
//! call, and what they wait for.

#![allow(clippy::print_stdout, reason = "it tells the script what it made")]

use std::sync::Arc;

use bugle::{
    Agent, Bugle, RunOptions, ThreadKey, Tool,
    json::{Value, json},
    memory::MemoryOptions,
    message::{Role, StoredMessage},
    model::ScriptedModel,
    runtime::{RunInput, SuspendedQuery},
    tool::{Approval, ToolContext, ToolError},
};
use bugle_storage::libsql::LibSql;

const SCRIPTS: [(&str, &str); 4] = [
    ("approval", r#"[[say I need leave for this. ;; call remove {"path":"a.txt"}]]"#),
    ("suspension", r#"[[call ask {"question":"Which colour?"}]]"#),
    ("several", r#"[[call ask-nothing {} ;; call remove {"path":"a.txt"} ;; call remove {"path":"b.txt"}]]"#),
    ("second", r#"[[call ask-nothing {}]] [[call remove {"path":"a.txt"}]]"#),
];

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let file = std::env::args().nth(1).expect("usage: park_sample FILE");
    let remove = Tool::json("remove", |_: Value, _| async { Err::<Value, _>(ToolError::failed("not to be run here")) })
        .described("Removes a file.")
        .with_approval(Approval::Always);
    let ask = Tool::json("ask", |input: Value, _: ToolContext| async move {
        Err::<Value, _>(ToolError::Suspend(json!({"question": input["question"]})))
    })
    .described("Asks the person.")
    .with_resume_schema(
        json!({"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}),
    );
    let nothing = Tool::json("ask-nothing", |_: Value, _| async { Ok(json!({"ok": true})) }).described("Does nothing.");
    let agent = Agent::builder("interop-agent")
        .instructions("You are interop-agent.")
        .model(Arc::new(ScriptedModel::new()))
        .memory(MemoryOptions::last(20));
    let agent = agent.tool(remove).tool(ask).tool(nothing).build().expect("an agent");
    let store = LibSql::open(&file).expect("a file");
    let bugle = Bugle::builder().agent(agent).storage(store).build().await.expect("a runtime");
    let handle = bugle.agent("interop-agent").expect("the agent");
    for (thread, script) in SCRIPTS {
        let key = ThreadKey::new("user-1", thread);
        let message = StoredMessage::text("".into(), Role::User, script, bugle::time::Timestamp::now());
        let input = RunInput { messages: vec![message], tool_results: Vec::new() };
        let output = handle.generate(input, Some(&key), RunOptions::default()).await.expect("a run");
        let query = SuspendedQuery { thread_id: Some(thread.into()), ..SuspendedQuery::default() };
        for run in handle.list_suspended_runs(query).await.expect("a list").runs {
            for call in run.tool_calls {
                println!("{thread} {} {} {}", run.run_id, call.tool_call_id, call.tool_name);
            }
        }
        assert_eq!(output.finish_reason, bugle::chunk::FinishReason::Suspended, "{thread}");
    }
    bugle.shutdown(std::time::Duration::from_secs(5)).await;
    drop((handle, bugle));
    // The last one to close a file writes its log into it.
    LibSql::open(&file).expect("the file").close().await;
}
