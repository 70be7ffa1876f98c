//! A plan in tables and sentences.

use std::fmt::Write as _;

use comfy_table::{Cell, CellAlignment};
use tandem_sched::plan::{Answered, Course, Judged, Way};
use tandem_sched::profile::Catalogue;

use super::trial::{Ran, Wanted};
use super::{Answer, Paced, Request, Run, way};
use crate::tables;

/// The profiles that there are.
pub fn list(catalogue: &Catalogue) -> String {
    let (machines, models, links) = catalogue.all();
    let mut table = tables::new(&["kind", "name", "what", "figures"]);
    for machine in machines {
        let models: Vec<&str> = machine.figures.iter().map(|f| f.model.as_str()).collect();
        table.add_row(["machine", &machine.name, &machine.title, &models.join(", ")]);
    }
    for model in models {
        let figures = format!(
            "{} GB, {:.0} KB of cache a token",
            model.weights_gb,
            (model.kv_bytes(20_001.0) - model.kv_bytes(20_000.0)) / 1e3
        );
        table.add_row(["model", &model.name, &model.title, &figures]);
    }
    for link in links {
        let figures = format!("{} GB/s, {} ms", link.goodput_gb_s, link.round_trip_ms);
        table.add_row(["link", &link.name, &link.title, &figures]);
    }
    table.to_string()
}

/// The whole answer.
pub fn told(answer: &Answer) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "One answer, over {}:", answer.link.title);
    let _ = writeln!(out, "{}", requests(&answer.requests));
    for request in &answer.requests {
        let _ = writeln!(out, "{}", fastest(request));
    }
    for line in pays(&answer.requests) {
        let _ = writeln!(out, "{line}");
    }
    let _ = writeln!(out, "\nA course of {} works:", answer.works);
    let _ = writeln!(out, "{}", courses(&answer.courses));
    for run in &answer.courses {
        let _ = writeln!(out, "{}", best(run));
    }
    if let Some(paced) = &answer.paced {
        let _ = writeln!(out, "\n{}", self::paced(paced));
    }
    let mut notes = notes(answer);
    notes.push(
        match answer.paced {
            None => format!("all of this is calculated of {}; docs/scheduling.md has the formulas", answer.figures),
            Some(_) => "the tables above the last one are calculated of profiles; docs/scheduling.md has the formulas".to_owned(),
        },
    );
    for note in notes {
        let _ = writeln!(out, "note: {note}");
    }
    out.trim_end().to_owned()
}

/// What is run.
pub fn wanted(wanted: &Wanted<'_>) -> String {
    let setup = &wanted.setup;
    let models: Vec<&str> = setup
        .workloads
        .iter()
        .map(|j| j.model.name.as_str())
        .collect();
    let way = way(wanted.way, true);
    match wanted.best_per_hour {
        None => format!("one answer of {}, {way}", models.join(", ")),
        Some(_) => format!("{} works, {way}, {} at once", setup.works, setup.batch),
    }
}

/// What was run with paced nodes, beside what was predicted.
pub fn paced(paced: &Paced) -> String {
    let mut table = tables::new(&[
        "what",
        "prompt",
        "at once",
        "way",
        "machines",
        "predicted s",
        "measured s",
        "more",
        "works/h",
        "at best",
        "this machine",
    ]);
    for run in &paced.runs {
        let what = match run.best_per_hour {
            None => format!("an answer of {}", run.models.join(", ")),
            Some(_) => format!("{} works", run.works),
        };
        let hourly = |rate: Option<f64>| right(rate.map_or("–".to_owned(), thousands));
        let is_course = run.best_per_hour.is_some();
        table.add_row([
            Cell::new(what),
            right(thousands(run.prompt)),
            right(run.batch.to_string()),
            Cell::new(way(run.way, true)),
            Cell::new(run.machines.join(", ")),
            right(format!("{:.1}", run.predicted.end_s)),
            right(format!("{:.1}", run.measured.end_s)),
            right(format!("{:+.1} %", run.difference_percent)),
            hourly(is_course.then_some(run.measured.per_hour)),
            hourly(run.best_per_hour),
            Cell::new(host(run)),
        ]);
    }
    let mut out = match paced.speed == 1.0 {
        true => "Run as processes of paced nodes on this machine:\n".to_owned(),
        false => format!(
            "Run as processes of paced nodes on this machine, {0} times as fast as the machines and with caches of 1/{0} of the size; \
             seconds are those of the machines, so what tandem itself takes counts {0} times:\n",
            paced.speed
        ),
    };
    let _ = writeln!(out, "{table}");
    let _ = write!(
        out,
        "predicted: the run, step by step; at best: an even flow without a first and a last work"
    );
    for failed in &paced.failed {
        let _ = write!(out, "\nnot run: {failed}");
    }
    for run in paced.runs.iter().filter(|run| run.served_otherwise > 0) {
        let _ = write!(
            out,
            "\nnote: {}, {} at once: {} requests were served in another way than planned",
            way(run.way, true),
            run.batch,
            run.served_otherwise
        );
    }
    out
}

/// How busy this machine was, and whether a run waited for it.
fn host(run: &Ran) -> String {
    match run.is_host_bound {
        true => format!("{:.0} % busy: host-bound", run.host_busy_percent),
        false => format!("{:.0} % busy", run.host_busy_percent),
    }
}

/// A way with its machines.
pub fn named(answered: &Answered) -> String {
    let machines = answered.machines.join(" → ");
    match answered.way {
        Way::Alone => format!("{machines} alone"),
        _ => format!("{} of {machines}", way(answered.way, answered.is_built)),
    }
}

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}

fn requests(requests: &[Request]) -> comfy_table::Table {
    let mut table = tables::new(&[
        "model",
        "prompt",
        "way",
        "machines",
        "prefill s",
        "exposed s",
        "first token s",
        "all s",
        "times alone",
    ]);
    for request in requests {
        let alone = alone(request).map_or(f64::NAN, |a| a.end_s);
        for judged in &request.ways {
            let Some(a) = judged.known() else {
                continue;
            };
            table.add_row([
                Cell::new(&request.model),
                right(thousands(f64::from(request.prompt))),
                Cell::new(way(a.way, a.is_built)),
                Cell::new(a.machines.join(" → ")),
                right(format!("{:.2}", prefilled(a))),
                right(format!("{:.3}", exposed(a))),
                right(format!("{:.2}", a.first_token_s)),
                right(format!("{:.2}", a.end_s)),
                right(format!("{:.2}", alone / a.end_s)),
            ]);
        }
    }
    table
}

/// The best of the ways in which one machine does all.
fn alone(request: &Request) -> Option<&Answered> {
    let known = request.ways.iter().filter_map(Judged::known);
    let alone = known.filter(|a| a.way == Way::Alone);
    alone.min_by(|a, b| a.end_s.total_cmp(&b.end_s))
}

/// When the prefill ends.
fn prefilled(answered: &Answered) -> f64 {
    let prefills = answered.phases.iter().filter(|p| p.what == "prefill");
    prefills.map(|p| p.to_s).fold(0.0, f64::max)
}

/// How long the transfer goes on when the prefill has ended.
fn exposed(answered: &Answered) -> f64 {
    let transfers = answered.phases.iter().filter(|p| p.what == "transfer");
    let end = transfers.map(|p| p.to_s).fold(0.0, f64::max);
    (end - prefilled(answered)).max(0.0)
}

fn fastest(request: &Request) -> String {
    let known = request.ways.iter().filter_map(Judged::known);
    let by_end = |a: &&Answered, b: &&Answered| a.end_s.total_cmp(&b.end_s);
    let head = format!(
        "{}, {} tokens:",
        request.model,
        thousands(f64::from(request.prompt))
    );
    let Some(built) = known.clone().filter(|a| a.is_built).min_by(by_end) else {
        return format!("{head} nothing can be judged");
    };
    let words = |a: &Answered| format!("{}, {:.1} s", named(a), a.end_s);
    let mut out = format!("{head} the fastest is {}", words(built));
    if let Some(alone) = alone(request).filter(|alone| alone.end_s > built.end_s) {
        let times = alone.end_s / built.end_s;
        let _ = write!(
            out,
            ", {times:.2} times as fast as {} alone",
            alone.machines[0]
        );
    }
    let other = known
        .filter(|a| !a.is_built && a.end_s < built.end_s)
        .min_by(by_end);
    if let Some(other) = other {
        let _ = write!(out, "; faster would be {}", words(other));
    }
    out
}

fn pays(requests: &[Request]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for request in requests {
        for pays in &request.pays_from {
            let [p, d] = &pays.machines;
            let (model, up_to) = (&request.model, thousands(pays.up_to));
            let line = match pays.tokens {
                Some(tokens) => format!(
                    "{model}: {p} → {d} is faster than {d} alone from {} tokens on",
                    thousands(tokens)
                ),
                None => format!(
                    "{model}: {p} → {d} is not faster than {d} alone at {up_to} tokens, to where the figures reach"
                ),
            };
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    lines
}

fn courses(runs: &[Run]) -> comfy_table::Table {
    let mut table = tables::new(&[
        "prompt",
        "batch",
        "way",
        "works/h",
        "who does what",
        "bound by",
    ]);
    for run in runs {
        for judged in &run.ways {
            let Some(c) = judged.known() else {
                continue;
            };
            table.add_row([
                right(thousands(f64::from(run.prompt))),
                right(run.batch.to_string()),
                Cell::new(way(c.way, c.is_built)),
                right(thousands(c.per_hour)),
                Cell::new(parts(c)),
                Cell::new(c.bound_by.join(", ")),
            ]);
        }
    }
    table
}

/// What each machine does, a line for each.
fn parts(course: &Course) -> String {
    let mut models: Vec<&str> = course.parts.iter().map(|p| p.model.as_str()).collect();
    models.sort_unstable();
    models.dedup();
    let line = |machine: &String| {
        let of = course.parts.iter().filter(|part| part.machine == *machine);
        let does = of.flat_map(|part| {
            let shares = [
                ("prefills", part.prefill),
                ("decodes", part.decode),
                ("serves", part.serve),
            ];
            let shares = shares.into_iter().filter(|(_, share)| *share >= 0.005);
            let model = match models.len() {
                1 => String::new(),
                _ => format!(" {}", part.model),
            };
            shares.map(move |(does, share)| format!("{does}{model} {:.0} %", share * 100.0))
        });
        format!("{machine} {}", does.collect::<Vec<_>>().join(", "))
    };
    course
        .machines
        .iter()
        .map(line)
        .collect::<Vec<_>>()
        .join("\n")
}

fn best(run: &Run) -> String {
    let known = run.ways.iter().filter_map(Judged::known);
    let by_rate = |a: &&Course, b: &&Course| a.per_hour.total_cmp(&b.per_hour);
    let head = format!(
        "{} tokens, batches of {}:",
        thousands(f64::from(run.prompt)),
        run.batch
    );
    let Some(built) = known.clone().filter(|c| c.is_built).max_by(by_rate) else {
        return format!("{head} nothing can be judged");
    };
    let mut out = format!(
        "{head} most works an hour by {}, {}",
        way(built.way, true),
        thousands(built.per_hour)
    );
    if let Some(energy) = built.watt_hours {
        let _ = write!(out, ", {energy:.2} Wh each");
    }
    let other = known.filter(|c| !c.is_built && c.per_hour > built.per_hour * 1.005);
    if let Some(other) = other.max_by(by_rate) {
        let times = other.per_hour / built.per_hour;
        let _ = write!(
            out,
            "; {times:.2} times that would be {}",
            way(other.way, false)
        );
    }
    out
}

/// What the figures rest on, and what is missing; each once.
fn notes(answer: &Answer) -> Vec<String> {
    let mut notes = answer.notes.clone();
    let requests = answer.requests.iter().flat_map(|r| &r.ways);
    for judged in requests {
        match judged {
            Judged::Known(a) if a.is_built => notes.extend(a.notes.clone()),
            other => notes.extend(unknown(other)),
        }
    }
    for judged in answer.courses.iter().flat_map(|run| &run.ways) {
        match judged {
            Judged::Known(c) => notes.extend(c.notes.clone()),
            other => notes.extend(unknown(other)),
        }
    }
    let mut seen = std::collections::HashSet::new();
    notes.retain(|note| seen.insert(note.clone()));
    notes
}

fn unknown<T>(judged: &Judged<T>) -> Option<String> {
    match judged {
        Judged::Known(_) => None,
        Judged::Unknown {
            way: of,
            machines,
            missing,
        } => {
            let machines = machines.join(" and ");
            Some(format!(
                "{} of {machines} cannot be judged: {missing}",
                way(*of, true)
            ))
        }
    }
}

/// A whole number, with commas.
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
