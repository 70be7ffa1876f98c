//! A node inside this process, on loopback: what `--model` without a configuration stands for.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use tandem_cluster::{Ending, Security};
use tandem_engine::{Capacity, KvEngine};
use tandem_engine_llama::gguf::{Value, metadata};
use tandem_engine_llama::{LlamaOptions, MAX_SEQUENCES};
use tandem_node::{Limits, NodeConfig, PagesConfig, RunError};
use tandem_proto::Role;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::environment::Environment;
use crate::sources::Source;
use crate::{loading, version};
use tandem_engine_llama::build::cores;

/// Name of the node in routes and answers.
pub const NAME: &str = "here";
/// Tokens of one sequence, unless the command line says it or the model was trained for less.
const CONTEXT: u32 = 16384;
/// Tokens of a chunk, and computed at once.
const CHUNK: u32 = tandem_coordinator::Config::DEFAULT_CHUNK;
/// Memory for KV of earlier requests, in bytes.
const PAGES_BYTES: u64 = 2 << 30;
/// Longest wait for the node to end after it was told to.
const END: Duration = Duration::from_secs(10);

/// How models are loaded here.
#[derive(Args, Clone)]
pub struct Arguments {
    /// Tokens of one sequence, prompt and answer together, of each --model [default: 16384, or what it was trained for if
    /// that is less].
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..=i64::from(tandem_handoff::limits::MAX_TOKENS)))]
    context: Option<u32>,
    /// Sequences at once, of each --model.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SEQUENCES)))]
    slots: u32,
    /// CPU threads for each --model [default: all].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=512))]
    threads: Option<u32>,
    /// Layers of each --model on the GPU, where the build has one.
    #[arg(long, default_value_t = 999)]
    gpu_layers: u32,
}

impl Arguments {
    fn options(&self, path: &Path, environment: &Environment) -> LlamaOptions {
        let trained = || trained_context(path).unwrap_or(CONTEXT).clamp(2, CONTEXT);
        LlamaOptions {
            capacity: Capacity {
                sequences: self.slots,
                cached: 0,
                tokens_per_sequence: self.context.unwrap_or_else(trained),
                prefill_tokens: CHUNK,
                microbatch_tokens: CHUNK,
            },
            threads: self.threads.unwrap_or_else(cores),
            gpu_layers: self.gpu_layers,
            // Nobody takes KV from here.
            by_layer: false,
            fingerprints: environment.fingerprints(),
            ..LlamaOptions::default()
        }
    }
}

/// Tokens that a model was trained for, by its file.
fn trained_context(path: &Path) -> Option<u32> {
    let metadata = metadata(path).ok()?;
    let Some(Value::Text(architecture)) = metadata.get("general.architecture") else {
        return None;
    };
    match metadata.get(&format!("{architecture}.context_length")) {
        Some(Value::Int(tokens)) => u32::try_from(*tokens).ok(),
        _ => None,
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
        let load = |model: Source| {
            let options = arguments.options(&model.path, environment);
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
        let config = NodeConfig {
            role: Role::Both,
            version: version::VERSION.to_owned(),
            security: Security::Plaintext,
            pages: PagesConfig {
                ram_bytes: PAGES_BYTES,
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
