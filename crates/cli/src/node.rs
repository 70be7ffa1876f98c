//! `tandem node`: the daemon.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};
use tandem_cluster::{Ending, Security};
use tandem_engine::{Capacity, KvEngine};
use tandem_engine_llama::{LlamaOptions, MAX_SEQUENCES, cached_sequences};
use tandem_engine_llama::{build::cores, options::parse_model};
use tandem_handoff::limits::MAX_TOKENS;
use tandem_node::{DiskConfig, Limits, NodeConfig, PagesConfig};
use tandem_proto::Role;

use crate::address::listen_address;
use crate::context::{CONTEXT, Context};
use crate::environment::Environment;
use crate::paced::{self, Paced};
use crate::shutdown::{self, StdinWatch};
use crate::sources::{self, Source, Wanted};
use crate::{cluster, loading, output, security, version};

/// Largest batch that is computed at once unless the command line says otherwise, in tokens.
const DEFAULT_UBATCH: u32 = 512;

/// The engine that computes.
const LLAMA: &str = "llama";

/// Arguments of `tandem node`.
#[derive(Args)]
pub struct Arguments {
    /// What the node is for.
    #[arg(long, value_enum)]
    role: RoleName,
    /// A model file, or the name that Ollama, LM Studio or the Hugging Face cache has for it, and the name under which it
    /// is asked for; may be repeated.
    #[arg(long, value_name = "NAME=PATH", required = true, value_parser = parse_model)]
    model: Vec<(String, PathBuf)>,
    /// Where the coordinator reaches this node; port 0 takes any free one.
    #[arg(long, value_name = "IP:PORT", value_parser = listen_address)]
    listen: SocketAddr,
    /// Where KV from prefill nodes is taken in [default: the same IP, any free port].
    #[arg(long, value_name = "IP:PORT", value_parser = listen_address)]
    handoff: Option<SocketAddr>,
    /// Tokens of one sequence, prompt and answer together, of each model [default: what it was trained for, as far as half of
    /// the free memory holds all sequences; 16384 for paced engines].
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(2..=i64::from(MAX_TOKENS)))]
    context: Option<u32>,
    /// What computes: `llama`, or `paced:` and the machine of a profile, such as paced:spark, which takes that machine's
    /// time and computes nothing; its --model names a model of the profiles, such as code=gpt-oss-120b.
    #[arg(long, default_value = LLAMA)]
    engine: String,
    /// How many times faster a paced engine is than its profile; its KV is as many times smaller.
    #[arg(long, default_value_t = 1.0)]
    speed: f64,
    /// The link of the machine that a paced engine plays, by its name in the profiles: no more KV leaves the node in a
    /// second [default: as much as this machine can].
    #[arg(long)]
    link: Option<String>,
    /// Sequences at once, of each model.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SEQUENCES)))]
    slots: u32,
    /// Largest chunk of a prefill, in tokens; at least the coordinator's `chunk`.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..))]
    chunk: u32,
    /// Tokens computed at once; must divide the chunk, and be equal on nodes that exchange KV
    /// [default: 512, or the chunk if that is smaller].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    ubatch: Option<u32>,
    #[command(flatten)]
    security: security::Arguments,
    /// Joins the cluster of this token first, unless this machine is a member already.
    #[arg(long, value_name = "TOKEN", conflicts_with = "plaintext")]
    join: Option<String>,
    /// CPU threads [default: all]. With one, a node takes no turns with others on this machine.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=512))]
    threads: Option<u32>,
    /// Layers on the GPU, where the build has one.
    #[arg(long, default_value_t = 999)]
    gpu_layers: u32,
    /// Memory for KV of earlier requests, in MiB; 0 keeps none.
    #[arg(long, value_name = "MIB", default_value_t = 2048)]
    pages_ram: u64,
    /// Directory for KV of earlier requests that memory has no room for, readable by its owner only;
    /// without it nothing is written to disk.
    #[arg(long, value_name = "DIR")]
    pages_dir: Option<PathBuf>,
    /// Largest size of that directory, in MiB.
    #[arg(
        long,
        value_name = "MIB",
        default_value_t = 16384,
        requires = "pages_dir"
    )]
    pages_disk: u64,
    /// How long requests may go on when it is told to stop (SIGTERM, Ctrl-C), in seconds; nothing new is taken
    /// meanwhile. A second signal ends it at once.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    drain: u64,
    /// Ends when standard input ends, so that a child does not outlive its parent.
    #[arg(long, hide = true)]
    stop_with_stdin: bool,
}

/// [`Role`] on the command line.
#[derive(Clone, Copy, ValueEnum)]
enum RoleName {
    /// Computes KV of prompts for other nodes.
    Prefill,
    /// Takes KV in and generates; can prefill for itself.
    Decode,
    /// Both.
    Both,
}

impl From<RoleName> for Role {
    fn from(name: RoleName) -> Self {
        match name {
            RoleName::Prefill => Self::Prefill,
            RoleName::Decode => Self::Decode,
            RoleName::Both => Self::Both,
        }
    }
}

/// Runs a node until it is told to stop.
///
/// # Errors
/// If this machine has no identity that it needs, an address is taken or needs TLS, a model cannot be
/// loaded, or a listener fails.
pub fn main(arguments: Arguments, environment: &Environment) -> anyhow::Result<ExitCode> {
    let input = arguments.stop_with_stdin.then(StdinWatch::start);
    check_names(&arguments.model)?;
    check_chunk(&arguments)?;
    let security = security(&arguments, environment)?;
    let listener = bind("--listen", arguments.listen, &security)?;
    let handoff = arguments.handoff;
    let handoff = bind(
        "--handoff",
        handoff.unwrap_or_else(|| SocketAddr::new(arguments.listen.ip(), 0)),
        &security,
    )?;
    loading::take_turns(environment);
    // Until the models are loaded, a signal ends the process at once: there is nothing to end yet.
    let models = load(&arguments, environment)?;
    let config = NodeConfig {
        role: arguments.role.into(),
        version: version::VERSION.to_owned(),
        security,
        pages: pages(&arguments)?,
        limits: Limits {
            drain: Duration::from_secs(arguments.drain),
            link_rate: link_rate(&arguments)?,
            ..Limits::default()
        },
    };
    crate::on_runtime(async move {
        let (listener, handoff) = (
            tokio::net::TcpListener::from_std(listener)?,
            tokio::net::TcpListener::from_std(handoff)?,
        );
        let scheme = match config.security.is_tls() {
            true => "https",
            false => "http",
        };
        let ready = format!(
            "ready {scheme}://{} handoff {}",
            listener.local_addr()?,
            handoff.local_addr()?
        );
        shutdown::ignore_hangup();
        let stop = async move {
            let mut gone = Box::pin(ended(input));
            tokio::select! {
                () = shutdown::signal() => {
                    // A parent that goes meanwhile leaves nobody who would wait for an answer.
                    tokio::spawn(async move {
                        gone.await;
                        std::process::exit(0);
                    });
                    Ending::Drain
                }
                () = &mut gone => Ending::Now,
            }
        };
        let tell = || {
            // If nobody reads it, the node serves all the same.
            let _ = output::print(&ready);
        };
        tandem_node::run(listener, handoff, config, models, tell, stop).await?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Who this node is; it joins first if it is told to.
fn security(arguments: &Arguments, environment: &Environment) -> anyhow::Result<Security> {
    if let Some(token) = &arguments.join {
        let token = cluster::read_token(token)?;
        let directory = arguments.security.directory(environment)?;
        crate::on_runtime(async {
            cluster::join_if_needed(&directory, &token).await?;
            Ok(ExitCode::SUCCESS)
        })?;
    }
    arguments.security.security(environment)
}

fn pages(arguments: &Arguments) -> anyhow::Result<PagesConfig> {
    let bytes = |option: &str, mib: u64| {
        let bytes = mib.checked_mul(1 << 20);
        bytes.with_context(|| format!("{option} is {mib} MiB, which no machine has"))
    };
    let disk_bytes = bytes("--pages-disk", arguments.pages_disk)?;
    Ok(PagesConfig {
        ram_bytes: bytes("--pages-ram", arguments.pages_ram)?,
        disk: arguments.pages_dir.clone().map(|dir| DiskConfig {
            dir,
            bytes: disk_bytes,
        }),
    })
}

/// Bytes per second of the link that a paced engine plays.
fn link_rate(arguments: &Arguments) -> anyhow::Result<Option<u64>> {
    let Some(link) = &arguments.link else {
        return Ok(None);
    };
    if arguments.engine == LLAMA {
        bail!("--link is for paced engines; --engine names none");
    }
    paced::link_rate(link).map(Some)
}

async fn ended(input: Option<StdinWatch>) {
    match input {
        Some(input) => input.ended().await,
        None => std::future::pending().await,
    }
}

impl Arguments {
    /// Tokens computed at once.
    fn ubatch(&self) -> u32 {
        self.ubatch
            .unwrap_or_else(|| self.chunk.min(DEFAULT_UBATCH))
    }
}

fn check_chunk(arguments: &Arguments) -> anyhow::Result<()> {
    let (chunk, ubatch) = (arguments.chunk, arguments.ubatch());
    if !chunk.is_multiple_of(ubatch) {
        bail!("--chunk is {chunk} and --ubatch is {ubatch}: the chunk must be a multiple of it");
    }
    Ok(())
}

fn check_names(models: &[(String, PathBuf)]) -> anyhow::Result<()> {
    for (i, (name, _)) in models.iter().enumerate() {
        if models[..i].iter().any(|(n, _)| n == name) {
            bail!("--model `{name}` is given twice: every model needs a name of its own");
        }
    }
    Ok(())
}

fn bind(option: &str, address: SocketAddr, security: &Security) -> anyhow::Result<TcpListener> {
    security
        .check_listen(address)
        .with_context(|| option.to_owned())?;
    let listener = TcpListener::bind(address).with_context(|| {
        format!("{option}: cannot listen on {address}; choose an address of this machine and a free port")
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn load(
    arguments: &Arguments,
    environment: &Environment,
) -> anyhow::Result<Vec<(String, Box<dyn KvEngine>)>> {
    let capacity = |tokens_per_sequence| Capacity {
        sequences: arguments.slots,
        cached: cached_sequences(arguments.slots),
        tokens_per_sequence,
        prefill_tokens: arguments.chunk,
        microbatch_tokens: arguments.ubatch(),
    };
    if arguments.engine != LLAMA {
        let paced = Paced::read(&arguments.engine, arguments.speed)?;
        let named = |(name, model): &(String, PathBuf)| (name.clone(), model.display().to_string());
        let models: Vec<_> = arguments.model.iter().map(named).collect();
        return paced.load(&models, capacity(arguments.context.unwrap_or(CONTEXT)));
    }
    if arguments.speed != 1.0 {
        bail!("--speed is for paced engines; --engine names none");
    }
    let find = |(name, path): &(String, PathBuf)| {
        let wanted = Wanted {
            name: Some(name.clone()),
            source: path.display().to_string(),
        };
        let found = crate::on_runtime(sources::obtain(&wanted, environment));
        found.with_context(|| format!("--model `{name}`"))
    };
    let models = arguments.model.iter().map(find);
    let models: Vec<Source> = models.collect::<anyhow::Result<_>>()?;
    let paths = models.iter().map(|model| model.path.as_path());
    let context = Context::new(arguments.context, paths);
    let load = |model: &Source| {
        let options = LlamaOptions {
            capacity: capacity(context.tokens(&model.path)),
            threads: arguments.threads.unwrap_or_else(cores),
            gpu_layers: arguments.gpu_layers,
            by_layer: Role::from(arguments.role).prefills(),
            cache_bytes: context.cache_bytes(),
            fingerprints: environment.fingerprints(),
            ..LlamaOptions::default()
        };
        loading::load(&model.name, &model.path, &options)
    };
    models.iter().map(load).collect()
}
