//! The load scenarios. Each is bounded in count by its options and in time by the per-operation
//! timeout and the scenario deadline.

mod delegate;
mod fanout;
mod floor;
mod idle;
mod notify;
mod queue;
mod race;
mod steer;
mod stream;
mod wake;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use clap::{Args, Parser, Subcommand};
use serde_json::{Value, json};

use crate::client::{Events, Http};
use crate::proc::{self, Sample};
use crate::report::Report;

#[derive(Subcommand, Clone)]
pub enum Scenario {
    /// The machine and the fake model alone: loopback round trip, model time to first token.
    Floor(floor::Options),
    /// Idle threads: subscribe, send-message, time to the first text and to the finish.
    Wake(wake::Options),
    /// Running threads: send-message into a run, time to accept and to the echo.
    Steer(steer::Options),
    /// One run streamed from POST /stream, against the same tokens from the model directly.
    Stream(stream::Options),
    /// Idle subscriptions: memory for each, and a wake among them.
    Idle(idle::Options),
    /// Many subscribers on one thread: delivered chunks and lag between subscribers.
    Fanout(fanout::Options),
    /// Messages queued on one thread: all run, in order.
    Queue(queue::Options),
    /// A supervisor that delegates once to a subagent in each run.
    Delegate(delegate::Options),
    /// Notifications: from the request to the chunk, and the dispatch of many that are due.
    Notify(notify::Options),
    /// Concurrent senders to one idle thread: one run starts, nothing is lost or doubled.
    Race(race::Options),
    /// Every scenario above, with its defaults.
    All,
}

/// What every scenario shares.
#[derive(Args, Clone)]
pub struct Common {
    /// Base URL of the server under test, e.g. http://127.0.0.1:4111
    #[arg(long, env = "TARGET")]
    pub target: String,
    /// Base URL of the fake model, without /v1; needed by floor and stream, used by race and delegate
    #[arg(long, env = "MODEL")]
    pub model: Option<String>,
    /// Process id of the server under test, for memory and processor time
    #[arg(long)]
    pub pid: Option<u32>,
    /// Prefix of the server's API routes
    #[arg(long, default_value = "/api")]
    pub api: String,
    /// Agent with memory and no tools
    #[arg(long, default_value = "echo")]
    pub agent: String,
    /// Resource id of every thread
    #[arg(long, default_value = "bench")]
    pub resource: String,
    /// Longest wait for one operation, in seconds
    #[arg(long, default_value_t = 30)]
    pub timeout: u64,
    /// Longest time for one scenario, in seconds
    #[arg(long, default_value_t = 300)]
    pub deadline: u64,
}

pub struct Context {
    common: Common,
    target: Http,
    model: Option<Http>,
    /// Makes the thread ids of one invocation its own.
    stamp: String,
}

impl Scenario {
    /// The scenarios this one stands for.
    pub fn expand(self) -> Vec<Scenario> {
        #[derive(Parser)]
        struct Line {
            #[command(subcommand)]
            scenario: Scenario,
        }
        let Scenario::All = self else {
            return vec![self];
        };
        ["floor", "wake", "steer", "stream", "idle", "fanout", "queue", "delegate", "notify", "race"]
            .map(|name| Line::parse_from(["", name]).scenario)
            .into()
    }

    fn name(&self) -> &'static str {
        match self {
            Scenario::Floor(_) => "floor",
            Scenario::Wake(_) => "wake",
            Scenario::Steer(_) => "steer",
            Scenario::Stream(_) => "stream",
            Scenario::Idle(_) => "idle",
            Scenario::Fanout(_) => "fanout",
            Scenario::Queue(_) => "queue",
            Scenario::Delegate(_) => "delegate",
            Scenario::Notify(_) => "notify",
            Scenario::Race(_) => "race",
            Scenario::All => "all",
        }
    }

    /// Runs the scenario, calling `emit` with each report: `idle` has one for each level.
    pub async fn run(&self, common: &Common, mut emit: impl FnMut(Report)) {
        let context = Context::new(common.clone());
        let mut reports = vec![context.report(self.name())];
        let limit = Duration::from_secs(common.deadline);
        let done = tokio::time::timeout(limit, async {
            let report = &mut reports[0];
            match self {
                Scenario::Floor(o) => floor::run(&context, o, report).await,
                Scenario::Wake(o) => wake::run(&context, o, report).await,
                Scenario::Steer(o) => steer::run(&context, o, report).await,
                Scenario::Stream(o) => stream::run(&context, o, report).await,
                Scenario::Idle(o) => idle::run(&context, o, &mut reports).await,
                Scenario::Fanout(o) => fanout::run(&context, o, report).await,
                Scenario::Queue(o) => queue::run(&context, o, report).await,
                Scenario::Delegate(o) => delegate::run(&context, o, report).await,
                Scenario::Notify(o) => notify::run(&context, o, report).await,
                Scenario::Race(o) => race::run(&context, o, report).await,
                Scenario::All => unreachable!("expanded"),
            }
        })
        .await;
        let last = reports.last_mut().expect("one report at least");
        match done {
            Ok(Ok(())) => {}
            Ok(Err(e)) => last.error(format_args!("{e:#}")),
            Err(_) => last.error(format_args!("deadline of {limit:?} passed")),
        }
        reports.into_iter().for_each(&mut emit);
    }
}

impl Context {
    fn new(common: Common) -> Context {
        let stamp = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        Context {
            target: Http::new(&format!("{}{}", common.target.trim_end_matches('/'), common.api)),
            model: common.model.as_deref().map(Http::new),
            stamp: format!("{stamp:x}"),
            common,
        }
    }

    fn report(&self, scenario: &str) -> Report {
        let mut report = Report::new(scenario);
        report.set("load_before", proc::load());
        report
    }

    fn model(&self) -> Result<&Http> {
        self.model.as_ref().context("this scenario needs --model")
    }

    /// A reading of the server process, when its id is known.
    fn sample(&self) -> Option<Sample> {
        proc::sample(self.common.pid?).ok()
    }

    fn thread(&self, label: &str, i: usize) -> String {
        format!("{label}-{}-{i}", self.stamp)
    }

    async fn bounded<T>(&self, what: &str, operation: impl Future<Output = Result<T>>) -> Result<T> {
        let limit = Duration::from_secs(self.common.timeout);
        tokio::time::timeout(limit, operation)
            .await
            .with_context(|| format!("{what}: no result within {limit:?}"))?
            .with_context(|| what.to_owned())
    }

    async fn subscribe(&self, thread: &str) -> Result<Events> {
        let path = format!("/agents/{}/threads/subscribe", self.common.agent);
        let body = json!({ "resourceId": self.common.resource, "threadId": thread });
        self.target.events(&path, &body).await
    }

    async fn send(&self, route: &str, thread: &str, message: &str) -> Result<Value> {
        let path = format!("/agents/{}/{route}", self.common.agent);
        let body = json!({ "resourceId": self.common.resource, "threadId": thread, "message": message });
        Ok(serde_json::from_slice(&self.target.post(&path, &body).await?)?)
    }

    /// Starts a run whose chunks are the response.
    async fn stream(&self, agent: &str, message: &str, thread: Option<&str>) -> Result<Events> {
        let mut body = json!({ "messages": message });
        if let Some(thread) = thread {
            body["memory"] = json!({ "thread": thread, "resource": self.common.resource });
        }
        self.target.events(&format!("/agents/{agent}/stream"), &body).await
    }
}
