//! Submissions: found under the given paths, read within limits, made ready for a prompt.

use crate::archive::Budget;
use crate::attempt::{self, Untouched};
use crate::elision::{self, Shown};
use crate::error::GradingError;
use crate::files::lossy;
use crate::finding::{Finding, FindingKind};
use crate::hidden::mark_name;
use crate::intake;
use crate::limits;
use crate::origin::{Found, Origin};
use crate::picture::Picture;
use crate::rubric::Rubric;
use crate::source::{
    Kind, LeftOut, SourceFile, is_junk, is_of_tool, kind_of, read_file, read_source, read_tree,
    shown_name,
};
use crate::tree::{Entry, Shape, stem};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// One student's work.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Submission {
    /// What it is called in reports: the file's name without extension, or the folder's name.
    pub name: String,
    /// Its files, in the order of their names.
    pub files: Vec<SourceFile>,
    /// Why it cannot be graded, if so.
    pub problem: Option<Finding>,
    /// What the teacher should look at, such as hidden characters.
    pub flags: Vec<Finding>,
    /// What is good to know and asks for nothing, such as files that were not read.
    pub notes: Vec<String>,
    /// Files and folders that were not read and may be somebody's work.
    pub(crate) unread: Vec<String>,
    /// Where it comes from.
    #[serde(default)]
    pub origin: Origin,
    /// Somebody says which results of tests it has, or that it has none.
    #[serde(skip)]
    pub(crate) tests_are_known: bool,
}

/// Finds and reads submissions, as [`load_submissions`](crate::load_submissions) says.
pub(crate) fn read_submissions(
    paths: &[PathBuf],
    rubric: Option<&Rubric>,
) -> Result<Vec<Submission>, GradingError> {
    let budget = Budget::new();
    let found = intake::find(paths, rubric, &budget)?;
    if found.is_empty() {
        return Err(GradingError::Submissions(
            "none found under the given paths".to_owned(),
        ));
    }
    let names = names_of(&found);
    let mut submissions = Vec::with_capacity(found.len());
    let mut keys = HashSet::new();
    for (Found { entry, origin }, name) in found.iter().zip(names) {
        let mut submission = load(entry, name, &budget);
        if origin.is_late {
            submission.notes.push("handed in late".to_owned());
        }
        submission.origin = origin.clone();
        if let Some(key) = origin.key()
            && !keys.insert(key)
        {
            submission.origin.students.clear();
            let note = "another submission of the same student came with it".to_owned();
            submission.notes.push(note);
        }
        submissions.push(submission);
        if let Some(problem) = budget.exceeded() {
            return Err(GradingError::Submissions(format!(
                "{}: {problem}; nothing of it was kept",
                entry.name
            )));
        }
    }
    Ok(submissions)
}

/// A file as it was handed in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Original {
    /// Its path, in one form of each accented letter.
    pub name: String,
    /// Its bytes; none where it is too large, or cannot be read.
    pub bytes: Option<Vec<u8>>,
}

/// Gives all files of the submissions at these paths as they were handed in, each with the place of its submission among
/// those of [`load_submissions_for`](crate::load_submissions_for); an archive of a student is one file. `each` says whether
/// to go on.
///
/// # Errors
/// As of [`load_submissions`](crate::load_submissions).
pub fn read_originals(
    paths: &[PathBuf],
    rubric: &Rubric,
    each: &mut dyn FnMut(usize, Original) -> bool,
) -> Result<(), GradingError> {
    let budget = Budget::new();
    let found = intake::find(paths, Some(rubric), &budget)?;
    for (index, Found { entry, .. }) in found.into_iter().enumerate() {
        let mut left = limits::MAX_ORIGINALS_BYTES;
        for (name, entry) in originals(&entry, &budget) {
            let most = limits::MAX_ORIGINAL_BYTES.min(left);
            let bytes = entry.read(most, &budget).ok();
            let count = bytes.as_ref().map_or(0, Vec::len);
            left = left.saturating_sub(u64::try_from(count).unwrap_or(u64::MAX));
            if !each(index, Original { name, bytes }) {
                return Ok(());
            }
        }
    }
    Ok(())
}

/// The files of a submission, with their paths.
fn originals(entry: &Entry, budget: &Budget) -> Vec<(String, Entry)> {
    let mut found = Vec::new();
    let mut folders = vec![(String::new(), entry.clone(), 0)];
    while let Some((path, entry, depth)) = folders.pop() {
        if entry.shape() != Shape::Folder {
            found.push((path, entry));
            continue;
        }
        if depth > limits::MAX_FOLDER_DEPTH {
            continue;
        }
        for inside in entry.entries(budget).unwrap_or_default() {
            let is_left_out = is_junk(Path::new(&inside.name)) || is_of_tool(&inside.name);
            if is_left_out || found.len() + folders.len() > limits::MAX_FOLDER_ENTRIES {
                continue;
            }
            let path = match path.is_empty() {
                true => inside.name.clone(),
                false => format!("{path}/{}", inside.name),
            };
            folders.push((path, inside, depth + 1));
        }
    }
    if let [(path, entry)] = found.as_mut_slice()
        && path.is_empty()
    {
        path.clone_from(&entry.name);
    }
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// Names without extensions where that is unique, with them where it is not, numbered as a last resort.
fn names_of(found: &[Found]) -> Vec<String> {
    let short = |found: &Found| match found.entry.shape() {
        Shape::Folder => found.entry.name.clone(),
        _ => stem(&found.entry.name),
    };
    let stems: Vec<String> = found.iter().map(short).collect();
    let mut stem_count: HashMap<&str, usize> = HashMap::new();
    for stem in &stems {
        *stem_count.entry(stem).or_default() += 1;
    }
    let candidate = |(found, stem): (&Found, &String)| {
        let unique = stem_count.get(stem.as_str()) == Some(&1);
        match (unique, found.number()) {
            (true, _) => mark_name(stem),
            // Two of one name are told apart by what the system knows them by, which stays.
            (false, Some(number)) => mark_name(&format!("{stem} ({number})")),
            (false, None) => mark_name(&found.entry.name),
        }
    };
    let candidates: Vec<String> = found.iter().zip(&stems).map(candidate).collect();
    let mut count: HashMap<&str, usize> = HashMap::new();
    for name in &candidates {
        *count.entry(name).or_default() += 1;
    }
    let mut taken: HashSet<String> = HashSet::new();
    let mut names = Vec::with_capacity(found.len());
    for name in &candidates {
        // Of several with one name, none is the one that has it.
        let is_only = count.get(name.as_str()) == Some(&1);
        let numbered = (1..).map(|number| format!("{name} ({number})"));
        let mut all = is_only.then(|| name.clone()).into_iter().chain(numbered);
        let free = all.find(|name| !taken.contains(name));
        let free = free.unwrap_or_else(|| name.clone());
        taken.insert(free.clone());
        names.push(free);
    }
    names
}

fn load(entry: &Entry, name: String, budget: &Budget) -> Submission {
    let mut left_out = LeftOut::default();
    left_out.notes.extend(entry.note.clone());
    match read_files(entry, &mut left_out, budget) {
        Ok(files) => finished(name, files, None, left_out),
        Err(problem) => finished(name, Vec::new(), Some(problem), left_out),
    }
}

/// What was read, within the limit of what a prompt may have.
fn finished(
    name: String,
    files: Vec<SourceFile>,
    problem: Option<String>,
    left_out: LeftOut,
) -> Submission {
    let of_files = files.iter().flat_map(|f| f.flags.iter().cloned());
    let mut submission = Submission {
        name,
        flags: of_files.chain(left_out.flags).collect(),
        files,
        problem: problem.map(|problem| Finding::new(FindingKind::Unreadable, problem)),
        notes: left_out.notes,
        unread: left_out.names,
        origin: Origin::default(),
        tests_are_known: false,
    };
    if submission.problem.is_none() && submission.text_bytes() > limits::MAX_PROMPT_TEXT_BYTES {
        let limit = limits::MAX_PROMPT_TEXT_BYTES;
        let problem =
            format!("it has more than {limit} bytes of text; shorten it or grade it by hand");
        submission.problem = Some(Finding::new(FindingKind::TooLong, problem));
    }
    submission
}

/// Reads the files of a submission.
fn read_files(
    entry: &Entry,
    left_out: &mut LeftOut,
    budget: &Budget,
) -> Result<Vec<SourceFile>, String> {
    if let Some(problem) = entry.problem() {
        return Err(problem);
    }
    if entry.is_folder() {
        return read_tree(entry, left_out, budget);
    }
    let kind = kind_of(Path::new(&entry.name));
    let kind = kind.ok_or("this kind of file is not supported; look at it by hand")?;
    Ok(vec![read_file(entry, &entry.name, kind, budget)?])
}

impl Submission {
    /// A submission of one text, such as one that was pasted; the name tells its kind.
    #[must_use]
    pub fn of_text(name: &str, text: &str) -> Self {
        let kind = kind_of(Path::new(name)).unwrap_or(Kind::Text);
        let read = match u64::try_from(text.len()).is_ok_and(|n| n <= kind.max_bytes()) {
            true => read_source(name, kind, text.as_bytes()),
            false => Err(format!("it is larger than {} bytes", kind.max_bytes())),
        };
        let (files, problem) = match read {
            Ok(file) => (vec![file], None),
            Err(problem) => (Vec::new(), Some(problem)),
        };
        let name = Path::new(name);
        finished(
            mark_name(&lossy(name.file_stem())),
            files,
            problem,
            LeftOut::default(),
        )
    }

    /// Whether it is blank or equals one of the rubric's templates; such work reaches no model.
    /// A submission with a `problem` is not judged.
    pub fn untouched(&self, rubric: &Rubric) -> Option<Untouched> {
        if self.problem.is_some() {
            return None;
        }
        attempt::untouched(&self.files, &self.unread, &rubric.templates)
    }

    /// The pictures in its files.
    pub fn pictures(&self) -> impl Iterator<Item = &Picture> {
        let of_files = self.files.iter().flat_map(|file| &file.pictures);
        of_files.map(|(_, picture)| picture)
    }

    /// What is shown of each file beside the rubric's templates, in the order of the files.
    #[must_use]
    pub fn shown(&self, rubric: &Rubric) -> Vec<Vec<Shown<'_>>> {
        elision::shown(&self.files, &rubric.templates)
    }

    /// What a file is called where no student may be known by it.
    #[must_use]
    pub fn shown_name(&self, file: &SourceFile) -> String {
        shown_name(&self.files, file)
    }

    /// How many bytes models are shown of each file, the most first.
    #[must_use]
    pub fn weights(&self, rubric: &Rubric) -> Vec<(&str, usize)> {
        let line = |part: &Shown<'_>| match part {
            Shown::Line(_, line) => line.len() + 1,
            Shown::Same(..) | Shown::Gone(_) => 0,
        };
        let shown = self.shown(rubric);
        let weights = shown.iter().map(|parts| parts.iter().map(line).sum());
        let mut weights: Vec<(&str, usize)> = self
            .files
            .iter()
            .map(|file| file.name.as_str())
            .zip(weights)
            .collect();
        weights.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        weights
    }

    /// Leaves out files that no model needs, by their names; what is in them may be an answer, and stays with the rest.
    pub fn leave_out(&mut self, is_left_out: impl Fn(&str) -> bool) {
        let (out, files) = std::mem::take(&mut self.files)
            .into_iter()
            .partition(|file| !file.is_tests && is_left_out(&file.name));
        self.files = files;
        for SourceFile { name, .. } in out {
            self.flags
                .retain(|flag| flag.place.as_ref().is_none_or(|place| place.file != name));
            self.notes
                .push(format!("{name}: left out, as somebody asked for"));
            self.unread.push(name);
        }
        if self.files.is_empty() && self.problem.is_none() {
            let problem = "all of its files were left out".to_owned();
            self.problem = Some(Finding::new(FindingKind::Unreadable, problem));
        }
    }

    /// Lines of the longest file.
    pub(crate) fn max_lines(&self) -> usize {
        self.files.iter().map(|f| f.lines.len()).max().unwrap_or(0)
    }

    pub(crate) fn text_bytes(&self) -> usize {
        self.files
            .iter()
            .flat_map(|f| &f.lines)
            .map(|l| l.len() + 1)
            .sum()
    }
}
