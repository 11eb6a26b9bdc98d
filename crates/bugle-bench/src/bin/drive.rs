use std::process::ExitCode;

use bugle_bench::scenario::{Common, Scenario};
use clap::Parser;

/// A load driver for a server with the Mastra-compatible agent API.
///
/// The server's agents must use the fake model: messages carry its scripts. Each scenario prints
/// one JSON line (`idle`: one for each level): times in microseconds as count, p50, p90, p99 and
/// max, rates per second, and with --pid the memory and processor time of the server. The exit
/// status is 1 when any line has errors.
#[derive(Parser)]
#[command(version)]
struct Cli {
    #[command(flatten)]
    common: Common,
    /// Times to run the scenario; every run prints its own line
    #[arg(long, default_value_t = 1)]
    repeat: u32,
    #[command(subcommand)]
    scenario: Scenario,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let mut failed = false;
    for scenario in cli.scenario.expand() {
        for _ in 0..cli.repeat {
            let emit = |report: bugle_bench::report::Report| {
                failed |= report.failed();
                println!("{}", report.line());
            };
            scenario.run(&cli.common, emit).await;
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}
