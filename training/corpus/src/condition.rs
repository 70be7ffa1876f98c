//! The test of an element in each language.

use crate::plan::Language;
use crate::task::Select;

/// The condition on `element`; with `wrong` the one that is wrong in one respect.
pub(crate) fn condition(
    select: Select,
    language: Language,
    element: &str,
    parameter: &str,
    wrong: bool,
) -> String {
    use Select as S;
    let or = |right: &'static str, other: &'static str| if wrong { other } else { right };
    let (e, p) = (element, parameter);
    let modulo = if language == Language::R { "%%" } else { "%" };
    match select {
        S::Above => format!("{e} {} {p}", or(">", ">=")),
        S::Below => format!("{e} {} {p}", or("<", "<=")),
        S::AtLeast => format!("{e} {} {p}", or(">=", ">")),
        S::AtMost => format!("{e} {} {p}", or("<=", "<")),
        S::Positive => format!("{e} {} 0", or(">", ">=")),
        S::Negative => format!("{e} {} 0", or("<", "<=")),
        S::Even => format!("{e} {modulo} 2 == {}", or("0", "1")),
        S::Odd => format!("{e} {modulo} 2 {} 0", or("!=", "==")),
        S::Multiple => format!("{e} {modulo} {p} == {}", or("0", "1")),
        S::Different => format!("{e} {} {p}", or("!=", "==")),
        S::Longer => format!("{} {} {p}", length(language, e), or(">", ">=")),
        S::Shorter => format!("{} {} {p}", length(language, e), or("<", "<=")),
        S::Starting if wrong => contains(language, e, p),
        S::Starting | S::Containing if select == S::Starting || wrong => match language {
            Language::Python => format!("{e}.startswith({p})"),
            Language::Java => format!("{e}.startsWith({p})"),
            Language::R => format!("startsWith({e}, {p})"),
        },
        S::Ending if !wrong => match language {
            Language::Python => format!("{e}.endswith({p})"),
            Language::Java => format!("{e}.endsWith({p})"),
            Language::R => format!("endsWith({e}, {p})"),
        },
        S::Starting | S::Containing | S::Ending => contains(language, e, p),
    }
}

/// The length of a word.
pub(crate) fn length(language: Language, word: &str) -> String {
    match language {
        Language::Python => format!("len({word})"),
        Language::Java => format!("{word}.length()"),
        Language::R => format!("nchar({word})"),
    }
}

fn contains(language: Language, e: &str, p: &str) -> String {
    match language {
        Language::Python => format!("{p} in {e}"),
        Language::Java => format!("{e}.contains({p})"),
        Language::R => format!("grepl({p}, {e}, fixed = TRUE)"),
    }
}
