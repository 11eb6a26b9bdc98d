//! What happens when a notification comes in (NOTIF §2, §4, §9).

use bugle::{
    Error, RunOptions,
    chunk::ChunkBody,
    json::json,
    model::{Gate, Script, ScriptedModel},
    notification::{Decision, DeliveryAction, DeliveryPolicy, NotificationOptions},
    runtime::Action,
    storage::{NotificationQuery, SharedStorage},
};

use super::{event, record, records, world, world_with};
use crate::{
    faulty::Faulty,
    support::{World, builder, world_on},
};

/// A world whose agent is at work until the gate is opened.
pub(super) async fn busy(answers: &[&str]) -> (World, Gate) {
    let gate = Gate::new();
    let first = Script::new().text("first").gate(&gate);
    let scripts = std::iter::once(first).chain(answers.iter().map(|answer| Script::from(*answer)));
    let world = world(ScriptedModel::with_responses(scripts.collect::<Vec<_>>())).await;
    world.send("hi").await;
    gate.reached().await;
    (world, gate)
}

#[tokio::test(start_paused = true)]
async fn notif_014_040_every_cell_of_the_table() {
    // priority, active, action, status, what is sent, the outcome
    for (priority, active, action, status, tag, outcome) in [
        ("urgent", false, DeliveryAction::Deliver, "delivered", Some("notification"), Some(Action::Wake)),
        ("high", false, DeliveryAction::Deliver, "delivered", Some("notification"), Some(Action::Wake)),
        ("medium", false, DeliveryAction::Deliver, "delivered", Some("notification"), Some(Action::Wake)),
        ("low", false, DeliveryAction::Summarize, "pending", None, None),
        ("urgent", true, DeliveryAction::Deliver, "delivered", Some("notification"), Some(Action::Deliver)),
        ("high", true, DeliveryAction::Summarize, "pending", Some("notification-summary"), Some(Action::Deliver)),
        ("medium", true, DeliveryAction::Summarize, "pending", Some("notification-summary"), Some(Action::Deliver)),
        ("low", true, DeliveryAction::Summarize, "pending", None, None),
    ] {
        let what = format!("{priority}, active: {active}");
        let (world, gate) = if active {
            busy(&["second", "third", "fourth"]).await
        } else {
            (self::world(ScriptedModel::with_responses(["woken", "again"])).await, Gate::new())
        };
        let notified = world.agent.send_notification(event(priority, "CI failed")).await.unwrap();
        assert_eq!((notified.decision.action, notified.record.status.as_str()), (action, status), "{what}");
        let sent = notified.outcome.as_ref();
        assert_eq!(sent.map(|sent| sent.signal.tag_name.as_str()), tag, "{what}");
        assert_eq!(sent.map(|sent| sent.action), outcome, "{what}");
        assert_eq!(record(&world.storage, &notified.record.id).await, notified.record, "{what}");
        gate.open();
    }
}

#[tokio::test(start_paused = true)]
async fn notif_010_a_store_without_the_domain_is_an_error_before_anything_is_written() {
    let store = Faulty::bare();
    let model = ScriptedModel::with_responses(["woken"]);
    let agent = builder("plain", &model).build().unwrap();
    let world = world_on(model, [agent], store.clone() as SharedStorage).await;
    let calls = store.calls();
    let refused = world.agent.send_notification(event("high", "s")).await;
    assert!(matches!(&refused, Err(Error::NotificationsUnsupported(_))), "{refused:?}");
    assert!(refused.unwrap_err().to_string().starts_with("notifications_storage_missing"));
    assert!(matches!(world.bugle.dispatch_notifications(1).await, Err(Error::NotificationsUnsupported(_))));
    assert_eq!(store.calls(), calls, "nothing was asked of the store");
}

#[tokio::test(start_paused = true)]
async fn notif_006_a_bad_one_refuses_the_whole_batch() {
    let world = world(ScriptedModel::with_responses(["woken"])).await;
    let refused = world.agent.send_notifications(vec![event("high", "good"), event("high", " ")]).await;
    assert!(matches!(&refused, Err(Error::Invalid { field, .. }) if field == "summary"), "{refused:?}");
    assert_eq!(records(&world.storage).await, []);
    assert_eq!(world.model.requested(), 0);
}

#[tokio::test(start_paused = true)]
async fn notif_011_012_a_batch_is_acted_on_in_order() {
    let (world, gate) = busy(&["second"]).await;
    let batch = ["urgent", "low", "high", "medium"].map(|priority| event(priority, priority)).to_vec();
    let notified = world.agent.send_notifications(batch).await.unwrap();
    let of: Vec<&str> = notified.iter().map(|one| one.record.summary.as_str()).collect();
    assert_eq!(of, ["urgent", "low", "high", "medium"], "NOTIF-011");
    let sent: Vec<_> = notified.iter().map(|one| one.outcome.is_some()).collect();
    assert_eq!(sent, [true, false, true, true]);
    // NOTIF-043: the summary of `high` had not been taken in by the run, so that of `medium` covers both.
    gate.open();
    let mut watcher = world.watch().await;
    watcher.until("finish").await;
    let asked = world.asked(1).join("\n");
    assert!(asked.contains(">urgent</notification>"), "{asked}");
    assert!(asked.contains("<notification-summary pending=\"2\">github: 2</notification-summary>"), "{asked}");
    assert_eq!(asked.matches("<notification-summary").count(), 1, "{asked}");
}

#[tokio::test(start_paused = true)]
async fn notif_015_queued_notifications_get_a_run_of_their_own() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([Script::new().text("first").gate(&gate), "second".into()]);
    let policy = DeliveryPolicy::new().otherwise(DeliveryAction::Queue);
    let world = world_with(model, NotificationOptions::default(), |agent| agent.notifications(policy)).await;
    let mut watcher = world.watch().await;
    let first = world.send("hi").await.run_id.unwrap();
    gate.reached().await;
    let notified = world.agent.send_notification(event("low", "CI failed")).await.unwrap();
    let run = notified.run_id().cloned().unwrap();
    assert_ne!(run, first);
    assert_eq!(notified.record.status, "delivered");
    gate.open();
    watcher.until_end_of(&run).await;
    assert_eq!(watcher.run_order(), [first, run]);
    assert_eq!(
        world.asked(1).last().unwrap(),
        "<notification source=\"github\" type=\"ci-status\" priority=\"low\" status=\"delivered\">CI failed</notification>"
    );
}

#[tokio::test(start_paused = true)]
async fn notif_095_what_is_read_joins_the_run_after_the_tools_result() {
    let read = Script::new().call("notification-inbox", json!({"action": "read"}));
    let model = ScriptedModel::with_responses([read, "done".into()]);
    let policy = DeliveryPolicy::new().otherwise(DeliveryAction::Persist);
    let world = world_with(model, NotificationOptions::default(), |agent| agent.notifications(policy)).await;
    let mut waiting = event("high", "CI failed");
    waiting.payload = Some(json!({"run": 7}));
    let id = world.agent.send_notification(waiting).await.unwrap().record.id;
    let mut watcher = world.watch().await;
    let run = world.send("what is new?").await.run_id.unwrap();
    watcher.until_end_of(&run).await;
    let kinds = watcher.kinds();
    let at = kinds.iter().position(|kind| *kind == "tool-call").unwrap();
    let after: Vec<_> = kinds[at..].iter().filter(|kind| !kind.starts_with("tool-call-")).take(5).copied().collect();
    assert_eq!(after, ["tool-call", "tool-result", "data-signal", "step-finish", "step-start"]);
    assert!(world.asked(1).last().unwrap().ends_with(">CI failed\n{\"run\":7}</notification>"), "NOTIF-103");
    let record = record(&world.storage, &id).await;
    assert_eq!((record.status.as_str(), record.delivered_at), ("seen", None));
    assert!(record.seen_at.is_some() && record.delivered_signal_id.is_some());
    super::pass(600).await;
    assert_eq!(world.model.requested(), 2, "NOTIF-092: no later delivery");
}

#[tokio::test(start_paused = true)]
async fn notif_050_the_chunk_names_the_kind_and_the_record() {
    let world = world(ScriptedModel::with_responses(["woken"])).await;
    let mut watcher = world.watch().await;
    let id = world.agent.send_notification(event("high", "CI failed")).await.unwrap().record.id;
    let chunk = watcher.until("data-signal").await;
    let ChunkBody::Data(data) = chunk.body else { panic!("no data") };
    assert_eq!(data.data["type"], "notification");
    assert_eq!(data.data["attributes"]["type"], "ci-status");
    assert_eq!(data.data["metadata"]["notification"]["recordId"], json!(id));
    assert_eq!(data.data["metadata"]["notification"]["kind"], "ci-status", "NOTIF-052");
}

#[tokio::test(start_paused = true)]
async fn notif_036_a_message_id_as_key_merges_while_pending_only() {
    let policy = DeliveryPolicy::new().priority("low", DeliveryAction::Persist);
    let model = ScriptedModel::with_responses(["woken"]);
    let world = world_with(model, NotificationOptions::default(), |agent| agent.notifications(policy)).await;
    let keyed = |priority: &str| {
        let mut event = event(priority, "from a peer");
        event.dedupe_key = Some("message-1".into());
        event
    };
    world.agent.send_notification(keyed("low")).await.unwrap();
    world.agent.send_notification(keyed("low")).await.unwrap();
    assert_eq!(records(&world.storage).await.len(), 1);
    let sent = world.agent.send_notification(keyed("high")).await.unwrap();
    assert_eq!((sent.record.coalesced_count, sent.record.status.as_str()), (3, "delivered"), "NOTIF-032");
    world.agent.send_notification(keyed("low")).await.unwrap();
    assert_eq!(records(&world.storage).await.len(), 2, "NOTIF-034");
}

#[tokio::test(start_paused = true)]
async fn notif_114_notifications_go_with_their_thread() {
    let world = world(ScriptedModel::with_responses(["woken"])).await;
    let mut watcher = world.watch().await;
    world.agent.send_notification(event("high", "CI failed")).await.unwrap();
    watcher.until("finish").await;
    world.storage.delete_thread("thread").await.unwrap();
    assert_eq!(records(&world.storage).await, []);
    let query = NotificationQuery { resource_id: Some("user".into()), ..NotificationQuery::all() };
    assert_eq!(world.bugle.notifications(&query).await.unwrap().records, []);
}

#[tokio::test(start_paused = true)]
async fn ruling_33_a_rolled_back_notification_is_told_again() {
    let gate = Gate::new();
    let model = ScriptedModel::with_responses([
        Script::new().text("one").gate(&gate),
        "after the rollback".into(),
        "told again".into(),
        "and more".into(),
    ]);
    let world = world(model).await;
    let told = world.agent.send_notification(event("urgent", "CI failed")).await.unwrap();
    gate.reached().await;
    assert_eq!(told.record.status, "delivered");
    let target = world.target_for(bugle::runtime::ActiveBehavior::Rollback, bugle::runtime::IdleBehavior::Wake);
    let mut watcher = world.watch().await;
    world.send_to(target, "forget that").await;
    gate.open();
    watcher.until("finish").await;
    super::pass(5).await;
    let record = record(&world.storage, &told.record.id).await;
    assert_eq!(record.status, "delivered", "long before the safety poll");
    let texts = world.texts().await;
    assert_eq!(texts.iter().filter(|text| *text == "CI failed").count(), 1, "{texts:?}");
    assert!(texts.iter().position(|text| text == "CI failed") > texts.iter().position(|text| text == "forget that"));
}

#[tokio::test(start_paused = true)]
async fn notif_013_a_lease_that_another_process_holds_makes_a_thread_active() {
    let world = world(ScriptedModel::with_responses(["never"])).await;
    let reason = async |storage: &World| {
        let notified = storage.agent.send_notification(event("low", "CI failed")).await.unwrap();
        notified.decision.reason.unwrap()
    };
    assert_eq!(reason(&world).await, "idle-low-summary");
    let claim = bugle::storage::LeaseClaim::new("somebody else", std::time::Duration::from_secs(30));
    world.storage.acquire_lease(&world.thread, &claim).await.unwrap();
    assert_eq!(reason(&world).await, "active-batch-summary");
    world.storage.release_lease(&world.thread, "somebody else", None).await.unwrap();
    assert_eq!(reason(&world).await, "idle-low-summary");
}

/// Options of a run that show in its prompt.
fn saying(text: &str) -> Box<RunOptions> {
    let instructions = Some(bugle::run::Texts::One(text.to_owned()));
    Box::new(RunOptions { instructions, ..RunOptions::default() })
}

fn system(world: &World, n: usize) -> String {
    json!(world.model.requests()[n].prompt)[0]["content"].as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn notif_017_a_woken_run_has_the_senders_options_or_else_the_policys() {
    let policy = DeliveryPolicy::new().otherwise(Decision {
        stream_options: Some(saying("the policy's")),
        ..Decision::from(DeliveryAction::Deliver)
    });
    for (given, told) in [(None, "the policy's"), (Some(saying("the sender's")), "the sender's")] {
        let model = ScriptedModel::with_responses(["woken"]);
        let policy = policy.clone();
        let world = world_with(model, NotificationOptions::default(), |agent| agent.notifications(policy)).await;
        let mut watcher = world.watch().await;
        let mut event = event("high", "CI failed");
        event.if_idle.options = given;
        world.agent.send_notification(event).await.unwrap();
        watcher.until("finish").await;
        assert_eq!(system(&world, 0), told);
    }
}

#[tokio::test(start_paused = true)]
async fn notif_042_the_dispatcher_asks_again_for_options_only() {
    for (again, told) in [
        (
            Ok(Some(Decision {
                stream_options: Some(saying("asked again")),
                ..Decision::from(DeliveryAction::Discard)
            })),
            "asked again",
        ),
        (Err("no idea".to_owned()), "You are plain."),
    ] {
        let asked = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let count = asked.clone();
        let policy = DeliveryPolicy::new().decide(move |_| {
            let first = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
            let answer = if first { Ok(Some(Decision::from(DeliveryAction::Defer))) } else { again.clone() };
            async move { answer }
        });
        let model = ScriptedModel::with_responses(["woken"]);
        let world = world_with(model, NotificationOptions::default(), |agent| agent.notifications(policy)).await;
        let id = world.agent.send_notification(event("high", "CI failed")).await.unwrap().record.id;
        super::pass(120).await;
        assert_eq!(asked.load(std::sync::atomic::Ordering::SeqCst), 2);
        assert_eq!(record(&world.storage, &id).await.status, "delivered", "the action of the second answer is nothing");
        assert_eq!(system(&world, 0), told);
    }
}

#[tokio::test(start_paused = true)]
async fn notif_056_a_plain_signal_of_that_type_goes_past_the_inbox() {
    let world = world(ScriptedModel::with_responses(["woken"])).await;
    let signal = bugle::SignalInput::new("notification", "CI failed");
    let mut sent = world.agent.send_signal(&world.thread, signal).await.unwrap();
    assert_eq!(sent.accepted().await.unwrap().action, Action::Wake);
    super::pass(120).await;
    assert_eq!(world.texts().await, ["CI failed", "woken"]);
    assert_eq!(records(&world.storage).await, []);
}

#[tokio::test(start_paused = true)]
async fn notif_084_a_run_that_fails_has_got_its_notification() {
    let world = world(ScriptedModel::with_responses([Script::new().fail_with(400, "no"), "next".into()])).await;
    let mut watcher = world.watch().await;
    let id = world.agent.send_notification(event("high", "CI failed")).await.unwrap().record.id;
    watcher.until("error").await;
    super::pass(600).await;
    let record = record(&world.storage, &id).await;
    assert_eq!((record.status.as_str(), record.delivery_attempts), ("delivered", 0));
    assert_eq!(world.model.requested(), 1, "it is not sent again");
}
