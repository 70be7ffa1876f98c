//! What learning systems put into the names of what they hand out: who handed it in, and when.
//!
//! [`group`] takes the entries of a course and gives one for each student, however many files and folders a system made of
//! them. A system is known by all names together: where most have its form, the others stand by themselves; else the course
//! is a plain one, in which each entry is a student's.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use crate::archive::Budget;
use crate::limits::{MAX_RUBRIC_BYTES, MAX_SOURCE_BYTES};
use crate::rubric::Rubric;
use crate::source::is_litter;
use crate::tree::{Entry, Place, Shape, stem};

/// What wrote the names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum System {
    /// Nothing that is known: a file or a folder for each student.
    #[default]
    Plain,
    /// Canvas: files with numbers of student and upload.
    Canvas,
    /// Moodle: folders or files with the number of a participant.
    Moodle,
    /// Gradescope: folders by number, and a file that says whose they are.
    Gradescope,
    /// nbgrader: a folder for each student in one called `submitted`.
    Nbgrader,
    /// Submitty: a folder for each attempt.
    Submitty,
    /// GitHub Classroom: repositories that begin with the assignment's name.
    Classroom,
}

impl System {
    /// For a person.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Plain => "files and folders",
            Self::Canvas => "Canvas",
            Self::Moodle => "Moodle",
            Self::Gradescope => "Gradescope",
            Self::Nbgrader => "nbgrader",
            Self::Submitty => "Submitty",
            Self::Classroom => "GitHub Classroom",
        }
    }
}

/// Somebody who handed something in, as a system knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Student {
    /// The name, as far as it is known.
    pub name: String,
    /// Numbers, logins and addresses.
    pub ids: Vec<String>,
}

/// Where a submission comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// What wrote its names.
    pub system: System,
    /// Whose it is: several of a group, none where only its name tells.
    pub students: Vec<Student>,
    /// The name under which the system gave it out, which it wants back.
    pub folder: String,
    /// It was handed in late.
    pub is_late: bool,
}

impl Origin {
    /// By what a system knows whose it is, if it does: the same whenever something is handed in again.
    #[must_use]
    pub fn key(&self) -> Option<String> {
        let ids: Option<Vec<&str>> = self
            .students
            .iter()
            .map(|student| student.ids.first().map(String::as_str))
            .collect();
        let mut ids = ids.filter(|ids| !ids.is_empty())?;
        ids.sort_unstable();
        Some(format!("{}: {}", self.system.as_str(), ids.join(", ")))
    }
}

/// One student's entry.
pub(crate) struct Found {
    pub(crate) entry: Entry,
    pub(crate) origin: Origin,
}

impl Found {
    /// By what a system knows its only student.
    pub(crate) fn number(&self) -> Option<&str> {
        match self.origin.students.as_slice() {
            [one] => one.ids.first().map(String::as_str),
            _ => None,
        }
    }
}

/// A part of what a student handed in: its owner, and its name without that.
struct Part {
    /// What all parts of a student have alike.
    key: String,
    origin: Origin,
    /// What the student called it; nothing for a folder whose content is theirs.
    file: Option<String>,
    /// The number of the upload, which no other one has.
    upload: Option<String>,
}

/// One entry for each student of a course. Its folder, where it has one, has the name of the container.
///
/// # Errors
/// A list of whose the entries are that cannot be read, or a course of several assignments.
pub(crate) fn group(
    entries: Vec<Entry>,
    container: &str,
    rubric: Option<&Rubric>,
    budget: &Budget,
) -> Result<Vec<Found>, String> {
    if let Some(found) = gradescope(&entries, budget)? {
        return Ok(found);
    }
    if let Some(parts) = parts(&entries) {
        return Ok(together(entries, parts, budget));
    }
    if (container == SUBMITTED || is_tree(&entries, rubric, budget))
        && let Some(found) = nbgrader(&entries, rubric, budget)?
    {
        return Ok(found);
    }
    // `gh classroom clone` names the folder after the assignment.
    if let Some(slug) = container
        .strip_suffix("submissions")
        .filter(|slug| slug.len() > 1)
    {
        let is_of = |entry: &Entry| entry.name.len() > slug.len() && entry.name.starts_with(slug);
        if is_most(
            entries.iter().filter(|entry| is_of(entry)).count(),
            entries.len(),
        ) {
            let one = |entry: Entry| match is_of(&entry) {
                true => classroom(entry, slug),
                false => plain(entry),
            };
            return Ok(entries.into_iter().map(one).collect());
        }
    }
    let alone = entries.into_iter().map(|entry| alone(entry, budget));
    Ok(alone.collect())
}

/// True if so many names have the form of a system that the others are no students of it, but something beside them.
const fn is_most(count: usize, of: usize) -> bool {
    count > 0 && count * 10 >= of * 8
}

/// True if entries have the names of Canvas or Moodle.
pub(crate) fn has_names_of_system(entries: &[Entry]) -> bool {
    parts(entries).is_some()
}

/// Whose each entry is, where Canvas or Moodle gave the names.
fn parts(entries: &[Entry]) -> Option<Vec<Option<Part>>> {
    // What Moodle writes into each name stands nowhere else.
    let of_moodle: Vec<Option<Part>> = entries.iter().map(moodle).collect();
    if is_most(of_moodle.iter().flatten().count(), entries.len()) {
        return Some(named_by_number(of_moodle));
    }
    let of_canvas: Vec<Option<Part>> = entries.iter().map(canvas).collect();
    is_of_canvas(&of_canvas).then_some(of_canvas)
}

/// Where all participants have one name, such as `Participant` where names are hidden, the number belongs to it.
fn named_by_number(mut parts: Vec<Option<Part>>) -> Vec<Option<Part>> {
    let mut students: Vec<(&mut Student, &str)> = parts
        .iter_mut()
        .flatten()
        .flat_map(|part| {
            part.origin
                .students
                .iter_mut()
                .map(|one| (one, part.key.as_str()))
        })
        .collect();
    let names: BTreeSet<String> = students.iter().map(|(one, _)| one.name.clone()).collect();
    let keys: BTreeSet<&str> = students.iter().map(|(_, key)| *key).collect();
    if names.len() == 1 && keys.len() > 1 {
        for (student, _) in &mut students {
            if let Some(number) = student.ids.first() {
                student.name = format!("{} {number}", student.name);
            }
        }
    }
    parts
}

/// A course whose own names look alike, such as `exam_2026_5_anna.py`, would make one student of a class. So the numbers must
/// be those of Canvas: of more than one student, with a name for each; and an upload that several have, as the members of a
/// group do, is the same file.
fn is_of_canvas(parts: &[Option<Part>]) -> bool {
    let known: Vec<&Part> = parts.iter().flatten().collect();
    let keys: BTreeSet<&str> = known.iter().map(|part| part.key.as_str()).collect();
    let names: BTreeSet<(&str, &str)> = known
        .iter()
        .flat_map(|part| {
            part.origin
                .students
                .iter()
                .map(|one| (part.key.as_str(), one.name.as_str()))
        })
        .collect();
    let mut files: BTreeMap<&str, BTreeSet<(&str, Option<&str>)>> = BTreeMap::new();
    for part in &known {
        if let Some(upload) = &part.upload {
            let of_upload = files.entry(upload).or_default();
            of_upload.insert((part.key.as_str(), part.file.as_deref()));
        }
    }
    let is_one_file = |of_upload: &BTreeSet<(&str, Option<&str>)>| {
        let keys: BTreeSet<&str> = of_upload.iter().map(|(key, _)| *key).collect();
        let files: BTreeSet<Option<&str>> = of_upload.iter().map(|(_, file)| *file).collect();
        keys.len() == 1 || files.len() == 1
    };
    let is_sure = match keys.len() {
        1 => {
            // Two files of one student differ in their names; those of a class are often called the same.
            let names: BTreeSet<Option<&str>> = known.iter().map(|p| p.file.as_deref()).collect();
            known.len() == parts.len()
                && names.len() == known.len()
                && known.iter().all(|part| part.is_sure())
        }
        // A year is no upload of a whole class.
        _ => files.len() != 1 && files.values().all(is_one_file),
    };
    is_most(known.len(), parts.len())
        // One key has one name; a name may be that of several.
        && names.len() == keys.len()
        && is_sure
}

impl Part {
    /// Whether its numbers are those of Canvas also where no other one is beside it: no year, and no count of a task.
    fn is_sure(&self) -> bool {
        let is_year =
            self.key.len() == 4 && (self.key.starts_with("19") || self.key.starts_with("20"));
        match &self.upload {
            Some(upload) => self.key.starts_with("anon_") || (!is_year && upload.len() >= 4),
            None => true,
        }
    }
}

/// Parts of one student as files of one folder; what has no owner stays by itself.
fn together(entries: Vec<Entry>, parts: Vec<Option<Part>>, budget: &Budget) -> Vec<Found> {
    let mut odd = Vec::new();
    let mut students: BTreeMap<String, (Origin, Vec<Entry>)> = BTreeMap::new();
    for (entry, part) in entries.into_iter().zip(parts) {
        let Some(part) = part else {
            odd.push(plain(entry));
            continue;
        };
        let (origin, files) = students
            .entry(part.key)
            .or_insert_with(|| (part.origin.clone(), Vec::new()));
        origin.is_late |= part.origin.is_late;
        match part.file {
            Some(name) => files.push(Entry { name, ..entry }),
            // A folder that cannot be read is its owner's problem alone.
            None => match entry.entries(budget) {
                Ok(inside) => {
                    if part.origin.folder.contains("_assignsubmission_file") {
                        origin.folder.clone_from(&part.origin.folder);
                    }
                    files.extend(inside);
                }
                Err(_) => files.push(entry),
            },
        }
    }
    let found = students.into_values().map(|(origin, files)| Found {
        entry: Entry {
            name: origin
                .students
                .first()
                .map_or_else(String::new, |one| one.name.clone()),
            place: Place::Folder(Rc::new(numbered(files))),
            note: None,
        },
        origin,
    });
    odd.into_iter().chain(found).collect()
}

/// An entry of which no system is known.
fn plain(entry: Entry) -> Found {
    let origin = Origin {
        folder: entry.name.clone(),
        ..Origin::default()
    };
    Found { entry, origin }
}

/// Files of which no two have one name.
fn numbered(mut files: Vec<Entry>) -> Vec<Entry> {
    files.sort_by(|a, b| a.name.cmp(&b.name));
    let mut taken = std::collections::HashSet::new();
    for file in &mut files {
        let plain = file.name.clone();
        let (stem, extension) = plain.rsplit_once('.').unwrap_or((&plain, ""));
        let mut number = 1;
        while !taken.insert(file.name.clone()) {
            number += 1;
            file.name = match extension {
                "" => format!("{stem} ({number})"),
                extension => format!("{stem} ({number}).{extension}"),
            };
        }
    }
    files
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// A number that counts all of its kind, as those of Canvas do: it begins with no 0.
fn is_id(text: &str) -> bool {
    is_number(text) && !text.starts_with('0')
}

/// `name[_LATE]_student_upload_file`, `[LATE_]anon_letters_upload_file`; of a text or a link `…_student_text.html`. Source:
/// Canvas, `lib/content_zipper.rb`; like there, the first two numbers count.
fn canvas(entry: &Entry) -> Option<Part> {
    match entry.shape() {
        Shape::Folder => None,
        _ => canvas_name(&entry.name),
    }
}

fn canvas_name(name: &str) -> Option<Part> {
    let tokens: Vec<&str> = name.split('_').collect();
    let is_text = |token: &str| matches!(token, "text.html" | "link.html");
    let (late, rest) = match tokens.as_slice() {
        ["LATE", rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let (id, late, name, upload, file) = match rest {
        ["anon", id, last] if is_text(last) => {
            (format!("anon_{id}"), late, String::new(), None, vec![*last])
        }
        ["anon", id, upload, file @ ..] if is_number(upload) && !file.is_empty() => {
            let upload = Some((*upload).to_owned());
            (
                format!("anon_{id}"),
                late,
                String::new(),
                upload,
                file.to_vec(),
            )
        }
        rest => {
            let is_start = |w: &[&str]| is_id(w[0]) && (is_id(w[1]) || is_text(w[1]));
            let at = rest.windows(2).position(is_start)?;
            let (before, is_late) = match &rest[..at] {
                [before @ .., "LATE"] => (before, true),
                before => (before, false),
            };
            let (upload, file) = match is_text(rest[at + 1]) {
                true if rest.len() == at + 2 => (None, &rest[at + 1..]),
                true => return None,
                false => (Some(rest[at + 1].to_owned()), &rest[at + 2..]),
            };
            if before.is_empty() || file.is_empty() {
                return None;
            }
            (
                rest[at].to_owned(),
                is_late,
                before.join("_"),
                upload,
                file.to_vec(),
            )
        }
    };
    let name = if name.is_empty() { id.clone() } else { name };
    let origin = Origin {
        system: System::Canvas,
        students: vec![Student {
            name,
            ids: vec![id.clone()],
        }],
        folder: String::new(),
        is_late: late,
    };
    Some(Part {
        key: id,
        origin,
        file: Some(file.join("_")),
        upload,
    })
}

/// `name_number_assignsubmission_file`, as a folder or before a file's name. Source: Moodle,
/// `mod/assign/classes/downloader.php`.
fn moodle(entry: &Entry) -> Option<Part> {
    moodle_name(&entry.name, entry.is_folder())
}

fn moodle_name(entry: &str, is_folder: bool) -> Option<Part> {
    let (owner, rest) = entry.split_once("_assignsubmission_")?;
    let (name, number) = match owner.rsplit_once('_').filter(|(_, n)| is_number(n)) {
        Some((name, number)) => (name, Some(number)),
        // A group by default has no number.
        None => (owner, None),
    };
    let (plugin, file) = rest.split_once('_').unwrap_or((rest, ""));
    if !matches!(plugin, "file" | "onlinetext") || name.is_empty() {
        return None;
    }
    let is_folder = is_folder && (file.is_empty() || !file.contains('.'));
    if !is_folder && file.is_empty() {
        return None;
    }
    let origin = Origin {
        system: System::Moodle,
        students: vec![Student {
            name: name.to_owned(),
            ids: number.into_iter().map(str::to_owned).collect(),
        }],
        // Feedback goes back into folders of this name, also where they were left out.
        folder: match is_folder {
            true => entry.to_owned(),
            false => format!("{owner}_assignsubmission_file"),
        },
        is_late: false,
    };
    Some(Part {
        key: owner.to_owned(),
        origin,
        file: (!is_folder).then(|| file.to_owned()),
        upload: None,
    })
}

/// What a name that an earlier version kept says of its owner: a file of Canvas, or a folder or file of Moodle.
pub(crate) fn of_name(name: &str) -> Option<(System, Student)> {
    let part = moodle_name(name, true).or_else(|| canvas_name(name).filter(Part::is_sure))?;
    let student = part.origin.students.into_iter().next()?;
    Some((part.origin.system, student))
}

/// The key of what an earlier version kept under a name, if a system gave that.
#[must_use]
pub fn key_of_name(name: &str) -> Option<String> {
    let (system, student) = of_name(name)?;
    let origin = Origin {
        system,
        students: vec![student],
        ..Origin::default()
    };
    origin.key()
}

/// Of Gradescope's list, the parts that are needed here. The keys are symbols of Ruby.
#[derive(Deserialize)]
struct Submitted {
    #[serde(rename = ":submitters", default)]
    submitters: Vec<Submitter>,
}

#[derive(Deserialize)]
struct Submitter {
    #[serde(rename = ":name", default)]
    name: Option<String>,
    #[serde(rename = ":sid", default)]
    sid: Option<String>,
    #[serde(rename = ":email", default)]
    email: Option<String>,
}

const METADATA: &str = "submission_metadata.yml";
/// What its folders begin with.
const SUBMISSION: &str = "submission_";
/// Most entries of the list.
const MAX_LIST_NODES: usize = 4_000_000;

/// Folders by number, beside a list that says whose they are; nothing if there is no such list.
fn gradescope(entries: &[Entry], budget: &Budget) -> Result<Option<Vec<Found>>, String> {
    let is_named = |entry: &&Entry| entry.name.starts_with(SUBMISSION);
    let folders = entries.iter().filter(is_named).count();
    // A student may have a file of that name.
    let list = entries.iter().find(|entry| entry.name == METADATA);
    let Some(list) = list.filter(|_| folders > 0) else {
        return Ok(None);
    };
    let text = list.read(MAX_LIST_BYTES, budget)?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let mut options = serde_saphyr::Options::default();
    if let Some(budget) = options.budget.as_mut() {
        // Each submission has its history and its results there.
        budget.max_nodes = MAX_LIST_NODES;
        budget.max_events = MAX_LIST_NODES;
    }
    let known: BTreeMap<String, Submitted> = serde_saphyr::from_str_with_options(&text, options)
        .map_err(|error| format!("{METADATA} cannot be read: {error}"))?;
    let found = entries
        .iter()
        .filter(|entry| entry.name != METADATA)
        .map(|entry| {
            let submitters = known
                .get(&stem(&entry.name))
                .or_else(|| known.get(&entry.name));
            let submitters = submitters.map_or(&[][..], |one| &one.submitters);
            let students: Vec<Student> = submitters.iter().map(student).collect();
            let names: Vec<&str> = students.iter().map(|one| one.name.as_str()).collect();
            let name = match names.is_empty() {
                true => entry.name.clone(),
                false => names.join(", "),
            };
            let origin = Origin {
                system: System::Gradescope,
                students,
                folder: entry.name.clone(),
                is_late: false,
            };
            let entry = Entry {
                name,
                ..entry.clone()
            };
            Found { entry, origin }
        });
    Ok(Some(found.collect()))
}

fn student(submitter: &Submitter) -> Student {
    let ids = [&submitter.sid, &submitter.email];
    let ids: Vec<String> = ids
        .into_iter()
        .flatten()
        .filter(|id| !id.is_empty())
        .cloned()
        .collect();
    let name = submitter.name.clone().filter(|name| !name.is_empty());
    Student {
        name: name.or_else(|| ids.first().cloned()).unwrap_or_default(),
        ids,
    }
}

/// The folder of nbgrader's tree that has what students handed in.
pub(crate) const SUBMITTED: &str = "submitted";
/// The others of it, and what else lies there.
pub(crate) const NBGRADER: &[&str] = &[
    "source",
    "downloaded",
    "release",
    "autograded",
    "feedback",
    "exchange",
    "gradebook.db",
    "nbgrader_config.py",
];

/// Whether folders are students of nbgrader also where the one that they are in is called otherwise: most of them have one that
/// is called as the rubric, with a notebook in it.
fn is_tree(entries: &[Entry], rubric: Option<&Rubric>, budget: &Budget) -> bool {
    let Some(rubric) = rubric else {
        return false;
    };
    let is_student = |entry: &&Entry| {
        let inside = match entry.shape() {
            Shape::Folder => entry.entries(budget).unwrap_or_default(),
            _ => Vec::new(),
        };
        let mut meant = inside.iter().filter(|one| rubric.is_called(&one.name));
        meant.any(|one| one.shape() == Shape::Folder && has_notebook(one, budget))
    };
    let count = entries.iter().filter(is_student).count();
    count > 1 && count * 2 > entries.len()
}

/// A folder for each student, and in it one for each assignment, of which one is meant; nothing if they are something else.
/// What else lies there stands by itself.
fn nbgrader(
    entries: &[Entry],
    rubric: Option<&Rubric>,
    budget: &Budget,
) -> Result<Option<Vec<Found>>, String> {
    let (mut found, mut students, mut has_loose) = (Vec::new(), Vec::new(), false);
    // How many students have each assignment.
    let mut assignments: BTreeMap<String, usize> = BTreeMap::new();
    for entry in entries {
        let inside = match entry.shape() {
            Shape::Folder => entry.entries(budget).unwrap_or_default(),
            _ => {
                found.push(plain(entry.clone()));
                continue;
            }
        };
        let inside = inside.into_iter().filter(|one| !is_litter(&one.name));
        let (folders, files): (Vec<Entry>, Vec<Entry>) =
            inside.partition(|one| one.shape() == Shape::Folder);
        has_loose |= folders.is_empty() && !files.is_empty();
        for folder in &folders {
            *assignments.entry(folder.name.clone()).or_default() += 1;
        }
        students.push((entry, folders, files));
    }
    // Who put files beside the folders of assignments is a student, too; projects may have both.
    let all_folders = students.iter().flat_map(|(_, folders, _)| folders);
    if has_loose && !all_folders.into_iter().any(|one| has_notebook(one, budget)) {
        return Ok(None);
    }
    let is_shared = assignments.values().any(|students| *students > 1);
    let is_meant = |(name, count): &(&String, &usize)| {
        // One student's folder does not decide for a class.
        rubric.is_some_and(|rubric| rubric.is_called(name)) && (**count > 1 || !is_shared)
    };
    let mut meant = assignments.iter().filter(is_meant).map(|(name, _)| name);
    let assignment = match (assignments.len(), meant.next(), meant.next()) {
        (0, ..) => return Ok(None),
        (1, ..) => assignments.keys().next().cloned(),
        (_, Some(one), None) => Some(one.clone()),
        // Each student has folders of their own: a course of another kind.
        _ if !is_shared => return Ok(None),
        _ => None,
    };
    let Some(assignment) = assignment else {
        let names: Vec<String> = assignments.into_keys().collect();
        return Err(format!(
            "it has several assignments: {}; give the rubric the title of one, or give the folders of one, such as \
             {SUBMITTED}/*/{}",
            names.join(", "),
            names[0]
        ));
    };
    for (entry, folders, files) in students {
        let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        let note = (!names.is_empty())
            .then(|| format!("not read, as it is in no assignment: {}", names.join(", ")));
        let folder = folders.into_iter().find(|one| one.name == assignment);
        let nothing = || Place::Problem("nothing was handed in".to_owned());
        found.push(Found {
            entry: Entry {
                name: entry.name.clone(),
                place: folder.map_or_else(nothing, |one| one.place),
                note,
            },
            origin: known_by_name(System::Nbgrader, &entry.name),
        });
    }
    Ok(Some(found))
}

/// Whether it has what an assignment of nbgrader has.
pub(crate) fn has_notebook(folder: &Entry, budget: &Budget) -> bool {
    let inside = folder.entries(budget).unwrap_or_default();
    let is_its = |one: &Entry| one.name.ends_with(".ipynb") || one.name == TIME;
    inside.iter().any(is_its)
}

/// What nbgrader writes beside a notebook that was handed in.
const TIME: &str = "timestamp.txt";

/// Of a student whose folder has the name by which a system knows them.
fn known_by_name(system: System, name: &str) -> Origin {
    Origin {
        system,
        students: vec![Student {
            name: name.to_owned(),
            ids: vec![name.to_owned()],
        }],
        folder: name.to_owned(),
        is_late: false,
    }
}

fn classroom(entry: Entry, slug: &str) -> Found {
    let login = entry
        .name
        .strip_prefix(slug)
        .unwrap_or(&entry.name)
        .to_owned();
    let origin = Origin {
        system: System::Classroom,
        students: vec![Student {
            name: login.clone(),
            ids: vec![login.clone()],
        }],
        folder: entry.name.clone(),
        is_late: false,
    };
    let entry = Entry {
        name: login,
        ..entry
    };
    Found { entry, origin }
}

/// What Submitty writes beside the attempts of a student.
#[derive(Deserialize)]
struct Settings {
    active_version: u64,
}

const SETTINGS: &str = "user_assignment_settings.json";

/// An entry that is a student's by itself; of several attempts, the one that counts. What cannot be told is its owner's
/// problem alone.
fn alone(entry: Entry, budget: &Budget) -> Found {
    let inside = match entry.shape() {
        Shape::Folder => entry.entries(budget).unwrap_or_default(),
        _ => Vec::new(),
    };
    let is_attempt = |one: &Entry| is_number(&one.name) && one.is_folder();
    let settings = inside.iter().find(|one| one.name == SETTINGS);
    let is_submitty = inside.iter().any(is_attempt) || inside.len() == 1;
    let Some(settings) = settings.filter(|_| is_submitty) else {
        return plain(entry);
    };
    let text = settings.read(MAX_RUBRIC_BYTES, budget);
    let settings = text.and_then(|text| {
        let settings = serde_json::from_slice::<Settings>(&text);
        settings.map_err(|error| format!("{SETTINGS} cannot be read: {error}"))
    });
    let place = match settings {
        // Nothing, or taken back.
        Ok(Settings { active_version: 0 }) => Place::Problem("nothing was handed in".to_owned()),
        Ok(Settings { active_version }) => {
            let active = active_version.to_string();
            let attempt = inside.into_iter().find(|one| one.name == active);
            let missing =
                || Place::Problem(format!("attempt {active}, which counts, is not there"));
            attempt.map_or_else(missing, |attempt| attempt.place)
        }
        Err(problem) => Place::Problem(problem),
    };
    let origin = known_by_name(System::Submitty, &entry.name);
    Found {
        entry: Entry { place, ..entry },
        origin,
    }
}

/// Most bytes of a list of who handed in what.
const MAX_LIST_BYTES: u64 = 16 * MAX_SOURCE_BYTES;
