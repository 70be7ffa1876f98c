//! `tandem compare`: two models, two rubrics or two runs, side by side on the same submissions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use comfy_table::presets::UTF8_FULL_CONDENSED;
use comfy_table::{Cell, CellAlignment, Table};
use tandem_gradebook::Gradebook;
use tandem_grading::limits::MAX_TABLE_BYTES;
use tandem_grading::review::Standing;
use tandem_grading::{Comparison, Given, Points, Rubric};

use crate::{files, output};

/// The gradebook in a folder of results.
const GRADEBOOK: &str = "gradebook.sqlite";

/// Arguments of `tandem compare`.
#[derive(Args)]
#[command(
    after_help = "Each of both is a folder that `tandem grade --out` made, a gradebook with one assignment, or a table (CSV) \
                        with a column `name` and one for each criterion's id, such as points that persons gave. \
                        Exit status: 0 compared; 1 they cannot be compared."
)]
pub struct Arguments {
    /// What is compared with.
    first: PathBuf,
    /// What is compared.
    second: PathBuf,
    /// Lists every submission that changes, not only the 20 that change most.
    #[arg(long)]
    all: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// Submissions that are listed without `--all`.
const LISTED: usize = 20;

/// One of both.
struct Side {
    rubric: Option<Rubric>,
    given: Given,
    /// Submissions without points.
    without: usize,
}

/// Compares, and shows it.
///
/// # Errors
/// If one of both cannot be read, or they have nothing in common.
pub fn main(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (first, second) = (
        Side::read(&arguments.first)?,
        Side::read(&arguments.second)?,
    );
    let rubric = second.rubric.as_ref().or(first.rubric.as_ref());
    let rubric = rubric.context("one of both must be a folder of results: it has the rubric")?;
    let mut comparison = Comparison::new(rubric, &first.given, &second.given);
    if comparison.compared == 0 {
        bail!("they have no submission in common that both have points for");
    }
    let count = comparison.changes.len();
    if !arguments.all {
        comparison.changes.truncate(LISTED);
    }
    if arguments.json {
        output::print(&serde_json::to_string_pretty(&comparison)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (agreement, changes) = shown(&comparison);
    output::print(&agreement.to_string())?;
    if count > 0 {
        output::print(&changes.to_string())?;
    }
    if count > comparison.changes.len() {
        let more = count - comparison.changes.len();
        output::print(&format!("{more} more change; --all lists them"))?;
    }
    output::print(&format!(
        "{} of {} submissions have the same points for each criterion; the mean total changes by {:+.2}",
        comparison.equal, comparison.compared, comparison.mean_change
    ))?;
    let without = [first.without, second.without];
    if comparison.only_one > 0 || without != [0, 0] {
        output::print(&format!(
            "left out: {} that only one of both has, {} without points there and {} here",
            comparison.only_one, without[0], without[1]
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Side {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let in_folder = path.join(GRADEBOOK);
        let is_table = path
            .extension()
            .is_some_and(|end| end.eq_ignore_ascii_case("csv"));
        let read = match (in_folder.is_file(), is_table, path.is_file()) {
            (true, _, _) => Self::of_gradebook(&in_folder),
            (_, true, true) => Self::of_table(path),
            (_, false, true) => Self::of_gradebook(path),
            _ => bail!(
                "{} is no folder of results, gradebook or table",
                path.display()
            ),
        };
        read.with_context(|| format!("{} cannot be compared", path.display()))
    }

    fn of_gradebook(file: &Path) -> anyhow::Result<Self> {
        let gradebook = Gradebook::open_alone(file)?;
        let found = gradebook.store().read_now(|reader| {
            let assignments = reader.assignments()?;
            let [one] = assignments.as_slice() else {
                return Ok(Err(assignments.len()));
            };
            let Some(version) = reader.rubric(one.id)? else {
                return Ok(Err(0));
            };
            let mut works = Vec::new();
            for outline in reader.works(one.id)? {
                works.extend(reader.work(outline.id)?);
            }
            Ok(Ok((version.rubric, works)))
        })?;
        let (rubric, works) = match found {
            Ok(found) => found,
            Err(count) => bail!("it has {count} assignments, and one is needed"),
        };
        let (mut given, mut without) = (Given::new(), 0);
        for work in works {
            let standing = Standing::of_model(&rubric, work.graded.as_ref());
            // What models suggested, whatever persons made of it.
            match standing.model_total() {
                Some(_) => _ = given.insert(work.name, standing.all_points()),
                None => without += 1,
            }
        }
        Ok(Self {
            rubric: Some(rubric),
            given,
            without,
        })
    }

    fn of_table(file: &Path) -> anyhow::Result<Self> {
        let bytes = files::read(file, u64::try_from(MAX_TABLE_BYTES)?)?;
        let text = bytes.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&bytes);
        let mut reader = csv::ReaderBuilder::new().from_reader(text);
        let header = reader.headers()?.clone();
        let name = header.iter().position(|cell| cell.trim() == "name");
        let name = name.context("it has no column `name`")?;
        let (mut given, mut without) = (Given::new(), 0);
        for record in reader.records() {
            let record = record?;
            let points = header.iter().zip(&record).filter_map(|(id, cell)| {
                let points = cell.trim().replace(',', ".").parse().ok();
                Some((id.trim().to_owned(), Points::from_f64(points?)?))
            });
            let points: BTreeMap<String, Points> = points.collect();
            let student = record.get(name).unwrap_or_default().trim().to_owned();
            if points.is_empty() {
                without += 1;
            } else if given.insert(student.clone(), points).is_some() {
                bail!("it has \"{student}\" twice");
            }
        }
        Ok(Self {
            rubric: None,
            given,
            without,
        })
    }
}

/// How far two agree, a line for each criterion; and what changes, a line for each submission.
fn shown(comparison: &Comparison) -> (Table, Table) {
    let mut agreement = Table::new();
    agreement.load_style(UTF8_FULL_CONDENSED);
    agreement.set_header(vec![
        "criterion",
        "equal",
        "within one step",
        "bias",
        "weighted kappa",
        "a constant: equal",
    ]);
    for criterion in &comparison.criteria {
        let one = &criterion.agreement;
        let of = |count: usize| right(format!("{count} of {}", one.count));
        let kappa = one.kappa.map(|kappa| format!("{kappa:.2}"));
        agreement.add_row(vec![
            Cell::new(&criterion.title),
            of(one.equal),
            of(one.within_one),
            right(format!("{:+.2}", one.bias)),
            right(kappa.unwrap_or_else(|| "–".to_owned())),
            of(one.constant),
        ]);
    }
    let mut changes = Table::new();
    changes.load_style(UTF8_FULL_CONDENSED);
    changes.set_header(vec!["submission", "before", "after", "criteria"]);
    for one in &comparison.changes {
        let criteria = one.criteria.iter();
        let criteria: Vec<String> = criteria
            .map(|(id, a, b)| format!("{id} {a} → {b}"))
            .collect();
        changes.add_row(vec![
            Cell::new(&one.name),
            right(one.before.to_string()),
            right(one.after.to_string()),
            Cell::new(criteria.join(", ")),
        ]);
    }
    (agreement, changes)
}

fn right(text: String) -> Cell {
    Cell::new(text).set_alignment(CellAlignment::Right)
}
