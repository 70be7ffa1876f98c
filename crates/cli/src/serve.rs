//! `tandem serve`: the coordinator.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::Args;

use crate::config::{self, Config};
use crate::coordinator::Coordinator;
use crate::environment::Environment;
use crate::{nodes, output, security, shutdown};

/// Arguments of `tandem serve`.
#[derive(Args)]
pub struct Arguments {
    #[command(flatten)]
    config: config::Arguments,
    #[command(flatten)]
    security: security::Arguments,
    /// Where to listen instead of the configuration's `listen`; port 0 takes any free one.
    #[arg(long, value_name = "IP:PORT")]
    listen: Option<SocketAddr>,
}

/// Serves until told to stop. Nodes that are not there yet are named and may come later.
///
/// # Errors
/// If the configuration cannot be used or the address is taken.
pub async fn main(arguments: Arguments, environment: &Environment) -> anyhow::Result<ExitCode> {
    let config = arguments.config.load()?;
    let security = arguments.security.security(environment)?;
    let listen = arguments.listen.unwrap_or(config.listen);
    let mut coordinator = Coordinator::start(listen, config.coordinator.clone(), security).await?;
    tokio::select! {
        result = serve(&mut coordinator, &config) => result?,
        () = shutdown::signal() => coordinator.stop().await?,
    }
    Ok(ExitCode::SUCCESS)
}

async fn serve(coordinator: &mut Coordinator, config: &Config) -> anyhow::Result<()> {
    let found = nodes::problems(
        &config.coordinator,
        &coordinator.nodes().await?,
        coordinator.is_tls(),
    );
    for warning in config.warnings.iter().chain(&found) {
        eprintln!("tandem: warning: {warning}");
    }
    output::print(&format!("ready http://{}", coordinator.address()))?;
    coordinator.failed().await
}
