//! A teacher's own gradebook: which rows are students, how they may be known, and which columns take grades.

use std::collections::HashSet;

use super::table::Table;
use crate::roster::Names;

/// What a learning system calls its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SheetKind {
    /// Canvas: the exported gradebook.
    Canvas,
    /// Moodle: the grading worksheet of an assignment.
    Moodle,
    /// Another table with a row for each student.
    Other,
}

/// A column that takes grades.
#[derive(Debug, Clone, PartialEq)]
pub struct GradeColumn {
    /// Its place, from 0.
    pub index: usize,
    /// Its header, as it stands.
    pub title: String,
    /// Points for full marks there, if the file says so.
    pub possible: Option<f64>,
}

/// A table of which the columns are known.
#[derive(Debug, Clone)]
pub(crate) struct Sheet {
    pub(crate) table: Table,
    pub(crate) kind: SheetKind,
    /// The first row of a student.
    pub(crate) first: usize,
    /// Columns by which a student is known without doubt.
    pub(crate) ids: Vec<usize>,
    /// Columns of names: whole ones, or the last and the first one.
    pub(crate) names: Vec<usize>,
    pub(crate) grades: Vec<GradeColumn>,
    /// The column that says whether a grade can be changed.
    pub(crate) lock: Option<usize>,
    /// The column of feedback.
    pub(crate) comments: Option<usize>,
    /// A number has a comma where others have a point.
    pub(crate) has_comma: bool,
}

impl Sheet {
    /// # Errors
    /// Says why it is no gradebook.
    pub(crate) fn read(bytes: Vec<u8>) -> Result<Self, String> {
        let table = Table::read(bytes)?;
        if table.len() < 2 || table.width(0) < 2 {
            return Err("it has no rows below a header".to_owned());
        }
        let header = table.row(0);
        let sheet = canvas(&table, &header)
            .or_else(|| moodle(&table, &header))
            .unwrap_or_else(|| other(table, &header));
        Ok(sheet)
    }

    /// Rows of students.
    pub(crate) fn rows(&self) -> impl Iterator<Item = usize> + use<'_> {
        let is_blank = |row: usize| {
            self.table
                .row(row)
                .iter()
                .all(|cell| cell.trim().is_empty())
        };
        (self.first..self.table.len()).filter(move |row| !is_blank(*row) && !self.is_test(*row))
    }

    /// Canvas has a student of its own in each course.
    fn is_test(&self, row: usize) -> bool {
        self.kind == SheetKind::Canvas && self.table.cell(row, 0) == "Student, Test"
    }

    /// What a student is called.
    pub(crate) fn name(&self, row: usize) -> String {
        let parts = self
            .names
            .iter()
            .map(|column| self.table.cell(row, *column));
        let parts: Vec<String> = parts.filter(|part| !part.is_empty()).collect();
        match parts.is_empty() {
            true => self.table.cell(row, 0),
            false => parts.join(", "),
        }
    }

    /// How a student is known.
    pub(crate) fn keys(&self, row: usize) -> Names {
        let mut keys = Names::default();
        for column in &self.ids {
            keys.add_id(&self.table.cell(row, *column));
        }
        keys.add_name(&self.name(row));
        keys
    }

    /// The column that a title means, or the only one.
    pub(crate) fn column(&self, title: &str) -> Option<&GradeColumn> {
        let plain = |text: &str| text.trim().to_lowercase();
        let is_named = |column: &&GradeColumn| {
            let name = without_id(&column.title).map_or(column.title.as_str(), |(name, _)| name);
            plain(name) == plain(title) || plain(&column.title) == plain(title)
        };
        let mut named = self.grades.iter().filter(is_named);
        match (named.next(), named.next(), self.grades.as_slice()) {
            (Some(one), None, _) => Some(one),
            (None, _, [only]) if self.kind != SheetKind::Other => Some(only),
            _ => None,
        }
    }
}

/// Canvas finds a column by the number behind its title.
fn without_id(title: &str) -> Option<(&str, u64)> {
    let (name, id) = title.trim().strip_suffix(')')?.rsplit_once(" (")?;
    Some((name, id.parse().ok()?))
}

/// A number with a point or a comma; what is no number is nothing.
pub(crate) fn number(cell: &str) -> Option<f64> {
    let text = cell.trim();
    let digits = |c: char| c.is_ascii_digit() || matches!(c, '.' | ',' | '-');
    if text.is_empty() || !text.chars().all(digits) {
        return None;
    }
    // What comes last of the two stands before the decimals.
    let plain = match (text.rfind(','), text.rfind('.')) {
        (Some(comma), Some(point)) if comma > point => text.replace('.', "").replace(',', "."),
        (Some(_), Some(_)) => text.replace(',', ""),
        _ => text.replace(',', "."),
    };
    plain.parse().ok()
}

fn has_comma(table: &Table, columns: &[GradeColumn]) -> bool {
    let cells = columns
        .iter()
        .flat_map(|column| (1..table.len()).map(move |row| table.cell(row, column.index)));
    let mut numbers = cells.filter(|cell| number(cell).is_some());
    let first = numbers.find(|cell| cell.contains(['.', ',']));
    first.map_or(table.delimiter() == ';', |cell| {
        cell.rfind(',') > cell.rfind('.')
    })
}

fn canvas(table: &Table, header: &[String]) -> Option<Sheet> {
    let at = |name: &str| header.iter().position(|cell| cell.trim() == name);
    let names: Vec<usize> = match at("Student") {
        Some(student) => vec![student],
        None => [at("LastName"), at("FirstName")]
            .into_iter()
            .flatten()
            .collect(),
    };
    let id = at("ID")?;
    if names.is_empty() || names[0] != 0 {
        return None;
    }
    let ids = ["SIS User ID", "SIS Login ID", "Integration ID"].map(at);
    let ids = [Some(id)].into_iter().chain(ids).flatten().collect();
    // Rows without an id say what holds of the columns.
    let first = (1..table.len()).find(|row| !table.cell(*row, id).trim().is_empty());
    let first = first.unwrap_or(table.len());
    let points = (1..first).find(|row| table.cell(*row, 0).trim() == "Points Possible");
    let points = points.or_else(|| first.checked_sub(1).filter(|row| *row > 0));
    let of_points = |index| points.map(|row| table.cell(row, index)).unwrap_or_default();
    let columns = header.iter().enumerate();
    let columns = columns.filter(|(_, title)| without_id(title).is_some());
    let grades: Vec<GradeColumn> = columns
        .map(|(index, title)| (index, title, of_points(index)))
        .filter(|(_, _, points)| !points.contains("read only"))
        .map(|(index, title, points)| GradeColumn {
            index,
            title: title.clone(),
            possible: number(&points),
        })
        .collect();
    Some(Sheet {
        kind: SheetKind::Canvas,
        first,
        ids,
        names,
        has_comma: has_comma(table, &grades),
        grades,
        lock: None,
        comments: None,
        table: table.clone(),
    })
}

/// Headers are in the language of the site, so columns are known by what stands in them: the first one has a word and a
/// number, and the one behind the grades has the same maximum in each row.
fn moodle(table: &Table, header: &[String]) -> Option<Sheet> {
    let rows = 1..table.len();
    let mut words = rows.clone().map(|row| participant(&table.cell(row, 0)));
    let word = words.next()??.0;
    if !words.all(|found| found.is_some_and(|(found, _)| found == word)) {
        return None;
    }
    let maximum_of = |column: usize| {
        let first = number(&table.cell(1, column)).filter(|most| *most > 0.0)?;
        let mut cells = rows.clone().map(|row| number(&table.cell(row, column)));
        cells.all(|most| most == Some(first)).then_some(first)
    };
    // A grade that all have alike is no maximum: the column behind it is one, too.
    let (maximum, possible) = (3..header.len())
        .filter_map(|column| Some((column, maximum_of(column)?)))
        .next_back()?;
    let index = maximum - 1;
    let is_yes_or_no = |column: usize| {
        let cell = table.cell(1, column);
        YES.contains(&cell.as_str()) || NO.contains(&cell.as_str())
    };
    let lock = (maximum + 1..header.len()).find(|column| is_yes_or_no(*column));
    let is_feedback = |cell: &String| {
        let cell = cell.to_lowercase();
        FEEDBACK.iter().any(|word| cell.contains(word))
    };
    let behind = maximum + 1;
    let comments = header[behind..].iter().position(is_feedback);
    let grades = vec![GradeColumn {
        index,
        title: header[index].clone(),
        possible: Some(possible),
    }];
    let of_maximum = GradeColumn {
        index: maximum,
        ..grades[0].clone()
    };
    Some(Sheet {
        kind: SheetKind::Moodle,
        first: 1,
        ids: vec![0],
        names: vec![1],
        has_comma: has_comma(table, &[of_maximum]),
        grades,
        lock,
        comments: comments.map(|column| column + behind),
        table: table.clone(),
    })
}

/// What Moodle writes where a grade can be changed, and where not.
const YES: &[&str] = &["Yes", "Ja", "Sí", "Oui", "Sì", "Sim"];
pub(crate) const NO: &[&str] = &["No", "Nein", "Non", "Nee", "Não"];
/// Of the headers of the column with the feedback.
const FEEDBACK: &[&str] = &[
    "feedback",
    "comentarios",
    "commentaires",
    "commenti",
    "comentários",
];

/// A word and a number, such as `Participant 12`.
fn participant(cell: &str) -> Option<(String, u64)> {
    let (word, number) = cell.trim().rsplit_once(' ')?;
    let is_word = !word.is_empty() && !word.chars().any(|c| c.is_ascii_digit());
    Some((word.to_owned(), number.parse().ok().filter(|_| is_word)?))
}

/// Any table: who the rows are is seen from all cells, and which column takes the grades is chosen.
fn other(table: Table, header: &[String]) -> Sheet {
    let grades: Vec<GradeColumn> = header
        .iter()
        .enumerate()
        .map(|(index, title)| GradeColumn {
            index,
            title: title.clone(),
            possible: None,
        })
        .collect();
    let named = |words: &[&str]| {
        let is = |cell: &String| words.contains(&cell.trim().to_lowercase().as_str());
        header.iter().position(is)
    };
    let whole = named(&["name", "full name", "student", "student name"]);
    let parts = [
        named(&["last name", "last_name", "lastname", "surname", "nachname"]),
        named(&["first name", "first_name", "firstname", "vorname"]),
    ];
    let names: Vec<usize> = match (parts, whole) {
        ([Some(last), Some(first)], _) => vec![last, first],
        (_, Some(whole)) => vec![whole],
        _ => vec![0],
    };
    // Grades of two students may be alike, what they are known by may not.
    let is_id = |column: &usize| {
        let cells: Vec<String> = (1..table.len())
            .map(|row| table.cell(row, *column))
            .collect();
        let some: Vec<&str> = cells
            .iter()
            .map(|cell| cell.trim())
            .filter(|c| !c.is_empty())
            .collect();
        let different: HashSet<&str> = some.iter().copied().collect();
        let is_grade = |cell: &&str| cell.len() < 4 && number(cell).is_some();
        !some.is_empty() && different.len() == some.len() && !some.iter().all(is_grade)
    };
    Sheet {
        kind: SheetKind::Other,
        first: 1,
        ids: (0..header.len())
            .filter(|column| !names.contains(column))
            .filter(is_id)
            .collect(),
        names,
        has_comma: has_comma(&table, &grades),
        grades,
        lock: None,
        comments: None,
        table,
    }
}
