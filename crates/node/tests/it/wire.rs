//! How long bytes are waited for, on a clock that stands still while nothing waits.

use std::time::Duration;

use tandem_handoff::frame::{HEADER_BYTES, Header, Kind};
use tandem_node::limits::MIN_LINK_RATE;
use tandem_node::transfer::wire::{WireError, fill, read_answer, read_header, write_parts};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
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
    let written = write_parts(&mut near, &[&bytes[..100], &bytes[100..]], LIMIT).await;
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
