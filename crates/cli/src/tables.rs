//! Tables for the terminal.

use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Table};
use tandem_grading::{Graded, JobRecord};
use tandem_openai::TandemInfo;

/// What an unknown value is shown as.
const NOTHING: &str = "–";

/// How one request was served.
pub fn timings(info: &TandemInfo) -> Table {
    let mut table = new(&[
        "prefill → decode",
        "mode",
        "prompt",
        "generated",
        "queue ms",
        "tokenize ms",
        "prefill ms",
        "transfer ms",
        "exposed ms",
        "apply ms",
        "first token ms",
        "decode ms",
        "handoff MB",
    ]);
    let p = &info.phases_ms;
    let mut row = vec![
        Cell::new(route(info)),
        Cell::new(&info.mode),
        number(info.prompt_tokens),
        number(info.generated_tokens),
    ];
    row.extend(
        [
            p.queue,
            p.tokenize,
            p.prefill,
            p.transfer,
            p.exposed_transfer,
            p.apply,
            p.first_token,
            p.decode,
        ]
        .map(ms),
    );
    row.push(megabytes(info.handoff_bytes));
    table.add_row(row);
    table
}

/// One line per submission.
pub fn grades(graded: &[Graded]) -> Table {
    let mut table = new(&["submission", "status", "score", "why"]);
    for one in graded {
        let why = one.reasons.first().map_or("", String::as_str);
        table.add_row(vec![
            Cell::new(&one.name),
            Cell::new(one.status.as_str()),
            score(one),
            Cell::new(why),
        ]);
    }
    table
}

/// One line per job of each submission; with a second run, whose lines stand below those of the
/// first, and whether the tokens are the same.
pub fn jobs(graded: &[Graded], compared: Option<&[Graded]>) -> Table {
    let mut header = vec![
        "submission",
        "status",
        "score",
        "job",
        "mode",
        "prefill → decode",
        "prompt",
        "prefill ms",
        "transfer ms",
        "exposed ms",
        "decode ms",
        "handoff MB",
    ];
    if compared.is_some() {
        header.push("same tokens");
    }
    let mut table = new(&header);
    for (i, one) in graded.iter().enumerate() {
        let other = compared.and_then(|c| c.get(i));
        let mut head = [
            Cell::new(&one.name),
            Cell::new(one.status.as_str()),
            score(one),
        ];
        if one.jobs.is_empty() {
            table.add_row(head.to_vec());
        }
        for (j, record) in one.jobs.iter().enumerate() {
            let again = other.and_then(|o| o.jobs.get(j));
            let mut row = std::mem::replace(&mut head, ["", "", ""].map(Cell::new)).to_vec();
            row.extend(job(record));
            if compared.is_some() {
                let same = again.and_then(|a| identical(record, a));
                row.push(Cell::new(match same {
                    Some(true) => "yes",
                    Some(false) => "NO",
                    None => NOTHING,
                }));
            }
            table.add_row(row);
            if let Some(again) = again {
                let mut row = ["", "", ""].map(Cell::new).to_vec();
                row.extend(job(again));
                table.add_row(row);
            }
        }
    }
    table
}

/// Whether two runs of a job generated the same tokens; `None` if one of them has no tokens to show.
pub fn identical(a: &JobRecord, b: &JobRecord) -> Option<bool> {
    let tokens = |record: &JobRecord| record.tandem.as_ref()?.tokens.clone();
    Some(tokens(a)? == tokens(b)?)
}

fn job(record: &JobRecord) -> Vec<Cell> {
    let name = Cell::new(record.job.as_str());
    let Some(info) = &record.tandem else {
        let error = record.error.as_deref().unwrap_or(NOTHING);
        return vec![name, Cell::new(error)];
    };
    let p = &info.phases_ms;
    vec![
        name,
        Cell::new(&info.mode),
        Cell::new(route(info)),
        number(info.prompt_tokens),
        ms(p.prefill),
        ms(p.transfer),
        ms(p.exposed_transfer),
        ms(p.decode),
        megabytes(info.handoff_bytes),
    ]
}

fn new(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_FULL_CONDENSED).set_header(header);
    table
}

fn route(info: &TandemInfo) -> String {
    format!("{} → {}", info.prefill_node, info.decode_node)
}

fn score(one: &Graded) -> Cell {
    let text = match one.score {
        Some(score) => format!("{score}/{}", one.max_score),
        None => NOTHING.to_owned(),
    };
    right(text)
}

fn ms(value: f64) -> Cell {
    right(format!("{value:.1}"))
}

fn number(value: u32) -> Cell {
    right(value.to_string())
}

fn megabytes(bytes: u64) -> Cell {
    // Exact to the shown digits for anything below 2^53 bytes.
    #[expect(clippy::cast_precision_loss, reason = "shown with two digits")]
    let value = bytes as f64 / 1e6;
    right(format!("{value:.2}"))
}

fn right(text: impl ToString) -> Cell {
    Cell::new(text.to_string()).set_alignment(CellAlignment::Right)
}
