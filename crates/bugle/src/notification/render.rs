//! What the model sees of a notification (NOTIF §5).

use serde_json::{Value, json};

use crate::{
    json::Object,
    signal::{Attributes, SignalInput},
    storage::NotificationRecord,
};

/// Names that the record itself gives; a sender's attribute of such a name is left out.
const RESERVED: [&str; 7] = ["id", "source", "type", "kind", "priority", "status", "coalescedCount"];
/// How much of a payload is shown, in bytes (NOTIF-103).
const PAYLOAD_MAX: usize = 4096;

/// The full notification (NOTIF-050, NOTIF-058 as ruling 8 has it): the seed's four attributes, then the sender's, then
/// the count, and last its id if ids are shown. Ids are in the metadata in any case.
pub(super) fn full(record: &NotificationRecord, render_id: bool) -> SignalInput {
    let mut attributes = Attributes::new();
    for (name, value) in
        [("source", &*record.source), ("type", &*record.kind), ("priority", &*record.priority), ("status", "delivered")]
    {
        attributes.insert(name.to_owned(), json!(value));
    }
    for (name, value) in record.attributes.iter().flatten() {
        if !RESERVED.contains(&name.as_str()) {
            attributes.insert(name.clone(), value.clone());
        }
    }
    if record.coalesced_count > 1 {
        attributes.insert("coalescedCount".to_owned(), json!(record.coalesced_count));
    }
    if render_id {
        attributes.insert("id".to_owned(), json!(record.id));
    }
    let mut notification = Object::new();
    notification.insert("signal".into(), json!("notification"));
    notification.insert("recordId".into(), json!(record.id));
    notification.insert("source".into(), json!(record.source));
    notification.insert("kind".into(), json!(record.kind));
    notification.insert("priority".into(), json!(record.priority));
    notification.insert("status".into(), json!("delivered"));
    if record.coalesced_count > 1 {
        notification.insert("coalescedCount".into(), json!(record.coalesced_count));
    }
    let mut metadata = record.metadata.clone().unwrap_or_default();
    metadata.insert("notification".into(), Value::Object(notification));
    SignalInput {
        attributes: Some(attributes),
        metadata: Some(metadata),
        ..SignalInput::new("notification", record.summary.as_str())
    }
}

/// The full notification with its payload below the summary, as `read` shows it (NOTIF-103).
pub(super) fn with_payload(record: &NotificationRecord, render_id: bool) -> SignalInput {
    let input = full(record, render_id);
    let summary_only = record.metadata.as_ref().and_then(|metadata| metadata.get("render")) == Some(&json!("summary"));
    match &record.payload {
        Some(payload) if !summary_only && !payload.is_null() => {
            let payload = crate::tool::limit_for_model(&payload.to_string(), PAYLOAD_MAX);
            SignalInput { contents: Some(format!("{}\n{payload}", record.summary).into()), ..input }
        }
        _ => input,
    }
}

/// The summary of pending records, sources in order of first appearance (NOTIF-053 … NOTIF-055, NOTIF-058).
pub(super) fn summary(records: &[&NotificationRecord], render_priority: bool) -> SignalInput {
    let mut by_source: indexmap::IndexMap<&str, usize> = indexmap::IndexMap::new();
    let mut by_priority: indexmap::IndexMap<&str, usize> = indexmap::IndexMap::new();
    for record in records {
        *by_source.entry(&record.source).or_default() += 1;
        *by_priority.entry(&record.priority).or_default() += 1;
    }
    let text: Vec<String> = by_source.iter().map(|(source, count)| format!("{source}: {count}")).collect();
    let groups: Vec<Value> =
        by_source.iter().map(|(source, count)| json!({"source": source, "count": count})).collect();
    let ids: Vec<&str> = records.iter().map(|record| record.id.as_str()).collect();
    let highest = ["urgent", "high", "medium", "low"].into_iter().find(|priority| by_priority.contains_key(priority));
    let first = records.first();
    let metadata = json!({
        "notification": {"signal": "summary", "pending": records.len(), "groups": groups, "byPriority": by_priority,
            "notificationIds": ids, "priority": highest},
        "notificationSummary": {
            "threadId": first.map(|record| &record.thread_id),
            "resourceId": first.and_then(|record| record.resource_id.as_ref()),
            "agentId": first.and_then(|record| record.agent_id.as_ref()),
            "pending": records.len(), "bySource": by_source, "byPriority": by_priority, "notificationIds": ids},
        "notificationIds": ids,
    });
    let mut attributes: Attributes = [("pending".to_owned(), json!(records.len()))].into_iter().collect();
    if let Some(priority) = highest.filter(|_| render_priority) {
        attributes.insert("priority".to_owned(), json!(priority));
    }
    SignalInput {
        tag_name: Some("notification-summary".to_owned()),
        attributes: Some(attributes),
        metadata: metadata.as_object().cloned(),
        ..SignalInput::new("notification", text.join(", "))
    }
}
