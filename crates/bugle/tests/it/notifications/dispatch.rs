//! The dispatcher: what is due is delivered, in time, once, and nothing is asked while nothing is due (NOTIF §6, §7).

use std::{sync::Arc, time::Duration};

use bugle::{
    ThreadKey,
    chunk::{ChunkBody, Payload},
    json::json,
    model::{Gate, Script, ScriptedModel},
    notification::{Decision, DeliveryAction, DeliveryPolicy, InboxAction, NewNotification, NotificationOptions},
    storage::{MemoryStorage, NewRecord, NotificationRecord, SharedStorage},
};

use super::{clock, event, ingress::busy, pass, record, records, runtime, world, world_with};
use crate::{faulty::Faulty, support};

#[tokio::test(start_paused = true)]
async fn notif_074_a_high_notification_follows_within_a_second_of_the_runs_end() {
    let (world, gate) = busy(&["second", "third"]).await;
    let id = world.agent.send_notification(event("high", "CI failed")).await.unwrap().record.id;
    pass(250).await; // Some looks at a busy thread.
    let waiting = record(&world.storage, &id).await;
    assert_eq!((waiting.status.as_str(), waiting.delivery_attempts), ("pending", 0));
    assert!(waiting.summary_signal_id.is_some());
    let mut watcher = world.watch().await;
    let began = tokio::time::Instant::now();
    gate.open();
    watcher.until("finish").await;
    watcher.until("data-signal").await;
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    watcher.until("finish").await;
    assert_eq!(world.model.requested(), 3, "the run, the step with the summary, the run with the notification");
    assert!(world.asked(2).last().unwrap().contains(">CI failed</notification>"));
    pass(1).await;
    let told = record(&world.storage, &id).await;
    assert_eq!(told.status, "delivered");
    assert!(told.last_delivery_attempt_at.is_some() && told.delivered_signal_id.is_some());
}

#[tokio::test(start_paused = true)]
async fn notif_065_low_notifications_are_shown_as_three_chunks_and_wake_nobody() {
    let world = world(ScriptedModel::with_responses(["never"])).await;
    let mut watcher = world.watch().await;
    world.agent.send_notification(event("low", "one")).await.unwrap();
    let mut mail = event("low", "two");
    mail.source = "email".into();
    world.agent.send_notification(mail).await.unwrap();
    let start = watcher.next().await;
    let signal = watcher.next().await;
    let finish = watcher.next().await;
    assert_eq!((start.kind(), signal.kind(), finish.kind()), ("start", "data-signal", "finish"));
    assert!(start.run_id.is_some() && start.run_id == signal.run_id && start.run_id == finish.run_id);
    let ChunkBody::Data(data) = &signal.body else { panic!("no data") };
    assert_eq!(
        (&data.data["tagName"], &data.data["contents"]),
        (&json!("notification-summary"), &json!("github: 1, email: 1"))
    );
    assert_eq!(data.data["attributes"]["pending"], 2);
    let Some(Payload::Start { id, message_id }) = start.payload() else { panic!("no start") };
    assert_eq!(
        (id.as_str(), message_id.as_str()),
        ("plain", format!("persisted-signal:{}", data.data["id"].as_str().unwrap()).as_str())
    );
    let Some(Payload::Finish(end)) = finish.payload() else { panic!("no finish") };
    let end = serde_json::to_value(end).unwrap();
    assert_eq!(end["stepResult"]["reason"], "stop");
    assert_eq!(end["output"]["usage"], json!({"inputTokens": 0, "outputTokens": 0, "totalTokens": 0}));
    pass(600).await;
    assert_eq!(world.model.requested(), 0);
    assert!(watcher.try_next().is_none(), "nothing more is emitted");
    let records = records(&world.storage).await;
    assert!(records.iter().all(|record| record.status == "pending" && record.summary_at.is_none()), "NOTIF-003");
}

#[tokio::test(start_paused = true)]
async fn notif_074_while_nothing_is_due_the_store_is_left_alone() {
    let store = Faulty::new();
    let model = ScriptedModel::new();
    let agent = support::agent("plain", &model);
    let bugle = runtime(&(store.clone() as SharedStorage), &clock(), NotificationOptions::default(), [agent]).await;
    pass(1).await;
    let calls = store.calls();
    pass(600).await;
    assert_eq!(store.calls(), calls, "NOTIF-071: no timer, no polling");
    // After one was delivered at once, there is none either.
    let agent = bugle.agent("plain").unwrap();
    agent.send_notification(event("urgent", "[[say ok]]")).await.unwrap();
    pass(30).await;
    let calls = store.calls();
    pass(600).await;
    assert_eq!(store.calls(), calls);
}

#[tokio::test(start_paused = true)]
async fn notif_068_records_of_a_busy_thread_are_in_nobodys_way() {
    let (world, gate) = busy(&["answer"; 400]).await;
    let batch = (0..150).map(|number| event("high", &format!("n{number}"))).collect();
    world.agent.send_notifications(batch).await.unwrap();
    pass(2).await;
    let thread = ThreadKey::new("user", "quiet");
    let mut low = NewNotification::new(thread.clone(), "mail", "new", "a letter").priority("low");
    low.dedupe_key = None;
    let quiet = world.agent.send_notification(low).await.unwrap().record.id;
    pass(2).await;
    let store = world.storage.notifications().unwrap();
    let told = store.get("quiet", &quiet).await.unwrap().unwrap();
    assert!(told.summary_signal_id.is_some(), "{told:?}");
    assert!(
        records(&world.storage)
            .await
            .iter()
            .filter(|record| record.priority == "high")
            .all(|record| record.status == "pending")
    );
    // All of them follow when the run has ended.
    gate.open();
    pass(300).await;
    let left = records(&world.storage)
        .await
        .into_iter()
        .filter(|record| record.priority == "high" && record.status != "delivered");
    assert_eq!(left.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn notif_069_each_record_looks_at_the_thread_anew() {
    let (first, second) = (Gate::new(), Gate::new());
    let model = ScriptedModel::with_responses([
        Script::new().text("busy").gate(&first),
        "the summary".into(),
        Script::new().text("woken").gate(&second),
        "the other".into(),
    ]);
    let world = world(model).await;
    world.send("hi").await;
    first.reached().await;
    let batch = ["one", "two"].map(|summary| event("high", summary)).to_vec();
    world.agent.send_notifications(batch).await.unwrap();
    first.open();
    second.reached().await;
    pass(5).await;
    let statuses = async || records(&world.storage).await.into_iter().map(|one| one.status).collect::<Vec<_>>();
    let mut told = statuses().await;
    told.sort();
    assert_eq!(told, ["delivered", "pending"], "the first has woken the thread, the second waits");
    second.open();
    pass(300).await;
    assert_eq!(statuses().await, ["delivered", "delivered"]);
    assert_eq!(world.model.requested(), 4);
}

#[tokio::test(start_paused = true)]
async fn notif_083_what_was_given_up_can_be_retried() {
    let world = world(ScriptedModel::with_responses(["woken"])).await;
    let now = bugle::time::Timestamp::from_millis(1_767_225_600_000);
    let value = json!({"id": "n1", "threadId": "thread", "resourceId": "user", "agentId": "gone", "source": "s", "kind": "k",
        "priority": "high", "status": "pending", "summary": "s", "coalescedCount": 1, "deliveryAttempts": 0,
        "createdAt": now, "updatedAt": now, "deliverAt": now});
    let record_of = |value: bugle::json::Value| serde_json::from_value::<NotificationRecord>(value).unwrap();
    let new = NewRecord { record: record_of(value), priority_given: true, dedupe_window: Duration::ZERO, claim: None };
    world.storage.notifications().unwrap().create(new).await.unwrap();
    let report = world.bugle.dispatch_notifications(10).await.unwrap();
    assert_eq!((report.failed.len(), report.delivered.len()), (1, 0));
    assert!(report.failed[0].1.contains("gone"));
    assert_eq!(record(&world.storage, "n1").await.status, "failed", "NOTIF-082: at once");
    let retried = world.bugle.mark_notification("thread", "n1", InboxAction::Retry).await.unwrap();
    assert_eq!((retried.status.as_str(), retried.delivery_attempts, retried.last_delivery_error), ("pending", 0, None));
    pass(2).await;
    let again = record(&world.storage, "n1").await;
    assert_eq!((again.status.as_str(), again.delivery_attempts), ("failed", 1), "the runtime tried it by itself");
    let seen = world.bugle.mark_notification("thread", "n1", InboxAction::Seen).await.unwrap();
    assert_eq!(seen.status, "seen");
    assert!(world.bugle.mark_notification("thread", "n1", InboxAction::Retry).await.is_err());
    assert!(world.bugle.mark_notification("thread", "none", InboxAction::Seen).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn notif_070_without_a_dispatcher_the_application_makes_the_passes() {
    let options = NotificationOptions::builder().dispatch(false).build();
    let world = world_with(ScriptedModel::with_responses(["never"]), options, |agent| agent).await;
    world.agent.send_notifications(vec![event("low", "one"), event("low", "two")]).await.unwrap();
    pass(600).await;
    assert!(records(&world.storage).await.iter().all(|record| record.summary_signal_id.is_none()));
    let report = world.bugle.dispatch_notifications(100).await.unwrap();
    assert_eq!((report.delivered.len(), report.signals.len()), (2, 1));
    assert_eq!(world.bugle.dispatch_notifications(100).await.unwrap().claimed, 0);
}

#[tokio::test(start_paused = true)]
async fn notif_070_cron_says_how_often_is_looked() {
    let deferring = DeliveryPolicy::new().otherwise(DeliveryAction::Defer);
    let options = NotificationOptions::builder().cron("*/2 * * * *").build();
    let model = ScriptedModel::with_responses(["woken"]);
    let world = world_with(model, options, |agent| agent.notifications(deferring)).await;
    let deferred = world.agent.send_notification(event("low", "later")).await.unwrap().record;
    let wait = deferred.deliver_at.unwrap().as_millis() - deferred.created_at.as_millis();
    assert_eq!(wait, 120_000, "NOTIF-022: one interval");
    pass(121).await;
    assert_eq!(record(&world.storage, &deferred.id).await.status, "delivered");
}

#[tokio::test(start_paused = true)]
async fn notif_070_a_wrong_cron_expression_is_refused_at_the_start() {
    let options = NotificationOptions::builder().cron("61 * * * *").build();
    let agent = support::agent("plain", &ScriptedModel::new());
    let refused =
        bugle::Bugle::builder().agent(agent).storage(MemoryStorage::new()).notifications(options).build().await;
    let error = refused.map(drop).unwrap_err();
    assert!(matches!(error, bugle::Error::Configuration(_)), "{error:?}");
    let said = error.to_string();
    assert!(said.contains("notifications.dispatch.cron: minute: 61 is not from 0 to 59"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn notif_070_a_pass_takes_a_batch_at_most() {
    let options = NotificationOptions::builder().dispatch(false).build();
    let world = world_with(ScriptedModel::with_responses(["never"]), options, |agent| agent).await;
    for number in 0..5 {
        let thread = ThreadKey::new("user", format!("t{number}"));
        let low = NewNotification::new(thread, "mail", "new", "a letter").priority("low");
        world.agent.send_notification(low).await.unwrap();
    }
    let mut claimed = Vec::new();
    for _ in 0..4 {
        claimed.push(world.bugle.dispatch_notifications(2).await.unwrap().claimed);
    }
    assert_eq!(claimed, [2, 2, 1, 0]);
}

#[tokio::test(start_paused = true)]
async fn notif_071_before_the_first_due_record_there_is_no_timer_and_no_polling() {
    let store = Faulty::new();
    let agent = support::builder("plain", &ScriptedModel::with_responses(["woken"]));
    let agent = agent
        .notifications(DeliveryPolicy::new().source("later", DeliveryAction::Defer).otherwise(DeliveryAction::Persist));
    let options = NotificationOptions::builder().cron("* * * * *").build();
    let bugle = runtime(&(store.clone() as SharedStorage), &clock(), options, [agent.build().unwrap()]).await;
    pass(1).await;
    let idle_for_an_hour = async || {
        let calls = store.calls();
        pass(3600).await;
        store.calls() - calls
    };
    assert_eq!(idle_for_an_hour().await, 0, "an empty inbox");
    let agent = bugle.agent("plain").unwrap();
    agent.send_notification(event("high", "kept")).await.unwrap();
    pass(1).await;
    assert_eq!(idle_for_an_hour().await, 0, "a record that is never due");
    // One that is due begins it, and once it is delivered that is over again.
    let mut later = event("high", "later");
    later.source = "later".into();
    agent.send_notification(later).await.unwrap();
    let calls = store.calls();
    pass(90).await;
    assert!(store.calls() > calls, "it was delivered");
    assert_eq!(idle_for_an_hour().await, 0);
}

/// The reference lets one process win each tick by a row of schedules; here both work, and a record has one of them.
#[tokio::test(start_paused = true)]
async fn notif_072_075_passes_that_overlap_deliver_each_record_once() {
    let clock = clock();
    let storage: SharedStorage = Arc::new(MemoryStorage::with_clock(clock.clone()));
    let model = ScriptedModel::with_responses(["never"]);
    let agents = || [support::agent("plain", &model)];
    let off = NotificationOptions::builder().dispatch(false).build();
    let (a, b) =
        (runtime(&storage, &clock, off.clone(), agents()).await, runtime(&storage, &clock, off, agents()).await);
    for number in 0..60 {
        let thread = ThreadKey::new("user", format!("t{}", number % 20));
        let low = NewNotification::new(thread, "mail", "new", format!("letter {number}")).priority("low");
        a.agent("plain").unwrap().send_notification(low).await.unwrap();
    }
    let passes = [&a, &b, &b, &a].map(|bugle| bugle.dispatch_notifications(25));
    let reports = futures::future::join_all(passes).await;
    let mut told: Vec<String> = Vec::new();
    let mut busy = 0;
    for report in reports {
        let report = report.unwrap();
        assert_eq!(report.failed.len(), 0);
        busy += usize::from(report.claimed > 0);
        told.extend(report.delivered.into_iter().map(|record| record.id));
    }
    told.sort();
    let all = told.len();
    told.dedup();
    assert_eq!((all, told.len()), (60, 60), "each record once");
    assert!(busy > 1, "the passes shared the work: {busy}");
    for bugle in [&a, &b] {
        assert_eq!(bugle.dispatch_notifications(100).await.unwrap().claimed, 0);
    }
}

/// The reference forgets deferred records where the store has no schedules; here the inbox's own domain is enough.
#[tokio::test(start_paused = true)]
async fn notif_073_074_deferred_records_need_no_schedules() {
    let policy = DeliveryPolicy::new().decide(|asked| async move {
        let at = asked.now.plus(Duration::from_secs(45));
        Ok(Some(Decision::from(DeliveryAction::Defer).deliver_at(at)))
    });
    let model = ScriptedModel::with_responses(["woken"]);
    let world = world_with(model, NotificationOptions::default(), |agent| agent.notifications(policy)).await;
    let id = world.agent.send_notification(event("high", "later")).await.unwrap().record.id;
    pass(44).await;
    assert_eq!((record(&world.storage, &id).await.status.as_str(), world.model.requested()), ("pending", 0));
    pass(2).await;
    assert_eq!(record(&world.storage, &id).await.status, "delivered", "at its time, not at the next full minute");
    assert_eq!(world.model.requested(), 1);
}

#[tokio::test(start_paused = true)]
async fn notif_074_what_an_earlier_process_left_is_delivered_at_boot() {
    let clock = clock();
    let storage: SharedStorage = Arc::new(MemoryStorage::with_clock(clock.clone()));
    let model = ScriptedModel::with_responses(["woken"]);
    let off = NotificationOptions::builder().dispatch(false).build();
    let first = runtime(&storage, &clock, off, [support::agent("plain", &model)]).await;
    let low = first.agent("plain").unwrap().send_notification(event("low", "one")).await.unwrap();
    first.shutdown(Duration::ZERO).await;
    let _second = runtime(&storage, &clock, NotificationOptions::default(), [support::agent("plain", &model)]).await;
    pass(1).await;
    assert!(record(&storage, &low.record.id).await.summary_signal_id.is_some());
}

#[tokio::test(start_paused = true)]
async fn notif_074_another_process_is_woken_over_the_bus() {
    let clock = clock();
    let storage: SharedStorage = Arc::new(MemoryStorage::with_clock(clock.clone()));
    let bus: bugle::pubsub::SharedPubSub = Arc::new(bugle::pubsub::MemoryPubSub::default());
    let model = ScriptedModel::with_responses(["never"]);
    let build = |dispatch| {
        let options = NotificationOptions::builder().dispatch(dispatch).build();
        let builder = bugle::Bugle::builder().shared_storage(storage.clone()).clock(clock.clone());
        let builder = builder.notifications(options).notification_bus(bus.clone());
        builder.agent(support::agent("plain", &model)).build()
    };
    let (sender, dispatcher) = (build(false).await.unwrap(), build(true).await.unwrap());
    pass(100).await;
    let low = sender.agent("plain").unwrap().send_notification(event("low", "one")).await.unwrap();
    pass(2).await;
    assert!(record(&storage, &low.record.id).await.summary_signal_id.is_some());
    dispatcher.shutdown(Duration::ZERO).await;
}
