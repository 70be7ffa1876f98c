//! Connections to nodes, for the HTTP client.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::TokioIo;
use tandem_cluster::{Link, LinkError, PeerId, Security};
use tower_service::Service;

/// Connects to nodes as this machine, and to the machine that the configuration names, if it does.
#[derive(Debug, Clone)]
pub(crate) struct Connector {
    security: Security,
    /// Identities in the configuration, by address.
    expected: Arc<HashMap<String, PeerId>>,
    limit: Duration,
}

impl Connector {
    pub(crate) fn new(
        security: Security,
        expected: HashMap<String, PeerId>,
        limit: Duration,
    ) -> Self {
        Self {
            security,
            expected: Arc::new(expected),
            limit,
        }
    }

    async fn connect(self, address: String) -> Result<Stream, LinkError> {
        let link = match self.expected.get(&address) {
            Some(peer) => self.security.connect_to(&address, peer, self.limit).await?,
            None => self.security.connect(&address, self.limit).await?,
        };
        Ok(Stream {
            peer: link.peer().cloned(),
            io: TokioIo::new(link),
        })
    }
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = LinkError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, LinkError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let address = uri.authority().map(|a| a.as_str().to_owned());
        Box::pin(self.clone().connect(address.unwrap_or_default()))
    }
}

/// A connection to a node. Answers that come over it carry the [`PeerId`] of the node.
pub(crate) struct Stream {
    io: TokioIo<Link>,
    peer: Option<PeerId>,
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        match &self.peer {
            Some(peer) => Connected::new().extra(peer.clone()),
            None => Connected::new(),
        }
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
