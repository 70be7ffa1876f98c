//! Submissions: found under the given paths, read within limits, made ready for a prompt.

use crate::archive;
use crate::attempt::{self, Untouched};
use crate::elision::{self, Shown};
use crate::error::GradingError;
use crate::finding::{Finding, FindingKind};
use crate::hidden::mark_name;
use crate::limits;
use crate::picture::Picture;
use crate::rubric::Rubric;
use crate::source::{
    Kind, LeftOut, SourceFile, is_junk, kind_of, lossy, read_file, read_source, read_tree,
    shown_name,
};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
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
}

/// Finds and reads submissions: each path is a file, or a folder or a zip archive in which every file and every
/// sub-folder is one submission.
///
/// What cannot be read becomes a submission with a `problem`; it never stops the others.
///
/// # Errors
/// A path that does not exist, no submission at all, or more than [`limits::MAX_SUBMISSIONS`].
pub fn load_submissions(paths: &[PathBuf]) -> Result<Vec<Submission>, GradingError> {
    let mut found = Vec::new();
    // Gone with what was unpacked when all of it was read.
    let mut unpacked = Vec::new();
    for path in paths {
        let read = |source| GradingError::Read {
            path: path.clone(),
            source,
        };
        let is_folder = std::fs::metadata(path).map_err(read)?.is_dir();
        let folder = match (is_folder, archive::is_archive(path)) {
            (true, _) => path.clone(),
            (false, true) => {
                let place = tempfile::tempdir().map_err(read)?;
                let folder = archive::unpack(path, place.path())?;
                unpacked.push(place);
                folder
            }
            (false, false) => {
                found.push(path.clone());
                continue;
            }
        };
        let entries = std::fs::read_dir(folder)
            .map_err(read)?
            .collect::<Result<Vec<_>, _>>()
            .map_err(read)?;
        let mut entries: Vec<PathBuf> = entries
            .into_iter()
            .map(|e| e.path())
            .filter(|p| !is_junk(p))
            .collect();
        entries.sort();
        found.extend(entries);
        if found.len() > limits::MAX_SUBMISSIONS {
            let limit = limits::MAX_SUBMISSIONS;
            return Err(GradingError::Submissions(format!(
                "more than {limit}; grade them in several runs"
            )));
        }
    }
    if found.is_empty() {
        return Err(GradingError::Submissions(
            "none found under the given paths".to_owned(),
        ));
    }
    let names = names_of(&found);
    Ok(found
        .iter()
        .zip(names)
        .map(|(path, name)| load(path, name))
        .collect())
}

/// Names without extensions where that is unique, with them where it is not, numbered as a last resort.
fn names_of(paths: &[PathBuf]) -> Vec<String> {
    let stems: Vec<String> = paths
        .iter()
        .map(|p| {
            lossy(if p.is_dir() {
                p.file_name()
            } else {
                p.file_stem()
            })
        })
        .collect();
    let mut stem_count: HashMap<&str, usize> = HashMap::new();
    for stem in &stems {
        *stem_count.entry(stem).or_default() += 1;
    }
    let mut taken: HashMap<String, usize> = HashMap::new();
    let mut names = Vec::with_capacity(paths.len());
    for (path, stem) in paths.iter().zip(&stems) {
        let unique = stem_count.get(stem.as_str()) == Some(&1);
        let name = if unique {
            stem.clone()
        } else {
            lossy(path.file_name())
        };
        let name = mark_name(&name);
        let seen = taken.entry(name.clone()).or_default();
        *seen += 1;
        names.push(if *seen == 1 {
            name
        } else {
            format!("{name} ({seen})")
        });
    }
    names
}

fn load(path: &Path, name: String) -> Submission {
    let mut left_out = LeftOut::default();
    match read_files(path, &mut left_out) {
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
fn read_files(path: &Path, left_out: &mut LeftOut) -> Result<Vec<SourceFile>, String> {
    let meta = std::fs::symlink_metadata(path).map_err(|e| format!("cannot be read: {e}"))?;
    if meta.file_type().is_symlink() {
        return Err("it is a symbolic link; links are not followed".to_owned());
    }
    if meta.is_dir() {
        return read_tree(path, left_out);
    }
    let kind = kind_of(path).ok_or("this kind of file is not supported; look at it by hand")?;
    Ok(vec![read_file(path, &lossy(path.file_name()), kind)?])
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

    /// Lines of the longest file.
    pub(crate) fn max_lines(&self) -> usize {
        self.files.iter().map(|f| f.lines.len()).max().unwrap_or(0)
    }

    fn text_bytes(&self) -> usize {
        self.files
            .iter()
            .flat_map(|f| &f.lines)
            .map(|l| l.len() + 1)
            .sum()
    }
}
