//! A link of limited rate and with a delay, inside this process: passes connections on.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, sleep_until};

use crate::link::Link;

/// Bytes that are passed on at once at most.
const PIECE: usize = 64 << 10;
/// Pieces that may be on their way.
const PIECES: usize = 256;
/// A piece takes at most this long at the rate of the link, so that a slow link does not stutter.
const PIECE_TIME: Duration = Duration::from_millis(5);
/// The smallest piece.
const SMALLEST_PIECE: usize = 1460;
/// How far the rate may be ahead or behind for a while.
const SLACK: Duration = Duration::from_millis(2);
/// How late timers of the runtime may wake.
const TIMER: Duration = Duration::from_millis(2);

/// The link. Dropping it breaks all connections over it.
pub struct Relay {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Relay {
    /// A link to `target`, entered at its address.
    ///
    /// # Errors
    /// If there is no listener to be had.
    pub async fn start(link: &Link, target: SocketAddr) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((target.ip(), 0)).await?;
        Ok(Self {
            address: listener.local_addr()?,
            accepting: tokio::spawn(accept(listener, link.clone(), target)),
        })
    }

    /// Where to connect to instead of the target.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, link: Link, target: SocketAddr) {
    while let Ok((from, _)) = listener.accept().await {
        let link = link.clone();
        tokio::spawn(async move {
            if let Err(error) = pass(from, &link, target).await {
                tracing::debug!(%error, "a connection over the link ended");
            }
        });
    }
}

async fn pass(from: TcpStream, link: &Link, target: SocketAddr) -> std::io::Result<()> {
    let to = TcpStream::connect(target).await?;
    from.set_nodelay(true)?;
    to.set_nodelay(true)?;
    let (from_read, from_write) = from.into_split();
    let (to_read, to_write) = to.into_split();
    tokio::try_join!(
        one_way(from_read, to_write, link),
        one_way(to_read, from_write, link)
    )?;
    Ok(())
}

/// What is read leaves at the rate of the link, one piece after the other, and arrives later by its
/// delay.
async fn one_way(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    link: &Link,
) -> std::io::Result<()> {
    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    let bytes_per_second = link.bits_per_second as f64 / 8.0;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bounded below"
    )]
    let piece = (bytes_per_second * PIECE_TIME.as_secs_f64()) as usize;
    let piece = piece.clamp(SMALLEST_PIECE, PIECE);
    let delay = link.one_way();
    let (sent, mut arriving) = mpsc::channel::<(Instant, Vec<u8>)>(PIECES);
    let leaving = async move {
        let mut free = Instant::now();
        loop {
            let mut bytes = vec![0; piece];
            let n = from.read(&mut bytes).await?;
            if n == 0 {
                return Ok(());
            }
            bytes.truncate(n);
            #[expect(clippy::cast_precision_loss, reason = "at most a piece")]
            let takes = Duration::from_secs_f64(n as f64 / bytes_per_second);
            let now = Instant::now();
            free = free.max(now.checked_sub(SLACK).unwrap_or(now)) + takes;
            // No more is taken from the sender than the link carries.
            if free > now + SLACK {
                wait_until(free).await;
            }
            if sent.send((free.max(now) + delay, bytes)).await.is_err() {
                return Ok(());
            }
        }
    };
    let arriving = async {
        while let Some((due, bytes)) = arriving.recv().await {
            wait_until(due).await;
            to.write_all(&bytes).await?;
        }
        to.shutdown().await
    };
    let (left, arrived): (std::io::Result<()>, _) = tokio::join!(leaving, arriving);
    left.and(arrived)
}

/// Waits as exactly as the system can: timers of the runtime wake by milliseconds, which are more than the delay of a
/// link in one room.
async fn wait_until(due: Instant) {
    let left = move || due.saturating_duration_since(Instant::now());
    if left() > TIMER {
        sleep_until(due - TIMER).await;
    }
    if !left().is_zero() {
        // Not even the end of this process waits for it for long.
        let _ = spawn_blocking(move || std::thread::sleep(left())).await;
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    /// Sends so many bytes over a link and back; gives the time.
    async fn there_and_back(link: &str, bytes: usize) -> Duration {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .expect("listener");
        let target = listener.local_addr().expect("address");
        let echo = tokio::spawn(async move {
            let (mut tcp, _) = listener.accept().await.expect("a connection");
            let (mut read, mut write) = tcp.split();
            tokio::io::copy(&mut read, &mut write)
                .await
                .expect("an echo");
        });
        let link = link.parse().expect("a link");
        let relay = Relay::start(&link, target).await.expect("a relay");
        let mut tcp = TcpStream::connect(relay.address())
            .await
            .expect("connected");
        let start = Instant::now();
        let (mut read, mut write) = tcp.split();
        let sent: Vec<u8> = (0..bytes)
            .map(|i| u8::try_from(i % 251).expect("small"))
            .collect();
        let writing = async {
            write.write_all(&sent).await.expect("sent");
            write.shutdown().await.expect("ended");
        };
        let mut back = Vec::new();
        let (_, n) = tokio::join!(writing, read.read_to_end(&mut back));
        n.expect("read");
        assert!(back == sent, "other bytes came back");
        echo.await.expect("the echo ended");
        start.elapsed()
    }

    #[tokio::test]
    async fn a_link_has_its_rate_and_its_delay() {
        // 100 kB take 80 ms, with which both ways may be 2 ms ahead, and the way there and back 40 ms, at least.
        let took = there_and_back("10mbit,40ms", 100_000).await;
        assert!(took >= Duration::from_millis(116), "{took:?}");
        // What is far below the rate has all of the delay, short as it is.
        let took = there_and_back("10gbit,1ms", 10).await;
        assert!(took >= Duration::from_millis(1), "{took:?}");
    }
}
