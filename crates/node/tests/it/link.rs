//! The test of a link, beside a link whose speed is known.

use std::net::SocketAddr;
use std::time::Duration;

use tandem_engine::fake::FakeConfig;
use tandem_proto::{BytesRequest, ErrorCode, LinkReport, LinkRequest, NodeError, Role};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep_until};

use super::cluster::{TestNode, bind, limits, node};

/// Passes bytes on, so many in a second.
async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, per_second: f64) {
    let mut buffer = vec![0; 16 << 10];
    let mut next = Instant::now();
    while let Ok(size) = from.read(&mut buffer).await
        && size > 0
    {
        // What a timer loses is made up for.
        next = next.max(Instant::now() - Duration::from_millis(50))
            + Duration::from_secs_f64(f64::from(u32::try_from(size).unwrap()) / per_second);
        sleep_until(next).await;
        if to.write_all(&buffer[..size]).await.is_err() {
            return;
        }
    }
}

/// A link to a node that carries so many bytes a second there and back.
async fn slow_link(to: SocketAddr, there: f64, back: f64) -> SocketAddr {
    let listener = bind().await;
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let (near_read, near_write) = near.into_split();
            let (far_read, far_write) = TcpStream::connect(to).await.unwrap().into_split();
            tokio::spawn(pass(near_read, far_write, there));
            tokio::spawn(pass(far_read, near_write, back));
        }
    });
    address
}

async fn test(node: &TestNode, to: String) -> Result<LinkReport, NodeError> {
    let request = LinkRequest { to, peer: None };
    let url = format!("{}/node/v1/link", node.url);
    let answer = reqwest::Client::new().post(url).json(&request).send().await;
    let answer = answer.unwrap();
    match answer.status().is_success() {
        true => Ok(answer.json().await.unwrap()),
        false => Err(answer.json().await.unwrap()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_link_is_found_to_carry_what_it_carries() {
    let config = FakeConfig::default();
    let near = node(Role::Prefill, config.clone(), limits()).await;
    let far = node(Role::Decode, config, limits()).await;
    let address: SocketAddr = far.url.trim_start_matches("http://").parse().unwrap();
    for (there, back) in [(9e6, 3e6), (3e6, 9e6)] {
        let slow = slow_link(address, there, back).await;
        let report = test(&near, slow.to_string()).await.unwrap();
        let is_near = |found: f64, is: f64| (is * 0.7..is * 1.3).contains(&found);
        assert!(
            is_near(report.there, there) && is_near(report.back, back),
            "{report:?}"
        );
        assert!(
            report.round_trip_ms > 0.0 && report.round_trip_ms < 1e3,
            "{report:?}"
        );
        assert!(report.mtu.is_none_or(|mtu| mtu > 500), "{report:?}");
    }
    // Without it the link is faster.
    let report = test(&near, address.to_string()).await.unwrap();
    assert!(report.there > 20e6 && report.back > 20e6, "{report:?}");
    near.clean().await;
    far.clean().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_no_node_is_named_and_nobody_asks_for_too_much() {
    let near = node(Role::Prefill, FakeConfig::default(), limits()).await;
    let nobody = bind().await;
    let gone = nobody.local_addr().unwrap();
    drop(nobody);
    let error = test(&near, gone.to_string()).await.unwrap_err();
    assert_eq!(error.code, ErrorCode::Handoff);
    assert!(error.message.contains(&gone.to_string()), "{error}");

    let url = format!("{}/node/v1/link/source", near.url);
    let request = BytesRequest { bytes: 1 << 30 };
    let answer = reqwest::Client::new().post(url).json(&request).send().await;
    assert_eq!(answer.unwrap().status(), 400);
    near.clean().await;
}
