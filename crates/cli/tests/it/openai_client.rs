//! The official OpenAI client for Python, from the registry, against real processes.

use std::path::{Path, PathBuf};
use std::process::Command;

use tandem_testkit::Architecture;

use super::daemon::{Daemon, shared_dir, write_config};

/// The pinned version of the client.
const REQUIREMENTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/requirements.txt");
const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/openai_client.py");

/// Less than what the client calls too long.
const CONTEXT: [&str; 2] = ["--context", "8192"];

#[test]
fn the_official_client_completes_a_chat_whole_and_streamed() {
    let model = Architecture::Qwen3;
    let prefill = Daemon::node("prefill", &[model], &CONTEXT);
    let decode = Daemon::node("decode", &[model], &CONTEXT);
    let dir = tempfile::tempdir().expect("dir");
    let nodes = [("p", prefill.address), ("d", decode.address)];
    let config = write_config(dir.path(), 512, &nodes, &[(model, &["p"], &["d"])]);
    let coordinator = Daemon::serve(&config);
    completes(&format!("http://{}/v1", coordinator.address), model, None).expect("ok");
}

#[test]
fn over_tls_the_official_client_trusts_the_certificate_it_knows() {
    let model = Architecture::Qwen3;
    let prefill = Daemon::node("prefill", &[model], &CONTEXT);
    let decode = Daemon::node("decode", &[model], &CONTEXT);
    let dir = tempfile::tempdir().expect("dir");
    let nodes = [("p", prefill.address), ("d", decode.address)];
    let config = write_config(dir.path(), 512, &nodes, &[(model, &["p"], &["d"])]);
    let made = ["127.0.0.1", "localhost"].map(str::to_owned);
    let made = rcgen::generate_simple_self_signed(made).expect("a certificate");
    let write = |name: &str, text: String| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    };
    let certificate = write("cert.pem", made.cert.pem());
    let key = write("key.pem", made.signing_key.serialize_pem());
    let [certificate_arg, key_arg] = [&certificate, &key].map(|path| path.to_str().expect("UTF-8"));
    let tls = [
        "--plaintext",
        "--tls-cert",
        certificate_arg,
        "--tls-key",
        key_arg,
    ];
    let coordinator = Daemon::serve_with(&config, &tls);
    let url = format!("https://{}/v1", coordinator.address);
    completes(&url, model, Some(&certificate)).expect("ok");
    let refused = completes(&url, model, None).expect_err("nobody vouches for it");
    assert!(refused.contains("CERTIFICATE_VERIFY_FAILED"), "{refused}");
    let plain = format!("http://{}/v1", coordinator.address);
    completes(&plain, model, None).expect_err("it speaks TLS only");
}

/// Has the client talk to the coordinator; what it said if that was not `ok`.
fn completes(url: &str, model: Architecture, trusted: Option<&Path>) -> Result<(), String> {
    let mut command = Command::new(environment());
    command.args([SCRIPT, url, model.name()]);
    // The coordinator is on this machine.
    command.env("NO_PROXY", "127.0.0.1");
    command.envs(trusted.map(|path| ("SSL_CERT_FILE", path)));
    let output = command.output().expect("Python runs");
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.success() && text.trim_end() == "ok" {
        return Ok(());
    }
    Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr)))
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
    // Each test is a process of its own, and several come here at once.
    let lock = std::fs::File::create(dir.with_extension("lock")).expect("a lock");
    lock.lock().expect("nobody holds it for ever");
    if !done.is_file() {
        make(&dir, &python);
        std::fs::write(done, "").expect("mark");
    }
    python
}

fn make(dir: &Path, python: &Path) {
    let run = |command: &mut Command, fix: &str| {
        let output = command.output();
        let output = output.unwrap_or_else(|e| panic!("{command:?}: {e}; {fix}"));
        assert!(
            output.status.success(),
            "{command:?}: {}{fix}",
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
