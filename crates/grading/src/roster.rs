//! By what a person is known: in what was handed in, and in the row of a gradebook.
//!
//! What is the same in letters may mean somebody else: the number of a Canvas user is no number of Moodle's, and no part of
//! a name is a login. So each key has its kind, and keys of one kind are compared alone. Where both sides have a kind, it
//! decides, unless another row fits by a kind in which this one does not.

use std::collections::{BTreeMap, BTreeSet};

use unicode_normalization::UnicodeNormalization;
use unicode_normalization::char::is_combining_mark;

use crate::origin::{self, Origin, Student, System};
use crate::source::kind_of;
use crate::tree::stem;
use std::path::Path;

/// What a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The number of a user of Canvas.
    Canvas,
    /// The number of a participant in an assignment of Moodle.
    Participant,
    /// The school's own number.
    School,
    /// A login of GitHub, which is no login of the school.
    Github,
    Login,
    Address,
    Name,
}

/// Kinds in the order in which they decide.
const KINDS: [Kind; 7] = [
    Kind::Canvas,
    Kind::Participant,
    Kind::School,
    Kind::Github,
    Kind::Address,
    Kind::Login,
    Kind::Name,
];

/// All that one person is known by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Keys {
    of: BTreeMap<Kind, BTreeSet<String>>,
    /// Of what is known it is not known of which kind it is.
    is_plain: bool,
}

/// One form of each letter, in lower case, without space around it, nor what keeps Excel from making a number of it.
fn plain(text: &str) -> String {
    let text = text.trim();
    let bare = text.strip_prefix("=\"").and_then(|t| t.strip_suffix('"'));
    let text: String = bare.unwrap_or(text).nfc().collect();
    text.to_lowercase()
}

/// The words of a name, in one order: `Last, First` and `First Last` are the same.
fn words(name: &str) -> String {
    let name = plain(name);
    // A mark belongs to its letter: in many scripts it makes another word of it.
    let words = name.split(|c: char| !c.is_alphanumeric() && !is_combining_mark(c));
    let mut words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.sort_unstable();
    words.join(" ")
}

/// A name as Canvas writes it in archives: the letters of the last and the first one, without a space.
fn compact(name: &str) -> String {
    let letters = plain(name)
        .chars()
        .filter(|c| c.is_alphanumeric())
        .collect::<String>();
    format!("={letters}")
}

impl Keys {
    /// Adds what a cell or a system says; an address is one, wherever it stands.
    pub(crate) fn add(&mut self, kind: Kind, text: &str) {
        let (kind, key) = match kind {
            Kind::Name => (kind, words(text)),
            Kind::Login if text.contains('@') => (Kind::Address, plain(text)),
            kind => (kind, plain(text)),
        };
        if !key.is_empty() {
            self.of.entry(kind).or_default().insert(key);
        }
    }

    /// Adds the name in a row, as it stands and as Canvas would write it in archives.
    pub(crate) fn add_name_of_row(&mut self, name: &str) {
        self.add(Kind::Name, name);
        if !words(name).is_empty() {
            let names = self.of.entry(Kind::Name).or_default();
            names.insert(compact(name));
        }
    }

    /// Those of what somebody handed in, one for each student.
    pub(crate) fn of_submission(name: &str, origin: &Origin) -> Vec<Self> {
        if !origin.students.is_empty() {
            let of = |student| Self::of_student(origin.system, student);
            return origin.students.iter().map(of).collect();
        }
        // What an earlier version took in, file by file; this one has looked at the names of the whole course.
        let is_earlier = *origin == Origin::default();
        if let Some((system, student)) = origin::of_name(name).filter(|_| is_earlier) {
            return vec![Self::of_student(system, &student)];
        }
        // Of two of one name, both have their extension.
        let name = match kind_of(Path::new(name)) {
            Some(_) => stem(name),
            None => name.to_owned(),
        };
        let mut keys = Self::of_unknown(&name);
        keys.add(Kind::Name, &name);
        vec![keys]
    }

    /// A whole text that may be a login or a number; no part of it is.
    fn of_unknown(text: &str) -> Self {
        let mut keys = Self {
            is_plain: true,
            ..Self::default()
        };
        for kind in [Kind::Login, Kind::Github, Kind::School] {
            keys.add(kind, text);
        }
        keys
    }

    fn of_student(system: System, student: &Student) -> Self {
        let mut keys = Self::default();
        let of_id = match system {
            System::Canvas => Kind::Canvas,
            System::Moodle => Kind::Participant,
            System::Gradescope => Kind::School,
            System::Classroom => Kind::Github,
            // Whatever the school chose.
            System::Nbgrader | System::Submitty | System::Plain => {
                let id = student.ids.first().unwrap_or(&student.name);
                return Self::of_unknown(id);
            }
        };
        for id in &student.ids {
            let kind = if id.contains('@') {
                Kind::Address
            } else {
                of_id
            };
            keys.add(kind, id);
        }
        match system {
            // Letters of the last and the first name, without a space.
            System::Canvas => {
                let names = keys.of.entry(Kind::Name).or_default();
                names.insert(format!("={}", plain(&student.name)));
            }
            // The number tells those of one name apart.
            System::Moodle => {
                let number = student.ids.first().map_or("", String::as_str);
                let name = student.name.strip_suffix(number);
                keys.add(Kind::Name, name.unwrap_or(&student.name));
            }
            _ => keys.add(Kind::Name, &student.name),
        }
        keys
    }

    /// Whether a kind fits; nothing if one of both lacks it.
    fn fits(&self, other: &Self, kind: Kind) -> Option<bool> {
        let (own, theirs) = (self.of.get(&kind)?, other.of.get(&kind)?);
        Some(!own.is_disjoint(theirs))
    }

    /// Whether both are one person. Of what is not known to be a login, a number or a name, any may fit; else the first kind
    /// that both have decides. Moodle numbers groups as it does participants, so there the name has to fit, too.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let mut all = KINDS
            .into_iter()
            .filter_map(|kind| Some((kind, self.fits(other, kind)?)));
        if self.is_plain {
            return all.any(|(_, fits)| fits);
        }
        match all.next() {
            Some((Kind::Participant, true)) => self.fits(other, Kind::Name) != Some(false),
            Some((_, fits)) => fits,
            None => false,
        }
    }

    /// Whether something of this one fits a third person, and not the one that was found.
    pub(crate) fn contradicts(&self, found: &Self, third: &Self) -> bool {
        let is_so =
            |kind| self.fits(third, kind) == Some(true) && self.fits(found, kind) == Some(false);
        KINDS.into_iter().any(is_so)
    }
}
