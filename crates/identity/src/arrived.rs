//! How many of the bytes that were written to a socket have arrived: what the system holds back to
//! send later says nothing about the network, and it holds back more and more.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[cfg(any(target_os = "linux", target_vendor = "apple"))]
use nix::{getsockopt_impl, libc, sockopt_impl};

/// A count for others to read. It never goes back.
#[derive(Debug, Default)]
pub struct Arrived {
    written: u64,
    known: Arc<AtomicU64>,
}

impl Arrived {
    /// Where the count is.
    pub fn known(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.known)
    }

    /// The socket has taken so many bytes.
    pub const fn wrote(&mut self, bytes: usize) {
        self.written += bytes as u64;
    }

    /// Asks the system. Where it does not tell, what it has taken counts as arrived.
    pub fn update(&self, socket: &impl AsFd) {
        let arrived = acknowledged(socket, self.written).unwrap_or(self.written);
        self.known.fetch_max(arrived, Ordering::Relaxed);
    }
}

/// The beginning of `tcp_info` as `linux/tcp.h` has it since Linux 4.1, which is all that is asked for.
#[cfg(target_os = "linux")]
type TcpInfo = [u64; 16];

#[cfg(target_os = "linux")]
sockopt_impl!(
    /// `TCP_INFO`.
    Info,
    GetOnly,
    libc::IPPROTO_TCP,
    libc::TCP_INFO,
    TcpInfo
);

/// Bytes that the peer's system has acknowledged (`tcpi_bytes_acked`).
#[cfg(target_os = "linux")]
fn acknowledged(socket: &impl AsFd, _: u64) -> Option<u64> {
    let info = nix::sys::socket::getsockopt(socket, Info).ok()?;
    let [.., bytes_acked] = info;
    // gVisor answers with zeros; elsewhere something has been acknowledged long before KV is sent.
    (bytes_acked > 0).then_some(bytes_acked)
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
const _: () = {
    let size = size_of::<TcpInfo>();
    assert!(std::mem::offset_of!(libc::tcp_info, tcpi_bytes_acked) + size_of::<u64>() == size);
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
fn acknowledged(socket: &impl AsFd, written: u64) -> Option<u64> {
    let queued = nix::sys::socket::getsockopt(socket, Queued).ok()?;
    Some(written.saturating_sub(u64::try_from(queued).ok()?))
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn acknowledged(_: &impl AsFd, _: u64) -> Option<u64> {
    None
}
