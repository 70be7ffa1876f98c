//! What is code in a file, and what is text: colours, code without its comments, and the parts that are no code.

use std::ops::Range;
use std::sync::LazyLock;

use syntect::parsing::{ParseState, Scope, ScopeStack, SyntaxReference, SyntaxSet};

use crate::limits::MAX_COLOURED_LINE;
use crate::source::SourceFile;
use crate::submission::Submission;

/// Text of one colour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// What it is: `c` for a comment, `s` for a string, and so on; empty for what has no colour.
    pub class: &'static str,
    /// The text.
    pub text: String,
}

static SYNTAXES: LazyLock<SyntaxSet> = LazyLock::new(SyntaxSet::load_defaults_newlines);

/// The class of comments.
const COMMENT: &str = "c";

/// Beginnings of scopes and the class of their colour; the first that fits counts.
static CLASSES: LazyLock<Vec<(Scope, &'static str)>> = LazyLock::new(|| {
    let all = [
        ("comment", COMMENT),
        ("string", "s"),
        ("constant.numeric", "n"),
        ("constant.language", "k"),
        ("keyword.operator", ""),
        ("keyword", "k"),
        ("storage", "k"),
        ("entity.name.function", "f"),
        ("variable.function", "f"),
        ("support.function", "f"),
    ];
    all.iter()
        .filter_map(|(scope, class)| Some((Scope::new(scope).ok()?, *class)))
        .collect()
});

fn syntax(name: &str) -> Option<&'static SyntaxReference> {
    let (_, extension) = name.rsplit_once('.')?;
    let extension = match extension.to_lowercase().as_str() {
        "ts" | "tsx" | "jsx" | "mjs" => "js".to_owned(),
        "kt" | "kts" => "java".to_owned(),
        // Cells of another language get plausible colours, too.
        "ipynb" => "py".to_owned(),
        "r" | "rmd" | "qmd" => "R".to_owned(),
        other => other.to_owned(),
    };
    SYNTAXES.find_syntax_by_extension(&extension)
}

/// The lines of a file with their colours; without them what is too long, or of a kind that is not known. `budget` is how many
/// bytes may still get colours.
pub fn coloured(file: &SourceFile, budget: &mut usize) -> Vec<Vec<Span>> {
    let plain = |line: &String| {
        vec![Span {
            class: "",
            text: line.clone(),
        }]
    };
    let bytes: usize = file.lines.iter().map(|line| line.len() + 1).sum();
    let (Some(syntax), true) = (syntax(&file.name), bytes <= *budget) else {
        return file.lines.iter().map(plain).collect();
    };
    *budget -= bytes;
    let mut state = ParseState::new(syntax);
    let mut stack = ScopeStack::new();
    let mut line_of = |line: &String| {
        if line.len() > MAX_COLOURED_LINE {
            return plain(line);
        }
        spans(line, &mut state, &mut stack).unwrap_or_else(|| plain(line))
    };
    file.lines.iter().map(&mut line_of).collect()
}

fn spans(line: &str, state: &mut ParseState, stack: &mut ScopeStack) -> Option<Vec<Span>> {
    let whole = format!("{line}\n");
    let mut spans: Vec<Span> = Vec::new();
    let mut from = 0;
    let mut push = |text: &str, class: &'static str| match spans.last_mut() {
        _ if text.is_empty() => {}
        Some(last) if last.class == class => last.text.push_str(text),
        _ => spans.push(Span {
            class,
            text: text.to_owned(),
        }),
    };
    for (at, op) in state.parse_line(&whole, &SYNTAXES).ok()? {
        let at = at.min(line.len());
        push(line.get(from..at)?, class_of(stack));
        from = at;
        stack.apply(&op).ok()?;
    }
    push(line.get(from..)?, class_of(stack));
    Some(spans)
}

/// A work without its comments, with the same lines; nothing if it has none, or a language is not known. What stands for names
/// is a part of its lines.
#[must_use]
pub fn without_comments(submission: &Submission) -> Option<Submission> {
    let mut bare = submission.clone();
    bare.files.iter_mut().for_each(SourceFile::settle_names);
    let named = bare.clone();
    for file in bare.files.iter_mut().filter(|file| !file.is_tests) {
        // Cells are of several languages.
        let syntax = syntax(&file.name).filter(|_| !file.name.ends_with(".ipynb"))?;
        let mut state = ParseState::new(syntax);
        let mut stack = ScopeStack::new();
        for line in &mut file.lines {
            let kept = spans(line, &mut state, &mut stack)?;
            let kept = kept.iter().filter(|span| span.class != COMMENT);
            *line = kept.map(|span| span.text.as_str()).collect();
        }
    }
    (bare != named).then_some(bare)
}

fn class_of(stack: &ScopeStack) -> &'static str {
    let class = |scope: &Scope| {
        let found = CLASSES
            .iter()
            .find(|(prefix, _)| prefix.is_prefix_of(*scope));
        found.map(|(_, class)| *class)
    };
    stack.as_slice().iter().rev().find_map(class).unwrap_or("")
}

/// Parts of a line that are no code, in bytes.
pub(crate) type Parts = Vec<Range<usize>>;

/// Extensions of files that are text as a whole.
const PROSE: &[&str] = &["md", "rmd", "qmd", "txt", "tex", "csv"];

/// Extensions of a language, what begins a comment to the end of its line, and what stands around another one.
type Comments = (
    &'static [&'static str],
    &'static str,
    Option<(&'static str, &'static str)>,
);

/// Comments of languages whose syntax is not known: what begins one that goes to the end of its line, and what stands around
/// one that does not.
const COMMENTS: &[Comments] = &[
    (&["vb", "bas"], "'", None),
    (&["f", "f03", "f90", "f95", "for"], "!", None),
    (&["elm", "lean"], "--", Some(("{-", "-}"))),
    (&["adb", "ads", "vhd", "vhdl"], "--", None),
    (&["fs", "fsi", "fsx"], "//", Some(("(*", "*)"))),
    (&["sml", "pas", "pp"], "//", Some(("(*", "*)"))),
    (&["asm", "s", "wat", "lsp", "scm", "ss", "rkt"], ";", None),
    (&["pro", "prolog"], "%", Some(("/*", "*/"))),
    (&["cob", "cbl"], "*>", None),
    (
        &[
            "awk", "cr", "ex", "exs", "gd", "jl", "nim", "ps1", "tcl", "bash", "toml", "yaml",
            "yml",
        ],
        "#",
        None,
    ),
];

/// The longest line of code whose text is looked for by its syntax, in bytes.
const MAX_TEXT_LINE: usize = 8 << 10;

/// The parts of each line that are no code: comments, strings, and text. Where the syntax is not known, these are what stands
/// in double quotes, and behind the marks of comments.
pub(crate) fn texts(file: &SourceFile) -> Vec<Parts> {
    let name = file.name.to_lowercase();
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    let mut reader = match extension {
        // What tests said is text, whatever the file is called.
        _ if file.is_tests => Reader::Text,
        "ipynb" => Reader::Text,
        prose if PROSE.contains(&prose) => Reader::Text,
        _ => match syntax(&name) {
            Some(known) => Reader::of(known),
            None => Reader::unknown(&name),
        },
    };
    let is_notebook = extension == "ipynb";
    let has_chunks = matches!(extension, "rmd" | "qmd");
    let mut all = Vec::with_capacity(file.lines.len());
    for line in &file.lines {
        let next = match (is_notebook, has_chunks) {
            (true, _) => of_cell(line),
            (_, true) => of_chunk(line),
            _ => None,
        };
        if let Some(next) = next {
            reader = next;
            all.push(Vec::new());
            continue;
        }
        all.push(reader.read(line));
    }
    all
}

/// How the line of a notebook that begins a cell or its output is gone on with.
fn of_cell(line: &str) -> Option<Reader> {
    if line == "[output]" {
        return Some(Reader::Text);
    }
    let head = line.strip_prefix("[cell ")?.strip_suffix(']')?;
    let (_, kind) = head.split_once(": ")?;
    Some(match kind.split_once(", ") {
        Some((_, "r")) => Reader::by("R"),
        Some((_, language)) => match SYNTAXES.find_syntax_by_token(language) {
            Some(known) => Reader::of(known),
            None => Reader::by("py"),
        },
        None => Reader::Text,
    })
}

/// The same of a line that begins or ends a chunk of code in a text.
fn of_chunk(line: &str) -> Option<Reader> {
    let rest = line.trim_start().strip_prefix("```")?;
    Some(match rest.trim_start_matches('{').get(..1) {
        None => Reader::Text,
        Some("p") => Reader::by("py"),
        Some(_) => Reader::by("R"),
    })
}

/// Tells text from code, line by line.
enum Reader {
    Text,
    Code(Box<(ParseState, ScopeStack)>),
    Unknown(Marks),
}

/// How a language whose syntax is not known marks its comments.
#[derive(Clone, Copy)]
struct Marks {
    line: &'static str,
    block: Option<(&'static str, &'static str)>,
    /// A comment goes on from the line before.
    is_inside: bool,
}

impl Reader {
    fn of(syntax: &SyntaxReference) -> Self {
        Self::Code(Box::new((ParseState::new(syntax), ScopeStack::new())))
    }

    /// By the extension of files in a language that is known.
    fn by(extension: &str) -> Self {
        let known = SYNTAXES.find_syntax_by_extension(extension);
        known.map_or_else(|| Self::unknown(extension), Self::of)
    }

    fn unknown(name: &str) -> Self {
        let extension = name.rsplit_once('.').map(|(_, extension)| extension);
        let is_of = |of: &&Comments| extension.is_some_and(|one| of.0.contains(&one));
        let (line, block) = match (COMMENTS.iter().find(is_of), extension) {
            (Some((_, line, block)), _) => (*line, *block),
            (None, Some(_)) => ("//", Some(("/*", "*/"))),
            // Such as a Makefile.
            (None, None) => ("#", None),
        };
        Self::Unknown(Marks {
            line,
            block,
            is_inside: false,
        })
    }

    fn read(&mut self, line: &str) -> Parts {
        match self {
            Self::Text => std::iter::once(0..line.len()).collect(),
            Self::Code(_) if line.len() > MAX_TEXT_LINE => Marks::STRINGS.clone().read(line),
            Self::Code(state) => {
                let (state, stack) = state.as_mut();
                parts(line, state, stack).unwrap_or_default()
            }
            Self::Unknown(marks) => marks.read(line),
        }
    }
}

impl Marks {
    /// No comments.
    const STRINGS: Self = Self {
        line: "\n",
        block: None,
        is_inside: false,
    };

    fn read(&mut self, line: &str) -> Parts {
        let mut parts = Parts::new();
        let mut from = 0;
        while from < line.len() {
            let rest = &line[from..];
            if self.is_inside {
                let end = self.block.and_then(|(_, end)| rest.find(end));
                let length = end.unwrap_or(rest.len());
                parts.push(from..from + length);
                self.is_inside = end.is_none();
                let mark = self.block.map_or(0, |(_, end)| end.len());
                from += length + if end.is_some() { mark } else { 0 };
                continue;
            }
            if rest.starts_with(self.line) {
                parts.push(from..line.len());
                break;
            }
            let first = rest.chars().next().map_or(1, char::len_utf8);
            match (self.block, rest.strip_prefix('"')) {
                (Some((begin, _)), _) if rest.starts_with(begin) => {
                    self.is_inside = true;
                    from += begin.len();
                }
                (_, Some(text)) => {
                    let length = end_of_string(text);
                    parts.push(from + 1..from + 1 + length);
                    from += 1 + length + usize::from(length < text.len());
                }
                _ => from += first,
            }
        }
        parts.retain(|part| !part.is_empty());
        parts
    }
}

/// Bytes to the quote that ends a string, or to the end of the line.
fn end_of_string(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        match c {
            '"' if !is_escaped => return at,
            '\\' => is_escaped = !is_escaped,
            _ => is_escaped = false,
        }
    }
    text.len()
}

fn parts(line: &str, state: &mut ParseState, stack: &mut ScopeStack) -> Option<Parts> {
    let whole = format!("{line}\n");
    let mut parts: Parts = Vec::new();
    let mut from = 0;
    let mut push = |range: Range<usize>, is_text: bool| match parts.last_mut() {
        _ if range.is_empty() || !is_text => {}
        Some(last) if last.end == range.start => last.end = range.end,
        _ => parts.push(range),
    };
    for (at, op) in state.parse_line(&whole, &SYNTAXES).ok()? {
        let at = at.min(line.len());
        push(from..at, is_text(stack));
        from = at;
        stack.apply(&op).ok()?;
    }
    push(from..line.len(), is_text(stack));
    Some(parts)
}

/// Scopes that are text, and those that are code also inside of text: what a string takes from variables.
static TEXTS: LazyLock<Vec<(Scope, bool)>> = LazyLock::new(|| {
    let all = [
        ("comment", true),
        ("string", true),
        ("meta.interpolation", false),
        ("meta.template.expression", false),
        ("meta.embedded", false),
        // Strings of Python with an `r` before them are read as patterns.
        ("source.regexp", true),
        ("source", false),
        ("variable", false),
        ("meta.tag", false),
        // Of HTML and XML: what stands between tags.
        ("text", true),
    ];
    all.iter()
        .filter_map(|(scope, is_text)| Some((Scope::new(scope).ok()?, *is_text)))
        .collect()
});

fn is_text(stack: &ScopeStack) -> bool {
    let known = |scope: &Scope| {
        let found = TEXTS.iter().find(|(prefix, _)| prefix.is_prefix_of(*scope));
        found.map(|(_, is_text)| *is_text)
    };
    stack
        .as_slice()
        .iter()
        .rev()
        .find_map(known)
        .unwrap_or(false)
}
