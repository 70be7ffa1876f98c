//! A node inside this process, on loopback: what `--model` without a configuration stands for.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use tandem_cluster::{Ending, Security};
use tandem_engine::{Capacity, KvEngine};
use tandem_engine_llama::{LlamaOptions, MAX_SEQUENCES, cached_sequences};
use tandem_node::{Limits, NodeConfig, PagesConfig, RunError};
use tandem_proto::Role;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::context::Context;
use crate::environment::Environment;
use crate::sources::Source;
use crate::{loading, version};
use tandem_engine_llama::build::cores;

/// Name of the node in routes and answers.
pub const NAME: &str = "here";
/// Tokens of a chunk, and computed at once.
const CHUNK: u32 = tandem_coordinator::Config::DEFAULT_CHUNK;
/// Longest wait for the node to end after it was told to.
const END: Duration = Duration::from_secs(10);

/// How models are loaded here.
#[derive(Args, Clone)]
pub struct Arguments {
    /// Tokens of one sequence, prompt and answer together, of each --model [default: what it was trained for, as far as half of
    /// the free memory holds all sequences].
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..=i64::from(tandem_handoff::limits::MAX_TOKENS)))]
    context: Option<u32>,
    /// Sequences at once, of each --model.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SEQUENCES)))]
    slots: u32,
    /// CPU threads for each --model [default: all].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=512))]
    threads: Option<u32>,
    /// Layers of each --model on the GPU, where the build has one.
    #[arg(long, default_value_t = 999)]
    gpu_layers: u32,
    /// Memory for KV of earlier requests, in MiB; 0 keeps none.
    #[arg(long, value_name = "MIB", default_value_t = 2048)]
    pages_ram: u64,
}

impl Arguments {
    fn options(&self, path: &Path, context: &Context, environment: &Environment) -> LlamaOptions {
        LlamaOptions {
            capacity: Capacity {
                sequences: self.slots,
                cached: cached_sequences(self.slots),
                tokens_per_sequence: context.tokens(path),
                prefill_tokens: CHUNK,
                microbatch_tokens: CHUNK,
            },
            threads: self.threads.unwrap_or_else(cores),
            gpu_layers: self.gpu_layers,
            // Nobody takes KV from here.
            by_layer: false,
            cache_bytes: context.cache_bytes(),
            fingerprints: environment.fingerprints(),
            ..LlamaOptions::default()
        }
    }
}

/// A node that runs in this process. Dropping it tells it to stop.
pub struct LocalNode {
    /// Where the coordinator reaches it.
    pub address: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), RunError>>,
}

impl LocalNode {
    /// Loads the models, one after the other, and starts a node that holds them.
    ///
    /// # Errors
    /// If a model cannot be loaded.
    pub async fn start(
        models: Vec<Source>,
        arguments: &Arguments,
        environment: &Environment,
    ) -> anyhow::Result<Self> {
        loading::take_turns(environment);
        let paths = models.iter().map(|model| model.path.as_path());
        let context = Context::new(arguments.context, paths);
        let load = |model: Source| {
            let options = arguments.options(&model.path, &context, environment);
            (model, options)
        };
        let models: Vec<(Source, LlamaOptions)> = models.into_iter().map(load).collect();
        let loading = move || -> anyhow::Result<Vec<(String, Box<dyn KvEngine>)>> {
            let models = models.iter();
            models
                .map(|(model, options)| loading::load_visibly(&model.name, &model.path, options))
                .collect()
        };
        let models = tokio::task::spawn_blocking(loading).await??;
        let any_port = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let listener = TcpListener::bind(any_port).await?;
        let handoff = TcpListener::bind(any_port).await?;
        let address = listener.local_addr()?;
        let pages_bytes = arguments.pages_ram.checked_mul(1 << 20);
        let pages_bytes = pages_bytes.context("--pages-ram: no machine has so much")?;
        let config = NodeConfig {
            role: Role::Both,
            version: version::VERSION.to_owned(),
            security: Security::Plaintext,
            pages: PagesConfig {
                ram_bytes: pages_bytes,
                disk: None,
            },
            limits: Limits::default(),
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let (ready, is_ready) = oneshot::channel::<()>();
        let ending = async move {
            // Also when nobody holds the node any more.
            let _ = stopped.await;
            Ending::Now
        };
        let tell = move || {
            // Who waits for it is still there.
            let _ = ready.send(());
        };
        let mut task = tokio::spawn(tandem_node::run(
            listener, handoff, config, models, tell, ending,
        ));
        tokio::select! {
            Ok(()) = is_ready => {}
            ended = &mut task => {
                ended.context("the node failed")??;
                bail!("the node ended at once");
            }
        }
        Ok(Self {
            address,
            stop: Some(stop),
            task,
        })
    }

    /// Waits for the node to end by itself, which it does only when it fails.
    ///
    /// # Errors
    /// Why it ended.
    pub async fn failed(&mut self) -> anyhow::Result<()> {
        (&mut self.task).await.context("the node failed")??;
        bail!("the node has ended")
    }

    /// Stops it and waits for its end, within a limit, so that its engines are gone before the process is.
    pub async fn stop(mut self) {
        drop(self.stop.take());
        if tokio::time::timeout(END, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}
