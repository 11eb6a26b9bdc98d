use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use futures_util::{StreamExt, TryStreamExt, stream};

use super::Context;
use crate::report::{Report, Times};

#[derive(Args, Clone)]
pub struct Options {
    /// Messages queued on the thread
    #[arg(short, long, default_value_t = 100)]
    messages: usize,
    /// Senders at the same time; the order of the runs is checked when it is 1
    #[arg(short, long, default_value_t = 1)]
    concurrency: usize,
    /// How long the first run holds the thread, in milliseconds, so that the rest queue up behind
    /// it; 0 lets messages arrive while runs start and finish
    #[arg(long, default_value_t = 2000)]
    hold_ms: u64,
    /// Give up when no chunk arrives for this long after the hold, in seconds
    #[arg(long, default_value_t = 5)]
    patience: u64,
}

pub async fn run(context: &Context, options: &Options, report: &mut Report) -> Result<()> {
    let count = options.messages;
    let thread = context.thread("queue", 0);
    let thread = thread.as_str();
    let before = context.sample();
    let mut events = context.bounded("subscribe", context.subscribe(thread)).await?;
    let mut accept = Times::default();
    let start = Instant::now();
    let send = async {
        let sends = stream::iter(0..count).map(|i| async move {
            let start = Instant::now();
            let hold = if i == 0 { options.hold_ms } else { 0 };
            let message = format!("fake/ttft_ms={hold},say=\"m{i}\"");
            context.bounded("queue-message", context.send("queue-message", thread, &message)).await?;
            anyhow::Ok(start.elapsed())
        });
        let mut sends = sends.buffer_unordered(options.concurrency.max(1));
        while let Some(time) = sends.try_next().await? {
            accept.add(time);
        }
        anyhow::Ok(start.elapsed())
    };
    let mut answers = Vec::with_capacity(count);
    let mut finishes = Vec::with_capacity(count);
    let patience = Duration::from_millis(options.hold_ms) + Duration::from_secs(options.patience);
    let watch = async {
        while finishes.len() < count {
            match tokio::time::timeout(patience, events.next()).await {
                Err(_) => break,
                Ok(chunk) => match chunk? {
                    Some(c) if c.is("text-delta") => answers.push(c.text()),
                    Some(c) if c.is("finish") => finishes.push(c.at),
                    Some(_) => {}
                    None => break,
                },
            }
        }
        anyhow::Ok(())
    };
    let (sent, watched) = tokio::join!(send, watch);
    let sent = sent?;
    watched?;
    report.set("messages", count);
    report.set("concurrency", options.concurrency);
    report.set("hold_ms", options.hold_ms);
    report.set("all_accepted_us", sent.as_micros() as u64);
    report.times("accept_us", &accept);
    if let [first, .., last] = finishes[..] {
        // The hold is not the server's doing: the drain begins where it ends.
        report.set("drain_us", (last - first).as_micros() as u64);
        report.rate("drained_runs_per_s", finishes.len() as u64 - 1, last - first);
    }
    let order: Vec<usize> = answers.iter().filter_map(|a| a.strip_prefix('m')?.parse().ok()).collect();
    let in_order = order.is_sorted();
    let lost = (0..count).filter(|i| !order.contains(i)).count();
    report.set("runs_finished", finishes.len());
    report.set("in_order", in_order);
    report.set("messages_lost", lost);
    report.server(before, context.sample(), count as u64);
    if lost > 0 || finishes.len() != count || (!in_order && options.concurrency <= 1) {
        report.error(format_args!("{lost} of {count} lost, {} runs, in order: {in_order}", finishes.len()));
    }
    Ok(())
}
