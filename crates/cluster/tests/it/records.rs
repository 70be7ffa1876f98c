//! What goes through a TLS connection comes out of it, or an error does.

use std::io::{ErrorKind, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustls::CipherSuite as Suite;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tandem_cluster::limits::MAX_UNSENT_BYTES;
use tandem_cluster::{Authority, Link, Security};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::pair::{PATIENCE, member, pair, tcp_pair};
use crate::stranger::{anyone, anyone_with};

fn text(bytes: usize, random: &mut ChaCha8Rng) -> Vec<u8> {
    (0..bytes).map(|_| random.random()).collect()
}

/// Writes in pieces of any size, some of several parts, some empty, and says goodbye.
async fn write_in_pieces<W: AsyncWrite + Unpin>(
    mut to: W,
    text: Vec<u8>,
    mut random: ChaCha8Rng,
) -> W {
    let mut rest = text.as_slice();
    while !rest.is_empty() {
        let largest = [1, 100, 20_000, 700_000][random.random_range(0..4)];
        let piece = &rest[..rest.len().min(random.random_range(0..=largest))];
        let (a, b) = piece.split_at(random.random_range(0..=piece.len()));
        let parts = [a, &[], b].map(IoSlice::new);
        let written = to.write_vectored(&parts).await.unwrap();
        assert!(written <= piece.len());
        rest = &rest[written..];
        if random.random_range(0..8) == 0 {
            to.flush().await.unwrap();
        }
    }
    to.shutdown().await.unwrap();
    to
}

/// Reads with buffers of any size until the end.
async fn read_in_pieces<R: AsyncRead + Unpin>(mut from: R, mut random: ChaCha8Rng) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        let largest = [1, 100, 20_000, 300_000][random.random_range(0..4)];
        let mut buffer = vec![0; random.random_range(1..=largest)];
        let read = from.read(&mut buffer).await.unwrap();
        if read == 0 {
            return all;
        }
        all.extend_from_slice(&buffer[..read]);
    }
}

/// Sends both ways at once and compares.
async fn both_ways<A, B>(ours: A, theirs: B, seed: u64)
where
    A: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    B: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let (there, back) = (text(1_500_000, &mut random), text(1_500_000, &mut random));
    let ((our_read, our_write), (their_read, their_write)) = (split(ours), split(theirs));
    let mut fork = || ChaCha8Rng::seed_from_u64(random.random());
    let (a, b, came, went) = tokio::join!(
        tokio::spawn(write_in_pieces(our_write, there.clone(), fork())),
        tokio::spawn(write_in_pieces(their_write, back.clone(), fork())),
        tokio::spawn(read_in_pieces(our_read, fork())),
        tokio::spawn(read_in_pieces(their_read, fork())),
    );
    assert!(
        came.unwrap() == back && went.unwrap() == there,
        "seed {seed}"
    );
    drop((a, b));
}

/// A listener of another make, with a certificate of the cluster, that asks for none.
async fn foreign_listener(
    provider: CryptoProvider,
    cluster: &Authority,
    tcp: TcpStream,
) -> tokio_rustls::server::TlsStream<TcpStream> {
    let identity = cluster.issue().unwrap();
    let chain = CertificateDer::from_pem_slice(identity.certificate_pem().as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(identity.key_pem().as_bytes()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .unwrap();
    tokio_rustls::TlsAcceptor::from(Arc::new(config))
        .accept(tcp)
        .await
        .unwrap()
}

/// Each suite of each library that may be at an end, alone. Which one is at ours depends on the processor.
fn suites() -> Vec<CryptoProvider> {
    let mut all = aws_lc_rs::DEFAULT_CIPHER_SUITES.to_vec();
    #[cfg(target_arch = "x86_64")]
    all.extend_from_slice(rustls::crypto::ring::DEFAULT_CIPHER_SUITES);
    all.retain(|s| {
        matches!(
            s.suite(),
            Suite::TLS13_AES_128_GCM_SHA256 | Suite::TLS13_AES_256_GCM_SHA384
        )
    });
    let alone = |suite| CryptoProvider {
        cipher_suites: vec![suite],
        ..aws_lc_rs::default_provider()
    };
    all.into_iter().map(alone).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn another_implementation_of_tls_understands_ours_and_ours_understands_it() {
    let cluster = Authority::create().unwrap();
    let (ours, identity) = (member(&cluster), cluster.issue().unwrap());
    for (seed, provider) in (0..).zip(suites()) {
        let (connecting, accepting) = tcp_pair().await;
        let (theirs, link) = tokio::join!(
            anyone_with(provider.clone(), connecting, Some(&identity)),
            ours.accept(accepting, PATIENCE)
        );
        both_ways(link.unwrap(), theirs.unwrap(), seed).await;

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let accepting = async {
            let (tcp, _) = listener.accept().await.unwrap();
            foreign_listener(provider, &cluster, tcp).await
        };
        let (link, theirs) = tokio::join!(ours.connect(&address, PATIENCE), accepting);
        both_ways(link.unwrap(), theirs, seed).await;
    }
}

/// Small writes wait for each other, so that the socket is given much at once; a flush lets them out.
#[tokio::test]
async fn what_is_written_goes_out_when_it_is_much_or_flushed() {
    let cluster = Authority::create().unwrap();
    let (ours, theirs) = (member(&cluster), member(&cluster));
    let (from, to) = pair(&ours, &theirs).await;
    let (mut from, mut to) = (from.unwrap(), to.unwrap());
    let quiet = Duration::from_millis(50);
    let mut came = vec![0; 2 * MAX_UNSENT_BYTES];
    let piece = vec![7; 1000];
    from.write_all(&piece).await.unwrap();
    from.write_all(&piece).await.unwrap();
    assert!(timeout(quiet, to.read(&mut came)).await.is_err());
    from.flush().await.unwrap();
    to.read_exact(&mut came[..2000]).await.unwrap();
    assert!(came[..2000].iter().all(|b| *b == 7));
    // As much as is held back goes without a flush, and is taken from a write of any size.
    let large = vec![8; 3 * MAX_UNSENT_BYTES];
    let parts = [&large[..100], &large[100..]].map(IoSlice::new);
    let written = from.write_vectored(&parts).await.unwrap();
    assert_eq!(written, MAX_UNSENT_BYTES);
    let first = to.read(&mut came).await.unwrap();
    assert!(first > 0);
    // The socket may not have room for all of it.
    let (flushed, rest) = tokio::join!(from.flush(), to.read_exact(&mut came[first..written]));
    flushed.and(rest).unwrap();
    assert!(came[..written].iter().all(|b| *b == 8));
}

#[tokio::test]
async fn new_keys_may_come_at_any_time() {
    let cluster = Authority::create().unwrap();
    let (ours, identity) = (member(&cluster), cluster.issue().unwrap());
    let (connecting, accepting) = tcp_pair().await;
    let (theirs, link) = tokio::join!(
        anyone(connecting, Some(&identity)),
        ours.accept(accepting, PATIENCE)
    );
    let (mut theirs, mut link) = (theirs.unwrap(), link.unwrap());
    for round in 0..20_u8 {
        // Asks the other end for new keys, too.
        theirs.get_mut().1.refresh_traffic_keys().unwrap();
        theirs.write_all(&[round; 3000]).await.unwrap();
        theirs.flush().await.unwrap();
        let mut came = [0; 3000];
        link.read_exact(&mut came).await.unwrap();
        assert_eq!(came, [round; 3000]);
        link.write_all(&came).await.unwrap();
        link.flush().await.unwrap();
        theirs.read_exact(&mut came).await.unwrap();
        assert_eq!(came, [round; 3000]);
    }
}

#[tokio::test]
async fn an_end_without_a_goodbye_is_an_error() {
    let cluster = Authority::create().unwrap();
    let (ours, identity) = (member(&cluster), cluster.issue().unwrap());
    let (connecting, accepting) = tcp_pair().await;
    let (theirs, link) = tokio::join!(
        anyone(connecting, Some(&identity)),
        ours.accept(accepting, PATIENCE)
    );
    let (mut theirs, mut link) = (theirs.unwrap(), link.unwrap());
    theirs.write_all(b"cut off").await.unwrap();
    theirs.flush().await.unwrap();
    drop(theirs);
    let mut came = Vec::new();
    let error = link.read_to_end(&mut came).await.unwrap_err();
    assert_eq!(came, b"cut off");
    assert!(
        matches!(
            error.kind(),
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset
        ),
        "{error}"
    );
}

/// What a relay does to the bytes from the connecting end.
#[derive(Clone, Copy)]
enum Harm {
    Flips(usize),
    CutsAt(usize),
    OneByOne,
}

/// Both ends of a connection through a relay that does harm, and a task that ends with it.
async fn harmed(from: &Security, to: &Security, harm: Harm) -> (Option<Link>, Option<Link>) {
    let (target, middle) = (
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
        TcpListener::bind("127.0.0.1:0").await.unwrap(),
    );
    let there = target.local_addr().unwrap();
    let address = middle.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let (near, _) = middle.accept().await.unwrap();
        let far = TcpStream::connect(there).await.unwrap();
        far.set_nodelay(true).unwrap();
        let ((mut near_read, mut near_write), (mut far_read, mut far_write)) =
            (near.into_split(), far.into_split());
        let back = tokio::spawn(async move {
            let _ = tokio::io::copy(&mut far_read, &mut near_write).await;
        });
        let (mut at, mut buffer) = (0, vec![0; 4096]);
        while let Ok(read @ 1..) = near_read.read(&mut buffer).await {
            let mut bytes = buffer[..read].to_vec();
            let (mut pieces, mut cut) = (vec![], false);
            match harm {
                Harm::Flips(here) if (at..at + read).contains(&here) => bytes[here - at] ^= 1,
                Harm::CutsAt(here) if (at..at + read).contains(&here) => {
                    bytes.truncate(here - at);
                    cut = true;
                }
                Harm::OneByOne => pieces = bytes.chunks(1).collect(),
                _ => {}
            }
            if pieces.is_empty() {
                pieces = vec![&bytes];
            }
            at += read;
            for piece in pieces {
                if far_write.write_all(piece).await.is_err() {
                    return;
                }
            }
            if cut {
                break;
            }
        }
        drop(far_write);
        let _ = back.await;
    });
    let accepting = async {
        let (tcp, _) = target.accept().await.unwrap();
        to.accept(tcp, PATIENCE).await
    };
    let (from, to) = tokio::join!(from.connect(&address, PATIENCE), accepting);
    (from.ok(), to.ok())
}

const SENT: usize = 3000;

fn sent() -> Vec<u8> {
    text(SENT, &mut ChaCha8Rng::seed_from_u64(1))
}

/// What comes out of a connection, and whether it ended well.
async fn through(from: &Security, to: &Security, harm: Harm) -> Option<(Vec<u8>, bool)> {
    let (from, to) = harmed(from, to, harm).await;
    let sending = async {
        let mut from = from?;
        let _ = from.write_all(&sent()).await;
        let _ = from.shutdown().await;
        // Until the other end has read.
        let _ = from.read_to_end(&mut Vec::new()).await;
        Some(())
    };
    let reading = async {
        let mut to = to?;
        let mut came = Vec::new();
        let read = to.read_to_end(&mut came).await;
        Some((came, read.is_ok()))
    };
    let (_, came) = tokio::join!(sending, reading);
    came
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flipped_bit_or_a_cut_never_becomes_text() {
    let cluster = Authority::create().unwrap();
    let (a, b) = (member(&cluster), member(&cluster));
    let sent = sent();
    let (mut refused, mut broken, mut whole) = (0, 0, 0);
    // The handshake of the connecting end takes about 2,500 bytes, the text 3,022, the goodbye 24.
    for at in (0..6400).step_by(29) {
        for harm in [Harm::Flips(at), Harm::CutsAt(at)] {
            match through(&a, &b, harm).await {
                None => refused += 1,
                Some((came, true)) => {
                    assert!(came == sent, "at {at}");
                    whole += 1;
                }
                Some((came, false)) => {
                    assert!(sent.starts_with(&came), "at {at}");
                    broken += 1;
                }
            }
        }
    }
    // There are places of each kind; the last offsets are behind the goodbye.
    assert!(
        refused > 40 && broken > 40 && whole > 2,
        "{refused} {broken} {whole}"
    );
}

#[tokio::test]
async fn records_may_come_byte_by_byte() {
    let cluster = Authority::create().unwrap();
    let (a, b) = (member(&cluster), member(&cluster));
    let (came, well) = through(&a, &b, Harm::OneByOne).await.unwrap();
    assert!(well && came.len() == SENT);
}
