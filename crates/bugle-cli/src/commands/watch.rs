//! `bugle watch`: a thread as it happens (CLI-056).

use std::time::{Duration, Instant};

use bugle::json::json;
use bugle_client::{Delivery, SubscribeOptions, Thread};

use super::{
    Session,
    connect::Connection,
    desk::{Desk, Heard, hear},
    follow::with_event_id,
};
use crate::{
    args::Watch,
    exit::{self, Failure},
    out::Style,
    render::transcript,
    screen::Screen,
};

/// How many stored messages are shown after a gap.
const RELOAD: u32 = 20;
/// How old a count of the queue gets while chunks come.
const RECOUNT: Duration = Duration::from_millis(500);

pub(super) async fn run(args: Watch, session: &Session) -> Result<u8, Failure> {
    let out = session.out;
    let connection = Connection::new(&args.target, session)?;
    let thread = connection.thread().await?;
    let options = SubscribeOptions { reconnect: true, last_event_id: args.from.clone() };
    let mut subscription = thread.subscribe(options).await?;
    let mut screen = Screen::new(out, !args.no_signals);
    let mut left = args.runs;
    let mut counted = Instant::now();
    if !out.json {
        out.note(Style::Dim, &format!("watching thread {} of {}; Ctrl-C ends", thread.id(), thread.resource()));
        count_queue(&thread, &mut screen).await;
    }
    let mut desk = if args.read_only { None } else { Desk::of_terminal(out) };
    if let Some(desk) = &mut desk
        && let Ok(found) = thread.suspended_runs().await
    {
        // What waits since before, of which a new process's stream says nothing.
        desk.open(&found.runs);
    }
    loop {
        let delivery = match hear(&mut subscription, &mut desk, &thread).await {
            Heard::Delivery(Some(delivery)) => delivery,
            Heard::Delivery(None) => break,
            Heard::Silence => continue,
        };
        match delivery {
            Delivery::Chunk { event_id, chunk, json } => {
                if out.json {
                    if !(args.no_signals && chunk.kind() == "data-signal") {
                        out.json_line(&with_event_id(json, event_id.as_deref()));
                    }
                } else {
                    screen.chunk(&chunk);
                }
                if let Some(desk) = &mut desk {
                    desk.chunk(&chunk);
                }
                let ends = chunk.ends_run();
                // The queue is counted when runs start and end, and now and then while one goes on.
                let is_turn = ends || chunk.kind() == "start";
                if !out.json && (is_turn || counted.elapsed() >= RECOUNT) {
                    count_queue(&thread, &mut screen).await;
                    counted = Instant::now();
                }
                if ends && let Some(runs) = &mut left {
                    *runs = runs.saturating_sub(1);
                    if *runs == 0 {
                        return Ok(0);
                    }
                }
            }
            Delivery::Gap { after, next } => {
                if out.json {
                    out.json_line(&json!({"type": "gap", "after": after, "next": next}));
                    continue;
                }
                screen.fresh_line();
                out.note(Style::Yellow, "! events are missing; the thread as it is stored:");
                match connection.client.messages(thread.id(), Some(thread.resource()), 0, RELOAD).await {
                    Ok(page) => {
                        for message in &page.items {
                            out.print(&transcript(message, out));
                        }
                    }
                    Err(error) => out.note(Style::Yellow, &format!("! it cannot be loaded: {error}")),
                }
            }
            Delivery::Lost { reason } => {
                screen.fresh_line();
                out.note(Style::Yellow, &format!("! the connection was lost ({reason}); coming back"));
            }
            Delivery::Back => out.note(Style::Dim, "the connection is back"),
            Delivery::Ended(error) => return Err(error.into()),
        }
    }
    Err(Failure::new(exit::UNAVAILABLE, "the subscription ended"))
}

/// A count that cannot be had is no reason to stop watching.
async fn count_queue(thread: &Thread, screen: &mut Screen) {
    if let Ok(pending) = thread.pending().await {
        screen.queue(pending.len());
    }
}
