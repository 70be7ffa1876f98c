//! Bytes of the largest segment of a TCP connection, where the system tells.

use std::os::fd::AsFd;

/// Bytes that one packet carries of what is sent.
#[cfg(any(target_os = "linux", target_vendor = "apple"))]
pub fn segment_bytes(socket: &impl AsFd) -> Option<u32> {
    nix::sys::socket::getsockopt(socket, nix::sys::socket::sockopt::TcpMaxSeg).ok()
}

/// Elsewhere it is not known.
#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
pub fn segment_bytes(_: &impl AsFd) -> Option<u32> {
    None
}
