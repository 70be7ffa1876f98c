//! A teacher's own gradebook: which rows are students, how they may be known, and which columns take grades.

use std::collections::BTreeSet;

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
    /// All its cells have one word, which says that it can, in whatever language.
    pub(crate) lock_is_known: bool,
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
        self.kind == SheetKind::Canvas && self.name(row) == "Student, Test"
    }

    /// What a student is called.
    pub(crate) fn name(&self, row: usize) -> String {
        let parts = self
            .names
            .iter()
            .map(|column| self.table.cell(row, *column));
        let parts: Vec<String> = parts.filter(|part| !part.is_empty()).collect();
        if !parts.is_empty() {
            return parts.join(", ");
        }
        // A list may know its students by their ids alone.
        let ids = self
            .ids
            .iter()
            .map(|(column, _)| self.table.cell(row, *column));
        let mut ids = ids.filter(|id| !id.trim().is_empty());
        ids.next().unwrap_or_else(|| self.table.cell(row, 0))
    }

    /// Numbers, logins and addresses of a student, as they stand there.
    pub(crate) fn ids(&self, row: usize) -> Vec<String> {
        let ids = self
            .ids
            .iter()
            .filter(|(_, kind)| *kind != Kind::Participant);
        ids.map(|(column, _)| self.table.cell(row, *column))
            .filter(|cell| !cell.trim().is_empty())
            .collect()
    }

    /// The assignment that a row is of, where a table has those of several.
    pub(crate) fn assignment(&self, row: usize) -> Option<String> {
        let is = |column: &usize| self.table.cell(0, *column).trim().to_lowercase() == "assignment";
        let column = (0..self.table.width(0)).find(is)?;
        Some(self.table.cell(row, column).trim().to_lowercase())
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
        // Where names are hidden, the number is all there is.
        if !self.names.is_empty() {
            keys.add_name_of_row(&self.name(row));
        }
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
            // A worksheet is of one assignment.
            (None, _, [only]) if self.kind == SheetKind::Moodle => Some(only),
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
    let is_graded = header.iter().any(|title| without_id(title).is_some());
    if names.is_empty() || names[0] != 0 || !(is_graded || at("SIS Login ID").is_some()) {
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
        lock_is_known: false,
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
    // Yes or no, in whatever language.
    let words_of = |column: usize| {
        let cells: BTreeSet<String> = cells(column).iter().map(|c| c.trim().to_owned()).collect();
        let is_word =
            |cell: &String| !cell.is_empty() && !cell.contains(|c: char| c.is_ascii_digit());
        (cells.len() <= 2 && cells.iter().all(|cell| is_word(cell) && cell != "-")).then_some(cells)
    };
    let maxima: Vec<(usize, f64)> = (2..header.len())
        .filter_map(|column| Some((column, maximum_of(column)?)))
        .collect();
    // A grade that all have alike is no maximum: behind that stands whether the grade can be changed.
    let is_before_lock = |(column, _): &&(usize, f64)| words_of(column + 1).is_some();
    let (maximum, possible) = *maxima.iter().find(is_before_lock).or(maxima.first())?;
    let index = maximum - 1;
    let lock = words_of(maximum + 1);
    let lock_is_known = lock.as_ref().is_some_and(|words| words.len() == 1);
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
        // Where names are hidden, the status stands right behind the number.
        names: if index > 2 { vec![1] } else { Vec::new() },
        grades: vec![GradeColumn {
            index,
            title: header[index].clone(),
            possible: Some(possible),
        }],
        lock: lock.map(|_| maximum + 1),
        lock_is_known,
        comments: comments.map(|column| column + behind),
        table: table.clone(),
    })
}

/// What Moodle writes where a grade can be changed, and where not.
pub(crate) const YES: &[&str] = &[
    "Yes", "Ja", "Sí", "Oui", "Sì", "Sim", "Tak", "Ano", "Áno", "Kyllä", "Evet", "Да", "Так",
    "Ναι", "Igen", "Da", "是", "はい", "예", "نعم", "כן", "Taip", "Jah", "Jā", "Ya", "Có", "بله",
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
    "Nē",
    "Tidak",
    "Không",
    "خیر",
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
    let named = |words: &[&str]| {
        let is = |cell: &String| words.contains(&cell.trim().to_lowercase().as_str());
        header.iter().position(is)
    };
    // As nbgrader writes it, where all rows have the same.
    let maximum = named(&["max_score"]).and_then(|column| {
        let mut cells = (1..table.len()).map(|row| number(&table.cell(row, column)));
        let first = cells.next()??;
        cells.all(|cell| cell == Some(first)).then_some(first)
    });
    let grades: Vec<GradeColumn> = header
        .iter()
        .enumerate()
        .map(|(index, title)| GradeColumn {
            index,
            title: title.clone(),
            possible: maximum.filter(|_| ["score", "raw_score"].contains(&title.trim())),
        })
        .collect();
    let (whole, last, first) = (named(WHOLE), named(LAST), named(FIRST));
    // A text without a digit in each row may be a part of a name, in a language that is not known here.
    let is_text = |column: usize| {
        let mut cells = (1..table.len()).map(|row| table.cell(row, column));
        cells.all(|cell| {
            !cell.trim().is_empty() && !cell.contains(|c: char| c.is_ascii_digit() || c == '@')
        })
    };
    // Where the first name has a column of its own, the other one has the last.
    let names: Vec<usize> = match (last.or(whole), first, whole) {
        (Some(last), Some(first), _) => vec![last, first],
        (_, _, Some(whole)) => vec![whole],
        _ if is_text(0) && is_text(1) => vec![0, 1],
        _ => vec![0],
    };
    // What is no number, login or address by its header is none.
    let kind_of = |column: usize| {
        let title = header[column].trim().to_lowercase();
        let kinds = [
            (SCHOOL, Kind::School),
            (GITHUB, Kind::Github),
            (LOGIN, Kind::Login),
            (ADDRESS, Kind::Address),
        ];
        let mut of_title = kinds
            .into_iter()
            .filter(|(titles, _)| titles.contains(&title.as_str()));
        of_title.next().map(|(_, kind)| kind)
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
        lock_is_known: false,
        comments: None,
        table,
    }
}

/// Headers, in lower case, of whole names, last names and first ones.
const WHOLE: &[&str] = &["name", "full name", "student", "student name"];
const LAST: &[&str] = &[
    "last name",
    "last_name",
    "lastname",
    "last",
    "surname",
    "family name",
    "family_name",
    "nachname",
    "familienname",
    "nom",
    "nom de famille",
    "cognome",
    "apellido",
    "apellidos",
    "apelido",
    "sobrenome",
    "achternaam",
    "nazwisko",
    "příjmení",
    "фамилия",
];
const FIRST: &[&str] = &[
    "first name",
    "first_name",
    "firstname",
    "first",
    "given name",
    "given_name",
    "vorname",
    "prénom",
    "prenom",
    "nome",
    "nombre",
    "voornaam",
    "imię",
    "jméno",
    "имя",
];

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
    "benutzername",
    "identifier",
    "sis login id",
];
/// The same of logins of GitHub.
const GITHUB: &[&str] = &[
    "github_username",
    "github username",
    "github login",
    "github",
];
/// The same of addresses.
const ADDRESS: &[&str] = &[
    "email",
    "e-mail",
    "mail",
    "email address",
    "e-mail address",
    "email_address",
    "student email",
    "e-mail-adresse",
    "emailadresse",
    "mail-adresse",
    "courriel",
    "adresse e-mail",
    "adresse de courriel",
    "correo",
    "correo electrónico",
    "dirección de correo",
    "indirizzo email",
    "e-mailadres",
];
