//! `docs/wire-format.md` says what the code does.

use serde::Serialize;
use tandem_handoff::codec::{BLOCK, Codec, RunSpec};
use tandem_handoff::contract::{Difference, LAYOUT_VERSION};
use tandem_handoff::frame::{HEADER_BYTES, Header, Kind, WIRE_VERSION};
use tandem_handoff::limits;
use tandem_handoff::message::{
    Abort, Accept, Commit, Committed, Hello, RefusalCode, Refuse, parse,
};
use tandem_handoff::receipt::Receipt;
use tandem_handoff::sender::Sender;

use super::driver::{mixed, offer, split};
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
        golden::ENCODED_HEX,
        golden::REFUSE_HEX,
        golden::ABORT_HEX,
        golden::TOKEN_DIGEST,
        golden::ACCEPT_JSON,
        golden::COMMIT_JSON,
        golden::COMMITTED_JSON,
        golden::RECEIPT_JSON,
    ] {
        assert!(text.contains(constant), "missing: {constant}");
    }
}

#[test]
fn every_limit_has_its_value() {
    let values = [
        ("MAX_CONTROL_PAYLOAD", limits::MAX_CONTROL_PAYLOAD.into()),
        ("MAX_SEGMENT_PAYLOAD", limits::MAX_SEGMENT_PAYLOAD.into()),
        ("TARGET_SEGMENT_BYTES", limits::TARGET_SEGMENT_BYTES.into()),
        ("LARGEST_SEGMENT", limits::LARGEST_SEGMENT),
        ("SMALLEST_SEGMENT", limits::SMALLEST_SEGMENT),
        ("STREAMED_SEGMENTS", limits::STREAMED_SEGMENTS),
        ("MAX_LAYERS", limits::MAX_LAYERS as u64),
        ("MAX_KV_HEADS", limits::MAX_KV_HEADS.into()),
        ("MAX_HEAD_DIM", limits::MAX_HEAD_DIM.into()),
        ("MAX_TOKENS", limits::MAX_TOKENS.into()),
        ("MAX_CHUNK_TOKENS", limits::MAX_CHUNK_TOKENS.into()),
        ("MAX_WINDOW_BYTES", limits::MAX_WINDOW_BYTES),
        ("MAX_BLOCK_BYTES", limits::MAX_BLOCK_BYTES),
        ("TARGET_BLOCK_BYTES", limits::TARGET_BLOCK_BYTES),
        ("CREDIT_BYTES", limits::CREDIT_BYTES),
        ("MAX_CREDIT_BYTES", limits::MAX_CREDIT_BYTES),
        ("AHEAD_BYTES", limits::AHEAD_BYTES),
        ("MAX_BLOCKS_IN_FLIGHT", limits::MAX_BLOCKS_IN_FLIGHT as u64),
        ("MAX_SESSIONS", limits::MAX_SESSIONS as u64),
        ("MAX_CONTINUATION", limits::MAX_CONTINUATION as u64),
        ("RECEIPT_TOKENS", limits::RECEIPT_TOKENS as u64),
        ("MAX_DIFFERENCES", limits::MAX_DIFFERENCES as u64),
        ("MAX_STRING", limits::MAX_STRING as u64),
    ];
    let text = document();
    let table = section(&text, "## Limits");
    for (name, value) in values {
        has_row(table, &[name, &value.to_string()]);
    }
    // No limit of the source is missing above, and none is left over in the document.
    let source = include_str!("../../src/limits.rs");
    let constants = source.lines().filter_map(|l| l.strip_prefix("pub const "));
    let names: Vec<&str> = constants.filter_map(|l| l.split(':').next()).collect();
    assert_eq!(names, values.map(|(name, _)| name));
    let numbered = |r: &&Vec<String>| r[1].parse::<u64>().is_ok();
    assert_eq!(rows(table).iter().filter(numbered).count(), values.len());
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
    let table = rows(section(&text, "## Kinds of frames"));
    let known = (0..=u8::MAX).filter(|n| Kind::from_wire(*n).is_some());
    let numbered = |r: &&Vec<String>| r[0].parse::<u8>().is_ok();
    assert_eq!(table.iter().filter(numbered).count(), known.count());
    assert!(text.contains(&format!("- Wire version: **{WIRE_VERSION}**.")));
    // The table of a version is in the table of the header.
    has_row(
        section(&text, "## Header"),
        &["4", "2", "version", &WIRE_VERSION.to_string()],
    );
}

fn keys(message: impl Serialize) -> Vec<String> {
    let message = serde_json::to_value(message).unwrap();
    message.as_object().unwrap().keys().cloned().collect()
}

/// The tables of a section list these keys, in this order, and no others.
fn has_keys(text: &str, heading: &str, expected: &[Vec<String>]) {
    let rows = rows(section(text, heading));
    let types = [
        "u16", "u32", "u64", "bool", "number", "string", "object", "array",
    ];
    let is_key = |r: &&Vec<String>| {
        let kind = r.get(1).and_then(|t| t.split(' ').next());
        kind.is_some_and(|t| types.contains(&t))
    };
    let found: Vec<String> = rows.iter().filter(is_key).map(|r| r[0].clone()).collect();
    assert_eq!(found, expected.concat(), "{heading}");
}

#[test]
fn every_key_of_every_message() {
    let text = document();
    let (_, hello) = Sender::new(offer(&mixed(), 5)).unwrap();
    let hello: Hello = parse(Kind::Hello, split(&hello).1).unwrap();
    let accept: Accept = parse(Kind::Accept, golden::ACCEPT_JSON.as_bytes()).unwrap();
    let committed: Committed = parse(Kind::Committed, golden::COMMITTED_JSON.as_bytes()).unwrap();
    let commit: Commit = parse(Kind::Commit, golden::COMMIT_JSON.as_bytes()).unwrap();
    let receipt: Receipt = parse(Kind::Receipt, golden::RECEIPT_JSON.as_bytes()).unwrap();
    let difference = Difference {
        field: String::new(),
        ours: String::new(),
        theirs: String::new(),
    };
    let refuse = Refuse {
        code: RefusalCode::Contract,
        message: String::new(),
        differences: vec![difference.clone()],
    };
    let reason = String::new();
    let back = receipt.hand_back.clone().unwrap();
    let layer = &hello.contract.layers[0];
    for (heading, expected) in [
        ("### hello", vec![keys(&hello)]),
        ("### accept", vec![keys(&accept)]),
        ("### refuse", vec![keys(refuse), keys(difference)]),
        ("### commit", vec![keys(commit)]),
        ("### committed", vec![keys(committed)]),
        ("### abort", vec![keys(Abort { reason })]),
        (
            "### receipt",
            vec![keys(&receipt), keys(receipt.top[0]), keys(back)],
        ),
        ("## Contract", vec![keys(&hello.contract), keys(layer)]),
    ] {
        has_keys(&text, heading, &expected);
    }
}

#[test]
fn every_refusal_has_its_row() {
    let text = document();
    let all = [
        RefusalCode::Contract,
        RefusalCode::Ticket,
        RefusalCode::Tokens,
        RefusalCode::Hello,
        RefusalCode::Busy,
    ];
    // A code that is missing above does not compile.
    let known = |code: &RefusalCode| match code {
        RefusalCode::Contract
        | RefusalCode::Ticket
        | RefusalCode::Tokens
        | RefusalCode::Hello
        | RefusalCode::Busy => serde_json::to_value(code).unwrap(),
    };
    let table = rows(section(&text, "### refuse"));
    let start = table.iter().position(|r| r[0] == "code" && r[1] == "why");
    let listed = table[start.unwrap() + 2..].iter().map(|r| r[0].clone());
    let expected = all.iter().map(known);
    let expected: Vec<String> = expected.map(|c| c.as_str().unwrap().to_owned()).collect();
    assert_eq!(listed.take(expected.len()).collect::<Vec<_>>(), expected);
}

#[test]
fn codecs_and_sizes_of_their_blocks() {
    let text = document();
    let section = section(&text, "## Codecs");
    for codec in Codec::ALL {
        has_row(section, &[&codec.wire().to_string(), codec.name()]);
    }
    let mut run = RunSpec {
        heads: 1,
        dim: 32,
        tokens: 1,
    };
    let size = |codec: Codec, run: &RunSpec| {
        let bytes = codec.encoded_bytes(run);
        assert_eq!(bytes.start(), bytes.end());
        *bytes.start()
    };
    let q8 = size(Codec::Q8, &run);
    assert!(section.contains(&format!("A block of {BLOCK} elements in {q8} bytes")));
    (run.heads, run.dim) = (1, 16);
    assert_eq!(size(Codec::Q8, &run), 32, "no multiple of 32");
    run.heads = 2;
    assert_eq!(size(Codec::Q8, &run), q8);
    let plane = Codec::Plane.encoded_bytes(&run);
    assert_eq!((*plane.start(), *plane.end()), (5 + 32 + 1, 5 + 64));
}

#[test]
fn links_lead_to_headings() {
    let text = document();
    let heading = |line: &str| {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        title.replace(' ', "-")
    };
    let headings: Vec<String> = text
        .lines()
        .filter(|l| l.starts_with('#'))
        .map(heading)
        .collect();
    for link in text.split("](#").skip(1) {
        let target = link.split(')').next().unwrap();
        assert!(
            headings.iter().any(|h| h == target),
            "no heading for #{target}"
        );
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
