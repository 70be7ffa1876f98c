//! Source files, read within limits and made ready for a prompt.

use crate::files;
use crate::files::Decoded;
use crate::finding::{Finding, FindingKind};
use crate::hidden::{mark_hidden, mark_name};
use crate::limits;
use crate::notebook::{NotebookCell, read_notebook};
use crate::picture::Picture;
use crate::suspicion::suspicious;
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::path::Path;
use walkdir::WalkDir;

/// What a folder has that was not read.
#[derive(Default)]
pub(crate) struct LeftOut {
    /// A line for each.
    pub(crate) notes: Vec<String>,
    /// A line for each that should have been read.
    pub(crate) flags: Vec<Finding>,
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

pub(crate) fn lossy(part: Option<&OsStr>) -> String {
    part.map(|p| p.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// A lone file's name often is the student's; only its kind is shown.
pub(crate) fn shown_name(files: &[SourceFile], file: &SourceFile) -> String {
    if files.len() > 1 {
        return file.name.clone();
    }
    match file.name.rsplit_once('.') {
        Some((_, extension)) => format!("submission.{extension}"),
        None => "submission".to_owned(),
    }
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

pub(crate) fn read_file(path: &Path, name: &str, kind: Kind) -> Result<SourceFile, String> {
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
