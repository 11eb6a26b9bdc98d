//! Another process goes on (LOOP-117), and one that dies in between leaves nothing undone twice.

use std::{sync::Arc, time::Duration};

use bugle::{
    RunOptions,
    json::json,
    model::Script,
    run::Decision,
    runtime::{Action, ToolApproval},
};

use super::{Count, call_remove, done, resumed, world, world_again};

#[tokio::test(start_paused = true)]
async fn loop_117_a_new_process_lists_and_approves() {
    let count = Count::default();
    let first = world([call_remove("c1", "/a")], &count).await;
    let run_id = first.run("go").await.output.run_id;
    first.bugle.shutdown(Duration::ZERO).await;
    let world = world_again([done()], &count, first.storage.clone()).await;
    let listed = world.agent.list_suspended_runs(Default::default()).await.unwrap();
    assert_eq!(listed.runs[0].run_id, run_id);
    let ran = resumed(&world.agent, &run_id, Decision::approve(Some("c1"))).await;
    assert_eq!((ran.output.text.as_str(), count.get()), ("done", 1));
    assert_eq!(world.asked(0), ["go"], "the history is the thread's");
    assert_eq!(world.texts().await, ["go", "", "done"]);
}

#[tokio::test(start_paused = true)]
async fn sig_378_a_fresh_process_knows_from_storage_that_the_thread_waits() {
    let count = Count::default();
    let first = world([call_remove("c1", "/a")], &count).await;
    let run_id = first.run("go").await.output.run_id;
    first.bugle.shutdown(Duration::ZERO).await;
    let world = world_again([done()], &count, first.storage.clone()).await;
    let sent = world.send("are you there?").await;
    assert_eq!((sent.action, sent.run_id.as_ref()), (Action::Deliver, Some(&run_id)), "SIG-104");
    assert_eq!(sent.waiting_for, Some("approval"));
    assert_eq!(world.model.requests().len(), 0);
    let mut watch = world.watch().await;
    let approval = ToolApproval { approved: true, ..ToolApproval::default() };
    world.agent.send_tool_approval(&world.thread, approval).await.unwrap();
    watch.until_end_of(&run_id).await;
    assert_eq!(world.asked(0), ["go", "are you there?"]);
    assert_eq!(count.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn loop_255_a_process_that_dies_after_the_claim_does_not_repeat_the_call() {
    let count = Count::default();
    let script = Script::new().call_as("c1", "remove", r#"{"path":"/1"}"#).call_as("c2", "remove", r#"{"path":"/2"}"#);
    let first = world([script], &count).await;
    let run_id = first.run("go").await.output.run_id;
    // A tool that never returns stands for the death of its process.
    let hang = bugle::Tool::json("remove", |_, _| async { std::future::pending().await });
    let model = bugle::model::ScriptedModel::new();
    let agent = crate::support::builder("plain", &model).tool(hang).build().unwrap();
    let dying = crate::support::world_on(model, [agent], first.storage.clone()).await;
    let approval = ToolApproval { tool_call_id: Some("c1".into()), approved: true, ..ToolApproval::default() };
    dying.agent.send_tool_approval(&dying.thread, approval).await.unwrap();
    assert_eq!(dying.parked().await, [], "the claim is durable");
    dying.bugle.shutdown(Duration::ZERO).await;

    let world = world_again([done()], &count, first.storage.clone()).await;
    let mut watch = world.watch().await;
    watch.until("tool-call-approval").await;
    let call = world.call("c1").await;
    assert_eq!(call["state"], "output-error");
    assert!(call["errorText"].as_str().unwrap().contains("outcome unknown"), "{call}");
    assert_eq!((count.get(), world.parked().await), (0, vec![run_id.clone()]), "the other one waits again");
    let ran = resumed(&world.agent, &run_id, Decision::approve(Some("c2"))).await;
    assert_eq!((ran.output.text.as_str(), count.get()), ("done", 1));
    assert_eq!(world.call("c2").await["state"], "result");
    let late = world.agent.resume_stream(&run_id, Decision::approve(None), RunOptions::default()).await;
    assert!(late.is_err());
}

#[tokio::test(start_paused = true)]
async fn sub_129_calls_that_waited_beside_the_one_that_died_wait_again() {
    let gate = || {
        bugle::Tool::json("gate", |input: bugle::json::Value, context: bugle::tool::ToolContext| async move {
            match context.resume_data {
                Some(data) if data == "hang" => std::future::pending().await,
                Some(data) => Ok(data),
                None => Err(bugle::tool::ToolError::Suspend(input)),
            }
        })
    };
    let world_of = async |scripts: Vec<Script>, storage| {
        let model = bugle::model::ScriptedModel::with_responses(scripts);
        let agent = crate::support::builder("plain", &model).tool(gate()).build().unwrap();
        crate::support::world_on(model, [agent], storage).await
    };
    let script = Script::new().call_as("c1", "gate", "{}").call_as("c2", "gate", "{}");
    let first = world_of(vec![script], Arc::new(bugle::storage::MemoryStorage::new())).await;
    let run_id = first.run("go").await.output.run_id;
    let hang =
        ToolApproval { tool_call_id: Some("c1".into()), resume_data: Some(json!("hang")), ..ToolApproval::default() };
    first.agent.send_tool_approval(&first.thread, hang).await.unwrap();
    first.bugle.shutdown(Duration::ZERO).await;
    let world = world_of(vec![done()], first.storage.clone()).await;
    let mut watch = world.watch().await;
    let asked = watch.until("tool-call-suspended").await;
    assert_eq!(serde_json::to_value(&asked).unwrap()["payload"]["toolCallId"], "c2");
    let ran = resumed(&world.agent, &run_id, Decision::resume(Some("c2"), json!("fine"))).await;
    assert_eq!(ran.output.text, "done");
    assert_eq!(world.call("c1").await["state"], "output-error");
    assert_eq!(world.call("c2").await["result"], "fine");
}
