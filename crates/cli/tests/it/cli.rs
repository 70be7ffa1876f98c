//! Arguments, `--version`, `run`, and how processes end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Output};

use tandem_testkit::Architecture;

use super::daemon::{Daemon, TANDEM, fixture, write_config};

fn tandem(arguments: &[&str]) -> Output {
    Command::new(TANDEM)
        .args(arguments)
        .env("TANDEM_DATA", super::daemon::shared_dir().join("data"))
        .output()
        .expect("the binary runs")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn shown(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

#[test]
fn the_version_names_engine_and_cpu_features() {
    for flag in ["-V", "--version"] {
        let output = tandem(&[flag]);
        assert!(output.status.success());
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        for part in ["tandem 0.", "llama.cpp", "backends CPU", "devices", " = 1"] {
            assert!(text.contains(part), "`{part}` is not in {text}");
        }
    }
}

#[test]
fn bad_arguments_are_refused_with_the_mend() {
    let dir = tempfile::tempdir().expect("dir");
    let file = dir.path().join("tandem.toml");
    std::fs::write(&file, "[[nodes]]\nname = \"a\"\n").expect("config");
    let (file, gguf) = (shown(&file), fixture(Architecture::Llama));
    let model = format!("m={}", gguf.display());
    let node = [
        "node",
        "--plaintext",
        "--listen",
        "127.0.0.1:0",
        "--role",
        "decode",
        "--model",
    ];
    let with = |more: &[&'static str]| -> Vec<String> {
        let words = node.iter().copied().chain([model.as_str()]);
        words
            .chain(more.iter().copied())
            .map(str::to_owned)
            .collect()
    };
    let words = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
    for (arguments, expected) in [
        (
            words(&["serve", "--config", "missing.toml"]),
            vec!["missing.toml"],
        ),
        (words(&["serve", "--config", file]), vec!["nodes", "`node`"]),
        (
            words(&["grade", "--config", file]),
            vec!["--rubric", "--out"],
        ),
        (
            words(&["node", "--role", "cook"]),
            vec!["prefill", "decode", "both"],
        ),
        (words(&[&node[..], &["x"]].concat()), vec!["NAME=PATH"]),
        (
            words(&[&node[..], &["m=missing.gguf"]].concat()),
            vec!["`m`", "missing.gguf"],
        ),
        (
            with(&["--chunk", "100", "--ubatch", "64"]),
            vec!["--chunk is 100", "--ubatch is 64", "multiple"],
        ),
        (with(&["--slots", "0"]), vec!["--slots", "1..="]),
        (with(&["--threads", "0"]), vec!["--threads", "1..=512"]),
        (
            with(&["--handoff", "192.0.2.1:1"]),
            vec!["--handoff", "192.0.2.1:1"],
        ),
        (words(&["demo", "--course", "missing"]), vec!["rubric.yaml"]),
        (
            words(&["demo", "--model", "code=missing.gguf"]),
            vec!["missing.gguf"],
        ),
    ] {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = tandem(&arguments);
        assert!(!output.status.success(), "{arguments:?} succeeded");
        let text = stderr(&output);
        for part in expected {
            assert!(
                text.contains(part),
                "{arguments:?}: `{part}` is not in {text}"
            );
        }
    }
}

#[test]
fn a_prompt_is_answered_on_the_terminal_with_its_timings() {
    let model = Architecture::Qwen3;
    let prefill = Daemon::node("prefill", &[model], &[]);
    let decode = Daemon::node("decode", &[model], &[]);
    let dir = tempfile::tempdir().expect("dir");
    let nodes = [("p", prefill.address), ("d", decode.address)];
    let config = write_config(dir.path(), 512, &nodes, &[(model, &["p"], &["d"])]);
    let prompt = dir.path().join("prompt.txt");
    std::fs::write(&prompt, "How do I read a file?").expect("prompt");
    let config = shown(&config);
    let from_argument = [
        "run",
        "--plaintext",
        "--config",
        config,
        "--max-tokens",
        "8",
        "How do I read a file?",
    ];
    let from_file = [
        "run",
        "--plaintext",
        "--config",
        config,
        "--max-tokens",
        "8",
        "--prompt-file",
        shown(&prompt),
    ];
    let first = tandem(&from_argument);
    assert!(first.status.success(), "{}", stderr(&first));
    for part in ["p → d", "remote", "prefill", "exposed transfer", "MB"] {
        assert!(stderr(&first).contains(part), "{}", stderr(&first));
    }
    let second = tandem(&from_file);
    assert!(second.status.success(), "{}", stderr(&second));
    assert_eq!(first.stdout, second.stdout);
    assert!(!first.stdout.is_empty());
    let with_codec = |codec| tandem(&[&from_file[..], &["--codec", codec]].concat());
    for lossless in ["auto", "plane"] {
        let third = with_codec(lossless);
        assert!(third.status.success(), "{}", stderr(&third));
        assert_eq!(first.stdout, third.stdout, "{lossless}");
    }
    let lossy = with_codec("q8");
    assert!(!lossy.status.success());
    for part in ["--codec", "`handoff.codec` is q8", "`handoff.quality`"] {
        assert!(stderr(&lossy).contains(part), "{}", stderr(&lossy));
    }
    let unknown = with_codec("zip");
    assert!(stderr(&unknown).contains("auto, raw, plane or q8"));
}

#[test]
fn a_node_that_is_not_there_is_named_with_the_mend() {
    // A port that was free a moment ago, and on which nothing listens.
    let gone = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = gone.local_addr().expect("an address");
    drop(gone);
    let dir = tempfile::tempdir().expect("dir");
    let model = Architecture::Llama;
    let config = write_config(dir.path(), 512, &[("d", address)], &[(model, &[], &["d"])]);
    let output = tandem(&["run", "--plaintext", "--config", shown(&config), "hello"]);
    assert!(!output.status.success());
    let (text, at) = (stderr(&output), address.to_string());
    for part in [
        "`d`",
        at.as_str(),
        &format!("tandem node --role decode --model llama=PATH --listen {at} --plaintext`"),
    ] {
        assert!(text.contains(part), "`{part}` is not in {text}");
    }
}

#[test]
fn a_node_ends_cleanly_when_its_standard_input_does() {
    let node = Daemon::node("both", &[Architecture::Llama], &[]);
    assert!(node.close_stdin_and_wait().success());
}

#[cfg(unix)]
#[test]
fn a_second_signal_ends_a_process_at_once() {
    let dir = tempfile::tempdir().expect("dir");
    let model = Architecture::Llama;
    let nowhere = ([127, 0, 0, 1], 1).into();
    let config = write_config(dir.path(), 512, &[("d", nowhere)], &[(model, &[], &["d"])]);
    let coordinator = Daemon::serve(&config);
    // A request whose body never comes holds up an orderly end. That the coordinator asks for the
    // body shows that it has the request.
    let mut request = TcpStream::connect(coordinator.address).expect("a connection");
    request
        .write_all(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\
              Expect: 100-continue\r\n\r\n",
        )
        .expect("the request is sent");
    let mut answer = [0; 12];
    request.read_exact(&mut answer).expect("an answer");
    assert_eq!(&answer, b"HTTP/1.1 100");
    coordinator.signal("TERM");
    // It takes no connection any more: it has the first signal.
    while TcpStream::connect(coordinator.address).is_ok() {
        std::thread::yield_now();
    }
    coordinator.signal("TERM");
    assert_eq!(coordinator.wait().code(), Some(130));
}
