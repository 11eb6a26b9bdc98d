//! A process that dies between any two writes: nothing is lost, nothing is told twice (NOTIF-023, NOTIF-075).

use std::{sync::Arc, time::Duration};

use bugle::{
    ThreadKey,
    model::ScriptedModel,
    notification::NotificationOptions,
    storage::{MemoryStorage, SharedStorage},
};

use super::{clock, event, pass, records, runtime};
use crate::{faulty::Faulty, support};

/// Lets a process die after each number of writes, another one go on, and checks what came of it. `told` is what the
/// texts of history must hold once each, for every record there is.
async fn every_death(priorities: &[&str], told: &str) {
    for writes in 0.. {
        let clock = clock();
        let memory = Arc::new(MemoryStorage::with_clock(clock.clone()));
        let model = ScriptedModel::recording();
        let mortal = Faulty::on(&memory, Some(writes));
        let storage: SharedStorage = mortal.clone();
        let agent = support::agent("plain", &model);
        let first = runtime(&storage, &clock, NotificationOptions::default(), [agent]).await;
        let batch = priorities.iter().map(|priority| event(priority, "[[say ok]] the event")).collect();
        let sent = first.agent("plain").unwrap().send_notifications(batch).await;
        pass(5).await;
        first.shutdown(Duration::ZERO).await;
        let died = mortal.is_dead();

        let storage: SharedStorage = Faulty::on(&memory, None);
        let agent = support::agent("plain", &model);
        let second = runtime(&storage, &clock, NotificationOptions::default(), [agent]).await;
        pass(400).await;
        let what = format!("after {writes} writes");
        let records = records(&storage).await;
        assert!(sent.is_err() || records.len() == priorities.len(), "{what}: what was accepted is there");
        let thread = ThreadKey::new("user", "thread");
        let stored = storage.recent_messages(&thread, u32::MAX).await.unwrap();
        let texts: Vec<String> = stored.iter().map(bugle::message::StoredMessage::joined_text).collect();
        let shown = texts.iter().filter(|text| text.starts_with(told)).count();
        if told == "github: " {
            for record in &records {
                assert!(record.summary_signal_id.is_some() && record.summary_at.is_none(), "{what}: {record:?}");
                let by = stored.iter().filter(|message| Some(&message.id) == record.summary_signal_id.as_ref()).count();
                assert_eq!(by, 1, "{what}: its summary is in the history");
            }
            let pending: usize = texts
                .iter()
                .filter_map(|text| text.strip_prefix(told))
                .map(|count| count.parse::<usize>().unwrap())
                .sum();
            assert_eq!(pending, records.len(), "{what}: each is counted once: {texts:?}");
        } else {
            assert_eq!(shown, records.len(), "{what}: {texts:?}");
            assert!(records.iter().all(|record| record.status == "delivered"), "{what}: {records:?}");
        }
        assert!(records.iter().all(|record| record.due_at().is_none()), "{what}: none is stuck");
        second.shutdown(Duration::ZERO).await;
        if !died {
            assert!(writes > 4, "the process lived through all of it");
            return;
        }
    }
}

/// Eight dispatchers of one process on one inbox, and their process dies after each number of writes; another one goes on.
#[tokio::test(start_paused = true)]
async fn notif_075_a_death_at_any_write_of_eight_dispatchers_on_one_inbox() {
    const RECORDS: usize = 12;
    for writes in 0.. {
        let clock = clock();
        let memory = Arc::new(MemoryStorage::with_clock(clock.clone()));
        let model = ScriptedModel::recording();
        let begin = async |mortal: Arc<Faulty>, dispatch: bool| {
            let storage: SharedStorage = mortal;
            let options = NotificationOptions::builder().dispatch(dispatch).build();
            let agent = support::agent("plain", &model);
            (runtime(&storage, &clock, options, [agent]).await, storage)
        };
        // All of them wait for a minute: the process that stored them has died right after (NOTIF-023).
        for n in 0..RECORDS {
            let (bugle, _) = begin(Faulty::on(&memory, Some(1)), false).await;
            let new = event(["low", "urgent"][n % 2], &format!("[[say ok]] event {n}."));
            let _ = bugle.agent("plain").unwrap().send_notification(new).await;
            bugle.shutdown(Duration::ZERO).await;
        }
        pass(61).await;

        let mortal = Faulty::on(&memory, Some(writes));
        let (first, _) = begin(mortal.clone(), false).await;
        let passes = (0..8).map(|_| first.dispatch_notifications(100));
        for done in futures::future::join_all(passes).await {
            let _ = done;
        }
        pass(5).await;
        first.shutdown(Duration::ZERO).await;
        let died = mortal.is_dead();

        let (second, storage) = begin(Faulty::on(&memory, None), true).await;
        pass(400).await;
        let what = format!("after {writes} writes");
        let records = records(&storage).await;
        assert_eq!(records.len(), RECORDS, "{what}");
        let stored = storage.recent_messages(&ThreadKey::new("user", "thread"), u32::MAX).await.unwrap();
        let named = |id: &str, at: fn(&bugle::json::Value) -> Vec<String>| {
            let metadata =
                stored.iter().map(|row| at(&bugle::json::json!(row)["content"]["metadata"]["signal"]["metadata"]));
            metadata.flatten().filter(|named| named == id).count()
        };
        for record in &records {
            let full = named(&record.id, |metadata| {
                metadata["notification"]["recordId"].as_str().map(str::to_owned).into_iter().collect()
            });
            let summaries = named(&record.id, |metadata| {
                let ids = metadata["notificationIds"].as_array().into_iter().flatten();
                ids.filter_map(|id| id.as_str().map(str::to_owned)).collect()
            });
            let low = record.priority == "low";
            assert_eq!((full, summaries), if low { (0, 1) } else { (1, 0) }, "{what}: {record:?}");
            assert_eq!(record.status, if low { "pending" } else { "delivered" }, "{what}");
            assert!(record.due_at().is_none(), "{what}: none is stuck");
        }
        let sent = second.agent("plain").unwrap().send_message(&ThreadKey::new("user", "thread"), "alive").await;
        support::accepted(sent.unwrap()).await;
        pass(1).await;
        assert_eq!(
            model.requests().last().map(|asked| support::user_texts(&asked.prompt).pop()),
            Some(Some("alive".into()))
        );
        second.shutdown(Duration::ZERO).await;
        if !died {
            assert!(writes > 4, "the process lived through all of it");
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn notif_075_a_death_at_any_write_of_a_full_delivery() {
    every_death(&["high"], "[[say ok]] the event").await;
}

/// On a busy thread, a summary that no run has taken in is replaced by one that covers its records too, and the process dies
/// after each number of writes.
#[tokio::test(start_paused = true)]
async fn notif_043_075_a_death_at_any_write_of_a_summary_that_replaces_one() {
    use bugle::model::{Gate, Script};
    for writes in 0.. {
        let clock = clock();
        let memory = Arc::new(MemoryStorage::with_clock(clock.clone()));
        let gate = Gate::new();
        let answers = std::iter::once(Script::new().text("busy").gate(&gate));
        let model = ScriptedModel::with_responses(answers.chain((0..40).map(|_| Script::from("ok"))));
        let thread = ThreadKey::new("user", "thread");
        let mortal = Faulty::on(&memory, Some(writes));
        let storage: SharedStorage = mortal.clone();
        let agent = support::agent("plain", &model);
        let first = runtime(&storage, &clock, NotificationOptions::default(), [agent]).await;
        let agent = first.agent("plain").unwrap();
        if let Ok(mut sent) = agent.send_message(&thread, "hi").await {
            let _ = sent.accepted().await;
        }
        tokio::select! {
            () = gate.reached() => {}
            () = pass(1) => {}
        }
        let mut accepted = 0;
        for n in 0..3 {
            accepted += usize::from(agent.send_notification(event("medium", &format!("event {n}."))).await.is_ok());
        }
        first.shutdown(Duration::ZERO).await;
        let died = mortal.is_dead();
        gate.open();

        let storage: SharedStorage = Faulty::on(&memory, None);
        let agent = support::agent("plain", &model);
        let second = runtime(&storage, &clock, NotificationOptions::default(), [agent]).await;
        pass(400).await;
        let what = format!("after {writes} writes");
        let records = records(&storage).await;
        assert!(records.len() >= accepted, "{what}: what was accepted is there");
        let stored = storage.recent_messages(&thread, u32::MAX).await.unwrap();
        for record in &records {
            let tells = |row: &bugle::message::StoredMessage| {
                let metadata = &bugle::json::json!(row)["content"]["metadata"]["signal"]["metadata"];
                let names = metadata["notificationIds"].as_array().into_iter().flatten();
                names.chain([&metadata["notification"]["recordId"]]).any(|id| *id == record.id.as_str())
            };
            let told = stored.iter().filter(|row| tells(row)).count();
            assert_eq!(told, 1, "{what}: {record:?}");
            assert!(record.due_at().is_none(), "{what}: none is stuck: {record:?}");
        }
        second.shutdown(Duration::ZERO).await;
        if !died {
            assert!(writes > 8, "the process lived through all of it");
            return;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn notif_023_a_death_at_any_write_of_a_batch() {
    every_death(&["urgent", "urgent"], "[[say ok]] the event").await;
}

#[tokio::test(start_paused = true)]
async fn notif_075_a_death_at_any_write_of_a_summary() {
    every_death(&["low", "low"], "github: ").await;
}
