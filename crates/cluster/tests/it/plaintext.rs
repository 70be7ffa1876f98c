//! Without TLS: on one machine only.

use tandem_cluster::{Gate, LinkError, Security};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::pair::{PATIENCE, pair};

#[tokio::test]
async fn on_loopback_bytes_pass_and_nobody_is_known() {
    let plain = Security::Plaintext;
    let (from, to) = pair(&plain, &plain).await;
    let (mut from, mut to) = (from.unwrap(), to.unwrap());
    assert!(!from.is_tls() && from.peer().is_none() && to.peer().is_none());
    from.write_all(b"hello").await.unwrap();
    let mut seen = [0; 5];
    to.read_exact(&mut seen).await.unwrap();
    assert_eq!(&seen, b"hello");
    assert_eq!(plain.own_id(), None);
}

#[tokio::test]
async fn no_listener_that_others_reach() {
    for (address, allowed) in [
        ("127.0.0.1:1", true),
        ("127.3.2.1:1", true),
        ("[::1]:1", true),
        ("[::ffff:127.0.0.1]:1", true),
        ("0.0.0.0:1", false),
        ("[::]:1", false),
        ("10.0.0.1:1", false),
        ("192.168.1.5:7001", false),
        ("[fe80::1]:1", false),
        ("[::ffff:10.0.0.1]:1", false),
    ] {
        let checked = Security::Plaintext.check_listen(address.parse().unwrap());
        assert_eq!(checked.is_ok(), allowed, "{address}");
        if let Err(error) = checked {
            let message = error.to_string();
            assert!(message.contains(address), "{message}");
            assert!(message.contains("tandem cluster init"), "{message}");
        }
    }
    let everywhere = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let refused = Gate::start(everywhere, Security::Plaintext, PATIENCE);
    assert!(matches!(refused, Err(LinkError::PlaintextElsewhere(_))));
}

#[tokio::test]
async fn a_connection_through_another_interface_is_refused_by_the_end_that_takes_it() {
    // An address of this machine that is not loopback, if it has one.
    let probe = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
    if probe.connect("192.0.2.1:9").is_err() {
        return;
    }
    let own = probe.local_addr().unwrap().ip();
    let listener = TcpListener::bind((own, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let connecting = tokio::net::TcpStream::connect(address);
    let (_kept, taken) = tokio::join!(connecting, listener.accept());
    let refused = Security::Plaintext.accept(taken.unwrap().0, PATIENCE).await;
    assert!(matches!(refused, Err(LinkError::PlaintextElsewhere(_))));
}

#[tokio::test]
async fn no_connection_to_another_machine() {
    for address in ["192.0.2.1:7001", "[2001:db8::1]:7001", "0.0.0.0:7001"] {
        match Security::Plaintext.connect(address, PATIENCE).await {
            Err(LinkError::PlaintextElsewhere(named)) => assert_eq!(named, address),
            other => panic!("{address}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn what_cannot_be_reached_is_named() {
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    let refused = Security::Plaintext.connect(&address, PATIENCE).await;
    assert!(refused.unwrap_err().to_string().contains(&address));
    let nonsense = Security::Plaintext.connect("no port", PATIENCE).await;
    assert!(matches!(nonsense, Err(LinkError::Resolve { .. })));
}
