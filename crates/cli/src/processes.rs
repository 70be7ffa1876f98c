//! Node processes that this one starts and that never outlive it: each ends when its standard input does.

use std::ffi::OsString;
use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, bail};
use tandem_proto::Role;
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

/// Longest wait for a node to load its model.
const READY: Duration = Duration::from_secs(600);
/// Longest wait for a node to end by itself.
const END: Duration = Duration::from_secs(10);
/// Lines of a log that are shown when a node fails.
const LOG_LINES: usize = 5;

/// A running `tandem node`.
pub struct NodeProcess {
    /// Its name in the configuration.
    pub name: String,
    /// Where its control API listens.
    pub address: SocketAddr,
    child: Child,
    /// Kept, because a node that cannot write would fail.
    _output: Lines<BufReader<ChildStdout>>,
}

impl NodeProcess {
    /// Starts a node of this program with these arguments and waits until it is ready. Its standard error goes to a file
    /// in `logs`.
    ///
    /// # Errors
    /// If it cannot be started, or ends before it is ready; with the end of its log.
    pub async fn start(
        name: &str,
        role: Role,
        arguments: Vec<OsString>,
        logs: &Path,
    ) -> anyhow::Result<Self> {
        std::fs::create_dir_all(logs)
            .with_context(|| format!("cannot make the folder {}", logs.display()))?;
        let log = logs.join(format!("{name}.log"));
        let mut child = command(role, arguments, &log)?
            .spawn()
            .with_context(|| format!("node `{name}` cannot be started"))?;
        let output = child.stdout.take().context("the node has no output")?;
        let mut output = BufReader::new(output).lines();
        let line = tokio::time::timeout(READY, output.next_line())
            .await
            .with_context(|| format!("node `{name}` is not ready after {} s", READY.as_secs()))??;
        let Some(line) = line else {
            let status = child.wait().await?;
            bail!(
                "node `{name}` ended before it was ready ({status}); {} ends with: {}",
                log.display(),
                last_lines(&log)
            );
        };
        Ok(Self {
            address: address(&line)
                .with_context(|| format!("node `{name}` said \"{line}\" instead of its address"))?,
            name: name.to_owned(),
            child,
            _output: output,
        })
    }

    async fn stop(mut self) {
        // The end of its input tells the node to stop.
        drop(self.child.stdin.take());
        if tokio::time::timeout(END, self.child.wait()).await.is_err() {
            // It is killed anyway when the handle is dropped; this waits for it too.
            let _ = self.child.kill().await;
        }
    }
}

/// Stops all nodes at once and waits for their end.
pub async fn stop(nodes: Vec<NodeProcess>) {
    futures_util::future::join_all(nodes.into_iter().map(NodeProcess::stop)).await;
}

fn command(role: Role, arguments: Vec<OsString>, log: &Path) -> anyhow::Result<Command> {
    let role = match role {
        Role::Prefill => "prefill",
        Role::Decode => "decode",
        Role::Both => "both",
    };
    let log = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let program: PathBuf = std::env::current_exe().context("where this program is")?;
    let mut command = Command::new(program);
    command
        .args(["node", "--role", role, "--listen", "127.0.0.1:0"])
        // Everything is on this machine, whether or not it belongs to a cluster.
        .arg("--plaintext")
        .args(arguments)
        .arg("--stop-with-stdin")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(log)
        .kill_on_drop(true);
    // Ctrl-C on the terminal is for this process, which stops its nodes in order.
    #[cfg(unix)]
    command.process_group(0);
    Ok(command)
}

/// The address in `ready http://ADDRESS handoff ADDRESS`.
fn address(line: &str) -> Option<SocketAddr> {
    let rest = line.strip_prefix("ready http://")?;
    rest.split(' ').next()?.parse().ok()
}

fn last_lines(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES)..].join(" | ")
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn the_ready_line_is_read() {
        let line = "ready http://127.0.0.1:4711 handoff 127.0.0.1:4712";
        assert_eq!(address(line).map(|a| a.port()), Some(4711));
        assert_eq!(address("error"), None);
    }
}
