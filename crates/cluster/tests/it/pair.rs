//! Two ends of a connection on loopback.

use std::sync::Arc;
use std::time::Duration;

use tandem_cluster::{Authority, Link, LinkError, Security};
use tokio::net::{TcpListener, TcpStream};

/// No test waits for longer than this; reaching it is a failure, not a measurement.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A machine of this cluster.
pub fn member(authority: &Authority) -> Security {
    Security::Tls(Arc::new(authority.issue().unwrap()))
}

/// Both ends after their handshake, the connecting one first.
pub async fn pair(
    from: &Security,
    to: &Security,
) -> (Result<Link, LinkError>, Result<Link, LinkError>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let accepting = async {
        let (tcp, _) = listener.accept().await.unwrap();
        to.accept(tcp, PATIENCE).await
    };
    tokio::join!(from.connect(&address, PATIENCE), accepting)
}

/// A TCP connection without a handshake, the connecting end first.
pub async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (to, from) = tokio::join!(TcpStream::connect(address), listener.accept());
    (to.unwrap(), from.unwrap().0)
}

/// What is said about a connection that is refused.
pub fn refusal(result: Result<Link, LinkError>) -> String {
    match result {
        Err(error @ LinkError::Handshake(_)) => error.to_string(),
        other => panic!("expected a refused handshake, got {other:?}"),
    }
}
