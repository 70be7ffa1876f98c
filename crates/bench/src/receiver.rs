//! The other process of `tandem bench handoff`: a node that takes KV in, and a sink for plain copies.
//!
//! It says where it listens with one line of JSON ([`Ready`]), then answers each line of its standard
//! input ([`Ask`]) with one line ([`Told`]), and ends when its input does.

use std::io::BufRead;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use serde::{Deserialize, Serialize};
use tandem_cluster::{ClusterDir, PeerId, Security};
use tandem_engine::KvEngine;
use tandem_handoff::Section;
use tandem_handoff::segment::block_tokens;
use tandem_node::{Limits, NodeConfig, PagesConfig};
use tandem_proto::Role;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::MODEL;
use super::copy;
use super::engine::{BenchEngine, Cache, contract};
use super::usage::{Memory, cpu_seconds};
use crate::figures::print;

/// Tokens of a sequence beside those that are handed over: the last of the prompt, and one answer.
const FURTHER_TOKENS: u32 = 2;

/// Arguments of the receiving process.
#[derive(Args)]
pub struct Arguments {
    /// The folder with the authority that vouches for both processes.
    #[arg(long)]
    authority: PathBuf,
    /// Tokens that are handed over.
    #[arg(long)]
    tokens: u32,
    /// The node takes TLS only, or none.
    #[arg(long)]
    tls: bool,
}

/// Where the process listens.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ready {
    /// Control API of the node.
    pub node: SocketAddr,
    /// Who that is with TLS, as in certificates.
    pub identity: String,
    /// Where plain copies are read.
    pub sink: SocketAddr,
}

/// What the process may be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// Forget the peak of memory.
    Reset,
    /// CPU time and memory.
    Usage,
    /// Digest of the planes.
    Digest,
    /// Forget what is in the planes.
    Clear,
}

/// What it answers.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Told {
    /// CPU seconds so far.
    pub cpu_s: f64,
    /// The most memory since the last reset, beyond what was there before the first handoff.
    pub peak_extra: Option<u64>,
    /// Digest of the planes.
    pub digest: Option<String>,
}

/// Runs until standard input ends.
///
/// # Errors
/// If a listener or a node fails.
pub async fn main(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let authority = ClusterDir::new(arguments.authority).authority()?;
    let identity = Arc::new(authority.issue()?);
    let contract = contract();
    let cache = Arc::new(Mutex::new(Cache::new(&contract, arguments.tokens)));
    let (planes, copied, step) = (
        Arc::clone(&cache),
        arguments.tokens,
        block_tokens(&contract, Section::Full),
    );
    let stop = CancellationToken::new();
    let security = match arguments.tls {
        true => Security::Tls(Arc::clone(&identity)),
        false => Security::Plaintext,
    };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let handoff = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let tokens = arguments.tokens + FURTHER_TOKENS;
    let engine = BenchEngine::new(contract, Arc::clone(&cache), tokens);
    let engine: Box<dyn KvEngine> = Box::new(engine);
    let models = vec![(MODEL.to_owned(), engine)];
    let stopped = stop.clone().cancelled_owned();
    let node = tandem_node::run(listener, handoff, config(security), models, || {}, stopped);
    let node = tokio::spawn(node);
    let sink = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let ready = Ready {
        node: address,
        identity: PeerId::to_string(identity.id()),
        sink: sink.local_addr()?,
    };
    std::thread::spawn(move || copy::sink(&sink, &planes, copied, step));
    print(&serde_json::to_string(&ready)?)?;
    let (ended, tokens) = (stop.clone(), arguments.tokens);
    std::thread::spawn(move || {
        if let Err(error) = answer(&cache, tokens) {
            tracing::warn!(%error, "the process that measures has gone");
        }
        ended.cancel();
    });
    node.await??;
    Ok(ExitCode::SUCCESS)
}

fn config(security: Security) -> NodeConfig {
    NodeConfig {
        role: Role::Decode,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        security,
        pages: PagesConfig {
            ram_bytes: 0,
            disk: None,
        },
        limits: Limits::default(),
    }
}

/// Answers until the input ends.
fn answer(cache: &Mutex<Cache>, tokens: u32) -> anyhow::Result<()> {
    let memory = Memory::start();
    for line in std::io::stdin().lock().lines() {
        let ask: Ask = serde_json::from_str(&line?)?;
        let mut told = Told::default();
        match ask {
            Ask::Reset => memory.reset_peak(),
            Ask::Usage => told.peak_extra = memory.peak_extra(),
            Ask::Clear => cache.lock().unwrap_or_else(PoisonError::into_inner).clear(),
            Ask::Digest => {
                let cache = cache.lock().unwrap_or_else(PoisonError::into_inner);
                told.digest = Some(cache.digest(tokens));
            }
        }
        told.cpu_s = cpu_seconds();
        print(&serde_json::to_string(&told)?)?;
    }
    Ok(())
}
