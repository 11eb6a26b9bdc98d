//! Captures of threads that are followed: a subscription, and what was sent meanwhile.

use axum::body::Body;
use bugle::json::Value;

use super::{
    Answer, Exchange, ask, capture,
    rules::{Rules, echo_first},
    target,
};
use crate::support::{Frames, Server, chunk};

/// A thread that is followed.
struct Followed {
    frames: Frames,
    seen: Vec<Value>,
}

impl Followed {
    async fn new(server: &Server, subscribe: &Exchange) -> Self {
        let body = subscribe.body.as_ref().unwrap().to_string();
        let headers = [("content-type", "application/json")];
        let response = server.open(subscribe.method.clone(), &subscribe.path, &headers, Body::from(body)).await;
        Self { frames: Frames::of(response).await, seen: Vec::new() }
    }

    async fn until(&mut self, enough: impl Fn(&[Value]) -> bool) {
        let mut quiet = 0;
        while !enough(&self.seen) {
            let next = chunk(&self.frames.next().await);
            if next.is_null() {
                quiet += 1;
                let kinds: Vec<_> = self.seen.iter().map(|chunk| &chunk["type"]).collect();
                assert!(quiet < 4, "nothing comes after {} chunks: {kinds:?}", kinds.len());
            } else {
                self.seen.push(next);
            }
        }
    }
}

/// Subscribes, asks everything else in order, and compares all answers and all chunks. `waits` says for each request how
/// many chunks have come before the next one.
async fn follow(text: &str, waits: &[usize]) {
    let server = target().await;
    let mut rules = Rules::default();
    let mut exchanges = capture::read(text);
    let subscribe = exchanges.remove(0);
    let expected = echo_first(subscribe.chunks());
    let mut followed = Followed::new(&server, &subscribe).await;
    assert_eq!(exchanges.len(), waits.len());
    for (exchange, wait) in exchanges.iter().zip(waits) {
        let answer = ask(&server, exchange, &rules).await;
        let Answer::Json(json) = &exchange.answer else { panic!("two subscriptions") };
        if exchange.status == 500 {
            // A caller's mistake, which the reference's own client would send again (HTTP-013).
            assert!(answer.status.is_client_error(), "{}", answer.text);
        } else {
            assert_eq!(answer.status.as_u16(), exchange.status, "{}", answer.text);
        }
        rules.same(json, &answer.json);
        followed.until(|seen| seen.len() >= *wait).await;
    }
    let last = &expected[expected.len() - 1]["type"];
    followed.until(|seen| seen.len() >= expected.len() && seen[seen.len() - 1]["type"] == *last).await;
    rules.same_chunks(&expected, &followed.seen);
}

#[tokio::test(start_paused = true)]
async fn http_070_http_080_subscribe_wake() {
    follow(capture!("subscribe-wake"), &[8, 8]).await;
}

#[tokio::test(start_paused = true)]
async fn http_074_http_079_subscribe_steer() {
    follow(capture!("subscribe-steer"), &[5, 5, 5]).await;
}

#[tokio::test(start_paused = true)]
async fn http_075_http_086_subscribe_signals() {
    follow(capture!("subscribe-signals"), &[14, 17, 17, 26, 34, 34]).await;
}

#[tokio::test(start_paused = true)]
async fn http_110_subscribe_client_tools() {
    follow(capture!("subscribe-client-tools"), &[10, 10]).await;
}

#[tokio::test(start_paused = true)]
async fn http_085_subscribe_model_failure() {
    follow(capture!("subscribe-model-failure"), &[4, 4]).await;
}

#[tokio::test(start_paused = true)]
async fn http_088_subscribe_abort() {
    follow(capture!("subscribe-abort"), &[0, 5, 5, 6]).await;
}

#[tokio::test(start_paused = true)]
async fn http_082_subscribe_late() {
    let server = target().await;
    let mut rules = Rules::default();
    let [send, subscribe] = <[Exchange; 2]>::try_from(capture::read(capture!("subscribe-late"))).unwrap();
    let sent = ask(&server, &send, &rules).await;
    let Answer::Json(accepted) = &send.answer else { panic!() };
    rules.same(accepted, &sent.json);
    let expected = echo_first(subscribe.chunks());
    let mut followed = Followed::new(&server, &subscribe).await;
    followed.until(|seen| seen.len() >= expected.len()).await;
    rules.same_chunks(&expected, &followed.seen);
}
