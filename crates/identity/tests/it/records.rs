//! Connections against TLS of another make: rustls with its own records, through tokio-rustls.

use std::io::IoSlice;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tandem_identity::{Authority, Identity, Link, NODE_NAME};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::pair::{PATIENCE, member, pair, tcp_pair};

fn roots(authority: &Authority) -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    let pem = authority.certificate_pem().as_bytes();
    roots
        .add(CertificateDer::from_pem_slice(pem).unwrap())
        .unwrap();
    Arc::new(roots)
}

fn own(identity: &Identity) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let certificate = CertificateDer::from_pem_slice(identity.certificate_pem().as_bytes());
    let key = PrivateKeyDer::from_pem_slice(identity.key_pem().as_bytes());
    (vec![certificate.unwrap()], key.unwrap())
}

/// One end of ours and one of theirs; ours connects or is connected to. `suite` is the only one that
/// theirs knows.
async fn mixed(ours_connects: bool, suite: rustls::SupportedCipherSuite) -> (Link, TlsStream<Tcp>) {
    let cluster = Authority::create().unwrap();
    let (ours, theirs) = (member(&cluster), cluster.issue().unwrap());
    let (chain, key) = own(&theirs);
    let provider = Arc::new(rustls::crypto::CryptoProvider {
        cipher_suites: vec![suite],
        ..rustls::crypto::aws_lc_rs::default_provider()
    });
    let roots = roots(&cluster);
    if ours_connects {
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_client_cert_verifier(verifier.build().unwrap())
            .with_single_cert(chain, key)
            .unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let accepting = async {
            let (tcp, _) = listener.accept().await.unwrap();
            acceptor.accept(tcp).await.unwrap()
        };
        let (link, stream) = tokio::join!(ours.connect(&address, PATIENCE), accepting);
        return (link.unwrap(), TlsStream::Server(stream));
    }
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    let connector = TlsConnector::from(Arc::new(config));
    let (connecting, accepting) = tcp_pair().await;
    let name = ServerName::try_from(NODE_NAME).unwrap();
    let (stream, link) = tokio::join!(
        connector.connect(name, connecting),
        ours.accept(accepting, PATIENCE)
    );
    (link.unwrap(), TlsStream::Client(stream.unwrap()))
}

type Tcp = tokio::net::TcpStream;

/// Numbers that look random and are not.
struct Dice(u32);

impl Dice {
    fn up_to(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) as usize % (most + 1)
    }
}

fn content(length: usize, seed: u8) -> Vec<u8> {
    // 251 is prime, so that no record begins like the one before.
    let cycle = (0..=250_u8).map(|i| i ^ seed).cycle();
    cycle.take(length).collect()
}

/// Writes content in pieces of all sizes, some in several places.
async fn send<W: AsyncWrite + Unpin>(write: &mut W, content: &[u8], dice: &mut Dice) {
    let mut rest = content;
    while !rest.is_empty() {
        let most = [10, 3000, 100_000, 2_000_000][dice.up_to(3)];
        let (piece, _) = rest.split_at(rest.len().min(1 + dice.up_to(most)));
        let (a, b) = piece.split_at(dice.up_to(piece.len()));
        let (b, c) = b.split_at(dice.up_to(b.len()));
        let parts = [b"", a, b"", b, c].map(IoSlice::new);
        let taken = write.write_vectored(&parts).await.unwrap();
        assert!(taken > 0 && taken <= piece.len());
        rest = &rest[taken..];
    }
    write.flush().await.unwrap();
}

/// Reads so much content in pieces of all sizes.
async fn take<R: AsyncRead + Unpin>(read: &mut R, length: usize, dice: &mut Dice) -> Vec<u8> {
    let mut all = Vec::new();
    let mut buffer = vec![0; 300_000];
    while all.len() < length {
        let most = [1, 100, 17_000, 299_999][dice.up_to(3)];
        let room = (1 + dice.up_to(most)).min(length - all.len());
        let n = read.read(&mut buffer[..room]).await.unwrap();
        assert!(n > 0, "the end came after {} of {length} bytes", all.len());
        all.extend_from_slice(&buffer[..n]);
    }
    all
}

const LONG: usize = 3_000_000;

#[tokio::test]
async fn each_understands_the_other_also_with_new_keys() {
    use rustls::crypto::aws_lc_rs::cipher_suite::{
        TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384,
    };
    for ours_connects in [true, false] {
        for suite in [TLS13_AES_128_GCM_SHA256, TLS13_AES_256_GCM_SHA384] {
            let (link, mut theirs) = mixed(ours_connects, suite).await;
            let (mut read, mut write) = link.into_split();
            for round in 0..4_u8 {
                let (there, back) = (content(LONG, round), content(LONG / 2, round + 9));
                if round > 0 {
                    // They go on with a new key, and ask for a new one of ours.
                    match &mut theirs {
                        TlsStream::Client(s) => s.get_mut().1.refresh_traffic_keys().unwrap(),
                        TlsStream::Server(s) => s.get_mut().1.refresh_traffic_keys().unwrap(),
                    }
                }
                let (mut their_read, mut their_write) = tokio::io::split(&mut theirs);
                let mut dice = [1, 2, 3, 4].map(Dice);
                let [a, b, c, d] = &mut dice;
                let (_, seen_there, _, seen_back) = tokio::join!(
                    send(&mut write, &there, a),
                    take(&mut their_read, LONG, b),
                    send(&mut their_write, &back, c),
                    take(&mut read, LONG / 2, d),
                );
                assert!(seen_there == there && seen_back == back, "round {round}");
            }
            // And each sees that the other meant to end.
            theirs.shutdown().await.unwrap();
            assert_eq!(read.read(&mut [0; 9]).await.unwrap(), 0);
            write.shutdown().await.unwrap();
            assert_eq!(theirs.read(&mut [0; 9]).await.unwrap(), 0);
        }
    }
}

#[tokio::test]
async fn a_connection_that_is_cut_is_not_one_that_ended() {
    let cluster = Authority::create().unwrap();
    let (a, b) = (member(&cluster), member(&cluster));
    for meant in [true, false] {
        let (from, to) = pair(&a, &b).await;
        let (mut from, mut to) = (from.unwrap(), to.unwrap());
        from.write_all(b"the first half").await.unwrap();
        from.flush().await.unwrap();
        if meant {
            from.shutdown().await.unwrap();
            assert!(from.write_all(b"more").await.is_err());
        }
        drop(from);
        let mut seen = Vec::new();
        let end = to.read_to_end(&mut seen).await;
        assert_eq!(seen, b"the first half");
        match end {
            Ok(_) => assert!(meant),
            Err(e) => {
                assert!(!meant);
                assert_eq!(e.kind(), std::io::ErrorKind::UnexpectedEof);
            }
        }
    }
}

#[tokio::test]
async fn one_direction_goes_on_when_the_other_has_ended() {
    let cluster = Authority::create().unwrap();
    let (from, to) = pair(&member(&cluster), &member(&cluster)).await;
    let (mut from, mut to) = (from.unwrap(), to.unwrap());
    from.shutdown().await.unwrap();
    assert_eq!(to.read(&mut [0; 9]).await.unwrap(), 0);
    to.write_all(b"still here").await.unwrap();
    to.shutdown().await.unwrap();
    let mut seen = String::new();
    from.read_to_string(&mut seen).await.unwrap();
    assert_eq!(seen, "still here");
}

/// Passes bytes on from one connection to another, but for one that it changes.
async fn damage(mut from: Tcp, mut to: Tcp, at: usize) {
    let mut passed = 0;
    let mut buffer = [0; 1000];
    loop {
        let n = from.read(&mut buffer).await.unwrap_or(0);
        if (passed..passed + n).contains(&at) {
            buffer[at - passed] ^= 0x20;
        }
        passed += n;
        if n == 0 || to.write_all(&buffer[..n]).await.is_err() {
            return;
        }
    }
}

#[tokio::test]
async fn a_byte_that_is_changed_on_the_way_ends_the_connection_and_is_never_content() {
    let cluster = Authority::create().unwrap();
    let (a, b) = (member(&cluster), member(&cluster));
    let sent = content(40_000, 3);
    let (mut broken_handshakes, mut broken_contents, mut whole) = (0, 0, 0);
    for at in (0..48_000).step_by(389) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let middle = tokio::spawn(async move {
            let (from, _) = listener.accept().await.unwrap();
            let (to, end) = tcp_pair().await;
            (from, to, end)
        });
        let connecting = tokio::spawn({
            let (a, sent) = (a.clone(), sent.clone());
            async move {
                let mut link = a.connect(&address, PATIENCE).await.ok()?;
                link.write_all(&sent).await.ok()?;
                link.shutdown().await.ok()
            }
        });
        let (from, to, end) = middle.await.unwrap();
        let (from, to) = (from.into_std().unwrap(), to.into_std().unwrap());
        let again = |s: &std::net::TcpStream| Tcp::from_std(s.try_clone().unwrap()).unwrap();
        let there = tokio::spawn(damage(again(&from), again(&to), at));
        let back = tokio::spawn(damage(again(&to), again(&from), usize::MAX));
        let mut seen = Vec::new();
        match b.accept(end, PATIENCE).await {
            Err(_) => broken_handshakes += 1,
            Ok(mut link) => match link.read_to_end(&mut seen).await {
                Ok(_) => {
                    assert_eq!(seen, sent, "{at}");
                    whole += 1;
                }
                Err(_) => broken_contents += 1,
            },
        }
        assert!(sent.starts_with(&seen), "{at}");
        there.abort();
        back.abort();
        drop((from, to));
        connecting.abort();
    }
    // The last bytes are beyond what was sent.
    assert!(broken_handshakes > 0 && broken_contents > 50 && whole > 0);
}

#[tokio::test]
async fn reading_can_be_given_up_and_taken_up_again() {
    let cluster = Authority::create().unwrap();
    let (from, to) = pair(&member(&cluster), &member(&cluster)).await;
    let (mut from, mut to) = (from.unwrap(), to.unwrap());
    let sent = content(LONG, 5);
    let writing = tokio::spawn({
        let sent = sent.clone();
        async move {
            from.write_all(&sent).await.unwrap();
            from.shutdown().await.unwrap();
        }
    });
    let mut seen = Vec::new();
    let mut buffer = vec![0; 70_000];
    loop {
        // Polled once and dropped, over and over.
        let read = tokio::select! {
            biased;
            read = to.read(&mut buffer) => Some(read.unwrap()),
            () = tokio::task::yield_now() => None,
        };
        match read {
            Some(0) => break,
            Some(n) => seen.extend_from_slice(&buffer[..n]),
            None => {}
        }
    }
    writing.await.unwrap();
    assert!(seen == sent);
}
