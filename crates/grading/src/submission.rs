//! Submissions: found under the given paths, read within limits, made ready for a prompt.

use crate::archive;
use crate::attempt::{self, Untouched};
use crate::elision::{self, Shown};
use crate::error::GradingError;
use crate::files;
use crate::files::Decoded;
use crate::finding::{Finding, FindingKind};
use crate::hidden::{mark_hidden, mark_name};
use crate::limits;
use crate::notebook::{NotebookCell, read_notebook};
use crate::picture::Picture;
use crate::prompt::shown_name;
use crate::rubric::Rubric;
use crate::suspicion::suspicious;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use walkdir::WalkDir;

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

/// What a folder has that was not read.
#[derive(Default)]
pub(crate) struct LeftOut {
    /// A line for each.
    notes: Vec<String>,
    /// A line for each that should have been read.
    flags: Vec<Finding>,
    /// Names of those that may be somebody's work.
    pub(crate) names: Vec<String>,
}

/// One file of a submission, as it is shown to models and quoted in reports.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// Path within the submission.
    pub name: String,
    /// Lines, numbered from 1 wherever they are cited. Of a notebook: its cells and outputs in order.
    pub lines: Vec<String>,
    /// Findings for the teacher.
    pub flags: Vec<Finding>,
    /// Lines that a person wrote: of a notebook no outputs.
    pub(crate) written: Vec<String>,
    /// Pictures of a notebook with the lines that stand for them, from 1; no model sees them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pictures: Vec<(usize, Picture)>,
}

/// Kinds of files that are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A text file.
    Text,
    /// A Jupyter notebook.
    Notebook,
}

impl Kind {
    pub(crate) fn max_bytes(self) -> u64 {
        match self {
            Self::Text => limits::MAX_SOURCE_BYTES,
            Self::Notebook => limits::MAX_NOTEBOOK_BYTES,
        }
    }
}

/// Extensions of text files that people write.
const TEXT: &[&str] = &[
    "bash", "c", "cc", "cpp", "cs", "css", "cxx", "go", "h", "hh", "hpp", "html", "hxx", "java",
    "jl", "js", "jsx", "kt", "kts", "lua", "m", "md", "mjs", "php", "pl", "py", "qmd", "r", "rb",
    "rmd", "rs", "scala", "sh", "sql", "swift", "ts", "tsx", "txt",
];

/// The kind of a file, by its extension; `None` if it is not supported.
pub(crate) fn kind_of(path: &Path) -> Option<Kind> {
    let extension = path.extension()?.to_str()?.to_lowercase();
    match extension.as_str() {
        "ipynb" => Some(Kind::Notebook),
        text if TEXT.contains(&text) => Some(Kind::Text),
        _ => None,
    }
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

/// Entries that operating systems, editors and compilers leave behind, and that nobody writes.
pub(crate) fn is_junk(path: &Path) -> bool {
    let name = lossy(path.file_name());
    name.starts_with('.')
        || name.ends_with(".class")
        || ["__MACOSX", "__pycache__"].contains(&name.as_str())
}

/// Folders that tools fill; a student may have one of that name, so what is in them is not read, but named.
const TOOL_FOLDERS: &[&str] = &["build", "dist", "node_modules", "renv", "target", "venv"];

/// The file by which a folder of any name is known as a Python environment.
const PYTHON_ENVIRONMENT: &str = "pyvenv.cfg";

const PYTHON: &str = "it is a Python environment";
const OF_A_TOOL: &str = "it belongs to a tool";

/// Text files that say nothing about the work: nbgrader's time of submission, and what a project needs.
const TOOL_FILES: &[&str] = &["requirements.txt", "timestamp.txt"];

fn lossy(part: Option<&OsStr>) -> String {
    part.map(|p| p.to_string_lossy().into_owned())
        .unwrap_or_default()
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

/// Reads the files of a folder, in the order of their names. A file that cannot be read is left out, unless there is no
/// other.
pub(crate) fn read_tree(path: &Path, left_out: &mut LeftOut) -> Result<Vec<SourceFile>, String> {
    let mut files = Vec::new();
    let mut unreadable = Vec::new();
    let walk = WalkDir::new(path)
        .follow_links(false)
        .max_depth(limits::MAX_FOLDER_DEPTH)
        .sort_by_file_name();
    let mut entries = walk
        .into_iter()
        .filter_entry(|e| e.depth() == 0 || !is_junk(e.path()));
    let mut seen = 0;
    while let Some(entry) = entries.next() {
        seen += 1;
        if seen > limits::MAX_FOLDER_ENTRIES {
            return Err(format!(
                "its folder has more than {} entries",
                limits::MAX_FOLDER_ENTRIES
            ));
        }
        let entry = entry.map_err(|e| format!("its folder cannot be read: {e}"))?;
        let name = entry
            .path()
            .strip_prefix(path)
            .unwrap_or(entry.path())
            .to_string_lossy()
            .replace('\\', "/");
        let kind = match why_left_out(&entry) {
            Ok(Some(kind)) => kind,
            Ok(None) => continue,
            Err(why) => {
                left_out.notes.push(format!("{name}: not read, {why}"));
                if why != OF_A_TOOL && why != PYTHON {
                    left_out.names.push(name);
                }
                if entry.file_type().is_dir() {
                    entries.skip_current_dir();
                }
                continue;
            }
        };
        if files.len() == limits::MAX_FILES {
            return Err(format!("it has more than {} files", limits::MAX_FILES));
        }
        match read_file(entry.path(), &name, kind) {
            Ok(file) => files.push(file),
            Err(problem) => {
                unreadable.push(problem);
                left_out.names.push(name);
            }
        }
    }
    if files.is_empty() {
        return Err(match unreadable.as_slice() {
            [] => "its folder holds no supported file".to_owned(),
            problems => problems.join("; "),
        });
    }
    let flags = unreadable
        .iter()
        .map(|problem| format!("{problem}; it was left out"))
        .map(|text| Finding::new(FindingKind::LeftOut, text));
    left_out.flags.extend(flags);
    Ok(files)
}

/// The kind of a file to read; `None` for a folder that is walked; or why an entry is not read.
fn why_left_out(entry: &walkdir::DirEntry) -> Result<Option<Kind>, &'static str> {
    let kind = entry.file_type();
    let name = lossy(Some(entry.file_name()));
    if kind.is_dir() {
        return match entry.depth() {
            0 => Ok(None),
            limits::MAX_FOLDER_DEPTH => Err("too deep a folder"),
            _ if TOOL_FOLDERS.contains(&name.as_str()) => Err("tools make folders of this name"),
            _ if entry.path().join(PYTHON_ENVIRONMENT).is_file() => Err(PYTHON),
            _ => Ok(None),
        };
    }
    if !kind.is_file() {
        return Err("links are not followed");
    }
    if TOOL_FILES.contains(&name.to_lowercase().as_str()) {
        return Err(OF_A_TOOL);
    }
    let kind = kind_of(entry.path()).ok_or("this kind of file is not supported")?;
    Ok(Some(kind))
}

fn read_file(path: &Path, name: &str, kind: Kind) -> Result<SourceFile, String> {
    let bytes = files::read_bounded(path, kind.max_bytes())
        .map_err(|e| format!("{name} cannot be read: {e}"))?;
    read_source(name, kind, &bytes).map_err(|problem| format!("{name}: {problem}"))
}

/// Decodes a file and makes its lines ready to be shown.
pub(crate) fn read_source(name: &str, kind: Kind, bytes: &[u8]) -> Result<SourceFile, String> {
    let Decoded { text, guess } = files::decode(bytes)?;
    let (raw, written, pictures) = match kind {
        Kind::Text => {
            let lines = files::split_lines(&text);
            (lines.clone(), lines, Vec::new())
        }
        Kind::Notebook => {
            let (language, cells) = read_notebook(&text)?;
            let language = language.unwrap_or_else(|| "python".to_owned());
            let sources = cells.iter().flat_map(|cell| cell.source.clone());
            let written = sources.collect();
            let (lines, pictures) = notebook_lines(&language, cells);
            (lines, written, pictures)
        }
    };
    let name = mark_name(name);
    let mut flags = Vec::new();
    if let Some(what) = suspicious(&name) {
        flags.push(Finding::new(
            FindingKind::Orders,
            format!("{name}: its name: {what}"),
        ));
    }
    if let Some(guess) = guess {
        flags.push(Finding::new(
            FindingKind::Encoding,
            format!("{name}: {guess}"),
        ));
    }
    let mut lines = Vec::with_capacity(raw.len());
    for (i, line) in raw.iter().enumerate() {
        let (marked, hidden) = mark_hidden(line);
        if hidden > 0 {
            let what = format!("{hidden} hidden character(s)");
            flags.push(Finding::at(FindingKind::Hidden, &name, i + 1, &what));
        }
        if let Some(what) = suspicious(line) {
            flags.push(Finding::at(FindingKind::Orders, &name, i + 1, what));
        }
        lines.push(marked);
    }
    Ok(SourceFile {
        name,
        lines,
        flags,
        written,
        pictures,
    })
}

/// The lines of a notebook, and its pictures with the lines that stand for them.
fn notebook_lines(
    language: &str,
    cells: Vec<NotebookCell>,
) -> (Vec<String>, Vec<(usize, Picture)>) {
    let (mut lines, mut found) = (Vec::new(), Vec::new());
    // A source may hold line breaks of its own, such as a lone carriage return.
    let push = |lines: &mut Vec<String>, line: &str| {
        lines.extend(files::split_lines(if line.is_empty() {
            "\n"
        } else {
            line
        }));
    };
    for (number, cell) in (1..).zip(cells) {
        let language = match cell.kind == "code" {
            true => format!(", {language}"),
            false => String::new(),
        };
        push(
            &mut lines,
            &format!("[cell {number}: {}{language}]", cell.kind),
        );
        let mut pictures = cell.pictures.into_iter().peekable();
        let outputs_from = cell.source.len();
        for (i, line) in cell.source.iter().chain(&cell.outputs).enumerate() {
            if i == outputs_from {
                push(&mut lines, "[output]");
            }
            push(&mut lines, line);
            while let Some((_, picture)) = pictures.next_if(|(at, _)| *at == i) {
                found.push((lines.len(), picture));
            }
        }
    }
    found.truncate(limits::MAX_PICTURES);
    (lines, found)
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
