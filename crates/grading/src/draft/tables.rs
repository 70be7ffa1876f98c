//! Rubrics that come as tables: of Canvas, and in Markdown.

use super::{CriterionDraft, Draft, LevelDraft};
use crate::error::{GradingError, fault};

/// Columns of a rubric of Canvas, before the triples of its ratings. Source: Canvas, `rubric_csv_importer.rb`.
const CANVAS: [&str; 4] = [
    "Rubric Name",
    "Criteria Name",
    "Criteria Description",
    "Criteria Enable Range",
];

/// True for the header of such a table.
pub(super) fn is_canvas(first: &str) -> bool {
    first.contains(CANVAS[0]) && first.contains(CANVAS[1])
}

/// A number with a point or a comma.
fn number(field: &str, text: &str) -> Result<f64, GradingError> {
    let plain = text.trim().replace(',', ".");
    plain
        .parse()
        .map_err(|_| fault(field, format!("'{}' is no number", text.trim())))
}

/// The highest level is the maximum.
fn with_maximum(mut criterion: CriterionDraft) -> CriterionDraft {
    let levels = criterion.levels.iter().flatten();
    criterion.max_points = levels.map(|level| level.points).fold(0.0, f64::max);
    criterion
}

pub(super) fn of_canvas(text: &str) -> Result<Draft, GradingError> {
    let mut reader = csv::ReaderBuilder::new()
        .flexible(true)
        .from_reader(text.as_bytes());
    let header = reader.headers().map_err(|e| fault("file", e.to_string()))?;
    let at = |name: &str| header.iter().position(|cell| cell.trim() == name);
    let columns = CANVAS.map(at);
    let (Some(title), Some(name)) = (columns[0], columns[1]) else {
        return Err(fault("file", "it has no columns of a Canvas rubric"));
    };
    let is_rating = |(_, cell): &(usize, &str)| cell.trim().starts_with("Rating Name");
    let ratings = header.iter().enumerate().filter(is_rating);
    let ratings: Vec<usize> = ratings.map(|(column, _)| column).collect();
    let mut draft = Draft::default();
    for (row, record) in (2..).zip(reader.records()) {
        let record = record.map_err(|e| fault(format!("row {row}"), e.to_string()))?;
        let cell = |column: usize| record.get(column).unwrap_or_default().trim().to_owned();
        let (rubric, name) = (cell(title), cell(name));
        if name.is_empty() {
            continue;
        }
        if draft.title.is_empty() {
            draft.title.clone_from(&rubric);
        }
        if !rubric.is_empty() && rubric != draft.title {
            let problem = format!("it has “{}” and “{rubric}”; keep one rubric", draft.title);
            return Err(fault("file", problem));
        }
        let description = columns[2].map(cell).filter(|text| !text.is_empty());
        draft.criteria.push(with_maximum(CriterionDraft {
            description: description.unwrap_or_else(|| name.clone()),
            levels: Some(levels(row, &ratings, &cell)?),
            title: name,
            ..CriterionDraft::default()
        }));
    }
    draft.number();
    Ok(draft)
}

/// The ratings of a row.
fn levels(
    row: usize,
    ratings: &[usize],
    cell: &dyn Fn(usize) -> String,
) -> Result<Vec<LevelDraft>, GradingError> {
    let mut levels = Vec::new();
    for column in ratings {
        let (label, description) = (cell(*column), cell(column + 1));
        if label.is_empty() {
            continue;
        }
        levels.push(LevelDraft {
            description: match description.is_empty() {
                true => label.clone(),
                false => description,
            },
            points: number(&format!("row {row}, rating “{label}”"), &cell(column + 2))?,
            label,
        });
    }
    Ok(levels)
}

/// Cells of a line of a table in Markdown.
fn cells(line: &str) -> Vec<String> {
    let inner = line.trim().trim_matches('|');
    let cells = inner.split('|');
    cells.map(|cell| cell.trim().replace("**", "")).collect()
}

/// A level's points stand in brackets behind its name.
fn level(title: &str) -> Option<(String, f64)> {
    let (label, points) = title.strip_suffix(')')?.rsplit_once('(')?;
    let points = points.split_whitespace().next()?.replace(',', ".");
    Some((label.trim().to_owned(), points.parse().ok()?))
}

/// True for a line below a table's header.
fn is_rule(line: &str) -> bool {
    let is_of_rule = |c: char| matches!(c, '|' | '-' | ':' | ' ');
    line.starts_with('|') && line.contains("--") && line.trim_end().chars().all(is_of_rule)
}

/// True if a text has a table. In YAML such a line does not stand at its beginning.
pub(super) fn has_markdown(text: &str) -> bool {
    text.lines().any(is_rule)
}

/// `| criterion | points | description |`, or `| criterion | full (4) | some (2) | none (0) |`.
pub(super) fn of_markdown(text: &str, name: &str) -> Result<Draft, GradingError> {
    let heading = text.lines().find_map(|line| line.trim().strip_prefix("# "));
    let mut draft = Draft {
        title: heading.unwrap_or(name).trim().to_owned(),
        ..Draft::default()
    };
    let lines = text.lines().filter(|line| line.starts_with('|'));
    let lines = lines.filter(|line| !is_rule(line));
    let mut rows = lines.map(cells);
    let header = rows.next().unwrap_or_default();
    for (row, record) in (1..).zip(rows) {
        let title = record.first().cloned().unwrap_or_default();
        if !title.is_empty() && !title.to_lowercase().starts_with("total") {
            draft.criteria.push(of_row(row, &header, &record)?);
        }
    }
    draft.number();
    Ok(draft)
}

fn of_row(
    row: usize,
    header: &[String],
    record: &[String],
) -> Result<CriterionDraft, GradingError> {
    let cell = |column: usize| record.get(column).cloned().unwrap_or_default();
    let columns = header.iter().enumerate().skip(1);
    let levels: Vec<LevelDraft> = columns
        .filter_map(|(column, title)| Some((column, level(title)?)))
        .filter(|(column, _)| !cell(*column).is_empty())
        .map(|(column, (label, points))| LevelDraft {
            label,
            points,
            description: cell(column),
        })
        .collect();
    let criterion = CriterionDraft {
        title: cell(0),
        description: cell(0),
        ..CriterionDraft::default()
    };
    if !levels.is_empty() {
        return Ok(with_maximum(CriterionDraft {
            levels: Some(levels),
            ..criterion
        }));
    }
    let is_points = |title: &String| {
        let title = title.to_lowercase();
        title.starts_with("point") || title.starts_with("max")
    };
    let points = header.iter().position(is_points).ok_or_else(|| {
        fault(
            "file",
            "the table has no column of points, and no levels as `full (4)`",
        )
    })?;
    let max = number(&format!("row {row}"), &cell(points))?;
    let others = (1..header.len()).filter(|other| *other != points).map(cell);
    let others: Vec<String> = others.filter(|text| !text.is_empty()).collect();
    Ok(CriterionDraft {
        description: match others.is_empty() {
            true => cell(0),
            false => others.join(" "),
        },
        max_points: max,
        step: Some(if max.fract() == 0.0 { 1.0 } else { 0.5 }),
        ..criterion
    })
}
