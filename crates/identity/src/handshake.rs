//! Handshakes of TLS 1.3: rustls decides, this reads and writes for it.

use std::io;
use std::ops::Deref;

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{
    ConnectionState, EncodeError, UnbufferedConnectionCommon, UnbufferedStatus,
};
use rustls::{Error as TlsError, ExtractedSecrets};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::limits::HANDSHAKE_BUFFER;
use crate::peer::PeerId;
use crate::secured::{Rekey, SecuredRead, SecuredWrite, Start, secured};

/// An end of a connection that shakes hands.
pub(crate) trait Side: Deref<Target = UnbufferedConnectionCommon<Self::Data>> {
    type Data;

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data>;

    fn into_keys(self) -> Result<(ExtractedSecrets, Box<dyn Rekey>), TlsError>;
}

impl Side for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn into_keys(self) -> Result<(ExtractedSecrets, Box<dyn Rekey>), TlsError> {
        let (secrets, rekey) = self.dangerous_into_kernel_connection()?;
        Ok((secrets, Box::new(rekey)))
    }
}

impl Side for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(incoming)
    }

    fn into_keys(self) -> Result<(ExtractedSecrets, Box<dyn Rekey>), TlsError> {
        let (secrets, rekey) = self.dangerous_into_kernel_connection()?;
        Ok((secrets, Box::new(rekey)))
    }
}

/// What is to be done before rustls is asked again.
enum Next {
    Ask,
    Send,
    Receive,
    Done,
}

/// Bytes on their way in and out during a handshake.
struct Traffic {
    incoming: Vec<u8>,
    filled: usize,
    outgoing: Vec<u8>,
    early: Vec<u8>,
    closed: bool,
}

/// Shakes hands. If the other side is refused, it is told so before the error is returned.
///
/// # Errors
/// With a [`TlsError`] inside, if either side refuses the other; otherwise if the connection fails.
pub(crate) async fn shake<S: Side>(
    mut side: S,
    mut tcp: TcpStream,
) -> io::Result<(SecuredRead, SecuredWrite, PeerId)> {
    let invalid = |e: TlsError| io::Error::new(io::ErrorKind::InvalidData, e);
    let mut traffic = Traffic {
        incoming: vec![0; HANDSHAKE_BUFFER],
        filled: 0,
        outgoing: Vec::new(),
        early: Vec::new(),
        closed: false,
    };
    let mut refused: Option<TlsError> = None;
    loop {
        let next = match (traffic.ask(&mut side), refused.take()) {
            (Ok(next @ (Next::Ask | Next::Send)), earlier) => {
                refused = earlier;
                next
            }
            (Ok(next), None) => next,
            // rustls has an alert for the other side, which it gives when it is asked again.
            (Err(error), None) => {
                refused = Some(error);
                Next::Ask
            }
            (_, Some(error)) => {
                // A side that has gone already is told nothing.
                let _ = tcp.write_all(&traffic.outgoing).await;
                return Err(invalid(error));
            }
        };
        match next {
            Next::Ask => {}
            Next::Send => {
                let sent = tcp.write_all(&traffic.outgoing).await;
                traffic.outgoing.clear();
                if let Err(error) = sent {
                    // Why it was refused says more than that it has gone since.
                    return Err(refused.map_or(error, invalid));
                }
            }
            Next::Receive => traffic.receive(&mut tcp).await?,
            Next::Done => break,
        }
    }
    let shown = side.peer_certificates().and_then(<[_]>::first);
    let peer = shown.and_then(PeerId::of);
    let peer = peer.ok_or_else(|| invalid(TlsError::NoCertificatesPresented))?;
    let (secrets, rekey) = side.into_keys().map_err(invalid)?;
    traffic.incoming.truncate(traffic.filled);
    let start = Start {
        secrets,
        rekey,
        early: traffic.early,
        unread: traffic.incoming,
        closed: traffic.closed,
    };
    let (read, write) = secured(tcp, start).map_err(invalid)?;
    Ok((read, write, peer))
}

impl Traffic {
    /// Lets rustls look at what has come.
    fn ask<S: Side>(&mut self, side: &mut S) -> Result<Next, TlsError> {
        let UnbufferedStatus { discard, state } = side.process(&mut self.incoming[..self.filled]);
        let next = match state {
            Err(error) => Err(error),
            Ok(ConnectionState::EncodeTlsData(mut data)) => {
                let start = self.outgoing.len();
                loop {
                    match data.encode(&mut self.outgoing[start..]) {
                        Ok(n) => {
                            self.outgoing.truncate(start + n);
                            break Ok(Next::Ask);
                        }
                        Err(EncodeError::InsufficientSize(e)) => {
                            self.outgoing.resize(start + e.required_size, 0);
                        }
                        Err(e) => break Err(TlsError::General(e.to_string())),
                    }
                }
            }
            Ok(ConnectionState::TransmitTlsData(data)) => {
                // They are sent before rustls is asked again.
                data.done();
                Ok(Next::Send)
            }
            Ok(ConnectionState::BlockedHandshake) => Ok(Next::Receive),
            Ok(ConnectionState::ReadTraffic(mut data)) => {
                while let Some(record) = data.next_record() {
                    self.early.extend_from_slice(record?.payload);
                }
                Ok(Next::Ask)
            }
            Ok(ConnectionState::PeerClosed) => {
                self.closed = true;
                Ok(Next::Ask)
            }
            Ok(ConnectionState::WriteTraffic(_)) => Ok(Next::Done),
            Ok(other) => Err(TlsError::General(format!("unexpected state {other:?}"))),
        };
        self.incoming.copy_within(discard..self.filled, 0);
        self.filled -= discard;
        next
    }

    async fn receive(&mut self, tcp: &mut TcpStream) -> io::Result<()> {
        let free = &mut self.incoming[self.filled..];
        if free.is_empty() {
            return Err(io::Error::other("its handshake is too long"));
        }
        let n = tcp.read(free).await?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.filled += n;
        Ok(())
    }
}
