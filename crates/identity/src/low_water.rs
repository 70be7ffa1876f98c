//! How many bytes must have come before a reader is woken: a socket option that no library has ready.
//! nix's macro defines it as nix defines its own.

use std::os::fd::AsFd;

use nix::sys::socket::sockopt::RcvBuf;
use nix::sys::socket::{getsockopt, setsockopt};
use nix::{libc, setsockopt_impl, sockopt_impl};

use crate::limits::LOW_WATER;

sockopt_impl!(
    /// `SO_RCVLOWAT`.
    ReceiveLowWater,
    SetOnly,
    libc::SOL_SOCKET,
    libc::SO_RCVLOWAT,
    i32
);

/// The low-water mark of a socket.
#[derive(Debug)]
pub struct LowWater {
    bytes: usize,
}

impl Default for LowWater {
    fn default() -> Self {
        Self { bytes: 1 }
    }
}

impl LowWater {
    /// So many bytes are known to come: with one wake for each packet, being woken costs more than
    /// reading. Few bytes wake as they come.
    pub fn expect(&mut self, socket: &impl AsFd, bytes: usize) {
        let bytes = if bytes < LOW_WATER { 1 } else { LOW_WATER };
        if bytes == self.bytes {
            return;
        }
        self.bytes = bytes;
        let value = i32::try_from(bytes.min(most(socket))).unwrap_or(1);
        // Without it the reader is woken more often, and that is all.
        if let Err(error) = setsockopt(socket, ReceiveLowWater, &value) {
            tracing::debug!(%error, "SO_RCVLOWAT");
        }
    }
}

/// As much of a socket's buffer as is sure to fill, so that no mark is waited for in vain. Linux sees to
/// that by itself, and lets the buffer grow; macOS waits until the buffer is full.
fn most(socket: &impl AsFd) -> usize {
    if !cfg!(target_vendor = "apple") {
        return LOW_WATER;
    }
    getsockopt(socket, RcvBuf).map_or(1, |buffer| (buffer / 2).max(1))
}
