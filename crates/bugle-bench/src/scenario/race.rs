use std::collections::HashSet;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Args, ValueEnum};
use futures_util::future;
use serde_json::Value;

use super::Context;
use crate::report::{Report, Times};

#[derive(Args, Clone)]
pub struct Options {
    /// Senders, one message each
    #[arg(short = 'w', long, default_value_t = 32)]
    senders: usize,
    /// Races, each on its own idle thread
    #[arg(short, long, default_value_t = 10)]
    n: usize,
    /// Model time to the first token, in milliseconds: long enough for every send to meet the run
    #[arg(long, default_value_t = 500)]
    ttft_ms: u32,
    /// Spread the sends evenly over this time, in milliseconds, instead of sending all at once.
    /// With a short --ttft-ms they meet runs that start and finish, so several runs are fine
    #[arg(long, default_value_t = 0)]
    spread_ms: u32,
    /// The route the senders use
    #[arg(long, value_enum, default_value_t = Route::SendMessage)]
    route: Route,
    /// Give up when no chunk arrives for this long, in seconds
    #[arg(long, default_value_t = 5)]
    patience: u64,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Route {
    SendMessage,
    QueueMessage,
}

#[derive(Debug, Default)]
struct Outcome {
    runs: usize,
    /// Messages missing from memory.
    lost: usize,
    /// Messages in no model request.
    unseen: usize,
    /// Messages more than once in memory, or in one model request.
    doubled: usize,
}

pub async fn run(context: &Context, options: &Options, report: &mut Report) -> Result<()> {
    let (mut accept, mut total) = (Times::default(), Times::default());
    let mut worst = Outcome::default();
    let one_run = options.spread_ms == 0 && options.route == Route::SendMessage;
    let before = context.sample();
    for i in 0..options.n {
        match one(context, options, i, &mut accept, &mut total).await {
            Ok(outcome) => {
                if outcome.lost + outcome.unseen + outcome.doubled > 0 || (one_run && outcome.runs != 1) {
                    report.error(format_args!("race {i}: {outcome:?}"));
                }
                worst.runs = worst.runs.max(outcome.runs);
                worst.lost += outcome.lost;
                worst.unseen += outcome.unseen;
                worst.doubled += outcome.doubled;
            }
            Err(e) => report.error(format_args!("race {i}: {e:#}")),
        }
    }
    let messages = options.n * options.senders;
    report.set("n", options.n);
    report.set("senders", options.senders);
    report.set("route", options.route.to_possible_value().expect("no skipped route").get_name());
    report.set("spread_ms", options.spread_ms);
    report.set("ttft_ms", options.ttft_ms);
    report.set("most_runs_started", worst.runs);
    report.set("messages", messages);
    report.set("messages_lost", worst.lost);
    report.set("messages_unseen_by_model", worst.unseen);
    report.set("messages_doubled", worst.doubled);
    report.times("accept_us", &accept);
    report.times("all_done_us", &total);
    report.server(before, context.sample(), messages as u64);
    Ok(())
}

async fn one(context: &Context, options: &Options, i: usize, accept: &mut Times, total: &mut Times) -> Result<Outcome> {
    let thread = context.thread("race", i);
    // A marker ends in a separator, so that none is the start of another.
    let markers: Vec<String> = (0..options.senders).map(|w| format!("race-{i}-{w}.")).collect();
    if let Some(model) = &context.model {
        model.post("/reset", &Value::Null).await?;
    }
    let mut events = context.bounded("subscribe", context.subscribe(&thread)).await?;
    let route = options.route.to_possible_value().expect("no skipped route");
    let begun = Instant::now();
    let sends = future::join_all(markers.iter().enumerate().map(|(w, marker)| {
        let message = format!("{marker} fake/ttft_ms={},tokens=1", options.ttft_ms);
        let wait = Duration::from_millis(options.spread_ms.into()) * w as u32 / options.senders as u32;
        let (thread, route) = (&thread, route.get_name());
        async move {
            tokio::time::sleep(wait).await;
            let start = Instant::now();
            context.send(route, thread, &message).await?;
            anyhow::Ok(start.elapsed())
        }
    }));
    let mut runs = HashSet::new();
    let mut last = begun;
    // Until every message was echoed and no run is under way, or until nothing happens any more. Echoes of users come
    // before the `start` of the run they wake, so a run must have been seen as well.
    let watch = async {
        let (mut echoed, mut running) = (HashSet::new(), false);
        let patience = Duration::from_secs(options.patience) + Duration::from_millis(options.ttft_ms.into());
        while running || runs.is_empty() || echoed.len() < markers.len() {
            let Ok(chunk) = tokio::time::timeout(patience, events.next()).await else {
                break;
            };
            let Some(chunk) = chunk? else { break };
            last = chunk.at;
            match chunk.kind.as_str() {
                "start" => {
                    running = true;
                    runs.insert(chunk.run_id);
                }
                "finish" => running = false,
                kind if kind.starts_with("data-") => {
                    echoed.extend(markers.iter().filter(|m| chunk.json.contains(*m)));
                }
                _ => {}
            }
        }
        Ok(())
    };
    let (sent, watched) =
        tokio::join!(context.bounded("send", async { Ok(sends.await) }), context.bounded("race", watch));
    for time in sent? {
        accept.add(time?);
    }
    watched?;
    total.add(last - begun);

    let path = format!(
        "/memory/threads/{thread}/messages?agentId={}&resourceId={}&page=0&perPage=1000",
        context.common.agent, context.common.resource
    );
    let stored = texts(&context.bounded("memory", context.target.get_json(&path)).await?["messages"]);
    let shown: Option<Vec<String>> = match &context.model {
        None => None,
        Some(model) => {
            let requests = model.get_json("/requests").await?;
            Some(requests.as_array().into_iter().flatten().map(|r| texts(&r["body"])).collect())
        }
    };
    let mut outcome = Outcome { runs: runs.len(), ..Outcome::default() };
    for marker in &markers {
        let count = |text: &String| text.matches(marker.as_str()).count();
        let stored = count(&stored);
        let shown = shown.as_ref().map(|requests| requests.iter().map(count).max().unwrap_or(0));
        outcome.lost += usize::from(stored == 0);
        outcome.unseen += usize::from(shown == Some(0));
        outcome.doubled += usize::from(stored > 1 || shown > Some(1));
    }
    Ok(outcome)
}

/// Every string under a `text` key, and every `content` that is a string.
fn texts(value: &Value) -> String {
    match value {
        Value::Array(items) => items.iter().map(texts).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| match value {
                Value::String(text) if key == "text" || key == "content" => text.clone(),
                Value::String(_) => String::new(),
                other => texts(other),
            })
            .collect(),
        _ => String::new(),
    }
}
