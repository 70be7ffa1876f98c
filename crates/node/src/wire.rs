//! Frames to and from a connection. Silence is bounded, not the length of a transfer: each limit is
//! for the next bytes.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tandem_identity::ReadHalf;
use tandem_kv::frame::{FrameError, HEADER_BYTES, Header};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// Why a connection cannot be used any further.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// It failed.
    #[error("connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// The peer closed it at a frame boundary.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer closed it inside a frame.
    #[error("the peer closed the connection inside a frame")]
    Truncated,
    /// Nothing came, or nothing was taken.
    #[error("the peer was silent for {} s", .0.as_secs_f32())]
    Silent(Duration),
    /// The header is not to be trusted.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// When the peer was last heard. What this end writes is no sign of the peer: a socket takes it although
/// nobody is there any more.
#[derive(Debug)]
pub struct Activity {
    start: Instant,
    last_ms: AtomicU64,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            last_ms: AtomicU64::new(0),
        }
    }
}

impl Activity {
    /// It was heard.
    pub fn touch(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.fetch_max(now, Ordering::Relaxed);
    }

    /// For how long it has not been heard.
    #[must_use]
    pub fn idle(&self) -> Duration {
        let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
        self.start.elapsed().saturating_sub(last)
    }
}

/// Reads exactly `buffer`; each part of it must come within `limit` of the one before, and is noted
/// in `activity`.
///
/// # Errors
/// [`WireError::Truncated`] if the peer closes before that, [`WireError::Silent`], or a failure.
pub async fn fill<R: AsyncRead + Unpin>(
    stream: &mut R,
    buffer: &mut [u8],
    limit: Duration,
    activity: Option<&Activity>,
) -> Result<(), WireError> {
    let mut filled = 0;
    while filled < buffer.len() {
        let reading = timeout(limit, stream.read(&mut buffer[filled..]));
        match reading.await.map_err(|_| WireError::Silent(limit))?? {
            0 => return Err(WireError::Truncated),
            n => filled += n,
        }
        activity.inspect(|a| a.touch());
    }
    Ok(())
}

/// The same for several buffers, with as few calls as the stream allows.
///
/// # Errors
/// See [`fill`].
pub async fn fill_parts(
    stream: &mut ReadHalf,
    parts: Vec<&mut [u8]>,
    limit: Duration,
    activity: &Activity,
) -> Result<(), WireError> {
    let mut slices: Vec<IoSliceMut<'_>> = parts.into_iter().map(IoSliceMut::new).collect();
    let mut rest = slices.as_mut_slice();
    IoSliceMut::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        let reading = timeout(limit, stream.read_vectored(rest));
        match reading.await.map_err(|_| WireError::Silent(limit))?? {
            0 => return Err(WireError::Truncated),
            n => IoSliceMut::advance_slices(&mut rest, n),
        }
        activity.touch();
    }
    Ok(())
}

/// The next header, checked. `patience` is the limit for its first byte, `None` if there is none.
///
/// # Errors
/// See [`WireError`].
pub async fn read_header<R: AsyncRead + Unpin>(
    stream: &mut R,
    patience: Option<Duration>,
    limit: Duration,
) -> Result<Header, WireError> {
    let mut bytes = [0; HEADER_BYTES];
    let first = stream.read(&mut bytes);
    let n = match patience {
        Some(patience) => timeout(patience, first)
            .await
            .map_err(|_| WireError::Silent(patience))??,
        None => first.await?,
    };
    if n == 0 {
        return Err(WireError::Closed);
    }
    fill(stream, &mut bytes[n..], limit, None).await?;
    Ok(Header::parse(&bytes)?)
}

/// The payload of a header whose length has been checked.
///
/// # Errors
/// See [`fill`].
pub async fn read_payload<R: AsyncRead + Unpin>(
    stream: &mut R,
    header: &Header,
    limit: Duration,
) -> Result<Vec<u8>, WireError> {
    let mut payload = vec![0; header.payload_len as usize];
    fill(stream, &mut payload, limit, None).await?;
    Ok(payload)
}

/// Writes parts behind each other, with as few calls as the stream allows; the peer must take
/// something within each `limit`.
///
/// # Errors
/// [`WireError::Silent`], or a failure.
pub async fn write_parts<W: AsyncWrite + Unpin>(
    stream: &mut W,
    parts: &[&[u8]],
    limit: Duration,
) -> Result<(), WireError> {
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|p| IoSlice::new(p)).collect();
    let mut rest = slices.as_mut_slice();
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        let writing = timeout(limit, stream.write_vectored(rest));
        match writing.await.map_err(|_| WireError::Silent(limit))?? {
            0 => return Err(WireError::Closed),
            n => IoSlice::advance_slices(&mut rest, n),
        }
    }
    Ok(())
}

/// Lets out what the stream holds back.
///
/// # Errors
/// [`WireError::Silent`], or a failure.
pub async fn flush<W: AsyncWrite + Unpin>(
    stream: &mut W,
    limit: Duration,
) -> Result<(), WireError> {
    let flushing = timeout(limit, stream.flush());
    Ok(flushing.await.map_err(|_| WireError::Silent(limit))??)
}
