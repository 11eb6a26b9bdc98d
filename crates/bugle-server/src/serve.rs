//! Serving a router: small connections, and an orderly end (CLI-072).

use std::{io, time::Duration};

use axum::Router;
use bugle::Bugle;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// The most one connection buffers, in bytes: also the longest request head. Buffers start at 8 KiB and an idle
/// connection does not grow them.
const BUFFER_LEN_MAX: usize = 64 * 1024;

/// How long a connection may wait for, or take over, the head of a request.
const HEAD_TIME_MAX: Duration = Duration::from_mins(1);

/// How long connections may take to write what is ready once everything has ended.
const FAREWELL: Duration = Duration::from_secs(1);

/// Serves `router` on `listener` until `shutdown` fires, then drains within `grace`:
///
/// 1. `bugle` takes nothing new: input is refused with 503 and `Retry-After`, `/health` answers 503.
/// 2. Runs reach their next step boundary, or are left to the journal ([`Bugle::shutdown`]). The listener stays open.
/// 3. Event streams end without `[DONE]`, connections close, and this returns.
///
/// # Errors
/// None today; a listener that cannot accept for want of descriptors is logged and tried again.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    bugle: Bugle,
    shutdown: CancellationToken,
    grace: Duration,
) -> io::Result<()> {
    let (closing, killed) = (CancellationToken::new(), CancellationToken::new());
    let connections = TaskTracker::new();
    let drained = async {
        shutdown.cancelled().await;
        bugle.drain();
        bugle.shutdown(grace).await;
    };
    tokio::pin!(drained);
    loop {
        tokio::select! {
            biased;
            () = &mut drained => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(connection(stream, router.clone(), closing.clone(), killed.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            },
        }
    }
    drop(listener);
    closing.cancel();
    connections.close();
    if tokio::time::timeout(FAREWELL, connections.wait()).await.is_err() {
        killed.cancel();
        connections.wait().await;
    }
    Ok(())
}

async fn connection(stream: TcpStream, router: Router, closing: CancellationToken, killed: CancellationToken) {
    // Chunks are small and each counts.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "cannot set TCP_NODELAY");
    }
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME_MAX)
        .max_buf_size(BUFFER_LEN_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    tokio::pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = closing.cancelled() => {
            served.as_mut().graceful_shutdown();
            tokio::select! {
                ended = served.as_mut() => ended,
                () = killed.cancelled() => return,
            }
        }
    };
    if let Err(error) = ended {
        // A client that leaves is no event.
        tracing::debug!(%error, "connection ended");
    }
}
