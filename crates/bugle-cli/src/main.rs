//! The `bugle` command: serves agents from files, and talks to servers.

mod agents;
mod args;
mod commands;
mod demo;
mod env;
mod exit;
mod log;
mod out;
mod project;
mod render;
mod screen;
mod serving;
mod settings;
mod text;
mod webhooks;

use std::{io::Write as _, process::ExitCode};

use clap::{Parser as _, error::ErrorKind};

use crate::{
    args::{Cli, Command},
    env::Env,
    exit::Failure,
    out::Out,
};

/// A run makes and frees some thousands of small values; this takes a tenth off its processor time (docs/performance.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    report_panics();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let env = Env::of_process();
    let out = Out::new(cli.common.json, cli.common.color, &env);
    let (json, verbose) = (cli.common.json, cli.common.verbose > 0);
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            return end(&Failure::new(exit::NO, format!("no threads can be started: {error}")), json, verbose);
        }
    };
    let common = cli.common.clone();
    let result = runtime.block_on(async {
        let done = tokio::spawn(async move {
            match cli.command {
                Command::Dev(dev) => serving::dev(dev, common, env, out).await,
                Command::Serve(serve) => serving::serve(serve, common, env, out).await,
                other => commands::run(other, common, env, out).await,
            }
        });
        done.await.unwrap_or_else(|_| Err(Failure::new(exit::BUG, "a bug in bugle ended this command")))
    });
    // A blocking read of standard input must not keep the process.
    runtime.shutdown_background();
    match result {
        Ok(code) => ExitCode::from(code),
        Err(failure) => end(&failure, json, verbose),
    }
}

fn end(failure: &Failure, json: bool, verbose: bool) -> ExitCode {
    // Without stderr there is nobody to tell.
    let _ = std::io::stderr().lock().write_all(failure.render(json, verbose).as_bytes());
    ExitCode::from(failure.code)
}

fn usage(error: &clap::Error) -> ExitCode {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let json = std::env::args_os().take_while(|arg| arg != "--").any(|arg| arg == "--json");
    if json {
        let text = error.to_string();
        let what = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
        return end(&Failure::usage(what).hint("see bugle --help"), true, false);
    }
    let _ = error.print();
    ExitCode::from(exit::USAGE)
}

/// A panic is a bug: it says so, and where to report it (CLI §8, code 70).
fn report_panics() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        default(info);
        let _ = writeln!(
            std::io::stderr(),
            "this is a bug; please report it with the lines above at {}/issues",
            env!("CARGO_PKG_REPOSITORY")
        );
    }));
}
