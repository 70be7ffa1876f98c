//! `tandem serve`: the coordinator.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use tandem_cluster::Public;
use tandem_gradebook::Gradebook;
use tandem_grading::limits::DEFAULT_NODE_WAIT;

use crate::address::listen_address;
use crate::config::Config;
use crate::coordinator::Coordinator;
use crate::environment::Environment;
use crate::setup::{self, Setup};
use crate::{nodes, output, shutdown};

/// Arguments of `tandem serve`.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    setup: setup::Arguments,
    /// Where to listen instead of the configuration's `listen`; port 0 takes any free one.
    #[arg(long, value_name = "IP:PORT", value_parser = listen_address)]
    listen: Option<SocketAddr>,
    /// Certificate that clients are shown, and its chain after it, PEM. Needed where other machines reach `listen`.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// How long open answers may go on when it is told to stop (SIGTERM, Ctrl-C), in seconds; new requests are refused
    /// meanwhile. A second signal ends it at once.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    drain: u64,
    /// Its key, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
}

/// Serves until told to stop. Nodes that are not there yet are named and may come later.
///
/// # Errors
/// If the configuration cannot be used or the address is taken.
pub async fn main(arguments: Arguments, environment: &Environment) -> anyhow::Result<ExitCode> {
    let Setup {
        config,
        security,
        mut local,
    } = arguments.setup.prepare(environment).await?;
    let listen = arguments.listen.unwrap_or(config.listen);
    let public = match (&arguments.tls_cert, &arguments.tls_key) {
        (Some(certificate), Some(key)) => Public::tls(certificate, key)?,
        _ => Public::plaintext(),
    };
    let mut nodes = config.coordinator.clone();
    nodes.limits.drain = Duration::from_secs(arguments.drain);
    shutdown::ignore_hangup();
    let gradebook = gradebook(environment);
    let mut coordinator =
        Coordinator::start_with_pages(listen, public, nodes, security, gradebook.as_ref()).await?;
    if let Some(gradebook) = &gradebook {
        coordinator.connect(gradebook, &config.grading, DEFAULT_NODE_WAIT);
    }
    tokio::select! {
        result = serve(&mut coordinator, &config, gradebook.as_ref()) => result?,
        failure = Setup::failed(&mut local) => failure?,
        () = shutdown::signal() => coordinator.drain().await?,
    }
    if let Some(local) = local {
        local.stop().await;
    }
    Ok(ExitCode::SUCCESS)
}

/// The gradebook; models are served without one, too.
fn gradebook(environment: &Environment) -> Option<Gradebook> {
    let open = |path: PathBuf| Ok(Gradebook::open(&path)?);
    match environment.gradebook().and_then(open) {
        Ok(gradebook) => Some(gradebook),
        Err(reason) => {
            eprintln!("tandem: warning: there are no pages for grading: {reason}");
            None
        }
    }
}

async fn serve(
    coordinator: &mut Coordinator,
    config: &Config,
    gradebook: Option<&Gradebook>,
) -> anyhow::Result<()> {
    let found = nodes::problems(
        &config.coordinator,
        &coordinator.nodes().await?,
        coordinator.is_tls(),
    );
    for warning in config.warnings.iter().chain(&found) {
        eprintln!("tandem: warning: {warning}");
    }
    output::print(&format!("ready {}", coordinator.url()))?;
    if let Some(gradebook) = gradebook {
        let address = gradebook.address(&coordinator.url())?;
        output::print(&format!("gradebook {address}"))?;
    }
    coordinator.failed().await
}
