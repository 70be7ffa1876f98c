//! Source files, read within limits and made ready for a prompt.

use crate::archive::{Budget, LINK};
use crate::files;
use crate::files::{Decoded, lossy};
use crate::finding::{Finding, FindingKind};
use crate::hidden::{mark_hidden, mark_name};
use crate::limits;
use crate::notebook::{NotebookCell, read_notebook};
use crate::picture::Picture;
use crate::suspicion::suspicious;
use crate::tree::{Entry, Shape};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

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
    /// Results of tests that the teacher ran, which no student wrote.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_tests: bool,
    /// What stands for people in it where models read it.
    #[serde(default, skip_serializing_if = "Pseudonyms::is_empty")]
    pub(crate) pseudonyms: Pseudonyms,
}

/// What stands for people in a file, beside its lines.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pseudonyms {
    /// Lines as models are shown them, by their numbers from 1; those that do not differ are not here.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) lines: BTreeMap<usize, String>,
    /// The name of the file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// What each one stands for, as it was written first.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) of: BTreeMap<String, String>,
}

impl Pseudonyms {
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
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
    "adb", "ads", "asm", "awk", "bas", "bash", "c", "cbl", "cc", "clj", "cljs", "cob", "cpp", "cr",
    "cs", "css", "cu", "cxx", "d", "dart", "elm", "erl", "ex", "exs", "f", "f03", "f90", "f95",
    "for", "fs", "fsi", "fsx", "gd", "go", "groovy", "h", "hh", "hpp", "hrl", "hs", "html", "hxx",
    "java", "jl", "js", "jsx", "kt", "kts", "lean", "less", "lhs", "lisp", "lsp", "lua", "m", "md",
    "mjs", "ml", "mli", "mm", "nim", "pas", "php", "pl", "pp", "pro", "prolog", "ps1", "py", "qmd",
    "r", "rb", "rkt", "rmd", "rs", "s", "sass", "scala", "scm", "scss", "sh", "sml", "sol", "sql",
    "ss", "sv", "svelte", "swift", "tcl", "tex", "ts", "tsx", "txt", "v", "vb", "vhd", "vhdl",
    "vue", "wat", "zig",
];

/// Files without an extension that people write.
const NAMED: &[&str] = &["dockerfile", "gemfile", "makefile", "rakefile"];

/// Extensions of what mostly is data or belongs to a tool: read where a submission has nothing else.
const DATA: &[&str] = &["json", "toml", "xml", "yaml", "yml"];

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
    name.ends_with(".class") || is_litter(&name)
}

/// The same where each entry is somebody's: what is a student's only file is not passed over.
pub(crate) fn is_litter(name: &str) -> bool {
    name.starts_with('.') || ["__MACOSX", "__pycache__", "Thumbs.db", "desktop.ini"].contains(&name)
}

/// Folders that tools fill; a student may have one of that name, so what is in them is not read, but named.
const TOOL_FOLDERS: &[&str] = &["build", "dist", "node_modules", "renv", "target", "venv"];

/// True for such a folder.
pub(crate) fn is_of_tool(folder: &str) -> bool {
    TOOL_FOLDERS.contains(&folder)
}

/// The file by which a folder of any name is known as a Python environment.
const PYTHON_ENVIRONMENT: &str = "pyvenv.cfg";

const PYTHON: &str = "it is a Python environment";
const OF_A_TOOL: &str = "it belongs to a tool";

/// Text files that say nothing about the work: nbgrader's time of submission, and what a project needs.
const TOOL_FILES: &[&str] = &["requirements.txt", "timestamp.txt"];

/// A lone file's name often is the student's; only its kind is shown.
pub(crate) fn shown_name(files: &[SourceFile], file: &SourceFile) -> String {
    match is_lone(files, file) {
        true => lone_name(file),
        false => file.prompt_name().to_owned(),
    }
}

/// Whether a file is all that a student handed in.
pub(crate) fn is_lone(files: &[SourceFile], file: &SourceFile) -> bool {
    !file.is_tests && files.iter().filter(|file| !file.is_tests).count() == 1
}

/// Of a lone file the kind alone.
pub(crate) fn lone_name(file: &SourceFile) -> String {
    match file.name.rsplit_once('.') {
        Some((_, extension)) => format!("submission.{extension}"),
        None => "submission".to_owned(),
    }
}

/// Reads the files of a folder or an archive, in the order of their names. A file that cannot be read is left out, unless
/// there is no other.
pub(crate) fn read_tree(
    root: &Entry,
    left_out: &mut LeftOut,
    budget: &Budget,
) -> Result<Vec<SourceFile>, String> {
    let mut walk = Walk {
        budget,
        seen: 0,
        packed: 0,
        found: Vec::new(),
    };
    walk.folder(root, &[], limits::MAX_ARCHIVE_DEPTH)?;
    walk.decide_on_data();
    let common = common_folders(&walk.found);
    let mut files: Vec<SourceFile> = Vec::new();
    let mut unreadable = Vec::new();
    let mut bytes = 0;
    for Found { path, entry, is } in walk.found {
        // The folder that a student packed often has the student's name.
        let path = path.strip_prefix(common.as_slice()).unwrap_or(&path);
        let name = path.join("/");
        if let Some(note) = &entry.note {
            left_out.notes.push(format!("{name}: {note}"));
        }
        let problem = match is {
            Is::Source(_) if files.len() == limits::MAX_FILES => {
                return Err(format!("it has more than {} files", limits::MAX_FILES));
            }
            Is::Source(_) if bytes > limits::MAX_READ_BYTES => {
                let most = limits::MAX_READ_BYTES;
                return Err(format!(
                    "it has more than {most} bytes of text; grade it by hand"
                ));
            }
            Is::Source(kind) => match read_file(&entry, &name, kind, budget) {
                Ok(file) => {
                    bytes += file.lines.iter().map(|line| line.len() + 1).sum::<usize>();
                    files.push(file);
                    continue;
                }
                Err(problem) => problem,
            },
            // Decided on above.
            Is::Data => continue,
            Is::Broken(problem) => format!("{name} cannot be read: {problem}"),
            Is::LeftOut { why, is_work } => {
                let size = entry.size().filter(|size| *size > limits::MAX_SOURCE_BYTES);
                let size = size.map(|size| format!(" ({size} bytes)"));
                let size = size.unwrap_or_default();
                left_out
                    .notes
                    .push(format!("{name}{size}: not read, {why}"));
                if is_work {
                    left_out.names.push(name);
                }
                continue;
            }
        };
        unreadable.push(problem);
        left_out.names.push(name);
    }
    if files.is_empty() {
        return Err(match unreadable.as_slice() {
            [] if left_out.names.is_empty() => "its folder holds no supported file".to_owned(),
            [] => format!("no file of it can be read: {}", left_out.names.join(", ")),
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

/// Looks through the folders of one submission.
struct Walk<'a> {
    budget: &'a Budget,
    /// Entries so far.
    seen: usize,
    /// Bytes of archives so far, which are kept until all is read.
    packed: u64,
    found: Vec<Found>,
}

/// Something that is no folder, or is not looked into.
struct Found {
    path: Vec<String>,
    entry: Entry,
    is: Is,
}

enum Is {
    Source(Kind),
    /// It is read if there is no source.
    Data,
    /// It cannot be read.
    Broken(String),
    /// It is not read; it may be somebody's work.
    LeftOut {
        why: &'static str,
        is_work: bool,
    },
}

/// Name that stands for that of an archive in a student's folder, which often is the student's.
const ARCHIVE: &str = "zip";

impl Walk<'_> {
    /// Data is what a student wrote where there is nothing else.
    fn decide_on_data(&mut self) {
        let has_source = self.found.iter().any(|f| matches!(f.is, Is::Source(_)));
        for found in self.found.iter_mut().filter(|f| matches!(f.is, Is::Data)) {
            found.is = match has_source {
                false => Is::Source(Kind::Text),
                true => Is::LeftOut {
                    why: "it is read only where there is no source file",
                    is_work: true,
                },
            };
        }
    }

    fn folder(&mut self, of: &Entry, path: &[String], archives: usize) -> Result<(), String> {
        let entries = match of.entries(self.budget) {
            Ok(entries) => entries,
            Err(problem) if path.is_empty() => return Err(problem),
            Err(problem) => {
                self.push(path.to_vec(), of, Is::Broken(problem));
                return Ok(());
            }
        };
        let mut packed = 0;
        for entry in entries {
            if is_junk(Path::new(&entry.name)) {
                continue;
            }
            self.seen += 1;
            if self.seen > limits::MAX_FOLDER_ENTRIES {
                let most = limits::MAX_FOLDER_ENTRIES;
                return Err(format!("its folder has more than {most} entries"));
            }
            let shape = entry.shape();
            let name = match shape {
                Shape::Archive if packed > 0 => format!("{ARCHIVE} {}", packed + 1),
                Shape::Archive => ARCHIVE.to_owned(),
                _ => entry.name.clone(),
            };
            packed += usize::from(shape == Shape::Archive);
            let path = [path, &[name]].concat();
            match shape {
                Shape::Folder => match self.why_not_inside(&entry, path.len()) {
                    None => self.folder(&entry, &path, archives)?,
                    Some(why) => {
                        let is_work = why != PYTHON;
                        self.push(path, &entry, Is::LeftOut { why, is_work });
                    }
                },
                Shape::Archive if self.is_too_much(&entry) => {
                    let why = "its archives are too large together";
                    self.push(path, &entry, Is::LeftOut { why, is_work: true });
                }
                Shape::Archive if archives > 1 => self.folder(&entry, &path, archives - 1)?,
                Shape::Archive => {
                    let why = "archives in archives are too deep";
                    self.push(path, &entry, Is::LeftOut { why, is_work: true });
                }
                Shape::File | Shape::Problem => {
                    let is = of_file(&entry);
                    self.push(path, &entry, is);
                }
            }
        }
        Ok(())
    }

    /// Counts an archive; true if all so far are more than one may be.
    fn is_too_much(&mut self, archive: &Entry) -> bool {
        self.packed = self.packed.saturating_add(archive.size().unwrap_or(0));
        self.packed > limits::MAX_INNER_ARCHIVE_BYTES
    }

    fn push(&mut self, path: Vec<String>, entry: &Entry, is: Is) {
        let entry = entry.clone();
        self.found.push(Found { path, entry, is });
    }

    /// Why a folder is not looked into.
    fn why_not_inside(&self, folder: &Entry, depth: usize) -> Option<&'static str> {
        if depth >= limits::MAX_FOLDER_DEPTH {
            return Some("too deep a folder");
        }
        if is_of_tool(&folder.name) {
            return Some("tools make folders of this name");
        }
        let inside = folder.entries(self.budget).unwrap_or_default();
        let is_python = inside.iter().any(|e| e.name == PYTHON_ENVIRONMENT);
        is_python.then_some(PYTHON)
    }
}

/// What is done with a file.
fn of_file(entry: &Entry) -> Is {
    match entry.problem() {
        Some(problem) if problem == LINK => {
            return Is::LeftOut {
                why: "links are not followed",
                is_work: true,
            };
        }
        Some(problem) => return Is::Broken(problem),
        None => {}
    }
    if TOOL_FILES.contains(&entry.name.to_lowercase().as_str()) {
        return Is::LeftOut {
            why: OF_A_TOOL,
            is_work: false,
        };
    }
    let path = Path::new(&entry.name);
    let extension = lossy(path.extension()).to_lowercase();
    match kind_of(path) {
        Some(kind) => Is::Source(kind),
        None if NAMED.contains(&entry.name.to_lowercase().as_str()) => Is::Source(Kind::Text),
        None if DATA.contains(&extension.as_str()) => Is::Data,
        None => Is::LeftOut {
            why: "this kind of file is not supported",
            is_work: true,
        },
    }
}

/// The folders that all source files are in.
fn common_folders(found: &[Found]) -> Vec<String> {
    let sources = found.iter().filter(|f| matches!(f.is, Is::Source(_)));
    let mut folders = sources.map(|f| f.path.split_last().map_or(&[][..], |(_, folders)| folders));
    let first = folders.next().unwrap_or_default().to_vec();
    folders.fold(first, |common, other| {
        let pairs = common.iter().zip(other);
        pairs
            .take_while(|(a, b)| a == b)
            .map(|(a, _)| a.clone())
            .collect()
    })
}

pub(crate) fn read_file(
    entry: &Entry,
    name: &str,
    kind: Kind,
    budget: &Budget,
) -> Result<SourceFile, String> {
    let bytes = entry
        .read(kind.max_bytes(), budget)
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
        is_tests: false,
        pseudonyms: Pseudonyms::default(),
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
