//! The server that `conformance/` drives, and `bugle-bench` too: agents and tools as their README files ask, all on the
//! model at `MODEL_URL`.
//!
//! | Variable | |
//! |---|---|
//! | `PORT`, `HOST` | where to listen; 4111 on 127.0.0.1 |
//! | `MODEL_URL` | base of an OpenAI-compatible API, ends in `/v1`; required |
//! | `BUGLE_STORAGE` | storage URL; a fresh temporary file by default |
//! | `BUGLE_PUBSUB` | `memory:` |
//! | `CONFORMANCE_AUTH` | `1`: tokens of alice, bob and mallory |
//!
//! Exits with 2 when it is told something it cannot do, with 1 when the port is taken or the store cannot be opened,
//! with 0 after SIGTERM or SIGINT.

mod agents;
mod tools;

use std::{env, process::ExitCode, sync::Arc, time::Duration};

use bugle::Bugle;
use bugle_models::ChatModel;
use bugle_server::{Auth, ServerOptions, Token, router, serve};
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
};
use tokio_util::sync::CancellationToken;

const GRACE: Duration = Duration::from_secs(2);

/// As in the `bugle` command.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// An exit code and why.
type Failure = (u8, String);

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    match run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err((code, why)) => {
            eprintln!("conformance_target: {why}");
            ExitCode::from(code)
        }
    }
}

async fn run() -> Result<(), Failure> {
    let host = variable("HOST").unwrap_or_else(|| "127.0.0.1".into());
    let port = match variable("PORT") {
        Some(text) => text.parse::<u16>().map_err(|_| (2, format!("PORT={text} is no port; give 0 to 65535")))?,
        None => 4111,
    };
    let model_url = variable("MODEL_URL").ok_or_else(|| {
        (2, "MODEL_URL is missing; give the base of a chat model, such as http://127.0.0.1:4100/v1".into())
    })?;
    match variable("BUGLE_PUBSUB").as_deref() {
        None | Some("memory:") => {}
        Some(other) => return Err((2, format!("BUGLE_PUBSUB={other} is not supported here; only memory: is"))),
    }
    // Removed at the end; the store keeps files beside the one it is told.
    let directory = TemporaryDirectory::new().map_err(|error| (1, format!("no temporary directory: {error}")))?;
    let fresh = || format!("file:{}", directory.0.join("conformance.db").display());
    let storage_url = variable("BUGLE_STORAGE").unwrap_or_else(fresh);
    let listener = TcpListener::bind((host.as_str(), port)).await.map_err(|error| {
        (1, format!("cannot listen on {host}:{port}: {error}; stop what does, or give another PORT"))
    })?;
    let bugle = runtime(&model_url, &storage_url).await.map_err(|error| (1, error.to_string()))?;

    let stop = CancellationToken::new();
    tokio::spawn(stop_on_signal(stop.clone()));
    let app = router(bugle.clone(), options());
    eprintln!("conformance_target: listening on http://{host}:{port}, storage {}", bugle.storage().describe());
    serve(listener, app, bugle, stop, GRACE).await.map_err(|error| (1, error.to_string()))
}

async fn runtime(model_url: &str, storage_url: &str) -> Result<Bugle, bugle::Error> {
    let mut builder = Bugle::builder().shared_storage(bugle_storage::open(storage_url)?);
    let model = ChatModel::builder(model_url, "scripted").provider("scripted").api_key("conformance").build();
    for agent in agents::all(Arc::new(model))? {
        builder = builder.agent(agent);
    }
    builder.build().await
}

fn options() -> ServerOptions {
    let token = |user: &str, allow| {
        Token::builder().secret(format!("token-{user}")).user(user).resource(user).allow(allow).build()
    };
    let auth = if variable("CONFORMANCE_AUTH").is_some() {
        Auth::Tokens(vec![token("alice", true), token("bob", true), token("mallory", false)])
    } else {
        Auth::None
    };
    ServerOptions::builder().auth(auth).build()
}

/// A variable that is set to something.
fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The first signal drains, the second ends the process (CLI-072, CLI-073).
async fn stop_on_signal(stop: CancellationToken) {
    let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return;
    };
    loop {
        let code = tokio::select! {
            _ = terminate.recv() => 143,
            _ = interrupt.recv() => 130,
        };
        if stop.is_cancelled() {
            std::process::exit(code);
        }
        stop.cancel();
    }
}

/// A directory of this process alone, removed when dropped.
struct TemporaryDirectory(std::path::PathBuf);

impl TemporaryDirectory {
    fn new() -> std::io::Result<Self> {
        let path = env::temp_dir().join(format!("bugle-conformance-{}", bugle::RunId::random()));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
