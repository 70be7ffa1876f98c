//! Two node processes of one temporary cluster, which never outlive the measurement.

use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use tandem_cluster::invite::Invitation;
use tandem_cluster::join::join;
use tandem_cluster::limits::JOIN;
use tandem_cluster::{ClusterDir, Identity, PeerId, Security};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use super::ask::Pair;
use super::control::Control;
use super::{CHUNK, MODEL};

/// Longest wait for a node to load its model.
const READY: Duration = Duration::from_secs(120);
/// Longest wait for a node to end by itself.
const END: Duration = Duration::from_secs(10);
/// Tokens of one sequence.
pub const CONTEXT: u32 = 8192;
/// Sequences at once: one, and two that are being closed (the first was only opened, to tokenise).
const SLOTS: u32 = 3;
/// Threads of each node, unless a place says otherwise: both compute on this machine.
pub const THREADS: u32 = 1;

/// Where keys, certificates and logs of both nodes are. Removed when it is dropped.
pub struct Cluster {
    folder: tempfile::TempDir,
    prefill: Arc<Identity>,
    decode: Arc<Identity>,
}

impl Cluster {
    /// A new authority and two machines; the second joins as any other does.
    ///
    /// # Errors
    /// If keys cannot be made or written.
    pub async fn create() -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let first = ClusterDir::new(folder.path().join("prefill"));
        let second = ClusterDir::new(folder.path().join("decode"));
        let prefill = first.init()?;
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let invitation = Invitation::open(first.authority()?, here, None).await?;
        let token = invitation.token().clone();
        second.prepare_join(&token.authority())?;
        let (_, membership) =
            tokio::try_join!(async { anyhow::Ok(invitation.serve(JOIN).await?) }, async {
                anyhow::Ok(join(&token, JOIN).await?)
            },)?;
        second.keep(&membership)?;
        Ok(Self {
            prefill: Arc::new(prefill),
            decode: Arc::new(second.load()?),
            folder,
        })
    }

    /// The folder of the decode node, as whose machine requests are made.
    pub fn decode_folder(&self) -> PathBuf {
        self.folder.path().join("decode")
    }

    /// Who prefills and who decodes.
    pub fn members(&self) -> [&PeerId; 2] {
        [self.prefill.id(), self.decode.id()]
    }

    /// Another node on the machine that prefills, as seen from the machine of the decode node.
    ///
    /// # Errors
    /// If it does not answer.
    pub async fn prefill_at(&self, address: SocketAddr) -> anyhow::Result<Control> {
        let security = Security::Tls(Arc::clone(&self.decode));
        Control::connect(address, security, Some(self.prefill.id().clone())).await
    }

    /// Both nodes, as seen from the machine of the decode node.
    ///
    /// # Errors
    /// If one does not answer.
    pub async fn pair(&self, nodes: &Nodes, target: SocketAddr) -> anyhow::Result<Pair> {
        let addresses = [nodes.prefill.control, nodes.decode.control];
        Pair::connect(&self.decode, addresses, self.members(), target).await
    }
}

/// Where a node runs.
#[derive(Debug, Clone)]
pub struct Place {
    /// The network namespace, if it is not this process's own.
    pub namespace: Option<String>,
    /// Its address.
    pub ip: IpAddr,
    /// Another build of this program, if the node is not of this one.
    pub program: Option<PathBuf>,
    /// Its CPU threads.
    pub threads: u32,
    /// Tokens of its largest chunk.
    pub chunk: u32,
}

impl Place {
    /// On loopback.
    pub fn here() -> Self {
        Self {
            namespace: None,
            ip: Ipv4Addr::LOCALHOST.into(),
            program: None,
            threads: THREADS,
            chunk: CHUNK,
        }
    }
}

/// This program, or another build of it, in the namespace of its place if that has one. It is killed when its
/// handle is dropped, and told to end by the end of its input.
///
/// # Errors
/// If it is not known where this program is.
pub fn program(place: &Place) -> anyhow::Result<Command> {
    let program = match &place.program {
        Some(program) => program.clone(),
        None => std::env::current_exe().context("where this program is")?,
    };
    let mut command = match &place.namespace {
        Some(namespace) => {
            let mut command = Command::new("ip");
            command.args(["netns", "exec", namespace]).arg(program);
            command
        }
        None => Command::new(program),
    };
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    // Ctrl-C on the terminal is for the process that measures.
    #[cfg(unix)]
    command.process_group(0);
    Ok(command)
}

/// A running `tandem node`.
pub struct Node {
    /// Where its control API listens.
    pub control: SocketAddr,
    /// Where it takes KV in.
    pub handoff: SocketAddr,
    child: Child,
    /// Kept, because a node that cannot write would fail.
    _output: Lines<BufReader<ChildStdout>>,
}

impl Node {
    async fn start(
        role: &str,
        name: &str,
        model: &Path,
        place: &Place,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let mut command = program(place)?;
        command
            .args(["node", "--role", role])
            .args(["--listen", &SocketAddr::new(place.ip, 0).to_string()])
            .arg("--model")
            .arg(spec(MODEL, model))
            .args(["--context", &CONTEXT.to_string()])
            .args(["--slots", &SLOTS.to_string()])
            .args(["--chunk", &place.chunk.to_string()])
            .args(["--threads", &place.threads.to_string()])
            .arg("--cluster-dir")
            .arg(folder.join(role));
        Self::spawn(command, role, &folder.join(format!("{name}.log"))).await
    }

    /// A node of its own cluster on loopback, with these models and what a node does unless it is told otherwise. Its
    /// log is in that folder.
    ///
    /// # Errors
    /// If it does not get ready.
    pub async fn with_defaults(
        models: &[(String, PathBuf)],
        threads: Option<u32>,
        folder: &Path,
    ) -> anyhow::Result<Self> {
        let mut command = program(&Place::here())?;
        command.args([
            "node",
            "--role",
            "both",
            "--listen",
            "127.0.0.1:0",
            "--plaintext",
        ]);
        for (name, path) in models {
            command.arg("--model").arg(spec(name, path));
        }
        if let Some(threads) = threads {
            command.args(["--threads", &threads.to_string()]);
        }
        let names: Vec<&str> = models.iter().map(|(name, _)| name.as_str()).collect();
        let log = folder.join(format!("{}.log", names.join("-")));
        Self::spawn(command, "both", &log).await
    }

    async fn spawn(mut command: Command, role: &str, log: &Path) -> anyhow::Result<Self> {
        command.arg("--stop-with-stdin").stderr(File::create(log)?);
        let mut child = command
            .spawn()
            .with_context(|| format!("the {role} node cannot be started"))?;
        let output = child.stdout.take().context("the node has no output")?;
        let mut output = BufReader::new(output).lines();
        let line = tokio::time::timeout(READY, output.next_line()).await;
        let line = line.with_context(|| format!("the {role} node is not ready"))??;
        let Some((control, handoff)) = line.as_deref().and_then(addresses) else {
            let text = std::fs::read_to_string(log).unwrap_or_default();
            let last = text.lines().last().unwrap_or("nothing").to_owned();
            drop(child.stdin.take());
            let ended = tokio::time::timeout(END, child.wait()).await;
            let how = ended.map_or_else(
                |_| Ok("it is still there".into()),
                |status| status.map(|status| status.to_string()),
            )?;
            bail!("the {role} node did not start ({how}); its log ends with: {last}");
        };
        Ok(Self {
            control,
            handoff,
            child,
            _output: output,
        })
    }

    /// Its process.
    pub fn process(&self) -> Option<u32> {
        self.child.id()
    }

    /// Stops it and waits for its end.
    pub async fn stop(mut self) {
        drop(self.child.stdin.take());
        if tokio::time::timeout(END, self.child.wait()).await.is_err() {
            // It is killed anyway when the handle is dropped; this waits for it too.
            let _ = self.child.kill().await;
        }
    }
}

/// `NAME=PATH`.
fn spec(name: &str, path: &Path) -> std::ffi::OsString {
    let mut spec = std::ffi::OsString::from(format!("{name}="));
    spec.push(path);
    spec
}

/// The addresses in `ready https://ADDRESS handoff ADDRESS`.
fn addresses(line: &str) -> Option<(SocketAddr, SocketAddr)> {
    let url = line.strip_prefix("ready ")?;
    let address = url
        .strip_prefix("https://")
        .or(url.strip_prefix("http://"))?;
    let (control, handoff) = address.split_once(" handoff ")?;
    Some((control.parse().ok()?, handoff.parse().ok()?))
}

/// Both nodes.
pub struct Nodes {
    /// Computes.
    pub prefill: Node,
    /// Takes KV in.
    pub decode: Node,
}

impl Nodes {
    /// Starts both, the one that prefills first in each list.
    ///
    /// # Errors
    /// If one does not get ready.
    pub async fn start(
        cluster: &Cluster,
        models: [&Path; 2],
        places: &[Place; 2],
    ) -> anyhow::Result<Self> {
        if let Some(missing) = models.iter().find(|model| !model.is_file()) {
            bail!(
                "{} is not here: start in a checkout, or name a model file with --model",
                missing.display()
            );
        }
        let folder = cluster.folder.path();
        let (prefill, decode) = tokio::try_join!(
            Node::start("prefill", "prefill", models[0], &places[0], folder),
            Node::start("decode", "decode", models[1], &places[1], folder),
        )?;
        Ok(Self { prefill, decode })
    }

    /// Starts one more node that prefills, on the machine of the first one.
    ///
    /// # Errors
    /// If it does not get ready.
    pub async fn another(
        &self,
        cluster: &Cluster,
        model: &Path,
        place: &Place,
    ) -> anyhow::Result<Node> {
        Node::start("prefill", "other", model, place, cluster.folder.path()).await
    }

    /// Stops both and waits for their end.
    pub async fn stop(self) {
        tokio::join!(self.prefill.stop(), self.decode.stop());
    }
}

#[cfg(test)]
mod tests {
    use super::addresses;

    #[test]
    fn the_ready_line_is_read() {
        let line = "ready https://127.0.0.1:4711 handoff 127.0.0.1:4712";
        let ports = addresses(line).map(|(a, b)| (a.port(), b.port()));
        assert_eq!(ports, Some((4711, 4712)));
        assert!(addresses("ready http://127.0.0.1:1 handoff 127.0.0.1:2").is_some());
        assert_eq!(addresses("ready 127.0.0.1:1 handoff 127.0.0.1:2"), None);
    }
}
