//! `docs/wire-format.md` says what the code does.

use serde_json::Value;
use tandem_kv::contract::LAYOUT_VERSION;
use tandem_kv::frame::{HEADER_BYTES, Header, Kind, WIRE_VERSION};
use tandem_kv::limits;
use tandem_kv::message::{Abort, Accept, Commit, Hello, RefusalCode, Refuse, parse};

use super::driver::{mixed, run, split};
use super::golden;

fn document() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/wire-format.md");
    std::fs::read_to_string(path).unwrap()
}

/// The cells of every table row, without backticks.
fn rows(text: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| {
        let inner = line.trim_matches('|').split('|');
        inner.map(|c| c.trim().replace('`', "")).collect()
    };
    let lines = text.lines().filter(|l| l.starts_with('|'));
    lines.map(cells).collect()
}

/// The text under a heading, up to the next heading.
fn section<'a>(text: &'a str, heading: &str) -> &'a str {
    let (_, rest) = text.split_once(&format!("\n{heading}\n")).expect(heading);
    rest.split("\n#").next().unwrap()
}

fn has_row(text: &str, start: &[&str]) {
    let found = rows(text)
        .iter()
        .any(|r| r.len() >= start.len() && r[..start.len()] == *start);
    assert!(found, "no row starts with {start:?}");
}

#[test]
fn golden_bytes_are_in_it() {
    let text = document();
    for constant in [
        golden::HEADER_HEX,
        golden::SEGMENT_HEX,
        golden::TOKEN_DIGEST,
        golden::COMMIT_JSON,
    ] {
        assert!(text.contains(constant), "missing: {constant}");
    }
}

#[test]
fn every_limit_has_its_value() {
    let values = [
        (
            "MAX_CONTROL_PAYLOAD",
            u64::from(limits::MAX_CONTROL_PAYLOAD),
        ),
        ("MAX_SEGMENT_PAYLOAD", limits::MAX_SEGMENT_PAYLOAD.into()),
        ("TARGET_SEGMENT_BYTES", limits::TARGET_SEGMENT_BYTES.into()),
        ("MAX_LAYERS", limits::MAX_LAYERS as u64),
        ("MAX_KV_HEADS", limits::MAX_KV_HEADS.into()),
        ("MAX_HEAD_DIM", limits::MAX_HEAD_DIM.into()),
        ("MAX_TOKENS", limits::MAX_TOKENS.into()),
        ("MAX_CHUNK_TOKENS", limits::MAX_CHUNK_TOKENS.into()),
        ("MAX_STAGED_BYTES", limits::MAX_STAGED_BYTES),
        ("MAX_CHUNKS_IN_FLIGHT", limits::MAX_CHUNKS_IN_FLIGHT.into()),
        ("MAX_DIFFERENCES", limits::MAX_DIFFERENCES as u64),
        ("MAX_STRING", limits::MAX_STRING as u64),
    ];
    let text = document();
    for (name, value) in values {
        has_row(section(&text, "## Limits"), &[name, &value.to_string()]);
    }
    // No limit of the source is missing above.
    let source = include_str!("../../src/limits.rs");
    let mut names = source.lines().filter_map(|l| l.strip_prefix("pub const "));
    assert!(names.all(|l| {
        values
            .iter()
            .any(|(name, _)| l.starts_with(&format!("{name}:")))
    }));
    assert_eq!(source.matches("pub const ").count(), values.len());
}

#[test]
fn every_header_field_is_where_the_table_says() {
    type Set = fn(&mut Header);
    let fields: [(&str, Set); 16] = [
        ("kind", |h| h.kind = Kind::Abort),
        ("codec", |h| h.codec = u8::MAX),
        ("handoff", |h| h.handoff = u64::MAX),
        ("sequence", |h| h.sequence = u32::MAX),
        ("payload_len", |h| h.payload_len = u32::MAX),
        ("raw_len", |h| h.raw_len = u32::MAX),
        ("token_start", |h| h.token_start = u32::MAX),
        ("token_end", |h| h.token_end = u32::MAX),
        ("block_start", |h| h.block_start = u32::MAX),
        ("block_end", |h| h.block_end = u32::MAX),
        ("layer_start", |h| h.layer_start = u16::MAX),
        ("layer_end", |h| h.layer_end = u16::MAX),
        ("payload_checksum", |h| h.payload_checksum = u64::MAX),
        ("section", |h| h.section = u8::MAX),
        ("key_type", |h| h.key_type = u8::MAX),
        ("value_type", |h| h.value_type = u8::MAX),
    ];
    let text = document();
    let table = section(&text, "## Header");
    let zero = Header::control(Kind::Hello, 0, 0);
    for (name, set) in fields {
        let mut header = zero;
        set(&mut header);
        let (a, b) = (zero.encode(), header.encode());
        let changed: Vec<usize> = (0..60).filter(|&i| a[i] != b[i]).collect();
        let (at, size) = (changed[0].to_string(), changed.len().to_string());
        assert_eq!(changed.last(), Some(&(changed[0] + changed.len() - 1)));
        has_row(table, &[&at, &size, name]);
    }
    for fixed in [
        ["0", "4", "magic"],
        ["4", "2", "version"],
        ["59", "1", "reserved"],
        ["60", "4", "header_checksum"],
    ] {
        has_row(table, &fixed);
    }
    let sizes = rows(table)
        .into_iter()
        .filter_map(|r| r[1].parse::<usize>().ok());
    assert_eq!(sizes.sum::<usize>(), HEADER_BYTES);
}

#[test]
fn every_kind_and_its_payload() {
    let text = document();
    for n in 1..=u8::MAX {
        let Some(kind) = Kind::from_wire(n) else {
            continue;
        };
        let name = format!("{kind:?}").to_lowercase();
        let limit = kind.max_payload().to_string();
        let table = rows(section(&text, "## Kinds of frames"));
        let row = table
            .iter()
            .find(|r| r[0] == n.to_string())
            .unwrap_or_else(|| panic!("no row {n} in {table:?}"));
        assert_eq!((&row[1], &row[4]), (&name, &limit));
    }
    let sent = run(&mixed(), 5, &[5], true);
    let hello: Hello = parse(Kind::Hello, split(&sent.forward[0]).1).unwrap();
    let difference = tandem_kv::contract::Difference {
        field: String::new(),
        ours: String::new(),
        theirs: String::new(),
    };
    let refuse = Refuse {
        code: RefusalCode::Contract,
        message: String::new(),
        differences: vec![difference.clone()],
    };
    let commit: Commit = parse(Kind::Commit, golden::COMMIT_JSON.as_bytes()).unwrap();
    let reason = String::new();
    for (heading, message) in [
        ("### hello", serde_json::to_value(&hello)),
        (
            "### accept",
            serde_json::to_value(Accept { credit_blocks: 1 }),
        ),
        ("### refuse", serde_json::to_value(refuse)),
        ("### refuse", serde_json::to_value(difference)),
        ("### commit", serde_json::to_value(commit)),
        ("### abort", serde_json::to_value(Abort { reason })),
        ("## Contract", serde_json::to_value(&hello.contract)),
        (
            "## Contract",
            serde_json::to_value(&hello.contract.layers[0]),
        ),
    ] {
        let message: Value = message.unwrap();
        for key in message.as_object().unwrap().keys() {
            has_row(section(&text, heading), &[key]);
        }
    }
    for code in ["contract", "ticket", "tokens", "hello"] {
        serde_json::from_value::<RefusalCode>(code.into()).unwrap();
        assert!(section(&text, "### refuse").contains(&format!("`{code}`")));
    }
}

#[test]
fn versions_have_a_history() {
    let text = document();
    let history = rows(section(&text, "## Version history"));
    let versions: Vec<u16> = history.iter().filter_map(|r| r[0].parse().ok()).collect();
    assert_eq!(versions, (1..=WIRE_VERSION).collect::<Vec<_>>());
    let layout = history.last().unwrap()[1].parse();
    assert_eq!(layout, Ok(LAYOUT_VERSION));
}
