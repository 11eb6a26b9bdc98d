//! `bugle dev` and `bugle serve`: from files to a server that drains (CLI-063, CLI-072).

mod announce;
mod plan;
mod signals;

use std::{
    io::IsTerminal as _,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use bugle::{Bugle, time::Timestamp};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use tokio_util::sync::CancellationToken;

use self::plan::Plan;
use crate::{
    args::{Common, Dev, Listen, Serve},
    env::Env,
    exit::{self, Failure},
    log,
    out::{Out, Style},
    project::{self, ServerFile},
    settings::{Problem, Settings},
};

/// `bugle dev`.
pub(crate) async fn dev(args: Dev, common: Common, env: Env, out: Out) -> Result<u8, Failure> {
    let directory = directory(args.directory.as_deref(), &common, &env)?;
    let env = match std::fs::read_to_string(directory.join(".env")) {
        Ok(text) => with_file(&env, ".env", &text)?,
        Err(_) => env,
    };
    let settings = settings(&directory, &common, &env, &args.listen)?;
    log::of_server(&settings, &common_of_dev(&common))?;
    let plan = Plan::of_dev(settings, env)?;
    run(plan, &common, out, true).await
}

/// `bugle serve`.
pub(crate) async fn serve(args: Serve, common: Common, env: Env, out: Out) -> Result<u8, Failure> {
    let directory = directory(args.directory.as_deref(), &common, &env)?;
    let env = match &args.env_file {
        Some(path) => {
            let shown = path.display().to_string();
            let text = std::fs::read_to_string(path)
                .map_err(|error| Failure::usage(format!("{shown} cannot be read: {error}")))?;
            with_file(&env, &shown, &text)?
        }
        None => env,
    };
    let settings = settings(&directory, &common, &env, &args.listen)?;
    let plan = Plan::of_serve(settings, env)?;
    if args.check {
        for (key, value, origin) in plan.settings.effective() {
            if out.json {
                out.json_line(&bugle::json::json!({"key": key, "value": value, "origin": origin}));
            } else {
                out.line(&format!("{key} = {value}  ({origin})"));
            }
        }
        for served in &plan.agents {
            let (agent, model) = (served.agent.id(), &served.model);
            let tools: Vec<&str> = served.agent.tools().keys().map(String::as_str).collect();
            if out.json {
                let signals = &served.signals;
                out.json_line(
                    &bugle::json::json!({"agent": agent, "model": model, "tools": tools, "signals": signals}),
                );
            } else {
                let list = |name: &str, all: &[&str]| match all {
                    [] => String::new(),
                    all => format!("; {name} {}", all.join(", ")),
                };
                let signals: Vec<&str> = served.signals.iter().map(String::as_str).collect();
                out.line(&format!("agent {agent}: {model}{}{}", list("tools", &tools), list("signals", &signals)));
            }
        }
        for warning in plan.warnings() {
            out.note(Style::Yellow, &format!("! {warning}"));
        }
        return Ok(0);
    }
    log::of_server(&plan.settings, &common)?;
    for warning in plan.warnings() {
        tracing::warn!("{warning}");
    }
    run(plan, &common, out, false).await
}

/// `dev` talks to a person: its log holds warnings only, unless asked.
fn common_of_dev(common: &Common) -> Common {
    let quiet = if common.verbose == 0 && common.quiet == 0 { 1 } else { common.quiet };
    Common { quiet, ..common.clone() }
}

fn directory(given: Option<&Path>, common: &Common, env: &Env) -> Result<PathBuf, Failure> {
    let start = std::env::current_dir()
        .map_err(|error| Failure::usage(format!("the current directory cannot be read: {error}")))?;
    let given = given.or(common.directory.as_deref());
    project::find(given, &start, env.get("HOME").map(Path::new))
}

fn with_file(env: &Env, shown: &str, text: &str) -> Result<Env, Failure> {
    env.with_file(text).map_err(|lines| {
        Failure::files(lines.into_iter().map(|line| Problem {
            place: format!("{shown}:{line}:1"),
            message: "no assignment; write NAME=value".into(),
        }))
    })
}

fn settings(directory: &Path, common: &Common, env: &Env, listen: &Listen) -> Result<Settings, Failure> {
    let mut settings = Settings::load(directory, common.config.as_deref(), env).map_err(Failure::files)?;
    let flag = match (&listen.listen, listen.port) {
        (Some(address), _) => Some(("--listen", address.clone())),
        (None, Some(port)) => {
            let (host, _) = settings
                .text("server.listen")
                .and_then(crate::settings::value::address)
                .unwrap_or_else(|| ("127.0.0.1".into(), 0));
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            Some(("--port", format!("{host}:{port}")))
        }
        (None, None) => None,
    };
    if let Some((flag, text)) = flag {
        settings.set_flag("server.listen", flag, &text).map_err(|problem| Failure::files([problem]))?;
    }
    Ok(settings)
}

async fn run(plan: Plan, common: &Common, out: Out, is_dev: bool) -> Result<u8, Failure> {
    let listener = bind(&plan).await?;
    let address = listener.local_addr().map_err(|error| Failure::usage(error.to_string()))?;
    let storage = plan.open_storage().await?;
    let storage_name = plan.settings.text("storage.url").unwrap_or_default().to_owned();
    let mut builder = Bugle::builder().shared_storage(storage);
    if let Some(ttl) = plan.settings.duration("lease.ttl") {
        builder = builder.lease_ttl(ttl);
    }
    builder = builder.notifications(plan.notifications());
    for served in &plan.agents {
        builder = builder.agent(served.agent.clone());
    }
    for (agent, provider) in &plan.webhooks {
        builder = builder.provider(agent.clone(), provider.clone());
    }
    let bugle = builder.build().await.map_err(|error| Failure::usage(error.to_string()).caused_by(&error))?;
    let router = bugle_server::router(bugle.clone(), plan.server_options()?);
    let stop = CancellationToken::new();
    signals::listen(stop.clone(), is_dev)
        .map_err(|error| Failure::new(exit::BUG, format!("signals cannot be listened to: {error}")))?;
    let grace = plan.settings.duration("server.drain-timeout").unwrap_or(Duration::from_secs(25));
    let server = tokio::spawn(bugle_server::serve(listener, router, bugle, stop.clone(), grace));

    // Nothing is printed as ready before it is.
    let reachable = reachable(address);
    // One that was told to stop before it was ready only has to end in order (CLI-072).
    if answer(reachable, "/health", Duration::from_secs(5)).await.is_none() && !stop.is_cancelled() {
        return Err(Failure::new(exit::BUG, format!("the server on {address} does not answer")));
    }
    let prefix = plan.settings.text("server.prefix").unwrap_or("/api");
    let origin = format!("http://{reachable}");
    let url = if prefix == "/api" { origin.clone() } else { format!("{origin}{prefix}") };
    let file = ServerFile { url, pid: std::process::id(), started_at: Timestamp::now() };
    let guard = match file.write(&plan.settings.directory) {
        Ok(guard) => Some(guard),
        Err(error) => {
            out.note(Style::Yellow, &format!("! .bugle/server.json cannot be written: {error}; clients need --server"));
            None
        }
    };
    if stop.is_cancelled() {
        out.note(Style::Yellow, "stopped before it was ready");
    } else if is_dev && !out.json {
        announce::dev(&plan, &origin, &storage_name, out, common.quiet > 0);
    } else if out.json || !std::io::stdout().is_terminal() {
        out.json_line(&announce::json(&plan, &origin, &storage_name));
        if is_dev {
            announce::warnings(&plan, out);
        }
    } else {
        out.line(&format!("listening on {origin}"));
    }
    let ended = server.await;
    drop(guard);
    match ended {
        Ok(Ok(())) => Ok(0),
        Ok(Err(error)) => Err(Failure::new(exit::UNAVAILABLE, format!("the server ended: {error}"))),
        Err(_) => Err(Failure::new(exit::BUG, "a bug in bugle ended the server")),
    }
}

/// Where a listener can be reached from this machine.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => SocketAddr::from(([127, 0, 0, 1], v4.port())),
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => {
            SocketAddr::new(std::net::Ipv6Addr::LOCALHOST.into(), v6.port())
        }
        other => other,
    }
}

async fn bind(plan: &Plan) -> Result<TcpListener, Failure> {
    let (host, port) = plan.address();
    match TcpListener::bind((host, port)).await {
        Ok(listener) => Ok(listener),
        Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {
            let holder = holder(plan, host, port).await;
            Err(Failure::usage(format!("{host}:{port} is in use{holder}")).hint("take a free port with --port 0"))
        }
        Err(error) => Err(Failure::usage(format!("cannot listen on {host}:{port}: {error}"))
            .hint("give another address with --listen")),
    }
}

/// Who holds an address: ` by a Bugle (pid 7)`, or nothing if that cannot be told.
async fn holder(plan: &Plan, host: &str, port: u16) -> String {
    let Ok(mut addresses) = tokio::net::lookup_host((host, port)).await else { return String::new() };
    let Some(address) = addresses.next().map(reachable) else { return String::new() };
    let own = ServerFile::live(&plan.settings.directory).filter(|file| file.url.ends_with(&format!(":{port}")));
    let path = format!("{}/openapi.json", plan.settings.text("server.prefix").unwrap_or("/api"));
    let is_bugle = answer(address, &path, Duration::from_millis(500))
        .await
        .is_some_and(|body| body.contains("\"title\":\"Bugle\""));
    match (own, is_bugle) {
        (Some(file), _) => format!(" by the Bugle of this project (pid {})", file.pid),
        (None, true) => " by a Bugle".into(),
        (None, false) => String::new(),
    }
}

/// The body of a `GET` that is answered with 200 in time.
async fn answer(address: SocketAddr, path: &str, limit: Duration) -> Option<String> {
    let ask = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut bytes = Vec::new();
        stream.take(1 << 20).read_to_end(&mut bytes).await.ok()?;
        let text = String::from_utf8_lossy(&bytes).into_owned();
        text.starts_with("HTTP/1.1 200").then_some(text)
    };
    tokio::time::timeout(limit, ask).await.ok().flatten()
}
