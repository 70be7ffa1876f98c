//! What `tandem probe` writes is a profile that a plan can use, of the machine and the model that were there.

use std::process::Command;

use serde_json::Value;
use tandem_testkit::{Architecture, Spec};

use super::daemon::{TANDEM, fixture_of};

fn tandem(arguments: &[&str]) -> (bool, String, String) {
    let data = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(TANDEM);
    let ran = command.env("TANDEM_DATA", data.path()).args(arguments);
    let ran = ran.output().expect("the binary runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (ran.status.success(), text(&ran.stdout), text(&ran.stderr))
}

#[test]
fn a_machine_that_was_measured_can_be_planned_with() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("mine.toml");
    let file = file.to_str().expect("a path");
    let model = fixture_of(&Spec::new(Architecture::Llama));
    let named = format!("tiny={}", model.display());
    let small = ["--context", "5000", "--limit", "20", "--threads", "1"];
    let measured = [
        &["probe", "--model", &named, "--name", "mine", "--out", file],
        &small[..],
    ];
    let (works, told, said) = tandem(&measured.concat());
    assert!(works && told.contains("mine"), "{told}{said}");

    let plan = [
        "plan",
        "--machine",
        file,
        "--machine",
        file,
        "--model",
        "tiny:100",
        "--prompt",
        "2048",
        "--json",
    ];
    let (works, told, said) = tandem(&plan);
    assert!(works, "{said}");
    let planned: Value = serde_json::from_str(&told).expect("JSON");
    let ways = planned["requests"][0]["ways"].as_array().expect("ways");
    let alone = ways
        .iter()
        .find(|way| way["way"] == "alone")
        .expect("alone");
    let text = std::fs::read_to_string(file).expect("a profile");
    let profile: toml::Table = toml::from_str(&text).expect("TOML");
    // Its own figure of 2,048 tokens is what the plan says of them.
    let rows = profile["figures"][0]["prefill"].as_array().expect("rows");
    let row = rows
        .iter()
        .find(|row| row[0].as_float() == Some(2048.0) && row[1].as_float() == Some(0.0));
    let rate = row.expect("a row")[2].as_float().expect("a rate");
    let prefill = alone["phases"][0]["to_s"].as_f64().expect("seconds");
    // What is slower with fewer tokens counts as if it was as slow with more.
    let least = 2048.0 / rate;
    assert!(
        prefill > least * 0.999 && prefill < least * 3.0,
        "{prefill} {rate}"
    );
    let decode = profile["figures"][0]["decode"].as_array().expect("rows");
    let counts: Vec<_> = decode.iter().map(|row| row[0].as_float()).collect();
    for count in [1.0, 2.0, 4.0, 8.0] {
        assert!(counts.contains(&Some(count)), "{counts:?}");
    }
    assert!(profile["bandwidth_gb_s"].as_float().expect("GB/s") > 0.1);
}

#[test]
fn a_file_is_not_measured_under_the_name_of_another_model() {
    let model = fixture_of(&Spec::new(Architecture::Llama));
    let named = format!("gpt-oss-120b={}", model.display());
    let (works, _, said) = tandem(&[
        "probe",
        "--model",
        &named,
        "--context",
        "4000",
        "--out",
        "/nowhere/at/all.toml",
    ]);
    assert!(!works && said.contains("a name of its own"), "{said}");
}
