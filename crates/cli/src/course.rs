//! `tandem course`: the gradebook, also where there is no model.

use std::net::SocketAddr;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use tandem_cluster::Public;
use tandem_gradebook::Gradebook;

use crate::address::{ANY_PORT, listen_address};
use crate::coordinator::Coordinator;
use crate::environment::Environment;
use crate::setup::Setup;
use crate::{output, shutdown};

/// Arguments of `tandem course`.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serves the pages of the gradebook without a model: what is graded can be reviewed and approved.
    Open(Open),
}

#[derive(Args)]
struct Open {
    /// Where the pages are [default: any free port of this machine].
    #[arg(long, value_name = "IP:PORT", value_parser = listen_address)]
    listen: Option<SocketAddr>,
}

/// Does what was asked for.
///
/// # Errors
/// If the gradebook cannot be opened, or the address is taken.
pub async fn main(arguments: Arguments, environment: &Environment) -> anyhow::Result<ExitCode> {
    let Command::Open(open) = arguments.command;
    let gradebook = Gradebook::open(&environment.gradebook()?)?;
    let home = gradebook.home().to_owned();
    serve(&gradebook, &home, Setup::without_models(), open.listen).await
}

/// Serves the pages until it is told to stop.
///
/// # Errors
/// If the address is taken, or a model of this process fails.
pub async fn serve(
    gradebook: &Gradebook,
    page: &str,
    setup: Setup,
    listen: Option<SocketAddr>,
) -> anyhow::Result<ExitCode> {
    let Setup {
        config,
        security,
        mut local,
    } = setup;
    let mut coordinator = Coordinator::start_with_pages(
        listen.unwrap_or(ANY_PORT),
        Public::plaintext(),
        config.coordinator.clone(),
        security,
        Some(gradebook),
    )
    .await?;
    if !config.coordinator.models.is_empty() {
        coordinator.connect(gradebook, &config.grading);
    }
    let address = gradebook.address_of(&coordinator.url(), page)?;
    output::print(&format!("gradebook {address}"))?;
    eprintln!("tandem: open this address; Ctrl-C ends it, and what was graded is kept");
    tokio::select! {
        failed = coordinator.failed() => failed?,
        failure = Setup::failed(&mut local) => failure?,
        () = shutdown::signal() => coordinator.stop().await?,
    }
    if let Some(local) = local {
        local.stop().await;
    }
    Ok(ExitCode::SUCCESS)
}
