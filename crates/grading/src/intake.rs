//! Which entries of folders and archives are submissions: each file and each folder of a course is one, and a student's
//! project is one, however it was packed.

use crate::archive::Budget;
use crate::error::GradingError;
use crate::limits;
use crate::origin::{Found, NBGRADER, SUBMITTED, group, has_names_of_system, has_notebook};
use crate::rubric::Rubric;
use crate::source::{is_litter, kind_of};
use crate::tree::{Entry, Place, Shape, is_archive, stem};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Names of folders that a project has, in lower case: where there are no others, they are no students.
const PROJECT_FOLDERS: &[&str] = &[
    "app",
    "assets",
    "bin",
    "css",
    "data",
    "doc",
    "docs",
    "include",
    "js",
    "lib",
    "main",
    "res",
    "resources",
    "src",
    "static",
    "templates",
    "test",
    "tests",
];

/// Names of files of a project, without extensions and in lower case.
const PROJECT_FILES: &[&str] = &[
    "__init__", "app", "helper", "helpers", "index", "main", "readme", "setup", "style", "test",
    "tests", "util", "utils",
];

/// What learning systems put into the name of a student's folder.
const STUDENT_FOLDERS: &[&str] = &["_assignsubmission_", "submission_"];

/// The submissions at these paths, each under its name. A folder, or one archive, is a course; of several archives each is
/// a student's, unless a system made its names, or most of them are courses.
///
/// # Errors
/// A path that does not exist, an archive or a folder that cannot be read, or more in an archive than the limits allow.
pub(crate) fn find(
    paths: &[PathBuf],
    rubric: Option<&Rubric>,
    budget: &Budget,
) -> Result<Vec<Found>, GradingError> {
    let mut all = Vec::new();
    for path in paths {
        std::fs::metadata(path).map_err(|source| GradingError::Read {
            path: path.clone(),
            source,
        })?;
        // A folder or an archive may be named by a link.
        let is_followed = path.is_dir() || is_archive(&path.to_string_lossy());
        let real = match is_followed {
            true => path.canonicalize().unwrap_or_else(|_| path.clone()),
            false => path.clone(),
        };
        all.push((path, Entry::of(&real)));
    }
    let is_one = |(_, entry): &&(&PathBuf, Entry)| entry.shape() == Shape::Archive;
    let archives: Vec<&Entry> = all.iter().filter(is_one).map(|(_, entry)| entry).collect();
    // A project may have several folders, too: so most of them have to look like courses.
    let courses = archives
        .iter()
        .filter(|entry| looks_like_a_course(entry, budget))
        .count();
    let (are_courses, archives) = (courses * 2 > archives.len(), archives.len());
    let alike = alike(all.iter().map(|(_, entry)| entry));
    let (mut found, mut single, mut of_trees) = (Vec::new(), Vec::new(), Vec::new());
    for (path, entry) in all {
        let fault =
            |problem: String| GradingError::Submissions(format!("{}: {problem}", path.display()));
        match entry.shape() {
            Shape::Folder if let Some(student) = of_tree(&entry, &alike, budget) => {
                of_trees.push(student);
            }
            Shape::Folder => {
                let course = Course::new(&entry.name, entries(&entry, budget).map_err(fault)?);
                found.extend(
                    course
                        .submitted(budget)
                        .students(rubric, budget)
                        .map_err(fault)?,
                );
            }
            Shape::Archive if archives > 1 => {
                let course = of_several(entry, are_courses, budget);
                found.extend(course.students(rubric, budget).map_err(fault)?);
            }
            Shape::Archive => {
                let course = of_one(&entry, budget).map_err(fault)?;
                found.extend(course.students(rubric, budget).map_err(fault)?);
            }
            Shape::File | Shape::Problem => single.push(entry),
        }
        if found.len() > limits::MAX_SUBMISSIONS {
            let limit = limits::MAX_SUBMISSIONS;
            return Err(GradingError::Submissions(format!(
                "more than {limit}; grade them in several runs"
            )));
        }
    }
    // A browser sends the files of a student one by one.
    let single = Course::new("", single);
    for course in [single, Course::new(SUBMITTED, of_trees)] {
        let students = course.students(rubric, budget);
        found.extend(students.map_err(GradingError::Submissions)?);
    }
    Ok(found)
}

/// Entries of which each is a submission, or a part of one.
struct Course {
    /// Name of the folder or archive that they are in.
    container: String,
    entries: Vec<Entry>,
}

impl Course {
    fn new(container: &str, entries: Vec<Entry>) -> Self {
        Self {
            container: container.to_owned(),
            entries,
        }
    }

    /// One archive that is a student's.
    fn of_one(archive: Entry) -> Self {
        Self::new("", vec![archive])
    }

    /// Of nbgrader's tree, what students handed in.
    fn submitted(self, budget: &Budget) -> Self {
        let is_of_tree = |entry: &&Entry| NBGRADER.contains(&entry.name.as_str());
        let is_folder = |entry: &&Entry| entry.name == SUBMITTED && entry.is_folder();
        let Some(folder) = self.entries.iter().find(is_folder) else {
            return self;
        };
        let others = self.entries.iter().filter(|entry| entry.name != SUBMITTED);
        let others: Vec<&Entry> = others.filter(|entry| !is_of_tree(entry)).collect();
        if others.iter().any(|entry| entry.is_folder()) {
            return self;
        }
        match entries(folder, budget) {
            // Somebody's file beside it stands by itself.
            Ok(mut inside) => {
                inside.extend(others.into_iter().cloned());
                Self::new(SUBMITTED, inside)
            }
            Err(_) => self,
        }
    }

    /// One entry for each student.
    fn students(self, rubric: Option<&Rubric>, budget: &Budget) -> Result<Vec<Found>, String> {
        group(self.entries, &self.container, rubric, budget)
    }
}

/// The folder of an assignment in that of a student in nbgrader's `submitted`: its name, and the student.
fn of_assignment(path: &Path) -> Option<(String, &Path)> {
    let student = path.parent()?;
    let is_submitted = student.parent()?.file_name()? == SUBMITTED;
    is_submitted.then(|| (Entry::of(path).name, student))
}

/// The students of whom a folder of the same name is given, by that.
fn alike<'a>(all: impl Iterator<Item = &'a Entry>) -> BTreeMap<String, BTreeSet<PathBuf>> {
    let mut alike: BTreeMap<String, BTreeSet<PathBuf>> = BTreeMap::new();
    for entry in all {
        if let Place::Disk(path) = &entry.place
            && let Some((name, student)) = of_assignment(path)
        {
            alike.entry(name).or_default().insert(student.to_owned());
        }
    }
    alike
}

/// A student of nbgrader's tree: the folder of one in `submitted`, or in that the folder of an assignment.
fn of_tree(
    entry: &Entry,
    alike: &BTreeMap<String, BTreeSet<PathBuf>>,
    budget: &Budget,
) -> Option<Entry> {
    let Place::Disk(path) = &entry.place else {
        return None;
    };
    if let Some((name, student)) = of_assignment(path) {
        let alike = alike.get(&name).map_or(0, BTreeSet::len);
        // Another course may be in a folder of that name.
        return (alike > 1 || has_notebook(entry, budget)).then(|| Entry {
            place: Place::Folder(Rc::new(vec![entry.clone()])),
            ..Entry::of(student)
        });
    }
    let is_submitted = path.parent()?.file_name()? == SUBMITTED;
    let inside = entries(entry, budget).unwrap_or_default();
    let is_student =
        inside.iter().any(|one| has_notebook(one, budget)) && inside.iter().all(Entry::is_folder);
    (is_submitted && is_student).then(|| entry.clone())
}

/// What is in a folder, but for what nobody writes.
fn entries(folder: &Entry, budget: &Budget) -> Result<Vec<Entry>, String> {
    let mut entries = folder.entries(budget)?;
    entries.retain(|entry| !is_litter(&entry.name));
    Ok(entries)
}

/// The course in an archive, or the one student whose project it is.
fn of_one(archive: &Entry, budget: &Budget) -> Result<Course, String> {
    let whole = entries(archive, budget)?;
    let course = course(&archive.name, whole.clone(), budget);
    // A folder in it has the name of a student where a learning system made it; else the archive has.
    let is_students = |entry: &Entry| entry.is_folder() && !is_of_system(entry);
    Ok(match course.entries.as_slice() {
        [only] if is_students(only) && course.container != SUBMITTED => {
            Course::of_one(archive.clone())
        }
        _ if is_project(&whole) => Course::of_one(archive.clone()),
        _ => course,
    })
}

/// One of several archives: a course, or a student's. One that cannot be read is its owner's problem alone.
fn of_several(archive: Entry, are_courses: bool, budget: &Budget) -> Course {
    let Ok(whole) = entries(&archive, budget) else {
        return Course::of_one(archive);
    };
    let course = course(&archive.name, whole, budget);
    let is_course = are_courses && has_folders_of_students(&course);
    match is_course || has_names_of_system(&course.entries) {
        true => course,
        false => Course::of_one(archive),
    }
}

fn looks_like_a_course(archive: &Entry, budget: &Budget) -> bool {
    let whole = entries(archive, budget).unwrap_or_default();
    let course = course(&archive.name, whole, budget);
    has_folders_of_students(&course) || has_names_of_system(&course.entries)
}

/// Several folders, which no project has.
fn has_folders_of_students(course: &Course) -> bool {
    let folders = course.entries.iter().filter(|entry| entry.is_folder());
    folders.count() > 1 && !is_project(&course.entries)
}

/// True for a folder that a learning system made for a student.
fn is_of_system(entry: &Entry) -> bool {
    STUDENT_FOLDERS.iter().any(|part| entry.name.contains(part))
}

/// The submissions of a course, through folders that have nothing else beside them and are no student's.
fn course(container: &str, entries_here: Vec<Entry>, budget: &Budget) -> Course {
    let mut course = Course::new(container, entries_here);
    for _ in 0..limits::MAX_ARCHIVE_DEPTH {
        course = course.submitted(budget);
        let [only] = course.entries.as_slice() else {
            break;
        };
        if course.container == SUBMITTED || is_of_system(only) || !only.is_folder() {
            break;
        }
        let Ok(inside) = entries(only, budget) else {
            break;
        };
        // A folder of a single file may be a submission.
        let is_course = inside.len() > 1 || inside.iter().any(Entry::is_folder);
        if !is_course || is_project(&inside) {
            break;
        }
        course = Course::new(&only.name.clone(), inside);
    }
    course
}

/// True if what is in a folder is one student's: folders that projects have, or files that only a project has.
fn is_project(entries: &[Entry]) -> bool {
    let is_named = |name: &str, names: &[&str]| names.contains(&stem(name).to_lowercase().as_str());
    let (folders, files): (Vec<&Entry>, Vec<&Entry>) =
        entries.iter().partition(|entry| entry.is_folder());
    if !folders.is_empty() {
        return folders
            .iter()
            .all(|entry| PROJECT_FOLDERS.contains(&entry.name.to_lowercase().as_str()));
    }
    let mut sources = files
        .iter()
        .filter(|entry| kind_of(Path::new(&entry.name)).is_some())
        .peekable();
    files.len() > 1
        && sources.peek().is_some()
        && sources.all(|entry| is_named(&entry.name, PROJECT_FILES))
}
