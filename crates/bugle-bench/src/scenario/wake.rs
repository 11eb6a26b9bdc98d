use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use futures_util::{StreamExt, stream};

use super::Context;
use crate::report::{Report, Times};

#[derive(Args, Clone)]
pub struct Options {
    /// Threads to wake
    #[arg(short, long, default_value_t = 300)]
    n: usize,
    /// Threads woken at the same time
    #[arg(short, long, default_value_t = 1)]
    concurrency: usize,
    /// Threads woken before measuring
    #[arg(long, default_value_t = 50)]
    warmup: usize,
    /// Tokens of each run
    #[arg(long, default_value_t = 8)]
    tokens: u32,
}

pub struct Wake {
    pub accept: Duration,
    pub first: Duration,
    pub finish: Duration,
}

pub async fn run(context: &Context, options: &Options, report: &mut Report) -> Result<()> {
    let message = format!("fake/tokens={}", options.tokens);
    let all = |label, n| {
        let message = &message;
        stream::iter(0..n)
            .map(move |i| async move { one(context, &context.thread(label, i), message).await })
            .buffer_unordered(options.concurrency.max(1))
    };
    all("warmup", options.warmup).for_each(async |_| {}).await;

    let (mut accept, mut first, mut finish) = (Times::default(), Times::default(), Times::default());
    let before = context.sample();
    let begun = Instant::now();
    let mut runs = all("wake", options.n);
    while let Some(wake) = runs.next().await {
        match wake {
            Ok(wake) => {
                accept.add(wake.accept);
                first.add(wake.first);
                finish.add(wake.finish);
            }
            Err(e) => report.error(format_args!("{e:#}")),
        }
    }
    let elapsed = begun.elapsed();
    report.set("n", options.n);
    report.set("concurrency", options.concurrency);
    report.set("tokens", options.tokens);
    report.times("accept_us", &accept);
    report.times("first_text_us", &first);
    report.times("finish_us", &finish);
    report.rate("runs_per_s", options.n as u64, elapsed);
    report.server(before, context.sample(), options.n as u64);
    Ok(())
}

/// Subscribes to an idle thread and wakes it; times are from the send.
pub async fn one(context: &Context, thread: &str, message: &str) -> Result<Wake> {
    context
        .bounded("wake", async {
            let mut events = context.subscribe(thread).await?;
            let start = Instant::now();
            let send = async {
                context.send("send-message", thread, message).await?;
                anyhow::Ok(start.elapsed())
            };
            let watch = async {
                let first = events.until(|c| c.is("text-delta")).await?.at - start;
                let finish = events.until(|c| c.is("finish")).await?.at - start;
                anyhow::Ok((first, finish))
            };
            let (accept, (first, finish)) = tokio::try_join!(send, watch)?;
            Ok(Wake { accept, first, finish })
        })
        .await
}
