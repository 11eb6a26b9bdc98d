//! The inbox tool: what it lists, what it shows, whom it obeys (NOTIF §9).

use super::*;

#[tokio::test]
async fn notif_091_list_shows_unread_records_and_marks_nothing() {
    let courier = courier(false, woken);
    let metadata = json!({"m": 1}).as_object().cloned();
    taken(&courier, NewNotification { payload: Some(json!({"a": 1})), metadata, ..ci("high") }).await;
    taken(&courier, ci("low")).await;
    for _ in 0..2 {
        let listed = tool(&courier, json!({"action": "list"})).await.unwrap();
        assert_eq!((&listed["hasMore"], &listed["markedSeen"]), (&json!(false), &json!(0)));
        let notifications = listed["notifications"].as_array().unwrap();
        assert_eq!(notifications.len(), 2);
        assert!(notifications.iter().all(|record| record.get("payload").is_none() && record.get("metadata").is_none()));
    }
    let low = tool(&courier, json!({"action": "list", "priority": "low", "markSeen": true})).await.unwrap();
    assert_eq!((&low["notifications"][0]["status"], &low["markedSeen"]), (&json!("seen"), &json!(1)));
    let left = tool(&courier, json!({"action": "list"})).await.unwrap();
    assert_eq!(left["notifications"].as_array().unwrap().len(), 1);
    let searched = tool(&courier, json!({"action": "search", "query": "GITHUB"})).await.unwrap();
    assert_eq!(searched["notifications"].as_array().unwrap().len(), 2);
    assert!(tool(&courier, json!({"action": "search"})).await.is_err());
}

#[tokio::test]
async fn notif_097_pages_follow_a_cursor() {
    let courier = courier(false, woken);
    for _ in 0..5 {
        taken(&courier, ci("low")).await;
    }
    let mut seen = std::collections::HashSet::new();
    let mut input = json!({"action": "list", "limit": 2});
    for (more, count) in [(true, 2), (true, 4), (false, 5)] {
        let page = tool(&courier, input.clone()).await.unwrap();
        seen.extend(page["notifications"].as_array().unwrap().iter().map(|record| record["id"].to_string()));
        assert_eq!((page["hasMore"].as_bool(), seen.len()), (Some(more), count));
        input["cursor"] = page["nextCursor"].clone();
    }
    assert!(tool(&courier, json!({"action": "list", "cursor": "x:y"})).await.is_err());
}

#[tokio::test]
async fn notif_092_read_shows_the_content_as_a_signal() {
    let courier = courier(false, woken);
    let waiting = taken(&courier, NewNotification { payload: Some(json!({"tests": ["<a>"]})), ..ci("low") }).await;
    let shown = taken(&courier, ci("urgent")).await;
    courier.place(shown.delivered_signal_id).await;
    let before = courier.sent.lock().len();
    let read = tool(&courier, json!({"action": "read"})).await.unwrap();
    assert_eq!(
        (&read["delivered"], &read["markedSeen"], &read["alreadyRead"], &read["unavailable"]),
        (&json!(1), &json!(1), &json!(0), &json!(0))
    );
    assert_eq!(courier.sent.lock().len(), before + 1);
    assert!(
        courier.prompts()[before].contains("3 tests failed.\n{\"tests\":[\"&lt;a&gt;\"]}</notification>"),
        "NOTIF-103"
    );
    for id in [&waiting.id, &shown.id] {
        let record = courier.record(id).await;
        assert_eq!(record.status, "seen");
        assert!(record.seen_at.is_some() && record.delivered_signal_id.is_some());
        let again = tool(&courier, json!({"action": "read", "id": id})).await.unwrap();
        assert_eq!(again["alreadyRead"], 1);
    }
    assert_eq!(courier.sent.lock().len(), before + 1);
}

#[tokio::test]
async fn notif_018_a_delivered_record_that_nothing_shows_can_be_read() {
    let courier = courier(false, woken);
    // Its signal was accepted, and taken back before any run had it.
    let record = taken(&courier, ci("urgent")).await;
    assert_eq!(record.status, "delivered");
    let read = tool(&courier, json!({"action": "read", "id": record.id})).await.unwrap();
    assert_eq!((&read["delivered"], &read["markedSeen"]), (&json!(1), &json!(0)));
    assert_eq!(courier.sent.lock().len(), 2);
    let again = courier.record(&record.id).await;
    assert_eq!((again.status.as_str(), again.delivered_signal_id.is_some()), ("seen", true));
    assert_ne!(again.delivered_signal_id, record.delivered_signal_id, "what shows it now");
}

#[tokio::test]
async fn notif_002_093_actions_on_one_record_need_its_id() {
    let courier = courier(false, woken);
    let record = taken(&courier, ci("low")).await;
    for (action, status) in [("markSeen", "seen"), ("dismiss", "dismissed"), ("archive", "archived")] {
        let done = tool(&courier, json!({"action": action, "id": record.id})).await.unwrap();
        assert_eq!(done["notification"]["status"], status, "NOTIF-002");
        let moment = |name: &str| done["notification"].get(name).is_some();
        assert!(["seen", "dismissed", "archived"].contains(&status) && moment(&format!("{status}At")), "NOTIF-002");
        assert!(tool(&courier, json!({"action": action})).await.is_err());
        assert!(tool(&courier, json!({"action": action, "id": "unknown"})).await.is_err());
    }
    assert!(tool(&courier, json!({"action": "read", "id": "unknown"})).await.is_err());
}

#[tokio::test]
async fn notif_096_the_inbox_reaches_its_own_thread_only() {
    let courier = courier(false, woken);
    let record = taken(&courier, ci("low")).await;
    assert!(tool(&courier, json!({"action": "list", "threadId": "t"})).await.is_ok());
    assert!(tool(&courier, json!({"action": "list", "threadId": "other"})).await.is_err());
    let stranger = ThreadKey::new("stranger", "t");
    let act = async |thread: &ThreadKey, input, options| inbox::act(&courier, thread, &input, options).await;
    let listed = act(&stranger, json!({"action": "list"}), InboxToolOptions::default()).await.unwrap();
    assert_eq!(listed["notifications"], json!([]));
    assert!(act(&stranger, json!({"action": "read", "id": record.id}), InboxToolOptions::default()).await.is_err());
    // With the option, other threads of the same resource can be named, and no others.
    let across = InboxToolOptions::builder().cross_thread(true).build();
    for (id, owner) in [("mine", "r"), ("theirs", "stranger")] {
        let new = crate::storage::NewThread { id: Some(id.into()), resource_id: owner.into(), ..Default::default() };
        courier.storage.create_thread(new).await.unwrap();
    }
    for (named, fits) in [("mine", true), ("theirs", false), ("unknown", false)] {
        let input = json!({"action": "list", "threadId": named});
        assert_eq!(act(&thread(), input.clone(), across).await.is_ok(), fits, "{named}");
        assert!(act(&thread(), input, InboxToolOptions::default()).await.is_err(), "{named}");
    }
}

#[test]
fn notif_090_the_tools_arguments_are_checked() {
    let tool = notification_inbox_tool();
    assert_eq!(tool.id(), "notification-inbox");
    for (input, fits) in [
        (json!({"action": "list", "limit": 3, "status": "failed"}), true),
        (json!({}), false),
        (json!({"action": "erase"}), false),
        (json!({"action": "list", "limit": 0}), false),
        (json!({"action": "list", "other": 1}), false),
    ] {
        assert_eq!(tool.check_input(&input).is_ok(), fits, "{input}");
    }
}

#[tokio::test]
async fn notif_094_an_inbox_is_drained_in_pages_newest_first() {
    let courier = courier(false, woken);
    let mut newest = Vec::new();
    for _ in 0..25 {
        newest.insert(0, taken(&courier, ci("low")).await.id);
        courier.later(1);
    }
    for (page, more) in [(&newest[..20], true), (&newest[20..], false), (&[], false)] {
        let listed = tool(&courier, json!({"action": "list", "markSeen": true})).await.unwrap();
        let ids: Vec<&str> =
            listed["notifications"].as_array().unwrap().iter().map(|one| one["id"].as_str().unwrap()).collect();
        assert_eq!((ids, &listed["hasMore"]), (page.iter().map(String::as_str).collect(), &json!(more)));
    }
}

#[tokio::test]
async fn notif_057_103_read_shows_the_payload_unless_the_sender_wants_the_summary_only() {
    let courier = courier(false, woken);
    let shown = async |payload: serde_json::Value, metadata: serde_json::Value| {
        let metadata = metadata.as_object().cloned();
        let record = taken(&courier, NewNotification { payload: Some(payload), metadata, ..ci("low") }).await;
        let read = tool(&courier, json!({"action": "read", "id": record.id})).await.unwrap();
        assert_eq!(read["delivered"], 1);
        courier.prompts().pop().unwrap()
    };
    let line = "status=\"delivered\">CI failed on main: 3 tests failed.";
    let full = shown(json!({"run": 7, "jobs": ["a"]}), json!(null)).await;
    assert!(full.ends_with(&format!("{line}\n{{\"run\":7,\"jobs\":[\"a\"]}}</notification>")), "compact JSON: {full}");
    let short = shown(json!({"run": 7}), json!({"render": "summary"})).await;
    assert!(short.ends_with(&format!("{line}</notification>")), "{short}");
    let none = shown(json!(null), json!(null)).await;
    assert!(none.ends_with(&format!("{line}</notification>")), "{none}");
    let long = shown(json!({"log": "x".repeat(100_000)}), json!(null)).await;
    let payload = long.split_once('\n').unwrap().1.strip_suffix("</notification>").unwrap();
    assert!(payload.starts_with("{\"log\":\"xxx") && payload.len() <= 4096, "{} bytes", payload.len());
    assert!(payload.contains(" bytes left out]"), "with a marker");
}

#[tokio::test]
async fn notif_057_what_is_delivered_without_being_read_shows_no_payload() {
    let courier = courier(false, woken);
    taken(&courier, NewNotification { payload: Some(json!({"run": 7})), ..ci("urgent") }).await;
    assert!(!courier.prompts()[0].contains("run"), "{:?}", courier.prompts());
}

#[tokio::test]
async fn notif_076_of_two_reads_one_shows_the_record() {
    let courier = courier(false, woken);
    let record = taken(&courier, ci("low")).await;
    let read = || tool(&courier, json!({"action": "read", "id": record.id}));
    let (first, second) = tokio::join!(read(), read());
    let delivered = |read: &serde_json::Value| read["delivered"].as_u64().unwrap();
    assert_eq!(delivered(&first.unwrap()) + delivered(&second.unwrap()), 1);
    assert_eq!(courier.sent.lock().len(), 1);
}

#[tokio::test]
async fn notif_076_what_somebody_is_about_to_send_is_sent_by_nobody_else() {
    let courier = courier(false, woken);
    // Ingress has stored the record, under its claim, and not sent it yet.
    let stored = ingest::store(&courier, "a1", vec![ci("high")]).await.unwrap();
    let id = stored[0].id().to_owned();
    let read = tool(&courier, json!({"action": "read", "id": id})).await.unwrap();
    assert_eq!((&read["delivered"], &read["alreadyRead"]), (&json!(0), &json!(1)), "it is being shown at this moment");
    courier.later(59);
    assert_eq!(courier.pass().await.claimed, 0, "nor does the dispatcher touch it");
    let notified = ingest::act_on(&courier, stored).await.pop().unwrap();
    assert_eq!(notified.record.status, "delivered");
    assert_eq!(courier.sent.lock().len(), 1);
    // A dead sender's claim ends; then one of them takes it over.
    let abandoned = ingest::store(&courier, "a1", vec![ci("high")]).await.unwrap();
    let id = abandoned[0].id().to_owned();
    drop(abandoned);
    courier.later(61);
    let read = tool(&courier, json!({"action": "read", "id": id})).await.unwrap();
    assert_eq!(read["delivered"], 1);
    assert_eq!(courier.pass().await.claimed, 0);
    assert_eq!(courier.sent.lock().len(), 2);
}
