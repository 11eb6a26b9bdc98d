//! Decisions that meet (R13 … R17).

use std::time::Duration;

use bugle::{
    Error, RunOptions, Tool,
    json::{Value, json},
    model::Script,
    run::Decision,
    runtime::{AbortOptions, ToolApproval},
    tool::Approval,
};

use super::{Count, call_remove, done, world};
use crate::r#loop::world_with;

fn approve(id: &str) -> ToolApproval {
    ToolApproval { tool_call_id: Some(id.into()), approved: true, ..ToolApproval::default() }
}

#[tokio::test(start_paused = true)]
async fn r15_of_two_approvals_of_one_call_one_succeeds() {
    for _ in 0..20 {
        let count = Count::default();
        let world = world([call_remove("c1", "/a"), done()], &count).await;
        let run_id = world.run("go").await.output.run_id;
        let resume = || world.agent.resume_stream(&run_id, Decision::approve(Some("c1")), RunOptions::default());
        let (one, other) = tokio::join!(resume(), resume());
        let (won, lost) = match (one, other) {
            (Ok(won), Err(lost)) | (Err(lost), Ok(won)) => (won, lost),
            both => panic!("one of the two wins: {both:?}"),
        };
        assert!(matches!(lost, Error::NotSuspended { .. } | Error::NoSuspendedRun { .. }), "{lost:?}");
        assert_eq!(won.output().await.unwrap().text, "done");
        assert_eq!(count.get(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn r16_approvals_of_two_calls_of_a_step_both_count() {
    // Both wait at once: each suspends itself, and neither makes the step sequential.
    let gate = Tool::json("gate", |input: Value, context| async move {
        let context: bugle::tool::ToolContext = context;
        context.resume_data.map_or_else(|| Err(bugle::tool::ToolError::Suspend(input)), Ok)
    });
    let script = Script::new().call_as("c1", "gate", r#"{"n":1}"#).call_as("c2", "gate", r#"{"n":2}"#);
    let world = world_with([script, done()], |agent| agent.tool(gate)).await;
    let mut watch = world.watch().await;
    let run_id = world.send("go").await.run_id.unwrap();
    watch.until("tool-call-suspended").await;
    watch.until("tool-call-suspended").await;
    let answer = |id: &str| ToolApproval { resume_data: Some(json!({"to": id})), ..approve(id) };
    let send = |id: &'static str| world.agent.send_tool_approval(&world.thread, answer(id));
    let (two, one) = tokio::join!(send("c2"), send("c1"));
    assert_eq!((one.unwrap().run_id, two.unwrap().run_id), (run_id.clone(), run_id.clone()), "SIG-379");
    watch.until_end_of(&run_id).await;
    let results: Vec<Value> = watch
        .chunks
        .iter()
        .filter(|chunk| chunk.kind() == "tool-result")
        .map(|chunk| serde_json::to_value(chunk).unwrap()["payload"]["result"].clone())
        .collect();
    assert_eq!(results, [json!({"to": "c2"}), json!({"to": "c1"})]);
    assert_eq!(world.texts().await.last().unwrap(), "done");
    assert_eq!(world.model.requests().len(), 2, "SUB-129: asked once all are settled");
}

#[tokio::test(start_paused = true)]
async fn r14_an_approval_while_the_run_is_still_suspending_waits_and_succeeds() {
    for _ in 0..20 {
        let count = Count::default();
        let world = world([call_remove("c1", "/a"), done()], &count).await;
        let mut watch = world.watch().await;
        let run_id = world.send("go").await.run_id.unwrap();
        watch.until("tool-call-approval").await;
        // At once: the thread may not have heard yet that the run is parked (SIG-383).
        world.agent.send_tool_approval(&world.thread, approve("c1")).await.unwrap();
        watch.until_end_of(&run_id).await;
        assert_eq!(count.get(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn r13_a_message_while_the_run_is_suspending_is_taken_in_after_it() {
    let world = world([call_remove("c1", "/a"), done()], &Count::default()).await;
    let mut watch = world.watch().await;
    let run_id = world.send("go").await.run_id.unwrap();
    watch.until("tool-call-approval").await;
    let sent = world.send("more").await;
    assert_eq!(sent.run_id, Some(run_id.clone()));
    world.agent.send_tool_approval(&world.thread, approve("c1")).await.unwrap();
    watch.until_end_of(&run_id).await;
    assert_eq!(world.asked(1), ["go", "more"]);
}

#[tokio::test(start_paused = true)]
async fn r17_of_an_approval_and_an_abort_one_wins() {
    for order in 0..2 {
        let count = Count::default();
        let ran = count.clone();
        let slow = Tool::json("slow", move |_, context: bugle::tool::ToolContext| {
            let ran = ran.clone();
            async move {
                tokio::select! {
                    () = context.abort.cancelled() => Err("stopped".into()),
                    () = tokio::time::sleep(Duration::from_secs(5)) => {
                        ran.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        Ok(json!(null))
                    }
                }
            }
        })
        .with_approval(Approval::Always);
        let world = world_with([Script::new().call_as("c1", "slow", "{}"), done()], |agent| agent.tool(slow)).await;
        let mut watch = world.watch().await;
        let run_id = world.send("go").await.run_id.unwrap();
        watch.until("tool-call-approval").await;
        let approves = world.agent.send_tool_approval(&world.thread, approve("c1"));
        let aborts = world.agent.abort_thread(&world.thread, AbortOptions::default());
        let (approved, aborted) = if order == 0 {
            let (approved, aborted) = tokio::join!(approves, aborts);
            (approved, aborted.unwrap())
        } else {
            let (aborted, approved) = tokio::join!(aborts, approves);
            (approved, aborted.unwrap())
        };
        assert!(aborted, "there was a run to stop");
        assert_eq!(watch.until_end_of(&run_id).await.kind(), "abort", "{approved:?}");
        assert_eq!((count.get(), world.model.requests().len()), (0, 1), "order {order}");
        assert_eq!(world.parked().await, []);
    }
}

#[tokio::test(start_paused = true)]
async fn loop_116_two_processes_on_one_store_run_an_approved_call_once() {
    for _ in 0..10 {
        let count = Count::default();
        let one = world([call_remove("c1", "/a"), done()], &count).await;
        let run_id = one.run("go").await.output.run_id;
        let other = super::world_again([done()], &count, one.storage.clone()).await;
        let resume = |world: &crate::support::World| {
            let agent = world.agent.clone();
            let run_id = run_id.clone();
            async move { agent.resume_generate(&run_id, Decision::approve(None), RunOptions::default()).await }
        };
        let (first, second) = tokio::join!(resume(&one), resume(&other));
        assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
        assert_eq!(count.get(), 1);
    }
}
