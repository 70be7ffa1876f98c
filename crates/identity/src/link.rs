//! A connection between two machines.

use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::explain::explain;
use crate::peer::PeerId;
use crate::secured::{SecuredRead, SecuredWrite};

/// An open connection, both ways, with TLS or without. Over TLS what was written may wait in this
/// process until it is flushed.
pub struct Link {
    read: ReadHalf,
    write: WriteHalf,
    peer: Option<PeerId>,
}

/// The reading half of a [`Link`].
pub struct ReadHalf(Reading);

/// The writing half of a [`Link`]. Dropping it closes the connection's writing direction; only
/// `shutdown` tells the other side that this was meant.
pub struct WriteHalf(Writing);

enum Reading {
    Plain(OwnedReadHalf),
    Tls(Box<SecuredRead>),
}

enum Writing {
    Plain(OwnedWriteHalf),
    Tls(Box<SecuredWrite>),
}

impl Link {
    pub(crate) fn plain(tcp: TcpStream) -> Self {
        let (read, write) = tcp.into_split();
        Self {
            read: ReadHalf(Reading::Plain(read)),
            write: WriteHalf(Writing::Plain(write)),
            peer: None,
        }
    }

    pub(crate) fn tls(read: SecuredRead, write: SecuredWrite, peer: PeerId) -> Self {
        Self {
            read: ReadHalf(Reading::Tls(Box::new(read))),
            write: WriteHalf(Writing::Tls(Box::new(write))),
            peer: Some(peer),
        }
    }

    /// Who is at the other end; `None` without TLS.
    #[must_use]
    pub fn peer(&self) -> Option<&PeerId> {
        self.peer.as_ref()
    }

    /// True if the connection is encrypted and both ends have proved who they are.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        matches!(self.read.0, Reading::Tls(_))
    }

    /// The TCP socket below.
    #[must_use]
    pub fn tcp(&self) -> &TcpStream {
        match &self.read.0 {
            Reading::Plain(tcp) => tcp.as_ref(),
            Reading::Tls(tls) => tls.tcp(),
        }
    }

    /// The address of the other end.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.tcp().peer_addr()
    }

    /// Both directions, for use in two tasks. They do not wait for each other.
    #[must_use]
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        (self.read, self.write)
    }
}

#[cfg(test)]
impl Link {
    pub(crate) fn change_keys_after(&mut self, records: u64) {
        if let Writing::Tls(write) = &mut self.write.0 {
            write.change_keys_after(records);
        }
    }

    pub(crate) fn keys_seen(&self) -> u32 {
        match &self.read.0 {
            Reading::Tls(read) => read.updates(),
            Reading::Plain(_) => 0,
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("peer", &self.peer)
            .field("tcp", self.tcp())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ReadHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadHalf").finish_non_exhaustive()
    }
}

impl fmt::Debug for WriteHalf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriteHalf").finish_non_exhaustive()
    }
}

/// Says what a failure of TLS means: a peer refuses a certificate only after the handshake, so that
/// it shows at the first byte that is read.
fn explained<T>(result: io::Result<T>) -> io::Result<T> {
    result.map_err(|e| match explain(&e) {
        Some(text) => io::Error::new(e.kind(), text),
        None => e,
    })
}

/// Calls a method of the stream that is there, and explains its errors.
macro_rules! either {
    ($value:expr, $of:ident, $stream:ident => $call:expr) => {
        match $value {
            $of::Plain($stream) => $call,
            $of::Tls($stream) => $call.map(explained),
        }
    };
}

impl AsyncRead for Link {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.read).poll_read(cx, buf)
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        either!(&mut self.0, Reading, s => Pin::new(s).poll_read(cx, buf))
    }
}

impl AsyncWrite for Link {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.write).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.write).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.write).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.write).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        either!(&mut self.0, Writing, s => Pin::new(s).poll_write(cx, buf))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(&mut self.0, Writing, s => Pin::new(s).poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(&mut self.0, Writing, s => Pin::new(s).poll_shutdown(cx))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(&mut self.0, Writing, s => Pin::new(s).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
