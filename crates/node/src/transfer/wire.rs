//! Frames to and from a connection. Silence is bounded, and so is slowness: some bytes must go within each
//! limit, and all of them as fast as [`MIN_LINK_RATE`] and that limit once.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tandem_cluster::ReadHalf;
use tandem_cluster::limits::MAX_UNSENT_BYTES;
use tandem_handoff::frame::{Checksum, FrameError, HEADER_BYTES, Header};
use tandem_proto::limits::HANDOFF_SILENCE;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant as Deadline, timeout, timeout_at};

use crate::limits::{MIN_LINK_RATE, READ_BYTES};

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
    /// Some bytes went now and then, but all of them take too long.
    #[error("the peer is slower than {} KiB/s", MIN_LINK_RATE >> 10)]
    Slow,
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

/// How long may be waited for a number of bytes.
struct Patience {
    limit: Duration,
    until: Deadline,
}

impl Patience {
    /// From now on: `limit` for the next of them, and for all of them that and as long as they take at
    /// [`MIN_LINK_RATE`].
    fn new(limit: Duration, bytes: usize) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "a time")]
        let carrying = Duration::from_secs_f64(bytes as f64 / MIN_LINK_RATE as f64);
        Self {
            limit,
            until: Deadline::now() + limit + carrying,
        }
    }

    async fn wait<T>(
        &self,
        step: impl Future<Output = std::io::Result<T>>,
    ) -> Result<T, WireError> {
        let next = Deadline::now() + self.limit;
        match timeout_at(next.min(self.until), step).await {
            Ok(done) => Ok(done?),
            Err(_) if next < self.until => Err(WireError::Silent(self.limit)),
            Err(_) => Err(WireError::Slow),
        }
    }
}

/// Reads exactly `buffer`; each part of it must come within `limit` of the one before.
///
/// # Errors
/// [`WireError::Truncated`] if the peer closes before that, [`WireError::Silent`],
/// [`WireError::Slow`], or a failure.
pub async fn fill<R: AsyncRead + Unpin>(
    stream: &mut R,
    buffer: &mut [u8],
    limit: Duration,
) -> Result<(), WireError> {
    let patience = Patience::new(limit, buffer.len());
    let mut filled = 0;
    while filled < buffer.len() {
        match patience.wait(stream.read(&mut buffer[filled..])).await? {
            0 => return Err(WireError::Truncated),
            n => filled += n,
        }
    }
    Ok(())
}

/// The same for several buffers, with as few calls as the stream allows; gives the checksum of what was
/// read.
///
/// # Errors
/// See [`fill`].
pub async fn fill_parts(
    stream: &mut ReadHalf,
    parts: Vec<&mut [u8]>,
    limit: Duration,
) -> Result<Checksum, WireError> {
    let patience = Patience::new(limit, parts.iter().map(|p| p.len()).sum());
    let mut sum = Checksum::default();
    let mut slices: Vec<IoSliceMut<'_>> = parts.into_iter().map(IoSliceMut::new).collect();
    let mut rest = slices.as_mut_slice();
    IoSliceMut::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        // What was read is in the processor's cache when it is summed.
        let mut bytes = 0;
        let fits = |slice: &&IoSliceMut<'_>| {
            bytes += slice.len();
            bytes <= READ_BYTES
        };
        let count = rest.iter().take_while(fits).count().max(1);
        let n = patience
            .wait(stream.read_vectored(&mut rest[..count]))
            .await?;
        if n == 0 {
            return Err(WireError::Truncated);
        }
        let mut left = n;
        for slice in rest.iter() {
            let part = left.min(slice.len());
            sum.update(&slice[..part]);
            left -= part;
            if left == 0 {
                break;
            }
        }
        IoSliceMut::advance_slices(&mut rest, n);
    }
    Ok(sum)
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
        Some(limit) => timeout(limit, first)
            .await
            .map_err(|_| WireError::Silent(limit))??,
        None => first.await?,
    };
    if n == 0 {
        return Err(WireError::Closed);
    }
    fill(stream, &mut bytes[n..], limit).await?;
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
    fill(stream, &mut payload, limit).await?;
    Ok(payload)
}

/// The next frame of a receiver. What no receiver sends comes without its payload, which is not read:
/// [`Sender::receive`](tandem_handoff::sender::Sender::receive) then ends the handoff.
///
/// # Errors
/// See [`read_header`] and [`fill`].
pub async fn read_answer<R: AsyncRead + Unpin>(
    stream: &mut R,
    patience: Option<Duration>,
    limit: Duration,
) -> Result<(Header, Vec<u8>), WireError> {
    let header = read_header(stream, patience, limit).await?;
    let payload = if header.kind.is_answer() {
        read_payload(stream, &header, limit).await?
    } else {
        Vec::new()
    };
    Ok((header, payload))
}

/// Writes parts behind each other, with as few calls as the stream allows; the peer must take
/// something within each `limit`.
///
/// # Errors
/// [`WireError::Silent`], [`WireError::Slow`], or a failure.
pub async fn write_parts<W: AsyncWrite + Unpin>(
    stream: &mut W,
    parts: &[&[u8]],
    limit: Duration,
) -> Result<(), WireError> {
    let patience = Patience::new(limit, parts.iter().map(|p| p.len()).sum());
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|p| IoSlice::new(p)).collect();
    let mut rest = slices.as_mut_slice();
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        let n = patience.wait(stream.write_vectored(rest)).await?;
        if n == 0 {
            return Err(WireError::Closed);
        }
        IoSlice::advance_slices(&mut rest, n);
    }
    Ok(())
}

/// Writes a frame, and lets it out.
///
/// # Errors
/// See [`write_parts`].
pub async fn write_frame<W: AsyncWrite + Unpin>(
    stream: &mut W,
    frame: &[u8],
    limit: Duration,
) -> Result<(), WireError> {
    write_parts(stream, &[frame], limit).await?;
    flush(stream, limit).await
}

/// Lets out what the stream holds back: little enough for one `limit`, see [`MAX_UNSENT_BYTES`].
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

/// What a connection encrypts and holds back goes within a silence over the slowest link.
const _: () = assert!(MAX_UNSENT_BYTES as u64 / MIN_LINK_RATE < HANDOFF_SILENCE.as_secs());
