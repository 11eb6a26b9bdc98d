//! Ingress and inbox against the in-memory store and a courier that notes what it is given.

use std::sync::Arc;

use parking_lot::Mutex;
use serde_json::json;

use super::{
    inbox::act,
    ingest::{find, take_in},
    *,
};
use crate::{
    model::PromptMessage,
    runtime::IdleBehavior,
    signal::Signal,
    storage::{MemoryStorage, NotificationRecord},
    time::Timestamp,
};

type Answer = fn(Signal) -> Result<Outcome, Error>;

struct Noted {
    storage: SharedStorage,
    active: bool,
    answer: Answer,
    sent: Mutex<Vec<(Signal, IdleBehavior)>>,
}

#[allow(clippy::unnecessary_wraps)] // an `Answer`
fn woken(signal: Signal) -> Result<Outcome, Error> {
    Ok(Outcome { action: Action::Wake, run_id: Some("run".into()), waiting_for: None, signal })
}

fn courier(active: bool, answer: Answer) -> Noted {
    Noted { storage: Arc::new(MemoryStorage::default()), active, answer, sent: Mutex::default() }
}

impl Noted {
    fn prompts(&self) -> Vec<String> {
        self.sent.lock().iter().map(|(signal, _)| text(&signal.to_prompt())).collect()
    }
}

fn text(message: &PromptMessage) -> String {
    match message {
        PromptMessage::User { content, .. } => match content.as_slice() {
            [crate::model::UserPart::Text { text, .. }] => text.clone(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[async_trait]
impl Courier for Noted {
    fn agent_id(&self) -> &'static str {
        "a1"
    }
    fn storage(&self) -> &SharedStorage {
        &self.storage
    }
    async fn is_active(&self, _: &ThreadKey) -> bool {
        self.active
    }
    async fn send(&self, _: &str, target: Target, signal: SignalInput) -> Result<Outcome, Error> {
        let id = format!("signal-{}", self.sent.lock().len());
        let signal = signal.normalise(|| id.as_str().into(), Timestamp::default())?;
        self.sent.lock().push((signal.clone(), target.if_idle.behavior));
        (self.answer)(signal)
    }
}

fn thread() -> ThreadKey {
    ThreadKey::new("r", "t")
}

fn ci(priority: &str) -> NewNotification {
    NewNotification::new(thread(), "github", "ci-status", "CI failed on main: 3 tests failed.").priority(priority)
}

const NOW: Timestamp = Timestamp::from_millis(1_000_000);

async fn taken(courier: &Noted, input: NewNotification) -> NotificationRecord {
    let record = take_in(courier, input, NOW).await.unwrap();
    let stored = find(&courier.storage, &thread(), &record.id).await.unwrap();
    assert_eq!(stored.as_ref(), Some(&record), "what is returned is what is stored");
    record
}

#[tokio::test]
async fn notif_058_a_full_notification_renders_the_seeds_line() {
    let courier = courier(false, woken);
    let record = taken(&courier, ci("high")).await;
    assert_eq!(
        courier.prompts(),
        [
            "<notification source=\"github\" type=\"ci-status\" priority=\"high\" status=\"delivered\">CI failed on main: 3 tests failed.</notification>"
        ]
    );
    let (signal, _) = courier.sent.lock()[0].clone();
    assert_eq!(
        serde_json::to_value(signal.metadata).unwrap(),
        json!({"notification": {"signal": "notification", "recordId": record.id, "source": "github", "kind": "ci-status",
            "priority": "high", "status": "delivered"}})
    );
}

#[tokio::test]
async fn notif_050_the_senders_attributes_follow_and_override_nothing() {
    let courier = courier(false, woken);
    let attributes = json!({"pr": 7, "source": "forged", "id": "x"}).as_object().cloned();
    let metadata = json!({"m": 1}).as_object().cloned();
    taken(&courier, NewNotification { attributes, metadata, ..ci("urgent") }).await;
    assert!(courier.prompts()[0].starts_with(
        "<notification source=\"github\" type=\"ci-status\" priority=\"urgent\" status=\"delivered\" pr=\"7\">"
    ));
    assert_eq!(courier.sent.lock()[0].0.metadata.as_ref().unwrap()["m"], 1);
}

#[tokio::test]
async fn notif_040_the_default_policy_decides_by_priority_and_activity() {
    // priority, active, status after, reason, signals sent, due for full delivery, due for a summary
    for (priority, active, status, reason, sent, full_due, summary_due) in [
        ("urgent", false, "delivered", "urgent", 1, false, false),
        ("urgent", true, "delivered", "urgent", 1, false, false),
        ("high", false, "delivered", "idle-high", 1, false, false),
        ("high", true, "pending", "active-high-summary-then-full", 1, true, false),
        ("medium", false, "delivered", "idle-medium", 1, false, false),
        ("medium", true, "pending", "active-batch-summary", 1, false, false),
        ("low", false, "pending", "idle-low-summary", 0, false, true),
        ("low", true, "pending", "active-batch-summary", 0, false, true),
    ] {
        let courier = courier(active, woken);
        let record = taken(&courier, ci(priority)).await;
        let shown = courier.sent.lock().len();
        assert_eq!(
            (record.status.as_str(), record.delivery_reason.as_deref(), shown),
            (status, Some(reason), sent),
            "{priority} {active}"
        );
        assert_eq!(
            (record.deliver_at.is_some(), record.summary_at.is_some()),
            (full_due, summary_due),
            "{priority} {active}"
        );
        assert_eq!(record.delivered_at.is_some(), status == "delivered");
        assert_eq!(record.delivered_signal_id.is_some(), status == "delivered");
    }
    let unspecified = courier(false, woken);
    let input = NewNotification { priority: None, ..ci("low") };
    assert_eq!(taken(&unspecified, input).await.priority, "medium");
}

#[tokio::test]
async fn notif_015_an_active_thread_sees_a_summary() {
    for (priority, idle) in [("high", IdleBehavior::Persist), ("medium", IdleBehavior::Wake)] {
        let courier = courier(true, woken);
        let record = taken(&courier, ci(priority)).await;
        assert_eq!(courier.prompts(), ["<notification-summary pending=\"1\">github: 1</notification-summary>"]);
        assert_eq!(courier.sent.lock()[0].1, idle, "NOTIF-016");
        assert_eq!(record.summary_signal_id, Some("signal-0".into()));
    }
}

#[test]
fn notif_054_summaries_name_sources_in_order_of_appearance() {
    let record = |source: &str| {
        serde_json::from_value::<NotificationRecord>(
            json!({"id": source, "threadId": "t", "source": source, "kind": "k",
            "priority": "low", "status": "pending", "summary": "s", "coalescedCount": 1, "deliveryAttempts": 0,
            "createdAt": "2026-01-01T00:00:00.000Z", "updatedAt": "2026-01-01T00:00:00.000Z"}),
        )
        .unwrap()
    };
    let records: Vec<NotificationRecord> = [("github", 3), ("email", 5), ("slack", 2)]
        .iter()
        .flat_map(|(source, count)| vec![record(source); *count])
        .collect();
    let summary = super::render::summary(&records.iter().collect::<Vec<_>>());
    let signal = summary.normalise(|| "s".into(), Timestamp::default()).unwrap();
    assert_eq!(
        text(&signal.to_prompt()),
        "<notification-summary pending=\"10\">github: 3, email: 5, slack: 2</notification-summary>"
    );
}

#[tokio::test]
async fn notif_006_wrong_input_is_refused_and_nothing_is_stored() {
    let courier = courier(false, woken);
    let good = || ci("high");
    for (input, field) in [
        (NewNotification { source: " ".into(), ..good() }, "source"),
        (NewNotification { kind: String::new(), ..good() }, "kind"),
        (NewNotification { summary: String::new(), ..good() }, "summary"),
        (good().priority("zzz"), "priority"),
        (NewNotification { payload: Some(json!("x".repeat(300_000))), ..good() }, "payload"),
    ] {
        match take_in(&courier, input, NOW).await {
            Err(Error::Invalid { field: named, .. }) => assert_eq!(named, field),
            other => panic!("{field}: {other:?}"),
        }
    }
    let attributes = json!({"a b": 1}).as_object().cloned();
    let bad = take_in(&courier, NewNotification { attributes, ..good() }, NOW).await;
    assert!(matches!(bad, Err(Error::InvalidSignal(_))), "{bad:?}");
    let listed = act(&courier, &thread(), &json!({"action": "search", "query": "ci"})).await.unwrap();
    assert_eq!(listed["notifications"], json!([]));
}

#[tokio::test]
async fn notif_019_a_failed_delivery_stays_pending_and_is_due_again() {
    let failing = courier(false, |_| Err(Error::Draining));
    let record = taken(&failing, ci("high")).await;
    assert_eq!((record.status.as_str(), record.delivery_attempts), ("pending", 1));
    assert!(record.last_delivery_error.unwrap().contains("draining"));
    let wait = record.deliver_at.unwrap().as_millis() - NOW.as_millis();
    assert!((24_000..=36_000).contains(&wait), "{wait}");
    let hopeless = courier(false, |_| Err(Error::UnknownAgent("x".into())));
    assert_eq!(taken(&hopeless, ci("high")).await.status, "failed", "NOTIF-082");
}

#[tokio::test]
async fn notif_018_what_was_stored_is_delivered_and_what_was_blocked_is_not() {
    for (action, status, attempts) in [
        (Action::Persist, "delivered", 0),
        (Action::Deliver, "delivered", 0),
        (Action::Blocked, "pending", 0),
        (Action::Discard, "pending", 0),
    ] {
        let answer: Answer = match action {
            Action::Persist => |signal| woken(signal).map(|outcome| Outcome { action: Action::Persist, ..outcome }),
            Action::Deliver => |signal| woken(signal).map(|outcome| Outcome { action: Action::Deliver, ..outcome }),
            Action::Blocked => |signal| woken(signal).map(|outcome| Outcome { action: Action::Blocked, ..outcome }),
            _ => |signal| woken(signal).map(|outcome| Outcome { action: Action::Discard, ..outcome }),
        };
        let record = taken(&courier(false, answer), ci("high")).await;
        assert_eq!((record.status.as_str(), record.delivery_attempts), (status, attempts), "{action:?}");
        assert_eq!(record.deliver_at.is_some(), status == "pending");
    }
}

#[tokio::test]
async fn notif_031_records_of_one_key_merge_while_pending() {
    let courier = courier(false, woken);
    let keyed = |summary: &str, priority: Option<&str>, attributes: serde_json::Value| NewNotification {
        summary: summary.into(),
        priority: priority.map(str::to_owned),
        dedupe_key: Some("d1".into()),
        attributes: attributes.as_object().cloned(),
        ..ci("low")
    };
    let first = taken(&courier, keyed("one", Some("low"), json!({"x": 1}))).await;
    let second = taken(&courier, keyed("two", None, json!({"y": 2}))).await;
    assert_eq!(second.id, first.id);
    assert_eq!((second.summary.as_str(), second.priority.as_str(), second.coalesced_count), ("two", "low", 2));
    assert_eq!(second.attributes, json!({"x": 1, "y": 2}).as_object().cloned());
    let third = taken(&courier, keyed("three", Some("urgent"), json!(null))).await;
    assert_eq!((third.id == first.id, third.status.as_str()), (true, "delivered"), "NOTIF-032");
    assert!(courier.prompts()[0].contains(" x=\"1\" y=\"2\" coalescedCount=\"3\">three<"), "{:?}", courier.prompts());
    let fourth = taken(&courier, keyed("four", Some("low"), json!(null))).await;
    assert_ne!(fourth.id, first.id, "NOTIF-034: it is no longer pending");
    let other =
        taken(&courier, NewNotification { kind: "other".into(), ..keyed("five", Some("low"), json!(null)) }).await;
    assert_ne!(other.id, fourth.id, "NOTIF-030: another kind");
}

async fn tool(courier: &Noted, input: serde_json::Value) -> Result<serde_json::Value, String> {
    act(courier, &thread(), &input).await.map_err(|error| error.to_string())
}

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
        let record = find(&courier.storage, &thread(), id).await.unwrap().unwrap();
        assert_eq!(record.status, "seen");
        assert!(record.seen_at.is_some() && record.delivered_signal_id.is_some());
        let again = tool(&courier, json!({"action": "read", "id": id})).await.unwrap();
        assert_eq!(again["alreadyRead"], 1);
    }
    assert_eq!(courier.sent.lock().len(), before + 1);
}

#[tokio::test]
async fn notif_093_actions_on_one_record_need_its_id() {
    let courier = courier(false, woken);
    let record = taken(&courier, ci("low")).await;
    for (action, status) in [("markSeen", "seen"), ("dismiss", "dismissed"), ("archive", "archived")] {
        let done = tool(&courier, json!({"action": action, "id": record.id})).await.unwrap();
        assert_eq!(done["notification"]["status"], status);
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
    let listed = act(&courier, &stranger, &json!({"action": "list"})).await.unwrap();
    assert_eq!(listed["notifications"], json!([]));
    assert!(act(&courier, &stranger, &json!({"action": "read", "id": record.id})).await.is_err());
}

#[test]
fn notif_090_the_tools_arguments_are_checked() {
    let tool = inbox_tool();
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
