//! How many of the bytes that were written to a socket have arrived: what the system holds back to
//! send later says nothing about the network, and it holds back more and more.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

#[cfg(any(target_os = "linux", target_vendor = "apple"))]
use nix::{getsockopt_impl, libc, sockopt_impl};

/// What has become of the bytes that were written to a socket, as of the last write or flush.
#[derive(Debug, Default)]
pub struct Progress {
    arrived: AtomicU64,
    is_held_back: AtomicBool,
}

impl Progress {
    /// Bytes that the system of the peer has; encrypted ones with TLS. It never goes back.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    /// True if the system holds bytes back that the link does not take yet. Those that have been sent and are only far
    /// away are not: a long way is not a slow one.
    #[must_use]
    pub fn is_held_back(&self) -> bool {
        self.is_held_back.load(Ordering::Relaxed)
    }

    /// So many have arrived, and others are held back or not.
    pub fn set(&self, arrived: u64, is_held_back: bool) {
        self.arrived.fetch_max(arrived, Ordering::Relaxed);
        self.is_held_back.store(is_held_back, Ordering::Relaxed);
    }
}

/// Whoever writes to the socket.
#[derive(Debug, Default)]
pub struct Arrived {
    written: u64,
    known: Arc<Progress>,
}

impl Arrived {
    /// Where it is said.
    pub fn known(&self) -> Arc<Progress> {
        Arc::clone(&self.known)
    }

    /// What the socket has taken.
    pub const fn written(&self) -> u64 {
        self.written
    }

    /// The socket has taken so many bytes.
    pub const fn wrote(&mut self, bytes: usize) {
        self.written += bytes as u64;
    }

    /// Asks the system. Where it does not tell, what it has taken counts as arrived.
    pub fn update(&self, socket: &impl AsFd) {
        let (arrived, is_held_back) =
            acknowledged(socket, self.written).unwrap_or((self.written, false));
        self.known.set(arrived, is_held_back);
    }
}

/// Bytes of the largest segment of a connection.
#[cfg(any(target_os = "linux", target_vendor = "apple"))]
pub fn segment_bytes(socket: &impl AsFd) -> Option<u32> {
    nix::sys::socket::getsockopt(socket, nix::sys::socket::sockopt::TcpMaxSeg).ok()
}

/// Elsewhere it is not known.
#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
pub fn segment_bytes(_: &impl AsFd) -> Option<u32> {
    None
}

/// The beginning of `tcp_info` as `linux/tcp.h` has it since Linux 4.6, which is all that is asked for.
#[cfg(target_os = "linux")]
type TcpInfo = [u64; 19];

#[cfg(target_os = "linux")]
sockopt_impl!(
    /// `TCP_INFO`.
    Info,
    GetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    TcpInfo
);

/// Bytes that the peer's system has acknowledged (`tcpi_bytes_acked`), and whether there are some that have not been
/// sent (`tcpi_notsent_bytes`).
#[cfg(target_os = "linux")]
fn acknowledged(socket: &impl AsFd, _: u64) -> Option<(u64, bool)> {
    let info = nix::sys::socket::getsockopt(socket, Info).ok()?;
    let bytes_acked = info[15];
    let [a, b, c, d, ..] = u64::to_ne_bytes(info[18]);
    let notsent_bytes = u32::from_ne_bytes([a, b, c, d]);
    // gVisor answers with zeros; elsewhere something has been acknowledged long before KV is sent.
    (bytes_acked > 0).then_some((bytes_acked, notsent_bytes > 0))
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(libc::tcp_info, tcpi_bytes_acked) == 15 * size_of::<u64>());
    assert!(offset_of!(libc::tcp_info, tcpi_notsent_bytes) == 18 * size_of::<u64>());
};

/// The beginning of `tcp_connection_info` as `netinet/tcp.h` has it since macOS 10.11, which is all that is asked for.
/// Behind it are bit fields, which `libc` takes for words.
#[cfg(target_vendor = "apple")]
type TcpInfo = [u32; 9];

#[cfg(target_vendor = "apple")]
sockopt_impl!(
    /// `TCP_CONNECTION_INFO`.
    Info,
    GetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_CONNECTION_INFO,
    TcpInfo
);

/// Bytes that the peer's system has acknowledged, and whether there are more than can have been sent: the send buffer
/// holds both kinds (`tcpi_snd_sbbytes`), and no more than a window of them is on its way.
#[cfg(target_vendor = "apple")]
fn acknowledged(socket: &impl AsFd, written: u64) -> Option<(u64, bool)> {
    let info = nix::sys::socket::getsockopt(socket, Info).ok()?;
    let [.., snd_cwnd, snd_wnd, queued] = info;
    if snd_cwnd == 0 {
        // Closed; what became of the rest is not told.
        return Some((0, false));
    }
    let window = snd_cwnd.min(snd_wnd);
    Some((written.saturating_sub(u64::from(queued)), queued > window))
}

#[cfg(target_vendor = "apple")]
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(libc::tcp_connection_info, tcpi_snd_cwnd) == size_of::<[u32; 6]>());
    assert!(offset_of!(libc::tcp_connection_info, tcpi_snd_wnd) == size_of::<[u32; 7]>());
    assert!(offset_of!(libc::tcp_connection_info, tcpi_snd_sbbytes) == size_of::<[u32; 8]>());
};

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn acknowledged(_: &impl AsFd, _: u64) -> Option<(u64, bool)> {
    None
}
