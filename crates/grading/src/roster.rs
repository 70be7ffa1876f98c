//! By what a person may be known: in the name of what was handed in, and in the row of a gradebook.

use std::collections::BTreeSet;

use unicode_normalization::UnicodeNormalization;

use crate::origin::Student;

/// Digits of a number in a name that is taken for that of a person.
const LEAST_DIGITS: usize = 4;

/// All that one person may be known by.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Names {
    /// Numbers, logins and addresses, in lower case.
    ids: BTreeSet<String>,
    /// Names, as [`folded`] writes them.
    names: BTreeSet<String>,
}

impl Names {
    pub(crate) fn add_id(&mut self, id: &str) {
        let id = plain(id);
        // Moodle writes a word before its numbers.
        if let Some((_, number)) = id.rsplit_once(' ').filter(|(_, n)| is_number(n)) {
            self.ids.insert(number.to_owned());
        }
        // What stands before the sign is the login, in most schools.
        if let Some((login, _)) = id.split_once('@') {
            self.ids.insert(login.to_owned());
        }
        self.ids.insert(id);
        self.ids.remove("");
    }

    /// A name as people write it: `First Last`, or `Last, First`.
    pub(crate) fn add_name(&mut self, name: &str) {
        let name = plain(name);
        if let Some((last, first)) = name.split_once(',') {
            self.names.insert(folded(&format!("{first}{last}")));
        }
        self.names.insert(folded(&name));
        self.names.remove("");
    }

    /// A student, as a system knows them.
    pub(crate) fn of_student(student: &Student) -> Self {
        let mut names = Self::default();
        names.add_name(&student.name);
        student.ids.iter().for_each(|id| names.add_id(id));
        names
    }

    /// What a submission is called: a name, a login, or several of them with numbers, as systems write it.
    pub(crate) fn of_submission(name: &str) -> Self {
        let mut names = Self::default();
        names.add_name(name);
        names.add_id(name);
        // Short numbers count assignments and attempts.
        let is_count = |part: &&str| is_number(part) && part.len() < LEAST_DIGITS;
        for part in name.split('_').filter(|part| !is_count(part)) {
            names.add_id(part);
        }
        if let Some((before, _)) = name.split_once('_') {
            names.add_name(before);
        }
        names
    }

    /// True if an id of both is the same.
    pub(crate) fn has_id_of(&self, other: &Self) -> bool {
        !self.ids.is_disjoint(&other.ids)
    }

    /// True if a name of both is the same.
    pub(crate) fn has_name_of(&self, other: &Self) -> bool {
        !self.names.is_disjoint(&other.names)
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// One form of each letter, in lower case, without space around it.
fn plain(text: &str) -> String {
    let text: String = text.trim().nfc().collect();
    text.to_lowercase()
}

/// Letters and digits alone, as Canvas writes names in archives.
fn folded(text: &str) -> String {
    plain(text)
        .chars()
        .filter(|c| c.is_alphanumeric())
        .collect()
}
