//! A subscriber's side of the bus in memory: the stream, and the token of each delivery.

use std::{
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use async_trait::async_trait;
use futures::Stream;

use super::{
    super::{BusError, Delivery, Event, Received, Settle, Settlement},
    Place, Shared,
};

/// The stream of one subscription; leaves when it is dropped.
pub(super) struct Feed {
    pub(super) shared: Arc<Shared>,
    pub(super) place: Place,
}

impl Stream for Feed {
    type Item = Received;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Received>> {
        let mut guard = self.shared.state.lock();
        let state = &mut *guard;
        let Some(seat) = state.seats.get_mut(&self.place.id) else { return Poll::Ready(None) };
        if seat.missed > 0 {
            return Poll::Ready(Some(Received::Lagged { missed: mem::take(&mut seat.missed) }));
        }
        if seat.in_flight < seat.concurrency
            && let Some(event) = seat.queue.pop_front()
        {
            seat.in_flight += 1;
            state.in_flight += 1;
            let (shared, place) = (self.shared.clone(), self.place.clone());
            let token = Token { shared, place, event: event.clone(), settled: false };
            return Poll::Ready(Some(Received::Event(Delivery::new(event, Box::new(token)))));
        }
        let replaced = seat.waker.replace(cx.waker().clone());
        drop(guard);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.shared.leave(self.place.id);
    }
}

struct Token {
    shared: Arc<Shared>,
    place: Place,
    event: Arc<Event>,
    settled: bool,
}

#[async_trait]
impl Settle for Token {
    async fn settle(mut self: Box<Self>, how: Settlement) -> Result<(), BusError> {
        self.settled = true;
        self.shared.settle(&self.place, &self.event, how);
        Ok(())
    }
}

impl Drop for Token {
    fn drop(&mut self) {
        if !self.settled {
            self.shared.settle(&self.place, &self.event, Settlement::Nack);
        }
    }
}
