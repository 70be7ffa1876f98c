//! Machines of a cluster, as processes on this one, each with its own folder of keys.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use tandem_testkit::Architecture;

use super::client::{ask, chat, http, text, tokens};
use super::daemon::{Daemon, TANDEM, fixture, write_config};
use super::grade::COURSE;

/// Runs the binary where no machine has an identity by default.
fn tandem(home: &Path, arguments: &[&str]) -> Output {
    command(home, arguments).output().expect("the binary runs")
}

fn command(home: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(TANDEM);
    command.args(arguments).env("TANDEM_DATA", home);
    command.env("TANDEM_LOG", "trace").stdin(Stdio::null());
    command
}

fn said(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn shown(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

/// `tandem cluster invite`, waiting. It is killed at the end of the test.
struct Invite {
    child: Child,
    output: BufReader<ChildStdout>,
    token: String,
}

impl Invite {
    fn start(home: &Path, further: &[&str]) -> Self {
        let arguments = ["cluster", "invite", "--listen", "127.0.0.1:0"];
        let mut child = command(home, &[&arguments[..], further].concat())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut output = BufReader::new(child.stdout.take().expect("output"));
        let mut token = String::new();
        output.read_line(&mut token).expect("a line");
        let token = token.trim().to_owned();
        assert!(token.starts_with("tandem-join-"), "{token}");
        Self {
            child,
            output,
            token,
        }
    }

    /// Waits for its end: whether it succeeded, what else it said, and its log.
    fn end(mut self) -> (bool, String, String) {
        let (mut rest, mut log) = (String::new(), String::new());
        self.output.read_to_string(&mut rest).expect("output");
        let mut errors = self.child.stderr.take().expect("log");
        errors.read_to_string(&mut log).expect("log");
        (self.child.wait().expect("its end").success(), rest, log)
    }
}

impl Drop for Invite {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_request_is_answered_between_machines_that_joined() {
    let model = Architecture::Qwen3;
    let dir = tempfile::tempdir().expect("dir");
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    let made = tandem(&first, &["cluster", "init"]);
    assert!(made.status.success(), "{}", said(&made.stderr));

    let invite = Invite::start(&first, &[]);
    let (here, there) = (first.join("cluster"), second.join("cluster"));
    let token = invite.token.clone();
    let joining = ["--cluster-dir", shown(&there), "--join", &token];
    let prefill = Daemon::member("prefill", model, &joining);
    let (joined, rest, log) = invite.end();
    assert!(joined && rest.contains("joined: "), "{rest}{log}");
    let decode = Daemon::member("decode", model, &["--cluster-dir", shown(&here)]);

    let nodes = [("p", prefill.address), ("d", decode.address)];
    let config = write_config(dir.path(), 512, &nodes, &[(model, &["p"], &["d"])]);
    let coordinator = Daemon::serve_with(&config, &["--cluster-dir", shown(&here)]);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let body = |route| chat(model.name(), &text(1500), 16, route);
        let remote = ask(coordinator.address, &body("remote")).await;
        let local = ask(coordinator.address, &body("local")).await;
        assert_eq!(remote["tandem"]["mode"], "remote", "{remote}");
        assert_eq!(remote["tandem"]["prefill_node"], "p", "{remote}");
        assert_eq!(tokens(&remote), tokens(&local));
        // Nobody without a certificate is answered.
        for node in [&prefill, &decode] {
            let url = format!("http://{}/node/v1/status", node.address);
            http().get(url).send().await.expect_err("no answer");
        }
    });

    // The node starts again with the token that is used up: it is a member already.
    drop(prefill);
    drop(Daemon::member("prefill", model, &joining));
    // Who belongs to another cluster is not spoken to.
    let third = dir.path().join("third");
    assert!(tandem(&third, &["cluster", "init"]).status.success());
    let arguments = ["run", "--config", shown(&config), "--max-tokens", "1", "x"];
    let stranger = tandem(&third, &arguments);
    assert!(!stranger.status.success());
    let told = said(&stranger.stderr);
    assert!(told.contains("another cluster"), "{told}");
}

#[test]
fn a_token_works_once_and_is_in_no_log() {
    let dir = tempfile::tempdir().expect("dir");
    let at = |name: &str| dir.path().join(name);
    assert!(tandem(&at("a"), &["cluster", "init"]).status.success());
    let invite = Invite::start(&at("a"), &[]);
    let token = invite.token.clone();
    let joined = tandem(&at("b"), &["cluster", "join", &token]);
    assert!(joined.status.success(), "{}", said(&joined.stderr));
    let (success, rest, log) = invite.end();
    assert!(success, "{log}");
    // The commands to run are told with the token.
    assert!(
        rest.contains(&format!("tandem cluster join {token}")),
        "{rest}"
    );

    let late = tandem(&at("c"), &["cluster", "join", &token]);
    assert!(!late.status.success());
    let told = said(&late.stderr);
    assert!(told.contains("only once"), "{told}");
    assert!(!at("c").join("cluster/node.key").exists());
    let again = tandem(&at("b"), &["cluster", "join", &token]);
    assert!(said(&again.stderr).contains("not overwritten"));

    let mut damaged = token.clone();
    damaged.truncate(token.len() - 3);
    let refused = tandem(&at("c"), &["cluster", "join", &damaged]);
    assert!(said(&refused.stderr).contains("damaged"));
    let logs = [
        log,
        said(&joined.stderr),
        said(&joined.stdout),
        told,
        said(&again.stderr),
        said(&refused.stderr),
    ];
    for log in &logs {
        for piece in token.as_bytes()[20..].windows(12) {
            let piece = std::str::from_utf8(piece).expect("ASCII");
            assert!(!log.contains(piece), "{log}");
        }
    }

    // Both show the same cluster, and are two machines.
    let show = |name: &str| said(&tandem(&at(name), &["cluster", "show"]).stdout);
    let line = |text: &str, key: &str| {
        let found = text.lines().find(|l| l.starts_with(key));
        found
            .unwrap_or_else(|| panic!("no {key} in {text}"))
            .to_owned()
    };
    let (a, b) = (show("a"), show("b"));
    assert_eq!(line(&a, "cluster"), line(&b, "cluster"));
    assert_ne!(line(&a, "identity"), line(&b, "identity"));
    assert!(a.contains("made here  yes") && b.contains("made here  no"));
    // Only the one that made it invites.
    let refused = tandem(&at("b"), &["cluster", "invite", "--listen", "127.0.0.1:0"]);
    assert!(said(&refused.stderr).contains("holds no authority"));
}

#[test]
fn an_invitation_that_nobody_takes_ends() {
    let dir = tempfile::tempdir().expect("dir");
    assert!(tandem(dir.path(), &["cluster", "init"]).status.success());
    let (success, _, log) = Invite::start(dir.path(), &["--wait", "1s"]).end();
    assert!(!success);
    assert!(log.contains("nobody joined within 1 s"), "{log}");
}

#[test]
fn a_cluster_is_not_overwritten_and_keys_that_others_can_read_are_refused() {
    let dir = tempfile::tempdir().expect("dir");
    assert!(tandem(dir.path(), &["cluster", "init"]).status.success());
    let again = tandem(dir.path(), &["cluster", "init"]);
    assert!(!again.status.success());
    assert!(said(&again.stderr).contains("not overwritten"));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let key = dir.path().join("cluster/node.key");
        let open = std::fs::Permissions::from_mode(0o644);
        std::fs::set_permissions(&key, open).expect("chmod");
        let refused = tandem(dir.path(), &["cluster", "show"]);
        let told = said(&refused.stderr);
        assert!(
            told.contains(&format!("chmod 600 {}", key.display())),
            "{told}"
        );
    }
}

#[test]
fn nothing_starts_without_an_identity_unless_it_is_told_to_stay_on_this_machine() {
    let dir = tempfile::tempdir().expect("dir");
    let model = format!("m={}", fixture(Architecture::Llama).display());
    let config = dir.path().join("tandem.toml");
    let elsewhere = "[[node]]\nname = \"d\"\naddress = \"192.0.2.1:7001\"\n\
                     [[model]]\nname = \"m\"\ndecode = [\"d\"]\n";
    std::fs::write(&config, elsewhere).expect("config");
    let out = dir.path().join("results");
    let (config, out) = (shown(&config), shown(&out));
    let rubric = format!("{COURSE}/rubric.yaml");
    let submission = format!("{COURSE}/submissions/s01-complete.py");
    let node = |listen: &'static str, more: &'static [&'static str]| {
        let start = ["node", "--role", "decode", "--model", &model, "--listen"];
        let words = start.into_iter().chain([listen]);
        let words: Vec<String> = words
            .chain(more.iter().copied())
            .map(str::to_owned)
            .collect();
        words
    };
    let words = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    let fixes = ["tandem cluster init", "tandem cluster join", "--plaintext"];
    for (arguments, expected) in [
        (node("127.0.0.1:0", &[]), &fixes[..]),
        (words(&["serve", "--config", config]), &fixes),
        (words(&["run", "--config", config, "x"]), &fixes),
        (
            words(&[
                "grade",
                "--config",
                config,
                "--rubric",
                &rubric,
                "--out",
                out,
                &submission,
            ]),
            &fixes,
        ),
        (
            node("0.0.0.0:0", &["--plaintext"]),
            &["--listen", "0.0.0.0:0", "loopback", "tandem cluster init"],
        ),
        (
            node("127.0.0.1:0", &["--plaintext", "--handoff", "0.0.0.0:0"]),
            &["--handoff", "loopback"],
        ),
        (
            words(&["run", "--plaintext", "--config", config, "x"]),
            &["192.0.2.1:7001", "loopback"],
        ),
        (
            node("127.0.0.1:0", &["--join", "nonsense"]),
            &["no token", "tandem cluster invite"],
        ),
        (
            node("127.0.0.1:0", &["--join", "x", "--plaintext"]),
            &["cannot be used with"],
        ),
    ] {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = tandem(dir.path(), &arguments);
        assert!(!output.status.success(), "{arguments:?} succeeded");
        let told = said(&output.stderr);
        for part in expected {
            assert!(
                told.contains(part),
                "{arguments:?}: `{part}` is not in {told}"
            );
        }
    }
}
