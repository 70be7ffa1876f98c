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
    is_under_way: AtomicBool,
}

impl Progress {
    /// Bytes that the system of the peer has; encrypted ones with TLS. It never goes back.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::Relaxed)
    }

    /// True if further bytes were written that the system of the peer does not have.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.is_under_way.load(Ordering::Relaxed)
    }

    /// So many have arrived, and others have not if it `is_under_way`.
    pub fn set(&self, arrived: u64, is_under_way: bool) {
        self.arrived.fetch_max(arrived, Ordering::Relaxed);
        self.is_under_way.store(is_under_way, Ordering::Relaxed);
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

    /// The socket has taken so many bytes.
    pub const fn wrote(&mut self, bytes: usize) {
        self.written += bytes as u64;
    }

    /// Asks the system. Where it does not tell, what it has taken counts as arrived.
    pub fn update(&self, socket: &impl AsFd) {
        let (arrived, is_under_way) =
            acknowledged(socket, self.written).unwrap_or((self.written, false));
        self.known.set(arrived, is_under_way);
    }
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

/// Bytes that the peer's system has acknowledged (`tcpi_bytes_acked`), and whether there are packets that it has not
/// (`tcpi_unacked`), or bytes that wait to be sent (`tcpi_notsent_bytes`).
#[cfg(target_os = "linux")]
fn acknowledged(socket: &impl AsFd, _: u64) -> Option<(u64, bool)> {
    let info = nix::sys::socket::getsockopt(socket, Info).ok()?;
    let bytes_acked = info[15];
    let [unacked, notsent_bytes] = [3, 18].map(|at| {
        let [a, b, c, d, ..] = u64::to_ne_bytes(info[at]);
        u32::from_ne_bytes([a, b, c, d])
    });
    // gVisor answers with zeros; elsewhere something has been acknowledged long before KV is sent.
    (bytes_acked > 0).then_some((bytes_acked, unacked > 0 || notsent_bytes > 0))
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(libc::tcp_info, tcpi_unacked) == 3 * size_of::<u64>());
    assert!(offset_of!(libc::tcp_info, tcpi_bytes_acked) == 15 * size_of::<u64>());
    assert!(offset_of!(libc::tcp_info, tcpi_notsent_bytes) == 18 * size_of::<u64>());
};

#[cfg(target_vendor = "apple")]
sockopt_impl!(
    /// `SO_NWRITE`: bytes that have not been acknowledged.
    Queued,
    GetOnly,
    libc::SOL_SOCKET,
    libc::SO_NWRITE,
    i32
);

#[cfg(target_vendor = "apple")]
fn acknowledged(socket: &impl AsFd, written: u64) -> Option<(u64, bool)> {
    let queued = nix::sys::socket::getsockopt(socket, Queued).ok()?;
    let queued = u64::try_from(queued).ok()?;
    Some((written.saturating_sub(queued), queued > 0))
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn acknowledged(_: &impl AsFd, _: u64) -> Option<(u64, bool)> {
    None
}
