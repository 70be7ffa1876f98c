//! How an authority lets one machine join, see [`crate::join`].

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::authority::{Authority, AuthorityError};
use crate::explain::explain;
use crate::identity::{no_sessions, provider};
use crate::join::{Ask, Reply, read, write};
use crate::limits::{ACCEPT_RETRY, JOIN, MAX_HANDSHAKES, MAX_WRONG_SECRETS};
use crate::peer::PeerId;
use crate::tls::Tls;
use crate::token::{Secret, Token, TokenError};

/// An address that no packet is sent to: which of this machine's addresses would be used for it?
const SOMEWHERE: &str = "192.0.2.1:9";

/// Waits for one machine to join.
pub struct Invitation {
    listener: TcpListener,
    token: Token,
    door: Arc<Door>,
    tls: Arc<ServerConfig>,
}

impl fmt::Debug for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Invitation")
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

/// Why nobody joined.
#[derive(Debug, thiserror::Error)]
pub enum InviteError {
    /// The listener cannot be used.
    #[error(
        "cannot listen on {address}: {source}; choose an address of this machine and a free port"
    )]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// It is not known where the other machine should connect to.
    #[error(
        "this machine does not know at which address others reach it: name it with --address HOST:PORT"
    )]
    NoAddress,
    /// The token cannot be made.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// The authority cannot be used.
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    /// TLS cannot be set up.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// Nobody came.
    #[error("nobody joined within {} s; the token is worthless now", .0.as_secs())]
    Over(Duration),
    /// Somebody guesses.
    #[error(
        "{MAX_WRONG_SECRETS} times somebody came with a wrong secret, an old token or a guess: the invitation is \
         over, and its token worthless; invite again"
    )]
    WrongSecrets,
    /// A certificate was made and did not arrive.
    #[error(
        "a machine joined with the token, but its certificate did not reach it: {0}; invite again"
    )]
    Undelivered(String),
}

/// What decides who gets in.
struct Door {
    authority: Authority,
    secret: Secret,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    used: bool,
    wrong: u32,
}

/// How one caller ended.
enum Outcome {
    Joined(PeerId),
    Wrong { last: bool },
    Refused(String),
    Undelivered(String),
}

impl Invitation {
    /// Opens a listener and makes a token for it. `address` is where the other machine connects to,
    /// `host:port`; without it, the listener's own, or that of the interface towards other networks.
    ///
    /// # Errors
    /// If the listener cannot be opened, or it is not known where others reach it.
    pub async fn open(
        authority: Authority,
        listen: SocketAddr,
        address: Option<&str>,
    ) -> Result<Self, InviteError> {
        let cannot = |source| InviteError::Listen {
            address: listen,
            source,
        };
        let listener = TcpListener::bind(listen).await.map_err(cannot)?;
        let bound = listener.local_addr().map_err(cannot)?;
        let address = match address {
            Some(address) => address.to_owned(),
            None => reached_at(bound).ok_or(InviteError::NoAddress)?.to_string(),
        };
        let token = Token::new(&address, authority.fingerprint())?;
        let tls = Arc::new(server_config(&authority)?);
        Ok(Self {
            listener,
            tls,
            door: Arc::new(Door {
                authority,
                secret: token.secret(),
                state: Mutex::default(),
            }),
            token,
        })
    }

    /// What the other machine needs.
    #[must_use]
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// Waits until a machine has joined, for at most `wait`; then the token is worthless.
    ///
    /// # Errors
    /// If nobody joined, or too many came with wrong secrets.
    pub async fn serve(self, wait: Duration) -> Result<PeerId, InviteError> {
        let over = timeout(wait, self.take()).await;
        over.map_err(|_| InviteError::Over(wait))?
    }

    async fn take(self) -> Result<PeerId, InviteError> {
        let (ended, mut outcomes) = mpsc::channel(MAX_HANDSHAKES);
        // Dropping it ends the callers that are left.
        let mut callers = JoinSet::new();
        let mut silent = Silent::default();
        loop {
            let outcome = tokio::select! {
                outcome = outcomes.recv() => outcome,
                Some(_) = callers.join_next() => continue,
                // Those that have asked are few: so many wrong secrets end the invitation.
                accepted = self.listener.accept(), if callers.len() < 2 * MAX_HANDSHAKES => {
                    match accepted {
                        Ok((tcp, from)) => {
                            let (tls, door) = (Arc::clone(&self.tls), Arc::clone(&self.door));
                            let ended = ended.clone();
                            let give_way = silent.add();
                            callers.spawn(async move {
                                let outcome = door.caller(tls, tcp, give_way).await;
                                // Nobody listens any more once a machine has joined.
                                let _ = ended.send((from, outcome)).await;
                            });
                        }
                        Err(error) => {
                            tracing::error!(%error, "cannot take a connection");
                            tokio::time::sleep(ACCEPT_RETRY).await;
                        }
                    }
                    continue;
                }
            };
            match outcome {
                Some((_, Outcome::Joined(peer))) => return Ok(peer),
                Some((_, Outcome::Undelivered(reason))) => {
                    return Err(InviteError::Undelivered(reason));
                }
                Some((from, Outcome::Wrong { last })) => {
                    tracing::warn!(%from, "a machine with a wrong secret was refused");
                    if last {
                        return Err(InviteError::WrongSecrets);
                    }
                }
                Some((from, Outcome::Refused(reason))) => {
                    tracing::warn!(%from, %reason, "a machine could not join");
                }
                None => std::future::pending().await,
            }
        }
    }
}

/// Callers that have asked nothing yet, the oldest first.
#[derive(Default)]
struct Silent(VecDeque<oneshot::Sender<Infallible>>);

impl Silent {
    /// Adds a caller, who gives way when what is returned ends; the oldest does if there are too many.
    fn add(&mut self) -> oneshot::Receiver<Infallible> {
        self.0.retain(|caller| !caller.is_closed());
        if self.0.len() >= MAX_HANDSHAKES {
            self.0.pop_front();
        }
        let (stays, give_way) = oneshot::channel();
        self.0.push_back(stays);
        give_way
    }
}

impl Door {
    /// One machine that wants to join: [`JOIN`] to ask, unless it gives way before, and [`JOIN`] to take the answer.
    async fn caller(
        &self,
        tls: Arc<ServerConfig>,
        tcp: TcpStream,
        give_way: oneshot::Receiver<Infallible>,
    ) -> Outcome {
        let failed = |e: &io::Error| Outcome::Refused(explain(e).unwrap_or_else(|| e.to_string()));
        let asking = async {
            let mut stream = Tls::accept(tcp, tls).await?;
            let shown = stream.peer_certificates();
            let shown = shown.and_then(<[_]>::first).cloned();
            let shown = shown.ok_or_else(|| io::Error::other("it shows no key"))?;
            let ask: Ask = read(&mut stream).await?;
            io::Result::Ok((stream, shown, ask))
        };
        let asked = tokio::select! {
            biased;
            asked = timeout(JOIN, asking) => asked,
            _ = give_way => {
                let reason = "it was silent, and too many others came";
                return Outcome::Refused(reason.to_owned());
            }
        };
        let (mut stream, shown, ask) = match asked {
            Ok(Ok(asked)) => asked,
            Ok(Err(e)) => return failed(&e),
            Err(_) => return Outcome::Refused("it was silent".to_owned()),
        };
        let (answer, outcome) = self.decide(&ask, &shown);
        let telling = async {
            write(&mut stream, &answer).await?;
            // So that the answer is not lost with the connection.
            stream.shutdown().await
        };
        let told = match timeout(JOIN, telling).await {
            Ok(told) => told.map_err(|e| e.to_string()),
            Err(_) => Err("it took no answer".to_owned()),
        };
        match (told, outcome) {
            (Err(reason), Outcome::Joined(_)) => Outcome::Undelivered(reason),
            (_, outcome) => outcome,
        }
    }

    /// Who knows the secret first gets a certificate; the token is used before it leaves.
    fn decide(&self, ask: &Ask, shown: &CertificateDer<'_>) -> (Reply, Outcome) {
        let refused = |text: &str, outcome| (Reply::Refused(text.to_owned()), outcome);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.used || state.wrong >= MAX_WRONG_SECRETS {
            let text = "it has been used, or its invitation is over; make a new one";
            return refused(text, Outcome::Refused("the token was used".to_owned()));
        }
        if Secret::from_text(&ask.secret) != Some(self.secret) {
            state.wrong += 1;
            let last = state.wrong >= MAX_WRONG_SECRETS;
            let text = "it is not the one of the invitation that waits here now: it was used, its invitation \
                        is over, or it was copied wrongly; make a new one";
            return refused(text, Outcome::Wrong { last });
        }
        let signed = self.authority.sign_key_of(shown);
        let (certificate, peer) = match signed {
            Ok(signed) => signed,
            Err(e) => {
                let reason = e.to_string();
                return refused(&reason.clone(), Outcome::Refused(reason));
            }
        };
        state.used = true;
        let authority = self.authority.certificate_pem().to_owned();
        let welcome = Reply::Welcome {
            certificate,
            authority,
        };
        (welcome, Outcome::Joined(peer))
    }
}

/// Accepts every certificate: of a machine that joins, only the key counts, and that it has it.
#[derive(Debug)]
struct AnyKey;

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, &algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = provider().signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, &algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider()
            .signature_verification_algorithms
            .supported_schemes()
    }
}

/// Where others reach a listener.
fn reached_at(bound: SocketAddr) -> Option<SocketAddr> {
    if !bound.ip().is_unspecified() {
        return Some(bound);
    }
    let probe = UdpSocket::bind("0.0.0.0:0").ok()?;
    // Sends nothing; only chooses the interface.
    probe.connect(SOMEWHERE).ok()?;
    let ip: IpAddr = probe.local_addr().ok()?.ip();
    (!ip.is_unspecified()).then(|| SocketAddr::new(ip, bound.port()))
}

fn server_config(authority: &Authority) -> Result<ServerConfig, InviteError> {
    let issued = authority.issue_join()?;
    let unreadable = |_| InviteError::Authority(AuthorityError::Unreadable);
    let own = CertificateDer::from_pem_slice(issued.certificate.as_bytes()).map_err(unreadable)?;
    let key = PrivateKeyDer::from_pem_slice(issued.key.as_bytes()).map_err(unreadable)?;
    let of_authority = CertificateDer::from_pem_slice(authority.certificate_pem().as_bytes())
        .map_err(unreadable)?;
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_client_cert_verifier(Arc::new(AnyKey))
        .with_single_cert(vec![own, of_authority], key)?;
    no_sessions(&mut config);
    Ok(config)
}
