//! When to stop: Ctrl-C and SIGTERM, or the end of standard input.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;

/// Exit status of a process that a signal ended, as shells report it for Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// Completes when the process is told to stop. From the first call on, signals no longer end it.
pub async fn signal() {
    let interrupt = tokio::signal::ctrl_c();
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let Ok(mut terminate) = signal(SignalKind::terminate()) {
            tokio::select! {
                _ = interrupt => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    // Without a handler the signal ends the process, which is a stop too.
    if interrupt.await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Watches standard input, whose end tells a child that its parent is gone.
#[derive(Debug, Default)]
pub struct StdinWatch {
    ended: CancellationToken,
}

/// True once the process can end in an orderly way; before that the end of input ends it at once.
static ORDERLY: AtomicBool = AtomicBool::new(false);

impl StdinWatch {
    /// Starts to watch on a thread of its own, which nothing waits for.
    pub fn start() -> Self {
        let watch = Self::default();
        let ended = watch.ended.clone();
        std::thread::spawn(move || {
            let mut input = std::io::stdin().lock();
            let mut ignored = [0; 256];
            while input.read(&mut ignored).is_ok_and(|n| n > 0) {}
            if !ORDERLY.load(Ordering::SeqCst) {
                std::process::exit(0);
            }
            ended.cancel();
        });
        watch
    }

    /// Completes when standard input has ended.
    pub async fn ended(self) {
        ORDERLY.store(true, Ordering::SeqCst);
        self.ended.cancelled().await;
    }
}
