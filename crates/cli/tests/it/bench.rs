//! `tandem bench` with small sizes: it measures something, and what it tells adds up. Nothing here
//! depends on how fast this machine is, but for a prefill that must be faster than a link of 4 Mbit/s.

use std::process::{Command, Stdio};

use serde_json::Value;
use tandem_testkit::{Architecture, Spec, WeightType};

use super::daemon::{Daemon, TANDEM, fixture, fixture_of};
use super::tiny_http::{self, Answer};

fn bench(arguments: &[&str]) -> Value {
    run(Command::new(TANDEM).arg("bench").args(arguments)).0
}

/// What a command tells, and what it says on standard error.
fn run(command: &mut Command) -> (Value, String) {
    let (told, said, _) = run_as_process(command);
    (told, said)
}

/// The same, and the number of its process.
fn run_as_process(command: &mut Command) -> (Value, String, u32) {
    let command = command.arg("--json").stdout(Stdio::piped());
    let child = command.stderr(Stdio::piped()).spawn().expect("tandem runs");
    let process = child.id();
    let output = child.wait_with_output().expect("tandem runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}: {said}");
    let told = serde_json::from_slice(&output.stdout).expect("one JSON object");
    (told, said, process)
}

fn number(value: &Value, name: &str) -> f64 {
    let found = value[name].as_f64();
    found.unwrap_or_else(|| panic!("`{name}` is no number: {value}"))
}

fn model() -> String {
    fixture(Architecture::Qwen3).display().to_string()
}

#[test]
fn a_handoff_is_measured_with_every_codec_with_and_without_tls() {
    let told = bench(&["handoff", "--tokens", "200", "--rounds", "1"]);
    // 48 layers, K and V, 4 heads of 128, two bytes.
    assert_eq!(told["bytes"], 200 * 48 * 2 * 4 * 128 * 2, "{told}");
    let cores = std::thread::available_parallelism().expect("cores").get();
    assert_eq!(told["cores"], cores, "{told}");
    // Fewer than there are may be had, by a quota.
    assert!(cores == 1 || told["cores_apart"] == cfg!(target_os = "linux"));
    for figure in ["tcp_gb_s", "tcp_thrown_away_gb_s", "memcpy_gb_s"] {
        assert!(number(&told, figure) > 0.0, "{figure}");
    }
    let cases = told["cases"].as_array().expect("cases");
    let names: Vec<(&str, bool)> = cases
        .iter()
        .map(|c| (c["codec"].as_str().expect("a codec"), c["tls"] == true))
        .collect();
    let all = ["raw", "plane", "q8"];
    let expected: Vec<(&str, bool)> = all.iter().flat_map(|c| [(*c, false), (*c, true)]).collect();
    assert_eq!(names, expected);
    for case in cases {
        assert!(number(case, "goodput_gb_s") > 0.0, "{case}");
        assert!(number(case, "ratio_to_tcp") > 0.0, "{case}");
        let ends = number(case, "cpu_s_per_gb_sender") + number(case, "cpu_s_per_gb_receiver");
        assert!(ends > 0.0 && number(case, "cpu_s_per_gb") > 0.0, "{case}");
        // By the formats: docs/codecs.md. Headers are below a percent.
        let ratio = number(case, "wire_ratio");
        let (least, most) = match case["codec"].as_str() {
            Some("raw") => (0.99, 1.0),
            Some("plane") => (1.1, 1.3),
            Some("q8") => (1.86, 64.0 / 34.0),
            _ => (2.37, 2.41),
        };
        assert!((least..=most).contains(&ratio), "{case}");
    }
}

#[test]
fn a_handoff_is_measured_on_shared_cores() {
    let told = bench(&[
        "handoff",
        "--tokens",
        "300",
        "--rounds",
        "1",
        "--codec",
        "raw",
        "--share-cores",
    ]);
    assert_eq!(told["cores_apart"], false, "{told}");
    assert_eq!(told["cases"].as_array().map(Vec::len), Some(2), "{told}");
}

#[test]
fn memory_of_a_handoff_does_not_grow_with_the_prompt() {
    /// For what is on its way.
    const MOST_MB: f64 = 128.0;
    for (tokens, least_rows_mb) in [("500", 0.0), ("6000", 4.0 * MOST_MB)] {
        let told = bench(&[
            "handoff", "--tokens", tokens, "--rounds", "1", "--codec", "raw", "--tls", "no",
        ]);
        assert!(number(&told, "bytes") / 1e6 > least_rows_mb, "{told}");
        let case = &told["cases"][0];
        for end in ["peak_extra_mb_sender", "peak_extra_mb_receiver"] {
            // Not every system tells.
            if case.get(end) != Some(&Value::Null) {
                assert!(number(case, end) < MOST_MB, "{end}: {told}");
            }
        }
    }
}

#[test]
fn overlap_is_measured_over_a_link_inside_the_process() {
    let (told, _, _) = overlap(overlap_command().arg("--without-namespaces"));
    assert_eq!(told["namespaces"], false);
    let cores = std::thread::available_parallelism().expect("cores").get();
    assert_eq!(told["cores"], cores, "{told}");
    assert!(cores == 1 || told["cores_apart"] == cfg!(target_os = "linux"));
}

#[test]
fn overlap_is_measured_without_the_programs_for_namespaces() {
    let (told, said, _) = overlap(overlap_command().env("PATH", "").arg("--share-cores"));
    assert_eq!(told["namespaces"], false);
    assert_eq!(told["cores_apart"], false, "{told}");
    assert!(said.contains("`ip` of iproute2"), "{said}");
}

/// Where namespaces are not permitted it is measured all the same, and told.
#[test]
fn overlap_is_measured_between_namespaces_where_they_are_permitted() {
    let made = |arguments: &[&str]| Command::new("ip").args(arguments).output();
    let namespace = format!("tandem-test-{}", std::process::id());
    let is_permitted = made(&["netns", "add", &namespace]).is_ok_and(|o| o.status.success());
    if is_permitted {
        made(&["netns", "del", &namespace]).expect("ip runs");
    }
    let (told, _, process) = overlap(&mut overlap_command());
    // A link between them and its rate may still be missing.
    assert!(is_permitted || told["namespaces"] == false, "{told}");
    let left = made(&["netns", "list"]).map_or(Vec::new(), |o| o.stdout);
    let left = String::from_utf8_lossy(&left);
    assert!(!left.contains(&format!("tandem-{process}-")), "{left}");
}

/// Namespaces may be permitted where the programs, or the kernel, cannot shape a link.
#[cfg(unix)]
#[test]
fn overlap_is_measured_inside_the_process_where_no_link_can_be_shaped() {
    use std::os::unix::fs::PermissionsExt;

    let programs = tempfile::tempdir().expect("a directory");
    let tc = programs.path().join("tc");
    std::fs::write(&tc, "#!/bin/sh\necho no such kind >&2\nexit 2\n").expect("a program");
    std::fs::set_permissions(&tc, PermissionsExt::from_mode(0o755)).expect("its mode");
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{}:{path}", programs.path().display());
    let (told, said, process) = overlap(overlap_command().env("PATH", path));
    assert_eq!(told["namespaces"], false, "{told}");
    assert!(said.contains(NO_NAMESPACES), "{said}");
    let left = Command::new("ip").args(["netns", "list"]).output();
    let left = left.map_or(Vec::new(), |o| o.stdout);
    let left = String::from_utf8_lossy(&left);
    assert!(!left.contains(&format!("tandem-{process}-")), "{left}");
}

/// How it is said that a link inside the process stands for namespaces.
const NO_NAMESPACES: &str = "using a link inside this process";

/// Measures two links.
fn overlap_command() -> Command {
    let mut command = Command::new(TANDEM);
    command
        .args(["bench", "overlap", "--tokens", "600", "--rounds", "1"])
        .args(["--model", &model()])
        .args(["--link", "1gbit,200ms", "--link", "20mbit,2ms"]);
    command
}

/// Runs the command, and checks what is told about its links.
fn overlap(command: &mut Command) -> (Value, String, u32) {
    let is_asked = !command.get_args().any(|a| a == "--without-namespaces");
    let (told, said, process) = run_as_process(command);
    let by_relay = told["delay"] == "relay";
    let is_missing = is_asked && told["namespaces"] == false;
    assert_eq!(said.contains(NO_NAMESPACES), is_missing, "{said}");
    let lacks_netem = told["namespaces"] == true && by_relay;
    assert_eq!(said.contains("no netem"), lacks_netem, "{said}");
    assert!(by_relay || told["delay"] == "netem", "{told}");
    let links = told["links"].as_array().expect("links");
    let names: Vec<(&str, &str)> = links
        .iter()
        .map(|l| {
            (
                l["link"].as_str().expect("a link"),
                l["codec"].as_str().expect("a codec"),
            )
        })
        .collect();
    let expected = [
        ("1gbit,200ms", "raw"),
        ("1gbit,200ms", "auto"),
        ("20mbit,2ms", "raw"),
        ("20mbit,2ms", "auto"),
    ];
    assert_eq!(names, expected);
    for link in links {
        // What is not finite is no number in JSON.
        let times = ["local", "remote_serial", "remote_overlapped", "bound"]
            .map(|name| number(&link["ttft_ms"], name));
        assert!(times.iter().all(|t| *t > 0.0), "{link}");
        let [.., overlapped, bound] = times;
        // There is one round.
        let over = number(link, "ttft_over_bound");
        assert!((over * bound / overlapped - 1.0).abs() < 1e-6, "{link}");
        let own = number(link, "prefill_overlapped_ms") + number(link, "step_ms");
        assert!(
            (number(link, "added_ms") + own - overlapped).abs() < 1e-6,
            "{link}"
        );
        // Whatever delays, what is sent last is confirmed no sooner than the way there and back takes; the engine is not
        // done with the last layer when its rows leave, and takes its time for the rest on a machine that has other work.
        let exposed = number(link, "exposed_fraction") * number(link, "prefill_overlapped_ms");
        let round_trip = if link["link"] == "1gbit,200ms" {
            200.0
        } else {
            2.0
        };
        assert!(exposed >= round_trip * 0.75 - 5.0, "{exposed}: {link}");
        // Nothing is faster than its link: 20 Mbit/s are 2.5 MB/s, whatever the machine. A codec
        // carries more rows than that; its ratio is below 3.
        if link["link"] == "20mbit,2ms" {
            assert!(number(link, "goodput_mb_s") < 2.5 * 3.0, "{link}");
        }
        if link["codec"] == "raw" {
            assert_eq!(link["codec_used"], "raw", "{link}");
        }
    }
    (told, said, process)
}

/// Half a megabyte a second is slower than any machine prefills the small model of this repository,
/// which makes 3 KB for each token. How much sooner the first token comes is for a bench to tell; here, that less is sent. So
/// little is noticed only where the system tells what it holds back.
#[cfg(target_os = "linux")]
fn auto_sends_less_than_raw(tokens: &str, quality: &str, codecs: &[&str], least: f64) {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/nano-coder.gguf");
    let told = bench(&[
        "overlap",
        "--without-namespaces",
        "--model",
        model,
        "--tokens",
        tokens,
        "--quality",
        quality,
        "--rounds",
        "1",
        "--link",
        "4mbit,2ms",
    ]);
    assert_eq!(told["quality"], quality);
    let links = told["links"].as_array().expect("links");
    let [raw, auto] = links.as_slice() else {
        panic!("raw and auto: {told}");
    };
    assert_eq!(
        (&raw["codec_used"], &auto["codec"]),
        (&"raw".into(), &"auto".into())
    );
    assert!(number(raw, "wire_ratio") <= 1.0, "{raw}");
    // A prefill has been seen to be faster than the link.
    assert!(
        number(raw, "production_mb_s") > number(raw, "goodput_mb_s"),
        "{raw}"
    );
    let used = auto["codec_used"].as_str().expect("a codec");
    assert!(codecs.contains(&used), "{auto}");
    assert!(number(auto, "wire_ratio") > least, "{auto}");
}

#[cfg(target_os = "linux")]
#[test]
fn on_a_link_slower_than_the_prefill_auto_sends_less_than_raw() {
    auto_sends_less_than_raw("900", "q8", &["q8"], 1.8);
}

#[cfg(target_os = "linux")]
#[test]
fn on_a_link_slower_than_the_prefill_auto_sends_less_than_raw_also_without_loss() {
    auto_sends_less_than_raw("900", "lossless", &["plane"], 1.1);
}

/// No handoff alone carries enough to be believed.
#[cfg(target_os = "linux")]
#[test]
fn little_by_little_a_link_slower_than_the_prefill_is_found_out() {
    auto_sends_less_than_raw("64", "q8", &["q8"], 1.8);
}

#[test]
fn the_next_turn_is_sent_whole_by_no_node() {
    let told = bench(&[
        "turn",
        "--model",
        &model(),
        "--rounds",
        "1",
        "--tokens",
        "600",
    ]);
    let cases = told["cases"].as_array().expect("cases");
    let names: Vec<&str> = cases.iter().filter_map(|c| c["case"].as_str()).collect();
    assert_eq!(names, ["same", "other", "alone"]);
    let of = |name: &str| {
        cases
            .iter()
            .map(|case| number(case, name))
            .collect::<Vec<_>>()
    };
    assert!(of("first_token_ms").iter().all(|ms| *ms > 0.0), "{told}");
    // What is sent is the same from each node: the decode node has the rest.
    let wire = of("wire_bytes");
    assert!(wire[0] > 0.0 && wire[2] == 0.0, "{told}");
    assert!(
        wire[..2].iter().all(|bytes| *bytes < wire[0] * 1.5),
        "{told}"
    );
}

#[test]
fn slices_of_full_layers_and_of_windows_are_measured() {
    for architecture in [Architecture::Qwen3, Architecture::Gemma3] {
        let model = fixture(architecture).display().to_string();
        let told = bench(&[
            "slices", "--model", &model, "--tokens", "700", "--rounds", "2",
        ]);
        for direction in ["out", "in"] {
            let slices = &told[direction];
            // A small model: all of it is one slice, in each round.
            assert_eq!(slices["slices"], 2, "{told}");
            let bytes = number(slices, "bytes");
            assert!(
                bytes > 0.0 && bytes <= number(&told, "max_slice_bytes"),
                "{told}"
            );
            let times = ["median_ms", "max_ms"].map(|name| number(slices, name));
            assert!(times[0] > 0.0 && times[0] <= times[1], "{told}");
        }
        assert!(
            number(&told, "decode_ms") > 0.0 && number(&told, "chunk_ms") > 0.0,
            "{told}"
        );
        for name in ["chunk_ms", "steps_ms", "decode_ms"] {
            for at in [0, 1] {
                let ms = told["by_layer"][name][at].as_f64().unwrap();
                assert!(ms > 0.0, "{told}");
            }
        }
    }
}

/// Measures with a model that prefills and one that decodes.
fn parity(prefill: &str, decode: &str, more: &[&str]) -> Command {
    let mut command = Command::new(TANDEM);
    command
        .args(["bench", "parity", "--answer", "8"])
        .args(["--model", prefill, "--decode-model", decode])
        .args(more);
    command
}

#[test]
fn one_model_at_both_ends_is_found_equal_and_another_quantisation_is_not() {
    let model = model();
    let quantised = fixture_of(&Spec {
        weights: WeightType::Q8_0,
        ..Spec::new(Architecture::Qwen3)
    });
    let quantised = quantised.display().to_string();
    let made_up = ["--prompts", "3", "--tokens", "300"];
    let (equal, _) = run(&mut parity(&model, &model, &made_up));
    assert_eq!(equal["prompts"], 3, "{equal}");
    let cases = equal["cases"].as_array().expect("cases");
    let names: Vec<&str> = cases.iter().filter_map(|c| c["codec"].as_str()).collect();
    assert_eq!(names, ["raw", "plane", "q8"]);
    for case in &cases[..2] {
        // The rows are the same to the bit, and so is everything that follows from them.
        assert_eq!(case["same_answers"], 3, "{case}");
        assert_eq!(case["same_top"], 3, "{case}");
        assert!(number(case, "kl_max") < 1e-9, "{case}");
    }
    for case in &cases[2..] {
        assert!(number(case, "kl_max") > 1e-9, "{case}");
        assert!(number(case, "max_difference") > 0.0, "{case}");
    }
    let raw = [made_up.as_slice(), &["--codec", "raw"]].concat();
    let (other, _) = run(&mut parity(&quantised, &model, &raw));
    let cases = other["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 1, "{other}");
    assert!(number(&cases[0], "kl_median") > 1e-9, "{other}");
    assert!(number(&cases[0], "kl_max") < 0.1, "{other}");
    assert_eq!(cases[0]["beyond_bound"], 0, "{other}");
}

#[test]
fn texts_of_ones_own_are_compared_and_models_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("prompt.txt");
    std::fs::write(&text, "Name the colours of the rainbow.").expect("written");
    let text = text.display().to_string();
    let model = model();
    let as_another = ["--codec", "raw", "--prefill-program", TANDEM, &text];
    let (told, _) = run(&mut parity(&model, &model, &as_another));
    assert_eq!(told["prompts"], 1, "{told}");
    assert_eq!(told["prefill_program"], TANDEM, "{told}");
    assert_eq!(told["cases"][0]["same_answers"], 1, "{told}");
    // The fixtures' tokenizer has one token for each byte, and one for the start.
    assert!(
        (32.0..=33.0).contains(&number(&told, "prompt_tokens")),
        "{told}"
    );

    let other = fixture(Architecture::Llama).display().to_string();
    for (decode, more, expected) in [
        (
            other.as_str(),
            text.as_str(),
            "contract field `architecture` differs",
        ),
        (&model, "missing.txt", "missing.txt cannot be read"),
        ("missing.gguf", &text, "missing.gguf is not here"),
    ] {
        let output = parity(&model, decode, &[more])
            .output()
            .expect("tandem runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(expected), "{said}");
    }
    let no_program = ["--prefill-program", "missing-program", &text];
    let output = parity(&model, &model, &no_program).output();
    let output = output.expect("tandem runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("the prefill node cannot be started"),
        "{said}"
    );
}

#[test]
fn what_is_no_link_is_refused() {
    let output = Command::new(TANDEM)
        .args(["bench", "overlap", "--link", "fast"])
        .output()
        .expect("tandem runs");
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("2.5gbit,0.6ms"), "{said}");
}

/// Both servers are the same one, and each is asked for the same prompts.
#[tokio::test]
async fn a_server_under_load_is_measured_in_turns_with_another_one() {
    let home = tempfile::tempdir().expect("dir");
    let model = format!("m={}", model());
    let served = Daemon::serve_from(home.path(), &["--model", &model, "--slots", "4"]);
    let url = format!("http://{}", served.address);
    let svg = home.path().join("load.svg");
    for load in [["--clients", "2"], ["--rate", "50"]] {
        let mut command = Command::new(TANDEM);
        command.args(["bench", "serve", "--to", &url, "--beside", &url]);
        command
            .args(load)
            .args(["--requests", "8", "--rounds", "2"]);
        command.args(["--shared", "60", "--own", "5", "--max-tokens", "6"]);
        command.args(["--heavy", "20", "--svg"]).arg(&svg);
        let (told, _) = tokio::task::spawn_blocking(move || run(&mut command))
            .await
            .expect("told");
        let sides = told["sides"].as_array().expect("sides");
        assert_eq!(sides.len(), 2, "{told}");
        for side in sides {
            assert_eq!(
                (&side["model"], &side["answers"]),
                (&"m".into(), &16.into())
            );
            assert_eq!(side["failed"], 0, "{told}");
            let [requests, tokens] = ["requests_per_s", "tokens_per_s"].map(|n| number(side, n));
            assert!(requests > 0.0 && tokens > requests && tokens <= 6.1 * requests);
            assert!(number(side, "prompt_tokens") > 65.0, "{told}");
            assert!((0.0..=1.0).contains(&number(side, "cached_part")), "{told}");
            if load[0] == "--clients" {
                assert!(number(side, "heavy_tokens_per_s") > 0.0, "{told}");
            }
            let [first, whole] = ["first_token_ms", "whole_ms"].map(|n| number(&side[n], "p50"));
            assert!(first > 0.0 && first <= whole, "{told}");
        }
        assert!(number(&told, "ratio") > 0.0, "{told}");
        let drawing = std::fs::read_to_string(&svg).expect("a drawing");
        assert!(drawing.starts_with("<svg") && drawing.matches("class=\"s1\"").count() == 3);
    }
}

/// What fails is counted, and a server that answers nothing is no slow one.
#[tokio::test]
async fn a_server_that_fails_has_no_figures() {
    let chunk = |text: &str, end: &str| {
        let delta =
            serde_json::json!({"choices": [{"delta": {"content": text}, "finish_reason": end}]});
        format!("data: {delta}\n\ndata: [DONE]\n\n")
    };
    let good = chunk("yes", "stop");
    for (every, code) in [(1, 1), (2, 1), (100, 0)] {
        let good = good.clone();
        let asked = std::sync::atomic::AtomicUsize::new(1);
        let address = tiny_http::listen(move |_| {
            let number = asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            match number.is_multiple_of(every) {
                true => Answer::new(500, r#"{"error": {"message": "it burns"}}"#),
                false => Answer::new(200, good.clone()).with("content-type", "text/event-stream"),
            }
        });
        let mut command = Command::new(TANDEM);
        command.args(["bench", "serve", "--model", "m", "--json", "--clients", "1"]);
        command.args(["--requests", "4", "--rounds", "1", "--warm", "0", "--to"]);
        command.arg(format!("http://{address}"));
        let output = tokio::task::spawn_blocking(move || command.output());
        let output = output.await.expect("told").expect("tandem runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        match every {
            1 => assert!(said.contains("no answer has text: status 500"), "{said}"),
            _ => {
                let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
                let side = &told["sides"][0];
                let failed = if every == 2 { 2 } else { 0 };
                assert_eq!(
                    (&side["failed"], &side["answers"]),
                    (&failed.into(), &(4 - failed).into())
                );
            }
        }
    }
}
