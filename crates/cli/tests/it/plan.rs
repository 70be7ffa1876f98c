//! `tandem plan`: what it chooses, and that the document says what it says.

use std::process::Command;

use serde_json::Value;

use super::daemon::TANDEM;

fn plan(arguments: &str) -> std::process::Output {
    let mut command = Command::new(TANDEM);
    command.arg("plan").args(arguments.split_whitespace());
    command.output().expect("the binary runs")
}

fn json(arguments: &str) -> Value {
    let made = plan(&format!("{arguments} --json"));
    assert!(made.status.success(), "{made:?}");
    serde_json::from_slice(&made.stdout).expect("JSON")
}

/// The way with the least or most of a figure, among those that tandem does.
fn best(ways: &Value, figure: &str, sign: f64) -> String {
    let ways = ways.as_array().expect("ways").iter();
    let built = ways.filter(|way| way["is_built"] == true);
    let of = |way: &&Value| sign * way[figure].as_f64().expect("a figure");
    let best = built.min_by(|a, b| of(a).total_cmp(&of(b))).expect("one");
    best["way"].as_str().expect("a name").to_owned()
}

#[test]
fn lengths_and_links_change_what_is_best() {
    let of = |link: &str| {
        let made = json(&format!(
            "--machine spark --machine m3-ultra --link {link} --model llama-3.3-70b --prompt 50,500,5000,50000 --answer 300 --batch 8"
        ));
        let ways = |key: &str, figure: &str, sign| -> Vec<String> {
            let all = made[key].as_array().expect("a list").iter();
            all.map(|one| best(&one["ways"], figure, sign)).collect()
        };
        (
            ways("requests", "end_s", 1.0),
            ways("courses", "per_hour", -1.0),
        )
    };
    let requests = ["alone", "pair", "pair", "pair"];
    let (one, course) = of("1gbit");
    assert_eq!(one, requests);
    assert_eq!(course, ["servers", "pair", "servers", "servers"]);
    let (one, course) = of("10gbit");
    assert_eq!(one, requests);
    assert_eq!(course, ["servers", "pair", "pair", "pair"]);
}

#[test]
fn the_document_has_the_figures_of_the_program() {
    let document = include_str!("../../../../docs/scaling.md");
    for (mac, model, prompt, answer) in [
        ("m4-max", "qwen3-coder-30b", 1690, 500),
        ("m4-max", "qwen3-coder-30b", 5000, 500),
        ("m4-max", "gpt-oss-120b", 5000, 1200),
        ("m3-ultra", "deepseek-v4-flash", 5000, 500),
        ("m3-ultra", "gemma-3-27b", 5000, 500),
        ("m3-ultra", "llama-3.3-70b", 5000, 300),
    ] {
        let made = json(&format!(
            "--machine spark --machine {mac} --model {model}:{answer} --prompt {prompt} --batch 1"
        ));
        let ways = made["requests"][0]["ways"]
            .as_array()
            .expect("ways")
            .clone();
        let end = |way: &str| {
            let of = ways.iter().filter(|one| one["way"] == way);
            of.filter_map(|one| one["end_s"].as_f64())
                .fold(f64::INFINITY, f64::min)
        };
        let (alone, pair) = (end("alone"), end("pair"));
        let row = format!("| {alone:.1} s | {pair:.1} s | {:.2} |", alone / pair);
        assert!(document.contains(&row), "{mac} {model}: {row}");
    }
    for (machines, model, link, shared) in [
        ("spark m2-ultra", "qwen3-coder-30b:500", "10gbit", 0),
        ("spark m2-ultra", "qwen3-coder-30b:500", "10gbit", 4000),
        ("spark m3-ultra", "deepseek-v4-flash:500", "10gbit", 0),
        ("spark m3-ultra", "llama-3.3-70b:300", "10gbit", 0),
        ("spark m3-ultra", "llama-3.3-70b:300", "1gbit", 0),
    ] {
        let machines: String = machines
            .split(' ')
            .map(|m| format!("--machine {m} "))
            .collect();
        let made = json(&format!(
            "{machines} --model {model} --prompt 5000 --shared {shared} --batch 8 --link {link}"
        ));
        let ways = made["courses"][0]["ways"].as_array().expect("ways").clone();
        let rate = |way: &str| {
            let one = ways.iter().find(|one| one["way"] == way).expect("a way");
            let rate = format!("{:.0}", one["per_hour"].as_f64().expect("a rate"));
            match rate.len() {
                4 => format!("{},{}", &rate[..1], &rate[1..]),
                _ => rate,
            }
        };
        let rates = ["alone", "pair", "servers", "mixed"].map(rate).join(" | ");
        assert!(
            document.contains(&format!("| {rates} |")),
            "{model} {link}: {rates}"
        );
    }
}

#[test]
fn the_claims_of_the_document_are_those_of_the_program() {
    let document = include_str!("../../../../docs/scaling.md");
    let macs = "m3-ultra m4-max";
    for machines in [
        macs.to_owned(),
        format!("spark spark {macs}"),
        format!("spark spark {macs} {macs}"),
    ] {
        let named: String = machines
            .split(' ')
            .map(|m| format!("--machine {m} "))
            .collect();
        let made = json(&format!(
            "{named} --model gpt-oss-120b:1200 --model qwen3-coder-30b:800 --prompt 5000 --batch 1,8"
        ));
        for course in made["courses"].as_array().expect("courses") {
            let rate = |way: &str| {
                let mut ways = course["ways"].as_array().expect("ways").iter();
                let one = ways.find(|one| one["way"] == way).expect("a way");
                one["per_hour"].as_f64().expect("a rate")
            };
            let words = format!(
                "{:.0} as pairs, {:.0} as servers",
                rate("pair"),
                rate("servers")
            );
            assert!(document.contains(&words), "{machines}: {words}");
        }
    }
}

#[test]
fn the_words_the_drawing_and_the_refusals() {
    let folder = tempfile::tempdir().expect("a folder");
    let svg = folder.path().join("p.svg");
    let pair = "--machine spark --machine spark --machine m5-max --model qwen3-coder-30b:500";
    let said = plan(&format!("{pair} --svg {}", svg.display()));
    let said = String::from_utf8(said.stdout).expect("text");
    for part in [
        "note: alone of m5-max cannot be judged: `m5-max` has no figures of prefill for qwen3-coder-30b",
        "spark-1",
        "most works an hour by a server each",
        "calculated of profiles",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let drawn = std::fs::read_to_string(svg).expect("a drawing");
    assert!(
        drawn.starts_with("<svg") && drawn.contains("spark-1 prefill"),
        "{drawn}"
    );
    for (arguments, named) in [
        (
            "--machine abacus --model gpt-oss-120b",
            "no machine is called `abacus`",
        ),
        (
            "--machine spark --model gpt-4",
            "no model is called `gpt-4`",
        ),
        (
            "--machine spark --model gpt-oss-120b:no",
            "gpt-oss-120b:800",
        ),
        (
            "--machine spark --model gpt-oss-120b --link string",
            "10gbit",
        ),
        (
            "--machine nowhere/x.toml --model gpt-oss-120b",
            "nowhere/x.toml",
        ),
    ] {
        let refused = plan(arguments);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            !refused.status.success() && said.contains(named),
            "{arguments}: {said}"
        );
    }
}
