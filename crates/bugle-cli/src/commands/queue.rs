//! `bugle queue`: a message for a turn of its own; what waits, and changing it.

use bugle::{
    MessageId,
    json::json,
    runtime::{PendingInput, PendingMode, PromoteTo},
    signal::{ContentPart, Contents},
};
use bugle_client::{EditInput, SubscribeOptions};

use super::{Session, connect::Connection, follow, input};
use crate::{
    args::Queue,
    exit::{self, Failure},
    text::short,
};

pub(super) async fn run(args: Queue, session: &Session) -> Result<u8, Failure> {
    let connection = Connection::new(&args.target, session)?;
    let thread = connection.thread().await?;
    let out = session.out;
    if let Some(id) = &args.edit {
        let text = input::text(args.text.as_deref(), true).await?;
        let attributes = input::attributes(&args.input.attributes)?;
        if text.is_none() && attributes.is_none() {
            return Err(Failure::usage("nothing to change").hint("bugle queue --edit ID TEXT"));
        }
        let edit = EditInput { contents: text.map(Contents::Text), attributes };
        let signal = thread.edit(&id.as_str().into(), &edit).await?;
        if out.json {
            out.json_line(&json!({"signal": signal}));
        } else {
            out.line(&format!("changed {}", signal.id));
        }
        return Ok(0);
    }
    if !args.cancel.is_empty() {
        let ids: Vec<_> = args.cancel.iter().map(|id| id.as_str().into()).collect();
        let cancelled = thread.cancel_queued(&ids).await?;
        if out.json {
            out.json_line(&json!({"cancelledSignalIds": cancelled}));
        } else {
            for id in &cancelled {
                out.line(&format!("cancelled {id}"));
            }
        }
        let left: Vec<&str> = ids.iter().filter(|id| !cancelled.contains(id)).map(MessageId::as_str).collect();
        if !left.is_empty() {
            let what = format!("not waiting (taken already, or never known): {}", left.join(", "));
            return Err(Failure::new(exit::NOT_FOUND, what).hint("see what waits with: bugle queue --list"));
        }
        return Ok(0);
    }
    if let Some(id) = &args.promote {
        let to = if args.front { PromoteTo::Front } else { PromoteTo::Run };
        let promoted = thread.promote(&id.as_str().into(), to).await?;
        if out.json {
            out.json_line(&json!({"promoted": true, "runId": promoted.run_id, "to": promoted.to}));
        } else {
            let place = if promoted.to == PromoteTo::Front { "to the front, for run" } else { "into run" };
            out.line(&format!("moved {place} {}", promoted.run_id));
        }
        return Ok(0);
    }
    // Without text this is the list, whatever standard input is.
    let Some(text) = input::text(args.text.as_deref(), false).await? else {
        list(&thread.pending().await?, session);
        return Ok(0);
    };
    let input = input::input(text, &args.input, &[] as &[&str])?;
    if args.input.no_wait {
        let accepted = match args.input.signal {
            Some(_) => thread.queue_signal(input).await?,
            None => thread.queue_message(input).await?,
        };
        return follow::accepted_only(&accepted, session);
    }
    let known = follow::is_stored(&connection, input.id.as_ref()).await?;
    let subscription = thread.subscribe(SubscribeOptions::default()).await?;
    let accepted = match args.input.signal {
        Some(_) => thread.queue_signal(input).await?,
        None => thread.queue_message(input).await?,
    };
    follow::Follow { thread, subscription, accepted, known, target: &args.target, session, client: &connection.client }
        .run()
        .await
}

fn list(pending: &[PendingInput], session: &Session) {
    for entry in pending {
        if session.out.json {
            session.out.json_line(&json!(entry));
        } else {
            let mode = match entry.mode {
                PendingMode::PreRun => "starting",
                PendingMode::Pending => "steers",
                PendingMode::Queue => "queued",
                PendingMode::Continuation => "continues",
            };
            let text = contents_text(&entry.signal.contents);
            session.out.line(&format!("{}  {mode:<9}  {}", entry.signal_id, short(&text, 60)));
        }
    }
}

/// The text of contents; files by name.
pub(super) fn contents_text(contents: &Contents) -> String {
    match contents {
        Contents::Text(text) => text.clone(),
        Contents::Parts(parts) => {
            let parts = parts.iter().map(|part| match part {
                ContentPart::Text { text, .. } => text.clone(),
                ContentPart::File { filename, media_type, .. } => {
                    format!("[{}]", filename.as_deref().unwrap_or(media_type))
                }
            });
            parts.collect::<Vec<_>>().join("\n")
        }
    }
}
