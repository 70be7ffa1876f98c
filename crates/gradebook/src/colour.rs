//! Colours of code, and code without its comments.

use std::sync::LazyLock;

use syntect::parsing::{ParseState, Scope, ScopeStack, SyntaxReference, SyntaxSet};
use tandem_grading::{SourceFile, Submission};

use crate::limits::MAX_COLOURED_LINE;

/// Text of one colour.
pub(crate) struct Span {
    pub(crate) class: &'static str,
    pub(crate) text: String,
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

/// The lines of a file with their colours; without them what is too long, or of a kind that is not known.
pub(crate) fn coloured(file: &SourceFile, budget: &mut usize) -> Vec<Vec<Span>> {
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

/// A work without its comments, with the same lines; nothing if it has none, or a language is not known.
pub(crate) fn without_comments(submission: &Submission) -> Option<Submission> {
    let mut bare = submission.clone();
    for file in &mut bare.files {
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
    (bare != *submission).then_some(bare)
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
