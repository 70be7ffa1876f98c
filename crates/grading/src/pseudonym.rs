//! What stands for students in prompts: names, numbers, logins and addresses of a course are replaced in text, and put back into
//! what models write.
//!
//! [`Roster::new`] knows the people of a course, [`Roster::hide`] finds them in a submission. The files stay as they are: a
//! prompt takes [`SourceFile::prompt_line`] and [`SourceFile::prompt_name`], and answers go through [`Submission::named`].
//! Only text is replaced, that is comments, strings, prose and names of files: a program stays what it is, token by token. A
//! first name alone is a common word, and stays.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::path::PathBuf;

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use crate::error::GradingError;
use crate::export;
use crate::origin::{Origin, System};
use crate::rubric::Rubric;
use crate::source::{Pseudonyms, SourceFile, is_lone, lone_name};
use crate::submission::{self, Submission};
use crate::syntax::{self, Parts};

/// Words of a name that are looked at together.
const MAX_WORDS: usize = 12;
/// The same of a name that a system gave without spaces.
const MAX_JOINED_WORDS: usize = 4;
/// Most bytes between two words of a name.
const MAX_GAP: usize = 8;
/// Fewest letters of what is replaced where it is written as one word.
const MIN_JOINED: usize = 7;
/// Fewest characters of a number that is replaced.
const MIN_NUMBER: usize = 6;
/// Fewest characters of a login with a digit or a mark in it.
const MIN_LOGIN: usize = 4;
/// Fewest letters of a login that is made of a name.
const MIN_NAME_LOGIN: usize = 6;
/// What stands before the name of a user in a path.
const HOMES: [&str; 4] = [
    concat!("/", "home/"),
    concat!("/", "Users/"),
    "\\Users\\",
    "\\\\Users\\\\",
];
/// Names of users that are nobody's.
const NOBODY: &[&str] = &[
    "user", "student", "jovyan", "runner", "root", "public", "shared", "username", "default",
];

/// Begins what stands for the name of a user in a path.
const USER: &str = "user_";

impl SourceFile {
    /// A line as models are shown it; `line` is what it is, of the same number from 1.
    pub(crate) fn prompt_line<'a>(&'a self, number: usize, line: &'a str) -> &'a str {
        self.pseudonyms
            .lines
            .get(&number)
            .map_or(line, String::as_str)
    }

    /// The path as models are shown it.
    pub(crate) fn prompt_name(&self) -> &str {
        self.pseudonyms.name.as_deref().unwrap_or(&self.name)
    }

    /// Makes what models are shown the lines of the file.
    pub(crate) fn settle_names(&mut self) {
        for (number, line) in std::mem::take(&mut self.pseudonyms.lines) {
            if let Some(place) = self.lines.get_mut(number.saturating_sub(1)) {
                *place = line;
            }
        }
    }
}

impl Submission {
    /// The text of a model with the people that were hidden from it.
    #[must_use]
    pub fn named(&self, text: &str) -> String {
        let known = self.files.iter().flat_map(|file| &file.pseudonyms.of);
        // The last ones first: the first spelling of a name is the beginning of what stands for the others.
        let mut known: Vec<(&String, &String)> = known.collect();
        known.sort_unstable_by(|a, b| b.cmp(a));
        known
            .into_iter()
            .fold(text.to_owned(), |text, (pseudonym, name)| {
                match text.contains(pseudonym.as_str()) {
                    true => text.replace(pseudonym.as_str(), name),
                    false => text,
                }
            })
    }

    /// The other way: a text that is sent back to a model.
    pub(crate) fn nameless(&self, text: &str) -> String {
        let known = self.files.iter().flat_map(|file| &file.pseudonyms.of);
        // The name of a user is any word where it stands in no path.
        let known = known.filter(|(pseudonym, _)| !pseudonym.starts_with(USER));
        known.fold(text.to_owned(), |text, (pseudonym, name)| {
            match text.contains(name.as_str()) {
                true => replaced_words(&text, name, pseudonym),
                false => text,
            }
        })
    }

    /// The same without a trace of who is hidden.
    pub fn forget_pseudonyms(&mut self) {
        for file in &mut self.files {
            file.pseudonyms = Pseudonyms::default();
        }
    }
}

/// Finds and reads submissions: each path is a file, or a folder or a zip archive in which every file and every
/// sub-folder is one submission. An archive is read wherever a folder may be. Of several archives, each is one submission,
/// unless most of them are courses.
///
/// No model is shown whose they are.
/// What cannot be read becomes a submission with a `problem`; it never stops the others.
///
/// # Errors
/// A path that does not exist, no submission at all, more than [`limits::MAX_SUBMISSIONS`](crate::limits::MAX_SUBMISSIONS), or archives that unpack to more
/// than [`limits::MAX_ARCHIVE_BYTES`](crate::limits::MAX_ARCHIVE_BYTES).
pub fn load_submissions(paths: &[PathBuf]) -> Result<Vec<Submission>, GradingError> {
    load(paths, None)
}

/// The same for a rubric: of nbgrader's tree with several assignments, the one that has its title or id.
///
/// # Errors
/// As [`load_submissions`].
pub fn load_submissions_for(
    paths: &[PathBuf],
    rubric: &Rubric,
) -> Result<Vec<Submission>, GradingError> {
    load(paths, Some(rubric))
}

fn load(paths: &[PathBuf], rubric: Option<&Rubric>) -> Result<Vec<Submission>, GradingError> {
    let mut all = submission::read_submissions(paths, rubric)?;
    let known = all.iter().map(|one| (one.name.as_str(), &one.origin));
    let roster = Roster::new(known, None);
    all.iter_mut().for_each(|one| roster.hide(one));
    Ok(all)
}

/// A way to write a name, as one word without marks on letters.
#[derive(Debug, Clone)]
struct Form {
    /// What stands for the person.
    pseudonym: String,
    /// Only some words of the name: they may be common words, unless they begin with capitals.
    is_part: bool,
}

/// The people of a course.
#[derive(Debug, Clone, Default)]
pub struct Roster {
    forms: HashMap<String, Form>,
    /// Words with which a form begins; all where a system gives names without spaces.
    starts: HashSet<String>,
    /// Names that a system gave without spaces.
    is_joined: bool,
    /// Names in scripts without spaces between words, taken apart, by their first letter.
    solid: HashMap<char, Vec<(Vec<char>, String)>>,
    /// Numbers, logins and addresses; and the most parts between marks that one has.
    exact: HashMap<String, String>,
    max_parts: usize,
}

/// Letters without marks, in lower case; letters of their own in the two that are written for them.
fn folded(text: &str) -> String {
    if text.is_ascii() {
        return text.to_ascii_lowercase();
    }
    let letters = text.nfkd().filter(|c| !is_combining_mark(*c));
    let lower: String = letters.flat_map(char::to_lowercase).collect();
    let mut out = String::with_capacity(lower.len());
    for c in lower.nfkd().filter(|c| !is_combining_mark(*c)) {
        match c {
            'ß' => out.push_str("ss"),
            'æ' => out.push_str("ae"),
            'œ' => out.push_str("oe"),
            'þ' => out.push_str("th"),
            'ø' => out.push('o'),
            'ł' => out.push('l'),
            'đ' | 'ð' => out.push('d'),
            'ı' => out.push('i'),
            c => out.push(c),
        }
    }
    out
}

/// What was folded, with one letter for the two that German writes for it: so `ue` is `ü` and `u`, whoever writes it how.
fn plain(folded: &str) -> String {
    [("ae", "a"), ("oe", "o"), ("ue", "u")]
        .iter()
        .fold(folded.to_owned(), |text, (two, one)| text.replace(two, one))
}

/// Whether words of a script stand without spaces between them.
fn is_solid(c: char) -> bool {
    matches!(u32::from(c), 0x3040..=0x30FF | 0x3400..=0x9FFF | 0xAC00..=0xD7AF | 0xF900..=0xFAFF | 0x20000..=0x3FFFF)
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || is_combining_mark(c)
}

/// Five letters and digits that stay the same for a person, without vowels, so that they make no word.
fn code(key: &str) -> String {
    const LETTERS: &[u8] = b"BCDFGHJKLMNPQRSTVWXZ23456789";
    let digest = blake3::hash(key.as_bytes());
    let letters = digest.as_bytes().iter().take(5);
    letters
        .map(|byte| char::from(LETTERS[usize::from(*byte) % LETTERS.len()]))
        .collect()
}

/// The words of a name in the order in which it is said; of `Last, First` the last name comes last.
fn words(name: &str) -> Vec<String> {
    let said = match name.split_once(',') {
        Some((last, first)) => format!("{first} {last}"),
        None => name.to_owned(),
    };
    let words = said
        .split(|c: char| !is_word(c))
        .filter(|word| !word.is_empty());
    words
        .filter(|word| !word.contains(|c: char| c.is_ascii_digit()))
        .map(str::to_owned)
        .collect()
}

impl Roster {
    /// Of those who handed in the submissions with these names and origins, and all in a teacher's own gradebook.
    pub fn new<'a>(
        submissions: impl IntoIterator<Item = (&'a str, &'a Origin)>,
        gradebook: Option<&[u8]>,
    ) -> Self {
        let mut roster = Self::default();
        for (name, origin) in submissions {
            // A folder or a file for each student: it may be called so.
            if origin.students.is_empty() && is_like_a_name(name) {
                roster.add_name(name);
            }
            for student in &origin.students {
                let is_canvas = origin.system == System::Canvas;
                match is_canvas {
                    true => roster.add_joined(&student.name),
                    false => roster.add_name(&student.name),
                }
                // A page calls a student of Canvas as the gradebook does.
                if is_canvas && origin.students.len() == 1 {
                    roster.add_name(name);
                }
                for id in &student.ids {
                    roster.add_exact(id, &[student.name.as_str(), name]);
                }
            }
        }
        // What is no gradebook names nobody.
        for (name, ids) in gradebook.map(export::people).unwrap_or_default() {
            roster.add_name(&name);
            for id in &ids {
                roster.add_exact(id, &[name.as_str()]);
            }
        }
        roster
    }

    fn add_name(&mut self, name: &str) {
        let words = words(name);
        let solid: String = words.concat();
        if solid.chars().any(is_solid) && solid.chars().count() > 1 {
            let pseudonym = format!("Student_{}", code(&solid.nfc().collect::<String>()));
            // In such scripts the last name stands first, with a comma or without.
            let written: String = name.chars().filter(|c| is_word(*c)).collect();
            for name in [written, solid] {
                let apart: Vec<char> = name.nfd().collect();
                let all = self.solid.entry(apart[0]).or_default();
                if all.iter().all(|(known, _)| *known != apart) {
                    all.push((apart, pseudonym.clone()));
                }
            }
            return;
        }
        if words.len() < 2 || words.len() > MAX_WORDS {
            return;
        }
        let words: Vec<String> = words.iter().map(|word| folded(word)).collect();
        let mut sorted = words.clone();
        sorted.sort_unstable();
        let pseudonym = format!("Student_{}", code(&sorted.join(" ")));
        for first in 0..words.len() {
            let turned = [&words[first..], &words[..first]].concat();
            self.add_form(&turned, &pseudonym, false);
        }
        for (i, one) in words.iter().enumerate() {
            for other in &words[i + 1..] {
                let is_part = words.len() > 2;
                self.add_form(&[one.clone(), other.clone()], &pseudonym, is_part);
                self.add_form(&[other.clone(), one.clone()], &pseudonym, is_part);
            }
        }
    }

    fn add_form(&mut self, words: &[String], pseudonym: &str, is_part: bool) {
        let joined = plain(&words.concat());
        // Two letters are no name.
        let is_short = |word: &String| word.chars().count() < 2;
        if joined.chars().count() < 4 || is_part && words.iter().any(is_short) {
            return;
        }
        self.starts.extend(words.first().map(|word| plain(word)));
        self.starts.insert(joined.clone());
        let form = Form {
            pseudonym: pseudonym.to_owned(),
            is_part,
        };
        let known = self.forms.entry(joined).or_insert_with(|| form.clone());
        known.is_part &= is_part;
    }

    /// A name of which it is not known where its words end.
    fn add_joined(&mut self, name: &str) {
        let name = plain(&folded(name));
        if name.chars().count() < MIN_JOINED || name.contains(|c: char| !c.is_alphabetic()) {
            return;
        }
        let pseudonym = format!("Student_{}", code(&name));
        self.is_joined = true;
        self.starts.insert(name.clone());
        self.forms.entry(name).or_insert(Form {
            pseudonym,
            is_part: false,
        });
    }

    /// A number, a login or an address of somebody with these names.
    fn add_exact(&mut self, id: &str, names: &[&str]) {
        let id = id.trim().to_lowercase();
        let count = id.chars().count();
        let digits = id.chars().filter(char::is_ascii_digit).count();
        let is_known = match () {
            () if id.contains('@') => true,
            () if digits == count => count >= MIN_NUMBER,
            () if id.contains(|c: char| !c.is_alphabetic()) => count >= MIN_LOGIN,
            // One word may be any word, unless it is made of the name.
            () => count >= MIN_NAME_LOGIN && names.iter().any(|name| is_made_of(&id, name)),
        };
        if !is_known || id.contains(char::is_whitespace) {
            return;
        }
        let code = code(&id).to_lowercase();
        let pseudonym = match id.contains('@') {
            true => format!("student_{code}@mail.example"),
            false => format!("id_{code}"),
        };
        self.max_parts = self.max_parts.max(runs(&id, is_word).len());
        self.exact.insert(id, pseudonym);
    }

    /// Finds the people in a submission, and says what stands for them.
    pub fn hide(&self, submission: &mut Submission) {
        submission.forget_pseudonyms();
        // No model is asked about it.
        if submission.problem.is_some() {
            return;
        }
        let mut spellings = Spellings::default();
        let mut code = CodeWords {
            submission,
            words: None,
        };
        let hidden: Vec<Pseudonyms> = submission
            .files
            .iter()
            .map(|file| self.hide_in(file, &mut code, &mut spellings))
            .collect();
        for (file, pseudonyms) in submission.files.iter_mut().zip(hidden) {
            file.pseudonyms = pseudonyms;
        }
    }

    fn hide_in(
        &self,
        file: &SourceFile,
        code: &mut CodeWords<'_>,
        spellings: &mut Spellings,
    ) -> Pseudonyms {
        let mut pseudonyms = Pseudonyms::default();
        let candidates: Vec<(usize, Vec<Found>)> = (0..)
            .zip(&file.lines)
            .map(|(index, line)| (index, self.find(line)))
            .filter(|(_, found)| !found.is_empty())
            .collect();
        let texts = match candidates.is_empty() {
            true => Vec::new(),
            false => syntax::texts(file),
        };
        for (index, mut found) in candidates {
            let line = &file.lines[index];
            let none = Parts::new();
            let parts = texts.get(index).unwrap_or(&none);
            found.retain(|one| {
                let is_in =
                    |part: &Range<usize>| part.start <= one.at.start && one.at.end <= part.end;
                parts.iter().any(is_in) && !code.has(&line[one.at.clone()])
            });
            if !found.is_empty() {
                let line = spellings.replace(line, &found, &mut pseudonyms.of);
                pseudonyms.lines.insert(index + 1, line);
            }
        }
        // The name of a lone file is shown to no model; one that the code names has to stay.
        let files = &code.submission.files;
        if is_lone(files, file) {
            // Where evidence has to name it, because results of tests are beside it.
            pseudonyms.name = (files.len() > 1).then(|| lone_name(file));
        } else {
            let mut found = self.find(&file.name);
            found.retain(|one| !code.has(&file.name[one.at.clone()]));
            if !found.is_empty() {
                pseudonyms.name = Some(spellings.replace(&file.name, &found, &mut pseudonyms.of));
            }
        }
        pseudonyms
    }

    /// The people in a line, in their order, none inside of another.
    fn find(&self, line: &str) -> Vec<Found> {
        let mut places = Places::default();
        self.find_exact(line, &mut places);
        find_homes(line, &mut places);
        self.find_solid(line, &mut places);
        self.find_names(line, &mut places);
        let found = places.0.into_iter();
        found
            .map(|(start, (end, pseudonym))| Found {
                at: start..end,
                pseudonym,
            })
            .collect()
    }

    fn find_exact(&self, line: &str, places: &mut Places) {
        if self.exact.is_empty() {
            return;
        }
        let is_part = |c: char| is_word(c) || matches!(c, '.' | '_' | '-' | '+' | '@' | '\'');
        for range in runs(line, is_part) {
            // Also between marks, as in the name of a file: the longest first.
            let parts = runs(&line[range.clone()], is_word);
            for first in 0..parts.len() {
                let last = parts.len().min(first + self.max_parts);
                for end in (first + 1..=last).rev() {
                    let at = range.start + parts[first].start..range.start + parts[end - 1].end;
                    let id = line[at.clone()].to_lowercase();
                    if let Some(pseudonym) = self.exact.get(&id) {
                        places.push(at, pseudonym);
                        break;
                    }
                }
            }
        }
    }

    /// Names in scripts without spaces, with or without one.
    fn find_solid(&self, line: &str, places: &mut Places) {
        if self.solid.is_empty() || line.is_ascii() {
            return;
        }
        // Each letter taken apart, with the place of the whole one.
        let mut letters: Vec<(char, Range<usize>)> = Vec::new();
        for (at, c) in line.char_indices().filter(|(_, c)| !c.is_whitespace()) {
            let place = at..at + c.len_utf8();
            letters.extend(std::iter::once(c).nfd().map(|part| (part, place.clone())));
        }
        for (i, (first, place)) in letters.iter().enumerate() {
            for (name, pseudonym) in self.solid.get(first).into_iter().flatten() {
                let Some(part) = letters.get(i..i + name.len()) else {
                    continue;
                };
                if part
                    .iter()
                    .zip(name)
                    .all(|((letter, _), known)| letter == known)
                {
                    let end = part.last().map_or(place.end, |(_, place)| place.end);
                    places.push(place.start..end, pseudonym);
                }
            }
        }
    }

    fn find_names(&self, line: &str, places: &mut Places) {
        if self.forms.is_empty() {
            return;
        }
        let words = runs(line, is_word);
        let mut from = 0;
        while from < words.len() {
            from = match self.name_at(line, &words[from..]) {
                Some((count, pseudonym)) => {
                    places.push(words[from].start..words[from + count - 1].end, pseudonym);
                    from + count
                }
                None => from + 1,
            };
        }
    }

    /// The name with which a row of words begins: how many they are, and what stands for it.
    fn name_at(&self, line: &str, words: &[Range<usize>]) -> Option<(usize, &str)> {
        let first = folded(&line[words[0].clone()]);
        let most = match (self.starts.contains(&plain(&first)), self.is_joined) {
            (true, _) => MAX_WORDS,
            (false, true) => MAX_JOINED_WORDS,
            (false, false) => return None,
        };
        // The second one is without single letters, as for a second first name.
        let (mut joined, mut without) = (first.clone(), first.clone());
        let mut best = None;
        for count in 1..=most.min(words.len()) {
            if count > 1 {
                let gap = &line[words[count - 2].end..words[count - 1].start];
                let is_gap = |c: char| c.is_whitespace() || ",._-'’|/;&".contains(c);
                if gap.len() > MAX_GAP || !gap.chars().all(is_gap) {
                    break;
                }
                let word = folded(&line[words[count - 1].clone()]);
                joined.push_str(&word);
                if word.chars().count() > 1 {
                    without.push_str(&word);
                }
            }
            let turned = || match count {
                // A system that gives no spaces has the last name first.
                2..=MAX_JOINED_WORDS if self.is_joined => {
                    let last = folded(&line[words[count - 1].clone()]);
                    let first = joined.strip_suffix(last.as_str())?;
                    self.forms.get(&plain(&format!("{last}{first}")))
                }
                _ => None,
            };
            let form = self.forms.get(&plain(&joined));
            let form = form.or_else(|| self.forms.get(&plain(&without)));
            let Some(form) = form.or_else(turned) else {
                continue;
            };
            let is_capital = |word: &Range<usize>| {
                line[word.clone()]
                    .chars()
                    .next()
                    .is_some_and(char::is_uppercase)
            };
            let is_enough = match (count, form.is_part) {
                (1, _) => joined.chars().count() >= MIN_JOINED,
                (_, true) => words[..count].iter().all(is_capital),
                (_, false) => true,
            };
            if is_enough {
                best = Some((count, form.pseudonym.as_str()));
            }
        }
        best
    }
}

/// Somebody in a line.
struct Found {
    at: Range<usize>,
    pseudonym: String,
}

/// Where people are in a line: the end of each, and what stands for it, by its start.
#[derive(Default)]
struct Places(BTreeMap<usize, (usize, String)>);

impl Places {
    /// Adds one, unless another one is there.
    fn push(&mut self, at: Range<usize>, pseudonym: &str) {
        let before = self.0.range(..at.end).next_back();
        if before.is_none_or(|(_, (end, _))| *end <= at.start) {
            self.0.insert(at.start, (at.end, pseudonym.to_owned()));
        }
    }
}

/// Which words are code in a submission; they are looked for where one is needed.
struct CodeWords<'a> {
    submission: &'a Submission,
    words: Option<HashSet<String>>,
}

impl CodeWords<'_> {
    fn has(&mut self, text: &str) -> bool {
        let submission = self.submission;
        let words = self.words.get_or_insert_with(|| code_words_of(submission));
        is_identifier(text) && words.contains(text)
    }
}

/// What stands for each spelling in a submission: so each comes back as it was.
#[derive(Default)]
struct Spellings {
    of: HashMap<(String, String), String>,
    counts: HashMap<String, usize>,
}

impl Spellings {
    fn stands_for(&mut self, pseudonym: &str, text: &str) -> String {
        let key = (pseudonym.to_owned(), text.to_owned());
        if let Some(known) = self.of.get(&key) {
            return known.clone();
        }
        let count = self.counts.entry(pseudonym.to_owned()).or_default();
        *count += 1;
        let own = match (*count, pseudonym.split_once('@')) {
            (1, _) => pseudonym.to_owned(),
            (number, Some((name, host))) => format!("{name}_{number}@{host}"),
            (number, None) => format!("{pseudonym}_{number}"),
        };
        self.of.insert(key, own.clone());
        own
    }

    /// A line with what stands for the people in it.
    fn replace(
        &mut self,
        line: &str,
        found: &[Found],
        of: &mut BTreeMap<String, String>,
    ) -> String {
        let mut out = String::with_capacity(line.len());
        let mut from = 0;
        for one in found {
            let text = &line[one.at.clone()];
            let own = self.stands_for(&one.pseudonym, text);
            out.push_str(&line[from..one.at.start]);
            out.push_str(&own);
            from = one.at.end;
            of.insert(own, text.to_owned());
        }
        out.push_str(&line[from..]);
        out
    }
}

/// Rows of characters of a kind, as ranges.
fn runs(text: &str, is: impl Fn(char) -> bool) -> Vec<Range<usize>> {
    let mut all: Vec<Range<usize>> = Vec::new();
    for (at, c) in text.char_indices().filter(|(_, c)| is(*c)) {
        match all.last_mut() {
            Some(last) if last.end == at => last.end = at + c.len_utf8(),
            _ => all.push(at..at + c.len_utf8()),
        }
    }
    all
}

/// Names of users in paths of their folders.
fn find_homes(line: &str, places: &mut Places) {
    for home in HOMES {
        for (at, _) in line.match_indices(home) {
            let start = at + home.len();
            let is_end = |c: char| !(is_word(c) || matches!(c, '.' | '_' | '-' | ' '));
            let rest = &line[start..];
            let end = rest.find(is_end).unwrap_or(rest.len());
            // A name with a space goes on only to a mark between folders.
            let is_folder = rest[end..].starts_with(['/', '\\']);
            let name = match is_folder {
                true => &rest[..end],
                false => rest[..end].split(' ').next().unwrap_or_default(),
            };
            if !name.trim().is_empty() && !NOBODY.contains(&name.to_lowercase().as_str()) {
                let code = code(&name.to_lowercase()).to_lowercase();
                places.push(start..start + name.len(), &format!("{USER}{code}"));
            }
        }
    }
}

/// A text with one word for another, where that is no part of a longer one.
fn replaced_words(text: &str, word: &str, by: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(word) {
        let is_whole = !before.ends_with(is_word) && !after.starts_with(is_word);
        out.push_str(before);
        out.push_str(if is_whole { by } else { word });
        rest = after;
    }
    out.push_str(rest);
    out
}

fn is_identifier(text: &str) -> bool {
    let mut letters = text.chars();
    let is_first = letters
        .next()
        .is_some_and(|c| c.is_alphabetic() || c == '_');
    is_first && letters.all(|c| c.is_alphanumeric() || c == '_')
}

/// All words that are code in a submission.
fn code_words_of(submission: &Submission) -> HashSet<String> {
    let mut all = HashSet::new();
    for file in submission.files.iter().filter(|file| !file.is_tests) {
        for (line, texts) in file.lines.iter().zip(syntax::texts(file)) {
            let mut from = 0;
            let end = std::iter::once(line.len()..line.len());
            for text in texts.into_iter().chain(end) {
                let code = line.get(from..text.start).unwrap_or_default();
                let words = code.split(|c: char| !(c.is_alphanumeric() || c == '_'));
                all.extend(words.filter(|word| !word.is_empty()).map(str::to_owned));
                from = text.end;
            }
        }
    }
    all
}

/// Whether a login is made of letters of a name: the beginning of one word, and another one as a whole.
fn is_made_of(login: &str, name: &str) -> bool {
    let words: Vec<String> = words(name)
        .iter()
        .map(|word| plain(&folded(word)))
        .collect();
    let login = plain(&folded(login));
    words.iter().enumerate().any(|(i, whole)| {
        let others = words.iter().enumerate().filter(|(j, _)| *j != i);
        let rests = [
            login.strip_prefix(whole.as_str()),
            login.strip_suffix(whole.as_str()),
        ];
        let is_of = |rest: &&str| {
            !rest.is_empty() && others.clone().any(|(_, other)| other.starts_with(*rest))
        };
        rests.iter().flatten().any(is_of)
    })
}

/// Whether a file or folder is called as people are: several words, each with a capital where its script has them.
fn is_like_a_name(name: &str) -> bool {
    let is_begun = |word: &String| word.chars().next().is_some_and(|c| !c.is_lowercase());
    let has_digit = name.contains(|c: char| c.is_ascii_digit());
    let words = words(name);
    let is_solid = words.concat().chars().any(is_solid);
    !has_digit && (words.len() > 1 || is_solid) && words.iter().all(is_begun)
}
