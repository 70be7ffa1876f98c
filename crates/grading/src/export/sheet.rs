//! A teacher's own gradebook: which rows are students, how they may be known, and which columns take grades.

use super::table::Table;
use crate::roster::{Keys, Kind};

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
    pub(crate) ids: Vec<(usize, Kind)>,
    /// Columns of names: whole ones, or the last and the first one.
    pub(crate) names: Vec<usize>,
    pub(crate) grades: Vec<GradeColumn>,
    /// The column that says whether a grade can be changed.
    pub(crate) lock: Option<usize>,
    /// The column of feedback.
    pub(crate) comments: Option<usize>,
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
    pub(crate) fn keys(&self, row: usize) -> Keys {
        let mut keys = Keys::default();
        for (column, kind) in &self.ids {
            let cell = self.table.cell(row, *column);
            // Moodle writes a word before its numbers.
            let number = cell
                .rsplit_once(' ')
                .map_or(cell.as_str(), |(_, number)| number);
            let is_participant = *kind == Kind::Participant;
            keys.add(*kind, if is_participant { number } else { &cell });
        }
        keys.add(Kind::Name, &self.name(row));
        keys
    }

    /// True if a number of a column has a comma where others have a point: as the column has it, else its neighbour with
    /// the maximum, else as files with semicolons do.
    pub(crate) fn has_comma(&self, column: &GradeColumn) -> bool {
        let cells =
            |index: usize| (1..self.table.len()).map(move |row| self.table.cell(row, index));
        let of_maximum = match self.kind {
            SheetKind::Moodle => Some(column.index + 1),
            _ => None,
        };
        let mut all = cells(column.index).chain(of_maximum.into_iter().flat_map(cells));
        let is_telling = |cell: &String| {
            number(cell).is_some() && !is_of_thousands(cell) && cell.contains(['.', ','])
        };
        all.find(is_telling)
            .map_or(self.table.delimiter() == ';', |cell| {
                cell.rfind(',') > cell.rfind('.')
            })
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
    if is_of_thousands(text) {
        return text.replace(',', "").parse().ok();
    }
    // What comes last of the two stands before the decimals.
    let plain = match (text.rfind(','), text.rfind('.')) {
        (Some(comma), Some(point)) if comma > point => text.replace('.', "").replace(',', "."),
        (Some(_), Some(_)) => text.replace(',', ""),
        _ => text.replace(',', "."),
    };
    plain.parse().ok()
}

/// `1,000`: commas before each three digits, and no others.
fn is_of_thousands(text: &str) -> bool {
    let mut parts = text.trim().split(',');
    let is_digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let first = parts.next().unwrap_or_default();
    let mut rest = parts.peekable();
    rest.peek().is_some()
        && matches!(first.len(), 1..=3)
        && first != "0"
        && is_digits(first)
        && rest.all(|part| part.len() == 3 && is_digits(part))
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
    let known = [
        ("SIS User ID", Kind::School),
        ("SIS Login ID", Kind::Login),
        ("Integration ID", Kind::School),
    ];
    let known = known
        .into_iter()
        .filter_map(|(name, kind)| Some((at(name)?, kind)));
    let ids = std::iter::once((id, Kind::Canvas)).chain(known).collect();
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
        grades,
        lock: None,
        comments: None,
        table: table.clone(),
    })
}

/// Headers are in the language of the site, so columns are known by what stands in them: the first one has a word and a
/// number, and the one behind the grades has the same maximum in each row.
fn moodle(table: &Table, header: &[String]) -> Option<Sheet> {
    let is_blank = |row: &usize| table.row(*row).iter().all(|cell| cell.trim().is_empty());
    let rows: Vec<usize> = (1..table.len()).filter(|row| !is_blank(row)).collect();
    let first = *rows.first()?;
    let mut words = rows.iter().map(|row| participant(&table.cell(*row, 0)));
    let word = words.next()??.0;
    if !words.all(|found| found.is_some_and(|(found, _)| found == word)) {
        return None;
    }
    let cells = |column: usize| {
        let cells = rows.iter().map(|row| table.cell(*row, column));
        cells.collect::<Vec<String>>()
    };
    let maximum_of = |column: usize| {
        let most = number(&table.cell(first, column)).filter(|most| *most > 0.0)?;
        let is_same = cells(column).iter().all(|cell| number(cell) == Some(most));
        // Before it stand grades, or nothing yet.
        let is_grade = |cell: &String| matches!(cell.trim(), "" | "-") || number(cell).is_some();
        (is_same && cells(column - 1).iter().all(is_grade)).then_some(most)
    };
    // A grade that all have alike is no maximum: the column behind it is one, too.
    let (maximum, possible) = (3..header.len())
        .filter_map(|column| Some((column, maximum_of(column)?)))
        .next_back()?;
    let index = maximum - 1;
    let is_word = |cell: &String| YES.contains(&cell.trim()) || NO.contains(&cell.trim());
    let lock = (maximum + 1..header.len()).find(|column| cells(*column).iter().all(is_word));
    let is_feedback = |cell: &String| {
        let cell = cell.to_lowercase();
        FEEDBACK.iter().any(|word| cell.contains(word))
    };
    let behind = maximum + 1;
    let comments = header[behind..].iter().position(is_feedback);
    let has_sign = |column: &usize| cells(*column).iter().any(|cell| cell.contains('@'));
    let addresses = (2..index)
        .find(has_sign)
        .map(|column| (column, Kind::Address));
    let participants = std::iter::once((0, Kind::Participant));
    Some(Sheet {
        kind: SheetKind::Moodle,
        first: 1,
        ids: participants.chain(addresses).collect(),
        names: vec![1],
        grades: vec![GradeColumn {
            index,
            title: header[index].clone(),
            possible: Some(possible),
        }],
        lock,
        comments: comments.map(|column| column + behind),
        table: table.clone(),
    })
}

/// What Moodle writes where a grade can be changed, and where not.
const YES: &[&str] = &[
    "Yes", "Ja", "Sí", "Oui", "Sì", "Sim", "Tak", "Ano", "Áno", "Kyllä", "Evet", "Да", "Так",
    "Ναι", "Igen", "Da", "是", "はい", "예", "نعم", "כן",
];
pub(crate) const NO: &[&str] = &[
    "No",
    "Nein",
    "Non",
    "Nee",
    "Não",
    "Nie",
    "Ne",
    "Ei",
    "Hayır",
    "Нет",
    "Ні",
    "Όχι",
    "Nem",
    "Nu",
    "Nej",
    "Nei",
    "否",
    "いいえ",
    "아니오",
    "لا",
    "לא",
];
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
    let last = named(&["last name", "last_name", "lastname", "surname", "nachname"]);
    let first = named(&["first name", "first_name", "firstname", "vorname"]);
    // Where the first name has a column of its own, the other one has the last.
    let names: Vec<usize> = match (last.or(whole), first, whole) {
        (Some(last), Some(first), _) => vec![last, first],
        (_, _, Some(whole)) => vec![whole],
        _ => vec![0],
    };
    // What is no number, login or address by its header or its sign is none.
    let kind_of = |column: usize| {
        let title = header[column].trim().to_lowercase();
        let has_sign = (1..table.len()).any(|row| table.cell(row, column).contains('@'));
        match (
            has_sign,
            SCHOOL.contains(&title.as_str()),
            LOGIN.contains(&title.as_str()),
        ) {
            (true, _, _) => Some(Kind::Address),
            (_, true, _) => Some(Kind::School),
            (_, _, true) => Some(Kind::Login),
            _ => None,
        }
    };
    let ids = (0..header.len()).filter_map(|column| Some((column, kind_of(column)?)));
    let ids = ids.collect();
    Sheet {
        kind: SheetKind::Other,
        first: 1,
        ids,
        names,
        grades,
        lock: None,
        comments: None,
        table,
    }
}

/// Headers, in lower case, of the school's own numbers.
const SCHOOL: &[&str] = &[
    "id",
    "sid",
    "student id",
    "student_id",
    "sis id",
    "sis user id",
    "matrikel",
    "matrikelnummer",
    "number",
];
/// The same of logins.
const LOGIN: &[&str] = &[
    "login",
    "username",
    "user name",
    "user",
    "github_username",
    "benutzername",
    "sis login id",
];
