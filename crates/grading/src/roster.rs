//! By what a person is known: in what was handed in, and in the row of a gradebook.
//!
//! What is the same in letters may mean somebody else: the number of a Canvas user is no number of Moodle's, and no part of
//! a name is a login. So each key has its kind, and keys of one kind are compared alone. Where both sides have a kind, it
//! decides, and a name that is the same does not count against it.

use std::collections::{BTreeMap, BTreeSet};

use unicode_normalization::UnicodeNormalization;

use crate::origin::{self, Origin, Student, System};

/// What a key is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The number of a user of Canvas.
    Canvas,
    /// The number of a participant in an assignment of Moodle.
    Participant,
    /// The school's own number.
    School,
    Login,
    Address,
    Name,
}

/// Kinds in the order in which they decide.
const KINDS: [Kind; 6] = [
    Kind::Canvas,
    Kind::Participant,
    Kind::School,
    Kind::Address,
    Kind::Login,
    Kind::Name,
];

/// All that one person is known by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Keys {
    of: BTreeMap<Kind, BTreeSet<String>>,
}

/// One form of each letter, in lower case, without space around it.
fn plain(text: &str) -> String {
    let text: String = text.trim().nfc().collect();
    text.to_lowercase()
}

/// The words of a name, in one order: `Last, First` and `First Last` are the same.
fn words(name: &str) -> String {
    let name = plain(name);
    let words = name.split(|c: char| !c.is_alphanumeric());
    let mut words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
    words.sort_unstable();
    words.join(" ")
}

/// `Last, First` as Canvas writes it in archives.
fn compact(name: &str) -> Option<String> {
    name.contains(',').then(|| {
        let letters = plain(name)
            .chars()
            .filter(|c| c.is_alphanumeric())
            .collect::<String>();
        format!("={letters}")
    })
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
        if let (Kind::Name, Some(compact)) = (kind, compact(text)) {
            self.of.entry(kind).or_default().insert(compact);
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
        // A whole name may be a login or a number; no part of it is.
        let mut keys = Self::default();
        keys.add(Kind::Name, name);
        keys.add(Kind::Login, name);
        keys.add(Kind::School, name);
        vec![keys]
    }

    fn of_student(system: System, student: &Student) -> Self {
        let mut keys = Self::default();
        let of_id = match system {
            System::Canvas => Kind::Canvas,
            System::Moodle => Kind::Participant,
            System::Gradescope => Kind::School,
            System::Nbgrader | System::Submitty | System::Classroom | System::Plain => Kind::Login,
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
            _ => keys.add(Kind::Name, &student.name),
        }
        keys
    }

    /// Whether both are one person; nothing if no kind tells.
    pub(crate) fn is_same(&self, other: &Self) -> Option<bool> {
        let shared = KINDS
            .into_iter()
            .find_map(|kind| Some((kind, self.of.get(&kind)?, other.of.get(&kind)?)));
        let (_, own, theirs) = shared?;
        Some(!own.is_disjoint(theirs))
    }

    /// The same for a name of which it is not known whether it is a login, a number or a name: any of them may fit.
    pub(crate) fn may_be(&self, other: &Self) -> bool {
        KINDS.into_iter().any(|kind| {
            let pair = self.of.get(&kind).zip(other.of.get(&kind));
            pair.is_some_and(|(own, theirs)| !own.is_disjoint(theirs))
        })
    }

    /// True if nothing but a name is known, which may be of any kind.
    pub(crate) fn is_plain(&self) -> bool {
        let some = |kind| self.of.get(&kind);
        some(Kind::Login).is_some() && some(Kind::School).is_some() && some(Kind::Name).is_some()
    }
}
