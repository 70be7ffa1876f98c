//! Both directions of a TLS connection after the handshake. They share nothing but the keys to come,
//! so each may run in a task of its own.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use rustls::kernel::KernelConnection;
use rustls::{AlertDescription, ConnectionTrafficSecrets, Error as TlsError, ExtractedSecrets};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::limits::{MAX_KEY_UPDATES, READ_BUFFER, RECORDS_PER_KEY, WRITE_RECORDS};
use crate::record::{Kind, MAX_PLAIN, MAX_RECORD, Opener, RecordError, Sealer, first};

/// Alert (RFC 8446, section 6.1): the other side writes no more.
const CLOSE_NOTIFY: u8 = 0;
/// The same for a person; says nothing.
const USER_CANCELED: u8 = 90;
/// Handshake messages after the handshake (section 4.6).
const NEW_SESSION_TICKET: u8 = 4;
const KEY_UPDATE: u8 = 24;
/// Bytes of the kind and length of a handshake message.
const MESSAGE_HEADER: usize = 4;

type Secrets = (u64, ConnectionTrafficSecrets);

/// Derives the keys that follow.
pub(crate) trait Rekey: Send {
    fn next_tx(&mut self) -> Result<Secrets, TlsError>;
    fn next_rx(&mut self) -> Result<Secrets, TlsError>;
}

impl<D: Send> Rekey for KernelConnection<D> {
    fn next_tx(&mut self) -> Result<Secrets, TlsError> {
        self.update_tx_secret()
    }

    fn next_rx(&mut self) -> Result<Secrets, TlsError> {
        self.update_rx_secret()
    }
}

/// What both directions share.
struct Shared {
    rekey: Mutex<Box<dyn Rekey>>,
    /// The other side has asked for new keys in our direction too.
    asked: AtomicBool,
}

impl Shared {
    fn rekey(
        &self,
        next: impl FnOnce(&mut dyn Rekey) -> Result<Secrets, TlsError>,
    ) -> Result<Secrets, TlsError> {
        let mut rekey = self.rekey.lock().unwrap_or_else(PoisonError::into_inner);
        next(rekey.as_mut())
    }
}

/// What a handshake leaves behind.
pub(crate) struct Start {
    pub(crate) secrets: ExtractedSecrets,
    pub(crate) rekey: Box<dyn Rekey>,
    /// Content that came with the end of the handshake.
    pub(crate) early: Vec<u8>,
    /// Records behind it, which have not been opened.
    pub(crate) unread: Vec<u8>,
    /// The other side has said that it writes no more.
    pub(crate) closed: bool,
}

/// Both directions of a connection.
pub(crate) fn secured(
    tcp: TcpStream,
    start: Start,
) -> Result<(SecuredRead, SecuredWrite), TlsError> {
    let shared = Arc::new(Shared {
        rekey: Mutex::new(start.rekey),
        asked: AtomicBool::new(false),
    });
    let (read, write) = tcp.into_split();
    let filled = start.unread.len();
    let mut buffer = start.unread;
    buffer.resize(READ_BUFFER.max(filled), 0);
    let read = SecuredRead {
        tcp: read,
        opener: Opener::new(start.secrets.rx)?,
        shared: Arc::clone(&shared),
        buffer,
        start: 0,
        filled,
        spare: start.early,
        spare_start: 0,
        closed: start.closed,
        fault: None,
        updates: 0,
    };
    let write = SecuredWrite {
        tcp: write,
        sealer: Sealer::new(start.secrets.tx)?,
        shared,
        out: Vec::new(),
        sent: 0,
        gathered: Vec::new(),
        closing: false,
        records_per_key: RECORDS_PER_KEY,
    };
    Ok((read, write))
}

/// Opens what the other side sends.
pub(crate) struct SecuredRead {
    tcp: OwnedReadHalf,
    opener: Opener,
    shared: Arc<Shared>,
    /// Records as they came: those in `start..filled` have not been opened.
    buffer: Vec<u8>,
    start: usize,
    filled: usize,
    /// Content that did not fit the reader's memory: what is left begins at `spare_start`.
    spare: Vec<u8>,
    spare_start: usize,
    closed: bool,
    /// Why nothing more can be opened.
    fault: Option<Fault>,
    updates: u32,
}

/// A fault is told once as it is; afterwards only that there was one.
enum Fault {
    New(RecordError),
    Told,
}

impl SecuredRead {
    pub(crate) fn tcp(&self) -> &TcpStream {
        self.tcp.as_ref()
    }

    /// How often the other side has gone on with a new key.
    #[cfg(test)]
    pub(crate) const fn updates(&self) -> u32 {
        self.updates
    }

    /// Moves content that is left over to the reader; false if there is none.
    fn take_spare(&mut self, buf: &mut ReadBuf<'_>) -> bool {
        let left = &self.spare[self.spare_start..];
        if left.is_empty() {
            return false;
        }
        let n = left.len().min(buf.remaining());
        buf.put_slice(&left[..n]);
        self.spare_start += n;
        true
    }

    /// Opens the records that are all here, into the reader's memory as far as they fit. The reader
    /// had `before` bytes already.
    fn open_all(&mut self, buf: &mut ReadBuf<'_>, before: usize) -> Result<(), RecordError> {
        while !self.closed {
            let bytes = &self.buffer[self.start..self.filled];
            let Some(found) = first(bytes)? else {
                return Ok(());
            };
            let record = &bytes[..found.length];
            if buf.remaining() >= found.room {
                let out = buf.initialize_unfilled_to(found.room);
                match self.opener.open(record, out)? {
                    (Kind::Data, length) => buf.advance(length),
                    (kind, length) => {
                        let content = out[..length].to_vec();
                        self.control(kind, &content)?;
                    }
                }
            } else if buf.filled().len() == before {
                let mut out = std::mem::take(&mut self.spare);
                out.resize(found.room, 0);
                let (kind, length) = self.opener.open(record, &mut out)?;
                out.truncate(length);
                match kind {
                    Kind::Data => {
                        (self.spare, self.spare_start) = (out, 0);
                        self.take_spare(buf);
                    }
                    kind => self.control(kind, &out)?,
                }
            } else {
                // The reader comes again for the rest.
                return Ok(());
            }
            self.start += found.length;
        }
        Ok(())
    }

    /// What is not content.
    fn control(&mut self, kind: Kind, content: &[u8]) -> Result<(), RecordError> {
        match (kind, content) {
            (Kind::Alert, [_, CLOSE_NOTIFY]) => self.closed = true,
            (Kind::Alert, [_, USER_CANCELED]) => {}
            (Kind::Alert, [_, other]) => {
                return Err(TlsError::AlertReceived(AlertDescription::from(*other)).into());
            }
            (Kind::Handshake, messages) => self.messages(messages)?,
            _ => return Err(RecordError::Rules("an alert that is none")),
        }
        Ok(())
    }

    fn messages(&mut self, mut messages: &[u8]) -> Result<(), RecordError> {
        while let Some((header, rest)) = messages.split_first_chunk::<MESSAGE_HEADER>() {
            let length = u32::from_be_bytes([0, header[1], header[2], header[3]]) as usize;
            let Some((content, behind)) = rest.split_at_checked(length) else {
                break;
            };
            match (header[0], content, behind) {
                // No session is resumed.
                (NEW_SESSION_TICKET, _, _) => {}
                // Nothing may follow it that its old key still seals.
                (KEY_UPDATE, [ask @ (0 | 1)], []) => self.update(*ask == 1)?,
                _ => return Err(RecordError::Rules("a message that has no place here")),
            }
            messages = behind;
        }
        match messages {
            [] => Ok(()),
            _ => Err(RecordError::Rules("a part of a message")),
        }
    }

    fn update(&mut self, asked: bool) -> Result<(), RecordError> {
        self.updates += 1;
        if self.updates > MAX_KEY_UPDATES {
            return Err(RecordError::Rules("too many new keys"));
        }
        self.opener = Opener::new(self.shared.rekey(|r| r.next_rx())?)?;
        if asked {
            self.shared.asked.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// Reads from the socket behind what is there; 0 at its end.
    fn fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.start == self.filled {
            (self.start, self.filled) = (0, 0);
        } else if self.buffer.len() - self.filled < MAX_RECORD {
            self.buffer.copy_within(self.start..self.filled, 0);
            (self.start, self.filled) = (0, self.filled - self.start);
        }
        let mut free = ReadBuf::new(&mut self.buffer[self.filled..]);
        ready!(Pin::new(&mut self.tcp).poll_read(cx, &mut free))?;
        let n = free.filled().len();
        self.filled += n;
        Poll::Ready(Ok(n))
    }

    fn read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        loop {
            if buf.remaining() == 0 || self.take_spare(buf) {
                return Poll::Ready(Ok(()));
            }
            if self.fault.is_none()
                && let Err(fault) = self.open_all(buf, before)
            {
                self.fault = Some(Fault::New(fault));
            }
            // What came before a fault or the end is content all the same.
            if buf.filled().len() > before {
                return Poll::Ready(Ok(()));
            }
            if let Some(fault) = &mut self.fault {
                let error = match std::mem::replace(fault, Fault::Told) {
                    Fault::New(error) => io::Error::new(io::ErrorKind::InvalidData, error),
                    Fault::Told => io::ErrorKind::BrokenPipe.into(),
                };
                return Poll::Ready(Err(error));
            }
            if self.closed {
                return Poll::Ready(Ok(()));
            }
            if ready!(self.fill(cx))? == 0 {
                let cut = "the other side closed the connection without a word";
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, cut)));
            }
        }
    }
}

impl AsyncRead for SecuredRead {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.read(cx, buf)
    }
}

/// Seals what is sent to the other side.
pub(crate) struct SecuredWrite {
    tcp: OwnedWriteHalf,
    sealer: Sealer,
    shared: Arc<Shared>,
    /// Sealed records; those from `sent` on have not been taken by the socket.
    out: Vec<u8>,
    sent: usize,
    /// Content of one record that lies in several places.
    gathered: Vec<u8>,
    closing: bool,
    records_per_key: u64,
}

impl SecuredWrite {
    #[cfg(test)]
    pub(crate) const fn change_keys_after(&mut self, records: u64) {
        self.records_per_key = records;
    }

    /// Gives the socket what it takes; ready when it has taken all.
    fn push(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.out.len() {
            let n = ready!(Pin::new(&mut self.tcp).poll_write(cx, &self.out[self.sent..]))?;
            if n == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += n;
        }
        self.out.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }

    /// Seals one record with content from the front of `bufs`, after new keys where they are due.
    /// Gives the length of the content.
    fn seal(&mut self, bufs: &mut &mut [IoSlice<'_>]) -> Result<usize, RecordError> {
        self.renew()?;
        let whole = bufs.first().map_or(0, |b| b.len());
        let length = if whole >= MAX_PLAIN || bufs.len() == 1 {
            let length = whole.min(MAX_PLAIN);
            self.sealer
                .seal(Kind::Data, &bufs[0][..length], &mut self.out)?;
            length
        } else {
            self.gathered.clear();
            for buf in bufs.iter() {
                let room = MAX_PLAIN - self.gathered.len();
                self.gathered.extend_from_slice(&buf[..buf.len().min(room)]);
            }
            self.sealer
                .seal(Kind::Data, &self.gathered, &mut self.out)?;
            self.gathered.len()
        };
        IoSlice::advance_slices(bufs, length);
        Ok(length)
    }

    /// Goes on with the next key, if the other side has asked for it or this one has sealed enough.
    fn renew(&mut self) -> Result<(), RecordError> {
        let due = self.sealer.sealed() >= self.records_per_key;
        if !self.shared.asked.swap(false, Ordering::AcqRel) && !due {
            return Ok(());
        }
        // A key update that asks for none in return.
        let update = [KEY_UPDATE, 0, 0, 1, 0];
        self.sealer.seal(Kind::Handshake, &update, &mut self.out)?;
        self.sealer = Sealer::new(self.shared.rekey(|r| r.next_tx())?)?;
        Ok(())
    }

    fn write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.closing {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if bufs.iter().all(|b| b.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        ready!(self.push(cx))?;
        let mut slices: Vec<IoSlice<'_>> = bufs.iter().map(|b| IoSlice::new(b)).collect();
        let mut rest = &mut slices[..];
        // Takes away empty ones at the front.
        IoSlice::advance_slices(&mut rest, 0);
        let mut taken = 0;
        for _ in 0..WRITE_RECORDS {
            if rest.is_empty() {
                break;
            }
            let invalid = |e| io::Error::new(io::ErrorKind::InvalidData, e);
            taken += self.seal(&mut rest).map_err(invalid)?;
        }
        match self.push(cx) {
            Poll::Ready(Err(e)) => Poll::Ready(Err(e)),
            // What the socket has not taken yet waits for the next call.
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(taken)),
        }
    }
}

impl AsyncWrite for SecuredWrite {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.push(cx))?;
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.closing {
            self.closing = true;
            let Self { sealer, out, .. } = &mut *self;
            // Level `warning`, for those that still read it.
            let sealed = sealer.seal(Kind::Alert, &[1, CLOSE_NOTIFY], out);
            sealed.map_err(io::Error::other)?;
        }
        ready!(self.push(cx))?;
        match ready!(Pin::new(&mut self.tcp).poll_shutdown(cx)) {
            // The other side has gone already.
            Err(e) if e.kind() == io::ErrorKind::NotConnected => Poll::Ready(Ok(())),
            other => Poll::Ready(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use crate::{Authority, Security};

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A connection whose keys are good for so many records.
    async fn links(records_per_key: u64) -> (crate::Link, crate::Link) {
        let cluster = Authority::create().unwrap();
        let member = || Security::Tls(std::sync::Arc::new(cluster.issue().unwrap()));
        let (a, b) = (member(), member());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let accepting = async {
            let (tcp, _) = listener.accept().await.unwrap();
            b.accept(tcp, PATIENCE).await
        };
        let (from, to) = tokio::join!(a.connect(&address, PATIENCE), accepting);
        let (mut from, mut to) = (from.unwrap(), to.unwrap());
        from.change_keys_after(records_per_key);
        to.change_keys_after(records_per_key);
        (from, to)
    }

    #[tokio::test]
    async fn a_key_that_has_sealed_enough_is_followed_by_the_next() {
        let (mut from, mut to) = links(3).await;
        let writing = tokio::spawn(async move {
            for i in 0..200_u8 {
                from.write_all(&[i; 1000]).await.unwrap();
            }
            from.shutdown().await.unwrap();
        });
        let mut seen = Vec::new();
        to.read_to_end(&mut seen).await.unwrap();
        writing.await.unwrap();
        assert_eq!(seen.len(), 200_000);
        let expected = (0..200_u8).flat_map(|i| [i; 1000]);
        assert!(seen.into_iter().eq(expected));
        assert!(to.keys_seen() > 60, "{}", to.keys_seen());
    }

    #[tokio::test]
    async fn the_other_side_cannot_change_keys_for_ever() {
        let (mut from, mut to) = links(1).await;
        let writing = tokio::spawn(async move {
            // Each of its bytes comes with a new key.
            while from.write_all(b"x").await.is_ok() {}
        });
        let mut seen = Vec::new();
        let end = to.read_to_end(&mut seen).await.unwrap_err();
        assert!(end.to_string().contains("too many new keys"), "{end}");
        assert!(seen.len() <= crate::limits::MAX_KEY_UPDATES as usize + 1);
        drop(to);
        writing.await.unwrap();
    }
}
