//! Copies zeros through a connection on loopback, plain and with TLS, and prints the rates.
//!
//! `cargo run --release -p tandem-cluster --example copy -- [GIGABYTES]`
#![allow(clippy::print_stdout, reason = "an example prints")]

use std::error::Error;
use std::io::IoSlice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tandem_cluster::{Authority, Gate, Security};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Bytes of one vectored write.
const WRITE: usize = 1 << 20;
const GIGABYTE: usize = 1_000_000_000;
/// Parts of one vectored write.
const PARTS: usize = 16;
const LIMIT: Duration = Duration::from_secs(5);
const ROUNDS: usize = 3;

async fn copy(from: Security, to: Security, bytes: usize) -> Result<f64, Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let mut gate = Gate::start(listener, to, LIMIT)?;
    let address = gate.local_addr().to_string();
    let reading = tokio::spawn(async move {
        let (mut link, _) = gate.next().await;
        let mut buffer = vec![0; WRITE];
        while link.read(&mut buffer).await? > 0 {}
        link.write_all(b"k").await?;
        link.shutdown().await?;
        std::io::Result::Ok(())
    });
    let mut link = from.connect(&address, LIMIT).await?;
    let rows = vec![7; WRITE / PARTS];
    let start = Instant::now();
    let mut sent = 0;
    while sent < bytes {
        let parts = [IoSlice::new(&rows); PARTS];
        // A short write is followed by a whole one: what counts is the number of bytes.
        sent += link.write_vectored(&parts).await?;
    }
    link.shutdown().await?;
    link.read_exact(&mut [0]).await?;
    let seconds = start.elapsed().as_secs_f64();
    reading.await??;
    Ok(sent as f64 / seconds / 1e9)
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<(), Box<dyn Error>> {
    let gigabytes: usize = match std::env::args().nth(1) {
        Some(text) => text.parse()?,
        None => 4,
    };
    let bytes = gigabytes * GIGABYTE;
    let authority = Authority::create()?;
    let member =
        || -> Result<Security, Box<dyn Error>> { Ok(Security::Tls(Arc::new(authority.issue()?))) };
    for _ in 0..ROUNDS {
        let plain = copy(Security::Plaintext, Security::Plaintext, bytes).await?;
        let tls = copy(member()?, member()?, bytes).await?;
        println!(
            "plain {plain:.2} GB/s, TLS {tls:.2} GB/s, ratio {:.2}",
            tls / plain
        );
    }
    Ok(())
}
