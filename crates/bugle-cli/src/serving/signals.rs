//! The first SIGTERM or SIGINT drains, the second ends the process (CLI-072, CLI-073).

use std::io;

use tokio_util::sync::CancellationToken;

use crate::exit::{INTERRUPTED, TERMINATED};

/// Listens from now on. `stop` fires at the first signal.
#[cfg(unix)]
pub(super) fn listen(stop: CancellationToken, is_dev: bool) -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let mut hang_up = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        loop {
            let code = tokio::select! {
                _ = terminate.recv() => TERMINATED,
                _ = interrupt.recv() => INTERRUPTED,
                _ = hang_up.recv() => {
                    if is_dev {
                        TERMINATED // The terminal has gone.
                    } else {
                        tracing::warn!("SIGHUP: reloading is not in this version; nothing has changed");
                        continue;
                    }
                }
            };
            if stop.is_cancelled() {
                // The journal makes that safe; what was accepted is done by the next process.
                std::process::exit(i32::from(code));
            }
            tracing::info!("draining; a second signal ends at once");
            stop.cancel();
        }
    });
    Ok(())
}

/// Listens from now on. `stop` fires at the first Ctrl-C.
#[cfg(not(unix))]
pub(super) fn listen(stop: CancellationToken, _is_dev: bool) -> io::Result<()> {
    tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            if stop.is_cancelled() {
                std::process::exit(i32::from(INTERRUPTED));
            }
            tracing::info!("draining; Ctrl-C once more ends at once");
            stop.cancel();
        }
    });
    let _ = TERMINATED;
    Ok(())
}
