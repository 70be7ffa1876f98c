//! One machine lets another join.

use std::collections::VecDeque;
use std::io::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tandem_cluster::invite::{Invitation, InviteError};
use tandem_cluster::join::{JoinError, Membership, join};
use tandem_cluster::limits::{JOIN, MAX_HANDSHAKES, MAX_WRONG_SECRETS};
use tandem_cluster::{Authority, ClusterDir, DirectoryError, PeerId, Security, Token};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::pair::{PATIENCE, pair};

const ANYWHERE: &str = "127.0.0.1:0";

type Waiting = JoinHandle<Result<PeerId, InviteError>>;

async fn invite(cluster: &ClusterDir) -> (Token, Waiting) {
    let authority = cluster.authority().unwrap();
    let listen: SocketAddr = ANYWHERE.parse().unwrap();
    let invitation = Invitation::open(authority, listen, None).await.unwrap();
    let token = invitation.token().clone();
    (token, tokio::spawn(invitation.serve(PATIENCE)))
}

fn made() -> (tempfile::TempDir, ClusterDir) {
    let dir = tempfile::tempdir().unwrap();
    let cluster = ClusterDir::new(dir.path().join("cluster"));
    cluster.init().unwrap();
    (dir, cluster)
}

/// The same address and authority with another secret.
fn other_secret(token: &Token, cluster: &ClusterDir) -> Token {
    let fingerprint = cluster.authority().unwrap().fingerprint();
    Token::new(token.address(), fingerprint).unwrap()
}

fn refused(result: Result<Membership, JoinError>) -> String {
    match result {
        Err(JoinError::Refused(reason)) => reason,
        other => panic!("expected a refusal, got {other:?}"),
    }
}

#[tokio::test]
async fn who_joined_is_a_member_and_its_key_stayed_where_it_was_made() {
    let (_dir, cluster) = made();
    let (token, waiting) = invite(&cluster).await;
    let membership = join(&token, PATIENCE).await.unwrap();
    let joined = waiting.await.unwrap().unwrap();
    assert_eq!(membership.identity().id(), &joined);

    let dir = tempfile::tempdir().unwrap();
    let there = ClusterDir::new(dir.path().join("cluster"));
    there.prepare_join(&token.authority()).unwrap();
    there.keep(&membership).unwrap();
    let (here, there) = (cluster.load().unwrap(), there.load().unwrap());
    assert_eq!(there.authority(), here.authority());
    let (a, b) = (
        Security::Tls(Arc::new(here)),
        Security::Tls(Arc::new(there)),
    );
    for (from, to) in [(&a, &b), (&b, &a)] {
        let (connected, taken) = pair(from, to).await;
        assert_eq!(connected.unwrap().peer().cloned(), to.own_id());
        assert_eq!(taken.unwrap().peer().cloned(), from.own_id());
    }
    assert!(!dir.path().join("cluster/authority.key").exists());
}

#[cfg(unix)]
#[tokio::test]
async fn what_a_member_keeps_only_its_owner_can_read() {
    use std::os::unix::fs::PermissionsExt;
    let (_dir, cluster) = made();
    let (token, _waiting) = invite(&cluster).await;
    let membership = join(&token, PATIENCE).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let there = ClusterDir::new(dir.path().join("cluster"));
    there.keep(&membership).unwrap();
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(there.path()), 0o700);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(there.path()).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(mode(&entry.path()), 0o600);
        names.push(entry.file_name().into_string().unwrap());
    }
    names.sort();
    assert_eq!(names, ["authority.pem", "node.key", "node.pem"]);
}

#[tokio::test]
async fn a_token_is_used_once() {
    let (_dir, cluster) = made();
    let (token, waiting) = invite(&cluster).await;
    // Two at once: one of them gets in.
    let (a, b) = tokio::join!(join(&token, PATIENCE), join(&token, PATIENCE));
    assert_eq!(u32::from(a.is_ok()) + u32::from(b.is_ok()), 1);
    waiting.await.unwrap().unwrap();
    // And nobody afterwards.
    let late = join(&token, PATIENCE).await.unwrap_err();
    assert!(matches!(late, JoinError::Unreachable { .. }), "{late:?}");
    assert!(late.to_string().contains("tandem cluster invite"), "{late}");
    // Nor with another invitation at the same address.
    let address: SocketAddr = token.address().parse().unwrap();
    let authority = cluster.authority().unwrap();
    let next = Invitation::open(authority, address, None).await.unwrap();
    let new_token = next.token().clone();
    let waiting = tokio::spawn(next.serve(PATIENCE));
    let told = refused(join(&token, PATIENCE).await);
    assert!(told.contains("was used"), "{told}");
    join(&new_token, PATIENCE).await.unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_invitation_ends_with_its_time() {
    let (_dir, cluster) = made();
    let authority = cluster.authority().unwrap();
    let listen: SocketAddr = ANYWHERE.parse().unwrap();
    let invitation = Invitation::open(authority, listen, None).await.unwrap();
    let token = invitation.token().clone();
    let wait = Duration::from_millis(30);
    let over = invitation.serve(wait).await.unwrap_err();
    assert!(
        matches!(over, InviteError::Over(w) if w == wait),
        "{over:?}"
    );
    let late = join(&token, PATIENCE).await.unwrap_err();
    assert!(matches!(late, JoinError::Unreachable { .. }), "{late:?}");
}

#[tokio::test]
async fn a_wrong_secret_is_refused_and_too_many_end_the_invitation() {
    let (_dir, cluster) = made();
    let (token, waiting) = invite(&cluster).await;
    for _ in 1..MAX_WRONG_SECRETS {
        let wrong = other_secret(&token, &cluster);
        let told = refused(join(&wrong, PATIENCE).await);
        assert!(told.contains("make a new one"), "{told}");
        assert!(!waiting.is_finished());
    }
    refused(join(&other_secret(&token, &cluster), PATIENCE).await);
    let ended = waiting.await.unwrap().unwrap_err();
    assert!(matches!(ended, InviteError::WrongSecrets), "{ended:?}");
    // Also for who knows the secret.
    join(&token, PATIENCE).await.unwrap_err();

    // One less, and the right one still gets in.
    let (token, waiting) = invite(&cluster).await;
    for _ in 1..MAX_WRONG_SECRETS {
        refused(join(&other_secret(&token, &cluster), PATIENCE).await);
    }
    join(&token, PATIENCE).await.unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn only_the_authority_of_the_token_is_told_the_secret() {
    let (_dir, cluster) = made();
    let (token, waiting) = invite(&cluster).await;
    let stranger = Authority::create().unwrap();
    // Somebody else at the address: another authority, and one that answers no TLS at all.
    let wrong = Token::new(token.address(), stranger.fingerprint()).unwrap();
    let error = join(&wrong, PATIENCE).await.unwrap_err();
    assert!(matches!(error, JoinError::NotTheAuthority(_)), "{error:?}");
    assert!(!waiting.is_finished());

    let listener = TcpListener::bind(ANYWHERE).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let hearing = tokio::spawn(async move {
        let (mut tcp, _) = listener.accept().await.unwrap();
        let mut heard = vec![0; 4096];
        let n = tcp.read(&mut heard).await.unwrap();
        tcp.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        heard.truncate(n);
        let _ = tcp.read_to_end(&mut heard).await;
        heard
    });
    let fingerprint = cluster.authority().unwrap().fingerprint();
    let lured = Token::new(&address, fingerprint).unwrap();
    let error = join(&lured, PATIENCE).await.unwrap_err();
    assert!(matches!(error, JoinError::Broken { .. }), "{error:?}");
    let heard = hearing.await.unwrap();
    assert!(!heard.windows(6).any(|w| w == b"secret"));
    waiting.abort();
}

#[tokio::test]
async fn callers_that_say_nothing_or_nonsense_hold_nobody_up() {
    let (_dir, cluster) = made();
    let (token, waiting) = invite(&cluster).await;
    let mut silent = Vec::new();
    for i in 0..20 {
        let mut tcp = TcpStream::connect(token.address()).await.unwrap();
        if i % 2 == 0 {
            let _ = tcp.write_all(b"GET / HTTP/1.1\r\n\r\n").await;
        }
        silent.push(tcp);
    }
    join(&token, PATIENCE).await.unwrap();
    waiting.await.unwrap().unwrap();
}

/// They give way, so that whoever has the token need not wait until their time is over.
#[tokio::test]
async fn a_thousand_callers_that_say_nothing_hold_nobody_up() {
    let (_dir, cluster) = made();
    let (token, waiting) = invite(&cluster).await;
    let mut silent = VecDeque::new();
    for _ in 0..1000 {
        silent.push_back(TcpStream::connect(token.address()).await.unwrap());
        if silent.len() > MAX_HANDSHAKES {
            let mut oldest = silent.pop_front().unwrap();
            let closed = tokio::time::timeout(PATIENCE, oldest.read(&mut [0])).await;
            assert!(matches!(closed, Ok(Ok(0) | Err(_))), "{closed:?}");
        }
    }
    join(&token, JOIN / 2).await.unwrap();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_silent_authority_is_given_up() {
    let listener = TcpListener::bind(ANYWHERE).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let fingerprint = Authority::create().unwrap().fingerprint();
    let token = Token::new(&address, fingerprint).unwrap();
    let error = join(&token, Duration::from_millis(50)).await.unwrap_err();
    assert!(matches!(error, JoinError::Silent { .. }), "{error:?}");
}

#[tokio::test]
async fn an_identity_that_is_valid_is_not_replaced() {
    let (_dir, cluster) = made();
    let (_other_dir, other) = made();
    let own = cluster.load().unwrap().authority().to_owned();
    let foreign = other.load().unwrap().authority().to_owned();
    for fingerprint in [own, foreign] {
        let refused = cluster.prepare_join(&fingerprint);
        assert!(matches!(refused, Err(DirectoryError::Taken(_))));
    }
}

#[tokio::test]
async fn an_identity_that_cannot_be_used_is_replaced_by_one_of_the_same_cluster() {
    let (_dir, cluster) = made();
    let (_other_dir, other) = made();
    // As a certificate that has expired: it cannot be loaded.
    std::fs::write(cluster.path().join("node.pem"), "").unwrap();
    assert!(cluster.load().is_err());
    let foreign = other.load().unwrap().authority().to_owned();
    let refused = cluster.prepare_join(&foreign);
    assert!(matches!(refused, Err(DirectoryError::Taken(_))));

    let (token, waiting) = invite(&cluster).await;
    cluster.prepare_join(&token.authority()).unwrap();
    let membership = join(&token, PATIENCE).await.unwrap();
    cluster.keep(&membership).unwrap();
    waiting.await.unwrap().unwrap();
    assert_eq!(cluster.load().unwrap().id(), membership.identity().id());
    // Still the machine that made the cluster.
    cluster.authority().unwrap();
}

/// Keeps what is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn no_secret_is_logged() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let (_dir, cluster) = made();
    let (token, waiting) = invite(&cluster).await;
    let wrong = other_secret(&token, &cluster);
    let told = refused(join(&wrong, PATIENCE).await);
    let membership = join(&token, PATIENCE).await.unwrap();
    let member = format!("{membership:?}");
    waiting.await.unwrap().unwrap();
    let logged = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(logged.contains("wrong secret"), "{logged}");
    for shown in [&logged, &told, &member] {
        for token in [&token, &wrong] {
            for secret in spellings(token) {
                assert!(!shown.contains(&secret), "{shown}");
            }
        }
        assert!(!shown.contains("PRIVATE"), "{shown}");
    }
}

/// The secret of a token as it might be written: 16 bytes after the prefix and the fingerprint.
fn spellings(token: &Token) -> [String; 3] {
    use base64::Engine;
    let engine = base64::engine::general_purpose::URL_SAFE_NO_PAD;
    let text = token.reveal();
    let bytes = engine
        .decode(text.strip_prefix("tandem-join-1-").unwrap())
        .unwrap();
    let secret = &bytes[32..48];
    let hex: String = secret.iter().map(|b| format!("{b:02x}")).collect();
    let list = format!("{secret:?}");
    [
        engine.encode(secret),
        hex,
        list[1..list.len() - 1].to_owned(),
    ]
}
