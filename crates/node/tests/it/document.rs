//! `docs/handoff.md` says what the code does, and names tests that exist.

use std::collections::BTreeSet;
use std::time::Duration;

use tandem_cluster::limits as cluster;
use tandem_node::{Limits, limits};
use tandem_prefix_cache::limits as pages;

fn document() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/handoff.md");
    std::fs::read_to_string(path).unwrap()
}

/// The cells of the rows of a table.
fn rows(text: &str) -> Vec<Vec<String>> {
    let lines = text.lines().filter(|l| l.starts_with('|'));
    let cells = |line: &str| {
        let cells = line.trim_matches('|').split('|');
        cells.map(|c| c.trim().to_owned()).collect()
    };
    lines.map(cells).collect()
}

/// The text under a heading, up to the next one of its rank.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let (_, rest) = text.split_once(&format!("\n{heading}\n")).expect(heading);
    rest.split("\n## ").next().unwrap()
}

/// The tests of this crate and those of processes, as `module::name`.
fn tests() -> BTreeSet<String> {
    let here = env!("CARGO_MANIFEST_DIR");
    let mut found = tests_of(&format!("{here}/tests/it"), &format!("{here}/tests/it.rs"));
    let cache = format!("{here}/../prefix-cache/tests");
    found.extend(tests_of(&format!("{cache}/it"), &format!("{cache}/it.rs")));
    let processes = format!("{here}/../cli/tests/it");
    found.extend(tests_of(&processes, &format!("{processes}/main.rs")));
    let connections = format!("{here}/../cluster/tests/it");
    found.extend(tests_of(&connections, &format!("{connections}/main.rs")));
    found
}

/// The tests of the modules in a folder, all of which `root` must name.
fn tests_of(folder: &str, root: &str) -> BTreeSet<String> {
    let root = std::fs::read_to_string(root).unwrap();
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let module = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if path.extension().is_none_or(|e| e != "rs") || module == "main" {
            continue;
        }
        let named = format!("mod {module};");
        let is_built = root
            .lines()
            .any(|l| l.trim_start_matches("pub ").trim() == named);
        assert!(is_built, "`{module}` is no part of the tests");
        let text = std::fs::read_to_string(&path).unwrap();
        let mut is_test = false;
        for line in text.lines() {
            is_test |= line.starts_with("#[tokio::test") || line.starts_with("#[test]");
            let name = line
                .split_once("fn ")
                .and_then(|(_, rest)| rest.split_once('('));
            if let Some((name, _)) = name.filter(|_| is_test && !line.starts_with(' ')) {
                found.insert(format!("{module}::{name}"));
                is_test = false;
            }
        }
    }
    found
}

/// What stands between backticks.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

fn waits() -> Vec<(&'static str, String)> {
    let own = Limits::default();
    vec![
        ("SILENCE", seconds(tandem_proto::limits::SILENCE)),
        ("connect", seconds(own.connect)),
        ("head", seconds(own.head)),
        ("body", seconds(own.body)),
        ("page_read", seconds(own.page_read)),
        ("CLOSE", seconds(pages::CLOSE)),
        ("DELETE_PAUSE", seconds(pages::DELETE_PAUSE)),
        ("handoff_silence", seconds(own.handoff_silence)),
        (
            "MIN_LINK_RATE",
            format!("{} KiB", limits::MIN_LINK_RATE >> 10),
        ),
        ("handoff_beat", seconds(own.handoff_beat)),
        ("resume", seconds(own.resume)),
        ("receipt", seconds(own.receipt)),
        ("return_ticket", seconds(own.return_ticket)),
        ("hand_back", seconds(own.hand_back)),
        ("beat", seconds(own.beat)),
        ("event_stall", seconds(own.event_stall)),
        ("engine_step", seconds(own.engine_step)),
        ("stop", seconds(own.stop)),
        ("GOODBYE", seconds(limits::GOODBYE)),
        ("IDLE_TICK", seconds(limits::IDLE_TICK)),
        ("RECONNECT_PAUSE", seconds(limits::RECONNECT_PAUSE)),
        ("HAND_BACK_STALL", seconds(limits::HAND_BACK_STALL)),
    ]
}

fn counts() -> Vec<(&'static str, String)> {
    let staging = limits::STAGING_UNITS as u64 * limits::STAGING_UNIT;
    vec![
        ("MAX_RECONNECTS", limits::MAX_RECONNECTS.to_string()),
        ("MAX_RETURNS", limits::MAX_RETURNS.to_string()),
        ("MAX_HAND_BACKS", limits::MAX_HAND_BACKS.to_string()),
        ("MAX_TAKEN_BACK", limits::MAX_TAKEN_BACK.to_string()),
        ("MAX_HANDOFFS", limits::MAX_HANDOFFS.to_string()),
        ("MAX_CONFIRMED", limits::MAX_CONFIRMED.to_string()),
        (
            "MAX_SESSIONS",
            tandem_handoff::limits::MAX_SESSIONS.to_string(),
        ),
        ("MAX_CONNECTIONS", limits::MAX_CONNECTIONS.to_string()),
        ("HTTP_BUFFER", format!("{} KiB", cluster::HTTP_BUFFER >> 10)),
        ("MAX_UNGREETED", limits::MAX_UNGREETED.to_string()),
        ("MAX_HANDSHAKES", cluster::MAX_HANDSHAKES.to_string()),
        ("MAX_CHUNKS_WAITING", limits::MAX_CHUNKS_WAITING.to_string()),
        ("STAGING_UNITS", mebibytes(staging)),
        (
            "CREDIT_BYTES",
            mebibytes(tandem_handoff::limits::CREDIT_BYTES),
        ),
        (
            "MAX_CREDIT_BYTES",
            mebibytes(tandem_handoff::limits::MAX_CREDIT_BYTES),
        ),
        (
            "AHEAD_BYTES",
            mebibytes(tandem_handoff::limits::AHEAD_BYTES),
        ),
        ("MAX_KEEPERS", limits::MAX_KEEPERS.to_string()),
        ("SLICE_BYTES", mebibytes(limits::SLICE_BYTES)),
    ]
}

#[test]
fn every_limit_has_its_value() {
    let values = [waits(), counts()].concat();
    let text = document();
    let table = rows(section(&text, "## Limits"));
    for (name, value) in &values {
        let row = table.iter().find(|r| r[0] == format!("`{name}`"));
        let row = row.unwrap_or_else(|| panic!("`{name}` is missing"));
        assert_eq!(&row[1], value, "{name}");
    }
    // Head and rule are rows, too.
    assert_eq!(
        table.len(),
        values.len() + 2,
        "a limit that is not compared"
    );
    // Every limit that a cell speaks of is in the table.
    for row in rows(section(&text, "## Faults")) {
        for name in row.get(2).into_iter().flat_map(|cell| quoted(cell)) {
            let is_known = values.iter().any(|(known, _)| *known == name);
            assert!(is_known, "`{name}` has no value: {row:?}");
        }
    }
}

#[test]
fn every_cell_names_tests_that_exist() {
    let (text, tests) = (document(), tests());
    assert!(tests.len() > 60, "{tests:?}");
    let faults = section(&text, "## Faults");
    let mut count = 0;
    for row in rows(faults) {
        if row[0] == "fault" || row[0].starts_with("---") {
            continue;
        }
        assert_eq!(row.len(), 6, "{row:?}");
        assert!(row.iter().all(|cell| !cell.is_empty()), "{row:?}");
        assert!(quoted(&row[5]).next().is_some(), "no test: {row:?}");
        for name in quoted(&row[5]) {
            assert!(tests.contains(name), "there is no test `{name}`");
        }
        count += 1;
    }
    assert!(count >= 40, "{count} cells");
}

/// What every phase must list.
const FAULTS: [&str; 10] = [
    "cut",
    "cut for good",
    "silence",
    "damage",
    "repeated or reordered frames",
    "broken rule",
    "prefill node dies",
    "decode node dies",
    "cancel of the request",
    "cancel of the prefill",
];

#[test]
fn every_phase_lists_every_fault() {
    let text = document();
    let mut parts = section(&text, "## Faults").split("\n### ");
    let items = parts
        .next()
        .unwrap()
        .lines()
        .filter(|l| l.starts_with("- "));
    let listed: Vec<&str> = items.filter_map(|item| quoted(item).next()).collect();
    assert_eq!(listed, FAULTS);
    let mut phases = Vec::new();
    for part in parts {
        let phase = part.lines().next().unwrap();
        let rows = rows(part);
        // `cut, silence: what about them`
        let names: BTreeSet<&str> = rows
            .iter()
            .flat_map(|row| row[0].split(':').next().unwrap().split(", "))
            .collect();
        for fault in FAULTS {
            assert!(names.contains(fault), "{phase} does not list `{fault}`");
        }
        phases.push(phase);
    }
    let all = [
        "Connect",
        "Hello",
        "Pages",
        "Streaming",
        "Commit",
        "Receipt",
        "Decoding",
        "Hand-back",
    ];
    assert_eq!(phases, all);
}
