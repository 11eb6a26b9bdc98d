//! Taking input back (SIG §13).

use bugle::{
    MessageId,
    model::{Gate, Script, ScriptedModel},
    runtime::CancelSelector,
};

use crate::support::{World, accepted, agent, message, world, world_of_two, world_on};

async fn cancel(world: &World, ids: &[&str]) -> Vec<MessageId> {
    let ids = ids.iter().map(|id| MessageId::from(*id)).collect();
    world.agent.cancel_queued(&world.thread, CancelSelector::Signals(ids)).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn sig_280_sig_282_pending_and_queued_input_of_any_agent_is_taken_back() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into()]);
    let world = world_of_two(model).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    accepted(world.agent.send_message(&world.thread, message("s1")).await.unwrap()).await;
    accepted(world.agent.queue_message(&world.thread, message("q1")).await.unwrap()).await;
    accepted(world.other().queue_message(&world.thread, message("q2")).await.unwrap()).await;
    let q3 = accepted(world.agent.queue_message(&world.thread, message("q3")).await.unwrap()).await;
    let cancelled = cancel(&world, &["q2", "nobody", "s1", "q2", "q1"]).await;
    assert_eq!(cancelled, ["q2", "s1", "q1"].map(MessageId::from), "each once, in request order");
    assert!(cancel(&world, &["q1"]).await.is_empty());
    assert_eq!(world.agent.active_run_id(&world.thread), Some(run), "the run goes on");
    gate.open();
    watcher.until_end_of(&q3.run_id.unwrap()).await;
    assert_eq!(world.texts().await, ["hi", "a", "q3", "b"]);
    assert!(cancel(&world, &["q3"]).await.is_empty(), "SIG-287: what is stored stays");
    assert_eq!(world.texts().await.len(), 4);
    assert!(world.storage.inbox(&world.thread).await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn sig_281_what_joined_before_the_run_is_taken_back_but_not_the_wake_input() {
    let store = crate::faulty::Faulty::new();
    let model = ScriptedModel::with_responses(["answer"]);
    let world = world_on(model.clone(), [agent("plain", &model)], store.clone()).await;
    let mut watcher = world.watch().await;
    let hold = store.hold("recent_messages");
    accepted(world.agent.send_message(&world.thread, message("wake")).await.unwrap()).await;
    hold.reached().await;
    accepted(world.agent.send_message(&world.thread, message("joined")).await.unwrap()).await;
    assert_eq!(cancel(&world, &["wake", "joined"]).await, ["joined".into()]);
    hold.open();
    watcher.until("finish").await;
    assert_eq!(world.asked(0), ["wake"]);
}

#[tokio::test(start_paused = true)]
async fn sig_153_input_that_is_cancelled_while_it_is_journaled_keeps_its_outcome_and_never_runs() {
    let store = crate::faulty::Faulty::new();
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate)]);
    let world = world_on(model.clone(), [agent("plain", &model)], store.clone()).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    let hold = store.hold("accept");
    let mut queued = world.agent.queue_message(&world.thread, message("q")).await.unwrap();
    hold.reached().await;
    // The answer may wait for the journal, which is held.
    let (cancelled, ()) = tokio::join!(cancel(&world, &["q"]), async {
        tokio::task::yield_now().await;
        hold.open();
    });
    assert_eq!(cancelled, ["q".into()]);
    assert_eq!(queued.accepted().await.unwrap().action, bugle::runtime::Action::Deliver);
    gate.open();
    watcher.until_end_of(&run).await;
    assert!(world.storage.inbox(&world.thread).await.unwrap().is_empty());
    assert_eq!(world.texts().await, ["hi", "a"]);
}

#[tokio::test(start_paused = true)]
async fn r18_input_is_either_taken_or_taken_back() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("a").gate(&gate), "b".into()]);
    let world = world(model).await;
    let mut watcher = world.watch().await;
    let run = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    for n in 0..50 {
        accepted(world.agent.send_message(&world.thread, message(&n.to_string())).await.unwrap()).await;
    }
    gate.open();
    let ids: Vec<String> = (0..50).map(|n| n.to_string()).collect();
    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
    let cancelled = cancel(&world, &ids).await;
    watcher.until_end_of(&run).await;
    let taken = watcher.echoed();
    assert_eq!(taken.len() - 1 + cancelled.len(), 50);
    assert!(cancelled.iter().all(|id| !taken.contains(id)));
}
