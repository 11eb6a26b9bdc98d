use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use futures_util::{StreamExt, stream};
use serde_json::json;

use super::{Context, wake};
use crate::report::{Report, Times};

#[derive(Args, Clone)]
pub struct Options {
    /// Numbers of open subscriptions to measure at
    #[arg(long, value_delimiter = ',', default_value = "1000,5000,10000")]
    levels: Vec<usize>,
    /// Subscriptions opened at the same time
    #[arg(short, long, default_value_t = 32)]
    concurrency: usize,
    /// Quiet time at each level before its measurement, in seconds
    #[arg(long, default_value_t = 5)]
    settle: u64,
    /// Wakes among the idle subscriptions at each level
    #[arg(long, default_value_t = 20)]
    wakes: usize,
}

pub async fn run(context: &Context, options: &Options, reports: &mut Vec<Report>) -> Result<()> {
    let start = context.sample();
    let mut open = Vec::new();
    for (i, &level) in options.levels.iter().enumerate() {
        if i > 0 {
            reports.push(context.report("idle"));
        }
        let report = reports.last_mut().expect("the one begun here or by the caller");
        let mut times = Times::default();
        let begun = Instant::now();
        let added = level.saturating_sub(open.len());
        let mut subscriptions = stream::iter(open.len()..level)
            .map(|i| async move {
                let start = Instant::now();
                let thread = context.thread("idle", i);
                let events = context.bounded("subscribe", context.subscribe(&thread)).await?;
                anyhow::Ok((events, start.elapsed()))
            })
            .buffer_unordered(options.concurrency.max(1));
        while let Some(subscription) = subscriptions.next().await {
            match subscription {
                Ok((events, time)) => {
                    open.push(events);
                    times.add(time);
                }
                Err(e) => report.error(format_args!("{e:#}")),
            }
        }
        let opening = begun.elapsed();
        let settled = context.sample();
        tokio::time::sleep(Duration::from_secs(options.settle)).await;
        let after = context.sample();
        report.set("subscriptions", level);
        report.times("subscribe_us", &times);
        report.rate("subscribes_per_s", added as u64, opening);
        if let (Some(start), Some(settled), Some(after)) = (start, settled, after) {
            let growth = after.rss_kib.saturating_sub(start.rss_kib);
            report.set(
                "server",
                json!({
                    "rss_kib": after.rss_kib,
                    "rss_start_kib": start.rss_kib,
                    "rss_bytes_per_subscription": growth * 1024 / level.max(1) as u64,
                    "open_cpu_us_per_subscription":
                        ((settled.cpu_s - start.cpu_s) * 1e6 / level.max(1) as f64).round(),
                    "idle_cpu_percent":
                        ((after.cpu_s - settled.cpu_s) * 1000.0 / options.settle.max(1) as f64).round() / 10.0,
                }),
            );
        }
        let mut first = Times::default();
        for i in 0..options.wakes {
            match wake::one(context, &context.thread(&format!("probe{level}"), i), "fake/tokens=8").await {
                Ok(wake) => first.add(wake.first),
                Err(e) => report.error(format_args!("{e:#}")),
            }
        }
        report.times("wake_first_text_us", &first);
    }
    Ok(())
}
