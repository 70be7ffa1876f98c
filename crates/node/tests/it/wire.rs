//! How long bytes are waited for, on a clock that stands still while nothing waits; and how fast a link is.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tandem_identity::{Authority, Gate, Progress, Security};
use tandem_kv::frame::{HEADER_BYTES, Header, Kind};
use tandem_node::limits::MIN_LINK_RATE;
use tandem_node::wire::{
    Drain, Drained, WireError, fill, flush, read_answer, read_header, write_parts,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, duplex};
use tokio::time::{Instant, sleep};

const LIMIT: Duration = Duration::from_secs(20);

/// Seconds until `bytes` that come in parts of `part`, one each `pause`, are read or given up.
async fn fed(bytes: usize, part: usize, pause: Duration) -> (Result<(), WireError>, f64) {
    let (mut near, mut far) = duplex(1 << 20);
    let feeding = tokio::spawn(async move {
        while far.write_all(&vec![7; part]).await.is_ok() {
            sleep(pause).await;
        }
    });
    let start = Instant::now();
    let mut buffer = vec![0; bytes];
    let result = fill(&mut near, &mut buffer, LIMIT).await;
    let took = start.elapsed().as_secs_f64();
    assert!(result.is_err() || buffer.iter().all(|b| *b == 7));
    drop(near);
    feeding.await.unwrap();
    (result, took)
}

#[tokio::test(start_paused = true)]
async fn who_sends_a_byte_now_and_then_is_given_up() {
    let (result, took) = fed(8 << 20, 1, LIMIT - Duration::from_secs(1)).await;
    assert!(matches!(result, Err(WireError::Slow)), "{result:?}");
    let carrying = (8 << 20) as f64 / MIN_LINK_RATE as f64;
    assert!(
        (took - LIMIT.as_secs_f64() - carrying).abs() < 0.1,
        "{took} s"
    );
}

/// A sender reads no rows: there is no memory for them, and nobody waits for them.
#[tokio::test(start_paused = true)]
async fn the_payload_of_what_no_receiver_sends_is_not_read() {
    for kind in [Kind::Segment, Kind::Hello, Kind::Ack, Kind::Abort] {
        let (mut near, mut far) = duplex(1 << 10);
        let mut header = Header::control(kind, 7, 1);
        header.payload_len = if kind == Kind::Ack {
            0
        } else {
            kind.max_payload()
        };
        far.write_all(&header.encode()).await.unwrap();
        let answer = read_answer(&mut near, None, LIMIT).await;
        if kind == Kind::Abort {
            assert!(
                matches!(answer, Err(WireError::Silent(LIMIT))),
                "{answer:?}"
            );
        } else {
            assert!(answer.unwrap().1.is_empty(), "{kind:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_sends_nothing_is_given_up_after_the_limit() {
    let (result, took) = fed(8 << 20, 1, LIMIT * 2).await;
    assert!(
        matches!(result, Err(WireError::Silent(LIMIT))),
        "{result:?}"
    );
    assert!((took - LIMIT.as_secs_f64()).abs() < 0.1, "{took} s");
}

#[tokio::test(start_paused = true)]
async fn a_slow_link_that_goes_on_is_waited_for() {
    // Much longer than the limit for a part, and a little faster than the slowest link.
    let part = MIN_LINK_RATE as usize + 1000;
    let (result, took) = fed(8 << 20, part, Duration::from_secs(1)).await;
    assert!(result.is_ok(), "{result:?}");
    assert!(took > 5.0 * LIMIT.as_secs_f64(), "{took} s");
}

#[tokio::test(start_paused = true)]
async fn a_header_that_drips_is_given_up() {
    let (mut near, mut far) = duplex(1);
    let dripping = tokio::spawn(async move {
        while far.write_all(&[0]).await.is_ok() {
            sleep(Duration::from_secs(1)).await;
        }
    });
    let start = Instant::now();
    let header = read_header(&mut near, None, LIMIT).await;
    assert!(matches!(header, Err(WireError::Slow)), "{header:?}");
    assert!(start.elapsed() < LIMIT + Duration::from_secs(1));
    assert!((HEADER_BYTES as u64) > LIMIT.as_secs());
    drop(near);
    dripping.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_takes_a_byte_now_and_then_is_given_up() {
    let (mut near, mut far) = duplex(1);
    let taking = tokio::spawn(async move {
        while far.read_u8().await.is_ok() {
            sleep(LIMIT - Duration::from_secs(1)).await;
        }
    });
    let start = Instant::now();
    let bytes = vec![0; 1 << 20];
    let written = {
        let mut drain = Drain::default();
        write_parts(
            &mut near,
            &[&bytes[..100], &bytes[100..]],
            LIMIT,
            &mut drain,
        )
        .await
    };
    assert!(matches!(written, Err(WireError::Slow)), "{written:?}");
    let carrying = (1 << 20) as f64 / MIN_LINK_RATE as f64;
    let took = start.elapsed().as_secs_f64();
    assert!(
        (took - LIMIT.as_secs_f64() - carrying).abs() < 0.1,
        "{took} s"
    );
    drop(near);
    taking.await.unwrap();
}

/// Writes blocks as a writer of a handoff does, to a reader that takes `rate` bytes a second. Gives the
/// rate that was measured over the one at which the reader read.
async fn measured<W, R>(
    mut near: W,
    progress: Arc<Progress>,
    mut far: R,
    rate: f64,
    (blocks, block): (usize, usize),
) -> f64
where
    W: AsyncWrite + Unpin,
    R: AsyncRead + Unpin + Send + 'static,
{
    let total = blocks * block;
    let reading = tokio::spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        let (start, mut read) = (Instant::now(), 0);
        while read < total {
            read += far.read(&mut buffer).await.unwrap();
            let due = start + Duration::from_secs_f64(read as f64 / rate);
            tokio::time::sleep_until(due).await;
        }
        read as f64 / start.elapsed().as_secs_f64()
    });
    let bytes = vec![7; block / 4];
    let (mut taken, mut time) = (0, Duration::ZERO);
    let mut drain = Drain::of(progress);
    for i in 1..=blocks {
        for _ in 0..4 {
            let (head, rest) = bytes.split_at(HEADER_BYTES);
            write_parts(&mut near, &[head, rest], LIMIT, &mut drain)
                .await
                .unwrap();
        }
        flush(&mut near, LIMIT, &mut drain).await.unwrap();
        let drained = drain.lap(i == blocks);
        taken += drained.bytes;
        time += self::time(&drained);
    }
    let read = reading.await.unwrap();
    assert!(taken > 0, "nothing had to wait");
    taken as f64 / time.as_secs_f64() / read
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rate_of_a_link_is_measured_where_it_limits() {
    let authority = Authority::create().unwrap();
    let member = || Security::Tls(Arc::new(authority.issue().unwrap()));
    let pairs = [
        (Security::Plaintext, Security::Plaintext),
        (member(), member()),
    ];
    for (from, to) in pairs {
        let mut gate = Gate::start(super::cluster::bind().await, to, LIMIT).unwrap();
        let address = gate.local_addr().to_string();
        // Much more than the system's buffers take; also in blocks that TLS holds back as a whole.
        for blocks in [(6, 8 << 20), (64, 512 << 10)] {
            let (near, (far, _)) = tokio::join!(from.connect(&address, LIMIT), gate.next());
            let (_, near) = near.unwrap().into_split();
            let progress = near.progress();
            let far = far.into_split().0;
            let ratio = measured(near, progress, far, 60e6, blocks).await;
            assert!(
                (0.75..1.35).contains(&ratio),
                "{from:?}, {blocks:?}: {ratio}"
            );
        }
    }
}

/// Takes whatever it is given, but for the first time that it is asked.
struct Growing {
    has_waited: bool,
}

impl AsyncWrite for Growing {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        if !std::mem::replace(&mut self.has_waited, true) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// The system's buffers grow while they are full; the link is not faster for that.
#[tokio::test]
async fn what_has_not_arrived_was_not_carried() {
    let progress = Arc::new(Progress::default());
    progress.set(7, true);
    let mut drain = Drain::of(Arc::clone(&progress));
    let mut near = Growing { has_waited: false };
    let bytes = vec![7; 1 << 20];
    for expected in [1000, 0, 64] {
        write_parts(&mut near, &[&bytes], LIMIT, &mut drain)
            .await
            .unwrap();
        progress.set(progress.arrived() + expected, true);
        flush(&mut near, LIMIT, &mut drain).await.unwrap();
        assert_eq!(drain.lap(false).bytes, expected);
    }
}

fn time(drained: &Drained) -> Duration {
    drained.spans.iter().map(|s| s.end - s.start).sum()
}

/// Buffers that took everything tell no less of a link than a write that had to wait.
#[test]
fn what_leaves_the_buffers_counts_while_there_is_more() {
    let progress = Arc::new(Progress::default());
    let mut drain = Drain::of(Arc::clone(&progress));
    let mut at = |arrived, is_held_back| {
        progress.set(arrived, is_held_back);
        std::thread::sleep(Duration::from_millis(2));
        drain.rest();
        drain.rested(1)
    };
    // Nothing has been written; then something has.
    assert_eq!(at(0, false), None);
    assert_eq!(at(0, true), None);
    let first = at(1000, true).expect("a busy link");
    assert!(first.bytes == 1000 && time(&first) >= Duration::from_millis(2));
    // It was idle for a time that nobody knows.
    assert_eq!(at(5000, false), None);
    assert_eq!(at(6000, true), None);
    assert_eq!(at(6500, true).map(|d| d.bytes), Some(500));
    // Time in which nothing came is counted with what comes next, but not once the link has been idle.
    assert_eq!(at(6500, true), None);
    let next = at(6600, true).expect("a busy link");
    assert!(next.bytes == 100 && time(&next) >= Duration::from_millis(4));
    assert_eq!(at(6600, true), None);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(at(6600, true), None);
    assert_eq!(at(6600, false), None);
    let start = std::time::Instant::now();
    assert_eq!(at(6600, true), None);
    let next = at(6700, true).expect("a busy link");
    assert!(time(&next) <= start.elapsed(), "{next:?}");
    // Something else may be written from here on.
    drain.rise();
    progress.set(9000, true);
    drain.rest();
    assert_eq!(drain.rested(1), None);
    // Little waits until there is more.
    progress.set(9100, true);
    drain.rest();
    assert_eq!(drain.rested(101), None);
    progress.set(9101, true);
    drain.rest();
    assert_eq!(drain.rested(101).map(|d| d.bytes), Some(101));
}

#[tokio::test]
async fn a_link_that_takes_everything_at_once_is_not_measured() {
    let (mut near, _far) = duplex(1 << 20);
    let mut drain = Drain::default();
    for _ in 0..4 {
        let bytes = vec![7; 100 << 10];
        write_parts(&mut near, &[&bytes], LIMIT, &mut drain)
            .await
            .unwrap();
    }
    assert_eq!(drain.lap(true), Drained::default());
}
