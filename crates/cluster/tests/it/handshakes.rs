//! Who may connect, and what the others are told.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tandem_cluster::{
    Authority, AuthorityError, Gate, Identity, IdentityError, LinkError, PeerId, Security, Validity,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::pair::{PATIENCE, member, pair, refusal, tcp_pair};
use crate::stranger::{Stranger, anyone};

#[tokio::test]
async fn two_machines_of_a_cluster_know_each_other() {
    let cluster = Authority::create().unwrap();
    let (a, b) = (member(&cluster), member(&cluster));
    assert_ne!(a.own_id(), b.own_id());
    let (from, to) = pair(&a, &b).await;
    let (from, to) = (from.unwrap(), to.unwrap());
    assert!(from.is_tls() && to.is_tls());
    assert_eq!(from.peer().cloned(), b.own_id());
    assert_eq!(to.peer().cloned(), a.own_id());
    // Both directions at once, more than all buffers hold.
    let bytes: Vec<u8> = (0..20_000_000_u32).map(|i| (i * 7 % 251) as u8).collect();
    let (sent_back, sent_there) = (bytes.clone(), bytes.clone());
    let ((from_read, from_write), (to_read, to_write)) = (from.into_split(), to.into_split());
    let send = |mut half: tandem_cluster::WriteHalf, bytes: Vec<u8>| async move {
        half.write_all(&bytes).await.unwrap();
        half.shutdown().await.unwrap();
    };
    let take = |mut half: tandem_cluster::ReadHalf| async move {
        let mut all = Vec::new();
        half.read_to_end(&mut all).await.unwrap();
        all
    };
    let (_, _, there, back) = tokio::join!(
        tokio::spawn(send(from_write, sent_there)),
        tokio::spawn(send(to_write, sent_back)),
        tokio::spawn(take(to_read)),
        tokio::spawn(take(from_read)),
    );
    assert!(there.unwrap() == bytes && back.unwrap() == bytes);
}

#[tokio::test]
async fn what_is_sent_cannot_be_read_on_the_way() {
    const SECRET: &[u8] = b"a prompt that nobody else should see";
    let cluster = Authority::create().unwrap();
    let (a, b) = (member(&cluster), member(&cluster));
    for (a, b, readable) in [
        (a, b, false),
        (Security::Plaintext, Security::Plaintext, true),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let target = listener.local_addr().unwrap();
        let middle = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = middle.local_addr().unwrap().to_string();
        let listening = tokio::spawn(async move {
            let (from, _) = middle.accept().await.unwrap();
            let to = TcpStream::connect(target).await.unwrap();
            let ((mut from_read, mut from_write), (mut to_read, mut to_write)) =
                (from.into_split(), to.into_split());
            let back = tokio::spawn(async move {
                let _ = tokio::io::copy(&mut to_read, &mut from_write).await;
            });
            let mut heard = Vec::new();
            let mut buffer = [0; 4096];
            loop {
                let n = from_read.read(&mut buffer).await.unwrap_or(0);
                heard.extend_from_slice(&buffer[..n]);
                if n == 0 || to_write.write_all(&buffer[..n]).await.is_err() {
                    break;
                }
            }
            drop(to_write);
            let _ = back.await;
            heard
        });
        let accepting = async {
            let (tcp, _) = listener.accept().await.unwrap();
            b.accept(tcp, PATIENCE).await
        };
        let (from, to) = tokio::join!(a.connect(&address, PATIENCE), accepting);
        let (mut from, mut to) = (from.unwrap(), to.unwrap());
        from.write_all(SECRET).await.unwrap();
        from.shutdown().await.unwrap();
        let mut seen = Vec::new();
        to.read_to_end(&mut seen).await.unwrap();
        assert_eq!(seen, SECRET);
        drop((from, to));
        let heard = listening.await.unwrap();
        assert!(heard.len() >= SECRET.len());
        let found = heard.windows(SECRET.len()).any(|w| w == SECRET);
        assert_eq!(found, readable);
    }
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_refused_by_both_ends() {
    let (ours, theirs) = (Authority::create().unwrap(), Authority::create().unwrap());
    let (from, to) = pair(&member(&theirs), &member(&ours)).await;
    // The end that connects sees the other's certificate first.
    assert!(refusal(from).contains("another cluster"));
    let told = refusal(to);
    assert!(told.contains("refused this machine"), "{told}");

    // One that does not care who the other is gets no further.
    let (connecting, accepting) = tcp_pair().await;
    let stranger = theirs.issue().unwrap();
    let ours = member(&ours);
    let (client, taken) = tokio::join!(
        anyone(connecting, Some(&stranger)),
        ours.accept(accepting, PATIENCE)
    );
    assert!(refusal(taken).contains("another cluster"));
    assert!(!is_open(client).await);
}

#[tokio::test]
async fn a_peer_without_a_certificate_is_refused() {
    let ours = member(&Authority::create().unwrap());
    let (connecting, accepting) = tcp_pair().await;
    let (client, taken) = tokio::join!(anyone(connecting, None), ours.accept(accepting, PATIENCE));
    let told = refusal(taken);
    assert!(told.contains("no certificate") && told.contains("tandem cluster invite"));
    assert!(!is_open(client).await);
}

#[tokio::test]
async fn a_refused_certificate_is_told_at_the_first_read() {
    let (ours, theirs) = (Authority::create().unwrap(), Authority::create().unwrap());
    // Trusts the other cluster, but has no certificate of it.
    let stranger = ours.issue().unwrap();
    let listener = member(&theirs);
    let (connecting, accepting) = tcp_pair().await;
    let (client, taken) = tokio::join!(
        anyone(connecting, Some(&stranger)),
        listener.accept(accepting, PATIENCE)
    );
    assert!(taken.is_err());
    let error = client.unwrap().read_u8().await.unwrap_err();
    let told = tandem_cluster::explain(&error).unwrap();
    assert!(
        told.contains("refused this machine's certificate"),
        "{told}"
    );
}

#[tokio::test]
async fn a_peer_that_speaks_no_tls_is_refused() {
    let ours = member(&Authority::create().unwrap());
    let (mut connecting, accepting) = tcp_pair().await;
    let request = b"GET /node/v1/status HTTP/1.1\r\nhost: x\r\n\r\n";
    connecting.write_all(request).await.unwrap();
    let told = refusal(ours.accept(accepting, PATIENCE).await);
    assert!(told.contains("does not speak TLS"), "{told}");
    // And the other way round.
    let (connecting, mut accepting) = tcp_pair().await;
    let answer = b"HTTP/1.1 400 Bad Request\r\n\r\n";
    accepting.write_all(answer).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let answering = async {
        let (mut tcp, _) = listener.accept().await.unwrap();
        tcp.write_all(answer).await.unwrap();
        tcp
    };
    let (told, _kept) = tokio::join!(ours.connect(&address, PATIENCE), answering);
    let told = refusal(told);
    assert!(told.contains("does not speak TLS"), "{told}");
    drop(connecting);
}

/// The first message of a client (RFC 5246 7.4.1.2, RFC 8446 4.1.2), which offers these versions in an extension.
fn client_hello(versions: &[u16]) -> Vec<u8> {
    /// With its length before it, in so many bytes.
    fn sized(width: usize, bytes: &[u8]) -> Vec<u8> {
        let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
        [&length[4 - width..], bytes].concat()
    }
    let extension = |kind: u16, bytes: &[u8]| [&kind.to_be_bytes()[..], &sized(2, bytes)].concat();
    let list = |width, values: &[u16]| {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_be_bytes()).collect();
        sized(width, &bytes)
    };
    // X25519 and P-256; ECDSA with P-256, RSA-PSS; without a key, which is asked for then.
    let mut extensions = extension(10, &list(2, &[0x1d, 0x17]));
    extensions.extend(extension(13, &list(2, &[0x403, 0x804])));
    extensions.extend(extension(11, &[1, 0]));
    if !versions.is_empty() {
        extensions.extend(extension(43, &list(1, versions)));
        extensions.extend(extension(51, &[0, 0]));
    }
    let suites = list(2, &[0xc02b, 0xc02f, 0x1301, 0x1302]);
    let body = [
        &[3, 3][..],
        &[7; 32],
        &[0],
        &suites,
        &[1, 0],
        &sized(2, &extensions),
    ]
    .concat();
    let message = [&[1][..], &sized(3, &body)].concat();
    [&[22, 3, 1][..], &sized(2, &message)].concat()
}

/// The version that is older than TLS 1.3 is refused as such; the same message with TLS 1.3 is not.
#[tokio::test]
async fn who_speaks_no_newer_tls_than_1_2_is_refused() {
    let cluster = Authority::create().unwrap();
    let ours = member(&cluster);
    for (versions, answer) in [
        // Alerts: fatal, `protocol_version`.
        (&[][..], [21, 3, 3, 0, 2, 2, 70]),
        (&[0x303], [21, 3, 3, 0, 2, 2, 70]),
        // A handshake message: HelloRetryRequest, for a key.
        (&[0x303, 0x304], [22, 3, 3, 0, 90, 2, 0]),
    ] {
        let (mut theirs, accepting) = tcp_pair().await;
        let accepting = tokio::spawn({
            let ours = ours.clone();
            async move { ours.accept(accepting, PATIENCE).await }
        });
        theirs.write_all(&client_hello(versions)).await.unwrap();
        let mut begin = [0; 7];
        theirs.read_exact(&mut begin).await.unwrap();
        // How long a message is does not matter.
        let length = if begin[0] == 22 { 90 } else { begin[4] };
        begin[4] = length;
        assert_eq!(begin, answer, "{versions:x?}");
        drop(theirs);
        assert!(accepting.await.unwrap().is_err());
    }
}

#[tokio::test]
async fn an_expired_certificate_is_refused_with_the_mend() {
    let cluster = Authority::create().unwrap();
    let now = SystemTime::now();
    let past = Validity {
        from: now - Duration::from_secs(7200),
        until: now - Duration::from_secs(3600),
    };
    let own = cluster.issue_for(past).unwrap_err();
    assert!(matches!(
        own,
        AuthorityError::Identity(IdentityError::Expired)
    ));
    assert!(own.to_string().contains("tandem cluster invite"), "{own}");
    let future = Validity {
        from: now + Duration::from_secs(3600),
        until: now + Duration::from_secs(7200),
    };
    let own = cluster.issue_for(future).unwrap_err();
    assert!(matches!(
        own,
        AuthorityError::Identity(IdentityError::NotYet)
    ));

    // One that expires while its machine runs: it works, and then both ends refuse it.
    let soon = Validity {
        from: now - Duration::from_secs(7200),
        until: now + Duration::from_secs(3),
    };
    let short = Security::Tls(Arc::new(cluster.issue_for(soon).unwrap()));
    let long = member(&cluster);
    let (from, to) = pair(&short, &long).await;
    assert!(from.is_ok() && to.is_ok());
    let until_refused = async {
        loop {
            let (from, to) = pair(&short, &long).await;
            if to.is_err() {
                assert!(refusal(to).contains("has expired"));
                // It shows at the first read.
                let error = from.unwrap().read_u8().await.unwrap_err().to_string();
                assert!(error.contains("refused this machine"), "{error}");
                break;
            }
        }
        let (from, to) = pair(&long, &short).await;
        assert!(to.is_err());
        let told = refusal(from);
        assert!(told.contains("has expired") && told.contains("tandem cluster join"));
    };
    tokio::time::timeout(PATIENCE, until_refused)
        .await
        .expect("an expired certificate is still taken");
}

#[tokio::test]
async fn another_machine_of_the_cluster_is_not_the_expected_one() {
    let cluster = Authority::create().unwrap();
    let (a, b, other) = (member(&cluster), member(&cluster), member(&cluster));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut gate = Gate::start(listener, b.clone(), PATIENCE).unwrap();
    let address = gate.local_addr().to_string();
    let expected = other.own_id().unwrap();
    match a.connect_to(&address, &expected, PATIENCE).await {
        Err(LinkError::OtherPeer { found, .. }) => assert_eq!(Some(found), b.own_id()),
        result => panic!("{result:?}"),
    }
    let (mut link, _) = gate.next().await;
    // It closed without a byte.
    assert!(matches!(link.read(&mut [0]).await, Ok(0) | Err(_)));
    let right = b.own_id().unwrap();
    a.connect_to(&address, &right, PATIENCE).await.unwrap();
}

#[tokio::test]
async fn peers_that_say_nothing_hold_nobody_up() {
    let cluster = Authority::create().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut gate = Gate::start(listener, member(&cluster), PATIENCE * 100).unwrap();
    let address = gate.local_addr();
    let mut silent = Vec::new();
    for _ in 0..tandem_cluster::limits::MAX_HANDSHAKES + 50 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let caller = member(&cluster);
    let address = address.to_string();
    let connecting = caller.connect(&address, PATIENCE);
    let both = async { tokio::join!(connecting, gate.next()) };
    let (link, (taken, _)) = tokio::time::timeout(PATIENCE, both).await.unwrap();
    assert_eq!(taken.peer().cloned(), caller.own_id());
    link.unwrap();
    // The oldest gave way, so the number of connections stays bounded.
    let closed = tokio::time::timeout(PATIENCE, silent[0].read(&mut [0])).await;
    assert!(matches!(closed, Ok(Ok(0) | Err(_))));
}

#[tokio::test]
async fn a_peer_that_says_nothing_is_given_up() {
    let cluster = Authority::create().unwrap();
    let (_connecting, accepting) = tcp_pair().await;
    let limit = Duration::from_millis(50);
    let silent = member(&cluster).accept(accepting, limit).await;
    assert!(matches!(silent, Err(LinkError::Silent(l)) if l == limit));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let silent = member(&cluster).connect(&address, limit).await;
    assert!(matches!(silent, Err(LinkError::Silent(l)) if l == limit));
}

#[test]
fn an_id_is_read_and_shown_alike() {
    let id = member(&Authority::create().unwrap()).own_id().unwrap();
    assert_eq!(id.to_string().parse::<PeerId>().unwrap(), id);
    assert_eq!(id.as_str().len(), 64);
    for bad in ["", "ab", &"g".repeat(64), &"A".repeat(64), &"a".repeat(65)] {
        assert!(bad.parse::<PeerId>().is_err(), "{bad}");
    }
}

#[test]
fn keys_do_not_show_in_debug_output() {
    let authority = Authority::create().unwrap();
    let identity = authority.issue().unwrap();
    for (shown, key) in [
        (format!("{authority:?}"), authority.key_pem()),
        (format!("{identity:?}"), identity.key_pem()),
        (
            format!("{:?}", Security::Tls(Arc::new(authority.issue().unwrap()))),
            identity.key_pem(),
        ),
    ] {
        for line in key.lines() {
            assert!(!shown.contains(line.trim()), "{shown}");
        }
        assert!(!shown.contains("PRIVATE"), "{shown}");
    }
}

#[test]
fn parts_that_do_not_belong_together_are_refused() {
    let (ours, theirs) = (Authority::create().unwrap(), Authority::create().unwrap());
    let (a, b) = (ours.issue().unwrap(), ours.issue().unwrap());
    let make = |certificate: &str, key: &str, authority: &str| {
        Identity::from_pem(certificate.to_owned(), key.to_owned(), authority).unwrap_err()
    };
    let certificate = a.certificate_pem();
    let swapped = make(certificate, b.key_pem(), ours.certificate_pem());
    assert!(matches!(swapped, IdentityError::Mismatch(_)), "{swapped:?}");
    let foreign = make(certificate, a.key_pem(), theirs.certificate_pem());
    assert!(matches!(foreign, IdentityError::Foreign(_)), "{foreign:?}");
    let empty = make("", a.key_pem(), ours.certificate_pem());
    assert!(matches!(empty, IdentityError::Unreadable(_)), "{empty:?}");
    // The authority itself is no machine.
    let itself = make(
        ours.certificate_pem(),
        ours.key_pem(),
        ours.certificate_pem(),
    );
    assert!(matches!(itself, IdentityError::Foreign(_)), "{itself:?}");
}

/// True if something can still be read from the other side within a while.
async fn is_open(client: std::io::Result<Stranger>) -> bool {
    let Ok(mut stream) = client else {
        return false;
    };
    let read = tokio::time::timeout(PATIENCE, stream.read_u8()).await;
    !matches!(read, Ok(Err(_)))
}
