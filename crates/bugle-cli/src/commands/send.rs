//! `bugle send`: steers the running agent or wakes an idle one, and prints the answer (CLI-053).

use bugle_client::{Routing, SubscribeOptions};
use serde::de::DeserializeOwned;

use super::{Session, connect::Connection, follow, input};
use crate::{
    args::{RoutingFlags, Send},
    exit::Failure,
};

pub(super) async fn run(args: Send, session: &Session) -> Result<u8, Failure> {
    let text = input::text(args.text.as_deref(), true).await?;
    let text =
        text.ok_or_else(|| Failure::usage("nothing to send").hint("bugle send TEXT, or - to read standard input"))?;
    let mut input = input::input(text, &args.input, &args.files)?;
    input.routing = routing(&args.routing)?;
    let connection = Connection::new(&args.target, session)?;
    let thread = connection.thread().await?;
    if args.input.no_wait {
        let accepted = match args.input.signal {
            Some(_) => thread.send_signal(input).await?,
            None => thread.send_message(input).await?,
        };
        return follow::accepted_only(&accepted, session);
    }
    let known = follow::is_stored(&connection, input.id.as_ref()).await?;
    let subscription = thread.subscribe(SubscribeOptions::default()).await?;
    let accepted = match args.input.signal {
        Some(_) => thread.send_signal(input).await?,
        None => thread.send_message(input).await?,
    };
    follow::Follow { thread, subscription, accepted, known, target: &args.target, session, client: &connection.client }
        .run()
        .await
}

/// What `--if-active` and `--if-idle` say.
pub(super) fn routing(flags: &RoutingFlags) -> Result<Routing, Failure> {
    let active = "deliver, persist, discard, interrupt, rollback";
    Ok(Routing {
        if_active: behavior("--if-active", flags.if_active.as_deref(), active)?,
        if_idle: behavior("--if-idle", flags.if_idle.as_deref(), "wake, persist, discard")?,
        stream_options: None,
    })
}

fn behavior<T: DeserializeOwned>(flag: &str, text: Option<&str>, known: &str) -> Result<Option<T>, Failure> {
    let Some(text) = text else { return Ok(None) };
    serde_json::from_value(text.into()).map(Some).map_err(|_| Failure::usage(format!("{flag} {text}: one of {known}")))
}
