use std::time::Instant;

use anyhow::Result;
use clap::{Args, ValueEnum};

use super::Context;
use crate::report::{Report, Times};

#[derive(Args, Clone)]
pub struct Options {
    /// Threads to steer, one after the other
    #[arg(short, long, default_value_t = 30)]
    n: usize,
    /// What the model is producing when the message arrives
    #[arg(long, value_enum, default_value_t = Phase::Text)]
    phase: Phase,
    /// Tokens of the response being steered
    #[arg(long, default_value_t = 20)]
    tokens: u32,
    /// Wait between those tokens, in milliseconds
    #[arg(long, default_value_t = 10)]
    delay_ms: u32,
}

#[derive(Clone, Copy, ValueEnum)]
enum Phase {
    /// Text: the message waits for the end of the response
    Text,
    /// Reasoning: the message may interrupt it
    Reasoning,
    /// Nothing yet: the message may interrupt the wait for the first token
    Waiting,
}

pub async fn run(context: &Context, options: &Options, report: &mut Report) -> Result<()> {
    let Options { n, phase, tokens, delay_ms } = *options;
    let whole = tokens * delay_ms;
    let (script, begun) = match phase {
        Phase::Text => (format!("tokens={tokens},delay_ms={delay_ms}"), "text-delta"),
        Phase::Reasoning => (format!("reasoning={tokens},delay_ms={delay_ms},tokens=1"), "reasoning-delta"),
        Phase::Waiting => (format!("ttft_ms={whole},tokens=1"), "start"),
    };
    let (mut accept, mut echo, mut boundary) = (Times::default(), Times::default(), Times::default());
    let (mut answer, mut finish) = (Times::default(), Times::default());
    let before = context.sample();
    for i in 0..n {
        let thread = context.thread("steer", i);
        let marker = format!("steer-marker-{i}");
        let done = context.bounded("steer", async {
            let mut events = context.subscribe(&thread).await?;
            context.send("send-message", &thread, &format!("fake/{script}")).await?;
            events.until(|c| c.is(begun)).await?;
            let message = format!("{marker} fake/say=\"ack\"");
            let start = Instant::now();
            let send = async {
                context.send("send-message", &thread, &message).await?;
                anyhow::Ok(start.elapsed())
            };
            let watch = async {
                let mut text_end = None;
                let echoed = events
                    .until(|c| {
                        if c.is("text-end") {
                            text_end = Some(c.at);
                        }
                        c.echoes(&marker)
                    })
                    .await?;
                let answered = events.until(|c| c.is("text-delta") && c.text() == "ack").await?;
                let finished = events.until(|c| c.is("finish")).await?;
                anyhow::Ok((text_end, echoed.at, answered.at, finished.at))
            };
            let (accepted, (text_end, echoed, answered, finished)) = tokio::try_join!(send, watch)?;
            accept.add(accepted);
            echo.add(echoed - start);
            answer.add(answered - echoed);
            finish.add(finished - start);
            if let Some(text_end) = text_end {
                boundary.add(echoed - text_end);
            }
            Ok(())
        });
        if let Err(e) = done.await {
            report.error(format_args!("{e:#}"));
        }
    }
    report.set("n", n);
    report.set("phase", phase.to_possible_value().expect("no skipped phase").get_name());
    report.set("response_ms", whole);
    report.times("accept_us", &accept);
    report.times("echo_us", &echo);
    report.times("text_end_to_echo_us", &boundary);
    report.times("echo_to_answer_us", &answer);
    report.times("finish_us", &finish);
    report.server(before, context.sample(), n as u64);
    Ok(())
}
