//! `bugle notify`: sends a notification; `bugle inbox`: the inbox of a thread (CLI §6, NOTIF-121).

use bugle::{
    json::{Value, json},
    storage::NotificationRecord,
};
use bugle_client::{InboxMark, InboxQuery, Notification, Thread};

use super::{Session, connect::Connection, input};
use crate::{
    args::{Inbox, InboxVerb, Notify},
    exit::{self, Failure},
    out::Style,
    text::{clean, short},
};

pub(super) async fn notify(args: Notify, session: &Session) -> Result<u8, Failure> {
    let connection = Connection::new(&args.target, session)?;
    let missing = || Failure::usage("say what has happened").hint("bugle notify \"CI failed on main\"");
    let summary = input::text(args.summary.as_deref(), true).await?.ok_or_else(missing)?;
    let mut event = Notification::new(args.source, args.kind, summary);
    event.priority = Some(args.priority);
    event.payload = args.payload.as_deref().map(|payload| json_flag("--payload", payload)).transpose()?;
    event.dedupe_key = args.dedupe_key;
    event.coalesce_key = args.coalesce_key;
    let sent = connection.thread().await?.notify(&event).await?;
    let out = session.out;
    if out.json {
        let run = sent.run_id.as_ref();
        out.json_line(&json!({
            "accepted": sent.accepted, "decision": sent.decision, "runId": run, "notification": sent.record,
        }));
        return Ok(0);
    }
    let reason = sent.decision.get("reason").and_then(Value::as_str).map(|reason| format!(" ({reason})"));
    let what = match (sent.accepted, &sent.run_id) {
        (true, Some(run)) => format!("told to run {run}"),
        (true, None) => "stored in the conversation".into(),
        (false, _) => format!("in the inbox: {}", sent.record.status),
    };
    out.line(&format!("{}  {what}{}", clean(&sent.record.id), reason.unwrap_or_default()));
    Ok(0)
}

/// JSON, or `@FILE` with JSON in it.
pub(super) fn json_flag(flag: &str, given: &str) -> Result<Value, Failure> {
    let text = match given.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("{flag}: {path} cannot be read: {error}")))?,
        None => given.to_owned(),
    };
    serde_json::from_str(&text).map_err(|error| {
        Failure::usage(format!("{flag} is not JSON: {error}"))
            .hint(format!("{flag} '{{\"run\": 7}}' or {flag} @file.json"))
    })
}

pub(super) async fn inbox(args: Inbox, session: &Session) -> Result<u8, Failure> {
    let connection = Connection::new(&args.target, session)?;
    let thread = connection.thread().await?;
    let Some(verb) = args.action else { return list(&args, &thread, session).await };
    let Some(id) = &args.id else {
        return Err(Failure::usage("say which notification").hint("bugle inbox lists them with their ids"));
    };
    let mark = match verb {
        InboxVerb::Read => None,
        InboxVerb::Seen => Some(InboxMark::Seen),
        InboxVerb::Dismiss => Some(InboxMark::Dismiss),
        InboxVerb::Archive => Some(InboxMark::Archive),
        InboxVerb::Retry => Some(InboxMark::Retry),
    };
    let record = match mark {
        Some(mark) => thread.mark_notification(id, mark).await?,
        None => {
            let record = find(&thread, id).await?;
            // What a person has read is seen; what is put away stays away.
            match record.status.as_str() {
                "pending" | "delivered" => thread.mark_notification(id, InboxMark::Seen).await?,
                _ => record,
            }
        }
    };
    let out = session.out;
    if out.json {
        out.json_line(&json!(record));
    } else if verb == InboxVerb::Read {
        out.line(&format!("{}  {}", out.paint(Style::Bold, &clean(&record.summary)), line(&record)));
        if let Some(payload) = &record.payload {
            out.line(&clean(&serde_json::to_string_pretty(payload).unwrap_or_default()));
        }
        if let Some(error) = &record.last_delivery_error {
            out.note(Style::Yellow, &format!("! delivery failed {} times: {}", record.delivery_attempts, clean(error)));
        }
    } else {
        out.line(&format!("{}  {}", clean(&record.id), record.status));
    }
    Ok(0)
}

async fn find(thread: &Thread, id: &str) -> Result<NotificationRecord, Failure> {
    let mut query = InboxQuery { limit: Some(200), ..InboxQuery::default() };
    loop {
        let page = thread.notifications(&query).await?;
        if let Some(record) = page.notifications.into_iter().find(|record| record.id == id) {
            return Ok(record);
        }
        if page.next_cursor.is_none() {
            let what = format!("no notification {id} on thread {}", thread.id());
            return Err(Failure::new(exit::NOT_FOUND, what).hint("bugle inbox lists them"));
        }
        query.cursor = page.next_cursor;
    }
}

async fn list(args: &Inbox, thread: &Thread, session: &Session) -> Result<u8, Failure> {
    let split = |list: &Option<String>| -> Vec<String> {
        list.iter().flat_map(|list| list.split(',')).map(|word| word.trim().to_owned()).collect()
    };
    let query = InboxQuery {
        statuses: split(&args.status),
        priorities: split(&args.priority),
        source: args.source.clone(),
        search: None,
        limit: Some(args.limit),
        cursor: args.cursor.clone(),
    };
    let page = thread.notifications(&query).await?;
    let out = session.out;
    for record in &page.notifications {
        if out.json {
            out.json_line(&json!(record));
        } else {
            out.line(&format!("{}  {}  {}", clean(&record.id), line(record), short(&record.summary, 60)));
        }
    }
    if let Some(next) = page.next_cursor.filter(|_| !out.json) {
        out.note(Style::Dim, &format!("the next ones: --cursor {next}"));
    }
    Ok(0)
}

fn line(record: &NotificationRecord) -> String {
    let count = if record.coalesced_count > 1 { format!(" ×{}", record.coalesced_count) } else { String::new() };
    let (source, kind) = (clean(&record.source), clean(&record.kind));
    format!("{:<9} {:<6} {source}/{kind}{count}", record.status, record.priority)
}
