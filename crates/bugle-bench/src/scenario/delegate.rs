use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;
use futures_util::{StreamExt, stream};

use super::Context;
use crate::report::{Report, Times};

#[derive(Args, Clone)]
pub struct Options {
    /// Runs
    #[arg(short, long, default_value_t = 100)]
    n: usize,
    /// Runs at the same time
    #[arg(short, long, default_value_t = 1)]
    concurrency: usize,
    /// Runs before measuring
    #[arg(long, default_value_t = 20)]
    warmup: usize,
    /// The delegating agent
    #[arg(long, default_value = "supervisor")]
    supervisor: String,
    /// The tool by which it delegates
    #[arg(long, default_value = "agent-researcher")]
    tool: String,
}

pub async fn run(context: &Context, options: &Options, report: &mut Report) -> Result<()> {
    let all = |label, n| {
        stream::iter(0..n)
            .map(move |i| one(context, options, context.thread(label, i)))
            .buffer_unordered(options.concurrency.max(1))
    };
    all("delegate-warmup", options.warmup).for_each(async |_| {}).await;
    if let Some(model) = &context.model {
        model.post("/reset", &().into()).await?;
    }
    // What a run costs without delegation: the same agent, the same thread per run, one answer.
    let mut plain = Times::default();
    let mut runs = stream::iter(0..options.n)
        .map(|i| alone(context, options, context.thread("delegate-plain", i)))
        .buffer_unordered(options.concurrency.max(1));
    let before_plain = context.sample();
    while let Some(run) = runs.next().await {
        match run {
            Ok(time) => plain.add(time),
            Err(e) => report.error(format_args!("{e:#}")),
        }
    }
    report.server(before_plain, context.sample(), options.n as u64);
    let plain_server = report.take("server");
    if let Some(model) = &context.model {
        model.post("/reset", &().into()).await?;
    }
    let mut total = Times::default();
    let before = context.sample();
    let begun = Instant::now();
    let mut runs = all("delegate", options.n);
    while let Some(run) = runs.next().await {
        match run {
            Ok(time) => total.add(time),
            Err(e) => report.error(format_args!("{e:#}")),
        }
    }
    let elapsed = begun.elapsed();
    report.set("n", options.n);
    report.set("concurrency", options.concurrency);
    report.times("total_us", &total);
    report.times("plain_us", &plain);
    let above = total.p50().as_secs_f64() - 2.0 * plain.p50().as_secs_f64();
    report.set("above_two_plain_us", (above * 1e7).round() / 10.0);
    if let Some(server) = plain_server {
        report.set("plain_server", server);
    }
    report.rate("runs_per_s", options.n as u64, elapsed);
    report.server(before, context.sample(), options.n as u64);
    if let Some(model) = &context.model {
        let requests = model.get_json("/stats").await?["requests"].as_f64().unwrap_or_default();
        report.set("model_requests_per_run", requests / options.n as f64);
    }
    Ok(())
}

async fn one(context: &Context, options: &Options, thread: String) -> Result<std::time::Duration> {
    let message = format!(r#"fake/tool={},args={{"prompt":"fake/say=\"facts\""}},say="summary""#, options.tool);
    let run = async {
        let start = Instant::now();
        let mut events = context.stream(&options.supervisor, &message, Some(&thread)).await?;
        let result = events.until(|c| c.is("tool-result")).await?;
        ensure!(result.json.contains("facts"), "tool result: {:.200}", result.json);
        let answer = events.until(|c| c.is("text-delta")).await?;
        ensure!(answer.text() == "summary", "answer: {:.200}", answer.json);
        events.until(|c| c.is("finish")).await?;
        Ok(start.elapsed())
    };
    context.bounded("delegate", run).await
}

/// A run of the same agent that delegates nothing.
async fn alone(context: &Context, options: &Options, thread: String) -> Result<std::time::Duration> {
    let run = async {
        let start = Instant::now();
        let mut events = context.stream(&options.supervisor, "fake/say=\"summary\"", Some(&thread)).await?;
        let answer = events.until(|c| c.is("text-delta")).await?;
        ensure!(answer.text() == "summary", "answer: {:.200}", answer.json);
        events.until(|c| c.is("finish")).await?;
        Ok(start.elapsed())
    };
    context.bounded("delegate", run).await
}
