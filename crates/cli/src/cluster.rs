//! `tandem cluster`: which machines belong together.

use std::io::Read;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use tandem_cluster::invite::Invitation;
use tandem_cluster::join::join;
use tandem_cluster::limits::{JOIN, MAX_INVITATION, MAX_TOKEN_CHARS};
use tandem_cluster::{ClusterDir, Token};

use crate::environment::Environment;
use crate::{output, repin, security, shutdown};

const SECONDS_PER_DAY: u64 = 24 * 3600;

/// A wait as people say it.
fn in_words(wait: Duration) -> String {
    match wait.as_secs() {
        seconds if seconds % 60 == 0 && seconds > 60 => format!("{} minutes", seconds / 60),
        seconds => format!("{seconds} s"),
    }
}

/// Arguments of `tandem cluster`.
#[derive(Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Makes a new cluster; this machine becomes its first.
    Init(Place),
    /// Lets one more machine join; runs on the machine that made the cluster.
    Invite(Invite),
    /// Joins the cluster of a token; runs on the machine that joins.
    Join(Join),
    /// Prints who this machine is.
    Show(Place),
    /// Says that the name of a model stands for what the nodes hold under it now.
    Repin(repin::Arguments),
}

#[derive(Args)]
struct Place {
    /// Folder for keys and certificates [default: `cluster` below `TANDEM_DATA`,
    /// `$XDG_DATA_HOME/tandem` or ~/.local/share/tandem].
    #[arg(long = "dir", value_name = "DIR")]
    directory: Option<PathBuf>,
}

#[derive(Args)]
struct Invite {
    #[command(flatten)]
    place: Place,
    /// Where to wait for the other machine.
    #[arg(long, value_name = "IP:PORT", default_value = "0.0.0.0:7300")]
    listen: SocketAddr,
    /// Where the other machine reaches this one [default: the listener, or this machine's address
    /// towards other networks].
    #[arg(long, value_name = "HOST:PORT")]
    address: Option<String>,
    /// How long to wait, such as 90s, 10m or 2h.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_wait)]
    wait: Duration,
}

#[derive(Args)]
struct Join {
    /// What `tandem cluster invite` printed; `-` reads it from standard input.
    token: String,
    #[command(flatten)]
    place: Place,
}

/// Reads `90s`, `10m` or `2h`.
fn parse_wait(text: &str) -> Result<Duration, String> {
    let unit = match text.chars().last() {
        Some('s') => Some(1),
        Some('m') => Some(60),
        Some('h') => Some(3600),
        _ => None,
    };
    let seconds = unit.and_then(|unit: u64| {
        let number: u64 = text[..text.len() - 1].parse().ok()?;
        number.checked_mul(unit)
    });
    let most = MAX_INVITATION.as_secs();
    match seconds {
        Some(seconds) if (1..=most).contains(&seconds) => Ok(Duration::from_secs(seconds)),
        _ => Err(format!("write 90s, 10m or 2h; at most {} h", most / 3600)),
    }
}

/// Runs a subcommand.
///
/// # Errors
/// If keys cannot be written or read, or nobody joins.
pub async fn main(arguments: Arguments, environment: &Environment) -> anyhow::Result<ExitCode> {
    match arguments.command {
        Command::Init(place) => init(&place.find(environment)?)?,
        Command::Show(place) => show(&place.find(environment)?)?,
        Command::Repin(arguments) => repin::main(&arguments, environment).await?,
        Command::Join(join) => {
            let token = read_token(&join.token)?;
            join_cluster(&join.place.find(environment)?, &token).await?;
        }
        Command::Invite(invite) => tokio::select! {
            joined = invite_one(&invite, environment) => joined?,
            () = shutdown::signal() => return Ok(ExitCode::from(shutdown::INTERRUPTED)),
        },
    }
    Ok(ExitCode::SUCCESS)
}

impl Place {
    fn find(&self, environment: &Environment) -> anyhow::Result<ClusterDir> {
        security::directory(self.directory.as_ref(), environment)
    }
}

fn init(directory: &ClusterDir) -> anyhow::Result<()> {
    let identity = directory.init()?;
    output::print(&format!(
        "made a cluster; its keys are in {}\nidentity of this machine: {}\n\
         Let other machines join it with `tandem cluster invite`.",
        directory.path().display(),
        identity.id()
    ))
}

fn show(directory: &ClusterDir) -> anyhow::Result<()> {
    let identity = directory.load()?;
    let left = identity.until().duration_since(SystemTime::now());
    let days = left.map_or(0, |left| left.as_secs() / SECONDS_PER_DAY);
    let makes = match directory.authority() {
        Ok(_) => "yes, `tandem cluster invite` runs here",
        Err(_) => "no",
    };
    output::print(&format!(
        "identity   {}\ncluster    {}\nvalid for  {days} days\nmade here  {makes}\nfolder     {}",
        identity.id(),
        identity.authority(),
        directory.path().display()
    ))
}

/// Prints a token and waits until a machine has used it. The token goes to standard output and
/// nowhere else.
async fn invite_one(arguments: &Invite, environment: &Environment) -> anyhow::Result<()> {
    let directory = arguments.place.find(environment)?;
    let authority = directory.authority()?;
    let address = arguments.address.as_deref();
    let invitation = Invitation::open(authority, arguments.listen, address).await?;
    let token = invitation.token().reveal();
    output::print(&format!(
        "{token}\n\n\
         On the other machine, within {} and once, one of:\n  \
         tandem cluster join {token}\n  \
         tandem node --join {token} ...\n\n\
         It connects to {}; if it reaches this machine elsewhere, stop this and add --address.\n",
        in_words(arguments.wait),
        invitation.token().address()
    ))?;
    let joined = invitation.serve(arguments.wait).await?;
    output::print(&format!("joined: {joined}"))
}

/// A token from the command line or standard input. Errors do not repeat it.
///
/// # Errors
/// If it is none.
pub fn read_token(text: &str) -> anyhow::Result<Token> {
    let mut piped = String::new();
    let text = if text == "-" {
        let input = std::io::stdin().lock();
        input
            .take(MAX_TOKEN_CHARS as u64 + 2)
            .read_to_string(&mut piped)
            .context("the token cannot be read from standard input")?;
        &piped
    } else {
        text
    };
    Ok(text.parse()?)
}

/// Joins unless this machine is a member already.
///
/// # Errors
/// If the machine has an identity of another cluster, or the token is not valid any more.
pub async fn join_if_needed(directory: &ClusterDir, token: &Token) -> anyhow::Result<()> {
    if !directory.has_identity() {
        return join_cluster(directory, token).await;
    }
    match directory.load() {
        Ok(identity) if identity.authority() == token.authority() => {
            tracing::info!("this machine is of the token's cluster already; --join is not needed");
            Ok(())
        }
        Ok(_) => bail!(
            "--join: the token is of another cluster than the identity in {}; choose another folder with \
             --cluster-dir, or leave --join out",
            directory.path().display()
        ),
        // Expired, for example: a new one may fix it.
        Err(_) => join_cluster(directory, token).await,
    }
}

async fn join_cluster(directory: &ClusterDir, token: &Token) -> anyhow::Result<()> {
    directory.prepare_join(&token.authority())?;
    let membership = join(token, JOIN).await?;
    directory.keep(&membership).context(
        "joined, but the token is used up and the certificate could not be kept; invite again",
    )?;
    eprintln!(
        "tandem: joined; identity of this machine: {}; its keys are in {}",
        membership.identity().id(),
        directory.path().display()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_read_with_their_unit() {
        for (text, seconds) in [("90s", 90), ("10m", 600), ("2h", 7200), ("24h", 86_400)] {
            assert_eq!(parse_wait(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in [
            "",
            "m",
            "10",
            "0s",
            "-1m",
            "25h",
            "1d",
            "9999999999999999999h",
            "1ü",
        ] {
            assert!(parse_wait(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_token_that_is_none_is_not_repeated() {
        let error = read_token("tandem-join-1-SECRETSECRET").unwrap_err();
        assert!(!format!("{error:?}").contains("SECRET"), "{error:?}");
    }
}
