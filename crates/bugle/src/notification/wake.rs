//! Tells the dispatchers of other processes that something has become due (NOTIF-074b).

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::State;
use crate::pubsub::{BusError, NewEvent, Reach, Received, SharedPubSub, StartFrom, SubscribeOptions};

/// The topic on which dispatchers wake each other.
const TOPIC: &str = "bugle.notifications";
const RETRY: Duration = Duration::from_secs(5);

/// Passes on what this process has to say, and listens to the others, until `stop` fires or the bus is closed.
pub(crate) async fn run(bus: SharedPubSub, state: Arc<State>, stop: CancellationToken) {
    let own = uuid::Uuid::new_v4().to_string();
    loop {
        let ended = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            ended = talk(&bus, &state, &own) => ended,
        };
        match ended {
            Ok(()) | Err(BusError::Closed) => return,
            Err(error) => {
                tracing::warn!(%error, "dispatchers of notifications cannot wake each other for now");
            }
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY) => {}
        }
    }
}

async fn talk(bus: &SharedPubSub, state: &State, own: &str) -> Result<(), BusError> {
    let options = SubscribeOptions { start_from: StartFrom::Latest, ..SubscribeOptions::default() };
    let mut heard = bus.subscribe(TOPIC, options).await?;
    // What became due before anybody listened.
    state.due.notify_one();
    loop {
        tokio::select! {
            biased;
            () = state.announce.notified() => {
                bus.publish(TOPIC, NewEvent::new("due", own, Value::Null), Reach::Everywhere).await?;
            }
            received = heard.next() => match received {
                Some(Received::Event(delivery)) => {
                    if *delivery.event.run_id != *own {
                        state.due.notify_one();
                    }
                    delivery.ack().await?;
                }
                Some(_) => state.due.notify_one(),
                None => return Ok(()),
            }
        }
    }
}
