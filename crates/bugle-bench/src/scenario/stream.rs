use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;
use serde_json::json;

use super::Context;
use crate::client::Events;
use crate::report::{Report, Times};

#[derive(Args, Clone)]
pub struct Options {
    /// Runs, one after the other
    #[arg(short, long, default_value_t = 10)]
    n: usize,
    /// Tokens of each run
    #[arg(long, default_value_t = 2000)]
    tokens: u32,
    /// Wait between tokens, in milliseconds
    #[arg(long, default_value_t = 0.0)]
    delay_ms: f64,
    /// Give each run a memory thread
    #[arg(long)]
    memory: bool,
}

pub async fn run(context: &Context, options: &Options, report: &mut Report) -> Result<()> {
    let script = format!("fake/tokens={},delay_ms={}", options.tokens, options.delay_ms);
    let model = context.model()?;
    let body = json!({ "model": script, "stream": true, "messages": [{ "role": "user", "content": "hi" }] });
    let mut direct = Times::default();
    for _ in 0..options.n {
        let start = Instant::now();
        let events = model.events("/v1/chat/completions", &body).await?;
        direct.add(read(events, "\"delta\":{\"content\":\"w", options.tokens, start).await?.1);
    }

    // One unmeasured run warms the server up.
    let (mut first, mut total) = (Times::default(), Times::default());
    let mut before = None;
    for i in 0..=options.n {
        let thread = context.thread("stream", i);
        let done = context.bounded("stream", async {
            let start = Instant::now();
            let events = context.stream(&context.common.agent, &script, options.memory.then_some(&thread)).await?;
            read(events, "\"type\":\"text-delta\"", options.tokens, start).await
        });
        match done.await {
            Ok((at_first, at_end)) if i > 0 => {
                first.add(at_first);
                total.add(at_end);
            }
            Ok(_) => before = context.sample(),
            Err(e) => report.error(format_args!("{e:#}")),
        }
    }
    report.set("n", options.n);
    report.set("tokens", options.tokens);
    report.set("memory", options.memory);
    report.times("direct_total_us", &direct);
    report.times("first_text_us", &first);
    report.times("total_us", &total);
    report.rate("direct_tokens_per_s", options.tokens.into(), direct.p50());
    report.rate("tokens_per_s", options.tokens.into(), total.p50());
    let overhead = (total.p50().as_secs_f64() - direct.p50().as_secs_f64()) * 1e6 / f64::from(options.tokens);
    report.set("overhead_us_per_token", (overhead * 100.0).round() / 100.0);
    report.server(before, context.sample(), options.n as u64 * u64::from(options.tokens));
    Ok(())
}

/// Reads to the end: time to the first event that holds `token`, and to the end.
async fn read(mut events: Events, token: &str, expected: u32, start: Instant) -> Result<(Duration, Duration)> {
    let (mut first, mut count) = (None, 0);
    while let Some((at, data)) = events.next_data().await? {
        if data.contains(token) {
            first.get_or_insert(at - start);
            count += 1;
        }
    }
    ensure!(count == expected, "{count} tokens instead of {expected}");
    Ok((first.unwrap_or_default(), start.elapsed()))
}
