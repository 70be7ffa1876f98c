//! Whether something was attempted at all, decided in code before any model is asked.
//!
//! Not attempted is only what is blank, or equals a template but for white space at line ends and blank lines. In doubt
//! a model is asked: an answer may be a comment, a deletion, or an indentation.

use crate::archive::Budget;
use crate::error::GradingError;
use crate::files::lossy;
use crate::limits;
use crate::source::{LeftOut, SourceFile, kind_of, read_file, read_tree};
use crate::tree::{Entry, is_archive};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What a teacher gives with a rubric, such as a template or a solution: a file, or the files of a folder or an archive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Material {
    files: Vec<SourceFile>,
    /// What else its folder has.
    unread: Vec<String>,
}

impl Material {
    /// What else its folder has, which nobody sees.
    pub(crate) fn unread(&self) -> &[String] {
        &self.unread
    }

    /// What was read of it.
    #[must_use]
    pub fn files(&self) -> &[SourceFile] {
        &self.files
    }

    /// Files that came one by one and are one together. What is of no kind that is read is left out, unless there is no other.
    pub(crate) fn of_files(what: &str, paths: &[PathBuf]) -> Result<Self, GradingError> {
        let mut all = Self {
            files: Vec::new(),
            unread: Vec::new(),
        };
        let mut problem = None;
        for path in paths {
            match Self::read(what, path) {
                Ok(one) => all.files.extend(one.files),
                Err(error) if kind_of(path).is_none() => {
                    all.unread.push(lossy(path.file_name()));
                    problem.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        all.files.sort_by(|a, b| a.name.cmp(&b.name));
        match (all.files.is_empty(), problem) {
            (true, Some(error)) => Err(error),
            _ => Ok(all),
        }
    }

    /// Reads a file, a folder or an archive; `what` names it in an error.
    pub(crate) fn read(what: &str, path: &Path) -> Result<Self, GradingError> {
        let fault = |problem: String| GradingError::Rubric {
            field: format!("{what} {}", path.display()),
            problem,
        };
        let (entry, budget) = (Entry::of(path), Budget::new());
        if let Some(problem) = entry.problem() {
            return Err(fault(problem));
        }
        if entry.is_folder() {
            let mut left_out = LeftOut::default();
            let files = read_tree(&entry, &mut left_out, &budget).map_err(fault)?;
            let unread = left_out.names;
            return Ok(Self { files, unread });
        }
        let kind =
            kind_of(path).ok_or_else(|| fault("this kind of file is not supported".to_owned()))?;
        let file = read_file(&entry, &entry.name, kind, &budget).map_err(fault)?;
        Ok(Self {
            files: vec![file],
            unread: Vec::new(),
        })
    }
}

/// `template.<kind>`, `template.zip` and `template/` in the rubric's folder, or the same of another stem.
pub(crate) fn beside(folder: &Path, stem: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let is_named = |path: &PathBuf| {
        path.file_stem().is_some_and(|found| found == stem)
            && (kind_of(path).is_some() || path.is_dir() || is_archive(&lossy(path.file_name())))
    };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|e| e.path())
        .filter(is_named)
        .collect();
    found.sort();
    found.truncate(limits::MAX_MATERIALS);
    found
}

/// What counts of a line: it may end with any white space, and may be blank.
fn counted<'a>(lines: impl Iterator<Item = &'a String>) -> Vec<&'a str> {
    let lines = lines.map(|line| line.trim_end());
    lines.filter(|line| !line.is_empty()).collect()
}

/// How nothing was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Untouched {
    /// There is nothing but white space.
    Blank,
    /// It is the template.
    Template,
}

impl Untouched {
    /// For a person.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Blank => "blank",
            Self::Template => "equal to the template",
        }
    }
}

/// Whether nothing was written: all files are blank, or they are those of a template, whatever their names. What was not
/// read may be an answer, unless the template has it, too.
pub(crate) fn untouched(
    files: &[SourceFile],
    unread: &[String],
    templates: &[Material],
) -> Option<Untouched> {
    let contents = |files: &[SourceFile]| {
        let own = files.iter().filter(|file| !file.is_tests);
        let contents = own.map(|file| counted(file.written.iter()).join("\n"));
        let mut contents: Vec<String> = contents.filter(|text| !text.is_empty()).collect();
        contents.sort();
        contents
    };
    let own = contents(files);
    let is_of = |template: &Material| {
        let is_known = |name| template.unread.contains(name);
        unread.iter().all(is_known) && (own.is_empty() || contents(&template.files) == own)
    };
    if own.is_empty() && unread.is_empty() {
        return Some(Untouched::Blank);
    }
    let is_template = templates.iter().any(is_of);
    is_template.then_some(Untouched::Template)
}
