use std::net::SocketAddr;

use bugle_bench::{model, script};
use clap::Parser;

/// A deterministic OpenAI-compatible model server, scripted by the request itself.
///
/// Serves POST /v1/chat/completions and POST /v1/responses (streaming and not), GET /stats,
/// POST /reset, GET /requests (the recorded request bodies) and GET /hello.
#[derive(Parser)]
#[command(version, after_help = script::HELP)]
struct Args {
    /// Address to listen on; port 0 picks a free one. The address is printed once it accepts.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Request bodies to keep for GET /requests; the oldest go first.
    #[arg(long, default_value_t = 256)]
    record: usize,
    /// Worker threads.
    #[arg(long, default_value_t = 1)]
    threads: usize,
}

fn main() -> std::io::Result<()> {
    let args = Args::parse();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(args.threads.max(1)).enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(args.listen).await?;
        println!("fake-model listening on http://{}", listener.local_addr()?);
        let until = async {
            let _ = tokio::signal::ctrl_c().await;
        };
        model::serve(listener, args.record, until).await
    })
}
