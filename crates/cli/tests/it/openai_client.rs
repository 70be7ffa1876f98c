//! The official OpenAI client for Python, from the registry, against real processes.

use std::path::{Path, PathBuf};
use std::process::Command;

use tandem_fixtures::Architecture;

use super::daemon::{Daemon, shared_dir, write_config};

/// The pinned version of the client.
const REQUIREMENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/requirements.txt");
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/openai_client.py");

#[test]
fn the_official_client_completes_a_chat_whole_and_streamed() {
    let python = environment();
    let model = Architecture::Qwen3;
    let prefill = Daemon::node("prefill", &[model], &[]);
    let decode = Daemon::node("decode", &[model], &[]);
    let dir = tempfile::tempdir().expect("dir");
    let nodes = [("p", prefill.address), ("d", decode.address)];
    let config = write_config(dir.path(), 512, &nodes, &[(model, &["p"], &["d"])]);
    let coordinator = Daemon::serve(&config);
    let output = Command::new(python)
        .args([SCRIPT, &format!("http://{}/v1", coordinator.address)])
        .arg(model.name())
        // The coordinator is on this machine.
        .env("NO_PROXY", "127.0.0.1")
        .output()
        .expect("Python runs");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.trim_end() == "ok",
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Python of a virtual environment that has the client. It is made once per pinned version.
fn environment() -> PathBuf {
    let pinned = std::fs::read_to_string(REQUIREMENTS).expect("requirements");
    let name = pinned
        .trim()
        .replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let dir = shared_dir().join(format!("python-{name}"));
    let python = dir.join("bin/python");
    let done = dir.join("complete");
    if !done.is_file() {
        make(&dir, &python);
        std::fs::write(done, "").expect("mark");
    }
    python
}

fn make(dir: &Path, python: &Path) {
    let run = |command: &mut Command, mend: &str| {
        let output = command.output();
        let output = output.unwrap_or_else(|e| panic!("{command:?}: {e}; {mend}"));
        assert!(
            output.status.success(),
            "{command:?}: {}{mend}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    run(
        Command::new("python3")
            .args(["-m", "venv", "--clear"])
            .arg(dir),
        "Python 3 with venv is needed: `scripts/install-deps.sh test` installs it",
    );
    run(
        Command::new(python)
            .args(["-m", "pip", "install", "--quiet", "--requirement"])
            .arg(REQUIREMENTS),
        "the package registry must be reachable once",
    );
}
