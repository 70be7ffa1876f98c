//! When to stop: Ctrl-C and SIGTERM, or the end of standard input.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::sync::CancellationToken;

/// Exit status of a process that a signal ended, as shells report it for Ctrl-C.
pub const INTERRUPTED: u8 = 130;

/// Completes when the process is told to stop. From the first call on, the first signal only asks for
/// an orderly end; the next one ends the process at once.
pub async fn signal() {
    // Without a handler a signal ends the process, which is a stop too.
    let Ok(mut signals) = Signals::listen() else {
        return std::future::pending().await;
    };
    signals.next().await;
    tokio::spawn(async move {
        signals.next().await;
        // Without what runs at an end: an engine may be computing, and its library's destructors would crash beside it.
        signal_hook::low_level::exit(i32::from(INTERRUPTED));
    });
}

/// From now on a terminal that goes away does not end this process, as is usual for a server. Needs a Tokio runtime.
pub fn ignore_hangup() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        // The handler stays when the stream is dropped. Without one, a hangup ends the process, which is a stop too.
        let _ = signal(SignalKind::hangup());
    }
}

/// Ctrl-C and SIGTERM. None that comes after [`Signals::listen`] is missed.
#[cfg(unix)]
pub struct Signals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    /// From now on.
    ///
    /// # Errors
    /// If the system does not permit it.
    pub fn listen() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// The next one; true if it is Ctrl-C.
    pub async fn next(&mut self) -> bool {
        tokio::select! {
            _ = self.interrupt.recv() => true,
            _ = self.terminate.recv() => false,
        }
    }
}

/// Ctrl-C.
#[cfg(windows)]
pub struct Signals(tokio::signal::windows::CtrlC);

#[cfg(windows)]
impl Signals {
    /// From now on.
    ///
    /// # Errors
    /// If the system does not permit it.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Self(tokio::signal::windows::ctrl_c()?))
    }

    /// True, as it is always Ctrl-C.
    pub async fn next(&mut self) -> bool {
        self.0.recv().await;
        true
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
