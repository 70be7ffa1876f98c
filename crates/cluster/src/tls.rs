//! TLS on TCP, with records in buffers of this process.
//!
//! rustls does everything that TLS is (its `unbuffered` connections); here is only where bytes come
//! from and go to. Its buffered connections take TCP in steps of 4 KiB and copy what they read three
//! times: a core of an EPYC reads 1.1 to 1.3 GB/s through tokio-rustls, and 2.7 through this.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncryptError, InsufficientSizeError, UnbufferedStatus,
};
use rustls::{ClientConfig, CommonState, Error as TlsError, ServerConfig};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::limits::{FIRST_READ_BUFFER, MAX_UNSENT_BYTES, READ_BUFFER};

/// Records for an alert after a failure; more are not looked for.
const LAST_TURNS: usize = 4;

/// An open TLS connection.
pub(crate) struct Tls {
    tcp: TcpStream,
    session: Session,
    incoming: Incoming,
    outgoing: Outgoing,
    /// Text that has been decrypted and not been read.
    text: Text,
    /// The peer has said that nothing more will come.
    ended: bool,
    /// This side has said so.
    shut: bool,
    failed: Option<TlsError>,
}

enum Session {
    Client(UnbufferedClientConnection),
    Server(UnbufferedServerConnection),
}

/// Bytes from the socket that have not been decrypted.
struct Incoming {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

/// Records for the socket.
#[derive(Default)]
struct Outgoing {
    /// It grows with what is written; most connections carry little.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

#[derive(Default)]
struct Text {
    bytes: Vec<u8>,
    at: usize,
}

/// What is to be done as soon as the session can.
enum Task<'a> {
    Nothing,
    Write(&'a [IoSlice<'a>]),
    Close,
}

/// What a session did.
enum Turn {
    /// Something; it may do more.
    More,
    /// The task; so many bytes were encrypted.
    Done(usize),
    /// Nothing without bytes from the peer.
    Waits,
    /// The peer has closed its direction.
    Ended,
}

impl Tls {
    /// Shakes hands as the side that has connected.
    ///
    /// # Errors
    /// If the connection breaks or either side refuses the other.
    pub(crate) async fn connect(
        tcp: TcpStream,
        config: Arc<ClientConfig>,
        name: ServerName<'static>,
    ) -> io::Result<Self> {
        let session = UnbufferedClientConnection::new(config, name).map_err(io::Error::other)?;
        Self::shake(tcp, Session::Client(session)).await
    }

    /// Shakes hands as the side that was connected to.
    ///
    /// # Errors
    /// See [`Self::connect`].
    pub(crate) async fn accept(tcp: TcpStream, config: Arc<ServerConfig>) -> io::Result<Self> {
        let session = UnbufferedServerConnection::new(config).map_err(io::Error::other)?;
        Self::shake(tcp, Session::Server(session)).await
    }

    async fn shake(tcp: TcpStream, session: Session) -> io::Result<Self> {
        let mut tls = Self {
            tcp,
            session,
            incoming: Incoming {
                bytes: vec![0; FIRST_READ_BUFFER],
                start: 0,
                end: 0,
            },
            outgoing: Outgoing::default(),
            text: Text::default(),
            ended: false,
            shut: false,
            failed: None,
        };
        std::future::poll_fn(|cx| tls.poll_shake(cx)).await?;
        Ok(tls)
    }

    fn poll_shake(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match self.turn(&Task::Nothing, None)? {
                Turn::More | Turn::Done(_) => {}
                Turn::Ended => return Poll::Ready(Err(cut_off())),
                Turn::Waits => {
                    ready!(self.outgoing.poll_send(&mut self.tcp, cx))?;
                    if !self.session.state().is_handshaking() {
                        return Poll::Ready(Ok(()));
                    }
                    if ready!(self.incoming.poll_fill(&mut self.tcp, cx))? == 0 {
                        return Poll::Ready(Err(cut_off()));
                    }
                }
            }
        }
    }

    /// The certificates that the peer has shown, its own first.
    pub(crate) fn peer_certificates(&self) -> Option<&[CertificateDer<'static>]> {
        self.session.state().peer_certificates()
    }

    /// The socket below.
    pub(crate) const fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Lets the session do one thing. Text goes to `reader` and what it has no room for to where
    /// later reads take it from.
    fn turn(&mut self, task: &Task<'_>, mut reader: Option<&mut ReadBuf<'_>>) -> io::Result<Turn> {
        if let Some(error) = &self.failed {
            return Err(broken(error.clone()));
        }
        let text = &mut self.text;
        let mut took = |payload: &[u8]| {
            let rest = match &mut reader {
                Some(reader) if text.is_empty() => {
                    let (now, later) = payload.split_at(payload.len().min(reader.remaining()));
                    reader.put_slice(now);
                    later
                }
                _ => payload,
            };
            text.add(rest);
        };
        let turn = self
            .session
            .turn(&mut self.incoming, &mut self.outgoing, task, &mut took);
        if matches!(turn, Ok(Turn::Ended)) {
            self.ended = true;
        }
        turn.map_err(|error| {
            self.last_words();
            self.failed = Some(error.clone());
            broken(error)
        })
    }

    /// After a failure: tells the peer why, if it takes that at once.
    fn last_words(&mut self) {
        for _ in 0..LAST_TURNS {
            let turn = self.session.turn(
                &mut self.incoming,
                &mut self.outgoing,
                &Task::Nothing,
                &mut |_| {},
            );
            if !matches!(turn, Ok(Turn::More)) {
                break;
            }
        }
        self.outgoing.try_send(&self.tcp);
    }

    /// Does a task; gives the bytes that were encrypted.
    fn perform(&mut self, task: &Task<'_>) -> io::Result<usize> {
        loop {
            match self.turn(task, None)? {
                Turn::More | Turn::Ended => {}
                Turn::Done(bytes) => return Ok(bytes),
                Turn::Waits => return Err(io::ErrorKind::NotConnected.into()),
            }
        }
    }
}

/// Deals with what a session asks for. Gives the bytes that are to be discarded in front.
fn handle<D>(
    status: UnbufferedStatus<'_, '_, D>,
    outgoing: &mut Outgoing,
    task: &Task<'_>,
    text: &mut dyn FnMut(&[u8]),
) -> (usize, Result<Turn, TlsError>) {
    let UnbufferedStatus {
        mut discard, state, ..
    } = status;
    let state = match state {
        Ok(state) => state,
        Err(error) => return (discard, Err(error)),
    };
    let turn = match state {
        ConnectionState::ReadTraffic(mut records) => {
            let mut taken = Ok(Turn::More);
            while let Some(record) = records.next_record() {
                match record {
                    Ok(record) => {
                        discard += record.discard;
                        text(record.payload);
                    }
                    Err(error) => taken = Err(error),
                }
            }
            taken
        }
        ConnectionState::EncodeTlsData(mut record) => outgoing
            .put(|space| match record.encode(space) {
                Ok(bytes) => Ok(bytes),
                Err(EncodeError::InsufficientSize(size)) => Err(Some(size)),
                Err(EncodeError::AlreadyEncoded) => Err(None),
            })
            .map(|_| Turn::More),
        // It is in order behind what was encrypted before, and goes before what comes after.
        ConnectionState::TransmitTlsData(records) => {
            records.done();
            Ok(Turn::More)
        }
        ConnectionState::PeerClosed => Ok(Turn::Ended),
        ConnectionState::Closed | ConnectionState::BlockedHandshake => Ok(Turn::Waits),
        ConnectionState::WriteTraffic(mut traffic) => match task {
            Task::Nothing => Ok(Turn::Waits),
            Task::Close => outgoing
                .put(|space| traffic.queue_close_notify(space).map_err(size_of))
                .map(Turn::Done),
            Task::Write(parts) => {
                let mut room = outgoing.room();
                let mut done = Ok(0);
                for part in parts.iter() {
                    let part = &part[..part.len().min(room)];
                    room -= part.len();
                    if !part.is_empty() && done.is_ok() {
                        let put =
                            outgoing.put(|space| traffic.encrypt(part, space).map_err(size_of));
                        done = done.and_then(|bytes| put.map(|_| bytes + part.len()));
                    }
                }
                done.map(Turn::Done)
            }
        },
        // Early data is not offered, and there are no other states.
        _ => Err(TlsError::General("a state that was not asked for".into())),
    };
    (discard, turn)
}

fn size_of(error: EncryptError) -> Option<InsufficientSizeError> {
    match error {
        EncryptError::InsufficientSize(size) => Some(size),
        EncryptError::EncryptExhausted => None,
    }
}

fn broken(error: TlsError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

fn cut_off() -> io::Error {
    let text = "the peer closed the connection without saying so";
    io::Error::new(io::ErrorKind::UnexpectedEof, text)
}

impl Session {
    /// Does one thing.
    fn turn(
        &mut self,
        incoming: &mut Incoming,
        outgoing: &mut Outgoing,
        task: &Task<'_>,
        text: &mut dyn FnMut(&[u8]),
    ) -> Result<Turn, TlsError> {
        let records = &mut incoming.bytes[incoming.start..incoming.end];
        let (discard, turn) = match self {
            Self::Client(session) => {
                handle(session.process_tls_records(records), outgoing, task, text)
            }
            Self::Server(session) => {
                handle(session.process_tls_records(records), outgoing, task, text)
            }
        };
        incoming.discard(discard);
        turn
    }

    fn state(&self) -> &CommonState {
        match self {
            Self::Client(session) => session,
            Self::Server(session) => session,
        }
    }
}

impl Incoming {
    fn discard(&mut self, bytes: usize) {
        self.start = self.end.min(self.start + bytes);
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Reads what there is; 0 at the end.
    fn poll_fill(&mut self, tcp: &mut TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        // What is left is a part of a record at most.
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == self.bytes.len() {
            let text = "a message of TLS is longer than the buffer";
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, text)));
        }
        let mut buffer = ReadBuf::new(&mut self.bytes[self.end..]);
        ready!(Pin::new(tcp).poll_read(cx, &mut buffer))?;
        let bytes = buffer.filled().len();
        self.end += bytes;
        if self.end == self.bytes.len() && self.end < READ_BUFFER {
            self.bytes.resize(READ_BUFFER, 0);
        }
        Poll::Ready(Ok(bytes))
    }
}

impl Outgoing {
    /// Bytes of text that may still be encrypted. For what TLS adds to it, the buffer grows.
    const fn room(&self) -> usize {
        MAX_UNSENT_BYTES.saturating_sub(self.end - self.start)
    }

    /// True if there is enough for the socket, or it has not taken all that it was given. Less waits
    /// for more, or for a flush.
    const fn is_due(&self) -> bool {
        self.start > 0 || self.end >= MAX_UNSENT_BYTES
    }

    /// Lets `encode` write behind what is there. It says if it needs more space, and how much.
    fn put(
        &mut self,
        mut encode: impl FnMut(&mut [u8]) -> Result<usize, Option<InsufficientSizeError>>,
    ) -> Result<usize, TlsError> {
        let bytes = match encode(&mut self.bytes[self.end..]) {
            Err(Some(size)) => {
                self.bytes.resize(self.end + size.required_size, 0);
                encode(&mut self.bytes[self.end..])
            }
            done => done,
        };
        let bytes = bytes.map_err(|_| TlsError::EncryptError)?;
        self.end += bytes;
        Ok(bytes)
    }

    fn sent(&mut self, bytes: usize) {
        self.start += bytes;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Until the socket has taken everything.
    fn poll_send(&mut self, tcp: &mut TcpStream, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.start < self.end {
            let unsent = &self.bytes[self.start..self.end];
            match ready!(Pin::new(&mut *tcp).poll_write(cx, unsent))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                bytes => self.sent(bytes),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// What the socket takes at once; nobody is woken for the rest, which goes with the next write.
    fn try_send(&mut self, tcp: &TcpStream) {
        while self.start < self.end {
            match tcp.try_write(&self.bytes[self.start..self.end]) {
                Ok(bytes) if bytes > 0 => self.sent(bytes),
                _ => return,
            }
        }
    }
}

impl Text {
    const fn is_empty(&self) -> bool {
        self.at == self.bytes.len()
    }

    fn add(&mut self, text: &[u8]) {
        if self.is_empty() {
            self.bytes.clear();
            self.at = 0;
        }
        self.bytes.extend_from_slice(text);
    }

    fn give(&mut self, reader: &mut ReadBuf<'_>) {
        let rest = &self.bytes[self.at..];
        let now = &rest[..rest.len().min(reader.remaining())];
        reader.put_slice(now);
        self.at += now.len();
    }
}

impl AsyncRead for Tls {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        reader: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let tls = self.get_mut();
        let before = reader.filled().len();
        tls.text.give(reader);
        while reader.remaining() > 0 {
            match tls.turn(&Task::Nothing, Some(&mut *reader)) {
                Ok(Turn::More | Turn::Done(_) | Turn::Ended) => continue,
                Ok(Turn::Waits) => tls.outgoing.try_send(&tls.tcp),
                // What came before is given out first.
                Err(_) if reader.filled().len() > before => break,
                Err(error) => return Poll::Ready(Err(error)),
            }
            if tls.ended || reader.filled().len() > before {
                break;
            }
            if ready!(tls.incoming.poll_fill(&mut tls.tcp, cx))? == 0 {
                return Poll::Ready(Err(cut_off()));
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tls {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let tls = self.get_mut();
        if tls.shut {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        if tls.outgoing.is_due() {
            ready!(tls.outgoing.poll_send(&mut tls.tcp, cx))?;
        }
        if parts.iter().all(|part| part.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        let bytes = tls.perform(&Task::Write(parts))?;
        if tls.outgoing.is_due() {
            // What the socket does not take now it takes before the next write.
            if let Poll::Ready(Err(error)) = tls.outgoing.poll_send(&mut tls.tcp, cx) {
                return Poll::Ready(Err(error));
            }
        }
        Poll::Ready(Ok(bytes))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let tls = self.get_mut();
        tls.outgoing.poll_send(&mut tls.tcp, cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let tls = self.get_mut();
        if !tls.shut {
            tls.perform(&Task::Close)?;
            tls.shut = true;
        }
        ready!(tls.outgoing.poll_send(&mut tls.tcp, cx))?;
        Pin::new(&mut tls.tcp).poll_shutdown(cx)
    }
}
