//! A connection whose peer must take what it is sent.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::link::Link;

/// Fails when something has waited to be sent for too long and the socket has taken nothing of it meanwhile.
pub(crate) struct Unread {
    link: Link,
    limit: Duration,
    /// What the socket had been given when the wait began.
    given: u64,
    /// Set while something waits.
    end: Option<Pin<Box<Sleep>>>,
}

impl Unread {
    pub(crate) const fn new(link: Link, limit: Duration) -> Self {
        Self {
            link,
            limit,
            given: 0,
            end: None,
        }
    }

    /// After an attempt to send.
    fn after<T>(&mut self, cx: &mut Context<'_>, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_ready() && !self.link.is_behind() {
            self.end = None;
            return done;
        }
        let given = self.link.given();
        if std::mem::replace(&mut self.given, given) != given {
            self.end = None;
        }
        let limit = self.limit;
        let end = self.end.get_or_insert_with(|| Box::pin(sleep(limit)));
        if end.as_mut().poll(cx).is_ready() {
            let text = "the peer takes nothing of its answer";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, text)));
        }
        done
    }
}

impl AsyncRead for Unread {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.link).poll_read(cx, buf)
    }
}

impl AsyncWrite for Unread {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.link).poll_write(cx, buf);
        self.after(cx, done)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.link).poll_write_vectored(cx, bufs);
        self.after(cx, done)
    }

    fn is_write_vectored(&self) -> bool {
        self.link.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.link).poll_flush(cx);
        self.after(cx, done)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.link).poll_shutdown(cx);
        self.after(cx, done)
    }
}
