//! What leaves the gradebook: grades and feedback that a person approved, and nothing else.
//!
//! [`Row::new`] takes a submission as it stands. Only an approval has a [`Grade`], so no suggestion, no failure and no
//! blank can become a number elsewhere. [`fill`] fills in the file that a teacher took from a learning system,
//! [`write()`] makes files of its own. Both return what they would write with an account of it: the preview of an export
//! is the export.

mod files;
mod sheet;
mod student;
mod table;

use std::collections::BTreeSet;

use crate::feedback::Item;
use crate::origin::Origin;
use crate::points::Points;
use crate::review::{Comment, Correction, Decision, Standing, State};
use crate::roster::Keys;

pub use files::{Format, write};
pub use sheet::{GradeColumn, SheetKind};
use sheet::{NO, Sheet, YES, number};

/// What a person approved of one criterion.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scored {
    /// The criterion's id.
    pub id: String,
    /// What it is called.
    pub title: String,
    /// The points.
    pub points: Points,
    /// Points for full marks.
    pub max: Points,
}

/// What a person approved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grade {
    /// Sum of the points.
    pub total: Points,
    /// Points for full marks.
    pub max: Points,
    /// Each criterion, in the rubric's order.
    pub criteria: Vec<Scored>,
    /// What is taken off.
    pub corrections: Vec<Correction>,
    /// The feedback.
    pub text: Vec<Item>,
    /// What a person says of single lines.
    pub comments: Vec<Comment>,
    /// A model had a part in it.
    pub is_assisted: bool,
    /// The language of the feedback, as the rubric has it.
    pub language: Option<String>,
}

/// A submission, as far as it may leave.
#[derive(Debug, Clone)]
pub struct Row {
    /// What it is called.
    pub name: String,
    /// How far it is.
    pub state: State,
    grade: Option<Grade>,
    /// The name under which a learning system gave it out.
    folder: String,
    /// Each student's; several of a group.
    students: Vec<Keys>,
}

impl Row {
    /// Takes a submission as it stands.
    #[must_use]
    pub fn new(name: &str, origin: &Origin, standing: &Standing<'_>) -> Self {
        let approved = standing.review.decision == Decision::Approved;
        let criteria = standing.rubric.criteria.iter().map(|criterion| {
            Some(Scored {
                id: criterion.id.clone(),
                title: criterion.title.clone(),
                points: standing.points(criterion)?,
                max: criterion.max_points,
            })
        });
        let criteria: Option<Vec<Scored>> = criteria.collect();
        let grade = criteria.zip(standing.total()).filter(|_| approved);
        Self {
            name: name.to_owned(),
            state: standing.state(),
            grade: grade.map(|(criteria, total)| Grade {
                total,
                max: standing.rubric.max_points,
                criteria,
                corrections: standing.corrections(),
                text: standing.text(),
                comments: standing.review.comments.clone(),
                language: standing.rubric.style.language.clone(),
                // A result without a score, as of what cannot be read, is no part of it.
                is_assisted: standing.review.text_is_models
                    || standing
                        .model
                        .is_some_and(|m| m.score.is_some() || m.feedback.is_some()),
            }),
            folder: match origin.folder.is_empty() {
                true => name.to_owned(),
                false => origin.folder.clone(),
            },
            students: Keys::of_submission(name, origin),
        }
    }

    /// What was approved, if something was.
    #[must_use]
    pub const fn grade(&self) -> Option<&Grade> {
        self.grade.as_ref()
    }
}

/// One cell that an export changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Place of the submission in the rows.
    pub row: usize,
    /// The student, as the file names them.
    pub student: String,
    /// The header of the column.
    pub column: String,
    /// What stands there; of feedback, nothing or some text.
    pub before: String,
    /// What will.
    pub after: String,
    /// True if it is feedback, and no grade.
    pub is_feedback: bool,
}

/// Something approved that cannot be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Place of the submission in the rows.
    pub row: usize,
    /// Why.
    pub why: String,
}

/// A grade that stands in a teacher's own file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filled {
    /// Its row there.
    pub place: usize,
    /// Place of the submission in the rows.
    pub row: usize,
    /// The feedback that was approved with it.
    pub feedback: String,
}

/// What an export writes, and what is to be known of it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Export {
    /// The file.
    pub bytes: Vec<u8>,
    /// Cells that change in a teacher's own file.
    pub changes: Vec<Change>,
    /// Grades that are in the file, or in this one, those that stand there already included.
    pub grades: usize,
    /// Each of these in a teacher's own file.
    pub filled: Vec<Filled>,
    /// What was approved and is not in it.
    pub left: Vec<Left>,
    /// What the file has a grade for, and is not approved now.
    pub unapproved: Vec<Left>,
    /// Students of the file who handed nothing in.
    pub absent: Vec<String>,
    /// What is not approved, and is not found in the file.
    pub unknown: Vec<Left>,
}

/// What is chosen of a teacher's own file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// The column that takes the grades; without it the one that has the assignment's title.
    pub column: Option<usize>,
    /// Where the file has another maximum, points are written as the same share of it.
    pub scales: bool,
    /// The feedback goes into the file's column for it, too.
    pub with_feedback: bool,
}

/// Why a file cannot be filled in.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Refusal {
    /// It cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// It cannot be written.
    #[error("it cannot be written: {0}")]
    Unwritable(String),
    /// Nobody said which column it is.
    #[error("choose the column that takes the grades")]
    Column,
    /// The maxima differ.
    #[error(
        "“{column}” has {possible} points for full marks and the rubric {max}: make them equal, or let points be written as \
         the same share"
    )]
    Maximum {
        /// The header of the column.
        column: String,
        /// Its points for full marks.
        possible: f64,
        /// Those of the rubric.
        max: Points,
    },
}

/// What can be chosen of a teacher's own file.
#[derive(Debug, Clone, PartialEq)]
pub struct Outline {
    /// What wrote it.
    pub kind: SheetKind,
    /// The columns that take grades.
    pub columns: Vec<GradeColumn>,
    /// The one that has the assignment's title, or the only one.
    pub suggested: Option<usize>,
    /// True if it has a column for feedback.
    pub takes_feedback: bool,
}

/// Looks at a teacher's own file.
///
/// # Errors
/// If it cannot be read.
pub fn outline(bytes: &[u8], title: &str) -> Result<Outline, Refusal> {
    let sheet = Sheet::read(bytes.to_vec()).map_err(Refusal::Unreadable)?;
    Ok(Outline {
        kind: sheet.kind,
        suggested: sheet.column(title).map(|column| column.index),
        takes_feedback: sheet.comments.is_some(),
        columns: sheet.grades,
    })
}

/// Fills the approved grades into a teacher's own file. All other bytes stay as they are.
///
/// # Errors
/// If it cannot be read, or it is not clear which grades it takes.
pub fn fill(bytes: &[u8], title: &str, rows: &[Row], choice: &Choice) -> Result<Export, Refusal> {
    let mut sheet = Sheet::read(bytes.to_vec()).map_err(Refusal::Unreadable)?;
    let column = match choice.column {
        Some(index) => sheet.grades.iter().find(|column| column.index == index),
        None => sheet.column(title),
    };
    let column = column.cloned().ok_or(Refusal::Column)?;
    let max = rows.iter().find_map(|row| Some(row.grade.as_ref()?.max));
    if let (Some(max), Some(possible)) = (max, column.possible)
        && (max.as_f64() - possible).abs() > f64::EPSILON
        && !(choice.scales && possible > 0.0)
    {
        let column = column.title;
        return Err(Refusal::Maximum {
            column,
            possible,
            max,
        });
    }
    let mut export = Export::default();
    let places = places(&sheet, Some(title), rows, &mut export);
    for (place, row) in places {
        let Some(grade) = &rows[row].grade else {
            let cell = sheet.table.cell(place, column.index);
            if number(&cell).is_some() {
                let why = format!("the file has {} there", cell.trim());
                export.unapproved.push(Left { row, why });
            }
            continue;
        };
        let mut fill = Fill {
            sheet: &mut sheet,
            export: &mut export,
            at: (place, row),
        };
        let is_in = fill.grade(grade, &column);
        if is_in {
            let feedback = student::text(grade);
            fill.export.filled.push(Filled {
                place,
                row,
                feedback,
            });
        }
        if choice.with_feedback && is_in {
            fill.feedback(grade);
        }
    }
    export.bytes = sheet.table.finish();
    Ok(export)
}

/// Which row of the file is whose; who is not found without doubt is left out, and who has no submission is named.
///
/// Of a table with several assignments, a student has a row for each: the one of `title` counts, any where there is none.
fn places(
    sheet: &Sheet,
    title: Option<&str>,
    rows: &[Row],
    export: &mut Export,
) -> Vec<(usize, usize)> {
    let students: Vec<(usize, Keys)> = sheet.rows().map(|row| (row, sheet.keys(row))).collect();
    let mut found: Vec<(usize, usize)> = Vec::new();
    // Whose submission may be there, if not which one.
    let mut seen: BTreeSet<usize> = BTreeSet::new();
    for (index, row) in rows.iter().enumerate() {
        for keys in &row.students {
            let same = students.iter().filter(|(_, theirs)| keys.is_same(theirs));
            let same: Vec<&(usize, Keys)> = same.collect();
            seen.extend(same.iter().map(|(place, _)| *place));
            let same = of_assignment(sheet, title, same);
            let is_third = |one: &&(usize, Keys)| {
                same.first()
                    .is_some_and(|(_, found)| keys.contradicts(found, &one.1))
            };
            let why = match same.as_slice() {
                [(place, _)] => match students.iter().find(is_third) {
                    None => {
                        found.push((*place, index));
                        continue;
                    }
                    Some((third, _)) => {
                        seen.insert(*third);
                        "its number is that of one student in the file, its name or address that of another"
                    }
                },
                [] => "the file has no such student",
                [_, ..] => "the file has several students who may be this one",
            };
            export.pass_over(index, row, why);
        }
    }
    let is_one = |place: usize| found.iter().filter(|(other, _)| *other == place).count() == 1;
    for (_, index) in found.iter().filter(|(place, _)| !is_one(*place)) {
        export.pass_over(
            *index,
            &rows[*index],
            "another submission may be of the same student",
        );
    }
    let absent = students.iter().filter(|(place, _)| !seen.contains(place));
    export
        .absent
        .extend(absent.map(|(place, _)| sheet.name(*place)));
    let places = found.clone().into_iter();
    places.filter(|(place, _)| is_one(*place)).collect()
}

/// Of the rows of one student, the one of an assignment; all of them where they are of several students, or none is of it.
fn of_assignment<'a>(
    sheet: &Sheet,
    title: Option<&str>,
    same: Vec<&'a (usize, Keys)>,
) -> Vec<&'a (usize, Keys)> {
    let is_one_student = same.iter().all(|(_, keys)| *keys == same[0].1);
    if same.len() < 2 || !is_one_student || sheet.assignment(same[0].0).is_none() {
        return same;
    }
    let title = title.map(|title| title.trim().to_lowercase());
    let is_of = |one: &&&(usize, Keys)| title.is_none() || sheet.assignment(one.0) == title;
    match same.iter().find(is_of) {
        Some(one) => vec![*one],
        None => same,
    }
}

/// Who of a teacher's own gradebook handed something in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attendance {
    /// What the file calls the students of each submission; none where nobody is found without doubt.
    pub students: Vec<Vec<String>>,
    /// Why nobody is.
    pub doubts: Vec<Option<String>>,
    /// Students of the file who handed nothing in.
    pub absent: Vec<String>,
}

/// Looks for the students of submissions, each by its name and its origin, in a teacher's own gradebook.
///
/// # Errors
/// If it cannot be read.
pub fn attendance(bytes: &[u8], submissions: &[(&str, &Origin)]) -> Result<Attendance, Refusal> {
    let sheet = Sheet::read(bytes.to_vec()).map_err(Refusal::Unreadable)?;
    let row = |(name, origin): &(&str, &Origin)| Row {
        name: (*name).to_owned(),
        state: State::Ungraded,
        grade: None,
        folder: String::new(),
        students: Keys::of_submission(name, origin),
    };
    let rows: Vec<Row> = submissions.iter().map(row).collect();
    let mut export = Export::default();
    let mut students = vec![Vec::new(); rows.len()];
    for (place, index) in places(&sheet, None, &rows, &mut export) {
        students[index].push(sheet.name(place));
    }
    let mut doubts = vec![None; rows.len()];
    for left in export.unknown {
        doubts[left.row] = Some(left.why);
    }
    Ok(Attendance {
        students,
        doubts,
        absent: export.absent,
    })
}

/// Names of the students in a teacher's own gradebook, with the numbers, logins and addresses of each; none if it cannot be
/// read.
pub(crate) fn people(bytes: &[u8]) -> Vec<(String, Vec<String>)> {
    let Ok(sheet) = Sheet::read(bytes.to_vec()) else {
        return Vec::new();
    };
    sheet
        .rows()
        .map(|row| (sheet.name(row), sheet.ids(row)))
        .collect()
}

impl Export {
    /// Says of whom nobody in the file is found.
    fn pass_over(&mut self, index: usize, row: &Row, why: &str) {
        match row.grade {
            Some(_) => _ = self.leave(index, why),
            None => self.unknown.push(Left {
                row: index,
                why: why.to_owned(),
            }),
        }
    }

    /// Leaves a grade out, which is false for whoever asks whether it is in.
    fn leave(&mut self, row: usize, why: &str) -> bool {
        self.left.push(Left {
            row,
            why: why.to_owned(),
        });
        false
    }
}

/// One student's cells.
struct Fill<'a> {
    sheet: &'a mut Sheet,
    export: &'a mut Export,
    /// The row of the file, and that of the submission.
    at: (usize, usize),
}

impl Fill<'_> {
    /// False if the grade is left out.
    fn grade(&mut self, grade: &Grade, column: &GradeColumn) -> bool {
        let (place, row) = self.at;
        let (width, header) = (self.sheet.table.width(place), self.sheet.table.width(0));
        if width != header {
            // A comma without quotes moves all cells behind it.
            let why =
                format!("the student's row in the file has {width} cells, its header {header}");
            return self.export.leave(row, &why);
        }
        let cell = self.sheet.table.cell(place, column.index);
        let lock = self
            .sheet
            .lock
            .map(|lock| self.sheet.table.cell(place, lock));
        match lock.as_deref().map(str::trim) {
            Some(word) if NO.contains(&word) => {
                let why = "the file says that this grade cannot be changed";
                return self.export.leave(row, why);
            }
            Some(word) if !self.sheet.lock_is_known && !YES.contains(&word) => {
                let why =
                    format!("the file has “{word}” there for whether the grade can be changed");
                return self.export.leave(row, &why);
            }
            _ => {}
        }
        let is_free = matches!(cell.trim(), "" | "-") || number(&cell).is_some();
        if !is_free {
            let why = format!("the file has “{}” there", cell.trim());
            return self.export.leave(row, &why);
        }
        let value = match column.possible.filter(|possible| *possible > 0.0) {
            Some(possible) => grade.total.as_f64() * (possible / grade.max.as_f64()),
            None => grade.total.as_f64(),
        };
        if self.sheet.kind == SheetKind::Moodle
            && column.possible.is_some()
            && grade.total > grade.max
        {
            let why = "Moodle takes no grade above the maximum: write it there by hand";
            return self.export.leave(row, why);
        }
        self.export.grades += 1;
        let text = decimals(value, self.sheet.has_comma(column));
        // The same number stays as it is written.
        if number(&cell) != number(&text) {
            self.change((&column.title, false), (column.index, &cell), text);
        }
        true
    }

    fn feedback(&mut self, grade: &Grade) {
        let width = self.sheet.table.width(self.at.0);
        let Some(column) = self.sheet.comments.filter(|column| *column < width) else {
            return;
        };
        let cell = self.sheet.table.cell(self.at.0, column);
        let text = student::body(grade);
        if cell != text {
            let title = self.sheet.table.cell(0, column);
            self.change((&title, true), (column, &cell), text);
        }
    }

    fn change(
        &mut self,
        (title, is_feedback): (&str, bool),
        (column, before): (usize, &str),
        after: String,
    ) {
        let (place, row) = self.at;
        self.export.changes.push(Change {
            row,
            student: self.sheet.name(place),
            column: title.to_owned(),
            before: before.to_owned(),
            after: after.clone(),
            is_feedback,
        });
        self.sheet.table.set(place, column, after);
    }
}

/// Two decimals, as systems write them, and a third one where it counts.
fn decimals(value: f64, has_comma: bool) -> String {
    let text = format!("{value:.3}");
    let text = text.strip_suffix('0').unwrap_or(&text);
    match has_comma {
        true => text.replace('.', ","),
        false => text.to_owned(),
    }
}
