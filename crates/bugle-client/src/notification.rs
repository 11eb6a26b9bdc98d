//! Notifications of a thread: sending one, and a person's view of the inbox (NOTIF-121).

use bugle::{
    MessageId, RunId,
    json::{Object, Value, json},
    storage::NotificationRecord,
};
use reqwest::Method;
use serde::{Deserialize, Serialize};

use crate::{agent::Thread, error::Error, http::segment};

/// How long a repeated request is told apart.
const REPEAT_WINDOW_MS: u64 = 10 * 60 * 1000;

/// An outside event for a thread.
///
/// ```
/// let event = bugle_client::Notification::new("github", "ci-status", "CI failed on main");
/// assert_eq!(event.source, "github");
/// ```
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Notification {
    /// Where it came from.
    pub source: String,
    /// What kind of event.
    pub kind: String,
    /// One line for the model.
    pub summary: String,
    /// `low`, `medium`, `high`, `urgent`; the server says `medium`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<String>,
    /// The event itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<Value>,
    /// The source's own id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_id: Option<String>,
    /// A pending notification with this key is the same event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dedupe_key: Option<String>,
    /// Pending notifications with this key are counted together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coalesce_key: Option<String>,
    /// Shown to the model as XML attributes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Object>,
    /// Kept, not shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Object>,
}

impl Notification {
    /// An event.
    pub fn new(source: impl Into<String>, kind: impl Into<String>, summary: impl Into<String>) -> Self {
        Self { source: source.into(), kind: kind.into(), summary: summary.into(), ..Self::default() }
    }
}

/// What became of a notification.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NotificationSent {
    /// A signal was sent now, and accepted.
    pub accepted: bool,
    /// The record.
    pub record: NotificationRecord,
    /// What was decided: `{action, reason, …}`.
    pub decision: Value,
    /// The run that takes the signal.
    #[serde(default)]
    pub run_id: Option<RunId>,
}

/// Which records of an inbox.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InboxQuery {
    /// With one of these statuses; empty = all.
    pub statuses: Vec<String>,
    /// With one of these priorities; empty = all.
    pub priorities: Vec<String>,
    /// From this source.
    pub source: Option<String>,
    /// Whose text contains this.
    pub search: Option<String>,
    /// At most so many; the server says 20.
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    pub cursor: Option<String>,
}

/// A page of an inbox, what changed last first.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InboxPage {
    /// The records.
    pub notifications: Vec<NotificationRecord>,
    /// There are more.
    #[serde(default)]
    pub has_more: bool,
    /// Where they begin.
    #[serde(default)]
    pub next_cursor: Option<String>,
}

/// What is done with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InboxMark {
    /// It was looked at.
    Seen,
    /// It is put away.
    Dismiss,
    /// It is put away for good.
    Archive,
    /// Its delivery, which has failed, is tried anew.
    Retry,
}

impl Thread {
    /// Sends a notification: it is stored, and the agent is told as its policy says.
    pub async fn notify(&self, notification: &Notification) -> Result<NotificationSent, Error> {
        let Value::Object(mut body) = json!(notification) else { return Err(Error::protocol("no object")) };
        if notification.dedupe_key.is_none() {
            // A request whose answer the network lost is sent again; it is one event all the same (CLI-054).
            body.insert("dedupeKey".into(), json!(format!("request:{}", MessageId::fresh())));
            body.insert("dedupeWindowMs".into(), json!(REPEAT_WINDOW_MS));
        }
        self.post("notifications", self.with(body)).await
    }

    /// A page of the thread's inbox.
    pub async fn notifications(&self, query: &InboxQuery) -> Result<InboxPage, Error> {
        let mut fields = vec![("threadId", self.id().to_owned()), ("resourceId", self.resource().to_owned())];
        let lists = [("status", &query.statuses), ("priority", &query.priorities)];
        fields
            .extend(lists.into_iter().filter(|(_, list)| !list.is_empty()).map(|(name, list)| (name, list.join(","))));
        let texts = [("source", &query.source), ("search", &query.search), ("cursor", &query.cursor)];
        fields.extend(texts.into_iter().filter_map(|(name, text)| Some((name, text.clone()?))));
        fields.extend(query.limit.map(|limit| ("limit", limit.to_string())));
        let http = self.http();
        http.json(http.request(Method::GET, &format!("{}/notifications", self.path())).query(&fields)).await
    }

    /// Marks a record of the thread's inbox.
    ///
    /// # Errors
    /// [`Error::Status`] 404 if there is none, 400 for a retry of one that has not failed.
    pub async fn mark_notification(&self, id: &str, mark: InboxMark) -> Result<NotificationRecord, Error> {
        #[derive(Deserialize)]
        struct Marked {
            notification: NotificationRecord,
        }
        let action = match mark {
            InboxMark::Seen => "seen",
            InboxMark::Dismiss => "dismiss",
            InboxMark::Archive => "archive",
            InboxMark::Retry => "retry",
        };
        let route = format!("notifications/{}/{action}", segment(id));
        let marked: Marked = self.post(&route, self.with(Object::new())).await?;
        Ok(marked.notification)
    }
}
