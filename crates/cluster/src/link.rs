//! A connection between two machines.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::explain::explain;
use crate::peer::PeerId;
use crate::tls::Tls;

/// An open connection, both ways, with TLS or without. Over TLS what was written may wait in this
/// process until it is flushed.
pub struct Link {
    stream: Stream,
    peer: Option<PeerId>,
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<Tls>),
}

/// The reading half of a [`Link`].
pub struct ReadHalf(Reading);

/// The writing half of a [`Link`]. Dropping it ends the connection's writing direction only without
/// TLS; with TLS the connection ends when both halves are dropped.
pub struct WriteHalf(Writing);

enum Reading {
    Plain(OwnedReadHalf),
    Tls(tokio::io::ReadHalf<Box<Tls>>),
}

enum Writing {
    Plain(OwnedWriteHalf),
    Tls(tokio::io::WriteHalf<Box<Tls>>),
}

impl Link {
    pub(crate) fn plain(tcp: TcpStream) -> Self {
        Self {
            stream: Stream::Plain(tcp),
            peer: None,
        }
    }

    /// With TLS, and a peer that shows no certificate.
    pub(crate) fn anonymous(stream: Tls) -> Self {
        Self {
            stream: Stream::Tls(Box::new(stream)),
            peer: None,
        }
    }

    pub(crate) fn tls(stream: Tls, peer: PeerId) -> Self {
        Self {
            stream: Stream::Tls(Box::new(stream)),
            peer: Some(peer),
        }
    }

    /// Who is at the other end; `None` without TLS.
    #[must_use]
    pub fn peer(&self) -> Option<&PeerId> {
        self.peer.as_ref()
    }

    /// True if the connection is encrypted.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        matches!(self.stream, Stream::Tls(_))
    }

    /// The TCP socket below.
    #[must_use]
    pub fn tcp(&self) -> &TcpStream {
        match &self.stream {
            Stream::Plain(tcp) => tcp,
            Stream::Tls(tls) => tls.tcp(),
        }
    }

    /// Bytes that one packet carries of what is sent, where the system tells.
    #[must_use]
    pub fn segment_bytes(&self) -> Option<u32> {
        let socket = socket2::SockRef::from(self.tcp());
        // On macOS and Linux; elsewhere perhaps not.
        socket.tcp_mss().ok()
    }

    /// The address of the other end.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.tcp().peer_addr()
    }

    /// Both directions for use in two tasks. Without TLS they share nothing; with TLS they take
    /// turns, because the state of a TLS connection is one.
    #[must_use]
    pub fn into_split(self) -> (ReadHalf, WriteHalf) {
        match self.stream {
            Stream::Plain(tcp) => {
                let (read, write) = tcp.into_split();
                (
                    ReadHalf(Reading::Plain(read)),
                    WriteHalf(Writing::Plain(write)),
                )
            }
            Stream::Tls(tls) => {
                let (read, write) = tokio::io::split(tls);
                (ReadHalf(Reading::Tls(read)), WriteHalf(Writing::Tls(write)))
            }
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

impl ReadHalf {
    /// Reads into several buffers, with one call of the system where there is no TLS; gives the number
    /// of bytes, 0 at the end of the stream or if there is no room in any of them. Safe to drop: what
    /// was not given was not read.
    ///
    /// # Errors
    /// If the connection fails.
    pub async fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let Some(first) = buffers.iter().position(|b| !b.is_empty()) else {
            return Ok(0);
        };
        match &mut self.0 {
            Reading::Plain(read) => loop {
                read.readable().await?;
                match read.try_read_vectored(&mut buffers[first..]) {
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                    done => return done,
                }
            },
            Reading::Tls(read) => explained(read.read(&mut buffers[first]).await),
        }
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
        either!(&mut self.stream, Stream, s => Pin::new(s).poll_read(cx, buf))
    }
}

impl AsyncRead for ReadHalf {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Reading::Plain(read) => Pin::new(read).poll_read(cx, buf),
            Reading::Tls(read) => Pin::new(read).poll_read(cx, buf).map(explained),
        }
    }
}

impl AsyncWrite for Link {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        either!(&mut self.stream, Stream, s => Pin::new(s).poll_write(cx, buf))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(&mut self.stream, Stream, s => Pin::new(s).poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        either!(&mut self.stream, Stream, s => Pin::new(s).poll_shutdown(cx))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        either!(&mut self.stream, Stream, s => Pin::new(s).poll_write_vectored(cx, bufs))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Writing::Plain(write) => Pin::new(write).poll_flush(cx),
            Writing::Tls(write) => Pin::new(write).poll_flush(cx).map(explained),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.0 {
            Writing::Plain(write) => Pin::new(write).poll_shutdown(cx),
            Writing::Tls(write) => Pin::new(write).poll_shutdown(cx).map(explained),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.0 {
            Writing::Plain(write) => Pin::new(write).poll_write_vectored(cx, bufs),
            Writing::Tls(write) => Pin::new(write).poll_write_vectored(cx, bufs).map(explained),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
