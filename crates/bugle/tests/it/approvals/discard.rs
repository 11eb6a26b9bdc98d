//! Giving a parked run up, and stopping it.

use bugle::{Error, RunOptions, json::json, model::Script, run::Decision, runtime::AbortOptions};

use super::{Count, call_remove, done, world, world_again};

#[tokio::test(start_paused = true)]
async fn loop_121_a_run_that_is_given_up_leaves_a_thread_that_goes_on() {
    let count = Count::default();
    let world = world([call_remove("c1", "/a"), done()], &count).await;
    let run_id = world.run("go").await.output.run_id;
    world.agent.discard_suspended_run(&run_id).await.unwrap();
    let again = world.agent.discard_suspended_run(&run_id).await;
    assert!(matches!(again, Err(Error::NoSuspendedRun { .. })), "{again:?}");
    assert_eq!(world.parked().await, []);
    let call = world.call("c1").await;
    assert_eq!(call["state"], "output-error");
    assert!(call["errorText"].as_str().unwrap().starts_with("discarded"), "{call}");
    assert_eq!(world.with_call("c1").await["content"]["metadata"].get("pendingToolApprovals"), None);
    let mut watch = world.watch().await;
    let sent = world.send("and now?").await;
    watch.until_end_of(&sent.run_id.unwrap()).await;
    assert_eq!((world.texts().await.last().unwrap().as_str(), count.get()), ("done", 0));
}

#[tokio::test(start_paused = true)]
async fn sig_310_abort_ends_a_suspended_run_with_a_conversation_that_is_whole() {
    let count = Count::default();
    let script = Script::new().call_as("c1", "remove", r#"{"path":"/1"}"#).call_as("c2", "plain", "{}");
    let world = world([script, done()], &count).await;
    let mut watch = world.watch().await;
    let run_id = world.send("go").await.run_id.unwrap();
    watch.until("tool-call-approval").await;
    let queued = world.queue("next").await;
    assert!(world.agent.abort_thread(&world.thread, AbortOptions::default()).await.unwrap());
    assert_eq!(watch.until_end_of(&run_id).await.kind(), "abort");
    watch.until_end_of(&queued.run_id.unwrap()).await;
    assert_eq!(world.parked().await, [], "SUB-135");
    for id in ["c1", "c2"] {
        assert_eq!(world.call(id).await["state"], "output-denied", "{id}");
    }
    assert_eq!(world.with_call("c1").await["content"]["metadata"].get("pendingToolApprovals"), None);
    let late = world.agent.resume_stream(&run_id, Decision::approve(Some("c1")), RunOptions::default()).await;
    assert!(matches!(late, Err(Error::NoSuspendedRun { .. })), "R17: {late:?}");
    assert_eq!(count.get(), 0, "R17: the tool is not run after a won abort");
    assert_eq!(world.texts().await.last().unwrap(), "done", "the queue goes on");
    let prompt = crate::r#loop::prompt(&world.model.requests()[1]);
    let results = prompt.as_array().unwrap().iter().filter(|turn| turn["role"] == "tool").count();
    assert_eq!(results, 1, "every call has its answer: {prompt}");
}

#[tokio::test(start_paused = true)]
async fn sig_310_abort_reaches_a_run_that_only_storage_knows() {
    let count = Count::default();
    let first = world([call_remove("c1", "/a")], &count).await;
    first.run("go").await;
    first.bugle.shutdown(std::time::Duration::ZERO).await;
    let world = world_again([done()], &count, first.storage.clone()).await;
    assert!(world.agent.abort_thread(&world.thread, AbortOptions::default()).await.unwrap());
    assert!(!world.agent.abort_thread(&world.thread, AbortOptions::default()).await.unwrap());
    assert_eq!(world.parked().await, []);
    assert_eq!(world.call("c1").await["state"], "output-denied");
}

#[tokio::test(start_paused = true)]
async fn ruling_33_rollback_undoes_a_suspended_run() {
    let count = Count::default();
    let world = world([call_remove("c1", "/a"), done()], &count).await;
    let mut watch = world.watch().await;
    world.send("go").await;
    watch.until("tool-call-approval").await;
    let target = world.target_for(bugle::runtime::ActiveBehavior::Rollback, Default::default());
    let outcome = world.send_to(target, "instead").await;
    watch.until_end_of(&outcome.run_id.unwrap()).await;
    assert_eq!(world.texts().await, ["instead", "done"], "the wake input and what the run stored are gone");
    assert_eq!((world.parked().await, count.get()), (vec![], 0));
    assert_eq!(json!(world.asked(1)), json!(["instead"]));
}
