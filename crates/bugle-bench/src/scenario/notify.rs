use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use futures_util::{StreamExt, TryStreamExt, stream};
use serde_json::{Value, json};

use super::Context;
use crate::report::{Report, Times};

#[derive(Args, Clone)]
pub struct Options {
    /// Notifications, each to an idle thread of its own: from the request to the chunk that shows it
    #[arg(short, long, default_value_t = 300)]
    notifications: usize,
    /// Senders at the same time
    #[arg(short, long, default_value_t = 1)]
    concurrency: usize,
    /// Notifications of priority `low`, which the dispatcher delivers in summaries
    #[arg(long, default_value_t = 10_000)]
    due: usize,
    /// Threads that those are spread over
    #[arg(long, default_value_t = 100)]
    threads: usize,
}

pub async fn run(context: &Context, options: &Options, report: &mut Report) -> Result<()> {
    ingress(context, options, report).await?;
    dispatch(context, options, report).await
}

/// Sends a notification.
async fn notify(context: &Context, thread: &str, priority: &str, i: usize) -> Result<Value> {
    let path = format!("/agents/{}/notifications", context.common.agent);
    let body = json!({
        "resourceId": context.common.resource, "threadId": thread, "source": "bench", "kind": "event",
        "summary": format!("fake/say=\"n{i}\""), "priority": priority, "payload": {"i": i},
    });
    Ok(serde_json::from_slice(&context.target.post(&path, &body).await?)?)
}

async fn ingress(context: &Context, options: &Options, report: &mut Report) -> Result<()> {
    let before = context.sample();
    let begin = Instant::now();
    let sends = stream::iter(0..options.notifications).map(|i| async move {
        let thread = context.thread("notify", i);
        let mut events = context.bounded("subscribe", context.subscribe(&thread)).await?;
        let start = Instant::now();
        let answer = context.bounded("notifications", notify(context, &thread, "high", i)).await?;
        let accepted = start.elapsed();
        if answer["accepted"] != json!(true) {
            bail!("not delivered at once: {answer}");
        }
        let chunk = async {
            loop {
                match events.next().await? {
                    Some(chunk) if chunk.is("data-signal") => return Ok(chunk.at - start),
                    Some(_) => {}
                    None => bail!("the stream ended before the notification"),
                }
            }
        };
        Ok((accepted, context.bounded("the notification's chunk", chunk).await?))
    });
    let (mut accept, mut shown) = (Times::default(), Times::default());
    let mut sends = sends.buffer_unordered(options.concurrency.max(1));
    while let Some((accepted, chunk)) = sends.try_next().await? {
        accept.add(accepted);
        shown.add(chunk);
    }
    report.set("notifications", options.notifications);
    report.set("concurrency", options.concurrency);
    report.times("accept_us", &accept);
    report.times("chunk_us", &shown);
    report.rate("notifications_per_s", options.notifications as u64, begin.elapsed());
    report.server(before, context.sample(), options.notifications as u64);
    Ok(())
}

/// Fills inboxes with what the dispatcher has to deliver, and waits until none is left.
async fn dispatch(context: &Context, options: &Options, report: &mut Report) -> Result<()> {
    if options.due == 0 {
        return Ok(());
    }
    let begin = Instant::now();
    let sends = stream::iter(0..options.due).map(|i| async move {
        let thread = context.thread("due", i % options.threads.max(1));
        context.bounded("notifications", notify(context, &thread, "low", i)).await.map(drop)
    });
    sends.buffer_unordered(16).try_collect::<()>().await?;
    let stored = begin.elapsed();
    report.set("due", options.due);
    report.rate("stored_per_s", options.due as u64, stored);
    let path = format!(
        "/agents/{}/notifications?resourceId={}&search=fake/&limit=200",
        context.common.agent, context.common.resource
    );
    loop {
        let (mut left, mut cursor) = (0, String::new());
        loop {
            let page = context.target.get_json(&format!("{path}&status=pending{cursor}")).await?;
            let records = page["notifications"].as_array().cloned().unwrap_or_default();
            left += records.iter().filter(|record| record["summaryAt"].is_string()).count();
            match page["nextCursor"].as_str() {
                Some(next) if left == 0 => cursor = format!("&cursor={next}"),
                _ => break,
            }
        }
        if left == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let all = begin.elapsed();
    report.set("dispatch_lag_us", (all - stored).as_micros() as u64);
    report.rate("dispatched_per_s", options.due as u64, all);
    Ok(())
}
