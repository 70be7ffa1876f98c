//! The server: silence has a limit, answers have none.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::{Request, Response};
use rustls::{ClientConfig, RootCertStore};
use tandem_cluster::{Bounds, Gate, Public, serve};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Fails a test that hangs.
const PATIENCE: Duration = Duration::from_secs(20);
/// Never over within a test.
const LONG: Duration = Duration::from_secs(3600);
/// The last chunk of an answer.
const END: &str = "0\r\n\r\n";
const ASK: &[u8] = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";

/// So many connections at once.
const fn bounds(connections: usize) -> Bounds {
    Bounds {
        connections,
        head: LONG,
        unread: LONG,
    }
}

/// An answer whose pieces the test sends.
struct Pieces(mpsc::Receiver<Bytes>);

impl Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.0.poll_recv(cx);
        piece.map(|p| p.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// Answers each request with the next of these when it has come whole.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<VecDeque<Pieces>>>);

impl Answers {
    /// The next request gets what is sent here, until this is dropped. Those without an answer of
    /// their own get an empty one.
    fn next(&self) -> mpsc::Sender<Bytes> {
        let (pieces, answer) = mpsc::channel(1);
        self.0.lock().unwrap().push_back(Pieces(answer));
        pieces
    }
}

impl tower_service::Service<Request<Incoming>> for Answers {
    type Response = Response<Pieces>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let answers = Arc::clone(&self.0);
        Box::pin(async move {
            // One that breaks off is answered, too.
            let _ = request.into_body().collect().await;
            let answer = answers.lock().unwrap().pop_front();
            let answer = answer.unwrap_or_else(|| Pieces(mpsc::channel(1).1));
            Ok(Response::new(answer))
        })
    }
}

struct Server {
    address: String,
    answers: Answers,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Server {
    async fn start(bounds: Bounds) -> Self {
        Self::start_as(Public::plaintext(), bounds).await
    }

    async fn start_as(public: Public, bounds: Bounds) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (stop, stopped) = oneshot::channel();
        let answers = Answers::default();
        let stopped = async {
            let _ = stopped.await;
        };
        let gate = Gate::public(listener, public, PATIENCE).unwrap();
        let serving = serve(vec![gate], answers.clone(), bounds, stopped);
        Self {
            address,
            answers,
            stop,
            task: tokio::spawn(serving),
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).await.unwrap()
    }
}

/// Reads until this text has come.
async fn until(connection: &mut TcpStream, text: &str) {
    let mut seen = Vec::new();
    let reading = async {
        while !String::from_utf8_lossy(&seen).contains(text) {
            assert!(
                connection.read_buf(&mut seen).await.unwrap() > 0,
                "{seen:?}"
            );
        }
    };
    timeout(PATIENCE, reading).await.expect(text);
}

/// Asks, and reads an answer that is empty.
async fn ask(connection: &mut TcpStream) {
    connection.write_all(ASK).await.unwrap();
    until(connection, END).await;
}

/// Asks, and reads an answer until this piece of it.
async fn ask_for(server: &Server, piece: &'static str) -> (TcpStream, mpsc::Sender<Bytes>) {
    let pieces = server.answers.next();
    let mut connection = server.connect().await;
    connection.write_all(ASK).await.unwrap();
    pieces.send(Bytes::from(piece)).await.unwrap();
    until(&mut connection, piece).await;
    (connection, pieces)
}

/// Waits until the server has closed a connection, without a word.
async fn closed(connection: &mut TcpStream) {
    let mut byte = [0];
    let read = timeout(PATIENCE, connection.read(&mut byte)).await;
    let read = read.expect("the connection stays open");
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
}

#[tokio::test]
async fn silence_has_a_limit_and_answers_have_none() {
    let bounds = Bounds {
        head: Duration::from_millis(200),
        ..bounds(8)
    };
    let server = Server::start(bounds).await;
    let (mut streaming, pieces) = ask_for(&server, "one").await;
    // Several times as long as the limit.
    for _ in 0..3 {
        let start = tokio::time::Instant::now();
        let mut never = server.connect().await;
        let mut partly = server.connect().await;
        partly.write_all(&ASK[..20]).await.unwrap();
        let mut kept = server.connect().await;
        ask(&mut kept).await;
        for connection in [&mut never, &mut partly, &mut kept] {
            closed(connection).await;
        }
        assert!(start.elapsed() >= bounds.head);
    }
    pieces.send(Bytes::from("two")).await.unwrap();
    until(&mut streaming, "two").await;
    drop(pieces);
    until(&mut streaming, END).await;
    // The time of the answer does not count.
    ask(&mut streaming).await;
}

#[tokio::test]
async fn whoever_reads_nothing_of_its_answer_is_given_up() {
    let bounds = Bounds {
        unread: Duration::from_millis(300),
        ..bounds(1)
    };
    let server = Server::start(bounds).await;
    let (unread, pieces) = ask_for(&server, "one").await;
    let big = Bytes::from(vec![b'x'; 1 << 20]);
    let filling = async { while pieces.send(big.clone()).await.is_ok() {} };
    // It ends when nobody takes pieces any more.
    timeout(PATIENCE, filling).await.expect("it is waited for");
    // There is only one place.
    let mut next = server.connect().await;
    ask(&mut next).await;
    drop(unread);
    // Whoever reads slowly is not.
    drop(next);
    let (mut slow, pieces) = ask_for(&server, "one").await;
    let sending = tokio::spawn(async move {
        for _ in 0..8 {
            pieces.send(Bytes::from(vec![b'x'; 1 << 20])).await.unwrap();
        }
    });
    let mut all = 0;
    let mut buffer = vec![0; 1 << 20];
    while all < 8 << 20 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        all += timeout(PATIENCE, slow.read(&mut buffer))
            .await
            .unwrap()
            .unwrap();
    }
    sending.await.unwrap();
}

/// Over TLS what is written waits in this process, where the socket's own buffer is full.
#[tokio::test]
async fn over_tls_whoever_reads_nothing_of_its_answer_is_given_up() {
    let dir = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let [certificate, key] = ["cert.pem", "key.pem"].map(|name| dir.path().join(name));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let public = Public::tls(&certificate, &key).unwrap();
    assert!(Public::tls(&key, &certificate).is_err());
    let bounds = Bounds {
        unread: Duration::from_millis(300),
        ..bounds(1)
    };
    let server = Server::start_as(public, bounds).await;
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider);
    let config = config.with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    let connector = TlsConnector::from(Arc::new(config.with_no_client_auth()));
    let connect = async || {
        let tcp = server.connect().await;
        let name = "localhost".try_into().unwrap();
        connector.connect(name, tcp).await.unwrap()
    };
    let pieces = server.answers.next();
    let mut unread = connect().await;
    unread.write_all(ASK).await.unwrap();
    let telling = async {
        // More than the systems of both ends hold; then a little now and then, as an answer comes.
        let mut piece = Bytes::from(vec![b'x'; 1 << 20]);
        let mut count = 0;
        while pieces.send(piece.clone()).await.is_ok() {
            count += 1;
            if count >= 5 {
                piece = Bytes::from("token");
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    };
    timeout(PATIENCE, telling).await.expect("it is waited for");
    let mut next = connect().await;
    next.write_all(ASK).await.unwrap();
    let mut seen = vec![0; 1 << 10];
    let bytes = timeout(PATIENCE, next.read(&mut seen))
        .await
        .unwrap()
        .unwrap();
    assert!(seen[..bytes].starts_with(b"HTTP/1.1 200"));
}

#[tokio::test]
async fn while_all_are_being_answered_new_ones_wait() {
    let server = Server::start(bounds(2)).await;
    let (mut first, first_pieces) = ask_for(&server, "one").await;
    let (_second, _second_pieces) = ask_for(&server, "two").await;
    let mut third = server.connect().await;
    third.write_all(ASK).await.unwrap();
    let early = timeout(Duration::from_millis(200), third.readable()).await;
    assert!(early.is_err(), "there are three");
    // The first stays open as long as it likes to ask again.
    drop(first_pieces);
    until(&mut first, END).await;
    drop(first);
    until(&mut third, END).await;
}

#[tokio::test]
async fn a_shutdown_lets_answers_end_and_closes_the_rest() {
    let mut server = Server::start(bounds(8)).await;
    let mut never = server.connect().await;
    let mut kept = server.connect().await;
    ask(&mut kept).await;
    let (mut streaming, pieces) = ask_for(&server, "one").await;
    server.stop.send(()).unwrap();
    closed(&mut never).await;
    closed(&mut kept).await;
    assert!(TcpStream::connect(&server.address).await.is_err());
    assert!(!server.task.is_finished());
    pieces.send(Bytes::from("two")).await.unwrap();
    until(&mut streaming, "two").await;
    drop(pieces);
    until(&mut streaming, END).await;
    timeout(PATIENCE, &mut server.task).await.unwrap().unwrap();
}
