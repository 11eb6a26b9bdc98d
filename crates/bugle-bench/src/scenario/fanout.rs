use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use tokio::task::JoinSet;

use super::Context;
use crate::report::{Report, Times};

#[derive(Args, Clone)]
pub struct Options {
    /// Subscribers of the thread
    #[arg(short = 'k', long, default_value_t = 100)]
    subscribers: usize,
    /// Tokens of the run
    #[arg(long, default_value_t = 500)]
    tokens: u32,
    /// Wait between tokens, in milliseconds
    #[arg(long, default_value_t = 0.0)]
    delay_ms: f64,
    /// Runs, each on its own thread with its own subscribers
    #[arg(short, long, default_value_t = 3)]
    n: usize,
}

pub async fn run(context: &Context, options: &Options, report: &mut Report) -> Result<()> {
    let (mut lag, mut finish, mut last_lag) = (Times::default(), Times::default(), Times::default());
    let mut delivered = 0;
    let mut busy = Duration::ZERO;
    let before = context.sample();
    for i in 0..options.n {
        match one(context, options, i).await {
            Ok(round) => {
                delivered += round.arrivals.iter().map(|a| a.len() as u64).sum::<u64>();
                // For each token: how long after the first subscriber the last one had it.
                for token in 0..options.tokens as usize + 1 {
                    let at = || round.arrivals.iter().map(|a| a[token]);
                    let (first, last) = (at().min().unwrap_or(round.start), at().max().unwrap_or(round.start));
                    lag.add(last - first);
                    if token == options.tokens as usize {
                        finish.add(last - round.start);
                        last_lag.add(last - first);
                        busy += last - round.start;
                    }
                }
            }
            Err(e) => report.error(format_args!("{e:#}")),
        }
    }
    report.set("n", options.n);
    report.set("subscribers", options.subscribers);
    report.set("tokens", options.tokens);
    report.set("delay_ms", options.delay_ms);
    report.times("last_finish_us", &finish);
    report.times("token_lag_us", &lag);
    report.times("finish_lag_us", &last_lag);
    report.rate("delivered_chunks_per_s", delivered, busy);
    report.server(before, context.sample(), delivered);
    Ok(())
}

struct Round {
    start: Instant,
    /// For each subscriber, when each text token and the finish arrived.
    arrivals: Vec<Vec<Instant>>,
}

async fn one(context: &Context, options: &Options, i: usize) -> Result<Round> {
    let thread = context.thread("fanout", i);
    let tokens = options.tokens as usize;
    let limit = Arc::new(Duration::from_secs(context.common.timeout));
    let mut readers = JoinSet::new();
    for _ in 0..options.subscribers {
        let mut events = context.bounded("subscribe", context.subscribe(&thread)).await?;
        let limit = limit.clone();
        readers.spawn(async move {
            let mut arrivals = Vec::with_capacity(tokens + 1);
            tokio::time::timeout(*limit, async {
                let finish = events
                    .until(|c| {
                        if c.is("text-delta") {
                            arrivals.push(c.at);
                        }
                        c.is("finish")
                    })
                    .await?;
                arrivals.push(finish.at);
                ensure!(arrivals.len() == tokens + 1, "{} tokens instead of {tokens}", arrivals.len() - 1);
                Ok(arrivals)
            })
            .await?
        });
    }
    let start = Instant::now();
    let message = format!("fake/tokens={tokens},delay_ms={}", options.delay_ms);
    context.bounded("send", context.send("send-message", &thread, &message)).await?;
    let arrivals = readers.join_all().await.into_iter().collect::<Result<_>>()?;
    Ok(Round { start, arrivals })
}
