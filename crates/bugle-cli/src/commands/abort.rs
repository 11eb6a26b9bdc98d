//! `bugle abort`: stops the run that is seen running (CLI-055, SIG-313).

use std::time::Duration;

use bugle::{RunId, json::json};
use bugle_client::{Delivery, SubscribeOptions, Thread};

use super::{Session, connect::Connection};
use crate::{
    args::Abort,
    exit::{self, Failure},
    out::Style,
};

/// How long the replay of the active run may take to begin. It is the first thing a subscriber gets.
const REPLAY: Duration = Duration::from_millis(300);

pub(super) async fn run(args: Abort, session: &Session) -> Result<u8, Failure> {
    let connection = Connection::new(&args.target, session)?;
    let thread = connection.thread().await?;
    let expected = match &args.run {
        Some(run) => Some(RunId::from(run.as_str())),
        None => seen_running(&thread).await?,
    };
    let waiting = if args.clear { thread.pending().await?.len() } else { 0 };
    let aborted = thread.abort(expected.as_ref(), args.clear).await?;
    let out = session.out;
    if out.json {
        out.json_line(&json!({"aborted": aborted, "runId": expected}));
    } else if aborted {
        let run = expected.as_ref().map(|run| format!(" run {run}")).unwrap_or_default();
        out.line(&format!("stopped{run}"));
    }
    if waiting > 0 && !out.json {
        out.note(Style::Dim, &format!("taken back what waited: {waiting}"));
    }
    if aborted || waiting > 0 {
        return Ok(0);
    }
    let what = match &args.run {
        Some(run) => format!("run {run} is not running on thread {}", thread.id()),
        None => format!("nothing is running on thread {}", thread.id()),
    };
    Err(Failure::new(exit::NO, what))
}

/// The id of the active run, if it has said anything yet.
async fn seen_running(thread: &Thread) -> Result<Option<RunId>, Failure> {
    let options = SubscribeOptions { reconnect: false, last_event_id: None };
    let mut subscription = thread.subscribe(options).await?;
    let first = async {
        loop {
            match subscription.next().await {
                Some(Delivery::Chunk { chunk, .. }) if chunk.run_id.is_some() => return chunk.run_id,
                Some(_) => {}
                None => return None,
            }
        }
    };
    Ok(tokio::time::timeout(REPLAY, first).await.ok().flatten())
}
