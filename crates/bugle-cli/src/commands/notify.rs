//! `bugle notify`: sends a notification; `bugle inbox`: the inbox of a thread (CLI §6, NOTIF-121).

use bugle::{
    json::{Value, json},
    storage::{NOTIFICATION_PRIORITIES, NOTIFICATION_STATUSES, NotificationRecord},
};
use bugle_client::{InboxMark, InboxQuery, Notification, Thread};

use super::{Session, connect::Connection, input};
use crate::{
    args::{Inbox, InboxVerb, Notify},
    exit::{self, Failure},
    out::Style,
    text::{clean, nearest, short},
};

pub(super) async fn notify(args: Notify, session: &Session) -> Result<u8, Failure> {
    let connection = Connection::new(&args.target, session)?;
    let missing = || Failure::usage("say what has happened").hint("bugle notify \"CI failed on main\"");
    for (flag, text, what) in [
        ("--source", Some(&args.source), "say where it comes from"),
        ("--kind", Some(&args.kind), "say what kind of event it is"),
        ("--dedupe-key", args.dedupe_key.as_ref(), "give the event's key"),
        ("--coalesce-key", args.coalesce_key.as_ref(), "give the key of the events that belong together"),
    ] {
        if text.is_some_and(|text| text.trim().is_empty()) {
            return Err(Failure::usage(format!("{flag} is empty")).hint(format!("{what}, or leave it out")));
        }
    }
    let summary = input::text(args.summary.as_deref(), true).await?.ok_or_else(missing)?;
    let mut event = Notification::new(args.source, args.kind, summary);
    event.priority = Some(args.priority);
    event.payload = args.payload.as_deref().map(|payload| json_flag("--payload", payload)).transpose()?;
    event.dedupe_key = args.dedupe_key;
    event.coalesce_key = args.coalesce_key;
    let sent = match connection.thread().await?.notify(&event).await {
        Ok(sent) => sent,
        Err(error) => {
            let failure = Failure::from(error);
            let too_large = failure.status == Some(413);
            let failure = connection.explain(failure).await;
            return Err(if too_large { failure.hint("a --payload of at most 256 KiB is kept") } else { failure });
        }
    };
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
    let hint = format!("{flag} '{{\"run\": 7}}' or {flag} @file.json");
    let text = match given.strip_prefix('@') {
        Some(path) => std::fs::read_to_string(path)
            .map_err(|error| Failure::usage(format!("{flag}: {path} cannot be read: {error}")).hint(hint.as_str()))?,
        None => given.to_owned(),
    };
    serde_json::from_str(&text).map_err(|error| {
        let place = given.strip_prefix('@').map(|path| format!(" ({path})")).unwrap_or_default();
        Failure::usage(format!("{flag}{place} is not JSON: {error}")).hint(hint.as_str())
    })
}

pub(super) async fn inbox(args: Inbox, session: &Session) -> Result<u8, Failure> {
    let connection = Connection::new(&args.target, session)?;
    let thread = connection.thread().await?;
    let Some(verb) = args.action else {
        return match list(&args, &thread, session).await {
            Err(failure) => Err(connection.explain(failure).await),
            done => done,
        };
    };
    let Some(id) = &args.id else {
        return Err(Failure::usage("say which notification").hint("bugle inbox lists them with their ids"));
    };
    let record = match act(verb, id, &thread).await {
        Ok(record) => record,
        Err(failure) => return Err(connection.explain(failure).await),
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

/// Does what is asked with one record.
async fn act(verb: InboxVerb, id: &str, thread: &Thread) -> Result<NotificationRecord, Failure> {
    let mark = match verb {
        InboxVerb::Read => {
            let record = find(thread, id).await?;
            // What a person has read is seen; what is put away stays away.
            if !["pending", "delivered"].contains(&record.status.as_str()) {
                return Ok(record);
            }
            InboxMark::Seen
        }
        InboxVerb::Seen => InboxMark::Seen,
        InboxVerb::Dismiss => InboxMark::Dismiss,
        InboxVerb::Archive => InboxMark::Archive,
        InboxVerb::Retry => InboxMark::Retry,
    };
    thread.mark_notification(id, mark).await.map_err(|error| match Failure::from(error) {
        failure if failure.status == Some(404) => Failure { status: failure.status, ..unknown(id, thread) },
        failure if failure.status == Some(400) && mark == InboxMark::Retry => {
            Failure { whats: vec![format!("{id} has not failed, so there is nothing to retry")], ..failure }
                .hint("bugle inbox --status failed lists what has")
        }
        failure => failure,
    })
}

fn unknown(id: &str, thread: &Thread) -> Failure {
    let what = format!("no notification {id} on thread {}", thread.id());
    Failure::new(exit::NOT_FOUND, what).hint("bugle inbox lists them")
}

async fn find(thread: &Thread, id: &str) -> Result<NotificationRecord, Failure> {
    let mut query = InboxQuery { limit: Some(200), ..InboxQuery::default() };
    loop {
        let page = thread.notifications(&query).await?;
        if let Some(record) = page.notifications.into_iter().find(|record| record.id == id) {
            return Ok(record);
        }
        if page.next_cursor.is_none() {
            return Err(unknown(id, thread));
        }
        query.cursor = page.next_cursor;
    }
}

async fn list(args: &Inbox, thread: &Thread, session: &Session) -> Result<u8, Failure> {
    let query = InboxQuery {
        statuses: words("--status", args.status.as_deref(), &NOTIFICATION_STATUSES)?,
        priorities: words("--priority", args.priority.as_deref(), &NOTIFICATION_PRIORITIES)?,
        source: args.source.clone(),
        search: None,
        limit: Some(args.limit),
        cursor: args.cursor.clone(),
    };
    let page = thread.notifications(&query).await.map_err(|error| match Failure::from(error) {
        failure if failure.status == Some(400) && query.cursor.is_some() => {
            Failure { whats: vec!["--cursor is none that a list has named".into()], ..failure }
                .hint("take it from the line below a list, with the same filters")
        }
        failure => failure,
    })?;
    let out = session.out;
    if page.notifications.is_empty() && !out.json {
        let all = query.statuses.is_empty() && query.priorities.is_empty() && query.source.is_none();
        let what = if all { "nothing" } else { "nothing of that kind" };
        out.note(Style::Dim, &format!("{what} in the inbox of thread {}", thread.id()));
    }
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

/// The words of a list with commas, each of which is known.
fn words(flag: &str, list: Option<&str>, known: &[&str]) -> Result<Vec<String>, Failure> {
    let Some(list) = list else { return Ok(Vec::new()) };
    let words: Vec<&str> = list.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    if words.is_empty() {
        return Err(Failure::usage(format!("{flag} is empty")).hint(format!("known are {}", known.join(", "))));
    }
    if let Some(word) = words.iter().find(|word| !known.contains(word)) {
        let near =
            nearest(word, known.iter().copied()).map(|near| format!("; did you mean {near}?")).unwrap_or_default();
        let hint = format!("known are {}{near}", known.join(", "));
        return Err(Failure::usage(format!("{flag}: {word} is none")).hint(hint));
    }
    Ok(words.into_iter().map(str::to_owned).collect())
}

fn line(record: &NotificationRecord) -> String {
    let count = if record.coalesced_count > 1 { format!(" ×{}", record.coalesced_count) } else { String::new() };
    let (source, kind) = (clean(&record.source), clean(&record.kind));
    format!("{:<9} {:<6} {source}/{kind}{count}", record.status, record.priority)
}
