//! Processes of the binary under test.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tandem_testkit::{Architecture, Spec};

/// The binary under test.
pub const TANDEM: &str = env!("CARGO_BIN_EXE_tandem");

/// Where fixtures and other things live that tests can share.
pub fn shared_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).to_owned()
}

/// A fixture model on disk.
pub fn fixture(architecture: Architecture) -> PathBuf {
    fixture_of(&Spec::new(architecture))
}

/// A fixture model on disk that differs from the usual ones.
pub fn fixture_of(spec: &Spec) -> PathBuf {
    let dir = shared_dir().join("fixtures");
    tandem_testkit::ensure(&dir, spec).expect("fixture")
}

/// Where a process with this configuration keeps things.
pub fn data_beside(config: &Path) -> PathBuf {
    config.with_file_name("data")
}

/// A process that has said where it listens. It is killed at the end of the test, and ends by itself
/// if the test process dies.
pub struct Daemon {
    child: Child,
    /// Where its API listens.
    pub address: SocketAddr,
    /// Kept open, so that it can write.
    _output: BufReader<std::process::ChildStdout>,
}

impl Daemon {
    fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the process starts");
        let mut output = BufReader::new(child.stdout.take().expect("output"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        let address = line
            .strip_prefix("ready http://")
            .or_else(|| line.strip_prefix("ready https://"))
            .and_then(|rest| rest.split_whitespace().next()?.parse().ok());
        let Some(address) = address else {
            let _ = child.kill();
            panic!("the process said {line:?} instead of its address");
        };
        Self {
            child,
            address,
            _output: output,
        }
    }

    /// Starts a node without TLS with these models, named after their architecture, and further arguments.
    pub fn node(role: &str, models: &[Architecture], further: &[&str]) -> Self {
        let specs: Vec<Spec> = models.iter().map(|m| Spec::new(*m)).collect();
        Self::node_with(role, &specs, further)
    }

    /// The same with models that differ from the usual ones.
    pub fn node_with(role: &str, models: &[Spec], further: &[&str]) -> Self {
        Self::start_node(role, models, &[further, &["--plaintext"]].concat())
    }

    /// Starts a node with TLS.
    pub fn member(role: &str, model: Architecture, further: &[&str]) -> Self {
        Self::start_node(role, &[Spec::new(model)], further)
    }

    /// Starts a node with all roles and without TLS, with models in files.
    pub fn node_of(models: &[(&str, &Path)], further: &[&str]) -> Self {
        let models: Vec<(String, PathBuf)> = models
            .iter()
            .map(|(name, path)| ((*name).to_owned(), path.to_path_buf()))
            .collect();
        Self::start("both", &models, &[further, &["--plaintext"]].concat())
    }

    fn start_node(role: &str, models: &[Spec], further: &[&str]) -> Self {
        let models: Vec<(String, PathBuf)> = models
            .iter()
            .map(|m| (m.architecture.to_string(), fixture_of(m)))
            .collect();
        Self::start(role, &models, further)
    }

    fn start(role: &str, models: &[(String, PathBuf)], further: &[&str]) -> Self {
        let mut command = Command::new(TANDEM);
        command.args(["node", "--role", role, "--listen", "127.0.0.1:0"]);
        command.args(["--stop-with-stdin", "--threads", "1"]);
        command.env("TANDEM_LOG", "warn");
        command.env("TANDEM_DATA", shared_dir().join("data"));
        for (name, path) in models {
            command.arg("--model");
            command.arg(format!("{name}={}", path.display()));
        }
        Self::spawn(command.args(further))
    }

    /// Starts a coordinator with this configuration, without TLS.
    pub fn serve(config: &Path) -> Self {
        Self::serve_with(config, &["--plaintext"])
    }

    /// The same with further arguments in place of `--plaintext`.
    pub fn serve_with(config: &Path, further: &[&str]) -> Self {
        let mut command = Command::new(TANDEM);
        command.args(["serve", "--listen", "127.0.0.1:0", "--config"]);
        command.arg(config).args(further);
        command.env("TANDEM_DATA", data_beside(config));
        Self::spawn(command.env("TANDEM_LOG", "error"))
    }

    /// Starts a coordinator without a configuration, with a home folder and arguments that say what it serves.
    pub fn serve_from(home: &Path, further: &[&str]) -> Self {
        let mut command = Command::new(TANDEM);
        command.args(["serve", "--listen", "127.0.0.1:0"]);
        command.args(further).env("HOME", home);
        command.env("TANDEM_DATA", home.join("data"));
        Self::spawn(command.env("TANDEM_LOG", "error"))
    }

    /// Ends it as a crash of the machine would.
    pub fn kill(&mut self) {
        self.child.kill().expect("SIGKILL");
        self.child.wait().expect("its end");
    }

    /// Sends it a signal, by its name for `kill`.
    #[cfg(unix)]
    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.expect("kill runs").success());
    }

    /// Waits for its end, which something else brings about.
    pub fn wait(mut self) -> std::process::ExitStatus {
        // `Child::wait` closes standard input, which would end it too.
        let _input = self.child.stdin.take();
        self.child.wait().expect("its end")
    }

    /// Closes its standard input and waits for its end.
    pub fn close_stdin_and_wait(mut self) -> std::process::ExitStatus {
        drop(self.child.stdin.take());
        self.child.wait().expect("its end")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A configuration file: nodes by name, and for each model its prefill and decode nodes.
pub fn write_config(
    dir: &Path,
    chunk: u32,
    nodes: &[(&str, SocketAddr)],
    models: &[(Architecture, &[&str], &[&str])],
) -> PathBuf {
    let mut text = format!("chunk = {chunk}\n");
    for (name, address) in nodes {
        text += &format!("[[node]]\nname = \"{name}\"\naddress = \"{address}\"\n");
    }
    for (model, prefill, decode) in models {
        text +=
            &format!("[[model]]\nname = \"{model}\"\nprefill = {prefill:?}\ndecode = {decode:?}\n");
    }
    let path = dir.join("tandem.toml");
    std::fs::write(&path, text).expect("config");
    path
}
