//! Frames to and from a stream.

use tandem_kv::frame::{FrameError, HEADER_BYTES, Header};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Why no further frame can be read.
#[derive(Debug, thiserror::Error)]
pub enum WireError<E> {
    /// The connection failed.
    #[error("connection failed: {0}")]
    Io(#[from] std::io::Error),
    /// The peer closed the connection at a frame boundary.
    #[error("the peer closed the connection")]
    Closed,
    /// The peer closed the connection inside a frame.
    #[error("the peer closed the connection inside a frame")]
    Truncated,
    /// The header is not to be trusted.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// The header is not allowed here.
    #[error("{0}")]
    Check(E),
}

/// Reads frames. What has been read of an incomplete frame is kept here, so that
/// [`FrameReader::next`] may be dropped and called again.
#[derive(Debug)]
pub struct FrameReader {
    header: [u8; HEADER_BYTES],
    header_filled: usize,
    payload: Option<(Header, Vec<u8>, usize)>,
}

impl Default for FrameReader {
    fn default() -> Self {
        Self {
            header: [0; HEADER_BYTES],
            header_filled: 0,
            payload: None,
        }
    }
}

impl FrameReader {
    /// The next frame. `check` sees the header before its payload is allocated.
    ///
    /// # Errors
    /// See [`WireError`]. The stream cannot be used after an error.
    pub async fn next<R: AsyncRead + Unpin, E>(
        &mut self,
        stream: &mut R,
        mut check: impl FnMut(&Header) -> Result<(), E>,
    ) -> Result<(Header, Vec<u8>), WireError<E>> {
        loop {
            if let Some((header, payload, filled)) = &mut self.payload {
                if *filled == payload.len() {
                    let frame = (*header, std::mem::take(payload));
                    self.payload = None;
                    self.header_filled = 0;
                    return Ok(frame);
                }
                let n = stream.read(&mut payload[*filled..]).await?;
                if n == 0 {
                    return Err(WireError::Truncated);
                }
                *filled += n;
                continue;
            }
            let n = stream.read(&mut self.header[self.header_filled..]).await?;
            match (n, self.header_filled) {
                (0, 0) => return Err(WireError::Closed),
                (0, _) => return Err(WireError::Truncated),
                _ => self.header_filled += n,
            }
            if self.header_filled == HEADER_BYTES {
                let header = Header::parse(&self.header)?;
                check(&header).map_err(WireError::Check)?;
                let payload = vec![0; header.payload_len as usize];
                self.payload = Some((header, payload, 0));
            }
        }
    }
}
