//! A reader that knows how much will come is woken less often, and never too late.

use std::time::Duration;

use rand::{Rng, RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tandem_identity::limits::LOW_WATER;
use tandem_identity::{Authority, Link, ReadHalf, Security};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::pair::{PATIENCE, member, pair};

async fn links() -> [(Link, Link); 2] {
    let authority = Authority::create().unwrap();
    let (a, b) = (member(&authority), member(&authority));
    let (near, far) = pair(&Security::Plaintext, &Security::Plaintext).await;
    let plain = (near.unwrap(), far.unwrap());
    let (near, far) = pair(&a, &b).await;
    [plain, (near.unwrap(), far.unwrap())]
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_expects_much_is_not_woken_for_little() {
    for (near, far) in links().await {
        let is_tls = near.is_tls();
        let (_, write) = near.into_split();
        let (mut read, _keep) = far.into_split();
        let mut buffer = vec![0; LOW_WATER];
        // The system wakes a reader anyway while a new connection has a small window.
        let (mut opened, all) = (0, 8 * LOW_WATER);
        let writing = tokio::spawn(async move {
            let mut write = write;
            write.write_all(&vec![1; all]).await.unwrap();
            write.flush().await.unwrap();
            write
        });
        while opened < all {
            opened += read.read(&mut buffer).await.unwrap();
        }
        let mut write = writing.await.unwrap();
        read.expect_bytes(2 * LOW_WATER);
        let writing = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            write.write_all(&[7; 1000]).await.unwrap();
            write.flush().await.unwrap();
        };
        let reading = timeout(Duration::from_millis(300), read.read(&mut buffer));
        let (little, ()) = tokio::join!(reading, writing);
        assert!(little.is_err(), "TLS {is_tls}: {little:?}");
        // What is there already wakes a reader that expects less.
        read.expect_bytes(0);
        let read = timeout(PATIENCE, read.read(&mut buffer)).await;
        assert_eq!(read.expect("it hangs").unwrap(), 1000, "TLS {is_tls}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_wakes_a_reader_that_expects_much() {
    for (near, far) in links().await {
        let is_tls = near.is_tls();
        let (mut read, _keep) = far.into_split();
        read.expect_bytes(2 * LOW_WATER);
        let ending = async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            drop(near);
        };
        let mut buffer = [0; 16];
        let reading = timeout(PATIENCE, read.read(&mut buffer));
        let (ended, ()) = tokio::join!(reading, ending);
        // Without the goodbye of TLS its end is a failure.
        let ended = ended.expect("the end is not noticed");
        assert!(
            ended.is_err() || ended.is_ok_and(|n| n == 0),
            "TLS {is_tls}"
        );
    }
}

/// Reads exactly `bytes`, as one who knows that they come.
async fn read_all(read: &mut ReadHalf, bytes: usize, dice: &mut impl Rng) -> Vec<u8> {
    let mut all = Vec::new();
    while all.len() < bytes {
        let rest = bytes - all.len();
        let mut buffer = vec![0; rest.min(dice.random_range(1..LOW_WATER * 3 / 2))];
        read.expect_bytes(rest);
        let n = timeout(PATIENCE, read.read(&mut buffer)).await;
        let n = n.expect("it hangs").unwrap();
        assert!(n > 0, "ended after {} of {bytes}", all.len());
        all.extend_from_slice(&buffer[..n]);
    }
    read.expect_bytes(0);
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_expected_comes_however_it_is_cut() {
    for seed in 0..12 {
        let mut dice = ChaCha8Rng::seed_from_u64(seed);
        let messages: Vec<Vec<u8>> = (0..6)
            .map(|_| {
                let most = [100, LOW_WATER, 4 * LOW_WATER][dice.random_range(0..3)];
                let mut bytes = vec![0; dice.random_range(1..most)];
                dice.fill_bytes(&mut bytes);
                bytes
            })
            .collect();
        for (near, far) in links().await {
            let (_, mut write) = near.into_split();
            let (mut read, _keep) = far.into_split();
            let (sent, mut cuts) = (messages.clone(), ChaCha8Rng::seed_from_u64(seed + 100));
            let writing = tokio::spawn(async move {
                for message in &sent {
                    let mut rest = message.as_slice();
                    while !rest.is_empty() {
                        let most = rest.len().min(700_000);
                        let (now, later) = rest.split_at(cuts.random_range(1..=most));
                        write.write_all(now).await.unwrap();
                        if cuts.random_range(0..3) == 0 {
                            write.flush().await.unwrap();
                            tokio::time::sleep(Duration::from_millis(1)).await;
                        }
                        rest = later;
                    }
                    write.flush().await.unwrap();
                }
                write
            });
            for message in &messages {
                let got = read_all(&mut read, message.len(), &mut dice).await;
                assert!(got == *message, "seed {seed}");
            }
            writing.await.unwrap();
        }
    }
}
